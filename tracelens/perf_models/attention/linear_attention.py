"""Linear attention: every head keeps a state of ``d_k`` x ``d_v`` instead of keys and values."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Literal, TypeAlias

from tracelens.dtypes import DType
from tracelens.errors import SignatureError
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel, total_bytes
from tracelens.perf_models.inference_attention import InferenceAttention
from tracelens.perf_models.sdpa import SDPABackward
from tracelens.signature import OpSignature

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention(PerfModel):
    """Every value head keeps a state of d_k x d_v that each token decays, updates and reads by ``rule``.

    flops = 7*d_k*d_v per token and value head: decay 1, prediction 2, update 2, output 2; 5 without prediction.
    bytes = q, k and v (``qkv_width`` per token) and gates read, o written; and the state of each of ``sequences`` read
    and written once, where an engine keeps it between calls. Else it stays on chip. A chunked kernel does more
    arithmetic. ``assumed`` says which dimension the trace does not hold (see ``parameters``).
    """

    category: ClassVar[str] = InferenceAttention.category
    engine: ClassVar[str] = "matrix"
    priced_as: ClassVar[str | None] = "linear-attention"
    family: ClassVar[str | None] = "InferenceAttention_fwd"

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
        flops: int = state_flops(self.rule, self.tokens, self.v_heads, self.d_k, self.d_v)
        return flops

    def hbm_bytes(self) -> int | float | None:
        states = 2 * (self.sequences or 0) * self.v_heads * self.d_k * self.d_v
        return total_bytes(
            (self.tokens * (self.qkv_width + self.gates + self.v_heads * self.d_v), self.dtype),
            (states, self.dtype_state),
        )

    def backward(self) -> LinearAttentionBackward:
        """The gradient of the same call."""
        return LinearAttentionBackward(**{f.name: getattr(self, f.name) for f in fields(LinearAttention)})


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttentionBackward(LinearAttention):
    """The gradients of q, k, v and the gates: each product has two, so twice the forward's flops.

    bytes = q, k, v, gates and the output's gradient read, their gradients written.
    """

    category: ClassVar[str] = SDPABackward.category
    family: ClassVar[str | None] = None
    gradient: ClassVar[bool] = True

    def flops(self) -> int:
        flops: int = 2 * state_flops(self.rule, self.tokens, self.v_heads, self.d_k, self.d_v)
        return flops

    def hbm_bytes(self) -> int | float | None:
        per_token = 2 * (self.qkv_width + self.gates) + self.v_heads * self.d_v
        return total_bytes((self.tokens * per_token, self.dtype))


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
