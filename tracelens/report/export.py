"""Frames and sheets as files: CSV, JSON, workbooks."""

from __future__ import annotations

import io
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.errors import UsageError
from tracelens.files.atomic_write import write_whole
from tracelens.files.cells import columns_csv, frame_csv, plain_records, plain_values
from tracelens.files.documents import json_encoded
from tracelens.files.safe_text import escaped_json

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.report.xlsx_file import Styles, Worksheet


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


def tables_xlsx(frames: Mapping[str, pd.DataFrame], meanings: Mapping[str, str]) -> bytes:
    """A workbook of one sheet per frame, ``meanings`` as notes on headers. No date inside: same frames, same bytes."""
    from tracelens.report.xlsx_file import Styles, write_xlsx

    styles = Styles()
    content = io.BytesIO()
    write_xlsx(content, [_worksheet(title, frame, meanings, styles) for title, frame in frames.items()], styles)
    return content.getvalue()


def _worksheet(title: str, frame: pd.DataFrame, meanings: Mapping[str, str], styles: Styles) -> Worksheet:
    from tracelens.report.xlsx_file import (
        ColumnStyles,
        Note,
        Style,
        Worksheet,
        column_letter,
        font,
        row_xml,
        rows_xml,
        solid,
    )

    names = [str(name) for name in frame.columns]
    columns = [plain_values(frame[name]) for name in frame.columns]
    header = styles.index(Style(font=font(11, bold=True, color="FFFFFF"), fill=solid("1F3A5F")))
    kinds = ["#,##0.###" if any(isinstance(value, float) for value in values) else "#,##0" for values in columns]
    text, quoted = styles.index(Style(font=font(11))), styles.index(Style(font=font(11), quoted=True))
    numbers = [styles.index(Style(font=font(11), number_format=kind)) for kind in kinds]
    body = rows_xml(columns, [ColumnStyles(number=n, text=text, quoted=quoted) for n in numbers], first_row=2)
    longest = (max((len(value) for value in values if isinstance(value, str)), default=0) for values in columns)
    notes = [Note(column=at, text=meanings[name], height=80) for at, name in enumerate(names, 1) if name in meanings]
    widths = [min(80, max(12, widest + 2, len(name) + 2)) for widest, name in zip(longest, names, strict=True)]
    return Worksheet(
        title=title,
        rows=chain([row_xml(1, 15, names, [header] * len(names)).encode()], body),
        widths=widths,
        filtered=f"A1:{column_letter(max(len(names), 1))}{len(frame) + 1}",
        notes=notes,
    )


_WRITERS: dict[str, Callable[[Any, Mapping[str, Any]], bytes]] = {
    ".csv": lambda frame, _: frame_csv(frame),
    ".json": frame_json,
    ".xlsx": lambda frame, _: tables_xlsx({"table": frame}, {}),
}
