"""Triton kernels that Inductor generated: iteration sizes, slices and updates in place, worked by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.analysis.reading.catalog import Catalog
from tracelens.errors import SignatureError
from tracelens.perf_models import Conv, pattern_bindings
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.surroundings import LAUNCH, Launch
from tracelens.perf_models.triton_kernels import FusedKernel
from tracelens.trace.reading.read import read_trace
from tracelens.trace.table import Kind
from tracelens.types.signature import OpSignature

BF16, INT64 = "c10::BFloat16", "long int"


def signature(name: str, *slots: tuple[int, ...] | int, dtypes: tuple[str, ...] = (), **attributes: Any) -> OpSignature:
    """Tensors by shape, BF16 unless said otherwise, then numbers."""
    types = (*dtypes, *(BF16 for _ in slots[len(dtypes) :]))
    return OpSignature(
        name=name,
        shapes=tuple(slot if isinstance(slot, tuple) else () for slot in slots),
        dtypes=tuple(t if isinstance(slot, tuple) else "Scalar" for slot, t in zip(slots, types, strict=True)),
        scalars=tuple("" if isinstance(slot, tuple) else str(slot) for slot in slots),
        attributes=tuple(sorted({"kernel_backend": "triton", **attributes}.items())),
    )


def read(op: OpSignature) -> PerfModel:
    return next(claim.target for key, claim in pattern_bindings().items() if re.match(key, op.name))(op)


def most_mb(model: PerfModel) -> float | None:
    return model.parameters().get("hbm_mb_at_most")


@pytest.mark.parametrize(
    ("name", "slots", "nbytes"),
    [
        # the last tensor is a bias of 64: the first one is the result. Read and written 8 x 64, the bias read
        ("triton_poi_fused_addmm_gelu_view_15", ((8, 64), (64,), 512), 2 * (512 + 512 + 64)),
        # silu(a) * b needs two operands and has two tensors: the result takes the place of the first
        ("triton_poi_fused_mul_silu_2", ((8, 64), (8, 64), 512), 2 * 3 * 512),
        # x, y and the flat product: three read, one of them written
        ("triton_poi_fused__unsafe_view_add_3", ((2, 4, 64), (2, 4, 64), (8, 64), 512), 2 * 4 * 512),
        # one tensor, and an op that needs an operand
        ("triton_poi_fused_relu_1", ((8, 64), 512), 2 * 2 * 512),
        # one tensor, made of nothing
        ("triton_poi_fused_zeros_1", ((8, 64), 512), 2 * 512),
        # a function of one tensor, into another
        ("triton_poi_fused_exp_1", ((8, 64), (8, 64), 512), 2 * 2 * 512),
    ],
)
def test_a_tensor_updated_in_place_is_read_and_written(name: str, slots: tuple[Any, ...], nbytes: int):
    model = read(signature(name, *slots))
    assert model.hbm_bytes() == nbytes
    assert most_mb(model) is None


def test_a_scattered_result_may_be_small_without_an_update_of_the_first_tensor():
    """512 values and positions into 50 elements: the last tensor is the result all the same."""
    op = signature("triton_poi_fused_index_put_mul_0", (512,), (512,), (50,), 512, dtypes=(BF16, INT64))
    assert read(op).hbm_bytes() == 512 * (2 + 8) + 50 * 2


def test_where_the_arguments_leave_an_update_in_place_open_both_bounds_stand():
    """``a + b`` of three tensors is two read and one written, or ``a + b + c`` into ``a``: 3 or 4 x 512 elements."""
    model = read(signature("triton_poi_fused_add_3", (8, 64), (8, 64), (8, 64), 512))
    assert (model.hbm_bytes(), most_mb(model)) == (2 * 3 * 512, pytest.approx(2 * 4 * 512 / 1e6))


def test_of_a_slice_as_much_is_moved_as_there_are_iterations():
    """64 of 4,096 rows of 8 are copied: 512 elements read and written, not 32,768 read."""
    model = read(signature("triton_poi_fused_clone_slice_transpose_13", (4096, 8), (8, 64), 512))
    assert model.hbm_bytes() == 2 * 2 * 512
    assert most_mb(model) is None


def test_a_slice_of_a_convolutions_result_is_moved_and_not_all_of_it():
    """A convolution's result of 4,096 rows with its bias of 8, of which 64 rows are multiplied and copied."""
    model = read(signature("triton_poi_fused_clone_convolution_mul_9", (4096, 8), (8,), (64, 8), 512))
    assert model.hbm_bytes() == 2 * (512 + 8 + 512)


def test_a_kernel_that_may_load_two_slices_of_a_tensor_has_two_bounds():
    """``a * sigmoid(b)`` of the halves of [8, 128]: 512 x (2 read, 1 written), of which one read is certain."""
    model = read(signature("triton_poi_fused_mul_sigmoid_4", (8, 128), (8, 64), 512))
    assert model.hbm_bytes() == 2 * 2 * 512
    assert most_mb(model) >= 2 * 3 * 512 / 1e6  # type: ignore[operator]


@pytest.mark.parametrize(
    "attributes", [{"kernel_kwargs": "XBLOCK=16,YBLOCK=64"}, {}], ids=["tiles recorded", "sizes fit the result"]
)
def test_a_pointwise_kernel_over_two_dims_iterates_over_both(attributes: dict[str, str]):
    """32 x 16,384 points, one addition each."""
    model = read(signature("triton_poi_fused_add_permute_view_25", (16384, 32), (32, 16384), 32, 16384, **attributes))
    assert model.flops() == 32 * 16384 == 524_288


