"""Batch, layer, group, instance and RMS normalization and their gradients, and hyper-connections of streams."""

from __future__ import annotations

import re
from math import prod
from typing import Any, TypeVar

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    Like,
    ModelRecord,
    Moved,
    Slot,
    aten,
    bind,
    number,
    recorded_as,
    recorded_call,
    resolved,
    traced_as,
    traced_name,
    with_fields_of,
)
from tracelens.perf_models.surroundings import KERNEL, launch_of
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape

N = TypeVar("N", bound="Normalization")
_LIBRARIES = ("", "native_", "miopen_", "cudnn_")
# cuDNN's and MIOpen's kernels of batch normalization forward.
_TRAINS = re.compile(r"(?P<trains>\bbn_fw_tr_|BatchNormFwdTrain)|\bbn_fw_inf_|BatchNormFwdInfer")


class Normalization(ModelRecord, category="NORM_fwd", family="Normalization"):
    """``y = (x - mean) / sqrt(variance + eps)``, optionally scaled by a weight and shifted by a bias.

    n elements, ``channels`` entries of the weight (layer norm: the normalized shape), ``statistics`` means and
    variances. flops = 2n to apply a scale and a shift + 6 per channel to make them + 3n where the statistics are
    computed from x (``training``: always, but for a batch norm in evaluation); the count does not depend on whether
    there are weights. bytes = x read, y written, weight and bias read; computed statistics written, running ones
    (``running``) read, and written back when training.

    ``dtype`` is x's; y and the weights are like it unless said otherwise. Saved statistics are FP32 on every backend
    for inputs up to 32 bits. A ``residual`` is added to x first and the sum written back: n flops, 2n more elements.
    """

    shape: Shape
    channels: int
    statistics: int
    weight: bool = False
    bias: bool = False
    training: bool = True
    running: bool = False
    residual: bool = False
    dtype: DType | None = DType.BF16
    dtype_out: DType | Like | None = Like.FIRST
    dtype_weight: DType | Like | None = Like.FIRST
    stride_x: Shape | None = None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    def flops(self) -> int:
        n = self.elements
        return 2 * n + 6 * self.channels + (3 * n if self.training else 0) + (n if self.residual else 0)

    def moved(self) -> Moved | None:
        n = self.elements
        return (
            (n * (3 if self.residual else 1), self.dtype),
            (n, self.dtype_out),
            (self.channels * (self.weight + self.bias), self.dtype_weight),
            *self._statistics(),
        )

    def backward(self) -> Normalization:
        return with_fields_of(self, NormalizationBackward, output_mask=(True, self.weight, self.bias))

    def _statistics(self) -> Moved:
        """Running statistics read (and written back), computed ones written."""
        running = 2 * self.channels * (2 if self.training else 1) if self.running else 0
        saved = 2 * self.statistics if self.training else 0
        return ((running, self.dtype_weight), (saved, self._dtype_statistics))

    @property
    def _dtype_statistics(self) -> DType:
        return DType.FP64 if self.dtype is DType.FP64 else DType.FP32

    def parameters(self) -> dict[str, Any]:
        """A result's type only where a caller states it, as traces record none; a gradient's ``dtype_out`` is dy's."""
        is_gradient, mask = hasattr(self, "output_mask"), getattr(self, "output_mask", None)
        out = None if is_gradient or isinstance(self.dtype_out, Like) else traced_name(self.dtype_out)
        return {
            "op_shape": self.shape, "dtype_in_out": (traced_name(self.dtype), out),
            "stride_input": self.stride_x, "stride_output": None, "num_channels": self.channels,
            "has_bias": self.bias, "is_affine": self.weight, "is_training": self.training,
            "output_mask": None if mask is None else list(mask),
        }  # fmt: skip


class NormalizationBackward(Normalization, category="NORM_bwd"):
    """The gradients of a ``Normalization`` that ``output_mask`` (x, weight, bias) asks for.

    flops = 4n + 5n where the statistics came from x, else 4n + 3 per channel; the count does not depend on the mask.
    bytes = x and dy read, dx written; weight and statistics read, the asked-for gradients of weight and bias written;
    unknown without the mask.
    """

    output_mask: tuple[bool, ...] | None = (True, True, True)

    def flops(self) -> int:
        n = self.elements
        return 9 * n if self.training else 4 * n + 3 * self.channels

    def moved(self) -> Moved | None:
        if self.output_mask is None:
            return None
        n = self.elements
        of_x, *of_weights = self.output_mask
        return (
            (n * (1 + of_x), self.dtype),
            (n, self.dtype_out),
            (self.channels * (self.weight + sum(of_weights)), self.dtype_weight),
            *self._statistics(),
        )

    def _statistics(self) -> Moved:
        if self.training:
            return ((2 * self.statistics, self._dtype_statistics),)
        return ((2 * self.channels, self.dtype_weight),)


