"""Packets on a full mesh of ranks, round by round: links, NIC limits, round-robin turns.

In a round every link between two ranks carries packets in one direction, up to what it moves in one millisecond; every
rank sends and receives at most ``nic_bytes_per_round``. Sources take turns over their destinations. ``simulate`` plays
that fairly and times every link; ``laboratory.original_rules`` plays the rules of the original simulator.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import UsageError
from tracelens.files.compiled import address, library
from tracelens.predict.network.traffic import Floats, Traffic
from tracelens.types.records import Record

_SOURCE, _LAYOUT = Path(__file__).with_name("packets.c"), 1


class MeshRules(Record, frozen=True, kw_only=True):
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
            if not 0 < getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        for name in ("packet_delay_ms", "round_delay_ms", "initial_delay_ms"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UsageError(f"{name} must be 0 or more and finite, got {getattr(self, name)}")
        if not self.overlap >= 1:
            raise UsageError(f"overlap must be at least 1 (nothing overlaps), got {self.overlap}")
        if self.inter_bytes_per_ms is not None and not 0 < self.inter_bytes_per_ms < math.inf:
            raise UsageError(f"inter_bytes_per_ms must be above 0 and finite, got {self.inter_bytes_per_ms}")
        if not self.packet_bytes <= self.nic_bytes_per_round:
            raise UsageError(
                f"packet size {self.packet_bytes} bytes exceeds the NIC limit of {self.nic_bytes_per_round:g} bytes "
                "per round"
            )
        slowest = min(self.link_bytes_per_ms, self.inter_bytes_per_ms or math.inf)
        if not self.packet_bytes <= slowest:
            raise UsageError(
                f"packet size {self.packet_bytes} bytes exceeds the link limit of {slowest:g} bytes per round (1 ms)"
            )

    def link_rates(self, ranks: int) -> NDArray[np.float64]:
        """Bytes per ms of a link from rank to rank."""
        rates = np.full((ranks, ranks), float(self.link_bytes_per_ms))
        if self.ranks_per_node is None or self.inter_bytes_per_ms is None:
            return rates
        if self.ranks_per_node < 1 or ranks % self.ranks_per_node:
            raise UsageError(f"{ranks} ranks do not fill whole nodes of {self.ranks_per_node} ranks")
        node = np.arange(ranks) // self.ranks_per_node
        rates[node[:, None] != node[None, :]] = self.inter_bytes_per_ms
        return rates

    def busy_ms(self, packets: Floats, nbytes: Floats, rate: Floats) -> Floats:
        """How long links of ``rate`` prepare and transfer so many packets of so many bytes in all."""
        prepare, transfer = packets * self.packet_delay_ms, nbytes / rate
        return np.maximum(np.maximum(prepare, transfer), (prepare + transfer) / self.overlap)


class PacketTimes(Record, frozen=True, kw_only=True):
    """What a packet simulation found. ``moved_bytes`` leaves local traffic out."""

    time_ms: float
    rounds: int
    packets: int
    moved_bytes: float
    local_bytes: float


def simulate(traffic: Traffic, rules: MeshRules) -> PacketTimes:
    """Plays all rounds; the time is the sum of round delays and of each round's slowest link. Bytes are rounded up.

    In step s of a pass every source i turns to destination i+s, so that all sources advance together and no rank is
    served first; every second round goes through the steps backwards, which gives the other direction of a half-duplex
    link its turn. Send and receive limits count apart.
    """
    mesh = _Mesh(traffic, rules)
    links_ms: list[float] = []
    rounds = 0
    last: list[_Round] = []
    while mesh.is_bound():
        if times := mesh.skip(last):
            links_ms += [times * each.links_ms for each in last]
            rounds += 2 * times
        last = [*last[-1:], mesh.play(backwards=rounds % 2 == 1)]
        links_ms.append(last[-1].links_ms)
        rounds += 1
    free = _FreePairs(mesh)
    links_ms.append(free.play(backwards=rounds % 2 == 1))
    rounds += free.rounds
    return PacketTimes(
        time_ms=rules.initial_delay_ms + rounds * rules.round_delay_ms + math.fsum(links_ms),
        rounds=rounds,
        packets=mesh.packets + free.packets,
        moved_bytes=mesh.moved_bytes,
        local_bytes=traffic.local_bytes,
    )


def even_load(bytes_per_rank: float, ranks: int, rules: MeshRules, *, printed: bool) -> dict[str, float]:
    """Figures of the closed form for a load that is the same between all ranks: ``formula_rounds`` of
    ``formula_round_ms`` (docs/routing.md). ``bytes_per_rank``: what one rank sends to all others. Nothing for one rank,
    and for links of different rates.

    ``formula_is_exact``: packets fill a link, links divide a pair's load, no NIC limit binds, nothing overlaps; else
    the rounds are a lower bound. ``printed``: with ``printed_ms`` and ``printed_round_ms``, by the form that the
    original's text prints beside it, which its own simulation contradicts.
    """
    if ranks < 2 or (rules.inter_bytes_per_ms is not None and rules.ranks_per_node is not None):
        return {}
    rate, size, pairs = rules.link_bytes_per_ms, rules.packet_bytes, ranks * (ranks - 1) // 2
    full = rate // size
    packet_ms = rules.packet_delay_ms + size / rate
    round_ms = rules.round_delay_ms + full * packet_ms
    rounds = bytes_per_rank * ranks / (rules.links * pairs * rate)
    in_text = (rules.initial_delay_ms + rules.round_delay_ms + full) * packet_ms
    fills = rate % size == 0 and (bytes_per_rank / (ranks - 1)) % (rules.links * rate) == 0
    return {
        "formula_ms": rules.initial_delay_ms + round_ms * rounds, "formula_rounds": rounds,
        "formula_round_ms": round_ms,
        "formula_is_exact": (
            fills and rules.nic_bytes_per_round >= rules.links * (ranks - 1) * rate and rules.overlap == 1
        ),
        **({"printed_round_ms": in_text, "printed_ms": in_text * rounds} if printed else {}),
    }  # fmt: skip


#: More rounds than anyone reads; each is lines of a log.
_MOST_LOGGED = 100_000


def logged(traffic: Traffic, rules: MeshRules) -> tuple[PacketTimes, str]:
    """As ``simulate``, every round played and written down. UsageError for more rounds than anyone reads.

    A round's lines: its slowest link, its time, per pair of ranks ``[packets, bytes]`` of each link that sent, per rank
    ``[sent, received]`` bytes, and the time so far. Idle links and pairs are left out.
    """
    times = simulate(traffic, rules)
    if times.rounds > _MOST_LOGGED:
        raise UsageError(f"a log of {times.rounds:,} rounds is too long: at most {_MOST_LOGGED:,}")
    mesh = _Mesh(traffic, rules)
    lines = ["NODE LOAD", _LINE, str(_by_pair(mesh, mesh.rest[:, None, :], lambda at: int(at[0])))]
    time, rounds = rules.initial_delay_ms, 0
    while mesh.rest.any():
        played = mesh.play(backwards=rounds % 2 == 1)
        rounds += 1
        time += rules.round_delay_ms + played.links_ms
        sent, received = (
            np.bincount(ends, weights, mesh.ranks).astype(int)
            for ends, weights in zip(mesh.by_step, [np.append(played.moved[0], played.moved[1, ::-1])] * 2, strict=True)
        )
        packets, nbytes = played.count, played.used
        way, link, pair = np.unravel_index(int(rules.busy_ms(packets, nbytes, mesh.rate).argmax()), packets.shape)
        source, target = mesh.ends[way, pair], mesh.ends[1 - way, pair]
        both = np.stack((packets, nbytes), axis=-1)
        slowest = both[way, link, pair]
        lines += [
            _LINE,
            f"ROUND {rounds}",
            f"SLOWEST LINK: {source} -> {target}, link {link}, {slowest[0]:.0f} packets, {slowest[1]:.0f} bytes",
            f"Round time: {played.links_ms} ms",
            f"ACTIVE LINKS: {_by_pair(mesh, both, lambda link: [list(map(int, used)) for used in link if used[0]])}",
            f"NIC MAP: {dict(enumerate([list(each) for each in zip(sent.tolist(), received.tolist(), strict=True)]))}",
            f"COMM TIME: {time} ms",
        ]
    return times, "\n".join([*lines, _LINE, f"ROUND {rounds + 1}", "No more data to transfer, exiting"])


_LINE = "-" * 15


def _by_pair(mesh: _Mesh, values: Any, shown: Callable[[Any], Any]) -> dict[int, dict[int, Any]]:
    """What ``shown`` makes of ``values[way, :, pair]``, by source and destination; nothing where that is empty."""
    found: dict[int, dict[int, Any]] = {}
    for way in (0, 1):
        for pair in range(len(mesh.rate)):
            if said := shown(values[way, :, pair]):
                found.setdefault(int(mesh.ends[way, pair]), {})[int(mesh.ends[1 - way, pair])] = said
    return {source: dict(sorted(found[source].items())) for source in sorted(found)}


class _Round(Record, frozen=True, kw_only=True):
    """One round of the whole mesh: its slowest link's time, its packets, and what each pair moved.

    ``used`` bytes and ``count`` packets of each link: ``[2, links, pairs]``.
    """

    links_ms: float
    packets: int
    moved: Floats
    used: Floats
    count: Floats


class _CompiledMesh(ctypes.Structure):
    """``Mesh`` of packets.c."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("pairs", "links")),
        *((name, ctypes.c_double) for name in ("packet_bytes", "packets_per_turn")),
        *((name, ctypes.c_void_p) for name in ("ends", "rate", "rest", "used", "packets", "to_send", "to_receive")),
    )


