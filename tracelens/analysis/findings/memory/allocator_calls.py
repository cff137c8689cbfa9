"""The GPU is idle while the host allocates or frees memory."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import ALLOCATOR


@finding(
    "idle: allocator",
    Advice(
        sees="The GPU is idle while the host allocates or frees memory.",
        costs="Calls of cudaMalloc and cudaFree wait for the device, and each takes longer than many launches.",
        remedy="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, no empty_cache() in the loop, steady shapes",
        wrong_when="It is the first step, in which the allocator's pool grows.",
        is_general=True,
    ),
)
def allocator_calls(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause."""
    yield from idle_of_cause(seen, ALLOCATOR)
