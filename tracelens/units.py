"""Conversion constants, and counts, sizes and durations as people type them. Decimal units throughout: 1 GB = 1e9
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from tracelens.errors import UsageError

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
US_PER_MS = 1_000
US_PER_S = 1_000_000
MS_PER_S = 1_000
S_PER_DAY = 86_400
BYTES_PER_MB = 1_000_000
BYTES_PER_GB = 1_000_000_000
BYTES_PER_MIB = 1 << 20
BYTES_PER_GIB = 1 << 30
FLOPS_PER_GFLOP = 1_000_000_000
FLOPS_PER_TFLOP = 1_000_000_000_000
# 1 tera-unit per second is 1e6 units per microsecond; 1 GB/s is 1e3 bytes per microsecond.
TERA_PER_S_IN_PER_US = 1_000_000
GB_PER_S_IN_BYTES_PER_US = 1_000
GB_PER_TB = 1_000


_WRITTEN = re.compile(r"([+-]?(?:\d[\d_]*+(?:\.\d++)?|\.\d++))(?:[eE]([+-]?\d{1,2}+))?\s*+([A-Za-zµ]*+)", re.ASCII)
_DECIMAL = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}
#: As often as one: thousands are decimal everywhere, ``Ki`` and its like are powers of 1,024.
COUNTS = {name: Fraction(1000) ** power for name, power in _DECIMAL.items()} | {
    f"{name.upper()}i": Fraction(1024) ** power for name, power in _DECIMAL.items() if name
}
BYTES = COUNTS | {f"{name}B": factor for name, factor in COUNTS.items()}
SECONDS = {
    "ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "µs": Fraction(1, 10**6), "ms": Fraction(1, 1000),
    "s": Fraction(1), "m": Fraction(60), "min": Fraction(60), "h": Fraction(3600), "d": Fraction(86400),
}  # fmt: skip


def count(text: str, *, least: int | None = None) -> int:
    """``8192``, ``8k`` (8,000), ``8Ki`` (8,192), ``1e6``. UsageError for what is no whole number, or below ``least``.

    >>> count("1.5k"), count("2Ki")
    (1500, 2048)
    """
    value = _read(text, COUNTS)
    if value is None or value.denominator != 1 or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise UsageError(f"must be a whole number{bound}, like 8192, 8k or 1e6, got {text!r}")
    return int(value)


def size_bytes(text: str) -> int:
    """``64000000``, ``64MB``, ``1GiB``, ``64e6``. UsageError for anything else."""
    value = _read(text, BYTES)
    if value is None or value.denominator != 1:
        raise UsageError(f"must be a number of bytes, like 64MB, 1GiB or 65536, got {text!r}")
    return int(value)


def duration_s(text: str, *, unit: str | None = None) -> float:
    """``500ms``, ``2.5s``, ``1h`` in seconds; a number without its unit is one of ``unit``, else a UsageError.

    >>> duration_s("250ms"), duration_s("3", unit="us")
    (0.25, 3e-06)
    """
    units = SECONDS if unit is None else SECONDS | {"": SECONDS[unit]}
    value = _read(text, units)
    if value is not None and value >= 0:
        return float(value)
    if _read(text, {"": Fraction(1)}):
        raise UsageError(f"{text} of what? A duration has its unit: {text}ms, {text}s")
    raise UsageError(f"a duration looks like 500ms, 2.5s or 1h, not {text!r}")


def _read(text: str, units: Mapping[str, Fraction]) -> Fraction | None:
    """The number times its unit, spelled as in ``units`` or in other cases where that is only one; None for others."""
    found = _WRITTEN.fullmatch(text.strip())
    if found is None:
        return None
    number, power, unit = found.groups()
    alike = {factor for name, factor in units.items() if name.lower() == unit.lower()}
    factor = units.get(unit, alike.pop() if len(alike) == 1 else None)
    return None if factor is None else Fraction(number.replace("_", "")) * Fraction(10) ** int(power or 0) * factor
