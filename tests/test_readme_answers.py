"""README's examples answer the questions beside them: each figure is computed again from the trace or the device."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tracelens.cli import main
from tracelens.hardware import HardwareSpec

REPOSITORY = Path(__file__).resolve().parent.parent
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
EXAMPLE = REPOSITORY / "example_traces" / "moe_ep8"
STEPS = 3
#: A kernel that is faster in after.json.
FASTER = "FmhaBwdDQDKDV"


def questions() -> dict[str, str]:
    """Command -> question, of README's table."""
    rows = re.findall(r"^\| ([^|]+\?) \| `tracelens ([^`]+)` \|$", README, re.MULTILINE)
    return {command: question for question, command in rows}


def events(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["traceEvents"]


def kernels(path: Path) -> list[dict[str, Any]]:
    return sorted((each for each in events(path) if each.get("cat") == "kernel"), key=lambda each: each["ts"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that README names: a trace, one before and one after a change, the traces of a job."""
    made = tmp_path_factory.mktemp("readme")
    shutil.copytree(EXAMPLE, made / "traces")
    document = json.loads(gzip.decompress((EXAMPLE / "rank0.json.gz").read_bytes()))
    for name in ("trace.json", "before.json"):
        (made / name).write_text(json.dumps(document))
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel" and FASTER in event["name"]:
            event["dur"] /= 2
    (made / "after.json").write_text(json.dumps(document))
    return made


def step_ms() -> float:
    """The mean step on the GPU."""
    ranges = [
        each["dur"] for each in events(EXAMPLE / "rank0.json.gz")
        if each.get("cat") == "gpu_user_annotation" and each["name"].startswith("ProfilerStep") and each["dur"] > 10_000
    ]  # fmt: skip
    assert len(ranges) == STEPS
    return sum(ranges) / STEPS / 1e3


def number(pattern: str, out: str) -> float:
    found = re.search(pattern, out)
    assert found is not None, f"{pattern} is not in\n{out}"
    return float(found[1].replace(",", ""))


def says_where_time_goes_and_what_would_help(out: str) -> None:
    assert number(r"\bstep ([\d.]+) ms", out) == pytest.approx(step_ms(), abs=0.06)
    grouped = sum(each["dur"] for each in kernels(EXAMPLE / "rank0.json.gz") if "CompV3, m>" in each["name"])
    assert number(r"GroupedGEMM_fwd +([\d.]+)", out) == pytest.approx(grouped / STEPS / 1e3, abs=0.001)
    gain = number(r"Fix finding 1 \(exposed communication\) first to save up to ([\d.]+) ms", " ".join(out.split()))
    assert 0 < gain < step_ms()
    assert re.search(r"overlap .*send fewer bytes", " ".join(out.split()))


def says_what_changed_and_why(out: str) -> None:
    halved = sum(each["dur"] for each in kernels(EXAMPLE / "rank0.json.gz") if FASTER in each["name"]) / 2
    assert number(r"SDPA_bwd -([\d.]+) ms: kentry \d+ % faster", out) == pytest.approx(halved / STEPS / 1e3, abs=0.001)


def says_what_a_change_brings(out: str) -> None:
    assert number(r"step ([\d.]+) -> ", out) == pytest.approx(step_ms(), abs=0.06)
    saved = number(r"step ([\d.]+) -> ", out) - number(r"step [\d.]+ -> ([\d.]+) ms", out)
    before = [float(each) for each in re.findall(r"aten::(?:add)?mm +\d+ +([\d.]+)", out)]
    assert 0 < saved <= 0.1 * sum(before) + 0.1


def says_who_is_late_and_what_collectives_cost(out: str) -> None:
    ranks = [
        [each for each in kernels(EXAMPLE / f"rank{rank}.json.gz") if re.search("nccl|deep_ep", each["name"])]
        for rank in range(8)
    ]
    last = Counter(max(range(8), key=lambda rank: row[rank]["ts"]) for row in zip(*ranks, strict=True))
    ((rank, times),) = last.most_common(1)
    share = number(
        rf"rank {rank} is late on its own by [\d.]+ ms and last at (\d+) % of {len(ranks[0])} collectives", out
    )
    assert share == round(100 * times / len(ranks[0]))
    waited = number(r"spend ([\d.]+) of [\d.]+ ms waiting for the slowest rank", out)
    assert (
        0 < waited < number(r"spend [\d.]+ of ([\d.]+) ms waiting", out) == pytest.approx(STEPS * step_ms(), rel=0.01)
    )


def says_how_long_the_gemm_takes(out: str) -> None:
    rate = HardwareSpec.load("h200").matrix["bf16"]
    time_us = number(r"h200-sxm +([\d,.]+)", out)
    flops = 2 * 8192 * 28672 * 8192
    assert flops / rate.peak_tflops_s / 1e6 < time_us < 1.5 * flops / rate.peak_tflops_s / 1e6
    assert number(r"h200-sxm +[\d,.]+ +([\d,.]+)", out) == pytest.approx(flops / time_us / 1e6, rel=0.001)


def says_how_long_a_step_is(out: str) -> None:
    """Of a split that fits; the other line of the step, its tokens per second, gives the same time."""
    assert "does not fit" not in out
    step_s = number(r"64 x [^:]+: ([\d.]+) s per step", out)
    sequences = number(r"The global batch is ([\d,]+) sequences", out)
    assert number(r"([\d,.]+) tokens/s/GPU", out) == pytest.approx(sequences * 4096 / step_s / 64, rel=0.002)


def says_how_to_split(out: str) -> None:
    """The command that it prints takes as long as it says."""
    step_s = number(r"fastest: ([\d.]+) s per step on 8 GPUs", out)
    command = re.search(r"tracelens (project .+)", out)
    assert command is not None
    given = dict(re.findall(r"--([\w-]+) (\S+)", command[1]))
    names = {"zero": int, "micro-batch": int, "global-batch": int, "tp": int, "cp": int, "pp": int, "vpp": int}
    degrees = {name.replace("-", "_"): read(given[name]) for name, read in names.items() if name in given}
    found = tracelens.project("llama3-8b", "dgx-h100", gpus=8, sequence=4096, **degrees).projection
    assert found.infeasible is None
    assert found.step_us / 1e6 == pytest.approx(step_s, rel=0.02)


def says_how_many_requests_a_server_holds(out: str) -> None:
    """A long run at that load keeps the limits for 99 of 100 requests; one at the load at which they break does not.
    Requests that start together, and as many at the end, are left out.
    """
    held = int(number(r"holds up to (\d+) requests at once within the SLO", out))
    broken = int(number(r"The SLO breaks at (\d+) requests at once", out))
    limits = {"ttft_ms": number(r"TTFT ([\d.]+) ms, TPOT", out), "tpot_ms": number(r"TPOT ([\d.]+) ms \(assumed", out)}
    assert held < broken <= 1.125 * held + 1
    for concurrency, keeps in ((held, True), (broken, False)):
        found = tracelens.serve(
            "llama3-8b", "h100", concurrency=concurrency, requests=12 * concurrency,
            input="uniform:1024:0.2", output="uniform:128:0.2",
        )  # fmt: skip
        steady = found.requests.iloc[concurrency:-concurrency]
        assert all(steady[name].quantile(0.99) <= limit for name, limit in limits.items()) is keeps
        if keeps:
            assert number(r"SLO, ([\d.]+) requests/s", out) == pytest.approx(found.summary["requests_per_s"], rel=0.05)


ANSWERS: dict[str, Callable[[str], None]] = {
    "trace.json": says_where_time_goes_and_what_would_help,
    "compare": says_what_changed_and_why,
    "whatif": says_what_a_change_brings,
    "traces/": says_who_is_late_and_what_collectives_cost,
    "estimate": says_how_long_the_gemm_takes,
    "project": says_how_long_a_step_is,
    "search": says_how_to_split,
    "serve": says_how_many_requests_a_server_holds,
}


def test_the_table_has_a_question_for_each_answer_that_is_checked() -> None:
    assert {command.split()[0] for command in questions()} == set(ANSWERS)
    assert len(questions()) == len(re.findall(r"^\|.*\| `tracelens ", README, re.MULTILINE))


#: These take seconds, or are simulated again for as long.
LONG = ("serve", "traces/")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=pytest.mark.sweep if command.startswith(LONG) else (), id=command.split()[0])
        for command in questions()
    ],
)
def test_the_command_beside_a_question_answers_it(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert main(shlex.split(command)) == 0
    ANSWERS[command.split()[0]](capsys.readouterr().out)


def test_the_first_command_prints_the_verdict_and_writes_what_readme_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = re.search(r"tracelens (report (example_traces/\S+\.json\.gz))", README)
    assert found is not None
    written = re.search(r"writes `(\S+)/` \(([^)]+)\)", README)
    assert written is not None
    path = tmp_path / found[2]
    path.parent.mkdir(parents=True)
    shutil.copy(REPOSITORY / found[2], path)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(found[1])) == 0
    says_where_time_goes_and_what_would_help(capsys.readouterr().out)
    names = re.findall(r"`([\w.]+)`", written[2])
    assert names
    assert {each.name for each in (tmp_path / written[1]).iterdir()} >= set(names)
