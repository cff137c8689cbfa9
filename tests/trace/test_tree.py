"""The forest of host events, its invariants, and what is asked of it."""

from __future__ import annotations

import dataclasses
import os
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples, part
from tests.trace.event_texts import read_events
from tracelens.trace.table import Kind
from tracelens.trace.tree import OpTree, nearest, nest

# lane, start, duration, rank: few distinct values, so that ties, touching and zero-length intervals are common
INTERVALS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 6), st.integers(0, 2)), max_size=40
)


def event(name: str, start: float, duration: float, category: str = "cpu_op", *, thread: Any = 1, **args: Any) -> dict:
    spelled = {key.replace("_", " "): value for key, value in args.items()}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": thread,
        "ts": start,
        "dur": duration,
        "args": spelled,
    }


def launch(correlation: int, start: float, duration: float, **more: Any) -> dict:
    return event("cudaLaunchKernel", start, duration, "cuda_runtime", correlation=correlation, **more)


def kernel(correlation: int, start: float, duration: float, name: str = "gemm") -> dict:
    return event(name, start, duration, "kernel", thread=7, correlation=correlation, stream=7)


def tree_of(*events: dict) -> OpTree:
    tree = OpTree(read_events(list(events)))
    assert tree.self_check() == []
    return tree


def names(tree: OpTree, rows: np.ndarray) -> list[str]:
    return [tree.table.name_of(int(row)) for row in rows]


def nested_by_definition(
    intervals: list[tuple[int, int, int, int]],
) -> tuple[list[int], list[int], list[int], list[bool]]:
    """(preorder, parent, subtree end, overlaps) straight from what containment means, each pair compared."""
    spans = [(lane, start, start + duration, rank) for lane, start, duration, rank in intervals]

    def place(i: int) -> tuple[int, ...]:
        lane, start, end, rank = spans[i]
        return lane, start, -end, rank, i

    order = sorted(range(len(spans)), key=place)
    parents, overlaps = [], []
    for position, i in enumerate(order):
        lane, start, end, rank = spans[i]
        parent, overlap = -1, False
        for before in range(position):
            other_lane, other_start, other_end, other_rank = spans[order[before]]
            if other_lane != lane:
                continue
            is_open = start < other_end or (other_start == start == other_end == end and other_rank < rank)
            if is_open and end <= other_end:
                parent, overlap = before, False
            overlap |= start < other_end < end
        parents.append(parent)
        overlaps.append(overlap)
    last = [position + 1 for position in range(len(order))]
    for position in reversed(range(len(order))):
        if parents[position] >= 0:
            last[parents[position]] = max(last[parents[position]], last[position])
    return order, parents, last, overlaps


@settings(deadline=None, max_examples=examples(300))
@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("base", part([1_760_000_000_000_000_000, 0], 2))
@given(intervals=INTERVALS)
def test_nesting_is_innermost_containment_however_it_is_found(is_compiled, base, intervals):
    lane, start, duration, rank = np.array(intervals, np.int64).reshape(-1, 4).T
    with mock.patch.dict(os.environ, {} if is_compiled else {"TRACELENS_PURE_PYTHON": "1"}):
        found = nest(lane.astype(np.int32), start + base, duration, rank.astype(np.uint8))
    order, parents, last, overlaps = nested_by_definition(intervals)
    assert found.order.tolist() == order
    assert found.parent.tolist() == parents
    assert found.last.tolist() == last
    assert found.overlaps.tolist() == overlaps
    assert found.depth.tolist() == [depth_of(parents, position) for position in range(len(parents))]


@settings(deadline=None, max_examples=examples(300))
@given(intervals=INTERVALS)
def test_compiled_nesting_is_that_of_python(intervals):
    lane, start, duration, rank = np.array(intervals, np.int64).reshape(-1, 4).T
    given = (lane.astype(np.int32), start, duration, rank.astype(np.uint8))
    with mock.patch.dict(os.environ, {"TRACELENS_PURE_PYTHON": "1"}):
        plain = nest(*given)
    found = nest(*given)
    for field in dataclasses.fields(plain):
        one, other = getattr(found, field.name), getattr(plain, field.name)
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist(), field.name


