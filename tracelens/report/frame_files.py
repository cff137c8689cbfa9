"""A frame as a CSV file, as JSON, as a workbook of one sheet."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.errors import UsageError
from tracelens.report.cells import plain_values
from tracelens.report.text import is_formula_like, xml_text
from tracelens.whole import whole_file

if TYPE_CHECKING:
    import pandas as pd


def write_frame(path: Path, frame: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending; ``about`` is what was asked, for JSON.

    UsageError for another ending.
    """
    content = _WRITERS[refuse_unknown(path)](frame, about)
    with whole_file(path) as file:
        file.write(content)


def refuse_unknown(path: Path) -> str:
    """The ending of ``path``; UsageError for one that nothing writes."""
    if path.suffix not in _WRITERS:
        raise UsageError(f"{path}: a table is written as {', '.join(_WRITERS)}")
    return path.suffix


def _csv(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    """Numbers with all their digits. A text that a spreadsheet would evaluate gets a leading apostrophe."""
    del about
    guarded = {name: [_guarded(value) for value in plain_values(frame[name])] for name in frame.columns}
    return type(frame)(guarded, columns=frame.columns).to_csv(index=False, lineterminator="\n").encode()


def _json(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    columns = {name: plain_values(frame[name]) for name in frame.columns}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return orjson.dumps({**about, "rows": rows}, option=orjson.OPT_INDENT_2) + b"\n"


def _xlsx(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    from openpyxl import Workbook
    from openpyxl.styles import Font

    del about
    workbook = Workbook()
    sheet: Any = workbook.active
    sheet.append(list(frame.columns))
    columns: Sequence[Sequence[Any]] = [plain_values(frame[name]) for name in frame.columns]
    for values in zip(*columns, strict=True):
        sheet.append([_guarded(value) for value in values])
    for cell in sheet[1]:
        cell.font = Font(bold=True)
    sheet.freeze_panes = "B2"
    out = io.BytesIO()
    workbook.save(out)
    return out.getvalue()


def _guarded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return xml_text(f"'{value}" if is_formula_like(value) else value)


_WRITERS: dict[str, Callable[[Any, Mapping[str, Any]], bytes]] = {".csv": _csv, ".json": _json, ".xlsx": _xlsx}
