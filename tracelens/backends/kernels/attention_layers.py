"""Attention kernels alone (vision encoders, latent attention over prompts and over a cache), and whole latent-attention
layers as engines run them: projections, the attention kernel, its indexer and top-k.

Work-groups of 128 query rows walk along the keys in whole steps. Absorbed latent attention has one key head: the heads
of a query share the rows of the cache, in groups of 64. ``num_heads`` are the heads of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from msgspec.structs import replace

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelRates, KernelTable, Sizes, Work, steps, tiled
from tracelens.hardware.power import ATTENTION, INDEXER
from tracelens.perf_models.gemm import product_flops
from tracelens.perf_models.sdpa import attention_flops, row_elements
from tracelens.types.dtypes import Precision
from tracelens.types.records import Record

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


def walk(groups: Floats, keys: Floats, flops_per_pair: Floats, rates: KernelRates) -> dict[str, Floats]:
    """Work-groups of 128 rows that each see ``keys``: products, whole waves, the longest one, exponentials."""
    unit = rates.flops("bf16") / rates.units
    group = _ROWS * keys * flops_per_pair / unit
    return {
        "matrix": groups * group / rates.units,
        "waves": steps(groups / rates.units) * group,
        "longest": group,
        "exponentials": groups * _ROWS * keys / rates.exponentials,
    }


def _encoder(s: Sizes, rates: KernelRates, _: Case) -> Costs:
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
    moved = 2 * b * tokens * sum(row_elements(heads, heads, d, d))
    return Work(flops=flops, hbm_bytes=moved, done={ATTENTION: flops})


def _attention_prompt(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    one, keys = np.ones(len(b)), tiled(tokens, _ROWS) / 2 + _ROWS / 2
    # SGLang's general kernels attend prompts over the latent rows, too: one key head for all heads
    if case.get("framework") == "sglang" and case.get("kernel_source") in _GENERAL:
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


def _attention_prompt_work(s: Sizes, _: Case) -> Work:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    flops = attention_flops(b * tokens * (tokens + 1) / 2, heads, D_QK, D_V)
    moved = 2 * b * tokens * sum(row_elements(heads, heads, D_QK, D_V))
    return Work(flops=flops, hbm_bytes=moved, done={ATTENTION: flops})


def absorbed(b: Floats, heads: Floats, keys: Floats, width: float, rates: KernelRates) -> Costs:
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


def _attention_generation_work(s: Sizes, case: Case) -> Work:
    b, heads, keys = s["batch_size"], s["num_heads"], s["step"] + 1
    flops = attention_flops(b * keys, heads, ROW, LATENT)
    rate = "fp8" if cache_width(case) == 1 else "bf16"
    return Work(flops=flops, hbm_bytes=b * keys * ROW * cache_width(case), rate=rate, done={ATTENTION: flops})


ENCODER_ATTENTION = KernelTable(
    name="encoder-attention", sizes=("batch_size", "isl", "num_heads", "head_dim"), cases=("attn_dtype",),
    groups=("num_heads", "head_dim", "batch_size"), work=_encoder_work, costs=_encoder,
)  # fmt: skip
CONTEXT_MLA = KernelTable(
    name="context-mla", sizes=("batch_size", "isl", "num_heads"), cases=("kv_cache_dtype",),
    groups=("num_heads", "isl"), work=_attention_prompt_work, costs=_attention_prompt,
)  # fmt: skip
GENERATION_MLA = KernelTable(
    name="generation-mla", sizes=("batch_size", "num_heads", "step"), cases=("kv_cache_dtype",),
    groups=("num_heads", "batch_size"), work=_attention_generation_work,
    costs=lambda s, rates, case: absorbed(
        s["batch_size"], s["num_heads"], s["step"] + 1, cache_width(case), rates
    ),
)  # fmt: skip


#: SGLang's cutlass_mla on B200. GB/s of a pair of compute units: 256 sequences of 8,192 keys at 4,124 GB/s, 74 of them
#: at a time (sglang#6929, its last table). TFLOP/s of prompts on the latent by FlashAttention-2: less than 300
#: (flashinfer#3400; #5133: 320 to 390 not on the latent).
CUTLASS_PAIR_GB_S, CUTLASS_PROMPT_TFLOP_S = 4124 / 256 * 4, 300.0


def cutlass_key_us(sequences: int, row_bytes: float, units: int) -> float:
    """Of a decode step by cutlass_mla, as it was in 2025, per key of each of so many sequences: a pair of a device's
    compute units reads a sequence's keys one after the other, none are split (sglang#7184).
    """
    return -(-sequences // (units // 2)) * row_bytes / (CUTLASS_PAIR_GB_S * 1e3)


def cutlass_prompt_us(flops: float) -> float:
    """Of prompts that are attended on the latent."""
    return flops / (CUTLASS_PROMPT_TFLOP_S * 1e6)


class LatentAttentionShape(Record, frozen=True, kw_only=True):
    """Widths of a model's latent-attention layer; ``index_heads`` 0: every key is attended to."""

    hidden: float
    q_rank: float
    nope: float
    value: float
    index_heads: float = 0


