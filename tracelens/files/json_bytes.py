"""Large documents as JSON and back: orjson, which ends its process where it is refused memory, is not refused any."""

from __future__ import annotations

from typing import Any

import orjson

from tracelens.files.memory_limit import unrefused


def encoded(document: Any, option: int | None = None) -> bytes:
    """``orjson.dumps``. MemoryError where the command has taken more than it may afterwards."""
    with unrefused():
        return orjson.dumps(document, option=option)


def decoded(text: bytes) -> Any:
    """``orjson.loads``. MemoryError where the command has taken more than it may afterwards."""
    with unrefused():
        return orjson.loads(text)
