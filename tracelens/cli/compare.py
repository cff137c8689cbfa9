"""Compare two recordings: what changed, why, and how much of the step it explains.

A and B are traces, reports (folder or report.json), baseline:NAME (see tracelens baseline), or folders of the ranks or
the runs of one thing. Exit code 4 says that a --gate failed.
"""

from __future__ import annotations

import argparse
from dataclasses import MISSING
from pathlib import Path

from tracelens.comparison.gates import CompareOptions
from tracelens.files.say import emit, say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import arguments_of, option, options_of

GATE_FAILED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCommand(CompareOptions):
    """What the command takes beside the options of ``tracelens.compare``."""

    a: str = option("before: a trace, a report, baseline:NAME, or a folder of ranks or runs", MISSING, flags=("a",),
                    metavar="A")  # fmt: skip
    b: str = option("after: what is compared with it", MISSING, flags=("b",), metavar="B")
    output: tuple[Path, ...] = option(
        "folder, or FILE.html, .xlsx, .json, .md, .xml (JUnit) or .sarif; repeatable", (), kind=Path, metavar="PATH",
        flags=("-o", "--output"), repeat=True,
    )  # fmt: skip
    format: str = option(
        "what to print; github: annotations of the gates", "text", choices=("text", "json", "md", "github")
    )


configure = arguments_of(CompareCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.cli import refuse_input
    from tracelens.comparison.compare import compare
    from tracelens.report.comparison_report import (
        WRITERS,
        comparison_json,
        comparison_markdown,
        comparison_text,
        github_annotations,
        refuse_foreign,
        write_comparison,
    )

    for path in args.output:
        refuse_input(path, [Path(args.a), Path(args.b)])
        if path.suffix not in WRITERS:
            refuse_foreign(path)
    found = compare(args.a, args.b, options_of(CompareOptions, args))
    for path in args.output:
        write_comparison(found, path)
    if args.format == "json":
        emit(comparison_json(found).decode())
    elif args.format == "md":
        emit(comparison_markdown(found).decode())
    elif args.format == "github":
        emit(github_annotations(found))
    else:
        say(comparison_text(found))
        for path in args.output:
            say(f" wrote {path}{'' if path.suffix in WRITERS else '/'}")
    return 0 if all(gate.passed for gate in found.gates) else GATE_FAILED
