"""Modules, call stacks and phases: who launched what, with every kernel counted once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace
from tests.trace.event_texts import read_events
from tracelens.analysis.attribution.activity import DeviceActivity, device_activity
from tracelens.analysis.attribution.host_scopes import PHASES, Paths, phases
from tracelens.analysis.loaded_trace import Trace
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.sheets import module_time
from tracelens.analysis.sheets.module_time import call_stacks, modules

Build = Callable[[], Builder]
ENGINE = "autograd::engine::evaluate_function: "


def activity_of(trace: Trace) -> DeviceActivity:
    return device_activity(trace.table, trace.tree, Catalog(()).kernel_patterns)


def python(builder: Builder, name: str, start: float, duration: float, tid: int = 1) -> Builder:
    return builder.op(name, start, duration, tid, "python_function")


def op(builder: Builder, name: str, at: float, kernel: float, tid: int = 1, **args: Any) -> Builder:
    """An op of 5 us whose one kernel lasts ``kernel``."""
    return builder.op(name, at, 5, tid, **args).launch(at + 1, "k", 1000 + at, kernel, tid=tid)


def module_rows(builder: Builder) -> list[tuple[Any, ...]]:
    trace = builder.trace()
    activity = activity_of(trace)
    frame = modules(trace.table, trace.tree, activity, phases(trace.table, trace.tree, activity), "ProfilerStep")
    assert frame is not None
    columns = ["module", "instances", "calls", "kernel_us", "kernel_self_us", "forward_us", "backward_us"]
    return [tuple(None if value is pd.NA else value for value in row) for row in frame[columns].itertuples(index=False)]


def test_modules_add_up_over_equal_paths(build: Build) -> None:
    builder = python(build(), "nn.Module: Net_0", 0, 100)
    for number, at in enumerate((10, 30)):
        python(builder, f"nn.Module: Linear_{number}", at, 10)
        op(builder, "aten::mm", at + 1, 4)
    op(op(builder, "aten::relu", 50, 3), "aten::add", 200, 1)
    assert module_rows(builder) == [
        ("Net", 1, 1, 4 + 4 + 3, 3, 11, 0),
        ("Net/Linear", 2, 2, 4 + 4, 8, 8, 0),
        ("(in no module)", None, None, 1, 1, 1, 0),
    ]


def test_backward_work_belongs_to_the_module_of_its_forward_op(build: Build) -> None:
    builder = python(build(), "nn.Module: Linear_0", 0, 20)
    op(builder, "aten::mm", 5, 4, **{"Sequence number": 7})
    for name in (f"{ENGINE}MmBackward0", "MmBackward0"):
        builder.op(name, 50, 20, 2, **{"Sequence number": 7, "Fwd thread id": 1})
    op(builder, "aten::mm", 52, 9, tid=2)
    assert module_rows(builder) == [("Linear", 1, 1, 4 + 9, 13, 4, 9)]


def test_annotated_ranges_stand_in_for_modules_and_steps_do_not(build: Build) -> None:
    builder = build().op("ProfilerStep#3", 0, 100, cat="user_annotation").op("encoder", 5, 40, cat="user_annotation")
    op(op(builder, "aten::mm", 10, 4), "aten::mm", 60, 2)
    assert [row[:4] for row in module_rows(builder)] == [("encoder", 1, 1, 4), ("(in no module)", None, None, 2)]


def test_call_stacks_name_the_program_and_join_what_differs_in_an_address(build: Build) -> None:
    builder = python(python(build(), "train.py(7): step", 0, 100), "torch/nn/functional.py(12): linear", 5, 90)
    for at, address in ((10, "0x7f01"), (30, "0x7f02")):
        op(python(builder, f"<built-in method mm of Tensor object at {address}>", at, 10), "aten::mm", at + 1, 4)
    op(builder, "aten::add", 200, 2)
    trace = builder.trace()
    frame = call_stacks(trace.table, trace.tree, activity_of(trace))
    assert frame is not None
    assert frame.astype(object).where(frame.notna(), None).to_numpy().tolist() == [
        [
            "train.py(7): step",
            "<built-in method mm of Tensor object> <- torch/nn/functional.py(12): linear <- train.py(7): step",
            2, 8.0, 80.0,
        ],
        [None, "(no Python frames)", 1, 2.0, 20.0],
    ]  # fmt: skip


def test_stacks_beyond_the_cap_are_one_row(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_time, "MAX_STACKS", 1)
    builder = build()
    for line, (at, kernel) in enumerate(((0, 5), (20, 3), (40, 2))):
        op(python(builder, f"a.py({line}): f", at, 10), "aten::mm", at + 1, kernel)
    trace = builder.trace()
    frame = call_stacks(trace.table, trace.tree, activity_of(trace))
    assert frame is not None
    assert frame[["stack", "kernels", "kernel_us"]].to_numpy().tolist() == [
        ["a.py(0): f", 1, 5.0], ["(other stacks)", 2, 5.0],
    ]  # fmt: skip


def test_device_work_that_no_frame_is_round_is_one_row(build: Build) -> None:
    trace = op(python(build(), "train.py(7): step", 0, 5), "aten::mm", 10, 4).trace()
    frame = call_stacks(trace.table, trace.tree, activity_of(trace))
    assert frame is not None
    assert frame[["stack", "kernel_us"]].to_numpy().tolist() == [["(no Python frames)", 4.0]]


def test_without_frames_there_are_no_stacks_and_no_modules(build: Build) -> None:
    trace = build().mm(8, 8, 8, 0, 10, 5).trace()
    activity = activity_of(trace)
    assert call_stacks(trace.table, trace.tree, activity) is None
    assert modules(trace.table, trace.tree, activity, phases(trace.table, trace.tree, activity), "") is None


def phase_us(builder: Builder) -> dict[str, float]:
    trace = builder.trace()
    frame = phases(trace.table, trace.tree, activity_of(trace)).frame(activity_of(trace))
    return dict(zip(frame["phase"], frame["kernel_us"], strict=True))


def trained(build: Build) -> Builder:
    """A forward mm of 4 us, its backward of 9 us, a step of the optimizer of 2 us, a kernel from before of 1 us."""
    builder = op(build(), "aten::mm", 5, 4, **{"Sequence number": 7})
    for name in (f"{ENGINE}MmBackward0", "MmBackward0"):
        builder.op(name, 50, 60, 2, **{"Sequence number": 7, "Fwd thread id": 1})
    op(builder, "aten::mm", 52, 9, tid=2)
    builder.op("Optimizer.step#SGD.step", 200, 20, cat="user_annotation")
    return op(builder, "aten::_foreach_add_", 205, 2).kernel("early", 900, 1)


def test_every_kernel_is_in_one_phase(build: Build) -> None:
    assert phase_us(trained(build)) == {"forward": 4, "backward": 9, "optimizer": 2, "no recorded launch": 1}


def test_a_backward_that_a_schedule_runs_by_hand_inside_a_forward_op_is_backward(build: Build) -> None:
    # as in DualPipe: one op runs a chunk forward and another chunk backward, without autograd's engine
    builder = build().op("DualPipeChunk", 0, 90).launch(1, "forward", 10, 10)
    builder.op("aten::native_layer_norm_backward", 20, 5).launch(21, "backward", 30, 20)
    builder.op("## backward ##", 40, 20, cat="user_annotation").launch(45, "backward", 60, 25)
    builder.op("forward_backward", 75, 5, cat="user_annotation").launch(76, "forward", 95, 5)
    trace = builder.trace()
    frame = phases(trace.table, trace.tree, activity_of(trace)).frame(activity_of(trace))
    assert frame[["phase", "kernel_us"]].to_numpy().tolist() == [["forward", 15.0], ["backward", 45.0]]


@pytest.mark.parametrize("on", ["host", "device"])
def test_annotations_of_a_pipeline_schedule_decide_before_the_names_of_ops(build: Build, on: str) -> None:
    """The first kernel's op is called backward and lies in a forward chunk; weights have kernels of 30 us, inputs of 20."""
    builder = build()
    for number, (name, us) in enumerate((("attn(F)", 10), ("(B) mlp", 20), ("(W) mlp", 30), ("loss", 5))):
        at = 100 * number
        builder.op("aten::native_layer_norm_backward" if number == 0 else "aten::mm", at + 1, 5)
        builder.launch(at + 2, "k", at + 10, us)
        if on == "host":
            builder.op(name, at, 90, cat="user_annotation")
        else:
            builder.kernel(name, at + 9, 90, cat="gpu_user_annotation")
    assert phase_us(builder) == {"forward": 10 + 5, "backward": 20, "backward: weights": 30}


