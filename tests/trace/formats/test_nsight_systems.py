"""Databases of Nsight Systems: the same kernels as a plain query finds, ops of emit_nvtx, several processes."""

from __future__ import annotations

import gzip
import shutil
import sqlite3
import tracemalloc
from pathlib import Path

import pandas as pd
import pytest

import tracelens
from tests.trace.formats.rewritten import (
    BLOCK,
    EXAMPLE,
    GRID,
    database,
    device_rows,
    kernel_table,
    nsight_systems,
    sums,
)
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.errors import InputError
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import Kind, TraceTable

PAGE = 65_536
QUERY = """
SELECT s.value, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds s ON s.id = demangledName
"""
COPIES = "SELECT start, end, bytes FROM CUPTI_ACTIVITY_KIND_{}"


@pytest.fixture(scope="module")
def rewritten(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nsight_systems(tmp_path_factory.mktemp("nsys") / "report.bin")


def test_the_same_run_gives_the_same_kernel_table(rewritten: Path) -> None:
    there, here = kernel_table(EXAMPLE).copy(), kernel_table(rewritten).copy()
    for frame in (there, here):
        frame["kernel_name"] = frame["kernel_name"].str.replace(r"^(Mem\w+ ?\w*).*", r"\1", regex=True)
    pd.testing.assert_frame_equal(here, there)


def test_ops_have_the_shapes_and_numbers_that_emit_nvtx_wrote(rewritten: Path) -> None:
    table, there = read_trace(rewritten), read_trace(EXAMPLE)

    def ops(t: TraceTable) -> set[tuple[object, ...]]:
        rows = t.rows_of([Kind.CPU_OP]).tolist()
        return {
            (t.name_of(r), t.signature_of(r).shapes, int(t.sequence_number[r]), int(t.start_ns[r] + t.base_ns))
            for r in rows
        }

    found = ops(table)
    assert len(found) > 100
    assert {each[:3] for each in found} == {each[:3] for each in ops(there)}
    assert table.has_shapes
    assert table.used_device().name == "NVIDIA B200"


def test_events_show_grid_and_device(rewritten: Path) -> None:
    table = read_trace(rewritten)
    row = int(table.rows_of([Kind.KERNEL])[0])
    event = table.event(row)
    assert (event["args"]["grid"], event["args"]["block"]) == ([*GRID], [*BLOCK])
    assert {"device", "stream", "correlation"} <= set(event["args"])


def test_correlations_of_two_processes_do_not_meet(tmp_path: Path) -> None:
    kernel = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT"
    path = database(
        tmp_path / "two.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": (kernel, [(20, 30, 0, 1, 7, 5, 1 << 24, 1), (25, 40, 0, 1, 7, 5, 2 << 24, 1)]),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (
                "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
                [(10, 12, 0, (1 << 24) + 3, 5, 2), (11, 13, 0, (2 << 24) + 4, 5, 2)],
            ),
            "StringIds": ("id INTEGER, value TEXT", [(1, "k"), (2, "cudaLaunchKernel_v7000")]),
        },
    )  # fmt: skip
    table = read_trace(path)
    calls, kernels = table.rows_of([Kind.RUNTIME]), table.rows_of([Kind.KERNEL])
    assert table.correlation[calls].tolist() == table.correlation[kernels].tolist()
    assert len(set(table.correlation[kernels].tolist())) == 2
    assert len(set(table.stream[kernels].tolist())) == 2, "two contexts of one device have streams of their own"
    assert table.name_of(int(calls[0])) == "cudaLaunchKernel"
    assert [table.pid_of(int(row)) for row in calls] == [1, 2]


