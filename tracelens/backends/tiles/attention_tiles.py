"""Attention kernel times: flash attention over new tokens, its backward, decoding over a paged cache, and linear
attention's state updates.

A work-group takes some query rows of a head and walks along the keys it sees. Forward: the tiles of its diagonal whole,
matrix and exponential time overlapped, the longest group and the last wave on top, writing the cache not hidden.
Decode: sequences split among idle units. ``docs/estimation.md`` has the errors.

Linear attention (gated DeltaNet, Kimi delta attention) uses the constants of engines' kernels, and the fastest measured
kernel counts. A gradient is two such calls: each product of the forward has two.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.backends.base import OUTPUT_BYTES, PRICED, Basis, Chip, ColumnBatch, Floats, Priced, pricer
from tracelens.backends.kernels.kernel_costs import EXP_PER_CLOCK, KernelColumns, KernelTable
from tracelens.backends.kernels.tile_model_kernels import GDN, KDA
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration
from tracelens.hardware.power import ATTENTION, DECODING, PROMPTS
from tracelens.perf_models.base import WorkColumns
from tracelens.perf_models.inference_attention import InferenceAttention, SparseAttention
from tracelens.perf_models.sdpa import AttentionRequests
from tracelens.types.dtypes import DType
from tracelens.types.records import Record

#: Gradient kernels hold 128 keys per work-group.
KEYS_PER_GRADIENT_GROUP = 128
DQ_READ_MODIFY_WRITE_BYTES = 8
#: One launch, where no engine's layer around the kernel is priced: 2.0-2.7 us fitted for GEMMs on Hopper and Blackwell.
KERNEL_START_US = 2.5


class AttentionTiling(Record, frozen=True, kw_only=True):
    """Tile sizes by head dimension up to 64, up to 128, and above.

    ``rows`` of queries and ``keys`` per step of a work-group; ``packs``: the query heads of one key head share a
    work-group. Decoding: ``decode_keys`` per step, ``decode_heads`` query heads per work-group, ``window_tiles`` more
    than a window fills, ``step_tiles`` of start-up, ``least_tiles`` per part. ``splits_all`` False: no splitting of
    multi-head attention and of windows. ``cached``: a cache that fits L2 is read from there. ``fp8_products``: an FP8
    cache is also multiplied in FP8, not widened first.
    """

    rows: tuple[int, int, int]
    keys: tuple[int, int, int]
    packs: bool
    decode_keys: tuple[int, int, int]
    decode_heads: int = 64
    window_tiles: float = 1.0
    step_tiles: float = 0.0
    least_tiles: int = 1
    splits_all: bool = True
    narrow_head: float = 0.0
    cached: bool = True
    fp8_products: bool = False


#: Name in device files -> tiles. These are facts of the kernels that were measured, not fitted.
KERNELS = msgspec.json.decode(
    Path(__file__).with_name("attention_tilings.json").read_bytes(), type=dict[str, AttentionTiling]
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AttentionColumns(ColumnBatch):
    """Attention of ``s`` new tokens over ``past + s`` keys; ``window`` is infinite where there is none.

    ``causal`` 0 or 1. With ``s`` 1 it is one decode step. ``precision`` is the cache's. ``as_layer``: as an inference
    engine runs it, which also appends the new keys and values to the paged cache. Else the kernel alone.
    ``value_in_key``: latent attention after absorption, whose values are the first ``d_v`` elements of the keys' rows.
    ``gradient``: the backward of such attention is priced.
    """

    family: ClassVar[str] = "sdpa"

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
    gradient: bool = False

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
        """As ``SDPA.flops``, or ``SDPABackward.flops``."""
        if not self.gradient:
            return 2 * self.q_heads * self.pairs() * (self.d_qk + self.d_v)
        summed = self.b * self.keys * (self.q_heads - self.kv_heads) * (self.d_qk + self.d_v)
        return 2 * self.q_heads * self.pairs() * (3 * self.d_qk + 2 * self.d_v) + summed

    def hbm_bytes(self) -> Floats:
        """Q, O and the new K and V once in two bytes; the cached keys that some query sees, in the cache's type.
        Backward: Q, K, V and dO read, dQ, dK and dV written.
        """
        if self.gradient:
            of_q, of_kv = self.s * self.q_heads, self.keys * self.kv_heads
            return OUTPUT_BYTES * self.b * (of_q * (2 * self.d_qk + self.d_v) + 2 * of_kv * (self.d_qk + self.d_v))
        cached = np.where(self.causal > 0, np.minimum(self.past, self.window), self.past)
        new = self.q_heads * (self.d_qk + self.d_v) + self.kv_heads * self.cache_width
        read = self.width_bytes * cached * self.kv_heads * self.cache_width
        return self.b * (OUTPUT_BYTES * self.s * new + read)

    def power_families(self) -> npt.NDArray[Any]:
        names = [f"{name} {self.library}".strip() for name in (DECODING, PROMPTS)]
        return np.where(self.s == 1, *names).astype(object)

    def flops_by_class(self) -> Mapping[str, Floats]:
        """Softmax included, in whatever type the cache is."""
        return {ATTENTION: self.flops()}

    def measured_as(self, device: HardwareSpec) -> Basis:
        """The constants' row: of prompts, of decoding, or of the backward."""
        if self.gradient:
            return Basis.of(device.calibration("backward", self.precision), device, self.precision, len(self))
        prefill, decoding = self._constants(device)
        prompts, steps = (Basis.of(each, device, self.precision, len(self)) for each in (prefill, decoding))
        single = self.s == 1
        return Basis(*(np.where(single, step, prompt) for step, prompt in zip(steps, prompts, strict=True)))

    def _constants(self, device: HardwareSpec) -> list[Calibration | None]:
        """Of prompts and of decoding; of a cache in a type that nobody measured BF16's, which read less then."""
        decoding = ("latent", "decode") if self.value_in_key else ("decode",)
        each = ([(family, which) for which in (self.precision, "bf16") for family in families]
                for families in (("prefill",), decoding))  # fmt: skip
        return [next(filter(None, itertools.starmap(device.calibration, kinds)), None) for kinds in each]

    def _price(self, device: HardwareSpec) -> Priced | None:
        if self.gradient:
            constants = device.calibration("backward", self.precision)
            return None if constants is None else backward(self, device, constants)
        prefill, decoding = self._constants(device)
        single = self.s == 1
        if single.all():
            return None if decoding is None else decode(self, device, decoding)
        if prefill is None or (decoding is None and single.any()):
            return None
        found = forward(self, device, prefill)
        if found is None or decoding is None or not single.any():
            return found
        one = decode(self.take(single), device, decoding)
        if one is None:
            return None
        for name in PRICED:
            getattr(found, name)[single] = getattr(one, name)
        return found


