"""Compressed, selected and windowed rows, linear attention and the state-space scan, against loops over tokens."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tracelens.perf_models import IndexerScores, LinearAttention, SelectiveAttention, StateSpaceScan, TopKRows
from tracelens.perf_models.inference_attention import visible_rows
from tracelens.types.dtypes import DType

LENGTHS = st.integers(1, 70).flatmap(lambda s_kv: st.tuples(st.integers(1, s_kv), st.just(s_kv)))


@given(LENGTHS, st.integers(1, 16), st.none() | st.integers(0, 20))
def test_visible_rows_are_the_sum_over_tokens(lengths: tuple[int, int], ratio: int, top_k: int | None):
    s_q, s_kv = lengths
    seen = [(position + 1) // ratio for position in range(s_kv - s_q, s_kv)]
    assert visible_rows(s_q, s_kv, ratio, top_k) == sum(rows if top_k is None else min(rows, top_k) for rows in seen)


@given(LENGTHS, st.sampled_from([0, 1, 4]), st.none() | st.integers(1, 9), st.integers(0, 20))
def test_selective_attention_multiplies_every_pair_that_a_token_sees(
    lengths: tuple[int, int], ratio: int, top_k: int | None, window: int
):
    s_q, s_kv = lengths
    pairs = 0
    for position in range(s_kv - s_q, s_kv):
        rows = (position + 1) // ratio if ratio else 0
        pairs += min(rows, rows if top_k is None else top_k) + min(position + 1, window)
    model = SelectiveAttention(
        b=2, s_q=s_q, s_kv=s_kv, q_heads=3, d_qk=5, d_v=4, ratio=ratio, top_k=top_k, window=window
    )
    assert model.flops() == 2 * 2 * 3 * pairs * (5 + 4)
    # scores again, dV, dP, dQ, dK: 3 products of d_qk and 2 of d_v
    assert model.backward().flops() == 2 * 2 * 3 * pairs * (3 * 5 + 2 * 4)


def test_absorbed_latent_attention_reads_a_row_per_key():
    """DeepSeek-V3 decoding 2 sequences of 100 tokens: rows of 512 + 64, whose first 512 are the value."""
    model = SelectiveAttention(b=2, s_q=1, s_kv=100, q_heads=128, d_qk=576, d_v=512, dtype_kv=DType.FP8_E4M3FN)
    assert model.flops() == 2 * 2 * 100 * 128 * (576 + 512)
    assert model.hbm_bytes() == 2 * (2 * 128 * (576 + 512)) + 2 * 100 * 576


def test_rows_that_no_token_selects_are_not_read():
    one = SelectiveAttention(b=1, s_q=1, s_kv=10_000, q_heads=1, d_qk=8, d_v=8, top_k=64)
    many = SelectiveAttention(b=1, s_q=5_000, s_kv=10_000, q_heads=1, d_qk=8, d_v=8, top_k=64)
    assert (one.rows_read, many.rows_read) == (64, 10_000)


def test_an_indexer_scores_every_key_and_keeps_the_best():
    """Positions 2 and 3 of 4 see 3 and 4 keys; 2 heads of 5; the best 3 stay."""
    assert IndexerScores(b=1, s_q=2, s_kv=4, heads=2, d=5).flops() == 2 * (3 + 4) * 2 * 5
    assert IndexerScores(b=1, s_q=2, s_kv=4, heads=2, d=5).hbm_bytes() == (2 * 2 * 5 + 4 * 5) + 4 * (2 * 2 + 7)
    assert TopKRows(b=1, s_q=2, s_kv=4, top_k=3).hbm_bytes() == 4 * 7 + 4 * (3 + 3)


def test_a_gate_per_channel_and_a_kept_state_are_bytes_and_no_flops():
    base = {"tokens": 3, "v_heads": 2, "d_k": 4, "d_v": 5, "qkv_width": 2 * 4 + 2 * 5, "dtype": DType.BF16}
    head, channel = LinearAttention(**base), LinearAttention(**base, rule="channel_delta", sequences=3)
    assert head.k_heads == 1
    assert head.flops() == channel.flops() == 7 * 3 * 2 * 4 * 5
    assert head.hbm_bytes() == 2 * 3 * (18 + 2 * 2 + 2 * 5)
    assert channel.hbm_bytes() == 2 * 3 * (18 + 2 * (4 + 1) + 2 * 5) + 4 * 2 * 3 * (2 * 4 * 5)
    assert LinearAttention(**base, rule="decay").flops() == 5 * 3 * 2 * 4 * 5
    assert head.backward().flops() == 2 * head.flops()


def test_a_scan_is_its_products_chunk_by_chunk():
    scan = StateSpaceScan(b=2, tokens=10, heads=6, head_dim=5, state=7, groups=3, chunk=4)
    flops, chunks = 0, 3  # 10 tokens in chunks of 4
    for _ in range(2 * chunks):
        flops += 3 * 2 * 4 * 4 * 7  # C B^T per group
        flops += 6 * (2 * 4 * 5 * 4 + 2 * 7 * 5 * 4 + 2 * 4 * 5 * 7)  # times x, into the state, out of it
    assert scan.flops() == flops
    assert scan.backward().flops() == 2 * flops
