"""How long an operation should take: interchangeable answers to one question."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from functools import cache

from tracelens.backends.base import Backend, Estimate, EstimateTable, System, backend
from tracelens.errors import UsageError
from tracelens.registry import Registry, announced

ENTRY_POINTS = "tracelens.backends"

__all__ = ["Backend", "Estimate", "EstimateTable", "System", "backend", "backends", "load"]


def backends() -> Registry:
    """Every backend by name: the modules of this package, and those that installed packages announce."""
    return _found(tuple(sys.path))


@cache
def _found(_path: tuple[str, ...]) -> Registry:
    """Looking through all installed packages takes longer than most estimates: once per ``sys.path``."""
    own = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    return Registry.collect("backend", [*own, *announced(ENTRY_POINTS)])


def load(name: str) -> Backend:
    """The backend ``name``, e.g. ``"roofline"``. UsageError when there is none."""
    known = backends()
    if name not in known:
        raise UsageError.unknown("backend", name, known)
    made = known[name].target()
    if not isinstance(made, Backend):
        raise UsageError(f"backend {name!r} ({known[name].origin}) must have name, estimate_many and estimate")
    return made
