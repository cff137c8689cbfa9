"""One training step of a model on a system: time, what it is spent on, memory per pipeline rank."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from tracelens.backends.base import Backend
from tracelens.backends.chain import chain
from tracelens.backends.system import System
from tracelens.errors import TracelensError, UsageError
from tracelens.groups import Group
from tracelens.hardware import HardwareSpec
from tracelens.network.algorithms import collective_us
from tracelens.network.topology import Topology
from tracelens.perf_models import PerfModel, WorkColumns
from tracelens.projection import pipeline, schedules
from tracelens.projection.exposure import REDUCED_BYTES, exposed_us, hop_us, last_bucket_us
from tracelens.projection.software import PLAIN, Software, sustained_us
from tracelens.units import BYTES_PER_GB, BYTES_PER_GIB, TERA_PER_S_IN_PER_US
from tracelens.workload import memory, rank_ops
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import ParallelConfig
from tracelens.workload.rank_ops import RankLayer, RankOp

#: Who prices operations unless said otherwise; the roofline comes last.
BACKENDS = "tile,collectives"
#: Of the products' time, what ring exchanges beside them hide behind.
TP_HIDDEN = 0.6
_US_PER_S = 1e6
#: Time in us by what it is spent on.
Parts: TypeAlias = dict[str, float]
_chain = functools.cache(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """One step. ``breakdown_us`` adds up to ``step_us``; its parts are those of the busiest pipeline rank.

    ``tflops_gpu`` counts the model's own work (causal, nothing twice), ``mfu`` is its share of the data sheet's dense
    rate in the precision that weights' products are computed in. ``answered_by`` counts priced operations per
    backend. ``bubble_share`` is what the busiest rank idles of the pipeline's time. ``notes``: what was assumed of the
    system.
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
    answered_by: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def tokens_s_gpu(self) -> float:
        """Tokens per second and rank."""
        tokens = self.parallel.global_batch * self.sequence
        return tokens / self.parallel.ranks / (self.step_us / _US_PER_S)

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
    backends: str = BACKENDS,
    software: Software = PLAIN,
) -> Projection:
    """The step of ``parallel.global_batch`` sequences of ``sequence`` tokens. ``schedule`` None: 1f1b, or interleaved.

    UsageError for degrees that do not divide the model, a schedule that cannot do them, an operation that nobody
    prices on the device.
    """
    priced_on, assumed = completed(system)
    name = schedule or ("interleaved" if parallel.vpp > 1 else "1f1b")
    if parallel.pp == 1:
        # Without a pipeline there is nothing to interleave.
        name, parallel = "1f1b", replace(parallel, vpp=1)
    order = schedules.load(name)
    step = _Step(
        model=model,
        parallel=replace(parallel, vpp=order.chunks(parallel.vpp)),
        system=priced_on,
        sequence=sequence,
        schedule=name,
        order=order,
        backend=_chain(backends),
        software=software,
    )
    return replace(step.projection(), system=system, notes=tuple(filter(None, (system.note, assumed))))


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


def levers(
    found: Projection, *, backends: str = BACKENDS, software: Software = PLAIN, most: int = 3
) -> tuple[Lever, ...]:
    """The changes of the configuration that save most, each projected on its own and fitting in memory."""
    gains = []
    for change, parallel in _changes(found.parallel):
        try:
            other = project(
                found.model, parallel, found.system,
                sequence=found.sequence, backends=backends, software=software,
            )  # fmt: skip
        except TracelensError:
            continue
        gain = 1 - other.step_us / found.step_us
        if gain > 0 and (other.infeasible is None or found.infeasible is not None):
            gains.append(Lever(change=change, gain=gain))
    return tuple(sorted(gains, key=lambda lever: (-lever.gain, lever.change))[:most])


