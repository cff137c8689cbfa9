"""LoRA adapters: their bytes, the work of their products, and which requests may be in one batch."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens.errors import UsageError
from tracelens.perf_models import GroupedGEMM
from tracelens.predict.serving.deployment import Adapters, Engine, Parallelism
from tracelens.predict.serving.metrics import per_request, summary
from tracelens.predict.serving.profile import export
from tracelens.predict.serving.replica_state import FirstComeQueue, OrderedLine
from tracelens.predict.serving.requests import Arrivals, Lengths, Requests, Workload, read_requests
from tracelens.predict.serving.simulation import Options, simulate

#: Of Llama 3.1 8B beside query, key and value, output, gate and up, and down: A of 16 x 4,096 for each of the first
#: three, B of 6,144 x 16 ...
PER_LAYER = 3 * 16 * 4096 + 16 * 6144 + 16 * (4096 + 4096) + 2 * 16 * 4096 + 16 * 28672 + 16 * (14336 + 4096)
MANY = Workload(
    arrivals=Arrivals(rate=40.0), input=Lengths(mean=100), output=Lengths(mean=20), count=40, seed=1, adapters=6
)


def run(cost, requests, **options):
    return simulate(cost.deployment, requests, Options(**options), cost=cost)


def adapted(cost_of, rank=16, count=6, slots=2, **fields):
    return cost_of(adapters=Adapters(rank=rank, count=count, slots=slots), **fields)


def test_an_adapter_has_two_matrices_beside_each_product(cost_of):
    assert 32 * PER_LAYER == 41_943_040
    assert adapted(cost_of).adapter_bytes() == 2 * 32 * PER_LAYER
    # A of what tensor parallelism divides by columns is on both devices, as B of what it divides by rows
    halved = 3 * 16 * 4096 + 16 * 3072 + 16 * (2048 + 4096) + 2 * 16 * 4096 + 16 * 14336 + 16 * (7168 + 4096)
    assert adapted(cost_of, parallelism=Parallelism(tp=2)).adapter_bytes() == 2 * 32 * halved
    assert adapted(cost_of, rank=32).adapter_bytes() == 2 * adapted(cost_of).adapter_bytes()


def test_slots_take_their_bytes_from_the_cache(cost_of):
    with_slots, without = adapted(cost_of, slots=4, count=4), cost_of()
    taken = without.pool_tokens() - with_slots.pool_tokens()
    assert taken * without.kv_bytes_per_token() == pytest.approx(4 * 2 * 32 * PER_LAYER, abs=2**17)


def test_each_token_is_multiplied_with_both_matrices_once(cost_of):
    """2 FLOPs per token and parameter, and each adapter of the batch is read once."""
    cost = adapted(cost_of, count=3, slots=3)
    (mix,) = mixes = [(64, [], 64, 0, 64, 64 * 100)]
    ops = [(model, count) for _, model, count, _ in cost.step_operations(mixes) if isinstance(model, GroupedGEMM)]
    assert sum(count * model.flops() for model, count in ops) == 2 * 64 * 32 * PER_LAYER
    assert {model.groups for model, _ in ops} == {cost.adapters(64)} == {3}
    assert cost.adapters(1) == 1
    # 4 of 6 come together by chance where six requests choose: 6 (1 - (5/6)^6) = 3.99
    assert Adapters(rank=16, count=6, slots=6).met(6) == 4
    assert sum(cost.step_parts(mix)) > sum(cost_of().step_parts(mix))


@settings(max_examples=examples(30), deadline=None)
@given(
    batch=st.integers(1, 300), context=st.integers(1, 2000), new=st.integers(1, 2048), count=st.integers(1, 40),
    dp=st.sampled_from((1, 2)),
)  # fmt: skip
def test_more_adapters_and_higher_ranks_are_never_faster(cost_of, batch, context, new, count, dp):
    parallel = Parallelism(dp=dp)
    costs = [
        cost_of(parallelism=parallel),
        *(adapted(cost_of, rank=rank, count=many, slots=many, parallelism=parallel)
          for rank, many in ((8, 1), (8, count), (64, count), (64, 2 * count))),
    ]  # fmt: skip
    for mix in ((batch, [], batch, 0, batch, batch * context), (new, [(new, 0)], 1, 1, 0, 0)):
        times = [sum(cost.step_parts(mix)) for cost in costs]
        assert times == sorted(times)


def test_a_step_in_detail_adds_up_with_adapters(cost_of):
    cost = adapted(cost_of, count=3, slots=3)
    mix = (164, [(100, 0)], 65, 1, 64, 64 * 100)
    works = cost.mixed(*mix)
    assert sum(work.compute_fs for work in works) == cost.mixed_time(*mix)[0]
    line = cost.decode_line(64, 6400)
    assert sum(work.compute_fs for work in cost.decode_work(64, 6400)) == line.fixed + line.slope * 6400


def test_rank_0_is_none():
    assert Adapters.of(0, None, None) is None
    asked = {"rate": 8.0, "requests": 20, "input": 100, "output": 10}
    plain, none = (tl.serve("llama3.1-8b", "h100-sxm", **asked, **more) for more in ({}, {"lora": 0}))
    assert (plain.summary, plain.notes) == (none.summary, none.notes)
    assert Adapters.of(16, 64, None).slots == 8


@pytest.mark.sweep
@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 100),
    slots=st.integers(1, 4),
    rate=st.sampled_from((5.0, 60.0)),
    options=st.fixed_dictionaries(
        {
            "policy": st.sampled_from((None, "continuous", "prefill-first", "static")),
            "order": st.sampled_from(("fcfs", "sjf")),
            "replicas": st.sampled_from((1, 2)),
        }
    ),
    pool=st.sampled_from((1000, 100_000)),
)
def test_a_batch_never_needs_more_adapters_than_slots(cost_of, seed, slots, rate, options, pool):
    requests = dataclasses.replace(MANY, seed=seed, arrivals=Arrivals(rate=rate)).generate()
    outcome = run(adapted(cost_of, slots=slots, engine=Engine(kv_tokens=pool)), requests, **options)
    figures, frame = summary(outcome), per_request(outcome)
    assert figures["completed"] == len(requests) == 40
    assert outcome.left_blocks == 0
    tokens = int(frame["output_tokens"].sum()) - len(frame)
    assert sum(int(log.gaps()[1].sum()) for log in outcome.steps) == tokens
    if figures["preempted"] or options["replicas"] > 1:
        return
    log = outcome.log
    for start in log.scheduled:
        there = {requests.adapters[index] for index in range(40) if log.scheduled[index] <= start < log.last[index]}
        assert len(there) <= slots


def at_once(adapters):
    return Requests(
        arrival_fs=[0] * len(adapters), input_tokens=[100] * len(adapters), output_tokens=[20] * len(adapters),
        adapters=adapters,
    )  # fmt: skip


def test_who_finds_no_slot_is_passed_over(cost_of):
    """One slot: both requests of adapter 0 run, the one of adapter 1 between them waits until they are done."""
    log = run(adapted(cost_of, slots=1), at_once([0, 1, 0])).log
    assert log.scheduled[0] == log.scheduled[2] == 0
    assert log.scheduled[1] == log.last[0] == log.last[2]
    together = run(adapted(cost_of, slots=2), at_once([0, 1, 0])).log
    assert list(together.scheduled) == [0, 0, 0]


def test_an_adapter_that_is_not_in_memory_comes_over_pcie(cost_of):
    """84 MB at the device's PCIe rate before the step that needs it; where it still is, nothing."""
    cost = adapted(cost_of, slots=2, count=2)
    rate = cost.system.device.pcie_gb_s
    one, two = (run(cost, at_once(each)).log.first[0] for each in ([0, 0], [0, 1]))
    again = run(cost, dataclasses.replace(at_once([0, 0]), arrival_fs=[0, 10**15])).log
    loads_fs = 2 * 32 * PER_LAYER / rate / 1e9 * 1e15
    assert two - one == pytest.approx(loads_fs)
    assert again.first[0] - (again.first[1] - 10**15) == pytest.approx(loads_fs)


