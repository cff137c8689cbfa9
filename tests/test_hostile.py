"""Files made to do harm: their names stay text in every output, their size stops, a hanging extension costs its op."""

from __future__ import annotations

import csv
import gzip
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import openpyxl
import pytest

import tracelens
from tests.conftest import part
from tests.trace.event_texts import read_events
from tracelens.analysis.reading import catalog
from tracelens.cli import main
from tracelens.extensions import TimeLimitError, time_limit
from tracelens.files import atomic_write
from tracelens.report.result import Report
from tracelens.trace.reading.read import read_trace
from tracelens.trace.tree import OpTree

NAMES = (
    '=HYPERLINK("http://x")', "+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "<script>alert(1)</script>", "\x1b[31mred",
    "../../x", "</script><img src=x onerror=alert(1)>", "a\nb", "\u202egnp", "\x00", "\ud800", "'", '"><svg onload=1>',
    "javascript:alert(1)", "\x9b31m", "{{7*7}}", "${x}", "%s%n", "x" * 40_000, "",
)  # fmt: skip


def events(names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    """An op, its launch and its kernel of every name."""
    made: list[dict[str, Any]] = []
    for i, name in enumerate(names):
        start = 100 * i
        lane = {"ph": "X", "pid": 1, "tid": 1}
        shapes = {"Input Dims": [[4, 4]], "Input type": [name[:50]], "Concrete Inputs": [name[:50]]}
        made += [
            lane | {"cat": "cpu_op", "name": name, "ts": start, "dur": 90, "args": shapes},
            lane | {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start + 5, "dur": 5, "args": {"correlation": i + 1}},
            {"ph": "X", "cat": "kernel", "name": f"{name}{name}", "pid": 0, "tid": 7, "ts": start + 20, "dur": 50, "args": {"correlation": i + 1, "stream": 7}},
            {"ph": "X", "cat": "kernel", "name": f"ncclDevKernel_{name[:99]}", "pid": 0, "tid": 8, "ts": start + 20, "dur": 3, "args": {"stream": 8, "Collective name": name[:99], "Process Group Name": name[:99], "dtype": name[:99]}},
        ]  # fmt: skip
        made += [
            {"ph": "M", "name": f"{what}_name", "pid": 1, "tid": 1, "args": {"name": name}}
            for what in ("process", "thread")
        ]
        made += [{"ph": "M", "name": "process_labels", "pid": 1, "args": {"labels": name}}]
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a trace all of whose texts are hostile, its file name too."""
    place = tmp_path_factory.mktemp("hostile")
    metadata = {
        "deviceProperties": [{"name": NAMES[0], "totalGlobalMem": 1}],
        "distributedInfo": {"rank": 0, "pg_config": [{"pg_name": NAMES[6], "ranks": [0]}]},
    }
    path = place / "=1+1 <b>\x1b[31m.json"
    path.write_text(json.dumps(metadata | {"traceEvents": events()}))
    assert main(["report", str(path), "-o", str(place / "out"), "--csv", "--cpu"]) == 0
    return place


def test_no_cell_of_the_workbook_is_a_formula(folder: Path) -> None:
    book = openpyxl.load_workbook(folder / "out" / "report.xlsx")
    texts = set()
    for sheet in book:
        for cell in (cell for row in sheet.iter_rows() for cell in row):
            assert cell.data_type != "f", (sheet.title, cell.coordinate, cell.value)
            assert cell.hyperlink is None or not cell.hyperlink.target, "a link leads out of the workbook"
            if isinstance(cell.value, str):
                texts.add(cell.value)
                assert len(cell.value) <= 32_767
    assert '=HYPERLINK("http://x")' in texts
    assert "../../x" in texts


def test_no_field_of_the_csv_files_is_a_formula(folder: Path) -> None:
    seen = set()
    for path in sorted((folder / "out" / "csv").iterdir()):
        with path.open(newline="", encoding="utf-8") as file:
            fields = [field for row in csv.reader(file) for field in row]
        seen.update(fields)
        harmful = [
            f for f in fields if f[:1] in ("=", "+", "-", "@", "\t", "\r") and not re.fullmatch(r"-?[\d.e+-]+", f)
        ]
        assert not harmful, (path.name, harmful[:3])
        assert not any("\x1b" in field for field in fields)
    assert '\'=HYPERLINK("http://x")' in seen


def test_the_json_document_is_json_and_keeps_the_names(folder: Path) -> None:
    text = (folder / "out" / "report.json").read_text(encoding="utf-8")
    document = json.loads(text)
    names = {op["name"] for op in document["ops"]}
    assert {'=HYPERLINK("http://x")', "<script>alert(1)</script>", "../../x"} <= names
    assert "\x1b" not in text


def test_the_terminal_gets_no_escape_sequence_from_a_trace(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = next(folder.glob("*.json"))
    assert main(["report", str(path), "-o", str(folder / "again.json")]) == 0
    assert main(["check", str(path)]) == 0
    shown = capsys.readouterr()
    for stream in (shown.out, shown.err):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", stream), stream


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_has_no_markup_from_a_trace(folder: Path) -> None:
    page = folder / "out" / "report.html"
    if not page.exists():
        pytest.skip("this report has no page")
    text = page.read_text(encoding="utf-8")
    parser = _Tags()
    parser.feed(text)
    assert "alert(1)</script>" not in text
    assert not [t for t, attributes in parser.tags if t in ("img", "iframe", "object", "embed", "base")]
    assert [a for t, a in parser.tags if t == "link"] == [{"rel": "icon", "href": "data:,"}]
    for tag, attributes in parser.tags:
        assert not [key for key in attributes if key.startswith("on")], (tag, attributes)
        target = (attributes.get("href") or "").strip().lower()
        assert not target.startswith(("javascript:", "http")), attributes
    policy = next(a for t, a in parser.tags if t == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy["content"])


def test_nothing_is_written_outside_the_report(folder: Path) -> None:
    written = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    others = {name for name in written if not name.startswith("out/")} - {"again.json"}
    assert others == {"=1+1 <b>\x1b[31m.json"}
    assert not [name for name in written if ".." in Path(name).parts]


@pytest.mark.parametrize("depth", part([3_000, 10_000], 2))
def test_thousands_of_nested_ops_are_a_tree_and_a_report(depth: int, tmp_path: Path) -> None:
    nested = [
        {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": i, "dur": 3 * depth - 2 * i}
        for i in range(depth)
    ]
    nested += events(("k",))[1:3]
    for event in nested[-2:]:
        event["ts"] += depth
    table = read_events(nested)
    tree = OpTree(table)
    assert tree.self_check() == []
    assert tree.depth.max() == depth
    report = tracelens.report(tracelens.Trace(table=table, tree=tree))
    assert report.ops["kernel_us_sum"].sum() == 50


def test_duplicate_correlations_share_no_kernel(tmp_path: Path) -> None:
    """Each kernel hangs on the latest launch before it, and is counted once."""
    twice = events(("a", "b"))
    for event in twice:
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = 5
    report = tracelens.report(tracelens.Trace.of(read_events(twice)))
    ops = report.ops.set_index("name")["kernel_us_sum"]
    assert ops["a"] == 50
    assert ops["b"] == 50


@pytest.mark.parametrize("side", part([-64, 2**62, 10**30], 3))
def test_numbers_that_cannot_be_true_are_unknown(side: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = events(("a",))
    made[0]["args"] = {"Input Dims": [[side, 64], [64, 64]], "Input type": ["float", "float"]}
    made[0]["name"] = "aten::mm"
    split = "[1, " + "9" * 400 + "]"
    call = {"Collective name": "all_to_allv", "In msg nelems": 10**30, "In split size": split, "Group size": 2}
    made[3]["args"] |= call | {"Process Group Ranks": "[0, 1]", "dtype": "Float"}
    info = {"rank": 10**30, "world_size": 10**30, "pg_config": [{"pg_name": "a", "ranks": [10**30]}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"baseTimeNanoseconds": 10**30, "distributedInfo": info, "traceEvents": made}))
    assert main(["report", str(path), "-o", str(tmp_path / "out")]) == 0
    document = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (document["input"]["ranks"], document["input"]["world_size"]) == ([], None)
    assert next(op["gflops"] for op in document["ops"] if op["name"] == "aten::mm") is None
    assert main(["collectives", str(path), "-o", str(tmp_path / "ranks"), "--executor", "serial"]) == 0
    assert main(["collectives", "**x"]) == 1
    assert "'**x'" in capsys.readouterr().err


def bomb(head: bytes, unit: bytes, count: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join([packer.compress(head), *(packer.compress(unit) for _ in range(count)), packer.flush()])


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        pytest.param(b'{"x": "', b"a" * 2**20, marks=pytest.mark.sweep, id="before the events"),
        pytest.param(
            b'{"traceEvents": [{"ph": "X", "ts": 1, "name": "a"}], "x": "', b"a" * 2**20, id="behind the events"
        ),
    ],
)
def test_a_gzip_bomb_stops_at_the_memory_limit_with_the_figure(
    head: bytes, unit: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 250 MB of text in 0.25 MB of file only what fits is unpacked; in a process of its own, whose size is known."""
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(bomb(head, unit, 250))
    command = [
        sys.executable,
        "-c",
        "import sys; from tracelens.cli import main; sys.exit(main())",
        "report",
        str(path),
        "--max-memory",
        "0.2",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "bomb.json.gz does not fit: " in done.stderr
    assert "0.2 GB" in done.stderr
    assert "--max-memory" in done.stderr
    assert not (tmp_path / "bomb.report").exists()


@pytest.mark.sweep
def test_a_name_of_a_gigabyte_costs_its_event_only(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    first = b'{"traceEvents": [{"ph": "X", "ts": 1, "name": "a"}, {"ph": "X", "ts": 2, "name": "'
    path.write_bytes(bomb(first, b"a" * 2**20, 150) + gzip.compress(b'"}, {"ph": "X", "ts": 3, "name": "b"}]}'))
    table = read_trace(path, piece_bytes=2**20)
    assert [table.name_of(i)[:1] for i in (0, -1)] == ["a", "b"]
    assert table.losses.damaged_events == 1


HANGING = """
from tracelens import traced_as
@traced_as('aten::mm')
def _mm(op):
    with open({calls!r}, 'a') as file:
        file.write('called ')
    while True:
        try:
            sum(range(1000))
        except Exception:
            pass
"""


def test_a_hanging_binding_costs_its_ops_and_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of three distinct calls the first is waited for; all three lose their model, which is said once."""
    monkeypatch.setattr(catalog, "BINDING_LIMIT_S", 0.2)
    extension, calls, trace = tmp_path / "hang.py", tmp_path / "calls", tmp_path / "t.json"
    extension.write_text(HANGING.format(calls=str(calls)))
    made = events(("aten::mm", "aten::mm", "aten::mm", "aten::addmm"))
    for number, op in enumerate(event for event in made if event.get("cat") == "cpu_op"):
        op["args"] = {
            "Input Dims": [[8], [number + 1, 4], [4, 8]][op["name"] == "aten::mm" :],
            "Input type": ["float"] * 3,
        }
    trace.write_text(json.dumps({"traceEvents": made}))
    assert main(["report", str(trace), "-o", str(tmp_path / "out.json"), "--extension", str(extension)]) == 5
    document = json.loads((tmp_path / "out.json").read_text())
    (warning,) = (w for w in document["warnings"] if w["id"] == "extension_failed")
    assert warning["count"] == 3
    assert "hang.py:3" in warning["text"]
    assert "not done after 0.2 s" in warning["text"]
    assert [op["model"] for op in document["ops"] if op["name"].startswith("aten::mm")] == [None] * 3
    assert any(op["model"] == "GEMM" for op in document["ops"])
    assert calls.read_text() == "called "


@pytest.mark.parametrize("body", part(["raise ValueError('no')", "return 10 ** 400", "return 'many'", "return {}"], 3))
def test_a_model_whose_own_methods_fail_costs_its_op(body: str, small_trace: Path, tmp_path: Path) -> None:
    extension = tmp_path / "bad.py"
    extension.write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom tracelens import PerfModel, traced_as\n"
        "@dataclass(frozen=True, slots=True, kw_only=True)\nclass Bad(PerfModel):\n    category: ClassVar[str] = 'GEMM'\n"
        f"    def flops(self):\n        {body}\n    def hbm_bytes(self):\n        return 1\n"
        "@traced_as('aten::mm')\ndef _mm(op):\n    return Bad()\n"
    )
    code = main(["report", str(small_trace), "-o", str(tmp_path / "out.json"), "--extension", str(extension)])
    document = json.loads((tmp_path / "out.json").read_text())
    assert code == (0 if "400" in body else 5)
    assert all(op["model"] is None for op in document["ops"] if op["name"] == "aten::mm")


def test_a_time_limit_counts_the_time_that_the_code_works() -> None:
    """What others keep from the processor for five limits is done; what works for one is not, however long that took."""
    with time_limit(0.02):
        time.sleep(0.1)
    before = time.thread_time()
    with pytest.raises(TimeLimitError, match=r"not done after 0\.02 s of processor time"), time_limit(0.02):
        sum(each * 0 for each in itertools.count())
    assert time.thread_time() - before >= 0.02


def test_a_time_limit_gives_an_outer_timer_back() -> None:
    caught: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: caught.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 500)
        with pytest.raises(TimeLimitError, match=r"not done after 0\.24 s"), time_limit(0.02):
            time.sleep(400)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < 500
        signal.raise_signal(signal.SIGALRM)
        assert caught == [signal.SIGALRM]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_outer_timer_that_ends_while_a_limit_begins_is_the_outer_ones(monkeypatch) -> None:
    """At any place: a call of ``signal`` is where Python looks for signals."""
    caught: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: caught.append(number))
    set_handler = signal.signal

    def slow(number: int, handler: Any) -> Any:
        found = set_handler(number, handler)
        time.sleep(0.02)
        return found

    monkeypatch.setattr(signal, "signal", slow)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with time_limit(5):
            assert signal.getitimer(signal.ITIMER_REAL)[0] > 4
        time.sleep(0.1)
        assert caught == [signal.SIGALRM]
    finally:
        set_handler(signal.SIGALRM, before)


def test_an_interrupted_report_leaves_the_old_one_whole(small_trace: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["report", str(small_trace), "-o", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    extension = tmp_path / "stop.py"
    extension.write_text(
        "import os, signal\nfrom tracelens import traced_as\n"
        "@traced_as('aten::mm')\ndef _mm(op):\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    # Of a job in the background the shell has Ctrl-C ignored.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["report", str(small_trace), "-o", str(out), "--extension", str(extension)]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


@pytest.fixture(scope="module")
def old_and_new(small_trace: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """A written report, and one that is to take its place."""
    out = tmp_path_factory.mktemp("old") / "out"
    assert main(["report", str(small_trace), "-o", str(out)]) == 0
    return out, tracelens.report(small_trace, device="mi325x")


@pytest.mark.parametrize("at", part([1, 2, 3, 4], 4, [3]))
def test_an_interruption_while_files_change_places_puts_all_back(
    at: int, old_and_new: tuple[Path, Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, report = old_and_new
    monkeypatch.setattr(atomic_write, "_is_fixed", lambda target: target.exists())
    out = tmp_path / "out"
    shutil.copytree(old, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    replace, done = Path.replace, []

    def interrupted(self: Path, target: Path) -> Path:
        if os.fspath(out) in (os.fspath(self.parent), os.fspath(Path(target).parent)):
            done.append(target)
            if len(done) == at:
                raise KeyboardInterrupt
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report.write(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
