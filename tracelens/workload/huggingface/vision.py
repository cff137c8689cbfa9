"""The vision tower of a multimodal config."""

from __future__ import annotations

from typing import Any

from tracelens.workload.huggingface.keys import Keys
from tracelens.workload.model_shape import VisionTower

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
