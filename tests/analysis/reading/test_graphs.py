"""Graph launches opened up by a trace of their capture."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.verdict.verdict import summarize

Build = Callable[[], Any]
KERNELS = ("Cijk_a", "norm_kernel", "Cijk_b")


def gemm(m: int) -> dict[str, Any]:
    return {
        "Input Dims": [[m, 64], [64, 32]], "Input type": ["c10::BFloat16"] * 2,
        "Input Strides": [[64, 1], [32, 1]], "Concrete Inputs": ["", ""],
    }  # fmt: skip


def recorded_capture(build: Build, *batches: int, grid: bool = False, kernels: tuple[str, ...] = KERNELS) -> Trace:
    """Per batch size one capture on an AMD device: three ops, each with a launch that names its kernel."""
    made = build()
    for i, batch in enumerate(batches):
        at = 1000 * i
        made.op(f"capture_{batch}_FULL", at, 900, cat="user_annotation")
        made.op("hipStreamBeginCapture", at + 1, 1, cat="cuda_runtime")
        made.op("nn.Module: Block_0", at + 5, 850, cat="python_function")
        for k, kernel in enumerate(kernels):
            start = at + 10 + 800 * k / len(kernels)
            name = "aten::mm" if "Cijk" in kernel else "my::norm"
            made.op(name, start, 20, **(gemm(batch) if name == "aten::mm" else {}))
            args = {"grid": [batch, 1, 1], "block": [256, 1, 1]} if grid else {}
            made.op("hipModuleLaunchKernel", start + 5, 2, cat="cuda_runtime", kernel=kernel, correlation=k + 1, **args)
        made.op("hipStreamEndCapture", at + 890, 1, cat="cuda_runtime")
    return made.trace()


def replay(build: Build, *, launches: int = 1, requests: int | None = None, kernels: tuple[str, ...] = KERNELS,
           grid: int | None = None) -> Trace:  # fmt: skip
    """Graph launches of 10 us whose kernels take 1, 2, 3 ... us."""
    made = build()
    for i in range(launches):
        at = 100 * i
        if requests is not None:
            made.op(f"execute_context_0(0)_generation_{requests}({requests})", at, 50, cat="user_annotation")
        made.op("hipGraphLaunch", at + 1, 10, cat="cuda_runtime", correlation=500 + i)
        for k, kernel in enumerate(kernels):
            args = {} if grid is None else {"grid": [grid, 1, 1], "block": [256, 1, 1]}
            made.kernel(kernel, at + 20 + 10 * k, k + 1, correlation=500 + i, **args)
    return made.trace()


def analyzed(trace: Trace, capture: Trace) -> Analysis:
    return whole(analyze(trace, AnalysisOptions(capture=capture)))


def whole(found: Analysis) -> Analysis:
    assert found.trace.tree.self_check() == []
    assert found.frames["unified_perf_summary"]["kernel_us_sum"].sum() == pytest.approx(
        found.activity.duration.sum() / 1e3
    )
    return found


def notice(found: Analysis) -> str:
    return next(n.text for n in summarize(found).notices if n.id == "graph_launches")


def test_replayed_kernels_get_ops_shapes_and_flops_of_their_capture(build: Build):
    found = analyzed(replay(build, launches=2), recorded_capture(build, 128))
    rows = found.frames["unified_perf_summary"].set_index("name")
    assert sorted(rows.index) == ["aten::mm", "my::norm"]
    assert rows.loc["aten::mm", "gflops"] == pytest.approx(2 * 128 * 64 * 32 / 1e9)
    assert rows.loc["aten::mm", "operation_count"] == 4
    assert rows.loc["aten::mm", "kernel_us_sum"] == pytest.approx(2 * (1 + 3))
    assert (found.graphs.launches, found.graphs.kernels, found.graphs.linked_kernels) == (2, 6, 6)
    assert rows[["host_us_mean", "host_us_sum"]].isna().all(axis=None), "no trace says how long the host took"
    assert notice(found).endswith(
        "the ops of 6 of 6 kernels (100 % of GPU time) in 2 of 2 graph launches; the work of 67 % of their time is known; "
        "matched by the sequence of kernels, as no graph node ids were recorded"
    )


def test_modules_of_the_capture_stand_above_the_replayed_kernels(build: Build):
    found = analyzed(replay(build), recorded_capture(build, 128))
    assert found.trace.tree.module_of(int(found.activity.rows[0])) == ("nn.Module: Block_0",)
    op = int(found.activity.op[0])
    assert found.trace.table.event(op)["args"]["Input Dims"] == [[128, 64], [64, 32]]


def test_streams_side_by_side_may_end_in_another_order_than_they_were_captured_in(build: Build):
    swapped = (KERNELS[1], KERNELS[0], KERNELS[2])
    found = analyzed(replay(build, kernels=swapped), recorded_capture(build, 128))
    rows = found.frames["unified_perf_summary"].set_index("name")["kernel_us_sum"]
    assert rows.to_dict() == {"my::norm": 1.0, "aten::mm": 2.0 + 3.0}


def test_a_kernel_that_was_not_captured_stays_a_kernel_row(build: Build):
    names = tuple(f"Cijk_{k}" for k in range(20))
    found = analyzed(replay(build, kernels=(*names, "extra_kernel")), recorded_capture(build, 128, kernels=names))
    rows = found.frames["unified_perf_summary"].set_index("name")["kernel_us_sum"]
    assert rows.to_dict() == {"aten::mm": sum(range(1, 21)), "hipGraphLaunch->extra_kernel (Synthetic Op)": 21.0}
    assert found.graphs.reasons == (("not in the captured graph", 1),)


def test_a_wrong_capture_links_nothing_and_says_so(build: Build):
    trace = replay(build)
    found = analyzed(trace, recorded_capture(build, 128, kernels=("Cijk_a", "other_kernel", "third_kernel")))
    assert found.graphs.linked_kernels == 0
    assert "0 of 3 kernels" in notice(found)
    assert "no graph of built.json has this sequence of kernels" in notice(found)
    without = analyze(trace, AnalysisOptions()).frames["unified_perf_summary"]
    assert found.frames["unified_perf_summary"].equals(without)


def test_the_least_captured_batch_that_holds_the_requests_is_the_one(build: Build):
    capture = recorded_capture(build, 64, 128, 256)
    rows = analyzed(replay(build, requests=100), capture).frames["unified_perf_summary"].set_index("name")
    assert rows.loc["aten::mm", "input_dims"] == "((128, 64), (64, 32))"
    found = analyzed(replay(build, requests=300), capture)
    assert found.graphs.reasons == (("captured for other batch sizes only", 3),)


def test_graphs_of_one_sequence_are_told_apart_by_their_grids(build: Build):
    rows = analyzed(replay(build, grid=256), recorded_capture(build, 128, 256, grid=True)).frames[
        "unified_perf_summary"
    ]
    assert rows.set_index("name").loc["aten::mm", "input_dims"] == "((256, 64), (64, 32))"


def test_graphs_that_nothing_tells_apart_are_not_guessed(build: Build):
    found = analyzed(replay(build), recorded_capture(build, 128, 256))
    assert found.graphs.reasons == (("several captured graphs have this sequence of kernels", 3),)


def test_the_run_before_the_capture_serves_where_launches_name_no_kernels(build: Build):
    eager = build()
    for k, kernel in enumerate(KERNELS):
        eager.op("aten::mm" if "Cijk" in kernel else "my::norm", 100 * k, 50, **gemm(128))
        eager.launch(100 * k + 1, kernel, 100 * k + 10, 5)
    rows = analyzed(replay(build), eager.trace()).frames["unified_perf_summary"].set_index("name")
    assert rows["kernel_us_sum"].to_dict() == {"aten::mm": 4.0, "my::norm": 2.0}


def test_a_trace_without_graph_launches_says_that_the_capture_has_nothing_to_give(build: Build):
    found = analyzed(build().mm(8, 8, 8, at=0, start=10, duration=5).trace(), recorded_capture(build, 128))
    assert notice(found) == "this trace has no graph launches, so --capture built.json is not used"


@pytest.mark.sweep
@pytest.mark.shared
def test_a_decode_of_vllm_is_linked_whole_and_conserves_its_time(real_analysis: RealAnalysis):
    folder = "inference/vllm_decode_full"
    found = whole(
        real_analysis(
            f"{folder}/graph_execution",
            f"{folder}/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace",
            on_demand=True,
        )
    )
    assert (found.graphs.launches, found.graphs.kernels, found.graphs.linked_kernels) == (1, 421, 421)
    names = set(found.frames["unified_perf_summary"]["name"])
    assert {"vllm::rocm_unquantized_gemm", "vllm::unified_attention_with_output", "aiter::rms_norm"} & names
    assert real_analysis(f"{folder}/graph_execution", on_demand=True).timeline == found.timeline


def with_its_own_replay(capture: dict[str, Any], replayed: dict[str, Any]) -> dict[str, Any]:
    """The capture's trace with the recorded graph launch after it, under an op, and one launch fewer captured, so that
    no captured graph has exactly the replay's kernels.
    """
    events = [event for event in capture["traceEvents"] if "ts" in event]
    captured = [event for event in events if event["name"].startswith("hip") and "kernel" in event.get("args", {})]
    left_out = captured[len(captured) // 2]
    kept = [event for event in capture["traceEvents"] if event is not left_out]
    (launch,) = [event for event in replayed["traceEvents"] if event["name"] == "hipGraphLaunch"]
    correlation, last = launch["args"]["correlation"], max(event["ts"] for event in events)
    mine = [
        event
        for event in replayed["traceEvents"]
        if event.get("cat") in ("kernel", "gpu_memcpy") and event["args"]["correlation"] == correlation
    ]
    later = last + 1e6 - launch["ts"]
    span = {"ph": "X", "cat": "cpu_op", "name": "Torch-Compiled Region: 0/0", "args": {"External id": 987654321}}
    around = span | {key: launch[key] for key in ("pid", "tid")} | {"ts": launch["ts"] - 5, "dur": launch["dur"] + 10}
    moved = [{**event, "ts": event["ts"] + later} for event in (around, launch, *mine)]
    return {**capture, "traceEvents": [*kept, *moved]}


@pytest.mark.sweep
@pytest.mark.shared
def test_a_capture_that_holds_its_own_replay_opens_the_graph_by_what_was_captured(shared_traces: Path, tmp_path: Path):
    def read(path: Path) -> dict[str, Any]:
        return json.loads(gzip.decompress(path.read_bytes()))

    folder = shared_traces / "inference" / "vllm_decode_full"
    (recorded,) = (folder / "capture_traces").glob("*.json.gz")
    twin = tmp_path / "capture.json"
    twin.write_text(json.dumps(with_its_own_replay(read(recorded), read(folder / "graph_execution.json.gz"))))
    trace = load(folder / "graph_execution.json.gz")
    plain = analyze(trace, AnalysisOptions(capture=load(recorded)), on_demand=True)
    found = analyze(trace, AnalysisOptions(capture=load(twin)), on_demand=True)
    assert plain.graphs is not None
    assert found.graphs is not None
    assert plain.graphs.linked_kernels == plain.graphs.kernels == 421
    assert found.graphs.linked_kernels == 420, "the launch that was taken out, and no other"
    assert found.coverage.perf_model > 0.95
    assert found.frames["unified_perf_summary"]["category"].ne("Torch-Compiled Region").all()


def test_ops_of_unknown_work_are_not_said_to_open_a_graph(build: Build):
    kernels = ("norm_1", "norm_2", "norm_3")
    found = analyzed(replay(build, kernels=kernels), recorded_capture(build, 128, kernels=kernels))
    assert found.coverage.perf_model == 0
    assert notice(found) == (
        "built.json names the ops of 3 of 3 kernels (100 % of GPU time), but the work of none of them is known; "
        "matched by the sequence of kernels, as no graph node ids were recorded"
    )


def test_the_share_of_opened_graphs_that_is_known_is_said(build: Build):
    """1 + 3 of the 6 us are GEMMs; the norm has no perf model."""
    found = analyzed(replay(build), recorded_capture(build, 128))
    assert "in 1 of 1 graph launches; the work of 67 % of their time is known; matched" in notice(found)
