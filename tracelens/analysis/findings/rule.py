"""What a rule is made of: the trace as it sees it (``Observed``), its candidates, its mark (``@finding``)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pandas as pd

from tracelens.analysis.attribution.activity import at_a_time
from tracelens.analysis.attribution.calls import launch_floor_us
from tracelens.analysis.grouping import Codes
from tracelens.analysis.idle.idle_time import CAUSES, IdleParts, WindowTime
from tracelens.analysis.intervals import Bools, Floats, Ints
from tracelens.analysis.sheets import perf_summary
from tracelens.analysis.sheets.context import SheetContext
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.backends.base import System
from tracelens.backends.chain import chain
from tracelens.hardware import HardwareSpec
from tracelens.perf_models.base import PerfModel, WorkColumns
from tracelens.perf_models.gemm import GEMM
from tracelens.registry import Claim, mark
from tracelens.types.records import Record
from tracelens.types.signature import OpSignature
from tracelens.types.units import NS_PER_US, counted, shortened, takes


class Claimed(Record, frozen=True, kw_only=True, eq=False):
    """Parts of the window and how much of each (ns) can go: at least ``low``, by estimate ``gain``, at most ``high``.

    ``part`` numbers the parts of ``WindowTime``, each once: device events, then idle time. ``spares_launches``: the
    host has less to launch, so that what it launches late comes earlier too. ``is_beside``: host work that can go on
    beside the rest of the step, all of it at once: no step is shorter than it.
    """

    part: Codes
    low_ns: Floats
    gain_ns: Floats
    high_ns: Floats
    spares_launches: bool = False
    is_beside: bool = False

    def __add__(self, other: Claimed) -> Claimed:
        """Both, which share no part."""
        columns = {key: np.concatenate((getattr(self, key), getattr(other, key))) for key in _COLUMNS}
        return Claimed(
            **columns,
            spares_launches=self.spares_launches and other.spares_launches,
            is_beside=self.is_beside and other.is_beside,
        )

    def among(self, free: npt.NDArray[np.bool_]) -> Claimed:
        """The parts that are free."""
        at = free[self.part]
        return self if at.all() else replace(self, **{key: getattr(self, key)[at] for key in _COLUMNS})


#: What a claim says of each of its parts.
_COLUMNS = ("part", "low_ns", "gain_ns", "high_ns")


class Candidate(Record, frozen=True, kw_only=True, eq=False):
    """Something that may become a finding. ``why`` is the sentence, ``figures`` its numbers.

    ``row``: table row of an op (or launch) that shows where it is; None where it is everywhere. ``op``: its name, where
    the finding speaks of one op; ``shapes``: of all its calls, where these differ from those of ``row``. ``computed``,
    ``certainty``, ``remedy``, ``command``: instead of those of the rule. ``is_priced``: whether anything says what
    going without the claimed time takes; of an unknown cause nothing does, so that the finding says how long it is and
    has no gain.
    """

    why: str
    claimed: Claimed
    computed: str = ""
    figures: tuple[Said, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    certainty: str = ""
    op: str | None = None
    row: int | None = None
    shapes: str | None = None
    remedy: str | None = None
    command: str | None = None
    is_priced: bool = True


Part = TypeVar("Part")

#: Share of the window below which a gain is not worth a line.
MIN_GAIN = 0.005
#: Ends of the names of columns that no rule asks for: statistics, and how a table shows a call.
_LEFT_OUT = ("_median", "_std", "_min", "_max", "_details_short", "call_stack")
#: Rows of a sheet that are named as proof.
_MOST_ROWS = 10


class Observed:
    """The complete steps of a trace, or all of it without steps, as the report has it.

    ``context`` has everything else: ``context.frames[title]`` (sheets), ``context.host`` (calls of the host),
    ``context.queued`` (launches), ``context.attribution`` (phases, readings), ``context.recording``.
    """

    def __init__(self, context: SheetContext) -> None:
        self.context = context
        #: All events of the file, a row each, and who called whom.
        self.table, self.tree = context.trace.table, context.trace.tree
        #: What estimates are for.
        self.device: HardwareSpec | None = context.recording.device
        #: The device events, and the category of each.
        self.activity, self.category = context.activity, context.event_category
        #: Which of ``rows`` each device event is counted in; -1 for collectives and unlinked events.
        self.row_of_event: Codes = context.priced.row_of_event
        #: By what sums are divided; 1 without steps.
        self.steps = max(1, len(context.selected))
        #: Length of the steps together.
        self.window_ns = context.timeline.total_ns
        self._columns: dict[str, npt.NDArray[Any]] = {}
        self._parts: dict[Callable[[Observed], Any], Any] = {}

    def once(self, part: Callable[[Observed], Part]) -> Part:
        """What ``part`` makes of this, kept for the next rule that looks at it."""
        if part not in self._parts:
            self._parts[part] = part(self)
        return self._parts[part]

    @property
    def hbm_tb_s(self) -> float | None:
        """The rate of the device's memory, where it is known."""
        return None if self.device is None or self.device.hbm is None else self.device.hbm.tb_s

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Every distinct call with its work and its estimate: ``unified_perf_summary`` without spreads."""
        # Arrays of one kind lie together, which makes rows quick to take
        keys = [str(key) for key in self.context.priced.rows if not str(key).endswith(_LEFT_OUT)]
        return pd.DataFrame({key: self.column(key) for key in keys}, copy=True)

    def column(self, key: str) -> npt.NDArray[Any]:
        """A column of ``rows``: many times quicker than the frame, for a rule that looks whether there is something."""
        if key not in self._columns:
            self._columns[key] = self.context.priced.rows[key].to_numpy()
        return self._columns[key]

    def named(self, *names: str) -> Bools:
        """Which of ``rows`` have one of these names."""
        return np.array([name in names for name in self.column("name").tolist()], np.bool_)

    def rows_where(self, wanted: npt.ArrayLike, fits: Callable[[OpSignature], bool] | None = None) -> pd.DataFrame:
        """Those of ``rows`` (a mask) with arguments that ``fits`` accepts (sizes are integers, or were not recorded).

        None where all of the mask together take too little time to be worth a finding.
        """
        mask = np.asarray(wanted, np.bool_)
        worth = self.column("kernel_us_sum")[mask].sum() > MIN_GAIN * self.window_ns / NS_PER_US
        rows = self.rows[mask] if worth else self.rows.iloc[:0]
        if fits is None:
            return rows
        calls = [self.table.signature_of(row) for row in rows["example_row"].tolist()]
        return rows[np.array([fits(call) for call in calls], np.bool_)]

    @cached_property
    def idle(self) -> IdleParts:
        """Parts of idle time, each with one cause (``CAUSES``) and the row of the launch or event that was late."""
        return self.context.idle_parts

    @cached_property
    def idle_ns(self) -> Ints:
        """How long each part of ``idle`` is."""
        return self.idle.end - self.idle.start

    @cached_property
    def time(self) -> WindowTime:
        """The window in parts; every claim takes some of them."""
        return WindowTime.of(self.context.own_time, self.idle)

    @cached_property
    def own_ns(self) -> Ints:
        """Of each device event the time that nothing else keeps the device busy for."""
        return self.time.own_ns[: self.time.events]

    @cached_property
    def is_torch(self) -> bool:
        """Whether an op or a kernel is PyTorch's own."""
        return any("aten::" in name or "at::native" in name for name in self.table.names)

    @cached_property
    def is_xla(self) -> bool:
        """Whether XLA's own profiler wrote the file, and nothing in it is PyTorch's."""
        return self.table.recorder.file.startswith("an XPlane profile") and not self.is_torch

    @cached_property
    def kernels_of_op(self) -> Codes:
        """How many device events each table row launched."""
        op = self.activity.op
        return np.bincount(op[op >= 0], minlength=len(self.table)).astype(np.int32)

    @cached_property
    def device_us(self) -> float:
        """Summed durations of the device events."""
        return float(self.activity.duration.sum()) / NS_PER_US

    def events_of(self, rows: Iterable[Any]) -> Ints:
        """The device events that are counted in these of ``rows``."""
        wanted = np.zeros(len(self.column("name")) + 1, bool)
        wanted[np.fromiter(rows, np.int64)] = True
        return np.flatnonzero(wanted[self.row_of_event])

    def at_a_time(self, events: Ints) -> float:
        """How many of these device events run at a time on one device, on average while any of them runs."""
        group = np.full(len(self.activity), -1, np.int32)
        group[events] = 0
        return float(at_a_time(self.activity, self.context.recorded.table, group, 1)[0])

    def kernels(
        self, events: npt.NDArray[Any], share: Floats | float = 1.0, *, low: Floats | float | None = None,
        high: Floats | float | None = None, spares_launches: bool = False,
    ) -> Claimed:  # fmt: skip
        """Claims device events (a mask, or positions): ``share`` of the time that they take together can go.

        ``low``, ``high``: the shares that go at least and at most, by default ``share``. Never more of an event than is
        its own.
        """
        at = (np.flatnonzero(events) if events.dtype == np.bool_ else events).astype(np.int32)
        own = self.own_ns[at]
        # How long each of these events ran beyond all of them that began before it: together their union.
        start, end = self.activity.start[at], self.activity.end[at]
        found: Ints = end - start
        if (own < found).any():
            order = np.lexsort((-end, start))
            until = np.maximum.accumulate(end[order])
            found[order[1:]] = np.minimum(found[order[1:]], np.maximum(end[order[1:]] - until[:-1], 0))
        took = found.astype(np.float64)

        def amount(part: Floats | float) -> Floats:
            return np.clip(took * np.nan_to_num(part), 0, own)

        gain_ns = amount(share)
        low_ns, high_ns = (gain_ns if part is None else amount(part) for part in (low, high))
        return Claimed(part=at, low_ns=low_ns, gain_ns=gain_ns, high_ns=high_ns, spares_launches=spares_launches)

    def calls(
        self, rows: pd.DataFrame, share: Any = 1.0, *, low: Any = None, high: Any = None, spares_launches: bool = False
    ) -> Claimed:
        """Claims the kernels of all calls of some of ``rows``; shares are numbers, or one per row."""
        events = self.events_of(rows.index)

        def of_event(shares: Any) -> Floats:
            of_row = np.zeros(len(self.column("name")))
            of_row[rows.index] = np.clip(shares, 0, 1)
            return of_row[self.row_of_event[events]]

        least, most = (None if shares is None else of_event(shares) for shares in (low, high))
        return self.kernels(events, of_event(share), low=least, high=most, spares_launches=spares_launches)

    def idle_time(self, parts: Bools, share: Floats | float = 1.0, *, low: float | None = None) -> Claimed:
        """Claims parts of ``idle`` (a mask): ``share`` of each can go (one for all, or one each), at least ``low``."""
        own = self.idle_ns[parts].astype(np.float64)
        gain_ns = own * share
        at = np.flatnonzero(parts).astype(np.int32) + np.int32(self.time.events)
        return Claimed(part=at, low_ns=gain_ns if low is None else own * low, gain_ns=gain_ns, high_ns=gain_ns)

    def idle_of(self, *causes: str) -> Bools:
        """Which parts of ``idle`` have one of these causes."""
        wanted = np.array([cause in causes for cause in CAUSES], np.bool_)
        return wanted[self.idle.cause]

    def expected_us(self, models: Sequence[PerfModel]) -> tuple[Floats, Floats]:
        """(achievable by the tile model, roofline) of one call of each in one kernel; NaN where not known."""
        unknown = np.full(len(models), np.nan)
        if self.device is None or not models:
            return unknown, unknown
        system = System.of_device(self.device).at_clock(self.context.options.clock_mhz)
        columns = WorkColumns.of(models)
        least, expected = (chain(name).estimate_many(columns, system).time_us for name in ("roofline", "tile"))
        least = np.where(np.isnan(least), np.nan, np.fmax(least, launch_floor_us(self.device)))
        return np.fmax(expected, least), least

    def evidence(self, rows: Iterable[Any], most: int = _MOST_ROWS) -> tuple[Evidence, ...]:
        """The first of these of ``rows``, as proof."""
        keys, at = ("name", "category", "input_dims"), [int(row) for row in rows][:most]
        columns = (self.column(key)[at].tolist() for key in keys)
        return tuple(
            Evidence(sheet=perf_summary.UNIFIED_PERF_SUMMARY_TITLE, row=dict(zip(keys, values, strict=True)))
            for values in zip(*columns, strict=True)
        )

    def evidence_of(self, events: Ints) -> tuple[Evidence, ...]:
        """The first of ``rows`` that these device events are counted in, as proof."""
        rows = self.row_of_event[events]
        return self.evidence(np.unique(rows[rows >= 0]))

    def example_of(self, row: Any) -> int:
        """Table row of one of the calls of a row of ``rows``."""
        return int(self.column("example_row")[int(row)])

    @cached_property
    def gemms(self) -> tuple[pd.DataFrame, npt.NDArray[np.object_]]:
        """Those of ``rows`` that are one matrix product and ran, and the perf model of each."""
        rows = self.rows_where((self.column("model") == GEMM.__name__) & (self.column("kernel_us_sum") > 0))
        readings = self.context.attribution.readings
        codes = readings.code_of(rows["example_row"].to_numpy(np.int64)).tolist()
        models = np.array([readings.readings[code].model if code >= 0 else None for code in codes], object)
        is_gemm = np.array([isinstance(model, GEMM) for model in models], np.bool_)
        return rows[is_gemm], models[is_gemm]

    def shapes(self, row: int, most: int = 40) -> str:
        """The shapes of the tensors of the call at a table row, as far as they fit."""
        shapes = self.table.signature_of(row).shapes or ()
        return shortened(", ".join(str(shape) for shape in shapes if shape), most)

    def share_text(self, time_us: float) -> str:
        """What share of the summed durations of all device events this is."""
        return f"{100 * time_us / max(self.device_us, 1e-9):.0f} % of GPU time"

    def gpu_share(self, time_us: float) -> Said:
        """The number that ``share_text`` prints."""
        return Said(what="share of GPU time", value=time_us / max(self.device_us, 1e-9), unit="share")


