"""The families that the tile model prices: a file each, with the family's column batch and its ``@pricer``."""

from __future__ import annotations

import functools
import sys

from tracelens.perf_models.base import PerfModel
from tracelens.registry import Claim, Registry


@functools.cache
def pricers() -> Registry:
    return Registry.collect_below("pricer", __name__)


@functools.lru_cache(maxsize=1024)
def pricer_of(kind: type[PerfModel]) -> Claim | None:
    """What prices perf models of a class: its family's pricer beside the class, else this package's, else None."""
    family = kind.price_family() or ""
    module = sys.modules.get(kind.__module__)
    beside = Registry.collect("pricer", [] if module is None else [module])
    return beside.get(family) or pricers().get(family)
