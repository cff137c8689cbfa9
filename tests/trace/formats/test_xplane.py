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
from tracelens.comparison.whatif.what_if import what_if
from tracelens.errors import InputError
from tracelens.trace.reading.formats.xplane import own_parts
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
    """A step lasts as long as its line says, 100 us of which a core is busy for 80; what is between them is in none."""
    found = analyze(load(tpu_profile(tmp_path / "t.xplane.pb", "Steps", "XLA Modules", "XLA Ops")), AnalysisOptions())
    summary = summarize(found)
    assert summary.steps is not None
    assert summary.busy is not None
    assert (summary.steps.name, summary.steps.count, summary.steps.time_us) == ("steps of XLA", 3, 100)
    assert summary.busy.busy == pytest.approx(240 / 300)
    assert summary.steps.skipped_us == 100
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


STATS = ("hlo_category", "flops", "model_flops", "bytes_accessed", "tf_op", "source", "memory_access_breakdown", "kind")


def stat(name: str, value: int | str | bytes) -> bytes:
    field = {int: 3, str: 5, bytes: 6}[type(value)]
    return message((1, STATS.index(name) + 1), (field, value))


def op_metadata(number: int, text: str, **stats: int | str | bytes) -> tuple[int, bytes]:
    """As TPUs write it: the instruction's text, its short name, and what the compiler counted of it."""
    shown = text.partition(" = ")[0].removeprefix("%")
    known = [(5, stat(name, value)) for name, value in stats.items()]
    return 4, message((1, number), (2, message((1, number), (2, text), (4, shown), *known)))


#: [64, 128] x [128, 32], its operands in HBM and its result on the chip; a loop round it; a sum over four cores.
LAYOUT = "{1,0:T(8,128)(2,1)}"
PRODUCT = op_metadata(
    1,
    f"%fusion.1 = bf16[64,32]{LAYOUT} fusion(bf16[64,128]{LAYOUT} %p0, bf16[128,32]{LAYOUT} %p1), kind=kOutput",
    hlo_category="convolution fusion", flops=2 * 64 * 32 * 128, model_flops=2 * 64 * 32 * 128,
    bytes_accessed=2 * (64 * 128 + 128 * 32 + 64 * 32), tf_op="jit(f)/dot_general:", source="train.py:33",
    memory_access_breakdown=message(
        (1, message((1, 1), (2, 1), (3, 2 * (64 * 128 + 128 * 32)))), (1, message((1, 2), (2, 3), (3, 2 * 64 * 32)))
    ),
)  # fmt: skip
LOOP = op_metadata(
    2, "%while.2 = (s32[], bf16[64,32]{1,0}) while((s32[], bf16[64,32]{1,0}) %t)", hlo_category="while", flops=10**9
)
SUM = op_metadata(
    3, "%all-reduce.3 = f32[1024]{0} all-reduce(f32[1024]{0} %g), replica_groups={{0,2,4,6}}, to_apply=%add",
    hlo_category="all-reduce", bytes_accessed=8192,
)  # fmt: skip


def tpu_of_ops(path: Path, kind: str = "TPU v5 lite") -> Path:
    """A loop of 100 us in which the product runs from 10 to 40 and from 50 to 90; then the sum for 20 us, 30 us later."""
    events = [(2, 0, 100), (1, 10, 30), (1, 50, 40), (3, 130, 20)]
    made = [(4, message((1, what), (2, at * 1_000_000), (3, us * 1_000_000))) for what, at, us in events]
    names = [(5, message((1, i), (2, message((1, i), (2, name))))) for i, name in enumerate(STATS, 1)]
    names.append((5, message((1, 99), (2, message((1, 99), (2, "device_type_string"))))))
    line = (3, message((1, 1), (2, "XLA Ops"), (3, 5000), *made))
    plane = message((1, 1), (2, "/device:TPU:0"), line, PRODUCT, LOOP, SUM, *names, (6, message((1, 99), (5, kind))))
    sparse = message((1, 2), (2, "/device:TPU:0 SparseCore 0"), (3, message((1, 1), (2, "Sparse Core Ops"))))
    host = message((1, 9), (2, "/host:CPU"), (3, message((1, 1), (2, "main"))))
    path.write_bytes(message((1, plane), (1, sparse), (1, host)))
    return path


