"""The events of a trace as NumPy columns, texts and signatures interned, and tables with added host events."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.narrow_columns import Column, keep_narrow
from tracelens.types.records import Record, pd
from tracelens.types.signature import DeviceProperties, OpSignature, ShapeSlot, freeze

#: The arguments every op may have, in the order of a signature's first four parts.
ARGUMENT_KEYS = ("Input Dims", "Input type", "Input Strides", "Concrete Inputs")
#: The arguments that tell collectives, copies and compiled kernels apart; sorted, as in ``OpSignature.attributes``.
ATTRIBUTE_KEYS = (
    "Collective name", "Dst Rank", "Group size", "In msg nelems", "In split size", "Out msg nelems", "Out split size",
    "Process Group Description", "Process Group Name", "Process Group Ranks", "Src Rank", "bytes", "dtype",
    "kernel_backend", "kernel_flop", "kernel_kwargs", "kernel_num_gb",
)  # fmt: skip

# Valid JSON text holds no NUL byte.
SEPARATOR = b"\x00"
_PARTS = len(ARGUMENT_KEYS) + len(ATTRIBUTE_KEYS)


class SignatureStore:
    """Distinct signature texts, coded by first appearance. Texts that differ in whitespace only share a code."""

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._code_of_text: dict[bytes, int] = {}
        self._code_of_recorded: dict[bytes, int] = {}
        self.has_shapes = False

    def __len__(self) -> int:
        return len(self._texts)

    def code(self, recorded: bytes) -> int:
        """Code of a text as recorded: each part's JSON, joined by ``SEPARATOR``; absent last parts may be left out."""
        code = self._code_of_recorded.get(recorded)
        if code is None:
            code = self._code_of_recorded[recorded] = self._intern(recorded)
        return code

    def code_of(self, signature: OpSignature) -> int:
        """Code of what a signature has beside its name; -1 for a bare name."""
        text = _recorded(signature)
        return self.code(text) if text else -1

    def signature(self, name: str, code: int) -> OpSignature:
        """The signature ``code`` of an op called ``name``, parsed now; the bare name for -1."""
        if code < 0:
            return OpSignature(name=name)
        parts = self._texts[code].split(SEPARATOR)
        attributes = zip(ATTRIBUTE_KEYS, parts[len(ARGUMENT_KEYS) :], strict=True)
        return signature_of_lists(
            name,
            *(_parsed_list(part) for part in parts[: len(ARGUMENT_KEYS)]),
            attributes=tuple((key, _frozen(_parsed(part))) for key, part in attributes if part),
        )

    def extended(self, signatures: Iterable[OpSignature]) -> tuple[SignatureStore, list[int]]:
        """A store with these signatures too, and the code of each; -1 for a bare name."""
        store = SignatureStore()
        store._texts = list(self._texts)
        store._code_of_text = {text: code for code, text in enumerate(store._texts)}
        store.has_shapes = self.has_shapes
        codes = [store._intern(text) if (text := _recorded(signature)) else -1 for signature in signatures]
        store.forget_recorded()
        return store, codes

    def forget_recorded(self) -> None:
        """Drop the index of texts as recorded, which only reading needs."""
        self._code_of_recorded.clear()
        self._code_of_text.clear()

    def reorder(self, order: list[int]) -> None:
        """Signatures get new codes; ``order``: the former code of each. Only after ``forget_recorded``."""
        self._texts = [self._texts[code] for code in order]

    def _intern(self, recorded: bytes) -> int:
        parts = [_compact(part) for part in recorded.split(SEPARATOR)]
        parts += [b""] * (_PARTS + 1 - len(parts))
        old_dims = parts.pop()
        parts[0] = parts[0] or old_dims
        text = SEPARATOR.join(parts)
        code = self._code_of_text.setdefault(text, len(self._texts))
        if code == len(self._texts):
            self._texts.append(text)
            self.has_shapes |= not text.startswith(SEPARATOR)
        return code


