"""Times of engines' kernels: a launch and a norm of few costs, each a multiple of its time at the data sheet's rates.

A table's ``costs`` say what a call asks of the device: products by whole tiles, waves of work-groups, bytes, steps that
follow each other. Constants of a device and library say how many times longer than the data sheet each takes.
Every cost grows with every size, so estimates do too.

``tracelens/hardware/kernels/TABLE.toml`` holds the fitted constants, a row per device, library, kernel and types, with
their source and the error on shape groups not fitted; a device file may hold its own (``tracelens calibrate``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.backends.base import Basis, ColumnBatch, Floats, Priced, hbm_peak
from tracelens.files.documents import FigureTable, bundled
from tracelens.hardware import HardwareSpec, device_figures
from tracelens.hardware.device_figures import KernelConstants
from tracelens.hardware.spec import FOLDER as DEVICES
from tracelens.registry import Mark
from tracelens.types.dtypes import DType, Precision
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US, TERA_PER_S_IN_PER_US

Sizes: TypeAlias = Mapping[str, Floats]
#: What is alike in all rows of one case: ``framework``, ``kernel_source``, types, phases.
Case: TypeAlias = Mapping[str, str]
#: Bytes per clock and compute unit between L2 and a unit: 64 on NVIDIA since Volta, 64 on CDNA.
L2_BYTES_PER_CLOCK = 64.0
#: Exponentials per clock and unit: 16 on NVIDIA since Ampere, and on CDNA (4 SIMDs of 16 lanes at a quarter rate).
EXP_PER_CLOCK = 16.0
#: An H100's L2, where a device file names none.
_USUAL_L2_BYTES = 50.0 * 2**20
#: Rates that stand in for a type which the matrix units of a device do not have: operands are widened on the way.
_WIDER = {"fp4": ("fp8", "bf16"), "fp8": ("bf16",), "int8": ("fp8", "bf16"), "bf16": ("fp16",)}
#: Part of a step (a tile, a wave of work-groups) over which the next one begins to count in full.
_STEP_RISE = 0.25


def steps(share: Floats) -> Floats:
    """Whole steps that ``share`` of them take, at least one; each further one begins gradually.

    Measured sizes are mostly whole steps, so where between two of them a kernel's time jumps is not known.
    """
    begun = np.maximum(share, 1.0)
    whole = np.floor(begun)
    return np.asarray(whole + np.minimum((begun - whole) / _STEP_RISE, 1.0))


def tiled(size: Floats, edge: float) -> Floats:
    """Rounded up to whole tiles, see ``steps``."""
    return steps(size / edge) * edge


class KernelRates(NamedTuple):
    """A device as kernels see it, per us: bytes, flops by type, exponentials; on-chip rates follow clock and units.

    ``hbm`` and ``l2_bytes`` may hold a value per call, where calls of several devices are fitted together.
    """

    units: float
    hbm: Any
    l2: float
    l2_bytes: Any
    exponentials: float
    vector: float
    link: float
    matrix: Mapping[str, float]

    @classmethod
    def of(cls, device: HardwareSpec) -> KernelRates | None:
        """None where the device's file lacks an HBM rate, or nobody published what else is needed of its like.

        A device without published rates (MI308X) has those of its architecture per unit; one without a published count
        of units or a clock (B300) has that of the device which it is like.
        """
        hbm = hbm_peak(device)
        twin = device if _is_complete(device) else _twin(device)
        if twin is None or hbm is None:
            return None
        units, mhz = device.compute_units or twin.compute_units or 0, twin.clock_mhz or 0.0
        share = 1.0 if "bf16" in device.matrix else units / (twin.compute_units or units)
        own = device if "bf16" in device.matrix else twin
        clocks = units * mhz * device.clock_scale
        single, rate = own.rate("vector", DType.FP32), own.matrix["bf16"]
        vector = rate.peak_tflops_s / 16 if single is None else single.peak_tflops_s
        host = device.chip.get("pcie")
        gb_s = device.link.gb_s if device.link is not None else host.value if host is not None else 0.0
        return cls(
            units=units,
            hbm=hbm,
            l2=clocks * L2_BYTES_PER_CLOCK,
            l2_bytes=_USUAL_L2_BYTES if (held := device.completed.l2_mib) is None else held * 2**20,
            exponentials=clocks * EXP_PER_CLOCK,
            vector=vector * share * TERA_PER_S_IN_PER_US,
            link=gb_s * GB_PER_S_IN_BYTES_PER_US,
            matrix={key: each.peak_tflops_s * share * TERA_PER_S_IN_PER_US for key, each in own.matrix.items()},
        )

    def flops(self, rate: str) -> float:
        """Flops per us of a type, or of the wider one that it is computed in."""
        return next(self.matrix[key] for key in (rate, *_WIDER.get(rate, ()), "bf16") if key in self.matrix)


def _is_complete(device: HardwareSpec) -> bool:
    return "bf16" in device.matrix and bool(device.compute_units and device.clock_mhz)


def _twin(device: HardwareSpec) -> HardwareSpec | None:
    """The device that it is like, or another of its architecture, whose figures are published."""
    mine = device.match
    like = [] if device.calibrated_like is None else [HardwareSpec.load(device.calibrated_like)]
    alike = HardwareSpec.of_architecture(mine.compute_major, mine.compute_minor) if mine is not None else ()
    for other in (*like, *alike):
        theirs = other.match
        same = mine is not None and theirs is not None and theirs.compute_minor == mine.compute_minor
        if _is_complete(other) and other.vendor == device.vendor and (other in like or same):
            return other
    return None


class Work(NamedTuple):
    """What a call computes and moves at least, as the perf models count: flops at ``rate``, bytes of HBM.

    ``done``: flops by class of ``hardware.power`` as the kernels do them, where they are of several; ``l2_bytes``:
    what passes L2, where that is more than the bytes of HBM.
    """

    flops: Floats
    hbm_bytes: Floats
    rate: str = "bf16"
    done: Mapping[str, Floats] | None = None
    l2_bytes: Floats | None = None


class Costs(NamedTuple):
    """Times in us at the data sheet's rates, by name.

    ``streamed``: bytes that come from HBM where L2 is too small for ``held``, which is the same where absent.
    ``after``: names of costs that follow the others instead of overlapping them. ``chained``: all of them follow each
    other, kernel by kernel, and overlap only with the host that launches them. ``beneath``: the call is part of a pass
    whose streamed bytes are not its own, which hide it.
    """

    us: Mapping[str, Floats]
    streamed: Floats | None = None
    held: Floats | None = None
    after: tuple[str, ...] = ()
    chained: bool = False
    beneath: bool = False


class KernelTable(Record, frozen=True, kw_only=True):
    """How a measured table is read and priced.

    ``sizes`` are its columns of numbers, ``cases`` those of text beside ``framework`` and ``kernel_source`` that choose
    other constants. ``groups``: columns that a shape group has in common.
    """

    name: str
    sizes: tuple[str, ...]
    work: Callable[[Sizes, Case], Work]
    costs: Callable[[Sizes, KernelRates, Case], Costs]
    cases: tuple[str, ...] = ()
    groups: tuple[str, ...]
    #: Sizes that follow from the columns by drawing loads, see ``estimation``.
    loads: tuple[str, ...] = ()
    #: Sizes that a table may leave out, and what they are then.
    optional: Mapping[str, float] = msgspec.field(default_factory=dict)
    #: A column of text that stands for sizes, and those of its texts.
    described: tuple[str, Callable[[Sequence[str]], Sizes]] | None = None
    #: Cases that are other operations, for which no other stands in.
    apart: tuple[str, ...] = ()
    #: Names of types that are no precision's, e.g. ``w4a16_mxfp4``.
    types: Collection[str] = ()
    #: Other names of types -> what the kernels that were measured compute in.
    spellings: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The rate that a case computes at, where no other type's kernels and no wider rate stand in for it.
    computes: Callable[[Case], str] | None = None
    #: Few shapes were measured per type and device: all are fitted together first, each near to that.
    is_pooled: bool = False
    #: The kernel that a ``kernel_source`` names.
    kernel: Callable[[str], str] = str
    #: What kernels of different names do, where a table holds several operations.
    operation: Callable[[Case], object] = lambda case: None

    @property
    def __tracelens_marks__(self) -> tuple[Mark, ...]:
        return (Mark(kind="kernels", keys=(self.name,)),)

    def type_named(self, text: str) -> str | None:
        """A type as measured tables spell it; None for an unknown one."""
        if text.lower() in self.spellings:
            return self.spellings[text.lower()]
        if text.lower() in self.types:
            return text.lower()
        found = Precision.parse(text)
        return None if found is None else "bfloat16" if found is Precision.BF16 else found.value

    def lacks(self, case: Case, device: HardwareSpec) -> str | None:
        """A sentence where the device has no matrix units for what the case computes in; None where it has."""
        rate = None if self.computes is None else self.computes(case)
        if rate is None or not device.matrix or rate in device.matrix:
            return None
        return f"{device.name} has no matrix units for {rate}: its file has {', '.join(device.matrix)}"

    def least_us(self, work: Work, rates: KernelRates) -> Floats:
        """No call takes less: its flops at the peak; the bytes that L2 cannot still hold from the call before."""
        missed = np.maximum(work.hbm_bytes - rates.l2_bytes, 0)
        return np.maximum(work.flops / rates.flops(work.rate), missed / rates.hbm)


def missed_us(costs: Costs, rates: KernelRates, constants: Mapping[str, float]) -> Floats:
    """Time of the streamed bytes that L2 does not hold: none up to ``cache`` of it, from twice that on all."""
    streamed = 0.0 if costs.streamed is None else costs.streamed
    held = streamed if costs.held is None else costs.held
    filled = held / (constants.get("cache", 1.0) * rates.l2_bytes)
    missed = np.clip(filled - 1, 0, 1)
    return np.asarray(constants["hbm"] * missed * streamed / rates.hbm, np.float64)


def combined_us(costs: Costs, rates: KernelRates, constants: Mapping[str, float]) -> Floats:
    """``launch_us + after + (host_us ** overlap + sum of (constant * cost) ** overlap) ** (1 / overlap)``.

    Absent constants leave a cost out; ``after`` are the costs that follow. Of chained costs the sum counts:
    ``launch_us + (host_us ** overlap + (sum of constant * cost) ** overlap) ** (1 / overlap)``. A call beneath streamed
    bytes takes what it adds to their time.
    """
    power = constants.get("overlap", 1.0)
    inner = 1.0 if costs.chained else power
    total: Any = 0.0
    after: Any = constants.get("launch_us", 0.0)
    for name, us in costs.us.items():
        if name not in constants:
            continue
        if name in costs.after:
            after = after + constants[name] * us
        else:
            total = total + (constants[name] * us) ** inner
    hidden: Any = 0.0
    if costs.streamed is not None and "hbm" in constants:
        missed = missed_us(costs, rates, constants)
        total = total + missed**inner
        hidden = missed if costs.beneath else 0.0
    overlapped = np.asarray(total, np.float64) ** (power / inner) + constants.get("host_us", 0.0) ** power
    return np.asarray(after + overlapped ** (1 / power) - hidden)


FOLDER = DEVICES.parent / "kernels"
#: What a stand-in costs: other types, another library, another kernel, an older version; another device.
_OTHER_CASE, _OTHER_LIBRARY, _OTHER_KERNEL, _OTHER_VERSION = 10.0, 3.0, 1.0, 0.1
_SISTER, _ARCHITECTURE, _GENERATION, _ANY_DEVICE = 0.01, 4.5, 5.0, 6.0


@functools.cache
def fitted_constants(table: str) -> tuple[KernelConstants, ...]:
    """Every row of a table's file; none without one."""
    path = bundled(FOLDER) / f"{table}.toml"
    return device_figures.read_kernel_constants(FigureTable.of_file(path), "kernels") if path.is_file() else ()


