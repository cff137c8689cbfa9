"""Launch overhead and what two streams shared, on traces whose figures can be counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.activity import device_activity
from tracelens.analysis.attribution.host_time import host_calls
from tracelens.analysis.idle.idle_time import queue
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.sheets.device_timeline import launch_overhead, stream_overlap

Build = Callable[[], Builder]


def overhead(builder: Builder) -> pd.DataFrame | None:
    trace = builder.trace()
    events = device_activity(trace.table, trace.tree, ())
    queued = queue(trace.table, trace.tree, host_calls(trace.table, trace.tree), events)
    return launch_overhead(trace.table, events, queued)


def shared(builder: Builder) -> pd.DataFrame | None:
    trace = Trace.of(read_events(builder.events))
    return stream_overlap(trace.table, device_activity(trace.table, trace.tree, ()))


def test_queue_depth_counts_what_was_launched_and_not_finished(build: Build) -> None:
    # at 1, 2 and 3 the first kernel (10 to 20) is still to run, with what was launched after it; at 40 all is done
    builder = build().launch(0, "k", 10, 10).launch(1, "k", 20, 5).launch(2, "k", 25, 5).launch(40, "k", 46, 1)
    frame = overhead(builder)
    assert frame is not None
    row = frame.iloc[0]
    assert (row["launches"], row["queue_depth_max"], row["queue_depth_mean"]) == (4, 2, (0 + 1 + 2 + 0) / 4)
    # two of four found an empty stream: their kernels began 10 and 6 us after the call did
    assert (row["queue_empty_percent"], row["launch_latency_us_median"], row["launch_latency_us_max"]) == (
        50.0,
        8.0,
        10.0,
    )
    assert (row["host_us_sum"], row["host_us_mean"]) == (4 * 0.5, 0.5)


def test_kernels_queued_before_the_recording_began_are_in_the_queue(build: Build) -> None:
    # launched before 0, they run until 40; what is launched at 1 and 2 finds two of them, then them and the first
    builder = build().kernel("early", 3, 17).kernel("early", 20, 20)
    frame = overhead(builder.launch(1, "k", 40, 5).launch(2, "k", 45, 5).launch(60, "k", 67, 5))
    assert frame is not None
    assert frame.loc[0, ["queue_depth_max", "queue_depth_mean"]].tolist() == [3, (2 + 3 + 0) / 3]
    # so the one launch latency is that of the last call
    assert frame.loc[0, ["queue_empty_percent", "launch_latency_us_max"]].tolist() == pytest.approx([100 / 3, 7.0])


def test_a_wait_for_an_event_is_no_launch_latency(build: Build) -> None:
    builder = build().launch(0, "k", 5, 5).op("cudaStreamWaitEvent", 18, 1, cat="cuda_runtime", correlation=90)
    frame = overhead(builder.launch(20, "k", 500, 5))
    assert frame is not None
    assert frame.loc[0, ["queue_empty_percent", "launch_latency_us_max"]].tolist() == [100.0, 5.0]


def test_a_full_stream_does_not_fill_the_queue_of_another(build: Build) -> None:
    frame = overhead(build().launch(0, "k", 10, 90, stream=1).launch(2, "k", 7, 1, stream=2))
    assert frame is not None
    assert frame.loc[0, "queue_depth_max"] == 0


def test_a_graph_launch_is_one_launch_of_many_kernels(build: Build) -> None:
    builder = build().op("cudaGraphLaunch", 0, 8, cat="cuda_runtime", correlation=90)
    builder.kernel("a", 5, 2, correlation=90).kernel("b", 7, 2, correlation=90).launch(20, "c", 26, 1)
    frame = overhead(builder)
    assert frame is not None
    assert frame[["launch_call", "launches", "kernels"]].to_numpy().tolist() == [
        ["cudaGraphLaunch", 1, 2], ["cudaLaunchKernel", 1, 1], ["all", 2, 3],
    ]  # fmt: skip


def test_without_launches_there_is_no_overhead_to_show(build: Build) -> None:
    assert overhead(build().kernel("k", 0, 5)) is None


def test_a_report_says_that_launches_were_not_recorded(build: Build) -> None:
    analysis = analyze(build().kernel("k", 0, 5).trace(), AnalysisOptions())
    assert "launch_overhead" not in analysis.frames
    because = {missing.question: missing.because for missing in analysis.missing}
    assert "ProfilerActivity.CPU" in because["launch overhead"]


def test_the_time_in_which_two_streams_were_busy(build: Build) -> None:
    # 1: 0 to 10 and 20 to 30; 2: 5 to 25: both from 5 to 10 and from 20 to 25
    builder = build().kernel("k", 0, 10, stream=1).kernel("k", 20, 10, stream=1).kernel("k", 5, 20, stream=2)
    frame = shared(builder)
    assert frame is not None
    row = frame.iloc[0]
    assert (row["stream_a"], row["stream_b"], row["both_us"]) == (1, 2, 10.0)
    assert (row["percent_of_a"], row["percent_of_b"]) == (50.0, 50.0)


def test_one_stream_overlaps_with_nothing(build: Build) -> None:
    assert shared(build().kernel("k", 0, 5).kernel("k", 3, 5)) is None


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 3)), min_size=1, max_size=14))
def test_shared_time_is_the_intersection_of_the_unions(spans: list[tuple[int, int, int]]) -> None:
    builder = Builder()
    busy: dict[int, set[int]] = {}
    for start, duration, stream in spans:
        builder.kernel("k", start, duration, stream=stream)
        busy.setdefault(stream, set()).update(range(start, start + duration))
    frame = shared(builder)
    assert (frame is None) == (len(busy) < 2)
    for row in [] if frame is None else frame.to_dict("records"):
        a, b = busy[row["stream_a"]], busy[row["stream_b"]]
        assert (row["busy_a_us"], row["busy_b_us"], row["both_us"]) == (len(a), len(b), len(a & b))
        assert np.isclose(row["percent_of_a"], 100 * len(a & b) / max(len(a), 1e-3))
