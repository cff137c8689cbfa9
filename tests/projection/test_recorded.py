"""A projected step written as traces and reported: the report says what the projection said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.host_time import HOST_CAUSES
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.verdict import summarize
from tracelens.backends.base import System
from tracelens.errors import UsageError
from tracelens.predict.calibration.measurements import trace_step
from tracelens.predict.projection.from_measured import against
from tracelens.predict.projection.overheads import ProjectionOptions, Software, Straggler
from tracelens.predict.projection.step import project
from tracelens.predict.projection.step_traces import timeline, write_traces
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

NODE = ParallelConfig(tp=2, sequence_parallel=True, pp=2, dp=4, micro_batches=4)
MOE = ParallelConfig(dp=8, pp=2, ep=8, micro_batches=4)
STEPS: dict[str, tuple[str, ParallelConfig, dict[str, Any]]] = {
    "1f1b": ("llama3.1-8b", NODE, {}),
    "recomputed": ("llama3.1-8b", replace(NODE, recompute="full", tp_overlap="all"), {}),
    "interleaved": ("llama3.1-8b", replace(NODE, vpp=2), {}),
    "zb-v": ("llama3.1-8b", NODE, {"schedule": "zb-v"}),
    "fsdp": ("llama3.1-8b", ParallelConfig(dp=16, zero=3), {}),
    "bound by the host": ("llama3.1-8b", NODE, {"software": Software(host_us_per_op=400.0)}),
    "straggler": ("llama3.1-8b", NODE, {"options": ProjectionOptions(straggler=Straggler(factor=1.2, stage=1))}),
    "divided gradients": ("llama3.1-8b", replace(NODE, zero=2), {"schedule": "zb-v"}),
    "experts": ("qwen3-30b-a3b", MOE, {}),
    "experts in two pieces": ("qwen3-30b-a3b", replace(MOE, dp=4, tp=2, sequence_parallel=True, ep=4, etp=2), {}),
    "experts and divided gradients": ("qwen3-30b-a3b", replace(MOE, zero=2, ep_overlap=True, vpp=2), {}),
    "experts beside another micro-batch": ("qwen3-30b-a3b", replace(MOE, ep_overlap=True, vpp=2), {}),
}
#: Parts of a step in which a trace has a collective running, or a receive that waits; those that also slow computing.
COMMUNICATION = ("tp", "cp", "ep", "fsdp", "dp", "pp", "pipeline bubble")
BESIDE = {"fsdp", "dp"}


@pytest.mark.parametrize("case", part(list(STEPS), 6, ["experts beside another micro-batch"]))
def test_a_reported_trace_gives_the_projections_times_back(case: str, tmp_path: Path) -> None:
    """Every operation's count and time to the nanosecond, on every distinct rank; the step within 0.1 %.

    What the projection calls waiting for the host is the idle time, within 2.5 % of the step (a receive runs beside some of it), and the host is its cause;
    the rest of the step is computing or exposed communication, of which the projection also counts what slows computing.
    """
    model, parallel, options = STEPS[case]
    whole = ModelConfig.load(model)
    four_layers = replace(whole, blocks=whole.blocks[:8])
    found = project(four_layers, parallel, System.load("dgx-h100"), sequence=2048, **options)
    ran = found.job.run()
    files = write_traces(found.job, ran, tmp_path)
    assert len(files) == parallel.pp
    for stage, path in enumerate(files):
        expected = timeline(found.job, ran, stage).op_times_ns()
        found_again = analyze(tl.load(path), AnalysisOptions(), on_demand=True).frames
        sums = found_again["kernel_summary"].groupby("kernel_name")[["kernels", "duration_us_sum"]].sum()
        reported: dict[str, tuple[int, int]] = {}
        for name, (calls, time_us) in zip(sums.index, sums.to_numpy(), strict=True):
            plain = name.partition("(")[2][:-1] if name.startswith("nccl") else name
            reported[plain] = (int(calls), round(time_us * 1000))
        assert reported == expected
        spent, step_ms = found_again["gpu_timeline"].set_index("type")["time_us"] / 1e3, found.step_us / 1e3
        assert spent["total_time"] == pytest.approx(step_ms, rel=1e-3)
        parts_ms = {name: time_us / 1e3 for name, time_us in ran.breakdown(stage).items()}
        assert spent["idle_time"] == pytest.approx(parts_ms.get("host", 0.0), abs=0.025 * step_ms)
        moved_ms = sum(parts_ms.get(name, 0.0) for name in COMMUNICATION)
        assert spent["exposed_comm_time"] <= moved_ms + 0.025 * step_ms
        if not parts_ms.keys() & BESIDE:
            assert spent["exposed_comm_time"] >= moved_ms - 0.025 * step_ms
        by_host = found_again["idle_causes"].set_index("cause")["idle_us"].reindex(HOST_CAUSES, fill_value=0.0).sum()
        assert by_host / 1e3 == pytest.approx(spent["idle_time"], abs=1e-4 * step_ms)


def test_the_times_of_operations_are_their_prices_times_their_calls() -> None:
    """Where nothing runs beside anything: 4 micro-batches of 16 layers, and twice with recomputation."""
    p = replace(NODE, dp=1, recompute="full")
    found = project(ModelConfig.load("llama3.1-8b"), p, System.load("dgx-h100"), sequence=2048)
    times = timeline(found.job, found.job.run(), 0).op_times_ns()
    forward, again = times["mlp.up.forward"], times["mlp.up.recompute"]
    assert forward == again
    assert forward[0] == 4 * 16
    assert forward[1] % forward[0] == 0


def test_one_trace_per_distinct_rank_or_those_that_are_asked_for(tmp_path: Path) -> None:
    """Stages have tp 2 * dp 4 = 8 ranks: 0 and 8 are the first of each, 11 does what 8 does."""
    found = project(ModelConfig.load("llama3.1-8b"), NODE, System.load("dgx-h100"), sequence=2048)
    ran = found.job.run()
    assert [path.name for path in write_traces(found.job, ran, tmp_path / "all")] == ["rank0.json.gz", "rank8.json.gz"]
    (path,) = write_traces(found.job, ran, tmp_path / "one", [11])
    assert tl.load(path).table.rank == 11
    with pytest.raises(UsageError, match="rank 16 is not one of the 16 ranks of this step"):
        write_traces(found.job, ran, tmp_path, [16])


def test_the_same_step_gives_the_same_trace(tmp_path: Path) -> None:
    found = project(ModelConfig.load("llama3.1-8b"), NODE, System.load("dgx-h100"), sequence=2048)
    first, second = (write_traces(found.job, found.job.run(), tmp_path / name, [0])[0] for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_written_trace_meets_every_row_of_its_own_projection(tmp_path: Path) -> None:
    result = tl.project("mixtral-8x7b", "dgx-h100", nodes=1, ep=8, global_batch=8, sequence=256, dispatcher="deepep")
    result.write_traces(tmp_path)
    measured = trace_step(analyze(tl.load(tmp_path / "rank0.json.gz"), AnalysisOptions(), on_demand=True))
    table = against(result.projection, measured).set_index("what")
    assert (table[["projected_calls", "measured_calls"]] > 0).all(axis=None)
    assert table["ratio"].between(0.99, 1.01).all()


def test_exposed_communication_of_a_projected_step_is_a_finding(tmp_path: Path) -> None:
    """The host waits for the gradients before it launches what follows them, so what precedes the wait can shrink."""
    parallel = ParallelConfig(tp=8, sequence_parallel=True, micro_batches=2)
    found = project(ModelConfig.load("llama3.1-8b"), parallel, System.load("dgx-h100"), sequence=2048)
    (path,) = write_traces(found.job, found.job.run(), tmp_path)
    summary = summarize(analyze(tl.load(path), AnalysisOptions()))
    (exposed,) = (each for each in summary.findings if each.id == "exposed_communication")
    assert 0 < (exposed.gain_us or 0) < found.step_us
