"""Engines' files, speculation from the model's own layers, and attention that reads no more than the cache holds."""

from __future__ import annotations

import dataclasses
import datetime
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens
from tests.conftest import examples
from tracelens.backends import System
from tracelens.backends.chain import chain
from tracelens.errors import InputError, UsageError
from tracelens.files.option_fields import BACKENDS, NO_INTERVAL
from tracelens.laboratory.configuration_rows import LIMITS, PointSimulator, point_of
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.projection.projection_options import ProjectOptions, SearchOptions
from tracelens.predict.serving import engines
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import (
    LEFT_OUT,
    MTP_ACCEPTANCE,
    Deployment,
    Engine,
    Parallelism,
    ServingResiduals,
    Speculation,
)
from tracelens.predict.serving.engines import engine_name, fitted_engine, named
from tracelens.predict.serving.experiment import deployment_of
from tracelens.predict.serving.metrics import summary
from tracelens.predict.serving.requests import Arrivals, Lengths, Workload
from tracelens.predict.serving.serving_options import DeploymentOptions, EngineOptions
from tracelens.predict.serving.simulation import Options, simulate
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.blocks import block_types
from tracelens.types.dtypes import DType

ROW = {
    "model_path": "deepseek-ai/DeepSeek-R1", "system": "mi355x", "precision": "fp8", "mode": "agg", "isl": 1024,
    "osl": 1024, "concurrency": 8, "tp_size": 8, "backend": "sglang",
}  # fmt: skip
H100, MI300X = (System.load(name).device for name in ("h100-sxm", "mi300x"))


RESIDUALS = {name: ServingResiduals(name, 1 + at / 10, 2 + at, 100 + at) for at, name in enumerate(LEFT_OUT)}


@pytest.mark.parametrize(
    ("name", "device", "dp", "how", "expected"),
    [
        ("vllm", "h100-sxm", 1, {"is_known": True}, "model"),
        ("vllm", "h100-sxm", 1, {}, "source"),
        ("pooled", "h100-sxm", 1, {}, "engine"),
        ("vllm", "a100", 1, {"is_known": True}, "device"),
        ("vllm", "h100-sxm", 8, {}, "source"),
        ("vllm", "h100-sxm", 16, {}, "apart"),
        ("vllm", "h100-sxm", 1, {"is_apart": True}, "apart"),
    ],
)
def test_an_interval_is_of_the_servers_left_out_that_a_server_is_like(name, device, dp, how, expected) -> None:
    engine = Engine(name=name, residuals=tuple(RESIDUALS.values()), computes=("9.0",), most_devices=16)
    model = ModelConfig.load("llama3-8b")
    served = Deployment(model=model, system=System.load(device), parallelism=Parallelism(dp=dp), engine=engine)
    assert served.spans("residuals", **how) == RESIDUALS[expected]
    assert served.spans("first_residuals", **how) is None
    nearer = dataclasses.replace(served, engine=dataclasses.replace(engine, residuals=(RESIDUALS["model"],)))
    assert nearer.spans("residuals", **how) == RESIDUALS["model"]


def test_a_server_beyond_what_was_measured_says_so_in_one_sentence() -> None:
    asked = {"rate": 4, "requests": 8, "tp": 2}
    assert not any("beyond" in note for note in tracelens.serve("llama3-8b", "h100", engine="vllm", **asked).notes)
    (said,) = (note for note in tracelens.serve("llama3-8b", "a100", engine="vllm", **asked).notes if "beyond" in note)
    assert said == "this server is beyond what was ever measured with such an engine: NVIDIA A100 SXM4 80GB"
    engine = dataclasses.replace(fitted_engine("vllm", H100), most_devices=1)
    notes = tracelens.serve("llama3-8b", "h100", engine=engine, **asked).notes
    assert any(note.endswith("2 devices (at most 1 were measured)") for note in notes)


def test_goodput_says_what_it_is_at_both_ends_of_its_times() -> None:
    """Ten equal requests, one after the other: all keep a limit above the upper end, none one below the lower."""
    asked = {"concurrency": 1, "requests": 10, "engine": "vllm"}
    plain = tracelens.serve("llama3-8b", "h100", **asked)
    tpot, most = plain.summary["tpot_p50_ms"], plain.experiment.deployment.spans("residuals").most
    for limit, ends in (
        (tpot * most * 1.1, ("100 %", "100 %")),
        (tpot, ("0 %", "100 %")),
        (tpot / most / 1.1, ("0 %", "0 %")),
    ):
        notes = tracelens.serve("llama3-8b", "h100", slo=f"tpot={limit}ms", **asked).notes
        kept = f"{ends[0]} of requests keep the limits with TPOT and TTFT at the upper ends of 9 in 10"
        assert f"goodput inherits these errors: {kept}, {ends[1]} at the lower" in notes


def test_requests_wait_for_the_scheduler_s_next_look() -> None:
    """Where in an interval of 21 steps a request arrives is spread evenly: 10 steps of waiting in the mean."""
    asked = {"concurrency": 8, "requests": 200, "input_tokens": 64, "output_tokens": "uniform:200:0.3"}
    always, seldom = (
        tracelens.serve("llama3-8b", "h100", engine="sglang", recv_interval=steps, **asked).summary for steps in (1, 21)
    )
    assert always == tracelens.serve("llama3-8b", "h100", engine="sglang", **asked).summary
    wait = seldom["ttft_mean_ms"] - always["ttft_mean_ms"]
    assert wait == pytest.approx(10 * seldom["itl_p50_ms"], rel=0.2)
    assert seldom["completed"] == always["completed"] == 200


