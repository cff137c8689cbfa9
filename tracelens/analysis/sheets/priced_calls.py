"""Every distinct call of the analyzed window beside its work and its estimates, made once for all sheets."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tracelens.analysis.attribution.activity import Bools, Timeline
from tracelens.analysis.attribution.calls import Calls, direct_calls, launchers, modelled_calls
from tracelens.analysis.attribution.host_scopes import BACKWARD, all_in, with_places
from tracelens.analysis.attribution.window import Attribution, Window, coverage
from tracelens.analysis.grouping import Codes
from tracelens.analysis.loaded_trace import Options
from tracelens.analysis.reading.op_readings import OpReadings, ops_above
from tracelens.analysis.reading.recording import Recording
from tracelens.analysis.sheets.distinct_calls import Grouping, launching_calls
from tracelens.analysis.sheets.modelled_calls import (
    call_groups,
    modelled_table,
    rows_of_events,
    unlinked_rows,
    with_unlinked_rows,
)
from tracelens.analysis.sheets.ops.families import families
from tracelens.analysis.verdict.summary import Coverage
from tracelens.analysis.work.executed_work import ExecutedWork, executed_work
from tracelens.analysis.work.known_work import Work
from tracelens.analysis.work.limits import Limits
from tracelens.backends.chain import chain
from tracelens.backends.system import System
from tracelens.hardware import HardwareSpec
from tracelens.lazy.records import dataclass
from tracelens.trace.table import RowColumn

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedCalls:
    """Every distinct call beside its work and its estimates.

    ``launchers``: by launching op; ``modelled``: every event in exactly one row, but for the ``unlinked`` ones, which
    no recorded op launched; ``rows``: both. ``row_of_event``: which of ``rows`` each event is counted in, -1 for
    collectives and events without an op. ``executed``: None where no model's utilization was asked for. ``chosen``:
    what the backend that the caller chose says is achievable.
    """

    launchers: pd.DataFrame
    modelled: pd.DataFrame
    unlinked: pd.DataFrame
    rows: pd.DataFrame
    row_of_event: Codes
    families: dict[str, pd.DataFrame]
    coverage: Coverage
    timeline: Timeline
    executed: ExecutedWork | None
    chosen: Callable[[Any], Any] | None

    @classmethod
    def of(cls, recording: Recording, window: Window, attribution: Attribution, options: Options) -> PricedCalls:
        """Estimates are at the clock that the caller chose."""
        table, tree, device = recording.trace.table, recording.trace.tree, recording.device
        activity, readings, repeated = attribution.activity, attribution.readings, attribution.repeated
        chosen = _estimator(device, options.backend, options.clock_mhz) if options.backend != "roofline" else None
        work = _work(readings, device, chosen, options.clock_mhz)

        def grouped(calls: Calls, apart: Codes | Bools) -> Grouping:
            return call_groups(table, readings, calls, apart)

        def priced(calls: Calls, group: Grouping) -> pd.DataFrame:
            return modelled_table(table, activity, calls, work, attribution.exchanges, group)

        events, ops = ops_above(tree, activity)
        unique = _by_launcher(attribution, events, ops)
        calls, unified = modelled_calls(activity, readings, events, ops), attribution.unified
        nested = priced(calls, grouped(calls, 2 * repeated[calls.row] + ~np.isin(calls.row, unified.row)))
        del events, ops, calls
        category, group = attribution.event_category, grouped(unified, repeated[unified.row])
        modelled = with_places(priced(unified, group), tree, attribution.phases, repeated)
        unlinked = unlinked_rows(table, activity, category)
        rows = with_unlinked_rows(modelled, unlinked)
        in_backward = all_in(BACKWARD, attribution.phases, tree, activity)
        step_of, asked = window.step_of if window.selected else None, options.work is not None
        return cls(
            launchers=unique,
            modelled=modelled,
            unlinked=unlinked,
            rows=rows,
            row_of_event=rows_of_events(rows, group, unified, len(activity)),
            families=families(table, nested, readings, unified.row, in_backward),
            coverage=coverage(table, activity, unified, readings, category),
            timeline=window.timeline(activity),
            executed=executed_work(unified, readings, step_of, len(window.times)) if asked else None,
            chosen=chosen,
        )


def _work(
    readings: OpReadings, device: HardwareSpec | None, chosen: Callable[[Any], Any] | None, clock_mhz: float | None
) -> Work:
    return Work(
        readings,
        _estimator(device, "roofline", clock_mhz),
        chosen,
        None if device is None else Limits.of(device),
        _estimator(device, "tile", clock_mhz),
    )


def _by_launcher(attribution: Attribution, events: Codes, ops: RowColumn) -> pd.DataFrame:
    """Calls by launching op; ``events, ops`` from ``ops_above``."""
    table, activity = attribution.tree.table, attribution.activity
    direct = direct_calls(activity, attribution.event_category)
    own = launchers(table, activity, events, ops)
    return launching_calls(table, activity, own, direct, attribution.repeated[direct.row])


def _estimator(device: HardwareSpec | None, backend: str, clock_mhz: float | None) -> Callable[[Any], Any] | None:
    if device is None:
        return None
    answers, system = chain(backend), System.of_device(device).at_clock(clock_mhz)
    return lambda columns: answers.estimate_many(columns, system)
