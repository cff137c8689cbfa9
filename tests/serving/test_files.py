"""What is read and written: request traces, profiles, engines, timelines, points, experiments."""

from __future__ import annotations

import dataclasses
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

import tracelens
from tests.conftest import part
from tracelens.cli import main
from tracelens.errors import InputError, UsageError
from tracelens.files.data_table import read_table
from tracelens.hardware import HardwareSpec
from tracelens.laboratory.configuration_rows import (
    LENGTHS,
    LIMITS,
    PointEstimate,
    PointSimulator,
    batch,
    closed_loop,
    median_step,
    point_of,
    stated_times,
)
from tracelens.predict.calibration.engine_calibration import calibrate, compare
from tracelens.predict.calibration.scoring import score_file
from tracelens.predict.serving.costs import StepCost
from tracelens.predict.serving.deployment import Deployment, Engine, Parallelism
from tracelens.predict.serving.experiment import read_settings
from tracelens.predict.serving.metrics import ServingTimeline
from tracelens.predict.serving.profile import Profile, ProfileCost, export
from tracelens.predict.serving.requests import FS_PER_S, Arrivals, Lengths, Requests, Workload, read_requests
from tracelens.predict.serving.simulation import Options, Simulation, simulate
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import DEVICE_KINDS

FORMATS = {
    "azure.csv": (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n"
    ),
    "vidur.csv": "arrived_at,num_prefill_tokens,num_decode_tokens\n1.0,374,44\n1.052,396,109\n",
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens\n5,x,374,44,418\n5.052,x,396,109,505\n",
    "mooncake.jsonl": (
        '{"timestamp": 0, "input_length": 374, "output_length": 44, "hash_ids": [1]}\n'
        '{"timestamp": 52, "input_length": 396, "output_length": 109, "hash_ids": [2]}\n'
    ),
    "servingsim.jsonl": (
        '{"arrival_time_ns": 0, "input_toks": 374, "output_toks": 44}\n'
        '{"arrival_time_ns": 52000000, "input_toks": 396, "output_toks": 109}\n'
    ),
    "bench.json": json.dumps(
        {"input_lens": [374, 396], "output_lens": [44, 109], "start_times": [7.0, 7.052], "ttfts": [0.1, 0.2],
         "itls": [[0.01] * 43, [0.02] * 108]}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_public_formats_give_the_same_requests(name, tmp_path):
    path = tmp_path / name
    path.write_text(FORMATS[name])
    requests = read_requests(path).requests
    assert (list(requests.input_tokens), list(requests.output_tokens)) == ([374, 396], [44, 109])
    assert requests.arrival_fs[0] == 0
    assert requests.arrival_fs[1] / 1e15 == pytest.approx(0.052, abs=1e-6)


def test_conversations_give_lengths(tmp_path):
    path = tmp_path / "sharegpt.json"
    turns = [{"from": "human", "value": "a" * 400}, {"from": "gpt", "value": "b" * 201}]
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))
    requests = read_requests(path).requests
    assert (list(requests.input_tokens), list(requests.output_tokens)) == ([100], [51])


