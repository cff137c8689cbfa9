"""What the sheets of a job are made from. What several of them need is made once, when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.clocks import Clocks
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.rank_summary import RankSummary
from tracelens.analysis.ranks.sheets import rank_sheets
from tracelens.analysis.ranks.waits import Instances, instances, waiting_ns
from tracelens.analysis.sheets.context import Frames
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class JobContext:
    """The ranks of a job by number, and their communication calls on the clock of the first host."""

    ranks: Mapping[int, RankSummary]
    calls: JobCalls
    clocks: Clocks

    @cached_property
    def found(self) -> Instances:
        """The matched collectives."""
        return instances(self.calls)

    @cached_property
    def waited(self) -> Ints:
        """How long (ns) each call waited for the last rank."""
        return waiting_ns(self.calls, self.found)

    @cached_property
    def frames(self) -> Frames:
        """The frames of all sheets by title."""
        return Frames(rank_sheets(), self)
