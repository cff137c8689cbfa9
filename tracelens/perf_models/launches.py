"""What an op's kernel was launched with, for ops whose own record does not say how much they move."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.signature import OpSignature

#: Attribute of an op's signature under which bindings marked ``traced_as(per_launch=True)`` find its ``Launch``.
LAUNCH = "launch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The one kernel of an op: its name, and how many blocks it was launched with in x, y and z."""

    kernel: str
    grid: tuple[int, int, int]


def launch_of(op: OpSignature) -> Launch | None:
    """What was recorded of the launch; None where it was not asked for, or the op has more than one kernel."""
    found = op.attribute(LAUNCH)
    return found if isinstance(found, Launch) else None
