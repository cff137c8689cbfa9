"""Estimates of single operations and of whole tables: names become dimensions here, backends only see arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tracelens.backends import System
from tracelens.backends.base import Estimate, EstimateTable, Floats
from tracelens.backends.chain import LAST, Chain, chain
from tracelens.backends.column_batch import ColumnBatch
from tracelens.backends.kernels import kernel_table, kernel_tables
from tracelens.backends.kernels.base import KernelTable
from tracelens.backends.kernels.kernel_columns import KernelColumns
from tracelens.backends.kernels.tuned_products import GEMM_AITER
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.expert_layer import BLOCKS, MoEColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.dtypes import DType, Precision
from tracelens.errors import OutputError, UsageError
from tracelens.estimation.communication import estimate_collectives, estimate_exchanges
from tracelens.estimation.kernel_estimates import LIBRARIES, estimate_kernels
from tracelens.estimation.rank_loads import rank_load
from tracelens.files.atomic_write import whole_file
from tracelens.files.data_table import COUNT, SIZE, Number, csv_of, faults, is_file_name, numbers, text_codes, texts
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.perf_models import GEMM, PerfModel, SDPABackward
from tracelens.perf_models.work_columns import WorkColumns

if TYPE_CHECKING:
    import pandas as pd

Positions: TypeAlias = np.ndarray[Any, np.dtype[np.intp]]
#: Types of tables and of ``--dtype``: nobody measured layers in MXFP8.
ESTIMATED = {text: each.calibrated for each in Precision if each is not Precision.MXFP8 for text in each.spellings}
#: The precision that stands for a type of this rate, where neither name nor alias says which.
_OF_RATE = {"bf16": Precision.BF16, "fp16": Precision.BF16, "fp8": Precision.FP8, "fp4": Precision.NVFP4}
#: Tables whose rows of AMD devices are kernels alone, the best of what was tuned.
_TUNED = {"gemm": "gemm-aiter", "moe": "moe-aiter"}
_ATTENTION = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step")
_MLA = ("batch_size", "isl", "num_heads", "step")
#: Sizes by column; what is not named is a count.
_SIZES = {
    "step": SIZE, "window_size": replace(SIZE, blank=0.0), "gated": replace(SIZE, most=1.0, blank=1.0),
    "num_tokens": replace(COUNT, most=1e8), "num_experts": replace(COUNT, most=1e6), "topk": replace(COUNT, most=1e6),
    "moe_tp_size": replace(COUNT, most=1e6), "moe_ep_size": replace(COUNT, most=1e6),
}  # fmt: skip
#: DeepSeek-V3's latent attention, whose tables name no sizes: 128 + 64 and 128 per head for new tokens; absorbed into
#: the projections around it, rows of 512 + 64 of which 512 are the value.
_MLA_HEAD, _MLA_ROW = (192.0, 128.0), (576.0, 512.0)
_MOE = (
    "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size", "distribution",
)  # fmt: skip
#: The one layer of the measured tables without a gate: with a third matrix it would stream weights above the HBM peak.
UNGATED_HIDDEN = 2688


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One operation on one device; ``error_percent`` is the mean error that was measured for such operations."""

    device: str
    operation: str
    flops: float
    estimate: Estimate | None
    error_percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How a table of one kind is read: its columns, the one that names the type, and rows to a column batch."""

    needed: tuple[str, ...]
    dtype: str
    columns: Callable[[pd.DataFrame, str], ColumnBatch]


def estimate(
    what: str,
    table: pd.DataFrame,
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

    ``collective`` and ``ep`` are priced on a cluster's links (``docs/network.md``), at the data sheets' clocks.
    """
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
            precision = _precision(dtype)
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
    known = ~np.isnan(found.time_us) & ~_without_rate(found, batch.flops())
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


def _without_rate(found: EstimateTable, flops: Floats) -> np.ndarray[Any, np.dtype[np.bool_]]:
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


def size_faults(table: pd.DataFrame, kind: Kind, name: str = "") -> list[str]:
    """Per row what is wrong with its sizes, "" where nothing is; ``name`` is the file's."""
    return faults(table, {each: _of_column(each) for each in _size_columns(table, kind)}, name)


