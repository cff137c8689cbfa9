"""One device of a serving engine: what it has of the model, and its share of a step's operations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from tracelens.dtypes import DType
from tracelens.errors import UsageError
from tracelens.perf_models import GEMM, SDPA, GroupedGEMM, PerfModel
from tracelens.workload.expert_traffic import ExpertTraffic, expert_traffic
from tracelens.workload.layer_ops import LayerOp
from tracelens.workload.model_shape import ModelShape
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
            model = self._narrowed(replace(model, m=rows, groups=max(active, 1)), self.experts)
        elif isinstance(model, GEMM):
            model = self._narrowed(model, self.linear)
        elif isinstance(model, SDPA):
            model = self.cached(model)
        return op if model is op.model else replace(op, model=model)

    def cached(self, core: SDPA) -> SDPA:
        """``core`` with keys and values in the cache's type."""
        return core if self.kv is None else replace(core, dtype_k=self.kv, dtype_v=self.kv)

    def weight_bytes(self, op: LayerOp) -> float:
        """Bytes of an operation's weights on this device."""
        if op.split == "experts":
            dtype, share = self.experts, 1 / self.ep
        else:
            dtype, share = (self.linear if isinstance(op.model, GEMM) else None), 1.0
        return op.count * op.weights * (self.width if dtype is None else dtype.width_bytes) * share

    def _narrowed(self, model: M, narrow: DType | None) -> M:
        """A product with weights of ``narrow``: multiplied in that type where the device has a rate for it, else
        widened to the activations' on the way.
        """
        if narrow is None:
            return model
        kept = model.dtype
        return replace(model, dtype=narrow if narrow in self.multiplied else kept, dtype_b=narrow, dtype_out=kept)
