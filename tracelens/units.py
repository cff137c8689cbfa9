"""Conversion constants. Decimal units throughout: 1 GB = 1e9 bytes."""

from __future__ import annotations

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
