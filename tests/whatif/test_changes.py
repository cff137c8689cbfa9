"""Each change by hand-made traces whose arithmetic is visible, and by laws."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import tracelens
from tests.analysis.conftest import Builder
from tests.conftest import RealTrace, part
from tests.report.test_energy import A100, Kernel, recording
from tracelens.analysis.analyze import analyze
from tracelens.analysis.attribution.calls import launch_floor_us
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace, load
from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.cli import main
from tracelens.comparison.whatif import plan
from tracelens.comparison.whatif.plan import Subject
from tracelens.comparison.whatif.what_if import WhatIf, what_if
from tracelens.errors import UsageError
from tracelens.files.safe_text import short_kernel_name
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, WorkColumns
from tracelens.trace.table import Kind
from tracelens.types.dtypes import DType

#: Products that fill a step of ``STEP_US``.
BACK_TO_BACK: list[Kernel] = [("gemm", 10.0 + 240 * n, 240.0, 7, True) for n in range(4)]
AT_THE_LIMIT = "at that clock kernels would draw more than the limit, which holds it down"
ROOT = Path(__file__).resolve().parents[2]


def products(count: int = 3, us: float = 100, size: int = 4096) -> Builder:
    """BF16 products one after the other on MI300X, launched long before."""
    built = Builder()
    for i in range(count):
        built.mm(size, size, size, 10 * i, 100 + us * i, us)
    return built


def estimate_us(model: GEMM, device: str) -> float:
    return float(chain("tile").estimate_many(WorkColumns.of([model]), System.load(device)).time_us[0])


def test_another_device_takes_the_ratio_of_the_estimates() -> None:
    found = what_if(products().trace(), device="b200")
    model = GEMM(m=4096, n=4096, k=4096)
    ratio = estimate_us(model, "b200") / estimate_us(model, "mi300x")
    assert found.after.step_us == pytest.approx(300 * ratio, abs=0.003)
    assert found.low_us < found.after.step_us < found.high_us
    (row,) = found.rows
    assert (row.name, row.calls, row.before_us) == ("aten::mm", 3, 300)
    # Two residuals: MI300X has none measured for GEMM, so the largest of all devices (51.1 %), and B200's 18.9 %
    half = np.hypot(np.log(1.511), np.log(1.189)) / 1.645
    missed = abs(np.log(100 / estimate_us(model, "mi300x"))) / 2
    assert row.high_us / row.after_us == pytest.approx(np.exp(1.645 * np.hypot(half, missed)), rel=1e-6)


def test_the_same_device_changes_nothing() -> None:
    found = what_if(products().trace(), device="mi300x")
    assert found.after.step_us == found.before.step_us == 300


def test_a_lower_clock_is_slower_and_memory_does_not_follow_it() -> None:
    slower = what_if(products().trace(), gpu_clock=0.5)
    assert 300 < slower.after.step_us <= 600.001
    assert what_if(products().trace(), gpu_clock=1.0).after.step_us == pytest.approx(300)


def test_a_limit_above_the_devices_own_is_said_to_change_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recording(tmp_path, BACK_TO_BACK, steps=3)
    said = {}
    for watts in ("699", "700", "9000"):
        assert main(["whatif", str(path), "--power-limit", watts]) == 0
        said[watts] = capsys.readouterr().out
        assert " this, which leaves" not in said[watts]
    assert "changes nothing" not in said["699"]
    assert "! a limit of 700 W changes nothing: that of h200-sxm is 700 W" in said["700"]
    assert "! a limit of 9,000 W changes nothing" in said["9000"]
    assert " what was asked leaves the critical path as long as it was; its largest part is " in said["9000"]


def test_a_share_of_kernels_without_an_estimate_is_never_said_to_be_none() -> None:
    built = products()
    built.op("mylib::op", 600, 5).launch(601, "mine", 900, 1)
    assert any(
        note.startswith("0.3 % of kernel time has no estimate")
        for note in what_if(built.trace(), gpu_clock=0.5).plan.notes
    )


def test_a_lower_limit_takes_longer_and_less_energy_by_hand(tmp_path: Path) -> None:
    """H200, 0.992 of 700 W: products over idle (128 W) at share c of the clock draw c**1.7 of 566.4 W, so 400 W less idle
    are c = (268.8 / 566.4) ** (1/1.7) = 0.645. What they add to waiting goes with c**0.7, waiting with the time.
    """
    trace = load(recording(tmp_path, BACK_TO_BACK, steps=3))
    found = what_if(trace, power_limit=400.0)
    energy, clock = found.energy, (268.8 / 566.4) ** (1 / 1.7)
    assert energy is not None
    assert clock == pytest.approx(0.645, abs=1e-3)
    assert energy.before_j is not None
    assert found.before.step_us < found.after.step_us < found.before.step_us / clock
    over_j = energy.before_j - 128e-6 * found.before.step_us
    whole_j = 128e-6 * found.after.step_us + over_j * clock**0.7
    assert energy.after_j == pytest.approx(whole_j, rel=1e-6)
    assert energy.after_j < energy.before_j
    reported = tracelens.report(trace).summary.energy
    assert reported is not None
    assert energy.before_j == pytest.approx(reported.energy_j, rel=1e-9)
    same = what_if(trace, power_limit=700.0)
    assert (same.after.step_us, same.energy.after_j) == (same.before.step_us, pytest.approx(energy.before_j))  # type: ignore[union-attr]


def test_a_written_trace_is_said_not_to_record_the_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, to = str(recording(tmp_path, BACK_TO_BACK, steps=3)), str(tmp_path / "to.json")
    said = []
    for asked in (["--power-limit", "400"], ["--clock", "0.8"], ["--scale", "GEMM=0.9"]):
        assert main(["whatif", path, *asked, "-o", to]) == 0
        said.append("a trace records no clock" in capsys.readouterr().out)
    assert said == [True, True, False]
    assert main(["whatif", path, "--power-limit", "400"]) == 0
    assert "records no clock" not in capsys.readouterr().out


def test_no_limit_is_faster_than_a_higher_one_nor_draws_more_than_it_says(tmp_path: Path) -> None:
    trace = load(recording(tmp_path, BACK_TO_BACK, steps=3))
    runs = [what_if(trace, power_limit=watts) for watts in (150.0, 250.0, 400.0, 550.0, 700.0, 900.0)]
    times = [run.after.step_us for run in runs]
    assert times == sorted(times, reverse=True)
    for run, watts in zip(runs, (150.0, 250.0, 400.0, 550.0, 700.0, 700.0), strict=True):
        assert run.energy is not None
        assert run.energy.after_w is not None
        assert 128 <= run.energy.after_w <= watts
    with pytest.raises(UsageError, match="above the 128 W that the waiting device draws"):
        what_if(trace, power_limit=100.0)


def test_joules_of_a_clock_are_unknown_where_nobody_measured_and_where_the_limit_would_hold_it_down(
    tmp_path: Path,
) -> None:
    higher = what_if(load(recording(tmp_path, BACK_TO_BACK, steps=3)), gpu_clock=1.2).energy
    assert higher is not None
    assert (higher.after_j, higher.unknown) == (None, AT_THE_LIMIT)
    unknown = what_if(load(recording(tmp_path, BACK_TO_BACK, steps=3, device=A100)), power_limit=300.0).energy
    assert unknown is not None
    assert unknown.unknown == "nobody measured what NVIDIA A100 SXM4 80GB draws"
    lower = what_if(load(recording(tmp_path, BACK_TO_BACK, steps=3)), gpu_clock=0.8, scale=("GEMM=0.9",))
    assert lower.energy is None
    assert "energy" not in lower.document()


@pytest.mark.shared
def test_a_step_that_the_host_bounds_takes_as_long_at_a_lower_limit_and_less_energy(real_trace: RealTrace) -> None:
    """Eager layers on B200 (1000 W), whose kernels run for a part of the step: 242 W of it are those of waiting."""
    trace = real_trace("b200/eager_trace")
    high, low = (what_if(trace, power_limit=watts) for watts in (700.0, 400.0))
    assert high.energy is not None
    assert low.energy is not None
    assert low.after.step_us == pytest.approx(high.before.step_us, rel=0.01)
    assert 242e-6 * low.after.step_us < low.energy.after_j < high.energy.after_j < high.energy.before_j  # type: ignore[operator]


def test_fp8_products_are_faster_and_their_conversion_counts() -> None:
    found = what_if(products().trace(), precision="fp8")
    model = GEMM(m=4096, n=4096, k=4096)
    fp8 = GEMM(m=4096, n=4096, k=4096, dtype=DType.FP8_E4M3FN, dtype_out=DType.BF16)
    alone = 300 * estimate_us(fp8, "mi300x") / estimate_us(model, "mi300x")
    assert alone < found.after.step_us < 300
    with pytest.raises(UsageError, match="no precision named 'fp99'"):
        what_if(products().trace(), precision="fp99")


def test_twice_the_batch_is_twice_the_rows() -> None:
    found = what_if(products().trace(), batch=2.0)
    ratio = estimate_us(GEMM(m=8192, n=4096, k=4096), "mi300x") / estimate_us(GEMM(m=4096, n=4096, k=4096), "mi300x")
    assert found.after.step_us == pytest.approx(300 * ratio, abs=0.003)


def test_what_is_no_longer_than_a_launch_does_not_grow_with_the_batch() -> None:
    """An op of 8 x 4096 numbers and a kernel of which nothing is known, both as long as any kernel takes; and one of
    100 µs of which nothing is known: all but the time of a launch doubles.
    """
    launch_us = launch_floor_us(HardwareSpec.load("mi300x"))
    built, shape = Builder(), {"Input Dims": [[8, 4096]], "Input type": ["c10::BFloat16"], "Concrete Inputs": [""]}
    built.op("aten::relu", 0, 5, **shape).launch(1, "relu", 100, launch_us)
    built.op("mine::tiny", 10, 5).launch(11, "tiny", 110, launch_us)
    built.op("mine::long", 20, 5).launch(21, "long", 120, 100)
    found = what_if(built.trace(), batch=2.0)
    assert {row.name: row.change_us for row in found.rows if row.change_us} == {
        "mine::long": pytest.approx(100 - launch_us, abs=0.01)
    }


def test_padding_learns_from_the_aligned_products() -> None:
    built = Builder().mm(4096, 4096, 4096, 0, 100, 100).mm(4095, 4095, 4095, 10, 200, 300)
    found = what_if(built.trace(), pad=64)
    # Both products are then the same, and the first took 100 us
    assert found.after.step_us == pytest.approx(200, abs=0.01)
    with pytest.raises(UsageError, match="multiples of 64 already"):
        what_if(products().trace(), pad=64)


def test_graphs_leave_only_the_kernels() -> None:
    built = Builder()
    for i in range(10):
        built.op("aten::relu", 100 * i, 90).launch(100 * i + 10, f"kernel{i}", 100 * i + 15, 5)
    found = what_if(built.trace(), graphs=True)
    # 5 us each, and between two the usual 2 us, as no kernel was queued here; at most the 5 us of a launch
    assert (found.before.step_us, found.after.step_us) == (905, 10 * 5 + 9 * 2)
    assert len(found.plan.notes) == 1
    assert (found.low_us, found.high_us) == (10 * 5, 10 * 5 + 9 * 5)


@pytest.mark.parametrize("op", ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "gloo:all_reduce"])
def test_what_a_graph_does_not_hold_still_takes_its_time(op: str) -> None:
    built = Builder()
    built.op("aten::relu", 0, 20).launch(5, "one", 20, 10)
    built.op(op, 50, 400).op("aten::relu", 450, 30).launch(460, "two", 480, 10)
    # Two kernels of 10 us, the 400 us between them, and the 5 us from a launch to its kernel
    assert what_if(built.trace(), graphs=True).after.step_us == pytest.approx(420, abs=10)


def test_a_graph_makes_no_gap_longer_than_it_was() -> None:
    built, now = Builder(), 100
    for i in range(40):
        built.launch(i, f"kernel{i}", now, 5)
        now += 5 + (3 if i % 2 else 1)
    found = what_if(built.trace(), graphs=True)
    assert found.after.step_us <= found.before.step_us


def test_overlap_takes_communication_off_the_path() -> None:
    built = Builder()
    built.launch(0, "forward", 10, 100).launch(1, "ncclDevKernel_AllReduce_Sum_bf16", 110, 50).launch(
        2, "next", 160, 100
    )
    found = what_if(built.trace(), overlap="comm")
    # Computing slows by 30 % of the share of its time in which communication runs: 50 of 200 us
    assert found.after.step_us == pytest.approx(200 * (1 + 0.3 * 0.25), abs=0.01)


def test_what_nothing_could_hide_slows_nothing() -> None:
    built = Builder()
    built.launch(0, "forward", 10, 100).launch(1, "ncclDevKernel_AllReduce_Sum_bf16", 110, 50, stream=8)
    built.op("cudaDeviceSynchronize", 2, 160, 1, "cuda_runtime").launch(170, "next", 175, 100)
    found = what_if(built.trace(), overlap="comm")
    assert found.after.step_us == found.before.step_us


def test_attention_whose_mask_was_not_recorded_grows_with_the_batch() -> None:
    built = Builder()
    shape = {"Input Dims": [[4, 16, 1024, 64]] * 3 + [[], [], [], []], "Input type": ["c10::BFloat16"] * 3 + [""] * 4}
    built.op("aten::_scaled_dot_product_flash_attention", 0, 20, **shape).launch(2, "flash_fwd_kernel", 30, 500)
    found = what_if(built.trace(), batch=2.0)
    assert found.after.step_us == pytest.approx(1000)
    assert found.low_us < 1000 < found.high_us
    assert any("follows the bytes that they move" in note for note in found.plan.notes)
    # On another device it follows the memory rate, with the interval of what no estimate speaks of
    moved = what_if(built.trace(), device="b200")
    assert moved.high_us < 2 * moved.after.step_us


def test_kernels_without_an_op_follow_the_memory_rate_of_another_device() -> None:
    found = what_if(Builder().kernel("a", 0, 100).kernel("b", 100, 200).trace(), device="b200")
    assert found.after.step_us == pytest.approx(300 * 5.3 / 7.7, abs=0.002)  # TB/s
    assert found.low_us < found.after.step_us < found.high_us


def test_a_chain_of_kernels_over_the_same_elements_becomes_its_longest() -> None:
    built, shape = Builder(), {"Input Dims": [[1024, 1024]], "Input type": ["c10::BFloat16"], "Concrete Inputs": [""]}
    for i, length in enumerate((20, 30, 20)):
        built.op("aten::relu", 10 * i, 5, **shape).launch(10 * i + 1, "relu", 100 + 40 * i, length)
    found = what_if(built.trace(), fuse="chain")
    assert (found.before.step_us, found.after.step_us) == (100, 30)


def test_flash_attention_replaces_what_is_not() -> None:
    built = Builder()
    shape = {"Input Dims": [[4, 16, 1024, 64]] * 3 + [[], [], [], []], "Input type": ["c10::BFloat16"] * 3 + [""] * 4}
    built.op("aten::_scaled_dot_product_efficient_attention", 0, 20, **shape,
             **{"Concrete Inputs": ["", "", "", "", "False", "0.", "False"]})  # fmt: skip
    built.launch(1, "attention", 30, 5000).launch(2, "rest", 5030, 10)
    found = what_if(built.trace(), sdpa="flash")
    assert found.after.step_us < 1000
    with pytest.raises(UsageError, match="no attention op that flash attention could replace"):
        what_if(products().trace(), sdpa="flash")


@pytest.mark.parametrize("wrong", ["GEMM", "=2", "GEMM=-1", "GEMM=x"])
def test_a_scale_of_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--scale takes NAME=FACTOR"):
        what_if(products().trace(), scale=(wrong,))


def test_a_name_that_fits_nothing_is_refused_with_those_near() -> None:
    with pytest.raises(UsageError, match="did you mean aten::mm"):
        what_if(products().trace(), remove=("aten::mn",))


def test_what_a_report_prints_names_its_events() -> None:
    """Ops, modules and kernels, the latter as the page shortens them: the events whose time the row is."""
    trace = tracelens.load(ROOT / "example_traces" / "moe_ep8" / "rank0.json.gz")
    frames, subject = analyze(trace, AnalysisOptions(), on_demand=True).frames, Subject.of(trace, AnalysisOptions())
    for sheet, column in (("ops_summary", "name"), ("modules", "module")):
        for name in frames[sheet][column].astype(str):
            # "(unlinked kernels)" and "(in no module)" are no names
            assert name.startswith("(") or subject.events_of(name).any(), name
    kernels = frames["kernel_summary"].groupby("kernel_name", observed=True)["duration_us_sum"].sum()
    for name, kernel_us in kernels.items():
        found = subject.events_of(short_kernel_name(str(name)))
        assert subject.activity.duration[found & subject.counted].sum() / 1000 == pytest.approx(kernel_us, rel=1e-9), (
            name
        )


def test_a_short_name_of_several_kernels_is_refused_with_a_whole_one() -> None:
    names = [f"void mine::kernel<{width}>(float*)" for width in ("1, deep<a<b<int> > >", "1, deep<a<b<long> > >")]
    built = Builder().launch(1, names[0], 100, 10).launch(2, names[1], 110, 20)
    (short,) = {short_kernel_name(name) for name in names}
    with pytest.raises(UsageError, match=r"matches 2 kernels; give a whole name, such as void mine::kernel.* for all"):
        what_if(built.trace(), remove=(short,))
    assert what_if(built.trace(), remove=(names[1],)).after.step_us == pytest.approx(10)
    assert what_if(built.trace(), remove=(f"{short}*",)).after.step_us == 0


def test_the_residuals_are_those_that_were_measured() -> None:
    with (ROOT / "docs" / "estimation_errors.csv").open(encoding="utf-8", newline="") as file:
        measured = list(csv.DictReader(file))
    table = {key: rows for key, rows in plan._table().items() if isinstance(rows, dict)}
    assert set(table) == {"gemm", "sdpa", "moe"}
    for family, devices in table.items():
        name = {"sdpa": "prefill"}.get(family, family)
        listed = [row for row in measured if row["family"] == name]
        assert {(row["device"], row["precision"]): float(row["p90_percent"]) for row in listed} == {
            (device, precision): value for device, row in devices.items() for precision, value in row.items()
        }


#: Compiled ViT, recorded in bf16 and in int8, on an A100.
INT8 = {
    "2024-03": ("quantize_vit/2024-03-18_a71c10ac_0aa04e", "quantize_vit/2024-03-18_a71c10ac_66d49f"),
    "2024-06": ("static_quantize_prune_vit/2024-06-06_7b258e93_124f1f", "static_quantize_prune_vit/2024-06-06_7b258e93_d7a5a8"),
    "2025-01": ("quantize_vit/2025-01-10_5024ea90_aef3ea", "quantize_vit/2025-01-10_5024ea90_8ea658"),
    "2025-01, second": ("quantize_vit/2025-01-10_eb21c325_4b77a6", "quantize_vit/2025-01-10_eb21c325_ed7231"),
}  # fmt: skip


def by_family(found: WhatIf, families: Mapping[str, str]) -> dict[str, list[float]]:
    """(low, before, high) of the kernels of each family, in us; ``families``: of categories that are part of another."""
    total: dict[str, list[float]] = {}
    for row in found.rows:
        own = total.setdefault(families.get(row.category, row.category), [0.0, 0.0, 0.0])
        own[:] = own[0] + row.low_us, own[1] + row.before_us, own[2] + row.high_us
    return total


def hits(predicted: WhatIf, measured: WhatIf, families: Mapping[str, str]) -> list[bool]:
    """Of each family that is timed anew, whether its measured time lies in the interval."""
    times = by_family(measured, families)
    return [
        low <= times.get(family, [0.0] * 3)[1] <= high
        for family, (low, _, high) in by_family(predicted, families).items()
        if low < high
    ]


@pytest.mark.sweep
@pytest.mark.shared
def test_the_measured_time_lies_in_the_interval_of_four_families_of_five(real_trace: RealTrace) -> None:
    """MI300X to H100, and products from BF16 to INT8 with what Inductor compiled around them."""
    name = "gaunernst_bert-small-uncased__1016001"
    inside = hits(what_if(real_trace(f"mi300/{name}"), device="h100"), what_if(real_trace(f"h100/{name}")), {})
    assert len(inside) == 7
    assert sum(inside) / len(inside) >= 0.8
    for pair in INT8.values():
        before, after = (f"more/ao/{folder}" for folder in pair)
        predicted = what_if(real_trace(f"{before}/bfloat16"), precision="int8")
        inside += hits(predicted, what_if(real_trace(f"{after}/quant")), {"triton": "GEMM"})
    assert len(inside) == 11
    assert sum(inside) / len(inside) >= 0.8


def stalled_us(trace: Trace) -> float:
    """What another process took of the device: of kernels over ten times the median of their name what is beyond it,
    and waits of over a millisecond of a kernel that had been launched."""
    table = trace.table
    rows = np.flatnonzero(table.kind == Kind.KERNEL)
    rows = rows[np.argsort(table.start_ns[rows], kind="stable")]
    beyond = 0.0
    for code in np.unique(table.name[rows]).tolist():
        own = table.duration_ns[rows[table.name[rows] == code]]
        beyond += float((own - np.median(own))[own > 10 * np.median(own)].sum())
    free, launched = np.maximum.accumulate(table.ends_ns(rows))[:-1], table.ends_ns(trace.tree.launch[rows])[1:]
    waited = table.start_ns[rows][1:] - np.maximum(free, launched)
    return (beyond + float(waited[waited > 1_000_000].sum())) / 1000


@pytest.mark.shared
@pytest.mark.parametrize("name", INT8)
def test_the_step_in_int8_lies_in_its_interval(real_trace: RealTrace, name: str) -> None:
    """But for what another process took of the device: 7.1 of 13.8 ms of one recording."""
    before, after = (f"more/ao/{folder}" for folder in INT8[name])
    predicted = what_if(real_trace(f"{before}/bfloat16"), precision="int8")
    trace = real_trace(f"{after}/quant")
    taken_us = stalled_us(trace)
    assert taken_us == (pytest.approx(7130, abs=30) if name == "2025-01, second" else 0)
    assert predicted.low_us <= what_if(trace).before.step_us - taken_us <= predicted.high_us


@pytest.mark.shared
@pytest.mark.parametrize(
    "name",
    part(["mi300/gaunernst_bert-small-uncased__1016001", "b200/eager_trace", "torch_compile_triton/trace",
          "inference/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode",
          "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto"], 2),
)  # fmt: skip
def test_a_finding_applied_gains_what_the_report_says(real_trace: RealTrace, name: str) -> None:
    found = tracelens.report(real_trace(name)).summary.findings[0]
    assert found.kind is not None
    assert found.gain_low_us is not None
    assert found.gain_high_us is not None
    applied = what_if(real_trace(name), apply=(found.key or found.kind,))
    gained = applied.before.step_us - applied.after.step_us
    assert found.gain_low_us <= gained <= 1.05 * found.gain_high_us
    assert gained == pytest.approx(found.gain_us, rel=0.1)
    with pytest.raises(UsageError, match="finding in the report of this trace named"):
        what_if(real_trace(name), apply=("no such finding",))


@pytest.mark.sweep
@pytest.mark.shared
def test_copying_from_pageable_memory_is_time_of_the_host_too(real_trace: RealTrace) -> None:
    trace = real_trace("more/kineto/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace")
    found = what_if(trace, apply=("exposed_copies",))
    (row,) = (each for each in found.rows if each.change_us)
    assert row.name == "aten::copy_"
    assert found.after.step_us - found.before.step_us == pytest.approx(row.change_us, rel=0.1)


def test_kernels_that_are_fused_are_not_launched() -> None:
    """40 chains of three elementwise kernels of 5 us behind launches of 10: the host spares two of three ops."""
    built, shape = Builder(), {"Input Dims": [[1024, 1024]], "Input type": ["float"], "Concrete Inputs": [""]}
    for i in range(120):
        built.op("aten::relu", 10 * i, 10, **shape).launch(10 * i + 5, "void at::native::relu", 10 * i + 10, 9)
    applied = what_if(built.trace(), apply=("unfused_elementwise",))
    assert applied.after.step_us < 0.5 * applied.before.step_us


def test_figures_are_those_of_the_steps_asked_for() -> None:
    built = Builder()
    for i, length in enumerate((100, 300)):
        built.op(f"ProfilerStep#{i}", 1000 * i, 1000, cat="user_annotation")
        built.op("aten::relu", 1000 * i + 10, 50).launch(1000 * i + 20, "relu", 1000 * i + 30, length)
    trace = built.trace()
    for steps, us in (("0", 100), ("1", 300), (None, 200)):
        (row,) = what_if(trace, steps=steps, scale=("aten::relu=0.5",)).rows
        assert (row.before_us, row.after_us) == (us, us / 2)


@pytest.mark.shared
def test_on_another_device_the_interval_covers_its_host(real_trace: RealTrace) -> None:
    """The host decides how long bert takes: 4.01 ms beside an MI300X and 4.43 beside an H100."""
    name = "gaunernst_bert-small-uncased__1016001"
    found, measured = what_if(real_trace(f"mi300/{name}"), device="h100"), what_if(real_trace(f"h100/{name}"))
    assert found.low_us < measured.before.step_us < found.high_us
    # 1.645 * 15 % to each side, of a step that is all the host's
    assert found.high_us / found.after.step_us == pytest.approx(math.exp(1.645 * 0.15), rel=0.01)
    same = what_if(real_trace(f"mi300/{name}"), device="mi300x")
    assert same.low_us == pytest.approx(same.high_us)
