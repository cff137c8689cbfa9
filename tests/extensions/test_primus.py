"""Primus-Turbo's op names as GEMM, grouped GEMM, quantization and expert-parallel transfer."""

from __future__ import annotations

import pytest

from tracelens.errors import SignatureError
from tracelens.extensions import load_extension, overlay
from tracelens.perf_models.base import PerfModel, category_of
from tracelens.perf_models.collective import EPComm
from tracelens.registry import Registry
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

BINDINGS = overlay(Registry("traced_as", {}), [load_extension("primus")])
BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fnuz"
BFLOAT16 = "15"  # c10::ScalarType::BFloat16, as recorded


def read(name: str, shapes: tuple, dtypes: tuple[str, ...], scalars: tuple[str, ...] = ()) -> PerfModel:
    return BINDINGS[name].target(OpSignature(name=name, shapes=shapes, dtypes=dtypes, scalars=scalars))


@pytest.mark.parametrize("space", ["primus_turbo", "primus_turbo_cpp_extension"])
@pytest.mark.parametrize("name", ["grouped_gemm", "grouped_gemm_impl", "ck_grouped_gemm"])
@pytest.mark.parametrize("weights", [(8, 2048, 1408), (8, 1408, 2048)])
def test_grouped_gemm_finds_the_inner_dim_by_its_size(space: str, name: str, weights: tuple[int, ...]):
    model = read(f"{space}::{name}", ((4096, 2048), weights, (8,), (9,)), (BF16, BF16, "long int", "long int"))
    assert (model.m, model.n, model.k, model.groups) == (4096, 1408, 2048, 8)
    assert model.category == "GroupedGEMM_fwd"
    assert model.flops() == 2 * 4096 * 1408 * 2048
    assert model.hbm_bytes() == 2 * (4096 * 2048 + 8 * 2048 * 1408 + 4096 * 1408)


def test_grouped_gemm_of_zipped_lists_adds_the_rows_up():
    lists = (((100, 2048), (28, 2048)), ((2048, 1408), (2048, 1408)))
    model = read("primus_turbo::grouped_gemm", lists, (BF16, BF16))
    assert (model.m, model.n, model.k, model.groups) == (128, 1408, 2048, 2)


def test_grouped_gemm_in_fp8_writes_the_type_that_was_asked_for_and_not_its_weights():
    shapes = ((4096, 2048), (8, 1408, 2048), (), (), (8,), (9,), (), (), (), ())
    scalars = ("", "", "", "", "", "", "False", "True", BFLOAT16, "TENSORWISE")
    model = read("primus_turbo_cpp_extension::ck_grouped_gemm_fp8", shapes, (FP8, FP8), scalars)
    assert model.hbm_bytes() == (4096 * 2048 + 8 * 2048 * 1408) + 2 * 4096 * 1408


@pytest.mark.parametrize("space", ["primus_turbo", "primus_turbo_cpp_extension"])
@pytest.mark.parametrize(
    "name", ["grouped_gemm_variable_k", "grouped_gemm_variable_k_impl", "ck_grouped_gemm_variable_k"]
)
def test_the_weights_gradient_writes_one_result_per_group(space: str, name: str):
    model = read(f"{space}::{name}", ((4096, 2048), (4096, 1408), (8,), (9,)), (BF16, BF16, "long int", "long int"))
    assert (model.m, model.n, model.k, model.groups) == (4096, 1408, 2048, 8)
    assert model.category == "GroupedGEMM_bwd"
    assert model.flops() == 2 * 4096 * 1408 * 2048
    assert model.hbm_bytes() == 2 * (4096 * 2048 + 4096 * 1408 + 8 * 2048 * 1408)


def test_the_weights_gradient_of_zipped_lists_sums_over_each_groups_rows():
    lists = (((100, 2048), (28, 2048)), ((100, 1408), (28, 1408)))
    model = read("primus_turbo::grouped_gemm_variable_k", lists, (BF16, BF16))
    assert model.flops() == 2 * (100 + 28) * 2048 * 1408
    assert model.hbm_bytes() == 2 * (128 * 2048 + 128 * 1408 + 2 * 2048 * 1408)


def test_the_weights_gradient_of_zipped_lists_may_sum_over_another_number_in_each_group():
    """a [64,32] b [32,16] and a [64,48] b [48,16]: results of 64 x 16 over 32 and 48."""
    lists = (((64, 32), (64, 48)), ((32, 16), (48, 16)))
    model = read("primus_turbo::grouped_gemm_variable_k", lists, (BF16, BF16))
    assert model.flops() == 2 * 64 * 16 * (32 + 48)
    assert model.hbm_bytes() == 2 * (64 * 32 + 64 * 48 + 32 * 16 + 48 * 16 + 2 * 64 * 16)


def test_the_weights_gradient_without_recorded_groups_counts_the_bytes_of_one():
    model = read("primus_turbo::grouped_gemm_variable_k", ((128, 64), (128, 32)), (BF16, BF16))
    assert model.flops() == 2 * 128 * 64 * 32
    assert model.hbm_bytes() == 2 * (128 * 64 + 128 * 32 + 64 * 32)
    assert (model.parameters()["G"], model.parameters()["assumed"]) == (None, "bytes of 1 group")
    with pytest.raises(SignatureError, match="do not fit one another"):
        read("primus_turbo::grouped_gemm_variable_k", (((64, 32),), ((16, 8),)), (BF16, BF16))


