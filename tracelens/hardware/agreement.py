"""What several devices agree on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from tracelens.hardware.device_figures import Hbm, Link, Rate
from tracelens.hardware.spec import HardwareSpec

V = TypeVar("V")


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
