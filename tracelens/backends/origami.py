"""AMD's origami model, where the ``rocm-origami`` package is installed; no answer anywhere else.

The package imports as ``origami``, as an unrelated one on PyPI does: what counts is that its functions are there. It
ranks tile configurations and returns cycles. Its effective HBM rate is above the data sheet's, so times are clamped;
small m come out many times too slow there and are left to the next backend of a chain.

Attention is its work-groups' products on one unit, times how often a unit has one: causal tiles are counted, longest
first, and the exponentials and dQ's additions in memory, which it does not know, bound the time from below. It gives a
unit that is alone a fixed share of HBM, 0.015 on MI300X and 0.008 on MI355X, so attention gains too little from one to
the other.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tracelens.backends.base import Backend, Basis, ColumnBatch, EstimateTable, Floats, System, backend, hbm_peak
from tracelens.backends.kernels.kernel_costs import EXP_PER_CLOCK
from tracelens.backends.roofline_and_tile import Roofline
from tracelens.backends.tiles.attention_tiles import DQ_READ_MODIFY_WRITE_BYTES, AttentionColumns
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration
from tracelens.perf_models import SDPA
from tracelens.perf_models.base import WorkColumns
from tracelens.perf_models.gemm import Product
from tracelens.types.dtypes import DType, Precision

MODULE = "origami"
_API = (
    "get_hardware_for_arch", "problem_t", "config_t", "dim3_t", "select_config", "string_to_datatype", "transpose_t",
)  # fmt: skip
#: (compute major, minor) of AMD devices -> architecture.
_ARCHITECTURES = {(9, 4): "gfx942", (9, 5): "gfx950"}
_TYPES = {DType.BF16: ("bf16",), DType.FP16: ("f16",), DType.FP32: ("f32",)}
# gfx942 has no instruction under an FP8 name; INT8 runs at the same rate and width there.
_FP8 = ("f8", "bf8", "i8")
#: Edges of the candidate tiles; deeper ones for instructions that multiply 128 elements of k at once.
_EDGES = (64, 128, 192, 256)
_DEPTHS = (32, 64, 128)
_OCCUPANCIES = (1, 2, 4)
#: Fewer rows than this: no tile is that small, and the model is 2 to 50 times too slow.
LEAST_ROWS = 65
#: Rows of a product from which on its measured slowdown is whole; of its smallest tile.
MANY_ROWS, TILE = 4096, 64
#: What an answer rests on where nobody held it against measured shapes.
UNCALIBRATED = "origami, uncalibrated"
#: Rows of a work-group of attention: of queries forward, of keys backward; keys per step forward.
GROUP_ROWS, STEP_KEYS = 256, 64
_REGISTERS_PER_UNIT = 512 * 1024
# What published profiles of these chips pass, per die.
_L2_BYTES = 4 * 1024 * 1024


class AttentionCall(NamedTuple):
    """One call as its work-groups see it. ``offset``: keys before the first query's own; ``window`` may be infinite."""

    b: float
    s_q: float
    s_kv: float
    q_heads: float
    d_qk: int
    d_v: int
    causal: bool
    offset: float
    window: float
    gradient: bool


