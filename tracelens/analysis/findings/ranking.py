"""The findings of a trace: what the rules see, the largest gain first, no moment of the window in two of them."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.host_scopes import places_around
from tracelens.analysis.findings import built_in_rules
from tracelens.analysis.findings.replayed_gain import DEVICE, HOST, ReplayedGain
from tracelens.analysis.findings.rule import MIN_GAIN, Candidate, Claimed, Observed, Rule, RuleFailure
from tracelens.analysis.verdict.summary import Finding, FixesTogether, Notice, Place, Said, duration, percent
from tracelens.extensions import Extension, TimeLimitError, overlay, time_limit
from tracelens.lazy.records import dataclass
from tracelens.trace.narrow_columns import Column
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
#: Share of the window from which idle time or exposed communication that brings nothing is said to.
_HELD = 0.15
#: How many findings are applied one on top of the other.
_TOGETHER = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """At most ten findings, what the first of them bring together, what holds much time and brings nothing, and the
    rules that failed.
    """

    findings: tuple[Finding, ...] = ()
    together: FixesTogether | None = None
    without_gain: tuple[Notice, ...] = ()
    failures: tuple[RuleFailure, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gain:
    """What a claim brings (ns): for sure, and as it says."""

    low: float
    gain: float

    @property
    def rank(self) -> float:
        """The middle of what is sure and what is shown: a sure gain comes before a larger one that may be none."""
        return (self.low + self.gain) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranked:
    """A candidate with what is left of its claim, and what that gains: None where nothing says."""

    rule: Rule
    candidate: Candidate
    claimed: Claimed
    gain: _Gain | None

    @property
    def order(self) -> tuple[bool, float, str, str]:
        """The largest gain first, what is not known last, ties broken on text."""
        return self.gain is None, -self.gain.rank if self.gain else 0.0, self.rule.kind, self.candidate.why


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranking:
    ranked: list[_Ranked]
    without_gain: list[_Ranked]
    failures: tuple[RuleFailure, ...]
    of_op: Counter[tuple[str, str | None]]


def findings(context: SheetContext, extensions: Sequence[Extension] = ()) -> Found:
    """What the rules see. Each finding keeps what those before it leave: together they gain at most the window."""
    seen = Observed(context)
    ranking = _ranking(seen, extensions)
    return Found(
        findings=tuple(_findings(seen, ranking)),
        together=_together(seen, ranking),
        without_gain=tuple(_without_gain(seen, each) for each in ranking.without_gain),
        failures=ranking.failures,
    )


def findings_and_claims(seen: Observed, extensions: Sequence[Extension] = ()) -> list[tuple[Finding, Claimed]]:
    """The findings, each with the parts of the window that it says can go."""
    ranking = _ranking(seen, extensions)
    return list(zip(_findings(seen, ranking), (each.claimed for each in ranking.ranked), strict=True))


def _findings(seen: Observed, ranking: _Ranking) -> list[Finding]:
    of_op = ranking.of_op
    return [
        _finding(seen, each, is_only=of_op[each.rule.kind, each.candidate.op] == 1) for each in ranking.ranked
    ]  # fmt: skip


def _ranking(seen: Observed, extensions: Sequence[Extension]) -> _Ranking:
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
    ranked: list[_Ranked] = []
    without_gain: list[_Ranked] = []
    for general in (False, True):
        ranked += _ranked(seen, [pair for pair in found if pair[0].advice.is_general == general], free, without_gain)
    ranked.sort(key=lambda each: each.order)
    ranked += _unpriced(seen, found, free)
    of_op = Counter((rule.kind, candidate.op) for rule, candidate in found)
    return _Ranking(ranked=ranked[:MOST], without_gain=without_gain, failures=tuple(failures), of_op=of_op)


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


def _ranked(
    seen: Observed, found: Sequence[tuple[Rule, Candidate]], free: Bools, without_gain: list[_Ranked]
) -> Iterator[_Ranked]:
    """By what they gain, the largest first; what each claims is not ``free`` for those after it.

    A part of a claim gains at most what all of it does, and that at most its own time: a step is replayed only for what
    may be the next one. Of what gains nothing, what holds much time goes to ``without_gain``.
    """
    least = MIN_GAIN * seen.window_ns
    waiting = []
    for number, (rule, candidate) in enumerate(found):
        claimed = candidate.claimed.among(free)
        bound = _Gain(low=float(claimed.low_ns.sum()), gain=float(claimed.gain_ns.sum()))
        if candidate.is_priced and bound.gain > least:
            each = _Ranked(rule=rule, candidate=candidate, claimed=claimed, gain=bound)
            waiting.append((each.order, number, False, each))
    heapify(waiting)
    while waiting:
        _, number, is_replayed, each = heappop(waiting)
        left = each.claimed.among(free)
        if is_replayed and left is each.claimed:
            yield each
            free[each.claimed.part] = False
            continue
        each = replace(each, claimed=left, gain=_gain(seen, left))
        if each.gain is not None and each.gain.gain > least:
            heappush(waiting, (each.order, number, True, each))
        elif _holds_much(seen, each):
            without_gain.append(each)


def _unpriced(seen: Observed, found: Sequence[tuple[Rule, Candidate]], free: Bools) -> list[_Ranked]:
    """What nothing says the gain of, the longest first."""
    left = [
        _Ranked(rule=rule, candidate=candidate, claimed=candidate.claimed.among(free), gain=None)
        for rule, candidate in found
        if not candidate.is_priced
    ]
    own = [(int(seen.time.own_ns[each.claimed.part].sum()), each) for each in left]
    kept = [(ns, each) for ns, each in own if ns > MIN_GAIN * seen.window_ns]
    return [each for _, each in sorted(kept, key=lambda pair: (-pair[0], pair[1].order))]


def _gain(seen: Observed, claimed: Claimed) -> _Gain:
    """What replaying the step without the claim gives."""
    gain = seen.once(ReplayedGain).gain_ns([(claimed, claimed.gain_ns)])
    same = np.array_equal(claimed.low_ns, claimed.gain_ns)
    low = gain if same else seen.once(ReplayedGain).gain_ns([(claimed, claimed.low_ns)])
    return _Gain(low=min(low, gain), gain=gain)


def _holds_much(seen: Observed, each: _Ranked) -> bool:
    """Whether a claim is of idle time or of communication, and of much of the window."""
    part, events = each.claimed.part, seen.time.events
    sent = seen.activity.communication
    waits = bool((part >= events).all()) or bool((part < events).all() and sent[part].all())
    return waits and int(seen.time.own_ns[part].sum()) > _HELD * seen.window_ns


def _without_gain(seen: Observed, each: _Ranked) -> Notice:
    limit = seen.once(ReplayedGain).limit([(each.claimed, each.claimed.gain_ns)])
    until = {HOST: " until the host is faster", DEVICE: " until the GPU is faster"}.get(limit.by or "", " by itself")
    text = f"{each.candidate.why.partition(';')[0]}: less of it brings nothing{until}"
    return Notice(id="without_gain", count=1, text=text)


def _together(seen: Observed, ranking: _Ranking) -> FixesTogether | None:
    """The first findings with a gain, each on top of those before."""
    first = [each for each in ranking.ranked if each.gain is not None][:_TOGETHER]
    if not first:
        return None
    per_us = NS_PER_US * seen.steps
    claims = [(each.claimed, each.claimed.gain_ns) for each in first]
    gained = np.maximum.accumulate(
        [seen.once(ReplayedGain).gain_ns(claims[:count]) for count in range(len(claims) + 1)]
    )
    keys = [
        _key_of(seen, each, is_only=ranking.of_op[each.rule.kind, each.candidate.op] == 1) for each in first
    ]  # fmt: skip
    limit = seen.once(ReplayedGain).limit(claims)
    return FixesTogether(
        findings=tuple(keys),
        step_us=tuple((seen.window_ns - float(ns)) / per_us for ns in gained),
        limited_by=limit.by,
    )


def _limited(seen: Observed, each: _Ranked) -> tuple[str | None, tuple[Said, ...]]:
    """(what keeps the step from becoming shorter, the numbers of that sentence)."""
    limit = seen.once(ReplayedGain).limit([(each.claimed, each.claimed.gain_ns)])
    step_us = seen.window_ns / seen.steps / NS_PER_US
    has_events = bool((each.claimed.part < seen.time.events).any())
    alone = (limit.by == HOST) == has_events and not each.claimed.spares_launches
    takes_us = limit.host_us if limit.by == HOST else limit.device_us or 0.0
    more_us = max(limit.before_us - takes_us, 0.0)
    figures = (_said("what limits the step takes", takes_us), _said("the step", step_us))
    if limit.by is None:
        return None, ()
    who = "the host" if limit.by == HOST else "the GPU"
    if not alone:
        return f"{who} then still takes {duration(takes_us)} of {duration(step_us)}", figures
    what = "faster kernels alone gain" if limit.by == HOST else "a faster host alone gains"
    text = f"{who} takes {duration(takes_us)} of {duration(step_us)}: {what} at most {duration(more_us)}"
    return text, (*figures, _said("at most gained", more_us))


def _said(what: str, us: float) -> Said:
    return Said(what=what, value=us, unit="us")


def _shapes(seen: Observed, candidate: Candidate) -> str | None:
    if candidate.shapes is None and candidate.row is not None and candidate.op is not None:
        return seen.shapes(candidate.row, most=200) or None
    return candidate.shapes


def _key_of(seen: Observed, each: _Ranked, is_only: bool) -> str:
    """``is_only``: whether its rule says nothing else of its op."""
    return _key(each.rule.kind, each.candidate.op, None if is_only else _shapes(seen, each.candidate))


def _finding(seen: Observed, ranked: _Ranked, is_only: bool) -> Finding:
    rule, candidate, claimed, gain = ranked.rule, ranked.candidate, ranked.claimed, ranked.gain
    per_us = NS_PER_US * seen.steps
    whole, left = (int(seen.time.own_ns[part].sum()) for part in (candidate.claimed.part, claimed.part))
    why, figures = candidate.why, candidate.figures
    taken = 1 - left / whole if whole else 0.0
    if taken > _MUCH_TAKEN:
        why += f"; {percent(taken)} of this time is counted above"
        figures = (*figures, Said(what="counted above", value=taken, unit="share"))
    module, stack = (None, None) if candidate.row is None else places_around(seen.tree, candidate.row)
    high = 0.0 if gain is None else max(gain.gain, seen.once(ReplayedGain).gain_ns([(claimed, claimed.high_ns)]))
    limited_by, limit_figures = (None, ()) if gain is None else _limited(seen, ranked)
    return Finding(
        id=rule.id,
        kind=rule.kind,
        key=_key_of(seen, ranked, is_only),
        op=candidate.op,
        gain_us=None if gain is None else gain.gain / per_us,
        gain_low_us=None if gain is None else gain.low / per_us,
        gain_high_us=None if gain is None else high / per_us,
        computed=candidate.computed,
        certainty=candidate.certainty,
        why=why,
        where=Place(
            shapes=_shapes(seen, candidate), module=module, call_stack=stack, share=left / max(1, seen.window_ns)
        ),
        time_us=left / per_us,
        figures=figures,
        evidence=candidate.evidence,
        remedy=candidate.remedy or rule.advice.remedy,
        wrong_when=rule.advice.wrong_when,
        command=candidate.command or rule.advice.command.replace("TRACE", seen.table.source) or None,
        limited_by=limited_by,
        limit_figures=limit_figures,
    )


def _key(kind: str, op: str | None, shapes: str | None) -> str:
    """The same in every report of the same program: the kind, and a digest of the op and what tells its calls apart."""
    stem = re.sub(r"\W+", "_", kind)
    return stem if op is None else f"{stem}-{zlib.crc32(f'{op} {shapes}'.encode('utf-8', 'replace')):08x}"
