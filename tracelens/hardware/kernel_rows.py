"""Fitted constants of engines' kernels: rows of a table's file, or of a device file's ``[kernels.TABLE]``."""

from __future__ import annotations

from collections.abc import Mapping

from tracelens.files.toml_figures import Table
from tracelens.lazy.records import dataclass

#: Keys of a row that choose no kernel.
_FIGURES = ("device", "rows", "error_percent", "constants")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelConstants:
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


def read(table: Table, key: str, device: str = "") -> tuple[KernelConstants, ...]:
    """The rows of the list ``key``, of ``device`` where they name none."""
    return tuple(_row(row, device) for row in table.rows(key))


def _row(row: Table, device: str) -> KernelConstants:
    constants = row.table("constants")
    if constants is None:
        raise row.error("constants", "must be a table of numbers")
    case = {name: row.text(name) or "" for name in row.names if name not in _FIGURES}
    return KernelConstants(
        device=row.text("device") or device,
        case=case,
        constants={name: constants.needed_number(name) for name in constants.names},
        rows=row.whole("rows") or 0,
        error_percent=row.number("error_percent"),
    )


def of_device(root: Table, device: str) -> Mapping[str, tuple[KernelConstants, ...]]:
    """A device file's own constants by table."""
    kernels = root.table("kernels")
    found = {}
    for name in () if kernels is None else kernels.names:
        table = kernels.table(name) if kernels is not None else None
        if table is not None:
            found[name] = read(table, "fitted", device)
            table.source("fitted_on")
            table.finish()
    return found
