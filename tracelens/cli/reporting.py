"""The verbs ``report``, ``demo`` and ``collectives``, which write a folder NAME.report/."""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import add_executor, add_extension, main, refuse_input
from tracelens.errors import InputError, UsageError
from tracelens.extensions import NONE, load_extension
from tracelens.files.option_fields import arguments_of, option, options_of, output_option, positive
from tracelens.files.remote import folder_beside
from tracelens.files.safe_text import trace_name
from tracelens.files.say import Progress, emit, say, say_lines
from tracelens.report import ReportOptions

if TYPE_CHECKING:
    from tracelens.report.rank_report import RankReport
    from tracelens.report.result import Report

EXTENSION_FAILED = 5
CONTRADICTION = 6
_DEMO_IN_WHEEL = "demo_trace.json.xz"
_DEMO_IN_CHECKOUT = Path("example_traces") / "moe_ep8" / "rank0.json.gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand(ReportOptions):
    """The options of ``tracelens.report`` and those of the command alone."""

    trace: Path = option(
        "trace of any profiler (docs/formats.md), a URL, or - for standard input",
        MISSING, kind=Path, flags=("trace",),
    )  # fmt: skip
    output: Path | None = output_option(
        "output folder, or FILE.xlsx, .html or .json, or .prom or .jsonl: its main figures for Prometheus or "
        "OpenTelemetry; default: TRACE.report/",
        metavar="PATH",
    )
    open: bool = option("open the page in the browser", False)
    csv: bool = option("also write csv/, one file per table", False)
    all_sheets: bool = option("put every table into the workbook, not only the sheets that people read first", False)
    check: bool = option("check the report against a second, independent reading of the file", False)
    format: str = option(
        "print the verdict (text), report.json, or its main figures as metrics", "text",
        choices=("text", "json", "prometheus", "otlp"),
    )  # fmt: skip
    brief: bool = option("with --format json: print a compact document on one line", False)


configure_report = arguments_of(ReportCommand)


def run_report(args: argparse.Namespace) -> int:
    """Report where a trace's device time went and how far it was from the hardware limit.

    Writes TRACE.report/ beside the trace, with report.html, report.xlsx and report.json, and prints the verdict.
    """
    name = "stdin" if args.trace == Path("-") else trace_name(args.trace.name)
    args.output = args.output or folder_beside(args.trace) / f"{name}.report"
    with _seekable_copy(args.trace) as args.trace:
        return _run(args, args.output)


def _run(args: argparse.Namespace, output: Path) -> int:
    import tracelens
    from tracelens.backends.chain import absences
    from tracelens.hardware import HardwareSpec
    from tracelens.report.result import HTML
    from tracelens.report.terminal import wants_color

    _refuse_output(output, args)
    # Names first: a large trace is not read for a wrong one.
    device = HardwareSpec.load(args.device) if args.device else None
    asked = replace(options_of(ReportOptions, args), device=device)
    if args.model:
        from tracelens.predict.workload import ModelConfig  # 40 modules, and most reports name none

        asked = replace(asked, model=ModelConfig.load(args.model))
    for absence in absences(args.backend):
        say(f"note: {absence}", to_stderr=True)
    started = time.monotonic()
    report = tracelens.report(tracelens.load(args.trace, progress=Progress("reading", "MB", scale=1e6)), asked)
    write_report(report, output, csv=args.csv, all_sheets=args.all_sheets)
    if args.format == "json":
        emit(report.to_json(brief=args.brief) + "\n")
    elif args.format in ("prometheus", "otlp"):
        emit(report.to_prometheus() if args.format == "prometheus" else report.to_otlp())
    else:
        written = f"{output}{'' if is_file(output) else '/'}"
        seconds = time.monotonic() - started
        say_lines(report.verdict(seconds=seconds, written=[written], color=wants_color(sys.stdout)), styled=True)
    if args.open:
        page = output if is_file(output) else output / HTML
        import webbrowser

        if not webbrowser.open(page.absolute().as_uri()):
            say(f"note: no browser found; open {page}", to_stderr=True)
    if args.check and not _holds(report, args.trace):
        return CONTRADICTION
    return EXTENSION_FAILED if report.has_failed_extension else 0


@contextmanager
def _seekable_copy(trace: Path) -> Iterator[Path]:
    """A file that can be read more than once: what comes through a pipe is kept beside other temporary files."""
    if trace != Path("-") and not trace.is_fifo():
        yield trace
        return
    with tempfile.TemporaryDirectory(prefix="tracelens-") as folder:
        kept = Path(folder) / ("stdin.json" if trace == Path("-") else trace.name)
        try:
            with contextlib.ExitStack() as stack, kept.open("wb") as file:
                shutil.copyfileobj(
                    sys.stdin.buffer if trace == Path("-") else stack.enter_context(trace.open("rb")), file
                )
        except (OSError, AttributeError) as error:
            raise InputError(f"{trace} cannot be read: {getattr(error, 'strerror', None) or error}") from error
        yield kept


def _refuse_output(output: Path, args: argparse.Namespace) -> None:
    """UsageError where the report, or what other options ask for, could not go to ``output``."""
    from tracelens.report.result import refuse_foreign

    given = [args.capture, args.shapes, args.memory_snapshot, args.inductor, args.power, *args.counters]
    refuse_input(output, [args.trace, *filter(None, given)])
    if not is_file(output) and args.trace.is_file():  # else that is what is wrong
        refuse_foreign(output)
    _refuse_file(output, args)
    if is_file(output) and args.open and output.suffix != ".html":
        raise UsageError(f"--open shows the page: -o must be a folder or FILE.html, not {output}")


