"""A lost worker costs its input only, and every executor gives the same results."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from tracelens.errors import InputError, UsageError
from tracelens.files import executors
from tracelens.files.executors import DEFECT, DIED, IsolatedProcesses, Serial, open_executor, outcomes

# Spawned workers import this module by name: its folder is on their path because it is on ours
sys.path.insert(0, str(Path(__file__).resolve().parent / "ranks"))
import work


def results(executor, function, items):
    return {
        outcome.item: outcome.value if not outcome.error else outcome.error
        for outcome in outcomes(executor, function, items)
    }


def test_processes_and_serial_agree():
    with IsolatedProcesses(2) as processes:
        assert (
            results(processes, work.square, range(6))
            == results(Serial(), work.square, range(6))
            == {i: i * i for i in range(6)}
        )


def test_an_error_on_purpose_and_a_defect_cost_their_input_only():
    assert results(Serial(), work.refuses_three, range(4)) == {0: 0, 1: 1, 2: 2, 3: "three"}
    found = results(Serial(), work.inverse, [0, 1])
    assert found[1] == 1
    assert found[0].startswith(DEFECT)
    assert "ZeroDivisionError: division by zero" in found[0]


def test_a_worker_that_always_dies_costs_its_input_only():
    with IsolatedProcesses(2) as processes:
        assert results(processes, work.dies_at_two, range(5)) == {0: 0, 1: 1, 2: DIED, 3: 3, 4: 4}


def test_a_worker_killed_once_loses_nothing(tmp_path):
    items = [(str(tmp_path), i) for i in range(6)]
    with IsolatedProcesses(2) as processes:
        assert results(processes, work.dies_once_at_two, items) == {item: item[1] for item in items}


def test_a_worker_killed_from_outside_fails_its_call_only(tmp_path):
    items = [(str(tmp_path), i) for i in range(4)]
    with IsolatedProcesses(1) as processes:
        futures = [processes.submit(work.names_itself, item) for item in items]
        pid = tmp_path / "pid"
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.02)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        # as a bare executor the killed call fails and its queue goes on; ``outcomes`` gives it to a new worker
        assert isinstance(futures[0].exception(), BrokenProcessPool)
        assert [future.result() for future in futures[1:]] == [1, 2, 3]
        assert results(processes, work.names_itself, items) == {item: item[1] for item in items}


def test_an_unknown_executor_and_a_missing_scheduler_are_said(monkeypatch):
    with pytest.raises(UsageError, match="no executor 'proceses'"), open_executor("proceses"):
        pass
    pytest.importorskip("distributed")
    monkeypatch.setattr("tracelens.files.executors.ANSWERS_S", 1)
    with pytest.raises(InputError, match="no dask scheduler answers"), open_executor("dask://127.0.0.1:9"):
        pass


def test_at_least_one_worker():
    with pytest.raises(UsageError, match="jobs must be at least 1"):
        IsolatedProcesses(0)


def test_workers_do_not_run_the_script_that_started_them():
    """It may be standard input, and asks for workers without ``if __name__ == "__main__"``."""
    script = "from tracelens.files.executors import IsolatedProcesses\n"
    script += "with IsolatedProcesses(1) as processes: print(processes.submit(abs, -3).result())"
    done = subprocess.run([sys.executable], input=script, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("3\n", "")


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("100000 100000", 1), ("150000 100000", 2), ("-1", 4)])
def test_a_container_has_as_many_cores_as_it_has_time_of(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(executors, "_CPU_QUOTAS", ((tmp_path / "cpu.max",),))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert executors.available_cores() == cores
