"""How long a recorded step would take if something about it were different."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.files.option_fields import above_zero, option, positive


def times(text: str) -> float:
    """``2x`` or ``2`` as a factor."""
    return above_zero(text.removesuffix("x"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfOptions:
    """What ``what_if`` takes beside a trace: the field of each change is named like its mark."""

    scale: tuple[str, ...] = option(
        "multiply the time of a category, op, module, kernel or the host", (), repeat=True, metavar="NAME=FACTOR"
    )
    remove: tuple[str, ...] = option(
        "leave out a category, op, module or kernel; repeatable", (), repeat=True, metavar="NAME"
    )
    device: str | None = option("run on another device, or in another cluster", metavar="NAME|FILE.toml")
    gpu_clock: float | None = option("multiply the GPU's clock", kind=above_zero, metavar="FACTOR", flags=("--clock",))
    power_limit: float | None = option("limit the GPU's power, which lowers its clock", kind=above_zero, metavar="W")
    precision: str | None = option("run GEMMs in another precision", metavar="fp8|int8|nvfp4|...")
    batch: float | None = option("multiply the sequences of a step", kind=times, read=times, metavar="2x")
    graphs: bool = option("launch kernels as CUDA or HIP graphs, one graph between two synchronizations", False)
    overlap: str | None = option("let no kernel wait for communication", choices=("comm",))
    fuse: str | None = option("fuse neighboring kernels over the same elements", metavar="chain|MODULE")
    pad: int | None = option("round GEMM dimensions up to a multiple", kind=positive, metavar="MULTIPLE")
    ranks: float | None = option("multiply the ranks of every group", kind=times, read=times, metavar="2x")
    apply: tuple[str, ...] = option("apply a finding of the report; repeatable", (), repeat=True, metavar="FINDING-ID")
    steps: str | None = option(
        "replay these steps only: 3, 3-5 or steady; default: all complete steps", metavar="N|N-M|steady"
    )
    sdpa: str | None = option("run attention with another kernel", choices=("flash",))
