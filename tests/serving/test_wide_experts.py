"""Experts over many devices: published deployments by their commands, and what hides the exchange."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

import tracelens as tl
from tests.conftest import part
from tracelens.backends import System
from tracelens.backends.collective_times import exchange_links
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.predict.network.deepep import Exchanges, low_latency_us
from tracelens.predict.serving import engines
from tracelens.predict.serving.costs import LayerParts, PlacedChunks
from tracelens.predict.serving.deployment import Engine, Parallelism, ServingPrecision, Speculation, captured_sizes
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.expert_placement import expert_traffic
from tracelens.predict.workload.token_routing import UNIFORM, Skew, route, served_skew

#: (command after `tracelens serve --model deepseek-v3`, devices, published time per token in ms). By lines:
#: InferenceX, ix_gb200_dynamo-sglang_fp4_disagg_1024x1024_c4096; lengths are drawn from 0.8 to 1 of 1024.
#: LMSYS, "Deploying DeepSeek with PD Disaggregation and Large-scale Expert Parallelism on 96 H100 GPUs", 2025-05-05:
#: 22,282 tokens/s a node of 8 with 256 sequences of 2,000 tokens a GPU: 8 * 256 / 22,282 = 91.9 ms.
#: DeepSeek, "DeepSeek-V3/R1 Inference System Overview", 2025-03-01: 20 to 22 tokens/s a user; 14,800 tokens/s a node
#: make 14,800 / 8 / 21 = 88 sequences a GPU, of 4,989 tokens in the mean.
#: DeepSeek, github.com/deepseek-ai/profile-data, decode: EP128, 128 sequences of 4,096 tokens a GPU, balanced routing,
#: 2,324 tokens/s a GPU as LMSYS quotes it: 128 / 2,324 = 55.1 ms.
PUBLISHED = {
    "gb200": (
        ("--cluster gb200-nvl72 --weights fp4 --dp 32 --ep 32 --prefill-replicas 4 --prefill-tp 4 "
         "--prefill-max-batched-tokens 65536 --concurrency 4096 --requests 12288 --input 922 --output-tokens 922"),
        48, 21.7,
    ),
    "lmsys": (
        ("--cluster dgx-h100 --weights fp8 --dp 72 --ep 72 --redundant-experts 32 --overlap two-batch --policy static "
         "--concurrency 18432 --requests 18432 --input 2000 --output-tokens 100"),
        72, 91.9,
    ),
    "deepseek": (
        ("--cluster dgx-h800 --weights fp8 --dp 144 --ep 144 --redundant-experts 32 --overlap two-batch "
         "--policy static --concurrency 12672 --requests 12672 --input 4939 --output-tokens 100"),
        144, 47.6,
    ),
    "profile": (
        ("--cluster dgx-h800 --weights fp8 --dp 128 --ep 128 --overlap two-batch --policy static --skew balanced "
         "--concurrency 16384 --requests 16384 --input 4096 --output-tokens 100"),
        128, 55.1,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def latent_costs(cost_of):
    """DeepSeek-V3 on 8 ranks of GB200 by SGLang's cutlass_mla, and by measured kernels."""
    precision = ServingPrecision.named("fp8", ModelConfig.load("deepseek-v3"))
    fields = {"parallelism": Parallelism(dp=8, ep=8), "precision": precision}
    return [
        cost_of("deepseek-v3", "gb200-nvl72", engine=Engine(latent=latent, max_batched_tokens=16384), **fields)
        for latent in ("cutlass", "")
    ]


def core_us(cost, chunks, batch=0, context=0) -> float:
    """What attention's cores take of a layer."""
    return sum(fs for _, _, fs in cost.core_operations("*E", chunks, batch, context)) / 1e9


def test_cutlass_reads_the_keys_of_a_sequence_one_after_the_other(latent_costs) -> None:
    """8,192 rows of 1,152 bytes at 64.4 GB/s: 146 us for any batch that the 74 pairs of units take at once. Others split
    the keys of few sequences.
    """
    cutlass, split = latent_costs
    one, full, more = (core_us(cutlass, [], 8 * each, 8 * each * 8192) for each in (1, 74, 75))
    assert one == full == pytest.approx(8192 * 1152 / 64.4e3, rel=1e-2)
    assert more == pytest.approx(2 * one, rel=1e-6)
    assert core_us(split, [], 8, 8 * 8192) < one / 3


