"""A small analysis made by hand: one GEMM, one token exchange, one hostile name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tracelens
from tests.report.headless import Browser
from tracelens.analysis.verdict.summary import (
    BEFORE_PROFILING,
    Busy,
    CategoryRow,
    Coverage,
    DeviceSummary,
    Excluded,
    Finding,
    InputSummary,
    Notice,
    Said,
    Scope,
    Steps,
    StepUtilization,
    Summary,
    SummaryFigure,
    Throughput,
    Unanswered,
    Utilization,
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One tab for all tests that look at pages."""
    opened = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield opened
    finally:
        opened.close()


@pytest.fixture(scope="session")
def moe_page(tmp_path_factory: pytest.TempPathFactory, moe_report: tracelens.Report) -> Path:
    return moe_report.to_html(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(browser: Browser, moe_page: Path) -> Browser:
    """The page of the example in the tab, nothing said yet."""
    browser.heard.clear()
    browser.open(moe_page)
    return browser


HOSTILE = "=cmd|' /C calc'!A1\x1b[2J\x00<b>&"
STATISTICS = ("mean", "median", "std", "min", "max")


@dataclass
class HandMade:
    """What ``Report`` takes for an analysis."""

    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    families: dict[str, pd.DataFrame] = field(default_factory=dict)


def spread(key: str, value: float | None) -> dict[str, float | None]:
    """All statistics of one call: the value, and no deviation."""
    return {f"{key}_{s}": (None if s == "std" else value) for s in STATISTICS}


def call(name: str, **values: Any) -> dict[str, Any]:
    """A row of the unified table; what is not given is None."""
    empty = dict.fromkeys(
        ("category", "input_dims", "input_types", "input_strides", "concrete_inputs", "gflops", "hbm_mb", "flops_per_byte",
         "compute_spec", "wire_mb", "expected_remote_mb", "roofline_us", "roofline_bound", "percent_of_peak", "backend",
         "perf_params", "model", "launch_gap_us", "note")
    )  # fmt: skip
    rates = [
        spread(key, None) for key in ("hbm_tb_s", "tflops_s", "effective_interconnect_tb_s", "percent_of_roofline")
    ]
    row: dict[str, Any] = {"name": name, **empty}
    for rate in rates:
        row |= rate
    row |= {"operation_count": 1, "example_row": 7, "has_perf_model": values.get("model") is not None} | values
    return row


def unified() -> pd.DataFrame:
    """128 x 256 x 512 in BF16: 2*m*n*k = 33.6 MFLOP, 10 us, so 3.36 TFLOPS/s."""
    gemm = call(
        "aten::mm", category="GEMM", input_dims="((128, 512), (512, 256))", input_types="('c10::BFloat16', 'c10::BFloat16')",
        input_strides="((512, 1), (256, 1))", concrete_inputs="('', '')", operation_count=4, gflops=0.033554432,
        hbm_mb=0.458752, flops_per_byte=73.14, compute_spec="matrix_bf16", roofline_us=5.0, roofline_bound="compute",
        backend="roofline", perf_params="{'M': 128, 'N': 256, 'K': 512, 'bias': False}", model="GEMM", launch_gap_us=1.5,
        percent_of_peak=40.0, kernel_us_sum=40.0, **spread("kernel_us", 10.0), **spread("tflops_s", 3.3554432),
        **spread("hbm_tb_s", 0.0458752), **spread("percent_of_roofline", 50.0),
    )  # fmt: skip
    exchange = call(
        "DeepEPDispatch", category="EP_Communication", input_dims="((4096, 7168),)", input_types="('c10::BFloat16',)",
        input_strides="((7168, 1),)", concrete_inputs="('',)", gflops=0.0, wire_mb=58.720256, model="EPComm",
        perf_params="{'tokens': 4096, 'hidden': 7168}", expected_remote_mb=51.380224,
        kernel_us_sum=600.0, **spread("kernel_us", 600.0), **spread("tflops_s", 0.0),
        **spread("effective_interconnect_tb_s", 0.0978670933), **spread("percent_of_roofline", 120.0),
    )  # fmt: skip
    unknown = call(HOSTILE, category="other", kernel_us_sum=5.0, note="no perf model", **spread("kernel_us", 5.0))
    frame = pd.DataFrame([gemm, exchange, unknown])
    frame["percent"] = 100 * frame["kernel_us_sum"] / frame["kernel_us_sum"].sum()
    frame["cumulative_percent"] = frame["percent"].cumsum()
    return frame


def family(frame: pd.DataFrame, name: str, parameters: dict[str, Any]) -> pd.DataFrame:
    """One row of the unified table as its family's sheet."""
    row = frame[frame["name"] == name].drop(columns=["perf_params", "model", "has_perf_model", "note", "launch_gap_us"])
    return row.assign(**{f"param_{key}": value for key, value in parameters.items()}, nested=False)


@pytest.fixture
def summary() -> Summary:
    return Summary(
        input=InputSummary(file="moe-16b.pt.trace.json.gz", events=600_345, ranks=(3,), world_size=8, torch_version="2.9"),
        device=DeviceSummary(
            id="mi300x", label="MI300X", matched_by="properties", doubtful=("fp6 matrix peak",),
            figures=(SummaryFigure(what="bf16 matrix peak", value=1307.4, unit="TFLOPS/s", source="AMD data sheet, dense"),
                     SummaryFigure(what="HBM peak", value=5.3, unit="TB/s", source="AMD data sheet")),
        ),
        scope=Scope(
            kind="steps", count=4, named="ProfilerStep", numbers="3-6", events=9_000, time_us=700_000.0,
            excluded=(Excluded(why=BEFORE_PROFILING, events=14, time_us=36_000.0),),
        ),
        coverage=Coverage(perf_model=0.912, flops=0.5, categorised=0.99, unlinked=0.03, communication=0.12, shapes=True),
        busy=Busy(compute=0.784, exposed_comm=0.119, memcpy=0.015, idle=0.082, total_us=736_000.0),
        steps=Steps(
            count=4, time_us=184_000.0, spread=0.012, shortest_us=181_800.0, longest_us=186_200.0, window="3-6",
            left_out="steps 0-2",
        ),
        throughput=Throughput(
            tflops_s=300.0, dtype="bf16", device_share=0.5, of_peak=0.23, of_achievable=0.42, window_of_peak=0.1
        ),
        categories=(
            CategoryRow(name="GEMM", time_us=79_500.0, share=0.432, tflops_s=520.0, hbm_tb_s=1.1, bound="compute", of_roofline=0.4, of_peak=0.398, backend="roofline"),
            CategoryRow(name="EP_Communication", time_us=21_700.0, share=0.118, wire_tb_s=0.21, bound="wire", of_roofline=0.47),
            CategoryRow(name="other", time_us=14_900.0, share=0.081),
        ),
        findings=(Finding(id="op_below_roofline", op="aten::mm", gain_us=16_300.0, certainty="medium", why="mm 4096x14336x4096 bf16, 32 calls: 57 % of achievable", time_us=38_000.0, figures=(Said(what="calls", value=32, unit="count"),)),),
        notices=(Notice(id="unlinked", count=14, text="14 device events have no recorded launch"),),
        cannot_answer=(Unanswered(question="which line of Python launched this", because="with_stack was off"),),
        extensions=("megatron",),
    )  # fmt: skip


@pytest.fixture
def utilization() -> Utilization:
    return Utilization(
        model="moe-16b", work="training", tokens=32_768, sequence=4096, tokens_source="--batch x --sequence", ranks=2,
        ranks_source="--ranks", dtype="bf16", time_us=184_000.0, model_flops=48.1e12, hardware_flops=55.3e12,
        hardware_coverage=0.912, mfu=0.2, mfu_of_achievable=0.369, hfu=0.23, hfu_of_achievable=0.424,
        steps=(StepUtilization(step=3, time_us=184_000.0, mfu=0.2, hfu=0.23),),
    )  # fmt: skip


@pytest.fixture
def analysis() -> HandMade:
    calls = unified()
    return HandMade(
        frames={
            "unified_perf_summary": calls,
            "gpu_timeline": pd.DataFrame({"type": ["busy_time", "idle_time"], "time_us": [900.0, 100.0], "percent_of_window": [90.0, 10.0]}),
            "kernel_summary": pd.DataFrame(
                {"category": ["GEMM"], "parent_op": ["aten::mm"], "kernel_name": ["@kernel<float>"], "stream": [7],
                 "duration_us_sum": [40.0], "kernels": [4], "duration_us_mean": [10.0], "duration_us_min": [9.0],
                 "kernel_us_max": [11.0], "percent_of_kernels": [100.0], "percent_of_window": [4.0]}
            ),
            "coll_analysis": pd.DataFrame(),
        },
        families={
            "GEMM": family(calls, "aten::mm", {"M": 128, "N": 256, "K": 512, "bias": False}),
            "EP_Communication": family(calls, "DeepEPDispatch", {"tokens": 4096, "hidden": 7168}),
        },
    )  # fmt: skip
