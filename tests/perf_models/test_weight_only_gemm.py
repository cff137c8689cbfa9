"""Products with integer weights."""

from __future__ import annotations

from typing import Any

import pytest

from tracelens.errors import SignatureError
from tracelens.perf_models import GEMM, bindings
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

M, N, K = 24, 64, 128


def read(name: str, **fields: Any) -> GEMM:
    model = bindings()[name].target(OpSignature(name=name, **fields))
    assert isinstance(model, GEMM)
    return model


def test_int8_products_are_summed_up_in_int32():
    model = read("aten::_int_mm", shapes=((M, K), (K, N)), dtypes=("signed char",) * 2)
    assert (model.flops(), model.hbm_bytes()) == (2 * M * N * K, M * K + K * N + 4 * M * N)
    assert model.compute_dtype is DType.INT8


def test_int8_products_of_other_inner_dims_are_an_error():
    with pytest.raises(SignatureError, match="inner dims differ"):
        read("aten::_int_mm", shapes=((M, K), (N, K)), dtypes=("signed char",) * 2)


def test_packed_int4_weights_take_half_a_byte_and_are_computed_like_x():
    scales = (K // 32, N, 2)
    model = read(
        "aten::_weight_int4pack_mm", shapes=((M, K), (N // 8, K // 128, 32, 4), (), scales),
        dtypes=("c10::BFloat16", "int", "Scalar", "c10::BFloat16"), scalars=("", "", "32", ""),
    )  # fmt: skip
    assert model.flops() == 2 * M * N * K
    assert model.hbm_bytes() == 2 * M * K + N * K / 2 + 2 * M * N + 2 * (K // 32 * N * 2)
    assert model.compute_dtype is DType.BF16


def test_int8_weights_have_a_scale_per_row():
    model = read(
        "aten::_weight_int8pack_mm", shapes=((M, K), (N, K), (N,)), dtypes=("c10::Half", "signed char", "c10::Half")
    )
    assert (model.flops(), model.hbm_bytes()) == (2 * M * N * K, 2 * M * K + N * K + 2 * M * N + 2 * N)


def test_a_fused_activation_adds_nothing_to_a_product_with_bias():
    shapes, dtypes = ((N,), (M, K), (K, N), (), (), ()), ("float",) * 3
    fused = read("aten::_addmm_activation", shapes=shapes, dtypes=dtypes, scalars=("", "", "", "1", "1", "True"))
    assert fused == read("aten::addmm", shapes=shapes[:5], dtypes=dtypes, scalars=("", "", "", "1", "1"))
    assert fused.flops() == M * N * (2 * K + 1)
