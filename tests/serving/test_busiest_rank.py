"""What the busiest data-parallel rank has: a step takes as long as that one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens.laboratory.configuration_rows import point_of
from tracelens.predict.serving import engines
from tracelens.predict.serving.costs import PlacedChunks
from tracelens.predict.serving.deployment import Engine, Parallelism
from tracelens.predict.serving.requests import Requests
from tracelens.predict.serving.simulation import Options, Simulation
from tracelens.predict.step_time import StepTimePredictor

OLMOE = ("olmoe-1b-7b", "dgx-h100")
CHANCE = Engine(chance_ranks="both", max_batched_tokens=8192)


def squared(lengths) -> int:
    return int(sum(int(each) ** 2 for each in lengths))


@pytest.fixture
def cost_on(cost_of):
    def made(ranks: int, engine: Engine | None = None):
        return cost_of(*OLMOE, engine=engine, parallelism=Parallelism(dp=ranks, ep=ranks))

    return made


def test_two_sequences_on_two_ranks(cost_on) -> None:
    """1,000 and 3,000 keys: deviation sqrt(((1,000 - 2,000)^2 + (3,000 - 2,000)^2) / 1) = 1,414; a maximum of two is
    0.59 deviations above the mean (exactly 0.56): each rank is taken to have 2,000 + 834, the busiest has 3,000.
    """
    assert cost_on(2).uneven(2, 4000, squared((1000, 3000))) == 4000 + round(2 * 0.5895 * 1414.2)


@pytest.mark.parametrize(("ranks", "own"), [(2, 4), (8, 1), (8, 4), (8, 16), (8, 64)])
@pytest.mark.parametrize("answer", [900, 7000])
def test_the_busiest_rank_is_the_one_of_batches_dealt_out_at_random(cost_on, ranks, own, answer) -> None:
    draw, dealt, law = np.random.default_rng(0), [], []
    for _ in range(400):
        lengths = np.rint(draw.uniform(800, 1000, ranks * own) + draw.uniform(0, answer, ranks * own)).astype(int)
        dealt.append(lengths.reshape(ranks, own).sum(axis=1).max() * ranks)
        law.append(cost_on(ranks).uneven(ranks * own, int(lengths.sum()), squared(lengths)))
    assert np.mean(law) == pytest.approx(np.mean(dealt), rel=0.025)


@settings(max_examples=examples(50), deadline=None)
@given(lengths=st.lists(st.integers(1, 100_000), min_size=1, max_size=64), ranks=st.sampled_from([1, 2, 8]))
def test_no_rank_has_less_than_the_mean_or_more_than_all(cost_of, lengths: list[int], ranks: int) -> None:
    cost = cost_of(*OLMOE, parallelism=Parallelism(dp=ranks, ep=ranks))
    found, total = cost.uneven(len(lengths), sum(lengths), squared(lengths)), sum(lengths)
    assert total <= found <= total * min(ranks, len(lengths)) * 1.2
    if ranks == 1 or len(set(lengths)) == 1:
        assert found == total


def test_sequences_anywhere_in_their_answers_are_evenly_spread(cost_on) -> None:
    """Answers of 2,400 tokens: deviation 2,400 / sqrt(12) = 693, of a batch one in 63 more; 8 of 8 ranks: 1.434."""
    lengths = [1000 + 2400 * (at + 0.5) / 64 for at in range(64)]
    found = cost_on(8).spread_out(64, round(sum(lengths)), 2400)
    assert found == pytest.approx(cost_on(8).uneven(64, round(sum(lengths)), squared(lengths)), rel=1e-3)
    assert found == pytest.approx(sum(lengths) + 1.434 * 693 * math.sqrt(64 / 63) * math.sqrt(8) * 8, rel=1e-3)
    assert cost_on(1).spread_out(64, 1000, 2400) == 1000


def test_a_step_waits_for_the_rank_with_the_longest_sequences() -> None:
    alone, shared = (StepTimePredictor(*OLMOE, dp=dp, ep=dp, engine="vllm") for dp in (1, 8))
    even, uneven = [20_000] * 64, [4_000] * 32 + [36_000] * 32
    assert alone([1] * 64, even) == alone([1] * 64, uneven)
    assert shared([1] * 64, even).seconds < shared([1] * 64, uneven).seconds < 2 * shared([1] * 64, even).seconds
    both = [1] * 64 + [512], [*even, 0]
    assert shared(*both).seconds < shared([1] * 64 + [512], [*uneven, 0]).seconds


def test_levels_of_detail_see_the_same_ranks() -> None:
    asked = {
        "dp": 4,
        "ep": 4,
        "concurrency": 24,
        "requests": 48,
        "input": "uniform:600:0.5",
        "output": "uniform:90:0.5",
    }
    low, medium = (tl.serve(*OLMOE, engine="vllm", lod=lod, **asked).summary for lod in ("low", "medium"))
    assert low["tpot_p50_ms"] == pytest.approx(medium["tpot_p50_ms"], rel=1e-9)


@pytest.mark.parametrize("batch", [4, 16, 128, 1024])
def test_sequences_that_go_to_ranks_by_chance(cost_on, batch) -> None:
    draw = np.random.default_rng(0)
    busiest = np.mean([np.bincount(draw.integers(0, 8, batch), minlength=8).max() for _ in range(1000)])
    apart = cost_on(8, CHANCE).apart("decode")
    assert busiest - 0.3 <= apart.own(batch) <= busiest + 1.1
    assert cost_on(8, CHANCE).own(batch) == cost_on(8).apart("decode").own(batch) == math.ceil(batch / 8)
    even, uneven = (cost.decode_line(batch, batch * 1000) for cost in (cost_on(8), apart))
    assert even.fixed + even.slope * batch * 1000 < uneven.fixed + uneven.slope * batch * 1000


def test_one_rank_knows_no_chance_and_ranks_without_experts_do_not_wait(cost_on, cost_of) -> None:
    dense = cost_of("llama3.1-8b", engine=CHANCE, parallelism=Parallelism(dp=4))
    for cost in (cost_on(1, CHANCE), dense):
        assert cost.apart("prefill") is cost
    assert dense.uneven(4, 4000, squared((100, 100, 100, 3700))) == 4000


def test_prompts_stay_on_the_ranks_where_they_are(cost_on) -> None:
    """Three prompts of 500 tokens on one of two ranks: 1,500 tokens of the busiest, not 1,000."""
    placed = PlacedChunks([(500, 0)] * 3)
    placed.ranks = (1, 1, 1)
    cost = cost_on(2)
    assert (cost.busiest(1500, placed, 0), cost.busiest(1500, [(500, 0)] * 3, 0)) == (1500, 1000)
    assert sum(cost.mixed_time(1500, placed, 3, 3, 0, 0)) > sum(cost.mixed_time(1500, [(500, 0)] * 3, 3, 3, 0, 0))


def test_a_rank_s_last_prompt_is_cut_to_what_its_step_has_left(cost_on) -> None:
    """Prompts of 6,000 tokens in steps of 8,192: with the beginning of the next one, in three quarters of the steps."""
    requests = Requests(arrival_fs=[0] * 288, input_tokens=[6000] * 288, output_tokens=[2] * 288)
    steps = {}
    for policy in ("prefill-first", "chunked-prefill"):
        cost = cost_on(8, Engine(policy=policy, max_batched_tokens=8192, chance_ranks="prefill"))
        outcome = Simulation(cost.deployment, requests, Options(prefill_replicas=1), cost=cost).run()
        assert outcome.left_blocks == 0
        steps[policy] = outcome.steps[1].prompt_steps
    assert steps["chunked-prefill"] == pytest.approx(steps["prefill-first"] * 6000 / 8192, abs=2)


@pytest.mark.parametrize("policy", ["prefill-first", "chunked-prefill", "continuous"])
def test_prompts_by_chance_wait_for_each_other(cost_on, policy) -> None:
    """Eight ranks and eight prompts at a time, of which some share a rank while others idle; on one rank nothing does."""
    requests = Requests(arrival_fs=None, input_tokens=[6000] * 96, output_tokens=[2] * 96, concurrency=8)
    waits = {}
    for ranks in (1, 8):
        for chance in ("", "prefill"):
            engine = Engine(policy=policy, max_batched_tokens=8192, chance_ranks=chance)
            cost = cost_on(ranks, engine)
            outcome = Simulation(cost.deployment, requests, Options(prefill_replicas=1), cost=cost).run()
            log = outcome.log
            assert not log.rejected
            assert min(log.last) > 0
            assert outcome.left_blocks == 0
            waits[ranks, chance] = np.mean(np.array(log.first) - np.array(log.arrival))
    assert waits[1, ""] == waits[1, "prefill"]
    assert 1.3 < waits[8, "prefill"] / waits[8, ""] < 4


def test_releases_of_sglang_send_answers_to_ranks_by_chance_or_in_turns() -> None:
    row = {"model_path": "deepseek-v3", "system": "gb200", "isl": 1024, "osl": 1024, "concurrency": 64,
           "backend": "sglang", "date": "2025-12-09"}  # fmt: skip
    said = [{}, {"date": "2026-02-09"}, {"backend_version": "sglang-0.5.7-rocm700", "date": "2026-02-13"},
            {"backend_version": "v0.5.10.post1"}, {"backend": "trtllm"}, {"date": None}]  # fmt: skip
    assert [point_of({**row, **other}).chance_ranks for other in said] == ["both", "", "both", "", "", ""]
    assert [engines.HABITS[name].get("chance_ranks", "") for name in ("sglang", "vllm", "trtllm")] == [
        "prefill",
        "",
        "",
    ]
