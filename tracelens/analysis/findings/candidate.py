"""What a rule found before it is ranked: a sentence, its proof, and the time that it claims."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.lazy.records import dataclass

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Claimed:
    """Parts of the window and how much of each (ns) can go: at least ``low``, by estimate ``gain``, at most ``high``.

    ``part`` numbers the parts of ``WindowTime``, each once: device events, then idle time. ``spares_launches``: the
    host has less to launch, so that what it launches late comes earlier too.
    """

    part: Codes
    low_ns: Floats
    gain_ns: Floats
    high_ns: Floats
    spares_launches: bool = False

    def __add__(self, other: Claimed) -> Claimed:
        """Both, which share no part."""
        pairs = ((getattr(self, key), getattr(other, key)) for key in ("part", "low_ns", "gain_ns", "high_ns"))
        part, low, gain, high = (np.concatenate(pair) for pair in pairs)
        spares = self.spares_launches and other.spares_launches
        return Claimed(part=part, low_ns=low, gain_ns=gain, high_ns=high, spares_launches=spares)

    def among(self, free: npt.NDArray[np.bool_]) -> Claimed:
        """The parts that are free."""
        at = free[self.part]
        if at.all():
            return self
        return Claimed(
            part=self.part[at], low_ns=self.low_ns[at], gain_ns=self.gain_ns[at], high_ns=self.high_ns[at],
            spares_launches=self.spares_launches,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """Something that may become a finding. ``why`` is the sentence, ``figures`` its numbers.

    ``computed`` says how the gain was computed. ``row``: table row of an op (or launch) that shows where it is; None
    where it is everywhere. ``op``: its name, where the finding speaks of one op; ``shapes``: of all its calls, where
    these differ from those of ``row``. ``remedy``, ``command``: instead of those of the rule. ``is_priced``: whether
    anything says what going without the claimed time takes; of an unknown cause nothing does, so that the finding says
    how long it is and has no gain.
    """

    why: str
    claimed: Claimed
    computed: str
    figures: tuple[Said, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    certainty: str = "medium"
    op: str | None = None
    row: int | None = None
    shapes: str | None = None
    remedy: str | None = None
    command: str | None = None
    is_priced: bool = True
