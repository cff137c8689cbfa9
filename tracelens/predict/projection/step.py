"""One training step of a model on a system: time, what it is spent on, memory per pipeline rank."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tracelens.backends import origami
from tracelens.backends.base import Backend, System
from tracelens.backends.roofline_and_tile import over_idle_uj
from tracelens.errors import TracelensError, UsageError
from tracelens.files.option_fields import BACKENDS
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import power_constants, room_w
from tracelens.perf_models import PerfModel
from tracelens.predict.projection import schedules
from tracelens.predict.projection.chunk_timing import Block, Transfer
from tracelens.predict.projection.frameworks import unmeasured
from tracelens.predict.projection.job import Job, Run
from tracelens.predict.projection.overheads import NO_OPTIONS, PLAIN, ProjectionOptions, Software, backend_of
from tracelens.predict.workload import memory
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GB, TERA_PER_S_IN_PER_US, US_PER_S

#: Share of a step's work without the gradients of weights: forward, and gradients of activations.
_WITHOUT_WGRAD = 2 / 3
#: Share of a device's memory above which FSDP steps of scripts/train/benchmarking of llm-foundry were slower.
_NEARLY_FULL = 0.93
#: How a change is called, the configuration with it, and its schedule.
_Change: TypeAlias = tuple[str, ParallelConfig, str | None]
#: A perf model, the time of a call in us, how many calls.
_Call: TypeAlias = tuple[PerfModel, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One step. ``breakdown_us`` adds up to ``step_us``; its parts are those of the busiest pipeline rank.

    ``tflops_gpu`` counts the model's own work (causal, nothing twice), ``mfu`` is its share of the data sheet's dense
    rate, whatever the clock, in the precision that weights' products are computed in. ``answered_by`` counts priced
    operations per backend. ``bubble_share`` is what the busiest rank idles of the pipeline's time. ``notes``: what was
    assumed of the system. ``job``: what can be run again, for the timeline of every rank; ``run``: as it ran.
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
    job: Job = dataclasses.field(repr=False, compare=False)
    run: Run = dataclasses.field(repr=False, compare=False)

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens per second and rank."""
        tokens = self.parallel.global_batch * self.sequence
        return tokens / self.parallel.ranks / (self.step_us / US_PER_S)

    @property
    def tokens_s_gpu(self) -> float:
        """The former name of ``tokens_per_s_per_gpu``, which columns of files keep."""
        return self.tokens_per_s_per_gpu

    def but(self, parallel: ParallelConfig, schedule: str | None) -> Projection:
        """The step of another configuration with the same constants. UsageError as of ``project``."""
        return project(
            self.model, parallel, self.system, sequence=self.sequence, schedule=schedule, backends=self.backends,
            software=self.job.software, options=self.job.options,
        )  # fmt: skip

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


class StepEnergy(Record, frozen=True, kw_only=True):
    """What a step's devices draw, without their hosts, NICs and fans. ``power_w``: the mean over the step of a device
    of the busiest pipeline rank; ``step_j`` and ``token_j`` of as many devices as there are. ``idle_share``: what one
    that only waits would draw of it. ``energies_of``: the device whose measured energies they are.
    """

    power_w: float
    step_j: float
    token_j: float
    idle_share: float
    energies_of: str


def energy_of(found: Projection) -> StepEnergy | None:
    """The energy of a step: its kernels' over idle, and idle for as long as the step takes; None where nobody measured
    energies of the device's architecture.

    Kernels draw what their work and their time say (``tracelens.hardware.power``).
    """
    device = found.job.system.device
    constants = power_constants(device)
    if constants is None:
        return None
    rank = found.run.busiest
    counted = [
        (placed.what, count) for each, count in found.run.counted(rank) for placed in (*each.blocks, *each.transfers)
    ]
    # Blocks are shared between passes, and models between blocks: both are told apart by what they are, not by value.
    calls = {id(block): _calls(block) for block, _ in counted}
    ends: list[_Call] = [(op.model, time_us / op.count, op.count) for op, time_us in found.run.finish[rank].ops]
    timed = {(id(model), time_us): model for mine in (*calls.values(), ends) for model, time_us, _ in mine if time_us}
    times = np.array([time_us for _, time_us in timed])
    found_uj = over_idle_uj(constants, list(timed.values()), times, device)
    over_uj: dict[tuple[int, float], float] = dict(zip(timed, found_uj.tolist(), strict=True))

    def joules(mine: Iterable[_Call]) -> float:
        return sum(count * over_uj.get((id(model), time_us), 0.0) for model, time_us, count in mine) * 1e-6

    of_block = {key: joules(mine) for key, mine in calls.items()}
    over_j = joules(ends) + sum(count * of_block[id(block)] for block, count in counted)
    # Transfers run beside kernels: the limit is that of both.
    over_j = min(over_j, room_w(constants) * found.step_us / US_PER_S)
    idle_j = constants.idle_w * found.step_us / US_PER_S
    if not math.isfinite(over_j):
        return None
    step_j = (idle_j + over_j) * found.parallel.ranks
    return StepEnergy(
        power_w=(idle_j + over_j) / found.step_us * US_PER_S,
        step_j=step_j,
        token_j=step_j / (found.parallel.global_batch * found.sequence),
        idle_share=idle_j / (idle_j + over_j),
        energies_of=HardwareSpec.load(constants.carried_from).label if constants.carried_from else device.label,
    )


