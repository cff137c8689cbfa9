"""The findings of a trace: what the rules see, the largest gain first, no moment of the window in two of them."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.op_places import places_around
from tracelens.analysis.findings import built_in_rules
from tracelens.analysis.findings.candidate import Candidate, Claimed
from tracelens.analysis.findings.observed import MIN_GAIN, Observed
from tracelens.analysis.findings.rule import Rule, RuleFailure
from tracelens.analysis.findings.wording import percent
from tracelens.analysis.verdict.summary import Finding, Place, Said
from tracelens.extensions import Extension, TimeLimitError, overlay, time_limit
from tracelens.lazy.records import dataclass
from tracelens.trace.columns import Column
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    from tracelens.analysis.sheets.context import SheetContext

Bools = npt.NDArray[np.bool_]

#: How many lines there are.
MOST = 10
#: How long a rule may take.
_RULE_LIMIT_S = 60.0
#: Share of what a finding claims that those above it must have taken for its sentence to say so.
_MUCH_TAKEN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gain:
    """What a claim brings (ns), from the least to the most."""

    low: float
    gain: float
    high: float

    @property
    def rank(self) -> float:
        """The middle of what is sure and what is shown: a sure gain comes before a larger one that may be none."""
        return (self.low + self.gain) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A candidate with what is left of its claim, and what that gains."""

    rule: Rule
    candidate: Candidate
    claimed: Claimed
    gain: _Gain

    @property
    def order(self) -> tuple[float, str, str]:
        """The largest gain first, ties broken on text."""
        return -self.gain.rank, self.rule.kind, self.candidate.why


def findings(
    context: SheetContext, extensions: Sequence[Extension] = ()
) -> tuple[tuple[Finding, ...], tuple[RuleFailure, ...]]:
    """(at most ten, the rules that failed). Each keeps what those before it leave: together they gain at most the
    window.
    """
    found, failures = findings_and_claims(Observed(context), extensions)
    return tuple(finding for finding, _ in found), failures


def findings_and_claims(
    seen: Observed, extensions: Sequence[Extension] = ()
) -> tuple[list[tuple[Finding, Claimed]], tuple[RuleFailure, ...]]:
    """The findings, each with the parts of the window that it says can go."""
    found: list[tuple[Rule, Candidate]] = []
    failures: list[RuleFailure] = []
    for claim in overlay(built_in_rules(), extensions).values():
        try:
            with time_limit(_RULE_LIMIT_S):
                rule = Rule.of(claim)
                found += [(rule, _checked(candidate, seen.time.own_ns)) for candidate in rule.candidates(seen)]
        except (Exception, TimeLimitError) as error:  # noqa: BLE001 - a rule may cost its findings, never the report
            text = f"{type(error).__name__}: {error}"
            failures.append(RuleFailure(kind=claim.key, origin=claim.origin, error=text))
    free = np.ones(len(seen.time.own_ns), bool)
    ranked = [
        each
        for general in (False, True)
        for each in _ranked(seen, [pair for pair in found if pair[0].advice.is_general == general], free)
    ]
    ranked.sort(key=lambda each: each.order)
    of_op = Counter((rule.kind, candidate.op) for rule, candidate in found)
    return [
        (_finding(seen, each, of_op[each.rule.kind, each.candidate.op] == 1), each.claimed) for each in ranked[:MOST]
    ], tuple(failures)


def _checked(candidate: Candidate, own_ns: Column[np.int64]) -> Candidate:
    """A candidate; TypeError or ValueError where it is none, or claims what the window does not have."""
    if not isinstance(candidate, Candidate):
        raise TypeError(f"gave {type(candidate).__name__}, which is no Candidate")
    part, amounts = (
        candidate.claimed.part,
        (candidate.claimed.low_ns, candidate.claimed.gain_ns, candidate.claimed.high_ns),
    )
    claimed = np.zeros(len(own_ns), bool)
    inside = part.dtype.kind == "i" and bool(((part >= 0) & (part < len(own_ns))).all())
    if inside:
        claimed[part] = True
    if not inside or np.count_nonzero(claimed) < len(part):
        raise ValueError("claims parts that the window does not have, or one of them twice")
    most_ns = own_ns[part] + 1
    if not all(len(ns) == len(part) and ((ns >= 0) & (ns <= most_ns)).all() for ns in amounts):
        raise ValueError("claims more of a part of the window than it has")
    return candidate