def test_the_grid_tells_dims_from_the_sizes_of_dynamic_shapes_where_nothing_else_does():
    slots = ((100, 100), (200, 100), 7, 32, 64)
    with pytest.raises(SignatureError, match=r"which of the sizes \[7, 32, 64\]"):
        read(signature("triton_poi_fused_add_0", *slots))
    for grid, points in (((4, 1, 1), 64), ((4, 2, 1), 32 * 64)):
        launched = signature("triton_poi_fused_add_0", *slots, **{LAUNCH: Launch(kernel="k", grid=grid)})
        assert read(launched).flops() == points


def test_sizes_of_dynamic_shapes_stand_before_those_of_the_iteration_space():
    """As vLLM's embedding mask is recorded: 0, 25136, ... are vocabulary bounds, 888 tokens the iterations."""
    op = signature(
        "triton_poi_fused_add_ge_lt_0", (888,), (888,), (888,), 0, 25136, 201088, 201088, 0, 888,
        dtypes=("int", INT64, "bool"), kernel_kwargs="XBLOCK=16",
    )  # fmt: skip
    model = read(op)
    assert model.flops() == 3 * 888
    assert model.hbm_bytes() == 888 * (4 + 8 + 1)


@pytest.mark.parametrize("tiles", [{}, {"kernel_kwargs": "XBLOCK=1,R0_BLOCK=1024"}])
def test_a_reduction_of_dynamic_shape_counts_its_two_last_sizes(tiles: dict[str, str]):
    """373,600 rows of 534: a comparison and a maximum for each element, 0.4 GFLOP."""
    op = signature("triton_red_fused_gt_max_37", (373600, 534), (373600,), 800, 534, 373600, 534, **tiles)
    assert read(op).flops() == 2 * 373600 * 534
    assert read(op).hbm_bytes() == 2 * (373600 * 534 + 373600)


def test_a_reduction_over_two_dims_counts_both():
    op = signature(
        "triton_red_fused_sum_0", (4, 8, 16), (4,), 4, 8, 16, kernel_kwargs="XBLOCK=1,R0_BLOCK=8,R1_BLOCK=16"
    )
    assert read(op).flops() == 4 * 8 * 16


@pytest.mark.parametrize(("size", "slots"), [(4, ((4, 128), (4,))), (512, ((4, 128), (1,)))])
def test_a_reduction_without_its_constant_size_takes_it_from_the_tensor(size: int, slots: tuple[Any, ...]):
    assert read(signature("triton_red_fused_sum_0", *slots, size)).flops() == 512


def test_rows_of_a_table_are_read_as_often_as_there_are_positions():
    """32 rows of 2,880 of 201,088, and a cast of 131,072 x 64 beside them: two kernels in one, no sizes recorded."""
    op = signature(
        "triton_poi_fused_0",
        (32,),
        (201088, 2880),
        (131072, 64),
        (32, 2880),
        (131072, 64),
        dtypes=("int", BF16, "float"),
    )
    assert read(op).hbm_bytes() == 32 * 4 + 2 * 32 * 2880 * 2 + 131072 * 64 * (4 + 2)


@pytest.mark.parametrize(
    "name",
    [
        "triton_poi_fused__scaled_dot_product_flash_attention_clone_mul_5",
        "triton_poi_fused__scaled_dot_product_efficient_attention_mul_transpose_5",
        "triton_poi_fused__scaled_dot_product_fused_attention_overrideable_mul_view_5",
        "triton_poi_fused_convolution_backward_mul_5",
    ],
)
def test_what_runs_in_a_kernel_of_its_own_takes_no_flops_from_the_others(name: str):
    assert read(signature(name, (8, 64), (8, 64), 512)).flops() == 512


def test_a_template_of_a_convolution_is_a_convolution():
    """768 kernels of 3 x 16 x 16 in steps of 16: 14 x 14 results each."""
    op = signature("triton_tem_fused_convolution_0", (2, 3, 224, 224), (768, 3, 16, 16), (2, 768, 14, 14))
    model = read(op)
    assert isinstance(model, Conv)
    assert (model.stride, model.padding, model.groups) == ((16, 16), (0, 0), 1)
    assert model.flops() == 2 * (3 * 16 * 16) * (2 * 768 * 14 * 14)


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_an_update_in_place_never_moves_less_than_the_same_out_of_place(rows: int, columns: int, biased: bool):
    bias = ((columns,),) if biased else ()
    updated = read(signature("triton_poi_fused_addmm_relu_0", (rows, columns), *bias, rows * columns))
    least = 2 * (2 * rows * columns + (columns if biased else 0))
    assert isinstance(updated, FusedKernel)
    assert least - 2 * (columns if biased else 0) <= (updated.hbm_bytes() or 0) <= least


@pytest.mark.shared
@pytest.mark.parametrize(
    ("trace", "kernel", "mega_bytes", "flops"),
    [
        ("torch_compile_triton/trace.json.gz", "triton_poi_fused__unsafe_view_mul_silu_2", 1610.612736, 5 * 268435456),
        ("torch_compile_triton/trace.json.gz", "triton_poi_fused__unsafe_view_add_3", 536.870912, 67108864),
        ("b200/eager_trace.json.gz",
         "triton_poi_fused_add_bitwise_and_bitwise_not_bitwise_or_ge_lt_mul_sub_0", 888 * 13 / 1e6, 8 * 888),
    ],
)  # fmt: skip
def test_kernels_of_real_traces(shared_traces: Path, trace: str, kernel: str, mega_bytes: float, flops: int):
    table = read_trace(shared_traces / trace)
    row = next(r for r in range(len(table)) if table.name_of(r) == kernel and table.kind[r] == Kind.CPU_OP)
    model = Catalog().read(table.signature_of(row)).model
    assert model is not None
    assert (model.flops(), model.hbm_bytes()) == (flops, pytest.approx(mega_bytes * 1e6))
