"""The events of a trace as NumPy columns, with everything textual interned."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.device_properties import DeviceProperties
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.signature import OpSignature
from tracelens.trace.narrow_columns import Column, keep_narrow
from tracelens.trace.signatures import SignatureStore

if TYPE_CHECKING:
    import pandas as pd

#: Numbers of table rows, -1 for none. A column of these per event: half the size of what NumPy counts in.
RowColumn: TypeAlias = npt.NDArray[np.int32]
#: A process or thread as recorded: mostly a number, sometimes text ("Spans").
Identifier: TypeAlias = int | str


class Kind(enum.IntEnum):
    """What an event is, whatever its vendor or the age of its file calls the category."""

    CPU_OP = 0
    RUNTIME = 1
    DRIVER = 2
    KERNEL = 3
    MEMCPY = 4
    MEMSET = 5
    USER_ANNOTATION = 6
    GPU_USER_ANNOTATION = 7
    PYTHON_FUNCTION = 8
    SYNC = 9
    OVERHEAD = 10
    OTHER = 11


#: Kinds that nest on a host thread.
HOST_KINDS = (Kind.CPU_OP, Kind.RUNTIME, Kind.DRIVER, Kind.USER_ANNOTATION, Kind.PYTHON_FUNCTION)
#: Kinds that keep a device busy.
DEVICE_KINDS = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)

#: Threads of ranges on a device that XLA's profiler writes: a training step each, and a run of a compiled program each.
XLA_STEPS, XLA_PROGRAMS = "Steps", "XLA Modules"

# Lower-case: files of PyTorch 1.8 spell Kernel, Memcpy, Memset, Runtime, Operator.
_KINDS = {
    "cpu_op": Kind.CPU_OP,
    "operator": Kind.CPU_OP,
    "runtime": Kind.RUNTIME,
    "driver": Kind.DRIVER,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "memset": Kind.MEMSET,
    "user_annotation": Kind.USER_ANNOTATION,
    "gpu_user_annotation": Kind.GPU_USER_ANNOTATION,
    "python_function": Kind.PYTHON_FUNCTION,
    "cuda_sync": Kind.SYNC,
    "hip_sync": Kind.SYNC,
    "xpu_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
    # libkineto's ActivityType.h gives both as other names of CONCURRENT_KERNEL and RUNTIME.
    "mtia_ccp_events": Kind.KERNEL,
    "hpu_op": Kind.RUNTIME,
}


def kind_of_category(text: str) -> Kind:
    """The kind behind a category as recorded.

    Host calls are ``<vendor>_runtime`` and ``<vendor>_driver`` (cuda, hip, mtia, xpu, privateuse1); Gaudi's ``hpu_op``.

    >>> kind_of_category("hip_runtime"), kind_of_category("Kernel"), kind_of_category("fwdbwd")
    (<Kind.RUNTIME: 1>, <Kind.KERNEL: 3>, <Kind.OTHER: 11>)
    """
    key = text.lower()
    kind = _KINDS.get(key)
    if kind is None:
        kind = Kind.RUNTIME if key.endswith("_runtime") else Kind.DRIVER if key.endswith("_driver") else Kind.OTHER
    return kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """What of a file could not be used. ``repaired``: values put right (negative durations set to 0, escapes ...).

    ``notes`` are sentences for people, one per cause; ``truncated``: the file is truncated.
    """

    damaged_events: int = 0
    truncated: bool = False
    notes: tuple[str, ...] = ()
    repaired: int = 0

    def __bool__(self) -> bool:
        return bool(self.damaged_events or self.truncated or self.repaired or self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """What made a file. ``file``: how a sentence names it; ``no_shapes``, ``no_stacks``: why it has none.

    ``shapes_option``: what records them, in brackets of a sentence.
    """

    file: str = "a trace of torch.profiler"
    no_shapes: str = "record_shapes was off"
    no_stacks: str = "with_stack was off"
    shapes_option: str = "record_shapes=True"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """Ranks that communicate under one name; ``ranks`` is empty where they were not recorded."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


