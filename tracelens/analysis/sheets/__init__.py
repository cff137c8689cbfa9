"""The sheets of a report: of each its columns, its place, and what makes its frame, by subject.

``columns.json`` has the columns and places of all of them, and of the tables of SQL. A sheet is a function with the
``@built_in`` mark (of an extension: ``@sheet``); one whose frame is an expression is a row of its module's ``SHEETS``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from tracelens import schema
from tracelens.registry import Registry, modules_below
from tracelens.types.records import pd

Frame = Callable[[Any], "pd.DataFrame | None"]


@cache
def built_in_sheets() -> Registry:
    """Title -> sheet function, over all modules below this package. Extensions are laid over it per report."""
    return collect_sheets(modules_below(__name__))


def collect_sheets(modules: list[ModuleType]) -> Registry:
    """Title -> sheet function of these modules."""
    return Registry.collect("sheet", modules)


def built_in(title: str) -> Callable[[schema.F], schema.F]:
    """Marks ``function(result) -> DataFrame | None`` as the sheet ``title`` of ``columns.json``; else as ``@sheet``."""
    told = _declared()[title]
    return schema.sheet(title, columns=columns_of(title), order=told["order"], json=told["json"])


def sheet_rows(frames: Mapping[str, Frame]) -> tuple[Frame, ...]:
    """Sheets whose frame is one expression of the context, by title; ``columns.json`` says what a row of each is."""
    rows = []
    for title, frame in frames.items():
        row = partial(frame)
        row.__doc__ = _declared()[title]["row"]
        rows.append(built_in(title)(row))
    return tuple(rows)


@cache
def columns_of(title: str) -> dict[str, schema.TableColumn]:
    """The columns of a sheet (``steps``) or of a table of SQL (``sql.calls``), by key."""
    return schema.column_set(*map(_columns, _declared()[title]["columns"]))


@cache
def _declared() -> dict[str, Any]:
    return msgspec.json.decode(Path(__file__).with_name("columns.json").read_bytes())


def _columns(entry: Any) -> Collection[schema.TableColumn]:
    """``[kind, key, meaning, fields of a TableColumn]``: a column, or one for each statistic ``over`` it.

    In a meaning ``{NAME}`` is one of the ``texts``. ``NAME``: one of the ``shared``; ``sheet.key``: that column of
    another sheet, ``sheet.*``: all of its columns. ``{"of": one of these, "over": statistics}``.
    """
    if isinstance(entry, str):
        title, dot, key = entry.rpartition(".")
        if not dot:
            return [column for each in _declared()["shared"][key] for column in _columns(each)]
        found = columns_of(title)
        return [*found.values()] if key == "*" else [found[key]]
    if isinstance(entry, dict):
        ((column,), over) = _columns(entry["of"]), entry["over"]
    else:
        kind, key, meaning, *more = entry
        fields = dict(*more)
        over = fields.pop("over", None)
        column = getattr(schema, kind)(key, meaning.format_map(_declared()["texts"]), **fields)
    over = {"SPREAD": schema.SPREAD, "TOTALED": schema.TOTALED}.get(over, over) if isinstance(over, str) else over
    return [column] if over is None else schema.statistics(over, column)
