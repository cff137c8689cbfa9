"""A gate's false alarms and misses, on resampled steps of real traces."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TRACES, part
from tracelens.analysis.loaded_trace import AnalysisOptions, load
from tracelens.comparison.change_sentences import FACTS
from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import NOISE
from tracelens.comparison.inputs import side_of
from tracelens.comparison.measured_rows import Noise, _student
from tracelens.comparison.sides import PRODUCT, Floats, Side, by_step, call_role
from tracelens.comparison.traced_side import recorded

#: Real traces of several steps.
STEPPED = [
    "hta/nccl_parser_config/nccl_data.json.gz",
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "mi300/resnet_act_checkpoint.json.gz",
    "more/torchbench/trace.json.gz",
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank0.pt.trace.json.gz",
    "more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank3.pt.trace.json.gz",
]
RUNS, STEPS, LIMIT = 60, 20, 3.0


@lru_cache
def products_and_rest(name: str) -> Floats:
    """(2, step): ns of every complete step in matrix products, and in all else."""
    side = side_of(TRACES / name, AnalysisOptions())
    row = np.array([0 if call_role(call) == PRODUCT else 1 for call in side.first.calls], np.int64)
    return by_step(side, [row[side.first.call]], 2)[0]


def fails(a: Floats, b: Floats, limit: float = LIMIT) -> bool:
    """``row<+3%``: as ``gates.check`` decides, of one row."""
    found = Noise(a, b).interval()
    change = 100 * (b.mean() / a.mean() - 1) if a.mean() else 0.0
    return bool(change >= limit and not found.low[0] <= 0 <= found.high[0])


def draw(random: np.random.Generator, steps: Floats) -> Floats:
    return steps[:, random.integers(0, steps.shape[1], STEPS)]


@pytest.mark.shared
@pytest.mark.parametrize("one_in", [8, pytest.param(1, marks=pytest.mark.sweep)])
def test_repeated_runs_of_the_same_thing_seldom_fail_a_gate(one_in: int, shared_traces: Path) -> None:
    random, alarms = np.random.default_rng(0), []
    for name in STEPPED[::one_in]:
        steps = products_and_rest(name)
        for row in (steps.sum(axis=0, keepdims=True), steps[:1]):
            alarms += [fails(draw(random, row), draw(random, row)) for _ in range(RUNS)]
    assert np.mean(alarms) <= 0.02


@pytest.mark.shared
@pytest.mark.parametrize("one_in", [4, pytest.param(1, marks=pytest.mark.sweep)])
def test_products_that_are_five_percent_slower_fail_a_gate_of_three(one_in: int, shared_traces: Path) -> None:
    random, found = np.random.default_rng(0), []
    for name in STEPPED[::one_in]:
        row = products_and_rest(name)[:1]
        if row.mean() == 0:
            continue
        found += [fails(draw(random, row), 1.05 * draw(random, row)) for _ in range(RUNS)]
    assert len(found) >= 3 * RUNS // one_in
    assert 1 - np.mean(found) <= 0.05


def test_the_interval_holds_the_true_change_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        a, b = random.normal(100, 3, (1, 5)), random.normal(104, 3, (1, 5))
        found = Noise(a, b).interval()
        held += bool(found.low[0] <= 4 <= found.high[0])
    assert held / 400 >= 0.97


def test_one_step_on_either_side_says_nothing_of_chance() -> None:
    one = np.array([[100.0]])
    assert not Noise(one, one).is_known
    assert np.isnan(Noise(one, one).interval().low[0])


#: Recordings and the numbers of their complete steps, which differ by chance alone.
OF_CHANCE = {
    STEPPED[0]: range(4, 7), STEPPED[1]: range(101, 106), STEPPED[2]: range(15, 18), STEPPED[3]: range(5, 15),
    "more/kineto/samples/resnet50_num_workers_4/worker0.1623212756351.pt.trace.json.gz": range(5, 11),
    # Step 4 of the first, and 5 of the second, free and allocate memory besides: no chance, and named
    **{f"more/torchrec_pr1460/sst_long_a2a_optimizer_5/rank{rank}.pt.trace.json.gz": (5, 6) for rank in range(4)},
    **{f"more/torchrec_pr1460/sst_long_a2a_optimizer_5_qcomm_runA/rank{rank}.pt.trace.json.gz": (4, 6) for rank in range(4)},
}  # fmt: skip


@lru_cache
def single_steps(name: str) -> list[Side]:
    """Each of the recording's complete steps as if it had been recorded alone."""
    trace = load(TRACES / name)
    ones = [recorded(trace, AnalysisOptions(steps=str(number))) for number in OF_CHANCE[name]]
    return [Side(name=str(number), parts=((one,),)) for number, one in zip(OF_CHANCE[name], ones, strict=True)]


