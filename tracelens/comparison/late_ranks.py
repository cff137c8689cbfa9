"""Which rank the others wait for: a collective ends everywhere at once, so who is last spends the least time in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tracelens.comparison.alignment.work_roles import COMMUNICATION, call_role, role
from tracelens.comparison.causes import LATE, OVERLAP, QUANTIZATION, SPEED, WORK
from tracelens.comparison.compared import ComparedRow
from tracelens.comparison.sides import Floats, Recorded, Side
from tracelens.lazy.records import dataclass
from tracelens.units import NS_PER_MS

#: Share of the change of communication that waiting must be to be its cause.
_LEAST_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Latecomer:
    """The ``rank`` with the least time in communication, and how much longer the mean rank does nothing but communicate
    than the one that does least, per step.
    """

    rank: int
    waiting_ms: float


def latecomer(side: Side) -> Latecomer | None:
    """None where no run has several ranks with the same steps."""
    runs = [run for run in side.parts if len(run) > 1 and len({len(one.durations_ns) for one in run}) == 1]
    if not runs or len({len(run) for run in runs}) > 1:
        return None
    exposed = np.concatenate([np.stack([_exposed(one) for one in run]) for run in runs], axis=1)
    waiting = (exposed.mean(axis=0) - exposed.min(axis=0)).mean()
    ns = np.concatenate([np.stack([_communication(one) for one in run]) for run in runs], axis=1)
    last = int(ns.mean(axis=1).argmin())
    rank = runs[0][last].rank
    return Latecomer(rank=last if rank is None else rank, waiting_ms=float(waiting) / NS_PER_MS)


def _exposed(one: Recorded) -> Floats:
    """ns by step in which nothing but collectives ran; those that wait at the same time count once."""
    is_one = _is_communication(one)[one.piece_unit]
    pieces = one.piece_step[is_one], one.piece_ns[is_one]
    return np.bincount(*pieces, minlength=len(one.durations_ns)).astype(np.float64)


def _is_communication(one: Recorded) -> npt.NDArray[np.bool_]:
    return np.array([call_role(call) == COMMUNICATION for call in one.calls] or [False], bool)[one.call]


def _communication(one: Recorded) -> Floats:
    """ns of collectives by step, waiting included."""
    is_one = _is_communication(one)
    return np.bincount(one.step[is_one], one.kernel_ns[is_one], minlength=len(one.durations_ns)).astype(np.float64)


def with_latecomers(rows: Sequence[ComparedRow], one: Side, other: Side) -> list[ComparedRow]:
    """The rows; where waiting for a rank is most of what changed in communication, with that cause."""
    before, after = latecomer(one), latecomer(other)
    timed = (n for n, row in enumerate(rows) if row.cause in (SPEED, OVERLAP, QUANTIZATION, WORK))
    at = [n for n in timed if role(rows[n].category, rows[n].name) == COMMUNICATION]
    change_ms = sum(rows[n].change_ms for n in at)
    if before is None or after is None or not change_ms:
        return list(rows)
    more_ms = after.waiting_ms - before.waiting_ms
    if more_ms / change_ms < _LEAST_SHARE:
        return list(rows)
    late = f"rank {after.rank} late" if more_ms > 0 else f"rank {before.rank} no longer late"
    why = f"{late}: a rank waits {after.waiting_ms:.3g} ms for the last one, {before.waiting_ms:.3g} ms before"
    found = list(rows)
    for n in at:
        found[n] = replace(rows[n], cause=LATE, why=why)
    return found
