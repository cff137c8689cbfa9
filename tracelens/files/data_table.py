"""Tables that a user gives, CSV and Parquet: every cell is checked before anything is computed from it, and the
headings and cells of published tables are understood.

Rows are counted as a spreadsheet shows them: the header is row 1.
"""

from __future__ import annotations

import csv
import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from tracelens.errors import InputError, OutputError
from tracelens.files.atomic_write import whole_file
from tracelens.files.memory_limit import before_reading, end_stage
from tracelens.types.records import Record, pd

if TYPE_CHECKING:
    import numpy as np

    Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Below 2**53: exact as a floating-point number.
LARGEST = 1e15
#: No figure above 0 is smaller: what is divided by it stays a number.
SMALLEST = 1e-15
#: A header, or a blank table's first data row.
FIRST_ROW = 2
#: Longer is no name of anything; the rest is not compared with thousands of names, nor repeated in sentences.
LONGEST_NAME = 200
_SHOWN = 40
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,4})?", re.ASCII)
#: What the readers of CSV and Parquet raise on bytes that are neither.
_UNREADABLE = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, OSError, RecursionError, TypeError,
    ValueError,
)  # fmt: skip


class Number(Record, frozen=True, kw_only=True):
    """What a cell or an option may hold. ``blank``: what an empty cell means; None where it must not be empty."""

    least: float = 0.0
    most: float = LARGEST
    whole: bool = False
    blank: float | None = None

    def __str__(self) -> str:
        return f"a {'whole ' if self.whole else ''}number from {_plain(self.least)} to {_plain(self.most)}"

    def of(self, value: object, place: str) -> float:
        """``value`` as a number, also where it is written as text. InputError, beginning with ``place``."""
        if is_blank(value):
            if self.blank is None:
                raise InputError(f"{place} is empty; it must be {self}")
            return self.blank
        found = _number(value)
        if found is None or not self.least <= found <= self.most or (self.whole and found != math.floor(found)):
            raise InputError(f"{place} must be {self}, got {shown(value)}")
        return found

    def count(self, value: object, place: str) -> int:
        return int(self.of(value, place))


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e9 else f"{value:g}".replace("e+", "e")


COUNT = Number(least=1, whole=True)
SIZE = Number(least=0, whole=True)
#: A measured time, in whatever unit: from a tenth of a nanosecond to days.
TIME = Number(least=1e-7, most=1e12)


def is_blank(value: object) -> bool:
    """Whether a cell holds nothing: empty, blanks, NaN, None, NA."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return True
    return (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in ("NAType", "NaTType")


def shown(value: object) -> str:
    """A cell in a sentence, its end left out where it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def place(table: str, row: int, column: str) -> str:
    """Where a cell stands; ``row`` counts the rows under the header from 0."""
    return f"{table}{', ' if table else ''}row {row + FIRST_ROW}, column {column!r}"


def read_table(path: Path) -> pd.DataFrame:
    """A CSV or Parquet file. InputError for one that is none, or Parquet without the package for it."""
    before_reading(path)
    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError as error:
        raise InputError(f"{path.name}: reading Parquet needs pyarrow (pip install pyarrow)") from error
    except FileNotFoundError as error:
        raise InputError(f"{path} cannot be read: no such file") from error
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as a table: {reason(error)}") from error
    end_stage()
    table.columns = pd.Index([str(name) for name in table.columns])
    if table.columns.has_duplicates:
        twice = table.columns[table.columns.duplicated()][0]
        raise InputError(f"{path}: column {twice!r} occurs twice; rename one")
    return table.reset_index(drop=True)


def read_rows(path: Path) -> tuple[list[dict[str, str]], list[str]]:
    """The rows of a CSV file as text, cells that a row lacks empty, and its columns. InputError for others."""
    before_reading(path)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restkey="")
            rows, columns = list(reader), list(reader.fieldnames or ())
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a table: {reason(error)}") from error
    if not columns:
        raise InputError(f"{path} is empty")
    if len(set(columns)) < len(columns):
        twice = next(name for at, name in enumerate(columns) if name in columns[:at])
        raise InputError(f"{path}: column {twice!r} occurs twice; rename one")
    return [{name: row.get(name) or "" for name in columns} for row in rows], columns


def reason(error: BaseException) -> str:
    """What a reader of another package said, on one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:200]}..."


def numbers(table: pd.DataFrame, column: str, kind: Number) -> Floats:
    """A column's numbers, NaN where a cell is not what ``kind`` allows: ``faults`` says which and why."""
    import numpy as np

    cells = table[column]
    if cells.dtype != object and pd.api.types.is_numeric_dtype(cells):
        values = np.array(cells.astype("Float64").to_numpy(np.float64, na_value=np.nan))
    else:
        found = [None if is_blank(cell) else _number(cell) for cell in cells.tolist()]
        values = np.array(found, dtype=np.float64)  # None is NaN
    if kind.blank is not None:
        values[[is_blank(cell) for cell in cells.tolist()]] = kind.blank
    good = (values >= kind.least) & (values <= kind.most)
    if kind.whole:
        good &= np.floor(values) == values
    return np.where(good, values, np.nan)


def faults(table: pd.DataFrame, kinds: Mapping[str, Number], name: str = "") -> list[str]:
    """Per row the first reason why its cells are not what ``kinds`` say, "" where they are; ``name`` is the file's."""
    import numpy as np

    found = [""] * len(table)
    for column, kind in kinds.items():
        for row in np.flatnonzero(np.isnan(numbers(table, column, kind))).tolist():
            if not found[row]:
                found[row] = _fault(kind, table[column].iloc[row], place(name, row, column))
    return found