@backend("origami")
class Origami(Backend):
    """GEMM, grouped GEMM and attention with more than 64 rows, on MI300X- and MI355X-class devices.

    Times are Origami's, at the clock of the data sheet, times the ``slowdown`` of ``[calibrated.origami.PRECISION]``
    where the device's file has measured one. Groups are padded to whole tiles of 64 rows and then taken as even.
    """

    name: ClassVar[str] = "origami"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """Distinct shapes are asked once: a GEMM costs about 25 us."""
        time = np.full(len(columns), np.nan)
        module = module_or_none()
        if module is None:
            return EstimateTable.unanswered(len(columns))
        for row, model in enumerate(columns.models):
            dtype = columns.dtype[row]
            if dtype is None:
                continue
            call, shape = _call(model), _shape(model)
            if call is not None:
                time[row] = _attention_us(module, call, dtype, system.device) * _slowdown(system.device, dtype, call)
            elif shape is not None:
                time[row] = _time_us(module, shape, dtype, system.device) * _slowdown(system.device, dtype, shape)
        basis = "peak" if system.device.calibration("origami", "bf16") is None else "achievable"
        return Roofline().estimate_many(columns, system).timed(self.name, time, [basis] * len(columns))

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """Products and attention with more than 64 rows; NaN for the rest, and for other families."""
        time = self.uncalibrated_us(batch, system.device) * slowdowns(batch, system.device)
        basis = "peak" if _constants(batch, system.device) is None else "achievable"
        return Roofline().estimate_batch(batch, system).timed(self.name, time, [basis] * len(batch))

    def uncalibrated_us(self, batch: ColumnBatch, device: HardwareSpec) -> Floats:
        """What Origami itself says of each row; NaN where it says nothing."""
        module = module_or_none()
        priced: list[float]
        if module is None or not isinstance(batch, GEMMColumns | AttentionColumns):
            return np.full(len(batch), np.nan)
        if isinstance(batch, AttentionColumns):
            # Over a cache in FP8 the keys are widened.
            dtype, of = DType.BF16, batch
            columns = (of.b, of.s, of.keys, of.q_heads, of.d_qk, of.d_v, of.causal, of.past, of.window)
            calls = [
                AttentionCall(b, s, keys, heads, int(d_qk), int(d_v), causal > 0, past, window, batch.gradient)
                for b, s, keys, heads, d_qk, d_v, causal, past, window in zip(
                    *(c.tolist() for c in columns), strict=True
                )
            ]
            alike = {call: _attention_us(module, call, dtype, device) for call in set(calls)}
            return np.array([alike[call] for call in calls])
        dtype = Precision.of(batch.precision).dtype
        shapes = np.ceil(np.stack([_group_rows(batch), batch.n, batch.k, batch.b * batch.groups], axis=1))
        distinct, which = np.unique(shapes, axis=0, return_inverse=True)
        priced = [
            _time_us(module, (int(m), int(n), int(k), int(b)), dtype, device) if m >= LEAST_ROWS else np.nan
            for m, n, k, b in distinct.tolist()
        ]
        return np.array(priced, np.float64)[which.ravel()]

    def measured_as(self, work: WorkColumns | ColumnBatch, system: System) -> Basis:
        """Which measured shapes the answers were held against."""
        constants = _constants(work, system.device) if isinstance(work, ColumnBatch) else None
        if constants is None or not isinstance(work, ColumnBatch):
            return Basis(np.full(len(work), UNCALIBRATED, object), np.full(len(work), np.nan))
        return Basis.of(constants, system.device, work.precision, len(work))


def calibrated_family(batch: ColumnBatch) -> str | None:
    """The family of constants that its answers for a batch are multiplied by."""
    if isinstance(batch, AttentionColumns):
        return "origami_backward" if batch.gradient else "origami_prefill"
    return "origami" if isinstance(batch, GEMMColumns) else None


def slowdowns(batch: ColumnBatch, device: HardwareSpec) -> Floats:
    """Measured time over Origami's, per row: 1 where nobody measured one."""
    rows = _group_rows(batch) if isinstance(batch, GEMMColumns) else np.full(len(batch), float(MANY_ROWS))
    return _slower(_constants(batch, device), rows)


def _constants(batch: ColumnBatch, device: HardwareSpec) -> Calibration | None:
    family = calibrated_family(batch)
    return None if family is None else device.calibration(family, batch.precision)


def _slower(constants: Calibration | None, rows: Floats) -> Floats:
    """Small products are less slowed: the share grows with the rows, so that times still do."""
    if constants is None:
        return np.ones(len(rows))
    power = constants.get("rows_power", 0.0)
    return np.asarray(constants["slowdown"] * np.minimum(rows / MANY_ROWS, 1.0) ** power)


def _slowdown(device: HardwareSpec, dtype: DType, call: AttentionCall | tuple[int, int, int, int]) -> float:
    rate = {"bf16": "bf16", "fp16": "bf16", "fp8": "fp8"}.get(dtype.rate or "", "")
    family = "origami"
    if isinstance(call, AttentionCall):
        family = "origami_backward" if call.gradient else "origami_prefill"
    constants = device.calibration(family, rate) if rate else None
    rows = float(MANY_ROWS) if isinstance(call, AttentionCall) else float(call[0])
    return float(_slower(constants, np.array([rows]))[0])


