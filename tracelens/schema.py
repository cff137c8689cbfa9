"""What a table is: its columns with title, unit, format and meaning, and the mark of a function that makes one.

Frames have keys in snake_case (``kernel_us_sum``); people see headers (``Kernel Time (µs)_sum``). Headers follow what
users of this kind of workbook know, so one quantity may go by a second name in another sheet: that is
``Column.renamed``, not a second column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.registry import mark

F = TypeVar("F", bound=Callable[..., Any])

#: How a column is shown beyond its number format.
Look = Literal["plain", "share", "of_limit"]

TEXT, GENERAL, COUNT, US, MS, MB, RATE, PERCENT = (
    "@", "General", "#,##0", "#,##0.00", "#,##0.000", "#,##0.000", "#,##0.000", "0.0",
)  # fmt: skip
#: An integer that names something rather than counts it.
IDENTIFIER = "0"
SPREAD = ("mean", "median", "std", "min", "max")
TOTALED = (*SPREAD, "sum")
_OVER = {
    "mean": "Mean over the calls.",
    "median": "Median over the calls.",
    "std": "Standard deviation over the calls (n - 1); empty for one call.",
    "min": "Smallest of the calls.",
    "max": "Largest of the calls.",
    "sum": "Sum over the calls.",
    "count": "Number of kernels.",
}
#: Where sheets without a place of their own go: after the families.
LAST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. ``unit`` is printed in its note; ``width`` caps it, in characters.

    ``look``: ``share`` gets data bars, ``of_limit`` a color scale up to 100 % and red above. An ``optional`` column is
    left out of a sheet in which it would be empty (``empty_at_zero``: or zero throughout). ``family`` is the header
    without its statistic, under which the ``about`` sheet explains all of them in one line.
    """

    key: str
    header: str
    meaning: str
    unit: str = ""
    number_format: str = TEXT
    width: int = 28
    look: Look = "plain"
    optional: bool = False
    empty_at_zero: bool = False
    family: str = ""
    statistic: str = ""

    @property
    def is_text(self) -> bool:
        return self.number_format == TEXT

    @property
    def is_flag(self) -> bool:
        return self.number_format == GENERAL

    @property
    def is_integer(self) -> bool:
        return self.number_format in (COUNT, IDENTIFIER)

    @property
    def note(self) -> str:
        """What the comment on the header says."""
        parts = [self.meaning, _OVER.get(self.statistic, ""), f"Unit: {self.unit}." if self.unit else ""]
        return " ".join(part for part in parts if part)

    def renamed(self, header: str) -> Column:
        """The same quantity under the name it has in another sheet."""
        return replace(self, header=header, family=header.replace(self.statistic, "*") if self.statistic else header)


#: Column by key, in the order in which a sheet shows them.
ColumnSet = Mapping[str, Column]


def column_set(*columns: Column | Iterable[Column]) -> dict[str, Column]:
    """By key, in order; UsageError when two columns share a key or a header."""
    flat = [c for entry in columns for c in ((entry,) if isinstance(entry, Column) else entry)]
    by_key = {column.key: column for column in flat}
    if len(by_key) != len(flat) or len({column.header for column in flat}) != len(flat):
        raise UsageError(f"columns share a key or a header: {', '.join(sorted(c.header for c in flat))}")
    return by_key


def text(key: str, header: str, meaning: str, width: int = 28, **more: Any) -> Column:
    """A column of text, at most ``width`` characters wide."""
    return Column(key=key, header=header, meaning=meaning, width=width, **more)


def flag(key: str, header: str, meaning: str, **more: Any) -> Column:
    """A column of TRUE and FALSE."""
    return Column(key=key, header=header, meaning=meaning, number_format=GENERAL, **more)


def count(key: str, header: str, meaning: str, **more: Any) -> Column:
    """A column of how many there are."""
    return Column(key=key, header=header, meaning=meaning, number_format=COUNT, **more)


def identifier(key: str, header: str, meaning: str, **more: Any) -> Column:
    """A column of integers that name something: a rank, a stream, a step."""
    return Column(key=key, header=header, meaning=meaning, number_format=IDENTIFIER, **more)


def us(key: str, header: str, meaning: str, **more: Any) -> Column:
    """A column of times in microseconds."""
    return Column(key=key, header=header, meaning=meaning, unit="µs", number_format=US, **more)


def ms(key: str, header: str, meaning: str, **more: Any) -> Column:
    """A column of times in milliseconds."""
    return Column(key=key, header=header, meaning=meaning, unit="ms", number_format=MS, **more)


def mb(key: str, header: str, meaning: str, *, unit: str = "MB (1e6 bytes)", **more: Any) -> Column:
    """A column of amounts of data."""
    return Column(key=key, header=header, meaning=meaning, unit=unit, number_format=MB, **more)


def percent(key: str, header: str, meaning: str, *, look: Look = "share", **more: Any) -> Column:
    """A column of shares, in percent."""
    return Column(key=key, header=header, meaning=meaning, unit="%", number_format=PERCENT, look=look, **more)


def number(key: str, header: str, meaning: str, shape: str = RATE, unit: str = "", **more: Any) -> Column:
    """A column of any other numbers; ``shape`` is their number format."""
    return Column(key=key, header=header, meaning=meaning, number_format=shape, unit=unit, **more)


def statistics(over: Iterable[str], of: Column) -> tuple[Column, ...]:
    """One column per statistic of ``of``, whose header has ``{}`` where the statistic's name stands."""
    return tuple(
        replace(
            of,
            key=f"{of.key}_{statistic}",
            header=of.header.format(statistic),
            family=of.header.format("*"),
            statistic=statistic,
        )
        for statistic in over
    )


def column_for(key: str, columns: ColumnSet) -> Column:
    """The column of ``key``; one that shows the key itself where nothing says more (``param: M``, extensions)."""
    if key in columns:
        return columns[key]
    if key.startswith("param: "):
        return Column(key=key, header=key, meaning=PARAMETER, number_format=GENERAL, width=24, family="param: *")
    return Column(key=key, header=key, meaning="Added by an extension.", number_format=GENERAL)


#: What a column of a perf model's dimension means.
PARAMETER = "A dimension or property that the perf model read from the recorded arguments."


def sheet(
    title: str, *, columns: ColumnSet | None = None, order: int = LAST, json: int | None = LAST
) -> Callable[[F], F]:
    """Marks ``function(result) -> DataFrame | None`` as the sheet ``title``; None or no rows leaves the sheet out.

    ``result`` is what the analysis found (``result.frames["unified_perf_summary"]``, ``result.families["GEMM"]``,
    ``result.trace``, ``result.activity``). The function's docstring says what a row is. ``columns`` gives keys their
    headers and order, None those of ``unified_perf_summary``; a key without a column is shown as it is, keys that begin
    with ``_`` are not shown. Sheets stand by ``order``, then title; the families stand at 100. ``json``: place among
    the views of ``report.json``; None leaves it out of there.
    """
    return mark("sheet", title, columns=columns, order=order, json=json)


def table(name: str, *, columns: ColumnSet) -> Callable[[F], F]:
    """Marks ``function(analysis) -> DataFrame | None`` as the table ``name`` of SQL; its docstring: what a row is."""
    return mark("table", name, columns=columns)
