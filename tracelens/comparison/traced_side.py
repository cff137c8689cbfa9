"""A trace reduced to one side of a comparison: its device events as units in order of launch, each moment given to
one.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tracelens.analysis.attribution.activity import DeviceActivity, Labels, Timeline, devices_of
from tracelens.analysis.attribution.calls import Calls, KnownWork, Limits, speaks_of
from tracelens.analysis.attribution.host_time import HostCalls, host_calls, named, telling_calls
from tracelens.analysis.attribution.steps import typical_step
from tracelens.analysis.attribution.window import Attribution, Recording, Window, attribute
from tracelens.analysis.energy import EventEnergy, RowPower
from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.idle.idle_time import CAUSES, IdleTime, own_time, queue
from tracelens.analysis.intervals import Bools, Covered, Ints, Spans, idle_within, intersections
from tracelens.analysis.loaded_trace import AnalysisOptions, Trace
from tracelens.analysis.reading.added_ops import graph_launches
from tracelens.analysis.reading.catalog import OTHER
from tracelens.analysis.reading.op_readings import OpReadings
from tracelens.analysis.reading.process_groups import collective_rates
from tracelens.analysis.sheets.module_time import module_paths
from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.comparison import sides
from tracelens.comparison.compared import IDLE
from tracelens.errors import NothingToAnalyzeError
from tracelens.hardware.power import idle_power, power_constants
from tracelens.trace.reading.read import recorded_power
from tracelens.trace.table import DEVICE_KINDS, Kind, RowColumn, TraceTable
from tracelens.types.records import Record
from tracelens.types.signature import recorded_text
from tracelens.types.units import NS_PER_US


class Moments(Record, frozen=True, kw_only=True, eq=False):
    """``ns`` of window ``window`` belong to the device event ``event``; no time is in two of them."""

    event: Ints
    window: Ints
    ns: Ints


def exclusive(activity: DeviceActivity, windows: Spans) -> Moments:
    """The event of each moment of ``windows``: computation before communication before copies, then the first."""
    copies = activity.memcpy & ~activity.communication
    free, found = windows, []
    for mask in (~(activity.communication | copies), activity.communication, copies):
        events = np.flatnonzero(mask)
        order = events[np.lexsort((events, activity.start[events]))]
        start, end = activity.start[order], np.maximum.accumulate(activity.end[order])
        own = np.maximum(start, np.concatenate((start[:1], end[:-1])))
        kept = end > own
        at, begins, ends = intersections((own[kept], end[kept]), free)
        window = np.searchsorted(windows[0], begins, side="right") - 1
        found.append((order[kept][at], window, ends - begins))
        if len(events):
            free = idle_within(activity.start[events], activity.end[events], free)
        if not len(free[0]):
            break
    event, window, ns = (np.concatenate(column) for column in zip(*found, strict=True))
    return Moments(event=event, window=window, ns=ns)


#: Parameters of a perf model that say how its numbers are stored, not how many there are.
_DTYPES = ("dtype",)


class Units(Record, frozen=True, kw_only=True, eq=False):
    """``of_event``: the unit of each device event; by unit: its ``call``, ``first`` event and ``kernel_ns``."""

    of_event: Ints
    call: Ints
    first: Ints
    kernel_ns: Ints
    calls: tuple[sides.Call, ...]
    rates: tuple[sides.CallWork, ...]


def units_of(
    recording: Recording, step_stem: str, activity: DeviceActivity, readings: OpReadings, counted: tuple[Calls, Labels]
) -> Units:
    """A unit per call of an op that stands for its kernels, whatever ops below it launch; else one per event."""
    table, tree, (calls, category) = recording.trace.table, recording.trace.tree, counted
    launch = tree.launch[activity.rows]
    modelled = readings.modelled[readings.code_of(calls.row)]
    own = (table.kind[calls.row] == Kind.CPU_OP) & ~modelled & ~activity.between_memories[calls.first_event]
    replayed = np.isin(launch, graph_launches(table))[calls.events] & ~modelled[calls.call_of_event]
    whole = ((calls.kernel_name < 0) | own)[calls.call_of_event] & ~replayed
    unit, row, kernel = _unit_of_events(activity, calls, whole)
    category = _of_ops(activity, readings, category, np.where(kernel < 0, row, -1))
    launched = np.where(launch >= 0, table.start_ns[launch], activity.start)
    order = np.lexsort((activity.start, launched))
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order), dtype=np.int32)
    # Units are numbered by their first event in order of launch
    earliest = np.full(int(unit.max(initial=-1)) + 1, len(order), np.int32)
    np.minimum.at(earliest, unit, place)
    unit = numbered(earliest[unit])
    first = order[np.sort(earliest)]
    paths = module_paths(table, tree, launch, step_stem)
    path = np.zeros(len(activity), np.int64) if paths is None else paths.of_launch
    whole, op = kernel[first] < 0, row[first]
    columns = (
        np.where(op >= 0, table.name[op], np.int32(-1)),
        np.where(whole, table.signature[op], np.int32(-1)),
        kernel[first],
        category.code[first],
        path[first],
        np.where(whole, readings.code_of(op), np.int32(-1)),
        (is_compiled := _compiled(table, launch)[first]).astype(np.int8),
    )
    call = numbered(*columns)
    example = first_of_each(call)
    at = first[example]
    modules = [None if paths is None else paths.text(number) for number in path[at].tolist()]
    columns_of_calls = (op[example].tolist(), kernel[at].tolist(), category[at].tolist(), modules)
    of_region = is_compiled[example].tolist()
    described = [
        replace(_call(table, readings, *values), is_compiled=own) if own else _call(table, readings, *values)
        for own, values in zip(of_region, zip(*columns_of_calls, strict=True), strict=True)
    ]
    kernel_ns = np.bincount(unit, activity.duration, minlength=len(first)).astype(np.int64)
    times = np.maximum(np.bincount(call), 1)
    mean = np.bincount(call, np.bincount(unit, minlength=len(first))) / times, np.bincount(call, kernel_ns) / times
    return Units(
        of_event=unit.astype(np.int64),
        call=call.astype(np.int64),
        first=first,
        kernel_ns=kernel_ns,
        calls=tuple(described),
        rates=_rates(recording, readings, np.where(whole, op, -1)[example], mean),
    )


#: Ranges of Dynamo, AOTAutograd and Inductor around what a compiled region runs.
_COMPILED = re.compile(r"^(?:Torch-Compiled Region|CompiledFunction|CompiledFxGraph|## Call CompiledFxGraph)")


def _compiled(table: TraceTable, launch: RowColumn) -> Bools:
    """Which events a compiled region launched."""
    regions = np.flatnonzero(
        named(table, _COMPILED, (table.kind == Kind.CPU_OP) | (table.kind == Kind.USER_ANNOTATION))
    )
    found = np.zeros(len(launch), bool)
    if len(regions):
        around = Covered(table.lane[regions], table.start_ns[regions], table.ends_ns(regions))
        at = np.flatnonzero(launch >= 0)
        start = table.start_ns[launch[at]]
        found[at] = around.within(table.lane[launch[at]].astype(np.int64), start, start + 1) > 0
    return found


def _unit_of_events(activity: DeviceActivity, calls: Calls, whole: Bools) -> tuple[Codes, Codes, Codes]:
    """(unit, op row or -1, kernel name or -1) of every event; ``whole``: which of ``calls.events`` are their calls'."""
    count = len(activity)
    unit = np.full(count, -1, np.int32)
    row, kernel = activity.op.copy(), activity.name.copy()
    events, owner = calls.events[whole], calls.call_of_event[whole]
    # Kernels that an op launched itself are one call of it, whether or not they are told apart by name
    unit[events] = numbered(calls.row, calls.category.code)[owner]
    row[events], kernel[events] = calls.row[owner], -1
    rest = np.flatnonzero(unit < 0)
    unit[rest] = len(calls.row) + np.arange(len(rest), dtype=np.int32)
    return numbered(unit), row, kernel


