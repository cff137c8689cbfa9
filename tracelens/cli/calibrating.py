"""The verbs ``calibrate`` and ``score``: predictions fitted to measured times, and judged by them."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import add_extension
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.data_table import read_table
from tracelens.files.safe_text import markdown_text
from tracelens.files.say import emit, say, say_lines, say_table, with_progress
from tracelens.types.records import pd

if TYPE_CHECKING:
    from tracelens.backends.kernels.kernel_costs import KernelTable
    from tracelens.hardware import HardwareSpec
    from tracelens.hardware.device_figures import KernelConstants
    from tracelens.predict.calibration.device import FitOutcome, Measured

_HEADER = ("family", "precision", "calls", "groups", "before", "after", "unseen")


def configure_calibrate(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="trace, report.json, or .csv or .parquet table of measured times")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--device", metavar="NAME|FILE.toml", help="device of the measurements")
    where.add_argument("--cluster", metavar="NAME|FILE.toml", help="cluster of the measured collectives")
    add("-o", "--output", type=Path, required=True, metavar="FILE.toml", help="device or cluster file to write")
    add_extension(parser, "extension to read the traces with; repeatable", "")


def run_calibrate(args: argparse.Namespace) -> int:
    """Fit a device's constants to measured times: traces, report.json files, tables of microbenchmarks.

    The result is a device or cluster file, for --device and --cluster of the other commands.
    """
    if args.output.suffix != ".toml":
        raise UsageError(f"-o takes a device or cluster file that ends in .toml; got {args.output}")
    return _cluster(args) if args.cluster else _device(args)


def _cluster(args: argparse.Namespace) -> int:
    from tracelens.backends.base import System
    from tracelens.predict.calibration.cluster_calibration import calibrate_cluster, cluster_file
    from tracelens.predict.network.cluster import Cluster

    system, names = System.of_cluster(Cluster.load(args.cluster)), ", ".join(Path(file).name for file in args.files)
    found = calibrate_cluster(pd.concat([read_table(Path(file)) for file in args.files]), system, names)
    before, after, unseen = (
        "-" if error is None else f"{error:.1f} %" for error in (found.before, found.after, found.unseen)
    )
    say(f"{found.rows} collectives: mean error {before} before, {after} after, {unseen} on node counts not fitted")
    if found.open:
        say(f"warning: the data do not determine {', '.join(found.open)}, which stay unchanged")
    source = f"tracelens calibrate: {found.rows} collectives of {names}; mean error on node counts not fitted: {unseen}"
    topology = system.topology
    if topology is not None:
        write_whole(args.output, cluster_file(Cluster.file_text(args.cluster), topology, found, source))
    Cluster.load(args.output)
    say(f"wrote {args.output}: {len(found.constants)} constants; use it as --cluster {args.output}")
    return 0


def _device(args: argparse.Namespace) -> int:
    from tracelens.hardware import HardwareSpec
    from tracelens.predict.calibration.device import device_file
    from tracelens.predict.calibration.kernel_calibration import with_kernels

    device = HardwareSpec.load(args.device)
    kernels, others = _kernel_tables([Path(file) for file in args.files])
    read = [(file, _measured(file, device, args.extension)) for file in with_progress(others, "reading", "files")]
    outcomes, fitted = _of_kernels(kernels, device)
    outcomes += _calibrated(read, device)
    _print(outcomes)
    found = [outcome.calibration for outcome in outcomes if outcome.calibration is not None]
    if not found and not fitted:
        raise NothingToAnalyzeError(
            "these files determine no constant, so no device file was written; measure more sizes"
        )
    based_on = device.based_on or (device.name if device.name in HardwareSpec.names() else None)
    text = device_file(HardwareSpec.file_text(args.device), found, based_on=based_on)
    named = ", ".join(path.name for path in kernels)
    write_whole(args.output, with_kernels(text, fitted, f"tracelens calibrate: {named}"))
    HardwareSpec.load(args.output)
    rows = len(found) + sum(map(len, fitted.values()))
    say(f"wrote {args.output}: {rows} rows of constants; use it as --device {args.output}")
    return 0


def _calibrated(read: list[tuple[Path, list[Measured]]], device: HardwareSpec) -> list[FitOutcome]:
    from tracelens.predict.calibration.device import calibrate, joined

    outcomes = []
    for measured in with_progress(joined([each for _, some in read for each in some]), "fitting", "families"):
        key = (measured.family, measured.precision)
        names = [path.name for path, some in read if key in [(each.family, each.precision) for each in some]]
        outcomes.append(calibrate(measured, device, ", ".join(names)))
    return outcomes


def _kernel_tables(files: list[Path]) -> tuple[dict[Path, KernelTable], list[Path]]:
    """Tables of engines' kernels, which are named after what they hold, and the other files."""
    from tracelens.predict.calibration.kernel_calibration import table_of

    tables = {path: table_of(path) for path in files if path.suffix in (".csv", ".parquet")}
    found = {path: table for path, table in tables.items() if table is not None}
    return found, [path for path in files if path not in found]