def signature_of_lists(
    name: str,
    dims: tuple[Any, ...] | None,
    types: tuple[Any, ...] | None,
    strides: tuple[Any, ...] | None,
    scalars: tuple[Any, ...] | None,
    *,
    attributes: tuple[tuple[str, Any], ...] = (),
) -> OpSignature:
    """Of what a file has by argument, as ``freeze`` gives it; a size that is none counts as absent."""
    return OpSignature(
        name=name,
        shapes=_slots(dims),
        dtypes=_texts(types),
        strides=_slots(strides),
        scalars=_texts(scalars),
        attributes=attributes,
    )


def _recorded(signature: OpSignature) -> bytes:
    """The text of a signature; empty when nothing but its name is known."""
    attributes = dict(signature.attributes)
    values = (signature.shapes, signature.dtypes, signature.strides, signature.scalars)
    parts = [*values, *(attributes.get(key) for key in ATTRIBUTE_KEYS)]
    if all(part is None for part in parts):
        return b""
    return SEPARATOR.join(b"" if part is None else json.dumps(part).encode() for part in parts)


def _compact(part: bytes) -> bytes:
    if not part:
        return part
    try:
        return msgspec.json.format(part, indent=-1)
    except (msgspec.DecodeError, RecursionError):
        return part.strip()


def _parsed(part: bytes) -> Any:
    if not part:
        return None
    try:
        return msgspec.json.decode(part)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return json.loads(part.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None


@functools.lru_cache(maxsize=4096)
def _parsed_list(part: bytes) -> tuple[Any, ...] | None:
    value = _parsed(part)
    return _frozen(value) if isinstance(value, list) else None


def _frozen(value: Any) -> Any:
    """None for what is nested deeper than Python follows: from 3.12 on, decoders read deeper than that."""
    try:
        return freeze(value)
    except RecursionError:
        return None


def _slots(values: tuple[Any, ...] | None) -> tuple[ShapeSlot, ...] | None:
    """Sizes, or lists of sizes, per argument; what is neither counts as absent."""
    if values is None:
        return None
    return tuple(v if _is_sizes(v) or (isinstance(v, tuple) and all(map(_is_sizes, v))) else () for v in values)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(n, int) for n in value)


def _texts(values: tuple[Any, ...] | None) -> tuple[str, ...] | None:
    return None if values is None else tuple(v if isinstance(v, str) else str(v) for v in values)


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


#: 2007-06-23, CUDA 1.0.
_FIRST_GPU_PROGRAM_NS = 1_182_556_800 * 10**9
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


class Losses(Record, frozen=True, kw_only=True):
    """What of a file could not be used. ``repaired``: values put right (negative durations set to 0, escapes ...).

    ``notes`` are sentences for people, one per cause; ``truncated``: the file is truncated.
    """

    damaged_events: int = 0
    truncated: bool = False
    notes: tuple[str, ...] = ()
    repaired: int = 0

    def __bool__(self) -> bool:
        return bool(self.damaged_events or self.truncated or self.repaired or self.notes)


class Recorder(Record, frozen=True, kw_only=True):
    """What made a file. ``file``: how a sentence names it; ``no_shapes``, ``no_stacks``: why it has none.

    ``shapes_option``: what records them, in brackets of a sentence.
    """

    file: str = "a trace of torch.profiler"
    no_shapes: str = "record_shapes was off"
    no_stacks: str = "with_stack was off"
    shapes_option: str = "record_shapes=True"


class ProcessGroup(Record, frozen=True, kw_only=True):
    """Ranks that communicate under one name; ``ranks`` is empty where they were not recorded."""

    name: str
    ranks: tuple[int, ...]
    description: str = ""


#: The same of arrows.
NARROW_FLOW_COLUMNS: dict[str, type[np.integer[Any]]] = {"category": np.int16, "id": np.int64, "lane": np.int32}


class _Columns(Record, frozen=False, kw_only=True, eq=False):
    """Columns of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))

    def where(self, rows: npt.NDArray[np.bool_]) -> Self:
        return replace(self, **{name: getattr(self, name)[rows] for name in self.__struct_fields__})


class Flows(_Columns, frozen=False, kw_only=True, eq=False):
    """Columns of the arrows' ends (phases ``s`` and ``f``), in file order. A text id has a code below -1 as its id."""

    is_start: npt.NDArray[np.bool_]
    category: Column[np.int16]
    id: Column[np.int64]
    lane: Column[np.int32]
    time_ns: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        keep_narrow(self, NARROW_FLOW_COLUMNS)