def test_ops_of_a_tpu_have_the_figures_that_it_recorded(tmp_path: Path) -> None:
    """The loop's own time is what is left of its 100 us: 10 + 10 + 10, as one call; its FLOPs are the product's."""
    found = analyze(load(tpu_of_ops(tmp_path / "t.xplane.pb")), AnalysisOptions())
    rows = found.frames["unified_perf_summary"].set_index("name")
    columns = ["category", "operation_count", "kernel_us_sum"]
    assert rows.loc[["fusion.1", "while.2", "all-reduce.3"], columns].to_numpy().tolist() == [
        ["GEMM", 2, 70.0],
        ["other", 1, 30.0],
        ["CustomCollective", 1, 20.0],
    ]
    product = rows.loc["fusion.1"]
    assert product["gflops"] == pytest.approx(2 * 64 * 32 * 128 / 1e9)
    assert product["hbm_mb"] == pytest.approx(2 * (64 * 128 + 128 * 32) / 1e6)
    assert f"'bytes_accessed': {2 * (64 * 128 + 128 * 32 + 64 * 32)}" in product["perf_params"]
    assert "'jax_op': 'jit(f)/dot_general', 'source': 'train.py:33'" in product["perf_params"]
    assert np.isnan(rows.loc["while.2", "gflops"])
    # 2 (p - 1) / p of 4,096 bytes, of 4 cores
    assert rows.loc["all-reduce.3", "wire_mb"] == pytest.approx(2 * 3 / 4 * 4096 / 1e6)
    assert "'bytes_accessed': 8192" in rows.loc["all-reduce.3", "perf_params"]
    summary = summarize(found)
    assert summary.busy is not None
    assert (summary.busy.busy, summary.busy.exposed_comm) == pytest.approx((120 / 150, 20 / 150))
    assert summary.coverage.unlinked == 0
    assert summary.coverage.perf_model == pytest.approx(90 / 120)
    assert found.device is not None
    assert found.device.name == "tpu-v5e"
    remedies = [finding.remedy for finding in found.findings]
    assert any("one jax.jit" in remedy for remedy in remedies)
    assert not any("torch" in remedy or "max-autotune" in remedy for remedy in remedies)


def test_steps_that_a_device_recorded_say_nothing_of_the_host(tmp_path: Path) -> None:
    found = analyze(load(tpu_profile(tmp_path / "t.xplane.pb", "Steps", "XLA Modules", "XLA Ops")), AnalysisOptions())
    steps = summarize(found).steps
    assert steps is not None
    assert (steps.host_us, steps.host_work_us) == (None, None)
    assert (steps.recorded_us, steps.time_us) == (100, 100)
    sheet = found.frames["steps"]
    assert sheet[["step", "duration_us", "recorded_us"]].to_numpy().tolist() == [
        [0, 100, 100],
        [1, 100, 100],
        [2, 100, 100],
    ]
    assert sheet[["host_period_us", "host_work_us"]].isna().all(axis=None)


def test_steps_of_a_device_are_replayed_with_its_kernels(tmp_path: Path) -> None:
    """Kernels half as long: 40 us of 80 less in each step of 100, and no path is longer than the step."""
    path = tpu_profile(tmp_path / "t.xplane.pb", "Steps", "XLA Modules", "XLA Ops")
    found = what_if(path, scale=("other=0.5",))
    assert (found.before.step_us, found.after.step_us) == (100, 60)
    for figures, computation_us in ((found.before, 80), (found.after, 40)):
        assert figures.bound_by == {"computation": computation_us, "idle: unknown": 20}


_spans = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 60), st.integers(0, 30)), min_size=1, max_size=12)


@given(_spans)
def test_parts_of_ops_are_each_moment_once(spans: list[tuple[int, int, int]]) -> None:
    """Of a line's moments each is one event's, and each event has one part at least."""
    line, start, length = (np.array(column, np.int64) for column in zip(*spans, strict=True))
    owner, first, last = own_parts(line, start, start + length)
    assert set(owner.tolist()) == set(range(len(spans)))
    for number in (0, 1):
        mine = line[owner] == number
        moments = [(a, b) for a, b in zip(first[mine].tolist(), last[mine].tolist(), strict=True) if b > a]
        covered = [moment for a, b in moments for moment in range(a, b)]
        wanted = {moment for on, at, us in spans if on == number for moment in range(at, at + us)}
        assert sorted(covered) == sorted(wanted)
    for at in range(len(spans)):
        inside = (owner == at) & (last > first)
        assert (first[inside] >= start[at]).all()
        assert (last[inside] <= start[at] + length[at]).all()


def test_a_copy_says_how_many_bytes_it_moved(tmp_path: Path) -> None:
    """1 MiB in 100 us."""
    names = [(5, message((1, 1), (2, message((1, 1), (2, "memcpy_details")))))]
    copy = (4, message((1, 1), (2, message((1, 1), (2, "MemcpyH2D")))))
    said = (4, message((1, 1), (5, "kind_src:pageable kind_dst:device size:1048576 dest:0 async:1")))
    line = message((1, 7), (2, "Stream #7(MemcpyH2D)"), (4, message((1, 1), (2, 0), (3, 10**8), said)))
    path = tmp_path / "c.xplane.pb"
    path.write_bytes(message((1, message((2, "#Chip 0"))), (1, message((2, "/device:GPU:0"), (3, line), copy, *names))))
    table = read_trace(path)
    (row,) = table.rows_of([Kind.MEMCPY])
    assert table.signature_of(row).attribute("bytes") == 1048576
