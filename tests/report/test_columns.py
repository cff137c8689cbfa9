"""Headers: as users know them, each once, and never ambiguous about which memory a rate is of."""

from __future__ import annotations

import pytest

from tracelens.analysis.sheets import built_in_sheets
from tracelens.analysis.sheets.ops.families import COLUMNS as FAMILY
from tracelens.analysis.sheets.ops.unified_perf_summary import COLUMNS as UNIFIED
from tracelens.errors import UsageError
from tracelens.schema import Column, ColumnSet, column_for, column_set

ALL_SETS = {title: claim.options["columns"] for title, claim in built_in_sheets().items()} | {"family": FAMILY}


def headers(columns: ColumnSet) -> set[str]:
    return {column.header for column in columns.values()}


KNOWN = {
    "gpu_timeline": "type|time ms|percent",
    "ops_summary_by_category": "op category|Count|total_direct_kernel_time_ms|Percentage (%)|Cumulative Percentage (%)",
    "ops_summary": "name|total_direct_kernel_time_sum|total_subtree_kernel_time_sum|total_direct_kernel_time_ms|"
    "total_subtree_kernel_time_ms|Count|Categories|Percentage (%)|Cumulative Percentage (%)",
    "ops_unique_args": "name|op category|process_name|process_label|thread_name|Input Dims|Input type|Input Strides|"
    "Concrete Inputs|operation_count|total_direct_kernel_time_mean|total_subtree_kernel_time_median|"
    "total_direct_kernel_time_std|total_direct_kernel_time_min|total_direct_kernel_time_max|"
    "total_subtree_kernel_time_sum|ex_UID|kernel_details_summary|trunc_kernel_details|Percentage (%)",
    "unified_perf_summary": "ex_UID|operation_count|total_duration_us|mean_duration_us|std_duration_us|duration_us_median|"
    "duration_us_min|duration_us_max|GFLOPS|Data Moved (MB)|FLOPS/Byte|Compute Spec|TB/s_mean|TB/s_std|TFLOPS/s_mean|"
    "TFLOPS/s_median|Kernel Time (\u00b5s)_mean|Kernel Time (\u00b5s)_sum|Roofline Time (\u00b5s)_first|Roofline Bound|"
    "Pct Roofline_mean|perf_params|has_perf_model|Effective Interconnect TB/s_mean",
    "family": "name|GFLOPS_first|Data Moved (MB)_first|FLOPS/Byte_first|TB/s_mean|TFLOPS/s_max|Compute Spec|"
    "Kernel Time (\u00b5s)_sum|name_count|UID_first|Input Dims_first|Input type_first|Input Strides_first|"
    "Concrete Inputs_first|process_name_first|kernel_details__summarize_kernel_stats|trunc_kernel_details",
    "coll_analysis": "rank|Process Group Name|Process Group Ranks|Collective name|Group size|dtype|In msg nelems|"
    "Out msg nelems|In split size|Out split size|stream|In msg size (MB)_first|Out msg size (MB)_first|dur_sum|dur_mean|"
    "dur_std|dur_min|dur_max|operation_count",
    "kernel_summary": "Parent op category|Parent cpu_op|Kernel name|Kernel stream|Kernel duration (\u00b5s)_sum|"
    "Kernel duration (\u00b5s)_count|Kernel duration (\u00b5s)_mean|Kernel duration (\u00b5s)_min|"
    "Kernel duration (\u00b5s)_max|Percent of kernels time (%)|Percent of total time (%)",
    "short_kernel_histogram": "bin_start|bin_end|count",
    "short_kernels_summary": "Parent cpu_op|Input dims|Input strides|Concrete Inputs|Kernel name|"
    "Short Kernel duration (\u00b5s) sum|Short Kernel count|Short Kernel duration (\u00b5s) mean|"
    "Short Kernel duration (\u00b5s) percent of total time",
}


@pytest.mark.parametrize("sheet", KNOWN)
def test_headers_are_those_that_scripts_know(sheet):
    assert set(KNOWN[sheet].split("|")) <= headers(ALL_SETS[sheet])


def test_the_micro_sign_is_u00b5_everywhere():
    assert not [h for columns in ALL_SETS.values() for h in headers(columns) if "\u03bc" in h]


def test_every_rate_in_terabytes_says_in_its_note_whether_it_is_hbm_or_wire():
    # Amounts that an allocator holds, or that a copy moves over PCIe, are neither
    sets = [
        columns
        for title, columns in ALL_SETS.items()
        if title not in ("copies", "memory", "memory_blocks", "memory_timeline")
    ]
    rates = [c for columns in sets for c in columns.values() if "TB/s" in c.header or "(MB)" in c.header]
    assert rates
    for column in rates:
        assert ("HBM" in column.note) != ("Wire" in column.note or "wire" in column.note) or "Never" in column.note
        assert column.note.startswith(("HBM", "Wire", "Least device-memory (HBM)")), column.header


def test_interconnect_and_device_memory_share_no_column():
    wire = {c.header for c in UNIFIED.values() if c.note.startswith("Wire")}
    assert wire
    assert not wire & {c.header for c in UNIFIED.values() if "HBM:" in c.note}


def test_every_column_says_what_it_means():
    assert not [c.key for columns in ALL_SETS.values() for c in columns.values() if not c.note]


def test_a_key_means_the_same_quantity_in_the_unified_table_and_the_family_sheets():
    for key in set(UNIFIED) & set(FAMILY):
        assert UNIFIED[key].meaning == FAMILY[key].meaning


def test_two_columns_with_one_header_are_refused():
    with pytest.raises(UsageError, match="share a key or a header"):
        column_set(Column(key="a", header="x", meaning="m"), Column(key="b", header="x", meaning="m"))


def test_a_key_nobody_described_shows_itself():
    assert column_for("param: M", UNIFIED).header == "param: M"
    assert column_for("tokens_dropped", UNIFIED).header == "tokens_dropped"
