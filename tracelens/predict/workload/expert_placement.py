"""Which rank holds which expert, copies of heavy experts (EPLB), and the traffic that a routing makes of an expert-
parallel layer.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import UsageError
from tracelens.predict.network.deepep import distinct
from tracelens.predict.network.traffic import Copies, imbalance
from tracelens.predict.workload.token_routing import UNIFORM, Assignment, Skew, check_shape, route
from tracelens.types.records import Record

Ints = NDArray[np.integer[Any]]


class Placement(Record, frozen=True, kw_only=True):
    """``expert_of_slot[s]`` lies on ``rank_of_slot[s]``; an expert with several slots is replicated."""

    expert_of_slot: NDArray[np.int64]
    rank_of_slot: NDArray[np.int64]
    ranks: int

    def __post_init__(self) -> None:
        if not len(self.rank_of_slot) or len(self.rank_of_slot) != len(self.expert_of_slot):
            raise UsageError("a placement needs an expert and a rank for every slot")
        if self.rank_of_slot.min() < 0 or self.rank_of_slot.max() >= self.ranks:
            raise UsageError(f"a placement uses rank {self.rank_of_slot.max()}, but there are {self.ranks} ranks")
        missing = np.setdiff1d(np.arange(self.experts), self.expert_of_slot)
        if len(missing) or self.expert_of_slot.min() < 0:
            raise UsageError(
                f"a placement leaves out expert {missing[0] if len(missing) else self.expert_of_slot.min()}"
            )

    @property
    def experts(self) -> int:
        """Distinct (logical) experts."""
        return int(self.expert_of_slot.max()) + 1

    @property
    def slots(self) -> int:
        """Physical experts, replicas included."""
        return len(self.expert_of_slot)

    @classmethod
    def contiguous(cls, experts: int, ranks: int) -> Placement:
        """Rank r holds experts r * E/R up to (r + 1) * E/R."""
        return cls.from_map(np.arange(experts) // _per_rank(experts, ranks), ranks)

    @classmethod
    def filled(cls, experts: int, ranks: int) -> Placement:
        """``contiguous``; where the experts do not divide, the first ones stand again on the last ranks until all hold
        as many, as engines place copies before any load is known (SGLang's ``arange(physical) % logical``).
        """
        slots = _slots(experts, ranks, 0)
        return cls(
            expert_of_slot=np.arange(slots) % experts, rank_of_slot=np.arange(slots) // (slots // ranks), ranks=ranks
        )

    @classmethod
    def round_robin(cls, experts: int, ranks: int) -> Placement:
        """Expert e lies on rank e mod R."""
        _per_rank(experts, ranks)
        return cls.from_map(np.arange(experts) % ranks, ranks)

    @classmethod
    def from_map(cls, rank_of_expert: Ints, ranks: int) -> Placement:
        """Any map, one rank per expert."""
        place = np.asarray(rank_of_expert, dtype=np.int64)
        return cls(expert_of_slot=np.arange(len(place)), rank_of_slot=place, ranks=ranks)

    def slot_of_token(self, expert_of_token: Ints) -> Ints:
        """Chosen experts to slots: tokens take an expert's replicas in turn, by token number."""
        if self.slots == self.experts and np.array_equal(self.expert_of_slot, np.arange(self.slots)):
            return expert_of_token
        copies = np.bincount(self.expert_of_slot, minlength=self.experts)
        first = np.concatenate(([0], np.cumsum(copies)[:-1]))
        by_expert = np.argsort(self.expert_of_slot, kind="stable")
        chosen = np.asarray(expert_of_token, dtype=np.int64)
        turn = np.arange(len(chosen))[:, None] % copies[chosen]
        return np.where(chosen < 0, chosen, by_expert[first[chosen] + turn])

    def rank_loads(self, expert_loads: Ints) -> NDArray[np.float64]:
        """Load of each rank when an expert's load divides evenly over its replicas."""
        copies = np.bincount(self.expert_of_slot, minlength=self.experts)
        share = (np.asarray(expert_loads, dtype=np.float64) / copies)[self.expert_of_slot]
        return np.asarray(np.bincount(self.rank_of_slot, weights=share, minlength=self.ranks), np.float64)


def eplb(expert_loads: Ints, *, slots: int, ranks: int, nodes: int = 1, groups: int = 1) -> Placement:
    """Redundant experts by DeepSeek's expert-parallel load balancer (github.com/deepseek-ai/EPLB).

    Hierarchical where ``groups`` of experts divide over ``nodes``: groups are packed to nodes, each node replicates its
    own experts, and packs the replicas to its ranks, so that a group stays on one node. Otherwise global: one node, one
    group. Replicating gives each spare slot to the expert with most load per replica; packing takes the heaviest first,
    to the lightest pack with room. UsageError where the figures do not divide.
    """
    loads = np.asarray(expert_loads, dtype=np.float64)
    experts = len(loads)
    if slots < experts:
        raise UsageError(f"{slots} slots are too few for {experts} experts")
    if ranks < 1 or slots % ranks:
        raise UsageError(f"{slots} slots do not divide over {ranks} ranks")
    if nodes < 1 or ranks % nodes:
        raise UsageError(f"{ranks} ranks do not divide over {nodes} nodes")
    if groups < 1 or experts % groups:
        raise UsageError(f"{experts} experts do not divide into {groups} groups")
    if groups % nodes:
        groups = nodes = 1
    size = experts // groups
    node_of_group, place_of_group = _packed(loads.reshape(groups, size).sum(axis=1), nodes)
    per_node, node_slots = experts // nodes, slots // nodes
    first = (node_of_group * (groups // nodes) + place_of_group) * size
    expert_at = np.empty(experts, np.int64)
    for group in range(groups):
        expert_at[first[group] : first[group] + size] = np.arange(group * size, (group + 1) * size)
    expert_of_slot = np.empty(slots, np.int64)
    for node in range(nodes):
        own = expert_at[node * per_node : (node + 1) * per_node]
        replica_of, copies = _replicated(loads[own], node_slots)
        pack, place = _packed((loads[own] / copies)[replica_of], ranks // nodes)
        expert_of_slot[node * node_slots + pack * (slots // ranks) + place] = own[replica_of]
    return Placement(expert_of_slot=expert_of_slot, rank_of_slot=np.arange(slots) // (slots // ranks), ranks=ranks)


def _packed(weights: NDArray[np.float64], packs: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pack of each item and its place there; every pack gets as many items."""
    room = len(weights) // packs
    pack, place = np.zeros(len(weights), np.int64), np.zeros(len(weights), np.int64)
    if room == 1:
        return np.arange(len(weights)), place
    load, held = [0.0] * packs, [0] * packs
    for item in np.argsort(-weights, kind="stable").tolist():
        lightest = min((p for p in range(packs) if held[p] < room), key=load.__getitem__)
        pack[item], place[item] = lightest, held[lightest]
        load[lightest] += float(weights[item])
        held[lightest] += 1
    return pack, place


def _replicated(weights: NDArray[np.float64], slots: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Expert of each slot, and how many slots each expert has."""
    copies = np.ones(len(weights), np.int64)
    expert_of = list(range(len(weights)))
    for _ in range(slots - len(weights)):
        heaviest = int(np.argmax(weights / copies))
        expert_of.append(heaviest)
        copies[heaviest] += 1
    return np.array(expert_of), copies


def _per_rank(experts: int, ranks: int) -> int:
    if _slots(experts, ranks, 0) > experts:
        raise UsageError(f"{experts} experts do not divide over {ranks} ranks; give a map of experts to ranks")
    return experts // ranks


#: Each layer has its own hot experts: the mean over as many draws, of as many tokens each. With 64 ranks and top 8 a
#: rank then has 8,192 routings, and the busiest of 64 equal ones comes out 2.6 % above the mean.
_DRAWS, _TOKENS = 8, 65_536


class ExpertTraffic(Record, frozen=True, kw_only=True):
    """An exchange among ``ranks`` that hold as many experts each, per token and against an even load.

    ``rank_copies``: distinct ranks that a token goes to, its own included. ``rows_imbalance``: the busiest rank's
    routings over the mean, which its experts multiply; ``copies_imbalance``: the copies that arrive at one over the
    mean, which its links carry. ``remote_share`` of the copies leave their rank. ``busiest``: how likely a token goes
    to each expert of the busiest rank, by draw. ``variance``: by chance, of a rank's routings per token; 0 where tokens
    choose in turn.
    """

    ranks: int
    rank_copies: float
    rows_imbalance: float
    copies_imbalance: float
    remote_share: float
    busiest: tuple[tuple[float, ...], ...]
    variance: float = 0.0

    @property
    def held(self) -> int:
        """Experts that a rank holds, copies included."""
        return len(self.busiest[0])

    @classmethod
    def of_assignment(cls, chosen: Assignment, *, experts: int, ranks: int, redundant: int = 0) -> ExpertTraffic:
        """As an assignment [tokens, topk] has it; token i comes from rank i mod ``ranks``. ``redundant`` as in
        ``expert_traffic``; copies stand where this assignment needs them. UsageError as ``Copies``.
        """
        placed = Placement.filled(experts, ranks)
        if redundant:
            loads = np.bincount(np.asarray(chosen).ravel(), minlength=experts)
            placed = eplb(loads, slots=_slots(experts, ranks, redundant), ranks=ranks)
        chosen, place = placed.slot_of_token(chosen), placed.rank_of_slot
        copies = Copies.from_assignment(chosen, place, ranks=ranks)
        by_rank = copies.experts.reshape(ranks, -1)
        received = copies.per_rank.sum(axis=0)
        busiest = by_rank[by_rank.sum(axis=1).argmax()] / max(1, len(chosen))
        return cls(
            ranks=ranks,
            rank_copies=copies.mean_ranks,
            rows_imbalance=imbalance(by_rank.sum(axis=1)),
            copies_imbalance=imbalance(received),
            remote_share=1 - float(np.trace(copies.per_rank)) / max(1.0, float(received.sum())),
            busiest=(tuple(busiest.tolist()),),
        )

    def most_rows(self, tokens: float, topk: int) -> float:
        """Routings of the rank that has most of a batch of ``tokens``: ``rows_imbalance``, and by chance the largest of
        ``ranks`` deviations, normal but for a Poisson number's skewness (Cornish and Fisher's term). The two are
        independent of each other.
        """
        mean, largest = tokens * topk / self.ranks, expected_maximum(self.ranks)
        by_chance = largest * math.sqrt(tokens * self.variance)
        if self.variance:
            by_chance += max(largest**2 - 1, 0.0) / 6
        return min(mean + math.hypot(mean * (self.rows_imbalance - 1), by_chance), tokens * min(topk, self.held))

    def touched(self, tokens: float) -> float:
        """Experts that at least one of ``tokens`` goes to, of the rank that has most such: of the busiest rank, and
        more by chance; tokens are independent of each other.
        """
        missed = (1 - np.array(self.busiest)) ** tokens
        mean, variance = ((part.sum(axis=1).mean()) for part in (1 - missed, missed * (1 - missed)))
        by_chance = expected_maximum(self.ranks) * math.sqrt(variance) if self.variance else 0.0
        return min(float(mean) + by_chance, self.held)

    @property
    def even(self) -> ExpertTraffic:
        """Of a rank with as many routings as the mean one has."""
        mean = tuple(tuple(chance / self.rows_imbalance for chance in draw) for draw in self.busiest)
        return replace(self, rows_imbalance=1.0, busiest=mean, variance=0.0)


@functools.cache
def expected_maximum(ranks: int) -> float:
    """The largest of so many standard normal numbers, expected (Blom, Statistical Estimates, 1958)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


@functools.cache
def expert_traffic(skew: Skew, *, experts: int, topk: int, ranks: int, redundant: int = 0) -> ExpertTraffic:
    """What to expect of ``skew``, by chance included.

    ``redundant``: copies of experts beyond one each, and more until all ranks hold as many, placed by DeepSeek's load
    balancer. UsageError for what ``route`` refuses.
    """
    found = _long_run(skew, experts, topk, ranks, redundant)
    if skew.kind == "balanced" or experts == 1:
        return found
    return replace(found, variance=topk / ranks * (experts - topk) / (experts - 1))


def _long_run(skew: Skew, experts: int, topk: int, ranks: int, redundant: int) -> ExpertTraffic:
    """Of many tokens: in closed form for uniform routing, else the mean over draws."""
    check_shape(tokens=1, experts=experts, topk=topk)
    slots = _slots(experts, ranks, redundant)
    if skew == UNIFORM and slots > experts:
        return _evenly_chosen(experts, topk, slots, ranks, bool(redundant))
    if skew == UNIFORM:
        return ExpertTraffic(
            ranks=ranks,
            rank_copies=float(distinct(ranks, experts, topk)),
            rows_imbalance=1.0,
            copies_imbalance=1.0,
            remote_share=(ranks - 1) / ranks,
            busiest=((topk / experts,) * (slots // ranks),),
        )
    drawn = [
        ExpertTraffic.of_assignment(
            route(skew, tokens=_TOKENS, experts=experts, topk=topk, seed=draw),
            experts=experts,
            ranks=ranks,
            redundant=redundant,
        )
        for draw in range(_DRAWS)
    ]
    names = ("rank_copies", "rows_imbalance", "copies_imbalance", "remote_share")
    means = {name: sum(getattr(each, name) for each in drawn) / _DRAWS for name in names}
    return ExpertTraffic(ranks=ranks, busiest=tuple(busiest for each in drawn for busiest in each.busiest), **means)


def _slots(experts: int, ranks: int, redundant: int) -> int:
    """Places for experts on all ranks: each expert once, ``redundant`` copies, and more until ranks hold as many."""
    if ranks < 1 or experts < 1:
        raise UsageError(f"experts and ranks must be at least 1, got {experts} and {ranks}")
    return -(-(experts + redundant) // ranks) * ranks


def _evenly_chosen(experts: int, topk: int, slots: int, ranks: int, is_balanced: bool) -> ExpertTraffic:
    """Equally likely experts with copies: a rank whose places stand for x experts in all is missed by a token as if it
    held x of them, also where x is no whole number.
    """
    even = np.ones(experts, np.int64)
    placed = eplb(even, slots=slots, ranks=ranks) if is_balanced else Placement.filled(experts, ranks)
    share = 1 / np.bincount(placed.expert_of_slot)[placed.expert_of_slot]
    by_rank = share.reshape(ranks, -1)
    loads = by_rank.sum(axis=1)
    # A token misses a rank where none of its ``topk`` different experts is among those that the rank holds
    reached = [
        1 - math.prod(max(experts - load - chosen, 0.0) / (experts - chosen) for chosen in range(topk))
        for load in loads.tolist()
    ]
    copies, busiest = sum(reached), by_rank[loads.argmax()] * topk / experts
    return ExpertTraffic(
        ranks=ranks,
        rank_copies=copies,
        rows_imbalance=float(loads.max() / loads.mean()),
        copies_imbalance=max(reached) * ranks / copies,
        remote_share=(ranks - 1) / ranks,
        busiest=(tuple(busiest.tolist()),),
    )
