"""Kernels that inference engines run, as published tables measured them: a ``KernelTable`` per table."""

from __future__ import annotations

import functools

from tracelens.backends.kernels.kernel_costs import KernelTable
from tracelens.registry import Registry


@functools.cache
def kernel_tables() -> Registry:
    """Every table of kernels by its name, e.g. ``gdn``."""
    return Registry.collect_below("kernels", __name__)


def kernel_table(name: str) -> KernelTable | None:
    """The table ``name``; None when there is none."""
    claim = kernel_tables().get(name)
    return None if claim is None else claim.target
