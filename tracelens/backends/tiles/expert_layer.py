"""A fused expert layer on one rank: sorting, two grouped products, activation, the weighted sum; no exchange.

The grouped products take the best of five tiles over the blocks of rows that each expert really has; only experts with
rows are read. The weighted sum runs over the tokens of all ranks, also those without a local expert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.column_batch import (
    OUTPUT_BYTES,
    Chip,
    ColumnBatch,
    Priced,
    pricer,
)
from tracelens.backends.tiles import gemm_tiles
from tracelens.hardware import HardwareSpec
from tracelens.hardware.tile_constants import Calibration
from tracelens.perf_models.matrix.gemm import product_flops
from tracelens.perf_models.work_columns import WorkColumns

TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
#: Rows of the blocks that ``MoEColumns.blocks`` must hold.
BLOCKS = tuple(sorted({rows for rows, _ in TILES}))
_FEW_WAVES = 8
_UNALIGNED_FFN = 1.8
_WIDE_FFN = 5000.0
_LEAST_FFN = 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MoEColumns(ColumnBatch):
    """Fused expert layers on one rank: routing, permutation, both products and the weighted sum; no exchange.

    ``tokens`` over all expert-parallel ranks; ``rows`` are those that this rank's experts get, ``active`` its experts
    with at least one. ``ranks`` share the experts out, ``local_experts`` to each.
    ``blocks[t]``: sum over its experts of ceil(rows / t). ``ffn`` is this rank's share.
    """

    family: ClassVar[str] = "moe"

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

    def flops(self) -> Floats:
        """Both products."""
        flops: Floats = product_flops(self.rows, self.hidden, self.ffn) * (2 + self.gated)
        return flops

    def hbm_bytes(self) -> Floats:
        """Weights of the active experts, this rank's rows read, as many written."""
        weights = self.active * self.hidden * self.ffn * (2 + self.gated) * self.width_bytes
        return weights + 2 * OUTPUT_BYTES * np.minimum(self.rows, self.tokens) * self.hidden

    def _price(self, device: HardwareSpec) -> Priced | None:
        constants = device.calibration("moe", self.precision)
        return None if constants is None else price(self, device, constants)


def calibrated_row(model: Any) -> tuple[str, str] | None:
    """The constants that price a layer, or one projection of it."""
    which = gemm_tiles.precision(model)
    return gemm_tiles.calibrated_row(model) or (None if which is None else ("moe", which))


