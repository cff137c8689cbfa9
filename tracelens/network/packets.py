"""Packets on a full mesh of ranks, round by round: links, NIC limits, round-robin turns.

In a round every link between two ranks carries packets in one direction, up to what it moves in one millisecond; every
rank sends and receives at most ``nic_bytes_per_round``. Sources take turns over their destinations. ``simulate`` plays
that fairly and times every link; ``seed_rules.simulate_seed`` plays the rules of the original simulator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import UsageError
from tracelens.network.traffic import Traffic


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRules:
    """The links of a full mesh and how packets are put on them. Times ms, rates bytes per ms.

    ``links`` half-duplex links join each pair of ranks. A link carries ``link_bytes_per_ms`` bytes in a round; between
    ranks of different nodes (of ``ranks_per_node`` ranks; None: one node) it is ``inter_bytes_per_ms``. A turn sends at
    most ``packets_per_turn`` packets of at most ``packet_bytes``; each takes ``packet_delay_ms`` to prepare.
    ``overlap`` 1 prepares and transfers one after the other; ``x`` makes both together take 1/x of their sum, but never
    less than the longer of the two.
    """

    links: int = 1
    link_bytes_per_ms: float = 100
    packet_bytes: int = 20
    packet_delay_ms: float = 1
    packets_per_turn: int = 5
    nic_bytes_per_round: float = 10_000
    round_delay_ms: float = 2
    initial_delay_ms: float = 0
    overlap: float = 1.0
    ranks_per_node: int | None = None
    inter_bytes_per_ms: float | None = None

    def __post_init__(self) -> None:
        for name in ("links", "packet_bytes", "packets_per_turn", "link_bytes_per_ms"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, got {getattr(self, name)}")
        for name in ("packet_delay_ms", "round_delay_ms", "initial_delay_ms"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not self.overlap >= 1:
            raise UsageError(f"overlap must be at least 1 (nothing overlaps), got {self.overlap}")
        if self.inter_bytes_per_ms is not None and not self.inter_bytes_per_ms > 0:
            raise UsageError(f"inter_bytes_per_ms must be above 0, got {self.inter_bytes_per_ms}")
        if not self.packet_bytes <= self.nic_bytes_per_round:
            raise UsageError(
                f"a packet of {self.packet_bytes} bytes passes no NIC of {self.nic_bytes_per_round:g} bytes per round"
            )
        slowest = min(self.link_bytes_per_ms, self.inter_bytes_per_ms or math.inf)
        if not self.packet_bytes <= slowest:
            raise UsageError(
                f"a packet of {self.packet_bytes} bytes never passes a link of {slowest:g} bytes per round (1 ms)"
            )

    def link_rates(self, ranks: int) -> NDArray[np.float64]:
        """Bytes per ms of a link from rank to rank."""
        rates = np.full((ranks, ranks), float(self.link_bytes_per_ms))
        if self.ranks_per_node is None or self.inter_bytes_per_ms is None:
            return rates
        if self.ranks_per_node < 1 or ranks % self.ranks_per_node:
            raise UsageError(f"{ranks} ranks do not fill nodes of {self.ranks_per_node} ranks")
        node = np.arange(ranks) // self.ranks_per_node
        rates[node[:, None] != node[None, :]] = self.inter_bytes_per_ms
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketTimes:
    """What a packet simulation found. ``moved_bytes`` leaves local traffic out."""

    time_ms: float
    rounds: int
    packets: int
    moved_bytes: float
    local_bytes: float


def even_time_ms(load_bytes: float, ranks: int, rules: MeshRules) -> float:
    """Closed form of an even load; ``load_bytes`` is what one rank sends to all others together.

    Round time = round delay + floor(rate / packet) * (packet delay + packet / rate); rounds = load * ranks / (links *
    pairs * rate); total = initial delay + product. Exact when packets divide the link's bytes per round, those of a
    pair's links divide twice the bytes of one direction, the NIC does not bind and nothing overlaps; otherwise a lower
    bound with ``overlap`` 1 (see ``is_even_form_exact``).
    """
    pairs = ranks * (ranks - 1) / 2
    rate, packet = rules.link_bytes_per_ms, rules.packet_bytes
    in_round = math.floor(rate / packet) * (rules.packet_delay_ms + packet / rate)
    rounds = load_bytes * ranks / (rules.links * pairs * rate) if pairs else 0.0
    return rules.initial_delay_ms + (rules.round_delay_ms + in_round) * rounds


def is_even_form_exact(load_bytes: float, ranks: int, rules: MeshRules) -> bool:
    """Whether ``even_time_ms`` is what a simulation of an even load gives."""
    if ranks < 2:
        return True
    pair_bytes = load_bytes / (ranks - 1)
    capacity = rules.links * rules.link_bytes_per_ms
    return (
        rules.link_bytes_per_ms % rules.packet_bytes == 0
        and pair_bytes % capacity == 0
        and rules.nic_bytes_per_round >= capacity * (ranks - 1)
        and rules.overlap == 1
        and (rules.inter_bytes_per_ms is None or rules.ranks_per_node is None)
    )


def simulate(traffic: Traffic, rules: MeshRules) -> PacketTimes:
    """Plays all rounds; the time is the sum of round delays and of each round's slowest link. Bytes are rounded up.

    In step s of a pass every source i turns to destination i+s, so that all sources advance together and no rank is
    served first; every second round goes through the steps backwards, which gives the other direction of a half-duplex
    link its turn. Send and receive limits count apart.
    """
    mesh = _Mesh(traffic, rules)
    times: list[float] = []
    rounds = 0
    steady: list[_Round] = []
    while mesh.rest.any():
        times += (repeated := mesh.skip(steady)).times_ms
        rounds += repeated.rounds
        played = mesh.play(backwards=rounds % 2 == 1)
        times.append(played.time_ms)
        rounds += 1
        steady = [*steady[-1:], played]
    return PacketTimes(
        time_ms=rules.initial_delay_ms + math.fsum(times),
        rounds=rounds,
        packets=mesh.packets,
        moved_bytes=mesh.moved_bytes,
        local_bytes=traffic.local_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Round:
    """One round: what each pair moved, and whether every pair that had anything had more than it could move."""

    time_ms: float
    packets: int
    moved: NDArray[np.float64]
    active: NDArray[np.bool_]
    is_saturated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Repeated:
    rounds: int = 0
    times_ms: tuple[float, ...] = ()


class _Mesh:
    """What is left to send, flat by (source, destination), and the rounds that send it."""

    def __init__(self, traffic: Traffic, rules: MeshRules) -> None:
        n = traffic.ranks
        self.ranks, self.rules = n, rules
        self.rest = np.ceil(traffic.remote).ravel()
        self.rate = rules.link_rates(n).ravel()
        self.capacity = rules.links * self.rate
        self.moved_bytes = float(self.rest.sum())
        self.packets = 0
        source = np.arange(n)
        self.steps = [(source, (source + step) % n) for step in range(1, n) if 2 * step != n]
        if n % 2 == 0 and n > 1:
            # Step n/2 would put both directions of a link in one step.
            low, high = source[: n // 2], source[n // 2 :]
            self.steps[n // 2 - 1 : n // 2 - 1] = [(low, high), (high, low)]
        half = len(self.steps) // 2
        self.directions = [
            tuple(np.concatenate(part) for part in zip(*steps, strict=True))
            for steps in (self.steps[:half], self.steps[half:])
            if steps
        ]

    def play(self, *, backwards: bool) -> _Round:
        """One round. Where no NIC limit can bind, all turns of one direction are taken together: pairs do not meet."""
        n, rules = self.ranks, self.rules
        before = self.rest.copy()
        most = np.minimum(before, self.capacity).reshape(n, n)
        is_bound = max(most.sum(axis=0).max(), most.sum(axis=1).max()) > rules.nic_bytes_per_round
        steps = self.steps if is_bound else self.directions
        steps = steps[::-1] if backwards else steps
        self.used = np.zeros((rules.links, n * n))
        self.count = np.zeros((rules.links, n * n))
        self.sent, self.received = np.zeros(n), np.zeros(n)
        moving = True
        while moving:
            moving = False
            for source, target in steps:
                # most turns of a bound round are refused: asking first takes a fifth of a turn's time
                if is_bound and not self._is_open(source, target):
                    continue
                moving |= self._turn(source, target, is_bound=is_bound)
        packets = int(self.count.sum())
        self.packets += packets
        prepare, transfer = self.count * rules.packet_delay_ms, self.used / self.rate
        both = np.maximum(np.maximum(prepare, transfer), (prepare + transfer) / rules.overlap)
        active = before > 0
        return _Round(
            time_ms=rules.round_delay_ms + float(both.max()),
            packets=packets,
            moved=before - self.rest,
            active=active,
            is_saturated=bool((before >= self.capacity + rules.packet_bytes)[active].all()),
        )

    def skip(self, last: list[_Round]) -> _Repeated:
        """Takes off at once the rounds that would repeat the last two, both directions of every link once.

        A round depends on what is left only where a pair could run out: as long as none could, it repeats.
        """
        if len(last) < 2 or not all(r.is_saturated for r in last):
            return _Repeated()
        active = self.rest > 0
        if not all(np.array_equal(r.active, active) for r in last):
            return _Repeated()
        both = last[0].moved + last[1].moved
        moving = both > 0
        spare = self.rest - self.capacity - self.rules.packet_bytes
        if (spare[active] < 0).any():
            return _Repeated()
        times = int((spare[moving] // both[moving]).min())
        self.rest -= times * both
        self.packets += times * (last[0].packets + last[1].packets)
        return _Repeated(rounds=2 * times, times_ms=(times * last[0].time_ms, times * last[1].time_ms))

    def _is_open(self, source: NDArray[np.intp], target: NDArray[np.intp]) -> bool:
        """Whether a NIC limit lets any of these sources send a packet."""
        needed = np.minimum(self.rest[source * self.ranks + target], self.rules.packet_bytes)
        room = self.rules.nic_bytes_per_round - np.maximum(self.sent[source], self.received[target])
        return bool(((needed > 0) & (needed <= room)).any())

    def _turn(self, source: NDArray[np.intp], target: NDArray[np.intp], *, is_bound: bool) -> bool:
        """Every source sends to its target at most the packets of one turn; whether anything moved.

        Full packets go to the lowest link with room, then the next; the last, smaller one to the lowest it fits.
        """
        n, rules, size = self.ranks, self.rules, self.rules.packet_bytes
        pair, back = source * n + target, target * n + source
        rest, rate = self.rest[pair], self.rate[pair]
        whole = np.floor(rest / size)
        wanted = np.minimum(whole, rules.packets_per_turn)
        nic = None
        if is_bound:
            nic = rules.nic_bytes_per_round - np.maximum(self.sent[source], self.received[target])
            wanted = np.minimum(wanted, np.floor(nic / size))
        packets = np.zeros(len(pair))
        is_mine = self.count[:, back] == 0
        for link in range(rules.links):
            used = self.used[link, pair]
            taken = np.minimum(wanted - packets, np.floor((rate - used) / size)) * is_mine[link]
            self.used[link, pair] = used + taken * size
            self.count[link, pair] += taken
            packets += taken
        moved = packets * size
        tail = rest - whole * size
        ends = (tail > 0) & (packets == whole) & (packets < rules.packets_per_turn)
        if nic is not None:
            ends &= nic - moved >= tail
        if ends.any():
            for link in range(rules.links):
                fits = ends & is_mine[link] & (self.used[link, pair] + tail <= rate)
                self.used[link, pair] += tail * fits
                self.count[link, pair] += fits
                moved += tail * fits
                ends &= ~fits
        if not moved.any():
            return False
        self.rest[pair] = rest - moved
        if is_bound:
            self.sent[source] += moved
            self.received[target] += moved
        return True
