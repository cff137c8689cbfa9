"""What kernels draw: watts from FLOPs, bytes and time, by a device's measured energies.

A kernel that takes ``t`` draws ``idle + D / (1 + (D / C) ** s) ** (1 / s)``, where ``D`` is what the work asks for,

    D = active_w + (flop_pj * FLOPs + hbm_pj * bytes + l2_pj * bytes + link_pj * bytes + launch_uj * launches) / t,

and ``C`` what the limit leaves over idle. Far below the limit that is ``idle + D``, far above it the limit; ``s`` is
how sharp the bend is. Times are those at the device's own limit, where the clock has fallen already: the watts of a
kernel need no time but its own. Below that limit the clock falls further, the energy of a switched transistor with it
(``BY_CLOCK``), and what follows the clock takes longer (``limited``).

Constants are of a device file's ``[power]``, fitted by ``benchmarks/fit_power.py``. Every function takes arrays, a row
per kernel, and returns NaN where something is unknown. docs/energy.md has the measured errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tracelens.errors import UsageError
from tracelens.hardware.device_figures import FamilyPower, PowerConstants
from tracelens.hardware.spec import HardwareSpec
from tracelens.types.records import Record
from tracelens.types.units import shown_figure

Watts = npt.NDArray[np.float64]
#: Families of kernels by what they do, for those that nobody measured: with products, and without; of attention.
PRODUCTS, STREAMS, PROMPTS, DECODING = "gemm", "quantize-matrix", "context-attention", "generation-attention"
#: Whose kernels stand for those of no known library: launched as graphs, without the host's gaps.
LIBRARIES = (" vllm", " trtllm")
#: Classes of FLOPs beside precisions: with a softmax between two products, scores of keys alone, updates of a state.
ATTENTION, INDEXER, STATE = "attention", "indexer", "state"
#: Classes of FLOPs in whose place others stand, the nearest first.
_NEAREST = {
    "fp16": ("bf16",), "mxfp8": ("fp8", "fp8_block"), "fp8": ("fp8_block", "bf16"), "fp8_block": ("fp8", "bf16"),
    "nvfp4": ("fp8", "fp8_block", "bf16"), "tf32": ("bf16",),
}  # fmt: skip
#: How much wider an interval is with another device's energies. On B200 and GB200 each other's are 13 and 16 % off
#: settled readings, their own 11 %; 17 and 22 % where idle and active watts rise and fall with the limit.
CARRIED = 1.2
#: The power of the clock that energy goes with: 2 where voltage goes with the clock, 0 at the least voltage. BF16
#: products of H100 PCIe (350 W, 114 units) and SXM (700 W), one script, 496 and 797 TFLOPS
#: (zzc0721/torch-performance-test-data issues 95 and 79): 0.67. Of Meta's H100 at 500 W, 585 TFLOPS (pytorch/ao pull
#: request 2185), against this package's 764 of the SXM: 0.6 to 0.8.
BY_CLOCK = 0.7
J_PER_KWH = 3.6e6
_MILLION = 1e6
#: Where the search for a clock ends. No device runs so slowly: limits little above what waiting draws are then kept in
#: the sum, with times that no measurement supports.
_SLOWEST = 0.001
_HALVINGS = 40


class KernelWork(Record, frozen=True, kw_only=True, eq=False):
    """What kernels of one ``family`` do, a row each; the families are those of a device file's ``[power]``, with or
    without the library: ``moe vllm``, ``moe``.

    ``time_us``: how long each takes, at the device's own limit. ``flops``: by class (``bf16``, ``fp8_block``,
    ``attention`` ...). Bytes that come from HBM or go there, that pass L2, and that leave by links. ``clocked``: the
    share of the time that follows the clock.
    """

    family: str
    time_us: Watts
    flops: Mapping[str, Watts]
    hbm_bytes: Watts
    l2_bytes: Watts
    link_bytes: Watts | float = 0.0
    launches: Watts | float = 1.0
    clocked: Watts | float = 1.0


class Drawn(NamedTuple):
    """Watts of kernels, and between which four fifths of readings were, or more where loops read too low."""

    power_w: Watts
    low_w: Watts
    high_w: Watts

    def energy_mj(self, time_us: Watts) -> Drawn:
        """The same in mJ of calls that take so long."""
        return Drawn(*(each * time_us * 1e-3 for each in self))


class Facility(Record, frozen=True, kw_only=True):
    """Where devices stand: power usage effectiveness, USD and g of CO2 per kWh; None where not asked for."""

    pue: float | None = None
    usd_per_kwh: float | None = None
    co2_g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        if self.pue is not None and not 1 <= self.pue < np.inf:
            raise UsageError(f"--pue is all power over that of the servers, at least 1, not {self.pue:g}")

    def of(self, joules: float, host_w: float | None, seconds: float, tokens: float) -> FacilityEnergy | None:
        """Of devices that drew ``joules`` for ``tokens``, and their hosts; None where neither hosts are known nor
        anything is asked, or no token came of it.
        """
        if not tokens or (host_w is None and self == Facility()):
            return None
        whole = (joules + (host_w or 0.0) * seconds) * (1.0 if self.pue is None else self.pue)
        kwh = whole / tokens * _MILLION / J_PER_KWH
        usd, grams = (None if each is None else each * kwh for each in (self.usd_per_kwh, self.co2_g_per_kwh))
        return FacilityEnergy(
            host_w=host_w, pue=self.pue, j_per_token=whole / tokens, usd_per_mtoken=usd, co2_g_per_mtoken=grams
        )


class FacilityEnergy(Record, frozen=True, kw_only=True):
    """What a token takes with all that stands around the devices; dollars and g of CO2 per million of them. ``host_w``:
    of all hosts (CPUs, NICs, fans), None where unknown and left out.
    """

    host_w: float | None
    pue: float | None
    j_per_token: float
    usd_per_mtoken: float | None
    co2_g_per_mtoken: float | None

    def words(self, gpus: int, per: str) -> str:
        """``with hosts (360 W per GPU), PUE 1.3: 0.0816 J per token; 2.72 USD, 9.1 g CO2 per million tokens``."""
        around = ["without hosts" if self.host_w is None else f"with hosts ({self.host_w / gpus:,.0f} W per GPU)"]
        around += [] if self.pue is None else [f"PUE {self.pue:g}"]
        prices = ((self.usd_per_mtoken, "USD"), (self.co2_g_per_mtoken, "g CO2"))
        said = ", ".join(f"{shown_figure(value, 3)} {unit}" for value, unit in prices if value is not None)
        paid = f"; {said} per million {per}s" if said else ""
        return f"{', '.join(around)}: {shown_figure(self.j_per_token, 3)} J per {per}{paid}"


def power_constants(device: HardwareSpec) -> PowerConstants | None:
    """The device's own energies, else those of the device that its file names or of its architecture, the nearest in
    power.

    Energies of an operation stay, and so do watts of an idle or busy device, but that they fall with a lower limit;
    ``carried_from`` names the other device. None for an architecture that nobody measured, and where the device's limit
    is unknown. At another clock (``HardwareSpec.at_clock``) energies go with it (``BY_CLOCK``).
    """
    found = device.power or _of_architecture(device)
    if found is None or device.clock_scale == 1:
        return found
    by = device.clock_scale**BY_CLOCK
    families = {
        name: replace(
            row, terms={key: value * by for key, value in row.terms.items()},
            flop_pj={key: value * by for key, value in row.flop_pj.items()},
        )
        for name, row in found.families.items()
    }  # fmt: skip
    return replace(found, families=families)


def _of_architecture(device: HardwareSpec) -> PowerConstants | None:
    limit = device.tdp_w
    like = None if device.calibrated_like is None else HardwareSpec.load(device.calibrated_like)
    match = device.match or (None if like is None else like.match)
    if limit is not None and device.energies_of is not None:
        return _carried(HardwareSpec.load(device.energies_of), limit)
    if limit is None or match is None:
        return None
    alike = HardwareSpec.of_architecture(match.compute_major, section="power")
    measured = [each for each in alike if each.power is not None and each.vendor == device.vendor and each.tdp_w]
    if not measured:
        return None
    other = min(measured, key=lambda each: (each.name != device.calibrated_like, abs((each.tdp_w or 0.0) - limit)))
    return _carried(other, limit)


def _carried(other: HardwareSpec, limit_w: float) -> PowerConstants | None:
    """Another device's energies, at a limit of its own."""
    theirs = other.power
    if theirs is None:
        return None
    by = min(1.0, limit_w / theirs.limit_w)
    families = {
        name: replace(
            row, terms={key: value * by if key == "active_w" else value for key, value in row.terms.items()},
            low=row.low / CARRIED, high=row.high * CARRIED, error_percent=None,
        )
        for name, row in theirs.families.items()
    }  # fmt: skip
    return replace(theirs, limit_w=limit_w, idle_w=theirs.idle_w * by, families=families, carried_from=other.name)