class _Mesh:
    """What is left to send, ``rest`` ``[2, pairs]``, and the rounds in which a NIC's limit may bind.

    Row 0 is each pair's early direction: from source i to i+s, step by step, s from 1 to half of the ranks. Row 1 is
    the way back, of step n-s. Of step n/2, sources i < n/2 have the early direction. ``ends``: which rank sends.
    """

    def __init__(self, traffic: Traffic, rules: MeshRules) -> None:
        n = traffic.ranks
        self.ranks, self.rules = n, rules
        pairs = n * (n - 1) // 2
        step, source = np.divmod(np.arange(pairs, dtype=np.int64), n)
        self.ends = np.stack((source, (source + step + 1) % n))
        self.first_of_step = range(0, pairs, n)
        #: Who sends and who receives, by steps from 1 to n-1.
        self.by_step = [np.append(self.ends[way], self.ends[1 - way, ::-1]) for way in (0, 1)]
        self.rest = np.ceil(traffic.wire_bytes[self.ends, self.ends[::-1]].astype(np.float64))
        self.rate = rules.link_rates(n)[self.ends[0], self.ends[1]]
        self.moved_bytes = float(self.rest.sum())
        self.packets = 0

    def is_bound(self) -> bool:
        """Whether a rank could send or receive more in a round than its NIC lets through."""
        most = np.minimum(self.rest, self.rules.links * self.rate)
        most = np.append(most[0], most[1, ::-1])
        sent, received = (np.bincount(ranks, most, self.ranks) for ranks in self.by_step)
        return bool(max(sent.max(), received.max()) > self.rules.nic_bytes_per_round)

    def play(self, *, backwards: bool) -> _Round:
        """One round: passes over all pairs until none can send any more. ``backwards``: the late direction begins.

        Steps rise in the first half of a pass and fall in the second.
        """
        before = self.rest.copy()
        used, count = np.zeros((2, 2, self.rules.links, len(self.rate)))
        room = np.full((2, self.ranks), float(self.rules.nic_bytes_per_round))
        if not self._play_compiled(used, count, room, first_way=int(backwards)):
            self._play_steps(used, count, room, first_way=int(backwards))
        packets = int(count.sum())
        self.packets += packets
        busy = self.rules.busy_ms(count, used, self.rate)
        return _Round(links_ms=float(busy.max()), packets=packets, moved=before - self.rest, used=used, count=count)

    def skip(self, last: list[_Round]) -> int:
        """Takes off at once the rounds that would repeat the last two, a link's directions once each; how often."""
        if len(last) < 2:
            return 0
        first, second = last
        moved = first.moved + second.moved
        times = int(_repetitions(self.rest, moved, self.rules).min())
        self.rest -= times * moved
        self.packets += times * (first.packets + second.packets)
        return times

    def _play_compiled(self, used: Floats, count: Floats, room: Floats, *, first_way: int) -> bool:
        """False, and nothing is played, where ``packets.c`` was not compiled, or is not wanted."""
        found = library(_SOURCE, _LAYOUT)
        if found is None:
            return False
        arrays = (self.ends, self.rate, self.rest, used, count, *room)
        mesh = _CompiledMesh(
            len(self.rate),
            self.rules.links,
            self.rules.packet_bytes,
            self.rules.packets_per_turn,
            *map(address, arrays),
        )
        found.tracelens_round(ctypes.byref(mesh), ctypes.c_int64(first_way))
        return True

    def _play_steps(self, used: Floats, count: Floats, room: Floats, *, first_way: int) -> None:
        size = self.rules.packet_bytes
        moving = True
        while moving:
            moving = False
            for way in (first_way, 1 - first_way):
                rest = self.rest[way]
                # what a NIC refuses once it refuses for the rest of the round
                fitting = np.minimum(room[0, self.ends[way]], room[1, self.ends[1 - way]])
                is_open = (rest > 0) & (np.minimum(rest, size) <= fitting)
                if not is_open.any():
                    continue
                is_mine = is_open & (count[1 - way] == 0)
                turn = _Turn(rest, self.rate, used[way], count[way], is_mine=is_mine, rules=self.rules)
                self._let_through(turn, way, room, rising=way == first_way)
                moving |= turn.take()

    def _let_through(self, turn: _Turn, way: int, room: Floats, *, rising: bool) -> None:
        """Step by step, leaves of the turns what the NICs have room for."""
        size, (to_send, to_receive) = self.rules.packet_bytes, room
        sources, targets = self.ends[way], self.ends[1 - way]
        least = turn.tail.min(where=turn.tail > 0, initial=size) if turn.has_tail else size
        wants = turn.packets + turn.tail if turn.has_tail else turn.packets
        steps = np.flatnonzero(np.logical_or.reduceat(wants, self.first_of_step)).tolist()
        for step in steps if rising else steps[::-1]:
            part = slice(step * self.ranks, (step + 1) * self.ranks)
            if to_send.max() < least:
                beyond = slice(part.start, None) if rising else slice(part.stop)
                turn.packets[beyond] = turn.tail[beyond] = 0
                return
            wanted, source, target = turn.packets[part], sources[part], targets[part]
            fitting = np.minimum(to_send[source], to_receive[target])
            sent = np.minimum(wanted, np.floor(fitting / size))
            moved = sent * size
            if turn.has_tail:
                turn.tail[part] *= (sent == wanted) & (fitting - moved >= turn.tail[part])
                moved += turn.tail[part]
            turn.packets[part] = sent
            to_send[source] -= moved
            to_receive[target] -= moved