def test_a_prompt_waits_until_the_decoding_replica_has_seen_it_and_for_its_way_there() -> None:
    """SGLang's decoding server sets the transfer up: half of 20 steps in the mean; then the way itself takes 50 ms."""
    engine = fitted_engine("sglang", H100)
    model, system = ModelConfig.load("llama3.1-8b"), System.load("h100-sxm")
    requests = Workload(
        arrivals=Arrivals(kind="closed", concurrency=8), input=Lengths(mean=64),
        output=Lengths(kind="uniform", mean=200, spread=0.3), count=200,
    ).generate()  # fmt: skip
    found = []
    for changed in ({}, {"recv_interval": 21}, {"handover_us": engine.handover_us + 50_000}):
        deployment = Deployment(model=model, system=system, engine=dataclasses.replace(engine, **changed))
        found.append(summary(simulate(deployment, requests, Options(prefill_replicas=1, levels=("low",)))))
    plain, seldom, far = found
    assert far["ttft_p50_ms"] - plain["ttft_p50_ms"] == pytest.approx(50, abs=5)
    assert seldom["ttft_mean_ms"] - plain["ttft_mean_ms"] == pytest.approx(10 * seldom["itl_p50_ms"], rel=0.3)


@pytest.mark.sweep
def test_rows_of_inferencex_are_as_its_scripts_start_sglang() -> None:
    row = {**ROW, "system": "b200_sxm", "source": "InferenceX run 1"}
    assert [point_of({**row, "concurrency": n}).recv_interval for n in (8, 16)] == [10, 30]
    others = ({"system": "h200_sxm"}, {"backend": "trtllm"}, {"source": "mine"}, {"scheduler_recv_interval": 1})
    assert {point_of({**row, **other}).recv_interval for other in others} == {1}
    assert point_of({**ROW, "scheduler_recv_interval": 5}).recv_interval == 5
    row |= {"concurrency": 16, "isl_actual_mean": 921.6, "osl_actual_mean": 921.6}
    slow, fast = (PointSimulator(LIMITS).estimate(point_of(each)) for each in (row, {**row, "source": "mine"}))
    assert slow.ttft_ms > fast.ttft_ms + 10 * fast.tpot_ms


APART = {
    "model_path": "deepseek-ai/DeepSeek-R1", "system": "h200_sxm", "precision": "fp8", "mode": "disagg", "isl": 1024,
    "osl": 1024, "backend": "trtllm", "source": "InferenceX run 1", "prefill_tp_size": 8, "prefill_moe_ep_size": 8,
    "decode_tp_size": 8, "decode_moe_ep_size": 8,
}  # fmt: skip


def test_rows_of_inferencex_have_the_slots_of_tensorrt_llm_s_recipes() -> None:
    """Recipes by workers, data-parallel ranks, batch and users: ctx1_gen3_tep16_batch1 with 6, ..._batch2 with 9,
    ..._batch8 with 30, ctx1_gen1_dep16_batch32 with 615, ctx2_gen1_dep16_batch256 with 4916. On H200
    c1_ctx1_gen9_tep8_batch1 with 11 users and c4_ctx1_gen9_tep8_batch256 with 36.
    """
    for workers, dp, slots, users in ((3, 1, 1, 6), (3, 1, 2, 9), (3, 1, 8, 30), (1, 16, 32, 615), (1, 16, 256, 4916)):
        row = {**APART, "decode_num_workers": workers, "decode_attention_dp_size": dp, "concurrency": users}
        row |= {"system": "h100_sxm"}
        assert point_of(row).slots == slots
        for other in ({"source": "mine"}, {"mode": "agg"}):
            assert point_of({**row, **other}).slots == 0
    assert [point_of({**APART, "decode_num_workers": 9, "concurrency": users}).slots for users in (11, 36)] == [1, 0]


@pytest.mark.parametrize(
    ("system", "isl", "said", "prefill", "prompt_slots"),
    [
        ("h200_sxm", 1024, (8, 1, 8), Parallelism(dp=8, ep=8), 8),
        ("h200_sxm", 8192, (8, 1, 8), Parallelism(tp=8, ep=8), 2),
        ("h200_sxm", 8192, (1, 8, 8), Parallelism(tp=8, ep=8), 2),
        ("h100_sxm", 1024, (1, 16, 16), Parallelism(dp=16, ep=16), 2),
        ("h100_sxm", 8192, (16, 1, 16), Parallelism(dp=16, ep=16), 1),
        ("b200_sxm", 8192, (8, 1, 8), Parallelism(dp=8, ep=8), 0),
    ],
)
def test_rows_of_inferencex_have_the_prefill_workers_of_tensorrt_llm_s_recipes(
    system: str, isl: int, said: tuple[int, int, int], prefill: Parallelism, prompt_slots: int
) -> None:
    """Whatever rows say of data-parallel attention; others are as they say."""
    stated = dict(zip(("prefill_tp_size", "prefill_attention_dp_size", "prefill_moe_ep_size"), said, strict=True))
    row = {**APART, "system": system, "isl": isl, "concurrency": 8, **stated}
    point = point_of(row)
    assert (point.prefill, point.prompt_slots) == (prefill, prompt_slots)
    other = point_of({**row, "backend": "sglang"})
    assert (other.prefill, other.prompt_slots) == (Parallelism(tp=said[0], dp=said[1], ep=said[2]), 0)


