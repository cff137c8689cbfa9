"""The rows of a comparison on one side: calls, kernels, time and rates per step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracelens.analysis.grouping import Codes, first_of_each, numbered
from tracelens.analysis.intervals import Ints
from tracelens.comparison.alignment.numbered_calls import Numbered
from tracelens.comparison.alignment.work_roles import COMMUNICATION, COPY, call_role
from tracelens.comparison.compared import KernelShare, RowSide, on_grid
from tracelens.comparison.sides import Call, Floats, Rates, by_step, weights
from tracelens.units import NS_PER_MS, NS_PER_US, TERA_PER_S_IN_PER_US

#: Share of a row's kernel time that calls of known work must have for their rate to stand for it.
_LEAST_KNOWN = 0.5
#: Times the median of its kernel from which a launch did not take as long as it needed, and the largest share of such.
_FAR, _MOST_STALLED = 10, 0.1


class MeasuredSide:
    """``steps`` and ``ranks``: ns of every step by row, see ``by_step``. Figures are of the mean step."""

    def __init__(self, numbered_side: Numbered, rows: Sequence[Ints], count: int) -> None:
        self.numbered = numbered_side
        side = numbered_side.side
        self.steps, self.ranks = by_step(side, rows, count)
        self._rows, self._calls = np.concatenate(list(rows)), np.concatenate(numbered_side.call_of)
        each = weights(side)
        lengths = [len(one.call) for one in side.recordings]
        self._weight = np.repeat(each, lengths)
        self._kernel_ns = np.concatenate([one.kernel_ns for one in side.recordings]) * self._weight
        self._count = count
        self._ms = [on_grid(ns / NS_PER_MS) for ns in self.steps.mean(axis=1).tolist()]
        self._kernel_ms = self._sum(self._kernel_ns) / NS_PER_MS
        self._repeats = np.concatenate([one.repeats for one in side.recordings])
        # Shares of steps leave whole numbers a rounding error apart
        self._number = np.round(self._sum(self._weight * self._repeats), 9)
        self._kernels = self._kernels_by_row(rows, each)
        self._calls_of_row = self._calls_by_row()
        self._rates()

    def row(self, number: int) -> RowSide | None:
        """None where the side has nothing of that row."""
        if not self._number[number]:
            return None
        calls = [self.numbered.calls[c] for c in self._calls_of_row[number]]
        return RowSide(
            ops=tuple(dict.fromkeys(call.label for call in calls)),
            calls=float(self._number[number]),
            ms=self._ms[number],
            kernel_ms=float(self._kernel_ms[number]),
            kernels=tuple(self._kernels[number]),
            shapes=tuple(dict.fromkeys(call.shapes for call in calls if call.shapes)),
            dtypes=tuple(dict.fromkeys(call.dtypes for call in calls if call.dtypes)),
            tflops_s=_known(self._tflops[number]),
            hbm_tb_s=_known(self._hbm[number]),
            of_roofline=_known(self._of_roofline[number]),
            flops=_known(self._flops[number]),
            bound=self._bound.get(number),
        )

    def _sum(self, values: Floats) -> Floats:
        return np.bincount(self._rows, values, minlength=self._count).astype(np.float64)

    def _calls_by_row(self) -> dict[int, list[int]]:
        """The distinct calls of each row, in order of appearance."""
        group = numbered(self._rows, self._calls)
        found: dict[int, list[int]] = defaultdict(list)
        for at in sorted(first_of_each(group).tolist()):
            found[int(self._rows[at])].append(int(self._calls[at]))
        return found

    def _kernels_by_row(self, rows: Sequence[Ints], each: Sequence[float]) -> dict[int, list[KernelShare]]:
        """The kernels of each row, the longest first."""
        codes: dict[str, int] = {}
        row, name, ns, weight = [], [], [], []
        for one, own, share in zip(self.numbered.side.recordings, rows, each, strict=True):
            code = np.array([codes.setdefault(text, len(codes)) for text in one.kernel_names] or [0], np.int64)
            row.append(own[one.event_unit])
            name.append(code[one.event_kernel])
            ns.append(one.event_ns * share)
            weight.append(np.full(len(one.event_ns), share))
        rows_of, names_of = np.concatenate(row), np.concatenate(name)
        group, texts = numbered(rows_of, names_of), list(codes)
        first = first_of_each(group)
        weights_of, ns_of = np.concatenate(weight), np.concatenate(ns)
        total, count = np.bincount(group, ns_of), np.round(np.bincount(group, weights_of), 9)
        event_ns = np.concatenate([one.event_ns for one in self.numbered.side.recordings])
        middle, of_time = _medians(group, event_ns)
        long = event_ns > _FAR * middle[group]
        stalls = [np.bincount(group, values * long).tolist() for values in (weights_of, ns_of / NS_PER_MS)]
        is_known = self.numbered.side.first.is_ordered
        found: dict[int, list[KernelShare]] = defaultdict(list)
        columns = (
            rows_of[first].tolist(), names_of[first].tolist(), count.tolist(), (total / NS_PER_MS).tolist(),
            (of_time / NS_PER_US).tolist(),
        )  # fmt: skip
        for at, code, number, ms, median_us, *stalled in zip(*columns, *stalls, strict=True):
            few = is_known and 0 < stalled[0] <= _MOST_STALLED * number
            stalls_of = (stalled[0], stalled[1]) if few else None
            found[at].append(KernelShare(name=texts[code], count=number, ms=ms, median_us=median_us, stalls=stalls_of))
        for kernels in found.values():
            kernels.sort(key=lambda kernel: (-kernel.ms, kernel.name))
        return found

    def _rates(self) -> None:
        """Work over the kernel time of the calls whose work is known."""
        rate_of: dict[Call, Rates] = {}
        for one in self.numbered.side.recordings:
            for call, rates in zip(one.calls, one.rates, strict=True):
                rate_of.setdefault(call, rates)
        known = [rate_of[call] for call in self.numbered.calls]

        def per_unit(key: str) -> Floats:
            values: Floats = np.array([getattr(rates, key) for rates in known] or [np.nan])
            return values[self._calls]

        def ratio(amount: Floats, scale: float) -> Floats:
            said = ~np.isnan(amount) & (self._kernel_ns > 0)
            ns = self._sum(np.where(said, self._kernel_ns, 0.0))
            total = self._sum(np.where(said, amount * self._weight * self._repeats, 0.0))
            enough = (ns > 0) & (ns >= _LEAST_KNOWN * self._sum(self._kernel_ns))
            found: Floats = np.divide(total * scale, ns, out=np.full(self._count, np.nan), where=enough)
            return found

        flops, hbm_bytes = per_unit("flops"), per_unit("hbm_bytes")
        self.coverage = self._covered(~(np.isnan(flops) & np.isnan(hbm_bytes)))
        per_us = NS_PER_US / TERA_PER_S_IN_PER_US
        self._tflops, self._hbm = ratio(flops, per_us), ratio(hbm_bytes, per_us)
        self._of_roofline = ratio(per_unit("roofline_us"), NS_PER_US)
        unknown = self._sum(np.where(np.isnan(flops), self._weight, 0.0)) > 0
        self._flops = np.where(unknown, np.nan, self._sum(np.nan_to_num(flops) * self._weight * self._repeats))
        self._bound = {
            row: bound for row, calls in self._calls_of_row.items() for call in calls if (bound := known[call].bound)
        }

    def _covered(self, is_known: npt.NDArray[np.bool_]) -> float | None:
        """The share of the kernel time of computation in units of known work."""
        computes = np.array([call_role(call) not in (COMMUNICATION, COPY) for call in self.numbered.calls] or [False])
        ns = self._kernel_ns * computes[self._calls]
        return float(ns[is_known].sum() / ns.sum()) if ns.any() else None


def _medians(group: Codes, ns: Ints) -> tuple[Ints, Ints]:
    """Of each group the median, the lower one of two, and the value up to which half of the sum is."""
    order = np.lexsort((ns, group))
    count, ordered = np.bincount(group), ns[order]
    last = np.cumsum(count)
    total = np.concatenate(([0], np.cumsum(ordered)))
    half = (total[last - count] + total[last] + 1) // 2
    middle = last - count + (count - 1) // 2
    of_sum = np.clip(np.searchsorted(total[1:], half), last - count, last - 1)
    return ordered[middle], ordered[of_sum]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
