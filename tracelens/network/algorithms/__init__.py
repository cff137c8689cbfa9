"""Collective algorithms by name, one file each, and the choice among them."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values
from tracelens.registry import Registry, announced, modules_below
from tracelens.units import GB_PER_S_IN_BYTES_PER_US

ENTRY_POINTS = "tracelens.algorithms"


@functools.cache
def algorithms() -> Registry:
    """Every algorithm by ``"word/name"`` (``"all_reduce/tree"``), of this package and of installed ones."""
    return Registry.collect("algorithm", [*modules_below(__name__), *announced(ENTRY_POINTS)])


def of_library(name: str) -> tuple[str, ...]:
    """What the library ``name`` (``"nccl"``) chooses from. Of equally fast ones the first counts: a ring, if any."""
    found = [key for key, claim in algorithms().items() if name in claim.options["libraries"]]
    return tuple(sorted(found, key=lambda key: not key.endswith("/ring")))


def candidates(word: str, topology: Topology, name: str | None = None) -> tuple[str, ...]:
    """Which algorithms of ``word`` the topology's library chooses from, or ``"word/name"`` alone.

    UsageError when ``word`` has no algorithm of that name.
    """
    if name is None:
        return tuple(each for each in topology.algorithms if each.startswith(f"{word}/"))
    if f"{word}/{name}" not in algorithms():
        known = [each.removeprefix(f"{word}/") for each in algorithms() if each.startswith(f"{word}/")]
        raise UsageError.unknown(f"{word} algorithm", name, known)
    return (f"{word}/{name}",)


def collective_us(
    word: str, nbytes: Values, group: Group, topology: Topology, name: str | None = None
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Time of a collective in microseconds, and which algorithm was the fastest, for each of ``nbytes``.

    ``nbytes`` is the full message: what every rank holds after an all-gather, before a reduce-scatter, on both sides
    of an all-reduce; what one rank sends in an all-to-all, its own share included. NaN without an algorithm. The
    fastest of all is what a library would choose with perfect thresholds.
    """
    sizes = np.atleast_1d(np.asarray(nbytes, dtype=np.float64))
    names = candidates(word, topology, name)
    if not names:
        return np.full(sizes.shape, np.nan), ("",) * len(sizes)
    times = np.stack([algorithms()[each].target(sizes, group, topology) for each in names])
    times = np.where(np.isinf(times), np.nan, times)
    possible = ~np.isnan(times).all(axis=0)
    best = np.where(possible, np.where(np.isnan(times), np.inf, times).argmin(axis=0), -1)
    fastest: npt.NDArray[np.float64] = np.where(possible, np.fmin.reduce(times, axis=0), np.nan)
    return fastest, tuple("" if index < 0 else names[index] for index in best.tolist())


def bound_us(word: str, nbytes: Values, group: Group, topology: Topology) -> npt.NDArray[np.float64]:
    """The least time that the data sheet's rates allow, in microseconds: volume over bandwidth.

    Of ``nbytes``, a domain below the outermost tier that the group crosses must receive the share that it does not
    hold, and as much again for an all-reduce unless the switch adds. A send is between two neighbors of the group.
    """
    if word == "send":
        group = Group(ranks=min(group.ranks, 2), stride=group.stride)
    sizes = np.atleast_1d(np.asarray(nbytes, dtype=np.float64))
    crossings = topology.crossings(group, word)
    if not crossings:
        return np.zeros(sizes.shape)
    last = crossings[-1]
    share = 1.0 if word in ("send", "broadcast", "reduce") else (last.fanout - 1) / last.fanout
    if word == "all_reduce" and last.link.rates.in_switch_gb_s is None:
        share *= 2
    if word == "all_to_all":
        share = last.peers / group.ranks * last.members
    result: npt.NDArray[np.float64] = sizes * share / (last.peak_gb_s * GB_PER_S_IN_BYTES_PER_US)
    return result
