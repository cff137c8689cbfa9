"""Which device a trace is from, by what it recorded and never by default, and what several devices agree on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tracelens.hardware.device_figures import Hbm, Link, Match, Rate
from tracelens.hardware.spec import HardwareSpec
from tracelens.types.records import Record
from tracelens.types.signature import DeviceProperties
from tracelens.types.units import BYTES_PER_GIB

F = TypeVar("F", Rate, Hbm, Link)


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
        matrix=_agreed_rates([spec.matrix for spec in specs]),
        vector=_agreed_rates([spec.vector for spec in specs]),
        hbm=_agreed([spec.hbm for spec in specs], "peak_tb_s", "achievable_tb_s", "capacity_gb", needed=False),
        link=_agreed([spec.link for spec in specs], "gb_s"),
        chip={
            key: figure
            for key, figure in first.chip.items()
            if all(key in spec.chip and spec.chip[key].value == figure.value for spec in specs)
        },
    )


def _agreed(figures: Sequence[F | None], *names: str, needed: bool = True) -> F | None:
    """The figures of these names that are equal in all; None where one has none, or not the first where ``needed``."""
    known = [each for each in figures if each is not None]
    if len(known) < len(figures):
        return None
    held = {name: {getattr(each, name) for each in known} for name in names}
    values = {name: found.pop() if len(found) == 1 else None for name, found in held.items()}
    if needed and values[names[0]] is None:
        return None
    first = known[0]
    sources: Mapping[str, str] = first.SOURCES
    said = {sources[name]: getattr(first, sources[name]) for name, value in values.items() if value is not None}
    nothing: dict[str, Any] = dict.fromkeys((*sources, *sources.values(), "note"))
    return replace(first, **nothing | values | said, doubtful=any(each.doubtful for each in known))


def _agreed_rates(rates: Sequence[Mapping[str, Rate]]) -> dict[str, Rate]:
    found = {
        key: _agreed([each.get(key) for each in rates], "peak_tflops_s", "achievable_tflops_s") for key in rates[0]
    }
    return {key: rate for key, rate in found.items() if rate is not None}


# A trace records a little less than the vendor's label, firmware and ECC taken off (B300: 268.6 of "288" GiB).
_MEMORY_BELOW = 0.08
_MEMORY_ABOVE = 0.01
_VENDOR_OF_WARP = {64: "amd", 32: "nvidia"}
_GFX = {"gfx90a": (9, 0), "gfx942": (9, 4), "gfx950": (9, 5)}
_KERNEL_ARCHITECTURE = re.compile(
    r"(?:^|[^a-z0-9])(sm_?(?P<sm>\d{2,3})|(?P<gfx>gfx9(?:0a|42|50)))(?![0-9])", re.IGNORECASE
)
_HOW_TO_ADD = "choose one with --device NAME, or describe yours in a file (docs/devices.md) and pass --device FILE.toml"


class Recognition(Record, frozen=True, kw_only=True):
    """The answer of ``recognize``.

    ``device`` is None unless exactly one device fits. ``candidates`` are the names that fit; with two or more,
    ``agreed`` holds only the figures that are equal in all of them. ``how`` is ``"properties"``, ``"properties and
    name"``, ``"kernel names"`` (a guess: never a device) or ``"none"``. ``note`` is a sentence for people.
    """

    device: HardwareSpec | None
    candidates: tuple[str, ...]
    how: str
    note: str
    agreed: HardwareSpec | None = None


def recognize(properties: DeviceProperties | None, *, kernel_names: Iterable[str] = ()) -> Recognition:
    """The device of this package that ``properties`` describe.

    In this order: vendor (``warp_size`` 64 is AMD, 32 is NVIDIA), compute capability, compute units, memory within
    -8 % / +1 % and nearest; the name only breaks ties, and is asked for where a device file says that other products
    record the same properties. What was not recorded separates nothing. Without properties, architectures in
    ``kernel_names`` (``sm90_``, ``gfx942``) give candidates, as a guess.
    """
    asked = properties or DeviceProperties()
    devices = HardwareSpec.of_architecture(asked.compute_major, asked.compute_minor)
    known = [spec for spec in devices if spec.match is not None]
    if properties is None or properties == DeviceProperties():
        return _from_kernels(kernel_names, known)
    fitting, how = _fitting(known, properties)
    names = tuple(spec.name for spec in fitting)
    if not fitting:
        return _nothing(f"no device file fits {describe(properties)}")
    if len(fitting) > 1:
        agreed = common(fitting)
        note = f"{describe(properties)} fits {' and '.join(names)}, which agree on {_agreement(agreed)}; {_HOW_TO_ADD}"
        return Recognition(device=None, candidates=names, how="properties", note=note, agreed=agreed)
    (device,) = fitting
    if device.match is not None and device.match.by_name and not properties.name:
        note = f"{describe(properties)} fits {names[0]}, but other devices record the same and the trace names none;"
        return Recognition(device=None, candidates=names, how="properties", note=f"{note} {_HOW_TO_ADD}")
    note = f"{device.name} ({device.label}), recognized by {how}: {describe(properties)}"
    return Recognition(device=device, candidates=names, how=how, note=note)


def recorded_properties(device: HardwareSpec) -> DeviceProperties:
    """What a trace of ``device`` would record, for traces that are generated."""
    hbm, match = device.hbm, device.match
    return DeviceProperties(
        name=match.names[0] if match and match.names else device.label,
        memory_bytes=None if hbm is None or hbm.nominal_gib is None else round(hbm.nominal_gib * BYTES_PER_GIB),
        compute_major=match.compute_major if match else None,
        compute_minor=match.compute_minor if match else None,
        compute_units=device.compute_units,
        warp_size={"amd": 64, "google": None}.get(device.vendor, 32),
    )


def contradiction(device: HardwareSpec, properties: DeviceProperties | None) -> str | None:
    """Why ``properties`` cannot be of ``device`` (a chosen device that does not fit its trace), or None."""
    if properties is None:
        return None
    vendor = _VENDOR_OF_WARP.get(properties.warp_size or 0)
    if vendor is not None and device.vendor in _VENDOR_OF_WARP.values() and device.vendor != vendor:
        return f"{device.name} is made by {device.vendor}, the trace's device by {vendor}"
    if _differ(device.compute_units, properties.compute_units):
        return f"{device.name} has {device.compute_units} compute units, the trace's device {properties.compute_units}"
    gib = _gib(properties.memory_bytes)
    nominal = device.hbm.nominal_gib if device.hbm is not None else None
    if gib is not None and nominal is not None and not _within(gib, nominal):
        return f"{device.name} has {nominal:g} GiB, the trace's device {gib:.1f} GiB"
    return None


def describe(properties: DeviceProperties) -> str:
    """``NVIDIA 9.0, 132 units, 79.2 GiB, "NVIDIA H100 80GB HBM3"``: what was recorded, in one line."""
    parts = []
    vendor = {"amd": "AMD", "nvidia": "NVIDIA"}.get(_VENDOR_OF_WARP.get(properties.warp_size or 0, ""), "")
    if properties.compute_major is not None:
        minor = "" if properties.compute_minor is None else f".{properties.compute_minor}"
        parts.append(f"{vendor} {properties.compute_major}{minor}".strip())
    elif vendor:
        parts.append(vendor)
    if properties.compute_units is not None:
        parts.append(f"{properties.compute_units} units")
    gib = _gib(properties.memory_bytes)
    if gib is not None:
        parts.append(f"{gib:.1f} GiB")
    parts.append(f'"{properties.name}"' if properties.name else "no name")
    return ", ".join(parts)


def _fitting(known: Iterable[HardwareSpec], properties: DeviceProperties) -> tuple[list[HardwareSpec], str]:
    """The devices that fit best, and by what."""
    name, fitting = properties.name, [spec for spec in known if _fits(spec, properties)]
    if name:
        named = ((spec, spec.match) for spec in fitting if spec.match is not None)
        fitting = [spec for spec, match in named if not match.by_name or _hint(match, name)]
    nearest = _nearest(fitting, properties.memory_bytes)
    if properties.compute_major is None:
        # Without its architecture a device is only known by its name: everything else fits too many.
        nearest = _by_name(nearest, properties.name or "")
    if len(nearest) > 1 and properties.name:
        by_name = _by_name(nearest, properties.name)
        if by_name:
            return by_name, "properties and name"
    return nearest, "properties"


def _fits(spec: HardwareSpec, properties: DeviceProperties) -> bool:
    match = spec.match
    if match is None:
        return False
    if properties.warp_size is not None and _VENDOR_OF_WARP.get(properties.warp_size) != spec.vendor:
        return False
    if _differ(match.compute_major, properties.compute_major) or _differ(match.compute_minor, properties.compute_minor):
        return False
    if _differ(spec.compute_units, properties.compute_units):
        return False
    gib = _gib(properties.memory_bytes)
    nominal = spec.hbm.nominal_gib if spec.hbm is not None else None
    return gib is None or (nominal is not None and _within(gib, nominal))


def _differ(expected: int | None, recorded: int | None) -> bool:
    return expected is not None and recorded is not None and expected != recorded


def _within(gib: float, nominal: float) -> bool:
    return -_MEMORY_BELOW <= gib / nominal - 1 <= _MEMORY_ABOVE


def _gib(nbytes: int | None) -> float | None:
    return None if nbytes is None else nbytes / BYTES_PER_GIB


def _nearest(specs: list[HardwareSpec], nbytes: int | None) -> list[HardwareSpec]:
    """Those of the nearest capacity. Devices of one capacity stay together: one's visible memory being known and the
    other's not is no reason to prefer either."""
    gib = _gib(nbytes)
    if gib is None or not specs:
        return specs

    def distance(spec: HardwareSpec) -> float:
        nominal = spec.hbm.nominal_gib if spec.hbm is not None else None
        return abs(gib / nominal - 1) if nominal else float("inf")

    best = min(specs, key=distance)
    capacity = best.hbm.capacity_gb if best.hbm is not None else None
    return [spec for spec in specs if spec.hbm is not None and spec.hbm.capacity_gb == capacity]


