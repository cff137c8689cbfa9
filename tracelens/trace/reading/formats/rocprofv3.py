"""rocprofv3 (rocprofiler-sdk): the JSON of ``rocprofv3 --output-format json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field

from tracelens.lazy.patterns import lazy_pattern
from tracelens.signature import OpSignature
from tracelens.trace.reading.formats.base import reader
from tracelens.trace.reading.row_blocks import Ints, RowBlocks, coded
from tracelens.trace.reading.source import Source
from tracelens.trace.table import Recorder, TraceTable

RECORDER = Recorder(
    file="a trace of rocprofv3",
    no_shapes="rocprofv3 records none",
    no_stacks="rocprofv3 records none",
    shapes_option="torch.profiler with record_shapes=True",
)
_START = lazy_pattern(rb'\s*+\{\s*+"rocprofiler-sdk-tool"\s*+:')
_GPU = 2
_PROCESS_BITS = 32


class _Handle(Struct, frozen=True, gc=False):
    handle: int = -1


class _Correlation(Struct, frozen=True, gc=False):
    internal: int = -1


class _Size(Struct, frozen=True, gc=False):
    x: int = 1
    y: int = 1
    z: int = 1


class _Dispatch(Struct, frozen=True, gc=False):
    agent_id: _Handle = _Handle()
    queue_id: _Handle = _Handle()
    kernel_id: int = -1
    workgroup_size: _Size = _Size()
    grid_size: _Size = _Size()


class _Record(Struct, frozen=True, gc=False):
    """Any record of a buffer: a dispatch, a copy or a call."""

    start_timestamp: int
    end_timestamp: int
    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: _Correlation = _Correlation()
    dispatch_info: _Dispatch = _Dispatch()
    stream_id: _Handle = _Handle()
    src_agent_id: _Handle = _Handle()
    dst_agent_id: _Handle = _Handle()
    bytes: int = -1


class _Buffers(Struct):
    kernel_dispatch: list[_Record] = []
    hip_api: list[_Record] = []
    hsa_api: list[_Record] = []
    rccl_api: list[_Record] = []
    marker_api: list[_Record] = []
    memory_copy: list[_Record] = []


class _Kind(Struct):
    kind: str = ""
    operations: list[str] = []


class _Marker(Struct):
    key: int = -1
    value: str = ""


class _Strings(Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_Marker] = []


class _Agent(Struct):
    id: _Handle = _Handle()
    type: int = 0
    name: str = ""
    product_name: str = ""
    cu_count: int = -1
    wave_front_size: int = -1
    logical_node_type_id: int = -1


class _Symbol(Struct):
    kernel_id: int = -1
    formatted_kernel_name: str = ""
    kernel_name: str = ""


class _About(Struct):
    pid: int = 0
    command: list[str] = []


class _Process(Struct):
    metadata: _About = field(default_factory=_About)
    agents: list[_Agent] = []
    strings: _Strings = field(default_factory=_Strings)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Buffers = field(default_factory=_Buffers)


class _File(Struct):
    processes: list[_Process] = field(name="rocprofiler-sdk-tool")


@reader("rocprofv3", recognizes=lambda source: _START.match(source.start) is not None)
def read(source: Source) -> TraceTable:
    """Kernel dispatches, HIP, HSA and RCCL calls, ROCTX ranges and copies of each process."""
    try:
        file = msgspec.json.Decoder(_File, strict=False).decode(source.whole())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise source.damage(RECORDER.file) from error
    rows = RowBlocks(source.name)
    for number, process in enumerate(file.processes):
        _Rows(rows, process, number).add()
    return rows.table(RECORDER)


class _Rows:
    """The records of one process."""

    def __init__(self, rows: RowBlocks, process: _Process, number: int) -> None:
        self._rows, self._process, self._number = rows, process, number
        gpus = [agent for agent in process.agents if agent.type == _GPU]
        self._devices = {
            agent.id.handle: agent.logical_node_type_id if 0 <= agent.logical_node_type_id < 1024 else i
            for i, agent in enumerate(gpus)
        }
        known = {self._devices[agent.id.handle]: agent for agent in gpus}
        if known:
            rows.metadata["deviceProperties"] = [
                _properties(i, known[i]) if i in known else {"id": i} for i in range(max(known) + 1)
            ]

    def add(self) -> None:
        rows, process = self._rows, self._process
        buffers, pid = process.buffer_records, process.metadata.pid
        if process.metadata.command:
            rows.process_names[pid] = process.metadata.command[0].rpartition("/")[2]
        markers = {marker.key: marker.value for marker in process.strings.marker_api}
        for category, records in (
            ("hip_runtime", buffers.hip_api),
            ("hsa_runtime", buffers.hsa_api),
            ("rccl_runtime", buffers.rccl_api),
            ("user_annotation", buffers.marker_api),
        ):
            names = [self._operation(r) for r in records]
            if category == "user_annotation":
                names = [markers.get(r.correlation_id.internal, name) for r, name in zip(records, names, strict=True)]
            thread = _column([r.thread_id for r in records])
            self._add(category, records, names, lane=rows.lane_codes(np.full(len(records), pid), thread))
        symbols = {s.kernel_id: s.formatted_kernel_name or s.kernel_name for s in process.kernel_symbols}
        dispatches = buffers.kernel_dispatch
        infos = [r.dispatch_info for r in dispatches]
        block, threads = _sizes([i.workgroup_size for i in infos]), _sizes([i.grid_size for i in infos])
        self._add(
            "kernel",
            dispatches,
            [symbols.get(i.kernel_id, f"(kernel {i.kernel_id})") for i in infos],
            details={"grid": -(-threads // np.maximum(block, 1)), "block": block},
            **self._placed([i.agent_id.handle for i in infos], dispatches),
        )
        self._add_copies(buffers.memory_copy)

    def _add_copies(self, copies: list[_Record]) -> None:
        ends = [(r.src_agent_id.handle, r.dst_agent_id.handle) for r in copies]
        agents = [src if dst not in self._devices else dst for src, dst in ends]
        names = [
            f"Copy{'Device' if s in self._devices else 'Host'}To{'Device' if d in self._devices else 'Host'}"
            for s, d in ends
        ]
        code = self._rows.signatures.code_of
        signature = coded(
            _column([r.bytes for r in copies]),
            lambda n: code(OpSignature(name="", attributes=(("bytes", n),))) if n >= 0 else -1,
        )
        self._add("gpu_memcpy", copies, names, signature=signature, **self._placed(agents, copies))

    def _placed(self, agents: list[int], records: list[_Record]) -> dict[str, Ints]:
        device = np.array([self._devices.get(agent, 0) for agent in agents], np.int64)
        stream = _column([
            r.stream_id.handle if r.stream_id.handle > 0 else max(r.dispatch_info.queue_id.handle, 0) for r in records
        ])  # fmt: skip
        return {"device": device, "stream": stream, "lane": self._rows.lane_codes(device, stream)}

    def _add(self, category: str, records: Sequence[_Record], names: Sequence[str], **columns: Any) -> None:
        number = _column([r.correlation_id.internal for r in records])
        usable = (number > 0) & (number < 1 << _PROCESS_BITS)
        self._rows.add(
            category,
            start_ns=_column([r.start_timestamp for r in records]),
            end_ns=_column([r.end_timestamp for r in records]),
            name=self._rows.name_codes(names),
            correlation=np.where(usable, number + (self._number << _PROCESS_BITS), -1),
            **columns,
        )

    def _operation(self, record: _Record) -> str:
        kinds = self._process.strings.buffer_records
        if 0 <= record.kind < len(kinds) and 0 <= record.operation < len(kinds[record.kind].operations):
            return kinds[record.kind].operations[record.operation]
        return f"(operation {record.kind}.{record.operation})"


def _properties(number: int, agent: _Agent) -> dict[str, Any]:
    known = {"id": number, "name": agent.product_name or agent.name}
    return known | ({"numSms": agent.cu_count, "warpSize": agent.wave_front_size} if agent.cu_count > 0 else {})


def _sizes(sizes: list[_Size]) -> Ints:
    """[sizes, 3]"""
    return np.stack([_column([getattr(size, axis) for size in sizes]) for axis in "xyz"], axis=1)


def _column(values: list[int]) -> Ints:
    return np.array([value if abs(value) < 2**63 else 2**63 - 1 for value in values], np.int64)
