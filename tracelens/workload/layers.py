"""The operations of a batch of tokens on one device that holds the whole model, as perf models.

Shapes follow the usual implementations: fused query-key-value and gate-up projections, experts as grouped GEMMs. Left
out are operations that neither multiply matrices nor hold weights: rotary embedding, residual additions, the token
permutation around experts, the loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tracelens.dtypes import DType
from tracelens.perf_models import GEMM, SDPA, Conv, GroupedGEMM, Normalization, Operand, PerfModel, RMSNorm
from tracelens.perf_models.memory_bound.data_movement import lookup
from tracelens.perf_models.memory_bound.elementwise import Elementwise

if TYPE_CHECKING:
    from tracelens.workload.model_config import Experts, LatentAttention, Mamba, ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOp:
    """One operation of a forward pass and how often it occurs in it.

    ``weights`` are the parameters of one occurrence, ``active_weights`` those of them that a token meets.
    """

    name: str
    model: PerfModel
    count: int = 1
    weights: int = 0
    active_weights: int = 0

    def backward(self) -> tuple[PerfModel, ...]:
        """Perf models of one occurrence's gradients; empty for what has none."""
        made = getattr(self.model, "backward", None)
        if made is None:
            return ()
        gradients = made()
        return gradients if isinstance(gradients, tuple) else (gradients,)

    @property
    def forward_flops(self) -> float:
        """Matrix FLOPs of all occurrences; 0 for what is no matrix product."""
        return self.count * _matrix_flops(self.model)

    @property
    def backward_flops(self) -> float:
        """Matrix FLOPs of all occurrences' gradients.

        Fused attention computes the scores again, which is no work that the model asks for, so they are taken off.
        """
        flops = sum(_matrix_flops(gradient) for gradient in self.backward())
        if isinstance(self.model, SDPA):
            flops -= _matrix_flops(replace(self.model, d_v=0))
        return self.count * flops


