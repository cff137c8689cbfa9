"""A chain inside each node, and two complementary binary trees over nodes (Sanders, Speck and Traeff, 2009)."""

from __future__ import annotations

import math

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Crossing, Topology, Values


@algorithm("all_reduce/tree", libraries=("nccl", "rccl"))
def all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Up and down: 2 (g-1) steps inside a node, 2 log2 N over N nodes; 2 n bytes leave every domain."""
    crossings = topology.crossings(group, "all_reduce")
    if not crossings:
        return 0.0 * nbytes

    def time_us(protocol: str) -> Values:
        rate = min(crossing.domain_bytes_per_us(protocol) for crossing in crossings)
        latency = sum(_depth(crossing) * crossing.link.protocol(protocol).tree_hop_us for crossing in crossings)
        return base_us(crossings, protocol) + 2 * (latency + nbytes / rate)

    return fastest_protocol(topology, time_us)


def _depth(crossing: Crossing) -> int:
    """Hops of the chain inside a node, or of the tree further out."""
    return crossing.fanout - 1 if crossing.tier == 0 else math.ceil(math.log2(crossing.fanout))
