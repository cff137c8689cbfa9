"""Idle time of one cause: what most rules on idle time say of theirs."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.wording import counted, duration, percent
from tracelens.analysis.idle.idle_time import UNKNOWN
from tracelens.analysis.sheets.timeline import idle_causes
from tracelens.analysis.verdict.summary import Evidence, Said

#: Share of the window from which idle time of a cause is a finding.
LEAST_SHARE = 0.02
#: Share of idle time that its remedy spares for sure where nothing prices it.
OPEN_ENDED = 0.0


def idle_of_cause(seen: Observed, cause: str) -> Iterator[Candidate]:
    """All idle time of a cause, where it is long enough."""
    causes = seen.context.frames[idle_causes.TITLE]
    rows = causes[(causes["cause"] == cause) & (causes["percent_of_window"] > 100 * LEAST_SHARE)]
    for share, gaps, longest in zip(rows["percent_of_window"] / 100, rows["gaps"], rows["max_us"], strict=True):
        what = "cause unknown" if cause == UNKNOWN else cause
        yield Candidate(
            why=f"GPU idle {percent(share)}: {what}; {counted(int(gaps), 'gap')}, the longest {duration(longest)}",
            claimed=seen.idle_time(seen.idle_of(cause), low=OPEN_ENDED),
            computed="all idle time of this cause; at least none of it",
            certainty="low",
            figures=(
                idle_share(share),
                Said(what="gaps", value=int(gaps), unit="count"),
                Said(what="longest", value=float(longest), unit="us"),
            ),
            evidence=(Evidence(sheet=idle_causes.TITLE, row={"cause": cause}),),
        )


def idle_share(share: float) -> Said:
    """Of the window."""
    return Said(what="idle share of the time", value=float(share), unit="share")
