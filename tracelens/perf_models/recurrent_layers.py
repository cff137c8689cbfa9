"""Layers with a state along the sequence: LSTM and GRU, causal convolution, state-space scan, linear attention."""

from __future__ import annotations

from math import ceil, prod
from typing import Any, Literal, TypeAlias

from tracelens.errors import SignatureError
from tracelens.perf_models.base import ModelRecord, Moved, bind, with_fields_of
from tracelens.perf_models.gemm import Product
from tracelens.perf_models.inference_attention import InferenceAttention
from tracelens.perf_models.sdpa import SDPABackward
from tracelens.types.dtypes import DType
from tracelens.types.signature import OpSignature

#: Matrices per layer and direction, by the number that cuDNN and MIOpen give a kind: ReLU, tanh, LSTM, GRU.
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}


class Recurrent(ModelRecord, category="RNN_fwd", engine="matrix"):
    """``layers`` of ``gates`` products per step: the input's, of ``features``, and the state's, of ``hidden``.

    flops = 2 * gates * hidden * (input + state) per step of a sequence, layer and direction, and 2 * hidden * projected
    where the state is projected; gates' arithmetic is left out. ``steps``: of all sequences together. bytes = weights,
    input and output once, and the output of every layer but the last written and read: weights stay in the cache from
    step to step, so the least.
    """

    steps: int
    features: int
    hidden: int
    gates: int
    layers: int = 1
    directions: int = 1
    projected: int = 0
    dtype: DType | None = DType.FP32

    @property
    def state(self) -> int:
        """Width of what a layer hands on, of one direction."""
        return self.projected or self.hidden

    @property
    def weights(self) -> int:
        """Elements of all matrices and of the two biases per gate."""
        first, others = self.features, self.directions * self.state
        per_input = sum(first if layer == 0 else others for layer in range(self.layers))
        products = self.gates * self.hidden * (per_input + self.layers * self.state)
        return self.directions * (products + self.layers * self.hidden * (2 * self.gates + self.projected))

    def flops(self) -> int:
        biases = self.directions * self.layers * self.hidden * 2 * self.gates
        return 2 * self.steps * (self.weights - biases)

    def _activations(self) -> int:
        return self.steps * (self.features + (2 * self.layers - 1) * self.directions * self.state)

    def moved(self) -> Moved:
        return ((self.weights + self._activations(), self.dtype),)

    def backward(self) -> RecurrentBackward:
        return with_fields_of(self, RecurrentBackward)


class RecurrentBackward(Recurrent, category="RNN_bwd"):
    """Twice the forward's products: gradients of the input and of the weights; twice its bytes."""

    def flops(self) -> int:
        return 2 * Recurrent.flops(self)

    def moved(self) -> Moved:
        return ((2 * (self.weights + self._activations()), self.dtype),)


def _recurrent(
    op: OpSignature, *, mode: int, projection: int | None, layers: int, bidirectional: int, kind: type[Recurrent]
) -> Recurrent:
    """``input`` is [steps, batch, features] in either order, or [all steps, features] of packed sequences."""
    *steps, features = op.shape(0)
    numbers = [op.literal(i) for i in (mode, mode + 1, layers)]
    cell, hidden, count = numbers
    if cell not in _GATES or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise SignatureError(f"{op.name}: kind, hidden size and layers are {numbers}")
    projected = op.literal(projection) if projection is not None else 0
    both = op.literal(bidirectional)
    if not isinstance(both, bool) or not isinstance(projected, int):
        raise SignatureError(f"{op.name}: whether it runs in both directions was not recorded")
    return kind(
        steps=prod(steps),
        features=features,
        hidden=hidden,
        gates=_GATES[cell],
        layers=count,
        directions=1 + both,
        projected=projected,
        dtype=op.dtype(0),
    )


