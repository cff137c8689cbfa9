"""Tables of engines' kernels (``tracelens.backends.kernels``) as ``estimate --batch`` takes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.backends.base import Floats, System
from tracelens.backends.chain import Chain
from tracelens.backends.kernels.kernel_costs import KernelColumns, KernelTable
from tracelens.backends.tiles.gemm_tiles import EXPERT_BLOCKS
from tracelens.errors import UsageError
from tracelens.files.data_table import COUNT, SIZE, faults, numbers, text_codes, texts
from tracelens.predict.estimation.table_kinds import slot_load

if TYPE_CHECKING:
    import pandas as pd

#: What names the kernels of a row, beside the table's own cases.
KERNEL = ("framework", "version", "kernel_source")
#: Libraries that ``--library`` chooses from.
LIBRARIES = ("vllm", "sglang", "trtllm")
#: Sizes by column; what is not named is a count.
_SIZES = {
    "step": SIZE, "num_tokens": replace(COUNT, most=1e8), "num_experts": replace(COUNT, most=1e6),
    "num_slots": replace(COUNT, most=1e6), "topk": replace(COUNT, most=1e6), "moe_ep_size": replace(COUNT, most=1e6),
}  # fmt: skip


_WORDS = ("bound", "backend", "measured_as")
_INNER = ("compute_us", "memory_us", "peak_us", "flops")
_ROUTED = ("num_tokens", "num_experts", "topk", "moe_ep_size", "num_slots")


def case_columns(table: KernelTable, frame: pd.DataFrame) -> list[str]:
    """The columns of a frame that choose constants."""
    return [name for name in (*KERNEL, *table.cases) if name in frame]


def batches(
    table: KernelTable, frame: pd.DataFrame, rows: np.ndarray[Any, np.dtype[np.intp]], library: str | None = None
) -> Iterator[tuple[np.ndarray[Any, np.dtype[np.intp]], KernelColumns]]:
    """Rows that are alike in their case, and their columns. ``library``: for rows that name no framework."""
    part = frame.iloc[rows]
    named = {name: text_codes(part, name) for name in case_columns(table, frame)}
    meant: dict[str, Callable[[str], str]] = dict.fromkeys(
        _typed(table, named), lambda text: table.type_named(text) or text
    )
    meant["kernel_source"] = table.kernel
    alike = np.zeros(len(part), np.intp)
    for codes, found in named.values():
        _, alike = np.unique(alike * len(found) + codes, return_inverse=True)
    sizes, order = _sizes(table, part), np.argsort(alike, kind="stable")
    for at in np.split(order, np.flatnonzero(np.diff(alike[order])) + 1) if len(order) else ():
        cells = {name: found[codes[at[0]]] for name, (codes, found) in named.items()}
        case = {name: meant.get(name, str)(cell) for name, cell in cells.items() if cell}
        if library is not None:
            case.setdefault("framework", library)
        own = {name: values[at] for name, values in sizes.items()}
        yield rows[at], KernelColumns(precision="bf16", table=table, case=tuple(sorted(case.items())), sizes=own)


def _typed(table: KernelTable, columns: Iterable[str]) -> list[str]:
    """The columns that name types."""
    return [name for name in columns if name in table.cases and name.endswith(("dtype", "_type"))]


def _type_faults(table: KernelTable, frame: pd.DataFrame) -> list[str]:
    found = [""] * len(frame)
    for column in _typed(table, case_columns(table, frame)):
        codes, given = text_codes(frame, column)
        unknown = np.array([bool(text) and table.type_named(text) is None for text in given])
        for row in np.flatnonzero(unknown[codes]).tolist():
            found[row] = f"no type with estimates named {given[codes[row]]!r} in {column}"
    return found


def size_faults(table: KernelTable, frame: pd.DataFrame, name: str = "") -> list[str]:
    """Per row what is wrong with its sizes and types, "" where nothing is. UsageError where a column is missing."""
    missing = [column for column in table.sizes if column not in frame]
    if missing:
        has = ", ".join(map(str, frame))
        raise UsageError(f"a table for {table.name} needs the column {missing[0]!r}; it has {has}")
    optional = {column: replace(COUNT, blank=usual) for column, usual in table.optional.items() if column in frame}
    found = faults(frame, {column: _SIZES.get(column, COUNT) for column in table.sizes} | optional, name)
    found = [size or kind for size, kind in zip(found, _type_faults(table, frame), strict=True)]
    if not table.loads:
        return found
    for row, load in enumerate(_load_arguments(frame)):
        if not found[row]:
            try:
                slot_load(*load)
            except UsageError as error:
                found[row] = str(error)
    return found


def _sizes(table: KernelTable, part: pd.DataFrame) -> Mapping[str, Floats]:
    sizes = {name: numbers(part, name, _SIZES.get(name, COUNT)) for name in table.sizes}
    for name, usual in table.optional.items():
        number = replace(COUNT, blank=usual)
        sizes[name] = numbers(part, name, number) if name in part else np.full(len(part), usual)
    if table.described is not None:
        name, meant = table.described
        codes, found = text_codes(part, name) if name in part else (np.zeros(len(part), np.intp), [""])
        sizes |= {size: values[codes] for size, values in meant(found).items()}
    return {**sizes, **_loads(part)} if table.loads else sizes


def _load_arguments(part: pd.DataFrame) -> Iterator[tuple[str, int, int, int, int, int]]:
    """What ``slot_load`` takes, per row; sizes that are no numbers are 0."""
    rows = len(part)
    given = texts(part, "distribution", "balanced") if "distribution" in part else ["balanced"] * rows
    counts = {name: np.nan_to_num(numbers(part, name, _SIZES.get(name, COUNT))) for name in _ROUTED if name in part}
    tokens, experts, topk = (counts[name].astype(int).tolist() for name in _ROUTED[:3])
    ranks = counts["moe_ep_size"].astype(int).tolist() if "moe_ep_size" in counts else [1] * rows
    slots = counts["num_slots"].astype(int).tolist() if "num_slots" in counts else experts
    return zip(given, tokens, experts, topk, ranks, slots, strict=True)


def _loads(part: pd.DataFrame) -> Mapping[str, Floats]:
    """Rows, experts with rows, and blocks of the most loaded rank."""
    found = np.array([slot_load(*load) for load in _load_arguments(part)]).reshape(len(part), -1)
    loads = {"rows": found[:, 0], "active": found[:, 1]}
    return loads | {f"blocks_{rows}": found[:, 2 + i] for i, rows in enumerate(EXPERT_BLOCKS)}


def estimate_kernels(
    table: KernelTable,
    frame: pd.DataFrame,
    systems: tuple[np.ndarray[Any, np.dtype[np.intp]], Sequence[System | None]],
    backend: Chain,
    library: str | None = None,
) -> pd.DataFrame:
    """``frame`` with ``time_us``, ``bound``, ``backend``, ``measured_as`` (the measurements that the estimate rests
    on), ``error_percent`` (the mean error there on shape groups not fitted) and, without an answer, a ``reason``.

    ``systems``: which of some each row names; None is an unknown device.
    """
    rows, given = len(frame), frame.reset_index(drop=True)
    columns = {name: np.full(rows, "", object) for name in (*_WORDS, "reason")}
    columns |= {name: np.full(rows, np.nan) for name in ("time_us", "error_percent", *_INNER)}
    columns["reason"][:] = size_faults(table, given)
    is_good = columns["reason"] == ""
    for number, system in enumerate(systems[1]):
        at = np.flatnonzero(is_good & (systems[0] == number))
        if system is None:
            columns["reason"][at] = "no device of that name"
            continue
        for positions, batch in batches(table, given, at, library):
            lacked = table.lacks(dict(batch.case), system.device)
            if lacked is not None:
                columns["reason"][positions] = lacked
                continue
            for name, values in _answered(batch, backend, system).items():
                columns[name][positions] = values
            unknown = positions[np.isnan(columns["time_us"][positions])]
            columns["reason"][unknown] = f"no backend of {backend.name!r} has figures for {system.device.name}"
    order = ("time_us", *_WORDS, "error_percent", "reason", *_INNER)
    return frame.assign(**{name: columns[name] for name in order})


def _answered(batch: KernelColumns, backend: Chain, system: System) -> Mapping[str, Any]:
    """Columns of one batch; who measured what the tile model's answers rest on."""
    found = backend.estimate_batch(batch, system)
    columns: dict[str, Any] = {name: getattr(found, name) for name in ("time_us", *_INNER[:3])}
    for name, said in (("bound", found.bound), ("backend", found.backend)):
        columns[name] = np.array([word or "" for word in said], object)
    columns["measured_as"], columns["error_percent"] = backend.measured_as(batch, system, found)
    return columns | {"flops": batch.flops()}
