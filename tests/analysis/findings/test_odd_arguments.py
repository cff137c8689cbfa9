"""Rules on ops whose recorded arguments make no sense, and rules that fail: the report comes all the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracelens
from tests.analysis.conftest import Builder
from tests.analysis.work.test_rates import found
from tracelens.analysis.findings.rule import Claimed, Observed

OPS = ("aten::copy_", "aten::_to_copy", "aten::cat", "aten::_log_softmax", "aten::_softmax", "aten::mm", "aten::bmm",
       "aten::baddbmm", "aten::addmm", "aten::convolution", "aten::mul")  # fmt: skip
KERNELS = ("void at::native::elementwise_kernel", "Cijk_Ailk_Bljk_MT256x256x64_SN", "nchwToNhwcKernel", "softmax_warp")


def nested(depth: int) -> Any:
    value: Any = 4096
    for _ in range(depth):
        value = [value]
    return value


ODD: tuple[Any, ...] = (
    7, "[[4, 4]]", None, {}, [], [7, 8], ["a", "b"], [None, None], [[None, 4], [4, None]], [[4096, "x"], [4096, "x"]],
    [[-4096, -4096], [-4096, -4096]], [[0, 0], [0, 0]], [[2**62, 2**62], [2**62, 2**62]], [[10**40, 4], [4, 10**40]],
    [[4096, 4096], 7], [[4096, 4096], [4096]], [[4096, 4096]], [[[4096, 4096]], [4096, 4096]], [[[4, 4096], 4], []],
    [[[8, 32, 4000, 128], [8, 32, 1, 128]], []], [[[8, 32, 4000, 128], 1], []], [[[], []], []], [[[8, 2], [8, 2], 3]],
    [[2.5, 1e300], [float("inf"), 4]], [[True, False], [True, False]], [[4096] * 500, [4096] * 500], [[4096, 4096]] * 300,
    [{"a": 1}, [4096]], nested(40), nested(400), ["c10::BFloat16", "float"], ["float", ["float"]], ["", ""], [[[["float"]]]],
)  # fmt: skip


def odd_ops(name: str) -> Iterator[dict[str, Any]]:
    """Arguments of which one, or all, are odd."""
    sound = {"Input Dims": [[4096, 4096]] * 2, "Input type": ["float"] * 2, "Input Strides": [[4096, 1]] * 2}
    if name == "aten::cat":
        sound["Input Dims"] = [[[8, 32, 4000, 128], [8, 32, 1, 128]], []]
    for odd in ODD:
        yield dict.fromkeys((*sound, "Concrete Inputs"), odd)
        yield from ({**sound, key: odd} for key in sound)


def ran(b: Builder, name: str, args: dict[str, Any], kernel: str, took: float = 100.0) -> None:
    at, start = 10.0 * len(b.events), 200.0 * len(b.events)
    b.op(name, at, 5, **args).launch(at + 1, kernel, start, took)


def test_no_rule_fails_of_arguments_that_make_no_sense(build: type[Builder]) -> None:
    b = build()
    for name in OPS:
        for i, args in enumerate(odd_ops(name)):
            ran(b, name, args, KERNELS[i % len(KERNELS)])
    analysis = found(b)
    assert analysis.rule_failures == ()
    assert analysis.failures == ()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["float", "c10::Half", "", "[4]"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.sweep
@settings(max_examples=4)
@given(st.lists(st.tuples(st.sampled_from(OPS), st.sampled_from(KERNELS), JSON, JSON, JSON), min_size=30, max_size=60))
def test_no_rule_fails_of_any_arguments(ops: list[tuple[str, str, Any, Any, Any]]) -> None:
    b = Builder()
    for name, kernel, dims, types, strides in ops:
        ran(b, name, {"Input Dims": dims, "Input type": types, "Input Strides": strides}, kernel)
    assert found(b).rule_failures == ()


def _raises(seen: Observed) -> list[tracelens.Candidate]:
    raise KeyError("K")


def _hands_over_something_else(seen: Observed) -> list[Any]:
    return ["fuse it"]


def _claims(part: list[int], ns: float) -> tracelens.Candidate:
    amounts = np.full(len(part), ns)
    claimed = Claimed(part=np.array(part, np.int64), low_ns=amounts, gain_ns=amounts, high_ns=amounts)
    return tracelens.Candidate(why="w", computed="c", claimed=claimed)


def test_a_rule_that_fails_costs_its_findings_alone(build: type[Builder]) -> None:
    parts = "its claimed parts must be distinct indexes of parts of the window"
    amounts = "its claimed gain of a part must be between 0 and the time of the part"
    rules: list[tuple[Any, str]] = [
        (_raises, "KeyError: 'K'"),
        (_hands_over_something_else, "TypeError: returned a str, not a Candidate"),
        (lambda seen: [_claims([0, 0], 1.0)], f"ValueError: {parts}"),
        (lambda seen: [_claims([10**6], 1.0)], f"ValueError: {parts}"),
        (lambda seen: [_claims([0], 1e9)], f"ValueError: {amounts}"),
        (lambda seen: [_claims([0], float("nan"))], f"ValueError: {amounts}"),
    ]
    advice = tracelens.Advice(sees="S.", costs="C.", remedy="r", wrong_when="W.")
    marked = [tracelens.finding(f"mine: {i}", advice)(rule) for i, (rule, _) in enumerate(rules)]
    report = tracelens.report(build().mm(4096, 4096, 4096, at=0, start=10, duration=4000).trace(), extensions=marked)
    assert [f.id for f in report.summary.findings] == ["op_below_roofline"]
    texts = [notice.text for notice in report.summary.notices if notice.id == "rule_failed"]
    for i, (text, (_, error)) in enumerate(zip(texts, rules, strict=True)):
        assert text.startswith(f"the findings lack the rule 'mine: {i}': ")
        assert text.endswith(f" raised {error}")
    assert report.has_failed_extension
