"""Hardware counters as tools write them: read into one set of figures, and joined with recorded launches."""

from __future__ import annotations

import gzip
import json
import sqlite3
import struct
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.trace.formats.rewritten import database
from tracelens.errors import InputError
from tracelens.trace.reading.counter_files import (
    BY_COUNT,
    BY_GRID,
    BY_NAME,
    BY_SEQUENCE,
    NO_GRID,
    NO_NAME,
    SEVERAL_OPS,
    CountedKernels,
    RecordedKernels,
    joined,
    read_counters,
    spellings,
    unit_of,
)

NCU = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",'
    '"CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)


def ncu_row(
    launch: int, metric: str, unit: str, value: str, kernel: str = "gemm(float *)", grid: str = "(9, 32, 1)"
) -> str:
    of_launch = f'"{launch}","7","python","127.0.0.1","{kernel}","1","7","(384, 1, 1)","{grid}","0","9.0"'
    return f'{of_launch},"Command line profiler metrics","{metric}","{unit}","{value}"'


def written(tmp_path: Path, text: str, name: str = "counters.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def long_page(*rows: str) -> str:
    said = '==PROF== Connected to process 7\nthe program prints, "this", too\n==PROF== Profiling "gemm" - 0: 100% - 9 passes\n'
    return f"{said}{NCU}\n" + "\n".join(rows) + "\n==PROF== Disconnected from process 7\n"


def test_long_page_of_nsight_compute(tmp_path: Path) -> None:
    found = read_counters(
        written(
            tmp_path,
            long_page(
                ncu_row(0, "gpu__time_duration.sum", "usecond", "41.28"),
                ncu_row(0, "dram__bytes_read.sum", "Mbyte", "2.5"),
                ncu_row(0, "dram__bytes_write.sum", "Kbyte", "1,640"),
                ncu_row(0, "lts__t_sectors.sum", "sector", "1,000"),
                ncu_row(0, "lts__t_sector_hit_rate.pct", "%", "12.5"),
                ncu_row(1, "gpu__time_duration.sum", "ms", "1.5"),
                ncu_row(1, "dram__bytes_read.sum", "byte", "n/a"),
                '"","7","python"',
            ),
        )
    )
    assert found.name == ("gemm(float *)",) * 2
    assert found.grid.tolist() == [[9, 32, 1]] * 2
    assert found.block.tolist() == [[384, 1, 1]] * 2
    assert found.figures["duration_us"] == pytest.approx([41.28, 1500])
    assert found.figures["hbm_bytes"][0] == pytest.approx(2.5e6 + 1.64e6)
    assert np.isnan(found.figures["hbm_bytes"][1])
    assert found.figures["l2_bytes"][0] == 32 * 1000
    assert found.figures["l2_hit_percent"][0] == 12.5
    assert "tensor_percent" not in found.figures
    assert found.notes == ()


def test_details_page_names_sections_and_leaves_cells_out(tmp_path: Path) -> None:
    """Rows of metrics are shorter than the header, and rows of rules have no metric (cublasLt on a GB200)."""
    head = f'{NCU},"Rule Name","Rule Type","Rule Description","Estimated Speedup Type","Estimated Speedup"'
    of_launch = (
        '"0","7","cublaslt","127.0.0.1","cutlass3x_sm100_tensorop","1","7","(384, 1, 1)","(9, 32, 1)","0","10.0"'
    )
    details = (
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "21.68"),
        ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "0.74"),
        ("GPU Speed Of Light Throughput", "Duration", "ns", "406240"),
        ("GPU Speed Of Light Throughput", "Elapsed Cycles", "cycle", "508757"),
        ("GPU Speed Of Light Throughput", "SM Active Cycles", "cycle", "462061.91"),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "60"),
        ("Launch Statistics", "Cluster Scheduling Policy", "", "PolicySpread"),
        ("Launch Statistics", "Waves Per SM", "", "1.89"),
        ("Occupancy", "Achieved Occupancy", "%", "15.53"),
    )
    rule = f'{of_launch},"Occupancy","","","","TheoreticalOccupancy","OPT","The 3.00 theoretical warps","local","81.25"'
    rows = [f'{of_launch},"{section}","{name}","{unit}","{value}",' for section, name, unit, value in details]
    found = read_counters(written(tmp_path, "\n".join([head, *rows, rule])))
    assert len(found) == 1
    figures = {key: float(values[0]) for key, values in found.figures.items()}
    assert figures == {
        "duration_us": pytest.approx(406.24),
        "hbm_bytes": pytest.approx(60e9 * 406.24e-6),
        "hbm_percent": 0.74,
        "occupancy_percent": 15.53,
        "sm_active_percent": pytest.approx(100 * 462061.91 / 508757),
        "waves_per_sm": 1.89,
    }


def test_raw_page_is_the_same_as_the_long_one(tmp_path: Path) -> None:
    cells = {
        "dram__bytes_read.sum": ("Mbyte", "2.5"),
        "dram__bytes_write.sum": ("byte", "1,024"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "41.5"),
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active": ("%", "72.5"),
    }
    long = read_counters(written(tmp_path, long_page(*(ncu_row(0, name, *cell) for name, cell in cells.items()))))
    head = '"ID","Process ID","Kernel Name","Block Size","Grid Size","Device",' + ",".join(
        f'"{name}"' for name in cells
    )
    units = '"","","","","","",' + ",".join(f'"{unit}"' for unit, _ in cells.values())
    values = '"0","7","gemm(float *)","(384, 1, 1)","(9, 32, 1)","0",' + ",".join(
        f'"{text}"' for _, text in cells.values()
    )
    wide = read_counters(written(tmp_path, f"{head}\n{units}\n{values}\n", "raw.csv"))
    assert wide.name == long.name
    assert wide.grid.tolist() == long.grid.tolist()
    assert {key: column.tolist() for key, column in wide.figures.items()} == {
        key: column.tolist() for key, column in long.figures.items()
    }


