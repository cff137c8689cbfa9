"""The tile model: what each compute unit does, tile by tile, with constants fitted per device and precision."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import numpy as np

from tracelens.backends import attention_tiles, expert_layer, matrix, memory_bound
from tracelens.backends.base import Estimate, EstimateTable, Floats, backend
from tracelens.backends.family_columns import AttentionColumns, Columns, GEMMColumns, MoEColumns, Priced, joined
from tracelens.backends.roofline import Roofline
from tracelens.backends.system import System
from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.hardware.tile_constants import Calibration
from tracelens.perf_models import (
    GEMM,
    SDPA,
    Collective,
    EPComm,
    GroupedGEMM,
    GroupedGEMMBackward,
    GroupedGEMMVariableK,
    InferenceAttention,
    MoEDown,
    MoEFused,
    MoEUp,
    PerfModel,
    SDPABackward,
    SparseAttention,
)
from tracelens.perf_models.attention.inference_attention import AttentionSums
from tracelens.perf_models.base import resolved
from tracelens.perf_models.matrix.moe import MoELayer
from tracelens.perf_models.work_columns import WorkColumns

SUM_NAMES = tuple(field.name for field in fields(AttentionSums) if field.name != "assumed")
#: Elements that share a scale where a recorded FP8 product is block-scaled, and in the MX format.
_SCALE_BLOCK, _MX_BLOCK = 128, 32
#: Time of MXFP8 products over that of FP8 ones with a scale per tensor, where nobody fitted them: a layer's twelve on
#: B300 (TransformerEngine docs/examples/gemm_profiling/gemm_profiling.rst at 8f2e635, pre-quantized).
MXFP8_LONGER = 7.161 / 6.812
# Rows per pass, so that a dozen columns stay in a core's L2: 1e6 GEMMs in 1.2 s; in one piece 2.5 s.
CHUNK = 8192


@backend("tile")
class Tile:
    """GEMM, grouped GEMM, attention, expert layers and memory-bound operations; None for everything else.

    A device without constants for the family and precision has no answer either: a chain asks the next backend.
    Estimates never beat the data sheet's peak, and grow with every dimension (``docs/estimation.md`` lists what was
    measured not to).
    """

    name: ClassVar[str] = "tile"
    reads_stores: ClassVar[bool] = True

    def estimate_many(self, columns: WorkColumns | Columns, system: System) -> EstimateTable:
        """One row per row of ``columns``; a store of one family costs no objects."""
        if isinstance(columns, WorkColumns):
            return self._mixed(columns, system)
        priced = price(columns, system.device)
        return EstimateTable.unanswered(len(columns)) if priced is None else table(priced, self.name)

    def estimate(self, op: PerfModel, system: System) -> Estimate | None:
        """The one-row form."""
        return self.estimate_many(WorkColumns.of([op]), system).row(0)

    def _mixed(self, columns: WorkColumns, system: System) -> EstimateTable:
        groups: dict[Hashable, list[int]] = defaultdict(list)
        for row, model in enumerate(columns.models):
            groups[_group(model)].append(row)
        parts: list[tuple[list[int], Priced]] = []
        for key, rows in groups.items():
            if key is None:
                continue
            found = _price_models([columns.models[row] for row in rows], key, columns.hbm_bytes[rows], system.device)
            if found is not None:
                parts.append((rows, found))
        return _scattered(columns, parts, Roofline().estimate_many(columns, system).peak_us)


def price(columns: Columns, device: HardwareSpec, *, backward: bool = False) -> Priced | None:
    """Times of one store; None where the device has no constants or rates for it. ``backward``: of attention."""
    if len(columns) > CHUNK:
        starts = range(0, len(columns), CHUNK)
        parts = [price(columns.take(slice(at, at + CHUNK)), device, backward=backward) for at in starts]
        known = [part for part in parts if part is not None]
        return joined(known) if len(known) == len(parts) else None
    if isinstance(columns, GEMMColumns):
        gemm = _products(device, columns.precision)
        if gemm is not None and not columns.as_layer and columns.precision != "bf16":
            gemm = _one_launch(gemm, device.calibration("gemm", "bf16"))
        return None if gemm is None else matrix.price(columns, device, gemm)
    if isinstance(columns, MoEColumns):
        layer = device.calibration("moe", columns.precision)
        return None if layer is None else expert_layer.price(columns, device, layer)
    if backward:
        gradient = device.calibration("backward", columns.precision)
        return None if gradient is None else attention_tiles.backward(columns, device, gradient)
    prefill = device.calibration("prefill", columns.precision)
    decoding = device.calibration("decode", columns.precision)
    if columns.value_in_key:
        decoding = device.calibration("latent", columns.precision) or decoding
    single = columns.s == 1
    if single.all():
        return None if decoding is None else attention_tiles.decode(columns, device, decoding)
    if prefill is None or (decoding is None and single.any()):
        return None
    forward = attention_tiles.forward(columns, device, prefill)
    if forward is None or decoding is None or not single.any():
        return forward
    one = attention_tiles.decode(columns.take(single), device, decoding)
    if one is None:
        return None
    for name in ("time_us", "compute_us", "memory_us", "peak_us"):
        getattr(forward, name)[single] = getattr(one, name)
    return forward


def _products(device: HardwareSpec, which: str) -> Calibration | None:
    """The constants of products in a precision; of MXFP8, where it has none, FP8's."""
    found = device.calibration("gemm", which)
    if found is not None or which != "mxfp8":
        return found
    plain = device.calibration("gemm", "fp8")
    if plain is None:
        return None
    slower = {"matrix_efficiency": plain["matrix_efficiency"] / MXFP8_LONGER}
    return replace(plain, constants={**plain.constants, **slower})


