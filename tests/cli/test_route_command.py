"""``tracelens route``."""

from __future__ import annotations

import ast
import dataclasses
import gzip
import hashlib
import json
import re
import shutil

import pandas as pd
import pytest
from openpyxl import load_workbook

import tracelens
from tracelens.cli import main
from tracelens.predict.routing.exchange import MeshScenario, Routing, route_mesh
from tracelens.report.route_report import write_route

PRODUCTION = """NUM_EXPERTS = 128
SEQLEN = 1024
TOP_K = 8
HOT_RATIO = 0.5
HOT_WEIGHT = 0.8
NUM_NODES = 8
WEIGHT_PRECISION = 4
ROUTING_PRECISION = 1
ID_PRECISION = 2
UNIT_COMM_LOAD = 9
NUM_LINKS = 1
BASE_DELAY = 2
INITIAL_CPU_DELAY = 0
INTRA_BW = 100
PACKET_SIZE = 20
PACKET_PREP_DELAY = 1
ROUND_ROBIN_MAX_PACKETS = 5
NIC_RATE = 10000
NUM_LAYERS = 58
EMBED_DIM = 7168
INTER_BW = 50
PARALLELIZATION_MULTIPLIER = 1.2
"""
TEST = {
    "experts": 4, "tokens": 40, "topk": 2, "ranks": 4, "unit-bytes": 4, "links": 2, "intra-bytes-per-ms": 2,
    "packet-bytes": 1, "packets-per-turn": 2,
}  # fmt: skip


