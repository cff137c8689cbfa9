"""What each layer of a config is made of: what mixes its tokens, and its feed-forward or experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec

from tracelens.errors import InputError
from tracelens.predict.workload import blocks
from tracelens.predict.workload.blocks.state_mixers import Convolution
from tracelens.predict.workload.huggingface.keys import Family, Keys
from tracelens.predict.workload.model_shape import CompressedAttention, Indexer, LatentAttention, LinearHeads, Mamba
from tracelens.types.records import Record

#: Feed-forward widths of a searched architecture are whole multiples of it (Llama-Nemotron, modeling_decilm.py).
_WIDTH_STEP = 256


class Channel(Record, frozen=True):
    """The feed-forward blocks of a layer; ``changes``: fields of the shape that are different in it."""

    letter: str
    changes: dict[str, Any] = msgspec.field(default_factory=dict)


def feed_forwards(keys: Keys, layers: int, has_experts: bool, hidden: int) -> tuple[list[Channel], int | None]:
    """One for each layer, and the shape's dense width."""
    searched = keys.listed("block_configs", dict)
    if searched:
        return [_searched_feed_forward(keys, each.get("ffn") or {}, hidden) for each in searched], None
    ffn = keys.whole(
        "dense_intermediate_size", "intermediate_size_mlp", "block_ff_dim", "intermediate_size", "ffn_hidden_size"
    )
    if keys.flag("block_auto_adjust_ff_dim", False):
        ffn = _adjusted(keys, ffn or 0)
    if not has_experts:
        if not ffn:
            keys.missing.append("intermediate_size")
        return [Channel(blocks.MLP.letter)] * layers, ffn
    sparse = _sparse_layers(keys, layers)
    both = keys.flag("enable_moe_block", False)
    letters = [
        (blocks.MLP.letter + blocks.MOE.letter if both else blocks.MOE.letter) if each else blocks.MLP.letter
        for each in sparse
    ]
    return [Channel(letter) for letter in letters], ffn


def _adjusted(keys: Keys, ffn: int) -> int:
    """Two thirds of a width, times a factor, in whole multiples (LFM2)."""
    factor, multiple = keys.get("block_ffn_dim_multiplier"), keys.whole("block_multiple_of") or 1
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 0):
        raise InputError(f"{keys.file}: block_ffn_dim_multiplier must be a number above 0, got {factor!r}")
    return math.ceil(int((factor or 1) * int(2 * ffn / 3)) / multiple) * multiple


def _sparse_layers(keys: Keys, layers: int) -> list[bool]:
    """Whether each layer has experts: by a list of layers, else by what is said of first and of every so many."""
    named, every = _named_layers(keys), keys.get("moe_layer_freq", "moe_layer_interval")
    if kinds := keys.per_layer("mlp_layer_types", layers, str):
        return [kind != "dense" for kind in kinds]
    if named is not None:
        return [i in named for i in range(layers)]
    if isinstance(every, list):
        return [bool(each) for each in keys.per_layer("moe_layer_freq", layers)]
    return _by_period(keys, layers)


def _named_layers(keys: Keys) -> set[int] | None:
    """Layers with experts that a config names one by one, as a text or a list."""
    text, listed = keys.get("moe_layers_enum"), keys.get("moe_layers")
    if isinstance(text, str) and text:
        return {int(each) for each in text.split(",") if each.strip().isdigit()}
    return {each for each in listed if isinstance(each, int)} if isinstance(listed, list) else None


