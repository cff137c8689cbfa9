"""The recorded step of example_traces, written as other profilers would have recorded it."""

from __future__ import annotations

import csv
import gzip
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.trace.rewriting import write_packets
from tracelens.trace.table import TraceTable, kind_of_category

EXAMPLE = Path(__file__).resolve().parents[3] / "example_traces" / "moe_ep8" / "rank0.json.gz"
GRID, BLOCK = (64, 2, 1), (256, 1, 1)
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def events(path: Path = EXAMPLE) -> list[dict[str, Any]]:
    """Complete events, with ``start`` and ``end`` in ns."""
    found = [
        e for e in json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"] if e["ph"] == "X"
    ]
    for event in found:
        event["start"] = int(event["ts"] * 1000)
        event["end"] = event["start"] + int(event["dur"] * 1000)
    return found


@cache
def kernel_table(path: Path) -> pd.DataFrame:
    """The sheet kernel_summary of all of the file, without what rests on categories of parents."""
    frame = analyze(load(path), AnalysisOptions(steps="file"), on_demand=True).frames["kernel_summary"]
    columns = [
        "parent_op",
        "kernel_name",
        "stream",
        "kernels",
        "duration_us_sum",
        "duration_us_min",
        "duration_us_max",
    ]
    return frame[columns].sort_values(columns).reset_index(drop=True)


def union(spans: Iterable[tuple[int, int]]) -> int:
    """The time that at least one of the spans covers, one after the other."""
    covered, reached = 0, -(2**70)
    for start, end in sorted(spans):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def sums(rows: Iterable[tuple[str, int, int]]) -> tuple[Counter[str], Counter[str], int]:
    """(count by name, ns by name, busy ns) of (name, start, end)."""
    rows = list(rows)
    spent: Counter[str] = Counter()
    for name, start, end in rows:
        spent[name] += end - start
    return Counter(name for name, _, _ in rows), spent, union((start, end) for _, start, end in rows)


def nsight_systems(path: Path, *, process: int = 100) -> Path:
    """As ``nsys export --type sqlite`` writes a run under ``emit_nvtx(record_shapes=True)``."""
    strings: dict[str, int] = {}
    who = process << 24

    def number(text: str) -> int:
        return strings.setdefault(text, len(strings) + 1)

    kernels, copies, sets, calls, ranges = [], [], [], [], []
    for e in events():
        args, category = e.get("args", {}), e["cat"]
        span = (e["start"], e["end"])
        on_device = (*span, args.get("device"), 1, args.get("stream"), args.get("correlation"), who)
        if category == "kernel":
            kernels.append((*on_device, number(e["name"]), *args.get("grid", GRID), *args.get("block", BLOCK)))
        elif category == "gpu_memcpy":
            copies.append((*on_device, args["bytes"], 1 if "HtoD" in e["name"] else 2 if "DtoH" in e["name"] else 8))
        elif category == "gpu_memset":
            sets.append((*on_device, args.get("bytes", 64)))
        elif category in ("cuda_runtime", "cuda_driver"):
            calls.append(
                (
                    *span,
                    int(category == "cuda_driver"),
                    who + e["tid"],
                    args["correlation"],
                    number(f"{e['name']}_v7000"),
                )
            )
        elif category in ("cpu_op", "user_annotation"):
            ranges.append((*span, 59, who + e["tid"], number(_nvtx(e))))
    device = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
    tables = {
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            f"{device}, demangledName INT, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT",
            kernels,
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (f"{device}, bytes INT, copyKind INT", copies),
        "CUPTI_ACTIVITY_KIND_MEMSET": (f"{device}, bytes INT", sets),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            "start INT, end INT, eventClass INT, globalTid INT, correlationId INT, nameId INT",
            calls,
        ),
        "NVTX_EVENTS": ("start INT, end INT, eventType INT, globalTid INT, textId INT", ranges),
        "StringIds": ("id INTEGER PRIMARY KEY, value TEXT", [(i, text) for text, i in strings.items()]),
        "PROCESSES": ("globalPid INT, pid INT, name TEXT", [(who, process, "python")]),
        "TARGET_INFO_GPU": ("id INT, name TEXT, totalMemory INT, smCount INT", [(0, "NVIDIA B200", 192 << 30, 148)]),
    }
    return database(path, tables)


