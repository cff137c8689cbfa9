"""A trace file as readers see it: its name, its first bytes, and its content as a stream, whole, or as a file."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import field
from pathlib import Path

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit
from tracelens.files.remote import is_address
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.bytestream import ByteStream, PlainFile
from tracelens.trace.reading.chrome.event_list import FIRST_BYTES, PIECE_BYTES, Progress
from tracelens.trace.reading.unpacking import TRACE_ENDINGS, unpacked


@dataclass(slots=True, kw_only=True)
class Source:
    """``start``: the first bytes of the content, already taken from ``stream``; ``is_whole``: there are no more."""

    name: str
    path: Path
    stream: ByteStream
    start: bytes
    is_whole: bool
    limit: MemoryLimit
    piece_bytes: int = PIECE_BYTES
    progress: Progress | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _file: Path | None = None

    @classmethod
    @contextmanager
    def opened(
        cls, path: Path, *, limit: MemoryLimit, piece_bytes: int = PIECE_BYTES, progress: Progress | None = None
    ) -> Iterator[Source]:
        """The file, unpacked; InputError when it is not there, is a folder, or is empty."""
        path = _in_folder(path)
        try:
            file = path.open("rb")
        except FileNotFoundError as error:
            raise InputError(f"there is no file {str(path)!r}{_hint(path)}") from error
        except IsADirectoryError as error:
            raise InputError(
                f"{str(path)!r} is a folder, not a trace file: name one, "
                "or compare its ranks by 'tracelens collectives'"
            ) from error
        with file:
            stream = unpacked(path, file, limit)
            blocks, length = [], 0
            while length < FIRST_BYTES and (block := stream.read()):
                blocks.append(block)
                length += len(block)
            source = cls(
                name=path.name,
                path=path,
                stream=stream,
                start=b"".join(blocks),
                is_whole=length < FIRST_BYTES,
                limit=limit,
                piece_bytes=piece_bytes,
                progress=progress,
            )
            with source._open:
                yield source

    def blocks(self) -> Iterator[bytes]:
        """The content from its start, once. The stream looks at the memory in use."""
        yield self.start
        while block := self.stream.read():
            if self.progress is not None:
                self.progress(self.stream.consumed, self.stream.size)
            yield block

    def whole(self) -> bytes:
        """All of the content."""
        return b"".join(self.blocks())

    def file(self) -> Path:
        """The content as a file: the file itself, or what it unpacks to, for as long as the source is open."""
        if self._file is None:
            self._file = self.path if isinstance(self.stream, PlainFile) else self._unpacked_file()
        return self._file

    def damage(self, what: str, position: int | None = None) -> InputError:
        """The sentence on content that is damaged."""
        place = "" if position is None else f" at byte {position:,}"
        return InputError(f"{self.name} is {what}, but damaged{place}: record or export it again")

    def _unpacked_file(self) -> Path:
        path = Path(self._open.enter_context(tempfile.TemporaryDirectory(prefix="tracelens-"))) / "content"
        written = 0
        with path.open("wb") as target:
            for block in self.blocks():
                written += len(block)
                self.limit.check_unpacked(self.name, written)
                target.write(block)
        return path


def _hint(path: Path) -> str:
    """What helps where the path was a URL, of whose two slashes a path keeps one."""
    store, slash, rest = str(path).partition(":/")
    if not slash or not is_address(f"{store}://{rest}"):
        return ""
    return ": commands fetch what a URL names; in Python, load(fsspec.open_local('simplecache::URL'))"


def _in_folder(path: Path) -> Path:
    """The one trace below a folder, as TensorBoard's profilers leave it; the folder itself where there is a choice."""
    if not path.is_dir():
        return path
    found = itertools.islice((p for p in sorted(path.rglob("*")) if p.name.endswith(TRACE_ENDINGS)), 2)
    traces = list(found)
    return traces[0] if len(traces) == 1 else path
