"""The ``about`` sheet: what was read, on which figures the rest stands, and what every column means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tracelens.analysis.verdict.summary import STEPS, Steps, Summary, Utilization
from tracelens.lazy.records import dataclass
from tracelens.report.assembly import Sheet
from tracelens.report.cells import Value
from tracelens.report.figures import gain_range, together_text, unseen_text
from tracelens.report.step_figures import bound_sentence, first_fix, scope_text, steps_text
from tracelens.schema import Column
from tracelens.units import FLOPS_PER_TFLOP

PERCENT, _MS = "0.0%", "#,##0.000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row of the sheet. ``link`` names the sheet that the first cell leads to."""

    cells: tuple[Value, ...]
    kind: Literal["title", "section", "head", "row"] = "row"
    number_format: str = "General"
    link: str = ""


def about_lines(summary: Summary, sheets: Sequence[tuple[str, Sheet]]) -> list[Line]:
    """All rows, top to bottom. ``sheets``: (title in the workbook, sheet)."""
    return [
        Line(cells=(f"Trace report: {summary.input.file}",), kind="title"),
        *(_row("In short", None, None, said) for said in (bound_sentence(summary), first_fix(summary)) if said),
        *_input(summary),
        *_coverage(summary),
        *_time(summary),
        *_utilization(summary.utilization),
        *_findings(summary),
        *_together(summary),
        *_device(summary),
        *_sheets(sheets, summary),
        *_columns([sheet for _, sheet in sheets]),
    ]


def _section(title: str) -> Line:
    return Line(cells=(title, None, None, None), kind="section")


def _head(*cells: str) -> Line:
    return Line(cells=(*cells, *(None,) * (4 - len(cells))), kind="head")


def _row(*cells: Value, number_format: str = "General") -> Line:
    return Line(cells=cells, number_format=number_format)


def _input(summary: Summary) -> Iterator[Line]:
    source = summary.input
    yield _section("What was read")
    yield _row("File", source.file)
    yield _row("Events in the file", source.events, number_format="#,##0")
    if source.ranks:
        ranks = ", ".join(map(str, source.ranks))
        yield _row("Rank", f"{ranks} of {source.world_size}" if source.world_size else ranks)
    yield from _scope(summary)
    if summary.steps:
        yield from _steps(summary.steps)
    if source.torch_version:
        yield _row("PyTorch", source.torch_version)
    if summary.extensions:
        yield _row("Extensions used", ", ".join(summary.extensions))
    for notice in summary.notices:
        yield _row("Note", notice.id, notice.count, notice.text, number_format="#,##0")
    for missing in summary.cannot_answer:
        yield _row("Cannot be answered", missing.question, None, missing.because)


def _scope(summary: Summary) -> Iterator[Line]:
    """What all sheets are of, and what of the file they are not of: device events and their summed durations."""
    scope, chosen = summary.scope, "--steps file takes the whole file" if summary.scope.kind == STEPS else None
    yield _row("Scope of all sheets", scope_text(scope), None, chosen)
    if summary.busy is None:
        return
    yield _row("GPU work in scope (ms)", scope.time_us / 1e3, scope.events, "Summed durations.", number_format=_MS)
    for part in scope.excluded:
        yield _row("Excluded GPU work (ms)", part.time_us / 1e3, part.events, f"{part.why}.", number_format=_MS)
    if scope.excluded:
        whole_us = scope.time_us + sum(part.time_us for part in scope.excluded)
        events = scope.events + sum(part.events for part in scope.excluded)
        yield _row("GPU work in the file (ms)", whole_us / 1e3, events, None, number_format=_MS)


def _steps(steps: Steps) -> Iterator[Line]:
    window = f"steps {steps.window}" if steps.window else None
    left_out = f"Left out: {steps.left_out}" if steps.left_out else None
    yield _row("Steps", steps.count, window, left_out, number_format="#,##0")
    yield _row("Taken for a step", steps.name)
    yield _row("Time per step (ms), mean", steps.time_us / 1e3, number_format="#,##0.000")
    if steps.spread is not None:
        note = "Standard deviation as a share of the mean."
        yield _row("Spread of the step time", steps.spread, "±", note, number_format=PERCENT)
    for figure, what in (
        (steps.shortest_us, "shortest"),
        (steps.longest_us, "longest"),
        (steps.host_us, "host"),
        (steps.host_work_us, "host without waiting for the GPU"),
    ):
        if figure is not None:
            yield _row(f"Time per step (ms), {what}", figure / 1e3, number_format="#,##0.000")
    if steps.before_events:
        note = "Device events queued before the recording: in no step."
        yield _row("Before the first step", steps.before_events, None, note, number_format="#,##0")
        yield _row("Before the first step (ms)", steps.before_us / 1e3, number_format="#,##0.000")
    if steps.unseen_us:
        note = "The GPU was still at work from before the recording, which was not recorded: in no step."
        yield _row("Before the first iteration (ms)", steps.unseen_us / 1e3, None, note, number_format="#,##0.000")
    if steps.skipped_us:
        note = "Idle time after the host waited for earlier work: in no step."
        yield _row("Left out of the first step (ms)", steps.skipped_us / 1e3, None, note, number_format="#,##0.000")


