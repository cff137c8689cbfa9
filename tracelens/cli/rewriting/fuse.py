"""Fuse the traces of many ranks into one file for Perfetto (ui.perfetto.dev), on one clock.

TRACE is a folder, a glob pattern or files, one trace per rank. Processes are labeled by rank, in rank order;
overlapping slices of one track get their own lanes; counter tracks show busy share, TFLOPS/s and interconnect TB/s.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.files.say import Progress, say


def configure(parser: argparse.ArgumentParser) -> None:
    from tracelens.cli.collectives import add_executor
    from tracelens.option_fields import positive

    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="folder, glob pattern or files, one Kineto trace per rank")
    add("-o", "--output", type=Path, metavar="FILE", help="file to write; default: NAME.fused.json.gz")
    add("--ranks", metavar="0-3,8", help="only these ranks; default: all")
    add("--window", metavar="START:END", help="only events in this window, in ms after the earliest event")
    add("--category", metavar="NAME,...", help="only these categories (kernel, gpu_memcpy, cpu_op ...)")
    add("--no-clocks", action="store_true", help="keep times as recorded")
    add("--no-counters", action="store_true", help="write no counter tracks")
    add("--ranks-per-node", type=positive, metavar="N", help="ranks that share a clock, if the traces do not record it")
    add_executor(parser)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.ranks.parallel_reading import RankOptions, read_ranks
    from tracelens.analysis.ranks.rank_files import find_traces, job_folder, parse_ranks, ranks_text
    from tracelens.analysis.ranks.rank_fusion import fuse_ranks
    from tracelens.cli import refuse_input
    from tracelens.executors import open_executor
    from tracelens.files.remote import folder_beside
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
        say(f"left out: {file}: {why}", beside=True)
    fused = read.numbered.ranks if wanted is None else wanted & read.numbered.ranks.keys()
    say(f" {result.ranks} ranks ({ranks_text(fused)}), {result.events:,} events")
    if kept.categories and not result.slices:
        say(f"note: no event has --category {args.category}", beside=True)
    if result.moved_slices:
        say(f" {result.moved_slices:,} slices overlapped another of their track and got a lane of their own")
    if len(clocks.hosts) > 1 and not args.no_clocks:
        residual = clocks.residual_us
        say(f" clocks: {len(clocks.hosts)} hosts, " + ("not placed" if residual is None else f"±{residual:.1f} µs"))
    say(f" wrote {output}")
    return 0