@pricer("moe", row=calibrated_row)
def layers(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Fused layers; the projections of unfused ones are grouped products."""
    models: tuple[Any, ...] = work.models
    single = [row for row, model in enumerate(models) if model.products()]
    parts: list[tuple[list[int], Priced | None]] = [(single, gemm_tiles.products(work.take(single), device))]
    batches: dict[str, list[int]] = defaultdict(list)
    for row, model in enumerate(models):
        which = gemm_tiles.precision(model)
        # Nothing was measured on fused layers that widen their weights.
        if which is not None and model.widened is None and not model.products():
            batches[which].append(row)
    parts += [(rows, _batch(which, [models[row] for row in rows]).price(device)) for which, rows in batches.items()]
    return Priced.summed(len(work), parts)


def _batch(which: str, models: Sequence[Any]) -> MoEColumns:
    """All experts on one rank, rows even among those that uniform routing touches."""
    names = ("tokens", "top_k", "read_experts", "hidden", "ffn", "gated", "experts")
    values = np.array([[getattr(model, name) for name in names] for model in models], dtype=np.float64)
    tokens, topk, active, hidden, ffn, gated, experts = values.T
    rows = tokens * topk
    return MoEColumns(
        precision=which, tokens=tokens, hidden=hidden, ffn=ffn, gated=gated, ranks=np.ones(len(models)), topk=topk,
        local_experts=experts, rows=rows, active=active,
        blocks={size: active * np.ceil(rows / np.maximum(active, 1) / size) for size in BLOCKS},
    )  # fmt: skip


def price(c: MoEColumns, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """Time of every layer; None without the device's rates."""
    chip = Chip.of(device, c.precision)
    if chip is None:
        return None
    if constants.kernel == "replayed":
        c = _replayed(c)
    w = c.width_bytes
    # Tiles of 128 columns; narrow shares of an expert are padded by the block-scaled kernels.
    ffn = np.maximum(c.ffn, _LEAST_FFN) if constants.kernel == "padded" else c.ffn
    both, compute, memory = np.zeros(len(c)), np.zeros(len(c)), np.zeros(len(c))
    for n, k in (((1 + c.gated) * ffn, c.hidden), (c.hidden, ffn)):
        time, computing, loading = _grouped(c, n, k, w, chip, constants)
        both, compute, memory = both + time, compute + computing, memory + loading
    slow = 1 + constants.get("wide_ffn", 0.0) * c.ffn**4 / (c.ffn**4 + _WIDE_FFN**4)
    slow = slow * np.where(c.ffn % 16 != 0, _UNALIGNED_FFN, 1.0)
    scales = 0.0 if c.precision == "bf16" else w
    permuted = c.rows * (c.hidden * (w + scales + 4) + c.ffn * (2 * (1 + c.gated) + 2 + scales))
    summed = 2 * c.tokens * c.hidden * (1 - 1 / c.ranks)
    sorting = constants.get("sort_us", 0.0) * np.clip(np.log2(c.tokens) / 3 - 1, 0, 1)
    time = (
        constants["launch_us"]
        + sorting
        + both * slow
        + permuted * constants.get("permute_passes", 0.0) / chip.hbm
        + summed * constants.get("combine_passes", 0.0) / chip.hbm
    )
    least = np.maximum(c.flops() / chip.peak, c.hbm_bytes() / chip.hbm)
    return Priced(time_us=np.maximum(time, least), compute_us=compute, memory_us=memory, peak_us=least)


def _replayed(c: MoEColumns) -> MoEColumns:
    """Each token with a local expert runs min(top k, local experts) of them: a guess at how A100's was measured."""
    reached = np.minimum(c.rows, c.tokens * (1 - (1 - 1 / c.ranks) ** c.topk))
    more = np.maximum(np.minimum(c.topk, c.local_experts) * reached / np.maximum(c.rows, 1), 1)
    rows = c.rows * more
    return replace(c, rows=rows, blocks={size: np.maximum(of, np.ceil(rows / size)) for size, of in c.blocks.items()})


def _grouped(
    c: MoEColumns, n: Floats, k: Floats, w: float, chip: Chip, constants: Calibration
) -> tuple[Floats, Floats, Floats]:
    """(time, computing, reading the weights), in us."""
    l2 = constants.get("l2_ratio", 2.3) * chip.hbm * chip.clock
    flops = constants["matrix_efficiency"] * chip.peak / chip.units
    loading = (c.active * n * k * w + c.rows * (k * w + 2 * n)) / (constants["hbm_efficiency"] * chip.hbm)
    best, fastest = np.full(len(c), np.inf), np.full(len(c), np.inf)
    for tm, tn in TILES:
        tiles = c.blocks[tm] * np.ceil(n / tn)
        waves = np.maximum(1.0, tiles / chip.units)
        # Few waves end together; of many, units start the next at different times.
        waves = np.where(waves < _FEW_WAVES, np.ceil(waves), np.maximum(waves + 0.5, _FEW_WAVES))
        computing = waves * 2 * tm * tn * (k + 64 * constants.get("k_overhead", 0.0)) / flops
        best = np.minimum(best, np.maximum(computing, np.maximum(w * tiles * (tm + tn) * k / l2, loading)))
        fastest = np.minimum(fastest, computing)
    return np.where(c.rows > 0, best, 0.0), fastest, loading
