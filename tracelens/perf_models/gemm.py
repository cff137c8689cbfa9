"""Matrix multiplication: plain, with integer weights, and grouped (one product per expert, the rows shared out)."""

from __future__ import annotations

from itertools import zip_longest
from math import nan, prod
from typing import Any, ClassVar, NamedTuple

from tracelens.errors import SignatureError
from tracelens.perf_models.base import (
    Like,
    ModelRecord,
    Moved,
    Shown,
    Slot,
    aten,
    bind,
    distinct_elements,
    number,
    recorded_as,
    recorded_call,
    resolved,
    scalar_type,
    traced_as,
    with_fields_of,
)
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape


class Product(NamedTuple):
    """``b`` products ``[m,k] @ [k,n]``; ``groups`` above 1 share the ``m`` rows evenly out among that many B.

    ``b_width``: bytes per element of a B that is narrower than what it is multiplied in, and widened on the way.
    """

    m: float
    n: float
    k: float
    b: float = 1
    groups: float = 1
    b_width: float | None = None


def product_flops(m: Any, n: Any, k: Any, b: Any = 1, multiply_add: int = 2) -> Any:
    """Operations of ``b`` products ``[m,k] @ [k,n]``. Numbers or arrays."""
    return multiply_add * b * m * n * k


def product_operands(
    m: Any, n: Any, k: Any, groups: Any = 1, widths: tuple[float, float, float] = (1, 1, 1)
) -> tuple[Any, Any, Any]:
    """Elements of A, B and C where ``m`` rows are shared out among ``groups`` B; with ``widths``, bytes.

    Numbers or arrays.
    """
    of_a, of_b, of_c = widths
    return of_a * m * k, of_b * groups * n * k, of_c * m * n


def widened(weights: DType | None, computed: DType | None) -> float | None:
    """Bytes per element of weights that are narrower than what they are multiplied in; None where they are not."""
    if weights is None or computed is None or weights.bits >= computed.bits:
        return None
    return weights.width_bytes


class GEMM(ModelRecord, category="GEMM", engine="matrix", priced_as="gemm"):
    """``C[b,m,n] = A[b,m,k] @ B[b,k,n]``, optionally plus a bias.

    flops = 2*b*m*n*k (+ b*m*n for the bias), of complex numbers 8*b*m*n*k (+ 2*b*m*n); bytes = one read of A, B, bias
    and scales, one write of C. Convention: a fused multiply-add counts as two, as in torch.utils.flop_counter.

    ``dtype`` is A's, and the one that is computed in; B, C and the bias are like it unless said otherwise.
    ``bias_elements`` is the size of the bias, ``n`` when None. ``scale_elements`` of ``dtype_scale`` are the
    quantization scales of both operands. ``stride_a`` and ``stride_b`` are the operands' strides in elements, as
    ``[.., m, k]`` and ``[.., k, n]``: a dim of stride 0 is read once.
    """

    shown: ClassVar[Shown | None] = {
        "M": "m", "N": "n", "K": "k", "B": "b", "bias": "bias", "stride_A": "stride_a", "stride_B": "stride_b",
        "dtype_A_B": ("dtype", "dtype_b"), "transpose": "transpose",
    }  # fmt: skip

    m: int
    n: int
    k: int
    b: int = 1
    bias: bool = False
    dtype: DType | None = DType.BF16
    dtype_b: DType | Like | None = Like.FIRST
    dtype_out: DType | Like | None = Like.FIRST
    dtype_bias: DType | Like | None = Like.FIRST
    bias_elements: int | None = None
    scale_elements: int = 0
    dtype_scale: DType | None = DType.FP32
    stride_a: Shape | None = None
    stride_b: Shape | None = None

    def flops(self) -> int:
        is_complex = self.dtype is not None and self.dtype.is_complex
        multiply_add, add = (8, 2) if is_complex else (2, 1)
        flops: int = product_flops(self.m, self.n, self.k, self.b, multiply_add)
        return flops + add * self.bias * self.b * self.m * self.n

    def moved(self) -> Moved:
        b, m, n, k = self.b, self.m, self.n, self.k
        bias = (n if self.bias_elements is None else self.bias_elements) if self.bias else 0
        return (
            (distinct_elements((b, m, k), self.stride_a), self.dtype),
            (distinct_elements((b, k, n), self.stride_b), self.dtype_b),
            (b * m * n, self.dtype_out),
            (bias, self.dtype_bias),
            (self.scale_elements, self.dtype_scale),
        )

    def products(self) -> tuple[Product, ...]:
        b_width = widened(resolved(self.dtype_b, self.dtype), self.compute_dtype)
        return (Product(self.m, self.n, self.k, self.b, 1, b_width),)

    def backward(self) -> tuple[GEMM, GEMM]:
        """The gradients of A, ``[m,n] @ [n,k]``, and of B, ``[k,m] @ [m,n]``; the bias' reduction is no GEMM."""
        dtype_b, dtype_c = resolved(self.dtype_b, self.dtype), resolved(self.dtype_out, self.dtype)
        grad_a = GEMM(b=self.b, m=self.m, n=self.k, k=self.n, dtype=dtype_c, dtype_b=dtype_b, dtype_out=self.dtype)
        grad_b = GEMM(b=self.b, m=self.k, n=self.n, k=self.m, dtype=self.dtype, dtype_b=dtype_c, dtype_out=dtype_b)
        return grad_a, grad_b

    @property
    def transpose(self) -> tuple[bool, bool] | None:
        """(B, A) transposed, as a column-major BLAS sees the two operands; None when strides were not recorded."""
        flags = tuple(_is_transposed(s) for s in (self.stride_b, self.stride_a))
        return None if None in flags else (bool(flags[0]), bool(flags[1]))


