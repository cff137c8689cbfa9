"""The recorded step of example_traces, written as other profilers would have recorded it."""

from __future__ import annotations

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

from tracelens.analysis.analyze import Options, analyze
from tracelens.analysis.loaded_trace import load

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
    """The sheet kernel_summary without what rests on categories of parents."""
    frame = analyze(load(path), Options()).frames["kernel_summary"]
    columns = [
        "parent_op",
        "kernel_name",
        "stream",
        "kernel_us_count",
        "kernel_us_sum",
        "kernel_us_min",
        "kernel_us_max",
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
