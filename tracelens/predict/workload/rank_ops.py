"""What one rank of a training step does: in a block, at the model's ends, and in the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracelens.perf_models import GEMM, Collective, CrossEntropy, CrossEntropyBackward, Movement, MultiTensor
from tracelens.predict.workload.batch_ops import further_token_ops
from tracelens.predict.workload.blocks import block_ops, block_types, last_residual_ops
from tracelens.predict.workload.blocks.base import BlockType
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import ModelShape
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.ranks import COLUMNS, Part, Pass, RankOp, TrainingRank, adapters, cast, frozen, passes
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

__all__ = [
    "COLUMNS", "ENDS", "Part", "Pass", "RankLayer", "RankOp", "block", "embedding", "ends", "head", "is_repeated",
    "optimizer", "weights",
]  # fmt: skip
#: The model's ends, as ``RankLayer.letter`` has them.
ENDS = ("embedding", "head")
#: Modules that are one operation.
ROPE = "attention.rope"
_SINGLE = {"attention_out": "attention.out", "mlp_act": "mlp.activation", "mlp_down": "mlp.down", "rope": ROPE}
#: What copies around PyTorch's collectives are called, and torchao's casts of weights.
COPIED, ALONG_SEQUENCE, CAST = "fsdp.copy", "sequence.copy", "weights.quantize"


class RankLayer(Record, frozen=True, kw_only=True):
    """One block, or an end of the model, on one rank: operations of one micro-batch, and the weights held.

    ``dense`` and ``expert`` count trained parameters before any division by data parallelism, ``frozen`` those that
    adapters leave as they are. ``letter`` as in ``ModelConfig.blocks``, else the end's name.
    """

    letter: str
    ops: tuple[RankOp, ...]
    dense: int
    expert: int = 0
    frozen: int = 0

    @property
    def waits_for_host(self) -> bool:
        """Whether a pass over it reads token counts back."""
        return self.letter not in ENDS and block_types()[self.letter].waits_for_host


def block(config: ModelShape, parallel: ParallelConfig, letter: str, sequence: int) -> RankLayer:
    """A residual block of ``letter``. UsageError where tp or ep do not divide what they divide."""
    kind = block_types()[letter]
    if not _has_experts(config, kind, letter):
        parallel = _without_experts(parallel)
    if not kind.mixes_tokens:
        parallel, sequence = _of_tokens(parallel, sequence)
    return _block(config, parallel, kind, letter, sequence)


@functools.lru_cache(maxsize=64)
def _has_experts(config: ModelShape, kind: BlockType, letter: str) -> bool:
    made = Batch(shape=config.of(letter), batch=1, sequence=1)
    return any(op.split == "experts" for op in kind.ops(made))


@functools.lru_cache(maxsize=256)
def _without_experts(parallel: ParallelConfig) -> ParallelConfig:
    """What all but experts depends on: a search asks for the same blocks with many divisions of the experts."""
    return replace(parallel, dp=1, ep=1, etp=1, shard=None)


@functools.lru_cache(maxsize=4096)
def _of_tokens(parallel: ParallelConfig, sequence: int) -> tuple[ParallelConfig, int]:
    """What blocks depend on that work on each token alone: how many a rank has, however they lie in sequences."""
    is_grouped = parallel.summa_blocks is not None or parallel.placement is not None
    if is_grouped or sequence % parallel.cp or parallel.cp * parallel.dp % parallel.ep:
        return parallel, sequence
    tokens = parallel.micro_batch * sequence // parallel.cp
    return replace(parallel, cp=1, dp=parallel.ep * parallel.etp, shard=None, micro_batch=1), tokens


# A search of DeepSeek-V3 on 2,048 devices has 3,000 of these, of 8,000 splits.
@functools.lru_cache(maxsize=4096)
def _block(config: ModelShape, parallel: ParallelConfig, kind: BlockType, letter: str, sequence: int) -> RankLayer:
    rank = TrainingRank(shape=config.of(letter), parallel=parallel, sequence=sequence)
    ops = _block_ops(rank, letter)
    made = [*kind.on_rank(rank, ops)]
    if not config.streams:
        # x + f(x): two reads, one write; backward adds the two gradients.
        made += rank.stream("residual", rank.rows * config.hidden, reads=(2, 2), writes=(1, 1))
    if parallel.summa_blocks is not None:
        made = [*rank.on_grid(made)]
    dense = sum(rank.weights(op) for op in ops if op.split != "experts")
    expert = sum(rank.weights(op) for op in ops if op.split == "experts")
    if parallel.lora:
        added, trained = adapters(rank, ops)
        kept = frozen(made, is_adapted=trained > 0)
        return RankLayer(letter=letter, ops=(*kept, *added), dense=trained, frozen=dense + expert)
    return RankLayer(letter=letter, ops=tuple(made), dense=dense, expert=expert)


def separate(layer: RankLayer, shape: ModelShape, parallel: ParallelConfig) -> RankLayer:
    """``layer`` with products of their own for queries, keys and values, and for a gate, which other frameworks put
    into one: each reads the input, and what they say of its gradient is added up.
    """
    made: list[RankOp] = []
    for op in layer.ops:
        parts = _parts(op, shape, parallel)
        if len(parts) < 2 or not isinstance(op.model, GEMM):
            made.append(op)
            continue
        whole, is_k = op.model, op.phase == "dgrad"
        apart = (replace(whole, k=width) if is_k else replace(whole, n=width) for width in parts)
        made += [replace(op, model=model) for model in apart]
        if is_k:
            elements = whole.m * (whole.n or 1)
            added = Movement(read=((len(parts) * elements, parallel.width),), written=((elements, parallel.width),))
            made.append(RankOp(name=f"{op.name}.sum", phase="dgrad", part="memory", model=added))
    return replace(layer, ops=tuple(made))


def _parts(op: RankOp, shape: ModelShape, parallel: ParallelConfig) -> tuple[int, ...]:
    """What a product's columns belong to; nothing where it is one thing."""
    if op.part != "gemm":
        return ()
    if op.name == "attention.qkv":
        keys = 1 if shape.key_is_value else 2
        width = max(shape.kv_heads // parallel.tp, 1)
        return (shape.q_heads // parallel.tp * shape.d_qk, *(width * shape.d_qk, width * shape.d_v)[:keys])
    if op.name.endswith(".up") and shape.gated and isinstance(op.model, GEMM):
        width = (op.model.k if op.phase == "dgrad" else op.model.n) or 0
        return (width // 2, width // 2)
    return ()


def copied(layer: RankLayer, parallel: ParallelConfig, fsdp: float) -> RankLayer:
    """``layer`` with what PyTorch does around its transfers. FSDP 1 joins the gradients of the views of its flat
    parameter, and divides them in place (torch.distributed.fsdp ``_flat_param.py``: torch.split in _get_unflat_views;
    ``_runtime_utils.py``: _div_if_needed before reduce_scatter_tensor). FSDP 2 copies gathered weights out of the
    buffer of the gather into parameters before either pass, gradients into the buffer of the scatter, in the type that
    they are summed in (torch.distributed.fsdp ``_fsdp_collectives.py``: split_with_sizes_copy, chunk_cat). Before
    either pass weights that are no experts' are cast to the narrow type of their products, since neither is kept.

    DTensor gathers and scatters among tensor ranks along the sequence, which with several sequences is not how they
    lie: a copy of the whole after a gather, before a scatter (torch.distributed ``_functional_collectives.py``:
    all_gather_tensor, reduce_scatter_tensor).
    """
    trained, width = layer.dense + layer.expert, parallel.width
    if fsdp == 1:
        twice = ((2 * trained, width),)
        joined = RankOp(name=COPIED, phase="wgrad", part="memory", model=Movement(read=twice, written=twice))
        return replace(layer, ops=(joined, *layer.ops)) if parallel.zero > 1 and trained else layer
    made = list(_along_sequence(layer, parallel)) if parallel.micro_batch > 1 else []
    if parallel.zero < 3:
        return replace(layer, ops=(*made, *layer.ops))
    held = trained + layer.frozen
    out = Movement(read=((held, width),), written=((held, width),))
    back = Movement(read=((trained, width),), written=((trained, parallel.gradient_width),))
    before: tuple[Pass, ...] = ("forward", "dgrad")
    made += [RankOp(name=COPIED, phase=phase, part="memory", model=out) for phase in before]
    made += [RankOp(name=COPIED, phase="wgrad", part="memory", model=back)] if trained else []
    if parallel.computed_in.width_bytes < width.width_bytes and layer.letter not in ENDS:
        for phase, ways in zip(before, ((1, 0), (0, 1)), strict=True):
            model = cast(layer.dense, parallel, by_row=ways[0], by_column=ways[1])
            made.append(RankOp(name=CAST, phase=phase, part="quantize", model=model))
    return replace(layer, ops=(*made, *layer.ops))


def _along_sequence(layer: RankLayer, parallel: ParallelConfig) -> Iterator[RankOp]:
    for op in layer.ops:
        if op.part == "tp" and isinstance(op.model, Collective) and op.model.kind in ("all_gather", "reduce_scatter"):
            whole = ((max(op.model.elements_in, op.model.elements_out), op.model.dtype),)
            yield RankOp(name=ALONG_SEQUENCE, phase=op.phase, part="memory", model=Movement(read=whole, written=whole))


def weights(config: ModelShape, parallel: ParallelConfig, letter: str, sequence: int) -> dict[str, int]:
    """Parameters that this rank holds of each operation of a block, by the operation's name."""
    rank = TrainingRank(shape=config, parallel=parallel, sequence=sequence)
    return {op.name: rank.weights(op) for op in _block_ops(rank, letter)}


def _block_ops(rank: TrainingRank, letter: str) -> list[LayerOp]:
    batch = Batch(shape=rank.shape, batch=rank.parallel.micro_batch, sequence=rank.own_sequence)
    return list(block_ops(batch, letter))


def is_repeated(op: RankOp, letter: str, parallel: ParallelConfig) -> bool:
    """Whether the backward runs this operation of a block of ``letter`` again, by ``parallel.recompute``."""
    if op.phase != "forward" or parallel.recompute == "none" or letter in ENDS or op.name == COPIED:
        return False
    return parallel.recompute == "full" or any(_repeats(each, op, letter) for each in parallel.recompute_modules)


def _repeats(module: str, op: RankOp, letter: str) -> bool:
    """Whether ``op`` belongs to one of Megatron-LM's modules: ``moe`` is the whole block with its exchanges, ``mlp``
    the dense one.
    """
    name = op.name.removesuffix(".quantize")
    if module == "core_attn":
        return op.core
    if module == "layernorm":
        return name.endswith(".norm") and op.part == "memory"
    if module == "moe_act":
        return name == "experts.activation"
    if module in _SINGLE:
        return name == _SINGLE[module]
    if module == "shared_experts":
        return name.startswith(("experts.shared.", "shared."))
    if module == "mla_up_proj":
        return name in ("attention.q_up", "attention.kv_up", "attention.rope")
    return block_types()[letter].recompute_module == module


def ends(config: ModelShape, parallel: ParallelConfig, sequence: int) -> dict[str, list[RankLayer]]:
    """Both ends of the model, by name."""
    of_tokens = _of_tokens(_without_experts(parallel), sequence)
    return {"embedding": [embedding(config, *of_tokens)], "head": [head(config, parallel, sequence)]}


@functools.lru_cache(maxsize=256)
def embedding(config: ModelShape, parallel: ParallelConfig, sequence: int) -> RankLayer:
    """The lookup, its sum over tensor ranks, and the gradient's scatter."""
    if not config.vocab:
        return RankLayer(letter="embedding", ops=(), dense=config.positions * config.hidden)
    rank = TrainingRank(shape=config, parallel=parallel, sequence=sequence)
    elements, width = rank.tokens * config.hidden, rank.width
    forward = Movement(read=((elements, width),), written=((elements, width),))
    backward = Movement(read=((2 * elements, width),), written=((elements, width),), added=elements)
    ops = [
        RankOp(name="embedding", phase="forward", part="vocabulary", model=forward),
        RankOp(name="embedding", phase="wgrad", part="vocabulary", model=backward),
    ]
    ops += rank.scatter("embedding", width)
    held = config.vocab * config.hidden // rank.weight_share + config.positions * config.hidden
    return _end("embedding", ops, held, 0, parallel)


def head(config: ModelShape, parallel: ParallelConfig, sequence: int) -> RankLayer:
    """Final norm, logits, vocabulary-parallel cross entropy; and what predicting further tokens adds."""
    own = _head(config, *_of_tokens(_without_experts(parallel), sequence))
    made, dense, expert = [*own.ops], own.dense, 0
    for _ in range(config.mtp_layers):
        made += own.further_logits
        for letter in config.mtp_blocks:
            extra = block(config, parallel, letter, sequence)
            made += extra.ops
            dense, expert = dense + extra.dense + extra.frozen, expert + extra.expert
    return _end("head", made, dense, expert, parallel)


class _Head(NamedTuple):
    """The head but for the blocks that predict further tokens; ``further_logits`` are those of each such token."""

    ops: tuple[RankOp, ...]
    further_logits: tuple[RankOp, ...]
    dense: int


@functools.lru_cache(maxsize=256)
def _head(config: ModelShape, parallel: ParallelConfig, sequence: int) -> _Head:
    rank = TrainingRank(shape=config, parallel=parallel, sequence=sequence)
    batch = Batch(shape=config, batch=parallel.micro_batch, sequence=rank.own_sequence)
    last = [*last_residual_ops(batch), batch.norm("final_norm")]
    made = [each for op in last for each in rank.op(op)]
    made += [*rank.gather("logits", rank.width), *_logits(rank, "logits")] if config.vocab else []
    vocab = config.vocab * config.hidden // rank.weight_share
    # A tied table is stored again where the last stage is not the first.
    dense = sum(op.weights for op in last) + (0 if config.tied_embeddings and parallel.pp == 1 else vocab)
    for op in further_token_ops(config, batch=batch.batch, sequence=batch.sequence):
        if op.name in ("mtp.projection", "mtp.embedding_norm", "mtp.hidden_norm", "mtp.final_norm"):
            made += [each for _ in range(op.count) for each in rank.op(op)]
            dense += op.count * op.weights
    further = tuple(_logits(rank, "mtp.logits")) if config.mtp_layers else ()
    return _Head(tuple(made), further, dense)


def _end(name: str, ops: Sequence[RankOp], dense: int, expert: int, parallel: ParallelConfig) -> RankLayer:
    """An end of the model, which adapters leave as it is."""
    if parallel.lora:
        return RankLayer(letter=name, ops=tuple(frozen(ops)), dense=0, frozen=dense + expert)
    return RankLayer(letter=name, ops=tuple(ops), dense=dense, expert=expert)


def _logits(rank: TrainingRank, name: str) -> Iterator[RankOp]:
    """Logits in 16 bits, the loss on this rank's vocabulary in fp32, and three sums over tensor ranks."""
    parallel, width = rank.parallel, rank.width
    part = -(-rank.shape.vocab // parallel.tp)
    made = GEMM(m=rank.tokens, n=part, k=rank.shape.hidden, dtype=width)
    dgrad, wgrad = made.backward()
    wgrad = replace(wgrad, dtype_out=parallel.gradient_width)
    yield from passes(name, "vocabulary", made, dgrad, wgrad)
    loss = CrossEntropy(rows=rank.tokens, vocabulary=part, dtype=DType.FP32)
    back = CrossEntropyBackward(rows=rank.tokens, vocabulary=part, dtype=DType.FP32)
    cast = Movement(read=((rank.tokens * part, width),), written=((rank.tokens * part, DType.FP32),))
    yield RankOp(name=f"{name}.to_fp32", phase="forward", part="vocabulary", model=cast)
    yield RankOp(name=f"{name}.cross_entropy", phase="forward", part="vocabulary", model=loss)
    yield RankOp(name=f"{name}.cross_entropy", phase="dgrad", part="vocabulary", model=back)
    yield RankOp(name=f"{name}.to_16_bits", phase="dgrad", part="vocabulary", model=cast)
    if parallel.tp > 1:
        total = rank.collective_of("all_reduce", rank.tokens, parallel.tp_group, DType.FP32)
        for which in ("maximum", "target", "sum"):
            yield RankOp(name=f"{name}.{which}", phase="forward", part="vocabulary", model=total)


def optimizer(parameters: float, parallel: ParallelConfig) -> tuple[RankOp, ...]:
    """Adam over the rank's share of ``parameters``, and the gradient's norm over the whole job."""
    elements = int(parameters)
    # Read: gradient, both moments, master weight, 4 bytes each; written: moments, master weight, and half an fp32
    # element per parameter, the 16-bit weight: 30 bytes in all, of which narrow moments spare half of theirs.
    narrow = parallel.moments != "fp32"
    step = MultiTensor(
        tensors=1, elements=elements, flops_per_element=13, reads=4 - narrow, writes=3 - narrow, results=elements // 2,
        dtype=DType.FP32,
    )  # fmt: skip
    norm = MultiTensor(tensors=1, elements=elements, flops_per_element=2, reads=1, writes=0, dtype=DType.FP32)
    total = Collective(kind="all_reduce", elements_in=1, elements_out=1, ranks=parallel.ranks, dtype=DType.FP32)
    return (
        RankOp(name="gradient_norm", phase="wgrad", part="memory", model=norm),
        RankOp(name="gradient_norm.all_reduce", phase="wgrad", part="memory", model=total),
        RankOp(name="adam", phase="wgrad", part="memory", model=step),
    )
