"""Ops that XLA compiled: products, convolutions, fusions, collectives, attention of cuDNN and other custom calls.

What the program says of an op stands in its signature (``trace.reading.formats.hlo``). TPUs record FLOPs and bytes of
each op: those win.
"""

from __future__ import annotations

from math import prod
from typing import Any

from tracelens.errors import SignatureError
from tracelens.perf_models.base import ModelRecord, Moved, PerfModel, total_bytes
from tracelens.perf_models.collective import CustomCollective
from tracelens.perf_models.conv import Conv, ConvBackward
from tracelens.perf_models.data_movement import Movement
from tracelens.perf_models.elementwise import Elementwise
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.reduce import Reduce
from tracelens.perf_models.sdpa import SDPA, SDPABackward
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature

#: The attributes that say an op is XLA's, and what is known of it.
XLA, KNOWN = "xla", "kernel_kwargs"
#: What is known of an op but for what it is called in its program.
WORK = frozenset(
    {
        "opcode", "category", "target", "out", "counts", "products", "read", "written", "collective", "scores", "mask",
        "flops", "model_flops", "bytes_accessed", "hbm_bytes",
    }
)  # fmt: skip
#: Opcodes of which each result is of several elements.
_REDUCES = {"reduce", "reduce-window", "select-and-scatter"}
#: In categories that TPUs record (``hlo_category``) of products, where no program says more.
_MATRIX = ("convolution", "dot", "matmul")


class HloWork(Record, frozen=True, kw_only=True):
    """What one op reads and writes, computes beside its products, and is called.

    ``counted``: elements by opcode, one operation each. ``flops``, ``model_flops``, ``bytes_accessed``, ``hbm_bytes``:
    as the profiler or the kernel's author declared them; ``flops`` of TPUs are normalized to the rate of BF16,
    ``model_flops`` are not, and what counts where both are known.
    """

    read: Moved = ()
    written: Moved = ()
    counted: tuple[tuple[str, int], ...] = ()
    flops: int | None = None
    model_flops: int | None = None
    bytes_accessed: int | None = None
    hbm_bytes: int | None = None
    shown: tuple[tuple[str, Any], ...] = ()

    @property
    def recorded_flops(self) -> int | None:
        return self.model_flops or self.flops

    @property
    def recorded_bytes(self) -> int | None:
        return self.bytes_accessed if self.hbm_bytes is None else self.hbm_bytes

    @property
    def operations(self) -> int:
        """Beside products."""
        return sum(count for _, count in self.counted)

    def moved_bytes(self) -> int | float | None:
        known = self.recorded_bytes
        return total_bytes(*self.read, *self.written) if known is None else known

    def parameters(self) -> dict[str, Any]:
        declared = {key: getattr(self, key) for key in ("flops", "model_flops", "bytes_accessed", "hbm_bytes")}
        return {**dict(self.shown), **{key: value for key, value in declared.items() if value is not None}}


class HloGEMM(GEMM):
    """A product of XLA, alone or in a fusion with what is computed of its operands and result.

    flops = 2*b*m*n*k, and one per element of each other instruction; bytes = the fusion's operands and results.
    """

    work: HloWork = HloWork()

    def flops(self) -> int:
        known = self.work.recorded_flops
        return super().flops() + self.work.operations if known is None else known

    def moved(self) -> Moved:
        return (*self.work.read, *self.work.written)

    def hbm_bytes(self) -> int | float | None:
        return self.work.moved_bytes()

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | self.work.parameters()


