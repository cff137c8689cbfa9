"""The calls of a side by number, and the rows that lay those of two sides beside each other."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.comparison.sides import Call, Side
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Calls of A (indices) that became those of B; one of the two may be empty."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    how: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Numbered:
    """The distinct ``calls`` of all recordings of a side; ``call_of``: per recording, of its units."""

    side: Side
    calls: tuple[Call, ...]
    call_of: tuple[Ints, ...]

    @classmethod
    def of(cls, side: Side) -> Numbered:
        number: dict[Call, int] = {}
        found = []
        for one in side.recordings:
            codes = np.array([number.setdefault(call, len(number)) for call in one.calls] or [0], np.int64)
            found.append(codes[one.call])
        return cls(side=side, calls=tuple(number), call_of=tuple(found))

    @cached_property
    def steps(self) -> list[Ints]:
        """The device work of each step, the typical one of a recording first; of none where it stands in no order."""
        if not self.side.first.is_ordered:
            return [np.zeros(0, np.int64)]
        busy = np.array([not call.is_idle for call in self.calls] or [False], bool)
        return [
            own[(one.step == step) & busy[own]]
            for one, own in zip(self.side.recordings, self.call_of, strict=True)
            for step in (one.typical, *np.delete(np.arange(len(one.durations_ns)), one.typical))
        ]

    @cached_property
    def sequence(self) -> Ints:
        """The step that has the calls of most steps: the one nearest to the median count of each.

        Of equally near ones it is the typical step of the first recording, else the first.
        """
        counts = np.stack([np.bincount(step, minlength=len(self.calls)) for step in self.steps])
        return self.steps[int(np.abs(counts - np.median(counts, axis=0)).sum(axis=1).argmin())]
