"""One frame per perf-model family (``GEMM``, ``SDPA_fwd``, ``EP_Communication`` ...), with a column per dimension."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.sheets import shared_columns as shared
from tracelens.analysis.sheets.distinct_calls import sorted_by
from tracelens.perf_models.memory_bound.reduce import Reduce
from tracelens.schema import PARAMETER_PREFIX, column_set, flag
from tracelens.trace.table import RowColumn, TraceTable

#: The sheet of reductions in the backward pass.
REDUCE_BACKWARD = "Reduce_bwd"
_ARGUMENTS = ("input_dims", "input_types", "input_strides", "concrete_inputs")
_STATISTICS = ("mean", "median", "std", "min", "max")


COLUMNS = column_set(
    shared.NAME, shared.GFLOPS, shared.HBM_MB, shared.INTENSITY, shared.HBM_RATE, shared.COMPUTE_RATE,
    shared.WIRE, shared.EXCHANGE, shared.SPEC, shared.ROOFLINE,
    shared.ACHIEVABLE, shared.KERNEL_TIME,
    shared.CALLS, shared.EXAMPLE,
    flag(
        "nested", "TRUE: the call lies inside another modeled call, and its kernels are in both rows; "
        "sum over the FALSE rows.",
        width=10,
    ),
    shared.CATEGORY, shared.PROCESS, shared.ARGUMENTS,
    shared.KERNELS_BEHIND,
)  # fmt: skip


def families(
    table: TraceTable,
    calls: pd.DataFrame,
    readings: OpReadings,
    unified_rows: RowColumn,
    in_backward: npt.NDArray[np.bool_],
) -> dict[str, pd.DataFrame]:
    """Sheet name -> frame, from the table of all modelled calls (nested ones included).

    A call inside another modelled call (``aten::native_layer_norm`` below ``aten::layer_norm``) is marked ``nested``:
    its kernels are in both rows, so sums over a sheet take the rows where it is False.
    ``unified_rows``: of the calls of the unified table. ``in_backward``: of each row of the trace, whether the backward
    pass launched it; its reductions have a sheet of their own.
    """
    frames: dict[str, list[dict[str, Any]]] = {}
    example = calls["example_row"].to_numpy(np.int64)
    code, nested = readings.code_of(example), ~np.isin(example, unified_rows)
    kept = [key for key in _COLUMNS if key in calls.columns]
    for position, row in enumerate(calls[["name", *kept]].to_dict("records")):
        model = readings.readings[int(code[position])].model
        if model is None:
            continue
        parameters = {f"{PARAMETER_PREFIX}{key}": _cell(value) for key, value in model.parameters().items()}
        record = {"name": row["name"], **parameters}
        record |= {key: row[key] for key in kept}
        recorded = table.signature_of(int(row["example_row"]))
        arguments = (recorded.shapes, recorded.dtypes, recorded.strides, recorded.scalars)
        for key, value in zip(_ARGUMENTS, arguments, strict=True):
            record[key] = _as_list(value)
        record["nested"] = bool(nested[position])
        is_gradient = model.sheet == Reduce.family and in_backward[example[position]]
        frames.setdefault(REDUCE_BACKWARD if is_gradient else model.sheet, []).append(record)
    return {name: sorted_by(pd.DataFrame(records), "kernel_us_sum") for name, records in sorted(frames.items())}


_RATES = ("hbm_tb_s", "tflops_s", "effective_interconnect_tb_s", "percent_of_roofline")
_COLUMNS = (
    "category", "gflops", "hbm_mb", "flops_per_byte", "wire_mb", "expected_remote_mb", "remote_from",
    "copies_per_token", "rows_from", "deepep_us",
    *(f"{rate}_{s}" for rate in _RATES for s in _STATISTICS),
    "compute_spec", "roofline_us", "roofline_bound", "percent_of_peak", "backend", "work_at_most",
    "estimated_us", "percent_of_achievable", "estimated_by",
    *(f"kernel_us_{s}" for s in (*_STATISTICS, "sum")),
    "operation_count", "example_row", "kernel_details", "kernel_details_short",
    "process_name", "process_label", "thread_name",
)  # fmt: skip


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def _as_list(value: tuple[Any, ...] | None) -> str | None:
    """``((4,), ())`` as ``[[4], []]``: how the recorded arguments look in the file."""

    def thaw(value: Any) -> Any:
        return [thaw(v) for v in value] if isinstance(value, tuple) else value

    return None if value is None else repr(thaw(value))
