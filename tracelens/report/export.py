"""Frames as files: one as CSV, as JSON or as a workbook; several as a workbook."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from tracelens.errors import UsageError
from tracelens.files.atomic_write import whole_file
from tracelens.files.safe_text import escaped_json, is_formula_like
from tracelens.report.cells import plain_values
from tracelens.report.csv_report import field

if TYPE_CHECKING:
    import pandas as pd


def write_frame(path: Path, frame: pd.DataFrame, about: Mapping[str, Any]) -> None:
    """Writes ``path`` whole or not at all, in the format of its ending; ``about`` is what was asked, for JSON.

    UsageError for another ending.
    """
    content = _WRITERS[refuse_unknown(path)](frame, about)
    with whole_file(path) as file:
        file.write(content)


def write_text(path: Path, text: str) -> None:
    """Writes ``path`` whole or not at all."""
    with whole_file(path) as file:
        file.write(text.encode())


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Writes rows as CSV, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: field(value) if isinstance(value, str) else value for name, value in row.items()})
    write_text(path, text.getvalue())


def refuse_unknown(path: Path) -> str:
    """The ending of ``path``; UsageError for one that nothing writes."""
    if path.suffix not in _WRITERS:
        raise UsageError(f"{path}: the name of a table must end in {', '.join(_WRITERS)}")
    return path.suffix


def frame_csv(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    """As CSV: numbers with all their digits. A text that a spreadsheet would evaluate gets a leading apostrophe."""
    del about
    guarded = {name: [field(value) for value in plain_values(frame[name])] for name in frame.columns}
    return type(frame)(guarded, columns=frame.columns).to_csv(index=False, lineterminator="\n").encode()


def frame_json(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    """A frame as JSON: ``about`` and its ``rows``, an object each."""
    columns = {name: plain_values(frame[name]) for name in frame.columns}
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return escaped_json(orjson.dumps({**about, "rows": rows}, option=orjson.OPT_INDENT_2)) + b"\n"


def _xlsx(frame: pd.DataFrame, about: Mapping[str, Any]) -> bytes:
    del about
    return tables_xlsx({"table": frame}, {})


def tables_xlsx(frames: Mapping[str, pd.DataFrame], meanings: Mapping[str, str]) -> bytes:
    """A workbook of one sheet per frame, ``meanings`` as notes on headers. No date inside: same frames, same bytes."""
    from openpyxl import Workbook
    from openpyxl.writer.excel import ExcelWriter

    from tracelens.report.xlsx.workbook import EPOCH, DatelessZip

    workbook = Workbook()
    workbook.remove(workbook.worksheets[0])
    workbook.properties.creator = "tracelens"
    workbook.properties.created = workbook.properties.modified = EPOCH
    for title, frame in frames.items():
        _write_sheet(workbook.create_sheet(title), frame, meanings)
    content = io.BytesIO()
    with DatelessZip(content) as archive:
        ExcelWriter(workbook, archive).write_data()
    return content.getvalue()


def _write_sheet(sheet: Any, frame: pd.DataFrame, meanings: Mapping[str, str]) -> None:
    from openpyxl.comments import Comment
    from openpyxl.styles import Font, PatternFill
    from openpyxl.utils import get_column_letter

    from tracelens.report.xlsx.worksheet_rows import excel_value

    sheet.freeze_panes = "B2"
    font, fill = Font(bold=True, color="FFFFFF"), PatternFill("solid", fgColor="1F3A5F")
    for number, name in enumerate(frame.columns, 1):
        values = [excel_value(value) for value in plain_values(frame[name])]
        header = sheet.cell(1, number, str(name))
        header.font, header.fill = font, fill
        if meaning := meanings.get(str(name)):
            header.comment = Comment(meaning, "tracelens", height=80, width=300)
        for row, value in enumerate(values, 2):
            cell = sheet.cell(row, number)
            cell.value = value
            if isinstance(value, str):
                cell.data_type, cell.quotePrefix = "s", is_formula_like(value)
            else:
                cell.number_format = "#,##0.###" if isinstance(value, float) else "#,##0"
        longest = max((len(value) for value in values if isinstance(value, str)), default=0)
        sheet.column_dimensions[get_column_letter(number)].width = min(80, max(12, longest + 2, len(str(name)) + 2))


_WRITERS: dict[str, Callable[[Any, Mapping[str, Any]], bytes]] = {
    ".csv": frame_csv,
    ".json": frame_json,
    ".xlsx": _xlsx,
}
