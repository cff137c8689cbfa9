"""A batched GEMM, a softmax and a batched GEMM: attention whose scores go through HBM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted
from tracelens.analysis.verdict.summary import Said
from tracelens.dtypes import DType
from tracelens.perf_models.attention.sdpa import SDPA

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: Of those that launch kernels themselves.
_PARTS = {
    "aten::bmm": "bmm", "aten::baddbmm": "bmm",
    "aten::_softmax": "softmax", "aten::softmax": "softmax", "aten::_safe_softmax": "softmax",
}  # fmt: skip


@finding(
    "attention_from_parts",
    Advice(
        sees="A batched GEMM, a softmax and a batched GEMM that follow one another: attention whose scores go "
        "through HBM.",
        costs="The scores, of the square of the sequence length, are written and read several times; a fused "
        "kernel keeps "
        "them in registers and shared memory.",
        remedy="call torch.nn.functional.scaled_dot_product_attention (attn_implementation='sdpa'), or FlashAttention",
        wrong_when="The attention weights themselves are needed, or the mask is one that no fused kernel takes.",
        references=(
            "Dao et al., FlashAttention, 2022, arXiv:2205.14135",
            "https://pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html",
        ),
    ),
)
def attention_from_parts(seen: Observed) -> Iterator[Candidate]:
    """Gain: the time of what is launched from the first to the last of the three, less the roofline of one SDPA."""
    triples = _triples(seen)
    if seen.device is None or not len(triples):
        return
    triple_of_event = _launched_between(seen, triples[:, 0], triples[:, 2])
    events = np.flatnonzero(triple_of_event >= 0)
    of_triple = triple_of_event[events]
    spans_us = np.bincount(of_triple, seen.activity.duration_us(events), minlength=len(triples))
    expected_us, least_us = _attention_us(seen, triples)
    took_us = np.where(spans_us > 0, spans_us, np.nan)
    share, most = (np.nan_to_num(1 - us / took_us).clip(0, 1)[of_triple] for us in (expected_us, least_us))
    time_us = float(spans_us.sum())
    yield Candidate(
        why=f"bmm + softmax + bmm, {counted(len(triples), 'time')}, takes {seen.share_text(time_us)}: "
        "it is attention whose scores go through HBM",
        claimed=seen.kernels(events, share, high=most),
        computed="time of what is launched from the first to the last of the three, less one fused attention by the "
        "tile model; at most less its roofline",
        figures=(Said(what="bmm, softmax, bmm", value=len(triples), unit="count"), seen.gpu_share(time_us)),
        evidence=seen.evidence(np.unique(seen.row_of_event[events[seen.row_of_event[events] >= 0]])),
        row=int(triples[0, 1]),
    )


def _triples(seen: Observed) -> Ints:
    """Table rows of (bmm, softmax, bmm) that follow one another on a thread and fit, a triple per line."""
    table = seen.table
    rows = seen.rows_named(_PARTS)
    ran = np.zeros(len(table), bool)
    ran[seen.activity.op[seen.activity.op >= 0]] = True
    rows = rows[ran[rows]]
    rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
    if len(rows) < 3:
        return np.zeros((0, 3), np.int64)
    is_bmm = np.array([_PARTS[table.names[code]] == "bmm" for code in table.name[rows].tolist()], bool)
    lane = table.lane[rows]
    at = np.flatnonzero(is_bmm[:-2] & ~is_bmm[1:-1] & is_bmm[2:] & (lane[:-2] == lane[2:]))
    found = np.stack((rows[at], rows[at + 1], rows[at + 2]), axis=1).astype(np.int64)
    fits: dict[tuple[int, ...], bool] = {}
    for triple in found.tolist():
        key = _signatures(seen, triple)
        if key not in fits:
            fits[key] = _dims_of(seen, triple) is not None
    kept = np.array([fits[_signatures(seen, triple)] for triple in found.tolist()], np.bool_)
    return np.compress(kept, found, axis=0)


def _signatures(seen: Observed, triple: list[int]) -> tuple[int, ...]:
    return tuple(seen.table.signature[triple].tolist())


def _dims_of(seen: Observed, triple: list[int]) -> tuple[int, int, int, int, int, DType | None] | None:
    """(b, s_q, s_kv, d_qk, d_v, type) of the attention whose parts these ops are; None where they do not fit."""
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
        dims = None if _signatures(seen, triple) in number else _dims_of(seen, triple)
        if dims is not None:
            b, s_q, s_kv, d_qk, d_v, dtype = dims
            number[_signatures(seen, triple)] = len(models)
            models.append(SDPA(b=b, s_q=s_q, s_kv=s_kv, q_heads=1, kv_heads=1, d_qk=d_qk, d_v=d_v, dtype=dtype))
    expected, least = seen.expected_us(models)
    of_triple = [number[_signatures(seen, triple)] for triple in triples.tolist()]
    return expected[of_triple], least[of_triple]


def _launched_between(seen: Observed, first: Ints, last: Ints) -> Ints:
    """Per device event the number of the pair, from whose ``first`` op's start to ``last`` op's end a thread launched
    it; -1 for none.
    """
    table, activity = seen.table, seen.activity
    found = np.full(len(activity), -1, np.int64)
    linked = np.flatnonzero(activity.op >= 0)
    op = activity.op[linked]
    for lane in np.unique(table.lane[first]).tolist():
        mine = np.flatnonzero(table.lane[first] == lane)
        starts, ends = table.start_ns[first[mine]], table.ends_ns(last[mine])
        here = np.flatnonzero(table.lane[op] == lane)
        began = table.start_ns[op[here]]
        at = np.searchsorted(starts, began, side="right") - 1
        inside = (at >= 0) & (began < ends[np.maximum(at, 0)])
        found[linked[here[inside]]] = mine[at[inside]]
    return found
