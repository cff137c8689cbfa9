"""Layers read from a config's structure: by lists, by patterns, by a configuration each; and quantized checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.errors import InputError
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.model_shape import base_letter
from tracelens.types.dtypes import DType

BASE = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": 1000,
    "num_attention_heads": 8, "num_key_value_heads": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def load(folder: Path, values: dict[str, object], beside: dict[str, object] | None = None) -> ModelConfig:
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    if beside is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(beside))
    return ModelConfig.load(path)


def bases(model: ModelConfig) -> str:
    return "".join(map(base_letter, model.blocks))


@pytest.mark.parametrize(
    ("change", "blocks"),
    [
        (EXPERTS, "*E*E*E*E"),
        (EXPERTS | {"first_k_dense_replace": 2}, "*-*-*E*E"),
        (EXPERTS | {"moe_layer_freq": [0, 1, 0, 1]}, "*-*E*-*E"),
        (EXPERTS | {"interleave_moe_layer_step": 2}, "*-*E*-*E"),
        (EXPERTS | {"mlp_only_layers": [3]}, "*E*E*E*-"),
        (EXPERTS | {"moe_layers_enum": "1,2"}, "*-*E*E*-"),
        (EXPERTS | {"mlp_layer_types": ["dense", "sparse", "sparse", "dense"]}, "*-*E*E*-"),
        ({"sliding_window": 16}, "w-w-w-w-"),
        ({"sliding_window": 16, "hybrid_layer_pattern": [0, 1, 1, 0]}, "*-w-w-*-"),
        ({"sliding_window": 16, "sliding_window_pattern": 2}, "w-*-w-*-"),
        ({"model_type": "gemma2", "sliding_window": 16}, "w-*-w-*-"),
        ({"model_type": "llama4_text", "attention_chunk_size": 16}, "c-c-c-*-"),
        ({"model_type": "minimax", "attn_type_list": [0, 1, 0, 1], "head_dim": 8}, "L-*-L-*-"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"] * 2, "mamba_n_heads": 4,
          "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_chunk_size": 8},
         "M-*-M-*-"),
    ],
)  # fmt: skip
def test_what_a_layer_is_made_of(tmp_path, change, blocks):
    assert bases(load(tmp_path, BASE | change)) == blocks


def test_a_searched_architecture_has_a_configuration_per_layer(tmp_path):
    """Llama-Nemotron: 2 query heads per key head and a wide layer, 4 and a narrow one, a product, nothing."""
    configured = [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 6.0}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"no_op": True}, "ffn": {"replace_with_linear": True}},
    ]
    given = BASE | {"model_type": "nemotron-nas", "block_configs": configured, "num_key_value_heads": None}
    model = load(tmp_path, given)
    assert bases(model) == "*-*-=="
    wide, first, narrow, second = (model.of(letter) for letter in model.blocks[:4])
    assert (wide.kv_heads, narrow.kv_heads) == (4, 2)
    # two thirds of ffn_mult x hidden, up to the next multiple of 256
    assert (first.ffn, second.ffn) == (256, 256)
    heads = 64 * (8 + 2 * 4) * 8 + 64 * 64 + 64 * (8 + 2 * 2) * 8 + 64 * 64
    feed_forwards, products, norms = 2 * 3 * 64 * 256, 2 * 64 * 64, 7 * 64
    assert model.parameters().total == 2 * 1000 * 64 + heads + feed_forwards + products + norms


def test_heads_of_another_size_within_windows(tmp_path):
    """MiMo-V2: 4 key heads of 24 with values of 16 in full layers, 8 within windows."""
    model = load(tmp_path, BASE | {
        "model_type": "mimo_v2_flash", "head_dim": 24, "v_head_dim": 16, "swa_num_key_value_heads": 8,
        "sliding_window": 16, "hybrid_layer_pattern": [0, 1, 1, 1],
    })  # fmt: skip
    full, near = model.of(model.blocks[0]), model.of(model.blocks[2])
    assert (full.kv_heads, near.kv_heads, near.d_qk, near.d_v) == (2, 8, 24, 16)
    assert [base_letter(letter) for letter in model.blocks] == list("*-w-w-w-")


def test_gates_and_latent_experts_are_weights(tmp_path):
    plain = load(tmp_path, BASE).parameters().total
    assert load(tmp_path, BASE | {"attn_output_gate": True}).parameters().total == plain + 4 * 64 * 8 * 8
    assert load(tmp_path, BASE | {"use_head_wise_attn_gate": True}).parameters().total == plain + 4 * 64 * 8
    experts = BASE | EXPERTS
    latent = load(tmp_path, experts | {"moe_latent_size": 16, "latent_moe_use_norm": True}).parameters().total
    full = load(tmp_path, experts).parameters().total
    assert latent - full == 4 * (2 * 64 * 16 + 16 - 8 * 3 * 32 * (64 - 16))


def test_an_unknown_type_is_read_by_its_structure_and_says_what_it_assumes(tmp_path):
    model = load(tmp_path, BASE | {"model_type": "unheard_of"})
    assert model.parameters() == load(tmp_path, BASE).parameters()
    assert model.notes == (
        "config.json: model_type 'unheard_of' is not known: read by its structure",
        (
            "config.json: assumed: RMS norm before each block, gated feed-forwards, rotary positions, no norm of queries "
            "and keys, no biases, logits with weights of their own"
        ),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model_type": "odd", "ssm_cfg": {"layer": "Mamba1"}},
            "ssm_cfg stands for blocks that tracelens does not model",
        ),
        ({"model_type": "odd", "cross_attention_layers": [3]}, "cross_attention_layers stands for blocks"),
        ({"layer_types": ["conv"] * 4}, "layer_types has conv, which is not supported"),
        ({"index_topk": 64}, "index_topk without kv_lora_rank"),
        ({"compress_ratios": [4, 4]}, "compress_ratios has 2 entries for 4 layers"),
        ({"attn_type_list": [0, 1, 1, 1]}, "attn_type_list has a kind of attention that is not known"),
        ({"attention_chunk_size": 64}, "no key says which layers use it"),
        ({"block_configs": [{}]}, "block_configs has 1 entries for 4 layers"),
        ({"block_configs": [{"ffn": {}}] * 4}, "a feed-forward without a width"),
        ({"quantization_config": {"quant_method": "secret"}}, "quant_method 'secret' is not known"),
        ({"quantization_config": {"quant_algo": "W3A3"}}, "quant_algo W3A3 is not known"),
        (
            {"quantization_config": {"quant_method": "quark", "global_quant_config": {"weight": [{"dtype": "fp4"}]}}},
            "Quark's weight has no element type",
        ),
        ({"quantization_config": {"config_groups": {"group_0": {"weights": {"num_bits": 3}}}}}, "3 bits are not known"),
    ],
)
def test_what_would_be_a_guess_is_refused(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        load(tmp_path, BASE | change)


BLOCKS_OF_128 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head", "gate"]}


#: As AMD's MXFP4 checkpoints have it.
QUARK = {name: {"dtype": "fp4", "qscheme": "per_group", "group_size": 32} for name in ("weight", "input_tensors")}


@pytest.mark.parametrize(
    ("config", "parts"),
    [
        (BLOCKS_OF_128, {"attention": "fp8", "dense": "fp8", "experts": "fp8"}),
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}, {"experts": "fp4"}),
        ({"quant_algo": "NVFP4", "exclude_modules": ["lm_head", *(f"model.layers.{i}.self_attn*" for i in range(4))]},
         {"dense": "fp4", "shared": "fp4", "experts": "fp4"}),
        ({"quant_algo": "NVFP4", "exclude_modules": ["model.layers.0.self_attn*", "model.layers.1.mlp.gate"]},
         {"attention": "fp4", "dense": "fp4", "shared": "fp4", "experts": "fp4", "logits": "fp4"}),
        ({"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*"],
          "config_groups": {"g": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}}},
         {"dense": "int4", "experts": "int4"}),
        ({"quant_algo": "MIXED_PRECISION", "quantized_layers": {
            "model.layers.0.linear_attn.out_proj": {"quant_algo": "FP8"},
            "model.layers.0.mlp.experts": {"quant_algo": "W4A16_NVFP4"}, "lm_head": {"quant_algo": "FP8"}}},
         {"attention": "fp8", "experts": "fp4", "logits": "fp8"}),
        ({"quant_method": "quark", "exclude": ["lm_head", "*self_attn*", "*mlp.gate.*"], "global_quant_config": QUARK},
         {"dense": "fp4", "shared": "fp4", "experts": "fp4"}),
        ({"quant_method": "quark", "exclude": ["lm_head"], "global_quant_config": QUARK,
          "layer_quant_config": {"*self_attn*": {"weight": {"dtype": "fp8_e4m3"}, "input_tensors": None}}},
         {"attention": "fp8", "dense": "fp4", "shared": "fp4", "experts": "fp4"}),
        ({"quant_method": "awq", "bits": 4, "group_size": 128},
         {"attention": "int4", "dense": "int4", "shared": "int4", "experts": "int4"}),
    ],
)  # fmt: skip
def test_parts_of_a_quantized_checkpoint(tmp_path, config, parts):
    held = load(tmp_path, BASE | EXPERTS | {"quantization_config": config}).quantization
    assert held is not None
    found = {part: getattr(held, part) for part in ("attention", "dense", "shared", "experts", "logits")}
    shown = {part: narrow.dtype.rate for part, narrow in found.items() if narrow is not None}
    assert shown == parts | ({"shared": "fp8"} if config is BLOCKS_OF_128 else {})


def test_a_file_beside_the_config_says_the_types_too(tmp_path):
    beside = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    held = load(tmp_path, BASE, beside).quantization
    assert held is not None
    assert (held.name, held.kv, held.logits) == ("FP8", DType.FP8_E4M3FN, None)
    with pytest.raises(InputError, match=r"hf_quant_config.json: quantization must be an object"):
        load(tmp_path, BASE, {"quantization": 5})


def test_scales_weigh_as_much_as_their_format_says(tmp_path):
    def per_weight(config: dict[str, object]) -> float:
        held = load(tmp_path, BASE | {"quantization_config": config}).quantization
        assert held is not None
        assert held.dense is not None
        return held.dense.bytes_per_weight

    assert per_weight(BLOCKS_OF_128) == 1 + 4 / (128 * 128)
    assert per_weight({"quant_algo": "NVFP4"}) == 0.5 + 1 / 16
    assert per_weight({"quant_method": "gptq", "bits": 4, "group_size": 128}) == 0.5 + 2 / 128
    assert per_weight({"quant_algo": "FP8"}) == 1
    assert per_weight({"quant_method": "quark", "global_quant_config": QUARK}) == 0.5 + 1 / 32


def test_weights_alone_are_narrow_where_activations_are_not(tmp_path):
    held = load(tmp_path, BASE | {"quantization_config": {"quant_algo": "W4A16_NVFP4"}}).quantization
    both = load(tmp_path, BASE | {"quantization_config": {"quant_algo": "NVFP4"}}).quantization
    quark = {"quant_method": "quark", "global_quant_config": QUARK}
    of_quark = [
        load(tmp_path, BASE | {"quantization_config": {**quark, **more}}).quantization.dense.computed
        for more in ({}, {"global_quant_config": {"weight": QUARK["weight"]}})
    ]
    assert of_quark == [None, DType.BF16]
    assert held is not None
    assert both is not None
    assert (held.dense.computed, both.dense.computed) == (DType.BF16, None)
