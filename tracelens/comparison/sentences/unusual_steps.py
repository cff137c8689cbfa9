"""Steps that took far longer than the others of their side: a mean says nothing of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracelens.analysis.intervals import Ints
from tracelens.comparison.alignment.work_roles import COMMUNICATION, role
from tracelens.comparison.compared import IDLE, ComparedRow
from tracelens.comparison.late_ranks import RankTimes
from tracelens.comparison.measured_rows import MeasuredSide
from tracelens.units import NS_PER_MS

#: Times the median from which a step is named, how many must be there to have one, and how many are named.
_FAR, _LEAST_STEPS, _MOST = 1.25, 3, 3
#: Share of the mean step that what they took more must be.
_LEAST_EXTRA = 0.02
#: Share of what they took more that a rank must have taken for itself to be what the others waited for.
_LEAST_OWN = 0.5


def unusual_steps(
    name: str, side: MeasuredSide, ranks: RankTimes | None, numbers: Sequence[int], rows: Sequence[ComparedRow]
) -> list[str]:
    """A sentence for a side (``name``: A or B) that has such. ``numbers``: those of ``rows`` in ``side``."""
    step_ms = side.steps.sum(axis=0) / NS_PER_MS
    median = float(np.median(step_ms))
    far = np.flatnonzero(step_ms > _FAR * median)
    extra = float((step_ms[far] - median).sum()) / len(step_ms)
    if len(step_ms) < _LEAST_STEPS or not len(far) or extra < _LEAST_EXTRA * step_ms.mean():
        return []
    by_category: dict[str, float] = defaultdict(float)
    for number, row in zip(numbers, rows, strict=True):
        own = side.steps[number]
        by_category[row.category] += float((own[far] - np.median(own)).sum())
    most = max(by_category, key=lambda category: by_category[category])
    named = ", ".join(f"{step_ms[at]:.3g}" for at in far[:_MOST]) + (" ..." if len(far) > _MOST else "")
    which = f"step {far[0] + 1}" if len(far) == 1 else f"{len(far)} steps"
    what = "idle time" if most == IDLE else most
    late = _late(ranks, far, extra) if ranks is not None and role(most) == COMMUNICATION else None
    what = what if late is None else f"waiting for rank {late}"
    of_mean = f"{extra:.3g} ms of the mean step, most of it {what}"
    return [f"{name}: {which} of {len(step_ms)} took {named} ms, the median is {median:.3g}: {of_mean}"]


def _late(ranks: RankTimes, far: Ints, extra_ms: float) -> int | None:
    """The rank whose own time explains most of what these steps took more in the mean step."""
    own_ms = ranks.own / NS_PER_MS
    more_ms = (own_ms[:, far] - np.median(own_ms, axis=1, keepdims=True)).sum(axis=1) / own_ms.shape[1]
    last = int(more_ms.argmax())
    return ranks.numbers[last] if more_ms[last] >= _LEAST_OWN * extra_ms else None
