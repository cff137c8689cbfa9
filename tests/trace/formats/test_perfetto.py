"""Perfetto's protobuf as its writers lay it out: tracelens, PyTorch's stages, Kineto's tracks, rocprofv3's clock."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.formats.rewritten import EXAMPLE, kernel_table, message
from tests.trace.formats.test_xplane import walked
from tracelens.analysis.loaded_trace import load
from tracelens.cli import main
from tracelens.errors import InputError
from tracelens.trace.reading.perfetto_packets import _paired
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import Kind, TraceTable

BEGIN, END = (9, 1), (9, 2)


def trace(path: Path, *packets: bytes) -> TraceTable:
    path.write_bytes(message(*((1, packet) for packet in packets)))
    return read_trace(path)


def event(time: int | None, *fields: tuple[int, int | str | bytes], sequence: int = 1, **more: int) -> bytes:
    stamp = () if time is None else ((8, time),)
    return message(*stamp, (10, sequence), (11, message(*fields)))


def track(uuid: int, *fields: tuple[int, int | str | bytes]) -> bytes:
    return message((60, message((1, uuid), *fields)))


def said(**args: int | str) -> list[tuple[int, bytes]]:
    return [
        (
            4,
            message(
                (10, key.replace("_", " ") if key != "corr_id" else key), (4 if isinstance(value, int) else 6, value)
            ),
        )
        for key, value in args.items()
    ]


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("perfetto") / "t.pftrace.gz"
    assert main(["convert", str(EXAMPLE), "-o", str(path)]) == 0
    return path


def test_a_trace_written_as_packets_has_the_same_kernel_table_and_ops(converted: Path) -> None:
    pd.testing.assert_frame_equal(kernel_table(converted), kernel_table(EXAMPLE))
    here, there = read_trace(converted), read_trace(EXAMPLE)

    def ops(table: TraceTable) -> list[tuple[object, ...]]:
        rows = table.rows_of([Kind.CPU_OP]).tolist()
        return [(table.signature_of(r), int(table.sequence_number[r]), int(table.start_ns[r]), table.pid_of(r), table.tid_of(r)) for r in rows]  # fmt: skip

    assert ops(here) == ops(there)
    assert {k: here.metadata[k] for k in ("deviceProperties", "distributedInfo")} == {
        k: there.metadata[k] for k in ("deviceProperties", "distributedInfo")
    }
    row = int(there.rows_of([Kind.KERNEL])[0])
    assert here.args(int(here.rows_of([Kind.KERNEL])[0])) == there.args(row)


@pytest.mark.sweep
def test_back_to_kineto(converted: Path, tmp_path: Path) -> None:
    path = tmp_path / "again.json"
    assert main(["convert", str(converted), "-o", str(path)]) == 0
    pd.testing.assert_frame_equal(kernel_table(path), kernel_table(EXAMPLE))
    assert read_trace(path).process_names == read_trace(converted).process_names


def test_an_ending_that_says_no_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(EXAMPLE), "-o", str(tmp_path / "t.txt")]) == 2
    assert "end it in .json" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_stages_of_gpus_as_pytorch_writes_them(tmp_path: Path) -> None:
    """Names by number, all begins before all ends, kernels as stages whose extra data are texts."""
    interned = message((10, 1), (13, 1), (12, message(
        (2, message((1, 1), (2, "aten::mm"))), (2, message((1, 2), (2, "cudaLaunchKernel"))),
        (2, message((1, 3), (2, "gemm"))), (24, message((1, 1), (2, "Kernel"))), (24, message((1, 2), (2, "Memcpy"))),
        (24, message((1, 101), (2, "stream 7"))), (1000, message((1, 1), (3, "gemm"))))))  # fmt: skip
    dims = (4, message((10, "Input Dims"), (12, message((12, message((4, 64))), (12, message((4, 32))))), (12, b"")))
    extra = [(6, message((1, key), (2, value))) for key, value in (("correlation", "55"), ("device id", "0"))]
    launch = (21, message((1, message((1, 8), (2, 2), (3, 1))), (2, message((1, 128), (2, 1), (3, 1)))))
    table = trace(
        tmp_path / "t.pftrace", track(1, (3, message((1, 40), (6, "python")))),
        track(2, (5, 1), (4, message((1, 40), (2, 41), (5, "main")))), interned,
        event(1000, BEGIN, (11, 2), (10, 1), dims, *said(External_id=9, Sequence_number=4)),
        event(2000, BEGIN, (11, 2), (10, 2), *said(cbid=211, correlation=55)),
        event(9000, END, (11, 2)), event(3000, END, (11, 2)),
        message((8, 5000), (10, 1), (53, message(
            (1, 55), (2, 700), (11, 3), (13, 101), (14, 1), (19, 1), (20, 3), *extra, launch))),
        message((8, 6000), (10, 1), (53, message((1, 56), (2, 10), (11, 3), (13, 101), (14, 2), (6, message((1, "bytes"), (2, "4096"))))))
    )  # fmt: skip
    loaded = load(tmp_path / "t.pftrace")
    (kernel,), (copy,) = table.rows_of([Kind.KERNEL]), table.rows_of([Kind.MEMCPY])
    assert (table.name_of(kernel), table.start_ns[kernel], table.duration_ns[kernel]) == ("gemm", 5000, 700)
    assert (table.device[kernel], table.stream[kernel]) == (3, 7)
    assert table.args(kernel)["grid"] == [8, 2, 1]
    assert dict(table.signature_of(copy).attributes) == {"bytes": 4096}
    (op,) = table.rows_of([Kind.CPU_OP])
    assert table.signature_of(op).shapes == ((64, 32), ())
    assert (table.duration_ns[op], table.external_id[op], table.sequence_number[op]) == (8000, 9, 4)
    launching = int(loaded.tree.launch[loaded.table.rows_of([Kind.KERNEL])[0]])
    assert loaded.table.name_of(launching) == "cudaLaunchKernel"
    assert loaded.table.lanes[int(loaded.table.lane[launching])] == (40, 41)


def test_tracks_of_kineto_with_arguments_as_one_text(tmp_path: Path) -> None:
    """A track per event below that of its thread or stream, no categories, and metadata as the inside of an object."""
    kernel = '"device": 1, "stream": 20, "correlation": 5, "grid": [4, 1, 1], "block": [64, 1, 1]'
    table = trace(
        tmp_path / "t.pftrace", track(1, (3, message((1, 0), (6, "Kineto Trace")))),
        track(2, (2, "GPU 1"), (3, message((1, 1)))),
        track(3, (5, 2), (2, "stream 20 "), (4, message((1, 1), (2, 20)))), track(4, (5, 3), (2, "stream 20 ")),
        track(5, (5, 1), (4, message((1, 70), (2, 71)))), track(6, (5, 5)), track(7, (5, 5)),
        event(100, BEGIN, (11, 4), (23, "void kernel<int>()"), *said(metadata=kernel)), event(150, END, (11, 4)),
        event(10, BEGIN, (11, 6), (23, "aten::add"), *said(metadata='"External id": 3, "Input Dims": [[8], []]')),
        event(90, END, (11, 6)),
        event(20, BEGIN, (11, 7), (23, "cudaLaunchKernel"), *said(metadata='"cbid": 211, "correlation": 5')),
        event(30, END, (11, 7)),
        event(None, (9, 3), (11, 1), (23, "trace_metadata"), *said(record_shapes="1")),
    )  # fmt: skip
    found = load(tmp_path / "t.pftrace")
    (row,) = table.rows_of([Kind.KERNEL])
    assert (table.device[row], table.stream[row], table.duration_ns[row]) == (1, 20, 50)
    assert table.args(row)["grid"] == [4, 1, 1]
    (op,) = table.rows_of([Kind.CPU_OP])
    assert table.signature_of(op).shapes == ((8,), ())
    assert table.metadata["record shapes"] == 1
    launch = int(found.tree.launch[found.table.rows_of([Kind.KERNEL])[0]])
    assert found.table.name_of(launch) == "cudaLaunchKernel"
    assert found.table.name_of(int(found.tree.parent[launch])) == "aten::add"


def test_rocprofv3_with_its_categories_and_differences_of_times(tmp_path: Path) -> None:
    """A clock of the sequence that counts from packet to packet, in its unit; an exact time beside it."""
    clocks = message(
        (6, message((1, message((1, 6), (2, 1_000_000))), (1, message((1, 64), (2, 1000), (3, 1), (4, 1000))))),
        (10, 9), (13, 1), (59, message((58, 64), (11, message((11, 77))))),
    )  # fmt: skip
    names = message((10, 9), (12, message(
        (1, message((1, 1), (2, "hip_api"))), (1, message((1, 2), (2, "kernel_dispatch"))),
        (2, message((1, 1), (2, "hipLaunchKernel"))), (2, message((1, 2), (2, "Cijk"))))))  # fmt: skip
    table = trace(
        tmp_path / "t.pftrace", clocks, track(77, (4, message((1, 5), (2, 6)))), track(78, (2, 'STREAM [ 3 ]')), names,
        event(2, BEGIN, (3, 1), (10, 1), *said(corr_id=12), sequence=9),  # 1,002 µs on the clock of the trace
        event(5, END, sequence=9),  # 1,007
        event(10, BEGIN, (11, 78), (3, 2), (10, 2), *said(corr_id=12, agent="GPU-1"), sequence=9),  # 1,017
        message((8, 1_020_500), (58, 6), (10, 9), (11, message(END, (11, 78)))),
    )  # fmt: skip
    rows = {table.category_of(r): r for r in range(len(table))}
    assert rows.keys() == {"hip_runtime", "kernel"}
    call, kernel = rows["hip_runtime"], rows["kernel"]
    assert (table.start_ns[call], table.duration_ns[call]) == (1_002_000, 5_000)
    assert (table.start_ns[kernel], table.duration_ns[kernel]) == (1_017_000, 3_500)
    assert (table.device[kernel], table.stream[kernel]) == (1, 3)
    assert table.correlation[call] == table.correlation[kernel] == 12
    assert table.lanes[int(table.lane[call])] == (5, 6)


def test_what_is_packed_inside_is_opened_and_a_bomb_is_not(tmp_path: Path) -> None:
    slices = message((1, event(5, BEGIN, (11, 1), (23, "f"))), (1, event(9, END, (11, 1))))
    table = trace(tmp_path / "t.pftrace", message((50, zlib.compress(slices))), event(1, (9, 3)))
    assert [(table.name_of(0), int(table.duration_ns[0]))] == [("f", 4)]
    path = tmp_path / "bomb.pftrace"
    path.write_bytes(message((1, message((50, zlib.compress(bytes(60_000_000)))))))
    with pytest.raises(InputError, match=r"bomb\.pftrace unpacks to more than the 0\.05 GB of --max-memory"):
        read_trace(path, max_memory_gb=0.05)


def test_the_end_is_missing(converted: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pftrace"
    path.write_bytes(gzip.decompress(converted.read_bytes())[:-10])
    table = read_trace(path)
    assert table.losses.truncated
    assert len(table.rows_of([Kind.KERNEL])) > 10


@pytest.mark.shared
def test_a_trace_without_gpus_has_the_slices_of_a_plain_walk(shared_traces: Path) -> None:
    path = shared_traces / "more" / "perfetto" / "nested_tracks.perfetto-trace.gz"
    names, open_slices = [], {}
    for _, packet in walked(gzip.decompress(path.read_bytes())):
        fields = dict(walked(packet))
        inner = dict(walked(fields.get(11, b"")))
        if inner.get(9) == 1:
            open_slices[inner[11]] = (inner[23].decode(), fields[8])
        elif inner.get(9) == 2:
            name, start = open_slices.pop(inner[11])
            names.append((name, start, fields[8] - start))
    table = read_trace(path)
    assert sorted(names) == sorted(
        zip(
            [table.name_of(i) for i in range(len(table))],
            table.start_ns.tolist(),
            table.duration_ns.tolist(),
            strict=True,
        )
    )


_moves = st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40)


@given(_moves)
def test_slices_pair_as_a_stack_per_track_does(moves: list[tuple[int, bool]]) -> None:
    """Any sequence of begins and ends in the order of time, stray ends and open begins included."""
    stacks: dict[int, list[int]] = {}
    expected, unfinished = [], 0
    for at, (of, begins) in enumerate(moves):
        stack = stacks.setdefault(of, [])
        if begins:
            stack.append(at)
        elif stack:
            expected.append((stack.pop(), at))
    unfinished = sum(map(len, stacks.values()))
    places = np.arange(len(moves))
    kind = np.array([1 if begins else 2 for _, begins in moves], np.int64)
    begins, ends, left = _paired(kind, np.array([of for of, _ in moves], np.int64), places, places)
    assert sorted(zip(begins.tolist(), ends.tolist(), strict=True)) == sorted(expected)
    assert left == unfinished


@pytest.mark.parametrize(
    "data", [b"\n\x05ab", b"\n\x02\x08\x01\n\x02\x0f\x01", message((1, message((8, 1), (11, b"\x0f"))))]
)
def test_what_is_no_trace_is_refused_in_a_sentence(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.pftrace"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"t\.pftrace "):
        read_trace(path)
