"""The routing and the packets of the original simulator, number for number, with its log.

They reproduce its figures. What they get wrong is right in ``packets.simulate``: only link 0 of a pair is timed, rank 0
is served first, and sending and receiving share one counter.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tracelens.errors import UsageError
from tracelens.predict.network.packets import MeshRules, PacketTimes
from tracelens.predict.workload.token_routing import RoutingTable

_LINE = "-" * 15
_IDLE, _FORWARD, _BACKWARD = 0, 1, -1


def simulate_seed(load: Sequence[Sequence[int]], rules: MeshRules) -> tuple[PacketTimes, str]:
    """Times and log of ``load[src][dst]`` bytes; the diagonal is local and does not travel.

    UsageError for what those rules do not know: overlap, or links between nodes of another rate.
    """
    if rules.overlap != 1 or rules.inter_bytes_per_ms is not None:
        raise UsageError(
            "--rules original supports neither overlap nor a rate between nodes; omit them or --rules original"
        )
    ranks = range(len(load))
    rest = [[0 if i == j else int(load[i][j]) for j in ranks] for i in ranks]
    local = sum(int(load[i][i]) for i in ranks)
    moved = sum(map(sum, rest))
    shown = {i: {j: rest[i][j] for j in ranks} for i in ranks}
    log = ["NODE LOAD", _LINE, str(shown)]
    time: float = rules.initial_delay_ms
    rounds = packets = 0
    while any(map(any, rest)):
        rounds += 1
        played = _SeedRound(rest, rules)
        packets += played.packets
        largest, most = played.link_zero(sum), played.link_zero(len)
        round_time = most[0] * rules.packet_delay_ms + largest[0] / rules.link_bytes_per_ms
        time += rules.round_delay_ms + round_time
        log += [
            _LINE,
            f"ROUND {rounds}",
            f"LARGEST PACKET SIZE: {largest}, MOST PACKETS: {most}",
            f"Round time: {round_time} ms",
            f"ACTIVE LINKS: {played.links}",
            f"NIC MAP: {dict(enumerate(played.nic))}",
            f"COMM TIME: {time} ms",
        ]
    log += [_LINE, f"ROUND {rounds + 1}", "No more data to transfer, exiting"]
    times = PacketTimes(
        time_ms=time, rounds=rounds, packets=packets, moved_bytes=float(moved), local_bytes=float(local)
    )
    return times, "\n".join(log)


class _SeedRound:
    """One round: takes what it moves from ``rest``.

    ``links[src][dst]`` is a list of ``[packets, direction]``; an idle link shows one packet of 0. What one direction
    carries is shown at the other too, with direction -1.
    """

    def __init__(self, rest: list[list[int]], rules: MeshRules) -> None:
        self.rest, self.rules = rest, rules
        self.ranks = range(len(rest))
        self.nic = [0 for _ in self.ranks]
        self.packets = 0
        self.links: dict[int, dict[int, list[list[Any]]]] = {
            i: {j: [[[0], _IDLE] for _ in range(rules.links)] for j in self.ranks} for i in self.ranks
        }
        self._used = [[[0] * rules.links for _ in self.ranks] for _ in self.ranks]
        self._way = [[[_IDLE] * rules.links for _ in self.ranks] for _ in self.ranks]
        for source in self.ranks:
            while sum(self._turn(source, target) for target in self.ranks if target != source):
                pass

    def link_zero(self, measure: Callable[[list[int]], int]) -> tuple[int, list[int]]:
        """The largest of the pairs' first links, with its packets: the only one these rules time."""
        firsts = (self.links[i][j][0][0] for i in self.ranks for j in self.ranks if i != j)
        return max((measure(packets), packets) for packets in firsts)

    def _turn(self, source: int, target: int) -> bool:
        """Whether any packet was sent."""
        rules, sent = self.rules, 0
        while sent < rules.packets_per_turn and self.rest[source][target]:
            size = min(self.rest[source][target], rules.packet_bytes)
            if max(self.nic[source], self.nic[target]) + size > rules.nic_bytes_per_round:
                break
            link = self._free_link(source, target, size)
            if link is None:
                break
            if self._way[source][target][link] == _IDLE:
                self._way[source][target][link], self._way[target][source][link] = _FORWARD, _BACKWARD
                self.links[source][target][link] = [[], _FORWARD]
                self.links[target][source][link] = [[], _BACKWARD]
            for shown in (self.links[source][target][link][0], self.links[target][source][link][0]):
                shown.append(size)
            self._used[source][target][link] += size
            self.nic[source] += size
            self.nic[target] += size
            self.rest[source][target] -= size
            sent += 1
        self.packets += sent
        return sent > 0

    def _free_link(self, source: int, target: int, size: int) -> int | None:
        used, way = self._used[source][target], self._way[source][target]
        for link in range(self.rules.links):
            if way[link] != _BACKWARD and used[link] + size <= self.rules.link_bytes_per_ms:
                return link
        return None


#: Those rules store an expert id in 8 signed bits and a token id in 16.
_MOST_EXPERTS, _MOST_TOKENS = 128, 32_768


def seed_routing(
    *, tokens: int, experts: int, topk: int, hot: tuple[float, float], ranks: int, seed: int
) -> RoutingTable:
    """``random.sample`` picks the hot experts, ``numpy.random.choice`` the experts of each token, without replacement.

    ``hot``: the share of the experts that are hot, and the probability that a draw goes to one of them. Both
    generators start from ``seed``. Of n hot experts each is drawn with probability weight / n, a cold one with
    (1 - weight) / cold; drawing without replacement lowers the share that the hot ones get. UsageError beyond 128
    experts or 32,768 tokens, where those rules wrap to negative ids.
    """
    if experts > _MOST_EXPERTS or tokens > _MOST_TOKENS:
        raise UsageError(
            f"--rules original supports at most {_MOST_EXPERTS} experts and {_MOST_TOKENS:,} tokens, "
            f"got {experts} and {tokens:,}; the default rules have no such limit"
        )
    if tokens < 1:
        raise UsageError(f"tokens, experts and top-k must be at least 1, got {tokens}, {experts} and {topk}")
    if not 1 <= topk <= experts:
        raise UsageError(f"top-k {topk} needs at least as many experts, there are {experts}")
    if experts % ranks:
        raise UsageError(f"{experts} experts do not divide over {ranks} ranks; give a map of experts to ranks")
    count, weight = int(experts * hot[0]), hot[1]
    if not 0 < count <= experts or not 0 <= weight <= 1:
        raise UsageError(
            f"hot ratio {hot[0]} of {experts} experts with hot weight {weight} is not a valid distribution"
        )
    picker, generator = random.Random(seed), np.random.RandomState(seed)  # noqa: S311 - reproduces a simulation
    hot_experts = picker.sample(range(experts), count)
    order = hot_experts + [e for e in range(experts) if e not in set(hot_experts)]
    cold = experts - count
    chance = [weight / count] * count + [(1 - weight) / cold] * cold if cold else [1 / count] * count
    if np.count_nonzero(chance) < topk:
        raise UsageError(
            f"top-k {topk} needs as many experts with a probability above 0; hot weight {weight:g} leaves fewer"
        )
    chosen = np.array([generator.choice(order, topk, replace=False, p=chance) for _ in range(tokens)])
    weights = generator.uniform(size=(tokens, topk)).astype(np.float32)
    return RoutingTable(experts=chosen.reshape(tokens, topk), weights=weights, source=np.arange(tokens) % ranks)
