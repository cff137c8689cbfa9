"""Every way to split a model over n devices, as integer columns.

Tensor-parallel grids m1 x m2, pipeline stages and interleaved chunks, replicas and expert ranks, micro-batches, ZeRO
stages, recomputation, precision. Layers need not come out even over pipeline stages. Placement over nodes comes last,
because memory does not depend on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.predict.projection.projection_options import Strategy
from tracelens.predict.workload.blocks import block_types
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import PrecisionName
from tracelens.types.records import Record

Ints = npt.NDArray[np.int64]
#: Below these widths a shard is too thin for a matrix engine to be worth splitting further (the paper's choice).
MIN_SHARD = 128
MIN_BLOCK = 512
_ROOM = 2**62


class Shape(Record, frozen=True, kw_only=True):
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


def given_shape(text: str) -> Shape:
    """The shape of ``l=2048,e=25600,h=160,depth=128``, with ``f=`` where the MLP is not 4e wide. UsageError."""
    letters = {"l": "sequence", "e": "hidden", "f": "ffn", "h": "heads", "depth": "depth"}
    try:
        given = {letters[key.strip()]: int(value) for key, value in (part.split("=") for part in text.split(","))}
        shape = Shape(**given)
    except (KeyError, ValueError, TypeError):
        raise UsageError(f"a model is a name or l=2048,e=25600,h=160,depth=128 (and f=); got {text!r}") from None
    if min(shape.sequence, shape.hidden, shape.width, shape.heads, shape.depth) < 1 or shape.hidden % shape.heads:
        raise UsageError(f"model {text!r}: all of l, e, f, h, depth must be at least 1, and h must divide e")
    return shape


def summa_blocks(hidden: int, m1: int, m2: int) -> tuple[int, ...]:
    """Numbers of blocks of a SUMMA product on an m1 x m2 grid."""
    start = max(m1, m2)
    if hidden / start < MIN_BLOCK:
        return (start,)
    series = (start << i for i in range(math.ceil(math.log2(hidden // start))))
    return tuple(nb for nb in series if hidden % nb == 0 and hidden // nb >= MIN_BLOCK)


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


#: Fields of ``ParallelConfig`` for selective recomputation, the cheapest first: attention is fused here, so that it has
#: nothing to repeat by itself.
SELECTIVE: Mapping[str, Mapping[str, Any]] = {
    "+".join(modules): {"recompute": "selective", "recompute_modules": modules}
    for modules in (("layernorm", "mlp_act"), ("layernorm", "mlp_act", "moe_act"), ("layernorm", "mlp"))
}
#: What ``Splits.recompute`` and ``Splits.schedule`` count; ``1f1b`` is interleaved where there are chunks. The closed
#: forms know no others.
RECOMPUTE: tuple[str, ...] = ("none", "full", *SELECTIVE)
SCHEDULES = ("1f1b", "zb-h1", "zb-v")


def recomputation(code: int) -> Mapping[str, Any]:
    """Fields of ``ParallelConfig``."""
    word = RECOMPUTE[code]
    return SELECTIVE.get(word, {"recompute": word})


ZERO = (1, 2, 3)
Index: TypeAlias = npt.NDArray[np.intp] | npt.NDArray[np.bool_]


class AlignedColumns(Record, frozen=True, kw_only=True, eq=False):
    """Columns of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, self.__struct_fields__[0]))

    def take(self, index: Index) -> Self:
        """The entries at ``index``, or where a mask is true."""
        return type(self)(**{name: getattr(self, name)[index] for name in self.__struct_fields__})


class Splits(AlignedColumns, frozen=True, kw_only=True, eq=False):
    """One entry per configuration. ``m1`` tensor-parallel ranks; ``m2`` the other side of a SUMMA grid, or context
    ranks.

    ``blocks`` of a SUMMA product, else 1. ``recompute``, ``schedule`` and ``precision`` are positions in ``RECOMPUTE``,
    ``SCHEDULES`` and the precisions asked for. ``near_*``: members of the group in one node, 0 before ``placed``.
    """

    gpus: Ints
    dp: Ints
    m1: Ints
    m2: Ints
    pp: Ints
    vpp: Ints
    micro_batch: Ints
    blocks: Ints
    ep: Ints
    zero: Ints
    recompute: Ints
    precision: Ints
    schedule: Ints
    near_m1: Ints
    near_m2: Ints
    near_dp: Ints
    near_pp: Ints

    def micro_batches(self, global_batch: int) -> Ints:
        """Passes of a replica per step."""
        return global_batch // (self.dp * self.micro_batch)


