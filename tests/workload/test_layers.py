"""The operations of a batch: arithmetic by hand, and laws."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import examples
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM
from tracelens.predict.workload import Experts, LatentAttention, Mamba, ModelConfig, forward_ops
from tracelens.predict.workload.batch_ops import further_token_ops

DENSE = ModelConfig(
    name="tiny", label="tiny", source="by hand", blocks="*-*-", hidden=8, vocab=100, ffn=16, gated=True, q_heads=2,
    kv_heads=1, head_dim=4,
)  # fmt: skip
SPARSE = replace(DENSE, blocks="*-*E", experts=Experts(count=6, top_k=2, ffn=10, shared_ffn=12))
LATENT = LatentAttention(q_rank=5, kv_rank=6, d_nope=4, d_rope=2, d_v=3)
MAMBA = Mamba(heads=4, head_dim=2, groups=2, state=3, conv=4, chunk=4)


def by_name(config, **shape):
    return {op.name: op for op in forward_ops(config, **shape)}


def test_a_dense_model_by_hand():
    # per layer: qkv 8 x (2 + 2*1)*4 = 128, out 8 x 8 = 64, gate and up 8 x 32 = 256, down 16 x 8 = 128, norms 2 x 8
    # ends: embedding 100 x 8, logits 100 x 8, final norm 8
    assert DENSE.parameters().total == 2 * (128 + 64 + 256 + 128 + 16) + 800 + 800 + 8
    # 6 tokens, 2 flops per weight of a product; attention over 6*7/2 = 21 pairs: 2 heads x 21 x 2*(4 + 4) per layer
    weights = 2 * (128 + 64 + 256 + 128) + 800
    attention = 2 * (2 * 21 * 2 * (4 + 4))
    flops = DENSE.flops_per_token(6)
    assert flops.forward == (2 * 6 * weights + attention) / 6
    # gradients of the shared key and value head are added up over its 2 query heads: 6 rows x 1 x (4 + 4) per layer
    assert flops.training == 3 * flops.forward + 2 * 6 * 8 / 6


def test_scores_that_fused_attention_computes_again_are_no_model_flops():
    sdpa = by_name(replace(DENSE, kv_heads=2), batch=1, sequence=6)["attention.sdpa"]
    (gradient,) = sdpa.backward()
    # 5 products in the backward, of which Q @ K^T is the forward's: 4 count, twice the forward's 2
    assert gradient.flops() * 2 == 5 * sdpa.model.flops()
    assert sdpa.backward_flops == 2 * sdpa.forward_flops


def test_experts_by_hand():
    ops = by_name(SPARSE, batch=2, sequence=3)
    up, down = ops["experts.up"], ops["experts.down"]
    assert up.model == GroupedGEMM(m=6 * 2, n=2 * 10, k=8, groups=6, dtype=None)
    assert (up.weights, up.active_weights) == (6 * 160, 2 * 160)
    assert (down.weights, down.active_weights) == (6 * 80, 2 * 80)
    assert ops["experts.router"].model == GEMM(m=6, n=6, k=8, dtype=None)
    assert ops["experts.shared.up"].weights == 8 * 24
    total, active = SPARSE.parameters().total, SPARSE.parameters().active
    assert total - active == (6 - 2) * (160 + 80)


def test_latent_experts_work_on_the_projected_hidden_state():
    ops = by_name(replace(SPARSE, experts=replace(SPARSE.experts, latent=4)), batch=1, sequence=3)
    assert (ops["experts.up"].model.k, ops["experts.down"].model.n) == (4, 4)
    assert (ops["experts.latent_down"].weights, ops["experts.latent_up"].weights) == (8 * 4, 4 * 8)


def test_latent_attention_keeps_the_two_head_sizes_apart():
    config = replace(DENSE, kv_heads=2, head_dim=None, latent_attention=LATENT)
    ops = by_name(config, batch=1, sequence=4)
    sdpa = ops["attention.sdpa"].model
    assert isinstance(sdpa, SDPA)
    assert (sdpa.d_qk, sdpa.d_v, sdpa.kv_heads) == (6, 3, 2)
    products = {
        name.removeprefix("attention."): (op.model.n, op.model.k)
        for name, op in ops.items()
        if "attention" in name and isinstance(op.model, GEMM)
    }
    assert products == {"q_down": (5, 8), "q_up": (12, 5), "kv_down": (8, 8), "kv_up": (14, 6), "out": (8, 6)}


def test_a_window_limits_attention_to_its_keys():
    ops = forward_ops(replace(DENSE, blocks="w-*-", window=2), batch=1, sequence=5)
    near, far = (op.model for op in ops if op.name == "attention.sdpa")
    # 1 + 2 + 2 + 2 + 2 pairs within two keys, 15 without a window
    assert (near.total_pairs, far.total_pairs) == (9, 15)


def test_the_mamba_scan_is_four_products():
    config = replace(DENSE, blocks="M-", mamba=MAMBA)
    ops = by_name(config, batch=2, sequence=8)
    rows, chunk, state, inner, groups = 2 * 8, 4, 3, 8, 2
    scores, within, state_in_or_out = (
        2 * rows * chunk * state * groups,
        2 * rows * chunk * inner,
        2 * rows * state * inner,
    )
    assert ops["mamba.scan"].forward_flops == scores + within + 2 * state_in_or_out
    # x, B and C through 4 taps and a bias
    # four taps on x, B and C; no matrix product
    assert ops["mamba.conv"].model.flops() == rows * (8 + 2 * 2 * 3) * 2 * 4
    assert ops["mamba.conv"].forward_flops == 0
    assert ops["mamba.in"].model.n == 2 * 8 + 2 * 2 * 3 + 4


def test_tied_embeddings_hold_their_weights_once():
    assert DENSE.parameters().total - replace(DENSE, tied_embeddings=True).parameters().total == 100 * 8
    assert replace(DENSE, tied_embeddings=True).flops_per_token(4) == DENSE.flops_per_token(4)


def test_predicting_a_further_token_costs_training_and_no_inference():
    further = replace(DENSE, mtp_layers=1, mtp_blocks="*-")
    ops = {op.name: op.forward_flops for op in further_token_ops(further, batch=1, sequence=4)}
    assert ops["mtp.projection"] == 2 * 4 * 8 * 16
    assert ops["mtp.logits"] == 2 * 4 * 8 * 100
    assert further.flops_per_token(4).forward == DENSE.flops_per_token(4).forward
    added = further.flops_per_token(4).training - DENSE.flops_per_token(4).training
    assert added * 4 == pytest.approx(3 * sum(ops.values()) + 4 * 8)
    assert replace(further.parameters(), further=0) == DENSE.parameters()
    assert further.parameters().further > 0


def test_equal_blocks_are_counted_and_not_repeated():
    assert by_name(DENSE, batch=1, sequence=2)["mlp.up"].count == 2


shapes = st.tuples(st.integers(1, 3), st.integers(1, 40))


@settings(max_examples=examples(30), deadline=None)
@given(shapes)
def test_flops_are_additive_over_the_batch(shape):
    batch, sequence = shape
    config = replace(SPARSE, blocks="*-*EM-", mamba=MAMBA)
    one = sum(op.forward_flops + op.backward_flops for op in forward_ops(config, batch=1, sequence=sequence))
    many = sum(op.forward_flops + op.backward_flops for op in forward_ops(config, batch=batch, sequence=sequence))
    assert many == batch * one


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 64))
def test_a_longer_sequence_never_costs_a_token_less(sequence):
    shorter, longer = SPARSE.flops_per_token(sequence), SPARSE.flops_per_token(sequence + 1)
    assert longer.forward > shorter.forward
    assert longer.training > shorter.training


@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-30b-a3b", "deepseek-v3-without-mtp", "nemotron-3-nano"])
def test_without_attention_a_token_costs_two_flops_per_active_weight(name):
    model = ModelConfig.load(name)
    at_one = model.flops_per_token(1).forward
    # a sequence of one: attention over one pair, and a scan of one token, are all that is not a weight
    rest = sum(op.forward_flops for op in forward_ops(model, batch=1, sequence=1) if op.is_core)
    assert at_one == pytest.approx(2 * (model.parameters().active - model.vocab * model.hidden) + rest, rel=0.002)
