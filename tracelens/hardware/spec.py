"""What a device can do: one TOML file per device in this folder, every figure with its source.

``docs/devices.md`` describes the file. Rates are dense (without 2:4 sparsity), link rates are one direction per GPU,
and what a file does not say is None: there is no default device and no default figure.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tracelens.dtypes import DType
from tracelens.errors import InputError, UsageError
from tracelens.hardware import tile_constants
from tracelens.hardware.tile_constants import Calibration
from tracelens.toml_figures import Table, normalized

FOLDER = Path(__file__).resolve().parent
RATES = frozenset(d.rate for d in DType if d.rate is not None)
# Data sheets headline the 2:4-sparse rate, twice the dense one; rounding stays well below this.
DENSE_TOLERANCE = 0.03

_CHIP_KEYS = {
    "compute_units": "count",
    "clock": "mhz",
    "l2": "mib",
    "lds": "kib_per_unit",
    "mall": "mib",
    "xcd": "count",
    "power": "tdp_w",
    "pcie": "gb_s",
    "c2c": "gb_s",
}
_EFFICIENCIES = frozenset({"hbm", "hbm_calculon", "link", "nic"})
_EP_KINDS = frozenset({"nvlink", "rdma", "rdma_legacy", "low_latency"})
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its source. The unit is in ``key``, e.g. ``chip.clock.mhz``."""

    key: str
    value: float
    source: str
    doubtful: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A compute rate in 1e12 operations per second (integer types, too), dense, a fused multiply-add counted as two.

    ``peak_tflops_s`` is the data sheet's, ``achievable_tflops_s`` the best sustained rate anyone measured, None where
    nobody published one. ``engine`` and ``dtype`` (``"bf16"``) say which row of the device file this is.
    """

    engine: str
    dtype: str
    peak_tflops_s: float
    achievable_tflops_s: float | None = None
    source: str
    achievable_source: str | None = None
    doubtful: bool = False
    note: str | None = None

    @property
    def tflops_s(self) -> float:
        """The achievable rate where known, else the peak; ``basis`` says which."""
        return self.peak_tflops_s if self.achievable_tflops_s is None else self.achievable_tflops_s

    @property
    def basis(self) -> str:
        """``"achievable"`` or ``"peak"``."""
        return "peak" if self.achievable_tflops_s is None else "achievable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hbm:
    """Device memory. ``capacity_gb`` repeats the vendor's label, which means GiB; a trace records ``visible_gib``."""

    peak_tb_s: float | None = None
    achievable_tb_s: float | None = None
    capacity_gb: float | None = None
    visible_gib: float | None = None
    source: str | None = None
    achievable_source: str | None = None
    capacity_source: str | None = None
    visible_source: str | None = None
    doubtful: bool = False
    note: str | None = None

    @property
    def tb_s(self) -> float | None:
        """The achievable rate where known, else the peak; ``basis`` says which."""
        return self.peak_tb_s if self.achievable_tb_s is None else self.achievable_tb_s

    @property
    def basis(self) -> str:
        """``"achievable"`` or ``"peak"``."""
        return "peak" if self.achievable_tb_s is None else "achievable"

    @property
    def nominal_gib(self) -> float | None:
        """The capacity to compare a trace's ``totalGlobalMem`` with, in GiB."""
        return self.capacity_gb if self.visible_gib is None else self.visible_gib


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The scale-up interconnect: one direction, per GPU, over all its ports; ``p2p_`` is one pair of GPUs.

    ``achievable_gb_s`` is a measured rate of the whole GPU, not of a collective (those are in ``HardwareSpec.busbw``).
    """

    gb_s: float
    achievable_gb_s: float | None = None
    p2p_gb_s: float | None = None
    p2p_achievable_gb_s: float | None = None
    source: str
    achievable_source: str | None = None
    p2p_source: str | None = None
    p2p_achievable_source: str | None = None
    doubtful: bool = False
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixCores:
    """What the dense peak is made of: units * ``per_unit`` * ``fma_per_clock[dtype]`` * 2 * ``clock_mhz``."""

    per_unit: float
    clock_mhz: float
    fma_per_clock: Mapping[str, float]
    source: str

    def tflops_s(self, dtype: str, compute_units: float) -> float | None:
        """The dense rate by arithmetic; None for a type whose instruction rate is not in the file."""
        fma = self.fma_per_clock.get(dtype)
        if fma is None:
            return None
        return compute_units * self.per_unit * fma * 2 * self.clock_mhz * 1e6 / 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class BusBandwidth:
    """Measured bus bandwidth of the largest message: size/time * 2(n-1)/n for all-reduce, (n-1)/n otherwise."""

    ranks: int
    message_mib: float
    all_reduce_gb_s: float | None = None
    all_gather_gb_s: float | None = None
    all_to_all_gb_s: float | None = None
    source: str
    note: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a trace's device properties look. Units and memory are compared with the figures of the file itself.

    ``by_name``: other products record the same properties, so without its name this device is never chosen.
    """

    compute_major: int
    compute_minor: int
    names: tuple[str, ...] = ()
    by_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """One device. Everything unknown is None, or absent from a mapping."""

    name: str
    label: str
    vendor: str
    aliases: tuple[str, ...] = ()
    note: str | None = None
    match: Match | None = None
    matrix: Mapping[str, Rate] = field(default_factory=dict)
    vector: Mapping[str, Rate] = field(default_factory=dict)
    hbm: Hbm | None = None
    link: Link | None = None
    chip: Mapping[str, Figure] = field(default_factory=dict)
    matrix_cores: MatrixCores | None = None
    best_shape: Mapping[str, Figure] = field(default_factory=dict)
    pytorch_sustained: Mapping[str, Figure] = field(default_factory=dict)
    efficiency_factor: Mapping[str, Figure] = field(default_factory=dict)
    busbw: BusBandwidth | None = None
    ep: Mapping[str, Figure] = field(default_factory=dict)
    calibrated: Mapping[tuple[str, str], Calibration] = field(default_factory=dict)
    calibrated_like: str | None = None
    #: The device of this package that the file was made from; its standard node is this device's.
    based_on: str | None = None
    #: Matrix, vector and cache rates over those at the data sheet's clock; see ``at_clock``.
    clock_scale: float = 1.0

    def __hash__(self) -> int:
        return hash((self.name, self.label))

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> HardwareSpec:
        """A device of this package by name or alias, or a device file (``my_chip.toml``) by path.

        Case, ``-``, ``_`` and blanks do not matter in names. UsageError for an unknown name, InputError for a file
        that is missing or wrong.
        """
        if isinstance(name, os.PathLike) or str(name).endswith(".toml"):
            return _read(Path(name))
        wanted = normalized(name)
        if wanted in cls.names():
            return _bundled(wanted)
        by_alias = {normalized(alias): spec for spec in cls.all() for alias in spec.aliases}
        try:
            return by_alias[wanted]
        except KeyError:
            raise UsageError.unknown("device", name, [*cls.names(), *by_alias]) from None

    @classmethod
    def file_text(cls, name: str | os.PathLike[str]) -> str:
        """The text of the file that ``load(name)`` reads."""
        named = isinstance(name, os.PathLike) or str(name).endswith(".toml")
        return (Path(name) if named else FOLDER / f"{cls.load(name).name}.toml").read_text(encoding="utf-8")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Names of the devices of this package, sorted. Reads the folder, not the files."""
        return _names()

    @classmethod
    def all(cls) -> tuple[HardwareSpec, ...]:
        """Every device of this package, in the order of ``names``."""
        return tuple(_bundled(name) for name in cls.names())

    @classmethod
    def of_architecture(cls, compute_major: int | None) -> tuple[HardwareSpec, ...]:
        """Devices of this package whose ``[match]`` has this compute capability, or none; with None all that have a
        ``[match]``. By the files' text: others are not parsed.
        """
        said = "" if compute_major is None else f"\ncompute_major = {compute_major}\n"
        texts = {name: (FOLDER / f"{name}.toml").read_text(encoding="utf-8") for name in cls.names()}
        return tuple(
            _bundled(name)
            for name, text in texts.items()
            if "\n[match]\n" in text and (said in text or "\ncompute_major" not in text)
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
        theirs = HardwareSpec.load(self.calibrated_like).calibration(family, precision)
        return None if theirs is None else replace(theirs, carried_from=self.calibrated_like, error_percent=None)

    def at_clock(self, mhz: float) -> HardwareSpec:
        """The device at another clock: matrix, vector and cache rates scale, HBM and links do not.

        UsageError where the file does not say at which clock its rates are.
        """
        base = self.matrix_cores.clock_mhz if self.matrix_cores is not None else self.clock_mhz
        if base is None:
            raise UsageError(f"{self.name}: its rates cannot be scaled, because their clock is unknown")
        if not mhz > 0:
            raise UsageError(f"a clock must be above 0 MHz, got {mhz:g}")
        scale = mhz / base
        return replace(
            self,
            matrix={key: _scaled(rate, scale) for key, rate in self.matrix.items()},
            vector={key: _scaled(rate, scale) for key, rate in self.vector.items()},
            clock_scale=self.clock_scale * scale,
        )

    @property
    def compute_units(self) -> int | None:
        """Streaming multiprocessors (NVIDIA) or compute units (AMD)."""
        value = self._chip("compute_units")
        return None if value is None else int(value)

    @property
    def clock_mhz(self) -> float | None:
        """The clock the peak rates are quoted at."""
        return self._chip("clock")

    @property
    def l2_mib(self) -> float | None:
        return self._chip("l2")

    @property
    def lds_kib(self) -> float | None:
        """LDS (AMD), or combined L1 and shared memory (NVIDIA), per compute unit."""
        return self._chip("lds")

    @property
    def mall_mib(self) -> float | None:
        """AMD's Infinity Cache."""
        return self._chip("mall")

    @property
    def xcd(self) -> int | None:
        """Compute dies that the device's units are spread over (AMD)."""
        value = self._chip("xcd")
        return None if value is None else int(value)

    @property
    def tdp_w(self) -> float | None:
        return self._chip("power")

    @property
    def pcie_gb_s(self) -> float | None:
        """One direction."""
        return self._chip("pcie")

    @property
    def c2c_gb_s(self) -> float | None:
        """To the CPU of the same package, one direction."""
        return self._chip("c2c")

    def figures(self) -> tuple[Figure, ...]:
        """Every figure of the device with its source, in the order of the file's sections."""
        return tuple(self._figures())

    def doubtful(self) -> tuple[str, ...]:
        """Keys of the figures that sources disagree about."""
        return tuple(figure.key for figure in self._figures() if figure.doubtful)

    def _chip(self, name: str) -> float | None:
        found = self.chip.get(name)
        return None if found is None else found.value

    def _figures(self) -> Iterator[Figure]:
        for rates in (self.matrix, self.vector):
            for rate in rates.values():
                at = f"{rate.engine}.{rate.dtype}"
                yield from _present(
                    (f"{at}.peak_tflops_s", rate.peak_tflops_s, rate.source, rate.doubtful, rate.note),
                    (f"{at}.achievable_tflops_s", rate.achievable_tflops_s, rate.achievable_source, False, None),
                )
        if self.hbm is not None:
            hbm = self.hbm
            yield from _present(
                ("hbm.peak_tb_s", hbm.peak_tb_s, hbm.source, hbm.doubtful, hbm.note),
                ("hbm.achievable_tb_s", hbm.achievable_tb_s, hbm.achievable_source, False, None),
                ("hbm.capacity_gb", hbm.capacity_gb, hbm.capacity_source, False, None),
                ("hbm.visible_gib", hbm.visible_gib, hbm.visible_source, False, None),
            )
        if self.link is not None:
            link = self.link
            yield from _present(
                ("link.gb_s", link.gb_s, link.source, link.doubtful, link.note),
                ("link.achievable_gb_s", link.achievable_gb_s, link.achievable_source, False, None),
                ("link.p2p_gb_s", link.p2p_gb_s, link.p2p_source, False, None),
                ("link.p2p_achievable_gb_s", link.p2p_achievable_gb_s, link.p2p_achievable_source, False, None),
            )
        yield from self.chip.values()
        for named in (self.pytorch_sustained, self.best_shape, self.efficiency_factor):
            yield from named.values()
        if self.busbw is not None:
            busbw = self.busbw
            yield from _present(
                ("busbw.all_reduce_gb_s", busbw.all_reduce_gb_s, busbw.source, False, busbw.note),
                ("busbw.all_gather_gb_s", busbw.all_gather_gb_s, busbw.source, False, None),
                ("busbw.all_to_all_gb_s", busbw.all_to_all_gb_s, busbw.source, False, None),
            )
        yield from self.ep.values()


