"""One configuration of a search, an operation per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tracelens.lazy.records import dataclass
from tracelens.network.topology import Group
from tracelens.perf_models import Collective, EPComm, PerfModel
from tracelens.projection.blocks import exposed_share
from tracelens.projection.overheads import Software
from tracelens.projection.search.layer_times import part_of
from tracelens.units import BYTES_PER_GB, US_PER_S
from tracelens.workload import memory, rank_ops
from tracelens.workload.model_config import ModelConfig
from tracelens.workload.parallel_config import ParallelConfig
from tracelens.workload.rank_ops import ENDS, RankLayer, RankOp

_FLOP_PER_TFLOP = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
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

    def _us(self, op: RankOp) -> float:
        return op.count * self.prices[op.model] * self.software.of(op)

    def _shares(self, blocks: Sequence[RankLayer]) -> dict[str, float]:
        """Share of one layer's tensor-parallel transfers that the GEMMs beside them leave exposed, by direction."""
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
                _add_message(row, side, op.model, op.count * times)
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


def _add_message(row: dict[str, Any], side: str, model: Collective | EPComm, times: int) -> None:
    word = "all_to_all" if isinstance(model, EPComm) else model.word or ""
    before = row.get(f"{side}_comm")
    row[f"{side}_comm"] = f"{before} + {word}" if before else word
    sent = (model.wire_bytes() or 0) * times / BYTES_PER_GB
    row[f"{side}_volume_gb"] = row.get(f"{side}_volume_gb", 0.0) + sent
