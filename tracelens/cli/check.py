"""Show what a trace contains and lacks: events, shapes, links, device, coverage, routing fields; write nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.cli import add_extension
from tracelens.files.safe_text import terminal_text
from tracelens.files.say import say
from tracelens.types.units import shown_percent

if TYPE_CHECKING:
    from tracelens.analysis.verdict.health import Health
    from tracelens.analysis.verdict.summary import Coverage

_LABEL = 14


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", type=Path, help="trace of any profiler")
    add_extension(parser)
    parser.add_argument(
        "--device", metavar="NAME|FILE.toml", help="device of the trace; default: recognized from the trace"
    )


def run(args: argparse.Namespace) -> int:
    from tracelens.analysis.attribution.window import no_device_events
    from tracelens.analysis.loaded_trace import AnalysisOptions, load
    from tracelens.analysis.verdict.health import health
    from tracelens.extensions import NONE, load_extension
    from tracelens.hardware import HardwareSpec

    options = AnalysisOptions(
        device=HardwareSpec.load(args.device) if args.device else None,
        extensions=tuple(load_extension(spec) for spec in args.extension if spec != NONE),
        bundled=NONE not in args.extension,
    )
    trace = load(args.trace)
    state = health(trace, options)
    for line in _lines(state):
        say(terminal_text(line))
    if not state.device_events:
        raise no_device_events(trace.table)
    return 0


def _lines(state: Health) -> list[str]:
    rank = "" if state.rank is None else f", rank {state.rank}"
    ranks = "" if state.world_size is None else f" of {state.world_size}"
    width = max(len(found.name) for found in state.routing)
    faults = [f"invariant violated: {text}" for text in state.violations]
    if state.overlaps:
        faults.append(f"{state.overlaps:,} host events end after their caller; tracelens places them where they fit")
    return [
        f"{state.source}{rank}{ranks}: {state.events:,} events, {state.rows:,} of them complete",
        *(f"{label:<{_LABEL}}{text}" for label, text in _contents(state)),
        "routing fields",
        *(f"  {found.name:<{width}}  {found.found or 'not recorded'}" for found in state.routing),
        *(f"{'damage':<{_LABEL}}{note}" for note in state.damage),
        *(f"{'op tree':<{_LABEL}}{text}" for text in faults),
    ]


def _contents(state: Health) -> Iterator[tuple[str, str]]:
    """(label, text) of what the trace contains."""
    stem, steps = state.steps
    yield "events", _counts(state.categories[:8])
    yield "shapes", _shapes(state)
    yield "stacks", "yes" if state.stacks else f"no ({state.no_stacks})"
    yield "links", _links(state)
    yield "steps", f"{steps} named {stem}" if steps else f"none: {state.steps_advice}"
    yield "device", state.device_note or state.device or "not recognized"
    if state.coverage is not None:
        scope = ", of the whole file (a report covers its complete steps)" if steps else ""
        yield "coverage", _coverage(state.coverage) + scope
    for missing in state.lacks:
        yield "lacks", f"{missing.question}: {missing.because}"
    yield "extensions", ", ".join(state.extensions) or "none needed"
    if state.token_exchanges:
        yield "exchanges", _counts(state.token_exchanges)


def _counts(named: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in named)


def _shapes(state: Health) -> str:
    if state.with_shapes is None:
        return "no CPU ops"
    if state.with_shapes == 0:
        return f"no ({state.no_shapes}), so reports have times and categories but no perf models"
    return f"in {shown_percent(state.with_shapes)} of {state.cpu_ops:,} CPU ops"


def _links(state: Health) -> str:
    if not state.device_events:
        return "no device events"
    total = state.device_events
    linked = sum(count for _, count in state.linked)
    ways = ", ".join(f"{count:,} by {way}" for way, count in state.linked)
    share = f"{shown_percent(state.unlinked_time or 0)} of device time"
    unlinked = f"; {state.unlinked:,} unlinked ({share})" if state.unlinked else ""
    return f"{shown_percent(linked / total)} of {total:,} device events{f' ({ways})' if ways else ''}{unlinked}"


def _coverage(coverage: Coverage) -> str:
    shares = (
        ("perf model", coverage.perf_model),
        ("category", coverage.categorised),
        ("communication", coverage.communication),
    )
    return (
        ", ".join(f"{name} {shown_percent(share)}" for name, share in shares if share is not None) + " of device time"
    )
