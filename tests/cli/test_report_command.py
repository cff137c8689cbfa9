"""``tracelens report`` as a user runs it: exit codes, files, bytes."""

from __future__ import annotations

import errno
import gzip
import json
import os
import pty
import re
import webbrowser
import zipfile
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest

import tracelens
from tests.conftest import recorded_files
from tracelens.cli import main

#: Folders of files without a device event: execution traces, traces of the host.
NO_DEVICE = {"et", "cpu_only"}
SCHEMA = json.loads((Path(tracelens.__file__).parent / "report" / "schemas" / "report.schema.json").read_text())


def report(*arguments: object) -> int:
    return main(["report", *(str(a) for a in arguments)])


@pytest.fixture
def moe(repository: Path) -> Path:
    return repository / "example_traces" / "moe_ep8" / "rank0.json.gz"


@pytest.fixture
def cpu_only(repository: Path) -> Path:
    return repository / "example_traces" / "transformer_step_cpu.json.gz"


@pytest.mark.shared
@pytest.mark.parametrize("name", [name for name in recorded_files() if NO_DEVICE & set(name.split("/"))])
def test_another_real_file_says_in_one_sentence_why_it_has_no_report(
    shared_traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert report(shared_traces / name, "-o", tmp_path / "r") in (1, 3)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ["--ep-size", "many"],
            "argument --ep-size: must be a whole number of at least 1, like 8192, 8k or 1e6, got 'many'",
        ),
        (["--rank", "-1"], "argument --rank: must be a whole number of at least 0, like 8192, 8k or 1e6, got '-1'"),
        (["--max-memory", "0"], "argument --max-memory: must be a number above 0, got '0'"),
        (["-o", "one.json", "--csv"], "--csv writes a folder of tables: -o must be a folder"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    moe: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with suppress(SystemExit):
        assert report(moe, *options) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["report", "fuse", "collectives"])
