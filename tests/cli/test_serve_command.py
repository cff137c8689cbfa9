"""tracelens serve, as a user runs it."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import tracelens
from tracelens.cli import main

BASE = [
    "serve",
    "--model",
    "llama3.1-8b",
    "--cluster",
    "h100-sxm",
    "--rate",
    "8",
    "--input",
    "200",
    "--output-tokens",
    "20",
    "--requests",
    "25",
]


def test_a_run_prints_latencies_and_writes_its_tables(capsys, tmp_path):
    folder = tmp_path / "out"
    assert main([*BASE, "-o", str(folder), "--slo", "ttft=500ms,tpot=50ms"]) == 0
    out = capsys.readouterr().out
    assert "first token ms" in out
    assert out.startswith("Llama")
    assert "requests/s" in out.splitlines()[0]
    assert out.splitlines()[1] == "  25 requests, 200 prompt and 20 output tokens each, poisson arrivals at 8/s"
    assert "good share" in out
    assert sorted(path.name for path in folder.iterdir()) == ["requests.csv", "steps.csv", "summary.json"]
    assert json.loads((folder / "summary.json").read_text())["summary"]["completed"] == 25


def test_all_devices_of_a_deployment_are_counted_and_its_cache_line_adds_up(capsys, tmp_path):
    """Two replicas of tp 2 and one of prefill are 6 devices; a peak of one replica may be below the mean in all."""
    assert main([*BASE, "--tp", "2", "--replicas", "2", "-o", str(tmp_path / "out.html")]) == 0
    out = capsys.readouterr().out
    on = "Llama 3.1 8B on 4 x NVIDIA H100 SXM5 80GB, 2 replicas of tp 2"
    assert out.startswith(f"{on}: ")
    assert f"<h1>{on}</h1>" in (tmp_path / "out.html").read_text()
    assert "peak in one replica" in out
    assert "mean in all" in out
    assert "running requests" not in out
    assert main([*BASE, "--replicas", "4", "--prefill-replicas", "1", "--prefill-tp", "2"]) == 0
    h100 = "NVIDIA H100 SXM5 80GB"
    assert capsys.readouterr().out.startswith(
        f"Llama 3.1 8B on 4 x {h100}, 4 replicas and 2 x {h100} tp 2 for prefill: "
    )


def test_a_curve_of_sessions_speaks_of_sessions_everywhere(capsys, tmp_path):
    page = tmp_path / "curve.html"
    assert main([*CURVE, "--requests", "12", "--turns", "3", "--sweep", "concurrency=2", "-o", str(page)]) == 0
    out = capsys.readouterr().out
    assert "note: with 2 sessions at once: TPOT" in out
    assert "requests at once" not in out
    assert "the curve ends there (--requests, --sweep)" in out
    text = page.read_text()
    assert "2 sessions" in text
    assert "W/GPU" in text
    assert "Power w" not in text


def test_a_run_that_serves_no_request_ends_with_3(capsys):
    closed = ["serve", "--model", "llama3.1-8b", "--device", "h100", "--concurrency", "4", "--requests", "5"]
    assert main([*closed, "--input-tokens", "3000000"]) == 3
    assert "5 of 5 requests were rejected: 3,000,128 tokens do not fit" in capsys.readouterr().out


def test_a_pause_without_sessions_is_refused(capsys):
    assert main([*BASE, "--think-time", "10s"]) == 2
    assert capsys.readouterr().err.startswith("error: --think-time needs --turns")


def test_a_closed_loop_of_drawn_lengths_says_how_many_and_how_long(capsys):
    closed = [*BASE[: BASE.index("--rate")], "--concurrency", "4", "--requests", "25", "--output-tokens", "20"]
    assert main([*closed, "--input", "uniform:200:0.5"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.endswith("prompt and 20 output tokens on average, 4 at a time")
    assert 100 <= int(line.split()[2]) <= 300


def test_json_is_the_same_for_the_same_seed_and_all_levels(capsys):
    texts = []
    for level in ("medium", "medium", "low"):
        assert main([*BASE, "--lod", level, "--format", "json"]) == 0
        texts.append(json.loads(capsys.readouterr().out)["summary"])
    assert texts[0] == texts[1]
    assert texts[0]["e2e_p99_ms"] == texts[2]["e2e_p99_ms"]


def test_a_sweep_finds_the_rate_with_the_most_goodput(capsys):
    assert main([*BASE, "--sweep", "rate=5..45..20", "--find-max-goodput", "--slo", "ttft=80ms"]) == 0
    out = capsys.readouterr().out
    answer, table = out.split("\n\n")
    assert [line.split()[0] for line in table.splitlines()[1:4]] == ["5", "25", "45"]
    assert answer.splitlines()[1].startswith("most goodput at rate")
    assert ("highest rate of the sweep" in out) == ("most goodput at rate 45" in out)


def test_a_sweep_in_which_no_rate_keeps_the_limits_says_so(capsys):
    assert main([*BASE, "--sweep", "rate=5..15..10", "--find-max-goodput", "--slo", "ttft=1us"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "no rate of the sweep keeps the limits"


def test_an_experiment_file_stands_for_options(capsys, tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(
        '[simulation]\nrequests = 12\nlod = "low"\n[hardware]\ncluster = "dgx-h100"\n[model]\nname = "llama3.1-8b"\n'
        "[framework.parallelism]\ntp_degree = 2\n[workload]\nrate = 5.0\ninput = 100\noutput = 10\n"
    )
    assert main(["serve", "--config", str(path), "--format", "json"]) == 0
    figures = json.loads(capsys.readouterr().out)["summary"]
    assert (figures["completed"], figures["devices"]) == (12, 2)
    assert main(["serve", "--config", str(path), "--format", "json", "--tp", "1", "--requests", "5"]) == 0
    figures = json.loads(capsys.readouterr().out)["summary"]
    assert (figures["completed"], figures["devices"]) == (5, 1)
    path.write_text("[simulation]\nrequest = 12\n")
    assert main(["serve", "--config", str(path)]) == 2
    assert "did you mean requests" in capsys.readouterr().err
    path.write_text('[workload]\nrate = "fast"\n')
    assert main(["serve", "--config", str(path)]) == 2
    assert "experiment.toml: argument --rate: invalid float value: 'fast'" in capsys.readouterr().err


def test_the_command_line_wins_over_an_experiment_file_also_with_a_default_and_by_another_name(capsys, tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('model = "llama3.1-8b"\ncluster = "h100-sxm"\nrate = 5\nrequests = 3\ntp = 2\n')
    mine = tmp_path / "mine"
    assert main(["serve", "--config", str(path), "--tp", "1", "--device", "dgx-h100", "-o", str(mine)]) == 0
    assert json.loads((mine / "summary.json").read_text())["summary"]["devices"] == 1
    assert main(["serve", "--config", str(path), "-o", str(tmp_path / "of_file")]) == 0
    assert json.loads((tmp_path / "of_file" / "summary.json").read_text())["summary"]["devices"] == 2


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('requests = "many"', "experiment.toml: argument --requests: must be a whole number"),
        ('contention = "yes"', "experiment.toml: contention must be true or false, not 'yes'"),
        ('preemption = "drop"', "experiment.toml: argument --preemption: invalid choice: 'drop'"),
    ],
)
def test_a_value_in_an_experiment_file_that_does_not_fit_is_named(capsys, tmp_path, setting, words):
    path = tmp_path / "experiment.toml"
    path.write_text(f'model = "llama3.1-8b"\ncluster = "h100-sxm"\nrate = 5\n{setting}\n')
    assert main(["serve", "--config", str(path)]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (["--requests", "0"], 3, "no requests to serve"),
        (["--model", "lama3.1-8b"], 2, "did you mean llama3.1-8b"),
        (["--model", "llama3.1-405b"], 2, "does not fit"),
        (["--policy", "greedy"], 2, "no policy named 'greedy'"),
        (["--rate", "0"], 2, "a rate from 1e-09"),
        (["--sweep", "rate=5"], 2, "rate=FROM..TO"),
        (["--sweep", "rate=1..2", "--find-max-goodput"], 2, "needs --slo"),
        (["--find-max-goodput"], 2, "needs --sweep"),
        (["--sweep", "rate=1..2", "-o", "out"], 2, "--sweep cannot be combined"),
        (["--draft-model", "qwen2.5-0.5b"], 2, "needs --speculate"),
        (["--order", "priority"], 2, "needs requests with a priority"),
        (["--input", "uniform:inf:0.5"], 2, "a length needs a mean from 1"),
        (["--shared-prefix", "100", "--shared-groups", "0"], 2, "not 0 and 100"),
        (["--shared-prefix=-100"], 2, "shared prefixes need"),
        (["--seed=-1"], 2, "a seed must be 0 or more"),
        (["--kv-tokens", "0"], 2, "kv_tokens must be at least 1"),
        (["--kv-link", "0", "--prefill-replicas", "1"], 2, "a rate above 0 GB/s"),
        (["--kv", "int64"], 2, "not 'int64'"),
        (["--imbalance", "nan"], 2, "imbalance must be at least 1"),
        (["--price-per-gpu-hour=-3"], 2, "a price per hour must be 0 or more"),
        (["--lod", "medium,high"], 2, "2 levels of detail for 1 replicas"),
        (["--replay", "nowhere.csv"], 1, "nowhere.csv cannot be read"),
        (["--speculate", "x"], 2, "TOKENS:ACCEPTANCE"),
        (["--batch", "points.csv"], 2, "--batch needs -o"),
        (["--max-num-seqs", "0"], 2, "max_num_seqs and block_tokens must be at least 1"),
    ],
)
def test_what_cannot_be_simulated_ends_with_a_sentence(change, code, words, capsys):
    assert main([*BASE, *change]) == code
    assert words in capsys.readouterr().err


def test_a_profile_and_an_engine_file_are_written_and_read(capsys, tmp_path):
    profile = tmp_path / "profile.json"
    assert main([*BASE[:5], "--export-profile", str(profile)]) == 0
    assert main([*BASE, "--profile", str(profile)]) == 0
    assert "completed 25" in capsys.readouterr().out


def test_a_trace_of_the_run_is_written(capsys, tmp_path):
    path = tmp_path / "served.json.gz"
    assert main([*BASE[:-1], "1", "--output-tokens", "3", "--trace", str(path)]) == 0
    assert main(["report", str(path), "-o", str(tmp_path / "out.json")]) == 0


def test_an_unknown_all_reduce_algorithm_is_refused_also_on_one_device(capsys):
    code = main(["serve", "--model", "llama3.1-8b", "--device", "h100-sxm", "--collective", "rong", "--requests", "3"])
    assert code == 2
    assert "no all-reduce algorithm named 'rong'; did you mean ring?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "unread"),
    [
        (["--scenarios", "--rate", "8"], "--scenarios does not read --rate"),
        (
            ["--batch", "in.csv", "-o", "out.csv", "--tp", "2", "--scenarios"],
            "--scenarios does not read --batch",
        ),
        (["--batch", "in.csv", "-o", "out.csv", "--tp", "2"], "--batch does not read --tp"),
        (["--model", "m", "--calibrate", "a.json", "--sweep", "rate=1..2"], "--calibrate does not read --sweep"),
        (["--model", "m", "--export-profile", "a.json", "--rate", "3"], "--export-profile does not read --rate"),
        (["--sweep", "rate=1..2", "--replay", "a.csv"], "--sweep does not read --replay"),
    ],
)
def test_options_that_a_mode_would_not_read_are_refused(capsys, words, unread):
    assert main(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert set(unread.replace(",", "").split()) <= set(said.replace(",", "").split())


def test_an_experiment_file_may_hold_more_than_a_mode_reads(capsys, tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text('model = "llama3.1-8b"\ncluster = "h100-sxm"\nrate = 5\nrequests = 3\noutput = 3\n')
    profile = tmp_path / "profile.json"
    assert main(["serve", "--config", str(path), "--export-profile", str(profile)]) == 0
    assert capsys.readouterr().out == f"wrote {profile}\n"


def test_output_is_a_place_and_as_answer_tokens_it_still_works_with_a_hint(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = [*BASE[:5], "--rate", "8", "--requests", "5", "--input-tokens", "200", "--format", "json"]
    assert main([*new, "--output-tokens", "20"]) == 0
    expected = capsys.readouterr()
    assert main([*new, "--output", "20"]) == 0
    former = capsys.readouterr()
    first, second = (json.loads(each.out) for each in (former, expected))
    assert first.pop("wall_clock_s") > 0 < second.pop("wall_clock_s")
    assert (first, expected.err) == (second, "")
    assert former.err == "hint: output tokens are --output-tokens 20 now; -o/--output is where results go (./20)\n"
    assert main([*new, "--output", "served"]) == 0
    assert main([*new, "--out", "20"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20", "served"]
    assert "hint" not in capsys.readouterr().err


def test_results_in_a_notebook_are_a_line():
    served = tracelens.serve("llama3-8b", "h100-sxm", rate=4, requests=20)
    assert len(repr(served)) < 200
    assert repr(served).startswith("Llama 3.1 8B on 1 x NVIDIA H100 SXM5 80GB: ")
    projected = tracelens.project("llama3-8b", "dgx-h100", gpus=8, tp=8)
    assert len(repr(projected)) < 200
    assert "s per step" in repr(projected)


CURVE = [*BASE[:5], "--input", "200", "--output-tokens", "20", "--max-num-seqs", "16"]


def test_without_a_load_the_answer_is_how_many_requests_the_server_holds(capsys, tmp_path):
    table, folder = tmp_path / "curve.csv", tmp_path / "curve"
    assert main([*CURVE, "--slo", "tpot=8ms", "-o", str(table)]) == 0
    out = capsys.readouterr().out
    rows = pd.read_csv(table)
    kept = rows[rows.keeps_slo]
    held = kept.iloc[-1]
    assert f"holds up to {held.concurrency} requests at once within the SLO, " in out.splitlines()[0]
    assert f"{held.requests_per_s:.4g} requests/s" in out.splitlines()[0]
    assert (kept.tpot_p99_ms <= 8).all()
    assert (rows[~rows.keeps_slo].tpot_p99_ms > 8).all()
    assert f"The SLO breaks at {rows.concurrency[len(kept)]} requests at once: TPOT p99 " in out
    assert "SLO: 99 % of requests within TPOT 8 ms (--slo)" in out
    shown = out[out.index("at once  ") :].splitlines()
    assert [int(line.split()[0]) for line in shown[1 : len(rows) + 1]] == rows.concurrency.tolist()
    assert main([*CURVE, "--slo", "tpot=8ms", "-o", str(folder), "--format", "json"]) == 0
    text = capsys.readouterr().out
    assert sorted(path.name for path in folder.iterdir()) == ["load_curve.csv", "summary.json"]
    assert text == (folder / "summary.json").read_text()
    found = json.loads(text)
    assert found["held_concurrency"] == held.concurrency
    assert [row["concurrency"] for row in found["rows"]] == rows.concurrency.tolist()
    assert not found["slo"]["is_assumed"]


def test_the_assumed_slo_is_named_with_its_source_and_the_option_that_changes_it(capsys, tmp_path):
    page = tmp_path / "curve.html"
    assert main([*CURVE, "-o", str(page)]) == 0
    out = capsys.readouterr().out
    slo = "99 % of requests within TTFT 450 ms, TPOT 40 ms (assumed: MLPerf Inference"
    assert slo in out
    assert "--slo sets another" in out
    assert "holds at least 16 requests at once within the SLO" in out
    assert "decodes 16 requests at once (--max-num-seqs)" in out
    text = page.read_text()
    assert slo in text
    assert "What bounds each load" in text
    assert text.count("<script") == 0


def test_a_curve_takes_the_degree_that_was_given_and_else_the_smallest_that_fits(capsys, tmp_path):
    large = [*CURVE, "--model", "llama3.1-70b", "--requests", "8"]
    assert main(large) == 0
    out = capsys.readouterr().out
    assert "on 2 x NVIDIA H100" in out.splitlines()[0]
    assert "note: tp 2 is the smallest tensor-parallel degree (--tp) that fits" in out
    assert main([*large, "--tp", "1"]) == 2
    assert "does not fit" in capsys.readouterr().err
    path = tmp_path / "one.toml"
    path.write_text("tp = 1\n")
    assert main([*large, "--config", str(path)]) == 2
    assert "does not fit" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--trace", "x.json"], ["--arrivals", "burst"], ["--duration", "1h"]])
def test_what_belongs_to_one_load_is_refused_for_a_curve(capsys, words):
    assert main([*CURVE, *words]) == 2
    err = capsys.readouterr().err
    assert f"does not read {words[0]}" in err
    assert "give --rate or --concurrency" in err


def test_frameworks_of_a_file_without_a_load_have_a_curve_each(capsys, tmp_path):
    path = tmp_path / "two.toml"
    path.write_text('model = "llama3.1-8b"\ncluster = "h100-sxm"\nrequests = 8\n[[frameworks]]\nname = "vllm"\n'
                    '[[frameworks]]\nname = "sglang"\n')  # fmt: skip
    assert main(["serve", "--config", str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["frameworks"]
    assert [each["name"] for each in found] == ["vllm", "sglang"]
    assert all(each["rows"] for each in found)
