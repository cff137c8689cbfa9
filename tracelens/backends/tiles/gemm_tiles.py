"""Matrix products by tiles (waves over the compute units, the k loop, L2 and HBM traffic, split k), and a fused expert
layer on one rank, made of two grouped products.

The larger of computing and loading hides most of the smaller: the cubic norm of both, between maximum and sum.
``docs/estimation_errors.csv`` has the measured error per device.

An expert layer sorts, multiplies, activates, multiplies and adds up by weight; it exchanges nothing. Its grouped
products take the best of five tiles over the blocks of rows that each expert really has; only experts with rows are
read. The weighted sum runs over the tokens of all ranks, also those without a local expert.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from tracelens.backends.base import OUTPUT_BYTES, Basis, Chip, ColumnBatch, Floats, Priced, pricer
from tracelens.backends.kernels.kernel_costs import KernelColumns, KernelRates
from tracelens.backends.kernels.tile_model_kernels import GEMM_AITER
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.perf_models.gemm import GEMM, Product, product_flops, product_operands
from tracelens.perf_models.moe import MoELayer
from tracelens.types.dtypes import DType, Precision
from tracelens.types.records import Record

UNLIMITED = float("inf")
#: Elements of k that one dequantizing or quantizing pass of a row covers: 256 threads of 8.
QUANTIZED_PER_PASS = 2048
# Of the first pass, which also starts the work-group: 0.55-0.6 fitted on H100, H200, B200 and GB200.
FURTHER_PASS = 0.6
SMALL_HOST_ROWS = 24
HOST_ROW_ALIGNMENT = 4
SMALLEST_BLOCKED_N = 64
#: Heights of tiles that any kernel has.
TILE_ROWS = (16, 32, 64, 128, 192, 256)
#: Elements that share a scale where an FP8 product is block-scaled, and in the MX format.
SCALE_BLOCK, _MX_BLOCK = 128, 32
#: Time of MXFP8 products over that of FP8 ones with a scale per tensor, where nobody fitted them: a layer's twelve on
#: B300 (TransformerEngine docs/examples/gemm_profiling/gemm_profiling.rst at 8f2e635, pre-quantized).
MXFP8_LONGER = 7.161 / 6.812


class GemmTiling(Record, frozen=True, kw_only=True):
    """What a library chooses from: (rows, columns, most rows of A for which it is offered), parts of k."""

    tiles: tuple[tuple[int, int, float], ...]
    splits: tuple[int, ...] = (1,)


def _tiles(*pairs: tuple[int, int]) -> tuple[tuple[int, int, float], ...]:
    return tuple((tm, tn, UNLIMITED) for tm, tn in pairs)


_LARGE = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
#: Name in device files -> choice. Caps keep time monotone: more rows only ever take choices away.
KERNELS: dict[str, GemmTiling] = {
    "cublas": GemmTiling(
        tiles=_tiles(
            *_LARGE, (64, 256), (256, 64), (64, 32), (64, 16), (32, 64), (16, 64), (256, 256), (128, 192), (192, 128),
            (128, 32), (128, 16),
        ),
        splits=(1, 2, 4, 8, 16),
    ),
    # vLLM's dispatch for Hopper, by rows: csrc/quantization/cutlass_w8a8/c3x/scaled_mm_sm90_fp8_dispatch.cuh
    "cutlass-sm90": GemmTiling(tiles=((64, 64, 64), (64, 128, 128), (128, 128, UNLIMITED))),
    "cutlass": GemmTiling(tiles=_tiles(*_LARGE)),
    "hipblaslt": GemmTiling(tiles=_tiles(*_LARGE, (256, 256), (64, 32), (32, 64), (16, 64)), splits=(1, 2, 4, 8)),
}  # fmt: skip

#: Precisions that AMD's tuned kernels answer where a device has no constants of its own, and their types there. FP8
#: with a scale per tensor is hipBLASLt's: on MI355X the shares of BF16 are 3 to 10 % off its 4096 to 16,384 cubed
#: (HazyResearch/HipKittens), the kernels with a scale per row 20 to 32 %; those have a type of their own
#: (``fp8_rowwise``).
_TUNED = {"bf16": "bfloat16", "fp8_block": "fp8_block", "nvfp4": "mxfp4", "int8": "int8"}
#: Precisions that take the shares of FP8, else of BF16, where nobody fitted them: without any they would reach the
#: peak.
_NARROW = ("fp8", "fp8_block", "mxfp8", "int8")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GEMMColumns(ColumnBatch):
    """``b`` products ``[m,k] @ [k,n]``; ``groups`` > 1 shares the ``m`` rows evenly out among that many B.

    ``blocks``: where the groups differ in rows, the sum over them of ceil(rows / size) by size.
    ``as_layer``: what an inference engine's linear layer takes, as measured tables hold it: A arrives in two bytes and
    is quantized first, and the host launches it all. Else the product alone, as a trace's kernel.
    ``b_width``: bytes per element of a B that is narrower than ``precision`` and widened on the way.
    """

    family: ClassVar[str] = "gemm"

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
        w = self.width_bytes
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
        cls, precision: str, m: Floats, n: Floats, k: Floats, b: Floats | None = None, groups: Floats | None = None
    ) -> Self:
        """Plain products where ``b`` and ``groups`` are not given."""
        one = np.ones(len(m))
        m, n, k = (np.asarray(size, float) for size in (m, n, k))
        return cls(
            precision=precision, m=m, n=n, k=k, b=one if b is None else b, groups=one if groups is None else groups
        )

    def flops(self) -> Floats:
        """As ``GEMM.flops`` and ``GroupedGEMM.flops``, without bias."""
        return product_flops(self.m, self.n, self.k, self.b)

    def hbm_bytes(self) -> Floats:
        """As ``hbm_bytes`` of the perf models, C in two bytes."""
        a, b, c = product_operands(self.m, self.n, self.k, self.groups, (*self.widths, OUTPUT_BYTES))
        return self.b * (a + b + c)

    @classmethod
    def of_products(cls, precision: str, products: Sequence[Product], b_width: float | None) -> Self:
        """Products of perf models, with B in ``b_width``."""
        m, n, k, b, groups = np.array([product[:5] for product in products], dtype=np.float64).T.copy()
        return replace(cls.of(precision, m, n, k, b, groups), b_width=b_width)

    def measured_as(self, device: HardwareSpec) -> Basis:
        """The constants' row, or AMD's tuned kernels."""
        if self._tuned(device) is not None:
            return self._kernels().measured_as(device)
        return Basis.of(_constants(device, self.precision), device, self.precision, len(self))

    def _price(self, device: HardwareSpec) -> Priced | None:
        found = self._tuned(device)
        if found is not None:
            return found
        constants = _constants(device, self.precision)
        if constants is not None and not self.as_layer and self.precision != "bf16":
            # What was fitted on quantizing layers contains the launches around the product.
            plain = device.calibration("gemm", "bf16")
            if plain is not None:
                alone = {**constants.constants, "launch_us": plain.get("launch_us", 0.0)}
                constants = replace(constants, constants=alone)
        chip, kernel = Chip.of(device, self.precision), None if constants is None else constants.chosen(KERNELS)
        if constants is None or chip is None or kernel is None:
            return None
        with np.errstate(over="ignore"):
            return _priced(self, chip, constants, kernel)

    def _tuned(self, device: HardwareSpec) -> Priced | None:
        """By AMD's tuned kernels, where they were measured on the device or its like in this type."""
        if self.precision not in _TUNED or _constants(device, self.precision, exact=True) is not None:
            return None
        if device.vendor != "amd" or (self.groups > 1).any() or self.b_width is not None:
            return None
        batch, rates = self._kernels(), KernelRates.of(device)
        measured = {(row.device, row.case["gemm_dtype"]) for row in batch.choices(device)}
        own = {(name, _TUNED[self.precision]) for name in (device.name, device.based_on, device.calibrated_like)}
        found = batch.price(device) if measured <= own else None
        if found is None or rates is None:
            return None
        rate = Precision.of(self.precision).dtype.rate or "bf16"
        # Of operands that no cache holds.
        least = np.maximum(self.flops() / rates.flops(rate), self.hbm_bytes() / rates.hbm)
        return replace(found, time_us=np.maximum(found.time_us, least), peak_us=np.maximum(found.peak_us, least))

    def _kernels(self) -> KernelColumns:
        return KernelColumns(
            precision=self.precision, table=GEMM_AITER, case=(("gemm_dtype", _TUNED[self.precision]),),
            sizes={"m": self.m, "n": self.n, "k": self.k, "batch": self.b},
        )  # fmt: skip


