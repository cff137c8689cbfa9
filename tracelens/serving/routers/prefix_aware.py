"""The replica that has most of the prompt's beginning in its cache."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.serving.routers.base import ReplicaView, router

#: A replica this many requests above the least loaded is passed over, so that one popular text does not fill it alone.
MOST_AHEAD = 8


@router("prefix-aware")
def pick(number: int, pieces: Sequence[int], replicas: Sequence[ReplicaView]) -> int:
    """The longest cached beginning among replicas that are not far ahead of the least loaded; ties to the latter."""
    least = min(replica.outstanding for replica in replicas)
    near = [index for index, replica in enumerate(replicas) if replica.outstanding <= least + MOST_AHEAD]
    return max(near, key=lambda index: (replicas[index].cached_pieces(pieces), -replicas[index].outstanding))
