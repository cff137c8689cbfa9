"""Put the tables of many traces into a lake that tracelens query asks in SQL.

Traces that the lake has are left alone: a run that was killed is resumed by running it again. A trace that cannot be
read is named and left out. LAKE/dashboard.html shows trends, slow ranks and regressions by week. Needs pyarrow: pip
install 'tracelens-perf[lake]'.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tracelens.cli.collectives import add_executor
from tracelens.errors import InputError
from tracelens.files.say import Progress, say


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="searched for Kineto traces, to any depth")
    parser.add_argument("--to", type=Path, required=True, metavar="LAKE", help="folder of the lake, made when missing")
    add_executor(parser)


def run(args: argparse.Namespace) -> int:
    from tracelens.executors import open_executor
    from tracelens.lake.ingest import ingest

    with open_executor(args.executor, jobs=args.jobs) as executor:
        found = ingest(args.folder, args.to, executor, progress=Progress("ingesting", "traces"))
    for name, why in found.failed:
        say(f"left out: {name}: {why}", beside=True)
    say(f"{args.to}: {found.added} traces added, {found.known} were there, {len(found.failed)} left out")
    if not found.added + found.known:
        raise InputError("none of the traces could be read")
    say(f"wrote {_dashboard(args.to)}")
    return 0


def _dashboard(lake: Path) -> Path:
    from tracelens.files.atomic_write import write_whole
    from tracelens.lake.ingest import ask
    from tracelens.report.fleet_pages import lake_page
    from tracelens.sql import ready_queries

    queries = ready_queries("tracelens.lake")
    answers = {name: ask(lake, query.statement) for name, query in queries.items()}
    path = lake / "dashboard.html"
    write_whole(path, lake_page(lake.resolve().name, answers, {name: query.about for name, query in queries.items()}))
    return path
