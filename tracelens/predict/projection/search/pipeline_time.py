"""What the ranks of a pipeline hold, and how long a pipeline of micro-batches takes in closed form."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.predict.projection.overheads import later_us
from tracelens.predict.projection.pipeline import OVERLAP_COST, exposed_us, layer_counts
from tracelens.predict.projection.search.space import SCHEDULES, Ints, Splits
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.rank_ops import ENDS
from tracelens.types.records import Record

Floats: TypeAlias = npt.NDArray[np.float64]


class ChunkType(Record, frozen=True, kw_only=True, eq=False):
    """Layers that run one after the other: ``kinds``. ``layers``: how often each kind, [kind].

    ``neighbors``: how often a layer of a kind stands between which before and after it; None at the chunk's ends.
    """

    kinds: tuple[int, ...]
    layers: Ints
    neighbors: Mapping[tuple[int | None, int, int | None], int]


class StageType(Record, frozen=True, kw_only=True, eq=False):
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


@functools.cache
def stage_types(model: ModelConfig, pp: int, vpp: int, schedule: str = SCHEDULES[0]) -> tuple[StageType, ...]:
    """What the ranks of a pipeline hold, each distinct share once."""
    is_v, vpp = schedule == "zb-v", 2 if schedule == "zb-v" else vpp
    kinds = (*dict.fromkeys(model.layers), *ENDS)
    parts: list[ChunkType] = []
    made: dict[tuple[int, ...], ChunkType] = {}
    at = 0
    counts = layer_counts(len(model.layers), pp * vpp)
    for part, count in enumerate(counts):
        held = [kinds.index(layer) for layer in model.layers[at : at + count]]
        first, last = part == 0, part == len(counts) - 1
        chunk = (*[len(kinds) - 2] * first, *held, *[len(kinds) - 1] * last)
        neighbors = Counter(zip((None, *chunk), chunk, (*chunk[1:], None), strict=False))
        layers = np.bincount(chunk, minlength=len(kinds))
        parts.append(made.setdefault(chunk, ChunkType(kinds=chunk, layers=layers, neighbors=neighbors)))
        at += count
    by_rank: dict[tuple[ChunkType, ...], list[int]] = {}
    for rank in range(pp):
        held_by = (parts[rank], parts[-1 - rank]) if is_v else tuple(parts[rank::pp])
        by_rank.setdefault(held_by, []).append(rank)
    return tuple(StageType(chunks=chunks, ranks=tuple(ranks)) for chunks, ranks in by_rank.items())


def under_way(s: Splits, stage: StageType, passes: Ints, kept_bytes: Floats) -> Floats:
    """[candidate, kind]: how many layers' activations of micro-batches the first rank of ``stage`` keeps when it keeps
    most; ``kept_bytes`` of one layer's, [candidate, kind].

    All of ``s`` have as many stages and chunks.
    """
    stages, chunks, rank = int(s.pp[0]), len(stage.chunks), stage.ranks[0]
    if chunks == 1:
        plain: Floats = np.minimum(stages - rank, passes)[:, None] * stage.layers.astype(float)
        return plain
    # Forwards before the first backward, in groups of as many as there are stages through chunk after chunk
    ahead = np.minimum(2 * (stages - rank - 1) + (chunks - 1) * stages + 1, passes * chunks)
    if len({id(chunk) for chunk in stage.chunks}) == 1:
        alike: Floats = ahead[:, None] * stage.chunks[0].layers.astype(float)
        return alike
    kept = _kept(stage, stages, ahead, np.zeros_like(ahead))
    # Then one forward, one backward: most is kept where either goes on to a chunk of other layers
    most = (kept_bytes * kept).sum(axis=1)
    for turn in range(chunks):
        for after in (turn * stages, turn * stages + (-ahead) % stages):
            run = np.minimum(after, passes * chunks - ahead)
            other = _kept(stage, stages, ahead + run, run)
            more = (kept_bytes * other).sum(axis=1)
            kept = np.where((more > most)[:, None], other, kept)
            most = np.maximum(most, more)
    return kept


def split_kept_bytes(s: Splits, stage: StageType, passes: Ints, kept: Floats, later: Floats) -> Floats:
    """The most that the ranks of ``stage`` keep under a schedule that puts gradients of weights off: ``kept`` of a
    layer's micro-batch until the gradient of its input, ``later`` from then on, [candidate, kind].

    ZB-H1: rank r keeps as many as there are ranks from it on, and has put off r more. ZB-V: two chunks per rank of the
    pipeline, at worst all of them the same one.
    """
    stages = int(s.pp[0])
    held = [(kept @ chunk.layers, later @ chunk.layers) for chunk in stage.chunks]
    if SCHEDULES[int(s.schedule[0])] == "zb-v":
        found: Floats = 2 * stages * np.max(held, axis=(0, 1))
        return found
    ((kept, later),) = held
    most = np.zeros(len(kept))
    for rank in (stage.ranks[0], stage.ranks[-1]):
        for off in (rank, rank + 1):
            ahead = np.minimum(stages - off, passes)
            most = np.maximum(most, ahead * kept + np.minimum(off, passes - ahead) * later)
    return most


def _kept(stage: StageType, stages: int, forwards: Ints, backwards: Ints) -> Floats:
    """[candidate, kind]: layers of so many forwards through the chunks less those of backwards, last chunk first."""
    chunks = len(stage.chunks)
    turn = stages * np.arange(chunks)
    made, freed = (
        (count // (chunks * stages) * stages)[:, None] + np.clip((count % (chunks * stages))[:, None] - turn, 0, stages)
        for count in (forwards, backwards)
    )
    kept: Floats = (made - freed[:, ::-1]).astype(float) @ np.stack([chunk.layers for chunk in stage.chunks])
    return kept


class PassTimes(NamedTuple):
    """Microseconds of a micro-batch's forward and backward through a chunk, [forward or backward][candidate].

    ``beside``: what overlapped transfers of weights and gradients add; ``host``: what launching takes longer than all.
    """

    busy: Floats
    beside: Floats
    host: Floats

    @property
    def whole(self) -> Floats:
        return self.busy + self.beside + self.host


def in_turn(passes: Sequence[PassTimes]) -> PassTimes:
    """One after the other."""
    busy, beside, host = (np.sum(each, axis=0) for each in zip(*passes, strict=True))
    return PassTimes(busy=busy, beside=beside, host=host)


class KindCosts(NamedTuple):
    """Microseconds of kinds of layers: what they take and their host takes to launch them, [forward or backward, kind,
    candidate]; gathering one's weights and scattering or reducing its gradients, [candidate, kind].
    """

    time: Floats
    launch: Floats
    gather: Floats
    scatter: Floats

    def take(self, at: npt.NDArray[np.intp]) -> KindCosts:
        return KindCosts(self.time[:, :, at], self.launch[:, :, at], self.gather[at], self.scatter[at])


def pass_us(s: Splits, chunk: ChunkType, layers: KindCosts) -> PassTimes:
    """All of ``s`` have the same schedule. Those that tell gradients of inputs from those of weights have ZeRO 1."""
    busy = chunk.layers @ layers.time
    beside = np.zeros(busy.shape) if len(busy) == len("FDW") else _beside_us(s, chunk, layers)
    return PassTimes(busy=busy, beside=beside, host=later_us(busy + beside, chunk.layers @ layers.launch))


def _beside_us(s: Splits, chunk: ChunkType, layers: KindCosts) -> Floats:
    """What weights and gradients of divided layers add to a forward and to a backward.

    FSDP gathers a layer's weights while the layer before it computes and scatters its gradients while the one after
    it does; nothing overlaps the first gather and the last scatter. Gradients that are divided without the weights are
    reduced one after the other while the whole chunk computes, those of the pass before's last layer first.
    """
    (ahead_us, back_us), gather, scatter = layers.time, layers.gather, layers.scatter
    beside = np.zeros((2, len(s)))
    at = np.flatnonzero(s.zero == 3)
    for (before, k, after), count in chunk.neighbors.items():
        nothing = np.zeros(len(at))
        ahead = nothing if after is None else gather[at, after]
        back = nothing if before is None else gather[at, before]
        behind = nothing if after is None else scatter[at, after]
        alone = nothing if before is not None else gather[at, k]
        beside[0, at] += count * (exposed_us(ahead, ahead_us[k, at]) + alone)
        alone = (gather[at, k] if after is None else 0.0) + (scatter[at, k] if before is None else 0.0)
        beside[1, at] += count * (exposed_us(back + behind, back_us[k, at]) + alone)
    at = np.flatnonzero(s.zero == 2)
    of = layers.take(at)
    ends, reduced = _backward_us(chunk, of, scattered=of.scatter[:, chunk.kinds[0]])
    beside[1, at] = np.maximum(ends, reduced) - chunk.layers @ of.time[1]
    return beside


def _backward_us(chunk: ChunkType, layers: KindCosts, scattered: Floats) -> tuple[Floats, Floats]:
    """When a backward ends whose layers' gradients are reduced during the layers after them, one layer's after
    another's from ``scattered`` on; and when all but the last of these reductions have.
    """
    ends, before = np.zeros(len(scattered)), None
    for kind in reversed(chunk.kinds):
        if before is not None:
            scattered = np.maximum(scattered, ends) + layers.scatter[:, before]
        ends = ends + _slowed_us(layers.time[1, kind], scattered - ends)
        before = kind
    return ends, scattered


def _slowed_us(compute_us: Floats, transfer_us: Floats) -> Floats:
    """Compute time, longer while the rest of a transfer overlaps it."""
    slow = 1 + OVERLAP_COST
    slowed: Floats = compute_us + (1 - 1 / slow) * np.minimum(np.maximum(transfer_us, 0.0), slow * compute_us)
    return slowed


def ends_us(
    s: Splits, types: Sequence[StageType], layers: KindCosts, passes_us: Mapping[ChunkType, PassTimes],
    *, hop: Floats, micro_batches: Floats,
) -> Floats:  # fmt: skip
    """What gathering weights as a step begins and reducing gradients as it ends adds to the step, with ZeRO 1 and 2.

    The first micro-batch's forwards and the last one's backwards are followed from chunk to chunk: a rank runs the
    other micro-batches of a group between two of its chunks. With ZeRO 2 only a rank's last backward leaves gradients.
    """
    late, at = np.zeros(len(s)), np.flatnonzero(s.zero < 3)
    held = {rank: stage.chunks for stage in types for rank in stage.ranks}
    costs, hop, is_2 = layers.take(at), hop[at], s.zero[at] == 2
    others = np.minimum(len(held), micro_batches[at]) - 1
    plain = [{chunk: each.whole[phase][at] for chunk, each in passes_us.items()} for phase in (0, 1)]
    launch = {chunk: chunk.layers @ costs.launch for chunk in passes_us}
    reduced = dict.fromkeys(held, np.zeros(len(at)))

    def closed(rank: int, number: int, start: Floats) -> Floats:
        chunk = held[rank][number]
        backward, until = _backward_us(chunk, costs, reduced[rank] - start)
        until = start + np.maximum(until, backward) + costs.scatter[:, chunk.kinds[0]]
        hosted: Floats = backward + later_us(backward, launch[chunk][1])
        if not number:
            reduced[rank] = until
            return hosted
        reduced[rank] = np.where(is_2, 0.0, until)
        return np.where(is_2, plain[1][chunk], hosted)

    wave = functools.partial(_wave, held, others=others, hop=hop)
    first = _opening_us(held, costs, plain[0], others=others, hop=hop)
    free = _before_last_us(held, plain, hop)
    last = wave(plain[1], closed, free=free)
    last = np.maximum(last, np.max(list(reduced.values()), axis=0)) - wave(plain[1], free=free)
    late[at] = first + last
    return late


def _opening_us(
    held: Mapping[int, Sequence[ChunkType]], costs: KindCosts, plain_us: Mapping[ChunkType, Floats],
    *, others: Floats, hop: Floats,
) -> Floats:  # fmt: skip
    """What the first micro-batch's forwards take longer, whose weights are gathered as the step begins."""
    gathered = dict.fromkeys(held, np.zeros(len(hop)))
    launch = {chunk: chunk.layers @ costs.launch[0] for chunk in plain_us}

    def opened(rank: int, number: int, start: Floats) -> Floats:
        chunk = held[rank][number]
        # Layers wait for their weights, gathered one layer's after another's
        gathers_us = gathered[rank] - start
        ends, came = np.zeros(len(gathers_us)), gathers_us
        last = gathers_us + costs.gather @ chunk.layers
        for kind in chunk.kinds:
            came = came + costs.gather[:, kind]
            ends = np.maximum(ends, came)
            ends = ends + _slowed_us(costs.time[0, kind], last - ends)
        gathered[rank] = gathered[rank] + costs.gather @ chunk.layers
        hosted: Floats = ends + later_us(ends, launch[chunk])
        return hosted

    wave = functools.partial(_wave, held, plain_us, others=others, hop=hop)
    return wave(opened) - wave()


