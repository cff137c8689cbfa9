"""How many tokens each expert gets, for the named distributions that benchmarks of expert layers use."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import UsageError

Counts = NDArray[np.int64]
_POWER_LAW = re.compile(r"power_law_(\d+(?:\.\d+)?)")


def expert_loads(distribution: str, tokens: int, experts: int, topk: int, ranks: int, seed: int) -> Counts:
    """Tokens per expert, ``tokens * topk`` in all; experts are dealt to ``ranks`` in equal runs.

    ``balanced``: token i takes experts ``(i + j * ceil(experts / topk)) mod experts``, and
    fewer tokens than that stride start evenly apart. ``power_law_A``: weights drawn
    by inverse CDF between 1 and 0.8 * tokens (0.01 and 2 where there are fewer choices than experts), scaled and
    rounded to the total; an expert gets each token at most once, what is over goes to the least loaded, and the
    experts are dealt so that the most loaded rank comes first. Both as aiconfigurator's collector draws them.
    UsageError for another name or sizes that do not fit.
    """
    if min(tokens, experts, topk, ranks) < 1 or topk > experts or experts % ranks:
        raise UsageError(f"{topk} of {experts} experts on {ranks} ranks for {tokens} tokens is not possible")
    if distribution == "balanced":
        stride = -(-experts // topk)
        first = np.arange(tokens) if tokens >= stride else np.arange(tokens) * stride // tokens
        chosen = (first[:, None] + stride * np.arange(topk)) % experts
        counts: Counts = np.bincount(chosen.ravel(), minlength=experts)
        return counts
    named = _POWER_LAW.fullmatch(distribution)
    if named is None:
        raise UsageError.unknown(
            "distribution of tokens", distribution, ["balanced", "power_law_1.01", "power_law_1.2"]
        )
    exponent = 1 - float(named[1])
    if exponent == 0:
        raise UsageError("power_law_1 has no inverse of that form; take power_law_1.01")
    low, high = (1.0, 0.8 * tokens) if tokens * topk > experts else (0.01, 2.0)
    uniform = np.random.default_rng(seed).random(experts)
    weights = ((high**exponent - low**exponent) * uniform + low**exponent) ** (1 / exponent)
    counts = _rounded(weights, tokens * topk)
    counts = _capped(counts, tokens)
    by_rank = counts.reshape(ranks, -1)
    most = int(by_rank.sum(axis=1).argmax())
    return np.roll(by_rank, -most, axis=0).reshape(-1)


def _rounded(weights: NDArray[np.float64], total: int) -> Counts:
    """Whole shares of ``total``, largest remainders up."""
    exact = weights / weights.sum() * total
    counts: Counts = np.floor(exact).astype(np.int64)
    up = np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]
    counts[up] += 1
    return counts


def _capped(counts: Counts, most: int) -> Counts:
    """What is above ``most`` handed to the least loaded, which fill up evenly."""
    over = int(np.maximum(counts - most, 0).sum())
    counts = np.minimum(counts, most).astype(np.int64)
    if not over:
        return counts
    order = np.argsort(counts, kind="stable")
    filled = counts[order]
    # Raise the lowest to a common level: the largest count of receivers whose raise costs no more than what is over.
    cost = np.arange(1, len(filled) + 1) * filled - np.cumsum(filled)
    receivers = int(np.searchsorted(cost, over, side="right"))
    level, rest = divmod(over + int(filled[:receivers].sum()), receivers)
    filled[:receivers] = level
    filled[:rest] += 1
    counts[order] = filled
    return counts
