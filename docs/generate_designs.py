"""Writes docs/designs.md from docs/designs.toml: ``python -m docs.generate_designs``."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "designs.md"
_INTRODUCTION = """# The designs behind tracelens

Five designs asked for tracelens. Each row names a feature, a command or a line of Python that shows it, and any
intended difference. `tests/test_designs.py` runs each and checks its output.

This page is generated: `python -m docs.generate_designs` writes it from `docs/designs.toml`, and a test compares.
"""


def designs() -> list[dict[str, Any]]:
    """The designs, each with its features."""
    found: list[dict[str, Any]] = tomllib.loads((FOLDER / "designs.toml").read_text(encoding="utf-8"))["design"]
    return found


def page() -> str:
    """The text of docs/designs.md."""
    return "\n".join([_INTRODUCTION, *map(_section, designs())])


def _section(design: dict[str, Any]) -> str:
    rows = [f"| {each['asks']} | `{_cell(each['run'])}` | {each.get('differs', '')} |\n" for each in design["feature"]]
    head = "| feature | try | intended difference |\n|---|---|---|\n"
    left = "".join(f"- Not built, on purpose: {each['asks']}. {each['why']}\n" for each in design.get("left", ()))
    return f"## {design['title']}\n\n{design['about']}\n\n{head}{''.join(rows)}" + (left and f"\n{left}")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
