"""Sheets of steps: training steps and their phases, recomputed ops, iterations and phases of a serving engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.reading.engine_steps import by_phase, iterations
from tracelens.analysis.sheets.shared_columns import COMPLETE, DURATIONS, STEP_DURATION
from tracelens.schema import GENERAL, column_set, count, flag, identifier, number, percent, sheet, text, us

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import HostContext, SheetContext


STEP_TIMES_TITLE = "steps"
STEP_TIMES_COLUMNS = column_set(
    identifier("step", "Number of the step in the trace."),
    us("start_us", "On the trace's own clock."),
    us(
        "duration_us", "From its start to the next step's, the last to the end of its host code and device work.",
    ),
    us("busy_us", "Union of the device events that were launched in it."),
    us("idle_us", "The rest of its duration."),
    count("device_events", "Kernels and copies that were launched in it."),
    COMPLETE,
    text(
        "begins_with",
        "host: its first line of code. device: the host ran ahead, and the step begins when the device has "
        "finished earlier work. before the first step: work queued before the recording, in no step.",
        width=20, number_format=GENERAL,
    ),
    us(
        "host_period_us",
        "From the start of its annotation to the next step's, of the last to the end of what it launched.",
    ),
    us(
        "host_work_us",
        "From the start of its annotation to the next step's, of the last to the annotation's end, without calls that "
        "wait for the GPU.",
    ),
    us(
        "device_period_us",
        "From its first kernel to the next step's, of the last to its end, on the stream with most events.",
    ),
    us(
        "outside_us", "Its device work on other streams during a neighboring step; in no busy time.",
    ),
    us(
        "left_out_us",
        "Idle time of a first step whose host waited for work from before the recording; not in the duration.",
    ),
)  # fmt: skip


@sheet(STEP_TIMES_TITLE, columns=STEP_TIMES_COLUMNS, order=58, json=None)
def step_times_frame(context: HostContext) -> pd.DataFrame:
    """Of the whole file: its steps, also those that the report is not of."""
    return context.step_times.sheet(int(context.recording.trace.table.start_ns.min()))


PHASES_COLUMNS = column_set(
    text(
        "phase",
        "By where the work was launched: backward, run by autograd's engine; recompute, the forward ops that "
        "checkpointing repeats there; optimizer, inside Optimizer.step; forward, all else. Annotations marked (F), (B) "
        "and (W) come first: (W) is backward: weights, the gradients of weights.",
        width=22,
    ),
    count("kernels", "Device events of the phase; each is in exactly one."),
    us("kernel_us", DURATIONS),
    us("busy_us", "Union of the device events."),
    percent("percent_of_kernels", "Share of all kernel time."),
    percent("percent_of_forward", "Share of first runs and repeated ones together."),
)


@sheet("phases", columns=PHASES_COLUMNS, order=16, json=100)
def phases_frame(context: SheetContext) -> pd.DataFrame | None:
    """Device time of the forward pass, its repetition by checkpointing, the backward pass and the optimizer."""
    phases = context.attribution.phases
    return phases.frame(context.activity) if phases.has_backward else None


RECOMPUTE_COLUMNS = column_set(
    text("name", "The op that launched the work.", width=46),
    count("first_calls", "Calls in the forward pass."),
    us("first_us", DURATIONS),
    count("recompute_calls", "Calls that checkpointing repeated during the backward pass."),
    us("recompute_us", DURATIONS),
)


@sheet("recompute", columns=RECOMPUTE_COLUMNS, order=65, json=110)
def recompute_frame(context: SheetContext) -> pd.DataFrame | None:
    """Ops that checkpointing ran again: first runs beside repeated ones."""
    phases = context.attribution.phases
    return phases.by_op(context.trace.table, context.activity) if phases.has_recompute else None


INFERENCE_ITERATIONS_TITLE = "inference_iterations"
INFERENCE_ITERATIONS_COLUMNS = column_set(
    identifier("step", "Engine steps are numbered from 0, as --steps takes them."),
    text("phase", "From the requests in the step's annotation.", width=10),
    count("context_requests", "Requests in prefill."),
    count("context_tokens", "New tokens of these requests."),
    count("generation_requests", "Requests in decode."),
    count("generation_tokens", "New tokens of these requests."),
    count("padded_requests", "The batch size of the captured graph that ran."),
    count("past_tokens", "Keys in the cache before the step, of all requests."),
    us("duration_us", STEP_DURATION),
    us("busy_us", "Union of its device events."),
    us("attention_us", "Union of its attention over the cache, writes to the cache included."),
    us("communication_us", "Union of its communication."),
    count("tokens_s", "New tokens over its duration."),
    count("device_events", "Kernels and copies."),
    COMPLETE,
    flag("steady", "TRUE: in the steady window, which --steps steady takes.", width=10),
)


@sheet(INFERENCE_ITERATIONS_TITLE, columns=INFERENCE_ITERATIONS_COLUMNS, order=59, json=20)
def inference_iterations_frame(context: SheetContext) -> pd.DataFrame | None:
    """Every step of a serving engine: requests, tokens and time."""
    engine = context.window.engine
    steps, step_of = engine.steps, engine.step_of
    if not len(steps):
        return None
    found = iterations(steps, engine.times, step_of, context.activity, context.event_category)
    return found[np.isin(np.arange(len(steps)), step_of)]


INFERENCE_PHASES_COLUMNS = column_set(
    text("phase", "Of the complete steps; the steady window also has a row.", width=18),
    count("steps", "Engine steps of the phase."),
    identifier("first_step", "First step number."),
    identifier("last_step", "Last step number."),
    number("requests_mean", "Requests in a step.", shape="#,##0.0"),
    number("tokens_mean", "New tokens in a step.", shape="#,##0.0"),
    us("duration_us_median", STEP_DURATION),
    us("duration_us_min", STEP_DURATION),
    us("duration_us_max", STEP_DURATION),
    percent("busy_percent", "Share of the steps' time in which the device was busy."),
    percent("attention_percent", "Share of the busy time in attention over the cache."),
    count("tokens_s", "New tokens over the steps' time; for decode: generated tokens."),
)


@sheet("inference_phases", columns=INFERENCE_PHASES_COLUMNS, order=15, json=10)
def inference_phases_frame(context: SheetContext) -> pd.DataFrame | None:
    """Prefill, decode and mixed steps of a serving engine, and its steady window."""
    steps = context.frames.get(INFERENCE_ITERATIONS_TITLE)
    return None if steps is None else by_phase(steps)