def _one_layer(op: OpSignature, *, kind: type[Recurrent]) -> Recurrent:
    """Slots 1 and 2 are weights, [gates x hidden, features] and [gates x hidden, hidden]."""
    *steps, features = op.shape(0)
    rows, hidden = op.shape(2)
    return kind(steps=prod(steps), features=features, hidden=hidden, gates=rows // hidden, dtype=op.dtype(0))


RECURRENT_OPS = (
    # (input, weights, .., .., hx, cx, mode, hidden, projection, layers, .., dropout, train, bidirectional, ...)
    bind(_recurrent, "aten::_cudnn_rnn", kind=Recurrent, mode=6, projection=8, layers=9, bidirectional=13),
    # (input, weights, .., .., hx, cx, output, three gradients, mode, hidden, projection, layers, ...)
    bind(
        _recurrent, "aten::_cudnn_rnn_backward", kind=RecurrentBackward, mode=10, projection=12, layers=13,
        bidirectional=17,
    ),
    # (input, weights, .., hx, cx, mode, hidden, layers, batch_first, dropout, train, bidirectional, ...)
    bind(_recurrent, "aten::miopen_rnn", kind=Recurrent, mode=5, projection=None, layers=7, bidirectional=11),
    # (input, weights, .., .., hx, cx, output, three gradients, mode, hidden, layers, .., bidirectional, ...)
    bind(
        _recurrent, "aten::miopen_rnn_backward", kind=RecurrentBackward, mode=10, projection=None, layers=12,
        bidirectional=16,
    ),
    # oneDNN: a layer in one direction, on the CPU
    bind(_one_layer, "aten::mkldnn_rnn_layer", kind=Recurrent),
    bind(_one_layer, "aten::mkldnn_rnn_layer_backward", kind=RecurrentBackward),
)  # fmt: skip


class CausalConv1d(ModelRecord, category="SSM_fwd"):
    """A depthwise convolution of ``width`` taps over the last tokens, per channel.

    flops = 2*b*c*l*width; bytes = x, weight and bias read, y written; ``cached``: and the ``width`` - 1 tokens before
    x, which an engine keeps per sequence, read and written.
    """

    b: int
    channels: int
    length: int
    width: int
    bias: bool = False
    cached: bool = False
    dtype: DType | None = DType.BF16

    def flops(self) -> int:
        return 2 * self.b * self.channels * self.length * self.width

    def moved(self) -> Moved:
        weights = self.channels * (self.width + self.bias)
        kept = 2 * self.b * self.channels * (self.width - 1) * self.cached
        return ((2 * self.b * self.channels * self.length + weights + kept, self.dtype),)

    def backward(self) -> CausalConv1dBackward:
        return with_fields_of(self, CausalConv1dBackward)


class CausalConv1dBackward(CausalConv1d, category="SSM_bwd", gradient=True):
    """The gradients of x and of the weight: flops twice the forward's.

    bytes = x, dy and the weight read, dx and the gradients of weight and bias written.
    """

    def flops(self) -> int:
        return 4 * self.b * self.channels * self.length * self.width

    def moved(self) -> Moved:
        weights = self.channels * (2 * self.width + self.bias)
        return ((3 * self.b * self.channels * self.length + weights, self.dtype),)


class MambaChunkScan(ModelRecord, category="SSM_fwd", engine="matrix"):
    """Mamba-2's convolution and chunked scan in one op.

    ``heads`` of ``head_dim`` p with a state of ``state`` n, whose B and C are shared in ``groups``; chunks of ``chunk``
    tokens. flops = 2*b*t*conv_channels*conv_width + 2*b*t*groups*chunk*n + 2*b*t*heads*chunk*p + 4*b*t*heads*n*p: the
    convolution, C times B within a chunk, that times x, and states in and out of a chunk. bytes = the projected input
    (``width`` per token: z, x, B, C and dt) read, heads*p per token written.
    """

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

    def moved(self) -> Moved:
        return ((self.b * self.tokens * (self.width + self.heads * self.head_dim), self.dtype),)


class StateSpaceScan(ModelRecord, category="SSM_fwd", engine="matrix", priced_as="gemm"):
    """Mamba-2's scan alone: ``b`` sequences of ``tokens``, ``heads`` of ``head_dim`` p with a state of ``state`` n.

    In chunks of c = min(``chunk``, ``tokens``), the products of state space duality (arXiv 2405.21060, section 6): per
    chunk and group C times B [c,c,n]; per chunk and head that times x [c,p,c], the chunk into the state [n,p,c] and the
    state into the chunk [c,p,n]. A single token (c = 1) is one step of the recurrence. bytes = x, B, C and dt read, y
    written; ``cached``: and each sequence's state, which an engine keeps between calls, read and written.
    """

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

    def moved(self) -> Moved:
        per_token = 2 * self.heads * self.head_dim + 2 * self.groups * self.state + self.heads
        states = 2 * self.b * self.heads * self.head_dim * self.state * self.cached
        return ((self.b * self.tokens * per_token, self.dtype), (states, self.dtype_state))

    def backward(self) -> StateSpaceScanBackward:
        return with_fields_of(self, StateSpaceScanBackward)


class StateSpaceScanBackward(StateSpaceScan, category="SSM_bwd", gradient=True):
    """The gradients of x, B, C and dt: two products for each of the forward's.

    bytes = x, B, C, dt and y's gradient read, four gradients written.
    """

    def products(self) -> tuple[Product, ...]:
        """As batched products: [m,k] from [m,n] and B, [k,n] from A and [m,n]."""
        return tuple(
            gradient
            for each in StateSpaceScan.products(self)
            for gradient in (each._replace(n=each.k, k=each.n), each._replace(m=each.k, k=each.m))
        )

    def moved(self) -> Moved:
        per_token = 3 * self.heads * self.head_dim + 2 * (2 * self.groups * self.state + self.heads)
        return ((self.b * self.tokens * per_token, self.dtype),)


#: What a token does to a head's state. ``delta``: decays it by one gate per head, predicts its value from it, adds what
#: the prediction lacks, reads it (gated DeltaNet, arXiv 2412.06464). ``channel_delta``: the same with a gate per key
#: channel (Kimi delta attention, arXiv 2510.26692). ``decay``: decays it by a constant of the head, adds its value,
#: reads it (Lightning attention, arXiv 2401.04658).
Rule: TypeAlias = Literal["delta", "channel_delta", "decay"]
#: Flops per state element and token: decay 1; prediction, update and output 2 each.
_FLOPS: dict[Rule, int] = {"delta": 7, "channel_delta": 7, "decay": 5}


def state_flops(rule: Rule, tokens: Any, v_heads: Any, d_k: Any, d_v: Any) -> Any:
    """Operations on the states of all value heads. Numbers or arrays."""
    return _FLOPS[rule] * tokens * v_heads * d_k * d_v


class LinearAttention(
    ModelRecord,
    category=InferenceAttention.category,
    engine="matrix",
    priced_as="linear-attention",
    family="InferenceAttention_fwd",
):
    """Every value head keeps a state of d_k x d_v that each token decays, updates and reads by ``rule``.

    flops = 7*d_k*d_v per token and value head: decay 1, prediction 2, update 2, output 2; 5 without prediction.
    bytes = q, k and v (``qkv_width`` per token) and gates read, o written; and the state of each of ``sequences`` read
    and written once, where an engine keeps it between calls. Else it stays on chip. A chunked kernel does more
    arithmetic. ``assumed`` says which dimension the trace does not hold (see ``parameters``).
    """

    tokens: int
    v_heads: int
    d_k: int
    d_v: int
    qkv_width: int
    dtype: DType | None
    rule: Rule = "delta"
    sequences: int | None = None
    dtype_state: DType | None = DType.FP32
    assumed: str = ""

    @property
    def k_heads(self) -> int:
        """Heads of q and of k, which several value heads may share."""
        return (self.qkv_width - self.v_heads * self.d_v) // (2 * self.d_k)

    @property
    def gates(self) -> int:
        """Numbers per token that decay the state and weigh the update."""
        per_head = {"delta": 2, "channel_delta": self.d_k + 1, "decay": 0}[self.rule]
        return self.v_heads * per_head

    def flops(self) -> int:
        return state_flops(self.rule, self.tokens, self.v_heads, self.d_k, self.d_v)

    def moved(self) -> Moved:
        states = 2 * (self.sequences or 0) * self.v_heads * self.d_k * self.d_v
        return (
            (self.tokens * (self.qkv_width + self.gates + self.v_heads * self.d_v), self.dtype),
            (states, self.dtype_state),
        )

    def backward(self) -> LinearAttentionBackward:
        return with_fields_of(self, LinearAttentionBackward)


class LinearAttentionBackward(LinearAttention, category=SDPABackward.category, family=None, gradient=True):
    """The gradients of q, k, v and the gates: each product has two, so twice the forward's flops.

    bytes = q, k, v, gates and the output's gradient read, their gradients written.
    """

    def flops(self) -> int:
        return 2 * state_flops(self.rule, self.tokens, self.v_heads, self.d_k, self.d_v)

    def moved(self) -> Moved:
        per_token = 2 * (self.qkv_width + self.gates) + self.v_heads * self.d_v
        return ((self.tokens * per_token, self.dtype),)


def gated_delta_rule(op: OpSignature) -> LinearAttention:
    """Linear attention from (joint projection [t, 2*hk*dk + hv*dv], gate [t,hv], .., output [t,hv,dv], ...).

    How the key width hk*dk divides into heads is not recorded: d_k = d_v is assumed and shown.
    """
    tokens, width = op.shape(0, rank=2)
    v_heads, d_v = op.shape(1, rank=2)[1], op.shape(3)[-1]
    keys = (width - v_heads * d_v) // 2
    if keys <= 0 or keys % d_v:
        raise SignatureError(f"{op.name}: a key width of {keys} holds no whole number of heads of {d_v}")
    return LinearAttention(
        tokens=tokens, v_heads=v_heads, d_k=d_v, d_v=d_v, qkv_width=width, dtype=op.dtype(0), assumed="d_k = d_v"
    )
