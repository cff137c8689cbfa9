"""A name is one line wherever it is said, no log takes one for a command, and Markdown neither mentions nor links."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import part
from tracelens.cli import main
from tracelens.files.safe_text import escaped, markdown_text, no_commands
from tracelens.files.say import emit, say

#: A log's command at the beginning of a line, one anywhere in it, and a line that looks like ours.
HOSTILE = "\n::error title=pwn::FORGED\n##[add-mask]a\n  FORGED\r\u2028\x85FORGED"
FILE = f"t{HOSTILE[:16]}.json"
_numbers = itertools.count()


def named(word: str) -> str:
    return f"{word}{HOSTILE}{next(_numbers)}"


def trace(rank: int, *, mention: str = "") -> dict[str, Any]:
    """A step per op; every text that a trace may hold is hostile."""
    made: list[dict[str, Any]] = []
    for at, word in enumerate(("aten::mm", "evil", "triton_poi_fused_add", "record_function")):
        start, lane = 100 * at, {"ph": "X", "pid": 1, "tid": 1}
        shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", named("float")], "Concrete Inputs": ["", named("x")]}  # fmt: skip
        of_nccl = {"Collective name": named("allreduce"), "Process Group Name": named("pg"), "dtype": named("Float"), "In msg nelems": 100, "Out msg nelems": 100, "Group size": 2}  # fmt: skip
        made += [
            lane | {"cat": "cpu_op", "name": mention or named(word), "ts": start, "dur": 90, "args": shapes},
            lane | {"cat": "user_annotation", "name": f"ProfilerStep#{at + 1}", "ts": start, "dur": 95},
            lane | {"cat": "user_annotation", "name": mention or named("range"), "ts": start, "dur": 94},
            lane | {"cat": "python_function", "name": named("a.py(1): f"), "ts": start, "dur": 93, "args": {"Python id": at + 1}},
            lane | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5, "dur": 5, "args": {"correlation": at + 1}},
            {"ph": "X", "cat": "kernel", "name": mention or named("void k"), "pid": 0, "tid": 7, "ts": start + 20, "dur": 50 + 9 * rank, "args": {"correlation": at + 1, "stream": 7}},
            {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{named('AllReduce')}", "pid": 0, "tid": 8, "ts": start + 20, "dur": 30, "args": {"stream": 8, **of_nccl}},
        ]  # fmt: skip
    for kind, key in (("process_name", "name"), ("thread_name", "name"), ("process_labels", "labels")):
        made.append({"ph": "M", "name": kind, "pid": 1, "tid": 1, "args": {key: named(kind)}})
    groups = [{"pg_name": named("pg"), "pg_desc": named("d"), "ranks": [0, 1]}]
    info = {"rank": rank, "world_size": 2, "backend": named("nccl"), "pg_config": groups}
    device = {"name": named("NVIDIA H100"), "id": 0, "totalGlobalMem": 1}
    return {"deviceProperties": [device], "distributedInfo": info, "traceEvents": made}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(json.dumps(trace(0)))
    (tmp_path / f"b{FILE}").write_text(json.dumps(trace(1)))
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        (tmp_path / "ranks" / f"rank{rank}{FILE}").write_text(json.dumps(trace(rank)))
    (tmp_path / "ranks" / f"bad{FILE}").write_text("{")
    (tmp_path / f"{FILE}.csv").write_text(f'family,measured,predicted\n"{named("f")}",1,2\n"{named("f")}",3,2\n')
    return tmp_path


COMMANDS = (
    "report FILE", "report FILE --device nosuch", "report FILE --steps 99", "report FILE --check --debug", "report FILE -o FILE.html",
    "report FILE -o FILE.json", "report FILE -o FILEout", "report FILE --model FILE", "report FILE --extension FILE", "report nosuchFILE", "report FILE --nosuchFILE",
    "check FILE", "check nosuchFILE", "compare FILE bFILE", "compare FILE bFILE --format md", "compare FILE bFILE --format github --gate step<1%",
    "compare FILE bFILE --gate nosuch<1%", "collectives ranks --executor serial", "fuse ranks -o f.json --executor serial", "ingest ranks --to lake --executor serial",
    "whatif FILE", "whatif FILE --scale nosuch=0.5", "whatif FILE --scale evil=0.5", "whatif FILE --remove nosuch", "whatif FILE --apply nosuch",
    "replay FILE", "replay FILE --op nosuch", "replay FILE -o FILEout", "slim FILE -o FILEout.json", "slim FILE -o s.json --category nosuch", "anonymize FILE -o FILEout.json",
    "convert FILE -o FILEout.pftrace", "convert FILE -o FILEout.et", "perfetto FILE -o FILEout.json", "query FILE --ready steps", "query FILE --list",
    "baseline save FILE FILE --baselines bl", "baseline list --baselines bl", "extensions new nosuch --from FILE -o e.py", "calibrate FILE --device h100-sxm -o cal.toml",
    "score FILE", "score FILE.csv", "score FILE.csv --format md", "ops FILE", "serve --config FILE", "project --launch FILE --cluster h100-sxm", "route --config FILE", "devices check FILE", "models show FILE", "mcp --root FILE",
    "report ranks/badFILE", "compare ranks ranks", "report FILE --format prometheus", "nosuchFILE",
)  # fmt: skip


@pytest.mark.parametrize("command", part(COMMANDS, 8))
def test_no_line_of_an_answer_begins_with_what_a_name_holds(command, work, capsys) -> None:
    try:
        code = main([word.replace("FILE", FILE) for word in command.split()])
    except SystemExit as stop:
        code = stop.code
    assert code in (0, 1, 2, 3, 4, 5)
    shown = capsys.readouterr()
    lines = [line for text in (shown.out, shown.err) for line in re.split("[\n\r\x85\u2028]", text)]
    of_ours = [line for line in lines if not re.match("::(error|notice) title=tracelens ", line)]
    assert not [line for line in of_ours if re.match(r"\W*(FORGED|error title|u003a)", line) or "##[" in line]


def test_what_a_log_obeys_is_shown_as_text(capsys) -> None:
    for text in ("::error::a", " \t::add-mask::a", "x ##[error]y", "\xa0::stop-commands::a", "a\n::error::b"):
        say(text)
        say(text, to_stderr=True)
        emit(f'{text}\n["{text}"]\n'.replace("a\n", "a"))
    shown = capsys.readouterr()
    for line in [*shown.out.splitlines(), *shown.err.splitlines()]:
        assert not line.strip().startswith("::")
        assert "##[" not in line
    assert json.loads(escaped(json.dumps({"a": "##[x] ::y"}))) == {"a": "##[x] ::y"}
    assert no_commands("at::native::f(int)\n  a::b") == "at::native::f(int)\n  a::b"


def test_a_failure_with_debug_keeps_its_lines_to_itself(monkeypatch, capsys) -> None:
    def run(args: object) -> int:
        raise ZeroDivisionError(f"x{HOSTILE}")

    monkeypatch.setattr("tracelens.cli.known.run_ops", run)
    assert main(["ops", "--debug"]) == 70
    assert not [line for line in capsys.readouterr().err.splitlines() if line.strip().startswith("::") or "##[" in line]


@pytest.mark.parametrize(
    "text",
    ["@torvalds", "a @org/team", "me@evil.ex", "https://evil.ex/p", "HTTP://evil.ex", "www.evil.ex", "ftp://evil.ex", "#1", "org/repo#12", "GH-12", "gh-3"],
)  # fmt: skip
def test_markdown_of_a_name_mentions_and_links_nothing(text: str) -> None:
    """GitHub takes mentions and references from rendered text, where a backslash is gone: something must part them."""
    found = markdown_text(f"fixes {text} now")
    assert re.sub("<!-- -->|\\\\", "", found) == f"fixes {text} now"
    rendered = re.sub(r"\\(?=\W)", "", found)
    assert not re.search(r"@\w|:\/\/|\bwww\.|#\d|\bGH-\d", rendered, re.IGNORECASE)


def test_a_comment_on_a_pull_request_pings_nobody(work, capsys) -> None:
    text = "@torvalds fixes #1 https://evil.ex/p [a](http://b) <img src=x>"
    for at in range(2):
        (work / f"{at}.json").write_text(json.dumps(trace(at, mention=text)))
    assert main(["compare", "0.json", "1.json", "--format", "md"]) == 0
    shown = capsys.readouterr().out
    assert "torvalds" in shown
    assert not re.search(r"@\w|https?://|www\.|<(?!!-- -->)|(?<!\\)\]\(|(?<!\\)\[", shown)
