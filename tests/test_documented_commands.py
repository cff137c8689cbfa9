"""Every command and piece of Python that a page shows is understood, and runs on files as the page assumes them.

The files are small; with ``-m sweep`` every command is run, beside the other tests only parsed.
"""

from __future__ import annotations

import csv
import gzip
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import tracelens
from tests.cli.test_route_command import PRODUCTION
from tests.conftest import row_by_row
from tests.fuzz.documents import FORMATS
from tracelens.cli import main
from tracelens.cli.parsing import parser_of
from tracelens.cli.verbs import VERBS

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
#: What follows a command on its line: a comment, or an explanation behind two blanks.
_ASIDE = re.compile(r"( # |  ).*$")
#: What a page writes where its reader puts something of their own.
PLACES = {
    "TRACE_DIR|GLOB|FILES": "traces/", "TRACE_DIR": "traces/", "FOLDER...": "traces/", "FOLDER": "traces/",
    "TRACE": "t.json.gz", "NAME|config.json": "llama3.1-8b", "[--format json]": "--format json", "IN": "t.json.gz",
    "OUT": "out.pftrace", "3-5": "10-11", "FILE.csv": "scores.csv", "FILE.py": "my_ops.py", "FILE": "t.json.gz", "NAME": "gdn", "...": "",
}  # fmt: skip
#: Parsed only: what they name is neither small nor made here.
NOT_RUN = (
    "mcp",  # serves until its client leaves; tests/agents drives it
    "estimate gdn --batch",  # a table of ../shared: tests/backends
    "calibrate nccl.csv --cluster NAME",
    "extensions new my_lib::op --from",  # an op of the reader's: tests/cli/test_extensions_command.py
    "calibrate trace.json.gz other.report",  # the reader's measurements: tests/cli/test_calibrate_command.py
    "calibrate nccl.csv",
    "report new.json.gz --device my_mi300x.toml",
    "report run.sqlite",  # tests/trace/formats
    "report s3://",  # a store of the reader's: tests/files/test_remote.py
    "collectives gs://",
    'query trace.json.gz "SELECT ..."',  # tests/analysis/test_queries.py
    "whatif TRACE --apply",  # a finding of the reader's: tests/whatif
    "serve --scenarios",  # minutes; tests/cli/test_serve_command.py runs smaller ones
    "estimate collective --batch",  # tables of ../shared: tests/network
    "estimate ep --batch",
)


def commands_of(page: Path) -> list[str]:
    """Commands with an argument, in the order of the page, without what explains them."""
    found = []
    is_fenced = False
    for line in page.read_text(encoding="utf-8").splitlines():
        is_fenced ^= line.startswith("```")
        if line.startswith("tracelens ") if is_fenced else line.startswith("    tracelens "):
            found.append(_ASIDE.sub("", line.strip()))
        else:
            found += re.findall(r"`(tracelens [a-z]+ [^`]+)`", line)
        found += re.findall(r"`(tracelens [\w/]+(?:\.json(?:\.gz)?|/)(?: [^`]+)?)`", line)
    return [
        command for command in found if (len(words := command.split()) > 2 and words[1] in VERBS) or is_short(words)
    ]


def is_short(words: list[str]) -> bool:
    """Whether the command names its trace, or its folder of ranks, without a verb."""
    return words[1].endswith((".json", ".json.gz", "/"))


def words_of(command: str) -> list[str]:
    for place, stands_for in PLACES.items():
        command = re.sub(rf"(?<![\w.]){re.escape(place)}(?![\w.|])", stands_for, command)
    return shlex.split(command)[1:]


COMMANDS = {
    page.name: list(dict.fromkeys(commands_of(page)))
    for page in PAGES
    if page.name not in ("cli.md", "findings.md", "designs.md")
}
WITH_COMMANDS = [page for page, commands in COMMANDS.items() if commands]


def test_there_are_commands() -> None:
    assert len(WITH_COMMANDS) > 15
    assert sum(map(len, COMMANDS.values())) > 90


def test_what_is_not_run_is_shown() -> None:
    shown = [command.removeprefix("tracelens ") for commands in COMMANDS.values() for command in commands]
    assert [start for start in NOT_RUN if not any(command.startswith(start) for command in shown)] == []


