"""ROCm's rocprof: Chrome JSON of v1 and v2, CSV of all versions, and the JSON of rocprofv3 (rocprofiler-sdk)."""

from __future__ import annotations

import io
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from tracelens.trace.reading.source import Array, Ints, RowBlocks, Source, coded, own_correlation, reader
from tracelens.trace.table import Recorder, TraceTable
from tracelens.types.records import pd

_CATEGORY_OF_PREFIX = (("HIP", "hip_runtime"), ("HSA", "hsa_runtime"), ("RCCL", "rccl_runtime"))
_DIRECTION = re.compile(r"(HOST|DEVICE)_?TO_?(HOST|DEVICE)", re.IGNORECASE)


def call_category(domain: str) -> str:
    """The category of a call by its domain; any other is the program's own range.

    >>> call_category("HIP_RUNTIME_API"), call_category("MARKER_CORE_API")
    ('hip_runtime', 'user_annotation')
    """
    return next((category for word, category in _CATEGORY_OF_PREFIX if word in domain.upper()), "user_annotation")


def copy_name(text: str) -> str:
    """As rocprofv3's JSON spells it.

    >>> copy_name("MEMORY_COPY_HOST_TO_DEVICE")
    'CopyHostToDevice'
    """
    match = _DIRECTION.search(text)
    return f"Copy{match[1].title()}To{match[2].title()}" if match else text


def gpu_properties(name: str, *, units: object, wave: object) -> dict[str, Any]:
    """An entry of ``deviceProperties``, as Kineto writes it, without what is not recorded.

    >>> gpu_properties("AMD Instinct MI300X", units=304, wave=None)
    {'name': 'AMD Instinct MI300X', 'numSms': 304}
    """
    known: dict[str, Any] = {"name": name} if name else {}
    sizes = {"numSms": units, "warpSize": wave}
    return known | {key: size for key, size in sizes.items() if isinstance(size, int) and size > 0}


