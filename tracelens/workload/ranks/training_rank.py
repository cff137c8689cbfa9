"""One rank of a training step: how it divides an operation, and the collectives between tensor-parallel regions.

Column-parallel products divide n, row-parallel ones k; m stays the tokens of the rank. Left out: dropout, the
reduction of biases' gradients, masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.network.topology import Group
from tracelens.perf_models import (
    GEMM,
    CausalConv1d,
    Collective,
    Elementwise,
    IndexerScores,
    LinearAttention,
    Movement,
    Normalization,
    Operand,
    PerfModel,
    SelectiveAttention,
    StateSpaceScan,
    TopKRows,
)
from tracelens.perf_models.normalization import HyperConnection
from tracelens.workload.layer_ops import LayerOp, Split
from tracelens.workload.model_shape import ModelShape
from tracelens.workload.parallel_config import ParallelConfig

#: ``dgrad`` is what the stage before waits for, ``wgrad`` what only the optimizer does.
Pass: TypeAlias = Literal["forward", "dgrad", "wgrad"]
Part: TypeAlias = Literal[
    "gemm", "experts", "attention", "memory", "routing", "quantize", "vocabulary", "tp", "cp", "ep"
]

#: How the name of a SUMMA transfer ends that runs along a column of the grid, between context ranks.
COLUMNS = "along_column"
_DIVIDED: tuple[Split, ...] = ("column", "row")
_NARROW = ("fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOp:
    """One operation of a rank. ``core``: of the attention's forward between its projections, where scores go through
    memory: what flash attention's backward does by itself. ``count``: how often it runs in a row. ``split``: how
    tensor-parallel ranks divide a product.
    """

    name: str
    phase: Pass
    part: Part
    model: PerfModel
    core: bool = False
    count: int = 1
    split: Split = "tokens"

    @property
    def is_communication(self) -> bool:
        """Whether the links carry it, so that a slower device does not make it longer."""
        return self.part in ("tp", "cp", "ep") or isinstance(self.model, Collective)


def passes(name: str, part: Part, *models: PerfModel, split: Split = "tokens") -> Iterator[RankOp]:
    """An operation's forward, dgrad and, where there is one, wgrad."""
    phases: tuple[Pass, ...] = ("forward", "dgrad", "wgrad")
    for phase, model in zip(phases, models, strict=False):
        yield RankOp(name=name, phase=phase, part=part, model=model, split=split)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRank:
    """A rank of ``parallel`` that trains ``shape`` on sequences of ``sequence`` tokens.

    UsageError where cp does not divide the sequence, when a figure needs it.
    """

    shape: ModelShape
    parallel: ParallelConfig
    sequence: int

    @property
    def own_sequence(self) -> int:
        """Tokens of a sequence on this rank's context share."""
        if self.sequence % self.parallel.cp:
            raise UsageError(f"cp {self.parallel.cp} does not divide the sequence of {self.sequence}")
        return self.sequence // self.parallel.cp

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch on this rank, all tensor ranks' together."""
        return self.parallel.micro_batch * self.own_sequence

    @property
    def rows(self) -> int:
        """Tokens that this rank holds between tensor-parallel regions."""
        return -(-self.tokens // self.parallel.row_share)

    @property
    def width(self) -> DType:
        """Element type of activations."""
        return self.parallel.width

    @property
    def is_narrow(self) -> bool:
        """Whether weights' products are computed in less than 16 bits."""
        return self.parallel.precision in _NARROW

    @property
    def gathered(self) -> DType:
        """What tensor ranks gather of a product's input, and of its output's gradient: they are narrowed before."""
        return self.parallel.computed_in if self.is_narrow else self.width

    @property
    def weight_share(self) -> int:
        """By how many ranks the weights of products and the table of tokens are divided."""
        return self.parallel.tp * (1 if self.parallel.summa_blocks is None else self.parallel.cp)

    def part(self, whole: int, name: str) -> int:
        """A tensor-parallel rank's part of ``whole``. UsageError where it does not come out even."""
        if whole % self.parallel.tp:
            raise UsageError(f"tp {self.parallel.tp} does not divide {name}: {whole}")
        return whole // self.parallel.tp

    def weights(self, op: LayerOp) -> int:
        """Parameters of one operation that this rank holds."""
        parallel = self.parallel
        if op.split == "experts":
            return op.weights // (parallel.ep * parallel.etp)
        return op.weights if op.split == "tokens" or op.is_replicated else op.weights // self.weight_share

    def op(self, op: LayerOp) -> Iterator[RankOp]:
        """Forward, dgrad and wgrad of a product, a norm, an activation or a convolution."""
        model = op.model
        if isinstance(model, GEMM):
            yield from self._product(op.name, op.split, model)
        elif isinstance(model, Normalization):
            # Norms per head go over this rank's heads.
            rows = -(-model.shape[0] // (self.parallel.tp if op.split == "heads" else self.parallel.row_share))
            made = replace(model, shape=(rows, *model.shape[1:]), statistics=rows, dtype=self.width)
            yield from passes(op.name, "memory", made, made.backward())
        elif isinstance(model, Elementwise):
            rows, width = model.shape
            yield from self.activation(op.name, rows * self.part(width, op.name))
        elif isinstance(model, CausalConv1d):
            # The convolution before a scan streams its channels: as much again for either gradient.
            elements = model.channels // self.parallel.tp * self.tokens
            yield from self.stream(op.name, elements, reads=(1, 2), writes=(1, 1))
        elif isinstance(model, HyperConnection | Movement):
            yield from self._around(op.name, model)
        elif op.is_core:
            yield from self._core(op.name, model)
        else:
            raise UsageError(f"{op.name}: its block type has to say how ranks divide it")

    def _around(self, name: str, model: HyperConnection | Movement) -> Iterator[RankOp]:
        """What passes over this rank's rows; backward once more over as much, and over its gradient."""
        whole = self.parallel.micro_batch * self.own_sequence
        if isinstance(model, HyperConnection):
            made: PerfModel = replace(model, tokens=self.rows, dtype=self.width)
        else:
            made = self._share(model, self.rows, whole)
        yield RankOp(name=name, phase="forward", part="memory", model=made)
        yield RankOp(name=name, phase="dgrad", part="memory", model=made, count=2)

    def _share(self, model: Movement, rows: int, whole: int) -> Movement:
        def part(operands: Any) -> Any:
            return tuple((elements * rows // whole, self.width) for elements, _ in operands)

        return replace(model, read=part(model.read), written=part(model.written), added=model.added * rows // whole)

    def _core(self, name: str, model: PerfModel) -> Iterator[RankOp]:
        """A core of this rank's heads and tokens."""
        tp = self.parallel.tp
        made: Any
        if isinstance(model, StateSpaceScan):
            heads, groups = self.part(model.heads, name), max(model.groups // tp, 1)
            made = replace(model, tokens=self.own_sequence, heads=heads, groups=groups, dtype=self.width)
        elif isinstance(model, LinearAttention):
            heads, width = self.part(model.v_heads, name), self.part(model.qkv_width, name)
            made = replace(model, tokens=self.tokens, v_heads=heads, qkv_width=width, dtype=self.width)
        elif isinstance(model, SelectiveAttention):
            heads, shared = self.part(model.q_heads, name), max(model.kv_heads // tp, 1)
            made = replace(self._in_context(model), q_heads=heads, kv_heads=shared, dtype=self.width)
        elif isinstance(model, IndexerScores | TopKRows):
            # Its tokens are shared out among tensor ranks, as a norm's are.
            made = self._in_context(model)
            made = replace(made, ranks=made.ranks * self.parallel.row_share)
        else:
            raise UsageError(f"{name}: its block type has to say how ranks divide it")
        yield from passes(name, "attention", made, *([] if isinstance(made, TopKRows) else [made.backward()]))

    def _in_context(self, model: Any) -> Any:
        """Context ranks hold an early and a late piece of a document, so each has an equal part of its pairs."""
        own = self.own_sequence
        if model.s_q < own:
            return model
        keys = self.shape.document_length(self.sequence)
        return replace(model, s_q=keys, s_kv=keys, ranks=keys // own)

    def _product(self, name: str, split: Split, model: GEMM) -> Iterator[RankOp]:
        parallel = self.parallel
        if split == "heads":
            made = replace(model, b=max(model.b // parallel.tp, 1), dtype=self.width)
        elif split == "column":
            made = replace(model, n=self.part(model.n, name), m=self.tokens, dtype=parallel.computed_in)
        elif split == "row":
            made = replace(model, k=self.part(model.k, name), m=self.tokens, dtype=parallel.computed_in)
        else:
            made = replace(model, m=self.rows, dtype=self.width)
        made = replace(made, bias=False, dtype_out=self.width)
        dgrad, wgrad = made.backward()
        if split in _DIVIDED and self.is_narrow:
            dgrad = replace(dgrad, dtype=made.dtype, dtype_out=self.width)
            wgrad = replace(wgrad, dtype=made.dtype, dtype_b=made.dtype)
            inputs = (self.rows if split == "column" else made.m) * made.k
            outputs = (self.rows if split == "row" else made.m) * made.n
            yield from self.narrowing(name, inputs, outputs)
        wgrad = replace(wgrad, dtype_out=parallel.gradient_width)
        if split in _DIVIDED and parallel.precision == "mxfp8":
            made, dgrad, wgrad = (_scaled(each) for each in (made, dgrad, wgrad))
        yield from passes(name, "gemm", made, dgrad, wgrad, split=split)

    def activation(self, name: str, elements: int) -> Iterator[RankOp]:
        """``elements`` written, as many read, and their gates beside them where the model has some."""
        gates = 1 + self.shape.gated
        return self.stream(name, elements, reads=(gates, gates + 1), writes=(1, gates))

    def stream(self, name: str, elements: int, *, reads: tuple[int, int], writes: tuple[int, int]) -> Iterator[RankOp]:
        """Tensors of ``elements`` read and written by the forward and by the backward."""
        kernels = (self.pass_over(elements, read, written) for read, written in zip(reads, writes, strict=True))
        return passes(name, "memory", *kernels)

    def pass_over(self, elements: int, reads: int, writes: int) -> Elementwise:
        """A kernel that reads and writes so many tensors of ``elements``."""
        tensor = Operand(shape=(elements,), dtype=self.width)
        return Elementwise(shape=(elements,), inputs=(tensor,) * reads, outputs=(tensor,) * writes)

    def narrowing(self, name: str, inputs: int, outputs: int) -> Iterator[RankOp]:
        """Inputs before the forward, the output's gradient before both: read wide, written narrow, twice.

        Twice because the weights' gradient sums over tokens, and reads the transposed copy: once of frozen ones. A
        scale of the whole tensor is found in a pass before, which reads it too: FP8 with current scaling and NVFP4, not
        MXFP8.
        """
        dtype = self.parallel.computed_in
        reads = 1 if self.parallel.precision == "mxfp8" else 2
        copies = 1 if self.parallel.lora else 2
        phases: tuple[tuple[Pass, int], ...] = (("forward", inputs), ("dgrad", outputs))
        for phase, elements in phases:
            model = Movement(read=((elements, self.width),) * reads, written=((copies * elements, dtype),))
            yield RankOp(name=f"{name}.quantize", phase=phase, part="quantize", model=model)

    def gather(self, name: str, dtype: DType) -> Iterator[RankOp]:
        """Before column-parallel products: an all-gather with sequence parallelism, repeated for the weights' gradient,
        which frozen ones do not have; an all-reduce of the gradient without.
        """
        if self.parallel.tp == 1:
            return
        if self.parallel.sequence_parallel:
            yield self.collective(name, "forward", "all_gather", dtype)
            if not self.parallel.lora:
                yield self.collective(name, "dgrad", "all_gather", dtype)
            yield self.collective(name, "dgrad", "reduce_scatter")
        else:
            yield self.collective(name, "dgrad", "all_reduce")

    def scatter(self, name: str, dtype: DType) -> Iterator[RankOp]:
        """After row-parallel products; with sequence parallelism their output's gradient is gathered."""
        if self.parallel.tp == 1:
            return
        if self.parallel.sequence_parallel:
            yield self.collective(name, "forward", "reduce_scatter")
            yield self.collective(name, "dgrad", "all_gather", dtype)
        else:
            yield self.collective(name, "forward", "all_reduce")

    def collective(self, name: str, phase: Pass, kind: str, dtype: DType | None = None) -> RankOp:
        """A tensor-parallel collective over the hidden state."""
        model = self.collective_of(kind, self.tokens * self.shape.hidden, self.parallel.tp_group, dtype)
        return RankOp(name=f"{name}.{kind}", phase=phase, part="tp", model=model)

    def collective_of(self, kind: str, whole: int, group: Group, dtype: DType | None = None) -> Collective:
        """``kind`` over ``group``, which holds ``whole`` elements in all before or after it."""
        return Collective(
            kind=kind,
            elements_in=whole // group.ranks if kind == "all_gather" else whole,
            elements_out=whole // group.ranks if kind == "reduce_scatter" else whole,
            ranks=group.ranks,
            stride=group.stride,
            dtype=dtype or self.width,
        )

    def in_context(self, name: str, elements: int) -> Iterator[RankOp]:
        """``elements`` in all of every context rank's, gathered; their gradients scattered back."""
        if self.parallel.cp == 1:
            return
        phases: tuple[tuple[Pass, str], ...] = (
            ("forward", "all_gather"),
            ("dgrad", "all_gather"),
            ("dgrad", "reduce_scatter"),
        )
        for phase, kind in phases:
            model = self.collective_of(kind, elements, self.parallel.cp_group)
            yield RankOp(name=f"{name}.{kind}", phase=phase, part="cp", model=model)

    def on_grid(self, ops: Iterable[RankOp]) -> Iterator[RankOp]:
        """Products in blocks with broadcasts along rows and columns, instead of whole ones between gathers.

        The local product has this rank's rows and columns of the result and all of k. A row-parallel one, which had a
        part of k and all columns, changes sides. Backward, one operand is broadcast and one result summed per product.
        """
        blocks, tp = self.parallel.summa_blocks or 1, self.parallel.tp
        for op in ops:
            if op.part == "tp":
                continue
            if op.part != "gemm" or not isinstance(op.model, GEMM) or op.split not in _DIVIDED:
                yield op
                continue
            m, n, k = op.model.m, op.model.n, op.model.k
            wide, deep = (1, 1) if op.split == "column" else (tp, tp)
            if op.phase == "forward":
                inner, outer = k * deep, n // wide
                model = replace(op.model, b=blocks, n=outer, k=inner // blocks)
            elif op.phase == "dgrad":
                inner, outer = n * deep, k // wide
                model = replace(op.model, b=blocks, n=inner // blocks, k=outer)
            else:
                inner, outer = m * deep, n // wide
                model = replace(op.model, b=blocks, m=inner // blocks, n=outer)
            yield replace(op, model=model)
            yield from self._broadcasts(op, inner // blocks, outer)
        yield from self._norm_sums()

    def _broadcasts(self, op: RankOp, inner: int, outer: int) -> Iterator[RankOp]:
        """One block's part of A along this rank's row, of B along its column; backward, of gradients."""
        parallel = self.parallel
        second = "broadcast" if op.phase == "forward" else "reduce"
        sides = ((parallel.tp_group, self.tokens * inner), (parallel.cp_group, inner * outer))
        for kind, side, (group, elements) in zip(("broadcast", second), ("along_row", COLUMNS), sides, strict=True):
            if group.ranks > 1:
                model = self.collective_of(kind, elements, group)
                name = f"{op.name}.{side}"
                yield RankOp(name=name, phase=op.phase, part="tp", model=model, count=parallel.summa_blocks or 1)

    def _norm_sums(self) -> Iterator[RankOp]:
        """Norms over rows that lie on several ranks: two numbers per row, backward also the weights' gradients."""
        group = self.parallel.tp_group
        passes: tuple[tuple[Pass, int], ...] = (
            ("forward", 2 * self.tokens),
            ("dgrad", 2 * self.tokens + 2 * self.shape.hidden // self.parallel.tp),
        )
        for phase, elements in passes if group.ranks > 1 else ():
            model = self.collective_of("all_reduce", elements, group)
            yield RankOp(name="norm.all_reduce", phase=phase, part="tp", model=model)


def _scaled(model: GEMM) -> GEMM:
    """``model`` with the MX format's scales of both operands, one per 32 elements along k."""
    scales = model.b * (model.m + model.n) * -(-model.k // 32)
    return replace(model, scale_elements=scales, dtype_scale=DType.FP8_E8M0FNU)