def _one_launch(gemm: Calibration, plain: Calibration | None) -> Calibration:
    """The launch of a product alone: what was fitted on quantizing layers contains the launches around it."""
    if plain is None:
        return gemm
    return replace(gemm, constants={**gemm.constants, "launch_us": plain.get("launch_us", 0.0)})


def table(priced: Priced, name: str) -> EstimateTable:
    """As backends answer. The bound is the larger of computing and memory, as the model sees them."""
    rows = len(priced.time_us)
    return EstimateTable(
        time_us=priced.time_us,
        peak_us=priced.peak_us,
        compute_us=priced.compute_us,
        memory_us=priced.memory_us,
        wire_us=np.zeros(rows),
        bound=tuple(np.where(priced.compute_us >= priced.memory_us, "compute", "memory").tolist()),
        rate_basis=("achievable",) * rows,
        backend=(name,) * rows,
    )


def precision(model: PerfModel) -> str | None:
    """The calibration that an operation reads; None for types that nobody fitted. FP16 runs at BF16's rates."""
    dtype = model.compute_dtype
    if dtype is None:
        return None
    if dtype in (DType.BF16, DType.FP16):
        return "bf16"
    if dtype.rate == "fp8":
        return _scaled_fp8(model) if isinstance(model, GEMM) else "fp8"
    return "nvfp4" if dtype.rate == "fp4" else None


def _scaled_fp8(model: GEMM) -> str:
    """By the number of scales: one per 32 elements of both operands, or per block of A, else per row or tensor."""
    b, m, n, k = model.b, model.m, model.n, model.k
    if model.scale_elements in {b * (of_a + of_b) for of_a in (1, m) for of_b in (1, n)}:
        return "fp8"
    if model.scale_elements * _MX_BLOCK >= b * k * (m + n) > 0:
        return "mxfp8"
    return "fp8_block" if model.scale_elements >= b * m * k / _SCALE_BLOCK > 0 else "fp8"


def cache_precision(model: SDPA | InferenceAttention | SparseAttention) -> str | None:
    """The calibration of attention in BF16 or FP16 over a cache, or keys, of that or an FP8 type; None for others."""
    kept = model.dtype_k if isinstance(model, SDPA) else model.dtype_kv
    if model.dtype not in (DType.BF16, DType.FP16):
        return None
    cached = resolved(kept, model.dtype)
    if cached in (DType.BF16, DType.FP16):
        return "bf16"
    return "fp8" if cached is not None and cached.rate == "fp8" and not isinstance(model, SDPABackward) else None


def _group(model: PerfModel) -> Hashable:
    """Operations that are priced together; None for those that this model does not know."""
    kind = type(model)
    if isinstance(model, GEMM | GroupedGEMM | MoELayer):
        return kind, precision(model), _widened(model)
    if isinstance(model, SDPA | InferenceAttention | SparseAttention):
        return kind, cache_precision(model), None
    if model.engine in ("vector", "none") and not isinstance(model, EPComm | Collective):
        return memory_bound.stream_of(model), None, None
    return None


def _widened(model: GEMM | GroupedGEMM | MoELayer) -> float | None:
    """Bytes per element of weights that are narrower than what they are multiplied in; None where they are not."""
    weights = resolved(model.dtype_weight if isinstance(model, MoELayer) else model.dtype_b, model.dtype)
    computed = model.compute_dtype
    narrower = weights is not None and computed is not None and weights.bits < computed.bits
    return weights.width_bytes if narrower and weights is not None else None


