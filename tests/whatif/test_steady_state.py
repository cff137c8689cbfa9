"""A step is done again and again: report and whatif say the same gain, and no head start of the recording is one."""

from __future__ import annotations

import pytest

import tracelens
from tests.analysis.conftest import Builder
from tests.conftest import RealTrace, device_traces, part, part_of_traces
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.comparison.whatif import changes
from tracelens.comparison.whatif.plan import Subject
from tracelens.comparison.whatif.what_if import what_if

KERNELS, LATENCY_US = 10, 5


def loop(steps: int, host_us: float, kernel_us: float, *, queued_us: float = 0.0, waits: bool = False) -> Trace:
    """Steps of ten products of ``kernel_us``, launched in ``host_us``; ``queued_us`` of work is in the queue as recording
    begins. ``waits``: the host waits for the device at the end of each step.
    """
    built, now, free = Builder(), 10.0, 0.0
    if queued_us:
        built.kernel("queued", 0, queued_us)
        free = queued_us
    for step in range(steps):
        begin = now
        for _ in range(KERNELS):
            start = max(now + 1 + LATENCY_US, free)
            built.mm(4096, 4096, 4096, now, start, kernel_us)
            now, free = now + host_us / KERNELS, start + kernel_us
        if waits:
            built.op("cudaDeviceSynchronize", now, max(free - now, 1), 1, "cuda_runtime")
            now = max(free, now + 1)
        built.op(f"ProfilerStep#{step}", begin, now - begin, 1, "user_annotation")
    return built.trace()


def gain_us(trace: Trace, factor: float = 0.5) -> float:
    """What products of so much of their time gain."""
    found = what_if(trace, scale=(f"GEMM={factor}",))
    return found.before.step_us - found.after.step_us


def test_faster_kernels_of_a_host_bound_step_gain_nothing() -> None:
    """1,000 us of the host, 600 of the device."""
    assert gain_us(loop(4, 1000, 60)) == pytest.approx(0, abs=1)


def test_a_head_start_is_no_gain() -> None:
    """The same step; recording began with 5,000 us of work in the queue, so the device was busy all of the time."""
    trace = loop(4, 1000, 60, queued_us=5000)
    assert tracelens.report(trace).summary.busy.idle == pytest.approx(0, abs=0.01)
    assert gain_us(trace) == pytest.approx(0, abs=1)


def test_a_step_gains_at_most_what_lies_beyond_the_host() -> None:
    """1,200 us of the device, 1,000 of the host: kernels of half the time, 600 us, gain 200."""
    assert gain_us(loop(4, 1000, 120)) == pytest.approx(1200 - 1000, rel=0.03)


def test_a_device_bound_step_gains_all() -> None:
    """1,000 us of the device, 200 of the host."""
    assert gain_us(loop(4, 200, 100)) == pytest.approx(1000 - 500, rel=0.03)


def test_a_host_that_waits_gains_what_its_kernels_do() -> None:
    """A tenth of the host's 500 us until the first kernel, which is all that the device waits for."""
    trace = loop(4, 200, 100, waits=True)
    assert gain_us(trace) == pytest.approx(500, rel=0.03)
    # Of 0.8 of the time: 6 us until the first kernel begins, 1,000 us less a fifth
    assert gain_us(trace, 0.8) == pytest.approx(200, rel=0.03)


@pytest.mark.parametrize(("host_us", "kernel_us"), part([(1000, 60), (1000, 120), (200, 100)], 3))
@pytest.mark.parametrize("waits", [False, True])
def test_a_step_recorded_more_often_gains_the_same(host_us: float, kernel_us: float, waits: bool) -> None:
    gains = [gain_us(loop(steps, host_us, kernel_us, waits=waits)) for steps in (2, 3, 8)]
    assert gains == pytest.approx([gains[0]] * 3, abs=2 + 0.02 * gains[0])


def test_what_limits_next_is_said_with_its_figures() -> None:
    """Products of 400 us that could take some 200: 4,000 us of the device, 3,000 of the host."""
    summary = tracelens.report(loop(4, 3000, 400)).summary
    (first,) = summary.findings
    assert first.limited_by == "the host takes 3 ms of 4 ms, so faster kernels alone gain at most 1 ms"
    assert first.gain_us == pytest.approx(1000, rel=0.03)
    assert summary.together is not None
    assert (summary.together.findings, summary.together.limited_by) == ((first.key,), "host")
    assert summary.together.step_us == pytest.approx((4000, 3000), rel=0.01)


def test_a_part_stands_for_a_file_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without steps: 400 products launched 300 us apart, of 400 us each: the first of four parts gains a quarter."""
    built = Builder()
    for number in range(400):
        built.mm(4096, 4096, 4096, 300 * number, max(300 * number + 6, 6 + 400 * number), 400)
    (whole,) = [f for f in tracelens.report(built.trace()).summary.findings if f.id == "op_below_roofline"]
    for module in ("tracelens.analysis.findings.ranking", "tracelens.analysis.idle.dependencies"):
        monkeypatch.setattr(f"{module}.MOST_OF_FILE", 100)
    (found,) = [f for f in tracelens.report(built.trace()).summary.findings if f.id == "op_below_roofline"]
    assert found.gain_us == pytest.approx(whole.gain_us, rel=0.05)
    assert found.limited_by is None


@pytest.mark.shared
@pytest.mark.parametrize("name", part_of_traces(device_traces()))
def test_whatif_gives_every_finding_the_gain_that_the_report_prints(
    real_trace: RealTrace, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = real_trace(name)
    # Observed once for all findings, which takes longer than what is changed
    subject = Subject.of(trace, AnalysisOptions())
    seen = changes._observed(subject)
    monkeypatch.setattr(Subject, "of", lambda *_: subject)
    monkeypatch.setattr(changes, "_observed", lambda _: seen)
    summary = tracelens.report(trace).summary
    step_us = summary.steps.time_us if summary.steps else summary.busy.total_us
    for found in summary.findings:
        if found.gain_us is None:
            continue
        applied = what_if(trace, apply=(found.key,))
        gained = applied.before.step_us - applied.after.step_us
        assert applied.before.step_us == pytest.approx(step_us, rel=1e-6)
        slack = max(1e-6 * step_us, 0.01)
        said = f"{found.key}: {gained} of {found.gain_low_us} to {found.gain_us} to {found.gain_high_us} us"
        assert 0 <= found.gain_low_us <= found.gain_us <= found.gain_high_us, said
        assert found.gain_low_us - slack <= gained <= found.gain_high_us + slack, said
        assert abs(gained - found.gain_us) <= max(0.2 * found.gain_us, 100), said
    if summary.together is not None:
        assert list(summary.together.step_us) == sorted(summary.together.step_us, reverse=True)
        applied = what_if(trace, apply=summary.together.findings)
        assert applied.after.step_us == pytest.approx(summary.together.step_us[-1], rel=1e-6, abs=0.1)
