"""Bytes and FLOPs that the recorded arguments decide: unread biases, repeated batches, windows, masks, wide sums."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.extensions import load_extension, overlay
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM, PerfModel, bindings, recorded_signature
from tracelens.perf_models.collective import GROUP_SIZES
from tracelens.perf_models.sdpa import attended_pairs, windowed
from tracelens.registry import Registry
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape

BF16, FP32, INT32, INT64 = "c10::BFloat16", "float", "int", "long int"
FLASH_ATTN = overlay(Registry("traced_as", {}), [load_extension("flash_attn")])


def read(
    name: str,
    *shapes: Shape,
    types: tuple[str, ...] = (),
    strides: tuple[Shape, ...] | None = None,
    scalars: dict[int, str] | None = None,
    registry: Registry | None = None,
) -> PerfModel:
    """The model of a call with these tensors, BF16 unless said otherwise, and these scalars by slot."""
    scalars = scalars or {}
    slots = max(len(shapes), *(index + 1 for index in scalars)) if scalars else len(shapes)
    recorded = tuple(shapes[i] if i < len(shapes) else () for i in range(slots))
    op = OpSignature(
        name=name,
        shapes=recorded,
        dtypes=tuple(types[i] if i < len(types) else BF16 if shape else "Scalar" for i, shape in enumerate(recorded)),
        strides=strides,
        scalars=tuple(scalars.get(i, "") for i in range(slots)),
    )
    model: PerfModel = (registry if registry is not None else bindings())[name].target(op)
    return model


@pytest.mark.parametrize(
    ("beta", "flops", "elements"),
    [("1", 2 * 3 * 5 * 7 + 3 * 7, 3 * 5 + 5 * 7 + 3 * 7 + 7), ("0", 2 * 3 * 5 * 7, 3 * 5 + 5 * 7 + 3 * 7)],
)
def test_a_bias_times_zero_is_not_read(beta: str, flops: int, elements: int):
    model = read("aten::addmm", (7,), (3, 5), (5, 7), scalars={3: beta, 4: "1"})
    assert (model.flops(), model.hbm_bytes()) == (flops, 2 * elements)


def test_scores_into_an_uninitialized_tensor_do_not_read_it():
    """``baddbmm(empty, q, k, beta=0)`` of 2 x [64,8] by [8,64]: the 2 x 64 x 64 result is written only."""
    model = read("aten::baddbmm", (2, 64, 64), (2, 64, 8), (2, 8, 64), scalars={3: "0", 4: "0.35"})
    assert model.hbm_bytes() == 2 * 2 * (64 * 8 + 8 * 64 + 64 * 64)
    assert model.flops() == 2 * 2 * 64 * 64 * 8


def test_an_expanded_bias_is_read_once():
    model = read("aten::addmm", (3, 7), (3, 5), (5, 7), strides=((0, 1), (5, 1), (7, 1)))
    assert model.hbm_bytes() == 2 * (3 * 5 + 5 * 7 + 3 * 7 + 7)


def test_a_matrix_that_all_products_of_a_batch_share_is_read_once():
    """16 x [4,32] by one [32,64] with batch stride 0."""
    model = read("aten::bmm", (16, 4, 32), (16, 32, 64), strides=((128, 32, 1), (0, 64, 1)))
    assert model.hbm_bytes() == 2 * (16 * 4 * 32 + 32 * 64 + 16 * 4 * 64)
    assert model.flops() == 2 * 16 * 4 * 32 * 64


def test_a_complex_product_is_four_multiplications_and_four_additions():
    model = read("aten::mm", (3, 5), (5, 7), types=("c10::complex<float>",) * 2)
    assert (model.flops(), model.hbm_bytes()) == (8 * 3 * 5 * 7, 8 * (15 + 35 + 21))


def test_packed_fp4_is_a_byte_per_recorded_element_and_two_values_of_a_product():
    """A copy moves bytes; a product over k = 2 x 32 values has 2mnk of them, and half a byte each."""
    fp4 = "c10::Float4_e2m1fn_x2"
    assert DType.parse(fp4) is DType.FP4_E2M1_X2
    assert read("aten::copy_", (1024, 2048), (1024, 2048), types=(fp4, fp4)).hbm_bytes() == 2 * 1024 * 2048
    model = read("aten::_scaled_mm", (16, 32), (32, 8), (16,), (8,), types=(fp4, fp4, FP32, FP32))
    assert model.flops() == 2 * 16 * 8 * 64
    assert model.hbm_bytes() == 16 * 32 + 32 * 8 + 4 * (16 + 8) + 2 * 16 * 8


@pytest.mark.parametrize(
    ("types", "k", "recipes", "scales", "width"),
    [
        # NVFP4: an FP8 scale per 16 values, and one for the tensor, counted as a byte beside them
        ("c10::Float4_e2m1fn_x2", 64, "[2, 0]", (((16 * 4,), ()), ((8 * 4,), ())), 1),
        ("c10::Float8_e4m3fn", 32, "[3]", (((16,),), ((8,),)), 1),
        ("c10::Float8_e4m3fn", 32, "[1]", (((16, 1),), ((1, 8),)), 4),
    ],
    ids=["nvfp4", "mxfp8", "fp8 by rows"],
)
def test_lists_of_scales_are_read_in_the_type_of_their_recipe(
    types: str, k: int, recipes: str, scales: tuple[tuple[Shape, ...], tuple[Shape, ...]], width: int
):
    """16 x 8 results of k = 32 recorded elements, two values each of FP4, into BF16."""
    model = read(
        "aten::_scaled_mm_v2", (16, 32), (32, 8), scales[0], (), (), scales[1],
        types=(types, types, "TensorList", "ScalarList", "ScalarList", "TensorList"),
        scalars={3: recipes, 6: recipes, 9: "15", 11: "False"},
    )  # fmt: skip
    number = sum(prod(shape) for side in scales for shape in side)
    assert model.flops() == 2 * 16 * 8 * k
    assert model.hbm_bytes() == 16 * 32 + 32 * 8 + width * number + 2 * 16 * 8


@pytest.mark.parametrize(
    ("strides", "elements"),
    [(None, 16 * 4096 * 4096), (((1, 1, 1, 1),) * 3 + ((0, 0, 4096, 1),), 4096 * 4096)],
    ids=["dense", "broadcast over heads"],
)
def test_a_bias_of_attention_is_read(strides: tuple[Shape, ...] | None, elements: int):
    """q, k, v and out of 16 heads x 4,096 x 64 are 4 x 8.4 MB; a dense bias adds 536.9 MB."""
    x, bias = (1, 16, 4096, 64), (1, 16, 4096, 4096)
    model = read(
        "aten::_scaled_dot_product_efficient_attention", x, x, x, bias,
        strides=strides, scalars={4: "False", 5: "0.0", 6: "False"},
    )  # fmt: skip
    assert model.hbm_bytes() == 2 * (4 * 16 * 4096 * 64 + elements)


def test_the_gradient_of_a_bias_is_written_where_it_is_asked_for():
    x, bias = (1, 2, 8, 4), (1, 2, 8, 8)
    shapes = (x, x, x, x, bias, x, (1, 2, 8))
    plain, asked = (
        read("aten::_scaled_dot_product_efficient_attention_backward", *shapes,
             scalars={9: "0.0", 10: mask, 11: "False"}).hbm_bytes()
        for mask in ("[True, True, True, False]", "[True, True, True, True]")
    )  # fmt: skip
    assert plain == 2 * (7 * 64 + 128)
    assert asked - plain == 2 * 128  # type: ignore[operator]


def brute_force(s_q: int, s_kv: int, left: int, right: int) -> int:
    shift = s_kv - s_q
    return sum(
        (left < 0 or j >= i + shift - left) and (right < 0 or j <= i + shift + right)
        for i in range(s_q)
        for j in range(s_kv)
    )


@given(st.integers(0, 30), st.integers(0, 30), st.integers(-1, 35), st.integers(-1, 35))
def test_windows_on_both_sides_keep_the_pairs_within_them(s_q: int, s_kv: int, left: int, right: int):
    window, ahead = (left + 1 if left >= 0 else None), (right if right >= 0 else None)
    assert attended_pairs(s_q, s_kv, "none", window, ahead) == brute_force(s_q, s_kv, left, right)


def test_a_sliding_window_is_read_from_the_recorded_sizes():
    """Each of 4,096 queries sees itself and 127 before it: 128 * 4096 - 128 * 127 / 2 pairs, not 4096 * 4097 / 2."""
    x = (1, 4096, 8, 64)
    scalars = {3: "0.0", 4: "0.125", 5: "True", 6: "127", 7: "0"}
    windowed = read("flash_attn::_flash_attn_forward", x, x, x, scalars=scalars, registry=FLASH_ATTN)
    full = read("flash_attn::_flash_attn_forward", x, x, x, scalars=scalars | {6: "-1"}, registry=FLASH_ATTN)
    assert windowed.flops() == 2 * 8 * (128 * 4096 - 128 * 127 // 2) * 128
    assert full.flops() / windowed.flops() == pytest.approx(16.3, abs=0.05)  # type: ignore[operator]
    aten = read("aten::_flash_attention_forward", x, x, x, scalars={7: "0.0", 8: "True", 11: "127", 12: "0"})
    assert aten.flops() == windowed.flops()


def test_a_decoding_query_reads_the_keys_of_its_window_alone():
    q, kv = (1, 1, 8, 64), (1, 100_000, 8, 64)
    scalars = {3: "0.0", 5: "True", 6: "127", 7: "0"}
    model = read("flash_attn::_flash_attn_forward", q, kv, kv, scalars=scalars, registry=FLASH_ATTN)
    assert model.hbm_bytes() == 2 * (2 * 8 * 64 + 2 * 128 * 8 * 64)


@pytest.mark.parametrize(
    ("types", "scalars", "written"),
    [((INT32,), {}, 8), (("bool",), {}, 8), ((FP32,), {}, 4), ((BF16,), {3: "6"}, 4), ((INT64,), {}, 8)],
)
def test_a_sum_is_written_in_its_own_type(types: tuple[str, ...], scalars: dict[int, str], written: int):
    """[64, 2] summed over the last dim: integers as int64; a type that was asked for as that."""
    width = {INT32: 4, "bool": 1, FP32: 4, BF16: 2, INT64: 8}[types[0]]
    model = read("aten::sum", (64, 2), types=types, scalars={1: "[1]", 2: "False", **scalars})
    assert model.hbm_bytes() == 128 * width + 64 * written


@pytest.mark.parametrize("name", ["aten::sigmoid", "aten::neg", "aten::exp", "aten::gelu"])
def test_a_function_of_one_tensor_into_a_given_one_moves_two(name: str):
    """``sigmoid(x, out=y)``: x read, y written."""
    model = read(name, (64, 8), (64, 8))
    assert (model.flops(), model.hbm_bytes()) == (512, 2 * 2 * 512)


def test_a_power_of_two_tensors_moves_three():
    assert read("aten::pow", (64, 8), (64, 8)).hbm_bytes() == 2 * 3 * 512
    assert read("aten::pow", (64, 8), (64, 8), (64, 8)).hbm_bytes() == 2 * 3 * 512
    assert read("aten::pow", (64, 8), (), (64, 8), scalars={1: "2"}).hbm_bytes() == 2 * 2 * 512


def test_additions_into_few_elements_touch_no_more_than_these():
    """1,000,000 values added into 50: values and positions read, 50 read and written."""
    n = 1_000_000
    model = read("aten::scatter_add_", (50,), (), (n,), (n,), types=(FP32, "Scalar", INT64, FP32), scalars={1: "0"})
    assert (model.flops(), model.hbm_bytes()) == (n, n * (4 + 8) + 50 * 2 * 4)
    model = read("aten::index_add_", (50,), (), (n,), (n,), types=(FP32, "Scalar", INT64, FP32), scalars={1: "0"})
    assert model.hbm_bytes() == n * (4 + 8) + 50 * 2 * 4


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_what_is_put_somewhere_never_touches_more_than_is_there(size: int, n: int):
    model = read("aten::scatter_add_", (size,), (), (n,), (n,), types=(FP32, "Scalar", INT64, FP32), scalars={1: "0"})
    assert model.hbm_bytes() == 12 * n + 8 * min(size, n)


@pytest.mark.parametrize(
    ("a", "b", "elements", "products"),
    [
        ((5,), (5,), 5 + 5 + 1, 5),
        ((4, 5), (5,), 20 + 5 + 4, 4 * 5),
        ((5,), (5, 3), 5 + 15 + 3, 5 * 3),
        ((2, 4, 5), (5, 3), 40 + 15 + 24, 2 * 4 * 5 * 3),
        # three matrices for each of two: 6 products, the shorter batch read for each
        ((3, 4, 5), (2, 1, 5, 3), 6 * (20 + 15 + 12), 6 * 4 * 5 * 3),
    ],
)
def test_a_product_of_any_ranks_multiplies_vectors_as_matrices_of_one(a: Shape, b: Shape, elements: int, products: int):
    model = read("aten::matmul", a, b)
    assert (model.flops(), model.hbm_bytes()) == (2 * products, 2 * elements)


def test_a_vector_times_zero_is_not_read():
    model = read("aten::addmv", (5,), (5, 10), (10,), scalars={3: "0", 4: "1"})
    assert (model.flops(), model.hbm_bytes()) == (2 * 50, 2 * (50 + 10 + 5))


@pytest.mark.parametrize(
    "model",
    [
        GEMM(m=3, n=5, k=7),
        GEMM(b=2, m=3, n=5, k=7),
        GroupedGEMM(m=12, n=5, k=7, groups=3),
        SDPA(b=2, s_q=9, s_kv=9, q_heads=4, kv_heads=4, d_qk=8, d_v=8, mask="bottom_right", dtype=DType.BF16),
        SDPA(b=2, s_q=9, s_kv=9, q_heads=4, kv_heads=4, d_qk=8, d_v=8, mask="bottom_right").backward(),
    ],
    ids=lambda model: f"{type(model).__name__} {getattr(model, 'b', '')}",
)
def test_what_a_trace_would_record_of_a_model_is_read_as_its_work(model: PerfModel):
    op = recorded_signature(model)
    assert op is not None
    again = bindings()[op.name].target(op)
    assert (again.flops(), again.hbm_bytes()) == (model.flops(), model.hbm_bytes())


@pytest.mark.parametrize(("name", "tensors"), [("one_shot_all_reduce", 1), ("one_shot_all_reduce_copy", 2)])
def test_a_symmetric_all_reduce_has_the_ranks_of_the_group_that_it_names(name: str, tensors: int):
    """(input, reduce_op, group_name), with the symmetric buffer before them in a copy: 8 ranks send 2 * 7/8 each."""
    op = OpSignature(
        name=f"symm_mem::{name}",
        shapes=(*[(64,)] * tensors, (), ()),
        dtypes=(*[BF16] * tensors, "", ""),
        scalars=(*[""] * tensors, "4", "3"),
        attributes=((GROUP_SIZES, (("3", 8), ("4", 2))),),
    )
    assert bindings()[op.name].target(op).wire_bytes() == 2 * 64 * 2 * 7 / 8


def test_a_window_of_flash_attention_is_two_slots_or_one_list_and_minus_one_is_none():
    """12 keys before a query and itself; ahead only without a causal mask."""
    for scalars in ({1: "12", 2: "5"}, {1: "[12, 5]"}):
        op = OpSignature(name="flash", shapes=((),) * 3, dtypes=("",) * 3,
                         scalars=tuple(scalars.get(i, "") for i in range(3)))  # fmt: skip
        assert windowed(op, 1, 2, is_causal=False) == {"window": 13, "ahead": 5}
        assert windowed(op, 1, 2, is_causal=True) == {"window": 13, "ahead": None}
    op = OpSignature(name="flash", shapes=((),) * 3, dtypes=("",) * 3, scalars=("", "-1", "-1"))
    assert windowed(op, 1, 2, is_causal=False) == {"window": None, "ahead": None}
