"""A projected training step as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tracelens.report.charts.line_chart import bars
from tracelens.report.html.frame import framed
from tracelens.report.pages.parts import head, section, table
from tracelens.units import BYTES_PER_GB, US_PER_MS

if TYPE_CHECKING:
    from tracelens.projection.project import Result


def step_page(result: Result) -> bytes:
    """Time and where it goes, memory of every stage beside what the device has, levers, operations."""
    found = result.projection
    tiles = [("Step", f"{found.step_us / 1e6:,.3f} s", f"{found.tokens_per_s_per_gpu:,.0f} tokens/s per GPU")]
    if found.mfu is not None:
        tiles.append(("Model FLOPs utilization", f"{found.mfu:.1%}", f"{found.tflops_gpu:,.0f} TFLOPS per GPU"))
    tiles.append(("Memory", f"{found.peak_memory.peak / BYTES_PER_GB:,.1f} GB", "of the fullest stage"))
    notes = [*([f"does not fit: {found.infeasible}"] if found.infeasible else []), *found.notes]
    p = found.parallel
    split = [f"{name} {value}" for name in ("tp", "pp", "cp", "dp", "ep") if (value := getattr(p, name)) > 1]
    facts = [f"{p.ranks} x {found.system.device.label}", *split, f"{p.micro_batches} micro-batches of {p.micro_batch}"]
    parts = sorted(found.breakdown_us.items(), key=lambda item: -item[1])
    time = [(name, us, f"{us / US_PER_MS:,.1f} ms · {us / found.step_us:.1%}") for name, us in parts]
    memory = [
        (f"stage {stage.stage}", stage.peak / BYTES_PER_GB, f"{stage.peak / BYTES_PER_GB:,.1f} GB")
        for stage in found.stages
    ]
    stages = pd.DataFrame(
        [
            {
                "stage": stage.stage,
                **{
                    f"{name} GB": getattr(stage, name) / BYTES_PER_GB
                    for name in ("weights", "gradients", "optimizer", "activations", "logits", "outside", "peak")
                },
            }
            for stage in found.stages
        ]
    )
    levers = [(lever.change, lever.gain, f"−{lever.gain:.1%}") for lever in result.levers]
    sections = [
        head(found.model.label, facts, tiles, notes),
        section("time", "Where the time goes", bars(time, "Busiest pipeline rank; exposed communication only")),
        section("memory", "Memory", bars(memory, "Peak by stage"), table(stages, "Memory by stage")),
    ]
    if levers:
        sections.append(section("levers", "Levers", bars(levers, "Time of the step that each saves alone")))
    ops = result.ops(result.run.busiest)
    sections.append(section("ops", "Operations of the busiest rank", table(ops, "Operations")))
    return framed(f"{found.model.label} · projected step", sections)
