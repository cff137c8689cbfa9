"""One training step of a model on a system: time, what it is spent on, memory per pipeline rank."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tracelens.backends.base import Backend
from tracelens.backends.chain import chain
from tracelens.backends.system import System
from tracelens.errors import TracelensError, UsageError
from tracelens.hardware import HardwareSpec
from tracelens.projection import schedules
from tracelens.projection.assumptions import NO_OPTIONS, Options
from tracelens.projection.job import Job
from tracelens.projection.overheads import PLAIN, Software
from tracelens.projection.projection_options import BACKENDS
from tracelens.units import BYTES_PER_GB, TERA_PER_S_IN_PER_US, US_PER_S
from tracelens.workload import memory
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import ParallelConfig

_chain = functools.cache(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One step. ``breakdown_us`` adds up to ``step_us``; its parts are those of the busiest pipeline rank.

    ``tflops_gpu`` counts the model's own work (causal, nothing twice), ``mfu`` is its share of the data sheet's dense
    rate in the precision that weights' products are computed in. ``answered_by`` counts priced operations per
    backend. ``bubble_share`` is what the busiest rank idles of the pipeline's time. ``notes``: what was assumed of the
    system. ``job``: what can be run again, for the timeline of every rank.
    """

    model: ModelConfig
    parallel: ParallelConfig
    system: System
    sequence: int
    schedule: str
    step_us: float
    breakdown_us: dict[str, float]
    stages: tuple[memory.StageMemory, ...]
    tflops_gpu: float
    mfu: float | None
    bubble_share: float
    answered_by: dict[str, int]
    notes: tuple[str, ...]
    backends: str | Backend
    job: Job = field(repr=False, compare=False)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and rank."""
        tokens = self.parallel.global_batch * self.sequence
        return tokens / self.parallel.ranks / (self.step_us / US_PER_S)

    @property
    def tokens_s_gpu(self) -> float:
        """The former name of ``tokens_per_s_per_gpu``, which columns of files keep."""
        return self.tokens_per_s_per_gpu

    @property
    def peak_memory(self) -> memory.StageMemory:
        """The pipeline rank that needs most."""
        return max(self.stages, key=lambda stage: stage.peak)

    @property
    def infeasible(self) -> str | None:
        """Why the step does not fit the devices' memory; None where it does."""
        worst = self.peak_memory
        if worst.fits or worst.capacity is None:
            return None
        needed, given = worst.peak / BYTES_PER_GB, worst.capacity / BYTES_PER_GB
        return f"stage {worst.stage} needs {needed:.1f} GB, the device has {given:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """A change of the configuration, and the share of the step's time that it saves."""

    change: str
    gain: float


def project(
    model: ModelConfig,
    parallel: ParallelConfig,
    system: System,
    *,
    sequence: int,
    schedule: str | None = None,
    backends: str | Backend = BACKENDS,
    software: Software = PLAIN,
    options: Options = NO_OPTIONS,
) -> Projection:
    """The step of ``parallel.global_batch`` sequences of ``sequence`` tokens. ``schedule`` None: 1f1b, or interleaved.

    The step is run as an event graph: pipeline ranks with their tasks, transfers beside them, the host that launches.

    UsageError for degrees that do not divide the model, a schedule that cannot do them, an operation that nobody
    prices on the device.
    """
    priced_on, assumed = completed(system)
    rate = priced_on.device.rate("matrix", parallel.computed_in)
    if rate is None and isinstance(backends, str):  # what a trace measured needs no rate
        raise UsageError(f"{priced_on.device.name} has no matrix rate for {parallel.computed_in.rate}: no step time")
    name = schedule or ("interleaved" if parallel.vpp > 1 else "1f1b")
    if parallel.pp == 1:
        # Without a pipeline there is nothing to interleave.
        name, parallel = "1f1b", replace(parallel, vpp=1)
    order = schedules.load(name)
    job = Job(
        model=model,
        parallel=replace(parallel, vpp=order.chunks(parallel.vpp)),
        system=priced_on,
        sequence=sequence,
        order=order,
        backend=_chain(backends) if isinstance(backends, str) else backends,
        software=software,
        options=options,
    )
    ran = job.run()
    step_us, breakdown = ran.step_us, ran.breakdown(ran.busiest)
    tokens = job.parallel.global_batch * sequence
    tflops = model.flops_per_token(sequence).training * tokens / parallel.ranks / step_us / TERA_PER_S_IN_PER_US
    return Projection(
        model=model,
        parallel=parallel,
        system=system,
        sequence=sequence,
        schedule=name,
        step_us=step_us,
        breakdown_us=breakdown,
        stages=tuple(job.memory(ran.pipeline, rank) for rank in range(parallel.pp)),
        tflops_gpu=tflops,
        # Of the data sheet, at whatever clock the step is projected.
        mfu=None if rate is None else tflops / rate.peak_tflops_s * priced_on.device.clock_scale,
        bubble_share=breakdown.get("pipeline bubble", 0.0) / ran.pipeline.time_us,
        answered_by=job.answered_by,
        notes=tuple(filter(None, (system.note, assumed))),
        backends=backends,
        job=job,
    )


