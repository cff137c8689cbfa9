"""Decoders of Llama's kind, of model types whose configs have keys of their own, and the vision tower of a
multimodal config.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tracelens.errors import InputError
from tracelens.predict.workload.blocks import ATTENTION, COMPRESSED_ATTENTION, DENSE_LAYER, MAMBA, MLP, MOE, block_types
from tracelens.predict.workload.huggingface.keys import Family, Keys
from tracelens.predict.workload.huggingface.layer_kinds import Channel, Mixer, feed_forwards, mixers, read_latent
from tracelens.predict.workload.model_shape import MOST_VARIANTS, Experts, Mamba, VisionTower, variant_letter
from tracelens.types.records import Record

_SHARED_HEADS = ("num_key_value_heads", "num_attention_groups", "multi_query_group_num")
#: Activations of feed-forwards without a gate.
_UNGATED = ("relu2", "squared_relu", "relu", "xielu", "gelu_new", "gelu_fast", "quick_gelu")


class _Variants(Record, frozen=False):
    """Blocks whose figures differ from the shape's own, each under a letter of its own."""

    letters: dict[tuple[str, tuple[tuple[str, Any], ...]], str] = msgspec.field(default_factory=dict)

    def letter(self, letter: str, changes: dict[str, Any]) -> str:
        given = tuple(sorted(changes.items()))
        if not given:
            return letter
        number = len(self.letters)
        if number >= MOST_VARIANTS:
            raise InputError(f"more than {MOST_VARIANTS} different layers")
        return self.letters.setdefault((letter, given), variant_letter(letter, number))

    def found(self) -> tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]:
        return tuple((letter, changes) for (_, changes), letter in self.letters.items())


def decoder(keys: Keys, family: Family) -> dict[str, Any]:
    """The shape of a config, by its structure and what its family adds."""
    hidden, heads = keys.needed("hidden_size"), keys.needed("num_attention_heads")
    layers = keys.layers("num_hidden_layers", "num_layers")
    latent = read_latent(keys)
    shape: dict[str, Any] = {
        "hidden": hidden,
        "vocab": keys.needed("vocab_size", "padded_vocab_size"),
        "gated": _gated(keys, family),
        "q_heads": heads,
        "kv_heads": heads if latent else keys.whole(*_SHARED_HEADS) or heads,
        "head_dim": None if latent else head_dim(keys, hidden, heads),
        "value_dim": None if latent else keys.whole("v_head_dim"),
        "latent_attention": latent,
        "tied_embeddings": keys.flag("tie_word_embeddings", keys.flag("tie_embedding", family.tied)),
        "norm": family.norm,
        "norm_bias": family.norm_bias,
        "post_norms": family.post_norms,
        "streams": keys.whole("hc_mult") or 0,
        "residual_block": keys.whole("attn_res_block_size") or 0,
        **_attention_details(keys, family, latent is not None),
    }
    experts = read_experts(keys, family)
    chosen = mixers(keys, family, layers, shape)
    channels, ffn = feed_forwards(keys, layers, experts is not None, hidden)
    variants = _Variants()
    pairs: Iterable[tuple[Mixer, Channel]] = zip(chosen, channels, strict=True)
    if family.shortcut:
        pairs = itertools.product(chosen, (Channel(MLP.letter), Channel(MLP.letter + MOE.letter)))
    blocks = "".join(itertools.starmap(functools.partial(_layer, variants), pairs))
    if experts is not None and ffn is None and any(each.letter == "-" for each in channels):
        keys.missing.append("intermediate_size")
    further = keys.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
    keys.get("mtp_transformer_layers")
    shape |= {"blocks": blocks, "ffn": ffn, "experts": experts if any("E" in c.letter for c in channels) else None}
    if further:
        shape |= {"mtp_layers": further, "mtp_blocks": _layer(variants, _mtp_mixer(chosen), channels[-1])}
    _name_assumptions(keys, family, shape)
    return shape | {"variants": variants.found()}


