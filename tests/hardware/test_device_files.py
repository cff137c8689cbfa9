"""The device files of the package: complete, sourced, and equal to the collected figures."""

from __future__ import annotations

import csv
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.conftest import row_by_row
from tracelens.errors import UsageError
from tracelens.files.documents import normalized
from tracelens.hardware import HardwareSpec
from tracelens.hardware.spec import FOLDER

EXPECTED_NAMES = {
    "h100-sxm-96gb-hbm2e",
    *("a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"),
    *("h100-sxm", "h100-pcie", "h100-nvl", "h200-sxm", "h200-nvl", "h800-sxm", "h20-96gb", "gh200-96gb", "gh200-144gb"),
    *("b200", "b300", "gb200", "gb300", "rubin", "l4", "l20", "l40s", "v100-sxm-32gb", "rtx-4090", "rtx-pro-6000"),
    *("t4", "a10", "a10g", "a40", "rtx-a6000", "rtx-3090", "rtx-5090"),
    *(
        "v100-sxm-16gb",
        "v100-pcie-32gb",
        "v100-dgxs-32gb",
        "rtx-2080-ti",
        "gtx-1650",
        "mi308x",
        "a800-sxm-80gb",
        "h100-sxm-96gb",
    ),
    *("mi210", "mi250-gcd", "mi250x", "mi250x-gcd", "mi300a", "mi300x", "mi325x", "mi350x", "mi355x", "mi455x"),
    *("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu-v7x", "tpu-v7x-core", "gaudi2", "gaudi3"),
}
# Quantities of hardware_specs.csv -> key of HardwareSpec.figures(); rates are handled by their names.
PLACE = {
    "hbm_tb_s": "hbm.peak_tb_s",
    "hbm_gb": "hbm.capacity_gb",
    "visible_hbm_gib": "hbm.visible_gib",
    "link_gb_s": "link.gb_s",
    "p2p_gb_s": "link.p2p_gb_s",
    "compute_units": "chip.compute_units.count",
    "clock_mhz": "chip.clock.mhz",
    "l2_mib": "chip.l2.mib",
    "lds_or_smem_kib": "chip.lds.kib_per_unit",
    "mall_mib": "chip.mall.mib",
    "xcd": "chip.xcd.count",
    "tdp_w": "chip.power.tdp_w",
    "pcie_gb_s": "chip.pcie.gb_s",
    "c2c_gb_s": "chip.c2c.gb_s",
    "allreduce_busbw_gb_s": "busbw.all_reduce_gb_s",
    "allgather_busbw_gb_s": "busbw.all_gather_gb_s",
    "alltoall_busbw_gb_s": "busbw.all_to_all_gb_s",
    "ep_nvlink_gb_s": "ep.nvlink.gb_s",
    "ep_rdma_gb_s": "ep.rdma.gb_s",
    "ep_rdma_legacy_gb_s": "ep.rdma_legacy.gb_s",
    "ep_low_latency_gb_s": "ep.low_latency.gb_s",
}
LEFT_OUT = {
    "nic_gb_s",  # belongs to a cluster, not to the chip
}


def test_there_is_a_file_for_every_device():
    assert set(HardwareSpec.names()) == EXPECTED_NAMES


@row_by_row("name", sorted(EXPECTED_NAMES))
def test_every_figure_has_a_source_and_is_above_zero(name):
    figures = HardwareSpec.load(name).figures()
    assert figures
    assert [f.key for f in figures if not f.source.strip()] == []
    assert [f.key for f in figures if not f.value > 0] == []


@row_by_row("name", sorted(EXPECTED_NAMES))
def test_achievable_is_at_most_peak(name):
    spec = HardwareSpec.load(name)
    rates = [*spec.matrix.values(), *spec.vector.values()]
    assert [r for r in rates if r.achievable_tflops_s is not None and r.achievable_tflops_s > r.peak_tflops_s] == []
    assert all(r.tflops_s <= r.peak_tflops_s for r in rates)


