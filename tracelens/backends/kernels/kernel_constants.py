"""Fitted constants of engines' kernels: a file per table, a row per device, library, kernel and types.

``tracelens/hardware/kernels/TABLE.toml`` holds them with their source and the error on shape groups not fitted; a
device file may hold its own (``tracelens calibrate``).
"""

from __future__ import annotations

import functools
from pathlib import Path

from tracelens.backends.kernels.kernel_costs import Case, KernelTable
from tracelens.files.toml_figures import Table
from tracelens.hardware import HardwareSpec, kernel_rows
from tracelens.hardware.kernel_rows import KernelConstants
from tracelens.hardware.spec import FOLDER as DEVICES

FOLDER = DEVICES.parent / "kernels"
#: What a stand-in costs: other types, another library, another kernel, an older version; another device.
_OTHER_CASE, _OTHER_LIBRARY, _OTHER_KERNEL, _OTHER_VERSION = 10.0, 3.0, 1.0, 0.1
_SISTER, _ARCHITECTURE, _GENERATION, _ANY_DEVICE = 0.01, 4.5, 5.0, 6.0


@functools.cache
def fitted(table: str) -> tuple[KernelConstants, ...]:
    """Every row of a table's file; none without one."""
    path = FOLDER / f"{table}.toml"
    return () if not path.is_file() else read(path)


def read(path: Path) -> tuple[KernelConstants, ...]:
    """The rows of one file."""
    return kernel_rows.read(Table.of_file(path), "kernels")


def of_device(table: str, device: HardwareSpec) -> tuple[KernelConstants, ...]:
    """Every row of a table's file, in whose place a device file's own come where they are of the same kernel."""
    own, published = device.kernels.get(table, ()), fitted(table)
    if not own:
        return published
    names = (device.name, device.based_on)

    def is_replaced(row: KernelConstants) -> bool:
        return row.device in names and any(
            all(row.case.get(name) == text for name, text in mine.case.items() if name != "version") for mine in own
        )

    return (*own, *(row for row in published if not is_replaced(row)))


def chosen(
    table: KernelTable, device: HardwareSpec, case: Case, rows: tuple[KernelConstants, ...]
) -> tuple[KernelConstants, ...]:
    """The rows nearest to a case on a device: several where the case leaves the library or the kernel open.

    A device that nobody measured takes its sister's (``like``), else those of its architecture, else of its generation
    (gfx950's for gfx942), else all devices'.
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
    if mine is None or theirs is None or device.vendor != other.vendor or mine.compute_major != theirs.compute_major:
        return _ANY_DEVICE
    return _ARCHITECTURE if mine.compute_minor == theirs.compute_minor else _GENERATION
