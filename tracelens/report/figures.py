"""Figures as people read them: single ones, those of steps in sentences, and frames as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import compress

from tracelens.analysis.verdict import summary as verdict
from tracelens.backends.base import bound_name
from tracelens.files.cells import Value, plain_values
from tracelens.files.safe_text import clipped, display_width, short_kernel_name, terminal_text
from tracelens.files.say import terminal_width
from tracelens.types.records import pd
from tracelens.types.units import GB_PER_TB, counted, shown_figure, shown_ms, shown_percent, shown_rate, shown_share


def bound_text(row: verdict.CategoryRow) -> str:
    """What bounds a category: ``no model`` where none of its work is known, ``unknown`` where not enough of it is."""
    if row.bound is not None:
        return bound_name(row.bound)
    known = (row.tflops_s, row.hbm_tb_s, row.wire_tb_s, row.backend)
    return "no model" if known == (None,) * 4 else "unknown"


def shown_tb_s(row: verdict.CategoryRow) -> str | None:
    """A category's bytes per second: TB/s of HBM, GB/s of a link or PCIe; None where they are not known."""
    if row.wire_tb_s is not None:
        return f"{'≤ ' if row.wire_at_most else ''}{shown_rate(row.wire_tb_s * GB_PER_TB)} GB/s"
    return None if row.hbm_tb_s is None else f"{'≤ ' if row.work_at_most else ''}{shown_rate(row.hbm_tb_s)} HBM"


def shown_tflops(row: verdict.CategoryRow) -> str | None:
    """A category's TFLOPS/s; None where they are not known."""
    return None if row.tflops_s is None else f"{'≤ ' if row.work_at_most else ''}{shown_rate(row.tflops_s)}"


def gain_range(finding: verdict.Finding) -> str:
    """``0-4.20 ms`` between the least and the most of a gain, ``4.20 ms`` where both are one; empty where not known."""
    if finding.gain_low_us is None or finding.gain_high_us is None:
        return ""
    low, high = shown_ms(finding.gain_low_us), shown_ms(finding.gain_high_us)
    return f"{high} ms" if low == high else f"{low}\N{EN DASH}{high} ms"


def together_text(together: verdict.FixesTogether, most: int | None = None) -> str:
    """``33.7 ms now, 29.5 after fix 1, 29.5 after 1-2; then the host limits it``: what a step, or the window, takes.
    ``most``: after how many of the fixes, of which nothing is said to limit it.
    """
    now, *after = map(shown_ms, together.step_us)
    after = after[:most]
    applied = ["fix 1", *(f"1-{n}" for n in range(2, len(after) + 1))]
    parts = [f"{now} ms now", *(f"{ms} after {which}" for ms, which in zip(after, applied, strict=False))]
    limit = {"host": "the host", "device": "the GPU"}.get("" if most else together.limited_by or "")
    return ", ".join(parts) + (f"; then {limit} limits it" if limit else "")


def is_impossible(share: float | None) -> bool:
    """Whether a share of a peak, a roofline or the best measured rate prints as more than 100 %."""
    return share is not None and round(100 * share) > 100


def limit_text(share: float) -> str:
    """A share of a limit in whole percent; marked where it cannot be."""
    return f"{shown_share(share)}{' (!)' if is_impossible(share) else ''}"


def energy_text(energy: verdict.EnergyUse, device: str | None) -> str:
    """``energy 12.3 J`` and what ``beside_energy`` says, or why it is unknown."""
    beside = beside_energy(energy, device)
    return beside if energy.energy_j is None else f"energy {shown_figure(energy.energy_j, 3)} J {beside}"


def beside_energy(energy: verdict.EnergyUse, device: str | None) -> str:
    """``(9.81 to 15.1) · 412 W, 59 % of limit``, or why it is unknown; and whose energies, if not the ``device``'s."""
    if energy.energy_j is None or energy.power_w is None or energy.of_limit is None:
        return f"energy unknown: kernels of unknown work run {shown_share(1 - energy.known_share)} of the time"
    low, high = (shown_figure(each or 0.0, 3) for each in (energy.low_j, energy.high_j))
    parts = [f"({low} to {high})", f"{energy.power_w:,.0f} W, {shown_share(energy.of_limit)} of limit"]
    if energy.per_token_j is not None:
        parts.append(f"{shown_figure(energy.per_token_j, 3)} J per token")
    if energy.constants_of != device:
        parts.append(f"energies of {energy.constants_of}")
    return " · ".join(parts)


