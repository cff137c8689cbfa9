"""When and why the device was idle during one step: rectangles to draw."""

from __future__ import annotations

import numpy as np

from tracelens.analysis.idle.idle_time import CAUSES, IdleParts
from tracelens.analysis.intervals import Ints
from tracelens.analysis.page.rectangles import rectangles
from tracelens.lazy.records import dataclass

MAX_RECTS = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepIdle:
    """One rectangle per part of a gap, or per run of short ones of a cause (index into ``CAUSES``), cause by cause.

    ``start_ns`` and ``end_ns`` count from the start of ``window``. ``idle_ns``: the time in between in which the device
    was idle for this cause; all of it, unless several parts share the rectangle.
    """

    window: tuple[int, int]
    start_ns: Ints
    end_ns: Ints
    idle_ns: Ints
    cause: Ints

    @property
    def by_cause(self) -> dict[str, int]:
        """Idle ns of each cause that occurs."""
        return {CAUSES[code]: int(self.idle_ns[self.cause == code].sum()) for code in np.unique(self.cause).tolist()}


def step_idle(parts: IdleParts, window: tuple[int, int], *, max_rects: int = MAX_RECTS) -> StepIdle:
    """``parts`` are those of ``window``."""
    order = np.lexsort((parts.start, parts.cause))
    start, end, cause = (
        parts.start[order] - window[0],
        parts.end[order] - window[0],
        parts.cause[order].astype(np.int64),
    )
    group, _ = rectangles(start, end, cause, window[1] - window[0], max_rects)
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    return StepIdle(
        window=window,
        start_ns=start[firsts],
        end_ns=np.maximum.reduceat(end, firsts) if len(firsts) else end,
        idle_ns=np.add.reduceat(end - start, firsts) if len(firsts) else end,
        cause=cause[firsts],
    )
