"""Estimates of whole tables: names become dimensions here, backends only see arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tracelens.backends import System
from tracelens.backends.base import EstimateTable, Floats
from tracelens.backends.chain import LAST, Chain, chain
from tracelens.backends.column_batch import ColumnBatch
from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.backends.kernels.base import KernelTable
from tracelens.dtypes import DType, Precision
from tracelens.errors import UsageError
from tracelens.estimation.communication import estimate_collectives, estimate_exchanges
from tracelens.estimation.kernel_estimates import LIBRARIES, estimate_kernels
from tracelens.estimation.table_kinds import KINDS, Kind, size_faults, with_sizes
from tracelens.files.data_table import is_file_name, text_codes, texts
from tracelens.hardware import HardwareSpec

if TYPE_CHECKING:
    import pandas as pd

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
#: Types of tables and of ``--dtype``: nobody measured layers in MXFP8.
ESTIMATED = {text: each.calibrated for each in Precision if each is not Precision.MXFP8 for text in each.spellings}
#: The precision that stands for a type of this rate, where neither name nor alias says which.
_OF_RATE = {"bf16": Precision.BF16, "fp16": Precision.BF16, "fp8": Precision.FP8, "fp4": Precision.NVFP4}
#: Tables whose rows of AMD devices are kernels alone, the best of what was tuned.
_TUNED = {"gemm": "gemm-aiter", "moe": "moe-aiter"}
_COMMUNICATION: Mapping[str, Callable[..., pd.DataFrame]] = {
    "collective": estimate_collectives,
    "ep": estimate_exchanges,
}


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
    """``table`` with ``time_us``, ``bound``, ``backend`` and, where no backend can answer, a ``reason``.

    ``what``: ``gemm``, ``context-attention``, ``generation-attention``, ``moe``, or a table of engines' kernels
    (``gdn``, ``mla-context-module``, ...), with the column names of aiconfigurator's tables (``docs/estimation.md``).
    Rows are an inference engine's layers, as measured there. The device is each row's ``device`` column, else
    ``device``. ``library``: whose kernels, where a row has no ``framework``; else the fastest. UsageError where a
    column is missing.

    ``collective`` and ``ep`` are priced on a cluster's links (``docs/network.md``), at the data sheets' clocks. A
    mapping of column names to sizes is a table of one row: ``estimate("gemm", {"m": 8192, ...}, device="h100")``.
    """
    table = _as_table(what, table)
    if what in _COMMUNICATION:
        return _COMMUNICATION[what](
            table, cluster=cluster, device=device if isinstance(device, str | None) else device.name
        )
    of_kernels = _of_kernels(what, table, device, backend, gpu_clock_mhz, library)
    if of_kernels is not None:
        return of_kernels
    kind = _kind(what, table, is_device_named=device is not None)
    answers = chain(backend)
    n, given = len(table), table.reset_index(drop=True)
    columns = {name: np.full(n, "", object) for name in ("time_us", "bound", "backend", "reason")}
    columns["time_us"] = np.full(n, np.nan)
    columns["reason"][:] = size_faults(given, kind)
    usable, sized = columns["reason"] == "", with_sizes(given, kind)
    names = np.array(texts(given, "device") if "device" in table else [""] * n, dtype=object)
    types = np.array(texts(given, kind.dtype, "bf16") if kind.dtype in table else ["bf16"] * n, dtype=object)
    for name in sorted(set(names.tolist())):
        spec = _device(name, device)
        for dtype in sorted(set(types[names == name].tolist())):
            at = np.flatnonzero((names == name) & (types == dtype) & usable)
            precision = precision_of(dtype)
            if spec is None or precision is None:
                problem = f"no device named {name!r}" if spec is None else f"no estimates for type {dtype!r}"
                columns["reason"][at] = problem
                continue
            system = System(device=spec).at_clock(gpu_clock_mhz)
            for rows, batch in _batches(kind, sized, at, precision):
                if isinstance(batch, str):
                    columns["reason"][rows] = batch
                    continue
                found = _answered(answers, batch, system)
                for key, values in found.items():
                    columns[key][rows] = values
                unknown = rows[np.isnan(found["time_us"])]
                columns["reason"][unknown] = f"no backend of {backend!r} has figures for {dtype} on {spec.name}"
    return table.assign(**columns)


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


def _answered(answers: Chain, batch: ColumnBatch, system: System) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    found = answers.estimate_batch(batch, system)
    known = ~np.isnan(found.time_us) & ~without_rate(found, batch.flops())
    return {
        "time_us": np.where(known, found.time_us, np.nan),
        "bound": np.where(known, np.array([word or "" for word in found.bound], object), ""),
        "backend": np.where(known, np.array([word or "" for word in found.backend], object), ""),
    }


def _tuned(table: pd.DataFrame, device: HardwareSpec | str | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows of AMD's devices, whose tuned kernels are a table of their own."""
    if "device" not in table and device is None:
        return np.zeros(len(table), bool)
    names = texts(table, "device") if "device" in table else [""] * len(table)
    specs = {name: _device(name, device) for name in set(names)}
    amd = {name for name, spec in specs.items() if spec is not None and spec.vendor == "amd"}
    return np.array([name in amd for name in names], bool)


