"""Backends asked in turn, per family of operations: ``tile``, ``gemm=origami,sdpa=tile``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tracelens.backends import load, measured_tables, origami
from tracelens.backends.base import (
    Backend,
    Basis,
    BatchBackend,
    ColumnBatch,
    EstimateTable,
    RestsOnMeasurements,
    System,
)
from tracelens.backends.collective_times import Collectives
from tracelens.errors import UsageError
from tracelens.perf_models.base import MEMORY, WorkColumns

C = TypeVar("C", WorkColumns, ColumnBatch)
#: What the left side of ``family=backend`` may be.
FAMILIES = ("gemm", "grouped-gemm", "sdpa", "moe", "kernel", MEMORY, "collective", "ep")
#: Who is asked last: it bounds whatever has flops or bytes.
LAST = "roofline"
#: Backends that need a package which is not ours -> why it is not there, None where it is.
OPTIONAL: Mapping[str, Callable[[], str | None]] = {"origami": origami.absence, "silicon": measured_tables.absence}
#: Families of ``Collectives``: nobody else knows links, so it is asked about them unless the chain says who is.
COMMUNICATION = ("collective", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain(Backend):
    """Asks the family's own backends, then the general ones; every row says who answered."""

    name: str
    general: tuple[Backend, ...]
    of_family: Mapping[str, tuple[Backend, ...]]

    def backends(self, family: str | None) -> tuple[Backend, ...]:
        """Who is asked about a family, in order."""
        return (*self.of_family.get(family or "", ()), *self.general)

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        rows = np.arange(len(columns))
        answers: EstimateTable | None = None
        names = [model.price_family() or "" for model in columns.models]
        for key in sorted(set(names)):
            at = rows[[name == key for name in names]]
            asked = (functools.partial(backend.estimate_many, system=system) for backend in self.backends(key))
            answers = _placed(answers, len(columns), at, _first_answers(columns.take(at.tolist()), asked))
        return answers if answers is not None else load(LAST).estimate_many(columns, system)

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """One row per row of ``batch``, by those of the backends that read column batches."""
        readers = (backend for backend in self.backends(batch.family) if isinstance(backend, BatchBackend))
        return _first_answers(batch, (functools.partial(reader.estimate_batch, system=system) for reader in readers))

    def measured_as(self, work: WorkColumns | ColumnBatch, system: System, found: EstimateTable) -> Basis:
        """What the answers ``found`` rest on, by each row's own backend."""
        labels, errors = Basis.unknown(len(work))
        who = np.array([name or "" for name in found.backend], object)
        for backend in {each.name: each for each in (*self.general, *sum(self.of_family.values(), ()))}.values():
            at = who == backend.name
            if at.any() and isinstance(backend, RestsOnMeasurements):
                label, error = backend.measured_as(work, system)
                labels[at], errors[at] = label[at], error[at]
        return Basis(labels, errors)


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
        raise UsageError(f"{spec!r} names no backend; give for example tile, or gemm=origami,sdpa=tile")
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


def _first_answers(columns: C, asked: Iterable[Callable[[C], EstimateTable]]) -> EstimateTable:
    answers: EstimateTable | None = None
    missing = np.arange(len(columns))
    for estimate in asked:
        part = columns if len(missing) == len(columns) else columns.take(missing.tolist())
        answers = _placed(answers, len(columns), missing, estimate(part))
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
