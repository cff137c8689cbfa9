"""Times from a device's figures: the least that its rates allow (roofline), and the tile model fitted per device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import (
    PRICED,
    Backend,
    Basis,
    ColumnBatch,
    EstimateTable,
    Floats,
    System,
    backend,
    hbm_peak,
)
from tracelens.backends.tiles import pricer_of
from tracelens.hardware import HardwareSpec, power
from tracelens.hardware.device_figures import PowerConstants, Rate
from tracelens.perf_models.base import MEMORY, PerfModel, WorkColumns
from tracelens.types.dtypes import DType, Precision
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US, TERA_PER_S_IN_PER_US

_BOUNDS = ("compute", "memory", "wire")


@backend("roofline")
class Roofline(Backend):
    """The largest of compute, memory and wire time (Williams, Waterman and Patterson, 2009).

    compute_us = flops / rate(engine, dtype); memory_us = hbm_bytes / HBM rate; wire_us = wire_bytes / link rate, one
    direction. Rates are the achievable ones where the device file has them, else the peaks; ``peak_us`` is the same
    with peaks throughout. Achievable rates never exceed peaks, so ``time_us`` never beats the device's peak.

    An operation that computes, but whose FLOPs are unknown, has no time and no bound: its bytes alone say neither; so
    has a matrix product in a type the device has no rate for, and what moves bytes on a device without an HBM rate.
    What else is unknown bounds nothing: any other row without a compute rate is memory or wire bound, and
    ``rate_basis`` is None. Ties go to compute, then memory. All three unknown: NaN.
    """

    name: ClassVar[str] = "roofline"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """Time and bound of every row, in microseconds."""
        device = system.device
        rates = [device.rate(engine, dtype) for engine, dtype in zip(columns.engine, columns.dtype, strict=True)]
        hbm, link = device.hbm, device.link
        achievable = _times(
            columns,
            tflops_s=[rate.tflops_s if rate else None for rate in rates],
            tb_s=hbm.tb_s if hbm else None,
            wire_gb_s=link.achievable_gb_s or link.gb_s if link else None,
        )
        peak = _times(
            columns,
            tflops_s=[rate.peak_tflops_s if rate else None for rate in rates],
            tb_s=hbm.peak_tb_s if hbm else None,
            wire_gb_s=link.gb_s if link else None,
        )
        undecided = _undecided(columns, rates) | ((columns.hbm_bytes > 0) & (hbm_peak(device) is None))
        time_us = np.where(undecided, np.nan, _largest(achievable))
        # argmax takes the first of equals: compute, memory, wire.
        largest = np.where(np.isnan(achievable), -1.0, achievable).argmax(axis=0)
        answered = time_us > 0
        return EstimateTable(
            time_us=time_us,
            peak_us=np.where(undecided, np.nan, _largest(peak)),
            compute_us=achievable[0],
            memory_us=achievable[1],
            wire_us=achievable[2],
            bound=tuple(
                _BOUNDS[index] if known else None
                for index, known in zip(largest.tolist(), answered.tolist(), strict=True)
            ),
            rate_basis=tuple(_basis(rate, flops) for rate, flops in zip(rates, columns.flops.tolist(), strict=True)),
            backend=(self.name,) * len(rates),
        )

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """As ``estimate_many``. Attention over a cache in a type without a rate is multiplied in its queries' BF16."""
        rows, dtype = len(batch), Precision.of(batch.precision).dtype
        if batch.family == "sdpa" and system.device.rate("matrix", dtype) is None:
            dtype = DType.BF16
        work = WorkColumns(
            flops=batch.flops(), hbm_bytes=batch.hbm_bytes(), wire_bytes=np.zeros(rows), engine=("matrix",) * rows,
            dtype=(dtype,) * rows, models=(), passes=np.ones(rows),
        )  # fmt: skip
        return self.estimate_many(work, system)


def _undecided(columns: WorkColumns, rates: Sequence[Rate | None]) -> npt.NDArray[np.bool_]:
    """Rows that compute for nobody knows how long: of unknown FLOPs, or matrix products in a type without a rate."""
    computes = np.array([engine != "none" for engine in columns.engine], bool)
    unrated = [engine == "matrix" and rate is None for engine, rate in zip(columns.engine, rates, strict=True)]
    unknown: npt.NDArray[np.bool_] = np.isnan(columns.flops * columns.passes) & computes
    return unknown | (np.array(unrated, bool) & (columns.flops > 0))


def _basis(rate: Rate | None, flops: float) -> str | None:
    return rate.basis if rate is not None and flops > 0 else None


