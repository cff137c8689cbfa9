"""How the experts of every token are chosen: drawn, gated, or as recorded in a routing or in a trace's all-to-alls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.analysis.loaded_trace import load
from tracelens.analysis.reading.process_groups import attributes_of_calls, integers
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.lazy.records import dataclass
from tracelens.trace.table import Kind
from tracelens.workload.expert_placement import Placement
from tracelens.workload.token_routing import (
    UNIFORM,
    RoutingTable,
    Skew,
    apportion,
    check_shape,
    drifting_weights,
    from_counts,
    read_routing,
    route_group_limited,
    sample,
    with_capacity,
)
from tracelens.workload.token_routing import route as draw


def recorded_split(path: Path, *, ranks: int) -> NDArray[np.float64]:
    """Elements that the trace's rank sent to each of ``ranks`` ranks (``In split size``), over all its all-to-alls.

    NothingToAnalyzeError without one that recorded its splits, UsageError when those were of groups of another size.
    """
    trace = load(path)
    total, sizes = np.zeros(ranks), set()
    calls, call = attributes_of_calls(trace.table, trace.tree, trace.table.rows_of((Kind.KERNEL,)))
    for attributes, times in zip(calls, np.bincount(call).tolist(), strict=True):
        split = integers(attributes.get("In split size"))
        if split is None:
            continue
        sizes.add(len(split))
        if len(split) == ranks:
            total += times * np.asarray(split, np.float64)
    if total.any():
        return total
    if sizes:
        raise UsageError(f"{path} recorded all-to-alls of {sorted(sizes)} ranks, not of {ranks}")
    raise NothingToAnalyzeError(f"{path} recorded no all-to-all with split sizes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """``tokens`` of all ranks together, each sent to ``topk`` of ``experts``, and how the choice is made.

    ``groups`` and ``best_groups``: group-limited gating. ``capacity``: factor beyond which an expert drops. ``file``:
    recorded routing instead of ``skew`` (``read_routing``; a folder with routing.csv and weights.csv; a
    trace with all-to-all split sizes).
    """

    tokens: int
    experts: int
    topk: int
    ranks: int
    skew: Skew = UNIFORM
    seed: int = 0
    groups: int | None = None
    best_groups: int | None = None
    capacity: float | None = None
    file: Path | None = None

    def drawn(self) -> RoutingTable:
        """The assignment, even weights, and the rank that each token comes from."""
        if self.file is not None and self.file.is_dir():
            table = RoutingTable.load(self.file, ranks=self.ranks)
            if table.source.max(initial=0) >= self.ranks or table.source.min(initial=0) < 0:
                raise UsageError(
                    f"{self.file} has tokens of rank {table.source.max()}, but there are {self.ranks} ranks"
                )
        elif self.file is not None and self.file.name.endswith((".json", ".json.gz")):
            table = RoutingTable.of_choices(self._as_recorded(self.file), self.ranks)
        elif self.file is not None:
            table = RoutingTable.of_choices(read_routing(self.file, topk=self.topk, seed=self.seed)[0], self.ranks)
        elif self.groups is not None:
            check_shape(tokens=self.tokens, experts=self.experts, topk=self.topk)
            chosen = self.gated(self.skew.weights(self.experts, self.seed), self.seed)
            table = RoutingTable.of_choices(chosen, self.ranks)
        else:
            chosen = draw(self.skew, tokens=self.tokens, experts=self.experts, topk=self.topk, seed=self.seed)
            table = RoutingTable.of_choices(chosen, self.ranks)
        if table.experts.max(initial=0) >= self.experts:
            raise UsageError(f"the routing uses expert {table.experts.max()}, but there are {self.experts} experts")
        return dataclasses.replace(table, experts=self._kept(table.experts))

    def layers(self, layers: int, steps: int, drift: float) -> Iterator[tuple[int, int, RoutingTable]]:
        """(step, layer, assignment): each layer has its own hot experts, and ``drift`` of log weight is new each step.

        The tokens of recorded routing are those of its layers, one layer after the other. UsageError where they do not
        divide, or are asked to drift.
        """
        if self.file is not None:
            if steps > 1 or drift:
                raise UsageError("recorded routing does not drift: omit --steps and --drift")
            chosen = self.drawn().experts
            if len(chosen) % layers:
                raise UsageError(f"{len(chosen)} recorded tokens do not divide over {layers} layers")
            for layer, part in enumerate(np.split(chosen, layers)):
                yield 0, layer, RoutingTable.of_choices(part, self.ranks)
            return
        drawn = drifting_weights(
            self.skew, experts=self.experts, layers=layers, steps=steps, drift=drift, seed=self.seed
        )
        for step, layer, weights in drawn:
            seed = self.seed + 1 + step * layers + layer
            if self.groups is not None:
                chosen = self.gated(weights, seed)
            else:
                chosen = sample(weights, tokens=self.tokens, topk=self.topk, seed=seed)
            yield step, layer, RoutingTable.of_choices(self._kept(chosen), self.ranks)

    def gated(self, weights: NDArray[np.float64], seed: int) -> NDArray[np.integer[Any]]:
        """Group-limited choices under ``weights``."""
        groups = self.groups or 1
        return route_group_limited(
            weights,
            tokens=self.tokens,
            topk=self.topk,
            groups=groups,
            best_groups=self.best_groups or groups,
            seed=seed,
        )

    def _kept(self, chosen: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        if self.capacity is None:
            return chosen
        return with_capacity(chosen, experts=self.experts, factor=self.capacity)

    def _as_recorded(self, trace: Path) -> NDArray[np.integer[Any]]:
        """Loads of ranks as in the trace's split sizes; the contiguous experts of a rank share its load evenly."""
        split = recorded_split(trace, ranks=self.ranks)
        weights = split[Placement.contiguous(self.experts, self.ranks).rank_of_slot]
        counts = apportion(weights, total=self.tokens * self.topk, most=self.tokens)
        return from_counts(counts, tokens=self.tokens, seed=self.seed)
