"""Operations of a forward pass on one device that holds the whole model: parts that blocks are made of, and residual
streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from typing import Any, Literal, TypeAlias

from tracelens import perf_models
from tracelens.perf_models import Operand, PerfModel
from tracelens.perf_models.data_movement import lookup
from tracelens.perf_models.elementwise import Elementwise
from tracelens.predict.workload.model_shape import ModelShape
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

#: How tensor parallelism divides an operation: not at all (its rows may be, with sequence parallelism), a product along
#: n or along k, by heads or channels, or over the ranks of its experts.
Split: TypeAlias = Literal["tokens", "column", "row", "heads", "experts"]


class LayerOp(Record, frozen=True, kw_only=True):
    """One operation of a forward pass and how often it occurs in it.

    ``weights`` are the parameters of one occurrence; of those a token meets ``met_weights``, None: all. ``split``:
    how tensor-parallel ranks divide it, ``is_replicated``: each of them keeps all its weights. ``is_core``: its work
    depends on how the tokens lie in sequences, and on those before them (``BlockType.cores``).
    """

    name: str
    model: PerfModel
    count: int = 1
    weights: int = 0
    met_weights: int | None = None
    split: Split = "tokens"
    is_replicated: bool = False
    is_core: bool = False

    @property
    def active_weights(self) -> int:
        """Parameters of one occurrence that a token meets."""
        return self.weights if self.met_weights is None else self.met_weights

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
        if isinstance(self.model, perf_models.SDPA | perf_models.SelectiveAttention):
            flops -= _matrix_flops(replace(self.model, d_v=0))
        return self.count * flops


def _matrix_flops(model: PerfModel) -> float:
    return (model.flops() or 0) if model.engine == "matrix" else 0


class Batch(Record, frozen=True, kw_only=True):
    """``batch`` sequences of ``sequence`` tokens through a model: makes operations of its sizes and element type."""

    shape: ModelShape
    batch: int
    sequence: int

    @property
    def tokens(self) -> int:
        return self.batch * self.sequence

    @property
    def dtype(self) -> DType | None:
        return self.shape.dtype

    def linear(self, name: str, n: int, k: int, *, bias: bool = False, split: Split = "tokens") -> LayerOp:
        model = perf_models.GEMM(m=self.tokens, n=n, k=k, bias=bias, dtype=self.dtype)
        return LayerOp(name=name, model=model, weights=n * (k + bias), split=split)

    def norm(self, name: str, channels: int | None = None, groups: int = 1, split: Split = "tokens") -> LayerOp:
        """Norm over ``groups`` parts of ``channels`` per token; over the hidden state when not said."""
        shape = self.shape
        n = shape.hidden if channels is None else channels
        rows = self.tokens * groups
        sizes: dict[str, Any] = {
            "shape": (rows, n), "channels": n, "statistics": rows, "weight": True, "dtype": self.dtype
        }  # fmt: skip
        if shape.norm == "rms":
            return LayerOp(name=name, model=perf_models.RMSNorm(**sizes, saves=True), weights=n, split=split)
        model = perf_models.Normalization(**sizes, bias=shape.norm_bias)
        return LayerOp(name=name, model=model, weights=n * (1 + shape.norm_bias), split=split)

    def convolution(self, name: str, channels: int, taps: int, *, bias: bool = False) -> LayerOp:
        """A causal convolution of each channel along the sequence."""
        model = perf_models.CausalConv1d(
            b=self.batch, channels=channels, length=self.sequence, width=taps, bias=bias, dtype=self.dtype
        )
        return LayerOp(name=name, model=model, weights=channels * (taps + bias), split="heads", is_core=True)

    def feed_forward(self, name: str, ffn: int, *, bias: bool = False) -> Iterator[LayerOp]:
        """Up projection, with the gate's beside it, activation and down projection."""
        shape = self.shape
        yield self.linear(f"{name}.up", ffn * (1 + shape.gated), shape.hidden, bias=bias, split="column")
        yield self.activation(f"{name}.activation", self.tokens, ffn, split="column")
        yield self.linear(f"{name}.down", shape.hidden, ffn, bias=bias, split="row")

    def gating(self, name: str, width: int, gates: int) -> LayerOp:
        """A result of ``width`` per token times its gates."""
        read = (Operand(shape=(self.tokens, each), dtype=self.dtype) for each in (width, gates))
        written = Operand(shape=(self.tokens, width), dtype=self.dtype)
        model = Elementwise(shape=(self.tokens, width), inputs=tuple(read), outputs=(written,), flops_per_element=2)
        return LayerOp(name=name, model=model, split="column")

    def activation(self, name: str, rows: int, ffn: int, split: Split) -> LayerOp:
        read = Operand(shape=(rows, ffn * (1 + self.shape.gated)), dtype=self.dtype)
        written = Operand(shape=(rows, ffn), dtype=self.dtype)
        model = Elementwise(
            shape=(rows, ffn), inputs=(read,), outputs=(written,), flops_per_element=1 + self.shape.gated
        )
        return LayerOp(name=name, model=model, split=split)

    def embedding(self) -> Iterator[LayerOp]:
        """Lookups in the tables of tokens and of learned positions."""
        shape = self.shape
        index = Operand(shape=(self.batch, self.sequence), dtype=DType.INT64)
        for name, rows in (("embedding", shape.vocab), ("positions", shape.positions)):
            if rows:
                table = Operand(shape=(rows, shape.hidden), dtype=self.dtype)
                model = lookup(table, index, self.tokens * shape.hidden)
                yield LayerOp(name=name, model=model, weights=rows * shape.hidden)

    def head(self) -> Iterator[LayerOp]:
        """Final norm and, where there is a vocabulary, logits."""
        yield self.norm("final_norm")
        if self.shape.vocab:
            yield self.logits(tied=self.shape.tied_embeddings)

    def logits(self, *, tied: bool) -> LayerOp:
        made = self.linear("logits", self.shape.vocab, self.shape.hidden)
        return replace(made, weights=0) if tied else made


