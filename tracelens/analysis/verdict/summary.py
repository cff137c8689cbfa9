"""What a report says in words and single figures: the records of its summary and findings, and numbers in words.

The verdict, the ``about`` sheet and ``report.json`` are made of them.

Shares are fractions (0.25 is a quarter), times are µs, None is *not determined*. Texts come from the trace or from an
analysis, are one line each, and hold no date, no folder and no host name: the same input gives the same summary.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tracelens.types.records import Record

#: The ``window`` of a report that is not of steps.
WHOLE_FILE = "whole file"
#: ``Scope.kind``.
STEPS, FILE = "steps", "file"
#: ``Excluded.why``, as it is printed behind a time.
BEFORE_PROFILING = "launched before profiling began"
OUTSIDE_STEPS = "launched outside of the steps"
IN_INCOMPLETE_STEPS = "in steps that were not recorded whole"
IN_OTHER_STEPS = "in steps that were not asked for"


class InputSummary(Record, frozen=True, kw_only=True):
    """What was read. ``file`` is a name without its folder; ``window`` and ``left_out`` say which part was analyzed."""

    file: str
    events: int
    ranks: tuple[int, ...] = ()
    world_size: int | None = None
    window: str = WHOLE_FILE
    left_out: str = ""
    torch_version: str | None = None


class Excluded(Record, frozen=True, kw_only=True):
    """Device events of the file that a report does not speak of: ``why``, how many, their summed durations."""

    why: str
    events: int
    time_us: float


class Scope(Record, frozen=True, kw_only=True):
    """What a report speaks of in all its parts: ``steps``, the complete ones, ``count`` of those called ``named`` with
    the numbers ``numbers``; or ``file``, all of it.

    ``events``, ``time_us``: its device events and their summed durations; with those of ``excluded`` they are the
    file's.
    """

    kind: str = FILE
    count: int = 0
    named: str = ""
    numbers: str = ""
    events: int = 0
    time_us: float = 0.0
    excluded: tuple[Excluded, ...] = ()


class SummaryFigure(Record, frozen=True, kw_only=True):
    """One figure of the device and where it comes from: ``("bf16 matrix peak", 1307.4, "TFLOPS/s", "data sheet")``."""

    what: str
    value: float | None
    unit: str
    source: str


#: ``DeviceSummary.matched_by`` of a report in which nothing depends on the device.
NOT_NEEDED = "not needed"


class DeviceSummary(Record, frozen=True, kw_only=True):
    """The device that estimates are for. ``id`` is its file stem, None when none was recognized.

    ``label`` is what to call it in print (without a spec: what the trace recorded). ``recorded``: the device of the
    trace, where the caller chose another. ``matched_by``: ``properties``,
    ``name`` (``--device``), ``file``, ``not needed`` (of CPU ops), ``none``. ``doubtful``: figures of weak source.
    """

    id: str | None
    label: str
    matched_by: str
    recorded: str = ""
    note: str = ""
    doubtful: tuple[str, ...] = ()
    figures: tuple[SummaryFigure, ...] = ()

    @property
    def shown(self) -> str:
        """What heads a report: the label, and whether the device's figures are missed or another's are taken."""
        if self.recorded:
            return f"recorded on {self.recorded}, limits of {self.label}"
        return self.label if self.figures or self.matched_by == NOT_NEEDED else f"{self.label} (no spec)"

    @property
    def spec(self) -> str:
        """The device file, or that there is none."""
        return self.id or (NOT_NEEDED if self.matched_by == NOT_NEEDED else "no spec")


class Coverage(Record, frozen=True, kw_only=True):
    """Shares of the summed duration of device events; ``shapes`` and ``stacks``: whether the trace recorded them.

    ``perf_model``: of known FLOPs or bytes; ``flops``: of known FLOPs, none included.
    """

    perf_model: float | None = None
    flops: float | None = None
    categorised: float | None = None
    unlinked: float | None = None
    communication: float | None = None
    shapes: bool = False
    stacks: bool = False


class Busy(Record, frozen=True, kw_only=True):
    """Shares of the window: compute + exposed_comm + memcpy + idle = 1. ``total_us`` is the window's length.

    ``idle_causes``: (cause, share of the window), the largest first; together ``idle``.
    """

    compute: float
    exposed_comm: float
    memcpy: float
    idle: float
    total_us: float | None = None
    idle_causes: tuple[tuple[str, float], ...] = ()

    @property
    def busy(self) -> float:
        """Share of the window in which the device did anything."""
        return self.compute + self.exposed_comm + self.memcpy


class Steps(Record, frozen=True, kw_only=True):
    """The complete steps that were analyzed; what is said per step is the mean of them.

    ``name``: what was taken for a step (``ProfilerStep``, ``decode iterations of SGLang``). ``time_us``: the mean step,
    ``spread`` the standard deviation as a share of it. ``on_device``: how many begin when the device has finished
    earlier work, because the host ran ahead; ``host_us``: the mean period of the host, without waiting for work from
    before recording; ``host_work_us``: without any wait for the device, None where launches may have waited for room in
    a full queue. ``before_events``, ``before_us``: work that was in the queue as recording began, in no step.
    ``skipped_us``: idle time that only exists because recording began, in no step either. ``unseen_us``: how long after
    the host began the first iteration of an engine the device was still at earlier work, which was not recorded.
    ``recorded_us``: the mean of what the profile says they took, of steps that the device recorded: so is ``time_us``
    then, and ``skipped_us`` is what lies between them.
    """

    count: int
    time_us: float
    recorded_us: float | None = None
    spread: float | None = None
    shortest_us: float | None = None
    longest_us: float | None = None
    on_device: int = 0
    host_us: float | None = None
    host_work_us: float | None = None
    before_events: int = 0
    before_us: float = 0.0
    skipped_us: float = 0.0
    unseen_us: float = 0.0
    name: str = ""
    window: str = ""
    left_out: str = ""


#: Share of the device time from which the ops of known work stand for all of it.
COMPLETE = 0.9
#: Share of a category's time that calls of known work must exceed, for their rate to stand for the category.
LEAST_KNOWN = 0.5


class Throughput(Record, frozen=True, kw_only=True):
    """Matrix arithmetic of known FLOPs over the time of the calls that it belongs to.

    ``device_share``: these calls' share of the device time; ``known_share``: that of all calls of known FLOPs, none
    included. ``of_peak`` and ``of_achievable``: shares of the device's rates, each call's for what it computes in,
    where the device has one for nearly all of that time; ``dtype`` is the type of most FLOPs, ``several`` whether
    others matter. ``window_of_peak``: the same FLOPs over the whole window, idle time included; where
    ``is_lower_bound`` other calls may add to it.
    """

    tflops_s: float
    dtype: str
    device_share: float
    known_share: float = 1.0
    several: bool = False
    of_peak: float | None = None
    of_achievable: float | None = None
    window_of_peak: float | None = None

    @property
    def is_lower_bound(self) -> bool:
        """Whether calls of unknown FLOPs hold so much of the device time that the window's figure may lack some."""
        return self.known_share < COMPLETE

    @property
    def peak_name(self) -> str:
        """What the shares are of: ``dense bf16 peak``."""
        return f"dense peak (mostly {self.dtype})" if self.several else f"dense {self.dtype} peak"


