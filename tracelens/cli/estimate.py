"""Estimate how long an operation should take on a device, without a trace.

One operation: tracelens estimate gemm --m 8192 --n 28672 --k 8192 --dtype bf16 --device h200,b200
A table:       tracelens estimate gemm --batch in.csv -o out.csv --device h200
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.analysis.estimation import Answer

_HEADER = ("device", "operation", "time us", "TFLOPS/s", "bound", "compute us", "memory us", "peak us", "error", "by")


def configure(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest="what", required=True, metavar="OPERATION")
    gemm = _kind(kinds, "gemm", "C[m,n] = A[m,k] B[k,n]")
    _sizes(gemm, "m n k", b=1)
    grouped = _kind(kinds, "grouped-gemm", "one product per expert, rows shared out among them")
    _sizes(grouped, "n k")
    rows = grouped.add_mutually_exclusive_group()
    rows.add_argument("--rows", help="rows of each group, e.g. 128,4096,0,77")
    rows.add_argument("--m", type=int, help="rows in all, even among --groups")
    grouped.add_argument("--groups", type=int, default=1)
    sdpa = _kind(kinds, "sdpa", "attention; decoding with --s-q 1")
    _sizes(sdpa, "s_q q_heads d_qk", b=1)
    for name in ("s-kv", "kv-heads", "d-v", "window"):
        sdpa.add_argument(
            f"--{name}", type=int, help="default: none" if name == "window" else "default: as of the queries"
        )
    sdpa.add_argument("--no-causal", action="store_true", help="every query sees every key")
    moe = _kind(kinds, "moe", "a fused expert layer on the most loaded rank, without the exchange")
    _sizes(moe, "tokens hidden ffn experts topk", ep=1, tp=1)
    moe.add_argument("--distribution", default="balanced", metavar="balanced|power_law_A")
    moe.add_argument("--no-gate", action="store_true", help="two matrices per expert instead of three")
    for name in ("context-attention", "generation-attention"):
        _kind(kinds, name, "a table of an inference engine's attention layers (--batch)")


def _kind(kinds: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    kind = kinds.add_parser(name, help=text, description=text)
    add = kind.add_argument
    add("--device", metavar="NAME[,NAME...]", help="names or device files, side by side")
    add("--dtype", default="bf16", metavar="TYPE", help="bf16 (default), fp8, fp8_block, nvfp4; of --kv for sdpa")
    add("--backend", default="tile", metavar="CHAIN", help="e.g. roofline, or gemm=origami,sdpa=tile; default: tile")
    add("--gpu-clock-mhz", type=float, metavar="MHZ", help="default: the data sheet's")
    add("--backward", action="store_true", help="forward, then each gradient apart")
    add("--batch", type=Path, metavar="FILE", help="a table, .csv or .parquet; docs/estimation.md lists its columns")
    add("-o", "--output", type=Path, metavar="FILE", help="where --batch writes it; default: stdout as CSV")
    return kind


def _sizes(parser: argparse.ArgumentParser, needed: str, **optional: int) -> None:
    for name in needed.split():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    for name, default in optional.items():
        parser.add_argument(f"--{name}", type=int, default=default)


def run(args: argparse.Namespace) -> int:
    from tracelens.errors import UsageError

    if args.batch is not None:
        return _batch(args)
    if not args.device:
        raise UsageError("name a device: --device h200, or several: --device h200,b200")
    answers = [answer for name in args.device.split(",") for answer in _answers(args, name.strip())]
    rows = [_HEADER, *(_row(answer) for answer in answers)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADER))]
    for row in rows:
        cells = [
            c.ljust(w) if i in (0, 1, 4, 9) else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
    return 0


def _answers(args: argparse.Namespace, device: str) -> list[Answer]:
    from tracelens.analysis.estimation import operation_answers
    from tracelens.errors import UsageError

    sizes = {
        name: value for name, value in vars(args).items() if isinstance(value, int) and not isinstance(value, bool)
    }
    for name in ("rows", "distribution"):
        if getattr(args, name, None) is not None:
            sizes[name] = getattr(args, name)
    sizes["causal"] = not getattr(args, "no_causal", False)
    sizes["gated"] = not getattr(args, "no_gate", False)
    if args.what.endswith("-attention"):
        raise UsageError(f"{args.what} is for tables: give --batch FILE; one operation is `tracelens estimate sdpa`")
    return operation_answers(
        args.what, sizes, device=device, dtype=args.dtype, backend=args.backend,
        gpu_clock_mhz=args.gpu_clock_mhz, backward=args.backward,
    )  # fmt: skip


def _row(answer: Answer) -> tuple[str, ...]:
    e = answer.estimate
    if e is None:
        return (answer.device, answer.operation, "-", "-", "-", "-", "-", "-", "-", "no backend can answer")
    rate = "-" if not answer.flops else f"{answer.flops / e.time_us / 1e6:.0f}"
    error = "-" if answer.error_percent is None else f"{answer.error_percent:.0f} %"
    parts = (f"{value:.4g}" if value is not None else "-" for value in (e.compute_us, e.memory_us, e.peak_us))
    return (answer.device, answer.operation, f"{e.time_us:.4g}", rate, e.bound or "-", *parts, error, e.backend)


def _batch(args: argparse.Namespace) -> int:
    from tracelens.analysis.estimation import estimate, read_table, write_table

    found = estimate(
        args.what, read_table(args.batch), device=args.device, backend=args.backend, gpu_clock_mhz=args.gpu_clock_mhz
    )
    if args.output is None:
        sys.stdout.write(found.to_csv(index=False))
        return 0
    write_table(found, args.output)
    missing = int(found["time_us"].isna().sum())
    print(f"wrote {args.output}: {len(found)} rows" + (f", {missing} without an answer" if missing else ""))
    return 0
