"""Calls of engines' kernels as columns, priced by the constants of the kernels that fit their case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.column_batch import Basis, ColumnBatch, Part, Priced
from tracelens.backends.kernels.kernel_constants import chosen, of_device
from tracelens.backends.kernels.kernel_costs import KernelTable, Rates, combined_us
from tracelens.hardware import HardwareSpec
from tracelens.hardware.kernel_rows import KernelConstants
from tracelens.lazy.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelColumns(ColumnBatch):
    """Rows of one table that are alike in their ``case``: pairs of a column and its text."""

    family: ClassVar[str] = "kernel"

    table: KernelTable
    case: tuple[tuple[str, str], ...]
    sizes: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(next(iter(self.sizes.values())))

    def take(self, part: Part) -> Self:
        """Some of the rows."""
        return type(self)(
            precision=self.precision, table=self.table, case=self.case,
            sizes={name: values[part] for name, values in self.sizes.items()},
        )  # fmt: skip

    def flops(self) -> Floats:
        """As the perf models of the table's operations count."""
        return self.table.work(self.sizes, dict(self.case)).flops

    def hbm_bytes(self) -> Floats:
        """As the perf models of the table's operations count."""
        return self.table.work(self.sizes, dict(self.case)).hbm_bytes

    def choices(self, device: HardwareSpec) -> tuple[KernelConstants, ...]:
        """The kernels that may run on the device; those of another device without the name of its tuning file."""
        found = chosen(self.table, device, dict(self.case), of_device(self.table.name, device))
        usual = None if self.table.described is None else self.table.described[0]
        return tuple(
            row
            if row.device in (device.name, device.based_on) or usual not in row.case
            else replace(row, case={name: text for name, text in row.case.items() if name != usual})
            for row in found
        )

    def _price(self, device: HardwareSpec) -> Priced | None:
        found = self.fastest(device)
        return None if found is None else found[0]

    def fastest(self, device: HardwareSpec) -> tuple[Priced, tuple[KernelConstants, ...], Floats] | None:
        """Times by the fastest kernel, the kernels, and which of them each row takes. None without any.

        Where other devices' constants stand in, the geometric mean over those devices.
        """
        choices, rates = self.choices(device), Rates.of(device)
        if not choices or rates is None:
            return None
        times = np.stack([self.time_us(each, rates) for each in choices])
        devices = sorted({each.device for each in choices})
        which = times.argmin(axis=0)
        of_each = [times[[each.device == name for each in choices]].min(axis=0) for name in devices]
        time = np.exp(np.mean(np.log(of_each), axis=0)) if len(devices) > 1 else of_each[0]
        work = self.table.work(self.sizes, dict(self.case))
        compute, memory = work.flops / rates.flops(work.rate), work.hbm_bytes / rates.hbm
        least = self.table.least_us(work, rates)
        priced = Priced(time_us=np.maximum(time, least), compute_us=compute, memory_us=memory, peak_us=least)
        return priced, choices, which

    def measured_as(self, device: HardwareSpec) -> Basis:
        """The kernel that each row takes; its error where it was measured on the device and in the row's types."""
        kernels, chosen_of = self.choices(device), self.fastest(device)
        if not kernels or chosen_of is None:
            return Basis.unknown(len(self))
        own, asked = (device.name, device.based_on), dict(self.case)
        held = [
            row.error_percent is not None
            and row.device in own
            and all(row.case.get(name) == asked[name] for name in self.table.cases if name in asked)
            for row in kernels
        ]
        errors = [row.error_percent if known else np.nan for row, known in zip(kernels, held, strict=True)]
        labels, which = np.array([row.label for row in kernels], object), chosen_of[2]
        return Basis(labels[which], np.array(errors, np.float64)[which])

    def time_us(self, kernel: KernelConstants, rates: Rates) -> Floats:
        """By one kernel's constants, not below what the data sheet allows."""
        case = {**dict(kernel.case), **dict(self.case)}
        case |= {name: kernel.case[name] for name in ("framework", "kernel_source", "version") if name in kernel.case}
        costs = self.table.costs(self.sizes, rates, case)
        return np.maximum(
            combined_us(costs, rates, kernel.constants), self.table.least_us(self.table.work(self.sizes, case), rates)
        )
