"""Conversion constants and number formatting for people. Decimal units throughout: 1 GB = 1e9 bytes."""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
BYTES_PER_MB = 1_000_000
BYTES_PER_GB = 1_000_000_000
BYTES_PER_TB = 1_000_000_000_000
BYTES_PER_GIB = 1 << 30
FLOPS_PER_GFLOP = 1_000_000_000
FLOPS_PER_TFLOP = 1_000_000_000_000
# 1 tera-unit per second is 1e6 units per microsecond; 1 GB/s is 1e3 bytes per microsecond.
TERA_PER_S_IN_PER_US = 1_000_000
GB_PER_S_IN_BYTES_PER_US = 1_000


def format_bytes(nbytes: float) -> str:
    """``1234567`` -> ``1.23 MB`` (decimal)."""
    return _scaled(nbytes, ("B", "kB", "MB", "GB", "TB", "PB"))


def format_count(count: float) -> str:
    """``1234567`` -> ``1.23 M``."""
    return _scaled(count, ("", "k", "M", "G", "T", "P")).rstrip()


def format_time_us(time_us: float) -> str:
    """``1234.5`` -> ``1.23 ms``."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if abs(time_us) >= factor:
            return f"{time_us / factor:.3g} {unit}" if abs(time_us) < 1000 * factor else f"{time_us / factor:,.0f} {unit}"
    return f"{time_us:.3g} µs"


def _scaled(value: float, suffixes: tuple[str, ...]) -> str:
    for suffix in suffixes[:-1]:
        if abs(value) < 1000:
            return f"{value:.3g} {suffix}"
        value /= 1000
    return f"{value:.3g} {suffixes[-1]}"
