"""Writes docs/differences.md from docs/differences.toml: ``python -m docs.generate_differences``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "differences.md"
_INTRODUCTION = """# Where figures differ from the reference tables, and why

The eager traces in `../shared/data/traces` come with tables that another tool wrote. Joined on name and arguments,
parameters and FLOPs of GEMM, convolution and normalization calls equal those tables to 1e-9, and so do the bytes of
every GEMM, except for the rows below. "Rows" counts rows of the per-family tables of `mi300/`, `h100/`, `perf_model/`
and `torch_compile_triton/`.

This page is generated: `python -m docs.generate_differences` writes it from `docs/differences.toml`, and tests compare
both with the tables.
"""
_HEADINGS = {
    "op": "op",
    "figure": "figure",
    "reference": "reference",
    "ours": "tracelens",
    "why": "why",
    "rows": "rows",
}


def sections() -> list[dict[str, Any]]:
    """Each family of figures with its rows."""
    found: list[dict[str, Any]] = tomllib.loads((FOLDER / "differences.toml").read_text(encoding="utf-8"))["section"]
    return found


def page() -> str:
    """The text of docs/differences.md."""
    return "\n".join([_INTRODUCTION, *map(_section, sections())])


def _section(section: dict[str, Any]) -> str:
    keys = [key for key in _HEADINGS if key in section["row"][0]]
    lines = [
        [_HEADINGS[key] for key in keys],
        ["---"] * len(keys),
        *([row[key] for key in keys] for row in section["row"]),
    ]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
    about = f"{section['about']}\n\n" if "about" in section else ""
    return f"## {section['title']}\n\n{about}{table}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
