"""What an operation is priced on, what a backend answers, and column batches.

All rows of a column batch are of one family and have one ``precision`` (a row of ``[calibrated.*]`` in device files),
so a million rows are a dozen arrays and no objects. A family's batch and its pricer stand in one file of ``tiles``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.files.documents import FigureTable, normalized
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import BusBandwidth, Calibration, Link
from tracelens.hardware.power import device_at
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.predict.network.cluster import Cluster
from tracelens.predict.network.topology import Rates, Topology
from tracelens.registry import mark
from tracelens.types.dtypes import Precision
from tracelens.types.records import Record
from tracelens.types.units import TERA_PER_S_IN_PER_US

# A100, whose switch cannot add: 222 of all-reduce against 205 GB/s of all-gather; H100, whose switch can: 445 and 336.
_RING_SPREAD = 1.15
#: What a device without a node of its own is taken to stand in: eight, with a 200 Gb/s card each.
_COMMON_NODE = "dgx-a100"


class System(Record, frozen=True, kw_only=True):
    """A device, and how devices are joined. Without a topology, wire bytes travel over the device's own link.

    ``cluster`` is where the topology comes from, None for one of the caller's own. ``note`` says what was assumed.
    """

    device: HardwareSpec
    topology: Topology | None = None
    cluster: Cluster | None = None
    note: str | None = None

    @classmethod
    def load(cls, name: str | os.PathLike[str]) -> System:
        """A cluster or a device, by name, alias or file.

        A device means its standard node, else a common one by its own link or PCIe (``in_a_node``), and ``note`` says
        so. UsageError for an unknown name.
        """
        if isinstance(name, os.PathLike) or name.endswith(".toml"):
            path = Path(name)
            if "device" in FigureTable.of_file(path):
                return cls.of_cluster(Cluster.load(path))
            return cls.of_device(HardwareSpec.load(path)).in_a_node()
        try:
            return cls.of_device(HardwareSpec.load(name)).in_a_node()
        except UsageError:
            cluster = Cluster.find(name)
        if cluster is None:
            raise UsageError.unknown("device or cluster", name, [*HardwareSpec.names(), *Cluster.names()])
        return cls.of_cluster(cluster)

    @classmethod
    def of_cluster(cls, cluster: Cluster, device: HardwareSpec | None = None) -> System:
        """The cluster and the device that it names, or ``device`` in its place."""
        device = device or HardwareSpec.load(cluster.device)
        rates = link_rates(device, adds_in_switch=cluster.adds_in_switch)
        if rates is None:
            raise UsageError(
                f"cluster {cluster.name!r}: the device file of {device.name} gives no link rate; add one to it"
            )
        return cls(device=device, topology=cluster.topology(rates), cluster=cluster)

    @classmethod
    def of_device(cls, device: HardwareSpec) -> System:
        """The device in its standard node, or in that of the device which its file is based on."""
        cluster = Cluster.standard(device.name) or Cluster.standard(device.based_on or "")
        if cluster is None or device.link is None:
            return cls(device=device, note=f"no cluster given, and {device.name} has no standard node: no topology")
        is_named = cluster.name == device.name
        note = None if is_named else f"no cluster given: {device.name} in its standard node, {cluster.name}"
        return dataclasses.replace(cls.of_cluster(cluster, device), note=note)

    def in_a_node(self) -> System:
        """Itself where links are known; else in nodes like ``_COMMON_NODE``, by its own link or PCIe (``note``)."""
        device = self.device
        if self.topology is not None or (device.link is None and device.pcie_gb_s is None):
            return self
        common = Cluster.load(_COMMON_NODE)
        link = device.link or Link(gb_s=device.pcie_gb_s or 0.0, source="its PCIe rate")
        joined = dataclasses.replace(device, link=link, busbw=device.busbw if device.link else None)
        named = "its own link" if device.link else f"PCIe at {device.pcie_gb_s:g} GB/s"
        note = f"no cluster of {device.name} is known: nodes of {common.ranks_per_node} by {named}, else {common.name}"
        return dataclasses.replace(self.of_cluster(common, joined), device=device, cluster=None, note=note)

    def joined(self) -> Topology:
        """How devices are joined. UsageError for a device alone."""
        if self.topology is None:
            raise UsageError(
                f"nothing says how several {self.device.name} are joined: name a cluster of it, or its file "
                "(docs/devices.md)"
            )
        return self.topology

    @property
    def host_w(self) -> float | None:
        """What a device's share of its node's CPUs, NICs and fans draws; None where unknown."""
        return self._share(self.cluster.host_w if self.cluster else None)

    @property
    def disk_gb_s(self) -> float | None:
        """At how many GB/s a device's share of its node's disks is read; None where unknown."""
        return self._share(self.cluster.disk_gb_s if self.cluster else None)

    @property
    def disk_tb(self) -> float | None:
        """A device's share of its node's disks; None where unknown."""
        return self._share(self.cluster.disk_tb if self.cluster else None)

    def _share(self, of_node: float | None) -> float | None:
        return None if self.cluster is None or of_node is None else of_node / self.cluster.ranks_per_node

    def at_clock(self, mhz: float | None) -> System:
        """The same with the device at another clock, as ``HardwareSpec.at_clock``; itself where that is None."""
        return self if mhz is None else dataclasses.replace(self, device=self.device.at_clock(mhz))

    def at_power(self, watts: float | None) -> System:
        """The same with the device under a power limit (``hardware.power.device_at``); itself where that is None."""
        return self if watts is None else dataclasses.replace(self, device=device_at(self.device, watts))


def link_rates(device: HardwareSpec, *, adds_in_switch: bool) -> Rates | None:
    """The device's own link as collectives use it, from its file's ``link`` and ``busbw``; None without a link rate.

    All-reduce was measured as size/time * 2(n-1)/n. Where the switch adds that is the switch's figure, and size/time
    its rate. Elsewhere it is the ring's, unless it is far above the all-gather's: a ring takes as long for both trips,
    so a switch added during the measurement. A pair's measured rate (a mesh) counts for every pair. A device whose
    collectives nobody measured gets as large a share of its link as the one whose constants stand in for its own.
    """
    link, busbw = device.link, _busbw(device)
    if link is None:
        return None
    gathered = link.achievable_gb_s
    if gathered is None and link.p2p_achievable_gb_s is not None and link.p2p_gb_s is not None:
        gathered = link.gb_s * link.p2p_achievable_gb_s / link.p2p_gb_s
    if busbw is None:
        return Rates(peak_gb_s=link.gb_s, all_gather_gb_s=gathered)
    gathered, reduced = busbw.all_gather_gb_s or gathered, busbw.all_reduce_gb_s
    rates = Rates(peak_gb_s=link.gb_s, all_gather_gb_s=gathered, all_to_all_gb_s=busbw.all_to_all_gb_s)
    if reduced is None:
        return rates
    if adds_in_switch:
        return dataclasses.replace(rates, in_switch_gb_s=reduced * busbw.ranks / (2 * (busbw.ranks - 1)))
    by_ring = gathered is None or reduced <= _RING_SPREAD * gathered
    return dataclasses.replace(rates, all_reduce_gb_s=min(reduced, link.gb_s)) if by_ring else rates


def _busbw(device: HardwareSpec) -> BusBandwidth | None:
    link, like = device.link, device.calibrated_like
    if device.busbw is not None or link is None or link.achievable_gb_s or link.p2p_achievable_gb_s or like is None:
        return device.busbw
    other = HardwareSpec.load(like)
    if other.busbw is None or other.link is None:
        return None
    by = link.gb_s / other.link.gb_s
    rates = {name: getattr(other.busbw, name) for name in BusBandwidth.SOURCES}
    return dataclasses.replace(other.busbw, **{name: rate and by * rate for name, rate in rates.items()})


#: How far a stated size of memory may be from the file's: with or without what error correction takes.
_SIZE_SPREAD = 0.12
#: Words of a device's name that no file's name or alias needs.
_PLAIN_WORDS = frozenset(
    {"nvidia", "amd", "instinct", "gpu", "tensor", "core", "google", "hbm3", "hbm3e", "oam", "gpus"}
)


def system_of(text: str) -> tuple[System, str | None]:
    """The device, limited to the power that its name states (``H100-96GB-HBM2e-500W``), and what was read as what."""
    text = re.sub(r"^\s*\d+\s*[x×]\s*|\s*[x×]\s*\d+\s*$", "", text.strip())
    try:
        return System.load(text), None
    except UsageError as error:
        unknown = error
    word = normalized(re.sub(r"[(),]", " ", text)).strip("-")
    watts = re.search(r"(?:^|-)(\d{3,4})-?w(?:atts?)?(?:-|$)", word)
    if watts:
        word = word.replace(watts[0], "-", 1).strip("-")
    for tried, gigabytes in _device_names(word):
        try:
            found = System.load("-".join(tried))
        except UsageError:
            continue
        size = found.device.hbm.nominal_gib if found.device.hbm else None
        if gigabytes and (size is None or abs(size / gigabytes - 1) >= _SIZE_SPREAD):
            continue
        note = f"{text} read as {found.device.name}"
        return found.at_power(float(watts[1]) if watts else None), note + (f" at {watts[1]} W" if watts else "")
    raise unknown


def _device_names(word: str) -> Iterator[tuple[list[str], int | None]]:
    """Words to look for a device by, the likeliest first; with a size where that is none of them."""
    parts = [part for part in word.split("-") if part not in _PLAIN_WORDS]
    sizes = [part for part in parts if re.fullmatch(r"\d+gi?b?", part)]
    others = [part for part in parts if part not in sizes]
    yield parts, None
    yield [*others, *sizes], None
    yield [*others[:1], *sizes, *others[1:]], None
    yield [*others[:1], "sxm", *sizes], None
    plain = [part for part in others if not part.startswith(("sxm", "nvl", "hgx", "dgx", "hbm"))]
    gigabytes = int(re.sub(r"\D", "", sizes[0])) if sizes else None
    yield plain, gigabytes
    # One word among those of a machine: "A3 Mega H100", "BM.GPU.H100.8".
    pieces = [piece for part in plain for piece in part.split(".")]
    yield from (([piece], gigabytes) for piece in pieces if len(pieces) > 1)


T = TypeVar("T")
Floats = npt.NDArray[np.float64]
_BOUND = {"memory": "HBM", "hbm": "HBM", "wire": "link"}


def bound_name(bound: str) -> str:
    """What a bound is called in print: the part of the device that it names."""
    return _BOUND.get(bound.lower(), bound)


class Estimate(Record, frozen=True, kw_only=True):
    """How long one operation should take, in microseconds; None is unknown.

    ``time_us`` is the prediction, ``peak_us`` the least time at the device's data-sheet rates (never above
    ``time_us``). ``bound`` is ``"compute"``, ``"memory"`` or ``"wire"``, None for an operation without work.
    ``rate_basis`` says which compute rate was used: ``"achievable"``, ``"peak"``, or None where none is known or none
    is needed. ``backend`` is who answered.
    """

    time_us: float
    peak_us: float | None = None
    compute_us: float | None = None
    memory_us: float | None = None
    wire_us: float | None = None
    bound: str | None = None
    rate_basis: str | None = None
    backend: str


class EstimateTable(Record, frozen=True, kw_only=True, eq=False):
    """Estimates of many operations: the columns of ``Estimate``, NaN and None where unknown.

    A row with ``time_us`` NaN is one that the backend has no answer for.
    """

    time_us: Floats
    peak_us: Floats
    compute_us: Floats
    memory_us: Floats
    wire_us: Floats
    bound: tuple[str | None, ...]
    rate_basis: tuple[str | None, ...]
    backend: tuple[str | None, ...]

    @classmethod
    def unanswered(cls, rows: int) -> EstimateTable:
        none = (None,) * rows
        return cls(**dict.fromkeys(TIMES, np.full(rows, np.nan)), bound=none, rate_basis=none, backend=none)

    @classmethod
    def by(cls, backend: str, bound: Iterable[str | None], rate_basis: Iterable[str], **times: Floats) -> EstimateTable:
        """Answers of one backend; a row whose ``time_us`` is NaN has no bound and no basis. Basis "": none needed."""
        known = (~np.isnan(times["time_us"])).tolist()
        return cls(
            **times,
            bound=tuple(b if k else None for b, k in zip(bound, known, strict=True)),
            rate_basis=tuple(r or None if k else None for r, k in zip(rate_basis, known, strict=True)),
            backend=tuple(backend if k else None for k in known),
        )

    def timed(self, backend: str, time_us: Floats, rate_basis: Iterable[str]) -> EstimateTable:
        """A backend's own times in place of these, none under ``peak_us``; what is not finite is not answered."""
        times = {name: getattr(self, name) for name in TIMES}
        times["time_us"] = np.where(np.isfinite(time_us), np.fmax(time_us, self.peak_us), np.nan)
        return EstimateTable.by(backend, self.bound, rate_basis, **times)

    def __len__(self) -> int:
        return len(self.bound)

    def row(self, index: int) -> Estimate | None:
        """The estimate of one operation; None where the backend has no answer."""
        backend = self.backend[index]
        values = {name: float(getattr(self, name)[index]) for name in TIMES}
        times: dict[str, Any] = {name: value if value == value else None for name, value in values.items()}
        if times["time_us"] is None or backend is None:
            return None
        return Estimate(**times, bound=self.bound[index], rate_basis=self.rate_basis[index], backend=backend)

    def rows(self) -> Iterator[Estimate | None]:
        return (self.row(index) for index in range(len(self)))


