"""What a model is, in figures: parameters, FLOPs of a token by part, cache, weights, and what was assumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from tracelens.predict.workload import LayerOp, ModelConfig, batch_ops, forward_ops
from tracelens.predict.workload.batch_ops import vision_ops
from tracelens.predict.workload.blocks import block_types
from tracelens.predict.workload.model_shape import PARTS, base_letter
from tracelens.predict.workload.ranks import InferenceRank
from tracelens.types.records import Record

#: Parts of a forward pass, in this order.
_PARTS = (
    "attention", "attention_projections", "indexer", "linear_attention", "mamba", "convolution", "mlp", "router",
    "experts", "shared_experts", "residual", "logits",
)  # fmt: skip
_MLP = ("mlp", "router", "experts", "shared_experts")
_MIXERS = ("attention", "attention_projections", "indexer", "linear_attention", "mamba", "convolution")


class ModelSummary(Record, frozen=True, kw_only=True):
    """``parameters_total`` has the vision tower's, and not those that predict further tokens; ``parameters_active``:
    of the language model, without the experts that a token is not sent to.

    ``flops_per_token``: matrix FLOPs of a token of a prompt of ``sequence`` tokens, on average, by part.
    ``mlp_to_attention_ratio``: those of feed-forwards and experts over those of everything that mixes tokens, both with
    their projections. ``cache_bytes_per_token`` and ``state_bytes_per_sequence``: what a long sequence keeps on all
    devices together, with each token more, and beside (windows, states). ``weight_bytes``: as the checkpoint holds
    them. None where an element type is not known.
    """

    name: str
    label: str
    source: str
    layers: dict[str, int]
    dtype: str | None
    quantization: dict[str, str] | None
    parameters_total: int
    parameters_active: int
    parameters_vision: int
    parameters_further_tokens: int
    sequence: int
    flops_per_token: dict[str, float]
    flops_per_token_total: float
    flops_per_image_patch: float | None
    mlp_to_attention_ratio: float | None
    cache_bytes_per_token: float | None
    state_bytes_per_sequence: float | None
    weight_bytes: float | None
    assumed: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def model_summary(model: ModelConfig, *, sequence: int = 4096) -> ModelSummary:
    """The figures of a model, FLOPs for prompts of ``sequence`` tokens."""
    count, types = model.parameters(), block_types()
    flops = dict.fromkeys(_PARTS, 0.0)
    for op in forward_ops(model, batch=1, sequence=sequence):
        if op.forward_flops:
            part = _part(op)
            flops[part] = flops.get(part, 0.0) + op.forward_flops / sequence
    mixing = sum(flops[part] for part in _MIXERS)
    patches = sequence - sequence % (model.vision.merged if model.vision else 1)
    seen = vision_ops(model, images=1, patches=patches)
    return ModelSummary(
        name=model.name,
        label=model.label,
        source=model.source,
        layers=dict(Counter(types[base_letter(letter)].name for letter in model.blocks)),
        dtype=None if model.dtype is None else model.dtype.label,
        quantization=_quantization(model),
        parameters_total=count.total,
        parameters_active=count.active,
        parameters_vision=count.vision,
        parameters_further_tokens=count.further,
        sequence=sequence,
        flops_per_token={part: each for part, each in flops.items() if each},
        flops_per_token_total=sum(flops.values()),
        flops_per_image_patch=sum(op.forward_flops for op in seen) / patches if seen else None,
        mlp_to_attention_ratio=sum(flops[part] for part in _MLP) / mixing if mixing else None,
        assumed=model.notes,
        **_kept(model, seen),
    )


def _kept(model: ModelConfig, vision: Iterable[LayerOp]) -> dict[str, float | None]:
    """What stands in memory: of a sequence, and of the model."""
    names = ("cache_bytes_per_token", "state_bytes_per_sequence", "weight_bytes")
    if model.dtype is None:
        return dict.fromkeys(names)
    rank = InferenceRank(shape=model, local=model, name=model.name)
    kept = batch_ops.sequence_bytes(rank, model, model.blocks)
    weights = batch_ops.weight_bytes(rank, model.blocks, is_first=True, is_last=True)
    weights += sum(op.count * op.weights for op in vision) * rank.width
    return dict(zip(names, (kept.per_token, kept.windows + kept.state, weights), strict=True))


def _part(op: LayerOp) -> str:
    part, _, rest = op.name.partition(".")
    if part == "attention":
        return "indexer" if rest.startswith("index_") else "attention" if op.is_core else "attention_projections"
    if part == "experts":
        return "shared_experts" if rest.startswith("shared") else "router" if rest == "router" else "experts"
    return {"linear": "linear_attention"}.get(part, part)


def _quantization(model: ModelConfig) -> dict[str, str] | None:
    held = model.quantization
    if held is None:
        return None
    parts = {part: getattr(held, part) for part in PARTS}
    found = {part: narrow.dtype.label for part, narrow in parts.items() if narrow is not None}
    return {"scheme": held.name, **found, **({} if held.kv is None else {"kv": held.kv.label})}