def measured_text(measured: verdict.MeasuredPower) -> str:
    """``measured 13.1 J, 437 W, SM clock 1,755 MHz (lowest 1,410) by 51 samples of x.csv``, or that those are few."""
    samples = f"{counted(measured.samples, 'sample')} of {measured.source}"
    if measured.energy_j is None or measured.power_w is None:
        return f"power not measured: {samples} in this time, which need to be two and lie around it"
    clock = ""
    if measured.clock_mhz is not None:
        clock = f", SM clock {measured.clock_mhz:,.0f} MHz (lowest {measured.least_clock_mhz:,.0f})"
    return f"measured {shown_figure(measured.energy_j, 3)} J, {measured.power_w:,.0f} W{clock} by {samples}"


def unseen_text(unseen: verdict.Unseen) -> str:
    """``75 % of GPU time (no perf model), mostly mine::unknown``."""
    names = f", mostly {', '.join(map(short_kernel_name, unseen.ops))}" if unseen.ops else ""
    return f"{100 * unseen.share:.0f} % of GPU time ({unseen.because}){names}"


#: Share of the window from which the lines below the table are worth showing.
_LEAST_SHARED = 0.0005
#: Lines of the table that are no category.
AT_ONCE, IDLE = "(overlap)", "(idle)"
#: Share of the step from which the host's own work bounds it, and from which the GPU is said to.
_HOST_BOUND, _GPU_BOUND = 0.95, 0.9
#: Share of the step from which communication that nothing hides is most of it.
_MOST = 0.5


def bound_sentence(summary: verdict.Summary) -> str:
    """What bounds the step: the host where its own work, waits left out, is the step and the idle time has causes; the
    GPU where it is hardly ever idle; both where both hold. Else what is seen: communication that nothing hides where it
    is most of the step, which host and device wait for alike; how long the GPU was busy, and most of the rest. Empty
    without device work.
    """
    from tracelens.analysis.idle.idle_time import UNKNOWN

    busy, steps = summary.busy, summary.steps
    if busy is None or not busy.total_us:
        return ""
    what = "this window" if steps is None else "this step" if steps.count == 1 else "the step"
    if busy.exposed_comm > _MOST and busy.busy < _GPU_BOUND:
        rest = f"the GPU is busy {shown_percent(busy.busy)} of it and computes {shown_percent(busy.compute)}"
        return f"Exposed communication takes {shown_percent(busy.exposed_comm)} of {what}; {rest}."
    if said := _host_bounds(steps, busy, what):
        return said
    if busy.busy >= _GPU_BOUND:
        return f"The GPU bounds {what}: it is busy {shown_percent(busy.busy)}{_mostly(summary, busy)}."
    mainly = ""
    for cause, share in busy.idle_causes[:1]:
        mainly = f", mainly {'of unknown cause' if cause == UNKNOWN else cause} ({shown_percent(share)})"
    return f"The GPU is busy {shown_percent(busy.busy)} of {what} and idle {shown_percent(busy.idle)}{mainly}."


def _host_bounds(steps: verdict.Steps | None, busy: verdict.Busy, what: str) -> str:
    """That the host does; empty where its own work is not the step, or most idle time is a wait without a cause."""
    from tracelens.analysis.idle.idle_time import UNKNOWN, UNRECORDED

    work_us = None if steps is None else steps.host_work_us
    if steps is None or work_us is None or work_us < _HOST_BOUND * steps.time_us or busy.exposed_comm > _MOST:
        return ""
    if busy.idle_causes and busy.idle_causes[0][0] in (UNKNOWN, UNRECORDED):
        return ""
    of = "all" if work_us >= steps.time_us or shown_ms(work_us) == shown_ms(steps.time_us) else shown_ms(work_us)
    bounds = "The host bounds" if busy.busy < _GPU_BOUND else "The host and the GPU both bound"
    takes = f"host work takes {of} of {shown_ms(steps.time_us)} ms"
    return f"{bounds} {what}: {takes}, and the GPU is busy {shown_percent(busy.busy)}."


def _mostly(summary: verdict.Summary, busy: verdict.Busy) -> str:
    """``; GEMM takes 43.2 %, at 40 % of its roofline``: what takes most of the time; empty where nothing is known."""
    if busy.exposed_comm > busy.compute:
        return f"; exposed communication takes {shown_percent(busy.exposed_comm)}"
    rows = [row for row in summary.categories if row.share > 0]
    if not rows:
        return ""
    row = max(rows, key=lambda row: (row.share, row.name))
    reached = "" if row.of_roofline is None else f", at {limit_text(row.of_roofline)} of its roofline"
    return f"; {row.name} takes {shown_percent(row.share)}{reached}"