class HloOp(ModelRecord, family="XLA"):
    """Another op of XLA: a fusion, a copy, a custom call.

    flops = those of its ``products`` and one per element of each other instruction, of reductions one per element that
    vanishes; None for a custom call that does not declare them. bytes = its operands and results, of slices what they
    take.
    """

    work: HloWork
    products: tuple[PerfModel, ...] = ()
    is_opaque: bool = False
    dtype: DType | None = None

    def flops(self) -> int | float | None:
        known = self.work.recorded_flops
        if known is not None or self.is_opaque:
            return known
        flops = [product.flops() for product in self.products]
        return None if None in flops else self.work.operations + sum(n for n in flops if n is not None)

    def moved(self) -> Moved:
        return (*self.work.read, *self.work.written)

    def hbm_bytes(self) -> int | float | None:
        return self.work.moved_bytes()

    def parameters(self) -> dict[str, Any]:
        parts = {f"product_{i}": product.parameters() for i, product in enumerate(self.products)}
        return parts | self.work.parameters()


class HloElementwise(HloOp, category=Elementwise.category):
    """An op that computes element by element, in no fusion."""


class HloFusion(HloOp, category="fusion"):
    """A fusion that computes element by element."""


class HloReduce(HloOp, category=Reduce.category):
    """A fusion with a reduction in it: sums, normalizations, softmax."""


class HloMovement(HloOp, category=Movement.category, engine="none"):
    """An op that computes nothing."""


class HloProducts(HloOp, category=GEMM.category, engine="matrix"):
    """A fusion of several products, or a product of a TPU of which only the FLOPs are known."""


class HloConvolution(HloOp, category=Conv.category, engine="matrix"):
    """A convolution, alone or in a fusion."""


class HloConvolutionBackward(HloConvolution, category=ConvBackward.category):
    """A gradient of a convolution."""


class CountedConvolution(ModelRecord, engine="matrix"):
    """A convolution of ``x`` [batch, channels, ...] with ``w`` [out, in, ...]; ``computed``: which of x, w and out is.

    flops = ``count``, as XLA counts them: two per pair of a result and an element of the window that lies on no
    padding.
    """

    x: tuple[int, ...]
    w: tuple[int, ...]
    out: tuple[int, ...]
    computed: str
    count: int
    dtype: DType | None = None

    def flops(self) -> int:
        return self.count

    def moved(self) -> Moved:
        return ((prod(self.x), self.dtype), (prod(self.w), self.dtype), (prod(self.out), self.dtype))


class HloCollective(CustomCollective):
    """A collective of XLA. Bytes that a TPU recorded are shown: what crosses the links is what it is priced by."""

    work: HloWork = HloWork()

    def parameters(self) -> dict[str, Any]:
        return super().parameters() | self.work.parameters()


def compiled_op(op: OpSignature) -> Any:
    """The model of an op of XLA; None where nothing is known of its work. SignatureError for what is damaged."""
    known = op.attribute(KNOWN)
    if not isinstance(known, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in known):
        raise SignatureError(f"{op.name}: what the program says of it is damaged")
    facts: dict[str, Any] = dict(known)
    try:
        return _model(facts)
    except (TypeError, ValueError, IndexError) as error:
        raise SignatureError(f"{op.name}: what the program says of it is damaged ({error})") from error


def _model(facts: dict[str, Any]) -> PerfModel | None:
    work = _work(facts)
    if "collective" in facts:
        word, n_in, n_out, dtype, ranks, stride = facts["collective"]
        return HloCollective(
            kind=word, elements_in=n_in, elements_out=n_out, ranks=ranks, dtype=DType.parse(dtype), stride=stride,
            work=work,
        )  # fmt: skip
    if "scores" in facts and (attention := _attention(facts)) is not None:
        return attention
    products = tuple(_product(*each) for each in facts.get("products", ()))
    if len(products) == 1 and isinstance(gemm := products[0], GEMM):
        return HloGEMM(**{key: getattr(gemm, key) for key in _DIMS}, work=work)
    if not products:
        return _other(facts, work)
    kind: type[HloOp] = HloProducts
    if not any(isinstance(each, GEMM) for each in products):
        is_gradient = any(getattr(each, "computed", "out") != "out" for each in products)
        kind = HloConvolutionBackward if is_gradient else HloConvolution
    return kind(work=work, products=products, dtype=getattr(products[0], "dtype", None))


