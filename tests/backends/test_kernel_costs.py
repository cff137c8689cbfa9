"""What calls of engines' kernels ask of a device, counted by hand on one whose rates are powers of two."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2, nan

import numpy as np
import pytest

from tracelens.backends.kernels import kernel_table
from tracelens.backends.kernels.kernel_costs import Costs, KernelRates, Work, missed_us, steps, tiled

#: Per us: 2 bytes of HBM, 8 of L2, 32 of a link, 64 flops in BF16, 128 in FP8, 256 in FP4; 4 units, so 16 flops of one.
RATES = KernelRates(
    units=4, hbm=2, l2=8, l2_bytes=1000, exponentials=4, vector=16, link=32, matrix={"bf16": 64, "fp8": 128, "fp4": 256}
)


def asked(name: str, case: Mapping[str, str], **sizes: float) -> tuple[Work, Costs]:
    """Work and costs of one call."""
    table = kernel_table(name)
    assert table is not None
    arrays = {size: np.array([float(value)]) for size, value in sizes.items()}
    return table.work(arrays, case), table.costs(arrays, RATES, case)


def check(
    found: tuple[Work, Costs],
    us: Mapping[str, float],
    *,
    flops: float = 0,
    nbytes: float = 0,
    rate: str = "bf16",
    streamed: float | None = None,
    held: float | None = None,
) -> None:
    work, costs = found
    assert {name: float(value[0]) for name, value in costs.us.items()} == pytest.approx(us)
    assert (float(work.flops[0]), float(work.hbm_bytes[0]), work.rate) == pytest.approx((flops, nbytes, rate))
    for value, wanted in ((costs.streamed, streamed), (costs.held, held)):
        assert (None if value is None else float(value[0])) == (None if wanted is None else pytest.approx(wanted))


def test_a_step_begins_gradually():
    # a tenth of the third step is 0.1 / 0.25 of it; from a quarter on it counts in full
    assert steps(np.array([0.1, 1.0, 2.1, 2.25, 2.9])).tolist() == pytest.approx([1, 1, 2.4, 3, 3])
    assert tiled(np.array([10.0, 210.0, 290.0]), 100).tolist() == pytest.approx([100, 240, 300])


def test_bytes_are_missed_from_a_full_cache_to_twice_of_it():
    streamed = np.array([400.0, 500.0, 600.0, 2000.0])
    found = missed_us(Costs({}, streamed), RATES, {"hbm": 3.0, "cache": 0.5})
    # half of 1000 bytes; 600 are a fifth beyond it
    assert found.tolist() == pytest.approx([0, 0, 3 * 0.2 * 600 / 2, 3 * 2000 / 2])


def test_less_than_what_l2_holds_needs_no_hbm():
    table = kernel_table("gdn")
    assert table is not None
    work = Work(np.array([640.0, 640.0]), np.array([900.0, 1100.0]))
    assert table.least_us(work, RATES).tolist() == [10, 50]


#: 2 key heads of 64 and 4 value heads of 64.
HEADS = {"num_k_heads": 2, "head_k_dim": 64, "num_v_heads": 4, "head_v_dim": 64}


@pytest.mark.parametrize(
    ("framework", "version", "channels"),
    [("vllm", "0.9", 2 * 128 + 256), ("trtllm", "1.0", 128), ("sglang", "0.5.10", 128), ("sglang", "0.6", 512)],
)
def test_a_convolution_of_a_prompt(framework: str, version: str, channels: int):
    case = {"kernel_source": "causal_conv1d_fn", "framework": framework, "version": version}
    moved = 4 * 32 * 768 * channels
    started = 4 * 32 * channels * 512 / 8
    us = {
        "l2": moved / 8,
        "padded": 4 * 32 * channels * 1024 / 8,
        "started": started,
        "filling": started * 0.5,
        "chain": 0.768,
        "waves": 32 * channels * 8 / 4 / 2048 / 10,
    }
    found = asked("gdn", case, batch_size=32, seq_len=768, **HEADS)
    # 16 bytes of state for each sequence's channel
    check(found, us, nbytes=moved, streamed=moved + 32 * channels * 16)
    assert set(found[1].after) == {"started", "filling"}


def test_a_convolutions_step_and_the_channels_of_a_state_space_model():
    case = {"kernel_source": "causal_conv1d_update"}
    channels = 6 * 10 + 2 * 3 * 20
    moved, state = 4 * 2 * 1 * channels, 2 * channels * 16
    found = asked("mamba2", case, batch_size=2, seq_len=1, nheads=6, head_dim=10, n_groups=3, d_state=20)
    check(found, {"l2": moved / 8, "state": state / 8}, nbytes=moved, streamed=moved + state)


def test_the_delta_rule_of_a_step():
    updates = 2 * 3 * 7 * 5 * 11  # sequences, tokens, heads and both widths
    rows, state = 2 * 2 * 3 * (2 * 3 * 5 + 2 * 7 * 11), 2 * 4 * 2 * 7 * 5 * 11
    us = {"state": state / 8, "tokens": 2 * 4 * updates / 8, "vector": 8 * updates / 16, "chain": 3}
    sizes = {"num_k_heads": 3, "head_k_dim": 5, "num_v_heads": 7, "head_v_dim": 11}
    found = asked("kda", {"phase": "generation"}, batch_size=2, seq_len=3, **sizes)
    check(found, us, flops=7 * updates, nbytes=rows + state, streamed=state + rows)


def test_the_delta_rule_of_a_prompt():
    sizes = {"num_k_heads": 3, "head_k_dim": 5, "num_v_heads": 7, "head_v_dim": 11}
    rows, state, states = 2 * 256 * (2 * 3 * 5 + 2 * 7 * 11), 2 * 4 * 2 * 7 * 5 * 11, 2 * 2 * 2 * 7 * 5 * 11
    us = {
        "matrix": 256 * 7 * (4 * 64 * 5 + 6 * 5 * 11) / 64,
        "l2": 2 * 256 * 7 * 11 / 8,
        "rows": rows / 8,
        "states": (states + state) / 8,
        "waves": 2 * 14 / 4,
        "chain": 2,
        "sequences": 14 / 4,
    }
    found = asked("gdn", {}, batch_size=2, seq_len=128, **sizes)
    check(found, us, flops=7 * 256 * 7 * 5 * 11, nbytes=rows + state, streamed=state + 3 * rows + states)


@pytest.mark.parametrize(("text", "width", "rate", "speed"), [("bfloat16", 2, "bf16", 64), ("fp8", 1, "fp8", 128)])
def test_the_products_that_absorb_latent_attention(text: str, width: int, rate: str, speed: float):
    nbytes = 3 * 128 * 512 * width + 2 * 256 * 3 * (128 + 512)
    # 3 heads, 2 tiles of rows, 4 of columns on 4 units
    tile = 2 * 128**3 / (speed / 4)
    us = {"matrix": 24 * tile / 4, "waves": 6 * tile, "l2": nbytes / 8, "rows": 256 * 3 / 4 / 100, "heads": 0.03}
    found = asked("mla-bmm", {"bmm_dtype": text}, num_tokens=256, num_heads=3)
    check(found, us, flops=3 * 2 * 256 * 512 * 128, nbytes=nbytes, rate=rate, streamed=nbytes)


def test_narrowing_rows_and_finding_their_scales():
    passed = {"l2": 3 * 8 * 128 / 8, "row": 128 / 1024, "rows": 8 / 4 / 100}
    check(asked("quantize-matrix", {}, m=8, k=128), passed, nbytes=3 * 8 * 128, streamed=3 * 8 * 128)
    # half a block's elements need half of the exchange, and a row of 8192 is not read again
    scaled = {**passed, "exchanged": 0.5 * 8 / 4 / 100, "again": 0}
    found = asked("quantize-scale", {}, m=8, k=128)
    check(found, scaled, streamed=3 * 8 * 128)
    assert (found[1].after, found[1].beneath) == ((), False)
    wide = asked("quantize-scale", {"kernel_source": "a_minus_b"}, m=8, k=8192 + 256)
    assert wide[1].us["again"].tolist() == [2 * 8 * 256 / 2]
    assert wide[1].us["exchanged"].tolist() == [8 / 4 / 100]
    assert (wide[1].after, wide[1].beneath) == (("again",), True)


@pytest.mark.parametrize(
    ("text", "width", "rate", "speed"),
    [("bfloat16", 2, "bf16", 64), ("fp8_block", 1, "fp8", 128), ("mxfp4", 0.53125, "fp4", 256)],
)
def test_tuned_products_take_the_best_tile_and_split(text: str, width: float, rate: str, speed: float):
    # one tile of 16 x 64, in 4 parts of k on 4 units; 192 elements of k to start and end
    tile = 2 * 16 * 64 / (speed / 4) * (1 + 48 * (1 / 16 + 1 / 64)) * (256 + 192)
    us = {
        "tiled": tile,
        "matrix": 2 * 16 * 64 * 1024 / speed,
        "weights": 64 * 1024 * width / 2,
        "rows": 16 * (1024 * width + 2 * 64) / 2,
        "l2": width * 1024 * (64 + 16) / 8,
        "depth": 1.024,
    }
    moved = 16 * 1024 * width + 64 * 1024 * width + 2 * 16 * 64
    found = asked("gemm-aiter", {"gemm_dtype": text}, m=16, n=64, k=1024, batch=1)
    check(found, us, flops=2 * 16 * 64 * 1024, nbytes=moved, rate=rate)


def test_large_tuned_products_take_large_tiles():
    # 2 x 512 x 512 are 8 tiles of 256 x 256, two waves of 4 units
    tile = 2 * 256 * 256 / 16 * (1 + 48 * (2 / 256)) * (1024 + 192)
    us = {
        "tiled": 2 * tile,
        "matrix": 2 * 2 * 512 * 512 * 1024 / 64,
        "weights": 2 * 512 * 1024 * 2 / 2,
        "rows": 2 * 512 * (1024 * 2 + 2 * 512) / 2,
        "l2": 2 * 2 * 1024 * (4 * 512 + 4 * 512) / 8,
        "depth": 1.024,
    }
    found = asked("gemm-aiter", {}, m=512, n=512, k=1024, batch=2)
    check(found, us, flops=2 * 2 * 512 * 512 * 1024, nbytes=2 * 2 * (512 * 1024 * 2 + 512 * 512))


#: 20 rows of 10 tokens reach 5 experts, in 6 blocks of 16 rows; the rank has 200 of 400 channels, 256 with padding.
EXPERTS = {
    "num_tokens": 10, "hidden_size": 256, "inter_size": 400, "topk": 2, "num_experts": 8, "moe_tp_size": 2,
    "moe_ep_size": 1, "rows": 20, "active": 5, "blocks_16": 6, "blocks_64": 5, "blocks_128": 5,
}  # fmt: skip
PADDED = 256 * 256


@pytest.mark.parametrize(
    ("text", "width", "rate", "speed"),
    [("bfloat16", 2, "bf16", 64), ("mxfp4", 0.53125, "fp4", 256), ("w4a16_mxfp4", 0.53125, "bf16", 64)],
)
def test_fused_experts(text: str, width: float, rate: str, speed: float):
    us = {
        # blocks of 16 rows, whose weights take three times as long to load as to multiply: 48 / 16
        "tiled": 6 * 16 * 6 * (1 + 3) * PADDED / speed,
        "blocks": 6 * 16 * 6 * PADDED / speed,
        "weights": 5 * PADDED * 3 * width / 2,
        "loads": 5 * PADDED * 3 * width / 8,
        "permuted": 20 * (256 * 4 + 200 * 8) / 2,
        "placed": 10 * 2 * (256 * 2 + 200 * 6) / 2,
        "summed": 2 * 10 * 256 / 2,
        "sorted": log2(1 + 20),
        "experts": 0.08,
        "chain": 0.256 + 0.2,
    }
    weights = 5 * 3 * 200 * 256 * width
    found = asked("moe-mxfp4", {"moe_dtype": text}, **EXPERTS)
    check(found, us, flops=2 * 20 * 3 * 200 * 256, nbytes=weights, rate=rate, streamed=weights)
    assert set(found[1].after) == {"permuted", "placed", "summed", "sorted", "experts", "chain"}


def test_many_rows_of_an_expert_take_large_blocks():
    # 2 blocks of 128 rows: 128 * 2 * (1 + 48/128) = 352, less than 16 * 16 * 4 and 64 * 4 * 1.75
    sizes = {**EXPERTS, "rows": 256, "active": 1, "blocks_16": 16, "blocks_64": 4, "blocks_128": 2}
    assert asked("wideep-moe", {}, **sizes)[1].us["tiled"].tolist() == [6 * 352 * PADDED / 64]


@pytest.mark.parametrize(
    ("general", "file", "is_general"),
    [(1, "", True), (0, "tuned_fmoe.csv", False), (nan, "tuned_fmoe.csv", True), (nan, "a_model.csv", False)],
)
def test_tuned_experts_and_those_that_16_tokens_touch(general: float, file: str, is_general: bool):
    # of 8 experts 16 tokens touch all but 0.75^16, 10 tokens all but 0.75^10
    further = 8 * (0.75**10 - 0.75**16) * is_general
    us = {
        "flops": 2 * 3 * 20 * PADDED / 64,
        "loads": (5 + further) * 3 * PADDED * 2 / 8,
        "permuted": 20 * (256 * 2 + 200 * 8) / 8,
    }
    weights = 5 * 3 * 200 * 256 * 2
    found = asked("moe-aiter", {"model_file": file}, **EXPERTS, general=general)
    check(found, us, flops=2 * 20 * 3 * 200 * 256, nbytes=weights, streamed=weights + further * 3 * PADDED * 2)


def test_an_all_reduce_of_a_node():
    nbytes = 2**21
    us = {
        "ring": 2 * 3 / 4 * nbytes / 32,
        "packets": 3 * 2**19 / 32,
        "pieces": 2,  # four packets
        "steps": log2(1 + 2**9),
    }
    for name in ("nccl", "custom-allreduce"):
        check(asked(name, {}, num_gpus=4, message_size=2**20, width=2), us)
    # what exceeds 8 MB is one more step of the same
    assert asked("nccl", {}, num_gpus=4, message_size=2**30, width=2)[1].us["pieces"].tolist() == [4]


def test_an_all_to_all_of_experts():
    # 3 experts of 4 ranks: three quarters of three copies leave
    us = {
        "sent": 10 * 2.25 * 256 * 0.5625 / 32,
        "combined": 2 * 10 * 2.25 * 256 / 32,
        "placed": 10 * 3 * 256 * (0.5625 + 2) / 2,
        "scales": 10 * 3 * 256 / 2,
        "tokens": 0.01,
        "steps": 2,
        "pairs": 0.04,
    }
    sizes = {"num_tokens": 10, "moe_ep_size": 4, "hidden_size": 256, "topk": 3, "width": 0.5625, "scaled": 1}
    check(asked("trtllm-alltoall", {}, **sizes), us)


@pytest.mark.parametrize("name", ["nccl", "trtllm-alltoall"])
def test_widths_of_a_messages_types(name: str):
    table = kernel_table(name)
    assert table is not None
    assert table.described is not None
    found = table.described[1](["half", "bfloat16", "int8", "float", "fp8", "nvfp4", "another"])
    assert found["width"].tolist() == [2, 2, 1, 4, 1, 0.5625, 2]
    assert found["scaled"].tolist() == [0, 0, 0, 0, 0, 1, 0]


def walked(groups: float, keys: float, flops_per_pair: float) -> dict[str, float]:
    """Groups of 128 rows on 4 units of 16 flops per us."""
    group = 128 * keys * flops_per_pair / 16
    return {
        "matrix": groups * group / 4,
        "waves": groups / 4 * group,
        "longest": group,
        "exponentials": groups * 128 * keys / 4,
    }


def test_attention_of_an_encoder():
    moved, pairs = 8 * 2 * 256 * 3 * 68, 2 * 256 * 256
    padded = 12 * 128 * 256 * 4 * 64 * 1.5 / 64  # half way from 64 to the next width
    us = {
        **walked(12, 256, 4 * 68), "padded": padded, "wide": padded * 0.5, "unaligned": padded * 0.5, "l2": moved / 8
    }  # fmt: skip
    found = asked("encoder-attention", {}, batch_size=2, isl=256, num_heads=3, head_dim=68)
    check(found, us, flops=2 * pairs * 3 * (68 + 68), nbytes=moved, streamed=moved + 4 * 12 * 256 * 68, held=moved)
    # 60 is 4 below a multiple of 16, too, and no wider than 64
    narrow = asked("encoder-attention", {}, batch_size=2, isl=256, num_heads=3, head_dim=60)[1].us
    assert (float(narrow["unaligned"][0] / narrow["padded"][0]), float(narrow["wide"][0])) == (0.5, 0)


@pytest.mark.parametrize(
    ("case", "per_pair", "moved"),
    [
        ({"framework": "vllm", "kernel_source": "triton"}, 2 * (192 + 128), 4 * 2 * 256 * 3 * (192 + 128)),
        ({"framework": "sglang", "kernel_source": "flashmla"}, 2 * (192 + 128), 4 * 2 * 256 * 3 * (192 + 128)),
        # over the latent rows: 768 rows of all heads are 6 groups of each sequence
        ({"framework": "sglang", "kernel_source": "triton"}, 2 * (576 + 512), 2 * 2 * 768 * (576 + 512)),
    ],
)
def test_latent_attention_over_a_prompt(case: dict[str, str], per_pair: float, moved: float):
    # 256 tokens see 128 + 64 keys on average, and at most 256
    us = walked(12, 192, per_pair)
    us["longest"] *= 256 / 192
    us |= {"l2": moved / 8, "appended": 2 * 2 * 256 * 576 / 2, "expanded": 2 * 512 * (3 * 2 * 128) * 512 / 64}
    found = asked("context-mla", case, batch_size=2, isl=256, num_heads=3)
    flops, nbytes = 2 * (2 * 256 * 257 / 2) * 3 * (192 + 128), 2 * 2 * 256 * 3 * (2 * 192 + 2 * 128)
    check(found, us, flops=flops, nbytes=nbytes, streamed=moved)
    assert set(found[1].after) == {"expanded", "appended"}


def absorbed(b: int, heads: int, keys: int, width: int, share: float) -> dict[str, float]:
    """A new token over whole steps of keys; ``share``: keys that a unit walks along, times the units."""
    read, padded = b * keys * 576 * width, -(-heads // 64) * 64
    return {
        "l2": read / 8,
        "padded": b * keys * padded * 2176 / 64,
        "matrix": b * keys * heads * 2176 / 64,
        "share": share * 64 * 2176 / 64,
        "rounds": share * 576 * width / 8,
        "chain": keys / 64 / 100,
        "queries": 2 * b * heads * (576 + 512) / 2,
        "heads": b * heads / 4,
        "converted": 2 * read / 2,
    }


@pytest.mark.parametrize(
    ("b", "heads", "keys", "share"),
    [
        (8, 80, 192, 192 * 4 * 4),  # 16 groups of 64 heads on 4 units: each walks along four
        (1, 64, 4096, 1024 * 4),  # one group: each unit takes a quarter of the keys
        (1, 64, 1024, 512 * 4),  # but none less than 512
    ],
)
@pytest.mark.parametrize(("text", "width", "rate"), [("bfloat16", 2, "bf16"), ("fp8", 1, "fp8")])
def test_latent_attention_of_a_step(text: str, width: int, rate: str, b: int, heads: int, keys: int, share: float):
    found = asked("generation-mla", {"kv_cache_dtype": text}, batch_size=b, num_heads=heads, step=keys - 1)
    nbytes = b * keys * 576 * width
    us = absorbed(b, heads, keys, width, share)
    check(found, us, flops=2 * b * keys * heads * 1088, nbytes=nbytes, rate=rate, streamed=nbytes)
    assert set(found[1].after) == {"queries", "heads", "converted"}


#: A layer of 2 heads: q and latent projections, q, output; of the indexer; up-projections, or their absorbed products.
WIDTHS = {"num_heads": 2, "hidden": 128, "q_rank": 64, "nope": 64, "value": 64}
ALWAYS = [(1, 640, 128), (1, 256, 64), (1, 128, 128)]
INDEXED = [(1, 2 * 128, 64), (1, 128 + 2, 128)]
EXPANDED, ABSORBED = [(1, 256, 512)], [(2, 512, 64), (2, 64, 512)]


def layer(products: list[tuple[int, int, int]], tokens: float, speed: float, width: float) -> dict[str, float]:
    """``tokens``, whole tiles of 64, by (count, n, k): columns in tiles of 128."""
    edges = {130: (1 + 2 / 128 / 0.25) * 128, 64: 128}
    return {
        "products": sum(2 * tokens * count * edges.get(n, n) * k for count, n, k in products) / speed,
        "weights": sum(count * n * k for count, n, k in products) * width / 2,
        "rows": sum(2 * tokens * count * (n + k) for count, n, k in products) / 8,
        "tokens": tokens / 1000,
    }


def weights_of(products: list[tuple[int, int, int]]) -> int:
    return sum(count * n * k for count, n, k in products)


@pytest.mark.parametrize(
    ("case", "speed", "width", "rate"),
    [
        ({}, 64, 2, "bf16"),
        ({"gemm_type": "fp8"}, 128, 1, "fp8"),
        ({"mla_dtype": "fp8"}, 64, 2, "fp8"),
        ({"kv_cache_dtype": "fp8"}, 64, 2, "fp8"),
    ],
)
def test_a_layer_of_latent_attention_over_a_prompt(case: dict[str, str], speed: float, width: float, rate: str):
    products = ALWAYS + EXPANDED
    us = layer(products, 512, speed, width)
    attention = walked(2 * 2 * 2, 192, 2 * (64 + 64 + 64))
    us |= {f"attention_{name}": value for name, value in attention.items() if name != "waves"}
    found = asked("mla-context-module", case, batch_size=2, isl=256, index_heads=0, **WIDTHS)
    flops = 2 * 512 * weights_of(products) + 2 * (2 * 256 * 257 / 2) * 2 * (64 + 64 + 64)
    check(found, us, flops=flops, nbytes=weights_of(products) * width, rate=rate, streamed=us["rows"] * 8)
    assert found[1].chained


def test_a_layer_of_latent_attention_of_a_step():
    products = ALWAYS + ABSORBED
    us = layer(products, 64, 64, 2)
    us |= {f"attention_{name}": value for name, value in absorbed(64, 2, 192, 2, 192 * 16 * 4).items()}
    found = asked("mla-generation-module", {}, batch_size=64, step=191, index_heads=0, **WIDTHS)
    read = 64 * 192 * 576 * 2
    flops = 2 * 64 * weights_of(products) + 2 * 64 * 192 * 2 * 1088
    check(found, us, flops=flops, nbytes=2 * weights_of(products) + read, streamed=read)


@pytest.mark.parametrize("name", ["dsa-context-module", "dsa-generation-module"])
def test_a_layer_that_selects_its_keys(name: str):
    products = ALWAYS + INDEXED + ABSORBED
    # 64 tokens after 2016: the first 32 see fewer than 2048 keys, the others keep as many
    every = 2 * (64 * 2016 + 64 * 65 / 2)
    kept = 2 * (32 * 2016 + 32 * 33 / 2 + 32 * 2048)
    us = layer(products, 128, 64, 2)
    us |= {
        "scores": 2 * every * 2 * 128 / 128,
        "ranking": 4 * every / 8,
        "gathered": kept * 576 * 2 / 8,
        "attention": 2 * kept * 64 * 1088 / 64,
        "padded": 2 * 128 * 2048 * 64 * 1088 / 64,
        "fetched": 128 * 2048 * 576 * 2 / 8,
        "pairs": 2 * kept * 2 * 1088 / 64,
        "dense": 2 * every * 2 * (64 + 64 + 64) / 64,
        "keys": 2.08,
        "cached": 2 * 2080 * (576 * 2 + 128) / 2,
    }
    found = asked(name, {}, batch_size=2, isl=64, step=2016, index_heads=2, **WIDTHS)
    # FP8 is the indexer's rate; the least work is that of the expanded products
    expanded = ALWAYS + INDEXED + EXPANDED
    flops = 2 * 128 * weights_of(expanded) + 2 * kept * 2 * (64 + 64 + 64)
    check(found, us, flops=flops, nbytes=2 * weights_of(expanded), rate="fp8", streamed=2 * 2048 * 576 * 2)


def test_widths_of_published_models_layers():
    """config.json of DeepSeek-V3, V3.2 and GLM-5; another architecture has DeepSeek-V3's."""
    table = kernel_table("dsa-context-module")
    assert table is not None
    assert table.described is not None
    names = ["DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "Another"]
    assert {name: values.tolist() for name, values in table.described[1](names).items()} == {
        "hidden": [7168, 7168, 6144, 7168],
        "q_rank": [1536, 1536, 2048, 1536],
        "nope": [128, 128, 192, 128],
        "value": [128, 128, 256, 128],
        "index_heads": [0, 64, 32, 0],
    }
