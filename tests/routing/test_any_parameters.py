"""Whatever parameters a routing gets, it ends: with an answer, or with one sentence."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.laboratory.original_rules import simulate_seed
from tracelens.predict.network.packets import MeshRules, simulate
from tracelens.predict.network.ports import Ports
from tracelens.predict.network.traffic import Traffic
from tracelens.predict.routing.exchange import MeshScenario, PortScenario, Routing, route_mesh, route_ports
from tracelens.predict.workload.token_routing import Skew

ODD = st.one_of(st.integers(-1, 12), st.floats(allow_nan=True, allow_infinity=True, width=16))


def mostly(good, odd=ODD):
    """A sensible value, now and then an odd one."""
    return st.integers(0, 19).flatmap(lambda chance: odd if chance == 0 else good)


SMALL = mostly(st.sampled_from([1, 2, 4, 8]), st.integers(-1, 12))
AMOUNTS = mostly(st.floats(4, 60))
SKEWS = st.sampled_from(
    [
        "uniform",
        "balanced",
        "zipf:1.1",
        "zipf:40",
        "hot:0.5,0.8",
        "hot:0,1",
        "hot:1,0.3",
        "dirichlet:0.01",
        "power_law:1",
    ]
)
ROUTINGS = st.builds(
    lambda skew, **given_: Routing(skew=Skew.parse(skew), **given_),
    SKEWS,
    tokens=mostly(st.integers(8, 60), st.integers(-1, 7)),
    experts=mostly(st.sampled_from([8, 16]), st.integers(-1, 12)),
    topk=mostly(st.integers(1, 4), st.integers(-1, 20)),
    ranks=SMALL,
    groups=st.one_of(st.none(), SMALL),
    best_groups=st.one_of(st.none(), SMALL),
    capacity=st.one_of(st.none(), AMOUNTS),
)
RULES = {
    "links": SMALL,
    "link_bytes_per_ms": AMOUNTS,
    "packet_bytes": mostly(st.integers(1, 4), st.integers(-1, 40)),
    "packet_delay_ms": AMOUNTS,
    "packets_per_turn": SMALL,
    "nic_bytes_per_round": AMOUNTS,
    "round_delay_ms": AMOUNTS,
    "overlap": AMOUNTS,
    "ranks_per_node": st.one_of(st.none(), SMALL),
    "inter_bytes_per_ms": st.one_of(st.none(), AMOUNTS),
}


def answered(action):
    """The answer, or None after an error of one sentence."""
    try:
        return action()
    except UsageError as error:
        if not str(error) or "\n" in str(error):
            raise
        return None


@given(routing=ROUTINGS, rules=st.fixed_dictionaries({}, optional=RULES), seed_rules=st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_a_mesh_answers_or_says_why_not(routing, rules, seed_rules):
    found = answered(
        lambda: route_mesh(MeshScenario(routing=routing, rules=MeshRules(**rules)), seed_rules=seed_rules).summary
    )
    if found is not None:
        assert found["rounds"] <= found["packets"]
        assert math.isfinite(found["time_ms"])


@pytest.mark.parametrize("seed_rules", [False, True])
def test_an_exchange_of_no_tokens_is_refused(seed_rules: bool) -> None:
    scenario = MeshScenario(routing=Routing(tokens=0, experts=8, topk=1, ranks=1), rules=MeshRules())
    with pytest.raises(UsageError, match="must be at least 1, got 0"):
        route_mesh(scenario, seed_rules=seed_rules)


@given(
    routing=ROUTINGS,
    ports=st.fixed_dictionaries(
        {"ranks_per_node": SMALL, "link_gb_s": AMOUNTS, "card_gb_s": AMOUNTS},
        optional={
            "ranks_per_card": SMALL, "packet_bytes": AMOUNTS, "packet_us": AMOUNTS, "packets_per_turn": SMALL,
            "overlap": AMOUNTS, "initial_us": AMOUNTS,
        },
    ),
    slots=st.one_of(st.none(), st.integers(-1, 30)),
    way=st.sampled_from(["hierarchical", "direct", "per-expert"]),
)  # fmt: skip
@settings(max_examples=examples(80), deadline=None)
def test_a_cluster_answers_or_says_why_not(routing, ports, slots, way):
    found = answered(
        lambda: (
            route_ports(PortScenario(routing=routing, ports=Ports(**ports), hidden=16, slots=slots, way=way)).summary
        )
    )
    if found is not None:
        assert math.isfinite(found["dispatch_us"])


@given(
    rows=st.integers(1, 6).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 300), min_size=n, max_size=n), min_size=n, max_size=n)
    ),
    links=st.integers(1, 3),
    packet=st.integers(1, 30),
    turn=st.integers(1, 9),
    more=st.tuples(st.floats(0, 60), st.floats(0, 60)),
)
@settings(max_examples=examples(80), deadline=None)
def test_every_round_moves_a_packet_under_either_rules(rows, links, packet, turn, more):
    """So there are at most as many rounds as packets, however odd links and cards are."""
    rules = MeshRules(
        links=links,
        packet_bytes=packet,
        packets_per_turn=turn,
        link_bytes_per_ms=packet + more[0],
        nic_bytes_per_round=packet + more[1],
    )
    traffic = Traffic(wire_bytes=np.array(rows, float))
    for times in (simulate(traffic, rules), simulate_seed(rows, rules)[0]):
        assert times.rounds <= times.packets
        assert times.moved_bytes == traffic.remote_bytes


def test_a_rate_without_end_is_refused():
    with pytest.raises(UsageError, match="link_bytes_per_ms must be above 0 and finite, got inf"):
        MeshRules(link_bytes_per_ms=math.inf)
