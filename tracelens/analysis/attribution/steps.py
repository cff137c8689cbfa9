"""Training steps or iterations of a trace: their bounds on host and device, durations, and which are analyzed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.host_time import blocking_calls, kernel_launches, waiting_calls
from tracelens.analysis.grouping import Codes, numbered
from tracelens.analysis.intervals import Bools, Floats, Ints, Spans, idle_spans, idle_within, union_by_group, union_ns
from tracelens.errors import UsageError
from tracelens.perf_models.kernels import copy_path
from tracelens.trace.table import XLA_STEPS, Kind, RowColumn, TraceTable
from tracelens.trace.tree import MODULE_PREFIX, OpTree
from tracelens.types.records import Record, pd
from tracelens.types.units import NS_PER_US

#: When work was launched that was in the queue as recording began.
_BEFORE_RECORDING = np.iinfo(np.int64).min
_NEVER = np.iinfo(np.int64).max
#: A launch on an idle device starts within some 5 to 20 us, with the profiler on and for a graph's first kernel a few
#: times that; what takes longer waited for something.
LONGEST_LATENCY_NS = 100_000


class RecordedStep(Record, frozen=True, kw_only=True):
    """One step: its number and its host window in the trace's own clock (ns)."""

    number: int
    start_ns: int
    end_ns: int


class DeviceWork(Record, frozen=True, kw_only=True, eq=False):
    """Device events as steps need them, in ns of the trace's own clock.

    ``launch``: when each was launched; without a recorded launch the moment at which it ran, and for events that were
    ``before`` (in the queue as recording began) a time before all others. ``stream`` numbers streams from 0.
    ``unseen_end``: until when the device worked on what was in the queue and was not recorded.
    """

    start: Ints
    end: Ints
    stream: Codes
    launch: Ints
    launched: Bools
    before: Bools
    unseen_end: int | None = None

    @classmethod
    def of(cls, table: TraceTable, tree: OpTree, rows: RowColumn) -> DeviceWork:
        """From the device events in ``rows``."""
        start, by = table.start_ns[rows], tree.launch[rows]
        end, launched = start + table.duration_ns[rows], by >= 0
        stream = numbered(table.device[rows], table.stream[rows])
        before = _queued_before(launched, start, end, stream)
        launch = np.where(launched, table.start_ns[by], start)
        launch[before] = _BEFORE_RECORDING
        return cls(start=start, end=end, stream=stream, launch=launch, launched=launched, before=before)

    def as_it_ran(self) -> DeviceWork:
        """Without launches: for steps that the device recorded, in its own time."""
        none = np.zeros(len(self.start), np.bool_)
        return replace(self, launch=self.start, launched=none, before=none)

    def with_unseen(self, table: TraceTable, tree: OpTree, rows: RowColumn) -> DeviceWork:
        """Where what was in the queue as recording began was not recorded itself, as an engine's profiler starts in the
        middle of its loop: with ``unseen_end``, the start of the first event of the stream with most events.

        It had been launched, is no copy from or to the host, and did not start on an idle device for longer than
        launches take, nor for as long as the recording had lasted when it was launched.
        """
        main = np.flatnonzero(self.stream == np.argmax(np.bincount(self.stream))) if len(self.start) else self.stream
        if not len(main):
            return self
        at = int(main[np.argmin(self.start[main])])
        path = copy_path(table.name_of(rows[at])) if table.kind[rows[at]] == Kind.MEMCPY else None
        if not self.launched[at] or (path is not None and path.host_memory is not None):
            return self
        start = int(self.start[at])
        launched = min(int(table.ends_ns(tree.launch[rows[at : at + 1]])[0]), start)
        idle_since = max(launched, int(self.end[self.start < start].max(initial=launched)))
        waited = start - idle_since
        is_unseen = waited > LONGEST_LATENCY_NS and launched - int(table.start_ns.min()) < waited
        return replace(self, unseen_end=start) if is_unseen else self


