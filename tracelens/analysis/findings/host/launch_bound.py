"""The host launches more slowly than the GPU runs: what it costs between launches is idle time of one cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.host_time import HOST_WORK, LAUNCH_BOUND
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.host.before_first_launch import before_first_launch
from tracelens.analysis.findings.host_bound import drained
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Ints, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.idle_time import LATENCY
from tracelens.analysis.reading.captured_graphs import graph_launches

_LARGER_GRAPHS = "fewer and larger graphs (fewer graph breaks, less copying of inputs before a replay), a larger batch"
_WITHOUT_TORCH = "CUDA or HIP graphs (in XLA: command buffers), fused kernels, a larger batch"
#: Python between two launches, with the profiler on; what takes longer is work of its own.
_BETWEEN_LAUNCHES_NS = 100_000
#: Share that launches must have of it: else the Python is the cause, not the launches.
_LEAST_LAUNCHES = 0.1
#: Share of the window from which a trace is called CPU-bound.
_CPU_BOUND = 0.25


@finding(
    "idle: launch-bound",
    Advice(
        sees="The GPU's queue is empty while the host launches: kernels are shorter than their launches.",
        costs="Every launch costs the host some microseconds, in eager mode tens with dispatch and Python.",
        remedy="CUDA or HIP graphs, torch.compile(mode='reduce-overhead'), fused kernels, a larger batch",
        wrong_when="The profiler itself slows the host down: compare the step time without it.",
        references=("https://pytorch.org/blog/accelerating-pytorch-with-cuda-graphs/",),
    ),
)
def launch_bound(seen: Observed) -> Iterator[Candidate]:
    """Idle time in launches, in the Python between them, and until what was launched begins."""
    length = seen.idle_ns
    others = seen.once(drained) | seen.once(before_first_launch)
    launches, between = seen.idle_of(LAUNCH_BOUND), seen.idle_of(HOST_WORK) & (length < _BETWEEN_LAUNCHES_NS)
    parts = (launches | between | seen.idle_of(LATENCY)) & ~others
    if length[launches & ~others].sum() < _LEAST_LAUNCHES * length[parts].sum():
        parts &= ~between
    for candidate in idle_of_cause(seen, LAUNCH_BOUND, parts):
        why = candidate.why
        if float(candidate.figures[0].value) >= _CPU_BOUND:
            slowed = "; recording stacks slows the host" if seen.table.has_stacks else ""
            why = f"CPU-bound: {why}{slowed}"
        yield replace(candidate, why=why, remedy=_remedy(seen, np.where(parts, length, 0)))


def _remedy(seen: Observed, idle_ns: Ints) -> str | None:
    """Instead of the rule's: where most of this time of each part is before launches of graphs, or without PyTorch."""
    before_graphs = np.isin(seen.idle.row, graph_launches(seen.table))
    if 2 * idle_ns[before_graphs].sum() > idle_ns.sum():
        return _LARGER_GRAPHS
    return None if seen.is_torch else _WITHOUT_TORCH
