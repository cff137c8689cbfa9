"""The rule set ``corrected``: a whole training step from this project's own op lists, perf models and backends.

The same step as ``projection.step`` for arrays of configurations: embedding, head and optimizer included, operations
priced at their size by the chosen backends, collectives over the links between the ranks of each group. Instead of
running the pipeline event by event, its time is a closed form (``pipeline_us``) that tests hold against the events.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import System
from tracelens.backends.roofline_and_tile import over_idle_uj
from tracelens.files.option_fields import BACKENDS
from tracelens.files.say import with_progress
from tracelens.hardware.device_figures import PowerConstants
from tracelens.hardware.power import idle_power, power_constants, room_w
from tracelens.perf_models import Collective, PerfModel
from tracelens.predict.network.algorithms import collective_us
from tracelens.predict.network.topology import Group, Topology
from tracelens.predict.projection.chunk_timing import exposed_share
from tracelens.predict.projection.overheads import PLAIN, LayerCosts, Software, backend_of
from tracelens.predict.projection.pipeline import REDUCED_BYTES, hop_us
from tracelens.predict.projection.projection_options import Strategy
from tracelens.predict.projection.search import ANYTHING, PLACES, Constraints, Feasible, pipeline_time
from tracelens.predict.projection.search.layer_times import (
    PARTS,
    REPEATED,
    LayerTimes,
    OpPrices,
    StepOperations,
    layer_times,
)
from tracelens.predict.projection.search.pipeline_time import Floats, StageType
from tracelens.predict.projection.search.space import (
    RECOMPUTE,
    SCHEDULES,
    SELECTIVE,
    Ints,
    Space,
    Splits,
    distinct,
    placed,
    recomputation,
)
from tracelens.predict.workload import memory, rank_ops
from tracelens.predict.workload.blocks import block_types
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import GroupPlacement, ParallelConfig, PlacedRanks
from tracelens.predict.workload.rank_ops import ENDS, RankLayer
from tracelens.types.units import BYTES_PER_GB, US_PER_S

_FLOP_PER_TFLOP = 1e12
#: Candidates per pass, so that a pass' columns fit into a few tens of MB.
_CHUNK = 100_000
#: What a step's times are made of.
NAMED = (*PARTS, "recompute")
_LAYER_KEY = ("m1", "m2", "micro_batch", "blocks", "ep", "precision")
#: Three figures of each kind of layer, [candidate, kind].
_ByKind: TypeAlias = tuple[Floats, Floats, Floats]


class LayerKindTimes(NamedTuple):
    """What layers take, microseconds: ``gather`` and ``scatter`` of weights and gradients are [candidate, kind]."""

    layers: LayerTimes
    gather: Floats
    scatter: Floats
    hop: Floats
    optimizer: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedRules:
    """OpPrices candidates of ``space`` on ``system``; ``software``: the constants in each of the space's precisions, or
    those of all.
    """

    space: Space
    system: System
    backends: str = BACKENDS
    software: tuple[Software, ...] = (PLAIN,)
    #: Where given, sums are of µJ over idle in place of µs.
    _energies: PowerConstants | None = field(default=None, repr=False, compare=False)
    _built: dict[Any, dict[str, list[RankLayer]]] = field(default_factory=dict, repr=False, compare=False)
    #: Blocks by what they depend on, by letter.
    _blocks: dict[Any, dict[str, list[RankLayer]]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def model(self) -> ModelConfig:
        return self.space.model

    @property
    def strategy(self) -> Strategy:
        return self.space.strategy

    @property
    def topology(self) -> Topology:
        """UsageError for a device alone."""
        return self.system.joined()

    @property
    def node(self) -> int:
        """Ranks that the innermost links join."""
        return self.system.topology.ranks_per_node or 1 if self.system.topology else 1

    @property
    def capacity_gb(self) -> float:
        """GB per device; infinite where it is not known."""
        capacity = self.costs.capacity
        return np.inf if capacity is None else capacity / BYTES_PER_GB

    @property
    def costs(self) -> LayerCosts:
        """What layers are made of and take."""
        system, backend = self.system, backend_of(self.backends)
        return LayerCosts(
            model=self.model, system=system, sequence=self.space.sequence, backend=backend, software=self.software[0]
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Distinct layers, and the ends."""
        return (*dict.fromkeys(self.model.layers), *ENDS)

    def software_in(self, precision: int) -> Software:
        """The constants of steps in the space's precision of that number."""
        return self.software[min(precision, len(self.software) - 1)].running(self.model)

    @property
    def tokens_per_sample(self) -> int:
        return self.space.sequence

    def feasible(
        self, gpu_counts: Iterable[int], *, global_batch: int, wanted: Constraints = ANYTHING
    ) -> Feasible[Splits]:
        """All configurations that hold what is wanted: memory first, which does not depend on where ranks stand."""
        # The schedule and the recomputation that are fixed may not be among the space's own
        space = self.space
        recompute, schedule = (wanted.fixed.get(name) for name in ("recompute", "schedule"))
        if recompute in RECOMPUTE:
            space = replace(space, recompute=(recompute,))
        splits = (replace(space, schedules=(schedule,)) if schedule in SCHEDULES else space).splits(
            gpu_counts, global_batch=global_batch
        )
        if wanted.fixed or wanted.forbidden:
            names = [name for name in self.degrees(splits) if name not in PLACES]
            splits = splits.take(wanted.allows(self.degrees(splits), only=names))
        splits, needed = self._fitting(splits, global_batch, wanted)
        spread, source = placed(splits, self.node)
        if wanted.fixed or wanted.forbidden:
            allowed = wanted.allows(self.degrees(spread), only=PLACES)
            spread, source = spread.take(allowed), source[allowed]
        # To a picosecond: the same step summed in another order is no faster
        times = self.times(spread, global_batch=global_batch)
        busy_s = sum((times[name] for name in _BUSY), np.zeros(len(spread)))
        return Feasible(
            candidates=spread, step_s=np.round(times["t"], 12), memory_gb=needed[source], busy_s=busy_s
        )  # fmt: skip

    def widened(
        self, found: Feasible[Splits], *, top: int, global_batch: int, wanted: Constraints = ANYTHING
    ) -> Feasible[Splits]:
        """``found`` and its splits with every schedule and every way to recompute, where they may be as fast as the
        ``top`` of as many devices: none takes less than a rank with its share of the layers computes and sends in line.
        """
        if self.strategy == "2d" or found.busy_s is None or not len(found.step_s):
            return found
        counts, which = np.unique(found.candidates.gpus, return_inverse=True)
        limit = np.full(len(counts), np.inf)
        for i in range(len(counts)):
            mine = found.step_s[which == i]
            limit[i] = np.partition(mine, top - 1)[top - 1] if len(mine) > top else np.inf
        pp, layers = found.candidates.pp, len(self.model.layers)
        near = np.flatnonzero(found.busy_s * layers < limit[which] * pp * -(-layers // pp))
        splits = found.candidates.take(near)
        names = [name for name in Splits.__struct_fields__ if name not in ("recompute", "schedule")]
        splits = splits.take(distinct([getattr(splits, name) for name in names])[0])
        ways = np.array(list(itertools.product(self.space.ways_to_recompute, range(len(SCHEDULES)))))
        recompute, schedule = np.tile(ways, (len(splits), 1)).T
        splits = replace(
            splits.take(np.repeat(np.arange(len(splits)), len(ways))), recompute=recompute, schedule=schedule
        )
        # The table of ``feasible`` has the others
        is_new = (splits.schedule > 0) | np.isin(splits.recompute, _codes(SELECTIVE))
        passes = splits.micro_batches(global_batch)
        can_run = self.space.can_run(splits.schedule, passes, zero=splits.zero, pp=splits.pp, vpp=splits.vpp)
        splits = splits.take(is_new & can_run)
        splits = splits.take(wanted.allows(self.degrees(splits)))
        splits, needed = self._fitting(splits, global_batch, wanted)
        step_s = np.round(self.times(splits, global_batch=global_batch)["t"], 12)
        both = [found.candidates, splits]
        return Feasible(
            candidates=Splits(**{n: np.concatenate([getattr(s, n) for s in both]) for n in Splits.__struct_fields__}),
            step_s=np.append(found.step_s, step_s),
            memory_gb=np.append(found.memory_gb, needed),
        )

    def _fitting(self, splits: Splits, global_batch: int, wanted: Constraints) -> tuple[Splits, Floats]:
        """Those that fit, or the one that is wanted, and the GB that they need."""
        needed = sum(self.memory_gb(splits, global_batch=global_batch).values(), np.zeros(len(splits)))
        fits = needed <= (np.inf if wanted.is_one_configuration else self.capacity_gb * (1 - wanted.headroom))
        return splits.take(fits), needed[fits]

    def table(self, candidates: Splits, *, global_batch: int) -> dict[str, Any]:
        needed = self.memory_gb(candidates, global_batch=global_batch)
        degrees = self.degrees(candidates)
        further = {name: degrees.pop(name) for name in FURTHER}
        if self.strategy != "2d":
            degrees["nb"] = np.full(len(candidates), np.nan)
        return {
            "gpu": self.system.device.name,
            "nvs": self.node,
            **degrees,
            "mem": sum(needed.values()),
            **self.times(candidates, global_batch=global_batch),
            "wts_mem": needed["weights"],
            "wts_grad_mem": needed["gradients"],
            "wts_optimizer_states_mem": needed["optimizer"],
            "acts_mem": needed["activations"],
            "flops_per_gpu": self.tflop_per_gpu(candidates, global_batch=global_batch),
            **further,
            "logits_mem": needed["logits"],
            "other_mem": needed["outside"],
        }

    def explained(self, candidates: Splits, *, global_batch: int) -> list[dict[str, Any]]:
        """The first candidate, an operation per row, on the busiest pipeline rank; times add up to the step."""
        one = candidates.take(np.array([0]))
        times, first = self._times(one, global_batch)
        whole = {name: float(value[0]) for name, value in times.items()}
        parallel = self.parallel(one, 0, global_batch=global_batch)
        stage = next(
            s
            for s in pipeline_time.stage_types(self.model, parallel.pp, parallel.vpp, SCHEDULES[int(one.schedule[0])])
            if s.ranks[0] == first[0]
        )
        layers = self.layers(parallel)
        explanation = StepOperations(
            model=self.model,
            parallel=parallel,
            sequence=self.space.sequence,
            node=self.node,
            software=self.software_in(int(one.precision[0])),
            prices=self.priced(op.model for blocks in layers.values() for block in blocks for op in block.ops),
        )
        rows: list[dict[str, Any]] = []
        again = 0.0
        passes, kept_bytes = one.micro_batches(global_batch), self._activations(one)[0]
        kept = pipeline_time.under_way(one, stage, passes, kept_bytes)[0].tolist()
        for (kind, blocks), count, held in zip(layers.items(), stage.layers.tolist(), kept, strict=True):
            made = list(explanation.rows(kind, blocks, count, held))
            repeated = sum(row["forward_s"] for row in made if not row["op"].endswith(rank_ops.COPIED))
            again += repeated * (parallel.recompute == "full" and kind not in ENDS)
            again += count * explanation.again_s(blocks)
            rows += made
        return [
            *rows,
            {"op": "recomputation", "backward_s": again},
            {"op": "host, late to launch", "backward_s": whole["t_host"]},
            {"op": "transfers between stages", "backward_s": whole["t_pp_comm"]},
            {"op": "pipeline bubble", "backward_s": whole["t_bubble"]},
            {"op": "gradients and weights between replicas", "backward_s": whole["t_dp_comm"]},
            {"op": "optimizer", "backward_s": whole["t_optimizer"]},
            {"op": "loss with scale", "backward_s": whole["t_scale_loss"]},
        ]

    def degrees(self, candidates: Splits) -> dict[str, Any]:
        s = candidates
        return {
            "n_gpus": s.gpus, "dp": s.dp, "tp": s.m1 * s.m2, "tp1": s.m1, "tp2": s.m2, "pp": s.pp,
            "mbs": s.micro_batch, "nb": s.blocks, "nv_tp1": s.near_m1, "nv_tp2": s.near_m2, "nv_dp": s.near_dp,
            "nv_pp": s.near_pp, "vpp": s.vpp, "ep": s.ep, "zero": s.zero,
            "recompute": np.array(RECOMPUTE)[s.recompute], "precision": np.array(self.space.precisions)[s.precision],
            "schedule": np.array(SCHEDULES)[s.schedule],
        }  # fmt: skip

    def parallel(self, splits: Splits, index: int, *, global_batch: int) -> ParallelConfig:
        """The configuration at ``index``, as a projection takes it."""
        one = {name: int(getattr(splits, name)[index]) for name in splits.__struct_fields__}
        place = None
        if one["near_m1"]:
            place = GroupPlacement(
                node=self.node, tp=one["near_m1"], cp=one["near_m2"], dp=one["near_dp"], pp=one["near_pp"]
            )
        return replace(
            self._layer_parallel(one),
            dp=one["dp"],
            pp=one["pp"],
            vpp=one["vpp"],
            micro_batches=global_batch // (one["dp"] * one["micro_batch"]),
            zero=one["zero"],
            placement=place,
            **recomputation(one["recompute"]),
        )

    def memory_gb(self, splits: Splits, *, global_batch: int) -> dict[str, Floats]:
        """GB of the pipeline rank that needs most: weights, gradients, optimizer, activations, logits, other."""
        result = {
            name: np.zeros(len(splits)) for name in ("weights", "gradients", "optimizer", "activations", "logits")
        }
        worst = np.full(len(splits), -1.0)
        held, kept = self._parameters(splits), self._activations(splits)
        for group, types in self._by_stages(splits):
            part = splits.take(group)
            parameters, activations = ((a[group], b[group], c[group]) for a, b, c in (held, kept))
            for stage in types:
                one = self._stage_memory(part, stage, parameters, activations, global_batch)
                total = sum(one.values())
                is_worst = total > worst[group]
                worst[group] = np.where(is_worst, total, worst[group])
                for name, value in one.items():
                    result[name][group] = np.where(is_worst, value, result[name][group])
        found = {name: value / BYTES_PER_GB for name, value in result.items()}
        return {**found, "outside": np.full(len(splits), memory.OUTSIDE_BYTES / BYTES_PER_GB)}

    def times(self, splits: Splits, *, global_batch: int) -> dict[str, Floats]:
        """Seconds per step, ``t``, and what it is made of on the busiest pipeline rank; they add up."""
        return self._times(splits, global_batch)[0]

    def step_j(self, splits: Splits, step_s: Floats, *, global_batch: int) -> Floats | None:
        """J of all devices per step that takes ``step_s``, as of ``projection.step.energy_of``; None where nobody
        measured energies of the device's architecture.
        """
        constants = power_constants(self.system.device)
        if constants is None:
            return None
        over_j = replace(self, _energies=constants)._over_idle_uj(splits, global_batch) / US_PER_S
        return splits.gpus * (idle_power(constants) * step_s + np.minimum(over_j, room_w(constants) * step_s))

    def _over_idle_uj(self, splits: Splits, global_batch: int) -> Floats:
        """What a step adds on a device of the busiest pipeline rank."""
        layers, (gather, scatter), found = self._layer_times(splits), self._shared_us(splits), np.zeros(len(splits))
        groups = list(self._by_stages(splits))
        busiest = replace(self, _energies=None)._times(splits, global_batch)[1]
        for (group, types), optimizer in zip(groups, self._optimizers_us(splits, groups), strict=True):
            held = np.zeros((len(group), len(self.kinds)))
            for stage in types:
                held[busiest[group] == stage.ranks[0]] = stage.layers
            part = splits.take(group)
            passes = part.micro_batches(global_batch).astype(float)[:, None]
            each, mine = np.zeros(held.shape), layers.take(group)
            for k, kind in enumerate(self.kinds):
                whole = sum((mine.part(name, k, 0) for name in REPEATED), np.zeros(len(group)))
                again = _again_us(part, mine, k, whole * (kind not in ENDS))
                each[:, k] = again + sum(mine.part(name, k, phase) for name in PARTS for phase in (0, 1))
            is_2, is_3 = part.zero[:, None] >= 2, part.zero[:, None] == 3
            moved = gather[group] * np.where(is_3, 2 * passes, 1) + scatter[group] * np.where(is_2, passes, 1)
            found[group] = (held * (passes * each + moved)).sum(axis=1) + optimizer
        return found

    def _summed(self, models: Sequence[PerfModel], time_us: Floats) -> Floats:
        """What is added up of calls that take so long."""
        if self._energies is None:
            return time_us
        return over_idle_uj(self._energies, models, time_us, self.system.device)

    def _times(self, splits: Splits, global_batch: int) -> tuple[dict[str, Floats], Floats]:
        """``times``, and the first of the busiest pipeline ranks."""
        layers, (gather, scatter), hop = self._layer_times(splits), self._shared_us(splits), self._hop_us(splits)
        groups = list(self._by_stages(splits))
        found, stage = {name: np.zeros(len(splits)) for name in TIMES}, np.zeros(len(splits))
        for (group, types), optimizer in zip(groups, self._optimizers_us(splits, groups), strict=True):
            for start in range(0, len(group), _CHUNK):
                part = slice(start, start + _CHUNK)
                at = group[part]
                costs = LayerKindTimes(layers, gather[at], scatter[at], hop[at], optimizer[part])
                made = self._stage_times(splits, at, types, costs, global_batch)
                stage[at] = made.pop("stage")
                for name, value in made.items():
                    found[name][at] = value / US_PER_S
        return found, stage

    def tflop_per_gpu(self, splits: Splits, *, global_batch: int) -> Floats:
        """TFLOP per device and step that the model asks for: causal attention, nothing twice."""
        per_token = self.model.flops_per_token(self.space.sequence).training
        return per_token * global_batch * self.space.sequence / splits.gpus / _FLOP_PER_TFLOP

    def layers(self, parallel: ParallelConfig) -> dict[str, list[RankLayer]]:
        """The blocks of each kind of layer on one rank of ``parallel``."""
        return self.costs.layers(self.model.layers, lambda _: parallel)

    def priced(self, models: Iterable[PerfModel]) -> dict[PerfModel, float]:
        """Microseconds of each distinct operation, all of one step. UsageError for one that no backend prices."""
        return self.costs.priced(models)[0]

    def _layer_parallel(self, one: Mapping[str, int]) -> ParallelConfig:
        """What a layer's operations depend on; as many replicas as the experts need."""
        return ParallelConfig(
            tp=one["m1"],
            sequence_parallel=one["m1"] > 1,
            cp=one["m2"],
            dp=one["ep"],
            ep=one["ep"],
            micro_batch=one["micro_batch"],
            precision=self.space.precisions[one["precision"]],
            zero=one.get("zero", 1),
            summa_blocks=one["blocks"] if self.strategy == "2d" else None,
        )

    def _ranks(self, s: Splits) -> PlacedRanks:
        return PlacedRanks(
            node=self.node, is_grid=self.strategy == "2d", tp=s.m1, cp=s.m2, dp=s.dp, ep=s.ep,
            near_tp=s.near_m1, near_cp=s.near_m2, near_dp=s.near_dp,
        )  # fmt: skip

    def _by_stages(self, splits: Splits) -> Iterable[tuple[npt.NDArray[np.intp], tuple[StageType, ...]]]:
        """Candidates with the same stages, chunks and schedule together, and what their ranks hold."""
        first, inverse = distinct([splits.pp, splits.vpp, splits.schedule])
        order = np.argsort(inverse, kind="stable")
        edges = np.searchsorted(inverse[order], np.arange(len(first) + 1))
        for i, index in enumerate(first):
            yield (
                order[edges[i] : edges[i + 1]],
                pipeline_time.stage_types(
                    self.model, int(splits.pp[index]), int(splits.vpp[index]), SCHEDULES[int(splits.schedule[index])]
                ),
            )

    def _stage_memory(
        self, s: Splits, stage: StageType, parameters: _ByKind, activations: _ByKind, global_batch: int
    ) -> dict[str, Floats]:
        (dense, expert, largest), (kept, working, logits) = parameters, activations
        states, present = self._states(s, dense @ stage.layers, expert @ stage.layers), stage.layers > 0
        # The largest block or end is gathered while another computes.
        most = (largest * present).max(axis=1)
        gathered = np.where(s.zero == 3, memory.GATHERED_LAYERS * memory.WEIGHT_BYTES * most, 0.0)
        return {
            "weights": states.weights + gathered,
            "gradients": states.gradients,
            "optimizer": states.optimizer,
            "activations": self._kept_bytes(s, stage, s.micro_batches(global_batch), kept)
            + (working * present).max(axis=1),
            "logits": logits if stage.layers[-1] else 0.0 * logits,
        }

    def _kept_bytes(self, s: Splits, stage: StageType, passes: Ints, kept: Floats) -> Floats:
        """The most activations that the ranks of ``stage`` keep at once; all of ``s`` have the same schedule."""
        if not s.schedule.any():
            held: Floats = (kept * pipeline_time.under_way(s, stage, passes, kept)).sum(axis=1)
            return held
        first, inverse = distinct([getattr(s, name) for name in _LAYER_KEY])
        later = np.zeros((len(first), len(self.kinds)))
        for i, index in enumerate(first):
            one = {name: int(getattr(s, name)[index]) for name in _LAYER_KEY}
            parallel = self._layer_parallel(one)
            for k, blocks in enumerate(self._layers_of(one).values()):
                later[i, k] = sum(memory.wgrad_bytes(block, parallel) for block in blocks if block.letter not in ENDS)
        return pipeline_time.split_kept_bytes(s, stage, passes, kept, later[inverse])

    def _states(self, s: Splits, dense: Floats, expert: Floats) -> memory.States[Any]:
        """Of so many parameters on a rank, divided as each candidate says."""
        ranks = self._ranks(s)
        return memory.divided_states(dense, expert, zero=s.zero, shards=ranks.copies, expert_shards=ranks.expert_copies)

    def _activations(self, s: Splits) -> _ByKind:
        """Bytes kept of a micro-batch by each kind of layer, needed to recompute one, and [candidate] of logits."""
        names = ("m1", "m2", "micro_batch", "recompute")
        first, inverse = distinct([getattr(s, name) for name in names])
        kept, working = np.zeros((len(first), len(self.kinds))), np.zeros((len(first), len(self.kinds)))
        logits = np.zeros(len(first))
        for i, index in enumerate(first):
            one = {name: int(getattr(s, name)[index]) for name in (*names, "ep", "precision", "blocks")} | {"ep": 1}
            arguments = (self.model, replace(self._layer_parallel(one), **recomputation(one["recompute"])))
            for k, kind in enumerate(self.kinds[: -len(ENDS)]):
                kept[i, k] = sum(memory.activation_bytes(*arguments, letter, self.space.sequence) for letter in kind)
                working[i, k] = memory.working_bytes(*arguments, kind, self.space.sequence)
            logits[i] = memory.logits_bytes(*arguments, self.space.sequence)
        return kept[inverse], working[inverse], logits[inverse]

    def _parameters(self, s: Splits) -> _ByKind:
        """Dense and expert parameters of each kind of layer on a rank, and all of its largest block."""
        first, inverse = distinct([s.m1, s.m2, s.ep, s.pp > 1])
        dense, expert, largest = np.zeros((3, len(first), len(self.kinds)))
        for i, index in enumerate(first):
            for k, blocks in enumerate(self._weights_of(s, int(index)).values()):
                dense[i, k] = sum(block.dense for block in blocks)
                expert[i, k] = sum(block.expert for block in blocks)
                largest[i, k] = max(block.dense + block.expert for block in blocks)
        return dense[inverse], expert[inverse], largest[inverse]

    def _weights_of(self, s: Splits, index: int) -> dict[str, list[RankLayer]]:
        """Layers of a single sequence: weights do not depend on the batch."""
        one = {name: int(getattr(s, name)[index]) for name in ("m1", "m2", "ep", "blocks")}
        key = (*one.values(), bool(s.pp[index] > 1))
        if key not in self._built:
            parallel = self._layer_parallel({**one, "micro_batch": 1, "precision": 0})
            self._built[key] = self.layers(replace(parallel, pp=2 if key[-1] else 1))
        return self._built[key]

    def _layers_of(self, one: Mapping[str, int]) -> dict[str, list[RankLayer]]:
        """``layers`` of a split. Blocks that work on each token alone, and the ends, are those of all splits with as
        many tokens on a rank; the others know nothing of experts.
        """
        parallel = functools.partial(self._layer_parallel, one)
        if self.strategy == "2d" or self.software[0].fsdp:
            return self.layers(parallel())
        m1, precision, tokens = one["m1"], one["precision"], one["micro_batch"] * self.space.sequence // one["m2"]
        keys = (True, m1, one["m2"], one["micro_batch"], precision), (False, m1, tokens, one["ep"], precision)
        if any(key not in self._blocks for key in keys):
            made = {block.letter: [block] for blocks in self.layers(parallel()).values() for block in blocks}
            for key in keys:
                self._blocks[key] = {
                    letter: block
                    for letter, block in made.items()
                    if key[0] == (letter not in ENDS and block_types()[letter].mixes_tokens)
                }
        made = self._blocks[keys[0]] | self._blocks[keys[1]]
        kinds = self.kinds[: -len(ENDS)]
        return {kind: [made[letter][0] for letter in kind] for kind in kinds} | {end: made[end] for end in ENDS}

    def _layer_times(self, s: Splits) -> LayerTimes:
        columns = {name: getattr(s, name) for name in _LAYER_KEY}
        if self.software[0].fsdp:
            columns["zero"] = np.where(s.zero > 1, s.zero, 1)
        first, key = distinct(list(columns.values()))
        keys = [{name: int(column[index]) for name, column in columns.items()} for index in first]
        built = [self._layers_of(one) for one in with_progress(keys, f"{self.strategy}: layers", "splits")]
        ranks = self._ranks(s)
        strides = {"tp": ranks.tp_stride, "cp": ranks.cp_stride, "ep": ranks.ep_stride, "grid": ranks.cp_stride}
        precisions = [one["precision"] for one in keys]
        software = [self.software_in(each) for each in range(len(self.space.precisions))]
        return layer_times(built, key, precisions, strides, OpPrices(self.priced, self._summed), software)

    def _shared_us(self, s: Splits) -> tuple[Floats, Floats]:
        """[candidate, kind]: gathering one layer's weights, and scattering or reducing its gradients."""
        names = ("m1", "m2", "dp", "ep", "zero", "near_m1", "near_m2", "near_dp")
        first, inverse = distinct([*(getattr(s, name) for name in names), s.pp > 1])
        one = s.take(first)
        ranks = self._ranks(one)
        wire = np.array([REDUCED_BYTES[zero] for zero in range(4)])[one.zero][:, None]
        dense, expert, _ = self._parameters(one)
        gather, scatter = np.zeros(dense.shape), np.zeros(dense.shape)
        for count, members, stride in (
            (dense, ranks.copies, ranks.dp_stride),
            (expert, ranks.expert_copies, ranks.expert_dp_stride),
        ):
            gather += self._collective_us("all_gather", memory.WEIGHT_BYTES * count, members, stride)
            scatter += self._collective_us("reduce_scatter", wire * count, members, stride)
        return gather[inverse], scatter[inverse]

    def _optimizers_us(
        self, s: Splits, groups: Sequence[tuple[npt.NDArray[np.intp], tuple[StageType, ...]]]
    ) -> list[Floats]:
        """Optimizer time of each group's candidates on the rank that holds most; distinct steps are priced together."""
        names = ("gpus", "m1", "m2", "dp", "ep", "zero")
        where: list[npt.NDArray[np.intp]] = []
        counts: list[Floats] = []
        inverses: list[npt.NDArray[np.intp]] = []
        for group, types in groups:
            first, inverse = distinct([getattr(s, name)[group] for name in names])
            dense, expert, _ = self._parameters(s.take(group[first]))
            inverses.append(inverse)
            where += [group[first]] * len(types)
            counts += [np.stack([dense @ stage.layers, expert @ stage.layers], axis=1) for stage in types]
        if not where:
            return []
        held = np.concatenate(counts)
        every = self._optimizer_us(s.take(np.concatenate(where)), held[:, 0], held[:, 1])
        parts = iter(np.split(every, np.cumsum([len(each) for each in where])[:-1]))
        return [
            np.max([next(parts) for _ in types], axis=0)[inverse]
            for (_, types), inverse in zip(groups, inverses, strict=True)
        ]

    def _collective_us(self, word: str, nbytes: Floats, ranks: Ints, stride: Ints) -> Floats:
        """[row, kind], a group per row; 0 within one rank and for no bytes."""
        result = np.zeros(nbytes.shape)
        first, inverse = distinct([ranks, stride])
        for i, index in enumerate(first):
            if ranks[index] > 1:
                at = inverse == i
                group = Group(ranks=int(ranks[index]), stride=int(stride[index]))
                sizes, where = np.unique(nbytes[at], return_inverse=True)
                times = np.where(sizes > 0, collective_us(word, sizes, group, self.topology)[0], 0.0)
                if self._energies is not None:
                    elements = [round(size / ParallelConfig().width.width_bytes) for size in sizes.tolist()]
                    models = [
                        Collective(kind=word, elements_in=each, elements_out=each, ranks=group.ranks)
                        for each in elements
                    ]
                    times = self._summed(models, times)
                result[at] = times[where].reshape(nbytes[at].shape)
        return result

    def _stage_times(
        self, s: Splits, at: npt.NDArray[np.intp], types: Sequence[StageType], costs: LayerKindTimes, global_batch: int
    ) -> dict[str, Floats]:
        part, kinds = s.take(at), range(len(self.kinds))
        passes = part.micro_batches(global_batch).astype(float)
        times = costs.layers.take(at)
        parts = self._parts_us(part, times)
        layers = self._kind_costs(part, parts, times, costs)
        chunks = dict.fromkeys(itertools.chain.from_iterable(stage.chunks for stage in types))
        passes_us = {chunk: pipeline_time.pass_us(part, chunk, layers) for chunk in chunks}
        held_us = [pipeline_time.in_turn([passes_us[chunk] for chunk in stage.chunks]) for stage in types]
        each = np.stack([ranks.whole.sum(axis=0) for ranks in held_us])
        busiest, longest, rows = each.argmax(axis=0), each.max(axis=0), np.arange(len(part))
        host, beside = (
            np.stack([getattr(ranks, name).sum(axis=0) for ranks in held_us])[busiest, rows]
            for name in ("host", "beside")
        )
        held = np.stack([stage.layers for stage in types])[busiest]
        result = {
            name: passes * sum(held[:, k] * (parts[name, k, 0] + parts[name, k, 1]) for k in kinds) for name in NAMED
        }
        timing = pipeline_time.split_us if part.schedule.any() else pipeline_time.whole_us
        ran, hops, replicas = timing(part, types, layers, passes_us, hop=costs.hop, micro_batches=passes)
        together = ran + replicas + costs.optimizer
        lost = self.software_in(0).scale_loss_us(together, part.gpus)
        return {
            "t": together + lost,
            "t_comp": result["compute"],
            "t_mem": result["memory"] + result["copies"],
            "t_tp_comm": result["tp"] + result["cp"],
            "t_ep_comm": result["ep"],
            "t_recompute": result["recompute"],
            "t_host": passes * host,
            "t_pp_comm": hops,
            "t_bubble": ran - passes * longest - hops,
            "t_dp_comm": passes * beside + replicas,
            "t_optimizer": costs.optimizer,
            "t_scale_loss": lost,
            "stage": np.array([stage.ranks[0] for stage in types], float)[busiest],
        }

    def _parts_us(self, part: Splits, layers: LayerTimes) -> dict[tuple[str, int, int], Floats]:
        """What each kind of layer takes, by (part, kind, forward or backward); recomputation belongs to the backward.

        SUMMA's transfers count as far as overlapping GEMMs leave them exposed.
        """
        kinds, nothing = enumerate(self.kinds), np.zeros(len(part))
        parts: dict[tuple[str, int, int], Floats] = {}
        for k, kind in kinds:
            for phase in (0, 1):
                for name in PARTS:
                    parts[name, k, phase] = layers.part(name, k, phase)
                if self.strategy == "2d":
                    moved = parts["tp", k, phase] + parts["grid", k, phase]
                    beside = layers.products[layers.key, k, phase]
                    parts["tp", k, phase] = moved * np.asarray(exposed_share(moved, beside, part.blocks, 1.0))
                    parts["grid", k, phase] = nothing
            again = _again_us(
                part, layers, k, sum((parts[name, k, 0] for name in REPEATED), nothing) * (kind not in ENDS)
            )
            parts["recompute", k, 0], parts["recompute", k, 1] = 0.0 * again, again
        return parts

    def _launch_us(self, layers: LayerTimes, part: Splits) -> Floats:
        """The host's time, [phase, kind, candidate]; recomputation launches what it repeats again."""
        launched = layers.launched[layers.key].transpose(2, 1, 0).copy()
        launched[1] += launched[0] * (part.recompute == RECOMPUTE.index("full"))
        for word in _selective(part):
            mine = part.recompute == RECOMPUTE.index(word)
            launched[1] += layers.partial().again_launched[word][layers.key].T * mine
        waits = [0 if kind in ENDS else sum(block_types()[x].waits_for_host for x in kind) for kind in self.kinds]
        software = [self.software_in(each) for each in range(len(self.space.precisions))]
        per_op, per_wait = (
            np.array([getattr(each, name) for each in software])[part.precision]
            for name in ("host_us_per_op", "experts_us")
        )
        found: Floats = launched * per_op + np.array(waits)[:, None] * per_wait
        return found

    def _kind_costs(
        self, part: Splits, parts: Mapping[tuple[str, int, int], Floats], times: LayerTimes, costs: LayerKindTimes
    ) -> pipeline_time.KindCosts:
        """By [forward or backward]; where a schedule tells them apart, [forward, gradient of the input, of weights]."""
        kinds = range(len(self.kinds))
        whole = np.array([[sum(parts[name, k, phase] for name in NAMED) for k in kinds] for phase in (0, 1)])
        launch = self._launch_us(times, part)
        if part.schedule.any():
            software = [self.software_in(each) for each in range(len(self.space.precisions))]
            per_op = np.array([each.host_us_per_op for each in software])[part.precision]
            partial = times.partial()
            wgrad, launched = partial.wgrad[times.key].T, partial.wgrad_launched[times.key].T * per_op
            whole = np.stack([whole[0], whole[1] - wgrad, wgrad])
            launch = np.stack([launch[0], launch[1] - launched, launched])
        return pipeline_time.KindCosts(whole, launch, costs.gather, costs.scatter)

    def _hop_us(self, s: Splits) -> Floats:
        """Between neighboring stages, the mean of hops inside and between nodes."""
        rows = s.micro_batch * self.space.sequence / (s.m1 * s.m2)
        nbytes = ParallelConfig().width.width_bytes * self.model.hidden * rows
        result = np.zeros(len(s))
        first, inverse = distinct([s.pp, s.near_pp])
        for i, index in enumerate(first):
            group = GroupPlacement(node=self.node).group(int(s.pp[index]), int(s.near_pp[index]))
            if group.ranks > 1:
                at = inverse == i
                sizes, which = np.unique(nbytes[at], return_inverse=True)
                result[at] = np.asarray(hop_us(sizes, group, self.topology))[which]
        return result

    def _optimizer_us(self, s: Splits, dense: Floats, expert: Floats) -> Floats:
        """Adam over the rank's share of so many parameters, and the gradients' norm."""
        elements = (self._states(s, dense, expert).optimizer / memory.OPTIMIZER_BYTES).astype(np.int64)
        first, inverse = distinct([elements, s.gpus])
        ops = [rank_ops.optimizer(float(elements[i]), ParallelConfig(dp=int(s.gpus[i]))) for i in first]
        priced = self.priced(op.model for each in ops for op in each)
        software = self.software_in(0)
        called = list(itertools.chain.from_iterable(ops))
        times = self._summed(
            [op.model for op in called], np.array([priced[op.model] * software.of(op) for op in called])
        )
        row = np.repeat(np.arange(len(ops)), [len(each) for each in ops])
        found: Floats = np.bincount(row, times, len(ops)).astype(np.float64)[inverse]
        return found


def _codes(words: Iterable[str]) -> list[int]:
    return [RECOMPUTE.index(word) for word in words]


def _selective(s: Splits) -> list[str]:
    """Ways of selective recomputation among candidates."""
    return [word for word in SELECTIVE if np.any(s.recompute == RECOMPUTE.index(word))]


def _again_us(s: Splits, layers: LayerTimes, kind: int, whole: Floats) -> Floats:
    """What recomputation repeats of one kind of layer, whose forward takes ``whole``."""
    again: Floats = whole * (s.recompute == RECOMPUTE.index("full"))
    for word in _selective(s):
        again = again + layers.again(word, kind) * (s.recompute == RECOMPUTE.index(word))
    return again


#: What a step of the same layers takes however it is scheduled and whatever is recomputed.
_BUSY = ("t_comp", "t_mem", "t_tp_comm", "t_ep_comm", "t_optimizer")
#: Dimensions that the published tables do not have.
FURTHER = ("vpp", "ep", "zero", "recompute", "precision", "schedule")
TIMES = (
    "t", "t_comp", "t_mem", "t_tp_comm", "t_ep_comm", "t_recompute", "t_host", "t_pp_comm", "t_bubble", "t_dp_comm",
    "t_optimizer", "t_scale_loss",
)  # fmt: skip
