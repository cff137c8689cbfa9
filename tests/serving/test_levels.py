"""One step cost behind three levels of detail: equal metrics, different events."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path

import pytest

from tests.conftest import part
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.predict.serving.deployment import Adapters, Engine, Parallelism, Speculation
from tracelens.predict.serving.metrics import differences, per_request, summary
from tracelens.predict.serving.replica_state import LEVELS, DiskCache, Options
from tracelens.predict.serving.requests import Arrivals, Lengths, Workload
from tracelens.predict.serving.simulation import Simulation, simulate

MIXED = Workload(
    arrivals=Arrivals(rate=12.0),
    input=Lengths(kind="lognormal", mean=300, spread=0.7),
    output=Lengths(kind="lognormal", mean=40, spread=0.6),
    count=40,
    seed=3,
)
CLOSED = dataclasses.replace(MIXED, arrivals=Arrivals(kind="closed", concurrency=6))
TIGHT = Engine(kv_tokens=1600)
CASES = {
    **{policy: ({}, Options(policy=policy), MIXED) for policy in ("chunked-prefill", "static", "continuous", "prefill-first")},
    "recompute": ({"engine": TIGHT}, Options(), dataclasses.replace(MIXED, arrivals=Arrivals(rate=60.0))),
    "recompute, prefill first": ({"engine": TIGHT}, Options(policy="prefill-first"), MIXED),
    "swap": (
        {"engine": dataclasses.replace(TIGHT, preemption="swap")}, Options(),
        dataclasses.replace(MIXED, arrivals=Arrivals(rate=60.0)),
    ),
    "swap, prefill first": (
        {"engine": dataclasses.replace(TIGHT, preemption="swap")}, Options(policy="prefill-first"),
        dataclasses.replace(MIXED, arrivals=Arrivals(rate=60.0)),
    ),
    "host times": ({"engine": Engine(step_us=900.0, sequence_us=11.0, prompt_us=70.0)}, Options(), MIXED),
    "small budget": ({"engine": Engine(max_batched_tokens=256, max_num_seqs=8)}, Options(), MIXED),
    "constant arrivals": ({}, Options(), dataclasses.replace(MIXED, arrivals=Arrivals(kind="constant", rate=20.0))),
    "bursts": ({}, Options(), dataclasses.replace(MIXED, arrivals=Arrivals(kind="burst", rate=20.0, variation=7))),
    "shortest first": ({"engine": Engine(max_num_seqs=4)}, Options(order="sjf"), MIXED),
    "shortest first in a tight cache": (
        {"engine": Engine(kv_tokens=1000)}, Options(order="sjf"), dataclasses.replace(MIXED, arrivals=Arrivals(rate=60.0)),
    ),
    "closed loop": ({}, Options(), CLOSED),
    "three replicas": ({}, Options(replicas=3, router="least-loaded"), CLOSED),
    "disaggregated": ({}, Options(prefill_replicas=1, replicas=2), MIXED),
    "disaggregated, tight": ({"engine": TIGHT}, Options(prefill_replicas=1), dataclasses.replace(MIXED, arrivals=Arrivals(rate=60.0))),
    "shared prefix": (
        {"engine": Engine(kv_tokens=4000)}, Options(replicas=2, router="prefix-aware"),
        dataclasses.replace(MIXED, shared_tokens=160, shared_groups=5),
    ),
    "sessions": (
        {"engine": Engine(kv_tokens=8000)}, Options(replicas=2, router="session-affinity"),
        dataclasses.replace(MIXED, turns=Lengths(mean=4), think_s=0.2),
    ),
    **{
        f"sessions in host memory and on disks, loaded by {load}": (
            {"engine": Engine(kv_tokens=3000, cache_load=load)},
            Options(cpu_cache_gib=0.3, disk_cache=DiskCache(gib=4.0, gb_s=5.0)),
            dataclasses.replace(MIXED, turns=Lengths(mean=4), think_s=0.2),
        )
        for load in ("step", "layer", "beside")
    },
    "adapters": (
        {"adapters": Adapters(rank=16, count=6, slots=2)}, Options(),
        dataclasses.replace(MIXED, adapters=6, turns=Lengths(mean=2)),
    ),
    "speculation": ({"speculation": Speculation(draft_tokens=3, acceptance=0.6)}, Options(), MIXED),
    "whole speculation": ({"speculation": Speculation(draft_tokens=3, acceptance=1.0)}, Options(), MIXED),
    "tile backend": ({"backend": "tile"}, Options(), dataclasses.replace(MIXED, count=12)),
}  # fmt: skip
SHARDED = {
    "tensor parallel": ({"parallelism": Parallelism(tp=2)}, Options(), MIXED),
    "pipeline": ({"parallelism": Parallelism(pp=2)}, Options(), MIXED),
    "both": ({"parallelism": Parallelism(tp=2, pp=2)}, Options(), CLOSED),
    "pipeline, tight": ({"parallelism": Parallelism(pp=2), "engine": TIGHT}, Options(), MIXED),
    "experts": ({"model": "qwen3-30b-a3b", "parallelism": Parallelism(dp=2, ep=2)}, Options(), CLOSED),
}


def runs(cost, options, workload):
    requests = workload.generate()
    return {
        level: simulate(cost.deployment, requests, dataclasses.replace(options, levels=(level,)), cost=cost)
        for level in LEVELS
    }


def check(cost, options, workload):
    outcomes = runs(cost, options, workload)
    figures = {level: summary(outcome) for level, outcome in outcomes.items()}
    assert max(differences(figures["high"], figures["medium"]).values()) <= 1e-9
    assert max(differences(figures["medium"], figures["low"]).values()) <= 1e-6
    for high, medium in zip(outcomes["high"].steps, outcomes["medium"].steps, strict=True):
        layers = len(cost.layers) // cost.deployment.parallelism.pp
        assert high.compute_events == layers * medium.compute_events
    for outcome in outcomes.values():
        assert outcome.left_blocks == 0
        assert all(peak <= outcome.pool_tokens // outcome.block_tokens for peak in outcome.peak_blocks)
    return outcomes, figures


@pytest.mark.parametrize("name", part(list(CASES), 3))
def test_levels_agree_in_every_metric_and_high_has_layers_times_the_compute_events(name, cost_of):
    fields, options, workload = CASES[name]
    _, figures = check(cost_of(**fields), options, workload)
    assert figures["medium"]["completed"] == workload.count
    if "recompute" in name or "swap" in name:
        assert figures["medium"]["preempted"] > 0


@pytest.mark.parametrize("name", SHARDED)
def test_levels_agree_where_devices_share_a_layer_or_a_pipeline(name, cost_of):
    fields, options, workload = SHARDED[name]
    outcomes, figures = check(cost_of(**fields), options, dataclasses.replace(workload, count=12))
    assert figures["medium"]["completed"] == 12
    assert outcomes["high"].events > 5 * outcomes["medium"].events


def test_levels_may_be_mixed_between_replicas(cost_of):
    cost, requests = cost_of(), MIXED.generate()
    figures = [
        summary(simulate(cost.deployment, requests, Options(replicas=3, levels=levels), cost=cost))
        for levels in (("medium",), ("high", "medium", "low"))
    ]
    assert max(differences(*figures).values()) <= 1e-6
    assert figures[1]["compute_events"] > figures[0]["compute_events"]


def test_what_medium_leaves_out_of_varying_layers_is_the_wait_of_each_of_them(cost_of):
    """Four devices of 10 %: a layer's slowest takes 1.103 of the mean, that of 32 layers together 1.018.

    E of the largest of 4 normal values is 1.0294. One device waits for none, and its mean stays what it was.
    """
    requests = dataclasses.replace(CLOSED, count=8).generate()

    def compute_s(jitter: float, level: str, tp: int) -> float:
        cost = cost_of(parallelism=Parallelism(tp=tp))
        without = simulate(cost.deployment, requests, Options(levels=(level,)), cost=cost)
        varied = simulate(cost.deployment, requests, Options(levels=(level,), jitter=jitter), cost=cost)
        line = cost.decode_line(1, 1)
        share = 1 - line.exchange / line.fixed
        return (varied.end_fs / without.end_fs - 1) / share

    high, medium, low = (compute_s(0.1, level, 4) for level in ("high", "medium", "low"))
    assert low == 0
    assert 0.010 < medium < 0.022 < 0.07 < high < 0.12
    assert abs(compute_s(0.1, "high", 1)) < 0.01
    assert abs(compute_s(0.1, "medium", 1)) < 0.01


def test_varying_times_are_the_same_for_the_same_run_and_no_share_above_all(cost_of):
    cost, requests = cost_of(), dataclasses.replace(CLOSED, count=4).generate()
    ends = [simulate(cost.deployment, requests, Options(jitter=0.2), cost=cost).end_fs for _ in range(2)]
    assert ends[0] == ends[1]
    with pytest.raises(UsageError, match=r"jitter is a share of the mean time from 0 to 1, not 1\.5"):
        Options(jitter=1.5)


def test_the_simulators_own_time_is_shared_out_by_module(cost_of, capsys):
    words = ["serve", "--scenarios", "--model", "llama3.1-8b", "--tp", "2", "--requests", "4", "--simulator-profile"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"high: time in (event_queue|lane) +\d+ %", printed)
    assert re.search(r"medium: time in \w+ +\d+ %", printed)
    assert main([word for word in words if word != "--scenarios"] + ["--cluster", "dgx-h100", "--rate", "1"]) == 2


def test_low_has_fewer_events_than_medium(cost_of):
    outcomes = runs(cost_of(), Options(), MIXED)
    assert outcomes["low"].events < outcomes["medium"].events / 2 < outcomes["high"].events / 40


def test_contention_never_makes_anything_faster(cost_of):
    cost = cost_of(parallelism=Parallelism(tp=2, pp=2))
    requests = dataclasses.replace(CLOSED, count=8).generate()
    for level in ("high", "medium"):
        free, shared = (
            summary(simulate(cost.deployment, requests, Options(levels=(level,), contention=contention), cost=cost))
            for contention in (False, True)
        )
        assert shared["window_s"] >= free["window_s"]
        assert shared["completed"] == 8


def simpy_queue():
    spec = importlib.util.spec_from_file_location("simpy_queue", Path(__file__).with_name("simpy_queue.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SimPyQueue()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("parallelism", [Parallelism(), Parallelism(tp=2), Parallelism(pp=2)], ids=str)
def test_simpy_gives_the_same_events_at_the_same_times(level, parallelism, cost_of):
    cost = cost_of(parallelism=parallelism)
    requests = dataclasses.replace(MIXED, count=10).generate()
    options = Options(levels=(level,))
    ours = Simulation(cost.deployment, requests, options, cost=cost).run()
    theirs = Simulation(cost.deployment, requests, options, cost=cost, queue=simpy_queue()).run()
    assert ours.end_fs == theirs.end_fs
    for name in ("arrival", "scheduled", "first", "last", "preempted"):
        assert getattr(ours.log, name) == getattr(theirs.log, name)
    for mine, other in zip(ours.steps, theirs.steps, strict=True):
        assert mine == other


def test_the_same_seed_gives_the_same_bytes(cost_of):
    cost = cost_of()
    texts = [per_request(simulate(cost.deployment, MIXED.generate(), Options(), cost=cost)).to_csv() for _ in range(2)]
    assert texts[0] == texts[1]
    other = dataclasses.replace(MIXED, seed=4)
    assert per_request(simulate(cost.deployment, other.generate(), Options(), cost=cost)).to_csv() != texts[0]
