"""The allocator asks the driver for memory although much of what it holds is free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tracelens.analysis.attribution.host_time import ALLOCATOR
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import size
from tracelens.analysis.verdict.summary import Said

#: How many times what is in use the allocator must hold, both at their peak.
_HELD = 1.25
#: What the allocator holds beyond what is in use without being fragmented: blocks are cut from segments of 20 MB.
_SEGMENTS_MB = 100.0


@finding(
    "memory_fragmentation",
    Advice(
        sees="The host allocates memory while the GPU is idle, and the allocator holds far more than is in use: what "
        "is free lies in blocks too small for what is asked for.",
        costs="Each request goes to the driver, where it waits for the device; in the end the memory does not suffice.",
        remedy="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or roundup_power2_divisions; steady shapes (buckets "
        "of lengths)",
        wrong_when="An earlier phase needed more than the recorded steps do, and its memory is only kept.",
        references=("https://pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage",),
    ),
)
def memory_fragmentation(seen: Observed) -> Iterator[Candidate]:
    """All idle time in calls of the allocator, where what it holds peaks far above what is in use."""
    memory = seen.context.frames.get("memory") if seen.idle_of(ALLOCATOR).any() else None
    if memory is None:
        return
    held, used = (memory.loc[memory["device"] != "cpu", key].max() for key in ("peak_reserved_mb", "peak_mb"))
    if not held > max(_HELD * used, used + _SEGMENTS_MB):
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
