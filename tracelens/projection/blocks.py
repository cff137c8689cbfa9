"""The kernels of one layer's pass on one rank, in order on their streams, and what of them is exposed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tracelens.lazy.records import dataclass
from tracelens.perf_models import Collective, EPComm
from tracelens.projection.schedules import Kind
from tracelens.workload.parallel_config import ParallelConfig
from tracelens.workload.rank_ops import RankLayer, RankOp, is_repeated
from tracelens.workload.ranks.adapters import WHOLE_GATHER

#: Time in us by what it is spent on.
Parts: TypeAlias = dict[str, float]
#: Of the products' time, what ring exchanges beside them hide behind.
TP_HIDDEN = 0.6
#: Pieces of an exchange of which nothing has to come first.
UNDIVIDED = float("inf")
COMPUTE = "compute"


class Kernel(NamedTuple):
    """One operation on the device; ``again``: recomputed. A tuple, because a step has 100,000 of them."""

    op: RankOp
    start_us: float
    time_us: float
    stream: str
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Kernels, their times from the block's start in microseconds.

    ``parts`` adds up to ``time_us``: computing, and of communication what stays exposed. ``lead_us``: the most that any
    kernel's launch ends after the kernel's start when the host starts together with the block.
    """

    time_us: float
    parts: Mapping[str, float]
    kernels: tuple[Kernel, ...]
    lead_us: float

    def then(self, other: Block, host_us: float) -> Block:
        """``other`` right after this."""
        parts: Parts = defaultdict(float, self.parts)
        for part, time_us in other.parts.items():
            parts[part] += time_us
        moved = (kernel._replace(start_us=kernel.start_us + self.time_us) for kernel in other.kernels)
        return Block(
            time_us=self.time_us + other.time_us,
            parts=parts,
            kernels=(*self.kernels, *moved),
            lead_us=max(self.lead_us, len(self.kernels) * host_us + other.lead_us - self.time_us),
        )


EMPTY = Block(time_us=0.0, parts={}, kernels=(), lead_us=float("-inf"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Makes blocks of operations that take ``price(op)``, launched every ``host_us``."""

    parallel: ParallelConfig
    price: Callable[[RankOp], float]
    host_us: float

    def layer(self, blocks: Sequence[RankLayer]) -> dict[Kind, Block]:
        """A block per kind of task for one layer, or for an end of the model."""
        ops = [op for block in blocks for op in block.ops]
        backward = list(itertools.chain.from_iterable(map(_backward, reversed(blocks))))
        again = self._again(blocks)
        return {
            "F": self.block(op for op in ops if op.phase == "forward"),
            "B": again.then(self.block(backward), self.host_us),
            "D": again.then(self.block(op for op in backward if op.phase == "dgrad"), self.host_us),
            "W": self.block(op for op in backward if op.phase == "wgrad"),
        }

    def block(self, ops: Iterable[RankOp]) -> Block:
        """``ops`` one after the other; tensor-parallel collectives beside products where the configuration says so."""
        priced = [(op, self.price(op)) for op in ops]
        exposed = self._exposed_shares(priced)
        parts: Parts = defaultdict(float)
        kernels: list[Kernel] = []
        now = beside = 0.0
        lead = float("-inf")
        for launched, (op, time_us) in enumerate(priced, start=1):
            share = exposed.get(op.name, 1.0) if op.part == "tp" else 1.0
            start = now
            if op.part == "tp":
                start = max(now, beside)
                beside = start + time_us
            kernels.append(Kernel(op, start, time_us, _stream(op)))
            lead = max(lead, launched * self.host_us - now)
            parts[op.part] += share * time_us
            now += share * time_us
        return Block(time_us=now, parts=parts, kernels=tuple(kernels), lead_us=lead)

    def _exposed_shares(self, priced: Sequence[tuple[RankOp, float]]) -> dict[str, float]:
        """Exposed share of tensor-parallel collectives by name, where less than all. GEMMs in tp pieces, each beside
        the next piece's transfer: the first piece has nothing to hide behind, and GEMMs leave others only a part of
        their time. Beside the gradients' GEMMs as a whole only what column-parallel ones gather and scatter goes.
        """
        p = self.parallel
        pieces: float = p.tp if p.summa_blocks is None else p.summa_blocks
        hidden = TP_HIDDEN if p.summa_blocks is None else 1.0
        if p.tp_overlap != "all" and p.summa_blocks is None:
            pieces = UNDIVIDED
        beside = {op.name for op, _ in priced if self._runs_beside_products(op)}
        moved = sum(time_us for op, time_us in priced if op.part == "tp" and op.name in beside)
        products = sum(time_us for op, time_us in priced if op.part == "gemm")
        share = float(exposed_share(moved, products, pieces, hidden))
        return dict.fromkeys(beside, share)

    def _runs_beside_products(self, op: RankOp) -> bool:
        p = self.parallel
        if op.part != "tp" or op.name.startswith(WHOLE_GATHER):
            return False
        if p.tp_overlap == "all" or p.summa_blocks is not None:
            return True
        return p.tp_overlap == "backward" and not p.lora and _waits_for_no_product(op)

    def _again(self, blocks: Sequence[RankLayer]) -> Block:
        """What recomputation runs before the backward."""
        ops = [op for block in blocks for op in block.ops if is_repeated(op, block.letter, self.parallel)]
        if not ops:
            return EMPTY
        made = self.block(ops)
        return Block(
            time_us=made.time_us,
            parts={"recompute": made.time_us} if made.time_us else {},
            kernels=tuple(kernel._replace(again=True) for kernel in made.kernels),
            lead_us=made.lead_us,
        )


def exposed_share(moved_us: Any, products_us: Any, pieces: Any, hidden: float) -> Any:
    """Exposed share of transfers in ``pieces`` beside GEMMs: the first piece, and what a share ``hidden`` of the GEMMs'
    time does not cover of the rest. Numbers or arrays.
    """
    first = moved_us / pieces
    exposed = first + np.maximum(0.0, moved_us - first - hidden * products_us)
    return np.where(moved_us > 0, exposed / np.where(moved_us > 0, moved_us, 1.0), 1.0)


def _backward(block: RankLayer) -> Iterable[RankOp]:
    """A forward's operations in reverse; what belongs to one of them stays in its order."""
    runs = [list(run) for _, run in itertools.groupby(block.ops, key=_base)]
    return (op for run in reversed(runs) for op in run if op.phase != "forward")


def _base(op: RankOp) -> str:
    """The name of the operation that this is a part of: its product's of a quantization."""
    return op.name.rpartition(".")[0] if op.part in ("tp", "cp", "quantize") else op.name


def _stream(op: RankOp) -> str:
    if op.part in ("tp", "cp", "ep"):
        return op.part
    return "tp" if isinstance(op.model, Collective | EPComm) else COMPUTE


def _waits_for_no_product(op: RankOp) -> bool:
    """Whether a transfer beside a column-parallel product's two backward products waits for none of them: the gather of
    its input, which only wgrad reads, can run beside dgrad; the scatter of what dgrad made can run beside wgrad.
    """
    return op.part == "tp" and op.phase == "dgrad" and ".gather." in op.name
