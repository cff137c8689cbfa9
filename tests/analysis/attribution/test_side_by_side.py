"""Kernels of one kind beside each other share the device: what they reach, they reach together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.analysis.conftest import Builder
from tests.analysis.work.test_rates import found
from tests.conftest import part
from tracelens.analysis.verdict.summary import Summary
from tracelens.analysis.verdict.verdict import summarize

#: FLOPs of a product of 4096^3, and the peak of an MI300X per µs.
FLOPS, PEAK_PER_US = 2 * 4096**3, 1307.4e6
#: Its roofline, at 708 TFLOPS/s.
ROOFLINE_US = FLOPS / 708e6


def products(build: Callable[[], Builder], streams: int, apart_us: int = 0) -> Summary:
    """12 products of 800 µs, as many at a time as there are streams; each of these begins later than the one before."""
    b = build()
    for i in range(12):
        start = 1000 + 800 * (i // streams) + apart_us * (i % streams)
        b.mm(4096, 4096, 4096, at=6 * i, start=start, duration=800, stream=7 + i % streams)
    return summarize(found(b))


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_rates_are_over_the_time_that_kernels_took_together(build: Callable[[], Builder], streams: int) -> None:
    """Two streams do in 4.8 ms what one does in 9.6: the rate is twice as high, and times the time it is the FLOPs."""
    summary = products(build, streams)
    busy_us = 12 * 800 / streams
    (row,) = (each for each in summary.categories if each.name == "GEMM")
    assert row.tflops_s == pytest.approx(12 * FLOPS / busy_us / 1e6)
    assert row.of_roofline == pytest.approx(12 * ROOFLINE_US / busy_us)
    assert summary.throughput is not None
    assert summary.throughput.of_peak == pytest.approx(12 * FLOPS / PEAK_PER_US / busy_us)
    assert summary.throughput.window_of_peak == pytest.approx(summary.throughput.of_peak)


@pytest.mark.parametrize("apart_us", [0, 100, 250])
@pytest.mark.parametrize("streams", part([1, 2, 3], 3))
def test_no_kernel_gains_what_another_beside_it_needs(
    build: Callable[[], Builder], streams: int, apart_us: int
) -> None:
    """However many at a time, and however they overlap: 12 products take at least 12 times the roofline, and hardly more
    once each is faster, as their streams still wait for their launches."""
    findings = products(build, streams, apart_us).findings
    (finding,) = (each for each in findings if each.id == "op_below_roofline")
    busy_us = 12 * 800 / streams + apart_us * (streams - 1)
    most_us = busy_us - 12 * ROOFLINE_US
    assert finding.gain_high_us is not None
    assert 0.85 * most_us < finding.gain_high_us <= most_us * 1.001
    assert (f"{12 * 800 / busy_us:.1f} at a time" in finding.why) == (streams > 1)


def test_the_peak_of_two_devices_is_twice_that_of_one(build: Callable[[], Builder]) -> None:
    """The same products at the same time on two devices: each reaches what one alone would."""
    b = build()
    for i in range(12):
        b.mm(4096, 4096, 4096, at=6 * i, start=1000 + 800 * (i // 2), duration=800)
        b.events[-1]["pid"] = i % 2
        b.events[-1]["args"]["device"] = i % 2
    summary = summarize(found(b))
    assert summary.throughput is not None
    assert summary.throughput.of_peak == pytest.approx(FLOPS / PEAK_PER_US / 800)
    assert summary.throughput.window_of_peak == pytest.approx(summary.throughput.of_peak)
