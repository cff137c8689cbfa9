"""Collective algorithms by name, each a function of bytes, group and topology, and the choice among them."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.predict.network.topology import Crossing, Group, Topology, Values
from tracelens.registry import Registry, announced, mark
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US

ENTRY_POINTS = "tracelens.algorithms"


@functools.cache
def algorithms() -> Registry:
    """Every algorithm by ``"word/name"`` (``"all_reduce/tree"``), of this package and of installed ones."""
    return Registry.collect("algorithm", [sys.modules[__name__], *announced(ENTRY_POINTS)])


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


F = TypeVar("F", bound=Callable[..., Values])


def algorithm(name: str, libraries: tuple[str, ...] = ()) -> Callable[[F], F]:
    """Marks ``f(nbytes, group, topology) -> us`` as ``"word/name"``, e.g. ``"all_gather/ring"``.

    ``libraries`` (``"nccl"``) choose from it; without any it counts where a cluster's file or a user names it.
    It grows with ``nbytes``, is never below volume over bandwidth, never slower over a wider link, and infinite where
    the topology cannot do it.
    """
    return mark("algorithm", name, libraries=libraries)


Way: TypeAlias = tuple[Group, tuple[Crossing, ...], Topology]
Cost: TypeAlias = Callable[[str, Values, Way], Values]


def over_links(word: str) -> Callable[[Cost], Callable[[Values, Group, Topology], Values]]:
    """Makes an algorithm of ``f(protocol, nbytes, (group, crossings, topology)) -> us``: the least over the topology's
    protocols, at the rates of ``word``; 0 within one rank.
    """

    def made(cost: Cost) -> Callable[[Values, Group, Topology], Values]:
        @functools.wraps(cost)
        def fastest(nbytes: Values, group: Group, topology: Topology) -> Values:
            way = group, topology.crossings(group, word), topology
            if not way[1]:
                return 0.0 * nbytes
            return functools.reduce(np.minimum, [cost(protocol, nbytes, way) for protocol in topology.protocols])

        return fastest

    return made


def base_us(crossings: tuple[Crossing, ...], protocol: str) -> float:
    """What a collective pays once: at the outermost tier that it crosses."""
    return crossings[-1].link.protocol(protocol).base_us


def _slowest(crossings: tuple[Crossing, ...], protocol: str) -> float:
    return min(crossing.domain_bytes_per_us(protocol) for crossing in crossings)


def _direct_exchange(protocol: str, nbytes: Values, way: Way) -> Values:
    """Each rank sends n/p bytes to each of p-1 peers in one step, straight over the link that joins them; the tiers
    work at once and the slowest one counts: n/p per peer over the rank's share of its rate.

    Overheads per peer add up, since one rank issues all its messages.
    """
    group, crossings, _ = way
    latency = base_us(crossings, protocol) + max(c.link.protocol(protocol).hop_us for c in crossings)
    overhead = sum(c.peers * c.link.peer_us + c.link.sync_us for c in crossings)
    per_byte = max(c.peers / group.ranks / c.rank_bytes_per_us(protocol) for c in crossings)
    return latency + overhead + nbytes * per_byte


direct_all_gather = algorithm("all_gather/direct")(over_links("all_gather")(_direct_exchange))
direct_reduce_scatter = algorithm("reduce_scatter/direct")(over_links("reduce_scatter")(_direct_exchange))
direct_all_to_all = algorithm("all_to_all/direct", ("nccl", "rccl"))(over_links("all_to_all")(_direct_exchange))


@algorithm("all_reduce/direct")
def direct_all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """A reduce-scatter and an all-gather, each in one step."""
    return direct_reduce_scatter(nbytes, group, topology) + direct_all_gather(nbytes, group, topology)


@algorithm("all_reduce/tree", libraries=("nccl", "rccl"))
@over_links("all_reduce")
def tree_all_reduce(protocol: str, nbytes: Values, way: Way) -> Values:
    """Up and down: 2 (g-1) steps inside a node, 2 log2 N over N nodes; 2 n bytes leave every domain."""
    crossings = way[1]
    # Hops of the chain inside a node, or of the tree further out
    depths = [c.fanout - 1 if c.tier == 0 else math.ceil(math.log2(c.fanout)) for c in crossings]
    hops = zip(depths, crossings, strict=True)
    latency = sum(depth * crossing.link.protocol(protocol).tree_hop_us for depth, crossing in hops)
    return base_us(crossings, protocol) + 2 * (latency + nbytes / _slowest(crossings, protocol))


@algorithm("all_reduce/hierarchical")
@over_links("all_reduce")
def hierarchical_all_reduce(protocol: str, nbytes: Values, way: Way) -> Values:
    """A ring per tier, one after the other, each on the shard that the tiers further in left: n/g between nodes.

    Per tier of f domains: 2 (f-1) steps and 2 (f-1)/f of the shard. Nothing overlaps.
    """
    total: Values = base_us(way[1], protocol) + 0.0 * nbytes
    for crossing in way[1]:
        steps = crossing.fanout - 1
        shard = nbytes / crossing.members
        moved = shard * steps / crossing.fanout / crossing.rank_bytes_per_us(protocol)
        total = total + 2 * (steps * crossing.link.protocol(protocol).hop_us + moved)
    return total


def _is_in_two_tiers(crossings: tuple[Crossing, ...]) -> bool:
    """Whether there is a node to forward in and another one to reach."""
    return len(crossings) > 1 and crossings[0].tier == 0


def _through_tiers_us(crossings: tuple[Crossing, ...], protocol: str) -> float:
    """What an exchange pays besides bytes that goes through a rank per tier: one peer for each other domain."""
    latency = base_us(crossings, protocol) + sum(c.link.protocol(protocol).hop_us for c in crossings)
    return latency + sum((c.fanout - 1) * c.link.peer_us + c.link.sync_us for c in crossings)


@algorithm("all_to_all/hierarchical")
@over_links("all_to_all")
def hierarchical_all_to_all(protocol: str, nbytes: Values, way: Way) -> Values:
    """Inside the node to the rank that faces the destination, then between nodes: (f-1)/f of n per tier of f domains.

    PXN without its pipelining. Where the last node has fewer members than the others, more of what these hold leaves
    it: all but their own share of n. Infinite for a group within one node or with one rank per node: there is one tier.
    """
    group, crossings, _ = way
    if not _is_in_two_tiers(crossings):
        return np.inf + 0.0 * nbytes
    shares = [(c.fanout - 1) / c.fanout for c in crossings]
    last = crossings[-1]
    in_last_domain = group.ranks - (last.fanout - 1) * last.members
    shares[-1] = max(shares[-1], 1 - in_last_domain / group.ranks)
    moved = sum(share / c.rank_bytes_per_us(protocol) for share, c in zip(shares, crossings, strict=True))
    return _through_tiers_us(crossings, protocol) + nbytes * moved


@algorithm("all_reduce/in_switch", libraries=("nccl",))
@over_links("all_reduce")
def in_switch_all_reduce(protocol: str, nbytes: Values, way: Way) -> Values:
    """Latency, then n bytes at the switch's rate, however many ranks and whichever protocol.

    Infinite where the switch does not add, or the group spans several switches.
    """
    link = way[1][0].link
    rate = link.rates.in_switch_gb_s
    if len(way[1]) > 1 or rate is None:
        return np.inf + 0.0 * nbytes
    return link.in_switch_us + nbytes / (rate * GB_PER_S_IN_BYTES_PER_US)


@algorithm("all_reduce/seed_simple")
@over_links("all_reduce")
def original_all_reduce(protocol: str, nbytes: Values, way: Way) -> Values:
    """2 (N-1) (a + n/B): the seed's illustration of an all-reduce. No library chooses it."""
    group, crossings, _ = way
    step = crossings[-1].link.protocol(protocol).hop_us + nbytes / crossings[-1].domain_bytes_per_us(protocol)
    return base_us(crossings, protocol) + 2 * (group.ranks - 1) * step


