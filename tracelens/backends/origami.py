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
import math
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from tracelens.backends.base import Backend, EstimateTable, Floats, backend
from tracelens.backends.column_batch import ColumnBatch, hbm_peak
from tracelens.backends.roofline import Roofline
from tracelens.backends.system import System
from tracelens.backends.tiles.attention_tiles import DQ_READ_MODIFY_WRITE_BYTES, EXP_PER_CLOCK
from tracelens.backends.tiles.gemm_tiles import GEMMColumns
from tracelens.dtypes import DType, Precision
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import SDPA
from tracelens.perf_models.matrix.gemm import Product
from tracelens.perf_models.work_columns import WorkColumns

MODULE = "origami"
_API = (
    "get_hardware_for_arch",
    "problem_t",
    "config_t",
    "dim3_t",
    "select_config",
    "string_to_datatype",
    "transpose_t",
)
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
#: Rows of a work-group of attention: of queries forward, of keys backward; keys per step forward.
GROUP_ROWS, STEP_KEYS = 256, 64
_REGISTERS_PER_UNIT = 512 * 1024
# What published profiles of these chips pass, per die.
_L2_BYTES = 4 * 1024 * 1024


@backend("origami")
class Origami(Backend):
    """GEMM, evenly grouped GEMM and attention with more than 64 rows, on MI300X- and MI355X-class devices."""

    name: ClassVar[str] = "origami"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """Distinct shapes are asked once: a GEMM costs about 25 us."""
        rows = len(columns)
        time = np.full(rows, np.nan)
        module = module_or_none()
        if module is None:
            return EstimateTable.unanswered(rows)
        for row, model in enumerate(columns.models):
            shape, dtype = _shape(model), columns.dtype[row]
            if isinstance(model, SDPA) and dtype is not None:
                time[row] = _attention_us(module, model, dtype, system.device)
            elif shape is not None and dtype is not None:
                time[row] = _time_us(module, shape, dtype, system.device)
        return self._table(time, Roofline().estimate_many(columns, system))

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """Plain and evenly grouped products with more than 64 rows; NaN for the rest, and for other families."""
        module = module_or_none()
        if module is None or not isinstance(batch, GEMMColumns) or batch.blocks is not None:
            return EstimateTable.unanswered(len(batch))
        dtype = Precision.of(batch.precision).dtype
        shapes = np.ceil(np.stack([batch.m / batch.groups, batch.n, batch.k, batch.b * batch.groups], axis=1))
        distinct, which = np.unique(shapes, axis=0, return_inverse=True)
        priced = [
            _time_us(module, (int(m), int(n), int(k), int(b)), dtype, system.device) if m >= LEAST_ROWS else np.nan
            for m, n, k, b in distinct.tolist()
        ]
        return self._table(np.array(priced)[which.ravel()], Roofline().estimate_batch(batch, system))

    def _table(self, time: Floats, bound: EstimateTable) -> EstimateTable:
        known = np.isfinite(time)
        return EstimateTable(
            time_us=np.where(known, np.fmax(time, bound.peak_us), np.nan),
            peak_us=bound.peak_us,
            compute_us=bound.compute_us,
            memory_us=bound.memory_us,
            wire_us=bound.wire_us,
            bound=tuple(b if k else None for b, k in zip(bound.bound, known.tolist(), strict=True)),
            rate_basis=tuple("peak" if k else None for k in known.tolist()),
            backend=tuple(self.name if k else None for k in known.tolist()),
        )


def absence() -> str | None:
    """Why there is no origami; None where it can answer."""
    try:
        module = importlib.import_module(MODULE)
    except ImportError:
        return "rocm-origami is not installed (its build needs ROCm)"
    lacking = [name for name in _API if not hasattr(module, name)]
    return f"the installed module 'origami' is not rocm-origami: it has no {lacking[0]}" if lacking else None


