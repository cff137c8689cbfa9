"""A local dask cluster of two workers gives the report that processes give; killing one of them loses nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tracelens.analysis.ranks.rank_comparison import compare_ranks
from tracelens.analysis.ranks.rank_files import find_traces
from tracelens.files.executors import open_executor
from tracelens.report.rank_report import RankReport

sys.path.insert(0, str(Path(__file__).resolve().parent / "ranks"))
from planted import Clock, Job

pytestmark = [
    # What distributed itself warns of is not ours to mend
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(find_spec("distributed") is None, reason="the dask extra is not installed"),
]

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[tuple[str, list[subprocess.Popen]]]:
    """(address of a scheduler, its two workers), of which the last test kills one."""
    from distributed import Client, LocalCluster

    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": tmp_path_factory.mktemp("cluster")}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    started: list[subprocess.Popen] = []
    with LocalCluster(n_workers=0, protocol="tcp", host="127.0.0.1", dashboard_address=None) as scheduler:
        worker = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler.scheduler_address]
        worker += ["--nworkers=1", "--nthreads=1", "--no-nanny", "--no-dashboard"]
        try:
            started += [subprocess.Popen(worker, env=environment, **quiet) for _ in range(2)]
            with Client(scheduler.scheduler_address, set_as_default=False) as client:
                client.wait_for_workers(2, timeout=600)
            yield scheduler.scheduler_address.removeprefix("tcp://"), started
        finally:
            for process in started:
                process.kill()
                process.wait()


def report(paths: list[Path], executor: str, progress=None) -> str:
    with open_executor(executor, jobs=2) as opened:
        return RankReport(compare_ranks(paths, executor=opened, progress=progress, name="job")).to_json()


@pytest.fixture
def paths(tmp_path) -> list[Path]:
    folder = tmp_path / "job"
    folder.mkdir()
    job = Job(
        ranks=12,
        ranks_per_host=4,
        straggler=7,
        rounds=4,
        padding=20,
        clocks={1: Clock(offset_us=4e6)},
        exchange_tb_s=0.2,
    )
    job.write(folder)
    return find_traces([str(folder)])


@pytest.mark.sweep
def test_dask_and_processes_give_the_same_report(cluster, paths):
    assert report(paths, f"dask://{cluster[0]}") == report(paths, "processes")


def test_killing_a_dask_worker_midway_loses_nothing(cluster, paths):
    address, workers = cluster
    seen = []

    def kill(done: int, total: int) -> None:
        seen.append(done)
        if done == 2:
            workers[0].send_signal(signal.SIGKILL)
            workers[0].wait()

    through_dask = report(paths, f"dask://{address}", kill)
    assert seen == list(range(1, 13))
    assert workers[0].poll() is not None
    assert workers[1].poll() is None
    assert through_dask == report(paths, "serial")


@pytest.mark.sweep
def test_a_process_killed_midway_loses_nothing(paths, monkeypatch):
    killed = []

    def kill(done: int, total: int) -> None:
        if done == 2 and not killed:
            children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
            own = [int(pid) for file in children for pid in file.read_text().split()]
            spawned = [pid for pid in own if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            os.kill(spawned[0], signal.SIGKILL)
            killed.append(spawned[0])

    assert report(paths, "processes", kill) == report(paths, "serial")
    assert killed
