"""The tables of a device file: the data sheet's figures, each with its source, and constants fitted to measured
times: what each one means, and what it was fitted on.

A device file holds constants as ``[calibrated.FAMILY.PRECISION]``, or says ``[calibrated] like = "h100-sxm"`` where
nobody measured it and a sister's are used. Where a constant is absent, its term is left out or takes the value that
its meaning names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import orjson

from tracelens.errors import UsageError
from tracelens.files.documents import FigureTable
from tracelens.types.dtypes import CALIBRATED, DType
from tracelens.types.records import Record

RATES = frozenset(d.rate for d in DType if d.rate is not None)


class Figure(Record, frozen=True, kw_only=True):
    """One number with its source. The unit is in ``key``, e.g. ``chip.clock.mhz``."""

    key: str
    value: float
    source: str
    doubtful: bool = False
    note: str | None = None

    @classmethod
    def read(cls, table: FigureTable, key: str) -> Figure:
        """The figure ``key`` of a table that holds only it."""
        count = key == "count"
        value = table.whole(key) or table.needed_number(key) if count else table.needed_number(key)
        figure = cls(key=table.key(key), value=value, **table.figures(cls, apart=("key", "value")))
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
    def _read(cls, table: FigureTable, *needed: str) -> dict[str, Any]:
        """Figures, sources, doubts and note; those ``needed`` must be there."""
        found: dict[str, Any] = {}
        for name, source in cls.SOURCES.items():
            found[name] = table.needed_number(name) if name in needed else table.number(name)
            found[source] = table.source(source) if found[name] is not None else table.text(source)
        for name, most in cls.LIMITS:
            if None not in (found[name], found[most]) and found[name] > found[most]:
                raise table.error(name, f"must not be above {most} {found[most]:g}")
        found |= {"doubtful": table.flag("doubtful"), "note": table.text("note")}
        table.finish()
        return found

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


class Rate(_Sourced, Record, frozen=True, kw_only=True):
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
        return "peak" if self.achievable_tflops_s is None else "achievable"

    @classmethod
    def read_all(cls, root: FigureTable, engine: str) -> dict[str, Rate]:
        tables = root.tables(engine, RATES).items()
        return {key: cls(engine=engine, dtype=key, **cls._read(table, "peak_tflops_s")) for key, table in tables}


class Hbm(_Sourced, Record, frozen=True, kw_only=True):
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
        return "peak" if self.achievable_tb_s is None else "achievable"

    @property
    def nominal_gib(self) -> float | None:
        """The capacity to compare a trace's ``totalGlobalMem`` with, in GiB."""
        return self.capacity_gb if self.visible_gib is None else self.visible_gib

    @classmethod
    def read(cls, table: FigureTable) -> Hbm:
        found = cls(**cls._read(table))
        if found.achievable_tb_s is not None and found.peak_tb_s is None:
            raise table.error("peak_tb_s", "is required with achievable_tb_s")
        return found


class Link(_Sourced, Record, frozen=True, kw_only=True):
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
    def read(cls, table: FigureTable) -> Link:
        return cls(**cls._read(table, "gb_s"))


class MatrixCores(Record, frozen=True, kw_only=True):
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
    def read(cls, table: FigureTable) -> MatrixCores:
        cores = cls(**table.figures(cls), fma_per_clock=table.numbers("fma_per_clock", RATES))
        table.finish()
        return cores


class BusBandwidth(_Sourced, Record, frozen=True, kw_only=True):
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
    def read(cls, table: FigureTable) -> BusBandwidth:
        ranks = table.whole("ranks", least=2)
        if ranks is None:
            raise table.error("ranks", "must say how many GPUs took part")
        busbw = cls(ranks=ranks, **table.figures(cls, apart=("ranks",)))
        table.finish()
        return busbw


