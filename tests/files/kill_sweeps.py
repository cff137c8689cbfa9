"""Writes that are killed at one system call after another: a program of its own, as a small process forks fast.

``python -m tests.files.kill_sweeps SWEEP FOLDER EVERY``: at each ``EVERY``-th stop (a call's way in or out). An assertion
that does not hold ends it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path

from tests.files.killed import killed_at
from tracelens.files import atomic_write
from tracelens.files.atomic_write import whole_file, whole_folder

NAMES = ("report.html", "report.json", "report.xlsx")


def write_folder(folder: Path, text: str) -> None:
    with whole_folder(folder) as staging:
        for name in NAMES[:2]:
            with whole_file(staging / name) as file:
                file.write(text.encode())
        (staging / "csv").mkdir()
        (staging / "csv" / "ops.csv").write_text(text)


def write_file(path: Path, text: str) -> None:
    with whole_file(path) as file:
        file.write(text.encode())


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def whole(text: str) -> dict[str, str]:
    return {**dict.fromkeys(NAMES[:2], text), "csv/ops.csv": text}


def _killed_at_each(run: Callable[[], None], before: Callable[[], None], after: Callable[[int], None]) -> int:
    """Runs ``run`` killed at one stop after another; the number of stops."""
    for number in itertools.count(1, int(sys.argv[3])):
        before()
        alive = killed_at(run, number)
        after(number)
        if not alive:
            break
    return number


def over_an_old_report(folder: Path) -> None:
    out, outcomes = folder / "t.report", set()

    def before() -> None:
        write_folder(out, "old")
        (out / "notes.txt").write_text("mine")

    def after(number: int) -> None:
        found = content(out)
        found.pop("notes.txt")
        assert found in (whole("old"), whole("new")), number
        outcomes.add(found["report.json"])
        write_folder(out, "next")
        assert content(out) == {**whole("next"), "notes.txt": "mine"}
        assert [path.name for path in folder.iterdir()] == ["t.report"]

    assert _killed_at_each(lambda: write_folder(out, "new"), before, after) > 60
    assert outcomes == {"old", "new"}


def the_first_report(folder: Path) -> None:
    out, outcomes = folder / "t.report", set()

    def before() -> None:
        for path in sorted(out.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        out.rmdir() if out.exists() else None

    def after(number: int) -> None:
        found = content(out) if out.exists() else {}
        assert found in ({}, whole("new")), number
        outcomes.add(found.get("report.json", "none"))
        write_folder(out, "next")
        assert content(out) == whole("next")
        assert [path.name for path in folder.iterdir()] == ["t.report"]

    assert _killed_at_each(lambda: write_folder(out, "new"), before, after) > 60
    assert outcomes == {"none", "new"}


def a_file(folder: Path) -> None:
    path = folder / "report.json"

    def after(number: int) -> None:
        assert path.read_text() in ("old", "new"), number
        write_file(path, "next")
        assert content(folder) == {"report.json": "next"}

    assert _killed_at_each(lambda: write_file(path, "new"), lambda: write_file(path, "old"), after) > 15


def where_folders_cannot_change_places(folder: Path) -> None:
    atomic_write._is_fixed = lambda target: target.exists()
    out = folder / "mounted"

    def before() -> None:
        write_folder(out, "old")
        (out / "notes.txt").write_text("mine")

    def after(number: int) -> None:
        atomic_write._remove_abandoned(out, out)
        found = content(out)
        assert found.pop("notes.txt") == "mine"
        assert found in (whole("old"), whole("new")), number

    _killed_at_each(lambda: write_folder(out, "new"), before, after)


def a_whole_report(folder: Path) -> None:
    """What ``report.write`` leaves of a workbook, a page and a document: all of one run, byte for byte."""
    import tracelens
    from benchmarks.fixed_cost import small_trace

    out, outcomes = folder / "t.report", set()
    trace = small_trace(folder / "t.json")
    reports = {name: tracelens.report(trace, device=device) for name, device in (("old", "mi300x"), ("new", "mi325x"))}
    sound = {}
    for name, report in reports.items():
        files = report.write(folder / name).iterdir()
        sound[name] = {path.name: path.read_bytes() for path in files}

    def after(number: int) -> None:
        found = {path.name: path.read_bytes() for path in out.iterdir()}
        (version,) = [name for name, files in sound.items() if files == found]
        outcomes.add(version)

    stops = _killed_at_each(lambda: reports["new"].write(out), lambda: reports["old"].write(out), after)
    reports["new"].write(out)
    assert sorted(path.name for path in folder.iterdir()) == ["new", "old", "t.json", "t.report"]
    assert stops > 100
    assert outcomes == {"old", "new"}


SWEEPS = {sweep.__name__: sweep for sweep in (over_an_old_report, the_first_report, a_file, where_folders_cannot_change_places)}  # fmt: skip

if __name__ == "__main__":
    {**SWEEPS, a_whole_report.__name__: a_whole_report}[sys.argv[1]](Path(sys.argv[2]))
