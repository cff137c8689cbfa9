"""Kineto JSON from recorded calls: a written trace reads like one that PyTorch's profiler recorded."""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import orjson

from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_packed_file
from tracelens.trace.table import ARGUMENT_KEYS, ProcessGroup
from tracelens.types.records import Record
from tracelens.types.signature import DeviceProperties, OpSignature

DeviceCategory: TypeAlias = Literal["kernel", "gpu_memcpy", "gpu_memset"]
HostCategory: TypeAlias = Literal["cpu_op", "user_annotation", "python_function"]
LaunchCategory: TypeAlias = Literal["cuda_runtime", "cuda_driver"]


class RecordedKernel(Record, frozen=True, kw_only=True):
    """One device event; times in whole ns on the trace's clock.

    ``details`` are further arguments as Kineto names them (``bytes`` of a copy, ``Collective name`` of a collective).
    """

    name: str
    start_ns: int
    duration_ns: int
    stream: int = 0
    category: DeviceCategory = "kernel"
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    details: tuple[tuple[str, Any], ...] = ()


class RecordedLaunch(Record, frozen=True, kw_only=True):
    """One runtime or driver call; a graph launch holds several kernels, a synchronization none."""

    name: str
    start_ns: int
    duration_ns: int
    kernels: tuple[RecordedKernel, ...] = ()
    category: LaunchCategory = "cuda_runtime"


class RecordedOp(Record, frozen=True, kw_only=True):
    """One call on the host: an op, an annotation or a Python frame, with the calls made inside it.

    ``sequence_number`` joins a forward op with its backward; ``forward_thread`` is what a backward op records of its
    forward (Kineto counts threads from 1), None on forward ops.
    """

    signature: OpSignature
    start_ns: int
    duration_ns: int
    calls: tuple[RecordedCall, ...] = ()
    category: HostCategory = "cpu_op"
    sequence_number: int | None = None
    forward_thread: int | None = None


RecordedCall: TypeAlias = RecordedOp | RecordedLaunch


class HostThread(Record, frozen=True, kw_only=True):
    """The outermost calls of one thread, in the order in which they started."""

    thread_id: int
    calls: tuple[RecordedCall, ...] = ()
    name: str = ""


class DistributedJob(Record, frozen=True, kw_only=True):
    """Which process of a distributed job the trace is of."""

    rank: int
    world_size: int
    process_groups: tuple[ProcessGroup, ...] = ()
    backend: str = "nccl"


class RecordedTrace(Record, frozen=True, kw_only=True):
    """Everything one trace file holds.

    ``device`` is the index in ``devices`` on which the kernels ran. ``earlier_kernels`` were launched before recording
    began: they have no launch. ``labels`` become keys beside ``traceEvents``.
    """

    threads: tuple[HostThread, ...]
    devices: tuple[DeviceProperties, ...] = ()
    device: int = 0
    earlier_kernels: tuple[RecordedKernel, ...] = ()
    distributed: DistributedJob | None = None
    process_id: int = 1000
    process_name: str = "python3"
    base_time_ns: int = 0
    labels: tuple[tuple[str, str], ...] = ()


def write_trace(trace: RecordedTrace, path: str | os.PathLike[str]) -> Path:
    """Writes ``trace`` to ``path`` (gzip when it ends in ``.gz``), whole or not at all, and returns the path.

    The same trace gives the same bytes: no dates, no random names. UsageError when calls do not nest (a child outside
    its caller, siblings that overlap or are out of order, a kernel before its launch), OutputError when the file cannot
    be written.
    """
    target = Path(path)
    with whole_packed_file(target, level=9) as sink:
        text = io.TextIOWrapper(sink, encoding="utf-8", newline="\n", write_through=False)
        for piece in trace_text(trace):
            text.write(piece)
        text.detach()  # what is written is flushed; the file stays open for whoever opened it
    return target


