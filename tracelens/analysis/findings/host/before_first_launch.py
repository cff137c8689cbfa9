"""Host work at the start of a step, before it launches anything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tracelens.analysis.attribution.host_time import HOST_WORK
from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.idle_of_cause import LEAST_SHARE, OPEN_ENDED, idle_evidence, longest_row
from tracelens.analysis.findings.observed import Floats, Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import duration, percent
from tracelens.analysis.verdict.summary import Said
from tracelens.lazy.patterns import lazy_pattern
from tracelens.trace.table import Kind
from tracelens.units import NS_PER_US

#: Share of the wait that a function must have lasted for to be named.
_MOST_OF_IT = 0.6
#: Where it is the model that runs, and not what prepares its input.
_IN_MODEL = (
    "less Python before the model's first kernel: masks and positions made once, a CUDA or HIP graph, torch.compile"
)
_PLAIN = lazy_pattern(r"[A-Za-z_]\w*")


@finding(
    "host_before_first_launch",
    Advice(
        sees="A step begins with Python or other host work, and launches nothing before that is done.",
        costs="The device waits for input that could have been prepared while it worked on the step before.",
        remedy="prepare the next step's input in another thread or process while this step runs (DataLoader workers)",
        wrong_when="One request's latency is what matters: its own preparation then has to become faster.",
        references=("https://pytorch.org/docs/stable/data.html#multi-process-data-loading",),
    ),
)
def host_before_first_launch(seen: Observed) -> Iterator[Candidate]:
    """Gain: what the rest of a step can hide, at most all of the wait."""
    parts = seen.once(before_first_launch)
    wait_ns, step_ns = _by_step(seen, parts)
    share = wait_ns.sum() / max(1, seen.window_ns)
    if share <= LEAST_SHARE:
        return
    waiting = wait_ns > LEAST_SHARE * step_ns
    each_us = float(wait_ns[waiting].mean()) / NS_PER_US
    hidden = float(np.clip(step_ns - wait_ns, 0, wait_ns).sum() / wait_ns.sum())
    row = _function(seen, parts)
    name = "" if row is None else seen.table.name_of(row).rpartition(": ")[2]
    runs = f"runs {name}" if _PLAIN.fullmatch(name) else "launches nothing"
    which = "each step" if waiting.all() else f"{waiting.sum()} of {len(waiting)} steps"
    yield Candidate(
        why=f"the GPU idles for the first {duration(each_us)} of {which} ({percent(share)} of the time) while "
        f"the host {runs}",
        claimed=seen.idle_time(parts, hidden, low=OPEN_ENDED),
        computed="the shorter of this wait and the rest of the step, beside which it can be done; at least none of it",
        certainty="low",
        figures=(
            Said(what="wait of these steps", value=each_us, unit="us"),
            Said(what="steps that wait", value=int(waiting.sum()), unit="count"),
            Said(what="steps", value=len(waiting), unit="count"),
            Said(what="share of the time", value=float(share), unit="share"),
        ),
        evidence=idle_evidence(seen, parts),
        remedy=_IN_MODEL if name == "forward" else None,
        row=longest_row(seen, parts) if row is None else row,
    )


def _by_step(seen: Observed, parts: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """(how long these parts are together, length) of each complete step (ns)."""
    times, chosen = seen.context.window.times, list(seen.context.selected)
    step = np.searchsorted(times.start_ns[chosen], seen.idle.start[parts], side="right") - 1
    wait = np.bincount(step, seen.idle_ns[parts], len(chosen))
    return wait.astype(np.float64), times.duration_ns[chosen].astype(np.float64)


def before_first_launch(seen: Observed) -> npt.NDArray[np.bool_]:
    """Which parts of idle time are host work between the start of a step and its first device event."""
    times, chosen = seen.context.window.times, list(seen.context.selected)
    mine = seen.idle_of(HOST_WORK)
    if not chosen or not len(seen.activity):
        return np.zeros(len(mine), bool)
    begin = times.start_ns[chosen]
    started = np.sort(seen.activity.start)
    first = np.append(started, np.iinfo(np.int64).max)[np.searchsorted(started, begin)]
    step = np.searchsorted(begin, seen.idle.start, side="right") - 1
    return mine & (step >= 0) & (seen.idle.end <= first[np.maximum(step, 0)])


def _function(seen: Observed, parts: npt.NDArray[np.bool_]) -> int | None:
    """The innermost Python function of the launching thread that lasted for most of the longest of these parts."""
    row, table = longest_row(seen, parts), seen.table
    at = np.flatnonzero(parts)
    if row is None or not table.has_stacks:
        return None
    longest = at[seen.idle_ns[at].argmax()]
    start, end = int(seen.idle.start[longest]), int(seen.idle.end[longest])
    frames = np.flatnonzero((table.kind == Kind.PYTHON_FUNCTION) & (table.lane == table.lane[row]))
    shared = np.minimum(table.ends_ns(frames), end) - np.maximum(table.start_ns[frames], start)
    frames = frames[shared >= _MOST_OF_IT * (end - start)]
    return int(frames[seen.tree.depth[frames].argmax()]) if len(frames) else None
