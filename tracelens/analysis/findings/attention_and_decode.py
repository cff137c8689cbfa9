"""Findings about attention (unfused, growing KV cache) and decoding (small batches, stalls by prefills)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.rule import Candidate, Observed, built_in, candidate_of_calls
from tracelens.analysis.grouping import last_begun
from tracelens.analysis.intervals import Floats, Ints
from tracelens.analysis.reading.added_ops import rows_named
from tracelens.analysis.reading.engine_steps import DECODE, MIXED, PREFILL, phase
from tracelens.analysis.verdict.summary import Said
from tracelens.perf_models.sdpa import SDPA
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature
from tracelens.types.units import NS_PER_US, counted, duration, takes

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
        computed="time of what is launched from the first bmm to the second, less one fused attention by the tile "
        "model; at most less its roofline",
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
        key = _part_signatures(seen, triple)
        if key not in fits:
            fits[key] = _dims_of(seen, triple) is not None
    kept = np.array([fits[_part_signatures(seen, triple)] for triple in found.tolist()], np.bool_)
    return np.compress(kept, found, axis=0)


def _part_signatures(seen: Observed, triple: list[int]) -> tuple[int, ...]:
    return tuple(seen.table.signature[triple].tolist())


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
        dims = None if _part_signatures(seen, triple) in number else _dims_of(seen, triple)
        if dims is not None:
            b, s_q, s_kv, d_qk, d_v, dtype = dims
            number[_part_signatures(seen, triple)] = len(models)
            models.append(SDPA(b=b, s_q=s_q, s_kv=s_kv, q_heads=1, kv_heads=1, d_qk=d_qk, d_v=d_v, dtype=dtype))
    expected, least = seen.expected_us(models)
    of_triple = [number[_part_signatures(seen, triple)] for triple in triples.tolist()]
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
        computed="their time: a cache of fixed pages is written in place",
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
        computed="for the same tokens: half of their time, as twice the batch reads the weights half as often",
        certainty="low",
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
        computed="what these steps take beyond one that only decodes; at least none of it",
        certainty="low",
        figures=(
            Said(what="steps with prompts", value=count, unit="count"),
            Said(what="longest of them", value=longest, unit="us"),
            Said(what="median step that decodes", value=usual / NS_PER_US, unit="us"),
        ),
    )
