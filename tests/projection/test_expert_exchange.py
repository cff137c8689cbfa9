"""What experts exchange, factor by factor: tokens S/(tp cp), copies, expert ranks per node = node size / tp."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.backends.base import System
from tracelens.backends.collective_times import Collectives
from tracelens.perf_models import EPComm
from tracelens.predict.network.algorithms import algorithms
from tracelens.predict.network.deepep import distinct
from tracelens.predict.network.topology import Group, Protocol, Rates, Tier, TierLink, Topology
from tracelens.predict.workload import rank_ops
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig

MODEL = ModelConfig.load("deepseek-v3")
S, H, K, EXPERTS, EP = 4096, 7168, 8, 256, 32
#: GB/s of a rank inside the node, of its network card; without latency, bytes per us are 1e3 of them.
FAST, SLOW = 400.0, 50.0
_FREE = Protocol(name="simple", base_us=0, hop_us=0, tree_hop_us=0, rate_share=1.0)
NODES = Topology(
    tiers=(
        Tier(ranks=8, link=TierLink(rates=Rates(peak_gb_s=FAST), protocols=(_FREE,))),
        Tier(ranks=None, cards=8, link=TierLink(rates=Rates(peak_gb_s=SLOW), protocols=(_FREE,))),
    ),
    chunk_bytes=4e6,
)


def exchange(tp: int, cp: int, dispatcher: str) -> EPComm:
    p = ParallelConfig(tp=tp, sequence_parallel=tp > 1, cp=cp, dp=64, ep=EP)
    layer = rank_ops.block(MODEL, replace(p, dispatcher=dispatcher), "E", S)  # type: ignore[arg-type]
    return next(op.model for op in layer.ops if isinstance(op.model, EPComm))


@pytest.mark.parametrize(("tp", "cp"), [(1, 1), (2, 1), (4, 1), (1, 2), (2, 4)])
def test_a_message_is_tokens_times_copies_times_hidden_times_width(tp: int, cp: int) -> None:
    """All-to-all: a copy per chosen expert of S/(tp cp) tokens in 16 bits; the group strides over tensor ranks."""
    sent = exchange(tp, cp, "alltoall")
    assert sent.tokens == S // (tp * cp) * K
    assert (sent.hidden, sent.ranks, sent.stride) == (H, EP, tp)
    assert sent.wire_bytes() == pytest.approx(S / (tp * cp) * K * H * 2 * (EP - 1) / EP)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_single_shot_hierarchical_and_pxn_split_at_the_node(tp: int) -> None:
    """g = 8/tp of the group stand in a node, N = 32/g nodes; V is what a rank sends, its own share included.

    Single-shot: (g-1)/n of V inside and (n-g)/n outside at once. Hierarchical: (g-1)/g inside, then (N-1)/N outside.
    PXN: the same, the network beside all but the first 4 MB.
    """
    sent = exchange(tp, 1, "alltoall")
    group = Group(ranks=EP, stride=sent.stride)
    g, v = 8 // tp, float(sent.tokens * H * 2)
    n = EP // g
    assert (group.within(8), group.domains(8)) == (g, n)
    inside, outside = v * (g - 1) / g / (FAST * 1e3), v * (n - 1) / n / (SLOW * 1e3)
    first = 4e6 * (g - 1) / g / (FAST * 1e3)
    expected = {
        "direct": max(v * (g - 1) / EP / (FAST * 1e3), v * (EP - g) / EP / (SLOW * 1e3)),
        "hierarchical": inside + outside,
        "pipelined": first + max(inside - first, outside),
    }
    for name, time_us in expected.items():
        found = algorithms()[f"all_to_all/{name}"].target(v, group, NODES)
        assert float(found) == pytest.approx(time_us, rel=1e-9), name


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_with_deepep_a_token_crosses_the_network_once_per_node_and_is_forwarded(tp: int) -> None:
    """PXN of what is left: distinct nodes outside, distinct ranks inside, in closed form for uniform routing."""
    sent = exchange(tp, 1, "deepep")
    system = System(device=System.load("h100-sxm").device, topology=NODES)
    found = Collectives().estimate(sent, system)
    g = 8 // tp
    n = EP // g
    token = S / tp * H * 2
    inner, outer = token * float(distinct(EP, EXPERTS, K)), token * float(distinct(n, EXPERTS, K)) * (n - 1) / n
    first = 4e6 * (g - 1) / g / (FAST * 1e3)
    expected = first + max(inner * (g - 1) / g / (FAST * 1e3) - first, outer / (SLOW * 1e3))
    assert found is not None
    assert found.time_us == pytest.approx(expected, rel=1e-9)
    plain = Collectives().estimate(
        exchange(tp, 1, "alltoall"), replace(system, topology=replace(NODES, algorithms=("all_to_all/pipelined",)))
    )
    assert plain is not None
    assert found.time_us < plain.time_us
