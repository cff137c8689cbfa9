"""Limits on what may change (``step<+3%``, ``GEMM.percent_of_roofline>-2``, ``coverage>-1``), and the options of a
comparison.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tracelens.comparison.compared import NOISE, ComparedRow, Comparison, GateResult, KernelShare
from tracelens.comparison.sides import COMMUNICATION, family, row_role
from tracelens.errors import NothingToAnalyzeError, UsageError
from tracelens.files.option_fields import option
from tracelens.types.records import Record

#: Bounds of the change of some rows together, in ms; None where nothing is known of it.
Bounds = Callable[[Sequence[int]], tuple[float, float] | None]
_GATE = re.compile(r"(?P<subject>.+)(?P<sign>[<>])(?P<limit>[^<>]+)")
_LIMIT = re.compile(r"([+-]?\d+(?:\.\d+)?) ?(%|ms|us|J)?")
_FIGURES = ("percent_of_roofline", "kernel_ms", "calls")
STEP, BUSY, IDLE, COMM, COVERAGE, MATCHED = "step", "busy", "idle", "comm", "coverage", "matched"
#: What a device draws in a step.
ENERGY = "energy"
#: Subjects that are shares, in percentage points.
_SHARES = (COVERAGE, MATCHED)


class Gate(Record, frozen=True, kw_only=True):
    """The change of ``subject`` (of its ``figure``, time without one) must be below or above ``limit``.

    ``unit``: ``%`` of A, ``ms``, ``us``, ``J`` of energy, or none: percentage points, or calls.
    """

    text: str
    subject: str
    figure: str | None
    below: bool
    limit: float
    unit: str

    @classmethod
    def parse(cls, text: str) -> Gate:
        """UsageError for what is no gate."""
        found = _GATE.fullmatch(text)
        limit = None if found is None else _LIMIT.fullmatch(found["limit"].strip())
        if found is None or limit is None or not found["subject"].strip():
            raise UsageError(
                f"{text!r} is not a gate: write SUBJECT<+LIMIT or SUBJECT>-LIMIT, as in 'step<+3%', 'idle<+0.5ms', "
                "'GEMM.percent_of_roofline>-2' or 'coverage>-1'"
            )
        whole = found["subject"].strip()
        subject, _, figure = whole.rpartition(".")
        if not subject or figure not in _FIGURES:
            subject, figure = whole, None
        gate = cls(
            text=text.strip(),
            subject=subject,
            figure=figure,
            below=found["sign"] == "<",
            limit=float(limit[1]),
            unit=limit[2] or "",
        )
        counted = gate.subject in _SHARES or gate.figure in ("percent_of_roofline", "calls")
        if counted and gate.unit:
            what = "calls" if gate.figure == "calls" else "percentage points"
            raise UsageError(f"gate {gate.text!r}: its limit is in {what}, write it without {gate.unit!r}")
        units = ("%", "J") if gate.subject == ENERGY else ("%", "ms", "us")
        if not counted and gate.unit not in units:
            raise UsageError(f"gate {gate.text!r}: its limit needs a unit: % (of A), {' or '.join(units[1:])}")
        return gate


def check(gate: Gate, found: Comparison, rows: Sequence[ComparedRow], bounds: Bounds) -> GateResult:
    """Fails beyond limit and chance, as a whole or in the sentences; NothingToAnalyzeError for an absent figure."""
    value, interval = _value(gate, found, rows, bounds)
    low, high = interval or (None, None)
    beyond = value >= gate.limit if gate.below else value <= gate.limit
    significant: bool | None = None
    if gate.subject in _SHARES or gate.figure == "calls":
        significant = bool(value)
    elif low is not None and high is not None:
        significant = not _is_within((low, high)) or (gate.subject != ENERGY and _is_told(gate, found))
    passed = not (beyond and significant is not False)
    result = GateResult(
        gate=gate.text,
        passed=passed,
        value=value,
        unit=gate.unit or ("calls" if gate.figure == "calls" else "points"),
        significant=significant,
        low=low,
        high=high,
        text="",
    )
    return replace(result, text=_text(result, beyond=beyond))


def _text(found: GateResult, *, beyond: bool) -> str:
    between = "" if found.low is None or found.high is None else f" (between {found.low:+.3g} and {found.high:+.3g})"
    chance = ", which chance explains" if beyond and found.passed and between else ""
    if not found.passed and _is_within((found.low, found.high)):
        chance = "; what the sentences tell of it is beyond chance"
    unknown = "; one step per trace does not rule out chance" if found.significant is None and beyond else ""
    changed = f"changed by {found.value:+.3g} {found.unit}{between}{chance}{unknown}"
    return f"{found.gate}: {'passed' if found.passed else 'failed'}, {changed}"


def _is_within(interval: tuple[float | None, float | None]) -> bool:
    """Whether an interval that is known holds no change at all."""
    low, high = interval
    return low is not None and high is not None and low <= 0 <= high


def _is_told(gate: Gate, found: Comparison) -> bool:
    """Whether sentences that chance does not explain tell a change beyond the limit, of a time."""
    if gate.figure not in (None, "kernel_ms"):
        return False
    told = {at for change in found.changes if change.cause != NOISE and not change.is_noise for at in change.rows}
    own = [row for at, row in enumerate(found.rows) if at in told and _is_of(gate.subject, row)]
    everything = [row for row in (*found.rows, *found.unchanged) if _is_of(gate.subject, row)]
    if not own:
        return False
    a, b = _sums(gate, own)
    value = (b - a) * _scale(gate, _sums(gate, everything)[0])
    return value >= gate.limit if gate.below else value <= gate.limit


def _absent(gate: Gate, rows: Sequence[ComparedRow]) -> NothingToAnalyzeError:
    """The error of a gate on what neither side has, with the nearest that there is."""
    known = {row.category for row in rows if not row.is_idle} | {row.name for row in rows}
    known |= {family(kernel.name) for row in rows for kernel in _kernels(row)}
    unknown = UsageError.unknown(
        "category or op on either side", gate.subject, known | {STEP, BUSY, IDLE, COMM, ENERGY, *_SHARES}
    )
    return NothingToAnalyzeError(f"gate {gate.text!r}: {unknown}")


def _value(
    gate: Gate, found: Comparison, rows: Sequence[ComparedRow], bounds: Bounds
) -> tuple[float, tuple[float, float] | None]:
    """The change in the gate's unit, and its bounds where they are known."""
    if gate.subject in _SHARES:
        return _share(gate, found), None
    if gate.subject == ENERGY:
        return _of_energy(gate, found)
    chosen = [at for at, row in enumerate(rows) if _is_of(gate.subject, row)]
    if not chosen:
        raise _absent(gate, rows)
    own, of_time = [rows[at] for at in chosen], bounds(chosen)
    if gate.figure == "percent_of_roofline":
        before, after = _shares(gate, own)
        return after - before, _in_points(own, of_time, after)
    a, b = _sums(gate, own)
    if gate.figure == "calls":
        return b - a, None
    if gate.unit == "%" and not a:
        raise NothingToAnalyzeError(f"gate {gate.text!r}: A spends no time in {gate.subject!r}; use ms, not %")
    scale = _scale(gate, a)
    if of_time is None:
        return (b - a) * scale, None
    # Of a kernel, as far as the rows that have it are
    apart = b - a - sum(row.change_ms for row in own) if _is_kernel(gate, own) else 0.0
    return (b - a) * scale, ((of_time[0] + apart) * scale, (of_time[1] + apart) * scale)