def database(path: Path, tables: dict[str, tuple[str, list[Any]]]) -> Path:
    connection = sqlite3.connect(path)
    for name, (columns, rows) in tables.items():
        connection.execute(f"CREATE TABLE {name} ({columns})")
        marks = ", ".join("?" * (columns.count(",") + 1))
        connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)  # noqa: S608
    connection.commit()
    connection.close()
    return path


def _nvtx(e: dict[str, Any]) -> str:
    if e["cat"] != "cpu_op":
        return e["name"]
    args = e["args"]
    sequence = f", seq = {args['Sequence number']}" if "Sequence number" in args else ""
    shapes = f", sizes = {json.dumps(args['Input Dims'])}, input_op_ids = [(7,0)]" if "Input Dims" in args else ""
    return f"{e['name']}{sequence}, op_id = {args.get('External id', 0)}{shapes}"


def kernels_alone(path: Path) -> pd.DataFrame:
    """The kernel table without the ops: of formats that have none, and spell copies in their way."""
    frame = kernel_table(path)
    frame = frame[~frame["kernel_name"].str.startswith(("Mem", "Copy"))]
    found = frame.groupby(["kernel_name", "stream"])[["kernels", "duration_us_sum"]].sum().round(6)
    return found.sort_index()


def launching_ops() -> dict[int, str]:
    """The innermost op round each launch, by correlation."""
    found, ops = {}, [e for e in events() if e["cat"] == "cpu_op"]
    for e in events():
        if e["cat"] == "cuda_runtime" or e["cat"].endswith("_runtime"):
            around = [o for o in ops if o["tid"] == e["tid"] and o["start"] <= e["start"] and e["end"] <= o["end"]]
            if around:
                found[e["args"]["correlation"]] = max(around, key=lambda o: (o["start"], -o["end"]))["name"]
    return found


