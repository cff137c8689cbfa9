"""Estimates of tables and of single operations: names become dimensions here, backends only see arrays.

``tracelens estimate``, its ``--batch`` and ``tl.estimate`` all end in ``priced``: an operation has one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import msgspec
import numpy as np

from tracelens.backends import System, origami
from tracelens.backends.base import ColumnBatch, Estimate
from tracelens.backends.chain import LAST, Chain, chain
from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.backends.kernels.kernel_costs import KernelColumns, KernelTable
from tracelens.backends.kernels.tile_model_kernels import GEMM_AITER
from tracelens.backends.roofline_and_tile import POWER_BASIS, POWER_FIGURES, power_columns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.errors import UsageError
from tracelens.files.data_table import is_file_name, texts
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.estimation import table_kinds
from tracelens.predict.estimation.communication import estimate_collectives, estimate_exchanges, require_columns
from tracelens.predict.estimation.table_kinds import KINDS, LIBRARIES, TableKind
from tracelens.types.dtypes import DType, Precision
from tracelens.types.records import Record, pd

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
Column: TypeAlias = np.ndarray[Any, np.dtype[Any]]
#: Types of tables and of ``--dtype``: nobody measured layers in MXFP8; INT8's are products alone.
_APART = (Precision.MXFP8, Precision.INT8)
ESTIMATED = {text: each.calibrated for each in Precision if each not in _APART for text in each.spellings}
#: The precision that stands for a type of this rate, where neither name nor alias says which.
_OF_RATE = {"bf16": Precision.BF16, "fp16": Precision.BF16, "fp8": Precision.FP8, "fp4": Precision.NVFP4}
#: Tables whose rows of AMD devices are kernels alone, the best of what was tuned: nobody fitted anything else.
_TUNED = {"moe": "moe-aiter"}
#: What an estimate says of a row.
_SAID = ("bound", "backend", "measured_as", "reason", POWER_BASIS)
_FIGURES = ("time_us", "error_percent", *POWER_FIGURES)
_INNER = ("compute_us", "memory_us", "peak_us", "flops")
_COMMUNICATION: Mapping[str, Callable[..., pd.DataFrame]] = {
    "collective": estimate_collectives,
    "ep": estimate_exchanges,
}


class Asked(Record, frozen=True, kw_only=True):
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

    ``power_w`` and ``energy_mj`` of one call, each with ``_low`` and ``_high``, and ``power_measured_as`` are what the
    device draws (``docs/energy.md``), empty where nobody measured it; of these, names that the table has get ``_est``.

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
    columns = priced(what, table, asked) if kernels is None else _kernels(kernels, table, asked)
    found = table.assign(**{name: columns[name] for name in ("time_us", *_SAID[:3], "error_percent", "reason")})
    return table_kinds.with_power(found, columns)


def priced(what: str, table: pd.DataFrame, asked: Asked) -> dict[str, Column]:
    """The columns that ``estimate`` adds to rows of ``KINDS``, and those of a time's parts, FLOPs among them."""
    kind = _kind(what, table, is_device_named=asked.device is not None)
    answers = chain(asked.backend)
    given = table.reset_index(drop=True)
    if asked.library is not None and "framework" not in given:
        given = given.assign(framework=asked.library)
    columns = _empty(len(table))
    columns["reason"][:] = table_kinds.size_faults(given, kind)
    usable, sized = columns["reason"] == "", table_kinds.with_sizes(given, kind)
    apart = (*kind.apart, "framework")
    names, types, like = (
        _words(given, column, usual) for column, usual in (("device", ""), (kind.dtype, "bf16"), (apart, ""))
    )
    tuned = kernel_table(_TUNED.get(what, ""))
    for name, dtype, other in sorted(set(zip(names.tolist(), types.tolist(), like.tolist(), strict=True))):
        at = np.flatnonzero((names == name) & (types == dtype) & (like == other) & usable)
        spec = _device(name, asked.device)
        if spec is None:
            columns["reason"][at] = f"no device named {name!r}"
            continue
        if tuned is not None and spec.vendor == "amd" and answers.backends("moe")[0].name == "tile":
            found = _kernels(tuned, given.iloc[at], replace(asked, device=spec, library=None))
            for key in columns:
                columns[key][at] = found[key]
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


def _empty(rows: int) -> dict[str, Column]:
    said = {name: np.full(rows, "", object) for name in _SAID}
    return said | {name: np.full(rows, np.nan) for name in (*_FIGURES, *_INNER)}


