"""One tier after the other: an all-reduce of shards, an all-to-all that crosses the network on rails."""

from __future__ import annotations

import numpy as np

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values


@algorithm("all_reduce/hierarchical")
def all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """A ring per tier, one after the other, each on the shard that the tiers further in left: n/g between nodes.

    Per tier of f domains: 2 (f-1) steps and 2 (f-1)/f of the shard. Nothing overlaps.
    """
    crossings = topology.crossings(group, "all_reduce")
    if not crossings:
        return 0.0 * nbytes

    def time_us(protocol: str) -> Values:
        total: Values = base_us(crossings, protocol) + 0.0 * nbytes
        for crossing in crossings:
            steps = crossing.fanout - 1
            shard = nbytes / crossing.members
            moved = shard * steps / crossing.fanout / crossing.rank_bytes_per_us(protocol)
            total = total + 2 * (steps * crossing.link.protocol(protocol).hop_us + moved)
        return total

    return fastest_protocol(topology, time_us)


@algorithm("all_to_all/hierarchical")
def all_to_all(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Inside the node to the rank that faces the destination, then between nodes: (f-1)/f of n per tier of f domains.

    PXN without its pipelining. Where the last node has fewer members than the others, more of what these hold leaves
    it: all but their own share of n. Infinite for a group within one node or with one rank per node: there is one tier.
    """
    crossings = topology.crossings(group, "all_to_all")
    if len(crossings) < 2 or crossings[0].tier != 0:
        return np.inf + 0.0 * nbytes
    shares = [(c.fanout - 1) / c.fanout for c in crossings]
    last = crossings[-1]
    in_last_domain = group.ranks - (last.fanout - 1) * last.members
    shares[-1] = max(shares[-1], 1 - in_last_domain / group.ranks)

    def time_us(protocol: str) -> Values:
        latency = base_us(crossings, protocol) + sum(c.link.protocol(protocol).hop_us for c in crossings)
        overhead = sum((c.fanout - 1) * c.link.peer_us + c.link.sync_us for c in crossings)
        moved = sum(share / c.rank_bytes_per_us(protocol) for share, c in zip(shares, crossings, strict=True))
        return latency + overhead + nbytes * moved

    return fastest_protocol(topology, time_us)
