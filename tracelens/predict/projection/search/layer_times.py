"""How long each kind of layer takes on each distinct rank, and one configuration of a search, an operation per row."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.perf_models import Collective, EPComm, PerfModel
from tracelens.predict.network.topology import Group
from tracelens.predict.projection.chunk_timing import exposed_share
from tracelens.predict.projection.overheads import Software
from tracelens.predict.projection.search.pipeline_time import Floats
from tracelens.predict.projection.search.space import SELECTIVE, AlignedColumns, Ints, distinct
from tracelens.predict.workload import memory, rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import ENDS, RankLayer, RankOp
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_GB, US_PER_S

#: ``copies``: FSDP2's of weights and gradients, which recomputation does not repeat; ``grid``: SUMMA's transfers
#: between context ranks.
PARTS = ("compute", "memory", "copies", "tp", "cp", "ep", "grid")
REPEATED = tuple(name for name in PARTS if name != "copies")


class OpPrices(NamedTuple):
    """``us``: microseconds of each distinct operation. ``summed``: what of calls that take so long is added up, their
    times or their µJ.
    """

    us: Callable[[Iterable[PerfModel]], dict[PerfModel, float]]
    summed: Callable[[Sequence[PerfModel], Floats], Floats]


class PartialTimes(Record, frozen=True, kw_only=True, eq=False):
    """Parts of a backward that schedules or recomputation tell apart: times as of ``LayerTimes``, and launches.

    ``wgrad``: gradients of weights, [key, kind]. ``again``: what each way of selective recomputation repeats, by part,
    ``""`` for what is no exchange; ``again_launched``: how many operations.
    """

    wgrad: Floats
    wgrad_launched: Floats
    again: Mapping[str, Mapping[str, Floats]]
    again_launched: Mapping[str, Floats]


class LayerTimes(Record, frozen=True, kw_only=True, eq=False):
    """Microseconds, or µJ, of layers at distinct keys: [key, kind, forward or backward].

    ``compute``: matrix products and attention; ``memory``: what streams memory. ``launched`` counts operations.
    ``products`` is the part of ``compute`` that SUMMA's broadcasts overlap.
    ``exchanged`` has the communication by part (``"tp"``), each with keys of its own. ``partial``: see there.
    """

    key: npt.NDArray[np.intp]
    compute: Floats
    memory: Floats
    copies: Floats
    products: Floats
    launched: Floats
    exchanged: Mapping[str, tuple[npt.NDArray[np.intp], Floats]]
    partial: Callable[[], PartialTimes]

    def take(self, at: npt.NDArray[np.intp]) -> LayerTimes:
        """Those of candidates ``at``."""
        exchanged = {name: (key[at], times) for name, (key, times) in self.exchanged.items()}
        return replace(self, key=self.key[at], exchanged=exchanged)

    def part(self, name: str, kind: int, phase: int) -> Floats:
        """One part of one kind of layer, [candidate]."""
        own = {"compute": self.compute, "memory": self.memory, "copies": self.copies}
        key, times = (self.key, own[name]) if name in own else self.exchanged[name]
        found: Floats = times[:, kind, phase][key]
        return found

    def again(self, word: str, kind: int) -> Floats:
        """What ``word``, a way of selective recomputation, repeats of one kind of layer, [candidate]."""
        keys = {"": self.key, **{part: key for part, (key, _) in self.exchanged.items()}}
        if kind >= self.compute.shape[1] - len(ENDS):
            return np.zeros(len(self.key))
        tables = self.partial().again[word]
        found: Floats = np.sum([table[:, kind][keys[part]] for part, table in tables.items()], axis=0)
        return found


class _Rows(AlignedColumns, frozen=True, kw_only=True, eq=False):
    """Operations of layers, a row each: which of ``ops`` it is, and where its time is added."""

    op: Ints
    key: Ints
    kind: Ints


class _Ops(Record, frozen=True, kw_only=True, eq=False):
    """The distinct operations, a row each; ``model`` is the index in ``models`` of what it computes."""

    models: list[PerfModel]
    model: Ints
    part: Ints
    backward: Ints
    count: Floats
    is_product: npt.NDArray[np.bool_]
    ops: list[RankOp]
    blocks: list[RankLayer]

    @classmethod
    def of(cls, ops: list[RankOp], blocks: list[RankLayer]) -> _Ops:
        numbers: dict[PerfModel, int] = {}
        return cls(
            model=np.array([numbers.setdefault(op.model, len(numbers)) for op in ops], np.intp),
            models=list(numbers),
            part=np.array([PARTS.index(part_of(op)) for op in ops], np.intp),
            backward=np.array([op.phase != "forward" for op in ops], np.intp),
            count=np.array([op.count for op in ops], np.float64),
            is_product=np.array([op.part == "gemm" for op in ops], np.bool_),
            ops=ops,
            blocks=blocks,
        )

    def where(self, holds: Callable[[RankOp, str], bool]) -> npt.NDArray[np.bool_]:
        """Of which operations, with the letter of their block, something is true. It depends on how they are called."""
        # The head shares operations with the blocks that predict further tokens, and repeats none of them
        ends_first = sorted(self.blocks, key=lambda each: each.letter not in ENDS)
        letter_of = {id(op): each.letter for each in ends_first for op in each.ops}
        known: dict[tuple[Any, ...], bool] = {}
        found = np.zeros(len(self.ops), np.bool_)
        for at, op in enumerate(self.ops):
            letter = letter_of[id(op)]
            key = (op.name, op.phase, op.part, op.core, letter)
            if key not in known:
                known[key] = holds(op, letter)
            found[at] = known[key]
        return found

    def summed(self, rows: _Rows, times_us: Floats, shape: tuple[int, ...]) -> Floats:
        """[key, kind, forward or backward]: operations that take ``times_us`` each, one after another."""
        place = (rows.key * shape[1] + rows.kind) * shape[2] + self.backward[rows.op]
        table = np.bincount(place, self.count[rows.op] * times_us, math.prod(shape)).astype(np.float64)
        return table.reshape(shape)


def layer_times(
    built: Sequence[Mapping[str, list[RankLayer]]], key: npt.NDArray[np.intp], precisions: Sequence[int],
    strides: Mapping[str, Ints], prices: OpPrices, software: Sequence[Software],
) -> LayerTimes:  # fmt: skip
    """Times of the layers of ``built``, one per distinct key; ``key`` is each candidate's, ``strides`` its groups'.

    ``precisions`` has a number per distinct key, ``software`` the constants of each.
    Every distinct operation is priced once, those of steps in one of ``precisions`` in one call: together they say at
    which clock a step runs.
    """
    shape = (len(built), max(map(len, built), default=0), 2)
    rows, ops = _rows(built)
    parts = {part: rows.take(np.flatnonzero(ops.part[rows.op] == i)) for i, part in enumerate(PARTS)}
    is_local = ops.part < PARTS.index("tp")
    time_us = np.zeros((max(precisions, default=-1) + 1, len(ops.ops)))
    of_key = np.array(precisions, np.intp)
    for each, times in enumerate(time_us):
        mine = np.unique(rows.op[(of_key[rows.key] == each) & is_local[rows.op]]).tolist()
        models = [ops.models[ops.model[at]] for at in mine]
        price = prices.us(models)
        took = [price[model] * software[each].of(ops.ops[at]) for at, model in zip(mine, models, strict=True)]
        times[mine] = prices.summed(models, np.array(took, np.float64))

    def local(mine: _Rows) -> Floats:
        return ops.summed(mine, time_us[of_key[mine.key], mine.op], shape)

    def counted(mine: _Rows) -> Floats:
        launched = np.zeros(shape)
        np.add.at(launched, (mine.key, mine.kind, ops.backward[mine.op]), 1)
        return launched

    moved = {part: _Moved.of(parts[part], ops, key, stride) for part, stride in strides.items()}
    sent = prices.us(itertools.chain.from_iterable(each.models for each in moved.values()))

    def repeated(only: npt.NDArray[np.bool_]) -> dict[str, Floats]:
        forward = {part: each.times(ops, sent, prices, shape, only)[:, :, 0] for part, each in moved.items()}
        return {"": local(rows.take(np.flatnonzero((only & is_local)[rows.op])))[:, :, 0], **forward}

    return LayerTimes(
        key=key,
        compute=local(parts["compute"]),
        memory=local(parts["memory"]),
        copies=local(parts["copies"]),
        products=local(rows.take(np.flatnonzero(is_local[rows.op] & ops.is_product[rows.op]))),
        launched=counted(rows),
        exchanged={part: (each.inverse, each.times(ops, sent, prices, shape)) for part, each in moved.items()},
        partial=functools.cache(functools.partial(_partial, rows, ops, counted, local, repeated)),
    )


def _partial(
    rows: _Rows, ops: _Ops, counted: Callable[[_Rows], Floats], local: Callable[[_Rows], Floats],
    repeated: Callable[[npt.NDArray[np.bool_]], dict[str, Floats]],
) -> PartialTimes:  # fmt: skip
    """``counted`` launches and ``local`` times of some rows, and what ``repeated`` forwards of some operations take."""
    again, launched = dict[str, dict[str, Floats]](), dict[str, Floats]()
    for word, fields in SELECTIVE.items():
        is_again = ops.where(functools.partial(rank_ops.is_repeated, parallel=ParallelConfig(**fields)))
        again[word] = repeated(is_again)
        launched[word] = counted(rows.take(np.flatnonzero(is_again[rows.op])))[:, :, 0]
        launched[word][:, -len(ENDS) :] = 0.0
    mine = rows.take(np.flatnonzero(ops.where(lambda op, _: op.phase == "wgrad")[rows.op]))
    return PartialTimes(
        wgrad=local(mine)[:, :, 1], wgrad_launched=counted(mine)[:, :, 1], again=again, again_launched=launched
    )


def _rows(built: Sequence[Mapping[str, list[RankLayer]]]) -> tuple[_Rows, _Ops]:
    """Every operation of every layer in turn. Layers share what is the same for them, which is looked at once."""
    placed = [
        (i, k, block) for i, layers in enumerate(built) for k, made in enumerate(layers.values()) for block in made
    ]
    keys, kinds = (np.array([each[at] for each in placed], np.intp) for at in (0, 1))
    blocks, block = _numbered([block for *_, block in placed])
    ops, op = _numbered([op for each in blocks for op in each.ops])
    lengths = np.array([len(each.ops) for each in blocks], np.intp)
    many, ends = lengths[block], np.cumsum(lengths[block])
    at = np.arange(ends[-1] if len(ends) else 0) + np.repeat((np.cumsum(lengths) - lengths)[block] - ends + many, many)
    return _Rows(op=op[at], key=np.repeat(keys, many), kind=np.repeat(kinds, many)), _Ops.of(ops, blocks)


def _numbered(objects: list[Any]) -> tuple[list[Any], Ints]:
    """The distinct objects as they occur, and which of them each is."""
    first, which = distinct([np.fromiter(map(id, objects), np.int64, len(objects))])
    return [objects[at] for at in np.sort(first).tolist()], np.argsort(np.argsort(first))[which]


class _Moved(Record, frozen=True, kw_only=True, eq=False):
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
            models=[
                replace(sent, stride=int(strides[pair])) if isinstance(sent, Collective | EPComm) else sent
                for pair in pairs
                for sent in (ops.models[number[pair]],)
            ],
            model=model,
        )

    def times(
        self, ops: _Ops, sent_us: Mapping[PerfModel, float], prices: OpPrices, shape: tuple[int, ...],
        only: npt.NDArray[np.bool_] | None = None,
    ) -> Floats:  # fmt: skip
        """[key and stride, kind, forward or backward] from the time of each exchange; ``only``: of those operations."""
        each = prices.summed(self.models, np.array([sent_us[model] for model in self.models], np.float64))
        mine = np.arange(len(self.rows)) if only is None else np.flatnonzero(only[self.rows.op])
        shape = (int(self.inverse.max(initial=-1)) + 1, *shape[1:])
        return ops.summed(self.rows.take(mine), each[self.model[mine]], shape)


def part_of(op: RankOp) -> str:
    """Which part of ``PARTS`` an operation's time belongs to."""
    if isinstance(op.model, EPComm):
        return "ep"
    if op.name == rank_ops.COPIED:
        return "copies"
    if op.name.endswith(rank_ops.COLUMNS):
        return "grid"
    if isinstance(op.model, Collective):
        return "cp" if op.part == "cp" else "tp"
    return "compute" if op.model.engine == "matrix" else "memory"


