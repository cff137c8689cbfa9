"""What ``tracelens check`` says of a trace: what it holds, what it lacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.verdict.health import Health, health
from tracelens.cli import main


def op(name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}


def launch(start: float, correlation: int) -> dict[str, Any]:
    args = {"correlation": correlation}
    return {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": start, "dur": 1, "args": args,
    }  # fmt: skip


def kernel(name: str, start: float, duration: float, correlation: int) -> dict[str, Any]:
    args = {"correlation": correlation, "stream": 7, "device": 0}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration, "args": args}


MM = {"Input Dims": [[64, 32], [32, 16]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}
DISPATCH = {"Input Dims": [[128, 32]], "Input type": ["c10::BFloat16"], "num_tokens_per_expert": "[4, 5]"}
SPLITS = {"Collective name": "all_to_allv", "Group size": 8, "In split size": "[1, 2]", "Out split size": "[]"}
GROUPS = {"rank": 3, "world_size": 8, "pg_config": [{"pg_name": "0", "ranks": [0, 1, 2, 3, 4, 5, 6, 7]}]}

EVENTS = [
    op("aten::mm", 0, 10, **MM),
    launch(1, 1),
    kernel("gemm", 20, 30, 1),
    op("DeepEPDispatch", 12, 10, **DISPATCH),
    launch(13, 2),
    kernel("void deep_ep::intranode::dispatch<4>(int)", 50, 40, 2),
    op("record_param_comms", 24, 5, **SPLITS),
    op("aten::detach", 30, 1),
    kernel("launched_before_the_window", 5, 10, 99),
]


def state_of(
    events: list[dict[str, Any]], metadata: dict[str, Any] | None = None, options: AnalysisOptions | None = None
) -> Health:
    return health(Trace.of(read_events(events, metadata)), options)


@pytest.fixture(scope="module")
def moe() -> Health:
    return state_of(EVENTS, {"distributedInfo": GROUPS})


def test_events_are_counted_by_category_as_recorded(moe: Health):
    assert moe.categories == (("cpu_op", 4), ("kernel", 3), ("cuda_runtime", 2))
    assert (moe.events, moe.rows, moe.cpu_ops, moe.device_events) == (9, 9, 4, 3)


def test_shapes_are_a_share_of_the_cpu_ops(moe: Health):
    assert moe.with_shapes == 2 / 4  # mm and the dispatch; not the collective's record, not detach
    assert moe.stacks is False


def test_links_are_counted_by_how_they_were_found(moe: Health):
    assert moe.linked == (("correlation", 2),)
    assert moe.unlinked == 1
    assert moe.unlinked_time == 10 / (30 + 40 + 10)


def test_coverage_comes_with_it(moe: Health):
    assert moe.coverage is not None
    assert moe.coverage.perf_model == pytest.approx((30 + 40) / 80)
    assert moe.coverage.communication == pytest.approx(40 / 80)


def test_the_routing_fields_are_named_with_where_they_are(moe: Health):
    assert moe.token_exchanges == (("DeepEPDispatch", 1),)
    assert {found.name: found.found for found in moe.routing} == {
        "distributedInfo pg_config": "1 named",
        "Group size": "on other events (1)",
        "Process Group Ranks": "",
        "In split size": "on other events (1)",
        "Out split size": "",  # recorded as an empty list
        "tokens per expert": "as num_tokens_per_expert",
    }


def test_the_group_size_on_an_exchange_is_told_apart_from_one_on_a_collective():
    events = [op("DeepEPDispatch", 12, 10, **DISPATCH, **{"Group size": 8}), *EVENTS]
    found = {field.name: field.found for field in state_of(events).routing}
    assert found["Group size"] == "on token exchanges (1) and on other events (1)"


def test_extensions_that_would_switch_on_are_named(moe: Health):
    assert moe.extensions == ("megatron",)
    without = state_of(EVENTS, options=AnalysisOptions(bundled=False))
    assert (without.extensions, without.token_exchanges) == ((), ())


def test_exchanges_without_shapes_are_still_found():
    assert state_of([op("DeepEPCombine", 0, 5)]).token_exchanges == (("DeepEPCombine", 1),)


def test_the_rank_and_the_sound_tree_are_stated(moe: Health):
    assert (moe.rank, moe.world_size, moe.violations, moe.damage) == (3, 8, (), ())
    assert moe.device is None
    assert "does not record its device" in moe.device_note


def written(folder: Path, events: list[dict[str, Any]]) -> str:
    path = folder / "t.json"
    path.write_text(json.dumps({"distributedInfo": GROUPS, "traceEvents": events}), encoding="utf-8")
    return str(path)


def test_the_command_prints_it_and_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", written(tmp_path, EVENTS)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "t.json, rank 3 of 8: 9 events, 9 of them complete"
    assert "links         66.7 % of 3 device events (2 by correlation); 1 unlinked (12.5 % of device time)" in printed
    assert "extensions    megatron" in printed
    assert "  In split size              on other events (1)" in printed
    assert "  Out split size             not recorded" in printed
    assert [path.name for path in tmp_path.iterdir()] == ["t.json"]


def test_a_trace_without_gpu_work_is_described_and_then_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", written(tmp_path, EVENTS[:1])]) == 3
    out, err = capsys.readouterr()
    assert "links         no device events" in out
    assert "t.json has 1 CPU ops but no GPU kernels" in err


def test_a_file_that_is_no_trace_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "t.json"
    path.write_text("{}", encoding="utf-8")
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.shared
def test_a_real_trace_is_checked_in_seconds(shared_traces: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["check", str(shared_traces / "h100" / "gaunernst_bert-small-uncased__1016001.json.gz")]) == 0
    assert "h100" in capsys.readouterr().out


def test_views_that_were_not_recorded_are_named_with_what_to_set():
    events = [op("aten::mm", 0, 10, **MM), launch(1, 5), kernel("k", 5, 5, 5)]
    wait = {**launch(3, 6), "name": "cudaStreamWaitEvent"}
    found = {missing.question: missing.because for missing in state_of([*events, wait]).lacks}
    assert list(found) == ["time per nn.Module", "memory over time", "which event a stream waited for"]
    assert "with_stack=True" in found["time per nn.Module"]
    assert "profile_memory=True" in found["memory over time"]
    frame = {**op("nn.Module: Net_0", 0, 10), "cat": "python_function"}
    memory = {**op("[memory]", 2, 0, Bytes=512), "ph": "i", "cat": "cpu_instant_event"}
    assert not state_of([*events, frame, memory]).lacks
