"""State-space models: causal convolution along the sequence, and the chunked scan."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.perf_models.base import PerfModel, total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConv1d(PerfModel):
    """A depthwise convolution of ``width`` taps over the last tokens, per channel.

    flops = 2*b*c*l*width; bytes = x, weight and bias read, y written.
    """

    category: ClassVar[str] = "SSM_fwd"

    b: int
    channels: int
    length: int
    width: int
    bias: bool = False
    dtype: DType | None = DType.BF16

    def flops(self) -> int:
        return 2 * self.b * self.channels * self.length * self.width

    def hbm_bytes(self) -> int | float | None:
        weights = self.channels * (self.width + self.bias)
        return total_bytes((2 * self.b * self.channels * self.length + weights, self.dtype))

    def backward(self) -> CausalConv1dBackward:
        """The backward of this call."""
        return CausalConv1dBackward(**{f.name: getattr(self, f.name) for f in fields(CausalConv1d)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConv1dBackward(CausalConv1d):
    """The gradients of x and of the weight: flops twice the forward's.

    bytes = x, dy and the weight read, dx and the gradients of weight and bias written.
    """

    category: ClassVar[str] = "SSM_bwd"

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
