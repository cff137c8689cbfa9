"""Every device event counts in one category, and every table sums by it."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.attribution.calls import COLLECTIVES, COPY
from tracelens.analysis.intervals import overlapping
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.verdict import step_count, summarize
from tracelens.hardware import HardwareSpec

PIECEWISE = "inference/vllm_prefilldecode_piecewise/graph_execution.json.gz"
KERNELS_ONLY = "mi210/gpu_only_trace.json.gz"


def by_category(found: Analysis, frame: str, category: str, time: str) -> dict[str, float]:
    rows = found.frames[frame]
    return rows.groupby(category)[time].sum().to_dict()


def sums(found: Analysis) -> dict[str, float]:
    """Microseconds by category, recomputed event by event."""
    duration = pd.Series(found.activity.duration / 1e3)
    return duration.groupby(found.event_category.tolist()).sum().to_dict()


def check_sums(found: Analysis) -> None:
    expected = sums(found)
    assert sum(expected.values()) * 1e3 == pytest.approx(found.activity.duration.sum())
    assert by_category(found, "kernel_summary", "category", "duration_us_sum") == pytest.approx(expected)
    divisor = max(1, step_count(found))
    of_steps = {row.name: row.time_us * divisor for row in summarize(found).categories}
    assert of_steps == pytest.approx(expected), "verdict and sheets speak of the same"
    assert all(row.share <= 1 + 1e-9 for row in summarize(found).categories)
    of_ops = {name: us for name, us in expected.items() if name != COLLECTIVES}
    direct = by_category(found, "ops_summary_by_category", "category", "direct_us_sum")
    assert direct == pytest.approx(of_ops)
    if not overlapping(found.activity.start, found.activity.end).any():
        assert by_category(found, "unified_perf_summary", "category", "kernel_us_sum") == pytest.approx(of_ops)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (PIECEWISE, {"triton": 2_050, "MoE_unfused": 124_900}),
        (KERNELS_ONLY, {"GEMM": 90}),
    ],
)
def test_a_launch_of_many_kernels_is_counted_by_kernel(
    real_analysis: RealAnalysis, name: str, expected: dict[str, float]
):
    found = real_analysis(name, on_demand=True)
    us = by_category(found, "ops_summary_by_category", "category", "direct_us_sum")
    assert {key: us[key] for key in expected} == pytest.approx(expected, abs=50)


def test_a_call_with_kernels_of_several_categories_has_several_rows(build):
    made = build().op("my::launcher", 0, 50, **{"Input Dims": [[4]], "Input type": ["float"]})
    made.launch(1, "Cijk_Ailk_Bljk", 10, 30).launch(2, "softmax_kernel", 40, 5).launch(3, "Cijk_Ailk_Bljk", 45, 20)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    check_sums(found)
    rows = found.frames["ops_unique_args"].set_index("category")
    assert rows["direct_us_sum"].to_dict() == {"GEMM": 50, "softmax": 5}
    assert rows["subtree_us_sum"].to_dict() == {"GEMM": 55, "softmax": 0}
    assert found.frames["ops_summary"]["operation_count"].tolist() == [1]
    unified = found.frames["unified_perf_summary"]
    assert sorted(unified["category"]) == ["GEMM", "softmax"]
    assert set(unified["name"]) == {"my::launcher"}


def test_what_communicates_or_rearranges_is_no_matrix_product(build):
    made = build().mm(64, 64, 64, 0, 10, 20)
    made.launch(2, "void deep_gemm::transpose_fp32<512u>(float const*, float*)", 30, 5)
    made.launch(3, "void two_shot_all_reduce_kernel<float>(float*)", 35, 7)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    check_sums(found)
    assert sums(found) == {"GEMM": 20, "memory": 5, "CustomCollective": 7}
    rows = found.frames["unified_perf_summary"].set_index("category")
    assert rows["kernel_us_sum"].to_dict() == {"GEMM": 20, "CustomCollective": 7, "memory": 5}
    assert rows["has_perf_model"].to_dict() == {"GEMM": True, "CustomCollective": False, "memory": False}
    assert found.timeline.exposed_comm_ns == 7000
    assert [family["kernel_us_sum"].sum() for family in found.families.values()] == [20]


def test_kernels_of_an_op_that_communicates_do_so_too(build):
    made = build().op(
        "symm_mem::multimem_all_reduce_", 0, 50, **{"Input Dims": [[4096], [], []], "Input type": ["float", "", ""]}
    )
    made.launch(1, "some_kernel_without_a_telling_name", 10, 30)
    made.op("aten::mul", 10, 5, **{"Input Dims": [[4096], [4096]], "Input type": ["float", "float"]})
    made.launch(12, "vectorized_elementwise_kernel", 40, 5)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    check_sums(found)
    assert sums(found) == {"CustomCollective": 30, "elementwise": 5}
    assert (found.timeline.exposed_comm_ns, found.timeline.computation_ns) == (30_000, 5_000)


@pytest.mark.parametrize("kernel", ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)"])
def test_copies_from_and_to_the_host_are_no_elementwise_op(build, kernel: str):
    made = build().op(
        "aten::copy_", 0, 50, **{"Input Dims": [[4096], [4096], []], "Input type": ["float", "float", "Scalar"]}
    )
    made.launch(1, kernel, 10, 30, cat="gpu_memcpy", bytes=16384)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    check_sums(found)
    assert sums(found) == {COPY: 30}
    row = found.frames["unified_perf_summary"].iloc[0]
    assert row["name"] == f"aten::copy_->{kernel}"
    assert np.isnan(row["hbm_mb"])


def test_a_copy_within_the_device_is_the_work_of_its_op(build):
    made = build().op(
        "aten::copy_", 0, 50, **{"Input Dims": [[4096], [4096], []], "Input type": ["float", "float", "Scalar"]}
    )
    made.launch(1, "Memcpy DtoD (Device -> Device)", 10, 30, cat="gpu_memcpy", bytes=16384)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    check_sums(found)
    assert sums(found) == {"elementwise": 30}
    assert found.frames["unified_perf_summary"].iloc[0]["hbm_mb"] == pytest.approx(2 * 16384 / 1e6)


def copy(build, kernel: str, *, at: float = 0, **args):
    made = build().op("aten::copy_", at, 50, **{"Input Dims": [[4096], [4096], []], "Input type": ["float"] * 2 + [""]})
    return made.launch(at + 1, kernel, at + 10, 100, cat="gpu_memcpy", **args)


@pytest.mark.parametrize(
    ("device", "kernel", "expected"),
    [
        ("mi300x", "Memcpy HtoD (Pinned -> Device)", ("HtoD", "pinned", "PCIe", 64)),
        ("mi300x", "Memcpy DtoH (Device -> Pageable)", ("DtoH", "pageable", "PCIe", 64)),
        ("gh200-96gb", "Memcpy HtoD (Pinned -> Device)", ("HtoD", "pinned", "C2C", 450)),
        ("h100-sxm", "Memcpy PtoP (Device -> Device)", ("PtoP", None, "link", 450)),
        ("rtx-4090", "Memcpy PtoP (Device -> Device)", ("PtoP", None, "PCIe", 32)),
    ],
)
def test_copies_stand_beside_their_path(build, device: str, kernel: str, expected: tuple):
    trace = copy(build, kernel, bytes=1_600_000).trace()
    row = analyze(trace, AnalysisOptions(device=HardwareSpec.load(device)), on_demand=True).frames["copies"].iloc[0]
    assert (row["direction"], row["host_memory"], row["path"], row["path_gb_s"]) == expected
    assert (row["copies"], row["copied_mb"], row["gb_s"]) == (1, 1.6, 16)
    assert row["percent_of_path_peak"] == pytest.approx(100 * 16 / expected[3])


@pytest.mark.parametrize("recorded", [{}, {"bytes": "many"}, {"bytes": -1}, {"bytes": True}])
def test_copies_without_recorded_bytes_have_no_rate(build, recorded: dict):
    row = (
        analyze(copy(build, "Memcpy HtoD (Host -> Device)", **recorded).trace(), AnalysisOptions(), on_demand=True)
        .frames["copies"]
        .iloc[0]
    )
    assert (row["host_memory"], row["duration_us_sum"]) == ("unknown", 100)
    assert np.isnan([row["copied_mb"], row["gb_s"], row["percent_of_path_peak"]]).all()


@pytest.mark.shared
def test_pinned_copies_of_a_recorded_step_are_rated_against_pcie(real_analysis: RealAnalysis):
    found = real_analysis("more/torchbench/trace", on_demand=True)
    rows = found.frames["copies"]
    assert rows[["direction", "host_memory", "path"]].to_numpy().tolist() == [
        ["HtoD", "pinned", "PCIe"],
        ["DtoH", "pinned", "PCIe"],
    ]
    assert rows["gb_s"].tolist() == pytest.approx([10 * 154140672 / 306081e3, 10 * 154140672 / 177200e3])


@pytest.mark.parametrize(("named", "wire_mb"), [("7", 2 * 3 / 4 * (1 << 24) / 1e6), ("8", np.nan)])
def test_collectives_of_custom_kernels_are_priced_on_links_by_their_recorded_group(build, named: str, wire_mb: float):
    made = build().op(
        "symm_mem::multimem_all_reduce_", 0, 50,
        **{"Input Dims": [[1 << 22], [], []], "Input type": ["float", "", ""], "Concrete Inputs": ["", "sum", named]},
    )  # fmt: skip
    made.launch(1, "multimem_all_reduce_kernel", 10, 300)
    groups = [{"pg_name": "7", "ranks": [0, 1, 2, 3]}]
    found = analyze(
        made.trace(distributedInfo={"rank": 0, "world_size": 4, "pg_config": groups}), AnalysisOptions(), on_demand=True
    )
    row = found.frames["unified_perf_summary"].iloc[0]
    assert row["wire_mb"] == pytest.approx(wire_mb, nan_ok=True)
    assert np.isnan(row["hbm_mb"])
    assert row["roofline_bound"] == (None if np.isnan(wire_mb) else "wire")


def gains(found: Analysis) -> dict[str, float]:
    return {finding.id: finding.gain_us or 0.0 for finding in summarize(found).findings}


def test_communication_and_copies_are_claimed_once(build):
    groups = {"distributedInfo": {"pg_config": [{"pg_name": "7", "ranks": [0, 1, 2, 3]}]}}
    made = copy(build, "Memcpy HtoD (Pinned -> Device)", bytes=1_600_000)
    made.op(
        "symm_mem::multimem_all_reduce_", 6, 50,
        **{"Input Dims": [[4096], [], []], "Input type": ["float", "", ""], "Concrete Inputs": ["", "sum", "7"]},
    )  # fmt: skip
    made.launch(7, "multimem_all_reduce_kernel", 110, 300)
    # The host still takes 6 µs of the copy's 100
    assert gains(analyze(made.trace(**groups), AnalysisOptions())) == {
        "exposed_communication": 300,
        "exposed_copies": 94,
    }


def test_copies_beside_one_another_gain_no_more_than_the_window(build):
    made = copy(build, "Memcpy HtoD (Pinned -> Device)", bytes=1_600_000, stream=1)
    made.launch(2, "Memcpy DtoH (Device -> Pinned)", 10, 100, cat="gpu_memcpy", bytes=1_600_000, stream=2)
    found = analyze(made.trace(), AnalysisOptions())
    # At the 64 GB/s of their path, not 16, they would take a quarter of the time
    assert gains(found) == {"exposed_copies": 75}
    row = summarize(found).categories[0]
    assert (row.name, row.time_us, row.share, row.bound) == (COPY, 200, 1, "PCIe")
    assert row.wire_tb_s == pytest.approx(0.016)
    assert row.of_roofline == pytest.approx(16 / 64)
    assert found.coverage.perf_model == 1


@pytest.mark.shared
def test_no_gain_of_a_recorded_step_of_copies_is_longer_than_the_step(real_analysis: RealAnalysis):
    found = real_analysis("more/torchbench/trace")
    summary = summarize(found)
    assert summary.steps is not None
    assert set(gains(found)) == {"exposed_copies"}
    assert 0.3 * summary.steps.time_us < gains(found)["exposed_copies"] <= summary.steps.time_us


@pytest.mark.parametrize(
    ("op", "kernel"),
    [
        ("symm_mem::fused_all_gather_matmul", "Memcpy PtoP (Device -> Device)"),
        ("symm_mem::_low_contention_all_gather", "Memcpy PtoP (Device -> Device)"),
    ],
)
def test_copies_between_devices_of_an_op_that_communicates_do_so(build, op: str, kernel: str):
    made = build().op(op, 0, 100).op("aten::copy_", 1, 20, **{"Input Dims": [[4], [4]], "Input type": ["float"] * 2})
    made.launch(2, kernel, 10, 30, cat="gpu_memcpy", bytes=16)
    made.op("aten::mm", 30, 20, **{"Input Dims": [[4, 4], [4, 4]], "Input type": ["float"] * 2})
    made.launch(31, "Cijk_Ailk_Bljk", 40, 20)
    found = analyze(made.trace(), AnalysisOptions(), on_demand=True)
    check_sums(found)
    assert sums(found) == {"CustomCollective": 30, "GEMM": 20}
    assert (found.timeline.exposed_comm_ns, found.timeline.exposed_memcpy_ns) == (30_000, 0)


@pytest.mark.parametrize("op", ["hybridep::dispatch", "FusedDispatch"])
def test_kernels_of_a_token_exchange_are_communication_on_the_timeline(build, op: str):
    made = build().op(op, 0, 90, **{"Input Dims": [[4096, 7168]], "Input type": ["c10::BFloat16"]})
    made.launch(1, "a_kernel_without_a_telling_name", 10, 100)
    made.op("aten::mul", 20, 5, **{"Input Dims": [[4096], [4096]], "Input type": ["float", "float"]})
    made.launch(21, "vectorized_elementwise_kernel", 110, 20)
    found = analyze(made.trace(), AnalysisOptions())
    check_sums(found)
    assert sums(found) == {"EP_Communication": 100, "elementwise": 20}
    assert (found.timeline.exposed_comm_ns, found.timeline.computation_ns) == (100_000, 20_000)
    assert set(gains(found)) <= {"exposed_communication", "op_below_roofline", "idle"}
    below = [f for f in summarize(found).findings if f.id == "op_below_roofline"]
    assert all(f.op == "aten::mul" for f in below)


def test_a_copy_without_a_recorded_launch_is_a_copy_in_every_table(build):
    made = build().launch(0, "my_kernel", 5, 40).kernel("Memcpy HtoD (Pinned -> Device)", 60, 25, cat="gpu_memcpy")
    by_category = (
        analyze(made.trace(), AnalysisOptions(), on_demand=True).frames["ops_summary_by_category"].set_index("category")
    )
    assert by_category["direct_us_sum"].to_dict() == {"other": 40, "copy": 25}