def module_or_none() -> ModuleType | None:
    """The module, where its functions are there."""
    return importlib.import_module(MODULE) if absence() is None else None


def _shape(model: Any) -> tuple[int, int, int, int] | None:
    """(m, n, k, batch). Groups are taken as even: the model has no ragged products."""
    products: tuple[Product, ...] = model.products() if model.price_family() in ("gemm", "grouped-gemm") else ()
    if len(products) != 1:
        return None
    m, n, k, b, groups, _ = products[0]
    found = (math.ceil(m / groups), int(n), math.ceil(k), int(b * groups))
    return found if found[0] >= LEAST_ROWS else None


def _attention_us(module: ModuleType, model: SDPA, dtype: DType, device: HardwareSpec) -> float:
    """NaN for few queries, unknown lengths or masks."""
    units, mhz, hbm = device.compute_units, device.clock_mhz, hbm_peak(device)
    if units is None or mhz is None or hbm is None or not model.s_q or not model.s_kv or model.mask is None:
        return np.nan
    if model.s_q < LEAST_ROWS:
        return np.nan
    d_qk, d_v, gradient = model.d_qk, model.d_v, model.gradient

    def group_us(walked: int) -> float:
        """One work-group's products over ``walked`` keys, or backward queries, on one unit."""
        rows = GROUP_ROWS
        shapes = [(rows, walked, d_qk), (rows, d_v, walked)]
        if gradient:
            shapes = [(walked, rows, d_qk), (walked, rows, d_v), (walked, d_qk, rows), (rows, d_v, walked)]
            shapes.append((rows, d_qk, walked))
        return sum(_time_us(module, (*shape, 1), dtype, device, units=1) for shape in shapes)

    walked = _walked(model)
    groups = model.b * model.q_heads * len(walked)
    mean = group_us(max(round(float(walked.mean())), 1))
    even = walked.min() == walked.max()
    # Equal groups come in waves; of unequal ones the longest are taken first.
    busy = mean * np.ceil(groups / units) if even else max(mean * groups / units, group_us(int(walked.max())))
    pairs = model.b * model.q_heads * float(walked.sum()) * GROUP_ROWS
    exponentials = pairs / (EXP_PER_CLOCK * mhz * device.clock_scale * units)
    added = pairs / GROUP_ROWS * d_qk * DQ_READ_MODIFY_WRITE_BYTES / hbm if gradient else 0.0
    return float(max(busy, exponentials, added))


def _walked(model: SDPA) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Keys that each work-group of queries visits, in whole steps; backward: queries that each one of keys does."""
    s_q, s_kv, window = model.s_q or 0, model.s_kv or 0, model.window or np.inf
    offset = s_kv - s_q if model.mask == "bottom_right" else 0
    gradient = model.gradient
    last = np.arange(1, -(-(s_kv if gradient else s_q) // GROUP_ROWS) + 1) * GROUP_ROWS
    if gradient:
        first = np.clip(last - GROUP_ROWS - offset, 0, s_q) if model.mask != "none" else np.zeros(len(last))
        return np.maximum(np.minimum(s_q - first, window + GROUP_ROWS), 1)
    seen = np.minimum(last + offset, s_kv) if model.mask != "none" else np.full(len(last), float(s_kv))
    seen = np.minimum(np.maximum(seen, 1), window + GROUP_ROWS)
    return np.ceil(seen / STEP_KEYS) * STEP_KEYS


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
        architecture = _ARCHITECTURES.get((device.match.compute_major, device.match.compute_minor))
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
    found = []
    for edge_m in _EDGES:
        for edge_n in _EDGES:
            for depth in (d for d in _DEPTHS if d >= instruction.k):
                for occupancy in _OCCUPANCIES:
                    config = module.config_t()
                    config.mt = module.dim3_t(edge_m, edge_n, depth)
                    config.mi = instruction
                    config.occupancy = occupancy
                    found.append(config)
    return found
