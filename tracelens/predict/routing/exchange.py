"""Which experts tokens choose, and what their exchange costs: on switched nodes, and on a full mesh by packets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import msgspec.structs
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracelens.analysis.loaded_trace import load
from tracelens.analysis.reading.process_groups import attributes_of_calls, integers
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.predict.network.algorithms import collective_us
from tracelens.predict.network.packets import MeshRules, PacketTimes, even_load, logged, simulate
from tracelens.predict.network.ports import Exchange, Ports, PortTimes, bottleneck, simulate_ports
from tracelens.predict.network.topology import Group, Topology
from tracelens.predict.network.traffic import Copies, Payload, Traffic, imbalance
from tracelens.predict.routing.config import Dispatch
from tracelens.predict.workload import token_routing
from tracelens.predict.workload.expert_placement import Placement, eplb
from tracelens.predict.workload.token_routing import UNIFORM, RoutingTable, Skew
from tracelens.predict.workload.token_routing import route as draw
from tracelens.trace.table import Kind
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US


def recorded_split(path: Path, *, ranks: int) -> NDArray[np.float64]:
    """Elements that the trace's rank sent to each of ``ranks`` ranks (``In split size``), over all its all-to-alls.

    NothingToAnalyzeError without one that recorded its splits, UsageError when those were of groups of another size.
    """
    trace = load(path)
    total, sizes = np.zeros(ranks), set()
    calls, call = attributes_of_calls(trace.table, trace.tree, trace.table.rows_of((Kind.KERNEL,)))
    for attributes, times in zip(calls, np.bincount(call).tolist(), strict=True):
        split = integers(attributes.get("In split size"))
        if split is None:
            continue
        sizes.add(len(split))
        if len(split) == ranks:
            total += times * np.asarray(split, np.float64)
    if total.any():
        return total
    if sizes:
        raise UsageError(f"{path} recorded all-to-alls of {sorted(sizes)} ranks, not of {ranks}")
    raise NothingToAnalyzeError(f"{path} recorded no all-to-all with split sizes")


class Routing(Record, frozen=True, kw_only=True):
    """``tokens`` of all ranks together, each sent to ``topk`` of ``experts``, and how the choice is made.

    ``groups`` and ``best_groups``: group-limited gating. ``capacity``: factor beyond which an expert drops. ``file``:
    recorded routing instead of ``skew`` (``read_routing``; a folder with routing.csv and weights.csv; a
    trace with all-to-all split sizes).
    """

    tokens: int
    experts: int
    topk: int
    ranks: int
    skew: Skew = UNIFORM
    seed: int = 0
    groups: int | None = None
    best_groups: int | None = None
    capacity: float | None = None
    file: Path | None = None

    def drawn(self) -> RoutingTable:
        """The assignment, even weights, and the rank that each token comes from."""
        if self.file is not None and self.file.is_dir():
            table = RoutingTable.load(self.file, ranks=self.ranks)
            if table.source.max(initial=0) >= self.ranks or table.source.min(initial=0) < 0:
                raise UsageError(
                    f"{self.file} has tokens of rank {table.source.max()}, but there are {self.ranks} ranks"
                )
        elif self.file is not None and self.file.name.endswith((".json", ".json.gz")):
            # the contiguous experts of a rank share evenly what the trace's rank sent to it
            split = recorded_split(self.file, ranks=self.ranks)
            weights = split[Placement.contiguous(self.experts, self.ranks).rank_of_slot]
            counts = token_routing.apportion(weights, total=self.tokens * self.topk, most=self.tokens)
            table = RoutingTable.of_choices(
                token_routing.from_counts(counts, tokens=self.tokens, seed=self.seed), self.ranks
            )
        elif self.file is not None:
            table = RoutingTable.of_choices(
                token_routing.read_routing(self.file, topk=self.topk, seed=self.seed)[0], self.ranks
            )
        elif self.groups is not None:
            token_routing.check_shape(tokens=self.tokens, experts=self.experts, topk=self.topk)
            chosen = self.gated(self.skew.weights(self.experts, self.seed), self.seed)
            table = RoutingTable.of_choices(chosen, self.ranks)
        else:
            chosen = draw(self.skew, tokens=self.tokens, experts=self.experts, topk=self.topk, seed=self.seed)
            table = RoutingTable.of_choices(chosen, self.ranks)
        if table.experts.max(initial=0) >= self.experts:
            raise UsageError(f"the routing uses expert {table.experts.max()}, but there are {self.experts} experts")
        return dataclasses.replace(table, experts=self._kept(table.experts))

    def layers(self, layers: int, steps: int, drift: float) -> Iterator[tuple[int, int, RoutingTable]]:
        """(step, layer, assignment): each layer has its own hot experts, and ``drift`` of log weight is new each step.

        The tokens of recorded routing are those of its layers, one layer after the other. UsageError where they do not
        divide, or are asked to drift.
        """
        if self.file is not None:
            if steps > 1 or drift:
                raise UsageError("recorded routing does not drift: omit --steps and --drift")
            chosen = self.drawn().experts
            if len(chosen) % layers:
                raise UsageError(f"{len(chosen)} recorded tokens do not divide over {layers} layers")
            for layer, part in enumerate(np.split(chosen, layers)):
                yield 0, layer, RoutingTable.of_choices(part, self.ranks)
            return
        drawn = token_routing.drifting_weights(
            self.skew, experts=self.experts, layers=layers, steps=steps, drift=drift, seed=self.seed
        )
        for step, layer, weights in drawn:
            seed = self.seed + 1 + step * layers + layer
            if self.groups is not None:
                chosen = self.gated(weights, seed)
            else:
                chosen = token_routing.sample(weights, tokens=self.tokens, topk=self.topk, seed=seed)
            yield step, layer, RoutingTable.of_choices(self._kept(chosen), self.ranks)

    def gated(self, weights: NDArray[np.float64], seed: int) -> NDArray[np.integer[Any]]:
        """Group-limited choices under ``weights``."""
        groups = self.groups or 1
        return token_routing.route_group_limited(
            weights,
            tokens=self.tokens,
            topk=self.topk,
            groups=groups,
            best_groups=self.best_groups or groups,
            seed=seed,
        )

    def _kept(self, chosen: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        if self.capacity is None:
            return chosen
        return token_routing.with_capacity(chosen, experts=self.experts, factor=self.capacity)


#: Version of the JSON document.
SCHEMA = "tracelens.route/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteResult:
    """``summary``: figures by name. ``frames``: ``experts``, ``ranks``, ``phases`` or ``rounds``, ``layers``.

    ``traffic``: the dispatch's bytes. ``log``: the packet log of the seed rules.
    """

    summary: dict[str, Any]
    frames: dict[str, pd.DataFrame] = dataclasses.field(repr=False)
    traffic: Traffic = dataclasses.field(repr=False)
    table: RoutingTable = dataclasses.field(repr=False)
    log: str | None = dataclasses.field(default=None, repr=False)

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


#: DeepEP sends FP8 with an FP32 scale per 128 elements (its README), other types without scales.
_SCALE_BLOCK = 128
#: A simulation that the command waits for: larger exchanges use larger packets.
_MOST_PACKETS = 1_000_000


def payload(hidden: int, dtype: DType) -> Payload:
    """A token on the wire in a phase: 8-bit types with DeepEP's scales."""
    return Payload(hidden=hidden, dtype=dtype, scale_block=_SCALE_BLOCK if dtype.bits == 8 else None)


