"""A projection by names: its frames agree with each other, sweeps are tables and plots."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import UsageError

COMMAND = ["project", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--nodes", "2"]


@pytest.fixture(scope="module")
def experts() -> object:
    return tl.project("qwen3-30b-a3b", "dgx-h100", nodes=2, pp=2, ep=8, sequence=2048)


def test_frames_add_up_to_the_step_and_the_peak() -> None:
    found = tl.project("llama3.1-8b", "dgx-h100", nodes=2, tp=2, pp=2, sequence=2048)
    assert found.breakdown["share"].sum() == pytest.approx(1)
    assert found.breakdown["time_us"].sum() == pytest.approx(found.summary["step_time_s"] * 1e6)
    assert found.memory["peak_gb"].max() == pytest.approx(found.summary["memory_gb"])
    assert list(found.memory["stage"]) == [0, 1]
    assert list(found.ops()["time_us"]) == sorted(found.ops()["time_us"], reverse=True)
    with pytest.raises(UsageError, match="stage 2 is not one of the 2 of this step"):
        found.ops(2)


def test_communication_is_exposed_at_most_as_long_as_it_runs(experts) -> None:
    """An exchange that nothing hides is exposed in full, but for what the gradients' sums beside it cost."""
    table = experts.communication.set_index("stream")
    assert table.loc["ep", "exposed_us"] == pytest.approx(table.loc["ep", "time_us"], rel=0.005)
    assert (table["exposed_us"] <= table["time_us"] * (1 + 1e-9)).all()
    beside = tl.project("qwen3-30b-a3b", "dgx-h100", nodes=2, pp=2, vpp=2, ep=8, sequence=2048, ep_overlap=True)
    hidden = beside.communication.set_index("stream")
    assert hidden.loc["ep", "exposed_us"] < 0.7 * hidden.loc["ep", "time_us"]


def test_experts_are_what_a_rank_has(experts) -> None:
    """128 experts on 8 ranks; 2048 tokens with 8 copies each, evenly on 16 experts of each of 8 ranks' tokens."""
    work = experts.experts
    assert (work.local_experts, work.hidden, work.ffn, work.mode) == (16, 2048, 768, "grouped")
    assert (work.tokens, work.rows_per_expert) == (2048, 2048 * 8 / 16)
    assert 0 < work.copies < 2048 * 8
    one_by_one = tl.project("qwen3-30b-a3b", "dgx-h100", nodes=2, ep=8, sequence=2048, sequential_experts=True)
    assert one_by_one.experts.mode == "sequential"
    assert one_by_one.experts.rows_per_expert == work.rows_per_expert
    assert tl.project("llama3.1-8b", "dgx-h100", nodes=1).experts is None


def test_the_document_has_everything_and_is_the_same_twice(experts) -> None:
    document = json.loads(experts.to_json())
    assert {"summary", "breakdown", "communication", "memory", "ops", "levers", "notes"} <= document.keys()
    again = tl.project("qwen3-30b-a3b", "dgx-h100", nodes=2, pp=2, ep=8, sequence=2048)
    assert again.to_json() == experts.to_json()


def test_a_sweep_is_a_table_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sweep.csv"
    assert main([*COMMAND, "--sweep", "tp=1,3,8", "--sweep", "tp-overlap=none,all", "-o", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "tp 3 * pp 1 * cp 1 * dp 5 = 15 ranks, but the cluster has 16" in shown
    table = pd.read_csv(out)
    assert list(zip(table["tp"], table["tp_overlap"], strict=True)) == [
        (1, "none"), (1, "all"), (3, "none"), (3, "all"), (8, "none"), (8, "all"),
    ]  # fmt: skip
    assert table["step_time_s"].notna().tolist() == [True, True, False, False, True, True]
    one = tl.project("llama3.1-8b", "dgx-h100", nodes=2, tp=8, tp_overlap="all")
    assert table["step_time_s"].iloc[-1] == pytest.approx(one.summary["step_time_s"])
    picture = (tmp_path / "sweep.svg").read_text()
    assert picture.startswith("<svg")
    assert picture.count("<rect") == 4


@pytest.mark.parametrize("text", ["tp", "tp=", "speed=1", "output=x", "tp-overlap=yes", "tp=two", "ep-overlap=2"])
def test_other_sweeps_are_errors(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--sweep", text]) == 2
    assert "--sweep" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--sweep", "tp=1,2", "--anchor", "report.json", "--trace", "folder"],
            "--sweep does not read --trace, --anchor",
        ),
        (["--from-report", "report.json", "--host-us", "9"], "--from-report does not read --host-us"),
        (["--batch", "points.csv", "-o", "out.csv"], "--batch does not read --model, --cluster, --nodes"),
    ],
)
def test_options_that_would_not_be_read_are_errors(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*COMMAND, *options]) == 2
    assert said in capsys.readouterr().err


def test_the_command_writes_the_step_as_a_document_or_its_operations(tmp_path: Path) -> None:
    assert main([*COMMAND, "--tp", "2", "-o", str(tmp_path / "step.json")]) == 0
    assert json.loads((tmp_path / "step.json").read_text())["schema"] == "tracelens.project/1"
    assert main([*COMMAND, "--tp", "2", "-o", str(tmp_path / "ops.csv")]) == 0
    assert list(pd.read_csv(tmp_path / "ops.csv").columns) == ["op", "calls", "time_us"]