def _queued_before(launched: Bools, start: Ints, end: Ints, stream: Codes) -> Bools:
    """Which events were launched before recording began: those without a launch that ran first.

    A stream runs its work in order, so what it ran before its first event with a launch was in its queue earlier. On a
    stream without launches: what began before the last of these ended. None where no launches were recorded at all.
    """
    if launched.all() or not launched.any():
        return np.zeros(len(start), bool)
    first = np.full(int(stream.max()) + 1, _NEVER)
    np.minimum.at(first, stream[launched], start[launched])
    queued = ~launched & (start < first[stream]) & (first[stream] != _NEVER)
    horizon = max(int(start[launched].min()), int(end[queued].max(initial=_BEFORE_RECORDING)))
    return queued | (~launched & (first[stream] == _NEVER) & (start < horizon))


def step_of_events(steps: list[RecordedStep], launch: Ints) -> Codes:
    """The step whose host window holds each launch, or -1. A window ends where the next begins, the last by itself."""
    if not steps:
        return np.full(len(launch), -1, np.int32)
    starts = np.array([s.start_ns for s in steps], np.int64)
    index = (np.searchsorted(starts, launch, side="right") - 1).astype(np.int32)
    return np.where(launch <= steps[-1].end_ns, index, np.int32(-1))


def step_bounds(steps: list[RecordedStep], work: DeviceWork, step_of: Codes) -> tuple[Ints, Ints]:
    """(begins, ends) of steps that follow each other without a gap.

    A step begins when its host code does, or when the device has finished what was launched earlier, whichever is
    later; the last one ends when both its host code and the device work that it launched have ended. Of several streams
    the one with most events says when earlier work is finished: the others may run ahead or lag behind.
    """
    starts = np.array([s.start_ns for s in steps], np.int64)
    begins, inside = starts.copy(), step_of >= 0
    if inside.any():
        main = work.stream == np.argmax(np.bincount(work.stream[inside]))
        # How many steps had begun on the host at the launch: the work delays those after them
        begun = np.searchsorted(starts, work.launch[main], side="right")
        finished = np.full(len(steps) + 1, _BEFORE_RECORDING)
        np.maximum.at(finished, begun, work.end[main])
        if work.unseen_end is not None:
            finished[0] = max(int(finished[0]), work.unseen_end)
        begins = np.maximum(starts, np.maximum.accumulate(finished[:-1]))
    own = work.end[step_of == len(steps) - 1]
    last = max(steps[-1].end_ns, int(begins[-1]), int(own.max(initial=_BEFORE_RECORDING)))
    return begins, np.append(begins[1:], last)


def device_periods(work: DeviceWork, step_of: Codes, count: int) -> Ints:
    """From each step's first device event to the next one's, of the last to its end; -1 where one has none.

    On the stream with most events of steps, where a step has any there.
    """
    periods, inside = np.full(count, -1, np.int64), step_of >= 0
    if not inside.any():
        return periods
    main = work.stream == np.argmax(np.bincount(work.stream[inside]))
    first, last = np.full(count, _NEVER), np.full(count, _BEFORE_RECORDING)
    np.minimum.at(first, step_of[inside & main], work.start[inside & main])
    anywhere = np.full(count, _NEVER)
    np.minimum.at(anywhere, step_of[inside], work.start[inside])
    first = np.where(first == _NEVER, anywhere, first)
    np.maximum.at(last, step_of[inside], work.end[inside])
    known = (first[:-1] != _NEVER) & (first[1:] != _NEVER)
    periods[:-1][known] = (first[1:] - first[:-1])[known]
    if first[-1] != _NEVER:
        periods[-1] = last[-1] - first[-1]
    return periods


def waited_for_earlier(calls: Spans, window: tuple[int, int], work: DeviceWork) -> int:
    """How long (ns) the blocking ``calls`` of a host window waited for work from before recording."""
    earlier = int(work.end[work.before].max(initial=_BEFORE_RECORDING))
    if work.unseen_end is not None:
        earlier = max(earlier, work.unseen_end)
    start, end = calls
    chosen = (start >= window[0]) & (start < min(window[1], earlier))
    return union_ns(start[chosen], np.minimum(end[chosen], earlier))


