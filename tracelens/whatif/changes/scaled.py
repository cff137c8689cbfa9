"""Some operations take another share of their time."""

from __future__ import annotations

from tracelens.errors import UsageError
from tracelens.whatif.changes import TIME, change
from tracelens.whatif.plan import Plan

#: The selector of host time: ops, launches, and what lies between them.
HOST = "host"


@change("scale", TIME)
def scaled(plan: Plan, wanted: tuple[str, ...]) -> None:
    """``GEMM=0.9``: a category, op, module or kernel (``*`` fits anything), or ``host``, and the factor of its time.

    UsageError for a text of another form, and for a selector that fits nothing.
    """
    for text in wanted:
        selector, _, number = text.rpartition("=")
        try:
            by = float(number)
        except ValueError:
            by = -1.0
        if not selector or not 0 <= by < float("inf"):
            raise UsageError(f"--scale takes NAME=FACTOR with a factor of at least 0, like GEMM=0.9; got {text!r}")
        if selector == HOST:
            plan.host *= by
        else:
            plan.multiply(plan.subject.events_of(selector), by)