def trace_text(trace: RecordedTrace) -> Iterator[str]:
    """The text of the trace file in pieces, one event a line. UsageError as in ``write_trace``."""
    writer = _Writer(trace)
    head: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [device.to_trace(index) for index, device in enumerate(trace.devices)],
    }
    if trace.distributed is not None:
        # ``distributedInfo`` as PyTorch writes it
        job = trace.distributed
        groups = [
            {
                "pg_name": group.name, "pg_desc": group.description or "undefined",
                "backend_config": f"cuda:{job.backend}", "pg_size": len(group.ranks), "ranks": group.ranks,
            }
            for group in job.process_groups
        ]  # fmt: skip
        head["distributedInfo"] = {
            "backend": job.backend, "rank": job.rank, "world_size": job.world_size, "pg_count": len(groups),
            "pg_config": groups,
        }  # fmt: skip
    head |= {"record_shapes": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": trace.base_time_ns}
    head |= dict(trace.labels)
    yield f'{_json(head)[:-1]},\n"traceEvents":[\n'
    separator = ""
    for event in writer.events():
        yield separator + event
        separator = ",\n"
    yield "\n]}\n"


class _Annotation(Record, frozen=False, kw_only=True):
    """A user annotation and, by stream, when the kernels launched under it ran."""

    name: str
    external_id: int
    spans: dict[int, tuple[int, int]] = msgspec.field(default_factory=dict)

    def cover(self, kernel: RecordedKernel) -> None:
        start, end = kernel.start_ns, kernel.start_ns + kernel.duration_ns
        known = self.spans.get(kernel.stream, (start, end))
        self.spans[kernel.stream] = (min(start, known[0]), max(end, known[1]))


#: A device event, its correlation, the external id of its op, and whether its launch is in the trace.
_Launched: TypeAlias = tuple[RecordedKernel, int, int | None, bool]


class _Writer:
    """Numbers the events of one trace and spells them as Kineto does."""

    def __init__(self, trace: RecordedTrace) -> None:
        self._trace = trace
        self._external_ids = itertools.count(1)
        self._event_indexes = itertools.count(0)
        self._python_ids = itertools.count(1)
        self._correlations = itertools.count(1)
        self._signature_text: dict[OpSignature, str] = {}
        self._annotations: list[_Annotation] = []
        self._launched: list[_Launched] = []
        self._launch_flows: list[str] = []
        self._forward: dict[int, tuple[int, int]] = {}
        self._backward: dict[int, tuple[int, int]] = {}
        self._times: list[int] = []

    def events(self) -> Iterator[str]:
        """Every event: host calls in preorder, device events, flows, names of processes and threads."""
        for kernel in self._trace.earlier_kernels:
            self._launched.append((kernel, next(self._correlations), None, False))
        for thread in self._trace.threads:
            yield from self._host(thread)
        yield from self._device()
        yield from self._launch_flows
        joined = sorted(self._forward.keys() & self._backward.keys())
        for number, sequence_number in enumerate(joined, start=1):
            for phase, ends in (("s", self._forward), ("f", self._backward)):
                thread_id, start_ns = ends[sequence_number]
                yield _flow(phase, "fwdbwd", number, self._trace.process_id, thread_id, start_ns)
        yield from self._names()

    def _host(self, thread: HostThread) -> Iterator[str]:
        waiting: list[_Place] = list(_places(thread.calls, None))
        while waiting:
            place = waiting.pop()
            call = place.call
            self._times += (call.start_ns, call.start_ns + call.duration_ns)
            if isinstance(call, RecordedLaunch):
                yield self._launch(call, place, thread.thread_id)
                continue
            external_id = next(self._external_ids)
            annotations, python_id = place.annotations, place.python_id
            args: dict[str, Any] = {"External id": external_id, "Record function id": 0}
            if call.category == "python_function":
                python_id = next(self._python_ids)
                args = {"Python parent id": place.python_id, "Python id": python_id}
                external_id = place.external_id or 0
            if call.category == "user_annotation":
                annotations = (*annotations, _Annotation(name=call.signature.name, external_id=external_id))
                self._annotations.append(annotations[-1])
            if call.sequence_number is not None:
                args["Sequence number"] = call.sequence_number
                args["Fwd thread id"] = call.forward_thread or 0
                # The last to start of one number carries the flow, as in recorded traces
                ends = self._forward if call.forward_thread is None else self._backward
                known = ends.get(call.sequence_number)
                if known is None or call.start_ns >= known[1]:
                    ends[call.sequence_number] = (thread.thread_id, call.start_ns)
            index = next(self._event_indexes)
            signature = self._arguments(call.signature)
            yield (
                f"{_complete(call.category, call.signature.name, self._trace.process_id, thread.thread_id, call)}"
                f'"args":{_json(args)[:-1]}{signature},"Ev Idx":{index}}}}}'
            )
            waiting += _places(call.calls, call, external_id=external_id, annotations=annotations, python_id=python_id)

    def _launch(self, launch: RecordedLaunch, place: _Place, thread_id: int) -> str:
        correlation = next(self._correlations)
        args: dict[str, Any] = {"correlation": correlation}
        if place.external_id is not None:
            args = {"External id": place.external_id} | args
        for kernel in launch.kernels:
            if kernel.start_ns < launch.start_ns:
                raise UsageError(f"{kernel.name} starts at {kernel.start_ns} ns, before its launch {launch.name}")
            self._launched.append((kernel, correlation, place.external_id, True))
            for annotation in place.annotations:
                annotation.cover(kernel)
        if launch.kernels:
            self._launch_flows.append(
                _flow("s", "ac2g", correlation, self._trace.process_id, thread_id, launch.start_ns)
            )
        head = _complete(launch.category, launch.name, self._trace.process_id, thread_id, launch)
        return f'{head}"args":{_json(args)}}}'

    def _device(self) -> Iterator[str]:
        device = self._trace.device
        for kernel, correlation, external_id, recorded in self._launched:
            args: dict[str, Any] = {"device": device, "stream": kernel.stream, "correlation": correlation}
            if external_id is not None:
                args = {"External id": external_id} | args
            if recorded:
                self._launch_flows.append(_flow("f", "ac2g", correlation, device, kernel.stream, kernel.start_ns))
            args |= {key: value for key, value in (("grid", kernel.grid), ("block", kernel.block)) if value is not None}
            args |= dict(kernel.details)
            self._times += (kernel.start_ns, kernel.start_ns + kernel.duration_ns)
            yield f'{_complete(kernel.category, kernel.name, device, kernel.stream, kernel)}"args":{_json(args)}}}'
        for annotation in self._annotations:
            for stream, (start, end) in sorted(annotation.spans.items()):
                span = RecordedKernel(name=annotation.name, start_ns=start, duration_ns=end - start)
                head = _complete("gpu_user_annotation", annotation.name, device, stream, span)
                yield f'{head}"args":{{"External id":{annotation.external_id}}}}}'

    def _names(self) -> Iterator[str]:
        trace = self._trace
        first, last = (min(self._times), max(self._times)) if self._times else (0, 0)
        devices = range(max(len(trace.devices), trace.device + 1 if self._launched else 0))
        for process, label, order in (
            (trace.process_id, "CPU", trace.process_id),
            *((index, f"GPU {index}", 5_000_000 + index) for index in devices),
        ):
            yield _metadata("process_name", process, 0, first, {"name": trace.process_name})
            yield _metadata("process_labels", process, 0, first, {"labels": label})
            yield _metadata("process_sort_index", process, 0, first, {"sort_index": order})
        for stream in sorted({kernel.stream for kernel, *_ in self._launched}):
            yield _metadata("thread_name", trace.device, stream, first, {"name": f"stream {stream} "})
        for thread in trace.threads:
            name = f"thread {thread.thread_id} ({thread.name or trace.process_name})"
            yield _metadata("thread_name", trace.process_id, thread.thread_id, first, {"name": name})
        span = RecordedKernel(name="PyTorch Profiler (0)", start_ns=first, duration_ns=last - first)
        yield f'{_complete("Trace", span.name, "Spans", "PyTorch Profiler", span)}"args":{{"Op count":0}}}}'
        yield (f'{{"ph":"i","name":"Record Window End","s":"g","pid":"","tid":"","ts":{_microseconds(last)}}}')

    def _arguments(self, signature: OpSignature) -> str:
        """The recorded arguments of a signature as ``,"key":value`` text; spelled once per distinct signature."""
        text = self._signature_text.get(signature)
        if text is None:
            parts = (signature.shapes, signature.dtypes, signature.strides, signature.scalars)
            slots = zip(ARGUMENT_KEYS, parts, strict=True)
            args = {key: value for key, value in slots if value is not None} | dict(signature.attributes)
            text = self._signature_text[signature] = f",{_json(args)[1:-1]}" if args else ""
        return text


class _Place(Record, frozen=True, kw_only=True):
    """A call still to be written, and what it inherits from its callers."""

    call: RecordedCall
    external_id: int | None
    annotations: tuple[_Annotation, ...]
    python_id: int | None


def _places(
    calls: Iterable[RecordedCall],
    caller: RecordedOp | None,
    *,
    external_id: int | None = None,
    annotations: tuple[_Annotation, ...] = (),
    python_id: int | None = None,
) -> list[_Place]:
    """The calls of one caller, last first. UsageError when they overlap, are out of order, or outlive the caller."""
    places = []
    earliest = 0 if caller is None else caller.start_ns
    for call in calls:
        name = call.name if isinstance(call, RecordedLaunch) else call.signature.name
        if call.duration_ns < 0:
            raise UsageError(f"{name} at {call.start_ns} ns lasts {call.duration_ns} ns")
        if call.start_ns < earliest:
            raise UsageError(f"{name} starts at {call.start_ns} ns, before {earliest} ns where it may start")
        earliest = call.start_ns + call.duration_ns
        if caller is not None and earliest > caller.start_ns + caller.duration_ns:
            raise UsageError(f"{name} ends at {earliest} ns, after its caller {caller.signature.name}")
        places.append(_Place(call=call, external_id=external_id, annotations=annotations, python_id=python_id))
    return places[::-1]


def _complete(category: str, name: str, pid: int | str, tid: int | str, event: RecordedKernel | RecordedCall) -> str:
    """The start of an ``X`` event, up to its args."""
    return (
        f'{{"ph":"X","cat":"{category}","name":{_json(name)},"pid":{_json(pid)},"tid":{_json(tid)},'
        f'"ts":{_microseconds(event.start_ns)},"dur":{_microseconds(event.duration_ns)},'
    )


def _flow(phase: str, category: str, number: int, pid: int, tid: int, time_ns: int) -> str:
    binding = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","id":{number},"pid":{pid},"tid":{tid},"ts":{_microseconds(time_ns)},'
        f'"cat":"{category}","name":"{category}"{binding}}}'
    )


def _metadata(name: str, pid: int, tid: int, time_ns: int, args: dict[str, Any]) -> str:
    return f'{{"name":"{name}","ph":"M","ts":{_microseconds(time_ns)},"pid":{pid},"tid":{tid},"args":{_json(args)}}}'


def _microseconds(time_ns: int) -> str:
    """Whole ns as µs with three decimals: exact at any size, which a float is not."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