def _of_ops(activity: DeviceActivity, readings: OpReadings, category: Labels, op: Codes) -> Labels:
    """The category of each event: its op's where it has one, -1 for none, and that is known of it."""
    code = readings.code_of(op)
    said = speaks_of(readings, readings.known, code, activity, np.arange(len(op)))
    texts = [reading.category or OTHER for reading in readings.readings]
    return Labels.of(np.where(said, code + len(category.texts), category.code), (*category.texts, *texts))


def _call(
    table: TraceTable, readings: OpReadings, row: int, kernel: int, category: str, module: str | None
) -> sides.Call:
    name = "" if row < 0 else table.name_of(row)
    if kernel >= 0:
        is_sent = row >= 0 and sides.role(category) == sides.COMMUNICATION
        shapes = None
        if is_sent:
            # What a collective sends, and among how many: with another of either it is another call
            signature = table.signature_of(row)
            shapes, ranks = recorded_text(signature.shapes), signature.attribute("Group size")
            shapes = shapes if ranks is None or shapes is None else f"{shapes} among {ranks} ranks"
        return sides.Call(name=name, category=category, kernel=table.names[kernel], shapes=shapes, module=module)
    signature = table.signature_of(row)
    model, work = readings.readings[int(readings.code_of(np.array([row]))[0])].model, None
    if model is not None:
        # A model and its dimensions, without the types of its numbers
        sizes = {k: v for k, v in model.parameters().items() if not k.startswith(_DTYPES)}
        work = f"{model.category} {sizes!r}"
    return sides.Call(
        name=name,
        category=category,
        shapes=recorded_text(signature.shapes),
        dtypes=recorded_text(signature.dtypes),
        module=module,
        work=work,
    )


