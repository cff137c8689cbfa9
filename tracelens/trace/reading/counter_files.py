"""Hardware counters by kernel launch, from files of Nsight Compute, rocprofv3, rocprof-compute and CUPTI's range
profiler, in one set of figures; and which recorded kernels the counted launches are.
"""

from __future__ import annotations

import csv
import importlib
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit, reading
from tracelens.files.safe_text import clipped
from tracelens.trace.reading.formats.databases import MAGIC, Database, opened, rocpd_devices, rocpd_events
from tracelens.trace.reading.read import read_trace
from tracelens.trace.reading.source import Source
from tracelens.types.records import Record

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
#: Values by launch of each metric, in bytes, µs, bytes per second, percent or counts; NaN where it was not counted.
Metrics: TypeAlias = dict[str, Floats]

#: What a launch is known by beside its counters: (kernel, op or None, (process, device), grid, block). Of a grid (0, 0,
#: 0) is unknown, and (n, 0, 0) are n blocks in any arrangement; the same of the threads of a block.
_Sizes: TypeAlias = tuple[int, int, int]
_Place: TypeAlias = tuple[str, str | None, tuple[str, str], _Sizes, _Sizes]
_UNKNOWN = (0, 0, 0)
#: No counter reaches this; and the longest file that is read, in rows.
_LARGEST = 1e20
_MOST_ROWS = 20_000_000
_EXPORT = "export it with 'ncu --import FILE.ncu-rep --csv --page raw > counters.csv'"
_WANTED = f"give CSV of Nsight Compute ({_EXPORT}), counter_collection.csv or pmc_perf.csv of ROCm"


class CountedKernels(Record, frozen=True, kw_only=True, eq=False):
    """What a file counted, a launch each, in its order. ``place``: process and device, as it spells them.

    ``figures``: by name (``FIGURES``), NaN where not counted. ``stall``: why warps waited most, None where not counted,
    and ``stall_percent``, its share of all warp cycles. ``notes``: sentences on what could not be used.
    """

    source: str
    tool: str
    name: tuple[str, ...]
    op: tuple[str | None, ...]
    place: tuple[tuple[str, str], ...]
    grid: Ints
    block: Ints
    figures: Mapping[str, Floats]
    stall: tuple[str | None, ...]
    stall_percent: Floats
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, source: str, tool: str, places: Sequence[_Place], metrics: Metrics, notes: Sequence[str] = ()
    ) -> CountedKernels:
        """From metrics as the tool names them. InputError where there is no launch."""
        if not places:
            raise InputError(f"{source} has no counted kernel: {_WANTED}")
        name, op, place, grid, block = zip(*places, strict=True)
        stall, share = _stalls(metrics, len(places))
        figures = {key: make(metrics) for key, make in FIGURES.items()}
        return cls(
            source=source, tool=tool, name=name, op=op, place=place, grid=np.array(grid, np.int64),
            block=np.array(block, np.int64), stall=stall, stall_percent=share, notes=tuple(notes),
            figures={key: values for key, values in figures.items() if values is not None},
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.name)


def read_counters(path: Path) -> CountedKernels:
    """The counters of a file, whatever tool wrote it. InputError, in one sentence, for one that holds none."""
    with reading(path), path.open("rb") as file:
        start = file.read(64)
    if start.startswith(b"NVR\0") or path.suffix == ".ncu-rep":
        return _of_report(path)
    if start.startswith(MAGIC):
        return _of_rocpd(path)
    if start.startswith((b"\x1f\x8b", b"BZh", b"\xfd7z", b"PK")):
        with Source.opened(path, limit=MemoryLimit.of_gb(None)) as source:
            if source.start.lstrip()[:1] not in (b"{", b"["):  # rocprof-compute packs its CSV
                return _of_csv(path.name, source.file())
        return _of_ranges(path)
    return _of_ranges(path) if start.lstrip()[:1] in (b"{", b"[") else _of_csv(path.name, path)


_UNITS: dict[str, tuple[str, float]] = {
    "": ("count", 1.0), "%": ("percent", 1.0), "pct": ("percent", 1.0), "byte": ("byte", 1.0), "b": ("byte", 1.0),
    "second": ("second", 1e6), "s": ("second", 1e6), "byte/second": ("byte/second", 1.0),
    "byte/s": ("byte/second", 1.0),
}  # fmt: skip
#: Units of what is only counted, whatever a count is of.
_COUNTED = re.compile(
    r"(?:sector|request|inst|instruction|warp|cycle|block|thread|register|wavefront|sm|cluster|bank|line|tag|ratio)s?"
    r"(?:/(?:inst|instruction|warp|cycle|block|thread|request|sector|second|s)s?)?"
)
_PREFIXES = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}


def unit_of(text: str) -> tuple[str, float] | None:
    """What a unit is of, and the factor to its base (of times: µs); None for an unknown one. NVIDIA's K is 1,000.

    >>> unit_of("Mbyte"), unit_of("usecond"), unit_of("Gbyte/s"), unit_of("sector"), unit_of("furlong")
    (('byte', 1000000.0), ('second', 1.0), ('byte/second', 1000000000.0), ('count', 1.0), None)
    """
    text = text.strip()
    found = _UNITS.get(text) or (("count", 1.0) if _COUNTED.fullmatch(text.lower()) else None)
    if found is None:
        for length, prefixes in ((2, _BINARY), (1, _PREFIXES)):
            factor, rest = prefixes.get(text[:length]), _UNITS.get(text[length:].lower())
            if factor is not None and rest is not None and rest[0] in ("byte", "second", "byte/second"):
                return rest[0], rest[1] * factor
    return found


