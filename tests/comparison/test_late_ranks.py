"""A rank that the others wait for is named, and nothing else is said of the communication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tracelens.comparison.causes import LATE, SPEED
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.late_ranks import latecomer
from tracelens.comparison.sides import Call, Rates, Recorded, Side

STEPS = 4


def rank(number: int, waits_us: int) -> Recorded:
    """Steps of a product of 1 ms and an all-reduce of 200 us, before which it waits."""
    jitter = np.array([0, 1, -1, 0]) * 100
    comm = 200_000 + 1000 * waits_us + jitter
    ns = np.stack([np.full(STEPS, 1_000_000), comm], axis=1).ravel().astype(np.int64)
    unit, step = np.arange(2 * STEPS), np.repeat(np.arange(STEPS), 2)
    return Recorded(
        source=f"rank{number}", calls=(Call(name="aten::mm", category="GEMM", shapes="((8, 8), (8, 8))"),
                                       Call(name="", category="collectives", kernel="ncclDevKernel_AllReduce")),
        rates=(Rates(), Rates()), call=np.tile([0, 1], STEPS), step=step, kernel_ns=ns, piece_unit=unit,
        piece_step=step, piece_ns=ns, durations_ns=np.bincount(step, ns).astype(np.int64), event_unit=unit,
        event_kernel=np.tile([0, 1], STEPS), event_ns=ns, kernel_names=("gemm", "ncclDevKernel_AllReduce"),
        repeats=np.ones(2 * STEPS), rank=number, has_steps=True,
    )  # fmt: skip


def job(*waits_us: int) -> Side:
    return Side(name="job", parts=(tuple(rank(number, us) for number, us in enumerate(waits_us)),))


def test_the_rank_with_the_least_time_in_a_collective_is_the_late_one() -> None:
    found = latecomer(job(5000, 5000, 5000, 0))
    assert found is not None
    # The mean rank waits 3 / 4 of 5 ms for it
    assert (found.rank, found.waiting_ms) == (3, pytest.approx(3.75))
    assert latecomer(Side(name="one", parts=((rank(0, 0),),))) is None


def test_what_waits_on_two_streams_at_once_waits_once() -> None:
    """Every all-reduce runs twice at the same time: twice the kernel time, in the same time of the step."""
    twice = [
        replace(one, kernel_ns=one.kernel_ns * np.tile([1, 2], STEPS)) for one in job(5000, 5000, 5000, 0).parts[0]
    ]
    found = latecomer(Side(name="job", parts=(tuple(twice),)))
    assert found is not None
    assert (found.rank, found.waiting_ms) == (3, pytest.approx(3.75))


def test_waiting_for_a_rank_is_the_cause_where_it_is_most_of_the_change() -> None:
    (change,) = compare_sides(job(0, 0, 0, 0), job(5000, 5000, 5000, 0)).changes
    assert (change.cause, change.category) == (LATE, "collectives")
    assert change.text == (
        "exposed communication +3.75 ms: rank 3 late: a rank waits 3.75 ms for the last one, 0 ms before"
    )
    (back,) = compare_sides(job(5000, 5000, 5000, 0), job(0, 0, 0, 0)).changes
    assert back.text.startswith("exposed communication -3.75 ms: rank 3 no longer late")


def test_communication_that_is_slower_everywhere_is_nobodys_fault() -> None:
    (change,) = compare_sides(job(0, 0, 0, 0), job(5000, 5000, 5000, 5000)).changes
    assert change.cause == SPEED