class StepUtilization(Record, frozen=True, kw_only=True):
    """One step's utilization, as shares of the dense peak."""

    step: int
    time_us: float
    mfu: float | None
    hfu: float | None


class Utilization(Record, frozen=True, kw_only=True):
    """What a model's step asks of this device, and what the device executed, as shares of what it could do.

    ``work``: ``training`` or ``inference``, by whether the steps have backward ops. ``model_flops`` are the model's for
    ``tokens`` in sequences of ``sequence``, divided among ``ranks``; ``hardware_flops`` those of executed calls with a
    perf model, which hold ``hardware_coverage`` of the device time. Both are matrix products of one step. ``mfu`` and
    ``hfu`` relate them to the dense peak of ``dtype`` over the mean step, or over the window without steps.
    """

    model: str
    work: str
    tokens: int
    sequence: int
    tokens_source: str
    ranks: int
    ranks_source: str
    dtype: str | None
    time_us: float
    model_flops: float
    hardware_flops: float | None = None
    hardware_coverage: float | None = None
    mfu: float | None = None
    mfu_of_achievable: float | None = None
    hfu: float | None = None
    hfu_of_achievable: float | None = None
    steps: tuple[StepUtilization, ...] = ()


class CategoryEnergy(Record, frozen=True, kw_only=True):
    """Joules of a category's kernels per step (without steps: in the window); None where too little work is known."""

    name: str
    energy_j: float | None


class MeasuredPower(Record, frozen=True, kw_only=True):
    """What the device drew by a log: ``samples`` of the analyzed window, ``energy_j`` per step (without steps: of the
    window), ``power_w`` over the time; None where the log does not cover it. ``clock_mhz``, ``least_clock_mhz``: mean
    and least of the samples of the window; None where clocks were not sampled.
    """

    source: str
    samples: int
    energy_j: float | None
    power_w: float | None
    clock_mhz: float | None = None
    least_clock_mhz: float | None = None


class EnergyUse(Record, frozen=True, kw_only=True):
    """Modelled joules of the device per step (without steps: in the window), by the energies of ``constants_of``.

    ``energy_j``: of kernels of known work, of the others at the mean watts of these, and of idle time, together;
    between ``low_j`` and ``high_j``. None where what the device drew is known in less than ``COMPLETE`` of the time
    (``known_share``, idle time included). ``power_w``: over the time, ``of_limit`` its share of ``limit_w``.
    ``per_token_j``: of this device, over the ``tokens`` of a step.
    """

    energy_j: float | None
    low_j: float | None
    high_j: float | None
    kernels_j: float
    unknown_work_j: float | None
    idle_j: float
    power_w: float | None
    limit_w: float
    of_limit: float | None
    known_share: float
    constants_of: str
    tokens: float | None = None
    per_token_j: float | None = None
    categories: tuple[CategoryEnergy, ...] = ()


