"""The verdict: a screen of 80 columns that says how far the trace is from its hardware."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import TextIO

from tracelens.analysis.verdict.summary import COMPLETE, Busy, CategoryRow, Summary, Unseen, Utilization
from tracelens.files.safe_text import clipped, display_width, terminal_text, trace_name
from tracelens.report import figures
from tracelens.types.records import Record
from tracelens.types.units import FLOPS_PER_TFLOP, counted, shown_ms, shown_percent, shown_share

WIDTH = 80
_BOLD, _DIM, _YELLOW, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[33m", "\x1b[0m"
_FINDINGS, _CATEGORIES, _NOTICES = 3, 8, 3
_HARD_SPACE = "\xa0"
_SPACES = re.compile(rf"[^\S{_HARD_SPACE}]+")
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|µs|ms|s|GB/s|TB/s|bytes)(?!\w))")
#: Lines that fit above a prompt; where there would be more, something is cut.
_LINES = 38
#: Share of the window from which idle time is worth a line, and from which a cause of it is named there.
_MUCH_IDLE, _LEAST_CAUSE = 0.01, 0.005
#: Columns of a bar; share of the categories' time that needs no name in the table.
_BAR, _UNNAMED = 6, 0.1
#: Share that shows as a tenth of a percent.
_TENTH = 0.0005


class _Row(Record, frozen=True, kw_only=True):
    text: str
    style: str = ""


def verdict(summary: Summary, *, seconds: float | None = None, written: Sequence[str] = (), color: bool = False) -> str:
    """The verdict as text, without a final line feed.

    ``seconds``: how long the analysis took, ``written``: what was written (both for the terminal only, they are in no
    file). Trace text is shown without control characters; ``color`` adds escape sequences of our own.
    """
    above = [*_header(summary, seconds), *_coverage(summary)]
    wrote = [_Row(text=f" wrote {entry}") for entry in written[:2]]
    # How many lines of categories, that of all others included, until a tenth of their time at most has no name
    shares = sorted((row.share for row in summary.categories), reverse=True)
    unnamed = _UNNAMED * sum(shares)
    least = next((count + 1 for count in range(len(shares)) if sum(shares[count:]) <= unnamed), len(shares))
    rows: list[_Row] = []
    # All notices but the first go, then what to try, then small categories, the last findings and their names: never
    # the categories that most of the time is in
    cuts = ((_NOTICES, 4, True, _CATEGORIES, _FINDINGS, True), (1, 4, True, _CATEGORIES, _FINDINGS, True),
            (1, 4, False, _CATEGORIES, _FINDINGS, True), (1, 4, False, 0, _FINDINGS, True), (1, 4, False, 0, 2, True),
            (1, 4, False, 0, 1, True), (1, 1, False, 0, 1, True), (1, 1, False, 0, 1, False))  # fmt: skip
    for notices, lines, tries, most, found, named in cuts:
        table = [*_table(summary, max(most, least)), *_lines(figures.impossible_text(summary), _YELLOW)]
        rows = [
            *above,
            *table,
            *_findings(summary, found, tries=tries, named=named),
            *_notices(summary, notices, lines),
            *wrote,
        ]
        if len(rows) <= _LINES:
            break
    texts = ((row.style if color else "", clipped(terminal_text(row.text.rstrip()), WIDTH)) for row in rows)
    return "\n".join(f"{style}{text}{_RESET}" if style else text for style, text in texts)


def wants_color(stream: TextIO | None) -> bool:
    return not os.environ.get("NO_COLOR") and stream is not None and stream.isatty()


def _header(summary: Summary, seconds: float | None) -> Iterator[_Row]:
    stem, details = terminal_text(trace_name(summary.input.file)), terminal_text(" · ".join(_recording(summary)))
    took = "" if seconds is None else f" in {seconds:.1f} s"
    if display_width(stem) + display_width(details + took) + 3 <= WIDTH:
        yield _Row(text=f" {stem}  {details}{took}", style=_BOLD)
    else:
        yield _Row(text=f" {stem}{took}", style=_BOLD)
        yield from (_Row(text=f" {line}") for line in _wrapped(details, WIDTH - 1))
    for sentence in (figures.bound_sentence(summary), figures.first_fix(summary)):
        yield from _lines(sentence, _BOLD)
    if summary.busy is not None:
        yield _Row(text="")
    line = "".join(_time(summary))
    if line:
        yield _Row(text=f" {line}")
    notes = [] if summary.steps is None else list(figures.step_notes(summary.steps))
    for note in filter(None, (*notes, figures.excluded_text(summary))):
        yield from (_Row(text=f"     {line}") for line in _wrapped(note, WIDTH - 5))
    if summary.throughput is not None:
        yield _Row(text=f" {figures.while_matrix_ops_run(summary.throughput)}")
    if summary.utilization is not None:
        yield _Row(text=f" {_utilization(summary.utilization)}")
    if summary.busy is not None:
        yield from _busy(summary.busy)
    if summary.energy is not None:
        yield from _lines(figures.energy_text(summary.energy, summary.device.id), "")
    if summary.measured_power is not None:
        yield from _lines(figures.measured_text(summary.measured_power), "")


def _recording(summary: Summary) -> Iterator[str]:
    """Whose trace it is: ranks, steps, device, PyTorch, events."""
    source = summary.input
    if source.ranks:
        several = len(source.ranks) > 1
        ranks = f"{source.ranks[0]}-{source.ranks[-1]}" if several else str(source.ranks[0])
        of_world = f" of {source.world_size}" if source.world_size else ""
        yield f"rank{'s' if several else ''} {ranks}{of_world}"
    if summary.steps is not None or summary.busy is not None:
        yield figures.scope_text(summary.scope, numbers=False)
    yield summary.device.shown
    if source.torch_version:
        yield f"torch {source.torch_version}"
    millions = source.events / 1e6
    yield f"{source.events:,} events" if millions < 1 else f"{millions:.2f} M events"


def _busy(busy: Busy) -> Iterator[_Row]:
    yield _Row(
        text=f" GPU busy {shown_percent(busy.busy)}  = compute {100 * busy.compute:.1f} + exposed comm "
        f"{100 * busy.exposed_comm:.1f} + memcpy {100 * busy.memcpy:.1f}; idle {shown_percent(busy.idle)}"
    )
    if busy.idle >= _MUCH_IDLE and busy.idle_causes:
        # As many causes with their percent as three lines hold whole, the largest first; the others are added up
        width = WIDTH - 11
        lines: list[str] = []
        for named in range(sum(share >= _LEAST_CAUSE for _, share in busy.idle_causes), -1, -1):
            others = sum(share for _, share in busy.idle_causes[named:])
            rest = [("others", others)] if others >= _TENTH else []
            parts = [f"{cause} {100 * share:.1f}" for cause, share in (*busy.idle_causes[:named], *rest)]
            lines = _wrapped(" + ".join(part.replace(" ", _HARD_SPACE) for part in parts), width)
            if not lines[-1].endswith("…"):
                break
        first, *more = lines
        yield _Row(text=f"     idle: {first}")
        yield from (_Row(text=f"           {line}") for line in more)


def _time(summary: Summary) -> Iterator[str]:
    if summary.steps is not None:
        yield f"step {shown_ms(summary.steps.time_us)} ms"
    elif summary.busy is not None and summary.busy.total_us is not None:
        yield f"window {shown_ms(summary.busy.total_us)} ms"
    else:
        return
    if summary.throughput is not None and (summary.throughput.window_of_peak or 0.0) >= _TENTH:
        yield f"   {figures.headline_text(summary.throughput)}"


def _utilization(used: Utilization) -> str:
    what = f"{used.model} {used.work}, {used.tokens:,} tokens"
    if used.mfu is None:
        return f"{used.model_flops / FLOPS_PER_TFLOP:,.3g} TFLOP per step · {what}"
    shares = [("MFU", used.mfu, used.mfu_of_achievable), ("HFU", used.hfu, used.hfu_of_achievable)]
    partly = {"HFU": "at least "} if (used.hardware_coverage or 0) < COMPLETE else {}
    of_peak = ", ".join(
        f"{name} {partly.get(name, '')}{figures.limit_text(s)}" for name, s, _ in shares if s is not None
    )
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
    recorded = {"shapes": coverage.shapes, "stacks": coverage.stacks}
    parts += [f"{what} {'yes' if known else 'no'}" for what, known in recorded.items()]
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
    rates = f" {'':<{_BAR}}{'TFLOPS/s':>9}{'TB/s':>11} {'bound by':<9}{'roofline':>9}" if on_device else ""
    yield _Row(text="")
    yield _Row(text=f" {title:<18}{'ms':>9}{'%':>6}{rates}", style=_DIM)
    lines = figures.lines_of_window(summary)
    rest = [row for row in lines if row.name in (figures.AT_ONCE, figures.IDLE)] if on_device else []
    shown = _shown_categories(lines[: len(lines) - len(rest)], most)
    largest = max(row.time_us for row in shown)
    decimals = 1 if largest >= 50_000 else 2 if largest >= 5_000 else 3
    for row in shown:
        yield _Row(text=_time_cells(row, decimals) + (_rate_cells(row) if on_device else ""))
    for row in rest:
        yield _Row(text=f"{_time_cells(row, decimals)} {_bar(row.share)}", style=_DIM)


def _lines(text: str, style: str, first: str = " ", width: int = WIDTH - 4, lines: int = 3) -> Iterator[_Row]:
    """A text over several lines, those after the first below its second word; nothing of none."""
    if text:
        head, *more = _wrapped(text, width, lines)
        yield _Row(text=f"{first}{head}", style=style)
        yield from (_Row(text=f"   {line}", style=style) for line in more)


def _bar(share: float) -> str:
    """A share of the whole as a bar of ``_BAR`` columns, to an eighth of a column."""
    eighths = round(8 * _BAR * min(max(share, 0.0), 1.0))
    return ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(_BAR)


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
    padding = " " * (18 - display_width(name))
    return f" {name}{padding}{row.time_us / 1e3:>9,.{decimals}f}{100 * row.share:>6.1f}"


def _rate_cells(row: CategoryRow) -> str:
    tflops = figures.shown_tflops(row) or "-"
    roofline = "" if row.of_roofline is None else figures.limit_text(row.of_roofline)
    tb_s, bound = figures.shown_tb_s(row) or "-", clipped(figures.bound_text(row), 9)
    return f" {_bar(row.share)}{tflops:>9}{tb_s:>11} {bound:<9}{roofline:>9}"


def _findings(summary: Summary, most: int, *, tries: bool, named: bool) -> Iterator[_Row]:
    """``tries``: whether to say what to try, and what limits the gain; ``named``: whether to add up findings beyond
    ``most``, by name.
    """
    shown, unseen = summary.findings[:most], summary.unseen
    if not shown and unseen is None:
        return
    per = "gain per step, certainty" if summary.steps else "gain, certainty"
    # What the first fix is stands above
    title, fixed = f" look here first{figures.counts_of(summary)}", figures.first_gain(summary)
    yield _Row(text="")
    yield _Row(text=title + f"{per:>{WIDTH - 1 - len(title)}}", style=_DIM)
    if unseen is not None:
        yield from _unseen(unseen)
    for number, finding in enumerate(shown, 1):
        gain = f"{figures.gain_text(finding)}, {finding.certainty}" if finding.gain_us is not None else ""
        first, *more = _wrapped(finding.why, WIDTH - 6 - len(gain), lines=4, rest=WIDTH - 4)
        padding = " " * (WIDTH - 4 - display_width(first) - len(gain))
        yield _Row(text=f" {number} {first}{padding}{gain}")
        yield from (_Row(text=f"   {line}") for line in more)
        if finding.limited_by and tries:
            yield from _lines(finding.limited_by, "", first="   ")
        if finding.remedy and tries and finding is not fixed:
            yield from _lines(f"try: {finding.remedy}", _DIM, first="   ")
    if named:
        yield from _named(summary, len(shown))
    yield from _together(summary, None if named else len(shown))


def _named(summary: Summary, shown: int) -> Iterator[_Row]:
    """A line for each of the first findings beyond those ``shown``, as the sum below counts them."""
    for number, finding in enumerate(summary.findings[shown:_FINDINGS], shown + 1):
        if finding.gain_us:
            gain = f"{figures.gain_text(finding)}, {finding.certainty}"
            name = clipped(figures.kind_words(finding), WIDTH - 6 - len(gain))
            yield _Row(text=f" {number} {name.ljust(WIDTH - 4 - len(gain))}{gain}")


def _together(summary: Summary, most: int | None) -> Iterator[_Row]:
    """What the first findings, or the first ``most`` of them, gain one on top of the other."""
    if summary.together is not None:
        whole = "step" if summary.steps else "window"
        for line in _wrapped(f"together: the {whole} takes {figures.together_text(summary.together, most)}", WIDTH - 2):
            yield _Row(text=f" {line}")


def _unseen(unseen: Unseen) -> Iterator[_Row]:
    yield from _lines(f"findings cannot see {figures.unseen_text(unseen)}", _YELLOW)
    *more, last = _wrapped(unseen.command or "", WIDTH - 6)
    # A shell joins lines that end in a backslash
    typed = [*(f"{line} \\" for line in more), last]
    yield from (_Row(text=f"   {line}", style=_DIM) for line in typed if line)


def _notices(summary: Summary, most: int, lines: int) -> Iterator[_Row]:
    """The first ones, each in so many lines; the last line says how many there are beyond."""
    more = len(summary.notices) - most
    for notice in summary.notices[:most]:
        yield from _lines(notice.text, _YELLOW, first=" ! ", lines=lines)
    if more > 0:
        yield _Row(text=f" ! {counted(more, 'more note')} in the sheet about, and under warnings in report.json")


def _wrapped(text: str, width: int, lines: int = 3, rest: int | None = None) -> list[str]:
    """At most ``lines`` lines, the last one clipped, those after the first ``rest`` wide; numbers keep their units."""
    text = _BEFORE_UNIT.sub(_HARD_SPACE, _SPACES.sub(" ", terminal_text(text)).strip(" "))
    wrapped: list[str] = []
    while display_width(text) > width and len(wrapped) < lines - 1:
        head = clipped(text, width + 1).removesuffix("…")
        cut = head.rfind(" ") if " " in head else len(head)
        wrapped.append(text[:cut])
        text, width = text[cut:].lstrip(" "), rest or width
    return [line.replace(_HARD_SPACE, " ") for line in (*wrapped, clipped(text, width))]