def residual_ops(batch: Batch) -> Iterator[LayerOp]:
    """Before and after one block."""
    shape = batch.shape
    if shape.streams:
        n = shape.streams
        # of the streams that enter the block, leave it, and pass it by; with a bias each, and three scales
        outputs = (2 + n) * n
        yield from _hyper(batch, outputs, outputs + 3)
        yield LayerOp(name="residual.post", model=perf_models.HyperConnectionPost(**_sizes(batch)))
    if shape.residual_block:
        yield _depth_attention(batch)


def last_residual_ops(batch: Batch) -> Iterator[LayerOp]:
    """Before the final norm."""
    shape = batch.shape
    if shape.streams:
        yield from _hyper(batch, shape.streams, shape.streams + 1)
    if shape.residual_block:
        yield _depth_attention(batch)


def _hyper(batch: Batch, outputs: int, biases: int) -> Iterator[LayerOp]:
    """Manifold-constrained hyper-connections (arXiv 2512.24880): coefficients of the mix in fp32, and the mix."""
    sizes = _sizes(batch)
    mixed = perf_models.HyperConnectionCoefficients(**sizes, outputs=outputs, dtype_weight=DType.FP32)
    weights = outputs * sizes["streams"] * sizes["channels"] + biases
    yield LayerOp(name="residual.coefficients", model=mixed, weights=weights)
    yield LayerOp(name="residual.pre", model=perf_models.HyperConnectionPre(**sizes))


def _sizes(batch: Batch) -> dict[str, Any]:
    shape = batch.shape
    return {"tokens": batch.tokens, "streams": shape.streams, "channels": shape.hidden, "dtype": batch.dtype}


def _depth_attention(batch: Batch) -> LayerOp:
    """A softmax over the sums of blocks of layers that are kept, by one learned query (Attention residuals, arXiv
    2603.15031). Averaged over depth: half of the sums that the whole model keeps, the embedding, and the open one.
    """
    shape, elements = batch.shape, batch.tokens * batch.shape.hidden
    sources = round((kept_sums(shape) / 2 + 1.5) * elements)
    model = perf_models.Movement(read=((sources, batch.dtype),), written=((elements, batch.dtype),), added=2 * sources)
    # the query and the norm of what it is compared with
    return LayerOp(name="residual.depth_attention", model=model, weights=2 * shape.hidden)


def kept_sums(shape: ModelShape) -> int:
    """Sums of blocks of layers that the whole model keeps; two residual blocks are a layer."""
    return ceil(len(shape.blocks) / 2 / shape.residual_block) if shape.residual_block else 0
