"""Kernels of replayed graphs joined with the calls of the capture by graph node id."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.analysis.reading.test_graphs import KERNELS, analyzed, gemm, notice, recorded_capture, replay, whole
from tests.conftest import RealAnalysis, examples, part
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.verdict.health import health

Build = Callable[[], Any]
Change = Callable[[int, list[int]], list[int]]


def node(graph: int, number: int) -> dict[str, int]:
    """As Kineto writes them: the number of the graph is the upper half of the node's id, too."""
    return {"graph id": graph, "graph node id": graph << 32 | number}


def capture(made: Any, batch: int, *, at: float = 0, calls: tuple[str, ...] = ("aten::mm", "my::norm", "aten::mm"),
            streams: bool = False, **launched: Any) -> Any:  # fmt: skip
    """A capture as CUDA's runtime records it: launches that name no kernel."""
    made.op("cudaStreamBeginCapture_v10000", at + 1, 1, cat="cuda_runtime")
    for k, name in enumerate(calls):
        start = at + 10 + 800 * k / len(calls)
        made.op(name, start, 20, **(gemm(batch + k) if name == "aten::mm" else {}))
        called = {"aten::copy_": "cudaMemcpyAsync", "aten::zero_": "cudaMemsetAsync"}.get(name, "cudaLaunchKernel")
        made.op(called, start + 5, 2, cat="cuda_runtime", correlation=k + 1, **launched)
    if streams:
        made.op("cudaStreamWaitEvent", at + 880, 1, cat="cuda_runtime")
    made.op("cudaStreamEndCapture_v10000", at + 890, 1, cat="cuda_runtime")
    return made


def replayed(build: Build, kernels: list[tuple[str, dict[str, Any]]], *, launches: int = 1, made: Any = None) -> Any:
    """Graph launches of 10 us whose kernels, (name, arguments), take 1, 2, 3 ... us."""
    made = made or build()
    for i in range(launches):
        at = 10_000 + 1000 * i
        made.op("cudaGraphLaunch_v10000", at + 1, 10, cat="cuda_runtime", correlation=500 + i)
        for k, (name, args) in enumerate(kernels):
            made.kernel(name, at + 20 + 10 * k, k + 1, correlation=500 + i, **args)
    return made


def us_of(found: Analysis) -> dict[tuple[str, Any], float]:
    rows = found.frames["unified_perf_summary"]
    return {(n, d): t for n, d, t in zip(rows["name"], rows["input_dims"], rows["kernel_us_sum"], strict=True)}


def test_launches_that_name_no_kernel_are_joined_by_node_without_a_run_before(build: Build):
    """Nodes 4, 5 and 7 of graph 3: node 6 had no work for the device."""
    kernels = [(name, node(3, n)) for name, n in zip(KERNELS, (4, 5, 7), strict=True)]
    found = analyzed(replayed(build, kernels, launches=2).trace(), capture(build(), 128).trace())
    assert us_of(found) == {
        ("aten::mm", "((128, 64), (64, 32))"): 2 * 1.0,
        ("my::norm", None): 2 * 2.0,
        ("aten::mm", "((130, 64), (64, 32))"): 2 * 3.0,
    }
    assert (found.graphs.linked_kernels, found.graphs.by_node, found.graphs.wrong_ids) == (6, 6, ())
    assert notice(found).endswith("in 2 of 2 graph launches; the work of 67 % of their time is known; "
                                  "matched by graph node id")  # fmt: skip


def test_equal_kernels_of_two_streams_are_told_apart_by_their_nodes(build: Build):
    """The second product ran first; a sequence of equal names could not say so."""
    kernels = [("Cijk", node(1, 1)), ("Cijk", node(1, 0))]
    made = capture(build(), 128, calls=("aten::mm", "aten::mm"), streams=True, kernel="Cijk")
    by_node = us_of(analyzed(replayed(build, kernels).trace(), made.trace()))
    assert by_node == {("aten::mm", "((128, 64), (64, 32))"): 2.0, ("aten::mm", "((129, 64), (64, 32))"): 1.0}
    by_sequence = us_of(analyzed(replayed(build, [("Cijk", {})] * 2).trace(), made.trace()))
    assert by_sequence == {("aten::mm", "((128, 64), (64, 32))"): 1.0, ("aten::mm", "((129, 64), (64, 32))"): 2.0}