class GEMMBackward(ModelRecord, category="GEMM", engine="matrix"):
    """Both gradients of a GEMM in one op: flops and bytes of two GEMMs."""

    grad_a: GEMM
    grad_b: GEMM

    def flops(self) -> int:
        return self.grad_a.flops() + self.grad_b.flops()

    def hbm_bytes(self) -> int | float | None:
        parts = (self.grad_a.hbm_bytes(), self.grad_b.hbm_bytes())
        return None if parts[0] is None or parts[1] is None else parts[0] + parts[1]

    @property
    def compute_dtype(self) -> DType | None:
        return self.grad_a.compute_dtype

    def parameters(self) -> dict[str, Any]:
        """Those of the first; the second has the same letters in another order."""
        return {**self.grad_a.parameters(), "backward": True}


class DynamicQuantGEMM(GEMM):
    """A GEMM that narrows A to B's type on the way in: A is read in its own type and computed in B's."""

    @property
    def compute_dtype(self) -> DType | None:
        return resolved(self.dtype_b, self.dtype)


def _is_transposed(stride: Shape | None) -> bool | None:
    """Whether the second-to-last dim is the dense one: False for a row-major matrix."""
    if stride is None or len(stride) < 2:
        return None
    return stride[-2] == 1 and stride[-1] != 1


def _values(dtype: DType | None) -> tuple[int, DType | None]:
    """How many values along k one recorded element holds, and the type of each."""
    return (1, None) if dtype is None else dtype.values


def check_inner(op: OpSignature, k: int, k_b: int) -> None:
    """SignatureError where the dims that a product sums over differ."""
    if k != k_b:
        raise SignatureError(f"{op.name}: inner dims differ, {k} and {k_b}")


def matrix_dims(op: OpSignature, a: int = 0, b: int = 1) -> tuple[int, int, int]:
    """(m, n, k) of tensors ``a`` [m,k] and ``b`` [k,n]. SignatureError where they do not match."""
    (m, k), (k_b, n) = op.shape(a, rank=2), op.shape(b, rank=2)
    check_inner(op, k, k_b)
    return m, n, k


