"""What quantizes for an exchange is part of that exchange; what quantizes for anything else is new."""

from __future__ import annotations

import numpy as np
import pytest

from tracelens.comparison.compare import compare_sides
from tracelens.comparison.compared import ADDED, QUANTIZATION
from tracelens.comparison.sides import Call, CallWork, Recorded, Side

#: us of the calls that sides are built of.
CALLS = {
    Call(name="aten::mm", category="GEMM", shapes="((8, 8), (8, 8))"): 100,
    Call(name="aten::relu", category="elementwise", shapes="((8, 8),)"): 10,
    Call(name="", category="collectives", kernel="ncclDevKernel_SendRecv", module="all_to_all"): 80,
    Call(name="fbgemm::FloatToBfloat16Quantized", category="elementwise"): 7,
    Call(name="aten::to", category="elementwise", module="Model/## decoder int8 None ##"): 5,
    Call(name="aten::quantile", category="elementwise"): 3,
}
PRODUCT, RELU, SENT, ENCODED, DECODED, QUANTILE = CALLS


def side_of(*order: Call, sent_us: int = 80) -> Side:
    """One step of these calls, in this order."""
    calls = tuple(dict.fromkeys(order))
    call = np.array([calls.index(each) for each in order], np.int64)
    ns = np.array([1000 * (sent_us if each is SENT else CALLS[each]) for each in order], np.int64)
    unit, step = np.arange(len(call)), np.zeros(len(call), np.int64)
    recorded = Recorded(
        source="built", calls=calls, rates=(CallWork(),) * len(calls), call=call, step=step, kernel_ns=ns, piece_unit=unit,
        piece_step=step, piece_ns=ns, durations_ns=ns.sum(keepdims=True), event_unit=unit, event_kernel=call, event_ns=ns,
        kernel_names=tuple(each.kernel or each.name for each in calls), repeats=np.ones(len(call)),
    )  # fmt: skip
    return Side(name="built", parts=((recorded,),))


PLAIN = side_of(PRODUCT, RELU, SENT, RELU, PRODUCT)
QUANTIZED = side_of(PRODUCT, RELU, ENCODED, SENT, DECODED, RELU, PRODUCT, sent_us=40)


def test_what_quantizes_beside_an_exchange_is_part_of_it() -> None:
    found = compare_sides(PLAIN, QUANTIZED)
    assert found.matched_share == (1.0, 1.0)
    # 80 -> 40 us of the exchange, 7 + 5 us for quantizing
    assert {change.cause for change in found.changes} == {QUANTIZATION}
    what = "fbgemm::FloatToBfloat16Quantized, aten::to are new, 2 calls"
    assert [change.text for change in found.changes] == [
        "exposed communication -0.04 ms: quantized in B, 50 % faster, 1 call of ncclDevKernel_SendRecv",
        f"elementwise +0.012 ms: quantizing what is exchanged, {what}",
    ]
    back = compare_sides(QUANTIZED, PLAIN)
    assert back.matched_share == (1.0, 1.0)
    assert [change.text.partition(", ")[0] for change in back.changes] == [
        "exposed communication +0.04 ms: quantized in A",
        "elementwise -0.012 ms: quantizing what is exchanged",
    ]


@pytest.mark.parametrize(
    ("order", "before"),
    [
        pytest.param((PRODUCT, RELU, SENT, RELU, ENCODED, PRODUCT), PLAIN, id="of a product"),
        pytest.param((PRODUCT, RELU, QUANTILE, SENT, RELU, PRODUCT), PLAIN, id="another word"),
        pytest.param((PRODUCT, RELU, ENCODED, SENT, RELU, PRODUCT), side_of(PRODUCT, RELU, RELU, PRODUCT), id="a new exchange"),
    ],
)  # fmt: skip
def test_what_quantizes_for_anything_else_is_new(order: tuple[Call, ...], before: Side) -> None:
    found = compare_sides(before, side_of(*order))
    assert found.matched_share[1] < 1
    assert {change.cause for change in found.changes} == {ADDED}
