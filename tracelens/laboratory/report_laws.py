"""The laws that every report obeys, which of them one report breaks, and whether its sentences print its figures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from tracelens.analysis.analyze import Analysis
from tracelens.analysis.findings.transfers import ALL_LATENCY, SLOW_BUS
from tracelens.analysis.idle.dependencies import IDLE
from tracelens.analysis.sheets import coll_analysis, device_timeline, perf_summary
from tracelens.analysis.sheets.priced_calls import UNLINKED_NAME
from tracelens.analysis.verdict.summary import Finding, Said, Summary
from tracelens.laboratory.plain_reading import PlainTrace, kernel_totals, parts, step_spans, union
from tracelens.trace.links import LinkedBy
from tracelens.trace.table import Recorder
from tracelens.types.records import Record
from tracelens.types.units import NS_PER_US

_NUMBER = re.compile(r"(?<![\w.])(?P<digits>\d[\d,]*(?:\.\d+)?)(?P<unit> (?:%|µs|ms|s|kB|MB|GB/s|GB)(?!\w))?")
#: What a printed unit is of the unit that a figure is kept in.
_FACTORS = {
    "%": ("share", 100.0),
    "µs": ("us", 1.0),
    "ms": ("us", 1e-3),
    "s": ("us", 1e-6),
    "kB": ("MB", 1e3),
    "MB": ("MB", 1.0),
    "GB": ("MB", 1e-3),
    "GB/s": ("GB/s", 1.0),
}
#: Numbers that are part of a name or a rule, not of the trace.
_WORDING = re.compile(r"16 bytes|10-bit")
#: What the trace has: an op and the shapes of its arguments, or what the host was at.
_QUOTED = re.compile(
    r"(?:(?<=calls of )|(?<=\bcall of ))\S.*?(?=(?: in [\d,]+ (?:shapes|signatures))? (?:reach|reaches|take|takes) \d)"
    r"|(?<=; most of the gain is in ).*?(?=; \d+ % of|$)"
    r"|(?<=; most of the longest is in ).*?(?=; \d+ % of|$)"
)


def unexplained_numbers(finding: Finding) -> Iterator[str]:
    """The numbers of a finding's sentence that none of its figures gives."""
    sentence = _WORDING.sub("", _QUOTED.sub("", finding.why))
    for match in _NUMBER.finditer(sentence):
        if not any(_is_printed(said, match) for said in finding.figures):
            yield match[0]


def _is_printed(said: Said, match: re.Match[str]) -> bool:
    """Whether a figure, in the unit printed, rounds to the digits printed."""
    digits = match["digits"].replace(",", "")
    unit, factor = _FACTORS.get((match["unit"] or "").strip(), (said.unit, 1.0))
    if unit != said.unit:
        return False
    decimals = len(digits.partition(".")[2])
    return abs(said.value * factor - float(digits)) <= 0.5 * 10.0**-decimals * (1 + 1e-9)


#: What the steps of torch.profiler's schedule are called.
PROFILER_STEP = "ProfilerStep"
#: Relative error of a sum of float microseconds against the same sum in whole nanoseconds.
_FLOAT = 1e-9


class SelfCheck(Record, frozen=True, kw_only=True):
    """``laws``: names of those that were checked; ``broken``: (law, what contradicts it); ``unchecked``: why the totals
    were not compared with the file, "" when they were.
    """

    laws: tuple[str, ...]
    broken: tuple[tuple[str, str], ...]
    unchecked: str = ""


def check_report(analysis: Analysis, summary: Summary, path: Path) -> SelfCheck:
    """Checks one analysis against the laws, and its totals against a plain reading of the file at ``path``."""
    laws = [law.__name__ for law in REPORT_LAWS]
    broken = [(law.__name__, what) for law in REPORT_LAWS for what in law(analysis, summary)]
    unchecked = _not_comparable(analysis)
    if not unchecked:
        plain = PlainTrace.read(path)
        unchecked = plain.unusable
        if not unchecked:
            laws += [law.__name__ for law in FILE_LAWS]
            broken += [(law.__name__, what) for law in FILE_LAWS for what in law(analysis, plain)]
    return SelfCheck(
        laws=tuple(name.replace("_", " ") for name in laws),
        broken=tuple((name.replace("_", " "), what) for name, what in broken),
        unchecked=unchecked,
    )


