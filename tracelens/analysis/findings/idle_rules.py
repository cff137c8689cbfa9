"""Findings about idle time of one cause, scattered gaps, and waits that were not recorded."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.rule import Candidate, Observed, built_in, built_in_advice
from tracelens.analysis.grouping import numbered
from tracelens.analysis.idle.idle_time import CAUSES, UNKNOWN, UNRECORDED
from tracelens.analysis.sheets import device_timeline
from tracelens.analysis.verdict.summary import Evidence, Said, counted, duration, percent
from tracelens.trace.provenance import lacks_sync_events
from tracelens.units import NS_PER_US

#: Share of the window from which idle time of a cause is a finding.
LEAST_SHARE = 0.02
#: Share of the window below which a cause among others is not named.
_LEAST_NAMED = 0.005
#: Share of idle time that its remedy spares for sure where nothing prices it.
OPEN_ENDED = 0.0


def idle_of_cause(seen: Observed, cause: str, parts: npt.NDArray[np.bool_] | None = None) -> Iterator[Candidate]:
    """All idle time of a cause, or these ``parts`` of idle time, where it is long enough.

    What the parts wait for is named as in the sheet of causes, whatever the rule calls it.
    """
    parts = seen.idle_of(cause) if parts is None else parts
    share = float(seen.idle_ns[parts].sum() / max(1, seen.window_ns))
    if share <= LEAST_SHARE:
        return
    length = _by_gap(seen, parts)
    gaps = len(length)
    longest = float(length.max() / NS_PER_US)
    causes = _shares(seen, parts)
    yield Candidate(
        why=f"GPU idle {percent(share)}: {_named(causes)}; {counted(gaps, 'gap')}, the longest {duration(longest)}",
        claimed=seen.idle_time(parts, low=OPEN_ENDED),
        computed="all idle time of this cause; at least none of it",
        certainty="low",
        figures=(
            idle_share(share),
            Said(what="gaps", value=gaps, unit="count"),
            Said(what="longest", value=longest, unit="us"),
            *(Said(what=f"idle: {each}", value=part, unit="share") for each, part in causes.items() if len(causes) > 1),
        ),
        evidence=idle_evidence(seen, parts),
        row=longest_row(seen, parts),
        is_priced=cause not in (UNKNOWN, UNRECORDED),
    )


def _shares(seen: Observed, parts: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Cause -> share of the window, the largest first, of the causes of these parts that are worth a name."""
    length = np.where(parts, seen.idle_ns, 0)
    share = np.bincount(seen.idle.cause, length, len(CAUSES)) / max(1, seen.window_ns)
    order = np.argsort(-share, kind="stable")
    worth = [code for code in order.tolist() if share[code] > _LEAST_NAMED] or order[:1].tolist()
    return {CAUSES[code]: float(share[code]) for code in worth}


def _named(causes: dict[str, float]) -> str:
    names = ["cause unknown" if cause == UNKNOWN else cause for cause in causes]
    if len(names) == 1:
        return names[0]
    return " + ".join(f"{name} {percent(share)}" for name, share in zip(names, causes.values(), strict=True))


def _by_gap(seen: Observed, parts: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How long (ns) these parts are in each gap that has one: parts of a gap touch, gaps have work between them."""
    idle = seen.idle
    begins = np.r_[True, idle.start[1:] != idle.end[:-1]][: len(idle.start)]
    gap = numbered(np.cumsum(begins)[parts])
    return np.bincount(gap, seen.idle_ns[parts]).astype(np.int64)


def longest_row(seen: Observed, parts: npt.NDArray[np.bool_]) -> int | None:
    """Table row of the launch, or of the device event, that the longest of these parts waited for."""
    at = np.flatnonzero(parts)
    row = int(seen.idle.row[at[seen.idle_ns[at].argmax()]]) if len(at) else -1
    return row if row >= 0 else None


def idle_evidence(seen: Observed, parts: npt.NDArray[np.bool_]) -> tuple[Evidence, ...]:
    """The causes of these parts in the sheet of causes."""
    causes = [CAUSES[code] for code in np.unique(seen.idle.cause[parts]).tolist()]
    return tuple(Evidence(sheet=device_timeline.IDLE_CAUSES_TITLE, row={"cause": cause}) for cause in causes)


def idle_share(share: float) -> Said:
    """Of the window."""
    return Said(what="idle share of the time", value=float(share), unit="share")


def rules_of_causes(but: Collection[str]) -> list[Callable[[Observed], Iterator[Candidate]]]:
    """A rule per cause of idle time that is in ``advice.toml``, ``but`` of kinds that have a function of their own."""
    return [_rule(kind) for kind in built_in_advice() if kind not in but]


def _rule(kind: str) -> Callable[[Observed], Iterator[Candidate]]:
    @built_in(kind)
    def idle(seen: Observed) -> Iterator[Candidate]:
        """Idle time of this cause."""
        return idle_of_cause(seen, kind.removeprefix("idle: "))

    return idle


@built_in("idle")
def scattered_idle(seen: Observed) -> Iterator[Candidate]:
    """All idle time, where no cause of it is long enough alone."""
    causes = seen.context.frames[device_timeline.IDLE_CAUSES_TITLE]
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
        evidence=tuple(
            Evidence(sheet=device_timeline.IDLE_CAUSES_TITLE, row={"cause": str(cause)}) for cause in causes["cause"]
        ),
    )


_RECORD_SYNC = (
    "record enable_cuda_sync_events=True (torch.profiler's _ExperimentalConfig), or look at the other streams"
)


@built_in("idle: device wait, cause not recorded")
def unrecorded_wait(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    remedy = _RECORD_SYNC if lacks_sync_events(seen.table) else None
    for candidate in idle_of_cause(seen, UNRECORDED, seen.idle_of(UNRECORDED)):
        yield replace(candidate, remedy=remedy)
