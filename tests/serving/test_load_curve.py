"""The load curve of a server: its figures against plain runs, and what bounds a load."""

from __future__ import annotations

import dataclasses
import math
import re
from functools import cache

import pytest

from tests.conftest import part
from tracelens.errors import UsageError
from tracelens.predict.serving import engines
from tracelens.predict.serving.deployment import Engine
from tracelens.predict.serving.experiment import serve
from tracelens.predict.serving.load_curve import PARTS, load_curve
from tracelens.predict.serving.serving_options import ServingConfig

MODEL, DEVICE = "llama3.1-8b", "h100-sxm"
SMALL = {"input_tokens": 256, "output_tokens": 32, "max_num_seqs": 16}


def curve_of(model=MODEL, device=DEVICE, takes_tp=True, levels=(), **given):
    """``levels``: of a test that looks at these loads alone."""
    return load_curve(model, device, ServingConfig(**{**SMALL, **given}), takes_tp=takes_tp, levels=levels)


@cache
def plain():
    return curve_of()


def test_a_point_is_what_a_long_closed_loop_comes_to():
    drawn = {"output_tokens": "uniform:64:0.5"}
    (point,) = curve_of(**drawn, requests=800, levels=(16,)).points
    long = serve(MODEL, DEVICE, **{**SMALL, **drawn}, concurrency=16, requests=3000).summary
    assert point.concurrency == 16
    assert point.figures["requests_per_s"] == pytest.approx(long["requests_per_s"], rel=0.03)
    assert point.figures["output_tokens_per_s_per_gpu"] == pytest.approx(long["output_tokens_per_s"], rel=0.03)
    assert point.figures["tpot_p50_ms"] == pytest.approx(long["tpot_p50_ms"], rel=0.03)
    assert point.figures["tokens_per_s_per_user"] == pytest.approx(1e3 / point.figures["tpot_p50_ms"])


@pytest.mark.sweep
def test_where_the_slo_breaks_is_closed_in_on():
    points = plain().points
    alone, full = (points[at].figures["tpot_p99_ms"] for at in (0, -1))
    curve = curve_of(slo=f"tpot={alone + 0.6 * (full - alone)}ms")
    assert curve.held is not None
    assert curve.broken is not None
    assert 0 < curve.broken.concurrency - curve.held.concurrency <= max(curve.held.concurrency // 8, 1)
    limit = curve.objectives.tpot_ms
    assert curve.held.figures["tpot_p99_ms"] <= limit < curve.broken.figures["tpot_p99_ms"]
    assert not curve.is_assumed


def test_an_slo_that_nothing_keeps_and_one_that_all_keep():
    never, always = curve_of(slo="tpot=1us", levels=(1,)), curve_of(slo="e2e=1h", levels=(4, 16))
    assert (never.held, never.broken.concurrency) == (None, 1)
    assert (always.held.concurrency, always.broken) == (16, None)
    assert always.about()["held_concurrency"] == 16


@pytest.mark.parametrize(
    "given", part([{}, {"pp": 2}, {"prefill_replicas": 1}, {"model": "qwen3-30b-a3b", "tp": 2}], 4)
)
def test_without_host_times_the_operations_are_all_of_a_step(given):
    """Each operation's time is asked of the backend apart, so they add up to the simulated steps only if none is lost."""
    for point in curve_of(engine=engines.IDEAL, levels=(1, 16), **given).points:
        assert sum(point.shares.values()) == pytest.approx(1)
        assert set(point.shares) == set(PARTS)
        assert point.shares["host"] == pytest.approx(0, abs=0.002)
        assert (point.shares["collectives"] > 0) == (given.get("tp", 1) > 1)


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({"input_tokens": 16, "output_tokens": 256}, "decode HBM"),
        ({"input_tokens": 4096, "output_tokens": 2}, "prefill compute"),
        ({"kv_tokens": 1024, "input_tokens": 256, "output_tokens": 64}, "KV cache"),
        ({"prefill_replicas": 1, "input_tokens": 4096, "output_tokens": 2}, "prefill replicas"),
        ({"engine": Engine(step_us=100_000.0)}, "host"),
        ({"engine": Engine(link_efficiency=0.001), "tp": 8}, "collectives"),
    ],
)
def test_what_bounds_the_highest_load_follows_what_is_scarce(given, bound):
    name, share = curve_of(levels=(16,), **given).points[-1].bound
    assert name == bound
    assert 0.2 < share <= 1


