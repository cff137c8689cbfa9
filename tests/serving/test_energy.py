"""What servers draw: between waiting and the limit, the sum of their steps, and the limit where nobody measured."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

import tracelens as tl
from tracelens.backends.roofline_and_tile import over_idle_uj, works
from tracelens.cli import main
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import kernel_power, power_constants
from tracelens.laboratory.configuration_rows import (
    ENERGY_ESTIMATES,
    ENERGY_SPAN,
    LIMITS,
    PointSimulator,
    batch,
    most_of,
    point_of,
)
from tracelens.perf_models import GroupedGEMM
from tracelens.perf_models.base import WorkColumns
from tracelens.predict.serving.deployment import Parallelism
from tracelens.predict.serving.metrics import energies_of, energy_of, over_waiting_j
from tracelens.predict.serving.replica_state import MOST_KEPT, StepLog
from tracelens.predict.serving.serving_options import ServingConfig
from tracelens.report.serving_report import served_text

ASKED = {"requests": 24, "input": 700, "output": 20}


@pytest.mark.parametrize(
    ("model", "device", "given"),
    [
        ("llama3.1-8b", "h200-sxm", {"concurrency": 1}),
        ("llama3.1-8b", "h200-sxm", {"rate": 0.01, "requests": 3}),
        ("llama3.1-8b", "h100-sxm", {"concurrency": 24, "tp": 2}),
        ("llama3.1-8b", "b200", {"concurrency": 24, "pp": 2}),
        ("qwen3-30b-a3b", "b200", {"concurrency": 16, "dp": 2, "ep": 2}),
        ("llama3.1-8b", "gb200", {"rate": 20.0, "prefill_replicas": 1, "replicas": 2}),
        ("llama3.1-8b", "h200-sxm", {"rate": 5.0, "speculate": "3:0.6"}),
    ],
)
def test_a_server_draws_no_less_than_waiting_devices_and_no_more_than_their_limits(model, device, given):
    result = tl.serve(model, device, **{**ASKED, **given})
    constants, watts = power_constants(HardwareSpec.load(device)), result.summary["power_w_per_gpu"]
    assert constants.idle_w <= watts <= constants.limit_w
    if given.get("rate") == 0.01:  # three answers in five minutes
        assert watts < 1.02 * constants.idle_w


def test_the_energy_of_a_run_is_that_of_its_steps_and_of_waiting():
    asked = dataclasses.replace(ServingConfig(), rate=4.0, requests=12, input_tokens="900", output_tokens="30")
    result = tl.serve("llama3.1-8b", "h200-sxm", asked)
    cost, (log,) = result.outcome.costs[0], result.outcome.steps
    steps = [*log.prompts.kept, *log.decoding.kept]
    assert sum(ran.count for ran in steps) == log.steps
    each_j = over_waiting_j(cost, [ran.middle for ran in steps])
    over_j = sum(ran.count * joules for ran, joules in zip(steps, each_j, strict=True))
    waiting_j = power_constants(cost.system.device).idle_w * result.summary["window_s"]
    joules = result.summary["energy_j_per_output_token"] * 12 * 30
    assert joules == pytest.approx(waiting_j + over_j, rel=0.01)  # eight steps of each kind stand for all
    assert joules == pytest.approx(result.summary["power_w_per_gpu"] * result.summary["window_s"], rel=1e-12)


def test_a_step_draws_what_its_kernels_do_as_long_as_it_computes():
    cost = tl.serve("llama3.1-8b", "h200-sxm", concurrency=2, **ASKED).outcome.costs[0]
    mix = (16, [], 16, 0, 16, 16 * 800)
    constants, device = power_constants(cost.system.device), cost.system.device
    found = cost.step_operations([mix])
    over_uj = kernels_us = 0.0
    for _, model, count, fs in found:
        columns = WorkColumns.of([model])
        for _, work in works(columns, device, columns.hbm_bytes * 0 + fs * 1e-9):
            over_uj += count * fs * 1e-9 * float(kernel_power(constants, work).power_w[0] - constants.idle_w)
        kernels_us += count * fs * 1e-9
    computes_us = cost.step_parts(mix)[0] * 1e-9
    assert kernels_us < computes_us  # the host's time is no kernel's
    assert over_waiting_j(cost, [mix])[0] == pytest.approx(1e-6 * over_uj / kernels_us * computes_us, rel=1e-9)


def test_devices_wait_for_the_one_whose_experts_have_most_tokens():
    """Of 16 tokens with 8 experts each on 8 devices: 16 rows each in the mean, more on the busiest."""
    cost = tl.serve("qwen3-30b-a3b", "b200", tp=4, dp=2, ep=8, concurrency=16, **ASKED).outcome.costs[0]
    mix = (16, [], 16, 0, 16, 16 * 800)
    constants, device = power_constants(cost.system.device), cost.system.device
    mean, most = cost.step_operations([mix], is_mean=True), cost.step_operations([mix])
    rows = [{model.m for _, model, *_ in found if isinstance(model, GroupedGEMM)} for found in (mean, most)]
    assert rows[0] == {16}
    assert min(rows[1]) > 16
    models, counts, times = zip(*(each[1:] for each in mean), strict=True)
    times_us, counts = np.array(times) * 1e-9, np.array(counts)
    joules = 1e-6 * counts @ over_idle_uj(constants, models, times_us, device)
    host_us = 1e-9 * (cost.step_parts(mix)[0] - sum(count * fs for *_, count, fs in most))
    expected = 8 * joules * (1 + host_us / (counts @ times_us))
    assert over_waiting_j(cost, [mix])[0] == pytest.approx(expected, rel=1e-9)


def test_more_replicas_draw_more_in_all_and_less_each():
    few, many = (tl.serve("llama3.1-8b", "h200-sxm", rate=4.0, replicas=count, **ASKED).summary for count in (1, 3))
    assert 3 * many["power_w_per_gpu"] > few["power_w_per_gpu"] > many["power_w_per_gpu"]
    assert many["energy_j_per_output_token"] > few["energy_j_per_output_token"]


@pytest.mark.parametrize("given", [{}, {"prefill_replicas": 1, "prefill_cluster": "h200-sxm"}])
def test_where_nobody_measured_energies_it_is_the_limit_and_no_watts_are_said(given):
    result = tl.serve("llama3.1-8b", "a100-sxm-80gb", rate=4.0, **ASKED, **given)
    figures, limits = result.summary, 400 + (700 if given else 0)
    assert figures["energy_j_per_output_token"] == limits * figures["window_s"] / (24 * 20)
    assert "power_w_per_gpu" not in figures
    assert energy_of(result.outcome).is_limit
    assert "energy" not in served_text(result)


def test_the_text_says_watts_joules_and_on_which_device_they_were_measured():
    result = tl.serve("llama3.1-8b", "h100-sxm", rate=4.0, **ASKED)
    (line,) = (line for line in served_text(result).splitlines() if line.startswith("energy "))
    assert "W per GPU" in line
    assert "J per output token" in line
    assert energies_of(result.outcome) in line
    assert "H200" in line


def test_a_log_keeps_some_runs_of_many_and_all_of_their_time():
    log = StepLog()
    for at in range(3 * MOST_KEPT):
        log.ran(10 * at, 10, (64, [(64, 0)], 1, 1, 0, 0))
    assert log.prompts.total_fs == 30 * MOST_KEPT
    assert MOST_KEPT / 2 <= len(log.prompts.kept) <= MOST_KEPT
    # Decode steps of one batch are one run, until its size changes or prompts come between
    for size, steps in ((4, 2), (4, 3), (5, 1)):
        log.ran(0, 7 * steps, (size, [], size, 0, size, 100), steps=steps, context=100 + size)
    log.ran(0, 5, (64, [(64, 0)], 1, 1, 0, 0))
    log.ran(0, 7, (5, [], 5, 0, 5, 100))
    assert [ran.count for ran in log.decoding.kept] == [5, 1, 1]
    assert log.decoding.kept[0].middle[5] == 104
    assert log.decoding.kept[0].step_fs == 7


ROW = {"model_path": "llama3.1-8b", "system": "h200-sxm", "isl": 500, "osl": 64, "concurrency": 16, "backend": "vllm"}
BATCH = {"model_id": "llama3.1-8b", "gpu_model": "H100", "isl": 300, "backend": "vllm", "avg_output_len": 100}


def test_a_batch_draws_between_its_step_that_decodes_and_its_step_with_prompts():
    """64 sequences of 100 tokens: 0.64 prompts of 300 tokens in a step, in 64 of 100 steps one."""
    simulator = PointSimulator(LIMITS)
    point = point_of(BATCH | {"avg_batch_size": 64})
    cost, context = simulator.cost(point), 64 * 350
    mixes = [(64, [], 64, 0, 64, context), (364, [(300, 0)], 65, 1, 64, context)]
    over_j = over_waiting_j(cost, mixes)
    times_s = [sum(cost.step_parts(mix)) / 1e15 for mix in mixes]
    joules, step_s = (0.36 * each[0] + 0.64 * each[1] for each in (over_j, times_s))
    found = simulator.estimate(point)
    idle_w = power_constants(cost.system.device).idle_w
    assert found.power_w_gpu == pytest.approx(idle_w + joules / step_s, rel=1e-9)
    assert found.energy_per_token_j == pytest.approx((idle_w * step_s + joules) / 64, rel=1e-9)
    assert found.energy_per_token_j_low == pytest.approx(ENERGY_SPAN[0] * found.energy_per_token_j)


def test_the_most_of_several_poisson_numbers():
    """Of one the mean; of two of mean 1 with P(0) = 1/e and P(1) = 1/e: 1.524, by 1 - F(k)^2 summed over k."""
    assert most_of(1, 3.7) == pytest.approx(3.7, rel=1e-9)
    by_hand, below, term = 0.0, 0.0, np.exp(-1.0)
    for number in range(30):
        below += term
        by_hand += 1 - below**2
        term /= number + 1
    assert most_of(2, 1.0) == pytest.approx(by_hand, rel=1e-9)
    assert by_hand == pytest.approx(1.524, abs=0.001)
    drawn = np.random.default_rng(0).poisson(0.3, (8, 200_000)).max(axis=0).mean()
    assert most_of(8, 0.3) == pytest.approx(drawn, rel=0.01)


def test_ranks_that_pad_wait_for_the_one_with_most_prompts():
    """64 sequences of 100 tokens on 8 ranks: 0.08 prompts each, of the rank with most (1 - 0.923^8) + (1 - 0.997^8)."""
    row = BATCH | {"model_id": "Qwen/Qwen3-30B-A3B", "num_gpus": 8, "expert_parallel": 8, "avg_batch_size": 64}
    point = point_of(row | {"tensor_parallel": 1, "data_parallel": 8})
    assert point.parallelism == Parallelism(dp=8, ep=8)
    simulator = PointSimulator(LIMITS)
    cost, context = simulator.cost(point), 64 * 350
    mixes = [(64, [], 64, 0, 64, context), (64 + 2400, [(300, 0)] * 8, 72, 8, 64, context)]
    share = most_of(8, 0.08)
    assert share == pytest.approx(0.497, abs=0.001)
    step_s = [sum(cost.step_parts(mix)) / 1e15 for mix in mixes]
    over_j, idle_w = over_waiting_j(cost, mixes), power_constants(cost.system.device).idle_w
    joules = [idle_w * 8 * time_s + over for time_s, over in zip(step_s, over_j, strict=True)]
    expected = ((1 - share) * joules[0] + share * joules[1]) / 64
    assert simulator.estimate(point).energy_per_token_j == pytest.approx(expected, rel=1e-9)


def test_batches_priced_together_are_those_priced_alone():
    points = [point_of(BATCH | {"avg_batch_size": size}) for size in (1, 8, 64, 900)]
    together = PointSimulator(LIMITS).estimates(points)
    assert together == [PointSimulator(LIMITS).estimate(point) for point in points]
    joules = [each.energy_per_token_j for each in together]
    assert joules == sorted(joules, reverse=True)  # larger batches share the weights


def test_a_table_gets_energy_where_its_devices_are_measured_and_else_no_column(tmp_path):
    path, out, header = tmp_path / "points.csv", tmp_path / "out.csv", ",".join(ROW)
    rows = [ROW, ROW | {"concurrency": 64}, ROW | {"system": "a100-sxm-80gb"}]
    for kept, expected in ((rows, [True, True, False]), (rows[2:], None)):
        path.write_text("\n".join([header, *(",".join(map(str, row.values())) for row in kept)]) + "\n")
        batch(path, out, LIMITS)
        found = pd.read_csv(out)
        if expected is None:
            assert not set(ENERGY_ESTIMATES) & set(found)
            continue
        for name in ENERGY_ESTIMATES:
            assert found[name].notna().tolist() == expected
        constants = power_constants(HardwareSpec.load("h200-sxm"))
        assert found["power_w_gpu_est"][:2].between(constants.idle_w, constants.limit_w).all()
        # J per token is watts over tokens per second, of 16 and 64 requests at once
        answer_s = (found["ttft_ms_est"] + 63 * found["tpot_ms_est"]) / 1e3
        rate = found["concurrency"] * 64 / answer_s
        assert (found["power_w_gpu_est"] / rate)[:2].tolist() == pytest.approx(
            found["energy_per_token_j_est"][:2].tolist()
        )
        assert found["energy_per_token_j_est"][1] < found["energy_per_token_j_est"][0]


def test_hosts_and_the_data_center_of_a_server_by_hand():
    """DGX H100: 360 W per GPU besides it; a kWh is 3.6 MJ."""
    plain = tl.serve("llama3.1-8b", "dgx-h100", rate=5.0, **ASKED).summary
    found = tl.serve("llama3.1-8b", "dgx-h100", rate=5.0, pue=1.2, price_per_kwh=0.2, co2_per_kwh=300.0, **ASKED)
    per_token = plain["energy_j_per_output_token"] * (1 + 360 / plain["power_w_per_gpu"])
    assert plain["facility_j_per_output_token"] == pytest.approx(per_token)
    figures = found.summary
    assert figures["facility_j_per_output_token"] == pytest.approx(1.2 * per_token)
    assert figures["electricity_usd_per_million_output_tokens"] == pytest.approx(1.2 * per_token / 3.6 * 0.2)
    assert figures["co2_g_per_million_output_tokens"] == pytest.approx(1.2 * per_token / 3.6 * 300)
    assert "with hosts (360 W per GPU), PUE 1.2: " in served_text(found)
    assert not [name for name in tl.serve("llama3.1-8b", "mi300x", rate=5.0, **ASKED).summary if "facility" in name]


@pytest.mark.sweep
@pytest.mark.shared
def test_watts_of_measured_amd_servers_by_the_energies_of_b200(shared_traces, tmp_path):
    """InferenceX's 31 rows with watts are all of MI355X, which nothing was fitted to: docs/energy.md says how far off."""
    table = pd.read_csv(shared_traces.parent / "tables" / "serving_inferencex.csv", dtype=str)
    rows = table[table["power_w_gpu"].notna()].reset_index(drop=True)
    assert set(rows["system"]) == {"mi355x"}
    rows.to_csv(tmp_path / "rows.csv", index=False)
    assert main(["serve", "--batch", str(tmp_path / "rows.csv"), "-o", str(tmp_path / "out.csv")]) == 0
    served = pd.read_csv(tmp_path / "out.csv")
    off = (served["power_w_gpu_est"] / served["power_w_gpu"] - 1).abs()
    assert len(off) == 31
    assert off.median() == pytest.approx(0.063, abs=0.005)
    assert off.quantile(0.9) == pytest.approx(0.171, abs=0.01)
