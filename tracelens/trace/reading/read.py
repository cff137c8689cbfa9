"""Reads a file of any profiler: a trace by the reader that recognizes its content, a memory snapshot of PyTorch's
allocator, or a log of the power that devices drew, a file of its own or counters of a recording.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit, end_stage, reading
from tracelens.trace.reading import formats
from tracelens.trace.reading.chrome.event_list import PIECE_BYTES, EventList, Progress, is_ascend, with_categories
from tracelens.trace.reading.source import Source
from tracelens.trace.table import TraceTable
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_S, counted

# Other contents people hand over, by their first bytes.
_SIGNATURES = (
    (b"SQLite format 3\x00", "a SQLite database, but not of Nsight Systems or rocprof: export the report again"),
    (b"<", "HTML or XML: give the profiler's JSON instead"),
    (
        b"\x80",
        "a Python pickle, which can run code when it is opened, and is not: for a memory snapshot export its JSON",
    ),
)
_NO_TIMES = "which has shapes but no times: give the Kineto trace of the same run"
_PATTERNS = (
    # GlobalMetadata, its length before it: a version (field 1), or attributes (2) with a name each; or the same as JSON
    (
        re.compile(rb"[\x03-\x7f](?:\n[\x01-\x1f]\d{1,4}\.\d|\x12[\x00-\x7f]\n\x06schema)"),
        f"a Chakra execution trace, {_NO_TIMES}",
    ),
    (re.compile(rb'\s*+\{\s*+"(?:version"\s*+:\s*+"\d|attr"\s*+:\s*+\[)'), f"a Chakra execution trace, {_NO_TIMES}"),
    (re.compile(rb'\s*+\{\s*+"schema"\s*+:\s*+"\d'), f"a PyTorch execution trace, {_NO_TIMES}"),
)
#: What a job writes of its collectives without a profiler.
INSPECTOR, FLIGHT_RECORDER = "NCCL Inspector", "flight recorder"
_OF_INSPECTOR = (b'"coll_perf"', b'"p2p_perf"', b'"dump_stats"')
_OF_RECORDER = (b'"collective_seq_id"', b'"pg_status"')
_LOG_BYTES, _LONGEST_HEADER = 8192, 4000
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def job_log(text: bytes) -> str | None:
    """Which log of a job's collectives a file is that begins with ``text``; None for anything else."""
    text = text[:_LOG_BYTES]
    if text.startswith(b"\x80"):
        return FLIGHT_RECORDER if b"pg_config" in text else None
    if not text.lstrip().startswith(b"{") or b'"traceEvents"' in text:
        return None
    if b'"header"' in text and b'"n_ranks"' in text and any(key in text for key in _OF_INSPECTOR):
        return INSPECTOR
    return FLIGHT_RECORDER if any(key in text for key in _OF_RECORDER) else None


def is_job_log(path: Path) -> bool:
    """As ``job_log``, of a file that may be packed by gzip; False for one that cannot be read."""
    text = _beginning(path)
    try:
        if text.startswith(b"\x1f\x8b"):
            text = zlib.decompressobj(31).decompress(text, _LOG_BYTES)
    except zlib.error:
        return False
    return job_log(text) is not None


