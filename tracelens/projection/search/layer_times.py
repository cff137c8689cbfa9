"""How long each kind of layer takes on each distinct rank: its operations, and its exchanges by their groups."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """Operations of layers, a row each: which of ``ops`` it is, and where its time is added."""

    op: Ints
    key: Ints
    kind: Ints

    def taken(self, which: Any) -> _Rows:
        return _Rows(op=self.op[which], key=self.key[which], kind=self.kind[which])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ops:
    """The distinct operations, a row each; ``model`` is the index in ``models`` of what it computes."""

    models: list[PerfModel]
    model: Ints
    part: Ints
    backward: Ints
    count: Floats
    is_product: npt.NDArray[np.bool_]
    ops: list[RankOp]

    @classmethod
    def of(cls, ops: list[RankOp]) -> _Ops:
        numbers: dict[PerfModel, int] = {}
        return cls(
            model=np.array([numbers.setdefault(op.model, len(numbers)) for op in ops], np.intp),
            models=list(numbers),
            part=np.array([PARTS.index(part_of(op)) for op in ops], np.intp),
            backward=np.array([op.phase != "forward" for op in ops], np.intp),
            count=np.array([op.count for op in ops], np.float64),
            is_product=np.array([op.part == "gemm" for op in ops], np.bool_),
            ops=ops,
        )

    def summed(self, rows: _Rows, times_us: Floats, shape: tuple[int, ...]) -> Floats:
        """[key, kind, forward or backward]: operations that take ``times_us`` each, one after another."""
        table = np.zeros(shape)
        np.add.at(table, (rows.key, rows.kind, self.backward[rows.op]), self.count[rows.op] * times_us)
        return table


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
    rows, ops = _rows(built)
    parts = {part: rows.taken(np.flatnonzero(ops.part[rows.op] == i)) for i, part in enumerate(PARTS)}
    launched = np.zeros(shape)
    np.add.at(launched, (rows.key, rows.kind, ops.backward[rows.op]), 1)
    is_local = ops.part < PARTS.index("tp")
    time_us = np.zeros((max(precisions, default=-1) + 1, len(ops.ops)))
    of_key = np.array(precisions, np.intp)
    for each, times in enumerate(time_us):
        mine = np.unique(rows.op[(of_key[rows.key] == each) & is_local[rows.op]]).tolist()
        price = priced(ops.models[ops.model[at]] for at in mine)
        times[mine] = [price[ops.models[ops.model[at]]] * software[each].of(ops.ops[at]) for at in mine]

    def local(mine: _Rows) -> Floats:
        return ops.summed(mine, time_us[of_key[mine.key], mine.op], shape)

    moved = {part: _Moved.of(parts[part], ops, key, stride) for part, stride in strides.items()}
    sent = priced(itertools.chain.from_iterable(each.models for each in moved.values()))
    return LayerTimes(
        key=key,
        compute=local(parts["compute"]),
        memory=local(parts["memory"]),
        products=local(rows.taken(np.flatnonzero(is_local[rows.op] & ops.is_product[rows.op]))),
        launched=launched,
        exchanged={part: (each.inverse, each.times(ops, sent, shape)) for part, each in moved.items()},
    )


def _rows(built: Sequence[Mapping[str, list[RankLayer]]]) -> tuple[_Rows, _Ops]:
    """Every operation of every layer in turn. Layers share what is the same for them, which is looked at once."""
    numbers: dict[int, int] = {}
    ops, which, keys, kinds = list[RankOp](), list[int](), list[int](), list[int]()
    for i, layers in enumerate(built):
        for k, blocks in enumerate(layers.values()):
            before = len(which)
            for op in itertools.chain.from_iterable(block.ops for block in blocks):
                number = numbers.setdefault(id(op), len(ops))
                if number == len(ops):
                    ops.append(op)
                which.append(number)
            keys += [i] * (len(which) - before)
            kinds += [k] * (len(which) - before)
    rows = _Rows(op=np.array(which, np.intp), key=np.array(keys, np.intp), kind=np.array(kinds, np.intp))
    return rows, _Ops.of(ops)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Moved:
    """Exchanges of layers at each distinct key and stride of their groups.

    ``inverse``: which of these each candidate has; ``rows``: the exchanges, whose ``key`` is one of these;
    ``models``: the distinct exchanges, ``model``: which of them each row is.
    """

    inverse: npt.NDArray[np.intp]
    rows: _Rows
    models: list[PerfModel]
    model: Ints

    @classmethod
    def of(cls, rows: _Rows, ops: _Ops, key: npt.NDArray[np.intp], stride: Ints) -> _Moved:
        """``rows`` are in the order of their keys."""
        where, inverse = distinct([key, stride])
        # The rows of each key and stride are those of the key, which are next to each other.
        first = np.searchsorted(rows.key, key[where])
        lengths = np.searchsorted(rows.key, key[where], side="right") - first
        place = np.repeat(np.arange(len(where)), lengths)
        at = np.arange(len(place)) + np.repeat(first - np.cumsum(lengths) + lengths, lengths)
        number, strides = ops.model[rows.op[at]], stride[where][place]
        pairs, model = distinct([number, strides])
        return cls(
            inverse=inverse,
            rows=_Rows(op=rows.op[at], key=place, kind=rows.kind[at]),
            models=[_with_stride(ops.models[number[pair]], int(strides[pair])) for pair in pairs],
            model=model,
        )

    def times(self, ops: _Ops, sent_us: Mapping[PerfModel, float], shape: tuple[int, ...]) -> Floats:
        """[key and stride, kind, forward or backward] from the time of each exchange."""
        each = np.array([sent_us[model] for model in self.models], np.float64)
        return ops.summed(self.rows, each[self.model], (int(self.inverse.max(initial=-1)) + 1, *shape[1:]))


def _with_stride(model: PerfModel, stride: int) -> PerfModel:
    return replace(model, stride=stride) if isinstance(model, Collective | EPComm) else model


def part_of(op: RankOp) -> str:
    """Which part of ``PARTS`` an operation's time belongs to."""
    if isinstance(op.model, EPComm):
        return "ep"
    if op.name.endswith(rank_ops.COLUMNS):
        return "grid"
    if isinstance(op.model, Collective):
        return "cp" if op.part == "cp" else "tp"
    return "compute" if op.model.engine == "matrix" else "memory"
