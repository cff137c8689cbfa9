"""The sheets of the views: one function each, all of them a frame as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracelens.report.columns import Analyzed, sheet
from tracelens.report.view_columns import VIEW_SETS

if TYPE_CHECKING:
    import pandas as pd


@sheet("idle_causes", columns=VIEW_SETS["idle_causes"], order=12)
def idle_causes(result: Analyzed) -> pd.DataFrame | None:
    """Idle time of the device by cause; together exactly the timeline's idle time."""
    return result.frames.get("idle_causes")


@sheet("idle_gaps", columns=VIEW_SETS["idle_gaps"], order=60)
def idle_gaps(result: Analyzed) -> pd.DataFrame | None:
    """The longest gaps in which the device stood idle, at most 100 of them."""
    return result.frames.get("idle_gaps")


@sheet("copies", columns=VIEW_SETS["copies"], order=63)
def copies(result: Analyzed) -> pd.DataFrame | None:
    """Copies between the device and the host or another device, beside what their path allows."""
    return result.frames.get("copies")


@sheet("critical_path", columns=VIEW_SETS["critical_path"], order=14)
def critical_path(result: Analyzed) -> pd.DataFrame | None:
    """The longest chain of work and launches that led to the end of the typical step, by kind of work."""
    return result.frames.get("critical_path")


@sheet("critical_path_segments", columns=VIEW_SETS["critical_path_segments"], order=61)
def critical_path_segments(result: Analyzed) -> pd.DataFrame | None:
    """The segments of the critical path in order of time; at most the 300 longest."""
    return result.frames.get("critical_path_segments")


@sheet("launch_overhead", columns=VIEW_SETS["launch_overhead"], order=62)
def launch_overhead(result: Analyzed) -> pd.DataFrame | None:
    """What launching cost the host, and how often the device had to wait for it, by runtime or driver call."""
    return result.frames.get("launch_overhead")


@sheet("stream_overlap", columns=VIEW_SETS["stream_overlap"], order=64)
def stream_overlap(result: Analyzed) -> pd.DataFrame | None:
    """Time in which two streams were busy at once, for every pair of streams."""
    return result.frames.get("stream_overlap")


@sheet("phases", columns=VIEW_SETS["phases"], order=16)
def phases(result: Analyzed) -> pd.DataFrame | None:
    """Device time of the forward pass, its repetition by checkpointing, the backward pass and the optimizer."""
    return result.frames.get("phases")


@sheet("recompute", columns=VIEW_SETS["recompute"], order=65)
def recompute(result: Analyzed) -> pd.DataFrame | None:
    """Ops that checkpointing ran again: first runs beside repeated ones."""
    return result.frames.get("recompute")


@sheet("modules", columns=VIEW_SETS["modules"], order=44)
def modules(result: Analyzed) -> pd.DataFrame | None:
    """Time per path of nn.Module classes, parents before what is in them."""
    return result.frames.get("modules")


@sheet("call_stacks", columns=VIEW_SETS["call_stacks"], order=66)
def call_stacks(result: Analyzed) -> pd.DataFrame | None:
    """Device time per Python call stack; the 200 with most of it, then the rest."""
    return result.frames.get("call_stacks")


@sheet("memory", columns=VIEW_SETS["memory"], order=67)
def memory(result: Analyzed) -> pd.DataFrame | None:
    """What the allocators handed out, by device: the peak, when it was and in which op."""
    return result.frames.get("memory")


@sheet("memory_timeline", columns=VIEW_SETS["memory_timeline"], order=68)
def memory_timeline(result: Analyzed) -> pd.DataFrame | None:
    """Memory over time, at most 1000 points per device: of every stretch of events the highest."""
    return result.frames.get("memory_timeline")


@sheet("inference_phases", columns=VIEW_SETS["inference_phases"], order=15)
def inference_phases(result: Analyzed) -> pd.DataFrame | None:
    """Prefill, decode and mixed steps of a serving engine, and its steady window."""
    return result.frames.get("inference_phases")


@sheet("inference_iterations", columns=VIEW_SETS["inference_iterations"], order=59)
def inference_iterations(result: Analyzed) -> pd.DataFrame | None:
    """Every step of a serving engine: requests, tokens and time."""
    return result.frames.get("inference_iterations")