class Match(Record, frozen=True, kw_only=True):
    """How a trace's device properties look. Units and memory are compared with the figures of the file itself.

    ``by_name``: other products record the same properties, so without its name this device is never chosen. One of
    which only the name is recorded (a TPU) has no compute capability.
    """

    compute_major: int | None = None
    compute_minor: int | None = None
    names: tuple[str, ...] = ()
    by_name: bool = False

    @classmethod
    def read(cls, table: FigureTable) -> Match:
        major, minor = table.whole("compute_major", least=0), table.whole("compute_minor", least=0)
        names, by_name = table.texts("names"), table.flag("by_name")
        if (major is None or minor is None) and not (by_name and major is minor):
            raise table.error("compute_minor" if minor is None else "compute_major", "must be a whole number")
        if by_name and not names:
            raise table.error("names", "must not be empty where by_name is true")
        table.finish()
        return cls(compute_major=major, compute_minor=minor, names=names, by_name=by_name)


K = TypeVar("K")

_DECLARED = orjson.loads(Path(__file__).with_name("constants.json").read_bytes())
#: Family -> constant -> meaning. Fractions are of the data-sheet rate and at most 1.
CONSTANTS: dict[str, Mapping[str, str]] = {family: declared["meanings"] for family, declared in _DECLARED.items()}
#: Constants without which a row says nothing.
NEEDED: dict[str, list[str]] = {family: declared["needed"] for family, declared in _DECLARED.items()}
#: A library's kernels of a family, where another's were measured as the family.
OF_LIBRARY = {("moe", "vllm"): "moe_vllm"}
for (_family, _), _own in OF_LIBRARY.items():
    CONSTANTS[_own], NEEDED[_own] = CONSTANTS[_family], NEEDED[_family]
#: Rows of ``[calibrated.memory_bound.*]``: what the op does with its bytes.
STREAMS = frozenset({"stream", "permute", "optimizer"})
#: Rows of ``[calibrated.sustained.*]``: the rates of matrix products.
SUSTAINED = frozenset({"bf16", "fp8", "fp4"})
_ROWS = {"memory_bound": STREAMS, "sustained": SUSTAINED}


class Calibration(Record, frozen=True, kw_only=True):
    """Fitted constants of one family and precision.

    ``kernel`` names the tile choice they belong to, ``fitted_on`` the data, ``error_percent`` the mean absolute error
    on shape groups that were not fitted, None where nobody could measure it. ``carried_from`` is the device whose
    constants stand in.
    """

    family: str
    precision: str
    constants: Mapping[str, float]
    kernel: str | None = None
    fitted_on: str
    error_percent: float | None = None
    carried_from: str | None = None

    def __getitem__(self, name: str) -> float:
        return self.constants[name]

    def get(self, name: str, absent: float) -> float:
        """The constant, or what leaves its term out."""
        return self.constants.get(name, absent)

    def chosen(self, kernels: Mapping[str, K]) -> K | None:
        """What ``kernel`` names, None where the row names none. UsageError for a name that is not among ``kernels``."""
        if self.kernel is None or self.kernel in kernels:
            return kernels.get(self.kernel or "")
        raise UsageError.unknown(f"kernel of calibrated.{self.family}.{self.precision}", self.kernel, kernels)


def read_calibration(root: FigureTable) -> tuple[dict[tuple[str, str], Calibration], str | None]:
    """The ``[calibrated]`` table of a device file: its rows, and the device that it is like."""
    table = root.table("calibrated")
    if table is None:
        return {}, None
    found: dict[tuple[str, str], Calibration] = {}
    for family, names in CONSTANTS.items():
        rows = _ROWS.get(family, frozenset[str](CALIBRATED))
        for precision, row in table.tables(family, rows).items():
            needed = NEEDED[family]
            numbers = {name: row.needed_number(name) if name in needed else row.number(name) for name in names}
            constants = {name: value for name, value in numbers.items() if value is not None}
            for name, value in constants.items():
                if name.endswith("_efficiency") and value > 1:
                    raise row.error(name, "must be a fraction of the peak, at most 1")
            said = row.figures(Calibration, apart=("family", "precision", "carried_from"))
            found[family, precision] = Calibration(
                family=family, precision=precision, constants=MappingProxyType(constants), **said
            )
            row.finish()
    like = table.text("like")
    table.finish()
    return found, like


#: Keys of a row that choose no kernel.
_FIGURES = ("device", "rows", "error_percent", "constants")