def _beginning(path: Path) -> bytes:
    """Of a file; nothing of one that cannot be read, nor of a pipe, which may never begin."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_LOG_BYTES)
    except OSError:
        return b""


def other_format(text: bytes, name: str = "") -> str | None:
    """What a file is that begins with ``text``, and what to do with it; None for what may be a trace.

    ``name`` counts where nothing else speaks: reports of Nsight Systems are sealed.
    """
    if name.endswith(_REPORTS):
        return f"a report of Nsight Systems: export it with 'nsys export --type sqlite {name}', and give that file"
    if (log := job_log(text)) is not None:
        return f"the log of a job's collectives ({log}) and holds nothing else: use 'tracelens collectives {name}'"
    if device_log(text):
        return f"a log of devices: use 'tracelens report TRACE --power {name}', or collectives with it and the traces"
    for pattern, what in _PATTERNS:
        if pattern.match(text):
            return what
    for start, what in _SIGNATURES:
        if text.startswith(start):
            return what
    return None


def read_trace(
    path: str | os.PathLike[str],
    *,
    piece_bytes: int = PIECE_BYTES,
    progress: Progress | None = None,
    max_memory_gb: float | None = None,
) -> TraceTable:
    """The events of the file as columns, its metadata, and what was lost to damage.

    ``piece_bytes``: how much text is decoded at a time. ``max_memory_gb``: what the process may take (see
    ``memory_limit.MemoryLimit``). InputError when the file is missing, unreadable, empty, too large, or of no format
    that a reader knows; a damaged trace is read as far as it goes (``TraceTable.losses``).
    """
    path = Path(path)
    limit = MemoryLimit.of_gb(max_memory_gb)
    with reading(path), Source.opened(path, limit=limit, piece_bytes=piece_bytes, progress=progress) as source:
        read = formats.reader_of(source)
        if read is None and (what := other_format(source.start, source.name)) is not None:
            raise InputError(f"{source.name} is {what}")
        if read is not None:
            table = read(source)
        else:  # Kineto's JSON, whatever its damage: what no reader claims is read as such, or refused in its words
            table = EventList(
                source.stream, source.name, start=source.start, piece_bytes=source.piece_bytes, progress=progress
            ).table()
            table = with_categories(table) if is_ascend(table) else table
        end_stage()
        return table


_EXPORT = "export it with json.dump(torch.cuda.memory._snapshot(), file)"
#: What holds bytes of no recorded stack, and bytes of segments that no block uses.
NO_FRAMES, UNUSED = "(no frames recorded)", "(reserved, unused)"
# Frames of a stack that are told, from the innermost outside PyTorch.
_MOST_FRAMES = 3
_INACTIVE = "inactive"
# What the allocator does, as a change of (bytes in blocks, bytes in segments).
_CHANGES = {"alloc": (1, 0), "free_completed": (-1, 0), "segment_alloc": (0, 1), "segment_map": (0, 1),
            "segment_free": (0, -1), "segment_unmap": (0, -1)}  # fmt: skip


class Frame(msgspec.Struct, gc=False):
    """One line of a stack."""

    filename: str = ""
    name: str = ""
    line: int = 0


class _Block(msgspec.Struct, gc=False):
    size: int = 0
    state: str = _INACTIVE
    frames: list[Frame] = []


class _Segment(msgspec.Struct, gc=False):
    device: int = 0
    total_size: int = 0
    blocks: list[_Block] = []


class _Change(msgspec.Struct, gc=False):
    action: str = ""
    addr: int = 0
    size: int = 0
    frames: list[Frame] = []


class _SnapshotFile(msgspec.Struct, gc=False):
    segments: list[_Segment]
    device_traces: list[list[_Change]] = []


class DeviceMemory(Record, frozen=True, kw_only=True):
    """One device's bytes by the stack that allocated them, at the snapshot and at the recorded peak of the blocks.

    ``blocks``, ``largest_bytes``: by stack, at the snapshot. What no block uses of the segments is ``UNUSED``.
    """

    device: int
    end_bytes: Counter[str]
    peak_bytes: Counter[str]
    blocks: Counter[str]
    largest_bytes: Counter[str]


def read_memory_snapshot(path: Path) -> tuple[DeviceMemory, ...]:
    """Every device with segments; InputError for a file that is no snapshot in JSON. A pickle is not opened."""
    with reading(path):
        data = path.read_bytes()
    if data.startswith(b"\x80"):
        raise InputError(f"{path.name} is {other_format(data[:64])}: {_EXPORT}")
    try:
        file = msgspec.json.decode(data, type=_SnapshotFile, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path.name} is not a memory snapshot in JSON ({error}): {_EXPORT}") from error
    devices = sorted({segment.device for segment in file.segments})
    traces = dict(enumerate(file.device_traces))
    return tuple(_of_device(device, file.segments, traces.get(device, [])) for device in devices)


def _of_device(device: int, segments: list[_Segment], changes: list[_Change]) -> DeviceMemory:
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    own = [segment for segment in segments if segment.device == device]
    for segment in own:
        for block in segment.blocks:
            if block.state != _INACTIVE:
                stack = allocated_at(block.frames)
                held[stack] += block.size
                blocks[stack] += 1
                largest[stack] = max(largest[stack], block.size)
    reserved = sum(segment.total_size for segment in own)
    end = held.copy()
    end[UNUSED] = reserved - held.total()
    return DeviceMemory(
        device=device, end_bytes=end, peak_bytes=_at_peak(held, reserved, changes), blocks=blocks, largest_bytes=largest
    )


def _at_peak(held: Counter[str], reserved: int, changes: list[_Change]) -> Counter[str]:
    """Bytes by stack when the blocks held most: from the snapshot back through what was recorded before it."""
    # A release has no stack of its own: that of the allocation at its address
    stacks: dict[int, str] = {}
    steps = []
    for change in changes:
        sign, grown = _CHANGES.get(change.action, (0, 0))
        if sign > 0:
            stacks[change.addr] = allocated_at(change.frames)
        steps.append((stacks.get(change.addr, NO_FRAMES), sign * change.size, grown * change.size))
    total = best = held.total()
    at, best_reserved = len(steps), reserved
    for position in range(len(steps) - 1, -1, -1):
        _, size, grown = steps[position]
        total, reserved = total - size, reserved - grown
        if total > best:
            best, best_reserved, at = total, reserved, position
    found = held.copy()
    for stack, size, _ in steps[at:]:
        found[stack] -= size
    found[UNUSED] = best_reserved - best
    return found


def allocated_at(frames: list[Frame]) -> str:
    """The innermost lines of Python outside PyTorch; of PyTorch where there are no others."""
    python = [frame for frame in frames if frame.filename.endswith(".py")]
    own = [frame for frame in python if "/torch/" not in frame.filename.replace("\\", "/")] or python
    return " < ".join(f"{Path(f.filename).name}:{f.line} {f.name}" for f in own[:_MOST_FRAMES]) or NO_FRAMES


_LOG = "nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 20"
#: Words of a column of power, in lower case, that is not what was drawn.
_NO_WATTS = ("limit", "cap", "state", "manag")
_DEVICE = re.compile(r"^(?:index|(?:gpu|device)(?:[ _](?:id|index))?)$")
#: The clock of the multiprocessors (of AMD the first XCD's) as nvidia-smi, amd-smi, dcgmi and DCGM's exporter call it,
#: the better name first.
_CLOCKS = (re.compile(r"\bclocks\.(?:current\.)?sm\b|(?<![a-z])sm_?cl(?:oc)?k"),
           re.compile(r"\bclocks\.(?:current\.)?(?:gr|graphics)\b|(?<![a-z])gfx_?(?:0_)?cl(?:oc)?k"))  # fmt: skip
_NUMBER = re.compile(r"^(\d+(?:\.\d*)?) ?(?:W|MHz)?$")
#: A row of ``dcgmi dmon``, which writes no times: what stands before it, the device, values.
_DMON_ROW, _DMON = re.compile(r"\bGPU (\d+)\s(.*)"), re.compile(rb"[^\n]*#\s*Entity\b")
_DMON_TIMES = "dcgmi dmon -e 155,100 -d 100 | ts '%FT%.T%z'"
#: The longest log that is read, and how local times may be off UTC.
_MOST_COUNTERS, _MOST_US = 100_000, 2.0**52
_MOST_SAMPLES, _QUARTER_NS, _MOST_QUARTERS = 10_000_000, 15 * 60 * NS_PER_S, 56


class PowerLog(Record, frozen=True, kw_only=True, eq=False):
    """Watts that one device drew at times in ns: since the epoch, or of the clock of a place that is not known.

    ``clock_mhz``: of its multiprocessors, where that was sampled too. NaN is a value that was not.
    """

    source: str
    time_ns: npt.NDArray[np.int64]
    power_w: npt.NDArray[np.float64]
    is_utc: bool
    clock_mhz: npt.NDArray[np.float64] | None = None

    def during(self, start_ns: int, end_ns: int) -> PowerLog:
        """The log in UTC. InputError where no sample, or one of several time zones, lies between these times."""
        shifts = [0] if self.is_utc else [n * _QUARTER_NS for n in range(-_MOST_QUARTERS, _MOST_QUARTERS + 1)]
        fits = [by for by in shifts if ((self.time_ns + by >= start_ns) & (self.time_ns + by <= end_ns)).any()]
        if len(fits) == 1:
            return replace(self, time_ns=self.time_ns + fits[0], is_utc=True)
        if fits:
            raise InputError(
                f"{self.source}: its local times fit the trace in {len(fits)} time zones: cut it to the run"
            )
        lasts = f"{(end_ns - start_ns) / NS_PER_S:.3g} s"
        if any(self.time_ns[0] + by < start_ns and self.time_ns[-1] + by > end_ns for by in shifts):
            every = f"{float(np.median(np.diff(self.time_ns))) / NS_PER_S:.3g} s"
            raise InputError(
                f"{self.source} has a sample every {every}, and none in the {lasts} of the trace: sample more often, "
                f"with {_LOG}"
            )
        start = f"{datetime.fromtimestamp(start_ns // NS_PER_S, UTC):%Y-%m-%d %H:%M:%S} UTC"
        raise InputError(f"{self.source} has no sample of the time of the trace, {lasts} from {start} on")

    def clocks(self, start_ns: int, end_ns: int) -> npt.NDArray[np.float64]:
        """MHz of the samples between these times; none where clocks were not sampled."""
        within = (self.time_ns >= start_ns) & (self.time_ns <= end_ns)
        found = np.zeros(0) if self.clock_mhz is None else self.clock_mhz[within]
        return found[~np.isnan(found)]

    def joules(self, start_ns: npt.NDArray[np.int64], end_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """What the device took in each span, watts on a line between samples; NaN where the log does not cover it."""
        middle = (self.time_ns - self.time_ns[0]) / NS_PER_S
        total = np.append(0.0, np.cumsum(np.diff(middle) * (self.power_w[1:] + self.power_w[:-1]) / 2))
        at = [(np.asarray(each) - self.time_ns[0]) / NS_PER_S for each in (start_ns, end_ns)]

        def until(time_s: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            before = np.clip(np.searchsorted(middle, time_s, side="right") - 1, 0, len(middle) - 1)
            watts = np.interp(time_s, middle, self.power_w)
            return total[before] + (time_s - middle[before]) * (watts + self.power_w[before]) / 2

        held = np.searchsorted(middle, at[1], side="right") - np.searchsorted(middle, at[0])
        covered = (held > 1) & (at[0] >= middle[0]) & (at[1] <= middle[-1])
        return np.where(covered, until(at[1]) - until(at[0]), np.nan)


#: Of a counter's name: the device that it is of, and what is no device's; its unit, in W; the most that is one's power.
_OF_DEVICE = re.compile(r"(?:gpu|device|card)\D{0,2}(\d+)")
_NOT_DEVICE = re.compile(r"cpu|host|socket|dram|memory|soc\b|rail")
_UNITS = ((re.compile(r"\bmw\b|milliwatt"), 1e-3), (re.compile(r"\bkw\b|kilowatt"), 1e3))
_MOST_W = 1e4


def recorded_power(table: TraceTable, device: int | None) -> PowerLog | None:
    """What counters of power in the recording (phase C, such as NVML's or rocm-smi's) say of ``device``, or of the only
    one; None without two samples of one. Values without a unit are W. Of several counters of a device the one with the
    shortest name counts.
    """
    series: dict[tuple[str, int | None], dict[int, float]] = {}
    for index in table.power_counters[:: max(len(table.power_counters) // _MOST_COUNTERS, 1)].tolist():
        with contextlib.suppress(InputError):  # damaged, or changed since: reading says so
            name, number, moment, watts = _counter_sample(table.lookup.event(index))
            if watts is not None:
                series.setdefault((name, number), {})[moment + table.base_ns] = watts
    own = {key: found for key, found in series.items() if key[1] in (device, None) and len(found) > 1}
    if not own or (device is None and len({number for _, number in own}) > 1):
        return None
    found = own[min(own, key=lambda key: (key[1] is None, len(key[0]), key[0]))]
    return _log_of("the recording's counters", {at: (watts, math.nan) for at, watts in found.items()}, is_utc=True)


def _counter_sample(event: Mapping[str, Any]) -> tuple[str, int | None, int, float | None]:
    """(name, device, ns, W) of a counter; None in place of watts that it does not say."""
    name, arguments, time_us = str(event.get("name", "")).lower(), event.get("args"), event.get("ts")
    if not isinstance(arguments, dict) or not isinstance(time_us, int | float) or not abs(time_us) < _MOST_US:
        return name, None, 0, None
    device = _OF_DEVICE.search(name)
    number = str(device[1] if device else arguments.get("device", event.get("pid")))
    said = (_said_w(f"{name} {str(key).lower()}", value) for key, value in arguments.items() if key != "device")
    watts = next((each for each in said if each is not None), None)
    return name, int(number) if number.isdecimal() else None, round(time_us * 1000), watts


def _said_w(what: str, value: Any) -> float | None:
    """W that a value called ``what`` is; None for another figure, and for what is no device's power."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or any(word in what for word in _NO_WATTS) or _NOT_DEVICE.search(what):
        return None
    watts = value * next((scale for unit, scale in _UNITS if unit.search(what)), 1.0)
    return float(watts) if 0 <= watts < _MOST_W else None


