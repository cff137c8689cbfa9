"""Keys of columns as titles that readers know."""

from __future__ import annotations

#: How keys of columns end, the longest ending first, and the unit that a reader knows it as.
_UNITS = {
    "_tb_s": "TB/s", "_gb_s": "GB/s", "_per_s": "per s", "_percent": "%", "_bytes": "bytes", "_us": "µs", "_ms": "ms",
    "_mb": "MB", "_gb": "GB", "_s": "s",
}  # fmt: skip


_STATISTICS = ("sum", "mean", "median", "std", "min", "max")
#: Short names in keys, and what they stand for.
_WORDS = {
    "ttft": "to the first token", "tpot": "per token", "e2e": "end to end", "eplb": "with EPLB", "num": "number of",
    "pct": "% of times", "dur": "duration", "nccl": "NCCL", "comm": "communication", "avg": "mean", "msg": "message",
}  # fmt: skip


def column_title(key: str) -> str:
    """
    >>> column_title("logical_effective_gb_s"), column_title("exposed_us_sum"), column_title("ttft_ms")
    ('logical effective, GB/s', 'exposed sum, µs', 'to the first token, ms')
    """
    whole, _, statistic = key.rpartition("_")
    key, said = (whole, f" {statistic}") if statistic in _STATISTICS else (key, "")
    ending = next((each for each in _UNITS if key.endswith(each) and key != each), "")
    words = " ".join(_WORDS.get(each, each) for each in key.removesuffix(ending).split("_")) + said
    return f"{words}, {_UNITS[ending]}" if ending else words