def _refuse_file(output: Path, args: argparse.Namespace) -> None:
    """UsageError for a file that would have neither the tables of ``--csv`` nor the workbook of ``--all-sheets``."""
    if is_file(output) and args.csv:
        raise UsageError(f"--csv writes a folder of tables: -o must be a folder, not {output}")
    if is_file(output) and args.all_sheets and output.suffix != ".xlsx":
        raise UsageError(f"--all-sheets is for the workbook: -o must be a folder or FILE.xlsx, not {output}")


def _holds(report: Report, trace: Path) -> bool:
    """Whether the report obeys its laws; says on stderr which ones were checked and which it breaks."""
    found = report.check(trace)
    compared = f"not compared with the file: {found.unchecked}" if found.unchecked else "compared with the file"
    say(f"check: {len(found.laws)} laws, {len(found.broken)} broken; totals {compared}", to_stderr=True)
    for law, what in found.broken:
        say(f"check: {law}: {what}", to_stderr=True)
    if found.broken:
        say("check: this is a bug in tracelens, please report it with these lines", to_stderr=True)
    return not found.broken


def is_file(output: Path) -> bool:
    """Whether a report goes to one file, not to a folder of all of them."""
    return output.suffix in (".xlsx", ".html", ".json", *_METRICS)


#: Endings of files of metrics, which the report of one trace has.
_METRICS = (".prom", ".jsonl")


def write_report(report: Report | RankReport, output: Path, *, csv: bool, all_sheets: bool) -> None:
    """Writes the file that ``output`` names, else the folder."""
    from tracelens.report.result import Report

    if output.suffix in _METRICS and isinstance(report, Report):
        (report.to_prometheus if output.suffix == ".prom" else report.to_otlp)(output)
    elif output.suffix == ".xlsx":
        report.to_excel(output, all_sheets=all_sheets)
    elif output.suffix == ".html":
        report.to_html(output)
    elif output.suffix == ".json":
        report.to_json(output)
    else:
        report.write(output, csv=csv, all_sheets=all_sheets)


def configure_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("tracelens_demo.report"),
        metavar="PATH",
        help="output folder; default: %(default)s/",
    )


def run_demo(args: argparse.Namespace) -> int:
    """Report on the bundled example trace.

    The trace is generated: rank 0 of eight MI300X that train a small mixture-of-experts model for three steps.
    """
    return main(["report", str(example_trace()), "--output", str(args.output)])


def example_trace() -> Path:
    """The bundled trace: inside an installed package, or in a checkout. InputError where neither has it."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / _DEMO_IN_WHEEL, package.parent / _DEMO_IN_CHECKOUT):
        if path.is_file():
            return path
    raise InputError(f"this installation lacks {_DEMO_IN_WHEEL}: reinstall it, or report on your own trace")


def configure_collectives(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "trace",
        nargs="+",
        metavar="TRACE",
        help="folder, glob pattern or files: a Kineto trace per rank, or "
        "logs of NCCL Inspector or PyTorch's flight recorder",
    )
    place = "output folder, or FILE.xlsx, .html or .json; default: beside the traces"
    add("-o", "--output", type=Path, metavar="PATH", help=place)
    add_extension(parser)
    add("--ep-size", type=positive, metavar="RANKS", help="expert-parallel group size, if the traces do not record it")
    add("--ranks-per-node", type=positive, metavar="N", help="ranks that share a clock, if the traces do not record it")
    add_executor(parser)
    add("--csv", action="store_true", help="also write csv/, one file per table")
    add("--all-sheets", action="store_true", help="put every table into the workbook, single calls too")
    add("--column-names", choices=("keys", "tracelens"), default="keys", help="column names, as for report")
    add("--format", choices=("text", "json"), default="text", help="print the result as text or JSON")


def run_collectives(args: argparse.Namespace) -> int:
    """Compare the ranks of a job: bandwidth, waiting, stragglers, clocks, token exchanges, overlap, bubbles.

    TRACE is a folder, a glob pattern or files, one trace per rank; or a job's logs of its collectives, without a
    profiler: of these also calls that never ended. Writes NAME.report/ with collectives.html, collectives.xlsx and
    collectives.json, and prints the result. A trace that cannot be read is named and left out.
    """
    from tracelens.analysis.ranks.rank_comparison import compare_ranks
    from tracelens.analysis.ranks.rank_files import RankOptions, find_logs_of_devices, find_traces, job_folder
    from tracelens.files.executors import open_executor
    from tracelens.report.rank_report import RankReport, refuse_foreign

    paths, logs = find_logs_of_devices(args.trace, find_traces(args.trace))
    source = job_folder(args.trace[0], paths)
    output: Path = args.output or folder_beside(source) / f"{source.name}.report"
    refuse_input(output, [*paths, *logs])
    if output.suffix in _METRICS:
        raise UsageError(f"metrics are of one trace (tracelens report): {output} cannot hold a comparison of ranks")
    if not is_file(output):
        refuse_foreign(output)
    _refuse_file(output, args)
    extensions = tuple(spec for spec in args.extension if spec != NONE)
    for spec in extensions:
        load_extension(spec)
    options = RankOptions(
        extensions=extensions,
        bundled=NONE not in args.extension,
        ep_size=args.ep_size,
        ranks_per_node=args.ranks_per_node,
        device_logs=logs,
    )
    with open_executor(args.executor, jobs=args.jobs) as executor:
        result = compare_ranks(
            paths, options, executor=executor, progress=Progress("reading", "ranks"), name=source.name
        )
    report = RankReport(result, args.column_names)
    write_report(report, output, csv=args.csv, all_sheets=args.all_sheets)
    if args.format == "json":
        emit(report.to_json())
    else:
        say_lines(report.verdict())
        say(f" wrote {output}{'' if is_file(output) else '/'}")
    return 0
