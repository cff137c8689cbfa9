"""What an experienced engineer says of a trace's operations: known patterns that another kernel or precision replaces.

Every finding is by structure (shapes, order of launches, kernels' names). Its gain is at most the time it speaks of.
"""

from __future__ import annotations

import re
from ast import literal_eval
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracelens.analysis.sheets.ops import coll_analysis, unified_perf_summary
from tracelens.analysis.verdict.idle_findings import counted, duration
from tracelens.analysis.verdict.summary import Finding, Notice, Said
from tracelens.analysis.work.limits import launch_floor_us
from tracelens.backends.roofline import Roofline
from tracelens.backends.system import System
from tracelens.dtypes import DType
from tracelens.perf_models.attention.sdpa import SDPA
from tracelens.perf_models.compute_type import FP32
from tracelens.perf_models.generated.fused import FusedKernel
from tracelens.trace.table import Kind
from tracelens.units import FLOPS_PER_GFLOP, NS_PER_US, TERA_PER_S_IN_PER_US

if TYPE_CHECKING:
    import pandas as pd
    from pandas import Index

    from tracelens.analysis.analyze import Analysis

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

#: Share of the device time from which a pattern is worth a line.
MUCH = 0.05
#: Share of the device time from which a category without a perf model is named.
MUCH_UNKNOWN = 0.1
#: Bus bandwidth, as a share of the link's rate, below which collectives are called slow.
SLOW_BUS = 0.1
#: Bytes that one load instruction fetches; GEMM kernels fall back to narrower ones where rows start in between.
ALIGNMENT_BYTES = 16
_ELEMENTWISE = "elementwise"
#: Narrower operands are vectors.
_LEAST_COLUMNS = 8
_WAITS = re.compile(r"(?i)notify|barrier|wait|semaphore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """``findings``, and what no other finding speaks of then: ``rows`` of the unified table, device ``events``."""

    findings: tuple[Finding, ...]
    rows: Bools
    events: Bools


def advice(analysis: Analysis, divisor: int) -> Advice:
    """Everything that the operations of one analysis show; gains per step where ``divisor`` is the number of steps."""
    unified = analysis.frames[unified_perf_summary.TITLE]
    attention, rows, events = _attention_from_parts(analysis, unified, divisor)
    fp32, of_fp32 = _fp32_gemms(analysis, unified[~rows], divisor)
    rows |= unified.index.isin(of_fp32)
    unaligned, of_unaligned = _unaligned(analysis, unified[~rows], divisor)
    rows |= unified.index.isin(of_unaligned)
    unfused, in_chains = _unfused(analysis, ~events, divisor)
    rows |= _launched(analysis, unified, events | in_chains)
    found = (attention, fp32, unaligned, unfused)
    return Advice(findings=tuple(f for f in found if f is not None), rows=rows, events=events | in_chains)


def _launched(analysis: Analysis, unified: pd.DataFrame, events: Bools) -> Bools:
    """Rows of calls that launched most of their time's kernels themselves and among ``events``."""
    table, activity = analysis.trace.table, analysis.activity
    at = np.flatnonzero(events & (activity.op >= 0))
    op = activity.op[at]
    time_us: dict[tuple[int, int], float] = {}
    for name, signature, us in zip(
        table.name[op].tolist(), table.signature[op].tolist(), activity.duration_us(at).tolist(), strict=True
    ):
        time_us[name, signature] = time_us.get((name, signature), 0.0) + us
    examples = unified["example_row"].to_numpy(np.int64)
    keys = zip(table.name[examples].tolist(), table.signature[examples].tolist(), strict=True)
    launched_us = np.array([time_us.get(key, 0.0) for key in keys])
    return np.asarray(launched_us > unified["kernel_us_sum"] / 2, bool)


def _device_us(analysis: Analysis) -> float:
    return float(analysis.activity.duration.sum()) / NS_PER_US


def _share_text(analysis: Analysis, time_us: float) -> str:
    return f"{100 * time_us / max(_device_us(analysis), 1e-9):.0f} % of GPU time"


def _gpu_share(analysis: Analysis, time_us: float) -> Said:
    return Said(what="share of GPU time", value=time_us / max(_device_us(analysis), 1e-9), unit="share")


def _count(what: str, count: int) -> Said:
    return Said(what=what, value=count, unit="count")


def _is_much(analysis: Analysis, time_us: float, gain_us: float) -> bool:
    return time_us > MUCH * _device_us(analysis) and gain_us > 0


def _unfused(analysis: Analysis, among: Bools, divisor: int) -> tuple[Finding | None, Bools]:
    """Elementwise kernels that follow one another on a stream: fused, a chain takes at least its longest kernel.

    Also the kernels of the chains.
    """
    activity = analysis.activity
    order = np.lexsort((activity.start, activity.stream))
    mine = (analysis.event_category.are(_ELEMENTWISE) & ~activity.memcpy & among)[order]
    stream = activity.stream[order]
    linked = mine[1:] & mine[:-1] & (stream[1:] == stream[:-1])
    chain = np.cumsum(np.concatenate(([True], ~linked)))[: len(order)] - 1
    duration = activity.duration[order]
    longest = np.zeros(len(order), np.int64)
    np.maximum.at(longest, chain, duration)
    members = np.bincount(chain, minlength=len(order))[chain] > 1
    in_chains = int(duration[members].sum())
    gain_us = (in_chains - int(longest[np.unique(chain[members])].sum())) / NS_PER_US
    if not _is_much(analysis, in_chains / NS_PER_US, gain_us):
        return None, np.zeros(len(order), bool)
    share = _share_text(analysis, in_chains / NS_PER_US)
    why = f"{counted(int(members.sum()), 'elementwise kernel')} run back to back, {share}"
    finding = Finding(
        id="unfused_elementwise", op=None, gain_us=gain_us / divisor, certainty="low",
        why=why,
        time_us=in_chains / NS_PER_US / divisor,
        figures=(_count("kernels in chains", int(members.sum())), _gpu_share(analysis, in_chains / NS_PER_US)),
    )  # fmt: skip
    chained = np.zeros(len(order), bool)
    chained[order] = members
    return finding, chained


def _fp32_gemms(analysis: Analysis, unified: pd.DataFrame, divisor: int) -> tuple[Finding | None, Index]:
    """FP32 GEMMs and convolutions whose kernels did not use TF32, by their names, on a device that has it; their rows.

    Gain: their time at the same share of the roofline with TF32's rate.
    """
    device = analysis.device
    rates = [device.rate("matrix", dtype) for dtype in (DType.FP32, DType.TF32)] if device is not None else [None, None]
    if device is None or rates[1] is None or (rates[0] is not None and rates[1].tflops_s <= rates[0].tflops_s):
        return None, unified.index[:0]
    rows = unified[(unified["computed_in"] == FP32.label) & (unified["roofline_us"] > 0) & (unified["gflops"] > 0)]
    compute_us = rows["gflops"] * FLOPS_PER_GFLOP / rates[1].tflops_s / TERA_PER_S_IN_PER_US
    memory = device.hbm.tb_s if device.hbm is not None else None
    memory_us = rows["hbm_mb"] / memory if memory is not None else rows["roofline_us"]
    floor_us = rows["kernels_per_call"] * launch_floor_us(device)
    least_us = np.minimum(np.fmax(np.fmax(compute_us, memory_us), floor_us), rows["roofline_us"])
    gain_us = float((rows["kernel_us_sum"] * (1 - least_us / rows["roofline_us"])).sum())
    time_us = float(rows["kernel_us_sum"].sum())
    if not _is_much(analysis, time_us, gain_us):
        return None, unified.index[:0]
    calls = int(rows["operation_count"].sum())
    finding = Finding(
        id="fp32_without_tf32", op=None, gain_us=gain_us / divisor, certainty="medium",
        why=f"{counted(calls, 'FP32 GEMM or convolution call')} without TF32, {_share_text(analysis, time_us)}: "
        "allow TF32 where its 10-bit mantissa is enough",
        time_us=time_us / divisor,
        figures=(_count("calls in FP32", calls), _gpu_share(analysis, time_us)),
    )  # fmt: skip
    return finding, rows.index


def _unaligned(analysis: Analysis, unified: pd.DataFrame, divisor: int) -> tuple[Finding | None, Index]:
    """GEMMs with rows of an operand or of the result that do not all start at multiples of 16 bytes, and their rows."""
    rows = unified[(unified["model"] == "GEMM") & (unified["kernel_us_sum"] > 0)]
    odd = [_unaligned_dims(literal_eval(text)) for text in rows["perf_params"]]
    rows = rows[np.array([bool(dims) for dims in odd], bool)]
    time_us = float(rows["kernel_us_sum"].sum())
    gain_us = float((rows["kernel_us_sum"] - rows["roofline_us"] * rows["operation_count"]).clip(lower=0).sum())
    if not _is_much(analysis, time_us, gain_us):
        return None, unified.index[:0]
    by_dim: dict[int, float] = {}
    for us, dims in zip(rows["kernel_us_sum"], filter(None, odd), strict=True):
        by_dim |= {dim: by_dim.get(dim, 0.0) + us for dim in dims}
    most = sorted(by_dim, key=lambda dim: (-by_dim[dim], dim))[:2]
    shown = ", ".join(map(str, most))
    calls = int(rows["operation_count"].sum())
    finding = Finding(
        id="unaligned_gemms", op=None, gain_us=gain_us / divisor, certainty="low",
        why=f"{counted(calls, 'GEMM')} with rows of {shown} elements, {_share_text(analysis, time_us)}: "
        f"not aligned to {ALIGNMENT_BYTES} bytes; pad them",
        time_us=time_us / divisor,
        figures=(_count("unaligned GEMMs", calls), _gpu_share(analysis, time_us),
                 *(_count("elements of a row", dim) for dim in most)),
    )  # fmt: skip
    return finding, rows.index


def _unaligned_dims(parameters: dict[str, Any]) -> list[int]:
    """Lengths of rows, as they lie in memory, that are no multiple of 16 bytes."""
    dtype = DType.parse(parameters["dtype_A_B"][0])
    if dtype is None or min(parameters["M"], parameters["N"], parameters["K"]) < _LEAST_COLUMNS:
        return []
    elements = max(1, int(ALIGNMENT_BYTES / dtype.width_bytes))
    row_a = _row_length(parameters["stride_A"], parameters["K"])
    row_b = _row_length(parameters["stride_B"], parameters["N"])
    return sorted({dim for dim in (row_a, row_b, parameters["N"]) if dim % elements})


def _row_length(stride: tuple[int, ...] | None, columns: int) -> int:
    """Elements from the start of one row of a matrix to the next in memory, of a column where these lie together."""
    if stride is None or len(stride) < 2 or 1 not in stride[-2:]:
        return columns
    return max(stride[-2:])


def _attention_from_parts(
    analysis: Analysis, unified: pd.DataFrame, divisor: int
) -> tuple[Finding | None, Bools, Bools]:
    """bmm, softmax over its result, bmm of that: what scaled_dot_product_attention does in one kernel.

    Also the rows of these ops, and the device events that belong to attention.
    """
    table, none = analysis.trace.table, (np.zeros(len(unified), bool), np.zeros(len(analysis.activity), bool))
    triples = _triples(analysis)
    if analysis.device is None or not len(triples):
        return None, *none
    spans_us, events = _launched_between(analysis, triples[:, 0], triples[:, 2])
    least_us = _attention_us(analysis, triples)
    time_us, gain_us = float(spans_us.sum()), float(np.fmax(spans_us - least_us, 0).sum())
    if not _is_much(analysis, time_us, gain_us):
        return None, *none
    spoken = {(int(table.name[row]), int(table.signature[row])) for row in triples.ravel().tolist()}
    examples = unified["example_row"].to_numpy(np.int64)
    rows = np.array([(int(table.name[row]), int(table.signature[row])) in spoken for row in examples.tolist()], bool)
    finding = Finding(
        id="attention_from_parts", op=None, gain_us=gain_us / divisor, certainty="medium",
        why=f"bmm + softmax + bmm, {counted(len(triples), 'time')}, {_share_text(analysis, time_us)}: "
        "attention whose scores go through HBM",
        time_us=time_us / divisor,
        figures=(_count("bmm, softmax, bmm", len(triples)), _gpu_share(analysis, time_us)),
    )  # fmt: skip
    return finding, rows, events


def _triples(analysis: Analysis) -> Ints:
    """Table rows of (bmm, softmax, bmm) that follow one another on a thread and fit, a triple per line."""
    table = analysis.trace.table
    codes = {table.names.index(name): kind for name, kind in _PARTS.items() if name in table.names}
    rows = np.flatnonzero((table.kind == Kind.CPU_OP) & np.isin(table.name, list(codes)))
    ran = np.zeros(len(table), bool)
    ran[analysis.activity.op[analysis.activity.op >= 0]] = True
    rows = rows[ran[rows]]
    rows = rows[np.lexsort((table.start_ns[rows], table.lane[rows]))]
    if len(rows) < 3:
        return np.zeros((0, 3), np.int64)
    is_bmm = np.array([codes[name] == "bmm" for name in table.name[rows].tolist()], bool)
    lane = table.lane[rows]
    at = np.flatnonzero(is_bmm[:-2] & ~is_bmm[1:-1] & is_bmm[2:] & (lane[:-2] == lane[2:]))
    found = np.stack((rows[at], rows[at + 1], rows[at + 2]), axis=1).astype(np.int64)
    fits: dict[tuple[int, ...], bool] = {}
    keep = []
    for triple in found.tolist():
        key = tuple(int(table.signature[row]) for row in triple)
        if key not in fits:
            fits[key] = _dims_of(analysis, triple) is not None
        keep.append(fits[key])
    return found[np.array(keep, bool)] if keep else found


#: Of those that launch kernels themselves.
_PARTS = {
    "aten::bmm": "bmm", "aten::baddbmm": "bmm",
    "aten::_softmax": "softmax", "aten::softmax": "softmax", "aten::_safe_softmax": "softmax",
}  # fmt: skip


def _dims_of(analysis: Analysis, triple: list[int]) -> tuple[int, int, int, int, int, DType | None] | None:
    """(b, s_q, s_kv, d_qk, d_v, type) of the attention whose parts these ops are; None where they do not fit."""
    first, middle, last = (analysis.trace.table.signature_of(row) for row in triple)
    skipped = {"aten::baddbmm": 1}
    a, b = (first.shapes or ())[skipped.get(first.name, 0) :][:2], (last.shapes or ())[skipped.get(last.name, 0) :][:2]
    scores = (middle.shapes or ((),))[0]
    if [len(shape) for shape in (*a, *b)] != [3] * 4 or not scores:
        return None
    (batch, s_q, d_qk), (_, _, s_kv) = a
    if b[0] != (batch, s_q, s_kv) or scores[-1] != s_kv or int(np.prod(scores)) != batch * s_q * s_kv:
        return None
    return batch, s_q, s_kv, d_qk, b[1][2], first.dtype(skipped.get(first.name, 0))


def _attention_us(analysis: Analysis, triples: Ints) -> npt.NDArray[np.float64]:
    """What one fused attention takes at least, per triple; NaN, which gives no gain, where that is not known."""
    table, device = analysis.trace.table, analysis.device
    priced: dict[tuple[int, ...], float] = {}
    found = []
    for triple in triples.tolist():
        key = tuple(int(table.signature[row]) for row in triple)
        if key not in priced:
            priced[key] = np.nan
            dims = _dims_of(analysis, triple)
            if dims is not None and device is not None:
                b, s_q, s_kv, d_qk, d_v, dtype = dims
                model = SDPA(b=b, s_q=s_q, s_kv=s_kv, q_heads=1, kv_heads=1, d_qk=d_qk, d_v=d_v, dtype=dtype)
                estimate = Roofline().estimate(model, System.of_device(device))
                priced[key] = np.nan if estimate is None else max(estimate.time_us, launch_floor_us(device))
        found.append(priced[key])
    return np.array(found, np.float64)


def _launched_between(analysis: Analysis, first: Ints, last: Ints) -> tuple[npt.NDArray[np.float64], Bools]:
    """Device time (µs) and events of what a thread launched from each ``first`` op's start to its ``last`` op's end."""
    table, activity = analysis.trace.table, analysis.activity
    linked = np.flatnonzero(activity.op >= 0)
    op = activity.op[linked]
    total, events = np.zeros(len(first), np.float64), np.zeros(len(activity), bool)
    for lane in np.unique(table.lane[first]).tolist():
        mine = np.flatnonzero(table.lane[first] == lane)
        starts, ends = table.start_ns[first[mine]], table.start_ns[last[mine]] + table.duration_ns[last[mine]]
        here = table.lane[op] == lane
        at = np.searchsorted(starts, table.start_ns[op[here]], side="right") - 1
        inside = (at >= 0) & (table.start_ns[op[here]] < ends[np.maximum(at, 0)])
        np.add.at(total, mine[at[inside]], activity.duration[linked[here][inside]] / NS_PER_US)
        events[linked[here][inside]] = True
    return total, events


def unmodelled_categories(analysis: Analysis) -> Iterator[Notice]:
    """Categories of much device time whose work is mostly not known: what the report cannot judge.

    Compiled kernels have a notice of their own.
    """
    if not analysis.trace.table.has_shapes:
        return
    activity, unified = analysis.activity, analysis.frames[unified_perf_summary.TITLE]
    moves = set(analysis.event_category[activity.communication | activity.memcpy].tolist()) | {FusedKernel.category}
    known = unified[["gflops", "hbm_mb", "wire_mb"]].notna().any(axis=1)
    time_us = unified["kernel_us_sum"].groupby(unified["category"]).sum()
    known_us = unified["kernel_us_sum"].where(known, 0.0).groupby(unified["category"]).sum()
    largest = time_us.sort_values(ascending=False, kind="stable")
    unknown = [
        f"{category} ({_share_text(analysis, us)})"
        for category, us, of_known in zip(largest.index, largest, known_us[largest.index], strict=True)
        if category not in moves
        and category != FusedKernel.category
        and us > MUCH_UNKNOWN * _device_us(analysis)
        and of_known < us / 2
    ]
    if unknown:
        shown = ", ".join(unknown)
        yield Notice(
            id="unmodelled", count=len(unknown), text=f"work unknown: {shown}; they have no rate, roofline or gain"
        )


def slow_communication(analysis: Analysis, divisor: int) -> list[tuple[str, tuple[Said, ...]]]:
    """What is known of why communication takes long, with the numbers of each part of the sentence."""
    return [*_waiting(analysis, divisor), *_slow_collectives(analysis)]


def _waiting(analysis: Analysis, divisor: int) -> Iterator[tuple[str, tuple[Said, ...]]]:
    """Kernels that only wait for other ranks."""
    activity, table = analysis.activity, analysis.trace.table
    names, which = np.unique(activity.name, return_inverse=True)
    waits = np.array([_WAITS.search(table.names[name]) is not None for name in names.tolist()], bool)[which]
    waits &= ~activity.memcpy
    time_us = float(activity.duration[waits].sum()) / NS_PER_US
    if time_us > 0.01 * _device_us(analysis):
        waiting = Said(what="kernels that wait", value=time_us / divisor, unit="us")
        yield f"{duration(time_us / divisor)} spent in kernels that wait for other ranks (notify, barrier)", (waiting,)


def _slow_collectives(analysis: Analysis) -> Iterator[tuple[str, tuple[Said, ...]]]:
    """The kind of collective that takes most time, when it is far below the link's rate."""
    frame, device = analysis.frames[coll_analysis.TITLE], analysis.device
    if device is None or device.link is None or "bus_gb_s_mean" not in frame:
        return
    known = frame[frame["bus_gb_s_mean"].notna() & (frame["duration_us_sum"] > 0)]
    if known.empty:
        return
    kind = known["duration_us_sum"].groupby(known["collective"]).sum().idxmax()
    rows = known[known["collective"] == kind]
    rate = float((rows["bus_gb_s_mean"] * rows["duration_us_sum"]).sum() / rows["duration_us_sum"].sum())
    if rate < SLOW_BUS * device.link.gb_s:
        figures = (
            Said(what="bus bandwidth", value=rate, unit="GB/s"),
            Said(what="link", value=device.link.gb_s, unit="GB/s"),
        )
        reached = f"{kind} reaches {rate:.3g} GB/s bus bandwidth (waiting included)"
        yield f"{reached} on a link of {device.link.gb_s:,.0f} GB/s", figures
