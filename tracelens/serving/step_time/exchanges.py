"""How long devices of a replica take to exchange: collectives as sequences of equal steps, in whole femtoseconds."""

from __future__ import annotations

import dataclasses
import math

from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.network.algorithms import collective_us
from tracelens.network.cluster import Library
from tracelens.network.topology import Group, Link, Rates, Tier, Topology
from tracelens.serving.deployment import Deployment

FS_PER_US = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A collective as a sequence of equal steps, each of ``transfers`` link transfers at once. Time in fs."""

    name: str
    steps: int
    transfers: int
    step_fs: int

    @property
    def time_fs(self) -> int:
        return self.steps * self.step_fs


class Exchanges:
    """Collectives among the devices of a deployment, each size once. ``notes``: what was assumed of the links."""

    def __init__(self, deployment: Deployment, device: HardwareSpec) -> None:
        self.notes: list[str] = []
        self._device, self._all_reduce = device, deployment.collective
        self._topology = self._joined(deployment)
        self._known: dict[tuple[str, int, int, int], Exchange] = {}

    def exchange(self, word: str, nbytes: float, *, ranks: int, stride: int = 1) -> Exchange:
        """The collective ``word`` of ``nbytes``. UsageError where the links are not known, or no algorithm does it."""
        key = (word, round(nbytes), ranks, stride)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._made(*key)
        return found

    def share_a_node(self, devices: int, stage: int) -> bool:
        """Whether stages of so many devices, ``stage`` and the next, stand in one node."""
        node = None if self._topology is None else self._topology.ranks_per_node
        return node is None or stage * devices // node == ((stage + 2) * devices - 1) // node

    def _made(self, word: str, nbytes: int, ranks: int, stride: int) -> Exchange:
        if self._topology is None:
            raise UsageError(f"{self._device.name}: the links between its devices are unknown; pass --cluster")
        name = self._all_reduce if word == "all_reduce" else None
        times, names = collective_us(word, float(nbytes), Group(ranks=ranks, stride=stride), self._topology, name)
        if math.isnan(times[0]):
            raise UsageError(f"no {word} algorithm {name or ''} for {ranks} ranks on {self._device.name}")
        chosen = names[0].rpartition("/")[2]
        steps, transfers = steps_of(chosen, word, ranks)
        step_fs = round(float(times[0]) * FS_PER_US / steps)
        return Exchange(name=f"{word}/{chosen}", steps=steps, transfers=transfers, step_fs=step_fs)

    def _joined(self, deployment: Deployment) -> Topology | None:
        """The cluster's links, else the device's own, at the engine's share of their rates."""
        topology = deployment.system.topology
        if topology is None and deployment.parallelism.devices > 1:
            rates, note = fallback_rates(self._device)
            self.notes.append(note)
            library = Library.load("nccl")
            tier = Tier(ranks=None, link=Link(rates=rates, protocols=library.node.protocols))
            topology = Topology(tiers=(tier,), algorithms=library.algorithms)
        share = deployment.engine.link_efficiency
        if topology is None or share is None:
            return topology
        tiers = tuple(
            dataclasses.replace(tier, link=dataclasses.replace(tier.link, rates=_scaled(tier.link.rates, share)))
            for tier in topology.tiers
        )
        return dataclasses.replace(topology, tiers=tiers)


def steps_of(name: str, word: str, ranks: int) -> tuple[int, int]:
    """(steps one after the other, link transfers in each) of a collective algorithm."""
    if ranks < 2 or word == "send":
        return 1, 1
    if name == "direct":
        return 2 if word == "all_reduce" else 1, ranks * (ranks - 1)
    if name == "in_switch":
        return 2, ranks
    if name == "tree":
        return 2 * math.ceil(math.log2(ranks)), ranks - 1
    trips = 2 if word == "all_reduce" else 1
    return trips * (ranks - 1), ranks


def fallback_rates(device: HardwareSpec) -> tuple[Rates, str]:
    """The rates between devices without a cluster file: their own link, else PCIe. UsageError with neither."""
    if device.link is not None:
        return Rates(peak_gb_s=device.link.gb_s), f"no cluster given: {device.name} joined by its own link"
    if device.pcie_gb_s is not None:
        note = (
            f"no cluster given: {device.name} joined by PCIe at {device.pcie_gb_s:g} GB/s, NCCL's overheads in a node"
        )
        return Rates(peak_gb_s=device.pcie_gb_s), note
    raise UsageError(f"{device.name}: its link and PCIe rates are unknown; pass --cluster")


def _scaled(rates: Rates, share: float) -> Rates:
    """Every rate times ``share``."""
    known = {item.name: getattr(rates, item.name) for item in dataclasses.fields(rates)}
    return dataclasses.replace(rates, **{name: value * share for name, value in known.items() if value is not None})
