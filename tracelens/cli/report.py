"""Report where a trace's device time went and how far it was from the hardware limits.

Writes TRACE.report/ with report.xlsx, report.html and report.json beside the trace (or where -o says) and prints the
verdict.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import refuse_input
from tracelens.files.safe_text import trace_name
from tracelens.files.say import Progress, emit, say
from tracelens.lazy.records import dataclass
from tracelens.option_fields import arguments_of, option, options_of
from tracelens.report import ReportOptions

if TYPE_CHECKING:
    from tracelens.report.rank_report import RankReport
    from tracelens.report.result import Report
    from tracelens.workload import ModelConfig


EXTENSION_FAILED = 5
CONTRADICTION = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCommand(ReportOptions):
    """What the command takes beside the options of ``tracelens.report``."""

    trace: Path = option(
        "trace of any profiler (docs/formats.md), or its URL; - reads standard input",
        MISSING, kind=Path, flags=("trace",),
    )  # fmt: skip
    output: Path | None = option(
        "output folder, or FILE.xlsx, .html or .json; default: TRACE.report/",
        kind=Path, metavar="PATH", flags=("-o", "--output"),
    )  # fmt: skip
    open: bool = option("open the page in the browser", False)
    csv: bool = option("also write csv/, one file per sheet", False)
    check: bool = option(
        "read the file a second time and check the report's totals and laws", False,
        note="reads the file a second time by a simple, slow path and checks the report's totals and laws against it; "
        "contradictions go to stderr (exit code 6)",
    )  # fmt: skip
    format: str = option(
        "what to print: the verdict, report.json, or its main figures as metrics", "text",
        choices=("text", "json", "prometheus", "otlp"),
    )  # fmt: skip
    brief: bool = option("with --format json: a compact document on one line, for agents", False)


configure = arguments_of(ReportCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.files.remote import folder_beside

    name = "stdin" if args.trace == Path("-") else trace_name(args.trace.name)
    args.output = args.output or folder_beside(args.trace) / f"{name}.report"
    with _regular(args.trace) as args.trace:
        return _run(args, args.output)


def _run(args: argparse.Namespace, output: Path) -> int:
    import tracelens
    from tracelens.backends.chain import absences
    from tracelens.hardware import HardwareSpec
    from tracelens.report.result import HTML
    from tracelens.report.terminal import wants_color

    _refuse_output(output, args)
    # Names first: a large trace is not read for a wrong one.
    asked = replace(
        options_of(ReportOptions, args),
        device=HardwareSpec.load(args.device) if args.device else None,
        model=_model(args.model) if args.model else None,
    )
    for absence in absences(args.backend):
        say(f"note: {absence}", beside=True)
    started = time.monotonic()
    report = tracelens.report(tracelens.load(args.trace, progress=Progress("reading", "MB", scale=1e6)), asked)
    write_report(report, output, csv=args.csv)
    if args.format == "json":
        emit(report.to_json(brief=args.brief) + "\n")
    elif args.format in ("prometheus", "otlp"):
        from tracelens.report.json_report import otlp_json, prometheus_text

        emit((prometheus_text if args.format == "prometheus" else otlp_json)(report.summary))
    else:
        written = f"{output}{'' if is_file(output) else '/'}"
        seconds = time.monotonic() - started
        say(report.verdict(seconds=seconds, written=[written], color=wants_color(sys.stdout)), styled=True)
    if args.open:
        _open(output if is_file(output) else output / HTML)
    if args.check and not _holds(report, args.trace):
        return CONTRADICTION
    return EXTENSION_FAILED if report.has_failed_extension else 0


def _model(name: str) -> ModelConfig:
    from tracelens.workload import ModelConfig  # 40 modules, and most reports name none

    return ModelConfig.load(name)


@contextmanager
def _regular(trace: Path) -> Iterator[Path]:
    """A file that can be read more than once: what comes through a pipe is kept beside other temporary files."""
    from tracelens.errors import InputError

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
    from tracelens.errors import UsageError
    from tracelens.report.result import refuse_foreign

    refuse_input(output, [args.trace, *filter(None, [args.capture, args.shapes, args.memory_snapshot])])
    if not is_file(output):
        if args.trace.is_file():  # else that is what is wrong
            refuse_foreign(output)
    elif args.csv:
        raise UsageError(f"--csv writes a folder of tables: -o must be a folder, not {output}")
    elif args.open and output.suffix != ".html":
        raise UsageError(f"--open shows the page: -o must be a folder or FILE.html, not {output}")


def _holds(report: Report, trace: Path) -> bool:
    """Whether the report obeys its laws; says on stderr which ones were checked and which it breaks."""
    found = report.check(trace)
    compared = f"not compared with the file: {found.unchecked}" if found.unchecked else "compared with the file"
    say(f"check: {len(found.laws)} laws, {len(found.broken)} broken; totals {compared}", beside=True)
    for law, what in found.broken:
        say(f"check: {law}: {what}", beside=True)
    if found.broken:
        say("check: this is a bug in tracelens, please report it with these lines", beside=True)
    return not found.broken


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.absolute().as_uri()):
        say(f"note: no browser found; open {page}", beside=True)


def is_file(output: Path) -> bool:
    """Whether a report goes to one file, not to a folder of all of them."""
    return output.suffix in (".xlsx", ".html", ".json")


def write_report(report: Report | RankReport, output: Path, *, csv: bool) -> None:
    """Writes the file that ``output`` names, else the folder."""
    if output.suffix == ".xlsx":
        report.to_excel(output)
    elif output.suffix == ".html":
        report.to_html(output)
    elif output.suffix == ".json":
        report.to_json(output)
    else:
        report.write(output, csv=csv)
