"""What the ranks of a pipeline hold: chunks of layers, each distinct share once."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass
from tracelens.projection.pipeline import layer_counts
from tracelens.projection.search.space import Ints
from tracelens.projection.search.splits import Splits
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.rank_ops import ENDS

Floats: TypeAlias = npt.NDArray[np.float64]


class Neighbors(NamedTuple):
    """A layer of a chunk between the one before it and the one after it, as kinds; None at the chunk's ends."""

    before: int | None
    kind: int
    after: int | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChunkType:
    """Layers that run one after the other: ``kinds``. ``layers``: how often each kind, [kind].

    ``neighbors``: how often layers of each kind stand between which others.
    """

    kinds: tuple[int, ...]
    layers: Ints
    neighbors: Mapping[Neighbors, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageType:
    """Pipeline ranks that hold the same chunks of layers.

    Of ``ranks`` the first keeps the most activations.
    """

    chunks: tuple[ChunkType, ...]
    ranks: tuple[int, ...]

    @property
    def layers(self) -> Ints:
        """[kind], all chunks together."""
        total: Ints = np.sum([chunk.layers for chunk in self.chunks], axis=0)
        return total


@functools.cache
def stage_types(model: ModelConfig, pp: int, vpp: int) -> tuple[StageType, ...]:
    """What the ranks of a pipeline hold, each distinct share once."""
    kinds = (*dict.fromkeys(model.layers), *ENDS)
    parts: list[ChunkType] = []
    made: dict[tuple[int, ...], ChunkType] = {}
    at = 0
    counts = layer_counts(len(model.layers), pp * vpp)
    for part, count in enumerate(counts):
        held = [kinds.index(layer) for layer in model.layers[at : at + count]]
        first, last = part == 0, part == len(counts) - 1
        chunk = (*[len(kinds) - 2] * first, *held, *[len(kinds) - 1] * last)
        parts.append(made.setdefault(chunk, _chunk(chunk, len(kinds))))
        at += count
    by_rank: dict[tuple[ChunkType, ...], list[int]] = {}
    for rank in range(pp):
        by_rank.setdefault(tuple(parts[rank::pp]), []).append(rank)
    return tuple(StageType(chunks=chunks, ranks=tuple(ranks)) for chunks, ranks in by_rank.items())


def _chunk(held: tuple[int, ...], kinds: int) -> ChunkType:
    return ChunkType(
        kinds=held,
        layers=np.bincount(held, minlength=kinds),
        neighbors=Counter(Neighbors(*each) for each in zip((None, *held), held, (*held[1:], None), strict=False)),
    )


def under_way(s: Splits, stage: StageType, passes: Ints, kept_bytes: Floats) -> Floats:
    """[candidate, kind]: how many layers' activations of micro-batches the first rank of ``stage`` keeps when it keeps
    most; ``kept_bytes`` of one layer's, [candidate, kind].

    All of ``s`` have as many stages and chunks.
    """
    stages, chunks, rank = int(s.pp[0]), len(stage.chunks), stage.ranks[0]
    if chunks == 1:
        plain: Floats = np.minimum(stages - rank, passes)[:, None] * stage.layers.astype(float)
        return plain
    # Forwards before the first backward, in groups of as many as there are stages through chunk after chunk
    ahead = np.minimum(2 * (stages - rank - 1) + (chunks - 1) * stages + 1, passes * chunks)
    kept = _kept(stage, stages, ahead, np.zeros_like(ahead))
    if len({id(chunk) for chunk in stage.chunks}) == 1:
        return kept
    # Then one forward, one backward: most is kept where either goes on to a chunk of other layers
    most = (kept_bytes * kept).sum(axis=1)
    for turn in range(chunks):
        for after in (turn * stages, turn * stages + (-ahead) % stages):
            run = np.minimum(after, passes * chunks - ahead)
            other = _kept(stage, stages, ahead + run, run)
            more = (kept_bytes * other).sum(axis=1)
            kept = np.where((more > most)[:, None], other, kept)
            most = np.maximum(most, more)
    return kept


def _kept(stage: StageType, stages: int, forwards: Ints, backwards: Ints) -> Floats:
    """[candidate, kind]: layers of so many forwards through the chunks less those of backwards, last chunk first."""
    chunks = len(stage.chunks)
    kept = np.zeros((len(forwards), len(stage.layers)))
    for number, chunk in enumerate(stage.chunks):
        made, freed = (
            count // (chunks * stages) * stages + np.clip(count % (chunks * stages) - turn * stages, 0, stages)
            for count, turn in ((forwards, number), (backwards, chunks - 1 - number))
        )
        kept += (made - freed)[:, None] * chunk.layers
    return kept