def constants_of_device(table: str, device: HardwareSpec) -> tuple[KernelConstants, ...]:
    """Every row of a table's file, in whose place a device file's own come where they are of the same kernel."""
    own, published = device.kernels.get(table, ()), fitted_constants(table)
    if not own:
        return published
    names = (device.name, device.based_on)

    def is_replaced(row: KernelConstants) -> bool:
        return row.device in names and any(
            all(row.case.get(name) == text for name, text in mine.case.items() if name != "version") for mine in own
        )

    return (*own, *(row for row in published if not is_replaced(row)))


def chosen_constants(
    table: KernelTable, device: HardwareSpec, case: Case, rows: tuple[KernelConstants, ...]
) -> tuple[KernelConstants, ...]:
    """The rows nearest to a case on a device: several where the case leaves the library or the kernel open.

    A device that nobody measured takes its sister's (``like``), else those of its architecture, else of its generation
    (gfx950's for gfx942), else all devices'.
    """
    ranked = [(_distance(table, device, case, row), row) for row in rows]
    least = min((far for far, _ in ranked if far is not None), default=None)
    return tuple(row for far, row in ranked if far == least and far is not None)


def _distance(table: KernelTable, device: HardwareSpec, case: Case, row: KernelConstants) -> float | None:
    """None where the row is of another operation."""
    if any(row.case.get(name) != case[name] for name in table.apart if name in case):
        return None
    if table.operation(row.case) != table.operation(case):
        return None
    far = _device_distance(device, row.device)
    for name, cost in (("framework", _OTHER_LIBRARY), ("kernel_source", _OTHER_KERNEL), ("version", _OTHER_VERSION)):
        far += cost * (name in case and row.case.get(name) != case[name])
    return far + sum(_OTHER_CASE for name in table.cases if name in case and row.case.get(name) != case[name])


