"""Which experts tokens go to: distributions, exact shares, gates, recorded routing."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples, part
from tracelens.errors import InputError, UsageError
from tracelens.predict.network.traffic import Copies
from tracelens.predict.workload.token_routing import (
    DROPPED,
    Skew,
    apportion,
    drifting_weights,
    from_counts,
    group_limited_top_k,
    hot_share,
    power_law_counts,
    read_routing,
    route,
    route_group_limited,
    sample,
    with_capacity,
)

ALL = ["uniform", "balanced", "zipf:1.1", "zipf:3", "hot:0.5,0.8", "hot:0.05,0.8", "dirichlet:0.1", "power_law:1.2"]


def loads(chosen, experts):
    return np.bincount(np.asarray(chosen).ravel(), minlength=experts)


@pytest.mark.parametrize("text", ALL)
def test_experts_of_a_token_are_distinct_and_every_seed_repeats(text):
    chosen = route(Skew.parse(text), tokens=3000, experts=256, topk=8, seed=3)
    ordered = np.sort(chosen, axis=1)
    assert chosen.shape == (3000, 8)
    assert (ordered[:, 1:] != ordered[:, :-1]).all()
    assert ordered.min() >= 0
    assert ordered.max() < 256
    np.testing.assert_array_equal(chosen, route(Skew.parse(text), tokens=3000, experts=256, topk=8, seed=3))


@given(
    text=st.sampled_from(ALL[:2] + ALL[2:3] + ALL[6:]),
    tokens=st.integers(1, 60),
    experts=st.integers(1, 40),
    data=st.data(),
)
@settings(max_examples=examples(80), deadline=None)
def test_any_shape_gives_distinct_experts(text, tokens, experts, data):
    topk = data.draw(st.integers(1, experts))
    chosen = route(Skew.parse(text), tokens=tokens, experts=experts, topk=topk, seed=1)
    assert all(len(set(row)) == topk for row in chosen.tolist())
    assert chosen.min() >= 0
    assert chosen.max() < experts


def test_sampling_without_replacement_is_exact():
    """Every ordered choice of 2 out of 4 appears as often as its probability p(a) * p(b)/(1 - p(a)) says."""
    weights, tokens = np.array([0.5, 0.3, 0.15, 0.05]), 120_000
    found = sample(weights, tokens=tokens, topk=2, seed=5)
    pairs, counts = np.unique(found, axis=0, return_counts=True)
    seen = {tuple(pair): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)}
    chi_square = 0.0
    for a, b in permutations(range(4), 2):
        expected = tokens * weights[a] * weights[b] / (1 - weights[a])
        chi_square += (seen.get((a, b), 0) - expected) ** 2 / expected
    assert chi_square < 31.3  # 11 degrees of freedom, one in a thousand


def test_the_race_that_completes_a_token_is_exact_too():
    """With one expert nearly sure, most tokens repeat it until the race draws the second."""
    weights, tokens = np.array([1e6, 3.0, 1.0]), 40_000
    second = sample(weights, tokens=tokens, topk=2, seed=1)[:, 1]
    assert np.mean(second == 1) == pytest.approx(0.75, abs=0.01)


@pytest.mark.parametrize(
    ("experts", "topk", "ratio", "weight"),
    [(4, 2, 0.5, 0.8), (256, 8, 0.05, 0.8), (64, 6, 0.1, 0.9), (128, 8, 0.5, 0.8)],
)
def test_the_hot_share_is_realised_exactly(experts, topk, ratio, weight):
    tokens = 5000
    got = np.sort(loads(route(Skew(kind="hot", a=ratio, b=weight), tokens=tokens, experts=experts, topk=topk), experts))
    hot = int(experts * ratio)
    assert got[-hot:].sum() == round(weight * tokens * topk)


@pytest.mark.parametrize(
    ("experts", "topk", "ratio", "weight", "realised"),
    [(4, 2, 0.5, 0.8, 0.756), (256, 8, 0.05, 0.8, 0.750), (64, 6, 0.1, 0.9, 0.827)],
)
def test_drawing_plainly_would_lower_the_hot_share(experts, topk, ratio, weight, realised):
    hot = int(experts * ratio)
    likelier = (weight / hot) / ((1 - weight) / (experts - hot))
    assert hot_share(likelier, hot=hot, cold=experts - hot, topk=topk) == pytest.approx(realised, abs=5e-4)


def test_a_hot_share_that_cannot_be_is_refused():
    # 2 of 64 experts are hot: of 6 choices at most 2 go there
    with pytest.raises(
        UsageError, match=r"hot weight 0\.9 is not possible: 2 hot of 64 experts get between 0 and 0\.333333"
    ):
        route(Skew(kind="hot", a=0.04, b=0.9), tokens=10, experts=64, topk=6)


def test_more_than_128_experts_do_not_wrap():
    assert loads(route(Skew.parse("uniform"), tokens=50_000, experts=1000, topk=4), 1000).min() > 0


def test_zipf_weights_fall_with_the_rank():
    weights = np.sort(Skew.parse("zipf:2").weights(4, seed=0))[::-1]
    np.testing.assert_allclose(weights, np.array([1, 1 / 4, 1 / 9, 1 / 16]) / (1 + 1 / 4 + 1 / 9 + 1 / 16))


def test_power_law_loads_are_realised_to_the_routing():
    counts = power_law_counts(1.2, tokens=500, experts=64, topk=4, seed=2)
    chosen = route(Skew.parse("power_law_1.2"), tokens=500, experts=64, topk=4, seed=2)
    assert sorted(counts.tolist()) == sorted(loads(chosen, 64).tolist())
    assert counts.sum() == 2000


@given(parts=st.lists(st.floats(0.01, 100), min_size=1, max_size=30), data=st.data())
def test_apportioning_keeps_the_total_and_the_cap(parts, data):
    most = data.draw(st.integers(1, 50))
    total = data.draw(st.integers(0, most * len(parts)))
    counts = apportion(np.array(parts), total=total, most=most)
    assert counts.sum() == total
    assert counts.max() <= most
    assert counts.min() >= 0


@given(data=st.data())
@settings(max_examples=examples(50), deadline=None)
def test_counts_become_tokens_exactly(data):
    tokens, topk, experts = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 4)), data.draw(st.integers(4, 12))
    weights = np.array(data.draw(st.lists(st.floats(0.01, 5), min_size=experts, max_size=experts)))
    counts = apportion(weights, total=tokens * topk, most=tokens)
    chosen = from_counts(counts, tokens=tokens, seed=1)
    assert loads(chosen, experts).tolist() == counts.tolist()
    assert all(len(set(row)) == topk for row in chosen.tolist())


def test_group_limited_gating_looks_at_the_sum_of_two():
    # groups [9 0] [5 5] [6 1]: sums of two 9, 10, 7
    scores = np.array([[9.0, 0.0, 5.0, 5.0, 6.0, 1.0]])
    assert group_limited_top_k(scores, 2, groups=3, best_groups=1).tolist() == [[2, 3]]


def test_group_limited_tokens_stay_in_their_groups():
    chosen = route_group_limited(np.ones(256), tokens=2000, topk=8, groups=8, best_groups=4, seed=1)
    groups = [len(set(row)) for row in (chosen // 32).tolist()]
    assert max(groups) <= 4
    assert loads(chosen, 256).min() > 20  # 62.5 on average


@pytest.mark.parametrize(
    ("ranks", "nodes", "distinct"), part([(16, 1.994, 6.519), (32, 3.621, 7.276), (64, 3.984, 7.468)], 3)
)
def test_nodes_and_ranks_of_a_token_are_the_published_ones(ranks, nodes, distinct):
    """256 experts, top 8, at most 4 nodes: a group is a node."""
    groups = ranks // 8
    chosen = route_group_limited(np.ones(256) / 256, tokens=20_000, topk=8, groups=groups, best_groups=min(4, groups))
    copies = Copies.from_assignment(chosen, np.arange(256) * ranks // 256, ranks=ranks, ranks_per_node=8)
    assert copies.mean_nodes == pytest.approx(nodes, rel=0.004)
    assert copies.mean_ranks == pytest.approx(distinct, rel=0.01)


def test_capacity_drops_what_comes_late():
    # capacity ceil(0.5 * 3 * 2 / 2) = 2 per expert; first choices before second ones
    chosen = np.array([[0, 1], [0, 1], [0, 1]])
    assert with_capacity(chosen, experts=2, factor=0.5).tolist() == [[0, 1], [0, 1], [DROPPED, DROPPED]]
    assert with_capacity(chosen, experts=2, factor=1.0).tolist() == chosen.tolist()


def test_drift_keeps_or_renews_the_hot_experts():
    def first_and_last(drift):
        every = list(drifting_weights(Skew.parse("zipf:1"), experts=32, layers=1, steps=3, drift=drift))
        return every[0][2], every[-1][2]

    still, moved = first_and_last(0.0), first_and_last(1.0)
    np.testing.assert_allclose(still[0], still[1])
    assert np.abs(moved[0] - moved[1]).max() > 0.05


def test_recorded_routing_is_read_from_npz_and_csv(tmp_path):
    np.savez(tmp_path / "logits.npz", logits=np.array([[0.0, 3.0, 1.0], [9.0, 0.0, 1.0]]))
    np.savez(tmp_path / "ids.npz", experts=np.array([[1, 2], [0, 2]]), num_experts=4)
    (tmp_path / "counts.csv").write_text("2\n1\n1\n")
    assert read_routing(tmp_path / "logits.npz", topk=2)[0].tolist() == [[1, 2], [0, 2]]
    assert read_routing(tmp_path / "ids.npz", topk=None)[1] == 4
    chosen, experts = read_routing(tmp_path / "counts.csv", topk=2)
    assert (loads(chosen, 3).tolist(), experts) == ([2, 1, 1], 3)


def test_routing_that_cannot_be_read_says_why(tmp_path):
    (tmp_path / "words.csv").write_text("a,b\n")
    (tmp_path / "ragged.csv").write_text("1,2\n3\n")
    for name in ("words.csv", "ragged.csv", "absent.csv"):
        with pytest.raises(InputError, match=name):
            read_routing(tmp_path / name, topk=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipff:1", "did you mean zipf"),
        ("zipf", "not one of the forms"),
        ("hot:0.5", "not one of the forms"),
        ("dirichlet:0", "above 0"),
        ("zipf:-1", "0 or more"),
    ],
)
def test_a_skew_that_is_none_says_what_there_is(text, message):
    with pytest.raises(UsageError, match=message):
        Skew.parse(text)


def test_top_k_above_the_experts_is_one_sentence():
    with pytest.raises(UsageError, match=r"^top-k 5 needs at least as many experts, there are 4$"):
        route(Skew.parse("uniform"), tokens=1, experts=4, topk=5)
