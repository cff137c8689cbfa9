"""A device file that is wrong does not load, and says in one sentence why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.hardware import HardwareSpec, common
from tracelens.types.dtypes import DType

MINIMAL = """
vendor = "acme"
[matrix.bf16]
peak_tflops_s = 100
source = "acme data sheet"
[hbm]
peak_tb_s = 1.5
source = "acme data sheet"
"""


def load(folder, text):
    path = folder / "my_chip.toml"
    path.write_text(text, encoding="utf-8")
    return HardwareSpec.load(path)


def test_a_minimal_file_loads_and_leaves_the_rest_unknown(tmp_path):
    spec = load(tmp_path, MINIMAL)
    assert (spec.name, spec.label, spec.vendor) == ("my_chip", "my_chip", "acme")
    assert spec.rate("matrix", DType.BF16).peak_tflops_s == 100
    assert spec.hbm.peak_tb_s == 1.5
    assert (spec.link, spec.compute_units, spec.clock_mhz, spec.lds_kib, spec.tdp_w) == (None,) * 5
    assert (spec.hbm.achievable_tb_s, spec.hbm.capacity_gb) == (None, None)


def test_a_path_as_text_loads_too(tmp_path):
    load(tmp_path, MINIMAL)
    assert HardwareSpec.load(str(tmp_path / "my_chip.toml")).name == "my_chip"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("peak_tb_s = 1.5", 'peak_tb_s = "8,0"', 'my_chip.toml: hbm.peak_tb_s must be a number above 0, got "8,0"'),
        ("peak_tb_s = 1.5", "peak_tb_s = 0", "my_chip.toml: hbm.peak_tb_s must be a number above 0, got 0"),
        ("peak_tb_s = 1.5", "peak_tb_s = 5e-324", "my_chip.toml: hbm.peak_tb_s must be a number above 0, got 5e-324"),
        ("peak_tb_s = 1.5", "peak_tb_s = true", "my_chip.toml: hbm.peak_tb_s must be a number above 0, got true"),
        ("peak_tb_s = 1.5", "peak_tb_s = inf", "my_chip.toml: hbm.peak_tb_s must be a number above 0, got inf"),
        (
            "peak_tb_s = 1.5",
            "tb_s = 1.5\npeak_tb_s = 1.5",
            "my_chip.toml: hbm.tb_s is not a key of a device file; did you mean hbm.peak_tb_s?",
        ),
        (
            'peak_tb_s = 1.5\nsource = "acme data sheet"',
            "peak_tb_s = 1.5",
            "my_chip.toml: hbm.source must say where the figure comes from, but is missing",
        ),
        (
            "peak_tb_s = 1.5",
            "peak_tb_s = 1.5\ncapacity_gb = 80",
            "my_chip.toml: hbm.capacity_source must say where the figure comes from, but is missing",
        ),
        (
            "peak_tflops_s = 100",
            'peak_tflops_s = 100\nachievable_tflops_s = 101\nachievable_source = "x"',
            "my_chip.toml: matrix.bf16.achievable_tflops_s must not be above peak_tflops_s 100, got 101",
        ),
        (
            "peak_tflops_s = 100",
            "peak_tflops_s = 100\nachievable_tflops_s = 80",
            "my_chip.toml: matrix.bf16.achievable_source must say where the figure comes from, but is missing",
        ),
        ("peak_tflops_s = 100", "", "my_chip.toml: matrix.bf16.peak_tflops_s must be a number above 0, but is missing"),
        ("[matrix.bf16]", "[matrix.bf61]", "my_chip.toml: matrix.bf61 is not a key of a device file; did you mean"),
        ('vendor = "acme"', "", 'my_chip.toml: vendor must name who makes the device, e.g. "amd", but is missing'),
        ('vendor = "acme"', 'vendor = "acme"\naliases = "x"', 'my_chip.toml: aliases must be a list of strings, got "x"'),
        ('vendor = "acme"', 'vendor = "acme"\nhmb = 1', "my_chip.toml: hmb is not a key of a device file; did you mean hbm?"),
        ('vendor = "acme"', "vendor = acme", "is not a TOML file"),
        ('vendor = "acme"', 'vendor = "acme"\nbased_on = "h10"', "my_chip.toml: based_on must be a name of tracelens devices list, got 'h10'"),
        ("[matrix.bf16]", '[calibrated]\nlike = "h10"\n[matrix.bf16]', "my_chip.toml: calibrated.like must be a name of"),
        ("[matrix.bf16]", '[calibrated.gemm.bf16]\nkernel = "cublas"\nfitted_on = "x"\n[matrix.bf16]', "my_chip.toml: calibrated.gemm.bf16.matrix_efficiency must be a number above 0, but is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_file_key_and_value(tmp_path, old, new, message):
    assert old in MINIMAL
    with pytest.raises(InputError) as error:
        load(tmp_path, MINIMAL.replace(old, new, 1))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml cannot be read: No such file"):
        HardwareSpec.load(tmp_path / "nowhere.toml")


CORES = """
[chip.compute_units]
count = 132
source = "x"
[matrix_cores]
per_unit = 4
clock_mhz = 1830
source = "x"
fma_per_clock = { bf16 = 512 }
"""


def test_a_sparse_rate_does_not_load(tmp_path):
    # 132 x 4 x 512 x 2 x 1.83 GHz = 989.4; data sheets headline 1979 with 2:4 sparsity.
    with pytest.raises(InputError) as error:
        load(tmp_path, MINIMAL.replace("100", "1979") + CORES)
    assert str(error.value) == (
        "my_chip.toml: matrix.bf16.peak_tflops_s is 1979, but units x matrix cores x FMA x 2 x clock give 989.4"
        " (twice the dense rate: is it the data sheet's 2:4-sparse one?)"
    )


@pytest.mark.parametrize(("rate", "loads"), [(989.4, True), (1019, True), (1020, False), (960, True), (958, False)])
def test_three_percent_beside_the_arithmetic_is_the_limit(tmp_path, rate, loads):
    text = MINIMAL.replace("100", str(rate)) + CORES
    if loads:
        assert load(tmp_path, text).matrix["bf16"].peak_tflops_s == rate
    else:
        with pytest.raises(InputError, match=r"give 989\.4"):
            load(tmp_path, text)


def test_the_dense_rates_of_the_package_follow_from_its_arithmetic():
    assert HardwareSpec.load("h100-sxm").matrix_cores.tflops_s("bf16", 132) == pytest.approx(989.4, rel=1e-4)
    assert HardwareSpec.load("mi300x").matrix_cores.tflops_s("bf16", 304) == pytest.approx(1307.4, rel=1e-4)
    assert HardwareSpec.load("mi355x").matrix_cores.tflops_s("bf16", 256) == pytest.approx(2516.6, rel=1e-4)


def test_fp32_matrix_work_runs_at_the_vector_rate_on_nvidia():
    h100 = HardwareSpec.load("h100-sxm")
    assert "fp32" not in h100.matrix
    assert h100.rate("matrix", DType.FP32) == h100.vector["fp32"]
    mi300x = HardwareSpec.load("mi300x")
    assert mi300x.rate("matrix", DType.FP32) == mi300x.matrix["fp32"]
    assert HardwareSpec.load("mi350x").rate("matrix", DType.FP32) is None


def test_a_rate_that_is_not_in_the_file_is_unknown():
    mi300x = HardwareSpec.load("mi300x")
    assert mi300x.rate("vector", DType.BF16) is None
    assert mi300x.rate("matrix", DType.INT64) is None
    assert mi300x.rate("matrix", None) is None
    assert mi300x.rate("none", DType.BF16) is None
    assert HardwareSpec.load("mi355x").rate("matrix", DType.TF32) is None


def test_every_fp8_format_has_the_same_rate():
    h100 = HardwareSpec.load("h100-sxm")
    assert {h100.rate("matrix", d).peak_tflops_s for d in DType if d.rate == "fp8"} == {1978.9}


@given(st.lists(st.sampled_from(HardwareSpec.names()), min_size=1, max_size=4))
def test_common_figures_are_those_of_every_device(names):
    specs = [HardwareSpec.load(name) for name in names]
    agreed = common(specs)
    for engine in ("matrix", "vector"):
        for key, rate in getattr(agreed, engine).items():
            assert all(getattr(spec, engine)[key].peak_tflops_s == rate.peak_tflops_s for spec in specs)
            if rate.achievable_tflops_s is not None:
                assert all(getattr(s, engine)[key].achievable_tflops_s == rate.achievable_tflops_s for s in specs)
    if agreed.hbm is not None and agreed.hbm.peak_tb_s is not None:
        assert all(spec.hbm.peak_tb_s == agreed.hbm.peak_tb_s for spec in specs)
    if agreed.link is not None:
        assert all(spec.link.gb_s == agreed.link.gb_s for spec in specs)
    assert agreed.match is None
