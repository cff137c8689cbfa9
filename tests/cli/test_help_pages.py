"""Help that fits on a screen: the front page, ``--help`` and ``--help-all`` of every command."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import row_by_row
from tracelens.cli import main
from tracelens.cli.parsing import EVERY, Parser, common_options, parser_of
from tracelens.cli.verbs import GROUPS, VERBS


def below(parser: argparse.ArgumentParser, depth: int = 0) -> Iterator[Parser]:
    """The parsers of a command and of all below it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield each
                yield from below(each)


PAGES = {each.prog.removeprefix("tracelens "): each for verb in VERBS for each in below(parser_of([verb]))}


@pytest.fixture(autouse=True)
def eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def flags(action: argparse.Action) -> bool:
    return bool(action.option_strings) and action.help != argparse.SUPPRESS


def listed(page: str) -> set[str]:
    """The options that a page has a line for."""
    return {
        name for line in re.findall(r"^  (-.*?)(?:  |$)", page, re.MULTILINE) for name in re.findall(r"--[\w-]+", line)
    }


@row_by_row("command", PAGES)
def test_help_fits_on_a_screen_and_names_the_whole_page(command: str) -> None:
    page = PAGES[command].format_help()
    assert len(page.splitlines()) <= 45
    assert f"tracelens {command} --help-all" in page
    assert len(re.findall(r"^  -", page, re.MULTILINE)) <= 12


@row_by_row("command", PAGES)
def test_the_whole_page_has_every_option(command: str) -> None:
    parser = PAGES[command]
    wanted = {name for action in parser._actions if flags(action) for name in action.option_strings if name[:2] == "--"}
    assert wanted == listed(parser.format_all())
    assert parser.format_all().index(f"\n{EVERY}:") < parser.format_all().index("\n  -h, --help")


def test_the_whole_page_has_groups_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["serve", "--help-all"])
    page = capsys.readouterr().out
    assert stop.value.code == 0
    assert re.findall(r"^(\S.*):$", page, re.MULTILINE)[-1] == EVERY
    assert len(re.findall(r"^(\S.*):$", page, re.MULTILINE)) >= 4
    for name in ("--tp", "--router", "--arrivals"):
        assert re.search(rf"^  {name}\b(?:(?!^  -).)*default:\s", page, re.MULTILINE | re.DOTALL), name


def test_what_is_common_is_known() -> None:
    assert {name for name in common_options() if name not in PAGES} == set()
    assert {name for name in VERBS if name not in common_options()} == set()
    for command, common in common_options().items():
        known = {name.lstrip("-") for action in PAGES[command]._actions for name in action.option_strings}
        known |= {name for action in PAGES[command]._actions for name in action.choices or ()}
        assert [name for name in common.options.split() if name not in known] == [], command


@row_by_row("example", sorted({text for common in common_options().values() for text in common.examples}))
def test_examples_of_help_are_commands(example: str) -> None:
    words = shlex.split(example.removeprefix("source <(").removesuffix(")"))[1:]
    words = [*words, "list"] if words in (["models"], ["devices"], ["extensions"]) else words
    words = words if words[0] in VERBS else ["report", *words]
    assert parser_of(words).parse_known_args(words)[1] == []


def test_every_verb_has_a_short_line_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    page = capsys.readouterr().out
    assert sorted(re.findall(r"^  ([a-z]+) ", page, re.MULTILINE)) == list(VERBS)
    assert [line for line in page.splitlines() if len(line) > 85] == []
    for _, line in (row for group in GROUPS.values() for row in group.values()):
        assert line[0].islower(), line
        assert not line.endswith("."), line


def test_help_is_quick() -> None:
    """What a person waits for most often loads neither the parser nor a verb."""
    code = "import sys; from tracelens.cli import main; main(sys.argv[1:]); print('argparse' in sys.modules)"
    for words in ([], ["--help"]):
        shown = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout
        assert shown.endswith("\nFalse\n")