class _Values:
    """Values by launch and metric while a file is read, in base units; of a unit that is not known none are kept."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._cells: dict[str, list[tuple[int, float]]] = defaultdict(list)
        self._units: dict[str, tuple[str, float] | None] = {}
        self._unknown: dict[str, str] = {}

    def add(self, launch: int, metric: str, unit: str, text: str) -> None:
        """A cell as it is written; ``n/a``, ``nan`` and words are no value."""
        if unit not in self._units:
            self._units[unit] = unit_of(unit)
        scale = self._units[unit]
        try:
            value = float(text.replace(",", ""))
        except ValueError:
            return
        if not 0 <= value < _LARGEST:
            return
        if scale is None or (metric in NEEDED and scale[0] not in NEEDED[metric]):
            if metric in NEEDED:
                self._unknown.setdefault(metric, unit)
            return
        # Two figures of Nsight Compute's details are called Memory Throughput
        key = f"{metric} (rate)" if scale[0] == "byte/second" and "__" not in metric else metric
        self._cells[key].append((launch, value * scale[1]))

    def metrics(self, launches: int) -> Metrics:
        """The columns; of several instances of a counter the sum, of a derived share the mean."""
        found = {}
        for metric, cells in self._cells.items():
            at, values = np.array([cell[0] for cell in cells]), np.array([cell[1] for cell in cells])
            times, total = np.bincount(at, minlength=launches), np.bincount(at, values, launches)
            whole = total if metric == metric.upper() or metric.endswith("_sum") else total / np.maximum(times, 1)
            found[metric] = np.where(times > 0, whole, np.nan)
        return found

    @property
    def notes(self) -> tuple[str, ...]:
        """On units that are not known."""
        return tuple(
            f"{self.source}: the unit {clipped(unit, 20)!r} of {metric} is not known, so its figures are left out"
            for metric, unit in self._unknown.items()
        )


_TRIPLE = re.compile(r"\(?\s*(\d{1,10})\s*,\s*(\d{1,10})\s*,\s*(\d{1,10})\s*\)?")
_WHOLE = re.compile(r"\d{1,15}(?:\.0*)?")


def _sizes(text: str) -> _Sizes:
    """``(9, 32, 1)``, or a total.

    >>> _sizes("(9, 32, 1)"), _sizes("288"), _sizes("many")
    ((9, 32, 1), (288, 0, 0), (0, 0, 0))
    """
    match = _TRIPLE.fullmatch(text.strip())
    if match:
        return int(match[1]), int(match[2]), int(match[3])
    plain = text.replace(",", "").strip()
    return (int(float(plain)), 0, 0) if _WHOLE.fullmatch(plain) else _UNKNOWN


def _of_csv(source: str, path: Path) -> CountedKernels:
    rows = _csv_rows(source, path)
    head = [name.strip() for name in next(rows)]
    at = {name: place for place, name in reversed([*enumerate(head)])}
    if "Metric Name" in at and "Metric Value" not in at:
        raise InputError(
            f"{source} sums launches up: run ncu without --print-summary, so that each launch has rows of its own"
        )
    if {"ID", "Kernel Name", "Metric Name", "Metric Value"} <= at.keys():
        return _of_ncu(source, at, rows)
    if {"ID", "Kernel Name"} <= at.keys():
        return _of_ncu_wide(source, head, at, rows)
    if {"Counter_Name", "Counter_Value", "Kernel_Name"} <= at.keys():
        return _of_rocprof(source, at, rows)
    return _of_rocprof_wide(source, head, at, rows)


def _csv_rows(source: str, path: Path) -> Iterator[list[str]]:
    """The header, which stands behind what the tool said, then the rows below it."""
    kernel = ("Kernel Name", "Kernel_Name", "KernelName")
    columns, count = 0, 0
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            for row in csv.reader(line for line in file if not line.startswith("==")):
                if not columns and any(cell.strip() in kernel for cell in row):
                    columns = len(row)
                    yield row
                elif 1 < len(row) <= columns:
                    count += 1
                    yield row + [""] * (columns - len(row))
                if count > _MOST_ROWS:
                    raise InputError(f"{source} has more than {_MOST_ROWS:,} rows: count fewer kernels")
    except (csv.Error, OSError) as error:
        raise InputError(f"{source} cannot be read as CSV: {error}") from error
    if not columns:
        raise InputError(f"{source} has no column of kernel names: {_WANTED}")


#: Metrics of Nsight Compute that say what a launch was, by either page: grid and block.
_NCU_SIZES = (("launch__grid_size", "Grid Size"), ("launch__block_size", "Block Size"))


def _of_ncu(source: str, at: Mapping[str, int], rows: Iterable[list[str]]) -> CountedKernels:
    """``--csv`` of any page: a row per launch and metric."""
    values, numbers = _Values(source), dict[Any, int]()
    places: list[_Place] = []
    number, process, unit = at["ID"], at.get("Process ID"), at.get("Metric Unit")
    name, value = at["Metric Name"], at["Metric Value"]
    for row in rows:
        if row[number].isdecimal():
            key = (row[process] if process is not None else "", row[number])
            launch = numbers.setdefault(key, len(places))
            if launch == len(places):
                places.append(_ncu_place(row, at))
            values.add(launch, row[name].strip(), "" if unit is None else row[unit], row[value])
    return _ncu(source, places, values)


def _ncu_place(row: list[str], at: Mapping[str, int]) -> _Place:
    process, device = (row[at[column]] if column in at else "" for column in ("Process ID", "Device"))
    grid, block = (_sizes(row[at[name]]) if name in at else _UNKNOWN for _, name in _NCU_SIZES)
    return row[at["Kernel Name"]], None, (process, device), grid, block


def _of_ncu_wide(source: str, head: list[str], at: Mapping[str, int], rows: Iterable[list[str]]) -> CountedKernels:
    """``--csv --page raw``: a row per launch, a column per metric, their units in the first row."""
    values = _Values(source)
    places: list[_Place] = []
    columns = [(name, place) for place, name in enumerate(head) if name not in _OF_LAUNCH]
    units: list[str] | None = None
    for row in rows:
        if not row[at["ID"]].isdecimal():
            units = row if not places else units
            continue
        for metric, place in columns:
            if row[place]:
                values.add(len(places), metric, "" if units is None else units[place], row[place])
        places.append(_ncu_place(row, at))
    return _ncu(source, places, values)


_OF_LAUNCH = {"ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream",
              "Block Size", "Grid Size", "Device", "CC"}  # fmt: skip


def _ncu(source: str, places: list[_Place], values: _Values) -> CountedKernels:
    metrics = values.metrics(len(places))
    totals = [_first(metrics, *names) for names in _NCU_SIZES]
    for launch, (name, op, place, *both) in enumerate(places):
        grid, block = (
            (int(total[launch]), 0, 0)
            if sizes == _UNKNOWN and total is not None and 0 < total[launch] < 2**62
            else sizes
            for sizes, total in zip(both, totals, strict=True)
        )
        places[launch] = name, op, place, grid, block
    return CountedKernels.of(source, "Nsight Compute", places, metrics, values.notes)


_NAMES = ("Kernel_Name", "KernelName")
_PLACES = (("Process_Id", "PID", "pid"), ("Agent_Id", "GPU_ID", "gpu-id"))
_ROC_SIZES = (("Grid_Size", "GRD", "grd"), ("Workgroup_Size", "WGR", "wgr"))
_DISPATCH = ("Dispatch_Id", "Dispatch_ID", "Index")
#: Nanoseconds since the machine started; where rocprof-compute joined launches with ops, these have times as well.
_TIMES = (("Start_Timestamp", "Start_Timestamp_kernel", "BeginNs"), ("End_Timestamp", "End_Timestamp_kernel", "EndNs"))
_TIME = re.compile(r"(\d{1,19})(?:\.0*)?")
#: What a column of ROCm's files is that is no counter.
_NO_COUNTER = re.compile(
    r"(?:\w+_)?(?:id|name|size|timestamp|ns|index|signal|object|offset|hash)|pid|tid|grd|wgr|lds|scr|a?vgpr|sgpr|fbar"
    r"|sig|obj|(?:gpu|queue)-\w+|(?:arch|accum)_vgpr|vgprs?_count|\w*[vs]gpr_count|lds_\w+|scratch_\w+|wave_size"
    r"|queue_index|node|kernel_id|unnamed.*",
    re.IGNORECASE,
)
_DERIVED = {"FETCH_SIZE", "WRITE_SIZE", "FetchSize", "WriteSize"}


def _cell(row: list[str], at: Mapping[str, int], names: tuple[str, ...]) -> str:
    """Of the first of these columns that there is."""
    return next((row[at[name]].strip() for name in names if name in at), "")


def _rocm_place(row: list[str], at: Mapping[str, int]) -> _Place:
    threads, block = (_sizes(_cell(row, at, names)) for names in _ROC_SIZES)
    total, size = (math.prod(n or 1 for n in each) if each[0] else 0 for each in (threads, block))
    blocks = (-(-total // size), 0, 0) if 0 < size < 2**62 and 0 < total < 2**62 else _UNKNOWN
    process, device = (_cell(row, at, names) for names in _PLACES)
    return (
        _cell(row, at, _NAMES),
        _cell(row, at, ("Operator_Name",)) or None,
        (process, device and f"agent {device}"),  # ROCm numbers CPUs and GPUs together
        blocks,
        (size if size < 2**62 else 0, 0, 0),
    )


def _times(row: list[str], at: Mapping[str, int]) -> tuple[int, int]:
    """Begin and end of a launch in ns; (0, 0) where they are not there."""
    found = (_TIME.fullmatch(_cell(row, at, names)) for names in _TIMES)
    begin, end = (int(each[1]) if each else 0 for each in found)
    return (begin, end) if 0 < begin < end else (0, 0)


def _add_time(values: _Values, launch: int, times: tuple[int, int]) -> None:
    if times[1]:
        values.add(launch, "duration", "ns", str(times[1] - times[0]))


def _of_rocprof(source: str, at: Mapping[str, int], rows: Iterable[list[str]]) -> CountedKernels:
    """A row per dispatch and counter: counter_collection.csv of rocprofv3. In torch_trace/consolidated.csv, which is in
    the order of ops, a dispatch is known by its time.
    """
    values, numbers = _Values(source), dict[Any, int]()
    places: list[_Place] = []
    dispatch = next((at[name] for name in _DISPATCH if name in at), None)
    for line, row in enumerate(rows if dispatch is not None else sorted(rows, key=lambda row: _times(row, at))):
        place, times = _rocm_place(row, at), _times(row, at)
        known_by = row[dispatch] if dispatch is not None else (place[0], *times) if times[1] else line
        launch = numbers.setdefault((place[2][0], known_by), len(places))
        if launch == len(places):
            places.append(place)
            _add_time(values, launch, times)
        if place[1] == places[launch][1]:  # of a launch in two ops the counts are there twice
            values.add(launch, row[at["Counter_Name"]].strip(), "", row[at["Counter_Value"]])
    return _rocm(source, "rocprofv3", places, values)


def _of_rocprof_wide(source: str, head: list[str], at: Mapping[str, int], rows: Iterable[list[str]]) -> CountedKernels:
    """pmc_perf.csv of rocprof-compute, and what rocprof v1 and v2 write: a row per dispatch, a column per counter."""
    columns = [(name, place) for place, name in enumerate(head) if name in _DERIVED or not _NO_COUNTER.fullmatch(name)]
    if not any(name in at for name in _NAMES) or not columns:
        raise InputError(f"{source} has no counters by kernel: {_WANTED}")
    values = _Values(source)
    places: list[_Place] = []
    for row in rows:
        for metric, column in columns:
            values.add(len(places), metric, "", row[column])
        _add_time(values, len(places), _times(row, at))
        places.append(_rocm_place(row, at))
    return _rocm(source, "rocprof-compute", places, values)


_INSTANCE = re.compile(r"(\w+)\[\d+\]")


def _rocm(source: str, tool: str, places: list[_Place], values: _Values) -> CountedKernels:
    metrics = values.metrics(len(places))
    parts: dict[str, list[Floats]] = defaultdict(list)
    for name, column in metrics.items():
        if match := _INSTANCE.fullmatch(name):
            parts[f"{match[1]}_sum"].append(column)
    metrics |= {name: np.sum(columns, axis=0) for name, columns in parts.items() if name not in metrics}
    for name in [name for name in metrics if name.endswith("_sum")]:  # the newer spelling of a counter of device memory
        metrics.setdefault(name.replace("TCC_EA_", "TCC_EA0_"), metrics[name])
    return CountedKernels.of(source, tool, places, metrics, values.notes)


def _of_report(path: Path) -> CountedKernels:
    """A report of Nsight Compute, by NVIDIA's own Python reader. Values are in base units, named for known chips."""
    try:
        reader = importlib.import_module("ncu_report")
    except ImportError:
        raise InputError(
            f"{path.name} is a report of Nsight Compute, which only NVIDIA's module ncu_report reads: "
            f"'pip install ncu-report', or {_EXPORT}"
        ) from None
    values = _Values(path.name)
    places: list[_Place] = []
    try:
        report = reader.load_report(str(path))
        ranges = [report.range_by_idx(number) for number in range(report.num_ranges())]
        for action in (each.action_by_idx(number) for each in ranges for number in range(each.num_actions())):
            for name in action.metric_names():
                metric = action.metric_by_name(name)
                value = metric.value()
                if isinstance(value, int | float):
                    values.add(len(places), name, metric.unit() or _base_unit(name), repr(value))
            kernel, there = str(action.name(action.NameBase_DEMANGLED)), set(action.metric_names())
            device = str(_metric(action, _NCU_DEVICE)) if _NCU_DEVICE in there else ""
            grid, block = (
                [_metric(action, name) if name in there else 0 for name in names] for names in _NCU_DIMENSIONS
            )
            places.append((kernel, None, ("", device), (grid[0], grid[1], grid[2]), (block[0], block[1], block[2])))
    except (RuntimeError, AttributeError, ValueError, TypeError, ArithmeticError) as error:
        raise InputError(f"{path.name} cannot be read by ncu_report ({error}): {_EXPORT}") from error
    if not places:
        raise InputError(f"{path.name} is damaged, or newer than the installed ncu_report: {_EXPORT}")
    return _ncu(path.name, places, values)


