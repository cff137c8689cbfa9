"""Progress: nothing before a second or without a terminal, then share, rate and what is left."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.files import say
from tracelens.files.say import Progress, folded, with_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    return now


def test_what_takes_no_second_shows_nothing(clock, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = Progress("reading", "ranks")
    for done in range(1, 9):
        clock[0] += 0.1
        progress(done, 8)
    assert screen.getvalue() == ""


def test_rate_and_remaining_time_are_said(clock, monkeypatch):
    """10 of 40 in 5 s are 2 a second, so 30 more take 15 s."""
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = Progress("reading", "ranks")
    clock[0] += 5
    progress(10, 40)
    line = screen.getvalue()
    assert line.startswith("\r")
    assert "25%  10 of 40 ranks, 2 ranks/s   15 s left" in line
    clock[0] += 15
    progress(40, 40)
    assert screen.getvalue().endswith("0 s left\n")


def test_bytes_are_shown_in_their_unit(clock, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = Progress("reading", "MB", scale=1e6)
    clock[0] += 2
    progress(100_000_000, 200_000_000)
    assert "100 of 200 MB, 50 MB/s" in screen.getvalue()


@pytest.mark.parametrize(("is_command", "is_terminal"), [(False, True), (True, False), (True, True)])
def test_only_a_command_on_a_terminal_tells(is_command, is_terminal, clock, monkeypatch):
    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setattr(say, "_command_pid", say.os.getpid() if is_command else -1)
    for _ in with_progress([1, 2, 3], "searching", "points"):
        clock[0] += 2
    assert ("3 of 3 points" in screen.getvalue()) == (is_command and is_terminal)


@given(st.text(alphabet="ab  ", max_size=120), st.integers(20, 60))
def test_what_is_folded_keeps_its_words_and_fits(line, width):
    """Only a word that is longer than the room below its column sticks out."""
    shown = folded(line.rstrip(), width)
    assert shown.split() == line.split()
    longest = max(map(len, line.split()), default=0)
    assert all(len(each) <= max(width, width // 2 + 2 + longest) for each in shown.split("\n"))
