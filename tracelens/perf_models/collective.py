"""Operations that move bytes between ranks: collectives, and tokens exchanged between expert-parallel ranks."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any, ClassVar

from tracelens.errors import SignatureError, UsageError
from tracelens.perf_models.base import CategoryOf, ModelRecord, Shown, bind, total_bytes, traced_as, traced_name
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature


class Collective(ModelRecord, category="record_param_comms", engine="none", priced_as="collective"):
    """One rank's part in a collective over ``ranks`` ranks: ``elements_in`` go in, ``elements_out`` come out.

    wire_bytes is what leaves the rank under the bandwidth-optimal exchange (Patarasu and Yuan, 2009), p ranks:
    all-reduce 2(p-1)/p of the input, reduce-scatter and all-to-all (p-1)/p of the input, all-gather (p-1)/p of the
    output, broadcast, reduce, gather, scatter and send the input; receive, barrier and a rank alone nothing. None when
    the group's size or the element type was not recorded, or the kind is unknown. Reductions' additions are not
    counted: they run while data moves. ``stride`` is the distance between consecutive ranks of the group, which decides
    how many of them share a node.
    """

    shown: ClassVar[Shown | None] = {
        "collective": "kind", "in_nelems": "elements_in", "out_nelems": "elements_out", "group_size": "ranks",
        "dtype": "dtype",
    }  # fmt: skip

    kind: str
    elements_in: int
    elements_out: int
    ranks: int | None
    dtype: DType | None = DType.BF16
    stride: int = 1

    def moved(self) -> None:
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


class CustomCollective(Collective, category="CustomCollective", family="CustomCollective_fwd"):
    """A collective by a kernel of its own, on buffers that the ranks of a node share.

    flops = 0; wire_bytes as for ``Collective``, by which alone it is priced: what it reads and writes in device memory
    takes no longer than what crosses the links. None for an all-reduce whose group's size was not recorded.
    """


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


#: In torch/csrc/distributed/c10d/symm_mem.
SYMMETRIC_OPS = (
    # (input, reduce_op, group_name[, out])
    bind(
        exchanged, "symm_mem::one_shot_all_reduce", "symm_mem::one_shot_all_reduce_out",
        "symm_mem::two_shot_all_reduce_", "symm_mem::two_shot_all_reduce_out", "symm_mem::multimem_all_reduce_",
        "symm_mem::multimem_one_shot_all_reduce", "symm_mem::multimem_one_shot_all_reduce_out",
        kind="all_reduce", x=0, group=2,
    ),
    # (symmetric buffer, local input, reduce_op, group_name[, out])
    bind(
        exchanged, "symm_mem::one_shot_all_reduce_copy", "symm_mem::one_shot_all_reduce_copy_out",
        kind="all_reduce", x=1, group=3,
    ),
    # (input, group_name, out)
    bind(exchanged, "symm_mem::multimem_all_gather_out", kind="all_gather", x=0, out=2),
    # (input, group_name, split_last_dim, out)
    bind(exchanged, "symm_mem::reduce_scatter_out", kind="reduce_scatter", x=0, out=3),
)  # fmt: skip
#: Their results' sizes are not among their arguments; the products of fused ones are ops of their own below them.
SYMMETRIC = CategoryOf(
    category="CustomCollective",
    names=(
        "symm_mem::_low_contention_all_gather", "symm_mem::_low_contention_reduce_scatter",
        "symm_mem::fused_all_gather_matmul", "symm_mem::fused_all_gather_scaled_matmul",
        "symm_mem::fused_matmul_reduce_scatter", "symm_mem::fused_scaled_matmul_reduce_scatter",
    ),
)  # fmt: skip

DISPATCH, COMBINE = "dispatch", "combine"


class EPComm(ModelRecord, category="EP_Communication", engine="none", priced_as="ep"):
    """Tokens exchanged between expert-parallel ranks; no arithmetic.

    wire_bytes = rows * hidden * width * remote_share: what leaves the rank. ``rows`` are the copies of tokens that are
    exchanged, those for the own rank included, ``tokens`` where nothing says how many there are; a combine is given its
    rows. ``exchanged_bytes`` counts every row.

    What such a figure, and a rate made from it, does not say:

    1. Bytes over the kernels' duration are an *effective* rate: a rank also waits there for the slowest sender, so
       the links achieved at least that much. Their true rate needs the start times of all ranks.
    2. The bytes cross the interconnect and not device memory: ``hbm_bytes`` is None, and a rate made from
       ``wire_bytes`` is comparable with link rates only.
    3. A token whose expert is on its own rank does not travel. ``remote_share`` is 1 in a binding, which cannot know; a
       report takes the recorded share, else that of even routing, and None, so no wire bytes, where neither is known.
    4. FP8 dispatch sends scales beside the tokens (DeepEP: 4 bytes per 128 elements); only the tokens are counted.

    ``ranks`` is the size of the expert-parallel group, None where it was not recorded; its ranks stand ``stride``
    apart. ``phase`` (``"dispatch"`` or ``"combine"``), ``experts`` and ``topk`` are what a router's exchange is priced
    by. ``tokens`` are the rank's own, before copies are made, unless ``own_tokens`` says how many those are: a traced
    combine is given the copies. ``per_expert``: its rows are one per token and expert, of which those of one rank are
    summed before they travel. ``buffer_rows``: what a dispatch pads the received rows to, so that a combine of as many
    does not say how many are copies. ``hidden`` is None where a profiler did not record the tokens. None: not recorded.
    """

    #: Whether its bytes are counted by who made the model, and not from rows.
    counts_bytes: ClassVar[bool] = False

    tokens: int
    hidden: int | None
    dtype: DType | None = DType.BF16
    remote_share: float | None = 1.0
    ranks: int | None = None
    stride: int = 1
    phase: str | None = None
    experts: int | None = None
    topk: int | None = None
    rows: float | None = None
    own_tokens: float | None = None
    per_expert: bool = False
    buffer_rows: int | None = None

    @property
    def copies(self) -> float | None:
        """Rows per token of the rank's own; None where either is not known."""
        own = self.tokens if self.own_tokens is None and self.phase == DISPATCH else self.own_tokens
        rows = self.tokens if self.rows is None and self.phase == COMBINE else self.rows
        return rows / own if rows is not None and own else None

    @property
    def known_share(self) -> float | None:
        """The share of the rows that leaves the rank, where the model says so."""
        return None if self.remote_share == 1 else self.remote_share

    @property
    def row_bytes(self) -> int | float | None:
        """Bytes of one token; None when its size or width is unknown."""
        return None if self.hidden is None else total_bytes((self.hidden, self.dtype))

    def moved(self) -> None:
        """None: what the exchange reads and writes on its own device depends on its buffers, which are not recorded."""
        return

    def exchanged_bytes(self) -> int | float | None:
        """Bytes of every row, those for the own rank included."""
        if (row := self.row_bytes) is None:
            return None
        return row * (self.tokens if self.rows is None else self.rows)

    def wire_bytes(self) -> int | float | None:
        nbytes = self.exchanged_bytes()
        if nbytes is None or self.remote_share is None:
            return None
        return nbytes if self.remote_share == 1.0 else nbytes * self.remote_share

    def expected_wire_bytes(self, ranks: int | None = None) -> float | None:
        """Bytes that leave the rank if every row's destination is uniform over the ``ranks``: the share (p-1)/p.

        The assumption is uniform routing and experts spread evenly; ``ranks`` defaults to the recorded group size.
        None without a group size or an element width.
        """
        ranks = self.ranks if ranks is None else ranks
        if ranks is None:
            return None
        if ranks < 1:
            raise UsageError(f"an expert-parallel group needs at least one rank, not {ranks}")
        nbytes = self.exchanged_bytes()
        return None if nbytes is None else nbytes * (ranks - 1) / ranks

    def backward(self, gradient: OpSignature | None = None) -> EPComm:
        """The gradient's way back: a dispatch's is a combine, of the copies that it sent, and the other way round.

        ``gradient``: the backward op's recorded arguments, whose tensor is what it sends.
        """
        phases = {DISPATCH: COMBINE, COMBINE: DISPATCH}
        mirrored = replace(self, phase=phases.get(self.phase or ""), rows=None, own_tokens=None)
        given = None if gradient is None else recorded_tokens(gradient)
        if given is not None:
            (tokens, hidden), dtype = given
            return replace(mirrored, tokens=tokens, hidden=hidden, dtype=dtype)
        if self.phase == DISPATCH:
            # What comes back has the 16-bit type of the experts' results, whatever was sent
            widened = DType.BF16 if self.dtype is not None and self.dtype.bits < 16 else self.dtype
            return replace(mirrored, rows=self.rows, own_tokens=self.tokens, dtype=widened)
        return replace(mirrored, rows=self.tokens if self.phase == COMBINE else self.rows)

    def parameters(self) -> dict[str, Any]:
        copies = self.copies
        return {
            "tokens": self.tokens, "hidden": self.hidden, "dtype": traced_name(self.dtype), "topk": self.topk,
            "experts": self.experts, "copies": None if copies is None else round(copies, 4),
            "remote_share": self.remote_share, "ranks": self.ranks,
        }  # fmt: skip


