"""Traces named by a URL: fetched through fsspec for as long as a command runs."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tracelens.errors import InputError, TracelensError, UsageError
from tracelens.files.say import Progress

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem  # type: ignore[import-untyped]

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
        try:
            yield [
                str(_fetch(text, Path(folder) / str(place))) if is_address(text) else text
                for place, text in enumerate(arguments)
            ]
        finally:
            _FOLDER.reset(token)


def folder_beside(path: Path) -> Path:
    """Where outputs go that lie beside their input: the current folder for what was fetched."""
    folder = _FOLDER.get()
    return Path() if folder is not None and path.is_relative_to(folder) else path.parent


def _fetch(address: str, into: Path) -> Path:
    """The file at an address, or the folder of files at one that ends with a slash."""
    parts = urlsplit(address)
    # A user's name and what follows a question mark may open the store to those who read them.
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    try:
        store, found = _store(address)
        files = sorted(store.find(found)) if shown.endswith("/") else [found]
        if not files:
            raise InputError(f"{shown}: nothing was found there; check the address")
        top = into / (parts.hostname or parts.scheme) / (PurePosixPath(parts.path).name or "traces")
        for name in files:
            inside = PurePosixPath(name).relative_to(found) if name != found else PurePosixPath()
            if ".." in inside.parts:
                raise InputError(f"{shown}: {name!r} is not a path inside that folder")
            target = top / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            _copy(store, name, target)
        return top
    except TracelensError:
        raise
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


def _copy(store: AbstractFileSystem, name: str, target: Path) -> None:
    from fsspec.callbacks import Callback  # type: ignore[import-untyped]

    progress = Progress(f"fetching {target.name}", "MB", scale=1e6)

    class _Told(Callback):  # type: ignore[misc]
        def call(self, hook_name: str | None = None, **kwargs: object) -> None:
            progress(self.value, self.size or 0)

    store.get_file(name, str(target), callback=_Told())