def cache_precision(model: Any) -> str | None:
    """The precision of attention in BF16 or FP16 over a cache, or keys, of that or a narrower type; None for others."""
    if model.dtype not in (DType.BF16, DType.FP16):
        return None
    cached = model.cache_dtype
    if cached in (DType.BF16, DType.FP16):
        return "bf16"
    narrow = None if cached is None or model.gradient else cached.rate
    return {"fp8": "fp8", "fp4": "nvfp4"}.get(narrow or "")


def calibrated_row(model: Any) -> tuple[str, str] | None:
    """The constants that price a call; None for prompts and generation in one."""
    which = cache_precision(model)
    if which is None:
        return None
    if isinstance(model, InferenceAttention):
        prompts, generates = model.sums.c_sq > 0, model.sums.g_sq > 0
        return None if prompts == generates else ("prefill" if prompts else "decode", which)
    if model.gradient:
        return "backward", which
    return "latent" if isinstance(model, SparseAttention) else "decode" if model.s_q == 1 else "prefill", which


@pricer("sdpa", row=calibrated_row)
def attention(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Perf models that say which ``requests()`` they are; those of one call share a launch."""
    batches: dict[tuple[str, bool, bool], tuple[list[int], list[AttentionRequests]]] = defaultdict(lambda: ([], []))
    models: tuple[Any, ...] = work.models
    shared = np.zeros(len(work))
    for row, model in enumerate(models):
        which = cache_precision(model)
        if which is None:
            continue
        for number, request in enumerate(model.requests()):
            rows, some = batches[which, request.value_in_key, model.gradient]
            rows.append(row)
            some.append(request)
            shared[row] = number * KERNEL_START_US
    parts = []
    for (which, value_in_key, gradient), (rows, some) in batches.items():
        b, s, past, q_heads, kv_heads, d_qk, d_v, window, causal, _ = np.array(some, dtype=np.float64).T
        batch = AttentionColumns(
            precision=which, b=b, s=s, past=past, q_heads=q_heads, kv_heads=kv_heads, d_qk=d_qk, d_v=d_v,
            window=window, causal=causal, value_in_key=value_in_key, gradient=gradient,
        )  # fmt: skip
        parts.append((rows, batch.price(device)))
    found = Priced.summed(len(work), parts)
    return replace(found, time_us=found.time_us - shared)


def forward(c: AttentionColumns, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """Attention of new tokens over themselves and what is cached; None without the device's rates."""
    found = _rates(c, device, constants)
    if found is None:
        return None
    peak, hbm, units, clock, kernel = found
    head = np.maximum(c.d_qk, c.d_v)
    rows, keys = _by_head(kernel.rows, head), _by_head(kernel.keys, head)
    shared = c.q_heads / c.kv_heads if kernel.packs else np.ones(len(c))
    groups = c.b * (c.q_heads / shared) * np.ceil(c.s * shared / rows)
    mean, last = _visited(c, np.maximum(rows / shared, keys), keys)

    efficiency = constants["matrix_efficiency"]
    wide = np.maximum(head / 128, 1) ** constants.get("wide_head", 0.0)
    multiply = 2 * (c.d_qk + c.d_v) / (peak * efficiency / units) * wide
    per_key = rows * _taking_turns(multiply, 1 / clock)
    start = constants.get("group_us", 0.0)
    group = start + mean * per_key
    compute = np.maximum(
        constants.get("longest", 1.0) * (start + last * per_key),
        groups * group / units + constants.get("tail", 0.0) * group * np.minimum(1, groups / units),
    )
    least = np.maximum(c.flops() / peak, c.hbm_bytes() / hbm)
    if c.as_layer:
        # Writing K and V into pages costs about as much for 4 heads as for 3: pages, not bytes. It is not hidden.
        written = 8 * (c.kv_heads / 4) ** 0.8 * (64 + c.d_v / 2) / constants.get("kv_efficiency", 1.0)
        moved = c.q_heads * (c.d_qk + c.d_v) / constants.get("q_efficiency", 1.0)
        memory = OUTPUT_BYTES * c.b * c.s * (moved + written) / hbm
        time = constants["launch_us"] + compute + memory
    else:
        memory = c.hbm_bytes() / (hbm * constants.get("q_efficiency", 1.0))
        time = KERNEL_START_US + np.maximum(compute, memory)
    time = np.maximum(time, least)
    return Priced(time_us=time, compute_us=compute, memory_us=memory, peak_us=least)


def backward(c: AttentionColumns, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """dQ, dK and dV: five products per pair, each work-group on its keys; dQ is added up in memory.

    Every group of keys adds its share into dQ in fp32: a read and a write of S_q * D per group, and 2 launches around
    it that sum dO * O and convert dQ. Work-groups are keys, so short sequences leave units idle sooner than forward.
    """
    found = _rates(c, device, constants)
    if found is None:
        return None
    peak, hbm, units, clock, _ = found
    key_groups = np.ceil(c.keys / KEYS_PER_GRADIENT_GROUP)
    groups = c.b * c.q_heads * key_groups
    pairs = c.pairs() / c.b
    # Whole tiles on the diagonal: half a tile of pairs more per query row than are attended.
    visited = pairs + np.where(c.causal > 0, c.s * KEYS_PER_GRADIENT_GROUP / 2, 0.0)
    efficiency = constants["matrix_efficiency"]
    multiply = 2 * (3 * c.d_qk + 2 * c.d_v) / (peak * efficiency / units)
    per_pair = _taking_turns(multiply, 1 / clock)
    group = constants.get("group_us", 0.0) + visited / key_groups * per_pair
    longest = constants.get("group_us", 0.0) + KEYS_PER_GRADIENT_GROUP * c.s * per_pair
    compute = np.maximum(longest, groups * group / units)
    added = visited / KEYS_PER_GRADIENT_GROUP * c.b * c.q_heads * c.d_qk * DQ_READ_MODIFY_WRITE_BYTES
    passes = OUTPUT_BYTES * c.b * (3 * c.s * c.q_heads + 4 * c.keys * c.kv_heads) * (c.d_qk + c.d_v) / 2
    passes += OUTPUT_BYTES * c.b * c.s * c.q_heads * (2 * c.d_v + 2 * c.d_qk)
    # fp32 additions meet in L2, which moves several times what HBM does.
    memory = passes / hbm
    atomics = added / (hbm * 3.0 * device.clock_scale)
    flops = 2 * c.q_heads * c.pairs() * (3 * c.d_qk + 2 * c.d_v)
    once = c.s * c.q_heads * (2 * c.d_qk + c.d_v) + 2 * c.keys * c.kv_heads * (c.d_qk + c.d_v)
    least = np.maximum(flops / peak, OUTPUT_BYTES * c.b * once / hbm)
    time = 3 * constants["launch_us"] + np.maximum(compute, atomics) + memory
    return Priced(time_us=np.maximum(time, least), compute_us=compute, memory_us=memory, peak_us=least)


def decode(c: AttentionColumns, device: HardwareSpec, constants: Calibration) -> Priced | None:
    """One new token per sequence over its cached keys, long sequences split among idle units."""
    found = _rates(c, device, constants)
    if found is None:
        return None
    peak, hbm, units, _, kernel = found
    width, head = c.width_bytes, np.maximum(c.d_qk, c.d_v)
    keys = _by_head(kernel.decode_keys, head)
    heads = c.q_heads / c.kv_heads
    groups = c.b * c.kv_heads * np.ceil(heads / kernel.decode_heads)
    tiles = np.minimum(np.ceil(c.keys / keys), c.window / keys + kernel.window_tiles)
    read = np.minimum(c.keys, tiles * keys)
    parts = np.clip(
        units / groups, 1, np.maximum(1, np.minimum(tiles / kernel.least_tiles, constants.get("split_cap", np.inf)))
    )
    if not kernel.splits_all:
        whole = (heads == 1) | np.isfinite(c.window)
        groups = np.where(whole, c.b * c.q_heads, groups)
        parts = np.where(whole, 1.0, parts)
    wide = np.maximum(head / 128, 1) ** constants.get("wide_head", 0.0) * (128 / head) ** kernel.narrow_head
    tile = keys * c.cache_width * width * constants["tile_us"] / 16384 * wide / device.clock_scale
    if "matrix_efficiency" in constants.constants:
        products = 2 * np.minimum(heads, kernel.decode_heads) * keys * (c.d_qk + c.d_v)
        tile = np.maximum(tile, products / (constants["matrix_efficiency"] * peak / units))
    start = constants.get("group_us", 0.0) + kernel.step_tiles * (tiles > 1) * tile
    split = np.maximum(1, groups * parts / units) * (start + tiles / parts * tile)
    whole_us = np.maximum(1, groups / units) * (start + tiles * tile)
    cache = c.b * c.kv_heads * c.cache_width * width * read
    missed = np.ones(len(c))
    if kernel.cached and (held := device.completed.l2_mib) is not None:
        missed = np.clip((cache / (held * 2**20) - 0.8) / 0.5, 0, 1)
    hit = np.maximum(constants.get("l2_efficiency", 1.0) * device.clock_scale, constants["hbm_efficiency"])
    memory = cache / hbm * (missed / constants["hbm_efficiency"] + (1 - missed) / hit)
    compute = np.minimum(whole_us, split)
    moved = c.q_heads * (c.d_qk + c.d_v) + c.kv_heads * c.cache_width
    rows = OUTPUT_BYTES * c.b * moved / constants.get("q_efficiency", 1.0) / hbm
    time = (constants["launch_us"] if c.as_layer else KERNEL_START_US) + rows
    time += np.minimum(np.maximum(whole_us, memory), np.maximum(split, memory) + constants.get("combine_us", 0.0))
    least = np.maximum(c.flops() / peak, c.hbm_bytes() / hbm)
    return Priced(time_us=np.maximum(time, least), compute_us=compute, memory_us=memory, peak_us=least)


def _rates(
    c: AttentionColumns, device: HardwareSpec, constants: Calibration
) -> tuple[float, float, int, float, AttentionTiling] | None:
    kernel, mhz = constants.chosen(KERNELS), device.completed.clock_mhz
    widened = c.precision != "bf16" and kernel is not None and not kernel.fp8_products
    chip = Chip.of(device, "bf16" if widened else c.precision)
    if chip is None or mhz is None or kernel is None:
        return None
    return chip.peak, chip.hbm, chip.units, EXP_PER_CLOCK * mhz * chip.clock, kernel


def _taking_turns(multiply: Floats, exponential: float) -> Floats:
    """Matrix and exponential units overlap in part: the norm of order 1.5, between sum and maximum."""
    root: Floats = np.cbrt(multiply * np.sqrt(multiply) + exponential * exponential**0.5)
    return root * root


def _by_head(sizes: tuple[int, int, int], head: Floats) -> Floats:
    return np.where(head <= 64, sizes[0], np.where(head <= 128, sizes[1], sizes[2])).astype(np.float64)


def _visited(c: AttentionColumns, edge: Floats, keys: Floats) -> tuple[Floats, Floats]:
    """Keys that a work-group walks along, on average and at most. ``edge``: tokens of a tile on the diagonal."""
    total = c.past + np.ceil(c.s / keys) * keys
    new = total - c.past
    window = np.minimum(c.window + edge / 2, total)
    ramp = np.clip(window - c.past, 0, new)
    mean = (ramp * (c.past + ramp / 2) + (new - ramp) * window) / new
    causal = c.causal > 0
    mean = np.where(causal, np.minimum(mean + edge / 2, total), total)
    last = np.where(causal, np.minimum(c.window + edge, total), total)
    return mean, last


#: Table, and kernels that stand for its state updates (not for its convolutions), by what a token does to the state.
_TABLES: Mapping[str, tuple[KernelTable, str]] = {"delta": (GDN, "gated_delta_rule"), "channel_delta": (KDA, "kda")}
#: Tokens of a sequence up to which its state is updated one by one: a decode step and its drafts.
_STEP_TOKENS = 8


@pricer("linear-attention")
def state_updates(work: WorkColumns, device: HardwareSpec) -> Priced:
    """Calls by rule and phase; without a number of sequences all tokens are one. NaN for rules nobody measured."""
    models: tuple[Any, ...] = work.models
    batches: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row, model in enumerate(models):
        if model.rule in _TABLES and model.dtype in (DType.BF16, DType.FP16):
            is_step = model.sequences is not None and model.tokens <= _STEP_TOKENS * model.sequences
            batches[model.rule, "generation" if is_step else "context"].append(row)
    parts = []
    for (rule, phase), rows in batches.items():
        table, kernel = _TABLES[rule]
        # As the tables' ``sizes``: sequences, tokens of each, key heads, value heads
        of = [(model, model.sequences or 1) for model in (models[row] for row in rows)]
        columns = np.array([(n, m.tokens / n, m.k_heads, m.d_k, m.v_heads, m.d_v) for m, n in of], np.float64).T
        batch = KernelColumns(
            precision="bf16", table=table, case=(("kernel_source", kernel), ("phase", phase)),
            sizes=dict(zip(table.sizes, columns, strict=True)),
        )  # fmt: skip
        parts.append((rows, batch.price(device)))
    found = Priced.summed(len(work), parts)
    calls = np.array([2.0 if model.gradient else 1.0 for model in models])
    return replace(found, time_us=np.maximum(found.time_us * calls, found.peak_us * calls))