class RMSNorm(Normalization, category="RMSNorm", family="RMSNorm_fwd"):
    """``y = x / sqrt(mean(x^2) + eps)``, optionally scaled by a weight of ``channels``.

    flops = 2n for the squares and their sums + 2 per statistic + n to scale (+ n with a weight, + n for a residual,
    + 2n to quantize the result: its maximum and its scaling). bytes as for ``Normalization``; nothing is centered,
    so one figure per statistic. ``saves`` says whether it is written for a backward pass. ``scale_elements`` of
    ``dtype_scale`` are the scales that a quantized result is written with.
    """

    training: bool = False
    quantized: bool = False
    saves: bool = False
    scale_elements: int = 0
    dtype_scale: DType | None = DType.FP32

    def flops(self) -> int:
        per_element = 3 + self.weight + self.residual + 2 * self.quantized
        return per_element * self.elements + 2 * self.statistics

    def backward(self) -> RMSNormBackward:
        return with_fields_of(self, RMSNormBackward, output_mask=(True, self.weight))

    def _statistics(self) -> Moved:
        saved = self.statistics if self.saves else 0
        return ((saved, self._dtype_statistics), (self.scale_elements, self.dtype_scale))


class RMSNormBackward(RMSNorm, category="NORM_bwd", family="RMSNorm_bwd"):
    """The gradients of an ``RMSNorm`` that ``output_mask`` (x, weight) asks for.

    flops = 8n, and 2n for the gradient of the weight. bytes = x and dy read, dx written; weight and one statistic per
    row read, the gradient of the weight written.
    """

    output_mask: tuple[bool, ...] = (True, True)

    def flops(self) -> int:
        return (8 + 2 * self.output_mask[1]) * self.elements

    def moved(self) -> Moved:
        of_x, of_weight = self.output_mask
        return (
            (self.elements * (1 + of_x), self.dtype),
            (self.elements, self.dtype_out),
            (self.channels * (self.weight + of_weight), self.dtype_weight),
            (self.statistics, self._dtype_statistics),
        )


class FusedRMSNorm(RMSNorm, category="NORM_fwd", family="Normalization"):
    """``aten::_fused_rms_norm``, which reports list with the other normalizations of aten."""


class FusedRMSNormBackward(RMSNormBackward, family="Normalization"):
    """``aten::_fused_rms_norm_backward``, which reports list with the other normalizations of aten."""


def _mask(op: OpSignature, index: int) -> tuple[bool, ...]:
    value = op.literal(index)
    if not isinstance(value, list | tuple):
        raise SignatureError(f"{op.name}: argument {index}, the output mask, was not recorded")
    return tuple(bool(asked) for asked in value)


def _normalized(op: OpSignature, index: int, weight: int) -> int:
    """Elements of a recorded ``normalized_shape``, else those of the weight, which has that shape."""
    value = op.literal(index)
    if value is None and op.has(weight):
        return prod(op.shape(weight))
    if isinstance(value, int):
        return value
    if not isinstance(value, list | tuple) or not value:
        raise SignatureError(f"{op.name}: argument {index}, the normalized shape, was not recorded")
    return prod(value)


def _common(op: OpSignature, x: int, weight: int, bias: int | None = None) -> dict[str, Any]:
    """What every binding reads alike: the fields of a Normalization that tensors give."""
    shifted = bias is not None and op.has(bias)
    typed = weight if op.has(weight) else bias if shifted else None
    return {
        "shape": op.shape(x),
        "weight": op.has(weight),
        "bias": shifted,
        "dtype": op.dtype(x),
        "dtype_weight": Like.FIRST if typed is None else op.dtype(typed),
        "stride_x": op.stride(x),
    }


def _channels(op: OpSignature, x: int) -> int:
    shape = op.shape(x)
    if len(shape) < 2:
        raise SignatureError(f"{op.name}: input {x} should have a channel dim, the trace recorded {list(shape)}")
    return shape[1]