def rocprofv3(path: Path) -> Path:
    """As ``rocprofv3 --output-format json`` writes it."""
    symbols: dict[str, int] = {}
    calls: dict[str, int] = {}
    dispatches, copies, api = [], [], []
    for e in events():
        args, record = e.get("args", {}), {"start_timestamp": e["start"], "end_timestamp": e["end"]}
        if e["cat"] in (*DEVICE, "hip_runtime", "cuda_runtime"):
            record["correlation_id"] = {"internal": args["correlation"], "external": 0}
        if e["cat"] in ("kernel", "gpu_memset"):
            info = {"agent_id": {"handle": 77}, "kernel_id": symbols.setdefault(e["name"], len(symbols) + 1),
                    "workgroup_size": dict(zip("xyz", BLOCK, strict=True)), "grid_size": {"x": 64 * 256, "y": 2, "z": 1}}  # fmt: skip
            dispatches.append(
                record | {"kind": 2, "thread_id": 9, "dispatch_info": info, "stream_id": {"handle": args["stream"]}}
            )
        elif e["cat"] == "gpu_memcpy":
            copies.append(
                record | {"bytes": args["bytes"], "src_agent_id": {"handle": 1}, "dst_agent_id": {"handle": 77}}
            )
        elif e["cat"].endswith("_runtime"):
            api.append(
                record | {"kind": 1, "operation": calls.setdefault(e["name"], len(calls)), "thread_id": e["tid"]}
            )
    process = {
        "metadata": {"pid": 12, "command": ["/usr/bin/python"]},
        "agents": [{"id": {"handle": 1}, "type": 1}, {"id": {"handle": 77}, "type": 2, "product_name": "AMD Instinct MI300X", "cu_count": 304, "wave_front_size": 64}],
        "strings": {"buffer_records": [{"kind": "NONE", "operations": []}, {"kind": "HIP", "operations": list(calls)}]},
        "kernel_symbols": [{"kernel_id": number, "formatted_kernel_name": name} for name, number in symbols.items()],
        "buffer_records": {"kernel_dispatch": dispatches, "hip_api": api, "memory_copy": copies},
    }  # fmt: skip
    path.write_text(json.dumps({"rocprofiler-sdk-tool": [process]}))
    return path


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def message(*fields: tuple[int, int | str | bytes]) -> bytes:
    """Protobuf: numbers as varints, texts and messages with their length."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def xplane(path: Path) -> Path:
    """As JAX writes it: a plane of the device, one of the host, with the launching op as HLO op."""
    ops, device, host = launching_ops(), {}, {}
    names: dict[str, int] = {}
    for e in events():
        args = e.get("args", {})
        if e["cat"] not in DEVICE and not e["cat"].endswith("_runtime"):
            continue
        stats = [message((1, 1), (3, args["correlation"]))]
        if (op := ops.get(args["correlation"])) is not None:
            stats.append(message((1, 2), (5, op)))
        if e["cat"] == "kernel":
            stats.append(message((1, 3), (5, "grid:64,2,1 block:256,1,1 occ_pct:0")))
        number = names.setdefault(e["name"], len(names) + 1)
        event = message(
            (1, number), (2, e["start"] * 1000), (3, (e["end"] - e["start"]) * 1000), *((4, s) for s in stats)
        )
        where, key = (device, args["stream"]) if e["cat"] in DEVICE else (host, e["tid"])
        where.setdefault(key, []).append(event)
    tables = [(4, message((1, number), (2, message((1, number), (2, name))))) for name, number in names.items()]
    tables += [
        (5, message((1, i), (2, message((1, i), (2, name)))))
        for i, name in ((1, "correlation_id"), (2, "hlo_op"), (3, "kernel_details"), (4, "core_count"))
    ]
    planes = []
    for number, (name, lines, label) in enumerate(
        (("/device:GPU:0", device, "Stream #{}(Kernel)"), ("/host:CPU", host, "Host Threads/{}"))
    ):
        texts = [
            (3, message((1, key), (2, label.format(key)), *((4, e) for e in found))) for key, found in lines.items()
        ]
        planes.append(message((1, number), (2, name), *texts, *tables, (6, message((1, 4), (3, 304)))))
    path.write_bytes(message(*((1, plane) for plane in planes)))
    return path


def device_rows(table: TraceTable, *categories: str) -> list[tuple[str, int, int]]:
    """(name, start, end) of what ran on a device."""
    base = table.base_ns
    rows = table.rows_of([kind_of_category(c) for c in categories or DEVICE]).tolist()
    return [
        (table.name_of(r), base + int(table.start_ns[r]), base + int(table.start_ns[r] + table.duration_ns[r]))
        for r in rows
    ]


def _rocm_rows() -> tuple[list[Any], list[Any], list[Any], dict[str, int], dict[str, int]]:
    """(kernels, copies, calls) of the example as (start, end, name's number, stream or thread, correlation, bytes)."""
    symbols: dict[str, int] = {}
    strings: dict[str, int] = {"HIP_RUNTIME_API": 1, "KERNEL_DISPATCH": 2, "MEMORY_COPY_HOST_TO_DEVICE": 3}
    kernels, copies, calls = [], [], []
    for e in events():
        args, span = e.get("args", {}), (e["start"], e["end"])
        if e["cat"] in ("kernel", "gpu_memset"):
            number = symbols.setdefault(e["name"], len(symbols) + 1)
            kernels.append((*span, number, args["stream"], args["correlation"], 0))
        elif e["cat"] == "gpu_memcpy":
            copies.append((*span, 3, args["stream"], args["correlation"], args["bytes"]))
        elif e["cat"].endswith("_runtime"):
            number = strings.setdefault(e["name"], len(strings) + 1)
            calls.append((*span, number, e["tid"], args["correlation"], 0))
    return kernels, copies, calls, symbols, strings


def rocpd(path: Path, *, timestamps: bool = False) -> Path:
    """As ``rocprofv3`` writes by default; ``timestamps``: as its newer schema, with times and tracks apart."""
    kernels, copies, calls, symbols, strings = _rocm_rows()
    run, times, tracks, made = "_00001a2b_c3d4", [], {}, []

    def placed(row: tuple[int, ...], *, on_device: bool) -> tuple[int, ...]:
        start, end, _, lane, correlation, _ = row
        made.append((len(made) + 1, 2 if on_device else 1, correlation, 0, "{}"))
        place = (1, 12, 0, 4, 9, lane) if on_device else (1, 12, lane, 0, 0, 0)
        if timestamps:
            times.extend(((len(times) + 1, start), (len(times) + 2, end)))
            track = tracks.setdefault(place, len(tracks) + 1)
            return (track, len(times) - 1, len(times), len(made))
        return (*place, start, end, len(made))

    at = "track_id INT, start_id INT, end_id INT, event_id INT"
    if not timestamps:
        at = "nid INT, pid INT, tid INT, agent_id INT, queue_id INT, stream_id INT, start INT, end INT, event_id INT"
    sizes = ", ".join(f"{what}_size_{axis} INT" for what in ("workgroup", "grid") for axis in "xyz")
    tables = {
        f"rocpd_kernel_dispatch{run}": (f"{at}, kernel_id INT, {sizes}", [(*placed(k, on_device=True), k[2], *BLOCK, 64 * 256, 2, 1) for k in kernels]),
        f"rocpd_memory_copy{run}": (f"{at}, name_id INT, dst_agent_id INT, src_agent_id INT, size INT", [(*placed(c, on_device=True), 3, 4, 0, c[5]) for c in copies]),
        f"rocpd_region{run}": (f"{at}, name_id INT", [(*placed(c, on_device=False), c[2]) for c in calls]),
        f"rocpd_event{run}": ("id INT, category_id INT, stack_id INT, correlation_id INT, extdata TEXT", made),
        f"rocpd_string{run}": ("id INT, string TEXT", [(number, text) for text, number in strings.items()]),
        f"rocpd_info_kernel_symbol{run}": ("id INT, kernel_name TEXT, display_name TEXT", [(number, f"{name}.kd", name) for name, number in symbols.items()]),
        f"rocpd_info_agent{run}": ("id INT, type TEXT, type_index INT, product_name TEXT, extdata TEXT", [(0, "CPU", 0, "EPYC", "{}"), (4, "GPU", 0, "AMD Instinct MI300X", '{"cu_count": 304, "wave_front_size": 64}')]),
        f"rocpd_info_process{run}": ("id INT, pid INT, command TEXT", [(12, 12, "/usr/bin/python train.py")]),
        f"rocpd_info_thread{run}": ("id INT, tid INT", sorted({(c[3], c[3]) for c in calls})),
        f"rocpd_timestamp{run}": ("id INT, value INT", times),
        f"rocpd_track{run}": ("id INT, nid INT, pid INT, tid INT, agent_id INT, queue_id INT, stream_id INT", [(number, *place) for place, number in tracks.items()]),
    }  # fmt: skip
    return database(path, tables)


def rocprof_csv(folder: Path) -> Path:
    """As ``rocprofv3 --sys-trace --output-format csv`` writes its files beside each other."""
    kernels, copies, calls, symbols, strings = _rocm_rows()
    names, texts = ({number: text for text, number in known.items()} for known in (symbols, strings))
    sizes = [f"{what}_Size_{axis}" for what in ("Workgroup", "Grid") for axis in "XYZ"]
    files: dict[str, tuple[list[str], list[tuple[Any, ...]]]] = {
        "12_kernel_trace.csv": (
            ["Kind", "Agent_Id", "Queue_Id", "Stream_Id", "Thread_Id", "Dispatch_Id", "Kernel_Name", "Correlation_Id", "Start_Timestamp", "End_Timestamp", *sizes],
            [("KERNEL_DISPATCH", "Agent 4", 1, k[3], 9, i, names[k[2]], k[4], k[0], k[1], *BLOCK, 64 * 256, 2, 1) for i, k in enumerate(kernels)],
        ),
        "12_memory_copy_trace.csv": (
            ["Kind", "Direction", "Stream_Id", "Source_Agent_Id", "Destination_Agent_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"],
            [("MEMORY_COPY", texts[c[2]], c[3], "Agent 0", "Agent 4", c[4], c[0], c[1]) for c in copies],
        ),
        "12_hip_api_trace.csv": (
            ["Domain", "Function", "Process_Id", "Thread_Id", "Correlation_Id", "Start_Timestamp", "End_Timestamp"],
            [("HIP_RUNTIME_API", texts[c[2]], 12, c[3], c[4], c[0], c[1]) for c in calls],
        ),
        "12_agent_info.csv": (["Node_Id", "Agent_Type", "Wave_Front_Size", "Cu_Count", "Product_Name"], [(0, "CPU", 0, 0, "EPYC"), (4, "GPU", 64, 304, "AMD Instinct MI300X")]),
    }  # fmt: skip
    for name, (columns, rows) in files.items():
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
            writer.writerows([columns, *rows])
    return folder / "12_kernel_trace.csv"


def packets(path: Path) -> Path:
    """As ``tracelens convert`` writes a ``.pftrace``."""
    write_packets(load(EXAMPLE).table, path)
    return path