def _words(table: pd.DataFrame, column: str | Sequence[str], usual: str) -> Column:
    """A column's texts, or those of several columns joined."""
    if isinstance(column, str):
        return np.array(texts(table, column, usual) if column in table else [usual] * len(table), dtype=object)
    parts = [texts(table, name) if name in table else [""] * len(table) for name in column]
    return np.array([" ".join(words) for words in zip(*parts, strict=True)] or [""] * len(table), dtype=object)


def _unanswered(kind: TableKind, dtype: str, device: HardwareSpec, backend: str) -> str:
    """Why no backend knows a row."""
    precision = precision_of(dtype)
    is_product = kind.dtype != "kv_cache_dtype" and bool(device.matrix)
    if is_product and precision is not None and device.rate("matrix", precision.dtype) is None:
        return f"{device.name} has no matrix units for {dtype}: its file has {', '.join(device.matrix)}"
    return f"no backend of {backend!r} has figures for {dtype} on {device.name}"


def _as_table(what: str, given: object) -> pd.DataFrame:
    if not isinstance(what, str):
        raise UsageError(f"estimate takes a name like 'gemm' first, not a {type(what).__name__}, then the table")
    if isinstance(given, pd.DataFrame):
        return given
    if not isinstance(given, Mapping):
        raise UsageError(
            f"estimate takes a DataFrame, or a mapping of column names to sizes, not a {type(given).__name__}"
        )
    return pd.DataFrame([dict(given)])


def _kind(what: str, table: pd.DataFrame, *, is_device_named: bool) -> TableKind:
    kind = KINDS.get(what)
    if kind is None:
        raise UsageError.unknown("kind of table", what, [*KINDS, *kernel_tables(), *_COMMUNICATION])
    require_columns(table, what, kind.needed)
    if not is_device_named and "device" not in table:
        raise UsageError("the table has no column 'device': name one with --device")
    return kind


def _answered(
    answers: Chain, work: ColumnBatch | WorkColumns, system: System, *, is_kernel: bool = False
) -> dict[str, Column]:
    """Columns of rows that are alike in type and device. A device without a rate for their type has no answer, but for
    kernels of engines.
    """
    if isinstance(work, ColumnBatch):
        found, flops = answers.estimate_batch(work, system), work.flops()
    else:
        found, flops = answers.estimate_many(work, system), work.flops
    # the roofline then only knows the memory traffic
    bounded = np.array([name == LAST for name in found.backend], dtype=bool)
    without_rate = bounded & np.isnan(found.compute_us) & (flops > 0)
    known = ~np.isnan(found.time_us) & (is_kernel | ~without_rate)
    columns = {name: np.where(known, getattr(found, name), np.nan) for name in ("time_us", *_INNER[:3])}
    for name, said in (("bound", found.bound), ("backend", found.backend)):
        columns[name] = np.where(known, np.array([word or "" for word in said], object), "")
    columns["measured_as"], columns["error_percent"] = answers.measured_as(work, system, found)
    watts = power_columns(work, found, system.device, columns["error_percent"])
    watts |= {name: np.where(known, watts[name], np.nan) for name in POWER_FIGURES}
    return columns | {"flops": np.asarray(flops, np.float64)} | watts


def _kernels(kernels: KernelTable, table: pd.DataFrame, asked: Asked) -> dict[str, Column]:
    """As ``priced``, of rows of a table of engines' kernels."""
    if "device" not in table and asked.device is None:
        raise UsageError("the table has no column 'device': name one with --device")
    given, backend = table.reset_index(drop=True), chain(asked.backend)
    columns, names = _empty(len(table)), _words(given, "device", "")
    columns["reason"][:] = table_kinds.kernel_size_faults(kernels, given)
    usable = columns["reason"] == ""
    for name in dict.fromkeys(names.tolist()):
        at, spec = np.flatnonzero(usable & (names == name)), _device(name, asked.device)
        if spec is None:
            columns["reason"][at] = "no device of that name"
            continue
        system = asked.system(spec)
        for rows, batch in table_kinds.batches(kernels, given, at, asked.library):
            lacked = kernels.lacks(dict(batch.case), system.device)
            if lacked is not None:
                columns["reason"][rows] = lacked
                continue
            for key, values in _answered(backend, batch, system, is_kernel=True).items():
                columns[key][rows] = values
            unknown = rows[np.isnan(columns["time_us"][rows])]
            columns["reason"][unknown] = f"no backend of {backend.name!r} has figures for {system.device.name}"
    return columns


