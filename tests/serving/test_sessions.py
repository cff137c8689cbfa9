"""Sessions: what their requests say again, where it is still cached, and who answers them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens as tl
from tests.conftest import examples
from tracelens.backends import System
from tracelens.errors import UsageError
from tracelens.predict import network
from tracelens.predict.serving.costs import FS_PER_US
from tracelens.predict.serving.deployment import Engine, Parallelism
from tracelens.predict.serving.metrics import per_request, summary
from tracelens.predict.serving.replica_state import BlockPool, DiskCache, Options
from tracelens.predict.serving.requests import FS_PER_S, Arrivals, Lengths, Requests, Workload, read_requests
from tracelens.predict.serving.simulation import Simulation, simulate

CHAT = Workload(
    arrivals=Arrivals(rate=3.0),
    input=Lengths(mean=100),
    output=Lengths(mean=20),
    count=30,
    seed=2,
    turns=Lengths(mean=3),
)
LARGE = Engine(kv_tokens=200_000)


def run(cost, requests, **options):
    return simulate(cost.deployment, requests, Options(**options), cost=cost)


def test_a_turn_says_all_before_it_again_and_finds_whole_blocks_of_it(cost_of):
    """Prompts of 100, 220 and 340 tokens; of the 119 and 239 whose keys were computed, 7 and 14 blocks of 16 stay."""
    workload = dataclasses.replace(CHAT, count=3, think_s=2.0)
    requests = workload.generate()
    assert (requests.input_tokens, requests.after) == ([100, 220, 340], [-1, 0, 1])
    outcome = run(cost_of(), requests)
    figures = summary(outcome)
    assert figures["cached_prompt_tokens"] == 7 * 16 + 14 * 16
    assert figures["prefill_tokens"] == 660 - 336
    frame = per_request(outcome)
    ends = frame["arrival_ms"] + frame["e2e_ms"]
    assert (frame["arrival_ms"].iloc[1:].to_numpy() - ends.iloc[:-1].to_numpy()).tolist() == pytest.approx([2000.0] * 2)


@settings(max_examples=examples(40), deadline=None)
@given(
    arrivals=st.sampled_from((Arrivals(rate=1.0), Arrivals(rate=80.0), Arrivals(kind="closed", concurrency=5))),
    count=st.integers(1, 40),
    turns=st.sampled_from((Lengths(mean=2), Lengths(mean=7), Lengths(kind="uniform", mean=4, spread=0.9))),
    think_s=st.sampled_from((0.0, 0.3)),
    shared=st.sampled_from((0, 100)),
    pool=st.sampled_from((900, 3000, 100_000)),
    load=st.sampled_from(("step", "layer", "beside")),
    options=st.fixed_dictionaries(
        {
            "replicas": st.sampled_from((1, 3)),
            "router": st.sampled_from(("round-robin", "random", "least-loaded", "prefix-aware", "session-affinity")),
            "policy": st.sampled_from((None, "prefill-first")),
            "levels": st.sampled_from((("medium",), ("low",))),
            "prefill_replicas": st.sampled_from((0, 0, 1)),
            "cpu_cache_gib": st.sampled_from((0.0, 0.1, 10.0)),
        }
    ),
)
def test_sessions_lose_no_request_no_token_and_no_block(
    cost_of, arrivals, count, turns, think_s, shared, pool, load, options
):
    workload = dataclasses.replace(
        CHAT, arrivals=arrivals, count=count, turns=turns, think_s=think_s, shared_tokens=shared, shared_groups=2
    )
    requests = workload.generate()
    outcome = run(cost_of(engine=Engine(kv_tokens=pool, max_num_seqs=8, cache_load=load)), requests, **options)
    figures, frame = summary(outcome), per_request(outcome)
    assert figures["submitted"] == count == figures["completed"] + figures["rejected"]
    assert outcome.left_blocks == 0
    assert max(outcome.peak_blocks) <= pool // 16
    served = frame[~frame["rejected"]]
    assert sum(int(log.gaps()[1].sum()) for log in outcome.steps) == int(served["output_tokens"].sum()) - len(served)
    if not figures["preempted"]:
        computed = figures["prefill_tokens"] + figures["cached_prompt_tokens"]
        assert computed == int(served["input_tokens"].sum())
    ends = (frame["arrival_ms"] + frame["e2e_ms"]).fillna(frame["arrival_ms"])
    for index, before in enumerate(requests.after):
        if before >= 0:
            assert frame["arrival_ms"][index] == pytest.approx(ends[before] + 1000 * think_s)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 100), replicas=st.integers(1, 4), rate=st.sampled_from((1.0, 20.0)))
def test_where_caches_hold_all_affinity_finds_all_and_turns_no_more(cost_of, seed, replicas, rate):
    requests = dataclasses.replace(CHAT, seed=seed, arrivals=Arrivals(rate=rate)).generate()
    found = {
        router: summary(run(cost_of(engine=LARGE), requests, replicas=replicas, router=router))["cached_prompt_tokens"]
        for router in ("round-robin", "session-affinity", "prefix-aware")
    }
    most = sum((before - 1) // 16 * 16 for before in requests.repeated if before)
    assert found["round-robin"] <= found["session-affinity"] == most
    assert found["round-robin"] <= found["prefix-aware"] <= most


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 100), arrivals=st.sampled_from((Arrivals(rate=0.5), Arrivals(kind="closed", concurrency=1))))
def test_more_hits_are_never_slower(cost_of, seed, arrivals):
    """One session at a time: what the cache finds is not computed, and nothing else changes."""
    requests = dataclasses.replace(CHAT, seed=seed, arrivals=arrivals, count=9).generate()
    times = [
        summary(run(cost_of(engine=LARGE), each))["ttft_mean_ms"]
        for each in (requests, dataclasses.replace(requests, repeated=[said // 2 for said in requests.repeated]),
                     dataclasses.replace(requests, repeated=[0] * len(requests)))
    ]  # fmt: skip
    assert times[0] <= times[1] <= times[2]
    assert times[0] < times[2]


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 100), pool=st.sampled_from((400, 700, 100_000)), rate=st.sampled_from((5.0, 100.0)))
def test_sessions_of_one_request_are_none(cost_of, seed, pool, rate):
    plain = dataclasses.replace(CHAT, seed=seed, arrivals=Arrivals(rate=rate), turns=Lengths()).generate()
    alone = dataclasses.replace(plain, sessions=range(len(plain)), repeated=[0] * len(plain))
    cost = cost_of(engine=Engine(kv_tokens=pool))
    plainly, outcome = run(cost, plain), run(cost, alone)
    if not sum(plainly.log.preempted):
        assert plainly.log == outcome.log
    # What is preempted finds its own beginning again, as far as it was computed
    assert outcome.steps[0].prefill_tokens >= sum(plain.input_tokens)


def test_each_data_parallel_rank_has_a_cache_of_its_own(cost_of):
    """Two sessions in a closed loop: an affine router keeps each on one rank, turns do so where they end in order."""
    cost = cost_of(engine=LARGE, parallelism=Parallelism(dp=2))
    workload = dataclasses.replace(CHAT, arrivals=Arrivals(kind="constant", rate=20.0), count=9)
    found = {
        router: summary(run(cost, workload.generate(), router=router))["cached_prompt_tokens"]
        for router in ("round-robin", "session-affinity")
    }
    assert found["session-affinity"] == 3 * (7 + 14) * 16 > found["round-robin"]


def test_a_shared_opening_is_found_by_the_next_session(cost_of):
    workload = dataclasses.replace(CHAT, count=4, turns=Lengths(mean=2), shared_tokens=64, think_s=0.1)
    requests = workload.generate()
    assert requests.repeated == [64, 64, 120, 120]
    assert summary(run(cost_of(engine=LARGE), requests))["cached_prompt_tokens"] == 64 + 2 * 112


def test_blocks_are_the_engines(cost_of):
    requests = dataclasses.replace(CHAT, count=3).generate()
    cost = cost_of(engine=Engine(kv_tokens=20_000, block_tokens=64))
    assert summary(run(cost, requests))["cached_prompt_tokens"] == 64 + 3 * 64


ROWS = ((0, 100, 20, "a"), (1, 90, 10, "b"), (2, 150, 10, "a"), (3, 155, 10, "a"), (4, 80, 10, "a"), (5, 50, 5, ""))
FILES = {
    "burst.csv": "Timestamp,Session ID,Elapsed time,Request tokens,Response tokens\n"
    + "".join(f"{at},{name},1,{given},{made}\n" for at, given, made, name in ROWS),
    "log.csv": "arrival_s,input_toks,output_toks,session_id\n"
    + "".join(f"{at},{given},{made},{name}\n" for at, given, made, name in ROWS),
    "mooncake.jsonl": "".join(
        json.dumps({"timestamp": 1000 * at, "input_length": given, "output_length": made, "session_id": name}) + "\n"
        for at, given, made, name in ROWS
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files_name_sessions(name, tmp_path):
    """150 tokens begin with 100 + 20; 155 are less than 150 + 10, so only the prompt is; 80 begin anew."""
    path = tmp_path / name
    path.write_text(FILES[name])
    requests = read_requests(path).requests
    assert requests.sessions == [0, 1, 0, 0, 0, 2]
    assert requests.repeated == [0, 0, 120, 150, 0, 0]
    pieces = requests.in_blocks(16).pieces
    assert pieces[2][:6] == pieces[0]
    assert pieces[3][:9] == pieces[2]
    assert not set(pieces[4]) & {*pieces[0], *pieces[1], *pieces[2], *pieces[3]}


def test_a_replayed_session_is_served_from_the_cache(tmp_path):
    path = tmp_path / "burst.csv"
    path.write_text(FILES["burst.csv"])
    figures = tl.serve("llama3.1-8b", "h100-sxm", replay=path).summary
    assert figures["cached_prompt_tokens"] == 7 * 16 + 9 * 16


def test_a_curve_of_sessions_counts_pauses():
    """Little's law: a user who thinks asks less often."""
    asked = {"input_tokens": "fixed:200", "output_tokens": "fixed:20"}
    from tracelens.predict.serving.load_curve import load_curve
    from tracelens.predict.serving.serving_options import ServingConfig

    rates = []
    for think in (None, "1s"):
        config = ServingConfig(turns=4, think_time=think, requests=64, **asked)
        curve = load_curve("llama3.1-8b", "h100-sxm", config, takes_tp=False, levels=(4,))
        rates.append(curve.points[0].figures["requests_per_s"])
    served = tl.serve("llama3.1-8b", "h100-sxm", turns=4, think_time="1s", concurrency=4, requests=64,
                      input=200, output=20).summary  # fmt: skip
    assert rates[1] < rates[0] / 3
    assert rates[1] == pytest.approx(served["requests_per_s"], rel=0.1)


