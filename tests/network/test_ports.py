"""Packets through switched tiers: even loads give the closed form, forwarding counts, lower bounds hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.network.ports import Exchange, Ports, bottleneck, simulate_ports
from tracelens.network.traffic import Copies, Traffic

PORTS = Ports(ranks_per_node=4, link_gb_s=100, card_gb_s=25, packet_bytes=1000)


def copies_of(seed, *, ranks=8, size=4, tokens=200, experts=16, topk=3):
    chosen = np.random.default_rng(seed).integers(0, experts, (tokens, topk))
    return Copies.from_assignment(chosen, np.arange(experts) * ranks // experts, ranks=ranks, ranks_per_node=size)


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
@settings(max_examples=40, deadline=None)
def test_no_exchange_is_faster_than_its_busiest_port(seed, packet, turn):
    copies = copies_of(seed)
    ports = replace(PORTS, packet_bytes=packet, packets_per_turn=turn)
    for exchange in (
        Exchange.hierarchical(copies, 512.0),
        Exchange.direct(Traffic(wire_bytes=copies.per_rank * 512.0), 4),
    ):
        assert simulate_ports(exchange, ports).time_us >= bottleneck(exchange, ports).time_us - 1e-9


@given(seed=st.integers(0, 200))
@settings(max_examples=20, deadline=None)
def test_a_wider_card_is_never_slower_at_the_bottleneck(seed):
    exchange = Exchange.hierarchical(copies_of(seed), 512.0)
    assert bottleneck(exchange, replace(PORTS, card_gb_s=50)).time_us <= bottleneck(exchange, PORTS).time_us


def test_ranks_may_share_a_card():
    traffic = Traffic(wire_bytes=np.pad(np.full((4, 4), 1000.0), ((0, 4), (4, 0))))
    alone = bottleneck(Exchange.direct(traffic, 4), PORTS)
    shared = bottleneck(Exchange.direct(traffic, 4), replace(PORTS, ranks_per_card=2))
    assert (alone.hottest_us, shared.hottest_us) == (pytest.approx(4000 / 25_000), pytest.approx(8000 / 25_000))


def test_too_many_packets_are_refused():
    with pytest.raises(UsageError, match="packets"):
        simulate_ports(Exchange.direct(Traffic.even(1e9, 4), 4), replace(PORTS, packet_bytes=1))


def test_a_port_without_a_rate_is_refused():
    with pytest.raises(UsageError, match="card_gb_s must be above 0, got 0"):
        replace(PORTS, card_gb_s=0)
