"""Whole latent-attention layers as engines run them: projections, the attention kernel, its indexer and top-k.

``num_heads`` are the heads of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels.attention_calls import absorbed, cache_width, walk
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelTable, Rates, Sizes, Work, steps, tiled
from tracelens.dtypes import Precision
from tracelens.lazy.records import dataclass
from tracelens.perf_models.gemm import product_flops
from tracelens.perf_models.sdpa import attention_flops


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerShape:
    """Widths of a model's latent-attention layer; ``index_heads`` 0: every key is attended to."""

    hidden: float
    q_rank: float
    nope: float
    value: float
    index_heads: float = 0


#: ``architecture`` of a table -> widths, from the models' config.json.
SHAPES = {
    "DeepseekV3ForCausalLM": LayerShape(hidden=7168, q_rank=1536, nope=128, value=128),
    "DeepseekV32ForCausalLM": LayerShape(hidden=7168, q_rank=1536, nope=128, value=128, index_heads=64),
    "GlmMoeDsaForCausalLM": LayerShape(hidden=6144, q_rank=2048, nope=192, value=256, index_heads=32),
}
#: The same in all of them: rank of keys and values, rotated width, width of an index head, keys that a query keeps.
KV_RANK, ROPE, INDEX_WIDTH, KEPT = 512.0, 64.0, 128.0, 2048.0
_WIDTHS = tuple(field.name for field in fields(LayerShape))


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
    pairs: Floats = ramp * past + ramp * (ramp + 1) / 2 + beyond
    return pairs


def _layer(tokens: Floats, s: Sizes, rates: Rates, case: Case, *, absorbs: bool) -> dict[str, Floats]:
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


def _context(s: Sizes, rates: Rates, case: Case) -> Costs:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    groups, keys = b * heads * steps(tokens / 128), tiled(tokens, 128.0) / 2 + 64
    us = _layer(b * tokens, s, rates, case, absorbs=False)
    found = walk(groups, keys, 2 * (s["nope"] + ROPE + s["value"]), rates)
    us |= {f"attention_{name}": cost for name, cost in found.items() if name != "waves"}
    return Costs(us, _projected(b * tokens, s, case, absorbs=False)[3], chained=True)


def _context_work(s: Sizes, case: Case) -> Work:
    b, tokens, heads = s["batch_size"], s["isl"], s["num_heads"]
    flops, _, weights, _ = _projected(b * tokens, s, case, absorbs=False)
    pairs = b * _seen(0 * tokens, tokens)
    flops = flops + attention_flops(pairs, heads, s["nope"] + ROPE, s["value"])
    return Work(flops, weights, _fastest(s, case))


def _generation(s: Sizes, rates: Rates, case: Case) -> Costs:
    b, heads, keys = s["batch_size"], s["num_heads"], s["step"] + 1
    found = absorbed(b, heads, keys, cache_width(case), rates)
    us = _layer(b, s, rates, case, absorbs=True)
    us |= {f"attention_{name}": cost for name, cost in found.us.items()}
    return Costs(us, found.streamed, chained=True)


def _generation_work(s: Sizes, case: Case) -> Work:
    b, heads, keys = s["batch_size"], s["num_heads"], s["step"] + 1
    flops, _, weights, _ = _projected(b, s, case, absorbs=True)
    row = KV_RANK + ROPE
    flops = flops + attention_flops(b * keys, heads, row, KV_RANK)
    return Work(flops, weights + b * keys * row * cache_width(case), _fastest(s, case))


def _sparse(s: Sizes, rates: Rates, case: Case) -> Costs:
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
    flops, _, weights, _ = _projected(b * tokens, s, case, absorbs=False)
    dense = attention_flops(b * _seen(past, tokens, KEPT), heads, s["nope"] + ROPE, s["value"])
    return Work(flops + dense, weights, _fastest(s, case))


_TYPES = ("kv_cache_dtype", "gemm_type")
MLA_CONTEXT = KernelTable(
    name="mla-context-module", sizes=("batch_size", "isl", "num_heads"), cases=(*_TYPES, "mla_dtype"),
    described=("architecture", widths), groups=("num_heads", "isl"), work=_context_work, costs=_context,
)  # fmt: skip
MLA_GENERATION = KernelTable(
    name="mla-generation-module", sizes=("batch_size", "num_heads", "step"), cases=_TYPES,
    described=("architecture", widths), groups=("num_heads", "batch_size"), work=_generation_work, costs=_generation,
)  # fmt: skip
_SPARSE_SIZES = ("batch_size", "isl", "num_heads", "step")
_SPARSE_GROUPS = ("architecture", "num_heads", "batch_size")
DSA_CONTEXT = KernelTable(
    name="dsa-context-module", sizes=_SPARSE_SIZES, cases=_TYPES, described=("architecture", widths),
    groups=_SPARSE_GROUPS, work=_sparse_work, costs=_sparse,
)  # fmt: skip
DSA_GENERATION = KernelTable(
    name="dsa-generation-module", sizes=_SPARSE_SIZES, cases=_TYPES, described=("architecture", widths),
    groups=_SPARSE_GROUPS, work=_sparse_work, costs=_sparse,
)  # fmt: skip