def test_hashes_become_shared_beginnings(tmp_path, cost_of):
    path = tmp_path / "mooncake.jsonl"
    row = {"input_length": 1100, "output_length": 4, "hash_ids": [1, 2, 3]}
    path.write_text("".join(json.dumps(row | {"timestamp": 1000 * index}) + "\n" for index in range(3)))
    requests = read_requests(path).requests
    assert requests.pieces[0] == (1, 2)  # the third covers 76 of 512 tokens
    cost = cost_of()
    outcome = simulate(cost.deployment, requests, cost=cost)
    assert outcome.steps[0].cached_tokens == 2 * 1024


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "x,y\n1,2\n"), ("b.csv", ""), ("c.json", "{"), ("d.json", "{}"), ("e.jsonl", '{"timestamp": 1}\n'),
        ("f.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n1,x,3\n"), ("g.json", "[]"),
        ("h.json", '["a", "b"]'), ("i.csv", "arrival_s,input_toks,output_toks\n0,0,0\n"),
        ("j.jsonl", '{"timestamp": 0, "input_length": 1e400, "output_length": 4}\n'),
    ],
)  # fmt: skip
def test_what_is_no_request_file_is_an_input_error(name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(InputError, match=name):
        read_requests(path)


def test_an_exported_profile_gives_the_same_time_at_its_point(tmp_path, cost_of):
    """By a backend that is linear in the context; between knots others are not."""
    cost, path = cost_of(backend="roofline"), tmp_path / "profile.json"
    export(cost, path, prompt=700, batch=16, context=900)
    document = json.loads(path.read_text())
    prefill, decode = (document["aggregated_ops"][phase] for phase in ("prefill", "decode"))
    assert {"total_flops_per_prompt_token", "total_memory_bytes_per_prompt_token", "critical_path_factor"} <= set(
        prefill
    )
    assert {"total_flops_per_token_in_batch", "total_memory_bytes_per_token_in_batch"} <= set(decode)
    assert prefill["critical_path_factor"] >= 1
    assert decode["memory_bytes_per_context_token"] == 131_072
    again = ProfileCost(cost.deployment, Profile.load(path))
    assert again.mixed_time(700, [(700, 0)], 1, 1, 0, 0)[0] == pytest.approx(
        cost.mixed_time(700, [(700, 0)], 1, 1, 0, 0)[0], rel=1e-6
    )
    lines = [each.decode_line(16, 16 * 900) for each in (cost, again)]
    times = [line.fixed + line.slope * 16 * 900 for line in lines]
    assert times[1] == pytest.approx(times[0], rel=1e-5)


def test_a_profile_of_the_three_keys_alone_is_taken_at_its_word(tmp_path, cost_of):
    path = tmp_path / "db.json"
    phases = {
        "prefill": {"total_flops_per_prompt_token": 1.5e9, "total_memory_bytes_per_prompt_token": 1e6, "critical_path_factor": 1.1},
        "decode": {"total_flops_per_token_in_batch": 2e9, "total_memory_bytes_per_token_in_batch": 1.2e6, "critical_path_factor": 1.0},
    }  # fmt: skip
    path.write_text(json.dumps({"some-model": {"aggregated_ops": phases}}))
    cost = ProfileCost(cost_of().deployment, Profile.load(path))
    rate = HardwareSpec.load("h100-sxm").matrix["bf16"].tflops_s * 1e12
    assert cost.mixed_time(100, [(100, 0)], 1, 1, 0, 0)[0] / 1e15 == pytest.approx(1.1 * 100 * 1.5e9 / rate)
    layers = {
        "layers": [
            {phase: {k: v / 4 for k, v in values.items() if k.startswith("total")} for phase, values in phases.items()}
        ]
        * 4
    }
    path.write_text(json.dumps(layers))
    assert Profile.load(path).prefill.flops == 1.5e9


def test_a_profile_s_work_is_shared_by_tensor_parallel_devices(tmp_path, cost_of):
    """A file that says nothing has the whole model's work; an export says whose it is."""
    ops = {
        "prefill": {"total_flops_per_prompt_token": 1.5e9, "total_memory_bytes_per_prompt_token": 1e6},
        "decode": {"total_flops_per_token_in_batch": 2e9, "total_memory_bytes_per_token_in_batch": 1.2e6},
    }
    path = tmp_path / "db.json"
    path.write_text(json.dumps({"first": {}, "Llama3.1_8B": {"aggregated_ops": ops}}))
    profile = Profile.load(path, "llama3.1-8b")
    one, four = (
        ProfileCost(dataclasses.replace(cost_of().deployment, parallelism=Parallelism(tp=tp)), profile).mixed_time(
            4000, [(4000, 0)], 1, 1, 0, 0
        )[0]
        for tp in (1, 4)
    )
    assert one == pytest.approx(4 * four, rel=1e-6)
    with pytest.raises(InputError, match=r"it has profiles of first, .*, none of mixtral"):
        Profile.load(path, "mixtral")
    cost = StepCost(dataclasses.replace(cost_of().deployment, parallelism=Parallelism(tp=4)))
    export(cost, path, prompt=700, batch=16, context=900)
    assert Profile.load(path).tp == 4
    again = ProfileCost(cost.deployment, Profile.load(path)).mixed_time(700, [(700, 0)], 1, 1, 0, 0)[0]
    assert again == pytest.approx(cost.mixed_time(700, [(700, 0)], 1, 1, 0, 0)[0], rel=1e-6)


def test_layers_of_a_profile_add_up_per_stage(tmp_path, cost_of):
    """The first sixteen of 32 layers do three times the work of the others: so does the first of two stages."""
    light = {
        "prefill": {"total_flops_per_prompt_token": 1e8, "total_memory_bytes_per_prompt_token": 1e4},
        "decode": {"total_flops_per_token_in_batch": 1e8, "total_memory_bytes_per_token_in_batch": 1e4},
    }
    heavy = {phase: {key: 3 * value for key, value in values.items()} for phase, values in light.items()}
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"layers": [heavy] * 16 + [light] * 16}))
    deployment = dataclasses.replace(cost_of().deployment, parallelism=Parallelism(pp=2))
    cost = ProfileCost(deployment, Profile.load(path))
    for works in (cost.mixed(900, [(900, 0)], 1, 1, 0, 0), cost.decode_work(64, 64 * 100)):
        first, second = (work.compute_fs for work in works)
        assert first == pytest.approx(3 * second, rel=1e-9)
    whole = ProfileCost(cost_of().deployment, Profile.load(path))
    assert whole.mixed_time(900, [(900, 0)], 1, 1, 0, 0)[0] == pytest.approx(
        cost.mixed_time(900, [(900, 0)], 1, 1, 0, 0)[0], rel=1e-9
    )


