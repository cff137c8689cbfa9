"""CSV of rocprofv3 (``kernel_trace.csv`` and its kin beside it) and of rocprof v1 and v2 (``results.csv``)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.reading.formats.base import reader
from tracelens.trace.reading.rocm_words import call_category, copy_name, gpu_properties
from tracelens.trace.reading.row_blocks import Array, Ints, RowBlocks, coded
from tracelens.trace.reading.source import Source
from tracelens.trace.table import Recorder, TraceTable

if TYPE_CHECKING:
    import pandas as pd

RECORDER = Recorder(
    file="CSV of rocprof",
    no_shapes="rocprof records none",
    no_stacks="rocprof records none",
    shapes_option="torch.profiler with record_shapes=True",
)
#: What each column is called, by versions.
_START, _END = ("Start_Timestamp", "BeginNs"), ("End_Timestamp", "EndNs")
_KERNEL, _CALL, _COPY = ("Kernel_Name", "KernelName"), ("Function",), ("Direction",)
_AGENT, _TO, _FROM = ("Agent_Id", "gpu-id", "GPU_ID"), ("Destination_Agent_Id",), ("Source_Agent_Id",)
_STREAM, _QUEUE, _CORRELATION = ("Stream_Id",), ("Queue_Id", "queue-id"), ("Correlation_Id",)
_PROCESS, _THREAD, _DOMAIN, _DISPATCH = ("Process_Id", "pid"), ("Thread_Id", "tid"), ("Domain",), ("Dispatch_Id",)
_BLOCK, _GRID = (tuple(f"{what}_Size_{axis}" for axis in "XYZ") for what in ("Workgroup", "Grid"))
#: What files of one run are called behind their common start.
_KIN = ("kernel_trace.csv", "memory_copy_trace.csv", "hip_api_trace.csv", "hip_trace.csv", "hsa_api_trace.csv",
        "hsa_trace.csv", "rccl_api_trace.csv", "rccl_trace.csv", "marker_api_trace.csv",
        "marker_trace.csv")  # fmt: skip
_AGENTS = "agent_info.csv"
_LAST_NUMBER = lazy_pattern(r"(\d{1,9})\D*$")
_LARGEST = 2**62


def _is_csv(source: Source) -> bool:
    line = source.start.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0][:4000].decode("utf-8", "replace")
    columns = {column.strip().strip('"') for column in line.split(",")}
    return (
        not columns.isdisjoint(_START)
        and not columns.isdisjoint(_END)
        and not columns.isdisjoint((*_KERNEL, *_CALL, *_COPY))
    )


@reader("rocprof_csv", recognizes=_is_csv)
def read(source: Source) -> TraceTable:
    """The file, and those of the same run in its folder: calls and copies of a list of kernels, and its devices."""
    rows = RowBlocks(source.name)
    own = _frame(source.whole())
    if own is None:
        raise source.damage(RECORDER.file)
    found, beside = [own], _beside(source.path)
    for path in beside:
        source.limit.check_unpacked(path.name, path.stat().st_size)
        if path.name.endswith(_KIN) and (frame := _frame(path.read_bytes())) is not None:
            found.append(frame)
            rows.metadata.setdefault("files read beside it", []).append(path.name)
    devices = _devices(next((path for path in beside if path.name.endswith(_AGENTS)), None), found)
    rows.metadata |= {"deviceProperties": devices.properties} if devices.properties else {}
    for frame in found:
        _add(rows, frame, devices.numbers)
    return rows.table(RECORDER)


def _beside(path: Path) -> list[Path]:
    kin = next((ending for ending in _KIN if path.name.endswith(ending)), None)
    if kin is None:
        return []
    start = path.name.removesuffix(kin)
    return [
        other for ending in (*_KIN, _AGENTS) if (other := path.with_name(start + ending)) != path and other.is_file()
    ]


def _frame(content: bytes) -> pd.DataFrame | None:
    """The table as texts; None where it is none."""
    import pandas as pd

    try:
        return pd.read_csv(
            io.BytesIO(content), dtype=str, keep_default_na=False, on_bad_lines="skip", encoding_errors="replace",
            encoding="utf-8-sig",
        )  # fmt: skip
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeError, ValueError):
        return None


class _Devices:
    """``numbers``: a device by the number of its agent."""

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.properties: list[dict[str, Any]] = []


def _devices(listed: Path | None, frames: list[pd.DataFrame]) -> _Devices:
    found = _Devices()
    agents = _frame(listed.read_bytes()) if listed is not None else None
    if agents is not None and {"Node_Id", "Agent_Type"} <= set(agents.columns):
        for row in agents[agents["Agent_Type"] == "GPU"].to_dict("records"):
            found.numbers[_last_number(row["Node_Id"])] = len(found.properties)
            known = gpu_properties(
                row.get("Product_Name") or row.get("Name", ""),
                units=_last_number(row.get("Cu_Count", "")),
                wave=_last_number(row.get("Wave_Front_Size", "")),
            )
            found.properties.append({"id": len(found.properties), **known})
        return found
    of_kernels = {
        _last_number(text)
        for frame in frames
        if _column(frame, _KERNEL) is not None
        for text in set(_texts(frame, _AGENT))
    }
    found.numbers = {number: i for i, number in enumerate(sorted(of_kernels))}
    return found


def _add(rows: RowBlocks, frame: pd.DataFrame, devices: dict[int, int]) -> None:
    if "Counter_Name" in frame.columns and _column(frame, _DISPATCH) is not None:
        frame = frame.drop_duplicates(
            subset=[str(_column(frame, _DISPATCH)), *(c for c in ("Process_Id",) if c in frame)]
        )
    if _column(frame, _KERNEL) is not None:
        details: dict[str, Array] | None = None
        if {*_BLOCK, *_GRID} <= set(frame.columns):
            block, threads = (
                np.stack([np.maximum(_integers(frame, (c,)), 1) for c in columns], axis=1)
                for columns in (_BLOCK, _GRID)
            )
            details = {"grid": -(-threads // block), "block": block}
        _add_device(
            rows,
            "kernel",
            frame,
            _texts(frame, _KERNEL),
            coded(_agents(frame, _AGENT), lambda number: devices.get(number, 0)),
            details,
        )
    elif _column(frame, _COPY) is not None:
        target, origin = _agents(frame, _TO), _agents(frame, _FROM)
        agent = np.where(np.isin(target, list(devices)), target, origin)
        device = coded(agent, lambda number: devices.get(number, 0))
        _add_device(rows, "gpu_memcpy", frame, [copy_name(text) for text in _texts(frame, _COPY)], device, None)
    elif _column(frame, _CALL) is not None:
        _add_calls(rows, frame)


def _add_device(
    rows: RowBlocks,
    category: str,
    frame: pd.DataFrame,
    names: list[str],
    device: Ints,
    details: dict[str, Array] | None,
) -> None:
    stream = _integers(frame, _STREAM)
    stream = np.maximum(stream if (stream > 0).any() else _integers(frame, _QUEUE), 0)
    rows.add(
        category,
        start_ns=_integers(frame, _START, _LARGEST),
        end_ns=_integers(frame, _END, _LARGEST),
        name=rows.name_codes(names),
        lane=rows.lane_codes(device, stream),
        device=device,
        stream=stream,
        correlation=_integers(frame, _CORRELATION),
        details=details,
    )


def _add_calls(rows: RowBlocks, frame: pd.DataFrame) -> None:
    category = np.array([call_category(text) for text in _texts(frame, _DOMAIN)], object)
    name = rows.name_codes(_texts(frame, _CALL))
    lane = rows.lane_codes(_integers(frame, _PROCESS), _integers(frame, _THREAD))
    start, end = _integers(frame, _START, _LARGEST), _integers(frame, _END, _LARGEST)
    correlation = _integers(frame, _CORRELATION)
    for each in sorted(set(category.tolist())):
        here = category == each
        rows.add(
            each,
            start_ns=start[here],
            end_ns=end[here],
            name=name[here],
            lane=lane[here],
            correlation=correlation[here],
        )


def _column(frame: pd.DataFrame, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in frame.columns), None)


def _texts(frame: pd.DataFrame, names: tuple[str, ...]) -> list[str]:
    column = _column(frame, names)
    return [""] * len(frame) if column is None else [str(text) for text in frame[column].tolist()]


def _integers(frame: pd.DataFrame, names: tuple[str, ...], otherwise: int = -1) -> Ints:
    """A column of whole numbers; ``otherwise`` where it has none."""
    texts = _texts(frame, names)
    return np.array([int(t) if t.isdecimal() and len(t) < 19 else otherwise for t in texts], np.int64)


def _agents(frame: pd.DataFrame, names: tuple[str, ...]) -> Ints:
    texts = _texts(frame, names)
    numbers = {text: _last_number(text) for text in dict.fromkeys(texts)}
    return np.array([numbers[text] for text in texts], np.int64)


def _last_number(text: str) -> int:
    match = _LAST_NUMBER.search(text)
    return int(match[1]) if match else -1