def test_a_packed_table_is_read_as_the_same_unpacked(tmp_path: Path) -> None:
    text = long_page(ncu_row(0, "gpu__time_duration.sum", "ms", "1"))
    (tmp_path / "ncu.csv").write_text(text)
    (packed := tmp_path / "ncu.csv.gz").write_bytes(gzip.compress(text.encode()))
    one, other = read_counters(tmp_path / "ncu.csv"), read_counters(packed)
    assert (one.name, one.figures["duration_us"].tolist()) == (other.name, other.figures["duration_us"].tolist())
    packed.write_bytes(gzip.compress(b'{"traceEvents": []}'))
    with pytest.raises(InputError, match=r"no CUDA or ROCm|without counters|no events"):
        read_counters(packed)


def test_a_page_without_grids_takes_them_from_the_launch_metrics(tmp_path: Path) -> None:
    head = '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
    rows = ['"0","saxpy","launch__grid_size","","16,384"', '"0","saxpy","launch__block_size","","256"']
    found = read_counters(written(tmp_path, "\n".join([head, *rows])))
    assert (found.grid.tolist(), found.block.tolist()) == ([[16384, 0, 0]], [[256, 0, 0]])


@pytest.mark.parametrize(
    ("unit", "found"),
    [
        ("Kbyte", ("byte", 1e3)), ("Gbyte", ("byte", 1e9)), ("Kibyte", ("byte", 1024)), ("nsecond", ("second", 1e-3)),
        ("msecond", ("second", 1e3)), ("us", ("second", 1)), ("Tbyte/s", ("byte/second", 1e12)), ("%", ("percent", 1)),
        ("register/thread", ("count", 1)), ("", ("count", 1)), ("furlong", None), ("Xbyte", None), ("K", None),
    ],
)  # fmt: skip
def test_units(unit: str, found: tuple[str, float] | None) -> None:
    assert unit_of(unit) == (None if found is None else (found[0], pytest.approx(found[1])))


#: What ``ncu_report`` 2026.3.1 calls the units of a GH100.
OF_GH100 = {
    "dram__bytes.sum": "byte", "dram__bytes_read.sum": "byte", "dram__bytes_write.sum": "byte", "lts__t_bytes.sum": "byte",
    "dram__bytes.sum.per_second": "byte/s", "gpu__time_duration.sum": "ns", "gpu__time_duration.avg": "ns",
    "lts__t_sector_hit_rate.pct": "%", "lts__t_sectors.sum": "sector", "dram__sectors_read.sum": "sector",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio": "inst", "sm__cycles_active.avg": "cycle",
    "smsp__average_warp_latency_issue_stalled_barrier.ratio": "inst/warp", "launch__waves_per_multiprocessor": "",
    "smsp__pcsamp_warps_issue_stalled_barrier": "warp",
}  # fmt: skip


@pytest.mark.parametrize("metric", OF_GH100)
def test_a_unit_that_is_not_written_is_what_nvidias_reader_says(tmp_path: Path, metric: str) -> None:
    unit = unit_of(OF_GH100[metric])
    assert unit is not None
    event = {"ph": "X", "cat": "cuda_profiler_range", "name": "gemm", "pid": 0, "tid": 0, "ts": 1, "dur": 1}
    unwritten = written(tmp_path, json.dumps({"traceEvents": [{**event, "args": {metric: 12.5}}]}), "t.json")
    table = written(
        tmp_path, long_page(ncu_row(0, metric, OF_GH100[metric], "12.5"), ncu_row(0, "launch__other", "", "1"))
    )
    figures = [
        {key: column.tolist() for key, column in read_counters(path).figures.items()} for path in (unwritten, table)
    ]
    assert figures[0] == figures[1]


@pytest.mark.parametrize("unit", ["furlong", "%", "byte"])
def test_a_unit_that_does_not_fit_is_told_and_its_figure_left_out(tmp_path: Path, unit: str) -> None:
    found = read_counters(written(tmp_path, long_page(ncu_row(0, "gpu__time_duration.sum", unit, "41.28"))))
    assert found.notes == (
        f"counters.csv: the unit {unit!r} of gpu__time_duration.sum is not known, so its figures are left out",
    )
    assert found.figures == {}


def test_most_frequent_stall_and_its_share(tmp_path: Path) -> None:
    """2 of the 4 + 2 + 1 + 3 warps per issue wait: selected is no wait, however many."""
    warps = {"selected": 4, "short_scoreboard": 2, "barrier": 1, "not_selected": 3}
    rows = [
        ncu_row(0, f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio", "inst", str(value))
        for reason, value in warps.items()
    ]
    found = read_counters(written(tmp_path, long_page(*rows)))
    assert found.stall == ("short_scoreboard",)
    assert found.stall_percent.tolist() == [pytest.approx(100 * 2 / 10)]
    alone = read_counters(written(tmp_path, long_page(rows[1])))
    assert alone.stall == (None,), "of one reason alone the share is not known"


ROCPROF = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"'
)