@pytest.mark.sweep
@pytest.mark.shared
@pytest.mark.parametrize("name", part(list(OF_CHANCE), 2))
def test_single_steps_of_one_recording_are_not_said_to_differ(name: str, shared_traces: Path) -> None:
    for a, b in combinations(single_steps(name), 2):
        assert [change.text for change in compare_sides(a, b).changes if change.cause != NOISE] == []


@pytest.mark.shared
def test_ops_are_not_said_to_be_others_where_launches_are_timed_by_another_clock(shared_traces: Path) -> None:
    """TorchRec's launches end up to 15 us later than the ops around them, so that each step's stand under other ops."""
    trace = load(TRACES / STEPPED[4])
    assert trace.tree.skewed > 0
    sides = [Side(name=at, parts=((recorded(trace, AnalysisOptions(steps=at)),),)) for at in ("4", "5", "6")]
    assert all(side.first.is_skewed for side in sides)
    assert [change.cause for change in compare_sides(*sides[1:]).changes] == [NOISE]
    first = compare_sides(*sides[:2]).changes[0]
    assert "allocator: cudaFree is gone, 25 calls a step" in first.text, "of which the step before was slower"
    timed_alike = [Side(name=side.name, parts=((replace(side.first, is_skewed=False),),)) for side in sides]
    assert {change.cause for change in compare_sides(*timed_alike[1:]).changes} & set(FACTS)


@pytest.mark.shared
@pytest.mark.parametrize("kernels_slower", [1.05, 1.3])
def test_of_single_steps_all_kernels_of_one_op_a_third_slower_are_told_and_a_twentieth_may_be(
    kernels_slower: float, shared_traces: Path
) -> None:
    a, b = single_steps(STEPPED[1])[1:3]
    one = b.first
    op = one.calls[np.bincount(one.call, one.kernel_ns).argmax()].name
    of_op = np.array([call.name == op for call in one.calls])[one.call]
    factor = np.where(of_op, kernels_slower, 1.0)
    slower = replace(
        one,
        kernel_ns=(one.kernel_ns * factor).astype(np.int64),
        event_ns=(one.event_ns * factor[one.event_unit]).astype(np.int64),
        piece_ns=(one.piece_ns * factor[one.piece_unit]).astype(np.int64),
    )
    told = [change for change in compare_sides(a, replace(b, parts=((slower,),))).changes if change.cause != NOISE]
    assert bool(told) == (kernels_slower == 1.3)
    assert all(op in change.text for change in told)


def test_a_side_of_one_step_spreads_as_the_other() -> None:
    a, b = np.array([[100.0, 101.0, 99.0, 100.0]]), np.array([[100.5]])
    found = Noise(a, b).interval()
    assert found.low[0] < 0 < found.high[0]


@pytest.mark.parametrize(
    ("outside", "quantiles"),
    [
        (0.01, {1: 63.657, 2: 9.925, 3: 5.841, 5: 4.032, 10: 3.169, 30: 2.750, 120: 2.617, 1e9: 2.576}),
        (0.001, {1: 636.62, 2: 31.599, 3: 12.924, 5: 6.869, 10: 4.587, 30: 3.646, 120: 3.373, 1e9: 3.291}),
    ],
)
def test_students_quantiles_are_those_of_the_tables(outside: float, quantiles: dict[float, float]) -> None:
    """Abramowitz and Stegun (1964), table 26.10; the last are those of the normal distribution."""
    found = _student(np.array(list(quantiles), float), outside)
    assert found == pytest.approx(list(quantiles.values()), rel=2e-3)
