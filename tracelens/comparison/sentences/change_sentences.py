"""The rows of a comparison as sentences: those of one category that changed for one reason are one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from tracelens.comparison.alignment.work_roles import COMMUNICATION, COPY, row_role
from tracelens.comparison.causes import REPEATS, SOME_RANKS, TYPE, WORK, cause_of
from tracelens.comparison.change_sentences import ALIKE, FACTS, SAYS, is_sent, part_of_ranks, which_ranks
from tracelens.comparison.compared import AT_ONCE, IDLE, NOISE, Change, ComparedRow, Comparison, RankChange
from tracelens.comparison.drift import with_clock
from tracelens.comparison.late_ranks import RankTimes, with_latecomers, with_ranks_apart
from tracelens.comparison.repeated_parts import part, with_repeats
from tracelens.comparison.sentences.amounts_in_words import count_text, signed_ms
from tracelens.comparison.sentences.row_group import RowGroup
from tracelens.comparison.sides import Side

#: Said of a change that may be chance.
_WITHIN = ", within the noise"
#: Share of a step from which a part of it is named.
_LEAST_PART = 0.01
#: What a step is made of beside computation, by role or category.
_PARTS = {COMMUNICATION: "exposed communication", COPY: "copies", AT_ONCE: "overlap", IDLE: "idle"}


def explained(
    rows: Iterable[ComparedRow],
    sides: Sequence[Side],
    times: Sequence[RankTimes | None],
    ranks: Sequence[RankChange],
) -> list[ComparedRow]:
    """The rows with their causes. ``times``: of the ranks of each side; ``ranks``: how these changed."""
    one, other = sides
    same_device = one.first.device_label == other.first.device_label
    found = with_repeats([replace(row, cause=cause_of(row)) for row in rows])
    found = with_ranks_apart(found, times, ranks)
    found = with_clock(found, same_device=same_device)
    found = with_latecomers(found, times, ranks)
    return [replace(row, why=_why(row, ranks)) for row in found]


def _why(row: ComparedRow, ranks: Sequence[RankChange]) -> str:
    if row.cause != SOME_RANKS:
        return SAYS[row.cause].text(RowGroup((row,), ranks))
    which = which_ranks([rank for rank in ranks if rank.is_alone])
    if is_sent(row):
        return f"waiting for {which}"
    return f"{which} alone: {signed_ms(row.of_ranks_ms or 0.0)} {part_of_ranks(row)}"


class Intervals(Protocol):
    """Bounds in ms of changes, each as one of so many that all hold; None where nothing is known of chance."""

    def of_sum(self, rows: Sequence[int], tests: int) -> tuple[float, float] | None: ...

    def of_each(self, tests: int) -> Sequence[tuple[float, float]] | None: ...


def changes_of(
    rows: Sequence[ComparedRow], intervals: Intervals, ranks: Sequence[RankChange] = ()
) -> tuple[Change, ...]:
    """The largest first; together they are the change of the step.

    Of what may be chance, other ops and kernels are told after that, as no chance explains them; the rest is the last.
    So that two recordings of the same thing are not said to differ, no rows are put together by how their times
    changed unless each of them is told from chance, and the intervals of all sentences hold together.
    """
    each = intervals.of_each(max(1, sum(SAYS[row.cause].by_change for row in rows)))
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for at, row in enumerate(rows):
        category, says = ALIKE.get(row.cause, row.category), SAYS[row.cause]
        alone = each is None or not each[at][0] <= 0 <= each[at][1]
        groups[category, row.cause, says.key(row) if alone or not says.by_change else None].append(at)
    found: list[Change] = []
    facts: list[Change] = []
    chance: list[Change] = []
    for group in groups.values():
        both = any(rows[at].a and rows[at].b for at in group)
        # What one side alone has is no matter of how many sentences there are
        bounds = intervals.of_sum(group, len(groups) if both else 1)
        made = _change(RowGroup(tuple(rows[at] for at in group), ranks), group, bounds)
        (found if not made.is_noise else facts if _is_fact(rows, made) else chance).append(made)
    found.sort(key=lambda change: (-abs(change.change_ms), change.text))
    facts.sort(key=lambda change: (-_kernel_ms(rows, change), change.text))
    return (*found, *facts, *([_noise(rows, chance)] if chance else []))


def _is_fact(rows: Sequence[ComparedRow], change: Change) -> bool:
    """Whether calls became others in every step: that is no matter of which steps were recorded."""
    sides = [side for at in change.rows for side in (rows[at].a, rows[at].b) if side]
    return change.cause in FACTS and all(side.calls.is_integer() for side in sides)


def _kernel_ms(rows: Sequence[ComparedRow], change: Change) -> float:
    return sum(side.kernel_ms for at in change.rows for side in (rows[at].a, rows[at].b) if side)


def _noise(rows: Sequence[ComparedRow], chance: Sequence[Change]) -> Change:
    at = tuple(sorted(number for change in chance for number in change.rows))
    change_ms = sum(rows[number].change_ms for number in at)
    most = max(chance, key=lambda change: abs(change.change_ms))
    count = "1 row" if len(at) == 1 else f"{len(at)} rows"
    text = f"within the noise {signed_ms(change_ms)}: {count}, the largest: {most.text.replace(_WITHIN, '')}"
    return Change(text=text, change_ms=change_ms, cause=NOISE, category="", rows=at)


def _change(group: RowGroup, at: Sequence[int], bounds: tuple[float, float] | None) -> Change:
    first, change_ms = group.rows[0], group.change_ms
    low, high = bounds or (None, None)
    chance = _WITHIN if low is not None and high is not None and low <= 0 <= high else ""
    return Change(
        text=f"{_subject(group)} {signed_ms(change_ms)}{chance}: {SAYS[first.cause].text(group)}{_stalls(group)}",
        change_ms=change_ms,
        cause=first.cause,
        category="" if group.is_of_several_categories() else first.category,
        rows=tuple(at),
        low_ms=low,
        high_ms=high,
    )


def _stalls(group: RowGroup) -> str:
    """``; in B 2 of 60 kernels took 5.02 ms, over 10 times their median``: where that is most of the change."""
    if row_role(group.rows[0]) in (COMMUNICATION, COPY):
        return ""
    for side, name, sign in ((group.b, "B", 1), (group.a, "A", -1)):
        shares = [kernel for one in side for kernel in one.kernels if kernel.stalls]
        count, ms = (sum(kernel.stalls[at] for kernel in shares if kernel.stalls) for at in (0, 1))
        if shares and 2 * ms > sign * group.change_ms > 0:
            all_of = sum(kernel.count for kernel in shares)
            took = f"{count_text(count)} of {count_text(all_of)} kernels took {signed_ms(ms)[1:]}"
            return f"; in {name} {took}, over 10 times their median"
    return ""


def _subject(group: RowGroup) -> str:
    """What a sentence speaks of: the category; time on links counts where nothing else hides it."""
    row = group.rows[0]
    if row.cause == REPEATS:
        return part(group.rows) or ALIKE[REPEATS]
    if row.cause == SOME_RANKS:
        return f"{which_ranks([rank for rank in group.ranks if rank.is_alone])} alone"
    if row.is_idle:
        return "idle"
    if row.category == AT_ONCE:
        return "overlap"
    if row.cause in ALIKE and (row.cause not in (TYPE, WORK) or group.is_of_several_categories()):
        return ALIKE[row.cause]
    return "exposed communication" if is_sent(row) else row.category


def change_title(found: Comparison) -> str:
    """``step 4.007 -> 4.426 ms: +0.419 ms (+10.5 %)``."""
    what = "step" if found.a.has_steps and found.b.has_steps else "window"
    share = f" ({100 * found.change_ms / found.a.step_ms:+.1f} %)" if found.a.step_ms else ""
    change = f"{round(found.change_ms, 6) + 0.0:+,.3f} ms"
    return f"{what} {found.a.step_ms:,.3f} -> {found.b.step_ms:,.3f} ms: {change}{share}"


def parts_text(found: Comparison) -> str:
    """``computation 2.58 -> 2.68 ms, exposed communication 0.309 -> 0.97 ms``: all parts add up to the step."""
    parts: dict[str, list[float]] = {name: [0.0, 0.0] for name in ("computation", *_PARTS.values())}
    for row in (*found.rows, *found.unchanged):
        part = _PARTS.get(row.category) or _PARTS.get(row_role(row), "computation")
        for at, side in enumerate((row.a, row.b)):
            parts[part][at] += side.ms if side else 0.0
    steps = found.a.step_ms, found.b.step_ms
    told = [(name, a, b) for name, (a, b) in parts.items()
            if any(abs(ms) >= _LEAST_PART * step for ms, step in zip((a, b), steps, strict=True))]  # fmt: skip
    return ", ".join(f"{name} {a:,.3g} -> {b:,.3g} ms" for name, a, b in told)