def matrix_product(op: OpSignature, a: int = 0, b: int = 1, **fields: Any) -> GEMM:
    """GEMM of tensors ``a`` [m,k] and ``b`` [k,n]; ``fields`` are GEMM's others. SignatureError as for the dims."""
    m, n, k = matrix_dims(op, a, b)
    return GEMM(m=m, n=n, k=k, dtype=op.dtype(a), dtype_b=op.dtype(b), **fields)


def _product(op: OpSignature, *, a: int, b: int, rank: int, bias: int | None = None, beta: int | None = None) -> GEMM:
    """GEMM of tensors ``a`` [(b,)m,k] and ``b`` [(b,)k,n], and of a bias in slot ``bias`` times that in ``beta``.

    A bias times 0 is not read.
    """
    *batch, m, k = op.shape(a, rank=rank)
    k_b, n = op.shape(b, rank=rank)[-2:]
    check_inner(op, k, k_b)
    added = op.shape_or_scalar(bias) if bias is not None and not _is_zero(op, beta) else None
    packed, dtype = _values(op.dtype(a))
    return GEMM(
        b=batch[0] if batch else 1,
        m=m,
        n=n,
        k=packed * k,
        bias=added is not None,
        bias_elements=None if bias is None or added in (None, (n,)) else distinct_elements(added, op.stride(bias)),
        dtype=dtype,
        dtype_b=_values(op.dtype(b))[1],
        dtype_bias=op.dtype(bias) if bias is not None and added is not None else Like.FIRST,
        stride_a=op.stride(a),
        stride_b=op.stride(b),
    )


def times_transposed(
    op: OpSignature,
    a: int = 0,
    b: int = 1,
    *,
    rank: int = 2,
    bias: int | None = None,
    scales: tuple[int, ...] = (),
    packed: tuple[int, int] | None = None,
    dtypes: tuple[DType | None, DType | None] | None = None,
    dtype_out: DType | Like | None = Like.FIRST,
    kind: type[GEMM] = GEMM,
) -> GEMM:
    """GEMM of tensor ``a`` [(b,)m,k] and a weight ``b`` [(b,)n,k], stored as linear layers store it.

    ``packed``: how many values one recorded element along k holds, of ``a`` and ``b``, where their types do not say;
    ``dtypes`` are then those of the values. ``scales`` are slots of quantization scales, ``bias`` that of a bias where
    the op has one.
    """
    *batch, m, k = op.shape(a, rank=rank)
    *batch_b, n, k_b = op.shape(b, rank=rank)
    (packed_a, dtype_a), (packed_b, dtype_b) = _values(op.dtype(a)), _values(op.dtype(b))
    packed = packed or (packed_a, packed_b)
    if k * packed[0] != k_b * packed[1] or batch != batch_b:
        raise SignatureError(f"{op.name}: {list(op.shape(a))} and {list(op.shape(b))} do not match")
    biased = bias is not None and op.has(bias)
    scale_dtype = next((op.dtype(s) for s in scales if op.has(s)), None)
    return kind(
        b=batch[0] if batch else 1,
        m=m,
        n=n,
        k=k * packed[0],
        bias=biased,
        dtype=dtypes[0] if dtypes else dtype_a,
        dtype_b=dtypes[1] if dtypes else dtype_b,
        dtype_out=dtype_out,
        dtype_bias=op.dtype(bias) if bias is not None and biased else Like.FIRST,
        scale_elements=sum(prod(op.shape(s)) for s in scales if op.has(s)),
        dtype_scale=scale_dtype,
        stride_a=op.stride(a),
    )


def _is_zero(op: OpSignature, index: int | None) -> bool:
    value = None if index is None else op.literal(index)
    return isinstance(value, int | float) and not isinstance(value, bool) and value == 0


