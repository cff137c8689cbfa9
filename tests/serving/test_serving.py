"""What a run must keep: tokens, blocks, queueing laws; how each bad request ends."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens.backends import System
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.predict.serving.costs import StepCost, steps_of
from tracelens.predict.serving.deployment import Deployment, Engine, Parallelism, ServingPrecision, Speculation
from tracelens.predict.serving.experiment import Experiment, ServingResult
from tracelens.predict.serving.metrics import Objectives, duration_s, per_request, per_step, percentile_of, summary
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload
from tracelens.predict.serving.simulation import Options, simulate
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.blocks import layers_of
from tracelens.predict.workload.model_shape import VisionTower
from tracelens.predict.workload.token_routing import Skew

BASE = Workload(arrivals=Arrivals(rate=10.0), input=Lengths(mean=200), output=Lengths(mean=20), count=30, seed=1)


def run(cost, workload=BASE, **options):
    return simulate(cost.deployment, workload.generate(), Options(**options), cost=cost)


@settings(max_examples=examples(25), deadline=None)
@given(
    rate=st.sampled_from([0.5, 8.0, 200.0]),
    seed=st.integers(0, 1000),
    policy=st.sampled_from(["chunked-prefill", "static", "continuous", "prefill-first"]),
    level=st.sampled_from(["medium", "low"]),
    pool=st.sampled_from([700, 1500, 100_000]),
    preemption=st.sampled_from(["recompute", "swap"]),
)
def test_every_request_is_completed_or_rejected_and_nothing_stays_behind(
    cost_of, rate, seed, policy, level, pool, preemption
):
    cost = cost_of(engine=Engine(kv_tokens=pool, preemption=preemption, max_num_seqs=16))
    workload = dataclasses.replace(
        BASE, seed=seed, arrivals=Arrivals(rate=rate), input=Lengths(kind="lognormal", mean=250, spread=1.0)
    )
    outcome = run(cost, workload, policy=policy, levels=(level,))
    figures, frame = summary(outcome), per_request(outcome)
    assert figures["completed"] + figures["rejected"] == figures["submitted"] == 30
    assert outcome.left_blocks == 0
    assert max(outcome.peak_blocks) <= pool // 16
    served = frame[~frame["rejected"]]
    assert (served["ttft_ms"] <= served["e2e_ms"]).all()
    assert (served["scheduled_to_first_ms"] > 0).all()
    assert figures["utilization"] is None or figures["utilization"] <= 1 + 1e-12
    # Every token but the first of each request ends a gap, recomputed ones once
    tokens = int(served["output_tokens"].sum()) - len(served)
    assert sum(int(log.gaps()[1].sum()) for log in outcome.steps) == tokens


def test_sequences_in_steps_are_those_that_requests_say_they_spent_there(cost_of):
    """Little's law of the decoding batch: its sequences over time, from the steps, are the requests' times in it."""
    outcome = run(cost_of(), dataclasses.replace(BASE, arrivals=Arrivals(rate=40.0), count=80), series=True)
    frame, steps = per_request(outcome), per_step(outcome)
    before = steps["time_ms"].shift(fill_value=0.0)  # a step with sequences begins where the last one ended
    inside = (steps["decoding"] * (steps["time_ms"] - before)).sum()
    assert steps["decoding"].max() > 5
    assert inside == pytest.approx((frame["e2e_ms"] - frame["ttft_ms"]).sum(), rel=1e-9)


@pytest.mark.sweep
def test_one_at_a_time_with_equal_service_waits_as_the_formula_for_such_queues_says(cost_of):
    cost = cost_of(engine=Engine(max_num_seqs=1))
    one = run(cost, dataclasses.replace(BASE, output=Lengths(mean=1), count=1))
    service_s = float(per_request(one)["e2e_ms"][0]) / 1e3
    load = 0.6
    workload = dataclasses.replace(BASE, output=Lengths(mean=1), count=40_000, arrivals=Arrivals(rate=load / service_s))
    waited = per_request(run(cost, workload, levels=("low",)))["queue_ms"].mean() / 1e3
    assert waited == pytest.approx(load / (2 * (1 - load)) * service_s, rel=0.05)  # M/D/1


def test_an_answer_of_one_token_ends_with_its_prompt(cost_of):
    frame = per_request(run(cost_of(), dataclasses.replace(BASE, output=Lengths(mean=1))))
    assert (frame["ttft_ms"] == frame["e2e_ms"]).all()
    assert frame["tpot_ms"].isna().all()


def test_a_pipeline_needs_the_sum_of_its_stages_per_token(cost_of):
    whole, staged = cost_of(), cost_of(parallelism=Parallelism(pp=2))
    single = dataclasses.replace(BASE, count=1, output=Lengths(mean=50))
    tpot = [float(per_request(run(cost, single))["tpot_ms"][0]) for cost in (whole, staged)]
    assert tpot[1] > tpot[0]  # the same work, and hand-overs


def test_devices_with_requests_of_their_own_hand_over_those_alone(cost_of):
    whole, shared = (cost_of(parallelism=Parallelism(pp=2, **degrees)) for degrees in ({"tp": 2}, {"dp": 2}))
    assert shared.handover(2048) == whole.handover(1024)


def test_more_bandwidth_is_never_slower_in_static_batches():
    times = []
    for share in (0.5, 0.7, 1.0):
        engine = Engine(hbm_efficiency=share, kv_tokens=50_000)
        deployment = Deployment(model=ModelConfig.load("llama3.1-8b"), system=System.load("h100-sxm"), engine=engine)
        times.append(summary(run(StepCost(deployment), policy="static"))["window_s"])
    assert times == sorted(times, reverse=True)


def test_shared_beginnings_are_computed_once(cost_of):
    workload = dataclasses.replace(BASE, shared_tokens=160, shared_groups=1, arrivals=Arrivals(rate=2.0))
    figures = summary(run(cost_of(), workload))
    assert figures["cached_prompt_tokens"] == 29 * 160
    assert figures["prefill_tokens"] == 30 * 200 - 29 * 160


def test_prefix_aware_routing_finds_more_than_turns_do(cost_of):
    workload = dataclasses.replace(BASE, count=60, shared_tokens=160, shared_groups=6, arrivals=Arrivals(rate=5.0))
    found = {
        router: summary(run(cost_of(), workload, replicas=3, router=router))["cached_prompt_tokens"]
        for router in ("round-robin", "prefix-aware")
    }
    assert found["prefix-aware"] > found["round-robin"]


def test_speculation_divides_steps_by_its_tokens_per_step(cost_of):
    sure = Speculation(draft_tokens=3, acceptance=1.0)
    assert sure.tokens_per_step == 4
    assert Speculation(draft_tokens=2, acceptance=0.5).tokens_per_step == 1 + 0.5 + 0.25
    single = dataclasses.replace(BASE, count=1, output=Lengths(mean=41))
    plain, guessed = (run(cost_of(**fields), single).steps[0].decode_steps for fields in ({}, {"speculation": sure}))
    assert (plain, guessed) == (40, 10)


def test_a_draft_model_costs_time(cost_of):
    free, drafted = (
        summary(run(cost_of(speculation=Speculation(draft_tokens=3, acceptance=0.7, draft=draft))))["tpot_mean_ms"]
        for draft in (None, ModelConfig.load("qwen2.5-0.5b"))
    )
    assert drafted > free


def test_apart_phases_send_the_cache_over_the_named_link(cost_of):
    cost = cost_of()
    single = dataclasses.replace(BASE, count=1)
    slow, fast = (
        float(per_request(run(cost, single, prefill_replicas=1, kv_link_gb_s=rate))["e2e_ms"][0])
        for rate in (1.0, 10.0)
    )
    moved_ms = 200 * 131_072 / 1e6  # 2 x 32 layers x 8 heads x 128 x 2 bytes a token, at 1 GB/s
    assert slow - fast == pytest.approx(moved_ms * 0.9, rel=1e-6)


def test_kv_bytes_of_known_models():
    def per_token(name):
        return StepCost(Deployment(model=ModelConfig.load(name), system=System.load("h200-sxm"))).kv_bytes_per_token()

    assert per_token("llama3.1-8b") == 2 * 32 * 8 * 128 * 2
    assert per_token("deepseek-v3") == 61 * (512 + 64) * 2


def test_narrow_weights_leave_a_larger_pool_and_decode_faster(cost_of):
    bf16, fp8 = (
        cost_of("llama3.1-70b", parallelism=Parallelism(tp=4)),
        cost_of(
            "llama3.1-70b",
            parallelism=Parallelism(tp=4),
            precision=ServingPrecision.named("fp8", ModelConfig.load("llama3.1-70b")),
        ),
    )
    assert fp8.pool_tokens() > bf16.pool_tokens()
    lines = [cost.decode_line(8, 8000) for cost in (bf16, fp8)]
    assert lines[1].fixed < lines[0].fixed


def test_steps_add_up_to_the_line_and_the_sums(cost_of):
    for cost in (cost_of(), cost_of(parallelism=Parallelism(tp=2, pp=2)), cost_of("qwen3-30b-a3b")):
        for batch, context in ((1, 1), (7, 4001), (64, 64 * 511)):
            works, line = cost.decode_work(batch, context), cost.decode_line(batch, context)
            assert sum(w.compute_fs + w.exchange_fs for w in works) == line.fixed + line.slope * context
        args = (700, [(500, 0), (190, 1024)], 12, 2, 10, 9000)
        works = cost.mixed(*args)
        assert (sum(w.compute_fs for w in works), sum(w.exchange_fs for w in works)) == cost.mixed_time(*args)


def test_blocks_are_grouped_to_layers():
    assert layers_of("*-*E") == ("*-", "*E")
    assert layers_of("MM*-") == ("M", "M", "*-")


def test_collectives_have_the_steps_of_their_algorithm():
    assert steps_of("ring", "all_reduce", 4) == (6, 4)
    assert steps_of("ring", "all_gather", 4) == (3, 4)
    assert steps_of("tree", "all_reduce", 8) == (6, 7)
    assert steps_of("send", "send", 2) == (1, 1)


def test_the_illustrated_all_reduce_moves_the_whole_message_in_each_step(cost_of):
    ring, simple = (
        cost_of(parallelism=Parallelism(tp=4), collective=name).mixed_time(8192, [(8192, 0)], 1, 1, 0, 0)[1]
        for name in ("ring", "seed_simple")
    )
    assert 3.5 < simple / ring < 4.05


def test_arrivals_do_not_change_with_lengths():
    a = dataclasses.replace(BASE, input=Lengths.parse("uniform:100:0.5")).generate()
    assert a.arrival_fs == BASE.generate().arrival_fs
    assert a.input_tokens != BASE.generate().input_tokens


def test_a_duration_ends_arrivals_and_not_the_run(cost_of):
    workload = dataclasses.replace(BASE, count=None, duration_s=3.0, arrivals=Arrivals(rate=20.0))
    outcome = run(cost_of(), workload)
    assert 30 < len(outcome.requests) < 90
    assert max(outcome.requests.arrival_fs) < 3e15 < outcome.end_fs


@pytest.mark.parametrize("kind", ["poisson", "gamma", "constant", "burst"])
def test_arrivals_come_at_their_rate(kind):
    arrival = Workload(arrivals=Arrivals(kind=kind, rate=50.0, variation=2.0), count=20_000).generate().arrival_fs
    assert arrival[-1] / 1e15 == pytest.approx(400, rel=0.05)
    assert arrival == sorted(arrival)


def test_goodput_counts_what_keeps_every_limit(cost_of):
    outcome = run(cost_of(), dataclasses.replace(BASE, arrivals=Arrivals(rate=60.0)))
    frame = per_request(outcome)
    limit = float(frame["ttft_ms"].median())
    figures = summary(outcome, Objectives(ttft_ms=limit), price_per_gpu_hour=3.6)
    assert figures["good_share"] == (frame["ttft_ms"] <= limit).mean()
    assert figures["cost_per_million_output_tokens"] == pytest.approx(
        3.6 / 3600 * figures["window_s"] / (30 * 20) * 1e6
    )


def test_the_series_has_a_row_per_step(cost_of):
    outcome = run(cost_of(), series=True)
    frame = per_step(outcome)
    assert len(frame) == outcome.steps[0].steps
    assert frame["time_ms"].is_monotonic_increasing
    assert frame["blocks_in_use"].max() <= outcome.peak_blocks[0]


def test_durations_are_read_with_their_unit():
    assert [duration_s(text) for text in ("500ms", "1h", "2.5s", "3min")] == [0.5, 3600, 2.5, 180]
    with pytest.raises(UsageError, match="a duration"):
        duration_s("soon")


def test_a_saturated_server_ends_and_says_so(cost_of):
    cost = cost_of(engine=Engine(max_num_seqs=2))
    workload = dataclasses.replace(BASE, count=200, arrivals=Arrivals(rate=500.0))
    result = Experiment(deployment=cost.deployment, workload=workload).run(cost=cost)
    assert result.summary["completed"] == 200
    assert any("the server is saturated" in note for note in result.notes)


@pytest.mark.parametrize(("load", "says"), [(1.3, True), (0.7, False)])
def test_a_server_that_falls_behind_says_so_before_requests_wait_longer_than_they_run(cost_of, load: float, says: bool):
    cost = cost_of(engine=Engine(max_num_seqs=8))

    def run_at(rate: float) -> ServingResult:
        workload = dataclasses.replace(BASE, count=300, arrivals=Arrivals(rate=rate), output=Lengths(mean=400))
        return Experiment(deployment=cost.deployment, workload=workload).run(cost=cost)

    capacity = float(run_at(10_000).summary["requests_per_s"] or 0)
    result = run_at(load * capacity)
    assert any("the server is saturated" in note for note in result.notes) == says


def test_a_headline_has_no_powers_of_ten(cost_of):
    cost = cost_of(engine=Engine(max_num_seqs=1))
    workload = dataclasses.replace(BASE, count=100, arrivals=Arrivals(rate=1e6), output=Lengths(mean=2000))
    shown = repr(Experiment(deployment=cost.deployment, workload=workload).run(cost=cost))
    assert "e+" not in shown
    assert re.search(r"\d,\d{3} ms to the first token", shown)


def test_a_request_longer_than_the_cache_is_rejected_with_the_reason(cost_of):
    cost = cost_of(engine=Engine(kv_tokens=160))
    result = Experiment(deployment=cost.deployment, workload=BASE).run(cost=cost)
    assert (result.summary["completed"], result.summary["rejected"]) == (0, 30)
    assert "30 of 30 requests were rejected: 220 tokens do not fit a key-value cache of 160" in result.notes


def test_many_rejections_in_a_closed_loop_end(cost_of):
    cost = cost_of(engine=Engine(kv_tokens=160))
    workload = dataclasses.replace(BASE, count=5000, arrivals=Arrivals(kind="closed", concurrency=3))
    assert summary(run(cost, workload))["rejected"] == 5000


def test_no_requests_is_nothing_to_analyze(cost_of):
    with pytest.raises(NothingToAnalyzeError, match="no requests to serve"):
        Experiment(deployment=cost_of().deployment, workload=dataclasses.replace(BASE, count=0)).run()


def test_a_vision_tower_leaves_less_room_by_its_parameters_on_the_first_stage() -> None:
    """Llama 4's tower before Llama 3.1 8B, in BF16, divided over tp 2."""
    plain = ModelConfig.load("llama3.1-8b")
    tower = VisionTower(
        layers=34, hidden=1408, ffn=5632, heads=16, head_dim=88, patch_elements=588, merged=4, out=plain.hidden,
        projector=4096, positions=577,
    )  # fmt: skip
    seeing = dataclasses.replace(plain, vision=tower)
    rooms = [
        StepCost(Deployment(model=model, system=System.load("dgx-h100"), parallelism=Parallelism(tp=2)))
        for model in (plain, seeing)
    ]
    less = (rooms[0].pool_tokens() - rooms[1].pool_tokens()) * rooms[0].kv_bytes_per_token() / 2
    assert less == pytest.approx(2 * seeing.parameters().vision / 2, rel=1e-3)


