"""What one device of a serving engine does: in a block, at the model's ends, and between devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tracelens.lazy.records import dataclass
from tracelens.perf_models import PerfModel
from tracelens.workload import blocks, layers
from tracelens.workload.blocks import Message, block_types
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape
from tracelens.workload.ranks.inference_rank import InferenceRank

S = TypeVar("S", bound=ModelShape)


def sharded(shape: S, *, tp: int, expert_shards: int) -> S:
    """One tensor-parallel rank's part as a model of its own, each expert divided over ``expert_shards`` devices."""
    changes: dict[str, Any] = {"vocab": -(-shape.vocab // tp)}
    for kind in block_types().values():
        changes |= kind.sharded(shape, tp=tp, expert_shards=expert_shards)
    changes["variants"] = tuple(
        (letter, _sharded_changes(shape.of(letter), given, tp=tp, expert_shards=expert_shards))
        for letter, given in shape.variants
    )
    return replace(shape, **changes)


def _sharded_changes(shape: ModelShape, given: Any, *, tp: int, expert_shards: int) -> Any:
    """A variant's fields as a rank has them."""
    local = sharded(replace(shape, variants=()), tp=tp, expert_shards=expert_shards)
    return tuple((name, getattr(local, name)) for name, _ in given)


def block_ops(rank: InferenceRank, letter: str, tokens: int) -> list[LayerOp]:
    """The operations of one block for a step's ``tokens`` tokens; those that are cores stand for any."""
    batch = Batch(shape=rank.local, batch=rank.own(tokens), sequence=1)
    return [rank.placed(op, tokens) for op in blocks.block_ops(batch, letter)]


def core_ops(rank: InferenceRank, letter: str, *, b: int, new: int, past: int) -> tuple[PerfModel, ...]:
    """What of a block depends on how tokens lie in sequences: ``b`` of ``new`` tokens each, after ``past`` cached."""
    made = block_types()[letter].cores(rank.local.of(letter), b=b, new=new, past=past)
    return tuple(rank.cached(model) for model in made)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceBytes:
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


def weight_bytes(rank: InferenceRank, letters: Iterable[str], *, is_first: bool, is_last: bool) -> float:
    """Bytes of the weights that a device of a pipeline stage with the blocks ``letters`` holds.

    The first stage also has its part of the vision tower, which engines divide over tensor-parallel ranks and keep
    in the model's own type.
    """
    total = 0.0
    for letter, count in Counter(letters).items():
        ops = block_ops(rank, letter, 1)
        total += count * sum(rank.weight_bytes(op) for op in ops)
    for op in (*(embedding_ops(rank, 1) if is_first else ()), *(head_ops(rank, 1) if is_last else ())):
        total += rank.weight_bytes(op)
    if is_first:
        tower = layers.vision_ops(rank.shape, images=1, patches=1)
        total += sum(op.count * op.weights for op in tower) * rank.width / rank.tp
    if is_last and not is_first and rank.local.tied_embeddings:
        total += rank.local.vocab * rank.local.hidden * rank.width
    return total
