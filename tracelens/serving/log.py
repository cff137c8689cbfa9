"""What a simulation records: times per request, and sums over steps.

Times are femtoseconds; those per request, and gaps, as floats: 64-bit whole numbers would end after 2.6 hours.
"""

from __future__ import annotations

from array import array
from dataclasses import field

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass


@dataclass(slots=True, kw_only=True)
class RequestLog:
    """One entry per request; -1 is never."""

    arrival: array[float]
    scheduled: array[float]
    first: array[float]
    last: array[float]
    preempted: array[int]
    rejected: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, count: int) -> RequestLog:
        def never() -> array[float]:
            return array("d", [-1]) * count

        return cls(arrival=never(), scheduled=never(), first=never(), last=never(), preempted=array("q", [0]) * count)


@dataclass(slots=True, kw_only=True)
class StepLog:
    """Sums over the steps of one replica, and every gap between two tokens of one sequence.

    Gaps are runs: ``count`` steps that take ``first``, ``first + growth`` ..., each ends a gap of ``weight`` sequences.
    """

    decode_steps: int = 0
    prompt_steps: int = 0
    decoded: int = 0
    prefill_tokens: int = 0
    cached_tokens: int = 0
    busy: int = 0
    context_time: int = 0
    compute_events: int = 0
    exchange_events: int = 0
    transfer_events: int = 0
    gap_first: array[float] = field(default_factory=lambda: array("d"))
    gap_growth: array[float] = field(default_factory=lambda: array("d"))
    gap_count: array[int] = field(default_factory=lambda: array("q"))
    gap_weight: array[int] = field(default_factory=lambda: array("q"))
    series: list[tuple[int, int, int, int, int, int]] | None = None

    @property
    def steps(self) -> int:
        """Those that decode, and those of prompts alone."""
        return self.decode_steps + self.prompt_steps

    def gap(self, first: float, weight: int, growth: float = 0, count: int = 1) -> None:
        """Adds a run of gaps."""
        self.gap_first.append(first)
        self.gap_growth.append(growth)
        self.gap_count.append(count)
        self.gap_weight.append(weight)

    def gaps(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """Every gap and how many sequences had it."""
        first, growth = (np.array(column, dtype=np.float64) for column in (self.gap_first, self.gap_growth))
        count, weight = (np.array(column, dtype=np.int64) for column in (self.gap_count, self.gap_weight))
        if not len(first) or int(count.max()) == 1:
            return first, weight
        starts = np.repeat(np.cumsum(count) - count, count)
        index = np.arange(int(count.sum())) - starts
        return np.repeat(first, count) + np.repeat(growth, count) * index, np.repeat(weight, count)