def _price_models(models: Sequence[PerfModel], key: Any, nbytes: Floats, device: HardwareSpec) -> Priced | None:
    kind, which, b_width = key
    if isinstance(kind, str):
        constants = memory_bound.calibration(device, kind)  # type: ignore[arg-type]
        return None if constants is None else memory_bound.price(nbytes, device, constants)
    if which is None:
        return None
    if issubclass(kind, GroupedGEMMBackward):
        forward = price(_grouped(models, which, "dgrad", b_width), device)
        weights = price(_grouped(models, which, "wgrad", None), device)
        return None if forward is None or weights is None else _both(forward, weights)
    if issubclass(kind, GroupedGEMM):
        role = "wgrad" if issubclass(kind, GroupedGEMMVariableK) else "forward"
        return price(_grouped(models, which, role, b_width), device)
    if issubclass(kind, GEMM):
        m, n, k, b = (_field(models, name) for name in "mnkb")
        return price(GEMMColumns.of(which, m, n, k, b, b_width=b_width), device)
    if issubclass(kind, InferenceAttention):
        return _engine_step(models, which, device)
    if issubclass(kind, SparseAttention):
        return price(_listed(models, which), device)
    if issubclass(kind, SDPA):
        return price(_attention(models, which), device, backward=issubclass(kind, SDPABackward))
    if issubclass(kind, MoEUp | MoEDown):
        return price(_projections(models, which, b_width, up=issubclass(kind, MoEUp)), device)
    # Nothing was measured on fused layers that widen their weights.
    return price(_layers(models, which), device) if issubclass(kind, MoEFused) and b_width is None else None


def _field(models: Sequence[Any], name: str) -> Floats:
    return np.array([getattr(model, name) for model in models], dtype=np.float64)


def _grouped(models: Sequence[Any], which: str, role: str, b_width: float | None) -> GEMMColumns:
    """The weights' gradient is one product per group, over that group's rows."""
    m, n, k, groups = (_field(models, name) for name in ("m", "n", "k", "groups"))
    if role == "wgrad":
        return GEMMColumns.of(which, m=k, n=n, k=m / groups, b=groups, b_width=b_width)
    n, k = (k, n) if role == "dgrad" else (n, k)
    return GEMMColumns.of(which, m=m, n=n, k=k, groups=groups, b_width=b_width)


def _both(first: Priced, second: Priced) -> Priced:
    return Priced(
        time_us=first.time_us + second.time_us,
        compute_us=first.compute_us + second.compute_us,
        memory_us=first.memory_us + second.memory_us,
        peak_us=first.peak_us + second.peak_us,
    )


def _attention(models: Sequence[Any], which: str) -> AttentionColumns:
    """NaN where lengths or the mask were not recorded."""
    s = np.array([np.nan if m.s_q is None else m.s_q for m in models], dtype=np.float64)
    keys = np.array([np.nan if m.s_kv is None or m.mask is None else m.s_kv for m in models], dtype=np.float64)
    # A top-left mask sees no more keys than queries; past is what bottom-right adds.
    aligned = np.array([m.mask == "top_left" for m in models])
    keys = np.where(aligned, np.minimum(keys, s), keys)
    return AttentionColumns(
        precision=which,
        b=_field(models, "b"),
        s=s,
        past=np.maximum(keys - s, 0),
        q_heads=_field(models, "q_heads"),
        kv_heads=_field(models, "kv_heads"),
        d_qk=_field(models, "d_qk"),
        d_v=_field(models, "d_v"),
        window=np.array([np.inf if m.window is None else m.window for m in models], dtype=np.float64),
        causal=np.array([m.mask != "none" for m in models], dtype=np.float64),
    )


def _listed(models: Sequence[Any], which: str) -> AttentionColumns:
    """Each token reads its own rows of the cache, as decoding does."""
    tokens, heads, d_qk, d_v, pairs = (_field(models, n) for n in ("tokens", "q_heads", "d_qk", "d_v", "pairs"))
    one = np.ones(len(models))
    return AttentionColumns(
        precision=which, b=tokens, s=one, past=np.maximum(pairs / np.maximum(tokens, 1) - 1, 0), q_heads=heads,
        kv_heads=one, d_qk=d_qk, d_v=d_v, window=one * np.inf, causal=one, value_in_key=True,
    )  # fmt: skip


