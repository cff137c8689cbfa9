"""Optimizer steps over lists of tensors: ``_foreach_*`` arithmetic and fused updates."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Moved, PerfModel, Shown, traced_as
from tracelens.perf_models.surroundings import launch_of, list_type
from tracelens.signature import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTensor(PerfModel):
    """An elementwise update of ``tensors`` tensors with ``elements`` elements in all.

    flops = flops_per_element each; bytes = ``reads`` tensors read and ``writes`` written per element, plus
    ``results`` further elements. A trace does not record the element type of a tensor list: the kernel's name says it,
    else ``dtype`` and the bytes are None. Lists of other types than the first, as FP32 moments, are counted like it.
    """

    category: ClassVar[str] = "multi_tensor_apply"
    engine: ClassVar[str] = "vector"
    family: ClassVar[str | None] = "MultiTensor"
    stream: ClassVar[str] = "optimizer"
    shown: ClassVar[Shown | None] = {
        "num_tensors": "tensors", "num_elems": "elements", "dtype": "dtype", "reads_per_elem": "reads",
        "writes_per_elem": "writes",
    }  # fmt: skip

    tensors: int
    elements: int
    flops_per_element: int
    reads: int
    writes: int
    results: int = 0
    dtype: DType | None = DType.FP32

    def flops(self) -> int:
        return self.flops_per_element * self.elements

    def moved(self) -> Moved:
        return (((self.reads + self.writes) * self.elements + self.results, self.dtype),)


def _lists(op: OpSignature, *, flops: int, reads: int, writes: int, results: bool = False) -> MultiTensor:
    shapes, launch = op.shape_list(0), launch_of(op)
    return MultiTensor(
        tensors=len(shapes),
        elements=sum(prod(s) for s in shapes),
        flops_per_element=flops,
        reads=reads,
        writes=writes,
        results=len(shapes) if results else 0,
        dtype=op.dtype(0) or (list_type(launch.kernel) if launch else None),
    )


_BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "clamp_min", "clamp_max", "pow")
_UNARY = (
    "sqrt", "neg", "abs", "exp", "log", "reciprocal", "sigmoid", "rsqrt", "sign", "round", "floor", "ceil", "tanh",
)  # fmt: skip


@traced_as(
    *(f"aten::_foreach_{op}{suffix}" for op in _BINARY for suffix in ("", "_")), leaf_only=True, asks=("kernel",)
)
def _foreach_binary(op: OpSignature) -> MultiTensor:
    """(tensors, tensors | number[s], ...): a second list has the shapes of the first."""
    second = op.dtype_text(1) == "TensorList" or (op.has(1) and isinstance(_slot(op, 1)[0], tuple))
    return _lists(op, flops=1, reads=2 if second else 1, writes=1)


def _slot(op: OpSignature, index: int) -> tuple[Any, ...]:
    return op.shapes[index] if op.shapes is not None else ()


@traced_as(*(f"aten::_foreach_{op}{suffix}" for op in _UNARY for suffix in ("", "_")), leaf_only=True, asks=("kernel",))
def _foreach_unary(op: OpSignature) -> MultiTensor:
    return _lists(op, flops=1, reads=1, writes=1)


@traced_as("aten::_foreach_zero_", leaf_only=True, asks=("kernel",))
def _foreach_zero(op: OpSignature) -> MultiTensor:
    return _lists(op, flops=0, reads=0, writes=1)


@traced_as(
    "aten::_foreach_addcmul", "aten::_foreach_addcmul_", "aten::_foreach_addcdiv", "aten::_foreach_addcdiv_",
    leaf_only=True,
    asks=("kernel",),
)  # fmt: skip
def _foreach_addc(op: OpSignature) -> MultiTensor:
    """``x + value * a * b``: three operations, three lists read."""
    return _lists(op, flops=3, reads=3, writes=1)


@traced_as("aten::_foreach_lerp", "aten::_foreach_lerp_", leaf_only=True, asks=("kernel",))
def _foreach_lerp(op: OpSignature) -> MultiTensor:
    """``a + weight * (b - a)``: three operations, two lists read (the weight may be a third)."""
    return _lists(op, flops=3, reads=3 if op.dtype_text(2) == "TensorList" else 2, writes=1)


@traced_as("aten::_foreach_norm", leaf_only=True, asks=("kernel",))
def _foreach_norm(op: OpSignature) -> MultiTensor:
    """A square and a sum per element, one result per tensor."""
    return _lists(op, flops=2, reads=1, writes=0, results=True)


@traced_as("aten::_foreach_max", leaf_only=True, asks=("kernel",))
def _foreach_max(op: OpSignature) -> MultiTensor:
    return _lists(op, flops=1, reads=1, writes=0, results=True)


@traced_as("aten::_amp_foreach_non_finite_check_and_unscale_", leaf_only=True, asks=("kernel",))
def _unscale(op: OpSignature) -> MultiTensor:
    """A comparison and a product per element."""
    return _lists(op, flops=2, reads=1, writes=1)


@traced_as("aten::_fused_adam_", "aten::_fused_adamw_", leaf_only=True, asks=("kernel",))
def _fused_adam(op: OpSignature) -> MultiTensor:
    """(parameters, gradients, first moments, second moments, ...).

    Per element: 2 for weight decay, 3 and 4 for the moments, 2 for their bias corrections, a root, an addition, a
    division, a product and a difference: 15. Parameters, gradients and both moments are read, all but the gradients
    written.
    """
    return _lists(op, flops=15, reads=4, writes=3)


@traced_as("aten::_fused_sgd_", leaf_only=True, asks=("kernel",))
def _fused_sgd(op: OpSignature) -> MultiTensor:
    """(parameters, gradients, momenta, ...): 2 for weight decay, 2 for the step, 2 with momentum."""
    momentum = op.has(2)
    return _lists(op, flops=6 if momentum else 4, reads=3 if momentum else 2, writes=2 if momentum else 1)


@traced_as("aten::_fused_adagrad_", leaf_only=True, asks=("kernel",))
def _fused_adagrad(op: OpSignature) -> MultiTensor:
    """(parameters, gradients, sums of squares, ...): 2 for weight decay, 2 for the sums, 4 for the step."""
    return _lists(op, flops=8, reads=3, writes=2)
