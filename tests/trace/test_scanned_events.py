"""A piece that is scanned in C has the columns that it has when it is decoded, whatever is in it."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import examples, part, part_of_traces, recorded_traces
from tests.trace.event_texts import PLAIN, SORTS, Blocks, content, plain, text_of
from tracelens.errors import InputError
from tracelens.trace.reading.chrome import scanned_events
from tracelens.trace.reading.chrome.event_list import EventList
from tracelens.trace.reading.chrome.scanned_events import ScannedEvents, Scanner
from tracelens.trace.reading.read import read_trace

EXAMPLES = Path(__file__).resolve().parents[2] / "example_traces"
pytestmark = pytest.mark.skipif(
    scanned_events.new_scanner() is None, reason="scan_events.c was not compiled: every piece is decoded"
)


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """How many pieces were scanned (True), and how many not."""
    counts: Counter[bool] = Counter()
    scanned = Scanner.scanned

    def counted(scanner: Scanner, text: memoryview, *, text_times: bool) -> Any:
        found = scanned(scanner, text, text_times=text_times)
        counts[isinstance(found, ScannedEvents)] += 1
        return found

    monkeypatch.setattr(Scanner, "scanned", counted)
    return counts


def table(text: bytes, *, scanned: bool, piece_bytes: int = 500, block_bytes: int = 300) -> dict[str, Any] | str:
    """All that a table holds, or the sentence instead of it."""
    with pytest.MonkeyPatch.context() as patch:
        if not scanned:
            patch.setenv("TRACELENS_PURE_PYTHON", "1")
        try:
            found = EventList(Blocks(text, block_bytes), "t.json", piece_bytes=piece_bytes).table()
        except InputError as error:
            return str(error)
    return content(found)


def both_agree(text: bytes, **sizes: int) -> None:
    assert table(text, scanned=True, **sizes) == table(text, scanned=False, **sizes)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sorts=st.lists(st.sampled_from(PLAIN * 3 + tuple(SORTS)), max_size=120),
    damage=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=2)), max_size=2),
    piece_bytes=st.integers(100, 6000),
    block_bytes=st.integers(50, 3000),
)
def test_events_of_every_sort(
    sorts: list[str], damage: list[tuple[float, bytes]], piece_bytes: int, block_bytes: int
) -> None:
    text = text_of(sorts)
    for place, put in damage:
        at = int(place * len(text))
        text = text[:at] + put + text[at + 1 :]
    both_agree(text, piece_bytes=piece_bytes, block_bytes=block_bytes)


#: JSON values, and texts that look like some, as they may stand in a file.
VALUES = (
    "0", "-0", "7", "-7", "01", "1.", ".5", "1e3", "1E-2", "1e400", "-", "+1", "0x7", "1.5", "0.0005", "0.0015", "2.0025",
    "12.3456789", "1234567.890123456", "3.0000000000000004", "9007199254740992", "9007199254740993", "999999999999999999",
    "9999999999999999999", "12345678901234567890123", "8796093022207.999", "8796093022208", "-8796093022208.5",
    "1722370000000000.123", "1722370000000000.1235", "4611686018427386.999", "4611686018427387", "9223372036854775807",
    "2147483647", "1073741824", "1073741823", "-2147483649", "true", "false", "null", "nul", "NaN", "Infinity", '""', '"7"',
    '"0x7f"', '"stream 7"', '"a\\"b"', '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\x"', '"\\u12g4"', '"tab\there"',
    '"é"', '"\udcff"', '"X"', '"XX"', '"s"', '"f"', '"i"', '"M"', '"C"', '"B"', '"E"', '"[memory]"', '"process_name"',
    '"thread_name"', '"cpu_op"', '"kernel"', '"cuda_sync"', '"python_function"', "[]", "{}", "[[2, 3], []]", "[[2,3],[]]",
    '["float"]', "[1,]", "[1 2]", "{1:2}", '{"a":1,}', "[" * 70 + "]" * 70, "[" * 1100 + "]" * 1100, "[", "}", "]", "/* */1",
)  # fmt: skip
#: Spellings of keys: known ones, one with an escape, and one that nobody knows.
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "args", "s", "p\\u0068", "")
ARGUMENTS = (
    "correlation", "External id", "external id", "Sequence number", "stream", "device", "Input Dims", "Input type",
    "Input Strides", "Concrete Inputs", "Collective name", "In msg nelems", "Group size", "bytes", "dtype", "Src Rank",
    "kernel_backend", "Input dims", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "Bytes", "Total Allocated",
    "Device Type", "Device Id", "graph id", "graph node id", "dram__bytes.sum", "name", "labels", "Ev Idx", "Call stack", "Bytez", "stre\\u0061m",
)  # fmt: skip
BLANKS = st.sampled_from(("", "", "", " ", "\n    ", "\t\r\n", "\x00", "\x0b"))
SOUND_FIELDS = {
    "ph": '"X"', "cat": '"cpu_op"', "name": '"aten::mm"', "pid": "1", "tid": "2", "ts": "5.5", "dur": "2",
    "args": '{"External id": 3, "Input Dims": [[2, 3]], "stream": 7}',
}  # fmt: skip


@st.composite
def objects(draw: st.DrawFn, fields: dict[str, str], keys: tuple[str, ...]) -> str:
    fields = dict(fields)
    pairs = list(fields.items())
    for key in draw(st.lists(st.sampled_from(keys), max_size=2)):
        value = draw(st.one_of(st.sampled_from(VALUES), objects({}, ARGUMENTS) if key == "args" else st.nothing()))
        at = draw(st.integers(0, len(pairs)))
        if key in fields and draw(st.integers(0, 7)):
            pairs = [(k, value if k == key else v) for k, v in pairs]
        else:
            pairs.insert(at, (key, value))
    blank = draw(BLANKS)
    return "{" + ",".join(f'{blank}"{key}":{blank}{value}' for key, value in pairs) + blank + "}"


@settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    events=st.lists(objects(SOUND_FIELDS, KEYS), min_size=1, max_size=6),
    between=st.sampled_from((",", ",", ", ", ",\n  ", "", ",,", ";")),
    end=st.sampled_from(("]}", "]}", ' ] , "traceName": "x"}', "", "]", "}]}")),
    piece_bytes=st.sampled_from((50, 400, 4000)),
)
def test_values_as_strangers_write_them(events: list[str], between: str, end: str, piece_bytes: int) -> None:
    text = '{"schemaVersion": 1, "traceEvents": [' + between.join(events) + end
    both_agree(text.encode("utf-8", "surrogateescape"), piece_bytes=piece_bytes)


@pytest.mark.parametrize("key", part(KEYS, 4))
def test_each_value_of_each_key(key: str) -> None:
    for value in VALUES:
        event = ",".join(f'"{k}":{v}' for k, v in ({**SOUND_FIELDS, key: value}).items())
        text = '{"traceEvents":[{"ph":"X","ts":1,"name":"a"},{' + event + '},{"ph":"X","ts":9,"name":"b"}]}'
        both_agree(text.encode("utf-8", "surrogateescape"), piece_bytes=4000)


@pytest.mark.parametrize("value", part(VALUES, 48))
def test_each_value_of_each_argument(value: str) -> None:
    for cat in ("cpu_op", "kernel", "cuda_sync", "python_function"):
        events = ",".join(
            f'{{"ph":"X","cat":"{cat}","name":"a","pid":1,"tid":{i},"ts":{i},"args":{{"{argument}":{value}}}}}'
            for i, argument in enumerate(ARGUMENTS)
        )
        for each in (f"[{events}]", *(f"[{event}}}}}]" for event in events.split("}},"))):
            both_agree(f'{{"traceEvents":{each}}}'.encode("utf-8", "surrogateescape"), piece_bytes=20_000)


def test_codes_do_not_tell_how_the_file_was_cut() -> None:
    text = text_of([list(SORTS)[i * 11 % len(SORTS)] for i in range(300)])
    whole = table(text, scanned=False, piece_bytes=1 << 20)
    for piece_bytes in (200, 3000, 20_000):
        for scanned in (True, False):
            assert table(text, scanned=scanned, piece_bytes=piece_bytes) == whole


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.json.gz")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_example_traces_are_scanned_whole(path: Path, pieces: Counter[bool]) -> None:
    compare_file(path)
    assert pieces[True] > 0
    assert pieces[False] == 0


@pytest.mark.shared
@pytest.mark.parametrize("name", part_of_traces(recorded_traces()))
def test_real_traces_are_scanned_whole(name: str, shared_traces: Path, pieces: Counter[bool]) -> None:
    compare_file(shared_traces / name)
    assert pieces[False] <= 2  # times that floats do not hold are seen in a first piece


def compare_file(path: Path) -> None:
    scanned = plain(read_trace(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACELENS_PURE_PYTHON", "1")
        assert plain(read_trace(path)) == scanned


@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.floats(0, 0.9),
    changes=st.lists(st.tuples(st.integers(0, 6000), st.integers(0, 3), st.binary(max_size=3)), min_size=1, max_size=3),
)
def test_changed_bytes_of_a_recorded_trace(start: float, changes: list[tuple[int, int, bytes]]) -> None:
    whole = gzip.decompress((EXAMPLES / "transformer_step_cpu.json.gz").read_bytes())
    at = whole.index(b"{", whole.index(b"traceEvents") + int(start * (len(whole) - 10_000)))
    text = bytearray(b'{"traceEvents": [' + whole[at : at + 6000])
    for place, length, put in changes:
        text[place : place + length] = put
    both_agree(bytes(text), piece_bytes=2000)


def test_a_library_of_another_layout_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned_events, "_LAYOUT", -1)
    assert scanned_events.new_scanner() is None
