"""What a routing makes of an expert-parallel layer: copies per token, and how much more the busiest rank has to do."""

from __future__ import annotations

import functools

import numpy as np

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.network.deepep import distinct
from tracelens.network.traffic import Copies, imbalance
from tracelens.workload.expert_placement import Placement
from tracelens.workload.token_routing import UNIFORM, Assignment, Skew, check_shape, route

#: Each layer has its own hot experts: the mean over as many draws, of as many tokens each. With 64 ranks and top 8 a
#: rank then has 8,192 routings, and the busiest of 64 equal ones comes out 2.6 % above the mean.
_DRAWS, _TOKENS = 8, 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTraffic:
    """An exchange among ``ranks`` that hold equal runs of experts, per token and against an even load.

    ``rank_copies`` and ``node_copies``: distinct ranks and nodes that a token goes to, its own included.
    ``rows_imbalance``: the busiest rank's routings over the mean, which its experts multiply; ``copies_imbalance``: the
    copies that arrive at one over the mean, which its links carry. ``remote_share`` of the copies leave their rank.
    ``busiest``: how likely a token goes to each expert of the busiest rank, by draw.
    """

    ranks: int
    rank_copies: float
    node_copies: float
    rows_imbalance: float
    copies_imbalance: float
    remote_share: float
    busiest: tuple[tuple[float, ...], ...]

    @classmethod
    def of_assignment(cls, chosen: Assignment, *, experts: int, ranks: int, ranks_per_node: int) -> ExpertTraffic:
        """As an assignment [tokens, topk] has it; token i comes from rank i mod ``ranks``. UsageError as ``Copies``."""
        place = Placement.contiguous(experts, ranks).rank_of_slot
        copies = Copies.from_assignment(chosen, place, ranks=ranks, ranks_per_node=ranks_per_node)
        by_rank = copies.experts.reshape(ranks, -1)
        received = copies.per_rank.sum(axis=0)
        busiest = by_rank[by_rank.sum(axis=1).argmax()] / max(1, len(chosen))
        return cls(
            ranks=ranks,
            rank_copies=copies.mean_ranks,
            node_copies=copies.mean_nodes,
            rows_imbalance=imbalance(by_rank.sum(axis=1)),
            copies_imbalance=imbalance(received),
            remote_share=1 - float(np.trace(copies.per_rank)) / max(1.0, float(received.sum())),
            busiest=(tuple(busiest.tolist()),),
        )

    def touched(self, tokens: float) -> float:
        """Experts of the busiest rank that at least one of ``tokens`` goes to, tokens independent of each other."""
        missed = (1 - np.array(self.busiest)) ** tokens
        return float((1 - missed).sum(axis=1).mean())


@functools.cache
def expert_traffic(
    skew: Skew, *, experts: int, topk: int, ranks: int, ranks_per_node: int | None = None, seed: int = 0
) -> ExpertTraffic:
    """What to expect of ``skew``: in closed form for uniform routing, else the mean over draws of many tokens.

    ``ranks_per_node``: of this group; None: all are in one node. UsageError for experts that do not divide over ranks,
    ranks that do not fill nodes, and what ``route`` refuses.
    """
    check_shape(tokens=1, experts=experts, topk=topk)
    held = Placement.contiguous(experts, ranks).slots // ranks
    per_node = ranks if ranks_per_node is None else ranks_per_node
    if per_node < 1 or ranks % per_node:
        raise UsageError(f"{ranks} ranks do not fill nodes of {per_node} ranks")
    if skew == UNIFORM:
        return ExpertTraffic(
            ranks=ranks,
            rank_copies=float(distinct(ranks, experts, topk)),
            node_copies=float(distinct(ranks // per_node, experts, topk)),
            rows_imbalance=1.0,
            copies_imbalance=1.0,
            remote_share=(ranks - 1) / ranks,
            busiest=((topk / experts,) * held,),
        )
    drawn = [
        ExpertTraffic.of_assignment(
            route(skew, tokens=_TOKENS, experts=experts, topk=topk, seed=seed + draw),
            experts=experts,
            ranks=ranks,
            ranks_per_node=per_node,
        )
        for draw in range(_DRAWS)
    ]
    return ExpertTraffic(
        ranks=ranks,
        rank_copies=sum(each.rank_copies for each in drawn) / _DRAWS,
        node_copies=sum(each.node_copies for each in drawn) / _DRAWS,
        rows_imbalance=sum(each.rows_imbalance for each in drawn) / _DRAWS,
        copies_imbalance=sum(each.copies_imbalance for each in drawn) / _DRAWS,
        remote_share=sum(each.remote_share for each in drawn) / _DRAWS,
        busiest=tuple(busiest for each in drawn for busiest in each.busiest),
    )