def common(specs: Sequence[HardwareSpec]) -> HardwareSpec:
    """What several devices agree on: a device with only the figures that are equal in all of ``specs``.

    For a trace whose properties fit more than one device, so that nothing is printed that could be wrong. Its
    ``name`` is ``"mi350x or mi355x"``; it has no aliases and is never matched. ValueError for no specs.
    """
    if not specs:
        raise ValueError("nothing to compare: no specs")
    first = specs[0]
    vendors = {spec.vendor for spec in specs}
    return HardwareSpec(
        name=" or ".join(spec.name for spec in specs),
        label=" or ".join(spec.label for spec in specs),
        vendor=first.vendor if len(vendors) == 1 else "unknown",
        matrix=_common_rates([spec.matrix for spec in specs]),
        vector=_common_rates([spec.vector for spec in specs]),
        hbm=_common_hbm([spec.hbm for spec in specs]),
        link=_common_link([spec.link for spec in specs]),
        chip={
            key: figure
            for key, figure in first.chip.items()
            if all(key in spec.chip and spec.chip[key].value == figure.value for spec in specs)
        },
    )


def _scaled(rate: Rate, scale: float) -> Rate:
    achievable = rate.achievable_tflops_s
    return replace(
        rate,
        peak_tflops_s=rate.peak_tflops_s * scale,
        achievable_tflops_s=None if achievable is None else achievable * scale,
    )


