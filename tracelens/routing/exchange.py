"""An expert-parallel exchange on switched nodes, in us: the bottleneck port, packets, what EPLB would gain."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.network.algorithms import collective_us
from tracelens.network.ports import Exchange, Ports, PortTimes, bottleneck, simulate_ports
from tracelens.network.topology import Group, Topology
from tracelens.network.traffic import Copies, Payload, Traffic, imbalance
from tracelens.routing.config import Dispatch
from tracelens.routing.route_result import RouteResult, counted_loads, expert_frame, loads_summary, rank_frame
from tracelens.routing.token_choice import Routing
from tracelens.units import GB_PER_S_IN_BYTES_PER_US
from tracelens.workload.expert_placement import Placement, eplb
from tracelens.workload.original_routing import RoutingTable

#: DeepEP sends FP8 with an FP32 scale per 128 elements (its README), other types without scales.
_SCALE_BLOCK = 128


#: A simulation that the command waits for: larger exchanges use larger packets.
_MOST_PACKETS = 1_000_000


def payload(hidden: int, dtype: DType) -> Payload:
    """A token on the wire in a phase: 8-bit types with DeepEP's scales."""
    is_scaled = dtype.bits == 8
    return Payload(hidden=hidden, dtype=dtype, scale_block=_SCALE_BLOCK if is_scaled else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortScenario:
    """An expert-parallel exchange on switched nodes.

    With ``topology`` each phase also has the time of an even all-to-all of the busiest sender's bytes by the collective
    algorithms (``collective_us``). ``metadata_bytes`` go with every dispatched copy. ``way``: ``hierarchical`` sends
    one copy per destination node and forwards inside it, ``direct`` one per destination rank, ``per-expert`` one per
    chosen expert (DeepEP's low-latency kernels). ``slots`` (default: one spare per rank) are physical experts for
    EPLB. Beyond one layer or step the assignments are ``Routing.layers`` and times the bottleneck's.
    UsageError where figures do not fit.
    """

    routing: Routing
    ports: Ports
    topology: Topology | None = None
    hidden: int = 7168
    dispatch_dtype: DType = DType.FP8_E4M3FN
    combine_dtype: DType = DType.BF16
    metadata_bytes: float = 0.0
    placement: Placement | None = None
    way: Dispatch = "hierarchical"
    slots: int | None = None
    layers: int = 1
    steps: int = 1
    drift: float = 0.0

    def __post_init__(self) -> None:
        if self.layers < 1 or self.steps < 1:
            raise UsageError(f"layers and steps must be at least 1, got {self.layers} and {self.steps}")
        if self.drift and self.steps == 1:
            raise UsageError("--drift needs --steps")
        if self.routing.ranks < self.ports.ranks_per_node:
            object.__setattr__(self, "ports", dataclasses.replace(self.ports, ranks_per_node=self.routing.ranks))

    @property
    def phases(self) -> tuple[tuple[str, Payload], ...]:
        """What a copy of a token is on the wire, there and back."""
        dispatched = dataclasses.replace(payload(self.hidden, self.dispatch_dtype), metadata_bytes=self.metadata_bytes)
        return ("dispatch", dispatched), ("combine", payload(self.hidden, self.combine_dtype))

    def balanced(self, loads: NDArray[np.integer[Any]]) -> Placement:
        """Where EPLB puts experts of these ``loads``."""
        routing = self.routing
        return eplb(
            loads,
            slots=routing.experts + routing.ranks if self.slots is None else self.slots,
            ranks=routing.ranks,
            nodes=routing.ranks // self.ports.ranks_per_node,
            groups=routing.groups or 1,
        )

    def exchange(self, copies: Copies, form: Payload) -> Exchange:
        """What passes the ports in a phase."""
        if self.way == "hierarchical":
            return Exchange.hierarchical(copies, form.copy_bytes)
        return Exchange.direct(Traffic(wire_bytes=self.sent(copies) * form.copy_bytes), copies.ranks_per_node)

    def sent(self, copies: Copies) -> NDArray[np.int64]:
        """Copies from rank to rank, those that stay included."""
        return copies.per_expert if self.way == "per-expert" else copies.per_rank


def route_ports(scenario: PortScenario) -> RouteResult:
    """Loads, traffic and times of an exchange on switched nodes, and what EPLB would gain."""
    routing, ports = scenario.routing, scenario.ports
    table = routing.drawn()
    place = scenario.placement or Placement.contiguous(routing.experts, routing.ranks)
    outcome = _outcome(scenario, table, place)
    even = _even_us(scenario, outcome.copies)
    loads = counted_loads(routing, table)
    balanced = scenario.balanced(loads)
    better = _outcome(scenario, table, balanced, with_packets=False)
    better_us = sum(row["bottleneck_us"] for row in better.phases)
    sent = scenario.sent(outcome.copies)
    traffic = Traffic(wire_bytes=sent * scenario.phases[0][1].copy_bytes)
    phase_frame = pd.DataFrame(outcome.phases)
    if scenario.topology is not None:
        nbytes = sent.sum(axis=1).max() * phase_frame.copy_bytes.to_numpy(float)
        times, names = collective_us("all_to_all", nbytes, Group(ranks=routing.ranks), scenario.topology)
        phase_frame = phase_frame.assign(collective_us=times, collective=names)
    bottleneck_us = phase_frame.bottleneck_us.sum()
    summary = loads_summary(routing, table, loads, outcome.copies, traffic) | {
        "received_imbalance": imbalance(sent.sum(axis=0)),
        "dispatch_us": float(phase_frame.time_us[0]),
        "combine_us": float(phase_frame.time_us[1]),
        "even_us": even,
        "imbalance_us": float(bottleneck_us) - even,
        "hottest": phase_frame.hottest[0],
        "eplb_slots": balanced.slots,
        "eplb_rank_imbalance": imbalance(better.copies.per_expert.sum(axis=0)),
        "eplb_us": float(better_us),
        "eplb_gain_us": float(bottleneck_us - better_us),
        "expected_error_percent": None,
        "way": scenario.way,
        "ranks_per_node": ports.ranks_per_node,
    }
    frames = {
        "phases": phase_frame,
        "ranks": rank_frame(outcome.copies, better.copies, traffic),
        "experts": expert_frame(loads, place, balanced),
    }
    if scenario.layers * scenario.steps > 1:
        frames["layers"] = _layer_frame(scenario, place)
        summary["layers_us"] = float(frames["layers"][["dispatch_us", "combine_us"]].to_numpy(float).sum())
    return RouteResult(summary=summary, frames=frames, traffic=traffic, table=table)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    copies: Copies
    phases: list[dict[str, Any]]


def _outcome(scenario: PortScenario, table: RoutingTable, place: Placement, *, with_packets: bool = True) -> _Outcome:
    ports = scenario.ports
    copies = Copies.from_assignment(
        place.slot_of_token(table.experts),
        place.rank_of_slot,
        ranks=place.ranks,
        ranks_per_node=ports.ranks_per_node,
        rank_of_token=table.source,
    )
    rows = []
    for name, form in scenario.phases:
        exchange = scenario.exchange(copies, form)
        lower = bottleneck(exchange, ports)
        row: dict[str, Any] = {
            "phase": name,
            "dtype": form.dtype.label,
            "copy_bytes": form.copy_bytes,
            "bottleneck_us": lower.time_us,
        }
        if with_packets:
            row |= _simulated(scenario.sent(copies), exchange, form, _with_packets(exchange, ports), lower)
        rows.append(row)
    return _Outcome(copies=copies, phases=rows)


def _simulated(
    sent: NDArray[np.int64], exchange: Exchange, form: Payload, ports: Ports, lower: PortTimes
) -> dict[str, Any]:
    """Packet times and rates per rank: effective over the whole time, true over the busiest port's own."""
    times = simulate_ports(exchange, ports)
    logical = float(sent.sum()) * form.copy_bytes / len(sent)
    remote = logical - float(np.trace(sent)) * form.copy_bytes / len(sent)

    def gb_s(nbytes: float, time_us: float) -> float:
        return nbytes / time_us / GB_PER_S_IN_BYTES_PER_US if time_us else 0.0

    return {
        "time_us": times.time_us,
        "packets": times.packets,
        "packet_bytes": ports.packet_bytes,
        "hottest": f"{lower.hottest_kind} {lower.hottest_index}",
        "hottest_us": lower.hottest_us,
        "logical_effective_gb_s": gb_s(logical, times.time_us),
        "remote_effective_gb_s": gb_s(remote, times.time_us),
        "logical_true_gb_s": gb_s(logical, lower.hottest_us),
        "remote_true_gb_s": gb_s(remote, lower.hottest_us),
    }


def _with_packets(exchange: Exchange, ports: Ports) -> Ports:
    """Packets so large that no more than ``_MOST_PACKETS`` are simulated."""
    total = float((exchange.inside + exchange.network + exchange.forwarded).sum())
    return dataclasses.replace(ports, packet_bytes=max(ports.packet_bytes, total / _MOST_PACKETS))


def _even_us(scenario: PortScenario, copies: Copies) -> float:
    """Bottleneck of both phases if the same copies were spread evenly over all destinations."""
    ranks, size = copies.ranks, copies.ranks_per_node
    flat = dataclasses.replace(
        copies,
        per_expert=np.full((ranks, ranks), copies.per_expert.mean()),
        per_rank=np.full((ranks, ranks), copies.per_rank.mean()),
        per_node=np.full((ranks, ranks // size), copies.per_node.mean()),
    )
    return sum(bottleneck(scenario.exchange(flat, form), scenario.ports).time_us for _, form in scenario.phases)


def _layer_frame(scenario: PortScenario, place: Placement) -> pd.DataFrame:
    rows = []
    for step, layer, table in scenario.routing.layers(scenario.layers, scenario.steps, scenario.drift):
        outcome = _outcome(scenario, table, place, with_packets=False)
        rows.append(
            {
                "step": step,
                "layer": layer,
                "rank_imbalance": imbalance(outcome.copies.per_expert.sum(axis=0)),
                **{f"{row['phase']}_us": row["bottleneck_us"] for row in outcome.phases},
            }
        )
    return pd.DataFrame(rows)
