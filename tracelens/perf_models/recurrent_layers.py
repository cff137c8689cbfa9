"""State-space models: causal convolution along the sequence, and the chunked scan."""

from __future__ import annotations

from dataclasses import fields
from math import ceil
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes
from tracelens.perf_models.gemm import Product


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConv1d(PerfModel):
    """A depthwise convolution of ``width`` taps over the last tokens, per channel.

    flops = 2*b*c*l*width; bytes = x, weight and bias read, y written; ``cached``: and the ``width`` - 1 tokens before
    x, which an engine keeps per sequence, read and written.
    """

    category: ClassVar[str] = "SSM_fwd"

    b: int
    channels: int
    length: int
    width: int
    bias: bool = False
    cached: bool = False
    dtype: DType | None = DType.BF16

    def flops(self) -> int:
        return 2 * self.b * self.channels * self.length * self.width

    def hbm_bytes(self) -> int | float | None:
        weights = self.channels * (self.width + self.bias)
        kept = 2 * self.b * self.channels * (self.width - 1) * self.cached
        return total_bytes((2 * self.b * self.channels * self.length + weights + kept, self.dtype))

    def backward(self) -> CausalConv1dBackward:
        """The backward of this call."""
        return CausalConv1dBackward(**{f.name: getattr(self, f.name) for f in fields(CausalConv1d)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConv1dBackward(CausalConv1d):
    """The gradients of x and of the weight: flops twice the forward's.

    bytes = x, dy and the weight read, dx and the gradients of weight and bias written.
    """

    category: ClassVar[str] = "SSM_bwd"
    gradient: ClassVar[bool] = True

    def flops(self) -> int:
        return 4 * self.b * self.channels * self.length * self.width

    def hbm_bytes(self) -> int | float | None:
        weights = self.channels * (2 * self.width + self.bias)
        return total_bytes((3 * self.b * self.channels * self.length + weights, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaChunkScan(PerfModel):
    """Mamba-2's convolution and chunked scan in one op.

    ``heads`` of ``head_dim`` p with a state of ``state`` n, whose B and C are shared in ``groups``; chunks of ``chunk``
    tokens. flops = 2*b*t*conv_channels*conv_width + 2*b*t*groups*chunk*n + 2*b*t*heads*chunk*p + 4*b*t*heads*n*p: the
    convolution, C times B within a chunk, that times x, and states in and out of a chunk. bytes = the projected input
    (``width`` per token: z, x, B, C and dt) read, heads*p per token written.
    """

    category: ClassVar[str] = "SSM_fwd"
    engine: ClassVar[str] = "matrix"

    b: int
    tokens: int
    width: int
    conv_channels: int
    conv_width: int
    heads: int
    head_dim: int
    state: int
    groups: int
    chunk: int
    dtype: DType | None = DType.BF16

    def flops(self) -> int:
        rows, hp = self.b * self.tokens, self.heads * self.head_dim
        convolution = 2 * rows * self.conv_channels * self.conv_width
        within = 2 * rows * self.chunk * (self.groups * self.state + hp)
        return convolution + within + 4 * rows * hp * self.state

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((self.b * self.tokens * (self.width + self.heads * self.head_dim), self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceScan(PerfModel):
    """Mamba-2's scan alone: ``b`` sequences of ``tokens``, ``heads`` of ``head_dim`` p with a state of ``state`` n.

    In chunks of c = min(``chunk``, ``tokens``), the products of state space duality (arXiv 2405.21060, section 6): per
    chunk and group C times B [c,c,n]; per chunk and head that times x [c,p,c], the chunk into the state [n,p,c] and the
    state into the chunk [c,p,n]. A single token (c = 1) is one step of the recurrence. bytes = x, B, C and dt read, y
    written; ``cached``: and each sequence's state, which an engine keeps between calls, read and written.
    """

    category: ClassVar[str] = "SSM_fwd"
    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str | None] = "gemm"

    b: int
    tokens: int
    heads: int
    head_dim: int
    state: int
    groups: int
    chunk: int
    cached: bool = False
    dtype: DType | None = DType.BF16
    dtype_state: DType | None = DType.FP32

    def products(self) -> tuple[Product, ...]:
        """As batched products."""
        c = min(self.chunk, self.tokens)
        chunks = self.b * ceil(self.tokens / c)
        per_head, p, n = chunks * self.heads, self.head_dim, self.state
        return (
            Product(c, c, n, b=chunks * self.groups),
            Product(c, p, c, b=per_head),
            Product(n, p, c, b=per_head),
            Product(c, p, n, b=per_head),
        )

    def flops(self) -> int | float:
        return sum(2 * each.b * each.m * each.n * each.k for each in self.products())

    def hbm_bytes(self) -> int | float | None:
        per_token = 2 * self.heads * self.head_dim + 2 * self.groups * self.state + self.heads
        states = 2 * self.b * self.heads * self.head_dim * self.state * self.cached
        return total_bytes((self.b * self.tokens * per_token, self.dtype), (states, self.dtype_state))

    def backward(self) -> StateSpaceScanBackward:
        """The gradient of the same call."""
        return StateSpaceScanBackward(**{f.name: getattr(self, f.name) for f in fields(StateSpaceScan)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpaceScanBackward(StateSpaceScan):
    """The gradients of x, B, C and dt: two products for each of the forward's.

    bytes = x, B, C, dt and y's gradient read, four gradients written.
    """

    category: ClassVar[str] = "SSM_bwd"
    gradient: ClassVar[bool] = True

    def products(self) -> tuple[Product, ...]:
        """As batched products: [m,k] from [m,n] and B, [k,n] from A and [m,n]."""
        return tuple(
            gradient
            for each in StateSpaceScan.products(self)
            for gradient in (each._replace(n=each.k, k=each.n), each._replace(m=each.k, k=each.m))
        )

    def hbm_bytes(self) -> int | float | None:
        per_token = 3 * self.heads * self.head_dim + 2 * (2 * self.groups * self.state + self.heads)
        return total_bytes((self.b * self.tokens * per_token, self.dtype))
