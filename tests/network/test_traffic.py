"""Bytes between ranks: copies per expert, rank and node, against a plain count; payloads; local share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.network.ports import Exchange
from tracelens.predict.network.traffic import Copies, Payload, Traffic, imbalance
from tracelens.types.dtypes import DType


def counted(chosen, place, ranks, size, sources):
    """Token by token, as one would on paper."""
    per_expert, per_rank, per_node = (np.zeros((ranks, n), int) for n in (ranks, ranks, ranks // size))
    for token, experts in enumerate(chosen):
        kept = [place[e] for e in experts if e >= 0]
        for rank in kept:
            per_expert[sources[token], rank] += 1
        for rank in set(kept):
            per_rank[sources[token], rank] += 1
        for node in {rank // size for rank in kept}:
            per_node[sources[token], node] += 1
    return per_expert, per_rank, per_node


@given(data=st.data())
@settings(max_examples=examples(80), deadline=None)
def test_copies_are_what_a_token_by_token_count_gives(data):
    size, nodes = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    ranks = size * nodes
    experts, topk = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5))
    tokens = data.draw(st.integers(1, 25))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    chosen, place = rng.integers(-1, experts, (tokens, topk)), rng.integers(0, ranks, experts)
    sources = rng.integers(0, ranks, tokens)
    copies = Copies.from_assignment(chosen, place, ranks=ranks, ranks_per_node=size, rank_of_token=sources)
    expected = counted(chosen, place, ranks, size, sources)
    for found, wanted in zip((copies.per_expert, copies.per_rank, copies.per_node), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(copies.experts, np.bincount(chosen[chosen >= 0], minlength=experts))
    np.testing.assert_array_equal(copies.tokens, np.bincount(sources, minlength=ranks))
    assert copies.mean_ranks == expected[1].sum() / tokens
    assert copies.mean_nodes == expected[2].sum() / tokens


def test_blocks_join_without_a_seam():
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, 16, (40_000, 3))
    whole = Copies.from_assignment(chosen, np.arange(16) // 2, ranks=8, ranks_per_node=4)
    expected = counted(chosen, np.arange(16) // 2, 8, 4, np.arange(40_000) % 8)
    np.testing.assert_array_equal(whole.per_rank, expected[1])
    np.testing.assert_array_equal(whole.per_node, expected[2])


def test_a_copy_of_fp8_carries_its_scales():
    # DeepEP low latency: 7168 + 4 * 7168/128 + 16 = 7,408 bytes; a combine in bf16 2 * 7168
    fp8 = Payload(hidden=7168, dtype=DType.FP8_E4M3FN, scale_block=128, metadata_bytes=16)
    assert fp8.copy_bytes == 7408
    assert Payload(hidden=7168, dtype=DType.BF16).copy_bytes == 14_336


def test_logical_bytes_hold_the_local_ones_and_remote_ones_do_not():
    # experts 0, 1 on rank 0 and 2, 3 on rank 1; token 0 of rank 0, token 1 of rank 1
    copies = Copies.from_assignment(np.array([[0, 2], [0, 1]]), np.array([0, 0, 1, 1]), ranks=2)
    traffic = Traffic(wire_bytes=copies.per_expert * 10.0)
    np.testing.assert_array_equal(traffic.wire_bytes, [[10, 10], [20, 0]])
    assert (traffic.total_bytes, traffic.local_bytes, traffic.remote_bytes, traffic.remote_share) == (40, 10, 30, 0.75)
    np.testing.assert_array_equal(traffic.sent(), [10, 20])
    np.testing.assert_array_equal(traffic.received(), [20, 10])


def test_once_per_rank_sends_one_copy_to_two_experts_of_a_rank():
    place, chosen = np.array([0, 0, 1, 1]), np.array([[2, 3]])
    copies = Copies.from_assignment(chosen, place, ranks=2)
    assert Traffic(wire_bytes=copies.per_expert * 10.0).remote_bytes == 20
    assert Traffic(wire_bytes=copies.per_rank * 10.0).remote_bytes == 10


def test_imbalance_is_maximum_over_mean():
    assert imbalance(np.array([1, 1, 4])) == 2.0
    assert imbalance(np.array([0, 0])) == 1.0


def sent_by(sources):
    return Copies.from_assignment(np.array([[0]]), np.array([0, 1]), ranks=2, rank_of_token=np.array(sources))


def test_the_last_rank_may_send_and_nothing_sent_is_nothing_counted():
    np.testing.assert_array_equal(sent_by([1]).per_rank, [[0, 0], [1, 0]])
    none = Copies.from_assignment(np.zeros((0, 2), int), np.array([0, 1]), ranks=2)
    assert (none.per_rank.sum(), none.mean_ranks, none.mean_nodes) == (0, 0.0, 0.0)
    assert Traffic.even(5, 3).wire_bytes.tolist() == [[0, 5, 5], [5, 0, 5], [5, 5, 0]]
    assert Traffic(wire_bytes=np.zeros((2, 2))).remote_share == 0.0
    assert imbalance(np.array([])) == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Traffic(wire_bytes=np.zeros((2, 3))), "square matrix of ranks, not 2 x 3"),
        (lambda: Traffic(wire_bytes=np.array([[0.0, -1.0], [0.0, 0.0]])), "must be 0 or more bytes"),
        (lambda: Copies.from_assignment(np.array([[4]]), np.array([0, 1]), ranks=2), "there are 2 experts"),
        (lambda: Copies.from_assignment(np.array([[0]]), np.array([5]), ranks=2), "there are 2 ranks"),
        (
            lambda: Copies.from_assignment(np.array([[0]]), np.array([0]), ranks=6, ranks_per_node=4),
            "do not fill whole nodes",
        ),
        (lambda: Exchange.direct(Traffic.even(1, 6), 4), "6 ranks do not fill whole nodes of 4 ranks"),
        (lambda: Exchange.direct(Traffic.even(1, 6), 0), "6 ranks do not fill whole nodes of 0 ranks"),
        (lambda: sent_by([2]), "source rank is outside 0 to 1"),
        (lambda: sent_by([-1]), "source rank is outside 0 to 1"),
        (lambda: sent_by([0, 0]), "1 tokens but 2 source ranks"),
        (lambda: Copies.from_assignment(np.array([[-2]]), np.array([0]), ranks=1), "run from -2 to -2"),
        (lambda: Copies.from_assignment(np.array([[0]]), np.array([-1]), ranks=1), "ranks -1 to -1"),
        (lambda: Copies.from_assignment(np.array([[0]]), np.array([1]), ranks=1), "ranks 1 to 1"),
        (lambda: Copies.from_assignment(np.array([[0]]), np.array([], int), ranks=1), "one rank per expert"),
    ],
)
def test_what_does_not_fit_is_one_sentence(call, message):
    with pytest.raises(UsageError, match=message):
        call()
