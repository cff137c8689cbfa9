"""The kernels of a fused MoE layer, for engines that record the layer as one op: quantize, route, multiply, sum up."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import traced_as
from tracelens.perf_models.data_movement import Movement
from tracelens.perf_models.inner_ops import InnerOp
from tracelens.perf_models.memory_bound.quantization import MX_GROUP, GroupQuant, quantized
from tracelens.perf_models.moe import MoEAux, MoEDown, MoEUp, all_operands
from tracelens.signature import OpSignature, Shape

UP, DOWN = "pseudo_op::moe_up", "pseudo_op::moe_down"
_QUANTIZE, _ROUTE, _FINALIZE = "pseudo_op::moe_quantize", "pseudo_op::moe_route", "pseudo_op::moe_finalize"

_ELEMENT = r"(?:Mx)?E4m3|(?:Mx)?E5m2|(?:Mx)?E2m1|(?:Mx)?Int4|Int8|Bfloat16|Fp16|Fp32"
# bmm_<C>_<A><B>_<accumulator>_t<tile>: flashinfer and TensorRT-LLM ship these, compiled, as "trtllm-gen".
_BATCHED = lazy_pattern(rf"^bmm_(?P<c>{_ELEMENT})_(?P<a>{_ELEMENT})(?P<b>{_ELEMENT})?_(?:{_ELEMENT})_t\d+x\d+x\d+")
_TYPES = {
    "E4m3": DType.FP8_E4M3FN, "E5m2": DType.FP8_E5M2, "E2m1": DType.FP4_E2M1, "Int4": DType.INT4, "Int8": DType.INT8,
    "Bfloat16": DType.BF16, "Fp16": DType.FP16, "Fp32": DType.FP32,
}  # fmt: skip
# NVFP4: one FP8 scale for 16 values.
_NVFP4_GROUP = 16
_GATED = lazy_pattern(r"swiGlu|geGlu|SwiGlu|GeGlu|swiglu")
_ACTIVATED = lazy_pattern(_GATED.pattern + r"|relu2|Relu2|_silu|_gelu")
_ROUTING = lazy_pattern(r"\brouting(?:Indices|Main|Init|Custom)\w*Kernel|\brouting\w+::routing\w+Kernel")
_FINALIZING = lazy_pattern(r"\bfinalizeKernel|\bfinalizeMoeRoutingKernel|_finalize_matmul_scatter")
_QUANTIZING = lazy_pattern(r"\bquantize_with_block_size<|\bmxfp8_quantize")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTypes:
    """Types of a trtllm-gen batched product: tokens in, experts' weights, tokens out; and what is fused into it.

    ``weights_per_scale``: 32 of the OCP MX formats and 16 of NVFP4 share a scale of a byte; 0 is without.
    """

    tokens: DType
    weights: DType
    weights_per_scale: int
    out: DType
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
    activated = gated or _ACTIVATED.search(kernel) is not None
    return ProductTypes(
        tokens=_TYPES[tokens.removeprefix("Mx")],
        weights=_TYPES[weights.removeprefix("Mx")],
        weights_per_scale=MX_GROUP if weights.startswith("Mx") else _NVFP4_GROUP if weights == "E2m1" else 0,
        out=_TYPES[match["c"].removeprefix("Mx")],
        gated=gated,
        activated=activated,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
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
        raise SignatureError(f"{len(products)} expert products were launched, not an up and a down projection")
    (up, first), (down, second) = products
    if second.activated and not first.activated:
        raise SignatureError("the activation follows the second product: which one is the up projection is unclear")
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
    slots: tuple[tuple[Shape, DType | None], ...] = (
        ((layer.tokens, layer.hidden), types.tokens),
        ((layer.experts, rows, layer.hidden), types.weights),
        ((layer.experts, layer.hidden, layer.ffn), types.weights),
        ((layer.tokens, layer.top_k), DType.INT32),
        ((layer.tokens * layer.top_k, layer.ffn if name == UP else layer.hidden), types.out),
        *(
            [((layer.experts, layer.hidden // types.weights_per_scale), DType.FP8_E8M0FNU)]
            if types.weights_per_scale
            else []
        ),
    )
    return _signature(name, *slots)


def unquantized_product(name: str, layer: LayerShape, *, known: bool = True) -> OpSignature:
    """A gated layer's product with tokens, weights and results of the layer's type, which may be unknown."""
    dtype = layer.dtype if known else None
    slots: tuple[tuple[Shape, DType | None], ...] = (
        ((layer.tokens, layer.hidden), dtype),
        ((layer.experts, 2 * layer.ffn, layer.hidden), dtype),
        ((layer.experts, layer.hidden, layer.ffn), dtype),
        ((layer.tokens, layer.top_k), DType.INT32),
        ((layer.tokens * layer.top_k, layer.ffn if name == UP else layer.hidden), layer.dtype),
    )
    return _signature(name, *slots)


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


@traced_as(_QUANTIZE)
def _quantize(op: OpSignature) -> GroupQuant:
    """(x, result, scales)."""
    return quantized(op, 0, out=1, scale=2)


@traced_as(_ROUTE)
def _route(op: OpSignature) -> MoEAux:
    """(logits or chosen experts, places)."""
    return all_operands(op)


@traced_as(_FINALIZE, category=MoEAux.category)
def _finalize(op: OpSignature) -> Movement:
    """(rows of every choice [t*k,h], result [t,h]): each row scaled by its expert's weight and added up."""
    rows, result = prod(op.shape(0)), prod(op.shape(1))
    return Movement(read=((rows, op.dtype(0)),), written=((result, op.dtype(1)),), added=2 * rows - result)
