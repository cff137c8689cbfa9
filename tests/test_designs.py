"""Every feature of the designs that tracelens comes from is there: what docs/designs.md shows runs, and says what it has to."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tracelens
from docs.generate_designs import PAGE, designs, page
from tests.cli.test_route_command import PRODUCTION
from tests.workload.test_launch_files import PRIMUS
from tracelens.cli import main

REPOSITORY = Path(__file__).resolve().parent.parent
FEATURES = [
    pytest.param(feature, id=f"{design['title'].split()[0]}-{number}".lower())
    for design in designs()
    for number, feature in enumerate(design["feature"])
]


def test_the_page_is_as_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m docs.generate_designs"


def test_every_feature_says_something_that_can_be_looked_for() -> None:
    assert [each["asks"] for design in designs() for each in design["feature"] if not all(each["says"])] == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the files that the commands name, in which they run one after the other."""
    made = tmp_path_factory.mktemp("designs")
    example = REPOSITORY / "example_traces" / "moe_ep8"
    shutil.copytree(example, made / "traces")
    shutil.copy(example / "rank0.json.gz", made / "trace.json.gz")
    shutil.copy(REPOSITORY / "docs" / "experiment_config.yaml", made)
    (made / "params.py").write_text(PRODUCTION, encoding="utf-8")
    (made / "primus.yaml").write_text(PRIMUS, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        assert main(["report", "traces/rank0.json.gz", "-o", "rank0.report"]) == 0
        yield made


@pytest.mark.sweep
@pytest.mark.parametrize("feature", FEATURES)
def test_the_feature_is_there(
    feature: dict[str, Any], files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    if feature["run"].startswith("tracelens "):
        assert main(shlex.split(feature["run"])[1:]) == 0
        shown = "".join(capsys.readouterr())
    else:
        shown = repr(eval(feature["run"], {"tl": tracelens}))  # noqa: S307 - our own page
    assert [pattern for pattern in feature["says"] if not re.search(pattern, shown)] == [], shown
