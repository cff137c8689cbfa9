"""Estimates of single operations of given sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracelens.backends import System
from tracelens.backends.base import Estimate
from tracelens.backends.chain import Chain, chain
from tracelens.backends.column_batch import ColumnBatch
from tracelens.backends.kernels.kernel_columns import KernelColumns
from tracelens.backends.kernels.tuned_products import GEMM_AITER
from tracelens.backends.tiles.attention_tiles import AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.dtypes import DType, Precision
from tracelens.errors import UsageError
from tracelens.estimation.estimate import ESTIMATED, precision_of, without_rate
from tracelens.estimation.table_kinds import moe_columns
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.perf_models import GEMM, PerfModel, SDPABackward
from tracelens.perf_models.work_columns import WorkColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One operation on one device; ``error_percent`` is the mean error that was measured for such operations."""

    device: str
    operation: str
    flops: float
    estimate: Estimate | None
    error_percent: float | None = None


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
    precision = precision_of(dtype)
    makers = {"gemm": _gemms, "grouped-gemm": _grouped_gemms, "sdpa": _sdpas, "moe": _moes}
    if what not in makers:
        raise UsageError.unknown("operation", what, makers)
    system = System(device=spec).at_clock(gpu_clock_mhz)
    answers = chain(backend)
    if precision is None:
        return [_answer(what, _product(what, sizes, dtype, spec), dtype, answers, system)]
    return [_answer(name, work, precision, answers, system) for name, work in makers[what](sizes, precision)]


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
    flops, found = float(counted[0]), None if without_rate(table, counted)[0] else table.row(0)
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
