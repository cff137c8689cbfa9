"""What a table is: its columns with title, unit, format and meaning, and the mark of a function that makes one.

A column has one name, its key in snake_case with the unit in it (``kernel_us_sum``): in frames, SQL, CSV and JSON. The
workbook and the page show its title (``Kernel time, sum (µs)``), which is made of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from tracelens.errors import UsageError
from tracelens.registry import mark
from tracelens.types.records import Record

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
    "min": "Minimum over the calls.",
    "max": "Maximum over the calls.",
    "sum": "Sum over the calls.",
}
#: How keys of a perf model's dimensions begin.
PARAMETER_PREFIX = "param_"
#: Where sheets without a place of their own go: after the families.
LAST = 1000
#: From this place on a sheet is in the workbook only with --all-sheets; those of extensions always are.
FURTHER = 100


#: What ``report --column-names`` takes: keys and titles, or the headers that users of AMD's TraceLens know.
KEYS, TRACELENS = "keys", "tracelens"
#: How keys end, the longest ending first, and the unit that it says.
_UNITS = {
    "_tflops_s": "TFLOPS/s", "_tb_s": "TB/s", "_gb_s": "GB/s", "_per_s": "per s", "_percent": "%", "_bytes": "bytes",
    "_ppm": "ppm", "_us": "µs", "_ms": "ms", "_mb": "MB", "_gb": "GB", "_w": "W", "_j": "J", "_s": "s",
}  # fmt: skip
#: What a title says of a quantity where only the key's unit does.
_QUANTITY = {"TFLOPS/s": "compute rate", "TB/s": "bandwidth", "GB/s": "bandwidth"} | dict.fromkeys(
    ("µs", "ms", "s"), "time"
)


@cache
def _titles() -> dict[str, Any]:
    """What keys say in short (``words``, of a perf model's dimensions ``parameter_words``), ``titles`` of keys without
    statistic that are not their words, and words after which the quantity would say nothing new (``say_quantity``).
    """
    return msgspec.json.decode(Path(__file__).with_name("titles.json").read_bytes())


class TableColumn(Record, frozen=True, kw_only=True):
    """One column. Its note says the ``unit`` that its title lacks; ``width`` caps it, in characters; ``shown_as``
    replaces the title.

    ``look``: ``share`` gets data bars, ``of_limit`` a color scale up to 100 % and red above. An ``optional`` column is
    left out of a sheet in which it would be empty (``empty_at_zero``: or zero throughout).
    """

    key: str
    meaning: str
    unit: str = ""
    number_format: str = TEXT
    width: int = 28
    look: Look = "plain"
    optional: bool = False
    empty_at_zero: bool = False
    statistic: str = ""
    shown_as: str = ""

    @property
    def title(self) -> str:
        """What people see above the column."""
        return self.shown_as or column_title(self.key)

    @property
    def family(self) -> str:
        """The key with ``*`` for its statistic: tables of columns explain all of them in one line."""
        if self.key.startswith(PARAMETER_PREFIX):
            return f"{PARAMETER_PREFIX}*"
        return f"{self.key.removesuffix(self.statistic)}*" if self.statistic else self.key

    @property
    def family_title(self) -> str:
        """The title of the family: ``Kernel time, * (µs)``."""
        if self.key.startswith(PARAMETER_PREFIX):
            return "Parameter *"
        return self.title.replace(f", {self.statistic}", ", *") if self.statistic else self.title

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
        unit = f"Unit: {self.unit}." if self.unit not in self.title else ""
        parts = [self.meaning, _OVER.get(self.statistic, ""), unit]
        return " ".join(part for part in parts if part)


#: Column by key, in the order in which a sheet shows them.
ColumnSet = Mapping[str, TableColumn]


def column_set(*columns: TableColumn | Iterable[TableColumn]) -> dict[str, TableColumn]:
    """By key, in order; UsageError when two columns share a key or a title."""
    flat = [c for entry in columns for c in ((entry,) if isinstance(entry, TableColumn) else entry)]
    by_key = {column.key: column for column in flat}
    if len(by_key) != len(flat) or len({column.title for column in flat}) != len(flat):
        raise UsageError(f"columns share a key or a title: {', '.join(sorted(c.key for c in flat))}")
    return by_key


def text(key: str, meaning: str, **more: Any) -> TableColumn:
    """A column of text, at most ``width`` characters wide; ``more``: fields of ``TableColumn``."""
    return TableColumn(key=key, meaning=meaning, **more)


#: Columns of TRUE and FALSE, of how many there are, of integers that name something (a rank, a stream, a step).
flag, count, identifier = (partial(text, number_format=shape) for shape in (GENERAL, COUNT, IDENTIFIER))
#: Columns of times in microseconds and in milliseconds, of amounts of data (MB are 1e6 bytes), of shares in percent.
us, ms = partial(text, unit="µs", number_format=US), partial(text, unit="ms", number_format=MS)
mb = partial(text, unit="MB", number_format=MB)
percent = partial(text, unit="%", number_format=PERCENT, look="share")


def number(key: str, meaning: str, *, shape: str = RATE, unit: str = "", **more: Any) -> TableColumn:
    """A column of any other numbers; ``shape`` is their number format."""
    return TableColumn(key=key, meaning=meaning, number_format=shape, unit=unit, **more)


def statistics(over: Iterable[str], of: TableColumn) -> tuple[TableColumn, ...]:
    """One column per statistic of ``of``."""
    return tuple(replace(of, key=f"{of.key}_{statistic}", statistic=statistic) for statistic in over)


@cache
def column_title(key: str) -> str:
    """The title of a key: the same one in every table.

    >>> column_title("kernel_us_sum"), column_title("hbm_tb_s_mean"), column_title("percent_of_roofline_mean")
    ('Kernel time, sum (µs)', 'HBM bandwidth, mean (TB/s)', 'Share of roofline, mean (%)')
    >>> column_title("effective_interconnect_tb_s_mean"), column_title("wire_mb"), column_title("ttft_ms")
    ('Effective interconnect bandwidth, mean (TB/s)', 'Interconnect data (MB)', 'To the first token (ms)')
    """
    base, statistic = split_statistic(key)
    said = f", {statistic}" if statistic else ""
    told = _titles()
    if base in told["titles"]:
        title, bracket, rest = told["titles"][base].partition(" (")
        return f"{title}{said}{bracket}{rest}"
    ending = next((each for each in _UNITS if f"_{base}".endswith(each)), "")
    unit = _UNITS.get(ending, "")
    words = f"_{base}".removesuffix(ending).lstrip("_").split("_")
    if words[:2] == ["percent", "of"]:
        words, unit = ["share", "of", *words[2:]], "%"
    text = " ".join(told["words"].get(each, each) for each in words)
    if unit in _QUANTITY and text.rpartition(" ")[2] not in told["say_quantity"]:
        text = f"{text} {_QUANTITY[unit]}".lstrip()
    return f"{text[:1].upper()}{text[1:]}{said}{f' ({unit})' if unit else ''}"


def split_statistic(key: str) -> tuple[str, str]:
    """
    >>> split_statistic("kernel_us_sum"), split_statistic("name")
    (('kernel_us', 'sum'), ('name', ''))
    """
    base, _, statistic = key.rpartition("_")
    return (base, statistic) if base and statistic in TOTALED else (key, "")


def column_for(key: str, columns: ColumnSet) -> TableColumn:
    """The column of ``key``; one without a meaning where nothing says more (``param_M``, extensions)."""
    if key in columns:
        return columns[key]
    if key.startswith(PARAMETER_PREFIX):
        title = f"Parameter {_parameter_words(key.removeprefix(PARAMETER_PREFIX))}"
        return TableColumn(key=key, meaning=PARAMETER, number_format=GENERAL, width=24, shown_as=title)
    return TableColumn(key=key, meaning="Added by an extension.", number_format=GENERAL)


#: How names of a perf model's dimensions read: what stands before "of".
_OF = {"num": "number", "dtype": "type", "shape": "shape", "stride": "stride"}


def _parameter_words(name: str) -> str:
    """
    >>> [_parameter_words(name) for name in ("M", "d_h_qk", "shape_in1", "dtype_A_B", "num_elems", "op_shape")]
    ['M', 'd_h_qk', 'shape of input 1', 'type of A, B', 'number of elements', 'op shape']
    """
    first, *rest = name.split("_")
    told = _titles()["parameter_words"]
    if first in _OF and rest:
        words = [told.get(word, word) for word in rest]
        return f"{_OF[first]} of {' '.join(words) if first == 'num' else ', '.join(words)}"
    if any(len(word) < 2 for word in (first, *rest)):
        return name
    return " ".join(told.get(word, word) for word in (first, *rest))


#: What a column of a perf model's dimension means.
PARAMETER = "Dimension or property that the perf model read from the arguments."


def sheet(
    title: str, *, columns: ColumnSet | None = None, order: int = LAST, json: int | None = LAST
) -> Callable[[F], F]:
    """Marks ``function(result) -> DataFrame | None`` as the sheet ``title``; None or no rows leaves the sheet out.

    ``result`` is what the analysis found (``result.frames["unified_perf_summary"]``, ``result.families["GEMM"]``,
    ``result.trace``, ``result.activity``). The function's docstring says what a row is. ``columns`` gives keys their
    meaning and order, None those of ``unified_perf_summary``; keys that begin with ``_`` are not shown. Sheets stand
    by ``order``, then title; from ``FURTHER`` on the workbook has them with --all-sheets. ``json``: place among the
    views of ``report.json``; None leaves it out of there.
    """
    return mark("sheet", title, columns=columns, order=order, json=json)


def table(name: str, *, columns: ColumnSet) -> Callable[[F], F]:
    """Marks ``function(analysis) -> DataFrame | None`` as the table ``name`` of SQL; its docstring: what a row is."""
    return mark("table", name, columns=columns)
