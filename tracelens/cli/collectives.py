"""Compare the ranks of a job: bandwidth, waiting, stragglers, clocks, token exchanges, overlap, bubbles.

TRACE is a folder, a glob pattern or files, one trace per rank. Writes NAME.report/ with collectives.xlsx and
collectives.json (or where -o says) and prints the result. A rank whose file is broken, or whose worker dies, is left
out and named.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.cli import refuse_input
from tracelens.files.say import Progress, emit, say
from tracelens.option_fields import positive


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE", help="folder, glob pattern or files, one Kineto trace per rank")
    place = "output folder, or FILE.xlsx, .html or .json; default: beside the traces"
    add("-o", "--output", type=Path, metavar="PATH", help=place)
    add("--extension", action="append", default=[], metavar="NAME|FILE.py|none", help="as for report; repeatable")
    add("--ep-size", type=positive, metavar="RANKS", help="expert-parallel group size, if the traces do not record it")
    add("--ranks-per-node", type=positive, metavar="N", help="ranks that share a clock, if the traces do not record it")
    add_executor(parser)
    add("--csv", action="store_true", help="also write csv/, one file per sheet")
    add("--column-names", choices=("keys", "tracelens"), default="keys", help="as for report")
    add("--format", choices=("text", "json"), default="text", help="what to print: the result as text, or JSON")


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.ranks.rank_comparison import compare_ranks
    from tracelens.analysis.ranks.rank_files import RankOptions, find_traces, job_folder
    from tracelens.cli.report import is_file, write_report
    from tracelens.errors import UsageError
    from tracelens.executors import open_executor
    from tracelens.extensions import NONE, load_extension
    from tracelens.files.remote import folder_beside
    from tracelens.report.rank_report import RankReport, refuse_foreign

    paths = find_traces(args.trace)
    source = job_folder(args.trace[0], paths)
    output: Path = args.output or folder_beside(source) / f"{source.name}.report"
    refuse_input(output, paths)
    if not is_file(output):
        refuse_foreign(output)
    elif args.csv:
        raise UsageError(f"--csv writes a folder of tables: -o must be a folder, not {output}")
    extensions = tuple(spec for spec in args.extension if spec != NONE)
    for spec in extensions:
        load_extension(spec)
    options = RankOptions(
        extensions=extensions,
        bundled=NONE not in args.extension,
        ep_size=args.ep_size,
        ranks_per_node=args.ranks_per_node,
    )
    with open_executor(args.executor, jobs=args.jobs) as executor:
        result = compare_ranks(
            paths, options, executor=executor, progress=Progress("reading", "ranks"), name=source.name
        )
    report = RankReport(result, args.column_names)
    write_report(report, output, csv=args.csv)
    if args.format == "json":
        emit(report.to_json())
    else:
        say(report.verdict())
        say(f" wrote {output}{'' if is_file(output) else '/'}")
    return 0


def add_executor(parser: argparse.ArgumentParser) -> None:
    """The options that choose which processes read the traces."""
    parser.add_argument(
        "--executor", default="processes", metavar="NAME",
        help="where traces are read: processes (default), serial, dask://HOST:PORT, mpi",
    )  # fmt: skip
    parser.add_argument("--jobs", type=positive, metavar="N", help="worker processes; default: one per core")