def _metric(action: Any, name: str) -> int:
    metric = action.metric_by_name(name)
    value = None if metric is None else metric.value()
    return int(value) if isinstance(value, int | float) and 0 < value < 2**62 else 0


_NCU_DEVICE = "device__attribute_device_index"
_NCU_DIMENSIONS = tuple([f"launch__{what}_dim_{axis}" for axis in "xyz"] for what in ("grid", "block"))
_PMC_TABLE = re.compile(r"rocpd_pmc_event((?:_[0-9a-fA-F]{1,40}){0,8})")


def _of_rocpd(path: Path) -> CountedKernels:
    """A database of rocprofv3 (its default): counters of dispatches, by process."""
    values = _Values(path.name)
    places: list[_Place] = []
    with Source.opened(path, limit=MemoryLimit.of_gb(None)) as source, opened(source) as database:
        for run in sorted(match[1] for name in database.tables if (match := _PMC_TABLE.fullmatch(name))):
            names: dict[str, str] = dict(database.texts(f"rocpd_info_pmc{run}", "id", "name"))  # type: ignore[arg-type]
            counts = database.texts(f"rocpd_pmc_event{run}", "event_id", "pmc_id", "value", "sample_id")
            launch_of = _add_dispatches(database, run, values, places) if counts else {}
            for event, counter, value, sample in counts:
                if event in launch_of and counter in names and not sample:  # samples are of streaming counters
                    values.add(launch_of[event], names[counter], "", value)
    return _rocm(path.name, "rocprofv3", places, values)


