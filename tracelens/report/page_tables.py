"""The tables of a page, as HTML and as data for the script, and the sections, tiles and heat maps of other pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tracelens.files.cells import Value, plain_value, plain_values
from tracelens.files.safe_text import short_kernel_name, terminal_text
from tracelens.lazy.records import dataclass
from tracelens.report.markup import Content, Markup, Section, joined, tag
from tracelens.report.markup import table as scrolled
from tracelens.schema import TableColumn, column_title
from tracelens.units import shown_figure

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.report.assembly import Sheet


#: Rows that stand in the page itself, readable without the script.
STATIC_ROWS = 15
#: Longest text of a cell; kernel names of templates can have thousands of characters.
MAX_TEXT = 500
#: Texts above this many characters are cut after three lines; the tooltip has all of it.
LONG_TEXT = 40
#: Digits that numbers keep in the data; shown are fewer.
_DIGITS = 6
#: Columns whose texts are shown in a readable form.
_NAMES = ("kernel_name", "name")

#: What a window of 1200 pixels does not show comes last.
OPS = (
    "name", "category", "shapes", "operation_count", "kernel_us_sum", "percent", "roofline_bound",
    "percent_of_roofline_mean", "above_roofline_us", "tflops_s_mean", "hbm_tb_s_mean",
    "effective_interconnect_tb_s_mean", "kernel_us_mean", "remote_from", "module", "line",
)  # fmt: skip
#: Columns that a reader has to ask for.
HIDDEN = {
    "ops": ("kernel_us_mean", "remote_from", "module", "line"), "kernels": ("duration_us_min", "duration_us_max")
}  # fmt: skip
KERNELS = (
    "kernel_name", "category", "parent_op", "stream", "kernels", "duration_us_sum", "percent_of_kernels",
    "duration_us_mean", "duration_us_min", "duration_us_max",
)  # fmt: skip
COLLECTIVES = (
    "collective", "group_name", "group_size", "dtype", "in_mb", "out_mb", "stream", "operation_count",
    "duration_us_sum", "duration_us_mean", "duration_us_min", "duration_us_max",
)  # fmt: skip
CPU_OPS = (
    "name", "category", "input_dims", "operation_count", "host_self_us_sum", "percent", "host_self_us_mean",
    "host_us_sum", "gflops", "cpu_tflops_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTable:
    """The columns of a sheet that the page shows. ``rows``: the first of ``total``; ``key`` is its id in the page."""

    key: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Value, ...], ...]
    total: int
    sheet: str

    def data(self) -> dict[str, Any]:
        """For the script: columns with their values, numbers with six digits."""
        values = zip(*self.rows, strict=True) if self.rows else [()] * len(self.columns)
        return {
            "columns": [
                {
                    "header": column.title,
                    "decimals": None if column.is_text else _decimals(column),
                    "share": column.look == "share",
                    "limit": column.look == "of_limit",
                    "hidden": self._is_hidden(column),
                    "shown": _shortened(cells) if column.key in _NAMES else None,
                    "values": [_compact(value) for value in cells],
                }
                for column, cells in zip(self.columns, values, strict=True)
            ]
        }

    def markup(self) -> Markup:
        """The table with its first rows."""
        head = [
            tag("th", tag("button", breakable(column.title), type="button"), title=column.note or None, scope="col",
                class_=None if column.is_text else "n", hidden="" if self._is_hidden(column) else None)
            for column in self.columns
        ]  # fmt: skip
        rows = [
            tag(
                "tr",
                [
                    _column_cell(c, value, is_hidden=self._is_hidden(c))
                    for c, value in zip(self.columns, row, strict=True)
                ],
                id=f"{self.key}-{i}",
            )
            for i, row in enumerate(self.rows[:STATIC_ROWS])
        ]
        table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows), id=self.key)
        return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=f"Table {self.sheet}")

    def _is_hidden(self, column: TableColumn) -> bool:
        return column.key in HIDDEN.get(self.key, ())


def _shortened(names: Iterable[Value]) -> list[str] | None:
    """None where no name has a shorter form."""
    given = [str(name) for name in names]
    short = [short_kernel_name(name) for name in given]
    return short if short != given else None


def page_table(key: str, sheet: Sheet | None, keys: Iterable[str], max_rows: int) -> PageTable | None:
    """Those of ``keys`` that the sheet has and that are not empty throughout; None without rows."""
    if sheet is None or not len(sheet.frame):
        return None
    by_key = {column.key: column for column in sheet.columns}
    frame = sheet.frame.head(max_rows)
    shown = [by_key[key] for key in keys if key in by_key and not frame[key].isna().all()]
    cells = [_shown_values(column, frame[column.key]) for column in shown]
    return PageTable(
        key=key, columns=tuple(shown), rows=tuple(zip(*cells, strict=True)), total=len(sheet.frame), sheet=sheet.title
    )


def shown_text(text: str) -> str:
    """Trace text on one line, without control characters, cut where it is very long."""
    text = terminal_text(text)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 30]}… ({len(text):,} characters)"


_QUOTED = re.compile(r"`([^`]+)`")


def prose(text: str) -> Markup:
    """A sentence as the page shows it: what stands between backticks is code."""
    pieces = _QUOTED.split(shown_text(text))
    return joined(tag("code", piece) if i % 2 else piece for i, piece in enumerate(pieces))


def shown_number(value: float, decimals: int) -> str:
    """With thousands separators; two significant digits where ``decimals`` would leave only zeros.

    >>> shown_number(1234.5, 1), shown_number(0.0004, 2), shown_number(0, 2)
    ('1,234.5', '0.00040', '0.00')
    """
    if value and abs(value) < 0.5 * 10**-decimals:
        return f"{value:#.2g}"
    return f"{value:,.{decimals}f}"


def _shown_values(column: TableColumn, values: Any) -> list[Value]:
    plain = plain_values(values)
    plain = [str(value).upper() if isinstance(value, bool) else value for value in plain]
    return [shown_text(value) if isinstance(value, str) else value for value in plain]


def _column_cell(column: TableColumn, value: Value, *, is_hidden: bool = False) -> Markup:
    hidden = "" if is_hidden else None
    if column.is_text or isinstance(value, str):
        text = "" if value is None else str(value)
        shown = short_kernel_name(text) if column.key in _NAMES else text
        is_cut = shown != text or len(text) > LONG_TEXT
        return tag("td", tag("div", shown, class_="clip", title=text) if is_cut else text, hidden=hidden)
    return tag("td", "" if value is None else shown_number(value, _decimals(column)), class_="n", hidden=hidden)


def breakable(header: str) -> Markup:
    """With places to break a line after underscores."""
    first, *others = header.split("_")
    return joined(first, *(joined("_", tag("wbr"), piece) for piece in others))


def _decimals(column: TableColumn) -> int:
    return len(column.number_format.partition(".")[2]) if column.number_format != "General" else 0


def _compact(value: Value) -> Value:
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return plain_value(float(f"{value:.{_DIGITS}g}"))


#: Rows of a table; the files of the answer have them all.
MAX_ROWS = 200
_FIGURE = re.compile(r"[-+−]?[\d.,]*")


def head(
    title: str,
    facts: Iterable[str],
    tiles: Iterable[tuple[str, str, str]],
    notes: Iterable[str] = (),
    warnings: Iterable[str] = (),
) -> Section:
    """What was asked and the figures that answer: ``tiles`` are (what, figure, below it)."""
    made = [
        tag("div", tag("span", what, class_="what"), tag("strong", figure), tag("span", below), class_="tile plain")
        for what, figure, below in tiles
    ]
    warned, said = ([tag("li", prose(each)) for each in listed] for listed in (warnings, notes))
    content = joined(
        tag("h1", shown_text(title)),
        tag("ul", [tag("li", shown_text(fact)) for fact in facts], class_="facts"),
        tag("div", made, class_="tiles") if made else None,
        tag("ul", warned, class_="notices") if warned else None,
        tag("ul", said, class_="remarks") if said else None,
    )
    return "verdict", "Verdict", tag("section", content, id="verdict")


def section(key: str, title: str, *content: Content) -> Section:
    """A section with its heading."""
    return key, title, tag("section", tag("h2", title), *content, id=key)


def picture(svg: Markup) -> Markup:
    """A chart that scrolls where the window is narrow."""
    return tag("div", svg, class_="wide picture", tabindex="0")


def table(frame: pd.DataFrame, label: str, titles: Mapping[str, str] = MappingProxyType({})) -> Markup:
    """The first rows of a frame, without columns that are empty; a column's key says its title where ``titles`` has
    none."""
    shown = frame.head(MAX_ROWS)
    shown = shown[
        [name for name in shown.columns if not len(shown) or (shown[name].notna() & (shown[name] != "")).any()]
    ]
    columns = [plain_values(shown[name]) for name in shown.columns]
    is_number = [all(map(_is_figure, values)) for values in columns]
    heads = [
        tag("th", titles.get(str(name), column_title(str(name))), scope="col", class_="n" if right else None)
        for name, right in zip(shown.columns, is_number, strict=True)
    ]
    rows = [
        tag("tr", [_plain_cell(value, right) for value, right in zip(row, is_number, strict=True)])
        for row in zip(*columns, strict=True)
    ]
    more = f"The first {MAX_ROWS} of {len(frame):,} rows." if len(frame) > MAX_ROWS else None
    return joined(scrolled(heads, rows, kind="figures", label=label), tag("p", more) if more else None)


def _is_figure(value: object) -> bool:
    return not isinstance(value, str) or _FIGURE.fullmatch(value) is not None


def _plain_cell(value: object, right: bool) -> Markup:
    if isinstance(value, bool):
        return tag("td", "yes" if value else "no", class_="n")
    if not isinstance(value, int | float):
        return tag("td", None if value is None else breakable(shown_text(str(value))), class_="n" if right else None)
    return tag("td", shown_figure(value), class_="n")


def heat_map(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float | None]], unit: str
) -> Markup:
    """A table whose cells are the darker the larger their figures, which stand in them."""
    top = max((value for row in values for value in row if value is not None), default=0.0) or 1.0
    heads = [
        tag("th", "", scope="col"),
        *(tag("th", short_kernel_name(name), scope="col", title=name) for name in columns),
    ]
    lines = []
    for name, row in zip(rows, values, strict=True):
        cells = [tag("th", name, scope="row")]
        for value in row:
            level = 0 if value is None else round(5 * max(value, 0.0) / top)
            cells.append(tag("td", "" if value is None else shown_figure(value, 3), class_=f"heat{level}"))
        lines.append(tag("tr", cells))
    said = tag("p", f"{unit}; the darkest cell is {shown_figure(top)}.")
    return joined(said, scrolled(heads, lines, kind="heat", label=unit))
