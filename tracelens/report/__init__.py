"""Frames in; workbook, JSON, CSV and terminal out. Here: what a report can be asked, and ``report`` itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens import option_fields
from tracelens.extensions import ExtensionSpec
from tracelens.option_fields import build_options, option, positive, takes, whole
from tracelens.schema import KEYS, TRACELENS

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace
    from tracelens.hardware import HardwareSpec
    from tracelens.predict.workload import ModelConfig
    from tracelens.report.result import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What ``tracelens.report`` takes beside a trace. ``bundled``: bundled extensions switch themselves on."""

    device: HardwareSpec | str | PathLike[str] | None = option(
        "device to estimate for (`tracelens devices list`); default: recognized from the trace",
        metavar="NAME|FILE.toml",
        note="the device to estimate for; default: recognized from the trace. If it is unknown, the report has no "
        "roofline",
    )
    extensions: Iterable[ExtensionSpec] = option(
        "ops of a framework: a bundled name, a file, an installed entry point; "
        "bundled ones switch themselves on, `none` stops that",
        (), repeat=True, flags=("--extension",), metavar="NAME|FILE.py|none",
        note="ops of a framework; repeatable. Bundled ones (`tracelens extensions list`) are enabled when their op "
        "names occur; `--extension none` disables that",
    )  # fmt: skip
    bundled: bool = True
    steps: str | None = option(
        "what the report is of: these steps, or file; default: all complete steps", metavar="3|3-5|steady|file",
        note="the scope of the whole report, every sheet included: these steps (`ProfilerStep#N`, else numbered "
        "iteration annotations, else the steps of a serving engine, counted from 0). Default: all complete steps, the "
        "whole file where there are none. `steady` leaves out the first step and an incomplete last one; of a serving "
        "engine it takes the longest run of similar steps. `file` takes everything in the file as one window",
    )  # fmt: skip
    rank: int | None = option(
        "rank to report if the file has several; default: the first", kind=whole, metavar="N",
        note="if the file contains merged traces of several ranks: the rank to report; default: the first. Numbers are "
        "those in the process names (`rank 3 · GPU 3`, as `tracelens fuse` writes them), else 0, 1, ... in order of "
        "the processes that launched device work; the verdict says which",
    )  # fmt: skip
    ep_size: int | None = option(
        "expert-parallel group size, if the trace does not record it", kind=positive, metavar="RANKS",
        note="ranks of the expert-parallel group, for expected remote bytes, where the trace does not record it",
    )  # fmt: skip
    backend: str = option(
        "cost model for achievable time: tile, gemm=origami,sdpa=tile ...", "roofline", metavar="CHAIN",
        note="a cost model for achievable time, e.g. `tile` or `gemm=origami,sdpa=tile`; adds estimated time and "
        "percent of achievable beside the roofline",
    )  # fmt: skip
    gpu_clock_mhz: float | None = option_fields.gpu_clock_mhz()
    overlap: str = option(
        "device events that run into the next one on their stream", "keep", choices=("keep", "clip"),
        note="device events that run into the next one on their stream: leave them, or end them there; both are "
        "counted ([accuracy.md](accuracy.md))",
    )  # fmt: skip
    cpu: bool = option(
        "add tables of CPU ops; also reports on traces without GPU work", False,
        note="adds tables of the CPU ops; required for a trace without GPU work",
    )  # fmt: skip
    model: ModelConfig | str | PathLike[str] | None = option(
        "add model and hardware FLOPs utilization; also takes a model .toml", metavar="NAME|config.json",
        note="adds model and hardware FLOPs utilization (MFU, HFU); a bundled model, a Hugging Face config, or a model "
        "file ([models.md](models.md))",
    )  # fmt: skip
    tokens_per_step: int | None = option(
        "for --model, if the trace does not record it", kind=positive, metavar="N",
        note="with `--model`: the work of one step, where the trace does not record it",
    )  # fmt: skip
    batch: int | None = option("sequences per step, for --model", kind=positive, metavar="B")
    sequence: int | None = option("tokens per sequence, for --model", kind=positive, metavar="S")
    ranks: int | None = option(
        "for --model: ranks that share the work on these tokens (tp x pp x cp)", kind=positive, metavar="N"
    )
    capture: Trace | str | PathLike[str] | None = option(
        "trace of the graph capture: gives ops to replayed kernels", kind=Path, metavar="TRACE",
        note="a trace of the graph capture: gives ops, shapes and FLOPs to kernels that graph launches replay. Graphs "
        "are matched by their sequence of kernels, then by batch size or grids; unmatched kernels stay by kernel and "
        "are counted",
    )  # fmt: skip
    shapes: Trace | str | PathLike[str] | None = option(
        "trace with shapes of the same program, where this one has none", kind=Path, metavar="TRACE",
        note="a trace of the same program that recorded shapes (torch.profiler, a few steps): its ops and shapes go to "
        "the kernels of a recording without them, e.g. of Nsight Systems or rocprofv3, by name and sequence",
    )  # fmt: skip
    column_names: str = option(
        "what columns are called in the workbook and in CSV files", KEYS, choices=(KEYS, TRACELENS),
        note="`keys`: CSV files and DataFrames have the keys of [columns.md](columns.md), as JSON and SQL, and the "
        "workbook their titles; `tracelens`: all three have the headers that users of AMD's TraceLens know",
    )  # fmt: skip
    memory_snapshot: str | PathLike[str] | None = option(
        "snapshot of PyTorch's allocator as JSON: what held memory", kind=Path, metavar="FILE",
        note="torch.cuda.memory._snapshot() of the same run, written by json.dump: the sheet memory_blocks says which "
        "lines held device memory at the peak and in the snapshot; a pickle is not opened",
    )  # fmt: skip


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
    from tracelens.trace.reading.read import read_memory_snapshot

    asked = build_options(ReportOptions, given, options)
    work = None
    if asked.model is not None:
        from tracelens.predict.workload import ModelConfig

        config = asked.model if isinstance(asked.model, ModelConfig) else ModelConfig.load(asked.model)
        work = StepWork(
            model=config, tokens=asked.tokens_per_step, batch=asked.batch, sequence=asked.sequence, ranks=asked.ranks
        )
    elif (asked.tokens_per_step, asked.batch, asked.sequence, asked.ranks) != (None, None, None, None):
        raise UsageError("--tokens-per-step, --batch, --sequence and --ranks need --model")
    device, snapshot = asked.device, asked.memory_snapshot
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
        memory_snapshot=None if snapshot is None else read_memory_snapshot(Path(snapshot)),
    )
    with plain_strings():
        analysis = analyze(trace if isinstance(trace, Trace) else load(trace), chosen)
        # Before the page and the workbook are made: 70 MB at 1 GB of JSON.
        end_stage()
        sources = [source for extension in analysis.extensions for source in extension.sources]
        return Report(analysis, summarize(analysis), extensions=sources, column_names=asked.column_names)


def _loaded(trace: Trace | str | PathLike[str] | None) -> Trace | None:
    """A trace beside the one of a report, read if it is a file."""
    from tracelens.analysis.loaded_trace import Trace, load

    return trace if isinstance(trace, Trace) or trace is None else load(trace)
