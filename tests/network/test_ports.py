"""Packets through switched tiers: even loads give the closed form, forwarding counts, lower bounds hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.network import ports
from tracelens.predict.network.ports import Exchange, Ports, bottleneck, simulate_ports
from tracelens.predict.network.topology import Protocol, Rates, Tier, TierLink, Topology
from tracelens.predict.network.traffic import Copies, Traffic

PORTS = Ports(ranks_per_node=4, link_gb_s=100, card_gb_s=25, packet_bytes=1000)


def copies_of(seed, *, ranks=8, size=4, tokens=200, experts=16, topk=3):
    chosen = np.random.default_rng(seed).integers(0, experts, (tokens, topk))
    return Copies.from_assignment(chosen, np.arange(experts) * ranks // experts, ranks=ranks, ranks_per_node=size)


def served(packets):
    """When each (server, ready, service, tie) is done: the server takes the one that is ready first."""
    free, done = defaultdict(float), [0.0] * len(packets)
    for at in sorted(range(len(packets)), key=lambda at: (packets[at][1], packets[at][3])):
        server, ready, service, _ = packets[at]
        done[at] = free[server] = max(free[server], ready) + service
    return done


def one_by_one(exchange, ports):
    """(packets, time) of an exchange, packet by packet. Each is (source, target, number, in its flow, service, turn)."""

    def packets(matrix, gb_s):
        for source, target in np.argwhere(matrix).tolist():
            nbytes, size = matrix[source, target], ports.packet_bytes
            count = int(-(-nbytes // size))
            for number in range(count):
                service = min(size, nbytes - number * size) / (gb_s * 1000)
                turn = number // ports.packets_per_turn, (target - source) % len(matrix), number
                yield source, target, number, count, service, turn

    def sending(service):
        return max(service, ports.packet_us, (service + ports.packet_us) / ports.overlap)

    card, size = ports.ranks_per_card, ports.ranks_per_node
    across = list(packets(exchange.network, ports.card_gb_s))
    left = served([(source // card, 0.0, sending(took), turn) for source, _, _, _, took, turn in across])
    arrived = served(
        [(p[1] // card, at - p[4] + ports.card_us, p[4], p[5]) for p, at in zip(across, left, strict=True)]
    )
    crossing = defaultdict(list)
    for packet, at in zip(across, arrived, strict=True):
        crossing[packet[:2]].append(at)
    inner, onward = (list(packets(matrix, ports.link_gb_s)) for matrix in (exchange.inside, exchange.forwarded))
    jobs = [(source, 0.0, sending(took), turn) for source, _, _, _, took, turn in inner]
    for source, target, number, count, took, turn in onward:
        forwarder = target // size * size + source % size
        parts = crossing[source, forwarder]
        # of its flow (number + 1) / count must have come across
        whole = next(at for part, at in enumerate(parts, 1) if part * count >= (number + 1) * len(parts))
        jobs.append((forwarder, whole, took, turn))
    left = served(jobs)
    received = served(
        [(p[1], at - p[4] + ports.link_us, p[4], p[5]) for p, at in zip(inner + onward, left, strict=True)]
    )
    return len(across) + len(jobs), ports.initial_us + max((*arrived, *received), default=0.0)


def test_an_even_load_inside_a_node_gives_the_closed_form():
    # 3 peers * 50,000 bytes / 100,000 bytes per us
    exchange = Exchange.direct(Traffic.even(50_000, 4), 4)
    assert simulate_ports(exchange, PORTS).time_us == pytest.approx(1.5)
    assert bottleneck(exchange, PORTS).time_us == pytest.approx(1.5)


def test_latency_and_preparation_come_on_top():
    ports = replace(PORTS, link_us=2.0, initial_us=1.0, packet_us=0.01)
    # 150 packets of 0.01 us each, prepared for 0.01 us each
    assert simulate_ports(Exchange.direct(Traffic.even(50_000, 4), 4), ports).time_us == pytest.approx(1 + 2 + 3.0)
    hidden = replace(ports, overlap=2)
    assert simulate_ports(Exchange.direct(Traffic.even(50_000, 4), 4), hidden).time_us == pytest.approx(1 + 2 + 1.5)


def test_a_node_gets_one_copy_and_makes_one_per_rank():
    # rank 0 of node 0 sends one token to ranks 5 and 6 of node 1: across once, to rank 4, which forwards twice
    copies = Copies.from_assignment(
        np.array([[5, 6]]), np.arange(8), ranks=8, ranks_per_node=4, rank_of_token=np.array([0])
    )
    exchange = Exchange.hierarchical(copies, 100.0)
    assert exchange.network[0, 4] == exchange.network.sum() == 100
    assert exchange.loads(PORTS)["link send"].tolist() == [0, 0, 0, 0, 200, 0, 0, 0]
    assert exchange.loads(PORTS)["link receive"].tolist() == [0, 0, 0, 0, 0, 100, 100, 0]
    # across in 100/25,000 us, then two copies of 100/100,000 us one after the other
    assert simulate_ports(exchange, PORTS).time_us == pytest.approx(0.004 + 0.002)


def test_the_rank_that_faces_the_source_needs_no_forwarding():
    copies = Copies.from_assignment(
        np.array([[4]]), np.arange(8), ranks=8, ranks_per_node=4, rank_of_token=np.array([0])
    )
    exchange = Exchange.hierarchical(copies, 100.0)
    assert (exchange.network[0, 4], exchange.forwarded.sum()) == (100, 0)


@given(seed=st.integers(0, 500), packet=st.sampled_from([100.0, 700.0, 5000.0]), turn=st.integers(1, 4))
@settings(max_examples=examples(40), deadline=None)
def test_no_exchange_is_faster_than_its_busiest_port(seed, packet, turn):
    copies = copies_of(seed)
    ports = replace(PORTS, packet_bytes=packet, packets_per_turn=turn)
    for exchange in (
        Exchange.hierarchical(copies, 512.0),
        Exchange.direct(Traffic(wire_bytes=copies.per_rank * 512.0), 4),
    ):
        assert simulate_ports(exchange, ports).time_us >= bottleneck(exchange, ports).time_us - 1e-9


@given(
    seed=st.integers(0, 500),
    tokens=st.integers(0, 60),
    packet=st.sampled_from([125, 375, 2000]),
    turn=st.integers(1, 3),
    per_card=st.sampled_from([1, 2]),
    packet_us=st.sampled_from([0.0, 0.5]),
    overlap=st.sampled_from([1.0, 2.0]),
)
@settings(max_examples=examples(50), deadline=None)
def test_it_is_what_sending_packet_by_packet_gives(seed, tokens, packet, turn, per_card, packet_us, overlap):
    # rates, sizes and delays whose times are exact in binary, so that packets meet as they do on paper
    ports = Ports(
        ranks_per_node=2, link_gb_s=1, card_gb_s=0.5, packet_bytes=packet, packets_per_turn=turn,
        ranks_per_card=per_card, packet_us=packet_us, overlap=overlap, link_us=0.5, card_us=1.25, initial_us=3,
    )  # fmt: skip
    copies = copies_of(seed, ranks=6, size=2, tokens=tokens, experts=12)
    for exchange in (
        Exchange.hierarchical(copies, 500.0),
        Exchange.direct(Traffic(wire_bytes=copies.per_expert * 250.0), 2),
    ):
        found = simulate_ports(exchange, ports)
        assert (found.packets, found.time_us) == one_by_one(exchange, ports)


@given(seed=st.integers(0, 500))
@settings(max_examples=20, deadline=None)
def test_what_is_sent_is_received_and_every_copy_arrives(seed):
    copies = copies_of(seed)
    away = copies.per_rank.sum(axis=0) - np.diag(copies.per_rank)
    for exchange, wanted in (
        (Exchange.hierarchical(copies, 512.0), 512.0 * away),
        (Exchange.direct(Traffic(wire_bytes=copies.per_rank * 512.0), 4), 512.0 * away),
    ):
        loads = exchange.loads(PORTS)
        assert loads["network send"].sum() == loads["network receive"].sum() == exchange.network.sum()
        assert loads["link send"].sum() == loads["link receive"].sum()
        # off the card, what is for the rank itself is there; the rest went over the node's links
        facing = np.arange(8)[:, None] % 4 == np.arange(8)[None, :] % 4
        straight = exchange.network if not exchange.forwarded.any() else facing * copies.per_rank * 512.0
        np.fill_diagonal(straight, 0.0)
        assert (loads["link receive"] + straight.sum(axis=0)).tolist() == wanted.tolist()
        # one port of each kind is the busiest: its bytes over its rate
        busiest = max(loads[kind].max() / (25_000 if "network" in kind else 100_000) for kind in loads)
        found = bottleneck(exchange, replace(PORTS, card_us=2, link_us=2, initial_us=1))
        assert (found.hottest_us, found.time_us) == (pytest.approx(busiest), pytest.approx(1 + busiest + 2))
        assert loads[found.hottest_kind][found.hottest_index] == loads[found.hottest_kind].max()


def test_ports_are_those_of_the_topology():
    simple = Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=1.0)
    node = TierLink(rates=Rates(peak_gb_s=450, all_to_all_gb_s=300), protocols=(simple,))
    network = TierLink(rates=Rates(peak_gb_s=50, all_gather_gb_s=40), protocols=(replace(simple, hop_us=7),))

    def ports(cards):
        return Ports.of_topology(
            Topology(tiers=(Tier(ranks=8, link=node), Tier(ranks=None, cards=cards, link=network)))
        )

    assert ports(8) == Ports(ranks_per_node=8, link_gb_s=300, card_gb_s=40, link_us=2, card_us=7)
    assert ports(2) == Ports(ranks_per_node=8, link_gb_s=300, card_gb_s=40, link_us=2, card_us=7, ranks_per_card=4)
    # two cards of a rank are one of twice the rate
    assert ports(16) == Ports(ranks_per_node=8, link_gb_s=300, card_gb_s=80, link_us=2, card_us=7)
    alone = Ports.of_topology(Topology(tiers=(Tier(ranks=8, link=node),)))
    assert alone == Ports(ranks_per_node=8, link_gb_s=300, card_gb_s=300, link_us=2, card_us=2)
    with pytest.raises(UsageError, match="does not define the number of ranks per node"):
        Ports.of_topology(Topology(tiers=(Tier(ranks=None, link=node),)))


@given(seed=st.integers(0, 200))
@settings(max_examples=20, deadline=None)
def test_a_wider_card_is_never_slower_at_the_bottleneck(seed):
    exchange = Exchange.hierarchical(copies_of(seed), 512.0)
    assert bottleneck(exchange, replace(PORTS, card_gb_s=50)).time_us <= bottleneck(exchange, PORTS).time_us


def test_a_faster_link_is_never_slower_where_the_card_becomes_the_busiest():
    """Both are busy for 1.2 and 1 us, then the card alone: what leaves it arrives 45 us later either way."""
    exchange = Exchange.direct(Traffic(wire_bytes=np.pad([[0, 120e3, 25e3, 0]], ((0, 3), (0, 0)))), 2)
    slow = replace(PORTS, ranks_per_node=2, link_us=3, card_us=45)
    times = [bottleneck(exchange, each) for each in (slow, replace(slow, link_gb_s=200))]
    assert [each.hottest_kind for each in times] == ["link send", "network send"]
    assert [each.time_us for each in times] == pytest.approx([46.0, 46.0])


def test_ranks_may_share_a_card():
    traffic = Traffic(wire_bytes=np.pad(np.full((4, 4), 1000.0), ((0, 4), (4, 0))))
    alone = bottleneck(Exchange.direct(traffic, 4), PORTS)
    shared = bottleneck(Exchange.direct(traffic, 4), replace(PORTS, ranks_per_card=2))
    assert (alone.hottest_us, shared.hottest_us) == (pytest.approx(4000 / 25_000), pytest.approx(8000 / 25_000))


def test_nodes_of_one_rank_send_all_over_the_network():
    exchange = Exchange.direct(Traffic.even(50_000, 4), 1)
    assert (exchange.inside.sum(), exchange.network.sum()) == (0, 4 * 3 * 50_000)


def test_too_many_packets_are_refused(monkeypatch):
    with pytest.raises(UsageError, match="packets"):
        simulate_ports(Exchange.direct(Traffic.even(1e9, 4), 4), replace(PORTS, packet_bytes=1))
    # 4 * 3 pairs of 50 packets
    exchange = Exchange.direct(Traffic.even(50_000, 4), 4)
    monkeypatch.setattr(ports, "MOST_PACKETS", 600)
    assert simulate_ports(exchange, PORTS).packets == 600
    monkeypatch.setattr(ports, "MOST_PACKETS", 599)
    with pytest.raises(UsageError, match="600 packets are more than 599"):
        simulate_ports(exchange, PORTS)


def test_a_port_without_a_rate_is_refused():
    with pytest.raises(UsageError, match="card_gb_s must be above 0, got 0"):
        replace(PORTS, card_gb_s=0)