def test_when_requests_arrive_is_read_or_refused(tmp_path):
    path = tmp_path / "requests.jsonl"
    for key, times in (("arrival_time", (3.0, 3.5)), ("arrival_time_ns", (3e9, 3.5e9)), ("arrival_s", (3.0, 3.5))):
        path.write_text("".join(json.dumps({"input_toks": 8, "output_toks": 4, key: at}) + "\n" for at in times))
        assert read_requests(path).requests.arrival_fs == [0, FS_PER_S // 2]
    path.write_text(json.dumps({"input_toks": 8, "output_toks": 4, "arrived": 1.0}) + "\n")
    with pytest.raises(InputError, match=r"requests\.jsonl, line 1: no arrival_time_ns, arrival_time, arrival_s"):
        read_requests(path)
    path = tmp_path / "requests.json"
    path.write_text(json.dumps([{"input_tokens": 8, "output_tokens": 4, "arrival": 1.0}]))
    with pytest.raises(InputError, match="when it arrives is unknown"):
        read_requests(path)


def test_levels_agree_on_a_profile_too(tmp_path, cost_of):
    path = tmp_path / "profile.json"
    export(cost_of(), path, prompt=200, batch=8, context=250)
    cost = ProfileCost(cost_of().deployment, Profile.load(path))
    requests = Workload(
        arrivals=Arrivals(rate=9.0), input=Lengths(mean=200), output=Lengths(mean=30), count=10
    ).generate()
    logs = [
        simulate(cost.deployment, requests, Options(levels=(level,)), cost=cost).log
        for level in ("high", "medium", "low")
    ]
    assert logs[0].last == logs[1].last == logs[2].last


@pytest.mark.parametrize("text", ["[]", "{", "{}", '{"aggregated_ops": {"prefill": {}}}'])
def test_what_is_no_profile_is_an_input_error(text, tmp_path):
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"p\.json"):
        Profile.load(path)


def test_an_engine_file_round_trips(tmp_path):
    engine = Engine(name="x", source='a "quoted" run', kv_tokens=41408, step_us=812.5, hbm_efficiency=0.91)
    path = tmp_path / "engine.toml"
    path.write_text(engine.to_toml())
    assert Engine.load(path) == engine


