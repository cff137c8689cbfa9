"""A large event list is read by forked processes: whatever is in it, the table is that of one process."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import HARD_TRACES, examples
from tests.trace.event_texts import PLAIN, SORTS, Blocks, content, plain, text_of
from tracelens import executors
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.trace.reading import bytestream
from tracelens.trace.reading.chrome import event_list, forked_reading
from tracelens.trace.reading.chrome.event_list import EventList
from tracelens.trace.reading.chrome.forked_reading import PartJoiner
from tracelens.trace.reading.read import read_trace

EXAMPLES = Path(__file__).resolve().parents[2] / "example_traces"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process reads")


@pytest.fixture(autouse=True)
def not_scanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others only help with what this process does not scan."""
    monkeypatch.setenv("TRACELENS_PURE_PYTHON", "1")


@pytest.fixture(autouse=True)
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of events of each part that another process made."""
    parts: list[int] = []
    join = PartJoiner.join

    def counted(joiner: PartJoiner, part: Any, room: Any) -> bool:
        parts.append(part.events_total)
        return join(joiner, part, room)

    monkeypatch.setattr(PartJoiner, "join", counted)
    return parts


def shared(processes: int, batch_bytes: int = 2000) -> pytest.MonkeyPatch:
    """As if small batches of a small file were worth other processes; to be undone."""
    patch = pytest.MonkeyPatch()
    patch.setattr(bytestream, "_BLOCK_BYTES", 2048)
    patch.setitem(read_trace.__kwdefaults__, "piece_bytes", 20_000)
    patch.setattr(event_list, "FIRST_BYTES", 64)
    patch.setattr(event_list, "LEAST_SHARED_BYTES", -1 if processes > 1 else 1 << 60)
    patch.setattr(event_list, "_FIRST_WAIT_BYTES", batch_bytes)
    patch.setattr(forked_reading, "usable_processes", lambda: processes)
    patch.setattr(forked_reading, "BATCH_BYTES", batch_bytes)
    return patch


def read(
    text: bytes, processes: int, *, piece_bytes: int = 500, block_bytes: int = 300, batch_bytes: int = 2000
) -> dict[str, Any] | str:
    """All that a table holds, or the sentence instead of it."""
    patch = shared(processes, batch_bytes)
    try:
        table = EventList(Blocks(text, block_bytes), "t.json", piece_bytes=piece_bytes).table()
    except InputError as error:
        return str(error)
    finally:
        patch.undo()
    return content(table)


SOUND = text_of([PLAIN[i * 7 % len(PLAIN)] for i in range(400)])


@settings(max_examples=examples(120), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sorts=st.lists(st.sampled_from(PLAIN * 3 + tuple(SORTS)), min_size=20, max_size=150),
    damage=st.lists(st.tuples(st.floats(0, 1), st.sampled_from([b"", b"}", b"]", b'"', b"\x00", b"NaN", b"{"])), max_size=2),
    piece_bytes=st.integers(100, 1500),
    block_bytes=st.integers(50, 3000),
    batch_bytes=st.integers(100, 6000),
    room_bytes=st.integers(500, 40_000),
    processes=st.integers(2, 3),
)  # fmt: skip
def test_one_process_and_several_make_the_same_table(
    sorts: list[str], damage: list[tuple[float, bytes]], piece_bytes: int, block_bytes: int, batch_bytes: int,
    room_bytes: int, processes: int,
) -> None:  # fmt: skip
    text = text_of(sorts)
    for place, put in damage:
        at = int(place * len(text))
        text = text[:at] + put + text[at + 1 :]
    sizes = {"piece_bytes": piece_bytes, "block_bytes": block_bytes, "batch_bytes": batch_bytes}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forked_reading, "_TEXT_ROOM_BYTES", room_bytes)
        patch.setattr(forked_reading, "_COLUMN_ROOM_BYTES", room_bytes)
        assert read(text, processes, **sizes) == read(text, 1, **sizes)


def test_what_is_sound_is_read_by_others_to_its_last_pieces(joined: list[int]) -> None:
    table = read(SOUND, 2)
    assert isinstance(table, dict)
    assert 350 < sum(joined) < table["events_total"] == 400


def test_behind_what_only_one_process_can_read_others_go_on(joined: list[int]) -> None:
    sorts = ["op"] * 400
    sorts[200] = "begin"
    assert read(text_of(sorts), 2) == read(text_of(sorts), 1)
    assert sum(joined) > 300


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_example_traces(path: Path, joined: list[int]) -> None:
    compare_file(path)
    assert joined or path.stat().st_size < 20_000


@pytest.mark.shared
@pytest.mark.parametrize("name", HARD_TRACES)
def test_real_traces(name: str, shared_traces: Path) -> None:
    compare_file(shared_traces / name)


def compare_file(path: Path) -> None:
    tables = []
    for processes in (1, 2):
        patch = shared(processes, 100_000)
        try:
            tables.append(plain(read_trace(path)))
        finally:
            patch.undo()
    assert tables[0] == tables[1]


@pytest.mark.parametrize(
    "end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: bytearray(1 << 62), lambda: 1 / 0]
)
def test_a_process_that_is_killed_or_fails_costs_nothing_but_time(
    end: Callable[[], object], joined: list[int], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, answers, answer = read(SOUND, 1), [], forked_reading._answer

    def ending(*given: Any) -> Any:
        answers.append(1)
        return answer(*given) if len(answers) < 3 else end()

    monkeypatch.setattr(forked_reading, "_answer", ending)
    assert read(SOUND, 2) == whole
    assert joined
    assert capfd.readouterr().err == ""


def test_a_process_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked_reading, "_PATIENCE_S", 0.05)
    monkeypatch.setattr(forked_reading, "_answer", lambda *_: signal.pause())
    assert read(SOUND, 2) == read(SOUND, 1)


def test_a_program_that_ignores_the_end_of_its_children(joined: list[int]) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert read(SOUND, 2) == read(SOUND, 1)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert joined


def test_a_system_that_forks_no_more_leaves_it_to_one_process(
    joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    whole = read(SOUND, 1)
    monkeypatch.setattr(os, "fork", refused)
    assert read(SOUND, 2) == whole
    assert not joined


def test_where_memory_gets_short_one_process_goes_on(
    tmp_path: Path, joined: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.json.gz").write_bytes(gzip.compress(text_of(["op"] * 3000)))
    monkeypatch.setattr(forked_reading, "private_bytes", lambda: 10**12 if answered else answered.append(1) or 0)
    answered: list[int] = []
    patch = shared(2)
    try:
        table = read_trace(tmp_path / "t.json.gz", max_memory_gb=100)
    finally:
        patch.undo()
    assert table.events_total == 3000
    assert 0 < sum(joined) < 1500


def test_nobody_forks_beside_threads_in_a_worker_or_where_cores_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    monkeypatch.setattr(executors, "_CPU_QUOTAS", ())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "getloadavg", lambda: (6.0, 0.0, 0.0))
    if threading.current_thread() is threading.main_thread():
        assert forked_reading.usable_processes() == 3
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        assert forked_reading.usable_processes() == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getloadavg", lambda: (6.1, 0.0, 0.0))
        assert forked_reading.usable_processes() == 1
    with monkeypatch.context() as patch:
        patch.setattr(threading, "active_count", lambda: 2)
        assert forked_reading.usable_processes() == 1
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(forked_reading.usable_processes).result() == 1


@pytest.mark.parametrize(("quota", "cores"), [("max 100000", 4), ("100000 100000", 1), ("150000 100000", 2), ("-1", 4)])
def test_a_container_has_as_many_cores_as_it_has_time_of(
    quota: str, cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    monkeypatch.setattr(executors, "_CPU_QUOTAS", ((tmp_path / "cpu.max",),))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert executors.available_cores() == cores


#: Reads the file named first, and sends itself, or all of its group, a signal when others are at work.
STOPPED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever started the tests may have it ignored
from tracelens.cli import main
from tracelens.trace.reading import bytestream
from tracelens.trace.reading.chrome import event_list, forked_reading
event_list.LEAST_SHARED_BYTES = -1
bytestream._PLAIN_BLOCK_BYTES = 1 << 16
forked_reading.BATCH_BYTES = 2000
forked_reading.usable_processes = lambda: 2
give, given = forked_reading._Reader.give, []
def stop(reader, order):
    give(reader, order)
    given.append(1)
    if len(given) == 3:
        {act}
forked_reading._Reader.give = stop
sys.exit(main(["report", sys.argv[1], "-o", sys.argv[1] + ".report"]))
"""


@pytest.mark.parametrize(
    ("act", "code", "shown"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9, ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "terminated; nothing was written\n"),
        ("os.killpg(0, signal.SIGINT)", 130, "interrupted; nothing was written\n"),
    ],
)
def test_the_others_end_with_the_command(act: str, code: int, shown: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(text_of(["op"] * 20_000))
    command = [sys.executable, "-c", STOPPED.replace("{act}", act), str(tmp_path / "t.json")]
    # Each process holds the pipe: this returns when all have gone
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, start_new_session=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (code, "", shown)
    assert not (tmp_path / "t.json.report").exists()


def test_the_files_of_a_report_are_the_same_bytes(
    tmp_path: Path, joined: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    trace = EXAMPLES / "moe_ep8" / "rank0.json.gz"
    written = []
    for processes in (1, 2):
        patch = shared(processes, 100_000)
        try:
            assert main(["report", str(trace), "-o", str(tmp_path / str(processes))]) == 0
        finally:
            patch.undo()
        written.append({path.name: path.read_bytes() for path in sorted((tmp_path / str(processes)).iterdir())})
    capsys.readouterr()
    assert joined
    assert len(written[0]) == 3
    assert written[0] == written[1]
