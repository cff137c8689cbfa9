"""Files that are there whole or not at all: written under another name in the same folder, then renamed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from tracelens.errors import InputError


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well; otherwise ``path`` stays as it was.

    InputError when the folder cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        file = partial.open("w+b")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    done = False
    try:
        with file:
            yield file
        partial.replace(path)
        done = True
    finally:
        if not done:
            with suppress(FileNotFoundError):
                partial.unlink()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends well its entries replace those of the same name in ``path``.

    What else is in ``path`` stays. InputError when the folder above cannot be written to.
    """
    staging = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        staging.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    try:
        yield staging
        if not path.exists():
            staging.rename(path)
            return
        for entry in sorted(staging.iterdir()):
            target = path / entry.name
            if target.is_dir():
                shutil.rmtree(target)
            entry.replace(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
