"""Clusters: one TOML file each in ``clusters``, every figure with its source. ``docs/network.md`` describes the file.

A cluster names its device and does not repeat its figures: ``topology`` is given the rates of the device's own link.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar, cast, get_args

import msgspec

from tracelens.errors import UsageError
from tracelens.files.documents import BundledFile, FigureTable, bundled, normalized, told
from tracelens.predict.network.algorithms import of_library
from tracelens.predict.network.topology import PIPELINE_CHUNK_BYTES, Protocol, Rates, Shape, Tier, TierLink, Topology
from tracelens.types.records import Record
from tracelens.types.units import BYTES_PER_MB

T = TypeVar("T")
FOLDER = Path(__file__).resolve().parent / "clusters"
LIBRARIES = Path(__file__).resolve().parent / "libraries"
_PROTOCOLS = ("ll", "ll128", "simple")


class Overheads(Record, frozen=True, kw_only=True):
    """What a library's messages cost over one tier of links besides their bytes."""

    protocols: tuple[Protocol, ...] = ()
    peer_us: float = 0.0
    sync_us: float = 0.0
    in_switch_us: float = 0.0


class Library(Record, frozen=True, kw_only=True):
    """A communication library: which algorithms it chooses from, and its overheads inside and between nodes."""

    name: str
    algorithms: tuple[str, ...]
    node: Overheads
    network: Overheads
    sources: Mapping[str, str]

    @classmethod
    @functools.cache
    def load(cls, name: str) -> Library:
        """A library of this package, e.g. ``"nccl"``. UsageError for an unknown name."""
        known = {path.stem: path for path in LIBRARIES.glob("*.toml")}
        if name not in known:
            raise UsageError.unknown("communication library", name, known)
        root = FigureTable.of_file(known[name], kind="library")
        sources: dict[str, str] = {}
        tiers = _tiers(root)
        node, network = (_overheads(tier, Overheads(), sources) for tier in tiers)
        for table in (*tiers, root):
            table.finish()
        return cls(name=name, algorithms=of_library(name), node=node, network=network, sources=sources)


