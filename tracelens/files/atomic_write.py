"""Files and folders that become what was asked for in one rename, or stay as they were.

What is being written stands beside its target under a random name, locked for as long as its process lives: what a
killed run left is found by its free lock and removed by the next one. On floor 0: whatever a user asked for is written
this way.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from gzip import GzipFile
from pathlib import Path
from typing import BinaryIO

from tracelens.errors import OutputError

_NEW_FILE = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
#: A file system allows 255 bytes; the random part and its marks take 30.
_LONGEST_STEM = 60
_AT_FDCWD, _EXCHANGE = -100, 2
#: A folder's own name cannot be exchanged: a mount point, the current folder, a file system or system without it.
_NOT_EXCHANGED = {errno.EBUSY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM, errno.EACCES}
_ATTEMPTS = 5


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well; otherwise ``path`` stays as it was.

    OutputError when it cannot be written: no such folder, no permission, a full disk.
    """
    _refuse_unnameable(path)
    made: Path | None = None
    try:
        _remove_abandoned(path.parent, path.name)
        made, descriptor = _new_file(path)
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            file.flush()
            os.fsync(descriptor)
            made.replace(path)
            made = None
        _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if made is not None:
            with suppress(OSError):
                made.unlink()


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


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A folder to fill; when the block ends well its entries replace those of the same name in ``path``, all or none.

    What else is in ``path`` stays. OutputError when it cannot be written.
    """
    _refuse_unnameable(path)
    target = Path(os.path.realpath(path))
    staging: Path | None = None
    descriptor = -1
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for folder in (target.parent, target):
            _remove_abandoned(folder, target.name)
        inside = _is_fixed(target)
        staging, descriptor = _new_folder(target / target.name if inside else target)
        yield staging
        _sync_tree(staging)
        _put_in_place(staging, target, inside=inside)
        _sync_folder(target.parent)
    except OutputError as error:
        raise OutputError(str(error).replace(os.fspath(staging), os.fspath(path)) if staging else str(error)) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def _put_in_place(staging: Path, target: Path, *, inside: bool) -> None:
    """In one step where the system has one: the folder appears, or changes places with the old one."""
    for _ in range(_ATTEMPTS):
        if not target.exists():
            with suppress(OSError):
                staging.rename(target)
                return
        if inside:
            break
        _link_others(target, staging)
        if _exchanged(staging, target):
            return
        break
    _swap_entries(staging, target)


def _link_others(source: Path, staging: Path) -> None:
    """What only ``source`` has, in ``staging`` too: further names of the same files, which no crash can lose."""
    for entry in sorted(source.iterdir()):
        copy = staging / entry.name
        if os.path.lexists(copy) or _is_ours(entry.name, source.name):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, copy, symlinks=True, copy_function=_link)
        else:
            _link(entry, copy)


def _link(source: str | os.PathLike[str], copy: str | os.PathLike[str]) -> None:
    try:
        os.link(source, copy, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(source, copy, follow_symlinks=False)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether two folders changed names in one step; False where the system or the file system cannot do that."""
    if not sys.platform.startswith("linux"):
        return False
    import ctypes

    with suppress(OSError):  # as private as the folder that it replaces
        one.chmod(stat.S_IMODE(other.stat().st_mode))
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    if exchange(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NOT_EXCHANGED:
        return False
    raise OSError(code, os.strerror(code), os.fspath(other))


def _swap_entries(staging: Path, target: Path) -> None:
    """Entries of ``staging`` take the place of those in ``target``, one by one; an interruption puts all back.

    What a killed run moved away is put back by the next one, from the folder that ends in ``.old``.
    """
    target.mkdir(exist_ok=True)
    old, descriptor = _new_folder(target / target.name, ".old")
    moved: list[str] = []
    try:
        for entry in sorted(staging.iterdir()):
            moved.append(entry.name)
            if os.path.lexists(target / entry.name):
                (target / entry.name).replace(old / entry.name)
            entry.replace(target / entry.name)
        done = old.with_suffix(".partial")
        old.rename(done)
        old = done
    except BaseException:
        _put_back(old, target, staging, moved)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
        os.close(descriptor)


def _restore(old: Path, target: Path) -> None:
    """Puts back what a killed run moved from ``target`` to ``old``."""
    aside, descriptor = _new_folder(target / target.name)
    try:
        _put_back(old, target, aside, [each.name for each in old.iterdir()])
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        os.close(descriptor)


def _put_back(old: Path, target: Path, staging: Path, names: list[str]) -> None:
    for name in names:
        if os.path.lexists(old / name):
            if os.path.lexists(target / name):
                (target / name).replace(staging / name)
            (old / name).replace(target / name)


def _remove_abandoned(folder: Path, name: str) -> None:
    """Removes what killed runs left of ``name`` in ``folder``, after putting back what they had moved away."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if _is_ours(entry.name, name) and not entry.is_symlink():
                _remove_if_free(Path(entry.path), folder)


def _remove_if_free(left: Path, target: Path) -> None:
    """A lock that is free, or a file of another user's, tells whether its writer lives."""
    try:
        descriptor = os.open(left, _FOLDER if left.is_dir() else os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return
    try:
        if not _lock(descriptor):
            return
        if left.is_dir():
            if left.suffix == ".old":
                _restore(left, target)
            shutil.rmtree(left, ignore_errors=True)
        else:
            left.unlink()
    except OSError:
        return
    finally:
        os.close(descriptor)


def _is_ours(entry: str, name: str) -> bool:
    return re.fullmatch(rf"\.{re.escape(_stem(name))}\.[0-9a-f]{{16}}\.(partial|old)", entry) is not None


def _stem(name: str) -> str:
    return os.fsencode(name)[:_LONGEST_STEM].decode("utf-8", "ignore")


def _random_name(path: Path, suffix: str = ".partial") -> Path:
    return path.with_name(f".{_stem(path.name)}.{secrets.token_hex(8)}{suffix}")


def _new_file(path: Path) -> tuple[Path, int]:
    """A file that did not exist, open and locked."""
    for _ in range(_ATTEMPTS):
        made = _random_name(path)
        descriptor = os.open(made, _NEW_FILE, 0o666)
        if _lock(descriptor) is not False and made.exists():
            return made, descriptor
        os.close(descriptor)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), os.fspath(path))