def _same(values: Iterable[V | None]) -> V | None:
    values = list(values)
    return values[0] if all(value == values[0] for value in values) else None


def _common_rates(rates: Sequence[Mapping[str, Rate]]) -> dict[str, Rate]:
    found: dict[str, Rate] = {}
    for key, rate in rates[0].items():
        others = [each.get(key) for each in rates]
        if _same(each.peak_tflops_s if each else None for each in others) is None:
            continue
        achievable = _same(each.achievable_tflops_s if each else None for each in others)
        found[key] = Rate(
            engine=rate.engine,
            dtype=rate.dtype,
            peak_tflops_s=rate.peak_tflops_s,
            achievable_tflops_s=achievable,
            source=rate.source,
            achievable_source=rate.achievable_source if achievable is not None else None,
            doubtful=any(each.doubtful for each in others if each),
        )
    return found


def _common_hbm(memories: Sequence[Hbm | None]) -> Hbm | None:
    known = [hbm for hbm in memories if hbm is not None]
    if len(known) < len(memories):
        return None
    return Hbm(
        peak_tb_s=_same(hbm.peak_tb_s for hbm in known),
        achievable_tb_s=_same(hbm.achievable_tb_s for hbm in known),
        capacity_gb=_same(hbm.capacity_gb for hbm in known),
        source=known[0].source,
        achievable_source=known[0].achievable_source,
        capacity_source=known[0].capacity_source,
        doubtful=any(hbm.doubtful for hbm in known),
    )