def _add_dispatches(database: Database, run: str, values: _Values, places: list[_Place]) -> dict[str, int]:
    """Adds the launches of a process, in their order; of each event of a launch its number."""
    symbols = database.texts(f"rocpd_info_kernel_symbol{run}", "id", "display_name", "kernel_name")
    names = {number: shown or name for number, shown, name in symbols}
    sizes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    columns = ("event_id", "kernel_id", "pid", "agent_id", "start", "end", *sizes)
    found = rocpd_events(database, run, "kernel_dispatch", "dispatch_id", "kernel_id", *sizes)
    devices = rocpd_devices(database, run)
    launch_of: dict[str, int] = {}
    for row in np.argsort(found["dispatch_id"], kind="stable").tolist():
        event, kernel, process, agent, start, end, *counts = (int(found[name][row]) for name in columns)
        threads, block = (tuple(min(max(n, 1), 2**40) for n in part) for part in (counts[:3], counts[3:]))
        x, y, z = (-(-total // size) for total, size in zip(threads, block, strict=True))
        launch_of[str(event)] = len(places)
        values.add(len(places), "duration", "ns", str(end - start))
        name = names.get(str(kernel), f"(kernel {kernel})")
        device = str(devices[agent][1]) if agent in devices else f"agent {agent}"
        places.append((name, None, (str(process), device), (x, y, z), (block[0], block[1], block[2])))
    return launch_of


#: How Kineto calls a range of CUPTI's range profiler, in its category.
RANGE = "cuda_profiler_range"
#: The one range of a device that was not counted by kernel.
_WHOLE_RUN = "__profile__"


def _of_ranges(path: Path) -> CountedKernels:
    """A trace of torch.profiler with ``profiler_metrics``: a range per kernel, its counters as arguments."""
    table = read_trace(path)
    code = table.categories.index(RANGE) if RANGE in table.categories else -1
    rows = np.flatnonzero(table.category == code) if code >= 0 else np.zeros(0, np.int64)
    if not len(rows):
        raise InputError(
            f"{path.name} is a trace without counters by kernel (ranges of CUPTI's profiler, recorded with "
            "experimental_config=_ExperimentalConfig(profiler_metrics=[...], profiler_measure_per_kernel=True))"
        )
    values = _Values(path.name)
    places: list[_Place] = []
    kernels = [row for row in rows[np.argsort(table.start_ns[rows], kind="stable")] if table.name_of(row) != _WHOLE_RUN]
    if not kernels:
        raise InputError(
            f"{path.name} has counters of the whole recording, not of its kernels: record it with "
            "experimental_config=_ExperimentalConfig(profiler_metrics=[...], profiler_measure_per_kernel=True)"
        )
    for row in kernels:
        for name, value in table.args(row).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.add(len(places), name, _base_unit(name), repr(value))
        places.append((table.name_of(row), None, ("", str(table.pid_of(row))), _UNKNOWN, _UNKNOWN))
    return CountedKernels.of(path.name, "CUPTI's range profiler", places, values.metrics(len(places)), values.notes)


def _first(metrics: Metrics, *names: str) -> Floats | None:
    return next((metrics[name] for name in names if name in metrics), None)


def _of(*names: str, times: float = 1.0) -> Callable[[Metrics], Floats | None]:
    """The first of these metrics, in another unit."""

    def make(metrics: Metrics) -> Floats | None:
        found = _first(metrics, *names)
        return None if found is None else found * times

    return make


def _either(*makers: Callable[[Metrics], Floats | None]) -> Callable[[Metrics], Floats | None]:
    """What the first of these knows, launch by launch."""

    def make(metrics: Metrics) -> Floats | None:
        found: Floats | None = None
        for maker in makers:
            values = maker(metrics)
            if values is not None:
                found = values if found is None else np.where(np.isnan(found), values, found)
        return found

    return make


def _share(part: str, *whole: str) -> Callable[[Metrics], Floats | None]:
    """A counter over the sum of others, in percent."""

    def make(metrics: Metrics) -> Floats | None:
        if part not in metrics or not all(name in metrics for name in whole):
            return None
        total = np.sum([metrics[name] for name in whole], axis=0)
        return np.divide(100.0 * metrics[part], total, out=np.full(len(total), np.nan), where=total > 0)

    return make


#: Bytes of a sector of NVIDIA's L2 and DRAM counters, and of a line of AMD's L2 (MI200 and later).
_SECTOR, _LINE = 32.0, 128.0


def _amd_read(metrics: Metrics) -> Floats | None:
    """FETCH_SIZE as rocprofv3 defines it: requests of 32, 64 and, on MI300, 128 bytes (TCC_BUBBLE)."""
    every, small = metrics.get("TCC_EA0_RDREQ_sum"), metrics.get("TCC_EA0_RDREQ_32B_sum")
    large = metrics.get("TCC_BUBBLE_sum")
    if every is None or small is None or (large is None and "TCC_EA_RDREQ_sum" not in metrics):
        return None
    large = np.zeros(len(every)) if large is None else large
    return 32.0 * small + 64.0 * (every - small - large) + 128.0 * large


def _amd_written(metrics: Metrics) -> Floats | None:
    """WRITE_SIZE as rocprofv3 defines it: requests of 32 and 64 bytes."""
    every, large = metrics.get("TCC_EA0_WRREQ_sum"), metrics.get("TCC_EA0_WRREQ_64B_sum")
    return None if every is None or large is None else 64.0 * large + 32.0 * (every - large)


def _moved(metrics: Metrics) -> Floats | None:
    read, written = _HBM_READ(metrics), _HBM_WRITTEN(metrics)
    return None if read is None or written is None else read + written


def _over_time(*names: str) -> Callable[[Metrics], Floats | None]:

    def make(metrics: Metrics) -> Floats | None:
        rate, time = _first(metrics, *names), _DURATION(metrics)
        return None if rate is None or time is None else rate * time / 1e6

    return make


_DURATION = _of("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration", "duration")
_HBM_READ = _either(
    _of("dram__bytes_read.sum", "dram__bytes_op_read.sum"), _of("dram__sectors_read.sum", times=_SECTOR),
    _over_time("dram__bytes_read.sum.per_second"), _of("FETCH_SIZE", "FetchSize", times=1024.0), _amd_read,
)  # fmt: skip
_HBM_WRITTEN = _either(
    _of("dram__bytes_write.sum", "dram__bytes_op_write.sum"), _of("dram__sectors_write.sum", times=_SECTOR),
    _over_time("dram__bytes_write.sum.per_second"), _of("WRITE_SIZE", "WriteSize", times=1024.0), _amd_written,
)  # fmt: skip
_PEAK = (".avg.pct_of_peak_sustained_active", ".avg.pct_of_peak_sustained_elapsed", ".sum.pct_of_peak_sustained_active",
         ".sum.pct_of_peak_sustained_elapsed")  # fmt: skip


def _peaks(*units: str) -> tuple[str, ...]:
    """How busy parts of the hardware are, as Nsight Compute spells the metric; active cycles before elapsed ones."""
    return tuple(f"{unit}{peak}" for peak in _PEAK for unit in units)


#: Each figure of a launch, by the documented metrics of NVIDIA and AMD.
FIGURES: dict[str, Callable[[Metrics], Floats | None]] = {
    "duration_us": _DURATION,
    "hbm_read_bytes": _HBM_READ,
    "hbm_bytes": _either(
        _of("dram__bytes.sum"), _moved, _of("dram__sectors.sum", times=_SECTOR),
        _over_time("dram__bytes.sum.per_second", "Memory Throughput (rate)"),
    ),
    "l2_bytes": _either(
        _of("lts__t_bytes.sum"), _of("lts__t_sectors.sum", times=_SECTOR), _of("TCC_REQ_sum", times=_LINE)
    ),
    "l2_hit_percent": _either(
        _of("lts__t_sector_hit_rate.pct", "L2 Hit Rate", "L2CacheHit"),
        _share("TCC_HIT_sum", "TCC_HIT_sum", "TCC_MISS_sum"),
    ),
    "hbm_percent": _of(
        *_peaks("dram__throughput", "gpu__dram_throughput", "dram__bytes", "dram__cycles_active"), "DRAM Throughput"
    ),
    "tensor_percent": _of(
        *_peaks("sm__pipe_tensor_cycles_active", "sm__inst_executed_pipe_tensor",
                "sm__pipe_tensor_op_hmma_cycles_active", "sm__inst_executed_pipe_tensor_op_hmma"),
        "MfmaUtil",
    ),
    "vector_percent": _of(
        *_peaks("sm__pipe_fma_cycles_active", "sm__inst_executed_pipe_fma", "sm__pipe_fmaheavy_cycles_active",
                "sm__inst_executed_pipe_alu", "sm__pipe_alu_cycles_active"),
        "VALUBusy",
    ),
    "occupancy_percent": _of(
        "sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy", "OccupancyPercent",
    ),
    "bank_conflict_percent": _either(
        _share("l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
        _share("SQ_LDS_BANK_CONFLICT", "SQ_LDS_IDX_ACTIVE"),
    ),
    "shared_memory_percent": _of(
        *_peaks("l1tex__data_pipe_lsu_wavefronts_mem_shared", "l1tex__data_pipe_lsu_wavefronts"), "LdsUtil"
    ),
    "sm_active_percent": _either(
        _share("sm__cycles_active.avg", "sm__cycles_elapsed.max"), _share("SM Active Cycles", "Elapsed Cycles"),
        _share("sm__cycles_active.avg", "gpc__cycles_elapsed.max"),
    ),
    "waves_per_sm": _of("launch__waves_per_multiprocessor", "Waves Per SM"),
}  # fmt: skip

#: What the unit of a metric must be of.
NEEDED: dict[str, frozenset[str]] = {
    **{
        name: frozenset({"byte"})
        for name in ("dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "dram__bytes_op_read.sum",
                     "dram__bytes_op_write.sum", "lts__t_bytes.sum")
    },
    **{name: frozenset({"second"}) for name in ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")},
    **{
        name: frozenset({"percent"})
        for name in ("lts__t_sector_hit_rate.pct", "L2 Hit Rate", "Achieved Occupancy", "DRAM Throughput")
    },
    "dram__bytes.sum.per_second": frozenset({"byte/second"}),
}  # fmt: skip


def _base_unit(metric: str) -> str:
    """What a metric is in where its unit is not written: times are ns."""
    found = next(iter(NEEDED.get(metric, ("",))))
    return {"second": "ns", "percent": "%"}.get(found, found)


#: Families of stall metrics, the first that a launch has counts: of which the reason is the group.
_STALLS = (
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active(?:\.\w+)?"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+?)(?:\.\w+)?"),
    re.compile(r"smsp__warp_issue_stalled_(\w+?)_per_warp_active(?:\.\w+)?"),
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+?)(?<!_not_issued)"),
    re.compile(r"Stall ([A-Z][\w ]+)"),
)
#: What is no wait: an instruction was issued, or could have been.
_NO_STALL = {"selected", "not_selected"}
#: AMD's counters of waiting waves, in units of four cycles like SQ_WAVE_CYCLES.
_AMD_STALLS = {"SQ_WAIT_INST_LDS": "lds_issue", "SQ_WAIT_ANY": "any_wait"}


def _stalls(metrics: Metrics, launches: int) -> tuple[tuple[str | None, ...], Floats]:
    """Of each launch the most frequent reason of a warp to wait, and its share of all warp cycles in percent."""
    of_reason, total = _waits(metrics)
    if not of_reason:
        return (None,) * launches, np.full(launches, np.nan)
    reasons = [reason for reason in of_reason if reason not in _NO_STALL] or [*of_reason]
    waits = np.nan_to_num(np.array([of_reason[reason] for reason in reasons]))
    most, longest = waits.argmax(axis=0), waits.max(axis=0)
    known = (longest > 0) & (total > 0)
    return (
        tuple(reasons[at] if is_known else None for at, is_known in zip(most.tolist(), known.tolist(), strict=True)),
        np.divide(100 * longest, total, out=np.full(launches, np.nan), where=known),
    )


def _waits(metrics: Metrics) -> tuple[dict[str, Floats], Floats]:
    """What warps waited for, by reason, and all their cycles, in one unit; nothing where only one reason is known."""
    for pattern in _STALLS:
        found = {
            match[1].lower().replace(" ", "_"): values
            for name, values in metrics.items()
            if (match := pattern.fullmatch(name))
        }
        if len(found) > 1:
            return found, np.nan_to_num(np.array([*found.values()])).sum(axis=0)
    cycles = metrics.get("SQ_WAVE_CYCLES")
    if cycles is None:
        return {}, np.zeros(0)
    return {reason: metrics[name] for name, reason in _AMD_STALLS.items() if name in metrics}, np.nan_to_num(cycles)


_CAST = re.compile(r"\((?:unsigned |signed )?(?:bool|char|short|int|long|long long)\)")
_SUFFIX = re.compile(r"(?<=\d)[uUlL]{1,3}\b")
_CLONE = re.compile(r"\[clone [^\[\]]*\]|\.kd$")
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::")
_LITERALS = {"true": "1", "false": "0"}

Spellings: TypeAlias = tuple[str, str, str, str]


def spellings(name: str) -> Spellings:
    """A kernel's name as profilers agree on it: as a whole, without namespaces, without template arguments, without
    both. What a kernel returns and takes, casts and suffixes of template arguments are set aside.

    >>> spellings("void at::native::add<(int)4, std::array<char *, (unsigned long)3>>(int, T2)")
    ('at::native::add<4,std::array<char*,3>>', 'add<4,std::array<char*,3>>', 'at::native::add', 'add')
    >>> spellings("void at::native::add<4, std::array<char*, 3ul> >(int, std::array<char*, 3ul>)")[0]
    'at::native::add<4,std::array<char*,3>>'
    """
    text = _UNNAMED.sub("", _CLONE.sub("", name.strip())).removeprefix("void ")
    text = _SUFFIX.sub("", _CAST.sub("", text))
    text = re.sub(r"\b(?:true|false)\b", lambda match: _LITERALS[match[0]], text)
    text = re.sub(r"\s+", "", text)
    plain: list[str] = []
    depth, end, last = 0, len(text), 0
    for at, letter in enumerate(text):
        if letter == "(" and depth == 0 and at and not text[:at].endswith("operator"):
            end = at
            break
        depth += letter == "<"
        if depth == 0:
            plain.append(letter)
            last = at + 1 if text[max(at - 1, 0) : at + 1] == "::" else last
        depth -= letter == ">" and depth > 0
    base = "".join(plain)
    return text[:end], text[last:end], base, base.rpartition("::")[2]


class RecordedKernels(Record, frozen=True, kw_only=True, eq=False):
    """Recorded device events in the order of their launches. ``name`` indexes ``names``; ``device`` and ``target`` are
    numbers: the target is what a counted launch is joined with. ``sizes``: (grid, block) of an event, None where not
    recorded.
    """

    names: Sequence[str]
    name: Ints
    device: Ints
    target: Ints
    sizes: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]] | None]


