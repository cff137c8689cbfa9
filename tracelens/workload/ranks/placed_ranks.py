"""Strides of groups whose members share nodes: of one configuration, or of arrays of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracelens.lazy.records import dataclass


def stride(node: int, ranks: Any, near: Any) -> Any:
    """Stride of ``ranks`` ranks of which ``near`` stand in each node of ``node``."""
    return np.maximum(1, node // np.maximum(1, np.minimum(near, ranks)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedRanks:
    """Degrees of parallelism, and how many members of each group stand in one node of ``node`` ranks.

    All but ``node`` and ``is_grid`` (SUMMA, which shares weights out among context ranks too) are ints or arrays.
    """

    node: int
    is_grid: bool
    tp: Any
    cp: Any
    dp: Any
    ep: Any
    etp: Any = 1
    near_tp: Any
    near_cp: Any
    near_dp: Any

    @property
    def copies(self) -> Any:
        """Ranks with the same dense weights."""
        return self.dp if self.is_grid else self.dp * self.cp

    @property
    def expert_copies(self) -> Any:
        """Ranks with the same experts' weights."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    @property
    def tp_stride(self) -> Any:
        return stride(self.node, self.tp, self.near_tp)

    @property
    def cp_stride(self) -> Any:
        return stride(self.node, self.cp, self.near_cp)

    @property
    def dp_stride(self) -> Any:
        """Stride of the ranks with the same dense weights."""
        return stride(self.node, self.copies, self.near_dp * (1 if self.is_grid else self.near_cp))

    @property
    def ep_stride(self) -> Any:
        """Tensor ranks lie between expert ranks, unless the experts need those ranks too (folded)."""
        folded = (self.cp * self.dp) % self.ep != 0
        shared = np.where(folded, np.maximum(1, self.near_tp // self.etp), 1)
        return stride(self.node, self.ep, self.near_dp * self.near_cp * shared)

    @property
    def expert_dp_stride(self) -> Any:
        """Stride of the ranks with the same experts' weights."""
        near_experts = np.minimum(self.ep, np.maximum(1, self.node // self.ep_stride))
        near = self.near_tp * self.near_dp * self.near_cp // (self.etp * near_experts)
        return stride(self.node, self.expert_copies, near)
