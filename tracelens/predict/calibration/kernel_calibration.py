"""Constants of engines' kernels from measured tables: few per kernel, with the error on shape groups not fitted.

Where a device has few rows, a kernel is fitted on all devices that ran it first, which says which costs matter at all;
then on the device, near to that.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracelens.backends.base import Floats
from tracelens.backends.kernels import kernel_table
from tracelens.backends.kernels.kernel_costs import KernelRates, KernelTable, chosen_constants, constants_of_device
from tracelens.errors import UsageError
from tracelens.files.data_table import is_file_name, shown
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import KernelConstants
from tracelens.predict.calibration.device import LEAST_GROUPS, FitOutcome, quoted, replaced_tables, rounded
from tracelens.predict.calibration.fitting import MeasuredCalls, fitted_fresh, fitted_norm
from tracelens.predict.calibration.measurements import of_device as rows_of_device
from tracelens.predict.estimation.table_kinds import batches, kernel_size_faults
from tracelens.types.records import Record, pd

Mask = np.ndarray[Any, np.dtype[np.bool_]]
#: What a column of times is called, and how many us its unit has.
TIMES = {"latency_ms": 1e3, "latency": 1e3, "time_us": 1.0}
#: A cost stays out if leaving it out costs less than so many points of the mean error; more where rows are few.
_WORTH_PERCENT, _WORTH_PERCENT_ROWS = 0.1, 12.0
_LEAST_ROWS = 4
#: Differences of two measurements that are smaller say nothing.
_LEAST_US = 0.2
#: Costs that are tried before the others count as worth having.
_TRIED = 3
#: Shape groups are divided in two; in four where rows or groups are few.
_FEW_ROWS, _FEW_GROUPS, _POOLED_PARTS = 60, 40, 12
_INERTIA = 0.3
#: Of a device's constants to all devices', and of a case's to its device's.
_POOLED_INERTIA, _CASE_INERTIA = 1.0, 6.0
_OWN_ROWS = 70


class OnDevice(Record, frozen=True, kw_only=True, eq=False):
    """A kernel's measured calls on one device, and the shape group of each."""

    device: HardwareSpec
    case: Mapping[str, str]
    calls: MeasuredCalls
    groups: np.ndarray[Any, np.dtype[np.str_]]


class KernelFit(Record, frozen=True, kw_only=True, eq=False):
    """One kernel on all devices that ran it. ``known``: constants that few rows stay near to, instead of their own."""

    on: tuple[OnDevice, ...]
    is_pooled: bool = False
    known: Mapping[str, float] | None = None

    def fit(self, rows: Sequence[Mask]) -> list[dict[str, float]]:
        """Constants for each device, from some rows of each."""
        parts = [each.calls.take(np.flatnonzero(some)) for each, some in zip(self.on, rows, strict=True)]
        if self.is_pooled:
            return self._fit_pooled(parts)
        own = [_worthwhile(part) if len(part.time_us) >= _OWN_ROWS else None for part in parts]
        if all(own):
            return [constants for constants in own if constants is not None]
        pooled = self.known or _worthwhile(_joined(parts))
        return [constants or _near(part, pooled, _INERTIA) for constants, part in zip(own, parts, strict=True)]

    def _fit_pooled(self, parts: Sequence[MeasuredCalls]) -> list[dict[str, float]]:
        """All calls, then each device's near to that, then each case's near to its device's."""
        pooled = self.known or _worthwhile(_joined(parts))
        names = [each.device.name for each in self.on]
        of_device = {}
        for name in set(names):
            mine = _joined([part for part, device in zip(parts, names, strict=True) if device == name])
            of_device[name] = _near(mine, pooled, _POOLED_INERTIA)
        return [_near(part, of_device[name], _CASE_INERTIA) for part, name in zip(parts, names, strict=True)]

    def unseen(self) -> list[Floats]:
        """Error of each row, by device, by constants fitted on the other shape groups."""
        names = sorted(
            {name for each in self.on for name in each.groups.tolist()}, key=lambda name: zlib.crc32(name.encode())
        )
        few = min(len(each.groups) for each in self.on) < _FEW_ROWS or len(names) <= _FEW_GROUPS
        count = min(_POOLED_PARTS if self.is_pooled else 4 if few else 2, len(names))
        part_of = {name: number % count for number, name in enumerate(names)}
        parts = [np.array([part_of[name] for name in each.groups.tolist()]) for each in self.on]
        found = [np.full(len(each.groups), np.nan) for each in self.on]
        for number in range(count if count > 1 else 0):
            constants = self.fit([part != number for part in parts])
            for each, part, errors, own in zip(self.on, parts, found, constants, strict=True):
                at = np.flatnonzero(part == number)
                errors[at] = each.calls.take(at).errors(own)
        return found

    def constants(self, unseen: Sequence[Floats]) -> list[KernelConstants]:
        """Fitted on all rows."""
        made = self.fit([np.ones(len(each.groups), bool) for each in self.on])
        return [
            KernelConstants(
                device=each.device.name, case=each.case, constants=constants, rows=len(each.groups),
                error_percent=None if np.isnan(errors).any() else float(errors.mean()),
            )
            for each, constants, errors in zip(self.on, made, unseen, strict=True)
        ]  # fmt: skip