def calibrated_row(model: Any) -> tuple[str, str] | None:
    """The constants that price one product; None for several."""
    which = precision(model)
    return None if which is None or len(model.products()) != 1 else ("gemm", which)


@pricer("gemm", "grouped-gemm", row=calibrated_row)
def products(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Perf models that say which ``products()`` they are, in types that somebody fitted."""
    batches: dict[tuple[str, float | None], tuple[list[int], list[Product]]] = defaultdict(lambda: ([], []))
    models: tuple[Any, ...] = work.models
    for row, model in enumerate(models):
        which = precision(model)
        if which is None:
            continue
        for product in model.products():
            rows, some = batches[which, product.b_width]
            rows.append(row)
            some.append(product)
    return Priced.summed(
        len(work),
        (
            (rows, GEMMColumns.of_products(which, some, b_width).price(device))
            for (which, b_width), (rows, some) in batches.items()
        ),
    )


def precision(model: PerfModel) -> str | None:
    """The calibration that an operation reads; None for types that nobody fitted. FP16 runs at BF16's rates."""
    dtype = model.compute_dtype
    if dtype is None:
        return None
    if dtype in (DType.BF16, DType.FP16):
        return "bf16"
    if dtype.rate == "fp8":
        scaled = isinstance(model, MoELayer) and model.scaled_by > _MX_BLOCK
        return _scaled_fp8(model) if isinstance(model, GEMM) else "fp8_block" if scaled else "fp8"
    return {"fp4": "nvfp4", "int8": "int8"}.get(dtype.rate or "")


def _scaled_fp8(model: GEMM) -> str:
    """By the number of scales: one per 32 elements of both operands, or per block of A, else per row or tensor."""
    b, m, n, k = model.b, model.m, model.n, model.k
    if model.scale_elements in {b * (of_a + of_b) for of_a in (1, m) for of_b in (1, n)}:
        return "fp8"
    if model.scale_elements * _MX_BLOCK >= b * k * (m + n) > 0:
        return "mxfp8"
    return "fp8_block" if model.scale_elements >= b * m * k / SCALE_BLOCK > 0 else "fp8"


def _constants(device: HardwareSpec, which: str, *, exact: bool = False) -> Calibration | None:
    """The constants of products in a precision; else, unless ``exact``, in one that stands in, see ``_NARROW``."""
    found = device.calibration("gemm", which)
    if found is None and which in _NARROW and not exact:
        found = device.calibration("gemm", "fp8")
        if found is None:
            return device.calibration("gemm", "bf16")
        if which == "mxfp8":
            slower = {"matrix_efficiency": found["matrix_efficiency"] / MXFP8_LONGER}
            return replace(found, constants={**found.constants, **slower})
    return found


class _Tiling:
    """Products cut into tiles on one chip: what a choice of tile and split takes, as cubes of times."""

    def __init__(self, c: GEMMColumns, chip: Chip, constants: Calibration) -> None:
        self.c, self.units, self.widths = c, chip.units, c.widths
        self.flop_us = 1 / (constants["matrix_efficiency"] * chip.peak / chip.units)
        self.byte_us = 1 / (constants["hbm_efficiency"] * chip.hbm)
        on_chip = chip.hbm * chip.on_chip
        self.unit_us = chip.units * self.byte_us / chip.on_chip / constants.get("unit_ratio", UNLIMITED)
        self.l2_us = 1 / (constants.get("l2_ratio", UNLIMITED) * on_chip * chip.clock)
        self.store_us = chip.units / (constants.get("store_efficiency", UNLIMITED) * on_chip)
        self.memory = c.hbm_bytes() * self.byte_us
        self.pad = constants.get("k_overhead", 0.0)
        self.per_group = c.m / c.groups
        # Tiles share heights, widths and depths: each is worked out once.
        self.high: dict[int, Floats] = {}
        self.across: dict[int, Floats] = {}
        self.depths: dict[int, tuple[Floats, Floats]] = {}

    def count(self, tm: int, tn: int) -> Floats:
        c = self.c
        if tm not in self.high:
            rows = c.groups * np.ceil(self.per_group / tm) if c.blocks is None else c.blocks[tm]
            self.high[tm] = c.b * rows
        if tn not in self.across:
            self.across[tn] = np.ceil(c.n / tn)
        return self.high[tm] * self.across[tn]

    def cubes(self, tm: int, tn: int, split: int, tiles: Floats, at: Any) -> tuple[Floats, Floats]:
        """Time of the rows ``at``: (computing, in all)."""
        if split not in self.depths:
            depth = self.c.k if split == 1 else np.ceil(self.c.k / split)
            self.depths[split] = depth, (depth + self.pad) ** 1.5
        of_a, of_b = self.widths
        area = 2 * tm * tn * self.flop_us
        loads, stores = of_a * tm + of_b * tn, OUTPUT_BYTES * tm * tn
        depth, padded = self.depths[split]
        t, k = tiles[at] * split, depth[at]
        waves = np.ceil(t / self.units)
        # A tile's products and its stores: the norm of order 1.5, here to the third power.
        turns = area**1.5 * padded[at] + (stores * self.store_us) ** 1.5
        busy = waves * waves * waves * (turns * turns)
        loading = np.maximum(waves * ((loads * k + stores) * self.unit_us), t * k * (loads * self.l2_us))
        traffic = self.memory[at]
        if split > 1:
            traffic = traffic + 2 * 4 * split * (self.c.b * self.c.m * self.c.n)[at] * self.byte_us
        return busy, np.maximum(busy, loading * loading * loading) + traffic * traffic * traffic


def _priced(c: GEMMColumns, chip: Chip, constants: Calibration, kernel: GemmTiling) -> Priced:
    """Time of every product by the best of the kernel's tiles."""
    tiling = _Tiling(c, chip, constants)
    # Roots cost as much as the rest: they are taken once, of the least. Without and with a split k.
    whole, parted, computing = (np.full(len(c), np.inf) for _ in range(3))
    for tm, tn, most_rows in kernel.tiles:
        tiles = tiling.count(tm, tn)
        for split in kernel.splits:
            at: Any = slice(None) if most_rows == UNLIMITED else np.flatnonzero(c.m <= most_rows)
            if split > 1:
                # Splitting pays where units are idle. Fewer rows only ever add this choice, so time stays monotone.
                at = np.flatnonzero(tiles * split <= 2 * chip.units)
                if not len(at):
                    continue
            busy, cube = tiling.cubes(tm, tn, split, tiles, at)
            best = whole if split == 1 else parted
            best[at] = np.minimum(best[at], cube)
            computing[at] = np.minimum(computing[at], busy)
    times = np.minimum(np.cbrt(whole), np.cbrt(parted) + constants.get("split_us", 0.0))
    times = times + constants.get("launch_us", 0.0)
    if c.as_layer:
        # The pass that narrows A before the product, one work-group per row; and the library's detour for one row
        passes = 1 + FURTHER_PASS * (np.ceil(c.k / QUANTIZED_PER_PASS) - 1)
        narrowed = c.b * c.m * 1e-3 * constants.get("row_ns", 0.0) * passes
        narrowed = narrowed + np.where(c.m == 1, constants.get("single_row_us", 0.0), 0.0)
        times = _with_host(c, times + narrowed, constants)
    least = np.maximum(c.flops() / chip.peak, c.hbm_bytes() / chip.hbm)
    return Priced(
        time_us=np.maximum(times, least), compute_us=np.cbrt(computing), memory_us=tiling.memory, peak_us=least
    )


def _with_host(c: GEMMColumns, times: Floats, constants: Calibration) -> Floats:
    """No shorter than the host needs to launch the kernels of the call."""
    if "host_us" not in constants.constants:
        return times
    unfilled = (c.n < SMALLEST_BLOCKED_N) | (c.k < SCALE_BLOCK)
    host = np.select(
        [unfilled, c.m <= SMALL_HOST_ROWS, c.m % HOST_ROW_ALIGNMENT != 0],
        [constants[name] for name in ("host_fallback_us", "host_small_us", "host_unaligned_us")],
        constants["host_us"],
    )
    return np.power(times**6 + host**6, 1 / 6)


EXPERT_TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
#: Rows of the blocks that ``MoEColumns.blocks`` must hold.
EXPERT_BLOCKS = tuple(sorted({rows for rows, _ in EXPERT_TILES}))
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
        return product_flops(self.rows, self.hidden, self.ffn) * (2 + self.gated)

    def hbm_bytes(self) -> Floats:
        """Weights of the active experts, this rank's rows read, as many written."""
        weights = self.active * self.hidden * self.ffn * (2 + self.gated) * self.width_bytes
        return weights + 2 * OUTPUT_BYTES * np.minimum(self.rows, self.tokens) * self.hidden

    def measured_as(self, device: HardwareSpec) -> Basis:
        return Basis.of(device.calibration("moe", self.precision), device, self.precision, len(self))

    def _price(self, device: HardwareSpec) -> Priced | None:
        constants = device.calibration("moe", self.precision)
        return None if constants is None else price_layers(self, device, constants)


def calibrated_layer_row(model: Any) -> tuple[str, str] | None:
    which = precision(model)
    return calibrated_row(model) or (None if which is None else ("moe", which))


@pricer("moe", row=calibrated_layer_row)
def layers(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Fused layers; the projections of unfused ones are grouped products."""
    models: tuple[Any, ...] = work.models
    single = [row for row, model in enumerate(models) if model.products()]
    parts: list[tuple[list[int], Priced | None]] = [(single, products(work.take(single), device))]
    batches: dict[str, list[int]] = defaultdict(list)
    for row, model in enumerate(models):
        which = precision(model)
        # Nothing was measured on fused layers that widen their weights.
        if which is not None and model.widened is None and not model.products():
            batches[which].append(row)
    parts += [
        (rows, _layer_batch(which, [models[row] for row in rows]).price(device)) for which, rows in batches.items()
    ]
    return Priced.summed(len(work), parts)


def _layer_batch(which: str, models: Sequence[Any]) -> MoEColumns:
    """All experts on one rank, rows even among those that uniform routing touches."""
    names = ("tokens", "top_k", "read_experts", "hidden", "ffn", "gated", "experts")
    values = np.array([[getattr(model, name) for name in names] for model in models], dtype=np.float64)
    tokens, topk, active, hidden, ffn, gated, experts = values.T
    rows = tokens * topk
    return MoEColumns(
        precision=which, tokens=tokens, hidden=hidden, ffn=ffn, gated=gated, ranks=np.ones(len(models)), topk=topk,
        local_experts=experts, rows=rows, active=active,
        blocks={size: active * np.ceil(rows / np.maximum(active, 1) / size) for size in EXPERT_BLOCKS},
    )  # fmt: skip


def price_layers(c: MoEColumns, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """Time of every layer; None without the device's rates."""
    chip, rates = Chip.of(device, c.precision), KernelRates.of(device)
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
    c: MoEColumns, n: Floats, k: Floats, chip: Chip, rates: KernelRates, constants: Calibration
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
    for tm, tn in EXPERT_TILES:
        tiles = c.blocks[tm] * np.ceil(n / tn)
        waves = np.maximum(1.0, tiles / chip.units)
        # Few waves end together; of many, units start the next at different times.
        waves = np.where(waves < _FEW_WAVES, np.ceil(waves), np.maximum(waves + 0.5, _FEW_WAVES))
        computing = slow * waves * 2 * tm * tn * (k + 64 * constants.get("k_overhead", 0.0)) / flops
        busy = np.maximum(computing, slow * w * tiles * (tm + tn) * k / on_chip)
        best = np.minimum(best, (busy**overlap + loading**overlap) ** (1 / overlap))
        fastest = np.minimum(fastest, computing)
    return np.where(c.rows > 0, best, 0.0), fastest, loading
