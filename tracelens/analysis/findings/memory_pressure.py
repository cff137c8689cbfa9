"""Findings about device memory: allocator retries, fragmentation, and recomputation where memory is free."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.host_scopes import PHASES, RECOMPUTE
from tracelens.analysis.attribution.host_time import ALLOCATOR, named
from tracelens.analysis.findings.idle_rules import idle_of_cause
from tracelens.analysis.findings.rule import Candidate, Observed, built_in
from tracelens.analysis.verdict.summary import Said, counted, size
from tracelens.trace.table import Kind
from tracelens.units import BYTES_PER_GIB, BYTES_PER_MB, NS_PER_US

# What c10/cuda/CUDACachingAllocator.cpp calls, with and without expandable segments.
_FREES = re.compile(r"^(?:cuda|hip)Free$|^(?:cu|hip)Mem(?:Free|Unmap|Release)(?:_v2)?$")
_ALLOCATES = re.compile(r"^(?:cuda|hip)(?:Ext)?Malloc(?:WithFlags)?$|^(?:cu|hip)Mem(?:Alloc|Create|Map)(?:_v2)?$")
#: Longest time between giving back and asking again: the thread does nothing else in between.
_AT_ONCE_NS = 1_000_000


@built_in("allocator_retries")
def allocator_retries(seen: Observed) -> Iterator[Candidate]:
    """All idle time in calls of the allocator, where it gives back and asks again."""
    if retries := _retries(seen):
        for candidate in idle_of_cause(seen, ALLOCATOR):
            yield replace(
                candidate,
                why=f"{candidate.why}; memory is given back and asked for again {counted(retries, 'time')}",
                figures=(*candidate.figures, Said(what="retries", value=retries, unit="count")),
            )


def _retries(seen: Observed) -> int:
    """How often a thread frees and then allocates at once in the window."""
    table = seen.context.recorded.table
    calls = (table.kind == Kind.RUNTIME) | (table.kind == Kind.DRIVER)
    frees = named(table, _FREES, calls)
    rows = np.flatnonzero(frees | named(table, _ALLOCATES, calls))
    rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
    before, after = rows[:-1], rows[1:]
    waited = table.start_ns[after] - table.ends_ns(before)
    first, last = seen.context.timeline.window
    inside = (table.start_ns[after] >= first) & (table.start_ns[after] < last)
    again = frees[before] & ~frees[after] & (table.lane[before] == table.lane[after]) & (waited <= _AT_ONCE_NS)
    return int((again & inside).sum())


#: How many times what is in use the allocator must hold, both at their peak.
_TIMES_IN_USE = 1.25
#: What the allocator holds beyond what is in use without being fragmented: blocks are cut from segments of 20 MB.
_SEGMENTS_MB = 100.0


@built_in("memory_fragmentation")
def memory_fragmentation(seen: Observed) -> Iterator[Candidate]:
    """All idle time in calls of the allocator, where what it holds peaks far above what is in use."""
    memory = seen.context.frames.get("memory") if seen.idle_of(ALLOCATOR).any() else None
    if memory is None:
        return
    held, used = (memory.loc[memory["device"] != "cpu", key].max() for key in ("peak_reserved_mb", "peak_mb"))
    if not held > max(_TIMES_IN_USE * used, used + _SEGMENTS_MB):
        return
    for candidate in idle_of_cause(seen, ALLOCATOR):
        yield replace(
            candidate,
            why=f"{candidate.why}; the allocator holds {size(held)}, of which at most {size(used)} are in use",
            figures=(
                *candidate.figures,
                Said(what="held by the allocator", value=float(held), unit="MB"),
                Said(what="in use at the peak", value=float(used), unit="MB"),
            ),
        )


#: Share of the device's memory that must be free at the peak.
_FREE_SHARE = 0.25


@built_in("recomputation")
def recomputation(seen: Observed) -> Iterator[Candidate]:
    """Gain: the repeated ops whose results fit into the free memory: at most half of the bytes that they move."""
    phases, memory, device = seen.context.attribution.phases, seen.context.frames.get("memory"), seen.device
    if not phases.has_recompute or memory is None or device is None or device.hbm is None:
        return
    peaks = memory.loc[memory["device"] != "cpu", ["peak_mb", "peak_reserved_mb"]].max(axis=1)
    if device.hbm.nominal_gib is None or peaks.empty:
        return
    capacity_mb, peak_mb = device.hbm.nominal_gib * BYTES_PER_GIB / BYTES_PER_MB, float(peaks.max())
    free_mb = capacity_mb - peak_mb
    repeated = seen.context.activity.rows[phases.phase == PHASES.index(RECOMPUTE)]
    events = np.flatnonzero(np.isin(seen.activity.rows, repeated))
    if free_mb < _FREE_SHARE * capacity_mb or not len(events):
        return
    moved = np.append(np.nan_to_num(seen.column("hbm_mb") / seen.column("kernels_per_call")), 0.0)
    rows = seen.row_of_event[events]
    kept_mb = float(moved[rows].sum()) / 2 / seen.steps
    time_us = float(seen.activity.duration[events].sum()) / NS_PER_US
    ranked = np.argsort(-np.bincount(rows[rows >= 0]), kind="stable")[:5]
    yield Candidate(
        why=f"recomputation takes {seen.share_text(time_us)} to run forward ops again, while {size(free_mb)} of "
        f"{size(capacity_mb)} are free at the peak",
        claimed=seen.kernels(events, min(1.0, free_mb / kept_mb) if kept_mb else 1.0, low=0.0, spares_launches=True),
        computed="the time of the repeated ops, as far as half of the bytes that they move fits into the free memory",
        certainty="low",
        figures=(
            seen.gpu_share(time_us),
            Said(what="free at the peak", value=free_mb, unit="MB"),
            Said(what="memory of the device", value=capacity_mb, unit="MB"),
        ),
        evidence=seen.evidence(ranked),
        row=seen.example_of(ranked[0]) if len(ranked) else None,
    )