def _of_kernels(
    what: str,
    table: pd.DataFrame,
    device: HardwareSpec | str | None,
    backend: str,
    gpu_clock_mhz: float | None,
    library: str | None,
) -> pd.DataFrame | None:
    """A table of engines' kernels, or one with rows of AMD's tuned kernels; None for others."""
    import pandas as pd

    if library is not None and library not in LIBRARIES:
        raise UsageError.unknown("library", library, LIBRARIES)
    kernels = kernel_table(_TUNED.get(what, what))
    if kernels is None:
        return None
    if what not in _TUNED:
        return _kernels(kernels, table, device, chain(backend), gpu_clock_mhz, library)
    tuned = _tuned(table, device)
    if not tuned.any() or "tile" not in backend:
        return None
    found = [_kernels(kernels, table[tuned], device, chain(backend), gpu_clock_mhz, None)]
    if not tuned.all():
        others = estimate(what, table[~tuned], device=device, backend=backend, gpu_clock_mhz=gpu_clock_mhz)
        found.append(others.assign(measured_as="", error_percent=np.nan))
    order = np.argsort(np.concatenate([np.flatnonzero(tuned), np.flatnonzero(~tuned)]), kind="stable")
    return pd.concat(found).iloc[order]


def _kernels(
    kernels: KernelTable,
    table: pd.DataFrame,
    device: HardwareSpec | str | None,
    backend: Chain,
    gpu_clock_mhz: float | None,
    library: str | None,
) -> pd.DataFrame:
    if "device" not in table and device is None:
        raise UsageError("the table has no column 'device': name one with --device")
    codes, names = text_codes(table, "device") if "device" in table else (np.zeros(len(table), np.intp), [""])
    named = np.unique(codes).tolist()
    systems: list[System | None] = [None] * len(names)
    for number in named:
        spec = _device(names[number], device)
        systems[number] = None if spec is None else System(device=spec).at_clock(gpu_clock_mhz)
    return estimate_kernels(kernels, table, (codes, systems), backend, library)


def without_rate(found: EstimateTable, flops: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Rows of which the roofline only knows the memory traffic: the device has no rate for their type."""
    bounded = np.array([name == LAST for name in found.backend], dtype=bool)
    return bounded & np.isnan(found.compute_us) & (flops > 0)


def _batches(
    kind: Kind, table: pd.DataFrame, at: Positions, precision: str
) -> Iterator[tuple[Positions, ColumnBatch | str]]:
    """Rows and their batch; for a row that describes nothing possible, the reason. It costs no other its answer."""
    if not len(at):
        return
    try:
        yield at, kind.columns(table.iloc[at], precision)
    except UsageError as error:
        if len(at) == 1:
            yield at, str(error)
            return
        for half in np.array_split(at, 2):
            yield from _batches(kind, table, half, precision)


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