def read_power_log(path: Path, device: int | None) -> PowerLog:
    """The samples of ``device``, or of the only one, in a CSV file with a header: a column of times, one of watts, and
    one that numbers devices where there are several; or in rows of ``dcgmi dmon`` with times before them. InputError,
    in one sentence, for anything else.
    """
    samples, is_utc = _samples(path, need_watts=True)
    drawn = {name: {time: both for time, both in own.items() if both[0] == both[0]} for name, own in samples.items()}
    drawn = {name: own for name, own in drawn.items() if own}
    only = next(iter(drawn)) if len(drawn) == 1 else ""
    found = drawn.get(str(device)) or drawn.get(only) or {}
    if len(found) < 2:
        of = f"of device {device} among those of {', '.join(sorted(drawn)[:4])}" if len(drawn) > 1 else "in it"
        raise InputError(f"{path.name}: fewer than two samples with watts {of}: record it with {_LOG}")
    is_other = device is not None and only not in ("", str(device))
    return _log_of(f"{path.name} (its device {only})" if is_other else path.name, found, is_utc=is_utc)


def read_device_logs(path: Path) -> dict[int, PowerLog]:
    """As ``read_power_log``, of every numbered device, also where clocks alone were sampled."""
    samples, is_utc = _samples(path, need_watts=False)
    return {int(name): _log_of(path.name, own, is_utc=is_utc) for name, own in samples.items() if name.isdecimal()}


