"""The tables of a report's page, as HTML and as data for the script."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tracelens.files.cells import Value, plain_value, plain_values
from tracelens.files.safe_text import short_kernel_name
from tracelens.report.assembly import shown_number
from tracelens.report.document import breakable, shown_text
from tracelens.report.markup import Markup, tag
from tracelens.schema import TableColumn
from tracelens.types.records import Record

if TYPE_CHECKING:
    from tracelens.report.assembly import Sheet


#: Rows that stand in the page itself, readable without the script.
STATIC_ROWS = 15
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


class PageTable(Record, frozen=True, kw_only=True):
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
                    column_cell(c, value, is_hidden=self._is_hidden(c))
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


def _shown_values(column: TableColumn, values: Any) -> list[Value]:
    plain = plain_values(values)
    plain = [str(value).upper() if isinstance(value, bool) else value for value in plain]
    return [shown_text(value) if isinstance(value, str) else value for value in plain]


def column_cell(column: TableColumn, value: Value, *, is_hidden: bool = False) -> Markup:
    """A cell as it stands in the page itself."""
    hidden = "" if is_hidden else None
    if column.is_text or isinstance(value, str):
        text = "" if value is None else str(value)
        shown = short_kernel_name(text) if column.key in _NAMES else text
        is_cut = shown != text or len(text) > LONG_TEXT
        return tag("td", tag("div", shown, class_="clip", title=text) if is_cut else text, hidden=hidden)
    return tag("td", "" if value is None else shown_number(value, _decimals(column)), class_="n", hidden=hidden)


def _decimals(column: TableColumn) -> int:
    return len(column.number_format.partition(".")[2]) if column.number_format != "General" else 0


def _compact(value: Value) -> Value:
    if isinstance(value, bool) or not isinstance(value, float):
        return value
    return plain_value(float(f"{value:.{_DIGITS}g}"))
