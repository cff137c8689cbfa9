"""Compare two recordings: what changed, why, and how much of the step it explains.

A and B are traces, or folders of the ranks or the runs of one thing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.files.say import emit, say


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("a", type=Path, metavar="A", help="before: a trace, or a folder of ranks or runs")
    add("b", type=Path, metavar="B", help="after: what it is compared with")
    add("-o", "--output", type=Path, metavar="PATH", help="FILE.json or .md to write; default: none")
    add("--steps", metavar="N|N-M|steady", help="only these steps of both; default: all complete ones")
    add("--format", choices=("text", "json", "md"), default="text", help="what to print; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.options import Options
    from tracelens.cli import refuse_input
    from tracelens.comparison.compare import compare
    from tracelens.report.answers.comparison_text import comparison_text
    from tracelens.report.comparison_report import comparison_json, comparison_markdown, write_comparison

    if args.output:
        refuse_input(args.output, [args.a, args.b])
    found = compare(args.a, args.b, Options(steps=args.steps))
    if args.output:
        write_comparison(found, args.output)
    if args.format == "json":
        emit(comparison_json(found).decode())
    elif args.format == "md":
        emit(comparison_markdown(found))
    else:
        say(comparison_text(found))
        if args.output:
            say(f" wrote {args.output}")
    return 0
