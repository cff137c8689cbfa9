"""What a trace records about its device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracelens.types.records import Record


class DeviceProperties(Record, frozen=True, kw_only=True):
    """One entry of a trace's ``deviceProperties``; None is "not recorded"."""

    name: str | None = None
    memory_bytes: int | None = None
    compute_major: int | None = None
    compute_minor: int | None = None
    compute_units: int | None = None
    warp_size: int | None = None

    @classmethod
    def from_trace(cls, entry: Mapping[str, Any]) -> DeviceProperties:
        """From a dictionary as Kineto writes it (``totalGlobalMem``, ``numSms`` ...); odd types count as absent."""

        def whole(key: str) -> int | None:
            value = entry.get(key)
            return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

        name = entry.get("name")
        return cls(
            name=name.strip() or None if isinstance(name, str) else None,
            memory_bytes=whole("totalGlobalMem"),
            compute_major=whole("computeMajor"),
            compute_minor=whole("computeMinor"),
            compute_units=whole("numSms"),
            warp_size=whole("warpSize"),
        )

    def to_trace(self, index: int) -> dict[str, Any]:
        """The inverse: the entry of device ``index``, without what is not recorded."""
        known = {
            "id": index,
            "name": self.name,
            "totalGlobalMem": self.memory_bytes,
            "computeMajor": self.compute_major,
            "computeMinor": self.compute_minor,
            "warpSize": self.warp_size,
            "numSms": self.compute_units,
        }
        return {key: value for key, value in known.items() if value is not None}