@pytest.mark.sweep
def test_prompts_beyond_the_slots_of_a_prefill_worker_wait() -> None:
    """Four users' prompts of 1,024 tokens in one step, or one after the other: three steps more for the last."""
    point = dataclasses.replace(point_of({**APART, "concurrency": 4}), prompt_slots=0, per_user=1)
    one = dataclasses.replace(point, prefill=Parallelism(tp=8, ep=8), prompt_slots=1)
    four = dataclasses.replace(one, prompt_slots=4)
    apart, together = (PointSimulator(LIMITS).estimate(each) for each in (one, four))
    cost = PointSimulator(LIMITS).cost(dataclasses.replace(one, parallelism=Parallelism(tp=8, ep=8)))
    steps_ms = [sum(cost.mixed_time(1024 * n, [(1024, 0)] * n, n, n, 0, 0)) / 1e12 for n in (1, 4)]
    assert apart.ttft_ms - together.ttft_ms == pytest.approx(2.5 * steps_ms[0] - steps_ms[1], rel=0.1)


def test_rows_of_inferencex_have_the_limits_of_srt_slurm_s_recipes() -> None:
    """On H200 bs256-1p6d-dep-mtp: 65,536 new tokens a step, 64 prompts and 128 answers of eight ranks."""
    row = {**APART, "backend": "sglang", "concurrency": 2048, "decode_num_workers": 6, "decode_tp_size": 1,
           "decode_attention_dp_size": 8.0, "spec_decoding": "mtp"}  # fmt: skip
    point = point_of(row)
    assert (point.prompt_tokens, point.prompt_slots, point.slots) == (8192, 8, 16)
    two_nodes = point_of({**row, "system": "h100_sxm", "decode_attention_dp_size": 1})
    assert (two_nodes.prompt_tokens, two_nodes.prompt_slots, two_nodes.slots) == (2048, 2, 0)
    for other in ({"source": "mine"}, {"mode": "agg"}, {"system": "b200_sxm"}):
        assert point_of({**row, **other}).prompt_tokens == 0


def test_rows_of_inferencex_are_as_dynamo_s_scripts_start_sglang_on_gb200() -> None:
    """A worker of one node shares heads, whatever a row says, and looks for requests at every tenth step; a wide one
    does at each. 131,072 new tokens a step on 8 ranks; an FP8 cache holds twice as many tokens.
    """
    row = {**APART, "backend": "sglang", "system": "gb200", "isl": 8192, "concurrency": 128, "date": "2025-12-21",
           "prefill_tp_size": 1, "prefill_attention_dp_size": 8, "decode_tp_size": 1, "decode_attention_dp_size": 32,
           "decode_moe_ep_size": 32}  # fmt: skip
    wide = point_of(row)
    assert (wide.kv, wide.memory_share, wide.prompt_tokens, wide.recv_interval) == ("fp8", 0.82, 16384, 1)
    assert (wide.parallelism, wide.latent) == (Parallelism(dp=32, ep=32), "")
    before = point_of({**row, "date": "2025-12-15"})
    assert (before.kv, before.latent) == ("", "cutlass")
    assert point_of({**row, "date": "2025-12-15", "isl": 1024}).latent == ""
    one = {**row, "prefill_attention_dp_size": 4, "decode_attention_dp_size": 4, "prefill_moe_ep_size": 4,
           "decode_moe_ep_size": 4}  # fmt: skip
    node = point_of(one)
    assert node.parallelism == node.prefill == Parallelism(tp=4)
    assert (node.memory_share, node.prompt_tokens, node.recv_interval) == (0.95, 24576, 10)
    assert point_of({**one, "source": "mine"}).parallelism == Parallelism(dp=4, ep=4)
    simulator = PointSimulator(LIMITS)
    half, whole = (simulator.cost(dataclasses.replace(node, kv=kv)).pool_tokens() for kv in ("fp8", "bf16"))
    assert half == pytest.approx(2 * whole, rel=1e-3)
    assert simulator.cost(dataclasses.replace(node, memory_share=0.9)).pool_tokens() < half


def test_a_prompt_of_many_chunks_is_computed_in_as_many_steps() -> None:
    """8,192 tokens on H100 in four steps of 2,048, not in one: three times what a step costs whatever its tokens."""
    row = {**APART, "backend": "sglang", "system": "h100_sxm", "isl": 8192, "concurrency": 1, "prefill_tp_size": 16,
           "decode_tp_size": 16, "decode_attention_dp_size": 1}  # fmt: skip
    chunked, whole = (PointSimulator(LIMITS).estimate(point_of(each)) for each in (row, {**row, "source": "mine"}))
    assert chunked.ttft_ms is not None
    layer_us = fitted_engine("sglang", H100).prompt_layer_us
    assert layer_us is not None
    assert chunked.ttft_ms > whole.ttft_ms + 3 * 61 * layer_us / 1e3


MORI = {**APART, "system": "mi355x", "backend": "sglang", "concurrency": 256, "prefill_moe_ep_size": 1,
        "decode_moe_ep_size": 1}  # fmt: skip
RANKS = {f"{pool}_{name}": size for pool in ("prefill", "decode") for name, size in
         (("tp_size", 1), ("attention_dp_size", 8), ("moe_ep_size", 8))}  # fmt: skip


