"""Frames in; workbook, JSON, CSV and terminal out."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.option_fields import made, takes
from tracelens.report.report_options import ReportOptions

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace
    from tracelens.report.result import Report
    from tracelens.trace.reading.read import DeviceMemory


@takes(ReportOptions)
def report(trace: Trace | str | PathLike[str], options: ReportOptions | None = None, **given: Any) -> Report:
    """The report of a trace: a path, or what ``load`` returned.

    ``options`` are what ``given`` keywords change. ``device`` may be a ``HardwareSpec``, ``model`` a ``ModelConfig``;
    ``extensions`` are names, paths, modules, or marked functions (also ones defined in a notebook cell), and
    ``bundled`` says whether bundled ones switch themselves on when their op names occur. ``overlap="clip"`` ends a
    device event where the next of its stream begins. What a step works on is read from the trace where it is recorded,
    else given: ``tokens_per_step``, or ``batch`` sequences of ``sequence`` tokens. ``steps``: ``"3"``, ``"3-5"`` or
    ``"steady"``.

    InputError for an unreadable file, NothingToAnalyzeError for one without GPU work, UsageError for a name, a step
    range or an extension that does not fit.
    """
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import AnalysisOptions, StepWork, Trace, load
    from tracelens.analysis.sheets.context import plain_strings
    from tracelens.analysis.verdict.verdict import summarize
    from tracelens.errors import UsageError
    from tracelens.extensions import NONE, load_extension
    from tracelens.files.memory_limit import end_stage
    from tracelens.hardware import HardwareSpec
    from tracelens.report.result import Report

    asked = made(ReportOptions, given, options)
    work = None
    if asked.model is not None:
        from tracelens.workload import ModelConfig

        config = asked.model if isinstance(asked.model, ModelConfig) else ModelConfig.load(asked.model)
        work = StepWork(
            model=config, tokens=asked.tokens_per_step, batch=asked.batch, sequence=asked.sequence, ranks=asked.ranks
        )
    elif (asked.tokens_per_step, asked.batch, asked.sequence, asked.ranks) != (None, None, None, None):
        raise UsageError("--tokens-per-step, --batch, --sequence and --ranks need --model")
    device = asked.device
    specs = tuple(asked.extensions)
    chosen = AnalysisOptions(
        device=device if isinstance(device, HardwareSpec) or device is None else HardwareSpec.load(device),
        extensions=tuple(load_extension(spec) for spec in specs if spec != NONE),
        bundled=asked.bundled and NONE not in specs,
        steps=asked.steps,
        rank=asked.rank,
        ep_size=asked.ep_size,
        overlap=asked.overlap,
        cpu=asked.cpu,
        backend=asked.backend,
        clock_mhz=asked.gpu_clock_mhz,
        work=work,
        capture=_loaded(asked.capture),
        shapes=_loaded(asked.shapes),
        memory_snapshot=_snapshot(asked.memory_snapshot),
    )
    with plain_strings():
        analysis = analyze(trace if isinstance(trace, Trace) else load(trace), chosen)
        # Before the page and the workbook are made: 70 MB at 1 GB of JSON.
        end_stage()
        sources = [source for extension in analysis.extensions for source in extension.sources]
        return Report(analysis, summarize(analysis), extensions=sources, column_names=asked.column_names)


def _snapshot(path: str | PathLike[str] | None) -> tuple[DeviceMemory, ...] | None:
    from tracelens.trace.reading.read import read_memory_snapshot

    return None if path is None else read_memory_snapshot(Path(path))


def _loaded(trace: Trace | str | PathLike[str] | None) -> Trace | None:
    """A trace beside the one of a report, read if it is a file."""
    from tracelens.analysis.loaded_trace import Trace, load

    return trace if isinstance(trace, Trace) or trace is None else load(trace)
