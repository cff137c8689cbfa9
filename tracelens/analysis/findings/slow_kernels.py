"""Findings about kernels: below their roofline, too short, or passes over memory that fusion spares."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.calls import COPY, LAUNCH, SHORT_KERNEL_US
from tracelens.analysis.findings.rule import MIN_GAIN, Candidate, Observed, built_in, candidate_of_calls, otherwise
from tracelens.analysis.intervals import Ints
from tracelens.analysis.reading.catalog import COMMUNICATION
from tracelens.analysis.sheets.device_memory import KERNEL_COUNTERS_TITLE
from tracelens.analysis.verdict.summary import Said
from tracelens.trace.table import Kind
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature
from tracelens.types.units import NS_PER_US, counted, duration, percent, shortened, size, takes

ATTENTION, COMPUTE, OTHERWISE = "attention", "compute", "memory"
#: Share of the roofline from which a call is as good as it gets.
_NEAR_ROOFLINE = 0.95
#: In shapes, a number of rows that differs from call to call.
_ANY_ROWS = "*"
#: Kernels at a time from which that is said.
_TOGETHER = 1.05
#: Lines of one kind, as many as a report has at most, and rows of the sheet that prove one.
_MOST, _MOST_ROWS = 10, 50


class _Alike(Record, frozen=True, kw_only=True, eq=False):
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


class _Calls:
    """All calls of one op that are slower than their roofline, those of the ``kinds`` with most to gain first.

    ``differ_in``: what tells the kinds apart, shapes or types and strides too. ``at``: rows of ``Observed.rows``, one
    of each kind, then the others.
    """

    def __init__(self, name: str, count: int, kinds: Sequence[_Alike]) -> None:
        self.name, self.count, self.kinds = name, count, kinds
        self.kernel_us = sum(kind.kernel_us for kind in kinds)
        self.roofline_us = sum(kind.roofline_us for kind in kinds)
        self.bounds = list(dict.fromkeys(kind.bound for kind in kinds))
        self.differ_in = "shapes" if len({kind.shapes for kind in kinds}) == len(kinds) else "signatures"
        self.at: Ints = np.concatenate([[kind.at[0] for kind in kinds], *(kind.at[1:] for kind in kinds)])


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
        # Kernels that run at the same time share the device
        together = seen.at_a_time(events)
        distance, distance_figures = _distance(calls)
        at_once = f", {together:.1f} at a time" if together > _TOGETHER else ""
        yield Candidate(
            why=_sentence(seen, calls, distance + at_once) + _counters_say(seen, calls.kinds[0].at),
            claimed=seen.kernels(events, 1 - together * achievable[row], low=0.0, high=1 - together * least[row]),
            computed="kernel time above what the tile model says is achievable, at most the time above the roofline",
            figures=(
                Said(what="calls", value=calls.count, unit="count"),
                *([Said(what=calls.differ_in, value=len(calls.kinds), unit="count")] if len(calls.kinds) > 1 else []),
                *distance_figures,
            ),
            evidence=seen.evidence(calls.at, most=_MOST_ROWS),
            remedy=otherwise(
                f"op_below_roofline: {kind}", "matrix product" if _multiplies(seen, calls.at[0]) else None
            ),
            op=calls.name,
            row=seen.example_of(calls.at[0]),
            shapes=shortened("; ".join(_shapes(seen, each, 200) for each in calls.kinds), 200),
        )


def _sentence(seen: Observed, calls: _Calls, distance: str) -> str:
    """Which calls, how far they are from their roofline, and of several kinds the one with most to gain."""
    most = calls.kinds[0]
    shown, count = _shapes(seen, most, 40), f"{counted(calls.count, 'call')} of {calls.name}"
    if len(calls.kinds) > 1:
        return f"{count} in {len(calls.kinds)} {calls.differ_in} {distance}; most of the gain is in {shown}"
    sizes = f" with {most.sizes} sizes for {_ANY_ROWS}" if most.sizes > 1 else ""
    return f"{count} {shown}{sizes} {distance}"


def _counters_say(seen: Observed, rows: Ints) -> str:
    """Why the slowest kernel of these rows is below its roofline, where counters of --counters explain it."""
    frame = seen.context.frames.get(KERNEL_COUNTERS_TITLE)
    if frame is None:
        return ""
    explained = frame[frame["_row"].isin(rows) & frame["why"].notna()]
    return f"; counters: {explained['why'].iloc[0]}" if len(explained) else ""


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
            found.append(_Calls(name, count, kinds))
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
    """What bounds a call; for arithmetic with the type that it computes in."""
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


def _distance(calls: _Calls) -> tuple[str, tuple[Said, ...]]:
    """How far calls are from their roofline, as verb and object, and the numbers of that."""
    if calls.bounds == [LAUNCH]:
        each, floor = calls.kernel_us / calls.count, calls.roofline_us / calls.count
        figures = (
            Said(what="kernel time of a call", value=each, unit="us"),
            Said(what="launch floor", value=floor, unit="us"),
        )
        return f"{takes(calls.count)} {duration(each)} each, above a launch floor of {floor:.1f} µs", figures
    share = calls.roofline_us / calls.kernel_us
    text = f"{takes(calls.count, 'reach')} {percent(share)} of the {' or '.join(calls.bounds)} roofline"
    return text, (Said(what="of the roofline", value=share, unit="share"),)


SLOW = tuple(
    built_in(f"op_below_roofline: {kind}")(partial(below_roofline, kind=kind))
    for kind in (ATTENTION, COMPUTE, OTHERWISE)
)

#: How many there must be, and their share of the window.
_MANY_SHORT, _LEAST_SHORT_SHARE = 100, 0.02


@built_in("short_kernels")
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
        figures=(
            Said(what="short kernels", value=count, unit="count"),
            Said(what="short: below", value=SHORT_KERNEL_US, unit="us"),
        ),
    )


_OPTIMIZER_STEP = "Optimizer.step#"


def within_optimizer(seen: Observed) -> npt.NDArray[np.int64]:
    """Device events that were launched in an annotated Optimizer.step."""
    table, activity = seen.table, seen.activity
    codes = [code for code, name in enumerate(table.names) if name.startswith(_OPTIMIZER_STEP)]
    steps = np.flatnonzero(table.is_named(codes) & (table.kind == Kind.USER_ANNOTATION))
    linked = np.flatnonzero(activity.op >= 0)
    if not len(steps) or not len(linked):
        return np.zeros(0, np.int64)
    steps = steps[np.argsort(table.start_ns[steps], kind="stable")]
    op = activity.op[linked]
    at = np.searchsorted(table.start_ns[steps], table.start_ns[op], side="right") - 1
    around = steps[np.maximum(at, 0)]
    inside = (at >= 0) & (table.start_ns[op] < table.ends_ns(around)) & (table.lane[op] == table.lane[around])
    return np.compress(inside, linked).astype(np.int64)


_ELEMENTWISE = "elementwise"


@built_in("unfused_elementwise")
def unfused_elementwise(seen: Observed) -> Iterator[Candidate]:
    """Gain: fused, a chain takes at least as long as its longest kernel, and as long as today where what is between its
    kernels must be written anyway.
    """
    activity = seen.activity
    order = np.lexsort((activity.start, activity.stream))
    elementwise = seen.category.are(_ELEMENTWISE) & ~activity.memcpy
    # Those work on one parameter after the other, and have a rule of their own
    elementwise[seen.once(within_optimizer)] = False
    mine = elementwise[order]
    stream = activity.stream[order]
    linked = mine[1:] & mine[:-1] & (stream[1:] == stream[:-1])
    chain = np.cumsum(np.concatenate(([True], ~linked)))[: len(order)] - 1
    duration = activity.duration[order]
    longest = np.zeros(len(order), np.int64)
    np.maximum.at(longest, chain, duration)
    total = np.bincount(chain, duration, minlength=len(order))
    members = np.bincount(chain, minlength=len(order))[chain] > 1
    if not members.any():
        return
    kept = (longest / np.maximum(total, 1))[chain[members]]
    time_us = float(duration[members].sum()) / NS_PER_US
    events, rows = order[members], seen.row_of_event[order[members]]
    ranked = np.argsort(-np.bincount(rows[rows >= 0], duration[members][rows >= 0]), kind="stable")[:5]
    mb = np.append(np.nan_to_num(seen.column("hbm_mb") / seen.column("kernels_per_call")), 0.0)[rows]
    saved_mb = float((mb * (1 - kept)).sum()) / seen.steps
    # Of kernels without recorded shapes the bytes are not known
    saved = f"; fusing them saves about {size(saved_mb)} of HBM traffic" if saved_mb > 0 else ""
    yield Candidate(
        why=f"{counted(int(members.sum()), 'unfused elementwise kernel')} take {seen.share_text(time_us)}{saved}",
        claimed=seen.kernels(events, 1 - kept, low=0.0, spares_launches=True),
        figures=(
            Said(what="kernels in chains", value=int(members.sum()), unit="count"),
            seen.gpu_share(time_us),
            *((Said(what="saved", value=saved_mb, unit="MB"),) if saved else ()),
        ),
        evidence=seen.evidence(ranked),
        row=seen.example_of(ranked[0]) if len(ranked) else None,
    )


_FUSED_OPTIMIZER = "_fused_"
#: A fused Adam reads four values and writes three per parameter, the longest of its passes (addcdiv) reads three and
#: writes one.
_FUSED_OVER_LONGEST = 7 / 4


@built_in("optimizer_passes")
def optimizer_passes(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time less that of one pass over gradients, parameters and moments."""
    events = seen.once(within_optimizer)
    name = seen.table.name[seen.activity.op[events]] if len(events) else np.zeros(0, np.int64)
    codes, which = np.unique(name, return_inverse=True)
    if len(codes) < 2 or any(_FUSED_OPTIMIZER in seen.table.names[code] for code in codes.tolist()):
        return
    took_us = seen.activity.duration_us(events)
    total_us, longest_us = float(took_us.sum()), float(np.bincount(which, took_us).max())
    yield Candidate(
        why=f"{counted(len(events), 'kernel')} of {counted(len(codes), 'op')} in Optimizer.step take "
        f"{seen.share_text(total_us)} because the optimizer is not fused",
        claimed=seen.kernels(events, max(0.0, 1 - _FUSED_OVER_LONGEST * longest_us / total_us), spares_launches=True),
        figures=(
            Said(what="kernels", value=len(events), unit="count"),
            Said(what="ops", value=len(codes), unit="count"),
            seen.gpu_share(total_us),
        ),
        evidence=seen.evidence_of(events),
        row=int(seen.activity.op[events[took_us.argmax()]]),
    )


