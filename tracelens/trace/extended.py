"""A table with host events more than the file has: ops known from elsewhere, placed where they belong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tracelens.lazy.records import dataclass
from tracelens.signature import OpSignature
from tracelens.trace.signatures import ARGUMENT_KEYS
from tracelens.trace.table import EventLookup, Kind, RowColumn, TraceTable

Ints = npt.NDArray[np.int64]

_CATEGORY = {Kind.CPU_OP: "cpu_op", Kind.RUNTIME: "cuda_runtime", Kind.PYTHON_FUNCTION: "python_function"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AddedRows:
    """Columns of host events to add. ``name`` and ``signature`` index ``names`` and ``signatures`` (-1: none).

    Of events with the same span on one lane the earlier row is the outer one. Without ``timed`` their times only say
    where they belong, not how long they took.
    """

    kind: npt.NDArray[np.uint8]
    name: Ints
    lane: Ints
    start_ns: Ints
    duration_ns: Ints
    correlation: Ints
    signature: Ints
    names: Sequence[str]
    signatures: Sequence[OpSignature]
    timed: bool = True

    def __len__(self) -> int:
        return len(self.kind)


def with_rows(table: TraceTable, added: AddedRows, correlation: npt.NDArray[np.int64] | None = None) -> TraceTable:
    """A new table: the rows of ``table``, then the added ones. ``correlation`` replaces that of the first.

    ``event`` of an added row is made from its columns. What the file held (``events_total``, losses) stays as it was.
    """
    n = len(added)
    code_of = {name: code for code, name in enumerate(table.names)}
    names = np.array([code_of.setdefault(name, len(code_of)) for name in added.names] or [0], np.int32)
    category_of = {name: code for code, name in enumerate(table.categories)}
    kinds = sorted({int(kind) for kind in added.kind.tolist()})
    categories = {kind: category_of.setdefault(_CATEGORY[Kind(kind)], len(category_of)) for kind in kinds}
    store, codes = table.signatures.extended(added.signatures)
    signature = np.where(added.signature >= 0, np.array([*codes, -1], np.int32)[added.signature], -1)
    first = int(table.file_index.max(initial=-1)) + 1
    nothing = np.full(n, -1, np.int64)
    columns: dict[str, Any] = {
        "kind": added.kind,
        "category": np.array([categories[int(kind)] for kind in added.kind.tolist()], np.int16),
        "name": names[added.name],
        "lane": added.lane,
        "start_ns": added.start_ns,
        "duration_ns": added.duration_ns,
        "stream": nothing,
        "correlation": added.correlation,
        "external_id": nothing,
        "sequence_number": nothing,
        "signature": signature,
        "device": nothing,
        "file_index": np.arange(first, first + n),
    }
    joined: dict[str, Any] = {}
    for key, values in columns.items():
        column = getattr(table, key) if key != "correlation" or correlation is None else correlation
        joined[key] = np.concatenate((column, np.asarray(values).astype(column.dtype)))
    result = replace(
        table, **joined, names=list(code_of), categories=list(category_of), signatures=store, _op_signatures={}
    )
    result.lookup = _AddedEvents(file=table.lookup, table=result, first=first, first_row=len(table), timed=added.timed)
    return result


def has_host_time(table: TraceTable, rows: Ints | RowColumn) -> npt.NDArray[np.bool_]:
    """Whether the duration of each row is how long the host took: not for rows that were added without a time."""
    timed = np.ones(len(rows), np.bool_)
    lookup, end = table.lookup, len(table)
    while isinstance(lookup, _AddedEvents):
        first_row = lookup.first_row
        if not lookup.timed:
            timed &= (rows < first_row) | (rows >= end)
        lookup, end = lookup.file, first_row
    return timed


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _AddedEvents:
    """The events of the file, and those of the rows behind them."""

    file: EventLookup
    table: TraceTable
    first: int
    first_row: int
    timed: bool

    def event(self, file_index: int) -> dict[str, Any]:
        if file_index < self.first:
            return self.file.event(file_index)
        table, row = self.table, self.first_row + file_index - self.first
        return made_event(table, row)


def made_event(table: TraceTable, row: int) -> dict[str, Any]:
    """An event that no file holds as an object, from its columns, as Kineto would have written it."""
    signature = table.signature_of(row)
    parts = (signature.shapes, signature.dtypes, signature.strides, signature.scalars)
    args: dict[str, Any] = {key: part for key, part in zip(ARGUMENT_KEYS, parts, strict=True) if part is not None}
    args |= dict(signature.attributes)
    for key, name in _ARGUMENTS.items():
        if (value := int(getattr(table, key)[row])) >= 0:
            args[name] = value
    return {
        "ph": "X",
        "cat": table.category_of(row),
        "name": table.name_of(row),
        "pid": table.pid_of(row),
        "tid": table.tid_of(row),
        "ts": int(table.start_ns[row]) / 1000,
        "dur": int(table.duration_ns[row]) / 1000,
        "args": args,
    }


_ARGUMENTS = {
    "device": "device",
    "stream": "stream",
    "correlation": "correlation",
    "external_id": "External id",
    "sequence_number": "Sequence number",
}
