"""Model types whose configs have keys of their own: GPT-2 and its time's models, and hybrids that list their blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracelens.errors import InputError
from tracelens.workload.blocks import ATTENTION, DENSE_LAYER, MAMBA, MLP, MOE, block_types
from tracelens.workload.huggingface.decoder import head_dim, read_experts
from tracelens.workload.huggingface.families import Family
from tracelens.workload.huggingface.keys import Keys
from tracelens.workload.model_shape import Experts, Mamba

_LARGEST_RATIO = 10_000


def _nemotron_h(keys: Keys) -> dict[str, Any]:
    """One block per layer, of the kind that a pattern says."""
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
        "head_dim": head_dim(keys, hidden, heads),
        "qkv_bias": keys.flag("attention_bias", False),
        "out_bias": keys.flag("attention_bias", False),
        "mlp_bias": keys.flag("mlp_bias", False),
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
        "mtp_layers": further,
        "mtp_blocks": further_blocks if further else "",
        "experts": read_experts(keys, Family()) if MOE.letter in blocks else None,
        "mamba": _mamba(keys, "mamba_", state="ssm_state_size") if MAMBA.letter in blocks else None,
    }


def _mamba(keys: Keys, prefix: str, state: str) -> Mamba:
    """``prefix``: how the names of its heads' keys begin; ``state``: that of the state's."""
    return Mamba(**keys.all_needed(
        heads=f"{prefix}num_heads", head_dim=f"{prefix}head_dim", groups="n_groups", state=state, conv="conv_kernel",
        chunk="chunk_size",
    ))  # fmt: skip


def _hybrid_blocks(keys: Keys, name: str) -> str:
    """Letters of a pattern text or of a list of block types; empty when absent."""
    given = keys.get(name)
    kinds: str | list[str] = given if isinstance(given, str) else keys.listed(name, str)
    types = block_types().values()
    names = {(kind.letter if isinstance(given, str) else kind.name): kind.letter for kind in types}
    unknown = sorted({kind for kind in kinds if kind not in names})
    if unknown:
        raise InputError(f"{keys.file}: {name} has {', '.join(unknown)}, which is not supported")
    return "".join(names[kind] for kind in kinds)


def _mamba2(keys: Keys) -> dict[str, Any]:
    """State-space blocks alone: no attention, no feed-forward."""
    heads = keys.needed("num_heads")
    return {
        "blocks": MAMBA.letter * keys.layers("num_hidden_layers"),
        "hidden": keys.needed("hidden_size"),
        "vocab": keys.needed("vocab_size"),
        "ffn": None,
        "q_heads": heads,
        "kv_heads": heads,
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
        "mamba": _mamba(keys, "", state="state_size"),
    }


def _gpt2(keys: Keys) -> dict[str, Any]:
    """GPT-2, and GPT-J with rotary positions and no biases in attention."""
    hidden = keys.needed("n_embd")
    inner = keys.whole("n_inner") or 4 * hidden
    is_rotary = keys.whole("rotary_dim") is not None
    positions = 0 if is_rotary else keys.needed("n_positions")
    shape = _classic(
        keys, hidden=hidden, heads=keys.needed("n_head"), layers=keys.layers("n_layer"), ffn=inner, tied=not is_rotary
    )
    return shape | {"positions": positions} | dict.fromkeys(("qkv_bias", "out_bias"), not is_rotary)


def _gpt_bigcode(keys: Keys) -> dict[str, Any]:
    shape = _gpt2(keys)
    return shape | {"kv_heads": 1 if keys.flag("multi_query", True) else shape["kv_heads"]}


def _opt(keys: Keys) -> dict[str, Any]:
    """Its table of positions has two rows more than tokens."""
    hidden = keys.needed("hidden_size")
    narrow = keys.whole("word_embed_proj_dim") or hidden
    if narrow != hidden:
        raise InputError(f"{keys.file}: word_embed_proj_dim {narrow} beside hidden_size {hidden} has no model here")
    biased = keys.flag("enable_bias", True)
    shape = _classic(
        keys, hidden=hidden, heads=keys.needed("num_attention_heads"), layers=keys.layers("num_hidden_layers"),
        ffn=keys.needed("ffn_dim"), tied=True,
    )  # fmt: skip
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), biased)
    return shape | biases | {"positions": keys.needed("max_position_embeddings") + 2}


def _bloom(keys: Keys) -> dict[str, Any]:
    hidden = keys.needed("hidden_size", "n_embed")
    heads, layers = keys.needed("n_head", "num_attention_heads"), keys.layers("n_layer", "num_hidden_layers")
    return _classic(keys, hidden=hidden, heads=heads, layers=layers, ffn=4 * hidden, tied=True)


def _falcon(keys: Keys) -> dict[str, Any]:
    hidden, heads = keys.needed("hidden_size"), keys.needed("num_attention_heads", "n_head")
    shape = _classic(
        keys, hidden=hidden, heads=heads, layers=keys.layers("num_hidden_layers", "n_layer"),
        ffn=keys.whole("ffn_hidden_size") or 4 * hidden, tied=True,
    )  # fmt: skip
    keys.get("alibi", "parallel_attn", "num_ln_in_parallel_attn")
    shared = keys.whole("num_kv_heads", "n_head_kv") or heads
    if keys.flag("multi_query", True) and not keys.flag("new_decoder_architecture", False):
        shared = 1
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), keys.flag("bias", False))
    return shape | biases | {"kv_heads": shared}


def _gpt_neox(keys: Keys) -> dict[str, Any]:
    return _classic(
        keys,
        hidden=keys.needed("hidden_size"),
        heads=keys.needed("num_attention_heads"),
        layers=keys.layers("num_hidden_layers"),
        ffn=keys.needed("intermediate_size"),
        tied=False,
    ) | dict.fromkeys(("qkv_bias", "out_bias"), keys.flag("attention_bias", True))


def _mpt(keys: Keys) -> dict[str, Any]:
    hidden = keys.needed("d_model")
    biased = not keys.flag("no_bias", False)
    attention, ratio = keys.section("attn_config"), keys.get("expansion_ratio") or 4
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < _LARGEST_RATIO:
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


def _dbrx(keys: Keys) -> dict[str, Any]:
    attention, feed = keys.section("attn_config"), keys.section("ffn_config")
    hidden, heads, layers = keys.needed("d_model"), keys.needed("n_heads"), keys.layers("n_layers")
    inner = feed.needed("ffn_hidden_size")
    return {
        "blocks": (ATTENTION.letter + MOE.letter) * layers,
        "hidden": hidden,
        "vocab": keys.needed("vocab_size"),
        "q_heads": heads,
        "kv_heads": attention.whole("kv_n_heads") or heads,
        "head_dim": max(1, hidden // heads),
        "norm": "layer",
        "gated": True,
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
        "experts": Experts(count=feed.needed("moe_num_experts"), top_k=feed.needed("moe_top_k"), ffn=inner),
    }


def _classic(keys: Keys, *, hidden: int, heads: int, layers: int, ffn: int, tied: bool) -> dict[str, Any]:
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


OLDER: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    "nemotron_h": _nemotron_h, "gpt2": _gpt2, "gptj": _gpt2, "gpt_bigcode": _gpt_bigcode, "gpt_neox": _gpt_neox,
    "opt": _opt, "bloom": _bloom, "falcon": _falcon, "mpt": _mpt, "dbrx": _dbrx, "mamba2": _mamba2,
}  # fmt: skip
