"""The tree of modules, ops and kernels: time is conserved, and stands below what asked for it."""

from __future__ import annotations

import pytest

from tests.conftest import RealAnalysis, part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.page_charts import Icicle, icicle


def paths(tree: Icicle) -> dict[str, tuple[str, int, int]]:
    """Path of names: (kind, time in ns, calls)."""
    found: dict[str, tuple[str, int, int]] = {}
    names: list[str] = []
    for node in tree.nodes:
        names.append(node.name if node.parent < 0 else f"{names[node.parent]}/{node.name}".removeprefix("built.json/"))
        assert names[-1] not in found
        found[names[-1]] = (node.kind, node.time_ns, node.calls)
    return found


def conserved(tree: Icicle) -> bool:
    below = [0] * len(tree.nodes)
    for node in tree.nodes[1:]:
        below[node.parent] += node.time_ns
    is_leaf = [node.kind == "kernel" for node in tree.nodes]
    return all(leaf or below[i] == node.time_ns for i, (node, leaf) in enumerate(zip(tree.nodes, is_leaf, strict=True)))


def test_equal_paths_are_added_up(build):
    builder = build()
    builder.op("aten::linear", 0, 20).mm(8, 8, 8, 1, 100, 10)
    builder.op("aten::linear", 30, 20).mm(8, 8, 8, 31, 120, 20)
    tree = icicle(analyze(builder.trace(), AnalysisOptions(), on_demand=True))
    assert paths(tree) == {
        "built.json": ("all", 30_000, 1),
        "aten::linear": ("op", 30_000, 2),
        "aten::linear/aten::mm": ("op", 30_000, 2),
        "aten::linear/aten::mm/Cijk_Ailk_Bljk": ("kernel", 30_000, 2),
    }
    assert {node.category for node in tree.nodes} == {"GEMM"}
    assert conserved(tree)


def test_a_backward_op_stands_below_the_module_of_its_forward_op(build):
    builder = build()
    builder.op("nn.Module: Net_0", 0, 90, cat="python_function").op("nn.Module: Linear_0", 5, 60, cat="python_function")
    builder.op("aten::addmm", 10, 20, **{"Sequence number": 7, "Fwd thread id": 0}).launch(12, "forward", 100, 10)
    backward = "autograd::engine::evaluate_function: AddmmBackward0"
    builder.op(backward, 200, 50, tid=2, **{"Sequence number": 7, "Fwd thread id": 1})
    builder.launch(210, "backward", 300, 20, tid=2)
    found = paths(icicle(analyze(builder.trace(), AnalysisOptions(), on_demand=True)))
    assert found["Net_0/Linear_0"] == ("module", 30_000, 1)
    assert found["Net_0/Linear_0/aten::addmm/forward"] == ("kernel", 10_000, 1)
    assert found[f"Net_0/Linear_0/{backward}/backward"] == ("kernel", 20_000, 1)


def test_step_annotations_are_no_level_and_others_are(build):
    builder = build()
    for step in (1, 2):
        at = 100 * step
        builder.op(f"ProfilerStep#{step}", at, 90, cat="user_annotation")
        builder.op("Optimizer.step#SGD.step", at + 5, 50, cat="user_annotation")
        builder.op("aten::add_", at + 10, 20).launch(at + 11, "add", at + 30, 5)
    assert list(paths(icicle(analyze(builder.trace(), AnalysisOptions(), on_demand=True)))) == [
        "built.json", "Optimizer.step#SGD.step", "Optimizer.step#SGD.step/aten::add_", "Optimizer.step#SGD.step/aten::add_/add",
    ]  # fmt: skip


def test_an_annotation_round_modules_is_no_level(build):
    builder = build()
    builder.op("forward", 0, 90, cat="user_annotation").op("nn.Module: Net_0", 5, 60, cat="python_function")
    builder.op("aten::add", 10, 20).launch(11, "add", 30, 5)
    assert "Net_0/aten::add/add" in paths(icicle(analyze(builder.trace(), AnalysisOptions(), on_demand=True)))


def test_unlinked_kernels_have_a_place_of_their_own(build):
    builder = build().mm(8, 8, 8, 0, 100, 10).kernel("stray", 50, 7)
    found = paths(icicle(analyze(builder.trace(), AnalysisOptions(), on_demand=True)))
    assert found["(unlinked kernels)/stray"] == ("kernel", 7_000, 1)
    assert found["built.json"][1] == 17_000


def test_the_largest_nodes_are_kept_with_what_is_above_them(build):
    builder = build()
    for i in range(20):
        builder.op(f"op {i}", 10 * i, 5).launch(10 * i + 1, f"kernel {i}", 1000 + 100 * i, 10 + i)
    tree = icicle(analyze(builder.trace(), AnalysisOptions(), on_demand=True), max_nodes=9)
    # 1 root + 20 ops + 20 kernels; an op takes as long as its kernel, and comes before it
    assert (len(tree.nodes), tree.left_out) == (9, 41 - 9)
    assert [node.name for node in tree.nodes[1:3]] == ["op 19", "kernel 19"]
    assert all(node.parent < i for i, node in enumerate(tree.nodes))
    assert all(tree.nodes[node.parent].time_ns >= node.time_ns for node in tree.nodes[1:])


def test_without_kernels_it_is_the_cpus_own_time(build):
    builder = build().op("aten::linear", 0, 20).op("aten::mm", 5, 8)
    tree = icicle(analyze(builder.trace(), AnalysisOptions(cpu=True), on_demand=True))
    assert tree.is_cpu
    assert paths(tree) == {
        "built.json": ("all", 20_000, 1),
        "aten::linear": ("op", 20_000, 1),
        "aten::linear/aten::mm": ("op", 8_000, 1),
    }
    assert {node.category for node in tree.nodes} == {"GEMM"}


@pytest.mark.parametrize("name", ["moe_ep8/rank0.json.gz", "moe_ep8/rank7.json.gz"])
def test_time_is_conserved_in_the_examples(repository, name):
    analysis = analyze(load(repository / "example_traces" / name), AnalysisOptions(), on_demand=True)
    tree = icicle(analysis)
    assert tree.nodes[0].time_ns == analysis.activity.duration.sum()
    assert conserved(tree)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    part(["mi300/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "mi300/resnet_act_checkpoint.json.gz", "hta/trace_filter/sampled_rank-0.json.gz"], 3),
)  # fmt: skip
def test_time_is_conserved_in_real_traces(real_analysis: RealAnalysis, name):
    analysis = real_analysis(name, on_demand=True)
    tree = icicle(analysis, max_nodes=10**6)
    assert tree.left_out == 0
    assert tree.nodes[0].time_ns == analysis.activity.duration.sum()
    assert conserved(tree)
