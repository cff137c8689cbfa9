"""Rates speak of the calls whose work is known, and a roofline holds launches and caches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.analysis.conftest import MI300X
from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.attribution.calls import GENERIC_LAUNCH_US, Limits, launch_floor_us, rate_of
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.verdict import summarize
from tracelens.hardware import HardwareSpec
from tracelens.report.terminal import verdict

Build = Callable[[], Any]
H100 = {
    "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85021163520, "computeMajor": 9, "computeMinor": 0,
    "warpSize": 32, "numSms": 132,
}  # fmt: skip


def add(b: Any, dims: list[int], at: float, start: float, duration: float, kernel: str = "elementwise_kernel") -> Any:
    """``aten::add`` of two tensors in fp32, with its one kernel."""
    strides = [[*dims[1:], 1][: len(dims)]] * 2
    args = {"Input Dims": [dims, dims, []], "Input type": ["float", "float", "Scalar"], "Input Strides": [*strides, []],
            "Concrete Inputs": ["", "", "1"]}  # fmt: skip
    return b.op("aten::add", at, 5, **args).launch(at + 1, f"void at::native::{kernel}", start, duration)


def found(b: Any, device: dict[str, Any] = MI300X) -> Analysis:
    return analyze(b.trace(deviceProperties=[device]), AnalysisOptions())


def test_the_share_of_peak_is_over_the_calls_whose_flops_are_known(build: Build) -> None:
    """17.2 GFLOP in 50 of 250 µs of device time; the window is 10 to 1,010."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    b.op("mine::unknown", 80, 10).launch(81, "my_kernel", 810, 200)
    summary = summarize(found(b))
    rate, peak = summary.throughput, 1307.4
    assert rate is not None
    tflops = 2 * 1024 * 2048 * 4096 / 50 / 1e6
    assert rate.tflops_s == pytest.approx(tflops)
    assert rate.of_peak == pytest.approx(tflops / peak)
    assert rate.of_achievable == pytest.approx(tflops / 708)
    assert rate.device_share == pytest.approx(50 / 250)
    assert rate.window_of_peak == pytest.approx(tflops / peak * 50 / 1000)
    assert rate.is_lower_bound
    text = verdict(summary)
    assert "at least 1 % of dense bf16 peak" in text
    assert "matrix ops (20 % of GPU time) reach 26 % of peak, 49 % of achievable" in text


def test_a_whole_step_of_known_flops_is_no_lower_bound(build: Build) -> None:
    summary = summarize(found(build().mm(1024, 2048, 4096, at=0, start=10, duration=50)))
    assert summary.throughput is not None
    assert not summary.throughput.is_lower_bound
    assert "at least" not in verdict(summary)


def test_known_work_that_is_no_gemm_makes_no_lower_bound(build: Build) -> None:
    """50 µs of a GEMM and 200 of an addition: all FLOPs are known, however small the GEMM's share."""
    b = add(build().mm(1024, 2048, 4096, at=0, start=10, duration=50), [4096, 4096], 80, 60, 200)
    rate = summarize(found(b)).throughput
    assert rate is not None
    assert (rate.device_share, rate.known_share) == (pytest.approx(50 / 250), 1)
    assert not rate.is_lower_bound


@pytest.mark.parametrize(("bf16_us", "share"), [(4, 8.59e9 / 50e-6 / 65e12), (50, None)])
def test_there_is_no_share_of_a_peak_that_most_types_lack(build: Build, bf16_us: int, share: float | None) -> None:
    """A T4 computes no BF16: 8.6 GFLOP of FP16 in 50 µs are 2.64 times its 65, and BF16 beside them has no share."""
    t4 = {"id": 0, "name": "Tesla T4", "totalGlobalMem": 15835660288, "computeMajor": 7, "computeMinor": 5}
    b = build()
    for at, dtype, duration in ((0, "c10::Half", 50), (100, "c10::BFloat16", bf16_us)):
        args = {"Input Dims": [[512, 2048], [2048, 4096]], "Input type": [dtype] * 2}
        b.op("aten::mm", at, 5, **args).launch(at + 1, "gemm", at + 10, duration)
    rate = summarize(found(b, t4)).throughput
    assert rate is not None
    assert (rate.of_peak is None) == (rate.window_of_peak is None) == (share is None)
    assert rate.of_peak == (None if share is None else pytest.approx(share, rel=0.01))


