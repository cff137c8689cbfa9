"""Where ops stand: recomputed or not, in which module and stack; and reductions of the backward pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.conftest import RealAnalysis
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.attribution.activity import device_activity
from tracelens.analysis.attribution.host_scopes import PHASES, phases, places_around, reached
from tracelens.analysis.loaded_trace import AnalysisOptions, load

SUM = {"Input Dims": [[64, 32], [], [], []], "Input type": ["float", "ScalarList", "Scalar", ""],
       "Input Strides": [[32, 1], [], [], []], "Concrete Inputs": ["", "[0]", "False", ""]}  # fmt: skip


class Recording:
    """A trace of host events, each op with a kernel of its own."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def host(self, category: str, name: str, start: float, duration: float, thread: int = 1, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": 1,
                "tid": thread,
                "ts": start,
                "dur": duration,
                "args": args,
            }
        )

    def op(self, name: str, start: float, thread: int = 1, **args: Any) -> None:
        number = len(self.events) + 1
        self.host("cpu_op", name, start, 10, thread, **args)
        self.host("cuda_runtime", "cudaLaunchKernel", start + 2, 2, thread, correlation=number)
        self.events.append(
            {
                "ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": start + 5, "dur": 4,
                "args": {"correlation": number, "stream": 7, "device": 0},
            }
        )  # fmt: skip

    def analysis(self, tmp_path: Path) -> Analysis:
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"traceEvents": self.events}), encoding="utf-8")
        return analyze(load(path), AnalysisOptions())


def checkpointed() -> Recording:
    made = Recording()
    made.host("python_function", "train.py(7): step", 0, 400)
    made.host("python_function", "nn.Module: Block_0", 1, 100)
    made.host("python_function", "nn.Module: Linear_3", 2, 50)
    made.host("python_function", "torch/nn/modules/linear.py(130): forward", 3, 40)
    made.op("aten::sum", 5, **{**SUM, "Sequence number": 3, "Fwd thread id": 0})
    engine = {"Sequence number": 3, "Fwd thread id": 1}
    made.host("cpu_op", "autograd::engine::evaluate_function: SumBackward1", 200, 100, 2, **engine)
    made.host("python_function", "torch/utils/checkpoint.py(99): recompute_fn", 201, 30, 2)
    made.op("aten::mul", 205, 2)
    made.op("aten::sum", 240, 2, **SUM)
    return made


def test_ops_say_their_module_and_frames_and_whether_they_were_repeated(tmp_path: Path):
    frame = checkpointed().analysis(tmp_path).frames["ops_unique_args"]
    rows = {(row["name"], bool(row["is_recompute"])): row for _, row in frame.iterrows()}
    assert set(rows) == {("aten::sum", False), ("aten::mul", True)}
    first = frame[(frame["name"] == "aten::sum")].sort_values("example_row").iloc[0]
    assert first["parent_module"] == "Block/Linear"
    assert first["call_stack"] == "torch/nn/modules/linear.py(130): forward <- train.py(7): step"


def test_a_backward_op_has_the_place_of_its_forward(tmp_path: Path):
    frame = checkpointed().analysis(tmp_path).frames["unified_perf_summary"]
    backward = frame[frame["name"] == "aten::sum"].sort_values("example_row").iloc[-1]
    assert backward["parent_module"] == "Block/Linear"


def test_one_op_has_the_place_that_it_has_among_all(tmp_path: Path):
    found = checkpointed().analysis(tmp_path)
    tree = found.trace.tree
    frame = found.frames["unified_perf_summary"]
    places = [places_around(tree, row) for row in frame["example_row"].tolist()]
    assert places == list(zip(frame["parent_module"], frame["call_stack"], strict=True))
    assert {module for module, _ in places} == {"Block/Linear"}


