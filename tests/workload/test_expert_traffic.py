"""What a routing makes of an expert-parallel layer."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.workload.expert_placement import ExpertTraffic, expert_traffic
from tracelens.predict.workload.token_routing import UNIFORM, Skew, route


@pytest.mark.parametrize("ranks", [8, 16, 32, 64])
def test_uniform_routing_reaches_the_expected_ranks(ranks):
    # R (1 - C(E - E/R, k) / C(E, k)); published for 8 ranks: 5.29
    exact = ranks * (1 - comb(256 - 256 // ranks, 8) / comb(256, 8))
    assert expert_traffic(UNIFORM, experts=256, topk=8, ranks=ranks).rank_copies == pytest.approx(exact)


def test_uniform_routing_is_what_drawn_tokens_do():
    expected = expert_traffic(UNIFORM, experts=64, topk=6, ranks=16)
    drawn = ExpertTraffic.of_assignment(route(UNIFORM, tokens=100_000, experts=64, topk=6), experts=64, ranks=16)
    assert drawn.rank_copies == pytest.approx(expected.rank_copies, rel=0.002)
    assert drawn.remote_share == pytest.approx(15 / 16, abs=0.002)
    assert drawn.rows_imbalance == pytest.approx(1, abs=0.02)
    # An assignment has happened: nothing of it is by chance.
    assert drawn.touched(10) == pytest.approx(replace(expected, variance=0.0).touched(10), rel=0.02)


@given(
    text=st.sampled_from(["uniform", "balanced", "zipf:0.7", "dirichlet:0.5", "power_law:1.2", "hot:0.5,0.6"]),
    ranks=st.sampled_from([1, 2, 4, 8]),
    topk=st.integers(1, 4),
)
@settings(max_examples=examples(12), deadline=None)
def test_copies_lie_between_one_and_top_k(text, ranks, topk):
    found = expert_traffic(Skew.parse(text), experts=16, topk=topk, ranks=ranks)
    assert 1 - 1e-9 <= found.rank_copies <= min(topk, ranks) + 1e-9
    assert 1 - 1e-9 <= found.copies_imbalance <= found.rows_imbalance * topk
    assert 0 <= found.remote_share < 1
    assert found.touched(1) <= found.touched(1000) <= 16 // ranks


def test_the_busiest_rank_grows_with_the_skew():
    rows = [
        expert_traffic(Skew.parse(f"zipf:{s}"), experts=64, topk=4, ranks=16).rows_imbalance for s in (0.2, 0.6, 1.2)
    ]
    assert rows == sorted(rows)
    assert rows[-1] > 2


def test_two_experts_on_one_rank_are_one_copy():
    # experts 0 and 1 lie on rank 0, 2 and 3 on rank 1: both tokens go to one rank each, token 0 (of rank 0) to its own
    found = ExpertTraffic.of_assignment(route(Skew.parse("balanced"), tokens=2, experts=4, topk=2), experts=4, ranks=2)
    assert found.rank_copies == 2
    assert found.remote_share == 0.5


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"ranks": 0}, "experts and ranks must be at least 1, got 64 and 0"),
        ({"topk": 65}, "top-k 65 needs at least as many experts, there are 64"),
    ],
)
def test_what_does_not_fit_is_one_sentence(sizes, message):
    with pytest.raises(UsageError, match=message):
        expert_traffic(UNIFORM, **({"experts": 64, "topk": 4, "ranks": 8} | sizes))


def test_copies_fill_the_ranks_and_share_their_expert_s_tokens() -> None:
    """256 experts on 72 ranks: 288 places, 4 on each. 32 experts have a copy and halve their load, so that 64 ranks
    carry 3 + 1/2 experts and 8 carry 4: 4 / (256 / 72) = 1.125 times the mean.
    """
    found = expert_traffic(UNIFORM, experts=256, topk=8, ranks=72)
    assert found.held == 4
    assert found.rows_imbalance == pytest.approx(1.125)
    assert sum(found.busiest[0]) == pytest.approx(4 * 8 / 256)
    more = expert_traffic(UNIFORM, experts=256, topk=8, ranks=64, redundant=1)
    assert more.held == 5  # one copy needs a place on each rank
    assert expert_traffic(UNIFORM, experts=256, topk=8, ranks=64).held == 4


@pytest.mark.parametrize(("ranks", "redundant"), [(72, 0), (144, 0), (32, 32)])
def test_copies_reach_as_many_ranks_as_drawn_tokens_do(ranks: int, redundant: int) -> None:
    expected = expert_traffic(UNIFORM, experts=256, topk=8, ranks=ranks, redundant=redundant)
    drawn = ExpertTraffic.of_assignment(
        route(UNIFORM, tokens=40_000, experts=256, topk=8, seed=1), experts=256, ranks=ranks, redundant=redundant
    )
    assert expected.rank_copies == pytest.approx(drawn.rank_copies, rel=0.01)
    assert expected.held == drawn.held


def test_copies_even_out_skewed_experts() -> None:
    skewed = Skew.parse("zipf:0.6")
    plain, balanced = (
        expert_traffic(skewed, experts=64, topk=4, ranks=16, redundant=copies).rows_imbalance for copies in (0, 32)
    )
    assert balanced < 0.6 * plain
