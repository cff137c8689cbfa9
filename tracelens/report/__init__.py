"""Frames in; workbook, JSON, CSV and terminal out. Here: what a report can be asked, and ``report`` itself."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelens.extensions import ExtensionSpec
from tracelens.files import option_fields
from tracelens.files.option_fields import build_options, option, positive, takes, whole
from tracelens.schema import KEYS, TRACELENS

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace
    from tracelens.hardware import HardwareSpec
    from tracelens.predict.workload import ModelConfig
    from tracelens.report.result import Report

_READ, _SCOPE, _ESTIMATED, _MFU, _COLUMNS = (
    "further input", "scope", "roofline and estimates", "model utilization", "tables"
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What ``tracelens.report`` takes beside a trace. ``bundled``: bundled extensions switch themselves on."""

    device: HardwareSpec | str | PathLike[str] | None = option(
        "device to compare with (`tracelens devices` lists them); default: recognized from the trace",
        metavar="NAME|FILE.toml",
        group=_ESTIMATED,
        note="device to compare with (`tracelens devices` lists them); default: recognized from the trace. Without a "
        "device the report has no roofline",
    )
    extensions: Iterable[ExtensionSpec] = option(
        "add ops of a framework: a bundled name, a file or an installed entry point; repeatable; none: load no bundled "
        "extension",
        (), repeat=True, flags=("--extension",), metavar="NAME|FILE.py|none", group=_READ,
        note="add ops of a framework: a bundled name, a file or an installed entry point; repeatable. Bundled ones "
        "(`tracelens extensions`) load themselves when their ops occur; `none` prevents it",
    )  # fmt: skip
    bundled: bool = True
    steps: str | None = option(
        "report on these steps only, or on the whole file; default: all complete steps", metavar="3|3-5|steady|file",
        group=_SCOPE,
        note="scope of the whole report, every sheet included: these steps (`ProfilerStep#N`, else numbered "
        "iteration annotations, else the steps of a serving engine, counted from 0). Default: all complete steps, the "
        "whole file where there are none. `steady` leaves out the first step and an incomplete last one; of a serving "
        "engine it takes the longest run of similar steps. `file` takes everything in the file as one window",
    )  # fmt: skip
    rank: int | None = option(
        "rank to report if the file has several; default: the first", kind=whole, metavar="N", group=_SCOPE,
        note="rank to report if the file has several; default: the first. Ranks are numbered as in the process names "
        "(`rank 3 · GPU 3`, as `tracelens fuse` writes them), else 0, 1, ... in the order of the processes that "
        "launched device work; the verdict names the rank",
    )  # fmt: skip
    ep_size: int | None = option(
        "expert-parallel group size, if the trace does not record it", kind=positive, metavar="RANKS", group=_ESTIMATED,
        note="expert-parallel group size, for expected remote bytes, if the trace does not record it",
    )  # fmt: skip
    backend: str = option(
        "cost model of achievable time: tile, gemm=origami,sdpa=tile ...", "roofline", metavar="CHAIN",
        group=_ESTIMATED,
        note="cost model of achievable time, e.g. `tile` or `gemm=origami,sdpa=tile`; adds the estimated time and the "
        "percentage of it that was reached",
    )  # fmt: skip
    gpu_clock_mhz: float | None = option_fields.gpu_clock_mhz(group=_ESTIMATED)
    overlap: str = option(
        "keep or clip device events that run into the next one on their stream", "keep", choices=("keep", "clip"),
        group=_SCOPE,
        note="keep or clip device events that run into the next one on their stream; the report counts them "
        "([accuracy.md](accuracy.md))",
    )  # fmt: skip
    cpu: bool = option(
        "add tables of CPU ops; needed for a trace without GPU work", False, group=_COLUMNS
    )  # fmt: skip
    model: ModelConfig | str | PathLike[str] | None = option(
        "add MFU and HFU of this model: bundled, a Hugging Face config, or a model .toml", metavar="NAME|config.json",
        group=_MFU,
        note="add model and hardware FLOPs utilization (MFU, HFU) of a bundled model, a Hugging Face config or a model "
        "file ([models.md](models.md))",
    )  # fmt: skip
    tokens_per_step: int | None = option(
        "with --model: tokens per step, if the trace does not record them", kind=positive, metavar="N", group=_MFU
    )  # fmt: skip
    batch: int | None = option("with --model: sequences per step", kind=positive, metavar="B", group=_MFU)
    sequence: int | None = option("with --model: tokens per sequence", kind=positive, metavar="S", group=_MFU)
    ranks: int | None = option(
        "with --model: ranks that share the work on these tokens (tp x pp x cp)", kind=positive, metavar="N", group=_MFU
    )
    capture: Trace | str | PathLike[str] | None = option(
        "trace of the CUDA graph capture, to name the ops of replayed kernels", kind=Path, metavar="TRACE", group=_READ,
        note="trace of the CUDA graph capture, which gives replayed kernels their ops, shapes and FLOPs. Kernels are "
        "matched by graph node id; without ids, or where they contradict the kernels, graphs by their sequence of "
        "kernels; then by batch size or grids. A note says by what, and counts unmatched kernels",
    )  # fmt: skip
    shapes: Trace | str | PathLike[str] | None = option(
        "trace of the same program with shapes, if this one has none", kind=Path, metavar="TRACE", group=_READ,
        note="trace of the same program with shapes (torch.profiler, a few steps), for a recording without them, e.g. "
        "of Nsight Systems or rocprofv3; kernels are matched by name and sequence",
    )  # fmt: skip
    column_names: str = option(
        "column names in the workbook and in CSV files", KEYS, choices=(KEYS, TRACELENS), group=_COLUMNS,
        note="`keys`: CSV files and DataFrames have the keys of [columns.md](columns.md), as JSON and SQL, and the "
        "workbook their titles; `tracelens`: all three have the headers that users of AMD's TraceLens know",
    )  # fmt: skip
    memory_snapshot: str | PathLike[str] | None = option(
        "snapshot of PyTorch's memory allocator as JSON, to show what held memory", kind=Path, metavar="FILE",
        group=_READ,
        note="`torch.cuda.memory._snapshot()` of the same run, written by json.dump: the sheet memory_blocks shows "
        "which lines held device memory at the peak and in the snapshot; a pickle is not opened",
    )  # fmt: skip
    inductor: str | PathLike[str] | None = option(
        "what torch.compile wrote of its kernels, to show their ops and source lines", kind=Path, metavar="PATH",
        group=_READ,
        note="log or folder of `TORCH_TRACE`, what tlparse makes of it, or `torch_compile_debug/`: the sheet "
        "compiled_kernels shows ops and source lines, graph_breaks what broke graphs and compiled again",
    )  # fmt: skip
    power: str | PathLike[str] | None = option(
        "CSV log of the watts that the device drew", kind=Path, metavar="FILE", group=_READ,
        note="CSV of the watts that the device drew during the run: `nvidia-smi --query-gpu=timestamp,index,power.draw "
        "--format=csv -lms 20`, or any with a column of times and one of power, and its SM clock (docs/energy.md)",
    )  # fmt: skip
    counters: Iterable[str | PathLike[str]] = option(
        "hardware counters of the kernels, by ncu or rocprofv3; repeatable", (), repeat=True, kind=Path,
        metavar="FILE", group=_READ,
        note="hardware counters of the same program's kernels ([counters](report.md#hardware-counters)): CSV of Nsight "
        "Compute (`ncu --csv --page raw` or `details`), `.ncu-rep` after `pip install ncu-report`, "
        "`counter_collection.csv`, `pmc_perf.csv` and databases of ROCm, a PyTorch trace with "
        "`profiler_metrics`; repeatable",
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
    device, specs = asked.device, tuple(asked.extensions)
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
        power=None if asked.power is None else Path(asked.power),
        **_read_beside(asked),
    )
    with plain_strings():
        analysis = analyze(trace if isinstance(trace, Trace) else load(trace), chosen)
        # Before the page and the workbook are made: 70 MB at 1 GB of JSON.
        end_stage()
        sources = [source for extension in analysis.extensions for source in extension.sources]
        return Report(analysis, summarize(analysis), extensions=sources, column_names=asked.column_names)


def _read_beside(asked: ReportOptions) -> dict[str, Any]:
    """What files of the same run or program say; what reads one is imported where there is one."""
    found: dict[str, Any] = {}
    if asked.memory_snapshot is not None:
        from tracelens.trace.reading.read import read_memory_snapshot

        found["memory_snapshot"] = read_memory_snapshot(Path(asked.memory_snapshot))
    if asked.inductor is not None:
        from tracelens.trace.reading.compiled_code import read_compiled_code

        found["inductor"] = read_compiled_code(Path(asked.inductor))
    counters = asked.counters
    if paths := [Path(path) for path in ([counters] if isinstance(counters, str | PathLike) else counters)]:
        from tracelens.trace.reading.counter_files import read_counters

        found["counters"] = tuple(map(read_counters, paths))
    return found


def _loaded(trace: Trace | str | PathLike[str] | None) -> Trace | None:
    """A trace beside the one of a report, read if it is a file."""
    from tracelens.analysis.loaded_trace import Trace, load

    return trace if isinstance(trace, Trace) or trace is None else load(trace)
