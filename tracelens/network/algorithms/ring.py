"""Every rank sends to the next one round a ring that crosses each outer tier as seldom as possible."""

from __future__ import annotations

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Crossing, Topology, Values


@algorithm("all_gather/ring", libraries=("nccl", "rccl"))
def all_gather(nbytes: Values, group: Group, topology: Topology) -> Values:
    """One trip round the ring: p-1 steps of n/p bytes (Thakur et al., 2005)."""
    return _trips(1, nbytes, group, topology, topology.crossings(group))


@algorithm("reduce_scatter/ring", libraries=("nccl", "rccl"))
def reduce_scatter(nbytes: Values, group: Group, topology: Topology) -> Values:
    """One trip round the ring; the additions run while data moves."""
    return _trips(1, nbytes, group, topology, topology.crossings(group))


@algorithm("all_reduce/ring", libraries=("nccl", "rccl"))
def all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Two trips: a reduce-scatter and an all-gather (Patarasu and Yuan, 2009)."""
    return _trips(2, nbytes, group, topology, topology.crossings(group, "all_reduce"))


@algorithm("broadcast/ring", libraries=("nccl", "rccl"))
def broadcast(nbytes: Values, group: Group, topology: Topology) -> Values:
    """A chain that is filled once: p-1 steps of latency, then n bytes at the slowest link's rate."""
    return _chain(nbytes, topology, topology.crossings(group))


@algorithm("reduce/ring", libraries=("nccl", "rccl"))
def reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """The chain of a broadcast, towards the root."""
    return _chain(nbytes, topology, topology.crossings(group))


def _trips(count: int, nbytes: Values, group: Group, topology: Topology, crossings: tuple[Crossing, ...]) -> Values:
    """A step waits for its own link, and the bytes for the slowest: (p-1)/p of the message leaves every domain."""
    if not crossings:
        return 0.0 * nbytes
    volume = nbytes * (group.ranks - 1) / group.ranks

    def time_us(protocol: str) -> Values:
        return base_us(crossings, protocol) + count * (
            _hops_us(crossings, protocol) + volume / _slowest(crossings, protocol)
        )

    return fastest_protocol(topology, time_us)


def _chain(nbytes: Values, topology: Topology, crossings: tuple[Crossing, ...]) -> Values:
    if not crossings:
        return 0.0 * nbytes

    def time_us(protocol: str) -> Values:
        return base_us(crossings, protocol) + _hops_us(crossings, protocol) + nbytes / _slowest(crossings, protocol)

    return fastest_protocol(topology, time_us)


def _hops_us(crossings: tuple[Crossing, ...], protocol: str) -> float:
    return sum(crossing.hops * crossing.link.protocol(protocol).hop_us for crossing in crossings)


def _slowest(crossings: tuple[Crossing, ...], protocol: str) -> float:
    return min(crossing.domain_bytes_per_us(protocol) for crossing in crossings)
