"""A second list of events is told and not counted, and a damaged first byte or key costs nothing but itself."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trace.event_texts import MemoryStream, read_events
from tracelens.trace.reading.chrome import chunks
from tracelens.trace.reading.chrome.event_list import EventList
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import TraceTable


def events(first: int = 0, count: int = 40) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for at in range(first, first + count):
        lane = {"ph": "X", "pid": 1, "tid": 1, "ts": 100 * at, "dur": 50}
        made += [
            lane | {"cat": "cpu_op", "name": "aten::mm", "args": {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}},
            lane | {"cat": "kernel", "name": f"gemm{at % 3}", "pid": 0, "tid": 7, "args": {"correlation": at + 1, "stream": 7}},
        ]  # fmt: skip
    return made


def document(first: int = 0, count: int = 40, *, key: str = "traceEvents", after: int = 3) -> str:
    """``after``: bytes of metadata behind the list."""
    return json.dumps({"schemaVersion": 1, key: events(first, count), "traceName": "x" * after})


@pytest.fixture(params=["scanned", "decoded"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """Reads a text, by the C scanner or by Python alone, in pieces of several sizes, which must agree."""
    if request.param == "decoded":
        monkeypatch.setattr(chunks, "new_scanner", lambda: None)

    def read(text: str | bytes) -> TraceTable:
        content = text.encode() if isinstance(text, str) else text
        found = [
            EventList(MemoryStream(content), "t.json", piece_bytes=size).table() for size in (300, 5_000, 512 * 1024)
        ]
        assert len({(table.events_total, len(table), table.losses) for table in found}) == 1
        return found[0]

    return read


APPENDED = "another list of events begins behind byte "


@pytest.mark.parametrize("between", ["", "\n", " \r\n\n"])
@pytest.mark.parametrize("after", [3, 10_000])
@pytest.mark.parametrize("second", [document(), document(1000), json.dumps(events(1000))])
def test_of_two_documents_in_one_file_the_first_counts(read, between: str, after: int, second: str) -> None:
    whole = document(after=after)
    table = read(whole + between + second)
    assert (table.events_total, table.metadata["traceName"]) == (80, "x" * after)
    assert table.losses.notes == (
        f"{APPENDED}{len(whole):,} of the text; only the first is used: make the other a file of its own",
    )
    assert (table.losses.damaged_events, table.losses.truncated) == (0, False)


def test_of_two_lists_without_an_object_the_first_counts(read) -> None:
    table = read(json.dumps(events()) + json.dumps(events(1000)))
    assert table.events_total == 80
    assert table.losses.notes[0].startswith(APPENDED)


@pytest.mark.parametrize("between", ["", '"traceName": "x", '])
def test_a_second_list_under_the_same_key_is_told(read, between: str) -> None:
    first = f'{{"schemaVersion": 1, "traceEvents": {json.dumps(events())}, {between}'
    table = read(f'{first}"traceEvents": {json.dumps(events(1000))}}}')
    assert table.events_total == 80
    assert table.losses.notes[0].startswith(f"{APPENDED}{len(first):,} of the text")
    assert table.metadata["schemaVersion"] == 1


@pytest.mark.parametrize(
    "text", [f'{{"traceEvents": [], "traceEvents": {json.dumps(events())}}}', '{"traceEvents": []}' + document()]
)
def test_a_first_list_without_events_gives_way_to_the_second(read, text: str) -> None:
    assert (read(text).events_total, read(text).losses.notes) == (80, ())


def test_files_that_were_packed_and_joined_are_told(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(document().encode()) + gzip.compress(document().encode()))
    table = read_trace(path)
    assert table.events_total == 80
    assert table.losses.notes[0].startswith(APPENDED)


@pytest.mark.parametrize("byte", ["X", "\x00", "\x01", " ", "}", "\\"])
def test_a_damaged_first_byte_costs_itself(read, byte: str) -> None:
    table = read(byte + document()[1:])
    assert (table.events_total, table.metadata["schemaVersion"]) == (80, 1)
    assert table.losses.notes == ("the file's beginning is damaged; its list of events is used",)
    assert table.event(0)["name"] == "aten::mm"


@pytest.mark.parametrize("key", ["traceEvXnts", "traceEvent", "raceEvents", "TraceEvents", "traceEvents2"])
def test_a_damaged_key_costs_itself(read, key: str) -> None:
    table = read(document(key=key))
    assert table.events_total == 80
    assert table.losses.notes == (f"the key of the list of events is damaged ({key!r} for 'traceEvents'); it is used",)


@pytest.mark.parametrize("key", ["events", "nodes", "deviceProperties", "traceName"])
def test_another_key_is_no_damaged_one(key: str) -> None:
    with pytest.raises(Exception, match="without a list 'traceEvents'"):
        EventList(MemoryStream(document(key=key).replace("traceName", "other").encode()), "t.json").table()


def test_a_bracket_in_the_wrong_place_ends_no_list(read) -> None:
    """Damage that looks like the end of the list is no second list: events behind it still count."""
    for at in range(0, 78, 13):
        pieces = [json.dumps(each) for each in events()]
        text = f'{{"traceEvents": [{", ".join(pieces[: at + 1])}] {", ".join(["", *pieces[at + 1 :]])}], "traceName": "x"}}'
        table = read(text)
        assert table.events_total >= 79
        assert not any(note.startswith(APPENDED) for note in table.losses.notes)


def test_an_argument_that_holds_the_key_is_no_second_list(read) -> None:
    made = events()
    made[3]["args"]["traceEvents"] = [{"ph": "X"}]
    made[-1]["name"] = '], "traceEvents": [{"ph": "X"}'
    table = read(json.dumps({"traceEvents": made, "other": {"traceEvents": [1]}, "z": "}{"}))
    assert (table.events_total, table.losses.notes) == (80, ())
    assert len(read_events(made)) == 80
