"""Communication during which nothing computes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import duration, percent
from tracelens.analysis.sheets.ops import coll_analysis
from tracelens.analysis.verdict.summary import Evidence, Said
from tracelens.lazy.patterns import lazy_pattern
from tracelens.units import NS_PER_US

#: Bus bandwidth, as a share of the link's rate, below which collectives are called slow.
SLOW_BUS = 0.1
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
    reasons = [*_waiting(seen), *_slow_collectives(seen)]
    yield Candidate(
        why="; ".join([f"exposed communication: {percent(share)}", *(text for text, _, _ in reasons)]),
        claimed=seen.kernels(events, low=0.0),
        computed="communication during which nothing computes; at least none of it",
        certainty="low",
        figures=(
            Said(what="share of the time", value=share, unit="share"),
            *(said for _, figures, _ in reasons for said in figures),
        ),
        evidence=tuple(row for _, _, rows in reasons for row in rows),
    )


_Reason = tuple[str, tuple[Said, ...], tuple[Evidence, ...]]


def _waiting(seen: Observed) -> Iterator[_Reason]:
    """Kernels that only wait for other ranks."""
    activity = seen.activity
    names, which = np.unique(activity.name, return_inverse=True)
    waits = np.array([_WAITS.search(seen.table.names[name]) is not None for name in names.tolist()], bool)[which]
    time_us = float(activity.duration[waits & ~activity.memcpy].sum()) / NS_PER_US
    if time_us > 0.01 * seen.device_us:
        each_us = time_us / seen.steps
        text = f"{duration(each_us)} spent in kernels that wait for other ranks (notify, barrier)"
        yield text, (Said(what="kernels that wait", value=each_us, unit="us"),), ()


def _slow_collectives(seen: Observed) -> Iterator[_Reason]:
    """The collectives of one size that take most time, when they are far below the link's rate."""
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
        reached = f"{kind} of {size_mb:.3g} MB reaches {rate:.3g} GB/s bus bandwidth (waiting included)"
        evidence = Evidence(sheet=coll_analysis.TITLE, row={"collective": kind, "in_mb": size_mb})
        yield f"{reached} on a link of {device.link.gb_s:,.0f} GB/s", figures, (evidence,)
