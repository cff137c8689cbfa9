"""Fitted constants of engines' kernels: a file per table, a row per device, library, kernel and types.

``tracelens/hardware/kernels/TABLE.toml`` holds them with their source and the error on shape groups not fitted.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from tracelens.backends.kernels.base import Case, KernelTable
from tracelens.files.toml_figures import parsed
from tracelens.hardware import HardwareSpec
from tracelens.hardware.spec import FOLDER as DEVICES
from tracelens.lazy.records import dataclass

FOLDER = DEVICES / "kernels"
#: What a stand-in costs: other types, another library, another kernel, an older version; another device.
_OTHER_CASE, _OTHER_LIBRARY, _OTHER_KERNEL, _OTHER_VERSION = 10.0, 3.0, 1.0, 0.1
_SISTER, _ARCHITECTURE, _ANY_DEVICE = 0.01, 5.0, 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
    """Constants of one kernel. ``case`` as in the measured table: ``framework``, ``kernel_source``, types.

    ``error_percent``: mean absolute error on shape groups that were not fitted, None where nobody measured it.
    """

    device: str
    case: Case
    constants: Mapping[str, float]
    rows: int
    error_percent: float | None = None

    @property
    def label(self) -> str:
        """``vllm 0.24.0 flashkda_fwd on b200``."""
        words = (self.case.get(name, "") for name in ("framework", "version", "kernel_source"))
        return " ".join(filter(None, (*words, f"on {self.device}")))


@functools.cache
def fitted(table: str) -> tuple[KernelConstants, ...]:
    """Every row of a table's file; none without one."""
    path = FOLDER / f"{table}.toml"
    return () if not path.is_file() else read(path)


def read(path: Path) -> tuple[KernelConstants, ...]:
    """The rows of one file."""
    rows = parsed(path).get("kernels", [])
    return tuple(
        KernelConstants(
            device=row["device"],
            case={key: value for key, value in row.items() if isinstance(value, str) and key != "device"},
            constants=row["constants"],
            rows=row["rows"],
            error_percent=row.get("error_percent"),
        )
        for row in rows
    )


def chosen(
    table: KernelTable, device: HardwareSpec, case: Case, rows: tuple[KernelConstants, ...]
) -> tuple[KernelConstants, ...]:
    """The rows nearest to a case on a device: several where the case leaves the library or the kernel open.

    A device that nobody measured takes its sister's (``like``), else those of its architecture, else all devices'.
    """
    ranked = [(_distance(table, device, case, row), row) for row in rows]
    least = min((far for far, _ in ranked if far is not None), default=None)
    return tuple(row for far, row in ranked if far == least and far is not None)


def _distance(table: KernelTable, device: HardwareSpec, case: Case, row: KernelConstants) -> float | None:
    """None where the row is of another operation."""
    if any(row.case.get(name) != case[name] for name in table.apart if name in case):
        return None
    if table.operation(row.case) != table.operation(case):
        return None
    far = _device_distance(device, row.device)
    for name, cost in (("framework", _OTHER_LIBRARY), ("kernel_source", _OTHER_KERNEL), ("version", _OTHER_VERSION)):
        far += cost * (name in case and row.case.get(name) != case[name])
    return far + sum(_OTHER_CASE for name in table.cases if name in case and row.case.get(name) != case[name])


def _device_distance(device: HardwareSpec, measured: str) -> float:
    if measured in (device.name, device.based_on):
        return 0.0
    sister = device.calibrated_like
    if sister is not None and measured == sister:
        return _SISTER
    other = HardwareSpec.load(measured)
    mine, theirs = device.match, other.match
    same = mine is not None and theirs is not None and mine.compute_major == theirs.compute_major
    return _ARCHITECTURE if same and device.vendor == other.vendor else _ANY_DEVICE
