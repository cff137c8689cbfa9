"""What configs of a model type do not say of its layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal

from tracelens.lazy.records import dataclass
from tracelens.workload.model_shape import VisionTower


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