@pytest.mark.sweep
def test_calibration_finds_the_constants_that_made_a_run(tmp_path, cost_of):
    engine = Engine(
        step_us=3000.0, hbm_efficiency=0.8, compute_efficiency=0.6, kv_tokens=20_000, name="true", source="test"
    )
    cost = cost_of(engine=engine)
    workload = Workload(
        arrivals=Arrivals(rate=12.0),
        input=Lengths(mean=256),
        output=Lengths.parse("uniform:60:0.8"),
        count=24,
    )
    requests = workload.generate()
    log = simulate(cost.deployment, requests, Options(levels=("low",)), cost=cost).log
    lines = [
        "gpu,num_kv_tokens,max_num_seqs,max_batched_tokens,arrival_s,input_toks,output_toks,scheduled_s,first_token_s,last_token_s"
    ]
    for i in range(len(requests)):
        times = (log.arrival[i], log.scheduled[i], log.first[i], log.last[i])
        arrival, scheduled, first, last = (f"{time / 1e15:.9f}" for time in times)
        lines.append(
            f"H100,20000,256,2048,{arrival},{requests.input_tokens[i]},{requests.output_tokens[i]},{scheduled},{first},{last}"
        )
    path = tmp_path / "log.csv"
    path.write_text("\n".join(lines) + "\n")
    plain = cost_of(engine=Engine()).deployment
    fitted = calibrate(plain, path)
    errors = compare(
        Deployment(model=plain.model, system=plain.system, engine=fitted), read_requests(path), slice(12, 24)
    )
    assert abs(errors.tpot_mean) < 3
    assert abs(errors.e2e_p50) < 3
    assert fitted.kv_tokens == 20_000


def test_a_report_calibrates_host_time_and_efficiency(repository, cost_of, tmp_path):
    engine = calibrate(cost_of().deployment, repository / "reference_reports" / "moe_ep8_rank0" / "report.json")
    assert engine.step_us > 0
    assert 0 < engine.hbm_efficiency <= 1
    path = tmp_path / "other.json"
    path.write_text('{"schema": "tracelens.report/1", "ops": []}')
    with pytest.raises(InputError, match="neither launch gaps nor estimates"):
        calibrate(cost_of().deployment, path)


@pytest.mark.parametrize("parallelism", part([Parallelism(tp=2), Parallelism()], 2), ids=str)
def test_a_written_timeline_reads_back_with_the_simulated_times(parallelism, tmp_path, cost_of):
    cost = cost_of("qwen3-0.6b", parallelism=parallelism, engine=Engine(step_us=100.0))
    requests = Workload(
        arrivals=Arrivals(rate=50.0), input=Lengths(mean=64), output=Lengths(mean=3), count=2
    ).generate()
    timeline, steps = ServingTimeline(cost), []

    def record(replica, step):
        steps.append(step)
        timeline(replica, step)

    Simulation(cost.deployment, requests, Options(), cost=cost, record=record).run()
    path = timeline.write(tmp_path / "served.json.gz")
    table = read_trace(path)
    busy = int(
        sum(d for d, k in zip(table.duration_ns, table.kind, strict=True) if k in {int(x) for x in DEVICE_KINDS})
    )
    kernels = sum(1 for k in table.kind if k in {int(x) for x in DEVICE_KINDS})
    said = sum(work.compute_fs + work.exchange_fs for step in steps for work in step.stages) - len(steps) * 100 * 10**9
    assert busy == pytest.approx(said / 1e6, abs=kernels)
    report = tracelens.report(tracelens.load(path))
    assert report["gpu_timeline"] is not None
    rows = report["unified_perf_summary"]
    assert {"aten::mm", "aten::_scaled_dot_product_flash_attention"} <= set(rows["name"])