def test_ids_of_the_capture_count_before_the_order_of_its_calls(build: Build):
    """The instantiated graph is number 9, the captured one number 8; their nodes are numbered alike."""
    made = build()
    made.op("cudaStreamBeginCapture", 1, 1, cat="cuda_runtime")
    for k, n in enumerate((5, 3)):
        made.op("aten::mm", 10 + 100 * k, 20, **gemm(128 + k))
        made.op("cudaLaunchKernel", 15 + 100 * k, 2, cat="cuda_runtime", correlation=k + 1, **node(8, n))
    made.op("cudaStreamWaitEvent", 880, 1, cat="cuda_runtime")
    made.op("cudaStreamEndCapture", 890, 1, cat="cuda_runtime")
    found = analyzed(replayed(build, [("a", node(9, 3)), ("b", node(9, 5))]).trace(), made.trace())
    assert us_of(found) == {("aten::mm", "((129, 64), (64, 32))"): 1.0, ("aten::mm", "((128, 64), (64, 32))"): 2.0}


def test_two_captured_graphs_with_the_same_ids_are_told(build: Build):
    made = capture(capture(build(), 128, kernel="Cijk", **node(8, 0)), 256, at=1000, kernel="Cijk", **node(8, 0))
    for k, event in enumerate(e for e in made.events if e["name"] == "cudaLaunchKernel"):
        event["args"] |= node(8, k % 3)
    found = analyzed(replayed(build, [("Cijk", node(9, k)) for k in range(3)]).trace(), made.trace()).graphs
    assert found.wrong_ids == (("several captured graphs have the same ids", 1),)
    assert found.reasons == (("several captured graphs have this sequence of kernels", 3),)


def test_copies_and_fills_are_nodes_too(build: Build):
    made = replayed(build, [("Cijk", node(1, 0))])
    copies = {"aten::copy_": "Memcpy DtoD (Device -> Device)", "aten::zero_": "Memset (Device)"}
    for k, (name, cat) in enumerate(zip(copies.values(), ("gpu_memcpy", "gpu_memset"), strict=True)):
        made.kernel(name, 10_100 + 10 * k, 5, cat=cat, correlation=500, **node(1, k + 1))
    found = analyzed(made.trace(), capture(build(), 128, calls=("aten::mm", *copies)).trace())
    assert found.graphs.by_node == 3
    assert {name for name, _ in us_of(found)} == {"aten::mm", "aten::copy_", "aten::zero_"}


def test_calls_of_another_thread_and_of_the_driver_make_the_nodes_of_one_capture(build: Build):
    """Autograd's thread launches the second kernel; the driver's call within the third is no fourth node."""
    made = capture(build(), 128, calls=("aten::mm",))
    made.op("aten::mm", 300, 20, tid=2, **gemm(129))
    made.op("cudaLaunchKernel", 305, 2, cat="cuda_runtime", tid=2, correlation=70)
    made.op("aten::mm", 400, 20, **gemm(130))
    made.op("cudaLaunchKernelExC", 405, 9, cat="cuda_runtime", correlation=71)
    made.op("cuLaunchKernelEx", 406, 2, cat="cuda_driver", correlation=71)
    found = analyzed(replayed(build, [(n, node(1, k)) for k, n in enumerate("abc")]).trace(), made.trace())
    assert found.graphs.by_node == 3
    assert list(us_of(found).values()) == [3.0, 2.0, 1.0]


def test_graphs_alike_are_joined_in_the_order_in_which_they_were_made(build: Build):
    made = capture(capture(build(), 128), 256, at=1000)
    first, second = ([(name, node(g, k)) for k, name in enumerate(KERNELS)] for g in (7, 4))
    trace = replayed(build, first)
    trace.op("cudaGraphLaunch", 20_001, 10, cat="cuda_runtime", correlation=900)
    for k, (name, args) in enumerate(second):
        trace.kernel(name, 20_020 + 10 * k, 10 * (k + 1), correlation=900, **args)
    found = us_of(analyzed(trace.trace(), made.trace()))
    assert found["aten::mm", "((128, 64), (64, 32))"] == 10.0, "graph 4 was made before graph 7"
    assert found["aten::mm", "((256, 64), (64, 32))"] == 1.0
    alone = analyzed(replayed(build, first).trace(), made.trace())
    assert alone.graphs.linked_kernels == 0, "one of two captures: nothing says which"


