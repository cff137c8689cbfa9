"""Old or new, whole, whatever happens: killed at every system call, failing at every call, two writers, planted links."""

from __future__ import annotations

import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import part
from tests.files.kill_sweeps import NAMES, SWEEPS, content, whole, write_file, write_folder
from tracelens.errors import OutputError
from tracelens.files import atomic_write
from tracelens.files.atomic_write import whole_file, whole_folder

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs ptrace")


def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_write, "_is_fixed", lambda target: target.exists())


@linux
@pytest.mark.parametrize(
    ("sweep", "every"),
    [
        *((sweep, 9) for sweep in SWEEPS),
        *(pytest.param(sweep, 2, marks=pytest.mark.sweep) for sweep in (*SWEEPS, "a_whole_report")),
    ],
)
def test_a_write_killed_at_any_system_call_leaves_old_or_new_and_the_next_run_cleans_up(
    sweep: str, every: int, repository: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.files.kill_sweeps", sweep, str(tmp_path), str(every)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CALLS = ("open", "mkdir", "fsync", "rename", "replace", "link", "scandir")


@contextmanager
def failing_at(number: int, code: int, monkeypatch: pytest.MonkeyPatch):
    """The ``number``-th of the calls that writing makes raises."""
    count = itertools.count(1)

    def guarded(real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **given: object) -> object:
            if next(count) == number:
                raise OSError(code, os.strerror(code))
            return real(*args, **given)

        return call

    with monkeypatch.context() as patched:
        for name in CALLS:
            patched.setattr(os, name, guarded(getattr(os, name)))
        yield lambda: next(count) > number


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_call_that_fails_leaves_the_old_report_or_makes_the_new_one(code: int, is_fixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    out, seen = tmp_path / "out", set()
    if is_fixed:
        fixed(monkeypatch)
    for number in itertools.count(1):
        write_folder(out, "old")
        with failing_at(number, code, monkeypatch) as was_reached:
            try:
                write_folder(out, "new")
                failed = False
            except OutputError as error:
                failed = str(error).startswith(f"cannot write {out}")
            reached = was_reached()
        found = {name: text for name, text in content(out).items() if not name.startswith(".")}
        assert found in (whole("old"), whole("new")), number
        assert found == whole("new") or failed, number
        seen.add(failed)
        if not reached:
            break
    assert seen == {True, False}


def test_threads_on_one_folder_all_succeed(tmp_path: Path) -> None:
    out, failed = tmp_path / "out", []

    def work(text: str) -> None:
        try:
            for _ in range(5):
                write_folder(out, text)
        except OutputError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(text,)) for text in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert content(out) in [whole(text) for text in "abcdef"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_in_the_way_is_neither_followed_nor_needed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    place = tmp_path / "place"
    place.mkdir()
    for pid in (os.getpid(), 1):
        (place / f".r.json.{pid}.partial").symlink_to(victim)
    (place / f".r.json.{'0' * 16}.partial").symlink_to(victim)
    write_file(place / "r.json", "new")
    write_folder(place / "r.json.report", "new")
    assert victim.read_text() == "precious"


def test_what_others_write_right_now_is_not_taken_for_abandoned(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "out") as slow:
        (slow / "a").write_text("slow")
        write_folder(tmp_path / "out", "fast")
        assert (slow / "a").exists()
    assert content(tmp_path / "out") == {**whole("fast"), "a": "slow"}


def test_the_current_folder_can_be_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    inode = tmp_path.stat().st_ino
    write_folder(Path(), "old")
    write_folder(Path(), "new")
    assert content(tmp_path) == whole("new")
    assert tmp_path.stat().st_ino == inode


def test_names_as_long_as_a_file_system_allows_are_written(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        write_file(tmp_path / name, "x")
        assert (tmp_path / name).read_text() == "x"
    with pytest.raises(OutputError, match="File name too long"):
        write_file(tmp_path / ("n" * 256), "x")


@pytest.mark.parametrize("name", ["a\x00b", "a\ud800b"])
@pytest.mark.parametrize("write", [write_file, write_folder])
def test_a_name_that_no_file_can_have_is_refused(write: Callable[[Path, str], None], name: str, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no file can have this name"):
        write(tmp_path / name, "new")
    assert not list(tmp_path.iterdir())


def test_modes_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "f", "x")
        write_folder(tmp_path / "d", "x")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("f", "d", "d/report.json")] == [0o640, 0o750, 0o640]
    (tmp_path / "d").chmod(0o700)
    write_folder(tmp_path / "d", "y")
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700


@pytest.mark.sweep
@pytest.mark.parametrize("delays", part([((0.6,),), ((0.1, 0.6),)], 2), ids=len)
def test_a_real_report_killed_at_random_times_is_old_or_new(
    delays: tuple[float, ...], repository: Path, tmp_path: Path
) -> None:
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    program = "import sys, tracelens; r = tracelens.report(sys.argv[1], device=sys.argv[3]); print('ready', flush=True)\nwhile True: r.write(sys.argv[2])"  # fmt: skip
    out = tmp_path / "out"
    for delay in delays:
        command = [sys.executable, "-c", program, str(trace), str(out), "h200"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delay)
            process.kill()
        if out.exists():
            assert sorted(path.name for path in out.iterdir()) == list(NAMES)
            assert (out / "report.json").read_bytes().endswith(b"}\n")
    write_folder(out, "next")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("path", ["", ".", "..", "/"])
def test_a_folder_is_no_file_to_write(path: str) -> None:
    with pytest.raises(OutputError, match="it is a folder"), whole_file(Path(path)):
        pass