class PortScenario(Record, frozen=True, kw_only=True):
    """An expert-parallel exchange on switched nodes.

    With ``topology`` each phase also has the time of an even all-to-all of the busiest sender's bytes by the collective
    algorithms (``collective_us``). ``metadata_bytes`` go with every dispatched copy. ``way``: ``hierarchical`` sends
    one copy per destination node and forwards inside it, ``direct`` one per destination rank, ``per-expert`` one per
    chosen expert (DeepEP's low-latency kernels). ``slots`` are physical experts for EPLB; default: as many on each
    rank, one of them spare. Beyond one layer or step the assignments are ``Routing.layers`` and times the bottleneck's.
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
            msgspec.structs.force_setattr(
                self, "ports", dataclasses.replace(self.ports, ranks_per_node=self.routing.ranks)
            )

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
            slots=Placement.filled(routing.experts + 1, routing.ranks).slots if self.slots is None else self.slots,
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
    place = scenario.placement or Placement.filled(routing.experts, routing.ranks)
    copies, phases = _outcome(scenario, table, place)
    # The bottleneck of both phases if the same copies were spread evenly over all destinations
    ranks, size = copies.ranks, copies.ranks_per_node
    flat = dataclasses.replace(
        copies,
        per_expert=np.full((ranks, ranks), copies.per_expert.mean()),
        per_rank=np.full((ranks, ranks), copies.per_rank.mean()),
        per_node=np.full((ranks, ranks // size), copies.per_node.mean()),
    )
    even = sum(bottleneck(scenario.exchange(flat, form), scenario.ports).time_us for _, form in scenario.phases)
    loads = counted_loads(routing, table)
    balanced = scenario.balanced(loads)
    better, better_phases = _outcome(scenario, table, balanced, with_packets=False)
    better_us = sum(row["bottleneck_us"] for row in better_phases)
    sent = scenario.sent(copies)
    traffic = Traffic(wire_bytes=sent * scenario.phases[0][1].copy_bytes)
    phase_frame = pd.DataFrame(phases)
    if scenario.topology is not None:
        nbytes = sent.sum(axis=1).max() * phase_frame.copy_bytes.to_numpy(float)
        times, names = collective_us("all_to_all", nbytes, Group(ranks=routing.ranks), scenario.topology)
        phase_frame = phase_frame.assign(collective_us=times, collective=names)
    bottleneck_us = phase_frame.bottleneck_us.sum()
    summary = loads_summary(routing, table, loads, copies, traffic) | {
        "received_imbalance": imbalance(sent.sum(axis=0)),
        "dispatch_us": float(phase_frame.time_us[0]),
        "combine_us": float(phase_frame.time_us[1]),
        "even_us": even,
        "imbalance_us": float(bottleneck_us) - even,
        "hottest": phase_frame.hottest[0],
        "eplb_slots": balanced.slots,
        "eplb_rank_imbalance": imbalance(better.per_expert.sum(axis=0)),
        "eplb_us": float(better_us),
        "eplb_gain_us": float(bottleneck_us - better_us),
        "expected_error_percent": None,
        "way": scenario.way,
        "ranks_per_node": ports.ranks_per_node,
    }
    frames = {
        "phases": phase_frame,
        "ranks": rank_frame(copies, better, traffic),
        "experts": expert_frame(loads, place, balanced),
    }
    if scenario.layers * scenario.steps > 1:
        rows = []
        for step, layer, each in routing.layers(scenario.layers, scenario.steps, scenario.drift):
            sent_then, phases = _outcome(scenario, each, place, with_packets=False)
            row = {"step": step, "layer": layer, "rank_imbalance": imbalance(sent_then.per_expert.sum(axis=0))}
            rows.append(row | {f"{phase['phase']}_us": phase["bottleneck_us"] for phase in phases})
        frames["layers"] = pd.DataFrame(rows)
        summary["layers_us"] = float(frames["layers"][["dispatch_us", "combine_us"]].to_numpy(float).sum())
    return RouteResult(summary=summary, frames=frames, traffic=traffic, table=table)


def _outcome(
    scenario: PortScenario, table: RoutingTable, place: Placement, *, with_packets: bool = True
) -> tuple[Copies, list[dict[str, Any]]]:
    """Copies between ranks, and a row per phase."""
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
            # so large that no more than ``_MOST_PACKETS`` are simulated
            total = float((exchange.inside + exchange.network + exchange.forwarded).sum())
            large = dataclasses.replace(ports, packet_bytes=max(ports.packet_bytes, total / _MOST_PACKETS))
            row |= _simulated(scenario.sent(copies), exchange, form, large, lower)
        rows.append(row)
    return copies, rows


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


class MeshScenario(Record, frozen=True, kw_only=True):
    """The original simulator's parameters (docs/routing.md), with what it declared and never used.

    ``unit_bytes`` travel per (token, expert); with ``hidden`` the token's vector travels too (``dtype``), and comes
    back in a combine. ``layers`` exchanges follow one another.
    """

    routing: Routing
    rules: MeshRules = msgspec.field(default_factory=MeshRules)
    hot_ratio: float = 0.5
    hot_weight: float = 0.8
    unit_bytes: int = 9
    hidden: int | None = None
    dtype: DType = DType.BF16
    layers: int = 1

    def drawn_by_seed(self) -> RoutingTable:
        """The assignment as the original draws it."""
        from tracelens.laboratory.original_rules import seed_routing

        routing = self.routing
        return seed_routing(
            tokens=routing.tokens, experts=routing.experts, topk=routing.topk, hot=(self.hot_ratio, self.hot_weight),
            ranks=routing.ranks, seed=routing.seed,
        )  # fmt: skip


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

    def play(moved: Traffic) -> tuple[PacketTimes, str | None]:
        return logged(moved, scenario.rules) if log_rounds else (simulate(moved, scenario.rules), None)

    if seed_rules:
        from tracelens.laboratory.original_rules import simulate_seed

        times, log = simulate_seed((copies.per_expert * scenario.unit_bytes).tolist(), scenario.rules)
    else:
        times, log = play(traffic)
    back = None
    if scenario.hidden is not None:
        back, more = play(Traffic(wire_bytes=(copies.per_expert * vector).T))
        log = f"DISPATCH\n{log}\nCOMBINE\n{more}" if log_rounds else None
    even, sent_each = _even_mesh(traffic, scenario.rules), traffic.remote_bytes / max(traffic.ranks, 1)
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
        **even_load(sent_each, traffic.ranks, scenario.rules, printed=seed_rules),
        "layers": scenario.layers,
        "layers_ms": scenario.layers * both_ms,
        "rules": "original" if seed_rules else "default",
    }
    played = {"dispatch": times}
    if back is not None:
        summary["combine_ms"] = back.time_ms
        played["combine"] = back
    frames = {
        "phases": pd.DataFrame([{"phase": name, **dataclasses.asdict(each)} for name, each in played.items()]),
        "ranks": rank_frame(copies, None, traffic),
        "experts": expert_frame(loads, place, None),
    }
    return RouteResult(summary=summary, frames=frames, traffic=traffic, table=table, log=log)


def _even_mesh(traffic: Traffic, rules: MeshRules) -> PacketTimes:
    pairs = traffic.ranks * (traffic.ranks - 1)
    return simulate(Traffic.even(round(traffic.remote_bytes / pairs) if pairs else 0.0, traffic.ranks), rules)


def _refuse_for_seed(scenario: MeshScenario) -> None:
    """UsageError for options that the original rules do not have: they would silently be without effect."""
    given = {
        "--hidden": scenario.hidden is not None,
        "--layers": scenario.layers != 1,
        "--inter-gb-s": scenario.rules.inter_bytes_per_ms is not None,
        "--overlap": scenario.rules.overlap != 1,
        "--capacity": scenario.routing.capacity is not None,
        "--groups": scenario.routing.groups is not None,
    }
    if ignored := [name for name, is_given in given.items() if is_given]:
        raise UsageError(f"--rules original ignores {', '.join(ignored)}; omit --rules original")
