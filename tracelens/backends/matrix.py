"""Matrix products by tiles: waves over the compute units, the k loop, L2 and HBM traffic, split k.

The larger of computing and loading hides most of the smaller: the cubic norm of both, between maximum and sum.
``docs/estimation.md`` has the measured error per device, and what each term is worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.family_columns import OUTPUT_BYTES, GEMMColumns, Priced, hbm_peak, matrix_peak
from tracelens.hardware import HardwareSpec
from tracelens.hardware.tile_constants import Calibration

UNLIMITED = float("inf")
#: Elements of k that one dequantizing or quantizing pass of a row covers: 256 threads of 8.
QUANTIZED_PER_PASS = 2048
# Of the first pass, which also starts the work-group: 0.55-0.6 fitted on H100, H200, B200 and GB200.
FURTHER_PASS = 0.6
SMALL_HOST_ROWS = 24
HOST_ROW_ALIGNMENT = 4
SCALE_BLOCK = 128
SMALLEST_BLOCKED_N = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a library chooses from: (rows, columns, most rows of A for which it is offered), parts of k."""

    tiles: tuple[tuple[int, int, float], ...]
    splits: tuple[int, ...] = (1,)


def _tiles(*pairs: tuple[int, int]) -> tuple[tuple[int, int, float], ...]:
    return tuple((tm, tn, UNLIMITED) for tm, tn in pairs)


_LARGE = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
#: Name in device files -> choice. Caps keep time monotone: more rows only ever take choices away.
KERNELS: dict[str, Kernel] = {
    "cublas": Kernel(
        tiles=_tiles(
            *_LARGE, (64, 256), (256, 64), (64, 32), (64, 16), (32, 64), (16, 64), (256, 256), (128, 192), (192, 128),
            (128, 32), (128, 16),
        ),
        splits=(1, 2, 4, 8, 16),
    ),
    # vLLM's dispatch for Hopper, by rows: csrc/quantization/cutlass_w8a8/c3x/scaled_mm_sm90_fp8_dispatch.cuh
    "cutlass-sm90": Kernel(tiles=((64, 64, 64), (64, 128, 128), (128, 128, UNLIMITED))),
    "cutlass": Kernel(tiles=_tiles(*_LARGE)),
    "hipblaslt": Kernel(tiles=_tiles(*_LARGE, (256, 256), (64, 32), (32, 64), (16, 64)), splits=(1, 2, 4, 8)),
}  # fmt: skip


def price(columns: GEMMColumns, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """Time of every product; None where the device has no rate for the precision, or no such kernel is known."""
    peak, hbm, units = matrix_peak(device, columns.precision), hbm_peak(device), device.compute_units
    kernel = constants.chosen(KERNELS)
    if peak is None or hbm is None or units is None or kernel is None:
        return None
    with np.errstate(over="ignore"):
        return _priced(columns, peak, hbm, units, device.clock_scale, constants, kernel)


def _priced(
    c: GEMMColumns, peak: float, hbm: float, units: int, clock: float, constants: Calibration, kernel: Kernel
) -> Priced:
    of_a, of_b = c.widths
    flop_us = 1 / (constants["matrix_efficiency"] * peak / units)
    byte_us = 1 / (constants["hbm_efficiency"] * hbm)
    unit_us = units * byte_us / constants.get("unit_ratio", UNLIMITED)
    l2_us = 1 / (constants.get("l2_ratio", UNLIMITED) * hbm * clock)
    store_us = units / (constants.get("store_efficiency", UNLIMITED) * hbm)
    pad, split_us = constants.get("k_overhead", 0.0), constants.get("split_us", 0.0)

    unique, flops = c.hbm_bytes(), c.flops()
    memory = unique * byte_us
    # Cubes of the times, without and with a split k.
    whole, parted, computing = (np.full(len(c), np.inf) for _ in range(3))
    per_group = c.m / c.groups
    heights = {tm for tm, _, _ in kernel.tiles}
    high = {tm: c.b * (c.groups * np.ceil(per_group / tm) if c.blocks is None else c.blocks[tm]) for tm in heights}
    depths = {split: c.k if split == 1 else np.ceil(c.k / split) for split in kernel.splits}
    padded = {split: (k + pad) ** 1.5 for split, k in depths.items()}
    across = {tn: np.ceil(c.n / tn) for tn in {tn for _, tn, _ in kernel.tiles}}
    for tm, tn, most_rows in kernel.tiles:
        tiles = high[tm] * across[tn]
        area = 2 * tm * tn * flop_us
        loads, stores = of_a * tm + of_b * tn, OUTPUT_BYTES * tm * tn
        writing = (stores * store_us) ** 1.5
        offered = np.flatnonzero(c.m <= most_rows) if most_rows < UNLIMITED else None
        for split in kernel.splits:
            if split > 1:
                # Splitting pays where units are idle. Fewer rows only ever add this choice, so time stays monotone.
                offered = np.flatnonzero(tiles * split <= 2 * units)
            if offered is not None and not len(offered):
                continue
            at = slice(None) if offered is None else offered
            t, k = tiles[at] * split, depths[split][at]
            waves = np.ceil(t / units)
            # A tile's products and its stores: the norm of order 1.5, here to the third power.
            turns = area**1.5 * padded[split][at] + writing
            busy = waves * waves * waves * (turns * turns)
            loading = np.maximum(waves * ((loads * k + stores) * unit_us), t * k * (loads * l2_us))
            traffic = memory[at]
            if split > 1:
                traffic = traffic + 2 * 4 * split * (c.b * c.m * c.n)[at] * byte_us
            # Roots cost as much as the rest: they are taken once, of the least.
            best = whole if split == 1 else parted
            chip = np.maximum(busy, loading * loading * loading)
            best[at] = np.minimum(best[at], chip + traffic * traffic * traffic)
            computing[at] = np.minimum(computing[at], busy)
    times = np.minimum(np.cbrt(whole), np.cbrt(parted) + split_us)
    times = times + constants.get("launch_us", 0.0)
    if c.as_layer:
        times = _with_host(c, times + _quantizing(c, constants), constants)
    least = np.maximum(flops / peak, unique / hbm)
    return Priced(time_us=np.maximum(times, least), compute_us=np.cbrt(computing), memory_us=memory, peak_us=least)


def _quantizing(c: GEMMColumns, constants: Calibration) -> Floats:
    """The pass that narrows A before the product, one work-group per row; and the library's detour for one row."""
    passes = 1 + FURTHER_PASS * (np.ceil(c.k / QUANTIZED_PER_PASS) - 1)
    narrowed = c.b * c.m * 1e-3 * constants.get("row_ns", 0.0) * passes
    return narrowed + np.where(c.m == 1, constants.get("single_row_us", 0.0), 0.0)


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
    together: Floats = np.power(times**6 + host**6, 1 / 6)
    return together
