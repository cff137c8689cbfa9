"""Elementwise ops: broadcasting, repeated elements, copies, result types."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import SignatureError
from tracelens.perf_models import BinaryElementwise, Elementwise, Operand, bindings, inverses
from tracelens.perf_models.elementwise import broadcast, promoted
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature, Shape


def read(name: str, shapes: tuple[Shape, ...], dtypes: tuple[str, ...], **fields: object) -> Elementwise:
    return bindings()[name].target(OpSignature(name=name, shapes=shapes, dtypes=dtypes, **fields))  # type: ignore[arg-type]


def test_a_binary_op_reads_both_and_writes_the_wider_type():
    model = read("aten::add", ((8, 4), (4,), ()), ("float", "c10::BFloat16", "Scalar"))
    assert model.flops() == 32
    assert model.hbm_bytes() == 32 * 4 + 4 * 2 + 32 * 4


def test_an_element_that_a_zero_stride_repeats_is_read_once():
    model = read("aten::div", ((8, 4, 16), ()), ("float", "Scalar"), strides=((16, 0, 1), ()))
    assert model.flops() == 8 * 4 * 16
    assert model.hbm_bytes() == 4 * (8 * 16) + 4 * (8 * 4 * 16)


def test_a_number_costs_no_traffic_but_a_zero_dim_tensor_does():
    number = read("aten::mul", ((8,), ()), ("float", "Scalar"))
    tensor = read("aten::mul", ((8,), ()), ("float", "double"))
    assert number.hbm_bytes() == 2 * 8 * 4
    assert tensor.hbm_bytes() == 2 * 8 * 4 + 8


def test_a_copy_computes_nothing_and_writes_its_first_argument():
    model = read("aten::copy_", ((8, 4), (4,), ()), ("c10::BFloat16", "float", "Scalar"), strides=((4, 1), (1,), ()))
    assert model.flops() == 0
    assert model.hbm_bytes() == 4 * 4 + 32 * 2
    assert model.parameters() == {
        "op_shape": (8, 4), "dtype_in_out": ("float", "c10::BFloat16"), "stride_input": (1,), "stride_output": (4, 1),
        "input_shape": (4,), "output_shape": (8, 4),
    }  # fmt: skip


def test_a_fill_only_writes():
    model = read("aten::fill_", ((8, 4), ()), ("float", "Scalar"))
    assert (model.flops(), model.hbm_bytes()) == (0, 32 * 4)


def test_a_comparison_writes_one_byte_per_element():
    assert read("aten::eq", ((16, 559), ()), ("long int", "Scalar")).hbm_bytes() == 16 * 559 * (8 + 1)


def test_dropout_writes_its_mask_too():
    assert read("aten::native_dropout", ((64,), (), ()), ("c10::Half", "Scalar", "Scalar")).hbm_bytes() == 64 * (
        2 + 2 + 1
    )


def test_integers_divide_to_floating_point():
    assert read("aten::div", ((4,), (4,)), ("long int", "long int")).hbm_bytes() == 4 * (8 + 8 + 4)


def test_an_op_on_zero_dim_tensors_has_one_element():
    assert read("aten::add_", ((), (), ()), ("long int", "Scalar", "Scalar")).flops() == 1


def test_an_unknown_dtype_gives_no_bytes():
    assert read("aten::neg", ((8,),), ("Foo",)).hbm_bytes() is None


def test_a_trace_without_shapes_is_an_error_that_says_so():
    with pytest.raises(SignatureError, match="record_shapes=True was not set"):
        bindings()["aten::add"].target(OpSignature(name="aten::add"))


def test_shapes_that_do_not_broadcast_are_refused():
    with pytest.raises(SignatureError, match="do not broadcast"):
        broadcast((2, 3), (4, 3))


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ([((4,), DType.BF16), ((4,), DType.FP16)], DType.FP32),
        ([((4,), DType.BF16), ((), DType.FP64)], DType.BF16),
        ([((4,), DType.INT64), ((), DType.FP32)], DType.FP32),
        ([((), DType.FP32), ((), DType.FP64)], DType.FP32),
        ([((4,), DType.BOOL), ((4,), DType.UINT8)], DType.UINT8),
        ([((4,), None), ((4,), DType.FP32)], None),
    ],
)
def test_results_are_promoted_as_torch_does(operands: list[tuple[Shape, DType | None]], expected: DType | None):
    assert promoted([Operand(shape=shape, dtype=dtype) for shape, dtype in operands]) is expected


SHAPES = st.lists(st.integers(1, 6), max_size=4).map(tuple)


@given(SHAPES, SHAPES)
def test_an_elementwise_op_moves_at_least_its_result(a: Shape, b: Shape):
    try:
        shape = broadcast(a, b)
    except SignatureError:
        return
    model = read("aten::mul", (a, b), ("float", "float"))
    assert model.hbm_bytes() >= 4 * model.flops()  # type: ignore[operator]
    assert len(shape) == max(len(a), len(b))


@given(SHAPES, st.sampled_from([DType.FP32, DType.BF16, DType.INT64]))
def test_an_addition_reads_back_what_its_inverse_records(shape: Shape, dtype: DType):
    a, b = Operand(shape=shape, dtype=dtype), Operand(shape=(), dtype=None, number=True)
    model = BinaryElementwise(shape=shape, inputs=(a, b), outputs=(Operand(shape=shape, dtype=dtype),))
    signature = inverses()["aten::add"].target(model)
    read_back = bindings()["aten::add"].target(signature)
    assert (read_back.flops(), read_back.hbm_bytes()) == (model.flops(), model.hbm_bytes())
    assert inverses()["aten::add"].target(read_back) == signature