@pytest.mark.parametrize(
    ("day", "precision", "split", "slots", "tokens", "places", "ranks"),
    [
        ("2026-01-08", "fp8", RANKS, 0, 16384, 1, "both"),
        ("2026-02-13", "fp4", RANKS, 0, 2048, 3, "both"),
        ("2026-02-14", "fp8", {}, 128, 16384, 128, ""),
        ("2026-02-04", "fp4", {"decode_moe_ep_size": 8}, 256, 16384, 128, "both"),
        ("2026-03-13", "fp4", RANKS, 160, 16384, 3, ""),
        ("2026-05-07", "fp4", RANKS, 512, 8192, 512, "none"),
        ("2026-05-28", "fp8", RANKS, 160, 8192, 3, ""),
    ],
)
def test_rows_of_mi355x_have_the_limits_of_their_day_s_launch_scripts(
    day, precision, split, slots, tokens, places, ranks
) -> None:
    point = point_of({**MORI, **split, "date": day, "precision": precision})
    assert (point.slots, point.prompt_tokens, point.prompt_slots, point.chance_ranks) == (slots, tokens, places, ranks)
    assert point.router == "random"
    for other in ({"source": "mine"}, {"system": "b300"}, {"mode": "agg"}):
        plain = point_of({**MORI, **split, "date": day, "precision": precision, **other})
        assert (plain.slots, plain.prompt_tokens, plain.router) == (0, 0, "round-robin")


def test_rows_of_mi355x_in_fp4_had_experts_on_all_devices_before_march() -> None:
    days = {"fp4": ("2026-02-13", "2026-03-13"), "fp8": ("2026-02-14",)}
    points = {
        (name, day): point_of({**MORI, "precision": name, "date": day}) for name, some in days.items() for day in some
    }
    assert [point.parallelism.ep for point in points.values()] == [8, 1, 1]
    assert [point.prefill.ep for point in points.values()] == [8, 1, 1]
    assert points["fp4", "2026-02-13"].slots == 256


def test_rows_of_mi355x_draft_as_many_tokens_as_their_day_s_configurations_say() -> None:
    asked = {**MORI, "spec_decoding": "mtp"}
    said = [
        ({"date": "2026-02-04"}, "mtp"), ({"date": "2026-02-14"}, "mtp:2:0.69"),
        ({"date": "2026-02-14", **RANKS}, "mtp"), ({"date": "2026-02-14", "precision": "fp4"}, "mtp"),
        ({"date": "2026-03-13", "precision": "fp4", "concurrency": 32}, "mtp:3:0.69"),
        ({"date": "2026-03-13", "precision": "fp4", "concurrency": 64}, "mtp"),
        ({"date": "2026-05-31", "precision": "fp4", "concurrency": 64, "isl": 8192}, "mtp:3:0.69"),
        ({"date": "2026-02-14", "spec_decoding": "none"}, ""),
    ]  # fmt: skip
    assert [point_of({**asked, **each}).speculation for each, _ in said] == [text for _, text in said]


@pytest.mark.sweep
def test_a_row_s_limits_bound_its_prompts_and_answers() -> None:
    """One prompt per rank at a time is slower than three; answers that find no place wait for one."""
    row = {**MORI, "isl_actual_mean": 922, "osl_actual_mean": 922, "date": "2026-02-14", "concurrency": 160}
    few = {**row, "osl_actual_mean": 64, "concurrency": 64, **RANKS}
    one, three = (
        PointSimulator(LIMITS).estimate(point_of({**few, "date": day})) for day in ("2026-01-08", row["date"])
    )
    assert one.ttft_ms > 1.2 * three.ttft_ms
    free, full = (PointSimulator(LIMITS).estimate(point_of({**row, "decode_moe_ep_size": ep})) for ep in (8, 1))
    assert full.ttft_ms > 1.5 * free.ttft_ms


def test_rows_of_inferencex_draft_as_its_scripts_start_sglang_on_hopper() -> None:
    """Two drafts, each right with 0.69, make the tokens a step that LMSYS had with two and with three."""
    row = {**APART, "backend": "sglang", "concurrency": 8, "spec_decoding": "mtp", "date": "2026-02-07"}
    made = [Speculation(draft_tokens=drafts, acceptance=0.69).tokens_per_step for drafts in (2, 3)]
    assert made == pytest.approx([2.18, 2.44], rel=0.03)
    point = point_of(row)
    assert (point.speculation, point.eager_drafts) == ("mtp:2:0.69", "all")
    cost, plain = (PointSimulator(LIMITS).cost(point_of(each)) for each in (row, {**row, "spec_decoding": "none"}))
    assert cost.queries == 3
    assert cost.is_eager
    assert not plain.is_eager
    assert not PointSimulator(LIMITS).cost(point_of({**row, "date": "2026-06-09"})).is_eager
    for other in ({"system": "mi355x"}, {"backend": "trtllm"}, {"source": "mine"}):
        assert (point_of({**row, **other}).speculation, point_of({**row, **other}).eager_drafts) == ("mtp", "")
    assert point_of({**row, "spec_decoding": "none"}).speculation == ""


@pytest.mark.sweep
def test_a_request_waits_for_a_slot_of_the_decoding_worker() -> None:
    """Two users of a worker with one slot: one waits while the other's answer is made (H100: 12.3 s of 14.0 ms each)."""
    row = {**APART, "system": "h100_sxm", "concurrency": 2, "decode_num_workers": 1}
    row |= dict.fromkeys(("prefill_tp_size", "prefill_moe_ep_size", "decode_tp_size", "decode_moe_ep_size"), 16)
    one, both = (PointSimulator(LIMITS).estimate(point_of(each)) for each in (row, {**row, "source": "mine"}))
    assert one.tpot_ms is not None
    assert both.ttft_ms is not None
    assert one.ttft_ms > both.ttft_ms + 0.7 * 1024 * one.tpot_ms
    assert one.tpot_ms <= both.tpot_ms


