"""How long collectives and expert-parallel exchanges take on a system's links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np

from tracelens.backends.base import Backend, EstimateTable, Floats, System, backend
from tracelens.backends.kernels.kernel_costs import KernelRates
from tracelens.errors import UsageError
from tracelens.perf_models import Collective, EPComm, PerfModel
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.network import deepep
from tracelens.predict.network.algorithms import bound_us, collective_us, forwarded_us
from tracelens.predict.network.deepep import bound_us as exchange_bound_us
from tracelens.predict.network.topology import Group, Topology
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US

DEEPEP = "deepep"
Kernels: TypeAlias = Literal["normal", "low_latency"]


class MessageColumns(Record, frozen=True, kw_only=True, eq=False):
    """Collectives as arrays: ``word`` (``"all_reduce"``), full message in bytes as in ``collective_us``, group."""

    word: Sequence[str]
    nbytes: Floats
    group: Sequence[Group]

    def __len__(self) -> int:
        return len(self.nbytes)


@backend("collectives")
class Collectives(Backend):
    """The fastest algorithm of the cluster's library, over its links; DeepEP's kernels where the cluster runs them.

    Answers ``Collective`` with a recorded group and ``EPComm`` with a known group size, on a system with a topology. An
    exchange without router dimensions is priced as an all-to-all of its rows; with them, on a cluster without DeepEP, a
    token crosses the network once per distinct node (PXN). Custom
    all-reduce kernels are not answered. The groups of the ranks in between share the network cards, nothing else runs
    on the links at the time, and every rank arrives at once.
    """

    name: ClassVar[str] = "collectives"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        time_us, peak_us = (np.full(len(columns), np.nan) for _ in range(2))
        if system.topology is None:
            alone = [(said := _message(model)) is not None and said[2].ranks == 1 for model in columns.models]
            time_us[alone] = peak_us[alone] = 0.0
            return self._table(time_us, peak_us)
        messages: dict[tuple[str, Group], list[tuple[int, float]]] = defaultdict(list)
        for index, model in enumerate(columns.models):
            if isinstance(model, EPComm) and (exchange := _exchange(model, system)) is not None:
                time_us[index] = (exchange_us(exchange, "normal", system) + notification_us(exchange, system))[0]
                peak_us[index] = exchange_bound_us(exchange, fabric(system))
            elif isinstance(model, EPComm) and (forwarded := _forwarded_us(model, system.topology)) is not None:
                time_us[index], peak_us[index] = forwarded
            elif (message := _message(model)) is not None:
                word, nbytes, group = message
                messages[word, group].append((index, nbytes))
        for (word, group), rows in messages.items():
            at, sizes = [index for index, _ in rows], np.array([nbytes for _, nbytes in rows], dtype=np.float64)
            topology = system.topology.beside_siblings(group)
            time_us[at] = collective_us(word, sizes, group, topology)[0]
            peak_us[at] = bound_us(word, sizes, group, topology)
        return self._table(time_us, peak_us)

    def _table(self, time_us: Floats, peak_us: Floats) -> EstimateTable:
        rows, unknown = len(time_us), np.full(len(time_us), np.nan)
        return EstimateTable.by(
            self.name, ("wire",) * rows, ("",) * rows, time_us=time_us, wire_us=time_us, compute_us=unknown,
            memory_us=unknown, peak_us=np.where(np.isnan(time_us), np.nan, peak_us),
        )  # fmt: skip


def message_us(columns: MessageColumns, system: System, algorithm: str | None = None) -> tuple[Floats, tuple[str, ...]]:
    """Time of every collective in microseconds, and the algorithm that it takes; NaN and ``""`` where none can.

    ``algorithm`` (``"tree"``) leaves no choice. UsageError for a system without a topology.
    """
    topology = system.joined()
    rows: dict[tuple[str, Group], list[int]] = defaultdict(list)
    for index, key in enumerate(zip(columns.word, columns.group, strict=True)):
        rows[key].append(index)
    time_us = np.full(len(columns), np.nan)
    names = [""] * len(columns)
    for (word, group), at in rows.items():
        time_us[at], chosen = collective_us(word, columns.nbytes[at], group, topology, algorithm)
        for index, name in zip(at, chosen, strict=True):
            names[index] = name
    return time_us, tuple(names)


def exchange_us(
    exchanges: deepep.Exchanges, kernels: Kernels, system: System, links: deepep.Fabric | None = None
) -> Floats:
    """Time of every dispatch or combine by DeepEP's kernels, or those of ``links``, in microseconds.

    ``notification_us`` comes before normal ones. UsageError for a system whose cluster is not known to run DeepEP.
    """
    priced = deepep.low_latency_us if kernels == "low_latency" else deepep.normal_us
    return np.atleast_1d(np.asarray(priced(exchanges, links or fabric(system)), dtype=np.float64))


def notification_us(exchanges: deepep.Exchanges, system: System, links: deepep.Fabric | None = None) -> Floats:
    """What DeepEP's normal kernels need between nodes to agree on counts, in microseconds. UsageError as there."""
    return np.atleast_1d(np.asarray(deepep.notify_us(exchanges, links or fabric(system)), dtype=np.float64))


