"""The pages in docs/: their Python runs, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


def python_of(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_the_tutorial_runs_on_the_example(repository: Path) -> None:
    (example,) = python_of("tutorial.md")
    names: dict[str, Any] = {}
    exec(compile(example, "tutorial.md", "exec"), names)  # noqa: S102 - our own page
    explanation, worst = names["worst_gemms"](repository / "example_traces" / "moe_ep8" / "rank0.json.gz")
    assert "TFLOP" in str(explanation)
    assert len(worst) == 5


def test_the_recording_page_is_python() -> None:
    (example,) = python_of("recording.md")
    compile(example, "recording.md", "exec")


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (DOCS / page).read_text(encoding="utf-8")):
        assert (DOCS / target).exists(), target
