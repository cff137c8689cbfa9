"""Writes docs/columns.md from the columns that the report itself uses: ``python -m docs.generate_columns``."""

from __future__ import annotations

from pathlib import Path

from tracelens.analysis.ranks.job_context import rank_sheets
from tracelens.analysis.sheets import built_in_sheets, priced_calls
from tracelens.report.assembly import FAMILIES, header
from tracelens.schema import ColumnSet, TableColumn

PAGE = Path(__file__).resolve().parent / "columns.md"
_INTRODUCTION = """# Columns

Every column of every sheet. A column has one name, its key: in CSV files, `report.json`, SQL and
DataFrames. The workbook and the page show its title, with what it means as a comment. A `*` stands for a statistic over
the calls of a row (mean, median, std, min, max, sum). Times are µs, MB are 1e6 bytes, TB/s 1e12 bytes per second. An
empty cell was not determined by what was recorded. How the figures are computed: [report.md](report.md).

`report --column-names tracelens` (also of `collectives`; in Python `column_names="tracelens"`) writes CSV files and the
workbook under the headers that users of AMD's TraceLens know, and `report["GEMM"]` has them too. They stand in the last
column where they differ from the key; those that say ms are in ms.

This page is generated: `python -m docs.generate_columns` writes it anew, and a test compares.
"""


def page() -> str:
    """The text of docs/columns.md."""
    claims = sorted(
        [*built_in_sheets().values(), *rank_sheets().values()], key=lambda claim: (claim.options["order"], claim.key)
    )
    parts = [_INTRODUCTION]
    parts += [_section(f"`{claim.key}`", claim.options["columns"], claim.key) for claim in claims]
    parts.append(
        _section(
            "The sheets of perf-model families (`GEMM`, `SDPA_fwd`, `EP_Communication` ...)",
            priced_calls.FAMILY_COLUMNS,
            FAMILIES,
            "A column `param_*` for each dimension of the model comes after the name.",
        )
    )
    return "\n".join(parts)


def _section(title: str, columns: ColumnSet, sheet: str, remark: str = "") -> str:
    lines = [f"## {title}", "", *([remark, ""] if remark else [])]
    lines += ["| key | title | unit | is | with `tracelens` |", "|---|---|---|---|---|"]
    seen: set[str] = set()
    for column in columns.values():
        if column.family not in seen:
            seen.add(column.family)
            words = (column.family_title, column.unit, column.meaning, _known_as(column, sheet))
            lines.append(f"| `{column.family}` | {' | '.join(map(_cell, words))} |")
    return "\n".join([*lines, ""])


def _known_as(column: TableColumn, sheet: str) -> str:
    """The header of the compatibility vocabulary; empty where it is the key."""
    known = header(column.key, sheet)
    if known == column.key:
        return ""
    return "*".join(known.rsplit(column.statistic, 1)) if column.statistic else known


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
