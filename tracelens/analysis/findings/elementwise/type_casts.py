"""Kernels that only change the type of a tensor."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator

import numpy as np

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding

_FLOATS = {"float", "double", "c10::Half", "c10::BFloat16"}


@finding(
    "type_casts",
    Advice(
        sees="Copies within the device whose source and target differ in floating type.",
        costs="The tensor is read in one type and written in another, and computes nothing.",
        remedy="hold weights in the type they are used in, cast once outside of the loop, or torch.compile",
        wrong_when="The cast feeds a reduction that needs the wider type, and the kernel before cannot write it.",
        references=("https://pytorch.org/docs/stable/amp.html",),
    ),
)
def type_casts(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    rows = seen.rows[seen.rows["name"].isin(("aten::copy_", "aten::_to_copy")) & (seen.rows["category"] != COPY)]
    rows = rows[np.array([_casts(text) for text in rows["input_types"]], np.bool_)]
    if rows.empty:
        return
    text, figures = seen.said_of(rows, "cast")
    yield Candidate(
        why=f"{text}: kernels that only change a tensor's type",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
        figures=figures,
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )


def _casts(types: str | None) -> bool:
    first, second = (*(literal_eval(types) if types else ()), "", "")[:2]
    return first != second and {first, second} <= _FLOATS