def _times(
    columns: WorkColumns, *, tflops_s: list[float | None], tb_s: float | None, wire_gb_s: float | None
) -> Floats:
    """Three rows: compute, memory, wire time in us. No work takes no time, at whatever rate."""
    work = np.stack([columns.flops * columns.passes, columns.hbm_bytes, columns.wire_bytes])
    rows = len(tflops_s)
    rates = np.array([tflops_s, [tb_s] * rows, [wire_gb_s] * rows], np.float64)
    scale = np.array([[TERA_PER_S_IN_PER_US], [TERA_PER_S_IN_PER_US], [GB_PER_S_IN_BYTES_PER_US]])
    return np.where(work == 0, 0.0, work / (rates * scale))


def _largest(times: Floats) -> Floats:
    """Per column; NaN where nothing is known but that some of the work is none."""
    largest: Floats = np.fmax.reduce(times, axis=0)
    return np.where((largest == 0) & np.isnan(times).any(axis=0), np.nan, largest)


@backend("tile")
class Tile(Backend):
    """What the pricer of an operation's family says; None for a family without one.

    A device without constants for the family and precision has no answer either: a chain asks the next backend.
    Estimates never beat the data sheet's peak, and grow with every dimension (``docs/estimation.md`` lists what was
    measured not to).
    """

    name: ClassVar[str] = "tile"

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        # NaN where no pricer has an answer
        asked: dict[Any, list[int]] = defaultdict(list)
        for row, model in enumerate(columns.models):
            kind: Any = type(model)
            claim = pricer_of(kind)
            if claim is not None:
                asked[claim.target].append(row)
        filled = {field: np.full(len(columns), np.nan) for field in PRICED}
        for price, rows in asked.items():
            found = price(columns.take(rows), system.device)
            for field, values in filled.items():
                values[rows] = getattr(found, field)
        # The data sheet's time of what each model says it computes and moves, a bias or a wide C included.
        least, known = Roofline().estimate_many(columns, system).peak_us, np.isfinite(filled["time_us"])
        for field in ("time_us", "peak_us"):
            filled[field] = np.where(known, np.fmax(filled[field], least), np.nan)
        bound = np.where(filled["compute_us"] >= filled["memory_us"], "compute", "memory").tolist()
        basis = ["achievable" if engine == "matrix" else "" for engine in columns.engine]
        return EstimateTable.by(self.name, bound, basis, **filled, wire_us=np.where(known, 0.0, np.nan))

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """One row per row of ``batch``, without an object each. The bound is the larger of computing and memory."""
        found, rows = batch.price(system.device), len(batch)
        if found is None:
            return EstimateTable.unanswered(rows)
        return EstimateTable(
            **{field: getattr(found, field) for field in PRICED},
            wire_us=np.zeros(rows),
            bound=tuple(np.where(found.compute_us >= found.memory_us, "compute", "memory").tolist()),
            rate_basis=("achievable",) * rows,
            backend=(self.name,) * rows,
        )

    def measured_as(self, work: WorkColumns | ColumnBatch, system: System) -> Basis:
        """Whose constants price the rows of a column batch; of perf models, which may be several calls, unknown."""
        return work.measured_as(system.device) if isinstance(work, ColumnBatch) else Basis.unknown(len(work))


#: Bytes of HBM per byte on the wire: a collective reads what it sends and writes what it receives.
HBM_PER_WIRE = 2.0
#: Part of L2 that a repeated call finds its operands in: none is missed up to here, all from twice that on. Assumed.
_HELD = 0.7
#: FLOPs per byte of HBM below which attention decodes. Assumed: prompts of a few hundred tokens have more.
_DECODES = 64.0
_CLASSES = {"fp4": "nvfp4"}


def works(
    work: WorkColumns | ColumnBatch,
    device: HardwareSpec,
    time_us: Floats,
    clocked: Floats | float = 1.0,
    experts: str = "moe",
) -> Iterator[tuple[npt.NDArray[np.intp], power.KernelWork]]:
    """Rows that are alike in what they draw power for, and their work: of perf models as they count, of column batches
    as their kernels do it. ``clocked``: the share of the time that follows the clock. ``experts``: the family of perf
    models of fused ones.
    """
    if isinstance(work, ColumnBatch):
        families, flops, hbm, wire = work.power_families(), work.flops_by_class(), work.hbm_bytes(), np.zeros(len(work))
        l2 = work.l2_bytes()
        if work.is_repeated and (held := device.completed.l2_mib) is not None:
            hbm = hbm * np.clip(hbm / (_HELD * held * 2**20) - 1, 0, 1)
    else:
        families, flops = _model_work(work, experts)
        wire = np.nan_to_num(work.wire_bytes)
        l2 = hbm = np.where(wire > 0, HBM_PER_WIRE * wire, work.hbm_bytes)
    follows = np.broadcast_to(np.asarray(clocked, np.float64), len(work))
    for name in sorted(set(families.tolist())):
        at = np.flatnonzero(families == name)
        yield at, power.KernelWork(
            family=name, time_us=time_us[at], flops={key: done[at] for key, done in flops.items() if done[at].any()},
            hbm_bytes=hbm[at], l2_bytes=l2[at], link_bytes=wire[at], clocked=follows[at],
        )  # fmt: skip


