"""What sheets are made of (``SheetContext``), and their frames by title, each made when first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tracelens.analysis.attribution.activity import DeviceActivity, Labels, Timeline, devices_of
from tracelens.analysis.attribution.host_time import HostCalls, host_calls
from tracelens.analysis.attribution.steps import StepTimes, typical_step
from tracelens.analysis.attribution.window import Attribution, Recording, Window, in_steps
from tracelens.analysis.energy import EventEnergy, RowPower
from tracelens.analysis.idle.dependencies import CriticalPath, SteadyStep, critical_path, steady_steps
from tracelens.analysis.idle.idle_time import IdleParts, IdleTime, OwnTime, Queue, own_time, queue
from tracelens.analysis.intervals import Bools, Floats, Spans
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.sheets import built_in_sheets
from tracelens.analysis.sheets.priced_calls import PricedCalls, with_unlinked
from tracelens.analysis.step_rectangles import StepIdle, step_idle
from tracelens.errors import InputError
from tracelens.files.memory_limit import end_stage
from tracelens.hardware.power import Drawn, power_constants
from tracelens.registry import Registry
from tracelens.trace.reading.read import PowerLog, read_power_log, recorded_power
from tracelens.trace.table import DEVICE_KINDS, RowColumn
from tracelens.types.records import Record

#: A time of day lies behind this moment, of 2001.
_LEAST_EPOCH_NS = 10**18


class Frames(Mapping[str, "pd.DataFrame"]):
    """The frames that the sheets of a registry make of a context, when first asked for; a sheet may read another's.

    A sheet whose function returns None is not there.
    """

    def __init__(self, sheets: Registry, context: object) -> None:
        self._sheets, self._context = sheets, context
        self._made: dict[str, pd.DataFrame | None] = {}

    def get(self, title: str, default: Any = None) -> Any:
        """The frame of a sheet; ``default`` where there is none. A KeyError of the sheet's own is not one of ours."""
        if title not in self._sheets:
            return default
        if title not in self._made:
            self._made[title] = self._sheets[title].target(self._context)
        frame = self._made[title]
        return default if frame is None else frame

    def __getitem__(self, title: str) -> pd.DataFrame:
        frame: pd.DataFrame | None = self.get(title)
        if frame is None:
            raise KeyError(title)
        return frame

    def __contains__(self, title: object) -> bool:
        return isinstance(title, str) and self.get(title) is not None

    def __iter__(self) -> Iterator[str]:
        return (title for title in self._sheets if title in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def plain_strings() -> AbstractContextManager[None]:
    """Inside, new frames hold Python strings: Arrow's cost a fifth of a report where pyarrow is installed."""
    return pd.option_context("mode.string_storage", "python")


class HostContext(Record, frozen=True, kw_only=True, eq=False, dict=True):
    """A recording, its steps and the analyzed ones (``selected``; none: the file): all there is without device work."""

    recording: Recording
    options: AnalysisOptions
    step_times: StepTimes
    selected: tuple[int, ...] = ()

    def in_scope(self, rows: RowColumn) -> Bools:
        """Which of these rows of the host began in the analyzed steps; all without steps."""
        return in_steps(self.recording.trace.table, rows, self.step_times, self.selected)

    @cached_property
    def power_log(self) -> PowerLog | None:
        """What the device drew while the trace was recorded, by a log, else by counters in the recording. InputError
        where there is a log and the trace says no time of day.
        """
        path, table = self.options.power, self.recorded.table
        if not len(table) or (path is None and not len(table.power_counters)):
            return None
        used = table.device[table.is_of(DEVICE_KINDS)]
        device = int(used[0]) if len(used) and used[0] >= 0 else None
        if path is None:
            return recorded_power(table, device)
        start_ns = int(table.start_ns.min()) + table.base_ns
        if start_ns < _LEAST_EPOCH_NS:
            raise InputError(f"{table.source} does not record the time of day: --power needs a trace that does")
        log = read_power_log(path, device)
        return log.during(start_ns, int((table.start_ns + table.duration_ns).max()) + table.base_ns)

    @cached_property
    def measured_of_steps(self) -> Floats:
        """Measured joules of each step of the file, what is left out of the first one included; NaN where unknown."""
        times, base_ns = self.step_times, self.recorded.table.base_ns
        if self.power_log is None:
            return np.full(len(times), np.nan)
        return self.power_log.joules(times.start_ns + base_ns, times.end_ns + base_ns)

    @property
    def energy(self) -> EventEnergy | None:
        """Of device work, which there is none of."""
        return None

    @property
    def energy_of_steps(self) -> Drawn:
        """Joules of each step of the file; NaN outside of the analyzed ones, and where energies are unknown."""
        return Drawn(*(np.full(len(self.step_times), np.nan) for _ in Drawn._fields))

    @property
    def recorded(self) -> Trace:
        """The trace as the file has it."""
        return self.recording.recorded

    @cached_property
    def frames(self) -> Frames:
        """The frames of all sheets by title, each made when first asked for."""
        return Frames(built_in_sheets(), self)

    def end(self) -> None:
        """Breaks the circle of the context and its frames: it goes now, not when garbage is next collected."""
        self.__dict__.pop("frames", None)


class SheetContext(HostContext, frozen=True, kw_only=True, eq=False, dict=True):
    """The analyzed window of a recording, its device time attributed to ops, and every call priced."""

    window: Window
    attribution: Attribution
    priced: PricedCalls

    @property
    def trace(self) -> Trace:
        """The trace with the ops inside composite ops and those of captured graphs as rows of their own."""
        return self.recording.trace

    @property
    def activity(self) -> DeviceActivity:
        """The analyzed device events."""
        return self.attribution.activity

    @property
    def event_category(self) -> Labels:
        """The category that each of them is counted in."""
        return self.attribution.event_category

    @property
    def timeline(self) -> Timeline:
        """Where the window's time went."""
        return self.priced.timeline

    @property
    def families(self) -> dict[str, pd.DataFrame]:
        """The frames of the perf-model families."""
        return self.priced.families

    @cached_property
    def host(self) -> HostCalls:
        """What the host's threads were at."""
        return host_calls(self.recorded.table, self.recorded.tree)

    @cached_property
    def queued(self) -> Queue:
        """What was launched and had not finished, at any time."""
        return queue(self.recorded.table, self.recorded.tree, self.host, self.attribution.everything)

    @cached_property
    def idle(self) -> IdleTime:
        """Idle time of the window; no other part needs as much memory while it is made."""
        end_stage()
        table, tree = self.recorded.table, self.recorded.tree
        return IdleTime(table, tree, self.host, self.activity, self.queued, self.timeline.spans)

    @cached_property
    def idle_parts(self) -> IdleParts:
        """The same idle time in parts, each with its cause and the launch or event that was late."""
        return self.idle.within(self.timeline.spans)

    @cached_property
    def own_time(self) -> OwnTime:
        """When each device event is what keeps the device busy."""
        return own_time(self.activity, self.timeline.window)

    @cached_property
    def energy(self) -> EventEnergy | None:
        """Joules of every device event; None for an unknown device, and for several."""
        recording, priced, rows = self.recording, self.priced, self.priced.rows
        device = None if recording.is_another_device else recording.device
        constants = None if device is None else power_constants(device)
        if device is None or constants is None or len(devices_of(self.activity, self.trace.table)[1]) > 1:
            return None
        modelled = np.flatnonzero(rows["has_perf_model"].to_numpy(bool)) if len(rows) else np.zeros(0, np.int64)
        code = priced.work.readings.code_of(rows["example_row"].to_numpy(np.int64)[modelled])
        work = priced.work.columns.take(priced.work.position[code].tolist())
        power = RowPower.unknown(constants, len(rows)).of(
            device, work, modelled, rows["kernel_us_mean"].to_numpy(float)[modelled]
        )
        collectives, sent = RowPower.unknown(constants, 1), self.frames["coll_analysis"]
        if not sent.empty:
            keys = ("effective_bus_gb_s", "duration_us_mean", "duration_us_sum")
            collectives = collectives.of_collectives(*(sent[key].to_numpy(float) for key in keys))
        own_ns = self.own_time[2][:]
        return EventEnergy.of(power, collectives, self.activity, priced.row_of_event, own_ns, self.window.step_of + 1)

    @cached_property
    def energy_of_steps(self) -> Drawn:
        """As of a host, with those of the analyzed steps."""
        times, energy = self.step_times, self.energy
        if energy is None:
            return super().energy_of_steps
        found = energy.of_spans(self.window.step_of + 1, np.append(0, times.duration_ns))
        return Drawn(*(np.where(np.isin(np.arange(len(times)), self.selected), each[1:], np.nan) for each in found))

    @cached_property
    def typical_step(self) -> int | None:
        """Position of the typical one of the analyzed steps; None without steps."""
        return typical_step(self.step_times, self.selected) if self.selected else None

    @cached_property
    def steady_steps(self) -> tuple[int, ...]:
        """Positions of the steps that stand for all where a step is replayed; none without steps."""
        return tuple(steady_steps(self.window))

    def steady_step(self, chosen: tuple[int, ...], part: Bools | None = None) -> SteadyStep:
        """These steps (none: the whole file, or these of its device events) when they are done again and again."""
        return SteadyStep(self.recorded.table, self.recorded.tree, self.host, self.window, chosen, part)

    @property
    def path_window(self) -> tuple[int, int]:
        """The typical step, with what is left out of it, else the whole window."""
        at, times = self.typical_step, self.step_times
        return self.timeline.window if at is None else (int(times.start_ns[at]), int(times.end_ns[at]))

    @property
    def path_spans(self) -> Spans:
        """What the critical path leads through: ``path_window`` without what is left out of it."""
        at = self.typical_step
        return self.timeline.spans if at is None else self.step_times.spans(at)

    @cached_property
    def path(self) -> CriticalPath | None:
        """The critical path through ``path_spans``."""
        table, tree = self.recorded.table, self.recorded.tree
        return critical_path(table, tree, self.host, self.attribution.everything, self.idle, self.path_spans)

    @cached_property
    def step_idle(self) -> StepIdle:
        """When and why the device was idle in ``path_window``."""
        start, end = self.path_window
        return step_idle(self.idle.within((np.array([start], np.int64), np.array([end], np.int64))), (start, end))

    def end_sheets(self) -> None:
        """Frees what no finding needs once all frames are made; cached parts are made again where asked for."""
        _ = self.idle_parts, self.step_idle  # made of what goes
        for part in _OF_SHEETS & self.__dict__.keys():
            del self.__dict__[part]
        end_stage()

    @cached_property
    def launchers_and_unlinked(self) -> pd.DataFrame:
        """Calls by launching op, and the kernels that none of them launched as rows of their own."""
        return with_unlinked(self.priced.launchers, self.priced.unlinked)


# Cached parts that sheets need and findings do not. What was read of whole threads of the host is the largest.
_OF_SHEETS = frozenset({"idle", "path", "launchers_and_unlinked"})
