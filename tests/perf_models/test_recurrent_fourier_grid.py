"""Recurrent layers, Fourier transforms and grid sampling."""

from __future__ import annotations

from math import log2
from typing import Any

import pytest

from tracelens.errors import SignatureError
from tracelens.perf_models import PerfModel, bindings
from tracelens.types.signature import OpSignature

S, B, X, H = 50, 8, 16, 32


def read(name: str, **fields: Any) -> PerfModel:
    model = bindings()[name].target(OpSignature(name=name, **fields))
    assert isinstance(model, PerfModel)
    return model


def lstm(name: str = "aten::_cudnn_rnn", *, layers: int = 1, both: bool = False, projected: int = 0) -> PerfModel:
    before = 6 if name.endswith("rnn") else 10
    scalars = (*[""] * before, "2", str(H), str(projected), str(layers), "False", "0.", "True", str(both), "[]", "")
    shapes = ((S, B, X), *[()] * (len(scalars) - 1))
    return read(name, shapes=shapes, dtypes=("c10::Half",), scalars=scalars)


def test_an_lstm_multiplies_input_and_state_by_four_matrices_per_step():
    model = lstm()
    assert model.flops() == 2 * S * B * 4 * H * (X + H)
    weights = 4 * H * (X + H) + 2 * 4 * H
    assert model.hbm_bytes() == 2 * (weights + S * B * (X + H))


def test_a_second_bidirectional_layer_reads_both_directions():
    model = lstm(layers=2, both=True)
    assert model.flops() == 2 * 2 * S * B * 4 * H * ((X + H) + (2 * H + H))


def test_a_projected_lstm_has_a_smaller_state():
    model = lstm(projected=8)
    assert model.flops() == 2 * S * B * (4 * H * (X + 8) + H * 8)


def test_the_gradients_of_an_lstm_cost_twice_its_forward():
    assert lstm("aten::_cudnn_rnn_backward").flops() == 2 * lstm().flops()


def test_miopens_gru_has_three_matrices():
    scalars = (*[""] * 5, "3", str(H), "1", "False", "0.", "True", "False", "[]", "")
    model = read("aten::miopen_rnn", shapes=((S, B, X), *[()] * 13), dtypes=("float",), scalars=scalars)
    assert model.flops() == 2 * S * B * 3 * H * (X + H)
    backward = (*[""] * 10, "3", str(H), "1", "False", "0.", "True", "False", "[]", "")
    model = read("aten::miopen_rnn_backward", shapes=((S, B, X), *[()] * 17), dtypes=("float",), scalars=backward)
    assert model.flops() == 4 * S * B * 3 * H * (X + H)


def test_a_layer_of_onednn_is_that_of_cudnn():
    """As PyTorch 2.13 records it on the CPU: input, weights of the input and of the state, biases, states."""
    dtypes, shapes = ("float",) * 7, ((S, B, X), (4 * H, X), (4 * H, H), (4 * H,), (4 * H,), (B, H), (B, H))
    model = read("aten::mkldnn_rnn_layer", shapes=shapes, dtypes=dtypes)
    assert model.flops() == 2 * S * B * 4 * H * (X + H) == lstm().flops()
    assert read("aten::mkldnn_rnn_layer_backward", shapes=shapes, dtypes=dtypes).flops() == 2 * model.flops()


def test_a_recurrent_layer_of_an_unrecorded_kind_has_no_model():
    with pytest.raises(SignatureError, match="kind, hidden size and layers"):
        read("aten::_cudnn_rnn", shapes=((S, B, X), *[()] * 15), dtypes=("float",))


C64 = "c10::complex<float>"


def test_a_complex_transform_is_five_n_log_n():
    model = read("aten::_fft_c2c", shapes=((6, 64, 32), (), ()), dtypes=(C64,), scalars=("", "[1, 2]", "0", "True"))
    assert model.flops() == 5 * 6 * 2048 * log2(2048)
    assert model.hbm_bytes() == 2 * 8 * 6 * 2048


def test_a_transform_of_real_numbers_is_half_of_that_and_keeps_one_side():
    model = read("aten::_fft_r2c", shapes=((6, 64), (), ()), dtypes=("float",), scalars=("", "[1]", "0", "True"))
    assert model.flops() == 5 * 6 * 64 * 6 / 2
    assert model.hbm_bytes() == 4 * 6 * 64 + 8 * 6 * 33


def test_a_transform_to_real_numbers_says_how_many():
    model = read("aten::_fft_c2r", shapes=((6, 33), (), ()), dtypes=(C64,), scalars=("", "[-1]", "2", "64"))
    assert model.flops() == 5 * 6 * 64 * 6 / 2
    assert model.hbm_bytes() == 8 * 6 * 33 + 4 * 6 * 64


def test_a_transform_along_unrecorded_dims_has_no_model():
    with pytest.raises(SignatureError, match="the dims"):
        read("aten::_fft_c2c", shapes=((6, 64),), dtypes=(C64,), scalars=("", "", "", ""))


@pytest.mark.parametrize(("mode", "taps"), [("0", 4), ("1", 1), ("2", 16)])
def test_sampling_takes_as_many_values_as_the_interpolation_says(mode: str, taps: int):
    model = read(
        "aten::grid_sampler_2d", shapes=((2, 3, 64, 64), (2, 10, 10, 2), (), (), ()), dtypes=("float",) * 2,
        scalars=("", "", mode, "0", "False"),
    )  # fmt: skip
    results = 2 * 3 * 100
    assert model.flops() == (2 * taps - 1) * results
    assert model.hbm_bytes() == 4 * (taps * results + 2 * 100 * 2 + results)


def test_sampling_a_volume_reads_no_more_than_there_is():
    model = read(
        "aten::grid_sampler_3d", shapes=((1, 2, 4, 4, 4), (1, 8, 8, 8, 3), (), (), ()), dtypes=("c10::Half", "float"),
        scalars=("", "", "0", "0", "False"),
    )  # fmt: skip
    assert model.flops() == 15 * 2 * 512
    assert model.hbm_bytes() == 2 * (2 * 64 + 2 * 512) + 4 * 3 * 512


@pytest.mark.parametrize(
    ("name", "shapes", "scalars"),
    [
        ("aten::grid_sampler_2d_backward", ((2, 3, 10, 10), (2, 3, 8, 8), (2, 10, 10, 2)), ("", "", "", "0")),
        ("aten::cudnn_grid_sampler_backward", ((2, 3, 8, 8), (2, 10, 10, 2), (2, 3, 10, 10)), ("", "", "")),
    ],
)
def test_gradients_of_sampling_are_for_image_and_grid(name: str, shapes: Any, scalars: tuple[str, ...]):
    model = read(name, shapes=shapes, dtypes=("float",) * 3, scalars=scalars)
    results, image, grid = 2 * 3 * 100, 2 * 3 * 64, 2 * 100 * 2
    assert model.flops() == 2 * 4 * 3 * results
    assert model.hbm_bytes() == 4 * (2 * image + results + 2 * grid)
