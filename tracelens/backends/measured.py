"""What a trace measured, as a backend: what was recorded takes as long again, others keep its efficiency."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from tracelens.backends.base import Backend, EstimateTable, System
from tracelens.backends.tiles.memory_bound import stream_of
from tracelens.perf_models import SDPA, Collective, EPComm, PerfModel, WorkColumns
from tracelens.perf_models.base import MEMORY
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

MEASURED, EFFICIENCY = "measured", "measured efficiency"


class MeasuredCall(Record, frozen=True, kw_only=True):
    """A distinct call of a trace: how often in a step, and its mean time in us. ``model`` None: nobody knows it."""

    name: str
    model: PerfModel | None
    count: float
    time_us: float


class MeasuredStep(Record, frozen=True, kw_only=True):
    """One step of a rank: its time and the device's idle time in it, us, and what it ran."""

    step_us: float
    idle_us: float
    calls: tuple[MeasuredCall, ...]


def key_of(model: PerfModel) -> Hashable:
    """Equal for calls that do the same work; None for those whose dimensions say too little.

    Which of a product's operands is transposed, and whether a bias is added, does not matter.
    """
    keyed, dtype = _KEYS.get(model.price_family() or ""), model.compute_dtype
    rate = "bf16" if dtype is DType.FP16 else None if dtype is None else dtype.rate
    return None if keyed is None else keyed(model, rate)


def _attention(model: Any, _: str | None) -> Hashable:
    if not isinstance(model, SDPA):
        return None
    lengths = model.b, model.s_q, model.s_kv, model.total_pairs
    return type(model).__name__, *lengths, model.q_heads, model.kv_heads, model.d_qk, model.d_v


#: Family -> the work of a model, its products in a type of this rate.
_KEYS: dict[str, Callable[[Any, str | None], Hashable]] = {
    "gemm": lambda op, rate: ("gemm", op.b, frozenset((op.m, op.n)), op.k, rate),
    "grouped-gemm": lambda op, rate: (
        "grouped", type(op).__name__, op.m, frozenset((op.n, op.k)), op.groups, rate,
    ),
    "sdpa": _attention,
    "collective": lambda op, rate: ("collective", op.word, op.elements_in, op.elements_out, op.ranks, rate),
}  # fmt: skip


def kind_of(model: PerfModel) -> Hashable:
    """What shares an efficiency: the family of backends, by precision and direction; streams by what they do."""
    name = model.price_family()
    if name == MEMORY:
        return name, stream_of(model)
    if name in ("collective", "ep"):
        return name, getattr(model, "word", None)
    dtype = model.compute_dtype
    return name, None if dtype is None else dtype.rate, model.gradient


class MeasuredBackend(Backend):
    """Times of ``step`` where the same call was recorded, else ``base`` times measured over estimated of its kind.

    Collectives count only among ranks of one node, where a one-node trace has seen them.
    """

    name = MEASURED

    def __init__(self, step: MeasuredStep, base: Backend, system: System) -> None:
        self.base = base
        found: dict[Hashable, list[tuple[float, float]]] = defaultdict(list)
        known = [(call, call.model) for call in step.calls if call.model is not None and call.time_us > 0]
        estimates = base.estimate_many(WorkColumns.of(model for _, model in known), system)
        total: dict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (call, model), estimate in zip(known, estimates.time_us.tolist(), strict=True):
            key = key_of(model)
            if key is not None:
                total[key][0] += call.count * call.time_us
                total[key][1] += call.count
            if np.isfinite(estimate) and estimate > 0:
                found[kind_of(model)].append((call.count * call.time_us, call.count * estimate))
        self.times = {key: spent / count for key, (spent, count) in total.items()}
        self.ratios = {kind: sum(m for m, _ in rows) / sum(e for _, e in rows) for kind, rows in found.items()}

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """One row per row of ``columns``; ``backend`` says whether it was measured itself or its kind was."""
        found = self.base.estimate_many(columns, system)
        time_us, names = found.time_us.copy(), list(found.backend)
        per_node = None if system.topology is None else system.topology.ranks_per_node
        for row, model in enumerate(columns.models):
            if isinstance(model, Collective | EPComm) and not (
                per_node is not None and model.ranks is not None and model.ranks * model.stride <= per_node
            ):
                continue
            measured, ratio = self.times.get(key_of(model)), self.ratios.get(kind_of(model))
            if measured is not None:
                time_us[row], names[row] = measured, MEASURED
            elif ratio is not None:
                time_us[row], names[row] = time_us[row] * ratio, EFFICIENCY
        return replace(found, time_us=time_us, backend=tuple(names))
