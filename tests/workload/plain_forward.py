"""FLOPs of one forward pass straight from a config.json: plain loops over layers, tokens and products.

Independent of the package on purpose. A product [m,k] x [k,n] is 2*m*n*k; attention sums over each token's keys.
"""

from __future__ import annotations

import json
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any


def plain_flops(path: Path, s: int) -> int:
    """Matrix FLOPs of ``s`` tokens through the language model of a published config."""
    outer = json.loads(path.read_text())
    c = outer.get("text_config") or outer
    pattern = c.get("hybrid_override_pattern") or c.get("layers_block_type")
    total = 2 * s * c["hidden_size"] * c["vocab_size"]
    if pattern:
        kinds = {"M": "mamba", "E": "moe", "*": "attention"}
        for letter in pattern:
            total += _hybrid_block(c, s, kinds.get(letter, letter))
        return total
    for layer in range(c["num_hidden_layers"]):
        total += _mixer(c, s, layer) + _feed_forward(c, s, layer)
        if c.get("hc_mult"):
            n = c["hc_mult"]
            total += 2 * 2 * s * (2 + n) * n * n * c["hidden_size"]  # coefficients before either block
    if c.get("hc_mult"):
        total += 2 * s * c["hc_mult"] * c["hc_mult"] * c["hidden_size"]
    return total


def _keys(position: int, window: int | None = None) -> int:
    return min(position + 1, window or position + 1)


@cache
def _pairs(s: int, window: int | None = None) -> int:
    return sum(_keys(position, window) for position in range(s))


@cache
def _chunk_pairs(s: int, chunk: int) -> int:
    return sum(position % chunk + 1 for position in range(s))


