"""The recording that is analyzed: one rank of the file, its device, and its ops made complete."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.loaded_trace import AnalysisOptions, active_extensions
from tracelens.analysis.reading.added_ops import KnownShapes, with_inner_ops, with_known_shapes
from tracelens.analysis.reading.captured_graphs import GraphLinks, with_captured_ops
from tracelens.analysis.reading.catalog import Catalog
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.extensions import Extension
from tracelens.hardware import HardwareSpec, Recognition, contradiction, recognize
from tracelens.lazy.records import dataclass
from tracelens.trace.provenance import MergedRanks, merged_ranks
from tracelens.trace.table import Kind, TraceTable

if TYPE_CHECKING:
    from tracelens.analysis.loaded_trace import Trace

#: ``Recognition.how`` of a device that the caller named.
CHOSEN = "chosen"
# As categories of libkineto's activity types begin for devices other than CUDA's and HIP's (ActivityType.h).
_UNREAD_DEVICES = ("mtia_", "hpu_", "xpu_", "privateuse1_", "npu_", "tpu_")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recording:
    """One rank's trace, and what reads its ops.

    ``recorded``: as the file has it. ``trace``: with the ops inside composite ops and those of captured graphs as rows
    of their own. ``whole_calls``: (why, how many) calls of composite ops stayed whole. ``graphs``: None without a trace
    of the capture. ``merged``: the ranks of a file with several.
    """

    recorded: Trace
    trace: Trace
    extensions: tuple[Extension, ...]
    catalog: Catalog
    recognition: Recognition
    whole_calls: tuple[tuple[str, int], ...] = ()
    graphs: GraphLinks | None = None
    known_shapes: KnownShapes | None = None
    merged: MergedRanks | None = None

    @classmethod
    def of(cls, trace: Trace, options: AnalysisOptions) -> Recording:
        """NothingToAnalyzeError for a trace without device work, unless its CPU ops are asked for."""
        trace, merged = of_one_rank(trace, options.rank)
        table = trace.table
        if not table.has_device_events and not (options.cpu and _cpu_ops(table)):
            raise no_device_events(table)
        beside = [
            names for other in (options.capture, options.shapes) if other is not None for names in other.table.names
        ]
        extensions = active_extensions((*table.names, *beside), options)
        recording = cls(
            recorded=trace,
            trace=trace,
            extensions=extensions,
            catalog=Catalog(extensions),
            recognition=recognized(table, options.device),
            merged=merged,
        )
        return recording._completed(options) if table.has_device_events else recording

    def _completed(self, options: AnalysisOptions) -> Recording:
        trace, known_shapes, capture = self.trace, None, options.capture
        if options.shapes is not None:
            trace, known_shapes = with_known_shapes(trace, options.shapes)
        recorded = len(trace.table)
        left: Counter[str] = Counter()
        if self.catalog.tree_hooks:
            from tracelens.laboratory.amd_tracelens_tree import with_hooks

            trace, left = with_hooks(trace, self.catalog)
        trace, whole_calls = with_inner_ops(trace, self.catalog, made_from=recorded)
        whole_calls += left
        graphs = None
        if capture is not None:
            trace, graphs = with_captured_ops(trace, with_inner_ops(capture, self.catalog)[0], self.catalog)
        return replace(
            self, trace=trace, whole_calls=tuple(whole_calls.most_common()), graphs=graphs, known_shapes=known_shapes
        )

    @property
    def device(self) -> HardwareSpec | None:
        """What estimates are for: the recognized device, else what all candidates agree on, else None."""
        return self.recognition.device or self.recognition.agreed


def of_one_rank(trace: Trace, number: int | None) -> tuple[Trace, MergedRanks | None]:
    """The rank asked for, or the first, of a file in which several were merged; else the trace as it is, and None.

    UsageError for a number that the file does not hold, or that its events do not tell.
    """
    ranks = merged_ranks(trace.table, trace.tree)
    if ranks is None:
        if number is not None and number != trace.table.rank:
            source = trace.table.source
            raise UsageError(f"{source} has one rank, or ranks that cannot be told apart: omit --rank")
        return trace, None
    number = ranks.numbers[0] if number is None else number
    return type(trace).of(ranks.table(trace.table, number)), replace(ranks, chosen=number)


def recognized(table: TraceTable, device: HardwareSpec | None) -> Recognition:
    """The ``device`` that the caller named, else the one that the trace's properties say."""
    properties = table.used_device()
    if device is not None:
        note = contradiction(device, properties) or ""
        return Recognition(device=device, candidates=(device.name,), how=CHOSEN, note=note)
    kernels = np.unique(table.name[table.kind == Kind.KERNEL]).tolist()
    return recognize(properties, kernel_names=(table.names[code] for code in kernels))


def no_device_events(table: TraceTable) -> NothingToAnalyzeError:
    """What to say of a trace without GPU work: none recorded, not asked for, or lost to damage, which is said."""
    lost = f" The file is damaged: {'; '.join(table.losses.notes)}." if table.losses.notes else ""
    ops = _cpu_ops(table)
    if not ops:
        return NothingToAnalyzeError(
            f"{table.source} holds neither CPU ops nor kernels: nothing ran while it was recorded, or only in threads "
            f"and processes that the profiler did not see. Record again around the work, in its process.{lost}"
        )
    unread = _unread_device_events(table)
    if unread:
        kinds = ", ".join(f"{count:,} {category}" for category, count in unread.items())
        return NothingToAnalyzeError(
            f"{table.source} has {ops:,} CPU ops and {sum(unread.values()):,} events of an accelerator that "
            f"tracelens does not read ({kinds}), but no CUDA or HIP kernels; "
            f"pass --cpu to `tracelens report` for a CPU-only report.{lost}"
        )
    if lost:
        return NothingToAnalyzeError(
            f"{table.source} has {ops:,} CPU ops but no GPU kernels.{lost} Copy or record it again, or pass --cpu for "
            "a CPU-only report of what is left."
        )
    return NothingToAnalyzeError(
        f"{table.source} has {ops:,} CPU ops but no GPU kernels. Was it recorded with activities=[CPU]? "
        "Add ProfilerActivity.CUDA, or pass --cpu to `tracelens report` for a CPU-only report."
    )


def _unread_device_events(table: TraceTable) -> dict[str, int]:
    """How many events each category holds that only an accelerator other than CUDA and HIP records."""
    other = np.bincount(table.category[table.kind == Kind.OTHER], minlength=len(table.categories))
    return {
        category: int(count)
        for category, count in zip(table.categories, other.tolist(), strict=True)
        if count and category.lower().startswith(_UNREAD_DEVICES)
    }


def _cpu_ops(table: TraceTable) -> int:
    return int((table.kind == Kind.CPU_OP).sum())
