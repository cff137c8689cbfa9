"""By how much estimates are off on measured kernels: how far a carried-over efficiency may be off too."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.base import PerfModel
from tracelens.whatif.plan import Z90

_RATES = {"fp16": "bf16", "fp4": "nvfp4"}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("residuals.toml").read_text(encoding="utf-8"))


@cache
def largest_p90(family: str | None = None) -> float:
    """The largest 90th percentile of a family, or of all where that family was not measured."""
    families = [_table()[family]] if family in _table() else [v for v in _table().values() if isinstance(v, dict)]
    return float(max(p90 for devices in families for row in devices.values() for p90 in row.values()))


def largest_sigma() -> float:
    """For what no model speaks of."""
    return math.log1p(largest_p90() / 100) / Z90


def sigma_of(model: PerfModel, computed_in: DType | None, device: HardwareSpec, backend: str) -> float:
    """Standard deviation of the logarithm of measured over estimated time.

    From the 90th percentile that was measured for the family, device and precision with the tile model; where none was,
    the largest of the family's or, without a measured family, of all.
    """
    family = model.price_family()
    p90 = None
    if backend == "tile" and computed_in is not None and computed_in.rate is not None:
        measured = _table().get(family or "", {})
        row = measured.get(device.name) or measured.get(device.based_on or "") or {}
        p90 = row.get(_RATES.get(computed_in.rate, computed_in.rate))
    return math.log1p((largest_p90(family) if p90 is None else p90) / 100) / Z90