def test_a_letter_in_brackets_alone_is_no_mark_of_a_schedule(build: Build) -> None:
    builder = build().op("plan (B)", 0, 90, cat="user_annotation")
    op(builder, "aten::mm", 1, 10)
    op(builder, "aten::mm_backward", 50, 20)
    assert phase_us(builder) == {"forward": 10, "backward": 20}


def test_a_range_that_is_called_optimizer_is_the_optimizers(build: Build) -> None:
    builder = op(trained(build), "aten::clip", 305, 3).op("## optimizer ##", 300, 20, cat="user_annotation")
    builder.op("backward_wgrad", 400, 20, cat="user_annotation")
    assert phase_us(op(builder, "aten::mm", 405, 6)) == {
        "forward": 4, "backward": 9, "backward: weights": 6, "optimizer": 2 + 3, "no recorded launch": 1,
    }  # fmt: skip


def test_a_recorded_recompute_frame_splits_the_forward(build: Build) -> None:
    builder = python(trained(build), "torch/utils/checkpoint.py(1500): recompute_fn", 60, 20, tid=2)
    op(builder, "aten::mm", 65, 3, tid=2)
    trace = builder.trace()
    found = phases(trace.table, trace.tree, activity_of(trace))
    assert phase_us(builder) == {
        "forward": 4, "recompute": 3, "backward": 9, "optimizer": 2, "no recorded launch": 1,
    }  # fmt: skip
    by_op = found.by_op(trace.table, activity_of(trace))
    assert by_op.to_numpy().tolist() == [["aten::mm", 1, 4.0, 1, 3.0]]
    share = found.frame(activity_of(trace)).set_index("phase")["percent_of_forward"]
    assert share["recompute"] == 100 * 3 / (4 + 3)