def test_what_is_faster_than_the_data_sheet_is_named(build: Build) -> None:
    """17.2 GFLOP in 2 µs are 8,590 TFLOPS/s of 1,307: recorded times may be wrong as well."""
    notices = summarize(found(build().mm(1024, 2048, 4096, at=0, start=10, duration=2))).notices
    (text,) = (notice.text for notice in notices if notice.id == "above_peak")
    assert text == (
        "1 op exceeds the data sheet's rate (aten::mm at 657 % of the peak): the recorded times, the perf model "
        "or the peak rate is wrong"
    )


def test_a_winograd_convolution_above_the_peak_is_no_defect(build: Build) -> None:
    """7.4 GFLOP by definition in 20 µs, 370 TFLOPS/s of 163: the kernel's algorithm multiplies less."""
    args = {"Input Dims": [[32, 64, 56, 56], [64, 64, 3, 3], [], [1, 1], [1, 1], [1, 1], [], [0, 0], []],
            "Input type": ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar", "ScalarList", "Scalar"],
            "Concrete Inputs": ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]}  # fmt: skip
    b = build().op("aten::convolution", 0, 5, **args).launch(1, "volta_scudnn_winograd_128x128_ldg1_ldg4", 10, 20)
    (text,) = (notice.text for notice in summarize(found(b)).notices if notice.id == "above_peak")
    assert text.endswith(
        "Winograd and FFT kernels need fewer FLOPs than the definition of a convolution, which tracelens counts"
    )


def test_the_mean_rate_is_all_work_over_all_time(build: Build) -> None:
    """One call of 10 µs and one of 90: 2 x 17.2 GFLOP in 100 µs, not the mean of two rates."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=10).mm(1024, 2048, 4096, at=50, start=60, duration=90)
    row = found(b).frames["unified_perf_summary"].iloc[0]
    flops, nbytes = 2 * 1024 * 2048 * 4096, 2 * (1024 * 2048 + 2048 * 4096 + 1024 * 4096)
    assert row["tflops_s_mean"] == pytest.approx(2 * flops / 100 / 1e6)
    assert row["hbm_tb_s_mean"] == pytest.approx(2 * nbytes / 100 / 1e6)
    assert row["percent_of_roofline_mean"] == pytest.approx(100 * 2 * row["roofline_us"] / 100)
    assert row["tflops_s_max"] == pytest.approx(flops / 10 / 1e6)


def test_unknown_flops_give_no_bound_and_no_percent(build: Build) -> None:
    """Variable-length attention whose sequences the trace does not record: its bytes are known, its FLOPs are not."""
    args = {"Input Dims": [[512, 8, 64], [512, 8, 64], [512, 8, 64], [3], [3], [], [], [], [], []],
            "Input type": ["c10::BFloat16"] * 3 + ["int", "int"] + ["Scalar"] * 5,
            "Concrete Inputs": ["", "", "", "", "", "300", "300", "0.", "True", "False"]}  # fmt: skip
    b = build().op("aten::_flash_attention_forward", 0, 9, **args).launch(1, "flash_fwd_kernel", 10, 40)
    row = found(b).frames["unified_perf_summary"].iloc[0]
    assert row["model"] is not None
    assert row[["gflops", "roofline_us", "percent_of_roofline_mean", "percent_of_peak"]].isna().all()
    assert row["roofline_bound"] is None
    assert row["hbm_mb"] > 0


def test_a_short_kernel_is_at_the_launch_floor(build: Build) -> None:
    """4 KB take nothing of HBM; a launch takes 2.8 µs on the MI300X of 5 measured."""
    analysis = found(add(build(), [512, 2], 0, 10, 5))
    row = analysis.frames["unified_perf_summary"].iloc[0]
    assert (row["roofline_us"], row["roofline_bound"]) == (pytest.approx(2.8), "launch")
    assert row["percent_of_roofline_mean"] == pytest.approx(100 * 2.8 / 5)
    summary = summarize(analysis)
    assert not [f for f in summary.findings if f.id == "op_below_roofline"]
    assert summary.categories[0].bound == "launch"


def test_a_long_kernel_of_little_work_says_what_a_launch_takes(build: Build) -> None:
    (finding,) = summarize(found(add(build(), [512, 2], 0, 10, 40))).findings
    assert finding.why.endswith(" takes 40 µs each, above a launch floor of 2.8 µs")
    assert finding.gain_us == pytest.approx(40 - 2.8, rel=1e-3)


def test_a_kernel_faster_than_the_floor_is_at_it(build: Build) -> None:
    row = found(add(build(), [512, 2], 0, 10, 2)).frames["unified_perf_summary"].iloc[0]
    assert row["percent_of_roofline_mean"] == pytest.approx(100)


def test_the_floor_is_the_devices_or_a_generic_one() -> None:
    assert launch_floor_us(HardwareSpec.load("h100-sxm")) == 2.63
    assert launch_floor_us(HardwareSpec.load("mi210")) == GENERIC_LAUNCH_US


@pytest.mark.parametrize(("device", "cache"), [(H100, "L2"), (MI300X, "Infinity Cache")])
def test_bytes_that_fit_the_cache_come_from_it(build: Build, device: dict[str, Any], cache: str) -> None:
    """3 x 10.5 MB in 5 µs are 6.3 TB/s: above the HBM of either, below their caches."""
    summary = summarize(analysis := found(add(build(), [1024, 2560], 0, 10, 5), device))
    row = analysis.frames["unified_perf_summary"].iloc[0]
    assert row["served_from"] == cache
    notices = {notice.id: notice.text for notice in summary.notices}
    assert notices["from_cache"].startswith(f"1 op beats HBM bandwidth: its data was probably in {cache}")
    assert "above_peak" not in notices


def test_more_than_the_cache_holds_is_a_defect_where_hbm_cannot_bring_the_rest(build: Build) -> None:
    """3 x 419 MB need 375 µs of 3.35 TB/s; 40 MB of them may be in the L2."""
    rows = found(add(build(), [10240, 10240], 0, 10, 370), H100).frames["unified_perf_summary"]
    assert rows["served_from"].tolist() == ["L2 in part"]
    analysis = found(add(build(), [10240, 10240], 0, 10, 200), H100)
    assert analysis.frames["unified_perf_summary"]["served_from"].tolist() == [None]
    assert "above_peak" in {notice.id for notice in summarize(analysis).notices}


def test_a_nanosecond_above_the_peak_is_the_clocks_resolution(build: Build) -> None:
    """An MI300X does this GEMM in 13.14 µs at its data sheet's rate; recorded times are whole nanoseconds."""
    least = 2 * 1024 * 2048 * 4096 / 1307.4e6
    for duration, defects in ((least - 0.0009, 0), (least - 0.003, 1)):
        summary = summarize(found(build().mm(1024, 2048, 4096, at=0, start=10, duration=duration)))
        assert [n.count for n in summary.notices if n.id == "above_peak"] == [1] * defects