def measured_rows(
    table: pd.DataFrame, column: str, wrong: Sequence[str], name: str
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows that have a time in ``column``. InputError for one whose time, or what ``wrong`` says of the row, is bad."""
    import numpy as np

    measured = ~np.array([is_blank(cell) for cell in table[column].tolist()], dtype=bool)
    for counts, *said in zip(measured, wrong, faults(table, {column: TIME}, name), strict=True):
        if counts and any(said):
            raise InputError(next(filter(None, said)))
    return measured


def texts(table: pd.DataFrame, column: str, blank: str = "") -> list[str]:
    """A column's cells as text, ``blank`` where they hold nothing; what is too long for any name is cut."""
    import numpy as np

    codes, words = text_codes(table, column, blank)
    return list(np.array(words, object)[codes].tolist())


def text_codes(
    table: pd.DataFrame, column: str, blank: str = ""
) -> tuple[np.ndarray[Any, np.dtype[np.intp]], list[str]]:
    """The place of each cell's text in a list of texts, and the list; as ``texts``."""
    import numpy as np

    cells = table[column]
    if pd.api.types.infer_dtype(cells, skipna=True) == "string":
        codes, found = pd.factorize(cells)
        return np.where(codes < 0, len(found), codes), [_text(cell) or blank for cell in found] + [blank]
    places: dict[str, int] = {}
    at = [places.setdefault(_text(cell) or blank, len(places)) for cell in cells.tolist()]
    return np.array(at, np.intp), list(places)


def _text(cell: object) -> str:
    text = "" if is_blank(cell) else str(cell).strip()
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..."


def is_file_name(name: str) -> bool:
    """Whether ``name`` would be read as a file: rows of a table name what tracelens knows, never files."""
    return "/" in name or "\\" in name or name.lower().endswith((".toml", ".json", ".yaml", ".yml"))


def _fault(kind: Number, cell: object, where: str) -> str:
    try:
        kind.of(cell, where)
    except InputError as error:
        return str(error)
    return f"{where} must be {kind}, got {shown(cell)}"


def _number(value: object) -> float | None:
    """A finite number, or a text that is one in plain digits; None for others, booleans too."""
    if isinstance(value, str):
        digits = value.strip()  # takes more for blank than float does
        return float(digits) if len(digits) < 400 and _NUMBER.fullmatch(digits) else None
    if isinstance(value, bool) or type(value).__name__ == "bool":
        return None
    try:
        found = float(value)  # type: ignore[arg-type]
    except (OverflowError, TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def write_table(table: pd.DataFrame, path: Path) -> None:
    """As ``read_table`` reads it. OutputError where it cannot be written, or Parquet without the package for it."""
    with whole_file(path) as file:
        if path.suffix != ".parquet":
            from tracelens.files.cells import frame_csv

            file.write(frame_csv(table))
            return
        try:
            table.to_parquet(file, index=False)
        except ImportError as error:
            raise OutputError(f"{path.name}: writing Parquet needs pyarrow (pip install pyarrow)") from error


#: What a table writes where the answer is elsewhere.
_UNSAID = re.compile(
    r"(see|cf|in|per(?![ -]op\b))\b.*|unknown|unstated|not (stated|given|known|published)|\?+|tbd|default|auto|nan|null"
)
#: Units that headings state, and cells beside numbers.
_PUBLISHED_UNITS = re.compile(r"\((?:s|sec|seconds|tokens?|t|ms|per gpu)\)")
_PUBLISHED_NUMBER = re.compile(
    r"([0-9]{1,3}(?:[ \u00a0\u202f'][0-9]{3})+\b|[0-9][0-9,_]*(?:\.[0-9]+)?) ?(k|m)?\b(?!\^)", re.IGNORECASE
)
#: A heading that a cell repeats (``TP=2``), and signs for about.
_BEFORE = re.compile(r"^(?:[~≈\"']|(?:[a-z]?tp|v?pp|[a-z]?[cdev]p|[mg]?bs|isl|osl) ?[=:]? ?(?=[0-9]))", re.IGNORECASE)
_SCALE = {"": 1, "k": 1024, "m": 1024**2}


class Headings:
    """Names of columns, and the headings that other tables have for them, without case, blanks and signs.

    >>> Headings({"gbs": ("globalbatchsize",)}).name("Global Batch-Size")
    'gbs'
    """

    def __init__(self, words: Mapping[str, tuple[str, ...]]) -> None:
        self._words = words
        self._known = {_letters(word): name for name, others in words.items() for word in (name, *others)}
        self.name = functools.lru_cache(maxsize=4096)(self._name)

    def _name(self, text: str) -> str:
        return self._known.get(_letters(_PUBLISHED_UNITS.sub("", text.lower())), text)

    def first(self, columns: Mapping[str, object]) -> list[str]:
        """The columns, those before the others that have their names already."""
        return sorted(columns, key=lambda name: name not in self._words)


def is_unsaid(text: str) -> bool:
    """Whether a cell says nothing, or that the answer is elsewhere.

    >>> is_unsaid(""), is_unsaid("see doc"), is_unsaid("per source"), is_unsaid("int4"), is_unsaid("per-op SAC")
    (True, True, True, False, False)
    """
    word = text.strip().lower()
    return not word or _UNSAID.fullmatch(word) is not None


def number(text: str) -> str:
    """The number that a cell begins with, without separators and unit; the cell where it is none.

    >>> number("4,096"), number("~4 096"), number("8K tokens"), number("TP=64"), number("H100")
    ('4096', '4096', '8192', '64', 'H100')
    """
    found = _PUBLISHED_NUMBER.match(_BEFORE.sub("", text.strip()))
    if found is None:
        return text
    value = float(re.sub("[^0-9.]", "", found[1])) * _SCALE[(found[2] or "").lower()]
    return f"{value:.0f}" if value.is_integer() else f"{value:g}"


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
