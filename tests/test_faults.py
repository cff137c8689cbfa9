"""Verbs that write, ended or refused at one changing call after another; a lake that somebody else filled."""

# ruff: noqa: F811 - `work` is a fixture

from __future__ import annotations

import builtins
import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import part
from tests.test_attacks import WRITERS, given, tree, work  # noqa: F401 - work is a fixture
from tracelens.cli import main

#: By what a verb changes the disk, as far as Python calls it.
CHANGES = ("write", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "fsync", "chmod", "symlink")
#: Those that need no room on it.
NO_ROOM = ("unlink", "rmdir", "chmod")
KILLED, NOT_REACHED = 9, 100
some = pytest.mark.parametrize("command", part([each for each in WRITERS if "--executor" not in each], 40))
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork")


def in_a_child(command: list[str], number: int, at_call: Callable[[], None], changes: tuple[str, ...] = CHANGES) -> int:
    """Exit code of a command in a fork in which ``at_call`` comes before its ``number``-th call of ``changes``."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    seen, leave = 0, os._exit

    def guarded(call: Callable[..., Any], is_change: Callable[..., bool]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            nonlocal seen
            seen += is_change(*arguments, **named)
            if seen == number and is_change(*arguments, **named):
                at_call()
            return call(*arguments, **named)

        return run

    null_output()
    for name in changes:
        setattr(os, name, guarded(getattr(os, name), lambda *_, **__: True))
    os.open = guarded(os.open, lambda _, flags, *__, **___: bool(flags & (os.O_WRONLY | os.O_RDWR)))
    builtins.open = guarded(open, lambda _, mode="r", *__, **___: not set(mode).isdisjoint("wax+"))
    silent(command, lambda code: leave(code if seen >= number else NOT_REACHED))
    return 0


def silent(command: list[str], leave: Callable[[int], None]) -> None:
    """Runs a command that nobody sees, in a process that ends with ``leave`` of its exit code."""
    code = 70
    try:
        code = main(command)
    except SystemExit as stop:
        code = int(stop.code or 0)
    finally:
        leave(code)


def null_output() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)


def full() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def files(folder: Path, name: str) -> dict[str, bytes | str]:
    """Files and links below a folder whose names begin with ``name``; an empty folder is no output."""
    return {path: text for path, text in tree(folder).items() if path.startswith(name) and not (folder / path).is_dir()}


def whole(folder: Path) -> dict[str, bytes | str]:
    """The output without what a kill left of a new one beside it."""
    return {path: text for path, text in files(folder, "out").items() if ".partial" not in path}


@some
def test_a_verb_killed_before_any_changing_call_leaves_the_old_output_or_the_new_one(command: str, work: Path) -> None:
    """Old and new are trees of files: what a kill leaves under other names, the next run takes away."""
    words = given(command, work / "out")
    assert in_a_child(given(command, work / "new"), 10**9, full) == NOT_REACHED
    new = {name.replace("new", "out", 1) for name in files(work, "new")}
    for number in range(1, 60):
        before = whole(work)
        code = in_a_child(words, number, lambda: os._exit(KILLED))
        after = whole(work)
        # Skills are files of their own among those of others: each is whole, and the next run adds the rest
        is_part = command.startswith("skill") and set(after) <= new
        assert is_part or set(after) in (set(before), new, set()), (number, code, sorted(after))
        assert code in (KILLED, NOT_REACHED, 2), (number, code)
        if code != KILLED:
            break


@some
def test_a_disk_that_is_full_at_any_changing_call_is_a_sentence_and_leaves_nothing_half(
    command: str,
    work: Path,
) -> None:
    words = given(command, work / "out")
    assert in_a_child(given(command, work / "new"), 10**9, full) == NOT_REACHED
    new = {name.replace("new", "out", 1) for name in files(work, "new")}
    room = tuple(each for each in CHANGES if each not in NO_ROOM)
    for number in range(1, 60):
        code = in_a_child(words, number, full, room)
        names = set(files(work, "out"))
        assert names in (set(), new), (number, code, sorted(names))
        assert code in (0, 1, 2, NOT_REACHED), (number, code)
        if code in (2, NOT_REACHED):
            break


@some
def test_three_writers_of_one_output_at_once_leave_it_whole(command: str, work: Path) -> None:
    """The last one's, or that of one whose others were refused; nothing of the others lies beside it."""
    alone = []
    for _ in range(2):
        in_a_child(given(command, work / "out"), 10**9, full)
        alone.append(files(work, "out"))
    # Others say a time
    certain = {name: text for name, text in alone[0].items() if alone[1][name] == text}
    for _ in range(3):
        writers = [started(given(command, work / "out")) for _ in range(3)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in writers]
        assert min(codes) == (2 if command.startswith("extensions new") else 0), codes
        assert set(codes) <= {0, 2}, codes
        written = files(work, "out")
        assert set(written) == set(alone[0])
        assert {name: written[name] for name in certain} == certain


def started(command: list[str]) -> int:
    """The process of a fork that runs a command and says nothing."""
    if child := os.fork():
        return child
    null_output()
    silent(command, os._exit)
    return 0


@pytest.mark.parametrize(
    "content", part([b"", b"PAR1", b"PAR1" + b"\xff" * 4000 + b"PAR1", b"{}", b"LINK", b"FIFO"], 6)
)
def test_a_lake_of_strangers_is_a_sentence_or_left_out(content: bytes, work: Path, capsys) -> None:
    """Each of its tables in turn is no Parquet, damaged, a link to a file outside, or a pipe."""
    pytest.importorskip("duckdb")
    assert main(["ingest", "ranks", "--to", "lake", "--executor", "serial"]) == 0
    (work / "secret.json").write_text('{"secret": "canary"}')
    for path in sorted((work / "lake").rglob("*.parquet"))[:6]:
        kept = path.read_bytes()
        path.unlink()
        if content == b"LINK":
            path.symlink_to(work / "secret.json")
        elif content == b"FIFO":
            os.mkfifo(path)
        else:
            path.write_bytes(content)
        for asked in (["--list"], ["--ready", "steps"], ["select * from traces"]):
            capsys.readouterr()
            code = main(["query", "lake", *asked])
            shown = capsys.readouterr()
            assert code in (0, 1, 2, 3), (path, asked, shown.err)
            assert "canary" not in shown.out + shown.err
        path.unlink()
        path.write_bytes(kept)
