"""Verbs that write traces again: cut, without names, in other formats."""

from __future__ import annotations

from dataclasses import MISSING
from pathlib import Path

from tracelens.lazy.records import dataclass
from tracelens.option_fields import option


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceToTrace:
    """What is read, and where the result goes."""

    trace: Path = option("Kineto trace, .json or .json.gz", MISSING, kind=Path, flags=("trace",))
    output: Path = option(
        "file to write, .json or .json.gz", MISSING, kind=Path, metavar="FILE", flags=("-o", "--output")
    )
