"""Replicas that cannot notice each other run one after the other, and give what one queue of events gives."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tests.serving.test_levels import CASES, SHARDED
from tracelens.errors import UsageError
from tracelens.predict.serving.deployment import Engine, Parallelism, Speculation
from tracelens.predict.serving.event_queue import ArrivalEvents as Coming
from tracelens.predict.serving.event_queue import EventQueue
from tracelens.predict.serving.lanes import QuickLane
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload
from tracelens.predict.serving.simulation import Options, Simulation

TIGHT = Engine(kv_tokens=1600)
DEPLOYMENTS = (
    {},
    {"engine": TIGHT},
    {"engine": dataclasses.replace(TIGHT, preemption="swap")},
    {"engine": Engine(kv_tokens=900, max_num_seqs=8)},
    {"engine": Engine(max_batched_tokens=256, max_num_seqs=8, step_us=900.0, sequence_us=11.0, prompt_us=70.0)},
    {"parallelism": Parallelism(tp=2)},
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
    router=st.sampled_from(("round-robin", "round-robin", "least-loaded", "prefix-aware")),
    replicas=st.sampled_from((1, 1, 3)),
    prefill_replicas=st.sampled_from((0, 0, 0, 1)),
    cpu_cache_gib=st.sampled_from((0.0, 0.01)),
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
    ),
)
def test_running_apart_is_running_together(cost_of, deployment, options, workload):
    cost, requests = cost_of(**deployment), workload.generate()
    if options.order == "priority":
        requests = dataclasses.replace(requests, priority=[index % 3 for index in range(len(requests))])
    quick, plain = both(cost, requests, options)
    assert quick == plain
    assert list(quick.log.rejected) == list(plain.log.rejected)


def both(cost, requests, options):
    return [
        Simulation(cost.deployment, requests, options, cost=cost, queue=each).run() for each in (None, EventQueue())
    ]


@pytest.mark.parametrize("level", ["low", "medium"])
@pytest.mark.parametrize("name", [*CASES, *SHARDED])
def test_running_apart_is_running_together_in_each_case_of_levels(name, level, cost_of):
    fields, options, workload = {**CASES, **SHARDED}[name]
    options = dataclasses.replace(options, levels=(level,))
    quick, plain = both(cost_of(**fields), workload.generate(), options)
    assert quick == plain


def test_without_requests_both_end_at_once(cost_of):
    for arrivals in (Arrivals(rate=1.0), Arrivals(kind="closed", concurrency=2)):
        quick, plain = both(cost_of(), Workload(arrivals=arrivals, count=0).generate(), Options(replicas=2))
        assert quick == plain
        assert quick.end_fs == 0


def lanes(cost, options=None, workload=None, **fields):
    workload = workload or Workload(arrivals=Arrivals(rate=3.0), count=2)
    simulation = Simulation(cost.deployment, workload.generate(), options or Options(), cost=cost, **fields)
    return {type(lane) for replica in simulation.replicas for lane in replica.lanes}


def test_the_default_is_quick_and_what_others_can_notice_is_not(cost_of):
    closed = Workload(arrivals=Arrivals(kind="closed", concurrency=2), count=2)
    for options in (Options(), Options(levels=("low",)), Options(replicas=3), Options(policy="static", order="sjf")):
        assert lanes(cost_of(), options) == {QuickLane}
    assert lanes(cost_of(), workload=closed) == {QuickLane}
    for options in (
        Options(prefill_replicas=1), Options(contention=True), Options(replicas=2, router="least-loaded"),
        Options(levels=("high",)), Options(series=True),
    ):  # fmt: skip
        assert QuickLane not in lanes(cost_of(), options)
    assert QuickLane not in lanes(cost_of(), Options(replicas=2), closed)
    assert QuickLane not in lanes(cost_of(parallelism=Parallelism(pp=2)))
    assert QuickLane not in lanes(cost_of(), queue=EventQueue())


def test_a_process_that_runs_alone_waits_as_in_a_queue():
    def seen(run_alone):
        queue, log = EventQueue(), []
        timer = queue.timer()

        def process():
            for wait in (4, (3, 2), timer):
                yield wait
                log.append(queue.now)

        def arrive(name):
            log.append((queue.now, name))
            timer.set(20 if name < 3 else 12)

        if run_alone:
            queue.run_alone(process(), Coming([4, 5, 5, 11], [0, 1, 2, 3]), arrive)
        else:
            queue.start(process())
            for time, name in ((4, 0), (5, 1), (5, 2), (11, 3)):
                queue.at(time, at_once(arrive, name))
            queue.run()
        return log, queue.now, queue.processed - 4 * (not run_alone)

    # A delay to 4, two activities to 7, then the timer: set to 20 until the last arrival moves it to 12
    assert seen(True) == seen(False) == ([(4, 0), 4, (5, 1), (5, 2), 7, (11, 3), 12], 12, 1 + 1 + 2 + 1)


def at_once(arrive, name):
    arrive(name)
    return
    yield


def test_requests_out_of_order_are_refused():
    for times in ([3, 2], [-1, 2]):
        with pytest.raises(UsageError, match="order of their arrival"):
            Requests(arrival_fs=times, input_tokens=[1, 1], output_tokens=[1, 1])