def test_rows_get_estimates_or_a_reason(tmp_path):
    path, out = tmp_path / "points.csv", tmp_path / "out.csv"
    path.write_text(
        "id,model_path,system,precision,mode,isl,osl,concurrency,batch_size,tp_size,pp_size\n"
        "a,meta-llama/Llama-3.1-70B,h100_sxm,fp8,agg,512,64,4,,4,1\n"
        "b,meta-llama/Llama-3.1-70B,h100_sxm,,agg,512,64,,8,4,1\n"
        "c,no/such-model,h100_sxm,,agg,512,64,4,,1,1\n"
        "d,meta-llama/Llama-3.1-70B,h100_sxm,,agg,512,64,4,,1,1\n"
        "e,meta-llama/Llama-3.1-70B,h100_sxm,,disagg,512,64,4,,4,1\n"
        "f,meta-llama/Llama-3.1-70B,h100_sxm,,agg,long,64,4,,4,1\n"
        "g,meta-llama/Llama-3.1-70B,h100_sxm,,agg,512,0,4,,4,1\n"
    )
    assert batch(path, out, Engine()) == (7, 2)
    import pandas as pd

    rows = pd.read_csv(out)
    assert rows["tpot_ms_est"].notna().tolist() == [True, True, *[False] * 5]
    assert rows["tpot_ms_est"][0] < rows["tpot_ms_est"][1]
    reasons = rows["reason"].fillna("").tolist()
    assert reasons[2].startswith("no model named 'no/such-model'")
    assert "does not fit" in reasons[3]
    assert "disagg" in reasons[4]
    assert reasons[5:] == [
        "row 7: isl must be a whole number from 1 to 10,000,000, got 'long'",
        "row 8: osl must be a whole number from 1 to 10,000,000, got 0",
    ]


ENERGY = (
    "task,model_id,weight_precision,gpu_model,num_gpus,tensor_parallel,expert_parallel,data_parallel,avg_batch_size,"
    "avg_output_len,median_itl_ms,energy_per_token_joules\n"
)


def test_rows_that_state_the_batch_that_ran_get_the_median_time_between_tokens(tmp_path):
    """ML.ENERGY: vLLM 0.11 on what a row states, 70 tokens in a chat's prompt; experts over all GPUs, attention too."""
    path, out = tmp_path / "points.csv", tmp_path / "out.csv"
    rows = ("32.3,615.2,7", "64,615.2,9", "x,615.2,9")
    dense = "\n".join(f"lm-arena-chat,Qwen/Qwen3-14B,bfloat16,H100,1,1,1,1,{row},0.4" for row in rows)
    path.write_text(f"{ENERGY}{dense}\nlm-arena-chat,Qwen/Qwen3-30B-A3B,bfloat16,H100,2,1,2,1,16,600,8,0.4\n")
    assert batch(path, out, LIMITS) == (4, 3)
    found = read_table(out)
    first, second, _, spread = found["itl_ms_est"]
    assert 0 < first < second
    assert (found["itl_ms_low"][:2] < found["itl_ms_est"][:2]).all()
    assert "tpot_ms_est" not in found
    assert found["reason"][2] == "row 4: avg_batch_size must be a number from 1 to 10,000,000, got 'x'"
    assert spread > 0
    row = found.iloc[3].to_dict()
    assert point_of(row).parallelism == Parallelism(tp=2, ep=2)
    assert (point_of(row).engine, point_of(row).input_tokens) == ("vllm", 70)
    assert score_file(out)[0].rows == 3


RUN = {"model_path": "llama3.1-8b", "system": "h100-sxm", "isl": 512, "osl": 64, "concurrency": 2}


