"""What an exchange answers: loads of experts and ranks, traffic, tables."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracelens.lazy.records import dataclass
from tracelens.network.traffic import Copies, Traffic, imbalance
from tracelens.routing.token_choice import Routing
from tracelens.workload.expert_placement import Placement
from tracelens.workload.original_routing import RoutingTable

#: Version of the JSON document.
SCHEMA = "tracelens.route/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteResult:
    """``summary``: figures by name. ``frames``: ``experts``, ``ranks``, ``phases`` or ``rounds``, ``layers``.

    ``traffic``: the dispatch's bytes. ``log``: the packet log of the seed rules.
    """

    summary: dict[str, Any]
    frames: dict[str, pd.DataFrame] = field(repr=False)
    traffic: Traffic = field(repr=False)
    table: RoutingTable = field(repr=False)
    log: str | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """What ``--format json`` prints."""
        return {
            "schema": SCHEMA,
            "summary": self.summary,
            **{name: frame.to_dict(orient="records") for name, frame in self.frames.items()},
            "traffic_bytes": self.traffic.wire_bytes.tolist(),
        }


def counted_loads(routing: Routing, table: RoutingTable) -> NDArray[np.integer[Any]]:
    """Tokens of each expert."""
    return np.bincount(table.experts[table.experts >= 0].ravel(), minlength=routing.experts)


def loads_summary(
    routing: Routing, table: RoutingTable, loads: NDArray[np.integer[Any]], copies: Copies, traffic: Traffic
) -> dict[str, Any]:
    tokens, topk = table.experts.shape
    hot = np.sort(loads)[::-1]
    return {
        "tokens": tokens,
        "experts": routing.experts,
        "topk": topk,
        "ranks": routing.ranks,
        "dropped_share": float((table.experts < 0).mean()),
        "expert_imbalance": imbalance(loads),
        "busiest_tenth_share": float(hot[: max(1, len(hot) // 10)].sum() / max(1, loads.sum())),
        "mean_ranks": copies.mean_ranks,
        "mean_nodes": copies.mean_nodes,
        "remote_share": traffic.remote_share,
        "rank_imbalance": imbalance(copies.per_expert.sum(axis=0)),
    }


def rank_frame(copies: Copies, better: Copies | None, traffic: Traffic) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "rank": np.arange(copies.ranks),
            "routings": copies.per_expert.sum(axis=0),
            "tokens_received": copies.per_rank.sum(axis=0),
            "sent_bytes": traffic.sent(),
            "received_bytes": traffic.received(),
        }
    )
    if better is not None:
        frame["routings_eplb"] = better.per_expert.sum(axis=0)
    return frame


def expert_frame(loads: NDArray[np.integer[Any]], place: Placement, balanced: Placement | None) -> pd.DataFrame:
    first = np.unique(place.expert_of_slot, return_index=True)[1]
    frame = pd.DataFrame({"expert": np.arange(len(loads)), "rank": place.rank_of_slot[first], "routings": loads})
    if balanced is not None:
        frame["replicas_eplb"] = np.bincount(balanced.expert_of_slot, minlength=len(loads))
    return frame
