"""NVIDIA Apex: a convolution with its bias, and optionally the activation, in one op."""

from __future__ import annotations

from tracelens import CategoryOf, Conv, OpSignature, SignatureError, traced_as


@traced_as("ConvBias_", "ConvBiasReLU_")
def _conv_bias(op: OpSignature) -> Conv:
    """(x, weight, bias, stride, padding): plain numbers, the same along both dims; the activation is not counted."""
    x, w = op.shape(0, rank=4), op.shape(1, rank=4)
    stride, padding = op.literal(3), op.literal(4)
    if not isinstance(stride, int) or not isinstance(padding, int):
        raise SignatureError(f"{op.name}: stride and padding were not recorded")
    return Conv(
        x=x,
        w=w,
        stride=(stride, stride),
        padding=(padding, padding),
        dilation=(1, 1),
        output_padding=(0, 0),
        bias=op.has(2),
        dtype=op.dtype(0),
    )


#: A gradient alone does not show the input's size: that stands in the forward op.
CONV_BIAS_BACKWARD = CategoryOf(category="CONV_bwd", names=("ConvBias_Backward", "ConvBiasReLU_Backward"))