def _common_link(links: Sequence[Link | None]) -> Link | None:
    known = [link for link in links if link is not None]
    if len(known) < len(links) or _same(link.gb_s for link in known) is None:
        return None
    return Link(gb_s=known[0].gb_s, source=known[0].source, doubtful=any(link.doubtful for link in known))


def _present(*figures: tuple[str, float | None, str | None, bool, str | None]) -> Iterator[Figure]:
    for key, value, source, doubtful, note in figures:
        if value is not None:
            yield Figure(key=key, value=value, source=source or "", doubtful=doubtful, note=note)


@functools.cache
def _names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@functools.cache
def _bundled(name: str) -> HardwareSpec:
    return _read(FOLDER / f"{name}.toml")


def _read(path: Path) -> HardwareSpec:
    root = Table.of_file(path)
    vendor = root.text("vendor")
    if vendor is None:
        raise root.error("vendor", 'must name who makes the device, e.g. "amd"')
    calibrated, like = tile_constants.read(root)
    spec = HardwareSpec(
        name=path.stem,
        label=root.text("label") or path.stem,
        vendor=vendor.casefold(),
        aliases=root.texts("aliases"),
        note=root.text("note"),
        match=_match(root.table("match")),
        matrix=_rates(root, "matrix"),
        vector=_rates(root, "vector"),
        hbm=_hbm(root.table("hbm")),
        link=_link(root.table("link")),
        chip=_chips(root),
        matrix_cores=_matrix_cores(root.table("matrix_cores")),
        best_shape=_named(root, "best_shape", RATES, "tflops_s"),
        pytorch_sustained=_named(root, "pytorch_sustained", RATES, "tflops_s"),
        efficiency_factor=_named(root, "efficiency_factor", _EFFICIENCIES, "fraction"),
        busbw=_busbw(root.table("busbw")),
        ep=_named(root, "ep", _EP_KINDS, "gb_s"),
        calibrated=calibrated,
        calibrated_like=like,
        based_on=root.text("based_on"),
    )
    root.finish()
    for key, other in (("calibrated.like", like), ("based_on", spec.based_on)):
        if other is not None and other not in _names():
            raise InputError(f"{root.file}: {key} must be a name of tracelens devices list, got {other!r}")
    _check_dense(root.file, spec)
    return spec


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


