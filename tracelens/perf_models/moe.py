"""Mixture of experts in one device: expert products, routing and sorting, and the kernels of a layer in one op."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod
from typing import Any

from tracelens.errors import SignatureError
from tracelens.perf_models.base import Like, ModelRecord, Moved, bind, resolved, traced_as, traced_name
from tracelens.perf_models.data_movement import Movement
from tracelens.perf_models.elementwise import MX_GROUP, quantized
from tracelens.perf_models.gemm import Product, product_flops, widened
from tracelens.perf_models.surroundings import InnerOp
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature, Shape

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


class MoELayer(ModelRecord, engine="matrix", priced_as="moe", inferred=True):
    """Dimensions of the expert GEMMs over ``tokens`` of ``hidden``, with ``top_k`` of ``experts`` of width ``ffn``.

    Weights are read once per expert that has tokens. A trace does not record which have: the expectation under uniform
    routing is assumed and shown (``param_assumed``), unless ``touched`` says it. ``gated``: gate and up projections.
    The input's type is ``dtype``; weights and outputs are like it unless said otherwise. ``scaled_by`` weights share
    one scale of a byte (32 in the OCP MX formats); 0 is without scales, or with scales that were not recorded.
    """

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
        return product_flops(self.tokens * self.top_k, self.ffn, self.hidden)

    def _weights(self, matrices: int) -> Moved:
        elements = self.read_experts * matrices * self.hidden * self.ffn
        scales = elements / self.scaled_by if self.scaled_by else 0
        return (elements, self.dtype_weight), (scales, DType.FP8_E8M0FNU)

    def parameters(self) -> dict[str, Any]:
        return {
            "num_tokens": self.tokens, "hidden_dim": self.hidden, "inter_dim": self.ffn, "num_experts": self.experts,
            "topk": self.top_k, "gated": self.gated, "touched_experts": round(self.read_experts, 3),
            "input_dtype": traced_name(self.dtype),
            "weight_dtype": traced_name(resolved(self.dtype_weight, self.dtype)),
            "assumed": UNIFORM_ROUTING if self.touched is None else "",
        }  # fmt: skip


class MoEFused(MoELayer, category="MoE_fused", family="MoE_fused_fwd"):
    """Up projection, activation, down projection and the weighted sum in one op.

    flops = 2*t*h*f*k (twice if gated) + 2*t*h*f*k + t*h*(2k - 1); bytes = tokens read, weights of the touched experts
    read, result written. Intermediate results stay on the chip.
    """

    def flops(self) -> int:
        return (2 + self.gated) * self._product() + self.tokens * self.hidden * (2 * self.top_k - 1)

    def moved(self) -> Moved:
        n = self.tokens * self.hidden
        return ((n, self.dtype), *self._weights(2 + self.gated), (n, self.dtype_out))


class MoEUp(MoELayer, category="MoE_unfused", family="MoE_unfused_fwd"):
    """The up (and gate) projection and its activation.

    flops = 2*t*h*f*k, twice if gated; bytes = tokens and the touched experts' weights read, ``f`` values per token and
    chosen expert written.
    """

    def flops(self) -> int:
        return (1 + self.gated) * self._product()

    def products(self) -> tuple[Product, ...]:
        rows, wide = self.tokens * self.top_k, self.ffn * (1 + self.gated)
        return (Product(rows, wide, self.hidden, groups=self.read_experts, b_width=self.widened),)

    def moved(self) -> Moved:
        return (
            (self.tokens * self.hidden, self.dtype),
            *self._weights(1 + self.gated),
            (self.tokens * self.top_k * self.ffn, self.dtype_out),
        )


class MoEDown(MoELayer, category="MoE_unfused", family="MoE_unfused_fwd"):
    """The down projection: flops = 2*t*h*f*k.

    bytes = ``f`` values per token and chosen expert and the touched experts' weights read; ``hidden`` values per token
    written, the least where the op also sums over the chosen experts.
    """

    gated: bool = False

    def flops(self) -> int:
        return self._product()

    def products(self) -> tuple[Product, ...]:
        rows = self.tokens * self.top_k
        return (Product(rows, self.hidden, self.ffn, groups=self.read_experts, b_width=self.widened),)

    def moved(self) -> Moved:
        return (
            (self.tokens * self.top_k * self.ffn, self.dtype),
            *self._weights(1),
            (self.tokens * self.hidden, self.dtype_out),
        )


class MoEAux(ModelRecord, category="MoE_aux", family="MoE_aux_fwd"):
    """Routing, sorting and alignment of tokens by expert: bytes of all recorded tensors, each once.

    Comparisons and index arithmetic are no floating-point operations, and the few additions of a router's softmax are
    not worth a formula: flops = 0.
    """

    operands: tuple[tuple[int, DType | None], ...]

    def flops(self) -> int:
        return 0

    def moved(self) -> Moved:
        return self.operands

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
        **_dims(op, tokens, hidden, ffn, experts, top_k),
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
        **_dims(op, tokens, hidden, ffn, experts, top_k),
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
        **_dims(op, tokens, hidden, ffn, experts, top_k),
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
        **_dims(op, tokens, hidden, ffn, experts, top_k),
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


def _dims(op: OpSignature, tokens: int, hidden: int, ffn: int, experts: int, top_k: object) -> dict[str, Any]:
    """The dimensions of a layer. SignatureError for a top-k that cannot be."""
    if not isinstance(top_k, int) or isinstance(top_k, bool) or not 0 < top_k <= experts:
        raise SignatureError(f"{op.name}: top-k is {top_k!r} of {experts} experts")
    return {"tokens": tokens, "hidden": hidden, "ffn": ffn, "experts": experts, "top_k": top_k}


def _weight_type(op: OpSignature, index: int, per_element: int, packed_as: DType) -> DType | None:
    """The type of the values in tensor ``index``, which holds ``per_element`` of them per recorded element."""
    dtype = op.dtype(index)
    if per_element <= 1 or dtype is None or dtype.bits == 4:
        return dtype
    return packed_as if dtype.bits == per_element * packed_as.bits else None


UP, DOWN = "pseudo_op::moe_up", "pseudo_op::moe_down"
_QUANTIZE, _ROUTE, _FINALIZE = "pseudo_op::moe_quantize", "pseudo_op::moe_route", "pseudo_op::moe_finalize"

_ELEMENT = r"(?:Mx)?E4m3|(?:Mx)?E5m2|(?:Mx)?E2m1|(?:Mx)?Int4|Int8|Bfloat16|Fp16|Fp32"
# bmm_<C>_<A><B>_<accumulator>_t<tile>: flashinfer and TensorRT-LLM ship these, compiled, as "trtllm-gen".
_BATCHED = re.compile(rf"^bmm_(?P<c>{_ELEMENT})_(?P<a>{_ELEMENT})(?P<b>{_ELEMENT})?_(?:{_ELEMENT})_t\d+x\d+x\d+")
_TYPES = {
    "E4m3": DType.FP8_E4M3FN, "E5m2": DType.FP8_E5M2, "E2m1": DType.FP4_E2M1, "Int4": DType.INT4, "Int8": DType.INT8,
    "Bfloat16": DType.BF16, "Fp16": DType.FP16, "Fp32": DType.FP32,
}  # fmt: skip
# NVFP4: one FP8 scale for 16 values.
_NVFP4_GROUP = 16
_GATED = re.compile(r"swiGlu|geGlu|SwiGlu|GeGlu|swiglu")
_ACTIVATED = re.compile(_GATED.pattern + r"|relu2|Relu2|_silu|_gelu")
_ROUTING = re.compile(r"\brouting(?:Indices|Main|Init|Custom)\w*Kernel|\brouting\w+::routing\w+Kernel")
_FINALIZING = re.compile(r"\bfinalizeKernel|\bfinalizeMoeRoutingKernel|_finalize_matmul_scatter")
_QUANTIZING = re.compile(r"\bquantize_with_block_size<|\bmxfp8_quantize")


class ProductTypes(Record, frozen=True, kw_only=True):
    """Types of a trtllm-gen batched product: tokens in, experts' weights, tokens out; and what is fused into it.

    ``weights_per_scale``: 32 of the OCP MX formats and 16 of NVFP4 share a scale of a byte; 0 is without.
    """

    tokens: DType | None
    weights: DType | None
    weights_per_scale: int
    out: DType | None
    gated: bool
    activated: bool


def product_types(kernel: str) -> ProductTypes | None:
    """What the name of a trtllm-gen kernel says; None for any other kernel.

    ``transOut``: the weights are the first operand, and the result is written transposed.

    >>> product_types("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_transOut_dynBatch_sm100f").weights.label
    'fp4_e2m1'
    """
    match = _BATCHED.match(kernel)
    if match is None:
        return None
    a, b = match["a"], match["b"] or match["a"]
    tokens, weights = (b, a) if "_transOut" in kernel else (a, b)
    gated = _GATED.search(kernel) is not None
    return ProductTypes(
        tokens=_TYPES[tokens.removeprefix("Mx")],
        weights=_TYPES[weights.removeprefix("Mx")],
        weights_per_scale=MX_GROUP if weights.startswith("Mx") else _NVFP4_GROUP if weights == "E2m1" else 0,
        out=_TYPES[match["c"].removeprefix("Mx")],
        gated=gated,
        activated=gated or _ACTIVATED.search(kernel) is not None,
    )


class LayerShape(Record, frozen=True, kw_only=True):
    """A layer's dimensions; ``dtype`` is that of its input and output."""

    tokens: int
    hidden: int
    ffn: int
    experts: int
    top_k: int
    dtype: DType | None