def _size_columns(table: pd.DataFrame, kind: Kind) -> list[str]:
    optional = [name for name in ("window_size", "gated") if name in table]
    return [name for name in (*kind.needed, *optional) if name != "distribution"]


def _of_column(column: str) -> Number:
    return _SIZES.get(column, COUNT)


def with_sizes(table: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """``table`` whose sizes are numbers, NaN where ``size_faults`` names a reason."""
    return table.assign(**{name: numbers(table, name, _of_column(name)) for name in _size_columns(table, kind)})


def _numbers(table: pd.DataFrame, *names: str) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [table[name].to_numpy(np.float64) for name in names]


def _gemm_columns(table: pd.DataFrame, precision: str) -> GEMMColumns:
    m, n, k = _numbers(table, "m", "n", "k")
    return replace(GEMMColumns.of(precision, m, n, k), as_layer=True)


def attention_columns(table: pd.DataFrame, precision: str) -> AttentionColumns:
    """Rows of measured attention tables: causal, head dimension the same for keys and values; window 0 is none."""
    b, s, heads, kv_heads, d, past = _numbers(table, *_ATTENTION)
    window = table["window_size"].fillna(0).to_numpy(np.float64) if "window_size" in table else np.zeros(len(table))
    return AttentionColumns(
        precision=precision, b=b, s=s, past=past, q_heads=heads, kv_heads=kv_heads, d_qk=d, d_v=d,
        window=np.where(window > 0, window, np.inf), causal=np.ones(len(table)), as_layer=True,
    )  # fmt: skip


def _latent_columns(table: pd.DataFrame, precision: str, *, absorbed: bool) -> AttentionColumns:
    b, s, heads, past = _numbers(table, *_MLA)
    one, (d_qk, d_v) = np.ones(len(table)), _MLA_ROW if absorbed else _MLA_HEAD
    return AttentionColumns(
        precision=precision, b=b, s=s, past=past, q_heads=heads, kv_heads=one if absorbed else heads, d_qk=d_qk * one,
        d_v=d_v * one, window=one * np.inf, causal=one, as_layer=True, value_in_key=absorbed,
    )  # fmt: skip


def moe_columns(table: pd.DataFrame, precision: str) -> MoEColumns:
    """Rows of measured MoE tables (``num_tokens``, ``hidden_size``, ``moe_ep_size``, ...); ``gated`` where given."""
    names = ("distribution", "num_tokens", "num_experts", "topk", "moe_ep_size")
    values = zip(*(table[name] for name in names), strict=True)
    loads = np.array([rank_load(str(d), int(t), int(e), int(k), int(p)) for d, t, e, k, p in values])
    loads = loads.reshape(len(table), -1)
    tokens, hidden, inter, tp, ep = _numbers(
        table, "num_tokens", "hidden_size", "inter_size", "moe_tp_size", "moe_ep_size"
    )
    gated = table["gated"].to_numpy(np.float64) if "gated" in table else (hidden != UNGATED_HIDDEN).astype(np.float64)
    return MoEColumns(
        precision=precision,
        tokens=tokens,
        hidden=hidden,
        ffn=inter / tp,
        gated=gated,
        ranks=ep,
        topk=table["topk"].to_numpy(np.float64),
        local_experts=table["num_experts"].to_numpy(np.float64) / ep,
        rows=loads[:, 0],
        active=loads[:, 1],
        blocks={rows: loads[:, 2 + i] for i, rows in enumerate(BLOCKS)},
        as_layer=True,
    )


KINDS: Mapping[str, Kind] = {
    "gemm": Kind(needed=("m", "n", "k"), dtype="gemm_dtype", columns=_gemm_columns),
    "context-attention": Kind(needed=_ATTENTION, dtype="kv_cache_dtype", columns=attention_columns),
    "generation-attention": Kind(needed=_ATTENTION, dtype="kv_cache_dtype", columns=attention_columns),
    "context-mla": Kind(
        needed=_MLA, dtype="kv_cache_dtype", columns=functools.partial(_latent_columns, absorbed=False)
    ),
    "generation-mla": Kind(
        needed=_MLA, dtype="kv_cache_dtype", columns=functools.partial(_latent_columns, absorbed=True)
    ),
    "moe": Kind(needed=_MOE, dtype="moe_dtype", columns=moe_columns),
}


_COMMUNICATION: Mapping[str, Callable[..., pd.DataFrame]] = {
    "collective": estimate_collectives,
    "ep": estimate_exchanges,
}


def operation_answers(
    what: str,
    sizes: Mapping[str, Any],
    *,
    device: str,
    dtype: str = "bf16",
    backend: str = "tile",
    gpu_clock_mhz: float | None = None,
) -> list[Answer]:
    """One kernel, and with ``sizes["backward"]`` its gradients each apart.

    UsageError for a size or type that is missing.
    """
    spec = HardwareSpec.load(device)
    precision = _precision(dtype)
    makers = {"gemm": _gemms, "grouped-gemm": _grouped_gemms, "sdpa": _sdpas, "moe": _moes}
    if what not in makers:
        raise UsageError.unknown("operation", what, makers)
    system = System(device=spec).at_clock(gpu_clock_mhz)
    answers = chain(backend)
    if precision is None:
        return [_answer(what, _product(what, sizes, dtype, spec), dtype, answers, system)]
    return [_answer(name, work, precision, answers, system) for name, work in makers[what](sizes, precision)]


def _precision(dtype: str) -> Precision | None:
    """The precision that a type in any spelling is estimated in; None for one without."""
    found = ESTIMATED.get(dtype.strip().lower())
    kind = DType.parse(dtype)
    return found or (None if kind is None else _OF_RATE.get(kind.rate or ""))


def _product(what: str, sizes: Mapping[str, Any], dtype: str, device: HardwareSpec) -> ColumnBatch | PerfModel:
    """A product in another type: AMD's tuned kernel in INT8, else as the roofline has it. UsageError for all else."""
    kind = DType.parse(dtype)
    if what != "gemm" or kind is None or kind.rate is None or sizes.get("backward"):
        raise UsageError.unknown("type with estimates", dtype, ESTIMATED)
    m, n, k, b = _size(sizes, "m", "n", "k", "b")
    if kind is not DType.INT8 or device.vendor != "amd":
        return GEMM(m=m, n=n, k=k, b=b, dtype=kind)
    columns = dict(zip(("m", "n", "k", "batch"), _one(m, n, k, b), strict=True))
    return KernelColumns(precision="int8", table=GEMM_AITER, case=(("gemm_dtype", "int8"),), sizes=columns)


_Named = list[tuple[str, ColumnBatch | PerfModel]]


def _answer(name: str, work: ColumnBatch | PerfModel, precision: str, backend: Chain, system: System) -> Answer:
    if not isinstance(work, ColumnBatch):
        family, columns = ("backward" if isinstance(work, SDPABackward) else "gemm"), WorkColumns.of([work])
        table, counted = backend.estimate_many(columns, system), columns.flops
    else:
        family, table, counted = work.family, backend.estimate_batch(work, system), work.flops()
        if isinstance(work, AttentionColumns):
            family = "prefill" if work.s[0] > 1 else "latent" if work.value_in_key else "decode"
    flops, found = float(counted[0]), None if _without_rate(table, counted)[0] else table.row(0)
    fitted = system.device.calibration(family, precision)
    known = fitted is not None and found is not None and found.backend == "tile"
    return Answer(
        device=system.device.name, operation=name, flops=flops, estimate=found,
        error_percent=fitted.error_percent if known and fitted is not None else None,
    )  # fmt: skip


def _size(sizes: Mapping[str, Any], *names: str) -> list[int]:
    for name in names:
        value = sizes.get(name)
        if value is None:
            raise UsageError(f"--{name.replace('_', '-')} is needed")
        if value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    return [int(sizes[name]) for name in names]


def _one(*values: float) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
    return [np.array([value], dtype=np.float64) for value in values]


def _gemms(sizes: Mapping[str, Any], precision: str) -> _Named:
    m, n, k, b = _one(*_size(sizes, "m", "n", "k", "b"))
    products = [("gemm", m, n, k)]
    if sizes.get("backward"):
        products = [("forward", m, n, k), ("dgrad", m, k, n), ("wgrad", k, n, m)]
    return [(name, GEMMColumns.of(precision, rows, width, depth, b)) for name, rows, width, depth in products]


def _grouped_gemms(sizes: Mapping[str, Any], precision: str) -> _Named:
    n, k = _one(*_size(sizes, "n", "k"))
    if sizes.get("rows") is None:
        m, groups = _size(sizes, "m", "groups")
        rows = [m // groups + (i < m % groups) for i in range(groups)]
    else:
        try:
            rows = [int(text) for text in str(sizes["rows"]).split(",")]
        except ValueError:
            raise UsageError(f"--rows takes whole numbers separated by commas, got {sizes['rows']!r}") from None
        if min(rows) < 0 or not sum(rows):
            raise UsageError("--rows needs at least one row, and no value below 0")
    found: _Named = [("grouped gemm", GEMMColumns.ragged(precision, [rows], n, k))]
    if sizes.get("backward"):
        # The weights' gradient sums over each group's own rows: one product per group, priced at the mean.
        active = [r for r in rows if r]
        mean, count = _one(sum(active) / len(active), len(active))
        found = [
            ("forward", found[0][1]),
            ("dgrad", GEMMColumns.ragged(precision, [rows], k, n)),
            ("wgrad", GEMMColumns.of(precision, k, n, mean, b=count)),
        ]
    return found


def _sdpas(sizes: Mapping[str, Any], precision: str) -> _Named:
    given = {"s_kv": sizes.get("s_q"), "kv_heads": sizes.get("q_heads"), "d_v": sizes.get("d_qk")}
    given |= {name: value for name, value in sizes.items() if value is not None}
    b, s, heads, d, keys, kv_heads, d_v = _size(given, "b", "s_q", "q_heads", "d_qk", "s_kv", "kv_heads", "d_v")
    window = _size(given, "window")[0] if "window" in given else None
    if sizes.get("latent") and (s > 1 or kv_heads > 1 or d_v > d or sizes.get("backward")):
        raise UsageError("--latent needs --s-q 1, --kv-heads 1 and --d-v at most --d-qk (decoding with one key head)")
    if keys < s or heads % kv_heads:
        raise UsageError(f"{s} queries over {keys} keys, {heads} query over {kv_heads} key heads is not possible")
    causal = sizes.get("causal", True)
    one, q, past, hq, hkv, dq, dv, seen, masked = _one(
        b, s, keys - s, heads, kv_heads, d, d_v, np.inf if window is None else window, float(causal)
    )
    columns = AttentionColumns(
        precision=precision, b=one, s=q, past=past, q_heads=hq, kv_heads=hkv, d_qk=dq, d_v=dv, window=seen,
        causal=masked, value_in_key=bool(sizes.get("latent")),
    )  # fmt: skip
    if not sizes.get("backward"):
        return [("sdpa", columns)]
    cached = Precision.of(precision).dtype
    gradient = SDPABackward(
        b=b, s_q=s, s_kv=keys, q_heads=heads, kv_heads=kv_heads, d_qk=d, d_v=d_v, window=window,
        mask="bottom_right" if causal else "none", dtype_k=cached, dtype_v=cached,
    )  # fmt: skip
    return [("forward", columns), ("backward", gradient)]


def _moes(sizes: Mapping[str, Any], precision: str) -> _Named:
    if sizes.get("backward"):
        raise UsageError(
            "a fused expert layer has no backward; estimate its GEMMs with tracelens estimate grouped-gemm"
        )
    import pandas as pd

    tokens, hidden, ffn, experts, topk, tp, ep = _size(sizes, "tokens", "hidden", "ffn", "experts", "topk", "tp", "ep")
    row = {
        "num_tokens": tokens, "hidden_size": hidden, "inter_size": ffn, "num_experts": experts, "topk": topk,
        "moe_tp_size": tp, "moe_ep_size": ep, "distribution": sizes.get("distribution", "balanced"),
        "gated": float(sizes.get("gated", True)),
    }  # fmt: skip
    return [("moe", moe_columns(pd.DataFrame([row]), precision))]


def write_table(table: pd.DataFrame, path: Path) -> None:
    """As ``read_table`` reads it. OutputError where it cannot be written, or Parquet without the package for it."""
    with whole_file(path) as file:
        if path.suffix != ".parquet":
            file.write(csv_of(table))
            return
        try:
            table.to_parquet(file, index=False)
        except ImportError as error:
            raise OutputError(f"{path.name}: writing Parquet needs pyarrow (pip install pyarrow)") from error