def _engine_step(models: Sequence[Any], which: str, device: HardwareSpec) -> Priced | None:
    """Requests with a prompt, then those that generate; one launch for both.

    Each part is priced as equal requests with the same sums: of sq tokens and sk keys in all, their squares and
    products. A few new tokens of one request (speculation) are further query heads on the same keys.
    """
    sums = {name: np.array([getattr(m.sums, name) for m in models], dtype=np.float64) for name in SUM_NAMES}
    window = np.array([np.inf if m.window is None else m.window for m in models], dtype=np.float64)
    total = {field: np.zeros(len(models)) for field in ("time_us", "compute_us", "memory_us", "peak_us")}
    for part in ("c", "g"):
        tokens = sums[f"{part}_sq"]
        at = np.flatnonzero((tokens > 0) & (sums[f"{part}_sqsk"] > 0))
        if not len(at):
            continue
        some = [models[row] for row in at.tolist()]
        new, keys = (sums[f"{part}_{name}"][at] / tokens[at] for name in ("sqsq", "sqsk"))
        heads, requests = _field(some, "q_heads"), tokens[at] / new
        if part == "g":
            heads, new = heads * new, np.ones(len(at))
        found = price(
            AttentionColumns(
                precision=which, b=requests, s=new, past=np.maximum(keys - new, 0), q_heads=heads,
                kv_heads=_field(some, "kv_heads"), d_qk=_field(some, "d_qk"), d_v=_field(some, "d_v"),
                window=window[at] if part == "g" else np.full(len(at), np.inf), causal=np.ones(len(at)),
            ),
            device,
        )  # fmt: skip
        if found is None:
            return None
        again = total["time_us"][at] > 0
        for field, values in total.items():
            values[at] += getattr(found, field)
        total["time_us"][at] -= np.where(again, attention_tiles.KERNEL_START_US, 0.0)
    return Priced(**{field: np.where(values > 0, values, np.nan) for field, values in total.items()})


def _projections(models: Sequence[Any], which: str, b_width: float | None, *, up: bool) -> GEMMColumns:
    """One projection of every chosen (token, expert) as a grouped product over the experts that have tokens."""
    tokens, topk, hidden, ffn = (_field(models, name) for name in ("tokens", "top_k", "hidden", "ffn"))
    wide = ffn * (1 + _field(models, "gated"))
    groups = np.array([m.read_experts for m in models], dtype=np.float64)
    n, k = (wide, hidden) if up else (hidden, ffn)
    return GEMMColumns.of(which, m=tokens * topk, n=n, k=k, groups=groups, b_width=b_width)


def _layers(models: Sequence[Any], which: str) -> MoEColumns:
    """All experts on one rank, rows even among those that uniform routing touches."""
    tokens, topk = _field(models, "tokens"), _field(models, "top_k")
    active = np.array([m.read_experts for m in models], dtype=np.float64)
    rows = tokens * topk
    return MoEColumns(
        precision=which,
        tokens=tokens,
        hidden=_field(models, "hidden"),
        ffn=_field(models, "ffn"),
        gated=_field(models, "gated"),
        ranks=np.ones(len(models)),
        topk=topk,
        local_experts=_field(models, "experts"),
        rows=rows,
        active=active,
        blocks={size: active * np.ceil(rows / np.maximum(active, 1) / size) for size in expert_layer.BLOCKS},
    )


def _scattered(columns: WorkColumns, parts: list[tuple[list[int], Priced]], least: Floats) -> EstimateTable:
    """``least``: the data sheet's time of what each model says it computes and moves, a bias or a wide C included."""
    rows = len(columns)
    filled = {field: np.full(rows, np.nan) for field in ("time_us", "peak_us", "compute_us", "memory_us")}
    for at, priced in parts:
        for field, values in filled.items():
            values[at] = getattr(priced, field)
    known = np.isfinite(filled["time_us"])
    for field in ("time_us", "peak_us"):
        filled[field] = np.where(known, np.fmax(filled[field], least), np.nan)
    bound = np.where(filled["compute_us"] >= filled["memory_us"], "compute", "memory").tolist()
    each = known.tolist()
    matrix_rate = [k and engine == "matrix" for k, engine in zip(each, columns.engine, strict=True)]
    return EstimateTable(
        **filled,
        wire_us=np.where(known, 0.0, np.nan),
        bound=tuple(b if k else None for b, k in zip(bound, each, strict=True)),
        rate_basis=tuple("achievable" if k else None for k in matrix_rate),
        backend=tuple(Tile.name if k else None for k in each),
    )