def test_no_two_devices_share_a_name_or_alias():
    claimed = defaultdict(set)
    for spec in HardwareSpec.all():
        for spelling in (spec.name, *spec.aliases):
            claimed[normalized(spelling)].add(spec.name)
    assert {spelling: names for spelling, names in claimed.items() if len(names) > 1} == {}


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100_sxm", "h100-sxm"),
        ("H100-80GB-SXM", "h100-sxm"),
        ("NVIDIA H100", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h200_sxm", "h200-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("b200_sxm", "b200"),
        ("a100_sxm", "a100-sxm-80gb"),
        ("A100-40GB-SXM", "a100-sxm-40gb"),
        ("A100-80GB-SXM", "a100-sxm-80gb"),
        ("H800-SXM", "h800-sxm"),
        ("GB300", "gb300"),
        ("MI300X", "mi300x"),
        ("AMD Instinct MI300X", "mi300x"),
        ("AMD Instinct MI300X VF", "mi300x"),
        ("l40s", "l40s"),
    ],
)
def test_spellings_met_in_data_are_aliases(spelling, name):
    assert HardwareSpec.load(spelling).name == name


def test_an_unknown_name_proposes_a_close_one():
    with pytest.raises(UsageError, match=r"no device named 'mi30x'; did you mean .*mi300x"):
        HardwareSpec.load("mi30x")


def test_an_ambiguous_name_is_not_guessed():
    with pytest.raises(UsageError, match="no device named 'gh200'"):
        HardwareSpec.load("gh200")


def test_a_device_by_its_name_reads_one_file(monkeypatch):
    read = []
    original = Path.open
    monkeypatch.setattr(Path, "open", lambda self, *a, **k: (read.append(self.name), original(self, *a, **k))[1])
    for cached in ("_bundled", "_bundled_values"):
        HardwareSpec.load.__func__.__globals__[cached].cache_clear()
    HardwareSpec.load("mi300x")
    assert [name for name in read if name.endswith(".toml")] == ["mi300x.toml"]


def test_what_sources_disagree_about_is_marked():
    doubtful = {spec.name: spec.doubtful() for spec in HardwareSpec.all() if spec.doubtful()}
    fp64 = ("matrix.fp64.peak_tflops_s", "vector.fp64.peak_tflops_s")
    assert doubtful == {
        "b200": (*fp64, "chip.pcie.gb_s"),
        "b300": ("matrix.fp4.peak_tflops_s",),
        "gb200": fp64,
        "h100-nvl": ("chip.compute_units.count",),
        "h100-pcie": ("matrix.fp64.peak_tflops_s",),
        "h800-sxm": fp64,
        "mi308x": ("hbm.peak_tb_s",),
    }


def test_one_die_of_an_mi250x_is_half_the_package():
    whole, die = HardwareSpec.load("mi250x"), HardwareSpec.load("mi250x-gcd")
    assert {k: r.peak_tflops_s for k, r in die.matrix.items()} == {
        k: r.peak_tflops_s / 2 for k, r in whole.matrix.items()
    }
    assert die.hbm.peak_tb_s == whole.hbm.peak_tb_s / 2
    assert die.compute_units == whole.compute_units / 2 == 110


def test_best_shapes_and_factors_are_never_the_achievable_rate():
    h100 = HardwareSpec.load("h100-sxm")
    assert h100.best_shape["bf16"].value == 956.0
    assert h100.matrix["bf16"].achievable_tflops_s == 794.5
    assert h100.efficiency_factor["hbm"].value == 0.8
    assert h100.hbm.achievable_tb_s is None
    l40s = HardwareSpec.load("l40s")
    assert (l40s.best_shape["bf16"].value, l40s.matrix["bf16"].achievable_tflops_s) == (314.7, None)


def test_of_two_sustained_rates_the_better_is_achievable_and_the_other_is_kept():
    mi300x = HardwareSpec.load("mi300x")
    assert (mi300x.matrix["bf16"].achievable_tflops_s, mi300x.pytorch_sustained["bf16"].value) == (708, 668.4)


