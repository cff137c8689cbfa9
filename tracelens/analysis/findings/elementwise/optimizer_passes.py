"""An optimizer that goes over its parameters several times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracelens.analysis.findings.candidate import Candidate
from tracelens.analysis.findings.elementwise.optimizer_events import within_optimizer
from tracelens.analysis.findings.observed import Observed
from tracelens.analysis.findings.rule import Advice, finding
from tracelens.analysis.findings.wording import counted
from tracelens.analysis.verdict.summary import Said

_FUSED = "_fused_"
#: A fused Adam reads four values and writes three per parameter, the longest of its passes (addcdiv) reads three and
#: writes one.
_FUSED_OVER_LONGEST = 7 / 4


@finding(
    "optimizer_passes",
    Advice(
        sees="Several kernels per parameter in Optimizer.step: no fused optimizer.",
        costs="Each pass reads and writes parameters or moments again, which a fused kernel does once; a loop over "
        "parameters also launches a kernel for each.",
        remedy="fused=True of torch.optim (or foreach=True), apex or Transformer Engine's FusedAdam",
        wrong_when="The optimizer has no fused kernel for these types, or a hook looks at each parameter.",
        references=("https://pytorch.org/docs/stable/optim.html",),
    ),
)
def optimizer_passes(seen: Observed) -> Iterator[Candidate]:
    """Gain: their time less that of one pass over gradients, parameters and moments."""
    events = seen.once(within_optimizer)
    name = seen.table.name[seen.activity.op[events]] if len(events) else np.zeros(0, np.int64)
    codes, which = np.unique(name, return_inverse=True)
    if len(codes) < 2 or any(_FUSED in seen.table.names[code] for code in codes.tolist()):
        return
    took_us = seen.activity.duration_us(events)
    total_us, longest_us = float(took_us.sum()), float(np.bincount(which, took_us).max())
    yield Candidate(
        why=f"{counted(len(events), 'kernel')} of {counted(len(codes), 'op')} in Optimizer.step take "
        f"{seen.share_text(total_us)}: the optimizer is not fused",
        claimed=seen.kernels(events, max(0.0, 1 - _FUSED_OVER_LONGEST * longest_us / total_us), spares_launches=True),
        computed="their time less one fused pass, which moves 7/4 of the bytes of the longest of them",
        figures=(
            Said(what="kernels", value=len(events), unit="count"),
            Said(what="ops", value=len(codes), unit="count"),
            seen.gpu_share(total_us),
        ),
        evidence=seen.evidence(np.unique(seen.row_of_event[events[seen.row_of_event[events] >= 0]])),
        row=int(seen.activity.op[events[took_us.argmax()]]),
    )
