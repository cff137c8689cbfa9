"""The verbs ``baseline`` and ``compare``: two recordings of one thing."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, dataclass
from pathlib import Path

from tracelens.cli import refuse_input
from tracelens.comparison.gates import CompareOptions
from tracelens.files.option_fields import arguments_of, option, options_of, output_option
from tracelens.files.say import emit, say, say_lines

GATE_FAILED = 4


def configure_baseline(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    save = below.add_parser("save", help="save a trace, or a folder of ranks or runs, as baseline:NAME")
    save.add_argument("name", metavar="NAME", help="name of the baseline")
    save.add_argument("trace", metavar="TRACE", help="trace, or folder of ranks or runs")
    save.add_argument("--steps", metavar="N|N-M|steady", help="save these steps only; default: all complete steps")
    known = below.add_parser("list", help="list the baselines")
    for each in (save, known):
        each.add_argument(
            "--baselines", type=Path, default=Path(".tracelens/baselines"), metavar="FOLDER",
            help="folder of named baselines; default: %(default)s",
        )  # fmt: skip


def run_baseline(args: argparse.Namespace) -> int:
    """Save a recording under a name, to compare later ones with it."""
    from tracelens.analysis.loaded_trace import AnalysisOptions
    from tracelens.comparison.inputs import PREFIX, baseline_path, baselines, side_of, write_side

    if args.command == "list":
        for name in baselines(args.baselines):
            say(f"{PREFIX}{name}")
        return 0
    path = baseline_path(args.name, args.baselines)
    side = side_of(args.trace, AnalysisOptions(steps=args.steps))
    write_side(side, path)
    say(f" wrote {path}; to compare with it:")
    say(f" tracelens compare {PREFIX}{args.name} TRACE --gate 'step<+3%'")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareCommand(CompareOptions):
    """The options of ``tracelens.compare`` and those of the command alone."""

    a: str = option("before: a trace, a report, baseline:NAME, or a folder of ranks or runs", MISSING, flags=("a",),
                    metavar="A")  # fmt: skip
    b: str = option("after: a recording of the same kind", MISSING, flags=("b",), metavar="B")
    output: tuple[Path, ...] = output_option(
        "folder, or FILE.html, .xlsx, .json, .md, .xml (JUnit) or .sarif; repeatable", (), metavar="PATH", repeat=True
    )
    format: str = option(
        "output format; github: annotations of the gates", "text", choices=("text", "json", "md", "github")
    )


configure_compare = arguments_of(CompareCommand)


def run_compare(args: argparse.Namespace) -> int:
    """Compare two recordings: what changed, why, and how much of the step it explains.

    A and B are traces, reports (folder or report.json), baseline:NAME (see tracelens baseline), or folders of ranks or
    repeated runs. The exit code is 4 if a --gate fails.
    """
    from tracelens.comparison.compare import compare
    from tracelens.report import comparison_report as written

    for path in args.output:
        refuse_input(path, [Path(args.a), Path(args.b)])
        if path.suffix not in written.WRITERS:
            written.refuse_foreign(path)
    found = compare(args.a, args.b, options_of(CompareOptions, args))
    for path in args.output:
        written.write_comparison(found, path)
    if args.format == "json":
        emit(written.comparison_json(found).decode())
    elif args.format == "md":
        emit(written.comparison_markdown(found).decode())
    elif args.format == "github":
        emit(written.github_annotations(found), has_commands=True)
    else:
        say_lines(written.comparison_text(found))
        for path in args.output:
            say(f" wrote {path}{'' if path.suffix in written.WRITERS else '/'}")
    return 0 if all(gate.passed for gate in found.gates) else GATE_FAILED
