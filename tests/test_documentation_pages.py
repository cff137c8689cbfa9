"""The pages in docs/: their Python runs, and their links lead somewhere."""

from __future__ import annotations

import argparse
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from docs.take_pictures import KEPT, SHOTS, TERMINAL
from docs.take_pictures import PAGES as PICTURED
from tracelens import errors
from tracelens.analysis.sheets import built_in_sheets
from tracelens.cli import FAILED, INTERRUPTED, TERMINATED, VERBS, comparing, main, reporting

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
    examples = python_of("recording.md")
    assert examples
    for example in examples:
        compile(example, "recording.md", "exec")


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (DOCS / page).read_text(encoding="utf-8")):
        assert (DOCS / target).exists(), target


def test_the_site_leads_to_every_page() -> None:
    text = (DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert sorted(re.findall(r"[\w/]+\.md", text)) == PAGES


def test_every_picture_is_shown_and_there() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"\(pictures/(\w+\.png)\)", (DOCS / page).read_text("utf-8"))
    }
    named |= set(re.findall(r"docs/pictures/(\w+\.png)", (DOCS.parent / "README.md").read_text("utf-8")))
    assert (
        {path.name for path in (DOCS / "pictures").glob("*.png")}
        == named
        == {*map("{}.png".format, (*SHOTS, *PICTURED, *KEPT, TERMINAL))}
    )


def test_what_became_of_each_point_is_held_by_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (\d+) .*\| ([^|]+) \|$", (DOCS / "looks.md").read_text("utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 21))
    tests = {path.stem for path in (DOCS.parent / "tests").rglob("*.py")}
    for _, held in rows:
        for name in re.findall(r"`([\w/]+)`", held):
            assert name in tests or (DOCS.parent / name).is_dir(), name


def test_the_command_page_names_every_command_and_every_option_of_report() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"\ntracelens {verb} " not in page] == []
    parser = argparse.ArgumentParser(add_help=False)
    reporting.configure_report(parser)
    options = [text for action in parser._actions for text in action.option_strings if text.startswith("--")]
    assert [text for text in options if text not in page and text != "--output"] == []


def test_the_command_page_lists_the_exit_code_of_every_error() -> None:
    table = (DOCS / "cli.md").read_text(encoding="utf-8").partition("## Exit codes")[2]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    raised = {
        kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)
    }
    assert listed == raised | {
        0,
        comparing.GATE_FAILED,
        reporting.EXTENSION_FAILED,
        reporting.CONTRADICTION,
        FAILED,
        INTERRUPTED,
        TERMINATED,
    }


def test_the_report_page_names_columns_by_their_keys() -> None:
    page = (DOCS / "report.md").read_text(encoding="utf-8")
    table = page.partition("## Rates and estimates")[2].partition("**Launch floor.**")[0]
    named = [
        name for cell in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for name in re.findall("`(.*?)`", cell)
    ]
    keys = {
        text
        for claim in built_in_sheets().values()
        for c in claim.options["columns"].values()
        for text in (c.key, c.family)
    }
    assert len(named) > 6
    assert [name for name in named if name not in keys] == []


README = (DOCS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", re.findall(r"^\| .*? \| `tracelens (.*?)` \|$", README, re.MULTILINE))
def test_each_question_of_the_readme_is_answered_by_its_command(
    command: str, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(repository / "example_traces" / "moe_ep8", tmp_path / "traces")
    for name in ("trace.json", "before.json", "after.json"):
        shutil.copy(repository / "example_traces" / "moe_ep8" / "rank0.json.gz", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 0


def test_the_pictures_of_the_readme_are_there() -> None:
    pictures = re.findall(r"!\[.*?\]\((.*?)\)", README)
    assert pictures
    assert [each for each in pictures if not (DOCS.parent / each).is_file()] == []


def test_source_files_that_pages_name_are_there() -> None:
    """As a path in the repository, or below the package."""
    named = {path for page in DOCS.glob("*.md") for path in re.findall(r"`([\w/]+/\w+\.py)`", page.read_text("utf-8"))}
    assert len(named) > 20
    places = (DOCS.parent, DOCS.parent / "tracelens")
    assert [path for path in sorted(named) if not any((place / path).is_file() for place in places)] == []
