"""Longest paths through dependencies, whose arrays stand in an order in which they lead forward."""

from __future__ import annotations

from ctypes import c_double, c_int64, c_void_p
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints
from tracelens.lazy.compiled import address, library
from tracelens.lazy.records import dataclass

Floats = npt.NDArray[np.float64]

_SOURCE, _LAYOUT = Path(__file__).with_name("longest.c"), 1
#: When a node is that only follows others.
NONE = np.iinfo(np.int64).min
# Of times in ns: what is nearer than that is equal
_NEAR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Paths:
    """Dependencies between ``nodes`` numbered points in time: the target comes ``length`` (ns) after the source, or
    later."""

    nodes: int
    source: Ints
    target: Ints
    length: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ways:
    """Dependencies from a node of one round to one of the next, ``length`` (ns) later."""

    source: Ints
    target: Ints
    length: Ints


def longest(paths: Paths, time: Ints) -> Ints:
    """When each node is; ``time``: the earliest it can be by itself, ``NONE`` for one that only follows others."""
    found, compiled = np.array(time, np.int64), library(_SOURCE, _LAYOUT)
    source, target, length = (np.ascontiguousarray(c, np.int64) for c in (paths.source, paths.target, paths.length))
    if compiled is not None:
        arrays = (source, target, length, found)
        compiled.tracelens_longest(c_int64(len(source)), *(c_void_p(address(array)) for array in arrays))
        return found
    plain = found.tolist()
    for one, other, weight in zip(source.tolist(), target.tolist(), length.tolist(), strict=True):
        reached = plain[one] + weight
        if reached > plain[other] and plain[one] != NONE:
            plain[other] = reached
    return np.array(plain, np.int64)


def period(paths: Paths, ways: Ways, lead: Floats | None = None) -> tuple[float, Floats]:
    """(how long a round takes in the long run, the lead of each way): the largest mean length of the cycles that lead
    along ``paths`` within a round and along ``ways`` from one to the next.

    ``lead``: of each way how much later than others its target begins, where that is known from a like graph.
    """
    start = np.zeros(len(ways.source)) if lead is None else np.array(lead, np.float64)
    compiled = library(_SOURCE, _LAYOUT)
    if compiled is None:
        return _plain_period(paths, ways, start.tolist())
    edges = [np.ascontiguousarray(c, np.int64) for c in (paths.source, paths.target, paths.length)]
    across = [np.ascontiguousarray(c, np.int64) for c in (ways.source, ways.target, ways.length)]
    n, k = paths.nodes, len(start)
    room = np.empty(n), np.empty(n, np.int64), np.empty(k, np.int64), np.empty(k), np.empty(k, np.int64)
    function = compiled.tracelens_period
    function.restype = c_double
    found = function(
        c_int64(n), c_int64(len(edges[0])), *(c_void_p(address(array)) for array in edges),
        c_int64(k), *(c_void_p(address(array)) for array in (*across, start, *room)),
    )  # fmt: skip
    return float(found), start


def _plain_period(paths: Paths, ways: Ways, lead: list[float]) -> tuple[float, Floats]:
    edges = list(zip(paths.source.tolist(), paths.target.tolist(), paths.length.tolist(), strict=True))
    across = list(zip(ways.source.tolist(), ways.target.tolist(), ways.length.tolist(), strict=True))
    found = 0.0
    for _ in range(4 * len(lead) + 4):
        time, origin = [-np.inf] * paths.nodes, [-1] * paths.nodes
        for way, (_, first, _) in enumerate(across):
            if lead[way] > time[first]:
                time[first], origin[first] = lead[way], way
        for one, other, weight in edges:
            reached = time[one] + weight
            if reached > time[other]:
                time[other], origin[other] = reached, origin[one]
        before = [origin[last] for last, _, _ in across]
        reached_at = [time[last] + weight for last, _, weight in across]
        weights = [r - lead[b] if b >= 0 else 0.0 for r, b in zip(reached_at, before, strict=True)]
        mean = _largest_mean(before, weights)
        changed = mean > found + _NEAR
        found = mean if changed else found
        for way, way_before in enumerate(before):
            if way_before >= 0 and reached_at[way] - found > lead[way] + _NEAR:
                lead[way], changed = reached_at[way] - found, True
        if not changed:
            break
    return found, np.array(lead, np.float64)


def _largest_mean(before: list[int], weight: list[float]) -> float:
    """Of the cycles of a graph in which each node has one predecessor or -1."""
    best, seen = -np.inf, [-1] * len(before)
    for start in range(len(before)):
        at = start
        while at >= 0 and seen[at] < 0:
            seen[at], at = start, before[at]
        if at >= 0 and seen[at] == start:
            first, total, count = at, weight[at], 1
            while (at := before[at]) != first:
                total, count = total + weight[at], count + 1
            best = max(best, total / count)
    return best
