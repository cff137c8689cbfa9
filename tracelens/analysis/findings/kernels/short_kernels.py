"""Many kernels that take hardly longer than their launch."""

from __future__ import annotations

from collections.abc import Iterator

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.verdict.summary import Said
from tracelens.analysis.work.limits import SHORT_KERNEL_US
from tracelens.units import NS_PER_US

#: How many there must be, and their share of the window.
_MANY, _LEAST_SHARE = 100, 0.02


@finding(
    "short_kernels",
    Advice(
        sees="Many kernels that take hardly longer than their launch.",
        costs="A kernel of a few microseconds spends them on starting and draining: the device's units hardly work.",
        remedy="torch.compile or other fused kernels, foreach or fused optimizers, a larger batch",
        is_general=True,
        wrong_when="They run beside longer kernels of another stream.",
    ),
)
def short_kernels(seen: Observed) -> Iterator[Candidate]:
    """Gain: at most all of their time."""
    activity = seen.activity
    short = (activity.duration < SHORT_KERNEL_US * NS_PER_US) & ~activity.communication & ~activity.between_memories
    count, total_ns = int(short.sum()), int(activity.duration[short].sum())
    if count <= _MANY or total_ns <= _LEAST_SHARE * seen.window_ns:
        return
    yield Candidate(
        why=f"{count:,} kernels take under {SHORT_KERNEL_US:.0f} µs each, most of it to start and drain",
        claimed=seen.kernels(short, low=0.0, spares_launches=True),
        computed="their time; at least none of it",
        certainty="low",
        figures=(
            Said(what="short kernels", value=count, unit="count"),
            Said(what="short: below", value=SHORT_KERNEL_US, unit="us"),
        ),
    )
