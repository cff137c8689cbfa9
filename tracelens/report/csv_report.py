"""Sheets to a folder of CSV files, one per sheet, UTF-8."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.files.atomic_write import write_whole
from tracelens.files.safe_text import csv_cell
from tracelens.report.cells import Value, plain_values

if TYPE_CHECKING:
    from tracelens.report.assembly import Sheet


def write_csv(folder: str | PathLike[str], sheets: Sequence[Sheet]) -> None:
    """Writes ``<folder>/<sheet>.csv``, each whole or not at all. A text that a spreadsheet would evaluate gets a
    leading apostrophe; None is empty."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for sheet in sheets:
        write_whole(folder / f"{re.sub(r'[^0-9A-Za-z_. -]', '_', sheet.title)}.csv", csv_text(sheet))


def csv_text(sheet: Sheet) -> str:
    """One sheet as CSV: keys of the columns, numbers with all their digits, lines ending in a line feed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([column.key for column in sheet.columns])
    columns = [[field(value) for value in plain_values(sheet.frame[column.key])] for column in sheet.columns]
    writer.writerows(zip(*columns, strict=True))
    return out.getvalue()


def field(value: Value) -> Value:
    """A value as a CSV file holds it."""
    return csv_cell(value) if isinstance(value, str) else value
