"""Everything that the command shows: lines, documents and progress, without anything that a terminal would obey.

``hint`` and the rest of the package speak through here too; a structure test allows no other ``print``.
"""

from __future__ import annotations

import errno
import re
import sys
from collections.abc import Callable, Collection, Sequence
from typing import TextIO

from tracelens.errors import OutputError
from tracelens.files.safe_text import escaped, terminal_text

#: The colors and weights that the verdict uses, and nothing else of what begins with an escape.
_STYLE = re.compile("(\x1b\\[[0-9;]{0,8}m)")


def say(text: object = "", *, beside: bool = False, styled: bool = False) -> None:
    """Shows lines, each cleaned; ``beside`` the results, on stderr. ``styled``: own colors stay as they are.

    OutputError where the output is full.
    """
    parts = _STYLE.split(str(text)) if styled else [str(text)]
    clean = [part if index % 2 else "\n".join(map(terminal_text, part.split("\n"))) for index, part in enumerate(parts)]
    _put(f"{''.join(clean)}\n", sys.stderr if beside else sys.stdout)


def say_table(rows: Sequence[Sequence[str]], *, words: Collection[int]) -> None:
    """Shows ``aligned`` rows."""
    say(aligned(rows, words=words))


def aligned(rows: Sequence[Sequence[str]], *, words: Collection[int]) -> str:
    """Rows with their columns side by side: those whose places are in ``words`` to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        (c.ljust(w) if i in words else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def emit(document: str) -> None:
    """Puts a document (JSON, CSV, Markdown) on stdout as it is; what a terminal would obey as ``\\u009b``."""
    _put(escaped(document), sys.stdout)


def show_progress(line: str, *, is_last: bool) -> None:
    """One line on stderr that the next one overwrites, where that is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        _put(f"\r{terminal_text(line)}{chr(10) if is_last else ''}", sys.stderr)
        sys.stderr.flush()


def prepare_streams() -> None:
    """Makes stdout and stderr take any text: what their encoding lacks is escaped."""
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", "") == "strict" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def flush() -> None:
    """OutputError where what was shown did not arrive."""
    _guarded(sys.stdout, lambda stream: stream.flush())


def _put(text: str, stream: TextIO | None) -> None:
    _guarded(stream, lambda stream: stream.write(text))


def _guarded(stream: TextIO | None, act: Callable[[TextIO], object]) -> None:
    if stream is None:  # closed before the command began
        return
    try:
        act(stream)
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise BrokenPipeError from error
        raise OutputError(f"cannot write to the standard output: {error.strerror or error}") from error
