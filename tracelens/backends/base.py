"""What a backend answers: how long operations should take on a system."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracelens.backends.system import System
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.registry import mark

T = TypeVar("T")
Floats = npt.NDArray[np.float64]
_BOUND = {"memory": "HBM", "hbm": "HBM", "wire": "link"}


def bound_name(bound: str) -> str:
    """What a bound is called in print: the part of the device that it names."""
    return _BOUND.get(bound.lower(), bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long one operation should take, in microseconds; None is unknown.

    ``time_us`` is the prediction, ``peak_us`` the least time at the device's data-sheet rates (never above
    ``time_us``). ``bound`` is ``"compute"``, ``"memory"`` or ``"wire"``, None for an operation without work.
    ``rate_basis`` says which compute rate was used: ``"achievable"``, ``"peak"``, or None where none is known or none
    is needed. ``backend`` is who answered.
    """

    time_us: float
    peak_us: float | None = None
    compute_us: float | None = None
    memory_us: float | None = None
    wire_us: float | None = None
    bound: str | None = None
    rate_basis: str | None = None
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimateTable:
    """Estimates of many operations: the columns of ``Estimate``, NaN and None where unknown.

    A row with ``time_us`` NaN is one that the backend has no answer for.
    """

    time_us: Floats
    peak_us: Floats
    compute_us: Floats
    memory_us: Floats
    wire_us: Floats
    bound: tuple[str | None, ...]
    rate_basis: tuple[str | None, ...]
    backend: tuple[str | None, ...]

    @classmethod
    def unanswered(cls, rows: int) -> EstimateTable:
        """``rows`` rows that no backend has an answer for."""
        unknown, none = np.full(rows, np.nan), (None,) * rows
        return cls(
            time_us=unknown,
            peak_us=unknown,
            compute_us=unknown,
            memory_us=unknown,
            wire_us=unknown,
            bound=none,
            rate_basis=none,
            backend=none,
        )

    def __len__(self) -> int:
        return len(self.bound)

    def row(self, index: int) -> Estimate | None:
        """The estimate of one operation; None where the backend has no answer."""
        backend = self.backend[index]
        time_us = _known(self.time_us[index])
        if time_us is None or backend is None:
            return None
        return Estimate(
            time_us=time_us,
            peak_us=_known(self.peak_us[index]),
            compute_us=_known(self.compute_us[index]),
            memory_us=_known(self.memory_us[index]),
            wire_us=_known(self.wire_us[index]),
            bound=self.bound[index],
            rate_basis=self.rate_basis[index],
            backend=backend,
        )

    def rows(self) -> Iterator[Estimate | None]:
        """Every row, in order."""
        return (self.row(index) for index in range(len(self)))


@runtime_checkable
class Backend(Protocol):
    """How long an operation should take. It never looks at a trace, and answers or returns None: no guesses."""

    @property
    def name(self) -> str:
        """As in ``@backend(name)``."""
        ...

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """One row per row of ``columns``."""
        ...

    def estimate(self, op: PerfModel, system: System) -> Estimate | None:
        """The one-row form of ``estimate_many``."""
        return self.estimate_many(WorkColumns.of([op]), system).row(0)


def backend(name: str) -> Callable[[T], T]:
    """Marks a class (called without arguments) as the backend ``name``, e.g. ``"roofline"``."""
    return mark("backend", name)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
