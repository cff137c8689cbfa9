"""Residual blocks of a model, a file per type: what a letter of ``ModelConfig.blocks`` stands for.

A type is an object of a subclass of ``BlockType``. Everything that a block's kind decides is asked of it: operations,
how ranks divide them, what stays in memory, what an engine's devices exchange.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache

from tracelens.registry import Registry
from tracelens.workload.blocks.attention import ATTENTION, Attention
from tracelens.workload.blocks.attention_window import WINDOWED_ATTENTION
from tracelens.workload.blocks.base import BlockType, Kept, Message
from tracelens.workload.blocks.mamba import MAMBA
from tracelens.workload.blocks.mlp import MLP
from tracelens.workload.blocks.routed_experts import MOE

__all__ = [
    "ATTENTION", "DENSE_LAYER", "MAMBA", "MLP", "MOE", "SPARSE_LAYER", "WINDOWED_ATTENTION", "Attention", "BlockType",
    "Kept", "Message", "added", "attention_types", "block_types", "layers_of",
]  # fmt: skip

#: A transformer's layers, as ``ModelConfig.blocks`` has them.
DENSE_LAYER, SPARSE_LAYER = ATTENTION.letter + MLP.letter, ATTENTION.letter + MOE.letter

_outside: list[object] = []


def block_types() -> Mapping[str, BlockType]:
    """Every block type by its letter."""
    return _collected(tuple(_outside))


def attention_types() -> Mapping[str, Attention]:
    """Those with a core of attention, and a cache of keys and values when serving."""
    return {letter: kind for letter, kind in block_types().items() if isinstance(kind, Attention)}


@contextlib.contextmanager
def added(*sources: object) -> Iterator[None]:
    """Block types of modules, or block types themselves, beside the built-in ones, whose letters they may take over.

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
    types, layers = block_types(), list[str]()
    for letter in blocks:
        if layers and not types[letter].mixes_tokens and len(layers[-1]) == 1 and types[layers[-1]].mixes_tokens:
            layers[-1] += letter
        else:
            layers.append(letter)
    return tuple(layers)


@cache
def _collected(outside: tuple[object, ...]) -> Mapping[str, BlockType]:
    built_in = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    claims = Registry.collect("block", built_in).overlaid(outside)
    return {letter: claim.target for letter, claim in claims.items()}