PRODUCTS = (
    bind(_product, "aten::mm", a=0, b=1, rank=2),
    bind(_product, "aten::bmm", a=0, b=1, rank=3),
    # (bias, A, B, beta, alpha): an activation fused into it is not counted
    bind(_product, *aten("addmm _addmm_activation"), a=1, b=2, rank=2, bias=0, beta=3),
    bind(_product, "aten::addmm_", leaf_only=True, a=1, b=2, rank=2, bias=0, beta=3),
    bind(_product, "aten::baddbmm", a=1, b=2, rank=3, bias=0, beta=3),
    bind(_product, "aten::baddbmm_", leaf_only=True, a=1, b=2, rank=3, bias=0, beta=3),
)


@traced_as("aten::addmv", leaf_only=True)
def _addmv(op: OpSignature) -> GEMM:
    """(bias, A, x, beta, alpha)."""
    m, k = op.shape(1, rank=2)
    biased = not _is_zero(op, 3)
    return GEMM(m=m, n=1, k=k, bias=biased, bias_elements=m, dtype=op.dtype(1), dtype_b=op.dtype(2))


@traced_as("aten::linear", leaf_only=True)
def _linear(op: OpSignature) -> GEMM:
    *rows, k = op.shape(0)
    n = op.shape(1, rank=2)[0]
    stride = op.stride(1)
    return GEMM(
        m=prod(rows),
        n=n,
        k=k,
        bias=op.has(2),
        dtype=op.dtype(0),
        dtype_b=op.dtype(1),
        dtype_bias=op.dtype(2) if op.has(2) else Like.FIRST,
        stride_b=stride[::-1] if stride else None,
    )


@traced_as("aten::dot", "aten::vdot")
@traced_as("aten::matmul", "aten::mv", leaf_only=True)
def _matmul(op: OpSignature) -> GEMM:
    a, b = op.shape(0), op.shape(1)
    a, b = (a if len(a) > 1 else (1, *a)), (b if len(b) > 1 else (*b, 1))
    check_inner(op, a[-1], b[-2])
    *batch_a, m, k = a
    *batch_b, _, n = b
    if not batch_b:  # a folded product: one GEMM over all rows
        return GEMM(m=prod(batch_a) * m, n=n, k=k, dtype=op.dtype(0), dtype_b=op.dtype(1))
    batch = prod(map(max, zip_longest(batch_a[::-1], batch_b[::-1], fillvalue=1)))
    return GEMM(b=batch, m=m, n=n, k=k, dtype=op.dtype(0), dtype_b=op.dtype(1))


#: PyTorch's ``ScalingType``: per 16 values of NVFP4, per 32 of MX formats; all others have FP32 scales.
_FP8_SCALES = {2: DType.FP8_E4M3FN, 3: DType.FP8_E8M0FNU}


def scale_type(op: OpSignature, recipes: int) -> DType | None:
    """The type of a scaled product's scales, by the first of the recipes in this slot; None when not recorded."""
    recorded = op.literal(recipes)
    if not isinstance(recorded, list | tuple) or not recorded:
        return None
    return _FP8_SCALES.get(recorded[0], DType.FP32)


def _scales(op: OpSignature, slots: tuple[int, int] | None, recipes: int | None) -> tuple[int, DType | None]:
    """How many scales two slots hold, and their type: two tensors, or where a slot tells ``recipes`` two lists."""
    if slots is None:
        return 0, DType.FP32
    a, b = slots
    if recipes is None:
        return prod(op.shape_or_scalar(a)) + prod(op.shape_or_scalar(b)), op.dtype(a)
    shapes = [shape for slot in (a, b) if op.has(slot) for shape in op.shape_list(slot)]
    return sum(map(prod, shapes)), scale_type(op, recipes)


