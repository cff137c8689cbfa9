"""Perfetto's protobuf: ``.pftrace`` of PyTorch, Kineto, rocprofv3, the ROCm systems profiler and tracelens."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.trace.reading.perfetto_packets import (
    KERNELS,
    NAMES,
    PACKET,
    STAGE_EVENT,
    STAGES,
    Annotations,
    Packets,
    Slices,
    Track,
    loaded,
    unpacked,
)
from tracelens.trace.reading.source import Array, Ints, RowBlocks, Source, coded, coded_pairs, device_category, reader
from tracelens.trace.reading.wire import Wire, WireError
from tracelens.trace.table import (
    ARGUMENT_KEYS,
    ATTRIBUTE_KEYS,
    SEPARATOR,
    Allocations,
    EventWaits,
    Identifier,
    Recorder,
    TraceTable,
    kind_of_category,
)

RECORDER = Recorder(
    file="a Perfetto trace",
    no_shapes="its slices have no 'Input Dims'",
    no_stacks="it has no slices of Python functions",
    shapes_option="torch.profiler with record_shapes=True",
)
# Of a TracePacket: what XPlane, which begins with the same byte, does not have in its planes.
_TELLING = frozenset({8, 10, 11, 12, 41, 43, 44, 50, 59, 60})
_PACKETS_LOOKED_AT = 3
#: What rocprofv3 and the ROCm systems profiler (also as omnitrace) call their categories.
_CATEGORIES = {
    "hip_api": "hip_runtime", "hsa_api": "hsa_runtime", "rccl_api": "rccl_runtime", "marker_api": "user_annotation",
    "kernel_dispatch": "kernel", "memory_copy": "gpu_memcpy", "rocm_hip_api": "hip_runtime",
    "rocm_hsa_api": "hsa_runtime", "rocm_rccl_api": "rccl_runtime", "rocm_marker_api": "user_annotation",
    "rocm_kernel_dispatch": "kernel", "rocm_memory_copy": "gpu_memcpy", "rocm_hip": "hip_runtime",
    "rocm_hsa": "hsa_runtime", "device_hip": "kernel", "device_hsa": "gpu_memcpy", "host": "user_annotation",
    "user": "user_annotation", "python": "python_function", "rocm_roctx": "user_annotation",
}  # fmt: skip
_CALL = re.compile(r"(?:hip|cuda|cu|mtia|ze|ur)[A-Z]")
_PYTHON = re.compile(r"nn\.Module: |.{0,300}\.py\(\d{1,7}\): |<built-in ")
_NUMBER = re.compile(r"(\d{1,9})\D*$")
_STREAM = re.compile(r"(?:stream|queue)\D{0,12}(\d{1,9})", re.IGNORECASE)
_COPY, _SET = re.compile(r"memcpy|copy", re.IGNORECASE), re.compile(r"memset|fill", re.IGNORECASE)
#: Marks of what a slice is, where its writer names no category: the arguments that Kineto gives to each kind.
_MARKS = (("grid", "blocks per SM", "warps per SM", "registers per thread"), ("cuda_sync_kind",), ("cbid", "cid"),
          ("Python id", "Python parent id"), ("Input Dims", "Sequence number", "Concrete Inputs"),
          ("External id", "Ev Idx", "Record function id"), ("bytes", "stream"))  # fmt: skip
_KERNEL, _SYNC, _CALLS, _FUNCTION, _SHAPED, _OP, _ON_STREAM = (1 << i for i in range(len(_MARKS)))
#: Columns of a table, and what arguments hold them, first to last.
_INTEGERS = {
    "correlation": ("correlation", "correlation_id", "corr_id"),
    "external_id": ("External id", "external id"),
    "sequence_number": ("Sequence number",),
    "graph_node": ("graph node id",),
    "device": ("device", "device_id"),
    "stream": ("stream", "stream_id"),
}
_WAITS = {
    "correlation": "correlation", "stream": "wait_on_stream", "record": "wait_on_cuda_event_record_corr_id",
}  # fmt: skip
_ALLOCATION = {
    "bytes": "Bytes", "allocated": "Total Allocated", "reserved": "Total Reserved", "device_type": "Device Type",
    "device": "Device Id",
}  # fmt: skip
_SIGNED = (*ARGUMENT_KEYS, *ATTRIBUTE_KEYS)
_METADATA = ("trace_metadata", "device_properties")


def _is_perfetto(source: Source) -> bool:
    """Whether packets follow one another, each a field 1 with its length, and hold what a TracePacket has."""
    wire, position, found = Wire(source.start), 0, set()
    end = len(source.start)
    for _ in range(_PACKETS_LOOKED_AT):
        if position == end and source.is_whole and position:
            break
        try:
            number, start, stop = next(wire.fields(position, 1 << 62))
            if number != PACKET or stop < 0:
                return False
            for inner, _, _ in wire.fields(start, min(stop, end)):
                found.add(inner)
        except (WireError, IndexError, StopIteration):
            break
        if stop > end:
            break
        position = stop
    return bool(found & _TELLING)


@reader("perfetto", recognizes=_is_perfetto)
def read(source: Source) -> TraceTable:
    """Slices of all tracks and stages of GPUs, in the category that their writer, or what it wrote, says."""
    rows = RowBlocks(source.name)
    try:
        wire, starts, ends, damage = unpacked(Wire(source.whole()), source)
        packets = Packets(wire, starts, ends)
        slices = packets.slices()
        _Rows(rows, packets, slices).add()
        _Stages(rows, packets).add()
    except WireError as error:
        raise source.damage(RECORDER.file, error.position) from error
    if damage >= 0:
        rows.notes.append(f"the file is damaged at byte {damage:,}; what stands before is used")
    if slices.unfinished:
        rows.notes.append(f"{slices.unfinished:,} slices have no end and are left out")
    return rows.table(RECORDER, truncated=damage >= 0)


class _Rows:
    """Slices as rows."""

    def __init__(self, rows: RowBlocks, packets: Packets, slices: Slices) -> None:
        self._rows, self._packets, self._slices = rows, packets, slices
        self._said = Annotations(packets, slices)
        # Arguments that Kineto writes as one JSON text, by slice
        texts = self._said.values("metadata")
        self._inner = {at: loaded(value) for at, value in texts if isinstance(value, str)}
        self._tracks = _Lanes(packets.tracks)

    def add(self) -> None:
        slices, rows = self._slices, self._rows
        self._tracks.name(rows)
        self._add_metadata()
        columns = {name: self._integers(*keys) for name, keys in _INTEGERS.items()}
        category = self._categories()
        flow = np.where((slices.flow > 0) & (columns["correlation"] < 0), slices.flow, -1)
        lane = coded(slices.track, lambda uuid: rows.lanes.of([self._tracks.of(uuid)])[0])
        name_codes = np.array(rows.names.of(slices.names), np.int64)
        names = name_codes[slices.name]
        signature = self._signatures()
        for text in sorted(set(category)):
            here = np.flatnonzero((np.array(category, object) == text) & slices.timed & ~slices.instant)
            block = {key: values[here] for key, values in columns.items()}
            block["name"] = names[here]
            kind = kind_of_category(text).name
            if kind in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "DRIVER"):
                block["correlation"] = np.where(block["correlation"] >= 0, block["correlation"], flow[here])
            if kind in ("KERNEL", "MEMCPY", "MEMSET", "SYNC"):
                self._place(block, here)
                block["lane"] = rows.lane_codes(block["device"], block["stream"])
            else:
                block["lane"] = lane[here]
            if kind not in ("RUNTIME", "DRIVER", "SYNC", "PYTHON_FUNCTION"):
                block["signature"] = signature[here]
            details = functools.partial(self._details, here)
            rows.add(text, start_ns=slices.start_ns[here], end_ns=slices.end_ns[here], details=details, **block)
            if kind == "SYNC":
                said = {name: self._integers(key)[here] for name, key in _WAITS.items()}
                waits = said["record"] > 0
                if waits.any():
                    lanes = block["lane"][waits].astype(np.int32)
                    rows.event_waits = EventWaits(lane=lanes, **{key: of[waits] for key, of in said.items()})
        self._add_allocations(lane)

    def _place(self, block: dict[str, Any], here: Ints) -> None:
        """Device and stream of what ran on one, by its arguments or the name of its track."""
        track = self._slices.track[here]
        block["device"] = np.where(block["device"] >= 0, block["device"], coded(track, self._tracks.device))
        said = (*self._said.values("agent"), *self._said.values("dst_agent"))
        if agent := {at: _number_of(str(value), 0) for at, value in said}:
            block["device"] = np.array([agent.get(at, -1) for at in here.tolist()], np.int64)
        block["device"] = np.maximum(block["device"], 0)
        block["stream"] = np.where(block["stream"] >= 0, block["stream"], coded(track, self._tracks.stream))

    def _details(self, here: Ints, i: int) -> dict[str, Any]:
        return self._said.of(int(here[i]))

    def _integers(self, *keys: str) -> Ints:
        values = np.full(len(self._slices.track), -1, np.int64)
        for key in keys:
            found = self._said.integers(key)
            for at, said in self._inner.items():
                if isinstance(value := said.get(key), int) and abs(value) < 2**62:
                    found[at] = value
            values = np.where(values >= 0, values, found)
        return values

    def _signatures(self) -> Ints:
        """Codes of the arguments that tell calls apart."""
        texts: dict[int, dict[str, bytes]] = {}
        known: dict[int, bytes] = {}
        for key in (*_SIGNED, "copy_bytes"):
            for at, value in self._said.values(key):
                if id(value) not in known:
                    known[id(value)] = msgspec.json.encode(value)
                texts.setdefault(at, {})["bytes" if key == "copy_bytes" else key] = known[id(value)]
            known.clear()
        for at, said in self._inner.items():
            texts.setdefault(at, {}).update({key: msgspec.json.encode(said[key]) for key in _SIGNED if key in said})
        codes = np.full(len(self._slices.track), -1, np.int64)
        code = self._rows.signatures.code
        for at, of in texts.items():
            codes[at] = code(SEPARATOR.join([of.get(key, b"") for key in _SIGNED]))
        return codes

    def _categories(self) -> list[str]:
        """The category of every slice, decided once for each that is alike."""
        slices = self._slices
        marks = np.zeros(len(slices.track), np.int64)
        for i, keys in enumerate(_MARKS):
            marks |= self._said.has(*keys).astype(np.int64) << i
            for at, said in self._inner.items():
                marks[at] |= int(not said.keys().isdisjoint(keys)) << i
        on_stream = coded(slices.track, lambda uuid: int(self._tracks.is_stream(uuid)))
        kinds = slices.category * 2 + on_stream
        texts: dict[str, int] = {}
        found = coded_pairs(
            coded_pairs(kinds, marks, lambda kind, mark: kind << len(_MARKS) | mark),
            slices.name,
            lambda kind, name: texts.setdefault(
                _category(
                    slices.categories[kind >> len(_MARKS) + 1],
                    slices.names[name],
                    kind & (1 << len(_MARKS)) - 1,
                    bool(kind >> len(_MARKS) & 1),
                ),
                len(texts),
            ),
        )
        spelled = list(texts)
        return [spelled[code] for code in found.tolist()]

    def _add_metadata(self) -> None:
        """What stands round the events: Kineto's instants of texts."""
        slices = self._slices
        wanted = [slices.names.index(name) for name in _METADATA if name in slices.names]
        for at in np.flatnonzero(slices.instant & np.isin(slices.name, wanted)).tolist():
            for key, value in self._said.of(at).items():
                self._rows.metadata["deviceProperties" if key == "properties" else key] = _unwrapped(value)

    def _add_allocations(self, lane: Ints) -> None:
        slices = self._slices
        here = slices.instant & slices.timed & self._said.has("Bytes")
        if not here.any():
            return
        columns: dict[str, Array] = {name: self._said.integers(key)[here] for name, key in _ALLOCATION.items()}
        columns |= {key: columns[key].astype(np.int32) for key in ("device_type", "device")}
        self._rows.allocations = Allocations(lane=lane[here].astype(np.int32), time_ns=slices.start_ns[here], **columns)


