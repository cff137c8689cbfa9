"""Fused expert layers of engines with narrow weights, wide expert parallelism and AMD's: no exchange, no router.

``rows``, ``active`` and ``blocks_N`` (sum over the experts of ceil(rows / N)) are those of the most loaded rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work
from tracelens.dtypes import Precision
from tracelens.perf_models.gemm import product_flops, product_operands
from tracelens.perf_models.moe import touched_experts

#: Rows of blocks that the kernels pad an expert's rows to.
BLOCK_ROWS = (16, 64, 128)
#: AITER's file for models without one of their own, and the least number of tokens that it was tuned for.
_FILE, _GENERAL, _TUNED_TOKENS = "model_file", "tuned_fmoe.csv", 16.0
#: Gate, up and down.
_PROJECTIONS = 3
#: Rows of a block at which its weights take as long to load as to multiply.
_EDGE = 48.0
#: Names of a table's types: bytes per weight with its scales, and the rate that products run at.
TYPES = {
    "w4a16_mxfp4": (0.53125, "bf16"), "w4a8_mxfp4_mxfp8": (0.53125, "fp8"), "w4a8_mxfp4": (0.53125, "fp8"),
    "mxfp4": (0.53125, "fp4"), "mxfp8": (1.03125, "fp8"), "w4a16_int4": (0.53125, "bf16"), "int8": (1.0, "int8"),
}  # fmt: skip


def _typed(case: Case) -> tuple[float, str]:
    name = case.get("moe_dtype", "bfloat16")
    if name in TYPES:
        return TYPES[name]
    precision = Precision.of(name)
    return precision.width_bytes, precision.dtype.rate or "bf16"


def _shape(s: Sizes) -> tuple[np.ndarray, np.ndarray]:
    return s["hidden_size"], s["inter_size"] / s["moe_tp_size"]


def _work(s: Sizes, case: Case) -> Work:
    hidden, ffn = _shape(s)
    width, rate = _typed(case)
    _, weights, _ = product_operands(s["rows"], _PROJECTIONS * ffn, hidden, s["active"], (0, width, 0))
    flops = product_flops(s["rows"], _PROJECTIONS * ffn, hidden)
    return Work(flops=flops, hbm_bytes=weights, rate=rate)


def _costs(s: Sizes, rates: Rates, case: Case) -> Costs:
    hidden, ffn = _shape(s)
    width, rate = _typed(case)
    peak = rates.flops(rate)
    padded = np.maximum(np.ceil(ffn / 128) * 128, 128)
    tiles = [6 * rows * s[f"blocks_{rows}"] * (1 + _EDGE / rows) for rows in BLOCK_ROWS]
    us = {
        "tiled": np.min(tiles, axis=0) * hidden * padded / peak,
        "blocks": 6 * BLOCK_ROWS[0] * s["blocks_16"] * hidden * padded / peak,
        "weights": s["active"] * hidden * padded * 3 * width / rates.hbm,
        "loads": s["blocks_64"] * hidden * padded * 3 * width / rates.l2,
        "permuted": s["rows"] * (hidden * 4 + ffn * 8) / rates.hbm,
        "placed": s["num_tokens"] * s["topk"] * (hidden * 2 + ffn * 6) / rates.hbm,
        "summed": 2 * s["num_tokens"] * hidden / rates.hbm,
        "sorted": np.log2(1 + s["num_tokens"] * s["topk"]),
        "experts": s["num_experts"] / 100,
        "chain": hidden / 1000 + ffn / 1000,
    }
    return Costs(us, _work(s, case).hbm_bytes, after=("permuted", "placed", "summed", "sorted", "experts", "chain"))


def _tuned_costs(s: Sizes, rates: Rates, case: Case) -> Costs:
    """AMD's two products, whose times leave out sorting."""
    hidden, ffn = _shape(s)
    width, rate = _typed(case)
    product = hidden * np.maximum(np.ceil(ffn / 128) * 128, 128)
    weights = _PROJECTIONS * product * width
    rows, further = s["num_tokens"] * s["topk"], _further_experts(s, case)
    us = {
        "flops": 2 * _PROJECTIONS * rows * product / rates.flops(rate),
        "loads": (s["blocks_64"] + further) * weights / rates.l2,
        "permuted": rows * (hidden * 2 + ffn * 8) / rates.l2,
    }
    return Costs(us, _work(s, case).hbm_bytes + further * weights, after=("permuted",))


def _further_experts(s: Sizes, case: Case) -> Floats:
    """Experts that 16 tokens touch beside those of fewer, where AITER's general file was measured at 16 for fewer."""
    is_general = np.where(np.isnan(s["general"]), case.get(_FILE) == _GENERAL, s["general"])
    experts, tokens = s["num_experts"], s["num_tokens"]
    few, tuned = (touched_experts(experts, np.minimum(s["topk"], experts), each)
                  for each in (tokens, np.maximum(tokens, _TUNED_TOKENS)))  # fmt: skip
    return np.asarray(is_general * (tuned - few))


def _generals(files: Sequence[str]) -> Sizes:
    """Whether a row is of AITER's general file; unknown where it names none."""
    return {"general": np.array([float(name == _GENERAL) if name else np.nan for name in files])}


def _kernel(source: str) -> str:
    """The kernel that a name means: layers of several classes run Marlin's, and activations have suffixes."""
    library, _, _ = source.partition("_")
    return f"{library}_marlin_moe" if "marlin" in source else source.removesuffix("_situ_as_silu")


_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
LOADS = ("rows", "active", *(f"blocks_{rows}" for rows in BLOCK_ROWS))
MOE_MXFP4 = KernelTable(
    name="moe-mxfp4", sizes=_SIZES, cases=("moe_dtype",), loads=LOADS, types=TYPES, kernel=_kernel,
    groups=("hidden_size", "num_experts", "moe_tp_size", "moe_ep_size"), work=_work, costs=_costs,
)  # fmt: skip
WIDEEP_MOE = KernelTable(
    name="wideep-moe", sizes=(*_SIZES, "num_slots"), cases=("moe_dtype",), loads=LOADS, types=TYPES,
    groups=("hidden_size", "num_slots", "moe_ep_size"), work=_work, costs=_costs,
)  # fmt: skip
MOE_AITER = KernelTable(
    name="moe-aiter", is_pooled=True, sizes=("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    optional={"moe_tp_size": 1.0, "moe_ep_size": 1.0}, cases=("moe_dtype",), loads=LOADS, types=TYPES,
    described=(_FILE, _generals), groups=("hidden_size", "inter_size", "num_experts", "topk"),
    work=_work, costs=_tuned_costs,
)  # fmt: skip