def _calls(block: Block | Transfer) -> list[_Call]:
    if isinstance(block, Transfer):
        return [(block.model, block.time_us, 1.0)]
    return [(each.op.model, each.time_us / each.op.count, each.op.count) for each in block.kernels]


class Lever(Record, frozen=True, kw_only=True):
    """A change of the configuration, and the share of the step's time that it saves; below 0: that it costs."""

    change: str
    gain: float


def _of_origami(job: Job) -> str | None:
    """What Origami's answers in a step were held against."""
    if origami.Origami.name not in job.answered_by:
        return None
    said = origami.note(job.system.device, job.parallel.precision)
    return f"{said}; no constants of a framework: the step itself is uncalibrated" if job.software == PLAIN else said


def _near_full(parallel: ParallelConfig, stages: Iterable[memory.StageMemory]) -> str | None:
    """What FSDP steps whose memory was nearly full did: no law of it holds for devices left out of its fit."""
    share = max(stage.peak / (stage.capacity or math.inf) for stage in stages)
    if parallel.zero < 3 or not _NEARLY_FULL < share <= 1:
        return None
    return (
        f"memory: {100 * share:.1f} % of the device's is in use; the 4 published FSDP steps above "
        f"{100 * _NEARLY_FULL:.0f} % (MPT-30B on A100 and H100) took 14 to 34 % longer than projected"
    )


def project(
    model: ModelConfig,
    parallel: ParallelConfig,
    system: System,
    *,
    sequence: int,
    schedule: str | None = None,
    backends: str | Backend = BACKENDS,
    software: Software = PLAIN,
    options: ProjectionOptions = NO_OPTIONS,
) -> Projection:
    """The step of ``parallel.global_batch`` sequences of ``sequence`` tokens. ``schedule`` None: 1f1b, or interleaved.

    The step is run as an event graph: pipeline ranks with their tasks, overlapped transfers, the host that launches.

    UsageError for degrees that do not divide the model, a schedule that cannot do them, an operation that nobody
    prices on the device.
    """
    rate = system.device.rate("matrix", parallel.computed_in)
    if rate is None and isinstance(backends, str):  # what a trace measured needs no rate
        why = "choose another --precision" if system.device.matrix else "its file has no matrix rates"
        raise UsageError(f"{system.device.name} has no {parallel.computed_in.rate} rate: {why}")
    name = schedule or ("interleaved" if parallel.vpp > 1 else "1f1b")
    if parallel.pp == 1:  # nothing to interleave
        name, parallel = "1f1b", replace(parallel, vpp=1)
    order = schedules.load(name)
    job = Job(
        model=model,
        parallel=replace(parallel, vpp=order.chunks(parallel.vpp)),
        system=system,
        sequence=sequence,
        order=order,
        backend=backend_of(backends),
        software=software,
        options=options,
    )
    ran = job.run()
    stages = tuple(job.memory(ran.pipeline, rank) for rank in range(parallel.pp))
    step_us, breakdown = ran.step_us, ran.breakdown(ran.busiest)
    flops = model.flops_per_token(sequence).training * (_WITHOUT_WGRAD if parallel.lora else 1)
    tflops = flops * job.parallel.global_batch * sequence / parallel.ranks / step_us / TERA_PER_S_IN_PER_US
    notes = (system.note, system.device.assumed, unmeasured(system, backends), _of_origami(job))
    return Projection(
        model=model,
        parallel=parallel,
        system=system,
        sequence=sequence,
        schedule=name,
        step_us=step_us,
        breakdown_us=breakdown,
        stages=stages,
        tflops_gpu=tflops,
        mfu=None if rate is None else tflops / rate.peak_tflops_s * system.device.clock_scale,
        bubble_share=breakdown.get("pipeline bubble", 0.0) / ran.pipeline.time_us,
        answered_by=job.answered_by,
        notes=tuple(filter(None, (*notes, _near_full(parallel, stages)))),
        backends=backends,
        job=job,
        run=ran,
    )


def levers(found: Projection, *, most: int = 3) -> tuple[Lever, ...]:
    """The changes of the configuration that save most, each projected on its own and fitting in memory.

    Of a step that does not fit: the changes by which it does, what saves memory at the cost of time among them; two
    or three of them together where fewer than ``most`` do alone.
    """
    gains = _gains(found, _changes(found))
    for together in (1, 2, 3):
        if found.infeasible is not None and len(gains) < most:
            gains += _gains(found, _savings(found, together))
    return tuple(sorted(gains, key=lambda lever: (-lever.gain, lever.change))[:most])


def _gains(found: Projection, changes: Iterable[_Change]) -> list[Lever]:
    gains = []
    for change, parallel, schedule in changes:
        try:
            other = found.but(parallel, schedule)
        except TracelensError:
            continue
        gain = 1 - other.step_us / found.step_us
        if other.infeasible is None and (gain > 0 or found.infeasible is not None):
            gains.append(Lever(change=change, gain=gain))
    return gains


