"""Replicas in turn."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.serving.routers.base import ReplicaView, router


@router("round-robin")
def pick(number: int, pieces: Sequence[int], replicas: Sequence[ReplicaView]) -> int:
    """The ``number``-th arrival goes to replica ``number`` modulo their count."""
    return number % len(replicas)
