"""Who is asked about what, and in which order."""

from __future__ import annotations

import pytest

from tracelens.backends import System
from tracelens.backends.chain import OPTIONAL, absences, chain
from tracelens.backends.roofline_and_tile import Roofline, Tile
from tracelens.errors import UsageError
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, SDPA, Collective, EPComm
from tracelens.perf_models.base import WorkColumns
from tracelens.types.dtypes import DType

H100 = System(device=HardwareSpec.load("h100-sxm"))
PRODUCT = GEMM(m=4096, n=4096, k=4096)
ATTENTION = SDPA(b=1, s_q=4096, s_kv=4096, q_heads=16, kv_heads=16, d_qk=128, d_v=128)


def who(spec: str, *ops: object) -> list[str | None]:
    return list(chain(spec).estimate_many(WorkColumns.of(ops), H100).backend)


def test_the_roofline_answers_what_nobody_else_does():
    assert who("tile", PRODUCT, GEMM(m=8, n=8, k=8, dtype=DType.FP64)) == ["tile", "roofline"]


def test_a_family_has_its_own_backends():
    assert who("sdpa=tile", PRODUCT, ATTENTION) == ["roofline", "tile"]
    assert who("gemm=roofline,tile", PRODUCT, ATTENTION) == ["roofline", "tile"]


def test_every_row_is_what_its_backend_says():
    table = chain("sdpa=tile").estimate_many(WorkColumns.of([ATTENTION, PRODUCT]), H100)
    assert table.row(0) == Tile().estimate(ATTENTION, H100)
    assert table.row(1) == Roofline().estimate(PRODUCT, H100)


NODE = System.load("h100-sxm")
SUM = Collective(kind="all_reduce", elements_in=1 << 20, elements_out=1 << 20, ranks=8)
TOKENS = EPComm(tokens=4096, hidden=7168, ranks=8)


@pytest.mark.parametrize(
    ("spec", "answered"),
    [
        ("tile", ["tile", "collectives", "collectives"]),
        ("gemm=tile", ["tile", "collectives", "collectives"]),
        ("tile,collectives", ["tile", "collectives", "collectives"]),
        ("tile,collective=roofline", ["tile", "roofline", "collectives"]),
        ("roofline", ["roofline", "roofline", "roofline"]),
    ],
)
def test_collectives_and_exchanges_go_to_who_knows_links(spec, answered):
    assert list(chain(spec).estimate_many(WorkColumns.of([PRODUCT, SUM, TOKENS]), NODE).backend) == answered


def test_without_a_topology_the_roofline_answers_collectives():
    assert who("tile", SUM) == ["roofline"]


def test_a_chain_of_one_answers_as_that_backend():
    ops = [PRODUCT, SUM, TOKENS]
    table = chain("roofline").estimate_many(WorkColumns.of(ops), NODE)
    alone = Roofline().estimate_many(WorkColumns.of(ops), NODE)
    assert [table.row(i) for i in range(len(ops))] == [alone.row(i) for i in range(len(ops))]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tle", "no backend named 'tle'; did you mean tile"),
        ("gem=tile", "no family of operations named 'gem'"),
        (" ", "no backend"),
    ],
)
def test_a_wrong_chain_is_named(spec, message):
    with pytest.raises(UsageError, match=message):
        chain(spec)


def test_a_backend_whose_package_is_absent_is_named(monkeypatch):
    monkeypatch.setitem(OPTIONAL, "silicon", lambda: "aiconfigurator is not installed")
    monkeypatch.setitem(OPTIONAL, "origami", lambda: None)
    assert absences("gemm=silicon, origami,tile") == ["backend silicon has no answers: aiconfigurator is not installed"]
    assert absences("tile") == []
