"""Who takes part in a collective."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``ranks`` participants, ``stride`` apart in the global rank order (1: neighbours)."""

    ranks: int
    stride: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.stride < 1:
            raise ValueError(f"a group needs ranks >= 1 and stride >= 1, got ranks={self.ranks}, stride={self.stride}")
