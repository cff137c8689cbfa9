"""What the table of a search does not vary, tried on one configuration by the event graph, dimension by dimension.

Zero-bubble schedules, overlap of tensor-parallel collectives and of experts' exchanges, tensor ranks of experts, shards
within a node (HSDP), and recomputing some modules instead of whole layers, or of none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tracelens.errors import TracelensError
from tracelens.lazy.records import dataclass
from tracelens.projection.step import Projection, project
from tracelens.workload.parallel_config import ParallelConfig

_ZERO_BUBBLE = ("zb-h1", "zb-1p", "zb-v", "v-half", "v-min")
#: Modules that selective recomputation is tried with, the cheapest first.
_MODULES = (("layernorm", "mlp_act"), ("layernorm", "mlp_act", "moe_act"), ("layernorm", "mlp"))
_SAVES = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    """``found`` is the best step; ``changes``: the options of ``tracelens project`` that make it of the first one."""

    found: Projection
    changes: tuple[tuple[str, str], ...]
    tried: int


def refined(first: Projection, *, headroom: float = 0.0) -> Refined:
    """``first`` with every dimension at its best value, taken one after the other; one that saves less than a
    thousandth stays, and so does one that does not fit.
    """
    best, changes, tried = first, dict[str, str](), 0
    for names in _DIMENSIONS:
        for options, parallel, schedule in names(best):
            with contextlib.suppress(TracelensError):
                other = _projected(first, parallel, schedule)
                tried += 1
                if _fits(other, headroom) and other.step_us < (1 - _SAVES) * best.step_us:
                    best = other
                    changes |= options
    return Refined(found=best, changes=tuple(changes.items()), tried=tried)


def _projected(first: Projection, parallel: ParallelConfig, schedule: str | None) -> Projection:
    return project(
        first.model, parallel, first.system,
        sequence=first.sequence, schedule=schedule, backends=first.backends, software=first.job.software,
        options=first.job.options,
    )  # fmt: skip


def _fits(found: Projection, headroom: float) -> bool:
    peak = found.peak_memory
    return peak.capacity is None or peak.peak <= (1 - headroom) * peak.capacity


_Trial = tuple[dict[str, str], ParallelConfig, str | None]


def _kept(found: Projection) -> str | None:
    return found.schedule if found.parallel.pp > 1 else None


def _overlaps(found: Projection) -> Iterator[_Trial]:
    p = found.parallel
    if p.tp > 1 and p.tp_overlap != "all" and p.summa_blocks is None:
        yield {"tp-overlap": "all"}, replace(p, tp_overlap="all"), _kept(found)
    if p.ep > 1 and not p.ep_overlap and p.zero != 3:
        yield {"ep-overlap": ""}, replace(p, ep_overlap=True), _kept(found)


def _expert_ranks(found: Projection) -> Iterator[_Trial]:
    p = found.parallel
    degree = 2
    while found.model.experts is not None and p.ep * degree <= p.stage_ranks and degree <= p.tp:
        for ep in dict.fromkeys((p.ep, max(p.ep // degree, 1))):
            with contextlib.suppress(TracelensError):
                given: dict[str, Any] = {"etp": degree, "ep": ep}
                yield {name: str(value) for name, value in given.items()}, replace(p, **given), _kept(found)
        degree *= 2


def _shards(found: Projection) -> Iterator[_Trial]:
    p, topology = found.parallel, found.system.topology
    node = None if topology is None else topology.ranks_per_node
    if p.zero == 3 and p.shard is None and node is not None:
        ranks = max(node // p.tp, 1)
        if 1 < ranks < p.copies and p.copies % ranks == 0:
            yield {"shard": str(ranks)}, replace(p, shard=ranks), _kept(found)


def _recomputation(found: Projection) -> Iterator[_Trial]:
    p = found.parallel
    for modules in _MODULES if p.recompute == "full" else ():
        made = replace(p, recompute="selective", recompute_modules=modules)
        yield {"recompute": "selective", "recompute-modules": ",".join(modules)}, made, _kept(found)


def _schedules(found: Projection) -> Iterator[_Trial]:
    p = found.parallel
    for name in _ZERO_BUBBLE if p.pp > 1 else ():
        yield {"schedule": name, "vpp": "1"}, replace(p, vpp=1), name


_DIMENSIONS = (_recomputation, _overlaps, _expert_ranks, _shards, _schedules)