def depth_of(parents: list[int], position: int) -> int:
    depth = 0
    while (position := parents[position]) >= 0:
        depth += 1
    return depth


def test_a_call_climbs_a_deep_stack_all_the_way_up():
    # 2000 nested calls [i, 4000 - i], then one call in the outermost: it has to climb all the way up
    deep = np.arange(2000)
    start = np.append(deep, 3999)
    with mock.patch.dict(os.environ, {"TRACELENS_PURE_PYTHON": "1"}):
        found = nest(np.zeros(2001, np.int32), start, np.append(4000 - 2 * deep, 1), np.zeros(2001, np.uint8))
    assert found.parent.tolist() == [*range(-1, 1999), 0]
    assert found.last.tolist() == [2001, *[2000] * 1999, 2001]
    assert found.depth.max() == 1999


@given(st.data())
def test_the_nearest_wanted_ancestor_is_found_like_climbing_one_by_one(data):
    parents = [data.draw(st.integers(-1, i - 1)) for i in range(data.draw(st.integers(0, 30)))]
    wanted = [data.draw(st.booleans()) for _ in parents]
    expected = []
    for above in parents:
        while above >= 0 and not wanted[above]:
            above = parents[above]
        expected.append(above)
    for environment in ({}, {"TRACELENS_PURE_PYTHON": "1"}):
        with mock.patch.dict(os.environ, environment):
            assert nearest(np.array(parents, np.int32), np.array(wanted, np.bool_)).tolist() == expected


def test_a_parent_may_come_after_its_child_in_the_file():
    tree = tree_of(event("aten::addmm", 10, 5), event("aten::linear", 10, 8))
    assert tree.parent.tolist() == [1, -1]
    assert tree.depth.tolist() == [1, 0]


def test_of_two_equal_spans_the_first_in_the_file_is_outside():
    assert tree_of(event("a", 10, 4), event("b", 10, 4)).parent.tolist() == [-1, 0]


def test_calls_of_one_moment_lie_beside_each_other_and_their_launches_in_the_last():
    ops = [event("around", 10, 5), event("a", 10, 0), event("b", 10, 0), event("c", 10, 0)]
    tree = tree_of(*ops, launch(2, 10, 0), launch(3, 10, 0))
    assert tree.parent.tolist() == [-1, 0, 0, 0, 3, 3]
    assert tree.overlaps == 0


def test_a_launch_lies_in_the_op_of_the_same_span_even_when_it_comes_first():
    driver = event("cuLaunchKernel", 10, 0, "cuda_driver", correlation=3)
    tree = tree_of(driver, launch(2, 10, 0), event("aten::add", 10, 0))
    assert tree.parent.tolist() == [1, 2, -1]


def test_a_zero_length_event_at_a_siblings_end_lies_outside_it_and_at_a_siblings_start_inside():
    # parent [0, 9], a [1, 4], tick [4, 4], b [4, 6], tock [6, 6]
    rows = [event("parent", 0, 9), event("a", 1, 3), event("tick", 4, 0), event("b", 4, 2), event("tock", 6, 0)]
    assert tree_of(*rows).parent.tolist() == [-1, 0, 3, 0, 0]


def test_an_event_that_outlives_its_caller_hangs_on_the_innermost_that_contains_it_and_is_counted():
    # late [3, 7] starts in inner [2, 5], which ends first; outer [0, 9] contains it
    rows = [event("outer", 0, 9), event("inner", 2, 3), event("late", 3, 4), event("after", 8, 1)]
    tree = tree_of(*rows)
    assert tree.parent.tolist() == [-1, 0, 0, 0]
    assert tree.overlaps == 1
    alone = tree_of(*rows[1:])
    assert alone.parent.tolist() == [-1, -1, -1]
    assert alone.overlaps == 1


