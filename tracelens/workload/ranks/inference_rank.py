"""One device of a serving engine: what it has of the model, and its share of a step's operations."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeVar

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.lazy.records import dataclass
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM, PerfModel, SelectiveAttention
from tracelens.workload.expert_traffic import ExpertTraffic, expert_traffic
from tracelens.workload.layer_ops import LayerOp
from tracelens.workload.model_shape import ModelShape, NarrowWeights, Quantization
from tracelens.workload.token_routing import UNIFORM, Skew

M = TypeVar("M", GEMM, GroupedGEMM)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRank:
    """A device that serves ``shape``, of which ``local`` is its tensor-parallel part as a model of its own.

    ``tp``, ``dp``, ``ep``, ``skew`` and ``imbalance`` as in ``serving.deployment.Parallelism``. ``linear``, ``experts``
    and ``kv``: element types of the weights of dense products and of experts, and of keys and values; None: the
    model's. ``multiplied``: types that the device has a matrix rate for.
    """

    shape: ModelShape
    local: ModelShape
    name: str
    tp: int = 1
    dp: int = 1
    ep: int = 1
    skew: Skew = UNIFORM
    imbalance: float = 1.0
    linear: DType | None = None
    experts: DType | None = None
    kv: DType | None = None
    multiplied: frozenset[DType] = frozenset()

    @property
    def width(self) -> float:
        """Bytes per element of the model's own type. UsageError where it is not known."""
        if self.shape.dtype is None:
            raise UsageError(f"{self.name}: the element type of its weights is not known")
        return self.shape.dtype.width_bytes

    @property
    def traffic(self) -> ExpertTraffic:
        """What the routing makes of an exchange among the expert-parallel devices."""
        experts = self.shape.experts
        count, topk = (experts.count, experts.top_k) if experts is not None else (self.ep, 1)
        return expert_traffic(self.skew, experts=count, topk=topk, ranks=self.ep)

    def of(self, letter: str) -> InferenceRank:
        """The device as a block of ``letter`` has it."""
        return replace(self, shape=self.shape.of(letter), local=self.local.of(letter))

    @property
    def cache_width(self) -> float:
        """Bytes per element of keys and values."""
        kv = self.kv_type
        return self.width if kv is None else kv.width_bytes

    @property
    def kv_type(self) -> DType | None:
        """The type of keys and values: as asked for, else the checkpoint's; None: the model's."""
        held = self.shape.quantization
        return self.kv or (None if held is None else held.kv)

    @property
    def held(self) -> Quantization | None:
        """How the checkpoint holds its weights, where nothing else was asked for."""
        return self.shape.quantization if self.linear is None and self.experts is None else None

    def narrow(self, op: LayerOp) -> NarrowWeights | None:
        """A product's weights where they are narrower than the model's type: as asked for, else the checkpoint's."""
        if not isinstance(op.model, GEMM | GroupedGEMM):
            return None
        if self.held is not None:
            return self.held.of(op.name)
        asked = self.experts if op.split == "experts" else None if op.name == "logits" else self.linear
        return None if asked is None else NarrowWeights(dtype=asked)

    def own(self, tokens: int) -> int:
        """Tokens of the requests that this device attends to."""
        return -(-tokens // self.dp)

    def placed(self, op: LayerOp, tokens: int) -> LayerOp:
        """``op`` in the engine's element types; products of experts with this device's experts and rows."""
        model: PerfModel = op.model
        experts = self.local.experts
        if isinstance(model, GroupedGEMM) and experts is not None:
            mean = tokens * experts.top_k / self.ep
            rows = math.ceil(mean * self.traffic.rows_imbalance * self.imbalance)
            active = min(experts.count // self.ep, rows, math.ceil(self.traffic.touched(tokens)))
            model = self._narrowed(replace(model, m=rows, groups=max(active, 1)), self.narrow(op))
        elif isinstance(model, GEMM):
            model = self._narrowed(model, self.narrow(op))
        else:
            model = self.cached(model)
        return op if model is op.model else replace(op, model=model)

    def cached(self, core: PerfModel) -> PerfModel:
        """``core`` with keys and values in the cache's type."""
        kv = self.kv_type
        if kv is None:
            return core
        if isinstance(core, SDPA):
            return replace(core, dtype_k=kv, dtype_v=kv)
        return replace(core, dtype_kv=kv) if isinstance(core, SelectiveAttention) else core

    def weight_bytes(self, op: LayerOp) -> float:
        """Bytes of an operation's weights on this device."""
        narrow, share = self.narrow(op), 1 / self.ep if op.split == "experts" else 1.0
        return op.count * op.weights * (self.width if narrow is None else narrow.bytes_per_weight) * share

    def _narrowed(self, model: M, narrow: NarrowWeights | None) -> M:
        """A product with narrow weights: multiplied as they say where the device has a rate for it, else widened to the
        activations' type on the way.
        """
        if narrow is None:
            return model
        kept, computed = model.dtype, narrow.computed or narrow.dtype
        return replace(
            model, dtype=computed if computed in self.multiplied else kept, dtype_b=narrow.dtype, dtype_out=kept
        )
