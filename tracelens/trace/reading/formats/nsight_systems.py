"""Nsight Systems: the SQLite database that ``nsys export --type sqlite`` makes of a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracelens.lazy.patterns import lazy_pattern
from tracelens.signature import OpSignature
from tracelens.trace.reading.formats.base import reader
from tracelens.trace.reading.nvtx_texts import add_ranges
from tracelens.trace.reading.row_blocks import Ints, RowBlocks, coded, coded_pairs
from tracelens.trace.reading.source import Source
from tracelens.trace.reading.sqlite_rows import ABSENT, Database, holds, opened
from tracelens.trace.table import Recorder, TraceTable

_KERNELS, _COPIES, _SETS, _CALLS, _SYNCS = (
    f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION")
)
_RANGES = "NVTX_EVENTS"
RECORDER = Recorder(
    file="a database of Nsight Systems",
    no_shapes="Nsight Systems records none of its own",
    no_stacks="Nsight Systems' samples of stacks are not read",
    shapes_option="torch.autograd.profiler.emit_nvtx(record_shapes=True)",
)
# ENUM_NSYS_EVENT_TYPE: NvtxPushPopRange, NvtxStartEndRange, and the same of NVTX in text form.
_RANGE_TYPES = (59, 60, 70, 71)
# ENUM_NSYS_EVENT_CLASS: TRACE_PROCESS_EVENT_CUDA_DRIVER.
_DRIVER_CLASS = 1
# ENUM_CUDA_MEMCPY_OPER and ENUM_CUDA_MEM_KIND, as Kineto spells them.
_COPY_KINDS = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP", "HtoD", "DtoH", "DtoD",
)  # fmt: skip
_MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
# ENUM_CUPTI_SYNC_TYPE, as Kineto spells it.
_SYNC_KINDS = ("Unknown", "Event Sync", "Stream Wait Event", "Stream Sync", "Context Sync")
# The version of an entry point: cudaLaunchKernel_v7000.
_VERSION = lazy_pattern(r"_v\d{4,6}$")
# A serialized GlobalId: 24 bits of the thread below 24 bits of the process.
_THREAD_BITS = 24
_NUMBER = (1 << _THREAD_BITS) - 1
# What tells the same number of another context, of another process, apart.
_NEXT_CONTEXT_STREAM = 100_000
_PROCESS_BITS = 32


@reader(
    "nsight_systems",
    recognizes=lambda source: holds(source, _KERNELS, _CALLS, _RANGES, "TARGET_INFO_SESSION_START_TIME"),
)
def read(source: Source) -> TraceTable:
    """Kernels, copies, memsets, CUDA calls and NVTX ranges. Of several processes each correlation is made unique."""
    rows = RowBlocks(source.name)
    with opened(source) as database:
        report = _Report(database, rows)
        report.add_calls()
        report.add_kernels()
        report.add_copies()
        report.add_syncs()
        report.add_ranges()
        report.add_names()
    return rows.table(RECORDER)


class _Report:
    """One pass over the tables of a report."""

    def __init__(self, database: Database, rows: RowBlocks) -> None:
        self._database = database
        self._rows = rows
        self._processes: dict[int, int] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._contexts: dict[int, dict[int, int]] = {}

    def add_calls(self) -> None:
        found = self._database.integers(_CALLS, "start", "end", "eventClass", "globalTid", "correlationId", "nameId")
        names = self._names(found["nameId"], lambda name: _VERSION.sub("", name))
        lane, correlation = self._thread_lanes(found["globalTid"]), self._correlation(found, "globalTid")
        is_driver = found["eventClass"] == _DRIVER_CLASS
        for category, rows in (("cuda_runtime", ~is_driver), ("cuda_driver", is_driver)):
            self._rows.add(
                category,
                start_ns=found["start"][rows],
                end_ns=found["end"][rows],
                name=names[rows],
                lane=lane[rows],
                correlation=correlation[rows],
            )

    def add_kernels(self) -> None:
        grid, block = (tuple(f"{what}{axis}" for axis in "XYZ") for what in ("grid", "block"))
        found = self._database.integers(_KERNELS, *_DEVICE_COLUMNS, "demangledName", "shortName", *grid, *block)
        name = np.where(found["demangledName"] > 0, found["demangledName"], found["shortName"])
        details = {
            "grid": np.stack([found[axis] for axis in grid], axis=1),
            "block": np.stack([found[axis] for axis in block], axis=1),
        }
        self._add_device("kernel", found, name=self._names(name), details=details)

    def add_copies(self) -> None:
        found = self._database.integers(_COPIES, *_DEVICE_COLUMNS, "bytes", "copyKind", "srcKind", "dstKind")
        kinds = coded_pairs(found["srcKind"], found["dstKind"], lambda a, b: (a & 15) << 4 | (b & 15))

        def name(copy: int, memory: int) -> int:
            ends = f"{_spelled(_MEMORY_KINDS, memory >> 4)} -> {_spelled(_MEMORY_KINDS, memory & 15)}"
            (code,) = self._rows.names.of([f"Memcpy {_spelled(_COPY_KINDS, copy)} ({ends})"])
            return code

        self._add_device(
            "gpu_memcpy", found, name=coded_pairs(found["copyKind"], kinds, name), signature=self._bytes(found)
        )
        found = self._database.integers(_SETS, *_DEVICE_COLUMNS, "bytes", "memKind")

        def set_name(kind: int) -> int:
            (code,) = self._rows.names.of([f"Memset ({_spelled(_MEMORY_KINDS, kind)})"])
            return code

        self._add_device("gpu_memset", found, name=coded(found["memKind"], set_name), signature=self._bytes(found))

    def add_syncs(self) -> None:
        found = self._database.integers(_SYNCS, *_DEVICE_COLUMNS, "syncType")
        names = coded(found["syncType"], lambda kind: self._rows.names.of([_spelled(_SYNC_KINDS, kind)])[0])
        self._add_device("cuda_sync", found, name=names)

    def add_ranges(self) -> None:
        found = self._database.integers(_RANGES, "start", "end", "eventType", "globalTid", "textId")
        chosen = np.isin(found["eventType"], _RANGE_TYPES) & (found["end"] >= found["start"]) & (found["end"] > 0)
        registered = self._database.text_of("StringIds", "id", "value", found["textId"][chosen].tolist())
        texts = self._database.texts(_RANGES, "text")
        spelled = [
            (texts[row][0] if texts else "") or registered.get(number, "")
            for row, number in zip(np.flatnonzero(chosen).tolist(), found["textId"][chosen].tolist(), strict=True)
        ]
        lane = self._thread_lanes(found["globalTid"][chosen])
        add_ranges(self._rows, spelled, found["start"][chosen], found["end"][chosen], lane)

    def add_names(self) -> None:
        """Names of processes and threads, and the devices."""
        rows, database = self._rows, self._database
        pids = {pid for pid, _ in rows.lanes.values()}
        for pid, name in database.texts("PROCESSES", "pid", "name"):
            if pid.isdecimal() and int(pid) in pids:
                rows.process_names[int(pid)] = name
        threads = database.integers("ThreadNames", "nameId", "globalTid")
        names = database.text_of("StringIds", "id", "value", threads["nameId"].tolist())
        lanes = set(rows.lanes.values())
        for number, thread in zip(threads["nameId"].tolist(), threads["globalTid"].tolist(), strict=True):
            lane = (thread >> _THREAD_BITS & _NUMBER, thread & _NUMBER)
            if lane in lanes and number in names:
                rows.thread_names[lane] = names[number]
        if devices := self._devices():
            rows.metadata["deviceProperties"] = devices

    def _devices(self) -> list[dict[str, Any]]:
        table = "TARGET_INFO_GPU"
        wanted = ("id", "cuDevice", "totalMemory", "smCount", "threadsPerWarp", "computeMajor", "computeMinor")
        found = self._database.integers(table, *wanted)
        names = [name for (name,) in self._database.texts(table, "name")]
        devices: dict[int, dict[str, Any]] = {}
        for row, name in enumerate(names[: len(found["id"])]):
            number = int(found["cuDevice" if found["cuDevice"][row] >= 0 else "id"][row])
            known = {key: int(found[column][row]) for key, column in _DEVICE_KEYS.items() if found[column][row] >= 0}
            if 0 <= number < _MOST_DEVICES:
                devices[number] = {"id": number, "name": name, **known}
        return [devices.get(number, {"id": number}) for number in range(max(devices, default=-1) + 1)]

    def _add_device(self, category: str, found: dict[str, Ints], **columns: Any) -> None:
        device, stream = found["deviceId"], self._streams(found)
        self._rows.add(
            category,
            start_ns=found["start"],
            end_ns=found["end"],
            lane=self._rows.lane_codes(device, stream),
            device=device,
            stream=stream,
            correlation=self._correlation(found, "globalPid"),
            **columns,
        )

    def _streams(self, found: dict[str, Ints]) -> Ints:
        """Stream numbers; those of a device's second context, and of further ones, in a range of their own."""
        process = found["globalPid"] >> _THREAD_BITS
        context = coded_pairs(
            process, found["contextId"], lambda *key: self._numbers.setdefault(key, len(self._numbers))
        )
        offset = coded_pairs(found["deviceId"], context, self._context_offset)
        return np.where(found["streamId"] >= 0, found["streamId"] + offset, found["streamId"])

    def _context_offset(self, device: int, context: int) -> int:
        known = self._contexts.setdefault(device, {})
        return _NEXT_CONTEXT_STREAM * known.setdefault(context, len(known))

    def _correlation(self, found: dict[str, Ints], who: str) -> Ints:
        """Correlations count within a process: those of a second one, and of further ones, are moved apart."""
        process = coded(found[who] >> _THREAD_BITS, lambda pid: self._processes.setdefault(pid, len(self._processes)))
        number = found["correlationId"]
        usable = (number > 0) & (number < 1 << _PROCESS_BITS)
        return np.where(usable, number + (process << _PROCESS_BITS), ABSENT)

    def _thread_lanes(self, thread: Ints) -> Ints:
        return self._rows.lane_codes(thread >> _THREAD_BITS & _NUMBER, thread & _NUMBER)

    def _names(self, number: Ints, spelled: Callable[[str], str] = str) -> Ints:
        texts = self._database.text_of("StringIds", "id", "value", number.tolist())
        return coded(number, lambda key: self._rows.names.of([spelled(texts.get(key, f"(string {key})"))])[0])

    def _bytes(self, found: dict[str, Ints]) -> Ints:
        return coded(
            found["bytes"],
            lambda count: self._rows.signatures.code_of(OpSignature(name="", attributes=(("bytes", count),))),
        )


_DEVICE_COLUMNS = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
_DEVICE_KEYS = {
    "totalGlobalMem": "totalMemory",
    "numSms": "smCount",
    "warpSize": "threadsPerWarp",
    "computeMajor": "computeMajor",
    "computeMinor": "computeMinor",
}
_MOST_DEVICES = 1024


def _spelled(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else "Unknown"