def test_a_broken_frame_does_not_take_the_launches_in_it_out_of_their_op():
    # The frame starts in the op and was recorded to end after it; the graph launch and its kernel belong to the op,
    # which the kernel's External id names too. What the frame calls later is its own
    rows = [
        event("main", 0, 99, category="python_function"),
        event("Torch-Compiled Region", 10, 50, **{"External id": 5651}),
        event("run", 20, 60, category="python_function"),
        event("hipGraphLaunch", 30, 5, category="hip_runtime", correlation=7, **{"External id": 5651}),
        event("aten::add", 65, 5),
        event("k", 40, 5, thread=3, category="kernel", correlation=7, **{"External id": 5651}),
    ]
    tree = tree_of(*rows)
    assert tree.parent.tolist() == [-1, 0, 0, 1, 2, -1]
    assert tree.op[5] == 1
    assert tree.overlaps == 1
    assert tree.self_check() == []


def test_a_launch_that_ends_with_its_op_but_for_rounding_lies_in_it():
    rows = [
        event("aten::add", 10, 20),
        event("cudaLaunchKernel", 25, 6, category="cuda_runtime", correlation=7),
        event("k", 40, 5, thread=3, category="kernel", correlation=7),
    ]
    tree = tree_of(*rows)
    assert (tree.parent[1], tree.op[2], tree.overlaps) == (0, 0, 1)
    assert tree.self_check() == []


def test_threads_do_not_mix():
    rows = [event("a", 0, 9), event("b", 1, 2, thread=2), event("c", 1, 2), event("d", 1, 1, thread="text")]
    tree = tree_of(*rows)
    assert tree.parent.tolist() == [-1, -1, 0, -1]
    assert names(tree, tree.roots()) == ["a", "b", "d"]


def test_only_host_calls_nest():
    rows = [event("a", 0, 9), event("k", 1, 2, "kernel"), event("s", 2, 2, "cuda_sync"), event("o", 3, 1, "overhead")]
    tree = tree_of(*rows, event("frame", 4, 1, "python_function"), event("mark", 6, 1, "user_annotation"))
    assert tree.order.tolist() == [0, 4, 5]
    assert tree.parent.tolist() == [-1, -1, -1, -1, 0, 0]
    assert tree.depth.tolist() == [0, -1, -1, -1, 1, 1]


def linear_layer() -> OpTree:
    """A step with a Python frame round ``linear`` -> ``addmm`` -> two kernels, and a copy outside any op."""
    return tree_of(
        event("ProfilerStep#1", 0, 100, "user_annotation"),
        event("nn.Module: Linear_3", 10, 50, "python_function"),
        event("aten::linear", 11, 40),
        event("aten::addmm", 12, 30),
        launch(1, 13, 2),
        launch(2, 20, 2),
        event("hipMemcpyWithStream", 70, 5, "cuda_runtime", correlation=3),
        kernel(2, 40, 7, "second"),
        kernel(1, 30, 10, "first"),
        event("Memcpy HtoD", 80, 4, "gpu_memcpy", thread=7, correlation=3),
        kernel(99, 5, 6, "earlier"),
    )


def test_walking_the_tree():
    tree = linear_layer()
    assert names(tree, tree.roots()) == ["ProfilerStep#1"]
    assert names(tree, tree.children(0)) == ["nn.Module: Linear_3", "hipMemcpyWithStream"]
    assert names(tree, tree.subtree(2)) == ["aten::linear", "aten::addmm", "cudaLaunchKernel", "cudaLaunchKernel"]
    assert names(tree, tree.ancestors(3)) == ["aten::linear", "nn.Module: Linear_3", "ProfilerStep#1"]
    assert tree.ancestors(8).tolist() == [4, 3, 2, 1, 0]
    assert tree.subtree(8).tolist() == []
    assert tree.children(8).tolist() == []
    assert len(tree) == 7


def test_the_op_of_a_kernel_is_the_nearest_above_its_launch_and_a_copy_without_one_hangs_on_its_launch():
    tree = linear_layer()
    assert tree.launch.tolist() == [-1] * 7 + [5, 4, 6, -1]
    assert tree.op.tolist() == [-1] * 7 + [3, 3, 6, -1]
    assert tree.op_parent.tolist() == [-1, -1, -1, 2, 3, 3, -1, -1, -1, -1, -1]
    assert names(tree, tree.unlinked) == ["earlier"]


