"""An anonymized trace has the same report but for names, and no name of whoever recorded it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.conftest import Builder
from tests.conftest import RealTrace, device_traces, part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.verdict.verdict import summarize
from tracelens.report.excerpts.anonymize import Names, anonymize
from tracelens.trace.table import Kind

PRIVATE = "sekret"
#: With stacks and several ranks; compiled; the others with ``-m sweep``.
QUICK = ("more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz", "torch_compile_triton/trace.json.gz")


def figures(trace: Trace) -> dict[str, Any]:
    """All that a report says in numbers."""
    analysis = analyze(trace, AnalysisOptions())
    found, ops = summarize(analysis), analysis.frames[perf_summary.UNIFIED_PERF_SUMMARY_TITLE]
    numbers = ops.select_dtypes("number").drop(columns=["example_row"], errors="ignore")
    rows = sorted(map(str, numbers.round(6).to_numpy().tolist()))
    return {
        "steps": found.steps, "busy": found.busy, "coverage": found.coverage, "categories": found.categories,
        "throughput": found.throughput, "findings": [(f.id, f.gain_us) for f in found.findings], "ops": rows,
    }  # fmt: skip


@pytest.mark.shared
@pytest.mark.parametrize("name", part(device_traces(), 1000, QUICK))
def test_the_report_is_the_same_but_for_names(real_trace: RealTrace, name: str, tmp_path: Path) -> None:
    trace = real_trace(name)
    path = tmp_path / trace.table.source.removesuffix(".gz")
    anonymize(trace, path)
    assert figures(load(path)) == figures(trace)


def private_trace() -> Trace:
    built = Builder()
    built.op(f"## {PRIVATE} iteration 1 ##", 0, 50, cat="user_annotation")
    built.op(f"/home/{PRIVATE}/model.py(12): {PRIVATE}_forward", 1, 40, cat="python_function")
    built.op(f"nn.Module: {PRIVATE}Block_3", 2, 38, cat="python_function")
    built.op(f"{PRIVATE}::op", 3, 30, **{"Call stack": PRIVATE, "Concrete Inputs": [f"/{PRIVATE}/x"], PRIVATE: PRIVATE,
                                         "Input Dims": [[8]], "Input type": [f"{PRIVATE}Type"]})  # fmt: skip
    built.launch(4, f"{PRIVATE}_kernel<float>", 60, 10, kernel_file=f"/home/{PRIVATE}/k.py")
    built.mm(64, 64, 64, 40, 80, 10)
    built.events.append({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0, "args": {"name": PRIVATE}})
    built.events.append({"ph": "i", "name": PRIVATE, "pid": 1, "tid": 1, "ts": 5, "s": "g", "cat": PRIVATE.upper()})
    return built.trace(
        traceName=f"/home/{PRIVATE}.json", host_name=PRIVATE,
        distributedInfo={"rank": 0, "world_size": 1, "backend": "nccl", PRIVATE: 1,
                         "pg_config": [{"pg_name": f"{PRIVATE}_pg", "ranks": [0], "host": PRIVATE}]},
    )  # fmt: skip


def test_no_private_name_is_left(tmp_path: Path) -> None:
    anonymize(private_trace(), tmp_path / "a.json")
    text = (tmp_path / "a.json").read_text()
    assert PRIVATE not in text.lower()
    assert "aten::mm" in text
    assert json.loads(text)["deviceProperties"]


def test_times_and_shapes_stay(tmp_path: Path) -> None:
    trace = private_trace()
    anonymize(trace, tmp_path / "a.json")
    new = load(tmp_path / "a.json").table
    assert new.start_ns.tolist() == trace.table.start_ns.tolist()
    assert new.duration_ns.tolist() == trace.table.duration_ns.tolist()
    assert [new.signature_of(row).shapes for row in range(len(new))] == [
        trace.table.signature_of(row).shapes for row in range(len(new))
    ]


def test_placeholders_are_the_same_for_the_same_name() -> None:
    names = Names()
    one, other = names.name("my.iteration 1", Kind.USER_ANNOTATION), names.name("my.iteration 2", Kind.USER_ANNOTATION)
    assert (one, other) == ("range1_iteration 1", "range1_iteration 2")
    assert names.name("MyFunctionBackward", Kind.CPU_OP) == "op1_backward"
    assert re.fullmatch(r"file1\.py\(3\): function1", names.name("mine.py(3): f", Kind.PYTHON_FUNCTION))
    assert names.name("/x/torch/nn/modules/linear.py(1): forward", Kind.PYTHON_FUNCTION).startswith("torch/nn/")


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("acme data loading", "data load range1"),
        ("enumerate(DataLoader)#AcmeIter.__next__", "dataload range1"),
        ("acme.__next__", "range1 .__next__"),
        ("acme inductor_compile", "inductor_compile range1"),
        ("acme step 7", "range1_step 7"),
        ("acme layer 7", "range1_layer 7"),
        ("acme(B)", "range1_(b)"),
    ],
)
def test_a_range_still_says_why_the_device_was_idle(name: str, made: str) -> None:
    assert Names().name(name, Kind.USER_ANNOTATION).casefold() == made
