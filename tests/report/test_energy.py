"""Joules in a report: a worked example, sums, laws of overlap and limit, and what is unknown."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tracelens
from tests.conftest import examples
from tracelens import GEMM
from tracelens.analysis.analyze import Analysis, analyze
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.backends.roofline_and_tile import works
from tracelens.cli import main
from tracelens.comparison.whatif.what_if import what_if
from tracelens.hardware import HardwareSpec
from tracelens.hardware.power import idle_power, kernel_power, power_constants
from tracelens.laboratory.report_laws import energy_is_that_of_kernels_and_waiting_within_the_limit
from tracelens.perf_models.base import WorkColumns
from tracelens.report.terminal import verdict

H200 = {
    "id": 0,
    "name": "NVIDIA H200",
    "totalGlobalMem": 150_000_000_000,
    "computeMajor": 9,
    "computeMinor": 0,
    "numSms": 132,
}
MI300X = {"id": 0, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992, "numSms": 304, "warpSize": 64}
A100 = {
    "id": 0,
    "name": "NVIDIA A100-SXM4-80GB",
    "totalGlobalMem": 85_000_000_000,
    "computeMajor": 8,
    "computeMinor": 0,
    "numSms": 108,
}
#: (name, start, length in us, stream, of known work).
Kernel = tuple[str, float, float, int, bool]
N = 4096
STEP_US = 1000.0
ALONE: list[Kernel] = [("gemm", 100.0, 300.0, 7, True), ("gemm", 500.0, 300.0, 7, True)]


def recording(folder: Path, kernels: list[Kernel], *, device: dict[str, Any] = H200, steps: int = 1) -> Path:
    """Steps of ``STEP_US`` each, with these kernels; the host launches them at the beginning of the step."""
    sizes = {"Input Dims": [[N, N], [N, N]], "Input type": ["c10::BFloat16"] * 2}
    host, events = {"ph": "X", "pid": 1, "tid": 1}, list[dict[str, Any]]()
    for step in range(steps):
        base = STEP_US * step
        events.append(
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": base, "dur": STEP_US - 1}
        )
        for number, (name, start, length, stream, is_known) in enumerate(kernels):
            at, launched = base + 2 * number, {"correlation": 100 * step + number + 1}
            op = {"name": "aten::mm", "args": sizes} if is_known else {"name": "my::unknown"}
            events += [
                {**host, "cat": "cpu_op", **op, "ts": at, "dur": 1.5},
                {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 0.5, "dur": 0.5, "args": launched},
                {"ph": "X", "pid": 0, "tid": stream, "cat": "kernel", "name": name, "ts": base + start, "dur": length,
                 "args": {"stream": stream, "device": 0, **launched}},
            ]  # fmt: skip
    events.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{steps}", "ts": STEP_US * steps, "dur": 1})
    path = folder / "trace.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    return path


def analysis(folder: Path, kernels: list[Kernel], **more: Any) -> Analysis:
    found = analyze(
        load(recording(folder, kernels, **more)), AnalysisOptions(steps="0" if not more.get("steps") else None)
    )
    assert found.device is not None
    return found


def product_watts(time_us: float) -> float:
    """Of the recorded product, asked of the power model alone."""
    device = HardwareSpec.load("h200-sxm")
    constants = power_constants(device)
    assert constants is not None
    work = WorkColumns.of([GEMM(m=N, n=N, k=N)])
    ((_, part),) = works(work, device, np.array([time_us]))
    return float(kernel_power(constants, part).power_w[0])


def test_a_worked_example(tmp_path: Path) -> None:
    """Two products of 300 us in a step of 1000 us: their watts by hand, 600 us of them, and 400 us of idle."""
    constants = power_constants(HardwareSpec.load("h200-sxm"))
    assert constants is not None
    row = constants.families["gemm vllm"]
    picojoules = row.flop_pj["bf16"] * 2 * N**3
    picojoules += (row.terms.get("l2_pj", 0.0) + row.terms.get("hbm_pj", 0.0)) * 3 * N * N * 2
    asked_w = row.terms["active_w"] + (1e-6 * picojoules + row.terms.get("launch_uj", 0.0)) / 300.0
    room_w = constants.share * 700.0 - constants.idle_w
    watts = constants.idle_w + asked_w / (1 + (asked_w / room_w) ** row.sharpness) ** (1 / row.sharpness)

    report = tracelens.report(recording(tmp_path, ALONE))

    found = report.summary.energy
    assert found is not None
    assert found.energy_j is not None
    kernels_j, idle_j = watts * 600e-6, constants.idle_w * 400e-6
    assert found.kernels_j == pytest.approx(kernels_j)
    assert found.idle_j == pytest.approx(idle_j)
    assert found.energy_j == pytest.approx(kernels_j + idle_j)
    assert found.unknown_work_j == pytest.approx(0.0, abs=1e-12)
    assert found.power_w == pytest.approx((kernels_j + idle_j) / 1e-3)
    assert found.of_limit == pytest.approx(found.power_w / 700.0)
    (op,) = report.ops.to_dict("records")
    assert op["power_w"] == pytest.approx(watts)
    assert op["energy_j"] == pytest.approx(kernels_j)


def test_a_step_is_the_sum_of_its_kernels_and_idle(tmp_path: Path) -> None:
    kernels = [*ALONE, ("behind", 550.0, 400.0, 8, True), ("other", 960.0, 20.0, 7, True)]
    found = analysis(tmp_path, kernels, steps=3)
    by_kernel, steps = found.frames["kernel_summary"], found.frames["steps"]
    idle_j = idle_power(found.energy.constants) * steps["idle_us"].iloc[:3].sum() * 1e-6
    assert by_kernel["energy_j"].sum() + idle_j == pytest.approx(steps["energy_j"].iloc[:3].sum())
    assert steps["power_w"].iloc[0] == pytest.approx(steps["energy_j"].iloc[0] / (steps["duration_us"].iloc[0] * 1e-6))


def test_categories_ops_and_kernels_add_up_alike(tmp_path: Path) -> None:
    found = analysis(tmp_path, [*ALONE, ("behind", 550.0, 400.0, 8, True)], steps=2)
    sheets = ("ops_summary_by_category", "kernel_summary", "unified_perf_summary", "ops")
    sums = [found.frames[title]["energy_j"].sum() for title in sheets]
    assert sums == pytest.approx([sums[0]] * 4)


def test_the_headline_is_the_mean_step(tmp_path: Path) -> None:
    report = tracelens.report(recording(tmp_path, ALONE, steps=3))
    assert report.summary.energy is not None
    assert report.summary.steps is not None
    of_steps = report.result.frames["steps"]["energy_j"].dropna()
    assert report.summary.energy.energy_j == pytest.approx(of_steps.mean())


@pytest.mark.parametrize("streams", [2, 4, 8])
def test_kernels_at_once_never_exceed_the_limit(tmp_path: Path, streams: int) -> None:
    """Products that would each reach the limit, side by side for a whole step."""
    crowd: list[Kernel] = [(f"gemm{n}", 0.0, 990.0, n, True) for n in range(streams)]
    found = analysis(tmp_path, crowd)
    constants = found.energy.constants
    power_w = found.frames["steps"]["power_w"].iloc[0]
    assert constants.idle_w < power_w <= constants.share * constants.limit_w + 1e-9


def test_a_kernel_behind_another_adds_only_its_work(tmp_path: Path) -> None:
    """What runs behind is cheaper than alone, dearer than nothing: idle and active watts are there already."""
    small: list[Kernel] = [("gemm", 0.0, 900.0, 7, True)]
    (alone,) = analysis(tmp_path, small).energy.joules.power_w
    both = analysis(tmp_path, [*small, ("behind", 0.0, 900.0, 8, True)]).energy
    first, behind = sorted(both.joules.power_w.tolist(), reverse=True)
    assert first == pytest.approx(alone)
    assert 0 < behind < alone
    assert first == pytest.approx(product_watts(900.0) * 900e-6)


def test_never_below_idle(tmp_path: Path) -> None:
    found = analysis(tmp_path, [("gemm", 10.0, 5.0, 7, True)])
    constants = found.energy.constants
    assert found.frames["steps"]["energy_j"].iloc[0] >= constants.idle_w * STEP_US * 1e-6


def test_a_longer_wait_costs_idle_power(tmp_path: Path) -> None:
    """The same kernels with the second 100 us later on: the joules of the kernels stay."""
    apart = analysis(tmp_path, [ALONE[0], ("gemm", 600.0, 300.0, 7, True)])
    near = analysis(tmp_path, ALONE)
    assert apart.energy.joules.power_w == pytest.approx(near.energy.joules.power_w)


_KERNEL = st.tuples(
    st.just("gemm"),
    st.floats(10, 900),
    st.floats(1, 400),
    st.sampled_from([7, 8, 9]),
    st.sampled_from([True, True, False]),
)


#: The last kernel ends 158 us into the next step.
_BEYOND: list[Kernel] = [
    ("gemm", 16.0, 400.0, 9, True),
    ("gemm", 483.0, 318.0, 7, True),
    ("gemm", 830.0, 328.0, 8, True),
]


@example(kernels=_BEYOND, steps=2)
@settings(max_examples=examples(15), deadline=None)
@given(kernels=st.lists(_KERNEL, min_size=1, max_size=6), steps=st.integers(1, 3))
def test_any_recording_draws_between_waiting_and_the_limit_and_its_steps_add_up(
    kernels: list[Kernel], steps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = tracelens.report(recording(tmp_path_factory.mktemp("drawn"), kernels, steps=steps))
    assert list(energy_is_that_of_kernels_and_waiting_within_the_limit(found.result, found.summary)) == []


def test_little_unknown_work_widens_the_interval(tmp_path: Path) -> None:
    """50 of 1000 us: at the mean watts of the known kernels, and anywhere between idle and the limit."""
    report = tracelens.report(recording(tmp_path, [*ALONE, ("what", 850.0, 50.0, 7, False)]))
    found = report.summary.energy
    assert found is not None
    assert found.energy_j is not None
    assert found.low_j is not None
    assert found.high_j is not None
    assert found.known_share == pytest.approx(0.95)
    assert found.unknown_work_j == pytest.approx(found.kernels_j / 600e-6 * 50e-6)
    constants = power_constants(HardwareSpec.load("h200-sxm"))
    assert constants is not None
    spread = (constants.most * constants.limit_w - constants.idle_w) * 50e-6
    sure = tracelens.report(recording(tmp_path, ALONE)).summary.energy
    assert sure is not None
    assert sure.low_j is not None
    assert sure.high_j is not None
    assert (found.high_j - found.low_j) - (sure.high_j - sure.low_j) == pytest.approx(spread)


def test_much_unknown_work_leaves_the_sum_unknown(tmp_path: Path) -> None:
    report = tracelens.report(recording(tmp_path, [*ALONE, ("what", 820.0, 150.0, 7, False)]))
    found = report.summary.energy
    assert found is not None
    assert found.energy_j is None
    assert found.power_w is None
    assert found.per_token_j is None
    assert found.known_share == pytest.approx(0.85)
    assert found.kernels_j > 0
    assert "energy unknown: kernels of unknown work run 15 % of the time" in verdict(report.summary)
    assert np.isnan(report.result.frames["steps"]["energy_j"].iloc[0])


def test_an_op_of_unknown_work_has_no_watts(tmp_path: Path) -> None:
    report = tracelens.report(recording(tmp_path, [*ALONE, ("what", 850.0, 50.0, 7, False)]))
    ops = report.ops.set_index("name")
    assert np.isnan(ops.loc["my::unknown", "power_w"])
    assert np.isnan(ops.loc["my::unknown", "energy_j"])


@pytest.mark.parametrize("device", [MI300X, A100], ids=["MI300X", "A100"])
def test_a_device_without_energies_says_nothing(tmp_path: Path, device: dict[str, Any]) -> None:
    report = tracelens.report(recording(tmp_path, ALONE, device=device))
    assert report.summary.energy is None
    assert "energy" not in verdict(report.summary)
    assert "energy" not in json.loads(report.to_json())
    for title, frame in report.result.frames.items():
        assert not {"energy_j", "power_w"} & set(frame), title


def test_times_of_another_device_have_no_energy(tmp_path: Path) -> None:
    """Times of an MI300X beside an H200's limits are nobody's joules."""
    path = recording(tmp_path, ALONE, device=MI300X)
    assert tracelens.report(path, device="h200-sxm").summary.energy is None


def test_a_device_like_a_measured_one_says_whose_energies(tmp_path: Path) -> None:
    h100 = {**H200, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000}
    report = tracelens.report(recording(tmp_path, ALONE, device=h100))
    assert report.summary.energy is not None
    assert report.summary.energy.constants_of == "h200-sxm"
    assert "energies of h200-sxm" in " ".join(verdict(report.summary).split())


def test_json_has_energy_of_steps_categories_and_ops(tmp_path: Path) -> None:
    document = json.loads(tracelens.report(recording(tmp_path, ALONE)).to_json())
    energy = document["energy"]
    assert energy["energy_j"] == pytest.approx(energy["kernels_j"] + energy["unknown_work_j"] + energy["idle_j"])
    assert [each["name"] for each in energy["categories"]] == ["GEMM"]
    assert energy["categories"][0]["energy_j"] == pytest.approx(document["ops"][0]["energy_j"])


def test_joules_per_token_of_a_model(tmp_path: Path) -> None:
    report = tracelens.report(recording(tmp_path, ALONE), model="llama3-8b", batch=2, sequence=128)
    found = report.summary.energy
    assert found is not None
    assert found.energy_j is not None
    assert found.tokens == 256
    assert found.per_token_j == pytest.approx(found.energy_j / 256)


def test_csv_has_the_columns_of_the_sheets(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    assert main(["report", str(recording(tmp_path, ALONE)), "-o", str(folder), "--csv"]) == 0
    for name in ("ops", "steps", "kernel_summary", "ops_summary_by_category", "unified_perf_summary"):
        with (folder / "csv" / f"{name}.csv").open(encoding="utf-8") as file:
            assert "energy_j" in next(csv.reader(file)), name


def launched_late(folder: Path, kernels: list[Kernel], **more: Any) -> Path:
    """Three steps whose host launches each kernel right before it begins, and is in Python in between."""
    path = recording(folder, kernels, steps=3, **more)
    document = json.loads(path.read_text())
    events = [event for event in document["traceEvents"] if event["cat"] != "user_annotation"]
    for op, launch, kernel in zip(events[::3], events[1::3], events[2::3], strict=True):
        op["ts"], launch["ts"] = kernel["ts"] - 4, kernel["ts"] - 3
    path.write_text(json.dumps(document))
    return path


#: 420 of 1000 us, of which only the last kernel, of 20 us, is on the critical path.
WAITING: list[Kernel] = [("gemm", 20.0 + 190 * n, 100.0 if n < 4 else 20.0, 7, True) for n in range(5)]


def lower_clock(path: Path) -> list[str]:
    return [notice.text for notice in tracelens.report(path).summary.notices if notice.id == "lower_clock"]


def test_a_step_that_waits_for_the_host_takes_less_energy_at_a_lower_clock(tmp_path: Path) -> None:
    """Energy over 128 W goes with the clock's power of 0.7, and 0.8^0.7 is 0.855: 0.145 of it go; kernels on the path
    take 1/0.8 as long.
    """
    path = launched_late(tmp_path, WAITING)
    energy = tracelens.report(path).summary.energy
    assert energy is not None
    assert energy.energy_j is not None
    saved = (1 - 0.8**0.7) * (energy.energy_j - 128e-6 * STEP_US) / energy.energy_j
    (text,) = lower_clock(path)
    assert "kernels are 2.0 % of the critical path" in text
    assert f"takes {100 * saved:.1f} % less energy and at most 0.5 % longer" in text
    asked = what_if(path, gpu_clock=0.8)
    assert asked.energy is not None
    assert asked.after.step_us <= asked.before.step_us * 1.005
    assert asked.energy.after_j == pytest.approx(energy.energy_j * (1 - saved), rel=0.005)


@pytest.mark.parametrize(
    ("kernels", "device"),
    [
        ([(name, start, 180.0, stream, known) for name, start, _, stream, known in WAITING], H200),  # the GPU is busy
        ([(name, start, 80.0, stream, known) for name, start, _, stream, known in WAITING], H200),  # 8 % of the path
        ([("gemm", 20.0, 20.0, 7, True)], H200),  # little to save
        (WAITING, MI300X),  # nobody measured
        ([(name, start, length, stream, False) for name, start, length, stream, _ in WAITING], H200),  # unknown work
    ],
    ids=["busy", "on the path", "little", "unknown device", "unknown work"],
)
def test_no_lower_clock_is_advised_otherwise(tmp_path: Path, kernels: list[Kernel], device: dict[str, Any]) -> None:
    assert lower_clock(launched_late(tmp_path, kernels, device=device)) == []
