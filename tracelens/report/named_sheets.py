"""The sheets of a report by title, with our headers or those of AMD's TraceLens, and the folder that they are
written to.

Headers that users of AMD's TraceLens know: an explicit choice of a report.

Everywhere else a column goes by its key; this is the one place that knows the other names. Some of them are in ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from tracelens.errors import InputError, UsageError
from tracelens.report.assembly import Sheet, by_title
from tracelens.schema import KEYS, MS, PARAMETER_PREFIX, TRACELENS, split_statistic
from tracelens.units import US_PER_MS

if TYPE_CHECKING:
    import pandas as pd


#: All sheets of perf-model families.
FAMILIES = "families"
#: Header by key; a ``*`` stands for any statistic.
_HEADERS: Mapping[str, str] = {
    "above_roofline_us": "ms above roofline", "achievable_own_us": "Achievable (ms)", "algo_gb_s": "algo bw (GB/s)",
    "algo_gb_s_*": "algo bw (GB/s)_*", "allocated_mb": "allocated (MB)", "allocated_mb_sum": "allocated in all (MB)",
    "arrived_last_percent": "pct_arrived_last", "at_us": "time (µs)", "attention_percent": "attention (%)",
    "attention_us": "attention (µs)", "backward_us": "backward (µs)", "begins_with": "begins with",
    "bin_end_us": "bin_end", "bin_start_us": "bin_start", "both_us": "both busy (µs)", "bubble_percent": "bubble (%)",
    "bubble_us": "bubble (µs)", "bus_gb_s": "bus bw (GB/s)", "bus_gb_s_*": "bus bw (GB/s)_*",
    "busy_a_us": "busy A (µs)", "busy_b_us": "busy B (µs)", "busy_percent": "busy (%)", "busy_us": "busy (µs)",
    "categories": "Categories", "category": "op category", "caused_wait_us": "caused_wait_time_us",
    "change_mb": "change (MB)", "collective": "Collective name", "comm_latency_us": "comm_latency",
    "comm_latency_us_*": "comm_latency_*", "communication_calls": "communication calls",
    "communication_us": "communication (µs)", "computation_us": "computation (µs)", "compute_spec": "Compute Spec",
    "computed_in": "Computed In", "concrete_inputs": "Concrete Inputs", "context_requests": "context requests",
    "context_tokens": "context tokens", "copied_mb": "Data Moved (MB)", "copies_per_token": "Copies per Token",
    "counts_from_start": "counts from start", "cpu_tflops_s": "CPU TFLOPS/s",
    "cumulative_percent": "Cumulative Percentage (%)", "deepep_us": "DeepEP Estimate (µs)", "device_a": "device A",
    "device_b": "device B", "device_events": "device events", "device_period_us": "device period (µs)",
    "direct_us_*": "total_direct_kernel_time_*", "drift_ppm": "clock drift (ppm)", "duration_us": "duration (µs)",
    "duration_us_*": "dur_*", "effective_bus_gb_s": "Bus GB/s_mean",
    "effective_bus_gb_s_shortest": "Bus GB/s_of dur_min",
    "effective_interconnect_tb_s": "Effective Interconnect TB/s",
    "effective_interconnect_tb_s_*": "Effective Interconnect TB/s_*", "end_mb": "at snapshot (MB)",
    "end_skew_us": "skew in end time", "estimated_by": "estimated by", "estimated_us": "Estimated Time (µs)_first",
    "estimated_us_sum": "Estimated Time (ms)", "example_row": "ex_UID",
    "expected_remote_mb": "Expected Remote Data (MB)", "exposed_comm_us": "exposed_comm ms",
    "exposed_percent": "exposed (%)", "exposed_us": "exposed_time", "exposed_us_*": "exposed_time_*",
    "first_calls": "first runs", "first_mb": "at start (MB)", "first_rank": "first rank", "first_step": "first step",
    "first_us": "first runs (µs)", "fitted_to": "fitted to", "flops_per_byte": "FLOPS/Byte",
    "forward_us": "forward (µs)", "full_mb": "Full msg size (MB)", "gb_s": "GB/s",
    "generation_requests": "generation requests", "generation_tokens": "generation tokens", "gflops": "GFLOPS",
    "group_name": "Process Group Name", "group_ranks": "Process Group Ranks", "group_size": "Group size",
    "hbm_mb": "Data Moved (MB)", "hbm_tb_s_*": "TB/s_*", "headroom_us": "Headroom (ms)", "held_by": "held by",
    "hidden_by": "hidden by", "hidden_us_*": "hidden_time_*", "host_memory": "host memory",
    "host_period_us": "host period (µs)", "host_self_us_*": "self CPU time (µs)_*", "host_us": "host time (µs)",
    "host_us_*": "total CPU time (µs)_*", "idle_us": "idle (µs)", "idle_us_*": "* (µs)", "in_mb": "In msg size (MB)",
    "in_nelems": "In msg nelems", "in_split": "In split size", "input_dims": "Input Dims",
    "input_strides": "Input Strides", "input_types": "Input type", "kernel_after": "kernel after",
    "kernel_before": "kernel before", "kernel_details": "kernel_details_summary",
    "kernel_details_short": "trunc_kernel_details", "kernel_name": "Kernel name",
    "kernel_self_us": "self kernel time (µs)", "kernel_us": "kernel time (µs)", "kernel_us_*": "Kernel Time (µs)_*",
    "kernels_per_call": "Kernels per Call", "known_percent": "known work (%)", "largest_mb": "largest (MB)",
    "last_mb": "at end (MB)", "last_rank": "last rank", "last_step": "last step", "launch_call": "launch call",
    "launch_gap_us": "Launch Gap (µs)", "launch_latency_us_*": "launch latency (µs)_*",
    "left_out_us": "left out (µs)", "line": "called from", "measured_mb": "measured (MB)",
    "measured_over_model": "measured / model", "measured_tb_s": "measured TB/s", "model": "perf model",
    "model_mb": "model (MB)", "model_tb_s": "model TB/s", "offset_us": "clock offset (µs)", "op_after": "op after",
    "other_exposed_us": "other exposed (µs)", "others_wait_us": "others' wait_time_mean",
    "out_mb": "Out msg size (MB)_first", "out_nelems": "Out msg nelems", "out_split": "Out split size",
    "outside_us": "beside neighbors (µs)", "own_us": "Own Time (ms)", "p2p_exposed_us": "exposed send/recv (µs)",
    "padded_requests": "padded requests", "parent_op": "op", "past_tokens": "past tokens", "path_gb_s": "path GB/s",
    "peak_at_us": "peak at (µs)", "peak_mb": "peak (MB)", "peak_op": "peak op",
    "peak_reserved_mb": "peak reserved (MB)", "percent": "Percentage (%)", "percent_of_a": "percent of A (%)",
    "percent_of_achievable": "Pct Achievable", "percent_of_b": "percent of B (%)",
    "percent_of_forward": "percent of forward (%)", "percent_of_gap": "percent of gap (%)",
    "percent_of_idle": "percent of idle (%)", "percent_of_kernels": "percent (%)",
    "percent_of_path": "percent of path (%)", "percent_of_path_peak": "percent of path (%)",
    "percent_of_peak": "Pct Peak", "percent_of_roofline_*": "Pct Roofline_*",
    "percent_of_step": "percent of step (%)", "percent_of_window": "Percent of total time (%)",
    "points": "collectives used", "queue_depth_*": "queue depth_*", "queue_empty_percent": "queue empty (%)",
    "queue_empty_us": "queue empty (µs)", "rank_gb_s_*": "* rank throughput (GB/s)", "ranks_present": "ranks present",
    "read_mb": "read (MB)", "recompute_calls": "repeated runs", "recompute_us": "recompute (µs)",
    "remote_from": "Remote Data From", "reserved_mb": "reserved (MB)", "residual_us": "clock residual (µs)",
    "roofline_bound": "Roofline Bound", "roofline_own_us": "Roofline (ms)", "roofline_us": "Roofline Time (µs)_first",
    "rows": "Exchanged Rows", "rows_from": "Exchanged Rows From", "sampled_us": "sampled (µs)",
    "sent_mb_mean": "avg_sent", "sent_mb_sum": "total_sent", "served_from": "Served From",
    "short_kernel_count": "Short Kernel count", "short_kernel_us_*": "Short Kernel duration (µs) *",
    "sizes_from": "Sizes From", "slowest_rank": "slowest rank", "slowest_wait_us": "its wait_time",
    "start_skew_us": "skew in start time", "start_skew_us_*": "skew in start time_*", "start_us": "start (µs)",
    "step_us": "step (µs)", "step_us_*": "step (µs)_*", "stream_a": "stream A", "stream_b": "stream B",
    "subtree_us_*": "total_subtree_kernel_time_*", "tflops_s_*": "TFLOPS/s_*", "throughput_gb_s": "throughput (GB/s)",
    "throughput_gb_s_*": "throughput (GB/s)_*", "time_us": "time (µs)", "tokens_s": "tokens/s",
    "total_comm_us": "total_comm ms", "total_sent_mb": "Total sent (MB)", "total_sent_mb_*": "Total sent (MB)_*",
    "total_us": "total ms", "transfer_us": "transfer_time", "transfer_us_*": "transfer_time_*",
    "true_interconnect_tb_s": "True Interconnect TB/s", "wait_per_rank_us": "avg_wait_time",
    "wait_per_rank_us_*": "avg_wait_time_*", "wait_us": "wait_time", "wait_us_*": "wait_time_*",
    "waiting_percent": "Waiting (%)", "wall_us": "wall time", "wall_us_*": "wall time_*",
    "wire_mb": "Interconnect Data (MB)", "work_at_most": "Work At Most", "written_mb": "written (MB)",
}  # fmt: skip
#: Where a sheet calls it otherwise.
_IN_SHEET: Mapping[str, Mapping[str, str]] = {
    "coll_analysis": {
        "in_mb": "In msg size (MB)_first", "expected_remote_mb": "Remote Data (MB)",
    },
    "copies": {
        "duration_us_sum": "time (µs)",
    },
    "cpu_ops_summary": {
        "operation_count": "Count", "host_self_us_sum": "self CPU time (µs)", "host_us_sum": "total CPU time (µs)",
    },
    "kernel_summary": {
        "category": "Parent op category", "parent_op": "Parent cpu_op", "stream": "Kernel stream",
        "duration_us_*": "Kernel duration (µs)_*", "kernels": "Kernel duration (µs)_count",
        "percent_of_kernels": "Percent of kernels time (%)",
    },
    "ops": {
        "remote_from": "link bytes",
        "name": "op", "category": "category", "operation_count": "calls", "kernel_us_sum": "ms",
        "kernel_us_mean": "µs per call", "percent": "% of GPU time", "tflops_s_mean": "TFLOPS/s",
        "hbm_tb_s_mean": "HBM TB/s", "effective_interconnect_tb_s_mean": "link TB/s", "roofline_bound": "bound by",
        "percent_of_roofline_mean": "% of roofline",
    },
    "ops_summary": {
        "operation_count": "Count",
    },
    "ops_summary_by_category": {
        "operation_count": "Count", "direct_us_sum": "total_direct_kernel_time_ms",
    },
    "short_kernel_histogram": {
        "kernels": "count",
    },
    "short_kernels_summary": {
        "parent_op": "Parent cpu_op", "input_dims": "Input dims", "input_strides": "Input strides",
        "percent_of_window": "Short Kernel duration (µs) percent of total time",
    },
    "unified_perf_summary": {
        "host_us_*": "duration_us_*", "host_us_sum": "total_duration_us", "host_us_mean": "mean_duration_us",
        "host_us_std": "std_duration_us",
    },
    "call_stacks": {
        "line": "line",
    },
    "memory_blocks": {
        "peak_mb": "at peak (MB)",
    },
    "recompute": {
        "recompute_us": "repeated runs (µs)",
    },
    "gpu_timeline": {
        "time_us": "time ms", "percent_of_window": "percent",
    },
    "idle_causes": {
        "percent_of_window": "percent of window (%)",
    },
    "inference_phases": {
        "duration_us_*": "duration_* (µs)",
    },
    "launch_overhead": {
        "host_us_*": "host time (µs)_*",
    },
    "measured_hbm": {
        "kernel_name": "kernel",
    },
    "ep_by_rank": {
        "kernel_us_*": "kernel time_*",
    },
    "ep_long": {
        "kernel_us": "kernel time",
    },
    "ep_summary": {
        "kernel_us_*": "kernel time_*",
    },
    "nccl_all2allv_heatmap": {
        "operation_count": "count",
    },
    "nccl_long": {
        "start_us": "ts", "duration_us": "dur", "out_mb": "Out msg size (MB)",
    },
    "nccl_summary_implicit_sync": {
        "wait_per_rank_us_sum": "total avg_wait_time",
    },
    "ranks": {
        "computation_us": "computation ms", "idle_us": "idle ms",
    },
    "step_cost": {
        "step_us_median": "step (µs)",
    },
    "straggler_summary": {
        "wait_us_sum": "total_wait_time_us", "wait_us_mean": "mean_wait_time_us",
        "duration_us_sum": "total_nccl_dur_us",
    },
    FAMILIES: {
        "gflops": "GFLOPS_first", "hbm_mb": "Data Moved (MB)_first", "flops_per_byte": "FLOPS/Byte_first",
        "wire_mb": "Interconnect Data (MB)_first", "expected_remote_mb": "Expected Remote Data (MB)_first",
        "remote_from": "Remote Data From_first", "copies_per_token": "Copies per Token_first",
        "rows_from": "Exchanged Rows From_first", "deepep_us": "DeepEP Estimate (µs)_first",
        "operation_count": "name_count", "example_row": "UID_first", "process_name": "process_name_first",
        "process_label": "process_label_first", "thread_name": "thread_name_first", "input_dims": "Input Dims_first",
        "input_types": "Input type_first", "input_strides": "Input Strides_first",
        "concrete_inputs": "Concrete Inputs_first", "kernel_details": "kernel_details__summarize_kernel_stats",
    },
}  # fmt: skip
#: Columns that a sheet shows again, in ms: (behind which column, header by key).
_AGAIN: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ops_summary": ("subtree_us_sum", {"direct_us_sum": "total_direct_kernel_time_ms",
                                       "subtree_us_sum": "total_subtree_kernel_time_ms"}),
}  # fmt: skip
_IS_MS = re.compile(r"\bms\b|_ms$")


def header(key: str, sheet: str) -> str:
    """The header of a key in a sheet, or in ``FAMILIES``.

    >>> header("kernel_us_sum", "unified_perf_summary"), header("direct_us_sum", "ops_summary_by_category")
    ('Kernel Time (µs)_sum', 'total_direct_kernel_time_ms')
    """
    if key.startswith(PARAMETER_PREFIX):
        return key.replace(PARAMETER_PREFIX, "param: ", 1)
    base, statistic = split_statistic(key)
    for names in (_IN_SHEET.get(sheet, {}), _HEADERS):
        if key in names:
            return names[key]
        if statistic and f"{base}_*" in names:
            return names[f"{base}_*"].replace("*", statistic)
    return key


def with_tracelens_headers(sheet: Sheet) -> Sheet:
    """The same sheet with headers in place of keys and titles."""
    by_key = {column.key: column for column in sheet.columns}
    named = [(column, header(key, FAMILIES if sheet.is_family else sheet.title)) for key, column in by_key.items()]
    behind, again = _AGAIN.get(sheet.title, ("", {}))
    if behind in by_key:
        at = [*by_key].index(behind) + 1
        named[at:at] = [(by_key[key], title) for key, title in again.items()]
    columns, cells = [], {}
    for column, title in named:
        column, values = replace(column, key=title, shown_as=title), sheet.frame[column.key]
        if "µs" in column.unit and _IS_MS.search(title):
            column, values = replace(column, unit="ms", number_format=MS), values / US_PER_MS
        columns.append(column)
        cells[title] = values
    return replace(sheet, frame=pd.DataFrame(cells), columns=tuple(columns))


class NamedSheets:
    """``sheets["GEMM"]`` is the sheet of that name as a DataFrame.

    ``named``: the same sheets with the column names that were chosen, which CSV files and the workbook have too.
    """

    def __init__(self, sheets: tuple[Sheet, ...], column_names: str = KEYS) -> None:
        if column_names not in (KEYS, TRACELENS):
            raise UsageError(f"column_names is {KEYS!r} or {TRACELENS!r}, not {column_names!r}")
        self.sheets = sheets
        self.named = tuple(map(with_tracelens_headers, sheets)) if column_names == TRACELENS else sheets

    def __getitem__(self, title: str) -> pd.DataFrame:
        """The sheet ``title``; UsageError, naming near ones, when the report has none."""
        found = by_title(self.named, title)
        if found is None:
            raise UsageError.unknown("sheet", title, self)
        return found.frame

    def __iter__(self) -> Iterator[str]:
        return iter([made.title for made in self.sheets])

    def __len__(self) -> int:
        return len(self.sheets)

    def __contains__(self, title: object) -> bool:
        return any(made.title == title for made in self.sheets)

    def to_csv(self, folder: str | PathLike[str]) -> Path:
        """Writes one CSV file per sheet."""
        from tracelens.report.export import write_csv

        write_csv(folder, self.named)
        return Path(folder)


def refuse_folder(folder: Path, is_ours: Callable[[], bool], what: str) -> None:
    """InputError for a file, or where the folder above does not exist; UsageError for a folder with something else."""
    if not folder.absolute().parent.is_dir():
        raise InputError(f"cannot write {folder}: there is no folder {folder.parent}")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, but a report is a folder")
    if any(folder.iterdir()) and not is_ours():
        raise UsageError(f"{folder} exists and is not {what}; choose another folder with -o")