#: The same of arrows.
NARROW_FLOW_COLUMNS: dict[str, type[np.integer[Any]]] = {"category": np.int16, "id": np.int64, "lane": np.int32}


@dataclass(slots=True, kw_only=True, eq=False)
class Flows:
    """Columns of the arrows' ends (phases ``s`` and ``f``), in file order. A text id has a code below -1 as its id."""

    is_start: npt.NDArray[np.bool_]
    category: Column[np.int16]
    id: Column[np.int64]
    lane: Column[np.int32]
    time_ns: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        keep_narrow(self, NARROW_FLOW_COLUMNS)

    def __len__(self) -> int:
        return len(self.id)


@dataclass(slots=True, kw_only=True, eq=False)
class EventWaits:
    """Columns of the recorded waits for an event: the waiting call's correlation, the stream on which the event was
    recorded, and the correlation of the call that recorded it."""

    lane: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    record: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.correlation)


@dataclass(slots=True, kw_only=True, eq=False)
class Allocations:
    """Columns of the allocator's events (``[memory]``), in file order.

    ``bytes``: of one allocation, negative for a release. ``allocated``, ``reserved``: of the device after it, -1 where
    not recorded. ``device_type``: as ``c10::DeviceType`` counts (0 is the CPU).
    """

    lane: npt.NDArray[np.int32]
    time_ns: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    allocated: npt.NDArray[np.int64]
    reserved: npt.NDArray[np.int64]
    device_type: npt.NDArray[np.int32]
    device: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.time_ns)


@dataclass(slots=True, kw_only=True, eq=False)
class DramSamples:
    """Columns of measured traffic of device memory (CUPTI's PM sampling): from ``time_ns`` to the device's next sample.

    ``moved_bytes``: read and written. NaN where not recorded. The process of a lane is the device's number.
    """

    lane: npt.NDArray[np.int32]
    time_ns: npt.NDArray[np.int64]
    read_bytes: npt.NDArray[np.float64]
    written_bytes: npt.NDArray[np.float64]
    moved_bytes: npt.NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.time_ns)


class EventLookup(Protocol):
    """Where a table reads whole events from when someone asks."""

    def event(self, file_index: int) -> dict[str, Any]:
        """The element ``file_index`` of the file's event list."""


#: Columns of a table that are kept narrow, and the type they are read in: all but the kind, which is one byte,
#: and start and place in the file, which rise and so would seldom get smaller.
NARROW_COLUMNS: dict[str, type[np.integer[Any]]] = {
    "category": np.int16, "name": np.int32, "lane": np.int32, "duration_ns": np.int64, "stream": np.int32,
    "correlation": np.int64, "external_id": np.int64, "sequence_number": np.int64, "signature": np.int32,
    "device": np.int32,
}  # fmt: skip