def candidate_of_calls(
    seen: Observed, rows: pd.DataFrame, what: str, rest: Candidate, plural: str = "", figure: str = ""
) -> Iterator[Candidate]:
    """``rest``: its sentence gets the number and share of ``rows`` before it, and the rows as evidence.

    ``figure``: what their number is called, by default ``what``. None where there are no rows.
    """
    if rows.empty:
        return
    calls, time_us = int(rows["operation_count"].sum()), float(rows["kernel_us_sum"].sum())
    yield replace(
        rest,
        why=f"{counted(calls, what, plural)} {takes(calls)} {seen.share_text(time_us)}{rest.why}",
        figures=(Said(what=figure or what, value=calls, unit="count"), seen.gpu_share(time_us), *rest.figures),
        evidence=seen.evidence(rows.index),
        row=seen.example_of(rows.index[0]),
    )


F = TypeVar("F", bound=Callable[..., Any])


class Advice(Record, frozen=True, kw_only=True):
    """What a rule says of its findings, for the report and for its section of docs/findings.md.

    ``sees``, ``costs`` (why it costs time) and ``wrong_when`` (when the remedy brings nothing) are whole sentences;
    ``remedy`` says what to do, in at most two lines of a terminal, ``in_xla`` that in a program that XLA compiled where
    it is something else, ``otherwise`` that in other cases. ``command``: what to type next, with ``TRACE`` where the
    trace's name goes; empty where nothing helps. What is ``is_general`` leaves to other rules what they see too.
    ``computed`` says how the gain is, and ``certainty`` (``high``, ``medium``, ``low``) how far to trust it.
    """

    sees: str
    costs: str
    remedy: str
    wrong_when: str
    references: tuple[str, ...] = ()
    command: str = ""
    is_general: bool = False
    in_xla: str = ""
    computed: str = ""
    certainty: str = "medium"
    otherwise: dict[str, str] = msgspec.field(default_factory=dict)


