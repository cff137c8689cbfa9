"""Attention gets the sums of the engine step that it ran in."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import FILE, AnalysisOptions
from tracelens.trace.table import Kind

Build = Callable[[], Any]
DECODE = "execute_1_context_0(sq0sk0sqsq0sqsk0)_generation_1(sq1sk{n}sqsq1sqsk{n})"
ATTENTION = {"Input Dims": [[1, 8, 64], [1, 2, 64], [1, 2, 64]], "Input type": ["c10::BFloat16"] * 3}


def dims_of(text: str | None) -> str:
    """Recorded dims as one spelling: nested lists."""
    return json.dumps(ast.literal_eval(text)) if isinstance(text, str) else ""


def steps(build: Build, *lengths: int) -> Any:
    """One attention call per step of 100 us, each on its own past, launched from another thread than the engine's."""
    made = build()
    for i, n in enumerate(lengths):
        made.op(DECODE.format(n=n), 100 * i, 90, tid=1, cat="user_annotation")
        made.op("vllm::unified_attention_with_output", 100 * i + 10, 5, tid=2, **ATTENTION)
        made.launch(100 * i + 11, "kernel_unified_attention_2d", 100 * i + 20, 10, tid=2)
    return made


def rows(found: Analysis) -> pd.DataFrame:
    return found.frames["unified_perf_summary"].sort_values("gflops")


def test_calls_of_one_signature_are_rows_of_their_own_where_their_steps_differ(build: Build):
    unified = rows(analyze(steps(build, 100, 300, 100).trace(), AnalysisOptions(), on_demand=True))
    # 2 * 8 heads * (64 + 64) * keys
    assert (unified["gflops"] * 1e9).round().tolist() == [2 * 8 * 128 * 100, 2 * 8 * 128 * 300]
    assert unified["operation_count"].tolist() == [2, 1]
    assert unified["category"].tolist() == ["InferenceAttention"] * 2


def test_an_op_belongs_to_the_innermost_annotation_and_ops_outside_have_no_model(build: Build):
    made = steps(build, 100)
    made.op(DECODE.format(n=700), 5, 60, tid=1, cat="user_annotation")
    made.op("vllm::unified_attention_with_output", 95, 4, tid=2, **ATTENTION)
    made.launch(96, "kernel_unified_attention_2d", 120, 10, tid=2)
    unified = rows(analyze(made.trace(), AnalysisOptions(steps=FILE), on_demand=True))
    assert (unified["gflops"].iloc[0] * 1e9).round() == 2 * 8 * 128 * 700
    assert "no step annotation" in unified["note"].iloc[1]
    assert unified["category"].tolist() == ["InferenceAttention"] * 2