def test_cutlass_waits_for_the_longest_sequence(latent_costs) -> None:
    """16 sequences evenly between 6,000 and 9,000 keys: a maximum of 16 is 1.77 deviations, of 953, above the mean."""
    cutlass, split = latent_costs
    lengths = np.linspace(6000, 9000, 16)
    context, squares = round(lengths.sum()), round((lengths**2).sum())
    longest = cutlass.uneven(16, context, squares) / 16
    assert longest == pytest.approx(7500 + 1.77 * 953, rel=1e-2)
    assert 7500 < split.uneven(16, context, squares) / 16 < longest
    assert cutlass.uneven(1, 9000, 9000**2) == 9000


def test_cutlass_attends_prompts_on_the_latent_beside_the_rest_of_one(latent_costs) -> None:
    """Of 3,000 tokens after 5,000, and 8,000 more on the same rank: 128 heads, 1,088 products of a pair, 300 TFLOP/s."""
    cutlass, expanded = latent_costs
    pairs = 3000 * 5000 + 3000 * 3001 // 2 + 8000 * 8001 // 2
    joined, apart = PlacedChunks([(3000, 5000), (8000, 0)]), PlacedChunks([(3000, 5000), (8000, 0)])
    joined.ranks, apart.ranks = (0, 0), (0, 1)
    assert core_us(cutlass, joined) == pytest.approx(2 * 128 * 1088 * pairs / 300e6, rel=1e-3)
    assert core_us(cutlass, joined) > 3 * core_us(expanded, joined)
    assert sum(cutlass.mixed_time(11000, apart, 2, 2, 0, 0)) < sum(cutlass.mixed_time(11000, joined, 2, 2, 0, 0))
    assert cutlass.mixed_time(8000, [(8000, 0)], 1, 1, 0, 0) == expanded.mixed_time(8000, [(8000, 0)], 1, 1, 0, 0)
    long = [(3000, 8192)]
    assert core_us(cutlass, long) == core_us(expanded, long)
    with pytest.raises(UsageError, match="latent"):
        Engine(latent="flash")


@pytest.mark.parametrize("system", ["dgx-h100", "dgx-b300"])
def test_cutlass_answers_only_where_it_was_measured(cost_of, system) -> None:
    with pytest.raises(UsageError, match="measured on B200 and GB200 alone"):
        cost_of("deepseek-v3", system, engine=Engine(latent="cutlass"), parallelism=Parallelism(dp=8, ep=8))