def _before_last_us(
    held: Mapping[int, Sequence[ChunkType]], plain_us: Sequence[Mapping[ChunkType, Floats]], hop: Floats
) -> dict[int, Floats]:
    """When each rank has run the last chunk's backward of the last micro-batch but one, from when the last rank begins
    that of the last one, which follows on its forward.
    """
    ranks = sorted(held, reverse=True)
    ends = -plain_us[0][held[ranks[0]][-1]]
    free = {ranks[0]: ends}
    for rank in ranks[1:]:
        ends = free[rank] = ends + hop + plain_us[1][held[rank][-1]]
    return free


def _wave(
    held: Mapping[int, Sequence[ChunkType]], plain_us: Mapping[ChunkType, Floats],
    each: Callable[[int, int, Floats], Floats] | None = None,
    *, others: Floats, hop: Floats, free: Mapping[int, Floats] | None = None,
) -> Floats:  # fmt: skip
    """When a micro-batch has passed all chunks, which take ``each`` of rank, chunk's number and start, else
    ``plain_us``: forwards, or backwards where ``free`` says when each rank can begin with it.
    """
    is_backward = free is not None
    can = dict(free or dict.fromkeys(held, np.zeros(len(hop))))
    ends = came = np.zeros(len(hop))
    turns = [(rank, number) for number in range(len(held[0])) for rank in sorted(held)]
    for rank, number in reversed(turns) if is_backward else turns:
        start = np.maximum(came, can[rank])
        ends = start + (plain_us[held[rank][number]] if each is None else each(rank, number, start))
        can[rank] = ends + others * plain_us[held[rank][number - is_backward]]
        came = ends + hop
    return ends


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
    """What round trips between two ranks take longer than as many micro-batches on the busiest rank as are under way on
    the way: one per rank. ``each``: [stage, candidate].

    Among equal neighbors the longest way is the latest, so ways begin and end where ranks differ from the next one.
    """
    of = {rank: row for row, stage in enumerate(types) for rank in stage.ranks}
    alike = [(row, len(list(ranks))) for row, ranks in itertools.groupby(of[rank] for rank in range(len(of)))]
    longest, waits = each.max(axis=0), np.zeros(len(hop))
    for first in range(len(alike)):
        under_way, trip = 0, np.zeros(len(hop))
        for row, count in alike[first:]:
            under_way, trip = under_way + count, trip + count * each[row]
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


