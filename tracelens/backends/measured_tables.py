"""Times that others measured: aiconfigurator's published tables as grids, where that package is installed.

Between measured points the logarithm of the time is linear in the logarithms of the sizes, over the cell of the grid
that encloses the shape; every corner that counts must have been measured, and outside of the grid there is no answer.

Of several frameworks the newest version of each counts, and at each point the fastest. GEMM: (m, n, k). Attention: the
same heads, head dimension and window, over (batch, keys). Expert layers on even loads, since the columns of a call do
not say how others were drawn: the same layer, over tokens. Engines' kernels: each ``KernelTable``, in the file of its
name, with numbers of tokens and keys and the sizes of a product as a grid; all else must be as measured.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import Backend, ColumnBatch, EstimateTable, Floats, System, backend
from tracelens.backends.kernels import kernel_table
from tracelens.backends.kernels.kernel_costs import KernelColumns, KernelRates, KernelTable
from tracelens.backends.roofline_and_tile import Roofline
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns, MoEColumns
from tracelens.errors import InputError, TracelensError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM
from tracelens.perf_models.base import WorkColumns, resolved
from tracelens.types.dtypes import DType, Precision
from tracelens.types.records import Record, pd

#: Sizes that are the same in all rows of a grid.
_Key = tuple[float, ...]


class Grid(Record, frozen=True, kw_only=True, eq=False):
    """Logarithms of measured sizes along each axis, and of the times at their crossings; NaN where not measured."""

    axes: tuple[Floats, ...]
    log_us: npt.NDArray[np.float64]

    def at(self, sizes: Floats) -> Floats:
        """Times in us at the rows of ``sizes``, one column per axis."""
        inside, low, share = np.ones(len(sizes), bool), [], []
        for axis, values in zip(self.axes, np.log(sizes).T, strict=True):
            inside &= (values >= axis[0] - 1e-9) & (values <= axis[-1] + 1e-9)
            cell = np.clip(np.searchsorted(axis, values + 1e-9) - 1, 0, max(len(axis) - 2, 0))
            width = axis[np.minimum(cell + 1, len(axis) - 1)] - axis[cell]
            part = np.divide(values - axis[cell], width, out=np.zeros(len(values)), where=width > 0)
            low.append(cell)
            share.append(np.where(np.abs(part - part.round()) < 1e-6, part.round(), part))
        total = np.zeros(len(sizes))
        for corner in itertools.product((0, 1), repeat=len(self.axes)):
            weight = np.prod([s if side else 1 - s for side, s in zip(corner, share, strict=True)], axis=0)
            at = tuple(
                np.minimum(cell + side, len(axis) - 1) for cell, side, axis in zip(low, corner, self.axes, strict=True)
            )
            total += np.where(weight > 0, weight * self.log_us[at], 0.0)
        return np.where(inside, np.exp(total), np.nan)


def grid(points: pd.DataFrame, axes: Sequence[str]) -> Grid:
    """Of ``latency`` in ms over the columns ``axes``; of several times at a point the least."""
    fastest = points.groupby(list(axes))["latency"].min()
    sizes = [fastest.index.get_level_values(axis).to_numpy(np.float64) for axis in axes]
    values = [np.unique(size) for size in sizes]
    log_us = np.full([len(each) for each in values], np.nan)
    at = tuple(np.searchsorted(each, size) for each, size in zip(values, sizes, strict=True))
    log_us[at] = np.log(fastest.to_numpy(np.float64) * 1e3)
    return Grid(axes=tuple(np.log(each) for each in values), log_us=log_us)


def read_grids(
    paths: Sequence[Path],
    rows_of: Callable[[pd.DataFrame, Path], pd.DataFrame],
    same: Sequence[str],
    axes: Sequence[str],
) -> Mapping[_Key, Grid]:
    """Grids over ``axes`` by the columns ``same``, which must be equal; ``rows_of`` takes both and ``latency`` from a
    file. InputError for a file that is no such table.
    """
    tables = []
    for path in paths:
        try:
            read = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
            tables.append(pd.DataFrame(rows_of(read, path)[[*same, *axes, "latency"]], dtype=np.float64))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is not a table of aiconfigurator: {error}") from error
    if not tables:
        return {}
    points = pd.concat(tables, ignore_index=True)
    if not same:
        return {(): grid(points, axes)} if len(points) else {}
    return {tuple(np.array(key).tolist()): grid(rows, axes) for key, rows in points.groupby(list(same))}


def times_at(grids: Mapping[_Key, Grid], same: Floats, sizes: Floats) -> Floats:
    """Times in us at the rows of ``sizes``, each in the grid of its row of ``same``; NaN where there is none."""
    time = np.full(len(sizes), np.nan)
    found, which = np.unique(same, axis=0, return_inverse=True)
    for number, key in enumerate(found.tolist()):
        at = np.flatnonzero(which.ravel() == number)
        if tuple(key) in grids:
            time[at] = grids[tuple(key)].at(sizes[at])
    return time


def newest(folder: Path, names: tuple[str, ...], file: str) -> list[Path]:
    """The newest version of each framework's table: ``SYSTEM/FAMILY/FRAMEWORK/VERSION/``, before 0.10 no family."""
    newest: dict[str, Path] = {}
    for system in sorted(folder.iterdir()):
        if not system.is_dir() or _device_name(system.name) not in names:
            continue
        for path in sorted(system.rglob(f"{file}.*")):
            framework = path.parent.parent.name
            if path.suffix in (".parquet", ".txt", ".csv"):
                other = newest.get(framework)
                if other is None or _version(path) > _version(other):
                    newest[framework] = path
    return [newest[name] for name in sorted(newest)]


