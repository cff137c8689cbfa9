"""How long a batch step takes: one function for every level of detail.

Nothing here knows a flop formula or a rate. The workload room makes the operations of a device, the backends price
them; this module tabulates what they say. Token-linear operations are tabulated over the number of tokens. Times are
whole femtoseconds, so a step's parts add up exactly whatever the level of detail. The cores of attention are priced
prompts chunk by chunk; decoding is piecewise linear in the batch's summed context, with knots at powers of two of the
mean context.
"""

from __future__ import annotations

import bisect
import copy
import dataclasses
import datetime
import functools
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heapreplace
from typing import NamedTuple, TypeAlias

import numpy as np

from tracelens.backends import EstimateTable
from tracelens.backends.chain import chain
from tracelens.backends.collective_times import Kernels, exchange_links, exchange_us, notification_us
from tracelens.backends.kernels.attention_layers import cutlass_key_us, cutlass_prompt_us
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import PerfModel
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.network.algorithms import collective_us
from tracelens.predict.network.deepep import Exchanges, Phase
from tracelens.predict.network.topology import Group, Rates, Topology
from tracelens.predict.serving.deployment import Deployment, Engine, ServingPrecision, captured_sizes, compute_of
from tracelens.predict.workload import LayerOp, batch_ops
from tracelens.predict.workload.blocks import Message, SentTokens
from tracelens.predict.workload.model_shape import PARTS, Quantization
from tracelens.predict.workload.ranks import InferenceRank
from tracelens.predict.workload.token_routing import served_skew
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GIB

#: New tokens, and those before them whose keys are cached.
Chunk: TypeAlias = tuple[int, int]


class PlacedChunks(list[Chunk]):
    """Chunks of which it is known on which data-parallel ranks they are."""

    ranks: Sequence[int] = ()


#: What a step computes, as ``StepCost.mixed`` takes it.
Mix: TypeAlias = tuple[int, list[Chunk], int, int, int, int]
#: An operation: its name and perf model, how often, and its time in fs where it is known without the backend.
LayerCall: TypeAlias = tuple[str, PerfModel, int, int | None]
#: Above, tables would hold counts that do not come again.
LARGEST_TABULATED = 16_384
#: Points that span the range, at which a backend is asked whether it is linear.
_PROBES = ((64, 0), (2048, 0), (1, 4096), (512, 512), (16, 30000), (8192, 8192), (3, 1), (300, 100_000))


class CostSegment(NamedTuple):
    """A line between two knots: ``fixed + slope * context`` at a summed context of ``context`` keys."""

    fixed: int
    slope: int

    def at(self, context: int) -> int:
        return self.fixed + self.slope * context


class DecodeStep(NamedTuple):
    """A decode step: how many of so many sequences the busiest data-parallel rank has; each one's new tokens; of how
    many compute units a device is, 0 where that is not needed.
    """

    own: Callable[[int], int]
    queries: int
    units: int


class Prices(NamedTuple):
    """What a backend says of operations: in full, and as times in fs, of which a microsecond is ``unit``."""

    estimates: Callable[[Sequence[PerfModel]], EstimateTable]
    priced: Callable[[Sequence[PerfModel]], list[int]]
    unit: float


