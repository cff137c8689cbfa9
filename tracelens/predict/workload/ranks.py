"""One rank of a training step and one device of a serving engine: what it has of the model, how it divides an
operation, and the collectives between tensor-parallel regions.

Column-parallel products divide n, row-parallel ones k; m stays the tokens of the rank. Left out: dropout, the
reduction of biases' gradients, masks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, TypeVar

from tracelens import perf_models
from tracelens.errors import UsageError
from tracelens.perf_models import GEMM, SDPA, Collective, GroupedGEMM, MoEFused, Movement, PerfModel
from tracelens.perf_models.normalization import HyperConnection
from tracelens.predict.network.topology import Group
from tracelens.predict.workload.expert_placement import ExpertTraffic, expert_traffic
from tracelens.predict.workload.layer_ops import LayerOp, Split
from tracelens.predict.workload.model_shape import ModelShape, NarrowWeights, Quantization
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.token_routing import UNIFORM, Skew
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

#: ``dgrad`` is what the stage before waits for, ``wgrad`` what only the optimizer does.
Pass: TypeAlias = Literal["forward", "dgrad", "wgrad"]
Part: TypeAlias = Literal[
    "gemm", "experts", "attention", "memory", "routing", "quantize", "vocabulary", "tp", "cp", "ep"
]
#: How the name of a SUMMA transfer ends that runs along a column of the grid, between context ranks.
COLUMNS = "along_column"
_DIVIDED: tuple[Split, ...] = ("column", "row")
_NARROW = ("fp8", "mxfp8", "nvfp4")
#: How much longer Inductor's kernels take along columns: on H100 0.6 to 0.7 TB/s against 2.0 to 2.2 along rows
#: (pytorch/pytorch issue 149982, March 2025).
_BY_COLUMN = 3.2


class RankOp(Record, frozen=True, kw_only=True):
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


def cast(elements: int, parallel: ParallelConfig, *, by_row: int, by_column: int) -> Movement:
    """``elements`` in 16 bits written narrow, so often along rows and along columns, which is the transposed copy.

    A scale of the whole tensor is found in a pass before, which reads it too: FP8 with current scaling and NVFP4, not
    MXFP8. A scale of each row is found in the pass that casts it, one of each column in a pass before.
    """
    reads: float = 1 if parallel.precision == "mxfp8" else 2
    writes: float = by_row + by_column
    if parallel.scales_by_row:
        reads, writes = by_row + by_column * (1 + _BY_COLUMN), by_row + by_column * _BY_COLUMN
    read, written = (round(times * elements) for times in (reads, writes))
    return Movement(read=((read, parallel.width),), written=((written, parallel.computed_in),))


class TrainingRank(Record, frozen=True, kw_only=True):
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
        return self.parallel.computed_in if self.is_narrow and not self.parallel.scales_by_row else self.width

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
        elif isinstance(model, perf_models.Normalization):
            # Norms per head go over this rank's heads.
            rows = -(-model.shape[0] // (self.parallel.tp if op.split == "heads" else self.parallel.row_share))
            made = replace(model, shape=(rows, *model.shape[1:]), statistics=rows, dtype=self.width)
            yield from passes(op.name, "memory", made, made.backward())
        elif isinstance(model, perf_models.Elementwise):
            rows, width = model.shape
            yield from self.activation(op.name, rows * self.part(width, op.name))
        elif isinstance(model, perf_models.CausalConv1d):
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
        if isinstance(model, HyperConnection):
            made: PerfModel = replace(model, tokens=self.rows, dtype=self.width)
        else:
            rows, whole = self.rows, self.tokens
            read, written = (
                tuple((elements * rows // whole, self.width) for elements, _ in operands)
                for operands in (model.read, model.written)
            )
            made = replace(model, read=read, written=written, added=model.added * rows // whole)
        yield RankOp(name=name, phase="forward", part="memory", model=made)
        yield RankOp(name=name, phase="dgrad", part="memory", model=made, count=2)

    def _core(self, name: str, model: PerfModel) -> Iterator[RankOp]:
        """A core of this rank's heads and tokens."""
        tp = self.parallel.tp
        made: Any
        if isinstance(model, perf_models.StateSpaceScan):
            heads, groups = self.part(model.heads, name), max(model.groups // tp, 1)
            made = replace(model, tokens=self.own_sequence, heads=heads, groups=groups, dtype=self.width)
        elif isinstance(model, perf_models.LinearAttention):
            heads, width = self.part(model.v_heads, name), self.part(model.qkv_width, name)
            made = replace(model, tokens=self.tokens, v_heads=heads, qkv_width=width, dtype=self.width)
        elif isinstance(model, perf_models.SelectiveAttention):
            heads, shared = self.part(model.q_heads, name), max(model.kv_heads // tp, 1)
            made = replace(self._in_context(model), q_heads=heads, kv_heads=shared, dtype=self.width)
        elif isinstance(model, perf_models.IndexerScores | perf_models.TopKRows):
            # Its tokens are shared out among tensor ranks, as a norm's are.
            made = self._in_context(model)
            made = replace(made, ranks=made.ranks * self.parallel.row_share)
        else:
            raise UsageError(f"{name}: its block type has to say how ranks divide it")
        yield from passes(
            name, "attention", made, *([] if isinstance(made, perf_models.TopKRows) else [made.backward()])
        )

    def _in_context(self, model: Any) -> Any:
        """Context ranks hold an early and a late piece of a document, so each has an equal part of its pairs."""
        own = self.own_sequence
        if model.s_q < own:
            return model
        keys = self.shape.document_length(self.sequence)
        return replace(model, s_q=keys, s_kv=keys, ranks=keys // own)

    def _product(self, name: str, split: Split, model: GEMM) -> Iterator[RankOp]:
        parallel = self.parallel
        sizes: dict[str, Any]
        if split == "heads":
            sizes = {"b": max(model.b // parallel.tp, 1), "dtype": self.width}
        elif split == "column":
            sizes = {"n": self.part(model.n, name), "m": self.tokens, "dtype": parallel.computed_in}
        elif split == "row":
            sizes = {"k": self.part(model.k, name), "m": self.tokens, "dtype": parallel.computed_in}
        else:
            sizes = {"m": self.rows, "dtype": self.width}
        made = replace(model, **sizes, bias=False, dtype_out=self.width)
        dgrad, wgrad = made.backward()
        narrow: dict[str, Any] = {}
        if split in _DIVIDED and self.is_narrow:
            dgrad = replace(dgrad, dtype=made.dtype, dtype_out=self.width)
            narrow = {"dtype": made.dtype, "dtype_b": made.dtype}
            rows = made.m if parallel.scales_by_row else self.rows
            inputs = (rows if split == "column" else made.m) * made.k
            outputs = (rows if split == "row" else made.m) * made.n
            yield from self.narrowing(name, inputs, outputs)
        wgrad = replace(wgrad, **narrow, dtype_out=parallel.gradient_width)
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

    def pass_over(self, elements: int, reads: int, writes: int) -> perf_models.Elementwise:
        """A kernel that reads and writes so many tensors of ``elements``."""
        tensor = perf_models.Operand(shape=(elements,), dtype=self.width)
        return perf_models.Elementwise(shape=(elements,), inputs=(tensor,) * reads, outputs=(tensor,) * writes)

    def narrowing(self, name: str, inputs: int, outputs: int) -> Iterator[RankOp]:
        """Inputs before the forward, the output's gradient before both, by rows and by columns: the weights' gradient
        sums over tokens, and reads the transposed copy; frozen ones have none.
        """
        phases: tuple[tuple[Pass, int], ...] = (("forward", inputs), ("dgrad", outputs))
        for phase, elements in phases:
            model = cast(elements, self.parallel, by_row=1, by_column=0 if self.parallel.lora else 1)
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
        group = self.parallel.cp_group
        gather, scatter = (
            RankOp(name=f"{name}.{kind}", phase="dgrad", part="cp", model=self.collective_of(kind, elements, group))
            for kind in ("all_gather", "reduce_scatter")
        )
        yield from (replace(gather, phase="forward"), gather, scatter)

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


#: What collectives around adapted column-parallel products are called: adapters read the gathered input, so that it is
#: gathered before the product and not in pieces beside it (tp_comm_overlap_disable_qkv = True of NeMo's LoRA recipes).
WHOLE_GATHER = "adapted.gather"


def frozen(ops: Iterable[RankOp], *, is_adapted: bool = False) -> Iterator[RankOp]:
    """``ops`` without gradients of weights. ``is_adapted``: adapters stand beside some."""
    for op in ops:
        if op.phase != "wgrad":
            yield replace(op, name=op.name.replace("block.gather", WHOLE_GATHER)) if is_adapted else op


def adapters(rank: TrainingRank, ops: Sequence[LayerOp]) -> tuple[list[RankOp], int]:
    """The operations of the adapters of one block and their parameters: those of attention have one each, as MLPerf's
    fine-tuning benchmark adapts query, key, value and output. An adapter is k x rank, then rank x n, in 16 bits.
    """
    made: list[RankOp] = []
    held = 0
    for op in ops:
        if not op.name.startswith("attention.") or not isinstance(op.model, GEMM) or op.split not in ("column", "row"):
            continue
        n, k = op.model.n or 1, op.model.k or 1
        if op.split == "column":
            n = rank.part(n, op.name)
        else:
            k = rank.part(k, op.name)
        for name, width, depth in (("down", rank.parallel.lora, k), ("up", n, rank.parallel.lora)):
            model = GEMM(m=rank.tokens, n=width, k=depth, dtype=rank.width)
            dgrad, wgrad = model.backward()
            wgrad = replace(wgrad, dtype_out=rank.parallel.gradient_width)
            made += passes(f"{op.name}.adapter_{name}", "gemm", model, dgrad, wgrad)
            held += width * depth
        made += _beside(rank, op.name, rank.tokens * k, (rank.tokens if op.split == "column" else rank.rows) * n)
    return made, held


def _beside(rank: TrainingRank, name: str, inputs: int, outputs: int) -> Iterator[RankOp]:
    """What is streamed for one adapter in ``y = W x + s B A dropout(x)``: dropout with its mask, the scale, the sum;
    and backward the gradients of all three. Neither PEFT nor by default NeMo fuses them; where Transformer Engine does
    (ForwardLinearScaleAdd, BackwardLinearScale, BackwardLinearAdd), products read what they add to.
    """
    tensor, mask, result = (inputs, rank.width), (inputs, DType.BOOL), (outputs, rank.width)
    # What a fused product reads stands with the dropout
    added = [((each,) if rank.parallel.fused_adapters else ()) for each in (result, tensor)]
    streams: tuple[tuple[str, Pass, Movement], ...] = (
        ("dropout", "forward", Movement(read=(tensor, *added[0]), written=(tensor, mask))),
        ("dropout", "dgrad", Movement(read=(tensor, mask, *added[1]), written=(tensor,))),
    )
    if not rank.parallel.fused_adapters:
        streams += (
            ("scale", "forward", Movement(read=(result,), written=(result,))),
            ("sum", "forward", Movement(read=(result, result), written=(result,))),
            ("scale", "dgrad", Movement(read=(result,), written=(result,))),
            ("sum", "dgrad", Movement(read=(tensor, tensor), written=(tensor,))),
        )
    for what, phase, model in streams:
        yield RankOp(name=f"{name}.adapter_{what}", phase=phase, part="memory", model=model)


M = TypeVar("M", GEMM, GroupedGEMM)


#: Weights of FP8 experts that share a scale, as checkpoints of DeepSeek-V3 and Qwen3 hold them (128 x 128).
SCALED_BLOCK = 128 * 128


class InferenceRank(Record, frozen=True, kw_only=True):
    """A device that serves ``shape``, of which ``local`` is its tensor-parallel part as a model of its own.

    ``tp``, ``dp``, ``ep``, ``redundant_experts``, ``skew`` and ``imbalance`` as in ``serving.deployment.Parallelism``.
    ``linear``, ``experts`` and ``kv``: element types of the weights of dense products and of experts, and of keys and
    values; None: the model's. ``multiplied``: types that the device has a matrix rate for. ``busiest``: tokens that
    the data-parallel rank computes that has most of a step, padding included; None: they are divided evenly.
    ``lora``: the rank of the adapters beside its products, of which a step's tokens need ``adapters`` different ones.
    ``fused``: types in which engines' fused expert layers were measured on the device; ``expert_rows`` as the engine's.
    ``is_mean``: its experts have the mean of the devices' tokens, not the most. ``gathers``: the collectives by which
    data-parallel ranks give all experts all tokens and take back what these make of them, each padded to the longest
    but in an all-reduce; none: they send each token to its experts. ``narrows_late``: FP8 is made of the model's type
    where experts are.
    """

    shape: ModelShape
    local: ModelShape
    name: str
    tp: int = 1
    dp: int = 1
    ep: int = 1
    redundant_experts: int = 0
    skew: Skew = UNIFORM
    imbalance: float = 1.0
    linear: DType | None = None
    experts: DType | None = None
    kv: DType | None = None
    multiplied: frozenset[DType] = frozenset()
    busiest: int | None = None
    lora: int = 0
    adapters: int = 0
    fused: frozenset[DType] = frozenset()
    expert_rows: int = 0
    is_mean: bool = False
    gathers: tuple[str, ...] = ()
    narrows_late: bool = False

    @property
    def width(self) -> float:
        """Bytes per element of the model's own type. UsageError where it is not known."""
        if self.shape.dtype is None:
            raise UsageError(f"{self.name}: the element type of its weights is not known")
        return self.shape.dtype.width_bytes

    @property
    def traffic(self) -> ExpertTraffic:
        """What the routing makes of an exchange among the expert-parallel devices."""
        experts = self.shape.experts
        count, topk = (experts.count, experts.top_k) if experts is not None else (self.ep, 1)
        found = expert_traffic(self.skew, experts=count, topk=topk, ranks=self.ep, redundant=self.redundant_experts)
        return found.even if self.is_mean else found

    def of(self, letter: str) -> InferenceRank:
        """The device as a block of ``letter`` has it."""
        return replace(self, shape=self.shape.of(letter), local=self.local.of(letter))

    @property
    def cache_width(self) -> float:
        """Bytes per element of keys and values."""
        kv = self.kv_type
        return self.width if kv is None else kv.width_bytes

    @property
    def kv_type(self) -> DType | None:
        """The type of keys and values: as asked for, else the checkpoint's; None: the model's."""
        held = self.shape.quantization
        return self.kv or (None if held is None else held.kv)

    @property
    def held(self) -> Quantization | None:
        """How the checkpoint holds its weights, where nothing else was asked for."""
        return self.shape.quantization if self.linear is None and self.experts is None else None

    def narrow(self, op: LayerOp) -> NarrowWeights | None:
        """A product's weights where they are narrower than the model's type: as asked for, else the checkpoint's."""
        if not isinstance(op.model, GEMM | GroupedGEMM | MoEFused):
            return None
        if self.held is not None:
            return self.held.of(op.name)
        asked = self.experts if op.split == "experts" else None if op.name == "logits" else self.linear
        return None if asked is None else NarrowWeights(dtype=asked)

    @property
    def sent_width(self) -> float:
        """Bytes of an element on its way to experts: FP8 with a scale per 128 where they multiply narrow types; NVFP4
        with a scale per 16 where it ``narrows_late`` (TensorRT-LLM's fused_moe_cutlass.py, fused_moe_wide_ep.py).
        """
        asked = NarrowWeights(dtype=self.experts) if self.experts is not None else None
        narrow = self.held.of("experts.up") if self.held is not None else asked
        dtype = None if narrow is None else narrow.computed or narrow.dtype
        if dtype is None or dtype not in self.multiplied:
            return self.width
        if self.narrows_late:
            return dtype.width_bytes + 1 / 16 if dtype.rate == "fp4" else self.width
        return 1 + 4 / 128

    def own(self, tokens: int) -> int:
        """Tokens of the requests that this device attends to, of so many in all."""
        return -(-tokens // self.dp) if self.busiest is None else self.busiest

    def placed(self, op: LayerOp, tokens: int) -> LayerOp:
        """``op`` in the engine's element types; products of experts with this device's experts and rows."""
        model: PerfModel = op.model
        experts = self.local.experts
        if isinstance(model, GroupedGEMM) and experts is not None:
            imbalance = 1.0 if self.is_mean else self.imbalance
            rows = math.ceil(self.traffic.most_rows(tokens, experts.top_k) * imbalance)
            active = min(self.traffic.held, rows, math.ceil(self.traffic.touched(tokens)))
            model = self._narrowed(replace(model, m=rows, groups=max(active, 1)), self.narrow(op))
        elif isinstance(model, GEMM):
            model = self._narrowed(model, self.narrow(op))
        else:
            model = self.cached(model)
        return op if model is op.model else replace(op, model=model)

    def with_fused_experts(self, ops: Sequence[LayerOp], tokens: int) -> list[LayerOp]:
        """Operations of a block, its experts' products and what is between them as the one layer that engines run.

        vLLM's call of DeepGEMM for FP8 experts knows on the host no expert's rows: room for those of all ``tokens`` is
        multiplied wherever their experts are, ``expert_rows`` less one more for each of the device's experts, empty
        blocks by the first one's weights (deep_gemm_utils.compute_aligned_M).
        """
        at = next((at for at, op in enumerate(ops) if isinstance(op.model, GroupedGEMM)), None)
        if at is None:
            return list(ops)
        (up, between, down), model = ops[at : at + 3], ops[at].model
        if not isinstance(model, GroupedGEMM) or model.dtype not in self.fused or model.products()[0].b_width:
            return list(ops)
        is_scaled = model.dtype is not None and model.dtype.rate == "fp8"
        layer = MoEFused(
            tokens=model.m, hidden=model.k, ffn=model.n // (1 + self.local.gated), experts=self.traffic.held, top_k=1,
            gated=self.local.gated, touched=float(model.groups), dtype=model.dtype, dtype_out=model.dtype_out,
            scaled_by=SCALED_BLOCK if is_scaled else 0,
        )  # fmt: skip
        made = [replace(up, name="experts.layer", model=layer, weights=up.weights + down.weights)]
        if is_scaled and self.expert_rows > 1 and self.local.experts is not None:
            room = tokens * self.local.experts.top_k + (self.expert_rows - 1) * self.traffic.held
            empty = room - model.m
            made += [
                LayerOp(name=f"{op.name}.empty", model=_of_rows(op.model, empty), split="experts")
                for op in (up, between, down)
            ]
        return [*ops[:at], *made, *ops[at + 3 :]]

    def cached(self, core: PerfModel) -> PerfModel:
        """``core`` with keys and values in the cache's type."""
        kv = self.kv_type
        if kv is None:
            return core
        if isinstance(core, SDPA):
            return replace(core, dtype_k=kv, dtype_v=kv)
        return replace(core, dtype_kv=kv) if isinstance(core, perf_models.SelectiveAttention) else core

    def adapted(self, op: LayerOp) -> tuple[int, int, int] | None:
        """Of an adapter beside a product on this device: the columns of its first matrix, one ``lora`` wide for each of
        the products that engines fuse, and its width and depth. None where it has none: adapters stand beside what
        tensor parallelism divides but for experts, shared ones too (vLLM's layers with column or row in their name).
        """
        model = op.model
        if not isinstance(model, GEMM) or op.split not in ("column", "row") or op.name.startswith("experts."):
            return None
        fused = 3 if op.name.endswith(".qkv") else 1 + self.local.gated if op.name.endswith(".up") else 1
        return fused * self.lora, model.n or 1, model.k or 1

    def with_adapters(self, ops: Iterable[LayerOp]) -> Iterator[LayerOp]:
        """Operations of a block, each followed by those of its adapters: a product for all tokens with k x rank of each
        adapter, one with rank x n, which is added to the result (Punica's kernels, as in vLLM and SGLang).
        """
        for op in ops:
            yield op
            sizes = self.adapted(op)
            if sizes is None or not isinstance(op.model, GEMM):
                continue
            (columns, n, k), rows, dtype = sizes, op.model.m or 1, self.local.dtype
            groups = min(self.adapters, rows)
            shrink = GroupedGEMM(m=rows, n=columns, k=k, groups=groups, dtype=dtype)
            expand = GroupedGEMM(m=rows, n=n, k=self.lora, groups=groups, dtype=dtype)
            added = Movement(read=((rows * n, dtype),), written=(), added=rows * n)
            for name, model in (("shrink", shrink), ("expand", expand), ("sum", added)):
                yield LayerOp(name=f"{op.name}.adapter_{name}", model=model, count=op.count, split=op.split)

    def adapter_bytes(self, ops: Iterable[LayerOp]) -> float:
        """Bytes of one adapter of these operations on this device, in the model's own type."""
        sizes = [(op.count, found) for op in ops if (found := self.adapted(op)) is not None]
        return self.width * sum(count * (columns * k + self.lora * n) for count, (columns, n, k) in sizes)

    def weight_bytes(self, op: LayerOp) -> float:
        """Bytes of an operation's weights on this device."""
        narrow, share = self.narrow(op), 1.0
        if op.split == "experts" and self.shape.experts is not None:
            share = self.traffic.held / self.shape.experts.count
        return op.count * op.weights * (self.width if narrow is None else narrow.bytes_per_weight) * share

    def _narrowed(self, model: M, narrow: NarrowWeights | None) -> M:
        """A product with narrow weights: multiplied as they say where the device has a rate for it, else widened to the
        activations' type on the way.
        """
        if narrow is None:
            return model
        kept, computed = model.dtype, narrow.computed or narrow.dtype
        return replace(
            model, dtype=computed if computed in self.multiplied else kept, dtype_b=narrow.dtype, dtype_out=kept
        )


def _of_rows(model: PerfModel, rows: int) -> PerfModel:
    """An operation on ``rows`` rows, a product's all by one expert's weights."""
    if isinstance(model, GroupedGEMM):
        return replace(model, m=rows, groups=1)
    if not isinstance(model, perf_models.Elementwise):
        return model
    inputs, outputs = (
        tuple(replace(each, shape=(rows, *each.shape[1:])) for each in some) for some in (model.inputs, model.outputs)
    )
    return replace(model, shape=(rows, *model.shape[1:]), inputs=inputs, outputs=outputs)
