"""XPlane profiles: the same kernels as a plain walk through the protobuf finds, HLO ops as the launching ops."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.formats.rewritten import EXAMPLE, device_rows, kernel_table, message, sums, varint, xplane
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.analysis.verdict.verdict import summarize
from tracelens.errors import InputError
from tracelens.trace.reading.read import read_trace
from tracelens.trace.reading.wire import Wire, WireError
from tracelens.trace.table import Kind


def walked(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field, value) of a message, byte by byte."""
    position = 0

    def number() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = data[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while position < len(data):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
        else:
            length = number() if key & 7 == 2 else 8 if key & 7 == 1 else 4
            yield key >> 3, data[position : position + length]
            position += length


def plain_kernels(data: bytes) -> list[tuple[str, int, int]]:
    found = []
    for number, plane in walked(data):
        parts = list(walked(plane)) if number == 1 else []
        if not any(key == 2 and value.startswith(b"/device:GPU") for key, value in parts):
            continue
        names = {}
        for entry in (dict(walked(value)) for key, value in parts if key == 4):
            names[entry[1]] = dict(walked(entry[2])).get(2, b"").decode()
        for line in (list(walked(value)) for key, value in parts if key == 3):
            about = dict(line)
            if about[2].startswith(b"Stream #"):
                for event in (dict(walked(value)) for key, value in line if key == 4):
                    start = about.get(3, 0) + event.get(2, 0) // 1000
                    found.append((names[event[1]], start, start + event.get(3, 0) // 1000))
    return found


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return xplane(tmp_path_factory.mktemp("xplane") / "host.xplane.pb")


def test_the_same_run_gives_the_same_kernel_table(rewritten: Path) -> None:
    there = kernel_table(EXAMPLE)
    launched = there[there["parent_op"].str.contains("::")].reset_index(drop=True)
    here = kernel_table(rewritten)
    here = here[here["parent_op"].str.contains("::")].reset_index(drop=True)
    assert len(here) > 20
    pd.testing.assert_frame_equal(here, launched)


def test_events_have_their_grid_and_thread(rewritten: Path) -> None:
    trace = load(rewritten)
    kernel = int(trace.table.rows_of([Kind.KERNEL])[0])
    assert trace.table.args(kernel)["grid"] == [64, 2, 1]
    assert trace.table.device_properties()[0].compute_units == 304
    assert (trace.tree.launch[trace.table.rows_of([Kind.KERNEL])] >= 0).mean() > 0.9


@pytest.mark.shared
@pytest.mark.parametrize("name", ["tracelens_jax08_gemm", "tracelens_jax_conv_minimal_08"])
def test_real_profiles_have_the_kernels_of_a_plain_walk(name: str, shared_traces: Path) -> None:
    path = shared_traces / "more" / "xplane" / f"{name}.xplane.pb.gz"
    table = read_trace(path)
    plain = plain_kernels(gzip.decompress(path.read_bytes()))
    assert sums(device_rows(table)) == sums(plain)
    assert table.has_stacks
    assert table.used_device().compute_units == 304


_fields = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 2**63 - 1) | st.binary(max_size=9)), max_size=6)


@given(st.lists(_fields, min_size=1, max_size=5))
def test_columns_are_what_a_walk_finds(messages: list[list[tuple[int, int | bytes]]]) -> None:
    texts = [message(*fields) for fields in messages]
    ends = np.cumsum([len(text) for text in texts])
    starts = ends - [len(text) for text in texts]
    found = Wire(b"".join(texts)).columns(starts, ends, (1, 2), (3,))
    for i, text in enumerate(texts):
        last = {key: value for key, value in walked(text) if isinstance(value, int)}
        for number in (1, 2):
            assert found.there[number][i] == (number in last)
            assert found.integers[number][i] == last.get(number, 0)
        spans = found.spans[3]
        inner = [b"".join(texts)[a:b] for o, a, b in zip(spans.owner, spans.start, spans.end, strict=True) if o == i]
        assert inner == [value for key, value in walked(text) if key == 3 and isinstance(value, bytes)]


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05ab", b"\x0b\x01", b"\x08" + b"\xff" * 12, varint(2**70)])
def test_what_is_no_message_is_refused(data: bytes) -> None:
    wire = Wire(data)
    with pytest.raises(WireError):
        list(wire.fields(0, len(data)))
    with pytest.raises(WireError):
        wire.columns(np.array([0]), np.array([len(data)]), (1,))


