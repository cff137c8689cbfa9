"""Frames in; workbook, JSON, CSV and terminal out."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import TYPE_CHECKING

from tracelens.extensions import ExtensionSpec

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace
    from tracelens.hardware import HardwareSpec
    from tracelens.report.result import Report
    from tracelens.workload import ModelConfig


def report(
    trace: Trace | str | PathLike[str],
    *,
    device: HardwareSpec | str | PathLike[str] | None = None,
    extensions: Iterable[ExtensionSpec] = (),
    bundled: bool = True,
    steps: str | None = None,
    ep_size: int | None = None,
    overlap: str = "keep",
    cpu: bool = False,
    backend: str = "roofline",
    gpu_clock_mhz: float | None = None,
    model: ModelConfig | str | PathLike[str] | None = None,
    tokens_per_step: int | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    ranks: int | None = None,
    capture: Trace | str | PathLike[str] | None = None,
    rank: int | None = None,
) -> Report:
    """The report of a trace: a path, or what ``load`` returned.

    device: a name, a TOML file or a ``HardwareSpec``; None recognizes it from the trace.
    extensions: names, paths, modules, or marked functions (also ones defined in a notebook cell).
    bundled: whether bundled extensions switch themselves on when their op names occur.
    steps: ``"3"``, ``"3-5"`` or ``"steady"``; None is the whole file.
    ep_size: ranks of the expert-parallel group, where the trace does not record it.
    overlap: ``"clip"`` ends a device event where the next of its stream begins, ``"keep"`` leaves times as recorded.
    cpu: tables of the CPU ops too, and a report even without GPU work.
    backend: what is achievable, beside the roofline: ``"tile"`` or a chain such as ``"gemm=origami,sdpa=tile"``.
    gpu_clock_mhz: the clock that estimates are for; None is the data sheet's.
    model: a name, a model file or a ``config.json``: adds model and hardware FLOPs utilization. What a step works on is
    read from the trace where it is recorded, else given: ``tokens_per_step``, or ``batch`` sequences of ``sequence``
    tokens; ``ranks``: among how many devices this work is divided.
    capture: the trace in which the graphs were captured that this one replays: their kernels get its ops.
    rank: of a file in which several ranks were merged, the one to report; None is the first.

    InputError for an unreadable file, NothingToAnalyzeError for one without GPU work, UsageError for a name, a step
    range or an extension that does not fit.
    """
    from tracelens.analysis.analyze import analyze
    from tracelens.analysis.loaded_trace import Trace, load
    from tracelens.analysis.options import Options, StepWork
    from tracelens.analysis.verdict.verdict import summarize
    from tracelens.errors import UsageError
    from tracelens.extensions import load_extension
    from tracelens.hardware import HardwareSpec
    from tracelens.report.result import Report
    from tracelens.trace.reading.memory_limit import give_back_freed
    from tracelens.workload import ModelConfig

    work = None
    if model is not None:
        config = model if isinstance(model, ModelConfig) else ModelConfig.load(model)
        work = StepWork(model=config, tokens=tokens_per_step, batch=batch, sequence=sequence, ranks=ranks)
    elif (tokens_per_step, batch, sequence, ranks) != (None, None, None, None):
        raise UsageError("--tokens-per-step, --batch, --sequence and --ranks need --model")
    options = Options(
        device=device if isinstance(device, HardwareSpec) or device is None else HardwareSpec.load(device),
        extensions=tuple(load_extension(spec) for spec in extensions),
        bundled=bundled,
        steps=steps,
        rank=rank,
        ep_size=ep_size,
        overlap=overlap,
        cpu=cpu,
        backend=backend,
        clock_mhz=gpu_clock_mhz,
        work=work,
        capture=capture if isinstance(capture, Trace) or capture is None else load(capture),
    )
    analysis = analyze(trace if isinstance(trace, Trace) else load(trace), options)
    # Before the page and the workbook are made: 70 MB at 1 GB of JSON.
    give_back_freed()
    sources = [source for extension in analysis.extensions for source in extension.sources]
    return Report(analysis, summarize(analysis), extensions=sources)
