"""Schedules run as event graphs give their closed forms, time and activations alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import UsageError
from tracelens.projection import pipeline, schedules
from tracelens.projection.schedules import Task

F, B = 3.0, 5.0


def run(name: str, *, p: int, m: int, v: int = 1, transfer: float = 0.0) -> pipeline.Pipeline:
    """Balanced: a rank's whole share of a micro-batch takes F forward and B backward."""
    return pipeline.run(
        schedules.load(name),
        forward_us=[[F / v] * v] * p,
        backward_us=[[B / v] * v] * p,
        kept_bytes=[[1 / v] * v] * p,
        transfer_us=transfer,
        micro_batches=m,
    )


@given(st.integers(1, 6), st.integers(1, 12))
def test_gpipe_and_1f1b_take_m_plus_p_minus_1(p: int, m: int) -> None:
    for name in ("gpipe", "1f1b"):
        assert run(name, p=p, m=m).time_us == pytest.approx((m + p - 1) * (F + B))


@given(st.integers(2, 5), st.integers(1, 4), st.integers(2, 4))
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, groups: int, v: int) -> None:
    m = groups * p
    assert run("interleaved", p=p, m=m, v=v).time_us == pytest.approx((m + (p - 1) / v) * (F + B))


@given(st.integers(1, 6), st.integers(1, 12))
def test_gpipe_keeps_every_micro_batch_and_1f1b_what_is_ahead(p: int, m: int) -> None:
    assert run("gpipe", p=p, m=m).kept_bytes == (m,) * p
    assert run("1f1b", p=p, m=m).kept_bytes == tuple(min(p - rank, m) for rank in range(p))


@pytest.mark.parametrize(("p", "v"), [(4, 2), (8, 3), (35, 3)])
def test_the_first_interleaved_rank_keeps_p_plus_p_minus_1_over_v(p: int, v: int) -> None:
    assert run("interleaved", p=p, m=2 * p, v=v).kept_bytes[0] == pytest.approx(p + (p - 1) / v)


def test_transfers_take_time_there_and_back() -> None:
    """One micro-batch through three ranks: two hops forward, two back."""
    assert run("1f1b", p=3, m=1, transfer=0.5).time_us == 3 * (F + B) + 4 * 0.5


def test_the_slowest_stage_paces_the_steady_state() -> None:
    """m = 10 on the slow rank, plus the first forward before and the last backward after it."""
    found = pipeline.run(
        schedules.load("1f1b"),
        forward_us=[[1.0], [2.0]],
        backward_us=[[1.0], [2.0]],
        kept_bytes=[[1.0], [1.0]],
        transfer_us=0.0,
        micro_batches=10,
    )
    assert found.time_us == 1 + 10 * 4 + 1
    assert found.busy_us == (20.0, 40.0)


@given(st.sampled_from(["gpipe", "1f1b", "interleaved"]), st.integers(1, 5), st.integers(1, 4))
def test_every_rank_passes_every_micro_batch_once_each_way(name: str, p: int, groups: int) -> None:
    v = 2 if name == "interleaved" else 1
    m = groups * p
    expected = Counter(Task(kind, i, c) for kind in "FB" for i in range(m) for c in range(v))
    for rank in range(p):
        assert Counter(schedules.load(name).tasks(rank, ranks=p, chunks=v, micro_batches=m)) == expected


def test_what_a_schedule_cannot_do_is_an_error() -> None:
    with pytest.raises(UsageError, match="4 pipeline ranks do not divide 6 micro-batches"):
        run("interleaved", p=4, m=6, v=2)
    with pytest.raises(UsageError, match="one chunk per rank, not 2"):
        run("1f1b", p=4, m=4, v=2)
    with pytest.raises(UsageError, match="no pipeline schedule named '1f2b'; did you mean 1f1b"):
        schedules.load("1f2b")


def test_a_schedule_that_waits_for_itself_is_an_error() -> None:
    class Backwards:
        def tasks(self, rank: int, *, ranks: int, chunks: int, micro_batches: int) -> Sequence[Task]:
            return [Task("B", 0, 0), Task("F", 0, 0)]

    with pytest.raises(UsageError, match="waits for itself"):
        pipeline.run(
            Backwards(), forward_us=[[1.0]], backward_us=[[1.0]], kept_bytes=[[1.0]], transfer_us=0.0, micro_batches=1
        )
