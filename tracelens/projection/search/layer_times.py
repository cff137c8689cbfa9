"""How long each kind of layer takes on each distinct rank: its operations, and its exchanges by their groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass
from tracelens.perf_models import Collective, EPComm, PerfModel
from tracelens.projection.overheads import Software
from tracelens.projection.search.space import Ints, distinct
from tracelens.projection.search.stage_types import Floats
from tracelens.workload import rank_ops
from tracelens.workload.rank_ops import RankLayer, RankOp

#: ``grid``: SUMMA's transfers between context ranks.
PARTS = ("compute", "memory", "tp", "cp", "ep", "grid")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerTimes:
    """Microseconds of layers at distinct keys: [key, kind, forward or backward].

    ``compute``: matrix products and attention; ``memory``: what streams memory. ``launched`` counts operations.
    ``products`` is the part of ``compute`` that SUMMA's broadcasts run beside.
    ``exchanged`` has the communication by part (``"tp"``), each with keys of its own.
    """

    key: npt.NDArray[np.intp]
    compute: Floats
    memory: Floats
    products: Floats
    launched: Floats
    exchanged: Mapping[str, tuple[npt.NDArray[np.intp], Floats]]

    def part(self, name: str, kind: int, phase: int, at: Any) -> Floats:
        """One part of one kind of layer, for candidates ``at``."""
        own = {"compute": self.compute, "memory": self.memory}
        key, times = (self.key, own[name]) if name in own else self.exchanged[name]
        found: Floats = times[key[at], kind, phase]
        return found


class _Row(NamedTuple):
    """An operation of a layer of kind ``kind`` at a distinct key; ``backward`` is 0 or 1."""

    key: int
    kind: int
    backward: int
    op: RankOp


def layer_times(
    built: Sequence[Mapping[str, list[RankLayer]]], key: npt.NDArray[np.intp], precisions: Sequence[int],
    strides: Mapping[str, Ints], priced: Callable[[Iterable[PerfModel]], dict[PerfModel, float]],
    software: Sequence[Software],
) -> LayerTimes:  # fmt: skip
    """Times of the layers of ``built``, one per distinct key; ``key`` is each candidate's, ``strides`` its groups'.

    ``precisions`` has a number per distinct key, ``software`` the constants of each.
    Every distinct operation is priced once, those of steps in one of ``precisions`` in one call: together they say at
    which clock a step runs.
    """
    shape = (len(built), max(map(len, built), default=0), 2)
    by_part: dict[str, list[_Row]] = {part: [] for part in PARTS}
    launched = np.zeros(shape)
    for row in _rows(built):
        by_part[part_of(row.op)].append(row)
        launched[row[:3]] += 1
    local = [*by_part["compute"], *by_part["memory"]]
    prices = [
        priced(row.op.model for row in local if precisions[row.key] == each)
        for each in range(max(precisions, default=-1) + 1)
    ]
    compute, streamed, products = (
        _summed(
            mine,
            [prices[precisions[row.key]][row.op.model] * software[precisions[row.key]].of(row.op) for row in mine],
            shape,
        )
        for mine in (by_part["compute"], by_part["memory"], [row for row in local if row.op.part == "gemm"])
    )
    moved = {part: _moved(by_part[part], key, stride) for part, stride in strides.items()}
    sent = priced(row.op.model for _, found in moved.values() for row in found)
    exchanged = {}
    for part, (inverse, found) in moved.items():
        places = (int(inverse.max(initial=-1)) + 1, *shape[1:])
        exchanged[part] = (inverse, _summed(found, [sent[row.op.model] for row in found], places))
    return LayerTimes(
        key=key, compute=compute, memory=streamed, products=products, launched=launched, exchanged=exchanged
    )


def _rows(built: Sequence[Mapping[str, list[RankLayer]]]) -> Iterator[_Row]:
    for i, layers in enumerate(built):
        for k, blocks in enumerate(layers.values()):
            for op in itertools.chain.from_iterable(block.ops for block in blocks):
                yield _Row(i, k, int(op.phase != "forward"), op)


def _summed(rows: Sequence[_Row], times_us: Sequence[float], shape: tuple[int, ...]) -> Floats:
    """[key, kind, forward or backward]: operations that take ``times_us`` each."""
    table = np.zeros(shape)
    for row, time_us in zip(rows, times_us, strict=True):
        table[row[:3]] += row.op.count * time_us
    return table


def _moved(rows: Sequence[_Row], key: npt.NDArray[np.intp], stride: Ints) -> tuple[npt.NDArray[np.intp], list[_Row]]:
    """Which distinct key and stride each candidate has, and the exchanges of ``rows`` at each of them."""
    mine: dict[int, list[_Row]] = {}
    for row in rows:
        mine.setdefault(row.key, []).append(row)
    where, inverse = distinct([key, stride])
    found = []
    for i, index in enumerate(where):
        for row in mine.get(int(key[index]), ()):
            model = row.op.model
            if isinstance(model, Collective | EPComm):
                model = replace(model, stride=int(stride[index]))
            found.append(row._replace(key=i, op=replace(row.op, model=model)))
    return inverse, found


def part_of(op: RankOp) -> str:
    """Which part of ``PARTS`` an operation's time belongs to."""
    if isinstance(op.model, EPComm):
        return "ep"
    if op.name.endswith(rank_ops.COLUMNS):
        return "grid"
    if isinstance(op.model, Collective):
        return "cp" if op.part == "cp" else "tp"
    return "compute" if op.model.engine == "matrix" else "memory"
