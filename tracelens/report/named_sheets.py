"""Sheets by title, and the folder that they are written to: what every report is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from tracelens.errors import InputError, UsageError
from tracelens.report.assembly import Sheet, by_title
from tracelens.report.tracelens_headers import with_tracelens_headers
from tracelens.schema import KEYS, TRACELENS

if TYPE_CHECKING:
    import pandas as pd


class NamedSheets:
    """``sheets["GEMM"]`` is the sheet of that name as a DataFrame.

    ``named``: the same sheets with the column names that were chosen, which CSV files and the workbook have too.
    """

    def __init__(self, sheets: tuple[Sheet, ...], column_names: str = KEYS) -> None:
        if column_names not in (KEYS, TRACELENS):
            raise UsageError(f"column_names is {KEYS!r} or {TRACELENS!r}, not {column_names!r}")
        self.sheets = sheets
        self.named = tuple(map(with_tracelens_headers, sheets)) if column_names == TRACELENS else sheets

    def __getitem__(self, title: str) -> pd.DataFrame:
        """The sheet ``title``; UsageError, naming near ones, when the report has none."""
        found = by_title(self.named, title)
        if found is None:
            raise UsageError.unknown("sheet", title, self)
        return found.frame

    def __iter__(self) -> Iterator[str]:
        return iter([made.title for made in self.sheets])

    def __len__(self) -> int:
        return len(self.sheets)

    def __contains__(self, title: object) -> bool:
        return any(made.title == title for made in self.sheets)

    def to_csv(self, folder: str | PathLike[str]) -> Path:
        """Writes one CSV file per sheet."""
        from tracelens.report.csv_report import write_csv

        write_csv(folder, self.named)
        return Path(folder)


def refuse_folder(folder: Path, is_ours: Callable[[], bool], what: str) -> None:
    """InputError for a file, or where the folder above does not exist; UsageError for a folder with something else."""
    if not folder.absolute().parent.is_dir():
        raise InputError(f"cannot write {folder}: there is no folder {folder.parent}")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, but a report is a folder")
    if any(folder.iterdir()) and not is_ours():
        raise UsageError(f"{folder} exists and is not {what}; choose another folder with -o")