def _by_period(keys: Keys, layers: int) -> list[bool]:
    dense_first = keys.whole("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0
    every = keys.whole("moe_layer_freq", "moe_layer_interval") or 1
    step = keys.whole("decoder_sparse_step", "interleave_moe_layer_step") or 1
    dense = set(keys.listed("mlp_only_layers", int))
    return [i >= dense_first and i % every == 0 and (i + 1) % step == 0 and i not in dense for i in range(layers)]


def _searched_feed_forward(keys: Keys, given: dict[str, Any], hidden: int) -> Channel:
    """A layer of a searched architecture: a width of its own, one product in its place, or nothing."""
    if given.get("no_op"):
        return Channel("")
    if given.get("replace_with_linear"):
        return Channel(blocks.SINGLE_LINEAR.letter)
    width, ratio = given.get("intermediate_size"), given.get("ffn_mult")
    if width is None and isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 < ratio < _WIDTH_STEP:
        width = math.ceil(int(2 * ratio * hidden / 3) / _WIDTH_STEP) * _WIDTH_STEP
    if not isinstance(width, int) or width <= 0:
        raise InputError(f"{keys.file}: block_configs has a feed-forward without a width: {given!r}")
    return Channel(blocks.MLP.letter, {"ffn": width})


#: Qwen2's and Qwen3's default of ``max_window_layers``: as many layers attend everything, those after it a window.
_QWEN_FULL_LAYERS = 28
#: Gemma 3 writes its pattern as this key, with this default: the last layer of so many attends everything.
_PATTERN_KEYS, _PATTERN = ("sliding_window_pattern", "_sliding_window_pattern"), 6
#: A compressed row is pooled from twice as many tokens at this ratio, and only then selected (DeepSeek-V4).
_OVERLAPPING = 4
#: What ``layer_types`` calls kinds of attention.
_FULL, _NEAR, _CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


class Mixer(Record, frozen=True):
    """The block that mixes a layer's tokens; ``changes``: fields of the shape that are different in it.

    ``beside``: the letter of a block that mixes them as well, whose result is added.
    """

    letter: str
    changes: dict[str, Any] = msgspec.field(default_factory=dict)
    beside: str = ""


def read_latent(keys: Keys) -> LatentAttention | None:
    """Latent attention's sizes; None without it."""
    if not keys.whole("kv_lora_rank"):
        return None
    keys.get("num_key_value_heads", "head_dim", "qk_head_dim")
    d_v = keys.whole("v_head_dim")
    if not d_v and keys.get("model_type") == "minicpm3":  # whose code takes an equal part of the hidden state
        d_v = max(1, keys.needed("hidden_size") // keys.needed("num_attention_heads"))
    sizes = keys.all_needed(kv_rank="kv_lora_rank", d_nope="qk_nope_head_dim", d_rope="qk_rope_head_dim")
    return LatentAttention(q_rank=keys.whole("q_lora_rank") or None, d_v=d_v or keys.needed("v_head_dim"), **sizes)


def mixers(keys: Keys, family: Family, layers: int, shape: dict[str, Any]) -> list[Mixer]:
    """One for each layer. Adds to ``shape`` what they need."""
    searched = keys.listed("block_configs", dict)
    if searched:
        _check_length(keys, "block_configs", searched, layers)
        return [_searched_mixer(each.get("attention") or {}, shape) for each in searched]
    if keys.get("compress_ratios"):
        return _compressed(keys, layers, shape)
    _gates(keys, family, shape)
    full = _full_attention(keys, shape)
    if keys.whole("mamba_d_ssm"):
        shape["mamba"] = _mamba(keys)
        keys.get("attn_layer_indices", "mamba_use_mlp")
        return [replace(full, beside=blocks.MAMBA.letter)] * layers
    linear = (
        _state_space_layers(keys, layers, shape)
        or _convolutions(keys, layers, shape)
        or _linear_layers(keys, family, layers, shape)
    )
    if linear is not None:
        return [linear[i] or full for i in range(layers)]
    sparse = keys.section("sparse_attention_config")
    if sparse.get("sparse_num_index_heads"):
        return _block_sparse(sparse, layers, shape, full)
    return _windows(keys, family, layers, shape, full)


def _gates(keys: Keys, family: Family, shape: dict[str, Any]) -> None:
    latent = shape["latent_attention"]
    if keys.flag("mla_use_output_gate", False) and latent is not None:
        shape["gate_width"] = latent.d_v
    elif keys.flag("attn_output_gate", family.output_gate):
        shape["gate_width"] = shape["head_dim"] or 0
    elif keys.flag("use_head_wise_attn_gate", False):
        shape["gate_width"] = 1


def _full_attention(keys: Keys, shape: dict[str, Any]) -> Mixer:
    """Attention to everything, to what an indexer selects, or with heads of another size than windows have."""
    selected = keys.whole("index_topk")
    if selected and shape["latent_attention"] is not None:
        shape["indexer"] = _indexer(keys)
        return Mixer(blocks.SPARSE_LATENT_ATTENTION.letter)
    if selected:
        raise InputError(f"{keys.file}: index_topk without kv_lora_rank is not supported")
    changes: dict[str, Any] = {}
    wide, heads = keys.whole("global_head_dim"), keys.whole("num_global_key_value_heads")
    if wide and wide != shape["head_dim"]:
        changes["head_dim"] = wide
    if heads and heads != shape["kv_heads"]:
        changes["kv_heads"] = heads
    if keys.flag("attention_k_eq_v", False):
        changes["key_is_value"] = True
    return Mixer(blocks.ATTENTION.letter, changes)


def _state_space_layers(keys: Keys, layers: int, shape: dict[str, Any]) -> list[Mixer | None] | None:
    """Mamba-2 in the layers that a list says (Granite 4, Bamba), else None; None in all for a model without."""
    kinds, attention = keys.listed("layer_types", str), keys.listed("attn_layer_indices", int)
    if not keys.whole("mamba_n_heads") or not (kinds or attention):
        return None
    shape["mamba"] = _mamba(keys)
    if attention:
        return [None if i in attention else Mixer(blocks.MAMBA.letter) for i in range(layers)]
    _check_length(keys, "layer_types", kinds, layers)
    _check_kinds(keys, kinds, ("mamba", "attention", "full_attention"))
    return [Mixer(blocks.MAMBA.letter) if kind == "mamba" else None for kind in kinds]


def _convolutions(keys: Keys, layers: int, shape: dict[str, Any]) -> list[Mixer | None] | None:
    """Gated short convolutions in the layers that a list says (LFM2), else None; None in all for a model without."""
    width = keys.whole("conv_L_cache")
    if not width:
        return None
    kinds, attention = keys.listed("layer_types", str), keys.listed("full_attn_idxs", int)
    if not kinds and not attention:
        keys.missing.append("layer_types")
    if kinds:
        _check_length(keys, "layer_types", kinds, layers)
        _check_kinds(keys, kinds, ("conv", _FULL))
        attention = [i for i, kind in enumerate(kinds) if kind == _FULL]
    keys.get("conv_dim", "conv_dim_out", "block_dim", "num_heads", "conv_use_xavier_init")
    own = Convolution(channels=shape["hidden"], width=width, bias=keys.flag("conv_bias", False))
    shape["block_figures"] = (("short_convolution", own),)
    return [None if i in attention else Mixer(blocks.SHORT_CONVOLUTION.letter) for i in range(layers)]


def _mamba(keys: Keys) -> Mamba:
    keys.get("mamba_expand", "mamba_conv_bias", "mamba_proj_bias")
    return Mamba(**keys.all_needed(
        heads="mamba_n_heads", head_dim="mamba_d_head", groups="mamba_n_groups", state="mamba_d_state",
        conv="mamba_d_conv", chunk="mamba_chunk_size",
    ))  # fmt: skip


def _linear_layers(keys: Keys, family: Family, layers: int, shape: dict[str, Any]) -> list[Mixer | None] | None:
    """Linear attention where a layer has it, else None; None in all for a model without."""
    config = keys.section("linear_attn_config")
    kinds = keys.listed("layer_types", str)
    if config.values:
        return _kimi(config, layers, shape)
    if keys.whole("linear_num_value_heads"):
        return _delta(keys, kinds, layers, shape)
    listed = keys.per_layer("attn_type_list", layers)
    if listed and not all(listed) and family.linear == "lightning":
        heads, d = shape["q_heads"], shape["head_dim"]
        shape["linear"] = LinearHeads(k_heads=heads, v_heads=heads, d_k=d, d_v=d)
        return [None if each else Mixer(blocks.LIGHTNING_ATTENTION.letter) for each in listed]
    if listed and not all(listed):
        raise InputError(f"{keys.file}: attn_type_list has a kind of attention that is not known")
    return None


def _delta(keys: Keys, kinds: list[str], layers: int, shape: dict[str, Any]) -> list[Mixer | None]:
    """Gated DeltaNet in the listed layers, else in all but every fourth, or what the config says for it."""
    sizes = keys.all_needed(
        k_heads="linear_num_key_heads", v_heads="linear_num_value_heads", d_k="linear_key_head_dim",
        d_v="linear_value_head_dim",
    )  # fmt: skip
    shape["linear"] = LinearHeads(**sizes, conv=keys.whole("linear_conv_kernel_dim") or 0)
    every = keys.whole("full_attention_interval") or 4
    is_linear = [kind == "linear_attention" for kind in kinds] or [(i + 1) % every != 0 for i in range(layers)]
    _check_length(keys, "layer_types", is_linear, layers)
    _check_kinds(keys, kinds, ("linear_attention", "full_attention"))
    return [Mixer(blocks.GATED_DELTA_NET.letter) if each else None for each in is_linear]


def _kimi(config: Keys, layers: int, shape: dict[str, Any]) -> list[Mixer | None]:
    """Kimi's layers count from 1."""
    linear = set(config.listed("kda_layers", int))
    full = set(config.listed("full_attn_layers", int))
    if linear | full != set(range(1, layers + 1)) or linear & full:
        raise InputError(f"{config.file}: kda_layers and full_attn_layers do not name each of {layers} layers once")
    heads, d = config.needed("num_heads"), config.needed("head_dim")
    gate_rank = 0 if config.flag("use_full_rank_gate", False) else d
    conv = config.needed("short_conv_kernel_size")
    shape["linear"] = LinearHeads(k_heads=heads, v_heads=heads, d_k=d, d_v=d, conv=conv, gate_rank=gate_rank)
    return [Mixer(blocks.KIMI_DELTA_ATTENTION.letter) if i + 1 in linear else None for i in range(layers)]


def _block_sparse(sparse: Keys, layers: int, shape: dict[str, Any], full: Mixer) -> list[Mixer]:
    shape["indexer"] = Indexer(**sparse.all_needed(
        heads="sparse_num_index_heads", head_dim="sparse_index_dim", top_k="sparse_topk_blocks",
        block="sparse_block_size",
    ))  # fmt: skip
    frequency = sparse.per_layer("sparse_attention_freq", layers) or [1] * layers
    selected = replace(full, letter=blocks.BLOCK_SPARSE_ATTENTION.letter)
    return [selected if each else full for each in frequency]


def _compressed(keys: Keys, layers: int, shape: dict[str, Any]) -> list[Mixer]:
    ratios = keys.per_layer("compress_ratios", layers)
    own = CompressedAttention(
        q_rank=keys.needed("q_lora_rank"), o_rank=keys.needed("o_lora_rank"), o_groups=keys.needed("o_groups")
    )
    keys.get("qk_rope_head_dim", "num_key_value_heads")
    shape["window"], shape["compressed"], shape["kv_heads"] = keys.needed("sliding_window"), own, 1
    if _OVERLAPPING in ratios:
        shape["indexer"] = _indexer(keys)
    small = [ratio == _OVERLAPPING for ratio in ratios]
    made = (
        replace(own, ratio=r, overlap=is_small, selects=is_small) for r, is_small in zip(ratios, small, strict=True)
    )
    return [Mixer(blocks.COMPRESSED_ATTENTION.letter, {"compressed": each}) for each in made]


def _indexer(keys: Keys) -> Indexer:
    return Indexer(**keys.all_needed(heads="index_n_heads", head_dim="index_head_dim", top_k="index_topk"))


def _windows(keys: Keys, family: Family, layers: int, shape: dict[str, Any], full: Mixer) -> list[Mixer]:
    """Attention to everything, within windows or within chunks, by lists or by a family's pattern."""
    window, chunk = keys.whole("sliding_window") or None, keys.whole("attention_chunk_size") or None
    if not keys.flag("use_sliding_window", family.windows != "switched"):
        window = None
    windowed = _windowed_heads(keys, shape)
    kinds = _listed_kinds(keys, layers)
    if not kinds:
        kinds = _default_kinds(keys, family, layers, window) if chunk is None else _chunked_kinds(keys, family, layers)
    of = dict.fromkeys((_FULL, "attention", _NEAR, _CHUNKED), full)
    if window is not None and _NEAR in kinds:
        shape["window"], of[_NEAR] = window, Mixer(blocks.WINDOWED_ATTENTION.letter, windowed)
    if chunk is not None and _CHUNKED in kinds:
        shape["chunk"], of[_CHUNKED] = chunk, Mixer(blocks.CHUNKED_ATTENTION.letter)
    return [of[kind] for kind in kinds]


def _listed_kinds(keys: Keys, layers: int) -> list[str]:
    """Each layer's attention, where the config lists it."""
    kinds, pattern = keys.listed("layer_types", str), keys.per_layer("hybrid_layer_pattern", layers)
    if pattern:
        return [_NEAR if each else _FULL for each in pattern]
    if kinds:
        _check_length(keys, "layer_types", kinds, layers)
        _check_kinds(keys, kinds, (_FULL, _NEAR, _CHUNKED, "attention"))
    return kinds


def _windowed_heads(keys: Keys, shape: dict[str, Any]) -> dict[str, Any]:
    """Heads of layers with a window, where a config says that they are others."""
    other = keys.section("attention_other_setting")
    found = {
        "q_heads": keys.whole("swa_num_attention_heads") or other.whole("num_attention_heads"),
        "kv_heads": keys.whole("swa_num_key_value_heads") or other.whole("num_attention_groups"),
        "head_dim": keys.whole("swa_head_dim"), "value_dim": keys.whole("swa_v_head_dim"),
    }  # fmt: skip
    changes = {name: value for name, value in found.items() if value and value != shape[name]}
    if keys.flag("add_swa_attention_sink_bias", False):
        changes["sinks"] = True
    keys.get("add_full_attention_sink_bias", "sliding_window_size")
    return changes


def _chunked_kinds(keys: Keys, family: Family, layers: int) -> list[str]:
    """Llama 4: chunks where a layer has positions, which every fourth has not."""
    with_positions = keys.per_layer("no_rope_layers", layers)
    every = keys.whole("no_rope_layer_interval") or family.nope_interval
    if not with_positions and not every:
        raise InputError(f"{keys.file}: attention_chunk_size is set, but no key says which layers use it")
    flags = with_positions or [(i + 1) % every for i in range(layers)]
    return [_CHUNKED if each else _FULL for each in flags]


def _default_kinds(keys: Keys, family: Family, layers: int, window: int | None) -> list[str]:
    every = keys.whole(*_PATTERN_KEYS) or {"sixth": _PATTERN, "second": 2}.get(family.windows, 0)
    if window is None:
        return [_FULL] * layers
    if every:
        return [_FULL if (i + 1) % every == 0 else _NEAR for i in range(layers)]
    if family.windows != "switched":
        if not family.is_known:
            keys.assumed.append("assumed: every layer attends within sliding_window")
        return [_NEAR] * layers
    if not family.qwen_full_layers:
        raise InputError(f"{keys.file}: use_sliding_window needs layer_types")
    given = keys.whole("max_window_layers")
    full = min(layers, _QWEN_FULL_LAYERS if given is None else given)
    return [_FULL] * full + [_NEAR] * (layers - full)


def _searched_mixer(given: dict[str, Any], shape: dict[str, Any]) -> Mixer:
    """A layer of a searched architecture: query heads per key head of its own, one product in its place, or nothing."""
    if given.get("no_op"):
        return Mixer("")
    if given.get("replace_with_linear"):
        return Mixer(blocks.SINGLE_LINEAR.letter)
    per_group, shared = given.get("n_heads_in_group"), given.get("num_key_value_heads")
    if isinstance(per_group, int) and per_group > 0:
        shared = shape["q_heads"] // per_group
    changes: dict[str, Any] = {} if not isinstance(shared, int) or not shared else {"kv_heads": shared}
    window = given.get("window_length")
    if isinstance(window, int) and window > 0:
        return Mixer(blocks.WINDOWED_ATTENTION.letter, changes | {"window": window})
    return Mixer(blocks.ATTENTION.letter, changes)


def _check_length(keys: Keys, name: str, values: list[Any], layers: int) -> None:
    if len(values) != layers:
        raise InputError(f"{keys.file}: {name} has {len(values)} entries for {layers} layers")


def _check_kinds(keys: Keys, kinds: list[str], known: tuple[str, ...]) -> None:
    unknown = sorted({each for each in kinds if each not in known})
    if unknown:
        raise InputError(f"{keys.file}: layer_types has {', '.join(unknown)}, which is not supported")
