"""A projected step as Kineto traces, one per distinct rank, which ``tracelens report`` and Perfetto read."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_folder
from tracelens.hardware.recognition import recorded_properties
from tracelens.perf_models import Collective, EPComm, PerfModel, recorded_signature
from tracelens.predict.projection.chunk_timing import COMPUTE, Kernel, Transfer
from tracelens.predict.projection.job import Job, Run
from tracelens.predict.projection.schedules import Task
from tracelens.trace.writer import (
    DistributedJob,
    HostThread,
    RecordedCall,
    RecordedKernel,
    RecordedLaunch,
    RecordedOp,
    RecordedTrace,
    write_trace,
)
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature
from tracelens.types.units import NS_PER_US

#: Streams as their numbers in the trace.
STREAMS = {
    COMPUTE: 7, "tp": 20, "cp": 21, "ep": 22, "fsdp": 23, "dp": 24,
    "send forward": 25, "send backward": 26, "receive forward": 27, "receive backward": 28, "dp gather": 29,
}  # fmt: skip
_HOST = "host"
_WORDS = {"F": "forward", "B": "backward", "D": "input gradient", "W": "weight gradient"}
# "dgrad" and "wgrad" in a kernel's name mean a convolution's
_PHASES = {"dgrad": "input_gradient", "wgrad": "weight_gradient"}
# How NCCL calls a kernel and PyTorch the collective in it
_SPELLED = {
    "all_gather": ("AllGather", "_allgather_base"),
    "reduce_scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all_reduce": ("AllReduce", "allreduce"),
    "all_to_all": ("SendRecv", "all_to_allv"),
    "send": ("SendRecv", "send"),
    "recv": ("SendRecv", "recv"),
    "barrier": ("AllReduce", "barrier"),
}


class TimelineEvent(NamedTuple):
    """One operation on one stream of a rank's device; whole ns from the step's start.

    ``launch_ns`` and ``host_ns``: when the host began and how long it took, on the thread of the compute stream's
    launches; None for transfers, which a thread of their own launches when they start.
    """

    name: str
    model: PerfModel | None
    stream: str
    start_ns: int
    duration_ns: int
    launch_ns: int | None = None
    host_ns: int = 0
    task: str = ""


class RankTimeline(Record, frozen=True, kw_only=True):
    """Everything that one pipeline rank's device does in a step, by launch."""

    rank: int
    events: tuple[TimelineEvent, ...]
    step_ns: int

    def op_times_ns(self) -> dict[str, tuple[int, int]]:
        """Name -> how often, and how long in all."""
        calls: Counter[str] = Counter()
        times: dict[str, int] = defaultdict(int)
        for event in self.events:
            calls[event.name] += 1
            times[event.name] += event.duration_ns
        return {name: (calls[name], times[name]) for name in sorted(calls)}


def timeline(job: Job, ran: Run, rank: int) -> RankTimeline:
    """What pipeline rank ``rank`` does."""
    found = [*_tasks(job, ran, rank), *_hops(job, ran, rank), *_finish(job, ran, rank)]
    return RankTimeline(rank=rank, events=tuple(_one_at_a_time(found)), step_ns=_ns(ran.step_us))


