"""The best way to split a model over devices: all candidates as arrays, memory first, then time, then the top few."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.projection.search.paper import LayerCost, PaperRules, layer_costs, memory_gb, step_times
from tracelens.projection.search.space import Candidates, enumerate_candidates

if TYPE_CHECKING:
    import pandas as pd

#: Columns of a result, named as the published tables name them.
COLUMNS = (
    "model", "gpu", "nvs", "strategy", "n_gpus", "global_batch", "rank", "throughput", "dp", "tp", "tp1", "tp2", "pp",
    "mbs", "nb", "nv_tp1", "nv_tp2", "nv_dp", "nv_pp", "t", "mem", "t_comp", "t_mem", "t_tp_comm", "t_dp_comm",
    "t_pp_comm", "t_bubble", "wts_mem", "wts_grad_mem", "wts_optimizer_states_mem", "acts_mem", "flops_per_gpu",
)  # fmt: skip


def search(
    rules: PaperRules, gpu_counts: Iterable[int], *, global_batch: int, top: int = 10, model: str = ""
) -> pd.DataFrame:
    """The ``top`` fastest configurations that fit, per device count; no row where none fits.

    Columns as in ``COLUMNS``: t s, mem and *_mem GB, throughput samples/s, flops_per_gpu TFLOP per step.
    Ties are broken on the integer columns, smallest first.
    """
    counts = sorted(set(gpu_counts))
    space = enumerate_candidates(
        rules.shape, rules.strategy, counts, global_batch=global_batch, domain=rules.system.domain
    )
    cost = layer_costs(rules, space)
    memory = sum(memory_gb(rules, space, cost, global_batch).values())
    fits = np.flatnonzero(memory <= rules.system.hbm_gb)
    space, cost = space.take(fits), _at(cost, fits)
    time_s = step_times(rules, space, cost, global_batch)["t"]
    chosen = np.concatenate([_fastest(space, time_s, n, top) for n in counts] or [np.empty(0, np.intp)])
    return evaluate(rules, space.take(chosen), global_batch=global_batch, model=model)


def evaluate(rules: PaperRules, candidates: Candidates, *, global_batch: int, model: str = "") -> pd.DataFrame:
    """The full breakdown of given candidates, in their order; ``rank`` counts within one device count."""
    import pandas as pd

    cost = layer_costs(rules, candidates)
    memory = memory_gb(rules, candidates, cost, global_batch)
    times = step_times(rules, candidates, cost, global_batch)
    c = candidates
    frame = pd.DataFrame(
        {
            "model": model,
            "gpu": rules.system.name,
            "nvs": rules.system.domain,
            "strategy": rules.strategy,
            "n_gpus": c.gpus,
            "global_batch": global_batch,
            "rank": pd.Series(c.gpus).groupby(c.gpus).cumcount(),
            "throughput": global_batch / times["t"],
            "dp": c.dp, "tp": c.m1 * c.m2, "tp1": c.m1, "tp2": c.m2, "pp": c.pp, "mbs": c.micro_batch,
            "nb": np.where(rules.strategy == "2d", c.blocks, np.nan),
            "nv_tp1": c.near_m1, "nv_tp2": c.near_m2, "nv_dp": c.near_dp, "nv_pp": c.near_pp,
            "mem": sum(memory.values()),
            **times,
            **memory,
        }
    )  # fmt: skip
    return frame[list(COLUMNS)]


def _fastest(space: Candidates, time_s: Any, gpus: int, top: int) -> Any:
    index = np.flatnonzero(space.gpus == gpus)
    if len(index) > 4 * top:
        limit = np.partition(time_s[index], top - 1)[top - 1]
        index = index[time_s[index] <= limit]
    ties: Sequence[Any] = [getattr(space, name)[index] for name in reversed(Candidates.__slots__)]
    return index[np.lexsort((*ties, time_s[index]))[:top]]


def _at(cost: LayerCost, index: Any) -> LayerCost:
    return LayerCost(**{name: getattr(cost, name)[index] for name in LayerCost.__slots__})