@over_links("send")
def _hop(protocol: str, nbytes: Values, way: Way) -> Values:
    last = way[1][-1]
    latency = base_us(way[1], protocol) + last.link.protocol(protocol).hop_us
    return latency + nbytes / last.rank_bytes_per_us(protocol)


@algorithm("send/p2p", libraries=("nccl", "rccl"))
def p2p_send(nbytes: Values, group: Group, topology: Topology) -> Values:
    """a + n/B between two neighbors of the group, ``group.stride`` ranks apart; in a mesh over the pair's own wire."""
    return _hop(nbytes, Group(ranks=min(group.ranks, 2), stride=group.stride), topology)


@algorithm("all_to_all/pipelined", libraries=("nccl", "rccl"))
@over_links("all_to_all")
def pipelined_all_to_all(protocol: str, nbytes: Values, way: Way) -> Values:
    """t = inner(chunk) + max(inner(n - chunk), outer(n (N-1)/N)): the network starts after the first chunk.

    inner(x) moves (g-1)/g of x between the g members of a node. A rank then has one peer per other node instead of
    one per rank there. Infinite for a group within one node or with one rank per node: nothing is forwarded.
    """
    group, crossings, topology = way
    if not _is_in_two_tiers(crossings):
        return np.inf + 0.0 * nbytes
    inner, chunk = crossings[0], np.minimum(nbytes, topology.chunk_bytes)
    within = (inner.fanout - 1) / inner.fanout / inner.rank_bytes_per_us(protocol)
    between = max(c.peers / group.ranks / c.rank_bytes_per_us(protocol) for c in crossings[1:])
    fixed = _through_tiers_us(crossings, protocol)
    return fixed + chunk * within + np.maximum((nbytes - chunk) * within, nbytes * between)


