"""The rule set ``corrected``: a whole training step from this project's own op lists, perf models and backends.

The same step as ``projection.step`` for arrays of configurations: embedding, head and optimizer included, operations
priced at their size by the chosen backends, collectives over the links between the ranks of each group. Instead of
running the pipeline event by event, its time is a closed form (``pipeline_us``) that tests hold against the events.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.backends.chain import chain
from tracelens.backends.system import System
from tracelens.errors import UsageError
from tracelens.groups import Group
from tracelens.network.algorithms import collective_us
from tracelens.network.topology import Topology
from tracelens.perf_models import Collective, EPComm, PerfModel, WorkColumns
from tracelens.projection.blocks import exposed_share
from tracelens.projection.job import layer_counts
from tracelens.projection.overheads import PLAIN, Software, later_us, sustained_us
from tracelens.projection.overlap import OVERLAP_COST, REDUCED_BYTES, exposed_us, hop_us
from tracelens.projection.projection_options import BACKENDS, Strategy
from tracelens.projection.search.rules import ANYTHING, PLACES, Constraints, Feasible
from tracelens.projection.search.space import Ints, distinct
from tracelens.projection.search.splits import RECOMPUTE, Space, Splits, placed
from tracelens.projection.step import completed
from tracelens.units import BYTES_PER_GB, BYTES_PER_GIB, US_PER_S
from tracelens.workload import memory, rank_ops
from tracelens.workload.blocks import block_types
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import ParallelConfig, Placement
from tracelens.workload.rank_ops import RankLayer, RankOp

Floats: TypeAlias = npt.NDArray[np.float64]
ENDS = ("embedding", "head")
_FLOP_PER_TFLOP = 1e12
#: Candidates per pass, so that a pass' columns fit into a few tens of MB.
_CHUNK = 100_000
_LAYER_KEY = ("m1", "m2", "micro_batch", "blocks", "ep", "precision")


class Neighbors(NamedTuple):
    """A layer of a chunk between the one before it and the one after it, as kinds; None at the chunk's ends."""

    before: int | None
    kind: int
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkType:
    """Layers that run one after the other. ``layers``: how often each kind, [kind]; ``first`` and ``last``: kinds.

    ``neighbors``: how often layers of each kind stand between which others.
    """

    layers: Ints
    first: int
    last: int
    neighbors: Mapping[Neighbors, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageType:
    """Pipeline ranks that hold the same chunks of layers.

    Of ``ranks`` the first keeps the most activations.
    """

    chunks: tuple[ChunkType, ...]
    ranks: tuple[int, ...]

    @property
    def layers(self) -> Ints:
        """[kind], all chunks together."""
        total: Ints = np.sum([chunk.layers for chunk in self.chunks], axis=0)
        return total


class PassTimes(NamedTuple):
    """Microseconds of a micro-batch's forward and backward through a chunk, [forward or backward][candidate].

    ``beside``: what weights and gradients on their way add; ``host``: what launching takes longer than all this.
    """

    busy: Floats
    beside: Floats
    host: Floats

    @property
    def whole(self) -> Floats:
        """All of it."""
        return self.busy + self.beside + self.host


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Microseconds of layers at distinct keys: [key, kind, forward or backward].

    ``compute``: matrix products and attention; ``memory``: what streams memory. ``launched`` counts operations.
    ``products`` is the part of ``compute`` that SUMMA's broadcasts run beside.
    ``exchanged`` has the communication by part (``"tp"``), each with keys of its own.
    """

    key: npt.NDArray[np.intp]
    compute: Floats
    memory: Floats
    products: Floats
    launched: Floats
    exchanged: Mapping[str, tuple[npt.NDArray[np.intp], Floats]]

    def part(self, name: str, kind: int, phase: int, at: Any) -> Floats:
        """One part of one kind of layer, for candidates ``at``."""
        own = {"compute": self.compute, "memory": self.memory}
        key, times = (self.key, own[name]) if name in own else self.exchanged[name]
        found: Floats = times[key[at], kind, phase]
        return found


#: ``grid``: SUMMA's transfers between context ranks.
PARTS = ("compute", "memory", "tp", "cp", "ep", "grid")


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedRules:
    """Prices candidates of ``space`` on ``system``."""

    space: Space
    system: System
    backends: str = BACKENDS
    software: Software = PLAIN
    _built: dict[Any, dict[str, list[RankLayer]]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def model(self) -> ModelConfig:
        return self.space.model

    @property
    def strategy(self) -> Strategy:
        return self.space.strategy

    @property
    def topology(self) -> Topology:
        """UsageError for a device alone."""
        if self.system.topology is None:
            raise UsageError(f"{self.system.device.name} has no interconnect; pass --cluster")
        return self.system.topology

    @property
    def node(self) -> int:
        """Ranks that the innermost links join."""
        return self.topology.ranks_per_node or 1

    @property
    def capacity_gb(self) -> float:
        """GB per device; infinite where it is not known."""
        hbm = self.system.device.hbm
        nominal = None if hbm is None else hbm.nominal_gib
        return np.inf if nominal is None else nominal * BYTES_PER_GIB / BYTES_PER_GB

    @property
    def kinds(self) -> tuple[str, ...]:
        """Distinct layers, and the ends."""
        return (*dict.fromkeys(self.model.layers), *ENDS)

    @property
    def tokens_per_sample(self) -> int:
        """Length of a sequence."""
        return self.space.sequence

    def feasible(
        self, gpu_counts: Iterable[int], *, global_batch: int, wanted: Constraints = ANYTHING
    ) -> Feasible[Splits]:
        """All configurations that hold what is wanted: memory first, which does not depend on where ranks stand."""
        splits = self.space.splits(gpu_counts, global_batch=global_batch)
        if wanted.fixed or wanted.forbidden:
            names = [name for name in self.degrees(splits) if name not in PLACES]
            splits = splits.take(wanted.allows(self.degrees(splits), only=names))
        needed = sum(self.memory_gb(splits, global_batch=global_batch).values(), np.zeros(len(splits)))
        if not wanted.is_one_configuration:
            fits = needed <= self.capacity_gb * (1 - wanted.headroom)
            splits, needed = splits.take(fits), needed[fits]
        spread, source = placed(splits, self.node)
        if wanted.fixed or wanted.forbidden:
            allowed = wanted.allows(self.degrees(spread), only=PLACES)
            spread, source = spread.take(allowed), source[allowed]
        return Feasible(
            candidates=spread, step_s=self.times(spread, global_batch=global_batch)["t"], memory_gb=needed[source]
        )

    def table(self, candidates: Splits, *, global_batch: int) -> dict[str, Any]:
        """The full breakdown, by column name."""
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
        stage = next(s for s in stage_types(self.model, parallel.pp, parallel.vpp) if s.ranks[0] == first[0])
        under_way = _under_way(one, stage, one.micro_batches(global_batch))[0].tolist()
        rows: list[dict[str, Any]] = []
        again = 0.0
        layers = self.layers(parallel).values()
        priced = self.priced(op.model for blocks in layers for block in blocks for op in block.ops)
        held = zip(self.kinds, layers, stage.layers.tolist(), under_way, strict=True)
        for kind, blocks, count, kept in held:
            shares = self._shares(blocks, parallel, priced)
            made = [
                row
                for block in blocks
                if count
                for row in self._op_rows(kind, block, parallel, count, kept, shares, priced)
            ]
            again += sum(row["forward_s"] for row in made) * (parallel.recompute == "full" and kind not in ENDS)
            rows += made
        return [
            *rows,
            {"op": "recomputation", "backward_s": again},
            {"op": "host, late to launch", "backward_s": whole["t_host"]},
            {"op": "transfers between stages", "backward_s": whole["t_pp_comm"]},
            {"op": "pipeline bubble", "backward_s": whole["t_bubble"]},
            {"op": "gradients and weights between replicas", "backward_s": whole["t_dp_comm"]},
            {"op": "optimizer", "backward_s": whole["t_optimizer"]},
        ]

    def _shares(
        self, blocks: Sequence[RankLayer], parallel: ParallelConfig, priced: Mapping[PerfModel, float]
    ) -> dict[str, float]:
        """Share of one layer's tensor-parallel transfers that the GEMMs beside them leave exposed, by direction."""
        if parallel.summa_blocks is None:
            return {"forward": 1.0, "backward": 1.0}
        ops = [op for block in blocks for op in block.ops]
        shares = {}
        for side in ("forward", "backward"):
            mine = [op for op in ops if (op.phase == "forward") == (side == "forward")]
            moved, products = (
                sum(op.count * priced[op.model] * self.software.of(op) for op in mine if belongs(op))
                for belongs in (lambda op: part_of(op) in ("tp", "grid"), lambda op: op.part == "gemm")
            )
            shares[side] = float(exposed_share(moved, products, parallel.summa_blocks, 1.0))
        return shares

    def _op_rows(
        self, kind: str, block: RankLayer, parallel: ParallelConfig, count: int, kept: float,
        shares: Mapping[str, float], priced: Mapping[PerfModel, float],
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Rows of ``count`` blocks, a step's micro-batches: weights as held, activations of ``kept`` micro-batches."""
        arguments = (self.model, parallel, block.letter, self.space.sequence)
        is_end = kind in ENDS
        weights = {} if is_end else rank_ops.weights(*arguments)
        times = count * parallel.micro_batches
        rows: dict[str, dict[str, Any]] = {}
        for op in block.ops:
            side = "forward" if op.phase == "forward" else "backward"
            name = op.name if is_end else f"{kind} {op.name}"
            row = rows.setdefault(name, {"op": name, "times": times, "forward_s": 0.0, "backward_s": 0.0})
            share = shares[side] if part_of(op) in ("tp", "grid") else 1.0
            row[f"{side}_s"] += share * op.count * priced[op.model] * self.software.of(op) * times / US_PER_S
            for column, value, unit in (
                ("tflop", op.model.flops(), _FLOP_PER_TFLOP), ("hbm_gb", op.model.hbm_bytes(), BYTES_PER_GB),
            ):  # fmt: skip
                row[f"{side}_{column}"] = row.get(f"{side}_{column}", 0.0) + (value or 0) * times / unit
            if isinstance(op.model, Collective | EPComm) and op.model.ranks:
                word = "all_to_all" if isinstance(op.model, EPComm) else op.model.word or ""
                near = Group(ranks=op.model.ranks, stride=op.model.stride).within(self.node)
                before = row.get(f"{side}_comm")
                row[f"{side}_comm"] = f"{before} + {word}" if before else word
                row[f"{side}_group"] = f"{op.model.ranks} ({near} per node)"
                sent = (op.model.wire_bytes() or 0) * op.count * times / BYTES_PER_GB
                row[f"{side}_volume_gb"] = row.get(f"{side}_volume_gb", 0.0) + sent
            if op.name in weights:
                row["weights_gb"] = weights[op.name] * count * memory.WEIGHT_BYTES / BYTES_PER_GB
        first = next(iter(rows.values()), None)
        if first is not None and is_end:
            first["weights_gb"] = block.dense * memory.WEIGHT_BYTES / BYTES_PER_GB
        elif first is not None:
            # What a block keeps is known for all of it.
            first["activations_gb"] = memory.activation_bytes(*arguments) * kept / BYTES_PER_GB
        return list(rows.values())

    def degrees(self, candidates: Splits) -> dict[str, Any]:
        """What may be fixed or forbidden, by column name."""
        s = candidates
        return {
            "n_gpus": s.gpus, "dp": s.dp, "tp": s.m1 * s.m2, "tp1": s.m1, "tp2": s.m2, "pp": s.pp,
            "mbs": s.micro_batch, "nb": s.blocks, "nv_tp1": s.near_m1, "nv_tp2": s.near_m2, "nv_dp": s.near_dp,
            "nv_pp": s.near_pp, "vpp": s.vpp, "ep": s.ep, "zero": s.zero,
            "recompute": np.array(RECOMPUTE)[s.recompute], "precision": np.array(self.space.precisions)[s.precision],
        }  # fmt: skip

    def parallel(self, splits: Splits, index: int, *, global_batch: int) -> ParallelConfig:
        """The configuration at ``index``, as a projection takes it."""
        one = {name: int(getattr(splits, name)[index]) for name in splits.__slots__}
        place = None
        if one["near_m1"]:
            place = Placement(
                node=self.node, tp=one["near_m1"], cp=one["near_m2"], dp=one["near_dp"], pp=one["near_pp"]
            )
        return replace(
            self._layer_parallel(one),
            dp=one["dp"],
            pp=one["pp"],
            vpp=one["vpp"],
            micro_batches=global_batch // (one["dp"] * one["micro_batch"]),
            zero=one["zero"],
            recompute=RECOMPUTE[one["recompute"]],
            placement=place,
        )

    def memory_gb(self, splits: Splits, *, global_batch: int) -> dict[str, Floats]:
        """GB of the pipeline rank that needs most: weights, gradients, optimizer, activations, logits, other."""
        result = {
            name: np.zeros(len(splits)) for name in ("weights", "gradients", "optimizer", "activations", "logits")
        }
        worst = np.full(len(splits), -1.0)
        for group, types in self._by_stages(splits):
            part = splits.take(group)
            kept, working, logits = self._activations(part)
            dense, expert = self._parameters(part)
            for stage in types:
                one = self._stage_memory(part, stage, dense, expert, kept, working, logits, global_batch)
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

    def _times(self, splits: Splits, global_batch: int) -> tuple[dict[str, Floats], Floats]:
        """``times``, and the first of the busiest pipeline ranks."""
        layers, shared, hop = self._layer_times(splits), self._shared_us(splits), self._hop_us(splits)
        groups = list(self._by_stages(splits))
        found, stage = {name: np.zeros(len(splits)) for name in TIMES}, np.zeros(len(splits))
        for (group, types), optimizer in zip(groups, self._optimizers_us(splits, groups), strict=True):
            for start in range(0, len(group), _CHUNK):
                part = slice(start, start + _CHUNK)
                at = group[part]
                costs = (layers, (shared[0][at], shared[1][at]), hop[at], optimizer[part])
                made = self._stage_times(splits, at, types, *costs, global_batch)
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
        arguments = (self.model, parallel)
        sequence = self.space.sequence
        letters = {letter: rank_ops.block(*arguments, letter, sequence) for letter in dict.fromkeys(self.model.blocks)}
        built = {kind: [letters[letter] for letter in kind] for kind in self.kinds[: -len(ENDS)]}
        built["embedding"] = [rank_ops.embedding(*arguments, sequence)]
        built["head"] = [rank_ops.head(*arguments, sequence)]
        return built

    def priced(self, models: Iterable[PerfModel]) -> dict[PerfModel, float]:
        """Microseconds of each distinct operation, all of one step. UsageError for one that no backend prices."""
        ops = tuple(dict.fromkeys(models))
        system = completed(self.system)[0]
        found = _chain(self.backends).estimate_many(WorkColumns.of(ops), system)
        unknown = np.flatnonzero(np.isnan(found.time_us))
        if len(unknown):
            raise UsageError(f"{ops[unknown[0]]}: no backend can estimate it on {self.system.device.name}")
        return dict(zip(ops, sustained_us(found, ops, system).tolist(), strict=True))

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
            summa_blocks=one["blocks"] if self.strategy == "2d" else None,
        )

    def _copies(self, s: Splits) -> Ints:
        """Ranks with the same dense weights."""
        return s.dp if self.strategy == "2d" else s.dp * s.m2

    def _by_stages(self, splits: Splits) -> Iterable[tuple[npt.NDArray[np.intp], tuple[StageType, ...]]]:
        """Candidates with the same stages and chunks together, and what their ranks hold."""
        first, inverse = distinct([splits.pp, splits.vpp])
        order = np.argsort(inverse, kind="stable")
        edges = np.searchsorted(inverse[order], np.arange(len(first) + 1))
        for i, index in enumerate(first):
            yield (
                order[edges[i] : edges[i + 1]],
                stage_types(self.model, int(splits.pp[index]), int(splits.vpp[index])),
            )

    def _stage_memory(
        self, s: Splits, stage: StageType, dense: Floats, expert: Floats, kept: Floats, working: Floats,
        logits: Floats, global_batch: int,
    ) -> dict[str, Floats]:  # fmt: skip
        held_dense, held_expert = dense @ stage.layers, expert @ stage.layers
        shards = self._copies(s)
        expert_shards = np.minimum(shards, s.m1 * s.m2 * s.dp // s.ep)
        states = memory.divided_states(held_dense, held_expert, zero=s.zero, shards=shards, expert_shards=expert_shards)
        present = stage.layers > 0
        # The largest block or end is gathered beside the one that computes.
        largest = (self._largest_block(s) * present).max(axis=1)
        gathered = np.where(s.zero == 3, memory.GATHERED_LAYERS * memory.WEIGHT_BYTES * largest, 0.0)
        return {
            "weights": states.weights + gathered,
            "gradients": states.gradients,
            "optimizer": states.optimizer,
            "activations": (kept * _under_way(s, stage, s.micro_batches(global_batch))).sum(axis=1)
            + (working * present).max(axis=1),
            "logits": logits if stage.layers[-1] else 0.0 * logits,
        }

    def _activations(self, s: Splits) -> tuple[Floats, Floats, Floats]:
        """Bytes kept of a micro-batch by each kind of layer, needed to recompute one, and of logits."""
        names = ("m1", "m2", "micro_batch", "recompute")
        first, inverse = distinct([getattr(s, name) for name in names])
        kept, working = np.zeros((len(first), len(self.kinds))), np.zeros((len(first), len(self.kinds)))
        logits = np.zeros(len(first))
        for i, index in enumerate(first):
            one = {name: int(getattr(s, name)[index]) for name in (*names, "ep", "precision", "blocks")} | {"ep": 1}
            arguments = (
                self.model,
                replace(self._layer_parallel(one), recompute=RECOMPUTE[one["recompute"]]),
            )
            for k, kind in enumerate(self.kinds[: -len(ENDS)]):
                kept[i, k] = sum(memory.activation_bytes(*arguments, letter, self.space.sequence) for letter in kind)
                working[i, k] = memory.working_bytes(*arguments, kind, self.space.sequence)
            logits[i] = memory.logits_bytes(*arguments, self.space.sequence)
        return kept[inverse], working[inverse], logits[inverse]

    def _parameters(self, s: Splits) -> tuple[Floats, Floats]:
        """Dense and expert parameters of each kind of layer on a rank."""
        first, inverse = distinct([s.m1, s.m2, s.ep, s.pp > 1])
        dense, expert = np.zeros((len(first), len(self.kinds))), np.zeros((len(first), len(self.kinds)))
        for i, index in enumerate(first):
            for k, blocks in enumerate(self._weights_of(s, int(index)).values()):
                dense[i, k] = sum(block.dense for block in blocks)
                expert[i, k] = sum(block.expert for block in blocks)
        return dense[inverse], expert[inverse]

    def _largest_block(self, s: Splits) -> Floats:
        """Parameters of the largest block of each kind of layer."""
        first, inverse = distinct([s.m1, s.m2, s.ep, s.pp > 1])
        largest = np.zeros((len(first), len(self.kinds)))
        for i, index in enumerate(first):
            built = self._weights_of(s, int(index)).values()
            largest[i] = [max(block.dense + block.expert for block in blocks) for blocks in built]
        return largest[inverse]

    def _weights_of(self, s: Splits, index: int) -> dict[str, list[RankLayer]]:
        """Layers of a single sequence: weights do not depend on the batch."""
        one = {name: int(getattr(s, name)[index]) for name in ("m1", "m2", "ep", "blocks")}
        key = (*one.values(), bool(s.pp[index] > 1))
        if key not in self._built:
            parallel = self._layer_parallel({**one, "micro_batch": 1, "precision": 0})
            self._built[key] = self.layers(replace(parallel, pp=2 if key[-1] else 1))
        return self._built[key]

    def _layer_times(self, s: Splits) -> LayerTimes:
        """Every distinct operation of every distinct layer is priced once, those of steps in one precision in one call:
        together they say at which clock a step runs.
        """
        first, key = distinct([getattr(s, name) for name in _LAYER_KEY])
        keys = [{name: int(getattr(s, name)[index]) for name in _LAYER_KEY} for index in first]
        built = [self.layers(self._layer_parallel(one)) for one in keys]
        rows = [
            (i, k, int(op.phase != "forward"), op)
            for i, layers in enumerate(built)
            for k, blocks in enumerate(layers.values())
            for block in blocks
            for op in block.ops
        ]
        local = [row for row in rows if part_of(row[3]) in ("compute", "memory")]
        strides = dict(zip(("tp", "cp", "ep"), group_strides(s, self.node), strict=True))
        strides["grid"] = strides["cp"]
        exchanges: dict[str, tuple[npt.NDArray[np.intp], list[tuple[int, int, int, PerfModel, RankOp]]]] = {}
        for part, stride in strides.items():
            mine: dict[int, list[tuple[int, int, RankOp]]] = {}
            for i, k, phase, op in rows:
                if part_of(op) == part:
                    mine.setdefault(i, []).append((k, phase, op))
            where, inverse = distinct([key, stride])
            exchanges[part] = (
                inverse,
                [
                    (row, k, phase, _with_stride(op.model, int(stride[index])), op)
                    for row, index in enumerate(where)
                    for k, phase, op in mine.get(int(key[index]), ())
                ],
            )
        precision = [one["precision"] for one in keys]
        priced = {
            each: self.priced(op.model for i, _, _, op in local if precision[i] == each) for each in set(precision)
        }
        moved = self.priced(row[3] for _, found in exchanges.values() for row in found)
        shape = (len(keys), len(self.kinds), 2)
        compute, streamed, products, launched = (np.zeros(shape) for _ in range(4))
        for i, k, phase, op in local:
            table = compute if part_of(op) == "compute" else streamed
            time_us = priced[precision[i]][op.model] * self.software.of(op)
            table[i, k, phase] += time_us
            if op.part == "gemm":
                products[i, k, phase] += time_us
        for i, k, phase, _ in rows:
            launched[i, k, phase] += 1
        exchanged = {}
        for part, (inverse, found) in exchanges.items():
            times = np.zeros((int(inverse.max(initial=-1)) + 1, *shape[1:]))
            for row, k, phase, model, op in found:
                times[row, k, phase] += op.count * moved[model] * self.software.of(op)
            exchanged[part] = (inverse, times)
        return LayerTimes(
            key=key, compute=compute, memory=streamed, products=products, launched=launched, exchanged=exchanged
        )

    def _shared_us(self, s: Splits) -> tuple[Floats, Floats]:
        """[candidate, kind]: gathering one layer's weights, and scattering or reducing its gradients."""
        names = ("m1", "m2", "dp", "ep", "zero", "near_m1", "near_m2", "near_dp")
        first, inverse = distinct([*(getattr(s, name) for name in names), s.pp > 1])
        one = s.take(first)
        dense_stride, expert_ranks, expert_stride = shared_groups(one, self.node, is_grid=self.strategy == "2d")
        ranks = self._copies(one)
        expert_ranks = np.where(one.zero == 3, np.minimum(expert_ranks, ranks), expert_ranks)
        wire = np.array([REDUCED_BYTES[zero] for zero in range(4)])[one.zero][:, None]
        dense, expert = self._parameters(one)
        gather, scatter = np.zeros(dense.shape), np.zeros(dense.shape)
        for count, members, stride in ((dense, ranks, dense_stride), (expert, expert_ranks, expert_stride)):
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
            dense, expert = self._parameters(s.take(group[first]))
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
                result[at] = times[where].reshape(nbytes[at].shape)
        return result

    def _stage_times(
        self, s: Splits, at: npt.NDArray[np.intp], types: Sequence[StageType], layers: LayerTimes,
        shared: tuple[Floats, Floats], hop: Floats, optimizer: Floats, global_batch: int,
    ) -> dict[str, Floats]:  # fmt: skip
        part = s.take(at)
        passes = part.micro_batches(global_batch).astype(float)
        parts = {
            (name, k, phase): layers.part(name, k, phase, at)
            for name in PARTS
            for k in range(len(self.kinds))
            for phase in (0, 1)
        }
        nothing = np.zeros(len(part))
        for k, kind in enumerate(self.kinds):
            for phase in (0, 1) if self.strategy == "2d" else ():
                products = layers.products[layers.key[at], k, phase]
                moved = parts["tp", k, phase] + parts["grid", k, phase]
                parts["tp", k, phase] = moved * _exposed_share(part, moved, products)
                parts["grid", k, phase] = nothing
            forward = sum((parts[name, k, 0] for name in PARTS), nothing)
            again = forward * (np.array([word == "full" for word in RECOMPUTE])[part.recompute] & (kind not in ENDS))
            parts["recompute", k, 0], parts["recompute", k, 1] = 0.0 * again, again
        names = (*PARTS, "recompute")
        whole = np.array(
            [[sum(parts[name, k, phase] for name in names) for k in range(len(self.kinds))] for phase in (0, 1)]
        )
        launch = self._launch_us(layers, part, at)
        chunks = dict.fromkeys(chunk for stage in types for chunk in stage.chunks)
        passes_us = {chunk: self._pass_us(part, chunk, whole, launch, shared) for chunk in chunks}
        held_us = [
            PassTimes(*(sum(each) for each in zip(*(passes_us[c] for c in stage.chunks), strict=True)))
            for stage in types
        ]
        each = np.stack([ranks.whole.sum(axis=0) for ranks in held_us])
        busiest = each.argmax(axis=0)
        longest = each.max(axis=0)
        rows = np.arange(len(part))
        held = np.stack([stage.layers for stage in types])[busiest]
        result = {
            f"{name}": passes
            * sum(held[:, k] * (parts[name, k, 0] + parts[name, k, 1]) for k in range(len(self.kinds)))
            for name in names
        }
        ran, hops = pipeline_us(types, passes_us, hop=hop, micro_batches=passes)
        replicas = self._replicas_us(part, types, shared, held_us, passes_us, whole)
        idle = ran - passes * longest - hops
        return {
            "t": ran + replicas + optimizer,
            "t_comp": result["compute"],
            "t_mem": result["memory"],
            "t_tp_comm": result["tp"] + result["cp"],
            "t_ep_comm": result["ep"],
            "t_recompute": result["recompute"],
            "t_host": passes * np.stack([ranks.host.sum(axis=0) for ranks in held_us])[busiest, rows],
            "t_pp_comm": hops,
            "t_bubble": idle,
            "t_dp_comm": passes * np.stack([ranks.beside.sum(axis=0) for ranks in held_us])[busiest, rows] + replicas,
            "t_optimizer": optimizer,
            "stage": np.array([stage.ranks[0] for stage in types], float)[busiest],
        }

    def _launch_us(self, layers: LayerTimes, part: Splits, at: npt.NDArray[np.intp]) -> Floats:
        """The host's time, [phase, kind, candidate]; full recomputation launches the forward again."""
        launched = layers.launched[layers.key[at]].transpose(2, 1, 0).copy()
        launched[1] += launched[0] * (part.recompute == RECOMPUTE.index("full"))
        waits = [0 if kind in ENDS else sum(block_types()[x].waits_for_host for x in kind) for kind in self.kinds]
        return launched * self.software.host_us_per_op + np.array(waits)[:, None] * self.software.experts_us

    def _pass_us(
        self, s: Splits, chunk: ChunkType, whole: Floats, launch: Floats, shared: tuple[Floats, Floats]
    ) -> PassTimes:
        busy = chunk.layers @ whole
        beside = self._beside_us(s, chunk, whole, shared)
        return PassTimes(busy=busy, beside=beside, host=later_us(busy + beside, chunk.layers @ launch))

    def _beside_us(self, s: Splits, chunk: ChunkType, whole: Floats, shared: tuple[Floats, Floats]) -> Floats:
        """What weights and gradients of divided layers add to a forward and to a backward.

        FSDP gathers a layer's weights beside the layer before it and scatters its gradients beside the one after it;
        the first gather and the last scatter have nothing beside them. Gradients that are divided without the weights
        are reduced one after the other beside the whole chunk; all but the first layer's, which are the pass before's,
        only after the last layer's backward.
        """
        gather, scatter = shared
        nothing = np.zeros(len(s))
        forward, backward = nothing, nothing
        for (before, k, after), count in chunk.neighbors.items():
            ahead = nothing if after is None else gather[:, after]
            back = nothing if before is None else gather[:, before]
            behind = nothing if after is None else scatter[:, after]
            forward = forward + count * (exposed_us(ahead, whole[0, k]) + (gather[:, k] if before is None else 0.0))
            beside = exposed_us(back + behind, whole[1, k])
            alone = (gather[:, k] if after is None else 0.0) + (scatter[:, k] if before is None else 0.0)
            backward = backward + count * (beside + alone)
        total, busy = scatter @ chunk.layers, chunk.layers @ whole[1]
        late = exposed_us(total - scatter[:, chunk.first], busy - whole[1, chunk.last])
        reduced = np.maximum(exposed_us(total, busy), late)
        return np.stack([forward * (s.zero == 3), np.select([s.zero == 3, s.zero == 2], [backward, reduced], 0.0)])

    def _replicas_us(
        self, s: Splits, types: Sequence[StageType], shared: tuple[Floats, Floats], held_us: Sequence[PassTimes],
        passes_us: Mapping[ChunkType, PassTimes], whole: Floats,
    ) -> Floats:  # fmt: skip
        """Weights gathered as the step begins, gradients reduced as it ends, each layer's beside another one.

        The first rank begins first and ends last; a later one has the time in between to hide more. What a rank's
        transfers slow, the last micro-batch meets on every rank.
        """
        gather, scatter = shared
        gathered, reduced, slowed, left = (np.zeros(len(s)) for _ in range(4))
        first_forward, first_backward = held_us[0].whole
        for stage, held in zip(types, held_us, strict=True):
            forward, backward = held.whole
            # Of several chunks, the one that ends with the last layer has the others' time.
            ahead, behind = whole[:, stage.chunks[0].last] * (len(stage.chunks) == 1)
            gathered = np.maximum(gathered, self._late_us(s, stage, gather, forward - ahead, first_forward))
            reduced = np.maximum(reduced, self._late_us(s, stage, scatter, backward - behind, first_backward))
            slowed = slowed + len(stage.ranks) * _slowed_us(scatter @ stage.layers, backward) / s.vpp
            left = np.maximum(left, self._left_us(stage, scatter, passes_us) - stage.ranks[0] * first_backward / s.vpp)
        layers = types[0].layers
        slowed = slowed + _slowed_us(scatter @ layers, first_backward) * (1 - 1 / s.vpp)
        ends = np.where(s.zero == 2, left, reduced + slowed)
        return np.where(s.zero == 3, 0.0, gathered + _slowed_us(gather @ layers, first_forward) + ends)

    def _left_us(self, stage: StageType, scatter: Floats, passes_us: Mapping[ChunkType, PassTimes]) -> Floats:
        """Where every micro-batch's gradients are reduced: how long the last one's outlast its backward."""
        chunk = stage.chunks[0]
        alone, total, busy = scatter[:, chunk.first], scatter @ chunk.layers, passes_us[chunk].busy[1]
        return alone + exposed_us(total - alone, busy) - exposed_us(total, busy)

    def _late_us(self, s: Splits, stage: StageType, each: Floats, busy_us: Floats, lag_us: Floats) -> Floats:
        """How long the transfers of a rank's layers outlast its computing; ``lag_us`` is between neighboring ranks.

        A chunk's transfers run beside that chunk, all of them beside the chunks of all micro-batches under way. The
        first layer's have nothing to hide behind. ``busy_us``: what others hide behind.
        """
        alone = each[:, stage.chunks[0].first]
        total = each @ stage.layers - alone
        beside = (1 + OVERLAP_COST) * busy_us / s.vpp
        rest = np.maximum(total / s.vpp - beside, total - beside * (1 + (s.vpp - 1) * s.pp))
        late: Floats = alone + np.maximum(0.0, rest) - stage.ranks[0] * lag_us / s.vpp
        return late

    def _hop_us(self, s: Splits) -> Floats:
        """Between neighboring stages, the mean of hops inside and between nodes."""
        rows = s.micro_batch * self.space.sequence / (s.m1 * s.m2)
        nbytes = ParallelConfig().width.width_bytes * self.model.hidden * rows
        result = np.zeros(len(s))
        first, inverse = distinct([s.pp, s.near_pp])
        for i, index in enumerate(first):
            group = Placement(node=self.node).group(int(s.pp[index]), int(s.near_pp[index]))
            if group.ranks > 1:
                at = inverse == i
                sizes, which = np.unique(nbytes[at], return_inverse=True)
                result[at] = np.asarray(hop_us(sizes, group, self.topology))[which]
        return result

    def _optimizer_us(self, s: Splits, dense: Floats, expert: Floats) -> Floats:
        """Adam over the rank's share of so many parameters, and the gradients' norm."""
        shards = self._copies(s)
        states = memory.divided_states(
            dense, expert, zero=s.zero, shards=shards, expert_shards=np.minimum(shards, s.m1 * s.m2 * s.dp // s.ep)
        )
        elements = (states.optimizer / memory.OPTIMIZER_BYTES).astype(np.int64)
        first, inverse = distinct([elements, s.gpus])
        ops = [rank_ops.optimizer(float(elements[i]), ParallelConfig(dp=int(s.gpus[i]))) for i in first]
        priced = self.priced(op.model for each in ops for op in each)
        times = np.array([sum(priced[op.model] * self.software.of(op) for op in each) for each in ops])
        return times[inverse]


#: Dimensions that the published tables do not have.
FURTHER = ("vpp", "ep", "zero", "recompute", "precision")
TIMES = (
    "t", "t_comp", "t_mem", "t_tp_comm", "t_ep_comm", "t_recompute", "t_host", "t_pp_comm", "t_bubble", "t_dp_comm",
    "t_optimizer",
)  # fmt: skip
_chain = functools.cache(chain)


def _exposed_share(s: Splits, moved_us: Floats, products_us: Floats) -> Floats:
    """Exposed share of SUMMA's transfers, as ``projection.blocks`` computes it."""
    return np.asarray(exposed_share(moved_us, products_us, s.blocks, 1.0))


def _slowed_us(transfer_us: Floats, compute_us: Floats) -> Floats:
    """What a transfer slows computing, without what is left of it afterwards."""
    return np.asarray(np.minimum(exposed_us(transfer_us, compute_us), OVERLAP_COST * compute_us))


def _under_way(s: Splits, stage: StageType, passes: Ints) -> Floats:
    """[candidate, kind]: of how many layers the first rank of ``stage`` keeps a micro-batch's activations at once.

    All of ``s`` have as many stages and chunks.
    """
    stages, chunks, rank = int(s.pp[0]), len(stage.chunks), stage.ranks[0]
    if chunks == 1:
        plain: Floats = np.minimum(stages - rank, passes)[:, None] * stage.layers.astype(float)
        return plain
    # Forwards before the first backward, in groups of as many as there are stages through chunk after chunk
    ahead = np.minimum(2 * (stages - rank - 1) + (chunks - 1) * stages + 1, passes * chunks)
    kept = np.zeros((len(s), len(stage.layers)))
    for turn in range(chunks + 2):
        kept += np.clip(ahead - turn * stages, 0, stages)[:, None] * stage.chunks[turn % chunks].layers
    return kept


def part_of(op: RankOp) -> str:
    """Which part of ``PARTS`` an operation's time belongs to."""
    if isinstance(op.model, EPComm):
        return "ep"
    if op.name.endswith(rank_ops.COLUMNS):
        return "grid"
    if isinstance(op.model, Collective):
        return "cp" if op.part == "cp" else "tp"
    return "compute" if op.model.engine == "matrix" else "memory"


def _with_stride(model: PerfModel, stride: int) -> PerfModel:
    return replace(model, stride=stride) if isinstance(model, Collective | EPComm) else model


def _stride(node: int, ranks: Ints, near: Ints) -> Ints:
    """As ``Placement.group``."""
    stride: Ints = np.maximum(1, node // np.maximum(1, np.minimum(near, ranks)))
    return stride


def group_strides(s: Splits, node: int) -> tuple[Ints, Ints, Ints]:
    """Strides of placed candidates' tensor-, context- and expert-parallel groups, as in ``ParallelConfig``."""
    return _stride(node, s.m1, s.near_m1), _stride(node, s.m2, s.near_m2), _stride(node, s.ep, _near_experts(s))


def _near_experts(s: Splits) -> Ints:
    is_folded = (s.m2 * s.dp) % s.ep != 0
    return np.asarray(s.near_dp * s.near_m2 * np.where(is_folded, s.near_m1, 1), np.int64)


def shared_groups(s: Splits, node: int, *, is_grid: bool) -> tuple[Ints, Ints, Ints]:
    """Stride of the ranks with the same dense weights; how many have the same experts', and their stride."""
    dense = _stride(node, s.dp, s.near_dp) if is_grid else _stride(node, s.dp * s.m2, s.near_dp * s.near_m2)
    ranks = s.m1 * s.m2 * s.dp // s.ep
    stride = _stride(node, s.ep, _near_experts(s))
    within = np.minimum(s.ep, np.maximum(1, node // stride))
    return dense, ranks, _stride(node, ranks, s.near_m1 * s.near_m2 * s.near_dp // within)


@functools.cache
def stage_types(model: ModelConfig, pp: int, vpp: int) -> tuple[StageType, ...]:
    """What the ranks of a pipeline hold, each distinct share once."""
    kinds = (*dict.fromkeys(model.layers), *ENDS)
    parts: list[ChunkType] = []
    made: dict[tuple[int, ...], ChunkType] = {}
    at = 0
    counts = layer_counts(len(model.layers), pp * vpp)
    for part, count in enumerate(counts):
        held = [kinds.index(layer) for layer in model.layers[at : at + count]]
        first, last = part == 0, part == len(counts) - 1
        chunk = (*[len(kinds) - 2] * first, *held, *[len(kinds) - 1] * last)
        parts.append(made.setdefault(chunk, _chunk(chunk, len(kinds))))
        at += count
    by_rank: dict[tuple[ChunkType, ...], list[int]] = {}
    for rank in range(pp):
        by_rank.setdefault(tuple(parts[rank::pp]), []).append(rank)
    return tuple(StageType(chunks=chunks, ranks=tuple(ranks)) for chunks, ranks in by_rank.items())


def _chunk(held: tuple[int, ...], kinds: int) -> ChunkType:
    return ChunkType(
        layers=np.bincount(held, minlength=kinds),
        first=held[0],
        last=held[-1],
        neighbors=Counter(Neighbors(*each) for each in zip((None, *held), held, (*held[1:], None), strict=False)),
    )


def pipeline_us(
    types: Sequence[StageType], passes_us: Mapping[ChunkType, PassTimes], *, hop: Floats, micro_batches: Floats
) -> tuple[Floats, Floats]:
    """Time of 1F1B, or of interleaved 1F1B where there are chunks; and how much of it is transfers.

    1F1B: what ``_paced_us`` and ``_round_trips_us`` say, and one round trip of transfers. Interleaved:
    the busiest rank paces all micro-batches; one group of as many as there are stages fills and drains the pipeline
    chunk by chunk, where all wait for the slowest rank at each; the other ranks' chunks once, and transfers only then.
    """
    stages, chunks = sum(len(stage.ranks) for stage in types), len(types[0].chunks)
    each = np.stack([np.sum([passes_us[chunk].whole for chunk in stage.chunks], axis=0) for stage in types])
    longest = each.sum(axis=1).max(axis=0)
    once = np.array([len(stage.ranks) for stage in types]) @ each.sum(axis=1)
    if chunks == 1:
        travel = 2 * (stages - 1) * hop
        waits = _round_trips_us(types, each.sum(axis=1), hop, micro_batches)
        return _paced_us(types, each, once, micro_batches) + travel + waits, travel + waits
    columns = Counter(zip(*(stage.chunks for stage in types), strict=True))
    slowest = [count * np.max([passes_us[c].whole for c in column], axis=0) for column, count in columns.items()]
    uneven = stages * (np.sum(slowest, axis=(0, 1)) - longest)
    around = 2 * (chunks * stages - 1) * hop
    return micro_batches * longest + uneven + (once - longest) / chunks + around, around


def _round_trips_us(types: Sequence[StageType], each: Floats, hop: Floats, micro_batches: Floats) -> Floats:
    """What round trips from a rank to the last one take longer than as many micro-batches on the busiest rank as are
    under way on the way. ``each``: [stage, candidate].
    """
    stages, longest, waits = sum(len(stage.ranks) for stage in types), each.max(axis=0), np.zeros(len(hop))
    for stage in types:
        first = stage.ranks[0]
        under_way = stages - first
        trip = np.array([sum(rank >= first for rank in other.ranks) for other in types]) @ each
        late = np.maximum(0.0, trip + 2 * (under_way - 1) * hop - under_way * longest)
        waits = np.maximum(waits, (micro_batches - 1) // under_way * late)
    return waits


def _paced_us(types: Sequence[StageType], each: Floats, once: Floats, micro_batches: Floats) -> Floats:
    """1F1B without transfers: the longest of what its ranks need. ``each``: [stage, forward or backward, candidate].

    A rank begins after one forward of the ranks before it, ends before one backward of them, and computes. It waits for
    its first micro-batch to come back while it has no more forwards to run, and for its last while it has no more
    backwards: it runs ahead by as many micro-batches as there are ranks after it.
    """
    stages, paced = sum(len(stage.ranks) for stage in types), np.zeros(len(once))
    for stage, (forward, backward) in zip(types, each, strict=True):
        last = stage.ranks[-1]
        before = np.array([sum(rank < last for rank in other.ranks) for other in types]) @ each.sum(axis=1)
        after = once - before - forward - backward
        ahead = np.minimum(stages - 1 - last, micro_batches - 1)
        filling = np.maximum(0.0, after - ahead * forward)
        # All forwards before the first backward: there is one wait and no other.
        draining = np.maximum(0.0, after - ahead * backward) * (micro_batches > stages - last)
        paced = np.maximum(paced, before + micro_batches * (forward + backward) + filling + draining)
    return paced
