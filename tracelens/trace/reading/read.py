"""Reads a file of any profiler: a trace by the reader that recognizes its content, or a memory snapshot of PyTorch's
allocator.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import msgspec

from tracelens.errors import InputError
from tracelens.files.memory_limit import MemoryLimit, before_reading, end_stage
from tracelens.trace.reading import formats
from tracelens.trace.reading.chrome.event_list import PIECE_BYTES, EventList, Progress, is_ascend, with_categories
from tracelens.trace.reading.source import Source
from tracelens.trace.table import TraceTable
from tracelens.types.records import Record

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
_REPORTS = (".nsys-rep", ".qdrep", ".qdstrm")


def other_format(text: bytes, name: str = "") -> str | None:
    """What a file is that begins with ``text``, and what to do with it; None for what may be a trace.

    ``name`` counts where nothing else speaks: reports of Nsight Systems are sealed.
    """
    if name.endswith(_REPORTS):
        return f"a report of Nsight Systems: export it with 'nsys export --type sqlite {name}', and give that file"
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
    before_reading(path)
    try:
        with Source.opened(
            path, limit=MemoryLimit.of_gb(max_memory_gb), piece_bytes=piece_bytes, progress=progress
        ) as source:
            read = formats.reader_of(source)
            if read is None and (what := other_format(source.start, source.name)) is not None:
                raise InputError(f"{source.name} is {what}")
            table = read(source) if read is not None else _events(source)
            end_stage()
            return table
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror or error}") from error


def _events(source: Source) -> TraceTable:
    """Kineto's JSON, whatever its damage: what no other reader claims is read as such, or refused in its words."""
    table = EventList(
        source.stream,
        source.name,
        start=source.start,
        piece_bytes=source.piece_bytes,
        progress=source.progress,
    ).table()
    return with_categories(table) if is_ascend(table) else table


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
    before_reading(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path.name} cannot be read: {error.strerror}") from error
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
