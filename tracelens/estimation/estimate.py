"""Estimates of tables: names become dimensions here, backends only see arrays. A single operation is one row.

``tracelens estimate``, its ``--batch`` and ``tl.estimate`` all end in ``priced``: an operation has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tracelens.backends import System
from tracelens.backends.base import EstimateTable, Floats
from tracelens.backends.chain import LAST, Chain, chain
from tracelens.backends.column_batch import ColumnBatch
from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.backends.kernels.kernel_costs import KernelColumns, KernelTable
from tracelens.backends.kernels.tile_model_kernels import GEMM_AITER
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.dtypes import DType, Precision
from tracelens.errors import UsageError
from tracelens.estimation.communication import estimate_collectives, estimate_exchanges
from tracelens.estimation.kernel_estimates import LIBRARIES, estimate_kernels
from tracelens.estimation.table_kinds import KINDS, Kind, size_faults, with_sizes
from tracelens.files.data_table import is_file_name, text_codes, texts
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.perf_models import GEMM
from tracelens.perf_models.base import WorkColumns

if TYPE_CHECKING:
    import pandas as pd

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
#: Types of tables and of ``--dtype``: nobody measured layers in MXFP8.
ESTIMATED = {text: each.calibrated for each in Precision if each is not Precision.MXFP8 for text in each.spellings}
#: The precision that stands for a type of this rate, where neither name nor alias says which.
_OF_RATE = {"bf16": Precision.BF16, "fp16": Precision.BF16, "fp8": Precision.FP8, "fp4": Precision.NVFP4}
#: Tables whose rows of AMD devices are kernels alone, the best of what was tuned: nobody fitted anything else.
_TUNED = {"moe": "moe-aiter"}
#: What an estimate says of a row.
_SAID = ("bound", "backend", "measured_as", "reason")
_FIGURES = ("time_us", "error_percent")
_INNER = ("compute_us", "memory_us", "peak_us", "flops")
_COMMUNICATION: Mapping[str, Callable[..., pd.DataFrame]] = {
    "collective": estimate_collectives,
    "ep": estimate_exchanges,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """On what, by whom and as whose kernels rows are estimated."""

    device: HardwareSpec | str | None = None
    backend: str = "tile"
    gpu_clock_mhz: float | None = None
    library: str | None = None

    def system(self, spec: HardwareSpec) -> System:
        """The device at the clock that is asked for."""
        return System(device=spec).at_clock(self.gpu_clock_mhz)


def estimate(
    what: str,
    table: pd.DataFrame | Mapping[str, object],
    *,
    device: HardwareSpec | str | None = None,
    cluster: str | None = None,
    backend: str = "tile",
    gpu_clock_mhz: float | None = None,
    library: str | None = None,
) -> pd.DataFrame:
    """``table`` with ``time_us``, ``bound``, ``backend``, ``measured_as`` (the device and types whose measurements the
    estimate rests on), ``error_percent`` (the mean error there; empty where it was not measured on this device in this
    type) and, where no backend can answer, a ``reason``.

    ``what``: ``gemm``, ``grouped-gemm``, ``sdpa``, ``moe``, ``context-attention``, ``generation-attention``, or a table
    of engines' kernels (``gdn``, ``mla-context-module``, ...), with the columns of ``docs/estimation.md``. The device
    is each row's ``device`` column, else ``device``. ``library``: whose kernels, where a row has no ``framework``;
    else the fastest. UsageError where a column is missing.

    Rows of ``gemm`` are products alone, as ``tracelens estimate gemm`` prices them; with a ``library``, or in a table
    of measured layers (a column ``framework`` or ``latency_ms``), an engine's linear layers.

    ``collective`` and ``ep`` are priced on a cluster's links (``docs/network.md``), at the data sheets' clocks. A
    mapping of column names to sizes is a table of one row: ``estimate("gemm", {"m": 8192, ...}, device="h100")``.
    """
    table = _as_table(what, table)
    if what in _COMMUNICATION:
        return _COMMUNICATION[what](
            table, cluster=cluster, device=device if isinstance(device, str | None) else device.name
        )
    if library is not None and library not in LIBRARIES:
        raise UsageError.unknown("library", library, LIBRARIES)
    asked = Asked(device=device, backend=backend, gpu_clock_mhz=gpu_clock_mhz, library=library)
    kernels = kernel_table(what)
    if kernels is not None:
        return _kernels(kernels, table, asked)
    columns = priced(what, table, asked)
    return table.assign(**{name: columns[name] for name in ("time_us", *_SAID[:3], "error_percent", "reason")})


def priced(what: str, table: pd.DataFrame, asked: Asked) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """The columns that ``estimate`` adds to rows of ``KINDS``, and those of a time's parts, FLOPs among them."""
    kind = _kind(what, table, is_device_named=asked.device is not None)
    answers = chain(asked.backend)
    given = table.reset_index(drop=True)
    if asked.library is not None and "framework" not in given:
        given = given.assign(framework=asked.library)
    columns = _empty(len(table))
    columns["reason"][:] = size_faults(given, kind)
    usable, sized = columns["reason"] == "", with_sizes(given, kind)
    names, types, like = (
        _words(given, column, usual) for column, usual in (("device", ""), (kind.dtype, "bf16"), (kind.apart, ""))
    )
    tuned = kernel_table(_TUNED.get(what, ""))
    for name, dtype, other in sorted(set(zip(names.tolist(), types.tolist(), like.tolist(), strict=True))):
        at = np.flatnonzero((names == name) & (types == dtype) & (like == other) & usable)
        spec = _device(name, asked.device)
        if spec is None:
            columns["reason"][at] = f"no device named {name!r}"
            continue
        if tuned is not None and spec.vendor == "amd" and answers.backends("moe")[0].name == "tile":
            found = _kernels(tuned, given.iloc[at], replace(asked, device=spec, library=None), inner=True)
            for key in columns:
                columns[key][at] = found[key].to_numpy()
            continue
        for rows, batch in _batches(kind, sized, at, (dtype, spec)):
            if isinstance(batch, str):
                columns["reason"][rows] = batch
                continue
            found_of = _answered(answers, batch, asked.system(spec))
            for key, values in found_of.items():
                columns[key][rows] = values
            unknown = rows[np.isnan(found_of["time_us"])]
            columns["reason"][unknown] = _unanswered(kind, dtype, spec, asked.backend)
    return columns


