"""What one rank does in a layer: the model's operations divided by a parallel config, and the collectives between.

Column-parallel products divide n, row-parallel ones k; m stays the tokens of the rank. Left out: dropout, the
reduction of biases' gradients, masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.perf_models import (
    GEMM,
    SDPA,
    Collective,
    CrossEntropy,
    CrossEntropyBackward,
    Elementwise,
    EPComm,
    GroupedGEMM,
    GroupedGEMMVariableK,
    Movement,
    MultiTensor,
    Normalization,
    Operand,
    PerfModel,
    RoPE,
)
from tracelens.workload.expert_traffic import ExpertTraffic, expert_traffic
from tracelens.workload.layers import LayerOp, forward_ops, further_token_ops
from tracelens.workload.model_config import Experts, ModelConfig
from tracelens.workload.parallel_config import ParallelConfig
from tracelens.workload.token_routing import UNIFORM

#: ``dgrad`` is what the stage before waits for, ``wgrad`` what only the optimizer does.
Pass: TypeAlias = Literal["forward", "dgrad", "wgrad"]
Part: TypeAlias = Literal[
    "gemm", "experts", "attention", "memory", "routing", "quantize", "vocabulary", "tp", "cp", "ep"
]

COLUMN = frozenset(
    ("attention.qkv", "attention.q", "attention.q_up", "attention.kv_up", "mlp.up", "experts.shared.up", "mamba.in")
)
ROW = frozenset(("attention.out", "mlp.down", "experts.shared.down", "mamba.out"))
#: How the name of a SUMMA transfer ends that runs along a column of the grid, between context ranks.
COLUMNS = "along_column"
_ENDS = ("embedding", "positions", "final_norm", "logits")
_NARROW = ("fp8", "mxfp8", "nvfp4")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOp:
    """One operation of a rank. ``core``: of the attention's forward between its projections, where scores go through
    memory: what flash attention's backward does by itself. ``count``: how often it runs in a row.
    """

    name: str
    phase: Pass
    part: Part
    model: PerfModel
    core: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayer:
    """One block, or an end of the model, on one rank: operations of one micro-batch, and the weights held.

    ``dense`` and ``expert`` count parameters before any division by data parallelism. ``letter`` as in
    ``ModelConfig.blocks``, else the end's name.
    """

    letter: str
    ops: tuple[RankOp, ...]
    dense: int
    expert: int = 0


def block(config: ModelConfig, parallel: ParallelConfig, letter: str, sequence: int) -> RankLayer:
    """A residual block of ``letter``. UsageError where tp or ep do not divide what they divide."""
    alone = replace(config, blocks=letter, mtp_layers=0)
    ops = forward_ops(alone, batch=parallel.micro_batch, sequence=_own(sequence, parallel))
    shape = _Rank(config=config, parallel=parallel, sequence=sequence)
    return shape.layer(letter, [op for op in ops if op.name not in _ENDS])


def is_repeated(op: RankOp, letter: str, parallel: ParallelConfig) -> bool:
    """Whether the backward runs this operation of a block of ``letter`` again, by ``parallel.recompute``."""
    if op.phase != "forward" or parallel.recompute == "none" or letter in ("embedding", "head"):
        return False
    return parallel.recompute == "full" or any(_repeats(each, op, letter) for each in parallel.recompute_modules)


def _repeats(module: str, op: RankOp, letter: str) -> bool:
    """As Megatron-LM's modules are: ``moe`` is the whole block with its exchanges, ``mlp`` the dense one."""
    name = op.name.removesuffix(".quantize")
    if module == "core_attn":
        return op.core
    if module == "layernorm":
        return name.endswith(".norm") and op.part == "memory"
    if module == "moe_act":
        return name == "experts.activation"
    if module == "shared_experts":
        return name.startswith(("experts.shared.", "shared."))
    if module == "mla_up_proj":
        return name in ("attention.q_up", "attention.kv_up", "attention.rope") and letter in "*w"
    return letter == {"mlp": "-", "moe": "E"}[module]