class EventWaits(_Columns, frozen=False, kw_only=True, eq=False):
    """Columns of the recorded waits for an event: the waiting call's correlation, the stream on which the event was
    recorded, and the correlation of the call that recorded it."""

    lane: npt.NDArray[np.int32]
    correlation: npt.NDArray[np.int64]
    stream: npt.NDArray[np.int64]
    record: npt.NDArray[np.int64]


class Allocations(_Columns, frozen=False, kw_only=True, eq=False):
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


class DramSamples(_Columns, frozen=False, kw_only=True, eq=False):
    """Columns of measured traffic of device memory (CUPTI's PM sampling, GPU metrics of Nsight Systems): from
    ``time_ns`` to the device's next sample.

    ``moved_bytes``: read and written. ``tensor_percent``, ``sm_active_percent``: how busy the tensor pipes and the
    multiprocessors were. NaN where not recorded. The process of a lane is the device's number.
    """

    lane: npt.NDArray[np.int32]
    time_ns: npt.NDArray[np.int64]
    read_bytes: npt.NDArray[np.float64]
    written_bytes: npt.NDArray[np.float64]
    moved_bytes: npt.NDArray[np.float64]
    tensor_percent: npt.NDArray[np.float64]
    sm_active_percent: npt.NDArray[np.float64]


class EventLookup(Protocol):
    """Where a table reads whole events from when someone asks."""

    def event(self, file_index: int) -> dict[str, Any]:
        """The element ``file_index`` of the file's event list."""


#: Where the number of a graph begins in the id of its node (``cudaGraphNodeGetToolsId``).
GRAPH_BITS = 32

#: The columns of a table, and the type they are read in.
COLUMNS: dict[str, type[np.integer[Any]]] = {
    "kind": np.uint8, "category": np.int16, "name": np.int32, "lane": np.int32, "start_ns": np.int64,
    "duration_ns": np.int64, "stream": np.int32, "correlation": np.int64, "external_id": np.int64,
    "sequence_number": np.int64, "graph_node": np.int64, "signature": np.int32, "device": np.int32,
    "file_index": np.int32,
}  # fmt: skip
#: Those that are kept narrow: not the kind, which is one byte, nor start and place in the file, which rise.
NARROW_COLUMNS = {name: of for name, of in COLUMNS.items() if name not in ("kind", "start_ns", "file_index")}


