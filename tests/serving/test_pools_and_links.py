"""Replicas with hardware of their own, caches in host memory, links that steps share, constants of another deployment."""

from __future__ import annotations

import itertools
import json
import operator

import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.backends import System
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.laboratory.scenarios import compare, of_deployment
from tracelens.predict.serving.deployment import Engine, Parallelism
from tracelens.predict.serving.engines import fitted_engine
from tracelens.predict.serving.metrics import differences, summary
from tracelens.predict.serving.replica_state import BlockPool
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload
from tracelens.predict.serving.scheduling import Arrived, routers
from tracelens.predict.serving.simulation import Options, Simulation, simulate

MIXED = Workload(
    arrivals=Arrivals(rate=10.0), input=Lengths(kind="lognormal", mean=2000, spread=0.8), output=Lengths(mean=12),
    count=10, seed=3,
)  # fmt: skip


def test_prompts_are_computed_on_the_hardware_of_their_own_replicas():
    asked = {"rate": 2.0, "requests": 6, "input": 2048, "output": 4, "replicas": 1, "prefill_replicas": 1}
    slow, fast = (
        tl.serve("llama3.1-8b", "a100-sxm-80gb", prefill_cluster=each, **asked).summary for each in (None, "h100-sxm")
    )
    assert fast["ttft_p50_ms"] < 0.7 * slow["ttft_p50_ms"]
    assert fast["devices"] == slow["devices"] == 2
    assert fast["energy_j_per_output_token"] > slow["energy_j_per_output_token"]  # 700 W beside 400


def test_a_prefill_replica_has_degrees_and_limits_of_its_own():
    result = tl.serve(
        "llama3.1-8b", "dgx-h100", rate=2.0, requests=4, input=2048, output=3, prefill_replicas=1, prefill_tp=4,
        prefill_max_batched_tokens=512,
    )  # fmt: skip
    assert result.summary["devices"] == 5
    # Prompts of 2,048 tokens in four steps of 512, and two decode steps each
    assert result.outcome.steps[1].steps >= 16


def test_a_pool_forms_batches_as_its_own_engine_does(cost_of):
    """Prompts of 4,096 tokens in chunks of 1,024, though the replica that decodes takes whole prompts."""
    requests = Requests(arrival_fs=None, input_tokens=[4096] * 2, output_tokens=[2] * 2, concurrency=2)
    cost = cost_of(engine=Engine(policy="prefill-first", max_batched_tokens=8192))
    steps = []
    for policy in ("prefill-first", "chunked-prefill"):
        prompts = cost.limited(policy=policy, max_batched_tokens=1024)
        outcome = Simulation(cost.deployment, requests, Options(prefill_replicas=1), cost=(cost, prompts)).run()
        steps.append(outcome.steps[1].steps)
    assert steps == [2, 8]


def test_a_random_router_sends_as_many_anywhere_and_the_same_in_every_run():
    found = [[routers()["random"].target(Arrived(n, n), "abc") for n in range(3000)] for _ in range(2)]
    assert found[0] == found[1]
    assert [found[0].count(index) for index in range(3)] == pytest.approx([1000] * 3, rel=0.1)
    # Not in turns: as often as by chance, a request goes where the one before it went
    assert sum(itertools.starmap(operator.eq, itertools.pairwise(found[0]))) == pytest.approx(1000, rel=0.1)


def test_hardware_of_prefill_replicas_needs_some():
    with pytest.raises(UsageError, match=r"--prefill-tp: .* give --prefill-replicas"):
        tl.serve("llama3.1-8b", "dgx-h100", rate=2.0, requests=4, prefill_tp=2)


def test_pieces_that_leave_the_pool_are_kept_below_and_the_oldest_forgotten():
    pool = BlockPool(total=4, block_tokens=16, piece_tokens=32, lower_pieces=2)
    for piece in (1, 2, 3, 4, 5):
        pool.hold([piece])
        pool.drop([piece])
    # Two pieces of two blocks fit: 4 and 5. Below are 2 and 3; 1 was forgotten.
    assert [pool.cached([piece]) for piece in (1, 2, 3, 4, 5)] == [0, 0, 0, 1, 1]
    assert [pool.below([piece]) for piece in (1, 2, 3, 4, 5)] == [0, 1, 1, 0, 0]
    pool.hold([2])
    assert pool.cached([2]) == 1