def embedding(config: ModelConfig, parallel: ParallelConfig, sequence: int) -> RankLayer:
    """The lookup, its sum over tensor ranks, and the gradient's scatter."""
    return _Rank(config=config, parallel=parallel, sequence=sequence).embedding()


def head(config: ModelConfig, parallel: ParallelConfig, sequence: int) -> RankLayer:
    """Final norm, logits, vocabulary-parallel cross entropy; and what predicting further tokens adds."""
    return _Rank(config=config, parallel=parallel, sequence=sequence).head()


def optimizer(parameters: float, parallel: ParallelConfig) -> tuple[RankOp, ...]:
    """Adam over the rank's share of ``parameters``, and the gradient's norm over the whole job."""
    elements = int(parameters)
    # Read: gradient, both moments, master weight, 4 bytes each; written: moments, master weight, and half an fp32
    # element per parameter, the 16-bit weight: 30 bytes in all.
    step = MultiTensor(
        tensors=1, elements=elements, flops_per_element=13, reads=4, writes=3, results=elements // 2, dtype=DType.FP32
    )
    norm = MultiTensor(tensors=1, elements=elements, flops_per_element=2, reads=1, writes=0, dtype=DType.FP32)
    total = Collective(kind="all_reduce", elements_in=1, elements_out=1, ranks=parallel.ranks, dtype=DType.FP32)
    return (
        RankOp(name="gradient_norm", phase="wgrad", part="memory", model=norm),
        RankOp(name="gradient_norm.all_reduce", phase="wgrad", part="memory", model=total),
        RankOp(name="adam", phase="wgrad", part="memory", model=step),
    )


def weights(config: ModelConfig, parallel: ParallelConfig, letter: str, sequence: int) -> dict[str, int]:
    """Parameters that this rank holds of each operation of a block, by the operation's name."""
    alone = replace(config, blocks=letter, mtp_layers=0)
    shape = _Rank(config=config, parallel=parallel, sequence=sequence)
    ops = forward_ops(alone, batch=1, sequence=_own(sequence, parallel))
    return {op.name: shape.weights(op) for op in ops if op.name not in _ENDS}


