"""Column batches: many operations of one family as arrays of their dimensions, and how they are priced.

All rows of a batch have one ``precision`` (a row of ``[calibrated.*]`` in device files), so a million rows are a dozen
arrays and no objects. A family's batch and its pricer stand in one file of ``tiles``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracelens.backends.base import EstimateTable, Floats, System
from tracelens.dtypes import Precision
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import Calibration
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import WorkColumns
from tracelens.registry import mark
from tracelens.units import TERA_PER_S_IN_PER_US

OUTPUT_BYTES = 2.0
#: Rows per pass, so that a dozen columns stay in a core's L2: 1e6 GEMMs in 1.2 s; in one piece 2.5 s.
CHUNK = 8192
Part: TypeAlias = slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp] | list[int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Priced:
    """Times in us of many operations: in all, of the arithmetic alone, of memory alone, and the data sheet's least."""

    time_us: Floats
    compute_us: Floats
    memory_us: Floats
    peak_us: Floats

    @classmethod
    def joined(cls, parts: Sequence[Priced]) -> Priced:
        """One after the other."""
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in PRICED})

    @classmethod
    def summed(cls, count: int, parts: Iterable[tuple[Sequence[int], Priced | None]]) -> Priced:
        """``count`` operations, each the sum of the parts at its row; NaN without one, or where one has no answer."""
        parts = list(parts)
        if len(parts) == 1 and parts[0][1] is not None and list(parts[0][0]) == list(range(count)):
            return parts[0][1]
        total, known = np.zeros((len(PRICED), count)), np.zeros(count, bool)
        for rows, part in parts:
            known[rows] = True
            for values, name in zip(total, PRICED, strict=True):
                np.add.at(values, rows, np.nan if part is None else getattr(part, name))
        return cls(**dict(zip(PRICED, np.where(known, total, np.nan), strict=True)))


PRICED = tuple(field.name for field in fields(Priced))


class Basis(NamedTuple):
    """Per row: the device and types whose measurements its time rests on, "" where unknown, and the mean error there in
    percent, NaN where it was not measured on this device in this type.
    """

    label: npt.NDArray[Any]
    error_percent: Floats

    @classmethod
    def unknown(cls, rows: int) -> Basis:
        """Of times that rest on no measurement that is known."""
        return cls(np.full(rows, "", object), np.full(rows, np.nan))

    @classmethod
    def of(cls, constants: Calibration | None, device: HardwareSpec, precision: str, rows: int) -> Basis:
        """Of times by one row of ``[calibrated]``, which may stand in for another precision or device."""
        if constants is None:
            return cls.unknown(rows)
        label = f"{constants.family} {constants.precision} on {constants.carried_from or device.name}"
        own = constants.precision == precision and constants.carried_from is None
        error = constants.error_percent if own else None
        return cls(np.full(rows, label, object), np.full(rows, np.nan if error is None else error))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ColumnBatch(ABC):
    """Operations of one family and one ``precision``: every other field is an array, or a mapping to arrays."""

    family: ClassVar[str]

    precision: str

    @property
    def width_bytes(self) -> float:
        """Bytes per element of the operands."""
        return Precision.of(self.precision).width_bytes

    def __len__(self) -> int:
        return next(len(value) for value in self._columns().values() if not isinstance(value, Mapping))

    def take(self, part: Part) -> Self:
        """Some of the rows."""
        taken: dict[str, Any] = {
            name: {key: of[part] for key, of in value.items()} if isinstance(value, Mapping) else value[part]
            for name, value in self._columns().items()
        }
        return replace(self, **taken)

    def price(self, device: HardwareSpec) -> Priced | None:
        """Times by the tile model; None where the device has no constants or rates for the family and precision."""
        if len(self) <= CHUNK:
            return self._price(device)
        parts = [self.take(slice(at, at + CHUNK))._price(device) for at in range(0, len(self), CHUNK)]
        known = [part for part in parts if part is not None]
        return Priced.joined(known) if len(known) == len(parts) else None

    @abstractmethod
    def flops(self) -> Floats:
        """As ``flops`` of the family's perf models."""

    @abstractmethod
    def hbm_bytes(self) -> Floats:
        """As ``hbm_bytes`` of the family's perf models."""

    def measured_as(self, device: HardwareSpec) -> Basis:
        """What the tile model's times of the rows rest on."""
        return Basis.unknown(len(self))

    @abstractmethod
    def _price(self, device: HardwareSpec) -> Priced | None: ...

    def _columns(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray | Mapping)}


@runtime_checkable
class BatchBackend(Protocol):
    """A backend that also reads column batches."""

    def estimate_batch(self, batch: ColumnBatch, system: System) -> EstimateTable:
        """One row per row of ``batch``."""
        ...


@runtime_checkable
class RestsOnMeasurements(Protocol):
    """A backend that says which measurements its answers rest on."""

    def measured_as(self, work: WorkColumns | ColumnBatch, system: System) -> Basis:
        """One row per row of ``work``, whether or not it is answered."""
        ...


Pricer: TypeAlias = Callable[[WorkColumns, HardwareSpec], Priced]
#: The row of ``[calibrated]`` (family, precision) whose constants price an operation; None where no single one does.
CalibratedRow: TypeAlias = Callable[[Any], tuple[str, str] | None]
P = TypeVar("P", bound=Pricer)


def pricer(*families: str, row: CalibratedRow = lambda _: None) -> Callable[[P], P]:
    """Marks ``price(work, device) -> Priced`` as what prices operations of these families (``PerfModel.priced_as``).

    The rows of ``work`` are of these families; NaN is no answer. It stands in a file of ``tiles``, or beside the perf
    model's class. ``row`` says which constants ``tracelens calibrate`` fits to measured calls of an operation.
    """
    return mark("pricer", *families, row=row)


class Chip(NamedTuple):
    """A device as tiles see it: peak flops and bytes per us, compute units, clock over the data sheet's. ``on_chip``:
    how much faster its caches are than constants say, which are shares of ``hbm``.
    """

    peak: float
    hbm: float
    units: int
    clock: float
    on_chip: float = 1.0

    @classmethod
    def of(cls, device: HardwareSpec, precision: str) -> Chip | None:
        """None where the device's file lacks one of these."""
        peak, hbm, units = matrix_peak(device, precision), hbm_peak(device), device.compute_units
        if peak is None or hbm is None or units is None:
            return None
        return cls(peak, hbm, units, device.clock_scale, device.on_chip_scale)


def matrix_peak(device: HardwareSpec, precision: str) -> float | None:
    """Flops per us of the dense data-sheet rate; None where the file has none."""
    rate = device.rate("matrix", Precision.of(precision).dtype)
    return None if rate is None else rate.peak_tflops_s * TERA_PER_S_IN_PER_US


def hbm_peak(device: HardwareSpec) -> float | None:
    """Bytes per us; None where the file has none."""
    if device.hbm is None or device.hbm.peak_tb_s is None:
        return None
    return device.hbm.peak_tb_s * TERA_PER_S_IN_PER_US
