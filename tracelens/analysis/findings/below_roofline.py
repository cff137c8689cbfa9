"""Findings about kernels: attention, compute-bound and memory-bound calls below their roofline, and kernels that are
too short.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator

import numpy as np

from tracelens.analysis.attribution.calls import COPY, LAUNCH, SHORT_KERNEL_US
from tracelens.analysis.findings.rule import MIN_GAIN, Advice, Candidate, Observed, finding
from tracelens.analysis.intervals import Ints
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.verdict.summary import Said, counted, duration, percent, shortened
from tracelens.lazy.records import dataclass
from tracelens.units import NS_PER_US

ATTENTION, COMPUTE, OTHERWISE = "attention", "compute", "memory"
#: Share of the roofline from which a call is as good as it gets.
_NEAR_ROOFLINE = 0.95
#: In shapes, a number of rows that differs from call to call.
_ANY_ROWS = "*"
#: What to try of matrix products that read their operands too slowly.
_FEW_ROWS = (
    "a kernel tuned for these shapes (split-K, max-autotune, the engine's tuned configs), more rows per call, narrower "
    "weights"
)
#: Kernels at a time from which that is said.
_TOGETHER = 1.05
#: Lines of one kind, as many as a report has at most, and rows of the sheet that prove one.
_MOST, _MOST_ROWS = 10, 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Alike:
    """Calls of one op that differ at most in their number of rows: ``sizes`` different ones.

    ``bound``: by which roof; ``at``: rows of ``Observed.rows``, the one with most to gain first; times are of all calls
    of them.
    """

    bound: str
    shapes: str
    sizes: int
    at: Ints
    kernel_us: float
    roofline_us: float

    @property
    def above_us(self) -> float:
        return self.kernel_us - self.roofline_us


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Calls:
    """All calls of one op that are slower than their roofline, those of the ``kinds`` with most to gain first."""

    name: str
    count: int
    kinds: tuple[_Alike, ...]

    @property
    def kernel_us(self) -> float:
        return sum(kind.kernel_us for kind in self.kinds)

    @property
    def roofline_us(self) -> float:
        return sum(kind.roofline_us for kind in self.kinds)

    @property
    def bounds(self) -> list[str]:
        return list(dict.fromkeys(kind.bound for kind in self.kinds))

    @property
    def differ_in(self) -> str:
        """What tells the kinds apart: shapes, or types and strides too."""
        return "shapes" if len({kind.shapes for kind in self.kinds}) == len(self.kinds) else "signatures"

    @property
    def at(self) -> Ints:
        """Rows of ``Observed.rows``: one of each kind, then the others."""
        return np.concatenate([[kind.at[0] for kind in self.kinds], *(kind.at[1:] for kind in self.kinds)])


def below_roofline(seen: Observed, kind: str) -> Iterator[Candidate]:
    """A candidate per op, whatever the shapes of its calls; ``kind``: that it is attention, else what bounds it."""
    per_call = seen.column("kernel_us_mean")
    # Kernels of no time have nothing to gain
    achievable, least = (
        np.divide(seen.column(key), per_call, out=np.ones(len(per_call)), where=per_call > 0)
        for key in ("_achievable_us", "roofline_us")
    )
    for calls in itertools.islice(_slow_calls(seen, kind), _MOST):
        events = seen.events_of(calls.at)
        row = seen.row_of_event[events]
        # What runs beside others of its kind has only a part of the device
        together = seen.at_a_time(events)
        yield Candidate(
            why=_sentence(seen, calls, f" each, {together:.1f} at a time" if together > _TOGETHER else ""),
            claimed=seen.kernels(events, 1 - together * achievable[row], low=0.0, high=1 - together * least[row]),
            computed="kernel time above what the tile model says is achievable, at most that above the roofline",
            figures=(
                Said(what="calls", value=calls.count, unit="count"),
                *([Said(what=calls.differ_in, value=len(calls.kinds), unit="count")] if len(calls.kinds) > 1 else []),
                *_distance_figures(calls),
            ),
            evidence=seen.evidence(calls.at, most=_MOST_ROWS),
            remedy=_FEW_ROWS if kind == OTHERWISE and _multiplies(seen, calls.at[0]) else None,
            op=calls.name,
            row=seen.example_of(calls.at[0]),
            shapes=shortened("; ".join(_shapes(seen, each, 200) for each in calls.kinds), 200),
        )


def _sentence(seen: Observed, calls: _Calls, beside: str) -> str:
    """Which calls, how far they are from their roofline, and of several kinds the one with most to gain."""
    most = calls.kinds[0]
    shown, count, distance = _shapes(seen, most, 40), counted(calls.count, "call"), _distance(calls) + beside
    if len(calls.kinds) > 1:
        return f"{calls.name}, {count} of {len(calls.kinds)} {calls.differ_in}: {distance}; most to gain in {shown}"
    sizes = f" with {most.sizes} sizes for {_ANY_ROWS}" if most.sizes > 1 else ""
    return f"{calls.name} {shown}{sizes}, {count}: {distance}"


def _shapes(seen: Observed, kind: _Alike, most: int) -> str:
    """Those of one call, as far as they fit, where its kind has no other sizes."""
    return shortened(kind.shapes, most) if kind.sizes > 1 else seen.shapes(seen.example_of(kind.at[0]), most)


def _slow_calls(seen: Observed, kind: str) -> Iterator[_Calls]:
    """Those with enough to gain, the most first. What is near its roofline does not hide what is far from it."""
    roofline_us = seen.column("roofline_us") * seen.column("operation_count")
    kernel_us, names = seen.column("kernel_us_sum"), seen.column("name")
    gains = np.where(np.isnan(seen.column("wire_mb").astype(np.float64)), kernel_us - roofline_us, np.nan)
    least = MIN_GAIN * seen.window_ns / NS_PER_US
    of_name: dict[str, float] = defaultdict(float)
    for name, gain in zip(names.tolist(), np.nan_to_num(gains).tolist(), strict=True):
        of_name[name] += max(gain, 0.0)
    alike: dict[str, dict[tuple[str, str, Hashable], dict[int, int | None]]] = defaultdict(lambda: defaultdict(dict))
    for index in np.flatnonzero(gains > 0).tolist():
        if of_name[names[index]] > least and _kind(seen, index) == kind:
            size, shapes, others = _pattern(seen, index)
            alike[names[index]][_roof(seen, index), shapes, others][index] = size
    found = []
    for name, groups in alike.items():
        kinds = []
        for (bound, shapes, _), size_of in groups.items():
            at = np.array(sorted(size_of, key=lambda row: -gains[row]))
            took, lowest = float(kernel_us[at].sum()), float(roofline_us[at].sum())
            if lowest <= _NEAR_ROOFLINE * took:
                kinds.append(
                    _Alike(
                        bound=bound, shapes=shapes, sizes=len(set(size_of.values())), at=at, kernel_us=took,
                        roofline_us=lowest,
                    )
                )  # fmt: skip
        if sum(each.above_us for each in kinds) > least:
            kinds.sort(key=lambda each: (-each.above_us, each.shapes))
            count = sum(int(seen.column("operation_count")[each.at].sum()) for each in kinds)
            found.append(_Calls(name=name, count=count, kinds=tuple(kinds)))
    yield from sorted(found, key=lambda calls: calls.roofline_us - calls.kernel_us)


def _pattern(seen: Observed, index: int) -> tuple[int | None, str, Hashable]:
    """(number of rows of a call, its shapes without that, what else tells it from calls of another kind).

    The rows are the first size of the first tensor, and of others: what batches, prompts and routers change.
    """
    called = seen.table.signature_of(int(seen.column("example_row")[index]))
    tensors = [shape for shape in called.shapes or () if shape and isinstance(shape[0], int)]
    rows = tensors[0][0] if tensors else None
    # As tuples are written
    patterns = ([_ANY_ROWS if shape[0] == rows else str(shape[0]), *map(str, shape[1:])] for shape in tensors)
    shapes = ", ".join(f"({', '.join(sizes)}{',' * (len(sizes) == 1)})" for sizes in patterns)
    strides = tuple(tuple(_ANY_ROWS if step == rows else step for step in slot) for slot in called.strides or ())
    return rows, shapes, (called.dtypes, strides, seen.column("compute_spec")[index])


def _roof(seen: Observed, index: int) -> str:
    """What bounds a call, of arithmetic with the type whose rate that is."""
    bound = str(seen.column("roofline_bound")[index])
    if bound != COMPUTE:
        return bound
    engine, _, dtype = str(seen.column("compute_spec")[index]).partition("_")
    return " ".join([dtype, *([] if engine == "matrix" else [engine]), bound])


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
    if _multiplies(seen, index) and category.startswith(("SDPA", "InferenceAttention")):
        return ATTENTION
    return COMPUTE if bound == COMPUTE else OTHERWISE


def _multiplies(seen: Observed, index: int) -> bool:
    return str(seen.column("compute_spec")[index]).startswith("matrix_")


def _distance(calls: _Calls) -> str:
    """How far calls are from their roofline."""
    if calls.bounds == [LAUNCH]:
        each, floor = calls.kernel_us / calls.count, calls.roofline_us / calls.count
        return f"{duration(each)} each, {floor:.1f} µs is the launch floor"
    share = percent(calls.roofline_us / calls.kernel_us)
    return f"{share} of the {' or '.join(calls.bounds)} roofline"


def _distance_figures(calls: _Calls) -> tuple[Said, ...]:
    if calls.bounds == [LAUNCH]:
        each = ("kernel time of a call", calls.kernel_us), ("launch floor", calls.roofline_us)
        return tuple(Said(what=what, value=time_us / calls.count, unit="us") for what, time_us in each)
    return (Said(what="of the roofline", value=calls.roofline_us / calls.kernel_us, unit="share"),)


@finding(
    "op_below_roofline: attention",
    Advice(
        sees="Attention below its roofline.",
        costs="The kernel neither keeps the matrix units busy nor the memory.",
        remedy="another attention backend (FlashAttention, cuDNN, AITER, FlashInfer), or a head size its kernels "
        "prefer",
        is_general=True,
        wrong_when="Short sequences or a decode step: the kernel is then bound by its start or by reading the cache.",
        references=("Williams et al., Roofline, 2009, doi:10.1145/1498765.1498785",),
        command="tracelens report TRACE --backend tile",
    ),
)
def slow_attention(seen: Observed) -> Iterator[Candidate]:
    """Gain: kernel time above the roofline."""
    yield from below_roofline(seen, ATTENTION)


@finding(
    "op_below_roofline: compute",
    Advice(
        sees="Calls that compute below the peak rate of their precision.",
        costs="The matrix units wait: for operands, for a last wave of few blocks, or as the kernel's tiles do "
        "not fit.",
        remedy="another kernel (max-autotune, a tuned GEMM library), padded dims, larger M, or a narrower precision",
        is_general=True,
        wrong_when="The achievable time (--backend tile) is near the measured one: the peak is out of its reach.",
        references=("Williams et al., Roofline, 2009, doi:10.1145/1498765.1498785",),
        command="tracelens report TRACE --backend tile",
    ),
)
def slow_compute(seen: Observed) -> Iterator[Candidate]:
    """Gain: kernel time above the roofline."""
    yield from below_roofline(seen, COMPUTE)


@finding(
    "op_below_roofline: memory",
    Advice(
        sees="Calls that move their bytes below the HBM rate, or are bound by something else than arithmetic.",
        costs="The memory waits for the kernel: too few loads in flight, strided access, or too little work per "
        "launch.",
        remedy="fuse them with their neighbors (torch.compile), use contiguous inputs, or a fused kernel of the "
        "framework",
        is_general=True,
        wrong_when="They overlap with other work, which then bounds the step.",
        references=("Williams et al., Roofline, 2009, doi:10.1145/1498765.1498785",),
        command="tracelens report TRACE --backend tile",
    ),
)
def slow_memory(seen: Observed) -> Iterator[Candidate]:
    """Gain: kernel time above the roofline."""
    yield from below_roofline(seen, OTHERWISE)


#: How many there must be, and their share of the window.
_MANY_SHORT, _LEAST_SHORT_SHARE = 100, 0.02


@finding(
    "short_kernels",
    Advice(
        sees="Many kernels that take hardly longer than their launch.",
        costs="A kernel of a few microseconds spends them on starting and draining: the device's units hardly work.",
        remedy="torch.compile or other fused kernels, foreach or fused optimizers, a larger batch",
        is_general=True,
        wrong_when="They run beside longer kernels of another stream.",
    ),
)
def short_kernels(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    activity = seen.activity
    short = (activity.duration < SHORT_KERNEL_US * NS_PER_US) & ~activity.communication & ~activity.between_memories
    count, total_ns = int(short.sum()), int(activity.duration[short].sum())
    if count <= _MANY_SHORT or total_ns <= _LEAST_SHORT_SHARE * seen.window_ns:
        return
    yield Candidate(
        why=f"{count:,} kernels take under {SHORT_KERNEL_US:.0f} µs each, most of it to start and drain",
        claimed=seen.kernels(short, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
        figures=(
            Said(what="short kernels", value=count, unit="count"),
            Said(what="short: below", value=SHORT_KERNEL_US, unit="us"),
        ),
    )
