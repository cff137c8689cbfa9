"""What a rank keeps in device memory during a step: states, activations of micro-batches in flight, logits.

The tensors that the backward reads, one by one; with GELU, dropout and unfused attention they add up to the formulas of
Korthikanti et al., 2022 (arXiv 2205.05198). Everything is in bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from tracelens.perf_models import GEMM, GroupedGEMMVariableK
from tracelens.predict.workload.blocks import Kept, block_types
from tracelens.predict.workload.model_shape import ModelShape
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.rank_ops import RankLayer
from tracelens.types.records import Record

Bytes = TypeVar("Bytes")
#: 16-bit weight, fp32 gradient, and Adam's fp32 master weight and two moments, per parameter.
WEIGHT_BYTES, GRADIENT_BYTES, OPTIMIZER_BYTES = 2, 4, 12
#: Context, libraries, communication buffers, workspaces, what the allocator cannot use: "together typically 1-4 GB" of
#: measured steps; the middle.
OUTSIDE_BYTES = 2.5e9
#: FSDP holds the layer that computes, the one that is prefetched, and as many 16-bit gradients until it scatters them.
GATHERED_LAYERS = 3


class StageMemory(Record, frozen=True, kw_only=True):
    """Peak of one pipeline rank in bytes, by what it is spent on. ``capacity`` None: the device's is not known."""

    stage: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    outside: float
    capacity: float | None

    @property
    def peak(self) -> float:
        return self.weights + self.gradients + self.optimizer + self.activations + self.logits + self.outside

    @property
    def fits(self) -> bool:
        """True also where the capacity is not known."""
        return self.capacity is None or self.peak <= self.capacity


class States(Record, Generic[Bytes], frozen=True, kw_only=True):
    """Weights, gradients and optimizer state of one rank, in bytes."""

    weights: Bytes
    gradients: Bytes
    optimizer: Bytes


def states(dense: float, expert: float, parallel: ParallelConfig) -> States[float]:
    """Bytes of ``dense`` and ``expert`` parameters on a rank, divided as ``parallel.zero`` says, the experts'
    among their own ranks. 18 bytes per parameter in all where nothing is divided, 2 less with gradients in bf16, 4 with
    moments in bf16.
    """
    held = divided_states(
        dense,
        expert,
        zero=parallel.zero,
        shards=parallel.shard_group.ranks,
        expert_shards=parallel.expert_shard_group.ranks,
        gradient_bytes=parallel.gradient_width.width_bytes,
    )
    return replace(held, optimizer=held.optimizer * parallel.optimizer_bytes / OPTIMIZER_BYTES)


def divided_states(
    dense: Any, expert: Any, *, zero: Any, shards: Any, expert_shards: Any, gradient_bytes: float = GRADIENT_BYTES
) -> States[Any]:
    """``states`` of numbers or of arrays: dense parameters over ``shards`` ranks, experts' over ``expert_shards``."""

    def divided(level: int) -> Any:
        is_divided = zero >= level
        return dense / (1 + is_divided * (shards - 1)) + expert / (1 + is_divided * (expert_shards - 1))

    return States(
        weights=WEIGHT_BYTES * divided(3), gradients=gradient_bytes * divided(2), optimizer=OPTIMIZER_BYTES * divided(1)
    )


def activation_bytes(config: ModelShape, parallel: ParallelConfig, letter: str, sequence: int) -> float:
    """What the backward of one block keeps of one micro-batch; under full recomputation the layer's input alone."""
    kept = Kept(shape=config.of(letter), parallel=parallel, sequence=sequence)
    if parallel.recompute == "full":
        # Feed-forward blocks belong to the attention block before them.
        return 2.0 * kept.rows * config.hidden if block_types()[letter].mixes_tokens else 0.0
    return _block_bytes(kept, letter)