@pytest.mark.parametrize("line", [FirstComeQueue(), OrderedLine(lambda request: -request)])
def test_lines_bring_who_fits_to_the_front(line):
    for request in (3, 1, 2):
        line.append(request)
    first = line.first()
    assert line.bring(lambda request: request == 2)
    assert line.take() == 2
    assert not line.bring(lambda request: request > 3)
    assert (line.first(), len(line)) == (first, 2)


def test_adapters_share_no_prefix(cost_of):
    workload = dataclasses.replace(MANY, shared_tokens=64, adapters=2, arrivals=Arrivals(rate=1.0), count=12)
    requests = workload.generate()
    cached = summary(run(adapted(cost_of, count=2), requests))["cached_prompt_tokens"]
    assert cached == 64 * (12 - len(set(requests.adapters))) == 64 * 10


def test_a_session_keeps_its_adapter():
    requests = dataclasses.replace(MANY, turns=Lengths(mean=4)).generate()
    chosen = {}
    for session, adapter in zip(requests.sessions, requests.adapters, strict=True):
        assert chosen.setdefault(session, adapter) == adapter
    assert len(set(chosen.values())) > 1


def test_files_name_adapters(tmp_path):
    path = tmp_path / "requests.csv"
    path.write_text("arrival_s,input_toks,output_toks,adapter\n0,100,10,sql\n1,100,10,chat\n2,100,10,sql\n")
    assert read_requests(path).requests.adapters == [0, 1, 0]
    served = tl.serve("llama3.1-8b", "h100-sxm", replay=path, lora=16)
    assert served.experiment.deployment.adapters == Adapters(rank=16, count=2, slots=2)
    assert any(note.startswith("2 LoRA adapters (--max-loras) take 0.17 GB") for note in served.notes)
    plain = tl.serve("llama3.1-8b", "h100-sxm", replay=path)
    assert plain.experiment.deployment.adapters is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"adapters": 4}, "--adapters and --max-loras need --lora RANK"),
        ({"lora": -1}, "--lora must be a rank from 1 to 1024, not -1"),
        ({"lora": 16, "adapters": 0}, "--adapters and --max-loras must be at least 1, not 0"),
        ({"lora": 16, "max_loras": 100_000, "adapters": 5}, "does not fit"),
    ],
)
def test_adapters_that_cannot_be_are_refused(given, said):
    with pytest.raises(UsageError, match=said):
        tl.serve("llama3.1-8b", "h100-sxm", rate=1.0, requests=2, **given)


def test_a_profile_says_nothing_of_adapters(cost_of, tmp_path):
    path = tmp_path / "profile.json"
    export(cost_of(backend="roofline"), path, prompt=700, batch=16, context=900)
    with pytest.raises(UsageError, match="--lora needs the model's operations"):
        tl.serve("llama3.1-8b", "h100-sxm", rate=1.0, requests=2, lora=16, profile=path)
