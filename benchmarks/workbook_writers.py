"""What writing a long sheet costs: ``python -m benchmarks.workbook_writers [ROWS]``; needs XlsxWriter and openpyxl.

Processor seconds of this package's writer, of XlsxWriter with constant memory and of openpyxl's write-only workbook, in
turn, for one sheet of twelve numbers and four texts per row, with a bold header and a number format.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pandas as pd
import xlsxwriter
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Font

from tracelens.analysis.verdict.summary import DeviceSummary, InputSummary, Summary
from tracelens.report.assembly import Sheet
from tracelens.report.workbook import write_workbook
from tracelens.schema import text, us

_NUMBERS, _TEXTS = 12, 4
_FORMAT = "#,##0.000"


def sheet(rows: int) -> Sheet:
    """Times and names, half of the names distinct."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({f"time_{i}": rng.random(rows) * 1e4 for i in range(_NUMBERS)})
    for i in range(_TEXTS):
        frame[f"name_{i}"] = [f"void at::native::kernel<{n}>(float*)" for n in rng.integers(0, rows // 2, rows)]
    columns = [us(f"time_{i}", "A time.") for i in range(_NUMBERS)]
    names = [text(f"name_{i}", "A name.", width=40) for i in range(_TEXTS)]
    return Sheet(title="calls", frame=frame, columns=(*columns, *names))


def ours(made: Sheet, path: Path) -> None:
    device = DeviceSummary(id=None, label="none", matched_by="none")
    summary = Summary(input=InputSummary(file="none", events=0), device=device)
    write_workbook(path, [made], summary)


def by_xlsxwriter(made: Sheet, path: Path) -> None:
    book = xlsxwriter.Workbook(str(path), {"constant_memory": True, "strings_to_formulas": False})
    page, number = book.add_worksheet(made.title), book.add_format({"num_format": _FORMAT})
    page.write_row(0, 0, [column.title for column in made.columns], book.add_format({"bold": True}))
    for row, values in enumerate(made.frame.itertuples(index=False), 1):
        for column, value in enumerate(values):
            if column < _NUMBERS:
                page.write_number(row, column, value, number)
            else:
                page.write_string(row, column, value)
    book.close()


def by_openpyxl(made: Sheet, path: Path) -> None:
    book = openpyxl.Workbook(write_only=True)
    page = book.create_sheet(made.title)

    def cell(value: object) -> WriteOnlyCell:
        found = WriteOnlyCell(page, value)
        if isinstance(value, float):
            found.number_format = _FORMAT
        return found

    header = [cell(column.title) for column in made.columns]
    for each in header:
        each.font = Font(bold=True)
    page.append(header)
    for values in made.frame.itertuples(index=False):
        page.append([cell(value) for value in values])
    book.save(path)


def cpu_s(write: Callable[[Sheet, Path], None], made: Sheet, path: Path) -> float:
    start = time.process_time()
    write(made, path)
    return time.process_time() - start


def main() -> None:
    made = sheet(int(sys.argv[1]) if len(sys.argv) > 1 else 39_000)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.xlsx"
        for write in (ours, by_xlsxwriter, by_openpyxl):
            seconds = min(cpu_s(write, made, path) for _ in range(3))
            size_mb = path.stat().st_size / 1e6
            sys.stdout.write(f"{write.__name__:<15} {seconds:6.2f} CPU s {size_mb:7.2f} MB, {len(made.frame):,} rows\n")


if __name__ == "__main__":
    main()
