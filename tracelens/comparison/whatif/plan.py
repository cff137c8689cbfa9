"""The recorded trace that something is to be different about, the plan of the changes to it, and what operations
take when they, or the device, are others.
"""

from __future__ import annotations

import fnmatch
import math
import tomllib
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity, Labels
from tracelens.analysis.attribution.calls import SYNTHETIC, launch_floor_us
from tracelens.analysis.attribution.host_time import HostCalls, host_calls
from tracelens.analysis.attribution.window import Attribution, Recording, Window, attribute, no_device_events
from tracelens.analysis.idle.dependencies import Changes, DependencyReplay, SteadyStep, steady_steps
from tracelens.analysis.intervals import Bools, Floats, Ints
from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.reading.catalog import Reading
from tracelens.analysis.sheets.module_time import module_paths
from tracelens.backends.base import EstimateTable, System
from tracelens.backends.chain import chain
from tracelens.errors import UsageError
from tracelens.files.safe_text import short_kernel_name
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.perf_models.kernels import ComputeType
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree
from tracelens.types.dtypes import DType
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US, shown_share

if TYPE_CHECKING:
    from tracelens.analysis.findings.ranking import ReplayedGain
    from tracelens.analysis.findings.rule import Claimed
    from tracelens.analysis.loaded_trace import Trace


