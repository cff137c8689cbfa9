"""Where the device's time went, against a count of nanoseconds; the window with and without events."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.activity import DeviceActivity, device_activity, gpu_timeline, timeline_of
from tracelens.trace.tree import OpTree

END = 40


def activity_of(events: list[tuple[int, int, str]]) -> DeviceActivity:
    """Of (start, duration, kind) in ns."""
    table = read_events(
        {"ph": "X", "cat": "gpu_memcpy" if kind == "memcpy" else "kernel", "name": kind, "pid": 0, "tid": 7,
         "ts": start / 1000, "dur": duration / 1000, "args": {"stream": 7}}
        for start, duration, kind in events
    )  # fmt: skip
    activity = device_activity(table, OpTree(table), ())
    communication = np.array([kind in ("communication", "both") for *_, kind in events], bool)
    copies = np.array([kind in ("memcpy", "both") for *_, kind in events], bool)
    return DeviceActivity(
        **{key: getattr(activity, key) for key in activity.__struct_fields__}
        | {"communication": communication, "memcpy": copies}
    )


EVENTS = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, 12), st.sampled_from(["compute", "communication", "memcpy", "both"])),
    max_size=8,
)
WINDOWS = st.tuples(st.integers(0, END), st.integers(0, END)).map(lambda ends: (min(ends), max(ends) + 1))


@given(EVENTS, WINDOWS, st.lists(st.integers(0, END), max_size=4, unique=True))
def test_every_nanosecond_counts_once_for_the_first_of_what_ran(events, window, edges):
    edges = sorted(edges)[: len(edges) // 2 * 2]
    # what is left out lies in the window as a whole, or outside of it
    left_out = [pair for pair in zip(edges[::2], edges[1::2], strict=True) if not pair[0] < window[1] < pair[1]]
    left_out = [(a, b) for a, b in left_out if not a < window[0] < b]
    # as in a trace: nothing runs in what is left out
    events = [e for e in events if not any(e[0] < b and e[0] + e[1] > a for a, b in left_out)]
    ran = {"compute": set(), "communication": set(), "memcpy": set()}
    for start, duration, kind in events:
        ran["communication" if kind == "both" else kind] |= set(range(start, start + duration)) & set(range(*window))
    out = {ns for a, b in left_out for ns in range(a, b)}
    found = timeline_of(activity_of(events), window, tuple(np.array(left_out, np.int64).reshape(-1, 2).T))
    compute, comm, copies = ran.values()
    assert found.total_ns == len(set(range(*window)) - out)
    assert found.computation_ns == len(compute)
    assert (found.exposed_comm_ns, found.total_comm_ns) == (len(comm - compute), len(comm))
    assert (found.exposed_memcpy_ns, found.total_memcpy_ns) == (len(copies - comm - compute), len(copies))
    assert found.idle_ns == len(set(range(*window)) - out - compute - comm - copies)
    assert found.window == window
    opens, closes = found.spans
    assert {ns for a, b in zip(opens.tolist(), closes.tolist(), strict=True) for ns in range(a, b)} == set(
        range(*window)
    ) - out
    frame = found.frame().set_index("type")
    assert frame.time_us["busy_time"] * 1e3 == float(len(compute | comm | copies))
    assert abs(frame.percent_of_window[["busy_time", "idle_time"]].sum() - 100 * (found.total_ns > 0)) < 1e-9


@given(EVENTS, st.none() | WINDOWS)
def test_the_window_holds_the_events_and_what_was_asked_for(events, window):
    found = gpu_timeline(activity_of(events), window)
    known = [(start, start + duration) for start, duration, _ in events] + ([window] if window else [])
    assert found.window == (min((a for a, _ in known), default=0), max((b for _, b in known), default=0))


def test_an_empty_window_has_no_shares():
    frame = gpu_timeline(activity_of([]), (7, 7)).frame()
    assert (frame.time_us.tolist(), frame.percent_of_window.tolist()) == ([0.0] * 8, [0.0] * 8)


QUEUES = st.lists(
    st.tuples(st.integers(0, END), st.integers(0, 12), st.integers(7, 8), st.integers(0, 1)), max_size=10, unique=True
)


@given(QUEUES)
def test_a_gap_is_the_time_since_all_earlier_events_of_the_stream_had_ended(spans):
    """-1 for the first of a stream; streams of the same number on other devices are others."""
    table = read_events(
        {"ph": "X", "cat": "kernel", "name": "k", "pid": device, "tid": stream, "ts": start / 1000,
         "dur": duration / 1000, "args": {"stream": stream, "device": device}}
        for start, duration, stream, device in spans
    )  # fmt: skip
    gaps = []
    for start, duration, *queue in spans:
        before = [s for s in spans if [*s[2:]] == queue and (s[0], s[0] + s[1]) < (start, start + duration)]
        gaps.append(max(start - max(s[0] + s[1] for s in before), 0) if before else -1)
    assert device_activity(table, OpTree(table), ()).gap_before.tolist() == gaps
