"""The views of a trace beside its ops: why it idled, what launching cost, what ran at once. None needs a perf model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.analysis.activity import DeviceActivity
from tracelens.analysis.host_calls import host_calls
from tracelens.analysis.idle import idle_gaps
from tracelens.analysis.launches import launch_overhead
from tracelens.analysis.stream_overlap import stream_overlap
from tracelens.analysis.summary import Unanswered
from tracelens.analysis.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Views:
    """Frames by sheet name, and what could not be shown for want of a recording."""

    frames: dict[str, pd.DataFrame]
    missing: tuple[Unanswered, ...]


def views(trace: Trace, activity: DeviceActivity, everything: DeviceActivity, window: tuple[int, int]) -> Views:
    """All views of the device events of ``window`` (start, end in ns); ``everything`` are those of the whole file."""
    table, tree = trace.table, trace.tree
    host = host_calls(table, tree)
    gaps = idle_gaps(table, tree, host, activity, everything, window)
    found = {
        "idle_causes": gaps.by_cause(),
        "idle_gaps": gaps.longest(table, tree),
        "launch_overhead": launch_overhead(table, tree, activity),
        "stream_overlap": stream_overlap(table, activity),
    }
    missing = []
    if found["launch_overhead"] is None:
        missing.append(
            Unanswered(question="launch overhead", because="no runtime calls were recorded (activities lacked the CPU)")
        )
    return Views(frames={name: frame for name, frame in found.items() if frame is not None}, missing=tuple(missing))
