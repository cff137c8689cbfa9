"""Examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import tracelens

PACKAGE = Path(tracelens.__file__).parent


def test_examples_in_docstrings_are_true() -> None:
    tried = 0
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found = doctest.testmod(importlib.import_module(".".join(part for part in parts if part != "__init__")))
            assert found.failed == 0, path
            tried += found.attempted
    assert tried > 5