def test_one_default_backend_chain() -> None:
    assert EngineOptions().backend == ProjectOptions().backend == BACKENDS
    assert next(f for f in dataclasses.fields(SearchOptions) if f.name == "backend").default == BACKENDS


@pytest.mark.parametrize("backend", [BACKENDS, "roofline"])
def test_an_interval_is_told_of_the_cost_models_that_were_scored(backend: str) -> None:
    found = tracelens.serve("llama3.1-8b", "h100-sxm", concurrency=2, requests=4, output_tokens=4, backend=backend)
    assert any("is expected within" in note for note in found.notes) == (backend == BACKENDS)
    assert (NO_INTERVAL in found.notes) == (backend != BACKENDS)


def test_an_engine_has_a_file_per_vendor_and_an_unknown_one_the_pooled_constants() -> None:
    assert engine_name("TensorRT-LLM", H100) == "trtllm"
    assert engine_name("sglang", MI300X) == "sglang-rocm"
    assert engine_name("somebody's", H100) == "pooled"
    assert engine_name("", MI300X) == "pooled-rocm"
    assert fitted_engine("ideal", H100).layer_us == 0.0
    with pytest.raises(UsageError, match="vlm"):
        named("vlm", H100)


@pytest.mark.parametrize("name", engines.names())
def test_a_file_says_what_it_was_fitted_on_and_how_far_points_were(name: str) -> None:
    engine = fitted_engine(name.removesuffix("-rocm"), MI300X if name.endswith("-rocm") else H100)
    assert "published points" in engine.source
    assert {each.left_out for each in engine.residuals} >= {"model", "engine", "device", "apart"}
    assert {each.left_out for each in engine.first_residuals} >= {"model", "apart"}
    for found in (*engine.residuals, *engine.first_residuals):
        assert 1 < found.half < found.most
        assert found.rows >= 87


def test_the_column_chooses_the_engine_and_an_estimate_has_bounds() -> None:
    fitted, bare = PointSimulator(LIMITS), PointSimulator(LIMITS, engine_named="ideal")
    point = point_of({**ROW, "osl": 64, "backend": "atom"})
    ours, plain = fitted.estimate(point), bare.estimate(point)
    assert ours.tpot_ms is not None
    assert plain.tpot_ms is not None
    assert ours.tpot_ms > plain.tpot_ms
    assert ours.tpot_ms_low is not None
    assert ours.tpot_ms_high is not None
    assert ours.tpot_ms_low < ours.tpot_ms < ours.tpot_ms_high
    assert plain.tpot_ms_low is None


def test_without_a_name_the_pooled_constants_serve_and_say_what_to_expect() -> None:
    found = tracelens.serve("llama3-8b", "h100", rate=4, requests=20)
    assert found.summary == tracelens.serve("llama3-8b", "h100", rate=4, requests=20, engine="pooled").summary
    ideal = tracelens.serve("llama3-8b", "h100", rate=4, requests=20, engine="ideal")
    assert ideal.summary["tpot_p50_ms"] < found.summary["tpot_p50_ms"]
    spans = next(each for each in fitted_engine("pooled", H100).residuals if each.left_out == "engine")
    for share in (spans.half, spans.most):
        assert f"{found.summary['tpot_p50_ms'] * share:.3g}" in found.notes[0]
    assert f"as {spans.rows:,} rows of engines that were left out (pooled constants" in found.notes[0]
    assert "expected time per token" not in "".join(ideal.notes)


@pytest.mark.parametrize(
    ("engine", "weights", "kv", "cached"),
    [("trtllm", "fp8", None, "fp8"), ("trtllm", "nvfp4", None, "fp8"), ("trtllm", "fp8", "bf16", "bf16"),
     ("trtllm", None, None, None), ("vllm", "fp8", None, None)],
)  # fmt: skip
def test_tensorrt_s_cache_is_as_narrow_as_quantized_checkpoints_say(
    engine: str, weights: str | None, kv: str | None, cached: str | None
) -> None:
    asked = DeploymentOptions(engine=engine, weights=weights, kv=kv)
    found = deployment_of("llama3-8b", "h100", asked)
    assert found.precision.kv == DType.parse(cached)
    if kv is None:
        point = point_of(
            {**ROW, "model_path": "llama3-8b", "system": "h100_sxm", "backend": engine, "precision": weights}
        )
        assert PointSimulator(LIMITS, engine_named="ideal").cost(point).deployment.precision.kv == DType.parse(cached)


