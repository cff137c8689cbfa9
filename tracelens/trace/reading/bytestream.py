"""The bytes of a trace file, uncompressed: streamed once, and any part of them again later."""

from __future__ import annotations

import contextlib
import importlib
import os
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.lazy.records import dataclass

try:
    # Inflates 3-4x faster than the standard library's zlib, with the same interface.
    _zlib = importlib.import_module("zlib_ng.zlib_ng")
except ImportError:
    _zlib = zlib
_ERRORS: tuple[type[Exception], ...] = (zlib.error, _zlib.error)

GZIP_MAGIC = b"\x1f\x8b"
_GZIP_WINDOW = 31
_BLOCK_BYTES = 32 * 1024
_PLAIN_BLOCK_BYTES = 1 << 20
# One block of a gzip bomb inflates to a thousand times its size: it is given out in portions.
_MOST_OUTPUT_BYTES = 4 << 20
_CHECKPOINT_BYTES = 16 << 20
# How much text is read between two looks at the memory in use.
_MEMORY_CHECK_BYTES = 4 << 20


class ByteStream(Protocol):
    """Uncompressed bytes in order, and again at random once they were read."""

    problems: list[str]
    truncated: bool
    consumed: int
    size: int

    def read(self) -> bytes:
        """The next bytes; empty at the end. ``consumed`` of ``size`` bytes of the file are used up to here."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Bytes read before, again; InputError when the file has changed since."""

    def close(self) -> None:
        """Let go of the file; ``read_at`` opens it again."""


class MemoryStream:
    """A trace that is in memory already."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.problems: list[str] = []
        self.truncated = False
        self.consumed = 0
        self.size = len(data)

    def read(self) -> bytes:
        block = self._data[self.consumed : self.consumed + _PLAIN_BLOCK_BYTES]
        self.consumed += len(block)
        return block

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass


class _File:
    """What plain and compressed files share: the open file, the promise that it has not changed, a limit on memory."""

    def __init__(self, path: Path, file: BinaryIO, limit: MemoryLimit | None) -> None:
        self._path = path
        self._file = file
        self._limit = limit
        self._given_bytes = 0
        self._checked_bytes = 0
        status = os.fstat(file.fileno())
        self._state = (status.st_size, status.st_mtime_ns)
        self.size = status.st_size
        self.consumed = 0
        self.problems: list[str] = []
        self.truncated = False

    def close(self) -> None:
        self._file.close()

    def _check_memory(self, given: int) -> None:
        self._given_bytes += given
        if self._limit is not None and self._given_bytes - self._checked_bytes >= _MEMORY_CHECK_BYTES:
            self._checked_bytes = self._given_bytes
            self._limit.check(self._path.name, text_bytes=self._given_bytes, file_bytes=self.consumed)

    def _reopened(self) -> BinaryIO:
        try:
            file = self._path.open("rb")
        except OSError as error:
            raise InputError(f"{self._path.name} can no longer be read: {error.strerror or error}") from error
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != self._state:
            file.close()
            raise InputError(f"{self._path.name} has changed since it was read: read it again")
        return file


class PlainFile(_File):
    """An uncompressed file."""

    def __init__(self, path: Path, file: BinaryIO, limit: MemoryLimit | None = None) -> None:
        super().__init__(path, file, limit)

    def read(self) -> bytes:
        block = self._file.read(_PLAIN_BLOCK_BYTES)
        self.consumed += len(block)
        self._check_memory(len(block))
        return block

    def read_at(self, offset: int, length: int) -> bytes:
        with self._reopened() as file:
            file.seek(offset)
            return file.read(length)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Checkpoint:
    """State of the decompressor where ``offset`` bytes were given out and ``position`` bytes of the file taken in."""

    offset: int
    position: int
    state: Any


class GzipFile(_File):
    """A gzip file of any number of members. What follows the last one, or comes after damage, is a ``problem``."""

    def __init__(self, path: Path, file: BinaryIO, limit: MemoryLimit | None = None) -> None:
        super().__init__(path, file, limit)
        self._inflater = _Inflater(file, _Checkpoint(offset=0, position=0, state=_zlib.decompressobj(_GZIP_WINDOW)))
        self._checkpoints: list[_Checkpoint] = []

    def read(self) -> bytes:
        inflater = self._inflater
        if not self._checkpoints or inflater.offset - self._checkpoints[-1].offset >= _CHECKPOINT_BYTES:
            self._checkpoints.append(inflater.checkpoint())
        block = inflater.read()
        self.consumed = inflater.position
        self._check_memory(len(block))
        if not block and inflater.problem:
            self.problems.append(inflater.problem)
            self.truncated = inflater.truncated
            inflater.problem = ""
        return block

    def read_at(self, offset: int, length: int) -> bytes:
        nearest = max((c for c in self._checkpoints if c.offset <= offset), key=lambda c: c.offset)
        parts: list[bytes] = []
        with self._reopened() as file:
            inflater = _Inflater(file, nearest)
            while inflater.offset < offset + length:
                before = inflater.offset
                if not (block := inflater.read()):
                    break
                parts.append(block[max(offset - before, 0) : offset + length - before])
        return b"".join(parts)


class _Inflater:
    """Inflates a file from a checkpoint on, member after member."""

    def __init__(self, file: BinaryIO, start: _Checkpoint) -> None:
        self._file = file
        self._state = start.state.copy()
        self._pending = b""
        self.offset = start.offset
        self.position = start.position
        self.problem = ""
        self.truncated = False
        self._done = False
        file.seek(start.position)

    def checkpoint(self) -> _Checkpoint:
        return _Checkpoint(offset=self.offset, position=self.position, state=self._state.copy())

    def read(self) -> bytes:
        """The next bytes; empty at the end of the last member, of the file, or at damage (then ``problem`` says so)."""
        while not self._done:
            data = self._pending or self._file.read(_BLOCK_BYTES)
            if not data:
                self._done = True
                self.truncated = True
                self.problem = "the gzip data ends early"
                break
            before = self._state.copy()
            block: bytes
            try:
                block = self._state.decompress(data, _MOST_OUTPUT_BYTES)
            except _ERRORS as error:
                self._done = True
                # All bytes are out when only the closing checksum is wrong.
                self.truncated = "check" not in str(error)
                self.problem = "the gzip data is damaged" if self.truncated else "the gzip data has a wrong checksum"
                block = _readable(before, data)
                self.offset += len(block)
                return block
            self._pending = self._state.unconsumed_tail
            self.position += len(data) - len(self._pending)
            if self._state.eof:
                self._next_member(self._state.unused_data)
            if block:
                self.offset += len(block)
                return block
        return b""

    def _next_member(self, rest: bytes) -> None:
        self.position -= len(rest)
        rest = rest or self._file.read(_BLOCK_BYTES)
        if len(rest) == 1:
            rest += self._file.read(_BLOCK_BYTES)
        if rest.startswith(GZIP_MAGIC):
            self._state = _zlib.decompressobj(_GZIP_WINDOW)
            self._pending = rest
            return
        self._done = True
        while rest and not rest.strip(b"\x00"):
            rest = self._file.read(_BLOCK_BYTES)
        if rest:
            self.problem = "data after the end of the gzip data was ignored"


def _readable(state: Any, data: bytes) -> bytes:
    """What a block gives before its damage."""
    parts: list[bytes] = []
    with contextlib.suppress(*_ERRORS):
        parts.extend(state.decompress(data[i : i + 1]) for i in range(len(data)))
    return b"".join(parts)
