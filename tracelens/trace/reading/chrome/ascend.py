"""Ascend's variant of the event list (``trace_view.json`` of torch_npu): what it puts into processes, as categories.

Its device events and calls of CANN have no category, and arrows instead of correlations (``links.LAUNCH_FLOWS``):
from a call of CANN, or from the op of the framework, to where the device event starts.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.narrow_columns import Column
from tracelens.trace.table import Identifier, Kind, Recorder, TraceTable

_DEVICE, _HOST = "Ascend Hardware", "CANN"
_WAIT = lazy_pattern(r"(?:EVENT|NOTIFY|STREAM)_|PLACE_HOLDER|SYNC", re.IGNORECASE)
_COPY = lazy_pattern(r"MEMCPY|SDMA", re.IGNORECASE)
_CATEGORIES = (
    ("kernel", Kind.KERNEL),
    ("gpu_memcpy", Kind.MEMCPY),
    ("npu_sync", Kind.SYNC),
    ("cann_runtime", Kind.RUNTIME),
)
_MOST_STREAMS = 2**30


def is_ascend(table: TraceTable) -> bool:
    """Whether a process is the hardware of Ascend."""
    return any(name.startswith(_DEVICE) for name in table.process_names.values())


def with_categories(table: TraceTable) -> TraceTable:
    """The table with kernels, copies and waits of the hardware, and calls of CANN on the threads that made them."""
    devices = [pid for pid, name in table.process_names.items() if name.startswith(_DEVICE)]
    hosts = {pid for pid, name in table.process_names.items() if name == _HOST}
    bare = table.kind == Kind.OTHER
    on_device = bare & _in(table, set(devices))
    calls = bare & _in(table, hosts)
    kind, category = table.kind.copy(), table.category.copy()
    categories = list(table.categories)
    told = np.array([_told(name) for name in table.names] or [0])[table.name]
    for number, (text, of) in enumerate(_CATEGORIES):
        here = calls if of == Kind.RUNTIME else on_device & (told == number)
        if text not in categories:
            categories.append(text)
        kind[here], category[here] = of, categories.index(text)
    stream, device = _places(table, on_device, devices)
    moved = _moved(table, hosts)
    return replace(
        table,
        kind=kind,
        category=category,
        categories=categories,
        stream=Column(stream, np.int32),
        device=Column(device, np.int32),
        lane=Column(np.where(calls, moved[table.lane], table.lane), np.int32),
        flows=replace(table.flows, lane=Column(moved[table.flows.lane], np.int32)),
        recorder=Recorder(no_shapes="record_shapes was off in torch_npu.profiler"),
        _op_signatures={},
    )


def _places(
    table: TraceTable, on_device: npt.NDArray[np.bool_], devices: list[Identifier]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Stream and device: the thread of the hardware's process, and which of those processes it is."""
    stream, device = table.stream.copy(), table.device.copy()
    lane = table.lane[on_device]
    stream[on_device] = np.array(
        [tid if isinstance(tid, int) and 0 <= tid < _MOST_STREAMS else 0 for _, tid in table.lanes] or [0]
    )[lane]
    device[on_device] = np.array([devices.index(pid) if pid in devices else 0 for pid, _ in table.lanes] or [0])[lane]
    return stream, device


def _told(name: str) -> int:
    return 2 if _WAIT.match(name) else 1 if _COPY.match(name) else 0


def _in(table: TraceTable, pids: set[Identifier]) -> npt.NDArray[np.bool_]:
    return np.array([pid in pids for pid, _ in table.lanes] or [False])[table.lane[:]]


def _moved(table: TraceTable, hosts: set[Identifier]) -> npt.NDArray[np.int32]:
    """By lane of CANN: the thread of the framework that has the same number; else the lane itself."""
    ops = {table.lanes[code][1]: code for code in np.unique(table.lane[table.kind == Kind.CPU_OP]).tolist()}
    return np.array(
        [ops.get(tid, code) if pid in hosts else code for code, (pid, tid) in enumerate(table.lanes)] or [0], np.int32
    )
