"""How ranks are joined: groups of ranks, links in tiers, and what a group finds between its members."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US


class Group(Record, frozen=True, kw_only=True):
    """``ranks`` ranks, ``stride`` apart in the numbering that fills one node after the other.

    With tensor-parallel ranks innermost, an expert- or data-parallel group has stride TP, so that of a node with 8
    ranks it holds 8 / TP. UsageError below 1.
    """

    ranks: int
    stride: int = 1

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("stride", self.stride)):
            if value < 1:
                raise UsageError(f"a group's {name} must be at least 1, not {value}")

    def within(self, domain: int) -> int:
        """How many of the group's ranks at most stand in one domain of ``domain`` consecutive ranks; at least 1."""
        return min(self.ranks, -(-domain // self.stride))

    def domains(self, domain: int) -> int:
        """How many domains of ``domain`` consecutive ranks the group touches."""
        return self.ranks if self.stride >= domain else (self.ranks - 1) * self.stride // domain + 1


#: Bytes, or microseconds: one number, or an array taken element by element.
Values: TypeAlias = float | npt.NDArray[np.float64]
Shape: TypeAlias = Literal["switch", "mesh"]
#: What a library's transport fills before the next hop starts: NCCL_BUFFSIZE, 4 MiB unless set (NCCL's user guide).
PIPELINE_CHUNK_BYTES = 4 * 1024 * 1024


class Protocol(Record, frozen=True, kw_only=True):
    """How a library sends over the links of one tier: the trade of latency against rate.

    ``base_us`` is paid once, at the outermost tier a collective crosses; ``hop_us`` for each step of a ring over the
    tier, ``tree_hop_us`` of a tree. ``rate_share`` is the share of the link's rate that carries data: LL sends a flag
    with every 4 bytes of data, LL128 8 bytes in 128.
    """

    name: str
    base_us: float = 0.0
    hop_us: float
    tree_hop_us: float
    rate_share: float


class Rates(Record, frozen=True, kw_only=True):
    """GB/s in one direction: of one rank (within a node) or of one network card (between nodes).

    ``peak_gb_s`` is the data sheet's. The others are what collectives reach, as bus bandwidth of large messages; None
    where nobody measured it. ``in_switch_gb_s`` is an all-reduce's message over its time where the switch adds.
    ``alone_gb_s`` holds between nodes where a group has one rank on each.
    """

    peak_gb_s: float
    all_gather_gb_s: float | None = None
    all_reduce_gb_s: float | None = None
    all_to_all_gb_s: float | None = None
    in_switch_gb_s: float | None = None
    alone_gb_s: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value <= self.peak_gb_s:
                raise UsageError(f"{field.name} must be above 0 and at most the peak {self.peak_gb_s:g}, not {value:g}")

    def of(self, word: str) -> float:
        """What ``word`` (``"all_to_all"``) reaches; else what an all-gather does; else the peak."""
        known = {"all_reduce": self.all_reduce_gb_s, "all_to_all": self.all_to_all_gb_s}
        return known.get(word) or self.all_gather_gb_s or self.peak_gb_s


class TierLink(Record, frozen=True, kw_only=True):
    """The links of one tier: their rates, the protocols over them, and overheads of an all-to-all.

    ``peer_us`` is added for each peer that an all-to-all sends to over this tier, ``sync_us`` once; 0 where unknown:
    not charged. ``in_switch_us`` is the latency of a reduction in the switch.
    """

    rates: Rates
    protocols: tuple[Protocol, ...]
    peer_us: float = 0.0
    sync_us: float = 0.0
    in_switch_us: float = 0.0

    def protocol(self, name: str) -> Protocol:
        """UsageError when the link has none of that name."""
        for protocol in self.protocols:
            if protocol.name == name:
                return protocol
        raise UsageError.unknown("protocol", name, [protocol.name for protocol in self.protocols])


class Tier(Record, frozen=True, kw_only=True):
    """Domains of ``ranks`` consecutive ranks that ``link`` joins; None: any number of ranks.

    ``shape`` of the innermost tier: on a ``"switch"`` a rank sends at its whole rate to any other; in a ``"mesh"``
    every pair has its own wire, so of a rank's rate a group of m out of ``ranks`` uses (m-1)/(ranks-1). Further out,
    ``cards`` is how many network cards each domain of the tier below has.
    """

    ranks: int | None
    link: TierLink
    shape: Shape = "switch"
    cards: int = 1


class Crossing(Record, frozen=True, kw_only=True):
    """What a group finds at one tier.

    ``tier`` counts from the innermost, 0. A domain of the tier below (tier 0: a rank) holds ``members`` of the group,
    and the tier joins ``fanout`` such domains. A ring over the whole group crosses it ``hops`` times. ``domain_gb_s``
    is what leaves one domain of the tier below in one direction, ``peak_gb_s`` by the data sheet.
    """

    tier: int
    link: TierLink
    members: int
    fanout: int
    hops: int
    domain_gb_s: float
    peak_gb_s: float

    @property
    def peers(self) -> int:
        """Ranks that one rank reaches over this tier and not over one further in."""
        return self.members * (self.fanout - 1)

    def domain_bytes_per_us(self, protocol: str) -> float:
        """Data that leaves one domain of the tier below."""
        return self.domain_gb_s * self.link.protocol(protocol).rate_share * GB_PER_S_IN_BYTES_PER_US

    def rank_bytes_per_us(self, protocol: str) -> float:
        """A member's share of ``domain_bytes_per_us``."""
        return self.domain_bytes_per_us(protocol) / self.members


class Topology(Record, frozen=True, kw_only=True):
    """Tiers of links, innermost first: the ranks of a node, then nodes.

    ``algorithms`` are what the cluster's library chooses from when nobody names one (``"all_reduce/tree"`` ...).
    ``concurrent_groups`` groups use the network cards at once. ``chunk_bytes`` is how much of a pipelined exchange
    passes the inner links before the outer ones start. UsageError when tiers do not nest.
    """

    tiers: tuple[Tier, ...]
    algorithms: tuple[str, ...] = ()
    concurrent_groups: int = 1
    chunk_bytes: float = PIPELINE_CHUNK_BYTES

    def __post_init__(self) -> None:
        if not self.tiers or self.concurrent_groups < 1:
            raise UsageError("a topology needs at least one tier and at least one group")
        names = {tuple(protocol.name for protocol in tier.link.protocols) for tier in self.tiers}
        if len(names) > 1 or not all(names):
            raise UsageError("all tiers of a topology must have the same protocols, at least one")
        for inner, outer in zip(self.tiers, self.tiers[1:], strict=False):
            if inner.ranks is None or (outer.ranks is not None and outer.ranks % inner.ranks):
                raise UsageError(f"a tier of {outer.ranks} ranks cannot hold domains of {inner.ranks}")
        if self.tiers[0].shape == "mesh" and (self.tiers[0].ranks or 0) < 2:
            raise UsageError("a mesh needs at least two ranks")

    @property
    def protocols(self) -> tuple[str, ...]:
        """Names of the protocols, the same on every tier."""
        return tuple(protocol.name for protocol in self.tiers[0].link.protocols)

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks that the innermost links join; None without a limit."""
        return self.tiers[0].ranks

    def shared_by(self, groups: int) -> Topology:
        """The same while ``groups`` groups communicate at once and share the network cards."""
        return dataclasses.replace(self, concurrent_groups=groups)

    def beside_siblings(self, group: Group) -> Topology:
        """The same while the groups of the ranks between ``group``'s do what it does, as in a training job."""
        return self.shared_by(max(1, min(group.stride, self.ranks_per_node or 1)))

    def crossings(self, group: Group, word: str = "all_gather") -> tuple[Crossing, ...]:
        """The tiers between members of ``group``, innermost first, at the rates of ``word``; none for a group of one.

        UsageError when the group has more ranks than the topology.
        """
        total = self.tiers[-1].ranks
        if total is not None and (group.ranks - 1) * group.stride >= total:
            raise UsageError(f"{group.ranks} ranks {group.stride} apart do not fit a topology of {total} ranks")
        return tuple(self._crossings(group, word))

    def _crossings(self, group: Group, word: str) -> Iterator[Crossing]:
        below, parts = 1, group.ranks
        for index, tier in enumerate(self.tiers):
            inside = group.ranks if tier.ranks is None else group.within(tier.ranks)
            domains = 1 if tier.ranks is None else group.domains(tier.ranks)
            if inside > below:
                rates = tier.link.rates
                share = self._share(index, below, inside)
                reached = rates.alone_gb_s if index and below == 1 else None
                yield Crossing(
                    tier=index,
                    link=tier.link,
                    members=below,
                    fanout=-(-inside // below),
                    hops=parts - domains,
                    domain_gb_s=share * (reached or rates.of(word)),
                    peak_gb_s=share * rates.peak_gb_s,
                )
            below, parts = inside, domains

    def _share(self, index: int, below: int, inside: int) -> float:
        """How many unit rates (a rank's, a network card's) one domain of the tier below sends at."""
        tier = self.tiers[index]
        if index == 0:
            return (inside - 1) / (tier.ranks - 1) if tier.shape == "mesh" and tier.ranks is not None else 1.0
        own = max(1.0, tier.cards * below / (self.tiers[index - 1].ranks or 1))
        return min(own, tier.cards / self.concurrent_groups)
