"""The gradients of convolutions as PyTorch before 1.10 computes them: an op of the library's for each of x and w."""

from __future__ import annotations

from dataclasses import fields

from tracelens.errors import SignatureError
from tracelens.perf_models.base import traced_as
from tracelens.perf_models.conv import Conv, ConvBackward, convolved
from tracelens.perf_models.surroundings import CALLER, caller_of
from tracelens.signature import OpSignature


@traced_as(
    "aten::cudnn_convolution_backward_input",
    "aten::miopen_convolution_backward_input",
    "aten::miopen_depthwise_convolution_backward_input",
    "aten::mkldnn_convolution_backward_input",
    asks=(CALLER,),
)
def _of_x(op: OpSignature) -> ConvBackward:
    """(size of x, dOut, w, ...), called by (x, dOut, w, ...)."""
    return _part(op, of_x=True)


@traced_as(
    "aten::cudnn_convolution_backward_weight",
    "aten::miopen_convolution_backward_weight",
    "aten::miopen_depthwise_convolution_backward_weight",
    "aten::mkldnn_convolution_backward_weights",
    asks=(CALLER,),
)
def _of_w(op: OpSignature) -> ConvBackward:
    """(size of w, dOut, x, ...), called by (x, dOut, w, ...)."""
    return _part(op, of_x=False)


def _part(op: OpSignature, *, of_x: bool) -> ConvBackward:
    caller = caller_of(op)
    if caller is None or not caller.name.endswith("convolution_backward"):
        raise SignatureError(f"{op.name}: the size of the gradient was not recorded, nor the op that calls it")
    x, out, w = (caller.shape(slot) for slot in range(3))
    if (op.shape(1), op.shape(2)) != (out, w if of_x else x):
        raise SignatureError(f"{op.name}: the op that calls it has other tensors")
    forward = convolved(x, w, out, (caller.dtype(0), caller.dtype(2), caller.dtype(1)))
    values = {f.name: getattr(forward, f.name) for f in fields(Conv)}
    return ConvBackward(**values, output_mask=(of_x, not of_x, False))