def layer_ops(kernels: Sequence[str], layer: LayerShape) -> list[InnerOp]:
    """The operations of a layer's kernels; kernels of no known kind are left out.

    SignatureError unless exactly two are products, the up projection first.
    """
    products = [(i, types) for i, kernel in enumerate(kernels) if (types := product_types(kernel)) is not None]
    if len(products) != 2:
        raise SignatureError(f"{len(products)} expert GEMMs were launched, not one up and one down projection")
    (up, first), (down, second) = products
    if second.activated and not first.activated:
        raise SignatureError("the activation follows the second GEMM, so which one is the up projection is unclear")
    found = [
        InnerOp(kernel=up, signature=product(UP, layer, first)),
        InnerOp(kernel=down, signature=product(DOWN, layer, second, gated=first.gated)),
    ]
    for i, kernel in enumerate(kernels):
        signature = helper(kernel, layer)
        if signature is not None:
            found.append(InnerOp(kernel=i, signature=signature))
    return sorted(found, key=lambda op: op.kernel)


def product(name: str, layer: LayerShape, types: ProductTypes, *, gated: bool | None = None) -> OpSignature:
    """(x [t,h], w1 [e,f or 2f,h], w2 [e,h,f], chosen [t,k], result, scales [e,h/g]): dims count values, not bytes."""
    rows = layer.ffn * (1 + (types.gated if gated is None else gated))
    slots: list[tuple[Shape, DType | None]] = [
        ((layer.tokens, layer.hidden), types.tokens),
        ((layer.experts, rows, layer.hidden), types.weights),
        ((layer.experts, layer.hidden, layer.ffn), types.weights),
        ((layer.tokens, layer.top_k), DType.INT32),
        ((layer.tokens * layer.top_k, layer.ffn if name == UP else layer.hidden), types.out),
    ]
    if types.weights_per_scale:
        slots.append(((layer.experts, layer.hidden // types.weights_per_scale), DType.FP8_E8M0FNU))
    return _signature(name, *slots)


def unquantized_product(name: str, layer: LayerShape, *, known: bool = True) -> OpSignature:
    """A gated layer's product with tokens, weights and results of the layer's type, which may be unknown."""
    dtype = layer.dtype if known else None
    return product(
        name,
        layer,
        ProductTypes(tokens=dtype, weights=dtype, weights_per_scale=0, out=layer.dtype, gated=True, activated=True),
    )


def helper(kernel: str, layer: LayerShape) -> OpSignature | None:
    """What a kernel round the products reads and writes; None for no known kind."""
    tokens, chosen = (layer.tokens, layer.hidden), (layer.tokens, layer.top_k)
    if _QUANTIZING.search(kernel):
        scales = (layer.tokens, -(-layer.hidden // MX_GROUP))
        slots = ((tokens, layer.dtype), (tokens, DType.FP8_E4M3FN), (scales, DType.FP8_E8M0FNU))
        return _signature(_QUANTIZE, *slots)
    if _FINALIZING.search(kernel):
        rows = (layer.tokens * layer.top_k, layer.hidden)
        return _signature(_FINALIZE, (rows, layer.dtype), (tokens, layer.dtype))
    if _ROUTING.search(kernel):
        # Scores of the logits, or what an earlier kernel chose of them; and for every choice its place, an int32.
        scored = "Scores" in kernel or not re.search(r"HistogramKernel|OffsetsKernel|InitExpertCounts", kernel)
        read = ((layer.tokens, layer.experts), layer.dtype) if scored else (chosen, DType.INT32)
        return _signature(_ROUTE, read, (chosen, DType.INT32))
    return None


def _signature(name: str, *slots: tuple[Shape, DType | None]) -> OpSignature:
    return OpSignature(
        name=name, shapes=tuple(shape for shape, _ in slots), dtypes=tuple(of.label if of else "" for _, of in slots)
    )


@traced_as(UP, DOWN)
def _product(op: OpSignature) -> MoEUp | MoEDown:
    """As ``product`` records it."""
    (tokens, hidden), (experts, rows, _), ffn = op.shape(0, rank=2), op.shape(1, rank=3), op.shape(2, rank=3)[2]
    is_up = op.name == UP
    return (MoEUp if is_up else MoEDown)(
        tokens=tokens,
        hidden=hidden,
        ffn=ffn,
        experts=experts,
        top_k=op.shape(3, rank=2)[1],
        gated=is_up and rows == 2 * ffn,
        dtype=op.dtype(0),
        dtype_weight=op.dtype(1),
        dtype_out=op.dtype(4),
        scaled_by=hidden // op.shape(5, rank=2)[1] if op.has(5) else 0,
    )


HELPERS = (
    # (x, result, scales)
    bind(quantized, _QUANTIZE, x=0, out=1, scale=2),
    # (logits or chosen experts, places)
    bind(all_operands, _ROUTE),
)


@traced_as(_FINALIZE, category=MoEAux.category)
def _finalize(op: OpSignature) -> Movement:
    """(rows of every choice [t*k,h], result [t,h]): each row scaled by its expert's weight and added up."""
    rows, result = prod(op.shape(0)), prod(op.shape(1))
    return Movement(read=((rows, op.dtype(0)),), written=((result, op.dtype(1)),), added=2 * rows - result)
