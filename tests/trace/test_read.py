"""Reading a sound file: the columns equal what json.loads gives, however the text is laid out or cut."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.trace.event_texts import read_events
from tracelens.errors import InputError
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import Kind


def op(**changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2.25} | changes


def written(folder: Path, text: str | bytes, name: str = "t.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def traced(folder: Path, events: list[Any], name: str = "t.json", **metadata: Any) -> Path:
    return written(folder, json.dumps(metadata | {"traceEvents": events}), name)


_texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ['},{"a', '}, {"ph":"X"', "]", '\\"', "[{", "é\n"]
)
_scalars = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | _texts
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3), max_leaves=6
)
_identifiers = st.integers(-3, 5) | st.sampled_from(["", "Spans", "7"])
_times = st.integers(0, 10**9).map(lambda n: n / 1000) | st.integers(0, 10**6)
_arguments = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.integers(0, 2**40),
        "External id": st.integers(0, 9),
        "Sequence number": st.integers(0, 9),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=2), max_size=2),
        "stream": st.integers(0, 9),
        "list": st.lists(st.fixed_dictionaries({"ph": _texts, "x": _values}), max_size=3),
        "other": _values,
    },
)
_events = st.lists(
    st.fixed_dictionaries(
        {"ph": st.sampled_from("XXXXiM"), "name": _texts, "pid": _identifiers, "tid": _identifiers, "ts": _times},
        optional={"cat": st.sampled_from(["cpu_op", "kernel", "x"]), "dur": _times, "args": _arguments, "zz": _values},
    ),
    max_size=12,
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=_events,
    metadata=st.dictionaries(_texts.filter(lambda k: k != "traceEvents"), _values, max_size=3),
    piece_bytes=st.integers(1, 2000),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    zipped=st.booleans(),
    events_last=st.booleans(),
    top_list=st.booleans(),
)
def test_reading_equals_json_loads(
    tmp_path: Path,
    events: list[Any],
    metadata: dict[str, Any],
    piece_bytes: int,
    indent: int | None,
    ascii_only: bool,
    zipped: bool,
    events_last: bool,
    top_list: bool,
) -> None:
    whole: Any = metadata | {"traceEvents": events} if events_last else {"traceEvents": events} | metadata
    if top_list:
        whole, metadata = events, {}
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii_only).encode()
    table = read_trace(written(tmp_path, gzip.compress(text) if zipped else text), piece_bytes=piece_bytes)

    complete = [e for e in events if e["ph"] == "X"]
    assert table.events_total == len(events)
    assert table.counts_by_phase == Counter(e["ph"] for e in events)
    assert [table.event(i) for i in range(len(table))] == complete
    assert [table.name_of(i) for i in range(len(table))] == [e["name"] for e in complete]
    assert [(table.pid_of(i), table.tid_of(i)) for i in range(len(table))] == [(e["pid"], e["tid"]) for e in complete]
    assert [table.category_of(i) for i in range(len(table))] == [e.get("cat", "") for e in complete]
    assert table.start_ns.tolist() == [round(Decimal(repr(e["ts"])) * 1000) for e in complete]
    assert table.duration_ns.tolist() == [round(Decimal(repr(e.get("dur", 0))) * 1000) for e in complete]
    assert table.correlation.tolist() == [e.get("args", {}).get("correlation", -1) for e in complete]
    assert table.metadata == metadata
    assert not table.losses


def test_no_event_is_lost_where_a_string_or_a_nested_list_looks_like_a_border(tmp_path: Path) -> None:
    tricky = [op(args={"list": [{"ph": "X", "n": i} for i in range(40)], "text": '}, {"ph": "X"'}) for _ in range(30)]
    path = traced(tmp_path, tricky)
    for piece_bytes in (1, 50, 700, 5000):
        table = read_trace(path, piece_bytes=piece_bytes)
        assert [table.event(i) for i in range(len(table))] == tricky
        assert not table.losses


@pytest.mark.parametrize("decimals", [0, 1, 3, 6])
@pytest.mark.parametrize("quote", ["", '"'])
def test_epoch_times_in_us_are_exact_to_the_ns(tmp_path: Path, decimals: int, quote: str) -> None:
    digits = Random(1)  # noqa: S311
    times = [f"160{digits.randrange(4 * 10**12):013d}.{digits.randrange(10**6):06d}" for _ in range(200)]
    times = [t[: 17 + decimals] if decimals else t[:16] for t in times]
    # The first piece holds metadata only: what a float loses is decided for each piece.
    events = ['{"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}'] * 50
    events += [f'{{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": {quote}{t}{quote}, "dur": 1}}' for t in times]
    table = read_trace(written(tmp_path, f'{{"traceEvents": [{", ".join(events)}]}}'), piece_bytes=1000)
    assert table.start_ns.tolist() == [round(Decimal(t) * 1000) for t in times]


def test_times_below_101_days_are_exact_as_floats(tmp_path: Path) -> None:
    digits = Random(2)  # noqa: S311
    times = [digits.randrange(8 * 10**15) for _ in range(1000)]  # ns, below 2**43 us
    events = [op(ts=ns / 1000, dur=ns % 10**9 / 1000) for ns in times]
    table = read_trace(traced(tmp_path, events))
    assert table.start_ns.tolist() == times
    assert table.duration_ns.tolist() == [ns % 10**9 for ns in times]


@pytest.mark.parametrize("zipped", [False, True])
def test_metadata_around_the_events_and_a_byte_order_mark(tmp_path: Path, zipped: bool) -> None:
    text = '\ufeff \n{"nested": {"traceEvents": [1]}, "text": "\\"traceEvents\\": [", "traceEvents" : [ {"ph": "X", "ts": 1} ], "after": 2}'
    data = text.encode()
    table = read_trace(written(tmp_path, gzip.compress(data) if zipped else data))
    assert table.metadata == {"nested": {"traceEvents": [1]}, "text": '"traceEvents": [', "after": 2}
    assert table.event(0) == {"ph": "X", "ts": 1}
    assert not table.losses


def test_several_gzip_members_are_one_text_also_at_random_access(tmp_path: Path) -> None:
    events = [op(name=f"op{i}", ts=i) for i in range(2000)]
    text = json.dumps({"traceEvents": events}).encode()
    thirds = [text[:30_000], text[30_000:30_001], text[30_001:]]
    table = read_trace(written(tmp_path, b"".join(map(gzip.compress, thirds)) + b"\x00" * 512), piece_bytes=10_000)
    rows = list(range(2000))
    Random(3).shuffle(rows)  # noqa: S311
    assert all(table.event(row) == events[row] for row in rows[:300])
    assert not table.losses


@pytest.mark.sweep
def test_random_access_starts_from_checkpoints_deep_in_a_gzip_file(tmp_path: Path) -> None:
    noise = Random(4)  # noqa: S311
    events = [op(ts=i, args={"text": f"{noise.getrandbits(2000):x}"}) for i in range(60_000)]  # 35 MB: 3 checkpoints
    text = json.dumps({"traceEvents": events}).encode()
    half = len(text) // 2
    table = read_trace(written(tmp_path, gzip.compress(text[:half], 1) + gzip.compress(text[half:], 1), "t.json.gz"))
    for row in (59_999, 0, 29_000, 45_000, 12_345):
        assert table.event(row) == events[row]


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = traced(tmp_path, [op(), op(name="b")])
    table = read_trace(path)
    traced(tmp_path, [op(), op(name="b"), op()])
    with pytest.raises(InputError, match=r"t\.json has changed since it was read"):
        table.event(0)


def test_begin_and_end_events_become_one_row_at_the_place_of_the_begin(tmp_path: Path) -> None:
    events = [
        {"ph": "B", "name": "outer", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 10, "args": {"External id": 7}},
        op(name="between", ts=11, dur=1),
        {"ph": "B", "name": "inner", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 12.5},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 13},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 20, "args": {"result": "ok"}},
        {"ph": "E", "pid": 1, "tid": 9, "ts": 20},
        {"ph": "B", "name": "open", "pid": 1, "tid": 1, "ts": 30},
    ]
    for piece_bytes in (1, 10_000):
        table = read_trace(traced(tmp_path, events), piece_bytes=piece_bytes)
        assert [table.name_of(i) for i in range(3)] == ["outer", "between", "inner"]
        assert table.start_ns.tolist() == [10_000, 11_000, 12_500]
        assert table.duration_ns.tolist() == [10_000, 1_000, 500]
        assert table.external_id.tolist() == [7, -1, -1]
        assert table.event(0) == events[0] | {"ph": "X", "dur": 10.0, "args": {"External id": 7, "result": "ok"}}
        assert table.losses.notes == ("2 begins and ends have no counterpart",)


def test_odd_spellings_of_numbers_are_understood(tmp_path: Path) -> None:
    events = [
        op(ts="10.5", dur="2", args={"correlation": "12", "External id": 3.0, "stream": "0x1f"}),
        op(cat="kernel", tid=7, dur=None, args={"correlation": "0x10"}),
        op(cat="Kernel", args={"stream": "7", "device": "1", "external id": 4}),
        op(args={"correlation": 2**90, "stream": "0x7f0000000000"}),
        op(pid="Spans", tid="", dur=-5, args=["no", "object"]),
        op(cat=None, name=None, pid=None, tid=2**40),
    ]  # fmt: skip
    table = read_trace(traced(tmp_path, events))
    assert table.start_ns.tolist() == [10_500] * 6
    assert table.duration_ns.tolist() == [2_000, 0, 2_250, 2_250, 0, 2_250]
    assert table.correlation.tolist() == [12, 16, -1, -1, -1, -1]
    assert table.external_id.tolist() == [3, -1, 4, -1, -1, -1]
    assert table.stream.tolist() == [31, 7, 7, 2**30, -1, -1]
    assert table.device.tolist() == [-1, -1, 1, -1, -1, -1]
    assert table.kind.tolist() == [Kind.CPU_OP, Kind.KERNEL, Kind.KERNEL, Kind.CPU_OP, Kind.CPU_OP, Kind.OTHER]
    assert table.lanes == [(1, 2), (1, 7), ("Spans", ""), ("", 2**40)]
    assert [table.event(i) for i in range(6)] == events


def test_a_kernel_without_a_recorded_stream_is_on_the_stream_its_tid_names() -> None:
    table = read_events([op(cat="kernel", tid=13), op(cat="cpu_op", tid=13)])
    assert table.stream.tolist() == [13, -1]


def test_a_missing_duration_counts_as_zero_without_loss() -> None:
    event = op()
    del event["dur"]
    table = read_events([event])
    assert table.duration_ns.tolist() == [0]
    assert not table.losses


def test_names_and_codes_are_in_order_of_first_appearance(tmp_path: Path) -> None:
    names = ["b", "a", "b", "c", "a", "d"] * 50
    table = read_trace(traced(tmp_path, [op(name=n) for n in names]), piece_bytes=300)
    assert table.names == ["b", "a", "c", "d"]


def test_more_categories_than_a_column_holds_share_one() -> None:
    table = read_events([op(cat=f"c{i}") for i in range(32_005)])
    assert table.category_of(31_999) == "c31999"
    assert {table.category_of(i) for i in range(32_000, 32_005)} == {"(more categories)"}


def test_flows_are_columns_of_their_own() -> None:
    flow = {"cat": "ac2g", "name": "ac2g", "pid": 1, "tid": 2, "ts": 5.25}
    table = read_events(
        [
            flow | {"ph": "s", "id": 3},
            op(),
            flow | {"ph": "f", "id": "0xab", "bp": "e"},
            flow | {"ph": "s", "id": "0xab"},
        ]
    )
    assert len(table) == 1
    assert table.flows.is_start.tolist() == [True, False, True]
    assert table.flows.id.tolist() == [3, -2, -2]
    assert table.flows.time_ns.tolist() == [5_250] * 3
    assert [table.lanes[i] for i in table.flows.lane] == [(1, 2)] * 3


def test_process_and_thread_names_come_from_metadata_events() -> None:
    meta = {"ph": "M", "pid": 5, "tid": 6, "ts": 0}
    table = read_events(
        [
            meta | {"name": "process_name", "args": {"name": "python"}},
            meta | {"name": "process_labels", "args": {"labels": "GPU 0"}},
            meta | {"name": "thread_name", "args": {"name": "stream 7 "}},
            meta | {"name": "process_sort_index", "args": {"sort_index": 1}},
        ]
    )
    assert table.process_names == {5: "python"}
    assert table.process_labels == {5: "GPU 0"}
    assert table.thread_names == {(5, 6): "stream 7 "}
    assert len(table) == 0


def test_progress_reaches_the_size_of_the_file(tmp_path: Path) -> None:
    path = traced(tmp_path, [op() for _ in range(100)])
    calls: list[tuple[int, int]] = []
    read_trace(path, piece_bytes=1000, progress=lambda done, size: calls.append((done, size)))
    assert calls[-1] == (path.stat().st_size, path.stat().st_size)
    assert calls == sorted(calls)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "t.json is empty: the profiler wrote nothing, record the trace again"),
        (b" \n\x00", "t.json holds only white space: record the trace again"),
        (b"hello", "t.json is text, but not JSON: give a file that torch.profiler's export_chrome_trace wrote"),
        (b"\x90\x04\x95", "t.json is not JSON: give a file that torch.profiler's export_chrome_trace wrote"),
        (b"<html>", "t.json is HTML or XML: give the profiler's JSON instead"),
        (b"PK\x03\x04...", "t.json is zip data, but damaged (File is not a zip file): pack it again"),
        ('{"a": 1}'.encode("utf-16"), "t.json is JSON without a list 'traceEvents' (it has 'a'): give a file that torch.profiler's export_chrome_trace wrote"),
        (b'{"schema": "1.1", "pid": 1, "nodes": []}', "t.json is a PyTorch execution trace, which has shapes but no times: give the Kineto trace of the same run"),
        (b'{"a": 1, "traceEvents": null}', "t.json is JSON without a list 'traceEvents' (it has 'a', 'traceEvents'): give a file that torch.profiler's export_chrome_trace wrote"),
        (b'{"schemaVersion": 1, "dev', "t.json starts like JSON but is damaged or cut off before any 'traceEvents': record it again"),
        (b'{"events": [{"ph": "X", "ts": 1}]}', "t.json is JSON without a list 'traceEvents' (it has 'events'): give a file that torch.profiler's export_chrome_trace wrote"),
        (b'[{"file": "x"}]', "t.json is a JSON list without profiler events: give a file that torch.profiler's export_chrome_trace wrote"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_answered_with_one_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    for data in (content, gzip.compress(content)) if content else (content,):
        with pytest.raises(InputError) as caught:
            read_trace(written(tmp_path, data))
        assert str(caught.value) == message


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(InputError, match="is a folder"):
        read_trace(tmp_path)


def test_an_empty_list_of_events_is_a_trace(tmp_path: Path) -> None:
    for text in ('{"traceEvents": []}', '{"traceEvents": [\n], "x": 1}', "[]"):
        table = read_trace(written(tmp_path, text))
        assert len(table) == 0
        assert not table.losses
