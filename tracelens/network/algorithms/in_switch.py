"""Reduction inside the switch (NVLink SHARP): ranks send their data once and receive the sum once."""

from __future__ import annotations

import numpy as np

from tracelens.network.algorithms.base import algorithm
from tracelens.network.groups import Group
from tracelens.network.topology import Topology, Values
from tracelens.units import GB_PER_S_IN_BYTES_PER_US


@algorithm("all_reduce/in_switch", libraries=("nccl",))
def all_reduce(nbytes: Values, group: Group, topology: Topology) -> Values:
    """Latency, then n bytes at the switch's rate, however many ranks.

    Infinite where the switch does not add, or the group spans several switches.
    """
    crossings = topology.crossings(group, "all_reduce")
    if not crossings:
        return 0.0 * nbytes
    link = crossings[0].link
    rate = link.rates.in_switch_gb_s
    if len(crossings) > 1 or rate is None:
        return np.inf + 0.0 * nbytes
    return link.in_switch_us + nbytes / (rate * GB_PER_S_IN_BYTES_PER_US)
