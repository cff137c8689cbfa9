"""rocprof v1 and v2, and rocprofv3: the same kernels as the file's JSON holds, calls joined to what they launched."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.trace.formats.rewritten import (
    EXAMPLE,
    database,
    device_rows,
    kernels_alone,
    rocpd,
    rocprof_csv,
    rocprofv3,
    sums,
)
from tracelens.analysis.loaded_trace import Trace, load
from tracelens.errors import InputError
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS, Kind


def event(name: str, process: int, thread: int, begin: int, end: int, **args: int) -> dict[str, object]:
    texts = {"BeginNs": begin, "EndNs": end, "DurationNs": end - begin, "pid": 50, "tid": 51} | args
    return {
        "ph": "X", "name": name, "pid": str(process), "tid": str(thread), "ts": str(begin // 1000), "dur": "1",
        "args": {key.replace("_", "-"): str(value) for key, value in texts.items()},
    }  # fmt: skip


def test_an_arrow_joins_the_call_that_it_leaves_from_and_the_kernel_that_it_meets(tmp_path: Path) -> None:
    events = [
        {},
        event("hipLaunchKernel", 2, 51, 10_200, 14_900),
        event("hipGetDevice", 2, 51, 12_000, 12_100),
        event("k", 8, 1, 20_500, 30_123, dev_id=2, stream_id=1),
        event("CopyHostToDevice", 1, 0, 40_000, 40_007, dev_id=2, stream_id=0),
        {"ph": "s", "cat": "DataFlow", "id": 3, "pid": 2, "tid": 51, "ts": 13, "name": "dep"},
        {"ph": "t", "cat": "DataFlow", "id": 3, "pid": 8, "tid": 1, "ts": 20, "name": "dep"},
    ]
    machine = {"Agent3.DeviceType": "GPU", "Agent3.MarketingName": "AMDInstinctMI300X", "Agent3.ComputeUnit": "304"}
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"traceEvents": events, "otherData": machine}))
    trace = load(path)
    table = trace.table
    (kernel,) = table.rows_of([Kind.KERNEL])
    assert (table.start_ns[kernel], table.duration_ns[kernel]) == (20_500, 9_623)
    assert (table.device[kernel], table.stream[kernel]) == (2, 1)
    assert table.name_of(int(trace.tree.launch[kernel])) == "hipLaunchKernel"
    assert trace.tree.launch[table.rows_of([Kind.MEMCPY])].tolist() == [-1]
    assert table.device_properties()[0].compute_units == 304


@pytest.mark.shared
@pytest.mark.parametrize("name", ["rocprof_v1/composable_kernel_result", "rocprof_v2/hipkittens_basic_col"])
def test_real_files_have_the_kernels_of_their_json(name: str, shared_traces: Path) -> None:
    path = shared_traces / "more" / f"{name}.json.gz"
    plain = [
        (e["name"], int(e["args"]["BeginNs"]), int(e["args"]["EndNs"]))
        for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
        if e.get("ph") == "X" and int(e["pid"]) not in (2, 3)
    ]
    trace = load(path)
    assert sums(device_rows(trace.table)) == sums(plain)
    kernels = trace.table.rows_of([Kind.KERNEL])
    assert (trace.tree.launch[kernels] >= 0).mean() > 0.5


MAKERS: dict[str, Callable[[Path], Path]] = {
    "json": lambda folder: rocprofv3(folder / "12_results.json"),
    "csv": rocprof_csv,
    "rocpd": lambda folder: rocpd(folder / "12_results.db"),
    "rocpd with times apart": lambda folder: rocpd(folder / "12_results.db", timestamps=True),
}


@pytest.fixture(scope="module", params=MAKERS)
def rewritten(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp("rocm"))


def launched(trace: Trace) -> list[str]:
    table, tree = trace.table, trace.tree
    rows = sorted(table.rows_of([Kind.KERNEL]).tolist(), key=lambda row: (table.start_ns[row], table.stream[row]))
    return [table.name_of(int(tree.launch[row])) for row in rows if tree.launch[row] >= 0]


def test_the_same_run_gives_the_same_kernels_copies_and_launches(rewritten: Path) -> None:
    here, there = load(rewritten), load(EXAMPLE)
    (_, spent, busy), (_, spent_there, busy_there) = sums(device_rows(here.table)), sums(device_rows(there.table))
    assert busy == busy_there
    kernels, kernels_there = (
        {name: ns for name, ns in each.items() if not name.startswith(("Mem", "Copy"))} for each in (spent, spent_there)
    )
    assert kernels == kernels_there
    assert set(launched(here)) >= set(launched(there))
    assert len(launched(here)) >= len(launched(there)) > 100
    kernel = int(here.table.rows_of([Kind.KERNEL])[0])
    assert here.table.args(kernel)["grid"] == [64, 2, 1], "blocks, where the file counts threads"
    device = here.table.used_device()
    assert (device.name, device.compute_units, device.warp_size) == ("AMD Instinct MI300X", 304, 64)


def test_the_sheet_of_kernels_is_the_same(tmp_path: Path) -> None:
    pd.testing.assert_frame_equal(kernels_alone(rocpd(tmp_path / "t.db")), kernels_alone(EXAMPLE))


def test_names_in_a_database_that_are_no_tables_of_rocpd_are_not_read(tmp_path: Path) -> None:
    name = 'rocpd_kernel_dispatch_1"; DROP TABLE x; --'
    connection = sqlite3.connect(tmp_path / "t.db")
    connection.execute(f"""CREATE TABLE '{name}' (start INT)""")
    connection.close()
    with pytest.raises(InputError, match=r"t\.db is a rocpd database, but no event"):
        read_trace(tmp_path / "t.db")


def test_counters_of_one_dispatch_are_one_kernel(tmp_path: Path) -> None:
    path = tmp_path / "12_counter_collection.csv"
    path.write_text(
        '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Kernel_Name","Counter_Name","Start_Timestamp","End_Timestamp"\n'
        '1,1,"Agent 4",1,"f(int, int)","A",10,30\n1,1,"Agent 4",1,"f(int, int)","B",10,30\n2,2,"Agent 8",1,"g","A",40,45\n'
    )
    assert device_rows(read_trace(path)) == [("f(int, int)", 10, 30), ("g", 40, 45)]
    assert read_trace(path).device.tolist() == [0, 1]


def test_rocmprofiledata_joins_calls_by_its_pairs(tmp_path: Path) -> None:
    path = database(tmp_path / "t.rpd", {
        "rocpd_string": ("id INTEGER PRIMARY KEY, string TEXT UNIQUE", [(1, "hipLaunchKernel"), (2, "KernelExecution"), (3, "a_gemm")]),
        "rocpd_api": ("id INT, pid INT, tid INT, start INT, end INT, apiName_id INT", [(7, 5, 6, 100, 110, 1)]),
        "rocpd_op": ("id INT, gpuId INT, queueId INT, start INT, end INT, description_id INT, opType_id INT", [(9, 1, 2, 120, 150, 3, 2)]),
        "rocpd_api_ops": ("api_id INT, op_id INT", [(7, 9)]),
    })  # fmt: skip
    trace = load(path)
    (row,) = trace.table.rows_of([Kind.KERNEL])
    assert (trace.table.name_of(row), trace.table.device[row], trace.table.stream[row]) == ("a_gemm", 1, 2)
    assert trace.table.name_of(int(trace.tree.launch[row])) == "hipLaunchKernel"


@pytest.mark.shared
def test_a_real_file_of_rocprofv3_has_the_dispatches_of_its_json(shared_traces: Path) -> None:
    path = shared_traces / "more" / "rocprofv3" / "908_results_first_quarter.json.gz"
    (process,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in process["kernel_symbols"]}
    plain = [
        (names[d["dispatch_info"]["kernel_id"]], d["start_timestamp"], d["end_timestamp"])
        for d in process["buffer_records"]["kernel_dispatch"]
    ]
    table = read_trace(path)
    assert len(table.rows_of(DEVICE_KINDS)) == 10_978
    assert sums(device_rows(table)) == sums(plain)


@pytest.mark.parametrize("text", ['{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{"start_', '{"rocprofiler-sdk-tool": 7}'])  # fmt: skip
def test_a_damaged_file_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"t\.json is a trace of rocprofv3, but damaged"):
        read_trace(path)
