"""A second, plain, slow path from a trace file to the totals of its report.

It uses the standard library alone and shares no code with the reader, the op tree or the tables: a mistake in one of
them shows as a difference. All times are whole nanoseconds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from tracelens.types.records import Record

_DEVICE = frozenset({"kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"})
_OPS = frozenset({"cpu_op", "operator"})
#: Categories of events that nest on a host thread, besides the runtime and driver calls of any vendor.
_NESTING = _OPS | {"user_annotation", "python_function", "runtime", "driver"}
_STEP = re.compile(r"ProfilerStep#\d{1,12}")
#: An op of this name hands its kernels to the op above it.
_PASSED_OVER = "execute"

Interval = tuple[int, int]


class HostEvent(Record, frozen=False, kw_only=True):
    """One event of a host thread. ``op``: the name of the innermost op at or above it."""

    name: str
    category: str
    start: int
    end: int
    op: str | None = None


class DeviceEvent(Record, frozen=False, kw_only=True):
    """One kernel, copy or memset. ``launch``: the host call that launched it, by its correlation."""

    name: str
    start: int
    end: int
    stream: tuple[str, int]
    launch: HostEvent | None = None


class PlainTrace(Record, frozen=False, kw_only=True):
    """What the totals are made of. ``unusable``: why this path cannot speak about the file, "" when it can.

    ``steps``: the spans of ``ProfilerStep#`` annotations, by thread.
    """

    device: list[DeviceEvent] = msgspec.field(default_factory=list)
    steps: list[list[Interval]] = msgspec.field(default_factory=list)
    unusable: str = ""

    @classmethod
    def read(cls, path: Path) -> PlainTrace:
        """From a .json or .json.gz file."""
        content = path.read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        try:
            # Digits as text: exact, and faster than numbers that nobody asks for
            document = json.loads(content, parse_float=str)
        except (ValueError, RecursionError):
            return cls(unusable="the file is damaged")
        return cls.of(document["traceEvents"] if isinstance(document, dict) else document)

    @classmethod
    def of(cls, events: Sequence[Any]) -> PlainTrace:
        """From the event list as JSON gives it."""
        trace = cls()
        launches: dict[int, list[HostEvent]] = defaultdict(list)
        threads: dict[tuple[str, str], list[HostEvent]] = defaultdict(list)
        pending: list[tuple[DeviceEvent, int]] = []
        for event in events:
            category = _category(event)
            if event.get("ph") == "B" and category in _DEVICE | _NESTING:
                trace.unusable = "the file has begin and end events"
            if event.get("ph") != "X":
                continue
            args = event.get("args") or {}
            start, end = _span(event)
            if category in _DEVICE:
                found = DeviceEvent(name=event["name"], start=start, end=end, stream=_stream(event))
                trace.device.append(found)
                pending.append((found, int(args.get("correlation") or 0)))
            elif category in _NESTING or category.endswith(("_runtime", "_driver")):
                host = HostEvent(name=event["name"], category=category, start=start, end=end)
                threads[str(event.get("pid")), str(event.get("tid"))].append(host)
                if category not in _NESTING - {"runtime", "driver"} and int(args.get("correlation") or 0) > 0:
                    launches[int(args["correlation"])].append(host)
        for thread in threads.values():
            _name_ops(thread)
            trace.steps.append(_steps(thread))
        for found, correlation in pending:
            found.launch = _launch(launches.get(correlation, []), found.start)
        return trace


def _span(event: dict[str, Any]) -> Interval:
    start = nanoseconds(event["ts"])
    return start, start + max(0, nanoseconds(event.get("dur") or 0))


def _stream(event: dict[str, Any]) -> tuple[str, int]:
    args = event.get("args") or {}
    stream = args.get("stream", event.get("tid"))
    return str(args.get("device", event.get("pid"))), stream if isinstance(stream, int) else -1


def nanoseconds(microseconds: Any) -> int:
    """Whole ns, halves to even, from the digits as recorded; ValueError for what is no number."""
    try:
        value = Decimal(str(microseconds)) * 1000
        return int(value.to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, OverflowError) as error:
        raise ValueError(f"{microseconds!r} is not a time") from error


def _launch(calls: list[HostEvent], start: int) -> HostEvent | None:
    """The last call of a correlation that began before its device event; else, clocks differing, the first."""
    if not calls:
        return None
    before = [call for call in calls if call.start <= start]
    return max(before, key=lambda call: call.start) if before else min(calls, key=lambda call: call.start)


def _name_ops(thread: list[HostEvent]) -> None:
    """Sets ``op`` of every event of one thread: events nest where one lies in another."""
    rank = {"runtime": 1, "driver": 2}
    open_events: list[HostEvent] = []
    for event in sorted(thread, key=lambda e: (e.start, -e.end, rank.get(e.category.rpartition("_")[2], 0))):
        while open_events and not _contains(open_events[-1], event):
            open_events.pop()
        if event.category in _OPS and event.name != _PASSED_OVER:
            event.op = event.name
        elif open_events:
            event.op = open_events[-1].op
        open_events.append(event)


def _category(event: dict[str, Any]) -> str:
    """In small letters; a step that PyTorch 1.8 calls an operator is an annotation."""
    found = str(event.get("cat", "")).lower()
    return "user_annotation" if found == "operator" and _STEP.fullmatch(str(event.get("name"))) else found


def _steps(thread: list[HostEvent]) -> list[Interval]:
    found = (host for host in thread if host.category == "user_annotation" and _STEP.fullmatch(host.name))
    return [(host.start, host.end) for host in found]


def _contains(outer: HostEvent, inner: HostEvent) -> bool:
    if outer.start == outer.end:
        return (inner.start, inner.end) == (outer.start, outer.end)
    return outer.start <= inner.start < outer.end and inner.end <= outer.end


def union(intervals: Iterable[Interval]) -> int:
    """The time that at least one of the intervals covers."""
    covered, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            covered += end - start
            reached = end
        elif end > reached:
            covered += end - reached
            reached = end
    return covered


class Parts(Record, frozen=True, kw_only=True):
    """How a window divides, in ns: each moment counts for the first that ran of compute, communication, copies."""

    compute: int
    exposed_communication: int
    exposed_copies: int
    idle: int


def parts(events: Sequence[tuple[int, int, str]], window: Interval) -> Parts:
    """``events``: (start, end, ``compute`` | ``communication`` | ``copy``). One moment after the other."""
    borders = sorted({*window, *(start for start, _, _ in events), *(end for _, end, _ in events)})
    begins: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for start, end, what in events:
        if end > start:
            begins[start].append((what, 1))
            begins[end].append((what, -1))
    running = dict.fromkeys(("compute", "communication", "copy"), 0)
    spent = {**running, "idle": 0}
    for here, there in itertools.pairwise(borders):
        for what, change in begins[here]:
            running[what] += change
        now = next((what for what, count in running.items() if count), "idle")
        spent[now] += there - here
    return Parts(
        compute=spent["compute"],
        exposed_communication=spent["communication"],
        exposed_copies=spent["copy"],
        idle=spent["idle"],
    )


def kernel_totals(trace: PlainTrace) -> dict[tuple[str, str], tuple[int, int]]:
    """(count, total ns) by (launching op, kernel name); the op of a kernel without a recorded launch is ""."""
    totals: dict[tuple[str, str], tuple[int, int]] = {}
    for event in trace.device:
        op = "" if event.launch is None else event.launch.op or event.launch.name
        count, spent = totals.get((op, event.name), (0, 0))
        totals[op, event.name] = (count + 1, spent + event.end - event.start)
    return totals


def step_spans(trace: PlainTrace) -> list[Interval]:
    """When each ``ProfilerStep#`` began and ended, as docs/report.md says; none where it depends on a tie.

    Steps follow each other. One begins with its host code, or when the stream with most of the steps' events has
    finished what was launched earlier; the last ends with its host code and all that it launched.
    """
    windows = sorted(max(trace.steps, key=lambda spans: sum(end - start for start, end in spans), default=[]))
    if not windows:
        return []
    starts, last = [start for start, _ in windows], windows[-1][1]
    launched = _launch_times(trace.device)
    inside = [(event, time) for event, time in launched if starts[0] <= time <= last]
    streams = Counter(event.stream for event, _ in inside).most_common(2)
    if len(streams) == 2 and streams[0][1] == streams[1][1]:
        return []
    finished = [-math.inf] * (len(starts) + 1)
    for event, time in launched:
        if streams and event.stream == streams[0][0]:
            begun = bisect_right(starts, time)
            finished[begun] = max(finished[begun], event.end)
    begins = [int(max(times)) for times in zip(starts, itertools.accumulate(finished[:-1], max), strict=True)]
    end = max([last, begins[-1], *(event.end for event, time in inside if time >= starts[-1])])
    return list(itertools.pairwise([*begins, end]))


def _launch_times(device: Sequence[DeviceEvent]) -> list[tuple[DeviceEvent, float]]:
    """Each event and when it was launched; without a recorded launch when it ran, or -inf: queued before recording.

    That is what a stream ran before its first event with a launch; on a stream without any, what began before the last
    of these ended.
    """
    first: dict[tuple[str, int], int] = {}
    for event in device:
        if event.launch is not None:
            first[event.stream] = min(event.start, first.get(event.stream, event.start))
    unknown = [event for event in device if event.launch is None]
    queued = [event.end for event in unknown if event.stream in first and event.start < first[event.stream]]
    horizon = max([min(first.values()), *queued]) if first else -math.inf
    return [
        (event, event.launch.start if event.launch is not None
         else -math.inf if event.start < first.get(event.stream, horizon) else event.start)
        for event in device
    ]  # fmt: skip