#: ``architecture`` of a table -> widths, from the models' config.json.
SHAPES = {
    "DeepseekV3ForCausalLM": LatentAttentionShape(hidden=7168, q_rank=1536, nope=128, value=128),
    "DeepseekV32ForCausalLM": LatentAttentionShape(hidden=7168, q_rank=1536, nope=128, value=128, index_heads=64),
    "GlmMoeDsaForCausalLM": LatentAttentionShape(hidden=6144, q_rank=2048, nope=192, value=256, index_heads=32),
}
#: The same in all of them: rank of keys and values, rotated width, width of an index head, keys that a query keeps.
KV_RANK, ROPE, INDEX_WIDTH, KEPT = 512.0, 64.0, 128.0, 2048.0
_WIDTHS = tuple(field.name for field in fields(LatentAttentionShape))


def widths(architectures: Sequence[str]) -> Sizes:
    """The widths of each row's architecture; DeepSeek-V3's for one that nobody measured."""
    shapes = [SHAPES.get(name, SHAPES["DeepseekV3ForCausalLM"]) for name in architectures]
    return {name: np.array([getattr(shape, name) for shape in shapes], np.float64) for name in _WIDTHS}


def _projections(s: Sizes, *, absorbs: bool) -> tuple[tuple[Floats, Floats, Floats], ...]:
    """(count, n, k) of the products of one token's row."""
    heads, hidden, q_rank, nope, value, index_heads = (s[name] for name in ("num_heads", *_WIDTHS))
    one, indexed = np.ones(len(heads)), (index_heads > 0).astype(np.float64)
    found: list[tuple[Floats, Floats, Floats]] = [
        (one, q_rank + KV_RANK + ROPE, hidden),
        (one, heads * (nope + ROPE), q_rank),
        (one, hidden, heads * value),
        (indexed, index_heads * INDEX_WIDTH, q_rank),
        (indexed, INDEX_WIDTH + index_heads, hidden),
    ]
    if absorbs:
        return (*found, (heads, one * KV_RANK, nope), (heads, value, one * KV_RANK))
    return (*found, (one, heads * (nope + value), one * KV_RANK))


def _gemm(case: Case) -> Precision:
    return Precision.of(case.get("gemm_type", "bfloat16"))


def _projected(tokens: Floats, s: Sizes, case: Case, *, absorbs: bool) -> tuple[Floats, Floats, Floats, Floats]:
    """(flops, flops by whole tiles of 64 rows, bytes of weights, bytes of the rows in and out)."""
    flops, padded, weights, rows = (np.zeros(len(tokens)) for _ in range(4))
    width = _gemm(case).width_bytes
    for count, n, k in _projections(s, absorbs=absorbs):
        flops = flops + product_flops(tokens, n, k, count)
        padded = padded + product_flops(tiled(tokens, 64.0), tiled(n, 128.0), k, count)
        weights = weights + count * n * k * width
        rows = rows + 2 * tokens * count * (n + k)
    return flops, padded, weights, rows


def _seen(past: Floats, tokens: Floats, most: float = np.inf) -> Floats:
    """Pairs of ``tokens`` new queries with the keys up to their own, at most so many per query."""
    ramp = np.clip(most - past, 0, tokens)
    beyond = (tokens - ramp) * (most if np.isfinite(most) else 0.0)
    return ramp * past + ramp * (ramp + 1) / 2 + beyond


def _layer(tokens: Floats, s: Sizes, rates: KernelRates, case: Case, *, absorbs: bool) -> dict[str, Floats]:
    _, padded, weights, rows = _projected(tokens, s, case, absorbs=absorbs)
    return {
        "products": padded / rates.flops(_gemm(case).dtype.rate or "bf16"),
        "weights": weights / rates.hbm,
        "rows": rows / rates.l2,
        "tokens": tokens / 1000,
    }


def _fastest(s: Sizes, case: Case) -> str:
    """The rate that no part exceeds: the faster of the projections', the attention's and the indexer's."""
    kept = {_gemm(case).dtype.rate, "fp8" if cache_width(case) == 1 or case.get("mla_dtype") == "fp8" else "bf16"}
    if s["index_heads"].any():
        kept.add("fp8")
    return next(rate for rate in ("fp4", "fp8", "bf16") if rate in kept)


