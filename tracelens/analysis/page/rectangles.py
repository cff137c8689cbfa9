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
    while True:
        # A long event ends the run of short ones before it; short ones share a rectangle within a time slot of a lane
        is_long = end - start >= below
        slot = start // below
        fresh = is_long | (lane != np.roll(lane, 1)) | (slot != np.roll(slot, 1)) | np.roll(is_long, 1)
        fresh[0] = True
        group = np.cumsum(fresh) - 1
        if group[-1] < max_rects or below >= duration:
            return group, below
        below *= 2
