"""The share of exchanged rows that leaves the rank: as recorded, else as even routing would have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracelens.lazy.records import dataclass
from tracelens.perf_models import EPComm
from tracelens.signature import OpSignature, parse_literal

#: Where a share comes from: what an op or a collective recorded.
SPLIT_SIZES, TOKEN_COUNTS = "split sizes", "token counts"
#: And of a model that says what leaves.
OF_MODEL = "its perf model"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteShare:
    """``share`` of the ``wire_bytes`` leaves the rank; ``source``: what was recorded, or what was assumed."""

    share: float
    source: str


def remote_share(
    model: EPComm, signature: OpSignature, *, rank: int | None, members: tuple[int, ...], ep_size: int | None
) -> RemoteShare | None:
    """The share for one exchange op of ``rank`` in the expert-parallel group ``members`` (() if not recorded).

    Recorded rows per rank, or per expert with the experts in order over the ranks, settle it. Otherwise (p-1)/p of
    the rows under even routing over p ranks: the op's own ``Group size``, else ``ep_size``; None without either. A
    model that knows its share has it in its bytes already.
    """
    if model.known_share is not None:
        return RemoteShare(share=1.0, source=OF_MODEL)
    counts, source = recorded_counts(signature)
    share = share_of_others(counts, rank, members)
    if share is not None:
        return RemoteShare(share=share, source=source)
    ranks = _group_size(signature) or ep_size
    return None if ranks is None else even_routing(ranks)


def ranks_of(signature: OpSignature, model: EPComm) -> int | None:
    """Ranks that one exchange op says it is between, or its model does."""
    return _group_size(signature) or model.ranks


def _group_size(signature: OpSignature) -> int | None:
    recorded = signature.attribute("Group size")
    return recorded if isinstance(recorded, int) and recorded > 0 else None


def even_routing(ranks: int) -> RemoteShare:
    """(p-1)/p, said to be an assumption."""
    return RemoteShare(share=(ranks - 1) / ranks, source=f"assumed: even routing over {ranks} ranks")


def all_to_all_share(attributes: Mapping[str, Any], rank: int | None) -> RemoteShare | None:
    """The share of an all-to-all with these recorded ``attributes``: by its split sizes, which are even where ``[]``.

    None where they, or the group's ranks with ``rank`` among them, were not recorded.
    """
    members = integers(attributes.get("Process Group Ranks")) or ()
    splits = split_sizes(attributes.get("In split size"))
    if splits is None:
        return None
    if splits == ():
        size = attributes.get("Group size")
        ranks = len(members) or (size if isinstance(size, int) else 0)
        return RemoteShare(share=(ranks - 1) / ranks, source="even split") if ranks else None
    share = share_of_others(splits, rank, members)
    return None if share is None else RemoteShare(share=share, source=SPLIT_SIZES)


def share_of_others(counts: Sequence[int] | None, rank: int | None, members: tuple[int, ...]) -> float | None:
    """Share of ``counts``, in order over ``members``, that is not ``rank``'s own; None where that cannot be said."""
    if not counts or rank not in members or len(counts) % len(members) or sum(counts) <= 0:
        return None
    each = len(counts) // len(members)
    at = members.index(rank) * each
    return 1 - sum(counts[at : at + each]) / sum(counts)


def recorded_counts(signature: OpSignature) -> tuple[tuple[int, ...] | None, str]:
    """Rows that an op recorded per rank or per expert, and as what: its split sizes, else its one list of integers."""
    if splits := integers(signature.attribute("In split size")):
        return splits, SPLIT_SIZES
    lists = [
        found
        for i, kind in enumerate(signature.dtypes or ())
        if kind == "ScalarList" and (found := integers(signature.literal(i))) and len(found) > 1
    ]
    return (lists[0], TOKEN_COUNTS) if len(lists) == 1 else (None, "")


def split_sizes(value: object) -> tuple[int, ...] | None:
    """Recorded split sizes; () for an even split, which is recorded as an empty list."""
    return () if value in ("[]", (), []) else integers(value)


def integers(value: object) -> tuple[int, ...] | None:
    """A list of ranks or counts, or its text; None for anything else, also for one cut short (``[0, 1, ...]``)."""
    value = parse_literal(value) if isinstance(value, str) else value
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    return tuple(value) if value and all(isinstance(v, int) and 0 <= v < 2**63 for v in value) else None