def knot_index(batch: int, context: int) -> int:
    """Between which knots a batch is with a summed context of ``context`` keys."""
    return ((context // batch) or 1).bit_length() - 1


def span(batch: int, index: int) -> tuple[int, int]:
    """From which summed context on, and up to which, ``knot_index`` is ``index``."""
    return (batch << index) if index else 0, batch << (index + 1)


class AttentionTimes:
    """The cores of one type of block on one device."""

    def __init__(self, rank: InferenceRank, letter: str, step: DecodeStep, prices: Prices) -> None:
        self._rank, self._letter, self._step, self._prices = rank, letter, step, prices
        self._knots: dict[int, list[int]] = {}
        self._pieces: dict[tuple[int, int], CostSegment] = {}
        self._chunks: dict[Chunk, int] = {}
        self._rates = self._linear_rates()

    def cores(self, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
        return batch_ops.core_ops(self._rank, self._letter, b=b, new=new, past=past)

    def decoding(self, batch: int, index: int) -> CostSegment:
        """A decode step of ``batch`` sequences while the ``knot_index`` of their summed context is ``index``."""
        piece = self._pieces.get((batch, index))
        if piece is None:
            values = self._values(batch, index)
            low, high = batch << index, batch << (index + 1)
            slope = (values[index + 1] - values[index]) // (high - low)
            piece = self._pieces[batch, index] = CostSegment(values[index] - slope * low, slope)
        return piece

    def _values(self, batch: int, index: int) -> list[int]:
        """Times at the knots, up to the one after ``index``."""
        values = self._knots.get(batch)
        if values is None or index + 1 >= len(values):
            self.foresee((batch,), index + 2)
        return self._knots[batch]

    def foresee(self, batches: Iterable[int], knots: int) -> None:
        """Prices decode steps of ``batches``, at ``knots`` knots or more, with one call of the backend."""
        sizes, least = list(batches), range(max(knots, 14))
        steps = [
            self.cores(b=self._step.own(batch), new=self._step.queries, past=max((1 << i) - 1, 0))
            for batch in sizes
            for i in least
        ]
        priced = iter(self._prices.priced([model for models in steps for model in models]))
        times = iter([sum(next(priced) for _ in models) for models in steps])
        for batch in sizes:
            self._knots[batch] = [next(times) for _ in least]

    def chunk(self, new: int, past: int) -> int:
        """``new`` tokens of one prompt after ``past``."""
        found = self._chunks.get((new, past))
        if found is None:
            if self._rates is None:
                self.foresee_chunks([(new, past)])
                return self._chunks[new, past]
            compute, memory = self._rates
            models = self.cores(b=1, new=new, past=past)
            found = sum(round(max((m.flops() or 0) * compute, (m.hbm_bytes() or 0) * memory)) for m in models)
            if len(self._chunks) < LARGEST_TABULATED:
                self._chunks[new, past] = found
        return found

    def prompts(self, chunks: Sequence[Chunk]) -> int:
        """The chunks of prompts that one rank computes in a step."""
        return sum(self.chunk(*chunk) for chunk in chunks)

    def foresee_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Prices ``chunks`` with one call of the backend, where it is asked at all."""
        missing = [] if self._rates else [chunk for chunk in dict.fromkeys(chunks) if chunk not in self._chunks]
        if missing:
            cores = [self.cores(b=1, new=new, past=past) for new, past in missing]
            times = iter(self._prices.priced([model for models in cores for model in models]))
            self._chunks |= {
                chunk: sum(itertools.islice(times, len(models))) for chunk, models in zip(missing, cores, strict=True)
            }

    def _linear_rates(self) -> tuple[float, float] | None:
        """Time per FLOP and per byte of a single core, where a backend answers the larger of two linear terms.

        Compute time is then proportional to the flops, memory time linear in new tokens and keys: no call of it per
        chunk is needed.
        """
        probes = [self.cores(b=1, new=new, past=past) for new, past in _PROBES]
        if any(len(models) != 1 for models in probes):
            return None
        models = [model for (model,) in probes]
        table = self._prices.estimates(models)
        flops = np.array([model.flops() or 0 for model in models], dtype=float)
        nbytes = np.array([model.hbm_bytes() or 0 for model in models], dtype=float)
        with np.errstate(invalid="ignore", divide="ignore"):
            per_flop = table.compute_us / flops
            per_byte = table.memory_us / nbytes
            largest = np.fmax(table.compute_us, table.memory_us)
            is_linear = (
                np.allclose(per_flop, per_flop[0], rtol=1e-9)
                and np.allclose(per_byte, per_byte[0], rtol=1e-9)
                and np.allclose(largest, table.time_us, rtol=1e-9)
            )
        return (float(per_flop[0]) * self._prices.unit, float(per_byte[0]) * self._prices.unit) if is_linear else None


FS_PER_US = 1_000_000_000


class CutlassTimes(AttentionTimes):
    """The cores of latent attention by SGLang's cutlass_mla, as it was in 2025: decoding as ``cutlass_key_us`` says. In
    a step with the rest of a prompt that was cut, a rank's prompts are attended on the latent, unless many tokens came
    before (_handle_attention_backend; sglang#9132 has what that costs).
    """

    #: The compute capability of B200 and GB200.
    MEASURED_ON = "10.0"
    #: Tokens before a step's prompts, from which on it expands them: chunked_prefix_cache_threshold.
    MANY_BEFORE = 8192

    def foresee(self, batches: Iterable[int], knots: int) -> None:
        """As any cores, but no faster than the pairs."""
        sizes = list(batches)
        super().foresee(sizes, knots)
        row_bytes = batch_ops.cache_bytes(self._rank, self._rank.local, self._letter)
        for batch in sizes:
            key_us = cutlass_key_us(self._step.own(batch), row_bytes, self._step.units)
            bounds = [round(key_us * (1 << at) * FS_PER_US) for at in range(len(self._knots[batch]))]
            self._knots[batch] = list(map(max, self._knots[batch], bounds))

    def prompts(self, chunks: Sequence[Chunk]) -> int:
        """See ``AttentionTimes``."""
        if not 0 < sum(past for _, past in chunks) < self.MANY_BEFORE:
            return super().prompts(chunks)
        flops = sum(batch_ops.absorbed_flops(self._rank, self._letter, new=new, past=past) for new, past in chunks)
        return round(cutlass_prompt_us(flops) * FS_PER_US)


class CollectiveSteps(Record, frozen=True, kw_only=True):
    """A collective as a sequence of equal steps, each of ``transfers`` link transfers at once. Time in fs."""

    name: str
    steps: int
    transfers: int
    step_fs: int

    @property
    def time_fs(self) -> int:
        return self.steps * self.step_fs


class DeploymentCollectives:
    """Collectives among the devices of a deployment, each size once."""

    def __init__(self, deployment: Deployment, device: HardwareSpec) -> None:
        self._device, self._all_reduce = device, deployment.collective
        self._topology = self._joined(deployment)
        self._known: dict[tuple[str, int, int, int], CollectiveSteps] = {}
        self._routed: dict[tuple[str, int, SentTokens, Kernels], CollectiveSteps] = {}
        self._system = dataclasses.replace(deployment.system, topology=self._topology)

    def exchange(self, word: str, nbytes: float, *, ranks: int, stride: int = 1) -> CollectiveSteps:
        """The collective ``word`` of ``nbytes``. UsageError where the links are not known, or no algorithm does it."""
        key = (word, round(nbytes), ranks, stride)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(*key)
        return found

    def of_message(self, message: Message, kernels: Kernels) -> CollectiveSteps:
        """As ``exchange``; dispatch and combine by DeepEP's ``kernels``, or those of the cluster's own library, else as
        an all-to-all where no measurement of them carries over.
        """
        word, nbytes, ranks, routed = message
        if routed is None:
            return self.exchange(word, nbytes, ranks=ranks)
        key = (word, ranks, routed, kernels)
        found = self._routed.get(key)
        if found is None:
            found = self._routed[key] = self._by_kernels(*key) or self.exchange("all_to_all", nbytes, ranks=ranks)
        return found

    def _by_kernels(self, word: str, ranks: int, routed: SentTokens, kernels: Kernels) -> CollectiveSteps | None:
        try:
            links = exchange_links(self._system, ranks)
        except UsageError:
            return None
        phase: Phase = "dispatch" if word == "dispatch" else "combine"
        shape = Exchanges(
            phase=phase, tokens=routed.tokens, hidden=routed.hidden, topk=routed.topk, experts=routed.experts,
            nodes=ranks / links.ranks_per_node, element_bytes=routed.element_bytes,
        )  # fmt: skip
        time_us = float(exchange_us(shape, kernels, self._system, links)[0])
        if kernels == "normal":
            time_us += float(notification_us(shape, self._system, links)[0])
        name = f"{word}/{links.library} {kernels}"
        return CollectiveSteps(name=name, steps=1, transfers=ranks * (ranks - 1), step_fs=round(time_us * FS_PER_US))

    def share_a_node(self, devices: int, stage: int) -> bool:
        """Whether stages of so many devices, ``stage`` and the next, stand in one node."""
        node = None if self._topology is None else self._topology.ranks_per_node
        return node is None or stage * devices // node == ((stage + 2) * devices - 1) // node

    def _made(self, word: str, nbytes: int, ranks: int, stride: int) -> CollectiveSteps:
        topology = self._topology or self._system.joined()
        name = self._all_reduce if word == "all_reduce" else None
        times, names = collective_us(word, float(nbytes), Group(ranks=ranks, stride=stride), topology, name)
        if math.isnan(times[0]):
            raise UsageError(f"no {word} algorithm {name or ''} for {ranks} ranks on {self._device.name}")
        chosen = names[0].rpartition("/")[2]
        steps, transfers = steps_of(chosen, word, ranks)
        step_fs = round(float(times[0]) * FS_PER_US / steps)
        return CollectiveSteps(name=f"{word}/{chosen}", steps=steps, transfers=transfers, step_fs=step_fs)

    def _joined(self, deployment: Deployment) -> Topology | None:
        """The system's links at the engine's share of their rates."""
        system, share = deployment.system, deployment.engine.link_efficiency
        topology = system.joined() if deployment.parallelism.devices > 1 else system.topology
        if topology is None or share is None:
            return topology
        tiers = tuple(
            dataclasses.replace(tier, link=dataclasses.replace(tier.link, rates=_scaled(tier.link.rates, share)))
            for tier in topology.tiers
        )
        return dataclasses.replace(topology, tiers=tiers)


def steps_of(name: str, word: str, ranks: int) -> tuple[int, int]:
    """(steps one after the other, link transfers in each) of a collective algorithm."""
    if ranks < 2 or word == "send":
        return 1, 1
    if name == "direct":
        return 2 if word == "all_reduce" else 1, ranks * (ranks - 1)
    if name == "in_switch":
        return 2, ranks
    if name == "tree":
        return 2 * math.ceil(math.log2(ranks)), ranks - 1
    trips = 2 if word == "all_reduce" else 1
    return trips * (ranks - 1), ranks


def _check_type(dtype: DType | None, device: HardwareSpec) -> None:
    if dtype is not None and device.rate("matrix", dtype) is None:
        other = "serve it in fp16 (--weights fp16)" if "fp16" in device.matrix else "choose another device"
        raise UsageError(f"{device.name} has no matrix rate for {dtype.label}: {other}")


def _multiplied(precision: ServingPrecision, held: Quantization | None, device: HardwareSpec) -> frozenset[DType]:
    """The narrow types of weights, as asked for, else as the checkpoint has them, in which the device multiplies."""
    asked = {each for each in (precision.linear, precision.experts) if each is not None}
    parts = () if held is None or asked else (getattr(held, part) for part in PARTS)
    types = asked | {narrow.computed or narrow.dtype for narrow in parts if narrow is not None}
    return frozenset(
        each
        for each in types
        if each is not DType.INT4 and not precision.is_widened and device.rate("matrix", each) is not None
    )


def _scaled(rates: Rates, share: float) -> Rates:
    """Every rate times ``share``."""
    known = {item.name: getattr(rates, item.name) for item in dataclasses.fields(rates)}
    return dataclasses.replace(rates, **{name: value * share for name, value in known.items() if value is not None})


#: Token counts are tabulated this many at a time: one call of a backend costs as much as a few hundred rows.
_BLOCK = 32
#: A device's name for the embedding among the letters of blocks; of a block's parts, what follows its letter: shared
#: experts, and what comes before the core or the experts.
_EMBEDDING, _SHARED, _BEFORE = "embedding", " shared", " before"
#: SGLang's DpPaddingMode: captured decode steps pad to the longest rank, steps with prompts add into one buffer.
_GATHERED = ("all_gather", "reduce_scatter")
_GATHERS = {
    ("all", "low_latency"): _GATHERED, ("all", "normal"): ("all_reduce", "all_reduce"),
    ("few", "low_latency"): _GATHERED, ("few", "normal"): _GATHERED,
}  # fmt: skip


class LayerWork(Record, frozen=True, kw_only=True):
    """``count`` equal layers in one step: each its compute on every device of the stage, then its collectives."""

    count: int = 1
    compute_fs: int
    exchanges: tuple[CollectiveSteps, ...] = ()


class StageWork(Record, frozen=True, kw_only=True):
    """One pipeline stage in one step; the hand-over to the next stage is not part of ``time_fs``."""

    layers: tuple[LayerWork, ...]
    handover: CollectiveSteps | None

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


class LayerParts(NamedTuple):
    """A layer's compute in fs: ``before`` the core of attention; ``core``, with all up to where tokens leave for their
    experts; ``shared`` experts; ``experts`` that they come to, or the rest. Of a split batch, of both halves.
    """

    before: int
    core: int = 0
    shared: int = 0
    experts: int = 0

    def behind_decoding(self) -> dict[str, tuple[float, ...]]:
        """How long each half's exchange is hidden in a step that decodes, the halves two stages of five apart: a
        dispatch by its own shared experts and the other half's products before attention, a combine by the other half's
        attention (SGLang, operations_strategy.py; DeepSeek's inference system has the same five stages).
        """
        dispatch, combine = (self.before + self.shared) / 2, self.core / 2
        return {"dispatch": (dispatch, dispatch), "combine": (combine, combine)}

    def behind_prompts(self) -> dict[str, tuple[float, ...]]:
        """As ``behind_decoding`` in a step with prompts: attention of the second half hides the first one's dispatch,
        experts of the first the second one's; then experts, and shared experts with the next layer's attention.
        """
        attention, experts = (self.before + self.core) / 2, self.experts / 2
        return {"dispatch": (attention, experts), "combine": (experts, self.shared / 2 + attention)}


class StepLoad(NamedTuple):
    """What a step computes: all ``tokens``, those of the busiest data-parallel rank with its padding, the ``rows`` that
    yield a token; the ``kernels`` that send tokens to experts, and by how much longer than the backend says it takes;
    how many ``adapters`` its tokens need.
    """

    tokens: int
    own: int
    rows: int
    kernels: Kernels
    scale: float = 1.0
    adapters: int = 0


class TokenCount(NamedTuple):
    """What times of token-linear operations depend on: all ``tokens``, those that the busiest data-parallel rank has of
    them, ``adapters``, and whether experts take as long as in steps that are replayed from a graph.
    """

    tokens: int
    own: int
    adapters: int
    is_replayed: bool


class StepCost:
    """The step cost of one replica. UsageError where the model cannot be divided as asked, or its type has no rate.

    In steps with prompts on one data-parallel rank, or of an engine that ``gathers``, experts take as long as fused
    layers were measured. They take as long as their products in decode steps, which graphs replay, and behind an
    exchange of tokens (SGLang's Fp8MoEMethod has DeepGEMM with DeepEP alone); but of an engine with ``expert_rows`` as
    layers everywhere. Layers without the fixed time that measurements hold (21.5 us for FP8 on H200) are farther from
    published decode steps than products are.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        model, parallel, engine = deployment.model, deployment.parallelism, deployment.engine
        _check_division(deployment)
        self.system = engine.tuned(deployment.system)
        self._backend = chain(deployment.backend)
        _check_type(model.dtype, self.system.device)
        self._links = DeploymentCollectives(deployment, self.system.device)
        doubt = engine.doubt(model.name, self.system.device.name)
        self.notes = [doubt] if doubt else []
        self._rank = self._device()
        self._replayed = self._in_decode_steps()
        self.layers = model.layers
        if parallel.pp > len(self.layers):
            raise UsageError(f"pp {parallel.pp} needs at least as many layers; {model.name} has {len(self.layers)}")
        self.stages = _split(self.layers, parallel.pp)
        self._runs = tuple(_runs(stage) for stage in self.stages)
        self._letters = sorted(set(model.blocks))
        self._captured = captured_sizes(engine.graph_batches)
        is_wide = parallel.dp > 1 and parallel.ep > 1
        self._overlap = engine.overlap if is_wide else ""
        are_few = parallel.tp == 1 and model.experts is not None and parallel.ep <= model.experts.top_k
        self._gathers = engine.gathers if is_wide and (are_few or engine.gathers == "all") else ""
        self.by_chance, self._pools = False, dict[str, StepCost]()
        self._set_host(engine)
        speculation = deployment.speculation
        self.queries = 1 if speculation is None else speculation.draft_tokens + 1
        self._prices: dict[PerfModel, int] = {}
        self._set_attention()
        self._linear: dict[TokenCount, dict[str, int]] = {}
        self._lines: dict[tuple[int, int], DecodeLine] = {}
        self._heads: dict[int, int] = {}
        self._sums = functools.cache(self._summed)
        self._end_sums = functools.cache(self._ends_summed)
        self._draft = None
        if speculation is not None and speculation.draft is not None:
            self._draft = StepCost(
                dataclasses.replace(
                    deployment,
                    model=speculation.draft,
                    speculation=None,
                    adapters=None,
                    parallelism=dataclasses.replace(
                        parallel, pp=1, ep=parallel.ep if speculation.draft.experts is not None else 1
                    ),
                    engine=dataclasses.replace(
                        engine, step_us=0.0, sequence_us=0.0, prompt_us=0.0, layer_us=0.0, prompt_layer_us=None
                    ),
                )
            )

    def _set_attention(self) -> None:
        prices = Prices(self.estimates, self._priced, FS_PER_US * self.deployment.engine.device_scale)
        is_cutlass, device = self.deployment.engine.latent == "cutlass", self.system.device
        units = device.completed.compute_units
        if is_cutlass and (units is None or compute_of(device) != CutlassTimes.MEASURED_ON):
            raise UsageError(f"cutlass_mla was measured on B200 and GB200 alone, not on {device.name}")
        step = DecodeStep(self.own, self.queries, (is_cutlass and units) or 0)
        kind = CutlassTimes if is_cutlass else AttentionTimes
        self._attention = {
            letter: kind(self._rank, letter, step, prices)
            for letter in self._letters
            if batch_ops.core_ops(self._rank, letter, b=1, new=1, past=1)
        }
        blocks = self.deployment.model.blocks
        self._attention_blocks = [(times, blocks.count(letter)) for letter, times in self._attention.items()]

    def _set_host(self, engine: Engine) -> None:
        layers, eager = len(self.layers), engine.prompt_layer_us
        self._step_fs = round((engine.step_us + engine.layer_us * layers) * FS_PER_US)
        self._mixed_fs = self._step_fs if eager is None else round((engine.step_us + eager * layers) * FS_PER_US)
        if self.is_eager:
            self._step_fs = self._mixed_fs
        exchanging = sum(map(self._exchanging, self.layers))
        self._again_fs = round(engine.layer_us * exchanging * FS_PER_US)
        self._mixed_again_fs = self._again_fs if eager is None else round(eager * exchanging * FS_PER_US)
        self._sequence_fs = round(engine.sequence_us * FS_PER_US)
        self._prompt_fs = round(engine.prompt_us * FS_PER_US)
        self._prompt_scale = engine.prompt_scale

    @property
    def is_eager(self) -> bool:
        """Whether steps that decode take the host as long as those with prompts."""
        habit = self.deployment.engine.eager_drafts
        has_habit = habit == "all" or (habit == "ranks" and self.deployment.parallelism.dp > 1)
        return has_habit and self.deployment.speculation is not None

    def placed(self, pools: int) -> tuple[str, ...]:
        """What was assumed of the device, and of links where there are any: between devices, or ``pools``."""
        system = self.system
        is_joined = pools > 1 or system.cluster is not None or self.deployment.parallelism.devices > 1
        return (system.note or "" if is_joined else "", system.device.assumed or "")

    def own(self, sequences: int) -> int:
        """Of ``sequences`` that decode, those of the busiest data-parallel rank. Where each goes to a rank by chance,
        that is the mean and the expected maximum of normal variables, one per rank, with Poisson's deviation.
        """
        mean, ranks = sequences / self._rank.dp, min(self._rank.dp, sequences)
        if not self.by_chance or ranks < 2:
            return self._rank.own(sequences)
        return min(math.ceil(mean + _most_of(ranks) * math.sqrt(mean)), sequences)

    def uneven(self, batch: int, context: int, squares: int) -> int:
        """Keys that ``batch`` sequences would have in all if each data-parallel rank had as many as the busiest one:
        ``context``, their sum, where there is one rank, or no experts make ranks wait. ``squares``: of their squares.

        Ranks take sequences whatever their lengths, so that the busiest one's keys exceed the mean by the expected
        maximum of normal variables, one per rank, of the deviation of a sum of its sequences. The batch is finite, and
        what one rank has the others lack: the two corrections cancel. Where each sequence is computed alone
        (``CutlassTimes``), ranks wait for the longest: all count as many keys as that is expected to have.
        """
        ranks, waits = min(self._rank.dp, batch), self.deployment.engine.latent == "cutlass"
        is_even = ranks < 2 or self.by_chance or self.deployment.model.experts is None
        if batch < 2 or (is_even and not waits):
            return context
        own = self.own(batch)
        deviation = math.sqrt(max(batch * squares - context * context, 0) / (batch * (batch - 1)))
        if waits:
            return context + round(_most_of(batch) * deviation * batch)
        return context + round(_most_of(ranks) * deviation * math.sqrt(own) * batch / own)

    def spread_out(self, batch: int, context: int, answer: float) -> int:
        """As ``uneven``, of sequences that are anywhere in an answer of so many tokens."""
        return self.uneven(batch, context, round(context**2 / batch + batch * answer**2 / 12))

    def released(self, day: datetime.date | None) -> StepCost:
        """With the host's times of the engine as it was on ``day``."""
        engine = self.deployment.engine.released(day, self.system.device)
        if engine is self.deployment.engine:
            return self
        found = copy.copy(self)
        found.deployment, found._lines = dataclasses.replace(self.deployment, engine=engine), {}
        found._pools = {}
        found._set_host(engine)
        return found

    def apart(self, pool: str) -> StepCost:
        """Of a replica that only computes prompts (``prefill``), or only decodes (``decode``)."""
        is_joined = self._rank.dp > 1 and self.deployment.model.experts is not None
        if not is_joined or self.deployment.engine.chance_ranks not in ("both", pool):
            return self
        found = self._pools.get(pool)
        if found is None:
            found = self._pools[pool] = copy.copy(self)
            found.by_chance, found._lines, found._pools = True, {}, {}
            found._set_attention()
            found._draft = None if self._draft is None else self._draft.apart(pool)
        return found

    def limited(self, **limits: int | str) -> StepCost:
        """With other limits of the engine, on which no step's time depends: both share their tables."""
        found = copy.copy(self)
        engine = dataclasses.replace(self.deployment.engine, **limits)  # type: ignore[arg-type]
        found.deployment, found._pools = dataclasses.replace(self.deployment, engine=engine), {}
        return found

    def _device(self) -> InferenceRank:
        model, parallel, precision = self.deployment.model, self.deployment.parallelism, self.deployment.precision
        engine = self.deployment.engine
        is_fused = parallel.dp == 1 or engine.expert_rows or engine.gathers
        return InferenceRank(
            shape=model,
            local=batch_ops.sharded(model, tp=parallel.tp, expert_shards=parallel.stage_devices // parallel.ep),
            name=model.name,
            tp=parallel.tp,
            dp=parallel.dp,
            ep=parallel.ep,
            redundant_experts=parallel.redundant_experts,
            skew=parallel.skew or served_skew(model.experts.count if model.experts else 1),
            imbalance=parallel.imbalance,
            linear=precision.linear,
            experts=precision.experts,
            kv=precision.kv,
            lora=0 if self.deployment.adapters is None else self.deployment.adapters.rank,
            fused=_fused_types(self.system.device) if is_fused else frozenset(),
            expert_rows=engine.expert_rows,
            narrows_late=bool(engine.gathers),
            multiplied=_multiplied(precision, model.quantization, self.system.device),
        )

    def _in_decode_steps(self) -> InferenceRank:
        """The device as graphs replay it; itself where its experts take as long in any step."""
        if self.deployment.engine.expert_rows or not self._rank.fused or self._rank.shape.experts is None:
            return self._rank
        return dataclasses.replace(self._rank, fused=frozenset())

    def mixed(
        self, tokens: int, chunks: Sequence[Chunk], rows: int, started: int, batch: int, context: int
    ) -> tuple[StageWork, ...]:
        """A step of prefill chunks and of ``batch`` decoding sequences, whose keys in all are ``context``.

        ``tokens`` are all new tokens, ``started`` the prompts that begin.
        """
        attention = {}
        own, by_rank = self._by_rank(tokens, chunks, batch)
        for letter, times in self._attention.items():
            times.foresee_chunks(chunks)
            longest = max(map(times.prompts, by_rank))
            attention[letter] = round(longest * self._prompt_scale)
            if batch:
                attention[letter] += times.decoding(batch, knot_index(batch, context)).at(context)
        host, scale = self._host(self._mixed_fs, started, batch, context), self.prompt_share_scale(tokens, batch)
        load = StepLoad(self._sent(tokens, own), own, rows, "normal", scale, self.adapters(len(chunks) + batch))
        return self._stages(load, attention, host)

    def mixed_time(
        self, tokens: int, chunks: Sequence[Chunk], rows: int, started: int, batch: int, context: int
    ) -> tuple[int, int]:
        """(compute, exchanges) of ``mixed``, summed, without making its parts."""
        own, by_rank = self._by_rank(tokens, chunks, batch)
        if self._overlap == "two-batch":
            works = self.mixed(tokens, chunks, rows, started, batch, context)
            return sum(work.compute_fs for work in works), sum(work.exchange_fs for work in works)
        scale, adapters = self.prompt_share_scale(tokens, batch), self.adapters(len(chunks) + batch)
        sent = self._sent(tokens, own)
        if self._overlap:
            compute, exchange = self._sums(StepLoad(sent, own, 0, "normal", scale, adapters))
        else:
            compute, exchange = self._sums(StepLoad(sent, own, 0, "normal", adapters=adapters))
            compute = round(compute * scale)
        if rows:
            head, gather = self._end_sums(rows)
            compute += head
            exchange += gather
        for times, blocks in self._attention_blocks:
            times.foresee_chunks(chunks)
            longest = max(map(times.prompts, by_rank))
            compute += blocks * round(longest * self._prompt_scale)
            if batch:
                fixed, slope = times.decoding(batch, knot_index(batch, context))
                compute += blocks * (fixed + slope * context)
        return compute + self._host(self._mixed_fs, started, batch, context), exchange

    def prompt_share_scale(self, tokens: int, batch: int) -> float:
        """How much longer than the backend says a step of ``tokens`` takes, of which those of ``batch`` sequences are
        decoded.
        """
        return 1 + (self._prompt_scale - 1) * (1 - batch * self.queries / tokens)

    def _sent(self, tokens: int, own: int) -> int:
        """Tokens that go to experts in a step with prompts, of whose ``tokens`` the busiest rank has ``own``."""
        return own * self._rank.dp if self.deployment.engine.pads_prompts else tokens

    def foresee_prompts(self, lengths: Iterable[int]) -> None:
        """Prices prompts that are computed at once."""
        most = self.deployment.engine.max_batched_tokens
        for times in self._attention.values():
            times.foresee_chunks((min(length, most), 0) for length in lengths)

    def busiest(self, tokens: int, chunks: Sequence[Chunk], batch: int) -> int:
        """Of ``tokens``, those of the data-parallel rank with most."""
        return self._by_rank(tokens, chunks, batch)[0]

    def _by_rank(self, tokens: int, chunks: Sequence[Chunk], batch: int) -> tuple[int, Sequence[Sequence[Chunk]]]:
        """(new tokens of the busiest data-parallel rank, the prompt chunks of each rank).

        A prompt is computed on one rank. Sequences that decode are divided evenly; then the largest chunk goes to the
        rank with the fewest tokens, and so on, but those of which it is known where they are.
        """
        dp = self._rank.dp
        if dp == 1:
            return tokens, (chunks,)
        by_rank: list[list[Chunk]] = [[] for _ in range(dp)]
        loads = [(self.queries * (batch // dp + (rank < batch % dp)), rank) for rank in range(dp)]
        if isinstance(chunks, PlacedChunks):
            for chunk, rank in zip(chunks, chunks.ranks, strict=True):
                by_rank[rank].append(chunk)
            return max(load + sum(new for new, _ in by_rank[rank]) for load, rank in loads), by_rank
        heapify(loads)
        for chunk in sorted(chunks, reverse=True):
            load, rank = loads[0]
            by_rank[rank].append(chunk)
            heapreplace(loads, (load + chunk[0], rank))
        return max(loads)[0], by_rank

    def _summed(self, load: StepLoad) -> tuple[int, int]:
        works = self._stages(load, {}, 0)
        return sum(work.compute_fs for work in works), sum(work.exchange_fs for work in works)

    def _ends_summed(self, rows: int) -> tuple[int, int]:
        gathered = self._exchanges(batch_ops.logits_messages(self._rank, rows), "normal")
        return self._head(rows), sum(each.time_fs for each in gathered)

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
        index = knot_index(batch, context)
        line = self._lines.get((batch, index))
        if line is None:
            line = self._lines[batch, index] = self._line(batch, index)
        return line

    def _line(self, batch: int, index: int) -> DecodeLine:
        """While the ``knot_index`` of the summed context is ``index``."""
        low, high = span(batch, index)
        pieces = {letter: times.decoding(batch, index) for letter, times in self._attention.items()}
        host = self._step_fs + self.own(batch) * self._sequence_fs
        load, draft_slope = self._decode_load(batch), 0
        if self._draft is not None:
            at_low, at_high = self._draft_fs(batch, low), self._draft_fs(batch, high - 1)
            draft_slope = (at_high - at_low) // max(high - 1 - low, 1)
            host += at_low - draft_slope * low
        if self._is_split(load.own):
            at_ends = [
                self._stages(load, {letter: piece.at(context) for letter, piece in pieces.items()}, host)
                for context in (low, high)
            ]
            layers = [_between(low, high, *works) for works in zip(*at_ends, strict=True)]
        else:
            works = self._stages(load, {letter: piece.at(0) for letter, piece in pieces.items()}, host)
            layers = [
                (work, [sum(pieces[letter].slope for letter in kind if letter in pieces) for kind, _ in runs])
                for work, runs in zip(works, self._runs, strict=True)
            ]
        layers[0][1][0] += draft_slope
        return DecodeLine(low, high, layers)

    def _decode_load(self, batch: int) -> StepLoad:
        """A decode step: data-parallel ranks pad their share to a captured size, all to the same; experts get none of
        the padding where tokens are sent to them (SGLang masks it in forward_deepep, not in forward_normal).
        """
        own, dp = self.own(batch), self._rank.dp
        at = bisect.bisect_left(self._captured, own)
        padded = self.queries * (self._captured[at] if at < len(self._captured) else own)
        is_sent = dp > 1 and self.deployment.model.experts is not None and not self._gathers
        tokens = batch * self.queries if is_sent else padded * dp
        return StepLoad(tokens, padded, padded * dp, "low_latency", adapters=self.adapters(batch))

    def adapters(self, sequences: int) -> int:
        """How many different adapters a step of so many sequences and prompts needs on a data-parallel rank."""
        served = self.deployment.adapters
        return 0 if served is None else served.met(self.own(sequences))

    def layer_operations(
        self, kind: str, tokens: int, chunks: list[Chunk], batch: int, context: int
    ) -> list[tuple[str, PerfModel, int]]:
        """(name, perf model, time in fs) of one layer's operations; times add up to the layer's compute.

        Decode attention is one operation at the batch's mean context.
        """
        calls = list(self._layer_calls(kind, (tokens, chunks, 0, 0, batch, context)))
        priced, scale = self._times_of(calls), self.prompt_share_scale(tokens, batch)
        found: list[tuple[str, PerfModel, int]] = []
        for (name, model, count, fs), price in zip(calls, priced, strict=True):
            found += [(name, model, round(price * scale) if fs is None else fs)] * count
        return found

    def _times_of(self, calls: Sequence[LayerCall]) -> Iterator[int]:
        """What the backend says of those calls whose time is not known; 0 for the others."""
        priced = iter(self._priced([model for _, model, _, fs in calls if fs is None]))
        return (next(priced) if fs is None else 0 for *_, fs in calls)

    def _layer_calls(self, kind: str, mix: Mix, *, is_mean: bool = False) -> Iterator[LayerCall]:
        """The operations of one layer, as ``layer_operations``: cores with their times. ``is_mean``: experts' are those
        of a device that has the mean of their tokens.
        """
        tokens, chunks, *_, batch, context = mix
        own, by_rank = self._by_rank(tokens, chunks, batch)
        device = self._rank
        if batch and not chunks:
            tokens, own, *_ = self._decode_load(batch)
            device = self._replayed
        elif chunks:
            tokens = self._sent(tokens, own)
        halves = 2 if self._is_split(own) and self._exchanging(kind) else 1
        tokens, adapters = -(-tokens // halves), self.adapters(len(chunks) + batch)
        rank = dataclasses.replace(device, busiest=-(-own // halves), adapters=adapters, is_mean=is_mean)
        for letter in kind:
            ops = batch_ops.device_block_ops(rank, letter, tokens)
            names = [op.name for op in ops if op.is_core]
            for op in ops:
                if not op.is_core:
                    yield op.name, op.model, op.count * halves, None
                elif op.name == names[-1]:
                    for name, model, fs in self._cores(self._attention[letter], names, by_rank, batch, context):
                        yield name, model, 1, fs

    def core_operations(
        self, kind: str, chunks: Sequence[Chunk], batch: int, context: int
    ) -> list[tuple[str, PerfModel, int]]:
        """Those of ``layer_operations`` that are cores of attention."""
        found: list[tuple[str, PerfModel, int]] = []
        _, by_rank = self._by_rank(1, chunks, batch)
        for letter in kind:
            if letter in self._attention:
                names = [op.name for op in batch_ops.device_block_ops(self._rank, letter, 1) if op.is_core]
                found += self._cores(self._attention[letter], names, by_rank, batch, context)
        return found

    def _cores(
        self, times: AttentionTimes, names: Sequence[str], by_rank: Sequence[Sequence[Chunk]], batch: int, context: int
    ) -> Iterator[tuple[str, PerfModel, int]]:
        """Of the data-parallel rank with the longest prompts, and of its share of the sequences that decode."""
        busiest = max(by_rank, key=times.prompts)
        scale = self._prompt_scale * (times.prompts(busiest) / max(sum(times.chunk(*each) for each in busiest), 1))
        for new, past in busiest:
            time_fs = round(times.chunk(new, past) * scale)
            yield from self._shared_out(names, times.cores(b=1, new=new, past=past), time_fs)
        if batch:
            past = max(context // batch - self.queries, 0)
            models = times.cores(b=self.own(batch), new=self.queries, past=past)
            yield from self._shared_out(names, models, times.decoding(batch, knot_index(batch, context)).at(context))

    def _shared_out(
        self, names: Sequence[str], models: Sequence[PerfModel], total: int
    ) -> Iterator[tuple[str, PerfModel, int]]:
        """The cores of one block with their parts of ``total``, in proportion to what each takes alone."""
        alone = self._priced(models) if len(models) > 1 else [1]
        ends = [round(total * part / max(sum(alone), 1)) for part in itertools.accumulate(alone)]
        for name, model, start, end in zip(names, models, [0, *ends], ends, strict=False):
            yield name, model, end - start

    def end_operations(self, tokens: int, rows: int) -> tuple[list[tuple[str, PerfModel, int]], ...]:
        """Operations before the first layer and after the last, as ``layer_operations``."""
        ends = (
            batch_ops.embedding_ops(self._rank, tokens),
            batch_ops.head_ops(self._rank, rows) if rows else [],
        )
        times = iter(self._priced([op.model for ops in ends for op in ops]))
        return tuple([(op.name, op.model, next(times)) for op in ops] for ops in ends)

    def step_operations(self, mixes: Sequence[Mix], *, is_mean: bool = False) -> list[tuple[int, PerfModel, int, int]]:
        """(step, perf model, how often, time in fs) of every operation of a device in each step; in a pipeline of one
        device of each stage. Of the one whose experts have most tokens; with ``is_mean``, the mean of them.
        """
        steps: list[int] = []
        calls: list[LayerCall] = []
        scales: list[float] = []
        for at, mix in enumerate(mixes):
            tokens, _, rows, _, batch, _ = mix
            for kind, layers in Counter(self.layers).items():
                for name, model, count, fs in self._layer_calls(kind, mix, is_mean=is_mean):
                    calls.append((name, model, count * layers, fs))
            scales += [self.prompt_share_scale(tokens, batch)] * (len(calls) - len(scales))
            head = batch_ops.head_ops(self._rank, rows) if rows else []
            calls += [(op.name, op.model, 1, None) for op in (*batch_ops.embedding_ops(self._rank, tokens), *head)]
            scales += [1.0] * (len(calls) - len(scales))
            steps += [at] * (len(calls) - len(steps))
        return [
            (at, model, count, round(price * scale) if fs is None else fs)
            for at, (_, model, count, fs), scale, price in zip(steps, calls, scales, self._times_of(calls), strict=True)
        ]

    def step_parts(self, mix: Mix) -> tuple[int, int]:
        """(compute, exchanges) of a step, of one that decodes alone too."""
        _, chunks, *_, batch, context = mix
        if chunks:
            return self.mixed_time(*mix)
        line = self.decode_line(batch, context)
        return line.fixed - line.exchange + line.slope * context, line.exchange

    def handover(self, tokens: int) -> CollectiveSteps | None:
        """What each device passes to the next stage, its own requests' tokens; None with a single stage."""
        parallel, rank = self.deployment.parallelism, self._rank
        if parallel.pp == 1:
            return None
        nbytes = rank.own(tokens) * rank.shape.hidden * rank.width
        return self._links.exchange("send", nbytes, ranks=2, stride=parallel.stage_devices)

    def stays_in_node(self, stage: int) -> bool:
        """Whether ``stage`` and the next one are joined by the links that their own collectives use."""
        return self._links.share_a_node(self.deployment.parallelism.stage_devices, stage)

    def transfer_fs(self, nbytes: float, gb_s: float | None = None) -> int:
        """Time of ``nbytes`` between two replicas over the network, or at ``gb_s`` over a named link."""
        if gb_s is not None:
            return round(nbytes / (gb_s * 1e3) * FS_PER_US)
        return self._links.exchange("send", nbytes, ranks=2, stride=self.deployment.parallelism.devices).time_fs

    def kv_bytes_per_token(self) -> float:
        """Key-value cache of one token over all devices of a replica; replicated heads count once."""
        model = self.deployment.model
        return batch_ops.cache_bytes(self._rank, model, model.blocks)

    def pool_tokens(self) -> int:
        """Tokens that fit the key-value cache of one replica. UsageError when the weights leave no room."""
        engine, rank, local = self.deployment.engine, self._rank, self._rank.local
        if engine.kv_tokens is not None:
            return engine.kv_tokens * rank.dp
        hbm = self.system.device.hbm
        if hbm is None or hbm.nominal_gib is None:
            raise UsageError(f"{self.system.device.name}: its memory size is unknown; give --kv-tokens")
        usable = engine.memory_share * hbm.nominal_gib * BYTES_PER_GIB - engine.runtime_gib * BYTES_PER_GIB
        stages, last = ["".join(kinds) for kinds in self.stages], len(self.stages) - 1
        weights = max(
            batch_ops.weight_bytes(rank, blocks, is_first=index == 0, is_last=index == last)
            for index, blocks in enumerate(stages)
        )
        weights += self.adapter_bytes() * (0 if self.deployment.adapters is None else self.deployment.adapters.slots)
        ffn = max(local.ffn or 0, local.experts.ffn * local.experts.top_k if local.experts else 0)
        activations = engine.max_batched_tokens * (2 * local.hidden + ffn * (1 + local.gated)) * rank.width
        free = usable - weights - activations
        kept = [batch_ops.sequence_bytes(rank, local, blocks) for blocks in stages]
        per_token = max(each.per_token for each in kept)
        states = self.states_bytes()
        free -= states
        need = f"{(weights + activations) / BYTES_PER_GIB:.1f} GiB of weights and activations"
        if states:
            need += f" and {states / BYTES_PER_GIB:.1f} of states (--max-num-seqs {engine.max_num_seqs})"
        if free <= 0 or (per_token and free < per_token * engine.block_tokens):
            raise UsageError(
                f"{self.deployment.model.name} does not fit: {need} per device, "
                f"{usable / BYTES_PER_GIB:.1f} GiB usable on {self.system.device.name}; "
                "use more devices (tp, pp) or fewer bits"
            )
        return int(self._tokens_that_fit(kept, free)) * rank.dp

    def adapter_bytes(self) -> float:
        """Bytes of an adapter on the device that has most of it; 0 without adapters."""
        if self.deployment.adapters is None:
            return 0.0
        return max(batch_ops.adapter_bytes(self._rank, "".join(kinds)) for kinds in self.stages)

    def states_bytes(self) -> float:
        """What a device sets aside for the recurrent states of as many sequences as may run."""
        stages = ["".join(kinds) for kinds in self.stages]
        state = max(batch_ops.sequence_bytes(self._rank, self._rank.local, blocks).state for blocks in stages)
        return self.deployment.engine.max_num_seqs * state

    def _tokens_that_fit(self, kept: Sequence[batch_ops.SequenceBytes], free: float) -> float:
        """Tokens in ``free`` bytes of a device, beside the windows of as many sequences as may run, or with all tokens
        kept as if none left a window: whichever is more.
        """
        engine = self.deployment.engine
        unlimited = float(LARGEST_TABULATED * engine.max_num_seqs)
        per_token = max(each.per_token for each in kept)
        as_full = max(each.per_token + each.windowed for each in kept)
        beside_windows = free - engine.max_num_seqs * max(each.windows for each in kept)
        if not as_full:
            return unlimited
        beside = beside_windows / per_token if per_token else unlimited if beside_windows > 0 else 0.0
        return max(beside, free / as_full)

    def estimates(self, models: Sequence[PerfModel]) -> EstimateTable:
        """What the backend says on the engine's system."""
        return self._backend.estimate_many(WorkColumns.of(models), self.system)

    def _priced(self, models: Sequence[PerfModel]) -> list[int]:
        """Times in fs; an operation that no backend can bound (no bytes, no flops) takes none."""
        known, unit = self._prices, FS_PER_US * self.deployment.engine.device_scale
        if missing := [model for model in dict.fromkeys(models) if model not in known]:
            times_us = self.estimates(missing).time_us.tolist()
            known |= {
                model: 0 if math.isnan(time) else round(time * unit)
                for model, time in zip(missing, times_us, strict=True)
            }
        return [known[model] for model in models]

    def _tokens(self, count: TokenCount) -> dict[str, int]:
        """Time of a block of each letter, but its core of attention, and of the embedding."""
        if count not in self._linear:
            first = (count.tokens - 1) // _BLOCK * _BLOCK + 1
            several = range(first, first + _BLOCK) if self._rank.dp == 1 and count.tokens <= LARGEST_TABULATED else ()
            self._tabulate([count._replace(tokens=each, own=each) for each in several] or [count])
        return self._linear[count]

    def _count(self, tokens: int, own: int, adapters: int, kernels: Kernels) -> TokenCount:
        """Tokens of a step; where experts take as long however it is launched, of one with prompts."""
        return TokenCount(tokens, own, adapters, kernels == "low_latency" and self._replayed is not self._rank)

    def _tabulate(self, counts: Iterable[TokenCount]) -> None:
        ops: list[tuple[TokenCount, tuple[str, ...], LayerOp]] = []
        for count in counts:
            names = [letter + part for letter in self._letters for part in ("", _SHARED, _BEFORE)]
            self._linear[count] = dict.fromkeys([*names, _EMBEDDING], 0)
            rank = self._replayed if count.is_replayed else self._rank
            tokens, rank = count.tokens, dataclasses.replace(rank, busiest=count.own, adapters=count.adapters)
            for letter in self._letters:
                ops += [(count, *each) for each in _by_part(letter, batch_ops.device_block_ops(rank, letter, tokens))]
            ops += [(count, (_EMBEDDING,), op) for op in batch_ops.embedding_ops(rank, tokens)]
        for (count, parts, op), fs in zip(ops, self._priced([op.model for _, _, op in ops]), strict=True):
            for part in parts:
                self._linear[count][part] += op.count * fs

    def _head(self, rows: int) -> int:
        if rows not in self._heads:
            self._price_heads((rows,))
        return self._heads[rows]

    def _price_heads(self, counts: Iterable[int]) -> None:
        ops = [(rows, op.model) for rows in counts for op in batch_ops.head_ops(self._rank, rows)]
        self._heads.update(dict.fromkeys(counts, 0))
        for (rows, _), fs in zip(ops, self._priced([model for _, model in ops]), strict=True):
            self._heads[rows] += fs

    def foresee(
        self, batches: Sequence[int], mixed: Iterable[tuple[int, int]], rows: Iterable[int], *, longest: int
    ) -> None:
        """Fills the tables with few calls of the backend, one for each kind of operation.

        ``batches`` decode at a mean context of up to ``longest`` keys; ``mixed`` are steps with prompts, as new tokens
        of all data-parallel ranks and of the busiest; ``rows``: for how many of their tokens there are logits.
        """
        for times in self._attention.values():
            times.foresee(batches, knot_index(1, longest) + 2)
        decoding = [self._decode_load(batch) for batch in batches]
        counts = {self._count(load.tokens, load.own, load.adapters, load.kernels) for load in decoding}
        if self.deployment.adapters is None:
            counts |= {self._count(self._sent(tokens, own), own, 0, "normal") for tokens, own in mixed}
        if self._overlap == "two-batch":
            counts |= {each._replace(tokens=-(-each.tokens // 2), own=-(-each.own // 2)) for each in counts}
        self._tabulate([count for count in counts if count not in self._linear])
        heads = {load.rows for load in decoding}.union(rows)
        self._price_heads([count for count in heads if count not in self._heads])

    def _stages(self, load: StepLoad, attention: dict[str, int], host: int) -> tuple[StageWork, ...]:
        whole, parts = self._scaled_tokens(load, 1), {}
        is_split = self._is_split(load.own)
        halves = self._scaled_tokens(load, 2) if is_split else whole
        for kind in dict.fromkeys(self.layers):
            parts[kind] = self._parts(kind, halves if self._exchanging(kind) else whole, attention)
        last = self._head(load.rows) if load.rows else 0
        if is_split:
            host += self._again_fs if load.kernels == "low_latency" else self._mixed_again_fs
        return self._laid_out(load, parts, first=whole[_EMBEDDING] + host, last=last)

    def _parts(self, kind: str, linear: dict[str, int], attention: dict[str, int]) -> LayerParts:
        """What a layer computes, by what may go on while its tokens travel."""
        before = core = experts = shared = 0
        for letter in kind:
            early, late = linear[letter + _BEFORE], linear[letter] - linear[letter + _BEFORE]
            if letter in self._attention:
                before, core = before + early, core + late + attention.get(letter, 0)
            else:
                beside = linear[letter + _SHARED]
                core, shared, experts = core + early, shared + beside, experts + late - beside
        return LayerParts(before, core, shared, experts)

    def _scaled_tokens(self, load: StepLoad, parts: int) -> dict[str, int]:
        """As ``_tokens``, in ``parts`` one after the other."""
        count = self._count(-(-load.tokens // parts), -(-load.own // parts), load.adapters, load.kernels)
        linear = self._tokens(count)
        scale = load.scale * parts
        return linear if scale == 1 else {letter: round(fs * scale) for letter, fs in linear.items()}

    def _is_split(self, own: int) -> bool:
        """Whether a step is computed in two halves, each while the other's tokens travel."""
        return self._overlap == "two-batch" and own > 1

    def _exchanging(self, kind: str) -> bool:
        """Whether a layer sends tokens to experts."""
        return any(each.routed is not None for each in batch_ops.messages(self._rank, kind, 1))

    def _laid_out(
        self, load: StepLoad, parts: Mapping[str, LayerParts], *, first: int, last: int
    ) -> tuple[StageWork, ...]:
        """Layers that compute so long, by kind, with what of their exchanges is not hidden; ``first`` and ``last`` are
        the ends' time.
        """
        handover, last_stage = self.handover(load.tokens), len(self._runs) - 1
        exchanges = {kind: self._exposed(kind, load, each) for kind, each in parts.items()}
        stages = []
        for index, runs in enumerate(self._runs):
            made = []
            for position, (kind, count) in enumerate(runs):
                is_first = index == position == 0
                is_last = index == last_stage and position == len(runs) - 1
                after: tuple[CollectiveSteps, ...] = ()
                if is_last and load.rows:
                    after = self._exchanges(batch_ops.logits_messages(self._rank, load.rows), load.kernels)
                compute_fs = sum(parts[kind]) + first * is_first + last * is_last
                made.append(LayerWork(count=count, compute_fs=compute_fs, exchanges=(*exchanges[kind], *after)))
            stages.append(StageWork(layers=tuple(made), handover=handover if index < last_stage else None))
        return tuple(stages)

    def _exposed(self, kind: str, load: StepLoad, parts: LayerParts) -> tuple[CollectiveSteps, ...]:
        """A layer's exchanges, as long as nothing hides them: ``parts`` of it, or of its two halves."""
        gathers = _GATHERS[self._gathers, load.kernels] if self._gathers else ()
        rank, tokens, hidden = dataclasses.replace(self._rank, busiest=load.own, gathers=gathers), load.tokens, {}
        is_split = self._is_split(load.own) and self._exchanging(kind)
        if is_split:
            rank, tokens = dataclasses.replace(rank, busiest=-(-load.own // 2)), -(-tokens // 2)
            hidden = parts.behind_decoding() if load.kernels == "low_latency" else parts.behind_prompts()
        elif self._overlap == "shared-experts":
            hidden = {"all_gather" if self._gathers == "few" else "dispatch": (parts.shared,)}
        messages = tuple(batch_ops.messages(rank, kind, tokens))
        made = []
        for message, each in zip(messages, self._exchanges(messages, load.kernels), strict=True):
            made += [_shortened(each, time_fs) for time_fs in hidden.get(message.word, (0,) * (1 + is_split))]
        return tuple(made)

    def _exchanges(self, messages: Iterable[Message], kernels: Kernels) -> tuple[CollectiveSteps, ...]:
        return tuple(self._links.of_message(message, kernels) for message in messages)

    def _host(self, step_fs: int, started: int, batch: int, context: int) -> int:
        """The host's time of a step, of which ``step_fs`` whatever the batch, and the draft model's."""
        host = step_fs + self.own(batch) * self._sequence_fs + self.own(started) * self._prompt_fs
        if batch and self._draft is not None:
            host += self._draft_fs(batch, context)
        return host

    def _draft_fs(self, batch: int, context: int) -> int:
        if self._draft is None:
            return 0
        line = self._draft.decode_line(batch, context)
        return (self.queries - 1) * (line.fixed + line.slope * context)


@functools.cache
def _most_of(count: int) -> float:
    """The expected maximum of ``count`` standard normal variables (Blom, 1958, Statistical Estimates and Transformed
    Beta-Variables, alpha 3/8: at most 0.026 off, from eight on 0.011).
    """
    return statistics.NormalDist().inv_cdf((count - 0.375) / (count + 0.25))


def _fused_types(device: HardwareSpec) -> frozenset[DType]:
    """Types in which fused expert layers were measured on the device; FP8 with a scale per block."""
    names = {"bf16": "bf16", "fp8": "fp8_block", "fp4": "nvfp4"}
    return frozenset(
        each for each in DType if each.rate in names and device.calibration("moe", names[each.rate]) is not None
    )


def _by_part(letter: str, made: Sequence[LayerOp]) -> Iterator[tuple[tuple[str, ...], LayerOp]]:
    """A block's operations, but its core, each with the names of what it counts to."""
    middle = next((at for at, op in enumerate(made) if op.is_core or op.split == "experts"), 0)
    for at, op in enumerate(made):
        if not op.is_core:
            part = _BEFORE if at < middle else _SHARED if op.name.startswith("experts.shared") else None
            yield (letter,) if part is None else (letter, letter + part), op


def _shortened(exchange: CollectiveSteps, hidden: float) -> CollectiveSteps:
    """An exchange without ``hidden`` of its time, as long as there is."""
    return dataclasses.replace(exchange, step_fs=max(exchange.step_fs - round(hidden / exchange.steps), 0))


def _between(low: int, high: int, at_low: StageWork, at_high: StageWork) -> tuple[StageWork, list[int]]:
    """A stage at a context of 0 and what a key more adds to each of its layers, on the line between two contexts."""
    made, slopes = [], []
    for near, far in zip(at_low.layers, at_high.layers, strict=True):
        whole = [each.compute_fs + sum(one.time_fs for one in each.exchanges) for each in (near, far)]
        slopes.append((whole[1] - whole[0]) // (high - low))
        made.append(dataclasses.replace(near, compute_fs=near.compute_fs - slopes[-1] * low))
    return dataclasses.replace(at_low, layers=tuple(made)), slopes


def _check_division(deployment: Deployment) -> None:
    model, tp, ep = deployment.model, deployment.parallelism.tp, deployment.parallelism.ep
    for name, value in (("query heads", model.q_heads), ("feed-forward width", model.ffn or tp)):
        if value % tp:
            raise UsageError(f"tp {tp} does not divide {model.name}'s {name} {value}")
    heads = model.kv_heads
    if model.latent_attention is None and heads and heads % tp and tp % heads:
        raise UsageError(
            f"tp {tp} neither divides {model.name}'s key and value heads {heads} nor is a multiple of them"
        )
    if model.experts is None and ep > 1:
        raise UsageError(f"{model.name} has no experts to spread over ep {ep}: omit --ep")


def _runs(kinds: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """A stage's layers as (kind, how many in a row); the first and the last stand alone, they do more."""
    middle = [(kind, len(list(same))) for kind, same in itertools.groupby(kinds[1:-1])]
    ends = [(kinds[0], 1)] if len(kinds) == 1 else [(kinds[0], 1), (kinds[-1], 1)]
    return (ends[0], *middle, *ends[1:])


def _split(layers: tuple[str, ...], parts: int) -> tuple[tuple[str, ...], ...]:
    """Consecutive layers in ``parts`` stages of nearly equal length, the longer first."""
    short, longer = divmod(len(layers), parts)
    stages, start = [], 0
    for index in range(parts):
        end = start + short + (index < longer)
        stages.append(layers[start:end])
        start = end
    return tuple(stages)
