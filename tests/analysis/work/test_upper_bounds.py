"""Work that is an upper bound (padding rows, rows read again) is marked, and no single figure is made of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.verdict.verdict import summarize
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.gemm import PADDED_ROWS
from tracelens.report.figures import shown_tflops

QWEN = "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005"
UP = [[8944, 1024], [1024, 2816]]


def grouped(shared_traces: Path, tmp_path: Path, *, offsets: bool, rows: int) -> Analysis:
    """Qwen with the up-projections' products as grouped ones: of ``rows`` times as many rows with offsets, else of
    eight equal matrices without.
    """
    recorded = json.loads(gzip.decompress((shared_traces / f"{QWEN}.json.gz").read_bytes()))
    (m, k), (_, n) = UP
    shapes = [[rows * m, k], [8, k, n], [8]] if offsets else [[8, m // 8, k], [8, k, n], []]
    for event in recorded["traceEvents"]:
        if event["name"] == "aten::mm" and event["args"].get("Input Dims") == UP:
            kind = event["args"]["Input type"][0]
            event["name"] = "aten::_grouped_mm"
            event["args"] |= {
                "Input Dims": [*shapes, [], []], "Input type": [kind, kind, "int" if offsets else "", "", ""],
                "Concrete Inputs": [""] * 5,
                "Input Strides": [[1] * len(shape) for shape in shapes] + [[], []],
            }  # fmt: skip
    path = tmp_path / "grouped.json"
    path.write_text(json.dumps(recorded))
    return analyze(load(path), AnalysisOptions())


def grouped_rows(found: Analysis) -> pd.DataFrame:
    rows = found.frames["unified_perf_summary"]
    return rows[rows["name"] == "aten::_grouped_mm"]


def headline(found: Analysis) -> Any:
    throughput = summarize(found).throughput
    assert throughput is not None
    return throughput


@pytest.mark.sweep
@pytest.mark.shared
def test_padding_rows_of_grouped_products_are_at_most_and_outside_the_headline(
    shared_traces: Path, tmp_path: Path, real_analysis: RealAnalysis
):
    found, plain = grouped(shared_traces, tmp_path, offsets=True, rows=8), real_analysis(QWEN)
    rows = grouped_rows(found)
    assert len(rows) > 0
    assert set(rows["work_at_most"]) == {PADDED_ROWS}
    (m, k), (_, n) = UP
    assert rows["gflops"].tolist() == pytest.approx([2 * 8 * m * k * n / 1e9] * len(rows))
    for share in ("percent_of_peak", "percent_of_roofline_mean", "percent_of_roofline_max"):
        assert rows[share].isna().all(), "eight times the rows would be above 100 %"
    others = plain.frames["unified_perf_summary"]
    others = others[others["compute_spec"].astype(str).str.startswith("matrix_") & (others["gflops"] > 0)]
    others = others[others["input_dims"] != str(tuple(map(tuple, UP)))]
    work = (others["gflops"] * others["operation_count"]).sum()
    # GFLOP per us are 1e3 TFLOPS/s
    assert headline(found).tflops_s == pytest.approx(1e3 * work / others["kernel_us_sum"].sum(), rel=1e-3)
    assert headline(found).of_peak < headline(plain).of_peak * 1.5
    (category,) = [row for row in summarize(found).categories if row.name == "GroupedGEMM_fwd"]
    assert (category.work_at_most, category.of_roofline, category.of_peak) == (True, None, None)
    assert (shown_tflops(category) or "").startswith("≤ ")
    (said,) = [notice.text for notice in summarize(found).notices if notice.id == "work_at_most"]
    assert "aten::_grouped_mm" in said
    assert said.endswith("not part of the utilization")


@pytest.mark.shared
def test_a_share_below_100_percent_of_work_at_most_is_shown(shared_traces: Path, tmp_path: Path):
    rows = grouped_rows(grouped(shared_traces, tmp_path, offsets=True, rows=1))
    assert set(rows["work_at_most"]) == {PADDED_ROWS}
    assert rows["percent_of_peak"].between(1, 100).all()


@pytest.mark.sweep
@pytest.mark.shared
def test_equal_matrices_without_offsets_are_exact_and_in_the_headline(
    shared_traces: Path, tmp_path: Path, real_analysis: RealAnalysis
):
    found, plain = grouped(shared_traces, tmp_path, offsets=False, rows=1), real_analysis(QWEN)
    assert grouped_rows(found)["work_at_most"].isna().all()
    assert headline(found).tflops_s == pytest.approx(headline(plain).tflops_s)
    assert "work_at_most" not in {notice.id for notice in summarize(found).notices}


@pytest.mark.shared
def test_look_ups_read_their_tables_at_most_once(real_analysis: RealAnalysis):
    """8,855,045 weighted look-ups of 160 columns in 279,988,640 elements of FP16: 2.83 GB, were every row another."""
    found = real_analysis("hta/trace_filter/sampled_rank-0", device=HardwareSpec.load("a100-sxm-40gb"), on_demand=True)
    rows = found.frames["unified_perf_summary"]
    rows = rows[rows["name"].str.startswith("fbgemm::split_embedding_codegen_lookup")]
    small = rows[rows["input_dims"].str.contains("8855045")].iloc[0]
    table, indices, weights, bags = 2 * 279_988_640, 8 * (8_855_045 + 262_145), 4 * 8_855_045, 4 * 262_144 * 160
    assert small["hbm_mb"] == pytest.approx((table + indices + weights + bags) / 1e6)
    assert small["work_at_most"] == "rows that several indices name count each time"
    large = rows[rows["input_dims"].str.contains("30055769")].iloc[0]
    read, indices, bags = 2 * 30_055_769 * 160, 8 * (30_055_769 + 2_359_297), 4 * 2_359_296 * 160
    assert large["hbm_mb"] == pytest.approx((read + indices + bags) / 1e6), "the table is larger than what is looked up"
    assert rows["percent_of_peak"].between(0, 100).all()
