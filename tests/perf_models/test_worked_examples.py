"""Every family's FLOPs and bytes for a batch of 3 in BF16, counted by hand as its docstring says."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import row_by_row
from tests.perf_models.families import FAMILIES
from tracelens.perf_models import (
    SDPA,
    AttentionSums,
    CausalConv1d,
    GroupQuant,
    InferenceAttention,
    PerfModel,
    PooledLookup,
    SelectiveAttention,
    SparseAttention,
)
from tracelens.perf_models.sdpa import AttentionRequests, Mask
from tracelens.types.dtypes import DType

#: Of 8 experts, those that 3 tokens with 2 each are expected to touch: 8 * (1 - (6/8)^3).
TOUCHED = 8 * (1 - 0.75**3)
#: Pairs of 9 queries with the 11 keys of a sequence, the last of both together: 3 + 4 + ... + 11.
PAIRS = 63
#: Rows that the last 9 of 40 tokens see: 32 + 33 + ... + 40.
SEEN = 324
#: Of 3 sequences in float32: 4 heads' states of 8 x 16, read and written.
STATES = 3 * 4 * (8 * 16) * 2 * 4
#: Two layers in two directions of 4 gates of 8 * (input + state) with two biases each, projected to 3; inputs 5 and 6.
RECURRENT = 2 * sum(4 * 8 * (n + 3) + 2 * 4 * 8 + 8 * 3 for n in (5, 6))
#: FLOPs of one step of it.
STEP = 2 * sum(2 * 4 * 8 * (n + 3) + 2 * 8 * 3 for n in (5, 6))

#: Family -> (FLOPs, bytes).
WORK: dict[str, tuple[float, float]] = {
    "gemm": (3 * (2 * 3 * 5 * 7 + 3 * 5), 2 * (3 * (3 * 7 + 7 * 5 + 3 * 5) + 5)),
    "gemm_rows": (2 * 3 * 5 * 7 + 3 * 5, 2 * (3 * 7 + 7 * 5 + 3 * 5 + 5)),
    "grouped_gemm": (2 * 3 * 5 * 7, 2 * (3 * 7 + 3 * 7 * 5 + 3 * 5)),
    "grouped_gemm_backward": (4 * 3 * 5 * 7, 2 * (2 * 3 * 5 + 3 * 7 + 3 * 7 * 5 + 3 * 7 + 3 * 7 * 5)),
    "sdpa": (2 * 4 * 3 * PAIRS * (8 + 6), 2 * 3 * (9 * 4 * (8 + 6) + 11 * 2 * (8 + 6))),
    # two query heads to a key head: dK and dV of the second are added to those of the first
    "sdpa_backward": (
        2 * 4 * 3 * 9 * 11 * (3 * 8 + 2 * 6) + 3 * 11 * 2 * (8 + 6),
        2 * 3 * (2 * (9 * 4 * 8 + 11 * 2 * 8 + 11 * 2 * 6) + 9 * 4 * 6),
    ),
    # 3 x [3,9,9] and 5 filters of [3,3,3] give 3 x [5,7,7]
    "conv": (3 * 5 * 49 * (2 * 27 + 1), 2 * (3 * 3 * 81 + 5 * 27 + 5 + 3 * 5 * 49)),
    "conv_backward": (
        2 * (2 * 27 * 3 * 5 * 49) + 3 * 5 * 49,
        2 * ((3 * 5 * 49 + 5 * 27 + 3 * 3 * 81) + (3 * 5 * 49 + 3 * 3 * 81 + 5 * 27) + 5),
    ),
    # x read and y written, of channels two vectors of 16; backward x and dy read
    "norm_part": (3 * 48, 2 * 2 * 48 + 4 * 32),
    "norm_part_backward": (3 * 48, 2 * 2 * 48 + 4 * 32),
    "layer_norm": (2 * 48 + 6 * 16 + 3 * 48, 2 * (48 + 48 + 16) + 4 * 2 * 3),
    "layer_norm_backward": (4 * 48 + 5 * 48, 2 * (3 * 48 + 16 + 16) + 4 * 2 * 3),
    "rms_norm": (2 * 48 + 2 * 3 + 48 + 48, 2 * (48 + 48 + 16)),
    "rms_norm_backward": (8 * 48, 2 * 3 * 48 + 4 * 3),
    "fused_rms_norm": (2 * 48 + 2 * 3 + 48 + 48, 2 * (48 + 48 + 16)),
    "fused_rms_norm_backward": (8 * 48 + 2 * 48, 2 * (3 * 48 + 16 + 16) + 4 * 3),
    "softmax": (5 * 48, 2 * 2 * 48),
    "softmax_backward": (4 * 48, 2 * 3 * 48),
    "moe_fused": (2 * 3 * 8 * 4 * 2 * 3 + 3 * 8 * (2 * 2 - 1), 2 * (3 * 8 + TOUCHED * 3 * 8 * 4 + 3 * 8)),
    "moe_up": (2 * 2 * 3 * 8 * 4 * 2, 2 * (3 * 8 + TOUCHED * 2 * 8 * 4 + 3 * 2 * 4)),
    "moe_down": (2 * 3 * 8 * 4 * 2, 2 * (3 * 2 * 4 + TOUCHED * 8 * 4 + 3 * 8)),
    "rope": (3 * 24, 2 * 2 * (48 + 12)),
    "rope_backward": (3 * 24, 2 * 2 * 48),
    "cross_entropy": (5 * 48, 2 * 2 * 48),
    "cross_entropy_backward": (48, 2 * 2 * 48),
    "group_quant": (2 * 48, 2 * 48 + 1 * 48 + 4 * 3),
    "causal_conv": (2 * 3 * 4 * 8 * 4, 2 * (3 * 4 * 8 + 4 * 4 + 4 + 3 * 4 * 8)),
    "causal_conv_backward": (2 * (2 * 3 * 4 * 8 * 4), 2 * (3 * (3 * 4 * 8) + 2 * 4 * 4)),
    "chunk_scan": (
        24 * (2 * 64 * 4 + 2 * 1 * 4 * 16 + 2 * 4 * 4 * 8 + 4 * 4 * 16 * 8),
        2 * 24 * (100 + 4 * 8),
    ),
    "hyper_connection_post": (2 * 96 * (4 + 1), 2 * (96 + 24 + 96)),
    "hyper_connection_pre": (2 * 96 + 5 * 24, 2 * (96 + 8 + 24)),
    "hyper_connection_coefficients": (2 * 3 * 24 * 32, 2 * 96 + 4 * 24 * 32 + 4 * 3 * (24 + 1)),
    "hyper_connection_post_pre": (
        2 * 96 * (4 + 1) + 2 * 3 * 24 * 32,
        2 * (96 + 24 + 96) + 4 * 24 * 32 + 4 * 3 * (24 + 1),
    ),
    # two gates per token and head
    "linear_attention": (7 * 8 * 8 * 3 * 4, 2 * 3 * (64 + 2 * 4 + 4 * 8)),
    # a gate per token and channel of the keys and one per head; 3 states of 4 heads
    "linear_attention_state": (7 * 8 * 8 * 12 * 4, 2 * 12 * (64 + 4 * 8 + 4 + 4 * 8) + 4 * 2 * 3 * 4 * 8 * 8),
    # a decay that is not computed from the tokens: no gates
    "linear_attention_backward": (2 * 5 * 8 * 8 * 3 * 4, 2 * 3 * (64 + 4 * 8 + 64)),
    # 9 tokens in chunks of 4 are three of them; B and C of 2 groups, dt of 4 heads
    "state_space_scan": (
        3 * 3 * (2 * 2 * 4 * 4 * 16 + 4 * (2 * 4 * 8 * 4 + 2 * 16 * 8 * 4 + 2 * 4 * 8 * 16)),
        2 * 27 * (32 + 2 * 2 * 16 + 4 + 32) + STATES,
    ),
    "state_space_scan_backward": (
        2 * 3 * 3 * (2 * 2 * 4 * 4 * 16 + 4 * (2 * 4 * 8 * 4 + 2 * 16 * 8 * 4 + 2 * 4 * 8 * 16)),
        2 * 27 * ((32 + 2 * 2 * 16 + 4) * 2 + 32),
    ),
    # each token sees the 3 selected of 8 to 10 rows and the 5 last tokens; all see 10 rows and 13 tokens
    "selective_attention": (2 * 4 * 3 * 9 * (3 + 5) * (8 + 6), 2 * 3 * (9 * 4 * 8 + 9 * 4 * 6 + (10 + 13) * 8)),
    "selective_attention_backward": (
        2 * 4 * 3 * SEEN * (3 * 8 + 2 * 6),
        2 * 3 * (9 * 4 * 8 + 9 * 4 * 6 + 40 * 8 + 9 * 4 * 8 + 40 * 8),
    ),
    # weights and scores in float32
    "indexer": (2 * 4 * 8 * 3 * SEEN, 2 * 3 * (9 * 4 * 8 + 40 * 8) + 4 * 3 * (9 * 4 + SEEN)),
    "indexer_backward": (3 * 2 * 4 * 8 * 3 * SEEN, 2 * 2 * 3 * (9 * 4 * 8 + 40 * 8) + 4 * 3 * (2 * 9 * 4 + SEEN)),
    "top_k_rows": (0, 2 * 3 * SEEN + 4 * 3 * 9 * 3),
    "sparse_attention": (2 * 27 * 4 * (8 + 8), 2 * (3 * 4 * (8 + 8) + 27 * 8)),
    "inference_attention": (
        4 * (8 + 8) * (2 * 108 - 48 + 2 * 21),
        2 * ((12 + 3) * (4 + 2) * (8 + 8) + (27 - 12 + 21 - 3) * 2 * (8 + 8)),
    ),
    "cache_write": (0, 2 * 2 * 48),
    "reduce": (48, 2 * (48 + 3)),
    "gemm_backward": (2 * 3 * 2 * 3 * 5 * 7, 2 * 2 * 3 * (3 * 7 + 7 * 5 + 3 * 5)),
    # B has half a byte per value
    "dynamic_quant_gemm": (3 * 2 * 3 * 5 * 7, 3 * (2 * 3 * 7 + 0.5 * 7 * 5 + 2 * 3 * 5)),
    "grouped_gemm_variable_k": (2 * 3 * 5 * 3, 2 * (3 * 3 + 3 * 5 + 3 * 3 * 5)),
    "unary": (3 * 48, 2 * 2 * 48),
    "binary": (48, 2 * 3 * 48),
    "elementwise": (48, 2 * 4 * 48),
    "movement": (48, 2 * 2 * 48),
    "sort": (0, 2 * (48 + 12) + 8 * 12),
    "moe_aux": (0, 2 * 48 + 4 * 3),
    "multi_tensor": (12 * 48, 2 * (4 + 3) * 48),
    "pooling": (4 * 144, 2 * (3 * 3 * 64 + 144)),
    "pooling_backward": (4 * 144, 2 * (3 * 3 * 64 + 144)),
    # 18 rows of 16 into 3 bags of float32, whose begins and end are 4 indices
    "pooled_lookup": (18 * 16, 2 * 18 * 16 + 8 * (18 + 4) + 4 * 3 * 16),
    "pooled_lookup_backward": (5 * 18 * 16, 2 * 2 * 18 * 16 + 8 * (18 + 4) + 4 * (3 * 16 + 2 * 18)),
    # 18 steps: input of 5, 6 out of each layer, the first layer's read again
    "recurrent": (18 * STEP, 2 * (RECURRENT + 18 * (5 + 6 + 2 * 6))),
    "recurrent_backward": (2 * 18 * STEP, 2 * 2 * (RECURRENT + 18 * (5 + 6 + 2 * 6))),
    "fourier": (3 * 5 * 16 * 4 / 2, 2 * (48 + 27)),
    "grid_sampler": (36 * (2 * 4 - 1), 2 * (81 + 24 + 36)),
    "grid_sampler_backward": (36 * (2 * 4 + 2 * 4 * 2), 2 * (36 + 81 + 24 + 81 + 24)),
    # a product, and four operations of silu
    "compiled": (48 * (1 + 4), 2 * 2 * 48),
}


def test_every_family_has_a_worked_example():
    assert set(WORK) == set(FAMILIES)


@row_by_row("family", FAMILIES)
def test_work_is_what_counting_by_hand_gives(family: str):
    model = FAMILIES[family][0](3, DType.BF16)
    assert (model.flops(), model.hbm_bytes()) == WORK[family]


LOOKUP = PooledLookup(looked_up=18, width=16, bags=3, weighted=True, dtype=DType.BF16)


@pytest.mark.parametrize(
    ("model", "flops", "nbytes"),
    [
        # a weight of float32 per index scales its row
        (LOOKUP, 2 * 18 * 16, 2 * 18 * 16 + 8 * (18 + 4) + 4 * 18 + 4 * 3 * 16),
        # scaled, and two operations for each weight's gradient, which is written
        (LOOKUP.backward(), 8 * 18 * 16, 2 * 2 * 18 * 16 + 8 * (18 + 4) + 4 * (3 * 16 + 2 * 18 + 2 * 18)),
        # the 3 tokens before x of each sequence and channel read and written
        (
            CausalConv1d(b=3, channels=4, length=8, width=4, cached=True, dtype=DType.BF16),
            2 * 3 * 4 * 8 * 4,
            2 * (2 * 3 * 4 * 8 + 4 * 4 + 2 * 3 * 4 * 3),
        ),
        (GroupQuant(elements=64, scale_elements=2, dtype=DType.BF16, dtype_out=None), 128, None),
    ],
    ids=["weighted look-ups", "their gradients", "convolution with a cache", "unknown type"],
)
def test_options_that_change_the_work(model: PerfModel, flops: int, nbytes: int | None):
    assert (model.flops(), model.hbm_bytes()) == (flops, nbytes)


def test_listed_pairs_are_read_as_decoding_reads_them():
    """27 pairs of 3 tokens: each has 8 rows before its own; the cache is of another type."""
    model = SparseAttention(tokens=3, q_heads=4, d_qk=8, d_v=6, pairs=27, dtype=DType.BF16, dtype_kv=DType.FP8_E4M3FN)
    assert model.requests() == (AttentionRequests(3, 1, 8, 4, 1, 8, 6, value_in_key=True),)
    assert (model.cache_dtype, model.hbm_bytes()) == (DType.FP8_E4M3FN, 2 * 3 * 4 * (8 + 6) + 1 * 27 * 8)


def priced_flops(model: PerfModel) -> float:
    """What a backend that prices the model's requests takes for its products."""
    total = 0.0
    for b, s, past, q_heads, _, d_qk, d_v, window, causal, _ in model.requests():  # type: ignore[attr-defined]
        seen = [min(past + i + 1, window) if causal else past + s for i in range(int(s))]
        total += 2 * b * q_heads * sum(seen) * (d_qk + d_v)
    return total


