"""Documents of every format that a user gives, with any value, key or list replaced at any depth: a documented exit code,
one sentence, no traceback, no escape sequence, no hang.

Every case follows from its number; the first of each format run with every test run, 300 with ``-m sweep``, ``TRACELENS_FUZZ_CASES`` where that is set
(1600: 60,000 cases in all).
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.fuzz.documents import FORMATS, KINETO, ODD, as_json, changed
from tests.fuzz.survival import time_limit
from tracelens.agents.mcp_server import answered, listed
from tracelens.agents.roots import Roots
from tracelens.cli import main, verbs

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
#: A sound command of every verb but mcp, which reads standard input; FILE is a trace.
VERBS = (
    "anonymize FILE -o a.json", "baseline save one FILE --baselines b", "baseline list --baselines b", "calibrate FILE --device mi300x -o c.toml", "check FILE",
    "collectives FILE -o c --executor serial", "compare FILE FILE -o c.json", "completion bash", "convert FILE -o c.pftrace", "demo -o d.json", "devices list", "devices show h100-sxm",
    "estimate gemm --m 64 --n 64 --k 64 --device h100-sxm", "estimate sdpa --b 1 --s-q 64 --q-heads 4 --d-qk 64 --device mi300x",
    "estimate collective --op all_reduce --bytes 1MiB --cluster dgx-h100 --ranks 8", "extensions list", "extensions new aten::mm --from FILE", "fuse FILE -o f.json --executor serial",
    "ingest . --to lake --executor serial", "models show gpt2", "ops grouped", "perfetto FILE -o p.json", "query FILE SELECT", "query FILE --ready slowest", "record --for idle",
    "project --model gpt2 --cluster dgx-h100 --gpus 8 --global-batch 8 --tp 2", "replay FILE -o r", "report FILE -o r.json", "route --tokens 64 --experts 8 --ranks 2 --topk 2 --seed 1", "score FILE",
    "search --model gpt2 --cluster dgx-h100 --gpus 8 --global-batch 8 --executor serial --top 2", "serve --model gpt2 --device h100-sxm --rate 2 --requests 2 --input-tokens 8 --output-tokens 2",
    "slim FILE -o s.json --steps 3", "whatif FILE --scale aten::mm=0.5",
)  # fmt: skip
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
#: A sound request to every tool of ``tracelens mcp``.
REQUESTS: dict[str, dict[str, Any]] = {
    "files": {}, "report": {"trace": "t.json"}, "findings": {"trace": "t.json"}, "ops": {"trace": "t.json", "contains": "mm"}, "explain": {"trace": "t.json", "op": "aten::mm"},
    "compare": {"a": "t.json", "b": "t.json", "gate": ["step<+3%"]}, "whatif": {"trace": "t.json", "scale": ["aten::mm=0.5"]}, "collectives": {"trace": "."},
    "estimate": {"what": "gemm", "m": 512, "n": 512, "k": 512, "device": "h100-sxm"}, "project": {"model": "gpt2", "cluster": "dgx-h100", "nodes": 1, "global_batch": 8},
    "search": {"model": "gpt2", "cluster": "dgx-h100", "gpus": "8", "global_batch": 8, "top": 3},
    "serve": {"model": "gpt2", "cluster": "h100-sxm", "requests": 5, "input_tokens": "100", "output_tokens": "5", "rate": 1.0},
}  # fmt: skip


@pytest.fixture(scope="module")
def around(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Sound files that stand beside a changed one."""
    folder = tmp_path_factory.mktemp("around")
    found = {
        name: folder / file
        for name, file in (
            ("TRACE", "t.json"),
            ("BESIDE", "report.json"),
            ("LAKE", "lake"),
            ("BASELINE", "baseline.json"),
        )
    }
    found["TRACE"].write_bytes(as_json(KINETO))
    main(["report", str(found["TRACE"]), "-o", str(found["BESIDE"])])
    main(["baseline", "save", "baseline", str(found["TRACE"]), "--baselines", str(folder)])
    found["BASELINE"].write_bytes(gzip.decompress((folder / "baseline.json.gz").read_bytes()))
    main(["ingest", str(folder), "--to", str(found["LAKE"]), "--executor", "serial"])
    return found


def survives(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    with time_limit(30):
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
    shown = capsys.readouterr()
    assert code in (0, 1, 2, 3, 5), (arguments, shown.err[-500:])
    assert "Traceback" not in shown.out + shown.err
    assert "\x1b" not in shown.out + shown.err
    return code


def check(name: str, number: int | None, around: dict[str, Path], folder: Path, capsys: Any) -> None:
    document, written, file, command = FORMATS[name]
    if isinstance(document, str):
        document = json.loads((around["LAKE"].parent / document).read_text())
    if number is not None:
        document = changed(document, Random(f"{name} {number}"))
    own = {**around, "HERE": folder, "FOLDER": folder / "written"}
    if file.startswith("LAKE"):
        own["LAKE"] = folder / "LAKE"
        shutil.copytree(around["LAKE"], own["LAKE"], dirs_exist_ok=True)
    path = folder / file
    path.write_bytes(written(document))
    for left in (path.with_name(f"{path.name}.out.json"), own["FOLDER"]):
        shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
    given = [str(own.get(word, word)) if word in own else word.replace("FILE", str(path)) for word in command]
    try:
        code = survives(given, capsys)
        assert number is not None or code == 0 or (code, command[0]) == (3, "calibrate")
    except BaseException as error:
        error.add_note(f"case {number} of {name}")
        raise


def cases(name: str) -> int:
    """Of a format with ``-m sweep``."""
    return ALL // 4 if FORMATS[name][3][0] in READING else ALL


@pytest.mark.parametrize("name", FORMATS)
def test_changed_documents(
    name: str, around: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (None, *range(FAST)):
        check(name, number, around, tmp_path, capsys)


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "first"), [(name, at) for name in FORMATS for at in range(FAST, cases(name), BATCH)])
def test_all_changed_documents(
    name: str, first: int, around: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(first, first + BATCH):
        check(name, number, around, tmp_path, capsys)


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
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(first, first + (BATCH if first else FAST)):
        given = [str(around["TRACE"]) if word == "FILE" else word for word in words(number)]
        try:
            survives(given, capsys)
        except BaseException as error:
            error.add_note(f"arguments {number}: {given}")
            raise


def request(number: int) -> tuple[str, Any]:
    random = Random(f"request {number}")
    tool = random.choice(sorted(REQUESTS))
    return tool, changed({**REQUESTS[tool], "max_tokens": 400, "cursor": None}, random)


@pytest.mark.parametrize("first", IN_BATCHES)
def test_changed_requests(first: int, around: dict[str, Path]) -> None:
    roots = Roots.of([around["TRACE"].parent])
    for number in range(first, first + (BATCH if first else FAST)):
        tool, asked = request(number)
        with time_limit(30):
            text, failed = answered(tool, asked, roots)
        assert not failed or "a defect of tracelens" not in text, (number, tool, asked, text)
        assert text.isascii()


def test_no_verb_or_tool_is_left_out() -> None:
    assert {command.split()[0] for command in VERBS} == {*verbs()} - {"mcp"}
    assert set(REQUESTS) == {each["name"] for each in listed()}
