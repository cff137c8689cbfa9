"""Traces named by a URL: fetched through fsspec for as long as a command runs."""

from __future__ import annotations

import contextvars
import functools
import itertools
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.say import Progress

T = TypeVar("T")

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

#: What a command fetches at most, in bytes and in seconds: a store may be slow, or send without an end.
MOST_BYTES, MOST_S = 2**34, 3600.0
#: Stores whose addresses are fetched; any other text with :// is left as it is (dask://host:port is no file).
SCHEMES = ("s3", "gs", "gcs", "az", "abfs", "abfss", "hf", "hdfs", "sftp", "http", "https", "memory")
_ADDRESS = re.compile(rf"({'|'.join(SCHEMES)})://.")
_FOLDER: ContextVar[Path | None] = ContextVar("folder of what was fetched", default=None)


def is_address(text: str) -> bool:
    """
    >>> is_address("s3://bucket/rank0.json.gz"), is_address("dask://node7:8786"), is_address("traces/rank0.json")
    (True, False, False)
    """
    return _ADDRESS.match(text) is not None


@contextmanager
def fetched(arguments: Sequence[str]) -> Iterator[list[str]]:
    """The arguments of a command with each URL replaced by a file or folder that has its content, until the end.

    UsageError for a URL to write to; InputError, in one sentence, where one cannot be fetched.
    """
    if not any(map(is_address, arguments)):
        yield list(arguments)
        return
    for option, value in itertools.pairwise(arguments):
        if option in ("-o", "--output") and is_address(value):
            raise UsageError(f"{option} {value}: outputs are written to this machine's files only; copy them there")
    with tempfile.TemporaryDirectory(prefix="tracelens-") as folder:
        token = _FOLDER.set(Path(folder))
        left = _Left()
        try:
            yield [
                str(_fetch(text, Path(folder) / str(place), left)) if is_address(text) else text
                for place, text in enumerate(arguments)
            ]
        finally:
            _FOLDER.reset(token)


def folder_beside(path: Path) -> Path:
    """Where outputs go that lie beside their input: the current folder for what was fetched."""
    folder = _FOLDER.get()
    return Path() if folder is not None and path.is_relative_to(folder) else path.parent


class _Left:
    """What one command may still fetch."""

    def __init__(self) -> None:
        self._bytes, self._until = MOST_BYTES, time.monotonic() + MOST_S

    def take(self, count: int) -> None:
        """InputError where that is too much."""
        self._bytes -= count
        if self._bytes < 0:
            raise InputError(f"it is larger than the {MOST_BYTES / 1e9:.3g} GB that a command fetches; {_ELSEWHERE}")

    def within(self, work: Callable[[], T]) -> T:
        """What ``work`` returns. InputError where it takes too long: its thread ends with the process."""
        found: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                found.append(work())
            except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
                failed.append(error)

        thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
        thread.start()
        thread.join(max(self._until - time.monotonic(), 0))
        if failed:
            raise failed[0]
        if not found:
            raise InputError(f"it took longer than the {MOST_S / 60:.3g} min that a command waits; {_ELSEWHERE}")
        return found[0]


_ELSEWHERE = "download it with another program and name the file"


def _fetch(address: str, into: Path, left: _Left) -> Path:
    """The file at an address, or the folder of files at one that ends with a slash."""
    parts = urlsplit(address)
    # A user's name and what follows a question mark may open the store to those who read them.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        store, found = left.within(lambda: _store(address))
        files = left.within(lambda: sorted(store.find(found))) if shown.endswith("/") else [found]
        if not files:
            raise InputError(f"{shown}: nothing was found there; check the address")
        top = into / (parts.hostname or parts.scheme) / (PurePosixPath(parts.path).name or "traces")
        for name in files:
            inside = PurePosixPath(name).relative_to(found) if name != found else PurePosixPath()
            if ".." in inside.parts:
                raise InputError(f"{shown}: {name!r} is not a path inside that folder")
            target = top / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            left.within(functools.partial(_copy, store, name, target, left))
        return top
    except TracelensError as error:
        raise error if str(error).startswith(shown) else InputError(f"{shown}: {error}") from None
    except ImportError as error:
        raise InputError(f"{shown}: {error}; pip install 'tracelens-perf[remote]'") from error
    except FileNotFoundError as error:
        raise InputError(f"{shown}: nothing was found there; check the address") from error
    # What a store raises is its library's own: botocore's, aiohttp's, gcsfs's, ...
    except Exception as error:
        reason = " ".join(str(error).split())
        for secret in filter(None, (parts.query, parts.netloc.rpartition("@")[0])):
            reason = reason.replace(secret, "...")
        raise InputError(f"{shown} cannot be fetched: {reason[:200] or type(error).__name__}") from error


def _store(address: str) -> tuple[AbstractFileSystem, str]:
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]

    store, found = url_to_fs(address)
    return store, found.rstrip("/")


def _copy(store: AbstractFileSystem, name: str, target: Path, left: _Left) -> bool:
    """True, once it is done."""
    from fsspec.callbacks import Callback  # type: ignore[import-untyped]

    progress = Progress(f"fetching {target.name}", "MB", scale=1e6)

    class _Told(Callback):  # type: ignore[misc]
        taken = 0

        def call(self, hook_name: str | None = None, **kwargs: object) -> None:
            left.take(max(self.value, self.size or 0) - self.taken)
            self.taken = max(self.value, self.size or 0)
            progress(self.value, self.size or 0)

    store.get_file(name, str(target), callback=_Told())
    return True