def _category(category: str, name: str, marks: int, on_stream: bool) -> str:
    """What a slice is: its writer's word, or what its name and arguments tell."""
    if known := _CATEGORIES.get(category.lower()):
        return "gpu_memset" if known == "gpu_memcpy" and _SET.search(name) else known
    if kind_of_category(category).name != "OTHER" or category == "Trace":
        return category
    return _told(name, marks, on_stream)


def _told(name: str, marks: int, on_stream: bool) -> str:
    """What the name, the arguments and the track of a slice tell."""
    if marks & _SYNC:
        return "cuda_sync"
    if marks & _KERNEL or (marks & _ON_STREAM and name.startswith(("Memcpy", "Memset"))):
        return device_category(name)
    if _CALL.match(name) and (marks & _CALLS or not marks & ~_ON_STREAM):
        return _runtime(name)
    if marks & _FUNCTION or _PYTHON.match(name):
        return "python_function"
    if on_stream:
        return "gpu_user_annotation" if marks & _OP else device_category(name)
    return "cpu_op" if marks & _SHAPED or ("::" in name and marks & _OP) else "user_annotation"


def _runtime(name: str) -> str:
    vendor = next((v for v in ("hip", "mtia", "cuda") if name.startswith(v)), "")
    if vendor:
        return f"{vendor}_runtime"
    return "cuda_driver" if name.startswith("cu") else "xpu_runtime"


