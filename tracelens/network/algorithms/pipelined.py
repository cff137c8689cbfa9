"""An all-to-all whose messages first gather inside the node at the rank that faces the destination (NCCL's PXN)."""

from __future__ import annotations

import numpy as np

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values


@algorithm("all_to_all/pipelined", libraries=("nccl", "rccl"))
def all_to_all(nbytes: Values, group: Group, topology: Topology) -> Values:
    """t = inner(chunk) + max(inner(n - chunk), outer(n (N-1)/N)): the network starts after the first chunk.

    inner(x) moves (g-1)/g of x between the g members of a node. A rank then has one peer per other node instead of
    one per rank there. Infinite for a group within one node or with one rank per node: nothing is forwarded.
    """
    crossings = topology.crossings(group, "all_to_all")
    if len(crossings) < 2 or crossings[0].tier != 0:
        return np.inf + 0.0 * nbytes
    inner, outer = crossings[0], crossings[1:]
    chunk = np.minimum(nbytes, topology.chunk_bytes)

    def time_us(protocol: str) -> Values:
        latency = base_us(crossings, protocol) + sum(c.link.protocol(protocol).hop_us for c in crossings)
        overhead = sum((c.fanout - 1) * c.link.peer_us + c.link.sync_us for c in crossings)
        within = (inner.fanout - 1) / inner.fanout / inner.rank_bytes_per_us(protocol)
        between = max(c.peers / group.ranks / c.rank_bytes_per_us(protocol) for c in outer)
        return latency + overhead + chunk * within + np.maximum((nbytes - chunk) * within, nbytes * between)

    return fastest_protocol(topology, time_us)


def forwarded_us(inner_bytes: float, outer_bytes: float, group: Group, topology: Topology) -> float | None:
    """An exchange of which a rank sends ``outer_bytes`` to other nodes, once per node, where ``inner_bytes`` are passed
    on inside: the same pipeline with what a dispatcher really moves. None within one node or with one rank per node.
    """
    crossings = topology.crossings(group, "all_to_all")
    if len(crossings) < 2 or crossings[0].tier != 0:
        return None
    inner, outer = crossings[0], crossings[1:]

    def time_us(protocol: str) -> Values:
        latency = base_us(crossings, protocol) + sum(c.link.protocol(protocol).hop_us for c in crossings)
        overhead = sum((c.fanout - 1) * c.link.peer_us + c.link.sync_us for c in crossings)
        within = inner_bytes * (inner.fanout - 1) / inner.fanout / inner.rank_bytes_per_us(protocol)
        first = within * min(1.0, topology.chunk_bytes / max(inner_bytes, 1.0))
        between = outer_bytes / min(c.rank_bytes_per_us(protocol) for c in outer)
        return latency + overhead + first + max(within - first, between)

    return float(fastest_protocol(topology, time_us))
