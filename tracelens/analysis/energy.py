"""Joules of a recording: of every device event by the power model, of steps, categories and kernels as sums of them.

An event draws the watts of its row of ``unified_perf_summary`` while it is what keeps the device busy (``own_ns``);
behind others it adds what its own work asks for, as far as the limit leaves room. Idle time draws what a waiting device
does. Time of unknown work counts at the mean watts of the known, and between idle and the limit, where the watts of
``COMPLETE`` of the time are known; else the sum is unknown. docs/energy.md has the model's errors.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.activity import DeviceActivity
from tracelens.analysis.grouping import Codes
from tracelens.analysis.intervals import Floats, Ints
from tracelens.analysis.verdict.summary import COMPLETE, LEAST_KNOWN
from tracelens.backends.roofline_and_tile import HBM_PER_WIRE, works
from tracelens.hardware import HardwareSpec
from tracelens.hardware.device_figures import PowerConstants
from tracelens.hardware.power import Drawn, KernelWork, demand_w, family_power, idle_power, kernel_power
from tracelens.perf_models.base import WorkColumns
from tracelens.types.records import Record
from tracelens.types.units import GB_PER_S_IN_BYTES_PER_US, NS_PER_S


class RowPower(Record, frozen=True, kw_only=True, eq=False):
    """Watts of rows while they run alone, and the share of it above idle that their work asks for; NaN: unknown."""

    constants: PowerConstants
    drawn: Drawn
    of_work: Floats

    @classmethod
    def unknown(cls, constants: PowerConstants, rows: int) -> RowPower:
        """Of rows of which nothing is known yet."""
        columns = [np.full(rows, np.nan) for _ in range(4)]
        return cls(constants=constants, drawn=Drawn(*columns[:3]), of_work=columns[3])

    @property
    def columns(self) -> tuple[Floats, ...]:
        """Watts, their low and high end, and the share of the work."""
        return *self.drawn, self.of_work

    def put(self, at: npt.NDArray[np.intp], work: KernelWork) -> None:
        """Fills the rows ``at`` with what ``work`` draws."""
        row, asked = family_power(self.constants, work), demand_w(self.constants, work)
        for column, values in zip(self.drawn, kernel_power(self.constants, work), strict=True):
            column[at] = values
        active_w = 0.0 if row is None else row.terms.get("active_w", 0.0)
        self.of_work[at] = 1 - np.divide(active_w, asked, out=np.zeros_like(asked), where=asked > 0)

    def of(self, device: HardwareSpec, work: WorkColumns, at: Ints, time_us: Floats) -> RowPower:
        """The same with the rows ``at`` filled, whose ``work`` took ``time_us``."""
        timed = np.flatnonzero(time_us > 0)
        at, time_us, work = at[timed], time_us[timed], work.take(timed.tolist())
        for rows, part in works(work, device, time_us):
            self.put(at[rows], part)
        return self

    def of_collectives(self, rate: Floats, time_us: Floats, took: Floats) -> RowPower:
        """The same, one row, with the mean of collectives by the us that they ``took``, of which one takes ``time_us``,
        where the sizes of most of it are known, and so their ``rate`` (GB/s of the bus). The low end is idle: waiting
        for other ranks may draw no more.
        """
        known = ~np.isnan(rate)
        if not took[known].sum() > LEAST_KNOWN * took.sum():
            return self
        moved = RowPower.unknown(self.constants, int(known.sum()))
        wire = (rate * time_us)[known] * GB_PER_S_IN_BYTES_PER_US
        hbm = HBM_PER_WIRE * wire
        work = KernelWork(
            family="collective", time_us=time_us[known], flops={}, hbm_bytes=hbm, l2_bytes=hbm, link_bytes=wire
        )
        moved.put(np.arange(known.sum()), work)
        for column, values in zip(self.columns, moved.columns, strict=True):
            column[:] = np.average(values, weights=took[known])
        self.drawn.low_w[:] = idle_power(self.constants)
        return self


class EventEnergy(Record, frozen=True, kw_only=True, eq=False):
    """Joules of each device event of the window, NaN where its work is unknown, and between which they lie.

    ``own_ns``: how long of its ``duration_ns`` each is what keeps the device busy. ``rows``: watts of the rows of
    ``unified_perf_summary``.
    """

    rows: RowPower
    row_of_event: Codes
    duration_ns: Ints
    own_ns: Ints
    joules: Drawn

    @classmethod
    def of(
        cls, rows: RowPower, collectives: RowPower, activity: DeviceActivity, row_of_event: Codes, own_ns: Ints,
        group: Codes,
    ) -> EventEnergy:  # fmt: skip
        """``group``: of each event the step within which the limit holds for all together."""
        constants, count = rows.constants, len(rows.of_work)
        both = zip(rows.columns, collectives.columns, strict=True)
        *watts, of_work = (np.concatenate((*each, [np.nan])) for each in both)
        number = np.where(activity.collective, count, np.where(row_of_event < 0, count + 1, row_of_event))
        took = activity.duration
        hidden, own, idle = (took - own_ns) / NS_PER_S, own_ns / NS_PER_S, idle_power(constants)
        groups = int(group.max(initial=0)) + 1
        joules = []
        for each, most in zip(watts, (constants.share, constants.share, constants.most), strict=True):
            drawn = each[number]
            behind = (drawn - idle) * of_work[number] * hidden
            room = np.maximum(most * constants.limit_w - drawn, 0.0) * own
            # Which share of what each event wants its group has room for
            asked, left = (np.bincount(group, np.nan_to_num(each), groups) for each in (behind, room))
            found = drawn * own + behind * np.divide(left, asked, out=np.ones(groups), where=asked > left)[group]
            joules.append(np.where(took > 0, found, 0.0))
        return cls(rows=rows, row_of_event=row_of_event, duration_ns=took, own_ns=own_ns, joules=Drawn(*joules))

    @property
    def constants(self) -> PowerConstants:
        """The device's."""
        return self.rows.constants

    @property
    def mean_w(self) -> float:
        """Mean watts of the device while work runs that is known; NaN where none does."""
        known = ~np.isnan(self.joules.power_w)
        own_s = self.own_ns[known].sum() / NS_PER_S
        return float(self.joules.power_w[known].sum() / own_s) if own_s > 0 else np.nan

    def known_share(self, group: Codes, of_ns: Ints, took_ns: Ints) -> Floats:
        """Which share of the time ``of_ns`` of each group no event of unknown work ``took_ns``; 1 of no time."""
        unknown = np.isnan(self.joules.power_w)
        lost = np.bincount(group[unknown], took_ns[unknown], len(of_ns))
        return 1 - np.divide(lost, of_ns, out=np.zeros(len(of_ns)), where=of_ns > 0)

    def sums(self, group: Codes, groups: int) -> Drawn:
        """Joules of the events of each group, those of unknown work at ``mean_w``; NaN where these are not few."""
        share = self.known_share(group, np.bincount(group, self.duration_ns, groups), self.duration_ns)
        return Drawn(*(np.where(share >= COMPLETE, each, np.nan) for each in self._filled(group, groups)))

    def _filled(self, group: Codes, groups: int) -> Drawn:
        unknown, limit_w = np.isnan(self.joules.power_w), self.constants.most * self.constants.limit_w
        both = zip(self.joules, (self.mean_w, idle_power(self.constants), limit_w), strict=True)
        filled = (np.where(unknown, watts * self.own_ns / NS_PER_S, joules) for joules, watts in both)
        return Drawn(*(_summed(group, each, groups) for each in filled))

    def of_spans(self, group: Codes, length_ns: Ints) -> Drawn:
        """Joules of spans (steps, the window): their events, and what the device draws while it is idle in them. NaN
        where events of unknown work are not few. Events that outlast their span draw in the next.
        """
        few = self.known_share(group, length_ns, self.own_ns) >= COMPLETE
        busy, drawn = _summed(group, self.own_ns, len(length_ns)), self._filled(group, len(length_ns))
        if np.any((busy > length_ns)[:-1]):
            # Moves what spans are busy for beyond their length, and the joules of it, into the next one each.
            for at in range(len(busy) - 1):
                over = busy[at] - length_ns[at]
                if over > 0 and length_ns[at]:
                    for each in (busy, *drawn):
                        moved = each[at] * over / (over + length_ns[at])
                        each[at] -= moved
                        each[at + 1] += moved
        idle = idle_power(self.constants) * np.maximum(length_ns - busy, 0) / NS_PER_S
        return Drawn(*(np.where(few, each + idle, np.nan) for each in drawn))

    def watts_over(self, edges_ns: Ints, start_ns: Ints) -> Floats:
        """Mean watts of the device between each two of these times; events begin at ``start_ns`` and draw alike as long
        as they run, those of unknown work as the others in the mean, all together within the limit.
        """
        constants, own_s = self.constants, self.own_ns / NS_PER_S
        joules = np.where(np.isnan(self.joules.power_w), self.mean_w * own_s, self.joules.power_w)
        took = np.flatnonzero(self.duration_ns > 0)
        over_w = (joules - constants.idle_w * own_s)[took] / self.duration_ns[took] * NS_PER_S
        moments = np.concatenate((start_ns[took], (start_ns + self.duration_ns)[took]))
        order = np.argsort(moments, kind="stable")
        moments, level = moments[order], np.cumsum(np.concatenate((over_w, -over_w))[order])
        done = np.append(0.0, np.cumsum(level[:-1] * np.diff(moments)))
        mean = np.diff(np.interp(edges_ns, moments, done)) / np.diff(edges_ns) if len(moments) else 0.0
        return np.clip(constants.idle_w + mean, constants.idle_w, constants.most * constants.limit_w)

    def of_rows(self) -> Floats:
        """Joules of all calls of each row of ``unified_perf_summary``."""
        mine = self.row_of_event >= 0
        return _summed(self.row_of_event[mine], self.joules.power_w[mine], len(self.rows.of_work))


def _summed(group: Codes, values: Floats | Ints, groups: int) -> Floats:
    return np.bincount(group, values, groups).astype(np.float64)
