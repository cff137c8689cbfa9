"""The bytes of a trace file: unpacked by what its first bytes say, streamed once, and any part of them again later.

gzip is inflated while it is read. All else goes through a temporary file, as events are looked up again later and
other packers cannot begin in the middle; it is no larger than the memory that the content may take.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import functools
import gzip
import importlib
import lzma
import os
import tarfile
import tempfile
import weakref
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.types.records import Record

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


class _File:
    """What plain and compressed files share: the open file, the promise that it has not changed, a limit on memory."""

    def __init__(self, path: Path, file: BinaryIO, limit: MemoryLimit | None = None) -> None:
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

    def read(self) -> bytes:
        block = self._file.read(_PLAIN_BLOCK_BYTES)
        self.consumed += len(block)
        self._check_memory(len(block))
        return block

    def read_at(self, offset: int, length: int) -> bytes:
        with self._reopened() as file:
            file.seek(offset)
            return file.read(length)


class _Checkpoint(Record, frozen=True, kw_only=True):
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
                # What a block gives before its damage
                parts: list[bytes] = []
                with contextlib.suppress(*_ERRORS):
                    parts.extend(before.decompress(data[i : i + 1]) for i in range(len(data)))
                block = b"".join(parts)
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


_UNPACKED_BLOCK_BYTES = 1 << 20
_START_BYTES = 512
# A packed archive of packed files has three layers.
_MOST_LAYERS = 4
_MOST_MEMBERS = 10_000
_TAR_MAGIC, _TAR_MAGIC_AT = b"ustar", 257
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16", b"{\x00": "utf-16-le", b"\x00{": "utf-16-be"}
#: What traces in archives and folders are called.
TRACE_ENDINGS = (
    ".json", ".json.gz", ".json.zst", ".json.bz2", ".json.xz", ".pb", ".pb.gz", ".sqlite", ".sqlite.gz", ".db",
    ".pftrace", ".perfetto-trace",
)  # fmt: skip
_UNPACKING_ERRORS = (
    OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, tarfile.TarError, RuntimeError,
    NotImplementedError, ValueError,
)  # fmt: skip


class SpooledFile:
    """What was unpacked, in a file without a name that goes with the last one who reads from it."""

    def __init__(self, content: Iterable[bytes], source: str, limit: MemoryLimit, packer: str) -> None:
        self.problems: list[str] = []
        self.truncated = False
        self.size = self.consumed = 0
        with tempfile.TemporaryFile() as file:
            try:
                for block in content:
                    self.size += len(block)
                    limit.check_unpacked(source, self.size)
                    file.write(block)
            except InputError:
                raise
            except _UNPACKING_ERRORS as error:
                if not self.size:
                    raise InputError(f"{source} is {packer} data, but damaged ({error}): pack it again") from error
                self.truncated = True
                self.problems.append(f"the {packer} data is damaged or ends early")
            file.flush()
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> bytes:
        block = self.read_at(self.consumed, _UNPACKED_BLOCK_BYTES)
        self.consumed += len(block)
        return block

    def read_at(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def close(self) -> None:
        """Nothing yet: whole events may be asked for later."""

    def file(self) -> BinaryIO:
        """The content from its start, as a file of its own."""
        file = os.fdopen(os.dup(self._descriptor), "rb")
        file.seek(0)
        return file


def unpacked(path: Path, file: BinaryIO, limit: MemoryLimit) -> ByteStream:
    """The content of an open file; InputError when it is empty, or holds none or several traces."""
    if not file.read(1):
        raise InputError(f"{path.name} is empty: the profiler wrote nothing, record the trace again")
    file.seek(0)
    start = file.read(_START_BYTES)
    file.seek(0)
    if start.startswith(GZIP_MAGIC):
        inside = GzipFile(path, file, limit).read()
        file.seek(0)
        stream: ByteStream = GzipFile(path, file, limit)
        if _packer(inside) is None:
            return stream
        spooled = SpooledFile(iter(stream.read, b""), path.name, limit, "gzip")
    elif (found := _packer(start)) is None:
        return PlainFile(path, file, limit)
    else:
        packer, unpack = found
        spooled = SpooledFile(unpack(file, path.name), path.name, limit, packer)
    for _ in range(_MOST_LAYERS):
        if (found := _packer(spooled.read_at(0, _START_BYTES))) is None:
            return spooled
        packer, unpack = found
        with spooled.file() as inner:
            outer, spooled = spooled, SpooledFile(unpack(inner, path.name), path.name, limit, packer)
        spooled.problems += outer.problems
        spooled.truncated |= outer.truncated
    raise InputError(f"{path.name} is packed more than {_MOST_LAYERS} times: unpack it first")


_Unpack = Callable[[BinaryIO, str], Iterator[bytes]]


def _packer(start: bytes) -> tuple[str, _Unpack] | None:
    """Name of what content that begins so is packed with, and what unpacks it; None for what is a trace itself."""
    for magic, packer, unpack in _PACKERS:
        if start.startswith(magic):
            return packer, unpack
    if start[_TAR_MAGIC_AT:].startswith(_TAR_MAGIC):
        return "tar", _tar
    return ("UTF-16", _utf16) if start[:2] in _UTF16 else None


def _blocks(file: Any) -> Iterator[bytes]:
    while block := file.read(_UNPACKED_BLOCK_BYTES):
        yield block


def _opened(opener: Callable[[BinaryIO], Any], file: BinaryIO, source: str) -> Iterator[bytes]:
    return _blocks(opener(file))


def _zstd(file: BinaryIO, source: str) -> Iterator[bytes]:
    openers: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("compression.zstd", lambda zstd: zstd.ZstdFile(file)),
        ("zstandard", lambda zstd: zstd.ZstdDecompressor().stream_reader(file, read_across_frames=True)),
        ("pyarrow", lambda arrow: arrow.CompressedInputStream(file, "zstd")),
    )
    for module, opened in openers:
        try:
            library = importlib.import_module(module)
        except ImportError:
            continue
        return _blocks(opened(library))
    raise InputError(f"{source} is zstd data: pip install 'tracelens-perf[zstd]', or unpack it first (zstd -d)")


def _zip(file: BinaryIO, source: str) -> Iterator[bytes]:
    with zipfile.ZipFile(file) as archive:
        members = {m.filename: m for m in archive.infolist()[:_MOST_MEMBERS] if not m.filename.endswith("/")}
        with archive.open(members[_single(list(members), source)]) as member:
            yield from _blocks(member)


def _tar(file: BinaryIO, source: str) -> Iterator[bytes]:
    with tarfile.open(fileobj=file, mode="r:") as archive:
        members = {}
        for _, member in zip(range(_MOST_MEMBERS), archive, strict=False):
            if member.isreg():
                members[member.name] = member
        if (inner := archive.extractfile(members[_single(list(members), source)])) is not None:
            yield from _blocks(inner)


def _utf16(file: BinaryIO, source: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(_UTF16[file.read(2)])("replace")
    file.seek(0)
    for block in _blocks(file):
        yield decoder.decode(block).encode("utf-8", "replace")


def _single(names: list[str], source: str) -> str:
    """The one trace among the members of an archive; InputError where there is none, or a choice."""
    traces = [name for name in names if name.lower().endswith(TRACE_ENDINGS)] or (names if len(names) == 1 else [])
    if len(traces) == 1:
        return traces[0]
    if not traces:
        raise InputError(
            f"{source} is an archive without a trace: none of its {len(names):,} files has a name like t.json"
        )
    some = ", ".join(repr(name[-40:]) for name in sorted(traces)[:3])
    raise InputError(
        f"{source} is an archive of {len(traces):,} traces ({some}{' ...' if len(traces) > 3 else ''}): unpack it and "
        "name one, or compare its ranks with 'tracelens collectives FOLDER'"
    )


_PACKERS: tuple[tuple[bytes, str, _Unpack], ...] = (
    (GZIP_MAGIC, "gzip", functools.partial(_opened, gzip.open)),
    (b"BZh", "bzip2", functools.partial(_opened, bz2.BZ2File)),
    (b"\xfd7zXZ\x00", "xz", functools.partial(_opened, lzma.LZMAFile)),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
    (b"PK\x03\x04", "zip", _zip),
)
