"""``tl.compare``: what changed between two recordings, row by row, adding up to the change of the step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import Any

from tracelens.analysis.loaded_trace import AnalysisOptions
from tracelens.analysis.ranks.rank_summary import ranks_text
from tracelens.comparison import measured_rows
from tracelens.comparison.call_matching import Difference, Matching, Numbered, by_kernel, match
from tracelens.comparison.change_sentences import changes_of, explained
from tracelens.comparison.compared import ComparedRow, Comparison, RankChange, RowSide, SideSummary
from tracelens.comparison.gates import CompareOptions, Gate, check
from tracelens.comparison.inputs import as_reported, as_whole_ops, side_of
from tracelens.comparison.late_ranks import RankTimes, another_latecomer, rank_changes, unusual_steps
from tracelens.comparison.places import QUANTIZED, SAME_PLACE
from tracelens.comparison.sides import UNKNOWN_DEVICE, Side
from tracelens.extensions import NONE, load_extension
from tracelens.files.option_fields import build_options, takes
from tracelens.hardware import HardwareSpec
from tracelens.types.units import NS_PER_MS

#: How Inductor names the kernels that it writes.
_INDUCTOR = tuple(f"triton_{kind}_fused_" for kind in ("poi", "red", "per", "tem", "for", "unk"))
#: Share of a side's kernel time that must be matched for the two to be taken for the same thing.
_LEAST_IN_COMMON = 0.5


@takes(CompareOptions)
def compare(
    a: str | PathLike[str], b: str | PathLike[str], options: CompareOptions | None = None, **given: Any
) -> Comparison:
    """B against A: each a trace, a report, ``baseline:NAME``, or a folder of the ranks or the runs of one thing.

    InputError for what cannot be read, NothingToAnalyzeError without device work or for a gate on what neither side
    has, UsageError for a name or a gate that does not fit.
    """
    asked = build_options(CompareOptions, given, options)
    gates = asked.gates
    read_with = AnalysisOptions(
        device=HardwareSpec.load(asked.device) if asked.device else None,
        extensions=tuple(load_extension(spec) for spec in asked.extension if spec != NONE),
        bundled=NONE not in asked.extension,
        steps=asked.steps,
    )
    one, other = (side_of(str(side), read_with, asked.baselines) for side in (a, b))
    if one.name == other.name:
        one, other = (replace(side, name=name) for side, name in zip((one, other), told_apart(a, b), strict=True))
    return compare_sides(one, other, gates)


def told_apart(a: str | PathLike[str], b: str | PathLike[str]) -> list[str]:
    """The shortest ends of two paths that differ.

    >>> told_apart("old/rank0.json", "new/rank0.json")
    ['old/rank0.json', 'new/rank0.json']
    """
    parts = [Path(side).parts for side in (a, b)]
    most = max(map(len, parts))
    length = next((n for n in range(1, most + 1) if parts[0][-n:] != parts[1][-n:]), 1)
    return [str(Path(*own[-length:])) for own in parts]


def compare_sides(one: Side, other: Side, gates: Sequence[Gate] = ()) -> Comparison:
    """B (``other``) against A (``one``)."""
    if one.first.is_ordered != other.first.is_ordered:
        one, other = as_whole_ops(as_reported(one), as_reported(other))
    one, other = by_kernel(one, other)
    numbered = Numbered.of(one), Numbered.of(other)
    matching = match(*numbered)
    a = measured_rows.MeasuredSide(numbered[0], matching.a, len(matching.rows))
    b = measured_rows.MeasuredSide(numbered[1], matching.b, len(matching.rows))
    noise, at_equal_work, hidden = measured_rows.noises(a, b)
    numbers, rows = _rows(matching, a, b, noise)
    each_ns = measured_rows.ns_of_a_call(a, b)[numbers]
    times = [RankTimes.of(side, numbers, rows, each_ns) for side in (a, b)]
    ranks = rank_changes(*times)
    rows = explained(rows, (one, other), times, ranks, _compiled(matching, numbered, numbers))
    changed = [at for at, row in enumerate(rows) if row.is_changed]
    intervals = measured_rows.Intervals(noise, numbers)
    step = intervals.of_steps(range(len(numbers)))
    energy, apart = measured_rows.energies(a, b, (_idle_ms(rows, "a"), _idle_ms(rows, "b")))
    unusual = (unusual_steps(*each, numbers, rows) for each in zip("AB", (a, b), times, strict=True))
    found = Comparison(
        a=_summary(a, rows, 0),
        b=_summary(b, rows, 1),
        rows=tuple(rows[at] for at in changed),
        unchanged=tuple(row for row in rows if not row.is_changed),
        changes=changes_of(
            [rows[at] for at in changed],
            measured_rows.Intervals(noise, [numbers[at] for at in changed], at_equal_work, hidden),
            ranks,
            measured_rows.host_changes(a, b),
        ),
        matched_share=(_matched(rows, 0), _matched(rows, 1)),
        notes=(
            *_other_work(rows, matching.difference),
            *_notes(one, other),
            *chain.from_iterable(unusual),
            *another_latecomer(*times),
            *apart,
        ),
        low_ms=step[0] if step else None,
        high_ms=step[1] if step else None,
        detectable_ms=(step[1] - step[0]) / 2 if step else None,
        ranks=_bounded(ranks, noise),
        energy=energy,
    )
    results = [check(gate, found, rows, intervals.of_steps) for gate in gates]
    return replace(found, gates=tuple(results))


def _idle_ms(rows: Sequence[ComparedRow], side: str) -> float:
    of_side: list[RowSide | None] = [getattr(row, side) for row in rows if row.is_idle]
    return sum(each.ms for each in of_side if each)


def _bounded(ranks: Sequence[RankChange], noise: measured_rows.Noise) -> tuple[RankChange, ...]:
    """Without bounds where one step on either side says nothing of them."""
    return tuple(rank if noise.is_known else replace(rank, low_ms=None, high_ms=None) for rank in ranks)


def _rows(
    matching: Matching, a: measured_rows.MeasuredSide, b: measured_rows.MeasuredSide, noise: measured_rows.Noise
) -> tuple[list[int], list[ComparedRow]]:
    """(number in the matching, row) of all that one side at least has, the largest change first."""
    interval = noise.interval()
    low, high = interval.low / NS_PER_MS, interval.high / NS_PER_MS
    found = []
    for number, row in enumerate(matching.rows):
        sides = a.row(number), b.row(number)
        shown = sides[0] or sides[1]
        if shown is None:
            continue
        # What became one thing is called as that
        of_b = sides[0] is None or (sides[1] is not None and row.how == SAME_PLACE and sides[1].calls < sides[0].calls)
        call = b.numbered.calls[row.b[0]] if of_b else a.numbered.calls[row.a[0]]
        made = ComparedRow(
            name=" + ".join(shown.ops),
            category=call.category,
            match=row.how,
            module=call.module,
            a=sides[0],
            b=sides[1],
            cause="",
            why="",
            low_ms=float(low[number]) if noise.is_known else None,
            high_ms=float(high[number]) if noise.is_known else None,
        )
        found.append((number, made))
    found.sort(key=lambda each: (-abs(each[1].change_ms), each[1].category, each[1].name, each[1].module or ""))
    return [number for number, _ in found], [row for _, row in found]


def _compiled(matching: Matching, sides: tuple[Numbered, Numbered], numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Of the rows of these numbers in A and in B: 2 for calls in a compiled region, 1 for kernels of Inductor."""
    a, b = ([2 if call.is_compiled else int(call.label.startswith(_INDUCTOR)) for call in side.calls] for side in sides)
    rows = (matching.rows[number] for number in numbers)
    return [(max((a[at] for at in row.a), default=0), max((b[at] for at in row.b), default=0)) for row in rows]