class Cluster(Record, frozen=True, kw_only=True):
    """Nodes of ``ranks_per_node`` ranks with ``cards`` network cards each, any number of them unless ``nodes`` says.

    ``device`` is the name of a device file. ``is_standard``: the device without a cluster means one of these nodes.
    ``node_rates`` are measured rates of the links within a node that replace the device file's, by their name in
    ``Rates``. ``adds_in_switch``: the node's switch can reduce. ``ep_library`` runs expert-parallel exchanges
    (``"deepep"``), None where none is known. ``error_percent``: the mean error of collectives on node counts that
    were not fitted, None where none were measured. ``host_w``: what a node draws besides its devices (CPUs, NICs, fans,
    losses), ``disk_tb`` and ``disk_gb_s`` the size of its disks and the rate of reading all of them, None where
    unknown. ``sources`` says for each table of the file, and of the library's, where its figures come from.
    """

    name: str
    label: str
    device: str
    aliases: tuple[str, ...] = ()
    note: str | None = None
    is_standard: bool = False
    library: str
    algorithms: tuple[str, ...]
    ep_library: str | None = None
    ranks_per_node: int
    shape: Shape
    adds_in_switch: bool = False
    node_rates: Mapping[str, float] = msgspec.field(default_factory=dict)
    node_overheads: Overheads
    cards: int
    network_rates: Rates
    network_overheads: Overheads
    nodes: int | None = None
    chunk_bytes: float = PIPELINE_CHUNK_BYTES
    error_percent: float | None = None
    host_w: float | None = None
    disk_tb: float | None = None
    disk_gb_s: float | None = None
    sources: Mapping[str, str] = msgspec.field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, self.label))

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> Cluster:
        """A cluster of this package by name or alias, or a cluster file (``my_cluster.toml``) by path.

        Case, ``-``, ``_`` and blanks do not matter in names. UsageError for an unknown name, InputError for a file
        that is missing or wrong.
        """
        if isinstance(name, os.PathLike) or str(name).endswith(".toml"):
            return _read(Path(name))
        found = cls.find(name)
        if found is None:
            raise UsageError.unknown("cluster", name, [*cls.names(), *(a for c in cls.all() for a in c.aliases)])
        return found

    @classmethod
    def file_text(cls, name: str | os.PathLike[str]) -> str:
        """The text of the file that ``load(name)`` reads."""
        named = isinstance(name, os.PathLike) or str(name).endswith(".toml")
        return (Path(name) if named else bundled(FOLDER) / f"{cls.load(name).name}.toml").read_text(encoding="utf-8")

    @classmethod
    def find(cls, name: str) -> Cluster | None:
        """A cluster of this package by name or alias; None when there is none."""
        wanted = normalized(name)
        if wanted in cls.names():
            return _bundled(wanted)
        return next((c for c in cls.all() if wanted in {normalized(alias) for alias in c.aliases}), None)

    @classmethod
    @functools.cache
    def standard(cls, device: str) -> Cluster | None:
        """What a device of that file name stands in unless a cluster is named; None when no file says."""
        texts = {name: (bundled(FOLDER) / f"{name}.toml").read_bytes() for name in cls.names() if device}
        naming = (_bundled(name) for name, text in texts.items() if device.encode() in text)
        return next((cluster for cluster in naming if cluster.is_standard and cluster.device == device), None)

    @classmethod
    @functools.cache
    def names(cls) -> tuple[str, ...]:
        """Names of the clusters of this package, sorted. Reads the folder, not the files."""
        return tuple(sorted(path.stem for path in bundled(FOLDER).iterdir()))

    @classmethod
    def all(cls) -> tuple[Cluster, ...]:
        """Every cluster of this package, in the order of ``names``."""
        return tuple(_bundled(name) for name in cls.names())

    def topology(self, device_rates: Rates) -> Topology:
        """Two tiers, node and network. ``device_rates`` are those of the device's own link."""
        rates = dataclasses.replace(device_rates, **self.node_rates)
        node = Tier(ranks=self.ranks_per_node, shape=self.shape, link=_link(rates, self.node_overheads))
        network = Tier(
            ranks=None if self.nodes is None else self.nodes * self.ranks_per_node,
            cards=self.cards,
            link=_link(self.network_rates, self.network_overheads),
        )
        return Topology(tiers=(node, network), algorithms=self.algorithms, chunk_bytes=self.chunk_bytes)


def _link(rates: Rates, costs: Overheads) -> TierLink:
    return TierLink(rates=rates, **{each.name: getattr(costs, each.name) for each in dataclasses.fields(costs)})


@functools.cache
def _bundled(name: str) -> Cluster:
    return _read(bundled(FOLDER) / f"{name}.toml")


