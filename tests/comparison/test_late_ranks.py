"""Ranks that alone changed are named, with what the others wait for them; else who comes last to collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import LATE, NOISE, SOME_RANKS, SPEED, Change
from tracelens.comparison.sides import Call, CallWork, Recorded, Side

STEPS = 4
OPS = (("mm", "GEMM", 1000), ("add", "elementwise", 200))
KERNELS = ("mm", "add", "ncclDevKernel_AllReduce")
CALLS = (
    *(Call(name=f"aten::{name}", category=category, shapes="((8, 8),)") for name, category, _ in OPS),
    Call(name="", category="collectives", kernel=KERNELS[-1]),
)


def rank(number: int, ns: np.ndarray) -> Recorded:
    """``ns``: by step, of a product, an addition and an all-reduce."""
    of_units = np.asarray(ns).ravel().astype(np.int64)
    unit, step, kinds = np.arange(3 * STEPS), np.repeat(np.arange(STEPS), 3), np.tile([0, 1, 2], STEPS)
    return Recorded(
        source=f"rank{number}", calls=CALLS, rates=(CallWork(),) * 3, call=kinds, step=step, kernel_ns=of_units,
        piece_unit=unit, piece_step=step, piece_ns=of_units, durations_ns=np.bincount(step, of_units).astype(np.int64),
        event_unit=unit, event_kernel=kinds, event_ns=of_units, kernel_names=KERNELS, repeats=np.ones(3 * STEPS),
        rank=number, has_steps=True,
    )  # fmt: skip


def job(
    ranks: int = 4, slower: Mapping[int, float] | None = None, sent_us: float = 200, seed: int = 0, twice: bool = False
) -> Side:
    """Every rank computes for 1.2 ms (within 0.5 %), ``slower`` times as long; an all-reduce ends when all were there."""
    random = np.random.default_rng(seed)
    times = np.array([(slower or {}).get(number, 1.0) for number in range(ranks)])
    own = (
        random.uniform(0.995, 1.005, (ranks, STEPS, 2)) * np.array([us for *_, us in OPS]) * times[:, None, None] * 1000
    )
    sent = own.sum(axis=2).max(axis=0) - own.sum(axis=2) + 1000 * sent_us
    run = [rank(number, np.concatenate((own[number], sent[number, :, None]), axis=1)) for number in range(ranks)]
    if twice:
        run = [replace(one, kernel_ns=one.kernel_ns * np.tile([1, 1, 2], STEPS)) for one in run]
    return Side(name="job", parts=(tuple(run),))


def told(a: Side, b: Side) -> list[Change]:
    return [change for change in compare_sides(a, b).changes if change.cause != NOISE]


@pytest.mark.parametrize("twice", [False, True])
def test_a_rank_that_alone_became_slower_is_one_sentence(twice: bool) -> None:
    """1.2 -> 1.8 ms on rank 3, for which the others wait: so is the step, whatever runs twice at once in that time."""
    found = compare_sides(job(), job(slower={3: 1.5}, seed=1, twice=twice))
    assert [change.cause for change in found.changes if change.cause != NOISE] == [SOME_RANKS]
    text = found.changes[0].text
    assert text == (
        "rank 3 alone +0.597 ms: 50 % slower, 1.2 -> 1.8 ms outside of collectives (+0.498 ms GEMM, +0.0999 ms "
        "elementwise); the other 3 wait for it"
    )
    assert [one.is_alone for one in found.ranks] == [False, False, False, True]
    assert {row.why for row in found.rows} == {
        "waiting for rank 3", "rank 3 alone: +0.498 ms GEMM", "rank 3 alone: +0.0999 ms elementwise"
    }  # fmt: skip
    assert found.changes[0].change_ms == pytest.approx(0.6, abs=0.01)
    assert found.changes[0].category == ""


@settings(max_examples=20)
@given(st.integers(2, 9), st.data())
def test_the_ranks_that_changed_are_named_whichever_and_however_many(ranks: int, data: st.DataObject) -> None:
    slow = data.draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=ranks - 1))
    factor = data.draw(st.floats(1.1, 5))
    a, b = job(ranks, seed=1), job(ranks, dict.fromkeys(slow, factor), seed=2)
    there, back = compare_sides(a, b), compare_sides(b, a)
    for found, sign in ((there, 1), (back, -1)):
        assert {one.rank for one in found.ranks if one.is_alone} == slow
        (change,) = [each for each in found.changes if each.cause == SOME_RANKS]
        assert sign * change.change_ms == pytest.approx(1.2 * (factor - 1), abs=0.03)
        # What the sentence says is in the rows and in the table of ranks
        own_ms = [one.change_ms for one in found.ranks if one.is_alone]
        theirs = [
            row.of_ranks_ms or 0.0 for row in found.rows if row.cause == SOME_RANKS and row.category != "collectives"
        ]
        assert sum(theirs) == pytest.approx(sum(own_ms) / len(own_ms), rel=1e-6)
        assert sum(each.change_ms for each in found.changes) == found.change_ms


@pytest.mark.sweep
def test_of_the_same_job_twice_no_rank_is_said_to_have_changed() -> None:
    """The intervals of all ranks hold together with 98 %: of 40 pairs few may."""
    found = [compare_sides(job(seed=2 * n), job(seed=2 * n + 1)).ranks for n in range(40)]
    assert sum(any(one.is_alone for one in ranks) for ranks in found) <= 2


def test_ranks_that_all_became_slower_are_not_named() -> None:
    found = compare_sides(job(), job(slower=dict.fromkeys(range(4), 1.3), seed=1))
    assert not any(one.is_alone for one in found.ranks)
    assert SOME_RANKS not in {change.cause for change in found.changes}


def test_a_rank_slower_than_others_that_became_slower_too_is_not_alone() -> None:
    """All by a fifth, rank 2 by two thirds: it is not alone, but the others wait for it."""
    changes = told(job(), job(slower={0: 1.2, 1: 1.2, 2: 2.0, 3: 1.2}, seed=1))
    assert SOME_RANKS not in {change.cause for change in changes}
    (late,) = [change for change in changes if change.cause == LATE]
    # The mean rank waits 3 / 4 of (2.0 - 1.2) * 1.2 ms
    assert late.text.startswith("exposed communication +0.7")
    assert "rank 2 is late: a rank waits 0.7" in late.text
    assert late.text.endswith("; outside of collectives it takes 1.2 -> 2.4 ms, the others 1.2 -> 1.44")
    assert 0.70 < late.change_ms < 0.74


def test_ranks_without_collectives_wait_for_nobody() -> None:
    a, b = job(sent_us=0), job(slower={0: 1.5}, seed=1, sent_us=0)
    alone = [replace(side, parts=(tuple(without_collectives(one) for one in side.parts[0]),)) for side in (a, b)]
    (change,) = told(*alone)
    # A quarter of 0.6 ms in the mean of the ranks
    assert change.text.startswith("rank 0 alone +0.149 ms: 50 % slower, 1.2 -> 1.8 ms")
    assert change.text.endswith("; the others are as before")


def without_collectives(one: Recorded) -> Recorded:
    ns = np.where(one.call == 2, 0, one.kernel_ns)
    return replace(one, kernel_ns=ns, piece_ns=ns, event_ns=ns, durations_ns=np.bincount(one.step, ns).astype(np.int64))


def test_communication_that_is_slower_everywhere_is_nobodys_fault() -> None:
    (change,) = told(job(), job(sent_us=5000, seed=1))
    assert (change.cause, change.category) == (SPEED, "collectives")


def test_another_rank_that_is_late_is_named_though_the_step_is_as_before() -> None:
    found = compare_sides(job(slower={1: 1.5}), job(slower={3: 1.5}, seed=1))
    (note,) = [note for note in found.notes if "wait for" in note]
    # 3 / 4 of 0.6 ms
    assert re.fullmatch(
        r"the others wait for rank 3, and waited for rank 1 before: a rank waits 0.4[45]\d ms for the last one, 0.4[45]\d ms before",
        note,
    )
    assert not [note for note in compare_sides(job(), job(seed=1)).notes if "wait for" in note]


def test_other_ranks_than_before_are_not_compared_one_by_one() -> None:
    found = compare_sides(job(4), job(5, slower={3: 2.0}))
    assert found.ranks == ()
    assert "4 ranks against 5, rank 4 in B alone; their means are compared" in found.notes
    assert compare_sides(job(1), job(1)).ranks == ()


def test_a_step_that_all_wait_in_names_the_rank() -> None:
    a, b = job(), job(seed=1)
    run = list(b.parts[0])
    ns = np.stack([one.kernel_ns.reshape(STEPS, 3) for one in run])
    ns[2, 3, 0] += 1_000_000
    ns[[0, 1, 3], 3, 2] += 1_000_000
    late = replace(b, parts=(tuple(rank(number, own) for number, own in enumerate(ns)),))
    (note,) = [note for note in compare_sides(a, late).notes if note.startswith("B: step 4 of 4")]
    assert note.endswith("ms to the mean step, most of it waiting for rank 2")
