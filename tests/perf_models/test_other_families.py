"""Reductions, softmax, indexing, sorting, pooling, optimizers, collectives, and the columns made of them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tracelens.errors import SignatureError
from tracelens.perf_models import GEMM, Collective, EPComm, PerfModel, Reduce, Softmax, WorkColumns, bindings
from tracelens.perf_models.surroundings import LAUNCH, Launch
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature


def read(name: str, **fields: Any) -> PerfModel:
    return bindings()[name].target(OpSignature(name=name, **fields))


@pytest.mark.parametrize(
    ("dims", "results"), [("[-1]", 16 * 559), ("[0, 2]", 559), ("[]", 1), ("", 1), ("1", 16 * 1024)]
)
def test_reduced_dims_are_read_from_their_text(dims: str, results: int):
    model = read("aten::mean", shapes=((16, 559, 1024), (), (), ()), dtypes=("float", "ScalarList", "Scalar", ""),
                 scalars=("", dims, "True", ""))  # fmt: skip
    n = 16 * 559 * 1024
    assert (model.flops(), model.hbm_bytes()) == (n, 4 * (n + results))


def test_a_whole_sum_with_only_a_dtype_leaves_one_element():
    model = read("aten::sum", shapes=((8, 16), ()), dtypes=("float", ""), scalars=("", ""))
    assert model == Reduce(elements=128, results=1, kind="sum", distinct=128, dtype=DType.FP32)


def test_a_maximum_along_a_dim_returns_positions_too():
    model = read(
        "aten::max", shapes=((8, 16), (), ()), dtypes=("float", "Scalar", "Scalar"), scalars=("", "1", "False")
    )
    assert model.hbm_bytes() == 4 * 128 + 8 * 4 + 8 * 8


def test_a_scan_has_as_many_results_as_elements():
    model = read("aten::cumsum", shapes=((15,), (), ()), dtypes=("int", "Scalar", ""), scalars=("", "0", ""))
    assert model.hbm_bytes() == 15 * 4 + 15 * 8  # integers are summed as int64


def test_softmax_is_five_operations_per_element_and_widens_when_asked():
    fields = {"shapes": ((8, 64), (), ()), "dtypes": ("c10::BFloat16", "Scalar", "Scalar")}
    plain = read("aten::_softmax", **fields, scalars=("", "-1", "False"))
    widened = read("aten::_softmax", **fields, scalars=("", "-1", "True"))
    assert (plain.flops(), plain.hbm_bytes(), widened.hbm_bytes()) == (5 * 512, 512 * 4, 512 * 6)


def test_softmax_backward_reads_two_tensors():
    model = Softmax(shape=(8, 64), dtype=DType.FP32).backward()
    assert (model.flops(), model.hbm_bytes()) == (4 * 512, 3 * 512 * 4)


def test_an_embedding_reads_the_rows_it_returns():
    model = read("aten::embedding", shapes=((30522, 512), (1, 141), (), (), ()),
                 dtypes=("c10::BFloat16", "long int", "Scalar", "Scalar", "Scalar"))  # fmt: skip
    assert (model.flops(), model.hbm_bytes()) == (0, 2 * 141 * 512 * 2 + 141 * 8)


def test_index_select_replaces_one_dim():
    model = read(
        "aten::index_select", shapes=((512, 7), (), (141,)), dtypes=("float", "Scalar", "int"), scalars=("", "0", "")
    )
    assert model.hbm_bytes() == 2 * 141 * 7 * 4 + 141 * 4


def test_indexing_by_a_list_needs_its_shapes():
    with pytest.raises(SignatureError, match="input 1 is not a list of tensors"):
        read("aten::index", shapes=((15360, 4096), ()), dtypes=("float", ""))
    model = read("aten::index", shapes=((100, 8), ((7,),)), dtypes=("float", "TensorList"))
    assert model.hbm_bytes() == 2 * 7 * 8 * 4 + 7 * 8


GATHER = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long, long, long, long, bool)"


@pytest.mark.parametrize(
    ("kernel", "grid", "nbytes"),
    [
        # Rows of 2880 * 2 = 5760 bytes take two blocks of 256 * 16 = 4096; 24 rows: 24 indices of 8 bytes
        (GATHER, (24, 2, 1), 2 * 24 * 5760 + 24 * 8),
        (GATHER.replace("long>", "int>"), (24, 2, 1), 2 * 24 * 5760 + 24 * 4),
        (GATHER, (24, 3, 1), None),
        ("void at::native::index_elementwise_kernel<128, 4>()", (24, 2, 1), None),
    ],
)
def test_indexing_by_a_list_without_shapes_takes_the_rows_from_its_gather(kernel: str, grid: Any, nbytes: int | None):
    launch = Launch(kernel=kernel, grid=grid)
    made = {"shapes": ((32, 2880), ()), "dtypes": ("c10::BFloat16", ""), "attributes": ((LAUNCH, launch),)}
    model = read("aten::index", **made)
    assert (model and model.hbm_bytes()) == nbytes


CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_contig<{}, unsigned int, 3, 128, 1>({}*)"
OPAQUE = CAT.format("at::native::(anonymous namespace)::OpaqueType<2u>", "OpaqueType<2u>")
LISTS = {"shapes": (((1, 559, 32), (1, 559, 32)), ()), "dtypes": ("TensorList", "Scalar")}
UNSIZED = {"shapes": ((), ()), "dtypes": ("TensorList", "Scalar")}


def launched(kernel: str) -> tuple[str, Launch]:
    return (LAUNCH, Launch(kernel=kernel))


def test_a_concatenation_without_element_type_has_no_bytes_but_no_flops_either():
    model = read("aten::cat", **LISTS)
    assert (model.flops(), model.hbm_bytes()) == (0, None)
    assert model.parameters()["num_read"] == 2 * 559 * 32


@pytest.mark.parametrize(
    ("kernel", "width"),
    [
        (OPAQUE, 2),
        (OPAQUE.replace("2u", "(unsigned int)8"), 8),
        (CAT.format("float", "float"), 4),
        (CAT.format("c10::BFloat16", "c10::BFloat16").replace("_contig", ""), 2),
        (OPAQUE.replace("_contig", "_vectorized"), 2),
    ],
)
def test_a_concatenations_kernel_says_how_wide_its_elements_are(kernel: str, width: int):
    assert read("aten::cat", **LISTS, attributes=(launched(kernel),)).hbm_bytes() == 2 * width * 2 * 559 * 32


def test_another_kernel_says_nothing_of_a_concatenations_elements():
    attributes = (launched("void at::native::elementwise_kernel<128, 4, OpaqueType<2u>>()"),)
    assert read("aten::cat", **LISTS, attributes=attributes).hbm_bytes() is None


def test_a_concatenation_without_sizes_takes_them_from_its_gradient():
    gradient = OpSignature(name="CatBackward0", shapes=((16, 416),), dtypes=("float",))
    model = read("aten::cat", **UNSIZED, attributes=(("gradient", gradient),))
    assert model.hbm_bytes() == 2 * 4 * 16 * 416


@pytest.mark.parametrize(
    ("caller", "shapes", "elements"),
    [
        ("SplitWithSizesBackward0", ((2048, 160), (2048, 32), ()), 2048 * 192),
        ("All2All_Pooled_WaitBackward", ((2048, 7),), 2048 * 7),
        ("aten::stack", ((2048, 437, 160), (), ()), 2048 * 437 * 160),
    ],
)
def test_a_concatenation_without_sizes_takes_those_that_its_caller_puts_together(
    caller: str, shapes: Any, elements: int
):
    above = OpSignature(name=caller, shapes=shapes, dtypes=("float",) * len(shapes))
    model = read("aten::cat", **UNSIZED, attributes=(launched(OPAQUE), ("caller", above)))
    assert model.hbm_bytes() == 2 * 2 * elements


def test_a_concatenation_that_is_one_copy_has_the_type_of_the_gradients_put_together():
    above = OpSignature(name="SplitWithSizesBackward0", shapes=((2048, 160),), dtypes=("c10::BFloat16",))
    copy = launched("Memcpy DtoD (Device -> Device)")
    model = read("aten::cat", **UNSIZED, attributes=(copy, ("caller", above)))
    assert model.hbm_bytes() == 2 * 2 * 2048 * 160


def test_a_concatenation_called_by_any_other_op_has_no_sizes():
    above = OpSignature(name="MyFunctionBackward", shapes=((8, 8),), dtypes=("float",))
    with pytest.raises(SignatureError, match="is not a list of tensors"):
        read("aten::cat", **UNSIZED, attributes=(launched(OPAQUE), ("caller", above)))


def test_a_concatenation_into_a_tensor_has_its_size():
    model = read("aten::cat", shapes=((2048, 160, 606), (), ()), dtypes=("float", "TensorList", "Scalar"))
    assert model.hbm_bytes() == 2 * 4 * 2048 * 160 * 606


def test_an_index_without_its_list_picks_what_its_gradient_has():
    gradient = OpSignature(name="IndexBackward0", shapes=((16, 351),), dtypes=("float",))
    model = read("aten::index", shapes=((16, 27, 27), ()), dtypes=("float", ""), attributes=(("gradient", gradient),))
    assert model.hbm_bytes() == 2 * 4 * 16 * 351


def test_max_pooling_writes_positions():
    model = read("aten::max_pool2d_with_indices", shapes=((10, 64, 112, 112), *[()] * 5), dtypes=("c10::BFloat16",),
                 scalars=("", "[3, 3]", "[2, 2]", "[1, 1]", "[1, 1]", "False"))  # fmt: skip
    out = 10 * 64 * 56 * 56
    assert model.flops() == 9 * out
    assert model.hbm_bytes() == 2 * (10 * 64 * 112 * 112 + out) + 8 * out


def test_a_window_of_one_size_has_it_along_every_dim():
    shapes = ((2, 3, 4, 4, 4), (2, 3, 8, 8, 8), (), ())
    dense, short = (
        read("aten::avg_pool3d_backward", shapes=shapes, dtypes=("float", "float"), scalars=("", "", window, "[2]"))
        for window in ("[2, 2, 2]", "[2]")
    )
    assert dense.flops() == short.flops() == 2 * 2 * 2 * (2 * 3 * 4 * 4 * 4)


POOLED = {"shapes": ((10, 64, 112, 112), *[()] * 5), "dtypes": ()}
OF_POOLED = OpSignature(name="MaxPool2DWithIndicesBackward0", shapes=((10, 64, 56, 56),))


def test_max_pooling_without_its_window_is_sized_by_its_gradient_and_typed_by_its_kernel():
    kernel = "void at::native::(anonymous namespace)::max_pool_forward_{}<{}, float>(int, {} const*)"
    for layout, name, width in (("nchw", "float", 4), ("nhwc", "c10::Half", 2)):
        attributes = (launched(kernel.format(layout, name, name)), ("gradient", OF_POOLED))
        model = read("aten::max_pool2d_with_indices", **POOLED, attributes=attributes)
        out = 10 * 64 * 56 * 56
        assert model.hbm_bytes() == width * (10 * 64 * 112 * 112 + out) + 8 * out
        assert model.flops() is None


def test_max_pooling_with_neither_window_nor_gradient_is_unknown():
    with pytest.raises(SignatureError, match="argument 1 was not recorded"):
        read("aten::max_pool2d_with_indices", **POOLED)


def test_the_gradient_of_max_pooling_needs_no_window():
    out, x = (10, 64, 56, 56), (10, 64, 112, 112)
    model = read("aten::max_pool2d_with_indices_backward", shapes=(out, x, *[()] * 5, out), dtypes=("float",))
    assert model.flops() == 10 * 64 * 56 * 56
    assert model.hbm_bytes() == 4 * 5 * 10 * 64 * 56 * 56 + 8 * 10 * 64 * 56 * 56


@pytest.mark.parametrize(("element", "nbytes"), [("float", 4 * 24), ("c10::BFloat16", 2 * 24), ("Mystery", None)])
def test_the_kernel_of_a_fill_says_its_element_type(element: str, nbytes: int | None):
    kernel = f"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<{element}>, at::detail::Array>"
    model = read("aten::fill_", shapes=((4, 6), ()), dtypes=(), attributes=(launched(kernel),))
    assert model.hbm_bytes() == nbytes


def test_a_recorded_type_is_not_overruled_by_a_fills_kernel():
    attributes = (launched("vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, x>"),)
    assert read("aten::fill_", shapes=((4, 6), ()), dtypes=("double", ""), attributes=attributes).hbm_bytes() == 8 * 24


def test_top_k_writes_values_and_positions():
    model = read(
        "aten::topk", shapes=((32, 128), *[()] * 4), dtypes=("float",), scalars=("", "4", "-1", "True", "True")
    )
    assert model.hbm_bytes() == 4 * (32 * 128 + 32 * 4) + 8 * 32 * 4


def test_a_fused_adam_step_reads_four_lists_and_writes_three():
    lists = ((10,), (3, 4))
    model = read("aten::_fused_adamw_", shapes=(lists,) * 5, dtypes=("TensorList",) * 5)
    assert model.flops() == 15 * 22
    assert model.hbm_bytes() is None  # element types of lists are not recorded
    assert model.parameters()["reads_per_elem"] + model.parameters()["writes_per_elem"] == 7


MULTI = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
    "at::native::(anonymous namespace)::{metadata}, at::native::(anonymous namespace)::{functor}>(float)"
)


@pytest.mark.parametrize(
    ("name", "slots", "metadata", "functor", "nbytes"),
    [
        ("aten::_fused_adamw_", 5, "FusedOptimizerTensorListMetadata<4>",
         "FusedAdamMathFunctor<c10::BFloat16, 4, ADAM_MODE::ADAMW, false>", 7 * 2 * 22),
        ("aten::_fused_sgd_", 3, "TensorListMetadata<3>", "FusedSgdMathFunctor<float, 3>", 5 * 4 * 22),
        ("aten::_foreach_add_", 2, "TensorListMetadata<2>",
         "BinaryOpListAlphaFunctor<double, 2, 2, 0>, std::plus<double>, double", 3 * 8 * 22),
        ("aten::_foreach_norm", 1, "TensorListMetadata<1>",
         "LpNormFunctor<float, (at::native::NormType)1, float, 1, 1, 0>", 4 * (22 + 2)),
        ("aten::_foreach_copy_", 2, "TensorListMetadata<2>", "CopyFunctor<float, c10::BFloat16, 2, 1, 1>", (4 + 2) * 22),
        # As PyTorch 2.6 launches it: one type, copied by way of another
        ("aten::_foreach_copy_", 2, "TensorListMetadata<2>",
         "UnaryOpFunctor<c10::BFloat16, 2, 1, 1>, at::native::Copy<float, float>", (2 + 2) * 22),
    ],
)  # fmt: skip
def test_the_kernel_of_a_tensor_list_says_its_element_type(
    name: str, slots: int, metadata: str, functor: str, nbytes: int
):
    lists = (((10,), (3, 4)),) * slots
    attributes = (launched(MULTI.format(metadata=metadata, functor=functor)),)
    assert read(name, shapes=lists, dtypes=("TensorList",) * slots, attributes=attributes).hbm_bytes() == nbytes


def test_a_tensor_list_without_shapes_is_an_error():
    with pytest.raises(SignatureError, match="is not a list of tensors"):
        read("aten::_foreach_add_", shapes=((), (), ()), dtypes=("TensorList", "TensorList", "Scalar"))


@pytest.mark.parametrize(
    ("kind", "share"),
    [("allreduce", 2 * 7 / 8), ("all_reduce_coalesced", 2 * 7 / 8), ("_reduce_scatter_base", 7 / 8),
     ("_allgather_base", 8 * 7 / 8), ("all_to_allv", 7 / 8), ("broadcast", 1), ("recv", 0), ("barrier", 0)],
)  # fmt: skip
def test_what_leaves_a_rank_depends_on_the_collective(kind: str, share: float):
    model = Collective(kind=kind, elements_in=1000, elements_out=8000, ranks=8)
    assert model.wire_bytes() == 1000 * 2 * share


def test_an_unknown_group_size_gives_no_wire_bytes():
    assert Collective(kind="allreduce", elements_in=1, elements_out=1, ranks=None).wire_bytes() is None
    assert Collective(kind="mystery", elements_in=1, elements_out=1, ranks=8).wire_bytes() is None
    assert Collective(kind="broadcast", elements_in=1, elements_out=1, ranks=1).wire_bytes() == 0


def test_recorded_collectives_carry_their_attributes():
    attributes = (("Collective name", "allreduce"), ("Group size", 8), ("In msg nelems", 64), ("Out msg nelems", 64),
                  ("dtype", "BFloat16"))  # fmt: skip
    assert read("record_param_comms", attributes=attributes).wire_bytes() == 64 * 2 * 2 * 7 / 8
    assert read("record_param_comms", attributes=()) is None


def test_columns_hold_nan_for_what_is_unknown():
    columns = WorkColumns.of([GEMM(m=2, n=3, k=5), EPComm(tokens=4, hidden=8), GEMM(m=1, n=1, k=1, dtype=None)])
    assert columns.flops.tolist() == [60, 0, 2]
    assert columns.wire_bytes.tolist() == [0, 64, 0]
    assert [math.isnan(b) for b in columns.hbm_bytes] == [False, True, True]
    assert columns.engine == ("matrix", "none", "matrix")
    assert columns.dtype == (DType.BF16, DType.BF16, None)
    assert len(columns) == 3
    # without a type to compute in instead, products are computed once
    assert columns.passes.tolist() == [1, 1, 1]
    again = columns.take([2, 0])
    assert (again.flops.tolist(), again.models) == ([2, 60], (columns.models[2], columns.models[0]))
