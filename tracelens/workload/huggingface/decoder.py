"""A decoder with rotary positions and gated feed-forwards, whatever mixes its tokens: Llama and what came after it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from tracelens.errors import InputError
from tracelens.lazy.records import dataclass
from tracelens.workload.blocks import COMPRESSED_ATTENTION, MLP, MOE
from tracelens.workload.huggingface.channels import Channel, feed_forwards
from tracelens.workload.huggingface.families import Family
from tracelens.workload.huggingface.keys import Keys
from tracelens.workload.huggingface.layer_kinds import Mixer, mixers, read_latent
from tracelens.workload.model_shape import MOST_VARIANTS, Experts, variant_letter

_SHARED_HEADS = ("num_key_value_heads", "num_attention_groups", "multi_query_group_num")
#: Activations of feed-forwards without a gate.
_UNGATED = ("relu2", "squared_relu", "relu", "xielu", "gelu_new", "gelu_fast", "quick_gelu")


@dataclass(slots=True)
class _Variants:
    """Blocks whose figures differ from the shape's own, each under a letter of its own."""

    letters: dict[tuple[str, tuple[tuple[str, Any], ...]], str] = field(default_factory=dict)

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
    blocks = _blocks(variants, chosen, channels, family)
    if experts is not None and ffn is None and any(each.letter == "-" for each in channels):
        keys.missing.append("intermediate_size")
    further = _further_tokens(keys)
    shape |= {"blocks": blocks, "ffn": ffn, "experts": experts if any("E" in c.letter for c in channels) else None}
    if further:
        shape |= {"mtp_layers": further, "mtp_blocks": _layer(variants, _mtp_mixer(chosen), channels[-1])}
    _name_assumptions(keys, family, shape)
    return shape | {"variants": variants.found()}


def _blocks(variants: _Variants, chosen: list[Mixer], channels: list[Channel], family: Family) -> str:
    if family.shortcut:
        chosen = [mixer for mixer in chosen for _ in range(2)]
        channels = [Channel(letter) for _ in channels for letter in (MLP.letter, MLP.letter + MOE.letter)]
    return "".join(_layer(variants, a, b) for a, b in zip(chosen, channels, strict=True))


def _layer(variants: _Variants, mixer: Mixer, channel: Channel) -> str:
    mixes = variants.letter(mixer.letter, mixer.changes) if mixer.letter else ""
    return mixer.beside + mixes + "".join(variants.letter(letter, channel.changes) for letter in channel.letter)


def _mtp_mixer(chosen: list[Mixer]) -> Mixer:
    """A further token's layer attends as the last layer with keys does; a compressed one within its window alone."""
    last = next((each for each in reversed(chosen) if each.letter and each.letter not in "DKLM="), chosen[-1])
    if last.letter == COMPRESSED_ATTENTION.letter:
        return next((each for each in chosen if not each.changes["compressed"].ratio), last)
    return last


def _further_tokens(keys: Keys) -> int:
    predicted = keys.whole("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
    keys.get("mtp_transformer_layers")
    return predicted or 0


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
