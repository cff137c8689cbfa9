"""docs/columns.md says what the code says."""

from __future__ import annotations

from docs.generate_columns import PAGE, page


def test_the_page_is_as_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.generate_columns"