def _new_folder(path: Path, suffix: str = ".partial") -> tuple[Path, int]:
    """A folder that did not exist, open and locked."""
    for _ in range(_ATTEMPTS):
        made = _random_name(path, suffix)
        made.mkdir()
        if not hasattr(os, "O_DIRECTORY"):
            return made, os.open(os.devnull, os.O_RDONLY)
        with suppress(FileNotFoundError):  # removed as abandoned before it was locked
            descriptor = os.open(made, _FOLDER)
            if _lock(descriptor) is not False and made.exists():
                return made, descriptor
            os.close(descriptor)
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), os.fspath(path))


def _lock(descriptor: int) -> bool | None:
    """Locks what is open until it is closed; False where someone else has, None where there are no locks."""
    try:
        import fcntl
    except ImportError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_fixed(target: Path) -> bool:
    """Whether a folder must stay the one that it is: a mount point, where we stand, where nothing may be renamed."""
    if not target.exists():
        return False
    try:
        stands_there = Path.cwd().is_relative_to(target)
    except FileNotFoundError:  # the current folder was removed
        stands_there = False
    return os.path.ismount(target) or stands_there or not os.access(target.parent, os.W_OK)


def _sync_tree(folder: Path) -> None:
    for entry in sorted(folder.rglob("*"), reverse=True):
        if entry.is_dir() and not entry.is_symlink():
            _sync_folder(entry)
        elif entry.is_file():
            with entry.open("rb") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Names reach the disk; where a system cannot open folders it has no need to."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refuse_unnameable(path: Path) -> None:
    """OutputError for what no file can be called, as an experiment file may ask for it."""
    try:
        is_possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise OutputError(f"cannot write {path}: no file can have this name")


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {path}: {error.strerror or error}; any existing file is unchanged")
