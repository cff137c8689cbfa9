"""Save a recording under a name, as a file of the repository that later ones are compared with."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.files.say import say


def configure(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    save = below.add_parser("save", help="save a trace, or a folder of ranks or runs, as baseline:NAME")
    save.add_argument("name", metavar="NAME", help="what to call it")
    save.add_argument("trace", metavar="TRACE", help="what to save: a trace, or a folder of ranks or runs")
    save.add_argument("--steps", metavar="N|N-M|steady", help="only these steps; default: all complete ones")
    known = below.add_parser("list", help="list the baselines")
    for each in (save, known):
        each.add_argument(
            "--baselines", type=Path, default=Path(".tracelens/baselines"), metavar="FOLDER",
            help="folder of named baselines; default: %(default)s",
        )  # fmt: skip


def run(args: argparse.Namespace) -> int:
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
