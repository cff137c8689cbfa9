"""What a command writes and prints is byte for byte the same from one process and from many."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.cli.verbs import VERBS, verb
from tracelens.files import executors

sys.path.insert(0, str(Path(__file__).resolve().parent / "ranks"))
sys.path.insert(0, str(Path(__file__).resolve().parent / "agents"))
import planted
import small_traces

#: Every command that can use several processes; a test says that none is left out. The others use one, whatever is read.
COMMANDS = {
    "collectives": ["{ranks}", "-o", "job.report"],
    "fuse": ["{ranks}", "-o", "fused.json.gz"],
    "ingest": ["{traces}", "--to", "lake"],
    "search": [
        "--model", "gpt3-175b", "--cluster", "a100-nvs4", "--strategy", "1d", "--global-batch", "1024", "--rules", "paper",
        "--top", "2", "--gpus", "64", "--sweep", "hbm_gb=80/160", "-o", "sweep.csv",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Traces of a job with a slow rank, and of two runs."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "ranks").mkdir()
    planted.Job(ranks=4, ranks_per_host=2, straggler=3, rounds=3).write(folder / "ranks")
    for run in range(2):
        small_traces.write(folder / "traces" / f"run{run}" / "rank0.json.gz", steps=2, kernel_us=100 + 20 * run)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def two_processes() -> Iterator[Executor]:
    with executors.IsolatedProcesses(2) as made:
        yield made


def ran(
    verb: str, inputs: dict[str, Path], folder: Path, executor: str, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str, dict[str, bytes]]:
    """Exit code, what was shown and every file written, in ``folder``."""
    folder.mkdir()
    with contextlib.chdir(folder):
        code = main([verb, *(word.format(**inputs) for word in COMMANDS[verb]), "--executor", executor])
    shown = capsys.readouterr()
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return code, shown.out, shown.err, {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.sweep
@pytest.mark.parametrize("verb", sorted(COMMANDS))
def test_one_process_and_two_write_and_print_the_same_bytes(
    verb: str,
    inputs: dict[str, Path],
    two_processes: Executor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if verb == "ingest":
        pytest.importorskip("pyarrow", reason="the lake extra is not installed")
        pytest.importorskip("duckdb", reason="the query extra is not installed")
    monkeypatch.setattr(executors, "IsolatedProcesses", lambda jobs: contextlib.nullcontext(two_processes))
    code, *one = ran(verb, inputs, tmp_path / "one", "serial", capsys)
    assert (code, *one) == ran(verb, inputs, tmp_path / "many", "processes", capsys)
    assert code == 0
    assert one[-1]


def test_no_command_that_can_use_several_processes_is_left_out() -> None:
    able = set()
    for name in VERBS:
        verb(name).configure(options := argparse.ArgumentParser(prog=name))
        if "--executor" in options.format_help():
            able.add(name)
    assert able == set(COMMANDS)