@pytest.mark.parametrize("pause", ["-1s", "2d"])
def test_pauses_that_nobody_makes_are_refused(pause):
    with pytest.raises(UsageError):
        tl.serve("llama3.1-8b", "h100-sxm", rate=1.0, turns=2, think_time=pause)


def test_the_session_is_a_column_where_there_is_one(cost_of):
    assert per_request(run(cost_of(), CHAT.generate()))["session"].nunique() == 10
    plain = Requests(arrival_fs=[0, FS_PER_S], input_tokens=[3, 3], output_tokens=[2, 2])
    assert "session" not in per_request(run(cost_of(), plain))


def test_what_leaves_host_memory_goes_to_disks_and_comes_back_through_it():
    """Pieces of two blocks: two fit the pool, two host memory, two the disks; the oldest of seven is forgotten."""
    pool = BlockPool(total=4, block_tokens=16, piece_tokens=32, lower_pieces=2, disk_pieces=2)
    for piece in range(1, 8):
        pool.hold([piece])
        pool.drop([piece])
    assert [pool.cached([piece]) for piece in (6, 7)] == [1, 1]
    assert [pool.below([piece]) for piece in (4, 5)] == [1, 1]
    assert [pool.on_disk([piece]) for piece in (1, 2, 3, 4, 6)] == [[], [2], [3], [], []]
    assert pool.on_disk([6, 4, 3, 9, 2]) == [3]
    pool.lift([2, 3])
    assert [pool.below([piece]) for piece in (2, 3, 4, 5)] == [1, 1, 0, 0]
    assert pool.on_disk([4, 5]) == [4, 5]


