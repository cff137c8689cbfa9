"""Idle time of a device that had work in its queue, while a thread sat in a call that waits for the device."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.idle.idle_time import EVENT_WAIT, UNRECORDED

Ints = npt.NDArray[np.int64]

#: Shorter waits are what an event takes anyhow.
_LONG_NS = 100_000
#: Share of the idle time that the call must have lasted for.
_MOST_OF_IT = 0.9


def blocking_call_of(seen: Observed) -> Ints:
    """Per part of idle time the table row of the blocking call that lasted for most of it; -1 for none.

    Of parts in which the device waited for an event, or for something not recorded.
    """
    found = np.full(len(seen.idle.start), -1, np.int64)
    length = seen.idle_ns
    waits = np.flatnonzero(seen.idle_of(EVENT_WAIT, UNRECORDED) & (length > _LONG_NS))
    table = seen.context.recorded.table
    calls = np.flatnonzero(seen.context.host.blocking & (table.duration_ns > _LONG_NS))
    if not len(waits) or not len(calls):
        return found
    start, end = table.start_ns[calls], table.ends_ns(calls)
    for at in waits.tolist():
        shared = np.minimum(end, seen.idle.end[at]) - np.maximum(start, seen.idle.start[at])
        if shared.max() >= _MOST_OF_IT * length[at]:
            found[at] = calls[shared.argmax()]
    return found