@dataclass(slots=True, kw_only=True, eq=False)
class TraceTable:
    """One row per complete event (phase ``X``, or a matched ``B``/``E`` pair), in file order.

    Codes index ``categories``, ``names`` and ``lanes`` ((pid, tid)), which are in order of first appearance; -1 is
    "not recorded" in every column. Times are whole ns on the file's own clock: ``ts`` times 1000, nothing rebased.
    ``graph_node``: the node of a graph that a device event ran, with the graph's number from ``GRAPH_BITS`` on.
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
    graph_node: Column[np.int64]
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
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    process_names: dict[Identifier, str] = dataclasses.field(default_factory=dict)
    process_labels: dict[Identifier, str] = dataclasses.field(default_factory=dict)
    thread_names: dict[tuple[Identifier, Identifier], str] = dataclasses.field(default_factory=dict)
    pair_ends: dict[int, int] = dataclasses.field(default_factory=dict)
    events_total: int = 0
    #: Where counters of power stand in the file, as ``lookup`` takes it.
    power_counters: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    counts_by_phase: dict[str, int] = dataclasses.field(default_factory=dict)
    losses: Losses = dataclasses.field(default_factory=Losses)
    recorder: Recorder = dataclasses.field(default_factory=Recorder)
    _op_signatures: dict[tuple[int, int], OpSignature] = dataclasses.field(default_factory=dict, repr=False)

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
        if key not in self._op_signatures:
            self._op_signatures[key] = self.signatures.signature(self.names[name_code], signature_code)
        return self._op_signatures[key]

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
    def began_ns(self) -> int | None:
        """When the first event was, ns since the epoch; None where the clock is another: its times are of years before
        GPUs ran programs."""
        first_ns = self.base_ns + int(self.start_ns.min()) if len(self) else 0
        return first_ns if first_ns >= _FIRST_GPU_PROGRAM_NS else None

    @property
    def has_shapes(self) -> bool:
        """Whether any event records its input shapes."""
        return self.signatures.has_shapes

    @property
    def has_stacks(self) -> bool:
        return bool((self.kind == Kind.PYTHON_FUNCTION).any())

    @property
    def has_device_events(self) -> bool:
        return bool(self.is_of(DEVICE_KINDS).any())

    def is_of(self, kinds: Iterable[Kind]) -> npt.NDArray[np.bool_]:
        found = np.zeros(len(self), np.bool_)
        for kind in kinds:  # a quarter of the time of looking each row up
            found |= self.kind == kind
        return found

    def is_named(self, codes: Collection[int]) -> npt.NDArray[np.bool_]:
        wanted = np.zeros(len(self.names), np.bool_)
        wanted[list(codes)] = True
        return wanted[self.name[:]]

    def ends_ns(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        return self.start_ns[rows] + self.duration_ns[rows]

    def rows_of(self, kinds: Iterable[Kind]) -> RowColumn:
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
        """The device that ran most of the device events; the first device if no number matches."""
        devices = self.device_properties()
        numbers = self.device[self.is_of(DEVICE_KINDS)]
        counts = np.bincount(numbers[(numbers >= 0) & (numbers < len(devices))], minlength=1)
        return devices[int(counts.argmax())] if devices else None

    @property
    def rank(self) -> int | None:
        """``distributedInfo.rank``, else what the file name says (``rank-3``, ``rank[3]``, ``rank3``), else None."""
        rank = self._distributed("rank")
        if rank is None and (found := RANK_IN_NAME.findall(self.source)):
            rank = int(found[-1])
        return rank if rank is None or rank < _MOST_RANKS else None

    @property
    def world_size(self) -> int | None:
        """Number of ranks of the job, or None when not recorded."""
        return self._distributed("world_size")

    def process_groups(self) -> tuple[ProcessGroup, ...]:
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


# Ten times the largest jobs: what is above was damaged, and all ranks up to it would not fit in memory.
_MOST_RANKS = 1_000_000
RANK_IN_NAME = re.compile(r"(?<![a-z])rank[\[_\-]?(\d+)", re.IGNORECASE)

Ints = npt.NDArray[np.int64]

_CATEGORY = {Kind.CPU_OP: "cpu_op", Kind.RUNTIME: "cuda_runtime", Kind.PYTHON_FUNCTION: "python_function"}


class AddedRows(Record, frozen=True, kw_only=True, eq=False):
    """Columns of host events to add. ``name`` and ``signature`` index ``names`` and ``signatures`` (-1: none).

    Of events with the same span on one lane the earlier row is the outer one. Without ``timed`` their times only say
    where they belong, not how long they took.
    """

    kind: npt.NDArray[np.uint8]
    name: Ints
    lane: Ints
    start_ns: Ints
    duration_ns: Ints
    correlation: Ints
    signature: Ints
    names: Sequence[str]
    signatures: Sequence[OpSignature]
    timed: bool = True

    def __len__(self) -> int:
        return len(self.kind)


def with_rows(table: TraceTable, added: AddedRows, correlation: npt.NDArray[np.int64] | None = None) -> TraceTable:
    """A new table: the rows of ``table``, then the added ones. ``correlation`` replaces that of the first.

    ``event`` of an added row is made from its columns. What the file held (``events_total``, losses) stays as it was.
    """
    n = len(added)
    code_of = {name: code for code, name in enumerate(table.names)}
    names = np.array([code_of.setdefault(name, len(code_of)) for name in added.names] or [0], np.int32)
    category_of = {name: code for code, name in enumerate(table.categories)}
    kinds = sorted({int(kind) for kind in added.kind.tolist()})
    categories = {kind: category_of.setdefault(_CATEGORY[Kind(kind)], len(category_of)) for kind in kinds}
    store, codes = table.signatures.extended(added.signatures)
    signature = np.where(added.signature >= 0, np.array([*codes, -1], np.int32)[added.signature], -1)
    # What stands last in a file may have no row
    first = max(int(table.file_index.max(initial=-1)) + 1, table.events_total)
    columns: dict[str, Any] = {
        **dict.fromkeys(COLUMNS, np.full(n, -1, np.int64)),
        "kind": added.kind,
        "category": np.array([categories[int(kind)] for kind in added.kind.tolist()], np.int16),
        "name": names[added.name],
        "lane": added.lane,
        "start_ns": added.start_ns,
        "duration_ns": added.duration_ns,
        "correlation": added.correlation,
        "signature": signature,
        "file_index": np.arange(first, first + n),
    }
    joined: dict[str, Any] = {}
    for key, values in columns.items():
        column = getattr(table, key) if key != "correlation" or correlation is None else correlation
        joined[key] = np.concatenate((column, np.asarray(values).astype(column.dtype)))
    result = replace(
        table, **joined, names=list(code_of), categories=list(category_of), signatures=store, _op_signatures={}
    )
    result.lookup = _AddedEvents(file=table.lookup, table=result, first=first, first_row=len(table), timed=added.timed)
    return result


def node_ids(graph: npt.NDArray[np.int64], node: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Ids of graph nodes with their graph's number above ``GRAPH_BITS``, as CUPTI has them; -1 for none and for 0."""
    node = np.where((node > 0) | ((node == 0) & (graph > 0)), node, -1)
    number = np.where((graph > 0) & (graph < 1 << 31) & (node >= 0) & (node < 1 << GRAPH_BITS), graph, 0)
    return node | (number << GRAPH_BITS)