def test_prompts_of_a_checkpoint_in_four_bits_throughout_take_less_time_than_of_one_with_attention_in_bf16() -> None:
    """And decoding as long: the other pool's products stay as they were."""
    row = {
        **ROW, "mode": "disagg", "precision": "fp4", "source": "InferenceX run 1", "date": "2026-05-07", "isl": 8192,
        "prefill_tp_size": 8, "decode_tp_size": 8, "concurrency": 1,
    }  # fmt: skip
    others = ({"date": "2026-03-13"}, {"system": "b200_sxm"}, {"precision": "fp8"}, {"source": "mine"}, {"mode": "agg"})
    assert {point_of({**row, **other}).prompt_linear for other in others} == {""}
    narrow = point_of(row)
    wide = dataclasses.replace(narrow, prompt_linear="")
    found, slower = PointSimulator(LIMITS).estimates([narrow, wide])
    assert found.ttft_ms < 0.95 * slower.ttft_ms
    assert found.tpot_ms == pytest.approx(slower.tpot_ms, rel=1e-9)
    spread = point_of({**row, "prefill_tp_size": 1, "prefill_attention_dp_size": 8, "prefill_moe_ep_size": 8})
    overlapped, plain = (
        PointSimulator(LIMITS).estimate(dataclasses.replace(spread, concurrency=32, prompt_overlap=overlap))
        for overlap in (spread.prompt_overlap, "")
    )
    assert overlapped.ttft_ms < plain.ttft_ms


def test_a_release_is_a_step_and_nothing_drifts_before_the_first_or_after_the_last(tmp_path: Path) -> None:
    """On gfx942 two releases; on gfx950 none, so the engine's own constants, whatever the day."""
    path = tmp_path / "e.toml"
    steps = [
        f'[[releases]]\nversion = "{version}"\nsince = "{since}"\ncompute = "9.4"\nlayer_us = {layer_us}\n{more}'
        for version, since, layer_us, more in (("2", "2026-01-05", 30, "sequence_us = 7"), ("1", "2025-12-10", 20, ""))
    ]
    path.write_text("\n".join(['source = "here"', "layer_us = 10", "sequence_us = 5", *steps]))
    engine = Engine.load(path)
    mi355x = System.load("mi355x").device
    days = (None, "2020-01-01", "2025-12-10", "2026-01-04", "2026-01-05", "2030-01-01")
    dates = [day and datetime.date.fromisoformat(day) for day in days]
    found = [engine.released(day, MI300X) for day in dates]
    assert [(each.layer_us, each.sequence_us) for each in found] == [(30, 7), *[(20, 5)] * 3, (30, 7), (30, 7)]
    assert all(engine.released(day, mi355x) == engine for day in dates)


def test_rows_of_different_days_are_of_different_releases() -> None:
    simulator = PointSimulator(LIMITS)
    old, new = (simulator.estimate(point_of({**ROW, "date": day})) for day in ("2025-12-01", "2026-06-11"))
    assert old.tpot_ms > new.tpot_ms
    assert simulator.estimate(point_of(ROW)) == new


def test_prompts_of_a_closed_loop_come_one_by_one_where_answers_go_on_meanwhile() -> None:
    """Each token takes a decode step; one prompt per finished answer of the 15 others makes a longer one of it."""
    given, made, n = 1000, 100, 16
    row = {"model_path": "meta-llama/Llama-3.1-8B", "system": "h100_sxm", "isl": given, "osl": made, "concurrency": n}
    simulator = PointSimulator(LIMITS)
    cost = simulator.cost(point_of(row))
    others, middle = n - 1, given + made // 2
    line = cost.decode_line(n, n * middle)
    decode = line.fixed + line.slope * n * middle
    mixed = sum(cost.mixed_time(given + others, [(given, 0)], n, 0, others, others * middle))
    share = others / made
    expected = ((1 - share) * decode + share * mixed) / 1e12
    assert simulator.estimate(point_of(row)).tpot_ms == pytest.approx(expected, rel=0.03)