#: What can be switched: how the change is called, where it is one, what it sets.
_SWITCHES: tuple[tuple[str, Callable[[ParallelConfig], bool], Mapping[str, Any]], ...] = (
    ("no recomputation", lambda p: p.recompute != "none", {"recompute": "none"}),
    (
        "overlap tensor-parallel collectives with GEMMs",
        lambda p: p.tp > 1 and p.tp_overlap != "all",
        {"tp_overlap": "all"},
    ),
    ("sequence parallelism", lambda p: p.tp > 1 and not p.sequence_parallel, {"sequence_parallel": True}),
    ("flash attention", lambda p: p.attention == "unfused", {"attention": "flash"}),
    (
        "overlap expert exchanges with another micro-batch",
        lambda p: p.ep > 1 and not p.ep_overlap,
        {"ep_overlap": True},
    ),
)


def _changes(found: Projection) -> Iterator[_Change]:
    """Neighbors of a configuration on the same ranks with the same global batch, and their schedule."""
    p = found.parallel
    schedule = found.schedule if p.pp > 1 else None
    switched = ((change, replace(p, **values)) for change, applies, values in _SWITCHES if applies(p))
    for change, parallel in (*switched, *_other_micro_batches(p), *_smaller_groups(p)):
        yield change, parallel, schedule
    if p.pp > 1:
        yield f"{2 * p.vpp} chunks per pipeline rank", replace(p, vpp=2 * p.vpp), None
        for other in ("zb-h1", "zb-v"):
            if found.schedule != other:
                yield f"schedule {other}", replace(p, vpp=1), other


#: What takes less memory per device: the kind of change, how it is called, what it sets.
_SAVINGS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    ("recompute", "selective recomputation", {"recompute": "selective"}),
    ("recompute", "full recomputation", {"recompute": "full"}),
    ("zero", "ZeRO 3", {"zero": 3}),
)


def _savings(found: Projection, together: int) -> Iterator[_Change]:
    """Combinations of ``together`` changes of different kinds that take less memory per device, on the same ranks with
    the same global batch.
    """
    p, has_experts = found.parallel, found.model.experts is not None
    kinds: dict[str, list[tuple[str, Callable[[ParallelConfig], ParallelConfig]]]] = {}
    spread = tuple(("ep", f"ep {ep}", {"ep": ep}) for ep in (8, 16, 32, 64) if ep > p.ep)
    for kind, text, values in (*_SAVINGS, *(spread if has_experts else ())):
        kinds.setdefault(kind, []).append((text, functools.partial(replace, **values)))
    for degree, factor in itertools.product(("tp", "pp"), (2, 4, 8)):
        text = f"{degree} {factor * getattr(p, degree)}"
        kinds.setdefault(degree, []).append((text, functools.partial(_divided, degree=degree, factor=factor)))
    for chosen in itertools.combinations(kinds.values(), together):
        for changes in itertools.product(*chosen):
            with contextlib.suppress(UsageError):
                changed = functools.reduce(lambda parallel, change: change[1](parallel), changes, p)
                texts = [text for text, _ in changes] + ([f"dp {changed.dp}"] if changed.dp != p.dp else [])
                if changed != p:
                    yield ", ".join(texts), changed, None


def _divided(p: ParallelConfig, *, degree: str, factor: int) -> ParallelConfig:
    """``factor`` times the ``degree`` with as many fewer replicas. UsageError where they do not divide."""
    if p.dp % factor:
        raise UsageError(f"dp {p.dp} does not divide by {factor}")
    degrees: dict[str, Any] = {degree: factor * getattr(p, degree)}
    return replace(p, dp=p.dp // factor, micro_batches=factor * p.micro_batches, **degrees)


def _other_micro_batches(p: ParallelConfig) -> Iterator[tuple[str, ParallelConfig]]:
    """Twice the micro-batch, and half of it."""
    if p.micro_batches % 2 == 0:
        size = 2 * p.micro_batch
        yield f"micro-batch {size}", replace(p, micro_batch=size, micro_batches=p.micro_batches // 2)
    if p.micro_batch % 2 == 0:
        size = p.micro_batch // 2
        yield f"micro-batch {size}", replace(p, micro_batch=size, micro_batches=2 * p.micro_batches)


def _smaller_groups(p: ParallelConfig) -> Iterator[tuple[str, ParallelConfig]]:
    """Half of a degree with twice as many replicas, where the configuration can have them."""
    if p.micro_batches % 2 or (2 * p.dp * p.cp) % (p.shard or 1):
        return
    for degree in ("tp", "pp", "cp"):
        value = getattr(p, degree)
        if value % 2 == 0:
            halved: dict[str, Any] = {degree: value // 2}
            with contextlib.suppress(UsageError):
                changed = replace(p, dp=2 * p.dp, micro_batches=p.micro_batches // 2, **halved)
                yield f"{degree} {value // 2}, dp {changed.dp}", changed
