"""rocprof v1 and v2: Chrome JSON with times in ns beside those in µs, no categories, and arrows from HIP calls."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.reading.formats.base import reader
from tracelens.trace.reading.row_blocks import Ints, RowBlocks
from tracelens.trace.reading.source import Source
from tracelens.trace.table import Recorder, TraceTable

RECORDER = Recorder(
    file="a trace of rocprof (v1 or v2)",
    no_shapes="rocprof records none",
    no_stacks="rocprof records none",
    shapes_option="torch.profiler with record_shapes=True",
)
#: What rocprof writes into every event, and torch.profiler into none.
_KEYS = (b'"BeginNs"', b'"EndNs"', b'"DurationNs"')
# Its arrows alone have a category.
_OTHER_CATEGORY = lazy_pattern(rb'"cat"\s*+:\s*+"(?!DataFlow")')
#: Processes that stand for something else; from the last on, one per GPU.
_COPIES, _HIP, _HSA, _MARKERS, _FIRST_GPU = 1, 2, 3, 5, 6
_CATEGORIES = {_HIP: "hip_runtime", _HSA: "hsa_runtime", _MARKERS: "user_annotation"}
_LAUNCHES = lazy_pattern(r"Launch|Memcpy|Memset")
_NS_PER_US = 1000


class _Args(Struct, frozen=True, gc=False):
    begin: int = field(default=0, name="BeginNs")
    end: int = field(default=0, name="EndNs")
    device: int = field(default=0, name="dev-id")
    stream: int = field(default=-1, name="stream-id")
    queue: int = field(default=-1, name="queue-id")
    process: int = field(default=0, name="pid")
    thread: int = field(default=0, name="tid")


class _Event(Struct, frozen=True, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = -1
    tid: int = -1
    ts: int = 0
    id: int = -1
    args: _Args = _Args()


class _File(Struct):
    events: list[_Event] = field(name="traceEvents")
    machine: Any = field(default=None, name="otherData")


def _is_rocprof(source: Source) -> bool:
    return all(key in source.start for key in _KEYS) and not _OTHER_CATEGORY.search(source.start)


@reader("rocprof", recognizes=_is_rocprof)
def read(source: Source) -> TraceTable:
    """HIP and HSA calls, kernels and copies, joined by the arrows between them."""
    try:
        file = msgspec.json.Decoder(_File, strict=False).decode(source.whole())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise source.damage(RECORDER.file) from error
    rows = RowBlocks(source.name)
    events = [e for e in file.events if e.ph == "X"]
    correlations = _correlations(file.events)
    blocks: defaultdict[str, list[_Event]] = defaultdict(list)
    for event in events:
        blocks[_category(event)].append(event)
    for category, block in blocks.items():
        _add(rows, category, block, correlations)
    if devices := _devices(file.machine):
        rows.metadata["deviceProperties"] = devices
    return rows.table(RECORDER)


def _category(event: _Event) -> str:
    if event.pid == _COPIES:
        return "gpu_memset" if event.name.startswith("Fill") else "gpu_memcpy"
    return _CATEGORIES.get(event.pid, "kernel" if event.pid >= _FIRST_GPU else "other")


def _add(rows: RowBlocks, category: str, events: list[_Event], correlations: dict[int, int]) -> None:
    def column(values: list[int]) -> Ints:
        return np.array([value if abs(value) < 2**63 else -1 for value in values], np.int64)

    on_device = category in ("kernel", "gpu_memcpy", "gpu_memset")
    stream = column([e.args.stream if e.args.stream >= 0 else e.args.queue for e in events])
    device = column([e.args.device for e in events])
    process, thread = column([e.args.process for e in events]), column([e.args.thread for e in events])
    columns: dict[str, Any] = {"device": device, "stream": stream} if on_device else {}
    rows.add(
        category,
        start_ns=column([e.args.begin for e in events]),
        end_ns=column([e.args.end for e in events]),
        name=rows.name_codes(e.name for e in events),
        lane=rows.lane_codes(device, stream) if on_device else rows.lane_codes(process, thread),
        correlation=column([correlations.get(id(e), -1) for e in events]),
        **columns,
    )


def _correlations(events: list[_Event]) -> dict[int, int]:
    """A number per call and device event (by identity) that an arrow joins.

    An arrow leaves from within the call of its thread that launched last before it, and ends where a device event
    starts.
    """
    calls: defaultdict[tuple[int, int], list[_Event]] = defaultdict(list)
    device: defaultdict[tuple[int, int, int], list[_Event]] = defaultdict(list)
    for event in events:
        if event.ph == "X" and event.pid == _HIP and _LAUNCHES.search(event.name):
            calls[event.pid, event.tid].append(event)
        elif event.ph == "X":
            device[event.pid, event.tid, event.args.begin // _NS_PER_US].append(event)
    for found in (*calls.values(), *device.values()):
        found.sort(key=lambda event: event.args.begin)
    numbers: dict[int, int] = {}
    of_arrow: dict[int, int] = {}
    for arrow in events:
        if arrow.ph == "s":
            thread = calls[arrow.pid, arrow.tid]
            before = bisect_right(thread, arrow.ts, key=lambda call: call.args.begin // _NS_PER_US) - 1
            if before >= 0 and arrow.ts <= thread[before].args.end // _NS_PER_US:
                of_arrow[arrow.id] = numbers.setdefault(id(thread[before]), arrow.id + 1)
    for arrow in events:
        if arrow.ph in ("t", "f") and arrow.id in of_arrow:
            ends = device[arrow.pid, arrow.tid, arrow.ts]
            if ends:
                numbers[id(ends.pop(0))] = of_arrow[arrow.id]
    return numbers


def _devices(machine: Any) -> list[dict[str, Any]]:
    """The GPUs that rocminfo listed, in its order, under the names that it has."""
    if not isinstance(machine, dict):
        return []
    found: list[dict[str, Any]] = []
    for key, value in machine.items():
        agent = key.removesuffix(".DeviceType")
        if agent != key and value == "GPU":
            device: dict[str, Any] = {"id": len(found), "name": str(machine.get(agent, ""))}
            name = str(machine.get(f"{agent}.MarketingName") or device["name"])
            # What drivers call any accelerator that they do not know by name.
            device["name"] = "" if name == "AMDRadeonGraphics" else name
            for what, known, unit in (
                ("WavefrontSize", "warpSize", 1), ("ComputeUnit", "numSms", 1),
                ("PoolInfo.Pool1.Size", "totalGlobalMem", 1024),
            ):  # fmt: skip
                if match := _NUMBER.match(str(machine.get(f"{agent}.{what}", ""))):
                    device[known] = int(match[0]) * unit
            found.append(device)
    return found


_NUMBER = lazy_pattern(r"\d{1,12}")