def _summary(measured: measured_rows.MeasuredSide, rows: Sequence[ComparedRow], which: int) -> SideSummary:
    side = measured.numbered.side
    sides = [row.b if which else row.a for row in rows]
    first = side.first
    return SideSummary(
        name=side.name,
        device=first.device_label,
        torch=first.torch,
        files=len(side.recordings),
        ranks=max(len(run) for run in side.parts),
        runs=len(side.parts),
        steps=measured.steps.shape[1],
        step_ms=sum(one.ms for one in sides if one),
        kernel_ms=sum(one.kernel_ms for one in sides if one),
        busy_ms=sum(one.ms for one, row in zip(sides, rows, strict=True) if one and not row.is_idle),
        coverage=measured.coverage,
        has_steps=first.has_steps,
    )


def _matched(rows: Sequence[ComparedRow], which: int) -> float:
    """The share of a side's kernel time of what the other side does as well; 1 where there is none."""
    own = [(row, row.b if which else row.a) for row in rows]
    total = sum(one.kernel_ms for _, one in own if one)
    both = sum(one.kernel_ms for row, one in own if one and ((row.a and row.b) or row.match in QUANTIZED))
    return both / total if total else 1.0


def _notes(one: Side, other: Side) -> Iterator[str]:
    """What makes the sides less comparable: devices, versions, what one side lacks, ranks, single steps."""
    yield from (*one.notes, *other.notes)
    a, b = one.first, other.first
    unnamed = [side.source for side in (a, b) if side.device_label == UNKNOWN_DEVICE]
    if len(unnamed) == 1:
        yield f"{unnamed[0]} does not record its device, so it may be another one"
    elif a.device_label != b.device_label:
        yield f"the devices differ: {a.device_label} -> {b.device_label}"
    if a.torch != b.torch and a.torch and b.torch:
        yield f"the PyTorch versions differ: {a.torch} -> {b.torch}"
    shaped = [any(call.shapes for call in side.calls) for side in (a, b)]
    if shaped[0] != shaped[1]:
        bare = (a if shaped[1] else b).source
        yield f"{bare} has no ops with shapes: kernels and their order match the calls, what split or fused is a guess"
    if a.has_steps != b.has_steps:
        yield f"{(b if a.has_steps else a).source} has no steps, so its whole window is compared with a step"
    yield from _other_numbers(one, other)