def _device_distance(device: HardwareSpec, measured: str) -> float:
    if measured in (device.name, device.based_on):
        return 0.0
    sister = device.calibrated_like
    if sister is not None and measured == sister:
        return _SISTER
    other = HardwareSpec.load(measured)
    mine, theirs = device.match, other.match
    if mine is None or theirs is None or device.vendor != other.vendor or mine.compute_major != theirs.compute_major:
        return _ANY_DEVICE
    return _ARCHITECTURE if mine.compute_minor == theirs.compute_minor else _GENERATION


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelColumns(ColumnBatch):
    """Rows of one table with equal text columns (``case``: pairs of a column and its text)."""

    family: ClassVar[str] = "kernel"

    table: KernelTable
    case: tuple[tuple[str, str], ...]
    sizes: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(next(iter(self.sizes.values())))

    def flops(self) -> Floats:
        return self.table.work(self.sizes, dict(self.case)).flops

    def hbm_bytes(self) -> Floats:
        return self.table.work(self.sizes, dict(self.case)).hbm_bytes

    @property
    def is_repeated(self) -> bool:
        """As benchmarks time them."""
        return True

    def power_families(self) -> npt.NDArray[Any]:
        """The table's own, by library; convolutions apart."""
        case = dict(self.case)
        kind = self.table.name + ("-conv" if "conv1d" in case.get("kernel_source", "") else "")
        return np.full(len(self), f"{kind} {case.get('framework', '')}".strip(), object)

    def flops_by_class(self) -> Mapping[str, Floats]:
        """As the table's kernels do them; none where they only move bytes."""
        work = self.table.work(self.sizes, dict(self.case))
        done = {work.rate: work.flops} if work.done is None else work.done
        return {name: flops for name, flops in done.items() if flops.any()}

    def l2_bytes(self) -> Floats:
        """As the table counts them, at least the bytes of HBM."""
        work = self.table.work(self.sizes, dict(self.case))
        return work.hbm_bytes if work.l2_bytes is None else np.maximum(work.l2_bytes, work.hbm_bytes)

    def choices(self, device: HardwareSpec) -> tuple[KernelConstants, ...]:
        """The kernels that may run on the device; those of another device without the name of its tuning file."""
        found = chosen_constants(self.table, device, dict(self.case), constants_of_device(self.table.name, device))
        usual = None if self.table.described is None else self.table.described[0]
        return tuple(
            row
            if row.device in (device.name, device.based_on) or usual not in row.case
            else replace(row, case={name: text for name, text in row.case.items() if name != usual})
            for row in found
        )

    def _price(self, device: HardwareSpec) -> Priced | None:
        return (self.fastest(device) or (None,))[0]

    def fastest(self, device: HardwareSpec) -> tuple[Priced, tuple[KernelConstants, ...], Floats] | None:
        """Times by the fastest kernel, the kernels, and which of them each row takes. None without any.

        Where other devices' constants stand in, the geometric mean over those devices.
        """
        choices, rates = self.choices(device), KernelRates.of(device)
        if not choices or rates is None:
            return None
        times = np.stack([self.time_us(each, rates) for each in choices])
        devices = sorted({each.device for each in choices})
        which = times.argmin(axis=0)
        of_each = [times[[each.device == name for each in choices]].min(axis=0) for name in devices]
        time = np.exp(np.mean(np.log(of_each), axis=0)) if len(devices) > 1 else of_each[0]
        work = self.table.work(self.sizes, dict(self.case))
        compute, memory = work.flops / rates.flops(work.rate), work.hbm_bytes / rates.hbm
        least = self.table.least_us(work, rates)
        priced = Priced(time_us=np.maximum(time, least), compute_us=compute, memory_us=memory, peak_us=least)
        return priced, choices, which

    def measured_as(self, device: HardwareSpec) -> Basis:
        """The kernel that each row takes; its error where it was measured on the device and in the row's types."""
        kernels, chosen_of = self.choices(device), self.fastest(device)
        if not kernels or chosen_of is None:
            return Basis.unknown(len(self))
        own, asked = (device.name, device.based_on), dict(self.case)
        held = [
            row.error_percent is not None
            and row.device in own
            and all(row.case.get(name) == asked[name] for name in self.table.cases if name in asked)
            for row in kernels
        ]
        errors = [row.error_percent if known else np.nan for row, known in zip(kernels, held, strict=True)]
        labels, which = np.array([row.label for row in kernels], object), chosen_of[2]
        return Basis(labels[which], np.array(errors, np.float64)[which])

    def time_us(self, kernel: KernelConstants, rates: KernelRates) -> Floats:
        """By one kernel's constants, not below what the data sheet allows."""
        case = {**dict(kernel.case), **dict(self.case)}
        case |= {name: kernel.case[name] for name in ("framework", "kernel_source", "version") if name in kernel.case}
        costs = self.table.costs(self.sizes, rates, case)
        return np.maximum(
            combined_us(costs, rates, kernel.constants), self.table.least_us(self.table.work(self.sizes, case), rates)
        )