class Rule(Record, frozen=True, kw_only=True):
    """``kind`` is the id of its findings; where one id has several rules, with the cause or bound behind a colon."""

    kind: str
    advice: Advice
    candidates: Callable[[Observed], Iterable[Candidate]]

    @classmethod
    def of(cls, claim: Claim) -> Rule:
        """From a marked function, under its kind."""
        advice = claim.options.get("advice") or built_in_advice()[claim.key]
        return cls(kind=claim.key, advice=advice, candidates=claim.target)

    @property
    def id(self) -> str:
        """The kind without its cause or bound."""
        return self.kind.partition(":")[0]


class RuleFailure(Record, frozen=True, kw_only=True):
    """A rule that raised, ran too long or claimed what is not there: it has no findings, the report goes on."""

    kind: str
    origin: str
    error: str


def finding(kind: str, advice: Advice) -> Callable[[F], F]:
    """Marks ``function(seen) -> candidates`` as the rule ``kind``; ``seen`` is what a trace shows (``Observed``)."""
    return mark("finding", kind, advice=advice)


def built_in(kind: str) -> Callable[[F], F]:
    """Marks a rule of tracelens, whose advice is the table ``kind`` of ``advice.toml``."""
    return mark("finding", kind)


@cache
def built_in_advice() -> dict[str, Advice]:
    """What each rule of tracelens says, by its kind."""
    tables = tomllib.loads(Path(__file__).with_name("advice.toml").read_text(encoding="utf-8"))
    return {kind: Advice(**says) for kind, says in tables.items()}


def otherwise(kind: str, case: str | None) -> str:
    """The remedy of a rule of tracelens in a case of its own; empty where it has none for that."""
    return built_in_advice()[kind].otherwise.get(case or "", "")
