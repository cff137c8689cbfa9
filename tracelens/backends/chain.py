"""Backends asked in turn, per family of operations: ``tile``, ``gemm=origami,sdpa=tile``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.backends import load, measured_tables, origami
from tracelens.backends.base import Backend, Estimate, EstimateTable
from tracelens.backends.collective_times import Collectives
from tracelens.backends.family_columns import AttentionColumns, Columns, GEMMColumns
from tracelens.backends.system import System
from tracelens.errors import UsageError
from tracelens.perf_models import (
    GEMM,
    SDPA,
    Collective,
    EPComm,
    GroupedGEMM,
    InferenceAttention,
    PerfModel,
    SparseAttention,
)
from tracelens.perf_models.matrix.moe import MoELayer
from tracelens.perf_models.work_columns import WorkColumns

#: What the left side of ``family=backend`` may be.
FAMILIES = ("gemm", "grouped-gemm", "sdpa", "moe", "memory", "collective", "ep")
#: Who is asked last: it bounds whatever has flops or bytes.
LAST = "roofline"
#: Backends that need a package which is not ours -> why it is not there, None where it is.
OPTIONAL: Mapping[str, Callable[[], str | None]] = {"origami": origami.absence, "silicon": measured_tables.absence}
#: Families of ``Collectives``: nobody else knows links, so it is asked about them unless the chain says who is.
COMMUNICATION = ("collective", "ep")


def family(model: PerfModel) -> str | None:
    """The family of an operation; None for those that only general backends are asked about."""
    if isinstance(model, GroupedGEMM):
        return "grouped-gemm"
    if isinstance(model, GEMM):
        return "gemm"
    if isinstance(model, SDPA | InferenceAttention | SparseAttention):
        return "sdpa"
    if isinstance(model, MoELayer):
        return "moe"
    if isinstance(model, EPComm):
        return "ep"
    if isinstance(model, Collective):
        return "collective"
    return "memory" if model.engine in ("vector", "none") else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Asks the family's own backends, then the general ones; every row says who answered."""

    name: str
    general: tuple[Backend, ...]
    of_family: Mapping[str, tuple[Backend, ...]]

    def backends(self, family: str | None) -> tuple[Backend, ...]:
        """Who is asked about a family, in order."""
        return (*self.of_family.get(family or "", ()), *self.general)

    def estimate_many(self, columns: WorkColumns | Columns, system: System) -> EstimateTable:
        """One row per row of ``columns``."""
        if not isinstance(columns, WorkColumns):
            return self._store(columns, system)
        rows = np.arange(len(columns))
        answers: EstimateTable | None = None
        names = [family(model) for model in columns.models]
        for key in sorted({name or "" for name in names}):
            at = rows[[(name or "") == key for name in names]]
            part = columns.take(at.tolist())
            found = _first_answers(self.backends(key), part, system)
            answers = _placed(answers, len(columns), at, found)
        return answers if answers is not None else load(LAST).estimate_many(columns, system)

    def estimate(self, op: PerfModel, system: System) -> Estimate | None:
        """The one-row form."""
        return self.estimate_many(WorkColumns.of([op]), system).row(0)

    def _store(self, columns: Columns, system: System) -> EstimateTable:
        key = "gemm" if isinstance(columns, GEMMColumns) else "sdpa" if isinstance(columns, AttentionColumns) else "moe"
        return _first_answers([b for b in self.backends(key) if getattr(b, "reads_stores", False)], columns, system)


def chain(spec: str) -> Chain:
    """``tile`` or ``gemm=origami,sdpa=tile``: backends by name, left to right; the roofline is always last.

    Collectives and exchanges go to ``collectives`` first, unless the chain names a backend for them or has the roofline
    answer everything.

    UsageError for a backend or a family that there is not.
    """
    general: list[Backend] = []
    own: dict[str, tuple[Backend, ...]] = {}
    for item in filter(None, (part.strip() for part in spec.split(","))):
        name, _, backend = item.rpartition("=")
        if name and name not in FAMILIES:
            raise UsageError.unknown("family of operations", name, FAMILIES)
        made = load(backend)
        if name:
            own[name] = (*own.get(name, ()), made)
        else:
            general.append(made)
    if not general and not own:
        raise UsageError(f"no backend in {spec!r}")
    if all(backend.name != LAST for backend in general):
        if all(backend.name != Collectives.name for backend in general):
            own = {name: (load(Collectives.name),) for name in COMMUNICATION} | own
        general.append(load(LAST))
    return Chain(name=spec, general=tuple(general), of_family=own)


def absences(spec: str) -> list[str]:
    """A sentence for each backend of a chain whose package is not there."""
    named = {part.rpartition("=")[2].strip() for part in spec.split(",")}
    missing = {name: why() for name, why in OPTIONAL.items() if name in named}
    return [f"backend {name} has no answers: {why}" for name, why in missing.items() if why is not None]


def _first_answers(backends: Sequence[Backend], columns: WorkColumns | Columns, system: System) -> EstimateTable:
    answers: EstimateTable | None = None
    missing = np.arange(len(columns))
    for backend in backends:
        part = columns if len(missing) == len(columns) else columns.take(missing.tolist())
        found = backend.estimate_many(part, system)  # type: ignore[arg-type]
        answers = _placed(answers, len(columns), missing, found)
        missing = np.flatnonzero(np.isnan(answers.time_us))
        if not len(missing):
            break
    return answers if answers is not None else EstimateTable.unanswered(len(columns))


def _placed(table: EstimateTable | None, rows: int, at: npt.NDArray[np.intp], found: EstimateTable) -> EstimateTable:
    """``found`` at the rows ``at``; a table of its own where those are all rows in order."""
    if len(at) == rows:
        return found
    base = table if table is not None else EstimateTable.unanswered(rows)
    placed: dict[str, Any] = {}
    for field in fields(EstimateTable):
        old, new = getattr(base, field.name), getattr(found, field.name)
        merged = np.array(old, dtype=object if isinstance(old, tuple) else float)
        merged[at] = np.array(new, dtype=merged.dtype)
        placed[field.name] = tuple(merged.tolist()) if isinstance(old, tuple) else merged
    return EstimateTable(**placed)
