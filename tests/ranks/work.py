"""What workers are given in tests of executors; by name, because processes import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tracelens.errors import InputError


def square(x: int) -> int:
    return x * x


def inverse(x: int) -> float:
    return 1 / x


def refuses_three(x: int) -> int:
    if x == 3:
        raise InputError("three")
    return x


def dies_at_two(x: int) -> int:
    if x == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def dies_once_at_two(given: tuple[str, int]) -> int:
    marker = Path(given[0]) / "died"
    if given[1] == 2 and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return given[1]


def names_itself(given: tuple[str, int]) -> int:
    """The first time, says which process it is and waits to be killed."""
    pid = Path(given[0]) / "pid"
    if not pid.exists():
        pid.write_text(str(os.getpid()))
        time.sleep(600)
    return given[1]