@row_by_row("page", WITH_COMMANDS)
def test_every_option_that_a_page_shows_is_known(page: str) -> None:
    for command in COMMANDS[page]:
        words = words_of(command)
        if is_short(["tracelens", *words]):
            words.insert(0, "collectives" if words[0].endswith("/") else "report")
        parser_of(words).parse_args(words)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the pages speak of."""
    made = tmp_path_factory.mktemp("documented")
    example = REPOSITORY / "example_traces" / "moe_ep8"
    for folder in ("traces", "before", "after", "example_traces/moe_ep8", "balanced"):
        shutil.copytree(example, made / folder)
    for name in ("trace", "t", "new", "eager", "rank0", "before", "after", "small", "shared"):
        shutil.copy(example / "rank0.json.gz", made / f"{name}.json.gz")
        (made / f"{name}.json").write_bytes(gzip.decompress((example / "rank0.json.gz").read_bytes()))
    for name, page, language, place in (
        ("my_ops.py", "extensions.md", "python", 0),
        ("my_package.py", "extensions.md", "python", 0),
        ("my_chip.toml", "devices.md", "toml", 0),
    ):
        text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
        fences = re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        (made / name).write_text(fences[place], encoding="utf-8")
    shutil.copy(REPOSITORY / "docs" / "experiment_config.yaml", made)
    (made / "production.toml").write_text(PRODUCTION, encoding="utf-8")
    (made / "compiled").mkdir()
    shutil.copy(REPOSITORY / "tests" / "analysis" / "sheets" / "torch_trace.log", made / "compiled")
    document, writer_of, *_ = FORMATS["counters"]
    (made / "ncu.csv").write_bytes(writer_of(document))
    tables = {
        "in.csv": [{"m": 128, "n": 4096, "k": 4096, "dtype": "bf16"}],
        "scores.csv": [
            {"id": f"{i}", "area": "gemm", "family": "bf16", "measured": 1.0, "predicted": 1.1, "low": 0.5, "high": 2}
            for i in range(4)
        ],
        "points.csv": [
            {
                "model": "llama3.1-8b",
                "gpu": "H100",
                "n_gpus": 8,
                "tp": 8,
                "gbs": 8,
                "seq_len": 4096,
                "precision": "bf16",
                "model_path": "llama3.1-8b",
                "system": "h100_sxm",
                "isl": 512,
                "osl": 16,
                "concurrency": 2,
            }
        ],
    }
    for name, rows in tables.items():
        with (made / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return made


@pytest.fixture
def at_the_files(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda _: True)


@pytest.mark.sweep
@pytest.mark.parametrize("page", WITH_COMMANDS)
@pytest.mark.usefixtures("at_the_files")
def test_every_command_that_a_page_shows_ends_well(page: str) -> None:
    commands = [each for each in COMMANDS[page] if not each.removeprefix("tracelens ").startswith(NOT_RUN)]
    assert {each: code for each in commands if (code := main(words_of(each)))} == {}


def fences(page: str, language: str) -> list[str]:
    """Blocks of a page in a language. Those of extensions.md, own_op.md, tutorial.md, recording.md and lake.md have tests beside
    what they are about.
    """
    path = REPOSITORY / page if page == "README.md" else REPOSITORY / "docs" / page
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def run(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {"tl": tracelens}
    exec(compile(text, "page", "exec"), names)  # noqa: S102 - our own page
    return names


@pytest.mark.sweep
@pytest.mark.usefixtures("at_the_files")
def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("agg")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    (example,) = fences("README.md", "python")
    assert len(run(example)["r"]["ops"]) > 10
    assert len(opened) == 1


@pytest.mark.sweep
@pytest.mark.usefixtures("at_the_files")
def test_the_python_of_regression_and_ranks_runs() -> None:
    shutil.copy("trace.json.gz", "baseline.json.gz")
    (example,) = fences("regression.md", "python")
    run(example)["test_the_step_stays_fast"]("trace.json.gz")
    (example,) = fences("ranks.md", "python")
    assert len(run(example)["late"]) > 0


@pytest.mark.sweep
@pytest.mark.parametrize("page", ["routing.md", "projection.md", "search.md", "serving.md"])
def test_the_call_of_a_page_runs(page: str) -> None:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    calls = re.findall(r"^(tl\.\w+\(.*\))$|`(tl\.\w+\(.*?\))`", text, re.MULTILINE)
    assert calls
    for call in calls:
        assert run(f"made = {''.join(call)}")["made"] is not None


@pytest.mark.sweep
@pytest.mark.parametrize(
    "page", ["models.md", "estimation.md", "network.md", "projection.md", "search.md", "routing.md", "serving.md"]
)
@pytest.mark.usefixtures("at_the_files")
def test_a_command_prints_the_answer_below_it(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    answers = re.findall(r"^```\n(tracelens [^`]*)\n```\n\n```text\n([^`]*)^```", text, re.MULTILINE)
    assert answers
    for command, answer in answers:
        assert main(words_of(command)) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert [line for line in answer.splitlines() if line.rstrip() not in printed] == []


@pytest.mark.usefixtures("at_the_files")
def test_the_model_of_the_page_is_one() -> None:
    (example,) = fences("models.md", "toml")
    Path("ours.toml").write_text(example, encoding="utf-8")
    assert main(["models", "show", "ours.toml"]) == 0
