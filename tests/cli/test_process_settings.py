"""What a process that runs one command sets for itself, and a program that calls ``main`` keeps as it was."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import part

ASKED = "NUMPY_MADVISE_HUGEPAGE"
PROGRAM = """
import os, sys
from tracelens.cli import main
sys.argv = ["tracelens", "devices"]
before = "numpy" in sys.modules
main({arguments})
print("after", before, os.environ.get("{asked}"))
"""


@pytest.mark.parametrize(
    ("arguments", "own", "set_to"), part([("", None, "0"), ("", "1", "1"), ("['devices']", None, "None")], 3)
)
def test_numpy_asks_for_huge_pages_only_where_the_user_wants_it(
    arguments: str, own: str | None, set_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ASKED, raising=False)
    if own is not None:
        monkeypatch.setenv(ASKED, own)
    code = PROGRAM.format(arguments=arguments, asked=ASKED)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"after False {set_to}"