WRONG: dict[str, tuple[Change, str]] = {
    "swapped": (lambda _, ids: [ids[1], ids[0], *ids[2:]], "node 1 is Cijk_a, captured as norm_kernel"),
    "once too often": (lambda _, ids: [ids[0], ids[0], *ids[2:]], "two kernels of one launch have the same id"),
    "of another kernel": (lambda launch, ids: ids if launch else ids[::-1],
                          "graph 2 has the same ids on different kernels"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ids_are_noticed_and_the_sequence_counts(build: Build, case: str):
    change, why = WRONG[case]
    made = build()
    for i in range(2):
        made.op("hipGraphLaunch", 100 * i + 1, 10, cat="cuda_runtime", correlation=500 + i)
        ids = change(i, [2 << 32 | k for k in range(3)])
        for k, (kernel, n) in enumerate(zip(KERNELS, ids, strict=True)):
            args = {"graph id": 2, "graph node id": n}
            made.kernel(kernel, 100 * i + 20 + 10 * k, k + 1, correlation=500 + i, **args)
    captured = recorded_capture(build, 128)
    found = analyzed(made.trace(), captured)
    assert found.graphs.wrong_ids == ((why, 2),)
    assert (found.graphs.linked_kernels, found.graphs.by_node) == (6, 0)
    assert us_of(found) == us_of(analyzed(replay(build, launches=2), captured))
    assert notice(found).endswith(f"matched by the sequence of kernels; the graph node ids of 2 launches are not "
                                  f"believed ({why})")  # fmt: skip


def test_two_graphs_with_one_number_are_noticed_by_their_grids(build: Build):
    made = build()
    for i, grid in enumerate((128, 256)):
        made.op("hipGraphLaunch", 100 * i + 1, 10, cat="cuda_runtime", correlation=500 + i)
        for k, kernel in enumerate(KERNELS):
            args = {"grid": [grid, 1, 1], "block": [256, 1, 1], **node(2, k)}
            made.kernel(kernel, 100 * i + 20 + 10 * k, k + 1, correlation=500 + i, **args)
    found = analyzed(made.trace(), recorded_capture(build, 128, 256, grid=True))
    assert found.graphs.wrong_ids == (("graph 2 has the same ids on different kernels", 2),)
    assert {dims for name, dims in us_of(found) if name == "aten::mm"} == {
        "((128, 64), (64, 32))", "((256, 64), (64, 32))"}  # fmt: skip


@pytest.mark.sweep
@settings(max_examples=examples(40))
@given(order=st.permutations(range(4)))
def test_ids_of_one_stream_in_another_order_are_never_believed(order: list[int]):
    calls = ("aten::mm", "my::norm", "my::norm", "aten::mm")
    made = capture(Builder(), 128, calls=calls)
    kernels = [(name, node(1, n)) for name, n in zip("abcd", order, strict=True)]
    found = analyze(replayed(Builder, kernels).trace(), AnalysisOptions(capture=made.trace()), on_demand=True)
    assert found.graphs is not None
    assert found.graphs.by_node == (4 if order == sorted(order) else 0)
    assert bool(found.graphs.wrong_ids) == (order != sorted(order))


def test_ids_that_lead_to_other_kernels_than_an_op_runs_are_not_believed(build: Build):
    """Two streams, so that the order says nothing; outside the graph each op ran its own kernel."""
    made = build()
    for k, (name, kernel) in enumerate((("my::a", "kernel_a"), ("my::b", "kernel_b"))):
        made.op(name, 5000 + 100 * k, 50)
        made.launch(5001 + 100 * k, kernel, 5010 + 100 * k, 5)
    capture(made, 128, calls=("my::a", "my::b"), streams=True)
    right = [("kernel_a", node(1, 0)), ("kernel_b", node(1, 1))]
    wrong = [("kernel_a", node(1, 1)), ("kernel_b", node(1, 0))]
    assert analyzed(replayed(build, right).trace(), made.trace()).graphs.by_node == 2
    found = analyzed(replayed(build, wrong).trace(), made.trace()).graphs
    assert (found.by_node, found.linked_kernels) == (0, 2), "the run before the capture has this sequence"
    assert found.wrong_ids == (("2 of 2 kernels are none of those that their ops run outside the graph", 1),)


@pytest.mark.parametrize("args", [{}, {"graph id": 0, "graph node id": 0}, {"graph id": 1, "graph node id": "x"},
                                  {"graph id": 1, "graph node id": -5}, {"graph id": None, "graph node id": 1.5}])  # fmt: skip
def test_what_is_no_id_says_nothing(build: Build, args: dict[str, Any]):
    made = build()
    made.op("hipGraphLaunch", 1, 10, cat="cuda_runtime", correlation=500)
    for k, kernel in enumerate(KERNELS):
        made.kernel(kernel, 20 + 10 * k, k + 1, correlation=500, **args)
    found = analyzed(made.trace(), recorded_capture(build, 128))
    assert (found.graphs.linked_kernels, found.graphs.by_node, found.graphs.wrong_ids) == (3, 0, ())
    assert notice(found).endswith("matched by the sequence of kernels, as no graph node ids were recorded")


def test_nodes_of_a_graph_that_was_not_captured_are_no_wrong_ids(build: Build):
    kernels = [(name, node(1, k)) for k, name in enumerate(("other_1", "other_2", "other_3"))]
    found = analyzed(replayed(build, kernels).trace(), recorded_capture(build, 128)).graphs
    assert (found.linked_kernels, found.wrong_ids) == (0, ())


def test_a_launch_whose_kernels_were_lost_is_joined_where_the_capture_names_them(build: Build):
    made = replayed(build, [(name, node(1, k)) for k, name in enumerate(KERNELS)])
    made.op("cudaGraphLaunch", 20_001, 10, cat="cuda_runtime", correlation=900)
    made.kernel(KERNELS[2], 20_040, 5, correlation=900, **node(1, 2))
    assert analyzed(made.trace(), recorded_capture(build, 128)).graphs.by_node == 4
    assert analyzed(made.trace(), capture(build(), 128).trace()).graphs.by_node == 3


def test_a_trace_that_holds_its_captures_opens_its_graphs_unasked(build: Build):
    kernels = [(name, node(3, k)) for k, name in enumerate(KERNELS)]
    trace = replayed(build, kernels, made=capture(build(), 128)).trace()
    found = whole(analyze(trace, AnalysisOptions()))
    assert us_of(found)["aten::mm", "((130, 64), (64, 32))"] == 3.0
    assert health(trace).lacks == health(build().mm(8, 8, 8, at=0, start=9, duration=5).trace()).lacks
    assert notice(found).startswith("the capture in this trace names the ops of 3 of 3 kernels")
    without = [(name, {}) for name in KERNELS]
    silent = analyze(replayed(build, without, made=capture(build(), 128)).trace(), AnalysisOptions())
    assert silent.graphs is None
    assert "ops of replayed kernels" in {each.question for each in health(silent.trace).lacks}
    assert "pass --capture TRACE" in notice(silent)


#: Columns that show the Python frames that ``read`` leaves out, or count them.
FRAMES = ["call_stack", "parent_module", "example_row"]


def test_the_annotation_round_a_launch_says_how_much_its_attention_reads(build: Build):
    """Captured for two requests of 8 heads of 64: 2 * 8 * (64 + 64) * 300 FLOPs on the 300 keys of that step."""
    shapes = [[2, 8, 64], [], [2, 8, 64], [16, 2, 64], [16, 2, 64]]
    made = build()
    made.op("cudaStreamBeginCapture", 1, 1, cat="cuda_runtime")
    made.op("sglang_profiler::attention_paged_attention_ragged_5", 10, 20,
            **{"Input Dims": shapes, "Input type": ["c10::BFloat16"] * 5})  # fmt: skip
    made.op("cudaLaunchKernel", 15, 2, cat="cuda_runtime", correlation=1)
    made.op("cudaStreamEndCapture", 890, 1, cat="cuda_runtime")
    trace = replayed(build, [("paged", node(1, 0))])
    plain = analyzed(trace.trace(), made.trace()).frames["unified_perf_summary"]
    assert plain["gflops"].isna().all(), "a step that says nothing of its keys"
    trace.op("step[DECODE bs=2 g_sq=2 g_sqsq=2 g_sqsk=300 g_sk=300]", 10_000, 500, cat="user_annotation")
    rows = analyzed(trace.trace(), made.trace()).frames["unified_perf_summary"]
    assert rows["gflops"].tolist() == pytest.approx([2 * 8 * (64 + 64) * 300 / 1e9])


@pytest.mark.parametrize(("requests", "linked"), [(60, 2), (64, 2), (65, 0)])
def test_a_capture_of_sglang_is_of_the_batch_size_in_the_name_of_its_file(build: Build, requests: int, linked: int):
    made = capture(build(), 64, calls=("aten::mm", "aten::mm"), kernel="Cijk").trace()
    of_file = Trace.of(replace(made.table, source="bs_64_rank0.json.gz"))
    trace = replayed(build, [("Cijk", node(1, k)) for k in range(2)])
    trace.op(f"step[DECODE bs={requests}]", 10_000, 500, cat="user_annotation")
    assert analyzed(trace.trace(), of_file).graphs.linked_kernels == linked


DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
REAL = {
    "vllm_decode_full": (421, 1),
    "vllm_prefilldecode_piecewise": (361, 25),
}


def read(path: Path) -> dict[str, Any]:
    """Without Python frames but modules, which are most of a capture."""
    recorded = json.loads(gzip.decompress(path.read_bytes()))
    events = recorded["traceEvents"]
    kept = [e for e in events if e.get("cat") != "python_function" or e["name"].startswith("nn.Module")]
    return {**recorded, "traceEvents": kept}


def with_ids(recorded: dict[str, Any], change: Change = lambda _, ids: ids) -> dict[str, Any]:
    """The replay with a graph's number per launch and a node's per kernel, as CUPTI counts them."""
    events = recorded["traceEvents"]
    launches = [event for event in events if event.get("ph") == "X" and "GraphLaunch" in event["name"]]
    for graph, launch in enumerate(sorted(launches, key=lambda event: event["ts"]), start=1):
        correlation = launch["args"]["correlation"]
        kernels = [e for e in events if e.get("cat") in DEVICE and e["args"].get("correlation") == correlation]
        kernels.sort(key=lambda event: event["ts"])
        ids = change(graph, [2 * graph << 32 | k for k in range(len(kernels))])
        for event, number in zip(kernels, ids, strict=True):
            event["args"] |= {"graph id": number >> 32, "graph node id": number}
    return recorded


def without_names(recorded: dict[str, Any]) -> dict[str, Any]:
    """The capture as on another vendor's device: no run before it, and launches that name no kernel."""
    recorded["traceEvents"] = [event for event in recorded["traceEvents"] if event.get("cat") not in DEVICE]
    for event in recorded["traceEvents"]:
        if event.get("cat") == "cuda_runtime":
            event["args"] = {key: event["args"][key] for key in event["args"].keys() - {"kernel", "grid", "block"}}
            event["name"] = event["name"].replace("hipModuleLaunch", "cuLaunch").replace("hip", "cuda")
    return recorded


def with_ids_of_calls(recorded: dict[str, Any]) -> dict[str, Any]:
    """The capture with the node that each of its calls made: the captured graph is numbered before its instance."""
    graph = number = -1
    for event in sorted(recorded["traceEvents"], key=lambda event: event.get("ts", 0)):
        if "StreamBeginCapture" in event.get("name", ""):
            graph, number = max(graph, -1) + 2, 0
        elif "LaunchKernel" in event.get("name", "") and graph > 0:
            event["args"] |= {"graph id": graph, "graph node id": graph << 32 | number}
            number += 1
    return recorded


def shuffled(graph: int, ids: list[int]) -> list[int]:
    return random.Random(graph).sample(ids, len(ids))  # noqa: S311


@pytest.fixture
def as_trace(tmp_path: Path) -> Callable[[dict[str, Any]], Trace]:
    def trace(content: dict[str, Any]) -> Trace:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(content))
        return load(path)

    return trace


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize("numbered", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", part(list(REAL), 2))
def test_every_replayed_kernel_of_an_engine_has_its_op_by_node_alone(
    shared_traces: Path,
    real_analysis: RealAnalysis,
    as_trace: Callable[[dict[str, Any]], Trace],
    name: str,
    numbered: bool,
):
    kernels, launches = REAL[name]
    folder = shared_traces / "inference" / name
    (capture_path,) = (folder / "capture_traces").glob("*.json.gz")
    plain = real_analysis(
        f"inference/{name}/graph_execution", str(capture_path.relative_to(shared_traces)), on_demand=True
    )
    content = without_names(read(capture_path))
    captured = as_trace(with_ids_of_calls(content) if numbered else content)
    found = whole(
        analyze(
            as_trace(with_ids(read(folder / "graph_execution.json.gz"))),
            AnalysisOptions(capture=captured),
            on_demand=True,
        )
    )
    assert found.graphs is not None
    assert (found.graphs.kernels, found.graphs.by_node, found.graphs.linked_launches) == (kernels, kernels, launches)
    rows, of_names = (each.frames["unified_perf_summary"].drop(columns=FRAMES) for each in (found, plain))
    assert rows.equals(of_names)
    wrong = as_trace(with_ids(read(folder / "graph_execution.json.gz"), shuffled))
    told = analyze(wrong, AnalysisOptions(capture=captured), on_demand=True).graphs
    assert told is not None
    assert (told.linked_kernels, sum(count for _, count in told.wrong_ids)) == (0, launches)