def _read(path: BundledFile) -> Cluster:
    root = FigureTable.of_file(path, kind="cluster")
    library = Library.load(_present(root, "library", root.text("library"), "a string"))
    sources = dict(library.sources)
    node, network = _tiers(root)
    shape = _present(node, "shape", node.text("shape"), "a string")
    if shape not in get_args(Shape):
        raise node.error("shape", 'must be "switch" or "mesh"')
    host, disks = root.table("host"), root.table("disks")
    host_w = None if host is None else host.needed_number("power_w")
    disk_tb, disk_gb_s = (None if disks is None else disks.number(name) for name in ("tb", "read_gb_s"))
    for each in filter(None, (host, disks)):
        _finish(each, sources)
    peak, chunk_bytes = network.needed_number("card_gb_s"), float(PIPELINE_CHUNK_BYTES)
    if (pipeline := root.table("pipeline")) is not None:
        chunk_bytes = pipeline.needed_number("chunk_mb") * BYTES_PER_MB
        _finish(pipeline, sources)
    device = _present(root, "device", root.text("device"), "a string")
    cluster = Cluster(
        name=path.stem,
        label=root.text("label") or path.stem,
        device=str(told(path, device)) if isinstance(path, Path) else device,
        aliases=root.texts("aliases"),
        note=root.text("note"),
        is_standard=root.flag("standard"),
        library=library.name,
        algorithms=root.texts("algorithms") or library.algorithms,
        ep_library=root.text("ep_library"),
        ranks_per_node=_present(node, "ranks", node.whole("ranks", least=2), "a whole number, at least 2"),
        shape=cast(Shape, shape),
        adds_in_switch=node.flag("adds_in_switch"),
        node_rates=_measured(node, "in_switch_gb_s", sources),
        node_overheads=_overheads(node, library.node, sources),
        cards=_present(network, "cards", network.whole("cards", least=1), "a whole number, at least 1"),
        network_rates=Rates(peak_gb_s=peak, **_measured(network, "alone_gb_s", sources, peak)),
        network_overheads=_overheads(network, library.network, sources),
        nodes=network.whole("nodes"),
        error_percent=root.number("error_percent"),
        host_w=host_w,
        disk_tb=disk_tb,
        disk_gb_s=disk_gb_s,
        chunk_bytes=chunk_bytes,
        sources=sources | {"node": node.source("source"), "network": network.source("source")},
    )
    inside, between = ([p.name for p in link.protocols] for link in (cluster.node_overheads, cluster.network_overheads))
    if inside != between:
        raise network.error("protocol", f"must be of the same protocols as node.protocol: {', '.join(inside)}")
    for table in (node, network, root):
        table.finish()
    return cluster


def _present(table: FigureTable, name: str, value: T | None, what: str) -> T:
    """InputError where a file does not have it: it must be ``what``."""
    if value is None:
        raise table.error(name, f"must be {what}")
    return value


def _tiers(root: FigureTable) -> tuple[FigureTable, FigureTable]:
    node, network = (_present(root, name, root.table(name), "a table") for name in ("node", "network"))
    return node, network


def _measured(
    tier: FigureTable, further: str, sources: dict[str, str], peak_gb_s: float = math.inf
) -> dict[str, float]:
    """A tier's measured rates, by the names of ``Rates``, of which ``further`` is one that other tiers have not."""
    table = tier.table("rates")
    if table is None:
        return {}
    names = ("all_gather_gb_s", "all_reduce_gb_s", "all_to_all_gb_s", further)
    found = {name: value for name in names if (value := table.number(name)) is not None}
    for name, value in found.items():
        if value > peak_gb_s:
            raise table.error(name, f"must not be above card_gb_s {peak_gb_s:g}")
    _finish(table, sources)
    return found


def _finish(table: FigureTable, sources: dict[str, str]) -> None:
    """Notes the table's source. InputError for a key that was not read."""
    sources[table.path] = table.source("source")
    table.finish()


def _overheads(tier: FigureTable, inherited: Overheads, sources: dict[str, str]) -> Overheads:
    """Those of a library, or a cluster's own where its file has the table."""
    protocols = tuple(
        _protocol(name, table, sources) for name, table in tier.tables("protocol", frozenset(_PROTOCOLS)).items()
    )
    found = dataclasses.replace(inherited, protocols=protocols or inherited.protocols)
    exchange = tier.table("all_to_all")
    if exchange is not None:
        peer_us, sync_us = (exchange.number_or_zero(name) or 0.0 for name in ("peer_us", "sync_us"))
        found = dataclasses.replace(found, peer_us=peer_us, sync_us=sync_us)
        _finish(exchange, sources)
    switch = tier.table("in_switch")
    if switch is not None:
        found = dataclasses.replace(found, in_switch_us=switch.needed_number("latency_us"))
        _finish(switch, sources)
    return found


def _protocol(name: str, table: FigureTable, sources: dict[str, str]) -> Protocol:
    protocol = Protocol(name=name, **table.figures(Protocol, apart=("name",)))
    if protocol.rate_share > 1:
        raise table.error("rate_share", "must not be above 1")
    _finish(table, sources)
    return protocol
