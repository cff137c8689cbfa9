"""What a search varies beside its table: other figures of systems, unfused attention, and the winner refined."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.errors import UsageError
from tracelens.laboratory.paper_rules import PaperRules
from tracelens.laboratory.paper_systems import PaperSystem, load_shape, load_system, paper_system
from tracelens.perf_models import GEMM
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.projection.frameworks import named
from tracelens.predict.projection.projection_options import RuleSet
from tracelens.predict.projection.search import winners_curse
from tracelens.predict.projection.search.request import (
    Request,
    _expert_ranks,
    _schedules,
    _shards,
    answer,
    parse_axes,
    refined,
)
from tracelens.predict.projection.search.systems import Figures
from tracelens.predict.projection.step import project
from tracelens.predict.workload.model_config import ModelConfig
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.report.projection_report import compared
from tracelens.types.dtypes import DType


def test_twice_the_network_cards_halve_what_travels_between_domains() -> None:
    rules = PaperRules(shape=load_shape("gpt3-1t"), strategy="1d", system=PaperSystem.load("A100", domain=4))
    half = replace(rules, system=replace(rules.system, nic_factor=0.5))
    one, two = (float(each.collective_s(100.0, 16, 4, "all_gather")) for each in (rules, half))
    # 100 GB x 15/16 over 4 cards of 25 GB/s x 0.7; 3 latencies between domains and 12 within
    latencies = 3 * 5e-6 + 12 * 2.5e-6
    assert one == pytest.approx(100 * 15 / 16 / (4 * 17.5) + latencies)
    assert two - latencies == pytest.approx(2 * (one - latencies))
    # Within one domain, or with one member in each, the cards' number changes nothing
    assert float(half.collective_s(1.0, 4, 4, "all_gather")) == float(rules.collective_s(1.0, 4, 4, "all_gather"))


def test_figures_of_links_and_vectors_replace_a_systems_own() -> None:
    given = Figures(vector_flops=500, nvlink_gb_s=1800, ib_gb_s=200, nvlink_us=1, ib_us=2, nic_factor=2)
    paper = paper_system("b200-nvs8", given)
    assert (paper.vector_tflops_s, paper.fast.gb_s, paper.slow.gb_s, paper.nic_factor) == (500, 1800, 200, 2)
    assert (paper.fast.latency_s, paper.slow.latency_s) == pytest.approx((1e-6, 2e-6))
    cluster, changed = load_system("dgx-h100"), load_system("dgx-h100", given)
    near, far = (tier.link for tier in changed.topology.tiers)
    assert near.rates.peak_gb_s == pytest.approx(1800)
    # A card per device: 200 GB/s twice
    assert far.rates.peak_gb_s == pytest.approx(400)
    assert {protocol.hop_us for protocol in far.protocols} == {2}
    assert cluster.topology.tiers[0].link.rates.peak_gb_s != 1800


def test_ranges_double_or_are_divided_evenly() -> None:
    assert parse_axes(["ib_gb_s=50..200:4,nvs=8..32"]) == {"ib_gb_s": (50, 100, 150, 200), "nvs": (8, 16, 32)}
    with pytest.raises(UsageError, match="not numbers"):
        parse_axes(["ib_gb_s=50..200:1"])


def test_on_chip_time_follows_the_matrix_rate_and_not_the_memorys() -> None:
    def time_us(figures: Figures) -> float:
        gemm = GEMM(m=2048, n=12800, k=25600, dtype=DType.BF16)
        found = chain("tile,collectives").estimate_many(WorkColumns.of([gemm]), load_system("b200-nvs8", figures))
        return float(np.asarray(found.time_us)[0])

    own = time_us(Figures())
    # 1.34 PFLOP per 0.8 GB: half the memory's rate changes little, twice and four times the flops much
    assert time_us(Figures(hbm_gb_s=4000)) == pytest.approx(own, rel=0.05)
    assert time_us(Figures(flops=10000)) < 0.75 * time_us(Figures(flops=5000)) < 0.6 * own


@pytest.mark.parametrize("rules", ["corrected", "paper"])
def test_a_step_follows_the_matrix_rate_more_than_the_memorys(rules: RuleSet) -> None:
    """The best step of a wide model, under either rules."""
    asked = Request(
        model="l=2048,e=12800,h=80,depth=4", cluster="b200-nvs8", gpus=(16,), global_batch=64, strategies=("1d",),
        top=1, rules=rules,
    )  # fmt: skip

    def step_s(**figures: float) -> float:
        return float(answer(replace(asked, figures=Figures(**figures))).table["t"].iloc[0])

    assert 0.9 < step_s(hbm_gb_s=16000) / step_s(hbm_gb_s=4000) < 1
    assert step_s(flops=10000) / step_s(flops=5000) < 0.75


def test_unfused_attention_keeps_scores_and_recomputing_does_not() -> None:
    rules = PaperRules(shape=load_shape("gpt3-1t"), strategy="1d", system=PaperSystem.load("B200", domain=8))
    keys = {name: np.array([1]) for name in ("m2", "blocks", "near_m2")}
    keys |= {"m1": np.array([8]), "near_m1": np.array([8]), "micro_batch": np.array([1])}
    fused, unfused, again = (replace(rules, attention=each).layer(keys) for each in ("fused", "unfused", "recomputed"))
    square = 160 // 8 * 2048 * 2048
    # Softmax' result and the product's operand in 16 bits, a byte of dropout's mask; fused: 2 elements per row
    assert float(unfused.stored_gb[0] - again.stored_gb[0]) == pytest.approx(square * (2 + 2 + 1) * 1e-9)
    assert float(unfused.stored_gb[0]) > float(fused.stored_gb[0])
    assert float(unfused.tflop[0]) < float(again.tflop[0])
    assert float(again.backward_s[0]) > float(unfused.backward_s[0])
    assert float(again.forward_s[0]) == float(unfused.forward_s[0])


def test_attention_is_an_option_of_the_papers_rules() -> None:
    asked = Request(
        model="gpt3-1t", cluster="b200-nvs8", gpus=(512,), global_batch=4096, strategies=("1d",),
        attention="unfused", rules="paper",
    )  # fmt: skip
    assert asked.rule_sets()[0].attention == "unfused"
    with pytest.raises(UsageError, match="--rules paper"):
        replace(asked, rules="corrected")


@pytest.mark.parametrize(
    ("model", "degrees", "option"),
    [
        ("llama3.1-8b", {"tp": 4, "sequence_parallel": True, "dp": 2, "micro_batches": 4}, "tp-overlap"),
        ("llama3.1-8b", {"pp": 4, "dp": 2, "micro_batches": 4}, "schedule"),
        ("mixtral-8x7b", {"dp": 8, "ep": 8, "zero": 1, "micro_batches": 8, "pp": 4, "vpp": 2}, "ep-overlap"),
    ],
)
def test_dimensions_outside_the_table_are_tried(model: str, degrees: dict[str, object], option: str) -> None:
    first = project(ModelConfig.load(model), ParallelConfig(**degrees), System.load("dgx-h100"), sequence=4096)
    found = refined(first)
    assert option in dict(found.changes)
    assert found.found.step_us < first.step_us
    assert found.found.infeasible is None
    assert found.found.parallel.global_batch == first.parallel.global_batch


def test_dualpipe_is_tried_with_exchanges_beside_computing_and_expert_ranks_that_make_room() -> None:
    """DeepSeek-V3 as ``search`` splits it on 2,048 H800: weights held twice fit with 32 expert ranks, not with 16. Where
    nothing is exchanged or nothing is piped, there is no such trial.
    """
    p = ParallelConfig.of(
        ranks=2048, global_batch=15360, cp=2, pp=16, ep=16, precision="fp8",
        recompute="selective", recompute_modules=("layernorm", "mlp_act", "moe_act"),
    )  # fmt: skip
    model, system = ModelConfig.load("deepseek-v3"), System.load("dgx-h800")
    first = project(model, p, system, sequence=4096, schedule="zb-h1")
    assert first.but(replace(p, ep_overlap=True), "dualpipe").infeasible is not None
    found = refined(first, headroom=0.06)
    assert found.changes == (("schedule", "dualpipe"), ("vpp", "1"), ("ep-overlap", ""), ("ep", "32"))
    assert found.found.step_us < 0.9 * first.step_us
    for other in (first.but(replace(p, ep=1, cp=1, dp=128), "zb-h1"), first.but(replace(p, pp=1, dp=1024), None)):
        assert not any("ep-overlap" in options for options, _ in _schedules(other))


def test_shards_within_a_node_and_tensor_ranks_of_experts_are_among_them() -> None:
    system = System.load("dgx-h100")
    sharded = project(ModelConfig.load("llama3.1-8b"), ParallelConfig(dp=32, zero=3), system, sequence=1024)
    assert [options for options, _ in _shards(sharded)] == [{"shard": "8"}]
    given = ParallelConfig(tp=2, sequence_parallel=True, dp=8, ep=8)
    experts = project(ModelConfig.load("mixtral-8x7b"), given, system, sequence=1024)
    assert [options for options, _ in _expert_ranks(experts)] == [{"etp": "2", "ep": "8"}, {"etp": "2", "ep": "4"}]


def test_clusters_of_a_sweep_are_compared_with_the_first() -> None:
    rows = [("m", 64, "a", 2.0), ("m", 64, "a", 2.5), ("m", 64, "b", 1.0), ("m", 128, "a", 1.0), ("m", 128, "b", 0.75)]
    lines = compared(pd.DataFrame(rows, columns=["model", "n_gpus", "cluster", "t"]))
    assert [line.split()[-2] for line in lines[1:]] == ["0.0", "-50.0", "0.0", "-25.0"]
    assert compared(pd.DataFrame(rows[:2], columns=["model", "n_gpus", "cluster", "t"])) == []


def test_the_best_of_one_is_as_good_as_it_says_and_the_best_of_many_equals_is_not() -> None:
    """Of two with errors of 5 % the least is low by 0.05 / sqrt(pi) on average: E max of two standard normals."""
    assert winners_curse(np.array([3.0]), 0.05) == pytest.approx(0, abs=1e-9)
    assert np.log1p(winners_curse(np.array([3.0, 3.0]), 0.05)) == pytest.approx(0.05 / np.sqrt(np.pi), rel=1e-3)
    assert winners_curse(np.array([3.0, 6.0]), 0.05) == pytest.approx(0, abs=1e-6)
    many = [winners_curse(np.full(count, 3.0), 0.05) for count in (2, 20, 200)]
    assert many == sorted(many)


@pytest.mark.parametrize("steps", ["equal", "spread", "searched"])
def test_intervals_of_the_best_of_many_hold_nine_of_ten(steps: str) -> None:
    """True times with drawn errors: the estimate of each is off by its own, and all by a common one. 85 to 95 % of 400
    winners are within; without the correction fewer.
    """
    draw = np.random.default_rng(4)
    if steps == "searched":
        asked = Request(
            model="llama3.1-8b", cluster="dgx-h100", gpus=(32,), global_batch=128, strategies=("1d",), sequence=4096
        )
        (found,) = answer(asked).found
        true = np.log(np.unique(found.step_s)[:200])
    else:
        true = np.zeros(40) if steps == "equal" else np.linspace(0, 1, 200)
    common, spread, held, naive = 0.09, named(None).split_spread, 0, 0
    half = 1.645 * np.hypot(common, spread)
    for _ in range(400):
        estimated = true + draw.normal(0, spread, len(true))
        best = int(estimated.argmin())
        off = true[best] + draw.normal(0, common) - estimated[best]
        held += abs(off - np.log1p(winners_curse(np.exp(estimated), spread))) <= half
        naive += abs(off) <= half
    assert 0.85 <= held / 400 <= 0.95
    assert naive / 400 < held / 400 + 0.01
