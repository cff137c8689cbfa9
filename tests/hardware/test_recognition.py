"""Which device a trace is from."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import recorded_traces, row_by_row
from tracelens.hardware import HardwareSpec, contradiction, recognize, spec
from tracelens.types.signature import DeviceProperties

GIB = 1 << 30


def properties(name, memory, major, minor, warp, units):
    return DeviceProperties(
        name=name, memory_bytes=memory, compute_major=major, compute_minor=minor, warp_size=warp, compute_units=units
    )


# name, totalGlobalMem, computeMajor, computeMinor, warpSize, numSms -> device, as real traces record them.
RECORDED = [
    (("NVIDIA H100 80GB HBM3", 85018279936, 9, 0, 32, 132), "h100-sxm"),
    (("NVIDIA A100-PG509-200", 42297524224, 8, 0, 32, 108), "a100-sxm-40gb"),
    (("Tesla V100-SXM2-32GB", 34079637504, 7, 0, 32, 80), "v100-sxm-32gb"),
    (("AMD Instinct MI300X", 206141652992, 9, 4, 64, 304), "mi300x"),
    (("AMD Instinct MI300X VF", 205571227648, 9, 4, 64, 304), "mi300x"),
    ((None, 206141652992, 9, 4, 64, 304), "mi300x"),
    (("Tesla V100-SXM2-16GB", 16945709056, 7, 0, 32, 80), "v100-sxm-16gb"),
    (("Tesla V100-PCIE-32GB", 34079637504, 7, 0, 32, 80), "v100-pcie-32gb"),
    (("Tesla V100-DGXS-32GB", 34084028416, 7, 0, 32, 80), "v100-dgxs-32gb"),
    (("NVIDIA GeForce RTX 2080 Ti", 11554586624, 7, 5, 32, 68), "rtx-2080-ti"),
    (("NVIDIA PG509-210", 84990623744, 8, 0, 32, 108), "a100-sxm-80gb"),
    (("NVIDIA H100 NVL", 99861463040, 9, 0, 32, 132), "h100-nvl"),
    (("NVIDIA B200", 191503138816, 10, 0, 32, 148), "b200"),
]
# TPUs record what JAX calls them, and no more.
TPUS = [
    ("TPU v4", "tpu-v4"), ("TPU v5 lite", "tpu-v5e"), ("TPU v5e", "tpu-v5e"), ("TPU v5", "tpu-v5p"),
    ("TPU v5p", "tpu-v5p"), ("TPU v6 lite", "tpu-v6e"), ("TPU v7x", "tpu-v7x-core"), ("TPU7x", "tpu-v7x-core"),
]  # fmt: skip
RECORDED += [((name, None, None, None, None, None), device) for name, device in TPUS]
# As the reference table of properties describes them.
DESCRIBED = [
    (("NVIDIA A100-SXM4-80GB", int(79.2 * GIB), 8, 0, 32, 108), "a100-sxm-80gb"),
    (("NVIDIA A100 80GB PCIe", int(79.2 * GIB), 8, 0, 32, 108), "a100-pcie-80gb"),
    (("NVIDIA A100-PCIE-40GB", int(39.4 * GIB), 8, 0, 32, 108), "a100-pcie-40gb"),
    (("NVIDIA H100 PCIe", int(79.1 * GIB), 9, 0, 32, 114), "h100-pcie"),
    (("NVIDIA H100 NVL", int(93.6 * GIB), 9, 0, 32, 132), "h100-nvl"),
    (("NVIDIA H100", int(95.0 * GIB), 9, 0, 32, 132), "h100-sxm-96gb"),
    (("NVIDIA A800-SXM4-80GB", int(79.3 * GIB), 8, 0, 32, 108), "a800-sxm-80gb"),
    (("NVIDIA GeForce GTX 1650", int(3.8 * GIB), 7, 5, 32, 14), "gtx-1650"),
    (("AMD Instinct MI308X", int(191.98 * GIB), 9, 4, 64, 80), "mi308x"),
    (("NVIDIA H800", int(79.2 * GIB), 9, 0, 32, 132), "h800-sxm"),
    (("NVIDIA L20", int(44.5 * GIB), 8, 9, 32, 92), "l20"),
    (("NVIDIA H20", int(95.0 * GIB), 9, 0, 32, 78), "h20-96gb"),
    (("NVIDIA H200", int(139.8 * GIB), 9, 0, 32, 132), "h200-sxm"),
    (("NVIDIA H200 NVL", int(139.8 * GIB), 9, 0, 32, 132), "h200-nvl"),
    (("NVIDIA GH200 480GB", int(94.5 * GIB), 9, 0, 32, 132), "gh200-96gb"),
    (("NVIDIA GB200", int(185 * GIB), 10, 0, 32, 148), "gb200"),
    (("NVIDIA B300 SXM6 AC", int(268.6 * GIB), 10, 3, 32, 148), "b300"),
    (("NVIDIA GB300", int(277.5 * GIB), 10, 3, 32, 152), "gb300"),
    (("NVIDIA L40S", int(44.4 * GIB), 8, 9, 32, 142), "l40s"),
    (("NVIDIA L4", int(22.034 * GIB), 8, 9, 32, 58), "l4"),
    (("Tesla T4", int(14930 / 1024 * GIB), 7, 5, 32, 40), "t4"),
    (("NVIDIA A10G", int(22587 / 1024 * GIB), 8, 6, 32, 80), "a10g"),
    (("NVIDIA A10", int(22.06 * GIB), 8, 6, 32, 72), "a10"),
    (("NVIDIA A40", int(44.4 * GIB), 8, 6, 32, 84), "a40"),
    (("NVIDIA RTX A6000", int(47.5 * GIB), 8, 6, 32, 84), "rtx-a6000"),
    (("NVIDIA GeForce RTX 3090", int(23.7 * GIB), 8, 6, 32, 82), "rtx-3090"),
    (("NVIDIA GeForce RTX 5090", int(31.4 * GIB), 12, 0, 32, 170), "rtx-5090"),
    (("AMD Instinct MI250X / MI250", int(63.98 * GIB), 9, 0, 64, 110), "mi250x-gcd"),
    (("AMD Instinct MI210", int(63.98 * GIB), 9, 0, 64, 104), "mi210"),
    ((None, int(255.98 * GIB), 9, 4, 64, 304), "mi325x"),
    ((None, int(127.5 * GIB), 9, 4, 64, 228), "mi300a"),
    (("AMD Instinct MI355X", int(287.98 * GIB), 9, 5, 64, 256), "mi355x"),
    (("AMD Instinct MI350X", int(287.98 * GIB), 9, 5, 64, 256), "mi350x"),
]


@row_by_row(("recorded", "name"), RECORDED + DESCRIBED)
def test_a_device_is_recognized_by_what_its_trace_records(recorded, name):
    found = recognize(properties(*recorded))
    assert found.device is not None, found.note
    assert (found.device.name, found.candidates) == (name, (name,))
    assert found.how.startswith("properties")


def test_the_same_properties_name_both_and_what_they_agree_on():
    found = recognize(properties("AMD Radeon Graphics", int(287.98 * GIB), 9, 5, 64, 256))
    assert found.device is None
    assert found.candidates == ("mi350x", "mi355x")
    assert "mi350x and mi355x, which agree on HBM 8 TB/s" in found.note
    assert "--device" in found.note
    assert found.agreed.hbm.peak_tb_s == 8.0
    assert found.agreed.matrix == {}


def test_an_mi210_and_a_die_of_an_mi250_agree_on_every_rate():
    found = recognize(properties("AMD Radeon Graphics", 68702699520, 9, 0, 64, 104))
    assert (found.device, found.candidates) == (None, ("mi210", "mi250-gcd"))
    assert found.agreed.matrix["bf16"].peak_tflops_s == 181.0
    assert found.agreed.hbm.peak_tb_s == 1.6


def test_an_h100_without_a_name_may_be_an_h800():
    found = recognize(properties(None, 85018279936, 9, 0, 32, 132))
    assert (found.device, found.candidates) == (None, ("h100-sxm", "h800-sxm"))
    assert found.agreed.matrix["bf16"].peak_tflops_s == 989.4
    assert found.agreed.link is None  # 450 and 200 GB/s


def test_a_name_that_fits_neither_of_two_decides_nothing():
    found = recognize(properties("NVIDIA A100X", int(79.3 * GIB), 8, 0, 32, 108))
    assert (found.device, found.candidates) == (None, ("a100-pcie-80gb", "a100-sxm-80gb"))


@pytest.mark.parametrize(
    "unknown",
    [
        ("Quadro RTX 4000", int(7.8 * GIB), 7, 5, 32, 36),
        ("NVIDIA GeForce RTX 3090 Ti", 25438126080, 8, 6, 32, 84),
        ("NVIDIA RTX 4500 Ada Generation", int(22.1 * GIB), 8, 9, 32, 60),  # an L4 has its memory and capability
        ("NVIDIA RTX 6000 Ada Generation", int(47.5 * GIB), 8, 9, 32, 142),  # an L40S its units, too
        ("Tesla V100-FHHL-16GB", 16945709056, 7, 0, 32, 80),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", int(19.5 * GIB), 8, 0, 32, 42),
        ("AMD Instinct MI100", 32 * GIB, 9, 0, 64, 120),
        ("AMD Instinct MI300X", 206141652992 // 8, 9, 4, 64, 38),  # one partition of eight
        ("NVIDIA H100 80GB HBM3", 85018279936, 9, 0, 64, 132),  # a vendor that contradicts the rest
    ],
)
def test_an_unknown_device_is_no_device_and_the_note_says_how_to_add_one(unknown):
    found = recognize(properties(*unknown))
    assert (found.device, found.candidates, found.how) == (None, (), "none")
    assert "no device file fits" in found.note
    assert "docs/devices.md" in found.note


def test_without_a_name_a_device_that_needs_one_is_only_a_candidate():
    found = recognize(properties(None, int(22.0 * GIB), 8, 9, 32, 58))
    assert (found.device, found.candidates, found.agreed) == (None, ("l4",), None)


@pytest.mark.parametrize("nothing", [None, DeviceProperties()])
def test_a_trace_without_properties_has_no_device(nothing):
    found = recognize(nothing)
    assert (found.device, found.candidates, found.how) == (None, (), "none")


def test_kernel_names_give_a_guess_and_never_a_device():
    found = recognize(None, kernel_names=["void cutlass_80_wmma", "ampere_sm80_x", "nvjet_sm90_tst", "Memset"])
    assert found.device is None
    assert found.how == "kernel names"
    assert {"h100-sxm", "h200-sxm", "h800-sxm"} <= set(found.candidates)
    assert "a100-sxm-80gb" not in found.candidates  # an H100 runs kernels built for an A100, not the reverse
    assert "probably one of" in found.note
    assert recognize(None, kernel_names=["Cijk_x_gfx942_y"]).candidates == ("mi300a", "mi300x", "mi308x", "mi325x")


@pytest.mark.parametrize("major", [None, *range(16)])
def test_no_device_is_missed_by_the_text_of_its_file(major):
    with_match = [spec for spec in HardwareSpec.all() if spec.match is not None]
    fitting = [spec for spec in with_match if major is None or spec.match.compute_major == major]
    assert list(HardwareSpec.of_architecture(major)) == fitting
    measured = [spec for spec in fitting if spec.power is not None]
    assert list(HardwareSpec.of_architecture(major, section="power")) == measured
    exact = [spec for spec in fitting if spec.match.compute_minor == 0]
    assert list(HardwareSpec.of_architecture(major, 0)) == exact


def test_properties_win_over_kernel_names():
    found = recognize(properties(*RECORDED[0][0]), kernel_names=["x_gfx942"])
    assert found.device.name == "h100-sxm"


@given(
    # TPUs say their name alone: neither warps nor a compute capability
    st.sampled_from([spec for spec in HardwareSpec.all() if spec.match is not None and spec.vendor != "google"]),
    st.floats(-0.2, 0.2),
    st.sampled_from([None, "", "AMD Radeon Graphics", "NVIDIA H100", "something"]),
)
def test_a_recognized_device_agrees_with_everything_recorded(spec, off, name):
    memory = int(spec.hbm.nominal_gib * (1 + off) * GIB)
    recorded = properties(
        name or None,
        memory,
        spec.match.compute_major,
        spec.match.compute_minor,
        64 if spec.vendor == "amd" else 32,
        spec.compute_units,
    )
    found = recognize(recorded)
    if found.device is not None:
        assert contradiction(found.device, recorded) is None
        assert found.device.vendor == spec.vendor
        assert -0.08 <= memory / GIB / found.device.hbm.nominal_gib - 1 <= 0.01
    assert (found.device is None) or found.candidates == (found.device.name,)


@pytest.mark.parametrize(
    ("device", "recorded", "words"),
    [
        ("mi300x", RECORDED[0][0], "mi300x is made by amd, the trace's device by nvidia"),
        ("mi250x", (None, 68702699520, 9, 0, 64, 110), "mi250x has 220 compute units, the trace's device 110"),
        ("a100-sxm-80gb", RECORDED[1][0], "a100-sxm-80gb has 80 GiB, the trace's device 39.4 GiB"),
        ("h100-sxm", RECORDED[0][0], None),
        ("gaudi3", RECORDED[0][0], "gaudi3 has 128 GiB, the trace's device 79.2 GiB"),
    ],
)
def test_a_chosen_device_that_contradicts_its_trace_is_said(device, recorded, words):
    assert contradiction(HardwareSpec.load(device), properties(*recorded)) == words


# Folder or file of ../shared/data/traces -> device; None: not recorded, or shared by several devices.
TRACES = {
    "h100/": "h100-sxm",
    "hta/amd_trace/": None,
    "hta/cpu_only/": None,
    "hta/critical_path/": "a100-sxm-40gb",
    "hta/nccl_parser_config/": "a100-sxm-40gb",
    "hta/triton_example/": "a100-sxm-40gb",
    "hta/ns_resolution_trace/": "v100-sxm-32gb",
    "hta/trace_filter/": None,
    "inference/": "mi300x",
    "mi300/": "mi300x",
    "perf_model/": "mi300x",
    "torch_compile_triton/": "mi300x",
}


@pytest.mark.shared
def test_the_device_of_every_real_trace(shared_traces):
    seen = set()
    for name in recorded_traces():
        folder = next((prefix for prefix in TRACES if name.startswith(prefix)), None)
        if folder is None:  # by its recorded name, below
            continue
        raw = gzip.decompress((shared_traces / name).read_bytes())
        at = raw.find(b'"deviceProperties"')
        text = raw[at : at + 20_000].decode("utf-8", "replace") if at >= 0 else "[]"
        entries = json.JSONDecoder().raw_decode(text[text.index("[") :])[0]
        found = {recognize(DeviceProperties.from_trace(entry)) for entry in entries} or {recognize(None)}
        assert {one.device.name if one.device else None for one in found} == {TRACES[folder]}, name
        seen.add(folder)
    assert seen == set(TRACES)


@pytest.mark.shared
def test_every_real_trace_that_records_a_device_has_its_device_file(shared_traces):
    """Except "AMD Radeon Graphics", which is what an MI210 and a die of an MI250 both record."""
    missing = {}
    for name in recorded_traces():
        with gzip.open(shared_traces / name) as file:
            head = file.read(20_000).decode("utf-8", "replace")
        start = head.find('"deviceProperties"')
        if start < 0:
            continue
        recorded, _ = json.JSONDecoder(strict=False).raw_decode(head, head.index("[", start))
        for each in recorded[:1]:
            keys = ("name", "totalGlobalMem", "computeMajor", "computeMinor", "warpSize", "numSms")
            found = recognize(properties(*(each.get(key) or None for key in keys)))
            if found.device is None and each["name"] != "AMD Radeon Graphics":
                missing[name] = found.note
    assert not missing


def test_recognition_sees_the_match_that_the_whole_file_has() -> None:
    for name in HardwareSpec.names():
        assert spec._bundled_match(name) == spec._bundled_values(name).get("match"), name
