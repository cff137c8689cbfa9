"""A config's keys: which were read, which are missing, and what configs of a model type do not say of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any, Literal

from tracelens.errors import InputError
from tracelens.files.data_table import LARGEST, shown
from tracelens.lazy.records import dataclass
from tracelens.workload.model_shape import VisionTower

#: More than any model has; a larger number is a damaged file, and would be spelled out block by block.
_MOST_LAYERS = 10_000
#: Keys that leave operations and weights as they are.
_WITHOUT_COST = frozenset(
    ("architectures", "auto_map", "model_type", "transformers_version", "torch_dtype", "dtype", "initializer_range",
     "use_cache", "pretraining_tp", "max_position_embeddings", "hidden_act", "hidden_activation", "activation_function",
     "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "tokenizer_class", "pad_token_id",
     "bos_token_id", "eos_token_id", "unk_token_id", "mask_token_id", "ep_size", "aux_loss_alpha", "seq_aux",
     "scoring_func", "topk_method", "topk_group", "n_group", "norm_topk_prob", "routed_scaling_factor",
     "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "quantization_config", "swiglu_limit",
     "experts_per_token", "initial_context_length", "partial_rotary_factor", "rotary_pct",
     "rotary_emb_base", "use_parallel_residual", "classifier_dropout", "n_ctx", "task_specific_params", "resid_pdrop",
     "embd_pdrop", "attn_pdrop", "resid_dropout", "scale_attn_weights", "reorder_and_upcast_attn",
     "scale_attn_by_inverse_layer_idx", "init_config", "init_device", "emb_pdrop", "logit_scale", "norm_type",
     "verbose", "embedding_fraction", "max_window_layers", "residual_in_fp32", "rescale_prenorm_residual",
     "time_step_floor", "time_step_limit", "time_step_min", "time_step_max", "time_step_rank", "mamba_hidden_act",
     "mamba_ssm_cache_dtype", "mamba_ssm_dtype", "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max",
     "mamba_dt_min", "expand", "use_mamba_kernels", "use_conv_bias", "num_logits_to_keep", "mlp_hidden_act",
     "router_dtype", "moe_shared_expert_overlap", "id2label", "label2id", "gradient_checkpointing", "tokenizer_name",
     "hidden_dropout", "attention_dropout", "rotary_dim", "use_routing_bias", "use_mtp", "mla_use_nope",
     "use_expert_bias", "mtp_use_dedicated_embeddings", "use_moe_router_bias", "moe_router_scaling_factor",
     "moe_router_activation",
     "moe_renormalize", "moe_router_activation_func", "use_grouped_topk", "num_expert_group", "hc_eps",
     "hc_sinkhorn_iters", "num_hash_layers", "compress_rope_theta", "indexer_rope_interleave",
     "final_logit_softcapping", "attn_logit_softcapping", "query_pre_attn_scalar", "attn_temperature_tuning",
     "floor_scale", "attn_scale", "for_llm_compressor", "use_bidirectional_attention", "output_gate_type",
     "activation_situ_beta", "activation_situ_linear_beta", "gate_lower_bound", "max_length", "temperature", "top_p",
     "typical_p", "length_penalty", "repetition_penalty", "num_beams", "num_beam_groups", "num_return_sequences",
     "use_mrope", "mrope_section", "max_seq_len", "norm_expert_weight", "need_fp32_gate", "swiglu_limits",
     "swiglu_limits_shared", "vocab_size_per_layer_input", "embedding_multiplier", "residual_multiplier",
     "attention_multiplier", "logits_scaling", "clip_qkv", "sep_token_id", "decoder_start_token_id", "cls_token_id",
     "n_shared_experts", "num_shared_experts", "prefix", "language_model_only", "swiglu_alpha", "use_gemma_norm",
     "attention_value_scale", "moe_latent_size", "disable_ffn_mult", "no_rope_layers", "no_rope_layer_interval",
     "original_max_position_embeddings", "interpolate_factor", "full_attn_mod", "moe_capacity", "moe_use_aux_free",
     "moe_router_enable_expert_bias", "residual_dropout", "input_jitter_noise", "postnorm", "attn_rotary_emb")
)  # fmt: skip
#: ``top_k`` is of a sampler, where a config lists what generation defaults to.
_SAMPLER = ("top_k", "diversity_penalty", "min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size")
_WITHOUT_COST_PREFIXES = (
    "_", "rope_", "summary_", "output_", "return_", "layernorm_", "mup_", "image_", "video_", "vision_", "audio_",
    "boa_", "boi_", "eoa_", "eoi_", "rotary_", "logits_", "yarn",
)  # fmt: skip


class Keys:
    """A config's keys. Remembers which were read, which were needed and are missing, and what was assumed."""

    def __init__(self, file: str, values: dict[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.file = file
        filled = {name: value for name, value in (defaults or {}).items() if values.get(name) is None}
        self.values = values | filled
        self.read: set[str] = set()
        self.missing: list[str] = []
        self.assumed = [f"{name} is its type's default, {value}" for name, value in filled.items()]

    def get(self, *names: str) -> Any:
        """The first of ``names`` that is there and not null; all of them count as read."""
        self.read.update(names)
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str) -> int | None:
        """A whole number, at least 0; None when absent."""
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LARGEST:
            raise InputError(f"{self.file}: {names[0]} must be a whole number, got {shown(value)}")
        return value

    def needed(self, *names: str) -> int:
        """A whole number above 0; a missing one is reported by ``finish``, with all others."""
        value = self.whole(*names)
        if not value:
            self.missing.append(names[0])
        return value or 1

    def all_needed(self, **names: str) -> dict[str, int]:
        """The needed whole numbers of a part of the shape: field -> key."""
        return {field: self.needed(name) for field, name in names.items()}

    def layers(self, *names: str) -> int:
        """A needed number of layers; InputError for one that no model has."""
        value = self.needed(*names)
        if value > _MOST_LAYERS:
            raise InputError(f"{self.file}: {names[0]} is {value}, which is too large for any model")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def listed(self, name: str, kind: type) -> list[Any]:
        """A list of texts or of whole numbers; empty when absent."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and all(type(each) is kind for each in value)):
            words = "texts" if kind is str else "objects" if kind is dict else "whole numbers"
            raise InputError(f"{self.file}: {name} must be a list of {words}, got {shown(value)}")
        return value or []

    def per_layer(self, name: str, layers: int) -> list[int]:
        """A list of whole numbers, one per layer and perhaps more for further tokens; empty when absent."""
        values = self.listed(name, int)
        if values and len(values) < layers:
            raise InputError(f"{self.file}: {name} has {len(values)} entries for {layers} layers")
        return values[:layers]

    def section(self, name: str) -> Keys:
        """The keys inside; none when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{self.file}: {name} must be an object, got {shown(value)}")
        made = Keys(f"{self.file}: {name}", value or {})
        made.missing, made.assumed = self.missing, self.assumed
        return made

    def unread(self) -> tuple[str, ...]:
        """Names of keys that were not read and may matter."""
        return tuple(
            name
            for name, value in sorted(self.values.items())
            if name not in self.read
            and name not in _WITHOUT_COST
            and name not in _SAMPLER
            and not name.startswith(_WITHOUT_COST_PREFIXES)
            and not name.endswith(("_token_id", "_token_ids", "_token_index"))
            and value not in (None, False, 0, "", [], {})
            and not isinstance(value, str)
        )

    def finish(self) -> tuple[str, ...]:
        """``unread``. InputError when a needed key is missing."""
        if self.missing:
            missing = ", ".join(sorted(set(self.missing)))
            raise InputError(f"{self.file}: not a complete model config, missing: {missing}")
        return self.unread()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts of a model type's code, each only where the config says nothing.

    ``qkv_bias``: queries, keys and values have one; ``out_bias_too``: ``attention_bias`` means the output's as well.
    ``qk_norm``: per head, or ``joint`` over all of them. ``output_gate``: attention's result has a gate per channel.
    ``shared_gate``: a gate scales the shared experts. ``shared_like_experts``: one shared expert, as wide as a routed
    one. ``windows``: what a config with a window and no list of layers means: each layer, each second, the last of six
    not, or none unless ``use_sliding_window`` is set. ``norm_bias`` with ``norm`` layer. ``post_norms``: a norm after
    each block too. ``gated``: None: by the activation's name. ``vision``: the tower of the released models.
    ``shortcut``: a layer is two of attention and feed-forward, with experts beside the second. ``defaults``: what the
    type's code fills in for keys that are not there.
    """

    is_known: bool = True
    qkv_bias: bool = False
    out_bias_too: bool = True
    qk_norm: Literal["", "head", "joint"] = ""
    sinks: bool = False
    output_gate: bool = False
    shared_gate: bool = False
    shared_like_experts: bool = False
    expert_bias: bool = False
    tied: bool = False
    windows: Literal["every", "second", "sixth", "switched"] = "every"
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    post_norms: bool = False
    gated: bool | None = None
    qwen_full_layers: bool = False
    nope_interval: int = 0
    vision: VisionTower | None = None
    linear: Literal["delta", "kimi", "lightning"] = "delta"
    shortcut: bool = False
    defaults: Mapping[str, int] = field(default_factory=dict)


#: Scout's and Maverick's, with which Scout has the 108,641,793,536 parameters of its repository within 0.02 %.
_LLAMA4_TOWER = VisionTower(
    layers=34, hidden=1408, ffn=5632, heads=16, head_dim=88, patch_elements=588, merged=4, out=5120, projector=4096,
    positions=577,
)  # fmt: skip
_LLAMA4 = Family(shared_like_experts=True, nope_interval=4, vision=_LLAMA4_TOWER)
_PLAIN = Family()
_QWEN2 = Family(qkv_bias=True, out_bias_too=False, windows="switched", qwen_full_layers=True)
_QWEN3 = Family(qk_norm="head", windows="switched", qwen_full_layers=True)
_QWEN_HYBRID = Family(qk_norm="head", windows="switched", output_gate=True, shared_gate=True)
_GEMMA = Family(tied=True, gated=True, defaults={"head_dim": 256})
_GEMMA4 = Family(tied=True, gated=True, qk_norm="head", post_norms=True, windows="sixth")
_GEMMA3 = replace(
    _GEMMA4, defaults={"head_dim": 256, "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4}
)
_MINIMAX = Family(qk_norm="joint")
_STEP = Family(qk_norm="head")
_GLM = Family(qk_norm="head", out_bias_too=False)

#: Model types by what their configs call themselves.
FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(
        ("llama", "mistral", "ministral", "ministral3", "mistral3", "mixtral", "deepseek_v2", "deepseek_v3",
         "kimi_k2", "deepseek_v32", "glm_moe_dsa", "deepseek_v4", "deepseek_ref", "phi3", "phimoe", "deci",
         "nemotron-nas", "smollm3", "granite", "granitemoe", "granitemoeshared", "granitemoehybrid", "bamba",
         "exaone", "ernie4_5", "ernie4_5_moe", "internlm2", "internlm3", "yi", "aquila",
         "baichuan", "bailing_moe", "bailing_moe_v2", "solar", "glm4_moe_lite", "falcon_h1"),
        _PLAIN,
    ),
    "qwen2": _QWEN2,
    **dict.fromkeys(("minicpm", "minicpm3"), Family(tied=True)),
    **dict.fromkeys(("lfm2", "lfm2_moe"), Family(qk_norm="head", tied=True)),
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"), _QWEN2),
    "mimo": Family(qkv_bias=True, out_bias_too=False, windows="switched"),
    "mimo_v2_flash": Family(out_bias_too=False),
    "qwen2_moe": Family(qkv_bias=True, out_bias_too=False, windows="switched", shared_gate=True),
    **dict.fromkeys(("qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "qwen3_omni_moe_text"), _QWEN3),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"), _QWEN_HYBRID
    ),
    "llama4_text": _LLAMA4,
    "llama4": _LLAMA4,
    "gemma": _GEMMA,
    "gemma2": replace(_GEMMA, post_norms=True, windows="second"),
    **dict.fromkeys(("gemma3", "gemma3_text"), _GEMMA3),
    **dict.fromkeys(("gemma4", "gemma4_text"), _GEMMA4),
    **dict.fromkeys(("minimax_m2",), _MINIMAX),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl", "minimax_m3_text", "minimax_m3_vl_text"), Family(qk_norm="head")),
    **dict.fromkeys(("minimax", "minimax_text_01", "MiniMaxText01", "minimax_m1"), Family(linear="lightning")),
    **dict.fromkeys(("kimi_linear", "kimi_k3"), Family(linear="kimi")),
    "gpt_oss": Family(sinks=True, expert_bias=True),
    **dict.fromkeys(("step3p5", "step3p7", "step3p5_flash", "step3p7_flash"), _STEP),
    "glm4": Family(out_bias_too=False, post_norms=True),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), Family(out_bias_too=False)),
    **dict.fromkeys(("olmo2", "olmo3", "olmoe"), Family(qk_norm="joint")),
    **dict.fromkeys(("cohere", "cohere2"), Family(tied=True, norm="layer")),
    "exaone4": Family(qk_norm="head"),
    "apertus": Family(qk_norm="head", gated=False),
    "arcee": Family(gated=False),
    "stablelm": Family(norm="layer", norm_bias=True),
    "chatglm": Family(out_bias_too=False),
    "longcat_flash": Family(shortcut=True),
    "seed_oss": Family(qkv_bias=True, out_bias_too=False),
    "hunyuan_v1_dense": Family(qk_norm="head", tied=True),
    "hunyuan_v1_moe": Family(qk_norm="head", tied=True),
    "dots1": Family(qk_norm="head"),
    "nemotron": Family(gated=False, norm="layer", norm_bias=True),
    "starcoder2": Family(
        qkv_bias=True, gated=False, norm="layer", norm_bias=True, tied=True
    ),
}  # fmt: skip