def _rates(
    recording: Recording, readings: OpReadings, row: Ints, mean: tuple[sides.Floats, sides.Floats]
) -> tuple[sides.CallWork, ...]:
    """The work of each call, and what the roofline of the device says; its launch floor as in the report."""
    device = recording.device
    system = None if device is None else System.of_device(device)
    answers = chain("roofline")
    work = KnownWork(readings, None if system is None else lambda columns: answers.estimate_many(columns, system))
    code = readings.code_of(row)
    position = np.append(work.position, -1)[code]  # a call without a code, -1, takes the last
    flops, hbm = work.take(work.columns.flops, position), work.take(work.columns.hbm_bytes, position)
    roofline, bound = np.full(len(row), np.nan), [None] * len(row)
    if work.estimates is not None and device is not None:
        kernels, mean_ns = mean
        time_us = work.take(work.estimates.time_us, position)
        floor_us = Limits.of(device).floor_us(kernels, mean_ns / 1e3)
        roofline = np.where(np.isnan(time_us), np.nan, np.fmax(time_us, floor_us))
        bound = [work.estimates.bound[p] if p >= 0 else None for p in position.tolist()]
    engines = [readings.readings[c].compute_spec if c >= 0 else None for c in code.tolist()]
    columns = zip(flops.tolist(), hbm.tolist(), roofline.tolist(), bound, engines, strict=True)
    return tuple(sides.CallWork(flops=f, hbm_bytes=b, roofline_us=r, bound=w, engine=e) for f, b, r, w, e in columns)


def recorded_ranks(trace: Trace, options: AnalysisOptions) -> list[sides.Recorded]:
    """The ranks of a file, mostly one. Errors as ``analyze``."""
    first = Recording.of(trace, replace(options, cpu=False))
    found = [_recorded(first, options)]
    for number in first.merged.numbers[1:] if first.merged is not None else ():
        # One that ran nothing on a device has no step to compare
        with suppress(NothingToAnalyzeError):
            found.append(recorded(trace, replace(options, rank=number)))
    return found


def recorded(trace: Trace, options: AnalysisOptions) -> sides.Recorded:
    """The complete steps of one rank, all of it without steps, as one side has them. Errors as ``analyze``."""
    return _recorded(Recording.of(trace, replace(options, cpu=False)), options)


