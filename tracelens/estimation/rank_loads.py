"""What the experts of the most loaded rank get, as measured tables of expert layers describe it."""

from __future__ import annotations

import functools

import numpy as np

from tracelens.backends.tiles.gemm_tiles import EXPERT_BLOCKS
from tracelens.workload.expert_placement import eplb
from tracelens.workload.token_routing import expert_loads

#: Draws whose mean stands for the expectation of a random distribution, with fixed seeds.
DRAWS = 8
#: Balancing takes a hundred times longer than drawing, and leaves less to chance.
_BALANCED_DRAWS = 2
_BALANCED = "_eplb"


@functools.cache
def rank_load(distribution: str, tokens: int, experts: int, topk: int, ranks: int) -> tuple[float, ...]:
    """(rows, active experts, blocks of each of ``moe.BLOCKS``) of the most loaded rank, mean over draws."""
    draws = 1 if distribution == "balanced" else DRAWS
    total = np.zeros(2 + len(EXPERT_BLOCKS))
    for seed in range(draws):
        by_rank = expert_loads(distribution, tokens, experts, topk, ranks, seed).reshape(ranks, -1)
        counts = by_rank[by_rank.sum(axis=1).argmax()]
        blocks = [np.ceil(counts / rows).sum() for rows in EXPERT_BLOCKS]
        total += [counts.sum(), np.count_nonzero(counts), *blocks]
    return tuple((total / draws).tolist())


@functools.cache
def slot_load(distribution: str, tokens: int, experts: int, topk: int, ranks: int, slots: int) -> tuple[float, ...]:
    """As ``rank_load``; with a distribution ``..._eplb`` experts are replicated into ``slots`` and packed evenly."""
    if not distribution.endswith(_BALANCED):
        return rank_load(distribution, tokens, experts, topk, ranks)
    total = np.zeros(2 + len(EXPERT_BLOCKS))
    for seed in range(_BALANCED_DRAWS):
        counts = expert_loads(distribution.removesuffix(_BALANCED), tokens, experts, topk, 1, seed)
        placed = eplb(counts, slots=slots, ranks=ranks)
        busiest = int(placed.rank_loads(counts).argmax())
        copies = np.bincount(placed.expert_of_slot, minlength=experts)
        own = placed.expert_of_slot[placed.rank_of_slot == busiest]
        share = (counts / copies)[own]
        total += [share.sum(), np.minimum(share, 1).sum(), *(np.ceil(share / rows).sum() for rows in EXPERT_BLOCKS)]
    return tuple((total / _BALANCED_DRAWS).tolist())