def is_device_log(path: Path) -> bool:
    """Whether a file begins as a log of devices does; False for one that cannot be read."""
    return device_log(_beginning(path))


def device_log(text: bytes) -> bool:
    """Whether a file that begins with ``text`` is a log of devices: power or clocks by time."""
    if _DMON.match(text):
        return True
    line = text.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].decode("utf-8", "replace").lower()
    if not line[:1].isalpha() or len(line) > _LONGEST_HEADER:
        return False
    time, watts, _, clock = _log_columns([name.strip().strip('"') for name in line.split(",")])
    return time is not None and (watts is not None or clock is not None)


def _log_of(source: str, found: Mapping[int, tuple[float, float]], *, is_utc: bool) -> PowerLog:
    moments = np.array(sorted(found), np.int64)
    power_w, clock_mhz = np.array([found[each] for each in moments.tolist()], np.float64).reshape(-1, 2).T
    clocks = None if np.isnan(clock_mhz).all() else clock_mhz
    return PowerLog(source=source, time_ns=moments, power_w=power_w, is_utc=is_utc, clock_mhz=clocks)


def _rows(path: Path) -> tuple[list[str], list[list[str]]]:
    """(names of columns, the rows below)."""
    with reading(path), path.open(encoding="utf-8", errors="replace", newline="") as file:
        is_dmon = _DMON.match(file.readline().encode())
        file.seek(0)
        try:
            if is_dmon:
                return _dmon_rows(path.name, file)
            lines = list(csv.reader(file, skipinitialspace=True))
        except (ValueError, csv.Error) as error:
            raise InputError(f"{path.name} is not a CSV file with a header ({error}): record it with {_LOG}") from error
    if not lines:
        raise InputError(f"{path.name} is empty: record it with {_LOG}")
    head, *rows = lines
    if len(rows) > _MOST_SAMPLES:
        raise InputError(f"{path.name} has more than {_MOST_SAMPLES:,} samples: cut it to the run")
    return [name.strip().lower() for name in head], rows