def test_repeated_ops_stand_beside_their_first_runs(tmp_path: Path):
    """mul and three relus of a forward, of which one mul and two relus are repeated; each kernel takes 4 us."""
    made = Recording()
    for at, name in enumerate(("aten::mul", *["aten::relu"] * 3, "aten::sum")):
        made.op(name, 20 * at, **SUM)
    made.host("cpu_op", "autograd::engine::evaluate_function: SumBackward1", 200, 200, 2)
    made.host("python_function", "torch/utils/checkpoint.py(99): recompute_fn", 201, 150, 2)
    for at, name in enumerate(("aten::relu", "aten::mul", "aten::relu")):
        made.op(name, 205 + 20 * at, 2, **SUM)
    trace = made.analysis(tmp_path).trace
    activity = device_activity(trace.table, trace.tree, ())
    found = phases(trace.table, trace.tree, activity)
    columns = ["name", "first_calls", "first_us", "recompute_calls", "recompute_us"]
    assert found.by_op(trace.table, activity)[columns].to_numpy().tolist() == [
        ["aten::relu", 3, 12.0, 2, 8.0],
        ["aten::mul", 1, 4.0, 1, 4.0],
    ]
    assert (found.has_recompute, found.has_backward) == (True, False)
    frame = found.frame(activity)
    assert frame[["phase", "kernels", "kernel_us", "busy_us"]].to_numpy().tolist() == [
        ["forward", 5, 20.0, 20.0],
        ["recompute", 3, 12.0, 12.0],
    ]
    assert frame["percent_of_kernels"].tolist() == frame["percent_of_forward"].tolist() == [62.5, 37.5]


def test_the_first_launch_of_a_trace_has_a_phase_and_so_has_a_single_optimizer_step(tmp_path: Path):
    """A launch under no op, as the first row of its trace; an op in the one step of an optimizer; a kernel alone."""
    made = Recording()
    made.host("cuda_runtime", "cudaLaunchKernel", 0, 2, correlation=99)
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 4}
    made.events.append({**kernel, "ts": 3, "args": {"correlation": 99, "stream": 7, "device": 0}})
    made.host("user_annotation", "Optimizer.step#AdamW.step", 20, 30)
    made.op("aten::mul", 25, **SUM)
    made.events.append({**kernel, "ts": 60, "args": {"stream": 7, "device": 0}})
    trace = made.analysis(tmp_path).trace
    found = phases(trace.table, trace.tree, device_activity(trace.table, trace.tree, ()))
    assert [PHASES[code] for code in found.phase.tolist()] == ["forward", "optimizer", "no recorded launch"]
    assert trace.table.name_of(0) == "cudaLaunchKernel"
    assert reached(trace.tree, np.array([0])).sum() == 1


def test_a_stack_is_shown_up_to_its_twelfth_frame(tmp_path: Path):
    made = Recording()
    for depth in range(15):
        made.host("python_function", f"code.py({depth}): f", depth, 100 - 2 * depth)
    made.op("aten::sum", 20, **SUM)
    found = made.analysis(tmp_path)
    (row,) = found.frames["unified_perf_summary"]["example_row"].tolist()
    shown = " <- ".join(f"code.py({depth}): f" for depth in range(14, 2, -1))
    assert found.frames["unified_perf_summary"]["call_stack"].tolist() == [shown]
    assert places_around(found.trace.tree, row) == (None, shown)


def test_reductions_of_the_backward_pass_have_their_own_sheet(tmp_path: Path):
    families = checkpointed().analysis(tmp_path).families
    assert families["Reduce_fwd"]["operation_count"].sum() == 1
    assert families["Reduce_bwd"]["operation_count"].sum() == 1


def test_without_stacks_and_repetition_there_are_no_such_columns(tmp_path: Path):
    made = Recording()
    made.op("aten::sum", 5, **SUM)
    frame = made.analysis(tmp_path).frames["unified_perf_summary"]
    assert not {"is_recompute", "parent_module", "call_stack"} & set(frame)


@pytest.mark.sweep
@pytest.mark.shared
def test_a_checkpointed_resnet_repeats_what_the_reference_says(shared_traces: Path, real_analysis: RealAnalysis):
    folder = shared_traces / "mi300"
    analysis = real_analysis("mi300/resnet_act_checkpoint", on_demand=True)
    frame = analysis.frames["ops_unique_args"]
    expected = pd.read_csv(folder / "resnet_act_checkpoint_recompute_perf_report_csvs" / "ops_unique_args.csv")
    repeated, known = (f[f["is_recompute"]].groupby("name")["operation_count"].sum() for f in (frame, expected))
    assert repeated.to_dict() == known.to_dict()
    reductions = pd.read_csv(folder / "resnet_act_checkpoint_recompute_perf_report_csvs" / "Reduce_bwd.csv")
    assert analysis.families["Reduce_bwd"]["operation_count"].sum() == reductions["name_count"].sum()