def _empty(rows: int) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    said = {name: np.full(rows, "", object) for name in _SAID}
    return said | {name: np.full(rows, np.nan) for name in (*_FIGURES, *_INNER)}


def _words(table: pd.DataFrame, column: str | Sequence[str], usual: str) -> np.ndarray[Any, np.dtype[Any]]:
    """A column's texts, or those of several columns joined."""
    if isinstance(column, str):
        return np.array(texts(table, column, usual) if column in table else [usual] * len(table), dtype=object)
    parts = [texts(table, name) if name in table else [""] * len(table) for name in column]
    return np.array([" ".join(words) for words in zip(*parts, strict=True)] or [""] * len(table), dtype=object)


def _unanswered(kind: Kind, dtype: str, device: HardwareSpec, backend: str) -> str:
    """Why no backend knows a row."""
    precision = precision_of(dtype)
    if kind.dtype != "kv_cache_dtype" and precision is not None and device.matrix:
        lacks = device.rate("matrix", precision.dtype) is None
        if lacks:
            return f"{device.name} has no matrix units for {dtype}: its file has {', '.join(device.matrix)}"
    return f"no backend of {backend!r} has figures for {dtype} on {device.name}"


def _as_table(what: str, given: object) -> pd.DataFrame:
    import pandas as pd

    if not isinstance(what, str):
        raise UsageError(f"what to estimate is a word, like 'gemm', not a {type(what).__name__}; the table follows it")
    if isinstance(given, pd.DataFrame):
        return given
    if not isinstance(given, Mapping):
        raise UsageError(
            f"estimate takes a DataFrame, or a mapping of column names to sizes, not a {type(given).__name__}"
        )
    return pd.DataFrame([dict(given)])


def _kind(what: str, table: pd.DataFrame, *, is_device_named: bool) -> Kind:
    kind = KINDS.get(what)
    if kind is None:
        raise UsageError.unknown("kind of table", what, [*KINDS, *kernel_tables(), *_COMMUNICATION])
    missing = [name for name in kind.needed if name not in table]
    if missing:
        raise UsageError(f"a table for {what} needs the column {missing[0]!r}; it has {', '.join(map(str, table))}")
    if not is_device_named and "device" not in table:
        raise UsageError("the table has no column 'device': name one with --device")
    return kind