def rocprof_row(dispatch: int, counter: str, value: float) -> str:
    of_kernel = f'{dispatch},{dispatch},4,1,99,99,1048576,16,"Cijk_Ailk.kd",256,0,0,8,0,16'
    return f'{of_kernel},"{counter}",{value},1000,21000'


def test_counter_collection_of_rocprofv3(tmp_path: Path) -> None:
    """FETCH_SIZE's definition on MI300: 32 B of 10, 128 B of 20 and 64 B of the other 70 requests."""
    counters = {
        "TCC_EA0_RDREQ_sum": 100, "TCC_EA0_RDREQ_32B_sum": 10, "TCC_BUBBLE_sum": 20, "TCC_EA0_WRREQ_sum": 50,
        "TCC_EA0_WRREQ_64B_sum": 40, "TCC_HIT_sum": 30, "TCC_MISS_sum": 90, "TCC_REQ_sum": 120, "MfmaUtil": 37.5,
        "SQ_WAVE_CYCLES": 1000, "SQ_WAIT_ANY": 400, "SQ_WAIT_INST_LDS": 450, "SQ_LDS_BANK_CONFLICT": 30,
        "SQ_LDS_IDX_ACTIVE": 120,
    }  # fmt: skip
    rows = [rocprof_row(1, name, value) for name, value in counters.items()]
    found = read_counters(written(tmp_path, "\n".join([ROCPROF, *rows, rocprof_row(2, "MfmaUtil", 1)])))
    assert found.name == ("Cijk_Ailk.kd",) * 2
    assert found.grid.tolist() == [[4096, 0, 0]] * 2, "ROCm counts threads: 1,048,576 / 256"
    read, wrote = 32 * 10 + 128 * 20 + 64 * 70, 64 * 40 + 32 * 10
    assert {key: float(values[0]) for key, values in found.figures.items()} == {
        "duration_us": 20, "hbm_read_bytes": read, "hbm_bytes": read + wrote, "l2_bytes": 120 * 128,
        "l2_hit_percent": 25, "tensor_percent": 37.5, "bank_conflict_percent": 25,
    }  # fmt: skip
    assert found.stall == ("lds_issue", None)
    assert found.stall_percent[0] == 45


def test_without_the_128_byte_requests_of_mi300_its_bytes_are_unknown(tmp_path: Path) -> None:
    rows = [rocprof_row(1, "TCC_EA0_RDREQ_sum", 100), rocprof_row(1, "TCC_EA0_RDREQ_32B_sum", 10)]
    assert "hbm_read_bytes" not in read_counters(written(tmp_path, "\n".join([ROCPROF, *rows]))).figures


def test_pmc_perf_with_a_column_per_channel(tmp_path: Path) -> None:
    """As Omniperf's tests keep them (MI200): TCC_EA_ without the 0, HIT[n] per channel, times by their old names."""
    head = "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,vgpr,sgpr,fbar,sig,obj,SQ_WAVES,"
    head += "TCC_HIT[0],TCC_HIT[1],TCC_MISS[0],TCC_MISS[1],TCC_EA_RDREQ_sum,TCC_EA_RDREQ_32B_sum,BeginNs,EndNs"
    row = '0,"vecCopy(double*, int) [clone .kd]",2,0,0,9,9,1024,256,0,0,8,16,0,0x0,0x7f,16,1,2,3,4,100,10,5000,7000'
    found = read_counters(written(tmp_path, f"{head}\n{row}\n"))
    assert found.place == (("9", "agent 2"),)
    assert found.grid.tolist() == [[4, 0, 0]]
    assert {key: float(values[0]) for key, values in found.figures.items()} == {
        "duration_us": pytest.approx(2), "hbm_read_bytes": 32 * 10 + 64 * 90, "l2_hit_percent": 30,
    }  # fmt: skip


def test_database_of_rocprofv3(tmp_path: Path) -> None:
    """Tables as rocm-systems' rocpd_tables.sql (schema 3) has them: two instances of a counter add up."""
    run = "_0000_1111"
    sizes = ", ".join(f"{what}_size_{axis} INT" for what in ("workgroup", "grid") for axis in "xyz")
    path = database(
        tmp_path / "results.db",
        {
            f"rocpd_info_pmc{run}": ("id INT, name TEXT", [(1, "TCC_HIT_sum"), (2, "TCC_MISS_sum"), (3, "MfmaUtil")]),
            f"rocpd_info_kernel_symbol{run}": ("id INT, kernel_name TEXT, display_name TEXT", [(5, "_Z4gemm", "gemm(float*)")]),
            f"rocpd_kernel_dispatch{run}": (
                f"dispatch_id INT, event_id INT, kernel_id INT, pid INT, agent_id INT, start INT, end INT, {sizes}",
                [(2, 80, 5, 7, 4, 9000, 9500, 64, 1, 1, 640, 3, 1), (1, 70, 5, 7, 4, 1000, 3000, 64, 1, 1, 64, 1, 1)],
            ),
            f"rocpd_pmc_event{run}": (
                "event_id INT, pmc_id INT, value REAL",
                [(70, 1, 10.0), (70, 1, 20.0), (70, 2, 90.0), (80, 3, 37.5), (99, 3, 1.0), (80, 9, 1.0)],
            ),
        },
    )  # fmt: skip
    found = read_counters(path)
    assert found.name == ("gemm(float*)",) * 2
    assert (found.grid.tolist(), found.block.tolist()) == ([[1, 1, 1], [10, 3, 1]], [[64, 1, 1]] * 2)
    assert found.figures["duration_us"].tolist() == [2, 0.5]
    assert found.figures["l2_hit_percent"][0] == 25
    assert found.figures["tensor_percent"][1] == 37.5
    assert np.isnan(found.figures["tensor_percent"][0])
    with pytest.raises(InputError, match="no counted kernel"):
        read_counters(database(tmp_path / "other.db", {f"rocpd_pmc_event{run}": ("event_id INT, value REAL", [])}))


