"""Transformer Engine's op names as GEMM, attention, normalization, and categories."""

from __future__ import annotations

import pytest

from tracelens.errors import SignatureError
from tracelens.extensions import load_extension, overlay
from tracelens.perf_models.base import PerfModel, category_of
from tracelens.perf_models.normalization import NormalizationBackward
from tracelens.registry import Registry
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

EXTENSION = load_extension("transformer_engine")
BINDINGS = overlay(Registry("traced_as", {}), [EXTENSION])
CATEGORIES = Registry.collect("category", EXTENSION.sources)
BF16 = "c10::BFloat16"


def read(name: str, shapes: tuple, dtypes: tuple[str, ...], scalars: tuple[str, ...] = ()) -> PerfModel:
    return BINDINGS[name].target(OpSignature(name=name, shapes=shapes, dtypes=dtypes, scalars=scalars))


def gemm(
    a: tuple, b: tuple, out: tuple, transa: int, transb: int, *, bias: tuple = (0,), stored: str = BF16, type_: int = 5
):
    shapes: list[tuple] = [()] * 22
    dtypes, scalars = ["Scalar"] * 22, [""] * 22
    shapes[0], shapes[5], shapes[10], shapes[14], shapes[16], shapes[18] = a, b, out, bias, (0,), (33554432,)
    dtypes[0] = dtypes[5] = stored
    dtypes[10], dtypes[14], dtypes[16], dtypes[18] = BF16, BF16, BF16, "unsigned char"
    scalars[3] = scalars[8] = str(type_)
    scalars[4], scalars[9], scalars[12], scalars[17] = str(transa), str(transb), "5", "0"
    return read("tex_ts::te_gemm_ts", tuple(shapes), tuple(dtypes), tuple(scalars))


def test_the_forward_gemm_is_weight_times_input():
    out, inner, tokens = 5120, 4096, 8192  # weight [out, in], input [tokens, in], result [tokens, out]
    model = gemm((out, inner), (tokens, inner), (tokens, out), 1, 0)
    assert (model.m, model.n, model.k, model.bias) == (out, tokens, inner, False)
    assert model.flops() == 2 * out * tokens * inner
    assert model.hbm_bytes() == 2 * (out * inner + tokens * inner + tokens * out)


def test_the_two_backward_gemms_do_the_same_work():
    out, inner, tokens = 5120, 4096, 8192
    of_input = gemm((out, inner), (tokens, out), (tokens, inner), 0, 0)
    of_weight = gemm((tokens, inner), (tokens, out), (out, inner), 0, 1)
    assert (of_input.m, of_input.n, of_input.k) == (inner, tokens, out)
    assert (of_weight.m, of_weight.n, of_weight.k) == (inner, out, tokens)
    assert of_input.flops() == of_weight.flops() == 2 * out * tokens * inner


def test_an_empty_bias_is_none_and_a_recorded_one_counts():
    assert gemm((8, 4), (16, 4), (16, 8), 1, 0).flops() == 2 * 8 * 16 * 4
    biased = gemm((8, 4), (16, 4), (16, 8), 1, 0, bias=(8,))
    assert biased.flops() == 2 * 8 * 16 * 4 + 8 * 16
    assert biased.hbm_bytes() == 2 * (8 * 4 + 16 * 4 + 16 * 8 + 8)


def test_fp8_operands_are_stored_as_bytes_and_named_by_a_number():
    model = gemm((8, 4), (16, 4), (16, 8), 1, 0, stored="unsigned char", type_=6)
    assert (model.dtype, model.dtype_b, model.dtype_out) == (DType.FP8_E4M3FN, DType.FP8_E4M3FN, DType.BF16)
    assert model.hbm_bytes() == (8 * 4 + 16 * 4) + 2 * 16 * 8
    assert gemm((8, 4), (16, 4), (16, 8), 1, 0, stored="unsigned char", type_=99).hbm_bytes() is None


def test_operands_that_do_not_fit_are_refused():
    with pytest.raises(SignatureError, match="inner dims differ, 4 and 5"):
        gemm((8, 4), (16, 5), (16, 8), 1, 0)


def attention(q: tuple, kv: tuple, *, sequences: int | None = None, longest: tuple[str, str] = ("", "")):
    cumulative: tuple = () if sequences is None else (sequences + 1,)
    shapes = ((), (), (), cumulative, cumulative, (), (), (), (), q, kv, kv)
    scalars = ("True", *longest, *[""] * 9)
    return read("FusedAttnFunc", shapes, (*[""] * 9, BF16, BF16, BF16), scalars)