def test_a_run_s_times_are_over_all_its_requests_where_the_source_is_known_and_of_a_steady_state_elsewhere():
    """Two users and six requests: the first two come at once and wait 100 and 200 ms, those after them 10 ms each."""
    fs = 10**12
    log = SimpleNamespace(
        arrival=[0, 0, 300 * fs, 300 * fs, 600 * fs, 600 * fs],
        first=[100 * fs, 200 * fs, 310 * fs, 310 * fs, 610 * fs, 610 * fs], last=[300 * fs] * 2 + [400 * fs] * 4,
    )  # fmt: skip
    requests = Requests(arrival_fs=None, input_tokens=[5] * 6, output_tokens=[11] * 6, concurrency=2)
    outcome = SimpleNamespace(log=log, requests=requests)
    named = RUN | {"source": "InferenceX run 1"}
    assert stated_times(outcome, point_of(RUN)).ttft_ms == pytest.approx(10)
    assert stated_times(outcome, point_of(RUN)).tpot_ms == pytest.approx((400 - 310) / 10)
    assert stated_times(outcome, point_of(named)).ttft_ms == pytest.approx((100 + 200 + 4 * 10) / 6)
    assert stated_times(outcome, point_of(named)).tpot_ms == pytest.approx((20 + 10 + 2 * 9 - 2 * 21) / 6)
    # Half of all requests wait 10 ms, whatever the burst does
    assert stated_times(outcome, point_of(named | {"stat": "median"})).ttft_ms == pytest.approx(10)


def test_a_run_has_as_many_requests_per_user_as_its_client_sent_and_all_users_begin_at_once():
    named = RUN | {"source": "InferenceX run 1", "backend": "sglang", "date": "2025-12-09", "osl_actual_mean": 56}
    assert [point_of(RUN).per_user, point_of(named).per_user] == [0, 10]
    moved = named | {
        "system": "gb200", "mode": "disagg", "prefill_tp_size": 4, "decode_tp_size": 4, "prefill_num_workers": 1,
        "decode_num_workers": 1,
    }  # fmt: skip
    assert [point_of(row).per_user for row in (moved, moved | {"date": "2026-02-09"})] == [5, 10]
    made = [closed_loop(point_of(row), in_waves=False).output_tokens for row in (named, RUN)]
    assert len(made[0]) == 20
    assert min(made[0]) >= 48
    # The first ones of a steady state are anywhere in their answers
    assert made[1][:2] == [32, 64]


def test_the_lengths_of_prompts_are_few_and_lie_as_those_that_are_drawn_evenly():
    row = {"isl": 8192, "isl_actual_mean": 7373, "osl": 1024, "osl_actual_mean": 922, "concurrency": 2000}
    made = closed_loop(point_of(RUN | row | {"source": "InferenceX run 1"}), in_waves=True)
    given, reach = np.array(made.input_tokens), 7373 * (1024 / 922 - 1)
    assert len(set(made.input_tokens)) == LENGTHS
    assert abs(given - 7373).max() <= reach
    assert given.mean() == pytest.approx(7373, rel=2e-3)
    assert given.std() == pytest.approx(reach / 3**0.5, rel=0.01)
    assert len(set(made.output_tokens)) > 100


def test_a_run_with_few_lengths_of_prompts_takes_as_long_as_one_with_all(monkeypatch):
    """Of three heavy rows of InferenceX, 16 lengths and 512 or more differ by at most 0.5 %."""
    apart = {f"{pool}_{name}": 1 for pool in ("prefill", "decode") for name in ("tp_size", "num_workers")}
    row = RUN | apart | {"mode": "disagg", "source": "InferenceX run 1", "backend": "sglang", "concurrency": 64}
    point = point_of(row | {"isl": 8192, "isl_actual_mean": 7373, "osl": 1024, "osl_actual_mean": 922})
    few = PointSimulator(LIMITS).estimate(point)
    monkeypatch.setattr("tracelens.laboratory.configuration_rows.LENGTHS", 4096)
    every = PointSimulator(LIMITS).estimate(point)
    assert few != every
    assert (few.ttft_ms, few.tpot_ms) == pytest.approx((every.ttft_ms, every.tpot_ms), rel=0.01)