def _of_kernels(
    tables: dict[Path, KernelTable], device: HardwareSpec
) -> tuple[list[FitOutcome], dict[str, list[KernelConstants]]]:
    """Errors of every kernel, and constants by table."""
    from tracelens.predict.calibration.kernel_calibration import calibrated_kernels

    outcomes: list[FitOutcome] = []
    fitted: dict[str, list[KernelConstants]] = {}
    for path in with_progress(list(tables), "fitting", "tables of kernels") if tables else ():
        for outcome, made in calibrated_kernels(tables[path], read_table(path), device):
            outcomes.append(outcome)
            if made is not None:
                fitted.setdefault(tables[path].name, []).append(made)
    return outcomes, fitted


def _measured(path: Path, device: HardwareSpec, extensions: list[str]) -> list[Measured]:
    """What a file holds, by what it is."""
    import tracelens
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import FILE, AnalysisOptions
    from tracelens.extensions import load_extension
    from tracelens.files.documents import is_report
    from tracelens.predict.calibration.measurements import analysis_measured, report_measured, table_measured

    if path.suffix in (".csv", ".parquet"):
        return table_measured(read_table(path), device, path.name)
    if is_report(path):
        found, named = report_measured(path)
        if named is not None and named not in (device.name, device.based_on):
            say(f"note: {path.name} names {named}, not {device.name}")
        return found
    loaded = tuple(load_extension(spec) for spec in extensions)
    return analysis_measured(
        analyze(tracelens.load(path), AnalysisOptions(device=device, extensions=loaded, steps=FILE))
    )


def _print(outcomes: list[FitOutcome]) -> None:
    rows: list[tuple[str, ...]] = [_HEADER]
    for each in outcomes:
        errors = ("-" if error is None else f"{error:.1f} %" for error in (each.before, each.after, each.unseen))
        rows.append((each.family, each.precision, str(each.rows), str(each.groups), *errors))
    say_table(rows, words=(0, 1))
    say("mean error: before = the device's constants, after = the fitted ones, unseen = shape groups not fitted")
    for each in outcomes:
        for warning in each.warnings:
            say(f"warning: {each.family} {each.precision}: {warning}")


def configure_score(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE.csv",
        help="table with a row of measured and predicted values per point",
    )
    add("--public", action="store_true", help="score tracelens itself on published measurements that were left out")
    add("-o", "--output", type=Path, metavar="FILE.html", help="write a page")
    add("--family", metavar="COLUMN", help="column to group by; default: family, model or model_path")
    add("--format", choices=("text", "json", "md"), default="text", help="output format; default: %(default)s")


def run_score(args: argparse.Namespace) -> int:
    """Score predictions against measured points, by family: median, 90th percentile, bias, share inside the intervals.

    FILE.csv comes from `project --batch` or `serve --batch`, run on a table with measured values. Any other table with
    the columns measured and predicted works too; it may also have family, area, source, low and high.
    """
    from tracelens.predict.calibration.scoring import public_predictions, score_file, score_lines, score_words

    if args.public == (args.file is not None):
        raise UsageError("score takes one of FILE.csv and --public")
    if args.output is not None and args.output.suffix != ".html":
        raise UsageError(f"{args.output}: the name of a page must end in .html")
    path = public_predictions() if args.public else args.file
    scores = score_file(path, family=args.family or ("source" if args.public else None))
    drawn = "families" if args.family or not args.public else "sources"
    lines, words = score_lines(scores, drawn), score_words(drawn)
    if args.output is not None:
        _write_scores(args, path, lines, words)
    if args.format == "json":
        found = [dataclasses.asdict(each) for each in scores]
        emit(json.dumps({"schema": "tracelens.score/1", "scores": found}, indent=2) + "\n")
        return 0
    if args.format == "md":
        lines.insert(1, ["---"] * len(lines[0]))
        say_lines("\n".join(f"| {' | '.join([markdown_text(cells[0]), *cells[1:]])} |" for cells in lines))
        return 0
    say_table(lines, words=(0,))
    say_lines("\n".join([*words, *([f"wrote {args.output}"] if args.output else [])]))
    return 0


def _write_scores(args: argparse.Namespace, path: Path, lines: list[list[str]], words: list[str]) -> None:
    from tracelens.predict.calibration.scoring import errors_by_area
    from tracelens.report.fleet_pages import score_page

    name = "tracelens" if args.public else path.name
    write_whole(args.output, score_page(name, lines, words, errors_by_area(path)))
