"""Dimensions of many operations of one family as arrays: what the tile model reads.

All rows of a store have one ``precision`` (a row of ``[calibrated.*]`` in device files), so a million rows are a dozen
arrays and no objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import Floats
from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.units import TERA_PER_S_IN_PER_US

#: Bytes per element of the operands: MXFP8 stores a scale byte per 32 elements, NVFP4 one per 16.
WIDTH: Mapping[str, float] = MappingProxyType(
    {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "mxfp8": 1.03125, "nvfp4": 0.5625}
)
#: Precision -> the type whose matrix rate applies.
RATE: Mapping[str, DType] = MappingProxyType(
    {
        "bf16": DType.BF16, "fp8": DType.FP8_E4M3FN, "fp8_block": DType.FP8_E4M3FN, "mxfp8": DType.FP8_E4M3FN,
        "nvfp4": DType.FP4_E2M1,
    }
)  # fmt: skip
OUTPUT_BYTES = 2.0
Part: TypeAlias = slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp] | list[int]
#: Heights of tiles that any kernel has.
TILE_ROWS = (16, 32, 64, 128, 192, 256)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GEMMColumns:
    """``b`` products ``[m,k] @ [k,n]``; ``groups`` > 1 shares the ``m`` rows evenly out among that many B.

    ``blocks``: where the groups differ in rows, the sum over them of ceil(rows / size) by size.
    ``as_layer``: what an inference engine's linear layer takes, as measured tables hold it: A arrives in two bytes and
    is quantized first, and the host launches it all. Else the product alone, as a trace's kernel.
    ``b_width``: bytes per element of a B that is narrower than ``precision`` and widened on the way.
    """

    precision: str
    m: Floats
    n: Floats
    k: Floats
    b: Floats
    groups: Floats
    blocks: Mapping[int, Floats] | None = None
    as_layer: bool = False
    b_width: float | None = None

    @property
    def widths(self) -> tuple[float, float]:
        """Bytes per element of A and of B."""
        w = WIDTH[self.precision]
        return w, w if self.b_width is None else self.b_width

    @classmethod
    def ragged(cls, precision: str, rows: Sequence[Sequence[int]], n: Floats, k: Floats) -> Self:
        """Grouped products; ``rows`` of every group of every one. Groups without rows cost nothing."""
        counts = [np.array([r for r in groups if r > 0], dtype=np.float64) for groups in rows]
        plain = cls.of(precision, np.array([c.sum() for c in counts]), n, k)
        return replace(
            plain,
            groups=np.array([float(len(c)) for c in counts]),
            blocks={size: np.array([np.ceil(c / size).sum() for c in counts]) for size in TILE_ROWS},
        )

    @classmethod
    def of(
        cls,
        precision: str,
        m: Floats,
        n: Floats,
        k: Floats,
        b: Floats | None = None,
        groups: Floats | None = None,
        *,
        as_layer: bool = False,
        b_width: float | None = None,
    ) -> Self:
        """Plain products where ``b`` and ``groups`` are not given."""
        one = np.ones(len(m))
        return cls(
            precision=precision,
            m=np.asarray(m, float),
            n=np.asarray(n, float),
            k=np.asarray(k, float),
            b=one if b is None else b,
            groups=one if groups is None else groups,
            as_layer=as_layer,
            b_width=b_width,
        )

    def __len__(self) -> int:
        return len(self.m)

    def take(self, part: Part) -> Self:
        """Some of the rows."""
        blocks = None if self.blocks is None else {size: of[part] for size, of in self.blocks.items()}
        return replace(self, **_arrays(self, part), blocks=blocks)

    def flops(self) -> Floats:
        """As ``GEMM.flops`` and ``GroupedGEMM.flops``, without bias."""
        return 2 * self.b * self.m * self.n * self.k

    def hbm_bytes(self) -> Floats:
        """As ``hbm_bytes`` of the perf models, C in two bytes."""
        of_a, of_b = self.widths
        operands = of_a * self.m * self.k + of_b * self.groups * self.n * self.k
        return self.b * (operands + OUTPUT_BYTES * self.m * self.n)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionColumns:
    """Attention of ``s`` new tokens over ``past + s`` keys; ``window`` is infinite where there is none.

    ``causal`` 0 or 1. With ``s`` 1 it is one decode step. ``precision`` is the cache's. ``as_layer``: as an inference
    engine runs it, which also appends the new keys and values to the paged cache. Else the kernel alone.
    ``value_in_key``: latent attention after absorption, whose values are the first ``d_v`` elements of the keys' rows.
    """

    precision: str
    b: Floats
    s: Floats
    past: Floats
    q_heads: Floats
    kv_heads: Floats
    d_qk: Floats
    d_v: Floats
    window: Floats
    causal: Floats
    as_layer: bool = False
    value_in_key: bool = False

    def __len__(self) -> int:
        return len(self.b)

    def take(self, part: Part) -> Self:
        """Some of the rows."""
        return replace(self, **_arrays(self, part))

    @property
    def keys(self) -> Floats:
        """Keys in all per sequence."""
        return self.past + self.s

    @property
    def cache_width(self) -> Floats:
        """Elements that the cache holds per key and key head."""
        return self.d_qk if self.value_in_key else self.d_qk + self.d_v

    def pairs(self) -> Floats:
        """Attended (query, key) pairs per head, over the batch; as ``attended_pairs``."""
        window = np.minimum(self.window, self.keys)
        # Query i of s sees past + i + 1 keys, at most a window: a ramp up to the window, then flat.
        ramp = np.clip(window - self.past, 0, self.s)
        causal = ramp * self.past + ramp * (ramp + 1) / 2 + (self.s - ramp) * window
        return self.b * np.where(self.causal > 0, causal, self.s * self.keys)

    def flops(self) -> Floats:
        """As ``SDPA.flops``."""
        return 2 * self.q_heads * self.pairs() * (self.d_qk + self.d_v)

    def hbm_bytes(self) -> Floats:
        """Q, O and the new K and V once in two bytes; the cached keys that some query sees, in the cache's type."""
        cached = np.where(self.causal > 0, np.minimum(self.past, self.window), self.past)
        new = self.q_heads * (self.d_qk + self.d_v) + self.kv_heads * self.cache_width
        read = WIDTH[self.precision] * cached * self.kv_heads * self.cache_width
        return self.b * (OUTPUT_BYTES * self.s * new + read)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MoEColumns:
    """Fused expert layers on one rank: routing, permutation, both products and the weighted sum; no exchange.

    ``tokens`` over all expert-parallel ranks; ``rows`` are those that this rank's experts get, ``active`` its experts
    with at least one. ``ranks`` share the experts out, ``local_experts`` to each.
    ``blocks[t]``: sum over its experts of ceil(rows / t). ``ffn`` is this rank's share.
    """

    precision: str
    tokens: Floats
    hidden: Floats
    ffn: Floats
    gated: Floats
    ranks: Floats
    topk: Floats
    local_experts: Floats
    rows: Floats
    active: Floats
    blocks: Mapping[int, Floats]

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, part: Part) -> Self:
        """Some of the rows."""
        return replace(self, **_arrays(self, part), blocks={rows: of[part] for rows, of in self.blocks.items()})

    def flops(self) -> Floats:
        """Both products."""
        return 2 * self.rows * self.hidden * self.ffn * (2 + self.gated)

    def hbm_bytes(self) -> Floats:
        """Weights of the active experts, this rank's rows read, as many written."""
        weights = self.active * self.hidden * self.ffn * (2 + self.gated) * WIDTH[self.precision]
        return weights + 2 * OUTPUT_BYTES * np.minimum(self.rows, self.tokens) * self.hidden


def _arrays(columns: Columns, part: Part) -> dict[str, Any]:
    values = ((f.name, getattr(columns, f.name)) for f in fields(columns))
    return {name: value[part] for name, value in values if isinstance(value, np.ndarray)}


Columns = GEMMColumns | AttentionColumns | MoEColumns


def matrix_peak(device: HardwareSpec, precision: str) -> float | None:
    """Flops per us of the dense data-sheet rate; None where the file has none."""
    rate = device.rate("matrix", RATE[precision])
    return None if rate is None else rate.peak_tflops_s * TERA_PER_S_IN_PER_US


def hbm_peak(device: HardwareSpec) -> float | None:
    """Bytes per us; None where the file has none."""
    if device.hbm is None or device.hbm.peak_tb_s is None:
        return None
    return device.hbm.peak_tb_s * TERA_PER_S_IN_PER_US


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """Times in us of one store: in all, of the arithmetic alone, of memory alone, and the data sheet's least."""

    time_us: Floats
    compute_us: Floats
    memory_us: Floats
    peak_us: Floats


def joined(parts: Sequence[Priced]) -> Priced:
    """One after the other."""
    return Priced(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Priced)})