def test_the_median_step_has_as_many_prompts_as_answers_end_in_it(tmp_path):
    """128 sequences of 100 tokens: 1.28 end in a step, and floor(1.28 + 1/3 - 0.02 / 1.28) = 1 prompt takes a place."""
    row = {
        "model_id": "llama3.1-8b", "gpu_model": "h100", "avg_batch_size": 128, "avg_output_len": 100, "isl": 300,
        "backend": "vllm",
    }  # fmt: skip
    simulator = PointSimulator(LIMITS)
    cost = simulator.cost(point_of(row))
    assert median_step(point_of(row), cost) == ((428, [(300, 0)], 129, 1, 128, 128 * 350), 1)
    expected = sum(cost.mixed_time(428, [(300, 0)], 129, 1, 128, 128 * 350)) / 1e12
    assert simulator.estimate(point_of(row)).itl_ms == pytest.approx(expected)
    line = cost.decode_line(64, 64 * 350)
    alone = simulator.estimate(point_of(row | {"avg_batch_size": 64})).itl_ms
    assert alone == pytest.approx((line.fixed + line.slope * 64 * 350) / 1e12)


def test_points_without_the_columns_are_an_input_error(tmp_path):
    path = tmp_path / "points.csv"
    path.write_text("model_path,isl\nx,1\n")
    with pytest.raises(InputError, match="no column system, osl"):
        batch(path, tmp_path / "out.csv", Engine())


def test_an_experiment_file_says_options_by_section(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        '[simulation]\nduration = "1h"\nseed = 3\n[hardware]\ncluster = "dgx-h100"\n[model]\nname = "llama3.1-8b"\n'
        '[[frameworks]]\nname = "mine"\nlod = "high"\n[frameworks.parallelism]\nstrategy = "TP"\ntp_degree = 4\n'
    )
    assert read_settings(path) == [("mine", {
        "duration": "1h", "seed": 3, "cluster": "dgx-h100", "model": "llama3.1-8b", "lod": "high", "tp": 4,
    })]  # fmt: skip
    path.write_text("x = [")
    with pytest.raises(InputError, match="is not an experiment file"):
        read_settings(path)
    with pytest.raises((InputError, UsageError)):
        read_settings(tmp_path / "none.toml")


def test_the_example_of_several_frameworks_is_a_run_each_under_its_name(repository, tmp_path, capsys):
    path = repository / "docs" / "experiment_config.yaml"
    (name, first), (other, second) = read_settings(path)
    assert (name, first["engine"], first["tp"], first["rate"]) == ("vllm", "vllm", 4, 2)
    assert (second.get("engine"), second["tp"], second["pp"]) == (None, 2, 2)
    assert main(["serve", "--config", str(path), "-o", str(tmp_path / "out")]) == 0
    assert f"framework {other}: no fitted engine" in capsys.readouterr().out
    folders = [re.sub("[^A-Za-z0-9_-]+", "_", each) for each in (name, other)]
    times = [json.loads((tmp_path / "out" / each / "summary.json").read_text()) for each in folders]
    assert times[0] != times[1]


