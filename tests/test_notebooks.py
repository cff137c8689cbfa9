"""The notebooks of docs/ run, and what they show is what they showed when they were kept."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.conftest import part

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "docs" / "notebooks").glob("*.ipynb"))


def shown(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; the value of its last expression, as a notebook shows it, None where it shows none."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not source.rstrip().endswith(";") else None
    exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - our own notebook
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # type: ignore[attr-defined]  # noqa: S307


@pytest.mark.parametrize("path", part(NOTEBOOKS, 3), ids=lambda path: path.stem)
def test_a_notebook_shows_what_it_showed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    monkeypatch.chdir(path.parent)
    names: dict[str, Any] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        value = shown("".join(cell["source"]), names)
        kept = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
        if value is not None:
            with pd.option_context("display.max_columns", 20, "display.width", 80):  # as in a notebook
                text = repr(value)
            assert text.split() == "".join(kept[0]["text/plain"]).split()
            assert not hasattr(value, "_repr_html_") or "text/html" in kept[0]
        else:
            assert kept == []
        assert not [output for output in cell["outputs"] if output["output_type"] == "error"]
    from matplotlib import pyplot

    pyplot.close("all")


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["first_report", "own_op", "project_and_search"]