def idle_power(constants: PowerConstants) -> float:
    """Watts of a device that is awake and waits, between kernels of a step. One that sleeps draws less."""
    return constants.idle_w


def room_w(constants: PowerConstants, limit_w: float | None = None) -> float:
    """Watts over idle that a limit leaves, the device's own or a lower one: what runs at once draws no more together.

    UsageError for a limit that an idle device exceeds.
    """
    limit = constants.limit_w if limit_w is None else min(limit_w, constants.limit_w)
    room = constants.share * limit - constants.idle_w
    if not room > 0:
        idle = f"{constants.idle_w:.0f} W that the waiting device draws"
        raise UsageError(f"a power limit must be above the {idle}, got {limit:g} W")
    return room


def family_power(constants: PowerConstants, work: KernelWork) -> FamilyPower | None:
    """The row of a family, or of what is most like it: products, else streams of bytes."""
    return constants.families.get(family_named(constants, work))


def family_named(constants: PowerConstants, work: KernelWork) -> str:
    """The name of that row: of the family and library, of the family by the usual library, or of what is like it."""
    kind, _, _ = work.family.partition(" ")
    like = PRODUCTS if work.flops else STREAMS
    tried = [work.family, *(f"{name}{library}" for name in (kind, like) for library in ("", *LIBRARIES))]
    return next((name for name in tried if name in constants.families), like)