def _not_comparable(analysis: Analysis) -> str:
    if analysis.trace.table.losses:
        return "the file is damaged"
    if analysis.merged is not None:
        return "the file holds several ranks"
    if analysis.overlaps is not None and analysis.overlaps.clipped:
        return "--overlap clip changed the recorded times"
    if (recorder := analysis.trace.table.recorder) != Recorder():
        return f"the file is {recorder.file}"
    return ""


def parts_of_the_window_add_up(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Computation, exposed communication, exposed copies and idle time, each from 0 on, make the window."""
    if summary.busy is not None:
        shares = (summary.busy.compute, summary.busy.exposed_comm, summary.busy.memcpy, summary.busy.idle)
        if min(shares) < 0 or not math.isclose(sum(shares), 1.0, rel_tol=_FLOAT):
            yield f"shares of the window {shares}"


def idle_causes_add_up_to_idle_time(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Every idle nanosecond has one cause."""
    if (causes := analysis.frames.get(device_timeline.IDLE_CAUSES_TITLE)) is not None:
        caused = float(causes["idle_us"].sum())
        idle = analysis.timeline.idle_ns / NS_PER_US
        if not math.isclose(caused, idle, rel_tol=_FLOAT, abs_tol=1e-6):
            yield f"causes explain {caused} of {idle} us"


def idle_causes_agree_everywhere(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """The verdict's idle causes are the sheet's.

    The typical step's, as the timeline draws them, are part of them, or all without steps; of these again the critical
    path's, all of them where all that ran in the step was launched in the analyzed steps.
    """
    drawn, rows = analysis.step_idle, analysis.frames.get(device_timeline.IDLE_CAUSES_TITLE)
    if rows is None or drawn is None:
        return
    sheet = _ns_by(rows["cause"], rows["idle_us"])
    if summary.busy is not None:
        whole_ns = analysis.timeline.total_ns
        verdict = {cause: round(share * whole_ns) for cause, share in summary.busy.idle_causes}
        if any(abs(verdict.get(cause, 0) - sheet.get(cause, 0)) > 1 for cause in verdict.keys() | sheet.keys()):
            yield f"{verdict} ns in the verdict, {sheet} in idle_causes"
    step = drawn.by_cause
    if not _is_part(step, sheet) or (not analysis.selected_steps and step != sheet):
        yield f"{step} ns in the step's timeline, {sheet} in idle_causes"
    if (rows := analysis.frames.get(device_timeline.CRITICAL_PATH_TITLE)) is not None:
        rows = rows[rows["kind"].str.startswith(IDLE)]
        path = _ns_by(rows["kind"].str.removeprefix(IDLE), rows["time_us"])
        if not _is_part(path, step) or (not analysis.excluded and path != step):
            yield f"{path} ns on the critical path, {step} in the step's timeline"


def the_critical_path_is_within_the_step(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Its rows add up to the time of the step that they speak of, and its kinds to no more."""
    rows, times = analysis.frames.get(device_timeline.CRITICAL_PATH_TITLE), analysis.step_times
    if rows is None:
        return
    number, path_us = rows["step"].dropna().tolist(), float(rows["time_us"].sum())
    pairs = zip(times.steps, times.duration_ns.tolist(), strict=True)
    spans = [ns for step, ns in pairs if [step.number] == number[:1]]
    possible = [ns / NS_PER_US for ns in spans or [analysis.timeline.total_ns]]
    if not any(math.isclose(path_us, us, rel_tol=_FLOAT, abs_tol=1e-6) for us in possible):
        yield f"rows of {path_us} us, a step of {possible} us"
    percent = float(rows["percent_of_step"].sum())
    if (rows["time_us"] < 0).any() or not math.isclose(percent, 100 if path_us else 0, rel_tol=_FLOAT):
        yield f"a path longer than the step, or shares of {percent} % together"


def _ns_by(names: Iterable[str], us: Iterable[float]) -> dict[str, int]:
    return {name: round(time * NS_PER_US) for name, time in zip(names, us, strict=True)}


def _is_part(part: dict[str, int], whole: dict[str, int]) -> bool:
    return all(time <= whole.get(cause, 0) for cause, time in part.items())


def no_step_is_busier_than_long(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """A step's device events cover at most its duration."""
    times = analysis.step_times
    for step, busy, duration in zip(times.steps, times.busy_ns, times.duration_ns, strict=True):
        if busy > duration:
            yield f"step {step.number} is busy for {busy} ns of {duration}"


def gains_together_are_within_a_step(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """All findings together save at most what the step, or the window, takes, and so do the times they speak of."""
    whole_us = summary.steps.time_us if summary.steps else summary.busy.total_us if summary.busy else None
    for what in ("gain_high_us", "time_us"):
        total_us = sum(getattr(finding, what) or 0.0 for finding in summary.findings)
        if whole_us is not None and total_us > whole_us * (1 + _FLOAT):
            yield f"{what}: {total_us} of {whole_us} us"


def a_gain_is_within_its_range(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """From the least to the most."""
    for finding in summary.findings:
        low, gain, high = (us or 0.0 for us in (finding.gain_low_us, finding.gain_us, finding.gain_high_us))
        if not 0 <= low <= gain * (1 + _FLOAT) <= high * (1 + _FLOAT) ** 2:
            yield f"{finding.id}: {low}, {gain}, {high} us"


def evidence_stands_in_its_sheet(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Every row that a finding names is in the sheet that it names."""
    for finding in summary.findings:
        for proof in finding.evidence:
            frame = analysis.frames.get(proof.sheet)
            fits = np.zeros(0, bool)
            if frame is not None:
                fits = np.ones(len(frame), bool)
                for key, value in proof.row.items():
                    fits &= (frame[key].isna() if value is None else frame[key] == value).to_numpy(bool)
            if not fits.any():
                yield f"{finding.id}: {proof.sheet} has no row {dict(proof.row)}"


def what_keeps_the_gpu_idle_is_a_cause_of_its_sheet(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """A finding on idle time names causes that have at least that time in the sheet of causes."""
    causes, steps = analysis.frames.get(device_timeline.IDLE_CAUSES_TITLE), max(1, len(analysis.complete_steps))
    for finding in summary.findings:
        proofs = (each for each in finding.evidence if each.sheet == device_timeline.IDLE_CAUSES_TITLE)
        named = {str(proof.row["cause"]) for proof in proofs}
        if not named or causes is None or finding.time_us is None:
            continue
        idle_us = float(causes.loc[causes["cause"].isin(named), "idle_us"].sum()) / steps
        cause = (finding.kind or "").partition("idle: ")[2]
        if finding.time_us > idle_us * (1 + _FLOAT) or (cause and cause not in named):
            yield f"{finding.kind}: {finding.time_us} us of {sorted(named)}, which have {idle_us} us"


def latency_is_slow_at_its_shortest_too(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """A message is called all latency only where the sheet's bandwidth of the shortest such call is low as well."""
    device, sheet = analysis.device, coll_analysis.TITLE
    if device is None or device.link is None:
        return
    for finding in summary.findings:
        for proof in (each for each in finding.evidence if each.sheet == sheet and ALL_LATENCY in finding.why):
            rows = analysis.frames[sheet]
            best = rows.loc[(rows["collective"] == proof.row["collective"]) & (rows["in_mb"] == proof.row["in_mb"])]
            if not (best["bus_gb_s_min"] < SLOW_BUS * device.link.gb_s).any():
                yield f"{finding.why}: {best['bus_gb_s_min'].tolist()} GB/s at the shortest"


def a_gain_is_within_the_time_it_speaks_of(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """A finding says how long what it speaks of takes, and saves at most that."""
    for finding in summary.findings:
        if finding.time_us is None or (finding.gain_us or 0.0) > finding.time_us * (1 + _FLOAT):
            yield f"{finding.id}: {finding.gain_us} of {finding.time_us} us"


def each_number_of_a_finding_is_a_figure(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Every number of a finding's sentence is one of its figures, rounded; the sheet about lists these."""
    for finding in summary.findings:
        for number in unexplained_numbers(finding):
            yield f"{number!r} in {finding.why!r}"


def the_steps_time_is_divided_among_the_table(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """The verdict's window is the complete steps, and its shares are those of the timeline."""
    if summary.busy is None or summary.steps is None or summary.busy.total_us is None:
        return
    chosen = analysis.complete_steps
    whole_us = float(analysis.step_times.duration_ns[chosen].sum()) / NS_PER_US
    if not math.isclose(whole_us, summary.busy.total_us, rel_tol=_FLOAT):
        yield f"steps of {whole_us} us, a window of {summary.busy.total_us} us"
    if not math.isclose(whole_us / len(chosen), summary.steps.time_us, rel_tol=_FLOAT):
        yield f"a mean step of {whole_us / len(chosen)} us, printed {summary.steps.time_us} us"


def each_device_nanosecond_has_one_category(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """The tables that speak of all kernels have the same sums by category: the time of the events that are of it."""
    kernels = analysis.frames.get(perf_summary.KERNEL_SUMMARY_TITLE)
    if kernels is None:
        return
    ops = analysis.frames[perf_summary.OPS_SUMMARY_BY_CATEGORY_TITLE]
    activity, category = analysis.activity, analysis.event_category
    took: dict[str, int] = {}
    outside: set[str] = set()
    columns = (category.tolist(), activity.duration.tolist(), activity.collective.tolist())
    for text, ns, collective in zip(*columns, strict=True):
        took[text] = took.get(text, 0) + ns
        outside |= {text} if collective else set()
    sums = kernels.groupby("category")["duration_us_sum"].sum()
    by_kernel = {str(text): float(us) for text, us in sums.items()}
    by_op = {str(text): float(us) for text, us in zip(ops["category"], ops["direct_us_sum"], strict=True)}
    for text in sorted(took.keys() | by_kernel.keys() | by_op.keys()):
        if not _is_total(by_kernel.get(text, 0.0), took.get(text, 0)):
            yield f"{text}: kernel_summary holds {by_kernel.get(text)} us of {took.get(text)} ns"
        if text not in outside and not _is_total(by_op.get(text, 0.0), took.get(text, 0)):
            yield f"{text}: ops_summary_by_category holds {by_op.get(text)} us of {took.get(text)} ns"


def no_rate_is_above_the_peak_in_silence(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """A row faster than the data sheet by more than a nanosecond per kernel is served from a cache, or told of."""
    rows = analysis.frames.get(perf_summary.UNIFIED_PERF_SUMMARY_TITLE)
    if rows is None or not len(rows):
        return
    spare_us = rows["kernel_us_mean"] * (rows["percent_of_peak"] / 100 - 1)
    beyond = rows[(spare_us > rows["kernels_per_call"] / NS_PER_US) & rows["served_from"].isna()]
    told = sum(notice.count for notice in summary.notices if notice.id == "above_peak")
    if len(beyond) != told:
        yield f"{len(beyond)} rows, {told} told: {', '.join(beyond['name'].astype(str).head(3))}"


def headroom_adds_up_to_the_step(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Own times of categories and idle time are the step; none takes less at its roofline than it can achieve."""
    frame = analysis.frames.get(perf_summary.HEADROOM_TITLE)
    if frame is None:
        return
    step_ns = analysis.timeline.total_ns / max(1, len(analysis.complete_steps))
    if not math.isclose(float(frame["own_us"].sum()) * NS_PER_US, step_ns, rel_tol=_FLOAT):
        yield f"{frame['own_us'].sum()} us of {step_ns} ns"
    spare = _FLOAT * step_ns / NS_PER_US
    ordered = (frame["roofline_own_us"] <= frame["achievable_own_us"] + spare) & (
        frame["achievable_own_us"] <= frame["own_us"] + spare
    )
    if not ordered.all():
        yield f"{', '.join(frame['category'][~ordered])}: roofline, achievable and own time are out of order"


def energy_is_that_of_kernels_and_waiting_within_the_limit(analysis: Analysis, summary: Summary) -> Iterator[str]:
    """Joules of kernels and of idle time are within the window's, those of its steps add up to it, and mean watts of
    both lie between a waiting device's and the most that was read at the limit.
    """
    energy, use = analysis.energy, summary.energy
    if energy is None or use is None or use.energy_j is None or use.power_w is None:
        return
    constants, spare = energy.constants, 1 + _FLOAT
    watts = {"the window": use.power_w}
    if use.kernels_j + use.idle_j > use.energy_j * spare:
        yield f"kernels {use.kernels_j} J and idle time {use.idle_j} J are more than {use.energy_j} J"
    steps = analysis.frames.get(device_timeline.STEP_TIMES_TITLE)
    if steps is not None and "energy_j" in steps and analysis.complete_steps:
        known = steps.dropna(subset=["energy_j"])
        watts |= {f"step {step}": drawn for step, drawn in zip(known["step"], known["power_w"], strict=True)}
        of_steps = known["energy_j"].sum() / len(analysis.complete_steps)
        if len(known) == len(analysis.complete_steps) and not math.isclose(of_steps, use.energy_j, rel_tol=1e-6):
            yield f"steps of {of_steps} J in the mean, the window says {use.energy_j} J per step"
    for what, drawn in watts.items():
        if not constants.idle_w / spare <= drawn <= constants.most * constants.limit_w * spare:
            yield f"{what}: {drawn} W, idle {constants.idle_w}, limit {constants.limit_w}"


#: Laws of the report alone.
REPORT_LAWS: tuple[Callable[[Analysis, Summary], Iterator[str]], ...] = (
    parts_of_the_window_add_up,
    idle_causes_add_up_to_idle_time,
    idle_causes_agree_everywhere,
    what_keeps_the_gpu_idle_is_a_cause_of_its_sheet,
    latency_is_slow_at_its_shortest_too,
    the_critical_path_is_within_the_step,
    no_step_is_busier_than_long,
    gains_together_are_within_a_step,
    a_gain_is_within_its_range,
    evidence_stands_in_its_sheet,
    headroom_adds_up_to_the_step,
    a_gain_is_within_the_time_it_speaks_of,
    each_number_of_a_finding_is_a_figure,
    the_steps_time_is_divided_among_the_table,
    each_device_nanosecond_has_one_category,
    no_rate_is_above_the_peak_in_silence,
    energy_is_that_of_kernels_and_waiting_within_the_limit,
)


def device_events_are_those_of_the_file(analysis: Analysis, plain: PlainTrace) -> Iterator[str]:
    """As many device events as the file holds, and as long: what the report is of, and what it leaves out."""
    activity, left_out = analysis.activity, analysis.excluded
    events = len(activity) + sum(part.events for part in left_out)
    ns = int(activity.duration.sum()) + sum(round(part.time_us * NS_PER_US) for part in left_out)
    there = (len(plain.device), sum(event.end - event.start for event in plain.device))
    if (events, ns) != there:
        yield f"(events, ns) {(events, ns)} in the report, {there} in the file"


def busy_time_is_the_union_of_device_events(analysis: Analysis, plain: PlainTrace) -> Iterator[str]:
    """The timeline's parts, found moment by moment."""
    activity, timeline = analysis.activity, analysis.timeline
    what = np.where(activity.communication, "communication", np.where(activity.memcpy, "copy", "compute")).tolist()
    start, end = (np.clip(time, *timeline.window).tolist() for time in (activity.start, activity.end))
    found = parts(list(zip(start, end, what, strict=True)), timeline.window)
    left_out = timeline.window[1] - timeline.window[0] - timeline.total_ns
    idle = timeline.idle_ns + left_out
    seen = (timeline.computation_ns, timeline.exposed_comm_ns, timeline.exposed_memcpy_ns, idle)
    if seen != (found.compute, found.exposed_communication, found.exposed_copies, found.idle):
        yield f"{seen} ns in the report, {found}"


def kernels_hang_on_the_op_that_launched_them(analysis: Analysis, plain: PlainTrace) -> Iterator[str]:
    """Count and time of every (launching op, kernel) as found thread by thread."""
    tree = analysis.trace.tree
    device = analysis.activity.rows
    how = tree.linked_by[device]
    if analysis.excluded or analysis.graphs is not None or tree.overlaps:
        return
    if np.isin(how, (LinkedBy.FLOW, LinkedBy.EXTERNAL_ID)).any():
        return
    rows = analysis.frames[perf_summary.KERNEL_SUMMARY_TITLE]
    seen: dict[tuple[str, str], tuple[int, int]] = {}
    columns = (rows[key].tolist() for key in ("parent_op", "kernel_name", "kernels", "duration_us_sum"))
    for op, kernel, count, us in zip(*columns, strict=True):
        key = ("" if op == UNLINKED_NAME else op, kernel)
        before = seen.get(key, (0, 0))
        seen[key] = (before[0] + int(count), before[1] + round(us * NS_PER_US))
    there = kernel_totals(plain)
    for key in sorted(seen.keys() | there.keys()):
        if seen.get(key) != there.get(key):
            yield f"{key}: (count, ns) {seen.get(key)} in the report, {there.get(key)} in the file"


def device_events_cover_the_time_that_they_do_in_the_file(analysis: Analysis, plain: PlainTrace) -> Iterator[str]:
    """The union of all device events of the file, where the report leaves none out."""
    if analysis.excluded:
        return
    found = union((event.start, event.end) for event in plain.device)
    activity = analysis.activity
    seen = union(zip(activity.start.tolist(), activity.end.tolist(), strict=True))
    if seen != found:
        yield f"{seen} ns in the report, {found} in the file"


def steps_last_as_long_as_their_launches_say(analysis: Analysis, plain: PlainTrace) -> Iterator[str]:
    """Begin and end of every ``ProfilerStep#``, from launches and the busiest stream; a lone step may begin later.

    Where all device events hang on host calls by their correlation.
    """
    tree, times = analysis.trace.tree, analysis.step_times
    if np.isin(tree.linked_by[analysis.activity.rows], (LinkedBy.FLOW, LinkedBy.EXTERNAL_ID)).any():
        return
    there = step_spans(plain)
    if analysis.step_stem != PROFILER_STEP or analysis.graphs is not None or not there:
        return
    seen = list(zip(times.start_ns.tolist(), times.end_ns.tolist(), strict=True))
    if len(seen) == 1:
        seen, there = [(0, end) for _, end in seen], [(0, end) for _, end in there]
    if seen != there:
        yield f"(begin, end) ns {seen} in the report, {there} in the file"


#: Laws of the report against its file.
FILE_LAWS: tuple[Callable[[Analysis, PlainTrace], Iterator[str]], ...] = (
    device_events_are_those_of_the_file,
    busy_time_is_the_union_of_device_events,
    device_events_cover_the_time_that_they_do_in_the_file,
    kernels_hang_on_the_op_that_launched_them,
    steps_last_as_long_as_their_launches_say,
)


def _is_total(us: float, ns: int) -> bool:
    return math.isclose(us * NS_PER_US, ns, rel_tol=_FLOAT, abs_tol=0.5)