class _Lanes:
    """(process, thread) of tracks: of the thread that one is, or is below; else of itself."""

    def __init__(self, tracks: dict[int, Track]) -> None:
        self._tracks = tracks

    def of(self, uuid: int) -> tuple[Identifier, Identifier]:
        above = list(self._upwards(uuid))
        if thread := next((track.thread for track in above if track.thread is not None), None):
            return thread
        process = next((track.process for track in above if track.process is not None), None)
        root = above[-1].name if len(above) > 1 else 0
        return root if process is None else process, (above[0].name if above else "") or f"track {uuid}"

    def name(self, rows: RowBlocks) -> None:
        for track in self._tracks.values():
            if track.process is not None and (track.process_name or track.name):
                rows.process_names[track.process] = track.process_name or track.name
            if track.thread is not None and (track.thread_name or track.name):
                rows.thread_names[track.thread] = track.thread_name or track.name

    def is_stream(self, uuid: int) -> bool:
        """Whether slices of a track without further word ran on a device: it is called stream or queue."""
        return any(_STREAM.search(track.thread_name or track.name) is not None for track in self._upwards(uuid))

    def device(self, uuid: int) -> int:
        track = next((t for t in self._upwards(uuid) if t.thread is not None), None)
        return track.thread[0] if track is not None and track.thread is not None and track.thread[0] < 1024 else -1

    def stream(self, uuid: int) -> int:
        for track in self._upwards(uuid):
            if match := _STREAM.search(track.thread_name or track.name):
                return int(match[1])
            if track.thread is not None:
                return track.thread[1]
        return 0

    def _upwards(self, uuid: int) -> Iterator[Track]:
        for _ in range(_MOST_PARENTS):
            if (track := self._tracks.get(uuid)) is None:
                return
            yield track
            uuid = track.parent


