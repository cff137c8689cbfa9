"""What to do next: rules by topic, each marked ``@finding``, and the ranking that shares out the time they claim.

The rules that only differ in a cause of idle time and in what they say of it are tables of ``idle_rules.toml``.
"""

from __future__ import annotations

from functools import cache

from tracelens.registry import Registry


@cache
def built_in_rules() -> Registry:
    """Kind -> rule, over all modules below this package. Extensions are laid over it per report."""
    from tracelens.analysis.findings.idle_rules import idle_rules

    return Registry.collect_below("finding", __name__).overlaid(idle_rules())
