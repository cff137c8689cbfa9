"""What a comparison found: rows that add up to the change of the step, and what they say in words."""

from __future__ import annotations

from tracelens.types.records import Record

#: The category of time in which a device ran nothing.
IDLE = "(idle)"
#: The category of what device events do at the same time, where only their summed time is known.
AT_ONCE = "(at the same time)"
#: The cause of a row of which nothing changed.
UNCHANGED = "unchanged"
#: The cause of what chance explains.
NOISE = "noise"
#: All compute-bound calls of the same kernels changed alike.
CLOCK = "clock"
#: So did all others.
EVERYTHING = "everything"
#: One side quantizes what a collective exchanges.
QUANTIZATION = "quantization"
#: The ranks wait for one of them.
LATE = "late"
#: It is so on some ranks alone, or the others wait for these.
SOME_RANKS = "some ranks"
#: A part of the model runs more or less often.
REPEATS = "repeats"
#: What ran op by op became part of a compiled region, or the other way round.
COMPILED = "compiled"
#: The same kernels stand under other ops, in a recording whose launches are not timed with its ops.
ELSEWHERE = "elsewhere"
REMOVED, ADDED, FUSED, SPLIT, REPLACED = "removed", "added", "fused", "split", "replaced"
CALLS, WORK, TYPE, KERNEL, SPEED, OVERLAP, WAITING = "calls", "work", "type", "kernel", "speed", "overlap", "waiting"
#: Times are multiples of 2**-30 ms (a femtosecond), so that sums of them are exact in any order.
_GRID = 2.0**30


def on_grid(ms: float) -> float:
    """A time in ms that adds up without rounding."""
    return round(ms * _GRID) / _GRID


class KernelShare(Record, frozen=True, kw_only=True):
    """A kernel of a row: how often a step runs it, and for how long in all; half of that in ones up to ``median_us``.

    ``stalls``: how many of them took over ten times their median, and for how long; None where that is not known.
    """

    name: str
    count: float
    ms: float
    median_us: float
    stalls: tuple[float, float] | None = None


class RowSide(Record, frozen=True, kw_only=True):
    """A row on one side, per step. ``ms``: its part of the step; ``kernel_ms``: of its kernels, hidden ones included.

    Rates are over the kernel time of calls of known work, None where none is known; ``of_roofline`` is estimated over
    measured time.
    """

    ops: tuple[str, ...]
    calls: float
    ms: float
    kernel_ms: float
    kernels: tuple[KernelShare, ...] = ()
    shapes: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    tflops_s: float | None = None
    hbm_tb_s: float | None = None
    of_roofline: float | None = None
    flops: float | None = None
    bound: str | None = None


class ComparedRow(Record, frozen=True, kw_only=True):
    """Calls of A and what they are in B; of a row that one side alone has the other is None.

    ``match``: how they were found to be the same; ``cause``: what changed, in one word; ``why``: in a few.
    ``low_ms``, ``high_ms``: the interval in which the change lies, None where it cannot be said. ``of_ranks_ms``: where
    some ranks alone changed, the mean change of these; None of other rows.
    """

    name: str
    category: str
    match: str
    module: str | None
    a: RowSide | None
    b: RowSide | None
    cause: str
    why: str
    low_ms: float | None = None
    high_ms: float | None = None
    of_ranks_ms: float | None = None

    @property
    def change_ms(self) -> float:
        return (self.b.ms if self.b else 0.0) - (self.a.ms if self.a else 0.0)

    @property
    def is_idle(self) -> bool:
        return self.category == IDLE

    @property
    def is_changed(self) -> bool:
        """True if time, op or kernel differ."""
        return self.change_ms != 0 or self.cause != UNCHANGED


class Change(Record, frozen=True, kw_only=True):
    """Rows that changed for one reason, as a sentence; ``low_ms`` and ``high_ms`` as of a row.

    ``category``: that of all of them, empty where they are of several.
    """

    text: str
    change_ms: float
    cause: str
    category: str
    rows: tuple[int, ...]
    low_ms: float | None = None
    high_ms: float | None = None

    @property
    def is_noise(self) -> bool:
        """Whether chance explains it: the interval holds no change at all."""
        return self.low_ms is not None and self.high_ms is not None and self.low_ms <= 0 <= self.high_ms


