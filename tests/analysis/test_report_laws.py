"""Reports against a second, plain path, and against the laws: random built traces, and broken reports."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.report.test_energy import ALONE, recording
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.attribution.activity import device_activity, gpu_timeline
from tracelens.analysis.attribution.steps import device_steps
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.analysis.reading.catalog import Catalog
from tracelens.analysis.sheets.perf_summary import kernel_summary
from tracelens.analysis.verdict.summary import Coverage, Evidence, Finding, Said
from tracelens.analysis.verdict.verdict import summarize
from tracelens.hardware import recognize
from tracelens.laboratory.plain_reading import PlainTrace, nanoseconds, parts, step_spans, union
from tracelens.laboratory.report_laws import FILE_LAWS, REPORT_LAWS, check_report, unexplained_numbers
from tracelens.laboratory.report_laws import energy_is_that_of_kernels_and_waiting_within_the_limit as law_of_energy

KERNELS = (
    "Cijk_Ailk_Bljk_BBS_MT128x128", "void at::native::vectorized_elementwise_kernel<4>", "ncclDevKernel_AllReduce_Sum",
    "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoD (Device -> Device)", "Memset (Device)", "triton_poi_fused_add_0",
)  # fmt: skip
OPS = ("aten::mm", "aten::add_", "aten::copy_", "c10d::allreduce_", "MyFunction")


def found_by(trace: Path) -> tuple[Analysis, Any]:
    analysis = analyze(load(trace), AnalysisOptions())
    return analysis, summarize(analysis)


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A random trace: threads of nested ops, launches, kernels of several streams, steps, kernels without a launch."""
    base = draw(st.sampled_from([0, 1_000_000, 3_743_411_252_944]))
    number = st.integers(0, 400_000)

    def time(ns: int) -> float | str:
        return float(f"{base + ns // 1000}.{ns % 1000:03d}")

    made: list[dict[str, Any]] = []

    def add(cat: str, name: str, start: int, duration: int, tid: int, **args: Any) -> None:
        made.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": time(start), "dur": duration / 1000,
             "args": args}
        )  # fmt: skip

    correlation = 0
    for tid in range(1, 1 + draw(st.integers(1, 2))):
        for _ in range(draw(st.integers(0, 6))):
            start, duration = draw(number), draw(st.integers(10, 60_000))
            add("cpu_op", draw(st.sampled_from(OPS)), start, duration, tid)
            for _ in range(draw(st.integers(0, 3))):
                correlation += 1
                at = start + draw(st.integers(0, duration))
                add("cuda_runtime", "cudaLaunchKernel", at, draw(st.integers(0, 5_000)), tid, correlation=correlation)
                kernel = draw(st.sampled_from(KERNELS))
                cat = "gpu_memcpy" if "Memcpy" in kernel else "gpu_memset" if "Memset" in kernel else "kernel"
                stream = draw(st.sampled_from([7, 20]))
                begin = at + draw(st.integers(0, 100_000))
                add(cat, kernel, begin, draw(st.integers(0, 50_000)), stream, stream=stream, device=0,
                    correlation=correlation)  # fmt: skip
    for _ in range(draw(st.integers(0, 3))):
        add("kernel", draw(st.sampled_from(KERNELS)), draw(number), draw(st.integers(1, 9_000)), 7, stream=7, device=0)
    borders = sorted(set(draw(st.lists(number, max_size=4))))
    for step, (start, end) in enumerate(itertools.pairwise(borders)):
        add("user_annotation", f"ProfilerStep#{step}", start, end - start, 1)
    return made