NAMES = tuple(field.name for field in fields(Splits))
_WITHOUT_PLACE = NAMES[:-4]


class Space(Record, frozen=True, kw_only=True):
    """What may vary. ``sequence`` tokens; ``strategy`` as in ``space``; the rest are the choices on offer.

    ``is_beside_1d``: grids that come to tensor parallelism alone are left to ``1d``.
    """

    model: ModelConfig
    strategy: Strategy
    sequence: int
    zero: tuple[int, ...] = ZERO
    recompute: tuple[str, ...] = ("none", "full")
    schedules: tuple[str, ...] = SCHEDULES[:1]
    precisions: tuple[PrecisionName, ...] = ("bf16",)
    is_beside_1d: bool = False

    def splits(self, gpu_counts: Iterable[int], *, global_batch: int) -> Splits:
        """All configurations, not placed yet."""
        parts = [block for n in gpu_counts for block in self._blocks(n, global_batch)]
        rows = np.concatenate([*parts, np.empty((0, len(_WITHOUT_PLACE)), np.int64)])
        columns = {name: np.ascontiguousarray(rows[:, i]) for i, name in enumerate(_WITHOUT_PLACE)}
        nowhere = np.zeros(len(rows), np.int64)
        return Splits(**columns, near_m1=nowhere, near_m2=nowhere, near_dp=nowhere, near_pp=nowhere)

    def can_run(self, schedule: Ints, passes: Ints, *, zero: Any, pp: Any, vpp: Any) -> npt.NDArray[np.bool_]:
        """Whether stages have the chunks of a schedule, and weights' gradients, put off, one buffer to be added to.
        ZB-V's closed form is that of a pattern which repeats: below two micro-batches per stage up to 31 % off.
        """
        is_v = schedule == SCHEDULES.index("zb-v")
        fits_v = (2 * pp <= len(self.model.layers)) & (passes >= 2 * pp)
        found: npt.NDArray[np.bool_] = (schedule == 0) | (pp > 1) & (vpp == 1) & (zero == 1) & (~is_v | fits_v)
        return found

    @property
    def ways_to_recompute(self) -> list[int]:
        """Positions in ``RECOMPUTE``; of those that repeat the same of this model the first."""
        types, found = block_types(), dict[tuple[str, ...], int]()
        own = {"layernorm", *(types[letter].recompute_module for letter in self.model.blocks)}
        for code, word in enumerate(RECOMPUTE):
            modules = recomputation(code).get("recompute_modules", (word,))
            repeated = tuple(each for each in modules if word not in SELECTIVE or each.removesuffix("_act") in own)
            found.setdefault(repeated, code)
        return list(found.values())

    def _blocks(self, n: int, global_batch: int) -> Iterator[Ints]:
        layers = len(self.model.layers)
        experts = 1 if self.model.experts is None or self.strategy == "2d" else self.model.experts.count
        for m1, m2 in self._grids(n):
            for pp in divisors(n // (m1 * m2)):
                dp = n // (m1 * m2 * pp)
                if pp > layers or dp > global_batch or global_batch % dp:
                    continue
                for vpp in _chunks(layers, pp):
                    for ep in divisors(math.gcd(experts, m1 * m2 * dp)):
                        yield self._block((n, dp, m1, m2, pp, vpp), ep, global_batch // dp)

    def _block(self, fixed: tuple[int, ...], ep: int, passes: int) -> Ints:
        """All micro-batches, SUMMA blocks, ZeRO stages, recomputations and precisions of one split."""
        _, dp, m1, m2, pp, vpp = fixed
        # Groups of as many micro-batches as stages go through each chunk.
        batches = [b for b in divisors(passes) if vpp == 1 or (passes // b) % pp == 0]
        # Context ranks share weights and so states as well; SUMMA's own no copies.
        replicas = dp if self.strategy == "2d" else dp * m2
        choices = (
            batches,
            summa_blocks(self.model.hidden, m1, m2) if self.strategy == "2d" and m1 * m2 > 1 else (1,),
            (ep,),
            self.zero if replicas > 1 else (min(self.zero),),
            [RECOMPUTE.index(word) for word in self.recompute],
            range(len(self.precisions)),
            [SCHEDULES.index(word) for word in self.schedules],
        )
        varied = np.array(np.meshgrid(*choices, indexing="ij"), np.int64).reshape(len(choices), -1).T
        if self.schedules != SCHEDULES[:1]:
            varied = varied[self.can_run(varied[:, -1], passes // varied[:, 0], zero=varied[:, 3], pp=pp, vpp=vpp)]
        rows = np.empty((len(varied), len(_WITHOUT_PLACE)), np.int64)
        rows[:, : len(fixed)], rows[:, len(fixed) :] = fixed, varied
        return rows

    def _grids(self, n: int) -> Iterator[tuple[int, int]]:
        types = block_types()
        if self.strategy == "2d" and not all(types[letter].divides_on_grid for letter in set(self.model.blocks)):
            return
        for m1 in divisors(n):
            if not self._divides(m1) or self.model.hidden // m1 < MIN_SHARD:
                continue
            if self.strategy == "1d":
                yield m1, 1
                continue
            for m2 in divisors(n // m1):
                if self.sequence % m2 or self.sequence // m2 < MIN_SHARD or self._is_left_to_1d(m1, m2):
                    continue
                if self.strategy == "2d-seqp" or self.model.hidden % m2 == 0:
                    yield m1, m2

    def _is_left_to_1d(self, m1: int, m2: int) -> bool:
        return self.is_beside_1d and (m2 if self.strategy == "2d-seqp" else m1 * m2) == 1

    def _divides(self, m1: int) -> bool:
        """Whether everything that tensor parallelism divides comes out even."""
        model = self.model
        parts = [part for letter in set(model.blocks) for part in block_types()[letter].parts(model.of(letter))]
        shared = model.kv_heads % m1 == 0 or m1 % model.kv_heads == 0
        return shared and all(part % m1 == 0 for part in (model.hidden, *parts))


def placed(splits: Splits, node: int) -> tuple[Splits, npt.NDArray[np.intp]]:
    """Each split in every way that fills nodes of ``node`` ranks as far as its groups go; and which split each is."""
    degrees = np.stack([splits.m1, splits.m2, splits.dp, splits.pp])
    kinds, which = np.unique(degrees, axis=1, return_inverse=True)
    places = [placements(tuple(kinds[:, i].tolist()), node) for i in range(kinds.shape[1])]
    counts = np.array([len(p) for p in places], np.intp)
    which = which.reshape(-1)
    repeated = np.repeat(np.arange(len(splits)), counts[which])
    all_places = np.concatenate([*places, np.empty((0, 4), np.int64)])
    starts = np.concatenate([[0], np.cumsum(counts)])[which]
    ends = np.cumsum(counts[which])
    inside = np.arange(len(repeated)) - np.repeat(ends - counts[which], counts[which])
    chosen = all_places[np.repeat(starts, counts[which]) + inside]
    columns = {name: getattr(splits, name)[repeated] for name in _WITHOUT_PLACE}
    return Splits(**columns, **{name: chosen[:, i].copy() for i, name in enumerate(NAMES[-4:])}), repeated


@cache
def placements(degrees: tuple[int, int, int, int], node: int) -> Ints:
    """(m1, m2, dp, pp) members in one node: divisors of the degrees with the largest product that a node holds.

    Unlike the published space, a node need not be filled: 12 ranks in nodes of 8 go 6 and 6.
    """
    product = math.prod(degrees)
    if product <= node:
        return np.array([degrees], np.int64)
    found = [
        (a, b, c, d)
        for a in divisors(degrees[0])
        if a <= node
        for b in divisors(degrees[1])
        if a * b <= node
        for c in divisors(degrees[2])
        if a * b * c <= node
        for d in divisors(degrees[3])
        if a * b * c * d <= node
    ]
    most = max(math.prod(place) for place in found)
    return np.array([place for place in found if math.prod(place) == most], np.int64)


@cache
def _chunks(layers: int, pp: int) -> tuple[int, ...]:
    """Chunks per stage that divide layers as evenly as one does; 1 without a pipeline."""
    if pp == 1:
        return (1,)
    return (1, *(v for v in range(2, layers // pp + 1) if layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0))
