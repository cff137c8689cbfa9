"""Reduce-scatter inside a node, all-reduce of the shards between nodes, all-gather inside the node."""

from __future__ import annotations

from tracelens.groups import Group
from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
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
