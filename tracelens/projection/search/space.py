"""Every parallel configuration of a transformer on n devices, as integer columns.

A configuration is a data-parallel degree, a tensor-parallel grid m1 x m2, pipeline stages, a micro-batch, for SUMMA a
number of blocks, and how many members of each group sit in one fast (NVLink) domain. The space is that of
arXiv 2410.00273; it depends on the model's shape and the domain's size, not on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass
from tracelens.projection.projection_options import Strategy

Ints = npt.NDArray[np.int64]

#: Below these widths a shard is too thin for a matrix engine to be worth splitting further (the paper's choice).
MIN_SHARD = 128
MIN_BLOCK = 512
_ROOM = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A dense transformer of equal layers. ``ffn``: the width of the MLP; None: four times ``hidden``."""

    sequence: int
    hidden: int
    heads: int
    depth: int
    ffn: int | None = None

    @property
    def width(self) -> int:
        """Of the MLP."""
        return 4 * self.hidden if self.ffn is None else self.ffn


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidates:
    """One entry per configuration. ``blocks`` is 1 outside SUMMA; ``near_*``: members of the group in one domain."""

    gpus: Ints
    dp: Ints
    m1: Ints
    m2: Ints
    pp: Ints
    micro_batch: Ints
    blocks: Ints
    near_m1: Ints
    near_m2: Ints
    near_dp: Ints
    near_pp: Ints

    def __len__(self) -> int:
        return len(self.gpus)

    def take(self, index: npt.NDArray[np.intp] | npt.NDArray[np.bool_]) -> Candidates:
        """The candidates at ``index``, or where a mask is true."""
        return Candidates(**{name: getattr(self, name)[index] for name in self.__slots__})


def enumerate_candidates(
    shape: Shape, strategy: Strategy, gpu_counts: Iterable[int], *, global_batch: int, domain: int
) -> Candidates:
    """All configurations for each of ``gpu_counts`` devices; ``domain`` is the number of devices in one fast domain."""
    parts = [
        _block(shape, strategy, (n, n // (m1 * m2 * pp), m1, m2, pp), global_batch, domain)
        for n in gpu_counts
        for m1, m2 in _grids(shape, strategy, n)
        for pp in _stages(shape, n, m1 * m2)
    ]
    rows = np.concatenate([p for p in parts if len(p)] or [np.empty((0, 11), np.int64)])
    return Candidates(**{name: rows[:, i].copy() for i, name in enumerate(Candidates.__slots__)})


def _grids(shape: Shape, strategy: Strategy, n: int) -> Iterator[tuple[int, int]]:
    e, h, seq = shape.hidden, shape.heads, shape.sequence
    for m1 in divisors(n):
        if h % m1 or e % m1:
            continue
        if strategy == "1d":
            if 3 * e // m1 >= MIN_SHARD:
                yield m1, 1
            continue
        for m2 in divisors(n // m1):
            if strategy == "2d" and e % m2:
                continue
            if e // m1 >= MIN_SHARD and seq // m2 >= MIN_SHARD:
                yield m1, m2


def _stages(shape: Shape, n: int, tp: int) -> Iterator[int]:
    for pp in divisors(min(n // tp, shape.depth)):
        if n % (tp * pp) == 0 and shape.depth % pp == 0:
            yield pp


def _block(
    shape: Shape, strategy: Strategy, degrees: tuple[int, int, int, int, int], global_batch: int, domain: int
) -> Ints:
    """All micro-batches x blocks x placements of one grid; ``degrees`` are devices, dp, m1, m2 and pp."""
    _, dp, m1, m2, pp = degrees
    if dp > global_batch or global_batch % dp:
        return np.empty((0, 11), np.int64)
    shard = {"1d": m1, "2d": m2, "2d-seqp": m1 * m2}[strategy]
    batches = [b for b in divisors(global_batch // dp) if b * shape.sequence % shard == 0]
    blocks = summa_blocks(shape.hidden, m1, m2) if strategy == "2d" else (1,)
    placed = _placements((m1, m2, dp, pp), domain)
    inner = np.array(np.meshgrid(batches, blocks, np.arange(len(placed)), indexing="ij"), np.int64).reshape(3, -1)
    rows = np.empty((inner.shape[1], 11), np.int64)
    rows[:, :5] = degrees
    rows[:, 5:7] = inner[:2].T
    rows[:, 7:] = placed[inner[2]]
    return rows


def summa_blocks(hidden: int, m1: int, m2: int) -> tuple[int, ...]:
    """Numbers of blocks of a SUMMA product on an m1 x m2 grid."""
    start = max(m1, m2)
    if hidden / start < MIN_BLOCK:
        return (start,)
    series = (start << i for i in range(math.ceil(math.log2(hidden // start))))
    return tuple(nb for nb in series if hidden % nb == 0 and hidden // nb >= MIN_BLOCK)


@cache
def _placements(degrees: tuple[int, int, int, int], domain: int) -> Ints:
    """(m1, m2, dp, pp) members in one domain: every ordered factorization of ``domain`` into divisors of the degrees.

    When all devices fit into one domain there is only one way: all of them do.
    """
    if math.prod(degrees) <= domain:
        return np.array([degrees], np.int64)
    found = [
        (a, b, c, d)
        for a in divisors(math.gcd(degrees[0], domain))
        for b in divisors(math.gcd(degrees[1], domain // a))
        for c in divisors(math.gcd(degrees[2], domain // (a * b)))
        if degrees[3] % (d := domain // (a * b * c)) == 0 and a * b * c * d == domain
    ]
    return np.array(found, np.int64).reshape(-1, 4)


def distinct(columns: Sequence[npt.NDArray[Any]]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Where each distinct row of ``columns`` (none below 0) occurs first, and which of them every row is."""
    packed = np.zeros(len(columns[0]), np.int64)
    span = 1
    for column in columns:
        # Sorting each column costs more than all the rest: whole numbers are packed as they are while they have room.
        code, values = column.astype(np.int64), int(column.max(initial=0)) + 1
        if span * values >= _ROOM:
            packed, span = np.unique(packed, return_inverse=True)[1].reshape(-1), len(packed) + 1
        if span * values >= _ROOM or column.dtype.kind == "f":
            code, values = np.unique(column, return_inverse=True)[1].reshape(-1), len(column) + 1
        packed, span = packed * values + code, span * values
    _, first, inverse = np.unique(packed, return_index=True, return_inverse=True)
    return first, inverse.reshape(-1)


@cache
def divisors(n: int) -> tuple[int, ...]:
    """All divisors of ``n``, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))
