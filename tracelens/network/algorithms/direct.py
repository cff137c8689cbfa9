"""Every rank sends to every other at once: single-shot exchanges."""

from __future__ import annotations

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values


@algorithm("all_gather/direct")
def all_gather(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Each rank sends its n/p bytes to p-1 peers."""
    return _exchange("all_gather", nbytes, group, topology)


@algorithm("reduce_scatter/direct")
def reduce_scatter(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Each rank sends each of p-1 peers the n/p bytes that the peer adds up."""
    return _exchange("reduce_scatter", nbytes, group, topology)


@algorithm("all_reduce/direct")
def all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """A reduce-scatter and an all-gather, each in one step."""
    return reduce_scatter(nbytes, group, topology) + all_gather(nbytes, group, topology)


@algorithm("all_to_all/direct", libraries=("nccl", "rccl"))
def all_to_all(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Each rank sends n/p bytes to each of p-1 peers, straight over the link that joins them."""
    return _exchange("all_to_all", nbytes, group, topology)


def _exchange(word: str, nbytes: Values, group: Group, topology: Topology) -> Values:
    """One step; the tiers work at once and the slowest one counts: n/p per peer over the rank's share of its rate.

    Overheads per peer add up, since one rank issues all its messages.
    """
    crossings = topology.crossings(group, word)
    if not crossings:
        return 0.0 * nbytes

    def time_us(protocol: str) -> Values:
        latency = base_us(crossings, protocol) + max(c.link.protocol(protocol).hop_us for c in crossings)
        overhead = sum(c.peers * c.link.peer_us + c.link.sync_us for c in crossings)
        per_byte = max(c.peers / group.ranks / c.rank_bytes_per_us(protocol) for c in crossings)
        return latency + overhead + nbytes * per_byte

    return fastest_protocol(topology, time_us)
