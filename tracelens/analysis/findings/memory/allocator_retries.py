"""The caching allocator gives blocks back to the driver and asks for others at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.host_calls import named
from tracelens.analysis.attribution.host_time import ALLOCATOR
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted
from tracelens.analysis.verdict.summary import Said
from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.table import Kind

# What c10/cuda/CUDACachingAllocator.cpp calls, with and without expandable segments.
_FREES = lazy_pattern(r"^(?:cuda|hip)Free$|^(?:cu|hip)Mem(?:Free|Unmap|Release)(?:_v2)?$")
_ALLOCATES = lazy_pattern(r"^(?:cuda|hip)(?:Ext)?Malloc(?:WithFlags)?$|^(?:cu|hip)Mem(?:Alloc|Create|Map)(?:_v2)?$")
#: Longest time between giving back and asking again: the thread does nothing else in between.
_AT_ONCE_NS = 1_000_000


@finding(
    "allocator_retries",
    Advice(
        sees="Calls of cudaFree (hipFree) and at once cudaMalloc (hipMalloc): the allocator found no room, gave "
        "back what it had cached, and asked the driver anew.",
        costs="Each cudaFree waits for the device, and what was given back has to be asked for again.",
        remedy="leave the allocator room (smaller batch, checkpointing), no empty_cache() in the loop, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        wrong_when="It is the first step, or an out-of-memory that the program catches on purpose.",
        references=("https://pytorch.org/docs/stable/notes/cuda.html#memory-management",),
    ),
)
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
