"""What a rule set answers, and what a user may ask of the configurations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import field
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass

C = TypeVar("C")
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: What ``--forbid`` leaves of a dimension, where that is not one rank.
_LEAST: Mapping[str, Any] = {"zero": 1, "recompute": "none"}
#: Degrees that make a configuration fully fixed; tp may be given as its two sides.
_WHOLE = ({"tp", "pp", "mbs"}, {"tp1", "tp2", "pp", "mbs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraints:
    """Constraints. ``fixed`` values by column; ``forbidden`` columns stay at one rank (zero at 1, recompute at none).

    ``headroom`` is the share of device memory that must stay free.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    forbidden: frozenset[str] = frozenset()
    headroom: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1:
            raise UsageError(f"memory headroom must be from 0 to below 1, not {self.headroom}")

    @property
    def is_one_configuration(self) -> bool:
        """Whether tensor, pipeline and micro-batch sizes are all given: evaluated then, whether it fits or not."""
        return any(names <= set(self.fixed) for names in _WHOLE)

    def allows(self, columns: Mapping[str, Any], *, only: Collection[str] | None = None) -> Mask:
        """Which rows of ``columns`` hold what is wanted of the columns ``only`` (None: all that are named).

        UsageError for a name that is no column.
        """
        wanted = {**dict.fromkeys(self.forbidden), **self.fixed}
        for name in wanted:
            if name not in columns:
                raise UsageError.unknown("dimension of the search", name, columns)
        allowed = np.ones(len(next(iter(columns.values()))), bool)
        for name, value in wanted.items():
            if only is None or name in only:
                asked, column = _LEAST.get(name, 1) if value is None else value, np.asarray(columns[name])
                if column.dtype.kind in "if" and not isinstance(asked, int | float):
                    raise UsageError(f"{name} must be a number, not {asked!r}")
                allowed &= column == asked
        return allowed


ANYTHING = Constraints()
PLACES = ("nv_tp1", "nv_tp2", "nv_dp", "nv_pp")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feasible(Generic[C]):
    """Configurations that hold what is wanted and fit, their seconds per step and GB per device."""

    candidates: C
    step_s: Floats
    memory_gb: Floats


class Rules(Protocol[C]):
    """A way to price configurations. ``C`` are its candidates, columns of equal length with ``take``."""

    @property
    def strategy(self) -> Any: ...

    @property
    def capacity_gb(self) -> float:
        """GB per device."""
        ...

    @property
    def tokens_per_sample(self) -> int:
        """Length of a sequence."""
        ...

    def feasible(self, gpu_counts: Iterable[int], *, global_batch: int, wanted: Constraints) -> Feasible[C]:
        """All configurations that hold what is wanted: memory first, then time."""
        ...

    def table(self, candidates: C, *, global_batch: int) -> dict[str, Any]:
        """The full breakdown, by column name."""
        ...

    def degrees(self, candidates: C) -> dict[str, Any]:
        """What may be fixed or forbidden, by column name."""
        ...

    def explained(self, candidates: C, *, global_batch: int) -> list[dict[str, Any]]:
        """The first candidate, an operation per row; ``forward_s`` and ``backward_s`` add up to the step."""
        ...