def completed(system: System) -> tuple[System, str | None]:
    """``system`` with the count of compute units and the clock of the device that constants are carried over from,
    where the device's file has none; and what was taken.
    """
    device = system.device
    if device.calibrated_like is None:
        return system, None
    like = HardwareSpec.load(device.calibrated_like)
    taken = {key: like.chip[key] for key in ("compute_units", "clock") if key not in device.chip and key in like.chip}
    if not taken:
        return system, None
    named = " and ".join(key.replace("_", " ") for key in taken)
    completed = replace(device, chip={**device.chip, **taken})
    return replace(system, device=completed), f"{named} of {like.label}: those of {device.label} are not in its file"


def levers(found: Projection, *, most: int = 3) -> tuple[Lever, ...]:
    """The changes of the configuration that save most, each projected on its own and fitting in memory."""
    gains = []
    job = found.job
    for change, parallel, schedule in _changes(found):
        try:
            other = project(
                found.model, parallel, found.system,
                sequence=found.sequence, schedule=schedule, backends=found.backends, software=job.software,
                options=job.options,
            )  # fmt: skip
        except TracelensError:
            continue
        gain = 1 - other.step_us / found.step_us
        if gain > 0 and (other.infeasible is None or found.infeasible is not None):
            gains.append(Lever(change=change, gain=gain))
    return tuple(sorted(gains, key=lambda lever: (-lever.gain, lever.change))[:most])


def _changes(found: Projection) -> Iterator[tuple[str, ParallelConfig, str | None]]:
    """Neighbors of a configuration on the same ranks with the same global batch, and their schedule."""
    p = found.parallel
    schedule = found.schedule if p.pp > 1 else None
    if p.recompute != "none":
        yield "no recomputation", replace(p, recompute="none"), schedule
    if p.tp > 1 and p.tp_overlap != "all":
        yield "overlap tensor-parallel collectives with products", replace(p, tp_overlap="all"), schedule
    if p.tp > 1 and not p.sequence_parallel:
        yield "sequence parallelism", replace(p, sequence_parallel=True), schedule
    if p.attention == "unfused":
        yield "flash attention", replace(p, attention="flash"), schedule
    if p.ep > 1 and not p.ep_overlap:
        yield "overlap expert exchanges with another micro-batch", replace(p, ep_overlap=True), schedule
    yield from _regrouped(p, found.schedule, schedule)


def _regrouped(p: ParallelConfig, runs: str, schedule: str | None) -> Iterator[tuple[str, ParallelConfig, str | None]]:
    """Changes of micro-batches, pipeline and degrees of a step that ``runs`` in a schedule."""
    if p.micro_batches % 2 == 0:
        size, number = 2 * p.micro_batch, p.micro_batches // 2
        yield f"micro-batch {size}", replace(p, micro_batch=size, micro_batches=number), schedule
    if p.micro_batch % 2 == 0:
        size, number = p.micro_batch // 2, 2 * p.micro_batches
        yield f"micro-batch {size}", replace(p, micro_batch=size, micro_batches=number), schedule
    if p.pp > 1:
        yield f"{2 * p.vpp} chunks per pipeline rank", replace(p, vpp=2 * p.vpp), None
        for other in ("zb-h1", "zb-v"):
            if runs != other:
                yield f"schedule {other}", replace(p, vpp=1), other
    for degree in ("tp", "pp", "cp"):
        value = getattr(p, degree)
        if value % 2 == 0 and p.micro_batches % 2 == 0 and (2 * p.dp * p.cp) % (p.shard or 1) == 0:
            halved: dict[str, int] = {degree: value // 2}
            try:
                changed = replace(p, dp=2 * p.dp, micro_batches=p.micro_batches // 2, **halved)  # type: ignore[arg-type]
            except UsageError:
                continue
            yield f"{degree} {value // 2}, dp {changed.dp}", changed, schedule
