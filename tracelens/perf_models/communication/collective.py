"""Collectives: the bytes that any algorithm must send from a rank; PyTorch's own, and those of custom kernels."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import CategoryOf, PerfModel, total_bytes, traced_as, traced_name
from tracelens.signature import OpSignature


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(PerfModel):
    """One rank's part in a collective over ``ranks`` ranks: ``elements_in`` go in, ``elements_out`` come out.

    wire_bytes is what leaves the rank under the bandwidth-optimal exchange (Patarasu and Yuan, 2009), p ranks:
    all-reduce 2(p-1)/p of the input, reduce-scatter and all-to-all (p-1)/p of the input, all-gather (p-1)/p of the
    output, broadcast, reduce, gather, scatter and send the input; receive, barrier and a rank alone nothing. None when
    the group's size or the element type was not recorded, or the kind is unknown. Reductions' additions are not
    counted: they run while data moves. ``stride`` is the distance between consecutive ranks of the group, which decides
    how many of them share a node.
    """

    category: ClassVar[str] = "record_param_comms"
    engine: ClassVar[str] = "none"
    priced_as: ClassVar[str | None] = "collective"

    kind: str
    elements_in: int
    elements_out: int
    ranks: int | None
    dtype: DType | None = DType.BF16
    stride: int = 1

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
        if word in ("barrier", "recv") or (word is not None and p == 1):
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


#: The attribute of ops that name their process group: (name, number of ranks) of every recorded one.
GROUP_SIZES = "process group sizes"
#: Collectives of whose message one rank's share stays where it is.
_SHARED = ("all_gather", "reduce_scatter", "all_to_all", "all_to_allv", "gather", "scatter")


def bus_factor(word: str, ranks: int | None) -> float | None:
    """Bus over algorithm bandwidth, as nccl-tests defines it (doc/PERFORMANCE.md); None for an unknown collective.

    Bus bandwidth compares with a link's rate whatever the number of ranks.
    """
    if word in ("broadcast", "reduce", "send", "recv"):
        return 1.0
    if not ranks:
        return None
    share = (ranks - 1) / ranks
    if word == "all_reduce":
        return 2 * share
    return share if word in _SHARED else None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomCollective(Collective):
    """A collective by a kernel of its own, on buffers that the ranks of a node share.

    flops = 0; wire_bytes as for ``Collective``, by which alone it is priced: what it reads and writes in device memory
    takes no longer than what crosses the links. None for an all-reduce whose group's size was not recorded.
    """

    category: ClassVar[str] = "CustomCollective"
    family: ClassVar[str | None] = "CustomCollective_fwd"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceRMSNorm(CustomCollective):
    """An all-reduce, the sum with a residual, and that sum RMS-normalized over ``channels``.

    flops = 5n + 2 per row, as ``RMSNorm`` with a weight and a residual; the all-reduce's additions are not counted.
    """

    channels: int

    def flops(self) -> int:
        return 5 * self.elements_in + 2 * (self.elements_in // max(self.channels, 1))


def exchanged(
    op: OpSignature, kind: str, x: int, out: int | None = None, *, group: int | None = None
) -> CustomCollective:
    """``kind`` of tensor ``x`` into ``out`` (None: of the same size). ``group``: the argument that names the group.

    Gathers and scatters show how many ranks take part.
    """
    n_in = prod(op.shape(x))
    n_out = n_in if out is None else prod(op.shape(out))
    larger, smaller = max(n_in, n_out), min(n_in, n_out)
    ranks = larger // smaller if kind in ("all_gather", "reduce_scatter") and smaller else None
    if ranks is None and group is not None:
        ranks = dict(op.attribute(GROUP_SIZES) or ()).get(str(op.literal(group)))
    return CustomCollective(kind=kind, elements_in=n_in, elements_out=n_out, ranks=ranks, dtype=op.dtype(x))


@traced_as(
    "symm_mem::one_shot_all_reduce", "symm_mem::one_shot_all_reduce_out", "symm_mem::two_shot_all_reduce_",
    "symm_mem::two_shot_all_reduce_out", "symm_mem::multimem_all_reduce_", "symm_mem::multimem_one_shot_all_reduce",
    "symm_mem::multimem_one_shot_all_reduce_out",
)  # fmt: skip
def _symmetric_all_reduce(op: OpSignature) -> CustomCollective:
    """(input, reduce_op, group_name[, out]), in torch/csrc/distributed/c10d/symm_mem."""
    return exchanged(op, "all_reduce", 0, group=2)


@traced_as("symm_mem::one_shot_all_reduce_copy", "symm_mem::one_shot_all_reduce_copy_out")
def _symmetric_all_reduce_copy(op: OpSignature) -> CustomCollective:
    """(symmetric buffer, local input, reduce_op, group_name[, out])."""
    return exchanged(op, "all_reduce", 1, group=3)


@traced_as("symm_mem::multimem_all_gather_out")
def _symmetric_all_gather(op: OpSignature) -> CustomCollective:
    """(input, group_name, out)."""
    return exchanged(op, "all_gather", 0, 2)


@traced_as("symm_mem::reduce_scatter_out")
def _symmetric_reduce_scatter(op: OpSignature) -> CustomCollective:
    """(input, group_name, split_last_dim, out)."""
    return exchanged(op, "reduce_scatter", 0, 3)


#: Their results' sizes are not among their arguments; the products of fused ones are ops of their own below them.
SYMMETRIC = CategoryOf(
    category="CustomCollective",
    names=(
        "symm_mem::_low_contention_all_gather",
        "symm_mem::_low_contention_reduce_scatter",
        "symm_mem::fused_all_gather_matmul",
        "symm_mem::fused_all_gather_scaled_matmul",
        "symm_mem::fused_matmul_reduce_scatter",
        "symm_mem::fused_scaled_matmul_reduce_scatter",
    ),
)