def _context(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    groups, keys = b * heads * steps(tokens / 128), tiled(tokens, 128.0) / 2 + 64
    us = _layer(b * tokens, s, rates, case, absorbs=False)
    found = walk(groups, keys, 2 * (s["nope"] + ROPE + s["value"]), rates)
    us |= {f"attention_{name}": cost for name, cost in found.items() if name != "waves"}
    return Costs(us, _projected(b * tokens, s, case, absorbs=False)[3], chained=True)


def _context_work(s: Sizes, case: Case) -> Work:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    flops, _, weights, rows = _projected(b * tokens, s, case, absorbs=False)
    pairs = b * _seen(0 * tokens, tokens)
    attended = attention_flops(pairs, heads, s["nope"] + ROPE, s["value"])
    done = {_gemm(case).calibrated.value: flops, ATTENTION: attended}
    return Work(flops + attended, weights, _fastest(s, case), done, weights + rows)


def _generation(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    b, heads, keys = s["batch_size"], s["num_heads"], s["step"] + 1
    found = absorbed(b, heads, keys, cache_width(case), rates)
    us = _layer(b, s, rates, case, absorbs=True)
    us |= {f"attention_{name}": cost for name, cost in found.us.items()}
    return Costs(us, found.streamed, chained=True)


def _generation_work(s: Sizes, case: Case) -> Work:
    b, heads, keys = s["batch_size"], s["num_heads"], s["step"] + 1
    flops, _, weights, rows = _projected(b, s, case, absorbs=True)
    row = KV_RANK + ROPE
    attended, read = attention_flops(b * keys, heads, row, KV_RANK), weights + b * keys * row * cache_width(case)
    done = {_gemm(case).calibrated.value: flops, ATTENTION: attended}
    return Work(flops + attended, read, _fastest(s, case), done, read + rows)


def _sparse(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    """Indexer scores over all keys, the best 2,048 rows of the cache gathered per query; dense while all are kept."""
    b, tokens, heads, past = s["batch_size"], s["isl"], s["num_heads"], s["step"]
    row, width = KV_RANK + ROPE, cache_width(case)
    every, kept = b * _seen(past, tokens), b * _seen(past, tokens, KEPT)
    matrix = rates.flops("bf16")
    us = _layer(b * tokens, s, rates, case, absorbs=True)
    us |= {
        "scores": 2 * every * s["index_heads"] * INDEX_WIDTH / rates.flops("fp8"),
        "ranking": 4 * every / rates.l2,
        "gathered": kept * row * width / rates.l2,
        "attention": 2 * kept * tiled(heads, 64.0) * (row + KV_RANK) / matrix,
        "padded": 2 * b * tokens * KEPT * tiled(heads, 64.0) * (row + KV_RANK) / matrix,
        "fetched": b * tokens * KEPT * row * width / rates.l2,
        "pairs": 2 * kept * heads * (row + KV_RANK) / matrix,
        "dense": 2 * every * heads * (s["nope"] + ROPE + s["value"]) / matrix,
        "keys": (past + tokens) / 1000,
        "cached": b * (past + tokens) * (row * width + INDEX_WIDTH) / rates.hbm,
    }
    return Costs(us, b * np.minimum(past + tokens, KEPT) * row * width, chained=True)


def _sparse_work(s: Sizes, case: Case) -> Work:
    b, tokens, heads, past = s["batch_size"], s["isl"], s["num_heads"], s["step"]
    flops, _, weights, rows = _projected(b * tokens, s, case, absorbs=False)
    every, kept = b * _seen(past, tokens), b * _seen(past, tokens, KEPT)
    dense = attention_flops(kept, heads, s["nope"] + ROPE, s["value"])
    gathered = kept * (KV_RANK + ROPE) * cache_width(case)
    done = {
        _gemm(case).calibrated.value: flops,
        ATTENTION: attention_flops(kept, heads, KV_RANK + ROPE, KV_RANK),
        INDEXER: 2 * every * s["index_heads"] * INDEX_WIDTH,
    }
    return Work(flops + dense, weights, _fastest(s, case), done, weights + rows + gathered + 4 * every)


_TYPES = ("kv_cache_dtype", "gemm_type")
MLA_CONTEXT = KernelTable(
    name="mla-context-module", sizes=("batch_size", "isl", "num_heads"), cases=(*_TYPES, "mla_dtype"),
    described=("architecture", widths), groups=("num_heads", "isl"), work=_context_work, costs=_context,
)  # fmt: skip
MLA_GENERATION = KernelTable(
    name="mla-generation-module", sizes=("batch_size", "num_heads", "step"), cases=_TYPES,
    described=("architecture", widths), groups=("num_heads", "batch_size"), work=_generation_work, costs=_generation,
)  # fmt: skip
DSA_CONTEXT = KernelTable(
    name="dsa-context-module", sizes=("batch_size", "isl", "num_heads", "step"), cases=_TYPES,
    described=("architecture", widths), groups=("architecture", "num_heads", "batch_size"), work=_sparse_work,
    costs=_sparse,
)  # fmt: skip
DSA_GENERATION = replace(DSA_CONTEXT, name="dsa-generation-module")
