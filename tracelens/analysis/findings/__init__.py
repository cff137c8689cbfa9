"""What to do next: a module per rule, each marked ``@finding``, and the ranking that shares out the time they claim."""

from __future__ import annotations

from functools import cache

from tracelens.registry import Registry


@cache
def built_in_rules() -> Registry:
    """Kind -> rule, over all modules below this package. Extensions are laid over it per report."""
    return Registry.collect_below("finding", __name__)
