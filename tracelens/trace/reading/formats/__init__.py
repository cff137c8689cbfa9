"""The trace formats of profilers, one file each."""

from __future__ import annotations

import functools

from tracelens.registry import Registry, announced
from tracelens.trace.reading.source import Reader, Source

ENTRY_POINTS = "tracelens.readers"


@functools.cache
def readers() -> Registry:
    """Every reader by the name of its format, of this package and of installed ones, which come first."""
    own = Registry.collect_below("reader", __name__)
    installed = Registry.collect("reader", announced(ENTRY_POINTS))
    return Registry("reader", {**installed, **{key: own[key] for key in own if key not in installed}})


def reader_of(source: Source) -> Reader | None:
    for claim in readers().values():
        if claim.options["recognizes"](source):
            return claim.target
    return None