def _of_energy(gate: Gate, found: Comparison) -> tuple[float, tuple[float, float] | None]:
    energy = found.energy
    if energy is None:
        raise NothingToAnalyzeError(
            f"gate {gate.text!r}: joules of both sides, modelled or measured, are not known (docs/energy.md says of "
            "which devices they are)"
        )
    scale = 1.0 if gate.unit == "J" else 100 / energy.a_j if energy.a_j else 0.0
    if energy.low_j is None or energy.high_j is None:
        return energy.change_j * scale, None
    return energy.change_j * scale, (energy.low_j * scale, energy.high_j * scale)


def _scale(gate: Gate, a: float) -> float:
    return {"ms": 1.0, "us": 1e3}.get(gate.unit) or (100 / a if a else 0.0)


def _is_kernel(gate: Gate, rows: Sequence[ComparedRow]) -> bool:
    """Whether the gate speaks of kernels of these rows, not of their ops or categories."""
    return not any(_is_of_ops(gate.subject, row) for row in rows)


def _sums(gate: Gate, rows: Sequence[ComparedRow]) -> tuple[float, float]:
    """The gate's figure of both sides, summed over rows; of a kernel its own."""
    key, sums = gate.figure or "ms", [0.0, 0.0]
    is_kernel = _is_kernel(gate, rows)
    for row in rows:
        for at, side in enumerate((row.a, row.b)):
            if side is None:
                continue
            own = [kernel for kernel in side.kernels if _is_named(gate.subject, kernel.name)] if is_kernel else []
            each = [kernel.count if key == "calls" else kernel.ms for kernel in own]
            sums[at] += sum(each) if is_kernel else getattr(side, key)
    return sums[0], sums[1]