def words(options):
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def test_a_configuration_in_the_originals_names_reproduces_its_run(tmp_path, capsys):
    config = tmp_path / "production.toml"
    config.write_text(PRODUCTION, encoding="utf-8")
    assert main(["route", "--rules", "original", "--config", str(config), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)["summary"]
    assert (round(summary["time_ms"], 6), summary["rounds"], summary["moved_bytes"]) == (212.23, 27, 65_223)
    assert "ignores layers, hidden, inter_gb_s, overlap" in err


def test_the_two_steps_and_the_log(tmp_path):
    run, log = tmp_path / "run", tmp_path / "comm_log.txt"
    seed = ["route", "--rules", "original", *words(TEST)]
    assert main([*seed, "--save-routing", str(run), "--log", str(tmp_path / "first.txt")]) == 0
    assert main([*seed, "--routing", str(run), "--log", str(log)]) == 0
    assert hashlib.sha256(log.read_bytes()).hexdigest()[:16] == "b796981e7db8174e"
    assert sorted(p.name for p in run.iterdir()) == ["routing.csv", "weights.csv"]


def test_without_a_cluster_the_answer_is_of_an_assumed_one_of_today(tmp_path, capsys):
    path = tmp_path / "r.html"
    assert main(["route", "-o", str(path)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("assumed: dgx-h100 (--cluster names another, --rules mesh")
    assert first in path.read_text()
    assert main(["route", "--cluster", "dgx-h100"]) == 0
    assert capsys.readouterr().out.splitlines() == rest[:-1]
    assert "network of today" not in "".join(rest)
    assert main(["route", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["assumed_cluster"] == "dgx-h100"


#: The first 16 digits of the SHA-256 of what `tracelens route` printed before a cluster was assumed.
BEFORE = "f3942e6640488aaa"


def test_the_rules_of_the_mesh_and_its_figures_ask_for_the_mesh_of_the_original_simulator(capsys):
    assert main(["route", "--rules", "mesh"]) == 0
    found = capsys.readouterr()
    assert hashlib.sha256(found.out.encode()).hexdigest()[:16] == BEFORE
    assert found.err == ""
    assert main(["route", "--rules", "default"]) == 0
    former = capsys.readouterr()
    assert (former.out, former.err) == (found.out, "hint: --rules default is called --rules mesh now\n")
    assert main(["route", *words(TEST)]) == 0
    assert "not a network of today: give --cluster" in capsys.readouterr().out.splitlines()[-1]
    assert main(["route", "--ranks-per-node", "4"]) == 0
    assert "full mesh" in capsys.readouterr().out
    assert main(["route", "--rules", "mesh", "--cluster", "dgx-h100"]) == 2
    assert "--rules mesh has no cluster" in capsys.readouterr().err


def test_a_cluster_gives_text_workbook_picture_and_json(tmp_path, capsys):
    files = [tmp_path / f"route.{ending}" for ending in ("xlsx", "svg", "json")]
    command = ["route", *words({"experts": 64, "topk": 4, "ranks": 16, "tokens": 2048, "skew": "zipf:1.1"})]
    command += ["--cluster", "dgx-h100", *[word for file in files for word in ("-o", str(file))]]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "EPLB with 80 slots" in out
    assert " µs in fp8_e4m3fn; GB/s per rank: effective" in out
    assert " µs in bf16; GB/s per rank: effective" in out
    assert load_workbook(files[0]).sheetnames == ["summary", "phases", "ranks", "experts", "traffic_bytes"]
    assert files[1].read_text().count("<title>") == 16 * 16
    summary = load_workbook(files[0])["summary"]
    assert all(
        row[2]
        for row in summary.iter_rows(min_row=2, values_only=True)
        if row[0] not in ("experts", "ranks", "ranks_per_node")
    )
    assert json.loads(files[2].read_text())["summary"]["ranks"] == 16
    first = files[0].read_bytes()
    assert main(command) == 0
    assert files[0].read_bytes() == first


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topk": 200}, "top-k 200 needs at least as many experts, there are 128"),
        (
            {"packet-bytes": 20_000, "rules": "mesh"},
            "packet size 20000 bytes exceeds the NIC limit of 10000 bytes per round",
        ),
        ({"ranks": 0}, "ranks must be a number of at least 1, got 0"),
        ({"tokens": 0}, "tokens must be a number of at least 1, got 0"),
        ({"inter-gb-s": 1}, "--inter-gb-s needs --ranks-per-node"),
        ({"cluster": "dgx-h1000"}, "did you mean dgx-h100"),
        ({"rules": "original", "layers": 3}, "--rules original does not support --layers"),
        ({"rules": "original", "skew": "uniform"}, "--rules original does not support --skew"),
        ({"log": "x.txt", "cluster": "dgx-h100"}, "--log records the packets of a mesh"),
        ({"output": "x.pdf"}, "must end in .json, .xlsx, .svg"),
        ({"link-gb-s": 100}, "--ranks-per-node, --link-gb-s and --inter-gb-s"),
        ({"tokens": 10**13}, "exceed 2,000,000,000 routings; use fewer"),
        ({"best-groups": 2}, "--best-groups needs --groups"),
        ({"slots": 136, "dispatch": "direct", "rules": "mesh"}, "only a cluster has --dispatch, --slots; name one"),
        ({"cluster": "dgx-h100", "links": 2}, "only a mesh has --links; leave out --cluster"),
        ({"intra-bytes-per-ms": "inf"}, "intra_bytes_per_ms must be a number of at least 0, got inf"),
    ],
)
def test_a_bad_parameter_is_one_sentence(given, message, capsys):
    assert main(["route", *words(given)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_key_that_nothing_reads_is_named(tmp_path, capsys):
    config = tmp_path / "mine.toml"
    config.write_text("NUM_EXPERT = 8\n", encoding="utf-8")
    assert main(["route", "--config", str(config)]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_a_map_places_experts_that_do_not_divide(tmp_path, capsys):
    mapping = tmp_path / "map.csv"
    mapping.write_text("0\n0\n1\n", encoding="utf-8")
    command = ["route", *words({"experts": 3, "ranks": 2, "topk": 1, "tokens": 60, "skew": "uniform"})]
    assert main([*command, "--placement", str(mapping), "--format", "json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert 30 <= ranks[0]["routings"] <= 50
    assert sum(r["routings"] for r in ranks) == 60


def test_measured_exchanges_are_shown_op_by_op_and_never_as_formulas(tmp_path, capsys, repository):
    path = tmp_path / "c.xlsx"
    for name in ("rank0.json.gz", "rank5.json.gz"):
        (tmp_path / "job").mkdir(exist_ok=True)
        shutil.copy(repository / "example_traces" / "moe_ep8" / name, tmp_path / "job")
    command = ["route", *words({"experts": 64, "topk": 4, "ranks": 8, "tokens": 8192, "cluster": "mi300x"})]
    assert main([*command, "--compare", str(tmp_path / "job"), "-o", str(path)]) == 0
    out = capsys.readouterr().out
    assert "DeepEPDispatch: 12 calls in 2 traces, measured" in out
    cells = [cell for row in load_workbook(path)["comparison"].iter_rows() for cell in row]
    assert {cell.data_type for cell in cells} == {"s", "n"}


@pytest.mark.sweep
def test_an_exchange_without_sizes_is_measured_and_not_predicted(tmp_path, capsys, repository):
    trace = json.loads(gzip.decompress((repository / "example_traces" / "moe_ep8" / "rank0.json.gz").read_bytes()))
    for event in trace["traceEvents"]:
        if event["name"].startswith("DeepEP"):
            event["args"].pop("Input Dims", None)
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    command = ["route", *words({"experts": 64, "topk": 4, "ranks": 8, "tokens": 8192, "cluster": "mi300x"})]
    assert main([*command, "--compare", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.count("not predicted: no sizes") == 4
    assert "inf" not in out


def test_drift_needs_steps(capsys):
    assert main(["route", "--cluster", "mi300x", "--drift", "0.5"]) == 2
    assert "--steps" in capsys.readouterr().err


def test_traces_of_another_group_are_not_compared(capsys, repository):
    command = ["route", *words({"experts": 64, "topk": 4, "ranks": 16, "tokens": 8192, "cluster": "mi300x"})]
    assert main([*command, "--compare", str(repository / "example_traces" / "moe_ep8")]) == 2
    assert "its expert-parallel group has 8 ranks, but the prediction 16" in capsys.readouterr().err


def test_an_op_named_like_a_formula_stays_text(tmp_path):
    result = route_mesh(MeshScenario(routing=Routing(tokens=64, experts=16, topk=2, ranks=4)))
    frames = {"comparison": pd.DataFrame({"op": ["=1+1"], "calls": [3]})}
    write_route(dataclasses.replace(result, frames={**result.frames, **frames}), tmp_path / "r.xlsx")
    cell = load_workbook(tmp_path / "r.xlsx")["comparison"]["A2"]
    assert (cell.value, cell.data_type) == ("=1+1", "s")


def test_a_cluster_takes_what_a_configuration_says_and_names_what_it_has_no_use_for(tmp_path, capsys):
    config = tmp_path / "mine.toml"
    config.write_text("HOT_RATIO = 0.1\nHOT_WEIGHT = 0.9\nNUM_LINKS = 2\n", encoding="utf-8")
    assert main(["route", "--cluster", "h100-sxm", "--config", str(config), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["summary"]["expert_imbalance"] > 8
    assert "h100-sxm in its standard node, dgx-h100" in err
    assert "without effect here: links; only a mesh has them" in err


def test_the_old_name_of_dispatch_does_the_same_with_a_hint(capsys):
    cluster = {"cluster": "dgx-h100", "tokens": 64, "experts": 16, "topk": 2, "ranks": 16}
    assert main(["route", *words({**cluster, "dispatch": "direct"})]) == 0
    new = capsys.readouterr()
    assert main(["route", *words({**cluster, "way": "direct"})]) == 0
    old = capsys.readouterr()
    assert old.out == new.out
    assert old.err == "hint: --way is called --dispatch now\n" + new.err


def test_the_old_name_of_the_original_rules_does_the_same_with_a_hint(capsys):
    assert main(["route", "--rules", "original", *words(TEST)]) == 0
    new = capsys.readouterr()
    assert "(original rules)" in new.out
    assert main(["route", "--rules", "seed", *words(TEST)]) == 0
    old = capsys.readouterr()
    assert (old.out, old.err) == (new.out, "hint: --rules seed is called --rules original now\n" + new.err)


def test_the_function_takes_what_the_command_takes(capsys):
    shape = {"cluster": "dgx-h100", "tokens": 64, "experts": 16, "topk": 2, "ranks": 16}
    given = {"dispatch_dtype": "bf16", "groups": 4, "best_groups": 2, "capacity": 1.5}
    assert (
        main(
            [
                "route",
                *words({**shape, **{name.replace("_", "-"): value for name, value in given.items()}}),
                "--format",
                "json",
            ]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)["summary"]
    assert tracelens.route(**shape, **given).summary["dispatch_us"] == pytest.approx(said["dispatch_us"])
    assert tracelens.route(**shape, way="direct").summary["way"] == "direct"


def test_times_that_no_measurement_stands_behind_say_so(tmp_path, capsys):
    arguments = ["--experts", "64", "--topk", "4", "--ranks", "16", "--tokens", "1024", "--cluster", "dgx-h200"]
    paths = [tmp_path / name for name in ("r.json", "r.html")]
    assert main(["route", *arguments, *(word for path in paths for word in ("-o", str(path)))]) == 0
    assert "expected error is unknown" in capsys.readouterr().out
    assert json.loads(paths[0].read_text())["summary"]["expected_error_percent"] is None
    assert "expected error is unknown" in paths[1].read_text()


MESH = ["route", "--rules", "mesh", "--experts", "128", "--tokens", "1024", "--topk", "8", "--ranks", "8"]


def test_an_even_load_by_the_original_rules_stands_beside_the_closed_form(capsys):
    """10,240 tokens: 10,240 x 8 / 64 x 9 = 11,520 bytes per pair; packets of 18 in 90 B/ms fill a link: 128 rounds."""
    more = ["--tokens", "10240", "--packet-bytes", "18", "--intra-bytes-per-ms", "90", "--rules", "original"]
    assert main([*MESH, *more, "--skew", "balanced", "--initial-delay-ms", "3ms", "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    # both directions share a link: 2 x 11,520 / 90 rounds of 2 + 5 x (1 + 18 / 90) ms, and 3 ms once
    assert summary["rounds"] == summary["formula_rounds"] == 256
    assert summary["formula_round_ms"] == pytest.approx(2 + 5 * 1.2)
    assert summary["time_ms"] == pytest.approx(summary["formula_ms"]) == pytest.approx(3 + 256 * 8)
    assert summary["formula_is_exact"] is True
    assert summary["printed_round_ms"] == pytest.approx((3 + 2 + 5) * 1.2)
    assert summary["printed_ms"] == pytest.approx(256 * 12)


def test_the_closed_form_is_a_bound_where_its_conditions_do_not_hold(capsys):
    assert main(MESH) == 0
    printed = capsys.readouterr().out
    assert "by the closed form at least, its conditions do not hold" in printed
    assert "also prints" not in printed
    assert main([*MESH, "--rules", "original"]) == 0
    assert "the original's text also prints rounds of 8.4 ms" in capsys.readouterr().out
    assert main([*MESH, "--rules", "original", "--skew", "zipf:1.1"]) == 2


@pytest.mark.parametrize("more", [[], ["--nic-bytes-per-round", "300"], ["--links", "2"], ["--hidden", "64"]])
def test_the_log_of_the_default_rules_adds_up_to_the_answer(more, tmp_path, capsys):
    log = tmp_path / "rounds.txt"
    words = ["route", "--experts", "16", "--tokens", "200", "--topk", "2", "--ranks", "4", *more]
    assert main([*words, "--log", str(log), "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)["summary"]
    text = log.read_text().partition("\nCOMBINE\n")[0]
    rounds = re.findall(r"ACTIVE LINKS: (.*)", text)
    links = [link for each in rounds for of in ast.literal_eval(each).values() for some in of.values() for link in some]
    assert len(rounds) == summary["rounds"]
    assert sum(packets for packets, _ in links) == summary["packets"]
    assert sum(nbytes for _, nbytes in links) == summary["moved_bytes"]
    assert float(re.findall(r"COMM TIME: (.*) ms", text)[-1]) == pytest.approx(summary["time_ms"])
    for nic in re.findall(r"NIC MAP: (.*)", text):
        assert sum(sent for sent, _ in ast.literal_eval(nic).values()) == sum(
            got for _, got in ast.literal_eval(nic).values()
        )
    assert (more == ["--hidden", "64"]) is ("COMBINE" in log.read_text())
