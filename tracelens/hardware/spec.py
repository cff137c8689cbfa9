"""What a device can do: one TOML file per device in ``devices``, every figure with its source.

``docs/devices.md`` describes the file. Rates are dense (without 2:4 sparsity), link rates are one direction per GPU,
and what a file does not say is None: there is no default device and no default figure.
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from tracelens.errors import InputError, UsageError
from tracelens.files.documents import FigureTable, bundled, normalized, toml_of
from tracelens.hardware import device_figures
from tracelens.hardware.device_figures import (
    RATES,
    BusBandwidth,
    Calibration,
    Figure,
    Hbm,
    KernelConstants,
    Link,
    Match,
    MatrixCores,
    PowerConstants,
    Rate,
)
from tracelens.types.dtypes import CALIBRATED, DType, Precision
from tracelens.types.records import Record

FOLDER = Path(__file__).resolve().parent / "devices"
# Data sheets headline the 2:4-sparse rate, twice the dense one; rounding stays well below this.
DENSE_TOLERANCE = 0.03

_CHIP_KEYS = {
    "compute_units": "count", "clock": "mhz", "l2": "mib", "lds": "kib_per_unit", "mall": "mib", "xcd": "count",
    "power": "tdp_w", "pcie": "gb_s", "c2c": "gb_s",
}  # fmt: skip
#: Of the chip: what constants of tiles count in.
_COUNTED = {"compute_units": "compute units", "clock": "clock", "l2": "L2 size"}
_EFFICIENCIES = frozenset({"hbm", "hbm_calculon", "link", "nic"})
_EP_KINDS = frozenset({"nvlink", "rdma", "rdma_legacy", "low_latency"})
#: Fields of a device that are not read as they stand in its file.
_READ_APART = ("name", "label", "vendor", "calibrated_like", "clock_scale", "on_chip_scale")
V = TypeVar("V")
N = TypeVar("N", int, float)


class _ChipFigure(Generic[N]):
    """A figure of ``[chip]`` as a property; None where the file lacks it."""

    def __init__(self, name: str, kind: type[N]) -> None:
        self._name = name
        self._kind: type[N] = kind

    def __get__(self, device: HardwareSpec, owner: type[HardwareSpec]) -> N | None:
        found = device.chip.get(self._name)
        return None if found is None else self._kind(found.value)


class HardwareSpec(Record, frozen=True, kw_only=True):
    """One device. Everything unknown is None, or absent from a mapping."""

    name: str
    label: str
    vendor: str
    aliases: tuple[str, ...] = ()
    note: str | None = None
    match: Match | None = None
    matrix: Mapping[str, Rate] = msgspec.field(default_factory=dict)
    vector: Mapping[str, Rate] = msgspec.field(default_factory=dict)
    hbm: Hbm | None = None
    link: Link | None = None
    chip: Mapping[str, Figure] = msgspec.field(default_factory=dict)
    matrix_cores: MatrixCores | None = None
    best_shape: Mapping[str, Figure] = msgspec.field(default_factory=dict)
    pytorch_sustained: Mapping[str, Figure] = msgspec.field(default_factory=dict)
    efficiency_factor: Mapping[str, Figure] = msgspec.field(default_factory=dict)
    busbw: BusBandwidth | None = None
    ep: Mapping[str, Figure] = msgspec.field(default_factory=dict)
    calibrated: Mapping[tuple[str, str], Calibration] = msgspec.field(default_factory=dict)
    calibrated_like: str | None = None
    #: The CPU of the package that the device is part of, in lower case.
    cpu: str | None = None
    #: Energies that were measured on it; ``hardware.power`` says what stands in for them.
    power: PowerConstants | None = None
    #: The device whose energies stand in where nobody measured its architecture's.
    energies_of: str | None = None
    #: Own constants of engines' kernels, by measured table.
    kernels: Mapping[str, tuple[KernelConstants, ...]] = msgspec.field(default_factory=dict)
    #: The device of this package that the file was made from; its standard node is this device's.
    based_on: str | None = None
    #: Matrix, vector and cache rates over those at the data sheet's clock; see ``at_clock``.
    clock_scale: float = 1.0
    #: Cache rates over those that constants give as shares of the memory's, where that or the compute rate was changed.
    on_chip_scale: float = 1.0

    def __hash__(self) -> int:
        return hash((self.name, self.label))

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> HardwareSpec:
        """A device of this package by name or alias, or a device file (``my_chip.toml``) by path.

        Case, ``-``, ``_`` and blanks do not matter in names. UsageError for an unknown name, InputError for a file
        that is missing or wrong.
        """
        if isinstance(name, os.PathLike) or str(name).endswith(".toml"):
            return _read(Path(name).name, toml_of(Path(name)))
        wanted = normalized(name)
        if wanted in cls.names():
            return _bundled(wanted)
        by_alias = {normalized(alias): one for one in cls.names() for alias in _bundled_values(one).get("aliases", ())}
        if wanted not in by_alias:
            raise UsageError.unknown("device", name, [*cls.names(), *by_alias])
        return _bundled(by_alias[wanted])

    @classmethod
    def file_text(cls, name: str | os.PathLike[str]) -> str:
        """The text of the file that ``load(name)`` reads."""
        named = isinstance(name, os.PathLike) or str(name).endswith(".toml")
        return (Path(name) if named else bundled(FOLDER) / f"{cls.load(name).name}.toml").read_text(encoding="utf-8")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the devices of this package, sorted. Reads the folder, not the files."""
        return _names()

    @classmethod
    def all(cls) -> tuple[HardwareSpec, ...]:
        """Every device of this package, in the order of ``names``."""
        return tuple(_bundled(name) for name in cls.names())

    @classmethod
    def of_architecture(
        cls, compute_major: int | None, compute_minor: int | None = None, *, section: str = ""
    ) -> tuple[HardwareSpec, ...]:
        """Devices of this package that ``[match]`` a compute capability (None: any) and have a ``section``."""
        asked = {"compute_major": compute_major, "compute_minor": compute_minor}
        named = [name for name in cls.names() if not section or f"\n[{section}]\n" in _bundled_text(name)]
        return tuple(
            _bundled(name)
            for name in named
            if (match := _bundled_match(name)) is not None
            and all(number in (None, match.get(key)) for key, number in asked.items())
        )

    def rate(self, engine: str, dtype: DType | None) -> Rate | None:
        """The compute rate of ``engine`` (``"matrix"`` or ``"vector"``) for ``dtype``; None when the file has none.

        NVIDIA devices have no fp32 matrix rate: cuBLAS runs fp32 on the CUDA cores unless TF32 is allowed, and a trace
        records fp32 either way. So their fp32 matrix rate is the fp32 vector rate. No other rate stands in for another.
        """
        key = dtype.rate if dtype is not None else None
        if key is None or engine not in ("matrix", "vector"):
            return None
        found = (self.matrix if engine == "matrix" else self.vector).get(key)
        if found is None and engine == "matrix" and key == "fp32" and self.vendor == "nvidia":
            return self.vector.get(key)
        return found

    def calibration(self, family: str, precision: str) -> Calibration | None:
        """Fitted constants, e.g. ``("gemm", "bf16")``: the device's own, else of the device that it is ``like``."""
        own = self.calibrated.get((family, precision))
        if own is not None or self.calibrated_like is None:
            return own
        sister = HardwareSpec.load(self.calibrated_like)
        theirs = sister.calibration(family, precision)
        if theirs is None:
            return None
        constants = dict(theirs.constants)
        if "matrix_efficiency" in constants:
            share = self._sustained_over(sister, precision)
            constants["matrix_efficiency"] = min(1.0, constants["matrix_efficiency"] * share)
        for name in ("l2_ratio", "unit_ratio"):
            if name in constants:
                constants[name] *= self._caches_over(sister)
        return replace(theirs, constants=constants, carried_from=self.calibrated_like, error_percent=None)

    def with_kernels_of(self, library: str) -> HardwareSpec:
        """With the constants of a library's own kernels, where another's were measured as the family."""
        own: dict[tuple[str, str], Calibration] = {}
        for (family, maker), name in device_figures.OF_LIBRARY.items():
            found = {each: self.calibration(name, each) for each in CALIBRATED} if maker == library else {}
            own |= {(family, each): theirs for each, theirs in found.items() if theirs is not None}
        return replace(self, calibrated={**self.calibrated, **own}) if own else self

    @property
    def completed(self) -> HardwareSpec:
        """With the count of compute units and the clock of the device that constants are carried over from, where this
        one's file has none: constants count in both.
        """
        return self if self.assumed is None else _completed(self)

    @property
    def compute(self) -> tuple[int, int] | None:
        """Compute capability, ``(9, 4)`` of gfx942 too; of a device whose file has none, that of the one whose times it
        has.
        """
        like = self.based_on or self.calibrated_like
        match = self.match or (None if like is None else HardwareSpec.load(like).match)
        if match is None or match.compute_major is None:
            return None
        return match.compute_major, match.compute_minor or 0

    @property
    def unmeasured(self) -> str | None:
        """What predictions on the device lack; None where its products were measured, or its sister's."""
        if self.calibration("gemm", "bf16") is not None:
            return None
        return f"no measured GEMM times of {self.label}: at its rates alone, a step is faster than any real one"

    @property
    def assumed(self) -> str | None:
        """Which figures of ``completed`` are another device's; None where there are none."""
        if self.calibrated_like is None:
            return None
        like = HardwareSpec.load(self.calibrated_like)
        lacking = [word for key, word in _COUNTED.items() if key not in self.chip and key in like.chip]
        named = " and ".join(filter(None, (", ".join(lacking[:-1]), *lacking[-1:])))
        return f"{named} of {like.label}: those of {self.label} are not in its file" if lacking else None

    def _sustained_over(self, other: HardwareSpec, precision: str) -> float:
        """This device's achievable share of its matrix peak over another's. 1 where nobody published one of them, and
        where the slowdown of this device's long products was measured over the other's constants.
        """
        if ("sustained", precision) in self.calibrated:
            return 1.0
        dtype = Precision.of(precision).dtype
        shares = [
            None if rate is None or rate.achievable_tflops_s is None else rate.achievable_tflops_s / rate.peak_tflops_s
            for rate in (self.rate("matrix", dtype), other.rate("matrix", dtype))
        ]
        return 1.0 if shares[0] is None or shares[1] is None else shares[0] / shares[1]

    def _caches_over(self, other: HardwareSpec) -> float:
        """How much more this device's caches deliver per byte of HBM than another's of the same architecture: caches
        have a port per unit and run at its clock, so slower memory leaves them as they are. 1 where a figure is
        unknown.
        """
        rates = []
        for device in (self.completed, other):
            hbm = None if device.hbm is None else device.hbm.peak_tb_s
            if hbm is None or device.compute_units is None or device.clock_mhz is None:
                return 1.0
            rates.append(device.compute_units * device.clock_mhz / hbm)
        return rates[0] / rates[1]

    def at_clock(self, mhz: float) -> HardwareSpec:
        """The device at another clock: matrix, vector and cache rates scale, HBM and links do not.

        UsageError where the file does not say at which clock its rates are.
        """
        base = self.matrix_cores.clock_mhz if self.matrix_cores is not None else self.clock_mhz
        if base is None:
            raise UsageError(f"{self.name}: its rates cannot be scaled: its device file gives no clock for them")
        if not mhz > 0:
            raise UsageError(f"a clock must be above 0 MHz, got {mhz:g}")
        scale = mhz / base
        return replace(
            self,
            matrix={key: _scaled(rate, scale) for key, rate in self.matrix.items()},
            vector={key: _scaled(rate, scale) for key, rate in self.vector.items()},
            clock_scale=self.clock_scale * scale,
        )

    #: Streaming multiprocessors (NVIDIA) or compute units (AMD).
    compute_units = _ChipFigure("compute_units", int)
    #: The clock the peak rates are quoted at.
    clock_mhz = _ChipFigure("clock", float)
    l2_mib = _ChipFigure("l2", float)
    #: LDS (AMD), or combined L1 and shared memory (NVIDIA), per compute unit.
    lds_kib = _ChipFigure("lds", float)
    #: AMD's Infinity Cache.
    mall_mib = _ChipFigure("mall", float)
    #: Compute dies that the device's units are spread over (AMD).
    xcd = _ChipFigure("xcd", int)
    tdp_w = _ChipFigure("power", float)
    #: One direction, as that to the CPU of the same package.
    pcie_gb_s = _ChipFigure("pcie", float)
    c2c_gb_s = _ChipFigure("c2c", float)

    def figures(self) -> tuple[Figure, ...]:
        """Every figure of the device with its source, in the order of the file's sections."""
        rates = ((f"{rate.engine}.{rate.dtype}", rate) for rate in (*self.matrix.values(), *self.vector.values()))
        tables = [*rates, ("hbm", self.hbm), ("link", self.link)]
        found = [figure for path, table in tables if table is not None for figure in table.listed(path)]
        for named in (self.chip, self.pytorch_sustained, self.best_shape, self.efficiency_factor):
            found += named.values()
        found += [*(self.busbw.listed("busbw") if self.busbw is not None else ()), *self.ep.values()]
        if self.power is not None:
            found.append(Figure(key="power.idle_w", value=self.power.idle_w, source=self.power.source))
        return tuple(found)

    def doubtful(self) -> tuple[str, ...]:
        """Keys of the figures that sources disagree about."""
        return tuple(figure.key for figure in self.figures() if figure.doubtful)