def _at_most(table: Table, name: str, value: float | None, limit_name: str, limit: float | None) -> None:
    if value is not None and limit is not None and value > limit:
        raise table.error(name, f"must not be above {limit_name} {limit:g}")


def _rates(root: Table, engine: str) -> dict[str, Rate]:
    rates: dict[str, Rate] = {}
    for key, table in root.tables(engine, RATES).items():
        rate = Rate(
            engine=engine,
            dtype=key,
            peak_tflops_s=table.needed_number("peak_tflops_s"),
            achievable_tflops_s=table.number("achievable_tflops_s"),
            source=table.source("source"),
            achievable_source=_source_of(table, "achievable_tflops_s", "achievable_source"),
            doubtful=table.flag("doubtful"),
            note=table.text("note"),
        )
        _at_most(table, "achievable_tflops_s", rate.achievable_tflops_s, "peak_tflops_s", rate.peak_tflops_s)
        table.finish()
        rates[key] = rate
    return rates


def _source_of(table: Table, figure: str, source: str) -> str | None:
    """The source of an optional figure, which must have one as soon as the figure is there."""
    return table.source(source) if figure in table else table.text(source)


def _hbm(table: Table | None) -> Hbm | None:
    if table is None:
        return None
    hbm = Hbm(
        peak_tb_s=table.number("peak_tb_s"),
        achievable_tb_s=table.number("achievable_tb_s"),
        capacity_gb=table.number("capacity_gb"),
        visible_gib=table.number("visible_gib"),
        source=_source_of(table, "peak_tb_s", "source"),
        achievable_source=_source_of(table, "achievable_tb_s", "achievable_source"),
        capacity_source=_source_of(table, "capacity_gb", "capacity_source"),
        visible_source=_source_of(table, "visible_gib", "visible_source"),
        doubtful=table.flag("doubtful"),
        note=table.text("note"),
    )
    if hbm.achievable_tb_s is not None and hbm.peak_tb_s is None:
        raise table.error("peak_tb_s", "must be there where achievable_tb_s is")
    _at_most(table, "achievable_tb_s", hbm.achievable_tb_s, "peak_tb_s", hbm.peak_tb_s)
    table.finish()
    return hbm


