"""What one device of a serving engine does: in a block, at the model's ends, and between devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from tracelens.perf_models import SDPA
from tracelens.workload.blocks import Message, attention_types, block_types
from tracelens.workload.layer_ops import Batch, LayerOp
from tracelens.workload.model_shape import ModelShape
from tracelens.workload.ranks.inference_rank import InferenceRank

S = TypeVar("S", bound=ModelShape)


def sharded(shape: S, *, tp: int, expert_shards: int) -> S:
    """One tensor-parallel rank's part as a model of its own, each expert divided over ``expert_shards`` devices."""
    changes: dict[str, Any] = {"vocab": -(-shape.vocab // tp)}
    for kind in block_types().values():
        changes |= kind.sharded(shape, tp=tp, expert_shards=expert_shards)
    return replace(shape, **changes)


def block_ops(rank: InferenceRank, letter: str, tokens: int) -> list[LayerOp]:
    """The operations of one block for a step's ``tokens`` tokens; attention's core stands for any."""
    batch = Batch(shape=rank.local, batch=rank.own(tokens), sequence=1)
    return [rank.placed(op, tokens) for op in block_types()[letter].ops(batch)]


def attention_core(rank: InferenceRank, letter: str, *, b: int, new: int, past: int) -> SDPA:
    """The core of attention for ``b`` sequences of ``new`` tokens after ``past`` cached ones."""
    kind = attention_types()[letter]
    return rank.cached(kind.core(rank.local, b=b, s_q=new, s_kv=past + new, mask="bottom_right"))


def embedding_ops(rank: InferenceRank, tokens: int) -> list[LayerOp]:
    """What precedes the first layer."""
    return list(Batch(shape=rank.local, batch=rank.own(tokens), sequence=1).embedding())


def head_ops(rank: InferenceRank, rows: int) -> list[LayerOp]:
    """Final norm and logits of the tokens that yield one."""
    return list(Batch(shape=rank.local, batch=rank.own(rows), sequence=1).head())


def messages(rank: InferenceRank, blocks: str, tokens: int) -> Iterator[Message]:
    """What devices exchange after each of ``blocks``."""
    for letter in blocks:
        yield from block_types()[letter].messages(rank, tokens)


def logits_messages(rank: InferenceRank, rows: int) -> Iterator[Message]:
    """The logits, of which each tensor-parallel rank has a part of the vocabulary."""
    if rank.tp > 1:
        yield Message("all_gather", rank.own(rows) * rank.shape.vocab * rank.width, rank.tp)


def cache_bytes(rank: InferenceRank, shape: ModelShape, blocks: Iterable[str]) -> float:
    """Bytes of one token's keys and values in ``blocks``, the whole model's heads or one device's as ``shape`` says."""
    elements = sum(block_types()[letter].cached_elements(shape) for letter in blocks)
    return elements * (rank.width if rank.kv is None else rank.kv.width_bytes)


def weight_bytes(rank: InferenceRank, blocks: Iterable[str], *, is_first: bool, is_last: bool) -> float:
    """Bytes of the weights that a device of a pipeline stage with ``blocks`` holds."""
    total = 0.0
    for letter, count in Counter(blocks).items():
        ops = block_ops(rank, letter, 1)
        total += count * sum(rank.weight_bytes(op) for op in ops if not isinstance(op.model, SDPA))
    for op in (*(embedding_ops(rank, 1) if is_first else ()), *(head_ops(rank, 1) if is_last else ())):
        total += op.weights * rank.width
    if is_last and not is_first and rank.local.tied_embeddings:
        total += rank.local.vocab * rank.local.hidden * rank.width
    return total
