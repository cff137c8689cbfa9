"""Triton kernels with recorded arguments: what torch.compile fused or made from its templates, and users' own."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.perf_models.base import PerfModel, total_bytes, traced_as_pattern
from tracelens.perf_models.gemm import GEMM
from tracelens.signature import OpSignature

# Operations per element of the iteration space, by ATen op name. Moving data is 0. A transcendental function counts as
# the handful of operations its polynomial takes; the convention is the one of existing reports of this kind.
_MOVED = (
    "view _unsafe_view reshape permute transpose t expand unsqueeze squeeze slice select split cat stack clone "
    "copy copy_ _to_copy to alias detach embedding index gather index_select arange full full_like zeros "
    "zeros_like ones empty constant_pad_nd unbind scalar_tensor lift_fresh repeat flip roll as_strided "
    "new_zeros iota fill new_empty new_full empty_like ones_like rand randn index_put _unsafe_index scatter "
    "as_strided_scatter slice_scatter select_scatter tril triu one_hot nll_loss_forward sort argsort unfold "
    "transpose_copy squeeze_copy _unsafe_index_put lift_fresh_copy"
)
_ONE = (
    "add sub rsub mul neg abs relu where maximum minimum clamp clamp_min clamp_max eq ne lt le gt ge sum mean "
    "amax amin max min logical_and logical_or logical_not bitwise_and bitwise_or masked_fill "
    "threshold_backward any all sign floor ceil round trunc remainder fmod isnan isinf bitwise_not bitwise_xor "
    "hardtanh leaky_relu native_dropout bernoulli cumsum scatter_add prod argmax argmin "
    "mm addmm bmm baddbmm convolution max_pool2d_with_indices nll_loss_backward"
)
# The products above run in kernels of their own: in a fused name they stand for the bias that was added here.
_TWO = "pow rsqrt sqrt reciprocal div addcmul addcdiv linalg_vector_norm"
_FOUR = (
    "exp log sigmoid silu sin cos tanh log1p log2 exp2 expm1 erf var_mean var std sigmoid_backward tanh_backward "
    "_softmax_backward_data _log_softmax_backward_data hardswish softplus elu"
)
_FIVE = (
    "_softmax _log_softmax native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training _fused_rms_norm rms_norm silu_backward"
)
_NINE = "native_layer_norm_backward native_batch_norm_backward native_group_norm_backward _fused_rms_norm_backward"
_FLOPS_PER_ELEMENT: dict[str, int] = {
    name: flops
    for flops, names in (
        (0, _MOVED),
        (1, _ONE),
        (2, _TWO),
        (4, _FOUR),
        (5, _FIVE),
        (8, "gelu"),
        (9, _NINE),
        (10, "gelu_backward"),
    )
    for name in names.split()
}
_PREFIX = re.compile(r"^triton_(?:poi|red|per)_fused_(?P<ops>.*?)(?:_\d+)?$")
_LOOKS_UP = {"embedding", "gather", "index", "index_select", "_unsafe_index"}
#: The attribute that says which compiler made a kernel.
BACKEND, TRITON = "kernel_backend", "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedKernel(PerfModel):
    """A Triton kernel over one iteration space.

    flops = numel * (sum over the fused ops), from the ops that the kernel's name lists; None when it lists one this
    table does not know, as a user's kernel does. bytes = every tensor argument once: too few where one is read and
    written, too many where the kernel takes a part of one. ``recorded_flops`` and ``recorded_bytes`` are the compiler's
    own figures (``kernel_flop``, ``kernel_num_gb``; torch >= 2.4, where enabled), which win.
    """

    category: ClassVar[str] = "triton"
    engine: ClassVar[str] = "vector"

    ops: tuple[str, ...] | None
    xnumel: int | None
    rnumel: int = 1
    operands: tuple[tuple[int, DType | None], ...] = ()
    dtype: DType | None = None
    recorded_flops: int | None = None
    recorded_bytes: int | None = None

    def flops(self) -> int | None:
        if self.recorded_flops is not None:
            return self.recorded_flops
        if self.ops is None or self.xnumel is None:
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


@traced_as_pattern(r"^triton_(poi|red|per|for)_fused")
def _inductor(op: OpSignature) -> FusedKernel:
    """Tensors first, then xnumel and, for reductions, rnumel as scalars; foreach kernels (``for``) have none.

    Where the name lists a look-up, no argument counts more often than there are iterations.
    """
    tensors = _tensors(op)
    sizes = [v for i in range(len(op.shapes or ())) if not op.has(i) and isinstance(v := op.literal(i), int)]
    if not sizes and not op.name.startswith("triton_for"):
        raise SignatureError(f"{op.name}: no iteration size was recorded")
    ops, rnumel = fused_ops(op.name), math.prod(sizes[1:]) if not op.name.startswith("triton_poi") else 1
    model = _of_arguments(op, tensors, ops=ops, xnumel=sizes[0] if sizes else None, rnumel=rnumel)
    if ops is not None and _LOOKS_UP & set(ops) and sizes:
        most = sizes[0] * rnumel
        return replace(model, operands=tuple((min(n, most), dtype) for n, dtype in model.operands))
    return model


@traced_as_pattern(r"^triton_tem_fused\w*?_(addmm|baddbmm|bmm|mm)(_|$)", category=FusedKernel.category)
def _template_product(op: OpSignature) -> GEMM:
    """Inductor's own matrix product: A [(b,) m, k], B [(b,) k, n] and the result, which is the last tensor."""
    tensors = _tensors(op)
    *operands, out = [op.shape(i) for i in tensors]
    *batch, m, n = out if len(out) > 1 else (0, 0)
    for a, b in itertools.permutations(range(len(operands)), 2):
        x, w = operands[a], operands[b]
        if len(x) == len(w) == len(out) and x[-2] == m and w[-1] == n and x[-1] == w[-2] and [*x[:-2]] == batch:
            dtypes = (op.dtype(tensors[a]), op.dtype(tensors[b]), op.dtype(tensors[-1]))
            return GEMM(b=math.prod(batch), m=m, n=n, k=x[-1], dtype=dtypes[0], dtype_b=dtypes[1], dtype_out=dtypes[2])
    raise SignatureError(f"{op.name}: no two tensors multiply to the last one")


def compiled_kernel(op: OpSignature) -> FusedKernel:
    """A Triton kernel whose name says nothing: a user's own in a compiled region. Its FLOPs only where recorded."""
    return _of_arguments(op, _tensors(op), ops=None, xnumel=None, rnumel=1)


def _tensors(op: OpSignature) -> list[int]:
    if op.shapes is None:
        raise SignatureError(f"{op.name}: the trace has no shapes (record_shapes=True was not set)")
    found = [i for i in range(len(op.shapes)) if op.has(i) and not isinstance(op.shapes[i][0], tuple)]
    if not found:
        raise SignatureError(f"{op.name}: no tensor was recorded")
    return found


def _of_arguments(
    op: OpSignature, tensors: list[int], *, ops: tuple[str, ...] | None, xnumel: int | None, rnumel: int
) -> FusedKernel:
    gigabytes, flop = op.attribute("kernel_num_gb"), op.attribute("kernel_flop")
    return FusedKernel(
        ops=ops,
        xnumel=xnumel,
        rnumel=rnumel,
        operands=tuple((math.prod(op.shape(i)), op.dtype(i)) for i in tensors),
        dtype=op.dtype(tensors[0]),
        recorded_flops=int(flop) if isinstance(flop, int | float) and flop > 0 else None,
        recorded_bytes=int(gigabytes * 1e9) if isinstance(gigabytes, int | float) and gigabytes > 0 else None,
    )