@dataclass(slots=True, kw_only=True, eq=False)
class TraceTable:
    """One row per complete event (phase ``X``, or a matched ``B``/``E`` pair), in file order.

    Codes index ``categories``, ``names`` and ``lanes`` ((pid, tid)), which are in order of first appearance; -1 is
    "not recorded" in every column. Times are whole ns on the file's own clock: ``ts`` times 1000, nothing rebased.
    """

    source: str
    kind: npt.NDArray[np.uint8]
    category: Column[np.int16]
    name: Column[np.int32]
    lane: Column[np.int32]
    start_ns: npt.NDArray[np.int64]
    duration_ns: Column[np.int64]
    stream: Column[np.int32]
    correlation: Column[np.int64]
    external_id: Column[np.int64]
    sequence_number: Column[np.int64]
    signature: Column[np.int32]
    device: Column[np.int32]
    file_index: npt.NDArray[np.int32]
    categories: list[str]
    names: list[str]
    lanes: list[tuple[Identifier, Identifier]]
    signatures: SignatureStore
    flows: Flows
    event_waits: EventWaits
    allocations: Allocations
    dram_samples: DramSamples
    lookup: EventLookup
    metadata: dict[str, Any] = field(default_factory=dict)
    process_names: dict[Identifier, str] = field(default_factory=dict)
    process_labels: dict[Identifier, str] = field(default_factory=dict)
    thread_names: dict[tuple[Identifier, Identifier], str] = field(default_factory=dict)
    pair_ends: dict[int, int] = field(default_factory=dict)
    events_total: int = 0
    counts_by_phase: dict[str, int] = field(default_factory=dict)
    losses: Losses = field(default_factory=Losses)
    recorder: Recorder = field(default_factory=Recorder)
    _op_signatures: dict[tuple[int, int], OpSignature] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        keep_narrow(self, NARROW_COLUMNS)

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        return f"<TraceTable {self.source}: {len(self):,} rows of {self.events_total:,} events>"

    def event(self, row: int) -> dict[str, Any]:
        """The whole event as recorded, read again from the file.

        A ``B``/``E`` pair is given as the complete event it stands for: the begin's dictionary with phase ``X``,
        ``dur`` in µs, and the arguments of both. InputError when the file has changed since it was read.
        """
        index = int(self.file_index[row])
        event = self.lookup.event(index)
        if index in self.pair_ends:
            end = self.lookup.event(self.pair_ends[index])
            event |= {"ph": "X", "dur": int(self.duration_ns[row]) / 1000}
            if args := (event.get("args") or {}) | (end.get("args") or {}):
                event["args"] = args
        return event

    def args(self, row: int) -> dict[str, Any]:
        """The event's ``args``; empty when it has none."""
        args = self.event(row).get("args")
        return args if isinstance(args, dict) else {}

    def signature_of(self, row: int) -> OpSignature:
        """The signature of one row; rows with the same name and arguments share one object."""
        return self.op_signature(int(self.name[row]), int(self.signature[row]))

    def op_signature(self, name_code: int, signature_code: int) -> OpSignature:
        """The signature of a distinct (name, arguments); the bare name for signature code -1."""
        key = (name_code, signature_code)
        signature = self._op_signatures.get(key)
        if signature is None:
            signature = self._op_signatures[key] = self.signatures.signature(self.names[name_code], signature_code)
        return signature

    def name_of(self, row: int) -> str:
        return self.names[int(self.name[row])]

    def category_of(self, row: int) -> str:
        return self.categories[int(self.category[row])]

    def pid_of(self, row: int) -> Identifier:
        return self.lanes[int(self.lane[row])][0]

    def tid_of(self, row: int) -> Identifier:
        return self.lanes[int(self.lane[row])][1]

    @property
    def base_ns(self) -> int:
        """``baseTimeNanoseconds``: what to add to ``start_ns`` for time since the epoch; 0 when not recorded."""
        value = self.metadata.get("baseTimeNanoseconds")
        return value if isinstance(value, int) and 0 <= value < 2**62 else 0

    @property
    def has_shapes(self) -> bool:
        """Whether any event records its input shapes."""
        return self.signatures.has_shapes

    @property
    def has_stacks(self) -> bool:
        """Whether Python functions were recorded."""
        return bool((self.kind == Kind.PYTHON_FUNCTION).any())

    @property
    def has_device_events(self) -> bool:
        return bool(self.is_of(DEVICE_KINDS).any())

    def is_of(self, kinds: Iterable[Kind]) -> npt.NDArray[np.bool_]:
        """Which rows are of any of the kinds."""
        found = np.zeros(len(self), np.bool_)
        for kind in kinds:  # a quarter of the time of looking each row up
            found |= self.kind == kind
        return found

    def is_named(self, codes: Collection[int]) -> npt.NDArray[np.bool_]:
        """Which rows have one of these names."""
        if len(codes) <= _FEW_NAMES:
            found = np.zeros(len(self), np.bool_)
            for code in codes:
                found |= self.name == code
            return found
        wanted = np.zeros(len(self.names), np.bool_)
        wanted[list(codes)] = True
        return wanted[self.name[:]]

    def ends_ns(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """When the events of some rows ended."""
        ends: npt.NDArray[np.int64] = self.start_ns[rows] + self.duration_ns[rows]
        return ends

    def rows_of(self, kinds: Iterable[Kind]) -> RowColumn:
        """Rows of any of the kinds, in file order."""
        return np.flatnonzero(self.is_of(kinds)).astype(np.int32)

    def ranges_on(self, track: str) -> RowColumn:
        """Rows of ranges on the tracks of devices that have this name as their thread, in file order."""
        of_lane = np.array([tid == track for _, tid in self.lanes] or [False], np.bool_)
        found = np.flatnonzero((self.kind == Kind.GPU_USER_ANNOTATION) & of_lane[self.lane[:]])
        return found.astype(np.int32)

    def device_properties(self) -> list[DeviceProperties]:
        """The devices of the recording machine, in file order."""
        entries = self.metadata.get("deviceProperties")
        entries = entries if isinstance(entries, list) else []
        return [DeviceProperties.from_trace(entry) for entry in entries if isinstance(entry, dict)]

    def used_device(self) -> DeviceProperties | None:
        """The device that ran most of the device events; the first where their numbers say none of those recorded."""
        devices = self.device_properties()
        numbers = self.device[self.is_of(DEVICE_KINDS)]
        counts = np.bincount(numbers[(numbers >= 0) & (numbers < len(devices))], minlength=1)
        return devices[int(counts.argmax())] if devices else None

    @property
    def rank(self) -> int | None:
        """``distributedInfo.rank``, else what the file name says (``rank-3``, ``rank[3]``, ``rank3``), else None."""
        rank = self._distributed("rank")
        if rank is None and (found := _RANK_IN_NAME.findall(self.source)):
            rank = int(found[-1])
        return rank if rank is None or rank < _MOST_RANKS else None

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, or None when not recorded."""
        return self._distributed("world_size")

    def process_groups(self) -> tuple[ProcessGroup, ...]:
        """Every recorded process group, in file order."""
        info = self.metadata.get("distributedInfo")
        entries = info.get("pg_config") if isinstance(info, dict) else None
        groups = []
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("pg_name") is not None:
                ranks = entry.get("ranks")
                whole = tuple(r for r in ranks if isinstance(r, int)) if isinstance(ranks, list) else ()
                description = str(entry.get("pg_desc") or "")
                groups.append(ProcessGroup(name=str(entry["pg_name"]), ranks=whole, description=description))
        return tuple(groups)

    def to_pandas(self) -> pd.DataFrame:
        """All rows as a DataFrame, codes spelled out; times in ns (exact) and in µs."""
        import pandas as pd

        pids = np.array([pid for pid, _ in self.lanes], object)
        tids = np.array([tid for _, tid in self.lanes], object)
        return pd.DataFrame(
            {
                "name": pd.Categorical.from_codes(self.name[:], pd.Index(self.names, dtype=object)),
                "kind": pd.Categorical.from_codes(self.kind, pd.Index([kind.name.lower() for kind in Kind])),
                "category": pd.Categorical.from_codes(self.category[:], pd.Index(self.categories, dtype=object)),
                "pid": pids[self.lane],
                "tid": tids[self.lane],
                "start_us": self.start_ns / 1000,
                "duration_us": self.duration_ns / 1000,
                "start_ns": self.start_ns,
                "duration_ns": self.duration_ns[:],
                "stream": self.stream[:],
                "device": self.device[:],
                "correlation": self.correlation[:],
                "external_id": self.external_id[:],
                "sequence_number": self.sequence_number[:],
                "signature": self.signature[:],
            }
        )

    def _distributed(self, key: str) -> int | None:
        info = self.metadata.get("distributedInfo")
        value = info.get(key) if isinstance(info, dict) else None
        if isinstance(value, str) and len(value) < 20 and value.strip().isdecimal():
            value = int(value)
        known = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_RANKS
        return value if known else None


# As many names are found sooner one by one than by looking each row up.
_FEW_NAMES = 4
# Ten times the largest jobs: what is above was damaged, and all ranks up to it would not fit in memory.
_MOST_RANKS = 1_000_000
_RANK_IN_NAME = lazy_pattern(r"(?<![a-z])rank[\[_\-]?(\d+)", re.IGNORECASE)
