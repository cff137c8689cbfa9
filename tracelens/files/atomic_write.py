"""Atomic file writes: under another name in the same folder, then renamed.

On floor 0: whatever writes a file a user asked for writes it this way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tracelens.errors import OutputError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well; otherwise ``path`` stays as it was.

    OutputError when it cannot be written: no such folder, no permission, a full disk.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w+b") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with suppress(OSError):
            partial.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends well its entries replace those of the same name in ``path``, all or none.

    What else is in ``path`` stays. OutputError when it cannot be written.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        staging.mkdir(parents=True)
        yield staging
        if not path.exists():
            staging.rename(path)
            return
        _swap(staging, path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _swap(staging: Path, path: Path) -> None:
    """Entries of ``staging`` take the place of those in ``path``; an interruption puts back what was there."""
    old = staging.with_suffix(".old")
    old.mkdir()
    moved: list[Path] = []
    try:
        for entry in sorted(staging.iterdir()):
            target = path / entry.name
            moved.append(target)
            if target.exists():
                target.replace(old / entry.name)
            entry.replace(target)
    except BaseException:
        for target in moved:
            if (old / target.name).exists():
                if target.exists():
                    target.replace(staging / target.name)
                (old / target.name).replace(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {error.strerror or error}; any existing file is unchanged")