def note(device: HardwareSpec, precision: str) -> str:
    """What Origami's answers on a device were held against, in a sentence."""
    said = []
    families = {"origami": "GEMMs", "origami_prefill": "attention", "origami_backward": "its backward"}
    for family, what in families.items():
        found = device.calibration(family, precision if family == "origami" else "bf16")
        if found is None:
            said.append(f"{what} uncalibrated, at the boost clock")
            continue
        error = "" if found.error_percent is None else f", {found.error_percent:.0f} % off on shapes not fitted"
        where = found.carried_from or device.name
        said.append(f"{what} x {found['slowdown']:.3g} by {where}'s constants{error}")
    return f"origami on {device.name}: {'; '.join(said)}"


def absence() -> str | None:
    """Why there is no origami; None where it can answer."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError:
        return "rocm-origami is not installed (its build needs ROCm)"
    lacking = [name for name in _API if not hasattr(module, name)]
    return f"the installed module 'origami' is not rocm-origami: it has no {lacking[0]}" if lacking else None


def module_or_none() -> ModuleType | None:
    return importlib.import_module(MODULE) if absence() is None else None


def _shape(model: Any) -> tuple[int, int, int, int] | None:
    """(m, n, k, batch). Groups are taken as even: the model has no ragged products."""
    products: tuple[Product, ...] = model.products() if model.price_family() in ("gemm", "grouped-gemm") else ()
    if len(products) != 1:
        return None
    m, n, k, b, groups, _ = products[0]
    found = (math.ceil(m / groups), int(n), math.ceil(k), int(b * groups))
    return found if found[0] >= LEAST_ROWS else None


def _group_rows(batch: GEMMColumns) -> Floats:
    """Rows of each group; of unequal groups those of whole tiles, shared out evenly."""
    rows = batch.m if batch.blocks is None else np.minimum(TILE * batch.blocks[TILE], batch.m + TILE * batch.groups)
    return rows / batch.groups


def _call(model: Any) -> AttentionCall | None:
    """None for what is no attention of known lengths and mask."""
    if not isinstance(model, SDPA) or not model.s_q or not model.s_kv or model.mask is None:
        return None
    return AttentionCall(
        b=model.b, s_q=model.s_q, s_kv=model.s_kv, q_heads=model.q_heads, d_qk=model.d_qk, d_v=model.d_v,
        causal=model.mask != "none", offset=model.s_kv - model.s_q if model.mask == "bottom_right" else 0,
        window=model.window or np.inf, gradient=model.gradient,
    )  # fmt: skip


def _attention_us(module: ModuleType, call: AttentionCall, dtype: DType, device: HardwareSpec) -> float:
    """NaN for few queries."""
    units, mhz, hbm = device.compute_units, device.clock_mhz, hbm_peak(device)
    if units is None or mhz is None or hbm is None or call.s_q < LEAST_ROWS:
        return np.nan
    d_qk, d_v = call.d_qk, call.d_v

    def group_us(walked: int) -> float:
        """One work-group's products over ``walked`` keys, or backward queries, on one unit."""
        rows = GROUP_ROWS
        shapes = [(rows, walked, d_qk), (rows, d_v, walked)]
        if call.gradient:
            shapes = [(walked, rows, d_qk), (walked, rows, d_v), (walked, d_qk, rows), (rows, d_v, walked)]
            shapes.append((rows, d_qk, walked))
        return sum(_time_us(module, (*shape, 1), dtype, device, units=1) for shape in shapes)

    walked = _walked(call)
    groups = call.b * call.q_heads * len(walked)
    mean = group_us(max(round(float(walked.mean())), 1))
    even = walked.min() == walked.max()
    # Equal groups come in waves; of unequal ones the longest are taken first.
    busy = mean * np.ceil(groups / units) if even else max(mean * groups / units, group_us(int(walked.max())))
    pairs = call.b * call.q_heads * float(walked.sum()) * GROUP_ROWS
    exponentials = pairs / (EXP_PER_CLOCK * mhz * device.clock_scale * units)
    added = pairs / GROUP_ROWS * d_qk * DQ_READ_MODIFY_WRITE_BYTES / hbm if call.gradient else 0.0
    return float(max(busy, exponentials, added))


