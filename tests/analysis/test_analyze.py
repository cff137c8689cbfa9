"""Worked examples with the arithmetic visible."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.analysis.conftest import MI300X
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import NothingToAnalyzeError, UsageError

Build = Callable[[], Any]


def test_rates_are_work_over_kernel_time(build: Build) -> None:
    found = analyze(
        build().mm(1024, 2048, 4096, at=0, start=10, duration=50).trace(), AnalysisOptions(), on_demand=True
    )
    row = found.frames["unified_perf_summary"].iloc[0]
    flops = 2 * 1024 * 2048 * 4096
    nbytes = 2 * (1024 * 2048 + 2048 * 4096 + 1024 * 4096)
    assert row["gflops"] == pytest.approx(flops / 1e9)
    assert row["tflops_s_mean"] == pytest.approx(flops / 50 / 1e6)
    assert row["hbm_tb_s_mean"] == pytest.approx(nbytes / 50 / 1e6)
    # MI300X: 708 TFLOPS/s achievable in bf16, 5.3 TB/s
    assert row["roofline_us"] == pytest.approx(max(flops / 708e6, nbytes / 5.3e6))
    assert row["roofline_bound"] == "compute"
    assert row["percent_of_roofline_mean"] == pytest.approx(100 * flops / 708e6 / 50)


def test_timeline_is_conserved_and_names_what_was_exposed(build: Build) -> None:
    """compute 10-20, NCCL 15-30 on another stream, copy 28-40, idle 40-50, compute 50-60."""
    b = build().op("aten::add", 0, 9)
    b.launch(1, "void at::native::elementwise_kernel", 10, 10)
    b.launch(2, "ncclDevKernel_AllReduce", 15, 15, stream=9)
    b.launch(3, "Memcpy HtoD", 28, 12, stream=11, cat="gpu_memcpy")
    b.launch(4, "void at::native::elementwise_kernel", 50, 10)
    frame = analyze(b.trace(), AnalysisOptions(), on_demand=True).frames["gpu_timeline"].set_index("type")["time_us"]
    assert frame["computation_time"] == pytest.approx(20)
    assert frame["exposed_comm_time"] == pytest.approx(10)
    assert frame["exposed_memcpy_time"] == pytest.approx(10)
    assert frame["idle_time"] == pytest.approx(10)
    assert frame["total_time"] == pytest.approx(50)
    assert frame["total_comm_time"] == pytest.approx(15)
    assert frame["total_memcpy_time"] == pytest.approx(12)


@pytest.mark.parametrize(("unknown_us", "is_known"), [(40, True), (60, False)])
def test_a_category_has_rates_where_most_of_its_time_is_in_calls_of_known_work(
    build: Build, unknown_us: float, is_known: bool
) -> None:
    """50 µs of GEMM with shapes beside kernels of the category whose work nothing says."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    b.op("Outer", 80, 10).launch(81, "Cijk_x", 100, unknown_us)
    (row,) = summarize(analyze(b.trace(), AnalysisOptions())).categories
    assert (row.name, row.time_us, row.backend) == ("GEMM", 50 + unknown_us, "roofline")
    rates = (row.tflops_s, row.hbm_tb_s, row.of_roofline, row.of_peak, row.bound)
    assert {rate is not None for rate in rates} == {is_known}


def test_the_topmost_op_with_a_model_owns_the_kernels_below_it(build: Build) -> None:
    b = build().op("MyModule", 0, 100).op("aten::layer_norm", 10, 40, **norm_arguments())
    b.op("aten::native_layer_norm", 12, 30, **norm_arguments())
    b.launch(15, "vectorized_layer_norm_kernel", 60, 5)
    found = analyze(b.trace(), AnalysisOptions(), on_demand=True)
    assert found.frames["unified_perf_summary"]["name"].tolist() == ["aten::layer_norm"]
    sheet = found.families["Normalization"].set_index("name")["nested"]
    assert sheet.to_dict() == {"aten::layer_norm": False, "aten::native_layer_norm": True}
    assert found.frames["ops_unique_args"]["name"].tolist() == ["aten::native_layer_norm"]


