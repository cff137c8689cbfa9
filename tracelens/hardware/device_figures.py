"""The figures of a device file, table by table, every one with its source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from tracelens.dtypes import DType
from tracelens.files.toml_figures import Table
from tracelens.lazy.records import dataclass

RATES = frozenset(d.rate for d in DType if d.rate is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number with its source. The unit is in ``key``, e.g. ``chip.clock.mhz``."""

    key: str
    value: float
    source: str
    doubtful: bool = False
    note: str | None = None

    @classmethod
    def read(cls, table: Table, key: str) -> Figure:
        """The figure ``key`` of a table that holds only it."""
        count = key == "count"
        figure = cls(
            key=table.key(key),
            value=table.whole(key) or table.needed_number(key) if count else table.needed_number(key),
            source=table.source("source"),
            doubtful=table.flag("doubtful"),
            note=table.text("note"),
        )
        table.finish()
        return figure


class _Sourced:
    """Figures of one table, each with its source; doubts and a note are about the first."""

    __slots__ = ()
    #: Figure -> the key of its source, in order.
    SOURCES: ClassVar[Mapping[str, str]]
    #: (figure, the figure that it is never above).
    LIMITS: ClassVar[tuple[tuple[str, str], ...]] = ()

    @classmethod
    def _read(cls, table: Table, *needed: str) -> dict[str, Any]:
        """Figures, sources, doubts and note; those ``needed`` must be there."""
        found: dict[str, Any] = {}
        for name, source in cls.SOURCES.items():
            found[name] = table.needed_number(name) if name in needed else table.number(name)
            found[source] = table.source(source) if found[name] is not None else table.text(source)
        for name, most in cls.LIMITS:
            if None not in (found[name], found[most]) and found[name] > found[most]:
                raise table.error(name, f"must not be above {most} {found[most]:g}")
        return found | {"doubtful": table.flag("doubtful"), "note": table.text("note")}

    def listed(self, path: str) -> Iterator[Figure]:
        """Every figure that is known, ``path`` before its key."""
        for number, (name, source) in enumerate(self.SOURCES.items()):
            value = getattr(self, name)
            if value is not None:
                yield Figure(
                    key=f"{path}.{name}",
                    value=value,
                    source=getattr(self, source) or "",
                    doubtful=number == 0 and getattr(self, "doubtful", False),
                    note=getattr(self, "note", None) if number == 0 else None,
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(_Sourced):
    """A compute rate in 1e12 operations per second (integer types, too), dense, a fused multiply-add counted as two.

    ``peak_tflops_s`` is the data sheet's, ``achievable_tflops_s`` the best sustained rate anyone measured, None where
    nobody published one. ``engine`` and ``dtype`` (``"bf16"``) say which row of the device file this is.
    """

    SOURCES: ClassVar[Mapping[str, str]] = {"peak_tflops_s": "source", "achievable_tflops_s": "achievable_source"}
    LIMITS: ClassVar[tuple[tuple[str, str], ...]] = (("achievable_tflops_s", "peak_tflops_s"),)

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

    @classmethod
    def read_all(cls, root: Table, engine: str) -> dict[str, Rate]:
        """Rates of one engine by type."""
        rates = {}
        for key, table in root.tables(engine, RATES).items():
            rates[key] = cls(engine=engine, dtype=key, **cls._read(table, "peak_tflops_s"))
            table.finish()
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class Hbm(_Sourced):
    """Device memory. ``capacity_gb`` repeats the vendor's label, which means GiB; a trace records ``visible_gib``."""

    SOURCES: ClassVar[Mapping[str, str]] = {
        "peak_tb_s": "source", "achievable_tb_s": "achievable_source", "capacity_gb": "capacity_source",
        "visible_gib": "visible_source",
    }  # fmt: skip
    LIMITS: ClassVar[tuple[tuple[str, str], ...]] = (("achievable_tb_s", "peak_tb_s"),)

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

    @classmethod
    def read(cls, table: Table) -> Hbm:
        found = cls(**cls._read(table))
        if found.achievable_tb_s is not None and found.peak_tb_s is None:
            raise table.error("peak_tb_s", "must be there where achievable_tb_s is")
        table.finish()
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Link(_Sourced):
    """The scale-up interconnect: one direction, per GPU, over all its ports; ``p2p_`` is one pair of GPUs.

    ``achievable_gb_s`` is a measured rate of the whole GPU, not of a collective (those are in ``HardwareSpec.busbw``).
    """

    SOURCES: ClassVar[Mapping[str, str]] = {
        "gb_s": "source", "achievable_gb_s": "achievable_source", "p2p_gb_s": "p2p_source",
        "p2p_achievable_gb_s": "p2p_achievable_source",
    }  # fmt: skip
    LIMITS: ClassVar[tuple[tuple[str, str], ...]] = (
        ("achievable_gb_s", "gb_s"), ("p2p_gb_s", "gb_s"), ("p2p_achievable_gb_s", "p2p_gb_s"),
    )  # fmt: skip

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

    @classmethod
    def read(cls, table: Table) -> Link:
        found = cls(**cls._read(table, "gb_s"))
        table.finish()
        return found


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

    @classmethod
    def read(cls, table: Table) -> MatrixCores:
        cores = cls(
            per_unit=table.needed_number("per_unit"),
            clock_mhz=table.needed_number("clock_mhz"),
            fma_per_clock=table.numbers("fma_per_clock", RATES),
            source=table.source("source"),
        )
        table.finish()
        return cores


@dataclass(frozen=True, slots=True, kw_only=True)
class BusBandwidth(_Sourced):
    """Measured bus bandwidth of the largest message: size/time * 2(n-1)/n for all-reduce, (n-1)/n otherwise."""

    SOURCES: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("all_reduce_gb_s", "all_gather_gb_s", "all_to_all_gb_s"), "source"
    )

    ranks: int
    message_mib: float
    all_reduce_gb_s: float | None = None
    all_gather_gb_s: float | None = None
    all_to_all_gb_s: float | None = None
    source: str
    note: str | None = None

    @classmethod
    def read(cls, table: Table) -> BusBandwidth:
        ranks = table.whole("ranks", least=2)
        if ranks is None:
            raise table.error("ranks", "must say how many GPUs took part")
        busbw = cls(
            ranks=ranks,
            message_mib=table.needed_number("message_mib"),
            **{name: table.number(name) for name in cls.SOURCES},
            source=table.source("source"),
            note=table.text("note"),
        )
        table.finish()
        return busbw


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """How a trace's device properties look. Units and memory are compared with the figures of the file itself.

    ``by_name``: other products record the same properties, so without its name this device is never chosen.
    """

    compute_major: int
    compute_minor: int
    names: tuple[str, ...] = ()
    by_name: bool = False

    @classmethod
    def read(cls, table: Table) -> Match:
        major, minor = table.whole("compute_major", least=0), table.whole("compute_minor", least=0)
        if major is None or minor is None:
            raise table.error("compute_minor" if minor is None else "compute_major", "must be a whole number")
        names, by_name = table.texts("names"), table.flag("by_name")
        if by_name and not names:
            raise table.error("names", "must hold a name where by_name is true")
        table.finish()
        return cls(compute_major=major, compute_minor=minor, names=names, by_name=by_name)