def _worthwhile(calls: MeasuredCalls) -> dict[str, float]:
    """Constants of the costs that are worth having: what changes little is left out, and the others fitted again."""
    found = fitted_fresh(calls, calls.usual())
    error = calls.errors(found).mean()
    worth = _WORTH_PERCENT + _WORTH_PERCENT_ROWS / len(calls.time_us)
    while True:
        names = [name for name in found if name not in ("launch_us", "host_us", "overlap", "cache")]
        if len(names) < 2:
            return found
        losses = {name: calls.errors(_without(found, name)).mean() for name in names}
        for least in sorted(losses, key=losses.__getitem__)[:_TRIED]:
            rest = fitted_norm(calls, _without(found, least))
            error_rest = calls.errors(rest).mean()
            if error_rest - error < worth:
                found, error = rest, min(error, error_rest)
                break
        else:
            return found


def _joined(parts: Sequence[MeasuredCalls]) -> MeasuredCalls:
    return MeasuredCalls.joined([part for part in parts if len(part.time_us)] or list(parts))


def _near(part: MeasuredCalls, pooled: Mapping[str, float], inertia: float) -> dict[str, float]:
    """Constants near to those of more calls, without the costs that these calls do not have."""
    if not len(part.time_us):
        return dict(pooled)
    launch = max(float(np.percentile(part.time_us, 2)) * 0.9, 0.05)
    known = {name: value for name, value in pooled.items() if np.any(part.costs.us.get(name, 1.0))}
    return fitted_norm(part, {**known, "launch_us": launch}, inertia)


def _without(constants: Mapping[str, float], name: str) -> dict[str, float]:
    left_out = {name, "cache"} if name == "hbm" else {name}
    return {key: value for key, value in constants.items() if key not in left_out}


def _named(device: str) -> HardwareSpec:
    if is_file_name(device):
        raise UsageError(f"a row of a table names a device, not a file: {shown(device)}")
    return HardwareSpec.load(device)


def kernel_fits(table: KernelTable, frame: pd.DataFrame, device: HardwareSpec | None = None) -> Iterator[KernelFit]:
    """Every kernel of a measured table, on ``device`` or on each row's. UsageError for a table without times."""
    column = next((name for name in TIMES if name in frame), None)
    if column is None:
        raise UsageError(f"a measured table for {table.name} needs a time: {', '.join(TIMES)}")
    times = pd.to_numeric(frame[column], errors="coerce").to_numpy(np.float64) * TIMES[column]
    good = (
        np.array([not fault for fault in kernel_size_faults(table, frame)]) & np.isfinite(times) & (times >= _LEAST_US)
    )
    names = np.full(len(frame), "") if device is not None else frame["device"].astype(str).to_numpy()
    found: dict[tuple[tuple[str, str], ...], list[OnDevice]] = defaultdict(list)
    for name in sorted(set(names[good].tolist())):
        ran_on = device or _named(name)
        rates = KernelRates.of(ran_on)
        if rates is None:
            continue
        for rows, batch in batches(table, frame, np.flatnonzero(good & (names == name))):
            if len(rows) < _LEAST_ROWS:
                continue
            case = {**dict(batch.case), **_usual_text(table, frame.iloc[rows])}
            calls = MeasuredCalls(
                costs=table.costs(batch.sizes, rates, case), rates=rates, time_us=times[rows],
                least_us=table.least_us(table.work(batch.sizes, case), rates),
            )  # fmt: skip
            keys = frame.iloc[rows][list(table.groups)].astype(str).agg("/".join, axis=1).to_numpy()
            kernel = () if table.is_pooled else tuple(pair for pair in batch.case if pair[0] != "version")
            found[kernel].append(OnDevice(device=ran_on, case=case, calls=calls, groups=keys))
    yield from (KernelFit(on=tuple(on), is_pooled=table.is_pooled) for _, on in sorted(found.items()))


