"""A Hugging Face ``config.json`` as a ``ModelConfig``.

``model_type`` decides which keys mean what; a type that is not listed here is refused, since its blocks would be
guessed. Keys that are neither read nor known to leave the operations alone are named in ``ModelConfig.notes``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from tracelens.dtypes import DType
from tracelens.errors import InputError
from tracelens.workload.blocks import ATTENTION, DENSE_LAYER, MAMBA, MLP, MOE, WINDOWED_ATTENTION, block_types
from tracelens.workload.model_shape import Experts, LatentAttention, Mamba

#: Where a multimodal config keeps its language model.
_INNER = ("text_config", "llm_config", "language_config")
#: Keys of architectures whose attention has no model here; harmless where they are null, empty or 0.
_UNMODELED = (
    "linear_attn_config", "linear_num_value_heads", "index_topk", "compress_ratios", "attention_chunk_size",
)  # fmt: skip
#: More than any model has; a larger number is a damaged file, and would be spelled out block by block.
_MOST_LAYERS = 10_000
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
     "mamba_ssm_cache_dtype", "mamba_dt_init_floor", "mamba_dt_limit", "mamba_dt_max", "mamba_dt_min", "expand",
     "use_mamba_kernels", "use_conv_bias", "num_logits_to_keep", "mlp_hidden_act", "router_dtype",
     "moe_shared_expert_overlap", "id2label", "label2id", "gradient_checkpointing", "tokenizer_name", "hidden_dropout",
     "attention_dropout")
)  # fmt: skip
_WITHOUT_COST_PREFIXES = ("_", "rope_", "summary_", "output_", "return_")
#: Qwen2's and Qwen3's default of ``max_window_layers``: as many layers attend everything, those after it a window.
_QWEN_FULL_LAYERS = 28
_LAYER_TYPES = {"full_attention": ATTENTION.letter, "sliding_attention": WINDOWED_ATTENTION.letter}


class _Keys:
    """A config's keys. Remembers which were read and which were needed and are missing."""

    def __init__(self, file: str, values: dict[str, Any]) -> None:
        self.file = file
        self.values = values
        self.read: set[str] = set()
        self.missing: list[str] = []

    def get(self, *names: str) -> Any:
        """The first of ``names`` that is there and not null; all of them count as read."""
        self.read.update(names)
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def whole(self, *names: str) -> int | None:
        """A whole number, at least 0; None when absent."""
        value = self.get(*names)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"{self.file}: {names[0]} must be a whole number, got {value!r}")
        return value

    def needed(self, *names: str) -> int:
        """A whole number above 0; a missing one is reported by ``finish``, with all others."""
        value = self.whole(*names)
        if not value:
            self.missing.append(names[0])
        return value or 1

    def layers(self, name: str) -> int:
        """A needed number of layers; InputError for one that no model has."""
        value = self.needed(name)
        if value > _MOST_LAYERS:
            raise InputError(f"{self.file}: {name} is {value}, which is too large for any model")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        return default if value is None else bool(value)

    def listed(self, name: str, kind: type) -> list[Any]:
        """A list of texts or of whole numbers; empty when absent."""
        value = self.get(name)
        if value is not None and not (isinstance(value, list) and all(type(each) is kind for each in value)):
            words = "texts" if kind is str else "whole numbers"
            raise InputError(f"{self.file}: {name} must be a list of {words}, got {value!r}")
        return value or []

    def section(self, name: str) -> _Keys:
        """The keys inside; none when absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{self.file}: {name} must be an object, got {value!r}")
        return _Keys(f"{self.file}: {name}", value or {})

    def finish(self) -> tuple[str, ...]:
        """Names of keys that were not read and may matter. InputError when a needed key is missing."""
        if self.missing:
            raise InputError(f"{self.file}: not a complete model config, missing: {', '.join(sorted(self.missing))}")
        return tuple(
            name
            for name, value in sorted(self.values.items())
            if name not in self.read
            and name not in _WITHOUT_COST
            and not name.startswith(_WITHOUT_COST_PREFIXES)
            and value not in (None, False, 0, "", [], {})
        )


def read_config(path: Path) -> dict[str, Any]:
    """What a ``ModelConfig`` is made of, from a ``config.json``.

    InputError when it is missing, incomplete, or of a kind that is not modeled.
    """
    values = _language_model(path)
    keys = _Keys(path.name, values)
    kind = values.get("model_type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None or not isinstance(kind, str):
        raise InputError(
            f"{path.name}: model_type {kind!r} is not supported; supported: {', '.join(sorted(_READERS))}. "
            "Write any other shape as a model file, see docs/models.md"
        )
    for name in _UNMODELED:
        if keys.get(name):
            raise InputError(f"{path.name}: {name} is set, a kind of attention that is not supported")
    shape = reader(keys, kind)
    ignored = keys.finish()
    notes = (f"{path.name}: keys not read: {', '.join(ignored)}",) if ignored else ()
    parsed = DType.parse(str(values.get("torch_dtype") or values.get("dtype") or ""))
    named = str(values.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    label = named or path.absolute().parent.name or path.stem
    return {"name": label, "label": label, "source": path.name, "notes": notes, "dtype": parsed, **shape}


def _language_model(path: Path) -> dict[str, Any]:
    """The keys of a file's language model."""
    try:
        values: Any = orjson.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise InputError(f"{path.name} is not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise InputError(f"{path.name} is not a model config: its top level is not an object")
    for inner in _INNER:
        if isinstance(values.get(inner), dict):
            values = values[inner]
            break
    model: dict[str, Any] = values
    return model


def _decoder(keys: _Keys, kind: str) -> dict[str, Any]:
    """Rotary positions, RMS norm, gated feed-forward: Llama and what came after it."""
    hidden, heads = keys.needed("hidden_size"), keys.needed("num_attention_heads")
    layers = keys.layers("num_hidden_layers")
    biased = kind in ("qwen2", "qwen2_moe")
    attention_bias = keys.flag("attention_bias", kind == "gpt_oss")
    latent = _latent_attention(keys)
    experts = _experts(keys, kind)
    window, mixers = _windows(keys, layers, kind)
    channels = _feed_forward_blocks(keys, layers) if experts else MLP.letter * layers
    ffn = keys.whole("intermediate_size")
    if MLP.letter in channels and not ffn:
        keys.missing.append("intermediate_size")
    further = keys.whole("num_nextn_predict_layers") or 0
    return {
        "blocks": "".join(a + b for a, b in zip(mixers, channels, strict=True)),
        "hidden": hidden,
        "vocab": keys.needed("vocab_size"),
        "ffn": ffn,
        "gated": True,
        "q_heads": heads,
        "kv_heads": heads if latent else keys.whole("num_key_value_heads") or heads,
        "head_dim": _head_dim(keys, hidden, heads) if latent is None else None,
        "window": window,
        "qkv_bias": biased or attention_bias,
        "out_bias": attention_bias,
        "mlp_bias": keys.flag("mlp_bias", False),
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
        "sinks": kind == "gpt_oss",
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
        "mtp_layers": further,
        "mtp_blocks": mixers[-1] + channels[-1] if further else "",
        "latent_attention": latent,
        "experts": experts if MOE.letter in channels else None,
    }


def _head_dim(keys: _Keys, hidden: int, heads: int) -> int:
    return keys.whole("head_dim", "attention_head_dim") or max(1, hidden // heads)


def _latent_attention(keys: _Keys) -> LatentAttention | None:
    if not keys.whole("kv_lora_rank"):
        return None
    keys.get("num_key_value_heads", "head_dim", "qk_head_dim")
    return LatentAttention(
        q_rank=keys.whole("q_lora_rank") or None,
        kv_rank=keys.needed("kv_lora_rank"),
        d_nope=keys.needed("qk_nope_head_dim"),
        d_rope=keys.needed("qk_rope_head_dim"),
        d_v=keys.needed("v_head_dim"),
    )


def _experts(keys: _Keys, kind: str) -> Experts | None:
    count = keys.whole("num_local_experts", "n_routed_experts", "num_experts")
    if not count:
        return None
    ffn = keys.whole("moe_intermediate_size") or keys.needed("intermediate_size")
    shared = keys.whole("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    return Experts(
        count=count,
        top_k=keys.needed("num_experts_per_tok", "num_experts_per_token"),
        ffn=ffn,
        shared_ffn=shared if shared is not None else ffn * (keys.whole("n_shared_experts", "num_shared_experts") or 0),
        latent=keys.whole("moe_latent_size") or None,
        shared_gate=kind == "qwen2_moe",
        bias=kind == "gpt_oss",
    )


def _windows(keys: _Keys, layers: int, kind: str) -> tuple[int | None, str]:
    """The window, and one letter per layer."""
    window = keys.whole("sliding_window") or None
    types = keys.listed("layer_types", str)
    if not keys.flag("use_sliding_window", not kind.startswith("qwen")):
        window = None
    if window is None and not types:
        return None, ATTENTION.letter * layers
    if not types:
        if kind == "qwen2_moe":
            raise InputError(f"{keys.file}: use_sliding_window needs layer_types")
        given = keys.whole("max_window_layers")
        full = min(layers, _QWEN_FULL_LAYERS if given is None else given) if kind in ("qwen2", "qwen3") else 0
        return window, ATTENTION.letter * full + WINDOWED_ATTENTION.letter * (layers - full)
    unknown = sorted({each for each in types if each not in _LAYER_TYPES})
    if unknown:
        raise InputError(f"{keys.file}: layer_types has {', '.join(unknown)}, which is not supported")
    letters = "".join(_LAYER_TYPES[each] for each in types)
    if len(letters) != layers:
        raise InputError(f"{keys.file}: layer_types has {len(letters)} entries for {layers} layers")
    return window, letters if window is not None else ATTENTION.letter * layers


def _feed_forward_blocks(keys: _Keys, layers: int) -> str:
    """Which layers have experts and which a dense feed-forward."""
    dense_first = keys.whole("first_k_dense_replace") or 0
    every = keys.whole("moe_layer_freq") or 1
    step = keys.whole("decoder_sparse_step") or 1
    dense = set(keys.listed("mlp_only_layers", int))
    return "".join(
        (MOE if i >= dense_first and i % every == 0 and (i + 1) % step == 0 and i not in dense else MLP).letter
        for i in range(layers)
    )


def _nemotron_h(keys: _Keys, kind: str) -> dict[str, Any]:
    """One block per layer, of the kind that a pattern says."""
    del kind
    hidden, heads = keys.needed("hidden_size"), keys.needed("num_attention_heads")
    blocks = _hybrid_blocks(keys, "hybrid_override_pattern") or _hybrid_blocks(keys, "layers_block_type")
    if not blocks:
        keys.missing.append("hybrid_override_pattern")
    layers = keys.whole("num_hidden_layers")
    if blocks and layers not in (None, len(blocks)):
        raise InputError(f"{keys.file}: {len(blocks)} blocks in the pattern for {layers} layers")
    further = keys.whole("num_nextn_predict_layers") or 0
    further_blocks = _hybrid_blocks(keys, "mtp_hybrid_override_pattern")
    further_blocks = further_blocks or _hybrid_blocks(keys, "mtp_layers_block_type")
    if further and not further_blocks:
        keys.missing.append("mtp_hybrid_override_pattern")
    keys.get("n_shared_experts")
    return {
        "blocks": blocks or MLP.letter,
        "hidden": hidden,
        "vocab": keys.needed("vocab_size"),
        "ffn": keys.whole("intermediate_size") or None,
        "q_heads": heads,
        "kv_heads": keys.whole("num_key_value_heads") or heads,
        "head_dim": _head_dim(keys, hidden, heads),
        "qkv_bias": keys.flag("attention_bias", False),
        "out_bias": keys.flag("attention_bias", False),
        "mlp_bias": keys.flag("mlp_bias", False),
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
        "mtp_layers": further,
        "mtp_blocks": further_blocks if further else "",
        "experts": _experts(keys, "nemotron_h") if MOE.letter in blocks else None,
        "mamba": _mamba(keys) if MAMBA.letter in blocks else None,
    }


def _mamba(keys: _Keys) -> Mamba:
    return Mamba(
        heads=keys.needed("mamba_num_heads"),
        head_dim=keys.needed("mamba_head_dim"),
        groups=keys.needed("n_groups"),
        state=keys.needed("ssm_state_size"),
        conv=keys.needed("conv_kernel"),
        chunk=keys.needed("chunk_size"),
    )


def _hybrid_blocks(keys: _Keys, name: str) -> str:
    """Letters of a pattern text or of a list of block types; empty when absent."""
    given = keys.get(name)
    kinds: str | list[str] = given if isinstance(given, str) else keys.listed(name, str)
    types = block_types().values()
    names = {(kind.letter if isinstance(given, str) else kind.name): kind.letter for kind in types}
    unknown = sorted({kind for kind in kinds if kind not in names})
    if unknown:
        raise InputError(f"{keys.file}: {name} has {', '.join(unknown)}, which is not supported")
    return "".join(names[kind] for kind in kinds)


def _gpt2(keys: _Keys, kind: str) -> dict[str, Any]:
    del kind
    hidden = keys.needed("n_embd")
    inner = keys.whole("n_inner") or 4 * hidden
    positions = keys.needed("n_positions")
    return _classic(
        keys, hidden=hidden, heads=keys.needed("n_head"), layers=keys.layers("n_layer"), ffn=inner, tied=True
    ) | {"positions": positions}


def _gpt_neox(keys: _Keys, kind: str) -> dict[str, Any]:
    del kind
    return _classic(
        keys,
        hidden=keys.needed("hidden_size"),
        heads=keys.needed("num_attention_heads"),
        layers=keys.layers("num_hidden_layers"),
        ffn=keys.needed("intermediate_size"),
        tied=False,
    ) | dict.fromkeys(("qkv_bias", "out_bias"), keys.flag("attention_bias", True))


def _mpt(keys: _Keys, kind: str) -> dict[str, Any]:
    del kind
    hidden = keys.needed("d_model")
    biased = not keys.flag("no_bias", False)
    attention, ratio = keys.section("attn_config"), keys.get("expansion_ratio") or 4
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < _MOST_LAYERS:
        raise InputError(f"{keys.file}: expansion_ratio must be a number above 0, got {ratio!r}")
    shape = _classic(
        keys,
        hidden=hidden,
        heads=keys.needed("n_heads"),
        layers=keys.layers("n_layers"),
        ffn=int(ratio * hidden),
        tied=True,
    )
    learned = keys.flag("learned_pos_emb", True) and not (attention.get("alibi") or attention.get("rope"))
    positions = keys.whole("max_seq_len") or 0
    shared = 1 if attention.get("attn_type") == "multiquery_attention" else attention.whole("kv_n_heads")
    return shape | {
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_bias"), biased),
        "kv_heads": shared or shape["kv_heads"],
        "positions": positions if learned else 0,
    }


def _classic(keys: _Keys, *, hidden: int, heads: int, layers: int, ffn: int, tied: bool) -> dict[str, Any]:
    """Layer norm and an ungated feed-forward, as in GPT-2."""
    return {
        "blocks": DENSE_LAYER * layers,
        "hidden": hidden,
        "vocab": keys.needed("vocab_size"),
        "ffn": ffn,
        "q_heads": heads,
        "kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "norm": "layer",
        "norm_bias": True,
        "tied_embeddings": keys.flag("tie_word_embeddings", tied),
    }


_READERS: dict[str, Callable[[_Keys, str], dict[str, Any]]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "deepseek_v2", "deepseek_v3",
         "kimi_k2", "gpt_oss", "phi3"),
        _decoder,
    ),
    "nemotron_h": _nemotron_h,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
}  # fmt: skip