def _scaled(rate: Rate, scale: float) -> Rate:
    achievable = rate.achievable_tflops_s
    return replace(
        rate,
        peak_tflops_s=rate.peak_tflops_s * scale,
        achievable_tflops_s=None if achievable is None else achievable * scale,
    )


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in bundled(FOLDER).iterdir()))


@functools.cache
def _bundled_values(name: str) -> dict[str, Any]:
    return toml_of(bundled(FOLDER) / f"{name}.toml")


@functools.cache
def _bundled_text(name: str) -> str:
    return (bundled(FOLDER) / f"{name}.toml").read_text(encoding="utf-8")


@functools.cache
def _bundled_match(name: str) -> dict[str, Any] | None:
    """The file's ``[match]``, without the figures: every recognition looks at it in all files."""
    text = _bundled_text(name)
    section = text.partition("\n[match]\n")[2].partition("\n[")[0]
    return tomllib.loads(section) if section else None


@functools.cache
def _bundled(name: str) -> HardwareSpec:
    return _read(f"{name}.toml", _bundled_values(name))


def _read(file: str, values: Mapping[str, Any]) -> HardwareSpec:
    root = FigureTable(file=file, path="", values=values)
    name = Path(file).stem

    def of(kind: Callable[[FigureTable], V], key: str) -> V | None:
        table = root.table(key)
        return None if table is None else kind(table)

    def named(key: str, known: frozenset[str], unit: str) -> dict[str, Figure]:
        return {word: Figure.read(table, unit) for word, table in root.tables(key, known).items()}

    vendor = root.text("vendor")
    if vendor is None:
        raise root.error("vendor", 'must name who makes the device, e.g. "amd"')
    calibrated, like = device_figures.read_calibration(root)
    chip = {
        word: Figure.read(table, _CHIP_KEYS[word]) for word, table in root.tables("chip", frozenset(_CHIP_KEYS)).items()
    }
    spec = HardwareSpec(
        name=name,
        label=root.text("label") or name,
        vendor=vendor.casefold(),
        match=of(Match.read, "match"),
        matrix=Rate.read_all(root, "matrix"),
        vector=Rate.read_all(root, "vector"),
        hbm=of(Hbm.read, "hbm"),
        link=of(Link.read, "link"),
        chip=chip,
        matrix_cores=of(MatrixCores.read, "matrix_cores"),
        best_shape=named("best_shape", RATES, "tflops_s"),
        pytorch_sustained=named("pytorch_sustained", RATES, "tflops_s"),
        efficiency_factor=named("efficiency_factor", _EFFICIENCIES, "fraction"),
        busbw=of(BusBandwidth.read, "busbw"),
        ep=named("ep", _EP_KINDS, "gb_s"),
        calibrated=calibrated,
        calibrated_like=like,
        power=device_figures.read_power(root, chip["power"].value if "power" in chip else None),
        kernels=device_figures.kernel_constants_of_device(root, root.text("based_on") or name),
        **root.figures(HardwareSpec, apart=_READ_APART),
    )
    root.finish()
    for key, other in (("calibrated.like", like), ("based_on", spec.based_on), ("energies_of", spec.energies_of)):
        if other is not None and other not in _names():
            raise InputError(f"{root.file}: {key} must be a name of tracelens devices list, got {other!r}")
    _check_dense(root.file, spec)
    return spec


@functools.lru_cache(maxsize=64)
def _completed(device: HardwareSpec) -> HardwareSpec:
    like = HardwareSpec.load(device.calibrated_like or device.name)
    return replace(device, chip={key: like.chip[key] for key in _COUNTED if key in like.chip} | dict(device.chip))


def _check_dense(file: str, spec: HardwareSpec) -> None:
    if spec.matrix_cores is None or spec.compute_units is None:
        return
    for key, rate in spec.matrix.items():
        dense = spec.matrix_cores.tflops_s(key, spec.compute_units)
        if dense is None or abs(rate.peak_tflops_s / dense - 1) <= DENSE_TOLERANCE:
            continue
        sparse = " (twice the dense rate: is it the data sheet's 2:4-sparse one?)" if rate.peak_tflops_s > dense else ""
        raise InputError(
            f"{file}: matrix.{key}.peak_tflops_s is {rate.peak_tflops_s:g}, but units x matrix cores x FMA x 2 x clock"
            f" give {dense:.1f}{sparse if rate.peak_tflops_s > 1.9 * dense else ''}"
        )