def refill_spans(bounds: tuple[int, int], work: DeviceWork, first: Bools, longest: int) -> Spans:
    """The first ``longest`` ns of idle time between ``bounds`` that a full queue would not have had.

    ``first``: the events of the step. These are the gaps whose next event was launched after the device was free: up to
    its start, as the launch takes its time only because the queue was empty.
    """
    known = first | work.before
    opens, closes = idle_spans(work.start[known], work.end[known], *bounds)
    order = np.lexsort((work.launch[known], work.start[known]))
    start, launch = work.start[known][order], work.launch[known][order]
    empty = np.append(launch, _NEVER)[np.searchsorted(start, closes)] > opens
    opens, closes = opens[empty], closes[empty]
    before = np.cumsum(closes - opens) - (closes - opens)
    closes = np.minimum(closes, opens + np.maximum(longest - before, 0))
    kept = closes > opens
    return opens[kept], closes[kept]


# The last number of a name; in one pass, however many digits a damaged name has.
_NUMBER = re.compile(r"(?<!\d)(?P<number>\d++)(?P<rest>\D*+)\Z")
_STEM_END = "# :_-"
#: Times of old files are whole microseconds, so what follows may begin by that much earlier.
_CLOCK_NS = 1_000
#: What the profiler's own steps are called.
PROFILER_STEM = "ProfilerStep#"
#: Share of the device's work from which numbered annotations are steps.
LEAST_WORK = 0.5
_WORD = re.compile(r"[A-Z]?[a-z]++|[A-Z]+(?![a-z])")
#: What numbered parts of a step are called, and what steps are, in the singular.
_PART = re.compile(
    r"layer|block|stage|shard|chunk|bucket|head|expert|module|submodule|decoder|encoder|attention|attn|mlp|conv|linear"
    r"|norm|microbatch|phase|cond|while|fusion|rank|worker|partition|segment"
)
_STEP = re.compile(
    r"step|iteration|iter|batch|minibatch|epoch|decode|prefill|generate|token|request|frame|sample|run|trial|rollout"
    r"|repeat|loop"
)
#: Share of what other steps have from which a step was recorded whole.
_WHOLE = 0.9
#: What the row of work says that was in the queue as recording began.
BEFORE = "before the first step"


class NotSteps(Record, frozen=True, kw_only=True):
    """Numbered annotations that are not steps: they hold only ``held`` of the device work, or ``is_part``."""

    first: str
    last: str
    held: float
    is_part: bool


class FoundSteps(Record, frozen=True, kw_only=True):
    """The steps that annotations give, and what their names begin with; ``refused``: numbered ones that are none.

    ``name``: what a sentence calls them. ``of_engine``: whether they are the iterations of an inference engine;
    ``of_device``: whether the device recorded them, so that they say nothing of the host.
    """

    stem: str = ""
    steps: Sequence[RecordedStep] = ()
    name: str = ""
    of_engine: bool = False
    of_device: bool = False
    refused: NotSteps | None = None


class _Family(Record, frozen=True, kw_only=True, eq=False):
    """Annotations of one lane whose names differ only in their last number, in order of time."""

    stem: str
    rows: list[int]
    steps: list[RecordedStep]

    @property
    def covered_ns(self) -> int:
        return sum(s.end_ns - s.start_ns for s in self.steps)

    @property
    def is_numbered_on(self) -> bool:
        """At least two, not overlapping, with rising numbers."""
        following = itertools.pairwise(self.steps)
        return len(self.steps) > 1 and all(
            a.end_ns <= b.start_ns + _CLOCK_NS and a.number < b.number for a, b in following
        )