def test_ops_that_read_no_step_stay_one_row(build: Build):
    made = steps(build, 100, 300)
    for at in (30, 130):
        made.mm(8, 8, 8, at=at, start=at + 5, duration=2)
    unified = analyze(made.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"]
    assert unified.loc[unified["name"] == "aten::mm", "operation_count"].tolist() == [2]


@pytest.mark.shared
def test_a_prefill_of_sglang_agrees_with_the_table_beside_it(shared_traces: Path, real_analysis: RealAnalysis):
    folder = shared_traces / "inference" / "sglang_prefilldecode"
    found = real_analysis("inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode", on_demand=True)
    assert [extension.name for extension in found.extensions] == ["aiter", "sglang", "vllm"]
    assert found.coverage.perf_model is not None
    assert found.coverage.perf_model > 0.9999
    table = pd.read_csv(folder / "perf_csvs" / "unified_perf_summary.csv")
    ours = found.frames["unified_perf_summary"]
    ours = ours.assign(dims=[dims_of(text) for text in ours["input_dims"]]).groupby(["name", "dims"])
    ours = ours.agg(us=("kernel_us_sum", "sum"), gflops=("gflops", "first"), mb=("hbm_mb", "first"))
    compared = 0
    for row in table.to_dict("records"):
        name, us = row["name"], row["Kernel Time (µs)_sum"]
        if row["op category"] == "other" or us < 100:
            continue
        mine = ours.loc[(name, dims_of(row["Input Dims"]))]
        assert mine["us"] == pytest.approx(us, rel=0.01), name
        if name not in ("aten::copy_", "aten::argmax"):  # a copy has no FLOPs here; argmax has no model there
            assert mine["gflops"] == pytest.approx(row["GFLOPS"], rel=1e-6), name
            assert mine["mb"] * 1e6 == pytest.approx(row["Data Moved (MB)"] * 2**20, rel=1e-6), name
        compared += 1
    assert compared >= 14


#: A trace, and the trace of its graphs' capture where there is one.
SGLANG = ("inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode",)
VLLM = (
    "inference/vllm_decode_full/graph_execution",
    "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace",
)


@pytest.mark.shared
@pytest.mark.parametrize("which", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_kernel_times_by_kernel_name_agree_with_the_table(
    shared_traces: Path, real_analysis: RealAnalysis, which: tuple[str, ...]
):
    found, tables = real_analysis(*which, on_demand=True), (shared_traces / which[0]).parent / "perf_csvs"
    theirs: dict[str, float] = {}
    for details in pd.read_csv(tables / "ops_unique_args.csv")["kernel_details_summary"]:
        for name, us in re.findall(
            r"'name': '(.*?)', 'stream'.*?'total_duration_us': np\.float64\(([0-9.e+-]+)", details
        ):
            theirs[name] = theirs.get(name, 0.0) + float(us)
    ours = found.frames["kernel_summary"].groupby("kernel_name")["duration_us_sum"].sum()
    assert set(ours.index) == set(theirs)
    for name, us in theirs.items():
        assert ours[name] == pytest.approx(us, rel=0.01), name


@pytest.mark.shared
@pytest.mark.parametrize("which", [SGLANG, VLLM], ids=["sglang", "vllm"])
def test_kernel_times_by_category_agree_with_the_table(
    shared_traces: Path, real_analysis: RealAnalysis, which: tuple[str, ...]
):
    """What the table has in ``other`` is in another category here, so nothing else may be in one that it does have.

    Within 10 us: a copy within ``aten::cumsum`` counts for the cumsum here, and as elementwise there.
    """
    found, tables = real_analysis(*which, on_demand=True), (shared_traces / which[0]).parent / "perf_csvs"
    assert found.coverage.categorised is not None
    assert found.coverage.categorised > 0.999
    table = pd.read_csv(tables / "ops_summary_by_category.csv")
    theirs = table.groupby("op category")["total_direct_kernel_time_ms"].sum()
    kernels = np.isin(found.trace.table.kind, [Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET])
    assert theirs.sum() == pytest.approx(found.trace.table.duration_ns[kernels].sum() / 1e6, rel=0.01)
    ours = found.frames["ops_summary_by_category"].set_index("category")["direct_us_sum"] / 1e3
    for category, expected in theirs.items():
        if category != "other":
            assert ours[category] == pytest.approx(expected, rel=0.01, abs=0.01), category


@pytest.mark.shared
def test_replayed_ops_agree_with_the_table_beside_the_replay(shared_traces: Path, real_analysis: RealAnalysis):
    """Per op of the capture: calls, kernel time, and FLOPs and bytes where the table computes them from shapes."""
    found, tables = real_analysis(*VLLM, on_demand=True), (shared_traces / VLLM[0]).parent / "perf_csvs"
    ours = found.frames["unified_perf_summary"].set_index("name")
    compared = []
    for row in pd.read_csv(tables / "unified_perf_summary.csv").to_dict("records"):
        if row["name"] not in ours.index or row["Kernel Time (µs)_sum"] < 100:
            continue
        mine = ours.loc[[row["name"]]]
        mine = mine.loc[[dims_of(text) == dims_of(row["Input Dims"]) for text in mine["input_dims"]]]
        if len(mine) != 1 or "Synthetic" in row["name"]:
            continue
        assert mine["kernel_us_sum"].iloc[0] == pytest.approx(row["Kernel Time (µs)_sum"], rel=0.01), row["name"]
        assert mine["operation_count"].iloc[0] == row["operation_count"], row["name"]
        if row["GFLOPS"] > 0 and "moe" not in row["name"]:
            assert mine["gflops"].iloc[0] == pytest.approx(row["GFLOPS"], rel=1e-6), row["name"]
        compared.append(row["name"])
    assert len(compared) >= 8
