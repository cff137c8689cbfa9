"""Files and folders that become what was asked for in one rename, or stay as they were.

What is written stands next to its target, in a folder with a random name that is locked for as long as its process
lives: what a killed run left is found by its free lock and removed by the next one. On floor 0: whatever a user asked
for is written this way.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

from tracelens.errors import OutputError, UsageError

_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
#: A file system allows 255 bytes; the random part and its marks take 30.
_LONGEST_STEM = 60
_AT_FDCWD, _EXCHANGE = -100, 2
_ATTEMPTS = 5


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well; otherwise ``path`` stays as it was.

    OutputError when it cannot be written: no such folder, no permission, a full disk.
    """
    if path.name in ("", ".."):
        raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
    with _refusals(path), _aside(path, [path.parent], path) as aside:
        made = aside / path.name
        with made.open("x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        _sync_folder(path.parent)


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Writes ``path`` whole or not at all; OutputError as in ``whole_file``."""
    with whole_file(Path(path)) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_packed_file(path: Path, level: int = 6) -> Iterator[BinaryIO | GzipFile]:
    """As ``whole_file``, gzip when the name ends in ``.gz``: neither date nor place of writing is in the bytes."""
    with whole_file(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        with GzipFile(fileobj=file, mode="wb", compresslevel=level, mtime=0, filename="") as packed:
            yield packed


#: Endings of files that people ask for, and that few commands write.
_OF_FILES = frozenset({
    ".csv", ".gz", ".html", ".json", ".jsonl", ".md", ".parquet", ".pdf", ".png", ".prom", ".sarif", ".svg", ".txt",
    ".xlsx", ".xml",
})  # fmt: skip


def refuse_file_name(folder: Path) -> None:
    """UsageError where a folder would be made under the name of a file of another kind than the command writes."""
    if folder.suffix.lower() in _OF_FILES and not folder.is_dir():
        raise UsageError(
            f"{folder}: no {folder.suffix} file is written here; name a folder, or a file of a kind that --help lists"
        )


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends well its entries replace those of the same name in ``path``, all or none.

    What else is in ``path`` stays. OutputError when it cannot be written.
    """
    with _refusals(path):
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        inside = _is_fixed(target)
        with _aside(target / target.name if inside else target, [target.parent, target], target) as aside:
            new = aside / "new"
            new.mkdir()
            try:
                yield new
            except OutputError as error:
                raise OutputError(str(error).replace(os.fspath(new), os.fspath(path))) from error
            for entry in sorted(new.rglob("*"), reverse=True):
                if entry.is_dir() and not entry.is_symlink():
                    _sync_folder(entry)
                elif entry.is_file():
                    with entry.open("rb") as file:
                        os.fsync(file.fileno())
            _sync_folder(new)
            if inside or not _moved_at_once(new, target):
                _move_entries(aside, target)
            _sync_folder(target.parent)


def _moved_at_once(new: Path, target: Path) -> bool:
    """Whether the folder appeared as ``target``, or changed places with it: Linux can, in most file systems."""
    if not target.exists():
        with suppress(OSError):  # another run made it just now
            new.rename(target)
            return True
    ours = _name_of_ours(target)
    # What only ``target`` has: further names of the same files, which no crash can lose. As private as it is, too
    shutil.copytree(
        target, new, symlinks=True, copy_function=_link, dirs_exist_ok=True,
        ignore=lambda folder, names: (
            [name for name in names if os.path.lexists(new / name) or ours.fullmatch(name)]
            if folder == os.fspath(target) else []
        ),
    )  # fmt: skip
    os.utime(new)
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    try:
        exchange = ctypes.CDLL(None).renameat2
    except AttributeError:
        return False
    return bool(exchange(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(target), _EXCHANGE) == 0)


def _link(source: str, copy: str) -> None:
    try:
        os.link(source, copy, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, copy, follow_symlinks=False)


def _move_entries(aside: Path, target: Path) -> None:
    """Entries of ``new`` take the place of those in ``target``, one by one; an interruption puts all back.

    What a killed run moved to ``old`` is put back by the next one; under another name it is to be removed.
    """
    new, old = aside / "new", aside / "old"
    target.mkdir(exist_ok=True)
    old.mkdir()
    try:
        for entry in sorted(new.iterdir()):
            if os.path.lexists(target / entry.name):
                (target / entry.name).replace(old / entry.name)
            entry.replace(target / entry.name)
        old.rename(aside / "done")
    except BaseException:
        _put_back(aside, target)
        raise


def _put_back(aside: Path, target: Path) -> None:
    """Moves the entries of ``old`` to ``target``, and what has taken their places back to ``new``."""
    for entry in sorted((aside / "old").iterdir()) if (aside / "old").exists() else ():
        if os.path.lexists(target / entry.name):
            (target / entry.name).replace(aside / "new" / entry.name)
        entry.replace(target / entry.name)


@contextmanager
def _aside(path: Path, folders: list[Path], target: Path) -> Iterator[Path]:
    """A new folder next to ``path``, locked until the block ends, when it goes with all that is in it.

    What killed runs left of ``target`` in ``folders`` is removed before.
    """
    for folder in folders:
        _remove_abandoned(folder, target)
    made, descriptor = _locked_folder(path)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(path: Path) -> tuple[Path, int]:
    for _ in range(_ATTEMPTS):
        made = path.with_name(f".{_stem(path)}.{secrets.token_hex(8)}.partial")
        made.mkdir(0o700)
        if not hasattr(os, "O_DIRECTORY"):
            return made, os.open(os.devnull, os.O_RDONLY)
        with suppress(FileNotFoundError):  # removed as abandoned before it was locked
            descriptor = os.open(made, _FOLDER)
            if _lock(descriptor) is not False and made.exists():
                return made, descriptor
            os.close(descriptor)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), os.fspath(path))


def _remove_abandoned(folder: Path, target: Path) -> None:
    """Removes what killed runs left of ``target`` in ``folder``, after putting back what they had moved away."""
    ours = _name_of_ours(target)
    with suppress(OSError):
        for entry in os.scandir(folder):
            if not ours.fullmatch(entry.name) or entry.is_symlink():
                continue
            with suppress(OSError):
                descriptor = os.open(entry.path, _FOLDER)
                try:
                    if _lock(descriptor):  # its writer is dead
                        _put_back(Path(entry.path), target)
                        shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _name_of_ours(target: Path) -> re.Pattern[str]:
    return re.compile(rf"\.{re.escape(_stem(target))}\.[0-9a-f]{{16}}\.partial")


def _stem(path: Path) -> str:
    return os.fsencode(path.name)[:_LONGEST_STEM].decode("utf-8", "ignore")


def _lock(descriptor: int) -> bool | None:
    """Locks what is open until it is closed; False where someone else has, None where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def _is_fixed(target: Path) -> bool:
    """Whether a folder must stay the one that it is: a mount point, where we stand, where nothing may be renamed."""
    if not target.exists():
        return False
    with suppress(FileNotFoundError):  # the current folder was removed
        if Path.cwd().is_relative_to(target):
            return True
    return os.path.ismount(target) or not os.access(target.parent, os.W_OK)


def _sync_folder(folder: Path) -> None:
    """Names reach the disk; where a system cannot open folders it has no need to."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """OutputError for what the system refuses, and for a name that no file can have, as an experiment may ask."""
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise OutputError(f"cannot write {path}: no file can have this name")
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OutputError(f"cannot write {path}: {reason}; any existing file is unchanged") from error