TIMES = tuple(field.name for field in fields(EstimateTable) if field.name.endswith("_us"))


@runtime_checkable
class Backend(Protocol):
    """How long an operation should take. It never looks at a trace, and answers or returns None: no guesses."""

    @property
    def name(self) -> str: ...

    def estimate_many(self, columns: WorkColumns, system: System) -> EstimateTable:
        """One row per row of ``columns``."""
        ...

    def estimate(self, op: PerfModel, system: System) -> Estimate | None:
        """The one-row form of ``estimate_many``."""
        return self.estimate_many(WorkColumns.of([op]), system).row(0)


def backend(name: str) -> Callable[[T], T]:
    """Marks a class (called without arguments) as the backend ``name``, e.g. ``"roofline"``."""
    return mark("backend", name)


OUTPUT_BYTES = 2.0
#: Rows per pass, so that a dozen columns stay in a core's L2: 1e6 GEMMs in 1.2 s; in one piece 2.5 s.
CHUNK = 8192
Part: TypeAlias = slice | npt.NDArray[np.bool_] | npt.NDArray[np.intp] | list[int]


class Priced(Record, frozen=True, kw_only=True, eq=False):
    """Times in us of many operations: in all, of the arithmetic alone, of memory alone, and the data sheet's least."""

    time_us: Floats
    compute_us: Floats
    memory_us: Floats
    peak_us: Floats

    @classmethod
    def joined(cls, parts: Sequence[Priced]) -> Priced:
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
    #: Whose kernels they are, where that is known: libraries' kernels draw different power.
    library: str = ""

    @property
    def width_bytes(self) -> float:
        """Bytes per element of the operands."""
        return Precision.of(self.precision).width_bytes

    def __len__(self) -> int:
        return next(len(value) for value in self._columns().values() if not isinstance(value, Mapping))

    def take(self, part: Part) -> Self:
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

    @property
    def is_repeated(self) -> bool:
        """Whether rows are calls as benchmarks repeat layers, which find in L2 what the call before left there."""
        return bool(getattr(self, "as_layer", False))

    def power_families(self) -> npt.NDArray[Any]:
        """Per row the family of ``[power]`` in device files, and the library where it is known."""
        return np.full(len(self), f"{self.family} {self.library}".strip(), object)

    def flops_by_class(self) -> Mapping[str, Floats]:
        """FLOPs as the kernels do them, by class of ``[power]``."""
        return {Precision.of(self.precision).calibrated.value: self.flops()}

    def l2_bytes(self) -> Floats:
        """What passes L2, at least the bytes of HBM."""
        return self.hbm_bytes()

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
        peak, hbm, units = matrix_peak(device, precision), hbm_peak(device), device.completed.compute_units
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
