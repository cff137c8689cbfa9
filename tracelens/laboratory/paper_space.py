"""Models and configurations as arXiv 2410.00273 has them: dense shapes by name, and all ways to split one over devices.

A configuration is a data-parallel degree, a tensor-parallel grid m1 x m2, pipeline stages, a micro-batch, for SUMMA a
number of blocks, and how many members of each group sit in one fast (NVLink) domain. The space depends on the model's
shape and the domain's size, not on the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.laboratory.paper_systems import paper_data
from tracelens.lazy.records import dataclass
from tracelens.predict.projection.projection_options import Strategy
from tracelens.predict.projection.search.space import MIN_SHARD, Ints, Shape, divisors, given_shape, summa_blocks
from tracelens.predict.projection.search.systems import load_model
from tracelens.workload.blocks import DENSE_LAYER


def load_shape(name: str) -> Shape:
    """The shape of ``gpt3``, ``gpt3_1T`` or ``vit_era5``, or of ``l=2048,e=25600,h=160,depth=128``."""
    models: Mapping[str, Any] = paper_data()["models"]
    if "=" in name:
        return given_shape(name)
    for key, entry in models.items():
        if name.lower() in (key.lower(), *entry["aliases"]):
            return Shape(**{k: v for k, v in entry.items() if k != "aliases"})
    raise UsageError.unknown(
        "model of the paper", name, [alias for entry in models.values() for alias in entry["aliases"]]
    )


def paper_shape(name: str, sequence: int | None = None) -> Shape:
    """The shape of a model for the paper's rules. UsageError for a model that they do not describe."""
    try:
        shape = load_shape(name)
    except UsageError:
        if "=" in name:
            raise
        model, length = load_model(name, sequence)
        if set(model.layers) != {DENSE_LAYER} or model.gated or model.kv_heads != model.q_heads:
            raise UsageError(
                "the paper's rules support dense models with a plain feed-forward (of two products) and as many key as "
                f"query heads; for {model.name} use --rules corrected"
            ) from None
        return Shape(sequence=length, hidden=model.hidden, heads=model.q_heads, depth=len(model.layers), ffn=model.ffn)
    return shape if sequence is None else replace(shape, sequence=sequence)


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
