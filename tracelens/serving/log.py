"""What a simulation records: times per request, and sums over steps. All times in femtoseconds, -1 is never."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt


@dataclass(slots=True, kw_only=True)
class RequestLog:
    """One entry per request."""

    arrival: array[int]
    scheduled: array[int]
    first: array[int]
    last: array[int]
    preempted: array[int]
    rejected: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, count: int) -> RequestLog:
        def never() -> array[int]:
            return array("q", [-1]) * count

        return cls(arrival=never(), scheduled=never(), first=never(), last=never(), preempted=array("q", [0]) * count)


@dataclass(slots=True, kw_only=True)
class StepLog:
    """Sums over the steps of one replica, and every gap between two tokens of one sequence.

    Gaps are runs: ``count`` steps that take ``first``, ``first + growth`` ..., each ends a gap of ``weight`` sequences.
    """

    steps: int = 0
    decode_steps: int = 0
    decoded: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    busy: int = 0
    context_time: int = 0
    compute_events: int = 0
    exchange_events: int = 0
    transfer_events: int = 0
    gap_first: array[int] = field(default_factory=lambda: array("q"))
    gap_growth: array[int] = field(default_factory=lambda: array("q"))
    gap_count: array[int] = field(default_factory=lambda: array("q"))
    gap_weight: array[int] = field(default_factory=lambda: array("q"))
    series: list[tuple[int, int, int, int, int, int]] | None = None

    def gap(self, first: int, weight: int, growth: int = 0, count: int = 1) -> None:
        """Adds a run of gaps."""
        self.gap_first.append(first)
        self.gap_growth.append(growth)
        self.gap_count.append(count)
        self.gap_weight.append(weight)

    def gaps(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Every gap and how many sequences had it."""
        first, growth, count, weight = (
            np.frombuffer(column, dtype=np.int64) if len(column) else np.zeros(0, dtype=np.int64)
            for column in (self.gap_first, self.gap_growth, self.gap_count, self.gap_weight)
        )
        if not len(first) or int(count.max()) == 1:
            return first, weight
        starts = np.repeat(np.cumsum(count) - count, count)
        index = np.arange(int(count.sum())) - starts
        return np.repeat(first, count) + np.repeat(growth, count) * index, np.repeat(weight, count)