def test_calls_inside_others_are_not_mixed_with_the_same_calls_alone(build: Build) -> None:
    b = (
        build()
        .op("aten::layer_norm", 10, 40, **norm_arguments())
        .op("aten::native_layer_norm", 12, 30, **norm_arguments())
    )
    b.launch(15, "vectorized_layer_norm_kernel", 60, 5)
    b.op("aten::native_layer_norm", 112, 30, **norm_arguments()).launch(115, "vectorized_layer_norm_kernel", 160, 7)
    found = analyze(b.trace(), AnalysisOptions(), on_demand=True)
    sheet = found.families["Normalization"]
    assert sheet[["name", "nested", "kernel_us_sum"]].to_numpy().tolist() == [
        ["aten::native_layer_norm", False, 7.0], ["aten::layer_norm", False, 5.0], ["aten::native_layer_norm", True, 5.0],
    ]  # fmt: skip


def norm_arguments() -> dict[str, Any]:
    return {
        "Input Dims": [[4, 8], [], [8], [8], []],
        "Input type": ["float", "ScalarList", "float", "float", "Scalar"],
        "Concrete Inputs": ["", "[8]", "", "", "1e-05"],
    }


def test_without_known_flops_the_verdict_has_no_rate(build: Build) -> None:
    """Three packed sequences whose lengths were not recorded: nobody knows how many pairs were attended."""
    q = [300, 8, 64]
    arguments = {
        "Input Dims": [q, q, q, [4], [4], [], []],
        "Input type": ["c10::BFloat16"] * 3 + ["int", "int", "Scalar", "Scalar"],
        "Concrete Inputs": ["", "", "", "", "", "200", "200"],
    }
    found = analyze(
        build().op("flash_attn::_flash_attn_varlen_forward", 0, 9, **arguments).launch(1, "fmha_fwd", 10, 5).trace(),
        AnalysisOptions(),
    )
    row = found.frames["unified_perf_summary"].iloc[0]
    assert (row["compute_spec"], math.isnan(row["gflops"])) == ("matrix_bf16", True)
    assert summarize(found).throughput is None


def test_kernels_left_under_a_passed_parent_are_synthetic_rows(build: Build) -> None:
    b = build().op("Outer", 0, 100)
    b.launch(5, "odd_kernel", 110, 3)
    b.mm(64, 64, 64, at=20, start=120, duration=4)
    found = analyze(b.trace(), AnalysisOptions(), on_demand=True)
    names = found.frames["unified_perf_summary"].set_index("name")["kernel_us_sum"].to_dict()
    assert names == {"aten::mm": 4.0, "Outer->odd_kernel (Synthetic Op)": 3.0}


def test_direct_and_subtree_time_of_overlapping_kernels_are_unions(build: Build) -> None:
    """Two kernels of one op, 10-20 and 15-30: 20 us, not 25."""
    b = build().op("Outer", 0, 100)
    b.launch(5, "a_kernel", 10, 10, stream=1).launch(6, "b_kernel", 15, 15, stream=2)
    row = analyze(b.trace(), AnalysisOptions(), on_demand=True).frames["ops_unique_args"].iloc[0]
    assert row["direct_us_sum"] == 20.0
    assert row["subtree_us_sum"] == 20.0


def test_unlinked_kernels_keep_a_row_and_coverage_says_their_share(build: Build) -> None:
    b = build().mm(64, 64, 64, at=0, start=10, duration=30)
    b.kernel("void at::native::elementwise_kernel", 50, 10, correlation=999)
    found = analyze(b.trace(), AnalysisOptions())
    unified = found.frames["unified_perf_summary"].set_index("name")
    assert unified.loc["(unlinked kernels)", "kernel_us_sum"] == 10.0
    assert found.coverage.unlinked == pytest.approx(10 / 40)
    assert found.coverage.perf_model == pytest.approx(30 / 40)
    assert found.coverage.categorised == 1.0
    assert any(notice.id == "unlinked" for notice in summarize(found).notices)


