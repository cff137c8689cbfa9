"""A rule for comparison only: it moves the whole message in each step of the ring, N times what a ring moves."""

from __future__ import annotations

from tracelens.network.algorithms.base import algorithm, base_us, fastest_protocol
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values


@algorithm("all_reduce/seed_simple")
def all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """2 (N-1) (a + n/B): the seed's illustration of an all-reduce. No library chooses it."""
    crossings = topology.crossings(group, "all_reduce")
    if not crossings:
        return 0.0 * nbytes
    last = crossings[-1]
    return fastest_protocol(
        topology,
        lambda protocol: (
            base_us(crossings, protocol)
            + 2
            * (group.ranks - 1)
            * (last.link.protocol(protocol).hop_us + nbytes / last.domain_bytes_per_us(protocol))
        ),
    )