_MOST_PARENTS = 32


class _Stages:
    """Stages that GPUs went through (GpuRenderStageEvent): how PyTorch writes what ran on a device."""

    def __init__(self, rows: RowBlocks, packets: Packets) -> None:
        self._rows, self._packets = rows, packets

    def add(self) -> None:
        packets, rows = self._packets, self._rows
        outer = packets.found.spans[STAGE_EVENT]
        timed = packets.timed[outer.owner]
        wire = packets.wire
        numbers = (1, 2, 3, 4, 11, 13, 14, 19, 20)
        found = wire.columns(outer.start, outer.end, numbers, (6, 17, 21))
        integers, scope = found.integers, packets.scope[outer.owner]
        self._specified = self._specifications()
        stage = self._named(scope, found.integers[14], found.there[14], integers[4], 3)
        queue = self._named(scope, found.integers[13], found.there[13], integers[3], 2)
        names = {"": 0}
        name = packets.text_codes(NAMES, scope, integers[20], found.spans[17], names)
        kernel = coded_pairs(scope, integers[19], lambda *key: names.setdefault(
            packets.texts[KERNELS].get(key, ""), len(names)))  # fmt: skip
        name = np.where(name > 0, name, kernel)
        name = np.where(name > 0, name, np.array([names.setdefault(text, len(names)) for text in stage], np.int64))
        spelled = list(names)
        said = self._extra(found.spans[6].owner, found.spans[6].start, found.spans[6].end, len(stage))
        start = packets.time_ns[outer.owner]
        category = [_stage_category(text, spelled[code]) for text, code in zip(stage, name.tolist(), strict=True)]
        stream = np.array(
            [_number_of(text, iid) for text, iid in zip(queue, integers[13].tolist(), strict=True)], np.int64
        )
        texts = [str(each.get("correlation", "")) for each in said]
        correlation = np.array([int(t) if t.isdecimal() and len(t) < 19 else -1 for t in texts], np.int64)
        correlation = np.where(correlation > 0, correlation, integers[1])
        device = np.maximum(integers[11], 0)
        codes = np.array(rows.names.of(spelled), np.int64)[name]
        launch = self._launches(found.spans[21].owner, found.spans[21].start, found.spans[21].end)
        signature = self._signatures(said)
        here, of_event = np.flatnonzero(timed), np.array(category, object)

        def details(i: int) -> dict[str, Any]:
            at = int(here[i])
            known = {key: _unwrapped(value) for key, value in said[at].items()}
            return known | (dict(zip(("grid", "block"), launch[at], strict=True)) if at in launch else {})

        rows.add_each(
            of_event[here].tolist(),
            start_ns=start[here],
            end_ns=start[here] + np.maximum(integers[2][here], 0),
            name=codes[here],
            device=device[here],
            stream=stream[here],
            correlation=np.where(of_event == "gpu_user_annotation", -1, correlation)[here],
            signature=signature[here],
            details=details,
        )

    def _specifications(self) -> dict[tuple[int, int], str]:
        """Names by field (2: queues, 3: stages) and place, of writers that list them in an event."""
        outer, wire = self._packets.found.spans[STAGE_EVENT], self._packets.wire
        found: dict[tuple[int, int], str] = {}
        for _, start, end in wire.columns(outer.start, outer.end, (), (7,)).spans[7]:
            count = {2: 0, 3: 0}
            for number, first, stop in wire.fields(start, end):
                if number in count and stop >= 0:
                    text = wire.message(first, stop).get(1)
                    found[number, count[number]] = text.decode("utf-8", "replace") if isinstance(text, bytes) else ""
                    count[number] += 1
        return found

    def _named(self, scope: Ints, iid: Ints, there: npt.NDArray[np.bool_], old: Ints, field: int) -> list[str]:
        texts = self._packets.texts[STAGES]
        return [
            texts.get((s, i), "") if known else self._specified.get((field, o), "")
            for s, i, known, o in zip(scope.tolist(), iid.tolist(), there.tolist(), old.tolist(), strict=True)
        ]

    def _extra(self, owner: Ints, start: Ints, end: Ints, count: int) -> list[dict[str, Any]]:
        said: list[dict[str, Any]] = [{} for _ in range(count)]
        pairs = self._packets.wire.columns(start, end, (), (1, 2)).spans
        text = self._packets.wire.text
        values = {owner: span for owner, *span in pairs[2]}
        for at, first, last in pairs[1]:
            said[int(owner[at])][text(first, last)] = text(*values[at]) if at in values else ""
        return said

    def _launches(self, owner: Ints, start: Ints, end: Ints) -> dict[int, tuple[list[int], list[int]]]:
        """Grid and block by event."""
        wire = self._packets.wire
        sizes = wire.columns(start, end, (), (1, 2)).spans
        found: dict[int, tuple[list[int], list[int]]] = {}
        for which in (1, 2):
            spans = sizes[which]
            axes = wire.columns(spans.start, spans.end, (1, 2, 3)).integers
            triples = np.stack([np.maximum(axes[axis], 1) for axis in (1, 2, 3)], axis=1).tolist()
            for at, triple in zip(owner[spans.owner].tolist(), triples, strict=True):
                found.setdefault(at, ([1, 1, 1], [1, 1, 1]))[which - 1][:] = triple
        return found

    def _signatures(self, said: list[dict[str, Any]]) -> Ints:
        code = self._rows.signatures.code
        return np.array(
            [
                code(
                    SEPARATOR.join(
                        [msgspec.json.encode(_unwrapped(each[key])) if key in each else b"" for key in _SIGNED]
                    )
                )
                if any(key in each for key in _SIGNED)
                else -1
                for each in said
            ],
            np.int64,
        )


def _stage_category(stage: str, name: str) -> str:
    for text in (stage, name[:6]):
        if _SET.search(text):
            return "gpu_memset"
        if _COPY.search(text):
            return "gpu_memcpy"
    return "gpu_user_annotation" if "annotation" in stage.lower() else "kernel"


def _number_of(text: str, otherwise: int) -> int:
    match = _NUMBER.search(text)
    return int(match[1]) if match else otherwise


def _unwrapped(value: Any) -> Any:
    """A text that is JSON as what it spells."""
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value.encode())
        except (msgspec.DecodeError, RecursionError):
            return value
    return value