def test_shapes_that_do_not_fit_are_refused_in_the_ops_words():
    with pytest.raises(SignatureError, match="primus_turbo::grouped_gemm: inner dims differ, 2048 and"):
        read("primus_turbo::grouped_gemm", ((4096, 2048), (8, 1000, 1408)), (BF16, BF16))


# A [m,k], B [k,n]: 4096 x 2048 times 2048 x 1408, in all eight ways to write it
@pytest.mark.parametrize("flips", [(a, b, c) for a in (0, 1) for b in (0, 1) for c in (0, 1)])
def test_scaled_gemm_reads_its_transposition_flags(flips: tuple[int, int, int]):
    a = (2048, 4096) if flips[0] else (4096, 2048)
    b = (1408, 2048) if flips[1] else (2048, 1408)
    scalars = ("", "", "", "", BFLOAT16, *(str(bool(f)) for f in flips), "TENSORWISE")
    model = read(
        "primus_turbo_cpp_extension::hipblaslt_gemm_fp8", (a, (1,), b, (1,)), (FP8, "float", FP8, "float"), scalars
    )
    assert (model.m, model.n, model.k) == ((1408, 4096, 2048) if flips[2] else (4096, 1408, 2048))
    assert model.flops() == 2 * 4096 * 1408 * 2048
    assert model.hbm_bytes() == 4096 * 2048 + 2048 * 1408 + 2 * 4096 * 1408 + 2 * 4


def test_a_transposed_product_swaps_the_operands_types():
    scalars = ("", "", "", "", BFLOAT16, "False", "False", "True", "TENSORWISE")
    types = (FP8, "float", "c10::Float8_e5m2fnuz", "float")
    model = read("primus_turbo::hipblaslt_gemm_fp8", ((4, 2), (1,), (2, 8), (1,)), types, scalars)
    assert (model.dtype, model.dtype_b) == (DType.FP8_E5M2FNUZ, DType.FP8_E4M3FNUZ)


def test_fp4_counts_two_values_per_byte_and_a_scale_per_32():
    m, n, k = 4096, 1408, 2048
    shapes = ((m, k // 2), (m, k // 32), (n, k // 2), (n, k // 32))
    scalars = ("", "", "", "", BFLOAT16, "False", "True", "False", "MX")
    types = ("c10::Float4_e2m1fn_x2", "c10::Float8_e8m0fnu", "c10::Float4_e2m1fn_x2", "c10::Float8_e8m0fnu")
    model = read("primus_turbo_cpp_extension::hipblaslt_gemm_fp4", shapes, types, scalars)
    assert model.flops() == 2 * m * n * k
    assert model.hbm_bytes() == (m * k + n * k) // 2 + 2 * m * n + (m + n) * k // 32


def test_scaled_gemm_without_recorded_flags_has_no_model():
    with pytest.raises(SignatureError, match="flags were not recorded"):
        read("primus_turbo::hipblaslt_gemm_fp8", ((4, 2), (1,), (2, 8), (1,)), (FP8, "float", FP8, "float"))


def test_quantization_reads_once_and_writes_each_copy():
    fp8 = read("primus_turbo::quantize_fp8_tensorwise", ((1024, 64), (), ()), (BF16, "", ""), ("", "26", ""))
    assert fp8.flops() == 1024 * 64
    assert fp8.hbm_bytes() == 1024 * 64 * (2 + 1)
    fp4 = read("primus::quantize_mxfp4_dual", ((1024, 64),), (BF16,))
    assert fp4.hbm_bytes() == 1024 * 64 * 2 + 2 * (1024 * 64 // 2 + 1024 * 64 // 32)
    assert read("primus::quantize_mxfp4_dual", ((1024, 64),), ("Foo",)).hbm_bytes() is None


def test_fused_layer_norm_and_modulation_has_twelve_and_fifteen_flops_per_element():
    forward = read("primus::fused_ln_modulate", ((256, 2, 64),), (BF16,))
    backward = read("primus::fused_ln_modulate_backward", ((256, 2, 64),), (BF16,))
    assert (forward.flops(), backward.flops()) == (12 * 256 * 2 * 64, 15 * 256 * 2 * 64)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("MoEDispatch", "MoE_comm_fwd"),
        ("MoECombine", "MoE_comm_fwd"),
        ("MoEDispatchBackward", "MoE_comm_bwd"),
        ("MoECombineBackward", "MoE_comm_bwd"),
    ],
)
def test_moe_transfers_are_bytes_on_the_wire_and_not_in_device_memory(name: str, category: str):
    model = read(name, ((4096, 7168),), (BF16,))
    assert isinstance(model, EPComm)
    assert category_of(BINDINGS[name]) == category == model.category
    assert (model.flops(), model.wire_bytes(), model.hbm_bytes()) == (0, 4096 * 7168 * 2, None)