_FLOP_PER_TFLOP = 1e12


class StepOperations(Record, frozen=True, kw_only=True):
    """The operations of a step of ``parallel``, in nodes of ``node`` ranks, at ``prices`` in microseconds."""

    model: ModelConfig
    parallel: ParallelConfig
    sequence: int
    node: int
    software: Software
    prices: Mapping[PerfModel, float]

    def rows(self, kind: str, blocks: Sequence[RankLayer], count: int, kept: float) -> Iterator[dict[str, Any]]:
        """All micro-batches of ``count`` layers of one kind; weights as held, activations of ``kept`` micro-batches."""
        shares = self._shares(blocks)
        for block in blocks if count else ():
            yield from self._block_rows(kind, block, count, kept, shares)

    def again_s(self, blocks: Sequence[RankLayer]) -> float:
        """What selective recomputation repeats of one layer in all micro-batches."""
        if self.parallel.recompute != "selective":
            return 0.0
        ops = (op for block in blocks for op in block.ops if rank_ops.is_repeated(op, block.letter, self.parallel))
        return self.parallel.micro_batches * sum(map(self._us, ops)) / US_PER_S

    def _us(self, op: RankOp) -> float:
        return op.count * self.prices[op.model] * self.software.of(op)

    def _shares(self, blocks: Sequence[RankLayer]) -> dict[str, float]:
        """Share of one layer's tensor-parallel transfers that overlapping GEMMs leave exposed, by direction."""
        if self.parallel.summa_blocks is None:
            return {"forward": 1.0, "backward": 1.0}
        ops = [op for block in blocks for op in block.ops]
        shares = {}
        for side in ("forward", "backward"):
            mine = [op for op in ops if _side(op) == side]
            moved = sum(self._us(op) for op in mine if part_of(op) in ("tp", "grid"))
            products = sum(self._us(op) for op in mine if op.part == "gemm")
            shares[side] = float(exposed_share(moved, products, self.parallel.summa_blocks, 1.0))
        return shares

    def _block_rows(
        self, kind: str, block: RankLayer, count: int, kept: float, shares: Mapping[str, float]
    ) -> list[dict[str, Any]]:
        times = count * self.parallel.micro_batches
        rows: dict[str, dict[str, Any]] = {}
        for op in block.ops:
            side, name = _side(op), op.name if kind in ENDS else f"{kind} {op.name}"
            row = rows.setdefault(name, {"op": name, "times": times, "forward_s": 0.0, "backward_s": 0.0})
            share = shares[side] if part_of(op) in ("tp", "grid") else 1.0
            row[f"{side}_s"] += share * op.count * self.prices[op.model] * self.software.of(op) * times / US_PER_S
            for column, value, unit in (
                ("tflop", op.model.flops(), _FLOP_PER_TFLOP), ("hbm_gb", op.model.hbm_bytes(), BYTES_PER_GB),
            ):  # fmt: skip
                row[f"{side}_{column}"] = row.get(f"{side}_{column}", 0.0) + (value or 0) * times / unit
            if isinstance(op.model, Collective | EPComm) and op.model.ranks:
                near = Group(ranks=op.model.ranks, stride=op.model.stride).within(self.node)
                row[f"{side}_group"] = f"{op.model.ranks} ({near} per node)"
                word = "all_to_all" if isinstance(op.model, EPComm) else op.model.word or ""
                row[f"{side}_comm"] = f"{before} + {word}" if (before := row.get(f"{side}_comm")) else word
                sent = (op.model.wire_bytes() or 0) * (op.count * times) / BYTES_PER_GB
                row[f"{side}_volume_gb"] = row.get(f"{side}_volume_gb", 0.0) + sent
        if rows:
            self._add_memory(rows, kind, block, count, kept)
        return list(rows.values())

    def _add_memory(
        self, rows: dict[str, dict[str, Any]], kind: str, block: RankLayer, count: int, kept: float
    ) -> None:
        first = next(iter(rows.values()))
        if kind in ENDS:
            first["weights_gb"] = block.dense * memory.WEIGHT_BYTES / BYTES_PER_GB
            return
        arguments = (self.model, self.parallel, block.letter, self.sequence)
        for name, held in rank_ops.weights(*arguments).items():
            if f"{kind} {name}" in rows:
                rows[f"{kind} {name}"]["weights_gb"] = held * count * memory.WEIGHT_BYTES / BYTES_PER_GB
        # What a block keeps is known for all of it.
        first["activations_gb"] = memory.activation_bytes(*arguments) * kept / BYTES_PER_GB


def _side(op: RankOp) -> str:
    return "forward" if op.phase == "forward" else "backward"
