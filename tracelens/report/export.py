"""Frames as files: CSV, JSON, workbooks."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.errors import UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.cells import columns_csv, frame_csv, plain_records
from tracelens.files.documents import json_encoded
from tracelens.files.safe_text import escaped_json
from tracelens.schema import column_title

if TYPE_CHECKING:
    import pandas as pd


def write_frame(path: Path, frame: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending; ``about`` is what was asked, for JSON.

    UsageError for another ending.
    """
    write_whole(path, _WRITERS[refuse_unknown(path)](frame, about))


def write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Writes rows as CSV, whole or not at all."""
    write_whole(path, columns_csv(columns, [[row.get(name) for row in rows] for name in columns]))


def refuse_unknown(path: Path, *others: str) -> str:
    """The ending of ``path``; UsageError for one that nothing writes. ``others``: what the caller writes itself."""
    if path.suffix not in (*_WRITERS, *others):
        raise UsageError(f"{path}: the name of a table must end in {', '.join((*_WRITERS, *others))}")
    return path.suffix


def frame_json(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    """A frame as JSON: ``about`` and its ``rows``, an object each."""
    document = {**about, "rows": plain_records(frame, list(frame.columns))}
    return escaped_json(json_encoded(document, orjson.OPT_INDENT_2)) + b"\n"


def meanings(verb: str) -> dict[str, str]:
    """What the figures and columns of a verb's files mean, by key (``meanings.toml``)."""
    text = resources.files("tracelens.report").joinpath("meanings.toml").read_text("utf-8")
    found: dict[str, str] = tomllib.loads(text)[verb]
    return found


def _xlsx(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    from tracelens.report.workbook import tables_xlsx

    # Who wrote a statement has named its columns
    return tables_xlsx({"table": frame}, {}, titles=str if "query" in about else column_title)


_WRITERS: dict[str, Callable[[Any, Mapping[str, Any]], bytes]] = {
    ".csv": lambda frame, _: frame_csv(frame),
    ".json": frame_json,
    ".xlsx": _xlsx,
}