_DIMS = ("b", "m", "n", "k", "dtype", "dtype_b", "dtype_out")


def _other(facts: dict[str, Any], work: HloWork) -> HloOp | None:
    if "read" not in facts and work.recorded_bytes is None and work.recorded_flops is None:
        return None
    dtype = next((kind for _, kind in (*work.read, *work.written) if isinstance(kind, DType)), None)
    if facts.get("target"):
        return HloOp(work=work, is_opaque=True, dtype=dtype)
    return _kind(facts, work)(work=work, dtype=dtype)


def _kind(facts: dict[str, Any], work: HloWork) -> type[HloOp]:
    category, opcodes = str(facts.get("category", "")), {opcode for opcode, _ in work.counted}
    if "counts" not in facts and any(word in category for word in _MATRIX):
        return HloProducts
    if category == "reduce" or opcodes & _REDUCES:
        return HloReduce
    # Most of what it writes was not computed
    moves = max(work.operations, work.recorded_flops or 0) < max(1, sum(elements for elements, _ in work.written))
    if moves:
        return HloMovement
    return HloFusion if facts.get("opcode") == "fusion" or "fusion" in category else HloElementwise


def _work(facts: dict[str, Any]) -> HloWork:
    def moved(key: str) -> Moved:
        return tuple((prod(dims), DType.parse(dtype)) for dtype, dims in facts.get(key, ()))

    counts = facts.get("counts", ())
    names = (("hlo", "opcode"), ("hlo_category", "category"), ("custom_call", "target"), ("jax_op", "jax"))
    shown = tuple((name, facts[key]) for name, key in (*names, ("source", "source")) if facts.get(key))
    declared = {key: facts[key] for key in ("flops", "model_flops", "bytes_accessed", "hbm_bytes") if key in facts}
    if not all(isinstance(value, int) for value in declared.values()):
        raise TypeError(f"recorded work should be numbers, got {declared}")
    return HloWork(read=moved("read"), written=moved("written"), counted=tuple(counts), shown=shown, **declared)


def _product(kind: str, *of: Any) -> PerfModel:
    if kind == "dot":
        b, m, n, k, *dtypes = of
        a, other, out = (DType.parse(dtype) for dtype in dtypes)
        return GEMM(b=b, m=m, n=n, k=k, dtype=a, dtype_b=other, dtype_out=out)
    x, w, out, dtypes, made, flops = of
    dtype = DType.parse(dtypes[0])
    return CountedConvolution(x=x, w=w, out=out, computed=made, count=flops, dtype=dtype)


def _attention(facts: dict[str, Any]) -> SDPA | None:
    """cuDNN's fused attention: ``scores`` are [batch, heads, queries, keys]; the operands Q, K and V hold the rest."""
    batch, heads, queries, keys = facts["scores"]
    arrays = [(DType.parse(dtype), prod(dims)) for dtype, dims in facts.get("read", ())]
    if len(arrays) < 3 or not batch * heads * queries * keys:
        return None
    (dtype, of_q), (dtype_k, of_k), (dtype_v, of_v) = arrays[:3]
    depth = of_q // (batch * heads * queries)
    kv_heads = of_k // (batch * keys * depth) if depth else 0
    if not kv_heads or heads % kv_heads or of_q != batch * heads * queries * depth:
        return None
    kind = SDPABackward if "Backward" in str(facts.get("target", "")) else SDPA
    causal = "CAUSAL" in str(facts.get("mask", "")).upper()
    return kind(
        b=batch, s_q=queries, s_kv=keys, q_heads=heads, kv_heads=kv_heads, d_qk=depth,
        d_v=of_v // (batch * keys * kv_heads), mask="top_left" if causal else "none", flash=True, dtype=dtype,
        dtype_k=dtype_k, dtype_v=dtype_v,
    )  # fmt: skip
