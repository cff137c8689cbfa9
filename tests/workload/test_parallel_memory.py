"""Activations and states equal the published formulas; what is divided is divided."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.predict.workload import memory
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.types.units import BYTES_PER_GIB

# name, pipeline ranks, chunks, micro-batch, then figure 1 of arXiv 2205.05198 in GiB: none, selective + SP.
FIGURE_1 = [
    ("megatron-22b", 1, 1, 4, 59.25, 9.56),
    ("gpt3-175b", 8, 3, 1, 66.84, 12.35),
    ("mt-nlg-530b", 35, 3, 1, 114.02, 23.08),
    ("megatron-1t", 64, 1, 1, 131.25, 26.56),
]


def first_stage_bytes(name: str, p: ParallelConfig) -> float:
    """All layers once, times 1 + (p-1)/(p v): what the first stage of an interleaved schedule keeps."""
    model = replace(ModelConfig.load(name), dropout=True)
    layers = model.attention_blocks
    one = sum(memory.activation_bytes(model, p, letter, 2048) for letter in "*-")
    return layers * one * (1 + (p.pp - 1) / (p.pp * p.vpp) if p.vpp > 1 else 1)


@pytest.mark.parametrize(("name", "pp", "vpp", "micro_batch", "none", "selective"), FIGURE_1)
def test_activations_are_those_of_the_published_figure(
    name: str, pp: int, vpp: int, micro_batch: int, none: float, selective: float
) -> None:
    p = ParallelConfig(tp=8, pp=pp, vpp=vpp, micro_batch=micro_batch, precision="fp16", attention="unfused")
    assert first_stage_bytes(name, p) / BYTES_PER_GIB == pytest.approx(none, abs=0.006)
    p = replace(p, sequence_parallel=True, recompute="selective")
    assert first_stage_bytes(name, p) / BYTES_PER_GIB == pytest.approx(selective, abs=0.006)


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_one_layer_is_s_b_h_times_10_plus_24_over_t_plus_5as_over_ht(tp: int) -> None:
    model, s, b = replace(ModelConfig.load("gpt3-175b"), dropout=True), 2048, 3
    p = ParallelConfig(tp=tp, micro_batch=b, attention="unfused")
    h, a = model.hidden, model.q_heads
    one = sum(memory.activation_bytes(model, p, letter, s) for letter in "*-")
    assert one == pytest.approx(s * b * h * (10 + 24 / tp + 5 * a * s / (h * tp)))
    full = replace(p, recompute="full")
    assert sum(memory.activation_bytes(model, full, letter, s) for letter in "*-") == 2 * s * b * h


def test_swiglu_and_shared_keys_have_their_own_tensors() -> None:
    """Llama-3 8B, tp 1, per token: 2 (2+2) h around, q k v and o in 16 bits, LSE, gate, up and their product."""
    model, s = ModelConfig.load("llama3.1-8b"), 1024
    expected = s * (8 * 4096 + 2 * (4096 + 2 * 1024) + 2 * 4096 + 4 * 32 + 2 * 3 * 14336)
    assert sum(memory.activation_bytes(model, ParallelConfig(), letter, s) for letter in "*-") == expected


def test_context_parallelism_divides_tokens() -> None:
    model = ModelConfig.load("llama3.1-8b")
    one, four = (memory.activation_bytes(model, ParallelConfig(cp=cp), "*", 4096) for cp in (1, 4))
    assert one == 4 * four


@pytest.mark.parametrize(("zero", "per_parameter"), [(0, 18), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_states_per_parameter(zero: int, per_parameter: float) -> None:
    held = memory.states(1e9, 0, ParallelConfig(dp=8, zero=zero))
    assert held.weights + held.gradients + held.optimizer == pytest.approx(per_parameter * 1e9)


@pytest.mark.parametrize(("zero", "per_parameter"), [(0, 16), (1, 4 + 12 / 8), (2, 2 + 14 / 8), (3, 16 / 8)])
def test_gradients_in_16_bits_take_2_bytes_less(zero: int, per_parameter: float) -> None:
    held = memory.states(1e9, 0, ParallelConfig(dp=8, zero=zero, gradients="bf16"))
    assert held.weights + held.gradients + held.optimizer == pytest.approx(per_parameter * 1e9)


def test_experts_states_are_divided_among_fewer_ranks() -> None:
    held = memory.states(0, 1e9, ParallelConfig(dp=8, ep=4, zero=1))
    assert held.optimizer == pytest.approx(12e9 / 2)


def test_experts_that_tensor_ranks_do_not_split_are_divided_among_them_too() -> None:
    """8 tensor ranks and 2 data-parallel ones hold the same experts: 16 of 2 + 4 + 12 bytes; shards of a node, 2."""
    for shard, ranks in ((None, 16), (2, 2)):
        held = memory.states(0, 1e9, ParallelConfig(tp=8, dp=2, zero=3, shard=shard))
        assert held.weights + held.gradients + held.optimizer == pytest.approx(18e9 / ranks)


def test_a_sharded_rank_also_holds_two_gathered_layers_and_the_gradients_of_one() -> None:
    from tracelens.predict.workload import rank_ops

    model = ModelConfig.load("llama3.1-8b")
    p = ParallelConfig(dp=8, zero=3)
    layer = rank_ops.block(model, p, "-", 1024)
    found = memory.stage_memory(stage=0, layers=[layer] * 4, parallel=p, kept_bytes=0, logits=0, capacity=1e9)
    assert found.weights == pytest.approx(2 * layer.dense * (4 / 8 + 2 + 1))
    assert not found.fits


def test_recomputed_modules_keep_their_inputs() -> None:
    """DeepSeek-V3, one token: up-projected queries, keys and values; the activation of 8 experts, with
    what they return, as its repetition multiplies by the router's weights; a block's norms.
    """
    model = ModelConfig.load("deepseek-v3")

    def saved(module: str, letter: str) -> float:
        none = memory.activation_bytes(model, ParallelConfig(), letter, 1)
        p = ParallelConfig(recompute="selective", recompute_modules=(module,))
        return none - memory.activation_bytes(model, p, letter, 1)

    assert saved("mla_up_proj", "*") == 2 * 128 * (2 * 192 + 128)
    assert saved("moe_act", "E") == 2 * 8 * (2048 + 7168)
    assert saved("layernorm", "*") == 2 * 7168
    assert saved("shared_experts", "E") == 2 * 3 * 2048
    assert saved("mlp", "-") == 2 * 7168 + 2 * 3 * 18432
    assert saved("moe_act", "*") == 0
