"""Everything that the command shows: lines, documents and progress, without anything that a terminal would obey.

``hint`` and the rest of the package speak through here too; a structure test allows no other ``print``.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TextIO, TypeVar

from tracelens.errors import OutputError
from tracelens.files.safe_text import escaped, no_commands, terminal_text

T = TypeVar("T")
_BAR = 18
#: The process that runs a command: what is imported as a library, or works for a command, shows no progress.
_command_pid = -1
#: The colors and weights that the verdict uses, and nothing else of what begins with an escape.
_STYLE = re.compile("(\x1b\\[[0-9;]{0,8}m)")
#: Between two columns of a line.
_GAP = re.compile(r"(?<! ) {2,}+")


def say(text: object = "", *, to_stderr: bool = False) -> None:
    """Shows one line on stdout unless ``to_stderr``, whatever the names in it hold. OutputError where that is full."""
    _show([terminal_text(str(text))], sys.stderr if to_stderr else sys.stdout)


def say_lines(text: str, *, styled: bool = False) -> None:
    """Shows several lines, in which names are on one line each already. ``styled``: own colors stay as they are.

    OutputError where the output is full.
    """
    parts = _STYLE.split(text) if styled else [text]
    clean = (part if at % 2 else "\n".join(map(terminal_text, part.split("\n"))) for at, part in enumerate(parts))
    _show("".join(clean).split("\n"), sys.stdout, folds=not styled)


def _show(lines: Iterable[str], stream: TextIO | None, *, folds: bool = True) -> None:
    """Folds each line at the width of a terminal."""
    width = terminal_width(stream) if folds else None
    shown = map(no_commands, lines)
    _put("\n".join(shown if width is None else [folded(line, width) for line in shown]) + "\n", stream)


def terminal_width(stream: TextIO | None) -> int | None:
    """None where it is not a terminal."""
    return shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None


def folded(line: str, width: int) -> str:
    """What does not fit stands below, under the column that it belongs to; a command stays whole, to be copied.

    >>> print(folded("events   cpu_op 924, cuda_runtime 504, kernel 463", 32))
    events   cpu_op 924,
             cuda_runtime 504,
             kernel 463
    """
    if len(line) <= width or line.lstrip().startswith("tracelens "):
        return line
    from textwrap import wrap

    columns = [gap.end() if gap.start() else gap.end() + 2 for gap in _GAP.finditer(line) if gap.end() <= width // 2]
    below = " " * (columns[-1] if columns else 0 if line[0].isupper() else 2)
    kept = wrap(line, width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)
    return "\n".join(each.rstrip() for each in kept)


def say_table(rows: Sequence[Sequence[str]], *, words: Collection[int]) -> None:
    say_lines(aligned(rows, words=words))


def aligned(rows: Sequence[Sequence[str]], *, words: Collection[int]) -> str:
    """Rows in columns: those whose places are in ``words`` to the left, numbers to the right."""
    rows = [[terminal_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        (c.ljust(w) if i in words else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    )
    return "\n".join("  ".join(cells).rstrip() for cells in lines)


def emit(document: str, *, has_commands: bool = False) -> None:
    """Puts a document (JSON, CSV, Markdown) on stdout as it is; what a terminal would obey as ``\\u009b``, and what a
    workflow's log would, unless it ``has_commands`` of ours.
    """
    _put(document if has_commands else escaped(document), sys.stdout)


class Progress:
    """Share, rate and remaining time of what takes longer than a second: one line on stderr that the next overwrites.

    Called with what is done and what there is to do, in units of which ``scale`` are one ``unit``. Without a terminal
    nothing is shown.
    """

    def __init__(self, what: str, unit: str, *, scale: float = 1.0) -> None:
        self._what, self._unit, self._scale = what, unit, scale
        self._started, self._shown = time.monotonic(), 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic() - self._started
        is_last = done >= total
        if now < 1 or (now - self._shown < 0.2 and not (is_last and self._shown)):
            return
        self._shown = now
        if sys.stderr is not None and sys.stderr.isatty():
            _put(f"\r{terminal_text(self._line(done, total, now))}{chr(10) if is_last else ''}", sys.stderr)
            sys.stderr.flush()

    def _line(self, done: int, total: int, seconds: float) -> str:
        share = min(done / total, 1.0) if total else 1.0
        bar = ("#" * round(_BAR * share)).ljust(_BAR, ".")
        rate = f"{done / self._scale / seconds:.3g} {self._unit}/s"
        left = f"{seconds / share - seconds:4.0f} s left" if share else ""
        count = f"{done / self._scale:,.0f} of {total / self._scale:,.0f} {self._unit}"
        return f" {self._what} [{bar}] {share:4.0%}  {count}, {rate} {left}".rstrip()


def with_progress(items: Sequence[T], what: str, unit: str) -> Iterator[T]:
    """The items one after another, with their ``Progress`` in a process that runs a command."""
    progress = Progress(what, unit) if os.getpid() == _command_pid else None
    for done, item in enumerate(items, 1):
        yield item
        if progress is not None:
            progress(done, len(items))


def prepare_streams() -> None:
    """Makes stdout and stderr take any text: what their encoding lacks is escaped. Progress is shown from here on."""
    global _command_pid
    _command_pid = os.getpid()
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "errors", "") in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
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
