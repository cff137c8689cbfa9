"""Who takes part in a collective."""

from __future__ import annotations

from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``ranks`` ranks, ``stride`` apart in the numbering that fills one node after the other.

    With tensor-parallel ranks innermost, an expert- or data-parallel group has stride TP, so that of a node with 8
    ranks it holds 8 / TP. UsageError below 1.
    """

    ranks: int
    stride: int = 1

    def __post_init__(self) -> None:
        for name, value in (("ranks", self.ranks), ("stride", self.stride)):
            if value < 1:
                raise UsageError(f"a group's {name} must be at least 1, not {value}")

    def within(self, domain: int) -> int:
        """How many of the group's ranks stand in one domain of ``domain`` consecutive ranks; at least 1."""
        return min(self.ranks, max(1, domain // self.stride))

    def domains(self, domain: int) -> int:
        """How many domains of ``domain`` consecutive ranks the group touches."""
        return -(-self.ranks // self.within(domain))