def recorded_tokens(op: OpSignature) -> tuple[tuple[int, int], DType | None] | None:
    """([rows, hidden], element type) of the op's first argument; None where that is no matrix of numbers.

    Integers are indices and never tokens: a profiler leaves out tuples of tensors, so that the token indices of an FP8
    dispatch, whose tokens are a pair with their scales, come first.
    """
    shape = op.shape_or_scalar(0)
    dtype = op.dtype(0)
    if len(shape) != 2 or (dtype is not None and not dtype.is_floating):
        return None
    return (shape[0], shape[1]), dtype


def given_tokens(op: OpSignature) -> tuple[tuple[int, int], DType | None]:
    """The same of an op that cannot do without; SignatureError where its first argument is no matrix of numbers."""
    found = recorded_tokens(op)
    if found is None:
        op.shape(0, rank=2)
        raise SignatureError(f"{op.name}: input 0 has integers, not tokens")
    return found


class RoutedTokens(Record, frozen=True, kw_only=True):
    """What a dispatch was given: its tokens, and of their routing what was recorded.

    ``topk``: choices per token; ``flags``: columns of a Boolean map with a row per token, over experts or ranks;
    ``number``: the first recorded number, that of the experts; ``buffer_rows``: the last, the received rows' upper
    bound, where it is one (``num_worst_tokens``).
    """

    tokens: int
    hidden: int | None
    dtype: DType | None
    topk: int | None = None
    flags: int | None = None
    number: int | None = None
    buffer_rows: int | None = None