def find_steps(table: TraceTable, tree: OpTree, rows: RowColumn) -> FoundSteps:
    """``ProfilerStep#N``, else of the numbered host annotations that are steps those that cover most time.

    Steps are user annotations on one lane whose names differ only in their last number (``iteration 12``), at least two
    of them, not overlapping. Together they hold at least half of the work of the device events in ``rows`` (without
    any, of the host's ops): what was launched within them. And they are not parts of a step (``_is_part``). What XLA's
    profiler wrote as steps of a device comes before them.
    """
    families = sorted(_families(table), key=lambda family: -family.covered_ns)
    own = next((family for family in families if family.stem == PROFILER_STEM), None)
    if own is not None:
        return FoundSteps(stem=own.stem.rstrip(_STEM_END), steps=own.steps, name="ProfilerStep")
    on_device = _steps_on_device(table)
    if on_device and _Work.of(table, tree, rows, as_it_ran=True).share(on_device) >= LEAST_WORK:
        return FoundSteps(stem=XLA_STEPS, steps=on_device, name="steps of XLA", of_device=True)
    numbered = [family for family in families if family.is_numbered_on]
    return _numbered_steps(table, tree, numbered, _Work.of(table, tree, rows)) if numbered else FoundSteps()


def _numbered_steps(table: TraceTable, tree: OpTree, families: Sequence[_Family], work: _Work) -> FoundSteps:
    """The first of the families that are steps, else the first that is none, for being parts where one is."""
    refused: NotSteps | None = None
    for family in families:
        held = work.share(family.steps)
        is_part = held >= LEAST_WORK and _is_part(table, tree, family)
        if held >= LEAST_WORK and not is_part:
            stem = family.stem.rstrip(_STEM_END)
            return FoundSteps(stem=stem, steps=family.steps, name=stem or "numbered annotations")
        if refused is None or (is_part and not refused.is_part):
            first, last = (table.name_of(row) for row in (family.rows[0], family.rows[-1]))
            refused = NotSteps(first=first, last=last, held=held, is_part=is_part)
    return FoundSteps(refused=refused)


def _steps_on_device(table: TraceTable) -> list[RecordedStep]:
    """What XLA's profiler wrote as steps of a device; of several devices those that cover most time."""
    found: dict[int, list[RecordedStep]] = {}
    for row in table.ranges_on(XLA_STEPS).tolist():
        own, start = found.setdefault(int(table.lane[row]), []), int(table.start_ns[row])
        match = _NUMBER.search(table.name_of(row))
        number = int(match["number"]) if match is not None and len(match["number"]) <= 12 else len(own)
        own.append(RecordedStep(number=number, start_ns=start, end_ns=start + int(table.duration_ns[row])))
    best = max(found.values(), key=lambda steps: sum(s.end_ns - s.start_ns for s in steps), default=[])
    return sorted(best, key=lambda step: step.start_ns)


def _families(table: TraceTable) -> list[_Family]:
    found: dict[tuple[str, str, int], list[tuple[RecordedStep, int]]] = {}
    annotations = np.flatnonzero(table.kind == Kind.USER_ANNOTATION)
    numbered = {}
    for code in np.unique(table.name[annotations]).tolist():
        match = _NUMBER.search(name := table.names[code])
        if match is not None and len(match["number"]) <= 12:
            numbered[code] = name[: match.start()], match["rest"], int(match["number"])
    for row in annotations[np.isin(table.name[annotations], list(numbered))].tolist():
        stem, rest, number = numbered[int(table.name[row])]
        start = int(table.start_ns[row])
        step = RecordedStep(number=number, start_ns=start, end_ns=start + int(table.duration_ns[row]))
        found.setdefault((stem, rest, int(table.lane[row])), []).append((step, row))
    families = []
    for (stem, _, _), members in sorted(found.items()):
        members.sort(key=lambda member: (member[0].start_ns, member[0].number))
        steps, rows = zip(*members, strict=True)
        families.append(_Family(stem=stem, rows=list(rows), steps=list(steps)))
    return families