_COVERAGE = (
    ("perf_model", "In rows with a perf model", "Their FLOPs or bytes are known from the recorded arguments."),
    ("categorised", "In a definite category", "Everything whose category is not 'other'."),
    ("unlinked", "Not linked to an op", "Launched before the recording began, or the launch was not recorded."),
    ("communication", "Communication", "By kernel name: NCCL, RCCL, DeepEP and custom collectives."),
)


def _coverage(summary: Summary) -> Iterator[Line]:
    yield _section("Coverage: share of the device time that the figures below cover")
    for key, label, meaning in _COVERAGE:
        yield _row(label, _known(getattr(summary.coverage, key)), None, meaning, number_format=PERCENT)
    yield _row("Shapes recorded", "yes" if summary.coverage.shapes else "no", None, "record_shapes=True")
    yield _row("Python stacks recorded", "yes" if summary.coverage.stacks else "no", None, "with_stack=True")
    if summary.late_host_events:
        meaning = (
            "They belong to the innermost event that contains them; calls in a frame recorded too long stay in their "
            "op."
        )
        yield _row("Host events that end after their caller", summary.late_host_events, None, meaning)


def _time(summary: Summary) -> Iterator[Line]:
    busy = summary.busy
    if busy is not None:
        yield _section("Where the device's time went")
        if busy.total_us is not None:
            of = "Window" if summary.steps is None else steps_text(summary.steps).capitalize()
            yield _row(f"{of} (ms)", busy.total_us / 1e3, number_format="#,##0.000")
        yield _row("Computation", busy.compute, number_format=PERCENT)
        yield _row(
            "Exposed communication", busy.exposed_comm, None, "Not hidden by computation.", number_format=PERCENT
        )
        yield _row("Exposed copies", busy.memcpy, None, "Not hidden by either.", number_format=PERCENT)
        yield _row("Idle", busy.idle, number_format=PERCENT)
    rate = summary.throughput
    if rate is not None:
        if rate.window_of_peak is not None:
            least = "at least: calls of unknown FLOPs may add to it" if rate.is_lower_bound else None
            yield _row(f"Share of {rate.peak_name}", rate.window_of_peak, least, number_format=PERCENT)
        yield _row("TFLOPS/s while matrix ops run", rate.tflops_s, rate.dtype, number_format="#,##0.0")
        yield _row("  share of the device time", rate.device_share, number_format=PERCENT)
        if rate.of_peak is not None:
            yield _row("  of the dense peak", rate.of_peak, number_format=PERCENT)
        if rate.of_achievable is not None:
            yield _row("  of the best measured", rate.of_achievable, number_format=PERCENT)


def _utilization(used: Utilization | None) -> Iterator[Line]:
    if used is None:
        return
    yield _section("FLOPs utilization: a step's matrix FLOPs over its time and the device's dense rate")
    yield _row("Model", used.model, used.work, "Training where a step has backward ops, else inference.")
    yield _row("Tokens per step", used.tokens, None, used.tokens_source, number_format="#,##0")
    yield _row("Tokens in a sequence", used.sequence, number_format="#,##0")
    yield _row("Ranks that share the work on them", used.ranks, None, used.ranks_source, number_format="#,##0")
    yield _row("Time per step (ms), mean", used.time_us / 1e3, number_format="#,##0.000")
    yield _row(
        "Model TFLOP per step",
        used.model_flops / FLOPS_PER_TFLOP,
        None,
        "This device's share.",
        number_format="#,##0.000",
    )
    executed = None if used.hardware_flops is None else used.hardware_flops / FLOPS_PER_TFLOP
    yield _row(
        "Executed TFLOP per step", _known(executed), None, "From calls with a perf model.", number_format="#,##0.000"
    )
    yield _row("  share of the device time", _known(used.hardware_coverage), number_format=PERCENT)
    for label, share, achievable in (
        ("MFU, model FLOPs utilization", used.mfu, used.mfu_of_achievable),
        ("HFU, hardware FLOPs utilization", used.hfu, used.hfu_of_achievable),
    ):
        yield _row(label, _known(share), None, f"Of the dense {used.dtype} peak.", number_format=PERCENT)
        yield _row("  of the best measured", _known(achievable), number_format=PERCENT)
    if used.steps:
        yield _head("Step", "Time (ms)", "MFU", "HFU")
    for step in used.steps:
        yield _row(f"  {step.step}", step.time_us / 1e3, _known(step.mfu), _known(step.hfu), number_format="#,##0.000")


