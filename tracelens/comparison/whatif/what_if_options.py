"""What can be different, as keywords and as options of the command."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.option_fields import above_zero, option, positive


def times(text: str) -> float:
    """``2x`` or ``2`` as a factor."""
    return above_zero(text.removesuffix("x"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """What ``what_if`` takes beside a trace: the field of each change is named like its mark."""

    scale: tuple[str, ...] = option(
        "multiply the time of a category, op, module or kernel (or host)", (), repeat=True, metavar="NAME=FACTOR",
        note="multiply the time of a category (`GEMM`), op, module or kernel (`*` fits anything), or of the `host`; "
        "repeatable",
    )  # fmt: skip
    remove: tuple[str, ...] = option(
        "leave out a category, op, module or kernel", (), repeat=True, metavar="NAME",
        note="leave out a category, an op, module or range with all below it and the host's time in it, or kernels; "
        "repeatable",
    )  # fmt: skip
    device: str | None = option(
        "run on another device (or in another cluster)", metavar="NAME|FILE.toml",
        note="run on another device: what an op reached of its estimate there it is taken to reach here",
    )  # fmt: skip
    gpu_clock: float | None = option("multiply the GPU's clock", kind=above_zero, metavar="FACTOR", flags=("--clock",))
    precision: str | None = option(
        "matrix products in another precision", metavar="fp8|int8|nvfp4|...",
        note="matrix products in another precision, each with a kernel before that converts its first operand",
    )  # fmt: skip
    batch: float | None = option("multiply the sequences of a step", kind=times, read=times, metavar="2x")
    graphs: bool = option("launch kernels as CUDA or HIP graphs, one between two synchronizations", False)
    overlap: str | None = option(
        "let no kernel wait for communication", choices=("comm",),
        note="let no kernel wait for communication: a bound on what more overlap can give",
    )  # fmt: skip
    fuse: str | None = option(
        "neighboring kernels over the same elements as one", metavar="chain|MODULE",
        note="neighboring kernels over the same elements become one, as long as its longest member: everywhere "
        "(`chain`), or in a module, op or range",
    )  # fmt: skip
    pad: int | None = option("round dimensions of matrix products up", kind=positive, metavar="MULTIPLE")
    ranks: float | None = option("multiply the ranks of every group", kind=times, read=times, metavar="2x")
    apply: tuple[str, ...] = option(
        "do what a finding of the report says", (), repeat=True, metavar="FINDING-ID",
        note="do what a finding of `report` says (its id, kind or key): what it claims falls away; repeatable",
    )  # fmt: skip
    steps: str | None = option(
        "figures of these steps alone: 3, 3-5 or steady; default: all complete ones", metavar="N|N-M|steady",
        note="figures of these steps alone: `3`, `3-5`, or `steady` (without the first); default: all complete ones",
    )  # fmt: skip
    sdpa: str | None = option(
        "attention by another kernel", choices=("flash",),
        note="calls of memory-efficient, cuDNN's or unfused attention take what a flash kernel should",
    )  # fmt: skip
