"""Kernels that the tile model prices by the same constants: linear attention and state-space models, and AMD's tuned
products.

Linear attention and state-space models: causal convolutions, chunked prompts, recurrent steps. A prompt is cut into
chunks of 64 tokens: products within each chunk in parallel, states passed on from chunk to chunk. A step
(``generation``; several tokens: ``verify``) reads and writes the state of every sequence and head.

Matrix products and fused expert layers by AMD's tuned kernels (AITER): the best of what was tuned, kernel alone.
``tiled`` is the best of a library's tiles and splits of k at the data sheet's rates: whole waves over the units, small
tiles with the share of a unit's rate that their loads leave.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from tracelens.backends.base import Floats
from tracelens.backends.kernels.kernel_costs import Case, Costs, KernelRates, KernelTable, Sizes, Work, steps, tiled
from tracelens.hardware.power import STATE
from tracelens.perf_models.gemm import product_flops, product_operands
from tracelens.perf_models.recurrent_layers import state_flops

#: Elements that a block of the convolution kernels has in flight, and what is left to its neighbour.
_BLOCK_TOKENS = 512.0
#: Taps less the one of the new token, read and written in two bytes, at most four.
_STATE_BYTES_PER_CHANNEL = 16.0
_CHUNK = 64.0
_STATE_WIDTH = 4.0
#: Benchmarks of these libraries convolve the channels of the keys alone.
_KEYS_ONLY = (("trtllm", ""), ("sglang", "0.5.10"))


def _channels(s: Sizes, case: Case) -> Floats:
    if "n_groups" in s:
        return s["nheads"] * s["head_dim"] + 2 * s["n_groups"] * s["d_state"]
    keys, values = s["num_k_heads"] * s["head_k_dim"], s["num_v_heads"] * s["head_v_dim"]
    if any(case.get("framework") == name and case.get("version", "").startswith(of) for name, of in _KEYS_ONLY):
        return keys
    return 2 * keys + values


def _convolves(case: Case) -> bool:
    return "conv1d" in case.get("kernel_source", "")


def _convolution(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    b, tokens, channels = s["batch_size"], s["seq_len"], _channels(s, case)
    moved, state = 4 * b * tokens * channels, b * channels * _STATE_BYTES_PER_CHANNEL
    us = {"l2": moved / rates.l2}
    if "update" in case["kernel_source"]:
        us["state"] = state / rates.l2
    else:
        started = 4 * b * channels * _BLOCK_TOKENS / rates.l2
        us["padded"] = 4 * b * channels * tiled(tokens, _BLOCK_TOKENS) / rates.l2
        us["started"] = started
        us["filling"] = started * np.clip(tokens / _BLOCK_TOKENS - 1, 0, 1)
        us["chain"] = tokens / 1000
        us["waves"] = steps(b * channels * np.minimum(tokens, 8) / rates.units / 2048) / 10
    return Costs(us, moved + state, after=("started", "filling"))


def _convolution_work(s: Sizes, case: Case) -> Work:
    moved = 4 * s["batch_size"] * s["seq_len"] * _channels(s, case)
    return Work(flops=0 * moved, hbm_bytes=moved)


def _delta_rule(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    b, tokens, keys, heads = (s[name] for name in ("batch_size", "seq_len", "num_k_heads", "num_v_heads"))
    d_k, d_v = s["head_k_dim"], s["head_v_dim"]
    state = 2 * _STATE_WIDTH * b * heads * d_k * d_v
    rows = 2 * b * tokens * (2 * keys * d_k + 2 * heads * d_v)
    if case.get("phase", "context") != "context":
        us = {
            "state": state / rates.l2,
            "tokens": 2 * _STATE_WIDTH * b * tokens * heads * d_k * d_v / rates.l2,
            "vector": 8 * b * tokens * heads * d_k * d_v / rates.vector,
            "chain": tokens,
        }
        return Costs(us, state + rows)
    chunks = steps(tokens / _CHUNK)
    padded = b * chunks * _CHUNK
    flops = padded * heads * (4 * _CHUNK * d_k + 6 * d_k * d_v)
    states = 2 * b * chunks * heads * d_k * d_v
    us = {
        "matrix": flops / rates.flops("bf16"),
        "l2": (2 * padded * heads * d_v) / rates.l2,
        "rows": rows / rates.l2,
        "states": (states + state) / rates.l2,
        "waves": chunks * np.maximum(1, b * heads / rates.units),
        "chain": chunks,
        "sequences": b * heads / rates.units,
    }
    return Costs(us, state + 3 * rows + states)


def _delta_rule_work(s: Sizes, _: Case) -> Work:
    """As ``LinearAttention``: its rows, and the state once in and out."""
    b, tokens, d_k, d_v = s["batch_size"], s["seq_len"], s["head_k_dim"], s["head_v_dim"]
    heads = s["num_v_heads"]
    rows = 2 * b * tokens * (2 * s["num_k_heads"] * d_k + 2 * heads * d_v)
    flops = state_flops("delta", b * tokens, heads, d_k, d_v)
    return Work(flops=flops, hbm_bytes=rows + 2 * _STATE_WIDTH * b * heads * d_k * d_v, done={STATE: flops})


def _recurrence_costs(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    return (_convolution if _convolves(case) else _delta_rule)(s, rates, case)


def _recurrence_work(s: Sizes, case: Case) -> Work:
    return (_convolution_work if _convolves(case) else _delta_rule_work)(s, case)


_HEADS = ("num_k_heads", "head_k_dim", "num_v_heads", "head_v_dim")
GDN = KernelTable(
    name="gdn", sizes=("batch_size", "seq_len", *_HEADS), cases=("phase",), apart=("phase",),
    groups=("num_k_heads", "num_v_heads", "batch_size"), work=_recurrence_work, costs=_recurrence_costs,
    operation=_convolves,
)  # fmt: skip
KDA = replace(GDN, name="kda", groups=("num_v_heads", "batch_size"))
MAMBA2 = KernelTable(
    name="mamba2", sizes=("batch_size", "seq_len", "nheads", "head_dim", "n_groups", "d_state"), cases=("phase",),
    apart=("phase",), groups=("nheads", "d_state", "batch_size"), work=_convolution_work,
    costs=_convolution,
)  # fmt: skip

_TILES = ((16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (128, 128), (128, 256), (256, 128), (256, 256))
_SPLITS = (1, 2, 4, 8)
#: Elements of an edge at which a tile's loads take as long as its products.
_EDGE = 48.0
#: Prologue and epilogue of a tile, as elements of k.
_DEPTH = 192.0
#: Type -> bytes per element of A and B with scales, and the rate.
_TYPES = {
    "bfloat16": (2.0, "bf16"), "bfloat16_batched": (2.0, "bf16"), "fp8_block": (1.0, "fp8"),
    "fp8_rowwise": (1.0, "fp8"), "int8": (1.0, "int8"), "int8_batched": (1.0, "int8"),
    "mxfp4": (0.53125, "fp4"),
}  # fmt: skip


def _typed(case: Case) -> tuple[float, str]:
    return _TYPES.get(case.get("gemm_dtype", "bfloat16"), (2.0, "bf16"))


def _rate(case: Case) -> str:
    """No kernel of another element type stands in."""
    return _typed(case)[1]


def _product_costs(s: Sizes, rates: KernelRates, case: Case) -> Costs:
    m, n, k, b = s["m"], s["n"], s["k"], s["batch"]
    width, rate = _typed(case)
    peak = rates.flops(rate)
    unit = peak / rates.units
    best = np.full(len(m), np.inf)
    for tm, tn in _TILES:
        tiles = b * steps(m / tm) * steps(n / tn)
        each = 2 * tm * tn / unit * (1 + _EDGE * (1 / tm + 1 / tn))
        for split in _SPLITS:
            waves = steps(tiles * split / rates.units)
            best = np.minimum(best, waves * each * (np.ceil(k / split) + _DEPTH))
    us = {
        "tiled": best,
        "matrix": 2 * b * tiled(m, 16) * n * k / peak,
        "weights": b * n * k * width / rates.hbm,
        "rows": b * m * (k * width + 2 * n) / rates.hbm,
        "l2": b * width * k * (steps(m / 128) * n + steps(n / 128) * m) / rates.l2,
        "depth": k / 1000,
    }
    return Costs(us)


def _product_work(s: Sizes, case: Case) -> Work:
    m, n, k, b = s["m"], s["n"], s["k"], s["batch"]
    width, rate = _typed(case)
    moved = b * sum(product_operands(m, n, k, widths=(width, width, 2.0)))
    return Work(flops=product_flops(m, n, k, b), hbm_bytes=moved, rate=rate)


GEMM_AITER = KernelTable(
    name="gemm-aiter", sizes=("m", "n", "k"), optional={"batch": 1.0}, cases=("gemm_dtype",), types=_TYPES,
    groups=("n", "k"), work=_product_work, costs=_product_costs, operation=_rate, computes=_rate,
    spellings={"fp8": "fp8_rowwise", "nvfp4": "mxfp4"},
)  # fmt: skip