def holds_most_work(steps: Sequence[RecordedStep], table: TraceTable, tree: OpTree, rows: RowColumn) -> bool:
    """Whether at least half of the work of the device events in ``rows`` was launched within these steps."""
    return bool(steps) and _Work.of(table, tree, rows).share(steps) >= LEAST_WORK


class _Work(Record, frozen=True, kw_only=True, eq=False):
    """When work was launched, in order, and how much of it (ns) up to each, from 0 on."""

    launch: Ints
    so_far: Ints

    @classmethod
    def of(cls, table: TraceTable, tree: OpTree, rows: RowColumn, *, as_it_ran: bool = False) -> _Work:
        """Device events that were not in the queue as recording began; without any, ops that lie in no other.

        ``as_it_ran``: as if work was launched when it ran.
        """
        if len(rows):
            work = DeviceWork.of(table, tree, rows)
            work = work.as_it_ran() if as_it_ran else work
            launch, time = work.launch[~work.before], (work.end - work.start)[~work.before]
        else:
            ops = np.flatnonzero((table.kind == Kind.CPU_OP) & (tree.op_parent < 0))
            launch, time = table.start_ns[ops], table.duration_ns[ops].astype(np.int64)
        order = np.argsort(launch, kind="stable")
        return cls(launch=launch[order], so_far=np.concatenate((np.zeros(1, np.int64), np.cumsum(time[order]))))

    def share(self, steps: Sequence[RecordedStep]) -> float:
        """The part of it that was launched within steps that do not overlap; all of none."""
        first = np.searchsorted(self.launch, [s.start_ns for s in steps], side="left")
        last = np.searchsorted(self.launch, [s.end_ns for s in steps], side="left")
        whole = int(self.so_far[-1])
        return min(float((self.so_far[last] - self.so_far[first]).sum() / whole), 1.0) if whole else 1.0


def telling_word(stem: str) -> str:
    """The last word of a range's name that says whether it is a step or a part of one; empty without any.

    >>> telling_word("stage 1 step "), telling_word("micro batches "), telling_word("range ")
    ('step', 'microbatch', '')
    """
    words = [word.lower().removesuffix("s").replace("batche", "batch") for word in _WORD.findall(stem)]
    for word in reversed(words):
        if _PART.fullmatch(word) or _STEP.fullmatch(word):
            return f"micro{word}" if "micro" in words and word == "batch" else word
    return ""


def _is_part(table: TraceTable, tree: OpTree, family: _Family) -> bool:
    """Whether numbered annotations are parts of a step: by what they are called, else by what is round them.

    The word next to the number that is one of ``_PART`` or ``_STEP`` says it (``stage 1 step 7``). Where none does,
    they are parts if an op or an nn.Module called the first one, or another annotation is round all of them.
    """
    if word := telling_word(family.stem):
        return _PART.fullmatch(word) is not None
    above = tree.ancestors(family.rows[0])
    kind = table.kind[above]
    if (kind == Kind.CPU_OP).any() or any(
        table.name_of(row).startswith(MODULE_PREFIX) for row in above[kind == Kind.PYTHON_FUNCTION].tolist()
    ):
        return True
    wide = np.flatnonzero((table.kind == Kind.USER_ANNOTATION) & (table.lane == table.lane[family.rows[0]]))
    wide = wide[table.start_ns[wide] <= family.steps[0].start_ns]
    return bool((table.ends_ns(wide) >= family.steps[-1].end_ns).any())


def is_step_annotation(name: str, stem: str) -> bool:
    """Whether an annotation is one of the steps whose stem ``find_steps`` gave; never without steps (stem ``""``)."""
    match = _NUMBER.search(name)
    return match is not None and stem != "" and name[: match.start()].rstrip(_STEM_END) == stem


