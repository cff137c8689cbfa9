"""What is to be different about a recorded trace, put together from the changes that were asked for."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.idle.dependency_replay import Bools, Changes, DependencyReplay, Floats
from tracelens.analysis.intervals import Ints
from tracelens.backends.system import System
from tracelens.lazy.records import dataclass
from tracelens.perf_models.base import PerfModel
from tracelens.perf_models.compute_type import ComputeType
from tracelens.whatif.subject import Subject

if TYPE_CHECKING:
    from tracelens.analysis.findings.replayed_gain import ReplayedGain
    from tracelens.analysis.findings.rule import Claimed

#: Of a normal distribution, how many standard deviations to each side hold 90 %.
Z90 = 1.645
#: Places in ``Plan.gaps``.
LEAST, LIKELY, MOST = range(3)


@dataclass(slots=True, kw_only=True, eq=False)
class Plan:
    """Changes put one on top of the other.

    ``factor``: what the duration of each device event is multiplied with; ``sigma``: the standard deviation of that
    factor's logarithm. ``models``, ``computed_in``: of each reading of the trace, as they are to be; ``amount``: how
    many times the work of its model a reading does; ``more_us``: what a call of it takes beside. ``recorded_on`` and
    ``system``: what the trace ran on, and what it is to run on. ``host``: what host time is multiplied with. ``gone``:
    rows of host events that fall away; ``saved``: spans of threads (lane, start, end in ns) that do; ``sooner``: how
    much (ns) of the delay before each device event that nothing recorded explains does. ``gaps``: how long (ns) after
    one kernel of a graph the next starts: at least, most likely, at most. ``claims``: of the findings that are applied,
    with how much (ns) of each part goes; ``replayed``: what says their gain in a report. ``notes``: what was assumed,
    for people.
    """

    subject: Subject
    factor: Floats
    sigma: Floats
    removed: Bools
    detached: Bools
    gone: Bools
    models: list[PerfModel | None]
    computed_in: list[ComputeType | None]
    system: System | None
    recorded_on: System | None
    amount: Floats
    more_us: Floats
    sooner: Ints
    host: float = 1.0
    replayed: ReplayedGain | None = None
    claims: list[tuple[Claimed, Floats]] = field(default_factory=list)
    gaps: tuple[int, int, int] | None = None
    saved: list[tuple[int, int, int]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, subject: Subject) -> Plan:
        """Nothing is different yet."""
        events, device = len(subject.activity), subject.recording.device
        system = None if device is None else System.of_device(device)
        return cls(
            subject=subject,
            factor=np.ones(events),
            sigma=np.zeros(events),
            removed=np.zeros(events, bool),
            detached=np.zeros(events, bool),
            gone=np.zeros(len(subject.table), bool),
            models=[reading.model for reading in subject.readings],
            computed_in=[reading.computed_in for reading in subject.readings],
            system=system,
            recorded_on=system,
            amount=np.ones(len(subject.readings)),
            more_us=np.zeros(len(subject.readings)),
            sooner=np.zeros(events, np.int64),
        )

    def multiply(self, events: Bools, by: float | Floats, sigma: float | Floats = 0.0) -> None:
        """Their time ``by`` as long; errors of independent changes add up as squares."""
        self.factor[events] *= by
        self.sigma[events] = np.hypot(self.sigma[events], sigma)

    def note(self, text: str) -> None:
        """Says something once."""
        if text not in self.notes:
            self.notes.append(text)

    def changes(
        self, shifted: Bools | None = None, by: float = 0.0, gap: int = LIKELY, *, graph: DependencyReplay | None = None
    ) -> Changes:
        """As a replay takes it (``graph``; of the whole file where none is given); the events that are ``shifted`` lie
        ``by`` of their standard deviations beside.

        ``gap``: which of ``gaps``.
        """
        activity, inside = self.subject.activity, self.subject.in_steps
        at = self.subject.replay.at if graph is None else np.searchsorted(activity.rows, graph.device.rows)
        factor = self.factor if shifted is None else self.factor * np.exp(np.where(shifted, by * self.sigma, 0.0))
        length = activity.duration.astype(np.float64) * np.where(inside, factor, 1.0)
        return Changes(
            length=length[at],
            removed=(self.removed & inside)[at],
            detached=(self.detached & inside)[at],
            host=self.host,
            without=self._spans(),
            gap=None if self.gaps is None else self.gaps[gap],
            sooner=self.sooner[at],
        )

    @property
    def families(self) -> list[Bools]:
        """The events of each category that have an uncertain time."""
        category, uncertain = self.subject.category, (self.sigma > 0) & ~self.removed
        found = [category.are(text) & uncertain for text in category.texts]
        return [events for events in found if events.any()]

    def _spans(self) -> tuple[Ints, Ints, Ints] | None:
        rows, table = np.flatnonzero(self.gone), self.subject.table
        saved = np.array(self.saved, np.int64).reshape(-1, 3)
        if not len(rows) and not len(saved):
            return None
        spans = table.lane[rows].astype(np.int64), table.start_ns[rows], table.ends_ns(rows)
        lane, start, end = (np.concatenate((own, more)) for own, more in zip(spans, saved.T, strict=True))
        return lane, start, end
