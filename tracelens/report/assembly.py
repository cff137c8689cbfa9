"""From an analysis to the sheets of a report, in order and under the headers that people see."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracelens.analysis.verdict.summary import Notice
from tracelens.registry import Claim
from tracelens.report.columns import FAMILY, Analyzed, Column, ColumnSet, column_for
from tracelens.report.sheets import built_in_sheets

if TYPE_CHECKING:
    import pandas as pd

#: Where the sheets of the perf-model families stand among the others.
FAMILIES = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sheet:
    """A named table. ``frame`` has the columns' keys, in the order of ``columns``; ``text`` says what a row is."""

    title: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    text: str = ""
    is_family: bool = False

    def headed(self) -> pd.DataFrame:
        """The frame under the headers that people see."""
        return self.frame.set_axis([column.header for column in self.columns], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The sheets of a report, and a notice for every sheet of an extension that failed."""

    sheets: tuple[Sheet, ...]
    failures: tuple[Notice, ...]


def assemble(result: Analyzed, sources: Iterable[object] = ()) -> Assembly:
    """Sheets of the core, of the families, and of ``sources`` (modules or marked functions of extensions).

    An extension's sheet replaces one of the same title. One that raises costs its sheet, not the report.
    """
    registry = built_in_sheets().overlaid(sources)
    placed: list[tuple[int, str, Sheet]] = []
    failures: list[Notice] = []
    for title, claim in registry.items():
        try:
            frame = claim.target(result)
        except Exception as error:
            if _is_core(claim):
                raise
            text = f"sheet {title!r} left out: {claim.origin} raised {type(error).__name__}: {error}"
            failures.append(Notice(id="extension_failed", count=1, text=text))
            continue
        if frame is not None and len(frame):
            made = make_sheet(title, frame, claim.options["columns"], _row_text(claim))
            placed.append((claim.options["order"], title, made))
    for title, frame in result.families.items():
        if len(frame) and title not in registry:
            text = f"One row per distinct call with the perf model of {title}."
            placed.append((FAMILIES, title, make_sheet(title, frame, FAMILY, text, is_family=True)))
    placed.sort(key=lambda entry: entry[:2])
    return Assembly(sheets=tuple(made for _, _, made in placed), failures=tuple(failures))


def make_sheet(
    title: str, frame: pd.DataFrame, columns: ColumnSet, text: str = "", *, is_family: bool = False
) -> Sheet:
    """``frame`` in the order of ``columns``; of what it has beside them, dimensions come second, the rest last."""
    keys = [key for key in map(str, frame.columns) if not key.startswith("_")]
    known = [key for key in columns if key in keys]
    dimensions = [key for key in keys if key.startswith("param: ") and key not in columns]
    rest = [key for key in keys if key not in columns and key not in dimensions]
    ordered = [column_for(key, columns) for key in (*known[:1], *dimensions, *known[1:], *rest)]
    is_empty = frame.isna().all()
    shown = tuple(c for c in ordered if not (c.optional and (is_empty[c.key] or _is_zero(c, frame))))
    return Sheet(title=title, frame=frame[[c.key for c in shown]], columns=shown, text=text, is_family=is_family)


def by_title(sheets: Sequence[Sheet], title: str) -> Sheet | None:
    """The sheet of that title, or None."""
    return next((made for made in sheets if made.title == title), None)


def _is_zero(column: Column, frame: pd.DataFrame) -> bool:
    return column.empty_at_zero and bool((frame[column.key].fillna(0) == 0).all())


def _is_core(claim: Claim) -> bool:
    return str(getattr(claim.target, "__module__", "")).startswith("tracelens.report.")


def _row_text(claim: Claim) -> str:
    return (inspect.getdoc(claim.target) or "").split("\n\n")[0].replace("\n", " ")