#: One session that thinks while others push its cache out: 4 turns of each of 3 sessions, in a pool of one of them.
LONG = Workload(
    arrivals=Arrivals(kind="constant", rate=1.0),
    input=Lengths(mean=600),
    output=Lengths(mean=20),
    count=12,
    seed=2,
    turns=Lengths(mean=4),
    think_s=3.0,
)
SMALL = Engine(kv_tokens=3200, max_num_seqs=4)
MEMORY = {"cpu_cache_gib": 4.0}
DISKS = {"cpu_cache_gib": 0.2, "disk_cache": DiskCache(gib=50.0, gb_s=400.0)}


def test_tiers_spare_what_they_hold(cost_of):
    none, host, disk = (summary(run(cost_of(engine=SMALL), LONG.generate(), **tiers)) for tiers in ({}, MEMORY, DISKS))
    assert none["cached_prompt_tokens"] < host["cached_prompt_tokens"]
    assert host["ttft_mean_ms"] < none["ttft_mean_ms"]
    assert disk["disk_prompt_tokens"] > 0 < host["host_prompt_tokens"]
    assert host["ttft_mean_ms"] < disk["ttft_mean_ms"] < none["ttft_mean_ms"]


def test_a_prefix_on_disks_waits_for_its_bytes(cost_of):
    """Llama 3.1 8B keeps 128 KiB of a token: 16 of them are 2 MiB, which 1 GB/s reads in 2.1 ms, a hundred times what
    100 GB/s take.
    """
    cost, times = cost_of(engine=SMALL), []
    for rate in (1.0, 100.0):
        options = DISKS | {"disk_cache": DiskCache(gib=50.0, gb_s=rate)}
        simulation = Simulation(cost.deployment, LONG.generate(), Options(**options), cost=cost)
        assert simulation.replicas[0].disk_piece_fs == pytest.approx(2**21 / rate / 1e9 * FS_PER_S)
        outcome = simulation.run()
        assert outcome.steps[0].disk_fs == pytest.approx(
            outcome.steps[0].disk_tokens / 16 * 2**21 / rate / 1e9 * FS_PER_S
        )
        times.append(summary(outcome)["ttft_mean_ms"])
    assert times[0] > times[1]


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 50), pool=st.sampled_from((3200, 6000)), gib=st.sampled_from((0.1, 1.0)))
def test_disks_without_bytes_are_none(cost_of, seed, pool, gib):
    cost, requests = cost_of(engine=Engine(kv_tokens=pool)), dataclasses.replace(LONG, seed=seed).generate()
    without = run(cost, requests, cpu_cache_gib=gib)
    for said in ("0", "0@5"):
        assert DiskCache.parse(said) is None
    assert run(cost, requests, cpu_cache_gib=gib, disk_cache=DiskCache(gib=1e-6, gb_s=5.0)).log == without.log


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 50), alone=st.sampled_from((1, 2)))
def test_faster_and_larger_tiers_are_never_slower(cost_of, seed, alone):
    """One user after the other: what a tier holds is read faster than it is computed."""
    workload = dataclasses.replace(LONG, seed=seed, arrivals=Arrivals(kind="closed", concurrency=alone), think_s=0.0)
    requests, cost = workload.generate(), cost_of(engine=SMALL)
    times = [
        summary(run(cost, requests, **tiers))["ttft_mean_ms"]
        for tiers in ({}, {"cpu_cache_gib": 0.2}, DISKS, DISKS | {"disk_cache": DiskCache(gib=50.0, gb_s=4e4)}, MEMORY)
    ]
    assert times == sorted(times, reverse=True)


