"""Sentences and sheets of recorded traces against figures that were worked out by hand from their events."""

from __future__ import annotations

import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis
from tracelens.analysis.loaded_trace import FILE
from tracelens.analysis.verdict.verdict import summarize

pytestmark = pytest.mark.shared
PIECEWISE = "inference/vllm_prefilldecode_piecewise"
DECODE_CAPTURE = "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz"
OLD_RESNET = "more/kineto/samples/resnet50_num_workers_0/2021-01-10_515e6115_2d19c6_worker0.pt.trace.json.gz"


@pytest.fixture(scope="module")
def resnet(real_analysis: RealAnalysis) -> Analysis:
    return real_analysis("mi300/resnet_act_checkpoint")


def test_behind_a_thousand_queued_kernels_there_is_no_launch_latency(resnet: Analysis) -> None:
    """968 kernels without a launch ran first: the queue was never empty, so no wait in it is a latency."""
    rows = resnet.frames["launch_overhead"].set_index("launch_call")
    assert rows.loc["all", "queue_empty_percent"] == 0
    assert rows["launch_latency_us_max"].isna().all()
    assert rows.loc["all", "queue_depth_max"] > 900


def test_steady_steps_of_a_host_that_runs_ahead_are_not_idle(real_analysis: RealAnalysis) -> None:
    """The host's steps lie 30 ms before the device's: what the device does in them is not what ran in their window."""
    summary = summarize(real_analysis("mi300/resnet_act_checkpoint", steps="steady"))
    assert summary.busy is not None
    assert summary.busy.idle < 0.01
    assert summary.steps is not None
    assert summary.steps.time_us == pytest.approx((18_982.928 + 18_554.331) / 2)


def test_the_bandwidth_of_an_all_reduce_is_all_its_bytes_over_all_its_time(resnet: Analysis) -> None:
    """Of 8 ranks, 3 each of 8,816,192 BF16 in 26.8 ms (3.45 GB/s) and of 2,873,320 in 20.3 ms (1.48 GB/s)."""
    rows = resnet.frames["coll_analysis"]
    large = rows[rows["in_nelems"] == 8_816_192].iloc[0]
    assert large["effective_bus_gb_s"] == pytest.approx(3 * 2 * 8_816_192 * 14 / 8 / 26_798.24e3)
    (why,) = (f.why for f in summarize(resnet).findings if f.id == "exposed_communication")
    assert "allreduce of 17.6 MB reaches 3.45 GB/s bus bandwidth on a 448 GB/s link and takes at least 8.66 ms" in why
    assert why.endswith("so it waits for a late rank or takes a slower path")


@pytest.mark.sweep
def test_the_experts_of_a_b200_trace_have_a_rate_in_the_verdict(real_analysis: RealAnalysis) -> None:
    summary = summarize(real_analysis("b200/eager_trace"))
    experts = summary.categories[0]
    assert (experts.name, experts.flops_share) == ("MoE_unfused", pytest.approx(1.0))
    assert experts.tflops_s is not None
    assert experts.of_roofline is not None
    assert "unmodelled" not in {notice.id for notice in summary.notices}


@pytest.mark.sweep
def test_a_trace_of_a_graphs_capture_is_idle_and_no_step(real_analysis: RealAnalysis) -> None:
    """Ten device events in 57.8 ms, of which the host captures a graph for 55."""
    summary = summarize(real_analysis(DECODE_CAPTURE))
    assert summary.steps is None
    assert summary.busy is not None
    assert summary.busy.idle > 0.999
    (why,) = (f.why for f in summary.findings if f.id == "idle")
    assert why.startswith("the GPU idles 97 % of the time (graph capture)")


def test_the_share_of_peak_of_replayed_graphs_is_of_the_matrix_work(real_analysis: RealAnalysis) -> None:
    """285 of 307 ms are experts and products of the capture: 28 % of the peak, 26 % over all of the window."""
    found = real_analysis(f"{PIECEWISE}/graph_execution", f"{PIECEWISE}/capture_traces/graph_capture_rank_0.pt.trace")
    rate = summarize(found).throughput
    assert rate is not None
    assert rate.of_peak == pytest.approx(0.285, abs=0.005)
    assert rate.device_share == pytest.approx(0.93, abs=0.01)


@pytest.mark.sweep
def test_kernels_of_an_old_recording_are_no_memsets(real_analysis: RealAnalysis) -> None:
    """Nothing but recorded memsets is one (29 us); all gradients of convolutions are ``CONV_bwd``."""
    found = real_analysis(OLD_RESNET, steps=FILE, on_demand=True)
    ms = found.frames["ops_summary_by_category"].set_index("category")["direct_us_sum"] / 1e3
    assert ms["memset"] < 0.53
    assert ms["CONV_bwd"] > 2 * ms["CONV_fwd"] > 200
