"""Replay a trace's step with something different: a faster op, none at all, another device.

Every op gets its new time; streams, launches, events, synchronizations and the host follow. Without an option the step
comes out as recorded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import refuse_input
from tracelens.comparison.whatif import WhatIfOptions
from tracelens.files import option_fields
from tracelens.files.option_fields import arguments_of, option, options_of, output_option
from tracelens.files.safe_text import clipped, terminal_text, trace_name
from tracelens.files.say import emit, say
from tracelens.types.units import shown_change, shown_figure, shown_ms, shown_percent

if TYPE_CHECKING:
    from tracelens.comparison.whatif.what_if import EnergyChange, WhatIf

_ROWS, _CAUSES = 10, 4
#: Change of the step that shows as none.
_NONE = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfCommand(WhatIfOptions):
    """The options of ``what_if`` and those of the command alone."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    output: Path | None = output_option("write the trace of the changed step", metavar="FILE.json")
    format: str = option_fields.output_format("text")


configure = arguments_of(WhatIfCommand)


def run(args: argparse.Namespace) -> int:
    from tracelens.comparison.whatif.what_if import what_if

    if args.output is not None:
        refuse_input(args.output, [args.trace])
    found = what_if(args.trace, options_of(WhatIfOptions, args))
    if args.output is not None:
        found.write_trace(args.output)
    if args.format == "json":
        emit(json.dumps(found.document(), indent=2, allow_nan=False) + "\n")
        return 0
    for line in _lines(found):
        say(terminal_text(line))
    if args.output is not None:
        say(f" wrote {args.output}")
        if found.energy is not None and found.energy.after_j is not None:
            say(" ! a trace records no clock: a report on it counts joules at the device's own one and limit")
    return 0


#: Said in place of an interval of no width: others, mostly the host, are on the critical path.
_UNMOVED = "what kernels may be off by moves the step by less than 0.01 %"


def _interval(found: WhatIf) -> str:
    """Between which times the step is, in ms; in percent where these are the same in ms."""
    if not found.low_us < found.high_us:
        without = _UNMOVED if found.is_estimated else "this is an exact replay and has no error bar"
        return f"   {without}" if found.asked else ""
    low, high = shown_ms(found.low_us), shown_ms(found.high_us)
    if low != high:
        return f"   90 % interval: {low} to {high} ms"
    least, most = (round(100 * (us / found.after.step_us - 1), 2) for us in (found.low_us, found.high_us))
    return f"   90 % interval: {least:+.2f} to {most:+.2f} %" if least or most else f"   {_UNMOVED}"


def _unchanged(found: WhatIf) -> Iterator[str]:
    """What the step is made of where a change leaves it as long as it was."""
    before, after, path = found.before.step_us, found.after.step_us, found.after.bound_by
    if not found.asked or not path or abs(after - before) >= _NONE * before:
        return
    less_us = -sum(row.change_us for row in found.rows)
    kernels = f"kernels take {shown_ms(abs(less_us))} ms {'less' if less_us > 0 else 'more'}, which"
    longest = max(path, key=lambda kind: path[kind])
    yield (
        f" {kernels if less_us else 'what was asked'} leaves the critical path as long as it was; its largest part is "
        f"{longest}, {shown_ms(path[longest])} of {shown_ms(after)} ms"
    )


def _energy(found: EnergyChange) -> str:
    """Joules and watts before and after."""
    before, after, watts, limit_w = found.before_j, found.after_j, (found.before_w, found.after_w), found.limit_w
    if before is None or after is None or None in watts or limit_w is None:
        return f" energy unknown: {found.unknown}"
    low, high = (shown_figure(each or 0.0, 3) for each in (found.after_low_j, found.after_high_j))
    change = f"({shown_change(after / before - 1)})   {low} to {high} J"
    drawn = f"{watts[0]:,.0f} -> {watts[1]:,.0f} W of {limit_w:,.0f}"
    return f" energy {shown_figure(before, 3)} -> {shown_figure(after, 3)} J {change}   {drawn}"


def _lines(found: WhatIf) -> Iterator[str]:
    what = "step" if found.has_steps else "window"
    before, after = found.before.step_us, found.after.step_us
    change = f" ({shown_change(after / before - 1)})" if before else ""
    yield f" {trace_name(found.plan.subject.table.source)}"
    yield f" {what} {shown_ms(before)} -> {shown_ms(after)} ms{change}{_interval(found)}"
    yield from _unchanged(found)
    if found.energy is not None:
        yield _energy(found.energy)
    yield f" {shown_percent(max(1 - found.explained, 0))} of the trace is delays that the replay keeps as recorded"
    yield ""
    yield f" {'bound by (critical path)':<44}{'before ms':>12}{'after ms':>12}"
    kinds = {**found.after.bound_by, **found.before.bound_by}
    ranked = sorted(kinds, key=lambda kind: (-found.after.bound_by.get(kind, 0.0), kind))
    for kind in ranked[: 2 * _CAUSES]:
        old, new = found.before.bound_by.get(kind, 0.0), found.after.bound_by.get(kind, 0.0)
        yield f" {kind:<44}{shown_ms(old):>12}{shown_ms(new):>12}"
    yield ""
    rows = [row for row in found.rows if row.change_us]
    if rows:
        yield f" {'op, kernel time':<32}{'calls':>8}{'before ms':>12}{'after ms':>12}{'change ms':>12}"
    else:
        yield " the kernels of every op take as long as recorded"
    for row in rows[:_ROWS]:
        times = f"{shown_ms(row.before_us):>12}{shown_ms(row.after_us):>12}{shown_ms(row.change_us):>12}"
        yield f" {clipped(row.name, 31):<32}{row.calls:>8.6g}{times}"
    if len(rows) > _ROWS:
        yield f" {len(rows) - _ROWS} more rows in --format json"
    for note in found.plan.notes:
        yield f" ! {note}"
