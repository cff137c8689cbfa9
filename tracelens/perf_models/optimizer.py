"""Optimizer steps over lists of tensors: ``_foreach_*`` arithmetic and fused updates."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Moved, PerfModel, Shown, aten, bind, traced_as
from tracelens.perf_models.surroundings import KERNEL, launch_of, list_type
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
    """Operations, reads and writes per element of the first list; ``results``: and one written per tensor."""
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


@traced_as(
    *aten(
        "_foreach_add _foreach_sub _foreach_mul _foreach_div _foreach_maximum _foreach_minimum _foreach_clamp_min "
        "_foreach_clamp_max _foreach_pow", "", "_",
    ),
    leaf_only=True,
    asks=(KERNEL,),
)  # fmt: skip
def _foreach_binary(op: OpSignature) -> MultiTensor:
    """(tensors, tensors | number[s], ...): a second list has the shapes of the first."""
    second = op.dtype_text(1) == "TensorList" or (op.has(1) and op.shapes and isinstance(op.shapes[1][0], tuple))
    return _lists(op, flops=1, reads=2 if second else 1, writes=1)


@traced_as("aten::_foreach_lerp", "aten::_foreach_lerp_", leaf_only=True, asks=(KERNEL,))
def _foreach_lerp(op: OpSignature) -> MultiTensor:
    """``a + weight * (b - a)``: three operations, two lists read (the weight may be a third)."""
    return _lists(op, flops=3, reads=3 if op.dtype_text(2) == "TensorList" else 2, writes=1)


def _row(names: str, *suffixes: str, **counts: int) -> partial[MultiTensor]:
    return bind(_lists, *aten(names, *suffixes), leaf_only=True, asks=(KERNEL,), **counts)


FUSED_UPDATES = (
    _row(
        "_foreach_sqrt _foreach_neg _foreach_abs _foreach_exp _foreach_log _foreach_reciprocal _foreach_sigmoid "
        "_foreach_rsqrt _foreach_sign _foreach_round _foreach_floor _foreach_ceil _foreach_tanh",
        *("", "_"), flops=1, reads=1, writes=1,
    ),
    _row("_foreach_zero_", flops=0, reads=0, writes=1),
    # x + value * a * b: three operations, three lists read
    _row("_foreach_addcmul _foreach_addcdiv", "", "_", flops=3, reads=3, writes=1),
    # a square and a sum per element
    _row("_foreach_norm", flops=2, reads=1, writes=0, results=True),
    _row("_foreach_max", flops=1, reads=1, writes=0, results=True),
    # a comparison and a product per element
    _row("_amp_foreach_non_finite_check_and_unscale_", flops=2, reads=1, writes=1),
    # Parameters, gradients and both moments are read, all but the gradients written. Per element: 2 for weight decay,
    # 3 and 4 for the moments, 2 for their bias corrections, a root, an addition, a division, a product, a difference.
    _row("_fused_adam_ _fused_adamw_", flops=15, reads=4, writes=3),
    # (parameters, gradients, sums of squares, ...): 2 for weight decay, 2 for the sums, 4 for the step
    _row("_fused_adagrad_", flops=8, reads=3, writes=2),
)  # fmt: skip


@traced_as("aten::_fused_sgd_", leaf_only=True, asks=(KERNEL,))
def _fused_sgd(op: OpSignature) -> MultiTensor:
    """(parameters, gradients, momenta, ...): 2 for weight decay, 2 for the step, 2 with momentum."""
    momentum = op.has(2)
    return _lists(op, flops=6 if momentum else 4, reads=3 if momentum else 2, writes=2 if momentum else 1)