def forward_ops(config: ModelConfig, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """Embedding, blocks and logits for ``batch`` sequences of ``sequence`` tokens, equal blocks counted together."""
    shape = _Shape(config=config, batch=batch, sequence=sequence)
    ops = [*shape.embedding()]
    for letter, count in Counter(config.blocks).items():
        ops += [replace(op, count=op.count * count) for op in shape.block(letter)]
    ops.append(shape.norm("final_norm"))
    return (*ops, shape.logits(tied=config.tied_embeddings)) if config.vocab else tuple(ops)


def further_token_ops(config: ModelConfig, *, batch: int, sequence: int) -> tuple[LayerOp, ...]:
    """What predicting further tokens adds to a training step: per layer a projection of hidden state and embedding
    together, ``mtp_blocks``, and the logits once more (DeepSeek-V3, arXiv 2412.19437, section 2.2).
    """
    if not config.mtp_layers:
        return ()
    shape = _Shape(config=config, batch=batch, sequence=sequence)
    ops = [
        shape.norm("mtp.embedding_norm"),
        shape.norm("mtp.hidden_norm"),
        shape.linear("mtp.projection", config.hidden, 2 * config.hidden),
        *(replace(op, name=f"mtp.{op.name}") for letter in config.mtp_blocks for op in shape.block(letter)),
        shape.norm("mtp.final_norm"),
        replace(shape.logits(tied=True), name="mtp.logits"),
    ]
    return tuple(replace(op, count=op.count * config.mtp_layers) for op in ops)


def _matrix_flops(model: PerfModel) -> float:
    return (model.flops() or 0) if model.engine == "matrix" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """A model and a batch: makes the operations of one block."""

    config: ModelConfig
    batch: int
    sequence: int

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def dtype(self) -> DType | None:
        return self.config.dtype

    def linear(self, name: str, n: int, k: int, *, bias: bool = False) -> LayerOp:
        weights = n * (k + bias)
        model = GEMM(m=self.tokens, n=n, k=k, bias=bias, dtype=self.dtype)
        return LayerOp(name=name, model=model, weights=weights, active_weights=weights)

    def norm(self, name: str, channels: int | None = None, groups: int = 1) -> LayerOp:
        """Over ``groups`` parts of ``channels`` per token; the hidden state when not said."""
        config = self.config
        n = config.hidden if channels is None else channels
        rows = self.tokens * groups
        if config.norm == "rms":
            weights = n
            model: PerfModel = RMSNorm(
                shape=(rows, n), channels=n, statistics=rows, weight=True, saves=True, dtype=self.dtype
            )
        else:
            weights = n * (1 + config.norm_bias)
            model = Normalization(
                shape=(rows, n), channels=n, statistics=rows, weight=True, bias=config.norm_bias, dtype=self.dtype
            )
        return LayerOp(name=name, model=model, weights=weights, active_weights=weights)

    def embedding(self) -> Iterator[LayerOp]:
        config = self.config
        index = Operand(shape=(self.batch, self.sequence), dtype=DType.INT64)
        for name, rows in (("embedding", config.vocab), ("positions", config.positions)):
            if rows:
                weights = rows * config.hidden
                table = Operand(shape=(rows, config.hidden), dtype=self.dtype)
                model = lookup(table, index, self.tokens * config.hidden)
                yield LayerOp(name=name, model=model, weights=weights, active_weights=weights)

    def logits(self, *, tied: bool) -> LayerOp:
        made = self.linear("logits", self.config.vocab, self.config.hidden)
        return replace(made, weights=0, active_weights=0) if tied else made

    def block(self, letter: str) -> Iterator[LayerOp]:
        config = self.config
        if letter in "*w":
            yield self.norm("attention.norm")
            yield from self.attention(config.window if letter == "w" else None)
        elif letter == "M" and config.mamba is not None:
            yield self.norm("mamba.norm")
            yield from self.mamba(config.mamba)
        elif letter == "E" and config.experts is not None:
            yield self.norm("experts.norm")
            yield from self.experts(config.experts)
        elif letter == "-" and config.ffn is not None:
            yield self.norm("mlp.norm")
            yield from self.feed_forward("mlp", config.ffn, bias=config.mlp_bias)

    def attention(self, window: int | None) -> Iterator[LayerOp]:
        config = self.config
        if config.latent_attention is not None:
            yield from self.latent_projections(config.latent_attention)
        else:
            width = (config.q_heads + config.kv_heads) * config.d_qk + config.kv_heads * config.d_v
            yield self.linear("attention.qkv", width, config.hidden, bias=config.qkv_bias)
        if config.qk_norm:
            yield self.norm("attention.q_norm", config.d_qk, config.q_heads)
            yield self.norm("attention.k_norm", config.d_qk, config.kv_heads)
        sinks = config.q_heads if config.sinks else 0
        text = config.text(self.sequence)
        yield LayerOp(
            name="attention.sdpa",
            model=SDPA(
                b=round(self.batch * self.sequence / text),
                s_q=text,
                s_kv=text,
                q_heads=config.q_heads,
                kv_heads=config.kv_heads,
                d_qk=config.d_qk,
                d_v=config.d_v,
                mask="none" if config.bidirectional else "top_left",
                window=window,
                flash=True,
                dtype=self.dtype,
            ),
            weights=sinks,
            active_weights=sinks,
        )
        yield self.linear("attention.out", config.hidden, config.q_heads * config.d_v, bias=config.out_bias)

    def latent_projections(self, latent: LatentAttention) -> Iterator[LayerOp]:
        config = self.config
        queries = config.q_heads * config.d_qk
        if latent.q_rank is None:
            yield self.linear("attention.q", queries, config.hidden)
        else:
            yield self.linear("attention.q_down", latent.q_rank, config.hidden)
            yield self.norm("attention.q_latent_norm", latent.q_rank)
            yield self.linear("attention.q_up", queries, latent.q_rank)
        yield self.linear("attention.kv_down", latent.kv_rank + latent.d_rope, config.hidden)
        yield self.norm("attention.kv_latent_norm", latent.kv_rank)
        yield self.linear("attention.kv_up", config.q_heads * (latent.d_nope + latent.d_v), latent.kv_rank)

    def feed_forward(self, name: str, ffn: int, *, bias: bool = False) -> Iterator[LayerOp]:
        config = self.config
        yield self.linear(f"{name}.up", ffn * (1 + config.gated), config.hidden, bias=bias)
        yield self.activation(f"{name}.activation", self.tokens, ffn)
        yield self.linear(f"{name}.down", config.hidden, ffn, bias=bias)

    def activation(self, name: str, rows: int, ffn: int) -> LayerOp:
        read = Operand(shape=(rows, ffn * (1 + self.config.gated)), dtype=self.dtype)
        written = Operand(shape=(rows, ffn), dtype=self.dtype)
        model = Elementwise(
            shape=(rows, ffn), inputs=(read,), outputs=(written,), flops_per_element=1 + self.config.gated
        )
        return LayerOp(name=name, model=model)

    def experts(self, experts: Experts) -> Iterator[LayerOp]:
        config = self.config
        width = experts.latent or config.hidden
        rows = self.tokens * experts.top_k
        yield self.linear("experts.router", experts.count, config.hidden, bias=experts.bias)
        if experts.latent is not None:
            yield self.linear("experts.latent_down", experts.latent, config.hidden)
        yield self.grouped("experts.up", experts, n=experts.ffn * (1 + config.gated), k=width)
        yield self.activation("experts.activation", rows, experts.ffn)
        yield self.grouped("experts.down", experts, n=width, k=experts.ffn)
        if experts.latent is not None:
            yield self.linear("experts.latent_up", config.hidden, experts.latent)
        if experts.shared_ffn:
            yield from self.feed_forward("experts.shared", experts.shared_ffn)
        if experts.shared_gate:
            yield self.linear("experts.shared_gate", 1, config.hidden)

    def grouped(self, name: str, experts: Experts, *, n: int, k: int) -> LayerOp:
        one = n * (k + experts.bias)
        model = GroupedGEMM(m=self.tokens * experts.top_k, n=n, k=k, groups=experts.count, dtype=self.dtype)
        return LayerOp(name=name, model=model, weights=experts.count * one, active_weights=experts.top_k * one)

    def mamba(self, mamba: Mamba) -> Iterator[LayerOp]:
        """The scan as its products (state space duality, arXiv 2405.21060, section 6): within a chunk C times B and
        that times x; into and out of the chunk's state.
        """
        config, inner, channels = self.config, mamba.inner, mamba.conv_channels
        yield self.linear("mamba.in", inner + channels + mamba.heads, config.hidden)
        yield LayerOp(
            name="mamba.conv",
            model=Conv(
                x=(self.batch, channels, self.sequence + mamba.conv - 1),
                w=(channels, 1, mamba.conv),
                bias=True,
                stride=(1,),
                padding=(0,),
                dilation=(1,),
                output_padding=(0,),
                groups=channels,
                dtype=self.dtype,
            ),
            weights=channels * (mamba.conv + 1),
            active_weights=channels * (mamba.conv + 1),
        )
        chunk = min(mamba.chunk, self.sequence)
        chunks = self.batch * math.ceil(self.sequence / chunk)
        # the decay, the skip weight and the step's bias of each head
        per_head = 3 * mamba.heads
        for name, b, m, n, k, weights in (
            ("scores", chunks * mamba.groups, chunk, chunk, mamba.state, per_head),
            ("within", chunks * mamba.heads, chunk, mamba.head_dim, chunk, 0),
            ("state_in", chunks * mamba.heads, mamba.state, mamba.head_dim, chunk, 0),
            ("state_out", chunks * mamba.heads, chunk, mamba.head_dim, mamba.state, 0),
        ):
            model = GEMM(b=b, m=m, n=n, k=k, dtype=self.dtype)
            yield LayerOp(name=f"mamba.{name}", model=model, weights=weights, active_weights=weights)
        yield self.norm("mamba.gated_norm", inner)
        yield self.linear("mamba.out", config.hidden, inner)