def test_equal_answers_after_all_prompts_wait_for_half_of_them() -> None:
    """SGLang computes waiting prompts first: 16 prompts of a budget's length; the first waits for 15, the last for 0."""
    given, made, n = 8192, 100, 16
    row = {
        "model_path": "Qwen/Qwen3-32B", "system": "h100_sxm", "isl": given, "osl": made, "concurrency": n,
        "backend": "sglang", "tp_size": 4,
    }  # fmt: skip
    simulator = PointSimulator(LIMITS)
    cost = simulator.cost(point_of(row))
    assert cost.deployment.engine.policy == "prefill-first"
    line = cost.decode_line(n, n * (given + made // 2))
    decode = line.fixed + line.slope * n * (given + made // 2)
    prompt = sum(cost.mixed_time(given, [(given, 0)], 1, 1, 0, 0))
    expected = (decode + prompt * (n - 1) / 2 / made) / 1e12
    assert simulator.estimate(point_of(row)).tpot_ms == pytest.approx(expected, rel=0.03)


def test_lengths_that_were_drawn_count_with_their_mean() -> None:
    point = point_of({**ROW, "isl_actual_mean": 921.6, "osl_actual_mean": 921.6})
    assert (point.input_tokens, point.output_tokens) == (922, 922)


def test_the_model_s_own_layer_guesses_one_token_of_which_most_are_right() -> None:
    own = Speculation.of_model(ModelConfig.load("deepseek-v3"))
    assert (own.draft_tokens, own.acceptance) == (1, MTP_ACCEPTANCE)
    assert own.tokens_per_step == pytest.approx(1.85)
    assert own.draft is not None
    assert own.draft.blocks == "*E"
    with pytest.raises(UsageError, match="no layers that predict further tokens"):
        Speculation.of_model(ModelConfig.load("llama3.1-8b"))


def test_a_step_with_guesses_is_longer_but_a_token_takes_less() -> None:
    simulator = PointSimulator(LIMITS)
    with_mtp, without = (simulator.cost(point_of({**ROW, "spec_decoding": said})) for said in ("mtp", "none"))
    assert with_mtp.deployment.speculation is not None
    steps = [cost.decode_line(8, 12_000) for cost in (with_mtp, without)]
    longer, plain = (line.fixed + line.slope * 12_000 for line in steps)
    assert plain < longer < 1.85 * plain


@settings(max_examples=examples(40), deadline=None)
@given(
    model=st.sampled_from(["deepseek-v3", "llama3.1-8b", "gpt-oss-120b", "qwen3-32b"]), b=st.integers(1, 64),
    new=st.integers(1, 4), past=st.integers(0, 50_000),
)  # fmt: skip
def test_attention_of_a_decode_step_never_reads_more_than_the_cache_holds(model, b, new, past) -> None:
    """Beside the cache it reads its queries and writes their results, which no cache holds."""
    shape = ModelConfig.load(model)
    for letter in sorted({letter for letter in shape.blocks if block_types()[letter].cached_elements(shape)}):
        for core in block_types()[letter].cores(shape, b=b, new=new, past=past):
            held = b * (past + new) * 2 * block_types()[letter].cached_elements(shape)
            beside = b * new * core.q_heads * (core.d_qk + core.d_v) * 2
            assert core.hbm_bytes() <= held + beside


def test_a_few_tokens_on_a_latent_cache_read_it_together() -> None:
    """Two tokens of a sequence are further query heads on the same rows: far from twice the time of one."""
    times = []
    for new in (1, 2):
        (core,) = block_types()["*"].cores(ModelConfig.load("deepseek-v3"), b=8, new=new, past=1500)
        (request,) = core.requests()
        assert (request.s, request.q_heads) == (1, 128 * new)
        assert 2 * request.b * request.q_heads * (request.past + 1) * (576 + 512) == core.flops()
        times.append(chain("tile").estimate_many(WorkColumns.of([core]), System.load("b200")).time_us[0])
    assert times[0] < times[1] < 2 * times[0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[residuals.model]\nhalf = 2", "e.toml: residuals.model.most must be a number above 0, but is missing"),
        ("[residuals.model]\nhalf = 2\nmost = 3", "e.toml: residuals.model.rows must be a whole number, at least 1"),
        ("recv_interval = 0", "e.toml: recv_interval must be a whole number, at least 1, got 0"),
        ("[[releases]]\nlayer_us = 2", "e.toml: releases[0].since must be a date such as 2026-01-31, but is missing"),
        (
            '[[releases]]\nlayer_us = 2\nsince = "soon"',
            'e.toml: releases[0].since must be a date such as 2026-01-31, got "soon"',
        ),
        (
            '[[releases]]\nsince = "2026-01-31"',
            "e.toml: releases[0].layer_us must be a number above 0, but is missing",
        ),
    ],
)
def test_a_wrong_engine_file_is_refused_with_its_key(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_text(f'source = "here"\n{text}\n')
    with pytest.raises(InputError, match=re.escape(sentence)):
        Engine.load(path)


def _cost(
    precision: str, engine: str, device: str, *, tokens: int = 8, dp: int = 1, model: str = "qwen3-235b-a22b"
) -> StepCost:
    row = {**ROW, "model_path": model, "system": device, "precision": precision, "backend": engine}
    moe = {"moe_ep_size": 4} if "-a" in model else {}
    return PointSimulator(LIMITS, engine_named="ideal").cost(
        point_of({**row, **moe, "tp_size": 4 // dp, "dp_size": dp, "concurrency": tokens})
    )


def _operations(
    precision: str, engine: str, tokens: int, device: str = "b200", *, dp: int = 1, has_prompt: bool = False
) -> dict[str, tuple]:
    """Name -> (perf model, fs) of a layer of Qwen3-235B's decode step on 4 devices, 32 of its 128 experts on each; or
    of a step that computes a prompt.
    """
    cost = _cost(precision, engine, device, tokens=tokens, dp=dp)
    chunks, batch = ([(tokens, 0)], 0) if has_prompt else ([], tokens)
    made = cost.layer_operations(cost.layers[0], tokens, chunks, batch, 512 * batch)
    return {name: (model, fs) for name, model, fs in made}


def test_experts_take_as_long_as_measured_layers_where_there_are_some_and_no_graph_replays_them():
    """Products, activation, permutation and sum are one layer with the same weights. MI300X has no such measurement,
    H100 none of MXFP4. Decode steps of other engines than vLLM take no longer than the products.
    """
    layer, parts = _operations("bf16", "vllm", 8), {"experts.up", "experts.activation", "experts.down"}
    assert not parts & layer.keys()
    model, fs = layer["experts.layer"]
    assert (model.hidden, model.ffn, model.experts, model.gated) == (4096, 1536, 32, True)
    read = 3 * 4096 * 1536 * 2 * model.read_experts
    assert model.hbm_bytes() == pytest.approx(read, rel=0.01)
    # 7.7 TB/s is what B200's memory reaches of 8
    assert fs / 1e9 > read / 7.7e6
    for has_prompt in (False, True):
        assert parts <= _operations("mxfp4", "vllm", 8, "h100_sxm", has_prompt=has_prompt).keys()
        assert parts <= _operations("bf16", "vllm", 8, "mi300x", has_prompt=has_prompt).keys()
    for engine in ("sglang", "trtllm", "unknown"):
        made = _operations("bf16", engine, 8)
        assert parts <= made.keys()
        assert sum(made[name][1] for name in parts) < fs
        assert _operations("bf16", engine, 8, has_prompt=True)["experts.layer"][1] < fs
    # Behind an exchange among data-parallel ranks, SGLang computes products
    for engine in ("vllm", "sglang", "trtllm"):
        made = _operations("bf16", engine, 8, dp=4, has_prompt=True)
        assert (parts <= made.keys()) == (engine == "sglang")


@pytest.mark.parametrize(
    ("engine", "device", "model", "is_both"),
    [
        ("sglang", "b200", "qwen3-235b-a22b", True), ("vllm", "b200", "qwen3-235b-a22b", False),
        ("sglang", "mi300x", "qwen3-235b-a22b", False), ("sglang", "b200", "llama3.1-70b", False),
    ],
)  # fmt: skip
def test_steps_take_what_their_operations_do_with_a_table_of_their_own_for_decode_steps_that_differ(
    engine, device, model, is_both
):
    """Foreseen or not. Experts of vLLM, without a measurement, or none at all are as long in either step."""
    cost, foreseen = (_cost("bf16", engine, device, model=model) for _ in range(2))
    foreseen.foresee([8], [(8, 8)], [1], longest=512)
    mixes = [(8, [], 8, 0, 8, 8 * 512), (8, [(8, 0)], 1, 1, 0, 0)]
    decoding, prompts = (cost.step_parts(mix)[0] for mix in mixes)
    assert [foreseen.step_parts(mix)[0] for mix in mixes] == [decoding, prompts]
    operations = cost.step_operations(mixes)
    for at, whole in enumerate((decoding, prompts)):
        assert sum(count * fs for step, _, count, fs in operations if step == at) == pytest.approx(whole, rel=1e-9)
    assert {count.is_replayed for count in cost._linear} == ({False, True} if is_both else {False})


@pytest.mark.parametrize("device", ["b200", "b300", "h200_sxm"])
def test_vllms_experts_take_what_its_own_kernel_did_where_others_were_measured_too(device):
    """B200's BF16 layers are TensorRT-LLM's, vLLM's beside them, and B300 has the constants of both; H200's are vLLM's."""
    layers = [
        _operations("bf16", engine, 256, device, has_prompt=True)["experts.layer"] for engine in ("vllm", "trtllm")
    ]
    (model, vllm_fs), (other, fs) = layers
    assert model == other
    assert (vllm_fs > 1.2 * fs) == (device != "h200_sxm")
    assert (vllm_fs == fs) == (device == "h200_sxm")


def test_vllm_multiplies_a_block_of_128_rows_for_each_fp8_expert():
    """Of 32 of 128 experts on a device: room for the 8 rows of each token, wherever their experts are, and 32 x 127."""
    few, many = (_operations("fp8", "vllm", tokens) for tokens in (8, 64))
    for made, tokens in ((few, 8), (many, 64)):
        (layer, _), (empty, _) = made["experts.layer"], made["experts.up.empty"]
        rows = 8 * tokens + 32 * 127
        assert 2 * tokens < layer.tokens < 8 * tokens
        assert (layer.tokens + empty.m, empty.n, empty.k, empty.groups) == (rows, 2 * 1536, 4096, 1)
        assert made["experts.activation.empty"][0].shape == (rows - layer.tokens, 1536)
    assert many["experts.up.empty"][1] > few["experts.up.empty"][1] > 0
    assert few["experts.layer"][1] < many["experts.layer"][1]
    for precision, engine in (("bf16", "vllm"), ("fp8", "trtllm"), ("fp8", "sglang")):
        assert "experts.up.empty" not in _operations(precision, engine, 8)
    point = point_of({**ROW, "system": "h200_sxm", "backend": "vllm", "model_path": "qwen3-235b-a22b", "tp_size": 4})
    ours, others = (PointSimulator(LIMITS).cost(dataclasses.replace(point, engine=name)) for name in ("vllm", "sglang"))
    assert ours.pool_tokens() == pytest.approx(others.pool_tokens(), rel=0.01)


@pytest.mark.parametrize(("device", "sister"), [("b300", "b200"), ("gb300", "gb200"), ("h800", "h100-sxm")])
def test_a_device_decodes_about_as_fast_as_the_one_whose_constants_it_has(device: str, sister: str) -> None:
    """Memory of 1 to 1.01 times the rate. B300 and GB300, whose units nobody published, were 1.6 times as fast."""
    here, there = (tracelens.serve("qwen3-30b-a3b", name, concurrency=1, requests=4) for name in (device, sister))
    assert here.summary["tpot_p50_ms"] == pytest.approx(there.summary["tpot_p50_ms"], rel=0.05)
    assumed = [note for note in here.notes if note.startswith("compute units, clock and L2 size of")]
    assert len(assumed) == (device != "h800")


def test_a_server_on_a_device_without_a_memory_rate_is_refused() -> None:
    with pytest.raises(UsageError, match="h100-sxm-96gb has no HBM rate"):
        tracelens.serve("llama3.1-8b", "h100-sxm-96gb", concurrency=1)


def test_hopper_with_more_bandwidth_and_fewer_units_decodes_by_its_bandwidth_and_reads_prompts_slower() -> None:
    """At rates alone an H20 took a third of an H100's time per token; its memory is 4.0 / 3.35 = 1.19 times as fast."""
    h20, h100 = (
        tracelens.serve("qwen3-30b-a3b", device, concurrency=1, requests=4).summary for device in ("h20", "h100-sxm")
    )
    assert 1 < h100["tpot_p50_ms"] / h20["tpot_p50_ms"] < 1.19
    assert h20["ttft_p50_ms"] > 1.5 * h100["ttft_p50_ms"]
