"""Writes docs/query.md and the ready queries of docs/lake.md from the code: ``python -m docs.generate_query``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tracelens.analysis.tables import built_in_tables
from tracelens.files.sql import ReadyQuery, ready_queries, sql_type
from tracelens.registry import Claim

PAGE = Path(__file__).resolve().parent / "query.md"
READY = "tracelens.analysis.tables"
LAKE = PAGE.with_name("lake.md")
#: The ready queries of a lake stand between these lines; the rest of the page is written by hand.
BEGIN, END = "<!-- ready queries of a lake: python -m docs.generate_query -->\n", "<!-- end of ready queries -->\n"
_INTRODUCTION = """# Queries

`tracelens query trace.json.gz "SELECT ..."` asks one trace in SQL; `--ready NAME` runs a query of this page, `--list`
lists them. In a notebook: `r = tracelens.report("trace.json.gz")`, then `r.sql("SELECT ...")` is a DataFrame.
Needs DuckDB: `pip install 'tracelens-perf[query]'`.

- A statement is one SELECT (or WITH, DESCRIBE, SUMMARIZE). It sees the tables below and nothing else: no file, no
  network, no extension of DuckDB, no setting. It may take 2 GB of memory.
- Unknown values are NULL. Times are µs since the first event of the trace; MB are 1e6 bytes.
- `kernels.call` and `ranges.call` join with `calls.call`, `step` with `steps.step`. All tables but `steps`, `memory`,
  `counters` and `traces` have the scope of a report: the complete steps, or those of `--steps`. The answer names its
  scope.
- `--format json` prints `{"schema": "tracelens.query/1", "query": ..., "scope": ..., "rows": [{column: value}]}`
  (`tracelens/report/schemas/query.schema.json`); `-o FILE.csv`, `.json` or `.xlsx` writes a file.

This page is generated: `python -m docs.generate_query` writes it anew, and a test compares.
"""


def page() -> str:
    """The text of docs/query.md."""
    ready = [_ready(query) for query in ready_queries(READY).values()]
    return "\n".join([_INTRODUCTION, "## Ready queries\n", *ready, *tables(built_in_tables().values())])


def lake_page(text: str) -> str:
    """``text`` of docs/lake.md with its ready queries as they are now."""
    before, _, rest = text.partition(BEGIN)
    queries = "\n".join(map(_ready, ready_queries("tracelens.report.lake").values()))
    return f"{before}{BEGIN}\n{queries}\n{END}{rest.partition(END)[2]}"


def _ready(query: ReadyQuery) -> str:
    return f"**`{query.name}`**: {query.about}\n\n```sql\n{query.statement}\n```\n"


def tables(claims: Iterable[Claim]) -> list[str]:
    """A section per table: what a row is, and its columns."""
    return [
        f"## Table `{claim.key}`\n\n{claim.target.__doc__}\n\n| column | type | unit | is |\n|---|---|---|---|\n"
        + "".join(
            f"| `{key}` | {sql_type(column)} | {column.unit} | {column.note.replace('|', chr(92) + '|')} |\n"
            for key, column in claim.options["columns"].items()
        )
        for claim in claims
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    LAKE.write_text(lake_page(LAKE.read_text(encoding="utf-8")), encoding="utf-8")
