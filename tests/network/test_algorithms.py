"""Collective algorithms: closed forms, and the laws that all of them keep."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.predict.network.algorithms import algorithms, bound_us, candidates, collective_us, forwarded_us
from tracelens.predict.network.topology import Group, Protocol, Rates, Tier, TierLink, Topology

SIMPLE = Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=1.0)
LL = Protocol(name="ll", base_us=5, hop_us=1, tree_hop_us=1, rate_share=0.25)
MB = 1e6


def topology(*, protocols=(SIMPLE,), inner=100.0, outer=10.0, in_switch=None, shape="switch", peer_us=0.0, chosen=()):
    """Nodes of 4 ranks with 4 cards: 100 bytes/ns inside, 10 per card."""
    node = TierLink(
        rates=Rates(peak_gb_s=inner, in_switch_gb_s=in_switch), protocols=protocols, peer_us=peer_us, in_switch_us=25
    )
    network = TierLink(rates=Rates(peak_gb_s=outer), protocols=protocols)
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


@pytest.mark.parametrize(
    ("key", "ranks", "expected"),
    [
        # 16 ranks in 4 nodes of 2 racks; hops of 2, 5 and 9 us, the outermost's base of 30; 100, 40 and 10 GB/s a domain
        ("all_gather/ring", 16, 30 + 12 * 2 + 2 * 5 + 1 * 9 + 9375),
        ("all_reduce/ring", 16, 30 + 2 * (12 * 2 + 2 * 5 + 1 * 9 + 9375)),
        ("broadcast/ring", 16, 30 + 12 * 2 + 2 * 5 + 1 * 9 + 10_000),
        # tree hops of 3, 6 and 10 us; 3 inside, one level each further out
        ("all_reduce/tree", 16, 30 + 2 * (3 * 3 + 6 + 10 + 10_000)),
        # 3/4 of 100 MB at 100; half of 25 MB at 10; half of 12.5 MB at 10/8
        ("all_reduce/hierarchical", 16, 30 + 2 * (3 * 2 + 750 + 5 + 1250 + 9 + 5000)),
        # 8 of 16 peers over the outermost, a rank has 10/8; 3 peers at 1 us, 4 at 2 us, 8 at 3 us, syncs of 4, 5, 6
        ("all_to_all/direct", 16, 30 + 9 + 3 * 1 + 4 * 2 + 8 * 3 + 15 + 40_000),
        # one peer per domain: 3 at 1 us, 1 at 2 us, 1 at 3 us; 750 + 5000 + 40000 us one after the other
        ("all_to_all/hierarchical", 16, 30 + 16 + 3 * 1 + 1 * 2 + 1 * 3 + 15 + 750 + 5000 + 40_000),
        # the outermost starts after the first 4 MiB inside
        ("all_to_all/pipelined", 16, 30 + 16 + 3 * 1 + 1 * 2 + 1 * 3 + 15 + 4.194304 * 7.5 + 40_000),
        # 6 ranks in nodes of 4 and 2: the larger one sends 4/6, more than half of it, over its rank's 10
        ("all_to_all/hierarchical", 6, 20 + 2 + 5 + 3 * 1 + 1 * 2 + 9 + 750 + 100 * 4 / 6 * 100),
        ("all_gather/ring", 6, 20 + 4 * 2 + 1 * 5 + 100 * 5 / 6 * 25),
    ],
)
def test_over_three_tiers_every_cost_counts_where_it_arises(key, ranks, expected):
    def link(rate, base_us, hop_us, peer_us):
        protocol = dataclasses.replace(SIMPLE, base_us=base_us, hop_us=hop_us, tree_hop_us=hop_us + 1)
        return TierLink(rates=Rates(peak_gb_s=rate), protocols=(protocol,), peer_us=peer_us, sync_us=peer_us + 3)

    racks = Topology(
        tiers=(
            Tier(ranks=4, link=link(100, 10, 2, 1)),
            Tier(ranks=8, cards=4, link=link(10, 20, 5, 2)),
            Tier(ranks=None, cards=1, link=link(10, 30, 9, 3)),
        )
    )
    assert time(key, 100 * MB, Group(ranks=ranks), racks) == pytest.approx(expected)


@given(st.floats(0, 1e11), st.sampled_from([5, 6, 8, 12, 16, 64]), st.floats(1, 1000))
def test_what_is_passed_on_whole_is_a_pipelined_exchange(nbytes, ranks, outer):
    """A dispatcher that sends each rank its own bytes moves what the collective does."""
    over, group = topology(protocols=(LL, SIMPLE), peer_us=2.5, outer=outer), Group(ranks=ranks)
    sent = nbytes * over.crossings(group)[1].peers / ranks
    assert forwarded_us(nbytes, sent, group, over) == pytest.approx(time("all_to_all/pipelined", nbytes, group, over))


def test_passing_on_inside_hides_behind_the_network_but_for_the_first_chunk():
    over, group = topology(), Group(ranks=8)
    # 3/4 of 100 MB at 100 GB/s are 750 us, of the first 4 MiB 31.45728; 20 MB over a card are 2000 us
    assert forwarded_us(100 * MB, 20 * MB, group, over) == pytest.approx(10 + 4 + 31.45728 + 2000)
    # where the network takes less, all of the inside counts; and less than a chunk is passed on first
    assert forwarded_us(100 * MB, 2 * MB, group, over) == pytest.approx(10 + 4 + 750)
    assert forwarded_us(1 * MB, 2 * MB, group, over) == pytest.approx(10 + 4 + 7.5 + 200)
    assert forwarded_us(0.0, 2 * MB, group, over) == pytest.approx(10 + 4 + 200)
    assert forwarded_us(1 * MB, 1 * MB, Group(ranks=4), over) is None
    assert forwarded_us(1 * MB, 1 * MB, Group(ranks=4, stride=4), over) is None


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        # 8 ranks in 2 nodes, 40 GB/s between them: half of 100 MB must arrive, the root's whole message, twice of a sum
        ("all_gather", 1250),
        ("reduce_scatter", 1250),
        ("broadcast", 2500),
        ("all_reduce", 2500),
        ("all_to_all", 5000),  # 4 of 8 peers of each of 4 ranks
        ("send", 1000),  # between two neighbors inside
    ],
)
def test_the_least_that_the_rates_allow(word, expected):
    assert bound_us(word, 100 * MB, Group(ranks=8), topology()).tolist() == pytest.approx([expected])
    assert bound_us(word, [1.0, 2.0], Group(ranks=1), topology()).tolist() == [0, 0]


def test_where_the_switch_adds_a_sum_needs_to_travel_once():
    assert bound_us("all_reduce", 100 * MB, Group(ranks=4), topology()).tolist() == [1500]
    assert bound_us("all_reduce", 100 * MB, Group(ranks=4), topology(in_switch=60)).tolist() == [750]
    assert bound_us("all_gather", 100 * MB, Group(ranks=4), topology()).tolist() == [750]


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


@given(KEYS, st.sampled_from([0.0, 1e9]))
def test_a_group_of_one_takes_no_time(key, nbytes):
    assert time(key, nbytes, Group(ranks=1), topology(in_switch=60)) in (0.0, np.inf)


def test_arrays_and_numbers_agree():
    over = dataclasses.replace(topology(protocols=(LL, SIMPLE), in_switch=60))
    sizes = np.array([0.0, 1e3, 1e6, 1e9])
    for key, claim in algorithms().items():
        many = claim.target(sizes, Group(ranks=16), over)
        assert many.tolist() == [time(key, size, Group(ranks=16), over) for size in sizes], key
