"""flash-attn's own op names: which slots hold what."""

from __future__ import annotations

from typing import Any

from tracelens import OpSignature
from tracelens.extensions import load_extension, overlay
from tracelens.registry import Registry

BINDINGS = overlay(Registry("traced_as", {}), [load_extension("flash_attn")])
BF16 = "c10::BFloat16"


def read(name: str, shapes: tuple[Any, ...], scalars: dict[int, str]) -> Any:
    dtypes = tuple(BF16 if shape else "" for shape in shapes)
    texts = tuple(scalars.get(i, "") for i in range(max(len(shapes), *scalars) + 1))
    return BINDINGS[name].target(OpSignature(name=name, shapes=shapes, dtypes=dtypes, scalars=texts))


def test_causal_attention_is_aligned_to_the_bottom_right():
    """Two queries, four keys: the first sees 3, the second 4, so 7 pairs of the 8."""
    q, kv = (1, 2, 8, 64), (1, 4, 2, 64)
    model = read("flash_attn::_flash_attn_forward", (q, kv, kv), {3: "0.0", 5: "True"})
    assert model.flops() == 2 * 8 * 7 * (64 + 64)
    assert model.kv_heads == 2


def test_backward_reads_its_operands_behind_the_gradient():
    """Five products of 2 * heads * pairs * d, pairs = 16 * 16."""
    x = (2, 16, 4, 32)
    shapes = (x, x, x, x, x, (2, 4, 16), x, x, x)
    for scalars in ({9: "0.0", 10: "0.125", 11: "False"}, {8: "0.0", 9: "0.125", 10: "False"}):
        model = read("flash_attn::_flash_attn_backward", shapes, scalars)
        assert model.category == "SDPA_bwd"
        assert model.flops() == 2 * 5 * (2 * 4 * 16 * 16 * 32)


def test_packed_sequences_of_one_length_are_counted_and_others_are_not_guessed():
    q = (64, 4, 32)
    even = read(
        "flash_attn::_flash_attn_varlen_forward", (q, q, q, (5,), (5,)), {5: "16", 6: "16", 7: "0.0", 9: "False"}
    )
    assert even.flops() == 2 * 4 * (4 * 16 * 16) * (32 + 32)
    uneven = read(
        "flash_attn::_flash_attn_varlen_forward", (q, q, q, (5,), (5,)), {5: "40", 6: "40", 7: "0.0", 9: "False"}
    )
    assert uneven.flops() is None
    assert uneven.hbm_bytes() == 4 * 64 * 4 * 32 * 2


def test_flash_attention_3_records_causal_in_slot_24():
    x = (1, 8, 2, 16)
    assert read("flash_attn_3::fwd", (x, x, x), {24: "True"}).flops() == 2 * 2 * (8 * 9 // 2) * 32
