"""Blocks that work on each token alone: a dense feed-forward, a mixture of experts, and a single product."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tracelens.errors import UsageError
from tracelens.perf_models import GEMM, Elementwise, EPComm, GroupedGEMM, GroupedGEMMVariableK, Movement
from tracelens.predict.network.topology import Group
from tracelens.predict.workload.blocks.base import BlockType, Kept, Message, SentTokens, needed
from tracelens.predict.workload.expert_placement import ExpertTraffic, expert_traffic
from tracelens.predict.workload.layer_ops import Batch, LayerOp
from tracelens.predict.workload.model_shape import Experts, ModelShape
from tracelens.predict.workload.parallel_config import ParallelConfig
from tracelens.predict.workload.ranks import InferenceRank, Pass, RankOp, TrainingRank, passes
from tracelens.predict.workload.token_routing import UNIFORM


class FeedForward(BlockType, name="mlp", divides_on_grid=True, recompute_module="mlp", reads=("ffn",)):
    """Up projection, with a gate's beside it where the model has one, activation, down projection."""

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        yield batch.norm("mlp.norm")
        yield from batch.feed_forward("mlp", batch.shape.ffn or 0, bias=batch.shape.mlp_bias)

    def kept_bytes(self, kept: Kept) -> float:
        per_channel = kept.activation_input * (1 + kept.shape.gated) + kept.stored * (not kept.repeats("mlp_act"))
        return kept.tokens * (kept.shape.ffn or 0) * per_channel / kept.parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return (shape.ffn or 0,)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        return {"ffn": None if shape.ffn is None else shape.ffn // tp}


MLP = FeedForward(letter="-")
_BOTH: tuple[Pass, ...] = ("forward", "dgrad")


class MixtureOfExperts(BlockType, name="moe", waits_for_host=True, recompute_module="moe", reads=("experts",)):
    """Experts are grouped GEMMs over the tokens that were sent to them."""

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        shape, experts = batch.shape, _of(batch.shape)
        width = experts.latent or shape.hidden
        rows = batch.tokens * experts.top_k
        yield batch.norm("experts.norm")
        yield batch.linear("experts.router", experts.count, shape.hidden, bias=experts.bias)
        if experts.latent is not None:
            yield batch.linear("experts.latent_down", experts.latent, shape.hidden)
        yield _grouped(batch, "experts.up", n=experts.ffn * (1 + shape.gated), k=width)
        yield batch.activation("experts.activation", rows, experts.ffn, split="experts")
        yield _grouped(batch, "experts.down", n=width, k=experts.ffn)
        if experts.latent is not None:
            if experts.latent_norm:
                yield batch.norm("experts.latent_norm", experts.latent)
            yield batch.linear("experts.latent_up", shape.hidden, experts.latent)
        if experts.shared_ffn:
            yield from batch.feed_forward("experts.shared", experts.shared_ffn)
        if experts.shared_gate:
            yield batch.linear("experts.shared_gate", 1, shape.hidden)

    def on_rank(self, rank: TrainingRank, ops: Sequence[LayerOp]) -> Iterator[RankOp]:
        """Tokens arrive as the block before left them, so only shared experts gather and scatter."""
        experts, parallel = _of(rank.shape), rank.parallel
        if experts.count % parallel.ep:
            raise UsageError(f"ep {parallel.ep} does not divide {experts.count} experts")
        if experts.ffn % parallel.etp:
            raise UsageError(f"etp {parallel.etp} does not divide the experts' width {experts.ffn}")
        for op in ops:
            yield from self.op_on_rank(rank, op)
        if experts.shared_ffn:
            yield from rank.gather("shared.gather", rank.gathered)
            yield from rank.scatter("shared.scatter", rank.gathered)

    def op_on_rank(self, rank: TrainingRank, op: LayerOp) -> Iterator[RankOp]:
        if op.name == "experts.up":
            yield from _exchange(rank, "dispatch")
            yield from _shared_out(rank, "dispatch")
        if isinstance(op.model, GroupedGEMM):
            yield from _grouped_on_rank(rank, op.name, op.model)
        elif op.split == "experts" and isinstance(op.model, Elementwise):
            elements = _rows(rank) * (op.model.shape[1] // rank.parallel.etp)
            yield from rank.activation(op.name, elements)
        else:
            yield from rank.op(op)
        if op.name == "experts.down":
            yield from _shared_out(rank, "combine")
            yield from _exchange(rank, "combine")

    def kept_bytes(self, kept: Kept) -> float:
        shape, parallel, experts = kept.shape, kept.parallel, _of(kept.shape)
        width = experts.latent or shape.hidden
        copies = kept.rows * experts.top_k * _traffic(experts, parallel).rows_imbalance
        # Megatron's repeated activation multiplies by the router's weights, so no gradient reads what experts return.
        is_kept = not kept.repeats("moe_act")
        # Ranks that share an expert read the rows of all of them.
        around = width * (2 * is_kept + kept.stored * parallel.etp)
        per_channel = kept.activation_input * (1 + shape.gated)
        routed = copies * (around + experts.ffn * (per_channel + kept.stored * is_kept))
        per_shared = 0 if kept.repeats("shared_experts") else per_channel + kept.stored
        return routed + kept.tokens * experts.shared_ffn * per_shared / parallel.tp

    def parts(self, shape: ModelShape) -> tuple[int, ...]:
        return (_of(shape).shared_ffn,)

    def sharded(self, shape: ModelShape, *, tp: int, expert_shards: int) -> dict[str, Any]:
        experts = shape.experts
        if experts is None:
            return {}
        ffn, shared = -(-experts.ffn // expert_shards), -(-experts.shared_ffn // tp)
        return {"experts": replace(experts, ffn=ffn, shared_ffn=shared)}

    def messages(self, rank: InferenceRank, tokens: int) -> Iterator[Message]:
        """There and back between experts' devices, and the result gathered by tensor ranks, each of which sent a part.

        As any other block without expert parallelism, and where all devices have all tokens; or as ``rank.gathers``.
        """
        if rank.ep == 1 or rank.dp == 1:
            yield from super().messages(rank, tokens)
            return
        own, experts, traffic = rank.own(tokens), _of(rank.shape), rank.traffic
        hidden, sent = experts.latent or rank.shape.hidden, math.ceil(own * rank.imbalance / rank.tp)
        for word in rank.gathers:
            width = rank.sent_width if word == "all_gather" else rank.width
            yield Message(word, tokens * hidden * width, rank.tp * rank.dp)
        if rank.gathers:
            return
        for word, width in (("dispatch", rank.sent_width), ("combine", rank.width)):
            copied = sent * traffic.copies_imbalance
            routed = SentTokens(copied, hidden, experts.top_k, traffic.held * rank.ep, width)
            yield Message(word, copied * traffic.rank_copies * hidden * width, rank.ep, routed)
        if rank.tp > 1:
            yield Message("all_gather", own * rank.shape.hidden * rank.width, rank.tp)


def _of(shape: ModelShape) -> Experts:
    return needed(shape.experts, "experts")


def _traffic(experts: Experts, parallel: ParallelConfig) -> ExpertTraffic:
    """What the routing makes of an exchange among the expert-parallel ranks."""
    return expert_traffic(parallel.skew, experts=experts.count, topk=experts.top_k, ranks=parallel.ep)


def _rows(rank: TrainingRank) -> int:
    """Rows of the busiest rank's experts."""
    experts, parallel = _of(rank.shape), rank.parallel
    return round(rank.rows * parallel.etp * experts.top_k * _traffic(experts, parallel).rows_imbalance)


def _grouped(batch: Batch, name: str, *, n: int, k: int) -> LayerOp:
    experts = _of(batch.shape)
    one = n * (k + experts.bias)
    model = GroupedGEMM(m=batch.tokens * experts.top_k, n=n, k=k, groups=experts.count, dtype=batch.dtype)
    met = experts.top_k * one
    return LayerOp(name=name, model=model, weights=experts.count * one, met_weights=met, split="experts")


def _grouped_on_rank(rank: TrainingRank, name: str, model: GroupedGEMM) -> Iterator[RankOp]:
    """Rows of the busiest rank's experts, the same for each of them; each expert's ffn divided by etp."""
    parallel = rank.parallel
    groups, rows = model.groups // parallel.ep, _rows(rank)
    n, k = (model.n // parallel.etp, model.k) if name.endswith("up") else (model.n, model.k // parallel.etp)
    dtype = parallel.computed_in
    if rank.is_narrow:
        yield from rank.narrowing(name, rows * k, rows * n)
    if not parallel.grouped:
        yield from _one_by_one(rank, name, GEMM(m=-(-rows // groups), n=n, k=k, dtype=dtype), groups)
        return
    made = GroupedGEMM(m=rows, n=n, k=k, groups=groups, dtype=dtype, dtype_out=rank.width)
    wgrad = GroupedGEMMVariableK(m=rows, n=n, k=k, groups=groups, dtype=dtype, dtype_out=parallel.gradient_width)
    yield from passes(name, "experts", made, replace(made, n=k, k=n), wgrad)


def _one_by_one(rank: TrainingRank, name: str, model: GEMM, experts: int) -> Iterator[RankOp]:
    """A product per expert and pass."""
    dgrad, wgrad = (replace(each, dtype=model.dtype, dtype_b=model.dtype) for each in model.backward())
    forward, dgrad = (replace(each, dtype_out=rank.width) for each in (model, dgrad))
    wgrad = replace(wgrad, dtype_out=rank.parallel.gradient_width)
    for _ in range(experts):
        yield from passes(name, "experts", forward, dgrad, wgrad)


def _exchange(rank: TrainingRank, phase: str) -> Iterator[RankOp]:
    """Permutation, and the all-to-all when experts are on several ranks; the gradient goes the other way.

    By ``dispatcher`` a copy travels per chosen expert, or one to each distinct rank that holds some of them (and
    over the network one per node, where DeepEP's kernels run); the busiest rank's copies count.
    """
    experts, parallel = _of(rank.shape), rank.parallel
    hidden = experts.latent or rank.shape.hidden
    # Once where tokens are copied, and once where what has arrived is sorted by expert; or back.
    one, copies = rank.rows * hidden, rank.rows * hidden * experts.top_k
    permute = Movement(
        read=((one + copies // 2, rank.width),), written=((copies + copies // 2, rank.width),), permutes=True
    )
    for each in _BOTH:
        yield RankOp(name=f"experts.{phase}.permute", phase=each, part="routing", model=permute)
        if parallel.ep == 1:
            continue
        group = parallel.ep_group
        rows = EPComm(tokens=rank.rows, hidden=hidden, dtype=rank.width, ranks=group.ranks, stride=group.stride)
        traffic = _traffic(experts, parallel)
        if parallel.dispatcher == "alltoall":
            tokens = round(rank.rows * experts.top_k * traffic.rows_imbalance)
            sent = replace(rows, tokens=tokens, remote_share=traffic.remote_share)
        elif parallel.skew != UNIFORM:
            tokens = round(rank.rows * traffic.rank_copies * traffic.copies_imbalance)
            sent = replace(rows, tokens=tokens, remote_share=traffic.remote_share)
        else:
            # A router's exchange counts the rank's own tokens: a share above 1 is copies.
            share = traffic.rank_copies * traffic.remote_share
            way = phase if each == "forward" else ("combine" if phase == "dispatch" else "dispatch")
            sent = replace(rows, remote_share=share, phase=way, experts=experts.count, topk=experts.top_k)
        yield RankOp(name=f"experts.{phase}", phase=each, part="ep", model=sent)


def _shared_out(rank: TrainingRank, phase: str) -> Iterator[RankOp]:
    """Ranks that share an expert need the rows of all of them, and each gives back its own part of the sum."""
    experts, ranks = _of(rank.shape), rank.parallel.etp
    if ranks == 1:
        return
    whole = _rows(rank) * (experts.latent or rank.shape.hidden)
    kinds = ("all_gather", "reduce_scatter") if phase == "dispatch" else ("reduce_scatter", "all_gather")
    for each, kind in zip(_BOTH, kinds, strict=True):
        model = rank.collective_of(kind, whole, Group(ranks=ranks))
        yield RankOp(name=f"experts.{phase}.{kind}", phase=each, part="ep", model=model)


MOE = MixtureOfExperts(letter="E")


class SingleLinear(BlockType, name="linear"):
    """A square product of the normalized hidden state (Puzzle, arXiv 2411.19146)."""

    def ops(self, batch: Batch) -> Iterator[LayerOp]:
        yield batch.norm("mlp.norm")
        yield batch.linear("mlp.linear", batch.shape.hidden, batch.shape.hidden)

    def kept_bytes(self, kept: Kept) -> float:
        return 0.0


SINGLE_LINEAR = SingleLinear(letter="=")