def forwarded_us(inner_bytes: float, outer_bytes: float, group: Group, topology: Topology) -> float | None:
    """An exchange of which a rank sends ``outer_bytes`` to other nodes, once per node, where ``inner_bytes`` are passed
    on inside: the same pipeline with what a dispatcher really moves. None within one node or with one rank per node.
    """

    @over_links("all_to_all")
    def time_us(protocol: str, inner_bytes: Values, way: Way) -> Values:
        (inner, *outer), topology = way[1:]
        within = inner_bytes * (inner.fanout - 1) / inner.fanout / inner.rank_bytes_per_us(protocol)
        first = within * np.minimum(1.0, topology.chunk_bytes / np.maximum(inner_bytes, 1.0))
        between = outer_bytes / min(c.rank_bytes_per_us(protocol) for c in outer)
        return _through_tiers_us(way[1], protocol) + first + np.maximum(within - first, between)

    if not _is_in_two_tiers(topology.crossings(group, "all_to_all")):
        return None
    return float(time_us(inner_bytes, group, topology))


def _ring_us(trips: int, protocol: str, nbytes: Values, way: Way) -> Values:
    """A step waits for its own link, and the bytes for the slowest: (p-1)/p of the message leaves every domain."""
    group, crossings, _ = way
    volume = nbytes * (group.ranks - 1) / group.ranks
    return base_us(crossings, protocol) + trips * (
        _hops_us(crossings, protocol) + volume / _slowest(crossings, protocol)
    )


def _hops_us(crossings: tuple[Crossing, ...], protocol: str) -> float:
    return sum(crossing.hops * crossing.link.protocol(protocol).hop_us for crossing in crossings)


@algorithm("all_gather/ring", libraries=("nccl", "rccl"))
@algorithm("reduce_scatter/ring", libraries=("nccl", "rccl"))
@over_links("all_gather")
def ring_pass(protocol: str, nbytes: Values, way: Way) -> Values:
    """One trip round the ring: p-1 steps of n/p bytes (Thakur et al., 2005); additions run while data moves."""
    return _ring_us(1, protocol, nbytes, way)


@algorithm("all_reduce/ring", libraries=("nccl", "rccl"))
@over_links("all_reduce")
def ring_all_reduce(protocol: str, nbytes: Values, way: Way) -> Values:
    """Two trips: a reduce-scatter and an all-gather (Patarasu and Yuan, 2009)."""
    return _ring_us(2, protocol, nbytes, way)


@algorithm("broadcast/ring", libraries=("nccl", "rccl"))
@algorithm("reduce/ring", libraries=("nccl", "rccl"))
@over_links("all_gather")
def ring_chain(protocol: str, nbytes: Values, way: Way) -> Values:
    """A chain that is filled once: p-1 steps of latency, then n bytes at the slowest link's rate."""
    crossings = way[1]
    return base_us(crossings, protocol) + _hops_us(crossings, protocol) + nbytes / _slowest(crossings, protocol)
