"""The replica with the fewest unfinished requests."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.serving.routers.base import ReplicaView, router


@router("least-loaded")
def pick(number: int, pieces: Sequence[int], replicas: Sequence[ReplicaView]) -> int:
    """The first of equals."""
    return min(range(len(replicas)), key=lambda index: replicas[index].outstanding)
