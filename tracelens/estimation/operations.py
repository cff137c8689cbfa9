"""Estimates of single operations of given sizes: rows of the tables of ``estimate``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracelens.backends import origami
from tracelens.backends.base import Estimate
from tracelens.errors import UsageError
from tracelens.estimation.estimate import ESTIMATED, Asked, precision_of, priced
from tracelens.estimation.table_kinds import KINDS, group_rows
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One operation on one device.

    ``measured_as`` names the device and types whose measurements the estimate rests on, ``error_percent`` is the mean
    error there, None where it was not measured on this device in this type; ``reason`` is why there is no estimate.
    """

    device: str
    operation: str
    flops: float
    estimate: Estimate | None
    error_percent: float | None = None
    measured_as: str = ""
    reason: str = ""
    notes: tuple[str, ...] = ()


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
    import pandas as pd

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


def _answer(name: str, columns: Mapping[str, np.ndarray[Any, np.dtype[Any]]], asked: Asked, dtype: str) -> Answer:
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
    return Answer(
        device=device.name if isinstance(device, HardwareSpec) else str(device), operation=name,
        flops=float(row["flops"]), estimate=estimate if known else None,
        error_percent=None if np.isnan(row["error_percent"]) else float(row["error_percent"]),
        measured_as=str(row["measured_as"]), reason=reason, notes=_notes(str(row["backend"]), asked.device, dtype),
    )  # fmt: skip


def _notes(backend: str, device: object, dtype: str) -> tuple[str, ...]:
    """What Origami's answers were held against."""
    precision = precision_of(dtype)
    if backend != origami.Origami.name or precision is None or not isinstance(device, HardwareSpec):
        return ()
    return (origami.note(device, precision),)


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
        rows = [m // groups + (i < m % groups) for i in range(groups)]
    else:
        given, rows = {"rows": str(sizes["rows"])}, group_rows(str(sizes["rows"]))
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
        raise UsageError("--latent is decoding, which has no backward")
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
