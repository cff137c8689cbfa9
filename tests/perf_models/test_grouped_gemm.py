"""Grouped GEMM: the weights of every group count, and the backward is twice the forward."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.dtypes import DType
from tracelens.perf_models import GEMM, GroupedGEMM, GroupedGEMMVariableK, bindings, inverses
from tracelens.signature import OpSignature

SIZES = st.integers(1, 4096)


def test_every_groups_weight_is_read():
    model = GroupedGEMM(m=100, n=8, k=16, groups=4)
    assert model.flops() == 2 * 100 * 8 * 16
    assert model.hbm_bytes() == 2 * (100 * 16 + 4 * 16 * 8 + 100 * 8)


def test_the_result_has_its_own_type():
    model = GroupedGEMM(m=100, n=8, k=16, groups=4, dtype=DType.FP8_E4M3FN, dtype_out=DType.BF16)
    assert model.hbm_bytes() == 100 * 16 + 4 * 16 * 8 + 2 * 100 * 8


def test_backward_reads_the_gradient_twice_and_writes_both_gradients():
    a, b, c = 100 * 16, 4 * 16 * 8, 100 * 8
    backward = GroupedGEMM(m=100, n=8, k=16, groups=4).backward()
    assert backward.flops() == 4 * 100 * 8 * 16
    assert backward.hbm_bytes() == 2 * (2 * c + (a + b) + (a + b))
    assert backward.category == "GroupedGEMM_bwd"


def test_the_weight_gradient_writes_one_matrix_per_group():
    model = GroupedGEMMVariableK(m=100, n=8, k=16, groups=4)
    assert model.flops() == 2 * 100 * 8 * 16
    assert model.hbm_bytes() == 2 * (100 * 16 + 100 * 8 + 4 * 16 * 8)


@given(SIZES, SIZES, SIZES)
def test_one_group_is_a_gemm(m: int, n: int, k: int):
    grouped, plain = GroupedGEMM(m=m, n=n, k=k, groups=1), GEMM(m=m, n=n, k=k)
    assert (grouped.flops(), grouped.hbm_bytes()) == (plain.flops(), plain.hbm_bytes())
    assert grouped.backward().flops() == sum(g.flops() for g in plain.backward())


def test_an_unknown_dtype_gives_no_bytes():
    assert GroupedGEMM(m=1, n=1, k=1, groups=1, dtype=None).hbm_bytes() is None


def test_aten_grouped_mm_tells_shared_rows_from_a_shared_sum():
    def read(*shapes: tuple[int, ...]) -> GroupedGEMM:
        signature = OpSignature(name="aten::_grouped_mm", shapes=shapes, dtypes=("c10::BFloat16",) * 2 + ("int",))
        return bindings()["aten::_grouped_mm"].target(signature)

    forward, gradient = read((100, 16), (4, 16, 8), (4,)), read((16, 100), (100, 8), (4,))
    assert forward == GroupedGEMM(m=100, k=16, n=8, groups=4, dtype_b=DType.BF16)
    assert gradient == GroupedGEMMVariableK(m=100, k=16, n=8, groups=4, dtype_b=DType.BF16)


@pytest.mark.parametrize("kind", [GroupedGEMM, GroupedGEMMVariableK])
def test_what_a_trace_would_record_reads_back(kind: type[GroupedGEMM]) -> None:
    model = kind(m=4096, n=768, k=2048, groups=16, dtype=DType.BF16)
    signature = inverses()["aten::_grouped_mm"].target(model)
    read_back = bindings()["aten::_grouped_mm"].target(signature)
    assert type(read_back) is kind
    assert (read_back.m, read_back.n, read_back.k, read_back.groups) == (4096, 768, 2048, 16)
    assert inverses()["aten::_grouped_mm"].target(read_back) == signature
