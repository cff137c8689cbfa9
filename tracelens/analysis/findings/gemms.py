"""Findings about GEMMs and convolutions (alignment, waves, precision, memory layout, loops over experts), attention
(unfused, growing KV cache) and decoding (small batches, stalls by prefills).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.calls import launch_floor_us, rate_of
from tracelens.analysis.attribution.host_scopes import places_around
from tracelens.analysis.findings.rule import Candidate, Observed, built_in, candidate_of_calls, otherwise
from tracelens.analysis.grouping import last_begun
from tracelens.analysis.intervals import Floats, Ints
from tracelens.analysis.reading.added_ops import rows_named
from tracelens.analysis.reading.engine_steps import DECODE, MIXED, PREFILL, phase
from tracelens.analysis.verdict.summary import Said
from tracelens.perf_models.gemm import GEMM
from tracelens.perf_models.kernels import FP32
from tracelens.perf_models.sdpa import SDPA
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature
from tracelens.types.units import FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US, counted, duration, percent, takes

#: Bytes that one load instruction fetches; GEMM kernels fall back to narrower ones where rows start in between.
ALIGNMENT_BYTES = 16
#: Elements that rows are padded to, see the remedy.
_PADDED_TO = 64
#: Narrower operands are vectors.
_LEAST_COLUMNS = 8


@built_in("unaligned_gemms")
def unaligned_gemms(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above the roofline."""
    rows, models = seen.gemms
    odd = [unaligned_dims(model) for model in models]
    unaligned = np.array([bool(dims) for dims in odd], bool)
    rows, models = rows[unaligned], models[unaligned]
    if rows.empty:
        return
    by_dim: dict[int, float] = {}
    for us, dims in zip(rows["kernel_us_sum"], filter(None, odd), strict=True):
        by_dim |= {dim: by_dim.get(dim, 0.0) + us for dim in dims}
    most = sorted(by_dim, key=lambda dim: (-by_dim[dim], dim))[:2]
    up = [tuple(-(-dim // _PADDED_TO) * _PADDED_TO for dim in (model.n, model.k)) for model in models]
    padded = [replace(m, n=n, k=k, stride_a=None, stride_b=None) for m, (n, k) in zip(models, up, strict=True)]
    padded_us, _ = seen.expected_us(padded)
    rest = Candidate(
        why=f"; their rows of {', '.join(map(str, most))} elements are not aligned to {ALIGNMENT_BYTES} bytes",
        claimed=seen.calls(
            rows,
            1 - padded_us / rows["kernel_us_mean"],
            low=0.0,
            high=1 - np.fmin(rows["roofline_us"], padded_us) / rows["kernel_us_mean"],
        ),
        figures=tuple(Said(what="elements of a row", value=dim, unit="count") for dim in most),
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest, figure="unaligned GEMMs")


def unaligned_dims(gemm: GEMM) -> list[int]:
    """Lengths of rows, as they lie in memory, that are no multiple of 16 bytes."""
    if gemm.dtype is None or min(gemm.m, gemm.n, gemm.k) < _LEAST_COLUMNS:
        return []
    elements = max(1, int(ALIGNMENT_BYTES / gemm.dtype.width_bytes))
    row_a, row_b = _row_length(gemm.stride_a, gemm.k), _row_length(gemm.stride_b, gemm.n)
    return sorted({dim for dim in (row_a, row_b, gemm.n) if dim % elements})


def _row_length(stride: tuple[int, ...] | None, columns: int) -> int:
    """Elements from the start of one row of a matrix to the next in memory, of a column where these lie together."""
    if stride is None or len(stride) < 2 or 1 not in stride[-2:]:
        return columns
    return max(stride[-2:])


#: Tiles of hipBLASLt (MT128x128x64) and of cutlass, cuBLAS and nvjet (tilesize128x64x32, _128x64_, _128x64x32_).
_TILE = re.compile(r"(?:MT|tilesize|_)(\d{2,3})x(\d{2,3})(?:x\d{1,3})?(?=_)")
#: Kernels that also split the sum, or hand out work in other pieces than tiles.
_SPLITS = re.compile(r"(?i)split_?k|stream_?k|_SK\d|GSU(?:[2-9]|\d\d)|MultipleBuffer")
#: Share of the device that must be idle, on average over the waves.
_MUCH_IDLE = 0.15


@built_in("wave_quantization")
def wave_quantization(seen: Observed) -> Iterator[Candidate]:
    """Gain: the share of their waves in which units are idle, at most their time above the roofline; of those bound by
    memory, above what the tile model expects, as no tiles make them read at the peak rate.
    """
    units, (gemms, models) = None if seen.device is None else seen.device.compute_units, seen.gemms
    if units is None or gemms.empty:
        return
    each = zip(models, gemms["kernel_details"], gemms["roofline_bound"], strict=True)
    idle = np.array([_idle_share_of_waves(*gemm, units) for gemm in each])
    unfilled = idle > _MUCH_IDLE
    gemms, models, idle = gemms[unfilled], models[unfilled], idle[unfilled]
    if gemms.empty:
        return
    expected_us, _ = seen.expected_us(models.tolist())
    least_us = np.where(gemms["roofline_bound"] == "memory", expected_us, gemms["roofline_us"])
    share = np.minimum(idle, 1 - least_us / gemms["kernel_us_mean"])
    much = share > _MUCH_IDLE
    rows, share, idle = gemms[much], share[much], idle[much]
    if rows.empty:
        return
    lost = float((idle * rows["kernel_us_sum"]).sum() / rows["kernel_us_sum"].sum())
    rest = Candidate(
        why=f"; their tiles leave {percent(lost)} of the compute units' time unused (wave quantization)",
        claimed=seen.calls(rows, share, low=0.0),
        figures=(Said(what="unused", value=lost, unit="share"),),
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest)


def _idle_share_of_waves(gemm: GEMM, kernels: object, bound: str | None, units: int) -> float:
    """What part of the waves is idle; NaN where the kernel does not say how it tiles. The better of both directions.

    NaN too where memory keeps the units waiting in every wave, so that a last one of few tiles reads as fast as the
    others: there it matters only that some units have no tile at all. Nor do tiles matter where a launch bounds it.
    """
    found = _TILE.search(str(kernels))
    if found is None or _SPLITS.search(str(kernels)):
        return np.nan
    a, b = (int(text) for text in found.groups())
    tiles = min(-(-gemm.m // m) * -(-gemm.n // n) for m, n in ((a, b), (b, a))) * gemm.b
    if tiles <= 0 or bound not in ("compute", "memory") or (bound == "memory" and tiles >= units):
        return np.nan
    return 1 - tiles / (units * -(-tiles // units))


@built_in("fp32_without_tf32")
def fp32_without_tf32(seen: Observed) -> Iterator[Candidate]:
    """Gain: the time of these calls at the same share of the roofline, with TF32's rate."""
    device = seen.device
    rates = [device.rate("matrix", dtype) for dtype in (DType.FP32, DType.TF32)] if device is not None else [None, None]
    if device is None or rates[1] is None or (rates[0] is not None and rates[1].tflops_s <= rates[0].tflops_s):
        return
    rows = seen.rows_where(
        (seen.column("computed_in") == FP32.label) & (seen.column("roofline_us") > 0) & (seen.column("gflops") > 0)
    )
    if rows.empty:
        return
    compute_us = rows["gflops"] * FLOPS_PER_GFLOP / rates[1].tflops_s / TERA_PER_S_IN_PER_US
    memory_us = rows["hbm_mb"] / seen.hbm_tb_s if seen.hbm_tb_s is not None else rows["roofline_us"]
    floor_us = rows["kernels_per_call"] * launch_floor_us(device)
    least_us = np.minimum(np.fmax(np.fmax(compute_us, memory_us), floor_us), rows["roofline_us"])
    rest = Candidate(
        why="; allow TF32 where its 10-bit mantissa is enough",
        claimed=seen.calls(rows, 1 - least_us / rows["roofline_us"]),
    )
    what, many = (f"FP32 GEMM or convolution {calls} without TF32" for calls in ("call", "calls"))
    yield from candidate_of_calls(seen, rows, what, rest, plural=many, figure="calls in FP32")


_SIXTEEN_BITS = (DType.BF16, DType.FP16)
#: Share of its time that FP8 must save of a GEMM.
_LEAST_SAVED_BY_FP8 = 0.1


@built_in("fp8_candidates")
def fp8_candidates(seen: Observed) -> Iterator[Candidate]:
    """Gain: as much of their time as the tile model says that FP8 saves; at least none of it."""
    device = seen.device
    if device is None or device.rate("matrix", DType.FP8_E4M3FN) is None:
        return
    rows, models = seen.gemms
    types = [model.dtype for model in models]
    if not any(each is not None and each.rate == "fp8" for each in types):
        return
    wide = np.array([each in _SIXTEEN_BITS for each in types], np.bool_)
    rows, models = rows[wide], models[wide].tolist()
    before, _ = seen.expected_us(models)
    fp8 = DType.FP8_E4M3FN
    after, _ = seen.expected_us([replace(m, dtype=fp8, dtype_b=fp8, dtype_out=m.dtype) for m in models])
    saved = np.nan_to_num(1 - after / before)
    rows, saved = rows[saved > _LEAST_SAVED_BY_FP8], saved[saved > _LEAST_SAVED_BY_FP8]
    if rows.empty:
        return
    share = float((saved * rows["kernel_us_sum"]).sum() / rows["kernel_us_sum"].sum())
    rest = Candidate(
        why=f" in BF16 or FP16; FP8 would save about {percent(share)} of it, by estimate",
        claimed=seen.calls(rows, saved, low=0.0),
        figures=(Said(what="saved", value=share, unit="share"),),
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest)


#: GEMMs of one weight shape, and different numbers of rows among them, from which they are taken for experts.
_MANY_EXPERTS, _DIFFERENT_ROWS = 16, 3
#: Share of them with another number of rows than the one before: batches change it from one step to the next only.
_CHANGING_ROWS = 0.25
#: What says that there are experts: an op or kernel that picks or orders them, or a module's name.
_ROUTES_TO_EXPERTS = re.compile(r"(?i)top_?k|router|routing|gating|(?:^|[^a-z])moe|experts?(?:[^a-z]|$)")
#: GEMMs that may lie between the router and the first expert: those of shared experts.
_BETWEEN_ROUTER_AND_EXPERT = 4
#: Longest mean time of such a GEMM.
_SHORT_EXPERT_US = 50.0


@built_in("expert_loop")
def expert_loop(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above that of their FLOPs and bytes at the device's rates."""
    device, (rows, models) = seen.device, seen.gemms
    short = (rows["kernel_us_mean"].to_numpy() < _SHORT_EXPERT_US) & (rows["gflops"].to_numpy() > 0)
    if device is None or seen.hbm_tb_s is None or not short.any():
        return
    rows, models = rows[short], models[short]
    weights = [(model.n, model.k) for model in models.tolist()]
    experts = _of_experts(seen, rows, weights, [model.m for model in models.tolist()])
    rows = rows[np.array([each in experts for each in weights], np.bool_)]
    if rows.empty or not _are_routed_to(seen, rows):
        return
    rates = [rate_of(device, str(spec)) for spec in rows["compute_spec"]]
    tflops = np.array([np.nan if rate is None else rate.tflops_s for rate in rates], np.float64)
    least_us = np.fmax(rows["gflops"] * FLOPS_PER_GFLOP / tflops / TERA_PER_S_IN_PER_US, rows["hbm_mb"] / seen.hbm_tb_s)
    rest = Candidate(
        why="; the experts run one after another",
        claimed=seen.calls(rows, 1 - least_us / rows["kernel_us_mean"], spares_launches=True),
    )
    yield from candidate_of_calls(seen, rows, "short GEMM", rest)


def _of_experts(
    seen: Observed, rows: pd.DataFrame, weights: Sequence[tuple[int, int]], heights: Sequence[int]
) -> set[tuple[int, int]]:
    """Shapes of weights that many of ``rows`` have, with numbers of rows that change from call to call."""
    by_weights: dict[tuple[int, int], dict[int, int]] = {}
    counts = Counter[tuple[int, int]]()
    for row, each, height, count in zip(rows.index, weights, heights, rows["operation_count"], strict=True):
        by_weights.setdefault(each, {})[row] = height
        counts[each] += count
    found = set()
    for each, height_of in by_weights.items():
        if counts[each] < _MANY_EXPERTS * seen.steps or len(set(height_of.values())) < _DIFFERENT_ROWS:
            continue
        events = seen.events_of(height_of)
        ordered = seen.row_of_event[events[np.argsort(seen.activity.start[events], kind="stable")]]
        in_turn = np.array([height_of[row] for row in ordered.tolist()])
        if np.count_nonzero(np.diff(in_turn)) >= _CHANGING_ROWS * (len(in_turn) - 1):
            found.add(each)
    return found


def _are_routed_to(seen: Observed, rows: pd.DataFrame) -> bool:
    """Whether most of these GEMMs follow a router or lie in expert modules (diffusion models have similar ones)."""
    names, activity = seen.table.names, seen.activity
    if any(
        _ROUTES_TO_EXPERTS.search(place or "") for place in places_around(seen.tree, int(rows["example_row"].iloc[0]))
    ):
        return True
    says = np.array([_ROUTES_TO_EXPERTS.search(name) is not None for name in names], np.bool_)
    of_op = np.where(activity.op >= 0, says[seen.table.name[np.maximum(activity.op, 0)]], False)
    is_gemm = np.zeros(len(activity), np.bool_)
    is_gemm[seen.events_of(seen.gemms[0].index)] = True
    ours = np.zeros(len(activity), np.bool_)
    ours[seen.events_of(rows.index)] = True
    told = np.flatnonzero(is_gemm | says[activity.name] | of_op)
    routed, others, found = False, 0, 0
    for at in told[np.argsort(activity.start[told], kind="stable")].tolist():
        if ours[at]:
            found += routed and others <= _BETWEEN_ROUTER_AND_EXPERT
        elif is_gemm[at]:
            others += 1
        else:
            routed, others = True, 0
    return bool(2 * found > np.count_nonzero(ours))


#: Share of the roofline from which a convolution is said to be fine.
_FINE_CONVOLUTION = 0.5


@built_in("slow_convolutions")
def slow_convolutions(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above what the tile model expects."""
    is_conv = np.array([str(category).startswith("CONV") for category in seen.column("category")], np.bool_)
    rows = seen.rows_where(is_conv & (seen.column("roofline_us") < _FINE_CONVOLUTION * seen.column("kernel_us_mean")))
    if rows.empty:
        return
    roofline = float((rows["roofline_us"] * rows["operation_count"]).sum() / rows["kernel_us_sum"].sum())
    rest = Candidate(
        why=f" at {percent(roofline)} of their roofline",
        claimed=seen.calls(
            rows,
            1 - rows["_achievable_us"] / rows["kernel_us_mean"],
            low=0.0,
            high=1 - rows["roofline_us"] / rows["kernel_us_mean"],
        ),
        figures=(Said(what="of the roofline", value=roofline, unit="share"),),
    )
    yield from candidate_of_calls(seen, rows, "convolution call", rest)


_CHANGES_LAYOUT = re.compile(r"(?i)nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d")
#: MIOpen's, which PyTorch hands channels last by default from ROCm 7 on (pytorch/pytorch#63617, #170947).
_OF_MIOPEN = "batched_transpose_"


@built_in("conv_layout_changes")
def conv_layout_changes(seen: Observed) -> Iterator[Candidate]:
    """Gain: all of their time."""
    names = seen.table.names
    codes = [code for code in np.unique(seen.activity.name).tolist() if _CHANGES_LAYOUT.search(names[code])]
    events = np.flatnonzero(np.isin(seen.activity.name, codes))
    if not len(events):
        return
    time_us = float(seen.activity.duration_us(events).sum())
    is_of_miopen = any(names[code].startswith(_OF_MIOPEN) for code in codes)
    yield Candidate(
        why=f"{counted(len(events), 'kernel')} that only {takes(len(events), 'change')} the layout of images "
        f"{takes(len(events))} {seen.share_text(time_us)}",
        claimed=seen.kernels(events, spares_launches=True),
        remedy=otherwise("conv_layout_changes", "MIOpen" if is_of_miopen else None),
        figures=(Said(what="kernels", value=len(events), unit="count"), seen.gpu_share(time_us)),
        evidence=seen.evidence_of(events),
        row=int(seen.activity.op[events[0]]) if seen.activity.op[events[0]] >= 0 else None,
    )


#: Of those that launch kernels themselves.
_PARTS_OF_ATTENTION = {
    "aten::bmm": "bmm", "aten::baddbmm": "bmm",
    "aten::_softmax": "softmax", "aten::softmax": "softmax", "aten::_safe_softmax": "softmax",
}  # fmt: skip


@built_in("attention_from_parts")
def attention_from_parts(seen: Observed) -> Iterator[Candidate]:
    """Gain: the time of what is launched from the first to the last of the three, less the roofline of one SDPA."""
    triples = _triples(seen)
    if seen.device is None or not len(triples):
        return
    # Per device event the pair of ops between whose begin and end its thread launched it; -1 without one.
    first = triples[:, 0]
    table, op = seen.table, seen.activity.op
    began = table.start_ns[op]
    pair = last_begun(table.lane[first], table.start_ns[first], table.lane[op], began)
    triple_of_event = np.where((op >= 0) & (pair >= 0) & (began < table.ends_ns(triples[:, 2])[pair]), pair, -1)
    events = np.flatnonzero(triple_of_event >= 0)
    of_triple = triple_of_event[events]
    spans_us = np.bincount(of_triple, seen.activity.duration_us(events), minlength=len(triples))
    expected_us, least_us = _attention_us(seen, triples)
    took_us = np.where(spans_us > 0, spans_us, np.nan)
    share, most = (np.nan_to_num(1 - us / took_us).clip(0, 1)[of_triple] for us in (expected_us, least_us))
    time_us = float(spans_us.sum())
    yield Candidate(
        why=f"unfused attention (bmm, softmax, bmm) runs {counted(len(triples), 'time')} and takes "
        f"{seen.share_text(time_us)}; its scores go through HBM",
        claimed=seen.kernels(events, share, high=most),
        figures=(Said(what="bmm, softmax, bmm", value=len(triples), unit="count"), seen.gpu_share(time_us)),
        evidence=seen.evidence_of(events),
        row=int(triples[0, 1]),
    )


def _triples(seen: Observed) -> Ints:
    """Table rows of (bmm, softmax, bmm) that follow one another on a thread and fit, a triple per line."""
    table = seen.table
    rows = rows_named(table, _PARTS_OF_ATTENTION)
    ran = np.zeros(len(table), bool)
    ran[seen.activity.op[seen.activity.op >= 0]] = True
    rows = rows[ran[rows]]
    rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
    if len(rows) < 3:
        return np.zeros((0, 3), np.int64)
    is_bmm = np.array([_PARTS_OF_ATTENTION[table.names[code]] == "bmm" for code in table.name[rows].tolist()], bool)
    lane = table.lane[rows]
    at = np.flatnonzero(is_bmm[:-2] & ~is_bmm[1:-1] & is_bmm[2:] & (lane[:-2] == lane[2:]))
    found = np.stack((rows[at], rows[at + 1], rows[at + 2]), axis=1).astype(np.int64)
    fits: dict[tuple[int, ...], bool] = {}
    for triple in found.tolist():
        key = tuple(seen.table.signature[triple].tolist())
        if key not in fits:
            fits[key] = _dims_of(seen, triple) is not None
    kept = np.array([fits[tuple(seen.table.signature[triple].tolist())] for triple in found.tolist()], np.bool_)
    return np.compress(kept, found, axis=0)


def _dims_of(seen: Observed, triple: list[int]) -> tuple[int, int, int, int, int, DType | None] | None:
    """(b, s_q, s_kv, d_qk, d_v, type) of the attention that these three ops compute; None where they do not fit."""
    first, middle, last = (seen.table.signature_of(row) for row in triple)
    skipped = {"aten::baddbmm": 1}
    a, b = (first.shapes or ())[skipped.get(first.name, 0) :][:2], (last.shapes or ())[skipped.get(last.name, 0) :][:2]
    scores = (middle.shapes or ((),))[0]
    if [len(shape) for shape in (*a, *b)] != [3] * 4 or not scores:
        return None
    (batch, s_q, d_qk), (_, _, s_kv) = a
    if b[0] != (batch, s_q, s_kv) or scores[-1] != s_kv or int(np.prod(scores)) != batch * s_q * s_kv:
        return None
    return batch, s_q, s_kv, d_qk, b[1][2], first.dtype(skipped.get(first.name, 0))


def _attention_us(seen: Observed, triples: Ints) -> tuple[Floats, Floats]:
    """(expected, at least) of one fused attention, per triple; NaN where that is not known."""
    number: dict[tuple[int, ...], int] = {}
    models: list[SDPA] = []
    for triple in triples.tolist():
        dims = None if tuple(seen.table.signature[triple].tolist()) in number else _dims_of(seen, triple)
        if dims is not None:
            b, s_q, s_kv, d_qk, d_v, dtype = dims
            number[tuple(seen.table.signature[triple].tolist())] = len(models)
            models.append(SDPA(b=b, s_q=s_q, s_kv=s_kv, q_heads=1, kv_heads=1, d_qk=d_qk, d_v=d_v, dtype=dtype))
    expected, least = seen.expected_us(models)
    of_triple = [number[tuple(seen.table.signature[triple].tolist())] for triple in triples.tolist()]
    return expected[of_triple], least[of_triple]


#: Shortest cache that is taken for one.
_LEAST_LENGTH = 16


@built_in("growing_cache")
def growing_cache(seen: Observed) -> Iterator[Candidate]:
    """Gain: all of their time."""
    rows = seen.rows_where(seen.column("name") == "aten::cat", _grows)
    rest = Candidate(
        why="; the KV cache grows by one token at a time",
        claimed=seen.calls(rows, spares_launches=True),
    )
    yield from candidate_of_calls(seen, rows, "copy", rest, plural="copies")


def _grows(op: OpSignature) -> bool:
    """Whether the first of two tensors is long where the second has one row, and alike elsewhere."""
    tensors = op.shapes[0] if op.shapes else ()
    if len(tensors) != 2 or not all(isinstance(shape, tuple) for shape in tensors):
        return False
    first, second = tensors
    apart = [(a, b) for a, b in zip(first, second, strict=False) if a != b]
    return len(first) == len(second) >= 3 and len(apart) == 1 and apart[0][0] >= _LEAST_LENGTH and apart[0][1] == 1


#: Most rows of such a GEMM, and the share of the device time that they must have.
_FEW_ROWS, _LEAST_DECODE_SHARE = 16, 0.3


@built_in("low_batch_decode")
def low_batch_decode(seen: Observed) -> Iterator[Candidate]:
    """Gain, for the same number of tokens: twice the batch reads the weights half as often; at least none."""
    rows, models = seen.gemms
    bounds = zip(models.tolist(), rows["roofline_bound"].tolist(), strict=True)
    few = np.array([min(gemm.m, gemm.n) <= _FEW_ROWS and bound in ("memory", "launch") for gemm, bound in bounds], bool)
    if rows["kernel_us_sum"].to_numpy()[few].sum() <= _LEAST_DECODE_SHARE * seen.device_us:
        return
    rows = rows[few]
    rest = Candidate(
        why="; they have few rows and only read weights, so twice the batch would take hardly longer",
        claimed=seen.calls(rows, 0.5, low=0.0),
    )
    yield from candidate_of_calls(seen, rows, "GEMM", rest)


#: How many times as long as a step that only decodes.
_TIMES_A_DECODE_STEP = 2.0


@built_in("prefill_stalls_decode")
def prefill_stalls_decode(seen: Observed) -> Iterator[Candidate]:
    """Gain, for the decoding: what these steps take beyond one that only decodes; at least none."""
    engine = seen.context.window.engine
    phases = np.array([phase(step) or "" for step in engine.steps.said])
    took = engine.times.duration_ns
    decode, prompt = phases == DECODE, np.isin(phases, (PREFILL, MIXED))
    if len(took) != len(phases) or not decode.any() or not prompt.any():
        return
    usual = float(np.median(took[decode]))
    # A prompt holds nobody up before anything is decoded
    stalls = prompt & (took > _TIMES_A_DECODE_STEP * usual) & (np.maximum.accumulate(decode) | (phases == MIXED))
    # The engine's step of each device event, -1 for none
    step = np.searchsorted(engine.times.start_ns, seen.activity.start, side="right") - 1
    inside = (step >= 0) & (seen.activity.start < engine.times.end_ns[np.maximum(step, 0)])
    share = np.append(np.where(stalls, 1 - usual / np.maximum(took, 1), 0.0), 0.0)[np.where(inside, step, -1)]
    if not share.any():
        return
    count, longest = int(stalls.sum()), float(took[stalls].max() / NS_PER_US)
    yield Candidate(
        why=f"{counted(count, 'step')} with new prompts {takes(count)} up to {duration(longest)} and "
        f"{takes(count, 'delay')} decoding, which takes {duration(usual / NS_PER_US)} per step alone",
        claimed=seen.kernels(np.flatnonzero(share), share[share > 0], low=0.0, spares_launches=True),
        figures=(
            Said(what="steps with prompts", value=count, unit="count"),
            Said(what="longest of them", value=longest, unit="us"),
            Said(what="median step that decodes", value=usual / NS_PER_US, unit="us"),
        ),
    )
