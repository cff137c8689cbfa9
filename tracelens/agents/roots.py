"""The folders below which an agent may read, and no path out of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tracelens.errors import InputError, UsageError
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.unpacking import TRACE_ENDINGS

#: Entries below the roots that are looked at.
_MOST_FILES = 10_000
#: What no path has: addresses, backslashes (of Windows and its shares), a home folder, a zero, half a character.
_NO_PATH = lazy_pattern(r"^~|^//|[a-zA-Z]:[/\\]|^file:|\\|[\0\ud800-\udfff]")
_LONGEST = 1000
_FILE_ENDINGS = (*TRACE_ENDINGS, ".toml")


@dataclass(frozen=True, slots=True)
class Roots:
    """Resolved folders; paths are given relative to any of them."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Roots:
        """InputError for one that is no folder."""
        for folder in folders:
            if not folder.is_dir():
                raise InputError(f"{folder} is not a folder: --root takes folders")
        return cls(tuple(folder.resolve() for folder in folders))

    def path(self, text: str) -> Path:
        """The file or folder that ``text`` names, links resolved.

        UsageError where it, or a file in it, is not below a root; InputError where there is none.
        """
        given = Path(text)
        if not text or _NO_PATH.search(text) or ".." in given.parts or len(text) > _LONGEST:
            raise UsageError(f"{text[:80]!r} is refused: give a path below the served folders")
        try:
            for folder in self.folders:
                found = folder / given  # an absolute path stands for itself
                if found.exists():
                    self._refuse_outside(found, text)
                    return found.resolve()
                if found.is_symlink():
                    self._refuse_outside(found, text)
            if given.is_absolute():
                self._refuse_outside(given, text)
        except (OSError, RuntimeError, ValueError):  # RuntimeError: links in a circle
            raise UsageError(f"{text[:80]!r} is refused: it is no file or folder that can be read") from None
        raise InputError(f"there is no {text[:80]!r} below the served folders; the tool files lists what there is")

    def _refuse_outside(self, path: Path, text: str) -> None:
        resolved = path.resolve()
        inside = [resolved, *(entry.resolve() for entry in resolved.rglob("*"))] if resolved.is_dir() else [resolved]
        if not all(any(entry.is_relative_to(folder) for folder in self.folders) for entry in inside):
            raise UsageError(f"{text[:80]!r} is refused: it leads out of the served folders")
        if not all(entry.is_file() or entry.is_dir() for entry in inside if entry.exists()):
            raise UsageError(f"{text[:80]!r} is refused: it is, or holds, something other than files and folders")

    def files(self) -> Iterator[dict[str, object]]:
        """Files that may be traces, by path relative to their root, with their size."""
        for folder in self.folders:
            for number, path in enumerate(sorted(folder.rglob("*"))):
                if number >= _MOST_FILES:
                    return
                if path.name.endswith(_FILE_ENDINGS) and path.is_file() and path.resolve().is_relative_to(folder):
                    yield {"path": path.relative_to(folder).as_posix(), "bytes": path.stat().st_size}
