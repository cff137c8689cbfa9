"""The GPU is idle for several causes, none of them long alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import LEAST_SHARE, OPEN_ENDED, idle_share
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import duration, percent
from tracelens.analysis.sheets.timeline import idle_causes
from tracelens.analysis.verdict.summary import Evidence, Said


@finding(
    "idle",
    Advice(
        sees="The GPU is idle for several causes, none of them long alone.",
        is_general=True,
        costs="The device does nothing for this time.",
        remedy="see idle_causes; fewer and longer kernels and a larger batch help against most of them",
        wrong_when="The steps are few and short: set-up weighs more than it does later.",
    ),
)
def scattered_idle(seen: Observed) -> Iterator[Candidate]:
    """All idle time, where no cause of it is long enough alone."""
    causes = seen.context.frames[idle_causes.TITLE]
    share = float(causes["percent_of_window"].sum()) / 100
    if share <= LEAST_SHARE or (causes["percent_of_window"] > 100 * LEAST_SHARE).any():
        return
    longest = float(causes["idle_us_max"].max())
    yield Candidate(
        why=f"GPU idle {percent(share)}: several causes, longest gap {duration(longest)}",
        claimed=seen.idle_time(np.ones(len(seen.idle.start), bool), low=OPEN_ENDED),
        computed="all idle time; at least none of it",
        certainty="low",
        figures=(idle_share(share), Said(what="longest gap", value=longest, unit="us")),
        evidence=tuple(Evidence(sheet=idle_causes.TITLE, row={"cause": str(cause)}) for cause in causes["cause"]),
    )