def test_coverage_leaves_out_rows_without_flops_and_bytes(build: Build) -> None:
    """A foreach multiplication of tensors that the trace lists without dims has a model, but no work."""
    b = build().mm(1024, 2048, 4096, at=0, start=10, duration=50)
    args = {"Input Dims": [[], []], "Input type": ["TensorList", "Scalar"], "Concrete Inputs": ["", "0"]}
    b.op("aten::cat", 80, 9, **args)
    b.launch(81, "CatArrayBatchedCopy", 100, 50)
    coverage = summarize(found(b)).coverage
    assert coverage.perf_model == pytest.approx(0.5)


def test_an_emulated_precision_has_its_products_rate() -> None:
    b200 = HardwareSpec.load("b200")
    bf16, emulated = rate_of(b200, "matrix_bf16"), rate_of(b200, "matrix_bf16x9")
    assert bf16 is not None
    assert emulated is not None
    assert emulated.peak_tflops_s == pytest.approx(bf16.peak_tflops_s / 9)
    assert rate_of(b200, "matrix_fp64_emulated") is None


def test_every_device_has_limits() -> None:
    for device in HardwareSpec.all():
        assert Limits.of(device).launch_us > 0


@pytest.mark.shared
def test_tiny_kernels_of_a_real_trace_are_at_the_launch_floor(real_analysis: RealAnalysis) -> None:
    analysis = real_analysis("h100/gaunernst_bert-small-uncased__1016001")
    rows = analysis.frames["unified_perf_summary"]
    short = rows[(rows["kernel_us_mean"] < 3) & rows["roofline_us"].notna()]
    assert len(short)
    assert (short["percent_of_roofline_mean"] > 50).all()
    summary = summarize(analysis)
    assert not [f.why for f in summary.findings if ": 0 % of" in f.why or "wrong" in f.why]
