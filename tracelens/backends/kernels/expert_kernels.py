"""Fused expert layers of engines (narrow weights, wide expert parallelism, AMD's: no exchange, no router), the products
of latent attention's projections, passes that narrow rows to FP8, and messages within a node by the kernels of engines
and libraries: all-reduce, and the all-to-all of experts.

``rows``, ``active`` and ``blocks_N`` (sum over the experts of ceil(rows / N)) are those of the most loaded rank.
All-reduce has constants for each number of GPUs: on PCIe the path between four is another than that between two.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelRates, KernelTable, Sizes, Work, steps
from tracelens.perf_models.gemm import product_flops, product_operands
from tracelens.perf_models.moe import touched_experts
from tracelens.types.dtypes import Precision

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


def _expert_shape(s: Sizes) -> tuple[np.ndarray, np.ndarray]:
    return s["hidden_size"], s["inter_size"] / s["moe_tp_size"]


def _expert_work(s: Sizes, case: Case) -> Work:
    hidden, ffn = _expert_shape(s)
    width, rate = _typed(case)
    _, weights, _ = product_operands(s["rows"], _PROJECTIONS * ffn, hidden, s["active"], (0, width, 0))
    flops = product_flops(s["rows"], _PROJECTIONS * ffn, hidden)
    return Work(flops=flops, hbm_bytes=weights, rate=rate)


def _expert_costs(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    hidden, ffn = _expert_shape(s)
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
    return Costs(
        us, _expert_work(s, case).hbm_bytes, after=("permuted", "placed", "summed", "sorted", "experts", "chain")
    )


def _tuned_costs(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    """AMD's two products, whose times leave out sorting."""
    hidden, ffn = _expert_shape(s)
    width, rate = _typed(case)
    product = hidden * np.maximum(np.ceil(ffn / 128) * 128, 128)
    weights = _PROJECTIONS * product * width
    rows, further = s["num_tokens"] * s["topk"], _further_experts(s, case)
    us = {
        "flops": 2 * _PROJECTIONS * rows * product / rates.flops(rate),
        "loads": (s["blocks_64"] + further) * weights / rates.l2,
        "permuted": rows * (hidden * 2 + ffn * 8) / rates.l2,
    }
    return Costs(us, _expert_work(s, case).hbm_bytes + further * weights, after=("permuted",))


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


def _expert_kernel(source: str) -> str:
    """The kernel that a name means: layers of several classes run Marlin's, and activations have suffixes."""
    library, _, _ = source.partition("_")
    return f"{library}_marlin_moe" if "marlin" in source else source.removesuffix("_situ_as_silu")


