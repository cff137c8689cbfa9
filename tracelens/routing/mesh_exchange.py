"""An exchange on a full mesh, packet by packet, in ms, with the parameters of the original simulator."""

from __future__ import annotations

import dataclasses
from dataclasses import field
from typing import Any

import pandas as pd

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.network.original_rules import simulate_seed
from tracelens.network.packets import MeshRules, PacketTimes, even_load, logged, simulate
from tracelens.network.traffic import Copies, Traffic, imbalance
from tracelens.routing.exchange import payload
from tracelens.routing.route_result import RouteResult, counted_loads, expert_frame, loads_summary, rank_frame
from tracelens.routing.token_choice import Routing
from tracelens.workload.expert_placement import Placement
from tracelens.workload.original_routing import HotExperts, RoutingTable, seed_routing


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshScenario:
    """The original simulator's parameters (reference: docs/routing.md), with what it declared and never used.

    ``unit_bytes`` travel per (token, expert); with ``hidden`` the token's vector travels too (``dtype``), and comes
    back in a combine. ``layers`` exchanges follow one another.
    """

    routing: Routing
    rules: MeshRules = field(default_factory=MeshRules)
    hot_ratio: float = 0.5
    hot_weight: float = 0.8
    unit_bytes: int = 9
    hidden: int | None = None
    dtype: DType = DType.BF16
    layers: int = 1

    def drawn_by_seed(self) -> RoutingTable:
        """The assignment as the original draws it."""
        routing = self.routing
        return seed_routing(
            tokens=routing.tokens,
            experts=routing.experts,
            topk=routing.topk,
            hot=HotExperts(ratio=self.hot_ratio, weight=self.hot_weight),
            ranks=routing.ranks,
            seed=routing.seed,
        )


def route_mesh(
    scenario: MeshScenario, *, seed_rules: bool = False, placement: Placement | None = None, log_rounds: bool = False
) -> RouteResult:
    """An exchange on the full mesh, packet by packet, in milliseconds; with ``seed_rules`` as the original plays it.

    ``log_rounds``: with a log of every round, which the original rules always have.
    """
    routing = scenario.routing
    place = placement or Placement.contiguous(routing.experts, routing.ranks)
    if seed_rules:
        _refuse_for_seed(scenario)
    is_drawn = routing.file is None and routing.skew.kind != "balanced"
    table = scenario.drawn_by_seed() if seed_rules and is_drawn else routing.drawn()
    copies = Copies.from_assignment(
        place.slot_of_token(table.experts), place.rank_of_slot, ranks=routing.ranks, rank_of_token=table.source
    )
    vector = 0.0 if scenario.hidden is None else payload(scenario.hidden, scenario.dtype).copy_bytes
    traffic = Traffic(wire_bytes=copies.per_expert * (scenario.unit_bytes + vector))
    log: str | None
    if seed_rules:
        times, log = simulate_seed((copies.per_expert * scenario.unit_bytes).tolist(), scenario.rules)
    else:
        times, log = logged(traffic, scenario.rules) if log_rounds else (simulate(traffic, scenario.rules), None)
    back = None
    if scenario.hidden is not None:
        returned = Traffic(wire_bytes=(copies.per_expert * vector).T)
        back, more = logged(returned, scenario.rules) if log_rounds else (simulate(returned, scenario.rules), None)
        log = f"DISPATCH\n{log}\nCOMBINE\n{more}" if log_rounds else None
    even = _even_mesh(traffic, scenario.rules)
    loads = counted_loads(routing, table)
    both_ms = times.time_ms + (back.time_ms if back else 0.0)
    summary = loads_summary(routing, table, loads, copies, traffic) | {
        "received_imbalance": imbalance(traffic.received()),
        "time_ms": times.time_ms,
        "rounds": times.rounds,
        "packets": times.packets,
        "moved_bytes": times.moved_bytes,
        "local_bytes": times.local_bytes,
        "even_ms": even.time_ms,
        "imbalance_ms": times.time_ms - even.time_ms,
        **_closed_form(traffic, scenario.rules, printed=seed_rules),
        "layers": scenario.layers,
        "layers_ms": scenario.layers * both_ms,
        "rules": "original" if seed_rules else "default",
    }
    phases = [_mesh_phase("dispatch", times)]
    if back is not None:
        summary["combine_ms"] = back.time_ms
        phases.append(_mesh_phase("combine", back))
    frames = {
        "phases": pd.DataFrame(phases),
        "ranks": rank_frame(copies, None, traffic),
        "experts": expert_frame(loads, place, None),
    }
    return RouteResult(summary=summary, frames=frames, traffic=traffic, table=table, log=log)


def _closed_form(traffic: Traffic, rules: MeshRules, *, printed: bool) -> dict[str, Any]:
    """The formula for an even load of as many bytes; ``printed``: the one in the original's text beside it, too."""
    found = even_load(traffic.remote_bytes / max(traffic.ranks, 1), traffic.ranks, rules)
    if found is None:
        return {}
    of_text = {"printed_round_ms": found.printed_round_ms, "printed_ms": found.printed_ms} if printed else {}
    return {
        "formula_ms": found.time_ms, "formula_rounds": found.rounds, "formula_round_ms": found.round_ms,
        "formula_is_exact": found.is_exact, **of_text,
    }  # fmt: skip


def _refuse_for_seed(scenario: MeshScenario) -> None:
    """UsageError for options that the original rules do not have: they would silently be without effect."""
    ignored = [
        name
        for name, given in (
            ("--hidden", scenario.hidden is not None),
            ("--layers", scenario.layers != 1),
            ("--inter-gb-s", scenario.rules.inter_bytes_per_ms is not None),
            ("--overlap", scenario.rules.overlap != 1),
            ("--capacity", scenario.routing.capacity is not None),
            ("--groups", scenario.routing.groups is not None),
        )
        if given
    ]
    if ignored:
        raise UsageError(f"--rules original ignores {', '.join(ignored)}; omit --rules original")


def _even_mesh(traffic: Traffic, rules: MeshRules) -> PacketTimes:
    pairs = traffic.ranks * (traffic.ranks - 1)
    return simulate(Traffic.even(round(traffic.remote_bytes / pairs) if pairs else 0.0, traffic.ranks), rules)


def _mesh_phase(name: str, times: PacketTimes) -> dict[str, Any]:
    return {"phase": name, **dataclasses.asdict(times)}
