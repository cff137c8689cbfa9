"""Degrees that do not come out even are errors that show the product; groups say who stands where."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.predict.network.topology import Group
from tracelens.predict.workload.parallel_config import ParallelConfig


def test_a_product_that_is_not_the_cluster_is_shown() -> None:
    with pytest.raises(UsageError, match=r"^tp 8 \* pp 4 \* cp 1 \* dp 3 = 96 ranks, but the cluster has 64$"):
        ParallelConfig.of(ranks=64, global_batch=3, tp=8, pp=4, dp=3)


def test_a_batch_that_does_not_divide_is_shown() -> None:
    with pytest.raises(
        UsageError, match=r"micro-batch 2 \* dp 8 = 16 sequences per pass do not divide the global batch 24"
    ):
        ParallelConfig.of(ranks=64, global_batch=24, tp=8, micro_batch=2)


@pytest.mark.parametrize(
    ("asked", "recompute"),
    [
        ({}, "none"),
        ({"recompute_modules": "mlp,layernorm"}, "selective"),
        ({"recompute_layers": 4}, "full"),
        ({"recompute_modules": "mlp", "recompute": "full"}, "full"),
    ],
)
def test_what_to_recompute_asks_for_it(asked: dict[str, Any], recompute: str) -> None:
    assert ParallelConfig.of(ranks=8, global_batch=8, **asked).recompute == recompute


def test_experts_take_their_ranks_from_the_stage() -> None:
    with pytest.raises(
        UsageError, match=r"ep 16 \* etp 1 = 16 does not divide tp 2 \* cp 1 \* dp 4 = 8 ranks of a stage"
    ):
        ParallelConfig(tp=2, dp=4, ep=16)


@pytest.mark.parametrize(("name", "value"), [("tp", 0), ("micro_batch", 0), ("zero", 4), ("shard", 3)])
def test_a_degree_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(UsageError, match=name):
        ParallelConfig(**{"dp": 8, name: value})


def test_data_parallel_degree_is_what_the_ranks_leave() -> None:
    found = ParallelConfig.of(ranks=512, global_batch=128, tp=8, pp=4, cp=2, micro_batch=2)
    assert (found.dp, found.micro_batches, found.global_batch) == (512 // 64, 128 // 16, 128)


def test_groups_are_numbered_tensor_context_data_pipeline() -> None:
    p = ParallelConfig(tp=4, cp=2, dp=8, pp=3)
    assert p.tp_group == Group(ranks=4, stride=1)
    assert p.cp_group == Group(ranks=2, stride=4)
    assert p.dp_group == Group(ranks=16, stride=4)
    assert p.pp_group == Group(ranks=3, stride=64)


def test_expert_ranks_of_a_node_are_its_ranks_over_tp() -> None:
    p = ParallelConfig(tp=2, sequence_parallel=True, dp=32, ep=32)
    assert p.ep_group.within(8) == 8 // 2


def test_experts_that_need_the_tensor_ranks_too_stand_side_by_side() -> None:
    assert ParallelConfig(tp=2, dp=4, ep=8).ep_group == Group(ranks=8, stride=1)


def test_dense_and_expert_weights_have_groups_of_two_sizes() -> None:
    p = ParallelConfig(tp=2, cp=2, dp=16, ep=8)
    assert p.dp_group.ranks == 2 * 16
    assert p.expert_dp_group.ranks == 2 * 2 * 16 // 8


def test_hybrid_sharding_has_shards_and_replicas() -> None:
    p = ParallelConfig(tp=2, dp=32, zero=3, shard=8)
    assert (p.shard_group, p.replica_group) == (Group(ranks=8, stride=2), Group(ranks=4, stride=16))


@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.integers(1, 8),
    st.integers(1, 9),
)
def test_ranks_and_batch_are_products(tp: int, pp: int, cp: int, dp: int, passes: int) -> None:
    p = ParallelConfig.of(ranks=tp * pp * cp * dp, global_batch=3 * dp * passes, tp=tp, pp=pp, cp=cp, micro_batch=3)
    assert (p.ranks, p.global_batch, p.micro_batches) == (tp * pp * cp * dp, 3 * dp * passes, passes)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp_overlap": True}, "no tp_overlap named 'True'; known: all, backward, none"),
        ({"gradients": "fp16"}, "no gradients named 'fp16'; did you mean bf16"),
        ({"graphs": "some"}, "no graphs named 'some'"),
        ({"bf16_layers": (-1, 2)}, "two layer counts"),
        ({"bf16_layers": (1,)}, "two layer counts"),
    ],
)
def test_a_choice_that_nothing_reads_is_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        ParallelConfig(**given)
