"""A measured step of the same model and device is a factor on the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracelens.backends.base import System
from tracelens.errors import InputError, UsageError
from tracelens.predict.projection.from_measured import MEASURED_PART, Anchor, measured_step_us
from tracelens.predict.projection.step import project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

MODEL, SYSTEM = ModelConfig.load("llama3.1-8b"), System.load("dgx-h100")


def test_a_step_that_took_a_fifth_longer_makes_every_other_a_fifth_longer() -> None:
    one, two = (project(MODEL, ParallelConfig(dp=dp), SYSTEM, sequence=4096) for dp in (8, 16))
    anchored = Anchor.of(one, 1.2 * one.step_us, "a step").on(two)
    assert anchored.step_us == pytest.approx(1.2 * two.step_us)
    assert anchored.tokens_per_s_per_gpu == pytest.approx(two.tokens_per_s_per_gpu / 1.2)
    assert anchored.breakdown_us[MEASURED_PART] == pytest.approx(0.2 * two.step_us)
    assert sum(anchored.breakdown_us.values()) == pytest.approx(anchored.step_us)
    assert anchored.notes[-1] == "scaled by 1.200 to match a step"


def test_a_step_without_time_is_no_anchor() -> None:
    with pytest.raises(UsageError, match="the anchor row 7 must have a time above 0"):
        Anchor(factor=0.0, name="row 7")


def test_the_step_of_a_report_is_read_and_other_files_are_refused(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"schema": "tracelens.report/1", "step": {"time_us": 1234.5}}))
    assert measured_step_us(report) == 1234.5
    report.write_text(json.dumps({"schema": "tracelens.report/1", "step": None}))
    with pytest.raises(InputError, match="it has no recorded step"):
        measured_step_us(report)
    report.write_text("[]")
    with pytest.raises(InputError, match="is not a tracelens report"):
        measured_step_us(report)