#: How a counted launch was joined.
BY_SEQUENCE, BY_GRID, BY_NAME = "sequence of launches", "name and grid", "name"
BY_COUNT = "name and grid, in order"
NO_NAME = "the trace has no kernel of this name"
NO_GRID = "the trace has no launch of this kernel with this grid and block"
SEVERAL_OPS = "several ops launch this kernel with this grid, and the order of launches does not tell which"


def joined(counted_kernels: CountedKernels, recorded: RecordedKernels) -> tuple[Ints, list[str]]:
    """Of each counted launch its target, -1 for none, and how it was joined, or why not.

    The launches of a process on a device, in their order, are looked for as a run in the recorded ones of the same
    kernels (or these in them), by name, grid and block. What no run tells is joined by name, grid and block where all
    recorded launches with these have one target, or where there are as many, or a whole number of times as many, in
    order.
    """
    target, how = np.full(len(counted_kernels), -1, np.int64), [NO_NAME] * len(counted_kernels)
    keys, of_name = _names_in_common(counted_kernels.name, recorded.names)
    code = np.array([-1 if at < 0 else of_name[at] for at in range(len(recorded.names))] or [-1], np.int64)
    of_event = code[recorded.name]
    devices = np.unique(recorded.device)
    for place in dict.fromkeys(counted_kernels.place):
        mine = np.array([each == place for each in counted_kernels.place]) & (keys >= 0)
        number = int(place[1]) if place[1].isdecimal() else -1
        there = np.isin(of_event, keys[mine])
        if len(devices) > 1 and number in devices:
            there &= recorded.device == number
        at, events = np.flatnonzero(mine), np.flatnonzero(there)
        goal, sizes = recorded.target[events], [recorded.sizes(event) for event in events.tolist()]
        grid, block = counted_kernels.grid[at], counted_kernels.block[at]
        ours, theirs, by_name = _numbered(keys[at], of_event[events], grid, block, sizes)
        run = _by_sequence(ours, theirs, goal)
        for launch in np.flatnonzero(run >= 0).tolist():
            target[at[launch]], how[at[launch]] = run[launch], BY_SEQUENCE
        for kernel in np.unique(ours[run < 0]).tolist():
            left = at[(ours == kernel) & (run < 0)]
            target[left], why = _by_key(len(left), goal[theirs == kernel], kernel in by_name)
            for launch in left.tolist():
                how[launch] = why
    return target, how


