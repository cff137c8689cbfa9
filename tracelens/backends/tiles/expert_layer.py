"""A fused expert layer on one rank: sorting, two grouped products, activation, the weighted sum; no exchange.

The grouped products take the best of five tiles over the blocks of rows that each expert really has; only experts with
rows are read. The weighted sum runs over the tokens of all ranks, also those without a local expert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.column_batch import OUTPUT_BYTES, Basis, Chip, ColumnBatch, Priced, pricer
from tracelens.backends.kernels.kernel_costs import Rates
from tracelens.backends.tiles import gemm_tiles
from tracelens.hardware import HardwareSpec
from tracelens.hardware.tile_constants import Calibration
from tracelens.lazy.records import dataclass
from tracelens.perf_models.gemm import product_flops
from tracelens.perf_models.work_columns import WorkColumns

TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
#: Rows of the blocks that ``MoEColumns.blocks`` must hold.
BLOCKS = tuple(sorted({rows for rows, _ in TILES}))
_FEW_WAVES = 8
_UNALIGNED_FFN = 0.8
#: As in ``kernels``: misses rise from none to all while the weights grow from ``cache`` of L2 by half of that.
_MISS_SLOPE = 2.0
#: Shares of a rank below this, times the ranks, are even loads.
_EVEN = 1.001


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
    #: As engines' layers are measured: weights that fit into L2 are found there.
    as_layer: bool = False

    def flops(self) -> Floats:
        """Both products."""
        flops: Floats = product_flops(self.rows, self.hidden, self.ffn) * (2 + self.gated)
        return flops

    def hbm_bytes(self) -> Floats:
        """Weights of the active experts, this rank's rows read, as many written."""
        weights = self.active * self.hidden * self.ffn * (2 + self.gated) * self.width_bytes
        return weights + 2 * OUTPUT_BYTES * np.minimum(self.rows, self.tokens) * self.hidden

    def measured_as(self, device: HardwareSpec) -> Basis:
        """The constants' row."""
        return Basis.of(device.calibration("moe", self.precision), device, self.precision, len(self))

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
    chip, rates = Chip.of(device, c.precision), Rates.of(device)
    if chip is None or rates is None:
        return None
    if constants.kernel == "replayed":
        c = _replayed(c)
    w = c.width_bytes
    ffn = np.maximum(c.ffn, constants.get("least_ffn", 1.0))
    both, compute, memory = np.zeros(len(c)), np.zeros(len(c)), np.zeros(len(c))
    for n, k in (((1 + c.gated) * ffn, c.hidden), (c.hidden, ffn)):
        time, computing, loading = _grouped(c, n, k, chip, rates, constants)
        both, compute, memory = both + time, compute + computing, memory + loading
    scales = 0.0 if c.precision == "bf16" else w
    costs = {
        "permute_passes": c.rows * c.hidden * (w + scales + 4) / chip.hbm,
        "activate_passes": c.rows * c.ffn * (2 * (1 + c.gated) + 2 + scales) / chip.hbm,
        "combine_passes": 2 * c.tokens * c.hidden * (1 - 1 / c.ranks) / chip.hbm,
        "copies_us": np.log2(1 + c.tokens * c.topk) / 10,
        "depth_us": (c.hidden + c.ffn) / 1000,
        "experts_us": c.local_experts * c.ranks / 100,
        "active_us": c.active / 100,
    }
    time = constants["launch_us"] + both + sum(us * constants.get(name, 0.0) for name, us in costs.items())
    kept = rates.l2_bytes if c.as_layer else 0.0
    least = np.maximum(c.flops() / chip.peak, np.maximum(c.hbm_bytes() - kept, 0) / chip.hbm)
    return Priced(time_us=np.maximum(time, least), compute_us=compute, memory_us=memory, peak_us=least)


def _replayed(c: MoEColumns) -> MoEColumns:
    """Each token with a local expert runs top k of them: a guess at how A100's was measured."""
    share = c.rows / (c.tokens * c.topk)
    reached = np.where(share * c.ranks < _EVEN, c.tokens, c.tokens * (1 - (1 - np.minimum(share, 1)) ** c.topk))
    more = np.maximum(c.topk * np.minimum(c.rows, reached) / np.maximum(c.rows, 1), 1)
    rows = c.rows * more
    return replace(c, rows=rows, blocks={size: np.maximum(of, np.ceil(rows / size)) for size, of in c.blocks.items()})


def _grouped(
    c: MoEColumns, n: Floats, k: Floats, chip: Chip, rates: Rates, constants: Calibration
) -> tuple[Floats, Floats, Floats]:
    """(time, computing, reading weights and rows), in us.

    Timed again and again, weights that fit into L2 stay there. An expert's weights that exceed it are read once per
    wave.
    """
    w, overlap = c.width_bytes, constants.get("overlap", 8.0)
    l2_bytes, on_chip = rates.l2_bytes, constants.get("l2_efficiency", 1.0) * rates.l2
    flops = constants["matrix_efficiency"] * chip.peak / chip.units
    every = c.active * c.hidden * c.ffn * (2 + c.gated) * w
    filled = every / (constants.get("cache", 1.0) * l2_bytes) if c.as_layer else np.inf
    missed = np.clip((filled - 1) * _MISS_SLOPE, 0, 1)
    loading = missed * (c.active * n * k * w + c.rows * (k * w + 2 * n)) / (constants["hbm_efficiency"] * chip.hbm)
    expert = (n * k * w / (constants.get("spill_cache", 1.0) * l2_bytes)) ** 3
    slow = (1 + constants.get("spill", 0.0) * expert / (1 + expert)) * np.where(
        c.ffn % 16 != 0, 1 + constants.get("unaligned", _UNALIGNED_FFN), 1.0
    )
    best, fastest = np.full(len(c), np.inf), np.full(len(c), np.inf)
    for tm, tn in TILES:
        tiles = c.blocks[tm] * np.ceil(n / tn)
        waves = np.maximum(1.0, tiles / chip.units)
        # Few waves end together; of many, units start the next at different times.
        waves = np.where(waves < _FEW_WAVES, np.ceil(waves), np.maximum(waves + 0.5, _FEW_WAVES))
        computing = slow * waves * 2 * tm * tn * (k + 64 * constants.get("k_overhead", 0.0)) / flops
        busy = np.maximum(computing, slow * w * tiles * (tm + tn) * k / on_chip)
        best = np.minimum(best, (busy**overlap + loading**overlap) ** (1 / overlap))
        fastest = np.minimum(fastest, computing)
    return np.where(c.rows > 0, best, 0.0), fastest, loading