def test_collectives_stay_out_of_op_rows_and_keep_unrecorded_fields_as_none(build: Build) -> None:
    b = build().mm(64, 64, 64, at=0, start=10, duration=30)
    b.op(
        "record_param_comms",
        40,
        10,
        **{"Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000, "dtype": "BFloat16"},
    )
    b.launch(41, "ncclDevKernel_Generic", 60, 20, stream=9)
    found = analyze(b.trace(), AnalysisOptions(), on_demand=True)
    assert "record_param_comms" not in set(found.frames["ops_summary"]["name"])
    row = found.frames["coll_analysis"].iloc[0]
    assert (row["collective"], row["in_nelems"], row["in_mb"], row["group_size"]) == ("allreduce", 1000, 0.002, None)
    assert row["duration_us_sum"] == 20.0
    assert found.coverage.communication == pytest.approx(20 / 50)


def test_steps_count_from_host_start_to_host_start_when_the_device_waits(build: Build) -> None:
    """Steps at 100, 200, 300 whose kernels start 10 later; the last ends at its annotation's end, 400."""
    b = build()
    for i, start in enumerate((100, 200, 300)):
        b.op(f"ProfilerStep#{i + 3}", start, 100, cat="user_annotation")
        b.mm(64, 64, 64, at=start + 1, start=start + 10, duration=50)
    found = analyze(b.trace(), AnalysisOptions())
    assert found.frames["steps"]["duration_us"].tolist() == [100.0, 100.0, 100.0]
    summary = summarize(found)
    assert summary.steps.window == "3-5"
    assert summary.steps.time_us == 100.0
    only = analyze(found.trace, AnalysisOptions(steps="4"))
    assert only.timeline.total_ns == 100_000
    assert only.timeline.computation_ns == 50_000
    assert summarize(only).steps.left_out == "steps 3, 5"
    with pytest.raises(UsageError, match="the trace has steps 3 to 5"):
        analyze(found.trace, AnalysisOptions(steps="9"))


def test_a_last_step_cut_short_is_incomplete_and_not_steady(build: Build) -> None:
    b = build()
    for i in range(4):
        b.op(f"ProfilerStep#{i}", i * 100, 100, cat="user_annotation")
        for j in range(10 if i < 3 else 4):
            b.launch(i * 100 + j, "k", i * 100 + 10 + j, 0.5)
    found = analyze(b.trace(), AnalysisOptions(steps="steady"), on_demand=True)
    assert found.frames["steps"]["complete"].tolist() == [True, True, True, False]
    assert found.selected_steps == (1, 2)


def test_numbered_annotations_are_steps_where_there_are_no_profiler_steps(build: Build) -> None:
    b = build()
    for i in range(3):
        b.op(f"iteration {i}", i * 100, 90, cat="user_annotation").mm(
            8, 8, 8, at=i * 100 + 1, start=i * 100 + 10, duration=5
        )
    assert analyze(b.trace(), AnalysisOptions(), on_demand=True).step_stem == "iteration"


def test_an_unknown_device_costs_the_roofline_only(build: Build) -> None:
    trace = build().mm(64, 64, 64, at=0, start=10, duration=30).trace(deviceProperties=[{"name": "Chip 9"}])
    found = analyze(trace, AnalysisOptions())
    row = found.frames["unified_perf_summary"].iloc[0]
    assert math.isnan(row["roofline_us"])
    assert row["tflops_s_mean"] == pytest.approx(2 * 64**3 / 30 / 1e6)
    assert any("--device" in notice.text for notice in summarize(found).notices)


def test_of_several_devices_the_one_that_worked_counts(build: Build) -> None:
    other = {"id": 0, "name": "NVIDIA T400", "totalGlobalMem": 4 << 30, "computeMajor": 7, "computeMinor": 5,
             "warpSize": 32, "numSms": 6}  # fmt: skip
    b = build().kernel("k", 0, 5)
    for i in range(2):
        b.kernel("k", 10 + 10 * i, 5, device=1)
    assert summarize(analyze(b.trace(deviceProperties=[other, MI300X]), AnalysisOptions())).device.id == "mi300x"
    assert summarize(analyze(b.trace(deviceProperties=[MI300X]), AnalysisOptions())).device.id == "mi300x"


def test_a_trace_without_gpu_work_says_which_it_is_and_cpu_gives_its_ops(build: Build) -> None:
    b = build().op("aten::add", 0, 10).op("aten::empty", 2, 3)
    with pytest.raises(NothingToAnalyzeError, match=r"2 CPU ops but no GPU kernels.*--cpu"):
        analyze(b.trace(), AnalysisOptions())
    found = analyze(b.trace(), AnalysisOptions(cpu=True))
    own = found.frames["cpu_ops_summary"].set_index("name")["host_self_us_sum"].to_dict()
    assert own == {"aten::add": 7.0, "aten::empty": 3.0}


def test_without_shapes_time_keeps_its_category_and_says_why_there_is_no_model(build: Build) -> None:
    b = build().op("aten::mm", 0, 5)
    b.launch(1, "Cijk_x", 10, 20)
    row = analyze(b.trace(), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"].iloc[0]
    assert row["category"] == "GEMM"
    assert not row["has_perf_model"]
    assert "no shapes" in row["note"]


def test_launch_gap_is_the_idle_time_of_the_stream_before_the_call(build: Build) -> None:
    b = build().mm(64, 64, 64, at=0, start=10, duration=30).mm(32, 32, 32, at=20, start=47, duration=5)
    gaps = (
        analyze(b.trace(), AnalysisOptions(), on_demand=True)
        .frames["unified_perf_summary"]
        .set_index("input_dims")["launch_gap_us"]
    )
    assert gaps["((32, 32), (32, 32))"] == 7.0
    assert math.isnan(gaps["((64, 64), (64, 64))"])


def compiled(build: Build, **more: Any) -> Any:
    """A user's Triton kernel in a compiled region, as Inductor records it: x, y, out and the number of elements."""
    b = build()
    args = {"Input Dims": [[16], [16], [16], []], "Input type": ["float"] * 3 + ["Scalar"]}
    b.op("add_kernel_0", 0, 20, **args, **{"Concrete Inputs": ["", "", "", "16"]}, **more)
    return b.launch(1, "add_kernel_0", 30, 5).trace()


def test_a_users_triton_kernel_has_bytes_and_is_named_for_its_missing_flops(build: Build) -> None:
    found = analyze(compiled(build, kernel_backend="triton"), AnalysisOptions())
    row = found.frames["unified_perf_summary"].iloc[0]
    assert row["category"] == "triton"
    assert row["hbm_mb"] * 1e6 == pytest.approx(3 * 16 * 4)
    notice = next(n for n in summarize(found).notices if n.id == "compiled_kernels")
    assert notice.text == "the FLOPs or bytes of 1 Triton kernel (100 % of Triton time) are unknown: add_kernel_0"


def test_a_kernel_that_no_compiler_is_recorded_for_has_no_model(build: Build) -> None:
    assert (
        analyze(compiled(build), AnalysisOptions(), on_demand=True).frames["unified_perf_summary"].iloc[0]["note"]
        == "no perf model"
    )


def test_events_of_an_accelerator_that_is_not_read_are_counted_and_no_wrong_recording_is_suspected() -> None:
    lane = {"ph": "X", "pid": 1, "tid": 1, "dur": 1}
    events = [
        lane | {"cat": "cpu_op", "name": "aten::add", "ts": 0},
        lane | {"cat": "mtia_runtime", "name": "launch", "ts": 1},
    ]
    events += [lane | {"cat": "mtia_insight", "name": "pe", "pid": 0, "ts": 2 + i} for i in range(3)]
    trace = Trace.of(read_events(events))
    with pytest.raises(NothingToAnalyzeError) as caught:
        analyze(trace, AnalysisOptions())
    assert str(caught.value) == (
        "events has 1 CPU ops but no CUDA or HIP kernels, and tracelens does not read its 3 events of another "
        "accelerator (3 mtia_insight); pass --cpu to `tracelens report` for a CPU-only report."
    )