def _scaled(
    op: OpSignature, *, bias: int, out: int, scales: tuple[int, int] = (2, 3), recipes: int | None = None
) -> GEMM:
    """Recorded shapes of packed 4-bit operands count pairs, so k is twice the recorded dim."""
    elements, dtype_scale = _scales(op, scales, recipes)
    return with_fields_of(
        _product(op, a=0, b=1, rank=2),
        GEMM,
        bias=op.has(bias),
        dtype_bias=op.dtype(bias) if op.has(bias) else Like.FIRST,
        # without out_dtype the op returns bfloat16 on every build that runs these GEMMs (its kernels offer no 1-byte C)
        dtype_out=scalar_type(op.literal(out)) or DType.BF16,
        scale_elements=elements,
        dtype_scale=dtype_scale,
    )


def _recorded_operands(model: GEMM, *, batched: bool = False) -> tuple[Slot, Slot]:
    """A and B, FP4 in pairs; row-major strides where the model does not say."""
    batch = (model.b,) if batched or model.b > 1 else ()
    k = model.k // 2 if model.dtype is DType.FP4_E2M1 else model.k
    return (
        Slot.tensor((*batch, model.m, k), model.dtype, model.stride_a),
        Slot.tensor((*batch, k, model.n), resolved(model.dtype_b, model.dtype), model.stride_b),
    )


@recorded_as("aten::mm")
def _recorded_mm(model: GEMM) -> OpSignature:
    return recorded_call("aten::mm", *_recorded_operands(model))


@recorded_as("aten::bmm")
def _recorded_bmm(model: GEMM) -> OpSignature:
    return recorded_call("aten::bmm", *_recorded_operands(model, batched=True))


@recorded_as("aten::addmm")
def _recorded_addmm(model: GEMM) -> OpSignature:
    bias = Slot.tensor((model.n,), resolved(model.dtype_bias, model.dtype))
    return recorded_call("aten::addmm", bias, *_recorded_operands(model), number(1), number(1))


def weight_only(op: OpSignature, x: int, *, n: int, weight: DType | None, scales: tuple[int, ...] = ()) -> GEMM:
    """``x`` [..,k] by a weight [n,k] of narrow values; result like x. ``scales``: slots of scale tensors."""
    *rows, k = op.shape(x)
    held = [slot for slot in scales if op.has(slot)]
    return GEMM(
        m=prod(rows),
        n=n,
        k=k,
        dtype=op.dtype(x),
        dtype_b=weight,
        scale_elements=sum(prod(op.shape(slot)) for slot in held),
        dtype_scale=op.dtype(held[0]) if held else DType.FP32,
        stride_a=op.stride(x),
    )


def packed_bits(op: OpSignature, slot: int, values: int) -> DType | None:
    """The type of ``values`` packed values in tensor ``slot``: by how many bits each takes; None for other widths."""
    container = op.dtype(slot)
    if container is None or not values:
        return None
    bits = prod(op.shape(slot)) * container.bits / values
    return {4: DType.INT4, 8: DType.INT8}.get(int(bits)) if bits == int(bits) else None


def size_argument(op: OpSignature, index: int, what: str) -> int:
    value = op.literal(index)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise SignatureError(f"{op.name}: argument {index}, {what}, is {value!r}")
    return value


@traced_as("aten::_int_mm")
def _int_mm(op: OpSignature) -> GEMM:
    """(A [m,k], B [k,n]), both int8, into int32."""
    return matrix_product(op, dtype_out=DType.INT32, stride_a=op.stride(0), stride_b=op.stride(1))


@traced_as("aten::_weight_int4pack_mm")
def _int4(op: OpSignature) -> GEMM:
    """(x [m,k], packed weight, group size, scales and zeros [k/group, n, 2])."""
    _, n, _ = op.shape(3, rank=3)
    return weight_only(op, 0, n=n, weight=DType.INT4, scales=(3,))


@traced_as("aten::_weight_int8pack_mm")
def _int8(op: OpSignature) -> GEMM:
    """(x [m,k], weight [n,k] int8, scales [n])."""
    return weight_only(op, 0, n=op.shape(1, rank=2)[0], weight=op.dtype(1), scales=(2,))