def _names_in_common(counted_names: Sequence[str], recorded_names: Sequence[str]) -> tuple[Ints, list[int]]:
    """A number per counted launch, and per recorded name, equal for the same kernel; -1 for a name of one side only.

    Names that end alike are compared as a whole where any of them agree so, else without namespaces, without template
    arguments, by their last part: what a tool leaves out hides no kernel, and what it says tells two kernels apart.
    """
    spelled = [{name: spellings(name) for name in set(names)} for names in (counted_names, recorded_names)]
    lasts: list[dict[str, set[Spellings]]] = [defaultdict(set), defaultdict(set)]
    for side, names in zip(lasts, spelled, strict=True):
        for each in names.values():
            side[each[-1]].add(each)
    number: dict[tuple[str, int, str], int] = {}
    of_last: dict[str, int] = {}
    for last in lasts[0].keys() & lasts[1].keys():
        one, other = lasts[0][last], lasts[1][last]
        # The first level of spelling at which the two groups of names have some in common
        both = ({each[level] for each in one} & {each[level] for each in other} for level in range(4))
        of_last[last], texts = next((level, texts) for level, texts in enumerate(both) if texts)
        for text in sorted(texts):
            number[last, of_last[last], text] = len(number)

    def key(name: str, side: int) -> int:
        each = spelled[side][name]
        level = of_last.get(each[-1], 3)
        return number.get((each[-1], level, each[level]), -1)

    keys = np.array([key(name, 0) for name in counted_names], np.int64)
    return keys, [key(name, 1) for name in recorded_names]


