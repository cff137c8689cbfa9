"""A sentence on what was not recorded never asks for an option that the file says was on, or that could not help."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.trace.event_texts import read_events
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.verdict.health import health
from tracelens.analysis.verdict.verdict import summarize
from tracelens.report.terminal import verdict
from tracelens.trace.provenance import STEPS_ADVICE, no_shapes, no_stacks
from tracelens.trace.table import Recorder

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::relu", "pid": 1, "tid": 1, "ts": 0, "dur": 5, "args": {}}
KERNEL = {"ph": "X", "cat": "kernel", "name": "relu", "pid": 0, "tid": 7, "ts": 9, "dur": 5, "args": {"stream": 7}}


@pytest.mark.parametrize(
    ("events", "metadata", "sentence"),
    [
        ([OP, KERNEL], {}, "no shapes were recorded: use record_shapes=True"),
        ([OP, KERNEL], {"record_shapes": 0}, "no shapes were recorded: use record_shapes=True"),
        ([OP, KERNEL], {"record_shapes": 1}, "no op has shapes, although record_shapes was on"),
        ([KERNEL], {}, "no CPU ops were recorded: add ProfilerActivity.CPU to activities"),
        ([KERNEL], {"record_shapes": 1}, "no CPU ops were recorded: add ProfilerActivity.CPU to activities"),
    ],
)
def test_shapes(events: list[dict[str, Any]], metadata: dict[str, Any], sentence: str) -> None:
    assert str(no_shapes(read_events(events, metadata))) == sentence


@pytest.mark.parametrize(("with_stack", "advice"), [(None, "use with_stack=True"), (1, "")])
def test_stacks(with_stack: int | None, advice: str) -> None:
    lack = no_stacks(read_events([OP, KERNEL], {} if with_stack is None else {"with_stack": with_stack}))
    assert lack.advice == advice


def test_steps_need_a_schedule() -> None:
    """profile(...) without a schedule records no ProfilerStep, however often step() is called."""
    assert "schedule" in STEPS_ADVICE
    summary = summarize(analyze(Trace.of(read_events([OP, KERNEL])), AnalysisOptions()))
    (because,) = (each.because for each in summary.cannot_answer if each.question == "time per step")
    assert STEPS_ADVICE in because


def test_no_option_of_torch_is_asked_of_another_profiler() -> None:
    """Neither for steps, stacks and memory nor in what to try first."""
    rocprof = Recorder(file="a trace of rocprofv3", no_stacks="none", shapes_option="torch.profiler with record_shapes")
    table = replace(read_events([KERNEL]), recorder=rocprof)
    said = {
        each.question: each.because for each in summarize(analyze(Trace.of(table), AnalysisOptions())).cannot_answer
    }
    assert said["memory over time"] == (
        "a trace of rocprofv3 has no allocator events; torch.profiler records them with profile_memory=True"
    )
    assert said["launch overhead"] == "no runtime calls were recorded: trace the CUDA or HIP API too"
    assert "the profiler" not in " ".join(said.values())
    assert health(Trace.of(table)).steps_advice == "put each iteration into a range with its number ('iteration 7')"


def test_cpu_ops_alone_need_no_device() -> None:
    summary = summarize(analyze(Trace.of(read_events([OP])), AnalysisOptions(cpu=True)))
    assert summary.device.shown == "CPU ops alone"
    assert {each.question: each.because for each in summary.cannot_answer}["distance from the roofline"] == (
        "no device events were recorded"
    )
    assert "unknown device (no spec)" in verdict(
        summarize(analyze(Trace.of(read_events([OP, KERNEL])), AnalysisOptions()))
    )
