"""From an analysis to the sheets of a report, with our headers or those of AMD's TraceLens, and to their folder."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import pandas as pd

from tracelens import schema
from tracelens.analysis.sheets import built_in_sheets, perf_summary, priced_calls
from tracelens.analysis.verdict.summary import Notice
from tracelens.errors import InputError, UsageError
from tracelens.files.atomic_write import refuse_file_name, write_whole
from tracelens.files.cells import frame_csv
from tracelens.files.memory_limit import raise_at_limit
from tracelens.registry import Claim, Registry
from tracelens.report.markup import Markup, tag
from tracelens.schema import ColumnSet, TableColumn
from tracelens.types.records import Record
from tracelens.types.units import US_PER_MS

_LEFT = "text-align: left"


class SheetFrame(pd.DataFrame):
    """A DataFrame in everything but its HTML: rows and columns selected from it are shown in the same way."""

    _metadata: ClassVar[list[str]] = ["_column_of"]
    #: Without entries after operations that keep no such attributes, as of merges: keys are shown then.
    _column_of: Mapping[str, TableColumn] = MappingProxyType({})

    @classmethod
    def of(cls, frame: pd.DataFrame, columns: tuple[TableColumn, ...]) -> SheetFrame:
        made = cls(frame)
        object.__setattr__(made, "_column_of", {column.key: column for column in columns})
        return made

    @property
    def _constructor(self) -> type[SheetFrame]:
        return SheetFrame

    def _repr_html_(self) -> str | None:
        """What Jupyter shows. Options of pandas hold: whether HTML is shown at all, rows, columns, width of a text."""
        if not pd.get_option("display.notebook_repr_html"):
            return None
        most = pd.get_option("display.max_columns") or len(self.columns)
        columns = [(str(key), self._column_of.get(str(key))) for key in self.columns[:most]]
        shown, fewest = pd.get_option("display.max_rows"), pd.get_option("display.min_rows")
        first, last = len(self), 0
        if shown is not None and len(self) > shown:
            first = last = max(1, min(shown, fewest or shown) // 2)
        at = [*range(first), *range(len(self) - last, len(self))]
        cells = [[_cell(value, column) for value in self.iloc[at, i]] for i, (_, column) in enumerate(columns)]
        rows = [
            tag("tr", tag("th", str(self.index[i])), *line)
            for i, line in zip(at, zip(*cells, strict=True), strict=False)
        ]
        if first + last < len(self):
            rows.insert(first, tag("tr", tag("td", "…", colspan=len(columns) + 1, style="text-align: center")))
        head = [tag("th"), *(_head(key, column) for key, column in columns)]
        table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), class_="dataframe")
        left_out = ", ".join(map(str, self.columns[most:]))
        size = f"{len(self):,} rows × {len(self.columns)} columns{left_out and f'; not shown: {left_out}'}"
        return tag("div", table, tag("p", size), style="overflow-x: auto")


def _head(key: str, column: TableColumn | None) -> Markup:
    if column is None:
        return tag("th", key)
    return tag("th", column.title, title=column.note, style=_LEFT if column.is_text else None)


def shown_number(value: float, decimals: int) -> str:
    """With thousands separators; two significant digits where ``decimals`` would leave only zeros.

    >>> shown_number(1234.5, 1), shown_number(0.0004, 2), shown_number(0, 2)
    ('1,234.5', '0.00040', '0.00')
    """
    if value and abs(value) < 0.5 * 10**-decimals:
        return f"{value:#.2g}"
    return f"{value:,.{decimals}f}"


def _cell(value: Any, column: TableColumn | None) -> Markup:
    if isinstance(value, bool) or not pd.api.types.is_number(value):
        text = "" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value)
        most = pd.get_option("display.max_colwidth") or len(text)
        shown = text if len(text) <= most else f"{text[: most - 1]}…"
        return tag("td", shown, title=None if shown == text else text, style=_LEFT)
    number: Any = value
    if number != number:
        return tag("td")
    pattern = schema.GENERAL if column is None else column.number_format
    if pattern == schema.IDENTIFIER:
        return tag("td", f"{number:.0f}")
    if column is None or column.is_flag or column.is_text:
        return tag("td", f"{number:,.6g}" if isinstance(number, float) else f"{number:,}")
    return tag("td", shown_number(number, len(pattern.partition(".")[2])))


#: Where the sheets of the perf-model families stand among the others.
_PLACE_OF_FAMILIES = 200
#: Sheets that a workbook has beside ``about`` where it has not all.
MOST_SHEETS = 13


class Analyzed(Protocol):
    """What an analysis hands to a report: frames by sheet title, and frames by perf-model family."""

    @property
    def frames(self) -> Mapping[str, pd.DataFrame]: ...
    @property
    def families(self) -> Mapping[str, pd.DataFrame]: ...


class Sheet(Record, frozen=True, kw_only=True, eq=False):
    """A named table. ``frame`` has the columns' keys, in the order of ``columns``; ``text`` says what a row is.

    ``json``: its place among the views of ``report.json``, None where it is not one of them. ``is_added``: by an
    extension. ``is_further``: only a workbook of all sheets has it.
    """

    title: str
    frame: pd.DataFrame
    columns: tuple[TableColumn, ...]
    text: str = ""
    is_family: bool = False
    is_added: bool = False
    is_further: bool = False
    json: int | None = None


class Assembly(Record, frozen=True, kw_only=True):
    """The sheets of a report, and a notice for every sheet of an extension that failed."""

    sheets: tuple[Sheet, ...]
    failures: tuple[Notice, ...]


def assemble(result: Analyzed, sources: Iterable[object] = ()) -> Assembly:
    """Sheets of the core, of the families, and of ``sources`` (modules or marked functions of extensions).

    An extension's sheet replaces one of the same title. One that raises costs its sheet, not the report.
    """
    added = Registry.collect("sheet", sources)
    failures: list[Notice] = []
    made: list[tuple[int, Sheet]] = []
    built_in = built_in_sheets()
    for title, claim in built_in.items():
        frame = None if title in added else result.frames.get(title)
        if frame is not None and len(frame):
            made.append(_placed(claim, frame))
    for title, claim in added.items():
        try:
            frame = claim.target(result)
        except Exception as error:  # noqa: BLE001 - whatever an extension raises costs its sheet alone
            raise_at_limit(error)
            text = f"sheet {title!r} left out: {claim.origin} raised {type(error).__name__}: {error}"
            failures.append(Notice(id="extension_failed", count=1, text=text))
            continue
        if frame is not None and len(frame):
            made.append(_placed(claim, frame, is_added=True))
    for title, frame in result.families.items():
        if len(frame) and title not in built_in and title not in added:
            text = f"One row per distinct call with the perf model of {title}."
            made.append(
                (_PLACE_OF_FAMILIES, make_sheet(title, frame, priced_calls.FAMILY_COLUMNS, text, is_family=True))
            )
    return Assembly(sheets=_in_order(made), failures=tuple(failures))


def sheets_of(frames: Mapping[str, pd.DataFrame], registry: Registry) -> tuple[Sheet, ...]:
    return _in_order([_placed(registry[title], frame) for title, frame in frames.items() if len(frame)])


def _in_order(made: Iterable[tuple[int, Sheet]]) -> tuple[Sheet, ...]:
    return tuple(sheet for _, sheet in sorted(made, key=lambda entry: (entry[0], entry[1].title)))


def _placed(claim: Claim, frame: pd.DataFrame, *, is_added: bool = False) -> tuple[int, Sheet]:
    text = (inspect.getdoc(claim.target) or "").split("\n\n")[0].replace("\n", " ")
    columns = claim.options["columns"] or perf_summary.UNIFIED_PERF_SUMMARY_COLUMNS
    made = make_sheet(claim.key, frame, columns, text)
    order = claim.options["order"]
    is_further = order >= schema.FURTHER and not is_added
    return order, replace(made, is_added=is_added, is_further=is_further, json=claim.options["json"])


def make_sheet(
    title: str, frame: pd.DataFrame, columns: ColumnSet, text: str = "", *, is_family: bool = False
) -> Sheet:
    """``frame`` with its columns as they are shown, without the optional ones that are empty."""
    ordered = [schema.column_for(key, columns) for key in _shown_keys(frame, columns)]
    shown = tuple(column for column in ordered if not (column.optional and _is_left_out(column, frame[column.key])))
    cells = frame[[c.key for c in shown]]
    return Sheet(title=title, frame=cells, columns=shown, text=text, is_family=is_family, is_further=is_family)


def _shown_keys(frame: pd.DataFrame, columns: ColumnSet) -> list[str]:
    """In the order of ``columns``; of what is beside them, dimensions of a model come second, the rest last."""
    keys = [key for key in map(str, frame.columns) if not key.startswith("_")]
    known = [key for key in columns if key in keys]
    others = [key for key in keys if key not in columns]
    dimensions = [key for key in others if key.startswith(schema.PARAMETER_PREFIX)]
    return [*known[:1], *dimensions, *known[1:], *(key for key in others if key not in dimensions)]


def json_views(result: Analyzed, sheets: Sequence[Sheet]) -> dict[str, pd.DataFrame]:
    """Frames that ``report.json`` has as views, by title and in its order."""
    core = {title: claim.options["json"] for title, claim in built_in_sheets().items() if title in result.frames}
    added = {made.title: made for made in sheets if made.is_added}
    places = {
        title: place for title, place in (core | {t: s.json for t, s in added.items()}).items() if place is not None
    }
    titles = sorted(places, key=lambda title: (places[title], title))
    return {title: added[title].frame if title in added else result.frames[title] for title in titles}


def by_title(sheets: Sequence[Sheet], title: str) -> Sheet | None:
    return next((made for made in sheets if made.title == title), None)


def _is_left_out(column: TableColumn, values: pd.Series[Any]) -> bool:
    cells = values.to_numpy()  # a tenth of the time that pandas takes, and a report has hundreds of such columns
    present = cells[~pd.isna(cells)]
    return not len(present) or (column.empty_at_zero and bool((present == 0).all()))


#: All sheets of perf-model families.
FAMILIES = "families"
#: Columns that a sheet shows again, in ms: (behind which column, header by key).
_AGAIN: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ops_summary": ("subtree_us_sum", {"direct_us_sum": "total_direct_kernel_time_ms",
                                       "subtree_us_sum": "total_subtree_kernel_time_ms"}),
}  # fmt: skip
_IS_MS = re.compile(r"\bms\b|_ms$")


@cache
def _headers() -> dict[str, Any]:
    """Headers that users of AMD's TraceLens know: an explicit choice of a report."""
    return tomllib.loads(resources.files("tracelens.report").joinpath("tracelens_headers.toml").read_text("utf-8"))