def _numbered(
    counted_names: Ints, recorded_names: Ints, grid: Ints, block: Ints, sizes: Sequence[Any]
) -> tuple[Ints, Ints, set[int]]:
    """A number per launch of either side, equal for the same name, grid and block, and those numbers that rest on the
    name alone: of kernels of which one side lacks the grid of a launch.
    """
    code: dict[Any, int] = {}

    def numbers(places: Iterable[Any]) -> Ints:
        return np.array([code.setdefault(place, len(code) + 1) for place in places], np.int64)

    unsized = {name for name, each in zip(recorded_names.tolist(), sizes, strict=True) if each is None}
    unsized |= set(counted_names[grid[:, 0] <= 0].tolist())
    whole = [bool((each[:, 1] > 0).all()) for each in (grid, block)]
    known = [True, bool((block[:, 0] > 0).all())]
    ours, theirs = (
        numbers(
            (name, None if name in unsized else _both(pair, whole, known))
            for name, pair in zip(names.tolist(), pairs, strict=True)
        )
        for names, pairs in (
            (counted_names, zip(grid.tolist(), block.tolist(), strict=True)), (recorded_names, sizes),
        )
    )  # fmt: skip
    return ours, theirs, {number for (name, place), number in code.items() if place is None}


def _both(pair: Sequence[Sequence[int]], whole: Sequence[bool], known: Sequence[bool]) -> tuple[object, ...]:
    """A grid and a block as both sides know them: in three sizes, or their product."""
    return tuple(
        (tuple(each) if is_whole else math.prod(n or 1 for n in each)) if is_known else None
        for each, is_whole, is_known in zip(pair, whole, known, strict=True)
    )