@cache
def _row_pairs(s: int, ratio: int, top_k: int | None) -> int:
    rows = [(position + 1) // ratio for position in range(s)]
    return sum(r if top_k is None else min(r, top_k) for r in rows)


def _grouped(c: dict[str, Any], s: int, pairs: int, *, heads: int, shared: int, d: int, values: bool, gate: int) -> int:
    h = c["hidden_size"]
    projected = heads * d + (2 if values else 1) * shared * d
    biased = 0
    if c.get("attention_bias"):
        # an addition per element; MiMo's output has no bias
        biased = s * (projected + (h if c["model_type"] != "mimo" else 0))
    return biased + 2 * s * h * projected + 2 * s * h * heads * gate + 2 * s * heads * d * h + 4 * heads * d * pairs


def _latent(c: dict[str, Any], s: int) -> int:
    h, heads = c["hidden_size"], c["num_attention_heads"]
    nope, rope, v, kv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    q = c["q_lora_rank"]
    total = 2 * s * h * q + 2 * s * q * heads * (nope + rope)
    total += 2 * s * h * (kv + rope) + 2 * s * kv * heads * (nope + v) + 2 * s * heads * v * h
    if c.get("mla_use_output_gate"):
        total += 2 * s * h * heads * v
    top_k = c.get("index_topk")
    if top_k is None:
        return total + 2 * heads * (nope + rope + v) * _pairs(s)
    index, d = c["index_n_heads"], c["index_head_dim"]
    total += 2 * s * q * index * d + 2 * s * h * d + 2 * s * h * index
    total += 2 * index * d * _pairs(s)
    # absorbed: queries of kv + rope on rows whose first kv elements are the value
    return total + 2 * heads * (kv + rope + kv) * _row_pairs(s, 1, top_k)


def _compressed(c: dict[str, Any], s: int, ratio: int) -> int:
    h, heads, d, q = c["hidden_size"], c["num_attention_heads"], c["head_dim"], c["q_lora_rank"]
    groups, rank = c["o_groups"], c["o_lora_rank"]
    total = 2 * s * h * q + 2 * s * q * heads * d + 2 * s * h * d
    for _ in range(groups):
        total += 2 * s * (heads * d // groups) * rank
    total += 2 * s * groups * rank * h
    wide = 2 if ratio == 4 else 1
    if ratio:
        total += 2 * s * h * d * wide * 2  # keys and gates
    if ratio == 4:
        index, e = c["index_n_heads"], c["index_head_dim"]
        total += 2 * s * q * index * e + 2 * s * h * index + 2 * s * h * e * wide * 2
        total += 2 * index * e * _row_pairs(s, ratio, None)
    pairs = _pairs(s, c["sliding_window"])
    if ratio:
        pairs += _row_pairs(s, ratio, c["index_topk"] if ratio == 4 else None)
    return total + 2 * heads * (d + d) * pairs


def _delta(c: dict[str, Any], s: int) -> int:
    h = c["hidden_size"]
    keys = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    heads, d = c["linear_num_value_heads"], c["linear_value_head_dim"]
    total = 2 * s * h * (2 * keys + 2 * heads * d) + 2 * s * h * 2 * heads + 2 * s * heads * d * h
    return total + s * heads * 7 * c["linear_key_head_dim"] * d


def _kimi(c: dict[str, Any], s: int) -> int:
    h, own = c["hidden_size"], c["linear_attn_config"]
    d, width = own["head_dim"], own["head_dim"] * own["num_heads"]
    total = 3 * 2 * s * h * width + 2 * s * h * d + 2 * s * d * width + 2 * s * h * own["num_heads"]
    total += 2 * s * h * width  # the output gate, of full rank
    return total + 2 * s * width * h + s * own["num_heads"] * 7 * d * d


def _mixer(c: dict[str, Any], s: int, layer: int) -> int:
    if "compress_ratios" in c:
        return _compressed(c, s, c["compress_ratios"][layer])
    if "linear_attn_config" in c and layer + 1 in c["linear_attn_config"]["kda_layers"]:
        return _kimi(c, s)
    kind = (c.get("layer_types") or ["full_attention"] * (layer + 1))[layer]
    if kind == "linear_attention":
        return _delta(c, s)
    if c.get("kv_lora_rank"):
        return _latent(c, s)
    heads, shared = c["num_attention_heads"], c["num_key_value_heads"]
    d, values, pairs = c.get("head_dim") or c["hidden_size"] // heads, True, _pairs(s)
    if kind == "sliding_attention":
        pairs = _pairs(s, c["sliding_window"])
    elif "global_head_dim" in c:
        d, shared, values = c["global_head_dim"], c["num_global_key_value_heads"], False
    elif c.get("attention_chunk_size") and (layer + 1) % 4:
        pairs = _chunk_pairs(s, c["attention_chunk_size"])
    gate = d if c.get("attn_output_gate") else 0
    return _grouped(c, s, pairs, heads=heads, shared=shared, d=d, values=values, gate=gate)


def _experts(c: dict[str, Any], s: int, *, gated: bool) -> int:
    h = c["hidden_size"]
    count = next(c[k] for k in ("num_local_experts", "n_routed_experts", "num_experts") if c.get(k))
    chosen = next(c[k] for k in ("num_experts_per_tok", "num_experts_per_token") if c.get(k))
    f = c.get("moe_intermediate_size") or c["intermediate_size"]
    latent = c.get("moe_latent_size") or c.get("routed_expert_hidden_size")
    products = 3 if gated else 2
    total = 2 * s * h * count
    if c["model_type"] == "gpt_oss":
        total += s * count  # the router's bias; those of experts are added in their kernel
    for _ in range(chosen):
        total += products * 2 * s * (latent or h) * f
    if latent:
        total += 2 * 2 * s * h * latent
    shared = c.get("shared_expert_intermediate_size") or c.get("moe_shared_expert_intermediate_size")
    if shared is None:
        shared = f * (c.get("n_shared_experts") or c.get("num_shared_experts") or 0)
    if c["model_type"] == "llama4_text":
        shared = f
    total += products * 2 * s * h * shared
    if "shared_expert_intermediate_size" in c:
        total += 2 * s * h  # the gate of the shared experts
    return total


def _feed_forward(c: dict[str, Any], s: int, layer: int) -> int:
    is_sparse = any(c.get(k) for k in ("num_local_experts", "n_routed_experts", "num_experts"))
    if is_sparse and layer >= (c.get("first_k_dense_replace") or 0):
        return _experts(c, s, gated=True)
    return 3 * 2 * s * c["hidden_size"] * c["intermediate_size"]


def _hybrid_block(c: dict[str, Any], s: int, kind: str) -> int:
    h = c["hidden_size"]
    if kind == "moe":
        return _experts(c, s, gated=False)
    if kind == "attention":
        return _grouped(
            c, s, _pairs(s), heads=c["num_attention_heads"], shared=c["num_key_value_heads"], d=c["head_dim"],
            values=True, gate=0,
        )  # fmt: skip
    assert kind == "mamba"
    heads, p, n, groups = c["mamba_num_heads"], c["mamba_head_dim"], c["ssm_state_size"], c["n_groups"]
    inner = heads * p
    total = 2 * s * h * (2 * inner + 2 * groups * n + heads) + 2 * s * inner * h
    chunk = min(c["chunk_size"], s)
    for _ in range(ceil(s / chunk)):
        total += groups * 2 * chunk * chunk * n
        total += heads * (2 * chunk * p * chunk + 2 * n * p * chunk + 2 * chunk * p * n)
    return total
