"""Imports point down only, and rooms of one floor never import each other."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.structure.conftest import walked

PACKAGE = Path(__file__).resolve().parents[2] / "tracelens"

FLOORS: dict[str, int] = {
    **dict.fromkeys(("errors", "registry", "schema", "types", "extensions", "files"), 0),
    **dict.fromkeys(("trace", "perf_models", "hardware", "predict.network"), 1),
    **dict.fromkeys(("backends", "predict.workload"), 2),
    **dict.fromkeys(("analysis", "predict.estimation", "predict.projection", "predict.serving"), 3),
    **dict.fromkeys(("predict.calibration", "predict.routing", "predict.step_time", "comparison"), 4),
    **dict.fromkeys(("laboratory", "report"), 5),
    **dict.fromkeys(("testing", "integrations", "cli", "__init__", "__main__"), 6),
}
#: Folders and modules of the package at most.
MOST_FOLDERS, MOST_MODULES = 12, 8
#: What imports the laboratory, and the option or method that asks for it.
ASKS_LABORATORY = {
    "__init__.py": "tl.layer: a layer by the paper's rules",
    "analysis/attribution/window.py": "the hook of an extension written for AMD's TraceLens",
    "cli/project.py": "project --batch",
    "cli/search.py": "search --compare, --save-system, -o FILE.npy",
    "cli/serve.py": "serve --batch, --scenarios",
    "predict/projection/search/request.py": "search --rules paper, and the paper's systems under all rules",
    "predict/routing/exchange.py": "route --rules original",
    "report/result.py": "Report.check",
    "report/serving_report.py": "the text of serve --scenarios",
}


@cache
def every_import(path: Path) -> tuple[tuple[int, str, bool], ...]:
    """Line, module, and whether it is run with the module that imports it; parsed once for all tests."""
    found = []
    for node in walked(path.read_text(encoding="utf-8")):
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [node.module]
            if node.module == "tracelens":
                names += [f"tracelens.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found += [(node.lineno, name, node.col_offset == 0) for name in names]
    return tuple(found)


def imports(path: Path) -> list[tuple[int, str]]:
    return [(line, module) for line, module, _ in every_import(path)]


def upward(room: str, path: Path) -> list[str]:
    wrong = []
    for line, module in imports(path):
        parts = module.split(".")
        target = _room(parts[1:])
        if parts[0] != "tracelens" or target not in FLOORS:
            continue
        if target in (room, "laboratory"):
            continue
        if FLOORS[target] > FLOORS[room] or (FLOORS[target] == FLOORS[room] and FLOORS[room] not in (0, 6)):
            wrong.append(
                f"{path.relative_to(PACKAGE.parent)}:{line}: {room} (floor {FLOORS[room]}) imports {module} (floor {FLOORS[target]})"
            )
    return wrong


def room_of(path: Path) -> str:
    return _room(path.relative_to(PACKAGE).with_suffix("").parts)


def _room(parts: Sequence[str]) -> str:
    """``trace``; below ``predict`` the rooms of that."""
    return ".".join(parts[: 2 if parts[:1] in (("predict",), ["predict"]) else 1])


def test_every_room_has_a_floor() -> None:
    rooms = {room_of(p) for p in PACKAGE.rglob("*.py")} - {"predict.__init__"}
    assert rooms <= set(FLOORS), f"rooms without a floor: {sorted(rooms - set(FLOORS))}"


def test_imports_point_down() -> None:
    wrong = [
        line
        for path in sorted(PACKAGE.rglob("*.py"))
        if not room_of(path).endswith("__init__")
        for line in upward(room_of(path), path)
    ]
    assert not wrong, "\n".join(wrong)


#: What needs a recording, and shows or uses predictions all the same.
ASKS_PREDICTIONS = {
    "__init__.py": "the verbs of the Python API",
    "analysis/loaded_trace.py": "the model of a training job, for its utilization",
    "analysis/reading/engine_steps.py": "attention windows of known models",
    "analysis/reading/op_readings.py": "the type of the model that an option names",
    "analysis/reading/process_groups.py": "bytes that a token exchange moves",
    "analysis/verdict/verdict.py": "FLOPs per token, for the utilization",
    "backends/base.py": "clusters, in which a system has its links",
    "backends/collective_times.py": "times of collectives",
    "report/__init__.py": "the model of a training job, for its utilization",
    "report/projection_report.py": "text and pages of predictions",
    "report/route_report.py": "pages of predictions",
    "report/serving_report.py": "text and pages of predictions",
    "comparison/whatif/changes.py": "how a framework's kernels are fused, by name",
}


def test_the_two_halves_are_apart() -> None:
    """What needs a recording imports nothing that predicts, the command and these files aside."""
    asks = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("cli", "laboratory", "predict")
        and any(module.startswith("tracelens.predict") for _, module in imports(path))
    }
    assert asks == set(ASKS_PREDICTIONS)


def test_the_laboratory_is_asked_by_few() -> None:
    """Nothing but these files imports it, each but the first inside of the function that needs it or for types."""
    asks, early = set(), set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("laboratory/"):
            continue
        if any(module.startswith("tracelens.laboratory") for _, module in imports(path)):
            asks.add(name)
        early |= {name for _, module, is_early in every_import(path) if is_early and "tracelens.laboratory" in module}
    assert asks == set(ASKS_LABORATORY)
    assert not early


def test_an_upward_import_is_found(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "tracelens"
    (package / "trace").mkdir(parents=True)
    bad = package / "trace" / "bad.py"
    bad.write_text("import os\nfrom tracelens.perf_models.gemm import GEMM\n")
    monkeypatch.setattr(__import__("sys").modules[__name__], "PACKAGE", package)
    assert upward("trace", bad) == [
        "tracelens/trace/bad.py:2: trace (floor 1) imports tracelens.perf_models.gemm (floor 1)"
    ]


def test_the_package_is_seen_at_a_glance() -> None:
    folders = [path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()]
    assert len(folders) <= MOST_FOLDERS, folders
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_MODULES


def test_no_room_is_called_helpers() -> None:
    banned = {"utils", "helpers", "common", "core", "manager"}
    named = [p for p in PACKAGE.rglob("*") if p.stem in banned]
    assert not named


def test_the_top_of_the_repository_is_what_the_readme_names() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a clone: what is tracked is not known")
    folders = {name.partition("/")[0] for name in listed.stdout.splitlines() if "/" in name and name[0] != "."}
    wanted = {"benchmarks", "docs", "example_traces", "extensions", "reference_reports", "tests", "tracelens"}
    assert folders == wanted