def demand_w(constants: PowerConstants, work: KernelWork) -> Watts:
    """Watts over idle that the work asks for, whatever the limit."""
    row = family_power(constants, work)
    if row is None:
        return np.full(len(work.time_us), np.nan)
    terms = row.terms
    picojoules: Any = terms.get("hbm_pj", 0.0) * work.hbm_bytes + terms.get("l2_pj", 0.0) * work.l2_bytes
    for name, flops in work.flops.items():
        picojoules = picojoules + flop_pj(row, name) * flops
    if constants.link_pj is not None:
        picojoules = picojoules + constants.link_pj * np.asarray(work.link_bytes)
    microjoules = 1e-6 * picojoules + terms.get("launch_uj", 0.0) * np.asarray(work.launches)
    with np.errstate(divide="ignore", invalid="ignore"):
        asked: Watts = terms.get("active_w", 0.0) + microjoules / work.time_us
    return asked


def flop_pj(row: FamilyPower, name: str) -> float:
    """pJ per FLOP of a class, or of the nearest that was measured; the dearest of all for one that is like none."""
    tried = (name, *_NEAREST.get(name, ()))
    found = next((row.flop_pj[each] for each in tried if each in row.flop_pj), None)
    return max(row.flop_pj.values(), default=0.0) if found is None else found


