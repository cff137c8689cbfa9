"""What a trace file is packed in, told by its first bytes, and the content as a stream."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from tracelens.errors import InputError
from tracelens.trace.reading.bytestream import GZIP_MAGIC, ByteStream, GzipFile, PlainFile
from tracelens.trace.reading.memory_limit import MemoryLimit


def unpacked(path: Path, file: BinaryIO, limit: MemoryLimit) -> ByteStream:
    """The content of an open file; InputError when it is empty."""
    start = file.read(2)
    if not start:
        raise InputError(f"{path.name} is empty: the profiler wrote nothing, record the trace again")
    file.seek(0)
    return GzipFile(path, file, limit) if start == GZIP_MAGIC else PlainFile(path, file, limit)
