"""Kernels that torch.compile fused from elementwise ops and reductions (Inductor's ``triton_poi|red|per_*``)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.perf_models.base import PerfModel, total_bytes, traced_as_pattern
from tracelens.signature import OpSignature

# Operations per element of the iteration space, by ATen op name. Moving data is 0. A transcendental function counts as
# the handful of operations its polynomial takes; the convention is the one of existing reports of this kind.
_MOVED = (
    "view _unsafe_view reshape permute transpose t expand unsqueeze squeeze slice select split cat stack clone "
    "copy copy_ _to_copy to alias detach embedding index gather index_select arange full full_like zeros "
    "zeros_like ones empty constant_pad_nd unbind scalar_tensor lift_fresh repeat flip roll as_strided "
    "new_zeros iota fill"
)
_ONE = (
    "add sub rsub mul neg abs relu where maximum minimum clamp clamp_min clamp_max eq ne lt le gt ge sum mean "
    "amax amin max min logical_and logical_or logical_not bitwise_and bitwise_or masked_fill "
    "threshold_backward any all sign floor"
)
_TWO = "pow rsqrt sqrt reciprocal div addcmul"
_FOUR = "exp log sigmoid silu sin cos tanh log1p erf var_mean var std"
_FIVE = "_softmax _log_softmax native_layer_norm native_group_norm"
_FLOPS_PER_ELEMENT: dict[str, int] = {
    name: flops
    for flops, names in ((0, _MOVED), (1, _ONE), (2, _TWO), (4, _FOUR), (5, _FIVE), (8, "gelu"))
    for name in names.split()
}
_PREFIX = re.compile(r"^triton_(?:poi|red|per)_fused_(?P<ops>.*?)(?:_\d+)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernel(PerfModel):
    """Fused ATen ops over one iteration space.

    flops = numel * (sum over the fused ops), from the ops that the kernel's name lists; None when it lists one this
    table does not know. bytes = every tensor argument once: an argument that is read and written counts once, so this
    is a lower bound. ``recorded_flops`` and ``recorded_bytes`` are the compiler's own figures
    (``kernel_flop``, ``kernel_num_gb``; torch >= 2.4, where enabled), which win.
    """

    category: ClassVar[str] = "triton"
    engine: ClassVar[str] = "vector"

    ops: tuple[str, ...] | None
    xnumel: int
    rnumel: int = 1
    operands: tuple[tuple[int, DType | None], ...] = ()
    dtype: DType | None = None
    recorded_flops: int | None = None
    recorded_bytes: int | None = None

    def flops(self) -> int | None:
        if self.recorded_flops is not None:
            return self.recorded_flops
        if self.ops is None:
            return None
        return self.xnumel * self.rnumel * sum(_FLOPS_PER_ELEMENT[op] for op in self.ops)

    def hbm_bytes(self) -> int | float | None:
        return self.recorded_bytes if self.recorded_bytes is not None else total_bytes(*self.operands)

    def parameters(self) -> dict[str, Any]:
        fused = None if self.ops is None else ", ".join(f"aten.{op}" for op in self.ops)
        return {"fused_ops": fused, "xnumel": self.xnumel, "rnumel": self.rnumel}


def fused_ops(name: str) -> tuple[str, ...] | None:
    """The ATen ops in a kernel's name; None when a part is not in the table.

    >>> fused_ops("triton_poi_fused__unsafe_view_mul_silu_2")
    ('_unsafe_view', 'mul', 'silu')
    """
    match = _PREFIX.match(name)
    if match is None:
        return None
    words = match["ops"].split("_")
    ops: list[str] = []
    start = 0
    while start < len(words):
        for end in range(len(words), start, -1):
            op = "_".join(words[start:end])
            if op in _FLOPS_PER_ELEMENT:
                ops.append(op)
                start = end
                break
        else:
            return None
    return tuple(ops)


@traced_as_pattern(r"^triton_(poi|red|per)_fused")
def _inductor(op: OpSignature) -> FusedKernel:
    """Tensors first, then xnumel and, for reductions, rnumel as scalars."""
    if op.shapes is None:
        raise SignatureError(f"{op.name}: the trace has no shapes (record_shapes=True was not set)")
    tensors = [i for i in range(len(op.shapes)) if op.has(i)]
    sizes = [v for i in range(len(op.shapes)) if not op.has(i) and isinstance(v := op.literal(i), int)]
    if not tensors or not sizes:
        raise SignatureError(f"{op.name}: no tensor or no iteration size was recorded")
    gigabytes, flop = op.attribute("kernel_num_gb"), op.attribute("kernel_flop")
    return FusedKernel(
        ops=fused_ops(op.name),
        xnumel=sizes[0],
        rnumel=math.prod(sizes[1:]) if not op.name.startswith("triton_poi") else 1,
        operands=tuple((math.prod(op.shape(i)), op.dtype(i)) for i in tensors),
        dtype=op.dtype(tensors[0]),
        recorded_flops=int(flop) if isinstance(flop, int | float) and flop > 0 else None,
        recorded_bytes=int(gigabytes * 1e9) if isinstance(gigabytes, int | float) and gigabytes > 0 else None,
    )