class _FreePairs:
    """What is left once no NIC limit can bind: pairs do not meet any more, and each runs through its rounds by itself.

    Pairs and directions are those of the mesh.
    """

    def __init__(self, mesh: _Mesh) -> None:
        self.rules, self.rest, self.rate = mesh.rules, mesh.rest, mesh.rate
        self.packets = self.rounds = 0

    def play(self, *, backwards: bool) -> float:
        """All rounds; the sum of their slowest links' times. ``backwards``: the late direction begins.

        A pair repeats two rounds, each direction's turn to be first, until one of the directions is about to run out.
        """
        spans = _Spans()
        at = np.zeros(len(self.rate), np.int64)
        last: tuple[Floats, Floats, Floats] | None = None
        while (left := self.rest.any(axis=0)).any():
            self.rest, self.rate, at = self.rest[:, left], self.rate[left], at[left]
            moved, count, busy = self._round(backwards=backwards)
            spans.add(at, np.ones_like(at), busy)
            at = at + 1
            self.packets += int(count.sum())
            if last is not None:
                before, counted, was_busy = (each[..., left] for each in last)
                times = _repetitions(self.rest, before + moved, self.rules).min(axis=0).astype(np.int64)
                self.rest -= times * (before + moved)
                self.packets += int((times * (counted + count)).sum())
                spans.add(at, times, was_busy)
                spans.add(at + 1, times, busy)
                at = at + 2 * times
            self.rounds = max(self.rounds, int(at.max()))
            last = moved, count, busy
            backwards = not backwards
        return spans.total()

    def _round(self, *, backwards: bool) -> tuple[Floats, Floats, Floats]:
        """One round of every pair: bytes moved in each direction, packets, the slowest link's time."""
        before = self.rest.copy()
        used, count = (np.zeros((2, self.rules.links, len(self.rate))) for _ in range(2))
        moving = True
        while moving:
            moving = False
            for way in (1, 0) if backwards else (0, 1):
                turn = _Turn(
                    self.rest[way], self.rate, used[way], count[way], is_mine=count[1 - way] == 0, rules=self.rules
                )
                moving |= turn.take()
        busy = self.rules.busy_ms(count, used, self.rate).max(axis=(0, 1))
        return before - self.rest, count.sum(axis=(0, 1)), busy