def _layer(variants: _Variants, mixer: Mixer, channel: Channel) -> str:
    mixes = variants.letter(mixer.letter, mixer.changes) if mixer.letter else ""
    return mixer.beside + mixes + "".join(variants.letter(letter, channel.changes) for letter in channel.letter)


def _mtp_mixer(chosen: list[Mixer]) -> Mixer:
    """A further token's layer attends as the last layer with keys does; a compressed one within its window alone."""
    last = next((each for each in reversed(chosen) if each.letter and each.letter not in "DKLM="), chosen[-1])
    if last.letter == COMPRESSED_ATTENTION.letter:
        return next((each for each in chosen if not each.changes["compressed"].ratio), last)
    return last


def head_dim(keys: Keys, hidden: int, heads: int) -> int:
    """Elements of a head, an equal part of the hidden state where nothing is said."""
    return keys.whole("head_dim", "attention_head_dim", "kv_channels") or max(1, hidden // heads)


def _gated(keys: Keys, family: Family) -> bool:
    activation = str(keys.get("hidden_act", "hidden_activation", "activation_function") or "silu")
    return activation not in _UNGATED if family.gated is None else family.gated


def _attention_details(keys: Keys, family: Family, is_latent: bool) -> dict[str, Any]:
    said = keys.get("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias")
    bias = family.qkv_bias if said is None else bool(said)
    asked = keys.get("use_qk_norm", "qk_norm")
    norm = family.qk_norm if asked is None or family.qk_norm else ("head" if asked else "")
    if asked is False:
        norm = ""
    kind = keys.get("qk_norm_type")
    joint = norm == "joint" if kind is None else kind == "per_layer"
    return {
        "qkv_bias": bias or family.qkv_bias,
        "out_bias": bias and family.out_bias_too,
        "mlp_bias": keys.flag("mlp_bias", False),
        "qk_norm": bool(norm) and not is_latent,
        "qk_norm_joint": bool(norm) and joint and not is_latent,
        "sinks": keys.flag("sink", family.sinks) or "compress_ratios" in keys.values,
    }


def read_experts(keys: Keys, family: Family) -> Experts | None:
    """The mixture of experts; None without one."""
    count = keys.whole("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    if not count:
        return None
    ffn = keys.whole(
        "moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"
    ) or keys.needed("intermediate_size")
    shared = keys.whole(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
        "shared_intermediate_size",
    )  # fmt: skip
    shared_count = keys.whole("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
    if shared is None:
        shared = ffn * (shared_count or family.shared_like_experts)
    return Experts(
        count=count,
        top_k=_chosen_experts(keys, count),
        ffn=ffn,
        shared_ffn=shared,
        latent=keys.whole("moe_latent_size", "routed_expert_hidden_size") or None,
        shared_gate=family.shared_gate and shared > 0,
        bias=family.expert_bias,
        latent_norm=keys.flag("latent_moe_use_norm", False),
    )  # fmt: skip


def _chosen_experts(keys: Keys, count: int) -> int:
    """Experts that a token is sent to: those that compute, where some of the choices return it as it is."""
    chosen = keys.needed(
        "num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "moe_k", "top_k_experts"
    )
    idle = keys.whole("zero_expert_num")
    if not idle:
        return chosen
    mean = max(1, round(chosen * count / (count + idle)))
    keys.assumed.append(f"{mean} of {chosen} chosen experts compute: {idle} of {count + idle} are none")
    return mean


def _name_assumptions(keys: Keys, family: Family, shape: dict[str, Any]) -> None:
    """What an unknown type's structure does not say, and is taken for granted."""
    if family.is_known:
        return
    taken = ["RMS norm before each block", "gated feed-forwards" if shape["gated"] else "feed-forwards without a gate"]
    taken.append("rotary positions")
    if not shape["qk_norm"]:
        taken.append("no norm of queries and keys")
    if not shape["qkv_bias"]:
        taken.append("no biases")
    if "tie_word_embeddings" not in keys.values:
        taken.append("logits with weights of their own")
    keys.assumed.append(f"assumed: {', '.join(taken)}")


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
    is_rotary = keys.whole("rotary_dim") is not None
    positions = 0 if is_rotary else keys.needed("n_positions")
    shape = _classic(keys, "n_embd", "n_head", "n_layer", ffn=keys.whole("n_inner"), tied=not is_rotary)
    return shape | {"positions": positions} | dict.fromkeys(("qkv_bias", "out_bias"), not is_rotary)


def _gpt_bigcode(keys: Keys) -> dict[str, Any]:
    shape = _gpt2(keys)
    return shape | {"kv_heads": 1 if keys.flag("multi_query", True) else shape["kv_heads"]}


def _opt(keys: Keys) -> dict[str, Any]:
    """Its table of positions has two rows more than tokens."""
    shape = _classic(keys, "hidden_size", "num_attention_heads", "num_hidden_layers", ffn=keys.needed("ffn_dim"))
    narrow, hidden = keys.whole("word_embed_proj_dim") or shape["hidden"], shape["hidden"]
    if narrow != hidden:
        raise InputError(f"{keys.file}: word_embed_proj_dim {narrow} with hidden_size {hidden} is not supported")
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), keys.flag("enable_bias", True))
    return shape | biases | {"positions": keys.needed("max_position_embeddings") + 2}


def _bloom(keys: Keys) -> dict[str, Any]:
    return _classic(keys, "hidden_size n_embed", "n_head num_attention_heads", "n_layer num_hidden_layers")


def _falcon(keys: Keys) -> dict[str, Any]:
    ffn = keys.whole("ffn_hidden_size")
    shape = _classic(keys, "hidden_size", "num_attention_heads n_head", "num_hidden_layers n_layer", ffn=ffn)
    keys.get("alibi", "parallel_attn", "num_ln_in_parallel_attn")
    shared = keys.whole("num_kv_heads", "n_head_kv") or shape["q_heads"]
    if keys.flag("multi_query", True) and not keys.flag("new_decoder_architecture", False):
        shared = 1
    biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias"), keys.flag("bias", False))
    return shape | biases | {"kv_heads": shared}


def _gpt_neox(keys: Keys) -> dict[str, Any]:
    ffn = keys.needed("intermediate_size")
    shape = _classic(keys, "hidden_size", "num_attention_heads", "num_hidden_layers", ffn=ffn, tied=False)
    return shape | dict.fromkeys(("qkv_bias", "out_bias"), keys.flag("attention_bias", True))


def _mpt(keys: Keys) -> dict[str, Any]:
    biased = not keys.flag("no_bias", False)
    attention, ratio = keys.section("attn_config"), keys.get("expansion_ratio") or 4
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < _LARGEST_RATIO:
        raise InputError(f"{keys.file}: expansion_ratio must be a number above 0, got {ratio!r}")
    shape = _classic(keys, "d_model", "n_heads", "n_layers")
    learned = keys.flag("learned_pos_emb", True) and not (attention.get("alibi") or attention.get("rope"))
    positions = keys.whole("max_seq_len") or 0
    shared = 1 if attention.get("attn_type") == "multiquery_attention" else attention.whole("kv_n_heads")
    return shape | {
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_bias"), biased),
        "ffn": int(ratio * shape["hidden"]),
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


def _classic(
    keys: Keys, hidden: str, heads: str, layers: str, *, ffn: int | None = None, tied: bool = True
) -> dict[str, Any]:
    """Layer norm and an ungated feed-forward, four times as wide where nothing is said, as in GPT-2. ``hidden``,
    ``heads`` and ``layers``: the keys' names.
    """
    width, count = keys.needed(*hidden.split()), keys.needed(*heads.split())
    return {
        "blocks": DENSE_LAYER * keys.layers(*layers.split()), "hidden": width, "vocab": keys.needed("vocab_size"),
        "ffn": ffn or 4 * width, "q_heads": count, "kv_heads": count, "head_dim": max(1, width // count),
        **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_bias"), True), "norm": "layer",
        "tied_embeddings": keys.flag("tie_word_embeddings", tied),
    }  # fmt: skip


OLDER: Mapping[str, Callable[[Keys], dict[str, Any]]] = {
    "nemotron_h": _nemotron_h, "gpt2": _gpt2, "gptj": _gpt2, "gpt_bigcode": _gpt_bigcode, "gpt_neox": _gpt_neox,
    "opt": _opt, "bloom": _bloom, "falcon": _falcon, "mpt": _mpt, "dbrx": _dbrx, "mamba2": _mamba2,
}  # fmt: skip
_COLORS = 3


def read_vision(keys: Keys, outer: dict[str, Any], hidden: int) -> VisionTower | None:
    """The tower's figures; None without one, or where the config does not say them, which is named."""
    given = outer.get("vision_config")
    if not isinstance(given, dict) or not given:
        for name in ("audio_config", "speech_config"):
            if isinstance(outer.get(name), dict):
                keys.assumed.append(f"{name} is left out")
        return None
    vision = Keys(keys.file, given)
    layers = vision.whole("depth", "num_hidden_layers", "vt_num_hidden_layers", "layers")
    width = vision.whole("hidden_size", "vt_hidden_size", "width", "embed_dim")
    heads = vision.whole("num_heads", "num_attention_heads", "vt_num_attention_heads", "heads")
    ffn = vision.whole("intermediate_size", "vt_intermediate_size")
    patch = vision.whole("patch_size")
    if not (layers and width and heads and ffn and patch):
        keys.assumed.append("the vision tower is left out: its config does not say its layers")
        return None
    merged = _merged(vision)
    return VisionTower(
        layers=layers,
        hidden=width,
        ffn=ffn,
        heads=heads,
        # the tower's heads may together be wider than its hidden state
        head_dim=vision.whole("head_dim") or (vision.whole("qkv_hidden_size") or width) // heads,
        patch_elements=_COLORS * patch * patch * (vision.whole("temporal_patch_size") or 1),
        merged=merged,
        out=vision.whole("out_hidden_size", "text_hidden_size") or hidden,
        taps=len(vision.listed("deepstack_visual_indexes", int)),
        positions=_positions(vision),
        **_style(vision, width * merged),
    )


def _style(vision: Keys, projector: int) -> dict[str, Any]:
    """Norms, biases and gates: those of a decoder where patches are pooled (Gemma), else a classic encoder's."""
    is_pooled = vision.get("pooling_kernel_size") is not None
    is_rms = vision.get("norm_type") == "rmsnorm" or vision.get("rms_norm_eps") is not None
    biases = (vision.get("attn_bias", "attention_bias"), vision.get("linear_bias"))
    return {
        "projector": 0 if is_pooled else projector,
        "bias": not any(each is False for each in biases),
        "norm": "rms" if is_rms else "layer",
        "gated": is_pooled or vision.get("hidden_act") == "silu",
        **dict.fromkeys(("qk_norm", "post_norms"), is_pooled),
    }


def _merged(vision: Keys) -> int:
    """Patches that become one token of the language model."""
    value = vision.get("merge_kernel_size")
    if isinstance(value, list) and len(value) == 2 and all(isinstance(each, int) for each in value):
        return int(value[0] * value[1])
    side = vision.whole("spatial_merge_size", "pooling_kernel_size") or 1
    return side * side


def _positions(vision: Keys) -> int:
    rows = vision.whole("num_position_embeddings")
    if rows:
        return rows
    height, width = vision.whole("init_pos_emb_height"), vision.whole("init_pos_emb_width")
    if height and width:
        return height * width
    # one table for rows and one for columns
    return 2 * (vision.whole("position_embedding_size") or 0)
