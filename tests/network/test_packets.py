"""Packets on the mesh under the default rules: closed form, limits, fairness, speed by skipping equal rounds."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.predict.network import packets
from tracelens.predict.network.packets import MeshRules, simulate
from tracelens.predict.network.traffic import Traffic

PRODUCTION = MeshRules()


def of(rows):
    return Traffic(wire_bytes=np.array(rows, float))


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


def played(traffic: Traffic, rules: MeshRules) -> tuple[int, int, float]:
    """Rounds, packets and time of the rules played packet by packet, no round skipped and no pair by itself."""
    n, rest, rate = traffic.ranks, np.ceil(traffic.remote), rules.link_rates(traffic.ranks)
    rounds = count = 0
    time_ms = rules.initial_delay_ms
    halves = {True: range(1, n // 2 + 1), False: range((n + 1) // 2, n)}
    while rest.any():
        order = (1, -1)[rounds % 2]
        used, sent = np.zeros((rules.links, n, n)), np.zeros((rules.links, n, n))
        to_send, to_receive = np.full(n, rules.nic_bytes_per_round), np.full(n, rules.nic_bytes_per_round)
        moving = True
        while moving:
            before = sent.sum()
            for early in (True, False)[::order]:
                for step in halves[early][::order]:
                    for source in range(n):
                        target = (source + step) % n
                        if 2 * step == n and (source < target) != early:
                            continue
                        for _ in range(rules.packets_per_turn):
                            size = min(rules.packet_bytes, rest[source, target])
                            fits = (used[:, source, target] + size <= rate[source, target]) & ~sent[
                                :, target, source
                            ].astype(bool)
                            if not size or size > min(to_send[source], to_receive[target]) or not fits.any():
                                break
                            link = int(np.argmax(fits))
                            used[link, source, target] += size
                            sent[link, source, target] += 1
                            rest[source, target] -= size
                            to_send[source] -= size
                            to_receive[target] -= size
            moving = sent.sum() > before
        prepared, moved = sent * rules.packet_delay_ms, used / rate
        time_ms += rules.round_delay_ms
        time_ms += max(prepared.max(), moved.max(), (prepared + moved).max() / rules.overlap)
        rounds, count = rounds + 1, count + int(sent.sum())
    return rounds, count, time_ms


def test_even_traffic_gives_the_closed_form_of_case_1():
    # 8 links' rounds of 2 + 5 * (1 + 20/100) = 8 ms; 11,200 * 8 / (28 * 100) = 32 rounds
    assert even_time_ms(11_200, 8, PRODUCTION) == 256.0
    assert is_even_form_exact(11_200, 8, PRODUCTION)
    assert simulate(Traffic.even(1600, 8), PRODUCTION).time_ms == 256.0


def test_even_traffic_gives_the_closed_form_of_case_2():
    rules = MeshRules(links=2, initial_delay_ms=1, link_bytes_per_ms=150, packet_bytes=15, packet_delay_ms=2)
    # 1 + 10 rounds of 2 + 10 * (2 + 15/150) = 23 ms
    assert even_time_ms(10_500, 8, rules) == pytest.approx(231.0)
    assert simulate(Traffic.even(1500, 8), rules).time_ms == pytest.approx(231.0)


@given(
    ranks=st.integers(2, 9), links=st.integers(1, 3), packets=st.integers(1, 6), size=st.integers(1, 30),
    turn=st.integers(1, 7), times=st.integers(1, 9),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_the_closed_form_holds_wherever_it_says_so(ranks, links, packets, size, turn, times):
    rules = MeshRules(
        links=links,
        link_bytes_per_ms=packets * size,
        packet_bytes=size,
        packets_per_turn=turn,
        nic_bytes_per_round=links * packets * size * ranks,
    )
    pair_bytes = links * packets * size * times
    assert is_even_form_exact(pair_bytes * (ranks - 1), ranks, rules)
    expected = even_time_ms(pair_bytes * (ranks - 1), ranks, rules)
    assert simulate(Traffic.even(pair_bytes, ranks), rules).time_ms == pytest.approx(expected)


def test_packets_that_do_not_fill_a_link_make_the_closed_form_a_bound():
    rules = replace(PRODUCTION, packet_bytes=32)
    assert not is_even_form_exact(11_200, 8, rules)
    # 96 of 100 bytes per round: 34 rounds of 2 + 3 + 0.96 at most, where the form has 32 rounds of 5.96
    assert even_time_ms(11_200, 8, rules) == pytest.approx(190.72)
    assert simulate(Traffic.even(1600, 8), rules).time_ms == pytest.approx(200.0)


def test_every_link_is_timed():
    # 10 bytes on link 0 one way, 100 on link 1 the other way: 2 + 5 * 1 + 100/100
    assert simulate(of([[0, 10], [100, 0]]), replace(PRODUCTION, links=2)).time_ms == 8.0


def test_sending_and_receiving_are_limited_apart():
    # each rank sends 700 and receives 700 per round at full rate: 350 out at a time through half-duplex links
    both = simulate(Traffic.even(1600, 8), replace(PRODUCTION, nic_bytes_per_round=400))
    assert both.time_ms == 256.0
    assert simulate(Traffic.even(1600, 8), replace(PRODUCTION, nic_bytes_per_round=200)).rounds >= 56  # 11,200 / 200


def test_no_rank_is_served_first():
    """A limit that lets one source through at a time would starve the later ones; here all finish together."""
    rules = replace(PRODUCTION, nic_bytes_per_round=20, packets_per_turn=1)
    rotated = of(np.roll(np.roll([[0, 40, 0], [0, 0, 20], [60, 0, 0]], 1, axis=0), 1, axis=1))
    original = of([[0, 40, 0], [0, 0, 20], [60, 0, 0]])
    assert simulate(original, rules).time_ms == simulate(rotated, rules).time_ms


@given(
    rows=st.integers(2, 7).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 400), min_size=n, max_size=n), min_size=n, max_size=n)
    ),
    links=st.integers(1, 2),
    nic=st.integers(20, 500),
    turn=st.integers(1, 6),
)
@settings(max_examples=20, deadline=None)
def test_all_bytes_arrive_and_never_faster_than_the_busiest_link(rows, links, nic, turn):
    rules = MeshRules(links=links, nic_bytes_per_round=nic, packets_per_turn=turn, round_delay_ms=0, packet_delay_ms=0)
    traffic = of(rows)
    times = simulate(traffic, rules)
    assert times.moved_bytes == traffic.remote_bytes
    remote = traffic.remote
    busiest_pair = (remote + remote.T).max() / (links * 100)
    busiest_nic = max(traffic.sent().max(), traffic.received().max()) / nic
    assert times.time_ms >= busiest_pair - 1e-9
    assert times.rounds >= busiest_nic - 1e-9


@given(
    rows=st.integers(2, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 600), min_size=n, max_size=n), min_size=n, max_size=n)
    ),
    links=st.integers(1, 2),
    nic=st.sampled_from([25, 60, 130, 290, 10_000]),
    turn=st.integers(1, 6),
    packet=st.sampled_from([7, 20, 25]),
    overlap=st.sampled_from([1.0, 1.5, 9.0]),
    per_node=st.sampled_from([None, 1, 2]),
)
@settings(max_examples=examples(35), deadline=None)
def test_it_is_what_playing_every_packet_gives(rows, links, nic, turn, packet, overlap, per_node):
    nodes = {} if per_node is None or len(rows) % per_node else {"ranks_per_node": per_node, "inter_bytes_per_ms": 50}
    rules = MeshRules(
        links=links, nic_bytes_per_round=nic, packets_per_turn=turn, packet_bytes=packet, overlap=overlap,
        initial_delay_ms=3, packet_delay_ms=0.25, **nodes,
    )  # fmt: skip
    found = simulate(of(rows), rules)
    rounds, count, time_ms = played(of(rows), rules)
    assert (found.rounds, found.packets, found.time_ms) == (rounds, count, pytest.approx(time_ms))
    with mock.patch.dict(os.environ, {"TRACELENS_PURE_PYTHON": "1"}):
        assert simulate(of(rows), rules) == found


@given(
    ranks=st.integers(1, 9), seed=st.integers(0, 1000), most=st.sampled_from([50, 3000]), links=st.integers(1, 3),
    packet=st.integers(1, 40), turn=st.integers(1, 7), rate=st.floats(1, 9), nic=st.floats(1, 30),
    overlap=st.floats(1, 9),
)  # fmt: skip
@settings(max_examples=examples(300), deadline=None)
def test_compiled_rounds_are_those_of_python(ranks, seed, most, links, packet, turn, rate, nic, overlap):
    """To the bit, rates that are no whole number of packets or bytes included."""
    rules = MeshRules(
        links=links, packet_bytes=packet, packets_per_turn=turn, link_bytes_per_ms=packet * rate,
        nic_bytes_per_round=packet * nic, overlap=overlap,
    )  # fmt: skip
    traffic = Traffic(wire_bytes=np.random.default_rng(seed).uniform(0, most, (ranks, ranks)))
    with mock.patch.dict(os.environ, {"TRACELENS_PURE_PYTHON": "1"}):
        plain = simulate(traffic, rules)
    assert simulate(traffic, rules) == plain


@pytest.mark.parametrize("nic", [150, 10_000], ids=["one NIC binds", "no NIC binds"])
def test_a_thousand_times_the_bytes_are_as_many_rounds_to_play(monkeypatch, nic):
    """One way only, both ways, and none: what repeats is counted, not played."""
    rounds, needed = [], []
    for owner, name in ((packets._Mesh, "play"), (packets._FreePairs, "_round")):
        play = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, play=play, **way: (rounds.append(self), play(self, **way))[1])
    for times in (1, 1000):
        rounds.clear()
        traffic = of([[0, 6000 * times, 0], [0, 0, 9000 * times], [0, 4500 * times, 0]])
        simulate(traffic, replace(PRODUCTION, nic_bytes_per_round=nic))
        needed.append(len(rounds))
    assert needed[1] <= 1.5 * needed[0]


def test_skipped_rounds_are_the_rounds_that_would_have_been_played():
    one = simulate(of([[0, 500, 0], [0, 0, 700], [300, 0, 0]]), PRODUCTION)
    # 1,000 times as much: 5, 7 and 3 rounds of 8 ms become 5,000, 7,000, 3,000, of which the longest counts
    many = simulate(of([[0, 5e5, 0], [0, 0, 7e5], [3e5, 0, 0]]), PRODUCTION)
    assert (one.rounds, many.rounds) == (7, 7000)
    assert (one.time_ms, many.time_ms) == (56.0, 56_000.0)
    assert many.packets == 1000 * one.packets


def test_overlap_shortens_a_round_to_the_longer_part_at_most():
    # preparing 5 packets takes 5 ms, transferring them 1 ms
    traffic = of([[0, 100], [0, 0]])
    assert simulate(traffic, PRODUCTION).time_ms == 2 + 6
    assert simulate(traffic, replace(PRODUCTION, overlap=1.2)).time_ms == pytest.approx(2 + 6 / 1.2)
    assert simulate(traffic, replace(PRODUCTION, overlap=10)).time_ms == 2 + 5


def test_links_between_nodes_have_their_own_rate():
    rules = replace(PRODUCTION, ranks_per_node=2, inter_bytes_per_ms=50)
    inside, across = np.zeros((4, 4)), np.zeros((4, 4))
    inside[0, 1] = across[0, 2] = 100
    assert simulate(Traffic(wire_bytes=inside), rules).rounds == 1
    assert simulate(Traffic(wire_bytes=across), rules).rounds == 3  # 40 bytes, two packets of 20, fit 50


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"packet_bytes": 20_000}, r"packet size 20000 bytes exceeds the NIC limit of 10000 bytes per round"),
        ({"packet_bytes": 101}, r"packet size 101 bytes exceeds the link limit of 100 bytes per round"),
        ({"links": 0}, "links must be above 0"),
        ({"packets_per_turn": 0}, "packets_per_turn must be above 0"),
        ({"overlap": 0.5}, "overlap must be at least 1"),
        ({"packet_delay_ms": -1}, "packet_delay_ms must be 0 or more"),
    ],
)
def test_rules_that_cannot_work_are_refused(wrong, message):
    with pytest.raises(UsageError, match=message):
        replace(PRODUCTION, **wrong)
