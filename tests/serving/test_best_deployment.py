"""The search for the best deployment: its closed form against the simulation, laws, and commands that reproduce it."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import statistics
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples, part
from tracelens.cli import main
from tracelens.errors import UsageError
from tracelens.predict.serving.best_deployment import (
    ClosedForm,
    MeanLengths,
    Points,
    ServerSearch,
    Wanted,
    deployments,
    front,
    plan,
    within,
)
from tracelens.predict.serving.experiment import deployment_of, experiment_of
from tracelens.predict.serving.load_curve import as_closed_loop, load_point
from tracelens.predict.serving.metrics import Objectives
from tracelens.predict.serving.serving_options import ServingConfig
from tracelens.report.serving_report import plan_page, plan_text

MODEL, CLUSTER = "llama3.1-70b", "dgx-h100"


def wanted(counts=(8,), model=MODEL, cluster=CLUSTER, top=3, fixed=None, **asked):
    return Wanted(
        model=model, cluster=cluster, counts=counts, top=top, fixed=fixed or {},
        asked=ServingConfig(**{"input_tokens": 512, "output_tokens": 64, **asked}),
    )  # fmt: skip


def points_of(counts=(8,), **given) -> tuple[ServerSearch, Points]:
    found = ServerSearch(wanted(counts, **given))
    return found, deployments(found)[0]


def front_of(points: Points, found: ServerSearch, slo: str = "ttft=450ms,tpot=40ms") -> list[tuple[float, float]]:
    kept = points.only(within(points, Objectives.parse(slo), found.lengths))
    figures = kept.per_user, kept.per_gpu(found.lengths)
    return [tuple(float(each[at]) for each in figures) for at in front(*figures)]


def is_no_worse(better, worse) -> bool:
    """Whether for every point of ``worse`` there is one in ``better`` that is as good in both figures (to 0.2 %)."""
    return all(any(a >= 0.998 * x and b >= 0.998 * y for a, b in better) for x, y in worse)


CASES = [
    ("llama3.1-70b", "dgx-h100", {"tp": 4}, 1024, 128),
    ("llama3.1-70b", "dgx-h100", {"tp": 8, "engine": "vllm"}, 4096, 512),
    ("llama3.1-70b", "dgx-h100", {"tp": 4, "engine": "sglang"}, 1024, 256),
    ("llama3.1-70b", "dgx-h100", {"tp": 4, "pp": 2}, 1024, 128),
    ("llama3.1-8b", "h100-sxm", {"engine": "vllm"}, 128, 512),
    ("deepseek-v3", "dgx-h200", {"tp": 8, "ep": 8}, 1024, 256),
    ("deepseek-v3", "dgx-h200", {"dp": 8, "ep": 8}, 1024, 256),
    ("qwen3-30b-a3b", "mi300x", {}, 1024, 128),
]


def errors_of_the_closed_form() -> dict[str, list[float]]:
    """By figure, the relative errors against the simulation at three loads of every case."""
    found: dict[str, list[float]] = {"requests_per_s": [], "tpot_p50_ms": [], "ttft_p50_ms": []}
    for model, cluster, options, prompt, answer in CASES:
        given = ServingConfig(**options, input_tokens=prompt, output_tokens=answer, slo="e2e=1h")
        asked = as_closed_loop(given)
        base = experiment_of(deployment_of(model, cluster, asked), asked)
        cost, budget = base.cost(), base.deployment.engine.max_batched_tokens
        form = ClosedForm(cost, MeanLengths(prompt, answer), [1, 2, 4, 8, 16, 32, 64])
        form.foresee([budget])
        states = form.serving(budget)
        for load in (2, 12, 40):
            figures = load_point(base, cost, load).figures
            token, first = (float(np.interp(load, states.flight, each)) for each in (states.token_s, states.first_s))
            estimated = {
                "requests_per_s": load / (first + (answer - 1) * token),
                "tpot_p50_ms": token * 1e3,
                "ttft_p50_ms": first * 1e3,
            }
            for name, value in estimated.items():
                found[name].append(value / figures[name] - 1)
    return found


@pytest.mark.sweep
def test_the_closed_form_is_near_the_simulation():
    """24 loads: models with and without experts, both policies, a pipeline, data-parallel ranks, NVIDIA and AMD."""
    errors = errors_of_the_closed_form()
    median = {name: statistics.median(map(abs, each)) for name, each in errors.items()}
    assert median["requests_per_s"] < 0.035  # 0.027
    assert median["tpot_p50_ms"] < 0.015  # 0.008
    assert median["ttft_p50_ms"] < 0.08  # 0.073
    assert max(map(abs, errors["tpot_p50_ms"])) < 0.11  # 0.094


def test_a_request_alone_needs_its_prompt_and_its_steps():
    """Without anybody else in the server: no wait, no prompt between its tokens."""
    form = ClosedForm(experiment_of(deployment_of(MODEL, CLUSTER, asked := ServingConfig(tp=4, concurrency=1)), asked).cost(),
                      MeanLengths(512, 65), [1])  # fmt: skip
    states, cost = form.serving(2048), form.cost
    line = cost.decode_line(1, 544)  # 512 of the prompt and half of the answer
    prompt = sum(cost.mixed_time(513, [(512, 0)], 2, 1, 1, 544))
    assert states.token_s[0] == pytest.approx((line.fixed + line.slope * 544) / 1e15, rel=1e-3)
    # 1 in 128 steps with a prompt has two
    assert states.first_s[0] == pytest.approx(prompt / 1e15 + cost.deployment.engine.request_us / 1e6, rel=5e-3)
    # 64 steps of the answer: so long a request decodes, and longer by its first token it is in the server
    assert states.rate[0] == pytest.approx(1 / (64 * states.token_s[0]))
    assert states.flight[0] == pytest.approx(1 + states.rate[0] * states.first_s[0])


@pytest.mark.sweep
def test_the_closed_form_is_near_the_simulation_where_prefill_is_separate():
    """The deployments of two fronts: replicas of one group, and data-parallel ranks with experts."""
    rows = []
    for model, cluster, count, fixed in (
        (MODEL, CLUSTER, 16, {"tp": 4, "prefill_tp": 4}),
        ("deepseek-v3", "dgx-h200", 16, {"tp": 1, "ep": 8, "prefill_tp": 1, "prefill_ep": 8, "replicas": 1}),
    ):
        asked = {"input_tokens": 1024, "output_tokens": 256, "slo": "ttft=1s,tpot=1s"}
        found = plan(wanted((count,), model, cluster, fixed=fixed, top=6, **asked))
        rows += [point.row for point in found.points if point.row["prefill_replicas"]]
    assert len(rows) >= 5
    names = {"tokens_per_s_per_user": "tokens_per_s_per_user", "ttft_ms": "ttft_p50_ms"}
    median = {
        name: statistics.median(abs(row[f"estimated_{name}"] / row[simulated] - 1) for row in rows)
        for name, simulated in names.items()
    }
    assert median["tokens_per_s_per_user"] < 0.01
    assert median["ttft_ms"] < 0.2  # 0.16; 0.06 before decode batches were padded and exchanges had modes


@pytest.mark.sweep
def test_more_devices_and_a_looser_slo_are_never_worse():
    found, few = points_of((4, 8))
    more_found, more = points_of((4, 8, 16))
    assert is_no_worse(front_of(more, more_found), front_of(few, found))
    tight, loose = (front_of(few, found, slo) for slo in ("ttft=300ms,tpot=20ms", "ttft=600ms,tpot=40ms"))
    assert tight
    assert is_no_worse(loose, tight)


def test_little_s_law_and_devices_add_up():
    found, points = points_of((8,), concurrency=24)
    assert points.flight == pytest.approx(np.full(len(points), 24.0))
    assert points.rate * (points.first_s + 63 * points.token_s) == pytest.approx(points.flight)
    for at in range(len(points)):
        other = points.prefill[at]
        server = (found.serving if other < 0 else found.decoding)[points.server[at]]
        prefills = 0 if other < 0 else points.prefills[at] * found.computing[other].devices
        assert points.replicas[at] * server.devices + prefills == points.devices[at] == 8


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=30))
def test_nothing_beats_the_front_and_the_front_beats_the_rest(figures):
    across, up = (np.array(each) for each in zip(*figures, strict=True))
    kept = [figures[at] for at in front(across, up)]
    assert is_no_worse(kept, figures)
    assert all(a <= c and b >= d for (a, b), (c, d) in itertools.pairwise(kept))


#: A server that is searched in a tenth of the time of ``MODEL`` on eight devices.
QUICK_MODEL, QUICK_GPUS = "llama3.1-8b", 2
of_two_sizes = pytest.mark.parametrize(
    ("model", "gpus"), [(QUICK_MODEL, QUICK_GPUS), pytest.param(MODEL, 8, marks=pytest.mark.sweep)]
)


@of_two_sizes
def test_the_command_of_every_point_gives_its_figures(model, gpus, tmp_path, capsys):
    """Each line of the front is a line of the load curve that the printed command makes."""
    path = tmp_path / "front.csv"
    words = [
        "--model",
        model,
        "--cluster",
        CLUSTER,
        "--gpus",
        str(gpus),
        "--input-tokens",
        "512",
        "--output-tokens",
        "64",
    ]
    assert main(["search", "--serve", *words, "--top", "3" if gpus > QUICK_GPUS else "1", "-o", str(path)]) == 0
    shown = capsys.readouterr().out
    rows = pd.read_csv(path)
    assert 1 <= len(rows) <= 3
    assert rows["command"][0] in shown
    assert (rows["good_share"] >= 0.99).all()
    for row in rows.to_dict("records"):
        assert main([*shlex.split(row["command"])[1:], "--format", "json"]) == 0
        (point,) = json.loads(capsys.readouterr().out)["rows"]
        for name in ("concurrency", "requests_per_s", "output_tokens_per_s_per_gpu", "tpot_p50_ms", "ttft_p99_ms"):
            assert point[name] == pytest.approx(row[name], rel=1e-9)
        assert row["tokens_per_s_per_user"] == pytest.approx(1e3 / row["tpot_p50_ms"])
        assert row["tokens_per_s_per_user_low"] < row["tokens_per_s_per_user"] < row["tokens_per_s_per_user_high"]


@pytest.mark.parametrize(
    "fixed", part([{"prefill_replicas": 1, "tp": 4, "prefill_tp": 4}, {"prefill_replicas": 0, "pp": 2}], 2)
)
def test_fixed_dimensions_are_kept(fixed):
    found = plan(wanted(fixed=fixed, top=1, slo="ttft=1s,tpot=100ms"))
    assert found.points
    for point in found.points:
        assert {name: point.row[name] for name in fixed} == fixed


def test_a_rate_is_held_by_the_fewest_devices():
    found = plan(wanted((2, 4, 8), rate=6.0, top=2, fixed={"prefill_replicas": 0}))
    best = found.points[found.best].row
    assert best["devices"] == min(point.row["devices"] for point in found.points)
    assert "--rate 6.0" in best["command"]
    assert found.looked > len(found.points)


def test_what_does_not_fit_is_refused_as_serve_refuses_it():
    with pytest.raises(UsageError, match="does not fit"):
        plan(wanted((1,)))
    assert ServerSearch(wanted((2, 4))).refused["does not fit"] == 1  # one device of the two


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gpus", "8", "--fix", "replica=4"], "did you mean replicas?"),
        (["--gpus", "8", "--concurrency", "8", "--rate", "2"], "give --concurrency or --rate, not both"),
        (["--gpus", "8", "--sequence", "4096"], "--serve does not read --sequence"),
        (["--gpus", "8", "--output-tokens", "1"], "--output-tokens of 2 or more"),
        (["--gpus", "8", "--slo", "ttft=1ns"], "no deployment of"),
        (["--gpus", "8", "--objective", "cost"], "--objective cost is of a search without --serve"),
    ],
)
def test_what_cannot_be_searched_is_said_in_one_sentence(words, said, capsys):
    assert main(["search", "--serve", "--model", MODEL, "--cluster", CLUSTER, *words]) in (2, 3)
    shown = capsys.readouterr()
    assert said in shown.err + shown.out


def test_without_serve_its_options_are_refused(capsys):
    assert main(["search", "--model", MODEL, "--cluster", CLUSTER, "--gpus", "8", "--slo", "ttft=1s"]) == 2
    assert "a search without --serve does not read --slo" in capsys.readouterr().err


@pytest.mark.sweep
@of_two_sizes
def test_deployments_show_what_they_draw_and_the_least_energy_is_on_the_front(model, gpus, capsys):
    """A row's watts over its tokens/s are its joules per token; idle H100 draw 128 W, their limit is 700 W."""
    found = plan(wanted((gpus,), model, top=4, fixed={"prefill_replicas": 0}))
    rows = [point.row for point in found.points]
    for row in rows:
        tokens_per_s = row["output_tokens_per_s_per_gpu"]
        assert row["energy_j_per_output_token"] == pytest.approx(row["power_w_per_gpu"] / tokens_per_s, rel=1e-9)
        assert 128 <= row["power_w_per_gpu"] <= 700
        assert main([*shlex.split(row["command"])[1:], "--format", "json"]) == 0
        (point,) = json.loads(capsys.readouterr().out)["rows"]
        assert point["power_w_per_gpu"] == pytest.approx(row["power_w_per_gpu"], rel=1e-9)
    assert "J/token" in plan_text(found)
    assert f"{rows[0]['energy_j_per_output_token']:.4g}".encode() in plan_page(found)
    speeds = [row["tokens_per_s_per_user"] for row in rows]
    assert len(set(speeds)) == len(speeds)


