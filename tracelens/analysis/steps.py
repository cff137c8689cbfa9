"""Training steps or iterations of a trace: where they start, how long they take, which ones a report covers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracelens.analysis.intervals import Ints, union_by_group
from tracelens.errors import UsageError
from tracelens.trace.table import Kind, RowColumn, TraceTable
from tracelens.trace.tree import OpTree
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

# The last number of a name; in one pass, however many digits a damaged name has.
_NUMBER = re.compile(r"(?<!\d)(?P<number>\d++)(?P<rest>\D*+)\Z")
_STEM_END = "# :_-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: its number and its host window in the trace's own clock (ns)."""

    number: int
    start_ns: int
    end_ns: int


def find_steps(table: TraceTable) -> tuple[str, list[Step]]:
    """(stem, steps) of ``ProfilerStep#N``, else of the numbered host annotations that cover most time.

    Iteration windows are user annotations on one lane whose names differ only in their last number
    (``iteration 12``), at least two of them, not overlapping.
    """
    rows = np.flatnonzero(table.kind == Kind.USER_ANNOTATION)
    families: dict[tuple[str, str, int], list[Step]] = {}
    for row in rows.tolist():
        name = table.name_of(row)
        match = _NUMBER.search(name)
        if match is None or len(match["number"]) > 12:
            continue
        start = int(table.start_ns[row])
        step = Step(number=int(match["number"]), start_ns=start, end_ns=start + int(table.duration_ns[row]))
        families.setdefault((name[: match.start()], match["rest"], int(table.lane[row])), []).append(step)
    best: tuple[int, int, str, list[Step]] = (0, 0, "", [])
    for (stem, _, _), steps in sorted(families.items()):
        steps.sort(key=lambda s: (s.start_ns, s.number))
        profiler = int(stem == "ProfilerStep#")
        distinct = all(a.end_ns <= b.start_ns and a.number < b.number for a, b in itertools.pairwise(steps))
        if not profiler and (len(steps) < 2 or not distinct):
            continue
        covered = sum(s.end_ns - s.start_ns for s in steps)
        if (profiler, covered) > best[:2]:
            best = (profiler, covered, stem, steps)
    return best[2].rstrip(_STEM_END), best[3]


def is_step_annotation(name: str, stem: str) -> bool:
    """Whether an annotation is one of the steps whose stem ``find_steps`` gave; never without steps (stem ``""``)."""
    match = _NUMBER.search(name)
    return match is not None and stem != "" and name[: match.start()].rstrip(_STEM_END) == stem


def step_of_device_rows(steps: list[Step], launch_ns: Ints) -> Ints:
    """Index into ``steps`` of the step in which each device event was launched; -1 outside all of them."""
    starts = np.array([s.start_ns for s in steps], np.int64)
    ends = np.array([s.end_ns for s in steps], np.int64)
    index = np.searchsorted(starts, launch_ns, side="right") - 1
    return np.where((index >= 0) & (launch_ns < ends[np.maximum(index, 0)]), index, -1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTimes:
    """When each step ran, in the trace's own clock (ns).

    A step lasts from its first device event to the next step's; the last one to the later of its last device event
    and its annotation's end. Without device events in every step, the annotations themselves. ``complete`` is False
    for a last step with fewer than 90 % of the median number of device events: the recording ended inside it.
    """

    steps: tuple[Step, ...]
    start_ns: Ints
    end_ns: Ints
    busy_ns: Ints
    device_events: Ints
    complete: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, steps: list[Step], step_of: Ints, start: Ints, end: Ints) -> StepTimes:
        """From the step index (or -1), start and end of every device event."""
        n = len(steps)
        inside = step_of >= 0
        count = np.bincount(step_of[inside], minlength=n)
        first = np.array([s.start_ns for s in steps], np.int64)
        stop = np.array([s.end_ns for s in steps], np.int64)
        complete = np.ones(n, bool)
        if n and (count > 0).all():
            annotated_end = int(stop[-1])
            first = np.full(n, np.iinfo(np.int64).max)
            last = np.full(n, np.iinfo(np.int64).min)
            np.minimum.at(first, step_of[inside], start[inside])
            np.maximum.at(last, step_of[inside], end[inside])
            stop = np.concatenate((first[1:], [max(int(last[-1]), annotated_end)]))
            complete[-1] = n == 1 or count[-1] >= 0.9 * np.median(count)
        return cls(
            steps=tuple(steps),
            start_ns=first,
            end_ns=stop,
            busy_ns=union_by_group(step_of[inside], start[inside], end[inside], n),
            device_events=count.astype(np.int64),
            complete=complete,
        )

    def __len__(self) -> int:
        return len(self.steps)

    def frame(self, base_ns: int) -> pd.DataFrame:
        """One row per step; ``start_us`` is relative to ``base_ns``."""
        import pandas as pd

        return pd.DataFrame(
            {
                "step": [s.number for s in self.steps],
                "start_us": (self.start_ns - base_ns) / NS_PER_US,
                "duration_us": (self.end_ns - self.start_ns) / NS_PER_US,
                "busy_us": self.busy_ns / NS_PER_US,
                "device_events": self.device_events,
                "complete": self.complete,
            }
        )