def _batches(
    kind: TableKind, table: pd.DataFrame, at: Positions, typed: tuple[str, HardwareSpec]
) -> Iterator[tuple[Positions, ColumnBatch | WorkColumns | str]]:
    """Rows and their batch; for a row that describes nothing possible, the reason. It costs no other its answer."""
    if not len(at):
        return
    (dtype, device), precision = typed, precision_of(typed[0])
    if precision is Precision.BF16 and DType.parse(dtype) is DType.FP16 and "bf16" not in device.matrix:
        precision = Precision.FP16
    try:
        part = table.iloc[at]
        if precision is None:
            yield at, _products_in(kind, part, dtype, device)
            return
        library = texts(part.iloc[:1], "framework")[0] if "framework" in part else ""
        yield at, replace(kind.columns(part, precision), library=library)
    except UsageError as error:
        if len(at) == 1 or precision is None:
            yield at, str(error)
            return
        for half in np.array_split(at, 2):
            yield from _batches(kind, table, half, typed)


def _products_in(kind: TableKind, part: pd.DataFrame, dtype: str, device: HardwareSpec) -> ColumnBatch | WorkColumns:
    """Products in another type: AMD's tuned kernels, where they name it, else as the roofline has it."""
    columns = kind.columns(part, Precision.BF16)
    named, read = GEMM_AITER.type_named(dtype), DType.parse(dtype)
    named = named if named in GEMM_AITER.types else None
    is_known = named is not None or (read is not None and read.rate is not None)
    if kind is not KINDS["gemm"] or not isinstance(columns, GEMMColumns) or not is_known:
        raise UsageError(f"there are no estimates for type {dtype!r}; use for example bf16 or fp8")
    sizes = {"m": columns.m, "n": columns.n, "k": columns.k, "batch": columns.b}
    if named is not None and device.vendor == "amd":
        return KernelColumns(precision="bf16", table=GEMM_AITER, case=(("gemm_dtype", named),), sizes=sizes)
    if read is None or read.rate is None:
        raise UsageError(f"{dtype} is a type of AMD's tuned kernels, which {device.name} lacks; choose another --dtype")
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


class OperationEstimate(Record, frozen=True, kw_only=True):
    """One operation on one device.

    ``measured_as`` names the device and types whose measurements the estimate rests on, ``error_percent`` is the mean
    error there, None where it was not measured on this device in this type; ``reason`` is why there is no estimate.
    ``power``: ``power_w`` and ``energy_mj`` with ``_low`` and ``_high``, empty where unknown; ``power_measured_as`` is
    whose energies these are.
    """

    device: str
    operation: str
    flops: float
    estimate: Estimate | None
    error_percent: float | None = None
    measured_as: str = ""
    reason: str = ""
    power: Mapping[str, float] = msgspec.field(default_factory=dict)
    power_measured_as: str = ""
    notes: tuple[str, ...] = ()


def operation_answers(
    what: str,
    sizes: Mapping[str, Any],
    *,
    device: str,
    dtype: str = "bf16",
    backend: str = "tile",
    gpu_clock_mhz: float | None = None,
) -> list[OperationEstimate]:
    """One kernel, and with ``sizes["backward"]`` its gradients each apart.

    UsageError for a size or type that is missing.
    """
    makers = {"gemm": _gemms, "grouped-gemm": _grouped_gemms, "sdpa": _sdpas, "moe": _moes}
    if what not in makers:
        raise UsageError.unknown("operation", what, makers)
    asked = Asked(device=HardwareSpec.load(device), backend=backend, gpu_clock_mhz=gpu_clock_mhz)
    if precision_of(dtype) is None and (what != "gemm" or sizes.get("backward")):
        raise UsageError.unknown("type with estimates", dtype, ESTIMATED)
    answers = []
    for name, kind, row in makers[what](sizes):
        table = pd.DataFrame([{**row, KINDS[kind].dtype: dtype}])
        answers.append(_answer(name, priced(kind, table, asked), asked, dtype))
    return answers


_Named = list[tuple[str, str, Mapping[str, object]]]


