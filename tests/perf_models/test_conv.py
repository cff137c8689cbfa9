"""Convolutions: shapes, counts, gradients and how each library's op is read."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.errors import SignatureError
from tracelens.perf_models import GEMM, Conv, bindings, inverses
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

PLAIN = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "output_padding": (0, 0)}
FLOAT3 = ("float", "float", "float")


def read(name: str, shapes: tuple[tuple[int, ...], ...], scalars: tuple[str, ...]) -> Conv:
    return bindings()[name].target(OpSignature(name=name, shapes=shapes, dtypes=FLOAT3, scalars=scalars))


def test_a_convolution_counts_its_window_for_every_output():
    model = Conv(x=(2, 3, 8, 8), w=(5, 3, 3, 3), **(PLAIN | {"padding": (1, 1)}), dtype=DType.FP32)
    assert model.out == (2, 5, 8, 8)
    assert model.flops() == 2 * (3 * 3 * 3) * (2 * 5 * 8 * 8)
    assert model.hbm_bytes() == 4 * (2 * 3 * 8 * 8 + 5 * 3 * 3 * 3 + 2 * 5 * 8 * 8)


def test_a_bias_adds_once_per_output():
    model = Conv(x=(2, 3, 8, 8), w=(5, 3, 1, 1), bias=True, **PLAIN)
    assert model.flops() == 2 * 3 * (2 * 5 * 64) + 2 * 5 * 64


def test_strides_and_dilation_shrink_the_output():
    model = Conv(
        x=(1, 1, 224, 224), w=(64, 1, 7, 7), stride=(2, 2), padding=(3, 3), dilation=(1, 1), output_padding=(0, 0)
    )
    assert model.out == (1, 64, 112, 112)
    assert Conv(x=(1, 1, 9, 9), w=(1, 1, 3, 3), **(PLAIN | {"dilation": (2, 2)})).out == (1, 1, 5, 5)


def test_groups_shrink_the_window():
    assert Conv(x=(1, 8, 4, 4), w=(8, 1, 1, 1), groups=8, **PLAIN).flops() == 2 * 1 * (8 * 16)


def test_a_transposed_convolution_counts_its_window_for_every_input():
    model = Conv(x=(2, 6, 5, 5), w=(6, 4, 3, 3), transposed=True, stride=(2, 2), padding=(1, 1), dilation=(1, 1),
                 output_padding=(1, 1))  # fmt: skip
    assert model.out == (2, 4, 10, 10)
    assert model.flops() == 2 * (4 * 3 * 3) * (2 * 6 * 5 * 5)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
def test_a_one_by_one_convolution_is_a_gemm(b: int, c_in: int, c_out: int, pixels: int):
    conv = Conv(x=(b, c_in, pixels), w=(c_out, c_in, 1), stride=(1,), padding=(0,), dilation=(1,), output_padding=(0,))
    gemm = GEMM(m=b * pixels, n=c_out, k=c_in)
    assert (conv.flops(), conv.hbm_bytes()) == (gemm.flops(), gemm.hbm_bytes())


def test_backward_costs_twice_the_forward():
    forward = Conv(x=(2, 3, 8, 8), w=(5, 3, 3, 3), **PLAIN)
    assert forward.backward().flops() == 2 * forward.flops()


def test_gradients_that_were_not_asked_for_do_not_count():
    scalars = ("", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1")
    shapes = ((2, 5, 6, 6), (2, 3, 8, 8), (5, 3, 3, 3), *[()] * 8)
    one_product = 2 * 27 * (2 * 5 * 36)
    both = read("aten::convolution_backward", shapes, (*scalars, "[True, True, False]"))
    weight = read("aten::convolution_backward", shapes, (*scalars, "[False, True, False]"))
    with_bias = read("aten::convolution_backward", shapes, (*scalars, "[False, True, True]"))
    assert (both.flops(), weight.flops()) == (2 * one_product, one_product)
    assert with_bias.flops() == one_product + 2 * 5 * 36
    dout, x, w = 2 * 5 * 36, 2 * 3 * 64, 5 * 27
    assert weight.hbm_bytes() == 4 * (dout + x + w)
    assert both.hbm_bytes() == 4 * 2 * (dout + x + w)
    assert with_bias.hbm_bytes() == 4 * (dout + x + w + 5)


def test_a_bias_is_found_by_its_slot():
    scalars = ("", "", "", "[1]", "[0]", "[1]", "False", "[0]", "1")
    shapes = ((2, 3, 8, 8), (5, 3, 3, 3), (5,), *[()] * 6)
    without = (*shapes[:2], (), *shapes[3:])
    assert read("aten::convolution", shapes, scalars).bias is True
    assert read("aten::convolution", without, scalars).bias is False


def test_libraries_record_padding_before_stride():
    aten = read("aten::convolution", ((4, 3, 224, 224), (768, 3, 16, 16), (768,), *[()] * 6),
                ("", "", "", "[16, 16]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1"))  # fmt: skip
    miopen = read("aten::miopen_convolution", ((4, 3, 224, 224), (768, 3, 16, 16), (768,), *[()] * 6),
                  ("", "", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", "False", "False"))  # fmt: skip
    cudnn = read("aten::cudnn_convolution", ((4, 3, 224, 224), (768, 3, 16, 16), *[()] * 7),
                 ("", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", "False", "False", "True"))  # fmt: skip
    assert aten == miopen
    assert cudnn.product_flops == aten.product_flops
    assert cudnn.bias is False


def test_the_text_false_is_false():
    scalars = ("", "", "", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1")
    assert read("aten::convolution", ((1, 1, 4, 4), (1, 1, 3, 3), *[()] * 7), scalars).transposed is False


def test_an_unrecorded_stride_is_an_error():
    with pytest.raises(SignatureError, match="argument 3 was not recorded"):
        read("aten::convolution", ((1, 1, 4, 4), (1, 1, 3, 3), *[()] * 7), ("", "", "", "", "", "", "False", "", "1"))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 8), st.integers(1, 3), st.booleans(), st.booleans())
def test_a_convolution_reads_back_what_its_inverse_records(
    b: int, groups: int, channels: int, kernel: int, bias: bool, transposed: bool
):
    model = Conv(
        x=(b, groups * channels, 9, 9), w=(groups * channels, channels, kernel, kernel), bias=bias, stride=(2, 1),
        padding=(1, 0), dilation=(1, 2), transposed=transposed, output_padding=(0, 0), groups=groups,
    )  # fmt: skip
    signature = inverses()["aten::convolution"].target(model)
    read_back = bindings()["aten::convolution"].target(signature)
    assert (read_back.out, read_back.flops(), read_back.hbm_bytes()) == (model.out, model.flops(), model.hbm_bytes())
    assert inverses()["aten::convolution"].target(read_back) == signature


def unnumbered(name: str, shapes: tuple[tuple[int, ...], ...], **attributes: OpSignature) -> OpSignature:
    """As PyTorch before 1.12 records an op: no numbers."""
    found = OpSignature(name=name, shapes=shapes, dtypes=tuple("float" if shape else "GenericList" for shape in shapes))
    return replace(found, attributes=tuple(attributes.items()))


X, W, OUT = (32, 3, 224, 224), (64, 3, 7, 7), (32, 64, 112, 112)
FLOPS = 2 * (3 * 7 * 7) * (32 * 64 * 112 * 112)


@pytest.mark.parametrize(
    "library", ["cudnn_convolution", "miopen_convolution", "mkldnn_convolution", "thnn_conv2d_forward"]
)
def test_without_numbers_the_gradient_of_the_result_stands_for_stride_and_padding(library: str):
    gradient = unnumbered("CudnnConvolutionBackward", (OUT,))
    binding = bindings()[f"aten::{library}"].target
    model = binding(unnumbered(f"aten::{library}", (X, W, (), (), ()), gradient=gradient))
    assert model.out == OUT
    assert model.flops() == FLOPS
    with pytest.raises(SignatureError, match="nor the size of the result"):
        binding(unnumbered(f"aten::{library}", (X, W, (), (), ())))
    with pytest.raises(SignatureError, match="no stride"):
        binding(unnumbered(f"aten::{library}", (X, W, (), (), ()), gradient=unnumbered("B", (X,))))


@pytest.mark.parametrize("library", ["cudnn", "miopen"])
def test_the_gradients_of_old_libraries_take_their_sizes_from_their_caller(library: str):
    name = f"aten::{library}_convolution_backward"
    caller = unnumbered(name, (X, OUT, W, ()))
    for part, other, size in (("input", W, X), ("weight", X, W)):
        binding = bindings()[f"{name}_{part}"].target
        model = binding(unnumbered(f"{name}_{part}", ((), OUT, other, ()), caller=caller))
        assert model.category == "CONV_bwd"
        assert model.flops() == FLOPS
        assert model.hbm_bytes() == 4 * sum(prod(shape) for shape in (OUT, other, size))
        with pytest.raises(SignatureError, match="calls it"):
            binding(unnumbered(f"{name}_{part}", ((), OUT, other, ())))
        with pytest.raises(SignatureError, match="other tensors"):
            binding(unnumbered(f"{name}_{part}", ((), OUT, OUT, ()), caller=caller))