class Subject(Record, frozen=True, kw_only=True, eq=False, dict=True):
    """``window.activity`` are all device events of the file, in file order; columns per event are in that order.

    What is different is so in all steps; figures are of those that the window has selected.
    """

    recording: Recording
    options: AnalysisOptions
    window: Window
    attribution: Attribution
    host: HostCalls

    @classmethod
    def of(cls, trace: Trace, options: AnalysisOptions) -> Subject:
        """NothingToAnalyzeError for a trace without device work."""
        recording = Recording.of(trace, options)
        if not recording.trace.table.has_device_events:
            raise no_device_events(recording.trace.table)
        selected = Window.of(recording, options).selected
        window = replace(Window.of_file(recording, options), selected=selected)
        return cls(
            recording=recording,
            options=options,
            window=window,
            attribution=attribute(recording, window, options),
            host=host_calls(recording.trace.table, recording.trace.tree),
        )

    @property
    def table(self) -> TraceTable:
        return self.recording.trace.table

    @property
    def tree(self) -> OpTree:
        return self.recording.trace.tree

    @property
    def activity(self) -> DeviceActivity:
        return self.attribution.activity

    @property
    def category(self) -> Labels:
        """The category that each device event is counted in."""
        return self.attribution.event_category

    @cached_property
    def replay(self) -> DependencyReplay:
        """The dependencies of the whole file."""
        return DependencyReplay(self.table, self.tree, self.host, self.window.everything)

    @cached_property
    def steady(self) -> SteadyStep:
        """The steps that stand for all, as in a report."""
        recorded = self.recording.recorded
        host = host_calls(recorded.table, recorded.tree)
        return SteadyStep(recorded.table, recorded.tree, host, self.window, steady_steps(self.window))

    @cached_property
    def call_of_event(self) -> Ints:
        """Index into ``attribution.unified`` of each event's call, -1 for one in none."""
        calls = self.attribution.unified
        found = np.full(len(self.activity), -1)
        found[calls.events] = calls.call_of_event
        return found

    @cached_property
    def reading_of_event(self) -> Ints:
        """Code of the reading with the perf model that speaks of each event, -1 without one."""
        calls, readings = self.attribution.unified, self.attribution.readings
        code = np.where(calls.kernel_name >= 0, -1, readings.code_of(calls.row)).astype(np.int64)
        known = np.array([*(reading.model is not None for reading in readings.readings), False])
        return np.append(np.where(known[code], code, -1), -1)[self.call_of_event]

    @property
    def readings(self) -> list[Reading]:
        return self.attribution.readings.readings

    @cached_property
    def op_name(self) -> list[str]:
        """Name of each event's op: of its call, else of the op that launched it, else of the kernel itself."""
        table, activity = self.table, self.activity
        row = np.append(self.attribution.unified.row, -1)[self.call_of_event]
        row = np.where(row >= 0, row, activity.op)
        is_op = (row >= 0) & (table.kind[row] == Kind.CPU_OP)
        code = np.where(is_op, table.name[row], activity.name)
        return [table.names[number] for number in code.tolist()]

    @cached_property
    def counted(self) -> Bools:
        """Which events figures per step are made of."""
        return self.window.inside

    @cached_property
    def in_steps(self) -> Bools:
        """Which events are of a step; all without steps. What was queued as recording began stays as it is."""
        has_steps = len(self.window.times) > 0
        return self.window.step_of >= 0 if has_steps else np.ones(len(self.activity), bool)

    @property
    def steps(self) -> int:
        """Among how many steps what is counted is divided; 1 without steps."""
        return max(len(self.window.complete_steps), 1)

    def rows_named(self, name: str) -> Bools:
        """Host rows of this name (op, annotation, module or path of module classes) and everything below them."""
        table, tree = self.table, self.tree
        names = np.array([text == name or text == f"{MODULE_PREFIX}{name}" for text in table.names] or [False])
        kinds = (Kind.CPU_OP, Kind.USER_ANNOTATION, Kind.PYTHON_FUNCTION)
        found: RowColumn = np.flatnonzero(names[table.name] & table.is_of(kinds) & (tree.position >= 0)).astype(
            np.int32
        )
        if not len(found):
            found = self._modules_of(name)
        depth = np.zeros(len(tree.order) + 1, np.int64)
        np.add.at(depth, tree.position[found], 1)
        np.add.at(depth, tree.last[found], -1)
        below = np.zeros(len(table), bool)
        below[tree.order] = np.cumsum(depth[:-1]) > 0
        return below

    def _modules_of(self, classes: str) -> RowColumn:
        """Calls of the modules of a class (``Linear``) or of a path of classes (``Model/Block/Linear``)."""
        modules = module_paths(self.table, self.tree, self.tree.launch[self.activity.rows], self.window.stem)
        if modules is None:
            return np.empty(0, np.int32)
        texts = [modules.text(path) for path in range(len(modules.paths))]
        fits = np.array([classes in (text, short_kernel_name(text), text.rpartition("/")[2]) for text in texts])
        return modules.scopes.rows[fits[modules.path]]

    def events_of(self, selector: str) -> Bools:
        """Events of a category, of an op, module or range with all below, or of fitting kernels; UsageError if none."""
        for text in self.category.texts:
            if text.casefold() == selector.casefold() and (found := self.category.are(text)).any():
                return found
        below, launch = self.rows_named(selector), self.tree.launch[self.activity.rows]
        found = np.append(below, False)[launch]
        if found.any():
            return found
        fitting = np.isin(self.activity.name, self._kernels_named(selector))
        if not fitting.any():
            # Events called ``op->kernel``, as a report calls kernels that are ops of their own.
            op, _, kernel = selector.removesuffix(SYNTHETIC).partition("->")
            of_op = np.array([name == op for name in self.op_name], bool)
            kernels = [code for code in np.unique(self.activity.name).tolist() if self.table.names[code] == kernel]
            fitting = of_op & np.isin(self.activity.name, kernels)
        if not fitting.any():
            there = {text for text in self.category.texts if self.category.are(text).any()}
            known = sorted({*there, *self.op_name})
            raise UsageError.unknown("category, op or kernel with device time", selector, known)
        return fitting

    def _kernels_named(self, selector: str) -> list[int]:
        """Codes of kernels by full, short or fitting name; UsageError where several have this short name."""
        names = {code: self.table.names[code] for code in np.unique(self.activity.name).tolist()}
        short = {code: short_kernel_name(name) for code, name in names.items()}
        for called in (names, short):
            found = [code for code, name in called.items() if name == selector]
            if len(found) > 1:
                whole = " and ".join(sorted(names[code] for code in found)[:2])
                raise UsageError(
                    f"{selector!r} matches {len(found)} kernels; give a whole name, such as {whole}, "
                    f"or {selector + '*'!r} for all"
                )
            if found:
                return found
        return [
            code for code, name in names.items()
            if fnmatch.fnmatchcase(name, selector) or fnmatch.fnmatchcase(short[code], selector)
        ]  # fmt: skip


#: Of a normal distribution, how many standard deviations to each side hold 90 %.
Z90 = 1.645
#: Standard deviation of the logarithm of how much longer another device's host takes. Two host-bound models recorded on
#: servers of MI300X and of H100 took 1.11 and 1.06 times as long: 8 % in the mean square; of two samples Student's
#: 90 % are 2.92 such deviations to each side, not ``Z90``.
HOST_SIGMA = 0.15
#: Places in ``Plan.gaps``.
LEAST, LIKELY, MOST = range(3)


