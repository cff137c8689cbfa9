"""Attention gets the sums of the engine step that it ran in."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.options import Options
from tracelens.analysis.trace import load
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
    unified = rows(analyze(steps(build, 100, 300, 100).trace(), Options()))
    # 2 * 8 heads * (64 + 64) * keys
    assert (unified["gflops"] * 1e9).round().tolist() == [2 * 8 * 128 * 100, 2 * 8 * 128 * 300]
    assert unified["operation_count"].tolist() == [2, 1]
    assert unified["category"].tolist() == ["InferenceAttention"] * 2


def test_an_op_belongs_to_the_innermost_annotation_and_ops_outside_have_no_model(build: Build):
    made = steps(build, 100)
    made.op(DECODE.format(n=700), 5, 60, tid=1, cat="user_annotation")
    made.op("vllm::unified_attention_with_output", 95, 4, tid=2, **ATTENTION)
    made.launch(96, "kernel_unified_attention_2d", 120, 10, tid=2)
    unified = rows(analyze(made.trace(), Options()))
    assert (unified["gflops"].iloc[0] * 1e9).round() == 2 * 8 * 128 * 700
    assert "no annotation of the step" in unified["note"].iloc[1]
    assert unified["category"].tolist() == ["InferenceAttention"] * 2


def test_ops_that_read_no_step_stay_one_row(build: Build):
    made = steps(build, 100, 300)
    for at in (30, 130):
        made.mm(8, 8, 8, at=at, start=at + 5, duration=2)
    unified = analyze(made.trace(), Options()).frames["unified_perf_summary"]
    assert unified.loc[unified["name"] == "aten::mm", "operation_count"].tolist() == [2]


@pytest.mark.shared
def test_a_prefill_of_sglang_agrees_with_the_table_beside_it(shared_traces: Path):
    folder = shared_traces / "inference" / "sglang_prefilldecode"
    found = analyze(load(folder / "sglang_Qwen3-8B_prefilldecode.json.gz"), Options())
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


@pytest.mark.shared
@pytest.mark.parametrize(
    "which", ["sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode", "vllm_decode_full/graph_execution"]
)
def test_kernel_times_and_categories_by_name_agree_with_the_table(shared_traces: Path, which: str):
    path = shared_traces / "inference" / f"{which}.json.gz"
    found = analyze(load(path), Options())
    assert found.coverage.categorised is not None
    assert found.coverage.categorised > 0.999
    table = pd.read_csv(path.parent / "perf_csvs" / "ops_summary_by_category.csv")
    theirs = table.groupby("op category")["total_direct_kernel_time_ms"].sum()
    kernels = np.isin(found.trace.table.kind, [Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET])
    total_ms = found.trace.table.duration_ns[kernels].sum() / 1e6
    assert theirs.sum() == pytest.approx(total_ms, rel=0.01)
    ours = found.frames["unified_perf_summary"].groupby("category")["kernel_us_sum"].sum() / 1e3
    for category, expected in theirs.items():
        if category != "other" and expected > 0.1 and not (category == "elementwise" and "vllm" in which):
            assert ours[category] == pytest.approx(expected, rel=0.01), category
