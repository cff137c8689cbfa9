"""``tracelens convert``: what it writes beside Kineto's JSON and Perfetto's packets (tests/trace/formats/test_perfetto.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace.formats.rewritten import EXAMPLE
from tests.trace.formats.test_xplane import walked
from tracelens.cli import main
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS


def messages(data: bytes) -> list[bytes]:
    """What stands one after the other, each behind its length."""
    found, position = [], 0
    while position < len(data):
        length = shift = 0
        while True:
            byte = data[position]
            position, length, shift = position + 1, length | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        found.append(data[position : position + length])
        position += length
    return found


def numbers(packed: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in packed:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value = shift = 0
    return found


def test_a_chakra_trace_replayed_without_a_network_takes_as_long_as_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "rank0.et"
    assert main(["convert", str(EXAMPLE), "-o", str(path)]) == 0
    metadata, *nodes = messages(path.read_bytes())
    assert dict(walked(metadata)) == {1: b"0.0.4"}
    table = read_trace(EXAMPLE)
    rows = table.rows_of(DEVICE_KINDS)
    ends: dict[int, int] = {}
    kinds: dict[int, int] = {}
    for at, node in enumerate(nodes):
        fields = dict(walked(node))
        assert fields.get(1, 0) == at
        waits = numbers(fields.get(5, b""))
        assert all(each < at for each in waits)
        ends[at] = max((ends[each] for each in waits), default=0) + fields.get(7, 0)
        kinds[fields[3]] = kinds.get(fields[3], 0) + 1
        if fields[3] == 7:
            said = {dict(walked(value))[1].decode(): dict(walked(value)) for key, value in walked(node) if key == 10}
            assert said["comm_size"][9] > 0
            assert said["comm_type"].get(9, 0) in (0, 2, 6, 7)
            assert said["is_cpu_op"] == {1: b"is_cpu_op", 27: 0}
    recorded_us = (table.ends_ns(rows).max() - table.start_ns[rows].min()) / 1000
    assert max(ends.values()) == pytest.approx(recorded_us, abs=len(nodes) / 2)  # each node is whole µs
    assert kinds[7] > 10


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_columns_for_other_tools(ending: str, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    path = tmp_path / f"t.{ending}"
    assert main(["convert", str(EXAMPLE), "-o", str(path)]) == 0
    found = pytest.importorskip("pyarrow.parquet").read_table(path) if ending == "parquet" else pyarrow.ipc.open_file(path).read_all()  # fmt: skip
    table = read_trace(EXAMPLE)
    assert found["duration_ns"].to_pylist() == table.duration_ns.tolist()
    assert found["name"].to_pylist() == [table.name_of(row) for row in range(len(table))]