def _by_name(specs: list[HardwareSpec], name: str) -> list[HardwareSpec]:
    """Those whose longest name hint is in ``name``: ``H200 NVL`` beats ``H200``. Empty when no hint is."""
    lengths = {spec.name: _hint(spec.match, name) for spec in specs if spec.match is not None}
    longest = max(lengths.values(), default=0)
    return [spec for spec in specs if longest and lengths.get(spec.name) == longest]


def _hint(match: Match, name: str) -> int:
    """Words of the longest hint that ``name`` contains as whole words, counted in characters; 0 for none."""
    text = f" {_words(name)} "
    return max((len(_words(hint)) for hint in match.names if f" {_words(hint)} " in text), default=0)


def _words(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.casefold()))


def _agreement(agreed: HardwareSpec) -> str:
    parts = []
    if "bf16" in agreed.matrix:
        parts.append(f"bf16 {agreed.matrix['bf16'].peak_tflops_s:g} TFLOPS")
    if agreed.hbm is not None and agreed.hbm.peak_tb_s is not None:
        parts.append(f"HBM {agreed.hbm.peak_tb_s:g} TB/s")
    if agreed.link is not None:
        parts.append(f"link {agreed.link.gb_s:g} GB/s")
    return ", ".join(parts) if parts else "no rate"


