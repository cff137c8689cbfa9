"""Allocator events: read into columns, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace
from tracelens.analysis.sheets import device_memory
from tracelens.analysis.sheets.device_memory import memory_summary, memory_timeline

Build = Callable[[], Builder]


def memory(builder: Builder, at: float, size: int, total: int | None = None, kind: int = 1, tid: int = 1) -> Builder:
    args: dict[str, Any] = {"Bytes": size, "Addr": 1, "Device Id": 0 if kind else -1, "Device Type": kind}
    if total is not None:
        args |= {"Total Allocated": total, "Total Reserved": 8_000_000}
    builder.events.append(
        {
            "ph": "i",
            "s": "t",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "pid": 1,
            "tid": tid,
            "ts": at,
            "args": args,
        }
    )
    return builder


def test_allocator_events_are_columns(build: Build) -> None:
    builder = memory(memory(build().op("aten::mm", 0, 10), 2.5, 512, 1512), 8, -512)
    found = builder.trace().table.allocations
    assert (found.time_ns.tolist(), found.bytes.tolist()) == ([2500, 8000], [512, -512])
    assert (found.allocated.tolist(), found.reserved.tolist()) == ([1512, -1], [8_000_000, -1])
    assert (found.device_type.tolist(), found.device.tolist()) == ([1, 1], [0, 0])


def test_the_peak_names_its_time_and_the_innermost_op(build: Build) -> None:
    builder = build().op("aten::linear", 0, 50).op("aten::empty", 10, 5).op("aten::relu", 60, 10)
    memory(builder, 12, 3_000_000, 5_000_000)  # inside aten::empty; 2 MB were there before
    memory(builder, 30, -1_000_000, 4_000_000)  # inside aten::linear
    memory(builder, 65, 500_000, 4_500_000)
    memory(builder, 80, 100, kind=0)
    trace = builder.trace()
    frame = memory_summary(trace.table, trace.tree)
    assert frame is not None
    shown = ["device", "allocations", "releases", "first_mb", "peak_mb", "last_mb", "peak_at_us", "peak_op"]
    assert frame[shown].astype(object).where(frame[shown].notna(), None).to_numpy().tolist() == [
        ["cuda:0", 2, 1, 2.0, 5.0, 4.5, 12.0, "aten::empty"], ["cpu", 1, 0, 0.0, 0.0001, 0.0001, 80.0, None],
    ]  # fmt: skip
    assert frame["counts_from_start"].tolist() == [False, True]
    timeline = memory_timeline(trace.table, trace.tree)
    assert timeline is not None
    assert timeline["parent_op"].fillna("").tolist() == ["aten::empty", "aten::linear", "aten::relu", ""]
    assert timeline["allocated_mb"].tolist() == [5.0, 4.0, 4.5, 0.0001]


def test_without_totals_amounts_count_from_the_start(build: Build) -> None:
    builder = memory(memory(memory(build().op("aten::mm", 0, 10), 1, 300), 2, 200), 3, -300)
    trace = builder.trace()
    frame = memory_summary(trace.table, trace.tree)
    assert frame is not None
    assert frame[["first_mb", "peak_mb", "last_mb"]].to_numpy().tolist() == [[0, 0.0005, 0.0002]]


def test_a_shortened_timeline_keeps_the_peak(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "MAX_POINTS", 3)
    builder = build().op("aten::mm", 0, 10)
    for at, held in enumerate((1, 5, 2, 9, 3, 4)):
        memory(builder, at, 1_000_000, held * 1_000_000)
    trace = builder.trace()
    timeline = memory_timeline(trace.table, trace.tree)
    assert timeline is not None
    # of each two the higher
    assert timeline["allocated_mb"].tolist() == [5.0, 9.0, 4.0]


def test_without_allocator_events_there_is_no_view(build: Build) -> None:
    trace = build().mm(8, 8, 8, 0, 10, 5).trace()
    assert memory_summary(trace.table, trace.tree) is None
    assert memory_timeline(trace.table, trace.tree) is None


@pytest.mark.shared
def test_recorded_totals_follow_from_the_recorded_allocations(real_trace: RealTrace) -> None:
    table = real_trace("h100/gaunernst_bert-small-uncased__1016001").table
    events = table.allocations
    gpu = np.flatnonzero(events.device_type == 1)
    assert len(gpu) == 218
    assert (np.diff(events.allocated[gpu]) == events.bytes[gpu][1:]).all()
