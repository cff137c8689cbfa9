"""What figures per step are made of: the complete analyzed steps, or everything in a trace without steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.attribution.activity import Bools, DeviceActivity, Labels
from tracelens.analysis.attribution.device_time import Timeline, timeline_of
from tracelens.analysis.attribution.steps import StepTimes
from tracelens.analysis.factorize import Codes
from tracelens.analysis.verdict.summary import Coverage
from tracelens.lazy.records import dataclass

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Counted:
    """Device events and what is said of them: ``rows`` as ``unified_perf_summary`` has them.

    ``row_of_event``: which of the ``rows`` each event is counted in, -1 for collectives and events without an op.
    """

    activity: DeviceActivity
    event_category: Labels
    rows: pd.DataFrame
    row_of_event: Codes
    coverage: Coverage
    timeline: Timeline


def counted_events(step_of: Codes, chosen: Sequence[int]) -> Bools:
    """Which events were launched in the ``chosen`` steps, by the step of each; all where none is chosen."""
    return np.isin(step_of, chosen) if len(chosen) else np.ones(len(step_of), bool)


def counted_steps(
    whole: Counted,
    times: StepTimes,
    chosen: Sequence[int],
    count: Callable[[DeviceActivity, Timeline], Counted],
) -> Counted:
    """The part of ``whole`` that was launched in the ``chosen`` steps, with the timeline of these steps.

    ``chosen``: positions that follow each other; none: all of ``whole``. ``count`` makes the rest for other events than
    those of ``whole``.
    """
    if not chosen:
        return whole
    inside = whole.activity.counted
    window = int(times.start_ns[chosen[0]]), int(times.end_ns[chosen[-1]])
    if inside.all():
        return replace(whole, timeline=timeline_of(whole.activity, window, times.left_out))
    activity = whole.activity.select(inside)
    return count(activity, timeline_of(activity, window, times.left_out))
