"""``tl.compare``: what changed between two recordings, row by row, adding up to the change of the step."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from tracelens.analysis.options import Options
from tracelens.comparison.call_matching import Matching, Numbered, match
from tracelens.comparison.change_sentences import changes_of, explained
from tracelens.comparison.compared import ComparedRow, Comparison, SideSummary
from tracelens.comparison.inputs import side_of
from tracelens.comparison.measured_rows import MeasuredSide
from tracelens.comparison.sides import Side


def compare(a: str | PathLike[str], b: str | PathLike[str], options: Options | None = None) -> Comparison:
    """B against A: each a trace, or a folder of the ranks or the runs of one thing."""
    chosen = options or Options()
    return compare_sides(side_of(Path(a), chosen), side_of(Path(b), chosen))


def compare_sides(one: Side, other: Side) -> Comparison:
    """B (``other``) against A (``one``)."""
    numbered = Numbered.of(one), Numbered.of(other)
    matching = match(*numbered)
    a = MeasuredSide(numbered[0], matching.a, len(matching.rows))
    b = MeasuredSide(numbered[1], matching.b, len(matching.rows))
    rows = explained(_rows(matching, a, b))
    return Comparison(
        a=_summary(a, rows, 0),
        b=_summary(b, rows, 1),
        rows=tuple(row for row in rows if row.is_changed),
        unchanged=tuple(row for row in rows if not row.is_changed),
        changes=changes_of([row for row in rows if row.is_changed]),
        matched_share=(_matched(rows, 0), _matched(rows, 1)),
        notes=tuple(_notes(one, other)),
    )


def _rows(matching: Matching, a: MeasuredSide, b: MeasuredSide) -> list[ComparedRow]:
    found = []
    for number, row in enumerate(matching.rows):
        sides = a.row(number), b.row(number)
        shown = sides[0] or sides[1]
        if shown is None:
            continue
        calls = a.numbered.calls[row.a[0]] if row.a else b.numbered.calls[row.b[0]]
        found.append(
            ComparedRow(
                name=" + ".join(shown.ops),
                category=calls.category,
                match=row.how,
                module=calls.module,
                a=sides[0],
                b=sides[1],
                cause="",
                why="",
            )
        )
    found.sort(key=lambda row: (-abs(row.change_ms), row.category, row.name, row.module or ""))
    return found


def _summary(measured: MeasuredSide, rows: Sequence[ComparedRow], which: int) -> SideSummary:
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
        coverage=first.coverage,
        has_steps=first.has_steps,
    )


def _matched(rows: Sequence[ComparedRow], which: int) -> float:
    """The share of a side's kernel time that the other side has as well; 1 where there is none."""
    own = [(row, row.b if which else row.a) for row in rows]
    total = sum(one.kernel_ms for _, one in own if one)
    both = sum(one.kernel_ms for row, one in own if one and row.a and row.b)
    return both / total if total else 1.0


def _notes(one: Side, other: Side) -> list[str]:
    """What makes the sides less comparable."""
    a, b, found = one.first, other.first, []
    if a.device_label != b.device_label:
        found.append(f"other device: {a.device_label} -> {b.device_label}")
    if a.torch != b.torch and a.torch and b.torch:
        found.append(f"other PyTorch: {a.torch} -> {b.torch}")
    if a.has_steps != b.has_steps:
        found.append(f"{(b if a.has_steps else a).source} has no steps: its whole window is compared with a step")
    if len(one.parts[0]) != len(other.parts[0]):
        found.append(f"{len(one.parts[0])} ranks against {len(other.parts[0])}")
    return [*one.notes, *other.notes, *found]