def _link(table: Table | None) -> Link | None:
    if table is None:
        return None
    link = Link(
        gb_s=table.needed_number("gb_s"),
        achievable_gb_s=table.number("achievable_gb_s"),
        p2p_gb_s=table.number("p2p_gb_s"),
        p2p_achievable_gb_s=table.number("p2p_achievable_gb_s"),
        source=table.source("source"),
        achievable_source=_source_of(table, "achievable_gb_s", "achievable_source"),
        p2p_source=_source_of(table, "p2p_gb_s", "p2p_source"),
        p2p_achievable_source=_source_of(table, "p2p_achievable_gb_s", "p2p_achievable_source"),
        doubtful=table.flag("doubtful"),
        note=table.text("note"),
    )
    _at_most(table, "achievable_gb_s", link.achievable_gb_s, "gb_s", link.gb_s)
    _at_most(table, "p2p_gb_s", link.p2p_gb_s, "gb_s", link.gb_s)
    _at_most(table, "p2p_achievable_gb_s", link.p2p_achievable_gb_s, "p2p_gb_s", link.p2p_gb_s)
    table.finish()
    return link


def _chips(root: Table) -> dict[str, Figure]:
    return {
        name: _figure(table, _CHIP_KEYS[name]) for name, table in root.tables("chip", frozenset(_CHIP_KEYS)).items()
    }


def _named(root: Table, name: str, known: frozenset[str], key: str) -> dict[str, Figure]:
    return {word: _figure(table, key) for word, table in root.tables(name, known).items()}


def _figure(table: Table, key: str) -> Figure:
    figure = Figure(
        key=table.key(key),
        value=table.whole(key) or table.needed_number(key) if key == "count" else table.needed_number(key),
        source=table.source("source"),
        doubtful=table.flag("doubtful"),
        note=table.text("note"),
    )
    table.finish()
    return figure


def _matrix_cores(table: Table | None) -> MatrixCores | None:
    if table is None:
        return None
    cores = MatrixCores(
        per_unit=table.needed_number("per_unit"),
        clock_mhz=table.needed_number("clock_mhz"),
        fma_per_clock=table.numbers("fma_per_clock", RATES),
        source=table.source("source"),
    )
    table.finish()
    return cores


def _busbw(table: Table | None) -> BusBandwidth | None:
    if table is None:
        return None
    ranks = table.whole("ranks", least=2)
    if ranks is None:
        raise table.error("ranks", "must say how many GPUs took part")
    busbw = BusBandwidth(
        ranks=ranks,
        message_mib=table.needed_number("message_mib"),
        all_reduce_gb_s=table.number("all_reduce_gb_s"),
        all_gather_gb_s=table.number("all_gather_gb_s"),
        all_to_all_gb_s=table.number("all_to_all_gb_s"),
        source=table.source("source"),
        note=table.text("note"),
    )
    table.finish()
    return busbw


def _match(table: Table | None) -> Match | None:
    if table is None:
        return None
    major, minor = table.whole("compute_major", least=0), table.whole("compute_minor", least=0)
    if major is None or minor is None:
        raise table.error("compute_minor" if minor is None else "compute_major", "must be a whole number")
    match = Match(compute_major=major, compute_minor=minor, names=table.texts("names"), by_name=table.flag("by_name"))
    if match.by_name and not match.names:
        raise table.error("names", "must hold a name where by_name is true")
    table.finish()
    return match