class ChangePlan(Record, frozen=False, kw_only=True, eq=False):
    """Changes put one on top of the other.

    ``factor``: what the duration of each device event is multiplied with; ``sigma``: the standard deviation of that
    factor's logarithm. ``models``, ``computed_in``: of each reading of the trace, as they are to be; ``amount``: how
    many times the work of its model a reading does; ``more_us``: what a call of it takes on top. ``recorded_on`` and
    ``system``: what the trace ran on, and what it is to run on. ``host``: what host time is multiplied with;
    ``host_sigma``: as ``sigma``, of another machine's. ``gone``: rows of host events that fall away; ``saved``: spans
    of threads (lane, start, end in ns) that do; ``sooner``: how much (ns) of the delay before each device event that
    nothing recorded explains does. ``gaps``: how long (ns) after one kernel of a graph the next starts: at least, most
    likely, at most. ``claims``: of the findings that are applied, with how much (ns) of each part goes; ``replayed``:
    what says their gain in a report. ``notes``: what was assumed, for people.
    """

    subject: Subject
    factor: Floats
    sigma: Floats
    removed: Bools
    detached: Bools
    gone: Bools
    models: list[PerfModel | None]
    computed_in: list[ComputeType | None]
    system: System | None
    recorded_on: System | None
    amount: Floats
    more_us: Floats
    sooner: Ints
    host: float = 1.0
    host_sigma: float = 0.0
    replayed: ReplayedGain | None = None
    claims: list[tuple[Claimed, Floats]] = msgspec.field(default_factory=list)
    gaps: tuple[int, int, int] | None = None
    saved: list[tuple[int, int, int]] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    @classmethod
    def of(cls, subject: Subject) -> ChangePlan:
        """Nothing is different yet."""
        events, device = len(subject.activity), subject.recording.device
        system = None if device is None else System.of_device(device)
        return cls(
            subject=subject,
            factor=np.ones(events),
            sigma=np.zeros(events),
            removed=np.zeros(events, bool),
            detached=np.zeros(events, bool),
            gone=np.zeros(len(subject.table), bool),
            models=[reading.model for reading in subject.readings],
            computed_in=[reading.computed_in for reading in subject.readings],
            system=system,
            recorded_on=system,
            amount=np.ones(len(subject.readings)),
            more_us=np.zeros(len(subject.readings)),
            sooner=np.zeros(events, np.int64),
        )

    def multiply(self, events: Bools, by: float | Floats, sigma: float | Floats = 0.0) -> None:
        """Their time ``by`` as long; errors of independent changes add up as squares."""
        self.factor[events] *= by
        self.sigma[events] = np.hypot(self.sigma[events], sigma)

    def note(self, text: str) -> None:
        """Says something once."""
        if text not in self.notes:
            self.notes.append(text)

    def changes(
        self, shifted: Bools | None = None, by: float = 0.0, gap: int = LIKELY, *, graph: DependencyReplay | None = None
    ) -> Changes:
        """As a replay takes it, of the file or of ``graph``: ``shifted`` events ``by`` sigmas off, gaps by ``gap``."""
        activity, inside = self.subject.activity, self.subject.in_steps
        at = self.subject.replay.at if graph is None else np.searchsorted(activity.rows, graph.device.rows)
        factor = self.factor if shifted is None else self.factor * np.exp(np.where(shifted, by * self.sigma, 0.0))
        length = activity.duration.astype(np.float64) * np.where(inside, factor, 1.0)
        return Changes(
            length=length[at],
            removed=(self.removed & inside)[at],
            detached=(self.detached & inside)[at],
            host=self.host,
            without=self._spans(),
            gap=None if self.gaps is None else self.gaps[gap],
            sooner=self.sooner[at],
        )

    @property
    def families(self) -> list[Bools]:
        """The events of each category that have an uncertain time."""
        category, uncertain = self.subject.category, (self.sigma > 0) & ~self.removed
        found = [category.are(text) & uncertain for text in category.texts]
        return [events for events in found if events.any()]

    def _spans(self) -> tuple[Ints, Ints, Ints] | None:
        rows, table = np.flatnonzero(self.gone), self.subject.table
        saved = np.array(self.saved, np.int64).reshape(-1, 3)
        if not len(rows) and not len(saved):
            return None
        spans = table.lane[rows].astype(np.int64), table.start_ns[rows], table.ends_ns(rows)
        lane, start, end = (np.concatenate((own, more)) for own, more in zip(spans, saved.T, strict=True))
        return lane, start, end


_RATES = {"fp16": "bf16", "fp4": "nvfp4"}


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("residuals.toml").read_text(encoding="utf-8"))


@cache
def largest_p90(family: str | None = None) -> float:
    """The largest 90th percentile of a family, or of all where that family was not measured."""
    families = [_table()[family]] if family in _table() else [v for v in _table().values() if isinstance(v, dict)]
    return float(max(p90 for devices in families for row in devices.values() for p90 in row.values()))


