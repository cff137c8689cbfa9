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
from tracelens.laboratory.configuration_rows import LIMITS, PointSimulator, point_of
from tracelens.option_fields import BACKENDS
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.projection.projection_options import ProjectOptions, SearchOptions
from tracelens.predict.serving import engines
from tracelens.predict.serving.deployment import MTP_ACCEPTANCE, Engine, Speculation
from tracelens.predict.serving.engines import engine_name, fitted_engine, named
from tracelens.predict.serving.experiment import deployment_of
from tracelens.predict.serving.serving_options import DeploymentOptions, EngineOptions
from tracelens.predict.workload import ModelConfig
from tracelens.predict.workload.blocks import block_types
from tracelens.types.dtypes import DType

ROW = {
    "model_path": "deepseek-ai/DeepSeek-R1", "system": "mi355x", "precision": "fp8", "mode": "agg", "isl": 1024,
    "osl": 1024, "concurrency": 8, "tp_size": 8, "backend": "sglang",
}  # fmt: skip
H100, MI300X = (System.load(name).device for name in ("h100-sxm", "mi300x"))


def test_one_default_backend_chain() -> None:
    assert EngineOptions().backend == ProjectOptions().backend == BACKENDS
    assert next(f for f in dataclasses.fields(SearchOptions) if f.name == "backend").default == BACKENDS


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
    found = engine.residuals
    assert found is not None
    assert 1 < found.half < found.most


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
    spans = fitted_engine("pooled", H100).residuals
    for share in spans:
        assert f"{found.summary['tpot_p50_ms'] * share:.3g}" in found.notes[0]
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
        ("[residuals]\nhalf = 1.5", "e.toml: residuals.most must be a number above 0, but is missing"),
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
