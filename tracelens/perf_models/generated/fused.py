"""Triton kernels with recorded arguments: what torch.compile fused or made from its templates, and users' own."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes, traced_as_pattern
from tracelens.perf_models.conv import Conv, convolved
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.generated.fused_names import FLOPS_PER_ELEMENT, fused_ops
from tracelens.perf_models.surroundings import GRID
from tracelens.perf_models.triton_kernels import Argument, Traffic, arguments, iterations, traffic
from tracelens.signature import OpSignature
from tracelens.units import BYTES_PER_MB

#: The attribute that says which compiler made a kernel.
BACKEND, TRITON = "kernel_backend", "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernel(PerfModel):
    """A Triton kernel over one iteration space.

    flops = iterations * (sum over the fused ops), from the ops that the kernel's name lists; None when it lists one
    that the table lacks, as a user's kernel does. bytes = ``operands``, what the arguments say is moved at least;
    ``most`` where they leave open whether more is (``fused_arguments.traffic``). ``recorded_flops`` and
    ``recorded_bytes`` are the compiler's own figures (``kernel_flop``, ``kernel_num_gb``; torch >= 2.4, where enabled),
    which win.
    """

    category: ClassVar[str] = "triton"
    engine: ClassVar[str] = "vector"
    inferred: ClassVar[bool] = True

    ops: tuple[str, ...] | None
    xnumel: int | None
    rnumel: int = 1
    operands: tuple[tuple[int, DType | None], ...] = ()
    most: tuple[tuple[int, DType | None], ...] | None = None
    dtype: DType | None = None
    recorded_flops: int | None = None
    recorded_bytes: int | None = None

    def flops(self) -> int | None:
        if self.recorded_flops is not None:
            return self.recorded_flops
        if self.ops is None or self.xnumel is None:
            return None
        return self.xnumel * self.rnumel * sum(FLOPS_PER_ELEMENT[op] for op in self.ops)

    def hbm_bytes(self) -> int | float | None:
        return self.recorded_bytes if self.recorded_bytes is not None else total_bytes(*self.operands)

    def parameters(self) -> dict[str, Any]:
        fused = None if self.ops is None else ", ".join(f"aten.{op}" for op in self.ops)
        most = None if self.most is None or self.recorded_bytes is not None else total_bytes(*self.most)
        at_most = {} if most is None else {"hbm_mb_at_most": most / BYTES_PER_MB}
        return {"fused_ops": fused, "xnumel": self.xnumel, "rnumel": self.rnumel, **at_most}


@traced_as_pattern(r"^triton_(poi|red|per|spl)_fused", asks=(GRID,))
def _inductor(op: OpSignature) -> FusedKernel:
    """Tensors, sizes of dynamic shapes, then the sizes of the iteration space (``fused_arguments``)."""
    tensors, ops = arguments(op), fused_ops(op.name)
    reduces = not op.name.startswith("triton_poi")
    space = iterations(op, tensors, reduces=reduces)
    if space.total <= 0:
        raise SignatureError(f"{op.name}: an iteration space of {space.results} x {space.reduced} was recorded")
    moved = traffic(tensors, space, ops, reduces=reduces)
    return _made(op, tensors, moved, ops=ops, xnumel=space.results, rnumel=space.reduced)


@traced_as_pattern(r"^triton_for_fused")
def _foreach(op: OpSignature) -> FusedKernel:
    """One pointwise kernel over many tensors: no size is recorded."""
    return compiled_kernel(op)


@traced_as_pattern(r"^triton_tem_fused\w*?_(addmm|baddbmm|bmm|mm)(_|$)", category=FusedKernel.category)
def _template_product(op: OpSignature) -> GEMM:
    """Inductor's own matrix product: A [(b,) m, k], B [(b,) k, n] and the result, which is the last tensor."""
    *operands, out = arguments(op)
    *batch, m, n = out.shape if len(out.shape) > 1 else (0, 0)
    for a, b in itertools.permutations(operands, 2):
        x, w = a.shape, b.shape
        if len(x) == len(w) == len(out.shape) and x[-2] == m and w[-1] == n and x[-1] == w[-2] and [*x[:-2]] == batch:
            return GEMM(b=math.prod(batch), m=m, n=n, k=x[-1], dtype=a.dtype, dtype_b=b.dtype, dtype_out=out.dtype)
    raise SignatureError(f"{op.name}: no two tensors multiply to the last one")


@traced_as_pattern(r"^triton_tem_fused\w*?_convolution(_|$)", category=FusedKernel.category)
def _template_convolution(op: OpSignature) -> Conv:
    """Inductor's own convolution: x [b, c, ...], weight [k, c / groups, ...] and the result, which is the last tensor.

    Stride and padding are compiled in: the result's size stands for them.
    """
    *operands, out = arguments(op)
    for x, w in itertools.permutations(operands, 2):
        fits = len(x.shape) == len(w.shape) == len(out.shape) > 2
        if fits and out.shape[:2] == (x.shape[0], w.shape[0]) and w.shape[1] and x.shape[1] % w.shape[1] == 0:
            return convolved(x.shape, w.shape, out.shape, (x.dtype, w.dtype, out.dtype))
    raise SignatureError(f"{op.name}: no two tensors convolve to the last one")


def compiled_kernel(op: OpSignature) -> FusedKernel:
    """A Triton kernel whose name says nothing: a user's own in a compiled region. Its FLOPs only where recorded."""
    tensors = arguments(op)
    moved = Traffic(least=tuple((t.elements, t.dtype) for t in tensors))
    return _made(op, tensors, moved, ops=None, xnumel=None, rnumel=1)


def _made(
    op: OpSignature,
    tensors: tuple[Argument, ...],
    moved: Traffic,
    *,
    ops: tuple[str, ...] | None,
    xnumel: int | None,
    rnumel: int,
) -> FusedKernel:
    gigabytes, flop = op.attribute("kernel_num_gb"), op.attribute("kernel_flop")
    return FusedKernel(
        ops=ops,
        xnumel=xnumel,
        rnumel=rnumel,
        operands=moved.least,
        most=moved.most,
        dtype=tensors[0].dtype,
        recorded_flops=int(flop) if isinstance(flop, int | float) and flop > 0 else None,
        recorded_bytes=int(gigabytes * 1e9) if isinstance(gigabytes, int | float) and gigabytes > 0 else None,
    )