def header(key: str, sheet: str) -> str:
    """The header of a key in a sheet, or in ``FAMILIES``.

    >>> header("kernel_us_sum", "unified_perf_summary"), header("direct_us_sum", "ops_summary_by_category")
    ('Kernel Time (µs)_sum', 'total_direct_kernel_time_ms')
    """
    if key.startswith(schema.PARAMETER_PREFIX):
        return key.replace(schema.PARAMETER_PREFIX, "param: ", 1)
    base, statistic = schema.split_statistic(key)
    known = _headers()
    tables: tuple[Mapping[str, str], ...] = known["in_sheet"].get(sheet, {}), known["headers"]
    for names in tables:
        if key in names:
            return names[key]
        if statistic and f"{base}_*" in names:
            return names[f"{base}_*"].replace("*", statistic)
    return key


def with_tracelens_headers(sheet: Sheet) -> Sheet:
    """The same sheet with headers in place of keys and titles."""
    by_key = {column.key: column for column in sheet.columns}
    named = [(column, header(key, FAMILIES if sheet.is_family else sheet.title)) for key, column in by_key.items()]
    behind, again = _AGAIN.get(sheet.title, ("", {}))
    if behind in by_key:
        at = [*by_key].index(behind) + 1
        named[at:at] = [(by_key[key], title) for key, title in again.items()]
    columns, cells = [], {}
    for column, title in named:
        column, values = replace(column, key=title, shown_as=title), sheet.frame[column.key]
        if "µs" in column.unit and _IS_MS.search(title):
            column, values = replace(column, unit="ms", number_format=schema.MS), values / US_PER_MS
        columns.append(column)
        cells[title] = values
    return replace(sheet, frame=pd.DataFrame(cells), columns=tuple(columns))