def _recorded(recording: Recording, options: AnalysisOptions) -> sides.Recorded:
    window = Window.of(recording, options)
    attribution = attribute(recording, window, options)
    steps = _Steps.of(window, attribution.activity)
    table = recording.trace.table
    calls, category = attribution.unified, attribution.event_category
    units = units_of(recording, window.stem, steps.activity, attribution.readings, (calls, category))
    kernels, kernel = np.unique(steps.activity.name, return_inverse=True)
    version = table.metadata.get("pytorch_version") or table.metadata.get("torch_version")
    known = recording.trace.table.used_device() if recording.device is None else None
    label = recording.device.label if recording.device is not None else known.name if known else None
    found = sides.Recorded(
        source=table.source,
        calls=units.calls,
        rates=units.rates,
        call=units.call,
        step=steps.of_event[units.first],
        kernel_ns=units.kernel_ns,
        piece_unit=units.of_event[steps.moments.event],
        piece_step=steps.of_window[steps.moments.window],
        piece_ns=steps.moments.ns,
        durations_ns=steps.durations_ns,
        event_unit=units.of_event,
        event_kernel=kernel.astype(np.int64),
        event_ns=steps.activity.duration,
        kernel_names=tuple(table.names[code] for code in kernels.tolist()),
        repeats=np.ones(len(units.call)),
        typical=steps.typical,
        rank=table.rank if recording.merged is None else recording.merged.chosen,
        device=None if recording.device is None else recording.device.name,
        device_label=label or sides.UNKNOWN_DEVICE,
        torch=version if isinstance(version, str) else None,
        has_steps=bool(window.selected),
        is_skewed=recording.trace.tree.skewed > 0,
    )
    return replace(_with_idle(found, recording, attribution, steps), joules=_joules(recording, attribution, steps))


def _joules(recording: Recording, attribution: Attribution, steps: _Steps) -> sides.StepJoules | None:
    """Modelled, and by counters of power in the recording; None where neither is known."""
    table = recording.recorded.table
    modelled, measured = _modelled(recording, attribution, steps), np.zeros(0)
    if len(table.power_counters):
        used = table.device[table.is_of(DEVICE_KINDS)]
        log = recorded_power(table, int(used[0]) if len(used) and used[0] >= 0 else None)
        starts = steps.starts + table.base_ns
        measured = measured if log is None else log.joules(starts, starts + steps.durations_ns)
    known = () if np.isnan(measured).any() else tuple(measured.tolist())
    if modelled is None:
        return sides.StepJoules(measured=known) if known else None
    return replace(modelled, measured=known)


def _modelled(recording: Recording, attribution: Attribution, steps: _Steps) -> sides.StepJoules | None:
    """As in a report, and without its tables: rows are the distinct ops with known work, at their mean time."""
    device = None if recording.is_another_device else recording.device
    constants = None if device is None else power_constants(device)
    activity, table = steps.activity, recording.trace.table
    if device is None or constants is None or len(devices_of(activity, table)[1]) > 1:
        return None
    calls, readings = attribution.unified, attribution.readings
    work = KnownWork(readings, None)
    position = np.append(work.position, -1)[readings.code_of(calls.row)]
    known, count = position >= 0, len(work.columns)
    mean_us = np.bincount(position[known], calls.kernel_ns[known], minlength=count) / NS_PER_US
    mean_us /= np.maximum(np.bincount(position[known], minlength=count), 1)
    rows = RowPower.unknown(constants, count).of(device, work.columns, np.arange(count), mean_us)
    row_of_event = np.full(len(activity), -1, np.int32)
    row_of_event[calls.events] = position[calls.call_of_event]
    collectives = RowPower.unknown(constants, 1)
    if activity.collective.any():
        sent = np.flatnonzero(activity.collective)
        times = collective_rates(table, recording.trace.tree, activity.rows[sent], activity.duration[sent] / NS_PER_US)
        collectives = collectives.of_collectives(*times)
    own_ns = own_time(activity, steps.timeline.window)[2][:]
    energy = EventEnergy.of(rows, collectives, activity, row_of_event, own_ns, steps.of_event)
    joules = energy.of_spans(steps.of_event, steps.durations_ns)
    if np.isnan(joules.power_w).any():
        return None
    each = [tuple(column.tolist()) for column in joules]
    return sides.StepJoules(modelled=each[0], low=each[1], high=each[2], idle_w=float(idle_power(constants)))


