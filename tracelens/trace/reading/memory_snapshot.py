"""A snapshot of PyTorch's caching allocator, as JSON: the blocks that stand, and what came and went before."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from tracelens.errors import InputError
from tracelens.files.before_reading import before_reading
from tracelens.lazy.records import dataclass
from tracelens.trace.reading.other_formats import named

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


class _File(msgspec.Struct, gc=False):
    segments: list[_Segment]
    device_traces: list[list[_Change]] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
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
        raise InputError(f"{path.name} is {named(data[:64])}: {_EXPORT}")
    try:
        file = msgspec.json.decode(data, type=_File, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path.name} is no memory snapshot in JSON ({error}): {_EXPORT}") from error
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
                stack = told(block.frames)
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
            stacks[change.addr] = told(change.frames)
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


def told(frames: list[Frame]) -> str:
    """The innermost lines of Python outside PyTorch; of PyTorch where there are no others."""
    python = [frame for frame in frames if frame.filename.endswith(".py")]
    own = [frame for frame in python if "/torch/" not in frame.filename.replace("\\", "/")] or python
    return " < ".join(f"{Path(f.filename).name}:{f.line} {f.name}" for f in own[:_MOST_FRAMES]) or NO_FRAMES