def captured_and_launched(path: Path, *, nodes: bool = True) -> Path:
    """Two products captured, as (op, call, node of the capture, its copy), and their graph launched."""
    tid, pid = (1 << 24) + 3, 1 << 24
    captured = [(100, 120, 7, 21), (200, 220, 8, 20)]
    calls = [(10, 12, 0, tid, 1, 1), (400, 402, 0, tid, 4, 3), (1000, 1050, 0, tid, 5, 4)]
    calls += [(start + 5, end - 5, 0, tid, 2 + k, 2) for k, (start, end, _, _) in enumerate(captured)]
    texts = ["cudaStreamBeginCapture_v10000", "cudaLaunchKernel_v7000", "cudaStreamEndCapture_v10000",
             "cudaGraphLaunch_v10000", "kernel_a"]  # fmt: skip
    made = [(start + 8, start + 9, tid, node, None) for start, _, node, _ in captured]
    copies = [(500 + k, 501 + k, tid, copy, node) for k, (_, _, node, copy) in enumerate(captured)]
    product = "aten::mm, op_id = {}, sizes = [[{}, 64], [64, 32]]"
    kernel = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT, demangledName INT, graphNodeId INT"
    return database(
        path,
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": (
                kernel, [(1100, 1110, 0, 1, 7, 5, pid, 5, 21), (1200, 1220, 0, 1, 8, 5, pid, 5, 20)]),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (
                "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT", calls),
            "StringIds": ("id INTEGER, value TEXT", list(enumerate(texts, start=1))),
            "NVTX_EVENTS": (
                "start INT, end INT, eventType INT, globalTid INT, text TEXT",
                [(start, end, 59, tid, product.format(k, 128 + k)) for k, (start, end, _, _) in enumerate(captured)]),
            **({"CUDA_GRAPH_NODE_EVENTS": (
                "start INT, end INT, globalTid INT, graphNodeId INT, originalGraphNodeId INT", made + copies),
            } if nodes else {}),
        },
    )  # fmt: skip


def test_kernels_of_a_graph_lead_to_the_calls_of_its_capture(tmp_path: Path) -> None:
    """Copies 21 and 20 are of nodes 7 and 8: the kernel of 10 ns is the product of 128 rows, that of 20 ns of 129."""
    trace = load(captured_and_launched(tmp_path / "graph.sqlite"))
    table = trace.table
    assert table.graph_node[table.rows_of([Kind.KERNEL])].tolist() == [7, 8]
    found = analyze(trace, AnalysisOptions(), on_demand=True)
    assert found.graphs is not None
    assert (found.graphs.by_node, found.graphs.kernels, found.graphs.wrong_ids) == (2, 2, ())
    rows = found.frames["unified_perf_summary"].set_index("input_dims")["kernel_us_sum"]
    assert rows.to_dict() == {"((128, 64), (64, 32))": 0.01, "((129, 64), (64, 32))": 0.02}


def test_without_the_nodes_that_calls_made_copies_of_other_numbers_lead_nowhere(tmp_path: Path) -> None:
    """Numbered 21 and 20, they are not in the order of the one stream that was captured."""
    assert (
        analyze(
            load(captured_and_launched(tmp_path / "g.sqlite", nodes=False)), AnalysisOptions(), on_demand=True
        ).graphs
        is None
    )


def test_what_would_run_in_the_database_is_not_read(tmp_path: Path) -> None:
    """A view that never ends in the place of a table, and a column that is computed."""
    path = tmp_path / "view.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) "
        "SELECT start, start + 1 AS end, 0 AS deviceId, 1 AS demangledName FROM n"
    )
    connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT AS (length(zeroblob(900000000))))")
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start) VALUES (1)")
    connection.commit()
    connection.close()
    table = read_trace(path)
    assert len(table) == 1
    assert table.duration_ns.tolist() == [0]


def test_a_database_without_events_or_of_another_program_is_refused(tmp_path: Path) -> None:
    path = database(tmp_path / "empty.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": ("start INT, end INT", [])})
    with pytest.raises(InputError, match=r"empty\.sqlite is a database of Nsight Systems, but no event"):
        read_trace(path)
    with pytest.raises(InputError, match=r"other\.sqlite is a SQLite database, but not of"):
        read_trace(database(tmp_path / "other.sqlite", {"cookies": ("id INT", [(1,)])}))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["nsys-ai/mfu_2gpu_after", "flashinfer-bench_nsys/40_LayerNorm_custom", "flashinfer-bench_nsys/1_Square_matrix_multiplication__reference"])  # fmt: skip
def test_real_reports_have_the_kernels_of_a_plain_query(name: str, shared_traces: Path, tmp_path: Path) -> None:
    path = tmp_path / "plain.sqlite"
    packed = shared_traces / "more" / f"{name}.sqlite.gz"
    with gzip.open(packed) as source, path.open("wb") as target:
        shutil.copyfileobj(source, target)
    connection = sqlite3.connect(path)
    plain = connection.execute(QUERY).fetchall()
    others = {
        kind: connection.execute(COPIES.format(kind)).fetchall()
        for kind in ("MEMCPY", "MEMSET")
        if connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (f"CUPTI_ACTIVITY_KIND_{kind}",)).fetchall()
    }
    connection.close()
    table = read_trace(packed)
    assert sums(device_rows(table, "kernel")) == sums(plain)
    for kind, rows in others.items():
        found = device_rows(table, f"gpu_{kind.lower()}")
        assert sorted(each[1:] for each in found) == sorted(each[:2] for each in rows)
    busy = sums(device_rows(table))[2]
    assert (
        busy
        == sums(
            [("", *row[:2]) for row in (*[each[1:] for each in plain], *(r for rows in others.values() for r in rows))]
        )[2]
    )


