"""Residual blocks of a model, a file per type: what a letter of ``ModelConfig.blocks`` stands for.

A type is an object of a subclass of ``BlockType``. Everything that a block's kind decides is asked of it: operations,
how ranks divide them, what stays in memory, what an engine's devices exchange.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

from tracelens.predict.workload.blocks.attention import ATTENTION, CHUNKED_ATTENTION, WINDOWED_ATTENTION, Attention
from tracelens.predict.workload.blocks.base import BlockType, Kept, Message, SentTokens
from tracelens.predict.workload.blocks.feed_forward import MLP, MOE, SINGLE_LINEAR
from tracelens.predict.workload.blocks.sparse_attention import (
    BLOCK_SPARSE_ATTENTION,
    COMPRESSED_ATTENTION,
    SPARSE_LATENT_ATTENTION,
)
from tracelens.predict.workload.blocks.state_mixers import (
    GATED_DELTA_NET,
    KIMI_DELTA_ATTENTION,
    LIGHTNING_ATTENTION,
    MAMBA,
    SHORT_CONVOLUTION,
)
from tracelens.predict.workload.layer_ops import Batch, LayerOp, last_residual_ops, residual_ops
from tracelens.predict.workload.model_shape import base_letter
from tracelens.registry import Registry

__all__ = [
    "ATTENTION", "BLOCK_SPARSE_ATTENTION", "CHUNKED_ATTENTION", "COMPRESSED_ATTENTION", "DENSE_LAYER",
    "GATED_DELTA_NET", "KIMI_DELTA_ATTENTION", "LIGHTNING_ATTENTION", "MAMBA", "MLP", "MOE", "SHORT_CONVOLUTION",
    "SINGLE_LINEAR",
    "SPARSE_LATENT_ATTENTION", "SPARSE_LAYER", "WINDOWED_ATTENTION", "Attention", "BlockType", "Kept", "Message",
    "SentTokens", "added", "block_ops", "block_types", "is_attention", "last_residual_ops", "layers_of",
]  # fmt: skip
#: A transformer's layers, as ``ModelConfig.blocks`` has them.
DENSE_LAYER, SPARSE_LAYER = ATTENTION.letter + MLP.letter, ATTENTION.letter + MOE.letter
_outside: list[object] = []


class _BlockTypes(dict[str, BlockType]):
    """Block types by letter; a variant's letter means its type."""

    def __missing__(self, letter: str) -> BlockType:
        base = base_letter(letter)
        if base == letter:
            raise KeyError(letter)
        return self[base]


def block_types() -> Mapping[str, BlockType]:
    """Every block type by its letter, which ``[]`` also finds for the letters of variants."""
    return _collected(tuple(_outside))


def is_attention(letter: str) -> bool:
    """Whether blocks of that letter attend to keys, cached ones when serving."""
    return isinstance(block_types()[letter], Attention)


def block_ops(batch: Batch, letter: str) -> Iterator[LayerOp]:
    """The operations of one block on a device that holds the whole model, with what surrounds it."""
    made = replace(batch, shape=batch.shape.of(letter))
    yield from block_types()[letter].ops(made)
    if made.shape.post_norms:
        yield made.norm("residual.post_norm")
    yield from residual_ops(made)


@contextlib.contextmanager
def added(*sources: object) -> Iterator[None]:
    """Block types of modules, or block types themselves, added to the built-in ones, whose letters they may take over.

    UsageError when two of them claim one letter.
    """
    before = list(_outside)
    _outside.extend(sources)
    try:
        block_types()
        yield
    finally:
        _outside[:] = before


def layers_of(blocks: str) -> tuple[str, ...]:
    """``blocks`` in layers: one that mixes tokens and the one after it that does not, or whatever stands alone.

    >>> layers_of("*-*E"), layers_of("MM*-")
    (('*-', '*E'), ('M', 'M', '*-'))
    """
    return _layers_of(blocks, tuple(_outside))


@cache
def _layers_of(blocks: str, outside: tuple[object, ...]) -> tuple[str, ...]:
    types, layers = _collected(outside), list[str]()
    for letter in blocks:
        if layers and not types[letter].mixes_tokens and len(layers[-1]) == 1 and types[layers[-1]].mixes_tokens:
            layers[-1] += letter
        else:
            layers.append(letter)
    return tuple(layers)


@cache
def _collected(outside: tuple[object, ...]) -> Mapping[str, BlockType]:
    claims = Registry.collect_below("block", __name__).overlaid(outside)
    return _BlockTypes({letter: claim.target for letter, claim in claims.items()})
