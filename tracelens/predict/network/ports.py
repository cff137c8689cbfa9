"""Packets through the ports of switched tiers: a rank's link inside its node, the network cards between nodes.

Every port serves one packet at a time, first come first served, and sends and receives apart. Between nodes a packet
goes straight to its destination's card, or to the rank with the source's place in the destination's node, which
forwards it over the node's links (as DeepEP's normal kernels do).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import UsageError
from tracelens.predict.network.topology import Topology
from tracelens.predict.network.traffic import Copies, Floats, Traffic, filled_nodes
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US

#: More would not fit in memory: 2 GB hold about this many.
MOST_PACKETS = 20_000_000
_KINDS = ("network send", "network receive", "link send", "link receive")


class Ports(Record, frozen=True, kw_only=True):
    """The ports of a cluster. Rates GB/s in one direction, of one rank's link and of one network card; times us.

    ``ranks_per_card`` neighbouring ranks share a card. A turn sends at most ``packets_per_turn`` packets of at most
    ``packet_bytes`` to one destination; preparing one takes ``packet_us``, which with ``overlap`` x hides in part: both
    together take 1/x of their sum, never less than the longer.
    """

    ranks_per_node: int
    link_gb_s: float
    card_gb_s: float
    ranks_per_card: int = 1
    link_us: float = 0.0
    card_us: float = 0.0
    packet_bytes: float = 32768
    packet_us: float = 0.0
    packets_per_turn: int = 1
    overlap: float = 1.0
    initial_us: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ranks_per_node", "link_gb_s", "card_gb_s", "ranks_per_card", "packet_bytes", "packets_per_turn"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("link_us", "card_us", "packet_us", "initial_us"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not self.overlap >= 1:
            raise UsageError(f"overlap must be at least 1 (nothing overlaps), got {self.overlap}")

    @classmethod
    def of_topology(cls, topology: Topology) -> Ports:
        """A node's links and cards at what an all-to-all reaches on them (else the peak), with a hop's latency each.

        A mesh node counts as a switch. UsageError without the number of ranks in a node.
        """
        node = topology.tiers[0]
        if node.ranks is None:
            raise UsageError("the topology does not define the number of ranks per node")
        outer = topology.tiers[1] if len(topology.tiers) > 1 else node
        cards = outer.cards if len(topology.tiers) > 1 else node.ranks
        protocol = topology.protocols[-1]
        return cls(
            ranks_per_node=node.ranks,
            link_gb_s=node.link.rates.of("all_to_all"),
            card_gb_s=outer.link.rates.of("all_to_all") * max(1.0, cards / node.ranks),
            ranks_per_card=max(1, node.ranks // cards),
            link_us=node.link.protocol(protocol).hop_us,
            card_us=outer.link.protocol(protocol).hop_us,
        )


class Exchange(Record, frozen=True, kw_only=True):
    """Bytes by the way they take, each [rank, rank].

    ``inside``: source to destination in one node. ``network``: across nodes, from the sending to the receiving card's
    rank. ``forwarded[src, dst]``: bytes of ``src`` that the receiving rank in dst's node passes on to ``dst``.
    """

    inside: Floats
    network: Floats
    forwarded: Floats
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        return len(self.inside)

    @classmethod
    def direct(cls, traffic: Traffic, ranks_per_node: int) -> Exchange:
        """Every pair over its own way, nothing forwarded."""
        same = _same_node(traffic.ranks, ranks_per_node)
        remote = traffic.remote
        return cls(
            inside=np.where(same, remote, 0.0),
            network=np.where(same, 0.0, remote),
            forwarded=np.zeros_like(remote),
            ranks_per_node=ranks_per_node,
        )

    @classmethod
    def hierarchical(cls, copies: Copies, copy_bytes: float) -> Exchange:
        """One copy per destination node to the source's counterpart there, which makes one per destination rank."""
        ranks, size = copies.ranks, copies.ranks_per_node
        same = _same_node(ranks, size)
        rank_bytes = copies.per_rank * copy_bytes
        np.fill_diagonal(rank_bytes, 0.0)
        source = np.arange(ranks)
        network = np.zeros((ranks, ranks))
        for node in range(ranks // size):
            far = source // size != node
            network[source[far], node * size + source[far] % size] = copies.per_node[far, node] * copy_bytes
        arrives = (source[:, None] % size) == (source[None, :] % size)
        return cls(
            inside=np.where(same, rank_bytes, 0.0),
            network=network,
            forwarded=np.where(same | arrives, 0.0, rank_bytes),
            ranks_per_node=size,
        )

    def loads(self, ports: Ports) -> dict[str, Floats]:
        """Bytes through each port: ``network send`` and ``receive`` by card, ``link send`` and ``receive`` by rank."""
        cards = np.arange(0, self.ranks, ports.ranks_per_card)
        forwarding = np.zeros(self.ranks)
        np.add.at(forwarding, self._forwarder(), self.forwarded)
        return {
            "network send": np.add.reduceat(self.network.sum(axis=1), cards),
            "network receive": np.add.reduceat(self.network.sum(axis=0), cards),
            "link send": self.inside.sum(axis=1) + forwarding,
            "link receive": self.inside.sum(axis=0) + self.forwarded.sum(axis=0),
        }

    def _forwarder(self) -> NDArray[np.intp]:
        """[src, dst]: the rank in dst's node that stands where src stands in its own."""
        rank = np.arange(self.ranks)
        return (rank[None, :] // self.ranks_per_node) * self.ranks_per_node + rank[:, None] % self.ranks_per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class PortTimes:
    """``time_us`` of an exchange, and the port that has most to do: its kind, its number, its busy time."""

    time_us: float
    packets: int
    hottest_kind: str
    hottest_index: int
    hottest_us: float
    busy_us: dict[str, Floats] = dataclasses.field(repr=False)


def bottleneck(exchange: Exchange, ports: Ports) -> PortTimes:
    """Lower bound: each kind of port is busy at its full rate, and what leaves it last is on its way for a latency."""
    busy, arrives_us = {}, 0.0
    for kind, load in exchange.loads(ports).items():
        is_card = kind.startswith("network")
        busy[kind] = load / ((ports.card_gb_s if is_card else ports.link_gb_s) * GB_PER_S_IN_BYTES_PER_US)
        if load.any():
            latency = ports.card_us if is_card else ports.link_us
            arrives_us = max(arrives_us, float(busy[kind].max()) + latency)
    kind = max(_KINDS, key=lambda k: float(busy[k].max(initial=0.0)))
    index = int(np.argmax(busy[kind]))
    longest = float(busy[kind][index])
    return PortTimes(
        time_us=ports.initial_us + arrives_us, packets=0, hottest_kind=kind, hottest_index=index,
        hottest_us=longest, busy_us=busy,
    )  # fmt: skip


def simulate_ports(exchange: Exchange, ports: Ports) -> PortTimes:
    """Every packet through every port on its way; the time is when the last one has arrived.

    A source takes its destinations in turn, starting with its neighbour, so that an even load never meets at a port. A
    receiving port takes a packet in while it is still being sent; a forwarding rank has it whole before it sends on. A
    combine is its dispatch run backwards and takes as long. UsageError beyond ``MOST_PACKETS`` packets.
    """
    ranks = exchange.ranks
    outer = _Packets(exchange.network, ports, ports.card_gb_s)
    count = outer.count + int(np.ceil((exchange.inside + exchange.forwarded) / ports.packet_bytes).sum())
    if count > MOST_PACKETS:
        raise UsageError(
            f"{count:,} packets are more than {MOST_PACKETS:,}; make packets larger than {ports.packet_bytes:g}"
        )
    card = np.arange(ranks) // ports.ranks_per_card
    start = np.zeros(outer.count)
    left = _served(card[outer.source], start, outer.sending_us, tie=outer.order)
    # a packet is received while it is being sent, so what counts is when its sending began
    arrived = _served(card[outer.target], left - outer.service_us + ports.card_us, outer.service_us, tie=outer.order)

    inner = _Packets(exchange.inside, ports, ports.link_gb_s)
    onward = _Packets(exchange.forwarded, ports, ports.link_gb_s)
    forwarder = exchange._forwarder()[onward.source, onward.target]
    ready = np.concatenate((np.zeros(inner.count), onward.ready_after(outer, arrived, forwarder)))
    sender, target = np.concatenate((inner.source, forwarder)), np.concatenate((inner.target, onward.target))
    service = np.concatenate((inner.service_us, onward.service_us))
    sending = np.concatenate((inner.sending_us, onward.service_us))
    order = np.concatenate((inner.order, onward.order))
    left = _served(sender, ready, sending, tie=order)
    received = _served(target, left - service + ports.link_us, service, tie=order)
    lower = bottleneck(exchange, ports)
    last = max(float(arrived.max(initial=0.0)), float(received.max(initial=0.0)))
    return replace(lower, time_us=ports.initial_us + last, packets=count)


class _Packets:
    """The packets of a matrix of bytes, source by source in the order of its turns."""

    def __init__(self, matrix: Floats, ports: Ports, gb_s: float) -> None:
        ranks = len(matrix)
        source, target = np.nonzero(matrix)
        nbytes = matrix[source, target]
        per_flow = np.ceil(nbytes / ports.packet_bytes).astype(np.int64)
        self.count = int(per_flow.sum())
        if self.count > MOST_PACKETS:
            self.source = self.target = np.zeros(0, np.intp)
            return
        first = np.cumsum(per_flow) - per_flow
        flow = np.repeat(np.arange(len(source)), per_flow)
        number = np.arange(self.count) - first[flow]
        size = np.full(self.count, float(ports.packet_bytes))
        last = first + per_flow - 1
        size[last] = nbytes - (per_flow - 1) * ports.packet_bytes
        turn = number // ports.packets_per_turn
        hop = (target - source) % ranks
        self.order = (turn * (ranks - 1) + hop[flow]) * ports.packets_per_turn + number
        self.source, self.target = source[flow], target[flow]
        self.number, self.of_flow = number, per_flow[flow]
        self.first = np.full((ranks, ranks), -1, np.int64)
        self.first[source, target] = first
        self.per_pair = np.zeros((ranks, ranks), np.int64)
        self.per_pair[source, target] = per_flow
        self.service_us = size / (gb_s * GB_PER_S_IN_BYTES_PER_US)
        prepare = ports.packet_us
        self.sending_us = np.maximum(np.maximum(self.service_us, prepare), (self.service_us + prepare) / ports.overlap)

    def ready_after(self, outer: _Packets, arrived: Floats, forwarder: NDArray[np.intp]) -> Floats:
        """When each packet can be forwarded: after the part of the flow across the network that holds it."""
        if not self.count:
            return np.zeros(0)
        crossed = outer.per_pair[self.source, forwarder]
        within = -(-(self.number + 1) * crossed // self.of_flow) - 1
        return np.asarray(arrived[outer.first[self.source, forwarder] + within])


def _served(server: NDArray[np.intp], ready: Floats, service: Floats, *, tie: NDArray[np.int64]) -> Floats:
    """When each packet is done at its server, first come first served; of those ready together the lowest ``tie``.

    In the order of service: done_i = S_i + max over j <= i of (ready_j - S_(j-1)), with S the running sum of service.
    """
    # servers are few: 16-bit keys sort by radix, and a server's own packets fit the cache
    by_server = np.argsort(server.astype(np.min_scalar_type(server.max(initial=0))), kind="stable")
    done = np.empty(len(ready))
    begin = 0
    for end in np.cumsum(np.bincount(server)).tolist():
        part = by_server[begin:end]
        part = part[np.argsort(tie[part], kind="stable")]
        arrival = ready[part]
        if arrival.any():
            earliest = np.argsort(arrival, kind="stable")
            part, arrival = part[earliest], arrival[earliest]
        own = service[part]
        total = np.cumsum(own)
        done[part] = total + np.maximum.accumulate(arrival - total + own)
        begin = end
    return done


def _same_node(ranks: int, ranks_per_node: int) -> NDArray[np.bool_]:
    node = np.repeat(np.arange(filled_nodes(ranks, ranks_per_node)), ranks_per_node)
    return np.asarray(node[:, None] == node[None, :])