#: Classes from which the loss is that of a language model.
_LARGE_VOCABULARY = 8192
_PARTS = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_forward", "aten::nll_loss_backward",
          "aten::log_softmax", "aten::nll_loss", "aten::nll_loss_nd", "aten::cross_entropy_loss")  # fmt: skip


@built_in("unfused_loss")
def unfused_loss(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time, less that of reading the logits and writing their gradient once."""
    rows = seen.rows_where(seen.named(*_PARTS), _is_over_a_large_vocabulary)
    if seen.hbm_tb_s is None or rows.empty:
        return
    # One read and one write of the logits: what the forward softmax alone moves
    once_us = float((rows["hbm_mb"] / seen.hbm_tb_s * rows["operation_count"]).max())
    total_us = float(rows["kernel_us_sum"].sum())
    if not once_us > 0:
        return
    rest = Candidate(
        why=" because the cross-entropy over a large vocabulary is not fused",
        claimed=seen.calls(rows, 1 - min(once_us, total_us) / total_us, spares_launches=True),
    )
    yield from candidate_of_calls(seen, rows, "softmax or loss call", rest)


def _is_over_a_large_vocabulary(op: OpSignature) -> bool:
    shapes = (op.shape_or_scalar(i) for i in range(len(op.shapes or ())))
    return any(len(shape) >= 2 and shape[-1] >= _LARGE_VOCABULARY for shape in shapes)


_FLOATS = {"float", "double", "c10::Half", "c10::BFloat16"}


def _casts(op: OpSignature) -> bool:
    types = {op.dtype_text(0), op.dtype_text(1)}
    return len(types) == 2 and types <= _FLOATS


def _rearranges(op: OpSignature) -> bool:
    """Whether two tensors of one shape and type lie differently in memory, the second of them without gaps."""
    to, of = op.stride(0), op.stride(1)
    if not (op.has(0) and op.has(1) and to and of) or op.dtype_text(0) != op.dtype_text(1):
        return False
    shape = op.shape_or_scalar(0)
    return len(shape) > 1 and shape == op.shape_or_scalar(1) and to != of and 0 not in of


#: Copies within the device that only change something of a tensor: what that is, which ops and which of their calls
#: they are, and how they are called.
_CHANGING_COPIES = {
    "type_casts": ("type", ("aten::copy_", "aten::_to_copy"), _casts, ("cast", "casts")),
    "layout_copies": ("memory layout", ("aten::copy_",), _rearranges, ("copy", "copies")),
}


def changing_copies(seen: Observed, kind: str) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    changes, ops, fits, (one, many) = _CHANGING_COPIES[kind]
    rows = seen.rows_where(seen.named(*ops) & (seen.column("category") != COPY), fits)
    rest = Candidate(
        why=f" only to change a tensor's {changes}",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
    )
    return candidate_of_calls(seen, rows, one, rest, plural=many)


COPIES = tuple(built_in(kind)(partial(changing_copies, kind=kind)) for kind in _CHANGING_COPIES)