def test_loading_layer_by_layer_hides_behind_the_step(cost_of):
    """Of a load of 3.2 ms in 32 layers, a step of 2 ms leaves 1.2 ms; one of 10 ms the first layer's 0.1 ms."""
    for load, late in (("step", (3200, 3200)), ("layer", (1200, 100))):
        cost = cost_of(engine=dataclasses.replace(SMALL, cache_load=load))
        lane = Simulation(cost.deployment, LONG.generate(), Options(**MEMORY), cost=cost).replicas[0].lanes[0]
        for step_us, late_us in zip((2000, 10_000), late, strict=True):
            lane._load = 3200 * FS_PER_US
            assert lane._late(step_us * FS_PER_US) == late_us * FS_PER_US
    in_step, by_layer = (
        summary(run(cost_of(engine=dataclasses.replace(SMALL, cache_load=load)), LONG.generate(), **MEMORY))
        for load in ("step", "layer")
    )
    assert by_layer["ttft_mean_ms"] < in_step["ttft_mean_ms"]
    assert by_layer["host_prompt_tokens"] == in_step["host_prompt_tokens"]


def test_disks_are_those_of_the_cluster_file(tmp_path):
    asked = {"rate": 1.0, "requests": 24, "turns": 4, "input": 600, "output": 20, "kv_tokens": 3200, "cpu_cache": 0.2}
    bundled = Path(network.__file__).parent / "clusters" / "dgx-h100.toml"
    fast = tmp_path / "fast.toml"
    fast.write_text(bundled.read_text("utf-8").replace("tb = 30.72", "tb = 30.72\nread_gb_s = 49.4"))
    node = System.load(str(fast))
    assert (node.disk_gb_s, node.disk_tb) == (pytest.approx(49.4 / 8), pytest.approx(30.72 / 8))
    said, same = (tl.serve("llama3.1-8b", str(fast), disk_cache=each, **asked).summary for each in (100, "100@6.175"))
    assert said == same
    assert said["disk_prompt_tokens"] > 0
    for cluster in ("dgx-h100", "dgx-a100"):
        with pytest.raises(UsageError, match=r"the rate of its node's disks is unknown; give --disk-cache GIB@GB/s"):
            tl.serve("llama3.1-8b", cluster, disk_cache=100, **asked)
    with pytest.raises(UsageError, match=r"3\.84 TB of their nodes' disks"):
        tl.serve("llama3.1-8b", "dgx-h100", disk_cache=4000, **asked)
    with pytest.raises(UsageError, match="--disk-cache needs --cpu-cache"):
        tl.serve("llama3.1-8b", "dgx-h100", **asked | {"cpu_cache": 0.0, "disk_cache": 100})
    for wrong in ("x", "1@y", "-1", "nan", "100@0", "100@-1", "100@nan"):
        with pytest.raises(UsageError, match="--disk-cache"):
            tl.serve("llama3.1-8b", "dgx-h100", **asked | {"disk_cache": wrong})


