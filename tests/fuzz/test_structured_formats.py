"""Documents of every format that a user gives, with any value, key or list replaced at any depth: a documented exit code,
one sentence, no traceback, no escape sequence, no hang.

Every case follows from its number; the first of each format run with every test run, 20,000 in all with ``-m sweep`` (300 of a format, 100 where a trace
is read), 105,000 where ``TRACELENS_FUZZ_CASES`` is 1600.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import part
from tests.fuzz.commands import REQUESTS, VERBS, answers, command_on, sound_files, survives
from tests.fuzz.documents import FORMATS, ODD, changed, sound
from tracelens.cli.agents.tools import listed
from tracelens.cli.verbs import VERBS as KNOWN

FAST, BATCH = 1, 100
ALL = int(os.environ.get("TRACELENS_FUZZ_CASES", "300"))
#: A case of these takes as long as many of the others: verbs that read a trace.
READING = (
    "report",
    "compare",
    "whatif",
    "replay",
    "slim",
    "anonymize",
    "perfetto",
    "convert",
    "fuse",
    "collectives",
    "query",
    "calibrate",
    "baseline",
    "check",
    "extensions",
)
OPTIONS = (
    "--",
    "-o",
    "--device",
    "--model",
    "--tp",
    "--seed",
    "--batch",
    "-h",
    "--format",
    "--steps",
    "--extension",
    "--backend",
    "--executor",
    "--jobs",
    "--max-memory",
    "--gate",
)


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return sound_files(tmp_path_factory.mktemp("around"))


def check(name: str, number: int | None, around: dict[str, Path], folder: Path) -> None:
    _, written, _, command = FORMATS[name]
    document = sound(name, around["LAKE"].parent)
    if number is not None:
        document = changed(document, Random(f"{name} {number}"))
    try:
        code = survives(command_on(name, written(document), around, folder))
        assert number is not None or code == 0 or (code, command[0]) == (3, "calibrate")
    except BaseException as error:
        error.add_note(f"case {number} of {name}")
        raise


def cases(name: str) -> int:
    """Of a format with ``-m sweep``."""
    return ALL // 4 if FORMATS[name][3][0] in READING or name.startswith("trace ") else ALL


@pytest.mark.parametrize("name", part(list(FORMATS), 6))
def test_changed_documents(name: str, around: dict[str, Path], tmp_path: Path) -> None:
    for number in (None, *range(FAST)):
        check(name, number, around, tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "first"), [(name, at) for name in FORMATS for at in range(FAST, cases(name), BATCH)])
def test_all_changed_documents(name: str, first: int, around: dict[str, Path], tmp_path: Path) -> None:
    for number in range(first, first + BATCH):
        check(name, number, around, tmp_path)


def words(number: int) -> list[str]:
    random = Random(f"argv {number}")
    given = random.choice(VERBS).split()
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(given) + 1)
        bad = str(random.choice(ODD)).replace("\x00", "") or "x"
        match random.randrange(4):
            case 0:
                given.insert(at, bad)
            case 1:
                del given[at : at + 1]
            case 2:
                given.insert(at, random.choice(OPTIONS))
            case _:
                given[at : at + 1] = [bad]
    return given


IN_BATCHES = [0, *(pytest.param(at, marks=pytest.mark.sweep) for at in range(BATCH, max(ALL, BATCH + 1), BATCH))]


@pytest.mark.parametrize("first", IN_BATCHES)
def test_changed_arguments(
    first: int,
    around: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(first, first + (BATCH if first else FAST)):
        given = [str(around["TRACE"]) if word == "FILE" else word for word in words(number)]
        try:
            survives(given)
        except BaseException as error:
            error.add_note(f"arguments {number}: {given}")
            raise


def request(number: int) -> tuple[str, Any]:
    random = Random(f"request {number}")
    tool = random.choice(sorted(REQUESTS))
    return tool, changed({**REQUESTS[tool], "max_tokens": 400, "cursor": None}, random)


@pytest.mark.parametrize("first", IN_BATCHES)
def test_changed_requests(first: int, around: dict[str, Path]) -> None:
    for number in range(first, first + (BATCH if first else FAST)):
        answers(*request(number), around["TRACE"].parent)


def test_a_sweep_has_20_000_cases() -> None:
    of_formats = sum(len(range(0, cases(name), BATCH)) * BATCH for name in FORMATS)
    assert ALL < 300 or of_formats + 2 * ALL >= 20_000


def test_no_verb_or_tool_is_left_out() -> None:
    assert {command.split()[0] for command in VERBS} == {*KNOWN} - {"mcp"}
    assert set(REQUESTS) == {each["name"] for each in listed()}
