"""The batched products that absorb latent attention's up-projections: one per head, ``[tokens, 128] @ [128, 512]``."""

from __future__ import annotations

from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work, steps
from tracelens.dtypes import Precision
from tracelens.perf_models.gemm import product_flops

_NOPE, _RANK = 128.0, 512.0
_TILE = 128.0


def _work(s: Sizes, case: Case) -> Work:
    tokens, heads = s["num_tokens"], s["num_heads"]
    width = Precision.of(case.get("bmm_dtype", "bfloat16")).width_bytes
    weights = heads * _NOPE * _RANK * width
    rate = "fp8" if width == 1 else "bf16"
    flops = product_flops(tokens, _RANK, _NOPE, heads)
    return Work(flops=flops, hbm_bytes=weights + 2 * tokens * heads * (_NOPE + _RANK), rate=rate)


def _costs(s: Sizes, rates: Rates, case: Case) -> Costs:
    tokens, heads = s["num_tokens"], s["num_heads"]
    least = _work(s, case)
    tiles = heads * steps(tokens / _TILE) * _RANK / _TILE
    area = 2 * _TILE * _TILE * _NOPE / (rates.flops(least.rate) / rates.units)
    us = {
        "matrix": tiles * area / rates.units,
        "waves": steps(tiles / rates.units) * area,
        "l2": least.hbm_bytes / rates.l2,
        "rows": tokens * heads / rates.units / 100,
        "heads": heads / 100,
    }
    return Costs(us, least.hbm_bytes)


MLA_BMM = KernelTable(
    name="mla-bmm", sizes=("num_tokens", "num_heads"), cases=("bmm_dtype",), groups=("num_heads", "num_tokens"),
    work=_work, costs=_costs,
)  # fmt: skip
