"""What communication adds to a step beside computing, and hops between pipeline stages: numbers or arrays alike."""

from __future__ import annotations

import numpy as np

from tracelens.network.algorithms import collective_us
from tracelens.network.topology import Group, Topology, Values

#: A collective beside computing takes SMs and bandwidth: computing takes so much longer while they share the device.
#: Measured 19 % in the mean and at most 40 (arXiv 2507.03114); of 0.1, 0.2 and 0.3 the one with which families of
#: published steps that were left out of the fit are nearest, dense 5.1, 4.9 and 4.6 % (``fit_profiles.py``).
OVERLAP_COST = 0.3
#: Bytes per element of gradients on the wire: fp32 buffers, and 16 bits where FSDP reduces what it computed.
REDUCED_BYTES = {0: 4, 1: 4, 2: 4, 3: 2}


def exposed_us(transfer_us: Values, compute_us: Values) -> Values:
    """What a transfer beside computing adds to it: the slowdown while both run, and the rest of the transfer."""
    slow = 1 + OVERLAP_COST
    return np.maximum(transfer_us - compute_us, np.minimum(transfer_us, slow * compute_us) * (1 - 1 / slow))


def hop_us(nbytes: Values, group: Group, topology: Topology) -> Values:
    """The mean over the hops between neighbors of a pipeline of ``group``, of which some leave the node."""
    if group.ranks == 1:
        return 0.0 * nbytes
    node = topology.ranks_per_node
    far = group.domains(node) - 1 if node is not None else 0
    near = group.ranks - 1 - far
    total: Values = 0.0 * nbytes
    if near:
        total = total + near * collective_us("send", nbytes, Group(ranks=2, stride=group.stride), topology)[0]
    if far and node is not None:
        total = total + far * collective_us("send", nbytes, Group(ranks=2, stride=node), topology)[0]
    return total / (group.ranks - 1)


def hops_us(nbytes: float, group: Group, topology: Topology) -> list[float]:
    """Send time from each rank of a pipeline to the next, the last to the first: fast within a node, else slow."""
    node = topology.ranks_per_node
    found: dict[bool, float] = {}
    hops = []
    for rank in range(group.ranks):
        here, there = rank * group.stride, (rank + 1) % group.ranks * group.stride
        far = node is not None and here // node != there // node
        if far not in found:
            stride = max(group.stride, node) if far and node is not None else group.stride
            found[far] = float(collective_us("send", nbytes, Group(ranks=2, stride=stride), topology)[0][0])
        hops.append(found[far])
    return hops
