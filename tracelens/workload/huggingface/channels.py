"""Which layers of a config have experts, which a dense feed-forward, and how wide each is."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any

from tracelens.errors import InputError
from tracelens.lazy.records import dataclass
from tracelens.workload.blocks import MLP, MOE, SINGLE_LINEAR
from tracelens.workload.huggingface.keys import Keys

#: Feed-forward widths of a searched architecture are whole multiples of it (Llama-Nemotron, modeling_decilm.py).
_WIDTH_STEP = 256


@dataclass(frozen=True, slots=True)
class Channel:
    """The feed-forward blocks of a layer; ``changes``: fields of the shape that are different in it."""

    letter: str
    changes: dict[str, Any] = field(default_factory=dict)


def feed_forwards(keys: Keys, layers: int, has_experts: bool, hidden: int) -> tuple[list[Channel], int | None]:
    """One for each layer, and the shape's dense width."""
    searched = keys.listed("block_configs", dict)
    if searched:
        return [_searched(keys, each.get("ffn") or {}, hidden) for each in searched], None
    ffn = keys.whole(
        "dense_intermediate_size", "intermediate_size_mlp", "block_ff_dim", "intermediate_size", "ffn_hidden_size"
    )
    if keys.flag("block_auto_adjust_ff_dim", False):
        ffn = _adjusted(keys, ffn or 0)
    if not has_experts:
        if not ffn:
            keys.missing.append("intermediate_size")
        wide = Channel(MLP.letter)
        return [wide] * layers, ffn
    sparse = _sparse_layers(keys, layers)
    both = keys.flag("enable_moe_block", False)
    letters = [(MLP.letter + MOE.letter if both else MOE.letter) if each else MLP.letter for each in sparse]
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
    kinds = keys.listed("mlp_layer_types", str)
    if kinds:
        if len(kinds) < layers:
            raise InputError(f"{keys.file}: mlp_layer_types has {len(kinds)} entries for {layers} layers")
        return [kind != "dense" for kind in kinds[:layers]]
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


def _searched(keys: Keys, given: dict[str, Any], hidden: int) -> Channel:
    """A layer of a searched architecture: a width of its own, one product in its place, or nothing."""
    if given.get("no_op"):
        return Channel("")
    if given.get("replace_with_linear"):
        return Channel(SINGLE_LINEAR.letter)
    width, ratio = given.get("intermediate_size"), given.get("ffn_mult")
    if width is None and isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 < ratio < _WIDTH_STEP:
        width = math.ceil(int(2 * ratio * hidden / 3) / _WIDTH_STEP) * _WIDTH_STEP
    if not isinstance(width, int) or width <= 0:
        raise InputError(f"{keys.file}: block_configs has a feed-forward without a width: {given!r}")
    return Channel(MLP.letter, {"ffn": width})