#: The counts of ``counters_collection`` in rocm-systems' data_views.sql (schema 3.0.3): samples of a streaming counter
#: are no counts, and instances of one add up.
COLLECTED = """
SELECT K.dispatch_id, I.name, SUM(P.value) FROM "rocpd_pmc_event_1" P
JOIN "rocpd_info_pmc_1" I ON I.id = P.pmc_id JOIN "rocpd_kernel_dispatch_1" K ON K.event_id = P.event_id
WHERE P.sample_id IS NULL GROUP BY K.dispatch_id, I.name
"""


@pytest.mark.parametrize("schema", ["3.0.3", "4.1.0"])
def test_counts_of_a_database_are_those_of_rocms_own_view(tmp_path: Path, schema: str) -> None:
    """Columns as rocm-systems' rocpd_tables.sql has them; in 4.1.0 the track has the place of a dispatch. The second
    agent is the first GPU.
    """
    sizes = ", ".join(f"{what}_size_{axis} INT" for what in ("workgroup", "grid") for axis in "xyz")
    size = (64, 1, 1, 640, 1, 1)
    places = {1: (7, 2), 2: (7, 3)}
    place = "pid INT, agent_id INT" if schema == "3.0.3" else "track_id INT"
    dispatches = [
        (n, 10 * n, 5, 1000 * n, 1000 * n + 500 * n, *size, *(places[n] if schema == "3.0.3" else (40 + n,)))
        for n in (1, 2)
    ]
    counts = [(10, 1, 3.0, None), (10, 1, 4.0, None), (10, 2, 21.0, None), (20, 1, 1.0, None), (20, 2, 3.0, None)]
    samples = [(10, 1, 2.0, 900), (10, 2, 5.0, 901), (20, 1, 0.5, 902)]
    path = database(
        tmp_path / "results.db",
        {
            "rocpd_info_agent_1": ("id INT, type TEXT, type_index INT", [(1, "CPU", 0), (2, "GPU", 0), (3, "GPU", 1)]),
            "rocpd_info_pmc_1": ("id INT, name TEXT", [(1, "TCC_HIT_sum"), (2, "TCC_MISS_sum")]),
            "rocpd_info_kernel_symbol_1": ("id INT, kernel_name TEXT, display_name TEXT", [(5, "gemm.kd", "gemm")]),
            "rocpd_track_1": ("id INT, pid INT, agent_id INT", [(40 + n, *each) for n, each in places.items()]),
            "rocpd_kernel_dispatch_1": (
                f"dispatch_id INT, event_id INT, kernel_id INT, start INT, end INT, {sizes}, {place}", dispatches,
            ),
            "rocpd_pmc_event_1": ("event_id INT, pmc_id INT, value REAL, sample_id INT", [*counts, *samples]),
        },
    )  # fmt: skip
    found = read_counters(path)
    with sqlite3.connect(path) as connection:
        view = {(launch, name): value for launch, name, value in connection.execute(COLLECTED)}
    shares = [100 * view[n, "TCC_HIT_sum"] / (view[n, "TCC_HIT_sum"] + view[n, "TCC_MISS_sum"]) for n in (1, 2)]
    assert shares == [25, 25]
    assert found.figures["l2_hit_percent"].tolist() == shares
    assert found.figures["duration_us"].tolist() == [0.5, 1]
    assert found.place == (("7", "0"), ("7", "1"))


def test_ops_of_rocprof_compute(tmp_path: Path) -> None:
    """As rocprofiler-compute's process_torch_trace_output joins the rows of its test_torch_trace.py: in the order of
    ops, of two passes, without a number of the dispatch; of each launch a row per counter.
    """
    head = (
        "Operator_Name,Context_Id,Kernel_Name,Counter_Name,Counter_Value,Start_Timestamp_function,"
        "End_Timestamp_function,Start_Timestamp_kernel,End_Timestamp_kernel"
    )
    linear, mm = "nn.Module.Linear.forward", "torch.mm"
    launches = [(mm, "1@test.py:15", "kernel_mm", 5100, 5900, 30, 90), (linear, "1@test.py:10", "kernel_gemm", 1100, 1900, 1, 3),
                (linear, "2@test.py:10", "kernel_gemm", 3100, 3900, 1, 1)]  # fmt: skip
    rows = [
        f"{op},{context},{kernel},{counter},{count},{begin - 100},{end + 100},{begin},{end}"
        for op, context, kernel, begin, end, *counts in launches
        for counter, count in zip(("TCC_HIT_sum", "TCC_MISS_sum"), counts, strict=True)
    ]
    rows.append(rows[0].replace(mm, "torch.mm/again"))
    found = read_counters(written(tmp_path, "\n".join([head, *rows, ""]), "consolidated.csv"))
    assert found.name == ("kernel_gemm", "kernel_gemm", "kernel_mm"), "in the order of their launches"
    assert found.op == (linear, linear, mm)
    assert found.figures["duration_us"].tolist() == [0.8] * 3
    assert found.figures["l2_hit_percent"].tolist() == [25, 50, 25]


