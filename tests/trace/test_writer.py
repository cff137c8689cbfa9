"""Written traces: what Kineto would have recorded, byte for byte the same each time."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import OutputError, UsageError
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import Kind
from tracelens.trace.tree import OpTree
from tracelens.trace.writer import (
    DistributedJob,
    HostThread,
    ProcessGroup,
    RecordedCall,
    RecordedKernel,
    RecordedLaunch,
    RecordedOp,
    RecordedTrace,
    trace_text,
    write_trace,
)
from tracelens.types.signature import DeviceProperties, OpSignature

MM = OpSignature(
    name="aten::mm",
    shapes=((8, 4), (4, 2)),
    dtypes=("c10::BFloat16", "c10::BFloat16"),
    strides=((4, 1), (2, 1)),
    scalars=("", ""),
)
MI300X = DeviceProperties(
    name="AMD Instinct MI300X",
    memory_bytes=206141652992,
    compute_major=9,
    compute_minor=4,
    compute_units=304,
    warp_size=64,
)


def one_mm() -> RecordedTrace:
    """ProfilerStep#7 [1000, 9000): aten::linear [1500, 8000) calls aten::mm [2000, 7000), which launches one kernel."""
    kernel = RecordedKernel(name="Cijk_MT128", start_ns=6001, duration_ns=12_345, stream=3, grid=(2, 1, 1))
    launch = RecordedLaunch(name="hipLaunchKernel", start_ns=3000, duration_ns=500, kernels=(kernel,))
    mm = RecordedOp(signature=MM, start_ns=2000, duration_ns=5000, calls=(launch,), sequence_number=5)
    linear = RecordedOp(
        signature=OpSignature(name="aten::linear"), start_ns=1500, duration_ns=6500, calls=(mm,), sequence_number=5
    )
    backward = RecordedOp(
        signature=OpSignature(name="MmBackward0"),
        start_ns=20_000,
        duration_ns=10,
        sequence_number=5,
        forward_thread=1,
    )
    empty = RecordedOp(signature=OpSignature(name="empty"), start_ns=1000, duration_ns=1)
    step = RecordedOp(
        signature=OpSignature(name="ProfilerStep#7"), start_ns=1000, duration_ns=7000, calls=(empty, linear),
        category="user_annotation",
    )  # fmt: skip
    return RecordedTrace(
        threads=(
            HostThread(thread_id=1000, calls=(step,)),
            HostThread(thread_id=1001, calls=(backward,), name="pt_autograd_0"),
        ),
        devices=(MI300X,),
        earlier_kernels=(RecordedKernel(name="earlier", start_ns=100, duration_ns=50),),
        distributed=DistributedJob(
            rank=1, world_size=2, process_groups=(ProcessGroup(name="0", ranks=(0, 1), description="default_pg"),)
        ),
        labels=(("traceName", "generated"),),
    )


def events_of(trace: RecordedTrace) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads("".join(trace_text(trace)))["traceEvents"]
    return events


