"""Triton kernels: what their names and recorded arguments say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tracelens.errors import SignatureError
from tracelens.perf_models import GEMM, pattern_bindings
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.triton_kernels import compiled_kernel, fused_ops
from tracelens.types.signature import OpSignature

BF16 = "c10::BFloat16"


def signature(name: str, *slots: tuple[int, ...] | int, **attributes: Any) -> OpSignature:
    """Tensors in BF16 by shape, then iteration sizes."""
    return OpSignature(
        name=name,
        shapes=tuple(slot if isinstance(slot, tuple) else () for slot in slots),
        dtypes=tuple(BF16 if isinstance(slot, tuple) else "Scalar" for slot in slots),
        scalars=tuple("" if isinstance(slot, tuple) else str(slot) for slot in slots),
        attributes=tuple(sorted({"kernel_backend": "triton", **attributes}.items())),
    )


def read(op: OpSignature) -> PerfModel:
    return next(claim.target for key, claim in pattern_bindings().items() if re.match(key, op.name))(op)


@pytest.mark.parametrize(
    ("name", "slots", "flops", "elements"),
    [
        # silu 4 and mul 1 per element; one argument is read and written, one read
        ("triton_poi_fused__unsafe_view_mul_silu_2", ((8, 64), (8, 64), 512), 5 * 512, 3 * 512),
        # 4 rows of 128: mean 1, pow 2, add 1, rsqrt 2, mul 1
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", ((4, 128), (128,), (4, 128), 4, 128), 7 * 512, 2 * 512 + 128),
        # the bias of a convolution that ran in a kernel of its own, and a relu, in place
        ("triton_poi_fused_convolution_relu_7", ((2, 8, 4, 4), (8,), 256), 2 * 256, 2 * 256 + 8),
        # 6 tokens of 32 from a table of 1000: no more than there are iterations
        ("triton_poi_fused_embedding_1", ((6,), (1000, 32), (6, 32), 192), 0, 6 + 192 + 192),
    ],
)  # fmt: skip
def test_flops_by_name_and_bytes_by_argument(name: str, slots: tuple[Any, ...], flops: int, elements: int):
    model = read(signature(name, *slots))
    assert (model.flops(), model.hbm_bytes(), model.category) == (flops, 2 * elements, "triton")


def test_an_op_that_the_table_lacks_leaves_the_flops_unknown_and_the_bytes_known():
    assert fused_ops("triton_poi_fused_mul_some_new_op_3") is None
    model = read(signature("triton_poi_fused_mul_some_new_op_3", (16,), (16,), 16))
    assert (model.flops(), model.hbm_bytes()) == (None, 2 * 32)


def test_what_the_compiler_counted_wins():
    model = read(signature("triton_poi_fused_mul_0", (16,), (16,), 16, kernel_flop=99, kernel_num_gb=1e-6))
    assert (model.flops(), model.hbm_bytes()) == (99, 1000)


def test_a_kernel_over_many_tensors_has_bytes():
    model = read(signature("triton_for_fused_2", (16,), (8, 8), (16,)))
    assert (model.flops(), model.hbm_bytes()) == (None, 2 * (16 + 64 + 16))


@pytest.mark.parametrize(
    ("name", "slots", "dims"),
    [
        ("triton_tem_fused_mm_0", ((64, 32), (32, 48), (64, 48)), (1, 64, 48, 32)),
        ("triton_tem_fused_addmm_relu_3", ((48,), (64, 32), (32, 48), (64, 48)), (1, 64, 48, 32)),
        ("triton_tem_fused_bmm_transpose_1", ((5, 64, 32), (5, 32, 48), (5, 64, 48)), (5, 64, 48, 32)),
    ],
)
def test_a_template_is_a_product_of_its_arguments(name: str, slots: tuple[Any, ...], dims: tuple[int, ...]):
    model = read(signature(name, *slots))
    assert isinstance(model, GEMM)
    b, m, n, k = dims
    assert (model.b, model.m, model.n, model.k) == dims
    assert model.hbm_bytes() == 2 * b * (m * k + k * n + m * n)


def test_a_template_whose_arguments_do_not_multiply_is_refused():
    with pytest.raises(SignatureError, match="no two tensors multiply to the last one"):
        read(signature("triton_tem_fused_mm_0", (64, 32), (31, 48), (64, 48)))


def test_a_users_kernel_in_a_compiled_region_has_bytes_and_no_flops():
    op = signature("add_kernel_0", (16,), (16,), (16,), 16)
    assert (compiled_kernel(op).flops(), compiled_kernel(op).hbm_bytes()) == (None, 2 * 48)