def test_packed_csv_of_rocprof_compute(tmp_path: Path) -> None:
    """Columns and figures of a launch of rocm-systems' tests/workloads/kernel/RDNA35_KRACKAN2; since 2026 packed."""
    head = "GPU_ID,GUID,Correlation_Id,Dispatch_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,Scratch_Per_Workitem,"
    head += "Arch_VGPR,Accum_VGPR,SGPR,Kernel_Name,Start_Timestamp,End_Timestamp,Kernel_ID,Counter_Name,Counter_Value"
    name = '"vecCopy(double*, double*, double*, int, int)"'
    times = (("10982435441506", "10982435675125"), ("1747853603658815001", "1747853603658815101"))
    rows = [
        f"1,a7,{n + 1},{n},1048576,256,0,0,8,0,128,{name},{begin},{end},0,{counter},{value}"
        for n, (begin, end) in enumerate(times)
        for counter, value in (("GL2C_WRITE_sum", "131072.0"), ("SQ_INSTS_FLAT_sum", "65536.0"))
    ]
    (tmp_path / "pmc_perf.csv.gz").write_bytes(gzip.compress("\n".join([head, *rows]).encode()))
    found = read_counters(tmp_path / "pmc_perf.csv.gz")
    assert found.name == ("vecCopy(double*, double*, double*, int, int)",) * 2
    assert found.grid.tolist() == [[4096, 0, 0]] * 2
    assert found.figures["duration_us"] == pytest.approx([233.619, 0.1]), "of a clock of 19 digits too"
    (tmp_path / "cut.csv.gz").write_bytes((tmp_path / "pmc_perf.csv.gz").read_bytes()[:40])
    with pytest.raises(InputError, match=r"^cut\.csv\.gz "):
        read_counters(tmp_path / "cut.csv.gz")


def test_ranges_of_kinetos_profiler(tmp_path: Path) -> None:
    """CuptiRangeProfiler.cpp: a complete event per kernel, its metrics as arguments in base units."""
    event = {"ph": "X", "cat": "cuda_profiler_range", "name": "gemm", "pid": 0, "tid": 0, "dur": 10}
    metrics = {"dram__bytes_read.sum": 3e6, "dram__bytes_write.sum": 1e6, "gpu__time_duration.sum": 4000}
    events = [{**event, "ts": at, "args": {**metrics, "External id": at}} for at in (200, 100)]
    path = written(tmp_path, json.dumps({"traceEvents": events}), "t.json")
    found = read_counters(path)
    assert (len(found), found.grid.tolist()) == (2, [[0, 0, 0]] * 2)
    assert found.figures["hbm_bytes"].tolist() == [4e6, 4e6]
    assert found.figures["duration_us"] == pytest.approx([4, 4])


def test_ranges_as_a_recorded_alexnet_has_them(tmp_path: Path) -> None:
    """Ranges of HTA's tests/data/cupti_profiler, as its notebook cupti_flops_analysis.ipynb prints them: of one length,
    and kernels of cuDNN without a name.
    """
    names = (
        "void at::native::(anonymous namespace)::distribution<4>",
        "__missing__",
        "void at::native::elementwise<128, 2>",
    )
    fmul = "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum"
    events = [
        {"ph": "X", "cat": "cuda_profiler_range", "name": name, "pid": 0, "tid": 0, "ts": 2498229 + 121431 * n,
         "dur": 121431, "args": {fmul: 24780800 if n == 1 else 0, "dram__bytes_read.sum": 1000 * n, "dram__bytes_write.sum": 0}}
        for n, name in enumerate(names)
    ]  # fmt: skip
    found = read_counters(written(tmp_path, json.dumps({"traceEvents": events}), "benchmark_result.json"))
    assert (found.name, set(found.place)) == (names, {("", "0")})
    assert found.figures["hbm_bytes"].tolist() == [0, 1000, 2000]
    assert "duration_us" not in found.figures, "ranges share the recording evenly, so their lengths say nothing"
    trace = recorded([names[0], "cudnn", names[2]], [1, 2, 3])
    assert outcome(found, trace) == [(1, BY_SEQUENCE), (-1, NO_NAME), (3, BY_SEQUENCE)]


def test_a_range_of_the_whole_recording_is_no_kernel(tmp_path: Path) -> None:
    """Without ``profiler_measure_per_kernel`` Kineto writes one range of a device (CuptiRangeProfilerTest.cpp)."""
    event = {"ph": "X", "cat": "cuda_profiler_range", "name": "__profile__", "tid": 0, "ts": 1, "dur": 10}
    ranges = [{**event, "pid": device, "args": {"sm__inst_executed_pipe_tensor.sum": 0.1}} for device in (0, 1)]
    with pytest.raises(InputError, match=r"counters of the whole recording.*profiler_measure_per_kernel=True"):
        read_counters(written(tmp_path, json.dumps({"traceEvents": ranges}), "t.json"))


class FakeMetric:
    def __init__(self, value: Any, unit: str) -> None:
        self._value, self._unit = value, unit

    def value(self) -> Any:
        return self._value

    def unit(self) -> str:
        return self._unit


