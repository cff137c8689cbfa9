"""How long a batch step takes: one function for every level of detail.

Nothing here knows a flop formula or a rate. The workload room makes the operations of a sharded model, the backends
price them; this module tabulates what they say. Token-linear operations are tabulated over the number of tokens,
decode attention as a piecewise linear function of the batch's summed context with knots at powers of two of the mean
context, prefill attention per chunk. Times are whole femtoseconds, so a step's parts add up exactly whatever the level
of detail.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np

from tracelens.backends import EstimateTable
from tracelens.backends.chain import chain
from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.groups import Group
from tracelens.hardware import HardwareSpec
from tracelens.network.algorithms import collective_us
from tracelens.network.cluster import Library
from tracelens.network.topology import Link, Rates, Tier, Topology
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM, PerfModel
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.serving.deployment import Deployment
from tracelens.units import BYTES_PER_GIB
from tracelens.workload import LayerOp, ModelConfig, forward_ops
from tracelens.workload.expert_traffic import expert_traffic

FS_PER_US = 1_000_000_000
FS_PER_S = 10**15
#: Token counts are tabulated this many at a time: one call of a backend costs as much as a few hundred rows.
_BLOCK = 32
#: Above, tables would hold counts that do not come again.
_LARGEST_TABULATED = 16_384

Chunk: TypeAlias = tuple[int, int]
M = TypeVar("M", GEMM, GroupedGEMM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective as a sequence of equal steps, each of ``transfers`` link transfers at once. Time in fs."""

    name: str
    steps: int
    transfers: int
    step_fs: int

    @property
    def time_fs(self) -> int:
        return self.steps * self.step_fs


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """``count`` equal layers in one step: each its compute on every device of the stage, then its collectives."""

    count: int = 1
    compute_fs: int
    exchanges: tuple[Exchange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """One pipeline stage in one step; the hand-over to the next stage is not part of ``time_fs``."""

    layers: tuple[LayerWork, ...]
    handover: Exchange | None

    @property
    def compute_fs(self) -> int:
        return sum(layer.count * layer.compute_fs for layer in self.layers)

    @property
    def exchange_fs(self) -> int:
        return sum(layer.count * exchange.time_fs for layer in self.layers for exchange in layer.exchanges)


class DecodeLine:
    """A decode step of a fixed batch, in fs: ``fixed + slope * context`` while the context is in ``[low, high)``.

    ``exchange`` is the part of ``fixed`` that is no compute. ``layers`` has the stages' runs of layers at a context of
    0, each with what a key more adds to one of its layers.
    """

    __slots__ = ("exchange", "fixed", "high", "layers", "low", "slope")

    def __init__(self, low: int, high: int, layers: list[tuple[StageWork, list[int]]]) -> None:
        self.low, self.high, self.layers = low, high, layers
        self.exchange = sum(work.exchange_fs for work, _ in layers)
        self.fixed = self.exchange + sum(work.compute_fs for work, _ in layers)
        self.slope = sum(
            run.count * slope for work, slopes in layers for run, slope in zip(work.layers, slopes, strict=True)
        )


class StepCost:
    """The step cost of one replica. UsageError where the model cannot be divided as asked, or its type has no rate."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        model, parallel = deployment.model, deployment.parallelism
        self._check_division(model, parallel.tp)
        self.system = deployment.engine.tuned(deployment.system)
        self._backend = chain(deployment.backend)
        self.notes: list[str] = []
        if model.dtype is not None and self.system.device.rate("matrix", model.dtype) is None:
            raise UsageError(f"{self.system.device.name} has no matrix rate for {model.dtype.label}: no step time")
        self._topology = self._joined()
        experts = model.experts
        count, topk = (experts.count, experts.top_k) if experts is not None else (parallel.ep, 1)
        self._traffic = expert_traffic(parallel.skew, experts=count, topk=topk, ranks=parallel.ep)
        self._local = _sharded(model, tp=parallel.tp, expert_shards=parallel.stage_devices // parallel.ep)
        self.layers = layer_kinds(model.blocks)
        if parallel.pp > len(self.layers):
            raise UsageError(f"pp {parallel.pp} needs as many layers, {model.name} has {len(self.layers)}")
        self.stages = _split(self.layers, parallel.pp)
        self._runs = tuple(_runs(stage) for stage in self.stages)
        self._letters = sorted(set(model.blocks))
        self._attention = [letter for letter in self._letters if letter in "*w"]
        self._attention_blocks = [(letter, model.blocks.count(letter)) for letter in self._attention]
        self._sums: dict[int, tuple[int, int]] = {}
        self._linear: dict[int, dict[str, int]] = {}
        self._heads: dict[int, int] = {}
        self._exchanges: dict[tuple[str, int], Exchange] = {}
        self._knots: dict[tuple[str, int], list[int]] = {}
        self._lines: dict[tuple[int, int], DecodeLine] = {}
        self._chunks: dict[tuple[str, int, int], int] = {}
        self._closed = {letter: self._closed_form(letter) for letter in self._attention}
        engine = deployment.engine
        self._step_fs = round(engine.step_us * FS_PER_US)
        self._sequence_fs = round(engine.sequence_us * FS_PER_US)
        self._prompt_fs = round(engine.prompt_us * FS_PER_US)
        speculation = deployment.speculation
        self.queries = 1 if speculation is None else speculation.draft_tokens + 1
        self._draft = None
        if speculation is not None and speculation.draft is not None:
            self._draft = StepCost(
                dataclasses.replace(
                    deployment,
                    model=speculation.draft,
                    speculation=None,
                    parallelism=dataclasses.replace(parallel, pp=1, ep=1),
                    engine=dataclasses.replace(engine, step_us=0.0, sequence_us=0.0, prompt_us=0.0),
                )
            )

    def mixed(
        self, tokens: int, chunks: Sequence[Chunk], rows: int, started: int, batch: int, context: int
    ) -> tuple[StageWork, ...]:
        """A step of prefill chunks and of ``batch`` decoding sequences, whose keys in all are ``context``.

        ``tokens`` are all new tokens, ``started`` the prompts that begin.
        """
        attention = {letter: sum(self._chunk(letter, *chunk) for chunk in chunks) for letter in self._attention}
        if batch:
            for letter in self._attention:
                value, slope, low, _ = self._decode_piece(letter, batch, context)
                attention[letter] += value + slope * (context - low)
        return self._stages(tokens, rows, attention, self._host(started, batch, context))

    def mixed_time(
        self, tokens: int, chunks: Sequence[Chunk], rows: int, started: int, batch: int, context: int
    ) -> tuple[int, int]:
        """(compute, exchanges) of ``mixed``, summed, without making its parts."""
        found = self._sums.get(tokens)
        if found is None:
            works = self._stages(tokens, 0, {}, 0)
            found = sum(work.compute_fs for work in works), sum(work.exchange_fs for work in works)
            self._sums[tokens] = found
        compute, exchange = found
        if rows:
            compute += self._head(rows)
            exchange += sum(each.time_fs for each in self._gather(rows))
        for letter, blocks in self._attention_blocks:
            one = 0
            for new, past in chunks:
                one += self._chunk(letter, new, past)
            if batch:
                value, slope, low, _ = self._decode_piece(letter, batch, context)
                one += value + slope * (context - low)
            compute += blocks * one
        return compute + self._host(started, batch, context), exchange

    def decode_work(self, batch: int, context: int) -> tuple[StageWork, ...]:
        """A pure decode step in full detail; adds up to ``decode_line``."""
        return tuple(
            StageWork(
                layers=tuple(
                    LayerWork(count=run.count, compute_fs=run.compute_fs + slope * context, exchanges=run.exchanges)
                    for run, slope in zip(work.layers, slopes, strict=True)
                ),
                handover=work.handover,
            )
            for work, slopes in self.decode_line(batch, context).layers
        )

    def decode_line(self, batch: int, context: int) -> DecodeLine:
        """The decode step of ``batch`` sequences near a summed context of ``context`` keys."""
        index = self._knot_index(batch, context)
        line = self._lines.get((batch, index))
        if line is None:
            pieces = {letter: self._decode_piece(letter, batch, context) for letter in self._attention}
            low, high = self._span(batch, index)
            tokens = batch * self.queries
            at_zero = {letter: value - slope * low for letter, (value, slope, low, _) in pieces.items()}
            host = self._step_fs + batch * self._sequence_fs
            draft_slope = 0
            if self._draft is not None:
                at_low, at_high = self._draft_fs(batch, low), self._draft_fs(batch, high - 1)
                draft_slope = (at_high - at_low) // max(high - 1 - low, 1)
                host += at_low - draft_slope * low
            works = self._stages(tokens, tokens, at_zero, host)
            layers = [
                (work, [sum(pieces[letter][1] for letter in kind if letter in pieces) for kind, _ in runs])
                for work, runs in zip(works, self._runs, strict=True)
            ]
            layers[0][1][0] += draft_slope
            line = DecodeLine(low, high, layers)
            self._lines[batch, index] = line
        return line

    def layer_operations(
        self, kind: str, tokens: int, chunks: Sequence[Chunk], batch: int, context: int
    ) -> list[tuple[str, PerfModel, int]]:
        """(name, perf model, time in fs) of one layer's operations; times add up to the layer's compute.

        Decode attention is one operation at the batch's mean context.
        """
        found: list[tuple[str, PerfModel, int]] = []
        for letter in kind:
            ops = self._block_ops(letter, tokens)
            priced = self._priced([op.model for op in ops])
            for op, fs in zip(ops, priced, strict=True):
                found += [(op.name, op.model, fs)] * op.count
            if letter in self._attention:
                at = next((i for i, (name, _, _) in enumerate(found) if name == "attention.out"), len(found))
                cores: list[tuple[str, PerfModel, int]] = [
                    ("attention.sdpa", self._sdpa(letter, b=1, new=new, past=past), self._chunk(letter, new, past))
                    for new, past in chunks
                ]
                if batch:
                    value, slope, low, _ = self._decode_piece(letter, batch, context)
                    own = -(-batch // self.deployment.parallelism.dp)
                    model = self._sdpa(letter, b=own, new=self.queries, past=max(context // batch - self.queries, 0))
                    cores.append(("attention.sdpa", model, value + slope * (context - low)))
                found[at:at] = cores
        return found

    def end_operations(self, tokens: int, rows: int) -> tuple[list[tuple[str, PerfModel, int]], ...]:
        """Operations before the first layer and after the last, as ``layer_operations``."""
        parallel = self.deployment.parallelism
        before = [op for op in self._end_ops(-(-tokens // parallel.dp)) if op.name in ("embedding", "positions")]
        after = (
            [op for op in self._end_ops(-(-rows // parallel.dp)) if op.name in ("final_norm", "logits")] if rows else []
        )
        return tuple(
            [(op.name, op.model, fs) for op, fs in zip(ops, self._priced([op.model for op in ops]), strict=True)]
            for ops in (before, after)
        )

    def handover(self, tokens: int) -> Exchange | None:
        """What each device passes to the next stage, its own requests' tokens; None with a single stage."""
        parallel, model = self.deployment.parallelism, self.deployment.model
        if parallel.pp == 1:
            return None
        own = -(-tokens // parallel.dp)
        return self._exchange("send", round(own * model.hidden * self._width()), ranks=2, stride=self._stage_devices)

    def transfer_fs(self, nbytes: float, gb_s: float | None = None) -> int:
        """Time of ``nbytes`` between two replicas over the network, or at ``gb_s`` over a named link."""
        if gb_s is not None:
            return round(nbytes / (gb_s * 1e3) * FS_PER_US)
        devices = self.deployment.parallelism.devices
        return self._exchange("send", round(nbytes), ranks=2, stride=devices).time_fs

    def kv_bytes_per_token(self) -> float:
        """Key-value cache of one token over all devices of a replica; replicated heads count once."""
        return self._kv_bytes(self.deployment.model)

    def pool_tokens(self) -> int:
        """Tokens that fit the key-value cache of one replica. UsageError when the weights leave no room."""
        engine, parallel = self.deployment.engine, self.deployment.parallelism
        if engine.kv_tokens is not None:
            return engine.kv_tokens
        hbm = self.system.device.hbm
        if hbm is None or hbm.nominal_gib is None:
            raise UsageError(f"{self.system.device.name}: its memory is not known; give the engine's kv_tokens")
        usable = engine.memory_share * hbm.nominal_gib * BYTES_PER_GIB - engine.runtime_gib * BYTES_PER_GIB
        weights = max(self._weight_bytes(kinds, index) for index, kinds in enumerate(self.stages))
        width = self._width()
        ffn = max(
            self._local.ffn or 0, self._local.experts.ffn * self._local.experts.top_k if self._local.experts else 0
        )
        activations = engine.max_batched_tokens * (2 * self._local.hidden + ffn * (1 + self._local.gated)) * width
        free = usable - weights - activations
        per_stage = max(sum(kind.count("*") + kind.count("w") for kind in kinds) for kinds in self.stages)
        per_token = self._kv_bytes(self._local, blocks=max(per_stage, 1)) if per_stage else 0.0
        need = (weights + activations) / BYTES_PER_GIB
        if free <= 0 or (per_token and free < per_token * engine.block_tokens):
            raise UsageError(
                f"{self.deployment.model.name} does not fit: {need:.1f} GiB of weights and activations per device, "
                f"{usable / BYTES_PER_GIB:.1f} GiB usable on {self.system.device.name}; "
                "use more devices (tp, pp) or fewer bits"
            )
        if not per_token:
            return _LARGEST_TABULATED * engine.max_num_seqs
        return int(free // per_token) * parallel.dp

    @property
    def _stage_devices(self) -> int:
        return self.deployment.parallelism.stage_devices

    def _check_division(self, model: ModelConfig, tp: int) -> None:
        for name, value in (("query heads", model.q_heads), ("feed-forward width", model.ffn or tp)):
            if value % tp:
                raise UsageError(f"tp {tp} does not divide {model.name}'s {name} {value}")
        ep = self.deployment.parallelism.ep
        if model.experts is None and ep > 1:
            raise UsageError(f"{model.name} has no experts to spread over ep {ep}")
        if model.experts is not None and model.experts.count % ep:
            raise UsageError(f"ep {ep} does not divide {model.name}'s {model.experts.count} experts")

    def _joined(self) -> Topology | None:
        topology = self.system.topology
        if topology is None and self.deployment.parallelism.devices > 1:
            rates, note = fallback_rates(self.system.device)
            self.notes.append(note)
            library = Library.load("nccl")
            tier = Tier(ranks=None, link=Link(rates=rates, protocols=library.node.protocols))
            topology = Topology(tiers=(tier,), algorithms=library.algorithms)
        share = self.deployment.engine.link_efficiency
        if topology is None or share is None:
            return topology
        tiers = tuple(
            dataclasses.replace(tier, link=dataclasses.replace(tier.link, rates=_scaled(tier.link.rates, share)))
            for tier in topology.tiers
        )
        return dataclasses.replace(topology, tiers=tiers)

    def _width(self) -> float:
        dtype = self.deployment.model.dtype
        if dtype is None:
            raise UsageError(f"{self.deployment.model.name}: the element type of its weights is not known")
        return dtype.width_bytes

    def _kv_bytes(self, model: ModelConfig, blocks: int | None = None) -> float:
        count = model.attention_blocks if blocks is None else blocks
        kv = self.deployment.precision.kv
        width = self._width() if kv is None else kv.width_bytes
        latent = model.latent_attention
        elements = model.kv_heads * (model.d_qk + model.d_v) if latent is None else latent.kv_rank + latent.d_rope
        return count * elements * width

    def _weight_bytes(self, kinds: Sequence[str], stage: int) -> float:
        letters = Counter("".join(kinds))
        total = 0.0
        for letter, count in letters.items():
            total += count * sum(self._op_weight_bytes(op) for op in self._block_ops(letter, 1))
        ends = self._end_ops(1)
        first, last = stage == 0, stage == len(self.stages) - 1
        for op in ends:
            if first if op.name in ("embedding", "positions") else last:
                total += op.weights * self._width()
        if last and not first and self._local.tied_embeddings:
            total += self._local.vocab * self._local.hidden * self._width()
        return total

    def _op_weight_bytes(self, op: LayerOp) -> float:
        precision, experts = self.deployment.precision, self._local.experts
        if isinstance(op.model, GroupedGEMM):
            dtype = precision.experts
            share = 1.0 if experts is None else 1 / self.deployment.parallelism.ep
        else:
            dtype = precision.linear if isinstance(op.model, GEMM) else None
            share = 1.0
        width = self._width() if dtype is None else dtype.width_bytes
        return op.count * op.weights * width * share

    def _end_ops(self, rows: int) -> list[LayerOp]:
        """Embedding, final norm and logits."""
        letter = self._letters[0]
        ops = forward_ops(dataclasses.replace(self._local, blocks=letter), batch=rows, sequence=1)
        return [op for op in ops if op.name in ("embedding", "positions", "final_norm", "logits")]

    def _block_ops(self, letter: str, tokens: int) -> list[LayerOp]:
        """The operations of one block for ``tokens`` tokens, attention itself left out."""
        parallel = self.deployment.parallelism
        own = -(-tokens // parallel.dp)
        ops = forward_ops(dataclasses.replace(self._local, blocks=letter), batch=own, sequence=1)
        kept = (op for op in ops if op.name not in ("embedding", "positions", "final_norm", "logits", "attention.sdpa"))
        return [dataclasses.replace(op, model=self._placed(op.model, tokens)) for op in kept]

    def _placed(self, model: PerfModel, tokens: int) -> PerfModel:
        """In the deployment's element types; expert products with this device's experts and rows."""
        precision, parallel, experts = self.deployment.precision, self.deployment.parallelism, self._local.experts
        if isinstance(model, GroupedGEMM) and experts is not None:
            held = experts.count // parallel.ep
            mean = tokens * experts.top_k / parallel.ep
            rows = math.ceil(mean * self._traffic.rows_imbalance * parallel.imbalance)
            active = min(held, rows, math.ceil(self._traffic.touched(tokens)))
            model = dataclasses.replace(model, m=rows, groups=max(active, 1))
            if precision.experts is not None:
                model = self._narrowed(model, precision.experts)
        elif isinstance(model, GEMM) and precision.linear is not None:
            model = self._narrowed(model, precision.linear)
        return model

    def _narrowed(self, model: M, narrow: DType) -> M:
        """A product with weights of ``narrow``: multiplied in that type where the device has a rate for it, else
        widened to the activations' on the way."""
        kept = model.dtype
        has_rate = self.system.device.rate("matrix", narrow) is not None
        return dataclasses.replace(model, dtype=narrow if has_rate else kept, dtype_b=narrow, dtype_out=kept)

    def estimates(self, models: Sequence[PerfModel]) -> EstimateTable:
        """What the backend says on the engine's system."""
        return self._backend.estimate_many(WorkColumns.of(models), self.system)

    def _priced(self, models: Sequence[PerfModel]) -> list[int]:
        """Times in fs; an operation that no backend can bound (no bytes, no flops) takes none."""
        if not models:
            return []
        times = self.estimates(models).time_us
        unit = FS_PER_US * self.deployment.engine.device_scale
        return [0 if math.isnan(time) else round(time * unit) for time in times.tolist()]

    def _tokens(self, tokens: int) -> dict[str, int]:
        found = self._linear.get(tokens)
        if found is None:
            if tokens <= _LARGEST_TABULATED:
                first = (tokens - 1) // _BLOCK * _BLOCK + 1
                self._tabulate(range(first, first + _BLOCK))
            else:
                self._tabulate((tokens,))
            found = self._linear[tokens]
        return found

    def _tabulate(self, counts: Iterable[int]) -> None:
        models: list[PerfModel] = []
        owners: list[tuple[int, str, int]] = []
        for count in counts:
            self._linear[count] = dict.fromkeys([*self._letters, "embedding"], 0)
            for letter in self._letters:
                for op in self._block_ops(letter, count):
                    models.append(op.model)
                    owners.append((count, letter, op.count))
            for op in self._end_ops(-(-count // self.deployment.parallelism.dp)):
                if op.name in ("embedding", "positions"):
                    models.append(op.model)
                    owners.append((count, "embedding", op.count))
        for (count, letter, times), fs in zip(owners, self._priced(models), strict=True):
            self._linear[count][letter] += times * fs

    def _head(self, rows: int) -> int:
        found = self._heads.get(rows)
        if found is None:
            own = -(-rows // self.deployment.parallelism.dp)
            ops = [op for op in self._end_ops(own) if op.name in ("final_norm", "logits")]
            found = self._heads[rows] = sum(self._priced([op.model for op in ops]))
        return found

    def _stages(self, tokens: int, rows: int, attention: dict[str, int], host: int) -> tuple[StageWork, ...]:
        linear = self._tokens(tokens)
        handover = self.handover(tokens)
        last_stage = len(self.stages) - 1
        kinds_work: dict[str, tuple[int, tuple[Exchange, ...]]] = {}
        for kind in dict.fromkeys(self.layers):
            compute = sum(linear[letter] + attention.get(letter, 0) for letter in kind)
            kinds_work[kind] = (compute, tuple(self._layer_exchanges(kind, tokens)))
        stages = []
        for index, runs in enumerate(self._runs):
            made = []
            for position, (kind, count) in enumerate(runs):
                compute, exchanges = kinds_work[kind]
                if index == 0 and position == 0:
                    compute += linear["embedding"] + host
                if index == last_stage and position == len(runs) - 1 and rows:
                    compute += self._head(rows)
                    exchanges = (*exchanges, *self._gather(rows))
                made.append(LayerWork(count=count, compute_fs=compute, exchanges=exchanges))
            stages.append(StageWork(layers=tuple(made), handover=handover if index < last_stage else None))
        return tuple(stages)

    def _layer_exchanges(self, kind: str, tokens: int) -> Iterable[Exchange]:
        parallel, model = self.deployment.parallelism, self.deployment.model
        width = self._width()
        own = -(-tokens // parallel.dp)
        for letter in kind:
            if letter == "E" and parallel.ep > 1 and model.experts is not None:
                hidden = model.experts.latent or model.hidden
                copies = self._traffic.rank_copies * self._traffic.copies_imbalance
                nbytes = math.ceil(own * parallel.imbalance / parallel.tp) * copies * hidden * width
                yield self._exchange("all_to_all", round(nbytes), ranks=parallel.ep)
                yield self._exchange("all_to_all", round(nbytes), ranks=parallel.ep)
                if parallel.tp > 1:
                    yield self._exchange("all_gather", round(own * model.hidden * width), ranks=parallel.tp)
            elif parallel.tp > 1:
                yield self._exchange("all_reduce", round(own * model.hidden * width), ranks=parallel.tp)

    def _gather(self, rows: int) -> Iterable[Exchange]:
        """The logits, of which each tensor-parallel rank has a part of the vocabulary."""
        parallel, model = self.deployment.parallelism, self.deployment.model
        if parallel.tp > 1:
            own = -(-rows // parallel.dp)
            yield self._exchange("all_gather", round(own * model.vocab * self._width()), ranks=parallel.tp)

    def _exchange(self, word: str, nbytes: int, *, ranks: int, stride: int = 1) -> Exchange:
        key = (f"{word}/{ranks}/{stride}", nbytes)
        found = self._exchanges.get(key)
        if found is None:
            if self._topology is None:
                raise UsageError(f"{self.system.device.name}: how its devices are joined is not known; name a cluster")
            name = self.deployment.collective if word == "all_reduce" else None
            times, names = collective_us(word, float(nbytes), Group(ranks=ranks, stride=stride), self._topology, name)
            time_us = float(times[0])
            if math.isnan(time_us):
                raise UsageError(f"no {word} algorithm {name or ''} for {ranks} ranks on {self.system.device.name}")
            chosen = names[0].rpartition("/")[2]
            steps, transfers = steps_of(chosen, word, ranks)
            found = Exchange(
                name=f"{word}/{chosen}",
                steps=steps,
                transfers=transfers,
                step_fs=round(time_us * FS_PER_US / steps),
            )
            self._exchanges[key] = found
        return found

    def _sdpa(self, letter: str, *, b: int, new: int, past: int) -> SDPA:
        model, kv = self._local, self.deployment.precision.kv
        sdpa = SDPA(
            b=b,
            s_q=new,
            s_kv=past + new,
            q_heads=model.q_heads,
            kv_heads=model.kv_heads,
            d_qk=model.d_qk,
            d_v=model.d_v,
            mask="bottom_right",
            window=model.window if letter == "w" else None,
            flash=True,
            dtype=model.dtype,
        )
        return sdpa if kv is None else dataclasses.replace(sdpa, dtype_k=kv, dtype_v=kv)

    def _knot_index(self, batch: int, context: int) -> int:
        return (max(context, batch) // batch).bit_length() - 1

    def _span(self, batch: int, index: int) -> tuple[int, int]:
        return (batch << index) if index else 0, batch << (index + 1)

    def _decode_piece(self, letter: str, batch: int, context: int) -> tuple[int, int, int, int]:
        """(time at ``low``, slope, low, high) of one block's decode attention, in fs and keys."""
        index = self._knot_index(batch, context)
        values = self._knots.get((letter, batch))
        if values is None or index + 1 >= len(values):
            own = -(-batch // self.deployment.parallelism.dp)
            size = max(index + 2, 14)
            models = [self._sdpa(letter, b=own, new=self.queries, past=max((1 << i) - 1, 0)) for i in range(size)]
            values = self._knots[letter, batch] = self._priced(models)
        low, high = batch << index, batch << (index + 1)
        slope = (values[index + 1] - values[index]) // (high - low)
        return values[index], slope, low, high

    def _chunk(self, letter: str, new: int, past: int) -> int:
        closed = self._closed[letter]
        if closed is not None:
            return closed(new, past)
        key = (letter, new, past)
        found = self._chunks.get(key)
        if found is None:
            found = self._chunks[key] = self._priced([self._sdpa(letter, b=1, new=new, past=past)])[0]
        return found

    def _closed_form(self, letter: str) -> Callable[[int, int], int] | None:
        """Prefill attention without a call per chunk, where a backend answers the larger of two linear terms.

        Compute time is then proportional to the flops, memory time linear in new tokens and keys. Whether a backend
        does is found out by asking it at points that span the range.
        """
        probes = [(64, 0), (2048, 0), (1, 4096), (512, 512), (16, 30000), (8192, 8192), (3, 1), (300, 100_000)]
        models = [self._sdpa(letter, b=1, new=new, past=past) for new, past in probes]
        table = self.estimates(models)
        flops = np.array([model.flops() or 0 for model in models], dtype=float)
        nbytes = np.array([model.hbm_bytes() or 0 for model in models], dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            per_flop = table.compute_us / flops
            per_byte = table.memory_us / nbytes
            largest = np.fmax(table.compute_us, table.memory_us)
            linear = (
                np.allclose(per_flop, per_flop[0], rtol=1e-9)
                and np.allclose(per_byte, per_byte[0], rtol=1e-9)
                and np.allclose(largest, table.time_us, rtol=1e-9)
            )
        if not linear:
            return None
        unit = FS_PER_US * self.deployment.engine.device_scale
        compute, memory = float(per_flop[0]) * unit, float(per_byte[0]) * unit
        known: dict[Chunk, int] = {}

        def time_fs(new: int, past: int) -> int:
            found = known.get((new, past))
            if found is None:
                model = self._sdpa(letter, b=1, new=new, past=past)
                found = round(max((model.flops() or 0) * compute, (model.hbm_bytes() or 0) * memory))
                if len(known) < _LARGEST_TABULATED:
                    known[new, past] = found
            return found

        return time_fs

    def _host(self, started: int, batch: int, context: int) -> int:
        """The host's time of a step, and the draft model's."""
        host = self._step_fs + batch * self._sequence_fs + started * self._prompt_fs
        if batch and self._draft is not None:
            host += self._draft_fs(batch, context)
        return host

    def _draft_fs(self, batch: int, context: int) -> int:
        if self._draft is None:
            return 0
        line = self._draft.decode_line(batch, context)
        return (self.queries - 1) * (line.fixed + line.slope * context)


def layer_kinds(blocks: str) -> tuple[str, ...]:
    """Blocks grouped to layers: one that mixes tokens (``*``, ``w``, ``M``) and what follows it.

    >>> layer_kinds("*-*E"), layer_kinds("MM*-")
    (('*-', '*E'), ('M', 'M', '*-'))
    """
    layers: list[str] = []
    for letter in blocks:
        if letter in "*wM" or not layers:
            layers.append(letter)
        else:
            layers[-1] += letter
    return tuple(layers)


def _runs(kinds: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """A stage's layers as (kind, how many in a row); the first and the last stand alone, they do more."""
    middle = [(kind, len(list(same))) for kind, same in itertools.groupby(kinds[1:-1])]
    ends = [(kinds[0], 1)] if len(kinds) == 1 else [(kinds[0], 1), (kinds[-1], 1)]
    return (ends[0], *middle, *ends[1:])


def steps_of(name: str, word: str, ranks: int) -> tuple[int, int]:
    """(steps one after the other, link transfers in each) of a collective algorithm."""
    if ranks < 2 or word == "send":
        return 1, 1
    if name == "direct":
        return 1, ranks * (ranks - 1)
    if name == "in_switch":
        return 2, ranks
    if name == "tree":
        return 2 * math.ceil(math.log2(ranks)), ranks - 1
    trips = 2 if word == "all_reduce" else 1
    return trips * (ranks - 1), ranks


def fallback_rates(device: HardwareSpec) -> tuple[Rates, str]:
    """The rates between devices without a cluster file: their own link, else PCIe. UsageError with neither."""
    if device.link is not None:
        return Rates(peak_gb_s=device.link.gb_s), f"no cluster given: {device.name} joined by its own link"
    if device.pcie_gb_s is not None:
        note = (
            f"no cluster given: {device.name} joined by PCIe at {device.pcie_gb_s:g} GB/s, NCCL's overheads in a node"
        )
        return Rates(peak_gb_s=device.pcie_gb_s), note
    raise UsageError(f"{device.name}: neither a link nor PCIe rate is known; name a cluster")


def _scaled(rates: Rates, share: float) -> Rates:
    """Every rate times ``share``."""
    known = {item.name: getattr(rates, item.name) for item in dataclasses.fields(rates)}
    return dataclasses.replace(rates, **{name: value * share for name, value in known.items() if value is not None})


def _sharded(model: ModelConfig, *, tp: int, expert_shards: int) -> ModelConfig:
    """One tensor-parallel rank's part as a model of its own; key-value heads are replicated when tp exceeds them."""
    experts = model.experts
    if experts is not None:
        experts = dataclasses.replace(
            experts, ffn=-(-experts.ffn // expert_shards), shared_ffn=-(-experts.shared_ffn // tp)
        )
    mamba = model.mamba
    if mamba is not None:
        mamba = dataclasses.replace(mamba, heads=-(-mamba.heads // tp), groups=-(-mamba.groups // tp))
    head_dim = model.head_dim
    return dataclasses.replace(
        model,
        q_heads=model.q_heads // tp,
        kv_heads=-(-model.kv_heads // tp),
        head_dim=head_dim,
        ffn=None if model.ffn is None else model.ffn // tp,
        vocab=-(-model.vocab // tp),
        experts=experts,
        mamba=mamba,
    )


def _split(layers: tuple[str, ...], parts: int) -> tuple[tuple[str, ...], ...]:
    """Consecutive layers in ``parts`` stages of nearly equal length, the longer first."""
    short, longer = divmod(len(layers), parts)
    stages, start = [], 0
    for index in range(parts):
        end = start + short + (index < longer)
        stages.append(layers[start:end])
        start = end
    return tuple(stages)
