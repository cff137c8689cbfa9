"""The operations of a batch of tokens as perf models: on one device that holds the whole model, and on one device of a
serving engine.

Shapes follow the usual implementations: fused query-key-value and gate-up projections, experts as grouped GEMMs. Left
out are operations that neither multiply matrices nor hold weights: rotary embedding, residual additions, the token
permutation around experts, the loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tracelens.perf_models import PerfModel
from tracelens.predict.workload import blocks
from tracelens.predict.workload.blocks import DENSE_LAYER, Message, block_ops, block_types, last_residual_ops
from tracelens.predict.workload.blocks.attention import absorbed
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import ModelShape
from tracelens.predict.workload.ranks import InferenceRank
from tracelens.types.records import Record


def forward_ops(config: ModelShape, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """Embedding, blocks and logits for ``batch`` sequences of ``sequence`` tokens, equal blocks counted together."""
    made = Batch(shape=config, batch=batch, sequence=sequence)
    ops = [*made.embedding()]
    for letter, count in Counter(config.blocks).items():
        ops += [replace(op, count=op.count * count) for op in block_ops(made, letter)]
    return (*ops, *last_residual_ops(made), *made.head())


def further_token_ops(config: ModelShape, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """What predicting further tokens adds to a training step: per layer a projection of hidden state and embedding
    together, ``mtp_blocks``, and the logits once more (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    if not config.mtp_layers:
        return ()
    made = Batch(shape=config, batch=batch, sequence=sequence)
    ops = [
        made.norm("mtp.embedding_norm"),
        made.norm("mtp.hidden_norm"),
        made.linear("mtp.projection", config.hidden, 2 * config.hidden),
        *(replace(op, name=f"mtp.{op.name}") for letter in config.mtp_blocks for op in block_ops(made, letter)),
        made.norm("mtp.final_norm"),
        replace(made.logits(tied=True), name="mtp.logits"),
    ]
    return tuple(replace(op, count=op.count * config.mtp_layers) for op in ops)


def vision_ops(config: ModelShape, *, images: int, patches: int) -> tuple[LayerOp, ...]:
    """The vision tower on ``images`` of ``patches`` patches each; nothing without a tower."""
    tower = config.vision
    if tower is None:
        return ()
    shape = replace(
        _AS_TEXT, hidden=tower.hidden, ffn=tower.ffn, q_heads=tower.heads, kv_heads=tower.heads,
        head_dim=tower.head_dim, gated=tower.gated, qk_norm=tower.qk_norm, post_norms=tower.post_norms,
        norm=tower.norm, norm_bias=tower.norm == "layer" and tower.bias,
        qkv_bias=tower.bias, out_bias=tower.bias, mlp_bias=tower.bias, dtype=config.dtype,
        positions=tower.positions, bidirectional=True,
    )  # fmt: skip
    made = Batch(shape=shape, batch=images, sequence=patches)
    layer = [op for letter in DENSE_LAYER for op in block_ops(made, letter)]
    ops = [
        made.linear("patches", tower.hidden, tower.patch_elements, bias=tower.bias),
        *(op for op in made.embedding() if op.name == "positions"),
        *(replace(op, count=op.count * tower.layers) for op in layer),
    ]
    tokens = Batch(shape=shape, batch=images, sequence=max(patches // tower.merged, 1))
    projected: list[LayerOp] = [made.norm("projector.norm")]
    width = tower.hidden if tower.projector == 0 else tower.projector
    if tower.projector:
        projected.append(tokens.linear("projector.in", width, tower.hidden * tower.merged, bias=tower.bias))
    projected.append(tokens.linear("projector.out", tower.out, width, bias=tower.bias and tower.projector > 0))
    ops += [replace(op, count=op.count * (1 + tower.taps)) for op in projected]
    return tuple(replace(op, name=f"vision.{op.name}") for op in ops)


#: What a tower's layers have in common with a decoder's.
_AS_TEXT = ModelShape(blocks=DENSE_LAYER, hidden=1, vocab=0, q_heads=1, kv_heads=1)
S = TypeVar("S", bound=ModelShape)


def sharded(shape: S, *, tp: int, expert_shards: int) -> S:
    """One tensor-parallel rank's part as a model of its own, each expert divided over ``expert_shards`` devices."""
    changes: dict[str, Any] = {"vocab": -(-shape.vocab // tp)}
    for kind in block_types().values():
        changes |= kind.sharded(shape, tp=tp, expert_shards=expert_shards)
    variants = []
    for letter, given in shape.variants:
        local = sharded(replace(shape.of(letter), variants=()), tp=tp, expert_shards=expert_shards)
        variants.append((letter, tuple((name, getattr(local, name)) for name, _ in given)))
    return replace(shape, **changes, variants=tuple(variants))


def device_block_ops(rank: InferenceRank, letter: str, tokens: int) -> list[LayerOp]:
    """The operations of one block for a step's ``tokens`` tokens; those that are cores stand for any."""
    batch = Batch(shape=rank.local, batch=rank.own(tokens), sequence=1)
    placed = rank.with_fused_experts([rank.placed(op, tokens) for op in blocks.block_ops(batch, letter)], tokens)
    return list(rank.with_adapters(placed)) if rank.adapters else placed


def core_ops(rank: InferenceRank, letter: str, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
    """What of a block depends on how tokens lie in sequences: ``b`` of ``new`` tokens each, after ``past`` cached."""
    made = block_types()[letter].cores(rank.local.of(letter), b=b, new=new, past=past)
    return tuple(rank.cached(model) for model in made)


def absorbed_flops(rank: InferenceRank, letter: str, *, new: int, past: int) -> float:
    """Of attention on the latent of ``new`` tokens of a sequence after ``past``; 0 of a block without a latent."""
    shape = rank.local.of(letter)
    latent = shape.latent_attention
    return 0.0 if latent is None else absorbed(shape, latent, b=1, new=new, past=past).flops()


def embedding_ops(rank: InferenceRank, tokens: int) -> list[LayerOp]:
    """What precedes the first layer."""
    return list(Batch(shape=rank.local, batch=rank.own(tokens), sequence=1).embedding())


def head_ops(rank: InferenceRank, rows: int) -> list[LayerOp]:
    """Final norm and logits of the tokens that yield one."""
    batch = Batch(shape=rank.local, batch=rank.own(rows), sequence=1)
    return [rank.placed(op, rows) for op in (*blocks.last_residual_ops(batch), *batch.head())]


def messages(rank: InferenceRank, letters: str, tokens: int) -> Iterator[Message]:
    """What devices exchange after each of the blocks ``letters``."""
    for letter in letters:
        yield from block_types()[letter].messages(rank.of(letter), tokens)


def logits_messages(rank: InferenceRank, rows: int) -> Iterator[Message]:
    """The logits, of which each tensor-parallel rank has a part of the vocabulary."""
    if rank.tp > 1:
        yield Message("all_gather", rank.own(rows) * rank.shape.vocab * rank.width, rank.tp)


def cache_bytes(rank: InferenceRank, shape: ModelShape, letters: Iterable[str]) -> float:
    """Bytes by which a sequence's cache in blocks ``letters`` grows with each token, of the whole model's heads or of
    one device's as ``shape`` says.
    """
    return sum(block_types()[letter].cached_bytes(shape.of(letter), rank.cache_width) for letter in letters)


class SequenceBytes(Record, frozen=True, kw_only=True):
    """What a sequence keeps on a device, or on all: ``per_token`` of each of its tokens; ``windowed`` of each, but of
    the last ones alone, ``windows`` once it is long; ``state`` however long it is.
    """

    per_token: float
    windowed: float
    windows: float
    state: float


def sequence_bytes(rank: InferenceRank, shape: ModelShape, letters: Iterable[str]) -> SequenceBytes:
    """What blocks ``letters`` keep of a sequence; ``shape`` as in ``cache_bytes``."""
    windowed = windows = state = 0.0
    names = list(letters)
    for letter in names:
        kind, own = block_types()[letter], shape.of(letter)
        tokens, nbytes = kind.window_bytes(own, rank.cache_width)
        windowed, windows = windowed + nbytes, windows + tokens * nbytes
        state += kind.state_bytes(own, rank.cache_width)
    per_token = cache_bytes(rank, shape, names)
    return SequenceBytes(per_token=per_token, windowed=windowed, windows=windows, state=state)


def adapter_bytes(rank: InferenceRank, letters: Iterable[str]) -> float:
    """Bytes of one adapter beside the blocks ``letters`` on a device."""
    counts = Counter(letters).items()
    return sum(count * rank.adapter_bytes(device_block_ops(rank, letter, 1)) for letter, count in counts)


def weight_bytes(rank: InferenceRank, letters: Iterable[str], *, is_first: bool, is_last: bool) -> float:
    """Bytes of the weights that a device of a pipeline stage with the blocks ``letters`` holds.

    The first stage also has its part of the vision tower, which engines divide over tensor-parallel ranks and keep
    in the model's own type.
    """
    total = 0.0
    for letter, count in Counter(letters).items():
        total += count * sum(map(rank.weight_bytes, device_block_ops(rank, letter, 1)))
    for op in (*(embedding_ops(rank, 1) if is_first else ()), *(head_ops(rank, 1) if is_last else ())):
        total += rank.weight_bytes(op)
    if is_first:
        tower = vision_ops(rank.shape, images=1, patches=1)
        total += sum(op.count * op.weights for op in tower) * rank.width / rank.tp
    if is_last and not is_first and rank.local.tied_embeddings:
        total += rank.local.vocab * rank.local.hidden * rank.width
    return total
