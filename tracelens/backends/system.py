"""What an operation is priced on."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from tracelens.errors import UsageError
from tracelens.files.toml_figures import Table
from tracelens.hardware.device_figures import Link
from tracelens.hardware.spec import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.network.cluster import Cluster
from tracelens.network.topology import Rates, Topology

# A100, whose switch cannot add: 222 of all-reduce against 205 GB/s of all-gather; H100, whose switch can: 445 and 336.
_RING_SPREAD = 1.15
#: What a device without a node of its own is taken to stand in: eight, with a 200 Gb/s card each.
_COMMON_NODE = "dgx-a100"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A device, and how devices are joined. Without a topology, wire bytes travel over the device's own link.

    ``cluster`` is where the topology comes from, None for one of the caller's own. ``note`` says what was assumed.
    """

    device: HardwareSpec
    topology: Topology | None = None
    cluster: Cluster | None = None
    note: str | None = None

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> System:
        """A cluster or a device, by name, alias or file.

        A device means its standard node, and ``note`` says so; where there is none, the device alone. UsageError for
        an unknown name.
        """
        if isinstance(name, os.PathLike) or name.endswith(".toml"):
            path = Path(name)
            is_cluster = "device" in Table.of_file(path)
            return cls.of_cluster(Cluster.load(path)) if is_cluster else cls.of_device(HardwareSpec.load(path))
        try:
            return cls.of_device(HardwareSpec.load(name))
        except UsageError:
            cluster = Cluster.find(name)
        if cluster is None:
            raise UsageError.unknown("device or cluster", name, [*HardwareSpec.names(), *Cluster.names()])
        return cls.of_cluster(cluster)

    @classmethod
    def of_cluster(cls, cluster: Cluster, device: HardwareSpec | None = None) -> System:
        """The cluster and the device that it names, or ``device`` in its place."""
        device = device or HardwareSpec.load(cluster.device)
        rates = link_rates(device, adds_in_switch=cluster.adds_in_switch)
        if rates is None:
            raise UsageError(f"cluster {cluster.name!r}: the file of {device.name} has no link rate")
        return cls(device=device, topology=cluster.topology(rates), cluster=cluster)

    @classmethod
    def of_device(cls, device: HardwareSpec) -> System:
        """The device in its standard node, or in that of the device which its file is based on."""
        cluster = Cluster.standard(device.name) or Cluster.standard(device.based_on or "")
        if cluster is None or device.link is None:
            return cls(device=device, note=f"no cluster given, and {device.name} has no standard node: no topology")
        note = f"no cluster given: {device.name} in its standard node, {cluster.name}"
        return dataclasses.replace(cls.of_cluster(cluster, device), note=note)

    def in_a_node(self) -> System:
        """Itself where its links are known; else the device in nodes like ``_COMMON_NODE``, by its own link, or else by
        PCIe. ``note`` says so.
        """
        device = self.device
        if self.topology is not None or (device.link is None and device.pcie_gb_s is None):
            return self
        common = Cluster.load(_COMMON_NODE)
        link = device.link or Link(gb_s=device.pcie_gb_s or 0.0, source="its PCIe rate")
        joined = dataclasses.replace(device, link=link, busbw=device.busbw if device.link else None)
        named = "its own link" if device.link else f"PCIe at {device.pcie_gb_s:g} GB/s"
        note = f"no cluster of {device.name} is known: nodes of {common.ranks_per_node} by {named}, else {common.name}"
        return dataclasses.replace(self.of_cluster(common, joined), device=device, cluster=None, note=note)

    def at_clock(self, mhz: float | None) -> System:
        """The same with the device at another clock, as ``HardwareSpec.at_clock``; itself where that is None."""
        return self if mhz is None else dataclasses.replace(self, device=self.device.at_clock(mhz))

    def at_power(self, watts: float | None) -> System:
        """The same with the device limited to a power, as ``HardwareSpec.at_power``; itself where that is None."""
        return self if watts is None else dataclasses.replace(self, device=self.device.at_power(watts))


def link_rates(device: HardwareSpec, *, adds_in_switch: bool) -> Rates | None:
    """The device's own link as collectives use it, from its file's ``link`` and ``busbw``; None without a link rate.

    All-reduce was measured as size/time * 2(n-1)/n. Where the switch adds that is the switch's figure, and size/time
    its rate. Elsewhere it is the ring's, unless it is far above the all-gather's: a ring takes as long for both trips,
    so a switch added during the measurement. A pair's measured rate (a mesh) counts for every pair.
    """
    link, busbw = device.link, device.busbw
    if link is None:
        return None
    gathered = link.achievable_gb_s
    if gathered is None and link.p2p_achievable_gb_s is not None and link.p2p_gb_s is not None:
        gathered = link.gb_s * link.p2p_achievable_gb_s / link.p2p_gb_s
    if busbw is None:
        return Rates(peak_gb_s=link.gb_s, all_gather_gb_s=gathered)
    gathered, reduced = busbw.all_gather_gb_s or gathered, busbw.all_reduce_gb_s
    rates = Rates(peak_gb_s=link.gb_s, all_gather_gb_s=gathered, all_to_all_gb_s=busbw.all_to_all_gb_s)
    if reduced is None:
        return rates
    if adds_in_switch:
        return dataclasses.replace(rates, in_switch_gb_s=reduced * busbw.ranks / (2 * (busbw.ranks - 1)))
    by_ring = gathered is None or reduced <= _RING_SPREAD * gathered
    return dataclasses.replace(rates, all_reduce_gb_s=min(reduced, link.gb_s)) if by_ring else rates
