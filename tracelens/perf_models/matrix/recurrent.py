"""Recurrent layers (LSTM, GRU, plain) of cuDNN and MIOpen."""

from __future__ import annotations

from dataclasses import fields
from math import prod
from typing import ClassVar

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes, traced_as
from tracelens.signature import OpSignature

#: Matrices per layer and direction, by the number that cuDNN and MIOpen give a kind: ReLU, tanh, LSTM, GRU.
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrent(PerfModel):
    """``layers`` of ``gates`` products per step: the input's, of ``features``, and the state's, of ``hidden``.

    flops = 2 * gates * hidden * (input + state) per step of a sequence, layer and direction, and 2 * hidden * projected
    where the state is projected; gates' arithmetic is left out. ``steps``: of all sequences together. bytes = weights,
    input and output once, and the output of every layer but the last written and read: weights stay in the cache from
    step to step, so the least.
    """

    category: ClassVar[str] = "RNN_fwd"
    engine: ClassVar[str] = "matrix"

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

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((self.weights + self._activations(), self.dtype))

    def backward(self) -> RecurrentBackward:
        """The gradients of input and weights."""
        return RecurrentBackward(**{f.name: getattr(self, f.name) for f in fields(Recurrent)})


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentBackward(Recurrent):
    """Twice the forward's products: gradients of the input and of the weights; twice its bytes."""

    category: ClassVar[str] = "RNN_bwd"

    def flops(self) -> int:
        return 2 * Recurrent.flops(self)

    def hbm_bytes(self) -> int | float | None:
        return total_bytes((2 * (self.weights + self._activations()), self.dtype))


@traced_as("aten::_cudnn_rnn")
def _cudnn(op: OpSignature) -> Recurrent:
    """(input, weights, .., .., hx, cx, mode, hidden, projection, layers, .., dropout, train, bidirectional, ...)."""
    return _recurrent(op, mode=6, projection=8, layers=9, bidirectional=13)


@traced_as("aten::_cudnn_rnn_backward")
def _cudnn_backward(op: OpSignature) -> RecurrentBackward:
    """(input, weights, .., .., hx, cx, output, three gradients, mode, hidden, projection, layers, ...)."""
    return _recurrent(op, mode=10, projection=12, layers=13, bidirectional=17).backward()


@traced_as("aten::miopen_rnn")
def _miopen(op: OpSignature) -> Recurrent:
    """(input, weights, .., hx, cx, mode, hidden, layers, batch_first, dropout, train, bidirectional, ...)."""
    return _recurrent(op, mode=5, projection=None, layers=7, bidirectional=11)


@traced_as("aten::miopen_rnn_backward")
def _miopen_backward(op: OpSignature) -> RecurrentBackward:
    """(input, weights, .., .., hx, cx, output, three gradients, mode, hidden, layers, .., bidirectional (16), ...)."""
    return _recurrent(op, mode=10, projection=None, layers=12, bidirectional=16).backward()


def _recurrent(op: OpSignature, *, mode: int, projection: int | None, layers: int, bidirectional: int) -> Recurrent:
    """``input`` is [steps, batch, features] in either order, or [all steps, features] of packed sequences."""
    *steps, features = op.shape(0)
    numbers = [op.literal(i) for i in (mode, mode + 1, layers)]
    kind, hidden, count = numbers
    if kind not in _GATES or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise SignatureError(f"{op.name}: kind, hidden size and layers are {numbers}")
    projected = op.literal(projection) if projection is not None else 0
    both = op.literal(bidirectional)
    if not isinstance(both, bool) or not isinstance(projected, int):
        raise SignatureError(f"{op.name}: whether it runs in both directions was not recorded")
    return Recurrent(
        steps=prod(steps),
        features=features,
        hidden=hidden,
        gates=_GATES[kind],
        layers=count,
        directions=1 + both,
        projected=projected,
        dtype=op.dtype(0),
    )


@traced_as("aten::mkldnn_rnn_layer")
def _one_dnn(op: OpSignature) -> Recurrent:
    """(input, weights of the input, of the state, .., .., hx, cx, ...): a layer in one direction, on the CPU."""
    return _one_layer(op)


@traced_as("aten::mkldnn_rnn_layer_backward")
def _one_dnn_backward(op: OpSignature) -> RecurrentBackward:
    """As the forward's, with weights in slots 1 and 2 too."""
    return _one_layer(op).backward()


def _one_layer(op: OpSignature) -> Recurrent:
    """``weights`` are [gates x hidden, features] and [gates x hidden, hidden]."""
    *steps, features = op.shape(0)
    rows, hidden = op.shape(2)
    return Recurrent(steps=prod(steps), features=features, hidden=hidden, gates=rows // hidden, dtype=op.dtype(0))
