"""Ask a trace, or a lake of many, in SQL: tables ops, kernels, calls, steps, memory and collectives.

The statement is a SELECT; --ready runs one of the ready ones, --list lists them and the tables. Needs DuckDB: pip
install 'tracelens-perf[query]'.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import refuse_input
from tracelens.errors import UsageError
from tracelens.files.say import emit, say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import add_options, option, options_of, refuse_unread
from tracelens.report import ReportOptions
from tracelens.schema import KEYS

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.report.result import Report
    from tracelens.sql import ReadyQuery

SCHEMA = "tracelens.query/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCommand(ReportOptions):
    """What the command takes beside the options of ``tracelens.report``."""

    column_names: str = KEYS  # no option: SQL knows keys alone
    ready: str | None = option("run this ready query instead of a statement", metavar="NAME")
    list: bool = option("list the ready queries and the tables", False)
    output: Path | None = option("write FILE.csv, .json or .xlsx", kind=Path, metavar="FILE", flags=("-o", "--output"))
    format: str = option("what to print", "text", choices=("text", "json", "csv"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", nargs="?", help="Kineto trace, .json or .json.gz, or a lake (tracelens ingest)")
    parser.add_argument("statement", nargs="?", help='e.g. "SELECT name, kernel_us_sum FROM ops"')
    add_options(parser, QueryCommand)
    parser.set_defaults(column_names=KEYS)


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.tables import built_in_tables
    from tracelens.files.cells import frame_csv
    from tracelens.lake.ingest import is_lake
    from tracelens.report.export import frame_json, refuse_unknown, write_frame
    from tracelens.report.figures import scope_text, table_text
    from tracelens.sql import ready_queries, ready_query

    of_lake = args.trace is not None and is_lake(Path(args.trace))
    queries = ready_queries("tracelens.lake" if of_lake else "tracelens.analysis.tables")
    if args.list:
        _list(queries, {name: claim.options["columns"] for name, claim in built_in_tables().items()})
        return 0
    if args.trace is None or (args.statement is None) == (args.ready is None):
        raise UsageError("query needs a trace and a statement, or a trace and --ready NAME (--list shows them)")
    if args.output is not None:
        refuse_unknown(args.output)
        refuse_input(args.output, [Path(args.trace)])
    statement = ready_query(queries, args.ready).statement if args.ready else args.statement
    if of_lake:
        answer, scope = _of_lake(args, statement), "a lake"
    else:
        report = _report(args)
        answer, scope = report.sql(statement), scope_text(report.summary.scope)
    about = {"schema": SCHEMA, "query": statement, "scope": scope}
    if args.output is not None:
        write_frame(args.output, answer, about)
    if args.format == "json":
        emit(frame_json(answer, about).decode())
    elif args.format == "csv":
        emit(frame_csv(answer).decode())
    else:
        for line in table_text(answer):
            say(line)
        say(f"\n{len(answer)} row{'s' * (len(answer) != 1)} of {scope}")
    return 0


def _report(args: argparse.Namespace) -> Report:
    import tracelens

    trace = tracelens.load(args.trace)
    options = options_of(ReportOptions, args)
    return tracelens.report(trace, replace(options, cpu=not trace.table.has_device_events))


def _of_lake(args: argparse.Namespace, statement: str) -> pd.DataFrame:
    from tracelens.lake.ingest import ask

    refuse_unread(args, configure, "a lake", lambda name: name not in ("ready", "list", "output", "format"))
    return ask(Path(args.trace), statement)


def _list(queries: Mapping[str, ReadyQuery], tables: Mapping[str, Mapping[str, object]]) -> None:
    for name, columns in tables.items():
        say(f"{name}({', '.join(columns)})\n")
    for query in queries.values():
        say(f"{query.name.ljust(22)} {query.about}")
