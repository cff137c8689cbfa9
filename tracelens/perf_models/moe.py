"""Mixture of experts in one device: fused and unfused expert GEMMs, routing and sorting."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import Like, PerfModel, resolved, total_bytes, traced_name
from tracelens.perf_models.gemm import Product, product_flops, widened
from tracelens.signature import OpSignature

#: What ``touched_experts`` takes for granted, as rows show it.
UNIFORM_ROUTING = "uniform routing"


def touched_experts(experts: Any, top_k: Any, tokens: Any) -> Any:
    """Experts that at least one of ``tokens`` goes to, in expectation, if each token picks ``top_k`` evenly.

    Numbers or arrays.

    ``experts * (1 - (1 - top_k/experts)**tokens)``: a token misses a given expert with probability 1 - top_k/experts.

    >>> touched_experts(8, 2, 1), touched_experts(8, 8, 5)
    (2.0, 8.0)
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoELayer(PerfModel):
    """Dimensions of the expert GEMMs over ``tokens`` of ``hidden``, with ``top_k`` of ``experts`` of width ``ffn``.

    Weights are read once per expert that has tokens. A trace does not record which have: the expectation under uniform
    routing is assumed and shown (``param_assumed``), unless ``touched`` says it. ``gated``: gate and up projections.
    The input's type is ``dtype``; weights and outputs are like it unless said otherwise. ``scaled_by`` weights share
    one scale of a byte (32 in the OCP MX formats); 0 is without scales, or with scales that were not recorded.
    """

    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str | None] = "moe"
    inferred: ClassVar[bool] = True

    tokens: int
    hidden: int
    ffn: int
    experts: int
    top_k: int
    gated: bool = True
    touched: float | None = None
    dtype: DType | None = DType.BF16
    dtype_weight: DType | Like | None = Like.FIRST
    dtype_out: DType | Like | None = Like.FIRST
    scaled_by: int = 0

    @property
    def read_experts(self) -> float:
        """Experts whose weights are read."""
        return touched_experts(self.experts, self.top_k, self.tokens) if self.touched is None else self.touched

    @property
    def compute_dtype(self) -> DType | None:
        """The wider of the two operands': weights that are narrower are widened on the way."""
        both = (self.dtype, resolved(self.dtype_weight, self.dtype))
        known = [d for d in both if d is not None]
        return max(known, key=lambda d: d.bits) if len(known) == len(both) else None

    @property
    def widened(self) -> float | None:
        """Bytes per element of weights that are narrower than what they are multiplied in."""
        return widened(resolved(self.dtype_weight, self.dtype), self.compute_dtype)

    def products(self) -> tuple[Product, ...]:
        """One projection of every chosen (token, expert) over the experts that have tokens; none for a fused layer."""
        return ()

    def _product(self) -> int:
        """Flops of one projection of every token by its experts."""
        flops: int = product_flops(self.tokens * self.top_k, self.ffn, self.hidden)
        return flops

    def _weights(self, matrices: int) -> tuple[tuple[float, DType | None], ...]:
        elements = self.read_experts * matrices * self.hidden * self.ffn
        scales = elements / self.scaled_by if self.scaled_by else 0
        return (elements, resolved(self.dtype_weight, self.dtype)), (scales, DType.FP8_E8M0FNU)

    def parameters(self) -> dict[str, Any]:
        return {
            "num_tokens": self.tokens, "hidden_dim": self.hidden, "inter_dim": self.ffn, "num_experts": self.experts,
            "topk": self.top_k, "gated": self.gated, "touched_experts": round(self.read_experts, 3),
            "input_dtype": traced_name(self.dtype),
            "weight_dtype": traced_name(resolved(self.dtype_weight, self.dtype)),
            "assumed": UNIFORM_ROUTING if self.touched is None else "",
        }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEFused(MoELayer):
    """Up projection, activation, down projection and the weighted sum in one op.

    flops = 2*t*h*f*k (twice if gated) + 2*t*h*f*k + t*h*(2k - 1); bytes = tokens read, weights of the touched experts
    read, result written. Intermediate results stay on the chip.
    """

    category: ClassVar[str] = "MoE_fused"
    family: ClassVar[str | None] = "MoE_fused_fwd"

    def flops(self) -> int:
        return (2 + self.gated) * self._product() + self.tokens * self.hidden * (2 * self.top_k - 1)

    def hbm_bytes(self) -> int | float | None:
        n = self.tokens * self.hidden
        return total_bytes((n, self.dtype), *self._weights(2 + self.gated), (n, resolved(self.dtype_out, self.dtype)))


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEUp(MoELayer):
    """The up (and gate) projection and its activation.

    flops = 2*t*h*f*k, twice if gated; bytes = tokens and the touched experts' weights read, ``f`` values per token and
    chosen expert written.
    """

    category: ClassVar[str] = "MoE_unfused"
    family: ClassVar[str | None] = "MoE_unfused_fwd"

    def flops(self) -> int:
        return (1 + self.gated) * self._product()

    def products(self) -> tuple[Product, ...]:
        rows, wide = self.tokens * self.top_k, self.ffn * (1 + self.gated)
        return (Product(rows, wide, self.hidden, groups=self.read_experts, b_width=self.widened),)

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (self.tokens * self.hidden, self.dtype),
            *self._weights(1 + self.gated),
            (self.tokens * self.top_k * self.ffn, resolved(self.dtype_out, self.dtype)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEDown(MoELayer):
    """The down projection: flops = 2*t*h*f*k.

    bytes = ``f`` values per token and chosen expert and the touched experts' weights read; ``hidden`` values per token
    written, the least where the op also sums over the chosen experts.
    """

    category: ClassVar[str] = "MoE_unfused"
    family: ClassVar[str | None] = "MoE_unfused_fwd"

    gated: bool = False

    def flops(self) -> int:
        return self._product()

    def products(self) -> tuple[Product, ...]:
        rows = self.tokens * self.top_k
        return (Product(rows, self.hidden, self.ffn, groups=self.read_experts, b_width=self.widened),)

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(
            (self.tokens * self.top_k * self.ffn, self.dtype),
            *self._weights(1),
            (self.tokens * self.hidden, resolved(self.dtype_out, self.dtype)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEAux(PerfModel):
    """Routing, sorting and alignment of tokens by expert: bytes of all recorded tensors, each once.

    Comparisons and index arithmetic are no floating-point operations, and the few additions of a router's softmax are
    not worth a formula: flops = 0.
    """

    category: ClassVar[str] = "MoE_aux"
    family: ClassVar[str | None] = "MoE_aux_fwd"

    operands: tuple[tuple[int, DType | None], ...]

    def flops(self) -> int:
        return 0

    def hbm_bytes(self) -> int | float | None:
        return total_bytes(*self.operands)

    @property
    def compute_dtype(self) -> None:
        """None: nothing is computed."""
        return

    def parameters(self) -> dict[str, Any]:
        return {
            "num_elems": sum(n for n, _ in self.operands),
            "dtypes": tuple(traced_name(dtype) for _, dtype in self.operands),
        }


def fused_experts(
    op: OpSignature, x: int, w1: int, w2: int, *, top_k: int | None, packed_as: DType, out: int | None = None
) -> MoEFused:
    """Both projections: ``x`` [t,h], ``w1`` [e,f or 2f,h], ``w2`` [e,h,f]; weights may hold several values per element.

    ``packed_as`` is the type of packed values where the recorded one is only their container's.
    """
    tokens = op.shape(x)[0]
    experts, rows, columns = op.shape(w1, rank=3)
    _, hidden, packed_ffn = op.shape(w2, rank=3)
    per_element = max(hidden // columns, 1)
    ffn = packed_ffn * per_element
    return MoEFused(
        tokens=tokens,
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        top_k=_routed(op, top_k, experts),
        gated=rows == 2 * ffn,
        dtype=op.dtype(x),
        dtype_weight=_weight_type(op, w1, per_element, packed_as),
        dtype_out=Like.FIRST if out is None else op.dtype(out),
    )


def expert_up(op: OpSignature, x: int, w1: int, out: int, *, packed_as: DType, w2: int | None = None) -> MoEUp:
    """``x`` [t,h] by ``w1`` [e,f or 2f,h] into ``out`` [t,k,f]; packed inputs show their true h in ``w2`` [e,h,f]."""
    tokens, columns = op.shape(x, rank=2)
    experts, rows, stored = op.shape(w1, rank=3)
    _, top_k, ffn = op.shape(out, rank=3)
    hidden = columns if w2 is None else op.shape(w2, rank=3)[1]
    return MoEUp(
        tokens=tokens,
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        top_k=_routed(op, top_k, experts),
        gated=rows == 2 * ffn,
        dtype=_weight_type(op, x, hidden // columns, packed_as),
        dtype_weight=_weight_type(op, w1, hidden // stored, packed_as),
        dtype_out=op.dtype(out),
    )


def expert_down(op: OpSignature, x: int, w2: int, out: int, *, packed_as: DType, w1: int | None = None) -> MoEDown:
    """``x`` [t,k,f] by ``w2`` [e,h,f] into ``out`` [t,h]; packed weights show by how much in ``w1`` [e,..,h]."""
    tokens, top_k, columns = op.shape(x, rank=3)
    experts, hidden, stored = op.shape(w2, rank=3)
    per_element = max(columns // stored, 1) if w1 is None else max(hidden // op.shape(w1, rank=3)[-1], 1)
    ffn = stored * per_element
    return MoEDown(
        tokens=tokens,
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        top_k=_routed(op, top_k, experts),
        dtype=_weight_type(op, x, max(ffn // columns, 1), packed_as),
        dtype_weight=_weight_type(op, w2, per_element, packed_as),
        dtype_out=op.dtype(out),
    )


def expert_product(op: OpSignature, x: int, w: int, ids: int, out: int) -> MoEUp | MoEDown:
    """One of the two calls of an unfused layer: ``x`` by ``w`` [e,n,k], for the choices ``ids`` [t,top_k].

    The up projection reads one row per token and leaves the activation to another op; the down projection reads one
    per token and choice. With one choice per token both look alike, and cost the same.
    """
    rows, columns = op.shape(x, rank=2)
    experts, n, stored = op.shape(w, rank=3)
    tokens, top_k = op.shape(ids, rank=2)
    kind = MoEUp if rows == tokens else MoEDown
    hidden, ffn = (columns, n) if kind is MoEUp else (n, columns)
    return kind(
        tokens=tokens,
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        top_k=_routed(op, top_k, experts),
        gated=False,
        dtype=op.dtype(x),
        dtype_weight=_weight_type(op, w, max(columns // stored, 1), DType.INT4),
        dtype_out=op.dtype(out),
    )


def all_operands(op: OpSignature) -> MoEAux:
    """Every recorded tensor of an op, read or written once."""
    if op.shapes is None:
        raise SignatureError(f"{op.name}: the trace has no shapes (record_shapes=True was not set)")
    slots = [i for i, shape in enumerate(op.shapes) if shape and not isinstance(shape[0], tuple)]
    return MoEAux(operands=tuple((prod(op.shape(i)), op.dtype(i)) for i in slots))


def _routed(op: OpSignature, top_k: object, experts: int) -> int:
    if not isinstance(top_k, int) or isinstance(top_k, bool) or not 0 < top_k <= experts:
        raise SignatureError(f"{op.name}: top-k is {top_k!r} of {experts} experts")
    return top_k


def _weight_type(op: OpSignature, index: int, per_element: int, packed_as: DType) -> DType | None:
    """The type of the values in tensor ``index``, which holds ``per_element`` of them per recorded element."""
    dtype = op.dtype(index)
    if per_element <= 1 or dtype is None or dtype.bits == 4:
        return dtype
    return packed_as if dtype.bits == per_element * packed_as.bits else None
