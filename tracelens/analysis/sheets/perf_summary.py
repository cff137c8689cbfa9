"""Every distinct call in one readable line: what it is, what it costs, how far from its limit, where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tracelens.analysis.sheets.distinct_calls import DIFFERENT
from tracelens.analysis.sheets.ops import kernel_summary, unified_perf_summary
from tracelens.backends.base import Floats, bound_name
from tracelens.lazy.patterns import lazy_pattern
from tracelens.schema import column_set, count, number, percent, sheet, text, us

if TYPE_CHECKING:
    from tracelens.analysis.sheets.context import SheetContext


TITLE = "ops"
_SHAPE = lazy_pattern(r"\(\d[\d, ]*\)")
COLUMNS = column_set(
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


@sheet(TITLE, columns=COLUMNS, order=1, json=None)
def frame(context: SheetContext) -> pd.DataFrame:
    """Every distinct call, the longest first; unified_perf_summary has the same rows with every column."""
    kernels = context.frames[kernel_summary.TITLE]
    return overview(context.frames[unified_perf_summary.TITLE], float(kernels["duration_us_sum"].sum()))


def overview(rows: pd.DataFrame, gpu_us: float) -> pd.DataFrame:
    """``rows``: those of ``unified_perf_summary``, by keys; a figure that they lack is unknown. ``gpu_us``: of all
    kernels."""
    of_roofline = _figures(rows, "percent_of_roofline_mean")
    bounds = rows.get("roofline_bound", [None] * len(rows))
    return rows[[key for key in COLUMNS if key in rows]].assign(
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