def working_bytes(config: ModelShape, parallel: ParallelConfig, layer: Sequence[str], sequence: int) -> float:
    """What recomputing one layer, its blocks ``layer``, needs besides the checkpoints; 0 without full recomputation."""
    if parallel.recompute != "full":
        return 0.0
    return sum(
        _block_bytes(Kept(shape=config.of(letter), parallel=parallel, sequence=sequence), letter) for letter in layer
    )


def _block_bytes(kept: Kept, letter: str) -> float:
    shape = kept.shape
    kind, hidden_bytes = block_types()[letter], kept.rows * shape.hidden * max(shape.streams, 1)
    if kept.repeats(kind.recompute_module):
        return hidden_bytes * (2.0 + shape.dropout)
    # The norm's input and its output, and the mask of the dropout after the block.
    around = hidden_bytes * (2 + kept.stored * (not kept.repeats("layernorm")) + shape.dropout)
    return around + kind.kept_bytes(kept)


def wgrad_bytes(layer: RankLayer, parallel: ParallelConfig) -> float:
    """What the weights' gradients of one micro-batch read, and a schedule that puts them off keeps: every product's
    input, as it is stored, and its output's gradient, both in the product's precision.

    32 s b h of a GPT layer, "M_W" of Qi et al., 2023 (arXiv 2401.10241, section 2).
    """
    nbytes = 0.0
    for op in layer.ops:
        if op.phase != "wgrad" or op.part not in ("gemm", "experts"):
            continue
        model, elements = op.model, 0.0
        if isinstance(model, GroupedGEMMVariableK):
            elements = model.m * (model.n + model.k)
        elif isinstance(model, GEMM):
            # Of k tokens, m of the input and n of the output's gradient
            stored = parallel.row_share if op.split == "column" else 1
            elements = model.b * model.k * (model.m / stored + model.n)
        nbytes += elements * min(parallel.width.width_bytes, getattr(model, "dtype", parallel.width).width_bytes)
    return nbytes


def logits_bytes(config: ModelShape, parallel: ParallelConfig, sequence: int) -> float:
    """Of a rank of the last stage: the softmax in fp32, in place of the logits, and their gradient in 16 bits
    (Megatron's vocab_parallel_cross_entropy); with ``fused_loss`` both in 16 bits; with ``eager_loss`` logits in 16
    bits and in fp32 beside their log-softmax (torch's cross_entropy of ``logits.float()``).
    """
    width = 4.0 if parallel.fused_loss else 10.0 if parallel.eager_loss else 6.0
    return width * parallel.micro_batch * sequence * config.vocab / (parallel.tp * parallel.cp)


def stage_memory(
    *,
    stage: int,
    layers: Sequence[RankLayer],
    parallel: ParallelConfig,
    kept_bytes: float,
    logits: float,
    capacity: float | None,
) -> StageMemory:
    """Peak of a pipeline rank that holds ``layers`` and keeps ``kept_bytes`` of activations at once."""
    held = states(sum(layer.dense for layer in layers), sum(layer.expert for layer in layers), parallel)
    gathered = 0.0
    if parallel.zero == 3:
        largest = max((layer.dense + layer.expert + layer.frozen for layer in layers), default=0)
        # Frozen layers have hardly any gradients
        gathered = float((GATHERED_LAYERS - (parallel.lora > 0)) * WEIGHT_BYTES * largest)
    # Frozen weights need no more digits than their products read
    frozen_bytes = min(float(WEIGHT_BYTES), parallel.computed_in.width_bytes)
    kept_as_they_are = frozen_bytes * sum(layer.frozen for layer in layers)
    if parallel.zero == 3:
        kept_as_they_are /= parallel.shard_group.ranks
    return StageMemory(
        stage=stage,
        weights=held.weights + kept_as_they_are + gathered,
        gradients=held.gradients,
        optimizer=held.optimizer,
        activations=kept_bytes,
        logits=logits,
        outside=OUTSIDE_BYTES,
        capacity=capacity,
    )
