"""Copies that only bring a tensor into another memory layout."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator

import numpy as np

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding


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
    rows = seen.rows[(seen.rows["name"] == "aten::copy_") & (seen.rows["category"] != COPY)]
    recorded = zip(rows["input_dims"], rows["input_types"], rows["input_strides"], strict=True)
    rows = rows[np.array([_rearranges(*texts) for texts in recorded], np.bool_)]
    if rows.empty:
        return
    text, figures = seen.said_of(rows, "copy")
    yield Candidate(
        why=f"{text.replace('copys', 'copies')}: they only change a tensor's memory layout",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
        figures=figures,
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )


def _rearranges(dims: str | None, types: str | None, strides: str | None) -> bool:
    """Whether two tensors of one shape and type lie differently in memory, one of them without gaps."""
    if not dims or not types or not strides:
        return False
    shapes, kinds, steps = (literal_eval(text)[:2] for text in (dims, types, strides))
    if len(shapes) < 2 or shapes[0] != shapes[1] or kinds[0] != kinds[1] or len(steps) < 2:
        return False
    return bool(len(shapes[0]) > 1 and steps[0] != steps[1] and steps[1] and 0 not in steps[1])
