"""What is said of rows that changed for one cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from tracelens.analysis.ranks.rank_files import ranks_text
from tracelens.comparison.alignment.work_roles import COMMUNICATION, row_role
from tracelens.comparison.causes import (
    ADDED,
    CALLS,
    CLOCK,
    EVERYTHING,
    FUSED,
    KERNEL,
    LATE,
    OVERLAP,
    QUANTIZATION,
    REMOVED,
    REPEATS,
    REPLACED,
    SOME_RANKS,
    SPEED,
    SPLIT,
    TYPE,
    WAITING,
    WORK,
    cause_of,
    differs,
    other_kernels,
)
from tracelens.comparison.compared import AT_ONCE, UNCHANGED, ComparedRow, RankChange, RowSide
from tracelens.comparison.drift import median_ratio
from tracelens.comparison.repeated_parts import ratio_of, times
from tracelens.comparison.sentences.amounts_in_words import count_text, named_and_more, signed_ms, slower_text
from tracelens.comparison.sentences.row_group import RowGroup
from tracelens.lazy.records import dataclass

#: What a sentence speaks of where calls of all categories changed alike.
ALIKE = {
    CLOCK: "compute-bound ops", EVERYTHING: "all computation", REPEATS: "ops", SOME_RANKS: "ranks", TYPE: "ops",
    WORK: "ops",
}  # fmt: skip
#: Change of the mean from which it is said that the median changed less, or that a collective may have waited.
_TOLD_APART = 0.05
#: Relative change up to which a median is as before.
_AS_BEFORE = 0.01
#: What is other whether or not its time is.
FACTS = (FUSED, SPLIT, REPLACED, TYPE, WORK, KERNEL, REMOVED, ADDED, QUANTIZATION)
#: Share of what some ranks changed from which a part of it is named.
_LEAST_PART = 0.01


def _types(a: Sequence[RowSide], b: Sequence[RowSide]) -> str:
    """The recorded types, those that both have left out."""
    kinds = [
        {kind for side in sides for text in side.dtypes for kind in text.strip("(),").replace("'", "").split(", ")}
        for sides in (a, b)
    ]
    words = [", ".join(sorted(kind.removeprefix("c10::") for kind in one - other if kind)) or "none"
             for one, other in (kinds, kinds[::-1])]  # fmt: skip
    return " -> ".join(words)


def _other(what: str, group: RowGroup) -> str:
    said = f"other {what} on {group.calls} of {group.ops(group.b)}"
    return f"{said}: {group.by_category()}" if group.is_of_several_categories() else said


def _kernels(group: RowGroup) -> str:
    before, after = other_kernels(group.a[0], group.b[0]) or ("", "")
    if before and after:
        what = f"other kernel ({before} -> {after})"
    else:
        what = f"new kernel ({after})" if after else f"kernel gone ({before})"
    return f"{what} on {group.calls} of {group.ops(group.b)}"


def _work(group: RowGroup) -> str:
    times = _times_the_flops(group.rows[0])
    what = "messages or groups" if is_sent(group.rows[0]) else "shapes"
    return _other(what if times is None else f"{what} ({times} x the FLOPs)", group)


def _times_the_flops(row: ComparedRow) -> str | None:
    """``2`` where a call has twice the FLOPs; None where that is not known, or they are as before."""
    a, b = row.a, row.b
    if a is None or b is None or not a.flops or not b.flops or not differs(a.flops / a.calls, b.flops / b.calls):
        return None
    return f"{b.flops / b.calls / (a.flops / a.calls):.3g}"


def _speed(group: RowGroup) -> str:
    calls = [sum(side.calls for side in sides) for sides in (group.a, group.b)]
    said = ", kernels of the same name" if _is_another_magnitude(group.rows[0]) else ", same kernels"
    known = said if all(side.kernels for side in (*group.a, *group.b)) else ""
    before, after = (ms / count for ms, count in zip(group.kernel_ms, calls, strict=True))
    slower = slower_text(before, after) + (_unlike_median(group, after / before) if before else "")
    is_unclear = is_sent(group.rows[0]) and not group.ranks and abs(after - before) >= _TOLD_APART * before
    less = " less" if after < before else ""
    unclear = f", or waiting{less} for another rank (folders of all ranks would tell)" if is_unclear else ""
    return f"{slower}{unclear}{known}, {group.calls} of {group.ops(group.b)}"


def _unlike_median(group: RowGroup, slower: float) -> str:
    """`` in the mean, the median kernel 0.3 % slower``: where some calls alone changed."""
    medians = [ratio for row in group.rows if (ratio := median_ratio(row)) is not None]
    if abs(slower - 1) < _TOLD_APART or len(medians) < len(group.rows):
        return ""
    if any(abs(ratio - 1) > abs(slower - 1) / 2 for ratio in medians):
        return ""
    typical = sum(medians) / len(medians)
    return (
        f" in the mean, the median kernel {'as before' if abs(typical - 1) < _AS_BEFORE else slower_text(1.0, typical)}"
    )


def _clock(group: RowGroup) -> str:
    before, after = group.kernel_ms
    share = 100 * (1 - before / after) if after else 0.0
    lower = f"clock {abs(share):.2g} % {'lower' if share > 0 else 'higher'}"
    return f"{lower} on all compute-bound ops, same kernels, {group.calls} of {group.ops(group.b)}"


def _everything(group: RowGroup) -> str:
    before, after = group.kernel_ms
    return f"{slower_text(before, after)} alike (clock, power or a shared device), same kernels, {group.calls}"


def _overlap(group: RowGroup) -> str:
    less, calls = "less" if group.change_ms > 0 else "more", f"{group.calls} of {group.ops(group.b)}"
    if group.rows[0].category == AT_ONCE:
        return f"{less} runs at the same time"
    if is_sent(group.rows[0]):
        before, after = group.kernel_ms
        alike = "as long" if before == after else slower_text(before, after)
        return f"hidden {less} behind computation, same kernels ({alike}), {calls}"
    return f"{less} at the same time as others, same kernels, {calls}"


def _quantization(group: RowGroup) -> str:
    """Of the exchanges themselves, or of what quantizes for them on one side."""
    if group.a and group.b:
        before, after = group.kernel_ms
        return f"{group.rows[0].match}, {slower_text(before, after)}, {group.calls} of {group.ops(group.b)}"
    return f"quantizing what is exchanged, {group.alone(group.a or group.b, 'gone' if group.a else 'new')}"


def _calls(group: RowGroup) -> str:
    return f"{count_text(sum(side.calls for side in group.a))} -> {group.calls} of {group.ops(group.b)}"


def _repeats(group: RowGroup) -> str:
    if len(group.rows) == 1:
        return _calls(group)
    before, after = times(group.rows)
    return f"{before} -> {after} times: {group.by_category()}"


def is_sent(row: ComparedRow) -> bool:
    return row_role(row) == COMMUNICATION


def which_ranks(ranks: Sequence[RankChange]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(rank.rank for rank in ranks)}"


def _some_ranks(group: RowGroup) -> str:
    """What changed on them, the largest first, as the mean of them; and what that is to the others."""
    alone = [rank for rank in group.ranks if rank.is_alone]
    before, after = (sum(own) / len(alone) for own in zip(*((r.a_own_ms, r.b_own_ms) for r in alone), strict=True))
    parts: dict[str, float] = defaultdict(float)
    for row in group.rows:
        parts[part_of_ranks(row)] += 0.0 if is_sent(row) else row.of_ranks_ms or 0.0
    told = {what: ms for what, ms in parts.items() if abs(ms) >= _LEAST_PART * abs(after - before)}
    named = [f"{signed_ms(told[what])} {what}" for what in sorted(told, key=lambda what: -abs(told[what]))]
    of = f"{before:,.3g} -> {after:,.3g} ms outside of collectives"
    others = (
        _others(len(group.ranks) - len(alone), len(alone), less=after < before)
        if any(map(is_sent, group.rows))
        else "the others are as before"
    )
    return f"{slower_text(before, after)}, {of} ({named_and_more(named)}); {others}"


def _others(rest: int, alone: int, *, less: bool) -> str:
    """``the other 7 wait for it``."""
    who = "the other rank waits" if rest == 1 else f"the other {rest} wait"
    return f"{who} {'less ' if less else ''}for {'it' if alone == 1 else 'them'}"


def part_of_ranks(row: ComparedRow) -> str:
    """A row among others of the same ranks: what is other where that is a fact, else what it belongs to."""
    cause = cause_of(row)
    if cause in FACTS:
        return SAYS[cause].text(RowGroup((row,)))
    return f"idle: {row.name}" if row.is_idle else row.category


@dataclass(frozen=True, slots=True)
class _Says:
    """What rows of a cause must share to be one sentence, and that sentence; whether by how their times changed."""

    key: Callable[[ComparedRow], Hashable]
    text: Callable[[RowGroup], str]
    by_change: bool = False


def _is_another_magnitude(row: ComparedRow) -> bool:
    """Whether a call takes twice or half as long: no sentence of it is one with those of a few percent."""
    if row.a is None or row.b is None or not row.a.kernel_ms or not row.b.kernel_ms:
        return False
    ratio = row.b.kernel_ms / row.b.calls / (row.a.kernel_ms / row.a.calls)
    return not 0.5 < ratio < 2


def _own_ops(row: ComparedRow) -> Hashable:
    return row.a.ops if row.a else None, row.b.ops if row.b else None


SAYS = {
    WAITING: _Says(lambda row: row.name, lambda group: group.rows[0].name),
    REMOVED: _Says(lambda row: row.module, lambda group: group.alone(group.a, "gone")),
    ADDED: _Says(lambda row: row.module, lambda group: group.alone(group.b, "new")),
    QUANTIZATION: _Says(lambda row: (row.match, row.a is None or row.b is None), _quantization),
    FUSED: _Says(
        lambda row: row.b and row.b.ops, lambda group: f"{group.amount(group.a)} fused into {group.amount(group.b)}"
    ),
    SPLIT: _Says(
        lambda row: row.a and row.a.ops, lambda group: f"{group.amount(group.a)} split into {group.amount(group.b)}"
    ),
    REPLACED: _Says(_own_ops, lambda group: f"{group.ops(group.a)} -> {group.ops(group.b)} on {group.calls}"),
    CALLS: _Says(_own_ops, _calls),
    REPEATS: _Says(ratio_of, _repeats),
    TYPE: _Says(
        lambda row: row.a and row.b and _types((row.a,), (row.b,)),
        lambda group: _other(f"type ({_types(group.a, group.b)})", group),
    ),
    WORK: _Says(lambda row: _times_the_flops(row) or _own_ops(row), _work),
    KERNEL: _Says(lambda row: row.a and row.b and other_kernels(row.a, row.b), _kernels),
    CLOCK: _Says(lambda row: None, _clock),
    EVERYTHING: _Says(lambda row: None, _everything),
    SPEED: _Says(lambda row: (row.change_ms > 0, _is_another_magnitude(row)), _speed, by_change=True),
    LATE: _Says(lambda row: None, lambda group: group.rows[0].why),
    SOME_RANKS: _Says(lambda row: None, _some_ranks),
    OVERLAP: _Says(lambda row: row.change_ms > 0, _overlap, by_change=True),
    UNCHANGED: _Says(lambda row: None, lambda group: ""),
}