def one(events: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    found = [event for event in events if all(event.get(key) == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, found)
    return found[0]


def test_an_op_is_written_as_kineto_writes_it():
    assert one(events_of(one_mm()), name="aten::mm") == {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::mm",
        "pid": 1000,
        "tid": 1000,
        "ts": 2.0,
        "dur": 5.0,
        "args": {
            "External id": 4,  # after the step, empty and linear
            "Record function id": 0,
            "Sequence number": 5,
            "Fwd thread id": 0,
            "Input Dims": [[8, 4], [4, 2]],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
            "Input Strides": [[4, 1], [2, 1]],
            "Concrete Inputs": ["", ""],
            "Ev Idx": 3,
        },
    }


def test_a_kernel_shares_its_correlation_with_its_launch_and_both_ends_of_the_flow():
    events = events_of(one_mm())
    kernel, launch = one(events, name="Cijk_MT128"), one(events, name="hipLaunchKernel")
    assert kernel == {
        "ph": "X",
        "cat": "kernel",
        "name": "Cijk_MT128",
        "pid": 0,
        "tid": 3,
        "ts": 6.001,
        "dur": 12.345,
        "args": {"External id": 4, "device": 0, "stream": 3, "correlation": 2, "grid": [2, 1, 1]},
    }
    assert launch["args"] == {"External id": 4, "correlation": 2}
    start, finish = one(events, cat="ac2g", ph="s"), one(events, cat="ac2g", ph="f")
    assert (start["id"], start["tid"], start["ts"]) == (2, 1000, launch["ts"])
    assert (finish["id"], finish["tid"], finish["ts"], finish["bp"]) == (2, 3, kernel["ts"], "e")


def test_a_kernel_launched_before_the_window_has_a_correlation_that_no_launch_has():
    events = events_of(one_mm())
    assert one(events, name="earlier")["args"] == {"device": 0, "stream": 0, "correlation": 1}
    assert [e["args"]["correlation"] for e in events if e.get("cat") == "cuda_runtime"] == [2]


def test_forward_and_backward_are_joined_at_the_innermost_op_of_their_sequence_number():
    events = events_of(one_mm())
    start, finish = one(events, cat="fwdbwd", ph="s"), one(events, cat="fwdbwd", ph="f")
    assert (start["id"], start["tid"], start["ts"]) == (1, 1000, 2.0)  # aten::mm, not aten::linear
    assert (finish["id"], finish["tid"], finish["ts"]) == (1, 1001, 20.0)


def test_a_step_has_a_span_on_each_stream_its_kernels_ran_on():
    events = events_of(one_mm())
    host, device = (one(events, name="ProfilerStep#7", cat=c) for c in ("user_annotation", "gpu_user_annotation"))
    assert (host["ts"], host["dur"]) == (1.0, 7.0)  # from the first call, 1000 ns, to the last one's end, 8000 ns
    assert (device["pid"], device["tid"], device["ts"], device["dur"]) == (0, 3, 6.001, 12.345)
    assert device["args"] == {"External id": host["args"]["External id"]}


def test_a_graph_launch_gives_all_its_kernels_one_correlation():
    kernels = tuple(RecordedKernel(name=f"k{i}", start_ns=10 + i, duration_ns=1) for i in range(3))
    launch = RecordedLaunch(name="hipGraphLaunch", start_ns=1, duration_ns=2, kernels=kernels)
    events = events_of(RecordedTrace(threads=(HostThread(thread_id=1, calls=(launch,)),)))
    assert [e["args"]["correlation"] for e in events if e.get("cat") == "kernel"] == [1, 1, 1]
    assert len([e for e in events if e.get("cat") == "ac2g"]) == 1 + 3  # one start, three ends


def test_python_frames_name_their_parent():
    inner = RecordedOp(
        signature=OpSignature(name="nn.Module: Linear_0"), start_ns=2, duration_ns=1, category="python_function"
    )
    outer = RecordedOp(
        signature=OpSignature(name="nn.Module: MLP_0"),
        start_ns=1,
        duration_ns=5,
        calls=(inner,),
        category="python_function",
    )
    events = events_of(RecordedTrace(threads=(HostThread(thread_id=1, calls=(outer,)),)))
    ids = [(e["args"]["Python id"], e["args"]["Python parent id"]) for e in events if e.get("cat") == "python_function"]
    assert ids == [(1, None), (2, 1)]


def test_whole_nanoseconds_survive_at_any_size():
    epoch_ns = 1_767_189_312_123_456_789  # as µs a float would be off by up to 128 ns
    trace = RecordedTrace(
        threads=(HostThread(thread_id=1, calls=(RecordedOp(signature=MM, start_ns=epoch_ns, duration_ns=1),)),)
    )
    assert '"ts":1767189312123456.789,"dur":0.001,' in "".join(trace_text(trace))


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (
            (
                RecordedOp(signature=MM, start_ns=10, duration_ns=5),
                RecordedOp(signature=OpSignature(name="aten::add"), start_ns=14, duration_ns=5),
            ),
            "aten::add starts at 14 ns, before 15 ns",
        ),
        (
            (
                RecordedOp(
                    signature=OpSignature(name="aten::linear"),
                    start_ns=10,
                    duration_ns=5,
                    calls=(RecordedOp(signature=MM, start_ns=11, duration_ns=5),),
                ),
            ),
            "aten::mm ends at 16 ns, after its caller aten::linear",
        ),
        (
            (
                RecordedLaunch(
                    name="hipLaunchKernel",
                    start_ns=10,
                    duration_ns=1,
                    kernels=(RecordedKernel(name="k", start_ns=9, duration_ns=1),),
                ),
            ),
            "k starts at 9 ns, before its launch hipLaunchKernel",
        ),
        ((RecordedOp(signature=MM, start_ns=10, duration_ns=-1),), "aten::mm at 10 ns lasts -1 ns"),
        ((RecordedOp(signature=MM, start_ns=-1, duration_ns=1),), "aten::mm starts at -1 ns"),
    ],
)
def test_calls_that_no_profiler_could_record_are_refused_and_leave_the_old_file(tmp_path, calls, message):
    path = tmp_path / "trace.json"
    path.write_text("old")
    with pytest.raises(UsageError, match=message):
        write_trace(RecordedTrace(threads=(HostThread(thread_id=1, calls=calls),)), path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_does_not_exist_is_one_sentence(tmp_path):
    with pytest.raises(OutputError, match=r"cannot write .*trace\.json: No such file or directory"):
        write_trace(one_mm(), tmp_path / "absent" / "trace.json")


def test_the_same_trace_gives_the_same_bytes_wherever_it_is_written(tmp_path):
    (tmp_path / "other").mkdir()
    first = write_trace(one_mm(), tmp_path / "a.json.gz").read_bytes()
    second = write_trace(one_mm(), tmp_path / "other" / "b.json.gz").read_bytes()
    assert first == second
    plain = write_trace(one_mm(), tmp_path / "a.json").read_bytes()
    assert gzip.decompress(first) == plain


def test_what_was_written_is_read_back(tmp_path):
    table = read_trace(write_trace(one_mm(), tmp_path / "rank1.json.gz"))
    assert [(d.name, d.compute_units) for d in table.device_properties()] == [("AMD Instinct MI300X", 304)]
    assert (table.rank, table.world_size) == (1, 2)
    assert [(group.name, group.ranks) for group in table.process_groups()] == [("0", (0, 1))]
    assert table.metadata["traceName"] == "generated"
    tree = OpTree(table)
    assert tree.self_check() == []
    names = [table.name_of(int(row)) for row in tree.unlinked]
    assert names == ["earlier"]


def test_device_properties_survive_writing_and_reading():
    assert DeviceProperties.from_trace(MI300X.to_trace(3)) == MI300X
    assert DeviceProperties(name="x").to_trace(3) == {"id": 3, "name": "x"}


SHAPES = st.lists(st.integers(0, 2**40), max_size=4).map(tuple)
SLOTS = st.one_of(SHAPES, st.lists(SHAPES.filter(bool), min_size=1, max_size=3).map(tuple))
NAMES = st.sampled_from(["aten::mm", "aten::add_", 'odd "quoted"\\name', "void f<a, b>(int)", "µ-op", "x},{"])


@st.composite
def signatures(draw: st.DrawFn) -> OpSignature:
    shapes = tuple(draw(st.lists(SLOTS, min_size=1, max_size=4)))
    return OpSignature(
        name=draw(NAMES),
        shapes=shapes,
        dtypes=tuple(draw(st.sampled_from(["c10::BFloat16", "float", "", "Scalar"])) for _ in shapes),
        strides=tuple(tuple(1 for _ in slot) if slot and isinstance(slot[0], int) else () for slot in shapes),
        scalars=tuple(draw(st.sampled_from(["", "True", "[1, 2]", "1e-05"])) for _ in shapes),
    )


@st.composite
def call_lists(draw: st.DrawFn, start_ns: int, depth: int) -> tuple[RecordedCall, ...]:
    """Calls one after another from ``start_ns``; zero-length and touching ones included below, never between, siblings."""
    calls: list[RecordedCall] = []
    for _ in range(draw(st.integers(0, 3))):
        start_ns += draw(st.integers(1, 2_000))
        if draw(st.booleans()):
            kernels = tuple(
                RecordedKernel(
                    name=draw(NAMES),
                    start_ns=start_ns + draw(st.integers(0, 10**6)),
                    duration_ns=draw(st.integers(0, 10**6)),
                    stream=draw(st.integers(0, 2)),
                )
                for _ in range(draw(st.integers(0, 2)))
            )
            duration_ns = draw(st.integers(1, 5_000))
            calls.append(
                RecordedLaunch(name="hipLaunchKernel", start_ns=start_ns, duration_ns=duration_ns, kernels=kernels)
            )
        else:
            inner = draw(call_lists(start_ns, depth - 1)) if depth else ()
            end_ns = inner[-1].start_ns + inner[-1].duration_ns if inner else start_ns
            duration_ns = end_ns - start_ns + draw(st.integers(1, 2_000))
            calls.append(
                RecordedOp(signature=draw(signatures()), start_ns=start_ns, duration_ns=duration_ns, calls=inner)
            )
        start_ns += duration_ns
    return tuple(calls)


def flattened(
    calls: tuple[RecordedCall, ...], parent: int, rows: list[tuple[RecordedCall, int]]
) -> list[tuple[RecordedCall, int]]:
    for call in calls:
        rows.append((call, parent))
        if isinstance(call, RecordedOp):
            flattened(call.calls, len(rows) - 1, rows)
    return rows


@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(base_ns=st.integers(0, 2**52), data=st.data(), suffix=st.sampled_from(["json", "json.gz"]))
def test_names_times_signatures_callers_and_launches_are_read_back(tmp_path: Path, base_ns, data, suffix):
    calls = data.draw(call_lists(base_ns, 3))
    trace = RecordedTrace(threads=(HostThread(thread_id=77, calls=calls),))
    table = read_trace(write_trace(trace, tmp_path / f"trace.{suffix}")) if calls else None
    if table is None:
        return
    tree = OpTree(table)
    assert tree.self_check() == []
    written = flattened(calls, -1, [])
    rows = [int(r) for r in np.flatnonzero(np.isin(table.kind, (Kind.CPU_OP, Kind.RUNTIME)))]
    assert len(rows) == len(written)
    for row, (call, parent) in zip(rows, written, strict=True):
        assert (int(table.start_ns[row]), int(table.duration_ns[row])) == (call.start_ns, call.duration_ns)
        assert int(tree.parent[row]) == (rows[parent] if parent >= 0 else -1)
        if isinstance(call, RecordedOp):
            assert table.signature_of(row) == call.signature
        else:
            launched = [
                (table.name_of(int(k)), int(table.start_ns[k]), int(table.duration_ns[k]), int(table.stream[k]))
                for k in tree.launched_by(row)
            ]
            expected = [(k.name, k.start_ns, k.duration_ns, k.stream) for k in call.kernels]
            assert sorted(launched) == sorted(expected)