def _answered(
    answers: Chain, work: ColumnBatch | WorkColumns, system: System
) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Columns of rows that are alike in type and device."""
    if isinstance(work, ColumnBatch):
        found, flops = answers.estimate_batch(work, system), work.flops()
    else:
        found, flops = answers.estimate_many(work, system), work.flops
    known = ~np.isnan(found.time_us) & ~without_rate(found, flops)
    columns = {name: np.where(known, getattr(found, name), np.nan) for name in ("time_us", *_INNER[:3])}
    for name, said in (("bound", found.bound), ("backend", found.backend)):
        columns[name] = np.where(known, np.array([word or "" for word in said], object), "")
    columns["measured_as"], columns["error_percent"] = answers.measured_as(work, system, found)
    return columns | {"flops": np.asarray(flops, np.float64)}


def _kernels(kernels: KernelTable, table: pd.DataFrame, asked: Asked, *, inner: bool = False) -> pd.DataFrame:
    if "device" not in table and asked.device is None:
        raise UsageError("the table has no column 'device': name one with --device")
    codes, names = text_codes(table, "device") if "device" in table else (np.zeros(len(table), np.intp), [""])
    systems: list[System | None] = [None] * len(names)
    for number in np.unique(codes).tolist():
        spec = _device(names[number], asked.device)
        systems[number] = None if spec is None else asked.system(spec)
    found = estimate_kernels(kernels, table, (codes, systems), chain(asked.backend), asked.library)
    return found if inner else found.drop(columns=list(_INNER))


def without_rate(found: EstimateTable, flops: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows of which the roofline only knows the memory traffic: the device has no rate for their type."""
    bounded = np.array([name == LAST for name in found.backend], dtype=bool)
    return bounded & np.isnan(found.compute_us) & (flops > 0)


def _batches(
    kind: Kind, table: pd.DataFrame, at: Positions, typed: tuple[str, HardwareSpec]
) -> Iterator[tuple[Positions, ColumnBatch | WorkColumns | str]]:
    """Rows and their batch; for a row that describes nothing possible, the reason. It costs no other its answer."""
    if not len(at):
        return
    (dtype, device), precision = typed, precision_of(typed[0])
    try:
        part = table.iloc[at]
        yield at, _products_in(kind, part, dtype, device) if precision is None else kind.columns(part, precision)
    except UsageError as error:
        if len(at) == 1 or precision is None:
            yield at, str(error)
            return
        for half in np.array_split(at, 2):
            yield from _batches(kind, table, half, typed)


def _products_in(kind: Kind, part: pd.DataFrame, dtype: str, device: HardwareSpec) -> ColumnBatch | WorkColumns:
    """Products in another type: AMD's tuned kernels, where they name it, else as the roofline has it."""
    columns = kind.columns(part, Precision.BF16)
    named, read = GEMM_AITER.type_named(dtype), DType.parse(dtype)
    named = named if named in GEMM_AITER.types else None
    is_known = named is not None or (read is not None and read.rate is not None)
    if kind is not KINDS["gemm"] or not isinstance(columns, GEMMColumns) or not is_known:
        raise UsageError(f"no estimates for type {dtype!r}")
    sizes = {"m": columns.m, "n": columns.n, "k": columns.k, "batch": columns.b}
    if named is not None and device.vendor == "amd":
        return KernelColumns(precision="bf16", table=GEMM_AITER, case=(("gemm_dtype", named),), sizes=sizes)
    if read is None or read.rate is None:
        raise UsageError(f"{dtype} is a type of AMD's tuned kernels; {device.name} has none")
    rows = zip(*(values.astype(int).tolist() for values in sizes.values()), strict=True)
    return WorkColumns.of([GEMM(m=m, n=n, k=k, b=b, dtype=read) for m, n, k, b in rows])


def _device(name: str, given: HardwareSpec | str | None) -> HardwareSpec | None:
    """The device that a row names, else ``given``; None for a name that nothing has. A row never names a file."""
    if not name:
        return given if isinstance(given, HardwareSpec) else HardwareSpec.load(given or "")
    try:
        return None if is_file_name(name) else HardwareSpec.load(name)
    except UsageError:
        return None


def precision_of(dtype: str) -> Precision | None:
    """The precision that a type in any spelling is estimated in; None for one without."""
    found = ESTIMATED.get(dtype.strip().lower())
    kind = DType.parse(dtype)
    return found or (None if kind is None else _OF_RATE.get(kind.rate or ""))
