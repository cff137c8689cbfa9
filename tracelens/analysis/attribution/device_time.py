"""Where the device's time went: computation, exposed communication, exposed copies, idle; conserved to the ns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import Bools, DeviceActivity
from tracelens.analysis.intervals import Spans, union_ns
from tracelens.lazy.records import dataclass
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Interval unions in ns. computation + exposed_comm + exposed_memcpy + idle = total, exactly.

    Communication is what runs NCCL, RCCL, DeepEP or custom collective kernels; memcpy is copies; computation is the
    rest, memset included. Time in which several ran counts for the first of computation, communication, memcpy.
    ``start_ns``: where the window begins, in the trace's own clock. ``left_out``: (start, end) of what is not counted.
    """

    total_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int
    total_comm_ns: int
    total_memcpy_ns: int
    start_ns: int
    left_out: tuple[tuple[int, int], ...] = ()

    @property
    def busy_ns(self) -> int:
        return self.computation_ns + self.exposed_comm_ns + self.exposed_memcpy_ns

    @property
    def window(self) -> tuple[int, int]:
        """(start, end) in ns, with what is left out."""
        return self.start_ns, self.start_ns + self.total_ns + sum(end - start for start, end in self.left_out)

    @property
    def spans(self) -> Spans:
        """The window without what is left out."""
        first, last = self.window
        opens = np.array([first, *(end for _, end in self.left_out)], np.int64)
        closes = np.array([*(start for start, _ in self.left_out), last], np.int64)
        kept = closes > opens
        return (opens[kept], closes[kept]) if kept.any() else (opens[:1], opens[:1])

    @property
    def idle_ns(self) -> int:
        return self.total_ns - self.busy_ns

    def frame(self) -> pd.DataFrame:
        """Rows as in the ``gpu_timeline`` sheet: type, time_us, percent_of_window."""
        import pandas as pd

        rows = {
            "computation_time": self.computation_ns,
            "exposed_comm_time": self.exposed_comm_ns,
            "exposed_memcpy_time": self.exposed_memcpy_ns,
            "busy_time": self.busy_ns,
            "idle_time": self.idle_ns,
            "total_time": self.total_ns,
            "total_comm_time": self.total_comm_ns,
            "total_memcpy_time": self.total_memcpy_ns,
        }
        return pd.DataFrame(
            {
                "type": list(rows),
                "time_us": [ns / NS_PER_US for ns in rows.values()],
                "percent_of_window": [100 * ns / self.total_ns if self.total_ns else 0.0 for ns in rows.values()],
            }
        )


def gpu_timeline(activity: DeviceActivity, span_ns: tuple[int, int] | None = None) -> Timeline:
    """``span_ns``: (start, end) of the window when it is wider than the events in it, else their own span."""
    start, end = activity.start, activity.end
    comm, copies = activity.communication, activity.memcpy & ~activity.communication
    compute = ~(comm | copies)

    def union(mask: Bools) -> int:
        return union_ns(start[mask], end[mask])

    computation = union(compute)
    with_comm = union(compute | comm)
    busy = union_ns(start, end)
    first = int(start.min()) if len(activity) else 0
    last = int(end.max()) if len(activity) else 0
    if span_ns is not None:
        first, last = min(first, span_ns[0]) if len(activity) else span_ns[0], max(last, span_ns[1])
    return Timeline(
        total_ns=last - first,
        computation_ns=computation,
        exposed_comm_ns=with_comm - computation,
        exposed_memcpy_ns=busy - with_comm,
        total_comm_ns=union(comm),
        total_memcpy_ns=union(copies),
        start_ns=first,
    )


def timeline_of(activity: DeviceActivity, window: tuple[int, int], left_out: Spans) -> Timeline:
    """The timeline of a window without the spans left out of it: what ran outside of it does not count."""
    first, last = window
    pairs = zip(left_out[0].tolist(), left_out[1].tolist(), strict=True)
    skipped = tuple(span for span in pairs if first <= span[0] < last)
    start, end = np.clip(activity.start, first, last), np.clip(activity.end, first, last)
    within = gpu_timeline(replace(activity, start=start, end=end), window)
    return replace(within, total_ns=within.total_ns - sum(b - a for a, b in skipped), left_out=skipped)
