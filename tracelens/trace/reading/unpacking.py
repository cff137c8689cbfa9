"""What a trace file is packed in, told by its first bytes, and the content as a stream.

gzip is inflated while it is read. All else goes through a temporary file, as events are looked up again later and
other packers cannot begin in the middle; it is no larger than the memory that the content may take.
"""

from __future__ import annotations

import bz2
import codecs
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
from typing import Any, BinaryIO

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.trace.reading.bytestream import GZIP_MAGIC, ByteStream, GzipFile, PlainFile

_BLOCK_BYTES = 1 << 20
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
_ERRORS = (
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
            except _ERRORS as error:
                if not self.size:
                    raise InputError(f"{source} is {packer} data, but damaged ({error}): pack it again") from error
                self.truncated = True
                self.problems.append(f"the {packer} data is damaged or ends early")
            file.flush()
            self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def read(self) -> bytes:
        block = self.read_at(self.consumed, _BLOCK_BYTES)
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
    while block := file.read(_BLOCK_BYTES):
        yield block


def _gzip(file: BinaryIO, source: str) -> Iterator[bytes]:
    import gzip

    return _blocks(gzip.GzipFile(fileobj=file))


def _bz2(file: BinaryIO, source: str) -> Iterator[bytes]:
    return _blocks(bz2.BZ2File(file))


def _xz(file: BinaryIO, source: str) -> Iterator[bytes]:
    return _blocks(lzma.LZMAFile(file))


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
        members = {m.filename: m for m in archive.infolist()[:_MOST_MEMBERS] if not m.is_dir()}
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
        raise InputError(f"{source} is an archive without a trace: its {len(names):,} files are none by their names")
    some = ", ".join(repr(name[-40:]) for name in sorted(traces)[:3])
    raise InputError(
        f"{source} is an archive of {len(traces):,} traces ({some}{' ...' if len(traces) > 3 else ''}): unpack it and "
        "name one, or compare its ranks by 'tracelens collectives FOLDER'"
    )


_PACKERS: tuple[tuple[bytes, str, _Unpack], ...] = (
    (GZIP_MAGIC, "gzip", _gzip),
    (b"BZh", "bzip2", _bz2),
    (b"\xfd7zXZ\x00", "xz", _xz),
    (b"\x28\xb5\x2f\xfd", "zstd", _zstd),
    (b"PK\x03\x04", "zip", _zip),
)