class NamedSheets:
    """``sheets["GEMM"]`` is the sheet of that name as a DataFrame, always the same one.

    Its columns have their keys; a notebook shows their titles and units. ``named``: the same sheets with the column
    names that were chosen, which CSV files and the workbook have too.
    """

    def __init__(self, sheets: tuple[Sheet, ...], column_names: str = schema.KEYS) -> None:
        if column_names not in (schema.KEYS, schema.TRACELENS):
            raise UsageError(f"column_names is {schema.KEYS!r} or {schema.TRACELENS!r}, not {column_names!r}")
        self.sheets = sheets
        self.named = tuple(map(with_tracelens_headers, sheets)) if column_names == schema.TRACELENS else sheets
        self._frames: dict[str, pd.DataFrame] = {}

    def __getitem__(self, title: str) -> pd.DataFrame:
        """The sheet ``title``; UsageError, naming near ones, when the report has none."""
        if title not in self._frames:
            found = by_title(self.named, title)
            if found is None:
                raise UsageError.unknown("sheet", title, self)
            self._frames[title] = SheetFrame.of(found.frame, found.columns)
        return self._frames[title]

    def __iter__(self) -> Iterator[str]:
        return iter([made.title for made in self.sheets])

    def __len__(self) -> int:
        return len(self.sheets)

    def __contains__(self, title: object) -> bool:
        return any(made.title == title for made in self.sheets)

    def of_workbook(self, *, all_sheets: bool) -> tuple[list[Sheet], list[Sheet]]:
        """(sheets of the workbook in reading order, sheets left out); extensions' come first beyond ``MOST_SHEETS``."""
        if all_sheets:
            return list(self.named), []
        read = sorted((made for made in self.named if not made.is_further), key=lambda made: not made.is_added)
        kept = {made.title for made in read[:MOST_SHEETS]}
        shown = [made for made in self.named if made.title in kept]
        return shown, [made for made in self.named if made.title not in kept]

    def to_csv(self, folder: str | PathLike[str]) -> Path:
        """Writes ``<folder>/<sheet>.csv``, each whole or not at all."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for sheet in self.named:
            write_whole(folder / f"{re.sub(r'[^0-9A-Za-z_. -]', '_', sheet.title)}.csv", frame_csv(sheet.frame))
        return folder


def refuse_folder(folder: Path, is_ours: Callable[[], bool], what: str) -> None:
    """InputError for a file or a missing parent; UsageError for a folder of something else, or the name of a file."""
    refuse_file_name(folder)
    if not folder.absolute().parent.is_dir():
        raise InputError(f"cannot write {folder}: there is no folder {folder.parent}")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file, but a report is a folder")
    if any(folder.iterdir()) and not is_ours():
        raise UsageError(f"{folder} exists and is not {what}; choose another folder with -o")