class KernelConstants(Record, frozen=True, kw_only=True):
    """Constants of one kernel. ``case`` as in the measured table: ``framework``, ``kernel_source``, types.

    ``error_percent``: mean absolute error on shape groups that were not fitted, None where nobody measured it.
    """

    device: str
    case: Mapping[str, str]
    constants: Mapping[str, float]
    rows: int
    error_percent: float | None = None

    @property
    def label(self) -> str:
        """``vllm 0.24.0 flashkda_fwd on b200``, with the types that were measured: ``aiter fp8_block on mi300x``."""
        types = (name for name in self.case if name.endswith("dtype"))
        words = (self.case.get(name, "") for name in ("framework", "version", "kernel_source", *types))
        return " ".join(filter(None, (*words, f"on {self.device}")))


def read_kernel_constants(table: FigureTable, key: str, device: str = "") -> tuple[KernelConstants, ...]:
    """The rows of the list ``key``, of ``device`` where they name none."""
    found = []
    for row in table.rows(key):
        constants = row.table("constants")
        if constants is None:
            raise row.error("constants", "must be a table of numbers")
        found.append(
            KernelConstants(
                device=row.text("device") or device,
                case={name: row.text(name) or "" for name in row.names if name not in _FIGURES},
                constants={name: constants.needed_number(name) for name in constants.names},
                rows=row.whole("rows") or 0,
                error_percent=row.number("error_percent"),
            )
        )
    return tuple(found)


def kernel_constants_of_device(root: FigureTable, device: str) -> Mapping[str, tuple[KernelConstants, ...]]:
    kernels = root.table("kernels")
    found = {}
    for name, table in {} if kernels is None else root.tables("kernels", frozenset(kernels.names)).items():
        found[name] = read_kernel_constants(table, "fitted", device)
        table.source("fitted_on")
        table.finish()
    return found


#: Row of ``[power]`` -> its constants; absent ones leave their term out.
POWER_TERMS = ("active_w", "hbm_pj", "l2_pj", "launch_uj")


class FamilyPower(Record, frozen=True, kw_only=True):
    """What kernels of one family draw while they run: ``active_w`` watts over the idle device, pJ per FLOP by class and
    per byte of HBM and L2, uJ per launch. ``sharpness``: how suddenly the limit cuts (see ``hardware.power``).

    Four fifths of the measured readings of shape groups not fitted were between ``low`` and ``high`` times the
    estimate; ``error_percent`` is their mean error, over ``rows``.
    """

    terms: Mapping[str, float]
    flop_pj: Mapping[str, float]
    sharpness: float
    low: float
    high: float
    error_percent: float | None = None
    rows: int | None = None


class PowerConstants(Record, frozen=True, kw_only=True):
    """Energies of one device, fitted at the limit ``limit_w``.

    ``idle_w``: of a device that is awake and waits. ``share``: of the limit, what kernels that reach it draw; ``most``:
    the most that was read, overshoot included. ``link_pj``: per byte that a link takes out. ``carried_from``: the
    device whose constants stand in, None where they are its own.
    """

    limit_w: float
    idle_w: float
    share: float
    most: float
    link_pj: float | None = None
    families: Mapping[str, FamilyPower]
    source: str
    carried_from: str | None = None


def read_power(root: FigureTable, limit_w: float | None) -> PowerConstants | None:
    """The ``[power]`` table of a device file; InputError where the device's own limit is unknown."""
    table = root.table("power")
    if table is None:
        return None
    if limit_w is None:
        raise root.error("chip.power", "must be there with [power]: energies were fitted at this limit")
    families = {}
    for row in table.rows("families"):
        name, flops = row.text("family"), row.table("flop_pj")
        if name is None:
            raise row.error("family", "must name a family of kernels")
        terms = {key: row.number(key) for key in POWER_TERMS}
        families[name] = FamilyPower(
            terms={key: value for key, value in terms.items() if value is not None},
            flop_pj={} if flops is None else {key: flops.needed_number(key) for key in flops.names},
            **row.figures(FamilyPower),
        )
        row.finish()
    said = table.figures(PowerConstants, apart=("limit_w", "carried_from"))
    found = PowerConstants(limit_w=limit_w, families=families, **said)
    if table.text("link_source") is None and found.link_pj is not None:
        raise table.error("link_source", "must say where link_pj comes from")
    if not found.idle_w < found.share * limit_w:
        raise table.error("idle_w", f"must be below the limit of {limit_w:g} W")
    table.finish()
    return found
