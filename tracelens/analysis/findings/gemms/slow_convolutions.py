"""Convolutions that take longer than they need to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.calls_found import candidate_of_calls
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import percent
from tracelens.analysis.verdict.summary import Said

#: Share of the roofline from which a convolution is said to be fine.
_FINE = 0.5


@finding(
    "slow_convolutions",
    Advice(
        sees="Convolutions at less than half of their roofline.",
        costs="Without autotuning the library takes the kernel that its heuristic names, which may be several times "
        "slower than its best.",
        remedy="torch.backends.cudnn.benchmark = True (MIOpen: MIOPEN_FIND_ENFORCE=3), channels_last, BF16, "
        "larger batch",
        wrong_when="Shapes change from step to step: every new one is tuned anew.",
        references=("https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    ),
)
def slow_convolutions(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time above what the tile model expects."""
    is_conv = np.array([str(category).startswith("CONV") for category in seen.column("category")], np.bool_)
    rows = seen.rows_where(is_conv & (seen.column("roofline_us") < _FINE * seen.column("kernel_us_mean")))
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
        computed="their time above what the tile model expects, at most that above the roofline",
        certainty="low",
        figures=(Said(what="of the roofline", value=roofline, unit="share"),),
    )
    yield from candidate_of_calls(seen, rows, "convolution call", rest)
