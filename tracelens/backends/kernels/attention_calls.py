"""Attention kernels alone: of vision encoders, of latent attention over prompts, and absorbed over a cache.

Work-groups of 128 query rows walk along the keys in whole steps. Absorbed latent attention has one key head: the heads
of a query share the rows of the cache, in groups of 64.
"""

from __future__ import annotations

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work, steps, tiled
from tracelens.dtypes import Precision
from tracelens.perf_models.gemm import product_flops
from tracelens.perf_models.sdpa import attention_flops, row_elements

_ROWS = 128.0
_HEAD_GROUP = 64.0
#: Elements of a head that matrix instructions take at once; some kernels are slow where a head is no multiple.
_ALIGNED, _HALF_ALIGNED = 16.0, 8.0
#: Keys below which a sequence is not divided further.
_LEAST_SHARE = 512.0
_GENERAL = ("flash_attention", "triton")
#: DeepSeek-V3: nope + rope and value of a head; a cached row and the part of it that is the value.
D_QK, D_V, ROW, LATENT = 192.0, 128.0, 576.0, 512.0


def cache_width(case: Case) -> float:
    """Bytes per element of the KV cache."""
    return Precision.of(case.get("kv_cache_dtype", "bfloat16")).width_bytes


def walk(groups: Floats, keys: Floats, flops_per_pair: Floats, rates: Rates) -> dict[str, Floats]:
    """Work-groups of 128 rows that each see ``keys``: products, whole waves, the longest one, exponentials."""
    unit = rates.flops("bf16") / rates.units
    group = _ROWS * keys * flops_per_pair / unit
    return {
        "matrix": groups * group / rates.units,
        "waves": steps(groups / rates.units) * group,
        "longest": group,
        "exponentials": groups * _ROWS * keys / rates.exponentials,
    }


def _encoder(s: Sizes, rates: Rates, _: Case) -> Costs:
    b, tokens, heads, d = (s[name] for name in ("batch_size", "isl", "num_heads", "head_dim"))
    groups, keys = b * heads * steps(tokens / _ROWS), tiled(tokens, _ROWS)
    moved = 8 * b * tokens * heads * d
    # heads are multiples of 8: one of 72 has the next width, and is no multiple of 16
    wide = np.clip((d - 64) / _HALF_ALIGNED, 0, 1)
    padded = groups * _ROWS * keys * 4 * 64 * (1 + wide) / rates.flops("bf16")
    beside = np.minimum(d % _ALIGNED, -d % _ALIGNED) / _HALF_ALIGNED
    us = walk(groups, keys, 4 * d, rates)
    us |= {"padded": padded, "wide": padded * wide, "unaligned": padded * beside, "l2": moved / rates.l2}
    return Costs(us, moved + 4 * groups * keys * d, moved)


def _encoder_work(s: Sizes, _: Case) -> Work:
    b, tokens, heads, d = (s[name] for name in ("batch_size", "isl", "num_heads", "head_dim"))
    flops = attention_flops(b * tokens * tokens, heads, d, d)
    return Work(flops=flops, hbm_bytes=2 * b * tokens * sum(row_elements(heads, heads, d, d)))


def _absorbs(case: Case) -> bool:
    """SGLang's general kernels attend prompts over the latent rows, too: one key head for all heads."""
    return case.get("framework") == "sglang" and case.get("kernel_source") in _GENERAL


def _prompt(s: Sizes, rates: Rates, case: Case) -> Costs:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    one, keys = np.ones(len(b)), tiled(tokens, _ROWS) / 2 + _ROWS / 2
    if _absorbs(case):
        rows, width = tokens * heads, 2.0 * (ROW + LATENT)
        groups, moved = b * steps(rows / _ROWS), 2 * b * rows * (ROW + LATENT)
    else:
        groups, width = b * heads * steps(tokens / _ROWS), 2.0 * (D_QK + D_V)
        moved = 4 * b * tokens * heads * (D_QK + D_V)
    us = walk(groups, keys, width * one, rates)
    us["longest"] = tiled(tokens, _ROWS) / keys * us["longest"]
    us |= {
        "l2": moved / rates.l2,
        "appended": 2 * b * tokens * ROW / rates.hbm,
        "expanded": product_flops(b * tokens, heads * 2 * D_V, LATENT * one) / rates.flops("bf16"),
    }
    return Costs(us, moved, after=("expanded", "appended"))


def _prompt_work(s: Sizes, _: Case) -> Work:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    flops = attention_flops(b * tokens * (tokens + 1) / 2, heads, D_QK, D_V)
    return Work(flops=flops, hbm_bytes=2 * b * tokens * sum(row_elements(heads, heads, D_QK, D_V)))


def absorbed(b: Floats, heads: Floats, keys: Floats, width: float, rates: Rates) -> Costs:
    """One new token per sequence over ``keys`` cached rows, which idle units share where sequences are few.

    ``shared``: what one unit does of a sequence; queries and the sums of what the units found follow.
    """
    walked = tiled(keys, _HEAD_GROUP)
    read, moved = b * walked * ROW * width, 2 * b * heads * (ROW + LATENT)
    per_pair, padded = 2 * (ROW + LATENT), tiled(heads, _HEAD_GROUP)
    matrix, groups = rates.flops("bf16"), b * padded / _HEAD_GROUP
    most = np.maximum(1, rates.units / groups)
    shared = tiled(np.maximum(keys / most, np.minimum(keys, _LEAST_SHARE)), _HEAD_GROUP)
    shared = shared * np.maximum(1, groups / rates.units) * rates.units
    us = {
        "l2": read / rates.l2,
        "padded": b * walked * padded * per_pair / matrix,
        "matrix": b * walked * heads * per_pair / matrix,
        "share": shared * _HEAD_GROUP * per_pair / matrix,
        "rounds": shared * ROW * width / rates.l2,
        "chain": walked / _HEAD_GROUP / 100,
        "queries": moved / rates.hbm,
        "heads": b * heads / rates.units,
        "converted": 2 * read / rates.hbm,
    }
    return Costs(us, read, after=("queries", "heads", "converted"))


def _generation(s: Sizes, rates: Rates, case: Case) -> Costs:
    return absorbed(s["batch_size"], s["num_heads"], s["step"] + 1, cache_width(case), rates)


def _generation_work(s: Sizes, case: Case) -> Work:
    b, heads, keys = s["batch_size"], s["num_heads"], s["step"] + 1
    flops = attention_flops(b * keys, heads, ROW, LATENT)
    rate = "fp8" if cache_width(case) == 1 else "bf16"
    return Work(flops=flops, hbm_bytes=b * keys * ROW * cache_width(case), rate=rate)


ENCODER_ATTENTION = KernelTable(
    name="encoder-attention", sizes=("batch_size", "isl", "num_heads", "head_dim"), cases=("attn_dtype",),
    groups=("num_heads", "head_dim", "batch_size"), work=_encoder_work, costs=_encoder,
)  # fmt: skip
CONTEXT_MLA = KernelTable(
    name="context-mla", sizes=("batch_size", "isl", "num_heads"), cases=("kv_cache_dtype",),
    groups=("num_heads", "isl"), work=_prompt_work, costs=_prompt,
)  # fmt: skip
GENERATION_MLA = KernelTable(
    name="generation-mla", sizes=("batch_size", "num_heads", "step"), cases=("kv_cache_dtype",),
    groups=("num_heads", "batch_size"), work=_generation_work, costs=_generation,
)  # fmt: skip
