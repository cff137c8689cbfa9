"""Blocks of today's models divided among ranks: what all ranks do together is what the model asks for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import part, row_by_row
from tracelens.predict.workload import ModelConfig, batch_ops, rank_ops
from tracelens.predict.workload.blocks import block_ops, block_types
from tracelens.predict.workload.layer_ops import Batch
from tracelens.predict.workload.model_shape import base_letter
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.ranks import InferenceRank

BASE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 512, "torch_dtype": "bfloat16",
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 32,
}  # fmt: skip
LATENT = BASE | {
    "kv_lora_rank": 64, "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32,
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_shared_experts": 1}
DELTA = {
    "linear_num_key_heads": 8, "linear_num_value_heads": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
MODELS = {
    "latent": LATENT | {"model_type": "deepseek_v3"},
    "selected": LATENT | EXPERTS | {
        "model_type": "deepseek_v32", "index_topk": 64, "index_n_heads": 8, "index_head_dim": 16,
    },
    "compressed": BASE | EXPERTS | {
        "model_type": "deepseek_v4", "compress_ratios": [0, 4, 32, 4], "sliding_window": 16, "q_lora_rank": 64,
        "o_lora_rank": 32, "o_groups": 8, "index_topk": 16, "index_n_heads": 8, "index_head_dim": 16, "hc_mult": 4,
    },
    "delta": BASE | EXPERTS | DELTA | {"model_type": "qwen3_next"},
    "kimi": LATENT | {
        "model_type": "kimi_linear", "mla_use_output_gate": True, "attn_res_block_size": 2, "linear_attn_config": {
            "kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 16, "head_dim": 16,
            "short_conv_kernel_size": 4,
        },
    },
    "lightning": BASE | {"model_type": "minimax", "attn_type_list": [0, 0, 0, 1]},
    "blocks": BASE | {
        "model_type": "minimax_m3", "sparse_attention_config": {
            "sparse_num_index_heads": 8, "sparse_index_dim": 16, "sparse_topk_blocks": 2, "sparse_block_size": 16,
            "sparse_attention_freq": [0, 1, 1, 1],
        },
    },
    "windows": BASE | {
        "model_type": "gemma4_text", "sliding_window": 16, "global_head_dim": 64, "num_global_key_value_heads": 4,
        "attention_k_eq_v": True, "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "chunks": BASE | {"model_type": "llama4_text", "attention_chunk_size": 64} | EXPERTS,
    "mamba": BASE | EXPERTS | {
        "model_type": "nemotron_h", "hybrid_override_pattern": "ME*-", "mamba_num_heads": 16, "mamba_head_dim": 16,
        "n_groups": 8, "ssm_state_size": 16, "conv_kernel": 4, "chunk_size": 32,
    },
    "beside": BASE | {
        "model_type": "falcon_h1", "mamba_d_ssm": 256, "mamba_n_heads": 16, "mamba_d_head": 16, "mamba_n_groups": 8,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_chunk_size": 32,
    },
    "convolutions": BASE | {"model_type": "lfm2", "conv_L_cache": 3, "full_attn_idxs": [1, 3]},
    "shortcut": LATENT | {
        "model_type": "longcat_flash", "num_layers": 2, "n_routed_experts": 8, "zero_expert_num": 4, "moe_topk": 3,
        "zero_expert_type": "identity", "expert_ffn_hidden_size": 64, "ffn_hidden_size": 512,
    },
    "searched": BASE | {
        "model_type": "nemotron-nas", "block_configs": [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 3.0}},
            {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 1.5}},
            {"attention": {"no_op": True}, "ffn": {"replace_with_linear": True}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        ],
    },
}  # fmt: skip


@pytest.fixture(params=part(list(MODELS), 3), ids=list(MODELS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> ModelConfig:
    path = tmp_path / f"{request.param}.json"
    path.write_text(json.dumps(MODELS[request.param]))
    return ModelConfig.load(path)


def matrix_flops(model: ModelConfig, parallel: ParallelConfig, letter: str, phase: str) -> float:
    layer = rank_ops.block(model, parallel, letter, 256)
    ops = [op for op in layer.ops if op.phase == phase and not op.is_communication and op.model.engine == "matrix"]
    return sum(op.count * (op.model.flops() or 0) for op in ops)


@row_by_row("degrees", [{"tp": 2}, {"tp": 4}, {"cp": 2}, {"cp": 4, "tp": 2}, {"dp": 2, "ep": 2}])
@pytest.mark.parametrize("phase", ["forward", "dgrad", "wgrad"])
def test_one_ranks_work_times_ranks_is_the_models(model: ModelConfig, degrees: dict[str, int], phase: str):
    if degrees.get("ep", 1) > 1 and model.experts is None:
        pytest.skip("no experts")
    parallel = ParallelConfig(**degrees, sequence_parallel=True)
    share = parallel.tp * parallel.cp
    for letter in sorted(set(model.blocks)):
        alone = matrix_flops(model, ParallelConfig(sequence_parallel=True), letter, phase)
        # each context rank sums the gradients of shared heads over the keys that it sees: a few of a thousand operations
        tolerance = 1e-3 if phase == "dgrad" and parallel.cp > 1 else 1e-9
        assert share * matrix_flops(model, parallel, letter, phase) == pytest.approx(alone, rel=tolerance), letter


@pytest.mark.parametrize("tp", [2, 4])
def test_weights_of_tensor_ranks_add_up_but_for_what_each_keeps(model: ModelConfig, tp: int):
    for letter in sorted(set(model.blocks)):
        whole = {op.name: op for op in block_ops(Batch(shape=model, batch=1, sequence=256), letter)}
        held = rank_ops.weights(model, ParallelConfig(tp=tp, sequence_parallel=True), letter, 256)
        for name, count in held.items():
            divided = whole[name].split not in ("tokens", "experts") and not whole[name].is_replicated
            assert count * (tp if divided else 1) == whole[name].weights, (letter, name)


def test_an_engines_devices_together_do_the_models_work(model: ModelConfig):
    """Products that tensor parallelism divides, and cores, for a prompt and for a decode step."""
    local = batch_ops.sharded(model, tp=4, expert_shards=4)
    whole = InferenceRank(shape=model, local=model, name=model.name)
    part = InferenceRank(shape=model, local=local, name=model.name, tp=4)
    for letter in sorted(set(model.blocks)):
        divided = [op.split != "tokens" for op in batch_ops.device_block_ops(whole, letter, 64) if not op.is_core]
        pairs = zip(
            divided,
            (op for op in batch_ops.device_block_ops(whole, letter, 64) if not op.is_core),
            (op for op in batch_ops.device_block_ops(part, letter, 64) if not op.is_core),
            strict=True,
        )
        for is_divided, one, own in pairs:
            if one.model.engine == "matrix":
                assert own.forward_flops * (4 if is_divided else 1) == one.forward_flops, (letter, own.name)
        for lengths in ({"b": 2, "new": 128, "past": 0}, {"b": 8, "new": 1, "past": 200}):
            for one, own in zip(
                batch_ops.core_ops(whole, letter, **lengths),
                batch_ops.core_ops(part, letter, **lengths),
                strict=True,
            ):
                share = 1 if type(one).__name__ in ("IndexerScores", "TopKRows") else 4
                assert (own.flops() or 0) * share == (one.flops() or 0), letter


def test_an_engine_keeps_what_its_cores_read(model: ModelConfig):
    """A token more costs what ``cached_bytes`` says; states and windows do not grow."""
    rank = InferenceRank(shape=model, local=model, name=model.name)
    kept = batch_ops.sequence_bytes(rank, model, model.blocks)
    mixes = [letter for letter in model.blocks if block_types()[letter].mixes_tokens]
    assert kept.per_token >= 0
    for letter in mixes:
        one = batch_ops.sequence_bytes(rank, model, letter)
        assert one.per_token + one.windows + one.state > 0, base_letter(letter)
    assert kept.per_token == pytest.approx(sum(batch_ops.cache_bytes(rank, model, x) for x in mixes))


def test_all_but_experts_is_the_same_however_experts_are_divided(model: ModelConfig, monkeypatch: pytest.MonkeyPatch):
    """What ``rank_ops`` keeps for the next division of experts is what it would make for it."""

    def made(parallel: ParallelConfig) -> dict[str, list[rank_ops.RankLayer]]:
        blocks = {letter: [rank_ops.block(model, parallel, letter, 256)] for letter in sorted(set(model.blocks))}
        return blocks | rank_ops.ends(model, parallel, 256)

    experts = {} if model.experts is None else {"ep": 2, "etp": 2}
    parallel = ParallelConfig(tp=2, sequence_parallel=True, dp=4, shard=2, **experts)
    kept = made(parallel)
    monkeypatch.setattr(rank_ops, "_without_experts", lambda parallel: parallel)
    for each in (rank_ops._block, rank_ops._head):
        each.cache_clear()
    assert made(parallel) == kept
