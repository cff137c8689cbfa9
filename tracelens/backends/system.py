"""What an operation is priced on."""

from __future__ import annotations

from dataclasses import dataclass

from tracelens.hardware.spec import HardwareSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A device, and later how devices are joined. Without a topology, wire bytes travel over the device's own link."""

    device: HardwareSpec
