"""How long a pipeline of micro-batches takes, in closed form, with transfers of weights and gradients beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracelens.projection.overheads import later_us
from tracelens.projection.overlap import OVERLAP_COST, exposed_us
from tracelens.projection.search.splits import Splits
from tracelens.projection.search.stage_types import ChunkType, Floats, StageType


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


def in_turn(passes: Sequence[PassTimes]) -> PassTimes:
    """One after the other."""
    busy, beside, host = (np.sum(each, axis=0) for each in zip(*passes, strict=True))
    return PassTimes(busy=busy, beside=beside, host=host)


def pass_us(s: Splits, chunk: ChunkType, whole: Floats, launch: Floats, shared: tuple[Floats, Floats]) -> PassTimes:
    busy = chunk.layers @ whole
    beside = _beside_us(s, chunk, whole, shared)
    return PassTimes(busy=busy, beside=beside, host=later_us(busy + beside, chunk.layers @ launch))


def _beside_us(s: Splits, chunk: ChunkType, whole: Floats, shared: tuple[Floats, Floats]) -> Floats:
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


def replicas_us(
    s: Splits, types: Sequence[StageType], shared: tuple[Floats, Floats], held_us: Sequence[PassTimes],
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
        gathered = np.maximum(gathered, _late_us(s, stage, gather, forward - ahead, first_forward))
        reduced = np.maximum(reduced, _late_us(s, stage, scatter, backward - behind, first_backward))
        slowed = slowed + len(stage.ranks) * _slowed_us(_behind_us(stage, scatter), backward) / s.vpp
        left = np.maximum(left, _left_us(stage, scatter, passes_us) - stage.ranks[0] * first_backward / s.vpp)
    slowed = slowed + _slowed_us(_behind_us(types[0], scatter), first_backward) * (1 - 1 / s.vpp)
    ends = np.where(s.zero == 2, left, reduced + slowed)
    return np.where(s.zero == 3, 0.0, gathered + _slowed_us(_behind_us(types[0], gather), first_forward) + ends)


def _left_us(stage: StageType, scatter: Floats, passes_us: Mapping[ChunkType, PassTimes]) -> Floats:
    """Where every micro-batch's gradients are reduced: how long the last one's outlast its backward."""
    chunk = stage.chunks[0]
    alone, total, busy = scatter[:, chunk.first], scatter @ chunk.layers, passes_us[chunk].busy[1]
    return alone + exposed_us(total - alone, busy) - exposed_us(total, busy)


def _late_us(s: Splits, stage: StageType, each: Floats, busy_us: Floats, lag_us: Floats) -> Floats:
    """How long the transfers of a rank's layers outlast its computing; ``lag_us`` is between neighboring ranks.

    A chunk's transfers run beside that chunk, all of them beside the chunks of all micro-batches under way. The
    first layer's have nothing to hide behind. ``busy_us``: what others hide behind.
    """
    alone, total = each[:, stage.chunks[0].first], _behind_us(stage, each)
    beside = (1 + OVERLAP_COST) * busy_us / s.vpp
    rest = np.maximum(total / s.vpp - beside, total - beside * (1 + (s.vpp - 1) * s.pp))
    late: Floats = alone + np.maximum(0.0, rest) - stage.ranks[0] * lag_us / s.vpp
    return late


def _behind_us(stage: StageType, each: Floats) -> Floats:
    """The transfers of a rank's layers but the first one's, which has nothing to hide behind."""
    found: Floats = each @ stage.layers - each[:, stage.chunks[0].first]
    return found


def _slowed_us(transfer_us: Floats, compute_us: Floats) -> Floats:
    """What a transfer slows computing, without what is left of it afterwards."""
    return np.asarray(np.minimum(exposed_us(transfer_us, compute_us), OVERLAP_COST * compute_us))


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