class _Turn:
    """One turn of many pairs: full ``packets`` and then a smaller last one of ``tail`` bytes, as far as links go.

    Full packets go to the lowest link with room, then the next; the last one to the lowest that it fits. Of links
    ``[links, ...]``: bytes ``used`` and packets ``count`` of this direction, and whether it may send on them.
    """

    def __init__(
        self, rest: Floats, rate: Floats, used: Floats, count: Floats, *, is_mine: NDArray[np.bool_], rules: MeshRules
    ) -> None:
        self.rest, self.rate, self.used, self.count = rest, rate, used, count
        self.is_mine, self.rules = is_mine, rules
        whole = np.floor(rest / rules.packet_bytes)
        free = np.floor((rate - used) / rules.packet_bytes) * is_mine
        free = free[0] if len(free) == 1 else free.sum(axis=0)
        self.packets: Floats = np.minimum(np.minimum(whole, rules.packets_per_turn), free)
        tail = rest - whole * rules.packet_bytes
        self.tail: Floats = tail * ((self.packets == whole) & (whole < rules.packets_per_turn))
        self.has_tail = bool(self.tail.any())
        if self.has_tail:
            placed = used + self._placed() * rules.packet_bytes
            self.tail *= (is_mine & (placed + self.tail <= rate)).any(axis=0)

    def take(self) -> bool:
        """Sends ``packets`` and ``tail``; whether there were any."""
        placed = self._placed()
        self.used += placed * self.rules.packet_bytes
        self.count += placed
        moved = self.packets * self.rules.packet_bytes
        if self.has_tail:
            moved += self.tail
            left = self.tail.copy()
            for link in range(self.rules.links):
                fits = (left > 0) & self.is_mine[link] & (self.used[link] + left <= self.rate)
                self.used[link] += left * fits
                self.count[link] += fits
                left[fits] = 0
        self.rest -= moved
        return bool(moved.any())

    def _placed(self) -> Floats:
        """Full packets on each link."""
        if len(self.used) == 1:
            return self.packets[None]
        placed = np.zeros_like(self.used)
        left = self.packets.copy()
        for link in range(self.rules.links):
            free = np.floor((self.rate - self.used[link]) / self.rules.packet_bytes) * self.is_mine[link]
            placed[link] = np.minimum(left, free)
            left -= placed[link]
        return placed


