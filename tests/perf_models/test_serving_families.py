"""Laws of the families that serving engines need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracelens.perf_models import SDPA, AttentionSums, InferenceAttention, MoEDown, MoEFused, MoEUp
from tracelens.perf_models.moe import touched_experts
from tracelens.types.dtypes import DType

SIZES = st.integers(1, 512)


def attention(sums: AttentionSums, **fields: object) -> InferenceAttention:
    return InferenceAttention(tokens=1, q_heads=8, kv_heads=2, d_qk=64, d_v=32, sums=sums, **fields)  # type: ignore[arg-type]


@given(SIZES, SIZES)
def test_one_generated_token_costs_what_full_attention_of_one_query_does(past: int, requests: int):
    sums = AttentionSums(g_sq=requests, g_sk=requests * past, g_sqsq=requests, g_sqsk=requests * past)
    dense = SDPA(b=requests, s_q=1, s_kv=past, q_heads=8, kv_heads=2, d_qk=64, d_v=32)
    assert (attention(sums).flops(), attention(sums).hbm_bytes()) == (dense.flops(), dense.hbm_bytes())


@given(SIZES)
def test_a_prompt_without_a_past_costs_half_of_full_attention(tokens: int):
    sums = AttentionSums(c_sq=tokens, c_sk=tokens, c_sqsq=tokens**2, c_sqsk=tokens**2)
    dense = SDPA(b=1, s_q=tokens, s_kv=tokens, q_heads=8, kv_heads=2, d_qk=64, d_v=32)
    assert (2 * attention(sums).flops(), attention(sums).hbm_bytes()) == (dense.flops(), dense.hbm_bytes())


@given(SIZES, SIZES, SIZES)
def test_a_window_never_costs_more_and_a_wide_one_costs_the_same(past: int, requests: int, window: int):
    sums = AttentionSums(g_sq=requests, g_sk=requests * past, g_sqsq=requests, g_sqsk=requests * past)
    assert attention(sums, window=window).flops() <= attention(sums).flops()
    assert attention(sums, window=past + window).flops() == attention(sums).flops()


def test_a_narrow_cache_counts_for_the_past_only():
    sums = AttentionSums(g_sq=1, g_sk=101, g_sqsq=1, g_sqsk=101)
    wide, narrow = attention(sums), attention(sums, dtype_kv=DType.FP8_E4M3FN)
    assert wide.hbm_bytes() - narrow.hbm_bytes() == 100 * 2 * (64 + 32)  # type: ignore[operator]


@given(st.integers(1, 64), st.data())
def test_touched_experts_lie_between_top_k_and_all_and_grow_with_the_tokens(experts: int, data: st.DataObject):
    top_k, tokens = data.draw(st.integers(1, experts)), data.draw(st.integers(1, 10_000))
    touched = touched_experts(experts, top_k, tokens)
    assert top_k * (1 - 1e-12) <= touched <= experts
    assert touched <= touched_experts(experts, top_k, tokens + 1)


@given(SIZES, SIZES, SIZES, st.booleans())
def test_a_fused_layer_is_its_two_projections_and_the_weighted_sum(tokens: int, hidden: int, ffn: int, gated: bool):
    layer = {"tokens": tokens, "hidden": hidden, "ffn": ffn, "experts": 16, "top_k": 4}
    up, down = MoEUp(**layer, gated=gated), MoEDown(**layer)  # type: ignore[arg-type]
    fused = MoEFused(**layer, gated=gated)  # type: ignore[arg-type]
    assert fused.flops() == up.flops() + down.flops() + tokens * hidden * (2 * 4 - 1)
    assert fused.hbm_bytes() < up.hbm_bytes() + down.hbm_bytes()  # type: ignore[operator]


def test_routing_that_is_known_replaces_the_assumption():
    layer = {"tokens": 4, "hidden": 8, "ffn": 8, "experts": 16, "top_k": 2}
    known = MoEFused(**layer, touched=2)  # type: ignore[arg-type]
    assert known.parameters()["assumed"] == ""
    assert known.hbm_bytes() < MoEFused(**layer).hbm_bytes()  # type: ignore[arg-type, operator]
