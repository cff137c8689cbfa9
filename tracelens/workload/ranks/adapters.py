"""Low-rank adapters beside frozen weights (LoRA, arXiv 2106.09685): what a rank computes of them, and what not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tracelens.perf_models import GEMM
from tracelens.workload.layer_ops import LayerOp
from tracelens.workload.ranks.training_rank import Pass, RankOp, TrainingRank


def frozen(ops: Iterable[RankOp]) -> Iterator[RankOp]:
    """``ops`` without gradients of weights."""
    return (op for op in ops if op.phase != "wgrad")


def adapters(rank: TrainingRank, ops: Sequence[LayerOp]) -> tuple[list[RankOp], int]:
    """The products of the adapters of one block and their parameters: those of attention have one each, as MLPerf's
    fine-tuning benchmark adapts query, key, value and output. An adapter is k x rank, then rank x n, in 16 bits.
    """
    made: list[RankOp] = []
    held = 0
    for op in ops:
        if not op.name.startswith("attention.") or not isinstance(op.model, GEMM) or op.split not in ("column", "row"):
            continue
        n, k = op.model.n or 1, op.model.k or 1
        if op.split == "column":
            n = rank.part(n, op.name)
        else:
            k = rank.part(k, op.name)
        for name, width, depth in (("down", rank.parallel.lora, k), ("up", n, rank.parallel.lora)):
            model = GEMM(m=rank.tokens, n=width, k=depth, dtype=rank.width)
            dgrad, wgrad = model.backward()
            wgrad = replace(wgrad, dtype_out=rank.parallel.gradient_width)
            passes: tuple[tuple[Pass, GEMM], ...] = (("forward", model), ("dgrad", dgrad), ("wgrad", wgrad))
            for phase, each in passes:
                made.append(RankOp(name=f"{op.name}.adapter_{name}", phase=phase, part="gemm", model=each))
            held += width * depth
    return made, held
