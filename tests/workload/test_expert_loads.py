"""Tokens per expert of named distributions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.predict.workload.token_routing import expert_loads

shapes = st.tuples(st.integers(1, 300), st.sampled_from([8, 16, 64]), st.integers(1, 8), st.sampled_from([1, 2, 8]))


@given(shapes, st.sampled_from(["balanced", "uniform", "zipf:1", "power_law_1.2"]), st.integers(0, 5))
def test_every_choice_is_counted(shape, distribution, seed):
    tokens, experts, topk, ranks = shape
    counts = expert_loads(distribution, tokens, experts, topk, ranks, seed)
    assert counts.sum() == tokens * topk
    assert 0 <= counts.min() <= counts.max() <= tokens


@given(shapes, st.integers(0, 5))
def test_the_most_loaded_rank_comes_first(shape, seed):
    tokens, experts, topk, ranks = shape
    by_rank = expert_loads("power_law_1.2", tokens, experts, topk, ranks, seed).reshape(ranks, -1).sum(axis=1)
    assert by_rank[0] == by_rank.max()


def test_balanced_tokens_take_evenly_spread_starts():
    # 8 experts, 2 choices: token i takes i and i + 4.
    assert expert_loads("balanced", 4, 8, 2, 1, 0).tolist() == [1] * 8
    # Two tokens, fewer than the stride of four, start at 0 and 2.
    assert expert_loads("balanced", 2, 8, 2, 1, 0).tolist() == [1, 0, 1, 0, 1, 0, 1, 0]


def test_an_unknown_name_and_impossible_sizes_are_errors():
    with pytest.raises(UsageError, match="no routing distribution named 'even'"):
        expert_loads("even", 8, 8, 2, 1, 0)
    with pytest.raises(UsageError, match="top-k 9 needs at least as many experts, there are 8"):
        expert_loads("balanced", 8, 8, 9, 1, 0)