class FakeAction:
    """The methods of ``ncu_report.IAction``; the name of a function has no arguments unless it is asked for."""

    NameBase_DEMANGLED = 1
    METRICS: ClassVar[dict[str, tuple[Any, str]]] = {
        "launch__grid_dim_x": (9, ""), "launch__grid_dim_y": (32, ""), "launch__grid_dim_z": (1, ""),
        "launch__block_dim_x": (384, ""), "launch__block_dim_y": (1, ""), "launch__block_dim_z": (1, ""),
        "dram__bytes.sum": (4.5, "Mbyte"), "smsp__note": ("text", ""),
    }  # fmt: skip

    def name(self, base: int = 0) -> str:
        return "gemm(float*)" if base == self.NameBase_DEMANGLED else "gemm"

    def metric_names(self) -> list[str]:
        return list(self.METRICS)

    def metric_by_name(self, name: str) -> FakeMetric:
        return FakeMetric(*self.METRICS[name])


class FakeReport:
    def num_ranges(self) -> int:
        return 1

    num_actions = num_ranges

    def range_by_idx(self, number: int) -> FakeReport:
        return self

    def action_by_idx(self, number: int) -> FakeAction:
        return FakeAction()


def test_a_report_is_read_by_nvidias_module_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, "NVR\0", "r.ncu-rep")
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(InputError, match=r"ncu_report.*ncu --import FILE.ncu-rep --csv --page raw"):
        read_counters(path)
    module = ModuleType("ncu_report")
    module.load_report = lambda path: FakeReport()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ncu_report", module)
    found = read_counters(path)
    assert (found.name, found.grid.tolist()) == (("gemm(float*)",), [[9, 32, 1]])
    assert found.figures["hbm_bytes"].tolist() == [4.5e6]


def field(number: int, value: int | float | str | bytes) -> bytes:
    """A field of a protocol buffer, by the type of its value."""

    def varint(rest: int) -> bytes:
        return bytes([rest]) if rest < 128 else bytes([rest & 127 | 128]) + varint(rest >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def ncu_rep(*launches: tuple[str, tuple[int, int, int], dict[str, int | float | str]]) -> bytes:
    """A report by the numbers of NVIDIA's own descriptors (``ProfilerReport.proto``, which ``ncu_report`` 2026.3.1
    has in it): name, grid and metrics of each launch, blocks of 384 threads.
    """
    names = list(dict.fromkeys(name for *_, metrics in launches for name in metrics))
    results = []
    for name, grid, metrics in launches:
        sizes = [b"".join(field(axis, n) for axis, n in enumerate(size, 1)) for size in ((0, 0, 0), grid, (384, 1, 1))]
        required = [7, 1, 0, 0, name, name.partition("(")[0], name, 3, *sizes]
        result = b"".join(field(number, value) for number, value in enumerate(required, 1))
        for metric, value in metrics.items():
            kind = {str: 1, float: 3, int: 5}[type(value)]
            result += field(13, field(1, names.index(metric)) + field(2, field(kind, value)))
        results.append(result + field(15, b"") + field(16, 0))
    payload = b"".join(struct.pack("<I", len(result)) + result for result in results)
    table = b"".join(field(1, name) for name in names)
    header = field(2, len(results)) + field(3, field(1, 7)) + field(4, table) + field(5, len(payload))
    return b"NVR\0" + b"".join(struct.pack("<I", len(part)) + part for part in (field(1, 12), header)) + payload


def of_report(tmp_path: Path, content: bytes) -> CountedKernels:
    pytest.importorskip("ncu_report", reason="NVIDIA's reader of Nsight Compute's reports is not installed")
    (tmp_path / "r.ncu-rep").write_bytes(content)
    return read_counters(tmp_path / "r.ncu-rep")


SIZES = {f"launch__{what}_dim_{axis}": n for what, size in (("grid", (9, 32, 1)), ("block", (384, 1, 1)))
         for axis, n in zip("xyz", size, strict=True)}  # fmt: skip
COUNTED: dict[str, int | float | str] = {
    **SIZES, "device__attribute_device_index": 3, "device__attribute_display_name": "NVIDIA H100", "dram__bytes_read.sum": 2.5e6,
    "dram__bytes_write.sum": 1.64e6, "gpu__time_duration.sum": 41280.0, "lts__t_sectors.sum": 1000.0,
    "lts__t_sector_hit_rate.pct": 12.5,
}  # fmt: skip


def test_nvidias_own_reader_says_what_its_csv_says(tmp_path: Path) -> None:
    """Bytes, ns and percent, for the reader names no unit of a chip that it does not know."""
    adds = [f"void at::vectorized<4, {functor}>(int, {functor})" for functor in ("add", "mul")]
    found = of_report(tmp_path, ncu_rep(*((name, (9, 32, 1), COUNTED) for name in adds)))
    assert found.name == tuple(adds), "two kernels, not one function"
    assert set(found.place) == {("", "3")}
    assert (found.grid.tolist(), found.block.tolist(), found.notes) == ([[9, 32, 1]] * 2, [[384, 1, 1]] * 2, ())
    rows = (
        ncu_row(0, "gpu__time_duration.sum", "usecond", "41.28"), ncu_row(0, "dram__bytes_read.sum", "Mbyte", "2.5"),
        ncu_row(0, "dram__bytes_write.sum", "Kbyte", "1,640"), ncu_row(0, "lts__t_sectors.sum", "sector", "1,000"),
        ncu_row(0, "lts__t_sector_hit_rate.pct", "%", "12.5"),
    )  # fmt: skip
    exported = read_counters(written(tmp_path, long_page(*rows))).figures
    assert {key: values[0] for key, values in found.figures.items()} == pytest.approx(
        {key: values[0] for key, values in exported.items()}
    )


@settings(max_examples=examples(40), deadline=None)
@given(cut=st.integers(0, 900), junk=st.binary(max_size=12))
def test_nvidias_own_reader_of_a_damaged_report(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    whole = ncu_rep(("gemm(float*)", (9, 32, 1), COUNTED))
    try:
        found = of_report(tmp_path_factory.mktemp("r"), whole[:cut] + junk + whole[cut + len(junk) :])
    except InputError as refused:
        said = str(refused)
    else:
        said = "" if len(found) == 1 else "more launches than were counted"
    assert "\n" not in said
    assert not said or said.startswith("r.ncu-rep ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column of kernel names"),
        ("a,b\n1,2\n", "no column of kernel names"),
        ("\0\xff\x80", "no column of kernel names"),
        (f"{NCU}\n", "no counted kernel"),
        ('"Kernel Name","Invocations","Metric Name","Metric Unit","Average"\n"k","2","x","%","1"\n', "sums launches up"),
        ("Kernel_Name,Grid_Size,Start_Timestamp,End_Timestamp\nk,1,2,3\n", "no counters by kernel"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 0}]}',
         "a trace without counters by kernel"),
    ],
)  # fmt: skip
def test_what_holds_no_counters_is_refused_in_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        read_counters(written(tmp_path, text))
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("counters.csv ")


