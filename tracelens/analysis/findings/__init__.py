"""What to do next: rules by topic, each marked ``@built_in``, and the ranking that shares out the time they claim.

What each rule says is in ``advice.toml``; most causes of idle time need no code beyond that.
"""

from __future__ import annotations

from functools import cache

from tracelens.registry import Registry


@cache
def built_in_rules() -> Registry:
    """Kind -> rule, over all modules below this package. Extensions are laid over it per report."""
    from tracelens.analysis.findings.idle_rules import rules_of_causes

    rules = Registry.collect_below("finding", __name__)
    return rules.overlaid(rules_of_causes(rules))
