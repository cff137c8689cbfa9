"""The event graph of a step: which blocks each pipeline rank runs, in which order and when, and what overlaps them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tracelens.backends.base import Backend, System
from tracelens.errors import UsageError
from tracelens.perf_models import Collective, PerfModel
from tracelens.predict.network.algorithms import collective_us
from tracelens.predict.network.topology import Group
from tracelens.predict.projection import pipeline, schedules
from tracelens.predict.projection.chunk_timing import (
    Block,
    Builder,
    OverlappedTransfers,
    Parts,
    Pass,
    Transfer,
    fixed,
    merged,
    passed,
)
from tracelens.predict.projection.overheads import (
    KEPT,
    NO_OPTIONS,
    WIDE,
    LayerCosts,
    ProjectionOptions,
    Software,
    blocks_of,
    later_us,
)
from tracelens.predict.projection.pipeline import REDUCED_BYTES, Cost, TaskCosts, hops_us, layer_counts
from tracelens.predict.projection.schedules import Kind, Task
from tracelens.predict.workload import memory, rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import ENDS, RankLayer, RankOp
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US

T = TypeVar("T")


class Chunk(Record, frozen=True, kw_only=True):
    """What one rank holds of one part of the model: layers in order, between the ends that belong to them."""

    names: tuple[str, ...]

    @property
    def layers(self) -> Counter[str]:
        return Counter(name for name in self.names if name not in ENDS)


class Finish(Record, frozen=True, kw_only=True):
    """A rank's part of the step after its last micro-batch, times in us from the step's start.

    Gradients are reduced until ``reduced_us``, then come the gradients' norm, its sum over all ranks at ``summed_us``,
    of which ``scale_loss_us`` is loss with scale, and the optimizer until ``end_us``. ``ops``: the three, their times.
    """

    reduced_us: float
    scale_loss_us: float
    summed_us: float
    end_us: float
    ops: tuple[tuple[RankOp, float], ...]


class Run(Record, frozen=True, kw_only=True):
    """A step that ran. ``pass_at(rank, position)`` is what a rank ran as the task at that position of its order."""

    tasks: Sequence[Sequence[Task]]
    pass_at: Callable[[int, int], Pass]
    pipeline: pipeline.Pipeline
    finish: Sequence[Finish]

    def passes(self, rank: int) -> list[Pass]:
        """Those of a rank's tasks, in order."""
        return [self.pass_at(rank, at) for at in range(len(self.tasks[rank]))]

    def counted(self, rank: int) -> list[tuple[Pass, int]]:
        """The distinct ones, and how often each."""
        passes = self.passes(rank)
        by_id = {id(each): each for each in passes}
        return [(by_id[key], count) for key, count in Counter(map(id, passes)).items()]

    @property
    def step_us(self) -> float:
        return max(finish.end_us for finish in self.finish)

    @property
    def busiest(self) -> int:
        return max(range(len(self.tasks)), key=lambda rank: (self.pipeline.busy_us[rank], -rank))

    def breakdown(self, rank: int) -> Parts:
        """What ``rank`` spends the step on, us; communication is what stays exposed. Adds up to the step."""
        ran, finish = self.pipeline, self.finish[rank]
        parts: Parts = defaultdict(float)
        for each, count in self.counted(rank):
            for part, time_us in each.parts.items():
                parts[part] += count * time_us
        parts["host"] += max(0.0, ran.busy_us[rank] - sum(parts.values()))
        parts["pp"] = ran.transfer_us[rank]
        last = ran.ends_us[rank][-1]
        parts["dp"] += max(0.0, finish.reduced_us - last)
        parts["optimizer"] = sum(time_us for _, time_us in finish.ops)
        parts["scale_loss"] = finish.scale_loss_us
        parts["pipeline bubble"] = 0.0
        parts["pipeline bubble"] = self.step_us - sum(parts.values())
        return {part: time_us for part, time_us in parts.items() if abs(time_us) > 1e-6}


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """One step of a model on a system, ready to run.

    The schedule and its number of chunks are settled: ``parallel.vpp`` is ``order.chunks(...)``.
    """

    model: ModelConfig
    parallel: ParallelConfig
    system: System
    sequence: int
    order: schedules.Order
    backend: Backend
    software: Software
    options: ProjectionOptions = NO_OPTIONS
    _made: dict[tuple[Any, ...], Any] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def run(self) -> Run:
        """UsageError for what the schedule cannot do, and for an operation that nobody prices."""
        tasks, routes = self.order.tasks(self._plan()), self.routes
        lasts = _Ends(self, tasks)
        ran = pipeline.run(
            tasks,
            routes,
            costs=TaskCosts(
                of={kind: self._costs(kind) for kind in sorted({task.kind for mine in tasks for task in mine})},
                late=lasts.costs(),
                pairs=self._pair if self._pairs else None,
            ),
            kept_bytes=[[self._kept(chunk) for chunk in rank] for rank in self.chunks],
            later_bytes=[[self._later(chunk) for chunk in rank] for rank in self.chunks],
            hops_us=self.hops_us,
        )
        return Run(
            tasks=tasks,
            pass_at=lambda rank, at: self._pass_at(rank, at, tasks[rank], ran, lasts),
            pipeline=ran,
            finish=self._finish(ran, lasts),
        )

    @property
    def _pairs(self) -> bool:
        """Whether exchanges of one micro-batch overlap the opposite pass of another one."""
        return self.parallel.ep_overlap and self.parallel.ep > 1 and self.parallel.zero != 3

    @functools.cached_property
    def _host(self) -> Software:
        return self.software.left(self.parallel.graphs, overlaps=self._pairs)

    @functools.cached_property
    def routes(self) -> Sequence[schedules.Route]:
        return self.order.routes(self.parallel.pp, self.parallel.vpp)

    @functools.cached_property
    def chunks(self) -> list[list[Chunk]]:
        """``[rank][chunk]``."""
        layers = self._named
        made: dict[tuple[int, int], Chunk] = {}
        for route in self.routes:
            at = 0
            for part, count in enumerate(layer_counts(len(layers), len(route))):
                first, last = part == 0, part == len(route) - 1
                names = (*ENDS[:1] * first, *layers[at : at + count], *ENDS[1:] * last)
                made[route[part]] = Chunk(names=names)
                at += count
        return [[made[rank, chunk] for chunk in range(self.parallel.vpp)] for rank in range(self.parallel.pp)]

    @functools.cached_property
    def _named(self) -> tuple[str, ...]:
        """The model's layers, those marked that compute in BF16 between narrower ones."""
        layers, (first, last) = self._repeated_or_kept(), self.parallel.bf16_layers
        if self.parallel.computed_in.width_bytes >= DType.BF16.width_bytes:
            return tuple(layers)
        wide = {*range(first), *range(max(0, len(layers) - last), len(layers))}
        return tuple(layer + WIDE if at in wide else layer for at, layer in enumerate(layers))

    def _repeated_or_kept(self) -> Sequence[str]:
        """The model's layers, marked where ``recompute_layers`` leaves one out: those are spread evenly."""
        layers, count = self.model.layers, self.parallel.recompute_layers
        if self.parallel.recompute != "full" or count is None or count >= len(layers):
            return layers
        every = len(layers)
        return [
            layer if (at + 1) * count // every > at * count // every else layer + KEPT
            for at, layer in enumerate(layers)
        ]

    def _parallel_of(self, marks: str) -> ParallelConfig:
        """How a layer whose name ends in ``marks`` is computed."""
        made = replace(self.parallel, precision="bf16") if marks.endswith(WIDE) else self.parallel
        return replace(made, recompute="none") if KEPT in marks else made

    @functools.cached_property
    def costs(self) -> LayerCosts:
        """What its layers are made of and take."""
        return LayerCosts(
            model=self.model, system=self.system, sequence=self.sequence, backend=self.backend, software=self.software
        )

    @functools.cached_property
    def built(self) -> dict[str, list[RankLayer]]:
        """The blocks of each distinct layer, and the ends."""
        return self.costs.layers(self._named, self._parallel_of)

    def _once(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """What ``make`` makes, the first time."""
        if key not in self._made:
            self._made[key] = make()
        made: T = self._made[key]
        return made

    @functools.cached_property
    def _prices(self) -> tuple[dict[PerfModel, float], Counter[str]]:
        return self.costs.priced(op.model for layers in self.built.values() for layer in layers for op in layer.ops)

    @property
    def answered_by(self) -> dict[str, int]:
        """Distinct operations that each backend priced."""
        return dict(sorted(self._prices[1].items()))

    @functools.cached_property
    def _constants(self) -> Software:
        return self.software.running(self.model)

    def _price(self, op: RankOp, factor: float) -> float:
        """Time of an operation (µs) on a rank whose device takes ``factor`` times as long to compute."""
        time_us = self._prices[0][op.model] * self._constants.of(op)
        if not op.is_communication:
            time_us *= factor
        if not math.isfinite(time_us):
            raise UsageError(f"{op.name} would take no finite time: check its measured rate and the factors given")
        return _whole_ns(op.count * time_us)

    def _blocks(self, factor: float) -> dict[str, dict[Kind, Block]]:
        def build() -> dict[str, dict[Kind, Block]]:
            builder = Builder(
                parallel=self.parallel, price=lambda op: self._price(op, factor), host_us=self._host.host_us_per_op
            )
            once = replace(builder, parallel=replace(self.parallel, recompute="none"))
            return {name: (once if KEPT in name else builder).layer(each) for name, each in self.built.items()}

        return self._once(("blocks", factor), build)

    def _factor(self, rank: int) -> float:
        straggler = self.options.straggler
        return straggler.factor if straggler is not None and straggler.stage == rank else 1.0

    def blocks(self, rank: int, chunk: int, kind: Kind) -> list[Block]:
        """In the order in which they run."""
        of_name = self._blocks(self._factor(rank))
        return [of_name[name][kind] for name in self.in_order(rank, chunk, kind)]

    def in_order(self, rank: int, chunk: int, kind: Kind) -> tuple[str, ...]:
        names = self.chunks[rank][chunk].names
        return names if kind == "F" else names[::-1]

    def pass_of(self, rank: int, chunk: int, kind: Kind) -> Pass:
        """Pass for a micro-batch that is neither first nor last."""
        names, factor = self.in_order(rank, chunk, kind), self._factor(rank)
        return self._once(
            ("hosted", names, factor, kind), lambda: self._hosted(self._unhosted(names, factor, kind), kind, names)
        )

    def _unhosted(self, names: tuple[str, ...], factor: float, kind: Kind) -> Pass:
        """Duration excluding host overhead."""
        return self._once(("pass", names, factor, kind), lambda: self._pass(names, factor, kind))

    def _hosted(self, one: Pass, kind: Kind, names: tuple[str, ...]) -> Pass:
        """Append the host-launch delay."""
        return one.later(_whole_ns(later_us(one.time_us, one.launch_us + self._experts_us(kind, names))))

    def _experts_us(self, kind: Kind, names: tuple[str, ...]) -> float:
        """The host's time for blocks of experts; gradients of weights need nothing from it."""
        experts = sum(layer.waits_for_host for name in names for layer in self.built[name])
        return 0.0 if kind == "W" else experts * self._host.experts_us

    def _pass(self, names: tuple[str, ...], factor: float, kind: Kind) -> Pass:
        blocks = [self._blocks(factor)[name][kind] for name in names]
        host_us = self._host.host_us_per_op
        if self.parallel.zero == 3:
            return self._beside(blocks, self._sharded(names, kind), kind)
        if self.parallel.zero == 2 and kind in "BW":
            # Divided gradients are reduced after every micro-batch: the next one's have nowhere to be added to. Those
            # of a pass's last layer run while the next pass's first layer does.
            each = [self._transfers("reduce", name, i) for i, name in enumerate(names)]
            overlapped = OverlappedTransfers(
                part="dp", with_block={i: each[i - 1] for i in range(len(names))}, waits=True
            )
            return passed(blocks, host_us, overlapped)
        return passed(blocks, host_us)

    def _beside(self, blocks: Sequence[Block], sharded: OverlappedTransfers, kind: Kind) -> Pass:
        """FSDP's transfers as the timeline has them, or as fixed shares say."""
        hidden, host_us = self.options.fsdp_hidden, self._host.host_us_per_op
        if hidden is None:
            return passed(blocks, host_us, sharded)
        gather = hidden.forward_gather if kind == "F" else hidden.backward_gather
        return fixed(blocks, host_us, sharded, {"gather": gather, "scatter": hidden.scatter, "reduce": 0.0})

    def _sharded(self, names: tuple[str, ...], kind: Kind, *, replicas: bool = False) -> OverlappedTransfers:
        """FSDP: a layer's weights gathered while the one before it runs, gradients scattered during the next one, and
        with ``replicas`` summed over the replicas of shards.
        """
        gathers = [self._gathers(name, i, kind) for i, name in enumerate(names)]
        scatters = [self._transfers("scatter", name, i) if kind in "BW" else [] for i, name in enumerate(names)]
        if replicas:
            scatters = [[*each, *self._transfers("reduce", names[i], i)] for i, each in enumerate(scatters)]
        last = len(names) - 1
        return OverlappedTransfers(
            part="fsdp",
            first=gathers[0] if names else [],
            with_block={
                i: [*(gathers[i + 1] if i < last else []), *(scatters[i - 1] if i else [])] for i in range(len(names))
            },
            last=scatters[last] if names else [],
            needed={i: ("gather", i) for i, transfers in enumerate(gathers) if transfers},
            waits=True,
        )

    def _gathers(self, name: str, index: int, kind: Kind) -> list[Transfer]:
        """A layer's weights before its forward, and as far as they were let go before its backward."""
        share = {"F": 1.0, "W": 0.0}.get(kind, self._again(name))
        whole = self._transfers("gather", name, index) if share else []
        return [one._replace(time_us=_whole_ns(one.time_us * share)) for one in whole]

    def _again(self, name: str) -> float:
        """The share of a layer's gather that its backward repeats."""
        is_repeated = self.parallel.recompute == "full" and KEPT not in name
        return 1.0 if is_repeated else self.software.gathers_again

    def closing(self, rank: int, task: Task, busy_us: float) -> Pass:
        """Pass for a chunk's last micro-batch, each layer's gradients summed during the next layer.

        The stream of the sums is taken until ``busy_us`` from the pass's start.
        """
        names, blocks = self.in_order(rank, task.chunk, task.kind), self.blocks(rank, task.chunk, task.kind)
        if self.parallel.zero == 3:
            made = self._beside(blocks, self._sharded(names, task.kind, replicas=True), task.kind)
            return self._hosted(made, task.kind, names)
        each = [self._transfers("reduce", name, i) for i, name in enumerate(names)]
        overlapped = OverlappedTransfers(
            part="dp",
            with_block={i + 1: transfers for i, transfers in enumerate(each[:-1])},
            last=each[-1] if each else [],
            busy_us=busy_us,
        )
        return self._hosted(passed(blocks, self._host.host_us_per_op, overlapped), task.kind, names)

    def opening(self, rank: int, task: Task, first_us: float) -> Pass:
        """Pass for a chunk's first micro-batch, whose weights the last step's optimizer left divided: gathered from
        ``first_us`` on from the pass's start; each layer waits for its own.
        """
        names, blocks = self.in_order(rank, task.chunk, task.kind), self.blocks(rank, task.chunk, task.kind)
        each = [self._transfers("gather", name, i) for i, name in enumerate(names)]
        overlapped = OverlappedTransfers(
            part="dp",
            first=[transfer for transfers in each for transfer in transfers],
            first_us=first_us,
            needed={i: ("gather", i) for i, transfers in enumerate(each) if transfers},
        )
        return self._hosted(passed(blocks, self._host.host_us_per_op, overlapped), task.kind, names)

    def gather_us(self, names: tuple[str, ...]) -> float:
        """Time of all weight gathers, one after the other."""
        return sum(transfer.time_us for name in names for transfer in self._transfers("gather", name, 0))

    def _transfers(self, what: str, name: str, index: int) -> list[Transfer]:
        return [
            Transfer((what, index), model, time_us)
            for model, time_us in self._once(("weights", what, name), lambda: self._weights(what, name))
        ]

    def _weights(self, what: str, name: str) -> list[tuple[Collective, float]]:
        """Collectives of one layer's weights or gradients, the dense ones and then the experts'."""
        p = self.parallel
        kind = {"gather": "all_gather", "scatter": "reduce_scatter"}.get(what)
        if kind is None:
            kind = "all_reduce" if p.zero in (0, 3) else "reduce_scatter"
        width = memory.WEIGHT_BYTES if what == "gather" else min(REDUCED_BYTES[p.zero], p.gradient_width.width_bytes)
        made = []
        for count, group in self._sharing(what, name):
            if count and group.ranks > 1:
                whole, part = round(count), round(count / group.ranks)
                model = Collective(
                    kind=kind,
                    elements_in=part if kind == "all_gather" else whole,
                    elements_out=part if kind == "reduce_scatter" else whole,
                    ranks=group.ranks,
                    stride=group.stride,
                    dtype=DType.BF16 if width == DType.BF16.width_bytes else DType.FP32,
                )
                time_us = float(collective_us(kind, width * count, group, self.system.joined())[0][0])
                made.append((model, _whole_ns(time_us)))
        return made

    def _sharing(self, what: str, name: str) -> tuple[tuple[float, Group], ...]:
        """Dense and expert parameters of one layer, and the ranks among which they travel."""
        p, layers = self.parallel, self.built[name]
        dense, expert = (float(sum(getattr(layer, kind) for layer in layers)) for kind in ("dense", "expert"))
        if p.zero == 3 and what == "gather":
            dense += float(sum(layer.frozen for layer in layers))
        copies = len(self.routes)
        if p.zero == 3 and what != "reduce":
            return (dense, p.shard_group), (expert, p.expert_shard_group)
        if p.zero == 3:
            # Replicas of shards, the dense ones and the experts' alike
            return ((dense + expert) / p.shard_group.ranks, p.replica_group), (0.0, p.replica_group)
        return (dense, _copied(p.dp_group, copies)), (expert, _copied(p.expert_dp_group, copies))

    @functools.cached_property
    def hops_us(self) -> list[float]:
        """Activations, or their gradients, to the next pipeline rank."""
        p = self.parallel
        if p.pp == 1:
            return [0.0]
        nbytes = p.width.width_bytes * p.micro_batch * self.sequence * self.model.hidden / (p.cp * p.row_share)
        return [_whole_ns(hop) for hop in hops_us(nbytes, p.pp_group, self.system.joined())]

    def _plan(self) -> schedules.Plan:
        parallel = self.parallel
        means = {
            kind: sum(cost.time_us for rank in self._costs(kind) for cost in rank) / parallel.pp / parallel.vpp
            for kind in ("F", "D", "W")
        }
        return schedules.Plan(
            ranks=parallel.pp,
            chunks=parallel.vpp,
            micro_batches=parallel.micro_batches,
            forward_us=means["F"],
            dgrad_us=means["D"],
            wgrad_us=means["W"],
            transfer_us=max(self.hops_us),
            ahead=int(self._pairs),
        )

    def _costs(self, kind: Kind) -> list[list[Cost]]:
        return [
            [cost_of(self.pass_of(rank, chunk, kind)) for chunk in range(self.parallel.vpp)]
            for rank in range(self.parallel.pp)
        ]

    def _pair(self, rank: int, forward: Task, backward: Task) -> tuple[Cost, Cost] | None:
        """What an overlapped forward and backward take."""
        found = self._merged(rank, forward, backward)
        return None if found is None else (cost_of(found[0]), cost_of(found[1]))

    def _merged(self, rank: int, forward: Task, backward: Task) -> tuple[Pass, Pass] | None:
        """An overlapped forward and backward; the host is late for whichever ends last."""
        key = ("merged", rank, forward.chunk, backward.kind, backward.chunk)
        return self._once(key, lambda: self._beside_each_other(rank, forward, backward))

    def _beside_each_other(self, rank: int, forward: Task, backward: Task) -> tuple[Pass, Pass] | None:
        tasks = [(self.in_order(rank, task.chunk, task.kind), task.kind) for task in (forward, backward)]
        ahead, back = (self._unhosted(names, self._factor(rank), kind) for names, kind in tasks)
        found = merged(ahead, back)
        if found is None:
            return None
        first, second = found
        experts_us = sum(self._experts_us(kind, names) for names, kind in tasks)
        device_us = max(first.time_us, second.time_us)
        late = _whole_ns(later_us(device_us, first.launch_us + second.launch_us + experts_us))
        return (first.later(late), second) if first.time_us > second.time_us else (first, second.later(late))

    def _pass_at(self, rank: int, at: int, mine: Sequence[Task], ran: pipeline.Pipeline, lasts: _Ends) -> Pass:
        late = lasts.passes.get((rank, at))
        if late is not None:
            return late
        pairs = ran.pairs[rank]
        first = at if at in pairs else at - 1 if at - 1 in pairs else None
        if first is not None:
            found = self._merged(rank, mine[first], mine[first + 1])
            if found is not None:
                return found[at - first]
        return self.pass_of(rank, mine[at].chunk, mine[at].kind)

    def held(self, rank: int) -> list[RankLayer]:
        """Every block that a rank holds."""
        return [layer for chunk in self.chunks[rank] for name in chunk.names for layer in self.built[name]]

    def _finish(self, ran: pipeline.Pipeline, lasts: _Ends) -> list[Finish]:
        """The optimizer, after the gradients of all ranks: their norm is a sum over the job."""
        reduced = [max(ran.ends_us[rank][-1], lasts.busy_until[rank]) for rank in range(self.parallel.pp)]
        ops = [self._optimizer(rank) for rank in range(self.parallel.pp)]
        ready = max(at + norm for at, ((_, norm), *_) in zip(reduced, ops, strict=True))
        together = max(ready + total + adam for _, (_, total), (_, adam) in ops)
        # Published steps with adapters, whose gradients are a thousandth, lose nothing with scale
        lost = 0.0 if self.parallel.lora else _whole_ns(self._constants.scale_loss_us(together, self.parallel.ranks))
        summed = [ready + lost + mine[1][1] for mine in ops]
        return [
            Finish(reduced_us=at, scale_loss_us=lost, summed_us=sum_us, end_us=sum_us + mine[2][1], ops=tuple(mine))
            for at, sum_us, mine in zip(reduced, summed, ops, strict=True)
        ]

    def _optimizer(self, rank: int) -> list[tuple[RankOp, float]]:
        """The gradients' norm, its sum over ranks, Adam over the rank's share of the parameters."""
        layers = self.held(rank)
        state = memory.states(
            sum(layer.dense for layer in layers), sum(layer.expert for layer in layers), self.parallel
        )
        copies = len(self.routes) if self.parallel.zero else 1
        ops = rank_ops.optimizer(state.optimizer / self.parallel.optimizer_bytes / copies, self.parallel)
        priced, _ = self.costs.priced(op.model for op in ops)
        return [(op, _whole_ns(priced[op.model] * self._constants.of(op) * self._factor(rank))) for op in ops]

    def memory(self, ran: pipeline.Pipeline, rank: int) -> memory.StageMemory:
        """Peak of one pipeline rank."""
        arguments = (self.model, self.parallel)
        chunks = self.chunks[rank]
        layers = {blocks_of(layer) for chunk in chunks for layer in chunk.layers if KEPT not in layer}
        working = max((memory.working_bytes(*arguments, layer, self.sequence) for layer in layers), default=0.0)
        kept = ran.kept_bytes[rank] + working
        if ran.pairs[rank]:
            # A backward frees layers while the overlapped forward fills as many.
            kept -= min(self._kept(chunk) * (1 - 1 / max(chunk.layers.total(), 1)) for chunk in chunks)
        found = memory.stage_memory(
            stage=rank,
            layers=self.held(rank),
            parallel=self.parallel,
            kept_bytes=kept,
            logits=memory.logits_bytes(*arguments, self.sequence) if any("head" in c.names for c in chunks) else 0.0,
            capacity=self.costs.capacity,
        )
        found = replace(found, weights=found.weights + self._gathered_bytes(chunks))
        # Where two ranks hold the same weights they also share the optimizer's state
        copies = len(self.routes) if self.parallel.zero else 1
        return replace(found, optimizer=found.optimizer / copies)

    def _gathered_bytes(self, chunks: Sequence[Chunk]) -> float:
        """What other ranks hold of weights that stay gathered between forward and backward."""
        if self.parallel.zero < 3:
            return 0.0
        whole = sum(
            max(1 - self._again(name), 0.0) * sum(layer.dense + layer.expert for layer in self.built[name])
            for chunk in chunks
            for name in chunk.names
        )
        return memory.WEIGHT_BYTES * whole * (1 - 1 / self.parallel.shard_group.ranks)

    def _kept(self, chunk: Chunk) -> float:
        """Activations of one micro-batch."""
        offloaded = min(self.parallel.offload_layers / len(self.model.layers), 1.0)
        return (1 - offloaded) * sum(
            count * memory.activation_bytes(self.model, self._parallel_of(name), letter, self.sequence)
            for name, count in chunk.layers.items()
            for letter in blocks_of(name)
        )

    def _later(self, chunk: Chunk) -> float:
        """Bytes of one micro-batch that the weights' gradients read."""
        return sum(
            count * sum(memory.wgrad_bytes(layer, self.parallel) for layer in self.built[name])
            for name, count in chunk.layers.items()
        )


class _Ends:
    """The passes that begin and end a step: the first forward of each chunk waits for weights that the last step's
    optimizer left divided; during the last weights' gradients replicas sum them.

    ``busy_until``: when a rank's last transfer is over.
    """

    def __init__(self, job: Job, tasks: Sequence[Sequence[Task]]) -> None:
        self.job, self.tasks = job, tasks
        self.passes: dict[tuple[int, int], Pass] = {}
        self.busy_until = [0.0] * len(tasks)

    def costs(self) -> dict[tuple[int, int], pipeline.LateCost]:
        zero = self.job.parallel.zero
        made: dict[tuple[int, int], pipeline.LateCost] = {}
        for rank, mine in enumerate(self.tasks):
            first: dict[int, int] = {}
            last: dict[int, int] = {}
            for at, task in enumerate(mine):
                if task.kind == "F":
                    first.setdefault(task.chunk, at)
                elif task.kind in "BW":
                    last[task.chunk] = at
            gathers = 0.0
            for chunk, at in sorted(first.items()) if zero in (1, 2) else ():
                names = self.job.chunks[rank][chunk].names
                mine_us = self.job.gather_us(names)
                if mine_us:
                    made[rank, at] = functools.partial(self._opening, rank, at, gathers)
                gathers += mine_us
            for at in self._closed(list(last.values())):
                made[rank, at] = functools.partial(self._closing, rank, at)
        return made

    def _closed(self, lasts: list[int]) -> list[int]:
        """Positions of the passes after which replicas sum gradients. Where that is every pass, the rank's last one."""
        parallel = self.job.parallel
        if parallel.zero == 2:
            return [max(lasts)]
        return lasts if parallel.zero < 3 or parallel.replica_group.ranks > 1 else []

    def _opening(self, rank: int, at: int, gathers_us: float, start_us: float) -> Cost:
        return self._keep(rank, at, self.job.opening(rank, self.tasks[rank][at], gathers_us - start_us))

    def _closing(self, rank: int, at: int, start_us: float) -> Cost:
        made = self.job.closing(rank, self.tasks[rank][at], self.busy_until[rank] - start_us)
        if made.transfers:
            self.busy_until[rank] = start_us + made.beside_us
        return self._keep(rank, at, made)

    def _keep(self, rank: int, at: int, made: Pass) -> Cost:
        self.passes[rank, at] = made
        return cost_of(made)


def cost_of(one: Pass) -> Cost:
    return Cost(one.time_us, one.host_us, one.launch_us)


def _copied(group: Group, copies: int) -> Group:
    """A schedule that holds weights ``copies`` times has as many more ranks that share them."""
    return Group(ranks=group.ranks * copies, stride=group.stride)


def _whole_ns(time_us: float) -> float:
    return round(time_us * NS_PER_US) / NS_PER_US
