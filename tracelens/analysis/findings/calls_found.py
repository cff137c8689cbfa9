"""Distinct calls that a rule picked out of all: one candidate of them, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.wording import counted, takes
from tracelens.analysis.verdict.summary import Said

if TYPE_CHECKING:
    import pandas as pd


def candidate_of_calls(
    seen: Observed, rows: pd.DataFrame, what: str, rest: Candidate, plural: str = ""
) -> Iterator[Candidate]:
    """``rest``, with how many ``what`` these of ``rows`` are and their share before its sentence, and with their proof.

    None where there are no rows.
    """
    if rows.empty:
        return
    calls, time_us = int(rows["operation_count"].sum()), float(rows["kernel_us_sum"].sum())
    yield replace(
        rest,
        why=f"{counted(calls, what, plural)} {takes(calls)} {seen.share_text(time_us)}{rest.why}",
        figures=(Said(what=what, value=calls, unit="count"), seen.gpu_share(time_us), *rest.figures),
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )
