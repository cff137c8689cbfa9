"""Model types whose configs have keys of their own: GPT-2, GPT-NeoX, MPT, and hybrids that list their blocks."""

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
        "mamba": _mamba(keys) if MAMBA.letter in blocks else None,
    }


def _mamba(keys: Keys) -> Mamba:
    return Mamba(
        heads=keys.needed("mamba_num_heads"),
        head_dim=keys.needed("mamba_head_dim"),
        groups=keys.needed("n_groups"),
        state=keys.needed("ssm_state_size"),
        conv=keys.needed("conv_kernel"),
        chunk=keys.needed("chunk_size"),
    )


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


def _gpt2(keys: Keys) -> dict[str, Any]:
    hidden = keys.needed("n_embd")
    inner = keys.whole("n_inner") or 4 * hidden
    positions = keys.needed("n_positions")
    return _classic(
        keys, hidden=hidden, heads=keys.needed("n_head"), layers=keys.layers("n_layer"), ffn=inner, tied=True
    ) | {"positions": positions}


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
    "nemotron_h": _nemotron_h, "gpt2": _gpt2, "gpt_neox": _gpt_neox, "mpt": _mpt, "dbrx": _dbrx,
}  # fmt: skip