def exchange_links(system: System, ranks: float) -> deepep.Fabric:
    """The links of a group of ``ranks``, and whose kernels were measured there; a group within a node is one node.

    UsageError where no measurement carries over, or the ranks do not fill nodes.
    """
    library = system.cluster.ep_library if system.cluster is not None else None
    links = fabric(system, library or DEEPEP)
    if ranks < links.ranks_per_node:
        return replace(links, ranks_per_node=int(ranks))
    if ranks % links.ranks_per_node:
        raise UsageError(f"{ranks:g} ranks do not fill whole nodes of {links.ranks_per_node}")
    return links


def fabric(system: System, library: str = DEEPEP) -> deepep.Fabric:
    """The links that a library's kernels use, DeepEP's unless named. UsageError where no measurement carries over.

    Where nobody published a device's count of units (GB300), that of the device which it is like counts.
    """
    topology, rates = system.joined(), KernelRates.of(system.device)
    if not _names(system, library) or rates is None or topology.ranks_per_node is None:
        raise UsageError(f"no DeepEP measurement applies to {system.cluster.name if system.cluster else 'this system'}")
    node, network = topology.tiers[:2]
    return deepep.Fabric(
        link_gb_s=node.link.rates.peak_gb_s,
        nic_gb_s=network.link.rates.peak_gb_s * network.cards / topology.ranks_per_node,
        ranks_per_node=topology.ranks_per_node,
        compute_units=int(rates.units),
        library=library,
    )


def _names(system: System, library: str) -> bool:
    return system.cluster is not None and system.cluster.ep_library == library


def _exchange(model: EPComm, system: System) -> deepep.Exchanges | None:
    """A router's exchange over whole nodes, by the normal kernels; None when it is not one."""
    phases: dict[str | None, deepep.Phase] = {"dispatch": "dispatch", "combine": "combine"}
    phase, topology = phases.get(model.phase), system.topology
    if phase is None or not model.ranks or not model.experts or not model.topk or topology is None:
        return None
    tokens = model.tokens if model.own_tokens is None else model.own_tokens
    per_node = topology.ranks_per_node
    # Its kernels are priced by a count of units
    if model.hidden is None or not _names(system, DEEPEP) or system.device.completed.compute_units is None:
        return None
    if per_node is None or model.stride != 1 or model.ranks % per_node:
        return None
    return deepep.Exchanges(
        phase=phase, tokens=float(tokens), hidden=float(model.hidden), topk=float(model.topk),
        experts=float(model.experts), nodes=float(model.ranks // per_node), sms=float(deepep.DEFAULT_SMS),
    )  # fmt: skip


def _forwarded_us(model: EPComm, topology: Topology) -> tuple[float, float] | None:
    """Time and bound of a router's exchange between nodes where no DeepEP measurement carries over: a token crosses the
    network once per distinct node, and is passed on there to the ranks that it goes to. None for any other.
    """
    per_node, row = topology.ranks_per_node, model.row_bytes
    if model.phase not in ("dispatch", "combine") or not model.ranks or not model.experts or not model.topk:
        return None
    if per_node is None or row is None:
        return None
    group = Group(ranks=model.ranks, stride=model.stride)
    topology, nodes = topology.beside_siblings(group), group.domains(per_node)
    if model.ranks % nodes:
        return None
    token = (model.tokens if model.own_tokens is None else model.own_tokens) * row
    ranks, places = (float(deepep.distinct(count, model.experts, model.topk)) for count in (model.ranks, nodes))
    sent = token * places * (nodes - 1) / nodes
    time_us = forwarded_us(token * ranks, sent, group, topology)
    if time_us is None:
        return None
    network = topology.crossings(group, "all_to_all")[-1]
    return time_us, sent / (network.peak_gb_s / network.members * GB_PER_S_IN_BYTES_PER_US)


def _message(model: PerfModel) -> tuple[str, float, Group] | None:
    """Word, full message and group of a collective; None when they were not recorded, or the kernel is custom."""
    if isinstance(model, EPComm):
        # An all-to-all in which the rows that travel are (p-1)/p of the message
        remote = model.wire_bytes() if model.remote_share != 1 else model.expected_wire_bytes() if model.ranks else None
        if remote is None or not model.ranks:
            return None
        whole = remote * model.ranks / (model.ranks - 1) if model.ranks > 1 else 0.0
        return "all_to_all", whole, Group(ranks=model.ranks, stride=model.stride)
    if type(model) is not Collective or model.word is None or not model.ranks or model.dtype is None:
        return None
    elements = model.elements_out if model.word == "all_gather" else model.elements_in
    return model.word, elements * model.dtype.width_bytes, Group(ranks=model.ranks, stride=model.stride)