def _scaled(model: GEMM) -> GEMM:
    """With the MX format's scales of both operands, one per 32 elements along k."""
    scales = model.b * (model.m + model.n) * -(-model.k // 32)
    return replace(model, scale_elements=scales, dtype_scale=DType.FP8_E8M0FNU)


def _own(sequence: int, parallel: ParallelConfig) -> int:
    if sequence % parallel.cp:
        raise UsageError(f"cp {parallel.cp} does not divide the sequence of {sequence}")
    return sequence // parallel.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    config: ModelConfig
    parallel: ParallelConfig
    sequence: int

    @property
    def tokens(self) -> int:
        """Of one micro-batch on this rank, all tensor ranks' together."""
        return self.parallel.micro_batch * _own(self.sequence, self.parallel)

    @property
    def rows(self) -> int:
        """Of them, those that this rank holds between tensor-parallel regions."""
        return -(-self.tokens // self.parallel.row_share)

    @property
    def width(self) -> DType:
        return self.parallel.width

    @property
    def gathered(self) -> DType:
        """What tensor ranks gather of a product's input, and of its output's gradient: they are narrowed before."""
        return self.parallel.computed_in if self.parallel.precision in _NARROW else self.width

    @property
    def weight_share(self) -> int:
        """By how many ranks the weights of products and the table of tokens are divided."""
        return self.parallel.tp * (1 if self.parallel.summa_blocks is None else self.parallel.cp)

    def layer(self, letter: str, ops: list[LayerOp]) -> RankLayer:
        """Forward and backward of the whole block, in the order of the forward."""
        made: list[RankOp] = []
        dense = expert = 0
        attention = letter in "*w"
        if letter == "E":
            self._check_experts()
        made += self.gather("block.gather", self.gathered) if letter != "E" else ()
        for op in ops:
            if op.name == "experts.up":
                made += (*self.exchange("dispatch"), *self.pieces("dispatch"))
            made += self.op(op)
            if op.name in ("attention.qkv", "attention.kv_up") and not self.config.positions:
                made += self.rope()
            if op.name == "experts.down":
                made += (*self.pieces("combine"), *self.exchange("combine"))
            weights = self.weights(op)
            if isinstance(op.model, GroupedGEMM):
                expert += weights
            else:
                dense += weights
        made += self.scatter("block.scatter", self.gathered) if letter != "E" else ()
        if letter == "E" and self.config.experts and self.config.experts.shared_ffn:
            made += (*self.gather("shared.gather", self.gathered), *self.scatter("shared.scatter", self.gathered))
        if attention and self.parallel.cp > 1:
            made += self.context()
        made += self.residual()
        if self.parallel.summa_blocks is not None:
            made = [*self.on_grid(made), *self.sums()]
        return RankLayer(letter=letter, ops=tuple(made), dense=dense, expert=expert)

    def weights(self, op: LayerOp) -> int:
        """Parameters of one operation that this rank holds."""
        parallel = self.parallel
        if isinstance(op.model, GroupedGEMM):
            return op.weights // (parallel.ep * parallel.etp)
        return op.weights // self.weight_share if self._divided(op.name) else op.weights

    def on_grid(self, ops: Iterable[RankOp]) -> Iterator[RankOp]:
        """Products in blocks with broadcasts along rows and columns, instead of whole ones between gathers.

        The local product has this rank's rows and columns of the result and all of k. A row-parallel one, which had a
        part of k and all columns, changes sides. Backward, one operand is broadcast and one result summed per product.
        """
        blocks, tp = self.parallel.summa_blocks or 1, self.parallel.tp
        for op in ops:
            if op.part == "tp":
                continue
            if op.part != "gemm" or not isinstance(op.model, GEMM) or op.name not in COLUMN | ROW:
                yield op
                continue
            m, n, k = op.model.m, op.model.n, op.model.k
            wide, deep = (1, 1) if op.name in COLUMN else (tp, tp)
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
            yield from self.broadcasts(op, inner // blocks, outer)

    def broadcasts(self, op: RankOp, inner: int, outer: int) -> Iterator[RankOp]:
        """Of one block: this row's part of A along the row, this column's part of B; backward, of gradients."""
        parallel = self.parallel
        second = "broadcast" if op.phase == "forward" else "reduce"
        sides = ((parallel.tp_group, self.tokens * inner), (parallel.cp_group, inner * outer))
        for kind, side, (group, elements) in zip(("broadcast", second), ("along_row", COLUMNS), sides, strict=True):
            if group.ranks > 1:
                model = Collective(
                    kind=kind, elements_in=elements, elements_out=elements, ranks=group.ranks, stride=group.stride,
                    dtype=self.width,
                )  # fmt: skip
                name = f"{op.name}.{side}"
                yield RankOp(name=name, phase=op.phase, part="tp", model=model, count=parallel.summa_blocks or 1)

    def sums(self) -> Iterator[RankOp]:
        """Norms over rows that lie on several ranks: two numbers per row, backward also the weights' gradients."""
        group = self.parallel.tp_group
        passes: tuple[tuple[Pass, int], ...] = (
            ("forward", 2 * self.tokens),
            ("dgrad", 2 * self.tokens + 2 * self.config.hidden // self.parallel.tp),
        )
        for phase, elements in passes if group.ranks > 1 else ():
            model = Collective(
                kind="all_reduce", elements_in=elements, elements_out=elements, ranks=group.ranks, stride=group.stride,
                dtype=self.width,
            )  # fmt: skip
            yield RankOp(name="norm.all_reduce", phase=phase, part="tp", model=model)

    def op(self, op: LayerOp) -> Iterator[RankOp]:
        """Forward, dgrad and wgrad of one of the model's operations."""
        model = op.model
        if isinstance(model, GroupedGEMM):
            yield from self.grouped(op.name, model)
        elif isinstance(model, GEMM):
            yield from self.product(op.name, model)
        elif isinstance(model, SDPA):
            yield from self.attention(op.name, model)
        elif isinstance(model, Normalization):
            yield from self.norm(op.name, model)
        elif isinstance(model, Elementwise):
            yield from self.activation(op.name, model)
        else:
            # The convolution before a scan streams its channels: as much again for either gradient.
            channels = self.config.mamba.conv_channels // self.parallel.tp if self.config.mamba else 0
            yield from self.stream(op.name, channels * self.tokens, reads=1, writes=1, back_reads=2, back_writes=1)

    def product(self, name: str, model: GEMM) -> Iterator[RankOp]:
        tp = self.parallel.tp
        if name.startswith("mamba.") and name.split(".")[1] in ("scores", "within", "state_in", "state_out"):
            made = replace(model, b=max(model.b // tp, 1), dtype=self.width)
        elif name in COLUMN:
            made = replace(model, n=self._part(model.n, name), m=self.tokens, dtype=self.parallel.computed_in)
        elif name in ROW:
            made = replace(model, k=self._part(model.k, name), m=self.tokens, dtype=self.parallel.computed_in)
        else:
            made = replace(model, m=self.rows, dtype=self.width)
        narrow = name in COLUMN | ROW and self.parallel.precision in _NARROW
        made = replace(made, bias=False, dtype_out=self.width)
        dgrad, wgrad = made.backward()
        if narrow:
            dgrad = replace(dgrad, dtype=made.dtype, dtype_out=self.width)
            wgrad = replace(wgrad, dtype=made.dtype, dtype_b=made.dtype)
            inputs = (self.rows if name in COLUMN else made.m) * made.k
            outputs = (self.rows if name in ROW else made.m) * made.n
            yield from self.narrowing(name, inputs, outputs)
        wgrad = replace(wgrad, dtype_out=self.parallel.gradient_width)
        if narrow and self.parallel.precision == "mxfp8":
            made, dgrad, wgrad = (_scaled(each) for each in (made, dgrad, wgrad))
        yield RankOp(name=name, phase="forward", part="gemm", model=made)
        yield RankOp(name=name, phase="dgrad", part="gemm", model=dgrad)
        yield RankOp(name=name, phase="wgrad", part="gemm", model=wgrad)

    def grouped(self, name: str, model: GroupedGEMM) -> Iterator[RankOp]:
        """Rows of the busiest rank's experts, the same for each of them; each expert's ffn divided by etp."""
        parallel = self.parallel
        groups = model.groups // parallel.ep
        rows = self.expert_rows
        n, k = (model.n // parallel.etp, model.k) if name.endswith("up") else (model.n, model.k // parallel.etp)
        dtype = parallel.computed_in
        if parallel.precision in _NARROW:
            yield from self.narrowing(name, rows * k, rows * n)
        if not parallel.grouped:
            yield from self.one_by_one(name, GEMM(m=-(-rows // groups), n=n, k=k, dtype=dtype), groups)
            return
        made = GroupedGEMM(m=rows, n=n, k=k, groups=groups, dtype=dtype, dtype_out=self.width)
        yield RankOp(name=name, phase="forward", part="experts", model=made)
        yield RankOp(name=name, phase="dgrad", part="experts", model=replace(made, n=k, k=n))
        wgrad = GroupedGEMMVariableK(m=rows, n=n, k=k, groups=groups, dtype=dtype, dtype_out=parallel.gradient_width)
        yield RankOp(name=name, phase="wgrad", part="experts", model=wgrad)

    def one_by_one(self, name: str, model: GEMM, experts: int) -> Iterator[RankOp]:
        """A product per expert and pass."""
        dgrad, wgrad = (replace(each, dtype=model.dtype, dtype_b=model.dtype) for each in model.backward())
        wgrad = replace(wgrad, dtype_out=self.parallel.gradient_width)
        for _ in range(experts):
            yield RankOp(name=name, phase="forward", part="experts", model=replace(model, dtype_out=self.width))
            yield RankOp(name=name, phase="dgrad", part="experts", model=replace(dgrad, dtype_out=self.width))
            yield RankOp(name=name, phase="wgrad", part="experts", model=wgrad)

    @property
    def expert_rows(self) -> int:
        """Of the busiest rank."""
        experts = self.config.experts
        if experts is None:
            return 0
        return round(self.rows * self.parallel.etp * experts.top_k * self.traffic(experts).rows_imbalance)

    def traffic(self, experts: Experts) -> ExpertTraffic:
        """What the routing makes of an exchange among the expert-parallel ranks."""
        parallel = self.parallel
        return expert_traffic(parallel.skew, experts=experts.count, topk=experts.top_k, ranks=parallel.ep)

    def attention(self, name: str, model: SDPA) -> Iterator[RankOp]:
        """Context-parallel ranks hold an early and a late piece of a text, so all see the mean number of its keys. Of
        texts that are shorter than what a rank holds, it holds whole ones.
        """
        parallel = self.parallel
        heads = self._part(model.q_heads, "attention heads")
        own = _own(self.sequence, parallel)
        rows = model.s_q or own
        keys = self.config.text(self.sequence) if rows == own else rows
        made = replace(
            model,
            s_q=rows,
            s_kv=keys if self.config.bidirectional else (keys + rows) // 2,
            q_heads=heads,
            kv_heads=max(model.kv_heads // parallel.tp, 1),
            mask="none" if self.config.bidirectional else "bottom_right",
            dtype=self.width,
        )
        if parallel.attention == "flash":
            yield RankOp(name=name, phase="forward", part="attention", model=made)
            yield RankOp(name=name, phase="dgrad", part="attention", model=made.backward())
            return
        yield from self.unfused(made, heads, rows, keys)

    def unfused(self, model: SDPA, heads: int, rows: int, keys: int) -> Iterator[RankOp]:
        """Two batched products over the whole square of scores, softmax and dropout on scores in memory.

        Per score forward: fp16 written and read by the softmax, written and read by the dropout with its mask, written
        and read by the product with V; backward mirrors it.
        """
        b = model.b * heads
        scores = GEMM(b=b, m=rows, n=keys, k=model.d_qk, dtype=self.width)
        values = GEMM(b=b, m=rows, n=model.d_v, k=keys, dtype=self.width)
        for name, made in (("attention.scores", scores), ("attention.values", values)):
            yield RankOp(name=name, phase="forward", part="attention", model=made, core=True)
            for gradient in made.backward():
                yield RankOp(name=name, phase="dgrad", part="attention", model=gradient)
        count = b * rows * keys
        for name, forward, backward in (("attention.softmax", (1, 1), (2, 1)), ("attention.dropout", (1, 1), (1, 1))):
            for phase, (reads, writes) in (("forward", forward), ("dgrad", backward)):
                made_pass = self.passes(count, reads, writes)
                yield RankOp(name=name, phase=phase, part="attention", model=made_pass, core=phase == "forward")  # type: ignore[arg-type]

    def norm(self, name: str, model: Normalization) -> Iterator[RankOp]:
        """Over this rank's rows; per-head norms over this rank's heads."""
        rows = model.shape[0]
        per_head = name.endswith(("q_norm", "k_norm"))
        share = self.parallel.tp if per_head or name == "mamba.gated_norm" else self.parallel.row_share
        rows = -(-rows // share)
        made = replace(model, shape=(rows, *model.shape[1:]), statistics=rows, dtype=self.width)
        back = made.backward()
        yield RankOp(name=name, phase="forward", part="memory", model=made)
        yield RankOp(name=name, phase="dgrad", part="memory", model=back)

    def activation(self, name: str, model: Elementwise) -> Iterator[RankOp]:
        rows, ffn = model.shape
        if name.startswith("experts.activation"):
            elements = self.expert_rows * (ffn // self.parallel.etp)
        else:
            elements = rows * self._part(ffn, name)
        gates = 1 + self.config.gated
        yield from self.stream(name, elements, reads=gates, writes=1, back_reads=gates + 1, back_writes=gates)

    def rope(self) -> Iterator[RankOp]:
        config, tp = self.config, self.parallel.tp
        latent = config.latent_attention
        kv_heads = max(config.kv_heads // tp, 1)
        per_token = config.q_heads // tp * config.d_qk + kv_heads * config.d_qk
        if latent is not None:
            per_token = (config.q_heads // tp + 1) * latent.d_rope
        rope = RoPE(elements=self.tokens * per_token, rotated=self.tokens * per_token, dtype=self.width)
        yield RankOp(name="attention.rope", phase="forward", part="memory", model=rope)
        yield RankOp(name="attention.rope", phase="dgrad", part="memory", model=rope.backward())

    def residual(self) -> Iterator[RankOp]:
        """x + f(x): two reads, one write; backward adds the two gradients."""
        yield from self.stream(
            "residual", self.rows * self.config.hidden, reads=2, writes=1, back_reads=2, back_writes=1
        )

    def stream(
        self, name: str, elements: int, *, reads: int, writes: int, back_reads: int, back_writes: int
    ) -> Iterator[RankOp]:
        forward, backward = self.passes(elements, reads, writes), self.passes(elements, back_reads, back_writes)
        yield RankOp(name=name, phase="forward", part="memory", model=forward)
        yield RankOp(name=name, phase="dgrad", part="memory", model=backward)

    def passes(self, elements: int, reads: int, writes: int) -> Elementwise:
        tensor = Operand(shape=(elements,), dtype=self.width)
        return Elementwise(shape=(elements,), inputs=(tensor,) * reads, outputs=(tensor,) * writes)

    def narrowing(self, name: str, inputs: int, outputs: int) -> Iterator[RankOp]:
        """Inputs before the forward, the output's gradient before both: read wide, written narrow, twice.

        Twice because the weights' gradient sums over tokens, and reads the transposed copy. A scale of the whole tensor
        is found in a pass before, which reads it too: FP8 with current scaling and NVFP4, not MXFP8.
        """
        dtype = self.parallel.computed_in
        reads = 1 if self.parallel.precision == "mxfp8" else 2
        phases: tuple[tuple[Pass, int], ...] = (("forward", inputs), ("dgrad", outputs))
        for phase, elements in phases:
            model = Movement(read=((elements, self.width),) * reads, written=((2 * elements, dtype),))
            yield RankOp(name=f"{name}.quantize", phase=phase, part="quantize", model=model)

    def gather(self, name: str, dtype: DType) -> Iterator[RankOp]:
        """Before column-parallel products: an all-gather with sequence parallelism, repeated for the weights' gradient;
        an all-reduce of the gradient without.
        """
        if self.parallel.tp == 1:
            return
        if self.parallel.sequence_parallel:
            yield self.collective(name, "forward", "all_gather", dtype)
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
        whole, tp = self.tokens * self.config.hidden, self.parallel.tp
        model = Collective(
            kind=kind,
            elements_in=whole // tp if kind == "all_gather" else whole,
            elements_out=whole // tp if kind == "reduce_scatter" else whole,
            ranks=tp,
            stride=self.parallel.tp_group.stride,
            dtype=dtype or self.width,
        )
        return RankOp(name=f"{name}.{kind}", phase=phase, part="tp", model=model)

    def context(self) -> Iterator[RankOp]:
        """Keys and values of all context ranks, gathered; their gradients scattered back."""
        config, parallel = self.config, self.parallel
        heads = max(config.kv_heads // parallel.tp, 1)
        elements = parallel.micro_batch * self.sequence * heads * (config.d_qk + config.d_v)
        own = elements // parallel.cp
        group = parallel.cp_group
        phases: tuple[tuple[Pass, str], ...] = (
            ("forward", "all_gather"),
            ("dgrad", "all_gather"),
            ("dgrad", "reduce_scatter"),
        )
        for phase, kind in phases:
            model = Collective(
                kind=kind,
                elements_in=own if kind == "all_gather" else elements,
                elements_out=elements if kind == "all_gather" else own,
                ranks=group.ranks,
                stride=group.stride,
                dtype=self.width,
            )
            yield RankOp(name=f"attention.{kind}", phase=phase, part="cp", model=model)

    def exchange(self, phase: str) -> Iterator[RankOp]:
        """Permutation, and the all-to-all when experts are on several ranks; the gradient goes the other way.

        By ``dispatcher`` a copy travels per chosen expert, or one to each distinct rank that holds some of them (and
        over the network one per node, where DeepEP's kernels run); the busiest rank's copies count.
        """
        experts, parallel = self.config.experts, self.parallel
        if experts is None:
            return
        hidden = experts.latent or self.config.hidden
        # Once where tokens are copied, and once where what has arrived is sorted by expert; or back.
        one, copies = self.rows * hidden, self.rows * hidden * experts.top_k
        permute = Movement(
            read=((one + copies // 2, self.width),), written=((copies + copies // 2, self.width),), permutes=True
        )
        passes: tuple[Pass, ...] = ("forward", "dgrad")
        for each in passes:
            yield RankOp(name=f"experts.{phase}.permute", phase=each, part="routing", model=permute)
            if parallel.ep == 1:
                continue
            group = parallel.ep_group
            rows = EPComm(tokens=self.rows, hidden=hidden, dtype=self.width, ranks=group.ranks, stride=group.stride)
            traffic = self.traffic(experts)
            if parallel.dispatcher == "alltoall":
                tokens = round(self.rows * experts.top_k * traffic.rows_imbalance)
                sent = replace(rows, tokens=tokens, remote_share=traffic.remote_share)
            elif parallel.skew != UNIFORM:
                tokens = round(self.rows * traffic.rank_copies * traffic.copies_imbalance)
                sent = replace(rows, tokens=tokens, remote_share=traffic.remote_share)
            else:
                # A router's exchange counts the rank's own tokens: a share above 1 is copies.
                share = traffic.rank_copies * traffic.remote_share
                way = phase if each == "forward" else ("combine" if phase == "dispatch" else "dispatch")
                sent = replace(rows, remote_share=share, phase=way, experts=experts.count, topk=experts.top_k)
            yield RankOp(name=f"experts.{phase}", phase=each, part="ep", model=sent)

    def pieces(self, phase: str) -> Iterator[RankOp]:
        """Ranks that share an expert need the rows of all of them, and each gives back its own part of the sum."""
        experts, ranks = self.config.experts, self.parallel.etp
        if experts is None or ranks == 1:
            return
        whole = self.expert_rows * (experts.latent or self.config.hidden)
        kinds = ("all_gather", "reduce_scatter") if phase == "dispatch" else ("reduce_scatter", "all_gather")
        passes: tuple[Pass, ...] = ("forward", "dgrad")
        for each, kind in zip(passes, kinds, strict=True):
            model = Collective(
                kind=kind,
                elements_in=whole // ranks if kind == "all_gather" else whole,
                elements_out=whole // ranks if kind == "reduce_scatter" else whole,
                ranks=ranks,
                dtype=self.width,
            )
            yield RankOp(name=f"experts.{phase}.{kind}", phase=each, part="ep", model=model)

    def embedding(self) -> RankLayer:
        config, parallel = self.config, self.parallel
        if not config.vocab:
            return RankLayer(letter="embedding", ops=(), dense=config.positions * config.hidden)
        elements = self.tokens * config.hidden
        forward = Movement(read=((elements, self.width),), written=((elements, self.width),))
        backward = Movement(read=((2 * elements, self.width),), written=((elements, self.width),), added=elements)
        ops = [
            RankOp(name="embedding", phase="forward", part="vocabulary", model=forward),
            RankOp(name="embedding", phase="wgrad", part="vocabulary", model=backward),
        ]
        if parallel.tp > 1:
            kind = "reduce_scatter" if parallel.sequence_parallel else "all_reduce"
            ops.append(self.collective("embedding", "forward", kind))
            if parallel.sequence_parallel:
                ops.append(self.collective("embedding", "dgrad", "all_gather"))
        weights = config.vocab * config.hidden // self.weight_share + config.positions * config.hidden
        return RankLayer(letter="embedding", ops=tuple(ops), dense=weights)

    def head(self) -> RankLayer:
        config, parallel = self.config, self.parallel
        alone = replace(config, blocks="*" if config.attention_blocks else config.blocks[0])
        ops = forward_ops(alone, batch=parallel.micro_batch, sequence=_own(self.sequence, parallel))
        made = [each for op in ops if op.name == "final_norm" for each in self.op(op)]
        made += [*self.gather("logits", self.width), *self.logits("logits")] if config.vocab else []
        vocab = config.vocab * config.hidden // self.weight_share
        # A tied table is stored again where the last stage is not the first.
        dense = config.hidden + (0 if config.tied_embeddings and parallel.pp == 1 else vocab)
        expert = 0
        for op in further_token_ops(config, batch=parallel.micro_batch, sequence=_own(self.sequence, parallel)):
            if op.name in ("mtp.projection", "mtp.embedding_norm", "mtp.hidden_norm", "mtp.final_norm"):
                made += [each for _ in range(op.count) for each in self.op(op)]
                dense += op.count * op.weights
        for _ in range(config.mtp_layers):
            made += self.logits("mtp.logits")
            for letter in config.mtp_blocks:
                extra = block(config, parallel, letter, self.sequence)
                made += extra.ops
                dense, expert = dense + extra.dense, expert + extra.expert
        return RankLayer(letter="head", ops=tuple(made), dense=dense, expert=expert)

    def logits(self, name: str) -> Iterator[RankOp]:
        """Logits in 16 bits, the loss on this rank's vocabulary in fp32, and three sums over tensor ranks."""
        parallel = self.parallel
        part = -(-self.config.vocab // parallel.tp)
        made = GEMM(m=self.tokens, n=part, k=self.config.hidden, dtype=self.width)
        dgrad, wgrad = made.backward()
        wgrad = replace(wgrad, dtype_out=parallel.gradient_width)
        yield RankOp(name=name, phase="forward", part="vocabulary", model=made)
        yield RankOp(name=name, phase="dgrad", part="vocabulary", model=dgrad)
        yield RankOp(name=name, phase="wgrad", part="vocabulary", model=wgrad)
        loss = CrossEntropy(rows=self.tokens, vocabulary=part, dtype=DType.FP32)
        back = CrossEntropyBackward(rows=self.tokens, vocabulary=part, dtype=DType.FP32)
        cast = Movement(read=((self.tokens * part, self.width),), written=((self.tokens * part, DType.FP32),))
        yield RankOp(name=f"{name}.to_fp32", phase="forward", part="vocabulary", model=cast)
        yield RankOp(name=f"{name}.cross_entropy", phase="forward", part="vocabulary", model=loss)
        yield RankOp(name=f"{name}.cross_entropy", phase="dgrad", part="vocabulary", model=back)
        yield RankOp(name=f"{name}.to_16_bits", phase="dgrad", part="vocabulary", model=cast)
        if parallel.tp > 1:
            for which in ("maximum", "target", "sum"):
                total = Collective(
                    kind="all_reduce",
                    elements_in=self.tokens,
                    elements_out=self.tokens,
                    ranks=parallel.tp,
                    stride=parallel.tp_group.stride,
                    dtype=DType.FP32,
                )
                yield RankOp(name=f"{name}.{which}", phase="forward", part="vocabulary", model=total)

    def _divided(self, name: str) -> bool:
        return name in COLUMN | ROW or (name.startswith("mamba.") and name != "mamba.norm")

    def _part(self, whole: int, name: str) -> int:
        if whole % self.parallel.tp:
            raise UsageError(f"tp {self.parallel.tp} does not divide {name}: {whole}")
        return whole // self.parallel.tp

    def _check_experts(self) -> None:
        experts, parallel = self.config.experts, self.parallel
        if experts is not None and experts.count % parallel.ep:
            raise UsageError(f"ep {parallel.ep} does not divide {experts.count} experts")
        if experts is not None and experts.ffn % parallel.etp:
            raise UsageError(f"etp {parallel.etp} does not divide the experts' width {experts.ffn}")
