"""Every file of another tool among the real traces: a report with the kernels of a plain reader, or what to do instead.

Those of PyTorch's profiler: ``tests/test_every_trace.py``.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.conftest import TRACES, part, recorded_traces
from tests.trace.formats.rewritten import sums
from tests.trace.formats.test_xplane import plain_kernels
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.cli import main

pytestmark = pytest.mark.shared

Rows = list[tuple[str, int, int]]
MORE = TRACES / "more"
KERNELS = """
SELECT globalPid, s.value, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds s ON s.id = demangledName
"""


def others() -> list[str]:
    kineto = {f"{name}" for name in recorded_traces()}
    return sorted(name for path in MORE.rglob("*.gz") if (name := path.relative_to(TRACES).as_posix()) not in kineto)


def plain_rocprof(path: Path) -> Rows:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [
        (e["name"], int(e["args"]["BeginNs"]), int(e["args"]["EndNs"]))
        for e in events
        if e.get("ph") == "X" and int(e["pid"]) not in (2, 3)
    ]


def plain_rocprofv3(path: Path) -> Rows:
    (process,) = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"]
    names = {s["kernel_id"]: s["formatted_kernel_name"] for s in process["kernel_symbols"]}
    records = process["buffer_records"]
    kernels = [(names[d["dispatch_info"]["kernel_id"]], d) for d in records["kernel_dispatch"]]
    copies = [("Copy", d) for d in records["memory_copy"]]
    return [(name, d["start_timestamp"], d["end_timestamp"]) for name, d in (*kernels, *copies)]


def plain_nsight(path: Path, folder: Path) -> list[Rows]:
    file = folder / "plain.sqlite"
    with gzip.open(path) as source, file.open("wb") as target:
        shutil.copyfileobj(source, target)
    connection = sqlite3.connect(file)
    rows = connection.execute(KERNELS).fetchall()
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    for kind in ("MEMCPY", "MEMSET"):
        if f"CUPTI_ACTIVITY_KIND_{kind}" in tables:
            rows += connection.execute(f"SELECT globalPid, 'Mem', start, end FROM CUPTI_ACTIVITY_KIND_{kind}")  # noqa: S608
    connection.close()
    return [[row[1:] for row in rows if row[0] == process] for process in sorted({row[0] for row in rows})]


def plain(path: Path, folder: Path) -> list[Rows]:
    """What each process ran on devices, by a reader that shares nothing with the package's; nothing of a file that has none by its nature."""
    if path.name.endswith(".sqlite.gz"):
        return plain_nsight(path, folder)
    if path.name.endswith(".pb.gz"):
        return [plain_kernels(gzip.decompress(path.read_bytes()))]
    if path.parent.name == "rocprofv3":
        return [plain_rocprofv3(path)]
    return [plain_rocprof(path)] if path.parent.name.startswith("rocprof") else []


@pytest.mark.parametrize("name", part(others(), 4))
def test_a_report_has_the_kernels_of_a_plain_reader(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = TRACES / name
    processes = plain(path, tmp_path)
    if not processes:
        assert main(["report", str(path), "-o", str(tmp_path / "out")]) in (1, 3)
        said = capsys.readouterr().err
        assert "give " in said or "record again" in said.lower(), said
    for rank, rows in enumerate(processes):
        counts, spent, _ = sums(row for row in rows if not row[0].startswith(("Mem", "Copy")))
        analysis = analyze(load(path), AnalysisOptions(rank=rank if len(processes) > 1 else None), on_demand=True)
        sheet = analysis.frames["kernel_summary"]
        kernels = sheet[~sheet["kernel_name"].str.startswith(("Mem", "Copy"))].groupby("kernel_name")
        assert kernels["kernels"].sum().astype(int).to_dict() == dict(counts)
        assert kernels["duration_us_sum"].sum().round(3).to_dict() == {name: ns / 1000 for name, ns in spent.items()}
        timeline = analysis.frames["gpu_timeline"].set_index("type")["time_us"]
        assert round(timeline["busy_time"] * 1e3) == sums(rows)[2]
