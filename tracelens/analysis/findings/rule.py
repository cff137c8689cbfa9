"""The mark of a rule: what it sees, why that costs time, what to do about it, and when that brings nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from tracelens.lazy.records import dataclass
from tracelens.registry import Claim, mark

if TYPE_CHECKING:
    from tracelens.analysis.findings.candidate import Candidate
    from tracelens.analysis.findings.observed import Observed

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What a rule says of its findings, for the report and for its section of docs/findings.md.

    ``sees``, ``costs`` (why it costs time) and ``wrong_when`` (when the remedy brings nothing) are whole sentences;
    ``remedy`` says what to do, in at most two lines of a terminal. ``command``: what to type next, with ``TRACE`` where
    the trace's name goes; empty where nothing helps. What is ``is_general`` leaves to other rules what they see too.
    """

    sees: str
    costs: str
    remedy: str
    wrong_when: str
    references: tuple[str, ...] = ()
    command: str = ""
    is_general: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``kind`` is the id of its findings; where one id has several rules, with the cause or bound behind a colon."""

    kind: str
    advice: Advice
    candidates: Callable[[Observed], Iterable[Candidate]]

    @classmethod
    def of(cls, claim: Claim) -> Rule:
        """From a marked function, under its kind."""
        return cls(kind=claim.key, advice=claim.options["advice"], candidates=claim.target)

    @property
    def id(self) -> str:
        """The kind without its cause or bound."""
        return self.kind.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFailure:
    """A rule that raised, ran too long or claimed what is not there: it has no findings, the report goes on."""

    kind: str
    origin: str
    error: str


def finding(kind: str, advice: Advice) -> Callable[[F], F]:
    """Marks ``function(seen) -> candidates`` as the rule ``kind``; ``seen`` is what a trace shows (``Observed``)."""
    return mark("finding", kind, advice=advice)
