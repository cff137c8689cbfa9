"""Routing, placement and traffic in one answer."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.cli import main
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.predict.network.packets import MeshRules
from tracelens.predict.network.ports import Ports
from tracelens.predict.routing.exchange import MeshScenario, PortScenario, Routing, route_mesh, route_ports
from tracelens.predict.routing.route import compared
from tracelens.predict.workload.token_routing import Skew

PORTS = Ports(ranks_per_node=8, link_gb_s=450, card_gb_s=50)


def routing(skew="uniform", **others):
    given = {"tokens": 4096, "experts": 64, "topk": 4, "ranks": 16, "skew": Skew.parse(skew)}
    return Routing(**(given | others))


def test_skew_costs_time_and_eplb_wins_some_back():
    even, skewed = (
        route_ports(PortScenario(routing=routing(), ports=PORTS)).summary,
        route_ports(PortScenario(routing=routing("zipf:1.2"), ports=PORTS)).summary,
    )
    assert skewed["dispatch_us"] > even["dispatch_us"]
    assert skewed["imbalance_us"] > even["imbalance_us"] >= 0
    assert skewed["eplb_rank_imbalance"] < skewed["rank_imbalance"]
    assert skewed["eplb_slots"] == 64 + 16


def test_the_time_is_at_least_the_bottlenecks_and_the_rates_agree():
    phases = route_ports(PortScenario(routing=routing("zipf:0.8"), ports=PORTS)).frames["phases"]
    assert (phases.time_us >= phases.bottleneck_us - 1e-9).all()
    assert (phases.logical_true_gb_s >= phases.logical_effective_gb_s - 1e-9).all()
    assert (phases.logical_effective_gb_s > phases.remote_effective_gb_s).all()


def test_loads_add_up_everywhere():
    result = route_ports(PortScenario(routing=routing("zipf:1.2"), ports=PORTS))
    ranks, experts = result.frames["ranks"], result.frames["experts"]
    assert ranks.routings.sum() == experts.routings.sum() == ranks.routings_eplb.sum() == 4096 * 4
    assert experts.groupby("rank").routings.sum().tolist() == ranks.routings.tolist()
    assert result.traffic.sent().sum() == pytest.approx(ranks.sent_bytes.sum())


def test_uniform_routing_leaves_its_rank_with_the_share_of_the_other_ranks():
    # each of 16 ranks is as likely: 15/16 of all copies are remote
    assert route_ports(PortScenario(routing=routing(tokens=40_000), ports=PORTS)).summary[
        "remote_share"
    ] == pytest.approx(15 / 16, abs=0.003)


def test_hierarchical_sends_less_over_the_network_than_direct():
    near = route_ports(PortScenario(routing=routing(topk=8), ports=PORTS, way="hierarchical")).summary["dispatch_us"]
    assert near < route_ports(PortScenario(routing=routing(topk=8), ports=PORTS, way="direct")).summary["dispatch_us"]


def test_a_copy_per_expert_is_all_copies_and_never_less_than_one_per_rank():
    given = routing(topk=8, experts=64, tokens=2048)
    each, once = (route_ports(PortScenario(routing=given, ports=PORTS, way=way)) for way in ("per-expert", "direct"))
    assert each.traffic.total_bytes == pytest.approx(2048 * 8 * 7392)  # 7,168 values of FP8, 56 scales
    assert each.summary["dispatch_us"] > once.summary["dispatch_us"]
    assert each.summary["mean_ranks"] == once.summary["mean_ranks"] < 8


def test_layers_have_their_own_hot_experts():
    result = route_ports(PortScenario(routing=routing("zipf:1.2"), ports=PORTS, layers=3, steps=2, drift=0.5))
    layers = result.frames["layers"]
    assert layers[["step", "layer"]].to_numpy().tolist() == [[s, layer] for s in range(2) for layer in range(3)]
    assert layers.rank_imbalance.nunique() == 6
    assert result.summary["layers_us"] == pytest.approx((layers.dispatch_us + layers.combine_us).sum())


def test_layers_keep_their_groups_and_their_capacity():
    # one of 8 groups is one of 2 ranks' 8 experts: a token reaches one rank only
    given = routing("zipf:1.2", groups=8, best_groups=1, capacity=1.0)
    for _, _, table in given.layers(2, 2, 0.5):
        chosen = table.experts
        assert all(len({expert // 8 for expert in row if expert >= 0}) <= 1 for row in chosen.tolist())
        assert np.bincount(chosen[chosen >= 0], minlength=64).max() <= 4096 * 4 / 64


def test_recorded_layers_follow_one_another(tmp_path):
    # two layers of 8 tokens: all to expert 0, then all to expert 8 of the other rank
    np.savez(tmp_path / "two.npz", experts=np.repeat([[[0]], [[8]]], 8, axis=1), num_experts=16)
    given = Routing(tokens=16, experts=16, topk=1, ranks=2, file=tmp_path / "two.npz")
    tables = [table.experts.ravel().tolist() for _, _, table in given.layers(2, 1, 0.0)]
    assert tables == [[0] * 8, [8] * 8]
    frame = route_ports(
        PortScenario(routing=given, ports=Ports(ranks_per_node=2, link_gb_s=450, card_gb_s=50), layers=2)
    ).frames["layers"]
    assert frame.rank_imbalance.tolist() == [2, 2]
    with pytest.raises(UsageError, match="16 recorded tokens do not divide over 3 layers"):
        list(given.layers(3, 1, 0.0))
    with pytest.raises(UsageError, match="recorded routing does not drift"):
        list(given.layers(2, 2, 0.0))


def test_capacity_drops_and_evens():
    free, capped = (
        route_ports(PortScenario(routing=routing("zipf:1.2", capacity=c), ports=PORTS)).summary for c in (None, 1.25)
    )
    assert (free["dropped_share"], capped["dropped_share"] > 0.1) == (0, True)
    assert capped["expert_imbalance"] <= 1.26 / (1 - capped["dropped_share"])


def test_the_public_function_takes_a_cluster_by_name():
    result = tl.route(experts=64, topk=4, ranks=16, tokens=2048, skew="zipf:1.1", cluster="dgx-h100")
    assert result.summary["ranks_per_node"] == 8
    assert (result.frames["phases"].collective_us > 0).all()


def test_the_four_parameters_that_were_never_implemented_have_an_effect():
    plain = MeshRules(packet_bytes=500, link_bytes_per_ms=1e5, nic_bytes_per_round=1e7)
    slow = MeshRules(
        packet_bytes=500, link_bytes_per_ms=1e5, nic_bytes_per_round=1e7, ranks_per_node=4, inter_bytes_per_ms=5e4
    )
    overlapped = MeshRules(packet_bytes=500, link_bytes_per_ms=1e5, nic_bytes_per_round=1e7, overlap=1.2)
    given = Routing(tokens=256, experts=16, topk=2, ranks=8)

    def total(rules, **options):
        return route_mesh(MeshScenario(routing=given, rules=rules, **options)).summary["layers_ms"]

    base = total(plain, hidden=64)
    assert total(plain, hidden=64, layers=3) == pytest.approx(3 * base)
    assert total(plain, hidden=128) > base > total(plain)
    assert total(slow, hidden=512) > total(plain, hidden=512)
    assert total(overlapped, hidden=64) < base


def test_the_seed_rules_reproduce_the_production_run():
    given = Routing(tokens=1024, experts=128, topk=8, ranks=8)
    result = route_mesh(MeshScenario(routing=given), seed_rules=True)
    assert (round(result.summary["time_ms"], 6), result.summary["rounds"]) == (212.23, 27)
    assert result.log is not None
    assert result.log.endswith("No more data to transfer, exiting")


@pytest.mark.parametrize("ranks", part([2, 8], 2))
def test_prediction_stands_beside_the_measured_exchanges_of_a_trace(repository, tmp_path, ranks):
    for rank in range(ranks):
        shutil.copy(repository / "example_traces" / "moe_ep8" / f"rank{rank}.json.gz", tmp_path)
    result = route_ports(PortScenario(routing=routing(ranks=8, tokens=8192), ports=PORTS, hidden=4096))
    frame = compared(result, tmp_path).frames["comparison"]
    assert set(frame.phase) == {"dispatch", "combine"}
    assert frame.trace.nunique() == ranks
    assert np.isfinite(frame.measured_over_predicted).all()
    assert set(frame.phase[frame.op == "DeepEPDispatchBackward"]) == {"combine"}


def test_traces_without_exchanges_are_said_to_have_none(repository):
    result = route_ports(PortScenario(routing=routing(), ports=PORTS))
    with pytest.raises(NothingToAnalyzeError, match="no expert-parallel exchange"):
        compared(result, repository / "example_traces")


def test_fewer_ranks_than_a_node_has_use_part_of_it():
    assert route_ports(PortScenario(routing=routing(ranks=4), ports=PORTS)).summary["mean_nodes"] == 1.0


def exchange_trace(path, split):
    args = {"stream": 7, "device": 0, "Collective name": "all_to_allv", "In split size": str(split)}
    event = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_SendRecv", "pid": 0, "tid": 7, "ts": 1, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [{**event, "args": args}]}), encoding="utf-8")
    return path


def test_split_sizes_of_a_trace_are_the_loads_of_ranks(tmp_path):
    trace = exchange_trace(tmp_path / "t.json", [100, 300, 200, 200])
    given = Routing(tokens=800, experts=8, topk=2, ranks=4, file=trace)
    result = route_ports(PortScenario(routing=given, ports=Ports(ranks_per_node=4, link_gb_s=450, card_gb_s=50)))
    assert result.frames["ranks"].routings.tolist() == [200, 600, 400, 400]


def test_split_sizes_of_another_group_are_refused(tmp_path):
    trace = exchange_trace(tmp_path / "t.json", [100, 300])
    with pytest.raises(UsageError, match=r"recorded all-to-alls of \[2\] ranks, not of 4"):
        Routing(tokens=800, experts=8, topk=2, ranks=4, file=trace).drawn()


def test_a_mesh_has_nothing_to_compare(repository):
    mesh = route_mesh(MeshScenario(routing=Routing(tokens=64, experts=16, topk=2, ranks=4)))
    with pytest.raises(UsageError, match="--compare needs a cluster"):
        compared(mesh, repository / "example_traces" / "moe_ep8")


def test_experts_that_do_not_divide_over_the_ranks_stand_twice_on_the_last_ones(capsys: pytest.CaptureFixture[str]):
    """256 experts on 72 ranks: 4 a rank, 32 copies, as --slots 288 says and the default does."""
    asked = ["route", "--cluster", "dgx-h100", "--ranks", "72", "--experts", "256", "--tokens", "64"]
    assert main([*asked, "--slots", "288"]) == 0
    said = capsys.readouterr().out
    assert "top 8 of 256 experts on 72 ranks" in said
    assert "EPLB with 288 slots" in said
    assert main(asked) == 0
    assert capsys.readouterr().out == said