def shared_cells(path: Path, name: str, count: int) -> Path:
    """A bomb: ``count`` rows of StringIds that all lie on the same bytes of the file, those of a row with ``name``."""
    nsight_systems(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE StringIds")
    connection.execute(f"PRAGMA page_size = {PAGE}")
    connection.execute("CREATE TABLE StringIds (id INT, value TEXT)")
    connection.execute("INSERT INTO StringIds VALUES (1, ?)", (name,))
    connection.commit()
    connection.execute("VACUUM")
    connection.execute("VACUUM")
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'StringIds'").fetchone()
    connection.close()
    data = bytearray(path.read_bytes())
    page = (root - 1) * PAGE
    # A leaf page of a table: type, free block, cells, where they start, fragments; then two bytes of place per cell
    assert data[page] == 0x0D
    assert data[page + 3 : page + 5] == b"\x00\x01"
    data[page + 3 : page + 5] = count.to_bytes(2, "big")
    data[page + 8 : page + 8 + 2 * count] = data[page + 8 : page + 10] * count
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("length", [500, 4_000_000])
def test_a_bomb_of_rows_that_share_their_bytes_stops_before_it_is_read(tmp_path: Path, length: int) -> None:
    path = shared_cells(tmp_path / "bomb.sqlite", "k" * length, 10_000)
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT COUNT(*) FROM StringIds").fetchone() == (10_000,)
    connection.close()
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=r"bomb\.sqlite is damaged: a table of it has more text than fits"):
            read_trace(path)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_a_database_stops_at_the_memory_limit(tmp_path: Path) -> None:
    path = nsight_systems(tmp_path / "many.sqlite")
    with pytest.raises(InputError, match=r"many\.sqlite does not fit: .*--max-memory is 0\.001 GB"):
        read_trace(path, max_memory_gb=0.001)


def with_gpu_metrics(tmp_path: Path, names: list[str], *, rate: int = 3_000_000_000_000) -> Path:
    """Two kernels of 400 ns and samples every 100 ns: 50, 10, 80 and 90 % of each metric while the first one runs."""
    device = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
    who = 100 << 24
    kernels = [(1000, 1400, 0, 1, 7, 1, who, 1), (1400, 1800, 0, 1, 7, 2, who, 2)]
    calls = [(at, at + 50, 0, who + 5, number, 3) for number, at in enumerate((100, 200), 1)]
    type_id = 0x0C00_0000_0300  # the GPU is its lowest byte
    samples = [
        (1000 + 100 * n, type_id, metric, (50, 10, 80, 90)[metric] if n < 4 else 0)
        for n in range(8)
        for metric in range(len(names))
    ]
    gpu = "id INT, cuDevice INT, name TEXT, memoryBandwidth INT"
    return database(
        tmp_path / "metrics.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": (f"{device}, demangledName INT", kernels),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (
                "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT", calls,
            ),
            "StringIds": ("id INT, value TEXT", [(1, "first"), (2, "second"), (3, "cudaLaunchKernel_v7000")]),
            "TARGET_INFO_GPU": (gpu, [(0, 0, "NVIDIA H100 80GB HBM3", rate)]),
            "TARGET_INFO_GPU_METRICS": (
                "typeId INT, metricId INT, metricName TEXT", [(type_id, n, name) for n, name in enumerate(names)],
            ),
            "GPU_METRICS": ("timestamp INT, typeId INT, metricId INT, value INT", samples),
        },
    )  # fmt: skip


METRICS = [
    f"{name} [Throughput %]" for name in ("DRAM Read Bandwidth", "DRAM Write Bandwidth", "Tensor Active", "SMs Active")
]


def test_gpu_metrics_become_traffic_by_kernel(tmp_path: Path) -> None:
    """Of 3 TB/s, 50 % in 400 ns are 0.6 MB read and 10 % are 0.12 MB written."""
    made = tracelens.report(with_gpu_metrics(tmp_path, METRICS))["measured_hbm"].set_index("kernel_name")
    first = made.loc["first"]
    assert (first.samples, first.sampled_us, first.kernel_us) == (4, 0.4, 0.4)
    assert first.read_mb == pytest.approx(0.6)
    assert first.written_mb == pytest.approx(0.12)
    assert first.measured_tb_s == pytest.approx(1.8)
    assert (first.tensor_percent, first.sm_active_percent) == pytest.approx((80, 90))
    assert made.loc["second", "measured_mb"] == 0


