"""Writes docs/findings.md from the remedies that reports print: ``python -m docs.generate_findings``."""

from __future__ import annotations

from pathlib import Path

from tracelens.analysis.verdict.remedies import REMEDIES

PAGE = Path(__file__).resolve().parent / "findings.md"
_INTRODUCTION = """# Findings

What a report says under "look here first", kind by kind: what it sees, what to try, and when that brings nothing.
A gain is an upper bound per step (or in the window): overlapped work may gain nothing end to end. `report.json` has
each finding's `id`, `kind`, `why`, `gain_us`, `time_us`, `remedy`, and the `figures` of its sentence.

This page is generated: `python -m docs.generate_findings` writes it anew, and a test compares.
"""


def page() -> str:
    """The text of docs/findings.md."""
    parts = [_INTRODUCTION]
    for kind, known in sorted(REMEDIES.items()):
        parts.append(
            f"## `{kind}`\n\n{known.seen}\n\n- **Try:** {known.remedy}.\n- **No use when:** {known.wrong_when}\n"
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
