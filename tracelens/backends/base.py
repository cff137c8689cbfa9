"""What an operation is priced on, how published tables spell such devices, and what a backend answers."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.files.documents import FigureTable, normalized
from tracelens.hardware.device_figures import Link
from tracelens.hardware.spec import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.network.cluster import Cluster
from tracelens.network.topology import Rates, Topology
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.registry import mark

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
            is_cluster = "device" in FigureTable.of_file(path)
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


#: How far a stated size of memory may be from the file's: with or without what error correction takes.
_SIZE_SPREAD = 0.12
#: Words of a device's name that no file's name or alias needs.
_PLAIN_WORDS = frozenset(
    {"nvidia", "amd", "instinct", "gpu", "tensor", "core", "google", "hbm3", "hbm3e", "oam", "gpus"}
)


def system_of(text: str) -> tuple[System, str | None]:
    """The device, limited to the power that its name states (``H100-96GB-HBM2e-500W``), and what was read as what."""
    text = re.sub(r"^\s*\d+\s*[x×]\s*|\s*[x×]\s*\d+\s*$", "", text.strip())
    try:
        return System.load(text).in_a_node(), None
    except UsageError as error:
        unknown = error
    word = normalized(re.sub(r"[(),]", " ", text)).strip("-")
    watts = re.search(r"(?:^|-)(\d{3,4})-?w(?:atts?)?(?:-|$)", word)
    if watts:
        word = word.replace(watts[0], "-", 1).strip("-")
    for tried, gigabytes in _device_names(word):
        try:
            found = System.load("-".join(tried)).in_a_node()
        except UsageError:
            continue
        if gigabytes and not _has_memory(found, gigabytes):
            continue
        note = f"{text} read as {found.device.name}"
        return found.at_power(float(watts[1]) if watts else None), note + (f" at {watts[1]} W" if watts else "")
    raise unknown


def _device_names(word: str) -> Iterator[tuple[list[str], int | None]]:
    """Words to look for a device by, the likeliest first; with a size where that is none of them."""
    parts = [part for part in word.split("-") if part not in _PLAIN_WORDS]
    sizes = [part for part in parts if re.fullmatch(r"\d+gi?b?", part)]
    others = [part for part in parts if part not in sizes]
    yield parts, None
    yield [*others, *sizes], None
    yield [*others[:1], *sizes, *others[1:]], None
    yield [*others[:1], "sxm", *sizes], None
    plain = [part for part in others if not part.startswith(("sxm", "nvl", "hgx", "dgx", "hbm"))]
    gigabytes = int(re.sub(r"\D", "", sizes[0])) if sizes else None
    yield plain, gigabytes
    # One word among those of a machine: "A3 Mega H100", "BM.GPU.H100.8".
    pieces = [piece for part in plain for piece in part.split(".")]
    yield from (([piece], gigabytes) for piece in pieces if len(pieces) > 1)


def _has_memory(system: System, gigabytes: int) -> bool:
    """Whether the device has about that much."""
    hbm = system.device.hbm
    return hbm is not None and hbm.nominal_gib is not None and abs(hbm.nominal_gib / gigabytes - 1) < _SIZE_SPREAD


T = TypeVar("T")
Floats = npt.NDArray[np.float64]
_BOUND = {"memory": "HBM", "hbm": "HBM", "wire": "link"}


def bound_name(bound: str) -> str:
    """What a bound is called in print: the part of the device that it names."""
    return _BOUND.get(bound.lower(), bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """How long one operation should take, in microseconds; None is unknown.

    ``time_us`` is the prediction, ``peak_us`` the least time at the device's data-sheet rates (never above
    ``time_us``). ``bound`` is ``"compute"``, ``"memory"`` or ``"wire"``, None for an operation without work.
    ``rate_basis`` says which compute rate was used: ``"achievable"``, ``"peak"``, or None where none is known or none
    is needed. ``backend`` is who answered.
    """

    time_us: float
    peak_us: float | None = None
    compute_us: float | None = None
    memory_us: float | None = None
    wire_us: float | None = None
    bound: str | None = None
    rate_basis: str | None = None
    backend: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EstimateTable:
    """Estimates of many operations: the columns of ``Estimate``, NaN and None where unknown.

    A row with ``time_us`` NaN is one that the backend has no answer for.
    """

    time_us: Floats
    peak_us: Floats
    compute_us: Floats
    memory_us: Floats
    wire_us: Floats
    bound: tuple[str | None, ...]
    rate_basis: tuple[str | None, ...]
    backend: tuple[str | None, ...]

    @classmethod
    def unanswered(cls, rows: int) -> EstimateTable:
        """``rows`` rows that no backend has an answer for."""
        unknown, none = np.full(rows, np.nan), (None,) * rows
        return cls(
            time_us=unknown,
            peak_us=unknown,
            compute_us=unknown,
            memory_us=unknown,
            wire_us=unknown,
            bound=none,
            rate_basis=none,
            backend=none,
        )

    def __len__(self) -> int:
        return len(self.bound)

    def row(self, index: int) -> Estimate | None:
        """The estimate of one operation; None where the backend has no answer."""
        backend = self.backend[index]
        time_us = _known(self.time_us[index])
        if time_us is None or backend is None:
            return None
        return Estimate(
            time_us=time_us,
            peak_us=_known(self.peak_us[index]),
            compute_us=_known(self.compute_us[index]),
            memory_us=_known(self.memory_us[index]),
            wire_us=_known(self.wire_us[index]),
            bound=self.bound[index],
            rate_basis=self.rate_basis[index],
            backend=backend,
        )

    def rows(self) -> Iterator[Estimate | None]:
        """Every row, in order."""
        return (self.row(index) for index in range(len(self)))


@runtime_checkable
class Backend(Protocol):
    """How long an operation should take. It never looks at a trace, and answers or returns None: no guesses."""

    @property
    def name(self) -> str:
        """As in ``@backend(name)``."""
        ...

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """One row per row of ``columns``."""
        ...

    def estimate(self, op: PerfModel, system: System) -> Estimate | None:
        """The one-row form of ``estimate_many``."""
        return self.estimate_many(WorkColumns.of([op]), system).row(0)


def backend(name: str) -> Callable[[T], T]:
    """Marks a class (called without arguments) as the backend ``name``, e.g. ``"roofline"``."""
    return mark("backend", name)


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
