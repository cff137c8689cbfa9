"""The findings of a trace: what the rules see, the largest gain first, no moment of the window in two of them. A
gain is what the step gains in steady state when parts of it go, by replaying it without them (``SteadyStep``).
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.host_scopes import places_of
from tracelens.analysis.findings import built_in_rules
from tracelens.analysis.findings.rule import MIN_GAIN, Candidate, Claimed, Observed, Rule, RuleFailure
from tracelens.analysis.idle.dependencies import MOST_OF_FILE, Changes, SteadyStep, parts_of
from tracelens.analysis.idle.idle_time import UNKNOWN, UNRECORDED
from tracelens.analysis.intervals import Bools, Floats, Ints
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.verdict.summary import Finding, FixesTogether, Notice, Place, Said
from tracelens.extensions import Extension, TimeLimitError, overlay, time_limit
from tracelens.files.memory_limit import raise_at_limit
from tracelens.trace.narrow_columns import Column
from tracelens.trace.table import DEVICE_KINDS
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US, duration, percent

#: (lane, start, end) of spans of threads.
ThreadSpans: TypeAlias = tuple[Ints, Ints, Ints]
#: Share of what a step has on average of a claim from which the replayed steps can stand for all.
_FAIR_SHARE = 0.5
#: What may limit a step, and of its time the share by which what limits it may take less.
HOST, DEVICE, _NEARLY = "host", "device", 0.02


class Spared(Record, frozen=True, kw_only=True, eq=False):
    """What goes when a claim does.

    ``events``: of the device events (by position in the window's) that become shorter, ``share`` of each. ``spans``: of
    threads, which fall away. ``late``: events (table rows) that come sooner, by ``sooner_ns`` of the delay before them
    that nothing explains.
    """

    events: Ints
    share: Floats
    is_removed: npt.NDArray[np.bool_]
    spans: ThreadSpans
    late: Ints
    sooner_ns: Ints


class Limit(Record, frozen=True, kw_only=True):
    """A replayed step, per step in us: as recorded, with what goes, then also without any device event's time
    (``host_us``) or without the host's (``device_us``, None where the host alone limits it). ``untold_us``: idle time
    of unknown cause, which is nobody's.
    """

    before_us: float
    after_us: float
    host_us: float
    device_us: float | None = None
    untold_us: float = 0.0

    @property
    def by(self) -> str | None:
        """``host`` or ``device``, whichever takes as long as the step alone; None where neither does."""
        nearly = self.after_us * (1 - _NEARLY)
        if self.host_us - self.untold_us >= nearly:
            return HOST
        return DEVICE if self.device_us is not None and self.device_us - self.untold_us >= nearly else None


class ReplayedGain:
    """The gain of claims on the window of ``seen``."""

    def __init__(self, seen: Observed) -> None:
        self._seen = seen
        self._replays: dict[tuple[int, ...], SteadyStep] = {}

    def gain_ns(self, claims: Sequence[tuple[Claimed, Floats]]) -> float:
        """What all of the window's steps gain when of each claim so many ns of each part go; at most these.

        Replayed are steps that have their share of it, else the one that has most.
        """
        claims = [(claimed, ns) for claimed, ns in claims if ns.any()]
        if not claims:
            return 0.0
        total = sum(float(ns.sum()) for _, ns in claims)
        chosen, times = self._steps_for(claims, total)
        replay = self.replay_of(chosen)
        moved, beside_ns = self._moved(claims, chosen)
        gained = replay.recorded_ns - max(replay.round_ns(self.changes(replay, moved)), beside_ns)
        return min(max(gained * times, 0.0), total)

    def _moved(
        self, claims: Sequence[tuple[Claimed, Floats]], chosen: tuple[int, ...]
    ) -> tuple[list[tuple[Claimed, Floats]], float]:
        """The claims, all of those that go on beside the step, and how long these take (ns) in the chosen steps."""
        own_ns, beside = self._seen.time.own_ns, [claimed.part for claimed, _ in claims if claimed.is_beside]
        whole = [(each, own_ns[each.part].astype(np.float64) if each.is_beside else ns) for each, ns in claims]
        part = np.concatenate([np.zeros(0, np.int64), *beside])
        mine = np.isin(self._step_of_part[part], chosen) if len(part) else np.zeros(0, bool)
        return whole, float(own_ns[part[mine]].sum())

    def limit(self, claims: Sequence[tuple[Claimed, Floats]]) -> Limit:
        """What keeps the step from becoming any shorter once the claims are gone."""
        total = sum(float(ns.sum()) for _, ns in claims)
        chosen = self._steps_for(claims, total)[0]
        replay = self.replay_of(chosen)
        if self._file_parts is not None:
            return Limit(before_us=0.0, after_us=1.0, host_us=0.0)
        claims, beside_ns = self._moved(claims, chosen)
        changes, per_us = self.changes(replay, claims), NS_PER_US * replay.steps
        of_host = replace(changes, length=np.zeros(replay.graph.events))
        before_us, after_us, host_us = (
            max(ns, beside_ns) / per_us
            for ns in (replay.recorded_ns, replay.round_ns(changes), replay.round_ns(of_host))
        )
        seen = self._seen
        untold_us = float(seen.idle_ns[seen.idle_of(UNKNOWN, UNRECORDED)].sum()) / NS_PER_US / seen.steps
        limit = Limit(before_us=before_us, after_us=after_us, host_us=host_us, untold_us=untold_us)
        if limit.by == HOST:
            return limit
        return replace(limit, device_us=replay.round_ns(replace(changes, host=0.0)) / per_us)

    def replay_of(self, chosen: tuple[int, ...]) -> SteadyStep:
        """These steps, or for the only step -1 - n part n of the file, made once."""
        if chosen not in self._replays:
            context, parts = self._seen.context, self._file_parts
            one_part = None if parts is None else parts == -1 - chosen[0]
            self._replays[chosen] = context.steady_step(chosen if parts is None else (), one_part)
        return self._replays[chosen]

    def _steps_for(self, claims: Sequence[tuple[Claimed, Floats]], total: float) -> tuple[tuple[int, ...], float]:
        """(positions of the steps to replay, how many times of what they have of the claims all steps have)."""
        usual, complete = self._seen.context.steady_steps, self._seen.context.window.selected
        if not usual:
            return self._part_for(claims, total)
        if len(usual) == len(complete):
            return usual, 1.0
        of_step = np.zeros(len(self._seen.context.step_times))
        for claimed, ns in claims:
            step = self._step_of_part[claimed.part]
            np.add.at(of_step, step[step >= 0], ns[step >= 0])
        there = float(of_step[list(usual)].sum())
        if there < _FAIR_SHARE * total * len(usual) / len(complete):
            usual = (int(of_step.argmax()),)
            there = float(of_step[usual[0]])
        return usual, total / there if there > 0 else 0.0

    def _part_for(self, claims: Sequence[tuple[Claimed, Floats]], total: float) -> tuple[tuple[int, ...], float]:
        """Of a file without steps that is too large to be replayed at once, the part that has most of the claims."""
        if self._file_parts is None:
            return (), 1.0
        first = self._part_begins
        own = np.concatenate((self._seen.activity.start, self._seen.idle.start))
        of_part = np.zeros(len(first))
        for claimed, ns in claims:
            at = np.searchsorted(first, own[claimed.part], side="right") - 1
            np.add.at(of_part, np.maximum(at, 0), ns)
        most = int(of_part.argmax())
        return (-1 - most,), total / float(of_part[most])

    @cached_property
    def _part_begins(self) -> Ints:
        """When each part of a large file without steps begins."""
        starts = np.sort(self._seen.context.window.everything.start)
        return starts[::MOST_OF_FILE]

    @cached_property
    def _file_parts(self) -> Ints | None:
        return parts_of(self._seen.context.window)

    @cached_property
    def _step_of_part(self) -> npt.NDArray[np.int32]:
        """The step that each part of the window is of, -1 for none."""
        seen, window = self._seen, self._seen.context.window
        at = np.searchsorted(window.activity.rows, seen.activity.rows)
        starts = window.times.start_ns
        idle = np.searchsorted(starts, seen.idle.start, side="right") - 1
        return np.concatenate((window.step_of[at], idle)).astype(np.int32)

    def changes(self, replay: SteadyStep, claims: Sequence[tuple[Claimed, Floats]]) -> Changes:
        """What is different in these steps when the claims go."""
        seen, graph = self._seen, replay.graph
        length = graph.recorded.length.copy()
        removed, sooner = np.zeros(graph.events, bool), np.zeros(graph.events, np.int64)
        rows, order = replay.by_row

        def place(wanted: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
            at = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
            return order[at], rows[at] == wanted

        spans = []
        for claimed, ns in claims:
            spared = spared_by(seen, claimed, ns)
            at, known = place(seen.activity.rows[spared.events].astype(np.int64))
            length[at[known]] *= 1 - spared.share[known]
            removed[at[known & spared.is_removed]] = True
            late, known = place(spared.late)
            np.add.at(sooner, late[known], spared.sooner_ns[known])
            spans.append(spared.spans)
        lane, start, end = (np.concatenate(column) for column in zip(*spans, strict=True))
        inside = (end > replay.span[0]) & (start < replay.span[1])
        without = (lane[inside], start[inside], end[inside]) if inside.any() else None
        return replace(graph.recorded, length=length, removed=removed, sooner=sooner, without=without)


def spared_by(seen: Observed, claimed: Claimed, ns: Floats) -> Spared:
    """What goes with so many ``ns`` of each part of a claim: device events become shorter, with their launches where
    those are spared; the host spends that much less in idle time that waits for it, and what was late comes that much
    sooner.
    """
    table = seen.table
    is_event = claimed.part < seen.time.events
    events = claimed.part[is_event].astype(np.int64)
    share = _shares(seen, events, ns[is_event])
    spans = [_copying(seen, events, share)]
    if claimed.spares_launches:
        spans.append(_launching(seen, events, share))
    parts, idle_ns = claimed.part[~is_event] - seen.time.events, np.rint(ns[~is_event]).astype(np.int64)
    late = seen.idle.row[parts].astype(np.int64)
    is_device = (late >= 0) & np.isin(table.kind[late], list(DEVICE_KINDS))
    row = np.where(is_device, seen.tree.launch[late], late)
    start = seen.idle.start[parts]
    known = (row >= 0) & (idle_ns > 0)
    spans.append((table.lane[row[known]].astype(np.int64), start[known], (start + idle_ns)[known]))
    lane, begins, ends = (np.concatenate(column) for column in zip(*spans, strict=True))
    return Spared(
        events=events,
        share=share,
        is_removed=(share >= 1) & claimed.spares_launches,
        spans=(lane, begins, ends),
        late=late[is_device],
        sooner_ns=idle_ns[is_device],
    )


def _shares(seen: Observed, events: Ints, ns: Floats) -> Floats:
    """By how much of it each event becomes shorter when so many ``ns`` of its own time go.

    A faster kernel is so all the time that it runs, also while others run; one that others cover throughout is as much
    faster as those of the same claim. Of communication and copies, what computation hides stays as it is.
    """
    activity, own_ns = seen.activity, seen.time.own_ns[events]
    hides = activity.communication[events] | activity.memcpy[events]
    share = ns / np.maximum(np.where(hides, activity.duration[events], own_ns), 1)
    covered = ~activity.communication[events] & (own_ns == 0)
    faster = ~activity.communication[events] & ~covered
    share[covered] = ns[faster].sum() / max(own_ns[faster].sum(), 1)
    return np.minimum(share, 1.0)


def _copying(seen: Observed, events: Ints, share: Floats) -> ThreadSpans:
    """A call that copies from pageable memory does so itself while its copy runs: that time of the thread goes too."""
    table, activity = seen.table, seen.activity
    launch = seen.tree.launch[activity.rows[events]]
    copies = activity.memcpy[events] & (launch >= 0)
    call, copy = launch[copies], events[copies]
    start = np.maximum(table.start_ns[call], activity.start[copy])
    both = np.minimum(table.ends_ns(call), activity.end[copy]) - start
    return (
        table.lane[call].astype(np.int64),
        start,
        start + np.rint(np.maximum(both, 0) * share[copies]).astype(np.int64),
    )


def _launching(seen: Observed, events: Ints, share: Floats) -> ThreadSpans:
    """The ops that launch ``events`` take less of the host's time, by the share of their kernels that goes."""
    table, op = seen.table, seen.activity.op
    linked = op[events] >= 0
    rows, number = np.unique(op[events[linked]], return_inverse=True)
    gone = np.bincount(number, share[linked], minlength=len(rows))
    kernels = seen.kernels_of_op[rows]
    end = table.start_ns[rows] + np.rint(table.duration_ns[rows] * gone / np.maximum(kernels, 1)).astype(np.int64)
    return table.lane[rows].astype(np.int64), table.start_ns[rows], end


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


class Found(Record, frozen=True, kw_only=True):
    """At most ten findings, what the first bring together, what holds time without a gain, and rules that failed."""

    findings: tuple[Finding, ...] = ()
    together: FixesTogether | None = None
    without_gain: tuple[Notice, ...] = ()
    failures: tuple[RuleFailure, ...] = ()


class _Ranked(Record, frozen=True, kw_only=True):
    """A candidate with what is left of its claim, and what that gains (ns), as it says and for sure; None where nothing
    says.
    """

    rule: Rule
    candidate: Candidate
    claimed: Claimed
    gain: float | None
    low: float = 0.0

    @property
    def order(self) -> tuple[bool, float, str, str]:
        """The largest gain first, what is not known last, ties broken on text.

        By the middle of what is sure and what is shown: a sure gain comes before a larger one that may be none.
        """
        return self.gain is None, -(self.low + (self.gain or 0.0)) / 2, self.rule.kind, self.candidate.why


class _Ranking(Record, frozen=True, kw_only=True):
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


def _findings(seen: Observed, ranking: _Ranking) -> Iterator[Finding]:
    rows = [-1 if each.candidate.row is None else each.candidate.row for each in ranking.ranked]
    places = zip(*places_of(seen.tree, np.array(rows, np.int64)), strict=True)
    for each, (module, stack) in zip(ranking.ranked, places, strict=True):
        yield _finding(seen, each, Place(module=module, call_stack=stack), ranking.of_op)


def _ranking(seen: Observed, extensions: Sequence[Extension]) -> _Ranking:
    found: list[tuple[Rule, Candidate]] = []
    failures: list[RuleFailure] = []
    for claim in overlay(built_in_rules(), extensions).values():
        try:
            with time_limit(_RULE_LIMIT_S):
                rule = Rule.of(claim)
                found += [(rule, _checked(rule, candidate, seen.time.own_ns)) for candidate in rule.candidates(seen)]
        except (Exception, TimeLimitError) as error:  # noqa: BLE001 - a rule may cost its findings, never the report
            raise_at_limit(error)
            text = f"{type(error).__name__}: {error}"
            failures.append(RuleFailure(kind=claim.key, origin=claim.origin, error=text))
    free = np.ones(len(seen.time.own_ns), bool)
    ranked: list[_Ranked] = []
    without_gain: list[_Ranked] = []
    for general in (False, True):
        ranked += _ranked(seen, [pair for pair in found if pair[0].advice.is_general == general], free, without_gain)
    ranked.sort(key=lambda each: each.order)
    # What nothing says the gain of, the longest first.
    left = [
        _Ranked(rule=rule, candidate=candidate, claimed=candidate.claimed.among(free), gain=None)
        for rule, candidate in found
        if not candidate.is_priced
    ]
    own = [(int(seen.time.own_ns[each.claimed.part].sum()), each) for each in left]
    kept = [(ns, each) for ns, each in own if ns > MIN_GAIN * seen.window_ns]
    ranked += [each for _, each in sorted(kept, key=lambda pair: (-pair[0], pair[1].order))]
    of_op = Counter((rule.kind, candidate.op) for rule, candidate in found)
    return _Ranking(ranked=ranked[:MOST], without_gain=without_gain, failures=tuple(failures), of_op=of_op)


def _checked(rule: Rule, candidate: Candidate, own_ns: Column[np.int64]) -> Candidate:
    """A candidate, with what the rule says of all; TypeError or ValueError for none, or claims of what is not there."""
    if not isinstance(candidate, Candidate):
        raise TypeError(f"returned a {type(candidate).__name__}, not a Candidate")
    part = candidate.claimed.part
    claimed = np.zeros(len(own_ns), bool)
    inside = part.dtype.kind == "i" and bool(((part >= 0) & (part < len(own_ns))).all())
    if inside:
        claimed[part] = True
    if not inside or np.count_nonzero(claimed) < len(part):
        raise ValueError("its claimed parts must be distinct indexes of parts of the window")
    amounts = candidate.claimed.low_ns, candidate.claimed.gain_ns, candidate.claimed.high_ns
    most_ns = own_ns[part] + 1
    if not all(len(ns) == len(part) and ((ns >= 0) & (ns <= most_ns)).all() for ns in amounts):
        raise ValueError("its claimed gain of a part must be between 0 and the time of the part")
    computed, certainty = candidate.computed or rule.advice.computed, candidate.certainty or rule.advice.certainty
    return replace(candidate, computed=computed, certainty=certainty)


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
        low, bound = float(claimed.low_ns.sum()), float(claimed.gain_ns.sum())
        if candidate.is_priced and bound > least:
            each = _Ranked(rule=rule, candidate=candidate, claimed=claimed, gain=bound, low=low)
            waiting.append((each.order, number, False, each))
    heapify(waiting)
    while waiting:
        _, number, is_replayed, each = heappop(waiting)
        left = each.claimed.among(free)
        if is_replayed and left is each.claimed:
            yield each
            free[each.claimed.part] = False
            continue
        gain = seen.once(ReplayedGain).gain_ns([(left, left.gain_ns)])
        same = np.array_equal(left.low_ns, left.gain_ns)
        low = gain if same else seen.once(ReplayedGain).gain_ns([(left, left.low_ns)])
        each = replace(each, claimed=left, gain=gain, low=min(low, gain))
        if gain > least:
            heappush(waiting, (each.order, number, True, each))
        elif _holds_much(seen, each):
            without_gain.append(each)


def _holds_much(seen: Observed, each: _Ranked) -> bool:
    """Whether a claim is of idle time or of communication, and of much of the window."""
    part, events = each.claimed.part, seen.time.events
    sent = seen.activity.communication
    waits = bool((part >= events).all()) or bool((part < events).all() and sent[part].all())
    return waits and int(seen.time.own_ns[part].sum()) > _HELD * seen.window_ns


def _without_gain(seen: Observed, each: _Ranked) -> Notice:
    limit = seen.once(ReplayedGain).limit([(each.claimed, each.claimed.gain_ns)])
    until = {HOST: " until the host is faster", DEVICE: " until the GPU is faster"}.get(limit.by or "", " by itself")
    if limit.by == HOST and bool((each.claimed.part >= seen.time.events).all()):
        until = " by itself"  # idle time is the host's already
    text = f"{each.candidate.why.partition(';')[0]}; reducing this gains nothing{until}"
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
    return FixesTogether(
        findings=tuple(_key(seen, each, ranking.of_op) for each in first),
        step_us=tuple((seen.window_ns - float(ns)) / per_us for ns in gained),
        limited_by=seen.once(ReplayedGain).limit(claims).by,
    )


def _limited(seen: Observed, each: _Ranked) -> tuple[str | None, tuple[Said, ...]]:
    """(what keeps the step from becoming shorter, the numbers of that sentence)."""
    limit = seen.once(ReplayedGain).limit([(each.claimed, each.claimed.gain_ns)])
    step_us = seen.window_ns / seen.steps / NS_PER_US
    has_events = bool((each.claimed.part < seen.time.events).any())
    alone = (limit.by == HOST) == has_events and not each.claimed.spares_launches
    takes_us = limit.host_us if limit.by == HOST else limit.device_us or 0.0
    more_us = max(limit.before_us - takes_us, 0.0)
    figures = tuple(
        Said(what=what, value=us, unit="us")
        for what, us in (("what limits the step takes", takes_us), ("the step", step_us), ("at most gained", more_us))
    )
    if limit.by is None:
        return None, ()
    who = "the host" if limit.by == HOST else "the GPU"
    if not alone:
        return f"after this, {who} still takes {duration(takes_us)} of {duration(step_us)}", figures[:2]
    what = "faster kernels alone gain" if limit.by == HOST else "a faster host alone gains"
    text = f"{who} takes {duration(takes_us)} of {duration(step_us)}, so {what} at most {duration(more_us)}"
    return text, figures


def _shapes(seen: Observed, candidate: Candidate) -> str | None:
    if candidate.shapes is None and candidate.row is not None and candidate.op is not None:
        return seen.shapes(candidate.row, most=200) or None
    return candidate.shapes


def _finding(seen: Observed, ranked: _Ranked, place: Place, of_op: Counter[tuple[str, str | None]]) -> Finding:
    rule, candidate, claimed, gain = ranked.rule, ranked.candidate, ranked.claimed, ranked.gain
    per_us = NS_PER_US * seen.steps
    whole, left = (int(seen.time.own_ns[part].sum()) for part in (candidate.claimed.part, claimed.part))
    why, figures = candidate.why, candidate.figures
    taken = 1 - left / whole if whole else 0.0
    if taken > _MUCH_TAKEN:
        why += f"; {percent(taken)} of this time is counted above"
        figures = (*figures, Said(what="counted above", value=taken, unit="share"))
    high = 0.0 if gain is None else max(gain, seen.once(ReplayedGain).gain_ns([(claimed, claimed.high_ns)]))
    limited_by, limit_figures = (None, ()) if gain is None else _limited(seen, ranked)
    return Finding(
        id=rule.id,
        kind=rule.kind,
        key=_key(seen, ranked, of_op),
        op=candidate.op,
        gain_us=None if gain is None else gain / per_us,
        gain_low_us=None if gain is None else ranked.low / per_us,
        gain_high_us=None if gain is None else high / per_us,
        computed=candidate.computed,
        certainty=candidate.certainty,
        why=why,
        where=replace(place, shapes=_shapes(seen, candidate), share=left / max(1, seen.window_ns)),
        time_us=left / per_us,
        figures=figures,
        evidence=candidate.evidence,
        remedy=(rule.advice.in_xla if seen.is_xla else "") or candidate.remedy or rule.advice.remedy,
        wrong_when=rule.advice.wrong_when,
        command=candidate.command or rule.advice.command.replace("TRACE", seen.table.source) or None,
        limited_by=limited_by,
        limit_figures=limit_figures,
    )


def _key(seen: Observed, ranked: _Ranked, of_op: Counter[tuple[str, str | None]]) -> str:
    """The same in every report of the same program: the kind, and a digest of the op and of the shapes where the rule
    says more than one thing of that op.
    """
    kind, op = ranked.rule.kind, ranked.candidate.op
    stem = re.sub(r"\W+", "_", kind)
    if op is None:
        return stem
    shapes = None if of_op[kind, op] == 1 else _shapes(seen, ranked.candidate)
    return f"{stem}-{zlib.crc32(f'{op} {shapes}'.encode('utf-8', 'replace')):08x}"