def _other_work(rows: Sequence[ComparedRow], apart: Difference | None) -> Iterator[str]:
    """Of sides that have less in common than not: rows that one side alone has say little then."""
    if apart is not None:
        yield (
            f"A and B look like different programs: {apart.named_alike:.0%} of the kernel time goes to ops that both "
            f"run, {apart.same[0]:.0%} of A's and {apart.same[1]:.0%} of B's to the same calls; the rest is listed as "
            "new or gone"
        )
        return
    for name, other, share in zip("AB", "BA", (_matched(rows, 0), _matched(rows, 1)), strict=True):
        if share < _LEAST_IN_COMMON:
            text = f"only {share:.0%} of {name}'s kernel time is in work that {other} does too"
            yield f"{text}: check that both run the same workload"


def _other_numbers(one: Side, other: Side) -> Iterator[str]:
    """Of ranks, and of steps where chance cannot be told."""
    ranks = [{recorded.rank for recorded in side.parts[0] if recorded.rank is not None} for side in (one, other)]
    counts = [len(side.parts[0]) for side in (one, other)]
    if counts[0] != counts[1]:
        alone = zip("AB", (ranks[0] - ranks[1], ranks[1] - ranks[0]), strict=True)
        named = "".join(
            f", rank{'s' if len(only) > 1 else ''} {ranks_text(only)} in {name} alone"
            for name, only in alone
            if only and all(ranks)
        )
        yield f"{counts[0]} rank{'s' if counts[0] > 1 else ''} against {counts[1]}{named}; their means are compared"
    if max(sum(len(run[0].durations_ns) for run in side.parts) for side in (one, other)) == 1:
        yield (
            "one step per trace cannot separate noise from change: only facts, and changes beyond the spread of "
            "repeated kernels and of typical steps, are named as causes"
        )
