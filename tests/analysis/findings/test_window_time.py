"""The window as parts: all of it, once; and what comes out of a gain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.conftest import Builder
from tracelens.analysis.analyze import analyze
from tracelens.analysis.idle.idle_time import own_time
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.verdict.verdict import summarize

SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25), st.sampled_from("kcm")), min_size=1, max_size=12)


class Events:
    """The columns of device events that own time depends on."""

    def __init__(self, spans: list[tuple[int, int, str]]) -> None:
        self.start = np.array([start for start, _, _ in spans], np.int64)
        self.end = self.start + np.array([length for _, length, _ in spans], np.int64)
        self.communication = np.array([kind == "c" for _, _, kind in spans], bool)
        self.memcpy = np.array([kind == "m" for _, _, kind in spans], bool)


@given(SPANS)
def test_own_time_adds_up_to_busy_time_by_class(spans: list[tuple[int, int, str]]) -> None:
    """Of computation its union; of communication what runs beside no computation; of copies the rest."""
    events: Any = Events(spans)
    own_from, span, own = own_time(events, (0, 100))
    own_until = own_from + span
    moments: dict[str, set[int]] = {"k": set(), "c": set(), "m": set()}
    for start, length, kind in spans:
        moments[kind] |= set(range(start, start + length))
    expected = {"k": moments["k"], "c": moments["c"] - moments["k"], "m": moments["m"] - moments["k"] - moments["c"]}
    assert (own >= 0).all()
    assert (own <= events.end - events.start).all()
    for kind, of_kind in expected.items():
        mine = [k == kind for _, _, k in spans]
        assert own[mine].sum() == len(of_kind)
        some = np.array(mine) & (own > 0)
        assert {int(until) - 1 for until in own_until[some]} | set(own_from[some].tolist()) <= of_kind
        assert max(own_until[some], default=0) == max(of_kind, default=-1) + 1
        assert min(own_from[some], default=-1) == min(of_kind, default=-1)
        assert (own_until - own_from >= own)[some].all()


def test_a_host_that_is_late_gains_nothing_from_faster_kernels(build: type[Builder]) -> None:
    """Every kernel starts 5 µs after its launch: 5 of the 40 kernels' 1,200 µs can go, and what the last one saves."""
    b = build()
    for i in range(40):
        b.mm(512, 512, 512, at=100 * i, start=100 * i + 6, duration=30)
    findings = summarize(analyze(b.trace(), AnalysisOptions())).findings
    assert findings[0].id == "idle"
    (kernels,) = [f for f in findings if f.id == "op_below_roofline"]
    assert 0 < (kernels.gain_us or 0) <= (kernels.gain_high_us or 0) <= 5 + 30
    # 39 intervals of 100 µs, and the launch of the last one
    assert kernels.limited_by == "the host takes 3.9 ms of 3.93 ms, so faster kernels alone gain at most 30 µs"


def test_what_runs_beside_a_collective_does_not_bound_its_gain(build: type[Builder]) -> None:
    """The host waits for a product that waits for a collective of 9 ms, beside which it had launched another one."""
    b = build().launch(0, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 10, 9000, stream=20)
    b.mm(512, 512, 512, at=100, start=110, duration=30).mm(512, 512, 512, at=200, start=9010, duration=30)
    b.op("cudaStreamSynchronize", 300, 8740, cat="cuda_runtime")
    b.mm(512, 512, 512, at=9100, start=9110, duration=30)
    (found,) = [f for f in summarize(analyze(b.trace(), AnalysisOptions())).findings if f.id == "exposed_communication"]
    # the second product was launched 8,804 µs before it began, and all but 30 of the 9,000 µs are exposed
    assert found.gain_us == pytest.approx(8800, rel=0.01)


def test_findings_of_one_kernel_share_its_time_out(build: type[Builder]) -> None:
    """An odd GEMM of 4 ms: unaligned, and not below its roofline as well."""
    b = build().op(
        "aten::mm", 0, 5,
        **{"Input Dims": [[768, 768], [768, 5185]], "Input type": ["c10::BFloat16"] * 2,
           "Input Strides": [[768, 1], [5185, 1]], "Concrete Inputs": ["", ""]},
    )  # fmt: skip
    findings = summarize(analyze(b.launch(1, "Cijk_Ailk_Bljk_BBS", 10, 4000).trace(), AnalysisOptions())).findings
    assert [finding.id for finding in findings] == ["unaligned_gemms"]