class CategoryRow(Record, frozen=True, kw_only=True):
    """One line of the verdict's table.

    ``time_us`` is per step where there are steps, else over the window; ``share`` is of the window. Rates are of the
    calls whose work is known, over the time in which a kernel of the category at least ran on its device; None where
    these are not most of its kernels' time.
    ``flops_share``: the share of the category's time in calls of known FLOPs.
    ``of_roofline`` is estimated over measured time, ``of_peak`` the achieved share of the data sheet's figure for
    ``bound``. ``wire_at_most``: ``wire_tb_s`` is of every row of an exchange, whether it left the rank or not.
    ``work_at_most``: some FLOPs or bytes are an upper bound (padding, repeated rows);
    ``of_roofline`` and ``of_peak`` are of the others.
    """

    name: str
    time_us: float
    share: float
    tflops_s: float | None = None
    hbm_tb_s: float | None = None
    wire_tb_s: float | None = None
    wire_at_most: bool = False
    work_at_most: bool = False
    bound: str | None = None
    of_roofline: float | None = None
    of_peak: float | None = None
    backend: str | None = None
    flops_share: float | None = None


class Said(Record, frozen=True, kw_only=True):
    """A number that a sentence prints, as in ``("gaps", 28, "count")``; units: count, share (of 1), us, MB, GB/s."""

    what: str
    value: float
    unit: str


class Place(Record, frozen=True, kw_only=True):
    """Where a finding is, as far as recorded; ``share``: of the step (or the window) that it speaks of."""

    shapes: str | None = None
    module: str | None = None
    call_stack: str | None = None
    share: float | None = None


class Evidence(Record, frozen=True, kw_only=True):
    """A row of a sheet that proves a finding: what stands in some of its columns."""

    sheet: str
    row: Mapping[str, str | float | None]


class Finding(Record, frozen=True, kw_only=True):
    """Something to act on; docs/findings.md has a section of each ``kind``.

    ``id`` is stable, ``kind`` is the id with the cause or bound where that decides what to try, ``key`` tells the
    findings of one report apart and is the same in another of the same program. ``gain_us``: what the ``remedy`` saves
    per step (or in the window) at most, by replaying the step again and again without what goes, between
    ``gain_low_us`` and ``gain_high_us``; how much goes is ``computed`` as it says. None: not known. No moment of the
    step is in two findings. ``limited_by``: what keeps the step from becoming shorter then, a sentence whose numbers
    are ``limit_figures``. ``certainty``: ``high``, ``medium``, ``low``. ``why`` is the sentence that the verdict
    prints, ``figures`` are its numbers, which the sheet ``about`` lists; ``time_us``: how long what it speaks of takes
    per step (or in the window) beyond what findings above speak of. ``command``: what to type next.
    """

    id: str
    op: str | None
    gain_us: float | None
    certainty: str
    why: str
    time_us: float | None = None
    figures: tuple[Said, ...] = ()
    kind: str | None = None
    remedy: str | None = None
    key: str | None = None
    gain_low_us: float | None = None
    gain_high_us: float | None = None
    computed: str | None = None
    where: Place | None = None
    evidence: tuple[Evidence, ...] = ()
    wrong_when: str | None = None
    command: str | None = None
    limited_by: str | None = None
    limit_figures: tuple[Said, ...] = ()


class FixesTogether(Record, frozen=True, kw_only=True):
    """The first findings with a gain, one after the other and each on top of those before, replayed.

    ``findings``: their keys. ``step_us``: the step (or the window) now, after the first, after the first two, ...;
    ``limited_by``: what limits it then.
    """

    findings: tuple[str, ...]
    step_us: tuple[float, ...]
    limited_by: str | None = None


class Unseen(Record, frozen=True, kw_only=True):
    """The ``share`` of device time in calls of unknown work: most of their names, why, the command that opens it."""

    share: float
    ops: tuple[str, ...]
    because: str
    command: str | None = None


class Notice(Record, frozen=True, kw_only=True):
    """Something the reader must know before trusting a figure: damage, clipped overlaps, a failed extension."""

    id: str
    count: int
    text: str


class Unanswered(Record, frozen=True, kw_only=True):
    """A question that this trace cannot answer, and what was not recorded."""

    question: str
    because: str


class Summary(Record, frozen=True, kw_only=True):
    """Everything a report says outside its frames. ``extensions`` are the names of those that took part.

    ``late_host_events``: how many host events were recorded to end after their caller, which changes no figure.
    """

    input: InputSummary
    device: DeviceSummary
    scope: Scope = msgspec.field(default_factory=Scope)
    coverage: Coverage = msgspec.field(default_factory=Coverage)
    busy: Busy | None = None
    steps: Steps | None = None
    throughput: Throughput | None = None
    utilization: Utilization | None = None
    energy: EnergyUse | None = None
    measured_power: MeasuredPower | None = None
    categories: tuple[CategoryRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    together: FixesTogether | None = None
    unseen: Unseen | None = None
    notices: tuple[Notice, ...] = ()
    cannot_answer: tuple[Unanswered, ...] = ()
    extensions: tuple[str, ...] = ()
    late_host_events: int = 0