def largest_sigma() -> float:
    """For what no model speaks of."""
    return math.log1p(largest_p90() / 100) / Z90


def sigma_of(model: PerfModel, computed_in: DType | None, device: HardwareSpec, backend: str) -> float:
    """Standard deviation of the logarithm of measured over estimated time.

    From the 90th percentile that was measured for the family, device and precision with the tile model; where none was,
    the largest of the family's or, without a measured family, of all.
    """
    family = model.price_family()
    p90 = None
    if backend == "tile" and computed_in is not None and computed_in.rate is not None:
        measured = _table().get(family or "", {})
        row = measured.get(device.name) or measured.get(device.based_on or "") or {}
        p90 = row.get(_RATES.get(computed_in.rate, computed_in.rate))
    return math.log1p((largest_p90(family) if p90 is None else p90) / 100) / Z90


def device_of(plan: ChangePlan) -> HardwareSpec:
    """The device of the recording. UsageError where it is not known."""
    device = plan.subject.recording.device
    if device is None:
        raise UsageError(f"{plan.subject.table.source}: its device is unknown; name it with --device")
    return device


def price(plan: ChangePlan) -> None:
    """Times of the calls whose model, amount or device changes, by the ratio of new to old estimate.

    ratio = max(new estimate, new launch floor) / max(old estimate, old launch floor): what the device reached of the
    old estimate it is taken to reach of the new one. Both are from the tile model where it knows both, else both are
    rooflines. Rooflines too where an amount multiplies them, as a part of a tile model's time does not grow with it.
    Kernels without an estimate follow the memory of the device.
    """
    subject, readings = plan.subject, plan.subject.readings
    old_models = [reading.model for reading in readings]
    same_place = plan.system is plan.recorded_on
    changed = np.array(
        [
            model is not None and (not same_place or model is not old or amount != 1)
            for model, old, amount in zip(plan.models, old_models, plan.amount, strict=True)
        ],
        bool,
    )
    if not changed.any() and same_place:
        return
    old_device = device_of(plan)
    old_system, new_system = plan.recorded_on, plan.system
    if old_system is None or new_system is None:
        raise UsageError(f"{subject.table.source}: its device is unknown; name it with --device")
    codes = np.flatnonzero(changed)
    ratio, sigma, by_bytes = np.ones(len(readings) + 1), np.zeros(len(readings) + 1), np.full(len(readings) + 1, np.nan)
    kernels = _per_call(plan, np.ones(len(subject.activity)))
    measured = measured_us(plan)
    if len(codes):
        (old, new), bytes_ratio, backend = _estimates(plan, codes.tolist(), old_system, new_system)
        floor = np.minimum(kernels[codes] * launch_floor_us(old_device), measured[codes])
        new_floor = floor * launch_floor_us(new_system.device) / launch_floor_us(old_device)
        after, before = np.fmax(new * plan.amount[codes], new_floor) + plan.more_us[codes], np.fmax(old, floor)
        is_known = np.isfinite(old) & np.isfinite(new) & (before > 0)
        ratio[codes] = np.divide(after, before, out=np.full(len(codes), np.nan), where=is_known)
        sigma[codes] = _sigmas(plan, codes.tolist(), backend, new_system.device)
        if new_system.device.name != old_device.name:
            # How much of what the estimate misses belongs to the device, and goes with it, is not known
            ratios = np.divide(
                measured[codes], before, out=np.ones(len(codes)), where=(measured[codes] > 0) & (before > 0)
            )
            sigma[codes] = np.hypot(sigma[codes], np.abs(np.log(ratios)) / 2)
        by_bytes[codes] = np.where(is_known, np.nan, bytes_ratio * plan.amount[codes])
    code = subject.reading_of_event
    is_changed = np.append(changed, False)[code] & (code >= 0)
    known = np.isfinite(ratio[code]) & is_changed
    plan.multiply(known, ratio[code[known]], sigma[code[known]])
    _by_their_bytes(plan, is_changed & np.isfinite(by_bytes[code]) & (by_bytes[code] != 1), by_bytes[code])
    if not same_place:
        _without_estimate(plan, ~known & ~subject.activity.communication, old_device, new_system.device)