@pytest.mark.shared
def test_the_files_repeat_the_collected_figures(shared_traces):
    table = shared_traces.parent.parent / "reference" / "hardware_specs.csv"
    if not table.is_file():
        pytest.skip(f"{table} is not there")
    wrong, compared = [], 0
    with table.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        if row["quantity"] in LEFT_OUT or (row["device"], row["quantity"]) == ("MI355X", "tf32_matrix"):
            continue  # the MI355X has no tf32 instructions
        spec = HardwareSpec.load(row["device"])
        quantity, kind = row["quantity"], row["kind"]
        figures = defaultdict(set)
        for figure in spec.figures():
            figures[figure.key].add(figure.value)
        number_type, _, engine = quantity.rpartition("_")
        if quantity == "p2p_gb_s" and kind == "achievable":
            keys = ["link.p2p_achievable_gb_s"]
        elif quantity in PLACE:
            keys = [PLACE[quantity]]
        elif kind == "peak_dense":
            keys = [f"{engine}.{number_type}.peak_tflops_s"]
        elif kind == "achievable":
            keys = [f"matrix.{number_type}.achievable_tflops_s", f"pytorch_sustained.{number_type}.tflops_s"]
        elif kind == "best_shape":
            keys = [f"best_shape.{number_type}.tflops_s"]
        else:
            keys = [f"efficiency_factor.{number_type}.fraction", f"efficiency_factor.{number_type}_calculon.fraction"]
        compared += 1
        if float(row["value"]) not in set().union(*(figures[key] for key in keys)):
            wrong.append((row["device"], quantity, kind, row["value"]))
    assert wrong == []
    assert compared == 568 - 15 - 1
    collected = defaultdict(set)
    for row in rows:
        collected[HardwareSpec.load(row["device"]).name].add(float(row["value"]))
    figures_of = {name: HardwareSpec.load(name).figures() for name in collected}
    added = {(name, f.key) for name, figures in figures_of.items() for f in figures if f.value not in collected[name]}
    added_since = {"chip.pcie.gb_s", "chip.l2.mib", "matrix.tf32.peak_tflops_s", "hbm.visible_gib", "power.idle_w"}
    assert {key for _, key in added} <= added_since, "a known link, a cache, half of bf16, an L4, measured watts"


def test_every_file_starts_with_what_the_device_is_called():
    for path in FOLDER.glob("*.toml"):
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        assert list(values)[:3] == ["label", "vendor", "aliases"], path.name


def test_errors_of_the_device_files_are_those_that_the_estimation_page_sums_up(repository: Path) -> None:
    """docs/estimation_errors.csv has them per device; docs/estimation.md the range without L40S, and L40S."""
    page = (repository / "docs" / "estimation.md").read_text(encoding="utf-8").partition("## Measured errors")[2]
    titles = {"GEMM": "gemm", "context attention": "prefill", "generation attention": "decode",
              "latent attention, decoding": "latent", "experts": "moe"}  # fmt: skip
    head, _, *lines = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:1] == "|"
    )
    shown = {
        (titles[line[0]], name): line[i] for line in lines if line[0] in titles for i, name in enumerate(head) if i
    }
    means: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    with (repository / "docs" / "estimation_errors.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            device = tomllib.loads((FOLDER / f"{row['device']}.toml").read_text(encoding="utf-8"))
            mean = device["calibrated"][row["family"]][row["precision"]]["error_percent"]
            assert mean == float(row["mean_percent"]), row
            means[row["family"], row["precision"]][row["device"]] = mean
    for key, cell in shown.items():
        l40s = means[key].pop("l40s", None) if key in means else None
        rest = means[key].values()
        ranged = f"{min(rest)} to {max(rest)}" if rest else "-"
        assert cell.split("; ") == [ranged] + ([f"{l40s}"] if l40s is not None else []), key
    assert len(shown) == 20