@pytest.mark.parametrize("value", ["1e400", "-5", "nan", "inf", "1e30", "=1+1", ""])
def test_values_that_no_counter_has_are_unknown(tmp_path: Path, value: str) -> None:
    rows = ncu_row(0, "dram__bytes.sum", "Tbyte", value, grid=""), ncu_row(0, "launch__grid_size", "", value, grid="")
    found = read_counters(written(tmp_path, long_page(*rows)))
    assert "hbm_bytes" not in found.figures
    assert found.grid.tolist() == [[0, 0, 0]]


@settings(max_examples=examples(60), deadline=None)
@given(cut=st.integers(0, 2000), cell=st.text(alphabet='0,"\n(x%-=+@', max_size=6))
def test_damage_is_refused_or_read_never_raised(tmp_path_factory: pytest.TempPathFactory, cut: int, cell: str) -> None:
    text = long_page(*(ncu_row(n, "dram__bytes.sum", "Mbyte", "2.5") for n in range(8)))
    path = tmp_path_factory.mktemp("cut") / "counters.csv"
    path.write_text(text[:cut] + cell + text[cut + len(cell) :])
    try:
        assert len(read_counters(path)) <= 9
    except InputError as error:
        assert str(error).startswith("counters.csv ")  # noqa: PT017 - both ends are right


@pytest.mark.parametrize(
    ("kineto", "ncu"),
    [
        ("void at::native::add<4, std::array<char*, 3ul> >(int, std::array<char*, 3ul>)",
         "void at::native::add<(int)4, std::array<char *, (unsigned long)3>>(int, T2)"),
        ("void (anonymous namespace)::softmax<float, true>(float*)", "<unnamed>::softmax<float, (bool)1>(T1 *)"),
        ("void fast::cu::gemv<__nv_bfloat16, 8>", "void fast::cu::gemv<__nv_bfloat16, 8>(const T1 *, int)"),
        ("Cijk_Ailk_Bljk", "Cijk_Ailk_Bljk.kd"),
        ("vecCopy(double*, int)", "vecCopy(double*, int) [clone .kd]"),
    ],
)  # fmt: skip
def test_names_of_one_kernel_by_two_tools(kineto: str, ncu: str) -> None:
    assert spellings(kineto) == spellings(ncu)


def counted(names: list[str], grids: list[tuple[int, int, int]] | None = None, device: str = "0") -> CountedKernels:
    sizes = grids or [(1, 1, 1)] * len(names)
    places = [(name, None, ("7", device), grid, (64, 1, 1)) for name, grid in zip(names, sizes, strict=True)]
    return CountedKernels.of("c.csv", "test", places, {})


def recorded(names: list[str], targets: list[int], grids: list[tuple[int, int, int]] | None = None) -> RecordedKernels:
    distinct = sorted(set(names))
    sizes = grids or [(1, 1, 1)] * len(names)
    return RecordedKernels(
        names=distinct,
        name=np.array([distinct.index(name) for name in names], np.int64),
        device=np.zeros(len(names), np.int64),
        target=np.array(targets, np.int64),
        sizes=lambda at: (sizes[at], (64, 1, 1)),
    )


def outcome(kernels: CountedKernels, of_trace: RecordedKernels) -> list[tuple[int, str]]:
    target, how = joined(kernels, of_trace)
    return list(zip(target.tolist(), how, strict=True))


def test_a_counted_step_is_found_in_every_recorded_one() -> None:
    """Two products with one name and grid: only the order tells them apart. Other kernels lie between."""
    trace = recorded(["copy", "gemm", "gemm", "add"] * 3, [9, 1, 2, 3] * 3)
    assert outcome(counted(["gemm", "gemm", "add"]), trace) == [(n, BY_SEQUENCE) for n in (1, 2, 3)]


