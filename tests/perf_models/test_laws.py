"""Laws that hold for every family: additive over the batch, at least the minimum, monotone, None when unknown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples, part, row_by_row
from tests.perf_models.families import FAMILIES, Make
from tracelens.perf_models import Collective, EPComm, PerfModel
from tracelens.types.dtypes import DType

#: Models whose work is on the wire, which have laws of their own below.
ON_THE_WIRE = {"Collective", "CustomCollective", "AllReduceRMSNorm", "EPComm", "ForeignExchange"}
#: Dimensions that other models share; no op is one.
ABSTRACT = {"ModelRecord", "MoELayer", "HyperConnection", "UnknownWork", "ForeignModel", "_OverCache"}
#: Their work is that of a compiled program, which has one batch: tests/trace/formats holds it against XProf's.
COMPILED = "tracelens.perf_models.xla"
BATCH = st.integers(1, 10_000)
every_family = pytest.mark.parametrize(("make", "fixed"), part(list(FAMILIES.values()), 3), ids=FAMILIES)


def test_every_perf_model_of_the_core_obeys_the_laws() -> None:
    covered = {type(make(3, DType.BF16)).__name__ for make, _ in FAMILIES.values()}
    modules = "tracelens.perf_models."
    defined = {c.__name__ for c in _below(PerfModel) if c.__module__.startswith(modules) and c.__module__ != COMPILED}
    assert defined - covered - ON_THE_WIRE - ABSTRACT == set()


def _below(model: type[PerfModel]) -> Iterator[type[PerfModel]]:
    for found in model.__subclasses__():
        yield found
        if found.__name__ != "ForeignModel":  # those below it are made of a file's classes, in other tests
            yield from _below(found)


@every_family
@settings(max_examples=examples(25))
@given(BATCH, BATCH)
def test_flops_are_additive_over_the_batch(make: Make, fixed: int, a: int, b: int):
    together, apart = make(a + b, DType.BF16).flops(), [make(n, DType.BF16).flops() for n in (a, b)]
    assert together - fixed == sum(f - fixed for f in apart)  # type: ignore[operator,misc]


@every_family
@settings(max_examples=examples(25))
@given(BATCH)
def test_bytes_grow_with_the_batch_and_with_the_width(make: Make, fixed: int, b: int):
    nbytes = make(b, DType.BF16).hbm_bytes()
    assert nbytes is not None
    assert make(b + 1, DType.BF16).hbm_bytes() > nbytes  # type: ignore[operator]
    assert make(b, DType.FP32).hbm_bytes() > nbytes  # type: ignore[operator]


@row_by_row(("make", "fixed"), FAMILIES.values())
def test_an_unknown_dtype_gives_no_bytes_and_keeps_the_flops(make: Make, fixed: int):
    assert make(3, DType.parse("Foo")).hbm_bytes() is None
    assert make(3, DType.parse("Foo")).flops() == make(3, DType.BF16).flops()


@row_by_row(("make", "fixed"), FAMILIES.values())
def test_what_does_not_communicate_has_no_wire_bytes(make: Make, fixed: int):
    assert make(3, DType.BF16).wire_bytes() == 0


@given(st.integers(0, 10**6), st.integers(1, 8192), st.floats(0, 1))
def test_wire_bytes_never_exceed_the_tensor(tokens: int, hidden: int, share: float):
    assert 0 <= EPComm(tokens=tokens, hidden=hidden, remote_share=share).wire_bytes() <= tokens * hidden * 2  # type: ignore[operator]


@given(st.integers(1, 10**9), st.integers(1, 1024))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(n: int, ranks: int):
    def wire(kind: str, n_in: int, n_out: int) -> float:
        return Collective(kind=kind, elements_in=n_in, elements_out=n_out, ranks=ranks).wire_bytes()  # type: ignore[return-value]

    assert wire("all_reduce", n, n) == pytest.approx(
        wire("reduce_scatter", n, n // ranks) + wire("all_gather", n // ranks, n)
    )
