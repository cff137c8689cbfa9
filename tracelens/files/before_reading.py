"""What stands between the name of a file that somebody else wrote and its content."""

from __future__ import annotations

import stat
from pathlib import Path

from tracelens.errors import InputError
from tracelens.files.memory_limit import hold


def before_reading(path: Path) -> None:
    """To be called before a file is opened; what else is wrong with it is said there.

    InputError for a pipe or a device: it may never end, and nothing of it can be read twice.
    """
    try:
        found = path.stat()
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        raise InputError(f"{path} is a pipe or a device: copy its content into a file first")
    hold(path.name, found.st_size)
