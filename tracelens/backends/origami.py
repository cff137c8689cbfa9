"""AMD's origami model, where the ``rocm-origami`` package is installed; no answer anywhere else.

The package imports as ``origami``, as an unrelated one on PyPI does: what counts is that its functions are there. It
ranks tile configurations and returns cycles. Its effective HBM rate is above the data sheet's, so times are clamped;
small m come out many times too slow there and are left to the next backend of a chain.
"""

from __future__ import annotations

import functools
import importlib
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from tracelens.backends.base import Estimate, EstimateTable, backend
from tracelens.backends.roofline import Roofline
from tracelens.backends.system import System
from tracelens.dtypes import DType
from tracelens.hardware import HardwareSpec
from tracelens.perf_models import GEMM, GroupedGEMM, GroupedGEMMBackward, GroupedGEMMVariableK
from tracelens.perf_models.columns import WorkColumns

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
_REGISTERS_PER_UNIT = 512 * 1024
# What published profiles of these chips pass, per die.
_L2_BYTES = 4 * 1024 * 1024


@backend("origami")
class Origami:
    """GEMM and evenly grouped GEMM with more than 64 rows, on MI300X- and MI355X-class devices."""

    name: ClassVar[str] = "origami"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """Distinct shapes are asked once: a GEMM costs about 25 us."""
        rows = len(columns)
        time = np.full(rows, np.nan)
        module = module_or_none()
        if module is None or not isinstance(columns, WorkColumns):
            return EstimateTable.unanswered(rows)
        for row, model in enumerate(columns.models):
            shape = _shape(model)
            if shape is not None and columns.dtype[row] is not None:
                time[row] = _time_us(module, shape, columns.dtype[row], system.device)
        bound = Roofline().estimate_many(columns, system)
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

    def estimate(self, op: Any, system: System) -> Estimate | None:
        """The one-row form."""
        return self.estimate_many(WorkColumns.of([op]), system).row(0)


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
    if isinstance(model, GroupedGEMMBackward):
        return None
    if isinstance(model, GroupedGEMMVariableK):
        found = (model.k, model.n, -(-model.m // model.groups), model.groups)
    elif isinstance(model, GroupedGEMM):
        found = (-(-model.m // model.groups), model.n, model.k, model.groups)
    elif isinstance(model, GEMM):
        found = (model.m, model.n, model.k, model.b)
    else:
        return None
    return found if found[0] >= LEAST_ROWS else None


def _time_us(module: ModuleType, shape: tuple[int, int, int, int], dtype: DType | None, device: HardwareSpec) -> float:
    hardware = _hardware(module, device)
    if hardware is None or dtype is None:
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
def _hardware(module: ModuleType, device: HardwareSpec) -> Any:
    architecture = None
    if device.vendor == "amd" and device.match is not None:
        architecture = _ARCHITECTURES.get((device.match.compute_major, device.match.compute_minor))
    units, mhz, lds = device.compute_units, device.clock_mhz, device.lds_kib
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
