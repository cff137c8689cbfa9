"""Many intervals drawn as few rectangles: short neighbors of a lane share one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints

#: Width of a merged rectangle, as a share of the window, with which merging begins; doubled until few enough are left.
_FIRST_SHARE = 1 / 8192


def rectangles(
    start: Ints, end: Ints, lane: npt.NDArray[np.integer], duration: int, max_rects: int
) -> tuple[Ints, int]:
    """The rectangle of each interval, from 0 without gaps, and the length below which intervals were merged.

    They stand lane by lane in order of start; ``start`` and ``end`` count from the beginning of ``duration``.
    """
    if len(start) <= max_rects:
        return np.arange(len(start)), 0
    below = max(1, int(duration * _FIRST_SHARE))
    length, slot = end - start, start // below
    is_other_lane = np.r_[True, lane[1:] != lane[:-1]]
    while True:
        # A long event ends the run of short ones before it; short ones share a rectangle within a time slot of a lane
        is_long = length >= below
        fresh = is_long | is_other_lane
        fresh[1:] |= (slot[1:] != slot[:-1]) | is_long[:-1]
        if np.count_nonzero(fresh) <= max_rects or below >= duration:
            return np.cumsum(fresh) - 1, below
        below *= 2
        slot >>= 1
