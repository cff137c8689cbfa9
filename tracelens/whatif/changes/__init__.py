"""What can be different: a module per option, each marked with the name of its field and how early it applies."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

from tracelens.registry import Registry, mark

T = TypeVar("T")
#: What the operations are comes first, then what they run on, then what is said of their times, then their order.
WORK, PLACE, TIME, ORDER = range(4)


def change(name: str, stage: int) -> Callable[[T], T]:
    """Marks ``apply(plan, value)`` as what the option ``name`` does; those of an earlier ``stage`` apply first."""
    return mark("change", name, stage=stage)


@cache
def changes() -> Registry:
    """Every change by the name of its option."""
    return Registry.collect_below("change", __name__)
