"""Launches of device events and forward ops of backward ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import row_by_row
from tests.trace.event_texts import read_events
from tracelens.analysis.loaded_trace import Trace
from tracelens.trace import links
from tracelens.trace.links import LinkedBy
from tracelens.trace.narrow_columns import Column
from tracelens.trace.reading.read import read_trace
from tracelens.trace.tree import OpTree

# As libkineto's toString(ActivityType) writes them, through its versions.
HOST_CATEGORIES = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "mtia_runtime", "hpu_op",
    "privateuse1_runtime", "privateuse1_driver", "glow_runtime", "runtime", "driver", "Runtime",
)  # fmt: skip
ENGINE = "autograd::engine::evaluate_function: "


def event(
    name: str, start: float, duration: float, category: str, *, place: tuple[Any, Any] = (1, 1), **args: Any
) -> dict:
    spelled = {key.replace("_", " "): value for key, value in args.items()}
    pid, tid = place
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start,
        "dur": duration,
        "args": spelled,
    }


def op(name: str, start: float, duration: float, number: int | None = None, *, thread: Any = 1, pid: Any = 1) -> dict:
    more = {} if number is None else {"Sequence_number": number}
    return event(name, start, duration, "cpu_op", place=(pid, thread), **more)


def launch(
    start: float, correlation: int | None = None, *, category: str = "cuda_runtime", duration: float = 2
) -> dict:
    more = {} if correlation is None else {"correlation": correlation}
    return event("launch", start, duration, category, **more)


def kernel(start: float, correlation: int | None = None, *, category: str = "kernel", **more: Any) -> dict:
    if correlation is not None:
        more["correlation"] = correlation
    return event("kernel", start, 5, category, place=(0, 7), **more)


def flow(phase: str, identifier: Any, place: tuple[Any, Any], time: float, category: str = "ac2g") -> dict:
    return {
        "ph": phase,
        "cat": category,
        "name": category,
        "id": identifier,
        "pid": place[0],
        "tid": place[1],
        "ts": time,
    }


def tree_of(*events: dict) -> OpTree:
    tree = OpTree(read_events(list(events)))
    assert tree.self_check() == []
    return tree


@row_by_row("host", HOST_CATEGORIES)
@pytest.mark.parametrize(
    "device", ["kernel", "gpu_memcpy", "gpu_memset", "mtia_ccp_events", "Kernel", "Memcpy", "Memset"]
)
def test_launch_and_device_event_share_a_correlation(host, device):
    tree = tree_of(launch(0, 4, category=host), kernel(9, 4, category=device), launch(20, 5, category=host))
    assert tree.launch.tolist() == [-1, 0, -1]
    assert tree.linked_by.tolist() == [0, LinkedBy.CORRELATION, 0]


def test_a_graph_launch_owns_all_its_kernels_by_start():
    tree = tree_of(launch(0, 4), kernel(30, 4), kernel(10, 4), kernel(20, 4), launch(5, 6))
    assert tree.launched_by(0).tolist() == [2, 3, 1]
    assert tree.launched_by(4).tolist() == []


def test_what_was_launched_before_the_window_stays_unlinked_in_spite_of_its_external_id():
    # id 3 is no op's: the op was not recorded either
    tree = tree_of(
        event("aten::mm", 0, 9, "cpu_op", External_id=8), launch(1, 7), kernel(0, 2, External_id=3), kernel(9, 7)
    )
    assert tree.launch.tolist() == [-1, -1, -1, 1]
    assert tree.unlinked.tolist() == [2]


@pytest.mark.parametrize("correlation", [0, -1, None])
def test_zero_and_absent_are_no_correlation(correlation):
    assert tree_of(launch(0, correlation), kernel(9, correlation)).unlinked.tolist() == [1]


def test_a_gpu_annotation_is_no_device_event():
    tree = tree_of(launch(0, 4), kernel(9, 4, category="gpu_user_annotation"))
    assert tree.launch.tolist() == [-1, -1]
    assert tree.unlinked.tolist() == []


def test_a_repeated_correlation_means_the_latest_launch_not_after_the_kernel():
    #              0             1              2              3             4              5
    tree = tree_of(launch(0, 4), launch(10, 4), launch(20, 4), kernel(5, 4), kernel(10, 4), kernel(99, 4))
    assert tree.launch.tolist()[3:] == [0, 1, 2]


def test_the_only_launch_is_taken_even_when_clocks_put_it_after_the_kernel():
    assert tree_of(launch(10, 4), kernel(9, 4)).launch.tolist() == [-1, 0]


def test_a_driver_call_with_the_runtime_calls_correlation_is_the_launch():
    tree = tree_of(launch(0, 4, category="cuda_driver", duration=1), launch(0, 4, duration=3), kernel(9, 4))
    assert tree.parent[0] == 1
    assert tree.launch[2] == 0


@pytest.mark.parametrize("category", ["ac2g", "async_cpu_to_gpu"])
@pytest.mark.parametrize("identifier", [12, "0xc"])
def test_without_correlation_a_flow_leads_from_launch_to_kernel(category, identifier):
    tree = tree_of(
        op("aten::mm", 0, 9),
        launch(3),
        kernel(20),
        flow("s", identifier, (1, 1), 3, category),
        flow("f", identifier, (0, 7), 20, category),
    )
    assert tree.launch.tolist() == [-1, -1, 1]
    assert tree.linked_by[2] == LinkedBy.FLOW
    assert tree.op[2] == 0


def test_a_flow_whose_id_is_the_kernels_correlation_needs_no_end():
    tree = tree_of(launch(3), kernel(20, 12), flow("s", 12, (1, 1), 3))
    assert tree.launch.tolist() == [-1, 0]


def test_a_flow_starts_at_the_launch_when_the_op_starts_there_too_and_at_the_op_without_a_launch():
    ends = flow("s", 1, (1, 1), 3), flow("f", 1, (0, 7), 20)
    assert tree_of(launch(3), op("aten::mm", 3, 9), kernel(20), *ends).launch[2] == 0
    alone = tree_of(op("aten::linear", 3, 12), op("aten::mm", 3, 9), kernel(20), *ends)
    assert alone.launch[2] == alone.op[2] == 1


@pytest.mark.parametrize(
    "flows",
    [
        [flow("f", 1, (0, 7), 20)],
        [flow("s", 1, (1, 1), 3)],
        [flow("s", 1, (1, 1), 3), flow("f", 2, (0, 7), 20)],
        [flow("s", 1, (1, 1), 3), flow("f", 1, (0, 7), 21)],
        [flow("s", 1, (1, 1), 4), flow("f", 1, (0, 7), 20)],
        [flow("s", 1, (1, 1), 3, "critical_path"), flow("f", 1, (0, 7), 20, "critical_path")],
        [flow("s", 1, (1, 1), 3, "fwdbwd"), flow("f", 1, (0, 7), 20, "fwdbwd")],
    ],
)
def test_half_a_flow_a_flow_beside_its_event_or_of_another_kind_links_nothing(flows):
    assert tree_of(launch(3), kernel(20), *flows).unlinked.tolist() == [1]


def test_correlation_wins_over_a_flow():
    tree = tree_of(launch(3, 4), launch(6, 5), kernel(20, 4), flow("s", 9, (1, 1), 6), flow("f", 9, (0, 7), 20))
    assert tree.launch[2] == 0


def test_without_launches_the_op_with_the_kernels_external_id_is_the_launch():
    ops = [event("aten::mm", start, 5, "cpu_op", External_id=number) for start, number in ((0, 3), (10, 4), (50, 5))]
    tree = tree_of(*ops, kernel(20, 77, External_id=4), kernel(30, 78, External_id=5), kernel(40, 79, External_id=0))
    # op 5 starts at 50, after "its" kernel at 30
    assert tree.launch.tolist() == [-1, -1, -1, 1, -1, -1]
    assert tree.op[3] == 1
    assert tree.linked_by[3] == LinkedBy.EXTERNAL_ID


KEYED = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=20)


@given(entries=KEYED, queries=KEYED)
def test_the_latest_entry_of_a_key_is_found_like_looking_at_all(entries, queries):
    expected = []
    for key, not_after in queries:
        own = sorted((time, i) for i, (k, time) in enumerate(entries) if k == key)
        early = [pair for pair in own if pair[0] <= not_after]
        expected.append(early[-1][1] if early else own[0][1] if own else -1)
    columns = [np.array(c, np.int64).reshape(-1, 2).T for c in (entries, queries)]
    assert links._latest_of_key(*columns[0], *columns[1]).tolist() == expected


@given(entries=KEYED, queries=KEYED)
def test_the_first_entry_at_a_place_is_found_like_looking_at_all(entries, queries):
    expected = [entries.index(query) if query in entries else -1 for query in queries]
    (lane, time), (at_lane, at_time) = (np.array(c, np.int64).reshape(-1, 2).T for c in (entries, queries))
    found = links._first_equal(lane.astype(np.int32), time, at_lane.astype(np.int32), at_time)
    assert found.tolist() == expected


def linear_and_its_backward() -> list[dict]:
    return [
        op("aten::linear", 0, 20, 5),
        op("aten::addmm", 4, 10, 5),
        op(ENGINE + "AddmmBackward0", 50, 30, 5, thread=2),
        op("AddmmBackward0", 51, 20, 5, thread=2),
        op("aten::mm", 52, 5, thread=2),
        op("aten::mm", 60, 5, thread=2),
        op("aten::add_", 75, 2, thread=2),
        op(ENGINE + "torch::autograd::AccumulateGrad", 90, 5, thread=2),
    ]


def test_wrapper_and_node_belong_to_the_innermost_forward_op_of_their_number():
    tree = tree_of(*linear_and_its_backward())
    assert tree.forward.tolist() == [-1, -1, 1, 1, -1, -1, -1, -1]


def test_the_forward_of_anything_below_a_backward_op_is_found_on_the_way_up():
    tree = tree_of(*linear_and_its_backward())
    assert [tree.forward_of(row) for row in (1, 3, 4, 5, 6, 7)] == [-1, 1, 1, 1, 1, -1]


@pytest.mark.parametrize("end", [50, 51])
def test_a_flow_may_end_at_the_wrapper_or_at_the_node(end):
    # The flow says linear, the number alone would say addmm
    arrow = flow("s", 1, (1, 1), 0, "fwdbwd"), flow("f", 1, (1, 2), end, "fwdbwd")
    tree = tree_of(*linear_and_its_backward(), *arrow)
    assert tree.forward.tolist() == [-1, -1, 0, 0, -1, -1, -1, -1]


def test_a_flow_between_ops_without_numbers_takes_the_innermost_forward_and_the_outermost_backward():
    tree = tree_of(
        op("aten::linear", 0, 20),
        op("aten::addmm", 0, 10),
        op("Wrapper", 50, 30, thread=2),
        op("AddmmBackward0", 50, 20, thread=2),
        op("aten::t", 52, 1, thread=2),
        op("aten::mm", 55, 1, thread=2),
        flow("s", 1, (1, 1), 0, "fwdbwd"),
        flow("f", 1, (1, 2), 50, "fwdbwd"),
    )
    # AddmmBackward0 is the wrapper's only op, the two below it are not alone
    assert tree.forward.tolist() == [-1, -1, 1, 1, -1, -1]


def test_the_only_op_below_a_node_shares_its_forward_down_to_where_it_branches():
    tree = tree_of(
        op("aten::convolution", 0, 20, 5),
        op("ConvolutionBackward0", 50, 40, 5),
        event("note", 51, 38, "user_annotation"),
        op("aten::convolution_backward", 52, 30),
        op("aten::a", 53, 1),
        op("aten::b", 55, 1),
    )
    assert tree.forward.tolist() == [-1, 0, -1, 0, -1, -1]


def test_a_forward_may_have_several_backwards():
    again = [op(ENGINE + "MulBackward0", start, 5, 5, thread=2) for start in (50, 70)]
    assert tree_of(op("aten::mul", 0, 2, 5), *again).forward.tolist() == [-1, 0, 0]


def test_a_number_counted_again_means_the_latest_forward_before_the_backward():
    node = ENGINE + "MulBackward0"
    tree = tree_of(op("aten::mul", 0, 2, 5), op(node, 10, 2, 5), op("aten::mul", 20, 2, 5), op(node, 30, 2, 5))
    assert tree.forward.tolist() == [-1, 0, -1, 2]


def test_a_number_says_nothing_across_processes_before_the_forward_or_between_plain_ops():
    assert tree_of(op("aten::mul", 0, 2, 5, pid=2), op("MulBackward0", 10, 2, 5)).forward.tolist() == [-1, -1]
    assert tree_of(op("aten::mul", 20, 2, 5), op("MulBackward0", 10, 2, 5)).forward.tolist() == [-1, -1]
    assert tree_of(op("aten::mul", 0, 2, 5), op("aten::add", 10, 2, 5, thread=2)).forward.tolist() == [-1, -1]


def test_recomputed_ops_have_the_checkpoint_above_them_and_their_own_backwards():
    tree = tree_of(
        op("CheckpointFunction", 0, 20, 3),
        op(ENGINE + "CheckpointFunctionBackward", 50, 90, 3, thread=2),
        op("CheckpointFunctionBackward", 51, 88, 3, thread=2),
        op("aten::relu", 55, 5, 9, thread=2),
        op(ENGINE + "ReluBackward0", 70, 20, 9, thread=2),
        op("ReluBackward0", 71, 10, 9, thread=2),
    )
    assert tree.forward.tolist() == [-1, 0, 0, -1, 3, 3]
    assert tree.forward_of(3) == 0


def test_a_loaded_trace_keeps_the_arrows_that_another_tree_could_need():
    ops = [op("aten::mm", 0, 10), launch(1, 4), kernel(20, 4)]
    forward = [flow("s", 7, (1, 1), 0, "fwdbwd"), flow("f", 7, (1, 1), 0, "fwdbwd")]
    arrows = [flow("s", 4, (1, 1), 1), flow("f", 4, (0, 7), 20)]
    by_correlation = Trace.of(read_events([*ops, *arrows, *forward]))
    assert by_correlation.table.flows.id.tolist() == [7, 7]
    unsaid = [op("aten::mm", 0, 10), launch(1), kernel(20)]
    by_arrow = Trace.of(read_events([*unsaid, *arrows, *forward]))
    assert by_arrow.tree.linked_by.tolist() == [0, 0, LinkedBy.FLOW]
    assert by_arrow.table.flows.id.tolist() == [4, 4, 7, 7]
    for trace in (by_correlation, by_arrow):
        assert OpTree(trace.table).launch.tolist() == trace.tree.launch.tolist() == [-1, -1, 1]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("file", "nodes"),
    [
        ("mi300/resnet_act_checkpoint.json.gz", 213),
        ("perf_model/normalization/normalization_layer_test.json.gz", 51),
        ("hta/nccl_parser_config/nccl_data.json.gz", 543),
        ("hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz", 4),
    ],
)
def test_on_real_traces_flows_and_sequence_numbers_say_the_same(shared_traces: Path, file: str, nodes: int):
    table = read_trace(shared_traces / file)
    with_flows = OpTree(table)
    no_flows = replace(table.flows, category=Column(np.full(len(table.flows), -1), np.int16))
    without = OpTree(replace(table, flows=no_flows))
    assert with_flows.forward.tolist() == without.forward.tolist()
    backward = np.flatnonzero(without.forward >= 0)
    assert sum(table.name_of(int(row)).startswith(ENGINE) for row in backward) == nodes


@pytest.mark.shared
def test_on_a_real_trace_flows_find_what_correlations_find(shared_traces: Path):
    table = read_trace(shared_traces / "mi300/resnet_act_checkpoint.json.gz")
    expected = OpTree(table)
    unlaunched = np.where(np.isin(table.kind, (1, 2)), -1, table.correlation)
    found = OpTree(replace(table, correlation=Column(unlaunched, np.int64)))
    # The 81 memsets have no arrow; the op of their External id is the op above the launch they had
    assert np.bincount(found.linked_by).tolist()[1:] == [0, 2_604, 81]
    by_flow = found.linked_by == LinkedBy.FLOW
    assert found.launch[by_flow].tolist() == expected.launch[by_flow].tolist()
    assert found.op.tolist() == expected.op.tolist()