def test_prefixes_in_host_memory_are_read_back_and_not_computed():
    asked = {
        "rate": 4.0, "requests": 24, "input": 640, "output": 4, "shared_prefix": 512, "shared_groups": 8,
        "kv_tokens": 2000, "max_num_seqs": 2, "seed": 1,
    }  # fmt: skip
    without, cached = (tl.serve("llama3.1-8b", "h100-sxm", cpu_cache=each, **asked).summary for each in (0.0, 16.0))
    assert cached["cached_prompt_tokens"] > without["cached_prompt_tokens"]
    assert cached["prefill_tokens"] < without["prefill_tokens"]
    assert cached["ttft_mean_ms"] < without["ttft_mean_ms"]
    assert cached["completed"] == without["completed"] == 24


def _run(cost, **options):
    return simulate(cost.deployment, MIXED.generate(), Options(**options), cost=cost)


@pytest.mark.parametrize(
    ("system", "tp", "pp"),
    part(
        [("dgx-h100", 2, 1), ("dgx-h100", 1, 2), ("dgx-h100", 8, 2), ("l40s", 1, 2), ("l40s", 2, 4)],
        4,
    ),
)
def test_levels_differ_with_contention_only_where_hand_overs_take_the_links_of_collectives(system, tp, pp, cost_of):
    cost = cost_of(system=system, parallelism=Parallelism(tp=tp, pp=pp))
    free, shared = (
        {level: summary(_run(cost, levels=(level,), contention=each)) for level in ("high", "medium")}
        for each in (False, True)
    )
    assert max(differences(free["high"], free["medium"]).values()) <= 1e-9
    apart = max(differences(shared["high"], shared["medium"]).values())
    # Over PCIe two stages' hand-overs and all-reduces share ports, and a prompt's outlasts a layer; eight devices of a
    # node hand over through its cards
    if (system, tp, pp) == ("l40s", 2, 4):
        assert 1e-5 < apart < 0.01
    else:
        assert apart <= 1e-9
        assert shared["medium"]["window_s"] == pytest.approx(free["medium"]["window_s"], rel=1e-9)
    assert shared["high"]["window_s"] >= free["high"]["window_s"] * (1 - 1e-9)


def test_a_hand_over_occupies_its_hop(cost_of):
    cost = cost_of(system="l40s", parallelism=Parallelism(pp=2))
    run = Simulation(cost.deployment, MIXED.generate(), Options(), cost=cost)
    outcome = run.run()
    first, last = run.replicas[0].hops
    assert 0 < first.busy <= outcome.end_fs
    assert last.busy == 0


def test_scenarios_take_any_deployment(cost_of):
    cost = cost_of(system="l40s", parallelism=Parallelism(tp=2, pp=2))
    found = compare(
        of_deployment(cost.deployment), cost.deployment, MIXED.generate(), Options(contention=True), repeats=1
    )
    assert found.scenario.title == "Llama 3.1 8B, 32 layers, PP 2 x TP 2 x DP 1"
    assert found.largest_difference < 0.01
    assert found.high_events > found.medium_events


