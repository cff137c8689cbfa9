"""Low-rank adapters beside frozen weights (LoRA, arXiv 2106.09685): what a rank computes of them, and what not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tracelens.dtypes import DType
from tracelens.perf_models import GEMM, Movement
from tracelens.workload.layer_ops import LayerOp
from tracelens.workload.ranks.training_rank import Pass, RankOp, TrainingRank

#: What collectives around adapted column-parallel products are called: adapters read the gathered input, so that it is
#: gathered before the product and not in pieces beside it (tp_comm_overlap_disable_qkv = True of NeMo's LoRA recipes).
WHOLE_GATHER = "adapted.gather"


def frozen(ops: Iterable[RankOp], *, is_adapted: bool = False) -> Iterator[RankOp]:
    """``ops`` without gradients of weights. ``is_adapted``: adapters stand beside some."""
    for op in ops:
        if op.phase != "wgrad":
            yield replace(op, name=op.name.replace("block.gather", WHOLE_GATHER)) if is_adapted else op


def adapters(rank: TrainingRank, ops: Sequence[LayerOp]) -> tuple[list[RankOp], int]:
    """The operations of the adapters of one block and their parameters: those of attention have one each, as MLPerf's
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
        made += _beside(rank, op.name, rank.tokens * k, (rank.tokens if op.split == "column" else rank.rows) * n)
    return made, held


def _beside(rank: TrainingRank, name: str, inputs: int, outputs: int) -> Iterator[RankOp]:
    """What is streamed for one adapter in ``y = W x + s B A dropout(x)``: dropout with its mask, the scale, the sum;
    and backward the gradients of all three. Neither NeMo nor PEFT fuses them.
    """
    tensor, mask, result = (inputs, rank.width), (inputs, DType.BOOL), (outputs, rank.width)
    streams: tuple[tuple[str, Pass, Movement], ...] = (
        ("dropout", "forward", Movement(read=(tensor,), written=(tensor, mask))),
        ("scale", "forward", Movement(read=(result,), written=(result,))),
        ("sum", "forward", Movement(read=(result, result), written=(result,))),
        ("scale", "dgrad", Movement(read=(result,), written=(result,))),
        ("dropout", "dgrad", Movement(read=(tensor, mask), written=(tensor,))),
        ("sum", "dgrad", Movement(read=(tensor, tensor), written=(tensor,))),
    )
    for what, phase, model in streams:
        yield RankOp(name=f"{name}.adapter_{what}", phase=phase, part="memory", model=model)