LENGTHS = st.tuples(st.integers(1, 20), st.integers(0, 40))


@given(LENGTHS, st.sampled_from([None, 3, 50]), st.sampled_from(["none", "bottom_right", "top_left"]))
def test_backends_price_the_pairs_of_dense_attention(lengths: tuple[int, int], window: int | None, mask: Mask):
    s, past = lengths
    keys = s if mask == "top_left" else s + past
    model = SDPA(b=3, s_q=s, s_kv=keys, q_heads=4, kv_heads=2, d_qk=8, d_v=6, mask=mask,
                 window=None if mask == "none" else window)  # fmt: skip
    assert priced_flops(model) == model.flops()


@given(LENGTHS, st.sampled_from([1, 4]), st.sampled_from([None, 5]), st.sampled_from([0, 6]), st.booleans())
def test_backends_price_the_pairs_of_shared_rows(
    lengths: tuple[int, int], ratio: int, top_k: int | None, window: int, latent: bool
):
    """But for tokens that see no row, which are priced as seeing one."""
    s, past = lengths
    model = SelectiveAttention(b=3, s_q=s, s_kv=s + past, q_heads=4, d_qk=8, d_v=6, ratio=ratio, top_k=top_k,
                               window=window, value_in_key=latent)  # fmt: skip
    if model.row_pairs + model.window_pairs >= model.tokens:
        assert priced_flops(model) == pytest.approx(model.flops())


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 20), st.sampled_from([None, 7]))
def test_backends_price_the_pairs_of_an_engines_step(requests: int, past: int, new: int, window: int | None):
    """Prompts: the last query sees itself, half a pair more than the half of all; steps: as counted."""
    heads = {"tokens": 1, "q_heads": 4, "kv_heads": 2, "d_qk": 8, "d_v": 6, "dtype": DType.BF16}
    keys = past + new
    prompts = AttentionSums(c_sq=requests * new, c_sk=requests * keys, c_sqsq=requests * new**2,
                            c_sqsk=requests * new * keys)  # fmt: skip
    half_of_the_diagonal = 4 * (8 + 6) * requests * new
    model = InferenceAttention(sums=prompts, **heads)
    assert priced_flops(model) == pytest.approx(model.flops() + half_of_the_diagonal)
    steps = AttentionSums(g_sq=requests, g_sk=requests * keys, g_sqsq=requests, g_sqsk=requests * keys)
    model = InferenceAttention(sums=steps, window=window, **heads)
    assert priced_flops(model) == pytest.approx(model.flops())
    (request,) = model.requests()
    assert (request.b, request.kv_heads, request.d_v) == (requests, 2, 6)