def _walked(call: AttentionCall) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Keys that each work-group of queries visits, in whole steps; backward: queries that each one of keys does."""
    s_q, s_kv, window, offset = call.s_q, call.s_kv, call.window, call.offset
    last = np.arange(1, math.ceil((s_kv if call.gradient else s_q) / GROUP_ROWS) + 1) * GROUP_ROWS
    if call.gradient:
        first = np.clip(last - GROUP_ROWS - offset, 0, s_q) if call.causal else np.zeros(len(last))
        return np.maximum(np.minimum(s_q - first, window + GROUP_ROWS), 1)
    seen = np.minimum(last + offset, s_kv) if call.causal else np.full(len(last), float(s_kv))
    seen = np.minimum(np.maximum(seen, 1), window + GROUP_ROWS)
    return np.asarray(np.ceil(seen / STEP_KEYS) * STEP_KEYS)


def _time_us(
    module: ModuleType, shape: tuple[int, int, int, int], dtype: DType, device: HardwareSpec, units: int | None = None
) -> float:
    """``units``: on so many of them, instead of all."""
    hardware = _hardware(module, device, units)
    if hardware is None:
        return np.nan
    typed = _typed(module, hardware, dtype)
    if typed is None:
        return np.nan
    number, instruction = typed
    m, n, k, batch = shape
    problem = module.problem_t()
    problem.size, problem.batch = module.dim3_t(m, n, k), batch
    problem.a_transpose, problem.b_transpose = module.transpose_t.T, module.transpose_t.N
    for operand in ("a", "b", "c", "d", "mi"):
        setattr(problem, f"{operand}_dtype", number)
    problem.a_mx_block_size = problem.b_mx_block_size = 0
    candidates = _candidates(module, instruction)
    try:
        # Later versions also ask which model: GEMM or attention.
        extra = (module.model_t.gemm,) if hasattr(module, "model_t") else ()
        cycles = float(module.select_config(problem, hardware, candidates, *extra).latency)
    except (ValueError, RuntimeError):
        return np.nan
    # Inadmissible configurations come back as infinite or zero.
    return cycles / (hardware.compute_clock_ghz * 1e3) if 0 < cycles < float("inf") else np.nan


@functools.lru_cache(maxsize=64)
def _hardware(module: ModuleType, device: HardwareSpec, units: int | None = None) -> Any:
    architecture = None
    if device.vendor == "amd" and device.match is not None:
        architecture = _ARCHITECTURES.get((device.match.compute_major or 0, device.match.compute_minor or 0))
    units = units or device.compute_units
    mhz, lds = device.clock_mhz, device.lds_kib
    if architecture is None or units is None or mhz is None or lds is None:
        return None
    khz = round(mhz * 1000 * device.clock_scale)
    sizes = {"N_CU": units, "lds_capacity": round(lds * 1024), "L2_capacity": _L2_BYTES, "compute_clock_khz": khz}
    kind = getattr(module.architecture_t, architecture)
    try:
        return module.get_hardware_for_arch(arch=kind, rf_capacity=_REGISTERS_PER_UNIT, **sizes)
    except TypeError:  # versions before 0.0.3 do not take the register file
        return module.get_hardware_for_arch(arch=kind, **sizes)


def _typed(module: ModuleType, hardware: Any, dtype: DType) -> tuple[Any, Any] | None:
    """(the module's type, its matrix instruction); None where the architecture has none under any name."""
    for name in _FP8 if dtype.rate == "fp8" else _TYPES.get(dtype, ()):
        try:
            number = module.string_to_datatype(name)
        except (ValueError, RuntimeError):
            continue
        instruction = hardware.get_recommended_matrix_instruction(number)
        if instruction.m and instruction.n and instruction.k:
            return number, instruction
    return None


def _candidates(module: ModuleType, instruction: Any) -> list[Any]:
    found, depths = [], [depth for depth in _DEPTHS if depth >= instruction.k]
    for edge_m, edge_n, depth, occupancy in itertools.product(_EDGES, _EDGES, depths, _OCCUPANCIES):
        config = module.config_t()
        config.mt, config.mi, config.occupancy = module.dim3_t(edge_m, edge_n, depth), instruction, occupancy
        found.append(config)
    return found
