"""Tokens exchanged between expert-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.perf_models.base import PerfModel, total_bytes, traced_name


@dataclass(frozen=True, slots=True, kw_only=True)
class EPComm(PerfModel):
    """Tokens exchanged between expert-parallel ranks; no arithmetic.

    wire_bytes = tokens * hidden * width * remote_share. A combine counts the rows it is given, which are the copies
    that the dispatch made, so it moves more than the dispatch.

    What such a figure, and a rate made from it, does not say:

    1. Bytes over the kernels' duration are an *effective* rate: a rank also waits there for the slowest sender, so
       the links achieved at least that much. Their true rate needs the start times of all ranks.
    2. The bytes cross the interconnect and not device memory: ``hbm_bytes`` is None, and a rate made from
       ``wire_bytes`` is comparable with link rates only.
    3. The bytes are an upper bound: a token whose expert is on its own rank does not travel. A trace does not record
       which, so there ``remote_share`` is 1; a routing simulation, or routing metadata, supplies the true share.
       ``expected_wire_bytes`` says what uniform routing would give.

    ``ranks`` is the size of the expert-parallel group, None where it was not recorded; its ranks stand ``stride``
    apart. ``phase`` (``"dispatch"`` or ``"combine"``), ``experts`` and ``topk`` are what a router's exchange is priced
    by; where they are known, ``tokens`` are the rank's own, before copies are made. None where they were not recorded.
    """

    category: ClassVar[str] = "EP_Communication"
    engine: ClassVar[str] = "none"

    tokens: int
    hidden: int
    dtype: DType | None = DType.BF16
    remote_share: float = 1.0
    ranks: int | None = None
    stride: int = 1
    phase: str | None = None
    experts: int | None = None
    topk: int | None = None

    def flops(self) -> int:
        return 0

    def hbm_bytes(self) -> None:
        """None: what the exchange reads and writes on its own device depends on its buffers, which are not recorded."""
        return

    def wire_bytes(self) -> int | float | None:
        nbytes = total_bytes((self.tokens * self.hidden, self.dtype))
        return nbytes if nbytes is None or self.remote_share == 1.0 else nbytes * self.remote_share

    def expected_wire_bytes(self, ranks: int | None = None) -> float | None:
        """Bytes that leave the rank if every row's destination is uniform over the ``ranks``: the share (p-1)/p.

        The assumption is uniform routing and experts spread evenly; ``ranks`` defaults to the recorded group size.
        None without a group size or an element width.
        """
        ranks = self.ranks if ranks is None else ranks
        if ranks is None:
            return None
        if ranks < 1:
            raise UsageError(f"an expert-parallel group has at least one rank, not {ranks}")
        nbytes = total_bytes((self.tokens * self.hidden, self.dtype))
        return None if nbytes is None else nbytes * (ranks - 1) / ranks

    def parameters(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens, "hidden": self.hidden, "dtype": traced_name(self.dtype),
            "remote_share": self.remote_share, "ranks": self.ranks,
        }  # fmt: skip