def _share(gate: Gate, found: Comparison) -> float:
    """The change of a share of the time, in percentage points."""
    if gate.subject == MATCHED:
        return 100 * (min(found.matched_share) - 1)
    if found.a.coverage is None or found.b.coverage is None:
        raise NothingToAnalyzeError(f"gate {gate.text!r}: a side has no figure for coverage; compare its trace instead")
    return 100 * (found.b.coverage - found.a.coverage)


def _kernels(row: ComparedRow) -> tuple[KernelShare, ...]:
    return (*(row.a.kernels if row.a else ()), *(row.b.kernels if row.b else ()))


def _is_named(subject: str, name: str) -> bool:
    """Whether a kernel is called so, wholly or as sentences call it; ``…`` ends a name that they clip."""
    if subject.endswith("…"):
        return name.startswith(subject[:-1]) or family(name).startswith(subject[:-1])
    return subject in (name, family(name))


def _is_of(subject: str, row: ComparedRow) -> bool:
    return _is_of_ops(subject, row) or any(_is_named(subject, kernel.name) for kernel in _kernels(row))


def _is_of_ops(subject: str, row: ComparedRow) -> bool:
    if subject == STEP:
        return True
    if subject in (BUSY, IDLE):
        return row.is_idle == (subject == IDLE)
    if subject == COMM:
        return row_role(row) == COMMUNICATION
    ops = (*(row.a.ops if row.a else ()), *(row.b.ops if row.b else ()))
    if subject.endswith("…"):
        return any(op.startswith(subject[:-1]) for op in ops)
    return subject in (row.category, *ops)


def _shares(gate: Gate, rows: Sequence[ComparedRow]) -> tuple[float, float]:
    """The share of the roofline of both sides, in percent, over rows of known work."""
    found = []
    for side in ([row.a for row in rows if row.a], [row.b for row in rows if row.b]):
        known = [one for one in side if one.of_roofline is not None and one.kernel_ms]
        total = sum(one.kernel_ms for one in known)
        if not total:
            raise NothingToAnalyzeError(
                f"gate {gate.text!r}: the roofline of {gate.subject!r} is unknown: it needs recorded shapes and a "
                "device of known figures"
            )
        found.append(100 * sum((one.of_roofline or 0.0) * one.kernel_ms for one in known) / total)
    return found[0], found[1]


def _in_points(
    rows: Sequence[ComparedRow], of_time: tuple[float, float] | None, share: float
) -> tuple[float, float] | None:
    """Bounds of a change of a share of the roofline, from those of the time that it is a share of."""
    before, after = (sum(side.ms for side in sides if side) for sides in zip(*((r.a, r.b) for r in rows), strict=True))
    if of_time is None or not before or not after or before + of_time[0] <= 0:
        return None
    points = [share * (after / (before + change) - after / before) for change in of_time]
    return min(points), max(points)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """What ``tl.compare`` and ``tracelens compare`` take beside the two sides."""

    gate: tuple[str, ...] = option(
        "fail (exit code 4) beyond this limit: 'step<+3%%', 'GEMM.percent_of_roofline>-2'; repeatable", (), repeat=True,
        metavar="EXPRESSION",
    )  # fmt: skip
    steps: str | None = option(
        "compare these steps only: 3, 3-5 or steady; default: all complete steps", metavar="N|N-M|steady"
    )
    device: str | None = option("device of both sides; default: recognized from each trace", metavar="NAME|spec.toml")
    extension: tuple[str, ...] = option(
        "extension to load besides the bundled ones; repeatable", (), repeat=True, metavar="FILE|MODULE"
    )
    baselines: Path = option("folder of named baselines", Path(".tracelens/baselines"), kind=Path, metavar="FOLDER")

    @property
    def gates(self) -> tuple[Gate, ...]:
        return tuple(Gate.parse(text) for text in self.gate)
