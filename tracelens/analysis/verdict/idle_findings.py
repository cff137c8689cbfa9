"""What a report says first about idle time: a finding per cause, none with more to gain than the time it speaks of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.analysis.idle.idle_time import UNKNOWN
from tracelens.analysis.verdict.summary import Finding, Said

if TYPE_CHECKING:
    import pandas as pd

#: Percent of the window from which idle time of a cause is a finding.
_LEAST_PERCENT = 2.0


def idle_findings(causes: pd.DataFrame, divisor: int) -> list[Finding]:
    """A finding per row of ``idle_causes`` that is long enough; where none is alone, one of all idle time."""
    percent = causes["percent_of_window"]
    long, total = causes[percent > _LEAST_PERCENT], float(percent.sum())
    if long.empty and total > _LEAST_PERCENT:
        why = f"GPU idle {total:.0f} %: several causes, longest gap {duration(causes['max_us'].max())}"
        most = Said(what="longest gap", value=float(causes["max_us"].max()), unit="us")
        return [_finding("idle", float(causes["idle_us"].sum()) / divisor, why, (_idle_share(total), most))]
    rows = zip(
        *(long[key].tolist() for key in ("cause", "percent_of_window", "gaps", "max_us", "idle_us")), strict=True
    )
    return [
        _finding(
            f"idle: {cause}",
            idle_us / divisor,
            f"GPU idle {share:.0f} %: {'cause unknown' if cause == UNKNOWN else cause}; "
            f"{counted(gaps, 'gap')}, the longest {duration(longest)}",
            (
                _idle_share(share),
                Said(what="gaps", value=gaps, unit="count"),
                Said(what="longest", value=longest, unit="us"),
            ),
        )
        for cause, share, gaps, longest, idle_us in rows
    ]


def _finding(kind: str, idle_us: float, why: str, figures: tuple[Said, ...]) -> Finding:
    return Finding(
        id="idle", kind=kind, op=None, gain_us=idle_us, certainty="low", why=why, time_us=idle_us, figures=figures
    )


def _idle_share(percent: float) -> Said:
    return Said(what="idle share of the time", value=percent / 100, unit="share")


def counted(count: int, what: str) -> str:
    """A number of things, in words.

    >>> counted(1, "gap"), counted(1200, "gap")
    ('1 gap', '1,200 gaps')
    """
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def duration(us: float) -> str:
    """A length of time in µs, ms or s, with up to three digits.

    >>> duration(54), duration(6_543), duration(493_284), duration(12_190_000)
    ('54 µs', '6.54 ms', '493 ms', '12.2 s')
    """
    for unit, name in ((1.0, "µs"), (1e3, "ms")):
        if us < 999.5 * unit:
            return f"{us / unit:.3g} {name}"
    return f"{us / 1e6:,.1f} s" if us < 999.5e6 else f"{us / 1e6:,.0f} s"


def percent(share: float, decimals: int = 0) -> str:
    """A share, in percent.

    >>> percent(0.123), percent(0.123, 1)
    ('12 %', '12.3 %')
    """
    return f"{100 * share:.{decimals}f} %"