def test_scenarios_are_written_as_json_and_as_a_workbook(capsys, tmp_path):
    words = ["serve", "--scenarios", "--model", "llama3.1-8b", "--cluster", "dgx-h100", "--tp", "2", "--requests", "2"]
    words += ["--input-tokens", "64", "--output-tokens", "3"]
    assert main([*words, "--format", "json", "-o", str(tmp_path / "levels.xlsx")]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert (row["model"], row["completed_high"]) == ("llama3.1-8b", 2)
    assert row["title"].endswith("PP 1 x TP 2 x DP 1")
    assert row["tpot_mean_ms_high"] == pytest.approx(row["tpot_mean_ms_medium"], rel=1e-9)
    assert (tmp_path / "levels.xlsx").read_bytes()[:2] == b"PK"


def test_constants_of_another_model_or_device_are_doubted():
    engine = Engine(name="mine", fitted_model="qwen3-32b", fitted_device="h100-sxm")
    assert engine.doubt("qwen3-32b", "h100-sxm") is None
    assert "fitted on qwen3-32b, h100-sxm, not llama3.1-8b, h100-sxm" in (engine.doubt("llama3.1-8b", "h100-sxm") or "")
    result = tl.serve("llama3.1-8b", "h100-sxm", engine=engine, rate=1.0, requests=2, input=8, output=2)
    assert any("was fitted on" in note for note in result.notes)


def test_an_all_reduce_may_be_direct(cost_of):
    cost = cost_of(parallelism=Parallelism(tp=4), collective="direct")
    exchange = cost.decode_work(1, 1)[0].layers[0].exchanges[0]
    assert (exchange.name, exchange.steps, exchange.transfers) == ("all_reduce/direct", 2, 12)


LOAD = {"input": 1024, "output": 32, "engine": "vllm", "lod": "low"}


@pytest.mark.parametrize("policy", ["prefill-first", "chunked-prefill", "continuous"])
def test_data_parallel_ranks_of_a_dense_model_answer_as_servers_of_their_own(policy):
    """Nothing is exchanged between them, and each has its own scheduler: four with 32 requests are one with 8."""
    one = tl.serve("llama3.1-8b", "h100-sxm", concurrency=8, requests=8, policy=policy, **LOAD).summary
    four = tl.serve("llama3.1-8b", "dgx-h100", concurrency=32, requests=32, dp=4, policy=policy, **LOAD).summary
    for name in ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms", "window_s"):
        # Slopes are whole femtoseconds a key: at 8,000 keys of 9 ms a rank may be off by 1e-9
        assert four[name] == pytest.approx(one[name], rel=1e-8), name
    assert four["output_tokens_per_s"] == pytest.approx(4 * one["output_tokens_per_s"], rel=1e-8)
    assert four["kv_pool_tokens"] == pytest.approx(4 * one["kv_pool_tokens"], rel=1e-3)


def test_limits_hold_for_each_data_parallel_rank():
    asked = {**LOAD, "output": 200, "input": 16, "max_num_seqs": 8, "requests": 64, "concurrency": 64}
    assert tl.serve("llama3.1-8b", "dgx-h100", dp=4, **asked).summary["mean_batch"] == pytest.approx(32, rel=0.02)


def test_a_prompt_is_computed_by_one_data_parallel_rank():
    alone, among = (
        tl.serve("llama3.1-8b", "dgx-h100", dp=dp, concurrency=1, requests=1, **{**LOAD, "input": 8000}).summary
        for dp in (1, 8)
    )
    assert among["ttft_mean_ms"] == pytest.approx(alone["ttft_mean_ms"], rel=1e-9)


def test_each_pool_has_its_own_split_and_its_devices_are_counted():
    asked = {"weights": "fp4", "concurrency": 64, "requests": 64, "input": 922, "output": 8, "engine": "sglang"}
    split = {"dp": 32, "ep": 32, "prefill_replicas": 4, "prefill_tp": 4}
    result = tl.serve("deepseek-v3", "gb200-nvl72", **asked, **split)
    prefill = result.experiment.prefill.parallelism
    assert (prefill.tp, prefill.dp, prefill.pp, prefill.ep) == (4, 1, 1, 4)
    assert result.summary["devices"] == 4 * 4 + 32  # 48, not 544
    wide = tl.serve("deepseek-v3", "gb200-nvl72", **asked, **split | {"prefill_tp": None, "prefill_dp": 8})
    assert (wide.experiment.prefill.parallelism.dp, wide.experiment.prefill.parallelism.ep) == (8, 8)
    assert wide.summary["devices"] == 4 * 8 + 32


def test_the_first_token_waits_for_the_cache_to_arrive():
    asked = {"concurrency": 1, "requests": 1, "input": 4096, "output": 16, "prefill_replicas": 1}
    fast, slow = (tl.serve("llama3.1-8b", "dgx-h100", kv_link=rate, **asked).summary for rate in (1e9, 10.0))
    cache_bytes = 4096 * 32 * 2 * 8 * 128 * 2  # tokens, layers, keys and values, heads, width, bytes
    assert slow["ttft_p50_ms"] - fast["ttft_p50_ms"] == pytest.approx(cache_bytes / 10e9 * 1e3, rel=1e-6)
    assert slow["tpot_p50_ms"] == pytest.approx(fast["tpot_p50_ms"], rel=1e-9)


def test_a_cache_misses_the_step_that_was_launched_ahead(cost_of):
    """Of the second of two requests the prompt waits for the end of a step, half of one in the mean, and its sequence
    joins a step later; the first one finds nothing that decodes.
    """
    waits = []
    for ahead in (False, True):
        cost = cost_of(engine=Engine(launches_ahead=ahead))
        requests = Requests(
            arrival_fs=[0, *range(10**14, 10**15, 10**13)], input_tokens=[512] * 91, output_tokens=[2000] + [2] * 90
        )
        log = Simulation(cost.deployment, requests, Options(prefill_replicas=1), cost=cost).run().log
        waits.append((log.first[0], sum(log.first[1:]) / 90))
    line = cost.decode_line(1, 1000)
    step = line.fixed + line.slope * 1000
    assert waits[1][0] == waits[0][0]
    assert waits[1][1] - waits[0][1] == pytest.approx(1.5 * step, rel=0.1)


def test_a_prompt_keeps_its_place_until_its_cache_is_where_it_decodes(cost_of):
    """Two prompts and one place: the second begins a step after the first, or only when 4,096 x 128 KiB have gone."""
    requests = Requests(arrival_fs=None, input_tokens=[4096] * 2, output_tokens=[3] * 2, concurrency=2)
    between = []
    for keeps in (False, True):
        cost = cost_of(engine=Engine(max_num_seqs=1, max_batched_tokens=4096, keeps_sent=keeps))
        outcome = Simulation(cost.deployment, requests, Options(prefill_replicas=1, kv_link_gb_s=10.0), cost=cost).run()
        assert outcome.left_blocks == 0
        between.append(outcome.log.scheduled[1] - outcome.log.scheduled[0])
    assert between[0] == sum(cost.mixed_time(4096, [(4096, 0)], 1, 1, 0, 0))
    assert between[1] - between[0] == pytest.approx(4096 * 131_072 / 10e9 * 1e15, rel=1e-6)


def test_prefill_replicas_with_a_link_that_takes_no_time_are_a_server_for_prompts_and_one_for_answers():
    asked = {"concurrency": 4, "requests": 4, "input": 2048, "output": 32, "engine": "vllm"}
    apart = tl.serve("llama3.1-8b", "dgx-h100", prefill_replicas=1, kv_link=1e9, **asked).summary
    prompts = tl.serve("llama3.1-8b", "dgx-h100", **{**asked, "output": 1}).summary
    handed_ms = fitted_engine("vllm", System.load("dgx-h100").device).handover_us / 1e3
    assert apart["ttft_p50_ms"] - handed_ms == pytest.approx(prompts["ttft_p50_ms"], rel=0.05)
    assert apart["prefill_tokens"] == prompts["prefill_tokens"]


def test_experts_that_do_not_divide_over_the_devices_have_copies():
    engine = {"engine": "sglang", "weights": "fp8", "concurrency": 72, "requests": 72, "input": 64, "output": 4}
    plain, more = (
        tl.serve("deepseek-v3", "dgx-h100", dp=72, ep=72, redundant_experts=copies, **engine) for copies in (0, 100)
    )
    assert plain.summary["completed"] == more.summary["completed"] == 72
    # 4 experts a device at 0, 5 at 100 (356 places, 360 filled): the fifth takes memory from the cache
    assert more.summary["kv_pool_tokens"] < plain.summary["kv_pool_tokens"]
    with pytest.raises(UsageError, match="redundant_experts must be 0 or more"):
        tl.serve("deepseek-v3", "dgx-h100", dp=72, ep=72, redundant_experts=-1, **engine)
