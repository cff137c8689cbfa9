"""The GPU is idle after, or while, the host waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.host.blocked_host import blocking_call_of
from tracelens.analysis.findings.idle_of_cause import idle_of_cause
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.idle.host_time import SYNCHRONIZATION


@finding(
    "idle: blocking copy or synchronization",
    Advice(
        sees="The GPU is idle after the host waited for it, or while a thread sits in a call that waits: .item(), a "
        "blocking copy, a synchronize.",
        costs="Meanwhile nothing is launched: the queue is empty afterwards, and the device idles until the host has "
        "launched again.",
        remedy="keep the value on the device, log every N steps, non_blocking=True with pinned memory",
        wrong_when="The host needs the value to decide what comes next.",
        references=("https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html",),
    ),
)
def host_synchronization(seen: Observed) -> Iterator[Candidate]:
    """Idle time of this cause, and device waits through which a thread sat in one blocking call."""
    call = blocking_call_of(seen)
    length = np.where(call >= 0, seen.idle_ns, 0)
    for candidate in idle_of_cause(seen, SYNCHRONIZATION, seen.idle_of(SYNCHRONIZATION) | (call >= 0)):
        if not length.any():
            yield candidate
            continue
        row = int(call[length.argmax()])
        op = int(seen.tree.op_parent[row])
        names = [seen.table.name_of(at) for at in (op, row) if at >= 0]
        yield replace(
            candidate,
            why=f"{candidate.why}, while the host sat in {' in '.join(reversed(names))}",
            row=op if op >= 0 else row,
        )
