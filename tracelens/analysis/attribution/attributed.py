"""Device time attributed to ops: the call, the category and the pass of every analyzed event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np

from tracelens.analysis.attribution.activity import Bools, DeviceActivity, Labels
from tracelens.analysis.attribution.calls import Calls, modelled_calls, unified_calls
from tracelens.analysis.attribution.event_category import with_communicating_ops
from tracelens.analysis.attribution.host_scopes import RECOMPUTE, Phases, phases
from tracelens.analysis.attribution.op_places import all_in
from tracelens.analysis.attribution.window import Window
from tracelens.analysis.options import Options
from tracelens.analysis.reading.op_readings import OpReadings, read_ops
from tracelens.analysis.reading.recorded_groups import ep_size_of, expert_groups
from tracelens.analysis.reading.recording import Recording
from tracelens.analysis.work.expert_exchange import Exchange, ExpertGroup, exchanges_of
from tracelens.analysis.work.impossible_work import forget_impossible_work
from tracelens.backends.system import System
from tracelens.lazy.records import dataclass
from tracelens.trace.table import TraceTable
from tracelens.trace.tree import OpTree


@dataclass(frozen=True, kw_only=True, eq=False)
class Attribution:
    """``activity``: the window's events with what their ops say of them, ``everything``: so those of the whole file.

    ``event_category``: of each event of ``activity`` the category of the row that it is counted in. ``exchanges``: by
    reading. ``unified``: every event in exactly one call.
    """

    tree: OpTree
    activity: DeviceActivity
    everything: DeviceActivity
    event_category: Labels
    readings: OpReadings
    exchanges: Mapping[int, Exchange]
    unified: Calls

    @cached_property
    def phases(self) -> Phases:
        """The phase of each event of ``activity``."""
        return phases(self.tree.table, self.tree, self.activity)

    @cached_property
    def repeated(self) -> Bools:
        """Which trace rows are ops that only a recomputation launched."""
        return all_in(RECOMPUTE, self.phases, self.tree, self.activity)


def attribute(recording: Recording, window: Window, options: Options) -> Attribution:
    """The readings are final: what their calls cannot have done in the time measured is not in them."""
    table, tree, device = recording.trace.table, recording.trace.tree, recording.device
    model = options.work.model if options.work is not None else None
    events, ops, readings = read_ops(recording.trace, recording.catalog, window.activity, model)
    activity = with_communicating_ops(window.activity, tree, readings)
    system = None if device is None else System.of_device(device)
    readings, exchanges = exchanges_of(recording.trace, readings, _expert_group(table, options), system)
    unified, category = unified_calls(table, activity, readings, events, ops)
    forget_impossible_work(readings, lambda: modelled_calls(activity, readings, events, ops), device)
    return Attribution(
        tree=tree,
        activity=activity,
        everything=_with_selected(window.everything, activity),
        event_category=category,
        readings=readings,
        exchanges=exchanges,
        unified=unified,
    )


def _expert_group(table: TraceTable, options: Options) -> ExpertGroup:
    groups, size = expert_groups(table), ep_size_of(table, options.ep_size)
    return ExpertGroup(rank=table.rank, members=groups[0].ranks if len(groups) == 1 else (), size=size)


def _with_selected(everything: DeviceActivity, selected: DeviceActivity) -> DeviceActivity:
    """``everything``, of which ``selected`` are the analyzed events, with what their ops say of them."""
    if len(selected) == len(everything):
        return selected
    communication = everything.communication.copy()
    communication[np.searchsorted(everything.rows, selected.rows)] = selected.communication
    return replace(everything, communication=communication)
