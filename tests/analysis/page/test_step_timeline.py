"""The rectangles of one step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.test_report_laws import figures_of
from tests.conftest import RealAnalysis, examples
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.idle.idle_time import CAUSES, IdleParts
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.page_charts import Lane, step_timeline
from tracelens.analysis.step_rectangles import MAX_LEVELS, step_idle


def test_the_step_nearest_the_median_is_drawn(build):
    """Steps of 100, 130, 100 and 100 us; the last one ends with its annotation."""
    builder = build()
    for number, at in ((1, 0), (2, 100), (3, 230), (4, 330)):
        builder.op(f"ProfilerStep#{number}", at, 100, cat="user_annotation")
        builder.launch(at + 1, "kernel", at + 2, 10).launch(at + 3, "other", at + 20, 5, stream=9)
    drawn = step_timeline(analyze(builder.trace(), AnalysisOptions(), on_demand=True))
    assert (drawn.step, drawn.duration_ns, drawn.events) == (1, 100_000, 2)
    assert drawn.lanes == (Lane(device=0, stream=7), Lane(device=0, stream=9))
    assert drawn.lane.tolist() == [0, 1]
    assert drawn.start_ns.tolist() == [2_000, 20_000]
    assert drawn.end_ns.tolist() == [12_000, 25_000]
    assert drawn.merged_below_ns == 0


def test_of_chosen_steps_only_those_are_candidates(build):
    builder = build()
    for number, at in ((1, 0), (2, 100), (3, 230)):
        builder.op(f"ProfilerStep#{number}", at, 90, cat="user_annotation").launch(at + 1, "kernel", at + 2, 10)
    assert step_timeline(analyze(builder.trace(), AnalysisOptions(steps="2"), on_demand=True)).step == 2


def test_threads_of_the_host_stand_level_by_level_and_hold_the_launch(build):
    """The step [0, 100) holds mm [10, 50), which holds the launch [20, 20.5) of the kernel [30, 60)."""
    builder = build().op("ProfilerStep#1", 0, 100, cat="user_annotation").op("aten::mm", 10, 40)
    drawn = step_timeline(
        analyze(
            builder.launch(20, "kernel", 30, 30).op("other", 0, 5, tid=2).trace(), AnalysisOptions(), on_demand=True
        )
    )
    host = drawn.host
    assert (drawn.duration_ns, host.levels, host.left_out) == (100_000, (3, 1), 0)
    assert host.thread.tolist() == [0, 0, 0, 1]
    assert host.level.tolist() == [0, 1, 2, 0]
    assert host.start_ns.tolist() == [0, 10_000, 20_000, 0]
    assert host.end_ns.tolist() == [100_000, 50_000, 20_500, 5_000]
    assert (host.launched_in.tolist(), drawn.launch_ns.tolist()) == ([2], [20_000])


def test_what_is_too_deep_to_draw_is_counted_and_its_launch_belongs_to_what_is_drawn(build):
    builder = build().op("ProfilerStep#1", 0, 100, cat="user_annotation")
    for level in range(MAX_LEVELS + 3):
        builder.op(f"op {level}", 1 + level, 60 - 2 * level)
    drawn = step_timeline(analyze(builder.launch(25, "kernel", 30, 30).trace(), AnalysisOptions(), on_demand=True))
    assert drawn.host.left_out == MAX_LEVELS + 4 + 1 - MAX_LEVELS
    assert drawn.host.level[drawn.host.launched_in[0]] == MAX_LEVELS - 1


def test_without_steps_it_is_the_whole_window(build):
    drawn = step_timeline(
        analyze(build().launch(0, "a", 10, 5).launch(1, "b", 40, 10).trace(), AnalysisOptions(), on_demand=True)
    )
    assert (drawn.step, drawn.duration_ns) == (None, 40_000)


def test_idle_time_of_the_step_stands_by_cause(build):
    # window 10 to 50: idle from 15 to 40; the launch of b ends at 30.5, until 20 nothing is recorded, then an op runs
    builder = build().launch(0, "a", 10, 5).op("aten::b", 20, 15).launch(30, "b", 40, 10)
    drawn = step_timeline(analyze(builder.trace(), AnalysisOptions(), on_demand=True))
    assert drawn.idle.by_cause == {
        "Python or other host work": 5_000, "launch-bound": 10_500, "launch latency": 9_500,
    }  # fmt: skip
    assert drawn.idle.start_ns.min() == 5_000
    assert drawn.idle.end_ns.max() == 30_000


def test_short_idle_parts_of_a_cause_share_a_rectangle():
    start = np.arange(0, 100_000, 100)
    parts = IdleParts(start=start + 7, end=start + 17, cause=np.arange(1000) % 2, row=np.full(1000, -1))
    drawn = step_idle(parts, (0, 100_000), max_rects=50)
    assert len(drawn.idle_ns) <= 50
    assert drawn.by_cause == {CAUSES[0]: 5_000, CAUSES[1]: 5_000}
    assert (drawn.end_ns - drawn.start_ns >= drawn.idle_ns).all()


def test_without_device_work_there_is_nothing_to_draw(build):
    assert (
        step_timeline(analyze(build().op("aten::mm", 0, 5).trace(), AnalysisOptions(cpu=True), on_demand=True)) is None
    )


def test_short_events_share_a_rectangle_named_after_the_longest(build):
    """Two times 50 events of 1 to 2 us back to back, and one of 1 ms between them, in ten rectangles."""
    builder = build()
    for i in range(50):
        builder.launch(i, f"short {i}", 2 * i, 1 + i / 50).launch(i, f"late {i}", 1200 + 2 * i, 1)
    builder.launch(60, "long", 150, 1000)
    analysis = analyze(builder.trace(), AnalysisOptions(), on_demand=True)
    drawn = step_timeline(analysis, max_rects=10)
    assert len(drawn.lane) <= 10
    assert int(drawn.count.sum()) == 101
    assert drawn.merged_below_ns > 2_000
    names = [analysis.trace.table.names[analysis.activity.name[event]] for event in drawn.event]
    alone = drawn.count == 1
    assert names[int(np.flatnonzero(drawn.kernel_ns == 1_000_000)[0])] == "long"
    assert alone[drawn.kernel_ns == 1_000_000].all()
    assert "short 49" in names


def test_as_many_rectangles_are_drawn_as_may_be(build):
    """Five thousand kernels of 1 to 100 µs in four thousand rectangles: neighbors of the shortest share some."""
    builder, at = build(), 0.0
    for i in range(5000):
        duration = 1 + i * 7919 % 100
        builder.launch(at, f"k{i % 3}", at + 1, duration)
        at += duration + 0.5
    drawn = step_timeline(analyze(builder.trace(), AnalysisOptions(), on_demand=True), max_rects=4000)
    assert 2500 < len(drawn.lane) <= 4000
    assert 0 < drawn.merged_below_ns < 100_000


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.integers(0, 900)), min_size=1, max_size=80),
    st.integers(1, 40),
)
def test_rectangles_hold_every_event_once_and_all_of_the_time(spans, max_rects):
    events = [
        {"ph": "X", "cat": "kernel", "name": f"k{i}", "pid": 0, "tid": stream, "ts": start, "dur": duration,
         "args": {"stream": stream, "device": 0}}
        for i, (stream, start, duration) in enumerate(spans)
    ]  # fmt: skip
    drawn = step_timeline(figures_of(Trace.of(read_events(events))), max_rects=max_rects)
    assert int(drawn.count.sum()) == drawn.events == len(spans)
    assert int(drawn.kernel_ns.sum()) == 1000 * sum(duration for _, _, duration in spans)
    assert (drawn.start_ns >= 0).all()
    assert (drawn.end_ns <= drawn.duration_ns).all()
    assert (np.diff(drawn.lane) >= 0).all()
    assert len(set(drawn.event.tolist())) == len(drawn.event)


@pytest.mark.shared
def test_a_real_step_fits_into_few_rectangles(real_analysis: RealAnalysis):
    analysis = real_analysis("mi300/resnet_act_checkpoint", on_demand=True)
    whole, few = step_timeline(analysis), step_timeline(analysis, max_rects=100)
    assert len(few.lane) <= 100 < len(whole.lane) == whole.events
    assert few.kernel_ns.sum() == whole.kernel_ns.sum()