def test_a_recorded_step_is_found_in_the_counted_run() -> None:
    found = outcome(counted(["add", "gemm", "gemm", "add", "gemm"]), recorded(["gemm", "gemm", "add"], [1, 2, 3]))
    assert found == [(3, BY_GRID), (1, BY_SEQUENCE), (2, BY_SEQUENCE), (3, BY_SEQUENCE), (-1, SEVERAL_OPS)]


def test_what_the_order_does_not_tell_is_not_guessed() -> None:
    assert outcome(counted(["gemm"]), recorded(["gemm", "gemm"], [1, 2])) == [(-1, SEVERAL_OPS)]
    assert outcome(counted(["gemm"]), recorded(["gemm", "gemm"], [1, 1])) == [(1, BY_SEQUENCE)]


def test_runs_that_overlap_and_disagree_leave_the_choice_to_the_count() -> None:
    """Two of six launches of one kernel by two ops in turn: from the second on, they would be the other way round."""
    assert outcome(counted(["gemm"] * 2), recorded(["gemm"] * 6, [1, 2] * 3)) == [(1, BY_COUNT), (2, BY_COUNT)]
    assert outcome(counted(["gemm"] * 2), recorded(["gemm"] * 5, [1, 2, 1, 2, 1])) == [(-1, SEVERAL_OPS)] * 2


def test_many_launches_of_one_kernel_are_searched_in_no_time() -> None:
    many = 20_000
    trace = recorded(["gemm"] * many, [n % 7 for n in range(many)])
    assert {how for _, how in outcome(counted(["gemm"] * 3000), trace)} == {SEVERAL_OPS}


def test_as_many_launches_are_joined_in_order_where_others_are_missing() -> None:
    trace = recorded(["gemm", "add", "gemm", "add"], [1, 3, 2, 3])
    assert outcome(counted(["gemm", "gemm", "add"]), trace) == [(1, BY_COUNT), (2, BY_COUNT), (3, BY_GRID)]


def test_a_grid_tells_launches_apart_and_one_that_was_not_recorded_is_told() -> None:
    small, large, other = (1, 1, 1), (2, 3, 1), (6, 1, 1)
    trace = recorded(["gemm", "gemm"], [1, 2], [small, large])
    kernels = counted(["gemm", "gemm", "gemm", "fft"], [large, small, other, small])
    assert outcome(kernels, trace) == [(2, BY_GRID), (1, BY_GRID), (-1, NO_GRID), (-1, NO_NAME)]
    totals = counted(["gemm", "gemm"], [(6, 0, 0), (1, 0, 0)])
    assert outcome(totals, trace) == [(2, BY_GRID), (1, BY_GRID)], "a total is compared with the product"


def test_without_grids_names_and_order_are_what_is_left() -> None:
    assert outcome(counted(["a"], [(0, 0, 0)]), recorded(["b", "a", "a"], [1, 2, 2])) == [(2, BY_SEQUENCE)]
    assert outcome(counted(["a", "b"], [(0, 0, 0)] * 2), recorded(["b", "a", "a"], [1, 2, 2])) == [
        (2, BY_NAME), (1, BY_NAME),
    ]  # fmt: skip


def test_a_tool_that_leaves_namespaces_out_still_says_template_arguments() -> None:
    trace = recorded(["void cu::gemv<half, 8>", "void cu::gemv<half, 4>"], [1, 2])
    assert outcome(counted(["void gemv<half, 4>(T1 *)"]), trace) == [(2, BY_SEQUENCE)]


def test_a_kernel_without_recorded_grids_does_not_take_them_from_others() -> None:
    """As MI300's traces have them: launches of modules are recorded without a grid."""
    trace = recorded(["hip", "gemm", "gemm"], [9, 1, 2], [(1, 1, 1), (1, 1, 1), (2, 1, 1)])
    sizes = trace.sizes
    trace = replace(trace, sizes=lambda at: None if at == 0 else sizes(at))
    found = outcome(counted(["gemm", "hip", "gemm"], [(2, 1, 1), (5, 1, 1), (1, 1, 1)]), trace)
    assert found == [(2, BY_GRID), (9, BY_NAME), (1, BY_GRID)]


def test_template_arguments_tell_kernels_apart_where_both_sides_have_them() -> None:
    trace = recorded(["void add<float>(int)", "void add<half>(int)"], [1, 2])
    assert outcome(counted(["void add<half>(int)", "void add<double>(int)"]), trace) == [
        (2, BY_SEQUENCE),
        (-1, NO_NAME),
    ]
    assert outcome(counted(["add", "add"]), trace) == [(1, BY_SEQUENCE), (2, BY_SEQUENCE)]


@settings(max_examples=examples(80), deadline=None)
@given(
    step=st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 3)), min_size=1, max_size=8),
    steps=st.integers(1, 3),
    strangers=st.lists(st.sampled_from("xyz"), max_size=3),
)
def test_every_counted_launch_is_joined_or_has_a_reason(
    step: list[tuple[str, int]], steps: int, strangers: list[str]
) -> None:
    """A trace of the same steps joins each launch with its own; kernels of elsewhere are named."""
    names, grids = [name for name, _ in step], [(size, 1, 1) for _, size in step]
    trace = recorded(names * steps, list(range(len(step))) * steps, grids * steps)
    found = outcome(counted([*names, *strangers], [*grids, *[(1, 1, 1)] * len(strangers)]), trace)
    assert len(found) == len(names) + len(strangers)
    assert [target for target, _ in found[: len(names)]] == list(range(len(step)))
    assert found[len(names) :] == [(-1, NO_NAME)] * len(strangers)