def test_no_command_writes_over_the_trace_that_it_reads(
    moe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    trace = tmp_path / "rank0.json"
    trace.write_bytes(content := gzip.decompress(moe.read_bytes()))
    assert main([verb, str(trace), "-o", str(trace)]) == 2
    assert "rank0.json would overwrite the input: choose another name with -o" in capsys.readouterr().err
    assert trace.read_bytes() == content


def test_a_folder_of_ranks_is_no_trace_also_where_its_comparison_stands_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job.report").mkdir()
    (tmp_path / "job.report" / "collectives.json").write_text("{}")
    assert report(tmp_path / "job") == 1
    assert "is a folder, not a trace file: name one, or report on all its ranks" in capsys.readouterr().err


def test_the_same_input_gives_the_same_bytes(small_trace: Path, tmp_path: Path) -> None:
    assert report(small_trace, "-o", tmp_path / "a") == 0
    assert report(small_trace, "-o", tmp_path / "b") == 0
    for name in ("report.xlsx", "report.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_cpu_only_trace_exits_3_and_reports_with_cpu(
    cpu_only: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(cpu_only, "-o", tmp_path / "a") == 3
    assert "pass --cpu to `tracelens report` for a CPU-only report" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert report(cpu_only, "-o", tmp_path / "a", "--cpu", "--csv") == 0
    assert "aten::" in (tmp_path / "a" / "csv" / "cpu_ops_unique_args.csv").read_text()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"hello", "is text, but not JSON"),
        (b'{"nodes": []}', "traceEvents"),
        (b"PK\x03\x04 zip", "is zip data, but damaged"),
    ],
)
def test_a_file_that_is_no_trace_is_one_sentence_and_exit_1(
    content: bytes, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert report(path) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert sentence in error
    assert "t.json" in error
    assert "Traceback" not in error
    assert not (tmp_path / "t.report").exists()


def test_a_missing_file_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(tmp_path / "absent.json") == 1
    assert "absent.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [["--device", "mi30x"], ["--steps", "90-99"], ["--extension", "megatronn"], ["--extension", "missing.py"]],
)
def test_what_does_not_exist_is_exit_2_and_leaves_nothing(
    options: list[str], small_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(small_trace, "-o", tmp_path / "out", *options) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not (tmp_path / "out").exists()


def test_a_binding_that_raises_costs_its_op_and_exits_5(
    moe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text(
        "from tracelens import traced_as, GEMM, OpSignature\n"
        "@traced_as('aten::mm')\n"
        "def _mm(op: OpSignature) -> GEMM:\n"
        "    return 1 / 0\n"
    )
    assert report(moe, "-o", tmp_path / "out", "--extension", bad) == 5
    assert "an extension failed on aten::mm, which has no model now" in capsys.readouterr().out
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    warning = next(w for w in document["warnings"] if w["id"] == "extension_failed")
    assert "bad.py:2" in warning["text"]
    assert "ZeroDivisionError" in warning["text"]
    ops = document["ops"]
    assert any(op["model"] == "GEMM" for op in ops)
    assert all(op["model"] is None for op in ops if op["name"] == "aten::mm")


def test_a_foreign_folder_is_never_overwritten(small_trace: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    assert report(small_trace, "-o", tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_full_disk_leaves_the_old_report_whole(
    small_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert report(small_trace, "-o", tmp_path / "out") == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tracelens.report.result.write_json", full)
    assert report(small_trace, "-o", tmp_path / "out", "--device", "mi325x") == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


def test_a_single_file_can_be_asked_for(small_trace: Path, tmp_path: Path) -> None:
    assert report(small_trace, "-o", tmp_path / "only.xlsx") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["only.xlsx"]


def test_json_on_stdout_is_the_document_and_nothing_else(
    moe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(moe, "-o", tmp_path / "out", "--format", "json") == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


def test_extensions_switch_themselves_on_unless_told_not_to(moe: Path, tmp_path: Path) -> None:
    assert report(moe, "-o", tmp_path / "on.json") == 0
    assert report(moe, "-o", tmp_path / "off.json", "--extension", "none") == 0
    on, off = (json.loads((tmp_path / f"{side}.json").read_text()) for side in ("on", "off"))
    assert "megatron" in on["extensions"]
    assert off["extensions"] == []
    assert on["coverage"]["perf_model"] > off["coverage"]["perf_model"]


MOE = """
source = "example_traces/generate_moe_ep_step.py"
dtype = "bf16"
blocks = "2(*E)"
hidden = 2048
vocab = 16384
q_heads = 16
kv_heads = 4
head_dim = 128
gated = true

[experts]
count = 32
top_k = 4
ffn = 1408
"""


def test_a_model_adds_its_utilization(moe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "moe.toml"
    model.write_text(MOE)
    assert report(moe, "-o", tmp_path / "out", "--model", model) == 0
    shown = capsys.readouterr().out
    assert "moe training, 4,096 tokens" in shown
    assert "MFU assumes that each of the 8 ranks" in shown
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    jsonschema.validate(document, SCHEMA)
    used = document["utilization"]
    assert (used["tokens_source"], used["sequence"], len(used["steps"])) == (
        "aten::embedding indices [4096, 1]",
        4096,
        3,
    )
    assert 0 < used["mfu"] < used["hfu"] < used["hfu_of_achievable"] < 1
    assert report(moe, "-o", tmp_path / "half.json", "--model", model, "--ranks", 2) == 0
    half = json.loads((tmp_path / "half.json").read_text())["utilization"]
    assert half["mfu"] == pytest.approx(used["mfu"] / 2)


@pytest.mark.sweep
def test_a_model_that_does_not_fit_the_trace_is_a_note(moe: Path, tmp_path: Path) -> None:
    assert report(moe, "-o", tmp_path / "out.json", "--model", "llama3.1-8b") == 0
    document = json.loads((tmp_path / "out.json").read_text())
    assert document["utilization"] is None
    (note,) = [warning["text"] for warning in document["warnings"] if warning["id"] == "no_utilization"]
    assert "the trace's embedding is [16384, 2048], the model's [128256, 4096]" in note


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--model", "lama3.1-8b"], 2, "did you mean llama3.1-8b"),
        (["--model", "absent/config.json"], 1, "cannot be read"),
        (["--batch", "2", "--sequence", "4"], 2, "need --model"),
        (["--model", "llama3.1-8b", "--batch", "2"], 2, "--batch needs --sequence"),
        (
            ["--model", "llama3.1-8b", "--batch", "2", "--sequence", "8", "--tokens-per-step", "16"],
            2,
            "give only one",
        ),
    ],
)
def test_model_options_that_do_not_fit_are_one_sentence(
    options: list[str], code: int, sentence: str, small_trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(small_trace, "-o", tmp_path / "out", *options) == code
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class _Clock:
    """Half a second passes between two looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.5
        return self.now


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_bar_with_the_rate_is_shown_from_one_second_on_and_only_in_a_terminal(
    is_terminal: bool, tmp_path: Path, cpu_only: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a pseudo terminal, as a user's; what is no terminal (a log file) gets no bar."""
    # 4 MB as plain text: several pieces, and so several calls, however they are scanned
    events = json.loads(gzip.decompress(cpu_only.read_bytes()))["traceEvents"]
    trace = tmp_path / "t.json"
    trace.write_text(json.dumps({"traceEvents": events * (1 + 4_000_000 // len(json.dumps(events)))}))
    shown = ""
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    monkeypatch.setattr("tracelens.files.say.time", _Clock())
    with os.fdopen(theirs, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        assert report(trace, "--cpu", "-o", tmp_path / "out.json") == 0
        stderr.flush()
        os.set_blocking(ours, False)
        with suppress(BlockingIOError):
            shown = os.read(ours, 100_000).decode()
    os.close(ours)
    lines = [line for line in shown.split("\r") if line.strip()]
    assert all(
        re.match(r" reading \[[#.]{18}\]\s+\d+%\s+\d+ of \d+ MB, [\d.]+ MB/s\s+\d+ s left", line) for line in lines
    ), lines
    assert (len(lines) > 1) is is_terminal
    assert (" 100%" in shown) is is_terminal


def test_no_file_of_a_report_shows_objects_of_the_program(moe: Path, tmp_path: Path) -> None:
    """Types print as ``bf16``, never as Python shows the object: ``<DType.BF16: (16, 'bf16', 'bf16')>``."""
    assert report(moe, "-o", tmp_path / "r", "--csv") == 0
    contents: dict[str, str] = {}
    for path in (tmp_path / "r").rglob("*.*"):
        if path.suffix == ".xlsx":
            with zipfile.ZipFile(path) as book:
                contents |= {name: book.read(name).decode("utf-8") for name in book.namelist()}
        else:
            contents[path.name] = path.read_text(encoding="utf-8")
    assert {Path(name).suffix for name in contents} >= {".csv", ".json", ".html", ".xml"}
    shown = re.compile(r"DType\.|(?:<|&lt;)\w+\.\w+: | object at 0x")
    assert [name for name, text in contents.items() if shown.search(text)] == []
    assert any("bf16" in text for name, text in contents.items() if name.endswith(".csv"))


def test_open_shows_the_page_and_says_where_it_is_without_a_browser(
    small_trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []

    def browser(address: str) -> bool:
        shown.append(address)
        return len(shown) == 1

    monkeypatch.setattr(webbrowser, "open", browser)
    assert report(small_trace, "-o", tmp_path / "a.report", "--open") == 0
    assert shown == [(tmp_path / "a.report" / "report.html").as_uri()]
    assert "no browser" not in capsys.readouterr().err
    assert report(small_trace, "-o", tmp_path / "one.html", "--open") == 0
    assert f"no browser found; open {tmp_path / 'one.html'}" in capsys.readouterr().err
    assert report(small_trace, "-o", tmp_path / "one.json", "--open") == 2