def test_a_truncated_profile_is_read_as_far_as_it_goes(rewritten: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.pb"
    path.write_bytes(rewritten.read_bytes()[:-3])
    table = read_trace(path)
    assert table.losses.truncated
    assert len(table.rows_of([Kind.KERNEL])) > 100
    path.write_bytes(rewritten.read_bytes()[:5000])
    with pytest.raises(InputError, match=r"cut\.pb is an XPlane profile, but damaged at byte"):
        read_trace(path)


def tpu_profile(path: Path, *lines: str) -> Path:
    """Two TPU cores that run a program three times, 100 us each and 80 of them busy, at 1000, 1150 and 1300 us, and another
    once, for 20 us; on the host numbered ranges of the runtime. ``lines``: which of the device's lines are there."""
    names = ["fusion.1", "jit_step(42)", "jit_init(7)", "0", "1", "2", "XLA::TPU Phase 1", "XLA::TPU Phase 2"]
    tables = [(4, message((1, i), (2, message((1, i), (2, name))))) for i, name in enumerate(names, 1)]

    def line(number: int, name: str, *events: tuple[int, int, int]) -> tuple[int, bytes]:
        made = [message((1, what), (2, at * 1_000_000), (3, us * 1_000_000)) for what, at, us in events]
        return 3, message((1, number), (2, name), *((4, event) for event in made))

    runs = (1000, 1150, 1300)
    of_device = {
        "Steps": [(4 + i, at, 100) for i, at in enumerate(runs)],
        "XLA Modules": [(3, 900, 20), *((2, at, 100) for at in runs)],
        "XLA Ops": [(1, 900, 20), *((1, at + half, 40) for at in runs for half in (0, 50))],
    }
    planes = [
        message((1, core), (2, f"/device:TPU:{core}"), *(line(i, name, *of_device[name]) for i, name in enumerate(lines)), *tables)
        for core in range(2)
    ]  # fmt: skip
    planes.append(message((1, 9), (2, "/host:CPU"), line(1, "main", (7, 880, 10), (8, 890, 12)), *tables))
    path.write_bytes(message(*((1, plane) for plane in planes)))
    return path


def test_steps_and_programs_of_a_tpu_are_those_of_its_lines(tmp_path: Path) -> None:
    """The last step ends with its line's; the others where the next begins: 150, 150 and 100 us."""
    found = analyze(load(tpu_profile(tmp_path / "t.xplane.pb", "Steps", "XLA Modules", "XLA Ops")), AnalysisOptions())
    summary = summarize(found)
    assert summary.steps is not None
    assert summary.busy is not None
    assert (summary.steps.name, summary.steps.count, summary.steps.time_us) == ("steps of XLA", 3, 400 / 3)
    assert summary.busy.busy == pytest.approx(240 / 400)
    assert [step.number for step in found.step_times.steps] == [0, 1, 2]
    columns = ["module", "calls", "kernel_us", "percent"]
    assert found.frames["modules"][columns].to_numpy().tolist() == [["jit_step", 6, 480.0, 100.0]]
    whole = analyze(load(tmp_path / "t.xplane.pb"), AnalysisOptions(steps="file")).frames["modules"][columns]
    assert whole.to_numpy().tolist() == [["jit_step", 6, 480.0, 100 * 480 / 520], ["jit_init", 2, 40.0, 100 * 40 / 520]]


def test_ranges_of_a_tpus_host_are_no_steps(tmp_path: Path) -> None:
    """Without the device's own steps: the window of 900 to 1390 us, in which a core is busy for 260."""
    summary = summarize(
        analyze(load(tpu_profile(tmp_path / "t.xplane.pb", "XLA Modules", "XLA Ops")), AnalysisOptions())
    )
    assert summary.steps is None
    assert summary.busy is not None
    assert summary.busy.busy == pytest.approx(260 / 490)
    said = {notice.id: notice.text for notice in summary.notices}["not_steps"]
    assert said == (
        "annotations 'XLA::TPU Phase 1' to 'XLA::TPU Phase 2' hold 8 % of the GPU's work and are not used as steps"
    )
