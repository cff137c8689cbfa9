"""The rules of ``idle_rules.toml``: idle time of one cause, whatever it is."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding


def idle_rules() -> list[Callable[[Observed], Iterator[Candidate]]]:
    """A rule per table of the file."""
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [_rule(cause, Advice(**says)) for cause, says in tables.items()]


def _rule(cause: str, advice: Advice) -> Callable[[Observed], Iterator[Candidate]]:
    @finding(f"idle: {cause}", advice)
    def idle(seen: Observed) -> Iterator[Candidate]:
        """Idle time of this cause."""
        return idle_of_cause(seen, cause)

    return idle