def launch_details(block: Ints, threads: Ints) -> dict[str, Array]:
    """Grid and block of launches, [launches, 3] each, from what ROCm counts: threads of a block and of all."""
    return {"grid": -(-threads // np.maximum(block, 1)), "block": block}


def rocm_recorder(file: str, who: str) -> Recorder:
    """What a sentence says of a format of ROCm's: it records neither shapes nor stacks."""
    return Recorder(
        file=file,
        no_shapes=f"{who} none",
        no_stacks=f"{who} none",
        shapes_option="torch.profiler with record_shapes=True",
    )


ROCPROF = rocm_recorder("a trace of rocprof (v1 or v2)", "rocprof records")
#: What rocprof writes into every event, and torch.profiler into none.
_KEYS = (b'"BeginNs"', b'"EndNs"', b'"DurationNs"')
# Its arrows alone have a category.
_OTHER_CATEGORY = re.compile(rb'"cat"\s*+:\s*+"(?!DataFlow")')
#: Processes that stand for something else; from the last on, one per GPU.
_COPIES, _HIP, _HSA, _MARKERS, _FIRST_GPU = 1, 2, 3, 5, 6
_CATEGORY_OF_PROCESS = {_HIP: "hip_runtime", _HSA: "hsa_runtime", _MARKERS: "user_annotation"}
_LAUNCHES = re.compile(r"Launch|Memcpy|Memset")
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


class _ChromeFile(Struct):
    events: list[_Event] = field(name="traceEvents")
    machine: Any = field(default=None, name="otherData")


@reader(
    "rocprof",
    recognizes=lambda source: all(key in source.start for key in _KEYS) and not _OTHER_CATEGORY.search(source.start),
)
def read_rocprof(source: Source) -> TraceTable:
    """HIP and HSA calls, kernels and copies, joined by the arrows between them."""
    file = source.decoded(_ChromeFile, ROCPROF.file)
    rows = RowBlocks(source.name)
    events = [e for e in file.events if e.ph == "X"]
    correlations = _correlations(file.events)
    blocks: defaultdict[str, list[_Event]] = defaultdict(list)
    for event in events:
        blocks[_category(event)].append(event)
    for category, block in blocks.items():
        _add_events(rows, category, block, correlations)
    rows.set_devices(dict(enumerate(_recorded_devices(file.machine))))
    return rows.table(ROCPROF)


def _category(event: _Event) -> str:
    if event.pid == _COPIES:
        return "gpu_memset" if event.name.startswith("Fill") else "gpu_memcpy"
    return _CATEGORY_OF_PROCESS.get(event.pid, "kernel" if event.pid >= _FIRST_GPU else "other")


def _add_events(rows: RowBlocks, category: str, events: list[_Event], correlations: dict[int, int]) -> None:
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


def _recorded_devices(machine: Any) -> list[dict[str, Any]]:
    """The GPUs that rocminfo listed, in its order, under the names that it has."""
    if not isinstance(machine, dict):
        return []
    found: list[dict[str, Any]] = []
    for key, value in machine.items():
        agent = key.removesuffix(".DeviceType")
        if agent != key and value == "GPU":
            name = str(machine.get(f"{agent}.MarketingName") or machine.get(agent, ""))
            # What drivers call any accelerator that they do not know by name.
            device: dict[str, Any] = {"name": "" if name == "AMDRadeonGraphics" else name}
            for what, known, unit in (
                ("WavefrontSize", "warpSize", 1), ("ComputeUnit", "numSms", 1),
                ("PoolInfo.Pool1.Size", "totalGlobalMem", 1024),
            ):  # fmt: skip
                if match := _NUMBER.match(str(machine.get(f"{agent}.{what}", ""))):
                    device[known] = int(match[0]) * unit
            found.append(device)
    return found


_NUMBER = re.compile(r"\d{1,12}")

ROCPROF_CSV = rocm_recorder("CSV of rocprof", "rocprof records")
#: What each column is called, by versions.
_START_COLUMNS, _END_COLUMNS = ("Start_Timestamp", "BeginNs"), ("End_Timestamp", "EndNs")
_KERNEL, _CALL, _COPY = ("Kernel_Name", "KernelName"), ("Function",), ("Direction",)
_AGENT, _TO, _FROM = ("Agent_Id", "gpu-id", "GPU_ID"), ("Destination_Agent_Id",), ("Source_Agent_Id",)
_STREAM, _QUEUE, _CORRELATION = ("Stream_Id",), ("Queue_Id", "queue-id"), ("Correlation_Id",)
_PROCESS, _THREAD, _DOMAIN, _DISPATCH = ("Process_Id", "pid"), ("Thread_Id", "tid"), ("Domain",), ("Dispatch_Id",)
_BLOCK, _GRID = (tuple(f"{what}_Size_{axis}" for axis in "XYZ") for what in ("Workgroup", "Grid"))
#: What files of one run are called behind their common start.
_KIN = ("kernel_trace.csv", "memory_copy_trace.csv", "hip_api_trace.csv", "hip_trace.csv", "hsa_api_trace.csv",
        "hsa_trace.csv", "rccl_api_trace.csv", "rccl_trace.csv", "marker_api_trace.csv",
        "marker_trace.csv")  # fmt: skip
_AGENTS = "agent_info.csv"
_LAST_NUMBER = re.compile(r"(\d{1,9})\D*$")
_LARGEST = 2**62


def _is_csv(source: Source) -> bool:
    line = source.start.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0][:4000].decode("utf-8", "replace")
    columns = {column.strip().strip('"') for column in line.split(",")}
    return (
        not columns.isdisjoint(_START_COLUMNS)
        and not columns.isdisjoint(_END_COLUMNS)
        and not columns.isdisjoint((*_KERNEL, *_CALL, *_COPY))
    )


@reader("rocprof_csv", recognizes=_is_csv)
def read_rocprof_csv(source: Source) -> TraceTable:
    """The file, and those of the same run in its folder: calls and copies of a list of kernels, and its devices."""
    rows = RowBlocks(source.name)
    own = _frame(source.whole())
    if own is None:
        raise source.damage(ROCPROF_CSV.file)
    found, beside = [own], _beside(source.path)
    for path in beside:
        source.limit.check_unpacked(path.name, path.stat().st_size)
        if path.name.endswith(_KIN) and (frame := _frame(path.read_bytes())) is not None:
            found.append(frame)
            rows.metadata.setdefault("files read beside it", []).append(path.name)
    devices, properties = _listed_devices(next((path for path in beside if path.name.endswith(_AGENTS)), None), found)
    rows.set_devices(properties)
    for frame in found:
        _add_frame(rows, frame, devices)
    return rows.table(ROCPROF_CSV)


def _beside(path: Path) -> list[Path]:
    kin = next((ending for ending in _KIN if path.name.endswith(ending)), None)
    if kin is None:
        return []
    start = path.name.removesuffix(kin)
    return [
        other for ending in (*_KIN, _AGENTS) if (other := path.with_name(start + ending)) != path and other.is_file()
    ]


def _frame(content: bytes) -> pd.DataFrame | None:
    """The table as texts; None where it is none."""
    try:
        return pd.read_csv(
            io.BytesIO(content), dtype=str, keep_default_na=False, on_bad_lines="skip", encoding_errors="replace",
            encoding="utf-8-sig",
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeError, ValueError):
        return None


def _listed_devices(
    listed: Path | None, frames: list[pd.DataFrame]
) -> tuple[dict[int, int], dict[int, dict[str, Any]]]:
    """A device by the number of its agent, and what is known of devices."""
    numbers: dict[int, int] = {}
    properties: dict[int, dict[str, Any]] = {}
    agents = _frame(listed.read_bytes()) if listed is not None else None
    if agents is not None and {"Node_Id", "Agent_Type"} <= set(agents.columns):
        for row in agents[agents["Agent_Type"] == "GPU"].to_dict("records"):
            numbers[_last_number(row["Node_Id"])] = len(properties)
            properties[len(properties)] = gpu_properties(
                row.get("Product_Name") or row.get("Name", ""),
                units=_last_number(row.get("Cu_Count", "")),
                wave=_last_number(row.get("Wave_Front_Size", "")),
            )
        return numbers, properties
    of_kernels = {
        _last_number(text)
        for frame in frames
        if _first_named(frame, _KERNEL) is not None
        for text in set(_texts(frame, _AGENT))
    }
    return {number: i for i, number in enumerate(sorted(of_kernels))}, properties


def _add_frame(rows: RowBlocks, frame: pd.DataFrame, devices: dict[int, int]) -> None:
    if "Counter_Name" in frame.columns and _first_named(frame, _DISPATCH) is not None:
        frame = frame.drop_duplicates(
            subset=[str(_first_named(frame, _DISPATCH)), *(c for c in ("Process_Id",) if c in frame)]
        )
    if _first_named(frame, _KERNEL) is not None:
        details: dict[str, Array] | None = None
        if {*_BLOCK, *_GRID} <= set(frame.columns):
            block, threads = (
                np.stack([np.maximum(_integers(frame, (c,)), 1) for c in columns], axis=1)
                for columns in (_BLOCK, _GRID)
            )
            details = launch_details(block, threads)
        _add_device(rows, "kernel", frame, _texts(frame, _KERNEL), _devices(_agents(frame, _AGENT), devices), details)
    elif _first_named(frame, _COPY) is not None:
        target, origin = _agents(frame, _TO), _agents(frame, _FROM)
        agent = np.where(np.isin(target, list(devices)), target, origin)
        names = [copy_name(text) for text in _texts(frame, _COPY)]
        _add_device(rows, "gpu_memcpy", frame, names, _devices(agent, devices), None)
    elif _first_named(frame, _CALL) is not None:
        rows.add_each(
            [call_category(text) for text in _texts(frame, _DOMAIN)],
            start_ns=_integers(frame, _START_COLUMNS, _LARGEST),
            end_ns=_integers(frame, _END_COLUMNS, _LARGEST),
            name=rows.name_codes(_texts(frame, _CALL)),
            lane=rows.lane_codes(_integers(frame, _PROCESS), _integers(frame, _THREAD)),
            correlation=_integers(frame, _CORRELATION),
        )


def _add_device(
    rows: RowBlocks,
    category: str,
    frame: pd.DataFrame,
    names: list[str],
    device: Ints,
    details: dict[str, Array] | None,
) -> None:
    stream = _integers(frame, _STREAM)
    stream = np.maximum(stream if (stream > 0).any() else _integers(frame, _QUEUE), 0)
    rows.add(
        category,
        start_ns=_integers(frame, _START_COLUMNS, _LARGEST),
        end_ns=_integers(frame, _END_COLUMNS, _LARGEST),
        name=rows.name_codes(names),
        device=device,
        stream=stream,
        correlation=_integers(frame, _CORRELATION),
        details=details,
    )


def _devices(agents: Ints, devices: dict[int, int]) -> Ints:
    return coded(agents, lambda number: devices.get(number, 0))


def _first_named(frame: pd.DataFrame, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in frame.columns), None)


