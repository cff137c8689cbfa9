"""The best way to split a model over devices: all candidates as arrays, memory first, then time, then the top few."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tracelens.projection.search.rules import ANYTHING, Constraints, Feasible, Floats, Rules

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a result, named as the published tables name them; a rule set's further ones come after.
COLUMNS = (
    "model", "gpu", "nvs", "strategy", "n_gpus", "global_batch", "rank", "throughput", "dp", "tp", "tp1", "tp2", "pp",
    "mbs", "nb", "nv_tp1", "nv_tp2", "nv_dp", "nv_pp", "t", "mem", "t_comp", "t_mem", "t_tp_comm", "t_dp_comm",
    "t_pp_comm", "t_bubble", "wts_mem", "wts_grad_mem", "wts_optimizer_states_mem", "acts_mem", "flops_per_gpu",
)  # fmt: skip


def search(
    rules: Rules[Any], gpu_counts: Iterable[int], *, global_batch: int, top: int = 10, model: str = "",
    wanted: Constraints = ANYTHING,
) -> pd.DataFrame:  # fmt: skip
    """The ``top`` fastest configurations that fit, per device count; no row where none fits.

    Columns as in ``COLUMNS``: t s, mem and *_mem GB, throughput samples/s, flops_per_gpu TFLOP per step. Ties are
    broken on the integer columns, smallest first. Where ``wanted`` is one configuration, it has a row that fits or not.
    """
    counts = sorted(set(gpu_counts))
    found = rules.feasible(counts, global_batch=global_batch, wanted=wanted)
    return _rows(rules, found, fastest(found, counts, top), global_batch, model)


def front(
    rules: Rules[Any], gpu_counts: Iterable[int], *, global_batch: int, model: str = "", wanted: Constraints = ANYTHING
) -> pd.DataFrame:
    """Configurations that no other beats in time, devices and memory at once, fewest devices first."""
    found = rules.feasible(sorted(set(gpu_counts)), global_batch=global_batch, wanted=wanted)
    return _rows(rules, found, pareto(found), global_batch, model)


def evaluate(rules: Rules[Any], candidates: Any, *, global_batch: int, model: str = "") -> pd.DataFrame:
    """The full breakdown of given candidates, in their order; ``rank`` counts within one device count."""
    import pandas as pd

    columns = rules.table(candidates, global_batch=global_batch)
    given = {"model": model, "strategy": rules.strategy, "global_batch": global_batch}
    columns |= {
        "rank": pd.Series(candidates.gpus).groupby(candidates.gpus).cumcount(),
        "throughput": global_batch / columns["t"],
    }
    frame = pd.DataFrame({**columns, **given})
    return frame[[*COLUMNS, *(name for name in columns if name not in COLUMNS)]]


def fastest(found: Feasible[Any], gpu_counts: Iterable[int], top: int) -> npt.NDArray[np.intp]:
    """Positions of the ``top`` fastest of each device count, fastest first."""
    chosen = [_fastest(found.candidates, found.step_s, n, top) for n in gpu_counts]
    return np.concatenate([np.empty(0, np.intp), *chosen])


def pareto(found: Feasible[Any]) -> npt.NDArray[np.intp]:
    """Positions of those that no other equals or beats in time, devices and memory, fewest devices first."""
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


def _rows(
    rules: Rules[Any], found: Feasible[Any], chosen: npt.NDArray[np.intp], global_batch: int, model: str
) -> pd.DataFrame:
    return evaluate(rules, found.candidates.take(chosen), global_batch=global_batch, model=model)


def _fastest(space: Any, time_s: Floats, gpus: int, top: int) -> npt.NDArray[np.intp]:
    index = np.flatnonzero(space.gpus == gpus)
    if len(index) > 4 * top:
        limit = np.partition(time_s[index], top - 1)[top - 1]
        index = index[time_s[index] <= limit]
    ties = [getattr(space, field.name)[index] for field in reversed(fields(space))]
    order: npt.NDArray[np.intp] = index[np.lexsort((*ties, time_s[index]))[:top]]
    return order
