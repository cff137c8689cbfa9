"""Verbs that write a trace again: cut, without names, in another format, with others, or as scripts."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass
from pathlib import Path

from tracelens.cli import add_executor, refuse_input
from tracelens.errors import UsageError
from tracelens.files.option_fields import arguments_of, comma_list, option, options_of, output_option, positive, whole
from tracelens.files.remote import folder_beside
from tracelens.files.safe_text import terminal_text, trace_name
from tracelens.files.say import Progress, say


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceToTrace:
    """What is read, and where the result goes."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    output: Path = output_option("file to write, .json or .json.gz", MISSING)


configure_anonymize = arguments_of(TraceToTrace)


def run_anonymize(args: argparse.Namespace) -> int:
    """Remove names and paths from a trace, so that it can be shared.

    Ops, kernels, modules, ranges and files get placeholders unless they are PyTorch's or a published library's. Stacks,
    host names and unknown arguments are removed. Times, sizes and shapes stay, so the report has the same figures.
    """
    from tracelens.analysis.loaded_trace import load
    from tracelens.report.excerpts.anonymize import anonymize

    asked = options_of(TraceToTrace, args)
    refuse_input(asked.output, [asked.trace])
    say(f" {anonymize(load(asked.trace), asked.output):,} names replaced")
    say(f" wrote {asked.output}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertCommand:
    """What is read, and where the result goes."""

    trace: Path = option("trace of any profiler (docs/formats.md)", MISSING, kind=Path, flags=("trace",))
    output: Path = output_option("file to write", MISSING)


configure_convert = arguments_of(ConvertCommand)


def run_convert(args: argparse.Namespace) -> int:
    """Write a trace of any profiler in another format.

    The ending of FILE chooses the format: .json (Kineto) or .pftrace (Perfetto protobuf), either also with .gz; .et
    (Chakra, for network simulators); .parquet; .arrow.
    """
    from tracelens.report.excerpts.converting import convert
    from tracelens.trace.reading.read import read_trace

    asked = options_of(ConvertCommand, args)
    refuse_input(asked.output, [asked.trace])
    table = read_trace(asked.trace)
    for note in table.losses.notes:
        say(f" {note}")
    say(f" {convert(table, asked.output):,} records of {table.source}, {table.recorder.file}")
    say(f" wrote {asked.output}")
    return 0


def configure_fuse(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="folder, glob pattern or files, one Kineto trace per rank")
    add("-o", "--output", type=Path, metavar="FILE", help="file to write; default: NAME.fused.json.gz")
    add("--ranks", metavar="0-3,8", help="fuse these ranks only; default: all")
    add("--window", metavar="START:END", help="keep this window only, in ms after the earliest event")
    add("--category", metavar="NAME,...", help="keep these categories only (kernel, gpu_memcpy, cpu_op ...)")
    add("--no-clocks", action="store_true", help="keep times as recorded")
    add("--no-counters", action="store_true", help="write no counter tracks")
    add("--ranks-per-node", type=positive, metavar="N", help="ranks that share a clock, if the traces do not record it")
    add_executor(parser)


def run_fuse(args: argparse.Namespace) -> int:
    """Fuse the traces of many ranks into one file for Perfetto (ui.perfetto.dev), on one clock.

    TRACE is a folder, a glob pattern or files, one trace per rank. Processes carry their rank and follow its order.
    Counter tracks show busy share, TFLOPS/s and interconnect TB/s.
    """
    from tracelens.analysis.ranks.rank_files import RankOptions, find_traces, job_folder, parse_ranks, read_ranks
    from tracelens.analysis.ranks.rank_fusion import fuse_ranks
    from tracelens.analysis.ranks.rank_summary import ranks_text
    from tracelens.files.executors import open_executor
    from tracelens.trace.rewriting import EventFilter, parse_window

    paths = find_traces(args.trace)
    source = job_folder(args.trace[0], paths)
    output: Path = args.output or folder_beside(source) / f"{source.name}.fused.json.gz"
    refuse_input(output, paths)
    kept = EventFilter(
        window_ns=parse_window(args.window) if args.window else None,
        categories=frozenset(name.strip() for name in args.category.split(",")) if args.category else frozenset(),
    )
    wanted = parse_ranks(args.ranks) if args.ranks else None
    options = RankOptions(ranks_per_node=args.ranks_per_node)
    with open_executor(args.executor, jobs=args.jobs) as executor:
        read = read_ranks(paths, options, executor=executor, progress=Progress("reading", "ranks"))
    result, clocks = fuse_ranks(
        read, options, output, kept=kept, wanted=wanted, align=not args.no_clocks, counters=not args.no_counters
    )
    for file, why in read.failed:
        say(f"left out: {file}: {why}", to_stderr=True)
    fused = read.numbered.ranks if wanted is None else wanted & read.numbered.ranks.keys()
    say(f" {result.ranks} ranks ({ranks_text(fused)}), {result.events:,} events")
    if kept.categories and not result.slices:
        say(f"note: no event has --category {args.category}", to_stderr=True)
    if result.moved_slices:
        say(f" {result.moved_slices:,} slices that overlapped others on their track got a separate lane")
    if len(clocks.hosts) > 1 and not args.no_clocks:
        residual = clocks.residual_us
        say(
            f" the clocks of {len(clocks.hosts)} hosts are "
            + ("not aligned" if residual is None else f"aligned to ±{residual:.1f} µs")
        )
    say(f" wrote {output}")
    return 0


configure_perfetto = arguments_of(TraceToTrace)


def run_perfetto(args: argparse.Namespace) -> int:
    """Write a trace for Perfetto with achieved rates, bounds and findings as tracks.

    Each kernel gets its category, its rates and its share of the roofline as arguments. Rates become counters, each
    finding a track. Open the file at https://ui.perfetto.dev ("Open trace file"); it stays on this machine.
    """
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import AnalysisOptions, load
    from tracelens.report.excerpts.converting import write_perfetto

    asked = options_of(TraceToTrace, args)
    refuse_input(asked.output, [asked.trace])
    say(f" {write_perfetto(analyze(load(asked.trace), AnalysisOptions()), asked.output):,} events")
    say(f" wrote {asked.output}: open it at https://ui.perfetto.dev, which uploads nothing")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayCommand:
    """Which ops, and where their scripts go."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    op: str | None = option("write this op", metavar="NAME")
    top: int | None = option("write the N ops with the most kernel time; default: 10", kind=positive, metavar="N")
    output: Path | None = output_option("folder to write; default: TRACE.ops/", metavar="FOLDER")


configure_replay = arguments_of(ReplayCommand)


def run_replay(args: argparse.Namespace) -> int:
    """Write ops of a trace as scripts that measure them, and judge a faster one.

    A script needs PyTorch only. It contains shapes, types, strides and scalars of the calls that make up 95 % of the
    op's device time, and how long the step takes when the op is faster; nothing else of the trace. Its --candidate
    FILE.py compares a kernel's results with the op's and says what the step would gain.
    """
    from tracelens.analysis.loaded_trace import load
    from tracelens.report.excerpts.op_scripts import op_scripts, write_scripts

    asked = options_of(ReplayCommand, args)
    if asked.op is not None and asked.top is not None:
        raise UsageError("give only one of --op and --top")
    folder = asked.output or folder_beside(asked.trace) / f"{trace_name(asked.trace.name)}.ops"
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: -o must be a folder")
    top = asked.top if asked.op is not None or asked.top is not None else 10
    scripts = op_scripts(load(asked.trace), op=asked.op, top=top)
    write_scripts(scripts, folder)
    for script in scripts:
        what = f"left out: {script.why}"
        if script.file is not None:
            of_calls = f"{script.written} of {script.distinct} distinct calls"
            what = f"{script.file}   {of_calls}, {100 * script.covered:.1f} % of its device time"
            what += f"; others: {script.why}" if script.why else ""
        say(terminal_text(f" {script.kernel_us:10,.1f} µs x {script.calls:<6} {script.name:<40} {what}"))
    say(f" wrote {folder}/")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimCommand:
    """What stays, and where it goes."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    output: Path = output_option("file to write, .json or .json.gz", MISSING)
    steps: str | None = option("keep these steps only", metavar="3|3-5|steady")
    rank: int | None = option("keep this rank only, of a file with several", kind=whole, metavar="N")
    category: tuple[str, ...] = option(
        "keep these categories only (kernel, gpu_memcpy, cpu_op ...)", (), kind=comma_list, metavar="NAME,..."
    )


configure_slim = arguments_of(SlimCommand)


def run_slim(args: argparse.Namespace) -> int:
    """Cut a trace to some steps, one rank, or some categories.

    The result is a Kineto trace. With --steps it looks as if recording began with the first of them.
    """
    from tracelens.analysis.loaded_trace import load
    from tracelens.report.excerpts.anonymize import Cut, slim

    asked = options_of(SlimCommand, args)
    refuse_input(asked.output, [asked.trace])
    cut = Cut(steps=asked.steps, rank=asked.rank, categories=tuple(asked.category))
    kept, events = slim(load(asked.trace), asked.output, cut)
    say(f" {kept:,} of {events:,} events")
    say(f" wrote {asked.output}")
    return 0