def _texts(frame: pd.DataFrame, names: tuple[str, ...]) -> list[str]:
    column = _first_named(frame, names)
    return [""] * len(frame) if column is None else [str(text) for text in frame[column].tolist()]


def _integers(frame: pd.DataFrame, names: tuple[str, ...], otherwise: int = -1) -> Ints:
    """A column of whole numbers; ``otherwise`` where it has none."""
    texts = _texts(frame, names)
    return np.array([int(t) if t.isdecimal() and len(t) < 19 else otherwise for t in texts], np.int64)


def _agents(frame: pd.DataFrame, names: tuple[str, ...]) -> Ints:
    texts = _texts(frame, names)
    numbers = {text: _last_number(text) for text in dict.fromkeys(texts)}
    return np.array([numbers[text] for text in texts], np.int64)


def _last_number(text: str) -> int:
    match = _LAST_NUMBER.search(text)
    return int(match[1]) if match else -1


ROCPROFV3 = rocm_recorder("a trace of rocprofv3", "rocprofv3 records")
_SDK_START = re.compile(rb'\s*+\{\s*+"rocprofiler-sdk-tool"\s*+:')
_GPU = 2


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


class _SdkFile(Struct):
    processes: list[_Process] = field(name="rocprofiler-sdk-tool")


@reader("rocprofv3", recognizes=lambda source: _SDK_START.match(source.start) is not None)
def read_rocprofv3(source: Source) -> TraceTable:
    """Kernel dispatches, HIP, HSA and RCCL calls, ROCTX ranges and copies of each process."""
    file = source.decoded(_SdkFile, ROCPROFV3.file)
    rows = RowBlocks(source.name)
    for number, process in enumerate(file.processes):
        _Rows(rows, process, number).add()
    return rows.table(ROCPROFV3)


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
        rows.set_devices({
            i: {"name": agent.product_name or agent.name}
            | ({"numSms": agent.cu_count, "warpSize": agent.wave_front_size} if agent.cu_count > 0 else {})
            for i, agent in known.items()
        })  # fmt: skip

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
            thread = _whole_numbers([r.thread_id for r in records])
            self._add(category, records, names, lane=rows.lane_codes(np.full(len(records), pid), thread))
        symbols = {s.kernel_id: s.formatted_kernel_name or s.kernel_name for s in process.kernel_symbols}
        dispatches = buffers.kernel_dispatch
        infos = [r.dispatch_info for r in dispatches]
        block, threads = _sizes([i.workgroup_size for i in infos]), _sizes([i.grid_size for i in infos])
        self._add(
            "kernel",
            dispatches,
            [symbols.get(i.kernel_id, f"(kernel {i.kernel_id})") for i in infos],
            details=launch_details(block, threads),
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
        signature = self._rows.copied_bytes(_whole_numbers([r.bytes for r in copies]))
        self._add("gpu_memcpy", copies, names, signature=signature, **self._placed(agents, copies))

    def _placed(self, agents: list[int], records: list[_Record]) -> dict[str, Ints]:
        device = np.array([self._devices.get(agent, 0) for agent in agents], np.int64)
        stream = _whole_numbers([
            r.stream_id.handle if r.stream_id.handle > 0 else max(r.dispatch_info.queue_id.handle, 0) for r in records
        ])  # fmt: skip
        return {"device": device, "stream": stream}

    def _add(self, category: str, records: Sequence[_Record], names: Sequence[str], **columns: Any) -> None:
        self._rows.add(
            category,
            start_ns=_whole_numbers([r.start_timestamp for r in records]),
            end_ns=_whole_numbers([r.end_timestamp for r in records]),
            name=self._rows.name_codes(names),
            correlation=own_correlation(_whole_numbers([r.correlation_id.internal for r in records]), self._number),
            **columns,
        )

    def _operation(self, record: _Record) -> str:
        kinds = self._process.strings.buffer_records
        if 0 <= record.kind < len(kinds) and 0 <= record.operation < len(kinds[record.kind].operations):
            return kinds[record.kind].operations[record.operation]
        return f"(operation {record.kind}.{record.operation})"


def _sizes(sizes: list[_Size]) -> Ints:
    """[sizes, 3]"""
    return np.stack([_whole_numbers([getattr(size, axis) for size in sizes]) for axis in "xyz"], axis=1)


def _whole_numbers(values: list[int]) -> Ints:
    return np.array([value if abs(value) < 2**63 else 2**63 - 1 for value in values], np.int64)
