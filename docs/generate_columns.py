"""Writes docs/columns.md from the columns that the report itself uses: ``python -m docs.generate_columns``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tracelens.analysis.ranks.rank_comparison import rank_sheets
from tracelens.analysis.sheets import built_in_sheets, priced_calls
from tracelens.registry import Claim
from tracelens.report.assembly import FAMILIES, header
from tracelens.schema import FURTHER, ColumnSet, TableColumn

PAGE = Path(__file__).resolve().parent / "columns.md"
SHARED = "Columns of several sheets"
_INTRODUCTION = """# Columns

Every column of every sheet. A column has one name, its key: in CSV files, `report.json`, SQL and
DataFrames. The workbook and the page show its title, with its meaning as a comment. A `*` stands for a statistic over
the calls of a row (mean, median, std, min, max, sum). Times are µs, MB are 1e6 bytes, TB/s 1e12 bytes per second. An
empty cell is unknown. [report.md](report.md) explains how the figures are computed.

The workbook has at most 14 sheets by default, in the order in which a person reads; its sheet `about` lists the others.
`--all-sheets` (Python: `to_excel(path, all_sheets=True)`) adds them: here marked *further*. Formats for machines have
every table without it: CSV files and `report["GEMM"]`; SQL and `report.json` hold the same figures in fewer tables.

`report --column-names tracelens` (also of `collectives`; in Python `column_names="tracelens"`) writes CSV files and the
workbook under the headers of AMD's TraceLens, and `report["GEMM"]` has them too. The last column shows them where they
differ from the key; those that say ms are in ms. TraceLens' sheets in the workbook need `--all-sheets` as well.

![The sheets about and ops of the example](pictures/workbook.png)

This page is generated: `python -m docs.generate_columns` writes it anew, and a test compares.
"""
_FAMILIES = "The sheets of perf-model families (`GEMM`, `SDPA_fwd`, `EP_Communication` ...)"
_OF_FAMILIES = (
    "*Further.* Calls of one perf model. After the name comes a column `param_*` for each dimension of the model."
)


def page() -> str:
    """The text of docs/columns.md."""
    claims = [*_in_order(built_in_sheets()), *_in_order(rank_sheets())]
    sheets = {claim.key: claim.options["columns"] for claim in claims} | {FAMILIES: priced_calls.FAMILY_COLUMNS}
    times = Counter(told for columns in sheets.values() for told in {_told(column) for column in columns.values()})
    shared = {told for told, count in times.items() if count > 1}
    parts = [_INTRODUCTION, _shared_section(sheets, shared)]
    for claim in claims:
        further = "*Further.* " if claim.options["order"] >= FURTHER else ""
        text = " ".join((claim.target.__doc__ or "").split("\n\n")[0].split())
        parts.append(_section(f"`{claim.key}`", f"{further}{text}", claim.options["columns"], claim.key, shared))
    parts.append(_section(_FAMILIES, _OF_FAMILIES, priced_calls.FAMILY_COLUMNS, FAMILIES, shared))
    return "\n".join(parts)


def _in_order(claims: Mapping[str, Claim]) -> list[Claim]:
    return sorted(claims.values(), key=lambda claim: (claim.options["order"], claim.key))


def _told(column: TableColumn) -> tuple[str, str]:
    """Columns that are told alike."""
    return column.family, column.meaning


def _shared_section(sheets: Mapping[str, ColumnSet], shared: set[tuple[str, str]]) -> str:
    found: dict[tuple[str, str], tuple[TableColumn, list[str]]] = {}
    for sheet, columns in sheets.items():
        for column in columns.values():
            if _told(column) in shared:
                _, known = found.setdefault(_told(column), (column, []))
                known.append(_known_as(column, sheet))
    rows = [
        (column, ", ".join(dict.fromkeys(filter(None, known))))
        for column, known in sorted(found.values(), key=lambda entry: entry[0].family)
    ]
    return f"## {SHARED}\n\n{_table(rows)}"


def _section(title: str, text: str, columns: ColumnSet, sheet: str, shared: set[tuple[str, str]]) -> str:
    lines = [f"## {title}", "", text, ""]
    families: dict[str, TableColumn] = {}
    for column in columns.values():
        families.setdefault(column.family, column)
    told = [f"`{family}`" for family, column in families.items() if _told(column) in shared]
    if told:
        lines += [f"With [{SHARED.lower()}](#{SHARED.lower().replace(' ', '-')}): {', '.join(told)}.", ""]
    own = [(column, _known_as(column, sheet)) for column in families.values() if _told(column) not in shared]
    return "\n".join([*lines, _table(own)]) if own else "\n".join(lines)


def _table(rows: Iterable[tuple[TableColumn, str]]) -> str:
    lines = ["| key | title | is | with `tracelens` |", "|---|---|---|---|"]
    for column, known in rows:
        words = (column.family_title, column.meaning, known)
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
