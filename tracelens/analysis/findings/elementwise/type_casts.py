"""Kernels that only change the type of a tensor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.signature import OpSignature

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
    rows = seen.rows_where(seen.named("aten::copy_", "aten::_to_copy") & (seen.column("category") != COPY))
    rows = rows[np.array([_casts(op) for op in seen.signatures(rows)], np.bool_)]
    rest = Candidate(
        why=": they only change a tensor's type",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
    )
    yield from candidate_of_calls(seen, rows, "cast", rest)


def _casts(op: OpSignature) -> bool:
    types = {op.dtype_text(0), op.dtype_text(1)}
    return len(types) == 2 and types <= _FLOATS
