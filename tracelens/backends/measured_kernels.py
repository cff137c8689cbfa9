"""Engines' kernels as published tables measured them: each ``KernelTable``, in aiconfigurator's file of its name.

Numbers of tokens and keys, and the sizes of a product, are a grid; all else must be as measured. Expert layers are
looked up on even loads, since the columns of a call do not say how others were drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels import kernel_table
from tracelens.backends.kernels.kernel_columns import KernelColumns
from tracelens.backends.kernels.kernel_costs import KernelTable
from tracelens.backends.measured_grids import Grid, grid, newest
from tracelens.errors import InputError
from tracelens.hardware import HardwareSpec

if TYPE_CHECKING:
    import pandas as pd

#: Files whose name is not the table's.
_FILES = {"quantize-scale": "computescale", "quantize-matrix": "scale_matrix", "moe-mxfp4": "moe"}
#: Sizes between which times are interpolated.
_AXES = ("batch_size", "isl", "step", "seq_len", "num_tokens", "message_size", "m", "n", "k")
_Key = tuple[float, ...]


def kernel_times(batch: KernelColumns, folder: Path | None, device: HardwareSpec) -> Floats:
    """Times in us of the fastest kernel that fits the case; NaN where nothing near was measured."""
    table, time = batch.table, np.full(len(batch), np.nan)
    if folder is None:
        return time
    names = tuple(filter(None, (device.name, device.based_on)))
    wanted = tuple(pair for pair in batch.case if pair[0] != "version")
    grids = _grids(table.name, folder, names, wanted)
    axes, same = _columns(table)
    keys = np.stack([batch.sizes[name] for name in same], axis=1) if same else np.zeros((len(batch), 0))
    points = np.stack([batch.sizes[name] for name in axes], axis=1)
    found, which = np.unique(keys, axis=0, return_inverse=True)
    for number, key in enumerate(found.tolist()):
        at = np.flatnonzero(which.ravel() == number)
        if tuple(key) in grids:
            time[at] = grids[tuple(key)].at(points[at])
    return np.where(_is_even(batch), time, np.nan)


def _is_even(batch: KernelColumns) -> np.ndarray[Any, np.dtype[np.bool_]]:
    sizes = batch.sizes
    if "rows" not in batch.table.loads:
        return np.ones(len(batch), bool)
    even = sizes["num_tokens"] * sizes["topk"] / sizes["moe_ep_size"]
    return np.abs(sizes["rows"] / even - 1) < 0.01


def _columns(table: KernelTable) -> tuple[list[str], list[str]]:
    """The grid's columns, and those that must be equal."""
    sizes = [*table.sizes, *table.optional, *(table.described[1]([""]) if table.described else ())]
    # a prompt's tokens before it, which may be none, are as measured
    axes = [name for name in table.sizes if name in _AXES and not (name == "step" and "context" in table.name)]
    return axes, [name for name in sizes if name not in axes]


@functools.lru_cache(maxsize=64)
def _grids(name: str, folder: Path, names: tuple[str, ...], wanted: tuple[tuple[str, str], ...]) -> Mapping[_Key, Grid]:
    """Grids of one device and case by the sizes that must be equal."""
    import pandas as pd

    table = kernel_table(name)
    if table is None:
        return {}
    file = _FILES.get(name, name.replace("-", "_"))
    axes, same = _columns(table)
    tables = [_read(path, table, wanted) for path in newest(folder, names, f"{file}_perf")]
    if not tables:
        return {}
    points = pd.concat(tables, ignore_index=True)
    if not same:
        return {(): grid(points, tuple(axes))} if len(points) else {}
    return {tuple(rows[same].iloc[0].tolist()): grid(rows, tuple(axes)) for _, rows in points.groupby(same)}


def _read(path: Path, table: KernelTable, wanted: tuple[tuple[str, str], ...]) -> pd.DataFrame:
    """Sizes and ``latency`` of the rows of a case. InputError for a file that is no such table."""
    import pandas as pd

    try:
        read = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
        if "distribution" in read and table.loads:
            read = read[read["distribution"] == "balanced"]
        read = read.assign(framework=path.parent.parent.name)
        for name, text in wanted:
            if name in read:
                said = read[name].astype(str)
                said = (
                    said.map(table.kernel) if name == "kernel_source" else said.map(lambda x: table.type_named(x) or x)
                )
                read = read[said == text]
        sizes: dict[str, Any] = {name: read[name] for name in table.sizes}
        sizes |= {name: read[name] if name in read.columns else usual for name, usual in table.optional.items()}
        if table.described is not None:
            column, meant = table.described
            sizes |= meant(list(read[column].astype(str)) if column in read else [""] * len(read))
        return pd.DataFrame({**sizes, "latency": read["latency"]}, dtype=np.float64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a table of aiconfigurator: {error}") from error
