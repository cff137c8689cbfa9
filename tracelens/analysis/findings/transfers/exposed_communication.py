"""Communication during which nothing computes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tracelens.analysis.factorize import distinct_rows
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.transfers.communication_kinds import (
    REMEDIES,
    SEND_RECV,
    STAGES,
    exposed_kinds,
    in_words,
)
from tracelens.analysis.findings.wording import duration, percent, size
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
#: How many times as long as the links need a collective takes whose time goes mostly into something else.
_MOSTLY_ELSE = 2.0
_LATE_RANKS = "see who is late with `tracelens collectives` on the traces of all ranks"
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
    if not exposed_ns:
        return
    share = exposed_ns / seen.window_ns
    kind = _kind(seen, exposed_ns)
    reasons = [*_waiting(seen), *_slow_collectives(seen)]
    said = ", ".join([f"exposed communication: {percent(share)}", *(reason.text for reason in kind)])
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


def _waiting(seen: Observed) -> Iterator[_Reason]:
    """Kernels that only wait for other ranks."""
    activity = seen.activity
    waits = np.zeros(len(seen.table.names), bool)
    for name in distinct_rows(activity.name, len(waits)).tolist():
        waits[name] = _WAITS.search(seen.table.names[name]) is not None
    time_us = float(activity.duration[waits[activity.name] & ~activity.memcpy].sum()) / NS_PER_US
    if time_us > 0.01 * seen.device_us:
        each_us = time_us / seen.steps
        text = f"{duration(each_us)} spent in kernels that wait for other ranks (notify, barrier)"
        said = Said(what="kernels that wait", value=each_us, unit="us")
        yield _Reason(text=text, figures=(said,))


def _slow_collectives(seen: Observed) -> Iterator[_Reason]:
    """The collectives of one size that take most time, when they are far below the link's rate.

    One rank's trace does not tell waiting from moving; what takes longer than on the links alone does one or the other.
    """
    frame, device = seen.context.frames[coll_analysis.TITLE], seen.device
    if device is None or device.link is None or "bus_gb_s_mean" not in frame:
        return
    known = frame[frame["bus_gb_s_mean"].notna() & (frame["duration_us_sum"] > 0)]
    if known.empty:
        return
    most = known.iloc[int(known["duration_us_sum"].argmax())]
    kind, rate, size_mb = str(most["collective"]), float(most["bus_gb_s_mean"]), float(most["in_mb"])
    if rate < SLOW_BUS * device.link.gb_s:
        figures = (
            Said(what="bytes sent", value=size_mb, unit="MB"),
            Said(what="bus bandwidth", value=rate, unit="GB/s"),
            Said(what="link", value=device.link.gb_s, unit="GB/s"),
        )
        reached = (
            f"{kind} of {size(size_mb)} reaches {rate:.3g} GB/s bus bandwidth of the link's {device.link.gb_s:,.0f}"
        )
        evidence = Evidence(sheet=coll_analysis.TITLE, row={"collective": kind, "in_mb": size_mb})
        alone_us = _alone_us(known[known.index == most.name], device)
        if alone_us is None:
            yield _Reason(text=reached, figures=figures, evidence=(evidence,))
        elif float(most["duration_us_mean"]) > _MOSTLY_ELSE * alone_us:
            word = in_words(seen, kind)
            otherwise = "; then ".join([_LATE_RANKS, *([REMEDIES[word]] if word in REMEDIES else [])])
            whom, remedy = ("another stage", STAGES) if word == SEND_RECV else ("other ranks", otherwise)
            text = f"{reached}: it waits for {whom}, or takes a slower path"
            yield _Reason(text=text, figures=figures, evidence=(evidence,), remedy=remedy)
        else:
            text = f"{reached}: a message this small is all latency"
            yield _Reason(text=text, figures=figures, evidence=(evidence,))


def _alone_us(row: pd.DataFrame, device: HardwareSpec) -> float | None:
    """What a collective takes by the library's model of the device's standard node (``tracelens.network``) when nobody
    is late; where the ranks of its group are not known, with each in a node of its own. None where it has no model.
    """
    system = System.of_device(device).in_a_node()
    if system.topology is None:
        return None
    # A message arrives when it has been sent
    sent = row.assign(collective=row["collective"].replace("recv", "send"))
    (model,) = coll_analysis.collective_models(sent, stride=system.topology.ranks_per_node)
    if model is None:
        return None
    time_us = float(Collectives().estimate_many(WorkColumns.of([model]), system).time_us[0])
    return time_us if time_us > 0 else None
