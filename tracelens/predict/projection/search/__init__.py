"""The best way to split a model over devices: what a rule set answers, and all candidates as arrays, memory first,
then time, then the top few.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.types.records import Record, pd

C = TypeVar("C")
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
#: What ``--forbid`` leaves of a dimension, where that is not one rank.
_LEAST: Mapping[str, Any] = {"zero": 1, "recompute": "none", "schedule": "1f1b"}
#: Degrees that make a configuration fully fixed; tp may be given as its two sides.
_WHOLE = ({"tp", "pp", "mbs"}, {"tp1", "tp2", "pp", "mbs"})


class Constraints(Record, frozen=True, kw_only=True):
    """Constraints. ``fixed`` values by column; ``forbidden`` columns stay at one rank (zero at 1, recompute at none,
    schedule at 1f1b).

    ``headroom`` is the share of device memory that must stay free.
    """

    fixed: Mapping[str, Any] = msgspec.field(default_factory=dict)
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
#: Estimates that may be the least, how far above it in spreads they may be, and steps of the integral.
_RIVALS, REACH, _STEPS = 500, 6.0, 161
PLACES = ("nv_tp1", "nv_tp2", "nv_dp", "nv_pp")


class Feasible(Record, Generic[C], frozen=True, kw_only=True, eq=False):
    """Configurations that hold what is wanted and fit, their seconds per step and GB per device; ``step_j`` where least
    energy is searched for: J of all devices per step. ``busy_s``: what the busiest rank computes and sends in line.
    """

    candidates: C
    step_s: Floats
    memory_gb: Floats
    step_j: Floats | None = None
    busy_s: Floats | None = None

    @property
    def least(self) -> Floats:
        """What is searched for the least of on any number of devices."""
        return self.step_s if self.step_j is None else self.step_j


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


#: Columns of a result, named as the published tables name them; a rule set's further ones come after.
COLUMNS = (
    "model", "gpu", "nvs", "strategy", "n_gpus", "global_batch", "rank", "throughput", "dp", "tp", "tp1", "tp2", "pp",
    "mbs", "nb", "nv_tp1", "nv_tp2", "nv_dp", "nv_pp", "t", "mem", "t_comp", "t_mem", "t_tp_comm", "t_dp_comm",
    "t_pp_comm", "t_bubble", "wts_mem", "wts_grad_mem", "wts_optimizer_states_mem", "acts_mem", "flops_per_gpu",
)  # fmt: skip


def evaluate(rules: Rules[Any], candidates: Any, *, global_batch: int, model: str = "") -> pd.DataFrame:
    """The full breakdown of given candidates, in their order; ``rank`` counts within one device count.

    Columns as in ``COLUMNS``: t s, mem and *_mem GB, throughput samples/s, flops_per_gpu TFLOP per step.
    """
    columns = rules.table(candidates, global_batch=global_batch)
    given = {"model": model, "strategy": rules.strategy, "global_batch": global_batch}
    columns |= {
        "rank": pd.Series(candidates.gpus).groupby(candidates.gpus).cumcount(),
        "throughput": global_batch / columns["t"],
    }
    frame = pd.DataFrame({**columns, **given})
    return frame[[*COLUMNS, *(name for name in columns if name not in COLUMNS)]]


def fastest(found: Feasible[Any], gpu_counts: Iterable[int], top: int) -> npt.NDArray[np.intp]:
    """Positions of the ``top`` best of each device count, the best first: the fastest, or those of least energy. Ties
    are broken on the integer columns, smallest first.
    """
    space, chosen = found.candidates, [np.empty(0, np.intp)]
    for gpus in gpu_counts:
        index = np.flatnonzero(space.gpus == gpus)
        if len(index) > 4 * top:
            limit = np.partition(found.least[index], top - 1)[top - 1]
            index = index[found.least[index] <= limit]
        ties = [getattr(space, field.name)[index] for field in reversed(fields(space))]
        chosen.append(index[np.lexsort((*ties, found.least[index]))[:top]])
    return np.concatenate(chosen)


def winners_curse(estimates: Floats, spread: float) -> float:
    """By which share the least of ``estimates`` is likely to be exceeded: each has an error of its own, whose logarithm
    is normal with ``spread``, and the least is likelier one that came out too low. The mean error of the least when
    the estimates are drawn once more around themselves (a parametric bootstrap), as an integral over the least.
    """
    above = np.sort(np.log(estimates / estimates.min()))[:_RIVALS, None] / spread
    above = above[above[:, 0] < REACH]
    off = np.linspace(-REACH, REACH, _STEPS) - above
    others = np.log(np.vectorize(math.erfc)(off / math.sqrt(2)))
    weight = np.exp(others.sum(axis=0) - others - off**2 / 2)
    return float(np.expm1(-spread * (weight * off).sum() / weight.sum()))


def pareto(found: Feasible[Any]) -> npt.NDArray[np.intp]:
    """Positions of those that no other equals or beats in time, devices and memory, fewest devices first; where least
    energy is searched for, in time and energy, the fastest first.
    """
    if found.step_j is not None:
        order = np.lexsort((found.step_j, found.step_s))
        least = np.minimum.accumulate(np.append(np.inf, found.step_j[order]))[:-1]
        return order[found.step_j[order] < least]
    front: list[int] = []
    for n in np.unique(found.candidates.gpus):
        index = np.flatnonzero(found.candidates.gpus == n)
        order = index[np.lexsort((found.memory_gb[index], found.step_s[index]))]
        memory = found.memory_gb[order]
        least = np.concatenate([[np.inf], np.minimum.accumulate(memory)[:-1]])
        for i in order[memory < least].tolist():
            at = (found.step_s[i], found.memory_gb[i])
            if not any(found.step_s[j] <= at[0] and found.memory_gb[j] <= at[1] for j in front):
                front.append(i)
    return np.array(front, np.intp)