def _ranked(seen: Observed, found: Sequence[tuple[Rule, Candidate]], free: Bools) -> Iterator[_Ranked]:
    """By what they gain, the largest first; what each claims is not ``free`` for those after it."""
    waiting = [_left(seen, rule, candidate, candidate.claimed.among(free)) for rule, candidate in found]
    least = MIN_GAIN * seen.window_ns
    while waiting := [each for each in waiting if each.gain.gain > least]:
        first = min(waiting, key=lambda each: each.order)
        yield first
        free[first.claimed.part] = False
        rest = ((each, each.claimed.among(free)) for each in waiting if each is not first)
        waiting = [
            each if len(left.part) == len(each.claimed.part) else _left(seen, each.rule, each.candidate, left)
            for each, left in rest
        ]


def _left(seen: Observed, rule: Rule, candidate: Candidate, claimed: Claimed) -> _Ranked:
    return _Ranked(rule=rule, candidate=candidate, claimed=claimed, gain=_gain(seen, claimed))


def _gain(seen: Observed, claimed: Claimed) -> _Gain:
    """Of kernels, what comes out at the end of the window when the host launches no sooner than it did."""
    is_event = claimed.part < seen.time.events
    # Most claims are of events alone, or of idle time alone: nothing of them is copied
    at = slice(None) if is_event.all() else slice(0) if not is_event.any() else is_event
    amounts = claimed.low_ns, claimed.gain_ns, claimed.high_ns
    events, (low_ns, gain_ns, high_ns) = claimed.part[at], (ns[at] for ns in amounts)
    idle = [float(ns[~is_event].sum()) for ns in amounts]
    busy = [float(ns.sum()) for ns in (low_ns, gain_ns, high_ns)]
    if len(events) and not claimed.spares_launches:
        busy[0] = _realized(seen, events, low_ns)
        busy[1] = busy[0] if np.array_equal(low_ns, gain_ns) else _realized(seen, events, gain_ns)
    low, gain, high = (a + b for a, b in zip(idle, busy, strict=True))
    return _Gain(low=low, gain=gain, high=high)


def _realized(seen: Observed, events: npt.NDArray[np.integer], ns: npt.NDArray[np.float64]) -> float:
    of_event = np.zeros(seen.time.events, np.float64)
    of_event[events] = ns
    return seen.lead.realized_ns(of_event)


def _finding(seen: Observed, ranked: _Ranked, is_only: bool) -> Finding:
    """``is_only``: whether its rule says nothing else of its op."""
    rule, candidate, claimed, gain = ranked.rule, ranked.candidate, ranked.claimed, ranked.gain
    per_us = NS_PER_US * seen.steps
    whole, left = (int(seen.time.own_ns[part].sum()) for part in (candidate.claimed.part, claimed.part))
    why, figures = candidate.why, candidate.figures
    taken = 1 - left / whole if whole else 0.0
    if taken > _MUCH_TAKEN:
        why += f"; {percent(taken)} of this time is counted above"
        figures = (*figures, Said(what="counted above", value=taken, unit="share"))
    shapes = candidate.shapes
    if shapes is None and candidate.row is not None and candidate.op is not None:
        shapes = seen.shapes(candidate.row, most=200) or None
    module, stack = (None, None) if candidate.row is None else places_around(seen.tree, candidate.row)
    op = candidate.op
    return Finding(
        id=rule.id,
        kind=rule.kind,
        key=_key(rule.kind, op, None if is_only else shapes),
        op=op,
        gain_us=gain.gain / per_us,
        gain_low_us=gain.low / per_us,
        gain_high_us=gain.high / per_us,
        computed=candidate.computed,
        certainty=candidate.certainty,
        why=why,
        where=Place(shapes=shapes, module=module, call_stack=stack, share=left / max(1, seen.window_ns)),
        time_us=left / per_us,
        figures=figures,
        evidence=candidate.evidence,
        remedy=candidate.remedy or rule.advice.remedy,
        wrong_when=rule.advice.wrong_when,
        command=candidate.command or rule.advice.command.replace("TRACE", seen.table.source) or None,
    )


def _key(kind: str, op: str | None, shapes: str | None) -> str:
    """The same in every report of the same program: the kind, and a digest of the op and what tells its calls apart."""
    stem = re.sub(r"\W+", "_", kind)
    return stem if op is None else f"{stem}-{zlib.crc32(f'{op} {shapes}'.encode('utf-8', 'replace')):08x}"