@pytest.mark.sweep
def test_devices_whose_energies_nobody_measured_show_none():
    found = plan(wanted((8,), cluster="mi300x", top=2, fixed={"prefill_replicas": 0}, slo="ttft=2s,tpot=200ms"))
    assert found.points
    assert not [name for name in found.frame.columns if "energy" in name or "power" in name]
    assert not {"J/token", "W/GPU", "least energy"} & set(re.split(r"[\s:]{2,}|: ", plan_text(found)))
    with pytest.raises(UsageError, match="mi300x: its energies are unknown; choose another --objective"):
        plan(replace(found.wanted, objective="energy"))


@pytest.mark.sweep
def test_by_energy_the_best_deployment_takes_the_fewest_joules_of_those_shown():
    """At 6 requests/s the fewest devices are the best by default; joules per token need not be fewest there."""
    asked = wanted((1, 2, 4), model="llama3.1-8b", rate=6.0, top=3, fixed={"prefill_replicas": 0})
    found, usual = plan(replace(asked, objective="energy")), plan(asked)
    joules = [point.row["energy_j_per_output_token"] for point in found.points]
    assert found.best == joules.index(min(joules))
    assert [point.row for point in found.points] == [point.row for point in usual.points]
    assert usual.points[usual.best].row["devices"] == min(point.row["devices"] for point in usual.points)
    assert f"least energy: {min(joules):.4g} J per token" in plan_text(found)


@pytest.mark.parametrize("prefill_replicas", part([0, 1], 2))
def test_a_front_s_interval_is_as_wide_as_serve_says_of_that_server(prefill_replicas, capsys):
    """Servers with separate prefill were left out apart; one without has no split of it."""
    fixed = {"prefill_replicas": prefill_replicas}
    found = plan(wanted(counts=(2,), model="llama3.1-8b", top=2, fixed=fixed, concurrency=8))
    assert found.points
    for point in found.points:
        row = point.row
        assert (row["prefill_tp"] is None) is (prefill_replicas == 0)
        assert main(shlex.split(row["command"])[1:]) == 0
        low, high = map(float, re.findall(r"and ([\d.]+) to ([\d.]+) ms in 9 of 10", capsys.readouterr().out)[0])
        speeds = row["tokens_per_s_per_user_low"], row["tokens_per_s_per_user_high"]
        assert speeds[1] / speeds[0] == pytest.approx(high / low, rel=0.02)