def _changes(parallel: ParallelConfig) -> Iterable[tuple[str, ParallelConfig]]:
    """Neighbors of a configuration on the same ranks with the same global batch."""
    p = parallel
    if p.recompute != "none":
        yield "no recomputation", replace(p, recompute="none")
    if p.tp > 1 and not p.tp_overlap:
        yield "overlap tensor-parallel collectives with products", replace(p, tp_overlap=True)
    if p.tp > 1 and not p.sequence_parallel:
        yield "sequence parallelism", replace(p, sequence_parallel=True)
    if p.attention == "unfused":
        yield "flash attention", replace(p, attention="flash")
    if p.micro_batches % 2 == 0:
        changed = replace(p, micro_batch=2 * p.micro_batch, micro_batches=p.micro_batches // 2)
        yield f"micro-batch {changed.micro_batch}", changed
    if p.micro_batch % 2 == 0:
        changed = replace(p, micro_batch=p.micro_batch // 2, micro_batches=2 * p.micro_batches)
        yield f"micro-batch {changed.micro_batch}", changed
    if p.pp > 1:
        yield f"{2 * p.vpp} chunks per pipeline rank", replace(p, vpp=2 * p.vpp)
    for degree in ("tp", "pp", "cp"):
        value = getattr(p, degree)
        if value % 2 == 0 and p.micro_batches % 2 == 0 and (2 * p.dp * p.cp) % (p.shard or 1) == 0:
            halved: dict[str, int] = {degree: value // 2}
            try:
                changed = replace(p, dp=2 * p.dp, micro_batches=p.micro_batches // 2, **halved)  # type: ignore[arg-type]
            except UsageError:
                continue
            yield f"{degree} {value // 2}, dp {changed.dp}", changed


def layer_counts(layers: int, parts: int) -> tuple[int, ...]:
    """Layers of each of ``parts`` parts of the model, in order.

    Even where it comes out; else embedding and head count as a layer each where that comes out; else the longer parts
    stand in the middle. UsageError for a part with nothing in it.
    """
    each, more = divmod(layers, parts)
    if not more:
        return (each,) * parts
    if (layers + 2) % parts == 0:
        even = (layers + 2) // parts
        return (even - 1, *(even,) * (parts - 2), even - 1)
    if not each:
        raise UsageError(f"{layers} layers cannot be divided into {parts} parts (pp * vpp)")
    first = (parts - more + 1) // 2
    return tuple(each + (first <= part < first + more) for part in range(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Of one micro-batch through some layers, by part; exposed communication only.

    ``dgrad`` is the backward without the weights' gradients.
    """

    forward: Parts
    dgrad: Parts
    wgrad: Parts

    @property
    def backward_us(self) -> float:
        return sum(self.dgrad.values()) + sum(self.wgrad.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """What one rank holds of one part of the model: how often each layer, and its ends."""

    layers: Counter[str]
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    model: ModelConfig
    parallel: ParallelConfig
    system: System
    sequence: int
    schedule: str
    order: schedules.Order
    backend: Backend
    software: Software

    def projection(self) -> Projection:
        parallel = self.parallel
        chunks = self._chunks()
        built = self._build()
        priced, answered = self._priced(op for layers in built.values() for layer in layers for op in layer.ops)
        times = {name: self._times(layers, priced) for name, layers in built.items()}
        costs = [[self._chunk_times(chunk, times, built) for chunk in rank] for rank in chunks]
        ran = self._pipeline(chunks, costs, built)
        held = [self._held(rank, built) for rank in chunks]
        busiest = max(range(parallel.pp), key=lambda rank: ran.busy_us[rank])
        passes = parallel.micro_batches // len(self._routes())
        breakdown: dict[str, float] = defaultdict(float)
        for cost in costs[busiest]:
            for part, time_us in (*cost.forward.items(), *cost.dgrad.items(), *cost.wgrad.items()):
                breakdown[part] += passes * time_us
        breakdown["pp"] = ran.transfer_us[busiest]
        breakdown["pipeline bubble"] = ran.time_us - ran.busy_us[busiest] - breakdown["pp"]
        breakdown["dp"] = max(self._data_parallel_us(layers, rank) for layers, rank in zip(held, costs, strict=True))
        breakdown["optimizer"] = max(self._optimizer_us(layers) for layers in held)
        step_us = ran.time_us + breakdown["dp"] + breakdown["optimizer"]
        tokens = parallel.global_batch * self.sequence
        tflops = self.model.flops_per_token(self.sequence).training * tokens / parallel.ranks / step_us
        tflops /= TERA_PER_S_IN_PER_US
        rate = self.system.device.rate("matrix", parallel.computed_in)
        return Projection(
            model=self.model,
            parallel=parallel,
            system=self.system,
            sequence=self.sequence,
            schedule=self.schedule,
            step_us=step_us,
            breakdown_us={part: value for part, value in breakdown.items() if value},
            stages=tuple(
                self._memory(rank, held[rank], chunks[rank], ran.kept_bytes[rank]) for rank in range(parallel.pp)
            ),
            tflops_gpu=tflops,
            mfu=None if rate is None else tflops / rate.peak_tflops_s,
            bubble_share=breakdown["pipeline bubble"] / ran.time_us,
            answered_by=answered,
        )

    def _routes(self) -> Sequence[schedules.Route]:
        return self.order.routes(self.parallel.pp, self.parallel.vpp)

    def _chunks(self) -> list[list[_Chunk]]:
        """``[rank][chunk]``."""
        layers = self.model.layers
        made: dict[tuple[int, int], _Chunk] = {}
        for route in self._routes():
            at = 0
            for part, count in enumerate(layer_counts(len(layers), len(route))):
                ends = (*(("embedding",) if part == 0 else ()), *(("head",) if part == len(route) - 1 else ()))
                made[route[part]] = _Chunk(layers=Counter(layers[at : at + count]), ends=ends)
                at += count
        return [[made[rank, chunk] for chunk in range(self.parallel.vpp)] for rank in range(self.parallel.pp)]

    def _pipeline(
        self, chunks: Sequence[Sequence[_Chunk]], costs: Sequence[Sequence[_Times]], built: dict[str, list[RankLayer]]
    ) -> pipeline.Pipeline:
        parallel = self.parallel
        times: dict[schedules.Kind, list[list[float]]] = {
            "F": [[sum(c.forward.values()) for c in rank] for rank in costs],
            "D": [[sum(c.dgrad.values()) for c in rank] for rank in costs],
            "W": [[sum(c.wgrad.values()) for c in rank] for rank in costs],
            "B": [[c.backward_us for c in rank] for rank in costs],
        }
        means = {kind: sum(map(sum, of_rank)) / parallel.pp / parallel.vpp for kind, of_rank in times.items()}
        hop = self._transfer_us()
        plan = schedules.Plan(
            ranks=parallel.pp,
            chunks=parallel.vpp,
            micro_batches=parallel.micro_batches,
            forward_us=means["F"],
            dgrad_us=means["D"],
            wgrad_us=means["W"],
            transfer_us=hop,
        )
        return pipeline.run(
            self.order.tasks(plan),
            self._routes(),
            times_us=times,
            kept_bytes=[[self._kept(chunk) for chunk in rank] for rank in chunks],
            later_bytes=[[self._later(chunk, built) for chunk in rank] for rank in chunks],
            hops_us=[hop] * parallel.pp,
        )

    def _build(self) -> dict[str, list[RankLayer]]:
        """The blocks of each distinct layer, and the ends."""
        arguments = (self.model, self.parallel)
        letters = {letter: rank_ops.block(*arguments, letter, self.sequence) for letter in set(self.model.blocks)}
        built = {layer: [letters[letter] for letter in layer] for layer in set(self.model.layers)}
        built["embedding"] = [rank_ops.embedding(*arguments, self.sequence)]
        built["head"] = [rank_ops.head(*arguments, self.sequence)]
        return built

    def _priced(self, ops: Iterable[RankOp]) -> tuple[dict[PerfModel, float], dict[str, int]]:
        names = {op.model: op.name for op in ops}
        models = list(names)
        found = self.backend.estimate_many(WorkColumns.of(models), self.system)
        unknown = np.flatnonzero(np.isnan(found.time_us))
        if len(unknown):
            raise UsageError(f"{names[models[unknown[0]]]}: no backend prices it on {self.system.device.name}")
        answered = Counter(name for name in found.backend if name is not None)
        time_us = sustained_us(found, models, self.system)
        return dict(zip(models, time_us.tolist(), strict=True)), dict(sorted(answered.items()))

    def _times(self, layers: Sequence[RankLayer], priced: dict[PerfModel, float]) -> _Times:
        """One layer's, with recomputation, and what its collectives leave exposed."""
        spent: dict[str, Parts] = {phase: defaultdict(float) for phase in ("forward", "dgrad", "wgrad")}
        repeated: Parts = defaultdict(float)
        for op in (op for layer in layers for op in layer.ops):
            time_us = priced[op.model] * self.software.of(op)
            spent[op.phase][op.part] += time_us
            if op.core:
                repeated[op.part] += time_us
        forward, dgrad, wgrad = spent.values()
        self._overlap(forward, forward["gemm"])
        self._overlap(dgrad, dgrad["gemm"] + wgrad["gemm"])
        is_end = layers[0].letter in ("embedding", "head")
        if self.parallel.recompute == "full" and not is_end:
            dgrad["recompute"] = sum(forward.values())
        elif self.parallel.recompute == "selective":
            dgrad["recompute"] = sum(repeated.values())
        if self.parallel.zero == 3:
            gather, scatter = self._shard_us(layers)
            forward["fsdp"] = float(exposed_us(gather, sum(forward.values())))
            dgrad["fsdp"] = float(exposed_us(gather + scatter, sum(dgrad.values()) + sum(wgrad.values())))
        return _Times(forward=forward, dgrad=dgrad, wgrad=wgrad)

    def _overlap(self, parts: Parts, products_us: float) -> None:
        """Products in tp pieces, each beside the next piece's transfer: the first piece has nothing to hide behind, and
        products leave others only a part of their time.
        """
        tp = self.parallel.tp
        if self.parallel.tp_overlap and "tp" in parts:
            first = parts["tp"] / tp
            parts["tp"] = first + max(0.0, parts["tp"] - first - TP_HIDDEN * products_us)

    def _chunk_times(self, chunk: _Chunk, times: dict[str, _Times], built: dict[str, list[RankLayer]]) -> _Times:
        """The chunk's, and what the host needs longer to launch than the device to run it."""
        total = _Times(forward=defaultdict(float), dgrad=defaultdict(float), wgrad=defaultdict(float))
        forward_ops = backward_ops = 0
        for name, count in (*chunk.layers.items(), *((end, 1) for end in chunk.ends)):
            one = times[name]
            for parts, added in ((total.forward, one.forward), (total.dgrad, one.dgrad), (total.wgrad, one.wgrad)):
                for part, time_us in added.items():
                    parts[part] += count * time_us
            ops = [op for layer in built[name] for op in layer.ops]
            launched = sum(op.phase == "forward" for op in ops)
            forward_ops += count * launched
            backward_ops += count * (len(ops) - launched + launched * (self.parallel.recompute == "full"))
        host_us = self.software.host_us_per_op
        for parts, late_us in (
            (total.forward, forward_ops * host_us - sum(total.forward.values())),
            (total.dgrad, backward_ops * host_us - total.backward_us),
        ):
            if late_us > 0:
                parts["host"] = late_us
        return total

    def _kept(self, chunk: _Chunk) -> float:
        """Activations of one micro-batch."""
        arguments = (self.model, self.parallel)
        of_letter = {
            letter: memory.activation_bytes(*arguments, letter, self.sequence) for letter in set("".join(chunk.layers))
        }
        return sum(count * of_letter[letter] for layer, count in chunk.layers.items() for letter in layer)

    def _later(self, chunk: _Chunk, built: dict[str, list[RankLayer]]) -> float:
        """Of one micro-batch, what the weights' gradients read."""
        return sum(
            count * sum(memory.wgrad_bytes(layer, self.parallel) for layer in built[name])
            for name, count in chunk.layers.items()
        )

    def _held(self, rank: Sequence[_Chunk], built: dict[str, list[RankLayer]]) -> list[RankLayer]:
        held: list[RankLayer] = []
        for chunk in rank:
            for name, count in chunk.layers.items():
                held += built[name] * count
            for end in chunk.ends:
                held += built[end]
        return held

    def _memory(
        self, rank: int, held: Sequence[RankLayer], chunks: Sequence[_Chunk], kept: float
    ) -> memory.StageMemory:
        arguments = (self.model, self.parallel)
        is_last = any("head" in chunk.ends for chunk in chunks)
        layers = {layer for chunk in chunks for layer in chunk.layers}
        working = max((memory.working_bytes(*arguments, layer, self.sequence) for layer in layers), default=0.0)
        hbm = self.system.device.hbm
        return memory.stage_memory(
            stage=rank,
            layers=held,
            parallel=self.parallel,
            kept_bytes=kept + working,
            logits=memory.logits_bytes(*arguments, self.sequence) if is_last else 0.0,
            capacity=None if hbm is None or hbm.nominal_gib is None else hbm.nominal_gib * BYTES_PER_GIB,
        )

    def _transfer_us(self) -> float:
        """Activations, or their gradients, to the next pipeline rank."""
        p = self.parallel
        nbytes = p.width.width_bytes * p.micro_batch * self.sequence * self.model.hidden / (p.cp * p.row_share)
        if p.pp == 1:
            return 0.0
        return float(np.max(hop_us(nbytes, p.pp_group, self._topology(p.pp))))

    def _collective_us(self, word: str, nbytes: float, group: Group) -> float:
        """0 within one rank and for no bytes. UsageError for a system without links."""
        if group.ranks == 1 or not nbytes:
            return 0.0
        return float(collective_us(word, nbytes, group, self._topology(group.ranks))[0][0])

    def _topology(self, ranks: int) -> Topology:
        """UsageError for a system without links."""
        if self.system.topology is None:
            raise UsageError(f"{self.system.device.name} stands alone: {ranks} ranks need a cluster")
        return self.system.topology

    def _shard_us(self, layers: Sequence[RankLayer]) -> tuple[float, float]:
        """Gathering the weights of some layers, scattering their gradients; dense and experts' one after the other."""
        gather = scatter = 0.0
        for count, group in self._weights(layers):
            gather += self._collective_us("all_gather", memory.WEIGHT_BYTES * count, group)
            scatter += self._collective_us("reduce_scatter", REDUCED_BYTES[3] * count, group)
        return gather, scatter

    def _weights(self, layers: Sequence[RankLayer]) -> list[tuple[float, Group]]:
        """Parameters by the ranks that they are shared with."""
        p = self.parallel
        expert = p.expert_dp_group
        shards = Group(ranks=min(expert.ranks, p.shard_group.ranks), stride=expert.stride)
        return [
            (float(sum(layer.dense for layer in layers)), p.shard_group),
            (float(sum(layer.expert for layer in layers)), shards),
        ]

    def _data_parallel_us(self, held: Sequence[RankLayer], rank: Sequence[_Times]) -> float:
        """Exposed at the step's end and at the next one's start: the last bucket, and what computing does not hide.

        Buckets are layers; only the last micro-batch's backward and the first one's forward can hide anything. Of
        FSDP, the first layer's gather and the last one's scatter, and the sum over replicas.
        """
        p = self.parallel
        if p.zero == 3:
            gather, scatter = self._shard_us(held[:2])
            replicas = sum(layer.dense + layer.expert for layer in held) / p.shard_group.ranks
            summed = self._collective_us("all_reduce", REDUCED_BYTES[3] * replicas, p.replica_group)
            return p.micro_batches * (gather + scatter) + summed
        reduced = gathered = 0.0
        for count, group in self._data_parallel_weights(held):
            word = "all_reduce" if p.zero == 0 else "reduce_scatter"
            reduced += self._collective_us(word, REDUCED_BYTES[p.zero] * count, group)
            if p.zero:
                gathered += self._collective_us("all_gather", memory.WEIGHT_BYTES * count, group)
        forward = sum(sum(chunk.forward.values()) for chunk in rank)
        backward = sum(chunk.backward_us for chunk in rank)
        # Divided gradients are reduced after every micro-batch: the next one's have nowhere to be added to.
        reductions = p.micro_batches if p.zero == 2 else 1
        reduced_us = reductions * last_bucket_us(reduced, backward, len(held))
        return float(reduced_us + last_bucket_us(gathered, forward, len(held)))

    def _data_parallel_weights(self, held: Sequence[RankLayer]) -> list[tuple[float, Group]]:
        p = self.parallel
        return [
            (float(sum(layer.dense for layer in held)), p.dp_group),
            (float(sum(layer.expert for layer in held)), p.expert_dp_group),
        ]

    def _optimizer_us(self, held: Sequence[RankLayer]) -> float:
        """Adam over the rank's share of the parameters; every gradient bucket's norm before it."""
        state = memory.states(sum(layer.dense for layer in held), sum(layer.expert for layer in held), self.parallel)
        ops = rank_ops.optimizer(state.optimizer / memory.OPTIMIZER_BYTES, self.parallel)
        priced = self._priced(ops)[0]
        return sum(priced[op.model] * self.software.of(op) for op in ops)
