"""Writes docs/columns.md from the columns that the report itself uses: ``python -m docs.generate_columns``."""

from __future__ import annotations

from pathlib import Path

from tracelens.analysis.ranks.sheets import rank_sheets
from tracelens.analysis.sheets import built_in_sheets
from tracelens.analysis.sheets.ops import families
from tracelens.schema import ColumnSet

PAGE = Path(__file__).resolve().parent / "columns.md"
_INTRODUCTION = """# Columns

Every column of every sheet, with what it means: the same text as the comment on its header in the workbook.
A `*` stands for a statistic over the calls of a row (mean, median, std, min, max, sum). Times are µs unless a header
says otherwise; MB are 1e6 bytes, TB/s 1e12 bytes per second. An empty cell was not determined by what was recorded.
How the figures are computed: [report.md](report.md).

This page is generated: `python -m docs.generate_columns` writes it anew, and a test compares.
"""


def page() -> str:
    """The text of docs/columns.md."""
    claims = sorted(
        [*built_in_sheets().values(), *rank_sheets().values()], key=lambda claim: (claim.options["order"], claim.key)
    )
    parts = [_INTRODUCTION]
    parts += [_section(f"`{claim.key}`", claim.options["columns"]) for claim in claims]
    parts.append(
        _section(
            "The sheets of perf-model families (`GEMM`, `SDPA_fwd`, `EP_Communication` ...)",
            families.COLUMNS,
            "A column `param: *` for each dimension of the model comes after the name.",
        )
    )
    return "\n".join(parts)


def _section(title: str, columns: ColumnSet, remark: str = "") -> str:
    lines = [f"## {title}", "", *([remark, ""] if remark else []), "| column | unit | is |", "|---|---|---|"]
    seen: set[str] = set()
    for column in columns.values():
        header = column.family or column.header
        if header not in seen:
            seen.add(header)
            lines.append(f"| {_cell(header)} | {_cell(column.unit)} | {_cell(column.meaning)} |")
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
