"""The clocks of different hosts on one scale, from collectives that must end together.

A collective that every rank needs data of every other for ends on all ranks within microseconds. So the differences of
its end times between two hosts are their clocks' difference: a line over time (offset and drift), fitted by medians.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.analysis.ranks.matching import JobCalls
from tracelens.analysis.ranks.rank_summary import RankSummary
from tracelens.lazy.records import dataclass

Floats = npt.NDArray[np.float64]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class HostClock:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
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
