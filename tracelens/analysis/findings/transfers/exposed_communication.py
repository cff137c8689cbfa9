"""Communication during which nothing computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.transfers.communication_kinds import (
    REMEDIES,
    REMEDIES_OF_LATENCY,
    SEND_RECV,
    STAGES,
    exposed_kinds,
    holds_only_communication,
    in_words,
)
from tracelens.analysis.findings.wording import duration, percent, size
from tracelens.analysis.grouping import distinct_rows
from tracelens.analysis.sheets.ops import coll_analysis
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.backends.collective_times import Collectives
from tracelens.backends.system import System
from tracelens.lazy.patterns import lazy_pattern
from tracelens.lazy.records import dataclass
from tracelens.perf_models.work_columns import WorkColumns
from tracelens.units import NS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from tracelens.hardware import HardwareSpec

#: Bus bandwidth, as a share of the link's rate, below which collectives are called slow.
SLOW_BUS = 0.1
#: How many times as long as it needs a collective takes whose time goes mostly into something else.
_MOSTLY_ELSE = 2.0
#: Calls of one size whose durations spread: the longest and the mean, in shortest ones. A path slows all of them alike.
_LONGEST_OF_SPREAD, _MEAN_OF_SPREAD = 3.0, 1.5
#: How many times as long as any other call a few of a kind are that stand apart.
_APART = 5.0
#: A few are at most one in so many.
_FEW = 4
ALL_LATENCY = "a message this small is all latency"
_NO_SIZES = "their sizes were not recorded"
_LATE_RANKS = "see who is late with `tracelens collectives` on the traces of all ranks"
_LATE_OR_SLOW = f"{_LATE_RANKS}, and which path was taken with NCCL_DEBUG=INFO"
#: From this share of it on, exposed communication is told to be mostly of one kind.
_MOSTLY = 0.5
_WAITS = lazy_pattern(r"(?i)notify|barrier|wait|semaphore")


@finding(
    "exposed_communication",
    Advice(
        sees="Communication during which nothing computes.",
        costs="The compute units wait for the links, or for a rank that comes later.",
        remedy="overlap it (larger or earlier buckets, async ops), or split otherwise: `tracelens collectives`, "
        "`search`",
        wrong_when="One rank is late: the time is then another rank's work, which `tracelens collectives` shows.",
        command="tracelens collectives FOLDER",
    ),
)
def exposed_communication(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of it."""
    events = seen.activity.communication
    exposed_ns = int(seen.own_ns[events].sum())
    if not exposed_ns or holds_only_communication(seen.table, seen.activity):
        return
    share = exposed_ns / seen.window_ns
    kind = _kind(seen, exposed_ns)
    hides = next((reason.remedy for reason in kind), "")
    reasons = [*_waiting(seen, exposed_ns), *_collectives(seen, hides)]
    said = ", ".join([f"exposed communication takes {percent(share)} of the time", *(reason.text for reason in kind)])
    yield Candidate(
        why="; ".join([said, *(reason.text for reason in reasons)]),
        claimed=seen.kernels(events, low=0.0),
        computed="communication during which nothing computes; at least none of it",
        certainty="low",
        figures=(
            Said(what="share of the time", value=share, unit="share"),
            *(said for reason in (*kind, *reasons) for said in reason.figures),
        ),
        evidence=tuple(row for reason in reasons for row in reason.evidence),
        remedy=next((reason.remedy for reason in (*reasons, *kind) if reason.remedy), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reason:
    """Why communication takes as long as it does, and what to do about it instead of what the rule says."""

    text: str
    figures: tuple[Said, ...]
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


def _kind(seen: Observed, exposed_ns: int) -> tuple[_Reason, ...]:
    """The kind that most of it is, if one is."""
    kinds = exposed_kinds(seen)
    kind = max(kinds, key=kinds.__getitem__, default="")
    if not kind or kinds[kind] < _MOSTLY * exposed_ns:
        return ()
    said = Said(what=f"of that, {kind}", value=kinds[kind] / exposed_ns, unit="share")
    return (_Reason(text=f"mostly {kind}", figures=(said,), remedy=REMEDIES.get(kind, "")),)


def _waiting(seen: Observed, exposed_ns: int) -> Iterator[_Reason]:
    """Kernels that only wait for other ranks."""
    activity = seen.activity
    waits = np.zeros(len(seen.table.names), bool)
    for name in distinct_rows(activity.name, len(waits)).tolist():
        waits[name] = _WAITS.search(seen.table.names[name]) is not None
    at = waits[activity.name] & ~activity.memcpy
    time_us = float(activity.duration[at].sum()) / NS_PER_US
    if time_us > 0.01 * seen.device_us:
        each_us = time_us / seen.steps
        text = f"kernels that only wait for other ranks (notify, barrier) take {duration(each_us)}"
        said = Said(what="kernels that wait", value=each_us, unit="us")
        is_most = float(seen.own_ns[at].sum()) > _MOSTLY * exposed_ns
        yield _Reason(text=text, figures=(said,), remedy=_LATE_RANKS if is_most else "")


def _collectives(seen: Observed, hides: str) -> Iterator[_Reason]:
    """What the collectives of one size that take most time tell of themselves."""
    frame, device = seen.context.frames[coll_analysis.TITLE], seen.device
    if "effective_bus_gb_s" not in frame:
        return
    known = frame[frame["effective_bus_gb_s"].notna() & (frame["duration_us_sum"] > 0)]
    if 2 * known["duration_us_sum"].sum() < frame["duration_us_sum"].sum():
        yield from _calls_apart(seen, hides)
    elif not known.empty:
        yield from _Calls.of(seen, known, device).reasons()


def _calls_apart(seen: Observed, hides: str) -> Iterator[_Reason]:
    """A few collectives that take most of the time of all, each far longer than any other; their sizes are unknown."""
    lasts = np.sort(seen.activity.duration[seen.activity.collective])[::-1]
    if len(lasts) < 2:
        return
    ratio = lasts[:-1] / np.maximum(lasts[1:], 1)
    few = int(np.argmax(ratio[: max(1, len(lasts) // _FEW)])) + 1
    share = float(lasts[:few].sum() / lasts.sum())
    if few * _FEW > len(lasts) or ratio[few - 1] < _APART or share < _MOSTLY:
        yield _Reason(text=f"{_NO_SIZES}, so waiting is not told from moving", figures=(), remedy=_first(hides))
        return
    shortest_us, other_us = float(lasts[few - 1]) / NS_PER_US, float(lasts[few]) / NS_PER_US
    longest, each = ("longest", "takes") if few == 1 else (f"{few} longest", "each take")
    text = (
        f"the {longest} of {len(lasts)} collectives {each} {duration(shortest_us)} or more, {percent(share)} of all, "
        f"and no other more than {duration(other_us)}: a rank comes late to them, or they move far more ({_NO_SIZES})"
    )
    figures = (
        Said(what="collectives", value=len(lasts), unit="count"),
        Said(what="long ones", value=few, unit="count"),
        Said(what="of their time", value=share, unit="share"),
        Said(what="shortest of them", value=shortest_us, unit="us"),
        Said(what="longest other", value=other_us, unit="us"),
    )
    yield _Reason(text=text, figures=figures, remedy=_LATE_RANKS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """The calls of one collective of one size in one group: a row of the sheet.

    ``alone_us``: what one takes where nobody is late, by the library's model; ``is_latency``: most of that is there
    without bytes, too. ``others_us``: moving as much takes at most this long, as other calls of the group show.
    """

    kind: str
    word: str | None
    size_mb: float
    calls: int
    mean_us: float
    shortest_us: float
    longest_us: float
    rate: float
    best_rate: float
    link: float | None
    alone_us: float | None
    is_latency: bool
    others_us: float | None

    @classmethod
    def of(cls, seen: Observed, known: pd.DataFrame, device: HardwareSpec | None) -> _Calls:
        """The ones that take most time."""
        row = known.iloc[[int(known["duration_us_sum"].argmax())]]
        most = row.iloc[0]
        alone_us = None if device is None else _alone_us(row, device)
        return cls(
            kind=str(most["collective"]),
            word=in_words(seen, most["collective"]),
            size_mb=float(most["in_mb"]),
            calls=int(most["operation_count"]),
            mean_us=float(most["duration_us_mean"]),
            shortest_us=float(most["duration_us_min"]),
            longest_us=float(most["duration_us_max"]),
            rate=float(most["effective_bus_gb_s"]),
            best_rate=float(most["effective_bus_gb_s_shortest"]),
            link=None if device is None or device.link is None else device.link.gb_s,
            alone_us=alone_us,
            is_latency=device is not None and alone_us is not None and _is_latency(row, device),
            others_us=_as_others_show(known, most),
        )

    @property
    def _spread(self) -> bool:
        apart = self.longest_us >= _LONGEST_OF_SPREAD * self.shortest_us
        return apart and self.mean_us >= _MEAN_OF_SPREAD * self.shortest_us

    @property
    def _path_is_fine(self) -> bool:
        """Whether the shortest call was about as fast as the links are."""
        return self.alone_us is not None and self.shortest_us <= _MOSTLY_ELSE * self.alone_us

    @property
    def _others_are_faster(self) -> bool:
        return self.others_us is not None and self.mean_us >= _MOSTLY_ELSE * self.others_us

    @property
    def _is_slow(self) -> bool:
        return self.link is not None and self.rate < SLOW_BUS * self.link

    def reasons(self) -> Iterator[_Reason]:
        """Waiting, where two of three signs say so: calls of one size spread, the shortest is as fast as the links are,
        others of the group move as much in half of the time. Latency, where the shortest is slow as well.
        """
        if self._spread + self._path_is_fine + self._others_are_faster >= 2 and not self._is_small():
            yield self._waits()
        elif self._is_slow and self._is_small():
            yield self._reason(f"{self._reached()}: {ALL_LATENCY}", REMEDIES_OF_LATENCY)
        elif self._is_slow and self.alone_us is not None and self.mean_us > _MOSTLY_ELSE * self.alone_us:
            whom, otherwise = ("another stage", STAGES) if self.word == SEND_RECV else ("a late rank", _LATE_OR_SLOW)
            even = f", {self._shortest()}" if self.calls > 1 else ""
            yield self._reason(f"{self._reached()}{even}: it waits for {whom}, or takes a slower path", otherwise)
        elif self._is_slow:
            yield self._reason(self._reached(), _first(REMEDIES.get(self.word or "", "")))

    def _is_small(self) -> bool:
        return (
            self.is_latency
            and not self._spread
            and self.alone_us is not None
            and self.mean_us <= _MOSTLY_ELSE * self.alone_us
            and (self.link is None or self.best_rate < SLOW_BUS * self.link)
        )

    def _waits(self) -> _Reason:
        whom, remedy = ("another stage", STAGES) if self.word == SEND_RECV else ("a rank that comes late", _LATE_RANKS)
        took = f"{self.kind} of {size(self.size_mb)} takes {duration(self.mean_us)} on average"
        seen = f" and {self._shortest()}" if self._spread else ""
        if self._others_are_faster and self.others_us is not None:
            seen += f"; by other calls of its group, {duration(self.others_us)} would do"
        return self._reason(f"{took}{seen}: it mostly waits for {whom}", remedy)

    def _shortest(self) -> str:
        return f"{duration(self.shortest_us)} at its shortest ({self.best_rate:.3g} GB/s bus bandwidth)"

    def _reached(self) -> str:
        limit = "" if self.link is None else f" of the link's {self.link:,.0f}"
        return f"{self.kind} of {size(self.size_mb)} reaches {self.rate:.3g} GB/s bus bandwidth{limit}"

    def _reason(self, text: str, remedy: str) -> _Reason:
        figures = (
            Said(what="bytes sent", value=self.size_mb, unit="MB"),
            Said(what="bus bandwidth", value=self.rate, unit="GB/s"),
            Said(what="mean", value=self.mean_us, unit="us"),
            Said(what="shortest", value=self.shortest_us, unit="us"),
            Said(what="bus bandwidth of the shortest", value=self.best_rate, unit="GB/s"),
            *([] if self.link is None else [Said(what="link", value=self.link, unit="GB/s")]),
            *([] if self.others_us is None else [Said(what="as others of its group", value=self.others_us, unit="us")]),
        )
        evidence = Evidence(sheet=coll_analysis.TITLE, row={"collective": self.kind, "in_mb": self.size_mb})
        return _Reason(text=text, figures=figures, evidence=(evidence,), remedy=remedy)


def _first(then: str) -> str:
    """What to do where nothing tells waiting from moving."""
    return "; then ".join([_LATE_RANKS, *([then] if then else [])])


def _as_others_show(known: pd.DataFrame, most: pd.Series) -> float | None:
    """How long (µs) moving as much takes at most, by the shortest calls of the same kind and group with other sizes:
    as long as more bytes took, or as fewer did times the ratio of their bytes. None without such calls.
    """
    same = known[(known["collective"] == most["collective"]) & (known["in_mb"] > 0) & (known.index != most.name)]
    for key in ("group_name", "group_ranks", "group_size"):
        # Where none was recorded, all calls of one size of group are taken for one group
        same = same[(same[key] == most[key]) | (same[key].isna() & (most[key] is None))]
    if same.empty:
        return None
    ratio = np.maximum(1.0, float(most["in_mb"]) / same["in_mb"].to_numpy(float))
    return float((same["duration_us_min"].to_numpy(float) * ratio).min())


def _alone_us(
    row: pd.DataFrame, device: HardwareSpec, *, elements: int | None = None, near: bool = False
) -> float | None:
    """What a collective (of so many ``elements``) takes by the library's model of the device's standard node
    (``tracelens.network``) when nobody is late; where the ranks of its group are not known, with each in a node of its
    own, or all ``near`` each other. None where it has no model.
    """
    system = System.of_device(device).in_a_node()
    if system.topology is None:
        return None
    # A message arrives when it has been sent
    sent = row.assign(collective=row["collective"].replace("recv", "send"))
    if elements is not None:
        sent = sent.assign(in_nelems=elements, out_nelems=elements)
    (model,) = coll_analysis.collective_models(sent, stride=1 if near else system.topology.ranks_per_node)
    if model is None:
        return None
    time_us = float(Collectives().estimate_many(WorkColumns.of([model]), system).time_us[0])
    return time_us if time_us > 0 else None


def _is_latency(row: pd.DataFrame, device: HardwareSpec) -> bool:
    """Whether most of what a collective takes is there without bytes as well, wherever its ranks are."""
    size = row["group_size"].iloc[0]
    least = size if isinstance(size, int) else 1
    for near in (False, True):
        first, whole = (_alone_us(row, device, elements=elements, near=near) for elements in (least, None))
        if first is None or whole is None or 2 * first <= whole:
            return False
    return True
