"""What a router is: a function that picks a replica for a request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from tracelens.registry import mark

F = TypeVar("F", bound=Callable[..., Any])


class ReplicaView(Protocol):
    """What a router sees of a replica."""

    #: Requests that it has and has not finished.
    outstanding: int

    def cached_pieces(self, pieces: Sequence[int]) -> int:
        """How many leading pieces of a prompt its cache holds."""
        ...


def router(name: str) -> Callable[[F], F]:
    """Marks ``pick(number, pieces, replicas) -> index`` as the router ``name``; ``number`` counts arrivals from 0."""
    return mark("router", name)