def routed_tokens(op: OpSignature, *, may_be_pair: bool = True) -> RoutedTokens:
    """The tokens of a dispatch called with (x [t,h], token_indices [t,k] or map [t,e], probabilities, experts, ...).

    ``may_be_pair``: where the indices come first, x was a pair of FP8 tokens and their scales (DeepEP and its
    descendants take nothing else), which a profiler drops from the arguments of autograd functions: then no argument
    says the tokens' size. SignatureError where no tokens were recorded.
    """
    given = recorded_tokens(op)
    if given is not None:
        (rows, hidden), width = given
        found = RoutedTokens(tokens=rows, hidden=hidden, dtype=width)
    else:
        rows, _ = op.shape(0, rank=2)
        found = RoutedTokens(tokens=rows, hidden=None, dtype=DType.FP8_E4M3FN)
    columns, numbers = _matrices_and_numbers(op, rows, from_slot=0 if given is None else 1)
    choices = next((width for dtype, width in columns if dtype in _INDICES), None)
    flags = next((width for dtype, width in columns if dtype is DType.BOOL), None)
    if given is None and (not may_be_pair or op.dtype(0) not in (*_INDICES, DType.BOOL)):
        raise SignatureError(f"{op.name}: input 0 has integers, not tokens")
    number = numbers[0] if numbers and (choices or 0) <= numbers[0] else None
    buffer_rows = numbers[-1] if len(numbers) > 1 and numbers[-1] >= rows > 0 else None
    return replace(found, topk=choices, flags=flags, number=number, buffer_rows=buffer_rows)


_INDICES = (DType.INT32, DType.INT64)


def _matrices_and_numbers(
    op: OpSignature, rows: int, *, from_slot: int
) -> tuple[list[tuple[DType | None, int]], list[int]]:
    """(type, columns) of each matrix with this many rows, and the recorded positive numbers, in order."""
    shapes = ((i, op.shape_or_scalar(i)) for i in range(from_slot, len(op.shapes or ())))
    columns = [(op.dtype(i), shape[1]) for i, shape in shapes if len(shape) == 2 and shape[0] == rows]
    values = (op.literal(index) for index in range(len(op.scalars or ())))
    return columns, [n for n in values if isinstance(n, int) and not isinstance(n, bool) and n > 0]