class _Spans:
    """Times of links over every second round of a span; the sum over all rounds of the longest."""

    def __init__(self) -> None:
        self._parts: list[tuple[NDArray[np.int64], NDArray[np.int64], Floats]] = []

    def add(self, start: NDArray[np.int64], times: NDArray[np.int64], value: Floats) -> None:
        """Rounds start, start + 2 ..., as many as ``times``, take ``value``."""
        known = times > 0
        self._parts.append((start[known], times[known], value[known]))

    def total(self) -> float:
        """0 without spans."""
        parts = [np.concatenate(each) for each in zip(*self._parts, strict=True)]
        return sum(self._of(parts, parity) for parity in (0, 1)) if parts else 0.0

    def _of(self, parts: list[NDArray[Any]], parity: int) -> float:
        """Over the even or the odd rounds: each span covered by two blocks of a power of two, handed down by halves."""
        start, times, value = (each[parts[0] % 2 == parity] for each in parts)
        begin, end = start // 2, start // 2 + times
        edges = np.unique(np.concatenate((begin, end)))
        if not len(edges):
            return 0.0
        first, beyond = np.searchsorted(edges, begin), np.searchsorted(edges, end)
        level = np.frexp(beyond - first)[1] - 1
        longest = np.zeros((int(level.max()) + 1, len(edges)))
        np.maximum.at(longest, (level, first), value)
        np.maximum.at(longest, (level, beyond - (1 << level)), value)
        for upper in range(len(longest) - 1, 0, -1):
            half = 1 << (upper - 1)
            lower = longest[upper - 1]
            np.maximum(lower, longest[upper], out=lower)
            np.maximum(lower[half:], longest[upper, :-half], out=lower[half:])
        return float(longest[0, :-1] @ np.diff(edges))


def _repetitions(rest: Floats, moved: Floats, rules: MeshRules) -> Floats:
    """How often a period of rounds that ``moved`` these bytes and left ``rest`` will come again, pair by pair.

    A turn depends on what is left only where that is less than a whole turn. Endless for a pair that moved nothing.
    """
    spare = rest - rules.packets_per_turn * rules.packet_bytes
    often = np.floor(np.maximum(spare, 0.0) / np.where(moved > 0, moved, 1.0))
    return np.where(moved > 0, often, np.inf)
