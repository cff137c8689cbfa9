"""Whatever goes wrong ends in one sentence and a documented code; nothing shown can move the cursor."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tracelens import cli
from tracelens.files.safe_text import csv_cell, escaped, escaped_json, terminal_text
from tracelens.files.say import emit, say, say_lines

COMMAND = [sys.executable, "-c", "import sys; from tracelens.cli import main; sys.exit(main())"]
OBEYED = "".join(map(chr, [*range(9), 11, 12, 13, *range(14, 32), *range(0x7F, 0xA0), 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A), 0xFFFE]))  # fmt: skip


def test_no_text_that_a_terminal_obeys_gets_through(capsys: pytest.CaptureFixture[str]) -> None:
    for character in [*OBEYED, "\x1b]52;c;aGk=\x07", "\x1b[2J"]:
        say(f"a{character}b")
        say(f"a{character}b", to_stderr=True)
        say_lines(f"a{character}b", styled=True)
        emit(f'["a{character}b"]\n')
    shown = capsys.readouterr()
    for text in (shown.out, shown.err):
        assert not set(text) & (set(OBEYED) - {"\n"})


def test_own_colors_pass_only_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    say_lines("\x1b[31mred\x1b[0m", styled=True)
    say("\x1b[31mred\x1b[0m")
    assert capsys.readouterr().out == "\x1b[31mred\x1b[0m\n␛[31mred␛[0m\n"


def test_json_means_the_same_with_escapes() -> None:
    import json

    text = json.dumps(OBEYED + "äöü\u4e2d", ensure_ascii=False)
    safe = escaped_json(text.encode())
    assert json.loads(safe) == json.loads(text)
    assert not set(safe.decode()) & set(OBEYED)
    assert escaped("plain\n\ttext") == "plain\n\ttext"


@pytest.mark.parametrize(
    ("text", "cell"),
    [("=1", "'=1"), ("k;=1+1", "k;'=1+1"), ("a\t@b", "a\t'@b"), ("a; -1", "a; '-1"), ("x\u202ey", "x\ufffdy"), ("a;b", "a;b"), ("two\nlines", "two\nlines")],
)  # fmt: skip
def test_a_cell_is_a_formula_wherever_a_spreadsheet_splits(text: str, cell: str) -> None:
    assert csv_cell(text) == cell


def failing(error: BaseException) -> Callable[..., int]:
    def run(args: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ZeroDivisionError("no\x1b[31m"), 70, "error: this is a bug in tracelens (ZeroDivisionError: no␛[31m); please report it with"),
        (RecursionError("deep"), 70, "bug in tracelens (RecursionError: deep)"),
        (MemoryError(), 1, "error: not enough memory"),
        (OSError(36, "File name too long", "x" * 10), 1, "error: xxxxxxxxxx: File name too long  (exit 1)"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written"),
    ],
)  # fmt: skip
def test_any_error_is_one_sentence_and_a_code(error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("tracelens.cli.known.run_ops", failing(error))
    assert cli.main(["ops"]) == code
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    assert "Traceback" not in shown
    reports = list(tmp_path.glob("tracelens-error-*.txt"))
    assert len(reports) == (code == 70)
    assert all(type(error).__name__ in path.read_text("utf-8") and str(path) in shown for path in reports)
    cli.main(["ops", "--debug"])
    assert "Traceback" in capsys.readouterr().err or code == 130


def test_an_unknown_option_is_refused_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["report", "--\x1b[31m"], ["devices", "show", "\x1b]52;c;x\x07"], ["\x9b31m"]):
        try:
            code = cli.main(arguments)
        except SystemExit as stop:
            code = stop.code
        assert code == 2
        shown = capsys.readouterr()
        assert not set(shown.out + shown.err) & (set(OBEYED) - {"\n"})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["search", "--model", "llama3-8b", "--cluster", "dgx-h100"],
            "required: --global-batch; see tracelens search --help",
        ),
        (
            ["report", "x.json", "--formt", "json"],
            "no option of tracelens report named '--formt'; did you mean --format?",
        ),
        (["baseline"], "required: COMMAND; see tracelens baseline --help"),
        (["reprot", "x.json"], "no command or file named 'reprot'; did you mean report?"),
    ],
)
def test_a_wrong_command_is_one_sentence_that_says_where_to_look(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert cli.main(arguments) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


def test_the_command_alone_shows_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) <= 25
    assert len(re.findall("^  tracelens ", shown, re.MULTILINE)) == 5
    assert "tracelens --help" in shown


def run(arguments: list[str], **given: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output="stdout" not in given, text=True, timeout=600, **given)  # type: ignore[call-overload, no-any-return]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_output_is_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = run(["devices", "list"], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, "error: cannot write to the standard output: No space left on device  (exit 1)\n")  # fmt: skip


def test_closed_and_ascii_outputs_are_no_error() -> None:
    closed = subprocess.run(["/bin/sh", "-c", f"exec '{sys.executable}' -c 'import sys; from tracelens.cli import main; sys.exit(main())' devices list >&- 2>&-"], timeout=600)  # fmt: skip
    assert closed.returncode == 0
    done = run(
        ["check", "/nothing/ü\u4e2d"], env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "LC_ALL": "C"}
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    done = run(["devices", "show", "mi300x"], env={**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments", [["report", "x" * 5000], ["report", "no.json", "-o", "y" * 300], ["report", ".", "-o", "."], ["estimate", "gemm", "--m", "9" * 5000], ["serve", "--model", "m" * 5000, "--cluster", "h200"], ["ops", "--extension", "e" * 5000]])  # fmt: skip
def test_names_without_measure_are_sentences(arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code in (1, 2, 3)
    assert "Traceback" not in capsys.readouterr().err


def test_a_termination_unwinds_like_an_interruption(tmp_path: Path) -> None:
    program = "import sys, time\nfrom tracelens import cli\nfrom tracelens.cli import verbs\nfrom tracelens.files.atomic_write import whole_file\nfrom pathlib import Path\ndef run(args):\n    with whole_file(Path(sys.argv[1]) / 'out.txt'):\n        print('ready', flush=True)\n        time.sleep(600)\nverbs.verb('check')\ncli.check.run = run\nsys.exit(cli.main(['check', 'x']))"  # fmt: skip
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, shown = process.communicate(timeout=600)
    assert (process.returncode, shown) == (143, "terminated; nothing was written\n")
    assert list(tmp_path.iterdir()) == []


def test_terminal_text_is_one_line() -> None:
    assert not re.search(r"[\r\n]", terminal_text("a\r\nb"))


@pytest.mark.parametrize(("rank", "said"), [("0", ""), ("1", "started this command 4 times"), ("2", "")])
def test_one_of_several_ranks_says_that_each_does_all_of_the_work(
    rank: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", rank)
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    cli._warn_of_repetition()
    told = capsys.readouterr().err
    assert (said in told) if said else not told
    assert not said or "mpiexec -n 4 python -m mpi4py.futures $(which tracelens)" in told


@pytest.mark.parametrize(
    "command",
    ["perfetto {} -o", "report {} -o", "convert {} -o", "slim {} --steps 11 -o", "report", "query {} --output"],
)
def test_an_empty_path_is_refused_by_its_option(
    command: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = repository / "example_traces" / "moe_ep8" / "rank0.json.gz"
    assert cli.main([*command.format(trace).split(), ""]) == 2
    assert "an empty path" in capsys.readouterr().err
