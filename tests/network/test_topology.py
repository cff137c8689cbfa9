"""What a group finds between its members: tiers, members per node, network cards, contention."""

from __future__ import annotations

import pytest

from tracelens.errors import UsageError
from tracelens.groups import Group
from tracelens.network.topology import Link, Protocol, Rates, Tier, Topology

SIMPLE = Protocol(name="simple", base_us=10, hop_us=2, tree_hop_us=3, rate_share=1.0)


def topology(*, shape="switch", cards=8, alone=None, nodes=None):
    node = Link(rates=Rates(peak_gb_s=450, all_gather_gb_s=350, all_to_all_gb_s=300), protocols=(SIMPLE,))
    network = Link(rates=Rates(peak_gb_s=50, all_gather_gb_s=45, alone_gb_s=alone), protocols=(SIMPLE,))
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


def test_a_measured_rate_above_the_peak_is_an_error():
    with pytest.raises(UsageError, match="all_gather_gb_s must be above 0 and at most the peak 50"):
        Rates(peak_gb_s=50, all_gather_gb_s=51)


def test_tiers_nest_and_have_the_same_protocols():
    inner = Tier(ranks=8, link=Link(rates=Rates(peak_gb_s=1), protocols=(SIMPLE,)))
    with pytest.raises(UsageError, match="a tier of 12 ranks cannot hold domains of 8"):
        Topology(tiers=(inner, Tier(ranks=12, link=inner.link)))
    ll = Protocol(name="ll", base_us=1, hop_us=1, tree_hop_us=1, rate_share=0.5)
    with pytest.raises(UsageError, match="the same protocols"):
        Topology(tiers=(inner, Tier(ranks=None, link=Link(rates=Rates(peak_gb_s=1), protocols=(ll,)))))


@pytest.mark.parametrize(("ranks", "stride"), [(0, 1), (4, 0)])
def test_a_group_has_ranks_and_a_stride(ranks, stride):
    with pytest.raises(UsageError, match="must be at least 1, not 0"):
        Group(ranks=ranks, stride=stride)


def test_three_tiers_are_crossed_in_turn():
    # 4 ranks to a tray, 16 to a rack: 64 ranks in 4 racks of 4 trays
    link = Link(rates=Rates(peak_gb_s=100), protocols=(SIMPLE,))
    racks = Topology(
        tiers=(Tier(ranks=4, link=link), Tier(ranks=16, cards=4, link=link), Tier(ranks=None, cards=4, link=link))
    )
    assert [(c.members, c.fanout, c.hops) for c in racks.crossings(Group(ranks=64))] == [
        (1, 4, 48),
        (4, 4, 12),
        (16, 4, 3),
    ]
