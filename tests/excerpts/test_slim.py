"""A slimmed trace reports on its steps as the whole one does."""

from __future__ import annotations

from pathlib import Path

import pytest

import tracelens
from tests.analysis.conftest import Builder
from tests.conftest import RealTrace, part
from tracelens.analysis.loaded_trace import load
from tracelens.errors import UsageError
from tracelens.report.excerpts.anonymize import Cut, slim


def three_steps() -> Builder:
    built = Builder()
    for i in range(3):
        built.op(f"ProfilerStep#{i}", 1000 * i, 1000, cat="user_annotation")
        built.op("aten::relu", 1000 * i + 10, 50).launch(1000 * i + 20, "relu", 1000 * i + 30, 100 + i)
    return built


def test_one_step_stays_with_what_it_launched(tmp_path: Path) -> None:
    kept, events = slim(three_steps().trace(), tmp_path / "s.json", Cut(steps="1"))
    assert (kept, events) == (4, 12)
    table = load(tmp_path / "s.json").table
    assert sorted(table.names) == ["ProfilerStep#1", "aten::relu", "cudaLaunchKernel", "relu"]
    assert table.duration_ns.tolist() == [1_000_000, 50_000, 500, 101_000]


def test_categories_stay_as_recorded(tmp_path: Path) -> None:
    slim(three_steps().trace(), tmp_path / "k.json", Cut(categories=("kernel",)))
    assert load(tmp_path / "k.json").table.names == ["relu"]
    with pytest.raises(UsageError, match="did you mean kernel"):
        slim(three_steps().trace(), tmp_path / "k.json", Cut(categories=("kernels",)))


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "steps"),
    part([("hta/nccl_parser_config/nccl_data", "5-6"), ("mi300/resnet_act_checkpoint", "16-17")], 2),
)
def test_the_report_of_some_steps_is_that_of_the_whole_traces(
    real_trace: RealTrace, name: str, steps: str, tmp_path: Path
) -> None:
    whole = tracelens.report(real_trace(name), steps=steps).summary
    kept, events = slim(real_trace(name), tmp_path / "s.json", Cut(steps=steps))
    part = tracelens.report(load(tmp_path / "s.json")).summary
    assert kept < events
    assert part.steps.count == whole.steps.count
    assert part.steps.time_us == pytest.approx(whole.steps.time_us, rel=0.01)
    assert part.busy.busy == pytest.approx(whole.busy.busy, rel=0.01)
