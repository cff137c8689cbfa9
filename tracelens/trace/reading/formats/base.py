"""How a format is added: one module, with one function marked by ``@reader``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tracelens.registry import mark
from tracelens.trace.reading.source import Source
from tracelens.trace.table import TraceTable

#: From an opened file to its events as columns; InputError, in one sentence, when it cannot.
Reader: TypeAlias = Callable[[Source], TraceTable]
#: Whether the content of a file is of a format, by ``Source.start``.
Recognizer: TypeAlias = Callable[[Source], bool]


def reader(name: str, *, recognizes: Recognizer) -> Callable[[Reader], Reader]:
    """Marks the function that reads files of the format ``name``; ``recognizes`` looks at the content, not the name."""
    return mark("reader", name, recognizes=recognizes)
