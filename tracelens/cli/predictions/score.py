"""Score predictions against measured points, by family: median, 90th percentile, bias, share inside the intervals.

FILE.csv is what `project --batch` or `serve --batch` wrote from a table with measured values, or any table with the
columns measured and predicted, and where it has them family, area, low and high: another tool's predictions too.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files.say import emit, say, say_table

if TYPE_CHECKING:
    from tracelens.predict.calibration.scoring import Score


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", type=Path, metavar="FILE.csv", help="measured and predicted values, a row each")
    add("--family", metavar="COLUMN", help="what tells families apart; default: family, model or model_path")
    add("--format", choices=("text", "json", "md"), default="text", help="what to print; default: %(default)s")


def run(args: argparse.Namespace) -> int:
    from tracelens.predict.calibration.scoring import score_file

    scores = score_file(args.file, family=args.family)
    if args.format == "json":
        found = [dataclasses.asdict(each) for each in scores]
        emit(json.dumps({"schema": "tracelens.score/1", "scores": found}, indent=2) + "\n")
        return 0
    lines = [[*_HEADS], *(_cells(each) for each in scores)]
    if args.format == "md":
        lines.insert(1, ["---"] * len(_HEADS))
        say("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
        return 0
    say_table(lines, words=(0,))
    return 0


_HEADS = ("family", "rows", "no prediction", "median", "of families drawn", "p90", "signed", "inside")


def _cells(score: Score) -> list[str]:
    drawn = "" if score.median_low is None else f"{_percent(score.median_low)} to {_percent(score.median_high)}"
    return [
        score.name, str(score.rows), str(score.missing), _percent(score.median), drawn, _percent(score.p90),
        _percent(score.signed, "+"), _percent(score.inside),
    ]  # fmt: skip


def _percent(share: float | None, sign: str = "") -> str:
    return "" if share is None else f"{share:{sign}.1%}"