def test_room_beside_recurrent_states_says_what_they_take() -> None:
    """Qwen3.5-27B: 48 layers of 48 heads with 128 x 128 fp32 numbers, and 3 inputs of 10,240 convolved channels."""
    result = Experiment(
        deployment=Deployment(model=ModelConfig.load("qwen3.5-27b"), system=System.load("dgx-h200")),
        workload=dataclasses.replace(BASE, count=2),
    ).run()
    (note,) = (note for note in result.notes if "states" in note)
    per_sequence = 48 * (48 * 128 * 128 * 4 + 3 * 10240 * 2)
    assert f"{256 * per_sequence / 1e9:.1f} GB per device" in note


def test_a_model_that_does_not_fit_says_how_much_is_missing():
    with pytest.raises(UsageError, match=r"llama3.1-405b does not fit: 75\d\.\d GiB .* 70\.3 GiB usable on h100-sxm"):
        StepCost(Deployment(model=ModelConfig.load("llama3.1-405b"), system=System.load("h100-sxm"))).pool_tokens()


@pytest.mark.parametrize(
    ("parallelism", "message"),
    [
        (Parallelism(tp=5), "tp 5 does not divide llama3.1-8b's query heads 32"),
        (Parallelism(pp=33), "pp 33 needs at least as many layers; llama3.1-8b has 32"),
        (Parallelism(tp=2, ep=2), "llama3.1-8b has no experts to spread over ep 2"),
    ],
)
def test_a_model_that_cannot_be_divided_says_why(parallelism, message):
    with pytest.raises(UsageError, match=message):
        StepCost(
            Deployment(model=ModelConfig.load("llama3.1-8b"), system=System.load("dgx-h100"), parallelism=parallelism)
        )


