"""By category: what the step takes, what it could take, and what it must take."""

from __future__ import annotations

import pytest

from tests.analysis.conftest import Builder
from tests.analysis.work.test_rates import add, found
from tracelens.analysis.sheets import perf_summary


def test_headroom_is_own_time_above_what_the_tile_model_expects(build: type[Builder]) -> None:
    """4096^3 in 800 µs, of which 137.4 GFLOP need 194 at 708 TFLOPS/s; an unknown kernel of 100; 60 idle between."""
    b = build().mm(4096, 4096, 4096, at=0, start=10, duration=800)
    b.op("mine::unknown", 80, 10).launch(81, "my_kernel", 870, 100)
    frame = found(b).frames[perf_summary.HEADROOM_TITLE].set_index("category")
    assert frame["own_us"].to_dict() == pytest.approx({"GEMM": 800, "other": 100, "idle": 60})
    assert frame.loc["GEMM", "roofline_own_us"] == pytest.approx(2 * 4096**3 / 708e6)
    assert frame.loc["GEMM", "roofline_own_us"] <= frame.loc["GEMM", "achievable_own_us"] < 400
    assert frame.loc["idle", ["achievable_own_us", "roofline_own_us"]].tolist() == [0, 0]
    # nothing is known of the other one, so nothing is said to be gained
    assert frame.loc["other", ["achievable_own_us", "headroom_us", "known_percent"]].tolist() == pytest.approx(
        [100, 0, 0]
    )
    assert frame["percent_of_step"].sum() == pytest.approx(100)


def test_waiting_for_work_from_before_recording_is_no_headroom(build: type[Builder]) -> None:
    """The first kernel of a second stream starts 500 µs after its launch, the recording being 200 old by then; of the
    510.5 idle µs the other 10.5 could go.
    """
    b = build().launch(180, "k", 185, 5).launch(200, "k", 700.5, 5, stream=8)
    frame = found(b).frames[perf_summary.HEADROOM_TITLE].set_index("category")
    assert frame.loc["idle", ["own_us", "achievable_own_us"]].tolist() == pytest.approx([510.5, 500])
    assert frame.loc["idle", "headroom_us"] == pytest.approx(10.5)


def test_time_beside_other_work_is_nobodys_headroom(build: type[Builder]) -> None:
    """An addition of 300 µs runs beside a GEMM for 200 of them."""
    b = build().mm(4096, 4096, 4096, at=0, start=10, duration=500)
    add(b, [4096, 4096], 10, 310, 300)
    b.events[-1]["tid"] = b.events[-1]["args"]["stream"] = 8
    frame = found(b).frames[perf_summary.HEADROOM_TITLE].set_index("category")
    assert frame["own_us"].to_dict() == pytest.approx({"GEMM": 500, "elementwise": 100})
