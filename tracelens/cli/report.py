"""Report where a trace's device time went and how far it was from the hardware limits.

Writes TRACE.report/ with report.xlsx, report.html and report.json beside the trace (or where -o says) and prints the
verdict.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import refuse_input
from tracelens.option_fields import above_zero, positive, whole

if TYPE_CHECKING:
    from tracelens.report.result import Report


EXTENSION_FAILED = 5
CONTRADICTION = 6


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", type=Path, help="Kineto trace, .json or .json.gz")
    add(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="output folder, or FILE.xlsx, .html or .json; default: TRACE.report/",
    )
    add(
        "--device",
        metavar="NAME|FILE.toml",
        help="device to estimate for (`tracelens devices list`); default: recognized from the trace",
    )
    add(
        "--extension", action="append", default=[], metavar="NAME|FILE.py|none",
        help="ops of a framework: a bundled name, a file, an installed entry point; "
        "bundled ones switch themselves on, `none` stops that",
    )  # fmt: skip
    add("--steps", metavar="3|3-5|steady", help="only these steps; default: the whole trace")
    add("--rank", type=whole, metavar="N", help="rank to report if the file has several; default: the first")
    add("--ep-size", type=positive, metavar="RANKS", help="expert-parallel group size, if the trace does not record it")
    add(
        "--backend",
        default="roofline",
        metavar="CHAIN",
        help="cost model for achievable time: tile, gemm=origami,sdpa=tile ...",
    )
    add("--gpu-clock-mhz", type=float, metavar="MHZ", help="GPU clock to estimate for; default: the data sheet's")
    add(
        "--overlap",
        choices=("keep", "clip"),
        default="keep",
        help="device events that run into the next one on their stream",
    )
    add("--cpu", action="store_true", help="add tables of CPU ops; also reports on traces without GPU work")
    add(
        "--model", metavar="NAME|config.json", help="add model and hardware FLOPs utilization; also takes a model .toml"
    )
    add("--tokens-per-step", type=positive, metavar="N", help="for --model, if the trace does not record it")
    add("--batch", type=positive, metavar="B", help="sequences per step, for --model")
    add("--sequence", type=positive, metavar="S", help="tokens per sequence, for --model")
    add(
        "--ranks",
        type=positive,
        metavar="N",
        help="for --model: ranks that share the work on these tokens (tp x pp x cp)",
    )
    add("--capture", type=Path, metavar="TRACE", help="trace of the graph capture: gives ops to replayed kernels")
    add(
        "--max-memory",
        type=above_zero,
        metavar="GB",
        help="stop reading above this memory use; default: 3/4 of the machine's",
    )
    add("--csv", action="store_true", help="also write csv/, one file per sheet")
    add("--check", action="store_true", help="read the file a second time and check the report's totals and laws")
    add("--format", choices=("text", "json"), default="text", help="what to print: the verdict, or report.json")


def run(args: argparse.Namespace) -> int:
    import tracelens
    from tracelens.backends.chain import absences
    from tracelens.errors import UsageError
    from tracelens.extensions import NONE
    from tracelens.hardware import HardwareSpec
    from tracelens.report.result import refuse_foreign
    from tracelens.report.terminal import wants_color
    from tracelens.workload import ModelConfig

    output: Path = args.output or args.trace.parent / f"{_stem(args.trace)}.report"
    refuse_input(output, [args.trace, *filter(None, [args.capture])])
    if not _is_file(output):
        if args.trace.is_file():  # else that is what is wrong
            refuse_foreign(output)
    elif args.csv:
        raise UsageError(f"--csv writes a folder of tables: -o must be a folder, not {output}")
    device = HardwareSpec.load(args.device) if args.device else None
    model = ModelConfig.load(args.model) if args.model else None
    for absence in absences(args.backend):
        print(f"note: {absence}", file=sys.stderr)
    started = time.monotonic()
    report = tracelens.report(
        tracelens.load(args.trace, progress=_Progress(), max_memory_gb=args.max_memory),
        device=device,
        extensions=[spec for spec in args.extension if spec != NONE],
        bundled=NONE not in args.extension,
        steps=args.steps,
        rank=args.rank,
        ep_size=args.ep_size,
        backend=args.backend,
        gpu_clock_mhz=args.gpu_clock_mhz,
        overlap=args.overlap,
        cpu=args.cpu,
        model=model,
        tokens_per_step=args.tokens_per_step,
        batch=args.batch,
        sequence=args.sequence,
        ranks=args.ranks,
        capture=args.capture,
    )
    _write(report, output, csv=args.csv)
    if args.format == "json":
        sys.stdout.write(report.to_json() + "\n")
    else:
        written = f"{output}{'' if _is_file(output) else '/'}"
        seconds = time.monotonic() - started
        print(report.verdict(seconds=seconds, written=[written], color=wants_color(sys.stdout)))
    if args.check and not _holds(report, args.trace):
        return CONTRADICTION
    return EXTENSION_FAILED if report.has_failed_extension else 0


def _holds(report: Report, trace: Path) -> bool:
    """Whether the report obeys its laws; says on stderr which ones were checked and which it breaks."""
    from tracelens.report.text import terminal_text

    found = report.check(trace)
    compared = f"not compared with the file: {found.unchecked}" if found.unchecked else "compared with the file"
    print(f"check: {len(found.laws)} laws, {len(found.broken)} broken; totals {compared}", file=sys.stderr)
    for law, what in found.broken:
        print(terminal_text(f"check: {law}: {what}"), file=sys.stderr)
    if found.broken:
        print("check: this is a bug in tracelens, please report it with these lines", file=sys.stderr)
    return not found.broken


def _is_file(output: Path) -> bool:
    return output.suffix in (".xlsx", ".html", ".json")


def _write(report: Report, output: Path, *, csv: bool) -> None:
    if output.suffix == ".xlsx":
        report.to_excel(output)
    elif output.suffix == ".html":
        report.to_html(output)
    elif output.suffix == ".json":
        report.to_json(output)
    else:
        report.write(output, csv=csv)


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".json", ".trace", ".pt"):
        name = name.removesuffix(suffix)
    return name or path.name


_BAR = 30


class _Progress:
    """A bar with the rate at which the file is read, on stderr, from one second on, when that is a terminal."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.shown = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic() - self.started
        if not sys.stderr.isatty() or now < 1 or (now - self.shown < 0.2 and done < total):
            return
        self.shown = now
        share = min(done / total, 1.0) if total else 1.0
        bar = ("#" * round(_BAR * share)).ljust(_BAR, ".")
        left = f"{now / share - now:5.0f} s left" if share else ""
        line = f"\r reading [{bar}] {share:4.0%}  {done / now / 1e6:6.1f} MB/s {left}"
        print(line, end="\n" if done >= total else "", file=sys.stderr, flush=True)