def _nothing(reason: str) -> Recognition:
    return Recognition(device=None, candidates=(), how="none", note=f"{reason}; {_HOW_TO_ADD}")


def _from_kernels(kernel_names: Iterable[str], known: Sequence[HardwareSpec]) -> Recognition:
    """Candidates by the newest architecture in the names (a newer device runs kernels built for an older one)."""
    found: set[tuple[str, int, int]] = set()
    for name in kernel_names:
        for hit in _KERNEL_ARCHITECTURE.finditer(name):
            gfx, sm = hit["gfx"], hit["sm"]
            found.add(("amd", *_GFX[gfx.lower()]) if gfx else ("nvidia", int(sm[:-1]), int(sm[-1])))
    missing = "the trace does not record its device"
    newest = max(found, key=lambda each: (each[1], each[2], each[0]), default=None)
    matched = ((spec, spec.match) for spec in known if spec.match is not None)
    names = tuple(m.name for m, of in matched if (m.vendor, of.compute_major, of.compute_minor) == newest)
    if newest is None or not names or len({vendor for vendor, _, _ in found}) > 1:
        return _nothing(missing)
    built = f"its kernels are built for {newest[0]} {newest[1]}.{newest[2]}, so it is probably one of"
    return replace(_nothing(f"{missing}; {built} {', '.join(names)}"), candidates=names, how="kernel names")
