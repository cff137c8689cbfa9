"""Bytes between every pair of ranks: what an expert-parallel dispatch or combine puts on the wire."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tracelens.errors import UsageError
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
#: Tokens looked at together: temporaries of a block stay in the second-level cache.
_BLOCK = 16384


class Payload(Record, frozen=True, kw_only=True):
    """What travels for one copy of one token: ``hidden`` elements, their scales, and ``metadata_bytes``.

    copy_bytes = hidden * width + 4 * hidden / scale_block + metadata_bytes; no scales without ``scale_block``.
    Metadata is what goes with a copy: indices, routing weights, source positions.
    """

    hidden: int
    dtype: DType
    scale_block: int | None = None
    metadata_bytes: float = 0.0

    @property
    def copy_bytes(self) -> float:
        """Bytes of one copy."""
        scales = 0.0 if self.scale_block is None else 4.0 * self.hidden / self.scale_block
        return self.hidden * self.dtype.width_bytes + scales + self.metadata_bytes


class Copies(Record, frozen=True, kw_only=True):
    """How many copies of tokens each source rank makes, under the three ways of making them.

    per_expert[src, dst]: one copy per chosen expert; per_rank[src, dst]: one per distinct rank; per_node[src, node]:
    one per distinct node, the source's own included in all three. ``experts``: routings per (physical) expert.
    """

    per_expert: NDArray[np.int64]
    per_rank: NDArray[np.int64]
    per_node: NDArray[np.int64]
    experts: NDArray[np.int64]
    tokens: NDArray[np.int64]
    ranks_per_node: int

    @property
    def ranks(self) -> int:
        return len(self.per_rank)

    @property
    def mean_ranks(self) -> float:
        """Distinct ranks that a token goes to, its own included, on average."""
        return float(self.per_rank.sum() / max(1, self.tokens.sum()))

    @property
    def mean_nodes(self) -> float:
        """Distinct nodes that a token goes to, its own included, on average."""
        return float(self.per_node.sum() / max(1, self.tokens.sum()))

    @classmethod
    def from_assignment(
        cls,
        expert_of_token: Ints,
        rank_of_expert: Ints,
        *,
        ranks: int,
        ranks_per_node: int | None = None,
        rank_of_token: Ints | None = None,
    ) -> Copies:
        """Counts an assignment [tokens, topk]; -1 is a dropped choice. Token i comes from rank i mod ranks by default.

        ``ranks_per_node`` None: all ranks are one node. UsageError when ids do not fit.
        """
        per_node = ranks if ranks_per_node is None else ranks_per_node
        nodes = filled_nodes(ranks, per_node)
        chosen = np.atleast_2d(np.asarray(expert_of_token))
        place = _places(rank_of_expert, ranks)
        tokens = len(chosen)
        experts = len(place)
        if tokens and (chosen.max() >= experts or chosen.min() < -1):
            raise UsageError(f"expert ids run from {chosen.min()} to {chosen.max()}, but there are {experts} experts")
        # One more row and column take what is dropped or a duplicate.
        narrow = np.min_scalar_type(max(ranks, 1))
        rank_table = np.append(place, ranks).astype(narrow)
        sources = _sources(rank_of_token, tokens, ranks)
        by_expert = np.zeros(ranks * (experts + 1), np.int64)
        by_rank = np.zeros(ranks * (ranks + 1), np.int64)
        by_node = np.zeros(ranks * (nodes + 1), np.int64)
        for start in range(0, tokens, _BLOCK):
            block = np.ascontiguousarray(chosen[start : start + _BLOCK].T, dtype=np.intp)
            if block.min() < 0:
                block = np.where(block < 0, experts, block)
            source = sources[start : start + _BLOCK]
            to_rank = rank_table[block]
            by_expert += np.bincount((block + source * (experts + 1)).ravel(), minlength=by_expert.size)
            by_rank += _distinct(to_rank, source, ranks, ranks)
            if 1 < nodes < ranks:
                by_node += _distinct(to_rank // narrow.type(per_node), source, ranks, nodes)
        of_expert = by_expert.reshape(ranks, experts + 1)[:, :experts]
        rank_copies = by_rank.reshape(ranks, ranks + 1)[:, :ranks]
        if nodes == ranks:
            node_copies = rank_copies
        elif nodes == 1:
            kept = chosen.max(axis=1) >= 0 if tokens and chosen.min() < 0 else np.ones(tokens, bool)
            node_copies = np.bincount(sources[kept], minlength=ranks)[:, None]
        else:
            node_copies = by_node.reshape(ranks, nodes + 1)[:, :nodes]
        per_expert = np.zeros((ranks, ranks), np.int64)
        np.add.at(per_expert.T, place, of_expert.T)
        return cls(
            per_expert=per_expert,
            per_rank=rank_copies.copy(),
            per_node=node_copies.copy(),
            experts=of_expert.sum(axis=0),
            tokens=np.bincount(sources, minlength=ranks),
            ranks_per_node=per_node,
        )


class Traffic(Record, frozen=True, kw_only=True):
    """``wire_bytes[src, dst]``; the diagonal is what stays on its rank, and no link carries it."""

    wire_bytes: NDArray[Any]

    def __post_init__(self) -> None:
        shape = self.wire_bytes.shape
        if len(shape) != 2 or shape[0] != shape[1]:
            raise UsageError(f"traffic must be a square matrix of ranks, not {' x '.join(map(str, shape))}")
        if not np.isfinite(self.wire_bytes).all() or (self.wire_bytes < 0).any():
            raise UsageError("traffic between two ranks must be 0 or more bytes")

    @classmethod
    def even(cls, pair_bytes: float, ranks: int) -> Traffic:
        """``pair_bytes`` from every rank to every other, nothing local."""
        return cls(wire_bytes=pair_bytes * (1.0 - np.eye(ranks)))

    @property
    def ranks(self) -> int:
        return len(self.wire_bytes)

    @property
    def total_bytes(self) -> float:
        """Local bytes included: the *logical* convention."""
        return float(self.wire_bytes.sum())

    @property
    def local_bytes(self) -> float:
        return float(np.trace(self.wire_bytes))

    @property
    def remote_bytes(self) -> float:
        """What leaves its rank: the *remote-only* convention."""
        return self.total_bytes - self.local_bytes

    @property
    def remote_share(self) -> float:
        """Remote over total; 0 for no traffic."""
        return self.remote_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def remote(self) -> Floats:
        """The matrix without its diagonal."""
        matrix = self.wire_bytes.astype(np.float64)
        np.fill_diagonal(matrix, 0.0)
        return matrix

    def sent(self) -> Floats:
        """Remote bytes out of each rank."""
        return np.asarray(self.remote.sum(axis=1))

    def received(self) -> Floats:
        """Remote bytes into each rank."""
        return np.asarray(self.remote.sum(axis=0))


def filled_nodes(ranks: int, ranks_per_node: int) -> int:
    """How many nodes the ranks fill; UsageError where one would be filled in part."""
    if ranks_per_node < 1 or ranks % ranks_per_node:
        raise UsageError(f"{ranks} ranks do not fill whole nodes of {ranks_per_node} ranks")
    return ranks // ranks_per_node


def imbalance(loads: Ints | Floats) -> float:
    """Maximum over mean: how much longer the busiest takes than an even load would; 1 for no load."""
    mean = float(np.mean(loads)) if len(loads) else 0.0
    return float(np.max(loads)) / mean if mean else 1.0


def _places(rank_of_expert: Ints, ranks: int) -> NDArray[np.intp]:
    place = np.asarray(rank_of_expert, dtype=np.intp)
    if ranks < 1 or place.ndim != 1 or not len(place):
        raise UsageError("a placement needs one rank per expert, and at least one rank")
    if place.min() < 0 or place.max() >= ranks:
        raise UsageError(f"experts are placed on ranks {place.min()} to {place.max()}, but there are {ranks} ranks")
    return place


def _sources(rank_of_token: Ints | None, tokens: int, ranks: int) -> NDArray[np.intp]:
    """Source rank of each token."""
    if rank_of_token is None:
        return np.arange(tokens, dtype=np.intp) % ranks
    given = np.asarray(rank_of_token, dtype=np.intp)
    if given.shape != (tokens,):
        raise UsageError(f"{tokens} tokens but {len(given)} source ranks")
    if tokens and (given.min() < 0 or given.max() >= ranks):
        raise UsageError(f"a token's source rank is outside 0 to {ranks - 1}")
    return given


def _distinct(target: Ints, source: NDArray[np.intp], ranks: int, targets: int) -> NDArray[np.int64]:
    """Tokens by (source, distinct target), flat; ``target`` is [topk, tokens] and a dropped choice is >= ``targets``.

    All pairs of choices are compared: at top 8 that is 28 passes over small integers, and faster than a sort.
    """
    last = target.dtype.type(targets)
    kept = np.minimum(target, last)
    for later in range(1, len(target)):
        repeated = target[0] == target[later]
        for earlier in range(1, later):
            repeated |= target[earlier] == target[later]
        kept[later][repeated] = last
    return np.bincount((kept + source * (targets + 1)).ravel(), minlength=ranks * (targets + 1))