PADDED_ROWS = "rows beyond the offsets are padding, and how many there are was not recorded"


class GroupedGEMM(ModelRecord, category="GroupedGEMM_fwd", engine="matrix", priced_as="grouped-gemm"):
    """``C[rows of g] = A[rows of g] @ B[g]`` for every group ``g``; ``m`` rows in all, ``B[groups,k,n]``.

    flops = 2*m*n*k, however the rows are shared out; bytes = one read of A and of all groups' B, one write of C:
    ``groups`` are those that have rows, as far as the caller knows.
    ``dtype`` is A's; B and C are like it unless said otherwise. ``scale_elements`` of ``dtype_scale`` are the scales of
    quantized operands, read once; those of the gradients are not counted.
    ``padded``: groups end where offsets in device memory say, which a recording does not hold. The ``m`` rows of the
    buffer are then at most those that were multiplied.
    """

    shown: ClassVar[Shown | None] = {
        "M": "m", "N": "n", "K": "k", "G": "groups", "dtype_A_B": ("dtype", "dtype_b"), "dtype_out": "dtype_out"
    }  # fmt: skip

    m: int
    n: int
    k: int
    groups: int
    dtype: DType | None = DType.BF16
    dtype_b: DType | Like | None = Like.FIRST
    dtype_out: DType | Like | None = Like.FIRST
    scale_elements: int = 0
    dtype_scale: DType | None = DType.FP32
    padded: bool = False

    @property
    def at_most(self) -> str:
        return PADDED_ROWS if self.padded else ""

    def flops(self) -> int:
        return product_flops(self.m, self.n, self.k)

    def moved(self) -> Moved:
        a, b, c = product_operands(self.m, self.n, self.k, self.groups)
        scales = (self.scale_elements, self.dtype_scale)
        return ((a, self.dtype), (b, self.dtype_b), (c, self.dtype_out), scales)

    def products(self) -> tuple[Product, ...]:
        return (Product(self.m, self.n, self.k, groups=self.groups, b_width=self._widened),)

    def backward(self) -> GroupedGEMMBackward:
        return with_fields_of(self, GroupedGEMMBackward)

    @property
    def _widened(self) -> float | None:
        return widened(resolved(self.dtype_b, self.dtype), self.compute_dtype)

    def _per_group(self, b_width: float | None) -> Product:
        """The gradient of the weights: one product per group, over that group's rows."""
        rows = self.m / self.groups if self.groups else nan
        return Product(self.k, self.n, rows, self.groups, b_width=b_width)


class GroupedGEMMBackward(GroupedGEMM, category="GroupedGEMM_bwd", gradient=True):
    """Both gradients of a ``GroupedGEMM``: ``dA = dC @ B^T`` and ``dB[g] = A[rows of g]^T @ dC[rows of g]``.

    flops = 4*m*n*k; bytes = dC read twice, A and all B read once, dA and all dB written.
    """

    def flops(self) -> int:
        return 2 * product_flops(self.m, self.n, self.k)

    def products(self) -> tuple[Product, ...]:
        return Product(self.m, self.k, self.n, groups=self.groups, b_width=self._widened), self._per_group(None)

    def moved(self) -> Moved:
        a, b, c = product_operands(self.m, self.n, self.k, self.groups)
        return ((2 * a, self.dtype), (2 * b, self.dtype_b), (2 * c, self.dtype_out))


class GroupedGEMMVariableK(GroupedGEMM, category="GroupedGEMM_bwd", gradient=True):
    """``C[g] = A[rows of g]^T @ B[rows of g]``, the gradient of the weights: ``A[m,k]``, ``B[m,n]``, ``C[groups,k,n]``.

    The summed dimension is the rows of each group. flops = 2*m*n*k; bytes = one read of A and B, one write of the
    result of every group.
    """

    def products(self) -> tuple[Product, ...]:
        return (self._per_group(self._widened),)

    def moved(self) -> Moved:
        return (
            (self.m * self.k, self.dtype),
            (self.m * self.n, self.dtype_b),
            (self.groups * self.k * self.n, self.dtype_out),
            (self.scale_elements, self.dtype_scale),
        )


