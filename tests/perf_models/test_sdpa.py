"""Attention: pairs counted one by one against the closed form, heads, layouts, what is not recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelens.perf_models import SDPA, bindings, inverses
from tracelens.perf_models.sdpa import Mask, attended_pairs
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

LENGTH = st.integers(0, 40)


def brute_force(s_q: int, s_kv: int, mask: Mask, window: int | None) -> int:
    shift = 0 if mask == "top_left" else s_kv - s_q
    return sum(
        mask == "none" or (j <= i + shift and (window is None or j > i + shift - window))
        for i in range(s_q)
        for j in range(s_kv)
    )


@given(LENGTH, LENGTH, st.sampled_from(["none", "top_left", "bottom_right"]))
def test_attended_pairs_are_those_of_the_mask(s_q: int, s_kv: int, mask: Mask):
    assert attended_pairs(s_q, s_kv, mask) == brute_force(s_q, s_kv, mask, None)


@given(LENGTH, LENGTH, st.sampled_from(["top_left", "bottom_right"]), st.integers(1, 50))
def test_a_window_keeps_the_last_keys_of_each_query(s_q: int, s_kv: int, mask: Mask, window: int):
    assert attended_pairs(s_q, s_kv, mask, window) == brute_force(s_q, s_kv, mask, window)


def test_forward_is_two_products_over_the_attended_pairs():
    model = SDPA(b=2, s_q=4, s_kv=4, q_heads=3, kv_heads=3, d_qk=8, d_v=16, mask="top_left")
    assert model.flops() == 2 * 2 * 3 * (1 + 2 + 3 + 4) * (8 + 16)


def test_causal_masks_of_unequal_lengths_differ_by_where_they_are_anchored():
    one_query = {"b": 1, "s_q": 1, "s_kv": 100, "q_heads": 1, "kv_heads": 1, "d_qk": 64, "d_v": 64}
    assert SDPA(**one_query, mask="top_left").flops() == 2 * 1 * 128
    assert SDPA(**one_query, mask="bottom_right").flops() == 2 * 100 * 128


def test_grouped_queries_share_keys_and_values():
    model = SDPA(b=1, s_q=10, s_kv=20, q_heads=8, kv_heads=2, d_qk=4, d_v=6)
    assert model.flops() == 2 * 8 * 10 * 20 * (4 + 6)
    assert model.hbm_bytes() == 2 * (10 * 8 * 4 + 20 * 2 * 4 + 20 * 2 * 6 + 10 * 8 * 6)


def test_each_operand_counts_in_its_own_type():
    model = SDPA(
        b=1, s_q=1, s_kv=1, q_heads=1, kv_heads=1, d_qk=8, d_v=8,
        dtype=DType.BF16, dtype_k=DType.FP8_E4M3FN, dtype_v=DType.FP8_E4M3FN, dtype_out=DType.FP32,
    )  # fmt: skip
    assert model.hbm_bytes() == 8 * 2 + 8 * 1 + 8 * 1 + 8 * 4


def test_backward_is_five_products_and_moves_seven_tensors():
    model = SDPA(b=2, s_q=16, s_kv=16, q_heads=4, kv_heads=4, d_qk=8, d_v=8)
    assert model.flops() == 2 * 2 * 4 * 16 * 16 * (2 * 8)
    assert model.backward().flops() == 2 * 2 * 4 * 16 * 16 * (5 * 8)
    one_tensor = 2 * 16 * 4 * 8 * 2
    assert (model.hbm_bytes(), model.backward().hbm_bytes()) == (4 * one_tensor, 7 * one_tensor)


def test_backward_adds_up_the_gradients_of_a_groups_query_heads():
    sizes = {"b": 3, "s_q": 16, "s_kv": 32, "q_heads": 8, "d_qk": 8, "d_v": 4}
    grouped, plain = SDPA(**sizes, kv_heads=2).backward(), SDPA(**sizes, kv_heads=8).backward()
    assert grouped.flops() - plain.flops() == 3 * 32 * (8 - 2) * (8 + 4)  # type: ignore[operator]


def test_packed_sequences_of_unrecorded_lengths_have_bytes_but_no_flops():
    model = SDPA(
        b=4, s_q=None, s_kv=None, tokens_q=100, tokens_kv=100, q_heads=2, kv_heads=2, d_qk=8, d_v=8, mask="none"
    )
    assert model.flops() is None
    assert model.backward().flops() is None
    assert model.hbm_bytes() == 2 * 4 * 100 * 2 * 8


def test_known_pairs_stand_in_for_lengths():
    lengths = (3, 5)
    model = SDPA(b=2, s_q=None, s_kv=None, pairs=sum(n * n for n in lengths), tokens_q=8, tokens_kv=8,
                 q_heads=2, kv_heads=2, d_qk=8, d_v=8)  # fmt: skip
    assert model.flops() == 2 * 2 * (9 + 25) * 16


def test_an_unrecorded_mask_gives_no_flops():
    assert SDPA(b=1, s_q=4, s_kv=4, q_heads=1, kv_heads=1, d_qk=8, d_v=8, mask=None).flops() is None


def test_aten_flash_forward_reads_its_own_layout():
    types = ("c10::BFloat16",) * 3
    outer = bindings()["aten::_scaled_dot_product_flash_attention"].target(
        OpSignature(
            name="aten::_scaled_dot_product_flash_attention",
            shapes=((2, 16, 128, 64), (2, 4, 256, 64), (2, 4, 256, 64), (), (), (), ()),
            dtypes=(*types, *["Scalar"] * 4),
            scalars=("", "", "", "0.", "False", "False", ""),
        )
    )
    inner = bindings()["aten::_flash_attention_forward"].target(
        OpSignature(
            name="aten::_flash_attention_forward",
            shapes=((2, 128, 16, 64), (2, 256, 4, 64), (2, 256, 4, 64), *[()] * 12),
            dtypes=(*types, *["Scalar"] * 12),
            scalars=("", "", "", "", "", "128", "256", "0.", "False", "False", "0.125", "", "", "", ""),
        )
    )
    assert (inner.b, inner.s_q, inner.s_kv, inner.q_heads, inner.kv_heads) == (2, 128, 256, 16, 4)
    assert (inner.flops(), inner.hbm_bytes()) == (outer.flops(), outer.hbm_bytes())


@pytest.mark.parametrize(("total", "lengths"), [(30, None), (40, 10)])
def test_packed_flash_lengths_are_known_only_where_all_are_the_longest(total: int, lengths: int | None):
    model = bindings()["aten::_flash_attention_forward"].target(
        OpSignature(
            name="aten::_flash_attention_forward",
            shapes=((total, 8, 64), (total, 8, 64), (total, 8, 64), (5,), (5,), *[()] * 10),
            dtypes=(*["c10::Half"] * 3, "int", "int", *["Scalar"] * 10),
            scalars=("", "", "", "", "", "10", "10", "0.", "True", "False", "0.125", "", "", "", ""),
        )
    )
    assert (model.b, model.s_q) == (4, lengths)
    assert model.flops() == (None if lengths is None else 2 * 8 * 4 * 55 * 128)
    assert model.hbm_bytes() == 4 * total * 8 * 64 * 2


@given(st.integers(1, 8), st.integers(1, 64), st.integers(1, 8), st.booleans(), st.booleans())
def test_flash_calls_read_back_what_their_inverses_record(b: int, s: int, heads: int, masked: bool, grouped: bool):
    model = SDPA(b=b, s_q=s, s_kv=s, q_heads=2 * heads, kv_heads=heads if grouped else 2 * heads, d_qk=64, d_v=32,
                 mask="top_left" if masked else "none", flash=True)  # fmt: skip
    forward = "aten::_scaled_dot_product_flash_attention"
    for name, expected in ((forward, model), (f"{forward}_backward", model.backward())):
        signature = inverses()[name].target(model)
        read_back = bindings()[name].target(signature)
        assert type(read_back) is type(expected)
        assert read_back.parameters() == expected.parameters()
        assert (read_back.flops(), read_back.hbm_bytes()) == (expected.flops(), expected.hbm_bytes())
        assert inverses()[name].target(read_back) == signature