def test_speculated_tokens_are_further_heads_over_the_same_rows():
    """3 tokens after 100: rows 101 to 103, 102 on average; more than 8 or of keys beside their values: a prompt."""
    rows = SelectiveAttention(b=2, s_q=3, s_kv=103, q_heads=4, d_qk=8, d_v=6)
    assert rows.requests() == (AttentionRequests(2, 1, 101, 12, 1, 8, 6, inf, 1, value_in_key=True),)
    for prompt in (replace(rows, s_q=9, s_kv=109), replace(rows, value_in_key=False)):
        (request,) = prompt.requests()
        assert (request.s, request.past, request.q_heads) == (prompt.s_q, 100, 4)


def test_a_gradient_over_selected_rows_has_the_heads_of_a_key_head_as_its_queries():
    """5 of 100 rows for each of 8 tokens and 4 heads over one key head: no neighbors share keys for certain."""
    model = SelectiveAttention(b=2, s_q=8, s_kv=100, q_heads=4, d_qk=8, d_v=6, top_k=5).backward()
    assert model.requests() == (AttentionRequests(16, 4, 1, 1, 1, 8, 6, inf, 0, value_in_key=True),)
    assert priced_flops(model) == 2 * 16 * 4 * 5 * (8 + 6)


@pytest.mark.parametrize("sums", [{"c_sq": 4}, {"g_sq": 4}, {"c_sq": 4, "c_sqsk": 4}, {"g_sq": 4, "g_sqsk": 4}, {}])
def test_a_step_whose_sums_are_incomplete_has_no_requests(sums: dict[str, int]):
    heads = {"tokens": 1, "q_heads": 4, "kv_heads": 2, "d_qk": 8, "d_v": 6}
    assert InferenceAttention(sums=AttentionSums(**sums), **heads).requests() == ()  # type: ignore[arg-type]