class StepTimes(Record, frozen=True, kw_only=True, eq=False):
    """When each step ran, in the trace's own clock (ns); docs/report.md has a picture.

    Steps follow each other: one begins with its host code, or when the device has finished earlier work
    (``on_device``: the host ran ahead), and ends where the next begins. ``left_out``: idle spans of the first step that
    only exist because recording began, ``waited_ns``: how long its host waited for work from before recording; neither
    is in a duration. ``busy_ns``: union of the step's own device events within it; ``outside_ns``: what of that union
    lies beside neighbors. ``host_period_ns``: from host start to host start, ``device_period_ns``: from first kernel
    to first kernel (-1: unknown); ``host_work_ns``: how long its host code took, without waits for the device.
    ``complete`` is False for last steps in which the recording ended: they lack kernels that they launched, or the last
    one has fewer than 90 % of the median number of device events.
    ``before_events``: how many events were in the queue as recording began, from ``before_start_ns`` on, for
    ``before_ns`` together, ``was_before`` which of all device events; they are in no step. ``unseen_ns``: how long
    after the first step's host code began the device was still at earlier work that was not recorded.
    """

    steps: tuple[RecordedStep, ...]
    start_ns: Ints
    end_ns: Ints
    busy_ns: Ints
    outside_ns: Ints
    device_events: Ints
    complete: npt.NDArray[np.bool_]
    on_device: npt.NDArray[np.bool_]
    host_period_ns: Ints
    host_work_ns: Ints
    device_period_ns: Ints
    left_out: Spans
    waited_ns: int
    before_events: int
    before_start_ns: int
    before_ns: int
    unseen_ns: int
    was_before: npt.NDArray[np.bool_]
    of_device: bool = False

    @classmethod
    def of(cls, found: FoundSteps, step_of: Codes, work: DeviceWork, waits: Spans, kept: Floats) -> StepTimes:
        """From the step index (or -1) of every device event, and the spans of calls that wait for the device.

        ``kept``: of each step the share of the kernels that it launched which were recorded. Steps that a device
        recorded last as long as it says; what is between them is left out.
        """
        steps = list(found.steps)
        n, inside = len(steps), step_of >= 0
        count = np.bincount(step_of[inside], minlength=n).astype(np.int64)
        waited = waited_for_earlier(waits, _first_window(steps), work) if n else 0
        begin, end, left_out = _as_recorded(steps) if found.of_device else _bounds(steps, step_of, work, waited)
        host = np.array([s.start_ns for s in steps], np.int64)
        host_end = np.append(host[1:], max(steps[-1].end_ns, int(end[-1]))) if n else host
        of, start, stop = step_of[inside], work.start[inside], work.end[inside]
        first, last = np.clip(start, begin[of], end[of]), np.clip(stop, begin[of], end[of])
        busy = union_by_group(of, first, last, n)
        complete = np.ones(n, bool)
        if n > 1 and count.any():
            complete = _before_losses(kept)
            complete[-1] &= count[-1] >= _WHOLE * np.median(count[complete])
        return cls(
            steps=tuple(steps),
            start_ns=begin,
            end_ns=end,
            busy_ns=busy,
            outside_ns=union_by_group(of, start, stop, n) - busy,
            device_events=count,
            complete=complete,
            on_device=begin > host,
            host_period_ns=host_end - host,
            host_work_ns=_host_work(steps, waits),
            device_period_ns=device_periods(work, step_of, n),
            left_out=left_out,
            waited_ns=waited,
            before_events=int(work.before.sum()),
            before_start_ns=int(work.start[work.before].min(initial=np.iinfo(np.int64).max)),
            before_ns=union_ns(work.start[work.before], work.end[work.before]),
            unseen_ns=max(int(begin[0] - host[0]), 0) if n and work.unseen_end is not None else 0,
            was_before=work.before,
            of_device=found.of_device,
        )

    @property
    def duration_ns(self) -> Ints:
        """How long each step lasts, without what is left out of the first one."""
        duration = self.end_ns - self.start_ns
        if self.of_device:
            return duration
        duration[:1] -= int((self.left_out[1] - self.left_out[0]).sum())
        return duration

    def spans(self, at: int) -> Spans:
        """The step at a position, in parts where something is left out of it."""
        whole = self.start_ns[at : at + 1], self.end_ns[at : at + 1]
        parts = whole if at else idle_within(*self.left_out, whole)
        return parts if len(parts[0]) else (whole[0], whole[0])

    def __len__(self) -> int:
        return len(self.steps)

    def frame(self, base_ns: int) -> pd.DataFrame:
        """One row per step; ``start_us`` is relative to ``base_ns``."""
        duration, left_out = self.duration_ns, np.zeros(len(self), np.int64)
        left_out[:1] = 0 if self.of_device else (self.left_out[1] - self.left_out[0]).sum()
        found = pd.DataFrame(
            {
                "step": [s.number for s in self.steps],
                "start_us": (self.start_ns - base_ns) / NS_PER_US,
                "duration_us": duration / NS_PER_US,
                "busy_us": self.busy_ns / NS_PER_US,
                "idle_us": (duration - self.busy_ns) / NS_PER_US,
                "device_events": self.device_events,
                "complete": self.complete,
                "begins_with": np.where(self.on_device, "device", "host").astype(object),
                "host_period_us": self.host_period_ns / NS_PER_US,
                "host_work_us": self.host_work_ns / NS_PER_US,
                "device_period_us": np.where(self.device_period_ns < 0, np.nan, self.device_period_ns / NS_PER_US),
                "outside_us": self.outside_ns / NS_PER_US,
                "left_out_us": left_out / NS_PER_US,
            }
        )
        if not self.of_device:
            return found
        return found.assign(host_period_us=np.nan, host_work_us=np.nan, recorded_us=self.recorded_us)

    @property
    def recorded_us(self) -> Floats:
        """How long each annotation lasts."""
        return np.array([s.end_ns - s.start_ns for s in self.steps], np.float64) / NS_PER_US

    def sheet(self, base_ns: int) -> pd.DataFrame:
        """``frame``, and above it a row without a number for the work that was in the queue as recording began."""
        frame = self.frame(base_ns)
        if not self.before_events:
            return frame
        row = {
            "start_us": (self.before_start_ns - base_ns) / NS_PER_US,
            "busy_us": self.before_ns / NS_PER_US,
            "device_events": self.before_events,
            "begins_with": BEFORE,
        }
        return type(frame)({name: [row.get(str(name)), *frame[name]] for name in frame.columns}, dtype=object)