def _dmon_rows(source: str, lines: Iterable[str]) -> tuple[list[str], list[list[str]]]:
    """``_rows`` of dcgmi's, whose header comes again and whose units have a line of their own."""
    names: list[str] = []
    rows = []
    for line in lines:
        if "#" in line:
            names = [name.lower().replace("powr", "power") for name in line.split("#", 1)[1].split()[1:]]
        elif (found := _DMON_ROW.search(line)) is not None:
            if not (recorded := line[: found.start()].rstrip()):
                raise InputError(f"{source}: rows of dcgmi without times: record it with {_DMON_TIMES}")
            rows.append([recorded, found[1], *found[2].split()])
    return ["time", "gpu", *names], rows


def _log_columns(names: list[str]) -> tuple[int | None, int | None, int | None, int | None]:
    """Where times, watts, devices and clocks stand."""
    time = (at for at, name in enumerate(names) if "time" in name)
    watts = (at for at, name in enumerate(names) if "power" in name and not any(word in name for word in _NO_WATTS))
    device = (at for at, name in enumerate(names) if _DEVICE.search(name))
    clock = (at for kind in _CLOCKS for at, name in enumerate(names) if kind.search(name) and "max" not in name)
    return next(time, None), next(watts, None), next(device, None), next(clock, None)


