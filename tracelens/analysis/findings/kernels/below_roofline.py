"""Calls that are slower than their roofline: what the rules on them share."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np

from tracelens.analysis.attribution.event_category import COPY
from tracelens.analysis.findings.candidate import Candidate, Ints
from tracelens.analysis.findings.observed import MIN_GAIN, Observed
from tracelens.analysis.findings.wording import counted, duration, percent, shortened
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.verdict.summary import Said
from tracelens.analysis.work.limits import LAUNCH, SHORT_KERNEL_US
from tracelens.lazy.records import dataclass
from tracelens.units import NS_PER_US

ATTENTION, COMPUTE, OTHERWISE = "attention", "compute", "memory"
#: Share of the roofline from which a call is as good as it gets.
_NEAR = 0.95
#: In shapes, a number of rows that differs from call to call.
_ANY = "*"
#: Kernels at a time from which that is said.
_TOGETHER = 1.05
#: Lines of one kind.
_MOST = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Calls:
    """Calls of one op whose shapes differ at most in their number of rows. ``at``: rows of ``Observed.rows``, the one
    with most to gain first, of ``sizes`` different numbers; times are of all of them.
    """

    name: str
    bound: str
    shapes: str
    sizes: int
    at: Ints
    count: int
    kernel_us: float
    roofline_us: float


def below_roofline(seen: Observed, kind: str) -> Iterator[Candidate]:
    """A candidate per op and shapes, of any number of rows; ``kind``: that it is attention, else what bounds it."""
    per_call = seen.column("kernel_us_mean")
    # Kernels of no time have nothing to gain
    achievable, least = (
        np.divide(seen.column(key), per_call, out=np.ones(len(per_call)), where=per_call > 0)
        for key in ("_achievable_us", "roofline_us")
    )
    for calls in itertools.islice(_slow_calls(seen, kind), _MOST):
        events = seen.events_of(calls.at)
        row, example = seen.row_of_event[events], int(seen.column("example_row")[calls.at[0]])
        # What runs beside others of its kind has only a part of the device
        together = seen.at_a_time(events)
        beside = f" each, {together:.1f} at a time" if together > _TOGETHER else ""
        sizes = f" with {calls.sizes} sizes for {_ANY}" if calls.sizes > 1 else ""
        shown = shortened(calls.shapes) if calls.sizes > 1 else seen.shapes(example)
        yield Candidate(
            why=f"{calls.name} {shown}{sizes}, {counted(calls.count, 'call')}: {_distance(calls)}{beside}",
            claimed=seen.kernels(events, 1 - together * achievable[row], low=0.0, high=1 - together * least[row]),
            computed="kernel time above what the tile model says is achievable, at most that above the roofline",
            figures=(Said(what="calls", value=calls.count, unit="count"), *_distance_figures(calls)),
            evidence=seen.evidence(calls.at),
            op=calls.name,
            row=example,
            shapes=calls.shapes if calls.sizes > 1 else None,
        )


def _slow_calls(seen: Observed, kind: str) -> Iterator[_Calls]:
    """Those with enough to gain, the most first."""
    roofline_us = seen.column("roofline_us") * seen.column("operation_count")
    kernel_us, names, bounds = (seen.column(key) for key in ("kernel_us_sum", "name", "roofline_bound"))
    gains = np.where(np.isnan(seen.column("wire_mb").astype(np.float64)), kernel_us - roofline_us, np.nan)
    least = MIN_GAIN * seen.window_ns / NS_PER_US
    of_name: dict[str, float] = defaultdict(float)
    for name, gain in zip(names.tolist(), np.nan_to_num(gains).tolist(), strict=True):
        of_name[name] += max(gain, 0.0)
    alike: dict[tuple[str, str, str, Hashable], dict[int, int | None]] = defaultdict(dict)
    for index in np.flatnonzero(gains > 0).tolist():
        if of_name[names[index]] > least and _kind(seen, index) == kind:
            size, shapes, others = _pattern(seen, index)
            alike[names[index], bounds[index], shapes, others][index] = size
    found = []
    for (name, bound, shapes, _), size_of in alike.items():
        at = np.array(sorted(size_of, key=lambda row: -gains[row]))
        took, lowest = float(kernel_us[at].sum()), float(roofline_us[at].sum())
        if gains[at].sum() > least and lowest <= _NEAR * took:
            count, sizes = int(seen.column("operation_count")[at].sum()), len(set(size_of.values()))
            found.append(
                _Calls(
                    name=name, bound=bound, shapes=shapes, sizes=sizes, at=at, count=count, kernel_us=took,
                    roofline_us=lowest,
                )
            )  # fmt: skip
    yield from sorted(found, key=lambda calls: calls.roofline_us - calls.kernel_us)


def _pattern(seen: Observed, index: int) -> tuple[int | None, str, Hashable]:
    """(number of rows of a call, its shapes without that, what else tells it from calls of another kind).

    The rows are the first size of the first tensor, and of others: what batches, prompts and routers change.
    """
    called = seen.table.signature_of(int(seen.column("example_row")[index]))
    tensors = [shape for shape in called.shapes or () if shape and isinstance(shape[0], int)]
    rows = tensors[0][0] if tensors else None
    # As tuples are written
    patterns = ([_ANY if shape[0] == rows else str(shape[0]), *map(str, shape[1:])] for shape in tensors)
    shapes = ", ".join(f"({', '.join(sizes)}{',' * (len(sizes) == 1)})" for sizes in patterns)
    strides = tuple(tuple(_ANY if step == rows else step for step in slot) for slot in called.strides or ())
    return rows, shapes, (called.dtypes, strides, seen.column("compute_spec")[index])


def _kind(seen: Observed, index: int) -> str | None:
    """What decides the remedy: that a call is attention, or else what bounds it.

    None of what only moves data elsewhere, and of short kernels whose work takes less than their launches: no faster
    kernel helps there, only fewer of them.
    """
    category, bound = str(seen.column("category")[index]), seen.column("roofline_bound")[index]
    if category in COMMUNICATION or category == COPY:
        return None
    kernel_us = seen.column("kernel_us_mean")[index] / seen.column("kernels_per_call")[index]
    if bound == LAUNCH and kernel_us <= SHORT_KERNEL_US:
        return None
    if category.startswith(("SDPA", "InferenceAttention")):
        return ATTENTION
    return COMPUTE if bound == COMPUTE else OTHERWISE


def _distance(calls: _Calls) -> str:
    """How far calls are from their roofline."""
    if calls.bound == LAUNCH:
        each, floor = calls.kernel_us / calls.count, calls.roofline_us / calls.count
        return f"{duration(each)} each, {floor:.1f} µs is the launch floor"
    return f"{percent(calls.roofline_us / calls.kernel_us)} of the {calls.bound} roofline"


def _distance_figures(calls: _Calls) -> tuple[Said, ...]:
    if calls.bound == LAUNCH:
        each = ("kernel time of a call", calls.kernel_us), ("launch floor", calls.roofline_us)
        return tuple(Said(what=what, value=time_us / calls.count, unit="us") for what, time_us in each)
    return (Said(what="of the roofline", value=calls.roofline_us / calls.kernel_us, unit="share"),)
