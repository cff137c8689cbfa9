"""Pipeline schedules: in which order each rank passes micro-batches forward and backward. One file each."""

from __future__ import annotations

from functools import cache

from tracelens.errors import UsageError
from tracelens.predict.projection.schedules.orders import Kind, Order, Plan, Route, Task, schedule
from tracelens.registry import Registry

__all__ = ["Kind", "Order", "Plan", "Route", "Task", "load", "schedule", "schedules"]


@cache
def schedules() -> Registry:
    """Every schedule of this package by name."""
    return Registry.collect_below("schedule", __name__)


def load(name: str) -> Order:
    """The schedule ``name``, e.g. ``"1f1b"``. UsageError when there is none."""
    known = schedules()
    if name not in known:
        raise UsageError.unknown("pipeline schedule", name, known)
    target: Order = known[name].target()
    return target
