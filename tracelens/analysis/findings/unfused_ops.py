"""Findings about passes over memory that fusion spares: elementwise ops, optimizer steps, losses, type casts and
layout copies.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.calls import COPY
from tracelens.analysis.findings.rule import Candidate, Observed, built_in, candidate_of_calls
from tracelens.analysis.verdict.summary import Said, counted, size
from tracelens.signature import OpSignature
from tracelens.trace.table import Kind
from tracelens.units import NS_PER_US

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
    saved = f"; fusing them saves some {size(saved_mb)} of HBM traffic" if saved_mb > 0 else ""
    yield Candidate(
        why=f"{counted(int(members.sum()), 'unfused elementwise kernel')} take {seen.share_text(time_us)}{saved}",
        claimed=seen.kernels(events, 1 - kept, low=0.0, spares_launches=True),
        computed="per chain, the time of its kernels less that of the longest; at least none of it",
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
        f"{seen.share_text(total_us)}: the optimizer is not fused",
        claimed=seen.kernels(events, max(0.0, 1 - _FUSED_OVER_LONGEST * longest_us / total_us), spares_launches=True),
        computed="their time less one fused pass, which moves 7/4 of the bytes of the longest of them",
        figures=(
            Said(what="kernels", value=len(events), unit="count"),
            Said(what="ops", value=len(codes), unit="count"),
            seen.gpu_share(total_us),
        ),
        evidence=seen.evidence(np.unique(seen.row_of_event[events[seen.row_of_event[events] >= 0]])),
        row=int(seen.activity.op[events[took_us.argmax()]]),
    )


#: Classes from which the loss is that of a language model.
_LARGE_VOCABULARY = 8192
_PARTS = ("aten::_log_softmax", "aten::_log_softmax_backward_data", "aten::nll_loss_forward", "aten::nll_loss_backward",
          "aten::log_softmax", "aten::nll_loss", "aten::nll_loss_nd", "aten::cross_entropy_loss")  # fmt: skip


@built_in("unfused_loss")
def unfused_loss(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time, less that of reading the logits and writing their gradient once."""
    rows, device = seen.rows_where(seen.named(*_PARTS)), seen.device
    rows = rows[np.array([_vocabulary(op) >= _LARGE_VOCABULARY for op in seen.signatures(rows)], np.bool_)]
    if device is None or device.hbm is None or device.hbm.tb_s is None or rows.empty:
        return
    # One read and one write of the logits: what the forward softmax alone moves
    once_us = float((rows["hbm_mb"] / device.hbm.tb_s * rows["operation_count"]).max())
    total_us = float(rows["kernel_us_sum"].sum())
    if not once_us > 0:
        return
    rest = Candidate(
        why=": the cross-entropy over a large vocabulary is not fused",
        claimed=seen.calls(rows, 1 - min(once_us, total_us) / total_us, spares_launches=True),
        computed="their time, less that of the bytes of the largest of them at the rate of HBM",
    )
    yield from candidate_of_calls(seen, rows, "call", rest)


def _vocabulary(op: OpSignature) -> int:
    shapes = (op.shape_or_scalar(i) for i in range(len(op.shapes or ())))
    return max((shape[-1] for shape in shapes if len(shape) >= 2), default=0)


_FLOATS = {"float", "double", "c10::Half", "c10::BFloat16"}


@built_in("type_casts")
def type_casts(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    rows = seen.rows_where(seen.named("aten::copy_", "aten::_to_copy") & (seen.column("category") != COPY))
    rows = rows[np.array([_casts(op) for op in seen.signatures(rows)], np.bool_)]
    rest = Candidate(
        why=": they only change a tensor's type",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
    )
    yield from candidate_of_calls(seen, rows, "cast", rest)


def _casts(op: OpSignature) -> bool:
    types = {op.dtype_text(0), op.dtype_text(1)}
    return len(types) == 2 and types <= _FLOATS


@built_in("layout_copies")
def layout_copies(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    rows = seen.rows_where((seen.column("name") == "aten::copy_") & (seen.column("category") != COPY))
    rows = rows[np.array([_rearranges(op) for op in seen.signatures(rows)], np.bool_)]
    rest = Candidate(
        why=": they only change a tensor's memory layout",
        claimed=seen.calls(rows, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
    )
    yield from candidate_of_calls(seen, rows, "copy", rest, plural="copies")


def _rearranges(op: OpSignature) -> bool:
    """Whether two tensors of one shape and type lie differently in memory, the second of them without gaps."""
    to, of = op.stride(0), op.stride(1)
    if not (op.has(0) and op.has(1) and to and of) or op.dtype_text(0) != op.dtype_text(1):
        return False
    shape = op.shape_or_scalar(0)
    return len(shape) > 1 and shape == op.shape_or_scalar(1) and to != of and 0 not in of
