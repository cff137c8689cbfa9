"""Where the device's time went: computation, exposed communication, exposed copies, idle; conserved to the ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.analysis.activity import Bools, DeviceActivity
from tracelens.analysis.intervals import union_ns
from tracelens.units import NS_PER_MS

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Interval unions in ns. computation + exposed_comm + exposed_memcpy + idle = total, exactly.

    Communication is what runs NCCL, RCCL, DeepEP or custom collective kernels; memcpy is copies; computation is the
    rest, memset included. Time in which several ran counts for the first of computation, communication, memcpy.
    ``start_ns``: where the window begins, in the trace's own clock.
    """

    total_ns: int
    computation_ns: int
    exposed_comm_ns: int
    exposed_memcpy_ns: int
    total_comm_ns: int
    total_memcpy_ns: int
    start_ns: int = 0

    @property
    def busy_ns(self) -> int:
        return self.computation_ns + self.exposed_comm_ns + self.exposed_memcpy_ns

    @property
    def window(self) -> tuple[int, int]:
        """(start, end) in ns."""
        return self.start_ns, self.start_ns + self.total_ns

    @property
    def idle_ns(self) -> int:
        return self.total_ns - self.busy_ns

    def frame(self) -> pd.DataFrame:
        """Rows as in the ``gpu_timeline`` sheet: type, time_ms, percent of total_time."""
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
                "time_ms": [ns / NS_PER_MS for ns in rows.values()],
                "percent": [100 * ns / self.total_ns if self.total_ns else 0.0 for ns in rows.values()],
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
