"""``tracelens trace.json.gz`` and ``tracelens FOLDER``: what a command line without a verb does."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tracelens.cli import main
from tracelens.cli.parsing import with_verb
from tracelens.errors import InputError, UsageError

EXAMPLE = Path(__file__).resolve().parents[2] / "example_traces" / "moe_ep8"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(EXAMPLE / "rank0.json.gz", "trace.json.gz")
    return tmp_path


def test_a_trace_alone_is_its_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace.json.gz"]) == 0
    plain = capsys.readouterr()
    assert {path.name for path in Path("trace.report").iterdir()} == {"report.xlsx", "report.html", "report.json"}
    assert main(["report", "trace.json.gz", "-o", "again.report"]) == 0
    asked = capsys.readouterr()
    assert plain.out.splitlines()[1:5] == asked.out.splitlines()[1:5]
    assert plain.err == asked.err


def test_options_of_report_follow_the_trace(here: Path) -> None:
    assert main(["trace.json.gz", "--csv", "--steps", "10", "-o", "out"]) == 0
    assert list(Path("out/csv").glob("*.csv"))


@pytest.mark.sweep
def test_a_folder_of_ranks_is_the_report_of_the_job(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(EXAMPLE, "job")
    assert main(["job"]) == 0
    shown = capsys.readouterr()
    assert "note: job holds 8 traces: tracelens collectives job" in shown.err
    assert Path("job.report/collectives.html").is_file()


def test_a_folder_with_one_trace_is_its_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("one").mkdir()
    shutil.copy("trace.json.gz", "one")
    assert with_verb(["one", "--csv"]) == ["report", "one/trace.json.gz", "--csv"]
    assert capsys.readouterr().err == "note: one holds one trace: tracelens report one/trace.json.gz\n"


@pytest.mark.sweep
def test_a_report_is_named_and_where_to_look(here: Path) -> None:
    assert main(["trace.json.gz"]) == 0
    with pytest.raises(UsageError, match=r"trace\.report is a report that tracelens wrote.*trace\.report/report\.html"):
        with_verb(["trace.report"])
    shutil.copytree(EXAMPLE, "job")
    assert main(["collectives", "job", "-o", "ranks"]) == 0
    with pytest.raises(UsageError, match=r"open ranks/collectives\.html"):
        with_verb(["ranks"])


def test_a_lake_shows_its_queries(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyarrow", reason="the lake extra is not installed")
    pytest.importorskip("duckdb", reason="the query extra is not installed")
    Path("one").mkdir()
    shutil.copy("trace.json.gz", "one")
    assert main(["ingest", "one", "--to", "lake", "--executor", "serial"]) == 0
    capsys.readouterr()
    assert main(["lake"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("lake is a lake")
    assert "tracelens query lake --list" in shown


def test_a_folder_without_a_trace_is_a_sentence(here: Path) -> None:
    Path("empty").mkdir()
    with pytest.raises(InputError, match="no trace found at 'empty'"):
        with_verb(["empty"])


def test_a_verb_wins_over_a_file_of_its_name(here: Path) -> None:
    shutil.copy("trace.json.gz", "demo")
    shutil.copy("trace.json.gz", "report")
    assert with_verb(["demo"]) == ["demo"]
    assert with_verb(["./demo"]) == ["report", "./demo"]
    assert with_verb(["report", "report"]) == ["report", "report"]


def test_several_traces_need_a_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("trace.json.gz", "b.json.gz")
    assert main(["trace.json.gz", "b.json.gz"]) == 2
    assert "tracelens compare trace.json.gz b.json.gz" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["repotr"], "no command or file named 'repotr'; did you mean report?"),
        (["trcae.json.gz"], "no file named 'trcae.json.gz'; did you mean trace.json.gz?"),
        (["xyzzy"], "no command or file named 'xyzzy'; tracelens --help lists the commands"),
        (["--csv", "trace.json.gz"], "options follow a command or file: tracelens TRACE --csv"),
        (["--verison"], "no option of tracelens named '--verison'; did you mean --version?"),
        (["x\0y"], "no command or file"),
        ([""], "no command or file named ''"),
    ],
)
def test_what_is_neither_is_a_sentence(
    words: list[str], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) in (1, 2)
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


def test_standard_input_is_a_trace() -> None:
    assert with_verb(["-", "--format", "json"]) == ["report", "-", "--format", "json"]
