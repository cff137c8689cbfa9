"""The pipelines' scripts, run as their build servers run them: a fast trace is green, a slow one red."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import tracelens as tl
from tests.conftest import part
from tracelens.cli import main
from tracelens.report.json_report import otlp_json, prometheus_text
from tracelens.testing import assert_faster_than, assert_no_regression

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "agents"))
import small_traces

GATE_FAILED = 4


@pytest.fixture(scope="module")
def traces(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    small_traces.write(folder / "before.json.gz", steps=4)
    small_traces.write(folder / "fast.json.gz", steps=4, kernel_us=95)
    small_traces.write(folder / "slow.json.gz", steps=4, kernel_us=140)
    return folder


def ran(script: str, shell: str, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """As a runner would: a shell that stops at the first failure, ``tracelens`` on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [shell, "-e", *(["-o", "pipefail"] if shell == "bash" else []), "-c", script]
    return subprocess.run(
        command,
        env={**os.environ, "PATH": path, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("after", "code"), part([("slow", GATE_FAILED), ("fast", 0)], 2))
def test_the_action_is_green_for_a_fast_trace_and_red_for_a_slow_one(traces, repository, tmp_path, after, code):
    action = yaml.safe_load((repository / "action.yml").read_text())
    _, gate, comment, pages = action["runs"]["steps"]
    inputs = {name: entry.get("default", "") for name, entry in action["inputs"].items()}
    inputs |= {"trace": str(traces / f"{after}.json.gz"), "baseline": str(traces / "before.json.gz")}
    inputs["gates"] = "step<+3%\ncoverage>-1\n"
    said = re.compile(r"\$\{\{ inputs\.(\w+) \}\}")
    environment = {
        name: said.sub(lambda match: inputs[match[1]], text) for name, text in {**gate["env"], **comment["env"]}.items()
    }
    summary = tmp_path / "summary.md"
    done = ran(gate["run"], "bash", {**environment, "GITHUB_STEP_SUMMARY": str(summary)}, tmp_path)
    assert done.returncode == code, done.stderr
    assert ("::error title=tracelens step<+3%25::" in done.stdout) == (code == GATE_FAILED)
    assert ("❌" in summary.read_text()) == (code == GATE_FAILED)
    for file in ("report/report.html", "compare/compare.html", "compare/compare.sarif"):
        assert (tmp_path / "tracelens" / file).stat().st_size
    assert pages["with"]["path"] == "${{ inputs.output }}"
    (tmp_path / "gh").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >said\nfor file; do :; done\ncp "$file" comment.md\n')
    (tmp_path / "gh").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = ran(comment["run"], "bash", {**environment, "PULL_REQUEST": "7", "PATH": path}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "said").read_text().splitlines()[:3] == ["pr", "comment", "7"]
    assert (tmp_path / "comment.md").read_text() == summary.read_text()
    done = ran(comment["run"], "bash", {**environment, "PULL_REQUEST": "7", "OUTPUT": "missing"}, tmp_path)
    assert done.returncode == 0


@pytest.mark.sweep
@pytest.mark.parametrize(("after", "code"), part([("slow", GATE_FAILED), ("fast", 0)], 2))
def test_the_template_of_gitlab_does_the_same(traces, repository, tmp_path, after, code):
    job = yaml.safe_load((repository / "docs" / "pipelines" / "gitlab.yml").read_text())[".tracelens"]
    given = {"TRACE": str(traces / f"{after}.json.gz"), "BASELINE": str(traces / "before.json.gz")}
    done = ran("\n".join(job["script"]), "sh", {**job["variables"], **given}, tmp_path)
    assert done.returncode == code, done.stderr
    assert f'failures="{int(code == GATE_FAILED)}"' in (tmp_path / "tracelens" / "compare.xml").read_text()


def test_assertions_say_what_is_slower(traces):
    before, fast, slow = (traces / f"{name}.json.gz" for name in ("before", "fast", "slow"))
    assert assert_no_regression(before, fast).gates[0].passed
    with pytest.raises(AssertionError, match=r"step<\+3%: failed") as failed:
        assert_no_regression(before, slow)
    assert "5 calls of aten::mm" in str(failed.value)
    # five calls a step, each 25 us apart: 4 x (100 + 25) us, and the step's own 5
    assert 0.6 < assert_faster_than(before, 0.7) < 0.65
    with pytest.raises(AssertionError, match=r"not less than 0\.5 ms"):
        assert_faster_than(before, 0.5)


def test_metrics_are_the_figures_of_the_report(repository, moe_report, capsys, tmp_path):
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    report = moe_report
    assert main(["report", str(trace), "--format", "prometheus", "-o", str(tmp_path / "report.json")]) == 0
    text = capsys.readouterr().out
    assert text == prometheus_text(report.summary)
    value = re.compile(r"^tracelens_(\w+)\{(.*)\} (\S+)$")
    samples = [value.fullmatch(line).groups() for line in text.splitlines() if not line.startswith("#")]
    assert len({(name, labels) for name, labels, _ in samples}) == len(samples)
    step = next(float(number) for name, _, number in samples if name == "step_seconds")
    assert step == report.summary.steps.time_us / 1e6
    shares = sum(float(number) for name, _, number in samples if name == "time_ratio")
    assert shares == pytest.approx(1)
    points = json.loads(otlp_json(report.summary))["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    sent = {gauge["name"]: [p["asDouble"] for p in gauge["gauge"]["dataPoints"]] for gauge in points}
    assert sent["tracelens.step_seconds"] == [step]
    assert len(sent["tracelens.category_seconds"]) == len(report.summary.categories)


def test_a_name_of_a_trace_ends_no_line_of_metrics(tmp_path):
    name = 'x"} 1\ntracelens_step_seconds{file="y'
    report = tl.report(small_traces.write(tmp_path / "t.json", op=name, kernel=name))
    for line in prometheus_text(report.summary).splitlines():
        assert re.fullmatch(r'#.*|tracelens_\w+\{(\w+="([^"\\]|\\.)*",?)*\} \S+', line), line
