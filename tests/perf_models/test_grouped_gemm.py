"""Grouped GEMM: the weights of every group count, and the backward is twice the forward."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.perf_models import GEMM, GroupedGEMM, GroupedGEMMVariableK, bindings, inverses
from tracelens.perf_models.gemm import PADDED_ROWS
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

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
    assert forward == GroupedGEMM(m=100, k=16, n=8, groups=4, dtype_b=DType.BF16, padded=True)
    assert gradient == GroupedGEMMVariableK(m=100, k=16, n=8, groups=4, dtype_b=DType.BF16, padded=True)


def test_rows_that_offsets_share_out_are_at_most_and_a_batch_of_matrices_is_exact():
    def read(*shapes: tuple[int, ...]) -> GroupedGEMM:
        signature = OpSignature(name="aten::_grouped_mm", shapes=shapes, dtypes=("c10::BFloat16",) * 2 + ("int",))
        return bindings()["aten::_grouped_mm"].target(signature)

    assert read((100, 16), (4, 16, 8), (4,)).at_most == PADDED_ROWS
    assert read((100, 16), (4, 16, 8), (4,)).backward().at_most == PADDED_ROWS
    assert not read((4, 25, 16), (4, 16, 8)).at_most


@pytest.mark.parametrize("kind", [GroupedGEMM, GroupedGEMMVariableK])
def test_what_a_trace_would_record_reads_back(kind: type[GroupedGEMM]) -> None:
    model = kind(m=4096, n=768, k=2048, groups=16, dtype=DType.BF16)
    signature = inverses()["aten::_grouped_mm"].target(model)
    read_back = bindings()["aten::_grouped_mm"].target(signature)
    assert type(read_back) is kind
    assert (read_back.m, read_back.n, read_back.k, read_back.groups) == (4096, 768, 2048, 16)
    assert inverses()["aten::_grouped_mm"].target(read_back) == signature


M, N, K, G = 96, 8, 32, 4
RANKS = {
    # 2-D by 3-D: C [m, n]; 3-D by 2-D: C [m, n], the columns shared out; 3-D by 3-D: C [g, m, n]; 2-D by 2-D: C [g, m, n]
    "rows": (((M, K), (G, K, N)), 2 * M * N * K, M * K + G * K * N, M * N),
    "columns": (((G, M, K), (K, N)), 2 * M * N * K, G * M * K + K * N, M * N),
    "equal groups": (((G, M, K), (G, K, N)), 2 * G * M * N * K, G * M * K + G * K * N, G * M * N),
    "sum": (((M, K), (K, N)), 2 * M * N * K, M * K + K * N, G * M * N),
}


@pytest.mark.parametrize("ranks", RANKS)
def test_aten_grouped_mm_in_all_ranks(ranks: str):
    (a, b), flops, read, written = RANKS[ranks]
    op = OpSignature(
        name="aten::_grouped_mm", shapes=(a, b, (G,), (), ()), dtypes=("c10::BFloat16",) * 2 + ("int", "", "")
    )
    model = bindings()[op.name].target(op)
    assert (model.flops(), model.hbm_bytes()) == (flops, 2 * (read + written))


@pytest.mark.parametrize("ranks", RANKS)
def test_aten_scaled_grouped_mm_reads_scales_and_writes_bf16(ranks: str):
    (a, b), flops, read, written = RANKS[ranks]
    fp8, scale = "c10::Float8_e4m3fn", "c10::Float8_e8m0fnu"
    op = OpSignature(
        name="aten::_scaled_grouped_mm", shapes=(a, b, (M,), (G, N), (G,), (), (), (), ()),
        dtypes=(fp8, fp8, scale, scale, "int", "", "", "", ""), scalars=("",) * 7 + ("15", "True"),
    )  # fmt: skip
    model = bindings()[op.name].target(op)
    assert (model.flops(), model.hbm_bytes()) == (flops, read + 2 * written + M + G * N)
    assert model.compute_dtype is DType.FP8_E4M3FN


def test_aten_scaled_grouped_mm_of_packed_fp4_has_twice_the_sum():
    op = OpSignature(
        name="aten::_scaled_grouped_mm_v2",
        shapes=((M, K // 2), (G, K // 2, N), ((M, 2),), (), (), ((G, N),), (), (), (G,), (), ()),
        dtypes=("c10::Float4_e2m1fn_x2",) * 2 + ("TensorList",),
    )
    model = bindings()[op.name].target(op)
    assert model.flops() == 2 * M * N * K
    assert model.hbm_bytes() == (M * K + G * K * N) / 2 + 2 * M * N + 2 * M + G * N
