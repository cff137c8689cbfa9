"""Collectives: the bytes that any algorithm must send from a rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.perf_models.base import PerfModel, total_bytes, traced_as, traced_name
from tracelens.signature import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(PerfModel):
    """One rank's part in a collective over ``ranks`` ranks: ``elements_in`` go in, ``elements_out`` come out.

    wire_bytes is what leaves the rank under the bandwidth-optimal exchange (Patarasu and Yuan, 2009), p ranks:
    all-reduce 2(p-1)/p of the input, reduce-scatter and all-to-all (p-1)/p of the input, all-gather (p-1)/p of the
    output, broadcast, reduce and send the input, receive and barrier nothing. None when the group's size or
    the element type was not recorded, or the kind is unknown. Reductions' additions are not counted: they run while
    data moves.
    """

    category: ClassVar[str] = "record_param_comms"
    engine: ClassVar[str] = "none"

    kind: str
    elements_in: int
    elements_out: int
    ranks: int | None
    dtype: DType | None = DType.BF16

    def flops(self) -> int:
        return 0

    def hbm_bytes(self) -> None:
        """None: how often an algorithm passes over its buffers is its own."""
        return

    def wire_bytes(self) -> int | float | None:
        share = self._share()
        base = self.elements_out if self.word == "all_gather" else self.elements_in
        nbytes = total_bytes((base, self.dtype))
        if share == 0:
            return 0
        return None if share is None or nbytes is None else nbytes * share

    @property
    def word(self) -> str | None:
        """The collective's plain name (``all_reduce`` for ``allreduce_coalesced``); None when unknown."""
        text = self.kind.strip("_").lower().replace("_", "").removesuffix("coalesced")
        return next((word for start, word in _WORDS if text.startswith(start)), None)

    def _share(self) -> float | None:
        word, p = self.word, self.ranks
        if word in ("barrier", "recv"):
            return 0
        if word in ("broadcast", "reduce", "send", "gather", "scatter"):
            return 1
        if word is None or not p:
            return None
        return (2 if word == "all_reduce" else 1) * (p - 1) / p

    def parameters(self) -> dict[str, Any]:
        return {
            "collective": self.kind, "in_nelems": self.elements_in, "out_nelems": self.elements_out,
            "group_size": self.ranks, "dtype": traced_name(self.dtype),
        }  # fmt: skip


# recorded spellings without underscores: the longer beginnings first
_WORDS = (
    ("allreduce", "all_reduce"), ("allgather", "all_gather"), ("alltoall", "all_to_all"),
    ("reducescatter", "reduce_scatter"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("reduce", "reduce"),
    ("send", "send"), ("recv", "recv"), ("gather", "gather"), ("scatter", "scatter"),
)  # fmt: skip


@traced_as("record_param_comms")
def _record_param_comms(op: OpSignature) -> Collective | None:
    """The collective's own attributes; None for the markers that have none (``init``, ``wait``)."""
    kind, n_in, n_out = (op.attribute(k) for k in ("Collective name", "In msg nelems", "Out msg nelems"))
    if not isinstance(kind, str) or not isinstance(n_in, int) or not isinstance(n_out, int):
        return None
    ranks = op.attribute("Group size")
    dtype = op.attribute("dtype")
    return Collective(
        kind=kind,
        elements_in=n_in,
        elements_out=n_out,
        ranks=ranks if isinstance(ranks, int) else None,
        dtype=DType.parse(dtype) if isinstance(dtype, str) else None,
    )
