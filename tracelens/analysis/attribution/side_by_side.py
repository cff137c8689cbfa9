"""How many device events of a kind run at a time: on one device they share what it can do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import Codes, distinct_rows
from tracelens.analysis.intervals import union_by_group
from tracelens.trace.table import TraceTable

Floats = npt.NDArray[np.float64]


def devices_of(activity: DeviceActivity, table: TraceTable) -> tuple[Codes, list[str]]:
    """(the device of each event, the names of the devices): a process of the file each."""
    names = sorted({str(table.lanes[lane][0]) for lane in distinct_rows(table.lane[activity.rows], len(table.lanes))})
    of_lane = np.array([names.index(str(pid)) if str(pid) in names else -1 for pid, _ in table.lanes], np.int32)
    return of_lane[table.lane[activity.rows]], names


def at_a_time(activity: DeviceActivity, table: TraceTable, group: npt.NDArray[np.integer], groups: int) -> Floats:
    """Of each group its summed durations over the time in which one of it at least ran, on each device by itself; 1 of
    a group without events. Events of group -1 are in none.

    A rate over summed durations, times this, is a rate over the time that they took.
    """
    device, names = devices_of(activity, table)
    mine = np.flatnonzero((group >= 0) & (activity.end > activity.start))
    start, end, of = activity.start[mine], activity.end[mine], group[mine].astype(np.int64)
    took = np.bincount(of, end - start, groups)
    busy = union_by_group(of * len(names) + device[mine], start, end, groups * len(names))
    busy_of_all = busy.reshape(groups, -1).sum(axis=1)
    found: Floats = np.divide(took, busy_of_all, out=np.ones(groups), where=busy_of_all > 0)
    return found
