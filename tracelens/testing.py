"""For tests of performance: ``assert_no_regression(before, after)`` and ``assert_faster_than(trace, ms)``.

>>> from tracelens.testing import assert_faster_than, assert_no_regression
>>> def test_the_step_stays_fast():                                                               # doctest: +SKIP
...     assert_no_regression("baseline.json.gz", record())
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracelens.comparison.compared import Comparison

Trace = str | PathLike[str]


def assert_no_regression(before: Trace, after: Trace, *gates: str) -> Comparison:
    """AssertionError, saying what changed and why, where a gate fails; the default allows steps 3 % more.

    ``gates``: as ``tracelens compare --gate`` takes them. What a trace cannot say is an error of its own, no pass.
    """
    __tracebackhide__ = True
    from tracelens.comparison.compare import compare
    from tracelens.report.comparison_report import comparison_text

    found = compare(before, after, gate=gates or ("step<+3%",))
    failed = [gate.text for gate in found.gates if not gate.passed]
    if failed:
        raise AssertionError("\n".join((*failed, "", comparison_text(found))))
    return found


def assert_faster_than(trace: Trace, step_ms: float) -> float:
    """AssertionError where a step takes ``step_ms`` or more, or the trace has no steps; else its time in ms."""
    __tracebackhide__ = True
    from tracelens.report import report

    made = report(trace)
    steps = made.summary.steps
    if steps is None or steps.time_us is None:
        raise AssertionError(f"{made.summary.input.file} has no steps: call profiler.step() once per iteration")
    took = steps.time_us / 1e3
    if took >= step_ms:
        raise AssertionError(f"a step takes {took:.6g} ms, not less than {step_ms:g} ms\n\n{made.verdict()}")
    return took
