"""A trace as a backend: what was recorded takes as long again, its kind keeps its efficiency, the rest its estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tracelens.backends import System
from tracelens.backends.measured import MeasuredBackend, MeasuredCall, MeasuredStep, key_of, kind_of
from tracelens.backends.roofline_and_tile import Roofline
from tracelens.perf_models import GEMM, SDPA, CacheWrite, Collective, GroupedGEMM, PerfModel
from tracelens.perf_models.base import WorkColumns
from tracelens.types.dtypes import DType

BASE = Roofline()
SYSTEM = System.load("dgx-h100")
SMALL, LARGE = GEMM(m=4096, n=4096, k=4096), GEMM(m=8192, n=8192, k=8192)
OTHER = GEMM(m=8192, n=4096, k=2048)


def call(model: PerfModel | None, count: float, time_us: float) -> MeasuredCall:
    return MeasuredCall(name="op", model=model, count=count, time_us=time_us)


def found_of(*calls: MeasuredCall, asked: list[PerfModel]) -> list[tuple[str, float]]:
    backend = MeasuredBackend(MeasuredStep(step_us=1e4, idle_us=0.0, calls=calls), BASE, SYSTEM)
    table = backend.estimate_many(WorkColumns.of(asked), SYSTEM)
    return list(zip(table.backend, table.time_us.tolist(), strict=True))


def test_a_call_takes_its_mean_time_and_its_kind_the_ratio_of_all_time() -> None:
    small, large, other = BASE.estimate_many(WorkColumns.of([SMALL, LARGE, OTHER]), SYSTEM).time_us.tolist()
    # twice 3 times and once 5 times as long as estimated; the small one again 6 times: (2 * 3 + 2 * 6) / 4 = 4.5
    calls = (call(SMALL, 2, 3 * small), call(LARGE, 1, 5 * large), call(SMALL, 2, 6 * small))
    ratio = (2 * 3 * small + 5 * large + 2 * 6 * small) / (4 * small + large)
    assert found_of(*calls, asked=[SMALL, LARGE, OTHER]) == [
        ("measured", pytest.approx(4.5 * small)),
        ("measured", pytest.approx(5 * large)),
        ("measured efficiency", pytest.approx(ratio * other)),
    ]


def test_what_nobody_knows_and_what_took_no_time_says_nothing() -> None:
    estimate = BASE.estimate_many(WorkColumns.of([SMALL, OTHER]), SYSTEM).time_us.tolist()
    found = found_of(call(None, 5, 100.0), call(SMALL, 1, 0.0), asked=[SMALL, OTHER])
    assert [us for _, us in found] == pytest.approx(estimate)
    assert not {name for name, _ in found} & {"measured", "measured efficiency"}


def test_a_call_that_no_backend_knows_or_that_takes_none_of_its_time_says_nothing_of_its_kind() -> None:
    nothing, something = (CacheWrite(elements=n, dtype=DType.BF16) for n in (0, 1 << 20))
    small, zero, *wanted = BASE.estimate_many(
        WorkColumns.of([SMALL, nothing, OTHER, something]), SYSTEM
    ).time_us.tolist()
    assert zero == 0
    unknown = replace(SMALL, dtype=None, m=1)
    found = found_of(
        call(nothing, 1, 50.0), call(unknown, 1, 50.0), call(SMALL, 1, 2 * small), asked=[OTHER, something]
    )
    assert found == [("measured efficiency", pytest.approx(2 * wanted[0])), ("roofline", wanted[1])]


def test_a_collective_counts_among_the_ranks_of_one_node() -> None:
    inside, group = (Collective(kind="all_reduce", elements_in=1 << 20, elements_out=1 << 20, ranks=n) for n in (8, 9))
    spread = replace(inside, ranks=4, stride=2)
    calls = tuple(call(model, 1, 777.0) for model in (inside, group, spread))
    assert [us == 777 for _, us in found_of(*calls, asked=[inside, group, spread, replace(spread, stride=3)])] == [
        True, False, True, False,
    ]  # fmt: skip


def test_calls_of_the_same_work_are_the_same_call() -> None:
    assert key_of(SMALL) == key_of(replace(SMALL, dtype=DType.FP16))
    assert key_of(OTHER) == key_of(GEMM(m=4096, n=8192, k=2048))
    distinct = [
        SMALL, LARGE, OTHER, replace(SMALL, dtype=DType.FP8_E4M3FN), replace(SMALL, b=2), replace(SMALL, k=2048),
        *(SDPA(**{"b": 1, "s_q": 64, "s_kv": 64, "q_heads": 8, "kv_heads": 8, "d_qk": 128, "d_v": 128} | {name: 32})
          for name in ("b", "s_q", "s_kv", "q_heads", "d_qk", "d_v")),
        *(GroupedGEMM(**{"m": 64, "n": 64, "k": 64, "groups": 8} | {name: 32}) for name in ("m", "n", "groups")),
        *(Collective(kind=kind, elements_in=8, elements_out=8 * n, ranks=n)
          for kind, n in (("all_gather", 2), ("all_gather", 4), ("all_reduce", 1))),
    ]  # fmt: skip
    assert len({key_of(model) for model in distinct}) == len(distinct)
    # what shares an efficiency: a family by precision and direction
    assert kind_of(SMALL) == kind_of(LARGE) != kind_of(replace(SMALL, dtype=DType.FP8_E4M3FN))
    grouped = GroupedGEMM(m=64, n=64, k=64, groups=8)
    assert kind_of(grouped) != kind_of(grouped.backward())