@pytest.mark.sweep
@pytest.mark.parametrize("name", part(list(PUBLISHED), 9))
def test_published_deployments_are_described_as_run_and_near_what_was_measured(name, capsys):
    words, devices, published_ms = PUBLISHED[name]
    assert main(["serve", "--model", "deepseek-v3", *words.split(), "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    assert summary["devices"] == devices
    assert summary["tpot_p50_ms"] == pytest.approx(published_ms, rel=0.25)


@pytest.mark.parametrize(("tokens", "ranks"), [(32, 8), (512, 32), (4096, 32), (18_432, 64), (128, 144)])
def test_the_busiest_device_s_rows_by_chance_are_those_of_drawn_routings(tokens, ranks):
    experts = 256 if 256 % ranks == 0 else 288
    traffic = expert_traffic(UNIFORM, experts=experts, topk=8, ranks=ranks)
    most, touched = [], []
    for seed in range(20):
        chosen = route(UNIFORM, tokens=tokens, experts=experts, topk=8, seed=seed)
        counts = np.bincount(chosen.ravel(), minlength=experts).reshape(ranks, -1)
        most.append(counts.sum(axis=1).max())
        touched.append((counts > 0).sum(axis=1).max())
    assert traffic.most_rows(tokens, 8) == pytest.approx(np.mean(most), rel=0.08)
    assert traffic.touched(tokens) == pytest.approx(np.mean(touched), rel=0.1)


def test_experts_are_as_unequal_as_nvidia_counted_them():
    """TensorRT-LLM, examples/ep_load_balancer/README.md: DeepSeek-R1, 32 ranks of 1,024 tokens, per layer and iteration:
    standard deviation 491.65 tokens, the busiest rank 2.56 times the mean; with 32 copies on 36 ranks 1.12.
    """
    skew = served_skew(256)
    assert skew.a == pytest.approx((31 / 0.479**2 - 1) / 256, rel=0.01)
    loads = [skew.weights(256, seed).reshape(32, 8).sum(axis=1) * 32 for seed in range(200)]
    by_chance = 1 / 1024
    assert np.sqrt(np.mean(np.var(loads, axis=1)) + by_chance) == pytest.approx(491.65 / 1024, rel=0.05)
    alone, copied = (
        expert_traffic(skew, experts=256, topk=8, ranks=ranks, redundant=copies)
        for ranks, copies in ((32, 0), (36, 32))
    )
    assert alone.most_rows(4096, 8) / 1024 == pytest.approx(2.56, rel=0.2)
    assert copied.most_rows(4608, 8) / 1024 == pytest.approx(1.12, rel=0.05)
    # Fewer, larger experts are as unequal as groups of small ones: eight of them as the groups of 32
    coarse, grouped = (
        [np.var(served_skew(count).weights(count, seed).reshape(8, -1).sum(axis=1) * 8) for seed in range(400)]
        for count in (8, 256)
    )
    assert np.mean(coarse) == pytest.approx(np.mean(grouped), rel=0.15)


def test_few_tokens_reach_fewer_of_unequal_experts_and_many_wait_for_the_busiest_rank(cost_of):
    model = ModelConfig.load("deepseek-v3")

    def step(batch, **split):
        cost = cost_of(
            model="deepseek-v3", system="dgx-h100", parallelism=Parallelism(**split),
            precision=ServingPrecision.named("fp8", model),
        )  # fmt: skip
        line = cost.decode_line(batch, batch * 1000)
        return line.fixed + line.slope * batch * 1000

    # Devices that all have a part of each expert read fewer for 64 tokens; of 32 with some each the busiest computes
    # more, unless those with most load are copied: the first ones, as they fill 72 devices, are not.
    assert step(64, tp=16) < 0.95 * step(64, tp=16, skew=UNIFORM)
    even, own, copied = (
        step(8192, dp=32, ep=32, **more) for more in ({"skew": UNIFORM}, {}, {"redundant_experts": 32})
    )
    assert max(even, copied) < 0.9 * own
    assert step(8064, dp=72, ep=72, redundant_experts=32) < 0.9 * step(8064, dp=72, ep=72)


def test_chance_has_no_part_in_balanced_routing_or_on_one_device():
    balanced = expert_traffic(Skew.parse("balanced"), experts=256, topk=8, ranks=32)
    assert balanced.most_rows(512, 8) == pytest.approx(512 * 8 / 32)
    assert expert_traffic(UNIFORM, experts=256, topk=8, ranks=1).most_rows(512, 8) == 512 * 8


def test_captured_sizes_are_numbers_and_ranges():
    assert captured_sizes("1,2,4,8-24:8, 32") == (1, 2, 4, 8, 16, 24, 32)
    for wrong in ("1,x", "8-24", "8-24:0", "0"):
        with pytest.raises(UsageError, match="graph_batches must be sizes"):
            Engine(graph_batches=wrong)


def test_a_decode_batch_costs_what_the_next_captured_size_costs(cost_of):
    plain, padded = cost_of(), cost_of(engine=Engine(graph_batches="1,2,4,8-32:8"))
    linear = {batch: padded.decode_line(batch, batch).exchange for batch in (9, 16)}
    assert linear[9] == linear[16]

    def without_attention(cost, batch):
        return cost.decode_line(batch, batch).layers[0][0].compute_fs - 32 * cost._attention["*"].decoding(batch, 0).at(
            0
        )

    assert without_attention(padded, 9) == without_attention(padded, 16) == without_attention(plain, 16)
    assert without_attention(padded, 33) == without_attention(plain, 33)  # no graph: no padding


def test_engines_of_this_package_have_habits_and_ideal_has_none():
    h100 = HardwareSpec.load("h100-sxm")
    assert engines.named("sglang", h100).overlap == "shared-experts"
    assert captured_sizes(engines.named("vllm", h100).graph_batches)[:5] == (1, 2, 4, 8, 16)
    ideal = engines.named("ideal", h100)
    assert (ideal.overlap, ideal.graph_batches) == ("", "")


def test_halves_hide_each_other_s_exchange_by_stage():
    # Of both halves: 20 before attention's core, 60 with it up to the router, 10 shared, 40 experts.
    parts = LayerParts(20, 60, 10, 40)
    assert parts.behind_decoding() == {"dispatch": (15, 15), "combine": (30, 30)}  # (20 + 10) / 2, 60 / 2
    assert parts.behind_prompts() == {"dispatch": (40, 20), "combine": (20, 45)}  # (20 + 60) / 2, 40 / 2, 5 + 40


WIDE = {"model": "deepseek-v3", "parallelism": Parallelism(dp=32, ep=32)}


def _wide(cost_of, overlap, **fields):
    model = ModelConfig.load("deepseek-v3")
    return cost_of(
        model=WIDE["model"], system="dgx-h100", precision=ServingPrecision.named("fp8", model),
        **{"parallelism": WIDE["parallelism"], "engine": Engine(overlap=overlap)} | fields,
    )  # fmt: skip


def test_answers_travel_by_low_latency_kernels_and_prompts_by_normal_ones(cost_of):
    cost = _wide(cost_of, "none", parallelism=dataclasses.replace(WIDE["parallelism"], skew=UNIFORM))
    (dispatch, combine), (normal, _) = (
        each[0].layers[-2].exchanges
        for each in (cost.decode_work(32 * 64, 32 * 64 * 1000), cost.mixed(4096, [(4096, 0)], 1, 1, 0, 0))
    )
    assert (dispatch.name, combine.name, normal.name) == (
        "dispatch/deepep low_latency", "combine/deepep low_latency", "dispatch/deepep normal",
    )  # fmt: skip
    shape = Exchanges(phase="dispatch", tokens=64.0, hidden=7168, topk=8, experts=256, nodes=4.0)
    links = exchange_links(System.load("dgx-h100"), 32)
    assert dispatch.time_fs == pytest.approx(float(low_latency_us(shape, links)) * 1e9, rel=1e-6)


def test_ranks_that_gather_all_tokens_pad_them_in_decode_steps_and_add_them_up_with_prompts(cost_of):
    """SGLang without --moe-a2a-backend: 1 and 16 sequences on 16 ranks are 16 rows to all, which experts compute; a
    prompt counts alone.
    """
    wide = Parallelism(dp=16, ep=16)
    cost, sending = (cost_of(WIDE["model"], engine=Engine(gathers=each), parallelism=wide) for each in ("all", ""))
    padded, masked = (each.decode_line(1, 1000).fixed / each.decode_line(16, 1000).fixed for each in (cost, sending))
    assert masked < 0.8
    assert padded == pytest.approx(1, abs=0.03)
    one, sixteen = (cost.decode_work(each, 1000)[0].layers[-2].exchanges for each in (1, 16))
    assert one == sixteen
    assert [each.name.partition("/")[0] for each in one] == ["all_gather", "reduce_scatter"]
    prompt = cost.mixed(4096, [(4096, 0)], 1, 1, 0, 0)[0].layers[-2].exchanges
    assert [each.name.partition("/")[0] for each in prompt] == ["all_reduce", "all_reduce"]
    every = cost_of(WIDE["model"], parallelism=Parallelism(tp=16)).mixed(4096, [(4096, 0)], 1, 1, 0, 0)
    assert prompt[0].time_fs == every[0].layers[-2].exchanges[0].time_fs


def test_prompts_on_ranks_that_gather_have_the_fused_experts_of_one_rank(cost_of):
    """SGLang calls DeepGEMM's products with DeepEP alone."""
    names = {}
    for gathers in ("all", ""):
        cost = cost_of(
            WIDE["model"], engine=Engine(gathers=gathers), parallelism=WIDE["parallelism"],
            precision=ServingPrecision.named("fp8", ModelConfig.load(WIDE["model"])),
        )  # fmt: skip
        names[gathers] = {name for name, *_ in cost.layer_operations(cost.layers[-1], 4096, [(4096, 0)], 0, 0)}
        assert "experts.up" in {name for name, *_ in cost.layer_operations(cost.layers[-1], 8, [], 8, 8000)}
    assert "experts.layer" in names["all"] - names[""]
    assert "experts.up" in names[""] - names["all"]


def test_an_engine_gathers_all_tokens_where_most_go_to_every_device_anyway(cost_of):
    """Eight devices of DeepSeek-V3, eight experts a token: 64 tokens of BF16 there and back, less the shared experts
    meanwhile, or of NVFP4 there; sixteen get tokens of their own. Tensor-parallel ranks send theirs.
    """
    engine = Engine(gathers="few")

    def exchanges(overlap, **split):
        cost = _wide(
            cost_of, overlap, parallelism=Parallelism(**split), engine=dataclasses.replace(engine, overlap=overlap)
        )
        return cost, cost.decode_work(64, 64_000)[0].layers[-2].exchanges

    cost, (there, back) = exchanges("none", dp=8, ep=8)
    sent = [cost._links.exchange(word, 64 * 7168 * 2, ranks=8) for word in ("all_gather", "reduce_scatter")]
    assert [there, back] == sent
    _, (shorter, same) = exchanges("shared-experts", dp=8, ep=8)
    assert shorter.time_fs < there.time_fs
    assert same == back
    fp4 = ServingPrecision.named("fp4", ModelConfig.load("deepseek-v3"))
    narrow = cost_of("deepseek-v3", "b200", engine=engine, precision=fp4, parallelism=Parallelism(dp=8, ep=8))
    gathered = narrow._links.exchange("all_gather", 64 * 7168 * (1 / 2 + 1 / 16), ranks=8)
    assert narrow.decode_work(64, 64_000)[0].layers[-2].exchanges[0] == gathered
    for split in ({"dp": 16, "ep": 16}, {"dp": 4, "tp": 2, "ep": 8}):
        by_word = {each.name.partition("/")[0]: each for each in exchanges("none", **split)[1]}
        assert {"dispatch", "combine"} <= by_word.keys()
        assert "reduce_scatter" not in by_word
        # FP8 is made where experts are: twice the bytes go there, as many come back
        others = (
            _wide(cost_of, "none", parallelism=Parallelism(**split)).decode_work(64, 64_000)[0].layers[-2].exchanges
        )
        narrow, back = (next(each for each in others if each.name.startswith(word)) for word in ("dispatch", "combine"))
        assert by_word["dispatch"].time_fs > narrow.time_fs
        assert by_word["combine"] == back


def test_devices_that_all_have_all_tokens_send_none(cost_of):
    work = _wide(cost_of, "none", parallelism=Parallelism(tp=16, ep=16)).decode_work(64, 64_000)
    assert {each.name.partition("/")[0] for each in work[0].layers[-2].exchanges} == {"all_reduce"}


@pytest.mark.parametrize("overlap", ["none", "shared-experts", "two-batch"])
def test_time_per_step_rises_with_batch_and_length_and_is_one_at_all_levels_of_detail(cost_of, overlap):
    cost = _wide(cost_of, overlap)
    by_context = [
        [
            (line := cost.decode_line(batch, batch * keys)).fixed + line.slope * batch * keys
            for batch in (32, 64, 320, 4096)
        ]
        for keys in (500, 511, 512, 1000, 1023, 1024, 3000, 6000)
    ]
    times = np.array(by_context, dtype=float)
    assert (np.diff(times, axis=0) >= -1e-6 * times[1:]).all()
    assert (np.diff(times, axis=1) > 0).all()
    work = cost.decode_work(2048, 2048 * 900)
    line = cost.decode_line(2048, 2048 * 900)
    assert sum(w.compute_fs + w.exchange_fs for w in work) == line.fixed + line.slope * 2048 * 900
    asked = {"dp": 32, "ep": 32, "weights": "fp8", "concurrency": 64, "requests": 64, "input": 64, "output": 6}
    high, medium, low = (
        tl.serve("deepseek-v3", "dgx-h100", overlap=overlap, lod=level, **asked).summary
        for level in ("high", "medium", "low")
    )
    for name in ("ttft_mean_ms", "tpot_mean_ms", "window_s"):
        assert high[name] == pytest.approx(medium[name], rel=1e-9), name
        assert low[name] == pytest.approx(medium[name], rel=1e-6), name


def test_shared_experts_beside_the_dispatch_never_cost_and_two_halves_pay_where_the_exchange_is_long(cost_of):
    batch, context = 32 * 256, 32 * 256 * 2000
    none, shared, halves = (
        (line := _wide(cost_of, each).decode_line(batch, context)).fixed + line.slope * context
        for each in ("none", "shared-experts", "two-batch")
    )
    assert halves < shared < none


def test_acceptance_by_position_is_a_product():
    said = Speculation.parse("3:0.85,0.7,0.5")
    assert said.tokens_per_step == pytest.approx(1 + 0.85 + 0.85 * 0.7 + 0.85 * 0.7 * 0.5)
    assert Speculation.parse("3:0.85,0.4").by_position == (0.85, 0.4, 0.4)
    assert Speculation.parse("2:0.5").tokens_per_step == 1.75
    own = Speculation.of_model(ModelConfig.load("deepseek-v3"), "mtp:3:0.85,0.7")
    assert (own.draft_tokens, own.by_position, own.draft.blocks) == (3, (0.85, 0.7, 0.7), "*E")
    for wrong in ("2:0.5,0.4,0.3", "2:0.5,1.2", "2:", "mtp"):
        with pytest.raises(UsageError):
            Speculation.parse(wrong)


@pytest.mark.sweep
@pytest.mark.parametrize("seed", part(range(3), 3))
def test_more_replicas_never_less_goodput(seed):
    found = [
        tl.serve(
            "llama3.1-8b", "h100-sxm", rate=30.0, requests=120, input="lognormal:2000:0.6", output=60, replicas=count,
            slo="ttft=300ms,tpot=20ms", seed=seed, lod="low", router="least-loaded",
        ).summary
        for count in (1, 2, 3, 5)
    ]  # fmt: skip
    # Not the rate: it is over the time up to the last token, which depends on whom the last request meets
    good = [each["good_share"] for each in found]
    assert good == sorted(good)


def test_devices_times_price_adds_up():
    asked = {"concurrency": 32, "requests": 32, "input": 256, "output": 16, "weights": "fp8", "price_per_gpu_hour": 3.0}
    both = tl.serve(
        "deepseek-v3", "dgx-h100", dp=16, ep=16, replicas=2, prefill_replicas=3, prefill_tp=16, **asked
    ).summary
    assert both["devices"] == 2 * 16 + 3 * 16
    spent = both["devices"] * 3.0 / 3600 * both["window_s"]
    tokens = both["output_tokens_per_s"] * both["window_s"]
    assert both["cost_per_million_output_tokens"] == pytest.approx(spent / tokens * 1e6, rel=1e-9)


@pytest.mark.parametrize(("ep", "copies"), [(32, 0), (72, 0), (72, 32), (144, 32), (64, 65)])
def test_places_of_experts_and_tokens_are_conserved(ep, copies):
    traffic = expert_traffic(UNIFORM, experts=256, topk=8, ranks=ep, redundant=copies)
    assert traffic.held * ep >= 256 + copies > (traffic.held - 1) * ep
    # What the busiest of many ranks gets of many tokens is at least the mean of all routings
    assert 8 / ep <= traffic.most_rows(1e9, 8) / 1e9 <= 8 / ep * max(traffic.rows_imbalance, 1) * 1.001
    asked = {"dp": ep, "ep": ep, "redundant_experts": copies, "weights": "fp8", "input": 32, "output": 5}
    summary = tl.serve("deepseek-v3", "dgx-h100", concurrency=2 * ep, requests=3 * ep, lod="low", **asked).summary
    assert summary["completed"] == 3 * ep
    assert summary["prefill_tokens"] == 3 * ep * 32
    assert dataclasses.replace(traffic, variance=0.0).most_rows(100, 8) >= 100 * 8 / ep


def test_a_cache_that_leaves_by_chunk_or_layer_arrives_no_later_than_whole():
    asked = {
        "concurrency": 1, "requests": 1, "input": 8192, "output": 8, "prefill_replicas": 1, "kv_link": 10.0,
        "prefill_max_batched_tokens": 2048,
    }  # fmt: skip
    whole, chunk, layer, free = (
        tl.serve("llama3.1-8b", "dgx-h100", **asked | given).summary["ttft_p50_ms"]
        for given in ({}, {"kv_transfer": "chunk"}, {"kv_transfer": "layer"}, {"kv_link": 1e9})
    )
    # 8,192 tokens of 32 layers, keys and values, 8 heads of 128, 2 bytes at 10 GB/s; the prompt itself takes longer
    travel_ms = 8192 * 32 * 2 * 8 * 128 * 2 / 10e9 * 1e3
    assert whole - free == pytest.approx(travel_ms, rel=1e-3)
    assert chunk - free == pytest.approx(travel_ms / 4, rel=1e-3)  # four chunks: the last one's part
    assert layer - free == pytest.approx(travel_ms / 32, rel=1e-2)
    with pytest.raises(UsageError, match="cache transfer"):
        tl.serve("llama3.1-8b", "dgx-h100", **asked | {"kv_transfer": "never"})


def test_ranks_that_pad_to_the_longest_prompt_have_it_computed_by_experts_for_all(cost_of):
    """A prompt of 512 tokens on one of eight ranks is 8 x 512 tokens to experts in vLLM, 512 in SGLang's way."""
    wide, alone, all_of_them = Parallelism(dp=8, ep=8), [(512, 0)], [(512, 0)] * 8
    padding, sending = (
        cost_of("qwen3-30b-a3b", engine=Engine(pads_prompts=pads), parallelism=wide) for pads in (True, False)
    )
    for cost in (padding, sending):
        one, eight = (cost.mixed_time(512 * len(each), each, 0, 0, 0, 0) for each in (alone, all_of_them))
        assert (one == eight) is (cost is padding)
        assert sum(one) <= sum(eight)
        works = cost.mixed(512, alone, 0, 0, 0, 0)
        assert (sum(work.compute_fs for work in works), sum(work.exchange_fs for work in works)) == one
    # Nothing is padded where one rank has all, nor in a step that decodes
    assert padding.decode_line(64, 64_000).fixed == sending.decode_line(64, 64_000).fixed
    assert padding.mixed_time(4096, all_of_them, 0, 0, 0, 0) == sending.mixed_time(4096, all_of_them, 0, 0, 0, 0)
    assert engines.fitted_engine("vllm", HardwareSpec.load("h100-sxm")).pads_prompts
    assert not engines.fitted_engine("sglang", HardwareSpec.load("h100-sxm")).pads_prompts


def test_drafts_of_data_parallel_ranks_are_launched_layer_by_layer(cost_of):
    """48 layers of 100 us, not 10: 4,320 us more a step, with drafts and on several ranks alone, or on one where all
    are; prompts as before.
    """
    drafts, wide = Speculation(draft_tokens=1, acceptance=0.8), Parallelism(dp=8, ep=8)
    eager, replayed = (Engine(layer_us=10, prompt_layer_us=100, eager_drafts=each) for each in ("ranks", ""))

    def step_us(engine, **fields):
        cost = cost_of("qwen3-30b-a3b", engine=engine, **fields)
        return cost.decode_line(64, 64_000).fixed / 1e9, cost.mixed_time(512, [(512, 0)], 1, 1, 0, 0)

    (slow, prompts), (fast, same) = (step_us(each, parallelism=wide, speculation=drafts) for each in (eager, replayed))
    assert slow - fast == pytest.approx(48 * 90)
    assert prompts == same
    for plain in ({"parallelism": wide}, {"parallelism": Parallelism(tp=4), "speculation": drafts}):
        assert step_us(eager, **plain) == step_us(replayed, **plain)
    alone = {"parallelism": Parallelism(tp=4), "speculation": drafts}
    assert step_us(dataclasses.replace(eager, eager_drafts="all"), **alone)[0] == pytest.approx(
        step_us(replayed, **alone)[0] + 48 * 90
    )


def test_an_engine_file_keeps_what_it_pads_and_launches(tmp_path):
    path = tmp_path / "engine.toml"
    path.write_text(Engine(name="mine", source="a test", pads_prompts=True, eager_drafts="all").to_toml())
    assert Engine.load(path).pads_prompts
    assert Engine.load(path).eager_drafts == "all"


#: LMSYS, "Accelerating SGLang with Multiple Token Prediction", 2025-07-17: 16 H200, 2 sequences a rank of 65,536 tokens
#: and 4,096 more: 81.5 tokens/s a rank at 2.18 tokens a step, 82.0 at 2.44; drafts -> ms of a step.
LMSYS_STEP_MS = {2: 2 * 2.18 / 81.5e-3, 3: 2 * 2.44 / 82e-3}


@pytest.mark.parametrize("drafts", LMSYS_STEP_MS)
def test_speculation_over_data_parallel_ranks_is_near_lmsys_s_servers(drafts, cost_of):
    model, device = ModelConfig.load("deepseek-v3"), HardwareSpec.load("h200-sxm")
    cost = cost_of(
        "deepseek-v3", "dgx-h200", engine=engines.fitted_engine("sglang", device),
        parallelism=Parallelism(dp=16, ep=16), precision=ServingPrecision.named("fp8", model),
        speculation=Speculation.of_model(model, f"mtp:{drafts}"),
    )  # fmt: skip
    line, context = cost.decode_line(32, 32 * 67_584), 32 * 67_584
    assert (line.fixed + line.slope * context) / 1e12 == pytest.approx(LMSYS_STEP_MS[drafts], rel=0.25)
