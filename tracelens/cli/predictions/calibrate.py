"""Fit a device's constants to measured times: traces, report.json files, tables of microbenchmarks.

tracelens calibrate trace.json.gz gemm.csv --device mi300x -o my_mi300x.toml
tracelens report other.json.gz --device my_mi300x.toml --backend tile
tracelens calibrate nccl.csv --cluster dgx-h100 -o my_cluster.toml      measured collectives, for a cluster
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files.say import say, say_table, told

if TYPE_CHECKING:
    from tracelens.calibration.device import Measured, Outcome
    from tracelens.hardware import HardwareSpec

_HEADER = ("family", "precision", "calls", "groups", "before", "after", "unseen")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("files", metavar="FILE", nargs="+", help="a trace, a report.json, or a .csv or .parquet table with times")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--device", metavar="NAME|FILE.toml", help="device that the times were measured on")
    where.add_argument(
        "--cluster", metavar="NAME|FILE.toml", help="cluster that a table of collectives was measured on"
    )
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FILE.toml",
        help="output: the device or cluster file with fitted constants",
    )
    add("--extension", action="append", default=[], metavar="NAME|FILE.py", help="ops of a framework, to read traces")


def run(args: argparse.Namespace) -> int:
    from tracelens.errors import UsageError

    if args.output.suffix != ".toml":
        raise UsageError(f"-o takes a device or cluster file that ends in .toml; got {args.output}")
    return _cluster(args) if args.cluster else _device(args)


def _cluster(args: argparse.Namespace) -> int:
    import pandas as pd

    from tracelens.backends.system import System
    from tracelens.calibration.cluster_calibration import calibrate_cluster, cluster_file
    from tracelens.files.atomic_write import whole_file
    from tracelens.files.data_table import read_table
    from tracelens.network.cluster import Cluster

    system, names = System.of_cluster(Cluster.load(args.cluster)), ", ".join(Path(file).name for file in args.files)
    found = calibrate_cluster(pd.concat([read_table(Path(file)) for file in args.files]), system, names)
    before, after, unseen = (
        "-" if error is None else f"{error:.1f} %" for error in (found.before, found.after, found.unseen)
    )
    say(f"{found.rows} collectives: mean error before {before}, after {after}, on node counts not fitted {unseen}")
    if found.open:
        say(f"warning: the data do not determine {', '.join(found.open)}: unchanged")
    source = f"tracelens calibrate: {found.rows} collectives of {names}; mean error on node counts not fitted: {unseen}"
    topology = system.topology
    if topology is not None:
        with whole_file(args.output) as file:
            file.write(cluster_file(Cluster.file_text(args.cluster), topology, found, source).encode())
    Cluster.load(args.output)
    say(f"wrote {args.output}: {len(found.constants)} constants; use it as --cluster {args.output}")
    return 0


def _device(args: argparse.Namespace) -> int:
    from tracelens.calibration.device import calibrate, device_file, joined
    from tracelens.errors import NothingToAnalyzeError
    from tracelens.files.atomic_write import whole_file
    from tracelens.hardware import HardwareSpec

    device = HardwareSpec.load(args.device)
    read = [
        (Path(file), _measured(Path(file), device, args.extension)) for file in told(args.files, "reading", "files")
    ]
    outcomes = []
    for measured in told(joined([each for _, some in read for each in some]), "fitting", "families"):
        key = (measured.family, measured.precision)
        names = [path.name for path, some in read if key in [(each.family, each.precision) for each in some]]
        outcomes.append(calibrate(measured, device, ", ".join(names)))
    _print(outcomes)
    found = [outcome.calibration for outcome in outcomes if outcome.calibration is not None]
    if not found:
        raise NothingToAnalyzeError("these files do not determine any constant; no device file was written")
    based_on = device.based_on or (device.name if device.name in HardwareSpec.names() else None)
    text = device_file(HardwareSpec.file_text(args.device), found, based_on=based_on)
    with whole_file(args.output) as file:
        file.write(text.encode())
    HardwareSpec.load(args.output)
    say(f"wrote {args.output}: {len(found)} rows of constants; use it as --device {args.output}")
    return 0


def _measured(path: Path, device: HardwareSpec, extensions: list[str]) -> list[Measured]:
    """What a file holds, by what it is."""
    import tracelens
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.options import Options
    from tracelens.calibration.measurements import analysis_measured, report_measured, table_measured
    from tracelens.extensions import load_extension
    from tracelens.files.data_table import read_table
    from tracelens.report.json_report import is_report

    if path.suffix in (".csv", ".parquet"):
        return table_measured(read_table(path), device, path.name)
    if is_report(path):
        found, named = report_measured(path)
        if named is not None and named not in (device.name, device.based_on):
            say(f"note: {path.name} names {named}, not {device.name}")
        return found
    loaded = tuple(load_extension(spec) for spec in extensions)
    return analysis_measured(analyze(tracelens.load(path), Options(device=device, extensions=loaded)))


def _print(outcomes: list[Outcome]) -> None:
    rows: list[tuple[str, ...]] = [_HEADER]
    for each in outcomes:
        errors = ("-" if error is None else f"{error:.1f} %" for error in (each.before, each.after, each.unseen))
        rows.append((each.family, each.precision, str(each.rows), str(each.groups), *errors))
    say_table(rows, words=(0, 1))
    say("mean error: before with the device's constants, after with the fitted ones, unseen: shape groups not fitted")
    for each in outcomes:
        for warning in each.warnings:
            say(f"warning: {each.family} {each.precision}: {warning}")
