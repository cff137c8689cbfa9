"""Operations of a forward pass on one device that holds the whole model, and the parts that blocks are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models import (
    GEMM,
    SDPA,
    CausalConv1d,
    Normalization,
    Operand,
    PerfModel,
    RMSNorm,
    SelectiveAttention,
)
from tracelens.perf_models.data_movement import lookup
from tracelens.perf_models.elementwise import Elementwise
from tracelens.workload.model_shape import ModelShape

#: How tensor parallelism divides an operation: not at all (its rows may be, with sequence parallelism), a product along
#: n or along k, by heads or channels, or over the ranks of its experts.
Split: TypeAlias = Literal["tokens", "column", "row", "heads", "experts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerOp:
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
        if isinstance(self.model, SDPA | SelectiveAttention):
            flops -= _matrix_flops(replace(self.model, d_v=0))
        return self.count * flops


def _matrix_flops(model: PerfModel) -> float:
    return (model.flops() or 0) if model.engine == "matrix" else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
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
        model = GEMM(m=self.tokens, n=n, k=k, bias=bias, dtype=self.dtype)
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
            return LayerOp(name=name, model=RMSNorm(**sizes, saves=True), weights=n, split=split)
        model = Normalization(**sizes, bias=shape.norm_bias)
        return LayerOp(name=name, model=model, weights=n * (1 + shape.norm_bias), split=split)

    def convolution(self, name: str, channels: int, taps: int, *, bias: bool = False, cached: bool = False) -> LayerOp:
        """A causal convolution of each channel along the sequence."""
        model = CausalConv1d(
            b=self.batch, channels=channels, length=self.sequence, width=taps, bias=bias, cached=cached,
            dtype=self.dtype,
        )  # fmt: skip
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