def _with_idle(found: sides.Recorded, recording: Recording, attribution: Attribution, steps: _Steps) -> sides.Recorded:
    """With a unit per step and cause of idle time."""
    table, tree = recording.recorded.table, recording.recorded.tree
    if not steps.durations_ns.sum():
        return found
    host = host_calls(table, tree)
    queued = queue(table, tree, host, attribution.everything)
    idle = IdleTime(table, tree, host, steps.activity, queued, steps.windows).within(steps.windows)
    step = np.searchsorted(steps.starts, idle.start, side="right") - 1
    group = numbered(idle.cause, step)
    first = first_of_each(group)
    causes, call = np.unique(idle.cause[first], return_inverse=True)
    ns = np.bincount(group, idle.end - idle.start, minlength=len(first)).astype(np.int64)
    unit = len(found.call) + np.arange(len(first))
    return replace(
        found,
        host=_host_series(recording, attribution, host, steps),
        calls=(*found.calls, *(sides.Call(name=CAUSES[c], category=IDLE) for c in causes.tolist())),
        rates=(*found.rates, *(sides.CallWork() for _ in causes)),
        call=np.concatenate((found.call, len(found.calls) + call)),
        step=np.concatenate((found.step, step[first])),
        kernel_ns=np.concatenate((found.kernel_ns, np.zeros(len(first), np.int64))),
        repeats=np.concatenate((found.repeats, np.ones(len(first)))),
        piece_unit=np.concatenate((found.piece_unit, unit)),
        piece_step=np.concatenate((found.piece_step, step[first])),
        piece_ns=np.concatenate((found.piece_ns, ns)),
    )


def _host_series(
    recording: Recording, attribution: Attribution, host: HostCalls, steps: _Steps
) -> tuple[sides.HostSeries, ...]:
    """Calls that say a cause of idle time, each of the step whose work is launched next."""
    table, tree = recording.recorded.table, recording.recorded.tree
    launch = tree.launch[steps.activity.rows]
    launched, step = table.start_ns[launch[launch >= 0]], steps.of_event[launch >= 0]
    everything = tree.launch[attribution.everything.rows]
    others = np.setdiff1d(table.start_ns[everything[everything >= 0]], launched)
    times = np.concatenate((launched, others))
    order = np.argsort(times, kind="stable")
    step_of = np.concatenate((step, np.full(len(others), -1)))[order]
    count, found = len(steps.durations_ns), []
    for cause, rows in telling_calls(table, host):
        at = np.searchsorted(times[order], table.start_ns[rows])
        # After the last launch of a recording a step may still wait, or load
        of_row = np.append(step_of, step_of[-1:] if len(step_of) else [-1])[at] if len(step_of) else at - 1
        for name in np.unique(table.name[rows[of_row >= 0]]).tolist():
            own = (table.name[rows] == name) & (of_row >= 0)
            number = np.bincount(of_row[own], minlength=count).astype(float)
            ns = np.bincount(of_row[own], table.duration_ns[rows[own]], minlength=count)
            columns = {"count": tuple(number.tolist()), "ns": tuple(ns.tolist())}
            found.append(sides.HostSeries(cause=cause, name=table.names[name], **columns))
    return tuple(found)


class _Steps(Record, frozen=True, kw_only=True, eq=False):
    """The steps that are compared, or one window: their events, and to which of these every moment belongs."""

    activity: DeviceActivity
    of_event: Ints
    windows: Spans
    of_window: Ints
    durations_ns: Ints
    timeline: Timeline
    starts: Ints
    moments: Moments
    typical: int

    @classmethod
    def of(cls, window: Window, activity: DeviceActivity) -> _Steps:
        chosen, times, timeline = window.complete_steps, window.times, window.timeline(activity)
        of_event = np.zeros(len(activity), np.int64)
        starts, durations = np.array([timeline.start_ns], np.int64), np.array([timeline.total_ns], np.int64)
        if chosen:
            of_event = window.step_of.astype(np.int64) - chosen[0]
            starts, durations = times.start_ns[chosen], times.duration_ns[chosen]
        opens, closes = timeline.spans
        # The spans of the window, cut where a step begins within one
        later = starts[1:]
        span = np.maximum(np.searchsorted(opens, later, side="left") - 1, 0)
        inner = np.unique(later[(later > opens[span]) & (later < closes[span])])
        begin = np.sort(np.concatenate((opens, inner)))
        end = np.sort(np.concatenate((inner, closes)))
        return cls(
            activity=activity,
            of_event=of_event,
            windows=(begin, end),
            of_window=np.searchsorted(starts, begin, side="right") - 1,
            durations_ns=durations,
            timeline=timeline,
            starts=starts,
            moments=exclusive(activity, (begin, end)),
            typical=typical_step(times, chosen) - chosen[0] if chosen else 0,
        )
