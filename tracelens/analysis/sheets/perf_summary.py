"""Sheets of distinct calls with their work and estimates: all figures, one readable line per call, headroom by
category.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.idle.idle_time import BEFORE_RECORDING, CAUSES
from tracelens.analysis.sheets import kernel_time
from tracelens.analysis.sheets import shared_columns as shared
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.sheets.distinct_calls import DIFFERENT
from tracelens.analysis.sheets.shared_columns import CATEGORY
from tracelens.backends.base import Floats, bound_name
from tracelens.schema import PARAMETER, column_set, count, number, percent, sheet, statistics, text, us
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.analysis.sheets.context import SheetContext


UNIFIED_PERF_SUMMARY_TITLE = "unified_perf_summary"
_HOST = "From the op's start on the host to its end on the host; device time is kernel_us."
_HOST_TIME = statistics(("sum", "mean", "std"), us("host_us", _HOST))
UNIFIED_PERF_SUMMARY_COLUMNS = column_set(
    shared.NAME, shared.CATEGORY, shared.PROCESS, shared.ARGUMENTS, shared.EXAMPLE, shared.CALLS,
    _HOST_TIME, shared.GFLOPS, shared.HBM_MB, shared.INTENSITY,
    shared.SPEC,
    shared.HBM_RATE, shared.COMPUTE_RATE, shared.KERNEL_TIME, shared.WIRE, shared.EXCHANGE, shared.ROOFLINE,
    shared.ACHIEVABLE,
    statistics(("median", "min", "max"), us("host_us", _HOST)),
    shared.KERNELS_BEHIND,
    text("perf_params", PARAMETER, width=40),
    text("model", "Class of the perf model.", width=20),
    shared.HAS_PERF_MODEL,
    text(
        "computed_in", "Compute precision according to the kernel names, where the recorded type leaves it open.",
        width=12, optional=True,
    ),
    number(
        "kernels_per_call", "Kernels, copies and memsets of one call, on average.", shape="#,##0.0",
        optional=True,
    ),
    us(
        "launch_gap_us", "Median over the calls: GPU idle time just before the call's first kernel.", optional=True,
    ),
    shared.PLACES,
    text("note", "Why there is no perf model, or what the row is.", width=44, optional=True),
    shared.PERCENTAGES,
)  # fmt: skip


@sheet(UNIFIED_PERF_SUMMARY_TITLE, columns=UNIFIED_PERF_SUMMARY_COLUMNS, order=70, json=None)
def unified_perf_summary_frame(context: SheetContext) -> pd.DataFrame:
    """Every distinct call beside its work and its estimate; each kernel that is no collective is in one row."""
    return context.priced.rows


PERF_SUMMARY_TITLE = "ops"
_SHAPE = re.compile(r"\(\d[\d, ]*\)")
PERF_SUMMARY_COLUMNS = column_set(
    text("name", "Name of the op in the trace.", width=46),
    text("category", "The perf model's family, else what the op's first kernel is.", width=16),
    text("shapes", "Recorded shapes of the tensors among its arguments.", width=36),
    count("operation_count", "Calls with these shapes, types, strides and scalars."),
    us("kernel_us_sum", "GPU time of all its calls: busy time of their kernels.", optional=True),
    percent("percent", "Share of the GPU time of all kernels, collectives included."),
    us("kernel_us_mean", "GPU time of one call, on average."),
    number("tflops_s_mean", "Achieved, mean of the calls; empty where it does no arithmetic.", shape="#,##0.0",
           optional=True),
    number("hbm_tb_s_mean", "HBM: achieved, mean of the calls.", shape="0.00", optional=True),
    number("effective_interconnect_tb_s_mean",
           "Wire: bytes that leave the rank over the kernels' whole duration, waiting included.", shape="0.0000",
           optional=True),
    text("remote_from", "Of a token exchange, what says which share of its rows leaves the rank. Every row: nothing "
         "does, and effective_interconnect_tb_s is of all rows, at most what left.", width=34, optional=True),
    text("roofline_bound", "What the roofline time is limited by.", width=10, optional=True),
    percent("percent_of_roofline_mean",
            "Least time at the device's achievable rates over measured time, of all calls together.", look="of_limit",
            optional=True),
    us("above_roofline_us", "GPU time of all calls less their roofline time; 0 for faster ones.",
       optional=True),
    text("module", "The innermost nn.Module around the example.", width=24, optional=True),
    text("line", "The innermost Python frame around the example that is not PyTorch's.", width=44,
         optional=True),
)  # fmt: skip


@sheet(PERF_SUMMARY_TITLE, columns=PERF_SUMMARY_COLUMNS, order=1, json=None)
def perf_summary_frame(context: SheetContext) -> pd.DataFrame:
    """Every distinct call, the longest first; unified_perf_summary has the same rows with every column."""
    kernels = context.frames[kernel_time.KERNEL_SUMMARY_TITLE]
    return overview(context.frames[UNIFIED_PERF_SUMMARY_TITLE], float(kernels["duration_us_sum"].sum()))


def overview(rows: pd.DataFrame, gpu_us: float) -> pd.DataFrame:
    """``rows``: those of ``unified_perf_summary``, by keys; a figure that they lack is unknown. ``gpu_us``: of all
    kernels."""
    of_roofline = _figures(rows, "percent_of_roofline_mean")
    bounds = rows.get("roofline_bound", [None] * len(rows))
    return rows[[key for key in PERF_SUMMARY_COLUMNS if key in rows]].assign(
        shapes=np.array([tensor_shapes(dims) for dims in rows["input_dims"]], object),
        percent=100 * rows["kernel_us_sum"] / (gpu_us or 1.0),
        tflops_s_mean=rows["tflops_s_mean"].where(_figures(rows, "gflops") > 0),
        roofline_bound=pd.Series(
            [bound_name(each) if isinstance(each, str) else None for each in bounds], rows.index, object
        ),
        above_roofline_us=rows["kernel_us_sum"] * np.clip(1 - of_roofline / 100, 0, None),
        module=np.array([innermost_module(path) for path in rows.get("parent_module", [None] * len(rows))], object),
        line=np.array([calling_line(stack) for stack in rows.get("call_stack", [None] * len(rows))], object),
    )


def _figures(rows: pd.DataFrame, key: str) -> Floats:
    return rows[key].to_numpy(float) if key in rows else np.full(len(rows), np.nan)


def tensor_shapes(dims: object) -> str | None:
    """The recorded shapes without those of scalars and absent arguments; as it is where the calls of a row differ.

    >>> tensor_shapes("((1024,), (8944, 1024), (), ())")
    '(1024,), (8944, 1024)'
    """
    if dims == DIFFERENT:
        return DIFFERENT
    return ", ".join(_SHAPE.findall(dims)) or None if isinstance(dims, str) else None


def innermost_module(path: object) -> str | None:
    """
    >>> innermost_module("Model/DecoderLayer/Linear")
    'Linear'
    """
    return path.rpartition("/")[2] if isinstance(path, str) else None


def calling_line(stack: object) -> str | None:
    """The innermost frame outside PyTorch, else the innermost.

    >>> calling_line("torch/nn/modules/linear.py(124): forward <- model.py(150): attend <- train.py(9): step")
    'model.py(150): attend'
    """
    if not isinstance(stack, str):
        return None
    frames = stack.split(" <- ")
    return next((frame for frame in frames if not frame.startswith(("torch/", "<"))), frames[0])


HEADROOM_TITLE = "headroom"
#: What the device does while it does nothing.
IDLE_CATEGORY = "idle"
HEADROOM_COLUMNS = column_set(
    CATEGORY,
    us(
        "own_us",
        "Time per step (without steps: in the window) in which nothing else keeps the device busy: computation before "
        "communication, that before copies, of one class what began first. With the row idle the column adds up to the "
        "step.",
    ),
    us(
        "achievable_own_us",
        "Own time if every call of known work took what the tile model (or --backend) expects of it; the others stay "
        "as measured, and idle time goes, but for waits for work from before recording.",
    ),
    us("roofline_own_us", "Own time if every call of known work ran at its roofline."),
    us("headroom_us", "Own time less achievable time."),
    percent("percent_of_step", "Own time as a share of the step (or the window)."),
    percent("known_percent", "Share of the own time in calls of known work."),
)  # fmt: skip


@sheet(HEADROOM_TITLE, columns=HEADROOM_COLUMNS, order=18, json=25)
def headroom_frame(context: SheetContext) -> pd.DataFrame | None:
    """By category, the largest headroom first: a waterfall from the measured step to the achievable one."""
    priced, timeline, steps = context.priced, context.timeline, max(1, len(context.selected))
    if not timeline.total_ns:
        return None
    category, own = context.event_category, context.own_time[2]
    codes = distinct_rows(category.code, len(category.texts))
    sums = {"own_us": np.bincount(category.code, own)[codes]}
    mean = priced.rows["kernel_us_mean"].to_numpy(np.float64) if len(priced.rows) else np.zeros(0)
    known = np.zeros(0)
    for key, of_call in (("achievable_own_us", "_achievable_us"), ("roofline_own_us", "roofline_us")):
        least = priced.rows[of_call].to_numpy(np.float64) if of_call in priced.rows else np.full(len(mean), np.nan)
        # One more for events that are in no row
        share = np.append(np.divide(least, mean, out=np.full(len(mean), np.nan), where=mean > 0), np.nan)
        kept = np.where(np.isnan(share), 1.0, np.fmin(share, 1.0))
        sums[key] = np.bincount(category.code, own * kept[priced.row_of_event])[codes]
        known = ~np.isnan(share)
    found = pd.DataFrame({"category": [category.texts[code] for code in codes.tolist()], **sums})
    known_ns = np.bincount(category.code, own * known[priced.row_of_event])[codes]
    found["known_percent"] = 100 * known_ns / np.maximum(sums["own_us"], 1)
    # Who waits for work that was not recorded is not idle
    stays = float(context.idle_parts.by_cause[CAUSES.index(BEFORE_RECORDING)])
    idle = {"category": IDLE_CATEGORY, "own_us": timeline.idle_ns, "achievable_own_us": stays, "roofline_own_us": stays}
    found = pd.concat([found, pd.DataFrame([{**idle, "known_percent": np.nan}])], ignore_index=True)
    found["percent_of_step"] = 100 * found["own_us"] / timeline.total_ns
    found["headroom_us"] = found["own_us"] - found["achievable_own_us"]
    found = found[(found["own_us"] > 0)].sort_values(["headroom_us", "category"], ascending=[False, True])
    for key in (*sums, "headroom_us"):
        found[key] /= NS_PER_US * steps
    return found[list(HEADROOM_COLUMNS)].reset_index(drop=True)
