"""Matrix products and fused expert layers by AMD's tuned kernels (AITER): the best of what was tuned, kernel alone.

``tiled`` is the best of a library's tiles and splits of k at the data sheet's rates: whole waves over the units, small
tiles with the share of a unit's rate that their loads leave.
"""

from __future__ import annotations

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work, steps, tiled
from tracelens.perf_models.gemm import product_flops, product_operands

_TILES = ((16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128), (256, 256))
_SPLITS = (1, 2, 4, 8)
#: Elements of an edge at which a tile's loads take as long as its products.
_EDGE = 48.0
#: Prologue and epilogue of a tile, as elements of k.
_DEPTH = 192.0
#: Type -> bytes per element of A and B with scales, and the rate.
_TYPES = {
    "bfloat16": (2.0, "bf16"), "bfloat16_batched": (2.0, "bf16"), "fp8_block": (1.0, "fp8"),
    "fp8_rowwise": (1.0, "fp8"), "int8": (1.0, "int8"), "int8_batched": (1.0, "int8"),
    "mxfp4": (0.53125, "fp4"),
}  # fmt: skip


def _typed(case: Case) -> tuple[float, str]:
    return _TYPES.get(case.get("gemm_dtype", "bfloat16"), (2.0, "bf16"))


def _rate(case: Case) -> str:
    """No kernel of another element type stands in."""
    return _typed(case)[1]


def _tiled(m: Floats, n: Floats, k: Floats, b: Floats, unit: float, units: float) -> Floats:
    best = np.full(len(m), np.inf)
    for tm, tn in _TILES:
        tiles = b * steps(m / tm) * steps(n / tn)
        each = 2 * tm * tn / unit * (1 + _EDGE * (1 / tm + 1 / tn))
        for split in _SPLITS:
            waves = steps(tiles * split / units)
            best = np.minimum(best, waves * each * (np.ceil(k / split) + _DEPTH))
    return best


def _costs(s: Sizes, rates: Rates, case: Case) -> Costs:
    m, n, k, b = s["m"], s["n"], s["k"], s["batch"]
    width, rate = _typed(case)
    peak = rates.flops(rate)
    us = {
        "tiled": _tiled(m, n, k, b, peak / rates.units, rates.units),
        "matrix": 2 * b * tiled(m, 16) * n * k / peak,
        "weights": b * n * k * width / rates.hbm,
        "rows": b * m * (k * width + 2 * n) / rates.hbm,
        "l2": b * width * k * (steps(m / 128) * n + steps(n / 128) * m) / rates.l2,
        "depth": k / 1000,
    }
    return Costs(us)


def _work(s: Sizes, case: Case) -> Work:
    m, n, k, b = s["m"], s["n"], s["k"], s["batch"]
    width, rate = _typed(case)
    moved = b * sum(product_operands(m, n, k, widths=(width, width, 2.0)))
    return Work(flops=product_flops(m, n, k, b), hbm_bytes=moved, rate=rate)


GEMM_AITER = KernelTable(
    name="gemm-aiter", sizes=("m", "n", "k"), optional={"batch": 1.0}, cases=("gemm_dtype",), types=_TYPES,
    groups=("n", "k"), work=_work, costs=_costs, operation=_rate, computes=_rate,
    spellings={"fp8": "fp8_rowwise", "nvfp4": "mxfp4"},
)  # fmt: skip