def _usual_text(table: KernelTable, frame: pd.DataFrame) -> dict[str, str]:
    """What most rows say in the column that stands for sizes, for rows that will say nothing."""
    if table.described is None or not table.is_pooled:
        return {}
    column = table.described[0]
    return {column: str(frame[column].mode()[0])} if column in frame else {}


def constants_file(rows: Sequence[KernelConstants], source: str) -> str:
    """The text of a table's file."""
    return "\n".join([f"source = {quoted(source)}", *constants_lines(rows, "kernels"), ""])


def constants_lines(rows: Sequence[KernelConstants], key: str) -> list[str]:
    """The list ``key`` of a TOML file."""
    lines = [f"{key} = ["]
    for row in sorted(rows, key=lambda row: (row.device, sorted(row.case.items()))):
        texts = [f"{name} = {quoted(text)}" for name, text in (("device", row.device), *row.case.items()) if text]
        values = ", ".join(f"{name} = {rounded(value)}" for name, value in row.constants.items())
        error = [] if row.error_percent is None else [f"error_percent = {row.error_percent:.1f}"]
        parts = [*texts, f"rows = {row.rows}", *error, f"constants = {{ {values} }}"]
        lines.append(f"  {{ {', '.join(parts)} }},")
    return [*lines, "]"]


class KernelOutcome(NamedTuple):
    """Errors of one kernel before and after, and its constants; None where it was not fitted."""

    outcome: FitOutcome
    made: KernelConstants | None


def table_of(path: Path) -> KernelTable | None:
    """The measured table that a file is named after; None for another."""
    return kernel_table(path.stem.removesuffix("_perf").replace("_", "-"))


def calibrated_kernels(table: KernelTable, frame: pd.DataFrame, device: HardwareSpec) -> Iterator[KernelOutcome]:
    """Every kernel of the rows of ``device`` (of all, where there is no such column). UsageError for other tables."""
    mine = frame[rows_of_device(frame, device)].reset_index(drop=True)
    for fit in kernel_fits(table, mine, device) if len(mine) else ():
        for on in fit.on:
            yield _calibrated(table, on, device, is_pooled=fit.is_pooled)


def _calibrated(table: KernelTable, on: OnDevice, device: HardwareSpec, *, is_pooled: bool) -> KernelOutcome:
    known = chosen_constants(table, device, on.case, constants_of_device(table.name, device))
    before = min((float(on.calls.errors(each.constants).mean()) for each in known), default=None)
    words = (text for name, text in on.case.items() if name != "version")
    groups = len(np.unique(on.groups))
    outcome = FitOutcome(
        family=table.name, precision=" ".join(words), rows=len(on.groups), groups=groups, before=before
    )
    if groups < LEAST_GROUPS:
        few = f"{groups} shape groups determine no constant: not fitted"
        return KernelOutcome(replace(outcome, warnings=(few,)), None)
    fit = KernelFit(on=(on,), is_pooled=is_pooled, known=known[0].constants if known else None)
    unseen = fit.unseen()
    (made,) = fit.constants(unseen)
    after = float(on.calls.errors(made.constants).mean())
    made = replace(made, device="")
    return KernelOutcome(replace(outcome, after=after, unseen=made.error_percent), made)


def with_kernels(text: str, made: Mapping[str, Sequence[KernelConstants]], source: str) -> str:
    """The text of a device file with these constants of each table in place of its own."""
    return replaced_tables(
        text,
        {
            f"kernels.{table}": [*constants_lines(rows, "fitted"), f"fitted_on = {quoted(source)}"]
            for table, rows in made.items()
        },
    )
