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
        metavar="NAME|FILE.toml", group=_ESTIMATED,
    )  # fmt: skip
    extensions: Iterable[ExtensionSpec] = option(
        "add ops of a framework: a bundled name, a file or an installed entry point; repeatable; none: load no bundled "
        "extension", (), repeat=True, flags=("--extension",), metavar="NAME|FILE.py|none", group=_READ,
    )  # fmt: skip
    bundled: bool = True
    steps: str | None = option(
        "report on these steps only, or on the whole file; default: all complete steps", metavar="3|3-5|steady|file",
        group=_SCOPE,
    )  # fmt: skip
    rank: int | None = option(
        "rank to report if the file has several; default: the first", kind=whole, metavar="N", group=_SCOPE
    )
    ep_size: int | None = option(
        "expert-parallel group size, if the trace does not record it", kind=positive, metavar="RANKS", group=_ESTIMATED
    )
    backend: str = option(
        "cost model of achievable time: tile, gemm=origami,sdpa=tile ...", "roofline", metavar="CHAIN", group=_ESTIMATED
    )
    gpu_clock_mhz: float | None = option_fields.gpu_clock_mhz(group=_ESTIMATED)
    overlap: str = option(
        "keep or clip device events that run into the next one on their stream", "keep", choices=("keep", "clip"),
        group=_SCOPE,
    )  # fmt: skip
    cpu: bool = option(
        "add tables of CPU ops; needed for a trace without GPU work", False, group=_COLUMNS
    )  # fmt: skip
    model: ModelConfig | str | PathLike[str] | None = option(
        "add MFU and HFU of this model: bundled, a Hugging Face config, or a model .toml", metavar="NAME|config.json",
        group=_MFU,
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
        "trace of the CUDA graph capture, to name the ops of replayed kernels", kind=Path, metavar="TRACE", group=_READ
    )
    shapes: Trace | str | PathLike[str] | None = option(
        "trace of the same program with shapes, if this one has none", kind=Path, metavar="TRACE", group=_READ
    )
    column_names: str = option(
        "column names in the workbook and in CSV files", KEYS, choices=(KEYS, TRACELENS), group=_COLUMNS
    )
    memory_snapshot: str | PathLike[str] | None = option(
        "snapshot of PyTorch's memory allocator as JSON, to show what held memory", kind=Path, metavar="FILE",
        group=_READ,
    )  # fmt: skip
    inductor: str | PathLike[str] | None = option(
        "what torch.compile wrote of its kernels, to show their ops and source lines", kind=Path, metavar="PATH",
        group=_READ,
    )  # fmt: skip
    power: str | PathLike[str] | None = option(
        "CSV log of the watts that the device drew", kind=Path, metavar="FILE", group=_READ
    )
    counters: Iterable[str | PathLike[str]] = option(
        "hardware counters of the kernels, by ncu or rocprofv3; repeatable", (), repeat=True, kind=Path, metavar="FILE",
        group=_READ,
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