def rms_norm(op: OpSignature, x: int, weight: int, *, out: int | None = None, scale: int | None = None,
             **fields: Any) -> RMSNorm:  # fmt: skip
    """RMSNorm of tensor ``x`` by ``weight``; ``out`` and ``scale`` are slots of a quantized result and its scales.

    ``fields`` are RMSNorm's that the slots do not hold (``residual``, ``dtype_out`` ...).
    """
    common = _common(op, x, weight)
    channels = prod(op.shape(weight))
    recorded: dict[str, Any] = {"channels": channels, "statistics": prod(common["shape"]) // max(channels, 1)}
    if out is not None:
        recorded["dtype_out"] = op.dtype(out)
    if scale is not None:
        recorded |= {"scale_elements": prod(op.shape_or_scalar(scale)), "dtype_scale": op.dtype(scale)}
    return RMSNorm(**common | recorded | fields)


def _batch_norm(op: OpSignature, *, training: int | bool) -> Normalization:
    """(x, weight, bias, running_mean, running_var, ...); ``training`` is a slot, or the truth itself."""
    c = _channels(op, 0)
    trains = training if isinstance(training, bool) else bool(op.integer(training))
    return Normalization(**_common(op, 0, 1, 2), channels=c, statistics=c, training=trains, running=op.has(3))


@traced_as("aten::miopen_batch_norm", "aten::cudnn_batch_norm", asks=(KERNEL,))
def _library_batch_norm(op: OpSignature) -> Normalization:
    """As ``aten::batch_norm``; where no numbers were recorded, the kernel's name says whether it trains."""
    launch = launch_of(op)
    said = None if launch is None else _TRAINS.search(launch.kernel)
    return _batch_norm(op, training=5 if said is None else said["trains"] is not None)


class NormalizationPart(ModelRecord, category="NORM_fwd", family="Normalization"):
    """One pass of a batch normalization that ranks share (``torch.nn.SyncBatchNorm``), whose statistics travel between.

    flops = ``flops_per_element`` per element of x; bytes = x read, ``writes`` tensors like it written, and
    ``of_channels`` FP32 values.
    """

    shape: Shape
    channels: int
    of_channels: int
    writes: int = 0
    flops_per_element: int = 3
    dtype: DType | None = DType.BF16

    def flops(self) -> int:
        return self.flops_per_element * prod(self.shape)

    def moved(self) -> Moved:
        return (((1 + self.writes) * prod(self.shape), self.dtype), (self.of_channels, DType.FP32))

    def parameters(self) -> dict[str, Any]:
        return {
            "op_shape": self.shape, "dtype_in_out": (traced_name(self.dtype), None), "num_channels": self.channels,
            "is_training": True,
        }  # fmt: skip


class NormalizationPartBackward(NormalizationPart, category="NORM_bwd"):
    """A pass of its gradients, which reads dy, of its own type, as well."""

    dtype_out: DType | Like | None = Like.FIRST

    def moved(self) -> Moved:
        return (*NormalizationPart.moved(self), (prod(self.shape), self.dtype_out))


def _part(
    op: OpSignature,
    *,
    kind: type[NormalizationPart],
    x: int,
    vectors: int,
    optional: tuple[int, ...] = (),
    **fields: Any,
) -> NormalizationPart:
    """A pass over ``x`` with so many ``vectors`` of a value per channel, and one more for each ``optional`` tensor."""
    c = _channels(op, x)
    of_channels = (vectors + sum(map(op.has, optional))) * c
    if kind is NormalizationPartBackward:
        fields["dtype_out"] = op.dtype(0)
    return kind(shape=op.shape(x), channels=c, of_channels=of_channels, dtype=op.dtype(x), **fields)


@traced_as(*(f"aten::{library}instance_norm" for library in _LIBRARIES))
def _instance_norm(op: OpSignature) -> Normalization:
    """(x, weight, bias, running_mean, running_var, use_input_stats, ...)."""
    c = _channels(op, 0)
    rows = op.shape(0)[0] * c
    return Normalization(
        **_common(op, 0, 1, 2), channels=c, statistics=rows, training=bool(op.integer(5)), running=op.has(3)
    )


def _over_last_dims(
    op: OpSignature, *, kind: type[N], dims: int, weight: int, bias: int | None = None, x: int = 0, **fields: Any
) -> N:
    """``x`` normalized over its last dims, whose sizes stand in slot ``dims``."""
    channels = _normalized(op, dims, weight)
    common = _common(op, x, weight, bias)
    return kind(**common, channels=channels, statistics=prod(common["shape"]) // channels, **fields)


def _over_last_dims_backward(op: OpSignature, *, kind: type[N], mask: int, is_masked: bool = True, **slots: int) -> N:
    """(dy, x, normalized_shape, ...); without ``is_masked`` the mask may be missing, and the bytes are unknown then."""
    model = _over_last_dims(op, kind=kind, x=1, dims=2, dtype_out=op.dtype(0), **slots)
    return with_fields_of(
        model, kind, output_mask=_mask(op, mask) if is_masked or op.literal(mask) is not None else None
    )


@traced_as("aten::group_norm", "aten::miopen_group_norm", "aten::cudnn_group_norm")
def _group_norm(op: OpSignature) -> Normalization:
    """(x, num_groups, weight, bias, ...)."""
    rows = op.shape(0)[0] * op.integer(1)
    return Normalization(**_common(op, 0, 2, 3), channels=_channels(op, 0), statistics=rows)


@traced_as("aten::native_group_norm")
def _native_group_norm(op: OpSignature) -> Normalization:
    """(x, weight, bias, N, C, HxW, groups, eps)."""
    return Normalization(**_common(op, 0, 1, 2), channels=op.integer(4), statistics=op.integer(3) * op.integer(6))


def _gradients(
    op: OpSignature, dy: int, x: int, weight: int, mask: tuple[bool, ...], **fields: Any
) -> NormalizationBackward:
    common = _common(op, x, weight) | {"bias": mask[2]}
    return NormalizationBackward(**common, dtype_out=op.dtype(dy), output_mask=mask, **fields)


@traced_as(*aten("native_batch_norm batch_norm instance_norm native_instance_norm", "_backward"))
def _native_batch_norm_backward(op: OpSignature) -> NormalizationBackward:
    """(dy, x, weight, running_mean, running_var, save_mean, save_invstd, training, eps, output_mask, ...)."""
    c, mask, training = _channels(op, 1), _mask(op, 9), bool(op.integer(7))
    return _gradients(op, 0, 1, 2, mask, channels=c, statistics=c, training=training, running=op.has(3))


@traced_as(*aten("miopen_batch_norm cudnn_batch_norm miopen_instance_norm cudnn_instance_norm", "_backward"))
def _library_batch_norm_backward(op: OpSignature) -> NormalizationBackward:
    """(x, dy, weight, ...): autograd calls it for training only, and it returns all three gradients."""
    c = _channels(op, 0)
    return _gradients(op, 1, 0, 2, (True, True, True), channels=c, statistics=c, running=op.has(3))


@traced_as(*(f"aten::{library}group_norm_backward" for library in _LIBRARIES))
def _group_norm_backward(op: OpSignature) -> NormalizationBackward:
    """(dy, x, mean, rstd, weight, N, C, HxW, groups, output_mask)."""
    rows = op.integer(5) * op.integer(8)
    return _gradients(op, 0, 1, 4, _mask(op, 9), channels=op.integer(6), statistics=rows)


NORMALIZATIONS = (
    bind(
        _batch_norm, *aten("batch_norm native_batch_norm _batch_norm_impl_index _native_batch_norm_legit"), training=5
    ),
    # only ever training, only ever evaluation
    bind(_batch_norm, "aten::_batch_norm_with_update", training=True),
    bind(_batch_norm, *aten("_batch_norm_no_update _native_batch_norm_legit_no_training"), training=False),
    # (x, eps): mean and inverse deviation of each channel
    bind(_part, "aten::batch_norm_stats", kind=NormalizationPart, x=0, vectors=2),
    # (x, weight, bias, mean, invstd, eps): a scale and a shift, as in evaluation
    bind(
        _part, "aten::batch_norm_elemt", kind=NormalizationPart, x=0, vectors=2, optional=(1, 2), writes=1,
        flops_per_element=2,
    ),
    # (dy, x, mean, invstd, weight, ...): sums of dy and of dy * (x - mean), and the gradients of weight and bias
    bind(
        _part, "aten::batch_norm_backward_reduce", kind=NormalizationPartBackward, x=1, vectors=6, flops_per_element=4
    ),
    # (dy, x, mean, invstd, weight, sum of dy, sum of dy * (x - mean), counts): dx by those sums
    bind(
        _part, "aten::batch_norm_backward_elemt", kind=NormalizationPartBackward, x=1, vectors=4, optional=(4,),
        writes=1, flops_per_element=5,
    ),
    # (x, normalized_shape, weight, bias, ...)
    bind(
        _over_last_dims, *(f"aten::{library}layer_norm" for library in _LIBRARIES), kind=Normalization, dims=1,
        weight=2, bias=3,
    ),
    bind(_over_last_dims, "aten::_fused_rms_norm", kind=FusedRMSNorm, dims=1, weight=2, saves=True),
    bind(_over_last_dims, "aten::rms_norm", leaf_only=True, kind=FusedRMSNorm, dims=1, weight=2, saves=True),
    # (dy, x, normalized_shape, mean, rstd, weight, bias, output_mask)
    bind(
        _over_last_dims_backward, *(f"aten::{library}layer_norm_backward" for library in _LIBRARIES),
        kind=NormalizationBackward, weight=5, bias=6, mask=7, is_masked=False,
    ),
    # (dy, x, normalized_shape, rstd, weight, output_mask)
    bind(
        _over_last_dims_backward, "aten::_fused_rms_norm_backward",
        *(f"aten::{library}rms_norm_backward" for library in _LIBRARIES), kind=FusedRMSNormBackward, weight=4, mask=5,
    ),
)  # fmt: skip


@recorded_as("aten::layer_norm")
def _recorded_layer_norm(model: Normalization) -> OpSignature:
    """The last dims whose product is ``channels`` are the normalized ones."""
    normalized: Shape = ()
    while prod(normalized) < model.channels:
        normalized = model.shape[len(model.shape) - len(normalized) - 1 :]
    affine = Slot.tensor(normalized, resolved(model.dtype_weight, model.dtype))
    return recorded_call(
        "aten::layer_norm",
        Slot.tensor(model.shape, model.dtype, model.stride_x),
        Slot(dtype="ScalarList", scalar=str(list(normalized))),
        affine if model.weight else Slot(),
        affine if model.bias else Slot(),
        *(number("1e-05"), number(True)),
    )


class HyperConnection(ModelRecord, category="mHC", family="mHC_fwd"):
    """``tokens`` rows of ``streams`` residual streams with ``channels`` each; ``dtype`` is theirs."""

    tokens: int
    streams: int
    channels: int
    dtype: DType | None

    @property
    def _streams(self) -> int:
        """Elements of all streams."""
        return self.tokens * self.streams * self.channels

    @property
    def _layer(self) -> int:
        """Elements of one layer's input or output."""
        return self.tokens * self.channels


class HyperConnectionPost(HyperConnection):
    """Every stream becomes a mix of all streams and the layer's output.

    flops = 2*t*n*c*(n + 1); bytes = streams and layer output read, streams written; the n*(n + 1) coefficients per
    token are left out.
    """

    def flops(self) -> int:
        return 2 * self._streams * (self.streams + 1)

    def moved(self) -> Moved:
        return ((2 * self._streams + self._layer, self.dtype),)


class HyperConnectionCoefficients(HyperConnection, engine="matrix"):
    """The coefficients of the next mix: a GEMM of the flattened streams with ``outputs`` columns, and their square sum.

    flops = 2*t*outputs*n*c, the square sum left out; bytes = streams and weight read, FP32 coefficients and sums
    written. ``dtype_weight`` is the weight's type.
    """

    outputs: int
    dtype_weight: DType | None

    def flops(self) -> int:
        return 2 * self.outputs * self._streams

    def moved(self) -> Moved:
        return (
            (self._streams, self.dtype),
            (self.outputs * self.streams * self.channels, self.dtype_weight),
            (self.tokens * (self.outputs + 1), DType.FP32),
        )


class HyperConnectionPre(HyperConnection):
    """The layer's input: a weighted sum of the streams, RMS-normalized.

    flops = 2*t*n*c + 5*t*c; bytes = streams and norm weight read, layer input written.
    """

    def flops(self) -> int:
        return 2 * self._streams + 5 * self._layer

    def moved(self) -> Moved:
        return ((self._streams + self._layer + self.channels, self.dtype),)


class HyperConnectionPostPre(HyperConnectionCoefficients):
    """One layer's ``HyperConnectionPost`` and the next one's ``HyperConnectionCoefficients`` in one op.

    flops = their sum; bytes = streams, layer output and weight read, streams, coefficients and sums written.
    """

    def flops(self) -> int:
        return 2 * self._streams * (self.streams + 1) + HyperConnectionCoefficients.flops(self)

    def moved(self) -> Moved:
        return ((2 * self._streams + self._layer, self.dtype), *HyperConnectionCoefficients.moved(self)[1:])