#: The first 21 of the 25 metrics of a capture of nsys 2025.3.2 with the set gb20x, in the order of their numbers.
GB20X = [
    "GPC Clock Frequency [MHz]", "SYS Clock Frequency [MHz]", "Sync Copy Engine Active [Throughput %]",
    "Sync Copy Engine Active [Cycles Active]", "Async Copy Engine Active 0 [Throughput %]",
    "Async Copy Engine Active 0 [Cycles Active]", "GR Active [Throughput %]", "SMs Active [Throughput %]",
    "SM Issue [Throughput %]", "Tensor Active [Throughput %]", "Vertex/Tess/Geometry Warps in Flight [Throughput %]",
    "Vertex/Tess/Geometry Warps in Flight [Avg]", "Vertex/Tess/Geometry Warps in Flight [Avg Warps per Cycle]",
    "Pixel Warps in Flight [Throughput %]", "Pixel Warps in Flight [Avg]", "Pixel Warps in Flight [Avg Warps per Cycle]",
    "Compute Warps in Flight [Throughput %]", "Compute Warps in Flight [Avg]",
    "Compute Warps in Flight [Avg Warps per Cycle]", "DRAM Read Bandwidth [Throughput %]",
    "DRAM Write Bandwidth [Throughput %]",
]  # fmt: skip


@pytest.mark.parametrize("has_dram", [True, False])
def test_gpu_metrics_of_a_recorded_set(tmp_path: Path, has_dram: bool) -> None:
    """Tables as that export has them; clocks are beyond 100, and a GB10 has no DRAM metrics. By SQL: the mean of what
    was sampled while the first kernel ran, of 3 TB/s.
    """
    path, percent = with_gpu_metrics(tmp_path, []), {7: 90, 9: 80, 19: 50, 20: 10}
    names = GB20X if has_dram else GB20X[:19]
    with sqlite3.connect(path) as db:
        for table in ("GPU_METRICS", "TARGET_INFO_GPU_METRICS"):
            db.execute(f"DROP TABLE {table}")
        db.execute("CREATE TABLE GPU_METRICS (rawTimestamp INT, timestamp INT, typeId INT, metricId INT, value INT)")
        info = "typeId INT, sourceId INT, typeName TEXT, metricId INT, metricName TEXT"
        db.execute(f"CREATE TABLE TARGET_INFO_GPU_METRICS ({info})")
        told = [(0x300, 0, "General Metrics for NVIDIA GB20x (any frequency)", n, name) for n, name in enumerate(names)]
        db.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?, ?, ?, ?)", told)
        sampled = [
            (at, at, 0x300, n, percent.get(n, -1500000000 if n < 2 else 77) if at < 1400 else 0)
            for at in range(1000, 1800, 100)
            for n in range(len(names))
        ]
        db.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?, ?)", sampled)
        shares = dict(db.execute(
            "SELECT metricName, AVG(value) FROM GPU_METRICS JOIN TARGET_INFO_GPU_METRICS USING (typeId, metricId) "
            "WHERE timestamp BETWEEN 1000 AND 1399 GROUP BY metricName"
        ))  # fmt: skip
    made = tracelens.report(path)
    if not has_dram:
        assert "measured_hbm" not in made or made["measured_hbm"]["measured_mb"].isna().all()
        return
    first = made["measured_hbm"].set_index("kernel_name").loc["first"]
    read, written = (shares[f"DRAM {way} Bandwidth [Throughput %]"] for way in ("Read", "Write"))
    assert (first.read_mb, first.written_mb) == pytest.approx((read / 100 * 1.2, written / 100 * 1.2))
    assert (first.tensor_percent, first.sm_active_percent) == pytest.approx(
        (shares["Tensor Active [Throughput %]"], shares["SMs Active [Throughput %]"])
    )


@pytest.mark.parametrize(
    ("names", "rate"), [([], 3 * 10**12), (["GPC Clock"], 3 * 10**12), (METRICS, 0), (METRICS, -1)]
)
def test_gpu_metrics_of_no_known_rate_are_none(tmp_path: Path, names: list[str], rate: int) -> None:
    assert len(read_trace(with_gpu_metrics(tmp_path, names, rate=rate)).dram_samples) == 0
