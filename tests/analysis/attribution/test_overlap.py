"""Same-stream overlaps: what counts as one, what clipping cuts, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tracelens
from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.activity import StreamOverlaps, device_activity, stream_overlaps, with_clipped
from tracelens.trace.tree import OpTree


def kernel(start: float, duration: float, stream: int = 7, device: int = 0) -> dict[str, Any]:
    return {
        "ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": stream, "ts": start, "dur": duration,
        "args": {"stream": stream},
    }  # fmt: skip


def overlaps(*kernels: dict[str, Any], clip: bool = True) -> StreamOverlaps:
    table = read_events(kernels)
    return stream_overlaps(table, device_activity(table, OpTree(table), ()), clip=clip)


def test_an_event_that_runs_into_the_next_ends_there() -> None:
    found = overlaps(kernel(0, 10), kernel(8, 5))
    assert (found.count, found.time_ns) == (1, 2000)
    assert (found.events.tolist(), found.ends.tolist()) == ([0], [8000])


@pytest.mark.parametrize(
    "second",
    [kernel(10, 5), kernel(2, 3), kernel(2, 8), kernel(0, 15), kernel(8, 5, stream=8), kernel(8, 5, device=1)],
    ids=["after", "inside", "inside up to the end", "same start", "other stream", "other device"],
)
def test_what_is_no_overlap_stays(second: dict[str, Any]) -> None:
    found = overlaps(kernel(0, 10), second)
    assert found.count == 0


def test_events_without_a_stream_have_no_order() -> None:
    unknown = ({**kernel(start, 10), "tid": "a thread", "args": {}} for start in (0, 8))
    found = overlaps(*unknown, kernel(20, 10), kernel(28, 5))
    assert (found.events.tolist(), found.ends.tolist()) == ([2], [28_000])


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(0, 1), st.integers(0, 1)),
        max_size=12,
        unique=True,
    )
)
def test_an_overlap_is_of_one_with_the_next_of_its_stream(spans: list[tuple[int, int, int, int]]) -> None:
    wanted = []
    for row, (start, duration, *queue) in enumerate(spans):
        later = sorted(s for s in spans if [*s[2:]] == queue and s[:2] > (start, duration))
        if later and start < later[0][0] < start + duration < later[0][0] + later[0][1]:
            wanted.append((row, 1000 * later[0][0]))
    found = overlaps(*(kernel(*span) for span in spans))
    assert sorted(zip(found.events.tolist(), found.ends.tolist(), strict=True)) == wanted
    assert found.time_ns == sum(1000 * (spans[row][0] + spans[row][1]) - cut for row, cut in wanted)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20), st.integers(1, 2)), max_size=12))
def test_clipping_never_lengthens_and_accounts_for_every_nanosecond(spans: list[tuple[int, int, int]]) -> None:
    table = read_events([kernel(*span) for span in spans])
    activity = device_activity(table, OpTree(table), ())
    found = stream_overlaps(table, activity, clip=True)
    clipped = with_clipped(activity, found)
    assert (clipped.end <= activity.end).all()
    assert (clipped.end >= clipped.start).all()
    assert (activity.duration - clipped.duration).sum() == found.time_ns
    # the device is as busy as before: what was cut is covered by the event that follows
    covered = [np.zeros(60, bool) for _ in range(2)]
    for cover, shown in zip(covered, (activity, clipped), strict=True):
        for start, end in zip(shown.start // 1000, shown.end // 1000, strict=True):
            cover[start:end] = True
    assert (covered[0] == covered[1]).all()


@pytest.mark.parametrize(("overlap", "kernel_us", "words"), [("keep", 15, "kept"), ("clip", 13, "clipped")])
def test_the_report_says_what_it_did(overlap: str, kernel_us: int, words: str) -> None:
    table = read_events([kernel(0, 10), kernel(8, 5)])
    report = tracelens.report(tracelens.Trace.of(table), overlap=overlap)
    assert report["kernel_summary"]["duration_us_sum"].sum() == kernel_us
    notice = next(n for n in report.summary.notices if n.id == "same_stream_overlap")
    assert notice.count == 1
    assert "13.33 %" in notice.text
    assert words in notice.text
