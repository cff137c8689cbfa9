"""Normalizations: which statistics are computed, which weights exist, what gradients were asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import SignatureError
from tracelens.perf_models import Normalization, RMSNorm, bindings, inverses
from tracelens.perf_models.surroundings import Launch
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

N, C = 8 * 16 * 32 * 32, 16
X = (8, 16, 32, 32)


def read(name: str, shapes: tuple[tuple[int, ...], ...], scalars: tuple[str, ...]) -> Normalization:
    dtypes = tuple("float" if s else "" for s in shapes)
    return bindings()[name].target(OpSignature(name=name, shapes=shapes, dtypes=dtypes, scalars=scalars))


def batch_norm(training: str, *, affine: bool = True, running: bool = True) -> Normalization:
    weight, statistics = ((C,) if affine else ()), ((C,) if running else ())
    shapes = (X, weight, weight, statistics, statistics, (), (), (), ())
    return read("aten::batch_norm", shapes, ("", "", "", "", "", training, "0.1", "1e-05", "True"))


def test_a_training_batch_norm_computes_its_statistics():
    model = batch_norm("True")
    assert model.flops() == 5 * N + 6 * C
    # x and y; weight, bias; running statistics read and written; computed ones saved
    assert model.hbm_bytes() == 4 * (2 * N + 2 * C + 4 * C + 2 * C)


def test_the_recorded_text_false_means_evaluation():
    model = batch_norm("False")
    assert model.training is False
    assert model.flops() == 2 * N + 6 * C
    assert model.hbm_bytes() == 4 * (2 * N + 2 * C + 2 * C)


def test_an_absent_weight_is_not_affine():
    model = batch_norm("True", affine=False, running=False)
    assert (model.parameters()["is_affine"], model.parameters()["has_bias"]) == (False, False)
    assert model.hbm_bytes() == 4 * (2 * N + 2 * C)


def test_an_unrecorded_training_flag_is_an_error():
    with pytest.raises(SignatureError, match="argument 5 was not recorded"):
        batch_norm("")


def test_layer_norm_has_one_weight_per_normalized_element():
    model = read(
        "aten::layer_norm", ((4, 197, 768), (), (768,), (768,), (), ()), ("", "[768]", "", "", "1e-12", "True")
    )
    n, rows = 4 * 197 * 768, 4 * 197
    assert (model.channels, model.statistics) == (768, rows)
    assert model.flops() == 5 * n + 6 * 768
    assert model.hbm_bytes() == 4 * (2 * n + 2 * 768 + 2 * rows)


def test_group_norm_has_one_statistic_per_group_and_one_weight_per_channel():
    outer = read("aten::group_norm", (X, (), (C,), (C,), (), ()), ("", "4", "", "", "1e-05", "True"))
    inner = read("aten::native_group_norm", (X, (C,), (C,), *[()] * 5), ("", "", "", "8", "16", "1024", "4", "1e-05"))
    assert (outer.channels, outer.statistics) == (C, 8 * 4)
    assert outer == inner


def test_backward_reads_what_was_asked_for():
    scalars = ("", "", "", "", "", "", "", "True", "1e-05")
    shapes = (X, X, (), (C,), (C,), (C,), (C,), (), (), ())
    model = read("aten::native_batch_norm_backward", shapes, (*scalars, "[True, False, False]"))
    assert model.flops() == 9 * N
    assert model.parameters()["output_mask"] == [True, False, False]
    assert model.hbm_bytes() == 4 * (3 * N + 2 * C)


def test_backward_through_fixed_statistics_is_cheaper():
    scalars = ("", "", "", "", "", "", "", "False", "1e-05", "[True, True, True]")
    model = read("aten::native_batch_norm_backward", (X, X, (C,), (C,), (C,), (), (), (), (), ()), scalars)
    assert model.flops() == 4 * N + 3 * C


def test_without_its_mask_the_backward_of_layer_norm_has_flops_but_no_bytes():
    shapes = ((4, 6), (4, 6), (), (4, 1), (4, 1), (6,), (6,), ())
    masked, silent = (
        read("aten::native_layer_norm_backward", shapes, ("",) * 7 + (mask,)) for mask in ("[True, True, True]", "")
    )
    assert masked.flops() == silent.flops() == 9 * 24
    assert masked.hbm_bytes() is not None
    assert silent.hbm_bytes() is None
    assert silent.parameters()["output_mask"] is None


def test_the_libraries_backward_takes_x_first_and_is_always_training():
    model = read("aten::miopen_batch_norm_backward", (X, X, (C,), (C,), (C,), (C,), (C,), ()), ("",) * 7 + ("1e-05",))
    assert model.training is True
    assert model.flops() == 9 * N
    assert model.hbm_bytes() == 4 * (3 * N + (1 + 2) * C + 2 * C)


def test_rms_norm_has_no_mean_and_no_bias():
    model = RMSNorm(shape=(32, 2880), channels=2880, statistics=32, weight=True)
    n = 32 * 2880
    assert model.flops() == 4 * n + 2 * 32
    assert model.hbm_bytes() == 2 * (2 * n + 2880)


def test_a_residual_is_added_and_written_back():
    plain = RMSNorm(shape=(32, 2880), channels=2880, statistics=32, weight=True)
    added = RMSNorm(shape=(32, 2880), channels=2880, statistics=32, weight=True, residual=True)
    n = 32 * 2880
    assert added.flops() - plain.flops() == n
    assert added.hbm_bytes() - plain.hbm_bytes() == 2 * (2 * n)  # type: ignore[operator]


def test_fused_rms_norm_without_weight_has_no_product_with_it():
    with_weight = read("aten::_fused_rms_norm", (X, (), (32, 32), ()), ("", "[32, 32]", "", ""))
    without = read("aten::_fused_rms_norm", (X, (), (), ()), ("", "[32, 32]", "", ""))
    assert with_weight.flops() == 4 * N + 2 * 8 * 16
    assert with_weight.flops() - without.flops() == N
    assert with_weight.backward().flops() == 10 * N


def test_an_unknown_dtype_gives_no_bytes():
    assert Normalization(shape=(4,), channels=4, statistics=1, dtype=DType.parse("Foo")).hbm_bytes() is None


@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.lists(st.integers(2, 9), min_size=1, max_size=2),
       st.booleans(), st.booleans())  # fmt: skip
def test_layer_norm_reads_back_what_its_inverse_records(
    rows: list[int], normalized: list[int], weight: bool, bias: bool
):
    channels = 1
    for size in normalized:
        channels *= size
    statistics = 1
    for size in rows:
        statistics *= size
    model = Normalization(
        shape=(*rows, *normalized), channels=channels, statistics=statistics, weight=weight, bias=bias
    )
    signature = inverses()["aten::layer_norm"].target(model)
    read_back = bindings()["aten::layer_norm"].target(signature)
    assert (read_back.channels, read_back.statistics) == (channels, statistics)
    assert (read_back.flops(), read_back.hbm_bytes()) == (model.flops(), model.hbm_bytes())
    assert inverses()["aten::layer_norm"].target(read_back) == signature


@pytest.mark.parametrize(
    ("kernel", "training"),
    [
        ("void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct)", True),
        ("void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, true, 1>(float, float)", False),
        ("MIOpenBatchNormFwdTrainSpatial.kd", True),
        ("MIOpenBatchNormFwdInferSpatialEst.kd", False),
    ],
)
def test_without_numbers_the_kernel_says_whether_batch_norm_trains(kernel: str, training: bool):
    shapes = ((32, 64, 8, 8), (64,), (64,), (64,), (64,), (), (), ())
    op = OpSignature(name="aten::cudnn_batch_norm", shapes=shapes, dtypes=(*["float"] * 5, "Bool", "Double", "Double"))
    binding = bindings()[op.name].target
    with pytest.raises(SignatureError):
        binding(op)
    assert binding(replace(op, attributes=(("launch", Launch(kernel=kernel)),))).training is training
