"""GEMM: the count, its laws, and how aten's products are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import SignatureError
from tracelens.perf_models import GEMM, bindings, inverses
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

SIZES = st.integers(1, 4096)


def read(name: str, **fields: object) -> GEMM:
    return bindings()[name].target(OpSignature(name=name, **fields))  # type: ignore[arg-type]


def test_a_multiply_add_counts_as_two():
    assert GEMM(m=2, n=3, k=5).flops() == 2 * 2 * 3 * 5


def test_a_bias_adds_once_per_result_and_is_read_once():
    plain, biased = GEMM(m=2, n=3, k=5), GEMM(m=2, n=3, k=5, bias=True)
    assert biased.flops() - plain.flops() == 2 * 3
    assert biased.hbm_bytes() - plain.hbm_bytes() == 3 * 2  # type: ignore[operator]


def test_bytes_read_both_operands_and_write_the_result_in_their_own_types():
    gemm = GEMM(m=2, n=3, k=5, dtype=DType.FP8_E4M3FN, dtype_b=DType.FP4_E2M1, dtype_out=DType.BF16)
    assert gemm.hbm_bytes() == 2 * 5 * 1 + 5 * 3 * 0.5 + 2 * 3 * 2


def test_scales_count_in_their_type():
    assert GEMM(m=1, n=1, k=32, dtype=DType.FP8_E4M3FN, scale_elements=2).hbm_bytes() == 32 + 32 + 1 + 2 * 4


@pytest.mark.parametrize("operand", ["dtype", "dtype_b", "dtype_out"])
def test_an_unknown_dtype_gives_no_bytes(operand: str):
    assert GEMM(m=1, n=1, k=1, **{operand: DType.parse("Foo")}).hbm_bytes() is None  # type: ignore[arg-type]


@given(SIZES, SIZES, SIZES, SIZES)
def test_backward_is_two_gemms_and_costs_twice_the_forward(m: int, n: int, k: int, b: int):
    forward = GEMM(m=m, n=n, k=k, b=b)
    assert sum(g.flops() for g in forward.backward()) == 2 * forward.flops()


@given(SIZES, SIZES, SIZES, SIZES, SIZES)
def test_flops_are_additive_over_the_batch(m: int, n: int, k: int, b1: int, b2: int):
    def batch(b: int) -> int:
        return GEMM(m=m, n=n, k=k, b=b, bias=True).flops()

    assert batch(b1) + batch(b2) == batch(b1 + b2)


@given(SIZES, SIZES, SIZES, st.sampled_from(["m", "n", "k", "b"]))
def test_work_is_monotone_in_every_dimension(m: int, n: int, k: int, grown: str):
    sizes = {"m": m, "n": n, "k": k, "b": 1}
    small, large = GEMM(**sizes), GEMM(**(sizes | {grown: sizes[grown] + 1}))
    assert large.flops() > small.flops()
    assert large.hbm_bytes() > small.hbm_bytes()  # type: ignore[operator]


def test_addmm_reads_its_bias_before_the_operands():
    gemm = read(
        "aten::addmm",
        shapes=((7,), (2, 5), (5, 7), (), ()),
        dtypes=("float", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"),
        strides=((1,), (5, 1), (1, 5), (), ()),
    )
    assert (gemm.m, gemm.n, gemm.k, gemm.bias) == (2, 7, 5, True)
    assert gemm.hbm_bytes() == 2 * (2 * 5 + 5 * 7 + 2 * 7) + 4 * 7
    assert gemm.parameters() == {
        "M": 2, "N": 7, "K": 5, "B": 1, "bias": True, "stride_A": (5, 1), "stride_B": (1, 5),
        "dtype_A_B": ("c10::BFloat16", "c10::BFloat16"), "transpose": (True, False),
    }  # fmt: skip


def test_linear_folds_its_leading_dims_and_transposes_the_weight():
    gemm = read("aten::linear", shapes=((4, 3, 5), (7, 5), (7,)), dtypes=("float",) * 3)
    assert (gemm.m, gemm.n, gemm.k, gemm.b, gemm.bias) == (12, 7, 5, 1, True)
    assert bindings()["aten::linear"].options["leaf_only"]


def test_matmul_broadcasts_the_batches_of_both_operands():
    types = ("float", "float")
    model = bindings()["aten::matmul"].target(
        OpSignature(name="aten::matmul", shapes=((2, 1, 4, 8), (3, 8, 5)), dtypes=types)
    )
    assert (model.b, model.m, model.n, model.k) == (6, 4, 5, 8)


def test_scaled_mm_finds_its_bias_by_its_slot_and_writes_what_out_dtype_says():
    fields = {
        "shapes": ((16, 32), (32, 8), (), (), (), (), (), ()),
        "dtypes": ("c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "float", "float", "", "", "Scalar", "Scalar"),
        "scalars": ("", "", "", "", "", "", "15", "False"),
    }
    plain = read("aten::_scaled_mm", **fields)
    biased = read("aten::_scaled_mm", **(fields | {"shapes": ((16, 32), (32, 8), (), (), (8,), (), (), ())}))
    assert (plain.bias, biased.bias) == (False, True)
    assert plain.hbm_bytes() == 16 * 32 + 32 * 8 + 2 * 16 * 8 + 2 * 4


def test_operands_that_do_not_fit_are_an_error_that_shows_both():
    with pytest.raises(SignatureError, match="aten::mm: inner dims differ, 5 and 6"):
        read("aten::mm", shapes=((2, 5), (6, 3)))


def test_a_wrong_rank_is_an_error_that_shows_the_shape():
    with pytest.raises(SignatureError, match="input 1 should have 2 dims"):
        read("aten::mm", shapes=((2, 5), (8,)))


FLOATS = st.sampled_from([DType.FP32, DType.BF16, DType.FP16])


@given(SIZES, SIZES, SIZES, FLOATS)
def test_mm_reads_back_what_its_inverse_records(m: int, n: int, k: int, dtype: DType):
    model = GEMM(m=m, n=n, k=k, dtype=dtype)
    _assert_round_trip("aten::mm", model)


@given(SIZES, SIZES, SIZES, SIZES)
def test_bmm_reads_back_what_its_inverse_records(b: int, m: int, n: int, k: int):
    _assert_round_trip("aten::bmm", GEMM(b=b, m=m, n=n, k=k))


@given(SIZES, SIZES, SIZES)
def test_addmm_reads_back_what_its_inverse_records(m: int, n: int, k: int):
    _assert_round_trip("aten::addmm", GEMM(m=m, n=n, k=k, bias=True))


def _assert_round_trip(name: str, model: GEMM) -> None:
    signature = inverses()[name].target(model)
    read_back = bindings()[name].target(signature)
    assert (read_back.m, read_back.n, read_back.k, read_back.b) == (model.m, model.n, model.k, model.b)
    assert (read_back.flops(), read_back.hbm_bytes()) == (model.flops(), model.hbm_bytes())
    assert inverses()[name].target(read_back) == signature
