"""No process's trace takes another's place: whose rank it is, names that were taken, values that are refused."""

from __future__ import annotations

import gzip
import importlib.util
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tracelens as tl
from tracelens.errors import OutputError, UsageError
from tracelens.report.recorder import TraceFiles, current_rank

PYTHON = os.environ.get("TRACELENS_TORCH_PYTHON") or (sys.executable if importlib.util.find_spec("torch") else "")
LAUNCHED = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")
LAUNCHED += ("MV2_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


class Exported:
    """In place of torch's profiler: all that the writer of files asks of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def export_chrome_trace(self, path: str) -> None:
        Path(path).write_text(json.dumps({"traceEvents": [], "written by": self.text}))


def written(folder: Path) -> dict[str, str]:
    """Who wrote each file; nothing else may be there."""
    return {path.name: json.loads(gzip.decompress(path.read_bytes()))["written by"] for path in folder.iterdir()}


def write_one(folder: Path, start) -> None:
    """A process that nothing numbers writes one trace, as soon as all are there."""
    files = TraceFiles(folder, ranks=(), report=False)
    start.wait()
    write_and_wait(files, str(os.getpid()))


def write_and_wait(files: TraceFiles, text: str) -> None:
    files.write(Exported(text))
    files.wait()


def four_processes(folder: Path, *, alike: bool) -> None:
    """Four processes' traces are four whole files. ``alike``: all believe to be rank 0, as programs that a shell starts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    start = context.Barrier(4)
    target = write_as_main if alike else write_one
    processes = [context.Process(target=target, args=(folder, start)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    found = written(folder)
    assert Counter(found.values()) == Counter(str(process.pid) for process in processes)
    if alike:
        assert sorted(found) == ["rank0.json.gz", "rank0_2.json.gz", "rank0_3.json.gz", "rank0_4.json.gz"]
    else:
        assert sorted(found) == sorted(f"process{process.pid}.json.gz" for process in processes)


def write_as_main(folder: Path, start) -> None:
    multiprocessing.process._parent_process = None  # what a program that a shell starts is
    warnings.simplefilter("ignore")
    write_one(folder, start)


def test_four_processes_without_a_rank_leave_four_files(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).mkdir()
        four_processes(tmp_path / str(number), alike=True)
    (tmp_path / "spawned").mkdir()
    four_processes(tmp_path / "spawned", alike=False)


@pytest.mark.sweep
def test_four_processes_without_a_rank_leave_four_files_100_times(tmp_path):
    for number in range(100):
        (tmp_path / str(number)).mkdir()
        four_processes(tmp_path / str(number), alike=number % 10 != 0)


#: gloo ends a process, or loses a peer that has ended.
GLOO_FAILED = re.compile(r"terminate called without an active exception|Connection (?:closed|reset) by peer")
JOB = Path(__file__).with_name("recorded_job.py")


def run_job(launcher: list[str], *arguments: object, env: dict[str, str] | None = None) -> None:
    if not PYTHON:
        pytest.skip("PyTorch is not installed here, and TRACELENS_TORCH_PYTHON names no Python that has it")
    clean = {key: value for key, value in os.environ.items() if key not in LAUNCHED}
    clean |= {"PYTHONPATH": str(JOB.parents[2]), "TRACELENS_PACKAGES": str(Path(np.__file__).parents[1])}
    done = subprocess.run(
        [PYTHON, *launcher, JOB, *map(str, arguments)],
        env={**clean, "OMP_NUM_THREADS": "1", **(env or {})}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def ranks_recorded(folder: Path) -> dict[str, int]:
    """The rank that each file says of itself."""
    return {
        path.name: json.loads(gzip.decompress(path.read_bytes()))["distributedInfo"]["rank"]
        for path in folder.iterdir()
    }


FOUR = {f"rank{rank}.json.gz": rank for rank in range(4)}


@pytest.mark.sweep
def test_mp_spawn_without_rank_leaves_a_file_of_every_rank(tmp_path):
    """Set up inside of the block: what torch.distributed says counts when the file is written."""
    run_job([], tmp_path / "job", "inside", 20)
    for number in range(20):
        assert ranks_recorded(tmp_path / "job" / str(number)) == FOUR


@pytest.mark.sweep
def test_torchrun_and_a_second_run_into_the_folder(tmp_path):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(FOUR)}"]
    for _ in range(3):
        try:
            run_job(launcher, tmp_path, "before", 1)
            break
        except AssertionError as error:
            # What PyTorch does to its own processes, of which torchrun stops the others, says nothing of files
            if not GLOO_FAILED.search(str(error)):
                raise
            shutil.rmtree(tmp_path / "0", ignore_errors=True)
    first = {path: path.read_bytes() for path in (tmp_path / "0").iterdir()}
    run_job([], tmp_path, "before", 1, 1, 3)
    second = {"rank1_2.json.gz": 1, "rank3_2.json.gz": 3}
    assert ranks_recorded(tmp_path / "0") == FOUR | second
    assert {path: path.read_bytes() for path in first} == first


@pytest.mark.sweep
def test_processes_that_nothing_numbers_and_mp_spawn_below_a_slurm_task(tmp_path):
    run_job([], tmp_path / "job", "never", 1, env={"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1"})
    assert len(list((tmp_path / "job" / "0").glob("process*.json.gz"))) == 4
    run_job([], tmp_path / "slurm", "before", 100, env={"SLURM_PROCID": "0"})
    for number in range(100):
        assert ranks_recorded(tmp_path / "slurm" / str(number)) == FOUR


def distributed(rank: int | None, *, available: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        is_available=lambda: available, is_initialized=lambda: rank is not None, get_rank=lambda: rank
    )


@pytest.mark.parametrize(
    ("environment", "rank"),
    [
        ({}, None),
        ({"RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}, 5),
        ({"RANK": "none"}, None),
        # srun starts every rank
        ({"SLURM_PROCID": "11", "SLURM_NTASKS": "16", "SLURM_NNODES": "2"}, 11),
        ({"SLURM_PROCID": "11", "SLURM_NTASKS": "16", "SLURM_NNODES": "2", "LOCAL_RANK": "3"}, 11),
        # srun starts a launcher per node, which starts 8 ranks: the 4th of the second node is 1 * 8 + 3
        (
            {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"},
            11,
        ),
        # of the second node, but how many the first one has is not said
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "LOCAL_RANK": "3"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "LOCAL_RANK": "3"}, 3),
        # mpirun in an allocation: its processes inherit the number of the batch script
        ({"SLURM_PROCID": "0", "OMPI_COMM_WORLD_RANK": "6"}, 6),
        ({"PMI_RANK": "2"}, 2),
    ],
)
def test_launchers_say_the_rank_until_torch_distributed_does(environment, rank, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for said in (distributed(None), distributed(7, available=False)):
        monkeypatch.setitem(sys.modules, "torch.distributed", said)
        assert current_rank() == rank
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed(7))
    assert current_rank() == 7


def test_what_mp_spawn_starts_is_not_the_task_that_started_it(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert current_rank() == 1
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: SimpleNamespace(pid=1))
    assert current_rank() is None
    # A worker function that sets its own RANK, as init_method="env://" asks for
    monkeypatch.setenv("RANK", "4")
    assert current_rank() == 4


def test_a_rank_is_kept_after_the_job_is_taken_down(tmp_path, monkeypatch):
    files = TraceFiles(tmp_path, ranks=(3,), report=False)
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed(3))
    assert files.is_wanted()
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed(None))
    files.write(Exported("rank 3"))
    assert [path.name for path in files.wait()] == ["rank3.json.gz"]


def test_a_rank_that_turns_out_not_to_be_wanted_writes_nothing(tmp_path, monkeypatch):
    files = TraceFiles(tmp_path, ranks=(0,), report=False)
    assert files.is_wanted()
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed(3))
    files.write(Exported("rank 3"))
    assert files.probe(Exported("rank 3")) == 0
    files.keep_probe()
    assert files.wait() == ()
    assert written(tmp_path) == {}


def test_a_later_run_is_told_that_the_name_was_taken(tmp_path):
    first, second = (TraceFiles(tmp_path, ranks=(), report=False) for _ in range(2))
    first.write(Exported("first"))
    first.write(Exported("first, again"))
    assert [path.name for path in sorted(first.wait())] == ["rank0.json.gz", "rank0_2.json.gz"]
    with pytest.warns(UserWarning, match=r"rank0\.json\.gz was there already: wrote rank0_3\.json\.gz"):
        write_and_wait(second, "second")
    names = ("rank0.json.gz", "rank0_2.json.gz", "rank0_3.json.gz")
    assert written(tmp_path) == dict(zip(names, ("first", "first, again", "second"), strict=True))


REFUSED = {
    "ranks": ("all", 0, None, (0, "1"), (1.5,), (-1,), (True,)),
    "steps": (0, "3", 2.5, None, True),
    "skip": (-1, "no"),
    "warmup": (-1, None),
    "limit_mb": (0, -5, "1GB", float("nan"), True),
    "shapes": ("yes", 1, None),
    "memory": ("no",),
    "stacks": (2,),
    "report": ("html",),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_option_cannot_be_is_refused_with_its_name_before_anything_is_recorded(name, tmp_path):
    for value in REFUSED[name]:
        with pytest.raises(UsageError, match=rf"{name} must be .*{re.escape(repr(value)[:3])}|each of {name} must be"):
            tl.profile(tmp_path, **{name: value})
    if name in ("ranks", "report"):
        with pytest.raises(UsageError, match=name):
            tl.handler(tmp_path, **{name: REFUSED[name][0]})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ranks", [[0, 2], range(0, 3, 2), {0, 2}, (np.int64(0), np.int32(2))], ids=str)
def test_ranks_are_any_whole_numbers(ranks, tmp_path):
    assert sorted(tl.profile(tmp_path, ranks=ranks).options.ranks) == [0, 2]


def test_what_is_no_folder_is_refused_before_training_begins(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="folder to record into; got 5"):
        tl.profile(5)
    with pytest.raises(UsageError, match="by their names"):
        tl.profile(tmp_path, 3)
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot record into"):
            TraceFiles(place, ranks=(), report=False).open()


def test_a_folder_that_vanishes_costs_a_warning_and_not_the_training(tmp_path):
    (tmp_path / "file").write_text("")
    files = TraceFiles(tmp_path / "file", ranks=(), report=False)
    with pytest.warns(UserWarning, match="could not write a trace into"):
        files.write(Exported("never"))
    assert files.wait() == ()
