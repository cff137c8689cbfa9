"""Damaged files: every complete event is kept, only the damaged one is lost, and the loss is counted and said."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracelens
from tests.conftest import examples, row_by_row
from tracelens.errors import InputError
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import TraceTable

N = 60
EVENTS = [
    {"ph": "X", "cat": "cpu_op", "name": f"op{i}", "pid": 1, "tid": 2, "ts": i, "dur": 0.5, "args": {"External id": i, "Input Dims": [[i, 2], []]}}
    for i in range(N)
]  # fmt: skip
LINES = [json.dumps(e) for e in EVENTS]


def text_of(lines: list[str], separator: str = ",\n  ") -> bytes:
    return ('{"schemaVersion": 1, "traceEvents": [\n  ' + separator.join(lines) + '\n], "traceName": "x"}').encode()


def read(folder: Path, text: bytes, piece_bytes: int = 700) -> TraceTable:
    path = folder / "t.json"
    path.write_bytes(text)
    return read_trace(path, piece_bytes=piece_bytes)


def names(table: TraceTable) -> list[str]:
    return [table.name_of(i) for i in range(len(table))]


def without(*numbers: int) -> list[str]:
    return [f"op{i}" for i in range(N) if i not in numbers]


def with_line(number: int, line: str) -> list[str]:
    return [*LINES[:number], line, *LINES[number + 1 :]]


@pytest.mark.parametrize("separator", [",\n  ", ","])
@pytest.mark.parametrize("piece_bytes", [200, 700, 100_000])
@row_by_row(
    "damaged",
    [
        LINES[20].replace('"ph"', 'ph"'),
        LINES[20].replace("{", "", 1),
        LINES[20].replace('"ts": 20,', '"ts": 20 20,'),
        LINES[20][:40] + "\x00" * 30 + LINES[20][90:],
        LINES[20].replace('"name":', '"name"'),
        LINES[20].replace("[[20", "[20"),
        LINES[20][:60],
        LINES[20].replace('{"External', '["External'),
        '{"deep": ' + "[" * 10_000 + "]" * 10_000 + "}",
    ],
)
def test_one_damaged_event_costs_one_event(tmp_path: Path, damaged: str, separator: str, piece_bytes: int) -> None:
    table = read(tmp_path, text_of(with_line(20, damaged), separator), piece_bytes)
    assert names(table) == without(20)
    assert table.losses.damaged_events == 1
    assert not table.losses.truncated
    assert table.metadata == {"schemaVersion": 1, "traceName": "x"}
    rows = [EVENTS[i] for i in range(N) if i != 20]
    assert [table.event(i) for i in range(N - 1)] == rows


@pytest.mark.parametrize("number", [0, N - 1])
def test_the_first_and_the_last_event_may_be_the_damaged_one(tmp_path: Path, number: int) -> None:
    table = read(tmp_path, text_of(with_line(number, LINES[number].replace('"ts"', "ts"))))
    assert names(table) == without(number)
    assert table.losses.damaged_events == 1
    assert table.metadata["traceName"] == "x"


def test_a_missing_comma_between_events_costs_nothing(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(LINES).replace(LINES[9].encode() + b",", LINES[9].encode()))
    assert names(table) == without()


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("x", "NaN", None), ("x", "-Infinity", None), ("x", "[nan, 1]", [None, 1]),
        ("x", '"C:\\Users"', "C:\\Users"), ("x", '"a\tb\x01"', "a\tb\x01"), ("x", '"a: NaN, b"', "a: NaN, b"),
        ("x", '"\\ud800"', "\ufffd"), ("x", '"\\ud83d\\ude00 \\x"', "\U0001f600 \\x"),
        ("x", "1,", 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("number", [0, 20, N - 1])
def test_known_faults_are_repaired_and_no_event_is_lost(
    tmp_path: Path, key: str, text: str, expected: Any, number: int
) -> None:
    line = LINES[number][:-1] + f', "{key}": {text}}}'
    table = read(tmp_path, text_of(with_line(number, line)))
    assert names(table) == without()
    assert table.losses.damaged_events == 0
    assert table.event(number)[key] in (expected, "\ud800")
    assert [table.event(i) for i in range(N) if i != number] == [EVENTS[i] for i in range(N) if i != number]


def test_repairs_are_counted_and_said(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(with_line(20, LINES[20].replace("0.5", "NaN"))))
    assert table.duration_ns[20] == 0
    assert table.losses.repaired == 1
    assert table.losses.notes == ("1 value was repaired",)


def test_invalid_utf8_becomes_readable(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        text_of(LINES)
        .replace(b'"op20"', b'"op\xff20"')
        .replace(b'"cat": "cpu_op", "name": "op30"', b'"c\xffat": "cpu_op", "name": "op30"'),
    )
    assert names(table)[20] == "op\ufffd20"
    assert table.event(20)["name"] == "op\ufffd20"
    assert len(table) == N


def test_elements_that_are_no_events_are_counted_and_the_others_kept(tmp_path: Path) -> None:
    lines = [LINES[0], "5", '"text"', "null", "[1, 2]", '{"no": "phase"}', LINES[1]]
    table = read(tmp_path, text_of(lines))
    assert names(table) == ["op0", "op1"]
    assert table.events_total == 7
    assert table.losses.damaged_events == 5
    assert table.losses.notes == ("5 elements of the list are not events",)


def test_an_event_without_a_usable_time_is_no_row(tmp_path: Path) -> None:
    lines = [
        LINES[0],
        LINES[1].replace('"ts": 1', '"ts": null'),
        LINES[2].replace('"ts": 2', '"ts": 1e300'),
        LINES[3].replace('"ts": 3, ', ""),
    ]
    table = read(tmp_path, text_of(lines))
    assert names(table) == ["op0"]
    assert table.losses.damaged_events == 3
    assert table.losses.notes == ("3 events have no usable time",)


CENTURY_US = 100 * 365.25 * 86_400e6


def test_what_begins_years_from_the_rest_or_lasts_for_years_is_told_and_not_added_up(tmp_path: Path) -> None:
    """An event at 0 among times since 1970; 500 kernels of 80 days, which together exceed 64 bits of ns half."""
    lines = [json.dumps({**e, "ts": 1.7e15 + e["ts"]}) for e in EVENTS]
    table = read(tmp_path, text_of([*lines, LINES[0], lines[1].replace('"dur": 0.5', f'"dur": {CENTURY_US}')]))
    assert table.losses.notes == ("1 event has no usable time", "1 impossible duration is now 0")
    assert len(table) == N + 1
    assert table.duration_ns.sum() == N * 500
    long = [json.dumps({**EVENTS[0], "ts": i, "dur": 80 * 86_400e6}) for i in range(700)]
    table = read(tmp_path, text_of([*LINES, *long]))
    assert table.losses.notes == ("700 impossible durations are now 0",)
    assert table.duration_ns.sum() == N * 500


@settings(max_examples=examples(10), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(*2 * (st.integers(0, 2**62) | st.floats(0, 1e19) | st.floats(0, 1e4),)), min_size=1, max_size=8), st.integers(1, 200))  # fmt: skip
def test_no_time_wraps_whatever_the_file_says(tmp_path: Path, times: list[tuple[float, float]], copies: int) -> None:
    """Sums of a report stay what floats make of them: no share above 100 %, no negative time."""
    events = [
        {"ph": "X", "cat": category, "name": "aten::mm", "pid": 1, "tid": lane, "ts": ts, "dur": dur, "args": {"External id": i, "correlation": i, "device": 0, "stream": lane}}
        for i, (ts, dur) in enumerate(times * copies)
        for lane, category in enumerate(("cpu_op", "cuda_runtime", "kernel"))
    ]  # fmt: skip
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}))
    table = read_trace(path)
    lost = table.losses.damaged_events
    assert len(table) == len(events) - lost
    assert table.duration_ns.min(initial=0) == 0
    assert float(table.duration_ns.sum()) == pytest.approx(float(table.duration_ns.sum(dtype="float64")))
    if not len(table):
        return
    report = tracelens.report(path)
    if table.duration_ns.sum() < 2**53:  # sums beyond are rounded, as floats are
        assert report.check(path).broken == ()
    for name, frame in report.tables.items():
        if "percent" in frame:
            assert not (frame["percent"] > 100.000001).any(), name


@pytest.mark.parametrize("piece_bytes", [1, 300, 700, 100_000])
def test_a_file_cut_anywhere_keeps_every_event_before_the_cut(tmp_path: Path, piece_bytes: int) -> None:
    whole = text_of(LINES)
    start = whole.index(LINES[0].encode())
    ends = [whole.index(line.encode()) + len(line) for line in LINES]
    for cut in [start + 1, *Random(5).sample(range(start + 1, ends[-1]), 12), ends[3], ends[3] + 1, ends[-1]]:  # noqa: S311
        table = read(tmp_path, whole[:cut], piece_bytes)
        assert names(table) == [f"op{i}" for i in range(N) if ends[i] <= cut], cut
        assert table.losses.truncated
        assert "the file ends" in table.losses.notes[0]
        assert table.metadata == {"schemaVersion": 1}
        for i in range(len(table)):
            assert table.event(i) == EVENTS[i]


def test_a_file_cut_inside_its_closing_metadata_keeps_all_events(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(LINES)[:-4])
    assert names(table) == without()
    assert table.losses.notes == ("the metadata around the events is damaged; part of it is lost",)
    assert table.metadata == {"schemaVersion": 1}


def test_a_cut_gzip_file_keeps_what_can_be_inflated(tmp_path: Path) -> None:
    noise = Random(6)  # noqa: S311
    lines = [line[:-1] + f', "x": "{noise.getrandbits(4000):x}"}}' for line in LINES]
    packed = gzip.compress(text_of(lines))
    table = read(tmp_path, packed[: len(packed) // 2])
    assert 20 < len(table) < 40
    assert names(table) == [f"op{i}" for i in range(len(table))]
    assert table.losses.truncated
    assert table.losses.notes[0] == "the gzip data ends early; what was readable before it is used"
    assert table.event(len(table) - 1)["name"] == names(table)[-1]


def test_a_flipped_byte_in_gzip_data_keeps_what_stands_before_it(tmp_path: Path) -> None:
    noise = Random(7)  # noqa: S311
    lines = [line[:-1] + f', "x": "{noise.getrandbits(4000):x}"}}' for line in LINES]
    packed = bytearray(gzip.compress(text_of(lines)))
    packed[-6] ^= 0xFF  # of the closing length: all data are there
    table = read(tmp_path, bytes(packed))
    assert names(table) == without()
    assert table.losses.notes == ("the gzip data has a wrong checksum; what was readable before it is used",)
    assert not table.losses.truncated


def test_garbage_after_the_gzip_data_is_said_and_costs_nothing(tmp_path: Path) -> None:
    table = read(tmp_path, gzip.compress(text_of(LINES)) + b"garbage")
    assert names(table) == without()
    assert len(table.losses.notes) == 1


def test_trailing_zeros_cost_nothing(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(LINES) + b"\x00" * 5000)
    assert names(table) == without()
    assert not table.losses


def test_a_trailing_comma_costs_nothing(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(LINES).replace(b"\n]", b",\n]"))
    assert names(table) == without()
    assert table.metadata["traceName"] == "x"
    assert table.losses.damaged_events == 0


def test_nan_in_the_metadata_is_repaired(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(LINES).replace(b'"schemaVersion": 1', b'"schemaVersion": 1, "x": NaN'))
    assert table.metadata == {"schemaVersion": 1, "x": None, "traceName": "x"}
    assert names(table) == without()


def test_damaged_metadata_costs_the_metadata_only(tmp_path: Path) -> None:
    table = read(tmp_path, text_of(LINES).replace(b'"schemaVersion":', b'"schemaVersion"'))
    assert names(table) == without()
    assert table.metadata == {}
    assert "metadata" in table.losses.notes[-1]


def test_a_list_end_inside_damage_is_not_taken_for_the_end_of_the_events(tmp_path: Path) -> None:
    broken = (
        LINES[20].replace('"cat"', 'cat"').replace('"Input Dims": [[20, 2], []]', '"Input Dims": [[20, 2]], "x": [1]}')
    )
    table = read(tmp_path, text_of(with_line(20, broken)))
    assert names(table) == without(20)
    assert table.metadata["traceName"] == "x"


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3),
    piece_bytes=st.sampled_from([300, 2000, 100_000]),
    zipped=st.booleans(),
)
def test_flipped_bytes_cost_at_most_the_events_around_them(
    tmp_path: Path, flips: list[tuple[float, int]], piece_bytes: int, zipped: bool
) -> None:
    """A flip may hurt the event it is in and, at its border, the one beside it."""
    text = bytearray(text_of(LINES))
    for place, value in flips:
        text[round(place * (len(text) - 1))] = value
    try:
        table = read(tmp_path, gzip.compress(bytes(text)) if zipped else bytes(text), piece_bytes)
    except InputError:
        return  # the start of the file was hit
    for row in range(len(table)):
        assert isinstance(table.event(row), dict)
    kept = set(names(table)) & set(without())
    assert len(kept) >= N - 2 * len(flips)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("later_key", [b"", b'], "traceEvents": ['])
def test_where_the_start_of_the_list_is_cut_out_the_events_behind_the_cut_are_read(
    tmp_path: Path, later_key: bytes, zipped: bool
) -> None:
    text = text_of(LINES).replace(b'"traceEvents"', b'"deviceProperties": [{"id": 0}], "traceEvents"')
    text = text.replace(b"op40", b"op" + later_key + b"40")
    text = text[: text.index(b'}], "traceEvents"')] + text[text.index(b': "X"') :]
    table = read(tmp_path, gzip.compress(text) if zipped else text)
    assert names(table) == (without(0, 40) if later_key else without(0))
    assert "the metadata around the events is damaged; part of it is lost" in table.losses.notes


def test_ten_thousand_levels_around_the_events_are_no_crash(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read(tmp_path, b'{"a":' * 10_000)
    table = read(
        tmp_path, b'{"a": ' + b"[" * 10_000 + b"]" * 10_000 + b', "traceEvents": [' + LINES[0].encode() + b"]}"
    )
    assert names(table) == ["op0"]


def test_long_white_space_and_long_nested_lists_stay_fast(tmp_path: Path) -> None:
    nested = json.dumps(EVENTS[0] | {"args": {"list": [{"a": i} for i in range(20_000)]}})
    blank = (LINES[1] + " " * 500_000).encode()
    table = read(tmp_path, text_of([nested, LINES[1], nested]).replace(LINES[1].encode(), blank), 10_000)
    assert names(table) == ["op0", "op1", "op0"]
    assert not table.losses


@pytest.mark.parametrize("text", ["9" * 40, "1e300", "1e999999999", '"1e999999999"', "-1e30", '"soon"', "true"])
@pytest.mark.parametrize("other", ["1", "1712345678901234.567"])
def test_an_impossible_time_costs_one_event_in_either_way_of_reading_times(
    tmp_path: Path, text: str, other: str
) -> None:
    lines = [line.replace(f'"ts": {i},', f'"ts": {text if i == 5 else other},') for i, line in enumerate(LINES)]
    table = read(tmp_path, text_of(lines))
    assert names(table) == without(5)
    assert set(table.start_ns.tolist()) == {1712345678901234567 if "." in other else 1000}
    assert table.losses.damaged_events == 1
