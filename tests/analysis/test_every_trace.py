"""How much of every recorded trace a report can speak about. ``pytest -s`` prints the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracelens.analysis.analyze import Analysis, Options, analyze
from tracelens.analysis.trace import load
from tracelens.errors import NothingToAnalyzeError

pytestmark = pytest.mark.shared

CAPTURE = "inference/vllm_decode_full/capture_traces/graph_capture_rank_0.1773709742341309550.pt.trace.json.gz"
#: Trace -> the trace of its graphs' capture, where it replays graphs.
TRACES: dict[str, str | None] = {
    "h100/gaunernst_bert-small-uncased__1016001.json.gz": None,
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": None,
    "hta/critical_path/alexnet/benchmark_result_2869224_1695835535_trace.json.gz": None,
    "hta/critical_path/cuda_event_sync/event_sync_trace.json.gz": None,
    "hta/critical_path/cuda_event_sync_multi_stream/event_sync_trace.json.gz": None,
    "hta/critical_path/end_to_end/simple_add/input/trace.json.gz": None,
    "hta/critical_path/simple_add/benchmark_result_493459_1694039959_trace.json.gz": None,
    "hta/nccl_parser_config/nccl_data.json.gz": None,
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": None,
    "hta/trace_filter/sampled_rank-0.json.gz": None,
    "hta/trace_filter/sampled_rank-1.json.gz": None,
    "hta/triton_example/triton_example.json.gz": None,
    "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz": None,
    "inference/vllm_decode_full/graph_execution.json.gz": CAPTURE,
    CAPTURE: None,
    "mi300/Falconsai_nsfw_image_detection__1016002.json.gz": None,
    "mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": None,
    "mi300/facebook_timesformer-base-finetuned-k400__1016002.json.gz": None,
    "mi300/gaunernst_bert-small-uncased__1016001.json.gz": None,
    "mi300/resnet_act_checkpoint.json.gz": None,
    "perf_model/normalization/normalization_layer_test.json.gz": None,
    "torch_compile_triton/trace.json.gz": None,
}
COMMUNICATION = ("CustomCollective", "EP_Communication")


def share_with_work(found: Analysis) -> float:
    """Of the linked kernel time that is no communication, the share in rows with FLOPs or bytes."""
    rows = found.frames["unified_perf_summary"]
    rows = rows[(rows["name"] != "(unlinked kernels)") & ~rows["category"].isin(COMMUNICATION)]
    known = rows["gflops"].notna() | rows["hbm_mb"].notna()
    return float(rows.loc[known, "kernel_us_sum"].sum() / rows["kernel_us_sum"].sum())


@pytest.mark.parametrize("name", TRACES)
def test_time_has_a_category_and_where_shapes_were_recorded_work(shared_traces: Path, name: str):
    """A trace counts as having shapes when any event records ``Input Dims`` (``record_shapes=True``)."""
    captured = TRACES[name]
    options = Options(capture=load(shared_traces / captured) if captured else None)
    found = analyze(load(shared_traces / name), options)
    work = share_with_work(found) if found.coverage.shapes else None
    shown = "no shapes" if work is None else f"work {work:7.2%}"
    print(f"\n{name[:76]:76} category {found.coverage.categorised:7.2%}  {shown}", end="")  # noqa: T201
    assert found.coverage.categorised > 0.9999
    assert work is None or work >= 0.93


def test_the_table_lists_every_trace_with_device_events(shared_traces: Path):
    there = {path.relative_to(shared_traces).as_posix() for path in shared_traces.rglob("*.json.gz")}
    without = there - set(TRACES)
    assert set(TRACES) <= there
    for name in without:
        with pytest.raises(NothingToAnalyzeError):
            analyze(load(shared_traces / name), Options())


def test_a_graph_replay_without_its_capture_has_categories_by_kernel(shared_traces: Path):
    found = analyze(load(shared_traces / "inference/vllm_decode_full/graph_execution.json.gz"), Options())
    assert found.coverage.categorised > 0.9999