def test_self_attention_is_taken_as_causal_and_says_so():
    s, b, h, d = 4096, 2, 32, 128
    model = attention((s, b, h, d), (s, b, 8, d), sequences=b)
    assert (model.b, model.s_q, model.q_heads, model.kv_heads, model.d_qk, model.d_v) == (b, s, h, 8, d, d)
    assert model.flops() == 2 * h * b * (s * (s + 1) // 2) * 2 * d
    assert model.hbm_bytes() == 2 * (2 * b * s * h * d + 2 * b * s * 8 * d)
    assert model.parameters()["assumed"] == "causal"


def test_the_layout_is_an_assumption_where_the_sequence_count_was_not_recorded():
    assert attention((4096, 2, 32, 128), (4096, 2, 8, 128)).parameters()["assumed"] == "layout s b h d, causal"
    batch_first = attention((2, 4096, 32, 128), (2, 4096, 8, 128), sequences=2)
    assert (batch_first.b, batch_first.s_q, batch_first.assumed) == (2, 4096, "causal")


def test_with_unequal_lengths_nothing_is_assumed_so_flops_are_unknown():
    model = attention((16, 2, 32, 128), (4096, 2, 8, 128), sequences=2)
    assert model.flops() is None
    assert model.parameters()["assumed"] == ""
    assert model.hbm_bytes() == 2 * 2 * (2 * 16 * 32 * 128 + 2 * 4096 * 8 * 128)


def test_packed_sequences_have_flops_only_when_all_are_as_long_as_the_longest():
    full = attention((8192, 32, 128), (8192, 8, 128), sequences=2, longest=("4096", "4096"))
    assert full.flops() == attention((4096, 2, 32, 128), (4096, 2, 8, 128), sequences=2).flops()
    ragged = attention((8000, 32, 128), (8000, 8, 128), sequences=2, longest=("4096", "4096"))
    assert ragged.flops() is None
    assert ragged.hbm_bytes() == 2 * (2 * 8000 * 32 * 128 + 2 * 8000 * 8 * 128)


def test_layer_norm_reads_weight_and_bias_and_its_backward_the_gradients_shape():
    forward = read("LayerNormFn", ((4096, 2, 5120), (5120,), (5120,)), (BF16, BF16, BF16))
    assert (forward.shape, forward.channels, forward.statistics) == ((4096, 2, 5120), 5120, 4096 * 2)
    assert (forward.category, forward.weight, forward.bias) == ("NORM_fwd", True, True)
    backward = read("LayerNormFnBackward", ((4096, 2, 5120),), (BF16,))
    assert isinstance(backward, NormalizationBackward)
    assert (backward.shape, backward.channels, backward.category) == ((4096, 2, 5120), 5120, "NORM_bwd")
    assert category_of(BINDINGS["LayerNormFnBackward"]) == "NORM_bwd"


def test_rotary_embedding_and_cross_entropy_count_per_element():
    rope = read("FusedRoPEFunc", ((4096, 2, 32, 128),), (BF16,))
    assert (rope.flops(), rope.hbm_bytes()) == (3 * 4096 * 2 * 32 * 128, 2 * 2 * 4096 * 2 * 32 * 128)
    loss = read("CrossEntropyFunction", ((4, 1, 32000),), ("float",))
    assert (loss.flops(), loss.hbm_bytes()) == (5 * 4 * 32000, 2 * 4 * 32000 * 4)
    assert read("CrossEntropyFunction", ((4, 1, 32000),), ("Foo",)).hbm_bytes() is None


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("_Linear", "GEMM"),
        ("_LayerNormLinearBackward", "GEMM"),
        ("FusedAttnFuncBackward", "SDPA_bwd"),
        ("CrossEntropyFunctionBackward", "CrossEntropy_bwd"),
        ("TokenPermuteMaskMap", "MoE_comm_fwd"),
        ("_OperationFuserAutogradFunctionBackward", "MoE_comm_bwd"),
    ],
)
def test_names_without_a_model_have_a_category(name: str, category: str):
    assert CATEGORIES[name].options["category"] == category
    assert name not in BINDINGS
    assert name in EXTENSION.traced_names