_EXPERT_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
LOADS = ("rows", "active", *(f"blocks_{rows}" for rows in BLOCK_ROWS))
MOE_MXFP4 = KernelTable(
    name="moe-mxfp4", sizes=_EXPERT_SIZES, cases=("moe_dtype",), loads=LOADS, types=TYPES, kernel=_expert_kernel,
    groups=("hidden_size", "num_experts", "moe_tp_size", "moe_ep_size"), work=_expert_work, costs=_expert_costs,
)  # fmt: skip
WIDEEP_MOE = KernelTable(
    name="wideep-moe", sizes=(*_EXPERT_SIZES, "num_slots"), cases=("moe_dtype",), loads=LOADS, types=TYPES,
    groups=("hidden_size", "num_slots", "moe_ep_size"), work=_expert_work, costs=_expert_costs,
)  # fmt: skip
MOE_AITER = KernelTable(
    name="moe-aiter", is_pooled=True, sizes=("num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
    optional={"moe_tp_size": 1.0, "moe_ep_size": 1.0}, cases=("moe_dtype",), loads=LOADS, types=TYPES,
    described=(_FILE, _generals), groups=("hidden_size", "inter_size", "num_experts", "topk"),
    work=_expert_work, costs=_tuned_costs,
)  # fmt: skip

_NOPE, _RANK = 128.0, 512.0
_PROJECTION_TILE = 128.0


def _projection_work(s: Sizes, case: Case) -> Work:
    tokens, heads = s["num_tokens"], s["num_heads"]
    width = Precision.of(case.get("bmm_dtype", "bfloat16")).width_bytes
    weights = heads * _NOPE * _RANK * width
    rate = "fp8" if width == 1 else "bf16"
    flops = product_flops(tokens, _RANK, _NOPE, heads)
    return Work(flops=flops, hbm_bytes=weights + 2 * tokens * heads * (_NOPE + _RANK), rate=rate)


def _projection_costs(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    tokens, heads = s["num_tokens"], s["num_heads"]
    least = _projection_work(s, case)
    tiles = heads * steps(tokens / _PROJECTION_TILE) * _RANK / _PROJECTION_TILE
    area = 2 * _PROJECTION_TILE * _PROJECTION_TILE * _NOPE / (rates.flops(least.rate) / rates.units)
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
    work=_projection_work, costs=_projection_costs,
)  # fmt: skip

#: Rows that a unit takes per us; a usual launch of one block per row.
_ROWS_PER_UNIT_US = 100.0
_ELEMENTS_PER_US = 1024.0
#: Elements that a block takes at once, and those that it keeps until its scale is known.
_BLOCK_ELEMENTS, _HELD_ELEMENTS = 256.0, 8192.0
#: What the name of a difference of two measured kernels has between theirs.
_DIFFERENCE = "_minus_"


def _narrowed(s: Sizes, _: Case) -> Work:
    """Two bytes read and one written per element."""
    return Work(flops=0 * s["m"], hbm_bytes=3 * s["m"] * s["k"])


def _scaled(s: Sizes, _: Case) -> Work:
    """The pass that only reads: the difference of two measurements, which finds the rows in L2."""
    return Work(flops=0 * s["m"], hbm_bytes=0 * s["m"], l2_bytes=2 * s["m"] * s["k"])


def _narrowing_costs(s: Sizes, rates: KernelRates, _: Case) -> Costs:
    nbytes = 3 * s["m"] * s["k"]
    us = {"l2": nbytes / rates.l2, "row": s["k"] / _ELEMENTS_PER_US, "rows": s["m"] / rates.units / _ROWS_PER_UNIT_US}
    return Costs(us, nbytes)


def _scaling_costs(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    """A row of one warp's width needs no exchange between warps; rows wider than a block's registers are read again.

    A difference of two passes is what finding the scale adds to a pass that waits for HBM meanwhile: less, the longer
    it waits, except for what is read again.
    """
    found = _narrowing_costs(s, rates, case)
    exchanged = found.us["rows"] * np.minimum(s["k"] / _BLOCK_ELEMENTS, 1)
    again = 2 * s["m"] * np.maximum(s["k"] - _HELD_ELEMENTS, 0) / rates.hbm
    us = {**found.us, "exchanged": exchanged, "again": again}
    beneath = _DIFFERENCE in case.get("kernel_source", "")
    return Costs(us, found.streamed, after=("again",) if beneath else (), beneath=beneath)


QUANTIZE_MATRIX = KernelTable(
    name="quantize-matrix", sizes=("m", "k"), cases=("quant_dtype",), groups=("m", "k"), work=_narrowed,
    costs=_narrowing_costs,
)  # fmt: skip
QUANTIZE_SCALE = KernelTable(
    name="quantize-scale", sizes=("m", "k"), cases=("quant_dtype",), groups=("m", "k"), work=_scaled,
    costs=_scaling_costs,
)  # fmt: skip

#: Bytes per element of a message by the type that tables name; NVFP4 with its scales.
_WIDTHS = {"half": 2.0, "bfloat16": 2.0, "int8": 1.0, "float": 4.0, "fp8": 1.0, "nvfp4": 0.5625}
#: Messages up to here go in one packet per rank; above, in pieces that follow each other.
_PACKET = 2.0**19
_LARGEST_STEP = 2.0**23


def _message_widths(types: Sequence[str]) -> Sizes:
    return {
        "width": np.array([_WIDTHS.get(name, 2.0) for name in types]),
        "scaled": np.array([float(name == "nvfp4") for name in types]),
    }


def _no_work(s: Sizes, _: Case) -> Work:
    """Neither arithmetic nor HBM traffic that counts: links set the time."""
    nothing = 0.0 * s["width"]
    return Work(flops=nothing, hbm_bytes=nothing)


def _reduced(s: Sizes, rates: KernelRates, _: Case) -> Costs:
    n, nbytes = s["num_gpus"], s["message_size"] * s["width"]
    share = 2 * (n - 1) / n
    us = {
        "ring": share * nbytes / rates.link,
        "packets": (n - 1) * np.minimum(nbytes, _PACKET) / rates.link,
        "pieces": np.sqrt(np.minimum(nbytes, _LARGEST_STEP) / _PACKET),
        "steps": np.log2(1 + nbytes / 2.0**12),
    }
    return Costs(us)


def _exchanged(s: Sizes, rates: KernelRates, _: Case) -> Costs:
    """``reached``: ranks that a token's experts lie on, as evenly as can be; of which one share is its own."""
    tokens, ranks, hidden = s["num_tokens"], s["moe_ep_size"], s["hidden_size"]
    reached = np.minimum(ranks, s["topk"])
    remote = reached * (ranks - 1) / ranks
    us = {
        "sent": tokens * remote * hidden * s["width"] / rates.link,
        "combined": 2 * tokens * remote * hidden / rates.link,
        "placed": tokens * reached * hidden * (s["width"] + 2) / rates.hbm,
        "scales": s["scaled"] * tokens * reached * hidden / rates.hbm,
        "tokens": tokens / 1000,
        "steps": np.log2(ranks),
        "pairs": tokens * ranks / 1000,
    }
    return Costs(us)


CUSTOM_ALLREDUCE = KernelTable(
    name="custom-allreduce", sizes=("num_gpus", "message_size"), cases=("num_gpus",),
    described=("allreduce_dtype", _message_widths), groups=("num_gpus", "message_size"), work=_no_work, costs=_reduced,
)  # fmt: skip
NCCL = replace(CUSTOM_ALLREDUCE, name="nccl", described=("nccl_dtype", _message_widths))
TRTLLM_ALLTOALL = KernelTable(
    name="trtllm-alltoall", sizes=("num_tokens", "hidden_size", "topk", "num_experts", "moe_ep_size"),
    described=("moe_dtype", _message_widths), groups=("moe_ep_size", "moe_dtype"), work=_no_work, costs=_exchanged,
)  # fmt: skip
