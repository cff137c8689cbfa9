"""Collective algorithms: closed forms, and the laws that all of them keep."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.groups import Group
from tracelens.network.algorithms import algorithms, bound_us, candidates, collective_us
from tracelens.network.topology import Link, Protocol, Rates, Tier, Topology

SIMPLE = Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=1.0)
LL = Protocol(name="ll", base_us=5, hop_us=1, tree_hop_us=1, rate_share=0.25)
MB = 1e6


def topology(*, protocols=(SIMPLE,), inner=100.0, outer=10.0, in_switch=None, shape="switch", peer_us=0.0, chosen=()):
    """Nodes of 4 ranks with 4 cards: 100 bytes/ns inside, 10 per card."""
    node = Link(
        rates=Rates(peak_gb_s=inner, in_switch_gb_s=in_switch), protocols=protocols, peer_us=peer_us, in_switch_us=25
    )
    network = Link(rates=Rates(peak_gb_s=outer), protocols=protocols)
    return Topology(
        tiers=(Tier(ranks=4, shape=shape, link=node), Tier(ranks=None, cards=4, link=network)), algorithms=chosen
    )


def time(key, nbytes, group, over):
    return float(algorithms()[key].target(nbytes, group, over))


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # 100 MB at 100 GB/s are 1000 us
        ("all_gather/ring", 10 + 3 * 2 + 750),
        ("reduce_scatter/ring", 10 + 3 * 2 + 750),
        ("all_reduce/ring", 10 + 2 * (3 * 2 + 750)),
        ("broadcast/ring", 10 + 3 * 2 + 1000),
        ("reduce/ring", 10 + 3 * 2 + 1000),
        ("all_reduce/tree", 10 + 2 * (3 * 3 + 1000)),
        ("all_reduce/hierarchical", 10 + 2 * (3 * 2 + 750)),
        ("all_gather/direct", 10 + 2 + 750),
        ("reduce_scatter/direct", 10 + 2 + 750),
        ("all_to_all/direct", 10 + 2 + 750),
        ("send/p2p", 10 + 2 + 1000),
    ],
)
def test_within_a_node(key, expected):
    assert time(key, 100 * MB, Group(ranks=4), topology()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # 8 ranks in 2 nodes, 40 GB/s between nodes: 7 hops, 6 of them inside; 7/8 of 100 MB are 2187.5 us
        ("all_gather/ring", 10 + 7 * 2 + 2187.5),
        ("all_reduce/ring", 10 + 2 * (7 * 2 + 2187.5)),
        # chain of 3 inside, one level of tree: 100 MB at 40 GB/s are 2500 us
        ("all_reduce/tree", 10 + 2 * (3 * 3 + 1 * 3 + 2500)),
        # inside 750 us; 25 MB shards, half of each over a card of 10 GB/s: 1250 us
        ("all_reduce/hierarchical", 10 + 2 * (3 * 2 + 750) + 2 * (1 * 2 + 1250)),
        # 4 of 8 peers are behind the card: 50 MB at 10 GB/s
        ("all_to_all/direct", 10 + 2 + 5000),
        # 4 MB start inside at 3/4 / 100 GB/s, then the network takes 5000 us, more than the 720 us left inside
        ("all_to_all/pipelined", 10 + 4 + 4.194304 * 7.5 + 5000),
        ("broadcast/ring", 10 + 7 * 2 + 2500),
    ],
)
def test_between_nodes(key, expected):
    assert time(key, 100 * MB, Group(ranks=8), topology()) == pytest.approx(expected)


def test_sending_to_the_next_node_takes_one_card():
    assert time("send/p2p", 100 * MB, Group(ranks=2, stride=4), topology()) == pytest.approx(10 + 2 + 10000)


def test_a_pair_in_a_mesh_has_one_wire_of_three():
    assert time("send/p2p", 100 * MB, Group(ranks=4), topology(shape="mesh")) == pytest.approx(10 + 2 + 3000)


def test_a_low_latency_protocol_wins_small_messages_and_loses_large_ones():
    both = topology(protocols=(LL, SIMPLE))
    # 1 kB: 5 + 3 * 1 + 750 B at 25 GB/s
    assert time("all_gather/ring", 1e3, Group(ranks=4), both) == pytest.approx(5 + 3 + 0.03)
    assert time("all_gather/ring", 100 * MB, Group(ranks=4), both) == pytest.approx(10 + 6 + 750)


def test_reduction_in_the_switch_moves_the_message_once():
    over = topology(in_switch=80)
    assert time("all_reduce/in_switch", 100 * MB, Group(ranks=4), over) == pytest.approx(25 + 1250)
    assert time("all_reduce/in_switch", 100 * MB, Group(ranks=8), over) == np.inf
    assert time("all_reduce/in_switch", 100 * MB, Group(ranks=4), topology()) == np.inf


def test_a_pipelined_exchange_needs_ranks_to_forward():
    assert time("all_to_all/pipelined", 1 * MB, Group(ranks=4), topology()) == np.inf
    assert time("all_to_all/pipelined", 1 * MB, Group(ranks=4, stride=4), topology()) == np.inf


def test_every_peer_adds_its_overhead():
    slower = time("all_to_all/direct", 1 * MB, Group(ranks=4), topology(peer_us=2.5))
    assert slower - time("all_to_all/direct", 1 * MB, Group(ranks=4), topology()) == pytest.approx(3 * 2.5)


def test_the_library_takes_the_fastest_of_its_own_algorithms():
    over = topology(chosen=("all_reduce/ring", "all_reduce/tree"))
    group = Group(ranks=256)
    found, names = collective_us("all_reduce", [1e3, 8e9], group, over)
    assert names == ("all_reduce/tree", "all_reduce/ring")
    assert found.tolist() == [time("all_reduce/tree", 1e3, group, over), time("all_reduce/ring", 8e9, group, over)]


def test_a_named_algorithm_leaves_no_choice():
    over = topology(chosen=("all_reduce/ring",))
    assert collective_us("all_reduce", 1e3, Group(ranks=4), over, "tree")[1] == ("all_reduce/tree",)
    assert candidates("all_to_all", over) == ()
    with pytest.raises(UsageError, match="no all_reduce algorithm named 'trees'; did you mean tree"):
        collective_us("all_reduce", 1e3, Group(ranks=4), over, "trees")


def test_a_collective_without_an_algorithm_has_no_time():
    found, names = collective_us("gather", [1.0, 2.0], Group(ranks=4), topology())
    assert np.isnan(found).all()
    assert names == ("", "")


GROUPS = st.builds(Group, ranks=st.integers(1, 200), stride=st.sampled_from([1, 2, 4, 8]))
KEYS = st.sampled_from(sorted(algorithms()))
SIZES = st.floats(0, 1e11)
RATES = st.floats(1, 1000)


@given(KEYS, GROUPS, SIZES, st.floats(1, 100))
def test_more_bytes_never_take_less_time(key, group, nbytes, factor):
    over = topology(protocols=(LL, SIMPLE), in_switch=60)
    assert time(key, nbytes, group, over) <= time(key, nbytes * factor, group, over)


@example("all_to_all/hierarchical", Group(ranks=5), 58947.0, 13.0, 1.0, "switch")
@given(KEYS, GROUPS, SIZES, RATES, RATES, st.sampled_from(["switch", "mesh"]))
def test_no_algorithm_beats_volume_over_bandwidth(key, group, nbytes, inner, outer, shape):
    over = topology(protocols=(LL, SIMPLE), inner=inner, outer=outer, shape=shape)
    least = bound_us(key.split("/")[0], nbytes, group, over)[0]
    assert time(key, nbytes, group, over) >= least * (1 - 1e-12)


@given(KEYS, GROUPS, SIZES, RATES, RATES, st.floats(1, 10), st.floats(1, 10))
def test_a_wider_link_is_never_slower(key, group, nbytes, inner, outer, more_inner, more_outer):
    narrow = topology(protocols=(LL, SIMPLE), inner=inner, outer=outer)
    wide = topology(protocols=(LL, SIMPLE), inner=inner * more_inner, outer=outer * more_outer)
    assert time(key, nbytes, group, wide) <= time(key, nbytes, group, narrow) * (1 + 1e-12)


@given(KEYS, GROUPS, SIZES, st.integers(1, 16))
def test_contention_never_helps(key, group, nbytes, groups):
    over = topology()
    assert time(key, nbytes, group, over) <= time(key, nbytes, group, over.shared_by(groups))


@given(KEYS)
def test_a_group_of_one_takes_no_time(key):
    assert time(key, 1e9, Group(ranks=1), topology(in_switch=60)) in (0.0, np.inf)


def test_arrays_and_numbers_agree():
    over = dataclasses.replace(topology(protocols=(LL, SIMPLE), in_switch=60))
    sizes = np.array([0.0, 1e3, 1e6, 1e9])
    for key, claim in algorithms().items():
        many = claim.target(sizes, Group(ranks=16), over)
        assert many.tolist() == [time(key, size, Group(ranks=16), over) for size in sizes], key
