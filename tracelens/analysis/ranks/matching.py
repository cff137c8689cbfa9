"""Communication calls of different ranks that are one and the same: how they are matched, how long each waited for
the last rank, what lateness cost; and the clocks of different hosts on one scale.

A collective that every rank needs data of every other for ends on all ranks within microseconds. So the differences of
its end times between two hosts are their clocks' difference: a line over time (offset and drift), fitted by medians.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from tracelens.analysis.intervals import Bools, Covered, Floats, Ints
from tracelens.analysis.ranks.rank_summary import POINT_TO_POINT, CommunicationCall, RankSummary
from tracelens.types.records import Record

#: Whose recorded element counts are equal on all ranks, so that they tell calls apart.
EVEN = frozenset({"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"})
#: How many places one rank's list may be shifted against another's.
_MOST_SHIFT = 4096
#: Calls that may differ in kind although two lists are the same (a kernel that one trace lost).
_TOLERATED = 0.02
#: Ends of one collective on two ranks differ by less than this share of its usual duration.
_END_SHARE = 0.05
_LEAST_WINDOW_NS, _MOST_WINDOW_NS = 20_000, 1_000_000
#: Pairs of ends that are compared in search of a clock offset; of longer lists only some calls vote.
_MOST_PAIRS = 4_000_000
#: Of a call of which the kernel alone was recorded.
_ANY_KIND = -1
# The place of a call without a counterpart: a shifted list may well begin at -1.
_ALONE = np.iinfo(np.int64).min


class CommunicationChannel(Record, frozen=True, kw_only=True):
    """What is matched in order: a process group, a pair of ranks, an expert-parallel group, or just a stream.

    Without a recorded group (``has_group``) order alone is not believed: calls must end together as well.
    ``size``: ranks that take part, None where it was not recorded.
    """

    label: str
    ranks: tuple[int, ...]
    size: int | None
    is_exchange: bool = False
    is_point_to_point: bool = False
    has_group: bool = True


class JobCalls(Record, frozen=True, kw_only=True, eq=False):
    """All calls of all ranks in one set of columns, rank by rank, by start.

    ``rank`` is a position in ``ranks``; ``message`` indexes ``messages``; ``instance`` says which calls belong together
    (-1: no counterpart was found), ``channel_of`` in which channel an instance happened. Times are clock-corrected once
    ``clocks`` has seen them.
    """

    ranks: tuple[int, ...]
    messages: tuple[CommunicationCall, ...]
    channels: tuple[CommunicationChannel, ...]
    rank: Ints
    start: Ints
    end: Ints
    message: Ints
    step: Ints
    exposed: Ints
    op: Ints
    instance: Ints
    channel_of: Ints

    @property
    def instances(self) -> int:
        return len(self.channel_of)


def match_calls(ranks: Mapping[int, RankSummary], *, ep_size: int | None = None) -> JobCalls:
    """Pairs the calls of all ranks. ``ep_size``: consecutive ranks of an expert-parallel group, if none is recorded."""
    order = tuple(sorted(ranks))
    messages: list[CommunicationCall] = []
    keys = ("rank", "start", "end", "message", "step", "exposed", "op", "number")
    columns: dict[str, list[Ints]] = {k: [] for k in keys}
    members: dict[Hashable, dict[int, list[Ints]]] = {}
    seen_channels: dict[Hashable, CommunicationChannel] = {}
    groups = {
        (rank, group.name): group.ranks for rank, summary in ranks.items() for group in summary.groups if group.ranks
    }
    so_far = 0
    for position, rank in enumerate(order):
        summary = ranks[rank]
        own = with_groups(summary.messages)
        for local, message in enumerate(own):
            channel = _channel(message, rank, summary, groups, ep_size, order)
            if channel is None:
                continue
            seen_channels.setdefault(channel[0], channel[1])
            rows = np.flatnonzero(summary.message == local) + so_far
            members.setdefault(channel[0], {}).setdefault(position, []).append(rows)
        columns["rank"].append(np.full(len(summary.start), position, np.int64))
        columns["message"].append(summary.message + len(messages))
        for key in ("start", "end", "step", "exposed", "op"):
            columns[key].append(getattr(summary, key))
        # The number that all ranks of its group give a call, where the file says it, else -1
        log, unnumbered = summary.log, np.full(len(summary.start), -1, np.int64)
        columns["number"].append(unnumbered if log is None else np.where(log.group >= 0, log.sequence, -1)[log.timed])
        messages += own
        so_far += len(summary.start)
    flat = {key: np.concatenate(parts) if parts else np.zeros(0, np.int64) for key, parts in columns.items()}
    names = sorted(seen_channels, key=str)
    lists = [{p: np.sort(np.concatenate(parts)) for p, parts in members[name].items()} for name in names]
    channels = tuple(seen_channels[name] for name in names)
    instance, channel_of = _instances(lists, channels, flat, messages)
    del flat["number"]
    return JobCalls(
        ranks=order, messages=tuple(messages), channels=channels, instance=instance, channel_of=channel_of, **flat
    )


def _instances(
    lists: Sequence[Mapping[int, Ints]],
    channels: Sequence[CommunicationChannel],
    flat: Mapping[str, Ints],
    messages: Sequence[CommunicationCall],
) -> tuple[Ints, Ints]:
    """(which calls are one and the same, the channel of each of these)."""
    # Messages that a matched call may have in common, as equal numbers.
    codes: dict[Hashable, int] = {}
    result = []
    for message in messages:
        key: Hashable = (message.word, message.dtype)
        if message.is_group_of_stream and message.dtype is None and message.elements_in is None:
            result.append(_ANY_KIND)
            continue
        if message.word in EVEN:
            key = (message.word, message.dtype, message.elements_in, message.elements_out)
        elif message.word in POINT_TO_POINT:
            key = (message.dtype, message.elements_in)
        result.append(codes.setdefault(key, len(codes)))
    kinds = np.array(result, np.int64)
    words = np.unique([message.word for message in messages], return_inverse=True)[1][flat["message"]]
    instance, channel_of = np.full(len(flat["start"]), -1, np.int64), [np.zeros(0, np.int64)]
    total = 0
    for number, (own, channel) in enumerate(zip(lists, channels, strict=True)):
        found = _numbered(own, flat["number"], words) or _aligned(own, flat, kinds, has_group=channel.has_group)
        used = np.unique(found[1][found[1] >= 0])
        if len(used):
            renumbered = np.searchsorted(used, found[1]) + total
            instance[found[0]] = np.where(found[1] >= 0, renumbered, -1)
            channel_of.append(np.full(len(used), number, np.int64))
            total += len(used)
    return instance, np.concatenate(channel_of)


def _numbered(lists: Mapping[int, Ints], numbers: Ints, words: Ints) -> tuple[Ints, Ints] | None:
    """As ``_aligned``, of calls that are numbered, each kind by itself perhaps: in the order of the rank with most of
    them, what others have beside it behind what comes before it there. None where a call has no number.
    """
    if any((numbers[rows] < 0).any() for rows in lists.values()):
        return None
    calls: dict[int, list[tuple[int, int, int]]] = {position: [] for position in lists}
    for position, rows in lists.items():
        seen: Counter[tuple[int, int]] = Counter()
        for key in zip(words[rows].tolist(), numbers[rows].tolist(), strict=True):
            calls[position].append((*key, seen[key]))
            seen[key] += 1
    places: dict[tuple[int, int, int], tuple[int, ...]] = {}
    for own in sorted(calls.values(), key=len, reverse=True):
        before: tuple[int, ...] | None = (-1,) if places else None
        new = {}
        for i, call in enumerate(own):
            if call in places:
                before = places[call]
            else:
                new[call] = (i,) if before is None else (*before, i)
        places |= new
    order = {call: i for i, call in enumerate(sorted(places, key=places.__getitem__))}
    place = np.array([order[call] for own in calls.values() for call in own], np.int64)
    return np.concatenate([lists[position] for position in calls]), place


def with_groups(messages: Sequence[CommunicationCall]) -> list[CommunicationCall]:
    """A rank's calls, those without a group with that of the others of their stream, if only one group fits.

    PyTorch gives each group a stream of its own; of several on one stream a recorded size may leave one.
    """
    of_stream: dict[int, dict[tuple[str, tuple[int, ...] | None], CommunicationCall]] = defaultdict(dict)
    for message in messages:
        if message.group is not None and message.stream >= 0:
            of_stream[message.stream].setdefault((message.group, message.ranks), message)
    result = []
    for message in messages:
        others = [o for o in of_stream.get(message.stream, {}).values() if message.size in (None, o.size)]
        lacks = message.group is None and not message.is_exchange and message.word not in POINT_TO_POINT
        if lacks and len(others) == 1:
            other = others[0]
            message = replace(message, group=other.group, ranks=other.ranks, size=other.size, is_group_of_stream=True)
        result.append(message)
    return result


def _channel(
    message: CommunicationCall,
    rank: int,
    summary: RankSummary,
    groups: dict[tuple[int, str], tuple[int, ...]],
    ep_size: int | None,
    order: tuple[int, ...],
) -> tuple[Hashable, CommunicationChannel] | None:
    if message.is_exchange:
        members, label = _expert_ranks(rank, summary, ep_size, order)
        return ("exchange", members), CommunicationChannel(
            label=label, ranks=members, size=len(members), is_exchange=True
        )
    ranks = message.ranks or groups.get((rank, message.group or ""), ())
    if message.word in POINT_TO_POINT:
        peer = message.peer
        if peer is None and len(ranks) == 2 and rank in ranks:
            peer = ranks[ranks[1] != rank]
        if peer is None:
            return None
        pair = (rank, peer) if message.word == "send" else (peer, rank)
        return ("pair", message.group, pair), CommunicationChannel(
            label=f"{message.group or '?'}: {pair[0]} to {pair[1]}", ranks=pair, size=2, is_point_to_point=True,
            has_group=message.group is not None,
        )  # fmt: skip
    if message.group is None:
        return ("stream", message.stream), CommunicationChannel(
            label=f"stream {message.stream}, no group" if message.stream >= 0 else "no group recorded",
            ranks=ranks, size=message.size, has_group=False,
        )  # fmt: skip
    size = message.size or len(ranks) or None
    return ("group", message.group, ranks), CommunicationChannel(label=message.group, ranks=ranks, size=size)


def _expert_ranks(
    rank: int, summary: RankSummary, ep_size: int | None, order: tuple[int, ...]
) -> tuple[tuple[int, ...], str]:
    recorded = summary.expert_group
    if recorded is not None and recorded.ranks:
        return recorded.ranks, recorded.description or recorded.name
    if ep_size:
        first = rank - rank % ep_size
        return tuple(range(first, first + ep_size)), f"ranks {first}-{first + ep_size - 1} (--ep-size)"
    return order, "all ranks (no expert-parallel group recorded)"


def _aligned(lists: Mapping[int, Ints], flat: Mapping[str, Ints], kinds: Ints, *, has_group: bool) -> tuple[Ints, Ints]:
    """(rows, place of each row in the channel's common order; -1 where nothing fits)."""
    reference = max(lists, key=lambda p: (len(lists[p]), -p))
    ours = lists[reference]
    rows, places = [ours], [np.arange(len(ours))]
    for position, theirs in lists.items():
        if position == reference:
            continue
        shift = _shift(ours, theirs, flat, kinds, has_group=has_group)
        by_step = _by_steps(ours, theirs, flat, kinds) if has_group and len(theirs) < len(ours) else None
        if by_step is not None:
            place = by_step
        elif shift is not None:
            place = np.arange(len(theirs)) + shift
        else:
            place = _by_ends(flat["start"][ours], flat["end"][ours], flat["start"][theirs], flat["end"][theirs])
        rows.append(theirs)
        places.append(place)
    place = np.concatenate(places)
    matched = place != _ALONE
    return np.concatenate(rows), np.where(matched, place - place[matched].min(), -1)


def _differ(a: Ints, b: Ints) -> Bools:
    """Which kinds of two lists are not the same."""
    return (a != b) & (a != _ANY_KIND) & (b != _ANY_KIND)


def _by_steps(ours: Ints, theirs: Ints, flat: Mapping[str, Ints], kinds: Ints) -> Ints | None:
    """Pairs the calls of a step in order where both lists have as many of each kind; where one lacks calls, those that
    end when the other steps let expect it. So a lost call costs no other. None where most steps do not agree.
    """
    place = np.full(len(theirs), _ALONE, np.int64)
    of_step = [(np.flatnonzero(flat["step"][ours] == step), np.flatnonzero(flat["step"][theirs] == step))
               for step in np.intersect1d(flat["step"][ours], flat["step"][theirs]).tolist()]  # fmt: skip
    rest = []
    for mine, other in of_step:
        a, b = (kinds[flat["message"][rows]] for rows in (ours[mine], theirs[other]))
        if len(a) == len(b) and not _differ(a, b).any():
            place[other] = mine
        else:
            rest.append((mine, other))
    if 2 * len(rest) >= len(of_step):
        return None
    end_a, end_b = flat["end"][ours], flat["end"][theirs]
    paired = np.flatnonzero(place != _ALONE)
    ahead = end_b[paired] - end_a[place[paired]]
    within = _window(flat["end"][ours] - flat["start"][ours]) + _OUTLIER_SIGMAS * _spread(ahead)
    for mine, other in rest:
        at = np.searchsorted(end_a[place[paired]], end_a[mine]).clip(0, len(paired) - 1)
        apart = np.abs(end_b[other][:, None] - (end_a[mine] + ahead[at])[None, :])
        nearest = apart.argmin(axis=1)
        fits = (apart.min(axis=1) <= within) & (np.diff(nearest, prepend=-1) > 0)
        place[other[fits]] = mine[nearest[fits]]
    return place


def _shift(ours: Ints, theirs: Ints, flat: Mapping[str, Ints], kinds: Ints, *, has_group: bool) -> int | None:
    """Places by which ``theirs`` starts later than ``ours``; None when no shift makes the two lists agree."""
    a, b = kinds[flat["message"][ours]], kinds[flat["message"][theirs]]
    step_a, step_b = flat["step"][ours], flat["step"][theirs]
    end_a, end_b = flat["end"][ours], flat["end"][theirs]
    limit = _window(flat["end"][ours] - flat["start"][ours])
    if len(a) == len(b) and not _differ(a, b).any() and (step_a == step_b).all():
        return 0 if has_group or _spread(end_b - end_a) <= limit else None
    best: tuple[float, float, float] | None = None
    found = None
    shortest = max(1, min(len(a), len(b)) // 2)
    for shift in range(max(shortest - len(b), -_MOST_SHIFT), min(len(a) - shortest, _MOST_SHIFT) + 1):
        first, last = max(shift, 0), min(len(a), len(b) + shift)
        mine, other = slice(first, last), slice(first - shift, last - shift)
        wrong = float(_differ(a[mine], b[other]).mean())
        if wrong > _TOLERATED:
            continue
        score = (float((step_a[mine] != step_b[other]).mean()), wrong, _spread(end_b[other] - end_a[mine]))
        if best is None or score < best:
            best, found = score, shift
    if best is not None and not has_group and best[2] > limit:
        return None
    return found


def _spread(differences: Ints) -> float:
    """Median distance from the median: what clocks that merely stand apart leave at zero."""
    return float(np.median(np.abs(differences - np.median(differences))))


def _window(durations: Ints) -> int:
    return int(np.clip(_END_SHARE * float(np.median(durations)), _LEAST_WINDOW_NS, _MOST_WINDOW_NS))


def _by_ends(start_a: Ints, end_a: Ints, start_b: Ints, end_b: Ints) -> Ints:
    """Pairs calls that end together, at the one clock offset that pairs most of them; ``_ALONE`` for the others.

    For sampled traces, and groups that were not recorded. At least two calls, and a tenth, must agree on the offset.
    """
    place = np.full(len(end_b), _ALONE, np.int64)
    if not len(end_a) or not len(end_b):
        return place
    width = _window(np.concatenate((end_a - start_a, end_b - start_b)))
    some = end_b[:: -(-len(end_a) * len(end_b) // _MOST_PAIRS)]
    differences = np.sort((some[:, None] - end_a[None, :]).ravel())
    within = np.searchsorted(differences, differences + width, side="right") - np.arange(len(differences))
    most = int(within.argmax())
    if within[most] < max(2, min(len(end_a), len(some)) // 10):
        return place
    offset = int(np.median(differences[most : most + int(within[most])]))
    taken = -1
    by_end = np.argsort(end_a, kind="stable")
    for i in np.argsort(end_b, kind="stable").tolist():
        j = int(np.abs(end_a[by_end] + offset - end_b[i]).argmin())
        overlap = start_b[i] < end_a[by_end[j]] + offset and start_a[by_end[j]] + offset < end_b[i]
        if j > taken and overlap and abs(int(end_a[by_end[j]]) + offset - int(end_b[i])) <= width:
            place[i] = by_end[j]
            taken = j
    return place


class Instances(Record, frozen=True, kw_only=True, eq=False):
    """Columns over the matched collectives, in ns: of the calls that were found, ``present`` of them.

    ``latest_start`` ends the waiting. ``shortest``: the least duration over ranks, which is that of the rank that did
    not wait; it needs no clock. ``last`` and ``first``: positions of the ranks that arrived so. ``example``: a row of
    the calls, of the lowest rank whose sizes were recorded.
    """

    earliest_start: Ints
    latest_start: Ints
    earliest_end: Ints
    latest_end: Ints
    shortest: Ints
    present: Ints
    first: Ints
    last: Ints
    example: Ints

    def __len__(self) -> int:
        return len(self.present)


def matched_rows(calls: JobCalls) -> Ints:
    """Rows of calls with a counterpart on another rank."""
    placed = np.flatnonzero(calls.instance >= 0)
    present = np.bincount(calls.instance[placed], minlength=calls.instances)
    return placed[present[calls.instance[placed]] > 1]


def collective_rows(calls: JobCalls) -> Ints:
    """Rows of matched collectives. Not of sends and receives: in these a stage of a pipeline waits for its turn."""
    rows = matched_rows(calls)
    return rows[~is_between_two(calls)[calls.instance[rows]]]


def is_between_two(calls: JobCalls) -> Bools:
    """Which instances are a send and its receive."""
    return np.array([channel.is_point_to_point for channel in calls.channels], np.bool_)[calls.channel_of]


def instances(calls: JobCalls) -> Instances:
    """Every instance; those of one call are there too (``present`` 1)."""
    rows = np.flatnonzero(calls.instance >= 0)
    order = rows[np.lexsort((calls.rank[rows], calls.start[rows], calls.instance[rows]))]
    at = np.searchsorted(calls.instance[order], np.arange(calls.instances))
    present = np.bincount(calls.instance[order], minlength=calls.instances)
    last = at + present - 1
    n = calls.instances
    earliest_end = np.full(n, np.iinfo(np.int64).max)
    latest_end = np.full(n, np.iinfo(np.int64).min)
    shortest = np.full(n, np.iinfo(np.int64).max)
    example = np.full(n, np.iinfo(np.int64).max)
    of = calls.instance[order]
    np.minimum.at(earliest_end, of, calls.end[order])
    np.maximum.at(latest_end, of, calls.end[order])
    np.minimum.at(shortest, of, (calls.end - calls.start)[order])
    sizeless = np.array([m.elements_in is None for m in calls.messages] or [True], np.bool_)[calls.message]
    np.minimum.at(example, of, order + sizeless[order] * len(calls.start))
    return Instances(
        earliest_start=calls.start[order[at]],
        latest_start=calls.start[order[last]],
        earliest_end=earliest_end,
        latest_end=latest_end,
        shortest=shortest,
        present=present,
        first=calls.rank[order[at]],
        last=calls.rank[order[last]],
        example=example % max(len(calls.start), 1),
    )


def waiting_ns(calls: JobCalls, found: Instances) -> Ints:
    """How long each call waited for the last rank to start; at most its duration, 0 without a counterpart."""
    latest = found.latest_start[np.maximum(calls.instance, 0)] if len(found) else calls.start
    waited = np.clip(latest - calls.start, 0, calls.end - calls.start)
    return np.where(calls.instance >= 0, waited, 0)


def own_cost_ns(calls: JobCalls, found: Instances, waited: Ints) -> Ints:
    """By collective: how much sooner it could have begun if its last rank had been on time; 0 for sends and receives.

    Two things are left out of how late that rank came. What it had itself waited for others since its last call of
    the same channel (while nothing computed) is not its own: a rank that comes late to one group because it waited in
    another is not late. And what it has cost already since that call is not counted again: a rank that every all-reduce
    of its tensor-parallel group waits for comes late to that of its data-parallel group by their sum, and to each
    bucket of gradients that the others began meanwhile by the same. Ranks late together in one group cost each in
    their others, though either alone could not come sooner.
    """
    rows = matched_rows(calls)
    order = rows[np.lexsort((calls.start[rows], calls.instance[rows]))]
    since, blocked = _since_together(calls, rows), _blocked_ns(calls, rows, waited)
    arrived = calls.start[order] - blocked[order]
    at = np.searchsorted(calls.instance[order], np.arange(calls.instances + 1))
    is_late = (found.present > 1) & (found.latest_start > found.earliest_start) & ~is_between_two(calls)
    cost, charges = np.zeros(calls.instances, np.int64), defaultdict[int, list[_Charge]](list)
    for i in np.flatnonzero(is_late)[np.argsort(found.latest_start[is_late], kind="stable")].tolist():
        *others, last = order[at[i] : at[i + 1]].tolist()
        own_ns = int(arrived[at[i + 1] - 1] - arrived[at[i] : at[i + 1] - 1].max())
        if own_ns <= 0:
            continue
        rank, start = int(calls.rank[last]), int(calls.start[last])
        first, after = (bisect_right(charges[rank], time, key=attrgetter("at")) for time in (int(since[last]), start))
        before = charges[rank][first:after]
        on_time = max(int(calls.start[o]) - _credit(before, calls, o, int(since[o])) for o in others)
        cost[i] = max(0, min(own_ns, start - on_time) - sum(charge.ns for charge in before))
        if cost[i]:
            ranks = frozenset(calls.rank[order[at[i] : at[i + 1]]].tolist())
            charges[rank].append(_Charge(at=start, ns=int(cost[i]), ranks=ranks))
    return cost


class _Charge(Record, frozen=True):
    """A rank that came ``at`` this time cost the ``ranks`` of a collective so much."""

    at: int
    ns: int
    ranks: frozenset[int]


def _credit(charges: Sequence[_Charge], calls: JobCalls, call: int, since: int) -> int:
    """How much of these a call's rank had waited for between that time and the call."""
    rank, start = int(calls.rank[call]), int(calls.start[call])
    return sum(charge.ns for charge in charges if since < charge.at <= start and rank in charge.ranks)


def _since_together(calls: JobCalls, rows: Ints) -> Ints:
    """By call: when its rank left the last call of the channel that all ranks had left before they began this one.

    Where calls end one by one that is the one before. Those on the host and on several streams are under way together.
    """
    channel, n = calls.channel_of[calls.instance[rows]], len(rows)
    order = rows[np.lexsort((calls.start[rows], channel, calls.rank[rows]))]
    channel, instance = calls.channel_of[calls.instance[order]], calls.instance[order]
    lane = np.cumsum(np.concatenate(([True], (np.diff(calls.rank[order]) != 0) | (np.diff(channel) != 0)))[:n]) - 1
    times = np.unique(np.concatenate((calls.start[order], calls.end[order])))
    # Lanes one behind the other: what accumulates begins anew in each
    lane_base = lane * len(times)
    left = np.maximum.accumulate(lane_base + np.searchsorted(times, calls.end[order]))
    over = np.searchsorted(left, lane_base + np.searchsorted(times, calls.start[order]), side="right")
    begun = np.full(calls.instances, np.iinfo(np.int64).max)
    np.minimum.at(begun, instance, instance[np.minimum(over, np.arange(n))])
    numbered = np.maximum.accumulate(lane * calls.instances + instance)
    last = np.searchsorted(numbered, lane * calls.instances + begun[instance]) - 1
    since = np.full(len(calls.start), np.iinfo(np.int64).min)
    known = (last >= 0) & (lane[last] == lane)
    since[order[known]] = times[(left - lane_base)[last[known]]]
    return np.minimum(since, calls.start)


def _blocked_ns(calls: JobCalls, rows: Ints, waited: Ints) -> Ints:
    """By call: how long its rank has waited in other channels, computing nothing, since its last call in this one."""
    channel = calls.channel_of[calls.instance[rows]]
    order = rows[np.lexsort((calls.start[rows], channel, calls.rank[rows]))]
    again = (np.diff(calls.rank[order]) == 0) & (np.diff(calls.channel_of[calls.instance[order]]) == 0)
    # When the last call of the same rank and channel ended; of the first one, before everything
    since = np.full(len(calls.start), np.iinfo(np.int64).min)
    since[order[1:][again]] = calls.end[order[:-1][again]]
    begin = calls.start[rows]
    waits = Covered(calls.rank[rows], begin, begin + np.minimum(waited, calls.exposed)[rows])
    found = np.zeros(len(calls.start), np.int64)
    found[rows] = waits.within(calls.rank[rows], np.minimum(since, calls.start)[rows], begin)
    return found


#: No rank can leave these before all have contributed.
SYNCHRONIZING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_allv", "barrier"})
#: Faster than any clock of a computer: ntpd's own limit for correcting one (MAXFREQ in ntp_loopfilter.c, 500 ppm).
MOST_DRIFT = 500e-6
#: A median absolute deviation of normal noise times this is its standard deviation.
MAD_TO_SIGMA = 1.4826
#: A drift is believed from this many collectives on, and when it takes this share of the residual away.
_DRIFT_POINTS, _DRIFT_GAIN = 8, 0.2
_OUTLIER_SIGMAS = 5.0
_LEAST_POINTS = 2


class HostClock(Record, frozen=True, kw_only=True):
    """One host's clock against the reference host's: what it shows ahead, at ``at_ns`` of its own time.

    ``residual_us``: robust spread of the end differences after the correction, None for the reference and for a host
    that shares no collective with the others (``points`` 0), which stays as it is. ``via``: the host it was fitted to.
    """

    host: str
    ranks: tuple[int, ...]
    offset_ns: float = 0.0
    drift: float = 0.0
    at_ns: int = 0
    residual_us: float | None = None
    points: int = 0
    via: str = ""

    def corrected(self, times: Ints) -> Ints:
        """Times of this host on the reference clock, in whole ns."""
        ahead = self.offset_ns + self.drift * (times - self.at_ns).astype(np.float64)
        return times - np.rint(ahead).astype(np.int64)


class Clocks(Record, frozen=True, kw_only=True):
    """Every host's clock. ``residual_us``: the worst of them, 0 on one host, None when a host could not be placed.

    ``how``: what says which ranks share a host.
    """

    hosts: tuple[HostClock, ...]
    how: str

    @property
    def residual_us(self) -> float | None:
        fitted = [h.residual_us for h in self.hosts if h.via]
        if any(not h.via and h.points == 0 for h in self.hosts[1:]):
            return None
        return max((r for r in fitted if r is not None), default=0.0)

    def of_rank(self, rank: int) -> HostClock:
        """The clock of the host that ``rank`` ran on."""
        return next(h for h in self.hosts if rank in h.ranks)


def host_of_ranks(ranks: Mapping[int, RankSummary], ranks_per_node: int | None = None) -> tuple[dict[int, str], str]:
    """(host by rank, what it was read from).

    A given ``ranks_per_node``; else the host's recorded name; else rank minus device number, which ranks of one host
    share as launchers number them (a job with one visible device per rank then has a host per rank).
    """
    if ranks_per_node:
        return {rank: f"node {rank // ranks_per_node}" for rank in ranks}, f"{ranks_per_node} ranks per node, as given"
    if all(s.host is not None for s in ranks.values()):
        names = list(dict.fromkeys(s.host for _, s in sorted(ranks.items())))
        return {rank: f"host {names.index(s.host)}" for rank, s in ranks.items()}, "the recorded host names"
    if all(s.device is not None for s in ranks.values()):
        first = {rank: rank - (s.device or 0) for rank, s in ranks.items()}
        numbers = {base: i for i, base in enumerate(sorted(set(first.values())))}
        return {rank: f"host {numbers[base]}" for rank, base in first.items()}, "rank minus device number"
    return {rank: f"host of rank {rank}" for rank in ranks}, "nothing recorded: every rank may have a clock of its own"


def align_clocks(
    calls: JobCalls, ranks: Mapping[int, RankSummary], ranks_per_node: int | None = None
) -> tuple[JobCalls, Clocks]:
    """The calls with every host's times on the clock of the first host, and the clocks."""
    host_of, how = host_of_ranks(ranks, ranks_per_node)
    names = sorted(set(host_of.values()), key=lambda name: min(r for r, h in host_of.items() if h == name))
    members = {name: tuple(r for r in calls.ranks if host_of[r] == name) for name in names}
    if len(names) < 2:
        return calls, Clocks(hosts=tuple(HostClock(host=n, ranks=members[n]) for n in names), how=how)
    code = np.array([names.index(host_of[rank]) for rank in calls.ranks], np.int64)
    hosts = _fitted(names, members, *_host_ends(calls, code))
    start, end = calls.start.copy(), calls.end.copy()
    for number, clock in enumerate(hosts):
        mine = code[calls.rank] == number
        start[mine], end[mine] = clock.corrected(start[mine]), clock.corrected(end[mine])
    return replace(calls, start=start, end=end), Clocks(hosts=hosts, how=how)


def _host_ends(calls: JobCalls, host_of_position: Ints) -> tuple[Ints, Ints, Ints]:
    """(instance, host, median end of the host's ranks), for instances that end together; sorted by instance, host."""
    words = np.array([m.word in SYNCHRONIZING or m.is_exchange for m in calls.messages] or [False], bool)
    for usable in (words[calls.message], np.ones(len(calls.message), bool)):
        rows = np.flatnonzero((calls.instance >= 0) & usable)
        host = host_of_position[calls.rank[rows]]
        key = calls.instance[rows] * (int(host_of_position.max()) + 1) + host
        order = np.lexsort((calls.end[rows], key))
        key, end = key[order], calls.end[rows][order]
        first = np.flatnonzero(np.concatenate(([True], np.diff(key) != 0))) if len(key) else np.zeros(0, np.int64)
        count = np.diff(np.concatenate((first, [len(key)])))
        low, high = end[first + (count - 1) // 2], end[first + count // 2]
        instance, of_host = np.divmod(key[first], int(host_of_position.max()) + 1)
        if (np.bincount(instance) > 1).sum() >= _LEAST_POINTS:
            break
    return instance, of_host, low + (high - low) // 2


def _fitted(
    names: list[str], members: Mapping[str, tuple[int, ...]], instance: Ints, host: Ints, end: Ints
) -> tuple[HostClock, ...]:
    """A spanning tree over the hosts by shared collectives, the richest link first, from the first host outward."""
    ends: list[dict[int, int]] = [{} for _ in names]
    for i, h, e in zip(instance.tolist(), host.tolist(), end.tolist(), strict=True):
        ends[h][i] = e
    placed = {0: HostClock(host=names[0], ranks=members[names[0]])}
    while len(placed) < len(names):
        shared = [
            (len(ends[known].keys() & ends[new].keys()), -known, -new)
            for known in placed
            for new in range(len(names))
            if new not in placed
        ]
        count, known, new = max(shared)
        if count < _LEAST_POINTS:
            break
        placed[-new] = _fit(names[-new], members[names[-new]], ends[-new], ends[-known], placed[-known])
    return tuple(placed.get(i) or HostClock(host=name, ranks=members[name]) for i, name in enumerate(names))


def _fit(
    name: str, ranks: tuple[int, ...], ends: Mapping[int, int], known_ends: Mapping[int, int], known: HostClock
) -> HostClock:
    both = sorted(ends.keys() & known_ends.keys())
    own = np.array([ends[i] for i in both], np.int64)
    reference = known.corrected(np.array([known_ends[i] for i in both], np.int64))
    order = np.argsort(own, kind="stable")
    own, ahead = own[order], (own - reference)[order]
    at = int(own[len(own) // 2])
    # Differences reach hours, so the part that floats can hold is taken first
    coarse = int(ahead[len(ahead) // 2])
    time, value = (own - at).astype(np.float64), (ahead - coarse).astype(np.float64)
    keep = np.ones(len(time), bool)
    for _ in range(2):
        offset, drift = _line(time[keep], value[keep])
        left = value - offset - drift * time
        sigma = MAD_TO_SIGMA * float(np.median(np.abs(left[keep])))
        keep = np.abs(left) <= max(_OUTLIER_SIGMAS * sigma, 1.0)
    return HostClock(
        host=name, ranks=ranks, offset_ns=coarse + offset, drift=drift, at_ns=at, residual_us=sigma / 1000,
        points=len(both), via=known.host,
    )  # fmt: skip


def _line(time: Floats, value: Floats) -> tuple[float, float]:
    """(offset, slope), by medians: half of the points may be wrong. Slope 0 where it explains nothing."""
    flat = float(np.median(value))
    half = len(time) // 2
    if len(time) < _DRIFT_POINTS or time[-1] - time[0] <= 0:
        return flat, 0.0
    run = time[half:] - time[: len(time) - half]
    slopes = (value[half:] - value[: len(value) - half])[run > 0] / run[run > 0]
    slope = float(np.median(slopes))
    if abs(slope) > MOST_DRIFT:
        return flat, 0.0
    offset = float(np.median(value - slope * time))
    without = float(np.median(np.abs(value - flat)))
    with_slope = float(np.median(np.abs(value - slope * time - offset)))
    return (offset, slope) if with_slope < (1 - _DRIFT_GAIN) * without else (flat, 0.0)
