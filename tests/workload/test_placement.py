"""Experts on ranks, and EPLB's published example."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.network.traffic import imbalance
from tracelens.predict.workload.expert_placement import Placement, eplb

README = [
    ([90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86], [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1], 1.208),
    ([20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27], [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1], 1.242),
]


@pytest.mark.parametrize(("loads", "mapping", "balance"), README)
def test_eplb_gives_its_published_mapping(loads, mapping, balance):
    place = eplb(np.array(loads), slots=16, ranks=8, nodes=2, groups=4)
    assert place.expert_of_slot.tolist() == mapping
    assert imbalance(place.rank_loads(np.array(loads))) == pytest.approx(balance, abs=5e-4)


def test_hierarchical_eplb_keeps_a_group_on_one_node():
    loads = np.array(README[0][0])
    place = eplb(loads, slots=16, ranks=8, nodes=2, groups=4)
    node_of = {}
    for expert, rank in zip(place.expert_of_slot.tolist(), place.rank_of_slot.tolist(), strict=True):
        node_of.setdefault(expert // 3, set()).add(rank // 4)
    assert all(len(nodes) == 1 for nodes in node_of.values())


def test_groups_that_do_not_divide_over_nodes_make_it_global():
    loads = np.array(README[0][0])
    by_groups = eplb(loads, slots=16, ranks=8, nodes=2, groups=3)
    alone = eplb(loads, slots=16, ranks=8)
    assert by_groups.expert_of_slot.tolist() == alone.expert_of_slot.tolist()


@given(loads=st.lists(st.integers(0, 1000), min_size=8, max_size=8), spare=st.sampled_from([0, 4, 8]))
@settings(max_examples=examples(60), deadline=None)
def test_every_expert_has_a_slot_and_every_rank_as_many(loads, spare):
    place = eplb(np.array(loads), slots=8 + spare, ranks=4)
    assert set(place.expert_of_slot.tolist()) == set(range(8))
    assert np.bincount(place.rank_of_slot).tolist() == [(8 + spare) // 4] * 4
    assert place.rank_loads(np.array(loads)).sum() == pytest.approx(sum(loads))


def test_contiguous_and_round_robin():
    assert Placement.contiguous(6, 3).rank_of_slot.tolist() == [0, 0, 1, 1, 2, 2]
    assert Placement.round_robin(6, 3).rank_of_slot.tolist() == [0, 1, 2, 0, 1, 2]


def test_replicas_take_tokens_in_turn():
    place = Placement(expert_of_slot=np.array([0, 1, 0]), rank_of_slot=np.array([0, 0, 1]), ranks=2)
    assert place.slot_of_token(np.array([[0], [0], [1], [0], [-1]])).ravel().tolist() == [0, 2, 1, 2, -1]
    assert place.rank_loads(np.array([10, 4])).tolist() == [9, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Placement.contiguous(10, 4), "10 experts do not divide over 4 ranks; give a map of experts to ranks"),
        (lambda: Placement.from_map(np.array([0, 5]), 4), "uses rank 5, but there are 4 ranks"),
        (lambda: eplb(np.ones(8), slots=6, ranks=2), "6 slots are too few for 8 experts"),
        (lambda: eplb(np.ones(8), slots=9, ranks=2), "9 slots do not divide over 2 ranks"),
        (lambda: eplb(np.ones(8), slots=8, ranks=4, nodes=3), "4 ranks do not divide over 3 nodes"),
        (lambda: eplb(np.ones(8), slots=8, ranks=4, groups=3), "8 experts do not divide into 3 groups"),
    ],
)
def test_what_does_not_divide_is_one_sentence(call, message):
    with pytest.raises(UsageError, match=message):
        call()