def _model_work(work: WorkColumns, experts: str) -> tuple[npt.NDArray[Any], dict[str, Floats]]:
    """Families and FLOPs by class. Vector units' FLOPs are in the energy of the bytes that they come with."""
    kinds = [model.price_family() or (power.PRODUCTS if engine == "matrix" else MEMORY)
             for model, engine in zip(work.models, work.engine, strict=True)]  # fmt: skip
    named = {"sdpa": power.PROMPTS, "moe": experts}
    families = np.array([named.get(kind, kind) for kind in kinds], object)
    with np.errstate(divide="ignore", invalid="ignore"):
        families[(families == power.PROMPTS) & (work.flops / work.hbm_bytes < _DECODES)] = power.DECODING
    rates = ["bf16" if dtype is None or dtype.rate is None else dtype.rate for dtype in work.dtype]
    classes = [
        ("" if engine != "matrix" else power.ATTENTION if kind == "sdpa" else _CLASSES.get(rate, rate))
        for kind, engine, rate in zip(kinds, work.engine, rates, strict=True)
    ]
    each, done = np.array(classes, object), work.flops * work.passes
    return families, {name: np.where(each == name, done, 0.0) for name in sorted(set(classes)) if name}


def drawn(work: WorkColumns | ColumnBatch, found: EstimateTable, device: HardwareSpec) -> power.Drawn:
    """Watts of estimated rows, and their interval; NaN where the time or the device's energies are unknown."""
    parts = power.Drawn(*(np.full(len(work), np.nan) for _ in power.Drawn._fields))
    constants = power.power_constants(device)
    if constants is None:
        return parts
    with np.errstate(divide="ignore", invalid="ignore"):
        clocked = np.clip(np.nan_to_num(found.compute_us / found.time_us), 0.0, 1.0)
    for at, part in works(work, device, found.time_us, clocked):
        for whole, values in zip(parts, power.kernel_power(constants, part), strict=True):
            whole[at] = values
    return parts


def over_idle_uj(
    constants: PowerConstants, models: Sequence[PerfModel], time_us: Floats, device: HardwareSpec
) -> Floats:
    """µJ of a call of each model, of so many µs, over what a waiting device draws; none of one without time.

    Experts draw as products: by energies of loops of one layer the watts of ML.ENERGY's servers are 10 % too high.
    """
    columns, over_w = WorkColumns.of(models), np.full(len(models), np.nan)
    for at, work in works(columns, device, time_us, experts=power.PRODUCTS):
        over_w[at] = power.kernel_power(constants, work).power_w - constants.idle_w
    return np.where(time_us > 0, over_w * time_us, 0.0)


#: Figures of ``power_columns``, and what says on which measurements they rest.
POWER_FIGURES = tuple(f"{name}{end}" for name in ("power_w", "energy_mj") for end in ("", "_low", "_high"))
POWER_BASIS = "power_measured_as"


def power_columns(
    work: WorkColumns | ColumnBatch, found: EstimateTable, device: HardwareSpec, error_percent: Floats
) -> dict[str, npt.NDArray[Any]]:
    """Watts and mJ of one call with their intervals, by the names of ``tracelens estimate``, and what they rest on.

    Energy's interval is wider than that of the watts by ``error_percent``, the mean error of the times, and NaN where
    that is unknown.
    """
    watts, constants = drawn(work, found, device), power.power_constants(device)
    off = error_percent / 100
    energy, low, high = watts.energy_mj(found.time_us)
    values = dict(zip(POWER_FIGURES, (*watts, energy, low / (1 + off), high * (1 + off)), strict=True))
    basis = np.full(len(work), "", object)
    if constants is not None:
        for at, part in works(work, device, found.time_us):
            basis[at] = f"{power.family_named(constants, part)} on {constants.carried_from or device.name}"
    return {**values, POWER_BASIS: np.where(np.isnan(watts.power_w), "", basis)}
