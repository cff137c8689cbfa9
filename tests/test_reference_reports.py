"""Reports of the example traces against the committed ones, cell by cell.

After a change that is meant to show: ``python -m reference_reports.regenerate``, and say in the commit why they differ.
"""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

from reference_reports.regenerate import HERE, REPORTS, renew, write_reports


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports")
    write_reports(folder)
    return folder


def cells(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


def close(mine: Any, theirs: Any) -> bool:
    try:
        return mine == theirs or math.isclose(float(mine), float(theirs), rel_tol=1e-9, abs_tol=1e-12)
    except (TypeError, ValueError):
        return False


@pytest.mark.parametrize("name", REPORTS)
def test_every_cell_of_every_sheet_is_as_committed(fresh: Path, name: str) -> None:
    committed = sorted(path.name for path in (HERE / name / "csv").iterdir())
    assert sorted(path.name for path in (fresh / name / "csv").iterdir()) == committed
    for sheet in committed:
        ours, theirs = cells(fresh / name / "csv" / sheet), cells(HERE / name / "csv" / sheet)
        assert ours[0] == theirs[0], sheet
        assert len(ours) == len(theirs), sheet
        different = [
            f"{sheet} row {row} {theirs[0][column]}: {mine!r}, committed {their!r}"
            for row, (left, right) in enumerate(zip(ours, theirs, strict=True))
            for column, (mine, their) in enumerate(zip(left, right, strict=True))
            if not close(mine, their)
        ]
        assert not different, "\n".join(different[:10])


@pytest.mark.parametrize("name", REPORTS)
def test_the_json_document_is_as_committed(fresh: Path, name: str) -> None:
    def differences(mine: Any, theirs: Any, path: str) -> list[str]:
        if isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
            return [d for key in mine for d in differences(mine[key], theirs[key], f"{path}.{key}")]
        if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
            return [
                d for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) for d in differences(a, b, f"{path}[{i}]")
            ]
        return [] if close(mine, theirs) else [f"{path}: {mine!r}, committed {theirs!r}"]

    ours, theirs = (json.loads((folder / name / "report.json").read_text()) for folder in (fresh, HERE))
    assert not differences(ours, theirs, "")[:10]


def test_regenerating_keeps_lines_that_differ_in_last_digits_alone(tmp_path: Path) -> None:
    kept, fresh = tmp_path / "kept", tmp_path / "fresh"
    (kept / "csv").mkdir(parents=True)
    (fresh / "csv").mkdir(parents=True)
    (kept / "csv" / "ops.csv").write_text("name,std\nmm,0.0530738650388802\nadd,1.5\ncopy 2.0,3\n")
    (fresh / "csv" / "ops.csv").write_text("name,std\nmm,0.0530738650388803\nadd,1.6\ncopy 2.1,3\n")
    (kept / "csv" / "gone.csv").write_text("name\n")
    (fresh / "report.json").write_text("{}")
    renew(kept, fresh)
    assert (kept / "csv" / "ops.csv").read_text() == "name,std\nmm,0.0530738650388802\nadd,1.6\ncopy 2.1,3\n"
    assert sorted(path.name for path in kept.rglob("*.*")) == ["ops.csv", "report.json"]