def first_gain(summary: verdict.Summary) -> verdict.Finding | None:
    """The first finding that brings something."""
    return next((each for each in summary.findings if each.gain_us), None)


def first_fix(summary: verdict.Summary) -> str:
    """The first finding that brings something: what to do, and what it brings at most; empty without one."""
    found = first_gain(summary)
    whole_us = summary.steps.time_us if summary.steps is not None else summary.busy.total_us if summary.busy else None
    if found is None or found.gain_us is None or not whole_us:
        return ""
    share, name = shown_percent(found.gain_us / whole_us), kind_words(found)
    saves = f"{gain_text(found)} ({share}, {found.certainty} certainty)"
    number = summary.findings.index(found) + 1
    return f"Fix finding {number} ({name}) first to save {saves}: {found.remedy or found.why}."


def kind_words(finding: verdict.Finding) -> str:
    """``unfused elementwise``: what kind of thing it says."""
    return (finding.kind or finding.id).replace("_", " ")


def gain_text(finding: verdict.Finding) -> str:
    """``up to 2.75 ms``, ``1.33 to 2.75 ms``, or ``1.33 ms`` where it is certain; empty where it is not known."""
    low, gain = finding.gain_low_us or 0.0, finding.gain_us
    if gain is None:
        return ""
    least, most = shown_ms(low), shown_ms(gain)
    return f"{most} ms" if least == most else f"{least} to {most} ms" if low > 0 else f"up to {most} ms"


def headline_text(rate: verdict.Throughput) -> str:
    """What share of the peak the whole scope reached, idle time included: ``17 % of dense bf16 peak``; else empty."""
    if rate.window_of_peak is None:
        return ""
    least = "at least " if rate.is_lower_bound else ""
    return f"{least}{limit_text(rate.window_of_peak)} of {rate.peak_name}"


def while_matrix_ops_run(rate: verdict.Throughput) -> str:
    """What the matrix ops of known FLOPs reached in their own time, and how much of the device time that is."""
    what = f"matrix ops ({shown_share(rate.device_share)} of GPU time) reach"
    if rate.of_peak is None:
        return f"{what} {shown_rate(rate.tflops_s)} TFLOPS/s {rate.dtype}"
    best = "" if rate.of_achievable is None else f", {limit_text(rate.of_achievable)} of achievable"
    return f"{what} {limit_text(rate.of_peak)} of peak{best}"


def impossible_text(summary: verdict.Summary) -> str:
    """What a mark means; empty where nothing is marked."""
    rate, used = summary.throughput, summary.utilization
    shares = [row.of_roofline for row in summary.categories]
    if rate is not None:
        shares += [rate.window_of_peak, rate.of_peak, rate.of_achievable]
    if used is not None:
        shares += [used.mfu, used.hfu, used.mfu_of_achievable, used.hfu_of_achievable]
    if not any(map(is_impossible, shares)):
        return ""
    return "(!) above 100 %, so a recorded time, perf model or peak rate is wrong, or a cache held the data"


def step_range(steps: verdict.Steps) -> str:
    """The shortest and the longest of several steps: ``mean of 3: 18.6 to 19.0 ms``."""
    if steps.shortest_us is None or steps.longest_us is None:
        return f"mean of {steps.count}"
    return f"mean of {steps.count}: {shown_ms(steps.shortest_us)} to {shown_ms(steps.longest_us)} ms"


def step_notes(steps: verdict.Steps) -> Iterator[str]:
    """How far the steps lie apart, and whether the host runs ahead of the GPU."""
    clock = [] if steps.spread is None else [step_range(steps)]
    if steps.on_device and steps.host_us is not None:
        which = "each" if steps.on_device == steps.count else f"{steps.on_device} of them"
        starts = "and starts the step" if steps.count == 1 else f"per step and starts {which}"
        takes, work = shown_ms(steps.host_us), shown_ms(steps.host_work_us or 0.0)
        bounds = (steps.host_work_us or 0.0) >= _HOST_BOUND * steps.time_us
        waits = f" ({work} without waits)" if bounds and work != takes else ""
        clock.append(f"the host takes {takes} ms{waits} {starts} while the GPU runs earlier work")
    if clock:
        yield "; ".join(clock)


