"""Elementwise kernels that run back to back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.elementwise.optimizer_events import within_optimizer
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted, size
from tracelens.analysis.verdict.summary import Said
from tracelens.units import NS_PER_US

_ELEMENTWISE = "elementwise"


@finding(
    "unfused_elementwise",
    Advice(
        sees="Elementwise kernels that run back to back on one stream.",
        costs="Each kernel reads what the one before has just written: the same tensor goes through HBM again "
        "and again.",
        remedy="torch.compile the module, or use the framework's fused kernel (SwiGLU, bias + activation, RoPE)",
        wrong_when="Values between them are needed by the backward pass, which must then read them.",
        references=("https://pytorch.org/docs/stable/torch.compiler.html",),
    ),
)
def unfused_elementwise(seen: Observed) -> Iterator[Candidate]:
    """Gain: fused, a chain takes at least as long as its longest kernel, and as long as today where what is between its
    kernels must be written anyway.
    """
    activity = seen.activity
    order = np.lexsort((activity.start, activity.stream))
    elementwise = seen.category.are(_ELEMENTWISE) & ~activity.memcpy
    # Those work on one parameter after the other, and have a rule of their own
    elementwise[seen.once(within_optimizer)] = False
    mine = elementwise[order]
    stream = activity.stream[order]
    linked = mine[1:] & mine[:-1] & (stream[1:] == stream[:-1])
    chain = np.cumsum(np.concatenate(([True], ~linked)))[: len(order)] - 1
    duration = activity.duration[order]
    longest = np.zeros(len(order), np.int64)
    np.maximum.at(longest, chain, duration)
    total = np.bincount(chain, duration, minlength=len(order))
    members = np.bincount(chain, minlength=len(order))[chain] > 1
    if not members.any():
        return
    kept = (longest / np.maximum(total, 1))[chain[members]]
    time_us = float(duration[members].sum()) / NS_PER_US
    events, rows = order[members], seen.row_of_event[order[members]]
    ranked = np.argsort(-np.bincount(rows[rows >= 0], duration[members][rows >= 0]), kind="stable")[:5]
    mb = np.append(np.nan_to_num(seen.column("hbm_mb") / seen.column("kernels_per_call")), 0.0)[rows]
    saved_mb = float((mb * (1 - kept)).sum()) / seen.steps
    # Of kernels without recorded shapes the bytes are not known
    saved = f"; fusing them saves some {size(saved_mb)} of HBM traffic" if saved_mb > 0 else ""
    yield Candidate(
        why=f"{counted(int(members.sum()), 'unfused elementwise kernel')} take {seen.share_text(time_us)}{saved}",
        claimed=seen.kernels(events, 1 - kept, low=0.0, spares_launches=True),
        computed="per chain, the time of its kernels less that of the longest; at least none of it",
        figures=(
            Said(what="kernels in chains", value=int(members.sum()), unit="count"),
            seen.gpu_share(time_us),
            *((Said(what="saved", value=saved_mb, unit="MB"),) if saved else ()),
        ),
        evidence=seen.evidence(ranked),
        row=seen.example_of(ranked[0]) if len(ranked) else None,
    )
