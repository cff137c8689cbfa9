"""Counters of device memory's traffic: read into columns, attributed to kernels, beside what perf models say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tests.conftest import examples, part
from tracelens.analysis.analyze import analyze
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.sheets.device_memory import NOTHING, SEVERAL

Build = Callable[[], Builder]
READ, WRITTEN, MOVED = (f"dram__bytes{what}.sum" for what in ("_read", "_write", ""))
MODEL_MB = 3 * 4096 * 4096 * 2 / 1e6


def sample(builder: Builder, at: float, device: int | str = 0, **counters: object) -> None:
    """As Kineto's ChromeTraceLogger::handleCounterEvent writes one."""
    event = {"ph": "C", "cat": "hardware_counters", "name": "CUPTI PM Sampling", "pid": device, "tid": 0, "ts": at}
    builder.events.append({**event, "args": counters})


def measured(builder: Builder) -> pd.DataFrame | None:
    found: pd.DataFrame | None = analyze(builder.trace(), AnalysisOptions(), on_demand=True).frames.get("measured_hbm")
    return None if found is None else found.set_index("kernel_name")


def sampled(builder: Builder) -> Builder:
    """A product from 1000 to 3000 µs and another kernel until 3250, beside samples of 500 µs."""
    builder.mm(4096, 4096, 4096, at=10, start=1000, duration=2000)
    builder.launch(20, "unknown_kernel", 3000, 250)
    for number, megabytes in enumerate((1, 25, 25, 25, 25, 8)):
        sample(builder, 500 + 500 * number, **{READ: megabytes * 1e6, WRITTEN: 10e6, "sm__cycles_active.avg": 3.5})
    return builder


def test_measured_rates_stand_beside_the_models(build: Build) -> None:
    frame = measured(sampled(build()))
    assert frame is not None
    row = frame.loc["Cijk_Ailk_Bljk"]
    assert (row.samples, row.sampled_us, row.kernel_us) == (4, 2000, 2000)
    assert (row.read_mb, row.written_mb, row.measured_mb) == (100, 40, 140)
    assert row.model_mb == pytest.approx(MODEL_MB)
    assert row.measured_tb_s == pytest.approx(140e6 / 2000e-6 / 1e12)
    assert row.model_tb_s == pytest.approx(MODEL_MB * 1e6 / 2000e-6 / 1e12)
    assert row.measured_over_model == pytest.approx(140 / MODEL_MB)
    other = frame.loc["unknown_kernel"]
    assert (other.samples, other.sampled_us, other.kernel_us, other.measured_mb) == (1, 500, 250, 18)
    assert other[["model_mb", "model_tb_s", "measured_over_model"]].isna().all()
    assert frame.loc[NOTHING, ["samples", "measured_mb"]].tolist() == [1, 11]
    assert np.isnan(frame.loc[NOTHING, "measured_tb_s"])


def test_a_sample_of_two_kernels_is_neither_s(build: Build) -> None:
    builder = build().launch(1, "a", 1000, 250).launch(2, "b", 1250, 250)
    for at in (1000, 1500):
        sample(builder, at, **{MOVED: 6e6})
    frame = measured(builder)
    assert frame is not None
    assert frame.loc[SEVERAL, ["samples", "kernel_us", "measured_mb"]].tolist() == [1, 500, 6]
    assert frame["read_mb"].isna().all()


def test_lost_samples_do_not_stretch_the_one_before(build: Build) -> None:
    builder = build().launch(1, "a", 1000, 5000)
    for at in (1000, 1500, 2000, 5000):
        sample(builder, at, **{MOVED: 1e6})
    frame = measured(builder)
    assert frame is not None
    assert frame.loc["a", ["samples", "sampled_us", "kernel_us"]].tolist() == [4, 2000, 2000]


def test_pipes_are_averaged_over_the_time_of_the_samples(build: Build) -> None:
    """Half a millisecond at 40 %, a whole one (the next sample is as far) at 70 %: 60 % of their time."""
    builder = build().launch(1, "a", 1000, 1500)
    tensor = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
    for at, share in ((1000, 40), (1500, 70), (2500, 0), (3500, 0)):
        sample(builder, at, **{MOVED: 1e6, tensor: share})
    frame = measured(builder)
    assert frame is not None
    assert frame.loc["a", "sampled_us"] == 1500
    assert frame.loc["a", "tensor_percent"] == pytest.approx((500 * 40 + 1000 * 70) / 1500)
    assert frame["sm_active_percent"].isna().all()


@pytest.mark.parametrize(
    "counters",
    part([{}, {"GPU 0 Utilization": 3}, {READ: "much"}, {READ: None}, {READ: -5}, {MOVED: 1e999}, {READ: [1]}], 4),
)
def test_other_counters_and_damaged_ones_are_no_measure(build: Build, counters: dict) -> None:
    builder = build().mm(64, 64, 64, at=10, start=1000, duration=2000)
    for at in (1000, 1500, 2000):
        sample(builder, at, **counters)
    assert measured(builder) is None


def test_a_device_of_another_number_and_a_lone_sample_say_nothing_of_kernels(build: Build) -> None:
    builder = build().launch(1, "a", 1000, 250)
    sample(builder, 1000, **{MOVED: 1e6})
    assert measured(builder) is None
    for at in (1000, 1500):
        sample(builder, at, device=3, **{MOVED: 1e6})
    frame = measured(builder)
    assert frame is not None
    assert frame.index.tolist() == [NOTHING]


@settings(max_examples=examples(20), deadline=None)
@given(
    kernels=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 40), st.sampled_from("abc")), min_size=1, max_size=8),
    times=st.lists(st.integers(0, 130), min_size=2, max_size=8, unique=True).map(sorted),
)
def test_every_sample_is_in_one_row_and_all_kernel_time_in_samples_is_counted(
    kernels: list[tuple[int, int, str]], times: list[int]
) -> None:
    builder = Builder()
    for stream, (start, duration, name) in enumerate(kernels):
        builder.launch(0, name, start, duration, stream=stream)
    for at in times:
        sample(builder, at, **{MOVED: 1e6})
    frame = measured(builder)
    assert frame is not None
    assert frame["samples"].sum() == frame["measured_mb"].sum() == len(times)
    distance = np.diff(times)
    usual = int(np.median(distance * 1000)) / 1000
    ends = [a + (usual if d > 1.5 * usual else d) for a, d in zip(times, [*distance, usual], strict=True)]
    inside = sum(
        max(0, min(start + duration, end) - max(start, at))
        for start, duration, _ in kernels
        for at, end in zip(times, ends, strict=True)
    )
    assert frame["kernel_us"].sum() == pytest.approx(inside)


def test_counters_in_a_file_are_those_of_the_events(build: Build, tmp_path: Path) -> None:
    from tracelens.trace.reading.read import read_trace

    builder = sampled(build())
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": builder.events}))
    for table in (read_trace(path), read_trace(path, piece_bytes=300)):
        found = table.dram_samples
        assert found.time_ns.tolist() == [500_000 * n for n in range(1, 7)]
        assert found.read_bytes.tolist() == [1e6, 25e6, 25e6, 25e6, 25e6, 8e6]
        assert (found.moved_bytes - found.read_bytes == 10e6).all()