def written(made: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "built.json"
    path.write_text(json.dumps({"traceEvents": made}))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


def has_device_events(made: list[dict[str, Any]]) -> bool:
    return any(event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") for event in made)


def assert_lawful(made: list[dict[str, Any]], folder: Path) -> None:
    if not has_device_events(made):
        return
    path = written(made, folder)
    checked = check_report(*found_by(path), path)
    assert checked.broken == ()
    assert checked.unchecked == ""


@settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(made=events())
def test_a_built_trace_obeys_every_law(made: list[dict[str, Any]], folder: Path) -> None:
    assert_lawful(made, folder)


def figures_of(trace: Trace) -> Analysis:
    """The part of ``analyze`` that the file speaks about, without tables of work and views: 20 times as fast."""
    catalog = Catalog()
    activity = device_activity(trace.table, trace.tree, catalog.kernel_patterns)
    timeline = gpu_timeline(activity)
    stem, times, _ = device_steps(trace.table, trace.tree, activity.rows)
    kernels = kernel_summary(trace.table, activity, activity.category, timeline.total_ns)
    return Analysis(
        trace=trace, options=AnalysisOptions(), recognition=recognize(None), extensions=(), coverage=Coverage(),
        frames={"kernel_summary": kernels}, families={}, timeline=timeline, activity=activity,
        event_category=activity.category, step_times=times, step_stem=stem,
        step_of=np.full(len(activity), -1, np.int32),
    )  # fmt: skip


@pytest.mark.sweep
@pytest.mark.parametrize("batch", range(20))
def test_figures_of_ten_thousand_built_traces_equal_the_plain_path(batch: int, folder: Path) -> None:
    @seed(batch)
    @settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(made=events())
    def all_of_them(made: list[dict[str, Any]]) -> None:
        if has_device_events(made):
            path = written(made, folder)
            analysis, plain = figures_of(load(path)), PlainTrace.read(path)
            assert [what for law in FILE_LAWS for what in law(analysis, plain)] == []

    all_of_them()


def test_a_contradiction_with_the_file_is_found(folder: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1.0, "dur": 2.0, "args": {"stream": 7}}
    path = written([kernel, {**kernel, "ts": 5.0}], folder)
    analysis, summary = found_by(path)
    assert check_report(analysis, summary, path).broken == ()
    longer = written([kernel, {**kernel, "ts": 5.0, "dur": 2.001}], folder)
    broken = {law for law, _ in check_report(analysis, summary, longer).broken}
    assert "device events are those of the file" in broken
    assert "kernels hang on the op that launched them" in broken


def test_steps_that_do_not_last_as_long_as_their_launches_say_are_found(folder: Path) -> None:
    """The host runs ahead: step 1 waits for 30 us of step 0's work, and its own outlives the host's annotation."""

    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": args.get("stream", 1),
            "ts": ts,
            "dur": dur,
            "args": args,
        }

    made = [
        event("user_annotation", "ProfilerStep#0", 10, 20), event("user_annotation", "ProfilerStep#1", 30, 20),
        event("cuda_runtime", "cudaLaunchKernel", 12, 1, correlation=1), event("kernel", "a", 15, 45, stream=7, correlation=1),
        event("cuda_runtime", "cudaLaunchKernel", 32, 1, correlation=2), event("kernel", "b", 60, 25, stream=7, correlation=2),
    ]  # fmt: skip
    path = written(made, folder)
    analysis, summary = found_by(path)
    assert step_spans(PlainTrace.read(path)) == [(10_000, 60_000), (60_000, 85_000)]
    assert check_report(analysis, summary, path).broken == ()
    later = replace(analysis, step_times=replace(analysis.step_times, start_ns=analysis.step_times.start_ns + 1))
    assert "steps last as long as their launches say" in {law for law, _ in check_report(later, summary, path).broken}


def test_a_report_that_contradicts_itself_is_found(repository: Path) -> None:
    path = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    analysis, summary = found_by(path)
    assert check_report(analysis, summary, path).broken == ()
    assert summary.steps is not None
    assert summary.busy is not None
    most_us, nowhere = 2 * summary.steps.time_us, (Evidence(sheet="idle_causes", row={"cause": "none"}),)
    too_much = replace(summary.findings[0], gain_us=most_us, gain_low_us=3 * most_us, gain_high_us=most_us, figures=())
    too_much = replace(too_much, evidence=nowhere)
    sent = analysis.frames["coll_analysis"].assign(bus_gb_s_min=400.0)
    fast = Evidence(sheet="coll_analysis", row={key: sent[key].iloc[0] for key in ("collective", "in_mb")})
    small = replace(too_much, evidence=(fast,), why="allreduce of 1 kB: a message this small is all latency")
    wrong = replace(summary, busy=replace(summary.busy, idle=0.5, total_us=1.0), findings=(too_much, small))
    times = replace(analysis.step_times, busy_ns=analysis.step_times.busy_ns + 10**12)
    idle = analysis.frames["idle_causes"].assign(idle_us=1.0)
    kernels = analysis.frames["kernel_summary"].iloc[1:]
    rows = analysis.frames["unified_perf_summary"].assign(percent_of_peak=400.0, served_from=None)
    frames = {
        **analysis.frames,
        "idle_causes": idle,
        "coll_analysis": sent,
        "kernel_summary": kernels,
        "headroom": analysis.frames["headroom"].iloc[1:],
        "critical_path": analysis.frames["critical_path"].iloc[1:],
        "unified_perf_summary": rows,
    }
    broken = {law for law, _ in check_report(replace(analysis, step_times=times, frames=frames), wrong, path).broken}
    assert {law.__name__.replace("_", " ") for law in REPORT_LAWS if law is not law_of_energy} <= broken


def test_joules_that_contradict_each_other_are_found(folder: Path) -> None:
    """H200: no step draws less than 128 W, none more than 700, and steps make the window."""
    analysis, summary = found_by(recording(folder, ALONE, steps=3))
    assert list(law_of_energy(analysis, summary)) == []
    assert summary.energy is not None
    hot = replace(summary, energy=replace(summary.energy, power_w=5000.0, kernels_j=9.0))
    steps = analysis.frames["steps"].iloc[:3]
    cold = replace(analysis, frames={**analysis.frames, "steps": steps.assign(power_w=40.0, energy_j=0.04)})
    said = "; ".join(law_of_energy(cold, hot))
    for what in ("kernels 9.0 J", "steps of 0.04 J", "the window: 5000.0 W", "step 0: 40.0 W", "step 2: 40.0 W"):
        assert what in said
    assert list(law_of_energy(analysis, replace(summary, energy=None))) == []


def test_a_number_without_a_figure_is_found() -> None:
    figures = (Said(what="gaps", value=28, unit="count"), Said(what="longest", value=231_400.0, unit="us"))
    told = Finding(id="idle", op=None, gain_us=1.0, certainty="low", time_us=2.0, figures=figures,
                   why="28 gaps, the longest 231 ms, 3 % of it")  # fmt: skip
    assert list(unexplained_numbers(told)) == ["3 %"]
    # Shapes and names are quoted: only what is around them are figures
    for why in (
        "28 calls of aten::mm (64, 32) take 231 ms each",
        "28 calls of aten::mm in 28 shapes take 231 ms each; most of the gain is in (64, 32)",
        "28 gaps; most of the longest is in ProfilerStep#3",
    ):
        assert list(unexplained_numbers(replace(told, why=why))) == []
        assert list(unexplained_numbers(replace(told, why=f"{why}; 7 % of this time is counted above"))) == ["7 %"]


def test_every_law_has_a_sentence() -> None:
    for law in (*REPORT_LAWS, *FILE_LAWS):
        assert law.__doc__ is not None
        assert law.__doc__.strip().endswith(".")


def test_plain_times_are_exact() -> None:
    assert nanoseconds("3743411252944.511") == 3743411252944511
    assert nanoseconds(0.0005) == 0
    assert nanoseconds(0.0015) == 2
    with pytest.raises(ValueError, match="is not a time"):
        nanoseconds("soon")


def test_the_plain_union_and_the_plain_parts() -> None:
    # [0, 10) and [5, 12) cover 12, [20, 21) one more
    assert union([(5, 12), (0, 10), (20, 21)]) == 13
    # 0-4 compute, 4-6 communication beside it until 5, 8-9 a copy, the rest of 0-10 idle
    found = parts([(0, 5, "compute"), (4, 6, "communication"), (8, 9, "copy")], (0, 10))
    assert (found.compute, found.exposed_communication, found.exposed_copies, found.idle) == (5, 1, 1, 3)


def test_ops_nest_plainly() -> None:
    def event(cat: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}

    plain = PlainTrace.of(
        [
            event("cpu_op", "outer", 0, 10),
            event("cpu_op", "inner", 2, 3),
            event("cuda_runtime", "cudaLaunchKernel", 3, 1, correlation=1),
            event("cuda_runtime", "cudaLaunchKernel", 7, 1, correlation=2),
            {**event("kernel", "a", 20, 1, correlation=1, stream=7), "tid": 7},
            {**event("kernel", "b", 22, 1, correlation=2, stream=7), "tid": 7},
            {**event("kernel", "c", 24, 1, correlation=3, stream=7), "tid": 7},
        ]
    )
    assert [e.launch.op if e.launch else None for e in plain.device] == ["inner", "outer", None]
    assert np.array_equal([e.start for e in plain.device], [20_000, 22_000, 24_000])
