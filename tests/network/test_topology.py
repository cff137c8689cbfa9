"""What a group finds between its members: tiers, members per node, network cards, contention."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.predict.network.topology import Group, Protocol, Rates, Tier, TierLink, Topology

SIMPLE = Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=1.0)


def topology(*, shape="switch", cards=8, alone=None, nodes=None):
    node = TierLink(rates=Rates(peak_gb_s=450, all_gather_gb_s=350, all_to_all_gb_s=300), protocols=(SIMPLE,))
    network = TierLink(rates=Rates(peak_gb_s=50, all_gather_gb_s=45, alone_gb_s=alone), protocols=(SIMPLE,))
    ranks = None if nodes is None else 8 * nodes
    return Topology(tiers=(Tier(ranks=8, shape=shape, link=node), Tier(ranks=ranks, cards=cards, link=network)))


def crossed(found):
    return [(c.tier, c.members, c.fanout, c.hops, c.domain_gb_s) for c in found]


def test_a_group_within_a_node_crosses_only_its_links():
    assert crossed(topology().crossings(Group(ranks=8))) == [(0, 1, 8, 7, 350)]


def test_a_ring_over_nodes_crosses_the_network_once_per_node():
    # 32 ranks in 4 nodes: 28 hops inside, the other 3 of 31 between nodes, at 8 cards of 45
    assert crossed(topology().crossings(Group(ranks=32))) == [(0, 1, 8, 28, 350), (1, 8, 4, 3, 360)]


def test_tensor_parallel_ranks_innermost_leave_fewer_expert_parallel_ranks_to_a_node():
    # stride 4: 8 / 4 = 2 ranks per node, 8 nodes, and 2 of the 8 cards
    assert crossed(topology().crossings(Group(ranks=16, stride=4))) == [(0, 1, 2, 8, 350), (1, 2, 8, 7, 90)]


def test_a_stride_of_a_node_leaves_one_rank_per_node():
    assert crossed(topology().crossings(Group(ranks=4, stride=8))) == [(1, 1, 4, 3, 45)]


def test_a_lone_rank_of_a_node_may_reach_less_of_its_card():
    assert crossed(topology(alone=30).crossings(Group(ranks=4, stride=8))) == [(1, 1, 4, 3, 30)]
    assert crossed(topology(alone=30).crossings(Group(ranks=16)))[1] == (1, 8, 2, 1, 360)


def test_in_a_mesh_a_group_uses_the_wires_between_its_members():
    # 3 of 7 wires
    assert topology(shape="mesh").crossings(Group(ranks=4))[0].domain_gb_s == pytest.approx(350 * 3 / 7)


def test_an_all_to_all_has_its_own_measured_rate_and_falls_back_to_the_all_gathers():
    assert [c.domain_gb_s for c in topology().crossings(Group(ranks=16), "all_to_all")] == [300, 360]


def test_two_cards_serve_a_lone_rank_with_one():
    assert topology(cards=2).crossings(Group(ranks=4, stride=8))[0].domain_gb_s == 45


def test_concurrent_groups_share_the_cards_of_a_node():
    # 8 groups of one rank per node over 4 cards: half a card each; with 8 cards nobody waits
    group = Group(ranks=4, stride=8)
    assert topology(cards=4).shared_by(8).crossings(group)[0].domain_gb_s == 22.5
    assert topology(cards=8).shared_by(8).crossings(group)[0].domain_gb_s == 45


def test_a_group_of_one_crosses_nothing():
    assert topology().crossings(Group(ranks=1)) == ()


def test_a_group_that_does_not_fit_is_an_error():
    with pytest.raises(UsageError, match="16 ranks 2 apart do not fit a topology of 16 ranks"):
        topology(nodes=2).crossings(Group(ranks=16, stride=2))
    assert len(topology(nodes=2).crossings(Group(ranks=16))) == 2


@given(ranks=st.integers(1, 20), stride=st.integers(1, 20), nodes=st.integers(1, 4))
def test_a_group_fits_as_long_as_its_last_rank_does(ranks, stride, nodes):
    if (ranks - 1) * stride < 8 * nodes:
        topology(nodes=nodes).crossings(Group(ranks=ranks, stride=stride))
    else:
        with pytest.raises(UsageError, match=f"do not fit a topology of {8 * nodes} ranks"):
            topology(nodes=nodes).crossings(Group(ranks=ranks, stride=stride))


LINK = TierLink(rates=Rates(peak_gb_s=100), protocols=(SIMPLE,))


@given(
    sizes=st.tuples(st.sampled_from([2, 4]), st.sampled_from([1, 2, 4]), st.integers(1, 3)),
    stride=st.sampled_from([1, 2, 4, 8]),
    ranks=st.integers(1, 40),
)
@example(sizes=(2, 1, 3), stride=4, ranks=2)  # a stride that does not divide the domain of 6
def test_crossings_are_what_counting_rank_by_rank_gives(sizes, stride, ranks):
    domains = [1, sizes[0], sizes[0] * sizes[1], sizes[0] * sizes[1] * sizes[2]]
    places = [rank * stride for rank in range(ranks)]
    if places[-1] >= domains[-1]:
        return
    racks = Topology(tiers=tuple(Tier(ranks=domain, cards=domain, link=LINK) for domain in domains[1:]))

    def tier_between(one, other):
        return next(tier for tier, domain in enumerate(domains[1:]) if one // domain == other // domain)

    hops = Counter(tier_between(*pair) for pair in pairwise(places))
    reached = Counter(tier_between(places[0], other) for other in places[1:])
    found = racks.crossings(Group(ranks=ranks, stride=stride))
    assert {c.tier: c.hops for c in found} == hops
    for crossing in found:
        below, domain = domains[crossing.tier : crossing.tier + 2]
        first = [place for place in places if place < domain]
        assert crossing.members == sum(place < below for place in places)
        assert crossing.fanout == len({place // below for place in first})
        if len(first) == crossing.members * crossing.fanout:
            assert crossing.peers == reached[crossing.tier]


@given(word=st.sampled_from(["all_gather", "all_reduce", "all_to_all", "reduce_scatter"]), group=st.integers(2, 8))
def test_a_rate_is_its_own_else_the_all_gathers_else_the_peak(word, group):
    own = Rates(peak_gb_s=100, all_gather_gb_s=90, all_reduce_gb_s=80, all_to_all_gb_s=70)
    assert own.of(word) == {"all_reduce": 80, "all_to_all": 70}.get(word, 90)
    assert Rates(peak_gb_s=100, all_gather_gb_s=90).of(word) == 90
    assert Rates(peak_gb_s=100).of(word) == 100
    found = Topology(tiers=(Tier(ranks=8, link=TierLink(rates=own, protocols=(SIMPLE,))),)).crossings(
        Group(ranks=group), word
    )
    assert (found[0].domain_gb_s, found[0].peak_gb_s) == (own.of(word), 100)


def test_a_member_sends_at_its_share_of_the_data_of_its_domain():
    # 8 cards of 45 GB/s for 8 ranks, 3/4 of it data: 270 bytes a ns for the node, 33.75 for a rank
    slow = Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=0.75)
    network = Tier(ranks=None, cards=8, link=TierLink(rates=Rates(peak_gb_s=45), protocols=(slow,)))
    node = Tier(ranks=8, link=TierLink(rates=Rates(peak_gb_s=450), protocols=(slow,)))
    outer = Topology(tiers=(node, network)).crossings(Group(ranks=16))[1]
    assert (outer.domain_bytes_per_us("simple"), outer.rank_bytes_per_us("simple")) == (270_000, 33_750)


def test_groups_beside_this_one_share_its_cards():
    # stride 4: four groups side by side on 8 cards, two each; more than a node holds there never are
    assert topology().beside_siblings(Group(ranks=4, stride=4)).concurrent_groups == 4
    assert topology().beside_siblings(Group(ranks=4, stride=64)).concurrent_groups == 8
    assert topology().beside_siblings(Group(ranks=4)).concurrent_groups == 1
    endless = Topology(tiers=(Tier(ranks=None, link=LINK),))
    assert endless.beside_siblings(Group(ranks=4, stride=4)).concurrent_groups == 1
    assert (endless.ranks_per_node, endless.protocols) == (None, ("simple",))


def test_a_measured_rate_above_the_peak_is_an_error():
    with pytest.raises(UsageError, match="all_gather_gb_s must be above 0 and at most the peak 50"):
        Rates(peak_gb_s=50, all_gather_gb_s=51)


def test_tiers_nest_and_have_the_same_protocols():
    inner = Tier(ranks=8, link=TierLink(rates=Rates(peak_gb_s=1), protocols=(SIMPLE,)))
    with pytest.raises(UsageError, match="a tier of 12 ranks cannot hold domains of 8"):
        Topology(tiers=(inner, Tier(ranks=12, link=inner.link)))
    ll = Protocol(name="ll", base_us=1, hop_us=1, tree_hop_us=1, rate_share=0.5)
    with pytest.raises(UsageError, match="the same protocols"):
        Topology(tiers=(inner, Tier(ranks=None, link=TierLink(rates=Rates(peak_gb_s=1), protocols=(ll,)))))


@pytest.mark.parametrize(("ranks", "stride"), [(0, 1), (4, 0)])
def test_a_group_has_ranks_and_a_stride(ranks, stride):
    with pytest.raises(UsageError, match="must be at least 1, not 0"):
        Group(ranks=ranks, stride=stride)


def test_three_tiers_are_crossed_in_turn():
    # 4 ranks to a tray, 16 to a rack: 64 ranks in 4 racks of 4 trays
    link = TierLink(rates=Rates(peak_gb_s=100), protocols=(SIMPLE,))
    racks = Topology(
        tiers=(Tier(ranks=4, link=link), Tier(ranks=16, cards=4, link=link), Tier(ranks=None, cards=4, link=link))
    )
    assert [(c.members, c.fanout, c.hops) for c in racks.crossings(Group(ranks=64))] == [
        (1, 4, 48),
        (4, 4, 12),
        (16, 4, 3),
    ]