def has_host_time(table: TraceTable, rows: Ints | RowColumn) -> npt.NDArray[np.bool_]:
    """Whether a row's duration is the host's: not of rows without a time, nor of ops of a device alone."""
    timed = ~table.is_of(DEVICE_KINDS)[rows]
    lookup, end = table.lookup, len(table)
    while isinstance(lookup, _AddedEvents):
        first_row = lookup.first_row
        if not lookup.timed:
            timed &= (rows < first_row) | (rows >= end)
        lookup, end = lookup.file, first_row
    return timed


class _AddedEvents(Record, frozen=True, kw_only=True, eq=False):
    """The events of the file, and those of the rows behind them."""

    file: EventLookup
    table: TraceTable
    first: int
    first_row: int
    timed: bool

    def event(self, file_index: int) -> dict[str, Any]:
        if file_index < self.first:
            return self.file.event(file_index)
        return made_event(self.table, self.first_row + file_index - self.first)


def made_event(table: TraceTable, row: int) -> dict[str, Any]:
    """An event that no file holds as an object, from its columns, as Kineto would have written it."""
    signature = table.signature_of(row)
    parts = (signature.shapes, signature.dtypes, signature.strides, signature.scalars)
    args = {key: _as_written(part) for key, part in zip(ARGUMENT_KEYS, parts, strict=True) if part is not None}
    args |= {key: _as_written(part) for key, part in signature.attributes}
    for key, name in _ARGUMENTS.items():
        if (value := int(getattr(table, key)[row])) >= 0:
            args[name] = value
    return {
        "ph": "X",
        "cat": table.category_of(row),
        "name": table.name_of(row),
        "pid": table.pid_of(row),
        "tid": table.tid_of(row),
        "ts": int(table.start_ns[row]) / 1000,
        "dur": int(table.duration_ns[row]) / 1000,
        "args": args,
    }


def _as_written(value: Any) -> Any:
    """Lists, as a file has them, for tuples."""
    return [_as_written(part) for part in value] if isinstance(value, tuple) else value


_ARGUMENTS = {
    "device": "device", "stream": "stream", "correlation": "correlation", "external_id": "External id",
    "sequence_number": "Sequence number", "graph_node": "graph node id",
}  # fmt: skip