def _answer(name: str, columns: Mapping[str, Column], asked: Asked, dtype: str) -> OperationEstimate:
    row = {key: values[0] for key, values in columns.items()}
    compute, memory, peak = (
        None if np.isnan(row[key]) else float(row[key]) for key in ("compute_us", "memory_us", "peak_us")
    )
    reason, device = str(row["reason"]), asked.device
    known = not np.isnan(row["time_us"])
    if reason.startswith("no estimates for type"):
        raise UsageError.unknown("type with estimates", dtype, ESTIMATED)
    if reason and not reason.startswith("no backend") and " has no matrix units " not in reason:
        raise UsageError(reason)
    estimate = Estimate(
        time_us=float(row["time_us"]), bound=str(row["bound"]) or None, backend=str(row["backend"]), compute_us=compute,
        memory_us=memory, peak_us=peak,
    )  # fmt: skip
    drawn = {} if np.isnan(row["power_w"]) else {name: float(row[name]) for name in POWER_FIGURES}
    return OperationEstimate(
        device=device.name if isinstance(device, HardwareSpec) else str(device), operation=name,
        flops=float(row["flops"]), estimate=estimate if known else None,
        error_percent=None if np.isnan(row["error_percent"]) else float(row["error_percent"]),
        measured_as=str(row["measured_as"]), reason=reason, power=drawn,
        power_measured_as=str(row[POWER_BASIS]), notes=_notes(str(row["backend"]), device, dtype),
    )  # fmt: skip


def _notes(backend: str, device: object, dtype: str) -> tuple[str, ...]:
    """Which of the device's figures are another's, and what Origami's answers were held against."""
    precision = precision_of(dtype)
    if not isinstance(device, HardwareSpec):
        return ()
    held = backend == origami.Origami.name and precision is not None and origami.note(device, precision)
    return tuple(note for note in (device.assumed, held) if note)


def _size(sizes: Mapping[str, Any], *names: str) -> list[int]:
    for name in names:
        value = sizes.get(name)
        if value is None:
            raise UsageError(f"--{name.replace('_', '-')} is needed")
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    return [int(sizes[name]) for name in names]


def _gemms(sizes: Mapping[str, Any]) -> _Named:
    m, n, k, b = _size(sizes, "m", "n", "k", "b")
    products = [("gemm", m, n, k)]
    if sizes.get("backward"):
        products = [("forward", m, n, k), ("dgrad", m, k, n), ("wgrad", k, n, m)]
    return [(name, "gemm", {"m": rows, "n": width, "k": depth, "b": b}) for name, rows, width, depth in products]


def _grouped_gemms(sizes: Mapping[str, Any]) -> _Named:
    n, k = _size(sizes, "n", "k")
    if sizes.get("rows") is None:
        m, groups = _size(sizes, "m", "groups")
        given: Mapping[str, object] = {"m": m, "groups": groups}
        rows = table_kinds.evenly(m, groups)
    else:
        given, rows = {"rows": str(sizes["rows"])}, table_kinds.group_rows(str(sizes["rows"]))
    if not sizes.get("backward"):
        return [("grouped gemm", "grouped-gemm", {"n": n, "k": k, **given})]
    # The weights' gradient sums over each group's own rows: one product per group, priced at the mean.
    active = [r for r in rows if r]
    mean = sum(active) / len(active)
    return [
        ("forward", "grouped-gemm", {"n": n, "k": k, **given}),
        ("dgrad", "grouped-gemm", {"n": k, "k": n, **given}),
        ("wgrad", "gemm", {"m": k, "n": n, "k": max(round(mean), 1), "b": len(active)}),
    ]


def _sdpas(sizes: Mapping[str, Any]) -> _Named:
    b, s, heads, d = _size(sizes, "b", "s_q", "q_heads", "d_qk")
    given = {name: sizes[name] for name in ("s_kv", "kv_heads", "d_v", "window") if sizes.get(name) is not None}
    _size(given, *given)
    row = {
        "b": b, "s_q": s, "q_heads": heads, "d_qk": d, **given, "causal": float(sizes.get("causal", True)),
        "latent": float(bool(sizes.get("latent"))),
    }  # fmt: skip
    if not sizes.get("backward"):
        return [("sdpa", "sdpa", row)]
    if sizes.get("latent"):
        raise UsageError("--latent is for decoding, which has no backward pass: omit --backward")
    return [(name, "sdpa", {**row, "pass": name}) for name in ("forward", "backward")]


def _moes(sizes: Mapping[str, Any]) -> _Named:
    if sizes.get("backward"):
        raise UsageError(
            "a fused expert layer has no backward; estimate its GEMMs with tracelens estimate grouped-gemm"
        )
    tokens, hidden, ffn, experts, topk, tp, ep = _size(sizes, "tokens", "hidden", "ffn", "experts", "topk", "tp", "ep")
    row = {
        "num_tokens": tokens, "hidden_size": hidden, "inter_size": ffn, "num_experts": experts, "topk": topk,
        "moe_tp_size": tp, "moe_ep_size": ep, "distribution": sizes.get("distribution", "balanced"),
        "gated": float(sizes.get("gated", True)),
    }  # fmt: skip
    return [("moe", "moe", row)]