def _grouped(
    op: OpSignature,
    *,
    offsets: int,
    out: int,
    like: DType | None = None,
    scales: tuple[int, int] | None = None,
    recipes: int | None = None,
) -> GroupedGEMM | None:
    """2-D by 3-D shares out A's rows, 3-D by 2-D B's columns, 2-D by 2-D the summed dimension, 3-D by 3-D nothing.

    One of PyTorch's FP4 elements along k holds two values. Scales of an unknown type take a byte, as those of MX do.
    Where no type of the result was given it is ``like``, or A's.
    """
    a, b = op.shape(0), op.shape(1)
    (packed, dtype), (_, dtype_b) = (_values(op.dtype(slot)) for slot in (0, 1))
    written, (elements, dtype_scale) = scalar_type(op.literal(out)) or like, _scales(op, scales, recipes)
    common: dict[str, Any] = {
        "dtype": dtype, "dtype_b": dtype_b, "dtype_out": written or Like.FIRST, "padded": op.has(offsets),
        "scale_elements": elements, "dtype_scale": dtype_scale or DType.FP8_E8M0FNU,
    }  # fmt: skip
    if len(a) == 2 and len(b) == 3:
        return GroupedGEMM(m=a[0], k=packed * a[1], groups=b[0], n=b[2], **common)
    if len(a) == 3 and len(b) == 2:
        swapped = common | {"dtype": dtype_b, "dtype_b": dtype, "dtype_out": written or dtype}
        return GroupedGEMM(m=b[1], k=packed * b[0], groups=a[0], n=a[1], **swapped)
    if len(a) == 3 and len(b) == 3:
        return GroupedGEMM(m=a[0] * a[1], k=packed * a[2], groups=b[0], n=b[2], **common)
    if len(a) == 2 and len(b) == 2 and op.has(offsets):
        groups = op.shape(offsets, rank=1)[0]
        return GroupedGEMMVariableK(m=packed * a[1], k=a[0], n=b[1], groups=groups, **common)
    return None


GROUPED_AND_SCALED = (
    bind(_scaled, "aten::_scaled_mm", bias=4, out=6),
    # (A, B, scales of A, recipes, swizzles, scales of B, recipes, swizzles, bias, out_dtype, ...): lists of scales
    bind(_scaled, "aten::_scaled_mm_v2", bias=8, out=9, scales=(2, 5), recipes=3),
    # (self, mat2, offs, bias, out_dtype), and with the scales behind mat2
    bind(_grouped, "aten::_grouped_mm", offsets=2, out=4),
    bind(_grouped, "aten::_scaled_grouped_mm", offsets=4, out=7, like=DType.BF16, scales=(2, 3)),
    bind(
        _grouped, "aten::_scaled_grouped_mm_v2", offsets=8, out=10, like=DType.BF16, scales=(2, 5), recipes=3,
    ),
)  # fmt: skip


@recorded_as("aten::_grouped_mm")
def _recorded_grouped_mm(model: GroupedGEMM) -> OpSignature:
    a: tuple[int, ...] = (model.m, model.k)
    b: tuple[int, ...] = (model.groups, model.k, model.n)
    if isinstance(model, GroupedGEMMVariableK):
        a, b = (model.k, model.m), (model.m, model.n)
    return recorded_call(
        "aten::_grouped_mm",
        Slot.tensor(a, model.dtype),
        Slot.tensor(b, resolved(model.dtype_b, model.dtype)),
        Slot((model.groups,), "int", (1,)),
        Slot(),
        Slot(),
    )
