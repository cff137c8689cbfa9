"""The pages in docs/: their Python runs, and their links lead somewhere."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from docs.generate_query import lake_page
from docs.take_pictures import LIMITED, SHOTS, TERMINAL, WORKBOOK
from docs.take_pictures import PAGES as PICTURED
from example_traces.generate_moe_ep_step import write as write_ranks
from tests.conftest import row_by_row
from tracelens import errors
from tracelens.analysis.sheets import built_in_sheets
from tracelens.cli import FAILED, INTERRUPTED, TERMINATED, comparing, main, reporting
from tracelens.cli.verbs import VERBS

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


@row_by_row("page", PAGES)
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
        == {*map("{}.png".format, (*SHOTS, *PICTURED, LIMITED, TERMINAL, WORKBOOK))}
    )


def test_the_command_page_names_every_command_and_every_option_of_report() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [verb for verb in VERBS if f"\ntracelens {verb} " not in page] == []
    parser = argparse.ArgumentParser(add_help=False)
    reporting.configure_report(parser)
    options = [text for action in parser._actions for text in action.option_strings if text.startswith("--")]
    assert [text for text in options if text not in page and text != "--output"] == []


def test_the_command_page_is_short_where_it_is_written_by_hand() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    by_hand = re.sub(r"<!-- (options of|commands).*?<!-- end of \w+ -->", "", page, flags=re.DOTALL)
    assert len(page.split()) > 5000
    assert len(by_hand.split()) <= 1500


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


#: Pages that a module of docs/ writes, with that module; what stands above the sentence that says so is written by hand.
WRITTEN_BY = {
    "columns.md": "generate_columns",
    "designs.md": "generate_designs",
    "differences.md": "generate_differences",
    "findings.md": "generate_findings",
    "query.md": "generate_query",
}
#: A part of a page that a module writes, with that module.
_GENERATED = re.compile(r"^<!-- [^>]*: python -m docs\.(\w+) -->\n.*?^<!-- end of [^>]* -->$", re.DOTALL | re.MULTILINE)


def written_by_hand(name: str) -> str:
    text = (DOCS / name).read_text(encoding="utf-8")
    if module := WRITTEN_BY.get(name):
        by_hand, said, _ = text.partition(f"This page is generated: `python -m docs.{module}`")
        assert said, f"{name} does not say that {module} writes it"
        return by_hand
    return _GENERATED.sub("", text)


def test_the_pages_written_by_hand_are_short() -> None:
    words = {name: len(written_by_hand(name).split()) for name in PAGES}
    assert sum(words.values()) <= 32_000, sorted(words.items(), key=lambda item: -item[1])
    assert len(README.split()) <= 700


def test_what_is_not_counted_is_generated() -> None:
    parts = {name: _GENERATED.findall((DOCS / name).read_text(encoding="utf-8")) for name in PAGES}
    assert {name for name, modules in parts.items() if modules} == {"cli.md", "lake.md"}
    assert {*WRITTEN_BY.values(), *itertools.chain(*parts.values())} == {
        "generate_columns", "generate_designs", "generate_differences", "generate_findings", "generate_options",
        "generate_query",
    }  # fmt: skip
    assert (DOCS / "lake.md").read_text("utf-8") == lake_page((DOCS / "lake.md").read_text("utf-8"))


#: A number as a tool prints it: not a part of a name or of a longer number.
_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])")


@pytest.mark.sweep
def test_the_tutorial_quotes_what_its_commands_print(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every number of a quoted block, in order of the block, and the figures of the prose around it."""
    shutil.copytree(repository / "example_traces", tmp_path / "example_traces", ignore=shutil.ignore_patterns("*.py"))
    monkeypatch.chdir(tmp_path)
    write_ranks(tmp_path / "balanced", popularity=0)
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    printed, compared = "", 0
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        if language == "":
            for line in block.splitlines():
                if line.startswith("tracelens "):
                    words = shlex.split(line)[1:]
                    if words[0] not in VERBS:
                        words.insert(0, "collectives" if words[0].endswith("/") else "report")
                    assert main(words) == 0
                    printed = capsys.readouterr().out
        elif language == "text":
            known = _NUMBER.findall(printed)
            assert [number for number in _NUMBER.findall(block) if number not in known] == []
            compared += 1
    assert compared == 4


README = (DOCS.parent / "README.md").read_text(encoding="utf-8")


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
