"""One rank sends to another."""

from __future__ import annotations

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values


@algorithm("send/p2p", libraries=("nccl", "rccl"))
def send(nbytes: Values, group: Group, topology: Topology) -> Values:
    """a + n/B between two neighbors of the group, ``group.stride`` ranks apart; in a mesh over the pair's own wire."""
    crossings = topology.crossings(Group(ranks=min(group.ranks, 2), stride=group.stride), "send")
    if not crossings:
        return 0.0 * nbytes
    last = crossings[-1]
    return fastest_protocol(
        topology,
        lambda protocol: (
            base_us(crossings, protocol)
            + last.link.protocol(protocol).hop_us
            + nbytes / last.rank_bytes_per_us(protocol)
        ),
    )