def _version(path: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", path.parent.name))


@functools.cache
def _device_name(folder: str) -> str | None:
    try:
        return HardwareSpec.load(folder).name
    except TracelensError:
        return None


#: Files whose name is not the table's.
_KERNEL_FILES = {"quantize-scale": "computescale", "quantize-matrix": "scale_matrix", "moe-mxfp4": "moe"}
#: Sizes between which times are interpolated.
_KERNEL_AXES = ("batch_size", "isl", "step", "seq_len", "num_tokens", "message_size", "m", "n", "k")


def kernel_times(batch: KernelColumns, folder: Path | None, device: HardwareSpec) -> Floats:
    """Times in us of the fastest kernel that fits the case; NaN where nothing near was measured."""
    table = batch.table
    if folder is None:
        return np.full(len(batch), np.nan)
    names = tuple(filter(None, (device.name, device.based_on)))
    wanted = tuple(pair for pair in batch.case if pair[0] != "version")
    grids = _kernel_grids(table.name, folder, names, wanted)
    axes, same = _kernel_columns(table)
    keys = np.stack([batch.sizes[name] for name in same], axis=1) if same else np.zeros((len(batch), 0))
    points = np.stack([batch.sizes[name] for name in axes], axis=1)
    times = times_at(grids, keys, points)
    if "rows" not in table.loads:
        return times
    even = batch.sizes["num_tokens"] * batch.sizes["topk"] / batch.sizes["moe_ep_size"]
    return np.where(np.abs(batch.sizes["rows"] / even - 1) < 0.01, times, np.nan)


def _kernel_columns(table: KernelTable) -> tuple[list[str], list[str]]:
    """The grid's columns, and those that must be equal."""
    sizes = [*table.sizes, *table.optional, *(table.described[1]([""]) if table.described else ())]
    # a prompt's tokens before it, which may be none, are as measured
    axes = [name for name in table.sizes if name in _KERNEL_AXES and not (name == "step" and "context" in table.name)]
    return axes, [name for name in sizes if name not in axes]


@functools.lru_cache(maxsize=64)
def _kernel_grids(
    name: str, folder: Path, names: tuple[str, ...], wanted: tuple[tuple[str, str], ...]
) -> Mapping[_Key, Grid]:
    """Grids of one device and case by the sizes that must be equal."""
    table = kernel_table(name)
    if table is None:
        return {}
    file = _KERNEL_FILES.get(name, name.replace("-", "_"))
    axes, same = _kernel_columns(table)
    rows_of = functools.partial(_kernel_rows, table=table, wanted=wanted)
    return read_grids(newest(folder, names, f"{file}_perf"), rows_of, same, axes)


def _kernel_rows(
    read: pd.DataFrame, path: Path, *, table: KernelTable, wanted: tuple[tuple[str, str], ...]
) -> pd.DataFrame:
    """Sizes and ``latency`` of the rows of a case."""
    if "distribution" in read and table.loads:
        read = read[read["distribution"] == "balanced"]
    read = read.assign(framework=path.parent.parent.name)
    for name, text in wanted:
        if name in read:
            said = read[name].astype(str)
            said = said.map(table.kernel) if name == "kernel_source" else said.map(lambda x: table.type_named(x) or x)
            read = read[said == text]
    sizes: dict[str, Any] = {name: usual for name, usual in table.optional.items() if name not in read.columns}
    if table.described is not None:
        column, meant = table.described
        sizes |= meant(list(read[column].astype(str)) if column in read else [""] * len(read))
    return read.assign(**sizes)


#: Since 0.11 the tables are in a package of their own.
PACKAGES = ("aiconfigurator_core", "aiconfigurator")
_HEADS = ("num_heads", "num_key_value_heads", "head_dim", "window_size")
_LAYER = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")


class _Kind(NamedTuple):
    """A family's files: columns that must be equal, and those of the grid."""

    file: str
    dtype: str
    same: tuple[str, ...]
    grid: tuple[str, ...]


_KINDS = {
    "gemm": _Kind("gemm_perf", "gemm_dtype", (), ("m", "n", "k")),
    "prefill": _Kind("context_attention_perf", "kv_cache_dtype", _HEADS, ("batch_size", "isl")),
    "decode": _Kind("generation_attention_perf", "kv_cache_dtype", _HEADS, ("batch_size", "keys")),
    "latent": _Kind("generation_mla_perf", "kv_cache_dtype", ("num_heads",), ("batch_size", "keys")),
    "moe": _Kind("moe_perf", "moe_dtype", _LAYER, ("num_tokens",)),
}


@backend("silicon")
class Silicon(Backend):
    """Layers as aiconfigurator measured them, and BF16 products alone; None for everything else.

    Times are at the device's own clock, so at another there is no answer. Where a repeated measurement found operands
    in L2 and is faster than the data sheet allows, the data sheet's time stands.
    """

    name: ClassVar[str] = "silicon"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        time = _products(columns, data_folder(), system.device) if _applies(system.device) else None
        return self._table(time, len(columns), lambda: Roofline().estimate_many(columns, system))

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        looked_up = _TIMES.get(batch.family) if _applies(system.device) else None
        time = None if looked_up is None else looked_up(batch, data_folder(), system.device)
        return self._table(time, len(batch), lambda: _least(batch, system))

    def _table(self, time: Floats | None, rows: int, least: Callable[[], EstimateTable]) -> EstimateTable:
        return EstimateTable.unanswered(rows) if time is None else least().timed(self.name, time, ["achievable"] * rows)


def _least(batch: ColumnBatch, system: System) -> EstimateTable:
    """The data sheet's times; of kernels whose operands L2 may hold from the call before, without those."""
    bound, rates = Roofline().estimate_batch(batch, system), KernelRates.of(system.device)
    if not isinstance(batch, KernelColumns) or rates is None:
        return bound
    work = batch.table.work(batch.sizes, dict(batch.case))
    return replace(bound, peak_us=batch.table.least_us(work, rates))


def absence() -> str | None:
    """Why there are no tables; None where they can be read."""
    if not any(importlib.util.find_spec(name) for name in PACKAGES):
        return "aiconfigurator is not installed"
    folder = data_folder()
    if folder is None:
        return "the installed aiconfigurator has no folder systems/data"
    if next(folder.rglob("*_perf.parquet"), None) is not None and importlib.util.find_spec("pyarrow") is None:
        return "reading aiconfigurator's tables needs pyarrow (pip install pyarrow)"
    return None


def data_folder() -> Path | None:
    """``systems/data`` of the installed package, which is not imported."""
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        for place in (found.submodule_search_locations or ()) if found is not None else ():
            folder = Path(place) / "systems" / "data"
            if folder.is_dir():
                return folder
    return None


def _applies(device: HardwareSpec) -> bool:
    return device.clock_scale == 1 and absence() is None


def _gemms(c: GEMMColumns, folder: Path | None, device: HardwareSpec) -> Floats | None:
    if c.blocks is not None or not (c.as_layer or c.precision == "bf16"):
        return None
    sizes = np.stack([c.m, c.n, c.k], axis=1)
    alone = (c.b == 1) & (c.groups == 1)
    return np.where(alone, _looked_up(folder, device, "gemm", c.precision, None, sizes), np.nan)


def _products(columns: WorkColumns, folder: Path | None, device: HardwareSpec) -> Floats | None:
    time = np.full(len(columns), np.nan)
    rows = [
        index
        for index, model in enumerate(columns.models)
        if type(model) is GEMM
        and model.b == 1
        and {model.dtype, resolved(model.dtype_b, model.dtype)} <= {DType.BF16, DType.FP16}
    ]
    if rows:
        models: list[Any] = [columns.models[row] for row in rows]
        sizes = np.array([(model.m, model.n, model.k) for model in models], dtype=np.float64)
        time[rows] = _looked_up(folder, device, "gemm", "bf16", None, sizes)
    return time


def _attention(c: AttentionColumns, folder: Path | None, device: HardwareSpec) -> Floats | None:
    if not c.as_layer:
        return None
    single = c.s == 1
    window = np.where(np.isfinite(c.window), c.window, 0.0)
    decoding = np.stack([c.b, c.keys], axis=1)
    if c.value_in_key:
        found = _looked_up(folder, device, "latent", c.precision, c.q_heads[:, None], decoding)
        return np.where(single, found, np.nan)
    same = np.stack([c.q_heads, c.kv_heads, c.d_qk, window], axis=1)
    prompt = np.stack([c.b, c.s], axis=1)
    time = np.where(
        single,
        _looked_up(folder, device, "decode", c.precision, same, decoding),
        np.where(c.past == 0, _looked_up(folder, device, "prefill", c.precision, same, prompt), np.nan),
    )
    return np.where((c.d_qk == c.d_v) & (c.causal > 0), time, np.nan)


def _layers(c: MoEColumns, folder: Path | None, device: HardwareSpec) -> Floats:
    """Tables name the experts' full width; this rank's share times every degree that was measured is tried."""
    time = np.full(len(c), np.nan)
    even = np.abs(c.rows * c.ranks / (c.tokens * c.topk) - 1) < 1e-6
    for tp in (1, 2, 4, 8, 16, 32):
        share = [c.hidden, c.ffn * tp, c.topk, c.local_experts * c.ranks, np.full(len(c), float(tp)), c.ranks]
        found = _looked_up(folder, device, "moe", c.precision, np.stack(share, axis=1), c.tokens[:, None])
        time = np.fmin(time, found)
    return np.where(even, time, np.nan)


#: Family of a column batch -> its times.
_TIMES: Mapping[str, Callable[[Any, Path | None, HardwareSpec], Floats | None]] = {
    "gemm": _gemms, "sdpa": _attention, "moe": _layers, "kernel": kernel_times,
}  # fmt: skip


def _looked_up(
    folder: Path | None, device: HardwareSpec, family: str, precision: str, same: Floats | None, sizes: Floats
) -> Floats:
    names = tuple(filter(None, (device.name, device.based_on)))
    grids = {} if folder is None else _grids(folder, names, family, precision)
    if same is None:
        return grids[()].at(sizes) if () in grids else np.full(len(sizes), np.nan)
    return times_at(grids, same, sizes)


@functools.lru_cache(maxsize=32)
def _grids(folder: Path, names: tuple[str, ...], family: str, precision: str) -> Mapping[tuple[float, ...], Grid]:
    """Grids of one device, family and precision by the sizes that must be equal."""
    kind = _KINDS[family]
    rows_of = functools.partial(_layer_rows, kind=kind, precision=precision)
    return read_grids(newest(folder, names, kind.file), rows_of, kind.same, kind.grid)


def _layer_rows(table: pd.DataFrame, _: Path, *, kind: _Kind, precision: str) -> pd.DataFrame:
    types = [Precision.parse(name) for name in table[kind.dtype].astype(str).tolist()]
    table = table[[each is not None and each.calibrated.value == precision for each in types]]
    if "keys" in kind.grid:
        table = table.assign(keys=table["isl"] + table["step"])
    if "window_size" in kind.same:
        table = table.assign(window_size=table["window_size"].fillna(0) if "window_size" in table else 0)
    if "isl" in kind.grid and "step" in table:
        table = table[table["step"] == 0]
    return table[table["distribution"] == "balanced"] if "distribution" in table else table