def _host_work(steps: list[RecordedStep], waits: Spans) -> Ints:
    """Host time (ns) of each step up to where the next begins, without calls that wait for the device."""
    of = step_of_events(steps, waits[0])
    inside = of >= 0
    start, end, of = waits[0][inside], waits[1][inside], of[inside]
    ends = np.array([*(s.start_ns for s in steps[1:]), *(s.end_ns for s in steps[-1:])], np.int64)
    waited = union_by_group(of, start, np.minimum(end, ends[of]), len(steps))
    return ends - np.array([s.start_ns for s in steps], np.int64) - waited


def _first_window(steps: list[RecordedStep]) -> tuple[int, int]:
    """The host window of the first step."""
    return steps[0].start_ns, steps[1].start_ns if len(steps) > 1 else steps[0].end_ns


def _as_recorded(steps: list[RecordedStep]) -> tuple[Ints, Ints, Spans]:
    """(begins, ends, what lies between two of them)."""
    begin, end = (np.array([getattr(step, key) for step in steps], np.int64) for key in ("start_ns", "end_ns"))
    apart = begin[1:] > end[:-1]
    return begin, end, (end[:-1][apart], begin[1:][apart])


def _bounds(steps: list[RecordedStep], step_of: Codes, work: DeviceWork, waited: int) -> tuple[Ints, Ints, Spans]:
    """(begins, ends, what is left out of the first step).

    Work from before recording delays the first step; where its host waited for that work, the queue ran empty, and the
    idle time until the host had filled it again is of the recording, not of the loop. A loop would repeat the longer of
    the host's time without that wait and the device's without that idle time.
    """
    none = np.zeros(0, np.int64), np.zeros(0, np.int64)
    if not steps:
        return (*none, none)
    begin, end = step_bounds(steps, work, step_of)
    window = _first_window(steps)
    if begin[0] == window[0]:
        return begin, end, none
    host = window[1] - window[0] - waited
    if len(steps) == 1:
        begin[0] = min(int(begin[0]), int(end[0]) - host)
    if not waited or work.unseen_end is not None:
        return begin, end, none
    spare = int(end[0] - begin[0]) - host
    return begin, end, refill_spans((int(begin[0]), int(end[0])), work, step_of == 0, spare)