def test_without_frames_a_number_of_its_own_inside_the_engine_tells(build: Build) -> None:
    # number 99 is no backward's: the op ran with gradients; and aten::mm ran outside of the engine too
    repeated = op(trained(build), "aten::mm", 65, 3, tid=2, **{"Sequence number": 99})
    assert phase_us(repeated)["recompute"] == 3
    # what never ran outside is no repetition: a backward of a backward
    other = op(trained(build), "aten::mul", 65, 3, tid=2, **{"Sequence number": 99})
    assert phase_us(other) == {"forward": 4, "backward": 9 + 3, "optimizer": 2, "no recorded launch": 1}


def test_reentrant_checkpointing_repeats_outside_of_the_engine_it_calls_itself(build: Build) -> None:
    builder = build()
    for name in (f"{ENGINE}CheckpointFunctionBackward", "CheckpointFunctionBackward"):
        builder.op(name, 0, 100, 2, **{"Sequence number": 3, "Fwd thread id": 1})
    op(builder, "aten::mm", 10, 5, tid=2)
    builder.op(f"{ENGINE}MmBackward0", 40, 20, 2, **{"Sequence number": 9, "Fwd thread id": 2})
    op(builder, "aten::mm", 45, 7, tid=2)
    assert phase_us(builder) == {"recompute": 5, "backward": 7}


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_paths_are_equal_where_all_above_are(tree: list[tuple[int, int]]) -> None:
    # place i hangs below one of the places before it (or none), and has one of four codes
    above = np.array([min(up, i) - 1 if up else -1 for i, (up, _) in enumerate(tree)], np.int64)
    code = np.array([number for _, number in tree], np.int64)
    paths = Paths()
    path = paths.of(np.arange(len(tree)), above, code)
    spelled: list[list[int]] = []
    for i in range(len(tree)):
        spelled.append([int(code[i]), *(spelled[above[i]] if above[i] >= 0 else [])])
    assert [paths.codes_of(p, most=9) for p in path.tolist()] == spelled
    assert len(set(path.tolist())) == len({tuple(text) for text in spelled})


@pytest.mark.sweep
@pytest.mark.shared
def test_checkpointed_resnet_repeats_what_the_reference_says_with_and_without_stacks(
    shared_traces: Path, real_trace: RealTrace
) -> None:
    trace = real_trace("mi300/resnet_act_checkpoint")
    activity = activity_of(trace)
    found = phases(trace.table, trace.tree, activity)
    by_op = found.by_op(trace.table, activity).set_index("name")
    folder = shared_traces / "mi300/resnet_act_checkpoint_recompute_perf_report_csvs"
    table = pd.read_csv(folder / "ops_summary.csv")
    reference = table[table["is_recompute"]].set_index("name")["Count"]
    assert by_op["recompute_calls"].to_dict() == reference.to_dict()
    bare = [trace.table.event(row) for row in np.flatnonzero(trace.table.kind != 8).tolist()]
    without = Trace.of(read_events(bare))
    again = phases(without.table, without.tree, activity_of(without))
    assert np.bincount(again.phase, minlength=len(PHASES)).tolist() == np.bincount(found.phase).tolist()
