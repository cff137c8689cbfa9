"""A projection that starts from a measured step, and one that is set beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import tracelens as tl
from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.backends.measured import MeasuredBackend, MeasuredCall, MeasuredStep, key_of
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.perf_models import GEMM, SDPA, Collective, GroupedGEMM, WorkColumns
from tracelens.predict.calibration.measurements import report_step, trace_step
from tracelens.predict.projection.from_measured import TRACED_PART, against, project_from
from tracelens.predict.projection.overheads import Software
from tracelens.predict.projection.projection_options import BACKENDS
from tracelens.predict.projection.step import Projection, project
from tracelens.predict.projection.step_traces import write_traces
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

MODEL = ModelConfig.load("llama3.1-8b")
NODE = ParallelConfig(tp=2, sequence_parallel=True, dp=4, micro_batches=4)
BASE = chain(BACKENDS)


@pytest.fixture(scope="module")
def hopper() -> System:
    return System.load("dgx-h100")


@pytest.fixture(scope="module")
def slow(hopper: System) -> Projection:
    """A step of a framework whose products take half as long again, and whose host needs 100 us per operation."""
    software = Software(products=1.5, host_us_per_op=100.0)
    return project(MODEL, NODE, hopper, sequence=2048, software=software)


@pytest.fixture(scope="module")
def trace(slow: Projection, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_traces(slow.job, slow.job.run(), tmp_path_factory.mktemp("traced"))[0]


def test_recorded_calls_take_as_long_again_and_others_keep_the_efficiency_of_their_kind(hopper: System) -> None:
    recorded, other = GEMM(m=4096, n=4096, k=4096), GEMM(m=8192, n=4096, k=4096)
    own, estimate = BASE.estimate_many(WorkColumns.of([recorded, other]), hopper).time_us
    step = MeasuredStep(
        step_us=1e3, idle_us=0.0, calls=(MeasuredCall(name="mm", model=recorded, count=3, time_us=2 * own),)
    )
    far = Collective(kind="all_reduce", elements_in=1 << 20, elements_out=1 << 20, ranks=64)
    turned = GEMM(m=4096, n=4096, k=4096, bias=True)
    found = MeasuredBackend(step, BASE, hopper).estimate_many(WorkColumns.of([recorded, turned, other, far]), hopper)
    assert found.time_us[:3] == pytest.approx([2 * own, 2 * own, 2 * estimate])
    assert found.backend == ("measured", "measured", "measured efficiency", "collectives")


def test_what_attends_or_computes_something_else_is_another_call() -> None:
    forward = GroupedGEMM(m=8192, n=4096, k=7168, groups=8)
    whole = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=32, kv_heads=8, d_qk=128, d_v=128)
    assert key_of(forward) != key_of(forward.backward())
    assert key_of(whole) != key_of(replace(whole, mask="top_left"))
    assert key_of(replace(whole, mask="bottom_right")) == key_of(replace(whole, mask="top_left"))  # of equal lengths


@pytest.mark.sweep
def test_the_traced_configuration_gives_the_traced_step_back(slow: Projection, trace: Path, hopper: System) -> None:
    measured = trace_step(analyze(tl.load(trace), AnalysisOptions(), on_demand=True))
    assert measured.step_us == pytest.approx(slow.step_us, rel=1e-3)
    found = project_from(
        measured, MODEL, NODE, hopper, sequence=2048, base=BASE, traced=(NODE, hopper)
    )  # fmt: skip
    assert found.projection.step_us == pytest.approx(measured.step_us)
    assert sum(found.projection.breakdown_us.values()) == pytest.approx(measured.step_us)
    assert found.sources["gemm"] == {"measured": 1.0}
    assert found.sources["attention"] == {"measured": 1.0}
    assert found.sources["tp"] == {"measured": 1.0}


def test_more_nodes_change_what_goes_between_them_alone(trace: Path, hopper: System) -> None:
    measured = trace_step(analyze(tl.load(trace), AnalysisOptions(), on_demand=True))
    one, four = (
        project_from(measured, MODEL, replace(NODE, dp=dp), hopper, sequence=2048, base=BASE, traced=(NODE, hopper))
        for dp in (4, 16)
    )
    then, now = one.projection.breakdown_us, four.projection.breakdown_us
    assert now["dp"] > then["dp"]
    assert {part for part in now if now[part] != pytest.approx(then[part])} <= {"dp", "optimizer"}
    assert now[TRACED_PART] == then[TRACED_PART]


def test_every_operation_stands_beside_itself(slow: Projection, trace: Path) -> None:
    table = against(slow, trace_step(analyze(tl.load(trace), AnalysisOptions(), on_demand=True))).set_index("what")
    assert table.loc["step", "ratio"] == pytest.approx(1, rel=1e-3)
    compared = table[table["ratio"].notna() & (table["projected_us"] > 0)]
    assert compared["ratio"].to_numpy() == pytest.approx(1, rel=1e-3)
    assert compared["projected_us"].drop("step").sum() > 0.6 * table["projected_us"].drop("step").sum()


def test_the_command_starts_from_a_report_and_sets_itself_beside_a_trace(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["project", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--tp", "2", "--sequence", "2048"]
    report = tmp_path / "rep" / "report.json"
    assert main(["report", str(trace), "--device", "h100-sxm", "-o", str(report.parent)]) == 0
    capsys.readouterr()
    traced = ["--from-report", str(report), "--traced", "gpus=8 global-batch=16"]
    assert main([*asked, "--gpus", "32", "--global-batch", "64", *traced]) == 0
    printed = capsys.readouterr().out
    assert "  GEMM                       measured 100 %" in printed
    assert TRACED_PART in printed
    assert main([*asked, "--gpus", "8", "--global-batch", "16", "--against", str(trace)]) == 0
    assert "projected and measured times" in capsys.readouterr().out
    anchored = ["--anchor", str(report), "--traced", "gpus=8"]
    assert main([*asked, "--gpus", "8", "--global-batch", "16", *anchored]) in (0, 2, 3)


def test_a_collective_without_recorded_size_is_no_measurement_of_one() -> None:
    """Taken as one of 0 bytes, its time would make every other of its kind a thousand times slower."""
    known = {"Collective name": "allreduce", "Group size": 8, "Process Group Ranks": "[0, 1]", "dtype": "Float"}
    sizes = {"In msg nelems": 64, "Out msg nelems": 64}
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce_Sum", "pid": 0, "tid": 7, "ts": ts, "dur": 90, "args": args}
        for ts, args in ((0, known), (100, known | sizes))
    ]  # fmt: skip
    step = trace_step(analyze(Trace.of(read_events(events)), AnalysisOptions(), on_demand=True))
    assert sorted((call.time_us, call.model is None) for call in step.calls) == [(90.0, False), (90.0, True)]


def test_a_step_has_the_calls_that_were_launched_in_complete_steps_alone(tmp_path: Path) -> None:
    """Three products and two all-reduces, of which one each ran before the first of two steps."""

    def event(category: str, name: str, ts: float, dur: float, **args: object) -> dict[str, object]:
        device = category == "kernel"
        return {"ph": "X", "cat": category, "name": name, "pid": 0 if device else 1, "tid": 7 if device else 1, "ts": ts,
                "dur": dur, "args": args}  # fmt: skip

    dims = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
    comms = {"Collective name": "allreduce", "Group size": 8, "Process Group Ranks": "[0, 1]", "dtype": "Float",
             "In msg nelems": 64, "Out msg nelems": 64}  # fmt: skip
    events = [event("user_annotation", f"ProfilerStep#{number}", 1000 * number, 990) for number in (1, 2)]
    for number, (at, mm_us, comms_us) in enumerate(((100, 500, 300), (1100, 40, 10), (2100, 60, 30))):
        events += [
            event("cpu_op", "aten::mm", at, 20, **dims),
            event("cuda_runtime", "cudaLaunchKernel", at + 5, 5, correlation=10 + number),
            event("kernel", "sgemm", at + 10, mm_us, correlation=10 + number, stream=7),
            event("cuda_runtime", "cudaLaunchKernel", at + 30, 5, correlation=20 + number),
            event(
                "kernel", "ncclDevKernel_AllReduce_Sum", at + 510, comms_us, correlation=20 + number, stream=8, **comms
            ),
        ]
    made = analyze(Trace.of(read_events(events)), AnalysisOptions())
    of_trace = trace_step(made)
    assert [(call.name, call.count, call.time_us) for call in of_trace.calls] == [
        ("aten::mm", 1.0, 50.0), ("allreduce", 1.0, 20.0),
    ]  # fmt: skip
    path = tmp_path / "report.json"
    path.write_bytes(json.dumps({"traceEvents": events}).encode())
    tl.report(path).to_json(path)
    of_report = report_step(path)
    assert of_report.calls == of_trace.calls[:1]
    assert (of_report.step_us, of_report.idle_us) == pytest.approx((of_trace.step_us, of_trace.idle_us))


def test_a_report_of_version_1_is_read_as_before(tmp_path: Path) -> None:
    signature = {
        "name": "aten::mm",
        "shapes": [[8, 8], [8, 8]],
        "dtypes": ["float"] * 2,
        "strides": None,
        "scalars": None,
    }
    op = {"signature": signature, "count": 6, "measured_us": 5.0}
    path = tmp_path / "report.json"
    path.write_text(json.dumps({
        "step": {"count": 2, "time_us": 100.0}, "busy": {"total_us": 200.0, "idle": 0.5}, "extensions": [],
        "ops": [op, {**op, "measured_us": None}],
    }))  # fmt: skip
    assert [(call.count, call.time_us) for call in report_step(path).calls] == [(3.0, 5.0)]


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="is not a tracelens report"):
        report_step(path)