def kernel_power(constants: PowerConstants, work: KernelWork) -> Drawn:
    """Watts of each kernel at the device's own limit, and their interval. NaN for a family without constants."""
    row = family_power(constants, work)
    asked, room = demand_w(constants, work), room_w(constants)
    if row is None:
        return Drawn(asked, asked, asked)
    drawn = constants.idle_w + asked / (1 + (asked / room) ** row.sharpness) ** (1 / row.sharpness)
    least, most = constants.idle_w, constants.most * constants.limit_w
    return Drawn(drawn, np.clip(drawn * row.low, least, None), np.clip(drawn * row.high, None, most))


def clock_share(constants: PowerConstants, power_w: Watts, limit_w: float, clocked: Watts | float = 1.0) -> Watts:
    """The clock that kernels run at under a lower limit, over that at the device's own, where they draw ``power_w``.

    1 where they draw no more than the limit's share. UsageError for a limit that an idle device exceeds.
    """
    room = room_w(constants, limit_w)
    over, follows = np.asarray(power_w, np.float64) - constants.idle_w, np.asarray(clocked, np.float64)
    low, high = np.full(np.shape(over), _SLOWEST), np.ones(np.shape(over))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fits = over * middle**BY_CLOCK / _longer(middle, follows) <= room
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(over <= room, 1.0, low)


def beyond_design(device: HardwareSpec, watts: float | None) -> str | None:
    """The note on a limit that the device's design power keeps by itself; None below it."""
    if watts is None or device.tdp_w is None or watts < device.tdp_w:
        return None
    return f"a limit of {watts:,g} W changes nothing: that of {device.name} is {device.tdp_w:,g} W"


def device_at(device: HardwareSpec, watts: float) -> HardwareSpec:
    """The device under a limit of ``watts``, at the clock of what draws all that it has: products of a long step.

    Where its energies are known the clock is ``clock_share``, else what that law gives of its design power. Its
    energies (``power``) saturate at that limit. UsageError where the design power is unknown, or an idle device draws
    more.
    """
    base = device.matrix_cores.clock_mhz if device.matrix_cores is not None else device.clock_mhz
    if device.tdp_w is None or base is None:
        raise UsageError(f"{device.name}: its design power or clock is unknown; give --clock instead")
    if not watts > 0:
        raise UsageError(f"a power limit must be above 0 W, got {watts:g}")
    own = device.power or _of_architecture(device)
    if own is None:
        return device.at_clock(base * device.clock_scale * min(1.0, watts / device.tdp_w) ** (1 / (1 + BY_CLOCK)))
    share = float(clock_share(own, np.array(own.share * own.limit_w), watts))
    held = device.at_clock(base * device.clock_scale * share)
    return replace(held, power=replace(own, limit_w=min(watts, own.limit_w)))


def _longer(clock: Watts, clocked: Watts) -> Watts:
    """Times at a share of the clock over those at the whole."""
    return 1 - clocked + clocked / clock


def limited(constants: PowerConstants, work: KernelWork, limit_w: float | None) -> tuple[Drawn, Watts]:
    """Watts and times in us of kernels under ``limit_w``: the clock of those above it falls, and they take longer.

    At the device's own limit, above it and with None these are ``kernel_power`` and the times as they are.
    """
    drawn = kernel_power(constants, work)
    if limit_w is None or limit_w >= constants.limit_w:
        return drawn, work.time_us
    clock = clock_share(constants, drawn.power_w, limit_w, work.clocked)
    longer = _longer(clock, np.asarray(work.clocked, np.float64))
    by, idle = clock**BY_CLOCK / longer, constants.idle_w
    most = constants.most * limit_w
    held = Drawn(*(np.minimum(idle + np.maximum(each - idle, 0.0) * by, most) for each in drawn))
    return held, work.time_us * longer
