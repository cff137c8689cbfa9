"""The trace runs on another device."""

from __future__ import annotations

from tracelens.backends.system import System
from tracelens.whatif.changes import PLACE, change
from tracelens.whatif.plan import Plan
from tracelens.whatif.pricing import device_of


@change("device", PLACE)
def another_device(plan: Plan, name: str) -> None:
    """A device or cluster by name or file. The host, launches and communication stay as recorded."""
    device_of(plan)
    plan.system = System.load(name)
    plan.note("the host, its launches and what waits for them take as long as recorded")
    if plan.subject.activity.communication.any():
        plan.note("communication takes as long as recorded")