def test_an_unknown_policy_is_named(cost_of):
    with pytest.raises(UsageError, match="no policy named 'chunked'; did you mean"):
        run(cost_of(), policy="chunked")


def test_requests_without_tokens_are_refused():
    with pytest.raises(UsageError, match="at least one prompt token"):
        Requests(arrival_fs=[0], input_tokens=[0], output_tokens=[3])


def test_the_notebook_function_is_the_command(capsys):
    import json

    import tracelens as tl
    from tracelens.cli import main

    result = tl.serve("llama3.1-8b", "h100-sxm", rate=8.0, requests=20, input=200, output=20, slo="ttft=1s")
    words = "--model llama3.1-8b --cluster h100-sxm --rate 8 --requests 20 --input 200 --output 20 --slo ttft=1s"
    assert main(["serve", *words.split(), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"] == dict(result.summary)
    assert len(result.requests) == 20


def test_hours_of_requests_do_not_overflow(cost_of):
    workload = dataclasses.replace(BASE, count=30, arrivals=Arrivals(kind="constant", rate=1e-3))
    figures = summary(run(cost_of(), workload))
    assert figures["window_s"] > 29_000 > 2**63 / 1e15
    alone = summary(run(cost_of(), dataclasses.replace(workload, count=1)))
    assert figures["ttft_mean_ms"] == pytest.approx(alone["ttft_mean_ms"], rel=1e-9)


def test_a_skew_makes_the_busiest_device_slower(cost_of):
    def step(skew):
        cost = cost_of(model="mixtral-8x7b", parallelism=Parallelism(dp=8, ep=8, skew=Skew.parse(skew)))
        (work,) = cost.decode_work(256, 256 * 1000)
        return work.compute_fs, work.exchange_fs

    (even, exchanged), (compute, more) = step("uniform"), step("zipf:1")
    assert compute > even
    # a token goes to two devices either way, to the busiest more often
    assert more > exchanged


def test_weights_in_a_type_that_the_device_cannot_multiply_are_widened(cost_of):
    bf16, fp8 = (
        cost_of(system="dgx-a100", precision=ServingPrecision.named(name, ModelConfig.load("llama3.1-8b")))
        for name in ("bf16", "fp8")
    )
    prompts = [cost.mixed_time(8192, [(8192, 0)], 1, 1, 0, 0)[0] for cost in (bf16, fp8)]
    assert prompts[1] == pytest.approx(prompts[0], rel=0.01)  # an A100 has no FP8 rate: multiplied in BF16
    assert fp8.decode_line(1, 100).fixed < 0.6 * bf16.decode_line(1, 100).fixed  # and half the bytes read


def test_a_type_that_the_device_has_no_rate_for_has_no_step_time():
    with pytest.raises(UsageError, match="v100-sxm-32gb has no matrix rate for bf16: serve it in fp16"):
        StepCost(Deployment(model=ModelConfig.load("llama3.1-8b"), system=System.load("v100")))


def test_heads_of_keys_that_tensor_ranks_cannot_share_are_refused_by_their_number() -> None:
    """Phi-4 has 40 query heads and 10 of keys: 4 ranks would have 2.5 of these each, 5 have 2, and 20 one in pairs."""
    load = {"concurrency": 1, "requests": 2, "input_tokens": 16, "output_tokens": 4}
    with pytest.raises(
        UsageError, match="tp 4 neither divides phi-4's key and value heads 10 nor is a multiple of them"
    ):
        tl.serve("phi-4", "h100", tp=4, **load)
    assert tl.serve("phi-4", "h100", tp=5, **load).summary["completed"] == 2


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=300), st.floats(0.0, 100.0), st.sampled_from([90, 99]))
def test_a_limit_is_kept_by_that_many_where_their_percentile_is_within_it(values, limit, percentile):
    """99 of 100 at 1 and one at 9: p99 is 1, and 99 % keep a limit of 1."""
    assert percentile_of(np.array([1.0] * 99 + [9.0]), 99) == 1.0
    kept = sum(value <= limit for value in values)
    assert (percentile_of(np.array(values), percentile) <= limit) == (100 * kept >= percentile * len(values))


def test_the_median_of_two_is_between_them_and_of_none_unknown():
    assert percentile_of(np.array([1.0, np.nan, 3.0]), 50) == 2.0
    assert np.isnan(percentile_of(np.array([np.nan]), 99))