def excluded_text(summary: verdict.Summary) -> str:
    """What of the file the report does not speak of, and how long it took; empty where it speaks of all."""
    parts = [f"{shown_ms(part.time_us)} ms of GPU work {part.why}" for part in summary.scope.excluded]
    if summary.steps is not None and summary.steps.unseen_us:
        parts.append(f"{shown_ms(summary.steps.unseen_us)} ms at the start, while the GPU ran unrecorded work")
    if summary.steps is not None and summary.steps.skipped_us:
        what = "of GPU idle time as recording began" if summary.steps.recorded_us is None else "between the steps"
        parts.append(f"{shown_ms(summary.steps.skipped_us)} ms {what}")
    return f"excluded: {'; '.join(parts)}" if parts else ""


def counts_of(summary: verdict.Summary) -> str:
    """What the counts in findings are of, where it is more than the step that their gains are of."""
    steps = summary.steps
    return f" (counts of all {steps.count} steps)" if steps is not None and steps.count > 1 else ""


def steps_text(steps: verdict.Steps) -> str:
    """How many steps the figures per step are the mean of: ``3 complete steps``."""
    return f"{steps.count} complete step{'s' if steps.count != 1 else ''}"


def scope_text(scope: verdict.Scope, *, numbers: bool = True) -> str:
    """What a report speaks of: ``3 steps (ProfilerStep 3-5)``, without ``numbers`` ``3 steps (ProfilerStep)``."""
    if scope.kind != verdict.STEPS:
        return f"the {verdict.WHOLE_FILE}"
    named = " ".join(filter(None, (scope.named, scope.numbers if numbers else "")))
    return f"{scope.count} step{'s' if scope.count != 1 else ''}" + (f" ({named})" if named else "")


def lines_of_window(summary: verdict.Summary) -> list[verdict.CategoryRow]:
    """Categories by the time in which they ran, their overlap (negative) and idle time: together the step or window."""
    busy = summary.busy
    if busy is None or not busy.total_us:
        return list(summary.categories)
    step_us = busy.total_us / (1 if summary.steps is None else summary.steps.count)
    shares = [(row, row.share) for row in summary.categories]
    shared = busy.busy - sum(share for _, share in shares)
    if -shared >= _LEAST_SHARED:
        shares.append((verdict.CategoryRow(name=AT_ONCE, time_us=0.0, share=shared), shared))
    shares.append((verdict.CategoryRow(name=IDLE, time_us=0.0, share=busy.idle), busy.idle))
    return [replace(row, time_us=share * step_us) for row, share in shares]


#: Columns of the terminal that a cell may take.
_WIDEST = 60
#: What a cell keeps in a narrow terminal.
_LEAST_WIDTH = 16


def table_text(frame: pd.DataFrame) -> Iterator[str]:
    """Headers, then a line per row: numbers to four digits, ``-`` for none, texts clipped to the terminal."""
    columns = [_counts(plain_values(frame[name])) for name in frame.columns]
    cells = [[str(name), *map(_cell, values)] for name, values in zip(frame.columns, columns, strict=True)]
    widths = [max(map(display_width, column)) for column in cells]
    is_text = [any(isinstance(value, str) for value in values) for values in columns]
    too_wide = sum(widths) + 2 * len(widths) - 2 - (terminal_width(sys.stdout) or sys.maxsize)
    if too_wide > 0 and any(is_text):
        # The widest text is clipped by what is wider than the terminal
        widest = max(compress(range(len(widths)), is_text), key=widths.__getitem__)
        widths[widest] = max(widths[widest] - too_wide, min(widths[widest], _LEAST_WIDTH))
        cells[widest] = [clipped(cell, widths[widest]) for cell in cells[widest]]
    for row in zip(*cells, strict=True):
        padded = [
            cell + fill if left else fill + cell
            for cell, width, left in zip(row, widths, is_text, strict=True)
            for fill in (" " * (width - display_width(cell)),)
        ]
        yield "  ".join(padded).rstrip()


def _counts(values: list[Value]) -> list[Value]:
    """Figures that are all whole, as sums of counts are, without decimals."""
    if all(each is None or (isinstance(each, float) and each.is_integer()) for each in values):
        return [int(each) if isinstance(each, float) else None for each in values]
    return values


def _cell(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return shown_figure(value)
    return clipped(terminal_text(str(value)), _WIDEST)
