"""A projected training step as a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd

from tracelens.report.answers.step_text import expected_of, part_words
from tracelens.report.charts.line_chart import bars, stacked_bars
from tracelens.report.charts.pipeline_chart import MAX_RANKS, MAX_TASKS, pipeline_chart
from tracelens.report.figures import shown_change, shown_percent
from tracelens.report.html.frame import framed
from tracelens.report.html.markup import Markup, tag
from tracelens.report.pages.parts import head, section, table
from tracelens.units import BYTES_PER_GB, US_PER_MS

if TYPE_CHECKING:
    from tracelens.projection.project import Result
    from tracelens.projection.step import Projection


_MEMORY = ("weights", "gradients", "optimizer", "activations", "logits", "outside", "peak")


def step_page(result: Result) -> bytes:
    """Time and where it goes, memory of every stage beside what the device has, levers, operations."""
    found = result.projection
    warnings = [f"does not fit: {found.infeasible}"] if found.infeasible else []
    parts = sorted(found.breakdown_us.items(), key=lambda item: -item[1])
    time = [
        (part_words(name), us, f"{us / US_PER_MS:,.1f} ms · {shown_percent(us / found.step_us)}") for name, us in parts
    ]
    stages = [
        {"stage": stage.stage, **{f"{name}_gb": getattr(stage, name) / BYTES_PER_GB for name in _MEMORY}}
        for stage in found.stages
    ]
    fits = found.infeasible is None
    levers = [
        (lever.change, lever.gain if fits else 1 - lever.gain, shown_change(-lever.gain)) for lever in result.levers
    ]
    many = sum(map(len, result.run.tasks)) > MAX_TASKS or len(result.run.tasks) > MAX_RANKS
    said = f"A box is a micro-batch on a rank of the pipeline; a gap is waiting.{' The first ones are drawn.' * many}"
    sections = [
        head(found.model.label, _facts(found), _tiles(found), [*expected_of(result), *found.notes], warnings),
        section("time", "Where the time goes", bars(time, "Busiest pipeline rank; exposed communication only")),
        section("pipeline", "Timeline of the pipeline", tag("p", said), pipeline_chart(result.run)),
        section("memory", "Memory", _memory_bars(found), table(pd.DataFrame(stages), "Memory by stage")),
    ]
    if levers:
        saved, needed = "Time of the step that each saves alone", "What would fit: time of the step, beside this one"
        sections.append(section("levers", "Levers", bars(levers, saved if fits else needed)))
    ops = result.ops(result.run.busiest)
    ops = ops.assign(time_ms=ops["time_us"] / US_PER_MS).drop(columns="time_us")
    sections.append(section("ops", "Operations of the busiest rank", table(ops, "Operations")))
    return framed(f"{found.model.label} · projected step", sections)


def _memory_bars(found: Projection) -> Markup:
    """What each stage keeps at its peak, in front of a track as long as the device's memory where that is known."""
    capacity = found.peak_memory.capacity
    rows = [
        (f"stage {each.stage}", [(name, getattr(each, name) / BYTES_PER_GB) for name in _MEMORY[:-1]],
         f"{each.peak / BYTES_PER_GB:,.1f} GB")
        for each in found.stages
    ]  # fmt: skip
    of = "" if capacity is None else f"; the line is at the {capacity / BYTES_PER_GB:,.1f} GB of the device"
    return stacked_bars(rows, f"Peak by stage{of}", 0.0 if capacity is None else capacity / BYTES_PER_GB)


def _facts(found: Projection) -> Iterator[str]:
    p = found.parallel
    yield f"{p.ranks} x {found.system.device.label}"
    yield from (f"{name} {value}" for name in ("tp", "pp", "cp", "dp", "ep") if (value := getattr(p, name)) > 1)
    yield f"{p.micro_batches} micro-batches of {p.micro_batch} x {found.sequence:,} tokens"
    yield p.precision


def _tiles(found: Projection) -> list[tuple[str, str, str]]:
    """What does not fit is said before how fast it would be."""
    worst = found.peak_memory
    capacity = "" if worst.capacity is None else f"of {worst.capacity / BYTES_PER_GB:,.1f} GB, "
    need = f"{worst.peak / BYTES_PER_GB:,.1f} GB"
    tiles = [("Step", f"{found.step_us / 1e6:,.3f} s", f"{found.tokens_per_s_per_gpu:,.0f} tokens/s per GPU")]
    if found.mfu is not None:
        tiles.append(("Model FLOPs utilization", shown_percent(found.mfu), f"{found.tflops_gpu:,.0f} TFLOPS per GPU"))
    room = ("Memory" if worst.fits else "Does not fit", need, f"{capacity}fullest stage")
    return [*tiles, room] if worst.fits else [room, *tiles]
