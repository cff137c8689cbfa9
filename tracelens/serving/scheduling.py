"""What a batching policy is: a function that says what a lane's next step does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, TypeVar

from tracelens.registry import mark

F = TypeVar("F", bound=Callable[..., Any])
#: Prompts and how many of their tokens the step takes, and whether the lane's sequences decode.
Plan: TypeAlias = tuple[list[tuple[int, int]], bool]


class LaneView(Protocol):
    """What a policy sees and may do. A lane is a replica, or one of the micro-batches of its pipeline."""

    #: Sequences that decode.
    decoding: int
    #: Prompts that were admitted and not finished, and how many tokens they lack, in order of admission.
    partial: dict[int, int]

    @property
    def budget(self) -> int:
        """Most new tokens of a step."""
        ...

    def first_waiting(self) -> int | None:
        """Tokens that the next waiting prompt lacks; None when nothing waits."""
        ...

    def admit(self, *, whole: bool = False) -> int | None:
        """Takes the next waiting request in: it is then the last of ``partial``, or decodes (its cache was kept).

        Returns how many prompt tokens it lacks. None when nothing waits or it does not fit now. ``whole`` reserves room
        for the answer, too.
        """
        ...

    def make_room(self) -> bool:
        """Reserves the blocks of the next decode step, preempting the last admitted; whether any was preempted."""
        ...


def policy(name: str) -> Callable[[F], F]:
    """Marks ``plan(lane: LaneView) -> Plan`` as the batching policy ``name``, e.g. ``"static"``."""
    return mark("policy", name)
