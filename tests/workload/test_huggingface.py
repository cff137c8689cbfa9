"""``config.json`` files: every known model type, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.predict.workload import ModelConfig
from tracelens.types.dtypes import DType

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "rope_theta": 500000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "attention_bias": False, "mlp_bias": False,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "sliding_window": None, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN25 = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "use_sliding_window": False,
    "sliding_window": 131072, "max_window_layers": 28, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 151936, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "layer_types": ["full_attention"] * 28,
}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
    "num_hidden_layers": 48, "head_dim": 128, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128,
    "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
    "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1, "vocab_size": 129280, "torch_dtype": "bfloat16", "n_group": 8, "topk_group": 4,
    "quantization_config": {"quant_method": "fp8"},
}  # fmt: skip
DEEPSEEK_V2_LITE = {
    "model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
    "num_hidden_layers": 27, "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
    "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1, "vocab_size": 102400,
    "torch_dtype": "bfloat16",
}  # fmt: skip
KIMI = {
    "model_type": "kimi_k25", "vision_config": {},
    "text_config": DEEPSEEK_V3 | {
        "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
        "first_k_dense_replace": 1, "num_nextn_predict_layers": 0, "vocab_size": 163840,
    },
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 36, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 128, "num_experts_per_tok": 4,
    "experts_per_token": 4, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 18,
    "vocab_size": 201088, "attention_bias": True, "swiglu_limit": 7.0, "torch_dtype": "bfloat16",
}  # fmt: skip
NEMOTRON = {
    "model_type": "nemotron_h", "hidden_size": 2688, "intermediate_size": 1856, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "n_routed_experts": 128, "n_shared_experts": 1,
    "num_experts_per_tok": 6, "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 2,
    "head_dim": 128, "mamba_num_heads": 64, "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128,
    "conv_kernel": 4, "chunk_size": 128, "vocab_size": 131072, "torch_dtype": "bfloat16", "use_conv_bias": True,
    "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
}  # fmt: skip
MPT = {
    "model_type": "mpt", "d_model": 2048, "n_heads": 16, "n_layers": 24, "expansion_ratio": 4, "max_seq_len": 2048,
    "vocab_size": 50368, "no_bias": False, "learned_pos_emb": True, "attn_config": {"attn_impl": "triton"},
    "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
}  # fmt: skip
GPT_NEOX = {
    "model_type": "gpt_neox", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 8, "vocab_size": 50304, "rotary_pct": 0.25, "tie_word_embeddings": False,
    "torch_dtype": "float16",
}  # fmt: skip


def written(folder: Path, values) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def shape(model: ModelConfig) -> ModelConfig:
    """Everything but what it is called."""
    return replace(model, name="", label="", source="", aliases=(), notes=(), quantization=None, vision=None)


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (LLAMA, "llama3.1-8b"), (MIXTRAL, "mixtral-8x7b"), (QWEN25, "qwen2.5-7b"), (QWEN3, "qwen3-0.6b"),
        (DEEPSEEK_V3, "deepseek-v3"), (DEEPSEEK_V2_LITE, "deepseek-v2-lite"), (KIMI, "kimi-k2"),
        (GPT_OSS, "gpt-oss-120b"), (MPT, "mpt-1b"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_config_is_the_same_model_as_the_file_of_this_package(tmp_path, values, name):
    model = ModelConfig.load(written(tmp_path, values))
    # a dense width beside experts is a figure that no block uses
    assert shape(model) == replace(shape(ModelConfig.load(name)), ffn=model.ffn)
    assert model.notes == ()


@pytest.mark.parametrize(("values", "name"), [(QWEN3_MOE, "qwen3-30b-a3b"), (NEMOTRON, "nemotron-3-nano")])
def test_unused_dense_widths_change_nothing(tmp_path, values, name):
    read, bundled = ModelConfig.load(written(tmp_path, values)), ModelConfig.load(name)
    assert read.parameters() == bundled.parameters()
    assert read.flops_per_token(4096) == bundled.flops_per_token(4096)
    assert read.notes == ()


@pytest.mark.parametrize(
    ("values", "published"),
    # Hugging Face, safetensors metadata: openai-community/gpt2 (124,439,808), EleutherAI/pythia-1b (1,011,781,632)
    [(GPT2, 124_439_808), (GPT_NEOX, 1_011_781_632)],
)
def test_older_types_have_their_published_parameters(tmp_path, values, published):
    assert ModelConfig.load(written(tmp_path, values)).parameters().total == published


def test_a_folder_with_a_config_and_its_type_are_enough(tmp_path):
    folder = tmp_path / "my-llama"
    folder.mkdir()
    written(folder, LLAMA)
    model = ModelConfig.load(str(folder))
    assert (model.name, model.dtype) == ("my-llama", DType.BF16)


def test_shared_and_sparse_layers_of_qwen2_moe(tmp_path):
    values = QWEN3_MOE | {
        "model_type": "qwen2_moe", "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 2,
        "mlp_only_layers": [1], "num_hidden_layers": 6,
    }  # fmt: skip
    model = ModelConfig.load(written(tmp_path, values))
    # layers 1, 3 and 5 are sparse by step, 1 is dense by name
    assert model.blocks == "*-*-*-*E*-*E"
    assert model.qkv_bias
    assert not model.out_bias
    assert (model.experts.shared_ffn, model.experts.shared_gate) == (5632, True)


def test_qwens_windows_are_off_unless_switched_on_and_begin_after_the_full_layers(tmp_path):
    """As ``Qwen2Config`` has it: ``use_sliding_window`` False, layers from ``max_window_layers`` on."""
    off = QWEN25 | {"use_sliding_window": None, "num_hidden_layers": 4}
    assert ModelConfig.load(written(tmp_path, off)).blocks == "*-*-*-*-"
    on = QWEN25 | {"use_sliding_window": True, "max_window_layers": 3, "num_hidden_layers": 4}
    assert ModelConfig.load(written(tmp_path, on)).blocks == "*-*-*-w-"


def test_a_hybrid_may_list_its_blocks(tmp_path):
    kinds = ["mamba", "moe", "attention", "mlp"]
    values = NEMOTRON | {"hybrid_override_pattern": None, "layers_block_type": kinds, "num_hidden_layers": 4}
    values |= {"num_nextn_predict_layers": 1, "mtp_layers_block_type": ["attention", "moe"]}
    model = ModelConfig.load(written(tmp_path, values))
    assert (model.blocks, model.mtp_layers, model.mtp_blocks) == ("ME*-", 1, "*E")


def test_keys_that_were_not_read_are_named(tmp_path):
    model = ModelConfig.load(written(tmp_path, LLAMA | {"altup_active_idx": 3, "laurel_rank": 64, "empty": None}))
    assert model.notes == ("config.json: keys not read: altup_active_idx, laurel_rank",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": None, "vocab_size": None}, "not a complete model config, missing: hidden_size, vocab_size"),
        (
            {"model_type": "t5", "is_encoder_decoder": True},
            "model_type 't5' is not known, and is_encoder_decoder stands for",
        ),
        ({"model_type": "modernbert"}, "modernbert has blocks that tracelens does not model"),
        ({"model_type": "rwkv6", "hidden_size": None}, "rwkv6 has blocks that tracelens does not model"),
        ({"model_type": "whisper", "encoder_layers": 32, "hidden_size": None}, "'whisper' is not known, and encoder_l"),
        ({"model_type": "arctic", "parallel_attn_mlp_res": True}, "parallel_attn_mlp_res stands for blocks"),
        ({"conv_L_cache": 3}, "missing: layer_types"),
        ({"conv_L_cache": 3, "layer_types": ["conv"]}, "layer_types has 1 entries for 32 layers"),
        ({"block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": "2"}, "block_ffn_dim_multiplier must be a num"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "word_embed_proj_dim 512 with hidden_size 4096"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number, got '32'"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, which is too large for any model"),
        ({"linear_attn_config": {"kda_layers": [1]}}, "do not name each of 32 layers once"),
        ({"layer_types": ["linear_attention"] * 32}, "layer_types has linear_attention, which is not supported"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
        ({"layer_types": [["full_attention"]]}, "layer_types must be a list of strings"),
        (QWEN3_MOE | {"mlp_only_layers": 5}, "mlp_only_layers must be a list of whole numbers, got 5"),
        (QWEN3_MOE | {"num_experts_per_tok": 129}, "top_k 129 does not fit 128 experts"),
        (NEMOTRON | {"hybrid_override_pattern": 5}, "hybrid_override_pattern must be a list of strings, got 5"),
        (MPT | {"attn_config": "alibi"}, "attn_config must be an object, got 'alibi'"),
        (MPT | {"attn_config": {"kv_n_heads": "4"}}, "kv_n_heads must be a whole number, got '4'"),
        (MPT | {"expansion_ratio": "4"}, "expansion_ratio must be a number above 0, got '4'"),
        (QWEN25 | {"model_type": "qwen2_moe", "use_sliding_window": True}, "needs layer_types"),
    ],
)
def test_what_cannot_be_counted_is_one_clear_error(tmp_path, change, message):
    with pytest.raises(InputError) as caught:
        ModelConfig.load(written(tmp_path, LLAMA | change))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not a JSON file"), ("[]", "its top level is not an object")]
)
def test_a_file_that_is_no_config_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        ModelConfig.load(path)


def test_a_missing_file_is_one_clear_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        ModelConfig.load(tmp_path / "config.json")
