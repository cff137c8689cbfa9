"""Decode steps that pass in one wait give what they give one by one."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples, part
from tests.serving.test_levels import CASES, SHARDED
from tracelens.errors import UsageError
from tracelens.predict.serving.deployment import Adapters, Engine, Parallelism, Speculation
from tracelens.predict.serving.replica_state import DiskCache, Options
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload
from tracelens.predict.serving.simulation import Simulation

TIGHT = Engine(kv_tokens=1600)
DEPLOYMENTS = (
    {},
    {"engine": TIGHT},
    {"engine": Engine(kv_tokens=1600, cache_load="beside")},
    {"engine": Engine(kv_tokens=1600, cache_load="layer")},
    {"engine": dataclasses.replace(TIGHT, preemption="swap")},
    {"engine": Engine(kv_tokens=900, max_num_seqs=8)},
    {"engine": Engine(max_batched_tokens=256, max_num_seqs=8, step_us=900.0, sequence_us=11.0, prompt_us=70.0)},
    {"parallelism": Parallelism(tp=2)},
    {"adapters": Adapters(rank=8, count=4, slots=1)},
    {"parallelism": Parallelism(pp=2)},
    {"speculation": Speculation(draft_tokens=3, acceptance=0.6)},
    {"speculation": Speculation(draft_tokens=3, acceptance=1.0)},
)
LENGTHS = (
    Lengths(mean=1),
    Lengths(mean=64),
    Lengths(kind="lognormal", mean=150, spread=1.0),
    Lengths(kind="uniform", mean=300, spread=0.9),
)
ARRIVALS = st.one_of(
    st.builds(Arrivals, kind=st.just("closed"), concurrency=st.sampled_from((1, 3, 40))),
    st.builds(
        Arrivals,
        kind=st.sampled_from(("poisson", "gamma", "constant", "burst")),
        rate=st.sampled_from((3.0, 30.0, 300.0)),
        variation=st.sampled_from((1.0, 4.0)),
    ),
)
OPTIONS = st.builds(
    Options,
    policy=st.sampled_from((None, "static", "continuous", "prefill-first")),
    router=st.sampled_from(("round-robin", "round-robin", "least-loaded", "prefix-aware", "session-affinity")),
    replicas=st.sampled_from((1, 1, 3)),
    prefill_replicas=st.sampled_from((0, 0, 0, 1)),
    cpu_cache_gib=st.just(0.01),
    disk_cache=st.sampled_from((None, DiskCache(gib=0.1, gb_s=3.0))),
    levels=st.sampled_from((("low",), ("medium",))),
    contention=st.sampled_from((False, False, True)),
    order=st.sampled_from(("fcfs", "fcfs", "sjf", "priority")),
    series=st.sampled_from((False, False, True)),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    deployment=st.sampled_from(DEPLOYMENTS),
    options=OPTIONS,
    workload=st.builds(
        Workload,
        arrivals=ARRIVALS,
        input=st.sampled_from(LENGTHS),
        output=st.sampled_from(LENGTHS),
        count=st.integers(1, 60),
        seed=st.integers(0, 1000),
        shared_tokens=st.sampled_from((0, 0, 0, 165)),
        shared_groups=st.sampled_from((1, 5)),
        turns=st.sampled_from((Lengths(), Lengths(), Lengths(mean=3))),
        adapters=st.just(4),
        think_s=st.sampled_from((0.0, 0.05)),
    ),
)
def test_a_leap_is_its_steps(cost_of, deployment, options, workload):
    cost, requests = cost_of(**deployment), workload.generate()
    if options.order == "priority":
        requests = dataclasses.replace(requests, priority=[index % 3 for index in range(len(requests))])
    leaping, stepping = both(cost, requests, options)
    assert leaping == stepping
    assert list(leaping.log.rejected) == list(stepping.log.rejected)


def both(cost, requests, options):
    leaping, stepping = (Simulation(cost.deployment, requests, options, cost=cost) for _ in range(2))
    for replica in stepping.replicas:
        replica.leaps = replica.level == "low"
    return leaping.run(), stepping.run()


@pytest.mark.parametrize("level", ["low", "medium"])
@pytest.mark.parametrize("name", part([*CASES, *SHARDED], 8))
def test_a_leap_is_its_steps_in_each_case_of_levels(name, level, cost_of):
    fields, options, workload = {**CASES, **SHARDED}[name]
    options = dataclasses.replace(options, levels=(level,))
    leaping, stepping = both(cost_of(**fields), workload.generate(), options)
    assert leaping == stepping


def test_without_requests_both_end_at_once(cost_of):
    for arrivals in (Arrivals(rate=1.0), Arrivals(kind="closed", concurrency=2)):
        leaping, stepping = both(cost_of(), Workload(arrivals=arrivals, count=0).generate(), Options(replicas=2))
        assert leaping == stepping
        assert leaping.end_fs == 0


def leaps(cost, options=None, workload=None):
    workload = workload or Workload(arrivals=Arrivals(rate=3.0), count=2)
    simulation = Simulation(cost.deployment, workload.generate(), options or Options(), cost=cost)
    return {replica.leaps and replica.passes_runs for replica in simulation.replicas}


def test_the_default_leaps_and_what_others_can_notice_does_not(cost_of):
    closed = Workload(arrivals=Arrivals(kind="closed", concurrency=2), count=2)
    for options in (Options(), Options(levels=("low",)), Options(replicas=3), Options(policy="static", order="sjf")):
        assert leaps(cost_of(), options) == {True}
    assert leaps(cost_of(), workload=closed) == {True}
    for options in (Options(prefill_replicas=1), Options(levels=("high",)), Options(series=True)):
        assert leaps(cost_of(), options) == {False}
    assert leaps(cost_of(), Options(replicas=2), closed) == {False}
    assert leaps(cost_of(parallelism=Parallelism(pp=2))) == {False}


def test_requests_out_of_order_are_refused():
    for times in ([3, 2], [-1, 2]):
        with pytest.raises(UsageError, match="order of their arrival"):
            Requests(arrival_fs=times, input_tokens=[1, 1], output_tokens=[1, 1])