def _samples(path: Path, *, need_watts: bool) -> tuple[dict[str, dict[int, tuple[float, float]]], bool]:
    """((W, MHz) by time, by device), and whether all times are UTC."""
    source, (names, rows) = path.name, _rows(path)
    time, watts, number, clock = _log_columns(names)
    if time is None or (watts is None and (need_watts or clock is None)):
        raise InputError(f"{source} has no column of times and one of watts in its header: record it with {_LOG}")
    samples: dict[str, dict[int, tuple[float, float]]] = {}
    is_utc = True
    for line, row in enumerate(rows, 2):
        if any(row) and len(row) != len(names):
            raise InputError(f"{source}, line {line}: {counted(len(row), 'cell')} in place of {len(names)}")
        read = [_value(row, at) for at in (watts, clock)] if any(row) else []
        if all(value != value for value in read):  # [N/A], or a header again
            continue
        moment, zoned = _epoch_ns(row[time].strip(), f"{source}, line {line}")
        is_utc &= zoned
        of_device = samples.setdefault("" if number is None else row[number].strip().removeprefix("card"), {})
        if moment in of_device and number is None:  # of a numbered device, whose times are coarse, the last one counts
            raise InputError(f"{source}, line {line}: a second sample of one moment: record it with {_LOG}")
        of_device[moment] = (read[0], read[1])
    return samples, is_utc


def _value(row: list[str], at: int | None) -> float:
    """The number in a cell, NaN where there is none."""
    found = None if at is None else _NUMBER.search(row[at].strip())
    return math.nan if found is None else float(found[1])


def _epoch_ns(text: str, place: str) -> tuple[int, bool]:
    """(ns since the epoch, whether that is UTC) of a number of s, ms, us or ns, or of a date and time."""
    try:
        value = float(text)
    except ValueError:
        pass
    else:
        scale = next((each for each in (10**9, 10**6, 10**3, 1) if 1e18 <= value * each < 4e18), None)
        if scale is None:
            raise InputError(f"{place}: {text[:40]!r} is not a time since 1970")
        return round(value * scale), True
    try:
        moment = datetime.fromisoformat(text.replace("/", "-"))
    except ValueError as error:
        raise InputError(f"{place}: {text[:40]!r} is not a date and time") from error
    is_utc = moment.tzinfo is not None
    since = (moment if is_utc else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NS_PER_S + since.microseconds * 1000, is_utc
