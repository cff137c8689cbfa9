"""Every kind of finding says what to try, and docs/findings.md lists them all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracelens.analysis.sheets.ops.copies
from docs.generate_findings import PAGE, page
from tracelens.analysis import verdict
from tracelens.analysis.idle.idle_time import CAUSES
from tracelens.analysis.verdict.remedies import REMEDIES, remedy

FINDERS = [*Path(verdict.__path__[0]).glob("*.py"), Path(tracelens.analysis.sheets.ops.copies.__file__)]


def test_the_page_is_that_of_the_remedies() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_of_idle_time_has_a_remedy_of_its_own(cause: str) -> None:
    assert f"idle: {cause}" in REMEDIES


def test_every_finding_in_the_code_has_a_remedy() -> None:
    made = {
        found
        for path in FINDERS
        for call in re.findall(r"\bFinding\((.*?)\n    *\)", path.read_text(encoding="utf-8"), re.DOTALL)
        for found in re.findall(r'\bid="(\w+)"', call)
    }
    assert len(made) >= 9
    assert made == {kind.partition(":")[0] for kind in REMEDIES}


def test_a_bound_without_a_remedy_of_its_own_has_that_of_the_id() -> None:
    assert remedy("op_below_roofline: L2") == REMEDIES["op_below_roofline"].remedy
    assert remedy("op_below_roofline: compute") == REMEDIES["op_below_roofline: compute"].remedy


@pytest.mark.parametrize("kind", REMEDIES)
def test_a_remedy_is_short(kind: str) -> None:
    """Two lines of the terminal."""
    assert len(f"try: {REMEDIES[kind].remedy}") <= 2 * 74