def _by_sequence(ours: Ints, theirs: Ints, goal: Ints) -> Ints:
    """The target of each of ours where one side, as a whole, is a run of the other; -1 where runs disagree."""
    found = np.full(len(ours), -1, np.int64)
    if not len(ours) or not len(theirs):
        return found
    length = min(len(ours), len(theirs))
    is_counted_less = len(ours) <= len(theirs)
    for at in _runs(theirs, ours) if is_counted_less else _runs(ours, theirs):
        if is_counted_less and (found == _CONTRARY).all():
            break
        here = slice(0, length) if is_counted_less else slice(at, at + length)
        goals = goal[at : at + length] if is_counted_less else goal
        found[here] = np.where((found[here] == -1) | (found[here] == goals), goals, _CONTRARY)
    return np.maximum(found, -1)


#: A launch that two runs have as different ones.
_CONTRARY = -2


def _runs(values: Ints, wanted: Ints) -> Iterator[int]:
    """Where ``wanted`` begins in ``values``."""
    text, piece = np.ascontiguousarray(values).tobytes(), np.ascontiguousarray(wanted).tobytes()
    at = text.find(piece)
    while at >= 0:
        if at % values.itemsize == 0:
            yield at // values.itemsize
        at = text.find(piece, at + 1)


def _by_key(launches: int, goal: Ints, is_by_name: bool) -> tuple[Ints, str]:
    """The targets of launches of one name, grid and block, whose recorded launches have these targets in order."""
    if not len(goal):
        return np.full(launches, -1, np.int64), NO_GRID
    if (goal == goal[0]).all():
        return np.full(launches, goal[0], np.int64), BY_NAME if is_by_name else BY_GRID
    if len(goal) % launches == 0:
        turns = goal.reshape(-1, launches)
        if (turns == turns[0]).all():
            return turns[0], BY_COUNT
    return np.full(launches, -1, np.int64), SEVERAL_OPS