def test_several_frameworks_are_one_json_document_by_name(repository, capsys):
    path = repository / "docs" / "experiment_config.yaml"
    assert main(["serve", "--config", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["frameworks"]] == [name for name, _ in read_settings(path)]
    assert all(each["summary"]["completed"] > 0 for each in document["frameworks"])


def test_names_of_frameworks_are_no_paths(tmp_path, capsys):
    path = tmp_path / "experiment.json"
    frameworks = [{"name": name} for name in ("../up", "..\\up", "A")]
    shared = {
        "model": {"name": "llama3.1-8b"},
        "hardware": {"cluster": "h100-sxm"},
        "workload": {"rate": 1, "requests": 2},
    }
    path.write_text(json.dumps({**shared, "frameworks": frameworks}))
    assert main(["serve", "--config", str(path), "-o", str(tmp_path / "out" / "of")]) == 0
    assert sorted(each.name for each in (tmp_path / "out" / "of").iterdir()) == ["A", "_up-1", "_up-2"]


DATABASE = """{
  // the design's example; "Llama3-8B" is one of the names that llama3.1-8b has here
  "Llama3-8B": {"aggregated_ops": {
    "prefill": {"total_flops_per_prompt_token": 1.5e9, "total_memory_bytes_per_prompt_token": 1e6}, // a URL: http://x
    "decode": {"total_flops_per_token_in_batch": 2e9, "total_memory_bytes_per_token_in_batch": 1.2e6}}},
  /* known
     to nobody else */
  "Other // not a comment": {"layers": [{
    "prefill": {"total_flops_per_prompt_token": 3e9, "total_memory_bytes_per_prompt_token": 1e6},
    "decode": {"total_flops_per_token_in_batch": 2e9, "total_memory_bytes_per_token_in_batch": 1.2e6}}]}
}"""


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "model_characteristics_db.json"
    path.write_text(DATABASE)
    return path


@pytest.mark.parametrize(
    ("model", "flops"), [("Llama3-8B", 1.5e9), ("llama3.1-8b", 1.5e9), ("Other // not a comment", 3e9)]
)
def test_a_database_has_a_model_under_the_name_in_the_file(database, model, flops):
    """A prompt of 512 tokens at 794.5 TFLOPS/s, which an H100 reaches, and nothing else."""
    result = tracelens.serve(
        model, "h100-sxm", profile=database, rate=1.0, requests=3, input_tokens=512, output_tokens=2
    )
    assert result.summary["ttft_p50_ms"] == pytest.approx(512 * flops / 794.5e12 * 1e3, rel=1e-3)


def test_a_model_of_a_database_alone_says_what_is_not_known_of_it(database, tmp_path):
    given = {"profile": database, "rate": 1.0, "requests": 3, "input_tokens": 512, "output_tokens": 8}
    name = "Other // not a comment"
    result = tracelens.serve(name, "h100-sxm", **given)
    assert any("known from model_characteristics_db.json alone" in note for note in result.notes)
    with pytest.raises(UsageError, match="2 devices exchange a token's hidden state"):
        tracelens.serve(name, "h100-sxm", tp=2, **given)
    database.write_text(DATABASE.replace('"layers": [{', '"hidden_size": 4096, "layers": [{'))
    two = tracelens.serve(name, "h100-sxm", tp=2, **given)
    assert two.summary["ttft_p50_ms"] < result.summary["ttft_p50_ms"]
    with pytest.raises(UsageError, match="no model named"):
        tracelens.serve("nobody's", "h100-sxm", **given)


def test_the_summary_of_a_run_says_what_simulating_it_took(capsys):
    words = ["serve", "--model", "llama3.1-8b", "--cluster", "h100-sxm", "--rate", "1", "--requests", "3"]
    assert main(words) == 0
    assert re.search(r"simulator +wall clock s [\d.e-]+ +events [\d,]+ +of compute [\d,]+", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("was", "now", "message"),
    [
        ("strategy: TP,", "strategy: PP,", "framework vllm: tp_degree 4 does not go with strategy PP"),
        ("strategy: TP,", "strategy: DP,", "strategy must be None, TP, PP or TP_PP, not 'DP'"),
        ("workload:", "frameworks:", "frameworks must be a list of tables"),
    ],
)
def test_a_strategy_that_contradicts_its_degrees_is_refused(repository, tmp_path, was, now, message):
    path = tmp_path / "experiment_config.yaml"
    path.write_text((repository / "docs" / path.name).read_text().replace(was, now))
    with pytest.raises(InputError, match=message):
        read_settings(path)


def test_rows_of_several_days_and_one_release_are_simulated_once(monkeypatch):
    row = RUN | {"source": "InferenceX run 1", "backend": "sglang", "system": "h200_sxm"}
    days = ("2026-04-02", "2026-04-03", "2026-06-01")
    runs = []
    monkeypatch.setattr(PointSimulator, "_run", lambda self, point, cost: runs.append(point) or PointEstimate())
    PointSimulator(LIMITS).estimates([point_of(row | {"date": day}) for day in days])
    assert [str(point.date) for point in runs] == [days[0], days[2]]
