"""What the device did: kernels, copies and memsets with their class, their launching op and their step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.reading.catalog import OTHER
from tracelens.lazy.records import dataclass
from tracelens.perf_models.kernels import KernelPattern, classify, copy_path
from tracelens.trace.columns import narrowed
from tracelens.trace.table import DEVICE_KINDS, Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """A text per event: ``code`` indexes ``texts``, which are distinct and in order."""

    code: Codes
    texts: tuple[str, ...]

    @classmethod
    def of(cls, code: npt.NDArray[np.integer], texts: Sequence[str]) -> Labels:
        """From codes into texts that may repeat."""
        distinct = tuple(sorted(set(texts)))
        place = {text: number for number, text in enumerate(distinct)}
        renumbered = np.array([place[text] for text in texts] or [0], np.int32)
        return cls(narrowed(renumbered)[code], distinct)

    def __getitem__(self, at: Bools | npt.NDArray[np.integer] | slice) -> Labels:
        """Those of the events where ``at`` is true, or at these positions."""
        return Labels(self.code[at], self.texts)

    def are(self, text: str) -> Bools:
        """Which events have this one."""
        found: Bools = self.code == (self.texts.index(text) if text in self.texts else -1)
        return found

    def tolist(self) -> list[str]:
        return [self.texts[code] for code in self.code.tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceActivity:
    """Columns over the device events that a report covers, in file order.

    ``op``: table row of the launching op, -1 when unlinked. ``communication``, ``memcpy``: the timeline's classes;
    ``collective``: NCCL/RCCL kernels, which have their own sheets and stay out of op rows. ``host_copy``,
    ``peer_copy``: copies between the device and the host, or another device; ``rearranges``: kernels that only lay out
    operands of others. ``category``: what the kernel's name alone says, ``other`` when nothing. ``gap_before``: how
    long (ns) its stream had been idle when the event started, -1 for the first event of a stream.
    """

    rows: RowColumn
    start: Ints
    end: Ints
    op: RowColumn
    name: Codes
    stream: Codes
    communication: Bools
    memcpy: Bools
    collective: Bools
    host_copy: Bools
    peer_copy: Bools
    rearranges: Bools
    gap_before: npt.NDArray[np.integer]
    category: Labels

    @property
    def duration(self) -> Ints:
        return self.end - self.start

    @property
    def between_memories(self) -> Bools:
        """Which events are copies between the device and the host or another device."""
        return self.host_copy | self.peer_copy

    def duration_us(self, at: npt.NDArray[np.integer] | slice = slice(None)) -> npt.NDArray[np.float64]:
        """Durations of the events at these positions."""
        return (self.end[at] - self.start[at]) / NS_PER_US

    def __len__(self) -> int:
        return len(self.rows)

    def of_ops(self) -> RowColumn:
        """Positions of the events that count for the op that launched them: linked ones, collectives left out."""
        return np.flatnonzero((self.op >= 0) & ~self.collective).astype(np.int32)

    def select(self, mask: Bools | Ints) -> DeviceActivity:
        """The events where ``mask`` is true, or at these positions; of events that follow each other, views."""
        if mask.dtype == np.bool_ and mask.any():
            first, last = int(mask.argmax()), len(mask) - int(mask[::-1].argmax())
            if mask[first:last].all():
                return self._at(slice(first, last))
        return self._at(mask)

    def _at(self, at: Bools | Ints | slice) -> DeviceActivity:
        return DeviceActivity(**{key: getattr(self, key)[at] for key in self.__slots__})


def device_activity(table: TraceTable, tree: OpTree, patterns: tuple[KernelPattern, ...]) -> DeviceActivity:
    """All device events of a trace; kernel names are classified once per distinct name."""
    rows = table.rows_of(DEVICE_KINDS)
    name = narrowed(table.name[rows])
    codes, inverse = np.unique(name, return_inverse=True)
    names = [table.names[code] for code in codes.tolist()]
    found, paths = classify(names, patterns), [copy_path(name) for name in names]

    def of_name(values: Iterable[bool]) -> Bools:
        return np.fromiter(values, bool, len(names))[inverse]

    def says(key: str) -> Bools:
        return of_name(getattr(pattern, key, False) for pattern in found)

    kind = table.kind[rows]
    start = table.start_ns[rows]
    end = start + table.duration_ns[rows]
    stream = narrowed(table.stream[rows])
    return DeviceActivity(
        rows=rows,
        start=start,
        end=end,
        op=tree.op[rows],
        name=name,
        stream=stream,
        communication=says("communication"),
        memcpy=says("memcpy") | (kind == Kind.MEMCPY),
        collective=says("collective"),
        host_copy=of_name(p is not None and p.host_memory is not None for p in paths) & (kind == Kind.MEMCPY),
        peer_copy=of_name(p is not None and p.host_memory is None for p in paths) & (kind == Kind.MEMCPY),
        rearranges=says("rearranges"),
        gap_before=_gap_before(table.device[rows], stream, start, end),
        category=Labels.of(inverse, [OTHER if p is None else p.category for p in found]),
    )


def streams_of(table: TraceTable, activity: DeviceActivity) -> tuple[Ints, Codes]:
    """((device, stream) per distinct stream, which of them each event ran on)."""
    device = table.device[activity.rows]
    lane = numbered(device, activity.stream)
    first = first_of_each(lane)
    return np.stack((device[first], activity.stream[first]), axis=1).astype(np.int64), lane


def _gap_before(device: npt.NDArray[np.int32], stream: Codes, start: Ints, end: Ints) -> npt.NDArray[np.integer]:
    gap = np.full(len(start), -1, np.int64)
    order = np.lexsort((end, start, stream, device))
    fresh = np.concatenate(([True], (np.diff(stream[order]) != 0) | (np.diff(device[order]) != 0)))[: len(order)]
    for part in np.split(order, np.flatnonzero(fresh)[1:]):
        if len(part) > 1:
            free_at = np.maximum.accumulate(end[part])[:-1]
            gap[part[1:]] = np.maximum(start[part[1:]] - free_at, 0)
    return narrowed(gap)