def write_traces(job: Job, ran: Run, folder: Path, ranks: Sequence[int] | None = None) -> list[Path]:
    """One trace per rank of ``ranks`` in ``folder``; None: one per distinct rank, which is the first of each stage.

    UsageError for a rank that the job does not have, OutputError when a file cannot be written.
    """
    parallel = job.parallel
    chosen = [stage * parallel.stage_ranks for stage in range(parallel.pp)] if ranks is None else list(ranks)
    for rank in chosen:
        if not 0 <= rank < parallel.ranks:
            raise UsageError(f"rank {rank} is not one of the {parallel.ranks} ranks of this step")
    with whole_folder(folder) as staging:
        for rank in chosen:
            stage = timeline(job, ran, rank // parallel.stage_ranks)
            write_trace(_recorded(job, stage, rank), staging / f"rank{rank}.json.gz")
    return [folder / f"rank{rank}.json.gz" for rank in chosen]


def _tasks(job: Job, ran: Run, rank: int) -> Iterator[TimelineEvent]:
    """Kernels of the rank's tasks, no earlier than the host launched them, and the overlapped transfers."""
    pipeline, free_us, passes = ran.pipeline, 0.0, ran.passes(rank)
    starts_us, ends_us = pipeline.starts_us[rank], pipeline.ends_us[rank]
    for at, one in enumerate(passes):
        for transfer, at_us, time_us in one.transfers:
            if isinstance(transfer, Transfer):
                stream = "fsdp" if job.parallel.zero == 3 else "dp gather" if transfer.key[0] == "gather" else "dp"
                name = f"weights.{transfer.key[0]}.{transfer.model.kind}"
                yield TimelineEvent(name, transfer.model, stream, _ns(starts_us[at] + at_us), _ns(time_us))
        if at - 1 in pipeline.pairs[rank]:
            continue
        beside = range(at, at + 1 + (at in pipeline.pairs[rank]))
        due = [
            _Due(starts_us[each] + kernel.start_us, kernel, _label(ran.tasks[rank][each]))
            for each in beside
            for kernel in passes[each].kernels()
        ]
        ready_us = max(starts_us[each] + passes[each].time_us - passes[each].parts.get("host", 0.0) for each in beside)
        late_us = max(0.0, max(ends_us[each] for each in beside) - ready_us)
        free_us = max(free_us, pipeline.launches_us[rank][at])
        launched = list(
            _launched(sorted(due, key=lambda each: each.at_us), free_us, job.software.host_us_per_op, late_us)
        )
        yield from launched
        free_us = max((((each.launch_ns or 0) + each.host_ns) / NS_PER_US for each in launched), default=free_us)


class _Due(NamedTuple):
    """A kernel, when its turn has come, and the pass that it is of."""

    at_us: float
    kernel: Kernel
    label: str


def _label(task: Task) -> str:
    return f"{_WORDS[task.kind]} of micro-batch {task.micro_batch}, chunk {task.chunk}"


def _launched(due: Sequence[_Due], free_us: float, host_us: float, late_us: float) -> Iterator[TimelineEvent]:
    """The kernels of a pass in order, each when its turn has come and it has been launched.

    The host, which is free from ``free_us`` on and needs ``host_us`` per launch, launches at a steady pace and with
    such a lead that it delays the last kernels by just ``late_us``.
    """
    latest = [each.at_us + late_us for each in due]
    lead_us = min((last - (at + 1) * host_us for at, last in enumerate(latest)), default=free_us)
    begins_us = done_us = max(free_us, min([lead_us, *(each.at_us for each in due[:1])]))
    pace_us = max(1 / NS_PER_US, min(((last - begins_us) / (at + 1) for at, last in enumerate(latest)), default=0.0))
    delay_us = 0.0
    for number, (at_us, kernel, label) in enumerate(due, 1):
        launch_us, done_us = done_us, begins_us + number * pace_us
        delay_us = max(delay_us, done_us - at_us)
        phase = "recompute" if kernel.again else _PHASES.get(kernel.op.phase, kernel.op.phase)
        yield TimelineEvent(
            f"{kernel.op.name}.{phase}", kernel.op.model, kernel.stream, _ns(at_us + delay_us), _ns(kernel.time_us),
            _ns(launch_us), _ns(done_us) - _ns(launch_us), label,
        )  # fmt: skip


def _hops(job: Job, ran: Run, rank: int) -> Iterator[TimelineEvent]:
    """Sends, and receives from when the rank waits for them."""
    pipeline = ran.pipeline
    elements = round(
        job.parallel.micro_batch * job.sequence * job.model.hidden / (job.parallel.cp * job.parallel.row_share)
    )
    width = job.parallel.width
    models = {
        word: Collective(kind=word, elements_in=elements, elements_out=elements, ranks=2, dtype=width)
        for word in ("send", "recv")
    }
    free = busy_until = 0.0
    for at, task in enumerate(ran.tasks[rank]):
        if at - 1 not in pipeline.pairs[rank]:
            free = busy_until
        way = "forward" if task.kind == "F" else "backward"
        received, sent = pipeline.received_us(rank, task), pipeline.sent_us(rank, task)
        if received is not None:
            left, came = received
            start = min(free, left) if came > free else left
            yield TimelineEvent(
                f"pipeline.recv.{way}", models["recv"], f"receive {way}", _ns(start), _ns(came) - _ns(start)
            )
        if sent is not None:
            yield TimelineEvent(
                f"pipeline.send.{way}", models["send"], f"send {way}", _ns(sent[0]), _ns(sent[1]) - _ns(sent[0])
            )
        busy_until = max(busy_until, pipeline.ends_us[rank][at])


def _finish(job: Job, ran: Run, rank: int) -> Iterator[TimelineEvent]:
    """The gradients' norm, its sum, in which ranks wait for each other, the optimizer, and the wait for the slowest."""
    finish = ran.finish[rank]
    (norm, norm_us), (total, _), (adam, adam_us) = finish.ops
    summed_ns, ready_us = _ns(finish.summed_us), finish.reduced_us + norm_us
    yield TimelineEvent(norm.name, norm.model, COMPUTE, _ns(finish.reduced_us), _ns(norm_us))
    yield TimelineEvent(total.name, total.model, "dp", _ns(ready_us), summed_ns - _ns(ready_us))
    yield TimelineEvent(adam.name, adam.model, COMPUTE, summed_ns, _ns(adam_us))
    end_ns = summed_ns + _ns(adam_us)
    barrier = Collective(
        kind="barrier", elements_in=0, elements_out=0, ranks=job.parallel.ranks, dtype=job.parallel.width
    )
    yield TimelineEvent("step.barrier", barrier, "dp", end_ns, max(_ns(ran.step_us) - end_ns, 0))


def _one_at_a_time(events: Iterable[TimelineEvent]) -> Iterator[TimelineEvent]:
    """In the order of their start on each stream, none before the one before it ended; without empty ones.

    Times are exact to a nanosecond each, so rounding can have two overlap by one.
    """
    free: dict[str, int] = defaultdict(int)
    for event in sorted(events, key=lambda each: each.start_ns):
        if not event.duration_ns:
            continue
        start = max(event.start_ns, free[event.stream])
        free[event.stream] = start + event.duration_ns
        yield event._replace(start_ns=start)


def _recorded(job: Job, stage: RankTimeline, rank: int) -> RecordedTrace:
    """The host's launches on one thread, every stream of transfers with a thread of its own."""
    launched = sorted((h for h in stage.events if h.launch_ns is not None), key=lambda h: (h.launch_ns, h.start_ns))
    others: dict[str, list[TimelineEvent]] = defaultdict(list)
    for event in stage.events:
        if event.launch_ns is None:
            others[event.stream].append(event)
    last = others.pop(COMPUTE, [])
    calls: tuple[RecordedCall, ...] = (
        *_annotated(launched),
        *_waited(launched, last),
        *(_call(h, h.start_ns, h.duration_ns) for h in last),
    )
    step = RecordedOp(
        signature=OpSignature(name="ProfilerStep#0"), start_ns=0, duration_ns=stage.step_ns, calls=calls,
        category="user_annotation",
    )  # fmt: skip
    threads = [HostThread(thread_id=1, calls=(step,), name=_HOST)]
    for number, (stream, mine) in enumerate(sorted(others.items()), start=2):
        threads.append(
            HostThread(thread_id=number, calls=tuple(_call(h, h.start_ns, h.duration_ns) for h in mine), name=stream)
        )
    return RecordedTrace(
        threads=tuple(threads),
        devices=(recorded_properties(job.system.device),),
        distributed=DistributedJob(rank=rank, world_size=job.parallel.ranks),
        labels=(("generated_by", "tracelens project: a projection, no device ran this"),),
    )


def _waited(launched: Sequence[TimelineEvent], last: Sequence[TimelineEvent]) -> Iterator[RecordedLaunch]:
    """The host's wait for the gradients: it launches what follows them only once they are there."""
    done_ns = max(((event.launch_ns or 0) + event.host_ns for event in launched), default=0)
    if last and last[0].start_ns > done_ns:
        yield RecordedLaunch(
            name="cudaStreamSynchronize", start_ns=done_ns, duration_ns=last[0].start_ns - done_ns, kernels=()
        )


def _annotated(launched: Sequence[TimelineEvent]) -> Iterator[RecordedOp]:
    """One annotation per task round the calls in it."""
    calls: list[RecordedOp] = []
    task = ""
    for event in launched:
        if event.task != task and calls:
            yield _round(task, calls)
            calls = []
        task = event.task
        calls.append(_call(event, event.launch_ns or 0, event.host_ns))
    if calls:
        yield _round(task, calls)


def _round(task: str, calls: Sequence[RecordedOp]) -> RecordedOp:
    start, end = calls[0].start_ns, calls[-1].start_ns + calls[-1].duration_ns
    return RecordedOp(
        signature=OpSignature(name=task), start_ns=start, duration_ns=end - start, calls=tuple(calls),
        category="user_annotation",
    )  # fmt: skip


def _call(event: TimelineEvent, start_ns: int, duration_ns: int) -> RecordedOp:
    """An operation of the host that launches one kernel."""
    details, word = _details(event.model), _word(event.model)
    kernel = RecordedKernel(
        name=event.name if word is None else f"ncclDevKernel_{_SPELLED[word][0]}({event.name})",
        start_ns=event.start_ns,
        duration_ns=event.duration_ns,
        stream=STREAMS[event.stream],
        details=details,
    )
    launch = RecordedLaunch(name="cudaLaunchKernel", start_ns=start_ns, duration_ns=duration_ns, kernels=(kernel,))
    signature = OpSignature(name=event.name)
    if details:
        signature = OpSignature(name="record_param_comms", attributes=tuple(sorted(details)))
    elif event.model is not None:
        signature = recorded_signature(event.model) or signature
    return RecordedOp(signature=signature, start_ns=start_ns, duration_ns=duration_ns, calls=(launch,))


def _word(model: PerfModel | None) -> str | None:
    """Which collective a model is; None for computing."""
    if isinstance(model, EPComm):
        return "all_to_all"
    return model.word if isinstance(model, Collective) else None


def _details(model: PerfModel | None) -> tuple[tuple[str, object], ...]:
    """What PyTorch records of a collective; nothing of computing."""
    word = _word(model)
    if word is None:
        return ()
    if isinstance(model, EPComm):
        elements = (model.tokens * (model.hidden or 0),) * 2
    else:
        elements = (model.elements_in, model.elements_out)  # type: ignore[union-attr]
    dtype = model.compute_dtype if model is not None else None
    return (
        ("Collective name", _SPELLED[word][1]),
        ("In msg nelems", elements[0]),
        ("Out msg nelems", elements[1]),
        ("Group size", model.ranks),  # type: ignore[union-attr]
        ("dtype", "" if dtype is None else dtype.traced),
    )


def _ns(time_us: float) -> int:
    return round(time_us * NS_PER_US)