def test_slow_disks_are_said_to_bound_the_server():
    asked = {"rate": 2.0, "requests": 48, "turns": 4, "input": 600, "output": 20, "kv_tokens": 3200, "cpu_cache": 0.2}
    slow, fast = (tl.serve("llama3.1-8b", "dgx-h100", disk_cache=f"100@{rate}", **asked).notes for rate in (0.01, 50))
    assert any(note.startswith("disks are read ") for note in slow)
    assert not any(note.startswith("disks are read ") for note in fast)


def test_loading_beside_steps_lets_others_decode(cost_of):
    """The load takes its time over PCIe and no step waits for it: TPOT is less, and what is found is the same."""
    workload = dataclasses.replace(LONG, think_s=0.05, arrivals=Arrivals(kind="constant", rate=8.0))
    in_step, beside = (
        run(cost_of(engine=dataclasses.replace(SMALL, kv_tokens=6000, cache_load=load)), workload.generate(), **MEMORY)
        for load in ("step", "beside")
    )
    assert summary(beside)["tpot_mean_ms"] < summary(in_step)["tpot_mean_ms"]
    assert summary(beside)["host_prompt_tokens"] > 0
    kept = [
        run(cost_of(engine=dataclasses.replace(SMALL, cache_load=load)), LONG.generate(), **MEMORY)
        for load in ("step", "beside")
    ]
    # Nobody else is there: the request waits as long either way
    assert kept[0].log.first == kept[1].log.first
    assert all(outcome.steps[0].host_tokens for outcome in kept)
