"""The verbs ``ingest``, ``query``, ``mcp`` and ``skill``: many traces at once, asked in SQL or by agents."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import add_executor, refuse_input
from tracelens.errors import InputError, OutputError, UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.option_fields import add_options, option, options_of, output_option, refuse_unread
from tracelens.files.say import Progress, emit, say
from tracelens.report import ReportOptions
from tracelens.schema import IDENTIFIER, KEYS
from tracelens.types.records import pd

if TYPE_CHECKING:
    from tracelens.files.sql import ReadyQuery
    from tracelens.report.result import Report

SCHEMA = "tracelens.query/1"


def configure_ingest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder to search for traces, at any depth")
    parser.add_argument("--to", type=Path, required=True, metavar="LAKE", help="folder of the lake; created if missing")
    add_executor(parser)


def run_ingest(args: argparse.Namespace) -> int:
    """Add the tables of many traces to a lake, which tracelens query asks in SQL.

    Traces already in the lake are skipped, so the same command resumes a run that was stopped. A trace that cannot be
    read is named and left out. LAKE/dashboard.html shows trends, slow ranks and regressions. Needs pyarrow: pip
    install 'tracelens-perf[lake]'.
    """
    from tracelens.files.executors import open_executor
    from tracelens.files.sql import ready_queries
    from tracelens.report.fleet_pages import lake_page
    from tracelens.report.lake.ingest import ask, ingest, parts_of

    try:
        with open_executor(args.executor, jobs=args.jobs) as executor:
            found = ingest(args.folder, args.to, executor, progress=Progress("ingesting", "traces"))
    except KeyboardInterrupt as stopped:
        if held := parts_of(args.to):
            stopped.add_note(f"{args.to} has {held:,} traces; the same command adds the others")
        raise
    for name, why in found.failed:
        say(f"left out: {name}: {why}", to_stderr=True)
    say(f"{args.to}: added {found.added} traces, already had {found.known}, left out {len(found.failed)}")
    if not found.added + found.known:
        raise InputError("none of the traces could be read")
    queries = ready_queries("tracelens.report.lake")
    answers = {name: ask(args.to, query.statement) for name, query in queries.items()}
    page = lake_page(args.to.resolve().name, answers, {name: query.about for name, query in queries.items()})
    write_whole(args.to / "dashboard.html", page)
    say(f"wrote {args.to / 'dashboard.html'}")
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryCommand(ReportOptions):
    """The options of ``tracelens.report`` and those of the command alone."""

    column_names: str = KEYS  # no option: SQL knows keys alone
    ready: str | None = option("run a ready query instead of a statement", metavar="NAME")
    list: bool = option("list the ready queries and the tables", False)
    output: Path | None = output_option(
        "file to write: .csv, .json, .xlsx, or .prom or .jsonl for metrics of Prometheus or OpenTelemetry"
    )
    format: str = option("output format", "text", choices=("text", "json", "csv"))


def configure_query(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", nargs="?", help="trace of any profiler, or a lake (tracelens ingest)")
    parser.add_argument("statement", nargs="?", help='SQL to run, e.g. "SELECT name, kernel_us_sum FROM ops"')
    add_options(parser, QueryCommand)
    parser.set_defaults(column_names=KEYS)


def run_query(args: argparse.Namespace) -> int:
    """Ask a trace, or a lake of many, in SQL: tables ops, kernels, calls, steps and more (--list).

    STATEMENT is a SELECT; --ready runs a prepared query; --list lists those and the tables. Needs DuckDB: pip install
    'tracelens-perf[query]'.
    """
    from tracelens.analysis.tables import built_in_tables
    from tracelens.files.cells import frame_csv
    from tracelens.files.sql import ready_queries, ready_query
    from tracelens.report.export import frame_json, refuse_unknown
    from tracelens.report.figures import scope_text, table_text
    from tracelens.report.json_report import OTLP, PROMETHEUS
    from tracelens.report.lake.ingest import is_lake

    of_lake = args.trace is not None and is_lake(Path(args.trace))
    queries = ready_queries("tracelens.report.lake" if of_lake else "tracelens.analysis.tables")
    if args.list:
        _list(queries, {name: claim.options["columns"] for name, claim in built_in_tables().items()})
        return 0
    if args.trace is None or (args.statement is None) == (args.ready is None):
        raise UsageError("query needs a trace and a statement, or a trace and --ready NAME (--list shows them)")
    if args.output is not None:
        refuse_unknown(args.output, PROMETHEUS, OTLP)
        refuse_input(args.output, [Path(args.trace)])
    statement = ready_query(queries, args.ready).statement if args.ready else args.statement
    if of_lake:
        answer, scope = _of_lake(args, statement), "a lake"
    else:
        report = _report(args)
        answer, scope = report.sql(statement), scope_text(report.summary.scope)
    about = {"schema": SCHEMA, "query": statement, "scope": scope}
    if args.output is not None:
        _write_answer(args.output, answer, about, args.ready or "query")
    if args.format == "json":
        emit(frame_json(answer, about).decode())
    elif args.format == "csv":
        emit(frame_csv(answer).decode())
    else:
        for line in table_text(answer):
            say(line)
        say()
        say(f"{len(answer)} row{'s' * (len(answer) != 1)} of {scope}")
    return 0


def _write_answer(path: Path, answer: pd.DataFrame, about: Mapping[str, object], name: str) -> None:
    """As the ending says; columns of whole numbers that name something (a rank, a step) are labels of metrics."""
    from tracelens.analysis.tables import built_in_tables
    from tracelens.report.export import write_frame, write_metrics
    from tracelens.report.json_report import OTLP, PROMETHEUS
    from tracelens.report.lake.ingest import ORIGIN

    if path.suffix not in (PROMETHEUS, OTLP):
        write_frame(path, answer, about)
        return
    known = (*(claim.options["columns"] for claim in built_in_tables().values()), ORIGIN)
    of_names = {key for columns in known for key, column in columns.items() if column.number_format == IDENTIFIER}
    write_metrics(path, answer, name, of_names)


def _report(args: argparse.Namespace) -> Report:
    import tracelens

    trace = tracelens.load(args.trace)
    options = options_of(ReportOptions, args)
    return tracelens.report(trace, replace(options, cpu=not trace.table.has_device_events))


def _of_lake(args: argparse.Namespace, statement: str) -> pd.DataFrame:
    from tracelens.report.lake.ingest import ask

    refuse_unread(args, configure_query, "a lake", lambda name: name not in ("ready", "list", "output", "format"))
    return ask(Path(args.trace), statement)


def _list(queries: Mapping[str, ReadyQuery], tables: Mapping[str, Mapping[str, object]]) -> None:
    for name, columns in tables.items():
        say(f"{name}({', '.join(columns)})")
        say()
    for query in queries.values():
        say(f"{query.name.ljust(22)} {query.about}")


def configure_mcp(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", type=Path, nargs="+", required=True, metavar="FOLDER", help="folders that the tools may read"
    )


def run_mcp(args: argparse.Namespace) -> int:
    """Serve the analyses to agents as tools (Model Context Protocol, on standard input and output).

    The tools read the given folders only, write nothing and need no network. Needs the SDK: pip install
    'tracelens-perf[mcp]'.
    """
    from tracelens.cli.agents.tools import serve

    serve(args.root)
    return 0


def configure_skill(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=Path(".claude/skills"), metavar="FOLDER",
        help="folder where the agent looks for skills; default: %(default)s",
    )  # fmt: skip


def run_skill(args: argparse.Namespace) -> int:
    """Write skill files that teach an agent to record, read and compare traces, and to get from a kernel to its line.

    Each skill becomes FOLDER/NAME/SKILL.md, the format of Agent Skills. The same command writes them anew after an
    update.
    """
    from importlib import resources

    skills = resources.files("tracelens.cli.agents").joinpath("skills")
    for skill in sorted(skills.iterdir(), key=lambda entry: entry.name):
        if skill.name.endswith(".md"):
            path = args.output / skill.name.removesuffix(".md") / "SKILL.md"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise OutputError(f"cannot make the folder {path.parent}: {error.strerror}") from error
            write_whole(path, skill.read_text(encoding="utf-8"))
            say(f"wrote {path}")
    return 0