def test_an_op_called_execute_and_python_frames_own_no_kernels():
    tree = tree_of(
        event("aten::mm", 0, 20),
        event("frame", 1, 15, "python_function"),
        event("execute", 2, 10),
        event("note", 3, 5, "user_annotation"),
        launch(1, 4, 1),
        kernel(1, 30, 5),
        event("execute", 50, 10),
        launch(2, 51, 1),
        kernel(2, 60, 5),
    )
    assert tree.op[5] == 0
    assert tree.op[8] == 7
    assert tree.op_parent[4] == 2


def test_kernels_of_an_op_and_below_it():
    tree = linear_layer()
    assert names(tree, tree.launched_by(4)) == ["first"]
    assert tree.launched_by(3).tolist() == []
    assert names(tree, tree.kernels_below(3)) == ["first", "second"]
    assert names(tree, tree.kernels_below(0)) == ["first", "second", "Memcpy HtoD"]
    assert tree.kernels_below(8).tolist() == []
    assert tree.launched_by(8).tolist() == []


def test_the_sum_over_a_subtree_counts_device_time_at_its_launch():
    tree = linear_layer()
    table = tree.table
    time = np.where(np.isin(table.kind, (Kind.KERNEL, Kind.MEMCPY)), table.duration_ns, 0)
    # first 10, second 7, copy 4; the unlinked 6 is below nobody
    assert (tree.subtree_sum(time) // 1000).tolist() == [21, 17, 17, 17, 10, 7, 4, 0, 0, 0, 0]
    assert tree.subtree_sum(table.kind == Kind.RUNTIME).tolist() == [3, 2, 2, 2, 1, 1, 1, 0, 0, 0, 0]


def test_sums_stay_exact_where_floats_would_not():
    tree = tree_of(event("a", 0, 9), event("b", 1, 1), event("c", 3, 1))
    assert tree.subtree_sum([1, 2**53, 2]).tolist() == [2**53 + 3, 2**53, 2]
    with pytest.raises(ValueError, match="float64"):
        tree.subtree_sum([1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="3 integers"):
        tree.subtree_sum([1, 2])


@settings(deadline=None)
@given(intervals=INTERVALS.filter(bool), data=st.data())
def test_subtree_sums_equal_adding_up_every_ancestor(intervals, data):
    tree = tree_of(*(event("op", start, duration, thread=lane) for lane, start, duration, _ in intervals))
    values = [data.draw(st.integers(-5, 5)) for _ in intervals]
    expected = [0] * len(values)
    for row, value in enumerate(values):
        for above in (row, *tree.ancestors(row).tolist()):
            expected[above] += value
    assert tree.subtree_sum(values).tolist() == expected


def test_modules_are_the_frames_round_an_op_and_a_backward_op_has_those_of_its_forward():
    tree = tree_of(
        event("nn.Module: Net_0", 0, 50, "python_function"),
        event("_launch_or_forward", 1, 40, "python_function"),
        event("nn.Module: Linear_0", 2, 30, "python_function"),
        event("aten::addmm", 3, 20, Sequence_number=5),
        launch(1, 4, 1),
        event("autograd::engine::evaluate_function: AddmmBackward0", 60, 20, thread=2, Sequence_number=5),
        event("AddmmBackward0", 61, 18, thread=2, Sequence_number=5),
        event("aten::mm", 62, 2, thread=2),
        event("aten::mm", 65, 2, thread=2),
        kernel(1, 30, 5),
        event("aten::add", 90, 2),
    )
    stack = ("nn.Module: Net_0", "nn.Module: Linear_0")
    assert [tree.module_of(row) for row in (3, 9, 8)] == [stack, stack, stack]
    assert tree.module_of(2) == stack
    assert tree.module_of(10) == ()


def test_a_node_shows_one_event_and_what_surrounds_it():
    node = linear_layer().node(3)
    assert (node.name, node.kind, node.start_us, node.duration_us) == ("aten::addmm", Kind.CPU_OP, 12.0, 30.0)
    assert node.signature.name == "aten::addmm"
    assert node.parent is not None
    assert node.parent.name == "aten::linear"
    assert [child.start_us for child in node.children] == [13.0, 20.0]
    assert [k.name for k in node.kernels] == ["first", "second"]
    assert node.kernels[0].parent == node.children[0]
    assert node.forward is None
    assert repr(node) == "<OpNode aten::addmm row 3, 30.000 us, 2 kernels>"


@pytest.mark.parametrize("events", [[], [kernel(1, 0, 5)], [event("o", 3, 1, "overhead")]])
def test_a_trace_without_host_calls_has_an_empty_tree(events):
    tree = tree_of(*events)
    assert len(tree) == len(tree.roots()) == 0
    assert tree.overlaps == 0
    assert tree.unlinked.tolist() == [row for row, e in enumerate(events) if e["cat"] == "kernel"]
    assert tree.subtree_sum([1] * len(events)).tolist() == [0] * len(events)


@pytest.mark.parametrize(
    ("array", "row", "value", "sentence"),
    [
        ("parent", 6, 3, "1 events are not contained in their parents, the first at row 6"),
        ("parent", 3, 4, "events come before their parents"),
        ("depth", 3, 9, "depths are not one more than the parent's"),
        ("depth", 0, 1, "roots have a depth"),
        ("size", 3, 2, "subtree slices have the wrong length"),
        ("size", 5, 2, "subtrees reach beyond their parent's"),
        ("position", 3, 2, "position is not the inverse of order"),
        ("order", 0, 1, "order is not a permutation of the host rows"),
        ("linked_by", 0, 1, "rows are linked that are no device events"),
        ("_launch_or_forward", 8, 8, "launches are no host events"),
        ("_launch_or_forward", 8, 5, "correlations of launch and device event differ"),
        ("_launch_or_forward", 8, 3, "correlated launches are no runtime or driver events"),
        ("_launch_or_forward", 8, -1, "linked_by and launch disagree"),
        ("_launch_or_forward", 8, -1, "a device event is in no launch, or in more than one"),
        ("op_parent", 6, 3, "ops are not at or above the launch"),
        ("op_parent", 4, 1, "launching ops are neither a cpu_op nor the launch"),
        ("_launched", 0, 7, "a device event is in no launch, or in more than one"),
        ("_launched_at", -1, 99, "linked and unlinked device time is 23000 ns, all device time 27000 ns"),
        ("_launch_or_forward", 3, 4, "forward links join rows that are no ops"),
        ("_launch_or_forward", 2, 3, "forward ops start after their backward"),
    ],
)
def test_self_check_names_what_is_broken(array, row, value, sentence):
    tree = linear_layer()
    broken = np.array(getattr(tree, array))
    broken[row] = value
    setattr(tree, array, broken)
    assert any(sentence in found for found in tree.self_check()), tree.self_check()


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_every_tree_of_random_events_is_sound_and_conserves_device_time(data):
    ticks = st.integers(0, 30)
    host = st.sampled_from(["cpu_op", "cuda_runtime", "cuda_driver", "user_annotation", "python_function"])
    label = st.sampled_from(["a", "execute", "XBackward0", "autograd::engine::evaluate_function: X"])
    events = []
    for _ in range(data.draw(st.integers(0, 25))):
        category = data.draw(st.one_of(host, st.sampled_from(["kernel", "gpu_memcpy", "cuda_sync"])))
        numbers = {key: data.draw(st.integers(-1, 4)) for key in ("correlation", "External_id", "Sequence_number")}
        thread = data.draw(st.integers(0, 2))
        events.append(event(data.draw(label), data.draw(ticks), data.draw(ticks), category, thread=thread, **numbers))
    for _ in range(data.draw(st.integers(0, 6))):
        flow = {"ph": data.draw(st.sampled_from("sf")), "cat": data.draw(st.sampled_from(["ac2g", "fwdbwd"]))}
        place = {
            "id": data.draw(st.integers(0, 3)),
            "pid": 1,
            "tid": data.draw(st.integers(0, 2)),
            "ts": data.draw(ticks),
        }
        events.append({"name": "flow"} | flow | place)
    tree = tree_of(*events)
    assert sorted(tree.order.tolist()) == [
        row for row in range(len(tree.table)) if Kind(int(tree.table.kind[row])).name in HOST_NAMES
    ]


HOST_NAMES = {"CPU_OP", "RUNTIME", "DRIVER", "USER_ANNOTATION", "PYTHON_FUNCTION"}