def device_steps(
    table: TraceTable, tree: OpTree, rows: RowColumn, found: tuple[str, list[Step]] | None = None
) -> tuple[str, StepTimes, Ints]:
    """The steps of a trace (annotation stem, times) and the step of each device event in ``rows``, -1 outside of them.

    A device event belongs to the step in which it was launched; one without a launch, to that in which it started.
    ``found``: the steps, where they are not those of ``find_steps``.
    """
    stem, steps = found or find_steps(table)
    start = table.start_ns[rows]
    launch = tree.launch[rows]
    launch_ns = np.where(launch >= 0, table.start_ns[np.maximum(launch, 0)], start)
    step_of = step_of_device_rows(steps, launch_ns) if steps else np.full(len(rows), -1, np.int64)
    return stem, StepTimes.of(steps, step_of, start, start + table.duration_ns[rows]), step_of


def complete_steps(times: StepTimes, selected: Sequence[int] = ()) -> list[int]:
    """Positions of the ``selected`` steps (none: of all) that were recorded whole; all of those where none was."""
    chosen = list(selected) or list(range(len(times)))
    return [i for i in chosen if times.complete[i]] or chosen


def typical_step(times: StepTimes, candidates: Sequence[int]) -> int:
    """The one of ``candidates`` whose duration is nearest their median, the first of equals."""
    duration = times.end_ns - times.start_ns
    median = np.median(duration[list(candidates)])
    return min(candidates, key=lambda i: (abs(duration[i] - median), i))


def select_steps(wanted: str, times: StepTimes, steady: Sequence[int] = ()) -> list[int]:
    """Positions of the steps that ``3``, ``3-5`` or ``steady`` names.

    ``steady``: these positions, else complete steps without the first one (warm-up), as long as that leaves any.
    UsageError for a range that is not in the trace.
    """
    numbers = [s.number for s in times.steps]
    if not numbers:
        raise UsageError("--steps needs annotations of profiler, iteration or inference steps; the trace has none")
    if wanted == "steady" and steady:
        return list(steady)
    if wanted == "steady":
        positions = [i for i, complete in enumerate(times.complete.tolist()) if complete]
        return positions[1:] or positions or [0]
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", wanted)
    if match is None:
        raise UsageError(f"--steps takes a number, a range like 3-5, or steady; got {wanted!r}")
    first = int(match[1])
    last = int(match[2] or first)
    positions = [i for i, number in enumerate(numbers) if first <= number <= last]
    if not positions:
        raise UsageError(f"--steps {wanted}: the trace has steps {numbers[0]} to {numbers[-1]}")
    return positions