def whole_us(
    s: Splits, types: Sequence[StageType], layers: KindCosts, passes_us: Mapping[ChunkType, PassTimes],
    *, hop: Floats, micro_batches: Floats,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """As ``split_us``, of a schedule of whole backwards."""
    ran, hops = pipeline_us(types, passes_us, hop=hop, micro_batches=micro_batches)
    return ran, hops, ends_us(s, types, layers, passes_us, hop=hop, micro_batches=micro_batches)


def split_us(
    s: Splits, types: Sequence[StageType], layers: KindCosts, passes_us: Mapping[ChunkType, PassTimes],
    *, hop: Floats, micro_batches: Floats,
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """Time of a schedule that puts gradients of weights off, how much of it is transfers, and what weights and
    gradients add at its ends; ``layers`` and ``passes_us`` are [forward, gradient of the input, of weights].

    Every rank's last gradients of weights hide the sum of its gradients as far as they last.
    """
    held = {rank: stage.chunks for stage in types for rank in stage.ranks}
    row = {rank: at for at, stage in enumerate(types) for rank in stage.ranks}
    stages = len(held)
    each = [np.sum([passes_us[chunk].whole for chunk in stage.chunks], axis=0) for stage in types]
    longest = np.max([one.sum(axis=0) for one in each], axis=0)
    last = KindCosts(layers.time[[0, 2]], layers.launch[[0, 2]], layers.gather, layers.scatter)
    closing = []
    for stage in types:
        chunk, *others = stage.chunks
        # Gradients of a V's other half are summed from its own last pass on, a gradient of the input before this one's
        taken = sum((layers.scatter @ one.layers - passes_us[one].whole[2] for one in others), np.zeros(len(s)))
        backward, until = _backward_us(chunk, last, taken - passes_us[chunk].whole[1] * bool(others))
        until = np.maximum(until, backward) + layers.scatter[:, chunk.kinds[0]]
        closing.append(np.maximum(until - passes_us[chunk].whole[2], 0.0))
    first = {rank: chunks[:1] for rank, chunks in held.items()}
    ahead = {chunks[0]: passes_us[chunks[0]].whole[0] for chunks in first.values()}
    opening = _opening_us(first, layers, ahead, others=np.minimum(stages, micro_batches) - 1, hop=hop)
    of_rank = [each[row[rank]] for rank in range(stages)]
    if SCHEDULES[int(s.schedule[0])] == "zb-v":
        ran = micro_batches * longest + _v_bubble_us(of_rank, hop)
        ends = np.max(closing, axis=0)
    else:
        nothing = [np.zeros(len(s))] * stages
        ran = _zb_h1_us(of_rank, nothing, hop, micro_batches)
        ends = _zb_h1_us(of_rank, [closing[row[rank]] for rank in range(stages)], hop, micro_batches) - ran
    hops = np.minimum(4 * (stages - 1) * hop, ran - micro_batches * longest)
    return ran, hops, opening + ends


def _zb_h1_us(ranks: Sequence[Floats], closing: Sequence[Floats], hop: Floats, micro_batches: Floats) -> Floats:
    """ZB-H1 of ranks that take [forward, gradient of the input, of weights] and ``closing`` more at their end.

    As ``_paced_us``, but a rank has put as many gradients of weights off as there are ranks before it, and runs them
    while the gradients of inputs go back to the first one.
    """
    stages, before, begun = len(ranks), np.zeros(len(hop)), []
    for rank, (forward, dgrad, wgrad) in enumerate(ranks):
        after = sum((one[0] + one[1] + 2 * hop for one in ranks[rank + 1 :]), np.zeros(len(hop)))
        waits = np.maximum(0.0, after - np.minimum(stages - 1 - rank, micro_batches - 1) * forward)
        off = np.minimum(rank + 1, micro_batches) * wgrad
        begun.append(before + waits + micro_batches * (forward + dgrad + wgrad) - off)
        before = before + forward + hop
    ends, leaves = np.zeros(len(hop)), np.full(len(hop), -np.inf)
    for rank in reversed(range(stages)):
        leaves = np.maximum(begun[rank], leaves + hop + ranks[rank][1])
        off = np.minimum(rank + 1, micro_batches) * ranks[rank][2]
        ends = np.maximum(ends, leaves + off + closing[rank])
    return ends


def _v_bubble_us(ranks: Sequence[Floats], hop: Floats) -> Floats:
    """What ZB-V takes longer than its busiest rank computes: one chunk's gradient of the input on each other rank, and
    transfers down and up, forward and back.
    """
    idle = np.array([dgrad / 2 for _, dgrad, _ in ranks])
    busiest = np.array([one.sum(axis=0) for one in ranks]).argmax(axis=0)
    bubble: Floats = idle.sum(axis=0) - idle[busiest, np.arange(len(hop))] + 4 * (len(ranks) - 1) * hop
    return bubble