class RankChange(Record, frozen=True, kw_only=True):
    """A rank that both sides have, per step: its time outside of collectives, and that in them alone.

    ``own_ms``: what it computes and copies, and its idle time; ``exposed_ms``: in which it did nothing but communicate.
    ``low_ms``, ``high_ms``: bounds of the change of its own time, together with those of all ranks. ``is_alone``:
    whether that changed on this rank, or on few, while the others are as before.
    """

    rank: int
    is_alone: bool
    a_own_ms: float
    b_own_ms: float
    a_exposed_ms: float
    b_exposed_ms: float
    low_ms: float | None
    high_ms: float | None

    @property
    def change_ms(self) -> float:
        return self.b_own_ms - self.a_own_ms


class EnergyCompared(Record, frozen=True, kw_only=True):
    """J of a device per step (without steps: of the window) in A and in B, and its mean watts.

    ``kind``: ``modelled`` (docs/energy.md), between ``a_low_j`` and ``a_high_j``, or ``measured``, by samples on both
    sides; never one against the other. ``low_j``, ``high_j``: bounds of the change that chance leaves, None where one
    step on either side does not say them. ``a_idle_j``: of those that a model says, those of waiting.
    """

    kind: str
    a_j: float
    b_j: float
    a_w: float
    b_w: float
    low_j: float | None = None
    high_j: float | None = None
    a_low_j: float | None = None
    a_high_j: float | None = None
    b_low_j: float | None = None
    b_high_j: float | None = None
    a_idle_j: float | None = None
    b_idle_j: float | None = None

    @property
    def change_j(self) -> float:
        return self.b_j - self.a_j


class SideSummary(Record, frozen=True, kw_only=True):
    """One side as a whole: what it was recorded on, and its step (without steps: its window).

    ``coverage``: of the kernel time of computation, the share in calls of known work; that of communication depends on
    who waits for whom. None where nothing is computed.
    """

    name: str
    device: str
    torch: str | None
    files: int
    ranks: int
    runs: int
    steps: int
    step_ms: float
    kernel_ms: float
    busy_ms: float
    coverage: float | None
    has_steps: bool


class GateResult(Record, frozen=True, kw_only=True):
    """What a gate says. ``value``: the change, in the gate's unit; ``low``, ``high``: its bounds.

    ``significant``: whether chance does not explain it; None where one step on either side says nothing of chance, so
    that the size alone decides.
    """

    gate: str
    passed: bool
    value: float
    unit: str
    significant: bool | None
    low: float | None
    high: float | None
    text: str


#: Changes that a comparison shows of itself.
_SHOWN = 5


class Comparison(Record, frozen=True, kw_only=True):
    """B against A. ``matched_share``: of each side's kernel time, the part in rows that both have.

    ``rows`` are those that changed; their changes add up to ``change_ms``. ``unchanged``: the others. ``ranks``: where
    both sides have the same. ``energy``: where joules of both are known in one way.
    """

    a: SideSummary
    b: SideSummary
    rows: tuple[ComparedRow, ...]
    unchanged: tuple[ComparedRow, ...]
    changes: tuple[Change, ...]
    matched_share: tuple[float, float]
    notes: tuple[str, ...] = ()
    low_ms: float | None = None
    high_ms: float | None = None
    detectable_ms: float | None = None
    gates: tuple[GateResult, ...] = ()
    ranks: tuple[RankChange, ...] = ()
    energy: EnergyCompared | None = None

    @property
    def change_ms(self) -> float:
        """Exactly the sum of the rows' changes."""
        return self.b.step_ms - self.a.step_ms

    def __repr__(self) -> str:
        """Both sides, the change of the step, and the largest parts of it."""
        step = f"{self.a.step_ms:,.3f} -> {self.b.step_ms:,.3f} ms"
        parts = [f"  {change.text}" for change in self.changes[:_SHOWN]] or ["  nothing changed"]
        more = len(self.changes) - _SHOWN
        rest = [f"  and {more} more in .changes"] if more > 0 else []
        return "\n".join([f"{self.a.name} -> {self.b.name}: {step}", *parts, *rest])
