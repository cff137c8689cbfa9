"""Copies that only bring a tensor into another memory layout."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.signature import OpSignature


@finding(
    "layout_copies",
    Advice(
        sees="Copies within the device of one type whose source and target lie differently in memory: contiguous() and "
        "the like, after a transpose or a slice.",
        costs="The tensor is read and written once, one side of it with strides, and computes nothing.",
        remedy="keep the layout that the next op wants (no transpose + contiguous), or an op that takes strides",
        wrong_when="The next kernel is slower on strided input than the copy takes.",
        references=("https://pytorch.org/docs/stable/tensor_view.html",),
    ),
)
def layout_copies(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    rows = seen.rows_where((seen.column("name") == "aten::copy_") & (seen.column("category") != COPY))
    rows = rows[np.array([_rearranges(op) for op in seen.signatures(rows)], np.bool_)]
    rest = Candidate(
        why=": they only change a tensor's memory layout",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
    )
    yield from candidate_of_calls(seen, rows, "copy", rest, plural="copies")


def _rearranges(op: OpSignature) -> bool:
    """Whether two tensors of one shape and type lie differently in memory, the second of them without gaps."""
    to, of = op.stride(0), op.stride(1)
    if not (op.has(0) and op.has(1) and to and of) or op.dtype_text(0) != op.dtype_text(1):
        return False
    shape = op.shape_or_scalar(0)
    return len(shape) > 1 and shape == op.shape_or_scalar(1) and to != of and 0 not in of