def _estimates(
    plan: ChangePlan, codes: list[int], old: System, new: System
) -> tuple[tuple[Floats, Floats], Floats, list[str]]:
    """Of readings us as they are and are to be, NaN where unknown; new over old bytes; who made both estimates."""
    readings = plan.subject.readings
    before = WorkColumns.of([readings[c].model for c in codes], [readings[c].computed_in for c in codes])  # type: ignore[misc]
    after = WorkColumns.of([plan.models[c] for c in codes], [plan.computed_in[c] for c in codes])  # type: ignore[misc]
    by_tile = [chain("tile").estimate_many(columns, system) for columns, system in ((before, old), (after, new))]
    rooflines = [chain("roofline").estimate_many(columns, system) for columns, system in ((before, old), (after, new))]
    both = np.array([one == other == "tile" for one, other in zip(*(t.backend for t in by_tile), strict=True)])
    moved = np.divide(after.hbm_bytes, before.hbm_bytes, out=np.full(len(codes), np.nan), where=before.hbm_bytes > 0)
    both &= plan.amount[codes] == 1
    us = [np.where(both, tile.time_us, line.time_us) for tile, line in zip(by_tile, rooflines, strict=True)]
    return (us[0], us[1]), moved, ["tile" if one else "roofline" for one in both.tolist()]


def _by_their_bytes(plan: ChangePlan, events: Bools, ratio: Floats) -> None:
    """Calls without an estimate, of attention whose mask was not recorded for one: by how many more bytes they move."""
    if not events.any():
        return
    plan.multiply(events, ratio[events], largest_sigma())
    names = sorted({name for name, is_one in zip(plan.subject.op_name, events.tolist(), strict=True) if is_one})
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    plan.note(f"{', '.join(names[:3])}{more} have no estimate; their time follows the bytes that they move")


def _sigmas(plan: ChangePlan, codes: list[int], backend: list[str], new: HardwareSpec) -> list[float]:
    """By the residuals of both estimates; where only the clock is another, half of the clock's effect."""
    device, result = device_of(plan), []
    for code, who in zip(codes, backend, strict=True):
        reading, model = plan.subject.readings[code], plan.models[code]
        if model is None or reading.model is None:
            result.append(0.0)
            continue
        if model is reading.model and new.name == device.name:
            result.append(abs(math.log(new.clock_scale / device.clock_scale)) / 2 / Z90)
            continue
        types = reading.compute_dtype, plan.computed_in[code] or model.compute_dtype
        new_type = types[1] if types[1] is None or hasattr(types[1], "rate") else types[1].dtype
        result.append(
            math.hypot(
                sigma_of(reading.model, types[0], device, who),
                sigma_of(model, new_type, new, who),  # type: ignore[arg-type]
            )
        )
    return result


def _per_call(plan: ChangePlan, values: npt.NDArray[Any]) -> Floats:
    """The sum of ``values`` of device events in a call of each reading, on average."""
    subject, n = plan.subject, len(plan.subject.readings)
    code = subject.reading_of_event
    of_call = np.full(len(subject.attribution.unified.row), -1)
    of_call[subject.call_of_event[code >= 0]] = code[code >= 0]
    calls = np.bincount(of_call[of_call >= 0], minlength=n)
    return np.asarray(np.bincount(code[code >= 0], values[code >= 0], minlength=n) / np.maximum(calls, 1))


def measured_us(plan: ChangePlan) -> Floats:
    """Mean kernel time of a call of each reading."""
    return _per_call(plan, plan.subject.activity.duration) / NS_PER_US


def _without_estimate(plan: ChangePlan, events: Bools, old: HardwareSpec, new: HardwareSpec) -> None:
    """What no model speaks of moves memory, most often; how much else it does is not known."""
    rates = [None if device.hbm is None else device.hbm.tb_s for device in (old, new)]
    if not events.any():
        return
    if old.name == new.name:
        plan.note(f"{_share(plan, events)} of kernel time has no estimate and takes as long as recorded")
        return
    if rates[0] is None or rates[1] is None:
        plan.note("kernels without a perf model keep their time, because a memory rate is not known")
        return
    plan.multiply(events, rates[0] / rates[1], largest_sigma())
    plan.note(f"{_share(plan, events)} of kernel time has no estimate and follows the devices' memory rates")


def _share(plan: ChangePlan, events: Bools) -> str:
    ns = plan.subject.activity.duration
    return shown_share(float(ns[events].sum() / max(ns.sum(), 1)))


def estimated_us(plan: ChangePlan, columns: WorkColumns) -> EstimateTable:
    """The estimate of new operations on the system that is to be."""
    device_of(plan)
    if plan.system is None:
        raise UsageError(f"{plan.subject.table.source}: no device to estimate for")
    return chain("tile").estimate_many(columns, plan.system)
