"""The published code's files: systems, results and NCCL fits; its links' efficiencies; a layer as objects."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracelens as tl
from tracelens.cli import main
from tracelens.errors import InputError, UsageError
from tracelens.laboratory.paper_rules import PaperRules
from tracelens.laboratory.paper_systems import PaperSystem, load_shape, load_system, paper_system, read_system
from tracelens.laboratory.published_results import read_results
from tracelens.predict.projection.search.systems import Figures

A100 = {
    "matrix_flops_fp16": 312, "vector_flops_fp32": 19.5, "vector_flops_fp16": 78, "hbm_bandwidth": 1555,
    "hbm_capacity": 80, "nvlink_bandwidth": 300, "nvlink_eff": 0.7, "nvlink_latency": 2.5e-6, "ib_bandwidth": 25,
    "ib_eff": 0.7, "ib_latency": 5e-6, "nvlink_size": 4, "nic_factor": 1, "empirical": False, "summa_nb": 4,
    "element_size": 2e-9, "mask_element_size": 1e-9, "flops_units": 1e-12,
}  # fmt: skip
WORDS = ["search", "--model", "gpt3", "--gpus", "64,512", "--global-batch", "256", "--rules", "paper", "--strategy"]


def config(tmp_path: Path, **changed: Any) -> Path:
    path = tmp_path / "config-A100.json"
    path.write_text(json.dumps({**A100, **changed}))
    return path


def test_a_system_file_is_the_published_system(tmp_path: Path) -> None:
    assert read_system(config(tmp_path)) == PaperSystem.load("A100", domain=4)
    found = tl.search("gpt3", str(config(tmp_path)), [512], 256, rules="paper", strategy="1d")
    same = tl.search("gpt3", "a100-nvs4", [512], 256, rules="paper", strategy="1d")
    assert found["t"].tolist() == same["t"].tolist()
    assert load_system(str(config(tmp_path))).device.name == "a100-of-the-paper"


def test_a_system_is_written_as_it_is_read(tmp_path: Path) -> None:
    written = tmp_path / "config-H200.json"
    assert main([*WORDS, "1d", "--cluster", "h200-nvs8", "--save-system", str(written)]) == 0
    assert read_system(written) == PaperSystem.load("H200", domain=8)
    assert set(json.loads(written.read_text())) == set(A100) - {"vector_flops_fp32"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hbm_capacity": "much"}, "hbm_capacity must be a number"),
        ({"nvlink_eff": 1.5}, "nvlink_eff must be a number from .* to 1"),
        ({"empirical": True}, "empirical needs the NCCL fits, which are not at"),
    ],
)
def test_what_is_no_system_is_said(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_system(config(tmp_path, **changed))
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="it has no nvlink_bandwidth"):
        read_system(path)


def test_a_system_of_no_known_device_is_for_the_published_rules(tmp_path: Path) -> None:
    path = config(tmp_path).rename(tmp_path / "mine.json")
    assert paper_system(str(path)).name == "mine"
    with pytest.raises(UsageError, match="or use --rules paper"):
        load_system(str(path))


@pytest.mark.parametrize("strategy", ["1d", "2d", "2d-seqp"])
def test_results_are_written_as_the_published_code_does_and_read_again(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "exec.npy"
    words = [*WORDS, strategy, "--cluster", "h200-nvs8"]
    assert main([*words, "-o", str(path)]) == 0
    ((nvs, best, worst, counts, configs),) = np.load(path, allow_pickle=True)
    assert (nvs, counts.tolist(), len(configs)) == (8, [64, 512], 2)
    throughput, memory, configuration, statistics = configs[1][0]
    assert best[1] == throughput >= worst[1]
    assert statistics["mem"] == memory
    assert configuration["dp"] * configuration["tp"] * configuration["pp"] == 512
    assert throughput == pytest.approx(256 / statistics["t"])
    assert ("nb" in configuration) is (strategy == "2d")
    read = read_results(path)
    assert read["throughput"].tolist() == [each[0] for of_count in configs for each in of_count]
    capsys.readouterr()
    assert main([*words, "--compare", str(path)]) == 0
    printed = capsys.readouterr().out
    assert f"{len(read)} of {len(read)} published configurations are of device counts that were searched" in printed
    assert "columns agree within 1e-9; the largest difference is 0.0e+00" in printed


def test_a_one_dimensional_file_of_the_published_code_has_one_degree(tmp_path: Path) -> None:
    """Its 1d results name the degree ``tp`` and its members in a domain ``nv_tp``."""
    entry = (6.5, 40.0, {"dp": 2, "tp": 4, "pp": 8, "mbs": 1}, {"t": 39.0, "nv_tp": 4, "nv_dp": 1, "nv_pp": 1})
    plots = np.empty((1, 5), object)
    plots[0] = [4, [6.5], [6.5], np.array([64]), [[entry]]]
    np.save(tmp_path / "exec_1d.npy", plots, allow_pickle=True)
    (row,) = read_results(tmp_path / "exec_1d.npy").to_dict("records")
    assert row == {
        "nvs": 4, "n_gpus": 64, "rank": 0, "throughput": 6.5, "t": 39.0, "nv_tp1": 4, "nv_dp": 1, "nv_pp": 1,
        "dp": 2, "tp": 4, "pp": 8, "mbs": 1, "mem": 40.0, "tp1": 4, "tp2": 1,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["4", [4], {"a": 1}, None])
def test_a_configuration_that_is_no_number_is_said(wrong: Any, tmp_path: Path) -> None:
    plots = np.empty((1, 5), object)
    plots[0] = [4, [6.5], [6.5], np.array([64]), [[(6.5, 40.0, {"dp": 2, "tp": wrong}, {"t": 39.0})]]]
    np.save(tmp_path / "x.npy", plots, allow_pickle=True)
    with pytest.raises(
        InputError, match=r"x\.npy is not results of the published search .*'tp' of a configuration is .*, no number"
    ):
        read_results(tmp_path / "x.npy")


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("code ran",)


def test_results_that_hold_code_are_refused_and_do_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.npy"
    plots = np.empty(1, object)
    plots[0] = Harmful()
    np.save(path, plots, allow_pickle=True)
    with pytest.raises(InputError, match=r"it holds builtins\.print, which results do not need"):
        read_results(path)
    path.write_bytes(path.read_bytes()[:90] + pickle.dumps(1))
    with pytest.raises(InputError, match="is not results of the published search"):
        read_results(path)
    np.save(path, np.arange(3))
    with pytest.raises(InputError, match="it holds numbers, not configurations"):
        read_results(path)
    assert "code ran" not in capsys.readouterr().out


def test_files_of_results_have_one_strategy_and_published_rules(tmp_path: Path) -> None:
    path = str(tmp_path / "x.npy")
    assert main([*WORDS, "all", "--cluster", "h200-nvs8", "-o", path]) == 2
    corrected = ["search", "--model", "llama3-8b", "--cluster", "dgx-h100", "--gpus", "8", "--global-batch", "8"]
    assert main([*corrected, "-o", path]) == 2
    assert not Path(path).exists()


FITS = {
    "allgather": {"gpus_per_node_4": {"num_nodes_1": [200, 0.5, 23, 2], "num_nodes_4": [70, 0.9, 24, 1]}},
    "reducescatter": {"gpus_per_node_4": {"num_nodes_1": [210, 0.5, 23, 2], "num_nodes_2": [60, 0.9, 24, 1]}},
}


def test_collectives_by_measured_fits(tmp_path: Path) -> None:
    """0.5 GB: a sigmoid over log2(0.5 x 2^30) = 29. What has no fit, and broadcasts, keep the formula."""
    (tmp_path / "nccl.out").write_text(json.dumps(FITS))
    fitted, plain = read_system(config(tmp_path, empirical="nccl.out")), read_system(config(tmp_path))
    by_fit, by_formula = (
        PaperRules(shape=load_shape("gpt3"), strategy="1d", system=system).collective_s for system in (fitted, plain)
    )

    def rate(height: float, slope: float, center: float, base: float) -> float:
        return height / (1 + math.exp(-slope * (29 - center))) + base

    assert by_fit(0.5, 4, 4, "all_gather") == pytest.approx(0.5 / rate(200, 0.5, 23, 2), rel=1e-12)
    assert by_fit(0.5, 16, 4, "all_gather") == pytest.approx(0.5 / rate(70, 0.9, 24, 1), rel=1e-12)
    # eight domains were not measured: the nearest, 2, is
    assert by_fit(0.5, 32, 4, "reduce_scatter") == pytest.approx(0.5 / rate(60, 0.9, 24, 1), rel=1e-12)
    assert by_fit(0.5, 16, 4, "broadcast") == by_formula(0.5, 16, 4, "broadcast")
    assert by_fit(0.5, 1, 1, "all_gather") == by_fit(0.0, 4, 4, "all_gather") == 0
    with pytest.raises(UsageError, match="no all_gather of 8 devices in a domain"):
        by_fit(0.5, 8, 8, "all_gather")
    (tmp_path / "nccl.out").write_text('{"allgather": {"gpus_per_node_4": {"num_nodes_1": [1, 2]}}}')
    with pytest.raises(InputError, match="is not NCCL fits"):
        read_system(config(tmp_path, empirical="nccl.out"))


def test_the_fits_are_found_where_the_published_code_has_them(tmp_path: Path) -> None:
    folder = tmp_path / "measurements" / "comm"
    folder.mkdir(parents=True)
    (folder / "nccl-benchmark-21209538.out").write_text(json.dumps(FITS))
    (tmp_path / "systems").mkdir()
    assert read_system(config(tmp_path / "systems", empirical=True)).nccl is not None


def test_links_reach_a_share_of_their_rates_that_a_sweep_may_set(tmp_path: Path) -> None:
    system = paper_system("b200-nvs8", Figures(nvlink_eff=0.35, ib_eff=0.9))
    assert system == replace(
        PaperSystem.load("B200", domain=8),
        fast=replace(PaperSystem.load("B200", domain=8).fast, efficiency=0.35),
        slow=replace(PaperSystem.load("B200", domain=8).slow, efficiency=0.9),
    )
    tiers = load_system("dgx-h100", Figures(nvlink_eff=0.5)).topology.tiers  # type: ignore[union-attr]
    assert (
        tiers[0].link.rates.of("all_gather")
        == tiers[0].link.rates.of("all_reduce")
        == 0.5 * tiers[0].link.rates.peak_gb_s
    )
    with pytest.raises(UsageError, match="nvlink_eff is a share of the rate, at most 1"):
        Figures(nvlink_eff=1.2)
    path = tmp_path / "sweep.csv"
    assert main([*WORDS, "1d", "--cluster", "a100-nvs4", "--sweep", "ib_eff=0.35/0.7", "--executor", "serial", "-o", str(path)]) == 0  # fmt: skip
    lines = path.read_text().splitlines()
    assert "set_ib_eff" in lines[0]


def test_a_layers_operations_are_objects_to_look_at_and_change() -> None:
    """FC1 of GPT-3 1T over 8: 2048 x 3200 x (2 x 25600 - 1) FLOPs... per rank 102,400 / 8 = 12,800 columns."""
    layer = tl.layer("gpt3-1t", "b200-nvs8", tp=8)
    fc1 = layer["fc1"]
    assert fc1.forward.tflop == pytest.approx(2048 * 12_800 * (2 * 25_600 - 1) / 1e12)
    assert fc1.forward.compute_s == pytest.approx(20e-6 + fc1.forward.tflop / (0.8 * 2500))
    assert [kind for kind, _, _ in fc1.backward.messages] == ["reduce_scatter"]
    cost = layer.rules.layer(layer._keys())
    assert (layer.forward_s, layer.backward_s) == pytest.approx((cost.forward_s[0], cost.backward_s[0]))
    assert (layer.stored_gb, layer.weights_gb) == pytest.approx((cost.stored_gb[0], cost.weights_gb[0]))
    half = layer.but(shape={"ffn": 51_200})
    assert half["fc1"].forward.tflop == pytest.approx(fc1.forward.tflop / 2)
    assert layer.but(system={"matrix_tflops_s": 5000.0})["fc1"].seconds < fc1.seconds
    assert layer.but(attention="unfused").stored_gb > layer.stored_gb
    assert layer.but(tp1=16).weights_gb < layer.weights_gb
    assert layer.frame().loc["fc1", "forward_seconds"] == fc1.forward.seconds
    assert "grid 8 x 1" in repr(layer)


@pytest.mark.parametrize(
    ("given", "message"),
    [({"tp9": 1}, "no degree named 'tp9'"), ({"strategy": "3d"}, "no strategy named"), ({"tp": 0}, "at least 1")],
)
def test_a_layer_of_no_such_kind_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ = tl.layer("gpt3", "b200-nvs8", **given).operations
    with pytest.raises(UsageError, match="no operation named 'fc9'"):
        tl.layer("gpt3", "b200-nvs8")["fc9"]