def _findings(summary: Summary) -> Iterator[Line]:
    if summary.unseen is not None:
        yield _section("What the findings cannot see")
        yield _row(unseen_text(summary.unseen), None, None, summary.unseen.command)
    if not summary.findings:
        return
    per = "step" if summary.steps else "window"
    yield _section("Look here first")
    yield _head("Finding", f"Gain per {per}, up to (ms)", "Certainty", "Why")
    for finding in summary.findings:
        gain = None if finding.gain_us is None else finding.gain_us / 1e3
        yield _row(
            (finding.kind or finding.id).replace("_", " "),
            _known(gain),
            finding.certainty,
            finding.why,
            number_format="#,##0.000",
        )
        if gain is not None:
            yield _row("    between", None, None, gain_range(finding))
        if finding.remedy:
            yield _row("    try", None, None, finding.remedy)
        if finding.limited_by:
            yield _row("    limited by", None, None, finding.limited_by)
        for said in (*finding.figures, *finding.limit_figures):
            shape = PERCENT if said.unit == "share" else "#,##0.###"
            yield _row(f"    {said.what}", said.value, None if said.unit == "share" else said.unit, number_format=shape)


def _together(summary: Summary) -> Iterator[Line]:
    """The step now, after the first finding's fix, after those of the first two, ..."""
    if summary.together is None:
        return
    yield _row("The first ones together", None, None, together_text(summary.together))
    keys = ("now", *summary.together.findings)
    for number, (key, us) in enumerate(zip(keys, summary.together.step_us, strict=True)):
        name = f"    after {number}: {key.replace('_', ' ')}" if number else "    now"
        yield _row(name, us / 1e3, "ms", number_format="#,##0.000")


def _device(summary: Summary) -> Iterator[Line]:
    device = summary.device
    yield _section("The device and the source of its figures")
    yield _row("Device", device.label, device.spec, device.note or f"matched by {device.matched_by}")
    for doubtful in device.doubtful:
        yield _row("Doubtful figure", doubtful)
    if device.figures:
        yield _head("Figure", "Value", "Unit", "Source")
    for figure in device.figures:
        yield _row(figure.what, _known(figure.value), figure.unit, figure.source, number_format="#,##0.0###")


def _sheets(sheets: Sequence[tuple[str, Sheet]], summary: Summary) -> Iterator[Line]:
    totals = f": totals over the {steps_text(summary.steps)}, unless a sheet says otherwise" if summary.steps else ""
    yield _section(f"Sheets{totals}")
    yield _head("Sheet", "Rows", "", "What a row is")
    for title, sheet in sheets:
        yield Line(cells=(title, len(sheet.frame), None, sheet.text), link=title, number_format="#,##0")


def _columns(sheets: Sequence[Sheet]) -> Iterator[Line]:
    """One line per column; the statistics of one quantity share a line."""
    found: dict[tuple[str, str], tuple[Column, list[str]]] = {}
    for sheet in sheets:
        for column in sheet.columns:
            _, used = found.setdefault((column.family, column.meaning), (column, []))
            if sheet.title not in used:
                used.append(sheet.title)
    yield _section("Columns")
    yield _head("Column", "Key in CSV, JSON, SQL and frames", "Sheets", "Meaning")
    for (key, _), (column, used) in sorted(found.items(), key=lambda entry: entry[1][0].family_title.lower()):
        where = ", ".join(used[:3]) + (f" and {len(used) - 3} more" if len(used) > 3 else "")
        yield _row(column.family_title, key, where, column.meaning or None)


def _known(value: float | None) -> Value:
    return "not determined" if value is None else value