def device_steps(
    table: TraceTable, tree: OpTree, rows: RowColumn, found: FoundSteps | None = None
) -> tuple[str, StepTimes, Codes]:
    """The steps of a trace (annotation stem, times) and the step of each device event in ``rows``, -1 outside of them.

    A device event belongs to the step in which it was launched; one without a recorded launch to that in which it
    started, unless it was in the queue as recording began: then to none. ``found``: the steps, where they are not those
    of ``find_steps``.
    """
    found = found or find_steps(table, tree, rows)
    steps = list(found.steps)
    work = DeviceWork.of(table, tree, rows)
    if found.of_engine:
        work = work.with_unseen(table, tree, rows)
    if found.of_device:
        work = work.as_it_ran()
    step_of = step_of_events(steps, work.launch)
    if found.of_device:
        ends = np.array([step.end_ns for step in steps], np.int64)
        step_of = np.where((step_of >= 0) & (work.start < ends[step_of]), step_of, np.int32(-1))
    calls = np.flatnonzero(waiting_calls(table, tree) if found.of_engine else blocking_calls(table))
    waits = table.start_ns[calls], table.start_ns[calls] + table.duration_ns[calls]
    return found.stem, StepTimes.of(found, step_of, work, waits, _kept(steps, table, tree)), step_of


def _before_losses(kept: Floats) -> npt.NDArray[np.bool_]:
    """All steps but the last ones that lack a tenth more of their kernels than others; the one before these too if it
    lacks any more, as long as another one remains.
    """
    whole = np.flatnonzero(kept >= _WHOLE * kept.max())
    lost = whole[-1] + 1 < len(kept) and len(whole) > 1 and kept[whole[-1]] < kept.max()
    return np.arange(len(kept)) <= whole[-2 if lost else -1]


def _kept(steps: list[RecordedStep], table: TraceTable, tree: OpTree) -> Floats:
    """Of each step the share of the kernels that it launched which were recorded; 1 where it launched none."""
    if len(steps) < 2:
        return np.ones(len(steps))
    launches, done = kernel_launches(table, tree)
    of = step_of_events(steps, table.start_ns[launches])
    count, lost = (np.bincount(of[of >= 0], weights[of >= 0], len(steps)) for weights in (np.ones(len(of)), ~done))
    return 1 - lost / np.maximum(count, 1)


def complete_steps(times: StepTimes, selected: Sequence[int] = ()) -> list[int]:
    """Positions of the ``selected`` steps (none: of all) that were recorded whole; all of those where none was."""
    chosen = list(selected) or list(range(len(times)))
    return [i for i in chosen if times.complete[i]] or chosen


def typical_step(times: StepTimes, candidates: Sequence[int]) -> int:
    """The one of ``candidates`` whose duration is nearest their median, the first of equals."""
    duration = times.duration_ns
    median = np.median(duration[list(candidates)])
    return min(candidates, key=lambda i: (abs(duration[i] - median), i))


def select_steps(wanted: str, times: StepTimes, steady: Sequence[int] = ()) -> list[int]:
    """Positions of the steps that ``3``, ``3-5`` or ``steady`` names.

    ``steady``: these positions, else complete steps without the first one (warm-up), as long as that leaves any.
    UsageError for a range that is not in the trace.
    """
    numbers = [s.number for s in times.steps]
    if not numbers:
        raise UsageError("the trace has no steps: omit --steps, or record with profiler.step() in each iteration")
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
