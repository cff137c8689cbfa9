"""The verdict: a screen of 80 columns that says how far the trace is from its hardware."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TextIO

from tracelens.analysis.verdict.summary import COMPLETE, Busy, CategoryRow, Summary, Throughput, Utilization
from tracelens.files.safe_text import clipped, display_width, terminal_text
from tracelens.files.trace_name import trace_name
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.report.figures import (
    bound_text,
    shown_ms,
    shown_percent,
    shown_rate,
    shown_share,
    shown_tb_s,
    shown_tflops,
    together_text,
    unseen_text,
)
from tracelens.report.step_figures import (
    AT_ONCE,
    IDLE,
    counts_of,
    excluded_text,
    lines_of_window,
    scope_text,
    step_notes,
)
from tracelens.units import FLOPS_PER_TFLOP

WIDTH = 80
_BOLD, _DIM, _YELLOW, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"
_FINDINGS, _CATEGORIES, _NOTICES = 3, 8, 3
_HARD_SPACE = "\xa0"
_SPACES = lazy_pattern(rf"[^\S{_HARD_SPACE}]+")
_BEFORE_UNIT = lazy_pattern(r"(?<=\d) (?=(?:%|µs|ms|s|GB/s|TB/s|bytes)(?!\w))")
#: Lines that fit beside a prompt; where there would be more, fewer categories are shown.
_LINES = 36
#: Share of the window from which idle time is worth a line, and from which a cause of it is named there.
_MUCH_IDLE, _LEAST_CAUSE = 0.01, 0.005
#: Share that shows as a tenth of a percent.
_TENTH = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    text: str
    style: str = ""


def verdict(summary: Summary, *, seconds: float | None = None, written: Sequence[str] = (), color: bool = False) -> str:
    """The verdict as text, without a final line feed.

    ``seconds``: how long the analysis took, ``written``: what was written (both for the terminal only, they are in no
    file). Trace text is shown without control characters; ``color`` adds escape sequences of our own.
    """
    above = [*_header(summary, seconds), *_coverage(summary)]
    below = [
        *_findings(summary),
        *_together(summary),
        *_notices(summary),
        *(_Row(text=f" wrote {entry}") for entry in written[:2]),
    ]
    rows = [*above, *_table(summary, _CATEGORIES), *below]
    if (beyond := len(rows) - _LINES) > 0:
        rows = [*above, *_table(summary, max(_CATEGORIES - beyond, 2)), *below]
    return "\n".join(_painted(row, color) for row in rows)


def wants_color(stream: TextIO | None) -> bool:
    """Whether to color what goes to ``stream``: a terminal, and NO_COLOR is not set."""
    return not os.environ.get("NO_COLOR") and stream is not None and stream.isatty()


def _painted(row: _Row, color: bool) -> str:
    text = clipped(terminal_text(row.text.rstrip()), WIDTH)
    return f"{row.style}{text}{_RESET}" if color and row.style else text


def _header(summary: Summary, seconds: float | None) -> Iterator[_Row]:
    details = terminal_text(" · ".join(_recording(summary, seconds)))
    stem = terminal_text(trace_name(summary.input.file))
    if display_width(stem) + display_width(details) + 3 <= WIDTH:
        yield _Row(text=f" {stem}  {details}", style=_BOLD)
    else:
        yield _Row(text=f" {stem}", style=_BOLD)
        yield _Row(text=f" {details}")
    line = "".join(_time(summary))
    if line:
        yield _Row(text=f" {line}")
    notes = [] if summary.steps is None else list(step_notes(summary.steps))
    for note in filter(None, (*notes, excluded_text(summary))):
        yield from (_Row(text=f"     {line}") for line in _wrapped(note, WIDTH - 5))
    if summary.throughput is not None:
        yield _Row(text=f" {_rate(summary.throughput)}")
    if summary.utilization is not None:
        yield _Row(text=f" {_utilization(summary.utilization)}")
    if summary.busy is not None:
        yield from _busy(summary.busy)


def _recording(summary: Summary, seconds: float | None) -> Iterator[str]:
    """Whose trace it is: ranks, steps, device, PyTorch, events."""
    source = summary.input
    if source.ranks:
        several = len(source.ranks) > 1
        ranks = f"{source.ranks[0]}-{source.ranks[-1]}" if several else str(source.ranks[0])
        of_world = f" of {source.world_size}" if source.world_size else ""
        yield f"rank{'s' if several else ''} {ranks}{of_world}"
    if summary.steps is not None or summary.busy is not None:
        yield scope_text(summary.scope, numbers=False)
    yield summary.device.shown
    if source.torch_version:
        yield f"torch {source.torch_version}"
    took = "" if seconds is None else f" in {seconds:.1f} s"
    yield f"{_events(source.events)}{took}"


def _busy(busy: Busy) -> Iterator[_Row]:
    yield _Row(
        text=f" GPU busy {shown_percent(busy.busy)}  = compute {100 * busy.compute:.1f} + exposed comm "
        f"{100 * busy.exposed_comm:.1f} + memcpy {100 * busy.memcpy:.1f}; idle {shown_percent(busy.idle)}"
    )
    if busy.idle >= _MUCH_IDLE and busy.idle_causes:
        first, *more = _idle_causes(busy.idle_causes, WIDTH - 11)
        yield _Row(text=f"     idle: {first}")
        yield from (_Row(text=f"           {line}") for line in more)


def _idle_causes(causes: Sequence[tuple[str, float]], width: int) -> list[str]:
    """As many causes with their percent as three lines hold whole, the largest first; the others are added up."""
    lines: list[str] = []
    for named in range(sum(share >= _LEAST_CAUSE for _, share in causes), -1, -1):
        others = sum(share for _, share in causes[named:])
        rest = [("others", others)] if others >= _TENTH else []
        parts = [f"{cause} {100 * share:.1f}" for cause, share in (*causes[:named], *rest)]
        lines = _wrapped(" + ".join(part.replace(" ", _HARD_SPACE) for part in parts), width)
        if not lines[-1].endswith("…"):
            break
    return lines


def _time(summary: Summary) -> Iterator[str]:
    if summary.steps is not None:
        yield f"step {shown_ms(summary.steps.time_us)} ms"
    elif summary.busy is not None and summary.busy.total_us is not None:
        yield f"window {shown_ms(summary.busy.total_us)} ms"
    else:
        return
    rate = summary.throughput
    if rate is not None and rate.window_of_peak is not None and rate.window_of_peak >= _TENTH:
        yield f"   {'at least ' if rate.is_lower_bound else ''}{shown_share(rate.window_of_peak)} of {rate.peak_name}"


def _rate(rate: Throughput) -> str:
    """What the matrix ops of known FLOPs reached, and how much of the device time they are."""
    where = f"matrix ops, {shown_share(rate.device_share)} of GPU time"
    if rate.of_peak is None:
        return f"{where}: {shown_rate(rate.tflops_s)} TFLOPS/s {rate.dtype}"
    best = "" if rate.of_achievable is None else f", {shown_share(rate.of_achievable)} of achievable"
    return f"{where}: {shown_share(rate.of_peak)} of peak{best}"


def _utilization(used: Utilization) -> str:
    what = f"{used.model} {used.work}, {used.tokens:,} tokens"
    if used.mfu is None:
        return f"{used.model_flops / FLOPS_PER_TFLOP:,.3g} TFLOP per step · {what}"
    shares = [("MFU", used.mfu, used.mfu_of_achievable), ("HFU", used.hfu, used.hfu_of_achievable)]
    partly = {"HFU": "at least "} if (used.hardware_coverage or 0) < COMPLETE else {}
    of_peak = ", ".join(f"{name} {partly.get(name, '')}{shown_share(s)}" for name, s, _ in shares if s is not None)
    achievable = ", ".join(f"{100 * share:.0f}" for _, _, share in shares if share is not None)
    return f"{of_peak}{f' ({achievable} % of achievable)' if achievable else ''} · {what}"


def _coverage(summary: Summary) -> Iterator[_Row]:
    coverage = summary.coverage
    parts = [
        f"{name} {shown_share(value)}"
        for name, value in (("perf model", coverage.perf_model), ("unlinked", coverage.unlinked))
        if value is not None
    ]
    if parts:
        parts[0] += " of GPU time"
    parts += [f"shapes {_yes(coverage.shapes)}", f"stacks {_yes(coverage.stacks)}"]
    yield _Row(text=f" coverage  {' · '.join(parts)}")
    if summary.extensions:
        yield _Row(text=f" extensions {', '.join(summary.extensions)}")


def _table(summary: Summary, most: int) -> Iterator[_Row]:
    if not summary.categories:
        return
    on_device = summary.busy is not None
    title = "per step" if summary.steps else "whole window"
    if not on_device:
        title = "CPU time per step" if summary.steps else "CPU time"
    rates = f"{'TFLOPS/s':>9}{'TB/s':>11}  {'bound by':<10}{'of roofline':>11}" if on_device else ""
    yield _Row(text="")
    yield _Row(text=f" {title:<19}{'ms':>9}{'%':>7}{rates}", style=_DIM)
    lines = lines_of_window(summary)
    rest = [row for row in lines if row.name in (AT_ONCE, IDLE)] if on_device else []
    shown = _shown_categories(lines[: len(lines) - len(rest)], most)
    largest = max(row.time_us for row in shown)
    decimals = 1 if largest >= 50_000 else 2 if largest >= 5_000 else 3
    for row in shown:
        yield _Row(text=_time_cells(row, decimals) + (_rate_cells(row) if on_device else ""))
    for row in rest:
        yield _Row(text=_time_cells(row, decimals), style=_DIM)


def _shown_categories(rows: Sequence[CategoryRow], most: int) -> list[CategoryRow]:
    """The ``most`` largest ones; what is beyond them is added up in one line."""
    if len(rows) <= most:
        return list(rows)
    ranked = sorted(rows, key=lambda row: (-row.time_us, row.name))
    rest = ranked[most - 1 :]
    added = CategoryRow(
        name=f"{len(rest)} more", time_us=sum(r.time_us for r in rest), share=sum(r.share for r in rest), bound=" "
    )
    return [*ranked[: most - 1], added]


def _time_cells(row: CategoryRow, decimals: int) -> str:
    name = clipped(terminal_text(row.name), 18)
    padding = " " * (19 - display_width(name))
    return f" {name}{padding}{row.time_us / 1e3:>9,.{decimals}f}{100 * row.share:>7.1f}"


def _rate_cells(row: CategoryRow) -> str:
    tflops = shown_tflops(row) or "-"
    roofline = "" if row.of_roofline is None else shown_share(row.of_roofline)
    return f"{tflops:>9}{_tb_s(row):>11}  {clipped(bound_text(row), 10):<10}{roofline:>11}"


def _tb_s(row: CategoryRow) -> str:
    return shown_tb_s(row) or "-"


def _findings(summary: Summary) -> Iterator[_Row]:
    shown, unseen = summary.findings[:_FINDINGS], summary.unseen
    if not shown and unseen is None:
        return
    title, per = f" look here first{counts_of(summary)}", "gain per step" if summary.steps else "gain"
    yield _Row(text="")
    yield _Row(text=title + f"{per:>{WIDTH - 1 - len(title)}}", style=_DIM)
    if unseen is not None:
        first, *more = _wrapped(f"cannot see {unseen_text(unseen)}", WIDTH - 4)
        yield _Row(text=f" {first}", style=_YELLOW)
        yield from (_Row(text=f"   {line}", style=_YELLOW) for line in more)
        *more, last = _wrapped(unseen.command or "", WIDTH - 6)
        # A shell joins lines that end in a backslash
        typed = [*(f"{line} \\" for line in more), last]
        yield from (_Row(text=f"   {line}", style=_DIM) for line in typed if line)
    for number, finding in enumerate(shown, 1):
        gain = "" if finding.gain_us is None else f"{shown_ms(finding.gain_us)} ms"
        first, *more = _wrapped(finding.why, WIDTH - 6 - len(gain), lines=4)
        padding = " " * (WIDTH - 4 - display_width(first) - len(gain))
        yield _Row(text=f" {number} {first}{padding}{gain}")
        yield from (_Row(text=f"   {line}") for line in more)
        if finding.remedy:
            for line in _wrapped(f"try: {finding.remedy}", WIDTH - 4):
                yield _Row(text=f"   {line}", style=_DIM)


def _together(summary: Summary) -> Iterator[_Row]:
    """What the first findings bring one on top of the other."""
    if summary.together is not None:
        whole = "step" if summary.steps else "window"
        for line in _wrapped(f"together: {whole} {together_text(summary.together)}", WIDTH - 2):
            yield _Row(text=f" {line}")


def _notices(summary: Summary) -> Iterator[_Row]:
    """The first ones; the last line says how many there are beyond."""
    more = len(summary.notices) - _NOTICES
    for notice in summary.notices[:_NOTICES]:
        first, *rest = _wrapped(notice.text, WIDTH - 4, lines=4)
        yield _Row(text=f" ! {first}", style=_YELLOW)
        yield from (_Row(text=f"   {line}", style=_YELLOW) for line in rest)
    if more > 0:
        yield _Row(text=f" ! {more} more note{'s' if more > 1 else ''}: sheet about, or warnings in report.json")


def _wrapped(text: str, width: int, lines: int = 3) -> list[str]:
    """``text`` in at most ``lines`` lines, the last one clipped; a number keeps its unit, hard spaces never break."""
    text = _BEFORE_UNIT.sub(_HARD_SPACE, _SPACES.sub(" ", terminal_text(text)).strip(" "))
    wrapped: list[str] = []
    while display_width(text) > width and len(wrapped) < lines - 1:
        head = clipped(text, width + 1).removesuffix("…")
        cut = head.rfind(" ") if " " in head else len(head)
        wrapped.append(text[:cut])
        text = text[cut:].lstrip(" ")
    return [line.replace(_HARD_SPACE, " ") for line in (*wrapped, clipped(text, width))]


def _events(count: int) -> str:
    if count < 1_000_000:
        return f"{count:,} events"
    return f"{count / 1e6:.2f} M events"


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"