def test_bounds_do_not_depend_on_how_often_requests_come_by():
    """Steps looked at in time with the requests would miss every prompt, or every decode step."""
    (point,) = curve_of(output_tokens=2, requests=64, levels=(1,)).points
    # The front end's time is no step's
    before = plain().experiment.deployment.engine.request_us / 1e3
    ttft, tpot = point.figures["ttft_p50_ms"] - before, point.figures["tpot_p50_ms"]
    prefill = point.shares["prefill compute"] + point.shares["prefill HBM"]
    assert 0.5 * ttft / (ttft + tpot) < prefill < ttft / (ttft + tpot) + 0.05
    assert 0.5 * tpot / (ttft + tpot) < point.shares["decode HBM"] < tpot / (ttft + tpot) + 0.05


def test_the_smallest_degree_that_fits_is_taken_unless_one_is_given():
    curve = curve_of("llama3.1-70b", levels=(1,))
    assert curve.experiment.deployment.parallelism.tp == 2
    assert curve.notes[0].startswith(
        "tp 2 is the smallest tensor-parallel degree (--tp) that fits; with tp 1, llama3.1-70b"
    )
    with pytest.raises(UsageError, match="does not fit"):
        curve_of("llama3.1-70b", takes_tp=False)
    assert plain().experiment.deployment.parallelism.tp == 1


def test_a_load_beyond_the_cache_is_the_last():
    curve = curve_of(kv_tokens=2048)
    assert [point.concurrency for point in curve.points][-1] == 8
    assert curve.points[-1].figures["kv_share"] > 0.9


@pytest.mark.sweep
def test_each_data_parallel_rank_has_its_own_places():
    curve = curve_of("qwen3-30b-a3b", dp=2, ep=2, max_num_seqs=4, slo="e2e=1h")
    assert curve.points[-1].concurrency == 2 * 4


def test_a_profile_has_no_operations_to_look_at(tmp_path):
    from tracelens.predict.serving.costs import StepCost
    from tracelens.predict.serving.experiment import deployment_of
    from tracelens.predict.serving.profile import export

    path = tmp_path / "profile.json"
    export(StepCost(deployment_of(MODEL, DEVICE, ServingConfig())), path, prompt=256, batch=16, context=272)
    assert {point.bound for point in curve_of(profile=path).points} == {("unknown (--profile)", None)}


def test_a_request_that_can_never_fit_ends_with_the_reason():
    with pytest.raises(UsageError, match="do not fit a key-value cache"):
        curve_of(input_tokens=4096, kv_tokens=2048)


@pytest.mark.sweep
def test_the_number_of_requests_given_is_kept():
    curve = curve_of(requests=20)
    assert {len(point.result.outcome.requests) for point in curve.points} == {20}
    assert curve.points[-1].concurrency == 5
    assert dataclasses.asdict(curve.objectives)["ttft_ms"] == 450


def test_what_is_expected_of_a_load_is_of_its_settled_requests():
    """Its center is the median that the curve prints, and whatever keeps the SLO does so with shorter times."""
    found = load_curve(MODEL, DEVICE, ServingConfig(), takes_tp=True, levels=(112,))
    low, high = (
        float(text) for text in re.search(r"TTFT p50 is expected within (\S+) to (\S+) ms", str(found.notes)).groups()
    )
    assert math.sqrt(low * high) == pytest.approx(found.points[0].figures["ttft_p50_ms"], rel=0.01)
    assert found.points[0].figures["good_share"] >= 0.99
    assert "100 % at the lower" in str(found.notes)
